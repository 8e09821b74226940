//! `Phase::Premark` and `Phase::Mark`, which mark the objects that roots reach.
//!
//! Both phases run the same code, and differ in their roots. `Premark` comes before counting, so it
//! starts from named roots, roots of the model, and assumed roots. `Mark` comes after it, and
//! starts from the roots that counting has found.
//!
//! # One worker
//!
//! A worker has a list of objects that it has marked. It takes the last ones, traverses them in
//! batches of 16, and marks the targets of their edges. Targets that were not marked before join
//! the list. For example, A refers to B and C, B to D, and C to E. After A the list is B, C, of
//! which the worker takes both, so that the list becomes D, E. In a large heap it takes only the
//! last 4,096 objects, so that it finishes one part of the heap, which is in the caches, before the
//! next.
//!
//! An object is prefetched four batches before its traversal, so that it has arrived by then. One
//! loop handles the edges of a batch, because a branch on the number of edges of each object would
//! be unpredictable.
//!
//! If another worker is idle, a worker gives half of its list away, even between the edges of one
//! object if these are many. Before it takes objects, it reads the [long
//! slices](crate::object::tracer) of those that it has traversed.
//!
//! If some objects are traversed on one thread alone
//! ([`Serial::serial`](crate::model::Serial::serial)), the other workers mark such an object and
//! leave it in their results. When marking is over, it begins again with these objects as the first
//! worker's list. There is a last round, because each needs objects that were not marked before.
//!
//! [Candidates](super::candidates) has the tables, and the reason why no object is lost.
//!
//! # The pool
//!
//! A worker that finds another worker idle gives work to a pool, a vector under a lock. A lock is
//! good enough, because a worker gives many objects at a time, and the growth of a lock-free queue
//! could not be refused. A worker may join at any time or never, so that none waits for a thread
//! that the system starts late. A long linked list has one object at a time to traverse, so one
//! worker marks it.

use crossbeam_utils::CachePadded;

use crate::base::fallible::{self, NoMemory};
use crate::base::steps;
use crate::base::stress::{MaybeStrain, Stress};
use crate::base::sync::{AtomicBool, AtomicUsize, Mutex, Ordering, spin_loop, yield_now};
use crate::collect::assumed::Inside;
use crate::collect::calls::{
    Abandoned, BATCH_PART, compare_traversals, guard_traversal, leave_serial, part, prefetch_each,
    tracer_of, traverse_batch, type_name,
};
use crate::collect::candidates::Candidates;
use crate::collect::count::Counts;
use crate::collect::roots::Roots;
use crate::collect::scope::object_at;
use crate::collect::search::Search;
use crate::heap::model::ObjectModel;
use crate::heap::parts::*;
use crate::heap::world::World;
use crate::memory::address_map::AddressMap;
use crate::memory::space::Space;
use crate::object::address::Object;
use crate::object::live::Stopped;
use crate::object::tracer::{LongSlice, Tracer};

/// The most attempts to read a field that counting could read and marking could not.
const RETRIES: usize = 100;

/// The number of roots in a piece of work.
const CHUNK: usize = 2048;

/// Marks the objects that `roots` reach, without the result of counting. Afterwards no immortal
/// object is marked, except skipped leaves, because counting handles the immortal ones.
pub(crate) fn mark_before_counting<M: ObjectModel>(
    search: &Search<'_, '_, M>,
    mut roots: Vec<u32>,
    inside: Option<&Inside<'_>>,
    leaves: Leaves,
) -> Result<Done, Abandoned> {
    let candidates = &search.candidates;
    if roots.is_empty() {
        return Ok(Done::default());
    }
    steps::took(roots.len());
    roots.retain(|&granule| candidates.mark_alone(granule as usize));
    if inside.is_some() {
        // An assumed root stays unmarked, so that each edge to it is met.
        roots.iter().for_each(|&granule| candidates.unmark(granule as usize));
    }
    let marking = Marking { search, counts: None, inside, leaves };
    let mut work = Vec::new();
    add_pieces(&mut work, &roots)?;
    let mut done = marking.run(work, search.workers)?;
    if M::OVERLAPPING_TRAVERSALS {
        // No count shows why these objects are alive, so they keep no lost mark.
        for &granule in roots.iter().chain(&done.uncounted) {
            candidates.mark_alone(granule as usize);
        }
    }
    for &granule in &done.immortal {
        candidates.unmark(granule as usize);
    }
    done.traversed -= done.immortal.len();
    Ok(done)
}

