//! Tests of `collect/ephemerons.rs`.

#![forbid(unsafe_code)]

use super::*;
use crate::collect::scope::Scope;
use crate::collect::tests::script::Script;
use crate::report::facts::CollectionKind;
use crate::{Heap, Pacing};

/// Fires a chain of entries, of which each leads to the key of the next, in this order, after the
/// first key is marked. Returns whether that worked, the number of marked objects, and the steps.
/// The objects are traversed in this way, and counting could not read the `unreadable` last ones.
fn chain(order: &[usize], traversals: &'static str, unreadable: usize) -> (bool, usize, usize) {
    let builder = Heap::builder().reserve(1 << 28).workers(1).pacing(Pacing::manual());
    let heap = builder.build_with(Script::default()).expect("a heap");
    let m = heap.attach();
    let things: Vec<_> =
        (0..=order.len()).map(|_| Script::thing(&m, 'o', "", traversals)).collect();
    let world = m.stop_here().expect("no other thread");
    let granules: Vec<_> = {
        let space = &world.core().space;
        things.iter().map(|thing| space.granule(thing.address()) as u32).collect()
    };
    let scope = Scope::new(&world.core().space, CollectionKind::Full).expect("memory");
    let search = Search::begin(&world, scope, 1).expect("memory");
    assert!(search.candidates.mark_alone(granules[0] as usize));
    let entry = |&at: &usize| WeakPair { needs: [ALIVE, granules[at]], value: granules[at + 1] };
    let entries = order.iter().map(entry).collect();
    let mut known = granules[granules.len() - unreadable..].to_vec();
    known.sort_unstable();
    let mut counts = Counts { unreadable: known, ..Counts::default() };
    let before = steps::taken();
    let fired = fire(&search, &mut counts, entries);
    let took = steps::taken() - before;
    let is_marked = |&&granule: &&u32| !search.candidates.is_unmarked(granule as usize);
    let marked = granules.iter().filter(is_marked).count();
    let fired = search.close(fired).is_ok();
    drop(world);
    (fired, marked, took)
}

#[test]
fn a_chain_of_entries_fires_in_any_order_in_linear_steps() {
    let orders: [fn(usize) -> Vec<usize>; 3] = [
        |n| (0..n).collect(),
        |n| (0..n).rev().collect(),
        // Prime to each number of entries.
        |n| (0..n).map(|at| at * 7_919 % n).collect(),
    ];
    for order in orders {
        let [small, large] = [1_000, 4_000].map(|n| {
            let (fired, marked, steps) = chain(&order(n), "s", 0);
            assert!(fired && marked == n + 1);
            steps
        });
        assert!((4_000..=5 * small).contains(&large), "{small} steps, then {large}");
    }
}

/// The targets of a field that counting could not read either are roots already. Otherwise nothing
/// is known of them.
#[test]
fn an_unreadable_value_abandons_the_collection_unless_counting_knows_it() {
    for order in [[0, 1, 2], [2, 1, 0]] {
        assert_eq!((chain(&order, "h", 4).0, chain(&order, "h", 4).1), (true, 4));
        // The first value of a chain is marked by all workers, and the others by one.
        for known in 0..3 {
            assert!(!chain(&order, "h", known).0);
        }
    }
}
