//! The search of a child of the process, which proposes objects that may be garbage.
//!
//! A [child](crate::heap::child) has a copy of the heap that nothing changes, and all the time that
//! it needs. It searches as [the collector does](super::search), but alone, and without memory of
//! the program. Its result is a *proposal*, which [the collector proves](super::forked) in short
//! stops. So a wrong proposal costs time, and no live object can be lost by it.
//!
//! For example, A and B refer to each other, as do C and D, and E has a handle. The child
//!
//! 1. has the bits of all five set, for the candidates, as none is marked;
//! 2. traverses them, and adds 1 to the sum of each target. It subtracts the count of each from its
//!    own sum;
//! 3. finds that the sum of E is not 0, so E is a root. It clears the bit of E, and those of all
//!    that E reaches;
//! 4. divides the other four, whose bits are left, into *parts*: A with B, and C with D. No
//!    reference leads from one part to another, so that each can be proven and collected alone;
//! 5. writes them into memory that both processes share.
//!
//! # Parts
//!
//! Garbage of a million objects would make the second stop long. But mostly it is many small
//! structures that know nothing of each other, so the child joins objects that refer to each other
//! (union-find), and puts such groups together until a part has at least `least` objects. A group
//! is never divided, because no part of a cycle could be proven without the rest.
//!
//! # Memory
//!
//! For each granule (32 bytes) of the heap two bits and a byte are written. There is room for 20
//! bytes more, of which mostly little is written, because the system gives a page at its first
//! write, and the rooms are large only for the worst case:
//!
//! * a table of large sums, into which a sum carries that leaves its byte. Few objects have so many
//!   references.
//! * the list of marked objects that are not traversed yet;
//! * the leaders and the keys of garbage, by which it is divided.

#![forbid(unsafe_code)]

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::base::fallible::NoMemory;
use crate::base::system::process::{self, Bound};
use crate::collect::calls::{Abandoned, BATCH_PART, guard_traversal, part, traverse_batch};
use crate::collect::candidates::matching;
use crate::collect::ephemerons::{self, WeakPair};
use crate::collect::listing::{self, Adjustments};
use crate::collect::scope::{Selection, granules_of, object_at, stopped_at};
use crate::heap::child::{self, ChildRoom, JobError, NoAnswer, SharedMemory};
use crate::heap::core::Core;
use crate::heap::mark_tables::{PAGE_WORDS, WORD, each_bit};
use crate::heap::model::{Count, ObjectModel};
use crate::heap::parts::*;
use crate::heap::unfinished::{
    CANDIDATES, FIRST_UNREADABLE, HEAD, NANOSECONDS, OnlyChild, PART, Searching, UNREADABLE,
};
use crate::heap::world::World;
use crate::memory::shape::PAGE_GRANULES;
use crate::object::state;
use crate::object::tracer::Tracer;

/// The most references of [`BATCH_PART`] objects.
const MOST_REFERENCES: usize = 1 << 24;

/// The objects that the child takes from its list at once, so that it can fetch them ahead.
const TAKEN: usize = 4096;
/// How many objects ahead of the traversal an object is fetched.
const AHEAD: usize = 4 * BATCH_PART;

/// The child is ended after this time, and that for each granule, which is about ten times as long
/// as a search takes.
const LEAST_TIME: Duration = Duration::from_secs(5);
const TIME_PER_GRANULE: Duration = Duration::from_micros(1);

/// What the model tells about its objects in the stop of the clone, because the child may take no
/// lock.
pub(super) struct Told {
    /// The granules of roots, which stay alive with all that they reach.
    roots: Vec<u32>,
    adjustments: Adjustments,
    ephemerons: Vec<WeakPair>,
}

impl Told {
    pub(super) fn by_model<M: ObjectModel>(world: &World<'_, M>) -> Result<Self, Abandoned> {
        let states = world.core().space.states();
        // Relaxed: in a stop.
        let is_candidate = |at: usize| state::is_candidate(states[at].load(Ordering::Relaxed));
        let roots = listing::roots(world, is_candidate, Selection::Full)?;
        let ephemerons = ephemerons::list(world, is_candidate)?;
        let mut adjustments = Adjustments::ask(world, is_candidate)?;
        adjustments.add_ephemerons(&ephemerons)?;
        Ok(Self { roots, adjustments, ephemerons })
    }
}

