//! The marking of one worker.
//!
//! Objects on the stack pass through a ring. An object is prefetched when it enters the ring, and
//! traversed when it leaves the ring, so that cache misses overlap. Its targets wait one more round
//! while their mark bytes are prefetched.
//!
//! In a full collection most edges come from the [`log`](super::log), see `Marker::run_by_log`.
//! Objects that are not in the log are traversed, and so are all objects in `Phase::Premark` and in
//! young collections.

use crate::base::fallible::{self, NoMemory};
use crate::base::prefetch::prefetch;
use crate::base::steps;
use crate::base::stress::Stress;
use crate::base::sync::Ordering;
use crate::collect::count::Counts;
use crate::collect::log::READ_WIDTH;
use crate::collect::log_reader::{Entry, Reader};
use crate::collect::marks::Claims;
use crate::collect::pool::{CHUNK, Pool, give_oldest};
use crate::collect::scope::{object_at, object_from};
use crate::collect::table::{Delay, is_far};
use crate::collect::traversal::{BATCH_PART, prefetch_each, traverse_batch};
use crate::heap::model::ObjectModel;
use crate::heap::mutator::World;
use crate::memory::space::{Origin, Space};
use crate::object::live::Stopped;
use crate::object::type_info::{Object, Tracer};

/// The size of the ring: the largest number of objects between an object's prefetch and its
/// traversal.
const RING: usize = 256;

/// The number of objects between the prefetch of an object's contents outside the heap and its
/// traversal.
const CONTENTS_DISTANCE: usize = 2 * BATCH_PART;

/// The number of objects that marking looks up in the log together.
const BATCH: usize = 32;

/// The most edges of a batch that wait together for their mark bytes. The mark bytes of more edges
/// would not stay in the caches, and the list of targets takes memory.
const EDGE_BATCH: usize = 2048;

/// With fewer objects on the stack, batches have no cache misses to overlap.
const MIN_BATCH: usize = 4;

/// The number of objects that a worker keeps when it gives work away, including the ring.
const KEPT_OBJECTS: usize = 8;

/// One worker's part of marking.
pub(crate) struct Marker<'a, M: ObjectModel, C: Claims> {
    pub(super) space: &'a Space,
    pub(super) model: &'a M,
    pub(super) claims: C,
    pub(super) tracer: &'a mut Tracer,
    pub(super) stack: Vec<u32>,
    pub(super) leftovers: Leftovers,
    /// Whether the model prefetches the contents of objects.
    pub(super) prefetches: bool,
    pub(super) stress: Stress,
    /// Whether the side tables are so large that mark bytes are prefetched for objects with many
    /// edges too.
    pub(super) far: bool,
    pub(super) delay: Delay,
}

/// Objects that a worker could not handle.
#[derive(Default)]
pub(crate) struct Leftovers {
    /// Objects with a field that counting could read and marking could not.
    pub(super) unreadable_now: Vec<u32>,
    /// In `Phase::Premark`: immortal objects. Later phases use [`Counts::immortal`].
    pub(super) immortal: Vec<u32>,
}

impl Leftovers {
    /// Records an object with an unreadable field. If counting could read the field, marking would
    /// miss counted references, and traverses the object again later. Otherwise the targets are
    /// roots, and no record is needed: counting could not read the field either, or counting will
    /// skip the object (in `Phase::Premark`).
    #[cold]
    fn add_unreadable(&mut self, granule: u32, counts: Option<&Counts>) -> Result<(), NoMemory> {
        if counts.is_some_and(|counts| counts.unreadable.binary_search(&granule).is_err()) {
            fallible::push(&mut self.unreadable_now, granule)?;
        }
        Ok(())
    }
}

pub(crate) fn marker<'a, M: ObjectModel, C: Claims>(
    world: &'a World<'_, M>,
    claims: C,
    tracer: &'a mut Tracer,
    stack: Vec<u32>,
) -> Marker<'a, M, C> {
    let (space, model) = (&world.core().space, &world.core().model);
    Marker {
        space,
        model,
        claims,
        tracer,
        stack,
        leftovers: Leftovers::default(),
        prefetches: model.prefetches(),
        stress: world.core().stress,
        far: is_far(world, space.counts().len()),
        delay: Delay::default(),
    }
}

