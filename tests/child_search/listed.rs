//! Collections of listed objects whose search runs in a child process.

use std::sync::atomic::Ordering::*;

use standstill::model::ModelMutator;
use standstill::{Collect, CollectionReport};

use crate::blocks::*;

/// Collects, and searches in a child.
fn collect_in_child<const R: bool>(m: &mut ModelMutator<Blocks<R>>) -> CollectionReport {
    let report = m.try_collect(Collect::full().forked(true)).unwrap();
    assert_eq!((&report.abandoned, &report.no_child, report.overvisited), (&None, &None, 0));
    report
}

/// Between the parts of a proposal, blocks of a later part die, other objects take their places,
/// and memory returns to the system. A read of that memory would end the process.
#[test]
fn a_part_whose_objects_have_died_is_listed_again() {
    on_heaps(|heap, m| {
        let blocks = heap.model();
        let first: Vec<_> = (0..20_000).map(|at| blocks.block(at % 5, FINALIZER)).collect();
        let kept = blocks.block(4, 0);
        // Whole segments have nothing but these.
        let second: Vec<_> = (0..40_000).map(|_| blocks.block(4, WEAK)).collect();
        let target = blocks.add_ref(second[30_000]);
        blocks.link(kept, 0, target);
        blocks.drop_ref(target);
        blocks.link(second[0], 1, first[0]);
        let begun = blocks.called_back.lock().unwrap().len();
        blocks.drop_ref(ring(blocks, &first));
        blocks.drop_ref(ring(blocks, &second));
        let report = collect_in_child(m);
        // `kept` holds one of the second ring, and that refers to the first one.
        assert_eq!((report.unreachable, report.child.unwrap().proposed), (0, 0));

        // Now both are garbage, apart from each other.
        blocks.slots(second[0])[1].store(std::ptr::null_mut(), Relaxed);
        blocks.drop_ref(first[0]);
        blocks.slots(kept)[0].store(std::ptr::null_mut(), Relaxed);
        blocks.drop_ref(target);
        let (from, to) = (second[10_000], second[39_000]);
        let is_first = std::sync::atomic::AtomicBool::new(true);
        blocks.when_finalized(
            first[1],
            Box::new(move |_, m| {
                assert!(is_first.swap(false, Relaxed));
                let blocks = m.model();
                // The ring is opened, and dies from there on: up to `to`, which is held.
                blocks.add_ref(to);
                let next = blocks.slots(from)[0].swap(std::ptr::null_mut(), Relaxed);
                blocks.drop_ref(standstill::model::Object::new(pointer(next.expose_provenance())));
                assert!(blocks.store.lock().unwrap().return_memory() >= 1);
                // Other objects at the places of some.
                let ring = some_ring(blocks, 2_000);
                blocks.link(kept, 1, ring);
                blocks.drop_ref(ring);
            }),
        );
        let report = collect_in_child(m);
        let child = report.child.unwrap();
        assert_eq!((child.parts, child.proposed), (2, 60_000));
        assert_eq!(report.unreachable, 20_000);
        assert_eq!(blocks.called_back.lock().unwrap().len(), begun);
        assert_eq!(blocks.alive().len(), 1 + 2_000 + 11_001);
        blocks.drop_ref(to);
        assert_eq!((collect_in_child(m).collected, blocks.alive().len()), (0, 2_001));
        blocks.drop_ref(kept);
        assert_eq!((collect_in_child(m).collected, blocks.alive().len()), (2_000, 0));
    });
}

/// An object to which a reference without a count may lead waits for a search in a stop, with all
/// that it holds.
#[test]
fn what_is_lent_without_a_count_waits_for_a_search_in_a_stop() {
    let heap = heap::<true>();
    let mut m = heap.attach();
    let blocks = heap.model();
    let plain = some_ring(blocks, 10);
    let lent: Vec<_> =
        (0..10).map(|at| blocks.block(at % 5, if at == 3 { LENT } else { 0 })).collect();
    let held = blocks.block(4, LENT);
    let holder = blocks.block(4, BORROWS);
    let last = blocks.slots(holder).len() - 1;
    blocks.link(holder, last, held);
    let below = some_ring(blocks, 5);
    blocks.link(held, 0, below);
    blocks.drop_ref(below);
    blocks.drop_ref(plain);
    blocks.drop_ref(ring(blocks, &lent));
    blocks.link(held, 1, held);
    blocks.drop_ref(held);
    let report = collect_in_child(&mut m);
    assert_eq!((report.unreachable, report.child.unwrap().proposed), (10, 20));
    assert_eq!((collect(&mut m).unreachable, blocks.alive().len()), (10, 7));
    blocks.drop_ref(holder);
    assert_eq!(collect_in_child(&mut m).unreachable, 0);
    assert_eq!((collect(&mut m).unreachable, blocks.alive().len()), (6, 0));
}
