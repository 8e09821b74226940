//! The right to collect, which one thread of a heap has at a time.
//!
//! Two collections that ran at once would claim the same garbage, so a thread that collects holds
//! the [`CollectorLock`]. A collection that a thread requested is over when the call returns. But
//! one that the heap started goes on after its finalizers have run, because its garbage waits in a
//! [`ReclaimQueue`] while the world runs. Each mutator takes a [`GarbageBatch`] from it at its own
//! safepoints. So no thread reclaims the garbage of all threads in one long pause, and each frees
//! cells on its own pages.
//!
//! For example, thread 1 has handed over a queue with garbage of threads 1 and 2, and goes on with
//! the program. Thread 3 requests a collection, so it enters the queue of requesters, takes a
//! batch, and then waits. Thread 2 finishes the last batch, so it has the lock, ends the collection
//! and releases the lock. Thread 3 acquires it, because it is the first requester.
//!
//! # States
//!
//! | [`Stage`] | the queue | next |
//! |---|---|---|
//! | `Free` | none | `Taken`, by `try_acquire` |
//! | `Taken` | none | `Free`, by `release`; or `Claimed`, by `set_claimed` |
//! | `Claimed` | none | `Taken`, by `set_releasing`; or `Reclaiming`, by `hand_over` |
//! | `Reclaiming` | objects to clear and to release | `Taken`, by the last batch |
//!
//! Only the thread that took a batch finishes it, so the queue ends with its last batch, on any
//! thread, and that thread ends the collection and releases the lock. A heap has one queue at a
//! time, which belongs to the collection that holds the lock.
//!
//! # Order
//!
//! A thread that must collect enters a queue of requesters ([`CollectorLock::request`]), of which
//! the first acquires the lock next. While there are requesters, [`CollectorLock::try_acquire`]
//! fails, so that collections that the heap starts, and collections that do not wait, give way. So
//! a requester waits for the collection that runs and for the requesters before it, however many
//! threads make garbage.
//!
//! # Progress
//!
//! No thread has to work on the reclaim queue, so a thread that waits for the lock must help. It
//! takes batches of any thread while [`Request::wait`] returns because there are some, until all
//! batches are in the hands of running threads.
//!
//! A running thread may call a finalizer or a destructor that does not return, so a requester wakes
//! up after a while. If no thread has since then taken or released the lock or a batch,
//! [`Request::wait`] returns the threads that have them, for a report.
//!
//! A mutex protects all of this, and is locked a few times per thousand objects. Detached threads
//! wait here, also during a fork, so the fork holds the mutex, and it survives the fork.
//!
//! # Forks
//!
//! A fork stops the world, and does not wait for the collector lock, because the thread that has it
//! may wait for the forking thread. So a thread may be lost that has the lock or a batch. The
//! forking thread has neither, because its mutator is not lent. The child abandons the collection
//! ([`LockState::abandon`]), so that the lock is free, and a [`LostCollection`] tells which objects
//! still have the claim's reference:
//!
//! * In the stage `Claimed`, those with the state bit `UNREACHABLE`.
//! * In the stage `Reclaiming`, those that no thread has taken.
//! * In any stage, those that a thread has announced before it parked ([`CollectorLock::parks`]),
//!   because a thread parks only there while it clears and releases.

#![forbid(unsafe_code)]

use std::collections::VecDeque;
use std::marker::PhantomData;
use std::time::{Duration, Instant};

use crate::base::fallible;
use crate::base::sync::{AtomicBool, IS_MODEL, Ordering};
use crate::heap::reclaim_queue::{GarbageBatch, OpenReport, Owner, ReclaimQueue};
use crate::object::live::Live;
use crate::safepoint::{ThreadId, attached_as, lock};

/// The lock of the collecting thread, with the queue of its requesters.
#[derive(Debug)]
pub(crate) struct CollectorLock {
    state: lock::ForkMutex<LockState>,
    /// The lock was released, or there are batches to take.
    change: lock::ForkCondvar,
    /// Whether there is a reclaim queue. A hint for threads at safepoints.
    reclaiming: AtomicBool,
    /// From when on, in nanoseconds since `epoch`, a thread should go on with the unfinished
    /// collection. `u64::MAX`: there is none. A hint too. Of `std`, because models have no clock.
    goes_on: std::sync::atomic::AtomicU64,
    /// Its child has searched.
    has_proposal: std::sync::atomic::AtomicBool,
    /// The number of the thread that looks at each of its safepoints whether to go on, because the
    /// others look at their refills alone, which a program without allocations does not reach. 0:
    /// none, as that thread has ended. Then it is one of those that are attached.
    keeper: std::sync::atomic::AtomicU64,
    epoch: Instant,
}