/// A tracer for the child, from the program's allocator. The system gives its memory later.
pub(super) fn tracer<M: ObjectModel>(core: &Core<M>) -> Result<Tracer, NoMemory> {
    const { assert!(MOST_REFERENCES < u32::MAX as usize) };
    let (start, bytes) = core.space.bounds();
    let mut tracer = Tracer::for_child(start, bytes, MOST_REFERENCES)?;
    tracer.refuses_uncounted = !UncountedOf::<M>::PRESENT;
    Ok(tracer)
}

/// Clones a child that searches.
pub(super) fn begin<M: ObjectModel>(
    world: &World<'_, M>,
    (mut tracer, only): (Tracer, OnlyChild),
    told: &Told,
    least: usize,
) -> Result<Searching, NoAnswer> {
    let granules = world.core().space.high_water() * PAGE_GRANULES;
    let memory = SharedMemory::new(HEAD + granules).map_err(NoAnswer::Refused)?;
    let limit = LEAST_TIME + TIME_PER_GRANULE * u32::try_from(granules).unwrap_or(u32::MAX);
    let parent = std::process::id();
    let begun = world.core().pace.beside_search();
    // Its thread may end while others go on with the collection.
    let child = child::clone_for(world, (limit, Bound::Process), |world| {
        let begun = Instant::now();
        let room = ChildRoom::new(ProposalSearch::<M>::room(granules))?;
        let proposed = guard_traversal(world, &mut tracer, |tracer| {
            ProposalSearch::new(world, tracer, &room, parent)?.run(&memory, told, least)
        });
        let words = memory.words();
        words[NANOSECONDS].store(begun.elapsed().as_nanos() as u64, Ordering::Relaxed);
        proposed.unwrap_or(Err(JobError::Panic))
    })?;
    Ok(Searching { child, memory, only, begun })
}

/// The search, on one thread.
struct ProposalSearch<'r, 'w, M: ObjectModel> {
    world: &'r World<'w, M>,
    tracer: &'r mut Tracer,
    room: &'r ChildRoom,
    /// The process that has cloned this one.
    parent: u32,
    /// A bit for each granule: an unmarked candidate.
    unmarked: &'r mut [u64],
    /// For each granule: the references that were found, minus the count, as an `i8`.
    sums: &'r mut [u8],
    /// For each granule: what its byte has carried, as an `i32`.
    carries: &'r mut [u32],
    /// A bit for each granule whose byte has carried.
    has_carried: &'r mut [u64],
    /// The granules of marked objects that are not traversed.
    list: &'r mut [u32],
    len: usize,
    candidates: usize,
    unreadable: usize,
    /// The granules of the first ones.
    some_unreadable: [u32; HEAD - FIRST_UNREADABLE],
}

impl<'r, 'w, M: ObjectModel> ProposalSearch<'r, 'w, M> {
    /// The bytes of the room for so many granules.
    fn room(granules: usize) -> usize {
        // The tables, and then for the garbage, of at most one object a granule, leaders and keys.
        granules / 4 + (1 + 4 + 4) * granules + (4 + 8) * granules + (1 << 16)
    }

