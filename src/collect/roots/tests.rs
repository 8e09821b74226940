//! Tests of `collect/roots.rs`.

#![forbid(unsafe_code)]

use super::*;
use crate::collect::scope::tests::{granules, stopped};
use crate::collect::tests::script::{Script, collect, scripted_heap};
use crate::heap::request::Collect;
use crate::object::state::TRACKED;

#[test]
fn a_candidate_with_a_remainder_is_a_root_whatever_its_sign_and_size() {
    stopped(|world, scope| {
        let space = &world.core().space;
        let (states, table) = (space.states(), space.counts());
        let candidates: Vec<usize> = granules(world, scope)
            .into_iter()
            .filter(|&at| scope.contains(StateByte(&states[at]).get()))
            .collect();
        // For each ten objects: the remainder, as a byte and a carry.
        let remainders: [(i8, i64); 10] = [
            (0, 0),
            (1, 0),
            (-1, 0),
            (0, 0),
            (127, 0),
            (-128, 0),
            (0, 256),
            (0, -256),
            (100, -256),
            (-100, 256),
        ];
        let sums = remainders.map(|(byte, carry)| i64::from(byte) + carry);
        for workers in [1, 3] {
            // An object that is not a candidate has an arbitrary byte.
            granules(world, scope).iter().for_each(|&at| table[at].store(77, Ordering::Relaxed));
            let mut counts = Counts::default();
            for (place, &at) in candidates.iter().enumerate() {
                let (byte, carry) = remainders[(place + 1) % 10];
                table[at].store(byte as u8, Ordering::Relaxed);
                if carry != 0 {
                    counts.spills.add(at as u32, carry);
                }
            }
            // Carries of both signs that cancel out.
            counts.spills.add(candidates[3] as u32, 256);
            counts.spills.add(candidates[3] as u32, -256);
            let immortal = candidates[13];
            counts.immortal.push(immortal as u32);
            // Without a remainder, except the last, which has one edge.
            let [outside, dying, visited] = [22, 39, 30];
            counts.outside.push(candidates[outside] as u32);
            counts.dying.extend([dying, visited].map(|place| candidates[place] as u32));
            let all = Candidates::new(world, scope, workers).expect("memory");
            let roots = roots(world, scope, &all, &mut counts, workers).expect("memory");
            let sum = |place: usize| {
                let is_root = [13, outside, dying].contains(&place);
                if is_root { -1 } else { sums[(place + 1) % 10] }
            };
            let with = |is: fn(i64) -> bool| -> Vec<u32> {
                (0..candidates.len())
                    .filter(|&place| is(sum(place)))
                    .map(|place| candidates[place] as u32)
                    .collect()
            };
            let sorted = |mut list: Vec<u32>| {
                list.sort_unstable();
                list
            };
            assert_eq!(sorted(roots.overvisited), with(|sum| sum > 0), "{workers} workers");
            // Each root is marked, and listed once.
            assert!(roots.found.iter().all(|found| !found.is_empty()));
            let found = sorted(roots.found.concat());
            assert_eq!(found, with(|sum| sum != 0), "{workers} workers");
            assert!(found.iter().all(|&root| !all.is_unmarked(root as usize)));
            // The objects of this heap have one reference each, so those with a sum of -1 are
            // remembered with no reference from inside.
            let remembered = |sum: i64| move |root: &FoundRoot| i64::from(root.inside) == 1 + sum;
            assert!(roots.remembered.iter().any(remembered(-1)));
            assert!(roots.remembered.iter().all(|root| root.inside == 0));
            // An immortal object is excluded from the next collections.
            assert_eq!(StateByte(&states[immortal]).get() & TRACKED, 0);
            for place in [outside, dying, visited] {
                assert_ne!(StateByte(&states[candidates[place]]).get() & TRACKED, 0);
            }
            all.close(world, scope);
            assert!(table.iter().all(|byte| byte.load(Ordering::Relaxed) == 0));
            StateByte(&states[immortal]).set(TRACKED);
        }
    });
}

#[test]
fn an_object_that_shows_more_references_than_there_are_is_kept_and_named() {
    let Some(heap) = scripted_heap() else { return };
    let mut m = heap.attach();
    let twice = Script::thing(&m, 'a', "", "t");
    let once = Script::thing(&m, 'b', "", "s");
    for (from, to) in [(twice, once), (once, twice)] {
        Script::link(&m, from, to);
        heap.model().drop_ref(to, &m);
    }
    let (report, visited) = collect(&mut m, Collect::full());
    assert_eq!((report.overvisited, report.unreachable), (1, 0));
    assert_eq!(visited[3], "overvisited b");
}
