//! Steps 3, 5b and 6a: marking from the roots, and sweeping up what was not reached.
//!
//! Marking happens twice, by the same code, told apart by where a worker notes what it has reached ([`Claims`]). In
//! step 3 it starts from the roots that the runtime has named, and takes objects out of the candidates by a bit
//! of their state; in step 5b from the roots that counting has found, in the side table.
//!
//! A worker claims an object when it *pushes* it, with a relaxed load and store of the side table's byte:
//! two workers may push the same object, which costs a second look and harms nothing. In front of the stack
//! stands a ring of prefetched bodies: an object is asked for from memory when it enters the ring and
//! looked at when it leaves, so that many misses overlap instead of one being waited for. What it refers to waits once more, while
//! the notes about that, which the claims read, are asked for.
//!
//! In a full collection step 5b finds the edges of most objects in the [`log`](super::log) that counting wrote, and does not look
//! at them: instead of the ring there are four batches on their way, see `Marker::run_by_log`. What is not in the
//! log, and all in step 3 and in young collections, is traversed. With one worker, what lies in the order of memory is marked in that
//! order before: the [`pass`].
//!
//! Work is shared through a queue of chunks. It starts with the roots; a worker that sees an idle one gives
//! half of its stack away, counting what its ring holds. A worker may join at any time or never, so nobody
//! waits for a thread that the machine is slow to start. (The queue is a vector under a lock: a chunk is thousands of
//! objects, and unlike a lock-free queue's, its growth can be refused.) Lists have one object to look at at a time: they
//! are marked by one worker, whatever there is.

pub(crate) mod pass;

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crossbeam_utils::CachePadded;

use crate::base::event::{self, CollectionKind, Phase};
use crate::base::fallible::{self, NoMemory};
use crate::base::steps;
use crate::base::stress::Stress;
use crate::base::sync::{AtomicBool, AtomicU8, AtomicUsize, Mutex, Ordering, spin_loop, yield_now};
use crate::collect::count::{
    Abandoned, Counts, Delay, LANES, Roots, Scope, exclusively, granules_of, guard_traversal,
    is_far, object_at, object_from, plainly,
};
use crate::collect::log::{Entry, Log, Reader, WIDE};
use crate::collect::look::{TOGETHER, look, prefetch_each, tracer};
use crate::collect::mark::pass::{InOrder, PUSHED};
use crate::collect::portions::Share;
use crate::heap::helpers::Seat;
use crate::heap::model::ObjectModel;
use crate::heap::mutator::World;
use crate::memory::space::{Origin, Space};
use crate::object::state::{self, State};
use crate::object::type_info::{Object, Tracer, prefetch};

/// Objects between the request to memory and the look.
const RING: usize = 256;
/// Of these, between the request for what an object leads to outside of the heap, and the look.
const CONTENTS_AHEAD: usize = 2 * TOGETHER;
/// Objects whose edges are taken from the log together.
const BATCH: usize = 32;
/// Edges of a batch that are not asked for together: their notes would not stay in the caches, and a list of them takes memory.
const MANY: usize = 2048;
/// With fewer objects to look at there is nothing to overlap.
const FEW: usize = 4;
/// Roots in one chunk of shared work.
const CHUNK: usize = 2048;
/// What a worker keeps for itself when it gives work away, ring included.
const KEEP: usize = 8;
/// So many pages are looked at to guess how much garbage there is.
const SAMPLE: usize = 64;
/// Attempts to read a field that counting could read and marking could not.
const PATIENCE: usize = 100;

/// The work that the workers share.
struct Pool {
    chunks: Mutex<Vec<Vec<u32>>>,
    /// How many there are: a hint, for those who look again and again.
    waiting: CachePadded<AtomicUsize>,
    /// Workers that have joined.
    joined: CachePadded<AtomicUsize>,
    /// Of these, how many have nothing to do.
    idle: CachePadded<AtomicUsize>,
    failed: AtomicBool,
}

impl Pool {
    fn new() -> Self {
        Self {
            chunks: Mutex::new(Vec::new()),
            waiting: CachePadded::new(AtomicUsize::new(0)),
            joined: CachePadded::new(AtomicUsize::new(0)),
            idle: CachePadded::new(AtomicUsize::new(0)),
            failed: AtomicBool::new(false),
        }
    }

    /// Adds a chunk of work. If there is no memory for its place, it comes back.
    fn give(&self, chunk: Vec<u32>) -> Result<(), Vec<u32>> {
        let mut chunks = self.chunks.lock();
        if chunks.try_reserve(1).is_err() {
            return Err(chunk);
        }
        chunks.push(chunk);
        // Relaxed, under the lock: a hint.
        self.waiting.store(chunks.len(), Ordering::Relaxed);
        Ok(())
    }

    /// A chunk, if there is one.
    fn steal(&self) -> Option<Vec<u32>> {
        // Relaxed: who misses a chunk looks again, or leaves it to whoever has put it there.
        if self.waiting.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let mut chunks = self.chunks.lock();
        let chunk = chunks.pop();
        self.waiting.store(chunks.len(), Ordering::Relaxed);
        chunk
    }

    /// More work for a worker that has none; `None`: there is none anywhere, marking is over.
    fn take(&self) -> Option<Vec<u32>> {
        // Relaxed counters: they bound how long one looks. A chunk is in the queue or in the hands of a
        // worker that is not idle; whoever leaves early only leaves the rest to others.
        self.idle.fetch_add(1, Ordering::Relaxed);
        let mut looks = 0u32;
        loop {
            if let Some(chunk) = self.steal() {
                self.idle.fetch_sub(1, Ordering::Relaxed);
                return Some(chunk);
            }
            if self.idle.load(Ordering::Relaxed) >= self.joined.load(Ordering::Relaxed)
                || self.failed.load(Ordering::Relaxed)
            {
                return None;
            }
            looks += 1;
            if looks.is_multiple_of(64) { yield_now() } else { spin_loop() }
        }
    }
}

/// Where a worker notes that an object has been reached.
trait Claims: Copy + Sync {
    /// Claims the object at a granule; `false`: somebody has, or it is no candidate.
    ///
    /// Without a branch: whether an edge leads to something new cannot be predicted, and a wrong guess would stop
    /// the loads of the next edges' notes from overlapping.
    fn claim(&self, target: usize) -> bool;

    /// Where the note about a granule lies.
    fn entry(&self, target: usize) -> *const u8;

    /// What counting has seen, where it has been done.
    fn counts(&self) -> Option<&Counts>;

    /// What counting has written down, if anything.
    fn log(&self) -> Option<&Reader<'_>>;
}

/// In step 3: as a bit of the state, which takes the object out of the candidates.
#[derive(Clone, Copy)]
struct Known<'a> {
    states: &'a [AtomicU8],
}

