//! `Phase::Count`, which counts the references between candidates.
//!
//! A candidate whose references all come from other candidates may be garbage, so each candidate
//! needs the number of its references from them. The side table has a signed byte for it. The
//! traversal of a candidate adds 1 to the byte of each target, and the candidate's real count is
//! subtracted from its own byte. So a byte ends at 0 if the candidates explain all references to
//! it.
//!
//! For example, a handle refers to A, A to B, and B to C, each with the count 1. In the end the
//! bytes of B and C are 0. That of A is -1, because no candidate has the reference of the handle. A
//! byte that overflows carries into a small map (*spills*), so that sums are exact. `Phase::Roots`
//! reads and zeroes the bytes.
//!
//! Unmarked candidates are traversed once each, page by page, and in address order on a page.
//! Nothing is written into them. Each worker counts into its own table, so that counting needs no
//! atomic read-modify-write, and the tables are added afterwards.
//!
//! A batch of 64 objects is traversed, in calls of 16, before its edges are counted. This helps
//! because the processor can predict one loop over hundreds of edges, but not the end of each
//! object's loop.
//!
//! Objects that are traversed on one thread alone
//! ([`Serial::serial`](crate::model::Serial::serial)) need the first worker. So the other workers
//! leave theirs to it, and it counts them when all workers have finished.

use std::collections::HashMap;

use crate::base::fallible::{self, NoMemory};
use crate::base::steps;
use crate::base::sync::{AtomicBool, AtomicU8, Mutex, Ordering};
use crate::base::system::prefetch;
use crate::collect::calls::{
    Abandoned, BATCH_PART, compare_traversals, guard_traversal, leave_serial, part, prefetch_each,
    tracer_of, traverse_batch,
};
use crate::collect::candidates::Candidates;
use crate::collect::scope::{
    Scope, Selection, WorkCursor, exclusively, granules_of, objects_of, stopped_at,
};
use crate::heap::helpers::Worker;
use crate::heap::mark_tables::PAGE_WORDS;
use crate::heap::model::{Count, ObjectModel};
use crate::heap::parts::*;
use crate::heap::world::World;
use crate::memory::address_map::Index;
use crate::memory::shape::PAGE_GRANULES;
use crate::object::live::Stopped;
use crate::object::state::StateByte;
use crate::object::tracer::Tracer;

/// Side tables of at least this many entries (256 MiB of memory) do not fit the caches, so their
/// entries are prefetched.
const FAR_TABLE_SIZE: usize = 8 << 20;

/// Whether table entries are prefetched: under stress also for small heaps, so that tests cover it.
pub(crate) fn is_far<M: ObjectModel>(world: &World<'_, M>, entries: usize) -> bool {
    entries >= world.core().stress.shrink(FAR_TABLE_SIZE)
}

/// Targets whose table entries are being prefetched, and which are counted later for that reason.
#[derive(Debug)]
pub(crate) struct Delay {
    ring: [u32; Self::LEN],
    count: usize,
}

impl Default for Delay {
    fn default() -> Self {
        Self { ring: [0; Self::LEN], count: 0 }
    }
}

impl Delay {
    pub(crate) const LEN: usize = 64;

    /// Prefetches the entry of `target`, and returns an earlier target whose entry has arrived.
    #[inline(always)]
    pub(crate) fn swap(&mut self, target: usize, entry: *const u8) -> Option<usize> {
        prefetch(entry);
        let at = self.count % Self::LEN;
        let before = std::mem::replace(&mut self.ring[at], target as u32);
        self.count += 1;
        (self.count > Self::LEN).then_some(before as usize)
    }

    pub(crate) fn drain(&mut self, mut f: impl FnMut(usize)) {
        for at in self.count.saturating_sub(Self::LEN)..self.count {
            f(self.ring[at % Self::LEN] as usize);
        }
        self.count = 0;
    }
}