fn add_pieces(work: &mut Vec<Piece>, objects: &[u32]) -> Result<(), NoMemory> {
    for chunk in objects.chunks(CHUNK) {
        fallible::push(work, Piece::Objects(fallible::collect(chunk.iter().copied())?))?;
    }
    Ok(())
}

/// The phase `Mark`, which marks the objects that the roots reach, so that the candidates left
/// unmarked are unreachable.
pub(crate) fn mark<M: ObjectModel>(
    search: &Search<'_, '_, M>,
    counts: &mut Counts,
    roots: Roots,
) -> Result<(), Abandoned> {
    counts.unreadable.sort_unstable();
    let leaves = Leaves::Traverse;
    let marking = Marking { search, counts: Some(&*counts), inside: None, leaves };
    let mut work = Vec::new();
    for found in roots.found {
        add_pieces(&mut work, &found)?;
    }
    let mut unreadable = marking.run(work, search.workers)?.unreadable_now;
    for _ in 0..RETRIES {
        if unreadable.is_empty() {
            return Ok(());
        }
        // An unattached thread holds the lock of a field that counting could read, and may release
        // it.
        yield_now();
        unreadable = marking
            .run(fallible::collect([Piece::Objects(unreadable)].into_iter())?, 1)?
            .unreadable_now;
    }
    match unreadable.first() {
        None => Ok(()),
        Some(&granule) => {
            let object = object_at(&search.world.core().space, granule as usize);
            Err(Abandoned::locked(type_name(search.world, object)))
        }
    }
}

/// The data that the workers of one marking share.
struct Marking<'a, 'w, M: ObjectModel> {
    search: &'a Search<'a, 'w, M>,
    counts: Option<&'a Counts>,
    inside: Option<&'a Inside<'a>>,
    leaves: Leaves,
}

impl<M: ObjectModel> Marking<'_, '_, M> {
    /// Does `work`, and all work that comes from it.
    fn run(&self, work: Vec<Piece>, workers: usize) -> Result<Done, Abandoned> {
        let run = if workers > 1 { Self::run_with::<true> } else { Self::run_with::<false> };
        let mut done = run(self, work, Vec::new(), workers)?;
        while SerialOf::<M>::PRESENT && !done.serial.is_empty() {
            let serial = std::mem::take(&mut done.serial);
            done.add(run(self, Vec::new(), serial, workers)?)?;
        }
        Ok(done)
    }

    /// Does `work`, after the first worker has traversed the marked objects `serial`. The result
    /// may have more such objects.
    fn run_with<const SHARED: bool>(
        &self,
        work: Vec<Piece>,
        serial: Vec<u32>,
        workers: usize,
    ) -> Result<Done, Abandoned> {
        let Self { search: &Search { world, ref candidates, .. }, counts, inside, leaves } = *self;
        let pool = Pool::new();
        for piece in work {
            pool.give(piece).map_err(|_| NoMemory)?;
        }
        let failed = Mutex::new(None);
        let all = Mutex::new(Done::default());
        let serial = Mutex::new(serial);
        world.share(workers, &|worker| {
            pool.joined.fetch_add(1, Ordering::Relaxed);
            let result = guard_traversal(world, &mut tracer_of(world), |tracer| {
                let mut marker = Marker::<M, SHARED>::new(
                    world,
                    candidates,
                    worker.index,
                    counts,
                    inside,
                    leaves,
                    tracer,
                );
                if SerialOf::<M>::PRESENT && worker.index == 0 {
                    let serial = std::mem::take(&mut *serial.lock());
                    marker.run_serial(serial, &pool)?;
                }
                while let Some(piece) = pool.take() {
                    steps::took(1);
                    marker.run(piece, &pool)?;
                }
                all.lock().add(marker.finish())
            });
            if let Err(abandoned) = result.and_then(|marked| Ok(marked?)) {
                // Relaxed: a hint to finish. The lock protects the reason.
                pool.failed.store(true, Ordering::Relaxed);
                failed.lock().get_or_insert(abandoned);
            }
        });
        match failed.lock().take() {
            Some(abandoned) => Err(abandoned),
            None => Ok(std::mem::take(&mut *all.lock())),
        }
    }
}

