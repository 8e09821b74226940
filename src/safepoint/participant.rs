//! One thread's membership in a coordinator.

#![forbid(unsafe_code)]

use std::fmt;
use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use crossbeam_utils::CachePadded;

use super::Coordinator;
use super::away::Away;
use super::error::CannotAttach;
use super::record::{ATTACHED, AWAITED, DETACHED, ENDED, Record, STOP, SUSPENDED, Word, raise};
use super::registry::RegistryEntry;
use super::thread_id::ThreadId;
use super::thread_words;
use crate::base::error::RegisterError;
use crate::base::event;
use crate::base::fallible::{self, NoMemory};
use crate::base::shared::Shared;
use crate::base::stress::{Step, maybe_yield};
use crate::base::sync::{AtomicU32, Ordering};
use crate::base::system::os_thread;

/// One thread's membership in a [`Coordinator`]. Dropping it ends the membership, also while it is
/// attached, or while a stop is on. Neither `Send` nor `Sync`.
///
/// A participant that is leaked while it is attached stays so: once its thread has ended, every stop
/// returns [`StopError::ThreadGone`].
pub struct Participant<T = ()> {
    pub(super) record: Shared<Record<T>>,
    pub(super) coordinator: Arc<Coordinator<T>>,
    /// How many [`NoSafepoint`]s live.
    pub(super) depth: std::cell::Cell<u32>,
    pub(super) not_send: PhantomData<*mut ()>,
}

impl<T: Send + Sync + 'static> Coordinator<T> {
    /// Makes the calling thread a participant, detached at first. Allowed at any time, also while
    /// the world is stopped. `data` is what others see of it; the thread's name is noted for reports.
    ///
    /// # Panics
    ///
    /// When the process has used up its thread ids, [`ThreadId::MAX`] of them.
    pub fn register(self: &Arc<Self>, data: T) -> Participant<T> {
        self.try_register(data).unwrap_or_else(|error| match error {
            RegisterError::Memory => NoMemory::abort_process(NoMemory),
            RegisterError::NoIds => panic!("no thread ids are left"),
        })
    }

    /// As [`register`](Self::register), with an error instead of the end of the process or a panic.
    pub(crate) fn try_register(self: &Arc<Self>, data: T) -> Result<Participant<T>, RegisterError> {
        let thread = std::thread::current();
        let name = thread.name().map(fallible::owned).transpose()?;
        let record = Shared::new(Record {
            word: CachePadded::new(Word {
                requests: AtomicU32::new(0),
                state: AtomicU32::new(DETACHED),
            }),
            id: ThreadId::next().ok_or(RegisterError::NoIds)?,
            thread: thread.id(),
            os_thread: os_thread().into(),
            name,
            registered: Instant::now(),
            data,
        })?;
        let id = record.id.get();
        let weak = Arc::downgrade(self);
        thread_words::watch(id, weak as Weak<dyn thread_words::Watched>)?;
        let entered = self.enter(&record);
        if entered.is_err() {
            thread_words::unwatch(id);
        }
        entered?;
        Ok(Participant {
            record,
            coordinator: self.clone(),
            depth: std::cell::Cell::new(0),
            not_send: PhantomData,
        })
    }

    /// Puts a record into the registry, with room for all that a stop does with it.
    fn enter(&self, record: &Shared<Record<T>>) -> Result<(), NoMemory> {
        let mut registry = self.registry.lock();
        let registry = &mut *registry;
        let threads = registry.entries.len() + 1;
        registry.entries.try_reserve(1)?;
        registry.room.try_reserve(threads)?;
        let waiting = registry.requesters.len();
        registry.requesters.try_reserve(threads - waiting.min(threads))?;
        let entry = RegistryEntry {
            record: record.clone(),
            counted: false,
            orphaned: false,
            told: false,
            patience: Duration::ZERO,
        };
        let at = registry.entries.partition_point(|e| e.record.id < entry.record.id);
        registry.entries.insert(at, entry);
        Ok(())
    }
}

impl<T> Participant<T> {
    /// Its name.
    #[inline]
    pub fn id(&self) -> ThreadId {
        self.record.id
    }

    /// What it shows of itself to the others.
    #[inline]
    pub fn data(&self) -> &T {
        &self.record.data
    }

    /// Where it is registered.
    #[inline]
    pub fn coordinator(&self) -> &Arc<Coordinator<T>> {
        &self.coordinator
    }

    /// Attaches; waits while a stop is on, or while this participant is suspended.
    ///
    /// # Errors
    ///
    /// When the thread is attached, here or to any other coordinator, or something it holds forbids it.
    #[inline]
    pub fn attach(&self) -> Result<(), CannotAttach> {
        if thread_words::obstacles() != (0, 0) {
            return Err(CannotAttach::now());
        }
        self.enter();
        Ok(())
    }

