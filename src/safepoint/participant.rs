//! A thread attaches and detaches far more often than the world is stopped. So a [`Participant`]
//! does both without the lock, unless a stop or a suspension is in the way.

#![forbid(unsafe_code)]

use std::fmt;
use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::ptr::NonNull;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use crossbeam_utils::CachePadded;

use super::Coordinator;
use super::error::CannotAttach;
use super::record::{ATTACHED, AWAITED, DETACHED, ENDED, Record, STOP, SUSPENDED, ThreadId, Word};
use super::registry::RegistryEntry;
use super::thread_words::{self, words};
use crate::base::fallible::NoMemory;
use crate::base::outside;
use crate::base::shared::{Shared, SharedRoom};
use crate::base::stress::{Step, maybe_yield};
use crate::base::sync::{AtomicU32, IS_MODEL, Ordering};
use crate::base::system::os_thread;
use crate::report::error::{AttachError, RegisterError};
use crate::report::times::Times;

/// The membership of one thread in a [`Coordinator`]. Dropping it ends the membership, even while
/// the thread is attached or a stop is on. Neither `Send` nor `Sync`.
///
/// If a participant is leaked while it is attached, it stays attached. Then every stop returns
/// [`StopError::ThreadGone`](super::StopError::ThreadGone) once its thread has ended.
pub struct Participant<T = ()> {
    pub(super) record: Shared<Record<T>>,
    pub(super) coordinator: Arc<Coordinator<T>>,
    /// The number of live [`NoSafepoint`] guards.
    pub(super) depth: std::cell::Cell<u32>,
    pub(super) not_send: PhantomData<*mut ()>,
}

pub(crate) struct RecordRoom<T>(SharedRoom<Record<T>>);

impl<T> RecordRoom<T> {
    pub(crate) fn new() -> Result<Self, NoMemory> {
        SharedRoom::new().map(Self)
    }
}

impl<T: Send + Sync + 'static> Coordinator<T> {
    /// Makes the calling thread a participant, which is detached at first. It may be called at any
    /// time, also while the world is stopped. Other threads can read `data`, and reports have the
    /// name of the thread.
    ///
    /// # Panics
    ///
    /// If the process has used up its [`ThreadId::MAX`] thread ids.
    pub fn register(self: &Arc<Self>, data: T) -> Participant<T> {
        self.try_register(data).unwrap_or_else(|error| match error {
            AttachError::Memory => NoMemory::abort_process(NoMemory),
            _ => panic!("no thread ids are left"),
        })
    }

    /// As [`register`](Self::register), but returns an error instead of a panic or an abort.
    #[doc(hidden)]
    pub fn try_register(self: &Arc<Self>, data: T) -> Result<Participant<T>, AttachError> {
        let room = RecordRoom::new().map_err(RegisterError::from)?;
        Ok(self.try_register_in(room, data)?)
    }

    /// As [`try_register`](Self::try_register), in memory that is there already.
    pub(crate) fn try_register_in(
        self: &Arc<Self>,
        room: RecordRoom<T>,
        data: T,
    ) -> Result<Participant<T>, RegisterError> {
        let id = ThreadId::next().ok_or(RegisterError::NoIds)?;
        let record = Record {
            word: CachePadded::new(Word {
                requests: AtomicU32::new(0),
                state: AtomicU32::new(DETACHED),
            }),
            id,
            thread: thread_words::this_thread(),
            thread_number: words(|w| w.number_or(id.get())),
            os_thread: os_thread().into(),
            registered: Instant::now(),
            mark: Default::default(),
            data,
        };
        let record = Shared::new_in(room.0, record);
        let id = id.get();
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

    /// Adds a record to the registry, and reserves the memory that a stop needs for it.
    fn enter(&self, record: &Shared<Record<T>>) -> Result<(), NoMemory> {
        let mut registry = self.registry.lock();
        let registry = &mut *registry;
        let threads = registry.entries.len() + 1;
        registry.entries.try_reserve(1)?;
        registry.scratch.try_reserve(threads)?;
        let waiting = registry.requesters.len();
        registry.requesters.try_reserve(threads - waiting.min(threads))?;
        let entry = RegistryEntry {
            record: record.clone(),
            counted: false,
            orphaned: false,
            reported: false,
            min_sleep: Duration::ZERO,
            arrivals: Times::default(),
            poll: None,
        };
        let at = registry.entries.partition_point(|e| e.record.id < entry.record.id);
        self.presence.add(entry.record.id);
        registry.entries.insert(at, entry);
        Ok(())
    }
}