/// The most objects that a single worker traverses before it follows the objects that it has
/// marked meanwhile.
const LIST_MAX: usize = 4096;

/// The same for one of several workers, which is lower because it gives objects away in between.
const SHARED_LIST_MAX: usize = 1024;

/// The fewest objects that are given away, because each gift takes a lock.
const GIVEN_MIN: usize = 64;

/// The number of objects between the prefetch of an object and its traversal.
const PREFETCH_DISTANCE: usize = 4 * BATCH_PART;

/// The number of objects between the prefetch of an object's contents outside the heap and its
/// traversal.
const CONTENTS_DISTANCE: usize = 2 * BATCH_PART;

/// A slice of fewer slots is read at once, so it is not *long*.
const LONG: usize = 4 * EDGES_MAX;

/// The most edges that are handled together, because the list of their targets takes memory.
const EDGES_MAX: usize = 4096;

/// How marking treats *leaves*, which are targets that refer to no tracked object, as the traversal
/// of the source says ([`Tracer::visit_leaf`]).
///
/// [`Tracer::visit_leaf`]: crate::Tracer::visit_leaf
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Leaves {
    /// A leaf is marked and not traversed. Counting must follow, for if the leaf does refer to
    /// candidates, counting does not find these references, so that the candidates are roots.
    Skip,
    /// A leaf is treated as other objects are.
    Traverse,
}

pub(crate) struct Marker<'a, M: ObjectModel, const SHARED: bool> {
    world: &'a World<'a, M>,
    space: &'a Space<M::Addresses>,
    model: &'a M,
    candidates: &'a Candidates,
    /// Whether each candidate must be marked by one worker.
    exactly: bool,
    /// Whether marks may be lost, because other workers mark too, and not exactly.
    loses_marks: bool,
    /// The result of counting, if counting is over.
    counts: Option<&'a Counts>,
    tracer: &'a mut Tracer,
    /// Where edges to assumed roots are counted, if there are assumed roots.
    inside: Option<&'a Inside<'a>>,
    list: Vec<Object>,
    /// Whether this is the thread that has stopped the world.
    is_first: bool,
    /// Memory for the objects that are traversed next, and for the edges that are followed.
    taken: Vec<Object>,
    met: Vec<usize>,
    /// An entry for each edge to an assumed root that is not counted yet.
    to_assumed: Vec<u32>,
    prefetches: bool,
    /// Whether the collector compares the traversals of some objects.
    verifies: bool,
    stress: Stress,
    strain: &'a MaybeStrain,
    done: Done,
}

#[derive(Debug, Default)]
pub(crate) struct Done {
    pub(super) traversed: usize,
    /// Objects with a field that counting could read and marking could not. Before counting, all
    /// objects with an unreadable field.
    pub(super) unreadable_now: Vec<u32>,
    /// In `Phase::Premark`: immortal objects. Later phases use [`Counts::immortal`] instead.
    pub(super) immortal: Vec<u32>,
    /// Marked objects that the first worker has to traverse.
    pub(super) serial: Vec<u32>,
    /// The targets of uncounted edges, which are marked again after plain marks.
    pub(super) uncounted: Vec<u32>,
}

