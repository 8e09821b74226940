//! Tests of `collect/candidates.rs`.

#![forbid(unsafe_code)]

use super::*;
use crate::collect::scope::object_at;
use crate::collect::scope::tests::{granules, stopped};
use crate::heap::mark_tables::each_bit;
use crate::object::state::{DYING, FROZEN, FULL, LIVE, OLD, StateByte, TRACKED, UNREACHABLE};
use crate::report::facts::CollectionKind;

/// Bytes of all kinds, at all places.
fn each_row(test: impl Fn(&[u8])) {
    let some = [
        0,
        TRACKED,
        LIVE | TRACKED,
        LIVE | TRACKED | OLD,
        FROZEN | TRACKED,
        UNREACHABLE | TRACKED,
        DYING,
        128,
        255,
    ];
    for len in (0..=17).chain([63, 64]) {
        for start in 0..some.len() {
            let bytes: Vec<u8> = (0..len).map(|at| some[(start + at * 5) % some.len()]).collect();
            test(&bytes);
        }
    }
}

#[test]
fn bytes_are_matched_one_by_one() {
    each_row(|bytes| {
        let bits = |is: &dyn Fn(u8) -> bool| {
            bytes.iter().enumerate().fold(0, |all, (at, &b)| all | u64::from(is(b)) << at)
        };
        for (selection, mask, value) in [
            (Selection::Full, FULL, TRACKED),
            (Selection::Young, FULL | OLD, TRACKED),
            (Selection::Claimed, TRACKED | UNREACHABLE, TRACKED | UNREACHABLE),
        ] {
            let expected = bits(&|b| b & mask == value);
            assert_eq!(matching(bytes, selection), expected, "{selection:?} {bytes:?}");
        }
        assert_eq!(not_zero(bytes), bits(&|b| b != 0), "{bytes:?}");
    });
}

fn unmarked(candidates: &Candidates, scope: &Scope) -> Vec<usize> {
    let mut found = Vec::new();
    for &page in scope.pages() {
        for (first, bits) in candidates.unmarked_on(page) {
            each_bit(first, bits, |granule| found.push(granule));
        }
    }
    found
}

/// Both kinds of collections, with small pages and a large one.
#[test]
fn candidates_are_found_by_their_states_and_the_others_counted() {
    stopped(|world, full| {
        let space = &world.core().space;
        let states = space.states();
        let own: Vec<usize> = granules(world, full)
            .into_iter()
            .filter(|&at| StateByte(&states[at]).get() & TRACKED != 0)
            .collect();
        let change = |at: usize| [0, OLD, FROZEN, 0, DYING, OLD][at % 6];
        own.iter().enumerate().for_each(|(at, &granule)| {
            StateByte(&states[granule]).set(change(at));
        });
        let large = StateByte(&states[*own.last().expect("the large object is the last one")]);
        let young = Scope::new(space, CollectionKind::Young).expect("memory");
        let scopes = [(full, 1), (full, 3), (&young, 1), (&young, 3)];
        for (age, (scope, workers)) in [0, OLD].into_iter().flat_map(|age| scopes.map(|s| (age, s)))
        {
            large.change_plainly(age, OLD | FROZEN | DYING);
            let candidates = Candidates::new(world, scope, workers).expect("memory");
            let is = |granule: &&usize| scope.contains(StateByte(&states[**granule]).get());
            let expected: Vec<usize> = own.iter().filter(is).copied().collect();
            assert_eq!(unmarked(&candidates, scope), expected);
            let tracked = own
                .iter()
                .filter(|&&granule| state::is_candidate(StateByte(&states[granule]).get()));
            let sums = (candidates.count, candidates.tracked);
            assert_eq!(sums, (expected.len(), tracked.count()));
            candidates.close(world, scope);
        }
        for &granule in &own {
            StateByte(&states[granule]).change_plainly(0, FROZEN | DYING);
        }
    });
}

#[test]
fn tables_are_zero_when_they_come_back() {
    stopped(|world, scope| {
        let pages = world.core().space.high_water();
        for workers in [3, 1, 2] {
            let mut candidates = Candidates::new(world, scope, workers).expect("memory");
            let all = unmarked(&candidates, scope);
            let roots = [FoundRoot { granule: all[3] as u32, inside: 0 }];
            candidates.assume(pages, &roots, true).expect("memory");
            assert!(candidates.is_assumed(all[3]) && !candidates.is_assumed(all[4]));
            candidates.assume(pages, &roots, false).expect("memory");
            candidates.mark_on_page(all[0]);
            assert!(!candidates.is_unmarked(all[0]) && candidates.is_unmarked(all[1]));
            assert!(candidates.mark_alone(all[2]) && !candidates.mark_alone(all[2]));
            candidates.close(world, scope);
            let tables = world.core().workers.take_mark_tables();
            assert!(tables.are_zero(), "{workers} workers");
            world.core().workers.give_mark_tables(tables);
        }
    });
}

/// Each candidate is marked once, and each edge to an assumed root is noted.
#[test]
fn an_edge_leads_to_something_new_once() {
    stopped(|world, scope| {
        let space = &world.core().space;
        let pages = space.high_water();
        for (exactly, assumes) in [(false, false), (false, true), (true, false), (true, true)] {
            let mut candidates = Candidates::new(world, scope, 2).expect("memory");
            let all = unmarked(&candidates, scope);
            assert_eq!(candidates.count_unmarked(world, scope), all.len());
            let [new, old, root] = [all[11], all[12], all[2]];
            let roots = [FoundRoot { granule: root as u32, inside: 0 }];
            candidates.assume(pages, &roots, true).expect("memory");
            assert!(candidates.mark_alone(old) && (assumes || candidates.mark_alone(root)));
            let (mut list, mut met, mut noted) = Default::default();
            let edges = [new, old, root, new, 0, root, all[20]];
            let edges = edges.map(|granule| space.address(granule));
            for round in 1..3 {
                let to_assumed = assumes.then_some(&mut noted);
                let (origin, list) = (space.origin(), &mut list);
                candidates
                    .mark_all(exactly, &edges, origin, to_assumed, &mut met, list)
                    .expect("memory");
                assert_eq!(*list, [new, all[20]].map(|at| object_at(space, at)));
                assert_eq!(noted, vec![root as u32; if assumes { 2 * round } else { 0 }]);
            }
            assert!(!candidates.is_unmarked(new));
            assert!(candidates.is_unmarked(all[14]), "of the same word");
            candidates.unmark(old);
            assert!(candidates.is_unmarked(old));
            let unmarked = unmarked(&candidates, scope).len();
            assert_eq!(candidates.count_unmarked(world, scope), unmarked);
            candidates.assume(pages, &roots, false).expect("memory");
            candidates.close(world, scope);
        }
    });
}

/// The memory of a worker's list comes back with the tables, and the next worker has it.
#[test]
fn the_memory_of_lists_is_kept() {
    stopped(|world, scope| {
        for capacity in [0, 1_000] {
            let candidates = Candidates::new(world, scope, 1).expect("memory");
            let mut list = candidates.take_list();
            assert!(list.is_empty() && list.capacity() >= capacity);
            list.extend((0..1_000).map(|_| object_at(&world.core().space, 0)));
            candidates.keep_list(list);
            candidates.close(world, scope);
        }
    });
}
