//! The roots of the last full collection, from which the next one begins.
//!
//! An object that is marked before `Count` need not be counted, and the roots of one collection are
//! often those of the next. So a full collection remembers its roots, each with its number of
//! references from inside the heap. The next one *assumes* that such an object is a root if its
//! count exceeds this number. It marks from the assumed roots before it counts, and counts on the
//! way the edges that lead to assumed roots. The candidates that are not reached are counted as
//! always, so that all edges to the assumed roots are met. An assumed root is proven if its count
//! exceeds the number of these edges.
//!
//! For example, a handle refers to A, and A and B refer to each other: A has the count 2 and one
//! reference from inside. The next collection marks from A, reaches B, and meets the edge to A. One
//! edge is less than the count, so A is a root, and B was never counted. If instead garbage C has
//! taken the place of the handle, A has the count 2 as before. Then counting meets the edge from C
//! too, so that both references are explained, and A is no root.
//!
//! If each assumed root is a root, all that they reach is alive, by the rule of
//! [`roots`](super::roots) itself. Otherwise the collection begins again with the proven ones, so a
//! list that is out of date costs time and changes no result. After two failures the collection
//! assumes nothing.
//!
//! # Why no object is lost
//!
//! * Each candidate that named roots do not reach is traversed once before the check: while marking
//!   from the assumed roots, or while counting. So each edge to an assumed root is counted once,
//!   and one that were counted twice could only refute an assumption.
//! * An object with an unreadable field has no edges in counting, and in marking only those of its
//!   [long slices](crate::object::tracer::LongSlice). Its targets are roots, because they have a
//!   reference from no candidate (ADR 7). An edge of a slice can only refute an assumption.
//! * A remembered cell may hold another object by now. Because the check reads counts in the same
//!   stop, it is then about that object.
//! * An edge that leads from an object with a mark of a named root is not counted, because that
//!   object is alive as if it were outside. If the mark is lost, the edge is counted, and can only
//!   refute an assumption.
//!
//! # A fault that a collection does not notice
//!
//! The objects that assumed roots reach are not counted, so a collection does not notice that one
//! of them is visited more often than it is referred to. A collection that finds such an object
//! remembers no roots, so that the next one finds it again.

#![forbid(unsafe_code)]

use crate::base::fallible::{self, NoMemory};
use crate::base::steps;
use crate::base::sync::{AtomicU8, Mutex, Ordering};
use crate::collect::calls::Abandoned;
use crate::collect::candidates::Candidates;
use crate::collect::count::{Counts, Spills, add_shared};
use crate::collect::listing::Adjustments;
use crate::collect::mark::{Leaves, mark_before_counting};
use crate::collect::scope::stopped_at;
use crate::collect::search::Search;
use crate::heap::mark_tables::FoundRoot;
use crate::heap::model::{Count, ObjectModel};
use crate::heap::world::World;
use crate::report::facts::Phase;

/// A heap remembers so many roots, however few its candidates are.
const LEAST: usize = 256;

/// A heap with more than one root for each so many candidates remembers none, because each entry
/// takes eight bytes.
const CANDIDATES_PER_ROOT: usize = 8;

/// The most attempts that assume roots. The same edges lead to the roots that are left, so the
/// second one succeeds, unless marks are lost. Traversals that differ could refute one root in each
/// attempt, and a stop would take quadratic time.
const MOST_ATTEMPTS: usize = 2;

/// The most roots that a collection of so many candidates remembers.
pub(crate) fn most_roots(candidates: usize) -> usize {
    LEAST.max(candidates / CANDIDATES_PER_ROOT)
}

/// Marks what the assumed roots of a full collection reach, and counts the references from the
/// other unmarked candidates. Returns the assumed roots that are proven to be roots.
pub(crate) fn mark_and_count<M: ObjectModel>(
    search: &mut Search<'_, '_, M>,
) -> Result<(Counts, Vec<FoundRoot>), Abandoned> {
    let mut assumed =
        if search.is_full() { take(search.world, &search.candidates) } else { Vec::new() };
    let mut attempts = 0;
    loop {
        if let Some(counts) = attempt(search, &mut assumed)? {
            return Ok((counts, assumed));
        }
        attempts += 1;
        if attempts == MOST_ATTEMPTS {
            assumed.clear();
        }
        search.begin_again()?;
        // With plain marks, a root of the last attempt may be marked this time.
        assumed.retain(|root| search.candidates.is_unmarked(root.granule as usize));
    }
}