impl<T> Participant<T> {
    /// The id of the participant.
    #[inline]
    pub fn id(&self) -> ThreadId {
        self.record.id
    }

    /// The data that the thread shares with other threads.
    #[inline]
    pub fn data(&self) -> &T {
        &self.record.data
    }

    pub(crate) fn registered(&self) -> Instant {
        self.record.registered
    }

    /// Notes what the thread is about to do, for reports about it. Empty: nothing.
    pub fn mark(&self, at: &'static str) {
        *self.record.mark.lock() = at;
    }

    /// Ends the membership, as a drop does. Returns the data, and memory for the next participant,
    /// unless another thread is using the record, which then drops both.
    pub(crate) fn end(self) -> Option<(T, RecordRoom<T>)> {
        let record = self.leave()?.record;
        drop(self);
        record.into_inner().map(|(record, room)| (record.data, RecordRoom(room)))
    }

    /// The coordinator that the thread is registered with.
    #[inline]
    pub fn coordinator(&self) -> &Arc<Coordinator<T>> {
        &self.coordinator
    }

    /// Attaches. Waits while a stop is on, or while this participant is suspended.
    ///
    /// # Errors
    ///
    /// If the thread is attached here or to any other coordinator, if a guard forbids it, or if the
    /// thread is [ending](CannotAttach::ThreadEnding).
    #[inline]
    pub fn attach(&self) -> Result<(), CannotAttach> {
        if !words(|w| w.may_attach()) {
            return Err(CannotAttach::now());
        }
        self.enter();
        Ok(())
    }

    /// Attaches, unless the thread would have to wait for that, because a stop is on or this
    /// participant is suspended. For a thread that holds a lock, which the thread of the stop may
    /// need.
    ///
    /// `false`: the thread is detached as before, also for the reasons for which
    /// [`attach`](Self::attach) returns an error. If a fork begins at the same moment, the call may
    /// return only when it is over.
    #[must_use = "the thread is detached if it is `false`"]
    pub fn try_attach(&self) -> bool {
        let coordinator = &*self.coordinator;
        // Relaxed, because it is a hint, so that an attempt in a stop usually takes no lock.
        if !words(|w| w.may_attach())
            || coordinator.stop.load(Ordering::Relaxed)
            || self.record.step(DETACHED, ATTACHED).is_err()
        {
            return false;
        }
        // `SeqCst`, as in `enter`.
        if coordinator.stop.load(Ordering::SeqCst) {
            coordinator.step_out(&mut coordinator.registry.lock(), &self.record);
            return false;
        }
        words(|w| w.attached_in_sight(self.record.id.get()));
        true
    }

    /// Attaches again after [`step_away`](Self::step_away), for a thread with an [`Away`]. The
    /// process ends if the thread is attached elsewhere, holds a stop, or keeps another thread
    /// suspended, while traversal guards that it has kept do not hinder it.
    #[inline]
    pub(crate) fn come_back(&self) {
        if words(|w| w.may_attach()) {
            self.enter();
        } else {
            self.come_back_held();
        }
    }

    #[cold]
    #[inline(never)]
    fn come_back_held(&self) {
        if !words(|w| w.may_come_back()) {
            let error = CannotAttach::instead_of_coming_back();
            outside::abort(format_args!(
                "standstill: a detached thread cannot attach again: {error}"
            ))
        }
        self.attach_slow(false);
    }

    /// Attaches, also on a thread that is ending. `false`: the thread cannot attach now. The caller
    /// ends the participant before it returns to the user's code.
    pub(crate) fn attach_to_end(&self) -> bool {
        let may_attach = words(|w| w.may_attach_to_end());
        if may_attach {
            self.enter();
        }
        may_attach
    }

    /// Attaches. The caller has checked that the thread may attach, and has no traversal guard.
    #[inline(always)]
    fn enter(&self) {
        // Loaded before the exchange, as in `detach_and_poll`, because loads after it would wait
        // for it.
        let (record, stop, id) = (&*self.record, &self.coordinator.stop, self.record.id.get());
        let stepped_in = record.step(DETACHED, ATTACHED).is_ok();
        // `SeqCst`, as the module's `Orderings` explain. It also acquires the writes of the last
        // stop.
        if !stepped_in || stop.load(Ordering::SeqCst) {
            self.attach_slow(stepped_in);
        } else {
            words(|w| w.attached_in_sight(id));
        }
    }