/// Adds `by`, at most 127, to a signed byte that wraps, and records a carry if it wraps.
#[inline(always)]
pub(crate) fn add(table: &mut [u8], granule: usize, by: i8, spills: &mut Spills) {
    let (sum, wrapped) = (table[granule] as i8).overflowing_add(by);
    table[granule] = sum as u8;
    if wrapped {
        spill(spills, granule, if by > 0 { 256 } else { -256 });
    }
}

/// Adds 1 to a byte under a lock that all writers hold.
pub(crate) fn add_shared(table: &[AtomicU8], granule: usize, spills: &mut Spills) {
    // Relaxed: the lock orders the accesses.
    let (sum, wrapped) = (table[granule].load(Ordering::Relaxed) as i8).overflowing_add(1);
    table[granule].store(sum as u8, Ordering::Relaxed);
    if wrapped {
        spill(spills, granule, 256);
    }
}

#[cold]
#[inline(never)]
pub(crate) fn spill(spills: &mut Spills, granule: usize, carry: i64) {
    spills.add(granule as u32, carry);
}

/// The carries of bytes that have wrapped, by granule.
#[derive(Debug, Default)]
pub(crate) struct Spills {
    pub(super) carries: HashMap<u32, i64>,
    /// There was no memory for some carry, which is checked once at the end, because carries come
    /// from the innermost loops.
    pub(super) lost: bool,
}

impl Spills {
    pub(super) fn add(&mut self, granule: u32, carry: i64) {
        if self.carries.try_reserve(1).is_ok() {
            *self.carries.entry(granule).or_default() += carry;
        } else {
            self.lost = true;
        }
    }

    pub(super) fn of(&self, granule: u32) -> i64 {
        self.carries.get(&granule).copied().unwrap_or_default()
    }

    pub(super) fn lost_nothing(&self) -> Result<(), NoMemory> {
        if self.lost { Err(NoMemory) } else { Ok(()) }
    }
}

/// Adds the bytes of `table` to those of `main`.
///
/// # Safety
///
/// As for [`exclusively`], of `main`.
pub(crate) unsafe fn add_bytes(main: &[AtomicU8], table: &[u8], mut carry: impl FnMut(usize, i64)) {
    let add = |main: &mut [u8]| {
        for (at, (sum, &add)) in main.iter_mut().zip(table).enumerate() {
            if add != 0 {
                let (now, wrapped) = (*sum as i8).overflowing_add(add as i8);
                *sum = now as u8;
                if wrapped {
                    carry(at, if now < 0 { 256 } else { -256 });
                }
            }
        }
    };
    // SAFETY: rule *stopped*: as the caller says.
    unsafe { exclusively(main, add) }
}

/// Objects that are traversed before their edges are counted.
const BATCH: usize = 64;

/// The number of candidates between the prefetch of an object and its traversal.
const PREFETCH_DISTANCE: usize = 6 * BATCH_PART;

/// The number of candidates between the prefetch of an object's contents outside the heap and its
/// traversal.
const CONTENTS_DISTANCE: usize = 2 * BATCH_PART;

#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(crate) traversed: usize,
    pub(super) spills: Spills,
    pub(super) immortal: Vec<u32>,
    pub(super) outside: Vec<u32>,
    /// The granules of candidates with count 0, whose destruction has begun.
    pub(super) dying: Vec<u32>,
    /// Objects with an unreadable field. None of their edges were counted, so all their targets are
    /// roots, and marking need not traverse the objects.
    pub(crate) unreadable: Vec<u32>,
    /// Objects that other workers have left to the first worker.
    pub(super) serial: Vec<u32>,
}

impl Counts {
    /// What the byte of a granule has carried.
    pub(crate) fn carry(&self, granule: u32) -> i64 {
        self.spills.of(granule)
    }

