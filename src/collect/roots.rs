//! `Phase::Roots`, which finds the roots among the unmarked candidates.
//!
//! An unmarked candidate with a remainder is a root. A negative remainder means references from
//! outside the set, for example a handle. A positive one means that a traversal is wrong, because
//! it reported too many references, and the object is kept. A candidate without a count (immortal,
//! outside, or dying) is a root too, because it has no number to compare. Outside objects that
//! refer to nothing are none, because counting has marked them. The phase marks the roots, and
//! zeroes the side table.

use crate::base::fallible::{self, NoMemory};
use crate::base::steps;
use crate::base::sync::{Mutex, Ordering};
use crate::collect::assumed::most_roots;
use crate::collect::candidates::{Candidates, not_zero};
use crate::collect::count::{Counts, Spills};
use crate::collect::scope::{Scope, Selection, exclusively, granules_of, stopped_at};
use crate::heap::mark_tables::{FoundRoot, WORD, each_bit};
use crate::heap::model::{Count, ObjectModel};
use crate::heap::parts::*;
use crate::heap::world::World;
use crate::object::state::StateByte;

/// The byte of a root without a count. No root with this byte is remembered, so that the model need
/// not be asked for the count again. If another root has this remainder by chance, the next
/// collection counts it.
const NO_COUNT: i8 = i8::MIN;

#[derive(Debug, Default)]
pub(crate) struct Roots {
    /// The roots, which are marked, by worker.
    pub(crate) found: Vec<Vec<u32>>,
    pub(crate) overvisited: Vec<u32>,
    /// The roots of a full collection, for the next one.
    pub(crate) remembered: Vec<FoundRoot>,
}

/// The phase `Roots`, which finds the roots by their remainders.
pub(crate) fn roots<M: ObjectModel>(
    world: &World<'_, M>,
    scope: &Scope,
    candidates: &Candidates,
    counts: &mut Counts,
    workers: usize,
) -> Result<Roots, NoMemory> {
    let core = world.core();
    let (states, table) = (core.space.states(), core.space.counts());
    let without_count = counts.immortal.len() + counts.outside.len() + counts.dying.len();
    steps::took(counts.spills.carries.len() + without_count);
    // The byte of a sum that has wrapped is not exact, so the sum replaces the carry, and the byte
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
        // If its byte is not 0, a traversal has reported a reference to an object without
        // references. That remainder is positive, so the object is overvisited.
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
    // An immortal object that holds uncounted references must be traversed by each collection. A
    // claimed one is about to leave the set, and the next collection untracks it.
    let stays = UncountedOf::<M>::PRESENT || scope.selection == Selection::Claimed;
    let untracked = if stays { &[][..] } else { &counts.immortal };
    for &granule in untracked {
        // An immortal object needs no collector, and from the next collection on its references
        // come from outside the set.
        StateByte(&states[granule as usize]).untrack();
    }
    Ok(all)
}

/// One worker's share of the phase, with the results of its pages.
struct Share<'a, M: ObjectModel> {
    world: &'a World<'a, M>,
    candidates: &'a Candidates,
    sums: &'a Spills,
    /// The most roots that are remembered. One more is kept, which shows that there are too many.
    most: usize,
    found: Vec<u32>,
    overvisited: Vec<u32>,
    remembered: Vec<FoundRoot>,
}

impl<M: ObjectModel> Share<'_, M> {
    /// Finds the roots of a page, which only this worker accesses.
    fn visit(&mut self, page: u32) -> Result<(), NoMemory> {
        let space = &self.world.core().space;
        let Some(range) = granules_of(space, page) else { return Ok(()) };
        steps::took(range.len().div_ceil(WORD));
        let find = |bytes: &mut [u8]| {
            for (first, unmarked) in self.candidates.unmarked_on(page) {
                // A large page has only one byte in use, that of its one object.
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
mod tests;