/// The stage of the collection that holds the lock, as the table above shows.
#[derive(Debug, Default)]
#[expect(clippy::large_enum_variant, reason = "a heap has one, and a box needs memory")]
enum Stage {
    #[default]
    Free,
    Taken,
    /// The collecting thread has a reference to each object with the state bit `UNREACHABLE`.
    Claimed,
    Reclaiming(ReclaimQueue),
}

impl Stage {
    fn queue(&mut self) -> Option<&mut ReclaimQueue> {
        match self {
            Self::Reclaiming(queue) => Some(queue),
            Self::Free | Self::Taken | Self::Claimed => None,
        }
    }
}

/// The rest of a collection whose thread does not exist in the child of a fork, which are the
/// objects that still have the claim's reference. An object may be named twice.
#[derive(Debug)]
pub(crate) struct LostCollection {
    /// Each object with the state bit `UNREACHABLE` has one.
    pub(crate) all_unreachable: bool,
    /// The objects that no thread has taken have one.
    pub(crate) queue: Option<ReclaimQueue>,
    pub(crate) parked: Vec<ParkedClaims>,
}

/// The objects whose references a thread has not released yet, while it is parked. They lie in
/// memory of that thread.
#[derive(Debug)]
pub(crate) struct ParkedClaims {
    thread: u64,
    /// The address of the first one, with exposed provenance.
    pub(crate) first: usize,
    pub(crate) len: usize,
}

#[derive(Debug, Default)]
pub(crate) struct LockState {
    stage: Stage,
    /// The number of threads that wait for a change, as a notification costs time even without any.
    waiting: usize,
    /// The numbers of the requesters, of which the first acquires the lock next.
    requesters: VecDeque<u64>,
    last_number: u64,
    /// How many reclaim queues there were, as the number of the last one.
    queues: u64,
    /// The participants that hold the lock or a batch, for reports. A participant for which there
    /// was no memory is missing.
    active: Vec<u64>,
    /// How often `active` has changed.
    changes: u64,
    /// How long a thread had waited since the last change when it reported its wait.
    last_report: Duration,
    /// A collection that waits for its child, or has parts of a proposal left, while the lock is
    /// free or other collections have it.
    unfinished: Option<OpenReport>,
    /// Of the threads that are parked while they clear or release garbage. Without memory for its
    /// entry, the references of a thread leak in the child of a fork.
    parked: Vec<ParkedClaims>,
}

impl LockState {
    /// Records that this thread has acquired the lock, or has taken a batch.
    fn add_active(&mut self) {
        if self.active.try_reserve(1).is_ok() {
            self.active.push(attached_as());
        }
        self.record_change();
    }

    fn remove_active(&mut self) {
        let me = attached_as();
        if let Some(at) = self.active.iter().position(|&other| other == me) {
            self.active.swap_remove(at);
        }
        self.record_change();
    }

    fn clear_active(&mut self) {
        self.active.clear();
        self.record_change();
    }

    fn record_change(&mut self) {
        self.changes += 1;
        self.last_report = Duration::ZERO;
    }

    /// The report of a thread that has waited for so long since the last change, or `None` if a
    /// thread has reported this, and the wait has not doubled since.
    fn overdue(&mut self, waited: Duration) -> Option<Overdue> {
        if waited < 2 * self.last_report {
            return None;
        }
        self.last_report = waited;
        // Without memory the report names no thread.
        let by = fallible::collect(self.active.iter().copied()).unwrap_or_default();
        Some(Overdue { waited, by })
    }

    /// Whether the requester with this number may acquire the lock now, or, without a number, a
    /// thread that is no requester.
    fn is_free_for(&self, number: Option<u64>) -> bool {
        matches!(self.stage, Stage::Free)
            && self.requesters.front().is_none_or(|&first| Some(first) == number)
    }

    fn has_batches(&mut self) -> bool {
        self.stage.queue().is_some_and(|queue| queue.has_batches())
    }