/// Marks from the assumed roots, counts the edges of the other candidates, and checks the
/// assumption.
///
/// `None`: not all assumed roots are roots, and `assumed` has those that are. In the next attempt
/// the same edges lead to them, so that it succeeds. If a field becomes readable or unreadable, a
/// traversal differs, or a mark is lost, the list gets shorter again.
fn attempt<M: ObjectModel>(
    search: &mut Search<'_, '_, M>,
    assumed: &mut Vec<FoundRoot>,
) -> Result<Option<Counts>, Abandoned> {
    let (mut marked, mut spills) = (search.known_alive, Spills::default());
    if !assumed.is_empty() {
        let space = &search.world.core().space;
        let (pages, inside) = (space.high_water(), Inside::new(space.counts()));
        // Nothing may return between the two calls of `assume`, because the tables are zero between
        // collections.
        let roots = fallible::collect(assumed.iter().map(|root| root.granule))?;
        search.candidates.assume(pages, assumed, true)?;
        let done = {
            let _phase = search.phase(Phase::Premark);
            mark_before_counting(search, roots, Some(&inside), Leaves::Traverse)
        };
        search.candidates.assume(pages, assumed, false)?;
        marked += done?.traversed;
        spills = inside.into_spills();
    }
    let counts = search.count(marked, spills)?;
    let adjustments = &search.candidates.adjustments;
    let proven = check(search.world, adjustments, assumed, &counts.spills);
    let all_are = proven == assumed.len();
    assumed.truncate(proven);
    Ok(all_are.then_some(counts))
}

/// Remembers the roots of a full collection for the next one: the assumed roots that are `proven`,
/// and those that counting has found.
pub(crate) fn remember<M: ObjectModel>(
    search: &Search<'_, '_, M>,
    mut proven: Vec<FoundRoot>,
    mut found: Vec<FoundRoot>,
) {
    // Without remembered roots, the next collection counts all objects and finds the fault again.
    if !search.is_full() || !search.overvisited.is_empty() {
        return;
    }
    // If many objects are roots, marking from roots saves little. Without memory for both lists,
    // the next collection assumes nothing either.
    let are_few = proven.len() + found.len() <= most_roots(search.candidates.count);
    if are_few && fallible::append(&mut proven, &mut found).is_ok() {
        search.world.core().remembered.set(proven);
    }
}

/// The remembered roots that may be roots again, because they are unmarked candidates with more
/// references than were found inside. The heap remembers none until this collection has found its
/// own.
fn take<M: ObjectModel>(world: &World<'_, M>, candidates: &Candidates) -> Vec<FoundRoot> {
    let mut roots = world.core().remembered.take();
    steps::took(roots.len());
    roots.retain(|root| {
        candidates.is_unmarked(root.granule as usize)
            && exceeds(world, &candidates.adjustments, root.granule, i64::from(root.inside))
    });
    roots
}

/// Whether the object at a granule has more references than `inside`. An object that takes no part
/// in this collection does not, because it has no count.
fn exceeds<M: ObjectModel>(
    world: &World<'_, M>,
    adjustments: &Adjustments,
    granule: u32,
    inside: i64,
) -> bool {
    let count = stopped_at(world, granule as usize).map(|object| world.core().model.count(object));
    let by = adjustments.of(granule as usize);
    matches!(count, Some(Count::Exact(count)) if count + by > inside)
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
        let mut spills = self.spills.lock();
        for &target in &*targets {
            add_shared(self.table, target as usize, &mut spills);
        }
        targets.clear();
        spills.lost_nothing()
    }

    pub(crate) fn into_spills(self) -> Spills {
        std::mem::take(&mut *self.spills.lock())
    }
}

/// Checks the assumed roots when all edges to them are counted. Moves the roots that are none to
/// the end of the list, sets the exact numbers of the others, and returns their number. Zeroes the
/// bytes of all.
fn check<M: ObjectModel>(
    world: &World<'_, M>,
    adjustments: &Adjustments,
    assumed: &mut [FoundRoot],
    spills: &Spills,
) -> usize {
    let table = world.core().space.counts();
    let mut proven = 0;
    steps::took(assumed.len());
    for at in 0..assumed.len() {
        let byte = table[assumed[at].granule as usize].swap(0, Ordering::Relaxed) as i8;
        let inside = i64::from(byte) + spills.of(assumed[at].granule);
        if exceeds(world, adjustments, assumed[at].granule, inside) {
            assumed[at].inside = u32::try_from(inside).unwrap_or(u32::MAX);
            assumed.swap(at, proven);
            proven += 1;
        }
    }
    proven
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