impl Done {
    pub(super) fn add(&mut self, mut other: Self) -> Result<(), NoMemory> {
        self.traversed += other.traversed;
        fallible::append(&mut self.unreadable_now, &mut other.unreadable_now)?;
        fallible::append(&mut self.serial, &mut other.serial)?;
        fallible::append(&mut self.uncounted, &mut other.uncounted)?;
        fallible::append(&mut self.immortal, &mut other.immortal)
    }

    /// Records an object with an unreadable field. If counting could read the field, marking has to
    /// traverse the object again, because it would miss counted references. If counting could not
    /// read it either, no record is needed, because the targets are roots.
    #[cold]
    fn add_unreadable(&mut self, granule: u32, counts: Option<&Counts>) -> Result<(), NoMemory> {
        if counts.is_none_or(|counts| counts.unreadable.binary_search(&granule).is_err()) {
            fallible::push(&mut self.unreadable_now, granule)?;
        }
        Ok(())
    }
}

impl<'a, M: ObjectModel, const SHARED: bool> Marker<'a, M, SHARED> {
    pub(super) fn new(
        world: &'a World<'_, M>,
        candidates: &'a Candidates,
        worker: usize,
        counts: Option<&'a Counts>,
        inside: Option<&'a Inside<'a>>,
        leaves: Leaves,
        tracer: &'a mut Tracer,
    ) -> Self {
        let core = world.core();
        let verifies = ChecksOf::<M>::verifies_traversals(&core.model);
        // Edges that are compared must all be in the tracer, so they are read at once.
        if !verifies {
            tracer.long = core.stress.shrink(LONG);
        }
        // Plain marks come before counting, because an object that lost its mark is then counted.
        // With assumed roots there are none, because an object that is traversed twice might count
        // an edge twice.
        let plainly = M::OVERLAPPING_TRAVERSALS && counts.is_none() && inside.is_none();
        tracer.skips_leaves = leaves == Leaves::Skip && !verifies;
        Self {
            world,
            space: &core.space,
            model: &core.model,
            candidates,
            exactly: SHARED && !plainly,
            loses_marks: SHARED && plainly,
            counts,
            tracer,
            inside,
            list: candidates.take_list(),
            is_first: worker == 0,
            taken: Vec::new(),
            met: Vec::new(),
            to_assumed: Vec::new(),
            prefetches: BatchesOf::<M>::prefetches(&core.model),
            verifies,
            stress: core.stress,
            strain: &core.under,
            done: Done::default(),
        }
    }

    pub(super) fn finish(self) -> Done {
        self.candidates.keep_list(self.list);
        self.done
    }

    /// Does a piece of work and all work that comes from it, and gives some away while another
    /// worker is idle.
    pub(super) fn run(&mut self, work: Piece, pool: &Pool) -> Result<(), NoMemory> {
        match work {
            Piece::Objects(granules) => {
                self.list.try_reserve(granules.len())?;
                let objects = granules.iter().map(|&at| object_at(self.space, at as usize));
                self.list.extend(objects);
                self.maybe_lose_marks(0);
            }
            Piece::LongSlice(slots) => self.tracer.add_slots(slots)?,
        }
        self.follow(pool)
    }

    /// Traverses marked objects on this thread, and does all work that comes from it.
    pub(super) fn run_serial(&mut self, granules: Vec<u32>, pool: &Pool) -> Result<(), NoMemory> {
        let (space, objects) = (self.space, granules.iter());
        let objects = objects.map(|&granule| object_at(space, granule as usize));
        self.traverse_objects(&fallible::collect(objects)?, pool)?;
        self.follow(pool)
    }

    fn follow(&mut self, pool: &Pool) -> Result<(), NoMemory> {
        loop {
            self.read_slices(pool)?;
            if self.list.is_empty() {
                return Ok(());
            }
            self.traverse_list(pool)?;
            // Relaxed: a hint.
            if SHARED && pool.failed.load(Ordering::Relaxed) {
                return Ok(());
            }
            if SHARED && pool.wants_work() {
                self.give_work(pool)?;
            }
        }
    }

