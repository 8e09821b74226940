//! Tests of `collect/calls.rs`.

#![forbid(unsafe_code)]

mod traversal;

use std::sync::Arc;

use crate::base::sync::{AtomicUsize, Ordering};
use crate::collect::collection::{collect, collect_due};
use crate::collect::tests::script::{Script, scripted_heap};
use crate::heap::core::MODEL_REQUESTS;
use crate::heap::request::Collect;

/// Methods that may run code of the runtime, as the script names their calls.
const METHODS: [&str; 12] = [
    "attached",
    "answer",
    "ending",
    "prepare",
    "destroy_merged d, dying: false",
    "resumed",
    "judge [ab] [] []",
    "clearing 2",
    "clear a",
    "all cleared",
    "release b",
    "after_clear",
];

#[test]
fn the_mutator_is_lent_to_each_method_that_may_run_user_code() {
    for by_the_heap in [false, true] {
        let Some(heap) = scripted_heap() else { return };
        let lent = Arc::new(AtomicUsize::new(0));
        let mut m = heap.attach();
        for method in METHODS {
            let lent = Arc::clone(&lent);
            heap.model().when(method, move |m| {
                assert!(!m.may_park(), "{method}");
                lent.fetch_add(1, Ordering::Relaxed);
            });
        }
        m.raise(MODEL_REQUESTS);
        m.safepoint();
        let merged = Script::thing(&m, 'd', "", "s");
        heap.model().state().later.push(merged);
        Script::ring(&m, &[('a', ""), ('b', "")]);
        if by_the_heap {
            collect_due(&mut m, Collect::full()).expect("a turn");
        } else {
            collect(&mut m, Collect::full()).expect("a stop");
        }
        assert!(m.may_park(), "no loan is left");
        assert_eq!(heap.stats().live_objects, 0);
        drop(m);
        assert_eq!(lent.load(Ordering::Relaxed), METHODS.len());
        assert_eq!(heap.stats().mutators, 0);
    }
}

/// The garbage is reclaimed, the report is delivered, and the lock is released.
#[test]
fn a_panic_between_the_stops_is_reported_and_the_collection_continues() {
    for (call, method) in [
        ("destroy_merged d, dying: false", "Drop '': `destroy_merged`"),
        ("resumed", "Drop '': `resumed`"),
        ("clearing 2", "Clear '': `clearing`"),
        ("all cleared", "Clear '': `cleared`"),
        ("after_clear", "Clear '': `after_clear`"),
    ] {
        for by_the_heap in [false, true] {
            let Some(heap) = scripted_heap() else { return };
            let mut m = heap.attach();
            let merged = ['d', 'e'].map(|name| Script::thing(&m, name, "", "s"));
            heap.model().state().later.extend(merged);
            Script::ring(&m, &[('a', ""), ('b', "")]);
            heap.model().when(call, |_| panic!("a call, on purpose"));
            if by_the_heap {
                collect_due(&mut m, Collect::full()).expect("a turn");
            } else {
                collect(&mut m, Collect::full()).expect("a stop");
            }
            let calls = heap.model().calls();
            let failure = format!("failure: {method} has panicked: a call, on purpose");
            assert!(calls.contains(&failure), "{calls:?}");
            let end = "stop: 1 stops, 2 unreachable, 0 finalized, 0 resurrected, 2 collected, 0 uncollectable";
            assert_eq!(calls.last().map(String::as_str), Some(end), "{call}");
            let left = usize::from(call.starts_with("destroy"));
            assert_eq!(heap.stats().live_objects, left, "only the object itself leaks");
            let lock = &m.core().collector_lock;
            assert!(lock.try_acquire() && !lock.is_reclaiming(), "the turn is given back");
            lock.release();
        }
    }
}
