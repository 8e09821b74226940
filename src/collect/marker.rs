//! The marking of one worker.
//!
//! A worker has a list of objects that it has marked, and a queue of pages:
//!
//! 1. It takes pages from the queue until the list is long enough, and marks the candidates of
//!    these pages that a worker has seen. The list has them in the order of memory.
//! 2. It traverses the objects of the list, a batch at a time. An object is prefetched a few
//!    batches before its traversal. One loop handles the edges of a batch, so that no branch
//!    depends on the number of edges of an object, which is unpredictable. If another worker is
//!    idle, an object with many edges does not delay it: this worker gives pages away in between.
//! 3. It queues the pages of the objects that it has seen for the first time.
//!
//! Before it takes pages, it reads the [long slices](crate::object::long_slice) of the objects that
//! it has traversed.
//!
//! While the queue is empty and the worker sees few objects, it marks them at once, without their
//! pages: so it follows a linked list, and the first levels of a tree.
//!
//! A single worker always marks a target when it meets an edge to it, unless the heap is much
//! larger than the caches, or edges to assumed roots are counted: to find the seen objects of a
//! page takes more time than the order of memory saves there. It takes the end of a long list
//! first. So it finishes a part of the heap, which is in the caches, before it begins the next one.
//!
//! With [plain marks](super::candidates#plain-marks) each of several workers marks a target at
//! once, too, under the same conditions. It gives half of its list to an idle worker.
//!
//! If some objects are traversed on one thread alone ([`ObjectModel::serial`]), the other workers
//! mark such an object and leave it in their results. When marking is over, it begins again with
//! these objects as the first worker's list. Marking ends, so the last round comes.
//!
//! [Candidates](super::candidates) has the tables, and the reason why no object is lost.

use std::collections::VecDeque;

use crate::base::fallible::{self, NoMemory};
use crate::base::steps;
use crate::base::stress::{MaybeStrain, Stress};
use crate::base::sync::Ordering;
use crate::collect::assumed::Inside;
use crate::collect::candidates::{Candidates, WorkerMarks};
use crate::collect::count::Counts;
use crate::collect::pool::{Piece, Pool, give_half};
use crate::collect::scope::{object_at, objects_of};
use crate::collect::table::{Delay, is_far};
use crate::collect::traversal::{BATCH_PART, prefetch_each, traverse_batch};
use crate::heap::mark_tables::{BitWords, PAGE_WORDS, WORD};
use crate::heap::model::ObjectModel;
use crate::heap::mutator::World;
use crate::memory::address_map::Index;
use crate::memory::reserved::AddressMap;
use crate::memory::space::{PAGE_GRANULES, Space};
use crate::object::live::Stopped;
use crate::object::type_info::{Object, Tracer};

/// With fewer objects in its list, a worker takes another page. The first objects of a list are
/// prefetched too late, so lists are long.
const LIST_MIN: usize = 1024;

/// The most objects that a single worker traverses before it follows the objects that it has
/// marked meanwhile.
const LIST_MAX: usize = 4096;

/// The same for one of several workers, which gives objects away in between.
const SHARED_LIST_MAX: usize = 1024;

/// The fewest objects that are given away.
const GIVEN_MIN: usize = 64;

/// The most objects that a worker follows without queueing their pages, if it is not alone or the
/// tables are far.
const DIRECT_MAX: usize = 64;

/// The number of objects between the prefetch of an object and its traversal.
const PREFETCH_DISTANCE: usize = 4 * BATCH_PART;

/// The number of objects between the prefetch of an object's contents outside the heap and its
/// traversal.
const CONTENTS_DISTANCE: usize = 2 * BATCH_PART;

/// A slice of fewer slots is read at once.
const LONG: usize = 4 * EDGES_MAX;

/// The most edges that are looked at together. The list of their targets takes memory.
const EDGES_MAX: usize = 4096;

/// How marking treats the targets that traversals name as leaves ([`Tracer::visit_leaf`]).
///
/// [`Tracer::visit_leaf`]: crate::Tracer::visit_leaf
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Leaves {
    /// A leaf is marked and not traversed, where a worker marks each target at once. Counting must
    /// follow: if the leaf does refer to candidates, counting does not find these references, so
    /// the candidates are roots.
    Skip,
    /// As other objects.
    Traverse,
}