    /// In the child of a fork, where neither the threads that waited nor the thread that collected
    /// exist. `None` if no thread collected.
    pub(crate) fn abandon(&mut self) -> Option<LostCollection> {
        self.clear_active();
        self.requesters.clear();
        self.waiting = 0;
        let parked = std::mem::take(&mut self.parked);
        let (all_unreachable, queue) = match std::mem::take(&mut self.stage) {
            Stage::Free => return None,
            Stage::Taken => (false, None),
            Stage::Claimed => (true, None),
            Stage::Reclaiming(queue) => (false, Some(queue)),
        };
        Some(LostCollection { all_unreachable, queue, parked })
    }
}

impl CollectorLock {
    pub(crate) fn new() -> Self {
        Self {
            state: lock::ForkMutex::new(LockState::default()),
            change: lock::ForkCondvar::new(),
            reclaiming: AtomicBool::new(false),
            goes_on: std::sync::atomic::AtomicU64::new(u64::MAX),
            has_proposal: std::sync::atomic::AtomicBool::new(false),
            keeper: std::sync::atomic::AtomicU64::new(0),
            epoch: Instant::now(),
        }
    }

    /// Acquires the lock, unless a thread has it, or has requested it, or garbage is left.
    pub(crate) fn try_acquire(&self) -> bool {
        self.acquire_as(None)
    }

    fn acquire_as(&self, number: Option<u64>) -> bool {
        let mut state = self.state.lock();
        let is_free = state.is_free_for(number);
        if is_free {
            state.stage = Stage::Taken;
            state.add_active();
        }
        is_free
    }

