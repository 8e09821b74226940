//! `Phase::Roots`: finding the roots.
//!
//! A candidate with a remainder is a root. A negative remainder means references from outside the
//! set. A positive one means that a traversal reported too many references; then the object is
//! kept. The byte of a root becomes a [mark](super::pass#marks), and so does the byte of each
//! object that marking must not enter. Other bytes are 0.

#![forbid(unsafe_code)]

use crate::base::event::{self, CollectionKind, Phase};
use crate::base::fallible::{self, NoMemory};
use crate::base::steps;
use crate::base::sync::{Mutex, Ordering};
use crate::collect::count::Counts;
use crate::collect::scope::{Scope, granules_of};
use crate::collect::table::{EXCLUDED, LANES, REACHED, exclusively};
use crate::collect::work_list::WorkCursor;
use crate::heap::helpers::Worker;
use crate::heap::model::ObjectModel;
use crate::heap::mutator::World;
use crate::memory::space::Space;
use crate::object::state::StateByte;

/// The candidates from which marking starts.
#[derive(Debug, Default)]
pub(crate) struct Roots {
    /// Whether the roots are marked in the table, for the pass, and not on stacks.
    pub(crate) marked: bool,
    /// By worker.
    pub(crate) stacks: Vec<Vec<u32>>,
    /// The candidates with more visits than references.
    pub(crate) overvisited: Vec<u32>,
}

/// The phase `Roots`. Finds the roots by their remainders, and turns the table into
/// marks.
pub(crate) fn roots<M: ObjectModel>(
    world: &World<'_, M>,
    scope: &Scope,
    counts: &Counts,
    workers: usize,
) -> Result<Roots, NoMemory> {
    let _phase = event::phase(Phase::Roots);
    let core = world.core();
    let space = &core.space;
    let (states, marks) = (space.states(), space.counts());
    steps::took(counts.spills.carries.len() + counts.immortal.len());
    // A sum that has wrapped becomes 0, 1 or -1: its byte alone is not exact.
    for (&granule, &carry) in &counts.spills.carries {
        let mark = &marks[granule as usize];
        let exact = carry + i64::from(mark.load(Ordering::Relaxed) as i8);
        mark.store(exact.signum() as u8, Ordering::Relaxed);
    }
    for &granule in &counts.immortal {
        marks[granule as usize].store(-1i8 as u8, Ordering::Relaxed);
    }
    // Several workers, and young collections, mark from stacks: see `mark::pass`.
    let marked = scope.kind == CollectionKind::Full && workers == 1;
    let share = scope.share(workers);
    let all = Mutex::new((Roots { marked, ..Roots::default() }, Ok(())));
    world.share(workers, &|worker| {
        let (mut stack, mut overvisited) = (Vec::new(), Vec::new());
        let visited =
            roots_of_share(space, scope, (&share, worker), marked, &mut stack, &mut overvisited);
        let (all, result) = &mut *all.lock();
        let added = if stack.is_empty() { Ok(()) } else { fallible::push(&mut all.stacks, stack) };
        let listed = fallible::append(&mut all.overvisited, &mut overvisited);
        *result = result.and(visited).and(added).and(listed);
    });
    let (all, result) = std::mem::replace(&mut *all.lock(), (Roots::default(), Ok(())));
    result?;
    for &granule in &counts.immortal {
        // An immortal object needs no collector. From the next collection on its references come
        // from outside the set.
        StateByte(&states[granule as usize]).untrack();
    }
    Ok(all)
}

/// One worker's part of finding roots.
fn roots_of_share(
    space: &Space,
    scope: &Scope,
    (share, worker): (&WorkCursor<'_, u32>, Worker),
    marked: bool,
    stack: &mut Vec<u32>,
    overvisited: &mut Vec<u32>,
) -> Result<(), NoMemory> {
    let (states, marks) = (space.states(), space.counts());
    for pages in share.of(worker) {
        for &page in pages {
            let Some(range) = granules_of(space, page) else { continue };
            let first = range.start;
            steps::took(range.len());
            // Only this worker accesses this page.
            exclusively(&states[range.clone()], |states| {
                exclusively(&marks[range], |marks| {
                    let lanes = states.chunks(LANES).zip(marks.chunks_mut(LANES));
                    for (chunk, (states, marks)) in lanes.enumerate() {
                        let mut any = false;
                        for (&state, &mark) in states.iter().zip(&*marks) {
                            any |= scope.contains(state)
                                & (if marked { mark as i8 > 0 } else { mark != 0 });
                        }
                        if any {
                            stack.try_reserve(LANES)?;
                            for (at, (&state, &mark)) in states.iter().zip(&*marks).enumerate() {
                                if scope.contains(state) && mark != 0 {
                                    let granule = (first + chunk * LANES + at) as u32;
                                    if !marked {
                                        stack.push(granule);
                                    }
                                    if mark as i8 > 0 {
                                        fallible::push(overvisited, granule)?;
                                    }
                                }
                            }
                        }
                        for (&state, mark) in states.iter().zip(marks) {
                            let of_root = if marked { REACHED } else { EXCLUDED };
                            *mark = match (scope.contains(state), *mark) {
                                (false, _) => EXCLUDED,
                                (true, 0) => 0,
                                (true, _) => of_root,
                            };
                        }
                    }
                    Ok::<_, NoMemory>(())
                })
            })?;
        }
    }
    Ok(())
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::collect::scope::tests::{granules, stopped};
    use crate::collect::script::tests::collect;
    use crate::collect::script::tests::{Script, scripted_heap};
    use crate::object::state::TRACKED;
    use std::collections::HashMap;

    use crate::collect::Collect;

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
                table.iter().for_each(|byte| byte.store(77, Ordering::Relaxed));
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
                let roots = roots(world, scope, &counts, workers).expect("memory");
                let sum = |place: usize| {
                    if candidates[place] == immortal { -1 } else { sums[(place + 1) % 10] }
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
                assert_eq!(roots.marked, workers == 1);
                let pushed = if roots.marked { Vec::new() } else { with(|sum| sum != 0) };
                assert_eq!(sorted(roots.stacks.concat()), pushed, "{workers} workers");
                assert!(roots.stacks.iter().all(|stack| !stack.is_empty()));
                let of_root = if roots.marked { REACHED } else { EXCLUDED };
                let places: HashMap<usize, usize> = candidates.iter().copied().zip(0..).collect();
                for at in granules(world, scope) {
                    let expected = match places.get(&at) {
                        None => EXCLUDED,
                        Some(&place) if sum(place) == 0 => 0,
                        Some(_) => of_root,
                    };
                    assert_eq!(table[at].load(Ordering::Relaxed), expected, "granule {at}");
                }
                // An immortal object is excluded from the next collections.
                assert_eq!(StateByte(&states[immortal]).get() & TRACKED, 0);
                StateByte(&states[immortal]).set(TRACKED);
                table.iter().for_each(|byte| byte.store(0, Ordering::Relaxed));
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
}