impl<'a, M: ObjectModel, C: Claims> Marker<'a, M, C> {
    /// The object that starts at a granule of the stack.
    #[inline(always)]
    fn object(&self, granule: u32) -> Stopped<'a> {
        candidates(&[object_at(self.space, granule as usize)])[0]
    }

    /// Traverses an object, and pushes its unclaimed targets.
    #[inline(always)]
    pub(super) fn scan(&mut self, granule: u32) -> Result<(), NoMemory> {
        self.traverse(&[self.object(granule)])?;
        let origin = self.space.origin();
        let targets = self.tracer.edges().iter().map(|&edge| origin.granule(edge));
        push_or_delay(&mut self.stack, &mut self.delay, self.far, self.claims, targets)
    }

    /// Traverses objects. Their edges are in the tracer afterwards.
    #[inline(always)]
    fn traverse(&mut self, objects: &[Stopped<'_>]) -> Result<(), NoMemory> {
        steps::took(objects.len());
        self.tracer.clear();
        let claims = self.claims;
        if !M::STABLE_DURING_STOP
            && let Some(counts) = claims.counts()
        {
            objects.iter().for_each(|object| self.recall(object.object(), counts));
            return self.tracer.lost_nothing();
        }
        let mut ends = [0; BATCH_PART];
        let unreadable_before = self.leftovers.unreadable_now.len();
        let (space, leftovers) = (self.space, &mut self.leftovers);
        let unreadable = |at: usize| {
            leftovers.add_unreadable(granule(space, objects[at].object()), claims.counts())
        };
        traverse_batch(self.model, objects, self.tracer, &mut ends, unreadable)?;
        match claims.counts() {
            None => {
                let is_immortal = |&object: &Stopped<'_>| self.model.is_immortal(object);
                // One branch for all objects, because immortal objects are rare.
                if objects.iter().fold(false, |any, object| any | is_immortal(object)) {
                    for &object in objects.iter().filter(|object| is_immortal(object)) {
                        fallible::push(
                            &mut self.leftovers.immortal,
                            granule(space, object.object()),
                        )?;
                    }
                }
            }
            Some(counts) if !counts.kept.is_empty() => {
                self.compare(objects, &ends, counts, unreadable_before)
            }
            Some(_) => {}
        }
        Ok(())
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
            let unreadable_now = &self.leftovers.unreadable_now[unreadable_before..];
            steps::took(1 + edges.len() + unreadable_now.len());
            if counts.unreadable.binary_search(&granule).is_ok()
                || unreadable_now.contains(&granule)
            {
                continue;
            }
            if !edges.iter().map(|&edge| self.space.granule(edge) as u32).eq(kept.iter().copied()) {
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

    /// Marks until this worker's stack is empty. Gives work away while another worker is idle.
    pub(super) fn run(&mut self, pool: &Pool) -> Result<(), NoMemory> {
        let claims = self.claims;
        match claims.log() {
            Some(log) => self.run_by_log(log, pool),
            None => self.run_by_bodies(pool),
        }
    }

    /// Marks with the edges in the log. Only objects that are not in the log are traversed.
    ///
    /// A batch passes through four stages, and each stage works on another batch:
    ///
    /// 1. The words of the log are prefetched.
    /// 2. The words are read, and the edges are prefetched.
    /// 3. The edges are copied into one list, and the mark bytes of their targets are prefetched.
    ///    The copy of an object's edges always has the length [`READ_WIDTH`].
    /// 4. The targets are claimed in one loop.
    ///
    /// The number of edges of an object is unpredictable. A branch on it would cost a misprediction
    /// per object, and mispredictions would dominate the time of marking.
    fn run_by_log(&mut self, log: &Reader<'_>, pool: &Pool) -> Result<(), NoMemory> {
        let (mut prefetched, mut prefetched_len) = ([0; BATCH], 0);
        let (mut found, mut found_len) = ([[Entry::default(); BATCH]; 2], 0);
        let (mut edges, mut edges_len) = ([[0; BATCH * READ_WIDTH + READ_WIDTH]; 2], 0);
        let mut swapped = false;
        loop {
            if found_len + prefetched_len + edges_len == 0 {
                self.follow_few(log, pool)?;
            }
            steps::took(1 + prefetched_len + found_len);
            // Stages 2 and 1 come first, so that their prefetches have time. Then stages 3 and 4
            // handle the batches of the previous rounds.
            let [one, other] = &mut found;
            let (arrived, next) = if swapped { (&*other, one) } else { (&*one, other) };
            swapped = !swapped;
            let (arrived, next) = (&arrived[..found_len], &mut next[..prefetched_len]);
            for (entry, &granule) in next.iter_mut().zip(&prefetched[..prefetched_len]) {
                *entry = log.find(granule);
                if entry.is_body() {
                    prefetch_body(object_at(self.space, granule as usize));
                }
            }
            let next_len = prefetched_len;
            prefetched_len = self.stack.len().min(BATCH);
            let rest = self.stack.len() - prefetched_len;
            prefetched[..prefetched_len].copy_from_slice(&self.stack[rest..]);
            self.stack.truncate(rest);
            for &granule in &prefetched[..prefetched_len] {
                prefetch(log.word(granule));
            }
            let [one, other] = &mut edges;
            let (waiting, edges) = if swapped { (&*other, one) } else { (&*one, other) };
            let (mut len, mut bodies) = (0, 0);
            for entry in arrived {
                if let Some(count) = entry.few() {
                    edges[len..len + READ_WIDTH].copy_from_slice(entry.edges);
                    len += count;
                } else if let Some(all) = log.all(entry.granule) {
                    self.push_logged(all)?;
                } else {
                    bodies += 1;
                    if self.prefetches {
                        let object = self.object(entry.granule);
                        prefetch_each(self.model, &[object], self.tracer);
                    }
                }
            }
            for &target in &edges[..len] {
                prefetch(self.claims.entry(target as usize));
            }
            push_all(&mut self.stack, self.claims, &waiting[..edges_len])?;
            edges_len = len;
            if bodies > 0 {
                for entry in arrived.iter().filter(|entry| entry.is_body()) {
                    self.scan(entry.granule)?;
                }
            }
            found_len = next_len;
            if found_len + prefetched_len + edges_len == 0 && self.stack.is_empty() {
                self.drain_delayed()?;
                if self.stack.is_empty() {
                    return Ok(());
                }
            }
            // Relaxed: a hint.
            if pool.failed.load(Ordering::Relaxed) {
                return Ok(());
            }
            self.give_some(pool, found_len + prefetched_len);
        }
    }

    /// Marks the targets of an object with many edges in the log.
    #[inline(always)]
    fn push_logged(&mut self, edges: &[u32]) -> Result<(), NoMemory> {
        let targets = edges.iter().map(|&target| target as usize);
        push_or_delay(&mut self.stack, &mut self.delay, self.far, self.claims, targets)
    }

    /// Marks one object at a time while the stack is short, as in a linked list. A batch would only
    /// add latency there.
    fn follow_few(&mut self, log: &Reader<'_>, pool: &Pool) -> Result<(), NoMemory> {
        let mut ticks = 0u32;
        while self.stack.len() < MIN_BATCH
            && let Some(granule) = self.stack.pop()
        {
            steps::took(1);
            match log.all(granule) {
                Some(edges) => self.push_logged(edges)?,
                None => self.scan(granule)?,
            }
            ticks = ticks.wrapping_add(1);
            // Relaxed: a hint.
            if ticks.is_multiple_of(64) && pool.failed.load(Ordering::Relaxed) {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Marks by traversing objects, which are prefetched.
    fn run_by_bodies(&mut self, pool: &Pool) -> Result<(), NoMemory> {
        // A queue: objects enter at `head` and leave at `tail`. Both only grow, and index modulo
        // `RING`.
        let mut ring = [object_at(self.space, 0); RING];
        let (mut head, mut tail) = (0usize, 0usize);
        let (mut prefetched, mut arrived) = (Vec::new(), Vec::new());
        loop {
            steps::took(1);
            // Fills the ring from the stack, and traverses the oldest objects of the ring.
            head += self.enter(&mut ring, head, RING - (head - tail));
            if head == tail {
                push_all(&mut self.stack, self.claims, &prefetched)?;
                prefetched.clear();
                self.drain_delayed()?;
                if self.stack.is_empty() {
                    return Ok(());
                }
                continue;
            }
            // A batch is contiguous in the ring.
            let batch = (head - tail).min(BATCH_PART - tail % BATCH_PART);
            if self.prefetches {
                // The bodies of these objects have arrived by now. Their contents have not.
                let (first, ahead) = (
                    (tail + CONTENTS_DISTANCE) % RING,
                    batch.min((head - tail).saturating_sub(CONTENTS_DISTANCE)),
                );
                prefetch_each(self.model, candidates(&ring[first..first + ahead]), self.tracer);
            }
            let first = tail % RING;
            self.traverse(candidates(&ring[first..first + batch]))?;
            tail += batch;
            // One loop handles the edges of the whole batch, so that no branch depends on the
            // number of edges of an object. The targets are claimed together with the next batch,
            // when their mark bytes have arrived.
            std::mem::swap(&mut prefetched, &mut arrived);
            let (origin, edges) = (self.space.origin(), self.tracer.edges());
            if edges.len() <= EDGE_BATCH {
                prefetch_marks(self.claims, origin, edges, &mut prefetched)?;
            } else {
                prefetched.clear();
                let targets = edges.iter().map(|&edge| origin.granule(edge));
                push_or_delay(&mut self.stack, &mut self.delay, self.far, self.claims, targets)?;
            }
            push_all(&mut self.stack, self.claims, &arrived)?;
            // Relaxed: a hint.
            if pool.failed.load(Ordering::Relaxed) {
                return Ok(());
            }
            self.give_some(pool, head - tail);
        }
    }

    /// Moves up to `room` objects from the stack to the ring, from index `head` on, and prefetches
    /// them. Returns their number.
    #[inline(never)]
    fn enter(&mut self, ring: &mut [Object; RING], head: usize, room: usize) -> usize {
        let origin = self.space.origin();
        let taken = room.min(self.stack.len());
        steps::took(taken);
        let rest = self.stack.len() - taken;
        for (at, &granule) in self.stack[rest..].iter().rev().enumerate() {
            let object = object_from(origin, granule as usize);
            prefetch_body(object);
            ring[(head + at) % RING] = object;
        }
        self.stack.truncate(rest);
        taken
    }

    /// Claims and pushes the delayed targets. The rest of the graph may depend on them.
    pub(super) fn drain_delayed(&mut self) -> Result<(), NoMemory> {
        let (stack, claims) = (&mut self.stack, self.claims);
        let mut pushed = Ok(());
        self.delay.drain(|target| {
            pushed = pushed.and(push_claimed(stack, claims, std::iter::once(target)));
        });
        pushed
    }

    /// Gives work away if another worker is idle. `waiting` is the number of objects that have left
    /// the stack and are not yet traversed.
    #[inline(always)]
    fn give_some(&mut self, pool: &Pool, waiting: usize) {
        // Relaxed: a hint.
        if pool.idle.load(Ordering::Relaxed) > 0
            && self.stack.len() + waiting > self.stress.shrink(KEPT_OBJECTS)
        {
            give_oldest(&mut self.stack, pool, self.stress.shrink(CHUNK));
        }
    }
}

/// Objects of the stack or the ring, as objects in a stop.
#[inline(always)]
fn candidates<'a>(objects: &[Object]) -> &[Stopped<'a>] {
    // SAFETY: rule *stopped*: workers push candidates. A candidate is alive, and the world is
    // stopped.
    unsafe { Stopped::slice(objects) }
}

/// The granule that an object starts at.
#[inline(always)]
pub(crate) fn granule(space: &Space, object: Object) -> u32 {
    space.granule(object.address()) as u32
}

/// Replaces `targets` by the granules of `edges`, and prefetches their mark bytes.
#[inline(never)]
fn prefetch_marks<C: Claims>(
    claims: C,
    origin: Origin,
    edges: &[usize],
    targets: &mut Vec<u32>,
) -> Result<(), NoMemory> {
    steps::took(edges.len());
    targets.clear();
    targets.try_reserve(edges.len())?;
    targets.extend(edges.iter().map(|&edge| {
        let target = origin.granule(edge);
        prefetch(claims.entry(target));
        target as u32
    }));
    Ok(())
}

/// As `push_claimed`, but a separate function, so that the loop's variables are in registers.
#[inline(never)]
fn push_all<C: Claims>(stack: &mut Vec<u32>, claims: C, targets: &[u32]) -> Result<(), NoMemory> {
    push_claimed(stack, claims, targets.iter().map(|&target| target as usize))
}

/// Prefetches an object's body.
#[inline(always)]
pub(crate) fn prefetch_body(object: Object) {
    let address = object.as_ptr().as_ptr();
    // The second cache line too: half of all objects extend into it.
    prefetch(address);
    prefetch(address.wrapping_add(64));
}

/// Claims `targets`, and pushes the newly claimed ones. If the side tables are `far`, prefetches
/// the mark bytes first and delays the targets.
#[inline(always)]
fn push_or_delay<C: Claims>(
    stack: &mut Vec<u32>,
    delay: &mut Delay,
    far: bool,
    claims: C,
    targets: impl ExactSizeIterator<Item = usize>,
) -> Result<(), NoMemory> {
    if !far {
        return push_claimed(stack, claims, targets);
    }
    for target in targets {
        if let Some(before) = delay.swap(target, claims.entry(target)) {
            push_claimed(stack, claims, std::iter::once(before))?;
        }
    }
    Ok(())
}

/// Claims `targets`, and pushes the newly claimed ones. The loop has no branch, for the reason
/// given at [`Claims::claim`].
#[inline(always)]
fn push_claimed<C: Claims>(
    stack: &mut Vec<u32>,
    claims: C,
    targets: impl ExactSizeIterator<Item = usize>,
) -> Result<(), NoMemory> {
    steps::took(targets.len());
    fallible::extend_kept(stack, targets, |target| (target as u32, claims.claim(target).into()))
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::collect::Collect;
    use crate::collect::script::tests::collect;
    use crate::collect::script::tests::{Script, fan, scripted_heap, small_heap};

    /// Two objects report other references in their second traversal.
    #[test]
    fn verified_objects_with_other_edges_abandon_the_collection() {
        let why =
            "the traverse handler of 'verified thing' visited other references the second time";
        for (has, traversals, is_full, found) in [
            (["d", "d"], ["s", "s"], true, None),
            (["d", "d"], ["s", "s"], false, None),
            (["", "d"], ["s", "st"], true, Some(why)),
            (["", "d"], ["s", "st"], false, Some(why)),
            (["d", ""], ["st", "s"], false, Some(why)),
            // An object without verification, and an unreadable object.
            (["d", ""], ["s", "st"], false, None),
            (["d", "d"], ["s", "h"], false, None),
        ] {
            let Some(heap) = scripted_heap() else { return };
            let mut m = heap.attach();
            let objects = [0, 1].map(|at| Script::thing(&m, 'a', has[at], traversals[at]));
            let end = Script::thing(&m, 'z', "", "s");
            Script::link(&m, objects[0], end);
            Script::link(&m, objects[1], objects[0]);
            Script::link(&m, objects[1], end);
            let what = if is_full { Collect::full() } else { Collect::young() };
            let (report, calls) = collect(&mut m, what);
            assert_eq!(report.abandoned.as_deref(), found, "{has:?} {traversals:?}");
            if let Some(why) = found {
                let failure = format!(
                    "failure: Traverse 'verified thing': the collection was abandoned: {why}"
                );
                assert!(calls.contains(&failure), "{calls:?}");
            }
        }
    }

    #[test]
    fn everything_that_many_edges_lead_to_is_found() {
        // More than `RING` objects, and more than `EDGE_BATCH` edges.
        for width in [300, 2_500] {
            for workers in [1, 2] {
                for is_small in [false, true] {
                    let heap = if is_small { small_heap(workers) } else { scripted_heap() };
                    let Some(heap) = heap else { return };
                    let mut m = heap.attach();
                    let objects = fan(&m, width);
                    for what in [Collect::young(), Collect::full(), Collect::full()] {
                        let report = crate::collect::collect(&mut m, what).expect("a stop");
                        assert_eq!((report.unreachable, report.abandoned), (0, None));
                    }
                    heap.model().drop_ref(objects[0], &m);
                    assert_eq!(heap.stats().live_objects, 0);
                }
            }
        }
    }

    /// The first object has so many targets that the collector marks from the stack in between.
    #[test]
    fn marking_from_the_stack_takes_edges_from_the_log_too() {
        let Some(heap) = scripted_heap() else { return };
        let mut m = heap.attach();
        let leaves: Vec<Object> = (0..2_500).map(|_| Script::thing(&m, 'l', "", "s")).collect();
        let root = Script::thing(&m, 'r', "", "s");
        leaves.iter().for_each(|&leaf| Script::link(&m, root, leaf));
        leaves.iter().for_each(|&leaf| heap.model().drop_ref(leaf, &m));
        assert!(leaves.iter().all(|&leaf| leaf < root));
        let (report, _) = collect(&mut m, Collect::full());
        assert_eq!((report.candidates, report.unreachable), (2_501, 0));
        assert!(leaves.iter().all(|&leaf| Script::of(&m, leaf, |thing| thing.traversed) == 1));
    }
}