    fn add(&mut self, mut other: Self) -> Result<(), NoMemory> {
        self.traversed += other.traversed;
        steps::took(
            other.spills.carries.len()
                + other.immortal.len()
                + other.outside.len()
                + other.dying.len()
                + other.unreadable.len(),
        );
        for (granule, carry) in other.spills.carries {
            self.spills.add(granule, carry);
        }
        self.spills.lost |= other.spills.lost;
        fallible::append(&mut self.immortal, &mut other.immortal)?;
        fallible::append(&mut self.outside, &mut other.outside)?;
        fallible::append(&mut self.dying, &mut other.dying)?;
        fallible::append(&mut self.unreadable, &mut other.unreadable)?;
        fallible::append(&mut self.serial, &mut other.serial)?;
        self.spills.lost_nothing()
    }
}

/// `Phase::Count`: counts the edges of the unmarked candidates into the side table. `spills` has
/// the carries of bytes that are not 0 before.
pub(crate) fn count<M: ObjectModel>(
    world: &World<'_, M>,
    scope: &Scope,
    candidates: &Candidates,
    spills: Spills,
    workers: usize,
) -> Result<Counts, Abandoned> {
    let core = world.core();
    let share = scope.share(workers);
    let mut tables = Vec::new();
    // The first worker counts into the heap's table, and each other one into its own.
    tables.try_reserve_exact(workers - 1).map_err(NoMemory::from)?;
    let total = Mutex::new((Counts { spills, ..Counts::default() }, tables));
    let failed = Mutex::new(None);
    let stop = AtomicBool::new(false);
    let work = Work { world, scope, candidates, share: &share, stop: &stop };
    world.share(workers, &|worker| {
        let mut counts = Counts::default();
        let mut private = None;
        if worker.index > 0 {
            // Without memory for a private table, this worker leaves its share to the others.
            let Ok(table) = core.workers.take_table(core.space.counts().len()) else { return };
            private = Some(table);
        }
        let mut tracer = tracer_of(world);
        let result = guard_traversal(world, &mut tracer, |tracer| match &mut private {
            // SAFETY: rule *stopped*: only the first worker accesses the heap's table, and the
            // traversals that it calls cannot reach the table.
            None => unsafe {
                exclusively(core.space.counts(), |table| {
                    work.count(worker, table, &mut counts, tracer)
                })
            },
            Some(table) => work.count(worker, table, &mut counts, tracer),
        });
        let added = {
            let mut total = total.lock();
            total.1.extend(private);
            total.0.add(counts)
        };
        let result = result.and_then(|counted| Ok(counted.and(added)?));
        if let Err(abandoned) = result {
            // Relaxed: a hint to finish. The lock protects the reason.
            stop.store(true, Ordering::Relaxed);
            failed.lock().get_or_insert(abandoned);
        }
    });
    let (mut counts, tables) = std::mem::take(&mut *total.lock());
    if SerialOf::<M>::PRESENT && failed.lock().is_none() {
        let serial = work.count_serial(&mut counts);
        *failed.lock() = serial.err();
    }
    let merged = merge_tables(world, scope, workers, tables, &mut counts);
    if let Some(abandoned) = failed.lock().take() {
        return Err(abandoned);
    }
    merged?;
    // An unmarked candidate has been counted, so the correction of its count is subtracted too.
    for (granule, by) in candidates.adjustments.iter() {
        if candidates.is_unmarked(granule as usize) {
            counts.spills.add(granule, -by);
        }
    }
    counts.spills.lost_nothing()?;
    Ok(counts)
}

struct Work<'a, M: ObjectModel> {
    world: &'a World<'a, M>,
    scope: &'a Scope,
    candidates: &'a Candidates,
    share: &'a WorkCursor<'a, u32>,
    stop: &'a AtomicBool,
}

