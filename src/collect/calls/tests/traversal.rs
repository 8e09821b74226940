//! Tests of batch traversals.

#![forbid(unsafe_code)]

use crate::collect::tests::script::{Script, collect, scripted_heap};
use crate::heap::request::Collect;

#[test]
fn a_failed_batch_traversal_names_the_first_object_and_drops_the_surplus() {
    let Some(heap) = scripted_heap() else { return };
    let mut m = heap.attach();
    let fails = Script::thing(&m, 'q', "", "q");
    let (report, calls) = collect(&mut m, Collect::full());
    assert_eq!(report.abandoned.as_deref(), Some("a batch traversal, on purpose"));
    assert!(calls[4].starts_with("failure: Traverse 'thing': "), "{calls:?}");
    heap.model().drop_ref(fails, &m);
    // Edges that are reported after the last object belong to no object.
    for what in [Collect::young(), Collect::full()] {
        let ring = Script::ring(&m, &[('a', ""), ('b', "")]);
        Script::of(&m, ring[0], |thing| thing.traversals = "e");
        let (report, _) = collect(&mut m, what);
        assert_eq!((report.overvisited, report.collected), (0, 2));
    }
}