    /// Gives half of a long slice away, or else half of the targets that wait.
    #[cold]
    fn give_work(&mut self, pool: &Pool) -> Result<(), NoMemory> {
        let Some(slots) = self.tracer.half_of_noted(self.stress.shrink(EDGES_MAX)) else {
            self.give_targets(pool);
            return Ok(());
        };
        match pool.give(Piece::LongSlice(slots)) {
            // Without memory for the piece, this worker keeps the slots.
            Err(Piece::LongSlice(slots)) => self.tracer.add_slots(slots),
            _ => Ok(()),
        }
    }

    /// Gives the older half of the list away, because the newer objects are more likely in this
    /// worker's caches.
    #[cold]
    fn give_targets(&mut self, pool: &Pool) {
        let give = self.list.len() / 2;
        let granules = self.list[..give].iter().map(|&object| granule(self.space, object));
        // Without memory for the piece, this worker keeps the work.
        if give >= self.stress.shrink(GIVEN_MIN)
            && let Ok(piece) = fallible::collect(granules)
            && pool.give(Piece::Objects(piece)).is_ok()
        {
            steps::took(give);
            self.list.drain(..give);
        }
    }

    /// Reads the long slices that were noted, in pieces.
    ///
    /// They are all read before the worker traverses a target, so that it traverses the targets in
    /// the order of the slice. Otherwise it would follow the edges of the first ones through all
    /// the heap.
    fn read_slices(&mut self, pool: &Pool) -> Result<(), NoMemory> {
        // Relaxed: a hint.
        while !(SHARED && pool.failed.load(Ordering::Relaxed))
            && self.tracer.visit_noted(self.stress.shrink(EDGES_MAX))?
        {
            self.meet_edges(pool)?;
            if SHARED && pool.wants_work() {
                self.give_work(pool)?;
            }
        }
        Ok(())
    }

    /// Traverses the last objects of the list. The objects that are marked meanwhile join it behind
    /// those that were not taken.
    fn traverse_list(&mut self, pool: &Pool) -> Result<(), NoMemory> {
        let most = self.stress.shrink(if SHARED { SHARED_LIST_MAX } else { LIST_MAX });
        let mut taken = std::mem::take(&mut self.taken);
        let rest = self.list.len().saturating_sub(most);
        taken.try_reserve(self.list.len() - rest)?;
        taken.extend(self.list.drain(rest..));
        self.traverse_objects(&taken, pool)?;
        taken.clear();
        self.taken = taken;
        Ok(())
    }