/// One worker's part of marking.
pub(crate) struct Marker<'a, M: ObjectModel, const SHARED: bool> {
    space: &'a Space<M::Addresses>,
    model: &'a M,
    marks: WorkerMarks<'a>,
    /// The result of counting, if counting is complete.
    counts: Option<&'a Counts>,
    tracer: &'a mut Tracer,
    /// Where edges to assumed roots are counted, if there are assumed roots.
    inside: Option<&'a Inside<'a>>,
    /// Marked objects, which are not traversed yet.
    list: Vec<Object>,
    /// Whether this is the thread that has stopped the world.
    is_first: bool,
    /// Empty. Its memory is that of the next list.
    spare: Vec<Object>,
    pages: VecDeque<u32>,
    /// Targets that were unseen when the worker met an edge to them.
    seen: Vec<u32>,
    /// An entry for each edge to an assumed root that is not counted yet.
    to_assumed: Vec<u32>,
    /// Whether the model prefetches the contents of objects.
    prefetches: bool,
    /// Whether the collector compares the traversals of some objects.
    verifies: bool,
    stress: Stress,
    strain: &'a MaybeStrain,
    /// Whether the tables are so large that their words are prefetched.
    far: bool,
    /// Whether this worker marks each target when it meets an edge to it. It queues no pages then.
    marks_at_once: bool,
    delay: Delay,
    pub(super) done: Done,
}

/// The results of a worker.
#[derive(Debug, Default)]
pub(crate) struct Done {
    /// The number of traversals.
    pub(super) traversed: usize,
    /// Objects with a field that counting could read and marking could not; before counting, all
    /// objects with an unreadable field.
    pub(super) unreadable_now: Vec<u32>,
    /// In `Phase::Premark`: immortal objects. Later phases use [`Counts::immortal`].
    pub(super) immortal: Vec<u32>,
    /// In `Phase::Premark`: an object was traversed whose traversals the collector compares.
    pub(super) must_compare: bool,
    /// Marked objects that the first worker has to traverse.
    pub(super) serial: Vec<u32>,
    /// With plain marks: the targets of uncounted edges.
    pub(super) uncounted: Vec<u32>,
}

impl Done {
    /// Adds the results of another worker.
    pub(super) fn add(&mut self, mut other: Self) -> Result<(), NoMemory> {
        self.traversed += other.traversed;
        self.must_compare |= other.must_compare;
        fallible::append(&mut self.unreadable_now, &mut other.unreadable_now)?;
        fallible::append(&mut self.serial, &mut other.serial)?;
        fallible::append(&mut self.uncounted, &mut other.uncounted)?;
        fallible::append(&mut self.immortal, &mut other.immortal)
    }