    /// Attaches again after [`step_away`](Self::step_away). The thread's [`Away`] is over: from here on it is attached again, or
    /// the process ends.
    #[inline]
    pub(crate) fn come_back(&self) {
        #[cold]
        #[inline(never)]
        fn cannot_come_back() -> ! {
            let error = CannotAttach::now();
            event::abort(format_args!("standstill: a detached thread cannot attach again: {error}"))
        }
        if !thread_words::may_come_back() {
            cannot_come_back();
        }
        self.enter();
    }

    /// Attaches. The caller knows that nothing forbids it.
    #[inline(always)]
    fn enter(&self) {
        // Before the exchange, for which whatever is loaded later has to wait; in `detach_and_poll` too.
        let (record, stop, id) = (&*self.record, &self.coordinator.stop, self.record.id.get());
        let stepped_in = record.step(DETACHED, ATTACHED).is_ok();
        // `SeqCst`: see the module's `Orderings`. Acquires what the last stop wrote.
        if !stepped_in || stop.load(Ordering::SeqCst) {
            self.attach_slow(stepped_in);
        }
        thread_words::set_current(id);
    }

    #[cold]
    fn attach_slow(&self, stepped_in: bool) {
        let mut registry = self.coordinator.registry.lock();
        if stepped_in {
            self.coordinator.step_out(&mut registry, &self.record);
        }
        drop(self.coordinator.step_in(registry, &self.record, false));
    }

    /// Detaches. `false`: it does nothing, because it is not attached, or because this thread must
    /// not reach a safepoint now (inside [`no_safepoint`](Self::no_safepoint), a traversal, a
    /// suspension, or a stop of its own).
    #[inline]
    pub fn detach(&self) -> bool {
        self.detach_and_poll().is_some()
    }

    /// As [`detach_and_poll`](Self::detach_and_poll), for a thread whose callers rely on the attachment.
    #[inline]
    pub(crate) fn step_away(&self) -> Option<(Away, u32)> {
        let away = Away::leaving();
        match self.detach_and_poll() {
            Some(requests) => Some((away, requests)),
            None => {
                away.disarm();
                None
            }
        }
    }

    /// As [`detach`](Self::detach), and a [`poll`](Self::poll) right after it. Either this sees what was raised before, or whoever raised
    /// it and then looked at the state found this thread detached: SeqCst on both sides.
    #[inline]
    pub(crate) fn detach_and_poll(&self) -> Option<u32> {
        if !self.may_leave() {
            return None;
        }
        let (word, stop) = (&self.record.word, &self.coordinator.stop);
        thread_words::clear_current(self.record.id.get());
        self.record.set_state(DETACHED);
        // `SeqCst`: see the module's `Orderings`.
        if stop.load(Ordering::SeqCst) {
            self.detached_in_a_stop();
        }
        Some(word.requests.load(Ordering::SeqCst))
    }

    #[cold]
    fn detached_in_a_stop(&self) {
        maybe_yield(&self.coordinator.under, Step::Detach);
        let mut registry = self.coordinator.registry.lock();
        // Somebody may have suspended it by now: then the stop waits for that, and the guard acknowledges.
        if self.record.state() == DETACHED
            && let Some(at) = registry.position(self.record.id)
        {
            self.coordinator.acknowledge(&mut registry, at);
        }
    }

    /// Whether it is attached.
    #[inline]
    pub fn is_attached(&self) -> bool {
        self.record.is_mine_attached()
    }

    #[inline]
    pub(super) fn may_leave(&self) -> bool {
        self.is_attached() && self.depth.get() == 0 && !thread_words::forbids_safepoint()
    }

    /// What is asked of this thread: 0 is nothing. With [`STOP`] among the bits, it should
    /// [`park`](Self::park) soon. One relaxed load of a word on this thread's own cache line.
    #[inline(always)]
    pub fn poll(&self) -> u32 {
        // Relaxed: a hint. Who acts on it takes the bits, or the lock.
        self.record.word.requests.load(Ordering::Relaxed)
    }

    /// Takes those of the user's request bits that are in `mask` out of the poll word, and says which
    /// were set. What was written before they were raised is seen from here on.
    pub fn take_requests(&self, mask: u32) -> u32 {
        let mask = mask & !STOP;
        // Acquire: pairs with the release of `raise`.
        self.record.word.requests.fetch_and(!mask, Ordering::Acquire) & mask
    }

    /// Raises the user's request bits in this thread's own poll word.
    pub fn raise(&self, bits: u32) {
        raise(&self.record, bits);
    }