    /// Finds the candidates.
    fn new(
        world: &'r World<'w, M>,
        tracer: &'r mut Tracer,
        room: &'r ChildRoom,
        parent: u32,
    ) -> Result<Self, JobError> {
        let space = &world.core().space;
        let pages = space.high_water();
        let granules = pages * PAGE_GRANULES;
        let (unmarked, mut candidates) = (room.take::<u64>(pages * PAGE_WORDS)?, 0);
        for page in 0..pages {
            let Some(range) = granules_of(space, page as u32) else { continue };
            for granule in range.clone().step_by(WORD) {
                let mut states = [0; WORD];
                let end = (granule + WORD).min(range.end);
                for (to, state) in states.iter_mut().zip(&space.states()[granule..end]) {
                    // Relaxed: nothing changes in the child.
                    *to = state.load(Ordering::Relaxed);
                }
                // The one object of a large page need not begin at a word.
                let bits = matching(&states[..end - granule], Selection::Full);
                unmarked[granule / WORD] |= bits << (granule % WORD);
                candidates += bits.count_ones() as usize;
            }
        }
        Ok(Self {
            world,
            tracer,
            room,
            parent,
            unmarked,
            sums: room.take(granules)?,
            carries: room.take(granules)?,
            has_carried: room.take(pages * PAGE_WORDS)?,
            list: room.take(candidates)?,
            len: 0,
            candidates,
            unreadable: 0,
            some_unreadable: [0; HEAD - FIRST_UNREADABLE],
        })
    }

    /// Searches, and writes the proposal. Returns the number of proposed objects.
    fn run(mut self, memory: &SharedMemory, told: &Told, least: usize) -> Result<u64, JobError> {
        for &root in &told.roots {
            self.mark(root as usize);
        }
        // What roots reach need not be counted.
        self.follow()?;
        for (granule, by) in told.adjustments.iter() {
            self.carry(granule as usize, by.saturating_neg());
        }
        self.count()?;
        let words = memory.words();
        // Before the objects are traversed once more.
        let unreadable = self.unreadable;
        for (to, &granule) in words[FIRST_UNREADABLE..HEAD].iter().zip(&self.some_unreadable) {
            to.store(granule.into(), Ordering::Relaxed);
        }
        self.find_roots()?;
        self.follow()?;
        // In rounds, because a map of what waits would take memory. A chain of very many entries
        // takes longer than a child may, and the search in a stop takes its place.
        while self.fire(&told.ephemerons) {
            self.follow()?;
        }
        words[CANDIDATES].store(self.candidates as u64, Ordering::Relaxed);
        words[UNREADABLE].store(unreadable as u64, Ordering::Relaxed);
        self.divide(&words[HEAD..], told, least)
    }

    /// Marks the unmarked values of the entries whose tables and keys are marked. `false`: there
    /// are none.
    fn fire(&mut self, entries: &[WeakPair]) -> bool {
        for &WeakPair { needs, value } in entries {
            if !needs.into_iter().any(|need| self.is_unmarked(need)) {
                self.mark(value as usize);
            }
        }
        self.len > 0
    }

    /// Whether an unmarked candidate is at a granule, which may lie outside of the heap.
    fn is_unmarked(&self, granule: u32) -> bool {
        let word = self.unmarked.get(granule as usize / WORD);
        word.is_some_and(|word| word & 1 << (granule as usize % WORD) != 0)
    }

    /// Marks the candidate at a granule, and adds it to the list, unless it is marked or none.
    #[inline(always)]
    fn mark(&mut self, granule: usize) {
        let (word, bit) = (granule / WORD, 1 << (granule % WORD));
        if self.unmarked[word] & bit != 0 {
            self.unmarked[word] &= !bit;
            self.list[self.len] = granule as u32;
            self.len += 1;
        }
    }

    /// Traverses the marked objects, and marks all that they reach.
    fn follow(&mut self) -> Result<(), JobError> {
        let mut taken = [0; TAKEN];
        while self.len > 0 {
            process::leave_orphan(self.parent);
            // The last ones, so that one part of the heap is finished before the next.
            let rest = self.len.saturating_sub(TAKEN);
            let taken = &mut taken[..self.len - rest];
            taken.copy_from_slice(&self.list[rest..self.len]);
            self.len = rest;
            self.prefetch(&taken[..taken.len().min(AHEAD)]);
            for first in (0..taken.len()).step_by(BATCH_PART) {
                self.prefetch(part(taken, first + AHEAD));
                self.traverse(part(taken, first))?;
                for at in 0..self.tracer.edges().len() {
                    self.mark(self.target(at));
                }
                self.mark_uncounted()?;
            }
        }
        Ok(())
    }