    fn traverse_objects(&mut self, objects: &[Object], pool: &Pool) -> Result<(), NoMemory> {
        let model = self.model;
        // Whether this worker leaves some of these objects to the first one.
        let skips_serial = SerialOf::<M>::PRESENT && !self.is_first;
        let skips_any = |few: &[Stopped<'_>]| {
            skips_serial && few.iter().any(|&o| SerialOf::<M>::serial(model, o))
        };
        let mut rest = Vec::new();
        self.done.traversed += objects.len();
        let prefetch_part =
            |first| part(objects, first).iter().for_each(|object| object.prefetch());
        (0..PREFETCH_DISTANCE).step_by(BATCH_PART).for_each(prefetch_part);
        for first in (0..objects.len()).step_by(BATCH_PART) {
            prefetch_part(first + PREFETCH_DISTANCE);
            let ahead = stopped(part(objects, first + CONTENTS_DISTANCE));
            if self.prefetches && !skips_any(ahead) {
                prefetch_each(model, ahead, self.tracer);
            }
            let mut few = stopped(part(objects, first));
            if skips_any(few) {
                let space = self.space;
                leave_serial(model, few, &mut self.done.serial, &mut rest, |object| {
                    granule(space, object)
                })?;
                self.done.traversed -= few.len() - rest.len();
                few = &rest;
            }
            self.traverse(few)?;
            self.mark_leaves()?;
            self.meet_edges(pool)?;
            // Relaxed: a hint.
            if SHARED && pool.failed.load(Ordering::Relaxed) {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Traverses objects, so that their edges are in the tracer afterwards.
    #[inline(always)]
    fn traverse(&mut self, objects: &[Stopped<'_>]) -> Result<(), NoMemory> {
        steps::took(objects.len());
        self.tracer.clear();
        if UncountedOf::<M>::PRESENT {
            self.tracer.forget_uncounted();
        }
        let mut ends = [0; BATCH_PART];
        let unreadable_before = self.done.unreadable_now.len();
        let (space, counts, done) = (self.space, self.counts, &mut self.done);
        let unreadable =
            |at: usize| done.add_unreadable(granule(space, objects[at].object()), counts);
        traverse_batch(self.model, objects, self.tracer, &mut ends, unreadable)?;
        // After counting neither is needed, because counting has done both.
        if self.counts.is_none() {
            if self.verifies {
                let unreadable = &self.done.unreadable_now[unreadable_before..];
                compare_traversals(self.world, objects, &ends, self.tracer, |object| {
                    unreadable.contains(&granule(space, object))
                })?;
            }
            let is_immortal = |&object: &Stopped<'_>| self.model.is_immortal(object);
            // One branch for all objects, because immortal objects are rare.
            if objects.iter().fold(false, |any, object| any | is_immortal(object)) {
                for &object in objects.iter().filter(|object| is_immortal(object)) {
                    fallible::push(&mut self.done.immortal, granule(space, object.object()))?;
                }
            }
        }
        if UncountedOf::<M>::PRESENT { self.add_uncounted() } else { Ok(()) }
    }

    /// Adds the uncounted references to the edges, except those to assumed roots, because these are
    /// marked in any case, and an edge to them would be counted.
    fn add_uncounted(&mut self) -> Result<(), NoMemory> {
        let (space, candidates, assumes) = (self.space, self.candidates, self.inside.is_some());
        if self.loses_marks {
            for target in self.tracer.all_uncounted() {
                fallible::push(&mut self.done.uncounted, space.granule(target) as u32)?;
            }
        }
        let is_assumed = |target| assumes && candidates.is_assumed(space.granule(target));
        self.tracer.add_uncounted(|target| !is_assumed(target))
    }

    /// Marks the targets of all edges in the tracer, and counts the edges to assumed roots.
    #[inline(always)]
    fn meet_edges(&mut self, pool: &Pool) -> Result<(), NoMemory> {
        let mut from = 0;
        loop {
            if from == self.tracer.edges().len() {
                return Ok(());
            }
            if SHARED && from > 0 && pool.wants_work() {
                self.give_targets(pool);
            }
            let edges = &self.tracer.edges()[from..];
            let edges = &edges[..edges.len().min(EDGES_MAX)];
            from += edges.len();
            steps::took(edges.len());
            let (origin, first) = (self.space.origin(), self.list.len());
            let to_assumed = self.inside.map(|_| &mut self.to_assumed);
            let (met, list) = (&mut self.met, &mut self.list);
            self.candidates.mark_all(self.exactly, edges, origin, to_assumed, met, list)?;
            if let Some(inside) = self.inside {
                inside.count(&mut self.to_assumed)?;
            }
            self.maybe_lose_marks(first);
        }
    }

    /// Marks the leaves that the tracer has kept apart. They count as traversed, because they need
    /// no counting any more.
    #[inline(always)]
    fn mark_leaves(&mut self) -> Result<(), NoMemory> {
        let leaves = self.tracer.leaves();
        if leaves.is_empty() {
            return Ok(());
        }
        steps::took(leaves.len());
        let first = self.list.len();
        let (origin, met, list) = (self.space.origin(), &mut self.met, &mut self.list);
        self.candidates.mark_all(self.exactly, leaves, origin, None, met, list)?;
        self.maybe_lose_marks(first);
        self.done.traversed += self.list.len() - first;
        self.list.truncate(first);
        self.tracer.clear_leaves();
        Ok(())
    }

    /// In a stress mode, and with plain marks: loses some marks of the objects in the list, from
    /// index `first` on, so that tests meet lost marks.
    #[inline(always)]
    fn maybe_lose_marks(&self, first: usize) {
        if self.loses_marks
            && let Some(strain) = self.strain
        {
            let lost = self.list[first..].iter().filter(|_| strain.loses_mark());
            lost.for_each(|&object| self.candidates.unmark(granule(self.space, object) as usize));
        }
    }
}

#[inline(always)]
fn stopped<'a>(objects: &[Object]) -> &[Stopped<'a>] {
    // SAFETY: rule *stopped*: workers mark candidates. A candidate is alive, and the world is
    // stopped.
    unsafe { Stopped::slice(objects) }
}

#[inline(always)]
pub(crate) fn granule(space: &Space<impl AddressMap>, object: Object) -> u32 {
    space.granule(object.address()) as u32
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Piece {
    /// The granules of marked objects, which are to be traversed.
    Objects(Vec<u32>),
    /// A part of a long slice of an object that was traversed.
    LongSlice(LongSlice),
}

/// The work that the workers share.
pub(crate) struct Pool {
    pub(super) work: Mutex<Vec<Piece>>,
    /// The number of pieces of work, as a hint for workers that poll.
    pub(super) waiting: CachePadded<AtomicUsize>,
    pub(crate) joined: CachePadded<AtomicUsize>,
    /// The number of joined workers without work.
    pub(super) idle: CachePadded<AtomicUsize>,
    pub(super) failed: AtomicBool,
}

impl Pool {
    pub(crate) fn new() -> Self {
        Self {
            work: Mutex::new(Vec::new()),
            waiting: CachePadded::new(AtomicUsize::new(0)),
            joined: CachePadded::new(AtomicUsize::new(0)),
            idle: CachePadded::new(AtomicUsize::new(0)),
            failed: AtomicBool::new(false),
        }
    }

    /// Adds a piece of work, or returns it if there is no memory for its place.
    pub(crate) fn give(&self, piece: Piece) -> Result<(), Piece> {
        let mut work = self.work.lock();
        if work.try_reserve(1).is_err() {
            return Err(piece);
        }
        work.push(piece);
        // Relaxed, under the lock: a hint.
        self.waiting.store(work.len(), Ordering::Relaxed);
        Ok(())
    }

    /// Takes a piece of work, if there is one.
    pub(super) fn steal(&self) -> Option<Piece> {
        // Relaxed: a worker that misses a piece polls again, or the worker that added the piece
        // processes it.
        if self.waiting.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let mut work = self.work.lock();
        let piece = work.pop();
        self.waiting.store(work.len(), Ordering::Relaxed);
        piece
    }

    /// Waits for work. Returns `None` when no worker has any, so that marking is over.
    pub(crate) fn take(&self) -> Option<Piece> {
        // Relaxed counters: they only limit the polling. A piece is in the pool, or a worker that
        // is not idle has it. If a worker leaves early, other workers do the remaining work.
        self.idle.fetch_add(1, Ordering::Relaxed);
        let mut spins = 0u32;
        loop {
            if let Some(piece) = self.steal() {
                self.idle.fetch_sub(1, Ordering::Relaxed);
                return Some(piece);
            }
            if self.idle.load(Ordering::Relaxed) >= self.joined.load(Ordering::Relaxed)
                || self.failed.load(Ordering::Relaxed)
            {
                return None;
            }
            spins += 1;
            if spins.is_multiple_of(64) { yield_now() } else { spin_loop() }
        }
    }

    /// Whether another worker waits for work that is not in the pool.
    #[inline(always)]
    pub(super) fn wants_work(&self) -> bool {
        // Relaxed, both: hints.
        let idle = self.idle.load(Ordering::Relaxed);
        idle > 0 && self.waiting.load(Ordering::Relaxed) < idle
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
