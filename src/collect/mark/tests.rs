//! Tests of `collect/mark.rs`.

#![forbid(unsafe_code)]

mod marker;
mod pool;

use super::*;
use crate::base::stress::Stress;
use crate::collect::scope::Scope;
use crate::collect::tests::script::{Raw, Script, collect, scripted_heap, small_heap};
use crate::heap::request::Collect;
use crate::object::state;
use crate::report::facts::CollectionKind;

/// Counting by several workers lists them in any order.
#[test]
fn a_field_that_counting_could_not_read_either_abandons_nothing() {
    use crate::{Heap, Pacing};

    let builder = Heap::builder().reserve(1 << 28).workers(1).pacing(Pacing::manual());
    let heap = builder.build_with(Script::default()).unwrap();
    let m = heap.attach();
    let things: Vec<Object> = (0..5).map(|_| Script::thing(&m, 'h', "", "h")).collect();
    let world = m.stop_here().expect("no other thread");
    let space = &world.core().space;
    let unreadable: Vec<u32> = things.iter().rev().map(|&thing| granule(space, thing)).collect();
    for is_known in [true, false] {
        let scope = Scope::new(space, CollectionKind::Full).expect("memory");
        let search = Search::begin(&world, scope, 1).expect("memory");
        let mark_root = |&granule: &u32| search.candidates.mark_on_page(granule as usize);
        unreadable.iter().for_each(mark_root);
        let roots = Roots { found: vec![unreadable.clone()], ..Roots::default() };
        let known = if is_known { unreadable.clone() } else { unreadable[1..].to_vec() };
        let mut counts = Counts { unreadable: known, ..Counts::default() };
        let marked = mark(&search, &mut counts, roots);
        assert_eq!(search.close(marked).is_ok(), is_known);
    }
    drop(world);
}

#[test]
fn immortal_objects_behind_known_roots_leave_the_tracked_set() {
    let Some(heap) = scripted_heap() else { return };
    let mut m = heap.attach();
    let root = Script::thing(&m, 'r', "", "s");
    let objects =
        [('a', ""), ('i', "i"), ('b', "")].map(|(name, has)| Script::thing(&m, name, has, "s"));
    for (from, to) in [(root, objects[0]), (root, objects[1]), (objects[1], objects[2])] {
        Script::link(&m, from, to);
    }
    objects.iter().for_each(|&object| heap.model().drop_ref(object, &m));
    let key = m.core().roots.add(root);
    let (report, _) = collect(&mut m, Collect::young());
    assert_eq!(
        (report.known_alive, report.candidates),
        (0, 4),
        "young collections do without known roots"
    );
    // The first collection has untracked the immortal object.
    let is_tracked = |m: &Raw| m.core().state_at(objects[1]).get() & state::TRACKED != 0;
    assert!(!is_tracked(&m));
    assert!(Script::track(&m, objects[1]));
    let (report, _) = collect(&mut m, Collect::full());
    assert_eq!((report.known_alive, report.candidates, report.unreachable), (3, 4, 0));
    assert!(!is_tracked(&m), "also behind a known root");
    heap.forget_root(key);
}

/// The collection begins again without the roots that were none. Named roots are not counted
/// then either.
#[test]
fn named_roots_are_marked_again_when_a_collection_begins_again() {
    for heap in [scripted_heap(), small_heap(1), small_heap(2)] {
        let Some(heap) = heap else { return };
        let mut m = heap.attach();
        let [named, root, other] = ['n', 'r', 'o'].map(|name| Script::thing(&m, name, "", "s"));
        let key = m.core().roots.add(named);
        assert_eq!(collect(&mut m, Collect::full()).0.known_alive, 1);
        Script::link(&m, root, other);
        Script::link(&m, other, root);
        [root, other].iter().for_each(|&object| heap.model().drop_ref(object, &m));
        let traversed = |m: &Raw| Script::of(m, named, |thing| thing.traversed);
        let before = traversed(&m);
        let report = crate::collect::collection::collect(&mut m, Collect::full()).expect("a stop");
        assert_eq!((report.known_alive, report.unreachable), (1, 2));
        assert_eq!(traversed(&m) - before, 2, "once in each attempt");
        heap.forget_root(key);
    }
}

/// A named root refers to a leaf. The leaf does refer to an object: the collection keeps the
/// object. Counting treats the edge to a leaf as any other: it finds the leaf of garbage.
#[test]
fn a_leaf_is_marked_without_a_traversal_before_counting() {
    for (heap, times) in [(scripted_heap(), 0), (small_heap(1), 0), (small_heap(2), 0)] {
        let Some(heap) = heap else { return };
        let mut m = heap.attach();
        let named = Script::thing(&m, 'r', "", "k");
        let [leaf, target] = ['l', 't'].map(|name| Script::thing(&m, name, "", "s"));
        Script::link(&m, named, leaf);
        Script::link(&m, leaf, target);
        [leaf, target].iter().for_each(|&object| heap.model().drop_ref(object, &m));
        let key = m.core().roots.add(named);
        let traversed = |m: &Raw, object| Script::of(m, object, |thing| thing.traversed);
        let (report, _) = collect(&mut m, Collect::full());
        assert_eq!((report.candidates, report.unreachable), (3, 0));
        assert_eq!((report.known_alive, traversed(&m, leaf)), (2 + times, times));
        assert!(traversed(&m, target) > 0);
        heap.forget_root(key);
        let (report, _) = collect(&mut m, Collect::full());
        assert_eq!((report.known_alive, report.candidates, report.unreachable), (0, 3, 0));
        heap.model().drop_ref(named, &m);
        for at in 0..2 {
            // A ring that holds the leaf.
            let ring = Script::ring(&m, &[('a', "")]);
            let [leaf, target] = ['l', 't'].map(|name| Script::thing(&m, name, "", "s"));
            Script::of(&m, ring[0], |thing| thing.traversals = "k");
            Script::link(&m, ring[0], leaf);
            Script::link(&m, leaf, target);
            let held = [leaf, target][at];
            heap.model().drop_ref([target, leaf][at], &m);
            let (report, _) = collect(&mut m, Collect::full());
            assert_eq!((report.unreachable, report.collected), (1 + at, 1 + at));
            heap.model().drop_ref(held, &m);
        }
    }
}