    /// A safepoint: when a stop is on, waits for its end as a detached thread. `false`: it does
    /// nothing, for the reasons that [`detach`](Self::detach) does nothing.
    pub fn park(&self) -> bool {
        self.park_and(|_| {})
    }

    /// As [`park`](Self::park). Where this thread would only wait and nobody wants its processor, it does `meanwhile` first: detached,
    /// and without the lock. That gets a look at whether the stop is still on, and should return soon after it is not.
    pub(crate) fn park_and(&self, meanwhile: impl FnOnce(&dyn Fn() -> bool)) -> bool {
        if !self.may_leave() {
            return false;
        }
        // A stop that finds this thread attached sets its poll word before it waits.
        if self.poll() & STOP != 0 {
            self.park_slow(meanwhile);
        }
        true
    }

    #[cold]
    fn park_slow(&self, meanwhile: impl FnOnce(&dyn Fn() -> bool)) {
        let coordinator = &*self.coordinator;
        maybe_yield(&coordinator.under, Step::Safepoint);
        let mut registry = coordinator.registry.lock();
        if registry.stopper.is_none() {
            return;
        }
        let away = Away::leaving();
        coordinator.step_out(&mut registry, &self.record);
        // Before the lock is let go: while somebody is owed a turn no other stop begins, so this one is the only one that
        // `meanwhile` can meet.
        registry.owed += 1;
        if !coordinator.has_room(&registry) {
            drop(coordinator.step_in(registry, &self.record, true));
            away.disarm();
            return;
        }
        drop(registry);
        // Detached, for this thread's own eyes too: what it works on has no mutator.
        thread_words::clear_current(self.record.id.get());
        // Relaxed: a hint to come back; the lock decides.
        let is_on = || coordinator.stop.load(Ordering::Relaxed);
        let result = catch_unwind(AssertUnwindSafe(|| meanwhile(&is_on)));
        drop(coordinator.step_in(coordinator.registry.lock(), &self.record, true));
        thread_words::set_current(self.record.id.get());
        away.disarm();
        if let Err(payload) = result {
            resume_unwind(payload);
        }
    }

    /// Declares that this thread must not reach a safepoint while the guard lives: `stop` refuses, `park`
    /// and `detach` do nothing. Guards nest.
    pub fn no_safepoint(&self) -> NoSafepoint<'_> {
        self.depth.set(self.depth.get().checked_add(1).expect("too many no-safepoint guards"));
        NoSafepoint { depth: &self.depth }
    }

    /// How many [`NoSafepoint`]s of this participant live.
    #[inline]
    pub fn no_safepoint_depth(&self) -> u32 {
        self.depth.get()
    }
}

impl<T> Drop for Participant<T> {
    fn drop(&mut self) {
        thread_words::unwatch(self.record.id.get());
        let coordinator = &*self.coordinator;
        let id = self.record.id;
        let mut registry = coordinator.registry.lock();
        if registry.stopper == Some(id) {
            // Its `WorldStopped` was leaked; nobody can look at it any more.
            thread_words::clear_flag(thread_words::STOPPING);
            coordinator.resume(&mut registry);
        }
        loop {
            match self.record.word.state.load(Ordering::Relaxed) {
                // Somebody acts for this thread, and must not find it gone half way; unless that is
                // this very thread.
                SUSPENDED | AWAITED if thread_words::suspended() != id.get() => {
                    registry = coordinator.await_suspension(registry, &self.record);
                }
                _ => break,
            }
        }
        thread_words::clear_current(id.get());
        if self.record.set_state(ENDED) == AWAITED {
            coordinator.open_gate(&registry);
        }
        let entry = registry.position(id).map(|at| {
            coordinator.acknowledge(&mut registry, at);
            registry.entries.remove(at)
        });
        if entry.as_ref().is_some_and(|e| e.orphaned) {
            registry.orphans -= 1;
            coordinator.call_queue(&registry);
        }
        drop(registry);
        // The payload may be dropped here, without the lock.
        drop(entry);
    }
}

impl<T> fmt::Debug for Participant<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Participant")
            .field("id", &self.record.id)
            .field("attached", &self.is_attached())
            .finish_non_exhaustive()
    }
}

/// This thread must not reach a safepoint; see [`Participant::no_safepoint`].
#[must_use = "safepoints are allowed again when the guard is dropped"]
#[derive(Debug)]
pub struct NoSafepoint<'a> {
    depth: &'a std::cell::Cell<u32>,
}

impl Drop for NoSafepoint<'_> {
    fn drop(&mut self) {
        self.depth.set(self.depth.get() - 1);
    }
}