    /// Makes the caller the last requester.
    pub(crate) fn request(&self) -> Request<'_> {
        let mut state = self.state.lock();
        state.last_number += 1;
        let number = state.last_number;
        // Without memory for its number the thread waits until there is no other requester.
        if state.requesters.try_reserve(1).is_ok() {
            state.requesters.push_back(number);
        }
        Request { lock: self, number, waited: Duration::ZERO, changes: state.changes }
    }

    /// Waits a few milliseconds for a change. The caller is only slowed down, because the
    /// finalizers of the thread that has the lock may wait for something that the caller has.
    pub(crate) fn wait_briefly(&self) {
        let mut state = self.state.lock();
        // Batches may have come since the caller looked, and their thread may have ended. Then no
        // thread would wake the caller.
        if !state.is_free_for(None) && !state.has_batches() {
            state.waiting += 1;
            (state, _) = self.change.wait_for(state, Duration::from_millis(5));
            state.waiting -= 1;
        }
    }

    pub(crate) fn lock_for_fork(&self) -> (lock::ForkHold<'_>, lock::Guard<'_, LockState>) {
        self.state.lock_for_fork()
    }

    /// Separates readers of state bytes that no stop waits for from a stop that writes state bytes
    /// as plain memory, since both lock the mutex.
    pub(crate) fn lock_states(&self) -> lock::Guard<'_, LockState> {
        self.state.lock()
    }

    /// Ends a fork in its child, by abandoning the collection of a thread that does not exist here.
    /// `None` if no thread collected.
    /// The second value is the collection that was put off, which the parent goes on with.
    pub(crate) fn abandon_with(
        &self,
        state: &mut LockState,
    ) -> (Option<LostCollection>, Option<OpenReport>) {
        // Relaxed: this is the only thread.
        self.reclaiming.store(false, Ordering::Relaxed);
        self.go_on_at(u64::MAX);
        let unfinished = state.unfinished.take();
        (state.abandon(), unfinished)
    }

    pub(crate) fn release(&self) {
        let mut state = self.state.lock();
        state.stage = Stage::Free;
        state.clear_active();
        self.notify_change(state);
    }

    /// The caller, which holds the collector lock, has taken a reference to each object with the
    /// state bit `UNREACHABLE`.
    pub(crate) fn set_claimed(&self) {
        self.state.lock().stage = Stage::Claimed;
    }

    /// The caller begins to release its collection's references. The stage `Claimed` ends, because
    /// the bit `UNREACHABLE` does not tell any more which object has such a reference.
    pub(crate) fn set_releasing(&self) {
        let mut state = self.state.lock();
        if matches!(state.stage, Stage::Claimed) {
            state.stage = Stage::Taken;
        }
    }

    /// Passes on which objects the running collection has a reference to, while the world is
    /// stopped: whether all with the state bit `UNREACHABLE`, those in the queue that no thread has
    /// taken, and those that parked threads have announced.
    pub(crate) fn claims<R>(
        &self,
        f: impl FnOnce(bool, Option<&ReclaimQueue>, &[ParkedClaims]) -> R,
    ) -> R {
        let state = self.state.lock();
        let queue = match &state.stage {
            Stage::Reclaiming(queue) => Some(queue),
            _ => None,
        };
        f(matches!(state.stage, Stage::Claimed), queue, &state.parked)
    }

    /// The caller is about to park, and has not released its collection's references to these
    /// objects. It drops the returned value when it has parked, also if that unwinds, because the
    /// list must be alive while others can read it.
    pub(crate) fn parks<'a>(&'a self, claimed: &'a [Live<'_>]) -> Announced<'a> {
        let (first, len) = (claimed.as_ptr().expose_provenance(), claimed.len());
        let thread = attached_as();
        let parked = &mut self.state.lock().parked;
        if parked.try_reserve(1).is_ok() {
            parked.push(ParkedClaims { thread, first, len });
        }
        Announced { lock: self, thread, claimed: PhantomData }
    }

    /// Hands the collector lock, which the caller holds, to the threads that finish the queue.
    pub(crate) fn hand_over(&self, mut queue: ReclaimQueue) {
        let mut state = self.state.lock();
        state.queues += 1;
        queue.number = state.queues;
        state.stage = Stage::Reclaiming(queue);
        state.clear_active();
        // Relaxed: a thread that misses it reads it again at its next refill.
        self.reclaiming.store(true, Ordering::Relaxed);
        self.notify_change(state);
    }

    /// The caller, which holds the lock, puts its collection off for the thread that next calls
    /// [`take_unfinished`](Self::take_unfinished), after so long at the earliest.
    pub(crate) fn keep_unfinished(&self, open: OpenReport, after: Duration, by: ThreadId) {
        let mut state = self.state.lock();
        debug_assert!(state.unfinished.is_none());
        let has_proposal = open.proposal().is_some();
        state.unfinished = Some(open);
        drop(state);
        // Relaxed, here and below: hints for others, while the collection is under the mutex. The
        // next thread that has the collector lock reads them exactly, because its release, which
        // follows, and its acquisition order the two threads by the mutex.
        self.has_proposal.store(has_proposal, std::sync::atomic::Ordering::Relaxed);
        self.keeper.store(by.get(), std::sync::atomic::Ordering::Relaxed);
        self.go_on_at((self.epoch.elapsed() + after).as_nanos() as u64);
    }

    /// Takes the collection that was put off, if there is one. The caller holds the lock.
    pub(crate) fn take_unfinished(&self) -> Option<OpenReport> {
        let unfinished = self.state.lock().unfinished.take();
        self.go_on_at(u64::MAX);
        unfinished
    }

    fn go_on_at(&self, at: u64) {
        // Relaxed: a thread that misses it reads it again at its next refill.
        self.goes_on.store(at, std::sync::atomic::Ordering::Relaxed);
    }

    /// Whether a collection was put off.
    #[inline]
    pub(crate) fn is_unfinished(&self) -> bool {
        self.goes_on.load(std::sync::atomic::Ordering::Relaxed) != u64::MAX
    }

    /// Whether a collection was put off, and this thread is the one that looks at each safepoint.
    pub(crate) fn is_kept_by(&self, me: ThreadId) -> bool {
        let (none, relaxed) = (0, std::sync::atomic::Ordering::Relaxed);
        self.is_unfinished()
            && match self.keeper.compare_exchange(none, me.get(), relaxed, relaxed) {
                Ok(_) => true,
                Err(keeper) => keeper == me.get(),
            }
    }

    /// A thread ends that may have been the one that looks at each safepoint.
    pub(crate) fn forget_keeper(&self) {
        self.keeper.store(0, std::sync::atomic::Ordering::Relaxed);
    }

    /// Whether a thread can go on at once with a collection that was put off, because its child has
    /// searched.
    pub(crate) fn has_proposal(&self) -> bool {
        self.is_unfinished() && self.has_proposal.load(std::sync::atomic::Ordering::Relaxed)
    }

    /// Whether a thread should go on with a collection that was put off.
    #[inline]
    pub(crate) fn wants_to_go_on(&self) -> bool {
        let at = self.goes_on.load(std::sync::atomic::Ordering::Relaxed);
        // Models have no clock, because their behaviour must not depend on time.
        at != u64::MAX && (IS_MODEL || self.epoch.elapsed().as_nanos() as u64 >= at)
    }

    /// Whether the garbage on the pages of this thread is in the queue and no batch of it was
    /// taken.
    pub(crate) fn is_untouched(&self, thread: ThreadId) -> bool {
        self.state.lock().stage.queue().is_some_and(|queue| queue.is_untouched(thread))
    }

    #[inline]
    pub(crate) fn is_reclaiming(&self) -> bool {
        // Relaxed: a hint, while the queue is under the mutex.
        self.reclaiming.load(Ordering::Relaxed)
    }

    /// Takes a batch of the queue with that number, or, without a number, of the present queue. The
    /// caller must [finish](Self::finish_batch) the batch.
    pub(crate) fn take_batch(&self, owner: Owner, number: Option<u64>) -> Option<GarbageBatch> {
        let mut state = self.state.lock();
        let queue = state.stage.queue()?;
        let batch =
            number.is_none_or(|number| number == queue.number).then(|| queue.take(owner))??;
        state.add_active();
        Some(batch)
    }

    /// Records that a batch is finished. If it was the last one of its queue, returns the queue,
    /// and the thread, which holds the collector lock now, ends the collection.
    pub(crate) fn finish_batch(&self, batch: GarbageBatch) -> Option<ReclaimQueue> {
        let mut state = self.state.lock();
        if !state.stage.queue().is_some_and(|queue| queue.finish(&batch)) {
            state.remove_active();
            return None;
        }
        let Stage::Reclaiming(queue) = std::mem::replace(&mut state.stage, Stage::Taken) else {
            unreachable!("a queue has finished")
        };
        // Relaxed: a thread that still reads `true` takes the mutex, and finds no queue.
        self.reclaiming.store(false, Ordering::Relaxed);
        Some(queue)
    }

    /// Unlocks the mutex, and notifies the threads that wait for a change.
    fn notify_change(&self, state: lock::Guard<'_, LockState>) {
        let waiting = state.waiting;
        drop(state);
        if waiting > 0 {
            self.change.notify_all();
        }
    }
}