    /// Marks the targets of the uncounted references that were just reported.
    fn mark_uncounted(&mut self) -> Result<(), JobError> {
        if UncountedOf::<M>::PRESENT {
            let before = self.tracer.edges().len();
            self.tracer.add_uncounted(|_| true).map_err(|NoMemory| JobError::Room)?;
            for at in before..self.tracer.edges().len() {
                self.mark(self.target(at));
            }
        }
        Ok(())
    }

    /// Counts the references from the unmarked candidates. Those without a count are roots.
    fn count(&mut self) -> Result<(), JobError> {
        let mut on_page = [0; PAGE_GRANULES];
        for page in 0..self.unmarked.len() / PAGE_WORDS {
            process::leave_orphan(self.parent);
            let mut len = 0;
            for word in page * PAGE_WORDS..(page + 1) * PAGE_WORDS {
                each_bit(word * WORD, self.unmarked[word], |granule| {
                    on_page[len] = granule as u32;
                    len += 1;
                });
            }
            let on_page = &on_page[..len];
            self.prefetch(&on_page[..len.min(AHEAD)]);
            for first in (0..len).step_by(BATCH_PART) {
                self.prefetch(part(on_page, first + AHEAD));
                self.traverse(part(on_page, first))?;
                for &granule in part(on_page, first) {
                    self.take_own(granule as usize);
                }
                for at in 0..self.tracer.edges().len() {
                    self.add(self.target(at), 1);
                }
            }
        }
        Ok(())
    }

    /// Subtracts the count of an object from its sum.
    #[inline(always)]
    fn take_own(&mut self, granule: usize) {
        let Some(object) = stopped_at(self.world, granule) else { return };
        match self.world.core().model.count(object) {
            Count::Exact(count @ 1..128) => self.add(granule, -(count as i8)),
            Count::Exact(0) if zero_is_dying::<M>() => self.mark(granule),
            Count::Exact(count) => self.carry(granule, -count),
            Count::Outside | Count::Immortal => self.mark(granule),
        }
    }

    #[inline(always)]
    fn add(&mut self, granule: usize, by: i8) {
        let (sum, wrapped) = (self.sums[granule] as i8).overflowing_add(by);
        self.sums[granule] = sum as u8;
        if wrapped {
            self.carry(granule, if by > 0 { 256 } else { -256 });
        }
    }

    #[cold]
    fn carry(&mut self, granule: usize, by: i64) {
        // A number that is too large makes a sum wrong, and so a proposal at worst.
        let by = by.clamp(i32::MIN.into(), i32::MAX.into()) as i32;
        let carried = self.carries[granule].cast_signed().saturating_add(by);
        self.carries[granule] = carried.cast_unsigned();
        self.has_carried[granule / WORD] |= 1 << (granule % WORD);
    }

    /// Marks the unmarked candidates whose sums are not 0. The error is a traversal that is wrong,
    /// which the search in a stop reports.
    fn find_roots(&mut self) -> Result<(), JobError> {
        let mut result = Ok(());
        for word in 0..self.unmarked.len() {
            let carried = self.has_carried[word];
            each_bit(word * WORD, self.unmarked[word], |granule| {
                let mut sum = i32::from(self.sums[granule] as i8);
                if carried & 1 << (granule % WORD) != 0 {
                    sum = sum.wrapping_add(self.carries[granule].cast_signed());
                }
                if sum > 0 {
                    result = Err(JobError::Overvisited);
                } else if sum != 0 {
                    self.mark(granule);
                }
            });
        }
        result
    }

    /// Traverses some objects, so that their edges are in the tracer afterwards. Returns where
    /// those of each end.
    #[inline(always)]
    fn traverse(&mut self, granules: &[u32]) -> Result<[u32; BATCH_PART], JobError> {
        let mut ends = [0; BATCH_PART];
        self.tracer.clear();
        self.tracer.forget_uncounted();
        let world = self.world;
        let mut objects = granules.iter().filter_map(|&at| stopped_at(world, at as usize));
        let Some(first) = objects.next() else { return Ok(ends) };
        let (mut batch, mut len) = ([first; BATCH_PART], 1);
        for object in objects {
            batch[len] = object;
            len += 1;
        }
        let (unreadable, some_unreadable) = (&mut self.unreadable, &mut self.some_unreadable);
        let core = world.core();
        traverse_batch(&core.model, &batch[..len], self.tracer, &mut ends, |at| {
            if let Some(place) = some_unreadable.get_mut(*unreadable) {
                *place = core.space.granule(batch[at].address()) as u32;
            }
            *unreadable += 1;
            Ok(())
        })
        .map_err(|NoMemory| JobError::Room)?;
        Ok(ends)
    }