impl<M: ObjectModel> Work<'_, M> {
    /// Counts the candidates on the pages that this worker takes, into `table`.
    fn count(
        &self,
        worker: Worker,
        table: &mut [u8],
        counts: &mut Counts,
        tracer: &mut Tracer,
    ) -> Result<(), NoMemory> {
        match self.scope.selection {
            Selection::Full | Selection::All => {
                self.count_share::<true>(worker, table, counts, tracer)
            }
            _ => self.count_share::<false>(worker, table, counts, tracer),
        }
    }

    fn count_share<const ALL: bool>(
        &self,
        worker: Worker,
        table: &mut [u8],
        counts: &mut Counts,
        tracer: &mut Tracer,
    ) -> Result<(), NoMemory> {
        let Self { world, .. } = self;
        let origin = world.core().space.origin();
        let skips_serial = SerialOf::<M>::PRESENT && worker.index != 0;
        let selection = self.scope.selection;
        let mut counter = Counter::<_, ALL>::new(world, origin, selection, table, counts);
        let mut candidates: Vec<Stopped<'_>> = Vec::new();
        candidates.try_reserve_exact(PAGE_GRANULES)?;
        for pages in self.share.of(worker) {
            // Relaxed: a hint, see `count`.
            if self.stop.load(Ordering::Relaxed) {
                return Ok(());
            }
            for &page in pages {
                candidates.clear();
                for word in self.candidates.unmarked_on(page) {
                    gather(origin, word, &mut candidates);
                }
                steps::took(PAGE_WORDS + candidates.len());
                self.count_objects(&mut counter, skips_serial, tracer, &candidates)?;
            }
        }
        counter.drain_delayed();
        counts.spills.lost_nothing()
    }

    /// Counts the objects that other workers have left to this thread, the first worker.
    fn count_serial(&self, counts: &mut Counts) -> Result<(), Abandoned> {
        let core = self.world.core();
        let mut objects = Vec::new();
        for granule in std::mem::take(&mut counts.serial) {
            if let Some(object) = stopped_at(self.world, granule as usize) {
                fallible::push(&mut objects, object)?;
            }
        }
        let counted = guard_traversal(self.world, &mut tracer_of(self.world), |tracer| {
            let count = |table: &mut [u8]| match self.scope.selection {
                Selection::Full | Selection::All => {
                    self.count_list::<true>(&objects, table, counts, tracer)
                }
                _ => self.count_list::<false>(&objects, table, counts, tracer),
            };
            // SAFETY: rule *stopped*: the other workers have finished, and the traversals cannot
            // reach the table.
            unsafe { exclusively(core.space.counts(), count) }
        });
        Ok(counted??)
    }

    fn count_list<const ALL: bool>(
        &self,
        objects: &[Stopped<'_>],
        table: &mut [u8],
        counts: &mut Counts,
        tracer: &mut Tracer,
    ) -> Result<(), NoMemory> {
        let origin = self.world.core().space.origin();
        let selection = self.scope.selection;
        let mut counter = Counter::<_, ALL>::new(self.world, origin, selection, table, counts);
        self.count_objects(&mut counter, false, tracer, objects)?;
        counter.drain_delayed();
        counts.spills.lost_nothing()
    }

    /// Counts some candidates. `skips_serial`: but for those that only the first worker traverses.
    #[inline(always)]
    fn count_objects<O: Index, const ALL: bool>(
        &self,
        counter: &mut Counter<'_, O, ALL>,
        skips_serial: bool,
        tracer: &mut Tracer,
        objects: &[Stopped<'_>],
    ) -> Result<(), NoMemory> {
        let (origin, model) = (counter.origin, &self.world.core().model);
        let (verifies, prefetches) =
            (ChecksOf::<M>::verifies_traversals(model), BatchesOf::<M>::prefetches(model));
        let skips_any = |few: &[Stopped<'_>]| {
            skips_serial && few.iter().any(|&o| SerialOf::<M>::serial(model, o))
        };
        let mut rest = Vec::new();
        // In a full collection candidates are adjacent, but the hardware prefetches them only up to
        // the end of its page. In a young collection they are far apart.
        for object in objects.iter().take(PREFETCH_DISTANCE) {
            object.prefetch();
        }
        for (number, mut batch) in objects.chunks(BATCH).enumerate() {
            if skips_any(batch) {
                leave_serial(model, batch, &mut counter.counts.serial, &mut rest, |object| {
                    origin.granule(object.address()) as u32
                })?;
                batch = &rest;
            }
            counter.counts.traversed += batch.len();
            let unreadable_before = counter.counts.unreadable.len();
            tracer.clear();
            if UncountedOf::<M>::PRESENT {
                tracer.forget_uncounted();
            }
            let mut ends = [0; BATCH];
            for (place, few) in batch.chunks(BATCH_PART).enumerate() {
                let first = number * BATCH + place * BATCH_PART;
                for object in part(objects, first + PREFETCH_DISTANCE) {
                    object.prefetch();
                }
                let ahead = part(objects, first + CONTENTS_DISTANCE);
                if prefetches && !skips_any(ahead) {
                    prefetch_each(model, ahead, tracer);
                }
                let unreadable = &mut counter.counts.unreadable;
                let unreadable = |at: usize| {
                    fallible::push(unreadable, origin.granule(few[at].address()) as u32)
                };
                traverse_batch(model, few, tracer, &mut ends[place * BATCH_PART..], unreadable)?;
            }
            if verifies {
                let unreadable = &counter.counts.unreadable[unreadable_before..];
                compare_traversals(self.world, batch, &ends, tracer, |object| {
                    unreadable.contains(&(origin.granule(object.address()) as u32))
                })?;
            }
            let marks_leaves = tracer.all_uncounted().next().is_none();
            let leaves = marks_leaves.then_some(self.candidates);
            counter.take_own(model, batch, &ends, leaves)?;
            counter.take_edges(tracer.edges());
        }
        Ok(())
    }
}

/// Adds the candidates of a word, whose first granule is `first`. There is room for a page's
/// candidates.
#[inline(always)]
fn gather<'w>(origin: impl Index, word: (usize, u64), candidates: &mut Vec<Stopped<'w>>) {
    // SAFETY: rule *stopped*: candidates are alive.
    candidates.extend(objects_of(origin, word).map(|object| unsafe { Stopped::new(object) }));
}

