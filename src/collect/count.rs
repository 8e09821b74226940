//! `Phase::Count`: counting the references between candidates.
//!
//! The side table has a signed byte for each object. The traversal of a candidate adds 1 to the
//! byte of each target, and the candidate's real count is subtracted from its own byte. A byte is 0
//! in the end if the candidates explain all references to the object. Unmarked candidates are
//! traversed in address order, each once, and nothing is written into them.
//!
//! Each worker counts into its own table. The tables are added afterwards, so counting needs no
//! atomic read-modify-write.
//!
//! A batch of objects is traversed before its edges are counted. One loop over hundreds of edges
//! has no unpredictable end, as a loop over the edges of one object has.
//!
//! Objects that are traversed on one thread alone ([`ObjectModel::serial`]) wait until all workers
//! have finished. Then the first worker counts those that other workers have left.

use crate::collect::work_list::WorkCursor;
use crate::object::live::Stopped;
use std::collections::HashMap;

use crate::base::fallible::{self, NoMemory};
use crate::base::steps;
use crate::base::sync::{AtomicBool, AtomicU8, Mutex, Ordering};
use crate::collect::candidates::Candidates;
use crate::collect::scope::{Scope, Selection, granules_of, objects_of, stopped_at};
use crate::collect::table::{Delay, Spills, add, add_bytes, exclusively, is_far, spill};
use crate::collect::traversal::{
    Abandoned, BATCH_PART, guard_traversal, prefetch_each, tracer_of, traverse_batch,
};
use crate::heap::helpers::Worker;
use crate::heap::mark_tables::PAGE_WORDS;
use crate::heap::model::{Count, ObjectModel};
use crate::heap::mutator::World;
use crate::memory::address_map::Index;
use crate::memory::space::PAGE_GRANULES;
use crate::object::state::StateByte;
use crate::object::type_info::Tracer;

/// Objects that are traversed before their edges are counted.
const BATCH: usize = 64;

/// The number of candidates between the prefetch of an object and its traversal.
const PREFETCH_DISTANCE: usize = 6 * BATCH_PART;

/// The number of candidates between the prefetch of an object's contents outside the heap and its
/// traversal.
const CONTENTS_DISTANCE: usize = 2 * BATCH_PART;

/// The result of counting.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    /// The number of traversed candidates.
    pub(crate) traversed: usize,
    pub(super) spills: Spills,
    /// The granules of immortal candidates.
    pub(super) immortal: Vec<u32>,
    /// The granules of candidates that are [outside](Count::Outside).
    pub(super) outside: Vec<u32>,
    /// The granules of candidates with count 0: their destruction has begun.
    pub(super) dying: Vec<u32>,
    /// Objects with an unreadable field. None of their edges were counted, so all their targets are
    /// roots. Marking need not traverse them.
    pub(crate) unreadable: Vec<u32>,
    /// The counted edges of some objects, by granule. A model without
    /// [`ObjectModel::STABLE_DURING_STOP`] has all objects here, because marking must follow the
    /// counted edges. Other models have the objects that [`ObjectModel::verifies_traversal`]
    /// selects. Marking compares their second traversal with these edges.
    pub(crate) kept: HashMap<u32, Box<[u32]>>,
    /// Objects that other workers have left to the first worker.
    pub(super) serial: Vec<u32>,
}