/// The objects of [`CollectorLock::parks`] are announced until this is dropped.
#[derive(Debug)]
#[must_use = "dropping it ends the announcement"]
pub(crate) struct Announced<'a> {
    lock: &'a CollectorLock,
    /// Kept, because a thread that unwinds may be detached.
    thread: u64,
    claimed: PhantomData<&'a ()>,
}

impl Drop for Announced<'_> {
    fn drop(&mut self) {
        self.lock.state.lock().parked.retain(|parked| parked.thread != self.thread);
    }
}

/// A place among the requesters of the lock, which the requester keeps after it has acquired the
/// lock. Dropping it leaves the place.
#[derive(Debug)]
#[must_use = "dropping it gives up the place"]
pub(crate) struct Request<'a> {
    lock: &'a CollectorLock,
    number: u64,
    /// How long the thread has waited since the last change that it has read.
    waited: Duration,
    changes: u64,
}

/// A requester does not get the lock, and nothing changes.
#[derive(Debug)]
pub(crate) struct Overdue {
    pub(crate) waited: Duration,
    pub(crate) by: Vec<u64>,
}

impl Request<'_> {
    /// Acquires the lock, unless a thread has it, or another requester comes first.
    pub(crate) fn try_acquire(&self) -> bool {
        self.lock.acquire_as(Some(self.number))
    }

    /// Waits until this thread may acquire the lock, or there is garbage to reclaim. The caller is
    /// detached, because the thread that has the lock may stop the world.
    ///
    /// If nothing changes for the time `slow`, it returns the threads that are active, and again
    /// each time the wait has doubled.
    pub(crate) fn wait(&mut self, slow: Duration) -> Option<Overdue> {
        let mut state = self.lock.state.lock();
        let mut overdue = None;
        state.waiting += 1;
        while overdue.is_none() && !state.is_free_for(Some(self.number)) && !state.has_batches() {
            if self.changes != state.changes {
                (self.changes, self.waited) = (state.changes, Duration::ZERO);
            }
            // Each wait takes as long as all before it together, so that the whole doubles.
            let limit = self.waited.max(slow);
            let timed_out;
            (state, timed_out) = self.lock.change.wait_for(state, limit);
            if timed_out && self.changes == state.changes {
                self.waited += limit;
                overdue = state.overdue(self.waited);
            }
        }
        state.waiting -= 1;
        overdue
    }
}

impl Drop for Request<'_> {
    fn drop(&mut self) {
        let mut state = self.lock.state.lock();
        state.requesters.retain(|&number| number != self.number);
        // If the lock is free, the next requester can acquire it.
        if !matches!(state.stage, Stage::Free) {
            return;
        }
        self.lock.notify_change(state);
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