/// The counting state of one worker.
///
/// Each loop is a separate function, so that the compiler keeps its variables in registers. `ALL`
/// means that the targets of all edges are counted ([`Selection::Full`], [`Selection::All`]).
struct Counter<'a, O: Index, const ALL: bool> {
    origin: O,
    selection: Selection,
    states: &'a [AtomicU8],
    table: &'a mut [u8],
    /// Whether the table is so large that its entries are prefetched.
    far: bool,
    delay: Delay,
    counts: &'a mut Counts,
}

impl<'a, O: Index, const ALL: bool> Counter<'a, O, ALL> {
    #[inline(always)]
    fn new<M: ObjectModel>(
        world: &'a World<'_, M>,
        origin: O,
        selection: Selection,
        table: &'a mut [u8],
        counts: &'a mut Counts,
    ) -> Self {
        let (states, far) = (world.core().space.states(), is_far(world, table.len()));
        Self { origin, selection, states, table, far, delay: Delay::default(), counts }
    }

    /// Subtracts the real count of each object, without the claim's reference, from its byte.
    ///
    /// A *leaf* here is an outside object without edges, which is alive, and in which marking would
    /// find nothing. So it is marked in `leaves`, if the caller passes them, instead of becoming a
    /// root. An object with an unreadable field has no edges either, but nothing is lost, because
    /// its targets are roots.
    #[inline(never)]
    fn take_own<M: ObjectModel>(
        &mut self,
        model: &M,
        objects: &[Stopped<'_>],
        ends: &[u32],
        leaves: Option<&Candidates>,
    ) -> Result<(), NoMemory> {
        let (origin, table) = (self.origin, &mut *self.table);
        let claims = i64::from(self.selection == Selection::Claimed);
        let Counts { spills, immortal, outside, dying, .. } = &mut *self.counts;
        let mut start = 0;
        for (&object, &end) in objects.iter().zip(ends) {
            let granule = origin.granule(object.address());
            let has_edges = std::mem::replace(&mut start, end) != end;
            match model.count(object) {
                Count::Exact(n @ 1..128) => add(table, granule, (claims - n) as i8, spills),
                Count::Exact(0) if zero_is_dying::<M>() => fallible::push(dying, granule as u32)?,
                Count::Exact(n) => spill(spills, granule, claims - n),
                Count::Outside => match leaves {
                    Some(candidates) if !has_edges => candidates.mark_on_page(granule),
                    _ => fallible::push(outside, granule as u32)?,
                },
                Count::Immortal => fallible::push(immortal, granule as u32)?,
            }
        }
        Ok(())
    }

    /// Counts the edges of a batch of up to 64 objects. One loop handles all of them, so that no
    /// branch depends on the number of edges of an object, which is unpredictable.
    #[inline(never)]
    fn take_edges(&mut self, edges: &[usize]) {
        steps::took(edges.len());
        let (origin, states, table) = (self.origin, self.states, &mut *self.table);
        let bits = self.selection.bits();
        let spills = &mut self.counts.spills;
        let targets = edges.iter().map(|&edge| origin.granule(edge));
        if self.far {
            let (entries, delay) = (table.as_ptr(), &mut self.delay);
            targets.for_each(|target| {
                if let Some(target) = delay.swap(target, entries.wrapping_add(target)) {
                    take_edge::<ALL>((states, bits), table, target, spills);
                }
            });
        } else {
            targets.for_each(|target| take_edge::<ALL>((states, bits), table, target, spills));
        }
    }

    fn drain_delayed(&mut self) {
        let (states, table, spills) = (self.states, &mut *self.table, &mut self.counts.spills);
        let bits = self.selection.bits();
        self.delay.drain(|target| take_edge::<ALL>((states, bits), table, target, spills));
    }
}

/// Adds 1 to the byte of an edge's target. In a full collection (`ALL`) the bytes of other objects
/// are ignored. Otherwise they must stay zero, because no phase may visit their pages.
#[inline(always)]
fn take_edge<const ALL: bool>(
    (states, (mask, value)): (&[AtomicU8], (u8, u8)),
    table: &mut [u8],
    target: usize,
    spills: &mut Spills,
) {
    if ALL || StateByte(&states[target]).get() & mask == value {
        add(table, target, 1, spills);
    }
}

/// Adds the workers' private tables to the heap's table, and then zeroes and keeps them.
fn merge_tables<M: ObjectModel>(
    world: &World<'_, M>,
    scope: &Scope,
    workers: usize,
    mut tables: Vec<Vec<u8>>,
    counts: &mut Counts,
) -> Result<(), NoMemory> {
    if tables.is_empty() {
        return Ok(());
    }
    let core = world.core();
    let main = core.space.counts();
    let share = scope.share(workers);
    let spills = Mutex::new(std::mem::take(&mut counts.spills));
    world.share(workers, &|worker| {
        let mut carries = Spills::default();
        for pages in share.of(worker) {
            for &page in pages {
                if let Some(range) = granules_of(&core.space, page) {
                    for table in &tables {
                        steps::took(range.len());
                        let carry = |at, carry| carries.add((range.start + at) as u32, carry);
                        // SAFETY: rule *stopped*: only this worker accesses the page.
                        unsafe { add_bytes(&main[range.clone()], &table[range.clone()], carry) };
                    }
                }
            }
        }
        steps::took(carries.carries.len());
        let mut spills = spills.lock();
        spills.lost |= carries.lost;
        carries.carries.into_iter().for_each(|(granule, carry)| spills.add(granule, carry));
    });
    counts.spills = std::mem::take(&mut *spills.lock());
    for mut table in tables.drain(..) {
        for &page in scope.pages() {
            if let Some(range) = granules_of(&core.space, page) {
                steps::took(range.len());
                table[range].fill(0);
            }
        }
        core.workers.give_table(table);
    }
    counts.spills.lost_nothing()
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