    fn prefetch(&self, granules: &[u32]) {
        let space = &self.world.core().space;
        granules.iter().for_each(|&granule| object_at(space, granule as usize).prefetch());
    }

    /// The granule of the target of an edge in the tracer.
    #[inline(always)]
    fn target(&self, at: usize) -> usize {
        self.world.core().space.granule(self.tracer.edges()[at])
    }

    /// Divides the unmarked candidates into parts, and writes them. Returns their number.
    fn divide(mut self, to: &[AtomicU64], told: &Told, least: usize) -> Result<u64, JobError> {
        let proposed = self.unmarked.iter().map(|word| word.count_ones() as usize).sum();
        let keys = self.room.take::<u64>(proposed)?;
        let mut len = 0;
        for (at, &word) in self.unmarked.iter().enumerate() {
            each_bit(at * WORD, word, |granule| {
                keys[len] = granule as u64;
                len += 1;
            });
        }
        if proposed > least {
            self.group(keys, &told.ephemerons)?;
            // By the group's first object, so that a part lies together in memory.
            keys.sort_unstable();
        }
        let (mut number, mut begun) = (0, 0);
        for (at, &key) in keys.iter().enumerate() {
            let is_group = at > 0 && key >> PART != keys[at - 1] >> PART;
            if is_group && at - begun >= least {
                (number, begun) = (number + 1, at);
            }
            let word = number << PART | u64::from(key as u32);
            to.get(at).ok_or(JobError::Room)?.store(word, Ordering::Relaxed);
        }
        Ok(proposed as u64)
    }

    /// Adds to each granule, from bit [`PART`] on, the first granule of its group: the candidates
    /// that references join. An entry leads to its value from its table and from its key.
    fn group(&mut self, keys: &mut [u64], entries: &[WeakPair]) -> Result<(), JobError> {
        // For each granule: another one of its group, or itself. 0 stands for no candidate, so that
        // each is stored plus 1.
        let leaders = self.room.take::<u32>(self.sums.len())?;
        for &granule in &*keys {
            leaders[granule as usize] = granule as u32 + 1;
        }
        for few in keys.chunks(BATCH_PART) {
            let mut granules = [0; BATCH_PART];
            granules.iter_mut().zip(few).for_each(|(to, &granule)| *to = granule as u32);
            let granules = &granules[..few.len()];
            let ends = self.traverse(granules)?;
            let mut at = 0;
            for (&granule, &end) in granules.iter().zip(&ends) {
                while at < end as usize {
                    join(leaders, granule, self.target(at));
                    at += 1;
                }
            }
        }
        for &WeakPair { needs, value } in entries {
            for need in needs.into_iter().filter(|&need| self.is_unmarked(need)) {
                join(leaders, need, value as usize);
            }
        }
        for key in keys {
            *key |= u64::from(leader(leaders, *key as u32)) << PART;
        }
        Ok(())
    }
}

/// The first granule of a group.
fn leader(leaders: &mut [u32], mut granule: u32) -> u32 {
    while leaders[granule as usize] != granule + 1 {
        // Halves the path, so that it is short the next time.
        let next = leaders[granule as usize] - 1;
        leaders[granule as usize] = leaders[next as usize];
        granule = next;
    }
    granule
}

/// Joins the groups of two granules, if a candidate is at the other one.
fn join(leaders: &mut [u32], granule: u32, target: usize) {
    if leaders[target] != 0 {
        let (one, other) = (leader(leaders, granule), leader(leaders, target as u32));
        leaders[one.max(other) as usize] = one.min(other) + 1;
    }
}
