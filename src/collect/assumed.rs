//! The roots of the last full collection, from which the next one begins.
//!
//! A full collection remembers the roots that it found, each with its number of references from
//! inside the heap. The next full collection *assumes* that a remembered object is a root if its
//! count exceeds this number. It marks from the assumed roots before it counts, and counts on the
//! way the edges that lead to assumed roots. The candidates that are not reached are counted as
//! always. Then the collection has met all edges to the assumed roots, and checks the assumption:
//! an assumed root is a root if its count exceeds the number of these edges.
//!
//! If each assumed root is a root, all that they reach is alive, by the rule of
//! [`roots`](super::roots) itself. Otherwise the collection begins again with the other assumed
//! roots. So a list that is out of date costs time, and changes no result.
//!
//! # Why no object is lost
//!
//! * Each candidate is traversed once before the check: while marking from the assumed roots, or
//!   while counting. So each edge to an assumed root is counted once. An edge that is counted twice
//!   could only refute an assumption.
//! * An object with an unreadable field has no edges, in marking as in counting. Its targets then
//!   have a reference from no candidate, so they are roots (ADR 7).
//! * The check reads counts in the same stop. A remembered cell may hold another object by now: then
//!   the check is about that object.
//! * An edge that leads from an object that a named root reaches is counted too. `roots` would count
//!   such an edge as a reference from outside. The difference can only refute an assumption.
//!
//! # What is not seen
//!
//! The objects that assumed roots reach are traversed once and not counted. So a collection does not
//! notice that one of them is visited more often than it is referred to, and does not compare two
//! traversals of one. So a collection that finds an object with too many visits, or compares
//! traversals, remembers no roots. If the assumed roots reach an object whose traversals the model
//! wants to compare, the collection begins again without them.

#![forbid(unsafe_code)]

use crate::base::fallible::NoMemory;
use crate::base::steps;
use crate::base::sync::{AtomicU8, Mutex, Ordering};
use crate::collect::candidates::Candidates;
use crate::collect::scope::stopped_at;
use crate::collect::table::{Spills, add_shared};
use crate::heap::model::ObjectModel;
use crate::heap::mutator::World;
use crate::heap::remembered::Root;

/// The least number of roots that a heap remembers, if it finds so many.
const LEAST: usize = 4096;

/// A heap remembers at most one root for each so many candidates. An entry takes eight bytes.
const CANDIDATES_PER_ROOT: usize = 8;

/// The most roots that a collection of so many candidates remembers.
pub(crate) fn most_roots(candidates: usize) -> usize {
    LEAST.max(candidates / CANDIDATES_PER_ROOT)
}

/// The remembered roots that may be roots again: open candidates with more references than were
/// found inside.
pub(crate) fn take<M: ObjectModel>(world: &World<'_, M>, candidates: &Candidates) -> Vec<Root> {
    let mut roots = world.core().remembered.take();
    steps::took(roots.len());
    roots.retain(|root| {
        candidates.is_open(root.granule as usize)
            && exceeds(world, root.granule, i64::from(root.inside))
    });
    roots
}

/// Whether the object at a granule has more references than `inside`. Not if it is immortal: an
/// immortal object has no count.
fn exceeds<M: ObjectModel>(world: &World<'_, M>, granule: u32, inside: i64) -> bool {
    stopped_at(world, granule as usize)
        .and_then(|object| world.core().model.count(object))
        .is_some_and(|count| count > inside)
}

/// Counts the edges to assumed roots, in the side table.
pub(crate) struct Inside<'a> {
    table: &'a [AtomicU8],
    spills: Mutex<Spills>,
}

impl<'a> Inside<'a> {
    pub(crate) fn new(table: &'a [AtomicU8]) -> Self {
        Self { table, spills: Mutex::new(Spills::default()) }
    }

    /// Counts one edge for each entry, and empties the list.
    #[inline(always)]
    pub(crate) fn count(&self, targets: &mut Vec<u32>) -> Result<(), NoMemory> {
        if targets.is_empty() { Ok(()) } else { self.count_some(targets) }
    }

    #[inline(never)]
    fn count_some(&self, targets: &mut Vec<u32>) -> Result<(), NoMemory> {
        steps::took(targets.len());
        // The lock orders the accesses to the bytes.
        let mut spills = self.spills.lock();
        for &target in &*targets {
            add_shared(self.table, target as usize, &mut spills);
        }
        targets.clear();
        spills.lost_nothing()
    }

    /// The carries of the bytes.
    pub(crate) fn into_spills(self) -> Spills {
        std::mem::take(&mut *self.spills.lock())
    }
}

/// Checks the assumed roots when all edges to them are counted. Moves the roots that are none to the
/// end of the list, sets the exact numbers of the others, and returns their number. Zeroes the bytes
/// of all.
pub(crate) fn check<M: ObjectModel>(
    world: &World<'_, M>,
    assumed: &mut [Root],
    spills: &Spills,
) -> usize {
    let table = world.core().space.counts();
    let mut proven = 0;
    steps::took(assumed.len());
    for at in 0..assumed.len() {
        let byte = table[assumed[at].granule as usize].swap(0, Ordering::Relaxed) as i8;
        let inside = i64::from(byte) + spills.of(assumed[at].granule);
        if exceeds(world, assumed[at].granule, inside) {
            assumed[at].inside = u32::try_from(inside).unwrap_or(u32::MAX);
            assumed.swap(at, proven);
            proven += 1;
        }
    }
    proven
}