impl Claims for Known<'_> {
    #[inline(always)]
    fn claim(&self, target: usize) -> bool {
        // Relaxed load and store: nobody changes a state byte in a stop but workers that set this very bit, so none
        // loses another's change; a duplicate is harmless.
        let state = self.states[target].load(Ordering::Relaxed);
        let fresh = state::is_candidate(state);
        self.states[target].store(state | (state::ALIVE * u8::from(fresh)), Ordering::Relaxed);
        fresh
    }

    #[inline(always)]
    fn entry(&self, target: usize) -> *const u8 {
        self.states.as_ptr().wrapping_add(target).cast()
    }

    fn counts(&self) -> Option<&Counts> {
        None
    }

    fn log(&self) -> Option<&Reader<'_>> {
        None
    }
}

/// In step 5b: as a mark in the side table.
#[derive(Clone, Copy)]
struct Found<'a, const YOUNG: bool> {
    states: &'a [AtomicU8],
    marks: &'a [AtomicU8],
    counts: &'a Counts,
    /// In full collections: what counting has written down.
    log: &'a Reader<'a>,
}

impl<const YOUNG: bool> Claims for Found<'_, YOUNG> {
    #[inline(always)]
    fn claim(&self, target: usize) -> bool {
        // In a young collection the table belongs to young candidates alone: it must stay zero elsewhere.
        if YOUNG && !state::is_young_candidate(State(&self.states[target]).get()) {
            return false;
        }
        // Relaxed: a duplicate is harmless; see the module's page.
        let fresh = self.marks[target].load(Ordering::Relaxed) == 0;
        self.marks[target].store(PUSHED, Ordering::Relaxed);
        fresh
    }

    #[inline(always)]
    fn entry(&self, target: usize) -> *const u8 {
        self.marks.as_ptr().wrapping_add(target).cast()
    }

    fn counts(&self) -> Option<&Counts> {
        Some(self.counts)
    }

    fn log(&self) -> Option<&Reader<'_>> {
        (!YOUNG && !self.log.is_empty()).then_some(self.log)
    }
}

/// One worker's part of marking.
struct Marker<'a, M: ObjectModel, C: Claims> {
    space: &'a Space,
    model: &'a M,
    claims: C,
    tracer: &'a mut Tracer,
    stack: Vec<u32>,
    met: Met,
    /// Whether the model has more to prefetch than objects.
    prefetches: bool,
    stress: Stress,
    /// Whether the side tables are so large that they are asked for ahead also for objects of many edges.
    far: bool,
    delay: Delay,
}

/// What a worker has met and could not deal with.
#[derive(Default)]
struct Met {
    /// Objects with a field that could not be read now.
    doubtful: Vec<u32>,
    /// In step 3: immortal objects. Later steps learn of them from counting.
    immortal: Vec<u32>,
}

impl Met {
    /// A field of an object cannot be read. If counting could not read it either, or will not look at the object,
    /// its targets are roots and nothing is lost. Else what counting saw there would be missed: look again later.
    #[cold]
    fn doubt(&mut self, granule: u32, counts: Option<&Counts>) -> Result<(), NoMemory> {
        if counts.is_some_and(|counts| counts.unreadable.binary_search(&granule).is_err()) {
            fallible::push(&mut self.doubtful, granule)?;
        }
        Ok(())
    }
}