    #[cold]
    fn attach_slow(&self, stepped_in: bool) {
        let coordinator = &*self.coordinator;
        if stepped_in {
            coordinator.step_out(&mut coordinator.registry.lock(), &self.record);
        }
        let _waits = coordinator.waits_in_span();
        drop(coordinator.step_in(coordinator.registry.lock(), &self.record, false));
    }

    /// Detaches. `false`: nothing has changed, because the thread is not attached, or must not
    /// reach a safepoint now, as inside [`no_safepoint`](Self::no_safepoint), a traversal, a
    /// suspension or its own stop.
    #[inline]
    pub fn detach(&self) -> bool {
        self.detach_and_poll().is_some()
    }

    /// As [`detach_and_poll`](Self::detach_and_poll), while callers rely on the attachment.
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

    /// Detaches once more, on a thread that has just come back and has not returned to its callers
    /// yet. No guard forbids it, because the callers expect the thread to be detached in between.
    #[cold]
    pub(crate) fn step_away_again(&self) -> Away {
        let away = Away::leaving();
        self.coordinator.step_out(&mut self.coordinator.registry.lock(), &self.record);
        away
    }

    /// As [`detach`](Self::detach), followed by a [`poll`](Self::poll). SeqCst on both sides,
    /// because another thread raises bits and then reads the state. So either this poll reads the
    /// bits, or the other thread reads that this thread is detached.
    #[inline]
    pub(crate) fn detach_and_poll(&self) -> Option<u32> {
        if !self.may_detach() {
            return None;
        }
        let (word, stop) = (&self.record.word, &self.coordinator.stop);
        words(|w| w.detached_in_sight());
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
        // If another thread has suspended this one by now, the stop waits for the suspension, at
        // whose end the suspender acknowledges.
        if self.record.state() == DETACHED
            && let Some(at) = registry.position(self.record.id)
        {
            self.coordinator.acknowledge(&mut registry, at);
        }
    }

    /// Whether the thread is attached.
    #[inline]
    pub fn is_attached(&self) -> bool {
        self.record.is_mine_attached()
    }

    #[inline]
    pub(crate) fn may_detach(&self) -> bool {
        self.is_attached() && self.depth.get() == 0 && !words(|w| w.forbids_safepoint())
    }

    /// The requests to this thread; 0: none. If [`STOP`] is among the bits, the thread should
    /// [`park`](Self::park) soon. The poll is one relaxed load of a word on the thread's own cache
    /// line.
    #[inline(always)]
    pub fn poll(&self) -> u32 {
        // Relaxed, because it is a hint: a thread that acts on it takes the bits, or the lock.
        self.record.word.requests.load(Ordering::Relaxed)
    }

    /// The address of the word that [`poll`](Self::poll) loads, for compiled code that polls by
    /// itself. Any thread may read it, atomically and relaxed, and none may write it. It is valid
    /// until the participant is dropped.
    ///
    /// It is absent under `--cfg standstill_loom`, where the word is loom's, and no memory of its
    /// own.
    #[cfg(not(standstill_loom))]
    pub fn poll_word(&self) -> NonNull<u32> {
        NonNull::from(&self.record.word.requests).cast()
    }

    /// Clears the user's request bits in `mask`, and returns the bits that were set. Writes made
    /// before the bits were raised are visible afterwards.
    pub fn take_requests(&self, mask: u32) -> u32 {
        let mask = mask & !STOP;
        // Acquire: pairs with the release of `raise`.
        self.record.word.requests.fetch_and(!mask, Ordering::Acquire) & mask
    }

    /// Raises the user's request bits in this thread's own poll word.
    pub fn raise(&self, bits: u32) {
        self.coordinator.raise(&self.record, bits);
    }

    /// A safepoint: while a stop is on, waits detached for its end. `false`: the thread did
    /// nothing, for the same reasons as in [`detach`](Self::detach).
    pub fn park(&self) -> bool {
        self.park_and(|_| {})
    }

