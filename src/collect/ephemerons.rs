//! Entries of tables with weak keys, in a search.
//!
//! The [model](Ephemerons) reports each such entry: a table, a key, and a value to which the entry
//! holds a reference. The value is reachable by it only if the table *and* the key are, and no
//! traversal reports that.
//!
//! For example, a handle refers to a table. It has the entries K → V, where V refers to K, and
//! V → W. Neither K nor V has another reference.
//!
//! 1. When the candidates are known, the entries are listed. Each waits for those of its table and
//!    its key that are unmarked candidates. The reference of the entry is inside of the searched
//!    set, so the count of its value is corrected by -1. By that neither V nor W is a root.
//! 2. At the end of `Mark`, an entry fires if all that it waits for is marked: its value is marked,
//!    with all that this reaches. Here the table is marked, but no entry fires, because K waits for
//!    V, and V for K. So K, V and W are garbage.
//!
//! With a handle to K, the first entry fires, then the second one, because V is marked now.
//!
//! # Why no live object is lost
//!
//! A candidate is garbage if no reference leads to it from outside of the garbage. The corrections
//! take exactly the references of the listed entries out of the numbers from which `Roots`
//! concludes. So an unmarked value could be lost only by an entry that should have fired, but whose
//! table or key is unmarked, and thereby garbage itself. An entry that waits for nothing is not
//! listed, so that its reference counts as one from outside. The same holds for the searches among
//! given objects, in which most tables and keys are no candidates and count as alive.
//!
//! Nothing is lost either if an entry is missing, because its reference then counts as one from
//! outside. So young collections list none: they would examine the entries of old tables for each
//! few young objects.
//!
//! # Cost
//!
//! All values of the first round are marked together, by all workers. The others are marked on one
//! thread, which looks up each object that it marks among those that entries wait for. So a chain
//! of a million entries takes as long as a list of a million objects, and not its square.

#![forbid(unsafe_code)]

use std::collections::HashMap;

use crate::base::fallible::{self, NoMemory};
use crate::base::steps;
use crate::collect::calls::{Abandoned, guard_traversal, tracer_of, traverse_batch, type_name};
use crate::collect::candidates::Candidates;
use crate::collect::count::Counts;
use crate::collect::mark;
use crate::collect::roots::Roots;
use crate::collect::scope::{object_at, stopped_at};
use crate::collect::search::Search;
use crate::heap::model::ObjectModel;
use crate::heap::parts::*;
use crate::heap::world::World;
use crate::object::address::Object;

/// No granule: an object that counts as alive.
const ALIVE: u32 = u32::MAX;

/// An entry that may fire, by granules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct WeakPair {
    /// The table and the key. [`ALIVE`]: it is no unmarked candidate.
    pub(super) needs: [u32; 2],
    pub(super) value: u32,
}

impl WeakPair {
    /// The first object that it waits for.
    fn waits_for(self, candidates: &Candidates) -> Option<u32> {
        let is_unmarked = |&need: &u32| need != ALIVE && candidates.is_unmarked(need as usize);
        self.needs.into_iter().find(is_unmarked)
    }
}

/// Lists the entries whose values depend on candidates.
pub(super) fn list<M: ObjectModel>(
    world: &World<'_, M>,
    is_candidate: impl Fn(usize) -> bool,
) -> Result<Vec<WeakPair>, Abandoned> {
    let space = &world.core().space;
    let granule = |object: Object| {
        let granule = space.contains(object.address()).then(|| space.granule(object.address()));
        granule.filter(|&granule| is_candidate(granule)).map_or(ALIVE, |granule| granule as u32)
    };
    let (mut entries, mut result) = (Vec::new(), Ok(()));
    guard_traversal(world, &mut tracer_of(world), |_| {
        EphemeronsOf::<M>::ephemerons(&world.core().model, world, &mut |entry| {
            steps::took(1);
            let needs = [entry.table, entry.key].map(granule);
            let value = granule(entry.value);
            if value != ALIVE && needs != [ALIVE; 2] {
                result = result.and(fallible::push(&mut entries, WeakPair { needs, value }));
            }
        })
        .map_err(|_| NoMemory)
    })??;
    result?;
    Ok(entries)
}

