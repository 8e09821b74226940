//! `Phase::Roots`: finding the roots.
//!
//! An unmarked candidate with a remainder is a root. A negative remainder means references from
//! outside the set. A positive one means that a traversal reported too many references; then the
//! object is kept. A candidate without a count (immortal, outside, or dying) is a root, too.
//! Counting has marked those outside objects that refer to nothing, so they are none. The phase
//! marks the roots, and zeroes the side table.

use crate::base::fallible::{self, NoMemory};
use crate::base::steps;
use crate::base::sync::{Mutex, Ordering};
use crate::collect::assumed::most_roots;
use crate::collect::candidates::{Candidates, not_zero};
use crate::collect::count::Counts;
use crate::collect::scope::{Scope, Selection, granules_of, stopped_at};
use crate::collect::table::{Spills, exclusively};
use crate::heap::mark_tables::{WORD, each_bit};
use crate::heap::model::{Count, ObjectModel};
use crate::heap::mutator::World;
use crate::heap::remembered::FoundRoot;
use crate::object::state::StateByte;

/// The byte of a root without a count. No root with this byte is remembered, so the model is not
/// asked for the count again. If another root has this remainder, the next collection counts it.
const NO_COUNT: i8 = i8::MIN;

/// The candidates from which marking starts.
#[derive(Debug, Default)]
pub(crate) struct Roots {
    /// The roots, which are marked, by worker.
    pub(crate) found: Vec<Vec<u32>>,
    /// The candidates with more visits than references.
    pub(crate) overvisited: Vec<u32>,
    /// The roots of a full collection, for the next one.
    pub(crate) remembered: Vec<FoundRoot>,
}

/// The phase `Roots`. Finds the roots by their remainders.
pub(crate) fn roots<M: ObjectModel>(
    world: &World<'_, M>,
    scope: &Scope,
    candidates: &Candidates,
    counts: &mut Counts,
    workers: usize,
) -> Result<Roots, NoMemory> {
    let core = world.core();
    let (states, table) = (core.space.states(), core.space.counts());
    let uncounted = counts.immortal.len() + counts.outside.len() + counts.dying.len();
    steps::took(counts.spills.carries.len() + uncounted);
    // The byte of a sum that has wrapped is not exact. The sum replaces the carry, and the byte
    // becomes 0, 1 or -1.
    for (&granule, carry) in &mut counts.spills.carries {
        let byte = &table[granule as usize];
        *carry += i64::from(byte.load(Ordering::Relaxed) as i8);
        byte.store(carry.signum() as u8, Ordering::Relaxed);
    }
    let counts = &*counts;
    for &granule in counts.immortal.iter().chain(&counts.outside) {
        table[granule as usize].store(NO_COUNT as u8, Ordering::Relaxed);
    }
    for &granule in &counts.dying {
        // A reference to an object without references is a fault of a traversal: its remainder is
        // positive, so it is a root and overvisited.
        let byte = &table[granule as usize];
        if byte.load(Ordering::Relaxed) == 0 {
            byte.store(-1i8 as u8, Ordering::Relaxed);
        }
    }
    let share = scope.share(workers);
    let all = Mutex::new((Roots::default(), Ok(())));
    let is_full = scope.selection == Selection::Full;
    let most = if is_full { most_roots(candidates.count) } else { 0 };
    world.share(workers, &|worker| {
        let (found, overvisited, remembered) = Default::default();
        let mut mine =
            Share { world, candidates, sums: &counts.spills, most, found, overvisited, remembered };
        let visited = share.of(worker).flatten().try_for_each(|&page| mine.visit(page));
        let Share { found, mut overvisited, mut remembered, .. } = mine;
        let (all, result) = &mut *all.lock();
        let added = if found.is_empty() { Ok(()) } else { fallible::push(&mut all.found, found) };
        let listed = fallible::append(&mut all.overvisited, &mut overvisited);
        let kept = fallible::append(&mut all.remembered, &mut remembered);
        *result = result.and(visited).and(added).and(listed).and(kept);
    });
    let (all, result) = std::mem::replace(&mut *all.lock(), (Roots::default(), Ok(())));
    result?;
    // If it holds uncounted references, each collection has to traverse it. A claimed object is
    // about to leave the set, and the next collection untracks it.
    let stays = M::UNCOUNTED_EDGES || scope.selection == Selection::Claimed;
    let untracked = if stays { &[][..] } else { &counts.immortal };
    for &granule in untracked {
        // An immortal object needs no collector. From the next collection on its references come
        // from outside the set.
        StateByte(&states[granule as usize]).untrack();
    }
    Ok(all)
}

/// One worker's part of finding roots.
struct Share<'a, M: ObjectModel> {
    world: &'a World<'a, M>,
    candidates: &'a Candidates,
    /// The sums that have wrapped.
    sums: &'a Spills,
    /// The most roots that are remembered. One more shows that there are too many.
    most: usize,
    found: Vec<u32>,
    overvisited: Vec<u32>,
    remembered: Vec<FoundRoot>,
}

impl<M: ObjectModel> Share<'_, M> {
    /// Finds the roots of a page. Only this worker accesses the page.
    fn visit(&mut self, page: u32) -> Result<(), NoMemory> {
        let space = &self.world.core().space;
        let Some(range) = granules_of(space, page) else { return Ok(()) };
        steps::took(range.len().div_ceil(WORD));
        let find = |bytes: &mut [u8]| {
            for (first, unmarked) in self.candidates.unmarked_on(page) {
                // A large page has one byte, at its one object.
                let start = first.max(range.start);
                let word = &bytes[start - range.start..];
                let word = &word[..word.len().min(WORD)];
                let roots = unmarked & not_zero(word) << (start - first);
                let mut result = Ok(());
                each_bit(first, roots, |granule| {
                    let added = self.add(granule, bytes[granule - range.start] as i8);
                    result = result.and(added);
                });
                result?;
            }
            bytes.fill(0);
            Ok(())
        };
        // SAFETY: rule *stopped*: only this worker accesses the page.
        unsafe { exclusively(&space.counts()[range.clone()], find) }
    }

    /// Adds a root.
    #[inline(always)]
    fn add(&mut self, granule: usize, remainder: i8) -> Result<(), NoMemory> {
        self.candidates.mark_on_page(granule);
        fallible::push(&mut self.found, granule as u32)?;
        if remainder > 0 {
            fallible::push(&mut self.overvisited, granule as u32)?;
        } else if remainder != NO_COUNT && self.remembered.len() <= self.most {
            self.remember(granule as u32, remainder)?;
        }
        Ok(())
    }

    fn remember(&mut self, granule: u32, remainder: i8) -> Result<(), NoMemory> {
        let object = stopped_at(self.world, granule as usize);
        let count = object.map(|object| self.world.core().model.count(object));
        let Some(Count::Exact(count)) = count else { return Ok(()) };
        let sum = self.sums.carries.get(&granule).copied().unwrap_or(i64::from(remainder));
        let count = count + self.candidates.adjustments.of(granule as usize);
        if let Ok(inside) = u32::try_from(count + sum) {
            fallible::push(&mut self.remembered, FoundRoot { granule, inside })?;
        }
        Ok(())
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::collect::Collect;
    use crate::collect::scope::tests::{granules, stopped};
    use crate::collect::script::tests::collect;
    use crate::collect::script::tests::{Script, scripted_heap};
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
                granules(world, scope)
                    .iter()
                    .for_each(|&at| table[at].store(77, Ordering::Relaxed));
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
                let remembered =
                    |sum: i64| move |root: &FoundRoot| i64::from(root.inside) == 1 + sum;
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
}
