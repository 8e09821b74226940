//! Tests of `collect/recheck.rs`.

mod finalize;

use super::*;
use crate::collect::claim::tests::{heap, things};
use crate::collect::collection::collect_due;
use crate::collect::tests::script::{Script, are_ordinary, collect, scripted_heap};
use crate::heap::request::Collect;
use crate::object::address::Object;
use crate::object::state::UNREACHABLE;

/// Also with objects that legacy finalizers keep alive.
#[test]
fn spared_objects_keep_their_references_for_any_verdict() {
    let heap = heap();
    let m = heap.attach();
    let things = things(&m);
    let claims = |things: &[Object]| -> Vec<ClaimRef> {
        // SAFETY: rule *counted*: the test's references stand for the claim's.
        things.iter().map(|&thing| unsafe { ClaimRef::new(thing) }).collect()
    };
    heap.model().keep_all();
    let exempt = Exempt {
        objects: claims(&things[..1]),
        legacy: vec![things[0]],
        spared: claims(&things[1..3]),
    };
    let garbage = judge(Garbage::none(Reclaimers::default(), exempt), &m);
    let [spared, exempt, doubted, kept] = garbage.spared;
    assert_eq!((spared, kept), (vec![], vec![]));
    assert_eq!((exempt, doubted), (claims(&things[..1]), claims(&things[1..3])));
    assert_eq!((garbage.kept, garbage.objects), (1, vec![]));
}

#[test]
fn garbage_that_the_model_keeps_is_ordinary_again_and_counts_as_uncollectable() {
    for (by_the_heap, panics) in [(false, false), (true, false), (false, true)] {
        let Some(heap) = scripted_heap() else { return };
        let mut m = heap.attach();
        let garbage = Script::ring(&m, &[('a', ""), ('b', "")]);
        if panics {
            heap.model().when("judge [ab] [] []", |_| panic!("a verdict, on purpose"));
        } else {
            heap.model().state().keeps = true;
        }
        let calls = if by_the_heap {
            collect_due(&mut m, Collect::full()).expect("a turn");
            heap.model().calls()
        } else {
            collect(&mut m, Collect::full()).1
        };
        let mut expected = vec!["judge [ab] [] []"];
        if panics {
            expected.push("failure: Clear '': a verdict, on purpose");
        }
        expected.extend(["release a", "release b", "clearing 0", "all cleared", "after_clear"]);
        expected.push(
            "stop: 1 stops, 2 unreachable, 0 finalized, 0 resurrected, 0 collected, 2 uncollectable",
        );
        assert_eq!(calls[calls.len() - expected.len()..], expected);
        are_ordinary(&m, &garbage, 1);
    }
}

#[test]
fn resurrected_objects_are_released_and_the_rest_is_cleared() {
    for by_the_heap in [false, true] {
        let Some(heap) = scripted_heap() else { return };
        let mut m = heap.attach();
        let ring = Script::ring(&m, &[('a', "f"), ('b', "w")]);
        Script::ring(&m, &[('x', "w")]);
        // The finalizer drops a's reference to c, and untracks u, which refers to v.
        let [c, u, v] = ['c', 'u', 'v'].map(|name| Script::thing(&m, name, "", "s"));
        for (from, to) in [(ring[0], c), (c, c), (u, u), (u, v), (v, v)] {
            Script::link(&m, from, to);
        }
        [c, u, v].iter().for_each(|&object| heap.model().drop_ref(object, &m));
        let a = ring[0];
        heap.model().when("finalize a", move |m| {
            Script::of(m, a, |thing| {
                thing.count += 1;
                thing.edges.retain(|&edge| edge != c);
            });
            m.model().drop_ref(c, m);
            assert!(Script::untrack(m, u));
        });
        let calls = if by_the_heap {
            collect_due(&mut m, Collect::full()).expect("a turn");
            heap.model().calls()
        } else {
            collect(&mut m, Collect::full()).1
        };
        let end = "stop: 2 stops, 6 unreachable, 1 finalized, 3 resurrected, 2 collected, 0 uncollectable";
        assert_eq!(calls.last().map(String::as_str), Some(end));
        let cleared: Vec<&String> =
            calls.iter().filter(|what| what.starts_with("clear_weak")).collect();
        assert_eq!(cleared, ["clear_weak x", "clear_weak c"]);
        are_ordinary(&m, &ring[1..], 1);
        are_ordinary(&m, &ring[..1], 2);
        assert_eq!((m.model().count_of(u), m.model().count_of(v)), (1, 2));
        assert_eq!(m.core().state_at(u).get() & UNREACHABLE, 0);
    }
}

/// The unreadable field may still hold the references that counting found in the first stop.
#[test]
fn a_field_that_is_locked_after_finalizers_have_run_keeps_what_it_led_to() {
    let Some(heap) = scripted_heap() else { return };
    let mut m = heap.attach();
    let ring = Script::ring(&m, &[('b', "f"), ('c', "")]);
    let hides = Script::thing(&m, 'h', "", "sh");
    for (from, to) in [(hides, hides), (hides, ring[0])] {
        Script::link(&m, from, to);
    }
    heap.model().drop_ref(hides, &m);
    let (report, calls) = collect(&mut m, Collect::full());
    let end =
        "stop: 2 stops, 3 unreachable, 1 finalized, 3 resurrected, 0 collected, 0 uncollectable";
    assert_eq!((calls.last().map(String::as_str), report.abandoned), (Some(end), None));
    are_ordinary(&m, &ring[1..], 1);
}