impl<M: ObjectModel, C: Claims> Marker<'_, M, C> {
    /// Looks at an object: pushes what it refers to and nobody has claimed.
    #[inline(always)]
    fn scan(&mut self, granule: u32) -> Result<(), NoMemory> {
        self.look(&[object_at(self.space, granule as usize)])?;
        let origin = self.space.origin();
        let targets = self.tracer.edges().iter().map(|&edge| origin.granule(edge));
        push_or_delay(&mut self.stack, &mut self.delay, self.far, self.claims, targets)
    }

    /// Looks at objects: the tracer has what they refer to.
    #[inline(always)]
    fn look(&mut self, objects: &[Object]) -> Result<(), NoMemory> {
        steps::took(objects.len());
        self.tracer.clear();
        let claims = self.claims;
        if !M::STABLE_DURING_STOP
            && let Some(counts) = claims.counts()
        {
            objects.iter().for_each(|&object| self.recall(object, counts));
            return self.tracer.lost_nothing();
        }
        let mut ends = [0; TOGETHER];
        let doubts = self.met.doubtful.len();
        let (space, met) = (self.space, &mut self.met);
        let unreadable = |at: usize| met.doubt(granule(space, objects[at]), claims.counts());
        // SAFETY: rule W: only candidates are pushed; they are alive, and the world is stopped.
        unsafe { look(self.model, objects, self.tracer, &mut ends, unreadable)? };
        match claims.counts() {
            None => {
                // SAFETY: as above.
                let is_immortal = |&object: &Object| unsafe { self.model.is_immortal(object) };
                // No branch for each: there are hardly any.
                if objects.iter().fold(false, |any, object| any | is_immortal(object)) {
                    for &object in objects.iter().filter(|object| is_immortal(object)) {
                        fallible::push(&mut self.met.immortal, granule(space, object))?;
                    }
                }
            }
            Some(counts) if !counts.kept.is_empty() => self.compare(objects, &ends, counts, doubts),
            Some(_) => {}
        }
        Ok(())
    }

    /// Objects that have kept what counting saw in them must show the same again. Those that could not be read this time are in the
    /// list of doubtful ones from place `doubts` on.
    #[cold]
    fn compare(&mut self, objects: &[Object], ends: &[u32], counts: &Counts, doubts: usize) {
        let mut start = 0;
        for (&object, &end) in objects.iter().zip(ends) {
            let edges = &self.tracer.edges()[start..end as usize];
            start = end as usize;
            let granule = granule(self.space, object);
            let Some(kept) = counts.kept.get(&granule) else { continue };
            // What cannot be read, or could not be, shows nothing, and that is nobody's fault.
            let doubtful = &self.met.doubtful[doubts..];
            steps::took(1 + edges.len() + doubtful.len());
            if counts.unreadable.binary_search(&granule).is_ok() || doubtful.contains(&granule) {
                continue;
            }
            if !edges.iter().map(|&edge| self.space.granule(edge) as u32).eq(kept.iter().copied()) {
                // SAFETY: as in `look`.
                let name = unsafe { self.model.type_name(object) };
                let why = format!(
                    "the traverse handler of '{name}' visited other references the second time"
                );
                // Whose it was, whoever of them was looked at last.
                self.tracer.go_on(object);
                // Caught by `guard_traversal`; nobody needs a message on stderr.
                std::panic::resume_unwind(Box::new(why));
            }
        }
    }

    /// As `look`, at what the counting pass saw.
    fn recall(&mut self, object: Object, counts: &Counts) {
        let kept = counts.kept.get(&granule(self.space, object));
        for &edge in kept.map_or(&[][..], |edges| edges) {
            self.tracer.edge(self.space.address(edge as usize));
        }
    }

    /// Marks until the own stack is empty; gives work away while somebody is idle.
    fn run(&mut self, pool: &Pool) -> Result<(), NoMemory> {
        let claims = self.claims;
        match claims.log() {
            Some(log) => self.run_by_log(log, pool),
            None => self.run_by_bodies(pool),
        }
    }

    /// From the log: no object is looked at but those that are not in it.
    ///
    /// Four batches are on their way: of one the words of the log were asked for, of one the edges; of one the edges are put side
    /// by side, [`WIDE`] for each object whether it has them or not, and their targets' notes asked for; and those of the last are
    /// claimed in one go. How many edges an object has cannot be predicted, and a wrong guess for each is what marking would
    /// consist of.
    fn run_by_log(&mut self, log: &Reader<'_>, pool: &Pool) -> Result<(), NoMemory> {
        let (mut asked, mut asked_len) = ([0; BATCH], 0);
        let (mut found, mut found_len) = ([[Entry::default(); BATCH]; 2], 0);
        let (mut edges, mut edges_len) = ([[0; BATCH * WIDE + WIDE]; 2], 0);
        let mut turn = false;
        loop {
            if found_len + asked_len + edges_len == 0 {
                self.follow_few(log, pool)?;
            }
            steps::took(1 + asked_len + found_len);
            // What was asked for is found, and its edges asked for; and what comes off the stack is asked for. After that, so that
            // both have some time, what was found a round ago is dealt with.
            let [one, other] = &mut found;
            let (arrived, next) = if turn { (&*other, one) } else { (&*one, other) };
            turn = !turn;
            let (arrived, next) = (&arrived[..found_len], &mut next[..asked_len]);
            for (entry, &granule) in next.iter_mut().zip(&asked[..asked_len]) {
                *entry = log.find(granule);
                if entry.is_body() {
                    ask_for_body(object_at(self.space, granule as usize));
                }
            }
            let next_len = asked_len;
            asked_len = self.stack.len().min(BATCH);
            let rest = self.stack.len() - asked_len;
            asked[..asked_len].copy_from_slice(&self.stack[rest..]);
            self.stack.truncate(rest);
            for &granule in &asked[..asked_len] {
                prefetch(log.word(granule));
            }
            let [one, other] = &mut edges;
            let (waiting, edges) = if turn { (&*other, one) } else { (&*one, other) };
            let (mut len, mut bodies) = (0, 0);
            for entry in arrived {
                if let Some(count) = entry.few() {
                    edges[len..len + WIDE].copy_from_slice(entry.edges);
                    len += count;
                } else if let Some(all) = log.all(entry.granule) {
                    let targets = all.iter().map(|&target| target as usize);
                    push_or_delay(
                        &mut self.stack,
                        &mut self.delay,
                        self.far,
                        self.claims,
                        targets,
                    )?;
                } else {
                    bodies += 1;
                    if self.prefetches {
                        let object = object_at(self.space, entry.granule as usize);
                        // SAFETY: rule W: only candidates are pushed; they are alive, and the world is stopped.
                        unsafe { prefetch_each(self.model, &[object], self.tracer) };
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
            if found_len + asked_len + edges_len == 0 && self.stack.is_empty() {
                self.drain_delayed()?;
                if self.stack.is_empty() {
                    return Ok(());
                }
            }
            // Relaxed: a hint.
            if pool.failed.load(Ordering::Relaxed) {
                return Ok(());
            }
            self.give_some(pool, found_len + asked_len);
        }
    }

    /// Where there is hardly anything to look at, as in a list, batches would only be waited for: one after the other,
    /// until there is more.
    fn follow_few(&mut self, log: &Reader<'_>, pool: &Pool) -> Result<(), NoMemory> {
        let mut ticks = 0u32;
        while self.stack.len() < FEW
            && let Some(granule) = self.stack.pop()
        {
            steps::took(1);
            match log.all(granule) {
                Some(edges) => {
                    let targets = edges.iter().map(|&target| target as usize);
                    push_or_delay(
                        &mut self.stack,
                        &mut self.delay,
                        self.far,
                        self.claims,
                        targets,
                    )?;
                }
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

    /// Looks at objects, and asks for them ahead.
    fn run_by_bodies(&mut self, pool: &Pool) -> Result<(), NoMemory> {
        // A queue in an array: entered at `head`, left at `tail`; both run on and wrap.
        let mut ring = [object_at(self.space, 0); RING];
        let (mut head, mut tail) = (0usize, 0usize);
        let (mut asked, mut arrived) = (Vec::new(), Vec::new());
        loop {
            steps::took(1);
            // Fill the ring from the stack, and look at the oldest in it.
            head += self.enter(&mut ring, head, RING - (head - tail));
            if head == tail {
                push_all(&mut self.stack, self.claims, &asked)?;
                asked.clear();
                self.drain_delayed()?;
                if self.stack.is_empty() {
                    return Ok(());
                }
                continue;
            }
            // Together, as far as they lie side by side.
            let batch = (head - tail).min(TOGETHER - tail % TOGETHER);
            if self.prefetches {
                // Their own bytes are here by now; what they lead to is not.
                let (first, ahead) = (
                    (tail + CONTENTS_AHEAD) % RING,
                    batch.min((head - tail).saturating_sub(CONTENTS_AHEAD)),
                );
                // SAFETY: rule W: only candidates are pushed; they are alive, and the world is stopped.
                unsafe { prefetch_each(self.model, &ring[first..first + ahead], self.tracer) };
            }
            let first = tail % RING;
            self.look(&ring[first..first + batch])?;
            tail += batch;
            // The edges of all of them in one go: how many each has cannot be predicted, and here nothing asks. They are claimed
            // with the next batch, when the notes about their targets have arrived.
            std::mem::swap(&mut asked, &mut arrived);
            let (origin, edges) = (self.space.origin(), self.tracer.edges());
            if edges.len() <= MANY {
                ask_for_notes(self.claims, origin, edges, &mut asked)?;
            } else {
                asked.clear();
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

    /// Moves objects from the stack to the ring, from place `head` on, where there is `room`, and asks memory for them. How many.
    #[inline(never)]
    fn enter(&mut self, ring: &mut [Object; RING], head: usize, room: usize) -> usize {
        let origin = self.space.origin();
        let taken = room.min(self.stack.len());
        steps::took(taken);
        let rest = self.stack.len() - taken;
        for (at, &granule) in self.stack[rest..].iter().rev().enumerate() {
            let object = object_from(origin, granule as usize);
            ask_for_body(object);
            ring[(head + at) % RING] = object;
        }
        self.stack.truncate(rest);
        taken
    }

    /// What waits for its table entry may be the rest of the graph.
    fn drain_delayed(&mut self) -> Result<(), NoMemory> {
        let (stack, claims) = (&mut self.stack, self.claims);
        let mut pushed = Ok(());
        self.delay.drain(|target| {
            pushed = pushed.and(push_claimed(stack, claims, std::iter::once(target)));
        });
        pushed
    }

    /// Gives work away if somebody is idle. So many objects have left the stack and wait to be looked at.
    #[inline(always)]
    fn give_some(&mut self, pool: &Pool, waiting: usize) {
        // Relaxed: a hint.
        if pool.idle.load(Ordering::Relaxed) > 0
            && self.stack.len() + waiting > self.stress.shrink(KEEP)
        {
            give_oldest(&mut self.stack, pool, self.stress.shrink(CHUNK));
        }
    }
}

/// Gives the older half of a stack away, `most` at most: it is nearer to the roots, so likely the larger part of the graph. The newest
/// take the places of what is given: what else is on the stack stays where it is, however much that is.
#[cold]
#[inline(never)]
fn give_oldest(stack: &mut Vec<u32>, pool: &Pool, most: usize) {
    // Relaxed, both: hints. The chunks that wait are enough for those who are idle.
    if pool.waiting.load(Ordering::Relaxed) >= pool.idle.load(Ordering::Relaxed) {
        return;
    }
    let give = stack.len().div_ceil(2).min(most);
    // Without memory to give it away in, the work is done here.
    if give > 0
        && let Ok(chunk) = fallible::collect(stack[..give].iter().copied())
        && pool.give(chunk).is_ok()
    {
        let rest = stack.len() - give;
        let newest = rest.max(give)..stack.len();
        steps::took(give + newest.len());
        stack.copy_within(newest, 0);
        stack.truncate(rest);
    }
}

/// The granule that an object starts at.
#[inline(always)]
fn granule(space: &Space, object: Object) -> u32 {
    space.granule(object.address()) as u32
}

/// Puts the granules of `edges` into `targets`, and asks for the notes about them.
#[inline(never)]
fn ask_for_notes<C: Claims>(
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

/// As `push_claimed`: a function of its own, with what its loop needs in registers.
#[inline(never)]
fn push_all<C: Claims>(stack: &mut Vec<u32>, claims: C, targets: &[u32]) -> Result<(), NoMemory> {
    push_claimed(stack, claims, targets.iter().map(|&target| target as usize))
}

/// Asks for an object's body.
#[inline(always)]
fn ask_for_body(object: Object) {
    let address = object.as_ptr().as_ptr();
    // The second line too: half of all objects are longer than one, or cross into it.
    prefetch(address);
    prefetch(address.wrapping_add(64));
}

/// Pushes those of `targets` that the caller is the first to claim; where the side tables are `far`, when their notes
/// have arrived.
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

/// Pushes those of `targets` that the caller is the first to claim.
///
/// All are written, and only the claimed ones counted: no branch, for the reason given at [`Claims::claim`]. The
/// stack's length is in a register meanwhile: through memory, each edge would wait for the one before.
#[inline(always)]
fn push_claimed<C: Claims>(
    stack: &mut Vec<u32>,
    claims: C,
    targets: impl ExactSizeIterator<Item = usize>,
) -> Result<(), NoMemory> {
    steps::took(targets.len());
    stack.try_reserve(targets.len())?;
    let mut len = stack.len();
    let elements = stack.as_mut_ptr();
    for target in targets {
        let fresh = claims.claim(target);
        // SAFETY: rule B: there is room for all targets: the callers' iterators are those of slices, whose lengths
        // are right. An element is written before it is counted.
        unsafe { elements.add(len).write(target as u32) };
        len += usize::from(fresh);
    }
    // SAFETY: as above.
    unsafe { stack.set_len(len) };
    Ok(())
}

/// Step 3. Marks what the roots that the runtime has named lead to as alive: it is no candidate of this collection.
///
/// A field that cannot be read leaves its targets candidates, with a reference that nothing explains: roots.
pub(crate) fn premark<M: ObjectModel>(
    world: &World<'_, M>,
    scope: &Scope,
    workers: usize,
) -> Result<(), Abandoned> {
    let core = world.core();
    // A young collection does not look at old objects, where nearly all of this would be.
    let named = if scope.kind == CollectionKind::Full { core.roots.list()? } else { Vec::new() };
    if named.is_empty() {
        return Ok(());
    }
    let _phase = event::phase(Phase::Premark);
    let claims = Known { states: core.space.states() };
    let granules = named.iter().map(|object| core.space.granule(object.address()));
    let mut roots = Vec::new();
    roots.try_reserve_exact(named.len()).map_err(NoMemory::from)?;
    roots.extend(granules.filter(|&granule| claims.claim(granule)).map(|granule| granule as u32));
    let met = drive(world, claims, [roots], workers)?;
    for granule in met.immortal {
        // Back among the candidates: counting knows what to do with immortals.
        State(&claims.states[granule as usize]).unset(state::ALIVE);
    }
    Ok(())
}

/// Step 5b. Marks what the roots reach. Afterwards a candidate whose byte is 0 is unreachable.
pub(crate) fn mark<M: ObjectModel>(
    world: &World<'_, M>,
    scope: &Scope,
    counts: &mut Counts,
    roots: Roots,
    workers: usize,
) -> Result<(), Abandoned> {
    let _phase = event::phase(Phase::Mark);
    counts.unreadable.sort_unstable();
    let logs = std::mem::take(&mut counts.logs);
    let core = world.core();
    let log = Reader::new(&logs, core.space.high_water());
    let (states, marks, counts) = (core.space.states(), core.space.counts(), &*counts);
    match scope.kind {
        CollectionKind::Young => {
            let claims = Found::<true> { states, marks, counts, log: &log };
            let met = drive(world, claims, roots.stacks, workers)?;
            resolve_doubt(world, claims, met.doubtful)
        }
        CollectionKind::Full => {
            let claims = Found::<false> { states, marks, counts, log: &log };
            let (mut stacks, mut doubtful) = (roots.stacks, Vec::new());
            if roots.noted {
                let rest = pass::pass(world, InOrder::new(marks, counts, &log))?;
                doubtful = rest.doubtful;
                if !rest.stack.is_empty() {
                    fallible::push(&mut stacks, rest.stack)?;
                }
            }
            if !stacks.is_empty() {
                let mut met = drive(world, claims, stacks, workers)?;
                fallible::append(&mut doubtful, &mut met.doubtful)?;
            }
            resolve_doubt(world, claims, doubtful)?;
            let is_large = logs.iter().any(Log::is_large);
            if is_large && !has_much_garbage(&core.space, scope) {
                core.workers.spare.keep(logs.into_iter().flat_map(Log::into_rooms));
            }
            Ok(())
        }
    }
}

/// Whether a list of what was not reached is going to take memory that matters. A guess, from some of the pages.
fn has_much_garbage(space: &Space, scope: &Scope) -> bool {
    let (states, marks) = (space.states(), space.counts());
    let (mut candidates, mut unreached) = (0, 0);
    for &page in scope.pages().iter().step_by(scope.pages().len().div_ceil(SAMPLE).max(1)) {
        let Some(range) = granules_of(space, page) else { continue };
        // Marking is over, and nobody else is here.
        plainly(&states[range.clone()], |states| {
            plainly(&marks[range], |marks| {
                for (&state, &mark) in states.iter().zip(marks) {
                    let is_candidate = scope.contains(state);
                    candidates += usize::from(is_candidate);
                    unreached += usize::from(is_candidate & (mark == 0));
                }
            });
        });
    }
    unreached > candidates / 8
}

fn marker<'a, M: ObjectModel, C: Claims>(
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
        met: Met::default(),
        prefetches: model.prefetches(),
        stress: world.core().stress,
        far: is_far(world, space.counts().len()),
        delay: Delay::default(),
    }
}

/// Marks what the claimed objects on `stacks` lead to; and tells what was met on the way.
fn drive<M: ObjectModel, C: Claims>(
    world: &World<'_, M>,
    claims: C,
    stacks: impl IntoIterator<Item = Vec<u32>>,
    workers: usize,
) -> Result<Met, Abandoned> {
    let pool = Pool::new();
    for stack in stacks {
        let most = world.core().stress.shrink(CHUNK);
        if stack.len() <= most {
            pool.give(stack).map_err(|_| NoMemory)?;
            continue;
        }
        for chunk in stack.chunks(most) {
            steps::took(chunk.len());
            pool.give(fallible::collect(chunk.iter().copied())?).map_err(|_| NoMemory)?;
        }
    }
    let failed = Mutex::new(None);
    let met = Mutex::new(Met::default());
    world.share(workers, &|_| {
        pool.joined.fetch_add(1, Ordering::Relaxed);
        let result = guard_traversal(world, &mut tracer(&world.core().space), |tracer| {
            let mut marker = marker(world, claims, tracer, Vec::new());
            while let Some(chunk) = pool.take() {
                steps::took(1);
                marker.stack = chunk;
                marker.run(&pool)?;
            }
            let mut met = met.lock();
            fallible::append(&mut met.doubtful, &mut marker.met.doubtful)?;
            fallible::append(&mut met.immortal, &mut marker.met.immortal)
        });
        if let Err(abandoned) = result.and_then(|marked| Ok(marked?)) {
            // Relaxed: a hint to hurry; the lock carries the reason.
            pool.failed.store(true, Ordering::Relaxed);
            failed.lock().get_or_insert(abandoned);
        }
    });
    match failed.lock().take() {
        Some(abandoned) => Err(abandoned),
        None => Ok(std::mem::take(&mut *met.lock())),
    }
}

/// Looks again, alone (in a pool of its own, where nobody is idle and given work), at objects that counting could
/// read and marking could not: whoever has the lock is an unattached thread and may let go of it. If it does not, the collection is abandoned.
#[cold]
fn resolve_doubt<M: ObjectModel, C: Claims>(
    world: &World<'_, M>,
    claims: C,
    doubtful: Vec<u32>,
) -> Result<(), Abandoned> {
    if doubtful.is_empty() {
        return Ok(());
    }
    let pool = Pool::new();
    let locked = guard_traversal(world, &mut tracer(&world.core().space), |tracer| {
        let mut marker = marker(world, claims, tracer, doubtful);
        for _ in 0..PATIENCE {
            yield_now();
            steps::took(marker.stack.len());
            marker.run(&pool)?;
            fallible::append(&mut marker.stack, &mut marker.met.doubtful)?;
            if marker.stack.is_empty() {
                break;
            }
        }
        Ok::<_, NoMemory>(marker.stack.first().copied())
    })??;
    match locked {
        None => Ok(()),
        Some(granule) => Err(Abandoned {
            reason: "a field that could be read when references were counted is locked now".into(),
            // SAFETY: rule W: a candidate is alive, and the world is stopped.
            type_name: unsafe {
                world.core().model.type_name(object_at(&world.core().space, granule as usize))
            },
        }),
    }
}

/// Step 6a. Collects what was not reached, ages what was, and leaves the side table zero.
///
/// Without memory for the list the collection is over: what was reached has aged, nothing else has changed.
pub(crate) fn sweep<M: ObjectModel>(
    world: &World<'_, M>,
    scope: &Scope,
    workers: usize,
) -> Result<Vec<Object>, NoMemory> {
    let _phase = event::phase(Phase::Sweep);
    let core = world.core();
    let space = &core.space;
    let share = scope.share(workers);
    let all = Mutex::new((Vec::new(), Ok(())));
    let _table = core.turn.table();
    world.share(workers, &|seat| {
        let mut run = Vec::new();
        let keep = |run: &mut Vec<Object>| {
            if run.is_empty() {
                Ok(())
            } else {
                fallible::push(&mut all.lock().0, std::mem::take(run))
            }
        };
        let swept = sweep_share(space, scope, (&share, seat), &mut run, keep);
        let kept = keep(&mut run);
        let result = &mut all.lock().1;
        *result = result.and(swept).and(kept);
    });
    magazines_stay_young(world);
    let (mut runs, result) = std::mem::replace(&mut *all.lock(), (Vec::new(), Ok(())));
    let swept = result.and_then(|()| merge_runs(&mut runs));
    if swept.is_err() {
        // What is new and was not reached is to be looked at again.
        scope
            .pages()
            .iter()
            .for_each(|&page| space.page(page as usize).young.store(1, Ordering::Relaxed));
    }
    swept
}

/// Cells that wait in magazines will be handed out without a word: their pages stay young.
fn magazines_stay_young<M: ObjectModel>(world: &World<'_, M>) {
    let space = &world.core().space;
    world.arenas(|arena| {
        arena.for_each_cached(|cell| {
            steps::took(1);
            // SAFETY: rule G: a cell of an arena lies on a page that was handed out.
            unsafe { space.page_of(cell.as_ptr() as usize) }.young.store(1, Ordering::Relaxed);
        });
    });
}

/// What a tracked object's state is when its page is young no more: nothing on it may be new, frozen objects included.
#[inline(always)]
fn aged(state: u8) -> u8 {
    state | if state & state::TRACKED != 0 { state::OLD } else { 0 }
}

/// Makes all that is new old, without a look at it: the sweep of a young collection that has found everything alive. How many
/// were candidates.
///
/// It asks for no memory, and one thread does it: there is a nanosecond of work for an object.
pub(crate) fn promote<M: ObjectModel>(world: &World<'_, M>) -> usize {
    let core = world.core();
    let (space, states) = (&core.space, core.space.states());
    let mut promoted = 0;
    let _table = core.turn.table();
    steps::took(space.high_water());
    for page in 0..space.high_water() {
        let info = space.page(page);
        // Relaxed: in a stop.
        if info.young.load(Ordering::Relaxed) == 0 {
            continue;
        }
        let Some(range) = granules_of(space, page as u32) else { continue };
        info.young.store(0, Ordering::Relaxed);
        steps::took(range.len());
        // This thread is the only one here.
        exclusively(&states[range], |states| {
            for lane in states.chunks_mut(LANES) {
                let mut young = 0;
                for state in lane {
                    young += u8::from(state::is_young_candidate(*state));
                    *state = aged(*state);
                }
                promoted += usize::from(young);
            }
        });
    }
    magazines_stay_young(world);
    promoted
}

/// One worker's part of the sweep. What it finds goes up, as its pages do; where these begin anew, a run is complete.
fn sweep_share(
    space: &Space,
    scope: &Scope,
    (share, seat): (&Share<'_, u32>, Seat),
    unreachable: &mut Vec<Object>,
    complete: impl Fn(&mut Vec<Object>) -> Result<(), NoMemory>,
) -> Result<(), NoMemory> {
    let (states, marks) = (space.states(), space.counts());
    let mut last = 0;
    for pages in share.of(seat) {
        for &page in pages {
            if page < last {
                complete(unreachable)?;
            }
            last = page;
            // Relaxed: in a stop.
            space.page(page as usize).young.store(0, Ordering::Relaxed);
            let Some(range) = granules_of(space, page) else { continue };
            let first = range.start;
            steps::took(range.len());
            // This page is this worker's.
            exclusively(&states[range.clone()], |states| {
                exclusively(&marks[range], |marks| {
                    let lanes = states.chunks_mut(LANES).zip(marks.chunks(LANES));
                    for (chunk, (states, marks)) in lanes.enumerate() {
                        let mut any = false;
                        for (&state, &mark) in states.iter().zip(marks) {
                            any |= scope.contains(state) & (mark == 0);
                        }
                        if any {
                            unreachable.try_reserve(LANES)?;
                            for (at, (&state, &mark)) in states.iter().zip(marks).enumerate() {
                                if scope.contains(state) && mark == 0 {
                                    unreachable.push(object_at(space, first + chunk * LANES + at));
                                }
                            }
                        }
                        for (state, &mark) in states.iter_mut().zip(marks) {
                            let garbage = scope.contains(*state) & (mark == 0);
                            let state_then = if garbage { *state } else { aged(*state) };
                            *state = state_then & !state::ALIVE;
                        }
                    }
                    marks.fill(0);
                    Ok::<_, NoMemory>(())
                })
            })?;
        }
    }
    Ok(())
}

/// Makes one list of runs that each go up and have something in them, and that goes up too: clearing then walks memory forwards, whoever found
/// what, and runs repeat. A run consists of whole pages, so that it gives long pieces at a time.
fn merge_runs(runs: &mut Vec<Vec<Object>>) -> Result<Vec<Object>, NoMemory> {
    if runs.len() <= 1 {
        // The only list there is, mostly: not a second time in memory.
        return Ok(runs.pop().unwrap_or_default());
    }
    let mut merged = Vec::new();
    merged.try_reserve_exact(runs.iter().map(Vec::len).sum())?;
    // The run with the least object first; it is compared with others by that one.
    let mut rest =
        BinaryHeap::from(fallible::collect(runs.iter().map(|run| Reverse(run.as_slice())))?);
    while let Some(Reverse(run)) = rest.pop() {
        let upto = match rest.peek() {
            Some(Reverse(next)) => run.partition_point(|object| *object < next[0]),
            None => run.len(),
        };
        let (piece, left) = run.split_at(upto);
        steps::took(upto);
        merged.extend_from_slice(piece);
        if !left.is_empty() {
            // In the place of what was popped: no memory is asked for.
            rest.push(Reverse(left));
        }
    }
    Ok(merged)
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[cfg(target_os = "linux")]
    #[test]
    fn the_logs_memory_is_kept_unless_there_is_much_garbage() {
        use std::sync::Arc;

        use crate::{Gc, GcCell, Heap, Pacing, Trace};

        /// Each fills a page, so that few of them have a large log.
        #[expect(dead_code, reason = "the numbers are there to fill the page")]
        struct Ring(GcCell<Option<Gc<Ring>>>, Arc<AtomicBool>, [u64; 6_000]);
        impl Trace for Ring {
            fn traverse(&self, tracer: &mut Tracer) {
                assert!(!self.1.load(Ordering::Relaxed), "on purpose");
                self.0.traverse(tracer);
            }
            fn clear(&self, m: &crate::Mutator) {
                self.0.clear(m);
            }
        }

        let heap = Heap::builder().workers(1).pacing(Pacing::manual()).build().unwrap();
        let mut m = heap.attach();
        let kept = |m: &crate::Mutator| m.raw().core().workers.spare.len();
        heap.on_unraisable(|_| {});
        let panics = Arc::new(AtomicBool::new(false));
        let mut rings = Vec::new();
        for _ in 0..900 {
            let ring = m.alloc(Ring(GcCell::default(), panics.clone(), [0; 6_000]));
            ring.get(&m).0.set(&m, Some(ring.clone()));
            rings.push(ring);
        }
        for (garbage, rooms) in [(0, 1), (50, 1), (180, 0), (0, 1), (140, 0)] {
            rings.truncate(rings.len() - garbage);
            assert_eq!((m.collect().collected, kept(&m)), (garbage, rooms));
            m.collect_young();
            assert_eq!(kept(&m), rooms, "young collections have no log");
        }
        assert_eq!((m.collect().collected, kept(&m)), (0, 1));
        // Next there is nothing to write down.
        let named: Vec<_> = rings.iter().map(|ring| heap.known_root(ring.clone())).collect();
        assert_eq!((m.collect().known_alive, kept(&m)), (rings.len(), 0));
        drop(named);
        assert_eq!((m.collect().collected, kept(&m)), (0, 1));
        // A young collection that is given up: memory may be why.
        let _new = m.alloc(Ring(GcCell::default(), panics.clone(), [0; 6_000]));
        panics.store(true, Ordering::Relaxed);
        assert!(m.collect_young().abandoned.is_some());
        panics.store(false, Ordering::Relaxed);
        assert_eq!(kept(&m), 0);
    }

    /// A heap of tracked objects that fill a page each, stopped, and all of its pages.
    fn stopped(
        pages: usize,
        f: impl FnOnce(&World<'_, crate::managed::Managed>, &Scope, &[usize]),
    ) {
        use crate::{Gc, GcCell, Heap, Pacing, Trace};

        #[expect(dead_code, reason = "the numbers are there to fill the page")]
        struct Page(GcCell<Option<Gc<Page>>>, [u64; 6_000]);
        impl Trace for Page {
            fn traverse(&self, tracer: &mut Tracer) {
                self.0.traverse(tracer);
            }
        }

        let heap =
            Heap::builder().workers(3).serial_below(0).pacing(Pacing::manual()).build().unwrap();
        let m = heap.attach();
        let kept: Vec<_> =
            (0..pages).map(|_| m.alloc(Page(GcCell::default(), [0; 6_000]))).collect();
        let world = m.raw().stop_here().expect("no other thread");
        let space = &world.core().space;
        let scope = Scope::new(space, CollectionKind::Full).expect("memory");
        let granules: Vec<usize> =
            scope.pages().iter().flat_map(|&page| granules_of(space, page)).flatten().collect();
        assert_eq!((granules.len(), scope.pages().len()), (pages, pages));
        f(&world, &scope, &granules);
        drop(world);
        drop(kept);
    }

    #[test]
    fn more_than_an_eighth_of_what_is_looked_at_is_much_garbage() {
        stopped(80, |world, scope, granules| {
            let marks = world.core().space.counts();
            let has_much = |unreached: &dyn Fn(usize) -> bool| {
                for (place, &at) in granules.iter().enumerate() {
                    marks[at].store(if unreached(place) { 0 } else { PUSHED }, Ordering::Relaxed);
                }
                let much = has_much_garbage(&world.core().space, scope);
                granules.iter().for_each(|&at| marks[at].store(0, Ordering::Relaxed));
                much
            };
            // 80 pages are more than 64: each second one is looked at.
            assert!(!has_much(&|_| false));
            assert!(!has_much(&|place| place % 2 == 0 && place < 10), "5 of 40");
            assert!(has_much(&|place| place % 2 == 0 && place < 12), "6 of 40");
            assert!(!has_much(&|place| place % 2 == 1), "nobody looks there");
            // No candidate is no garbage.
            for &at in granules {
                State(&world.core().space.states()[at]).set(state::FROZEN);
            }
            assert!(!has_much(&|_| true));
            for &at in granules {
                State(&world.core().space.states()[at]).unset(state::FROZEN);
            }
        });
        stopped(64, |world, scope, granules| {
            let marks = world.core().space.counts();
            granules.iter().for_each(|&at| marks[at].store(PUSHED, Ordering::Relaxed));
            granules[55..].iter().for_each(|&at| marks[at].store(0, Ordering::Relaxed));
            assert!(has_much_garbage(&world.core().space, scope), "9 of 64: all are looked at");
            granules.iter().for_each(|&at| marks[at].store(0, Ordering::Relaxed));
        });
        stopped(63, |world, scope, granules| {
            let marks = world.core().space.counts();
            granules[8..].iter().for_each(|&at| marks[at].store(PUSHED, Ordering::Relaxed));
            assert!(has_much_garbage(&world.core().space, scope), "8 of 63");
            granules.iter().for_each(|&at| marks[at].store(0, Ordering::Relaxed));
        });
    }

    #[test]
    fn the_sweep_lists_what_has_no_mark_and_ages_the_rest() {
        stopped(40, |world, scope, granules| {
            let space = &world.core().space;
            let (states, marks) = (space.states(), space.counts());
            let state = |place: usize| State(&states[granules[place]]).get();
            for workers in [1, 3] {
                for (place, &at) in granules.iter().enumerate() {
                    let is_reached = place % 4 != 0;
                    marks[at].store(if is_reached { PUSHED } else { 0 }, Ordering::Relaxed);
                    State(&states[at]).unset(state::OLD);
                    if place % 8 == 1 {
                        State(&states[at]).set(state::ALIVE);
                    }
                }
                // Frozen, so no candidate, whatever its mark.
                State(&states[granules[4]]).set(state::FROZEN);
                for &page in scope.pages() {
                    space.page(page as usize).young.store(1, Ordering::Relaxed);
                }
                let found = sweep(world, scope, workers).expect("memory");
                let expected: Vec<Object> = (0..40)
                    .filter(|place| place % 4 == 0 && *place != 4)
                    .map(|place| object_at(space, granules[place]))
                    .collect();
                assert_eq!(found, expected, "in the order of memory");
                for place in 0..40 {
                    let is_garbage = place % 4 == 0 && place != 4;
                    assert_eq!(state(place) & state::OLD == 0, is_garbage, "{place}");
                    assert_eq!(state(place) & state::ALIVE, 0, "{place}");
                }
                assert!(marks.iter().all(|mark| mark.load(Ordering::Relaxed) == 0));
                let is_young =
                    |&&page: &&u32| space.page(page as usize).young.load(Ordering::Relaxed) != 0;
                assert_eq!(
                    scope.pages().iter().filter(is_young).count(),
                    0,
                    "no page has a magazine"
                );
                State(&states[granules[4]]).unset(state::FROZEN);
            }
        });
    }

    /// Pages are handed out by arena: one thread comes to pages of high addresses first.
    #[test]
    fn what_the_sweep_lists_goes_up_where_pages_come_in_another_order() {
        stopped(8, |world, _, granules| {
            let space = &world.core().space;
            let (states, marks) = (space.states(), space.counts());
            let mut scope = Scope::new(space, CollectionKind::Full).expect("memory");
            let pages = scope.pages().to_vec();
            let arena = space.page(pages[0] as usize).arena();
            // SAFETY: rule W: the world is stopped.
            let own = |page: u32, arena: u32| unsafe { space.info(page).set_arena(arena) };
            pages[4..].iter().for_each(|&page| own(page, arena + 1));
            scope.sort_by_home(space).expect("memory");
            assert_eq!(scope.pages(), [&pages[4..], &pages[..4]].concat());
            for is_garbage in [false, true] {
                for &at in granules {
                    State(&states[at]).unset(state::OLD);
                    marks[at].store(if is_garbage { 0 } else { PUSHED }, Ordering::Relaxed);
                }
                let found = sweep(world, &scope, 1).expect("memory");
                let all = granules.iter().map(|&at| object_at(space, at)).filter(|_| is_garbage);
                assert!(found.into_iter().eq(all), "in the order of memory");
            }
            pages[4..].iter().for_each(|&page| own(page, arena));
        });
    }

    /// Counting by several workers lists them in any order.
    #[test]
    fn a_field_that_counting_could_not_read_either_is_no_reason_for_doubt() {
        use crate::collect::protocol::tests::Script;
        use crate::{Heap, Pacing};

        let builder = Heap::builder().reserve(1 << 28).workers(1).pacing(Pacing::manual());
        let heap = builder.build_with(Script::default()).unwrap();
        let m = heap.attach();
        let things: Vec<Object> = (0..5).map(|_| Script::thing(&m, 'h', "", "h")).collect();
        let world = m.stop_here().expect("no other thread");
        let space = &world.core().space;
        let scope = Scope::new(space, CollectionKind::Full).expect("memory");
        let unreadable: Vec<u32> =
            things.iter().rev().map(|&thing| granule(space, thing)).collect();
        for is_known in [true, false] {
            let stacks = vec![unreadable.clone()];
            let known = if is_known { unreadable.clone() } else { unreadable[1..].to_vec() };
            let mut counts = Counts::default();
            counts.unreadable = known;
            let roots = Roots { stacks, ..Roots::default() };
            let marked = mark(&world, &scope, &mut counts, roots, 1);
            assert_eq!(marked.is_ok(), is_known, "{marked:?}");
        }
        drop(world);
    }

    #[test]
    fn a_promotion_makes_each_young_object_old_and_counts_it() {
        stopped(10, |world, scope, granules| {
            let space = &world.core().space;
            let states = space.states();
            let is_old = |place: usize| State(&states[granules[place]]).get() & state::OLD != 0;
            // Frozen ones age, and are no candidates.
            State(&states[granules[3]]).set(state::FROZEN);
            assert!(!(0..10).any(is_old));
            // A page that is not young has nothing that is: it is not looked at.
            let page = space.page(scope.pages()[5] as usize);
            page.young.store(0, Ordering::Relaxed);
            assert_eq!(promote(world), 8);
            assert!((0..10).all(|place| is_old(place) == (place != 5)));
            State(&states[granules[3]]).unset(state::FROZEN);
            assert!(
                scope.pages().iter().all(|&page| space
                    .page(page as usize)
                    .young
                    .load(Ordering::Relaxed)
                    == 0)
            );
            assert_eq!(promote(world), 0, "nothing is new");
            page.young.store(1, Ordering::Relaxed);
            assert_eq!(promote(world), 1);
        });
    }

    #[test]
    fn a_worker_waits_for_work_as_long_as_another_one_may_give_some() {
        let pool = Pool::new();
        let idle = || pool.idle.load(Ordering::Relaxed);
        let waiting = || pool.waiting.load(Ordering::Relaxed);
        pool.joined.store(2, Ordering::Relaxed);
        for chunk in [1, 2] {
            pool.give(vec![chunk]).expect("memory");
            assert_eq!(waiting(), chunk as usize);
        }
        assert_eq!(pool.take(), Some(vec![2]));
        assert_eq!((idle(), waiting()), (0, 1), "who has work is not idle");
        assert_eq!(pool.steal(), Some(vec![1]));
        assert_eq!((pool.steal(), waiting()), (None, 0));
        // The other one gives its work away while this one waits, and then has nothing either.
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while idle() == 0 {
                    yield_now();
                }
                pool.give(vec![3]).expect("memory");
                // It is taken before the giver is idle.
                while waiting() > 0 {
                    yield_now();
                }
                assert_eq!(pool.take(), None);
            });
            assert_eq!(pool.take(), Some(vec![3]));
            assert_eq!(pool.take(), None, "both are idle: that is all");
        });
        assert_eq!(idle(), 2);
        // Where one has failed, others need not wait.
        let pool = Pool::new();
        pool.joined.store(2, Ordering::Relaxed);
        pool.failed.store(true, Ordering::Relaxed);
        assert_eq!(pool.take(), None);
    }

    #[test]
    fn work_is_given_away_only_to_who_waits_for_some() {
        let given = |idle: usize, waiting: usize, len: usize, most: usize| {
            let pool = Pool::new();
            pool.idle.store(idle, Ordering::Relaxed);
            for _ in 0..waiting {
                pool.give(vec![]).expect("memory");
            }
            let mut stack: Vec<u32> = (0..len as u32).collect();
            give_oldest(&mut stack, &pool, most);
            let chunk = pool.chunks.lock().split_off(waiting).pop().unwrap_or_default();
            assert_eq!(chunk.len() + stack.len(), len);
            assert!(chunk.iter().copied().eq(0..chunk.len() as u32), "the oldest");
            chunk.len()
        };
        assert_eq!(given(1, 0, 9, 100), 5);
        assert_eq!(given(1, 0, 9, 3), 3);
        assert_eq!(given(1, 1, 9, 100), 0, "there is a chunk for the one who waits");
        assert_eq!(given(2, 1, 9, 100), 5);
        assert_eq!(given(1, 0, 0, 100), 0);
        let pool = Pool::new();
        pool.idle.store(1, Ordering::Relaxed);
        give_oldest(&mut Vec::new(), &pool, 100);
        assert!(pool.chunks.lock().is_empty(), "nothing is no chunk");
    }

    /// A worker whose stack holds all there is to mark, and another that takes each chunk at once.
    #[test]
    fn work_that_is_given_away_costs_what_is_given_however_much_is_left() {
        for n in [0, 1, 2, CHUNK, 2 * CHUNK, 2 * CHUNK + 1, 100 * CHUNK + 7] {
            let pool = Pool::new();
            pool.joined.store(2, Ordering::Relaxed);
            pool.idle.store(1, Ordering::Relaxed);
            let mut stack: Vec<u32> = (0..n as u32).collect();
            let mut given = Vec::new();
            let ((), steps) = steps::during(|| {
                while !stack.is_empty() {
                    give_oldest(&mut stack, &pool, CHUNK);
                    give_oldest(&mut stack, &pool, CHUNK);
                    let chunk = pool.steal().expect("a chunk");
                    assert!(pool.steal().is_none(), "one is enough for one who is idle");
                    given.extend(chunk);
                }
            });
            assert!(steps <= 2 * n, "{steps} steps to give {n} away");
            assert_eq!(given.first().copied(), (n > 0).then_some(0), "the oldest first");
            given.sort_unstable();
            assert!(given.into_iter().eq(0..n as u32), "each once");
        }
    }

    #[test]
    fn runs_that_go_up_become_one_that_does() {
        let run = |addresses: &[usize]| -> Vec<Object> {
            let object = |&a: &usize| {
                Object::new(std::ptr::NonNull::without_provenance(a.try_into().unwrap()))
            };
            addresses.iter().map(object).collect()
        };
        for runs in [vec![], vec![&[1, 2][..]], vec![&[1, 2, 9, 10], &[3, 4, 12], &[5, 11]]] {
            let mut all = runs.concat();
            all.sort_unstable();
            let mut runs = runs.into_iter().map(run).collect();
            assert_eq!(merge_runs(&mut runs).unwrap(), run(&all));
        }
    }
}
