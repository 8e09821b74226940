//! The calls to the model between the stops of a collection.
//!
//! These methods may run code of the runtime, so the mutator is lent meanwhile. The collection owns
//! references to its garbage and holds the collector lock. A panic that unwound through it would
//! leak these references, and could keep the lock. So a panic is reported to the hook of
//! [`on_unraisable`](crate::model::ModelHeap::on_unraisable), and the collection continues.

#![forbid(unsafe_code)]

use std::borrow::Cow;
use std::time::{Duration, Instant};

use crate::base::event::{During, LongestCall, guarded, panic_message};
use crate::base::fallible;
use crate::base::text::words;
use crate::heap::model::ObjectModel;
use crate::heap::mutator::ModelMutator;

/// Calls a method of the model. `None`: it panicked, and the panic was reported.
pub(crate) fn call<M: ObjectModel, R>(
    m: &ModelMutator<M>,
    during: During,
    method: &'static str,
    f: impl FnOnce(&M) -> R,
) -> Option<R> {
    let lent = m.lend_to_model();
    let result = guarded(|| f(m.model()));
    drop(lent);
    result
        .map_err(|payload| {
            let text = words!("`{method}` has panicked: {}", panic_message(payload));
            m.core().hooks.unraisable(during, "", text);
        })
        .ok()
}

/// Quick clear handlers and destructors that are measured together. Reading the clock takes about
/// as long as one of them.
pub(crate) const MEASURED_TOGETHER: usize = 32;

/// A shorter call is not noted, so quick code pays for no name.
const NOTED: Duration = Duration::from_micros(100);

/// Measures the code of the program that a collection calls on this thread, for
/// [`report_held_up`].
pub(crate) struct CallClock(Instant);

impl CallClock {
    /// The first call begins now.
    pub(crate) fn start() -> Self {
        Self(Instant::now())
    }

    /// The call for some objects ends now, and the next one begins. Returns how many objects to
    /// measure together next: one by one after a slow call, so that the next slow one is named.
    pub(crate) fn lap<'n, M: ObjectModel>(
        &mut self,
        m: &ModelMutator<M>,
        during: During,
        objects: usize,
        name: impl FnOnce() -> Cow<'n, str>,
    ) -> usize {
        let now = Instant::now();
        let took = now.duration_since(self.0);
        self.0 = now;
        // The behaviour of a model does not depend on time.
        if took < NOTED || cfg!(all(test, any(loom, shuttle))) {
            return MEASURED_TOGETHER;
        }
        // Without memory the call has no name.
        let type_name = fallible::owned(&name()).unwrap_or_default().into();
        m.held_up().note_call(LongestCall { during, type_name, objects, took });
        1
    }
}

/// The thread begins to collect, or to reclaim garbage.
pub(crate) fn begin_holding_up<M: ObjectModel>(m: &ModelMutator<M>) -> Instant {
    m.held_up().restart();
    Instant::now()
}

/// Parks for the stop of another thread, while the thread collects.
pub(crate) fn park<M: ObjectModel>(m: &mut ModelMutator<M>) {
    let begun = Instant::now();
    m.wait_parked();
    m.held_up().note_wait(begun.elapsed());
}

/// The thread has collected, or reclaimed garbage, since `begun`, and does something else now.
/// Reports if this took long. The waits for stops do not count: the threads that cause them are
/// reported.
pub(crate) fn report_held_up<M: ObjectModel>(m: &ModelMutator<M>, begun: Instant) {
    let held_up = begun.elapsed().saturating_sub(m.held_up().waited());
    // The behaviour of a model does not depend on time.
    let is_model = cfg!(all(test, any(loom, shuttle)));
    if held_up >= m.core().coordinator.slow_stop() && !is_model {
        let longest = m.held_up().take_longest();
        m.core().coordinator.report_held_up(m.thread_id(), held_up, longest);
    }
}

/// Calls [`ObjectModel::resumed`].
pub(crate) fn resumed<M: ObjectModel>(m: &ModelMutator<M>) {
    call(m, During::Drop, "resumed", |model| model.resumed(m));
}

/// Calls [`ObjectModel::cleared`] after a batch, or before the thread parks.
pub(crate) fn all_cleared<M: ObjectModel>(m: &ModelMutator<M>) {
    call(m, During::Clear, "cleared", |model| model.cleared(m, true));
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use std::sync::Arc;

    use crate::base::sync::{AtomicUsize, Ordering};
    use crate::collect::Collect;
    use crate::collect::collection::{collect, collect_due};
    use crate::collect::script::tests::{Script, scripted_heap};
    use crate::heap::mutator::MODEL_REQUESTS;

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
}