    /// Records an object with an unreadable field. If counting could read the field, marking would
    /// miss counted references, and traverses the object again later. If counting could not read
    /// it either, the targets are roots, and no record is needed.
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
        let far = is_far(world, core.space.counts().len());
        // Edges that are compared are read at once.
        let compares = counts.is_some_and(|counts| !counts.kept.is_empty());
        if M::STABLE_DURING_STOP && !compares {
            tracer.long = core.stress.shrink(LONG);
        }
        let marks_at_once = !far && inside.is_none() && (!SHARED || plain_marks::<M>(counts));
        let verifies = core.model.verifies_traversals();
        tracer.skips_leaves = leaves == Leaves::Skip && marks_at_once && !verifies;
        Self {
            space: &core.space,
            model: &core.model,
            marks: candidates.worker(worker),
            counts,
            tracer,
            inside,
            list: Vec::new(),
            is_first: worker == 0,
            spare: Vec::new(),
            pages: VecDeque::new(),
            seen: Vec::new(),
            to_assumed: Vec::new(),
            prefetches: core.model.prefetches(),
            verifies,
            stress: core.stress,
            strain: &core.under,
            far,
            marks_at_once,
            delay: Delay::default(),
            done: Done::default(),
        }
    }

    /// Does a piece of work, and all work that comes from it. Gives work away while another worker
    /// is idle.
    pub(super) fn run(&mut self, work: Piece, pool: &Pool) -> Result<(), NoMemory> {
        match work {
            Piece::Objects(granules) => {
                let (space, objects) = (self.space, granules.iter());
                let objects = objects.map(|&granule| object_at(space, granule as usize));
                self.list = fallible::collect(objects)?;
                self.maybe_lose_marks(0);
            }
            Piece::Pages(pages) => {
                self.pages.try_reserve(pages.len())?;
                self.pages.extend(pages);
            }
            Piece::LongSlice(slots) => self.tracer.add_slots(slots)?,
        }
        self.follow(pool)
    }

    /// Traverses marked objects on this thread, and does all work that comes from it.
    pub(super) fn run_serial(&mut self, granules: Vec<u32>, pool: &Pool) -> Result<(), NoMemory> {
        let (space, objects) = (self.space, granules.iter());
        let objects = objects.map(|&granule| object_at(space, granule as usize));
        self.traverse_objects(fallible::collect(objects)?, pool)?;
        self.follow(pool)
    }

    /// Does the work that this worker has.
    fn follow(&mut self, pool: &Pool) -> Result<(), NoMemory> {
        loop {
            self.read_slices(pool)?;
            self.fill()?;
            if self.list.is_empty() {
                self.meet_delayed()?;
                if self.list.is_empty() && self.pages.is_empty() {
                    return Ok(());
                }
                continue;
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

    /// Gives half of a long slice away, or half of the targets that wait.
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

    /// Gives the older half of the queued pages away, or of the list. The newer objects are more
    /// likely in this worker's caches.
    #[cold]
    fn give_targets(&mut self, pool: &Pool) {
        if !self.marks_at_once {
            return give_half(&mut self.pages, pool);
        }
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
    /// All of them before the worker traverses a target: so it traverses the targets in the order
    /// of the slice, or of their pages. Otherwise it would follow the edges of the first ones
    /// through all the heap.
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

    /// Takes pages from the queue until the list is long enough.
    fn fill(&mut self) -> Result<(), NoMemory> {
        while self.list.len() < self.stress.shrink(LIST_MIN)
            && let Some(page) = self.pages.pop_front()
        {
            steps::took(1);
            self.list.try_reserve(PAGE_GRANULES)?;
            let (origin, list) = (self.space.origin(), &mut self.list);
            self.marks.mark_page::<SHARED>(page, |first, bits| {
                list.extend(objects_of(origin, (first, bits)));
            });
        }
        Ok(())
    }

    /// Removes the objects from the list that are traversed next: all, or the last ones if this
    /// worker marks at once.
    fn take_list(&mut self) -> Result<Vec<Object>, NoMemory> {
        let mut taken = std::mem::take(&mut self.spare);
        let most = self.stress.shrink(if SHARED { SHARED_LIST_MAX } else { LIST_MAX });
        if !self.marks_at_once || self.list.len() <= most {
            std::mem::swap(&mut taken, &mut self.list);
        } else {
            taken.try_reserve(most)?;
            taken.extend(self.list.drain(self.list.len() - most..));
        }
        Ok(taken)
    }

    /// Traverses objects of the list. Afterwards the list has the objects that were marked
    /// meanwhile, behind those that were not taken.
    fn traverse_list(&mut self, pool: &Pool) -> Result<(), NoMemory> {
        let objects = self.take_list()?;
        self.traverse_objects(objects, pool)
    }

    /// Traverses objects that are in no list.
    fn traverse_objects(&mut self, mut objects: Vec<Object>, pool: &Pool) -> Result<(), NoMemory> {
        let model = self.model;
        // Whether this worker leaves some of these objects to the first one.
        let leaves = M::HAS_SERIAL && !self.is_first;
        let leaves_any =
            |few: &[Object]| leaves && candidates(few).iter().any(|&o| model.serial(o));
        let mut rest = Vec::new();
        self.done.traversed += objects.len();
        let prefetch_part =
            |first| part(&objects, first).iter().for_each(|object| object.prefetch());
        (0..PREFETCH_DISTANCE).step_by(BATCH_PART).for_each(prefetch_part);
        for first in (0..objects.len()).step_by(BATCH_PART) {
            prefetch_part(first + PREFETCH_DISTANCE);
            let ahead = part(&objects, first + CONTENTS_DISTANCE);
            if self.prefetches && !leaves_any(ahead) {
                prefetch_each(model, candidates(ahead), self.tracer);
            }
            let mut few = part(&objects, first);
            if leaves_any(few) {
                self.leave_serial(few, &mut rest)?;
                few = &rest;
            }
            self.traverse(candidates(few))?;
            self.mark_leaves()?;
            self.meet_edges(pool)?;
            // Relaxed: a hint.
            if SHARED && pool.failed.load(Ordering::Relaxed) {
                return Ok(());
            }
        }
        objects.clear();
        self.spare = objects;
        Ok(())
    }

    /// Adds the objects that only the first worker traverses to the results, and the others to
    /// `rest`. The objects are marked.
    #[cold]
    fn leave_serial(&mut self, few: &[Object], rest: &mut Vec<Object>) -> Result<(), NoMemory> {
        rest.clear();
        rest.try_reserve(few.len())?;
        for &object in few {
            if self.model.serial(candidates(&[object])[0]) {
                fallible::push(&mut self.done.serial, granule(self.space, object))?;
                self.done.traversed -= 1;
            } else {
                rest.push(object);
            }
        }
        Ok(())
    }

    /// Traverses objects. Their edges are in the tracer afterwards.
    #[inline(always)]
    fn traverse(&mut self, objects: &[Stopped<'_>]) -> Result<(), NoMemory> {
        steps::took(objects.len());
        self.tracer.clear();
        if M::UNCOUNTED_EDGES {
            self.tracer.forget_uncounted();
        }
        if !M::STABLE_DURING_STOP
            && let Some(counts) = self.counts
        {
            objects.iter().for_each(|object| self.recall(object.object(), counts));
            return self.tracer.lost_nothing();
        }
        let mut ends = [0; BATCH_PART];
        let unreadable_before = self.done.unreadable_now.len();
        let (space, counts, done) = (self.space, self.counts, &mut self.done);
        let unreadable =
            |at: usize| done.add_unreadable(granule(space, objects[at].object()), counts);
        traverse_batch(self.model, objects, self.tracer, &mut ends, unreadable)?;
        match self.counts {
            None => {
                if self.verifies {
                    let compares = |&object: &Stopped<'_>| self.model.verifies_traversal(object);
                    self.done.must_compare |= objects.iter().any(compares);
                }
                let is_immortal = |&object: &Stopped<'_>| self.model.is_immortal(object);
                // One branch for all objects, because immortal objects are rare.
                if objects.iter().fold(false, |any, object| any | is_immortal(object)) {
                    for &object in objects.iter().filter(|object| is_immortal(object)) {
                        let granule = granule(space, object.object());
                        fallible::push(&mut self.done.immortal, granule)?;
                    }
                }
            }
            Some(counts) if !counts.kept.is_empty() => {
                self.compare(objects, &ends, counts, unreadable_before)
            }
            Some(_) => {}
        }
        if M::UNCOUNTED_EDGES { self.add_uncounted() } else { Ok(()) }
    }

    /// Adds the uncounted references to the edges. Not those to assumed roots, which are marked:
    /// the edges to assumed roots are counted.
    fn add_uncounted(&mut self) -> Result<(), NoMemory> {
        let (space, marks, assumes) = (self.space, &self.marks, self.inside.is_some());
        if SHARED && self.marks_at_once {
            for target in self.tracer.all_uncounted() {
                fallible::push(&mut self.done.uncounted, space.granule(target) as u32)?;
            }
        }
        let is_assumed = |target| assumes && marks.is_assumed(space.granule(target));
        self.tracer.add_uncounted(|target| !is_assumed(target))
    }

    /// Compares the edges of objects with the edges that counting has kept. Panics if they differ.
    /// The objects that were unreadable in this traversal are in the list `unreadable_now`, from
    /// index `unreadable_before` on.
    #[cold]
    fn compare(
        &mut self,
        objects: &[Stopped<'_>],
        ends: &[u32],
        counts: &Counts,
        unreadable_before: usize,
    ) {
        let mut start = 0;
        for (&object, &end) in objects.iter().zip(ends) {
            let edges = &self.tracer.edges()[start..end as usize];
            start = end as usize;
            let granule = granule(self.space, object.object());
            let Some(kept) = counts.kept.get(&granule) else { continue };
            // An unreadable object has no edges, which is no fault of its handler.
            let unreadable_now = &self.done.unreadable_now[unreadable_before..];
            steps::took(1 + edges.len() + unreadable_now.len());
            if counts.unreadable.binary_search(&granule).is_ok()
                || unreadable_now.contains(&granule)
            {
                continue;
            }
            let edges = edges.iter().copied().chain(self.tracer.uncounted_of(object.object()));
            if !edges.map(|edge| self.space.granule(edge) as u32).eq(kept.iter().copied()) {
                let name = self.model.type_name(object.live());
                let why = format!(
                    "the traverse handler of '{name}' visited other references the second time"
                );
                // Attributes the fault to this object, not to the last traversed object.
                self.tracer.go_on(object.object());
                // `guard_traversal` catches the panic. The panic hook must not print a message.
                std::panic::resume_unwind(Box::new(why));
            }
        }
    }

    /// Adds the kept edges of an object to the tracer, without a traversal.
    fn recall(&mut self, object: Object, counts: &Counts) {
        let kept = counts.kept.get(&granule(self.space, object));
        for &edge in kept.map_or(&[][..], |edges| edges) {
            self.tracer.edge(self.space.address(edge as usize));
        }
    }

    /// Looks at the targets of all edges in the tracer. If the tables are far, their words are
    /// prefetched first, and the targets wait in a ring.
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
            let (origin, marks, delay) = (self.space.origin(), self.marks, &mut self.delay);
            if self.marks_at_once {
                let first = self.list.len();
                marks.mark_all::<SHARED>(edges, origin, &mut self.list)?;
                self.maybe_lose_marks(first);
                continue;
            }
            let targets = edges.iter().map(|&edge| origin.granule(edge));
            if self.far {
                fallible::extend_kept(&mut self.seen, targets, |target| {
                    match delay.swap(target, marks.entry(target)) {
                        Some(target) => (target as u32, marks.is_unseen(target).into()),
                        None => (0, 0),
                    }
                })?;
            } else {
                add_unseen(&mut self.seen, targets, marks.unseen())?;
            }
            self.meet_seen()?;
        }
    }

    /// Marks the leaves that the tracer has kept apart. They count as traversed.
    #[inline(always)]
    fn mark_leaves(&mut self) -> Result<(), NoMemory> {
        let leaves = self.tracer.leaves();
        if leaves.is_empty() {
            return Ok(());
        }
        steps::took(leaves.len());
        let first = self.list.len();
        self.marks.mark_all::<SHARED>(leaves, self.space.origin(), &mut self.list)?;
        self.maybe_lose_marks(first);
        self.done.traversed += self.list.len() - first;
        self.list.truncate(first);
        self.tracer.clear_leaves();
        Ok(())
    }

    /// In a stress mode, and with plain marks: loses some marks of the objects in the list, from
    /// index `first` on.
    #[inline(always)]
    fn maybe_lose_marks(&self, first: usize) {
        if SHARED
            && self.marks_at_once
            && let Some(strain) = self.strain
        {
            let lost = self.list[first..].iter().filter(|_| strain.loses_mark());
            lost.for_each(|&object| self.marks.lose_mark(granule(self.space, object) as usize));
        }
    }

    /// Looks at the delayed targets.
    #[cold]
    fn meet_delayed(&mut self) -> Result<(), NoMemory> {
        self.seen.try_reserve(Delay::LEN)?;
        let (seen, marks) = (&mut self.seen, self.marks);
        self.delay.drain(|target| {
            if marks.is_unseen(target) {
                seen.push(target as u32);
            }
        });
        self.meet_seen()
    }

    /// Marks the candidates in `seen`, or queues their pages. Counts the edges to assumed
    /// roots.
    #[inline(never)]
    fn meet_seen(&mut self) -> Result<(), NoMemory> {
        steps::took(self.seen.len());
        let many = if SHARED || self.far { DIRECT_MAX } else { usize::MAX };
        let most = self.stress.shrink(many);
        if self.pages.is_empty() && self.list.len() + self.seen.len() <= most {
            self.mark_seen()?;
        } else {
            self.queue_seen()?;
        }
        self.seen.clear();
        if let Some(inside) = self.inside {
            inside.count(&mut self.to_assumed)?;
        }
        Ok(())
    }

    /// Moves the assumed roots from `seen` to `to_assumed`.
    fn take_assumed(&mut self) -> Result<(), NoMemory> {
        let mut others = 0;
        for at in 0..self.seen.len() {
            let target = self.seen[at];
            if self.marks.is_assumed(target as usize) {
                fallible::push(&mut self.to_assumed, target)?;
            } else {
                self.seen[others] = target;
                others += 1;
            }
        }
        self.seen.truncate(others);
        Ok(())
    }

    /// Marks the candidates in `seen`, without their pages. The assumed roots in it go to
    /// `to_assumed`.
    fn mark_seen(&mut self) -> Result<(), NoMemory> {
        let (marks, assumes) = (self.marks, self.inside.is_some());
        self.list.try_reserve(self.seen.len())?;
        for &seen in &self.seen {
            let target = seen as usize;
            if marks.is_marked(target) {
                if assumes && marks.is_assumed(target) {
                    fallible::push(&mut self.to_assumed, seen)?;
                } else {
                    marks.see(target / WORD, 1 << (target % WORD));
                }
                continue;
            }
            marks.see(target / WORD, 1 << (target % WORD));
            if marks.mark::<SHARED>(target) {
                self.list.push(object_at(self.space, target));
            }
        }
        Ok(())
    }

    /// Queues the pages of the candidates in `seen`. The assumed roots in it go to `to_assumed`.
    fn queue_seen(&mut self) -> Result<(), NoMemory> {
        if self.inside.is_some() {
            self.take_assumed()?;
        }
        let marks = self.marks;
        let mut pages = 0;
        let mut at = 0;
        while let Some(&target) = self.seen.get(at) {
            // The targets of one object often lie side by side. The loads and stores of one word
            // would wait for each other.
            let word = target as usize / WORD;
            let mut bits = 0;
            while let Some(&target) = self.seen.get(at)
                && target as usize / WORD == word
            {
                bits |= 1 << (target as usize % WORD);
                at += 1;
            }
            let page = (word / PAGE_WORDS) as u32;
            if marks.see(word, bits) != 0 && (pages == 0 || self.seen[pages - 1] != page) {
                self.seen[pages] = page;
                pages += 1;
            }
        }
        if pages > 0 {
            WorkerMarks::before_queueing::<SHARED>();
            self.pages.try_reserve(pages)?;
            let pages = self.seen[..pages].iter();
            self.pages.extend(pages.filter(|&&page| marks.queue::<SHARED>(page as usize)));
        }
        Ok(())
    }
}

/// Adds the targets whose bits are set to a list.
///
/// A function of its own: all that its loop needs is in registers.
#[inline(never)]
fn add_unseen(
    list: &mut Vec<u32>,
    targets: impl ExactSizeIterator<Item = usize>,
    unseen: BitWords<'_>,
) -> Result<(), NoMemory> {
    fallible::extend_kept(list, targets, |target| (target as u32, unseen.bit(target)))
}

/// Whether several workers use plain marks, where edges to assumed roots are not counted.
fn plain_marks<M: ObjectModel>(counts: Option<&Counts>) -> bool {
    M::OVERLAPPING_TRAVERSALS && M::STABLE_DURING_STOP && counts.is_none()
}

/// At most [`BATCH_PART`] elements of the list, from number `first` on.
#[inline(always)]
fn part<T>(list: &[T], first: usize) -> &[T] {
    let rest = list.get(first..).unwrap_or_default();
    &rest[..rest.len().min(BATCH_PART)]
}

/// Marked objects, as objects in a stop.
#[inline(always)]
fn candidates<'a>(objects: &[Object]) -> &[Stopped<'a>] {
    // SAFETY: rule *stopped*: workers mark candidates. A candidate is alive, and the world is
    // stopped.
    unsafe { Stopped::slice(objects) }
}

/// The granule that an object starts at.
#[inline(always)]
pub(crate) fn granule(space: &Space<impl AddressMap>, object: Object) -> u32 {
    space.granule(object.address()) as u32
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