impl Counts {
    fn add(&mut self, mut other: Self) -> Result<(), NoMemory> {
        self.traversed += other.traversed;
        steps::took(
            other.spills.carries.len()
                + other.immortal.len()
                + other.outside.len()
                + other.dying.len()
                + other.unreadable.len()
                + other.kept.len(),
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
        self.kept.try_reserve(other.kept.len())?;
        self.kept.extend(other.kept);
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
    // The first worker counts into the heap's table.
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
    if M::HAS_SERIAL && failed.lock().is_none() {
        let serial = work.count_serial(&mut counts);
        *failed.lock() = serial.err();
    }
    let merged = merge_tables(world, scope, workers, tables, &mut counts);
    if let Some(abandoned) = failed.lock().take() {
        return Err(abandoned);
    }
    merged?;
    // Each unmarked candidate has been counted, so its count is adjusted.
    for (granule, by) in candidates.adjustments.iter() {
        if candidates.is_unmarked(granule as usize) {
            counts.spills.add(granule, -by);
        }
    }
    counts.spills.lost_nothing()?;
    Ok(counts)
}

/// The data that all counting workers share.
struct Work<'a, M: ObjectModel> {
    world: &'a World<'a, M>,
    scope: &'a Scope,
    candidates: &'a Candidates,
    share: &'a WorkCursor<'a, u32>,
    stop: &'a AtomicBool,
}

impl<M: ObjectModel> Work<'_, M> {
    /// Counts one worker's share into `table`.
    fn count(
        &self,
        worker: Worker,
        table: &mut [u8],
        counts: &mut Counts,
        tracer: &mut Tracer,
    ) -> Result<(), NoMemory> {
        match self.scope.selection {
            Selection::Full => self.count_share::<true>(worker, table, counts, tracer),
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
        let leaves = M::HAS_SERIAL && worker.index != 0;
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
                self.count_objects(&mut counter, leaves, tracer, &candidates)?;
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
                Selection::Full => self.count_list::<true>(&objects, table, counts, tracer),
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

    /// Counts some candidates. `leaves`: but for those that only the first worker traverses.
    #[inline(always)]
    fn count_objects<O: Index, const ALL: bool>(
        &self,
        counter: &mut Counter<'_, O, ALL>,
        leaves: bool,
        tracer: &mut Tracer,
        objects: &[Stopped<'_>],
    ) -> Result<(), NoMemory> {
        let (origin, model) = (counter.origin, &self.world.core().model);
        let (verifies, prefetches) = (model.verifies_traversals(), model.prefetches());
        let leaves_any = |few: &[Stopped<'_>]| leaves && few.iter().any(|&o| model.serial(o));
        let mut rest = Vec::new();
        // In a full collection candidates are adjacent. The hardware prefetches them, but
        // only up to the end of its page. In a young collection they are far apart.
        for object in objects.iter().take(PREFETCH_DISTANCE) {
            object.prefetch();
        }
        for (number, mut batch) in objects.chunks(BATCH).enumerate() {
            if leaves_any(batch) {
                counter.leave_serial(model, batch, &mut rest)?;
                batch = &rest;
            }
            counter.counts.traversed += batch.len();
            tracer.clear();
            if M::UNCOUNTED_EDGES {
                tracer.forget_uncounted();
            }
            let mut ends = [0; BATCH];
            for (place, few) in batch.chunks(BATCH_PART).enumerate() {
                let first = number * BATCH + place * BATCH_PART;
                for object in few_from(objects, first + PREFETCH_DISTANCE) {
                    object.prefetch();
                }
                let ahead = few_from(objects, first + CONTENTS_DISTANCE);
                if prefetches && !leaves_any(ahead) {
                    prefetch_each(model, ahead, tracer);
                }
                let unreadable = &mut counter.counts.unreadable;
                let unreadable = |at: usize| {
                    fallible::push(unreadable, origin.granule(few[at].address()) as u32)
                };
                traverse_batch(model, few, tracer, &mut ends[place * BATCH_PART..], unreadable)?;
            }
            let marks_leaves =
                M::STABLE_DURING_STOP && !verifies && tracer.all_uncounted().next().is_none();
            let leaves = marks_leaves.then_some(self.candidates);
            counter.take_own(model, batch, &ends, leaves)?;
            if verifies || !M::STABLE_DURING_STOP {
                counter.remember(model, batch, tracer, &ends)?;
            }
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
/// Each loop is a separate function, so that the compiler keeps its variables in registers. `ALL`:
/// every tracked object is a candidate ([`Selection::Full`]).
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
    /// An object that is outside and has no edges is alive, and marking would find nothing in it.
    /// So it is marked in `leaves`, if the caller passes them, and is no root. An object with an
    /// unreadable field has no edges either. Its targets are roots, so nothing is lost.
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
                Count::Exact(0) if !M::UNCOUNTED_EDGES && !M::ADJUSTS_COUNTS => {
                    fallible::push(dying, granule as u32)?
                }
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

    /// Adds the objects that only the first worker traverses to the results, and the others to
    /// `rest`.
    #[cold]
    fn leave_serial<'w, M: ObjectModel>(
        &mut self,
        model: &M,
        batch: &[Stopped<'w>],
        rest: &mut Vec<Stopped<'w>>,
    ) -> Result<(), NoMemory> {
        rest.clear();
        rest.try_reserve(batch.len())?;
        for &object in batch {
            if model.serial(object) {
                let granule = self.origin.granule(object.address()) as u32;
                fallible::push(&mut self.counts.serial, granule)?;
            } else {
                rest.push(object);
            }
        }
        Ok(())
    }

    /// Keeps the edges of the objects that belong into [`Counts::kept`].
    #[cold]
    fn remember<M: ObjectModel>(
        &mut self,
        model: &M,
        objects: &[Stopped<'_>],
        tracer: &Tracer,
        ends: &[u32],
    ) -> Result<(), NoMemory> {
        let mut start = 0;
        for (&object, &end) in objects.iter().zip(ends) {
            let own = tracer.edges()[start..end as usize].iter().copied();
            start = end as usize;
            if !M::STABLE_DURING_STOP || model.verifies_traversal(object) {
                let uncounted = || tracer.uncounted_of(object.object());
                let mut kept = Vec::new();
                // Exactly: to shrink the list would request memory that cannot be refused.
                kept.try_reserve_exact(own.len() + uncounted().count())?;
                kept.extend(own.chain(uncounted()).map(|edge| self.origin.granule(edge) as u32));
                self.counts.kept.try_reserve(1)?;
                self.counts
                    .kept
                    .insert(self.origin.granule(object.address()) as u32, kept.into_boxed_slice());
            }
        }
        Ok(())
    }

    /// Counts the edges of a batch. One loop handles all edges, so that no branch
    /// depends on the number of edges of an object, which is unpredictable.
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

    /// Counts the delayed targets.
    fn drain_delayed(&mut self) {
        let (states, table, spills) = (self.states, &mut *self.table, &mut self.counts.spills);
        let bits = self.selection.bits();
        self.delay.drain(|target| take_edge::<ALL>((states, bits), table, target, spills));
    }
}

/// Adds 1 to the byte of an edge's target. In a full collection every tracked object is a
/// candidate, and the bytes of other objects are ignored (`ALL`). Otherwise the bytes of other
/// objects must stay zero: no phase visits their pages.
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

/// At most [`BATCH_PART`] of the objects, from number `first` on.
#[inline(always)]
fn few_from<'s, 'w>(objects: &'s [Stopped<'w>], first: usize) -> &'s [Stopped<'w>] {
    let rest = objects.get(first..).unwrap_or_default();
    &rest[..rest.len().min(BATCH_PART)]
}

/// Adds the workers' private tables to the heap's table. Zeroes and keeps the private tables.
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
mod tests {
    use super::*;
    use crate::collect::scope::tests::{granules, stopped};

    /// Arbitrary positive and negative numbers of a signed byte.
    fn numbers(seed: usize) -> impl Fn(usize) -> i8 {
        move |at| ((at * 31 + seed * 17) % 251) as u8 as i8
    }

    #[test]
    fn the_counts_of_all_workers_are_added_up_exactly() {
        stopped(|world, scope| {
            let space = &world.core().space;
            let (table, workers) = (space.counts(), &world.core().workers);
            let granules = granules(world, scope);
            for helpers in [0, 1, 3] {
                let expected =
                    |at| (0..=helpers).map(|seed| i64::from(numbers(seed)(at))).sum::<i64>();
                for &at in &granules {
                    table[at].store(numbers(0)(at) as u8, Ordering::Relaxed);
                }
                let private = |seed| {
                    let mut table = workers.take_table(table.len()).expect("memory");
                    assert!(
                        table.iter().all(|&byte| byte == 0),
                        "a table that was used before is zero"
                    );
                    granules.iter().for_each(|&at| table[at] = numbers(seed)(at) as u8);
                    table
                };
                let tables: Vec<_> = (1..=helpers).map(private).collect();
                // The earlier carries of the workers' bytes are kept.
                let mut counts = Counts::default();
                counts.spills.add(granules[7] as u32, 256);
                counts.spills.add(granules[8] as u32, -256);
                merge_tables(world, scope, helpers + 1, tables, &mut counts).expect("memory");
                for (place, &at) in granules.iter().enumerate() {
                    let carry =
                        counts.spills.carries.get(&(at as u32)).copied().unwrap_or_default();
                    let before =
                        [256, -256].get(place.wrapping_sub(7)).copied().unwrap_or_default();
                    let sum = i64::from(table[at].load(Ordering::Relaxed) as i8) + carry - before;
                    assert_eq!(sum, expected(at), "granule {at}, {helpers} tables");
                }
                // A kept table has its full length. A new table would have length 1.
                let again: Vec<_> =
                    (0..helpers).map(|_| workers.take_table(1).expect("memory")).collect();
                again.into_iter().for_each(|again| {
                    assert_eq!(again.len(), table.len(), "it is kept");
                    assert!(again.iter().all(|&byte| byte == 0), "it is left zero");
                    workers.give_table(again);
                });
            }
            // The only sum of two signed bytes that overflows to 0.
            table[granules[5]].store(-128i8 as u8, Ordering::Relaxed);
            let mut private = vec![0; table.len()];
            private[granules[5]] = -128i8 as u8;
            let mut counts = Counts::default();
            merge_tables(world, scope, 2, vec![private], &mut counts).expect("memory");
            assert_eq!(counts.spills.carries, HashMap::from([(granules[5] as u32, -256)]));
            let mut lost = Counts::default();
            lost.spills.lost = true;
            assert!(merge_tables(world, scope, 2, vec![vec![0; table.len()]], &mut lost).is_err());
        });
    }

    #[test]
    fn what_workers_found_is_put_together_and_a_loss_is_not_forgotten() {
        let some = |first: u32| {
            let mut counts = Counts { traversed: 5, ..Counts::default() };
            counts.spills.add(7, 256);
            counts.spills.add(first, -256);
            counts.immortal.push(first + 1);
            counts.outside.push(first + 4);
            counts.dying.push(first + 5);
            counts.unreadable.push(first + 2);
            counts.kept.insert(first + 3, Box::new([first]));
            counts
        };
        let mut all = some(100);
        all.add(some(200)).expect("memory");
        assert_eq!(all.traversed, 10);
        assert_eq!(all.spills.carries, HashMap::from([(7, 512), (100, -256), (200, -256)]));
        assert_eq!(
            (all.immortal.as_slice(), all.unreadable.as_slice()),
            (&[101, 201][..], &[102, 202][..])
        );
        assert_eq!(
            (all.outside.as_slice(), all.dying.as_slice()),
            (&[104, 204][..], &[105, 205][..])
        );
        let kept: HashMap<u32, Box<[u32]>> =
            HashMap::from([(103, [100].into()), (203, [200].into())]);
        assert_eq!(all.kept, kept);
        let mut lost = some(1);
        lost.spills.lost = true;
        assert!(all.add(lost).is_err());
        assert!(all.add(some(2)).is_err(), "nor later");
    }

    /// The second traversal is that of marking.
    #[test]
    fn marking_does_not_traverse_an_outside_object_without_edges() {
        use crate::collect::Collect;
        use crate::collect::script::tests::{Script, collect, scripted_heap};

        for (has, edges, traversals) in [("o", 0, 1), ("o", 1, 2), ("od", 0, 2), ("i", 0, 2)] {
            let Some(heap) = scripted_heap() else { return };
            let mut m = heap.attach();
            let object = Script::thing(&m, 'l', has, "s");
            let target = Script::thing(&m, 't', "o", "s");
            (0..edges).for_each(|_| Script::link(&m, object, target));
            let (report, _) = collect(&mut m, Collect::full());
            assert_eq!((report.candidates, report.unreachable), (2, 0));
            let traversed = Script::of(&m, object, |thing| thing.traversed);
            assert_eq!(traversed, traversals, "{has}, {edges} edges");
        }
    }

    /// Each of the two workers waits for the other in its first traversal.
    #[cfg(feature = "parallel")]
    #[test]
    fn each_worker_but_the_first_counts_into_a_table_of_its_own_which_is_kept() {
        use crate::collect::Collect;
        use crate::collect::script::tests::{Script, collect};
        use crate::object::type_info::Object;
        use crate::{Heap, Pacing};

        let builder =
            Heap::builder().reserve(1 << 28).workers(2).serial_below(0).pacing(Pacing::manual());
        let heap = builder.build_with(Script::default()).expect("a heap");
        let mut m = heap.attach();
        let objects: Vec<Object> =
            (0..16).map(|_| Script::sized(&m, 60_000, 'o', "", "s")).collect();
        heap.model().state().meets = 2;
        let (report, _) = collect(&mut m, Collect::full());
        assert_eq!((report.workers, report.candidates, report.unreachable), (2, 16, 0));
        assert_eq!(heap.model().state().there.len(), 2);
        // A kept table is as long as the heap's table.
        let table = m.core().workers.take_table(1).expect("memory");
        assert_eq!(table.len(), m.core().space.counts().len());
        assert!(table.iter().all(|&byte| byte == 0));
        objects.iter().for_each(|&object| heap.model().drop_ref(object, &m));
    }
}
