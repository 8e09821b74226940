//! Tests of callbacks and finalizers.

#![forbid(unsafe_code)]

use crate::collect::tests::script::{Script, are_ordinary, collect, scripted_heap};
use crate::heap::request::Collect;

#[test]
fn callbacks_alone_require_a_recheck() {
    let Some(heap) = scripted_heap() else { return };
    let mut m = heap.attach();
    let ring = Script::ring(&m, &[('a', "c"), ('b', "")]);
    let brought_back = ring[0];
    heap.model()
        .when("call back a", move |m| Script::of(m, brought_back, |thing| thing.count += 1));
    let (report, calls) = collect(&mut m, Collect::full());
    let end =
        "stop: 2 stops, 2 unreachable, 0 finalized, 2 resurrected, 0 collected, 0 uncollectable";
    assert_eq!(calls.last().map(String::as_str), Some(end));
    assert_eq!(report.finalized, 0);
    are_ordinary(&m, &ring[1..], 1);
}

#[test]
fn a_finalizer_that_another_thread_runs_first_is_not_run_again() {
    let Some(heap) = scripted_heap() else { return };
    let mut m = heap.attach();
    Script::ring(&m, &[('a', "fr"), ('b', "f")]);
    let (report, calls) = collect(&mut m, Collect::full());
    let finalized: Vec<&String> =
        calls.iter().filter(|what| what.starts_with("finalize")).collect();
    assert_eq!(finalized, ["finalize b"]);
    assert_eq!(report.finalized, 1);
}