/// Marks the values of the entries that fire, with all that they reach, at the end of `Mark`.
pub(super) fn fire<M: ObjectModel>(
    search: &Search<'_, '_, M>,
    counts: &mut Counts,
    mut entries: Vec<WeakPair>,
) -> Result<(), Abandoned> {
    let candidates = &search.candidates;
    let mut fired = Vec::new();
    steps::took(entries.len());
    entries.retain(|entry| candidates.is_unmarked(entry.value as usize));
    fired.try_reserve(entries.len()).map_err(NoMemory::from)?;
    entries.retain(|entry| {
        let waits = entry.waits_for(candidates).is_some();
        if !waits {
            fired.push(entry.value);
        }
        waits
    });
    fired.retain(|&value| candidates.mark_alone(value as usize));
    if fired.is_empty() {
        return Ok(());
    }
    let roots = Roots { found: fallible::collect([fired].into_iter())?, ..Roots::default() };
    mark::mark(search, counts, roots)?;
    UnfiredPairs::new(candidates, entries)?.mark(search, counts)
}

/// The entries that have not fired, by an object that they wait for.
struct UnfiredPairs {
    entries: HashMap<u32, Vec<WeakPair>>,
    /// The granules of marked objects that are not traversed.
    list: Vec<u32>,
}

impl UnfiredPairs {
    fn new(candidates: &Candidates, entries: Vec<WeakPair>) -> Result<Self, NoMemory> {
        let mut waiting = Self { entries: HashMap::new(), list: Vec::new() };
        for entry in entries {
            waiting.add(candidates, entry)?;
        }
        Ok(waiting)
    }

    /// Fires an entry, or notes what it waits for.
    fn add(&mut self, candidates: &Candidates, entry: WeakPair) -> Result<(), NoMemory> {
        steps::took(1);
        let Some(need) = entry.waits_for(candidates) else {
            return self.mark_one(candidates, entry.value);
        };
        self.entries.try_reserve(1)?;
        fallible::push(self.entries.entry(need).or_default(), entry)
    }

    fn mark_one(&mut self, candidates: &Candidates, granule: u32) -> Result<(), NoMemory> {
        if candidates.mark_alone(granule as usize) {
            fallible::push(&mut self.list, granule)?;
        }
        Ok(())
    }

    /// Traverses the marked objects, and marks all that they reach and what then fires.
    fn mark<M: ObjectModel>(
        mut self,
        search: &Search<'_, '_, M>,
        counts: &Counts,
    ) -> Result<(), Abandoned> {
        let (world, candidates) = (search.world, &search.candidates);
        let space = &world.core().space;
        let mut unreadable = None;
        let marked = guard_traversal(world, &mut tracer_of(world), |tracer| {
            while let Some(granule) = self.list.pop() {
                steps::took(1);
                for entry in self.entries.remove(&granule).unwrap_or_default() {
                    self.add(candidates, entry)?;
                }
                let Some(object) = stopped_at(world, granule as usize) else { continue };
                tracer.clear();
                tracer.forget_uncounted();
                traverse_batch(&world.core().model, &[object], tracer, &mut [0], |_| {
                    unreadable = Some(granule);
                    Ok(())
                })?;
                // The targets of a field that counting could not read either are roots.
                if unreadable.take_if(|at| counts.unreadable.binary_search(at).is_err()).is_some() {
                    return Ok(Some(granule));
                }
                if UncountedOf::<M>::PRESENT {
                    tracer.add_uncounted(|_| true)?;
                }
                for &edge in tracer.edges() {
                    self.mark_one(candidates, space.granule(edge) as u32)?;
                }
            }
            Ok::<_, NoMemory>(None)
        })??;
        match marked {
            None => Ok(()),
            Some(granule) => {
                let object = object_at(space, granule as usize);
                Err(Abandoned::locked(type_name(world, object)))
            }
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