    /// As [`park`](Self::park). If the thread would only wait, and no other thread needs its
    /// processor, it first calls `meanwhile`, detached and without the lock. The argument of
    /// `meanwhile` tells whether the stop is still on, so that it can return soon after the end.
    pub(crate) fn park_and(&self, meanwhile: impl FnOnce(&dyn Fn() -> bool)) -> bool {
        if !self.may_detach() {
            return false;
        }
        // A stop that reads this thread as attached sets the poll word before it waits.
        if self.poll() & STOP != 0 {
            let _waits = self.coordinator.waits_in_span();
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
        // Before the lock is released, because no stop begins while `owed` is not 0, so that
        // `meanwhile` meets no other stop.
        registry.owed += 1;
        if !coordinator.may_help(&registry) {
            drop(coordinator.step_in(registry, &self.record, true));
            away.disarm();
            return;
        }
        drop(registry);
        // So that code of the user in `meanwhile` cannot attach this thread, which counts as
        // parked.
        let alone = thread_words::traversing();
        // Relaxed, because it is a hint to return, while the check under the lock decides.
        let is_on = || coordinator.stop.load(Ordering::Relaxed);
        let result = catch_unwind(AssertUnwindSafe(|| meanwhile(&is_on)));
        drop(coordinator.step_in(coordinator.registry.lock(), &self.record, true));
        drop(alone);
        away.disarm();
        if let Err(payload) = result {
            resume_unwind(payload);
        }
    }

    /// Forbids this thread to reach a safepoint while the guard lives: `stop` fails, `park` and
    /// `detach` do nothing. Guards nest.
    pub fn no_safepoint(&self) -> NoSafepoint<'_> {
        self.depth.set(self.depth.get().checked_add(1).expect("too many no-safepoint guards"));
        NoSafepoint { depth: &self.depth }
    }

    /// Has the user's own word set again, if requests are left.
    pub(crate) fn tell_left(&self) {
        let left = self.poll();
        if left != 0 {
            self.coordinator.tell_requested(&self.record, left);
        }
    }

    /// The number of live [`NoSafepoint`] guards of this participant.
    #[inline]
    pub fn no_safepoint_depth(&self) -> u32 {
        self.depth.get()
    }
}

impl<T> Participant<T> {
    /// Ends the membership. Returns the entry, because the caller drops it without the lock.
    fn leave(&self) -> Option<RegistryEntry<T>> {
        thread_words::unwatch(self.record.id.get());
        let coordinator = &*self.coordinator;
        let id = self.record.id;
        let mut registry = coordinator.registry.lock();
        if registry.stopper == Some(id) {
            // The `WorldStopped` was leaked, so nothing can use it any more.
            words(|w| w.clear_flag(thread_words::STOPPING));
            coordinator.resume(&mut registry);
        }
        loop {
            match self.record.word.state.load(Ordering::Relaxed) {
                // Another thread acts for this thread, which must not end meanwhile. If this thread
                // is the suspender, it goes on, because it would wait for itself.
                SUSPENDED | AWAITED if words(|w| w.suspended()) != id.get() => {
                    registry = coordinator.await_suspension(registry, &self.record);
                }
                _ => break,
            }
        }
        words(|w| w.detached(id.get()));
        if self.record.set_state(ENDED) == AWAITED {
            coordinator.open_gate(&registry);
        }
        let entry = registry.position(id).map(|at| {
            coordinator.presence.remove(id);
            coordinator.acknowledge(&mut registry, at);
            registry.entries.remove(at)
        });
        if entry.as_ref().is_some_and(|e| e.orphaned) {
            registry.orphans -= 1;
            coordinator.notify_requesters(&registry);
        }
        entry
    }
}

impl<T> Drop for Participant<T> {
    fn drop(&mut self) {
        // Relaxed, because it was this thread that ended it, in `end`, or a fork's child, which has
        // no other thread.
        if self.record.word.state.load(Ordering::Relaxed) != ENDED {
            // Without the lock, because this may drop the user's data, which could call the
            // coordinator.
            drop(self.leave());
        }
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

/// Forbids safepoints on this thread, as [`Participant::no_safepoint`] describes.
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

/// This thread is detached, or about to be, while its callers rely on its attachment, as the page
/// of [`safepoint`](super) describes.
///
/// If a panic drops it, the process ends. Otherwise the callers would use objects while the world
/// is stopped, because they hold the proof of an attachment that does not exist.
#[must_use = "a thread that does not come back ends the process"]
#[derive(Debug)]
pub(crate) struct Away(());

impl Away {
    pub(super) fn leaving() -> Self {
        Self(())
    }

    /// The thread is attached again, or no caller relies on the attachment any more.
    pub(crate) fn disarm(self) {
        std::mem::forget(self);
    }
}

impl Drop for Away {
    #[cold]
    #[inline(never)]
    fn drop(&mut self) {
        if IS_MODEL {
            // No abort, because a model that fails unwinds from anywhere.
            return;
        }
        outside::abort(format_args!(
            "standstill: a detached thread unwinds into code that relies on its attachment"
        ));
    }
}