/// An object with a legacy finalizer refers to a leaf, which refers to another object. All
/// three are kept.
#[test]
fn a_leaf_of_an_object_with_a_legacy_finalizer_is_traversed() {
    let Some(heap) = scripted_heap() else { return };
    let mut m = heap.attach();
    let ring = Script::ring(&m, &[('a', "l")]);
    Script::of(&m, ring[0], |thing| thing.traversals = "k");
    let [leaf, target] = ['b', 't'].map(|name| Script::thing(&m, name, "", "s"));
    Script::link(&m, ring[0], leaf);
    Script::link(&m, leaf, target);
    [leaf, target].iter().for_each(|&object| heap.model().drop_ref(object, &m));
    let (report, calls) = collect(&mut m, Collect::full());
    assert_eq!((report.unreachable, report.uncollectable, report.collected), (3, 3, 0));
    assert!(!Script::is_reached(&calls, "clear t"), "{calls:?}");
}

/// In checked mode the collector compares two traversals of some objects, also of one that an
/// assumed root reaches.
#[test]
fn an_object_behind_an_assumed_root_is_compared_all_the_same() {
    let why = "the traverse handler of 'verified thing' visited other references the second time";
    for traversals in ["st", "s"] {
        let Some(heap) = scripted_heap() else { return };
        let mut m = heap.attach();
        let root = Script::thing(&m, 'r', "", "s");
        assert_eq!(collect(&mut m, Collect::full()).0.candidates, 1);
        assert_eq!(m.core().remembered.take().len(), 1);
        assert_eq!(collect(&mut m, Collect::full()).0.candidates, 1);
        let compared = Script::thing(&m, 'c', "d", traversals);
        let end = Script::thing(&m, 'z', "", "s");
        Script::link(&m, root, compared);
        Script::link(&m, compared, end);
        [compared, end].iter().for_each(|&object| heap.model().drop_ref(object, &m));
        let (report, _) = collect(&mut m, Collect::full());
        let expected = if traversals == "s" { None } else { Some(why) };
        assert_eq!(report.abandoned.as_deref(), expected);
        // A collection that is abandoned remembers nothing.
        assert_eq!(m.core().remembered.take().is_empty(), traversals == "st");
    }
}

/// A named root is readable in the first attempt and unreadable in the second. Nothing marks
/// its target then, so the target is counted.
#[test]
fn what_a_named_root_reached_before_the_assumption_failed_is_judged_again() {
    let Some(heap) = scripted_heap() else { return };
    let mut m = heap.attach();
    let named = Script::thing(&m, 'r', "", "ssh");
    let [target, holder, held] = ['x', 'p', 'a'].map(|name| Script::thing(&m, name, "", "s"));
    Script::link(&m, named, target);
    heap.model().drop_ref(target, &m);
    let key = m.core().roots.add(named);
    assert_eq!(collect(&mut m, Collect::full()).0.known_alive, 2);
    assert_eq!(m.core().remembered.take().len(), 2);
    assert_eq!(collect(&mut m, Collect::full()).0.known_alive, 2);
    Script::of(&m, named, |thing| thing.traversed = 1);
    // The assumption about this object fails. Another assumed root reaches it.
    Script::link(&m, holder, held);
    heap.model().drop_ref(held, &m);
    let (report, _) = collect(&mut m, Collect::full());
    assert_eq!((report.candidates, report.known_alive, report.unreachable), (4, 1, 0));
    heap.forget_root(key);
}

/// The first full collection traverses each candidate twice: once to count, once to mark. The
/// next one begins from the roots of the first, and traverses each candidate once. No
/// collection traverses an untracked object.
#[test]
fn a_full_collection_that_remembers_its_roots_traverses_each_object_once() {
    for heap in [scripted_heap(), small_heap(1), small_heap(2)] {
        let Some(heap) = heap else { return };
        let mut m = heap.attach();
        // Each object refers to the one before, so marking goes down the memory. The last one,
        // which the test holds, has ten edges, and one to the untracked object.
        let mut list = vec![Script::thing(&m, 'u', "", "s")];
        assert!(Script::untrack(&m, list[0]));
        for at in 1..6 {
            let object = Script::thing(&m, 'o', "", "s");
            (0..if at == 5 { 10 } else { 1 }).for_each(|_| Script::link(&m, object, list[at - 1]));
            list.push(object);
        }
        Script::link(&m, list[5], list[0]);
        list[..5].iter().for_each(|&object| heap.model().drop_ref(object, &m));
        let verifies = m.core().stress != Stress::none() && m.core().stress.verifies();
        for times in [2, 1, 1] {
            let traversed = |m: &Raw| -> Vec<usize> {
                list.iter().map(|&o| Script::of(m, o, |thing| thing.traversed)).collect()
            };
            let before = traversed(&m);
            let report =
                crate::collect::collection::collect(&mut m, Collect::full()).expect("a stop");
            assert_eq!((report.candidates, report.unreachable), (5, 0));
            let after = traversed(&m);
            assert_eq!(after[0], 0, "an untracked object");
            for at in 1..6 {
                if !verifies {
                    assert_eq!(after[at] - before[at], times, "object {at}");
                }
            }
        }
    }
}
