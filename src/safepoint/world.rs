//! A requester must know when no other thread is attached, although a thread attaches and detaches
//! without a lock. To stop the world, it therefore stores `stop`, counts the threads that it finds
//! attached or suspended, and waits until each has acknowledged.

#![forbid(unsafe_code)]

use std::fmt;
use std::marker::PhantomData;
use std::time::{Duration, Instant};

use super::Coordinator;
use super::error::StopError;
use super::lock::Guard;
use super::participant::{Away, Participant};
use super::record::{
    ATTACHED, AWAITED, DETACHED, Record, STOP, SUSPENDED, ThreadId, unreachable_state,
};
use super::registry::Registry;
use super::slow_stop::{SlowStop, SlowStopKind, StopPurpose, Straggler};
use super::thread_words::{self, words};
use crate::base::stress::{Step, maybe_yield};
use crate::base::sync::{IS_MODEL, Ordering, spin_loop};

/// What a stop is for, and when its requester gives up.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StopRequest {
    pub(crate) purpose: StopPurpose,
    /// Whether to wait while another thread has stopped the world, or waits for its turn.
    pub(crate) waits_for_turn: bool,
    /// How long the stop may take from its beginning, which is after the wait for its turn.
    pub(crate) limit: Option<Duration>,
}

/// A stop that never gives up.
impl From<StopPurpose> for StopRequest {
    fn from(purpose: StopPurpose) -> Self {
        Self { purpose, waits_for_turn: true, limit: None }
    }
}

impl StopRequest {
    /// Gives up instead of waiting for its turn.
    pub(crate) fn if_free(self) -> Self {
        Self { waits_for_turn: false, ..self }
    }

    pub(crate) fn within(self, limit: impl Into<Option<Duration>>) -> Self {
        Self { limit: limit.into(), ..self }
    }

    /// How much is left of the limit of a stop. `None`: it has none.
    fn left(&self, begun: Instant) -> Option<Duration> {
        // Models have no clock. So a limit of zero is over there when the requester first looks,
        // which may be at any time, and another one never is.
        self.limit.map(|limit| if IS_MODEL { limit } else { limit.saturating_sub(begun.elapsed()) })
    }
}

/// The proof that the world is stopped: no other participant is attached, or suspended by another
/// thread. Dropping it resumes the world. It is `Sync`, so that helper threads can use the proof,
/// and not `Send`, because the thread that stopped the world resumes it.
#[must_use = "the world runs again when this is dropped"]
pub struct WorldStopped<'a, T = ()> {
    pub(super) coordinator: &'a Coordinator<T>,
    pub(super) requester: ThreadId,
    pub(super) time_to_stop: Duration,
    /// `Sync` and not `Send`, like this guard.
    pub(super) not_send: PhantomData<std::sync::MutexGuard<'a, ()>>,
}

impl<T> Participant<T> {
    /// Stops the world, so that no other thread is attached when it returns, and none attaches
    /// until the returned value is dropped. Stops are granted one after the other, in the order of
    /// the requests, and a thread that waits for another stop is detached meanwhile.
    ///
    /// # Errors
    ///
    /// After an error nothing has changed: the world runs, unless this thread has stopped it
    /// already. Other stops may have happened meanwhile.
    pub fn stop(&self) -> Result<WorldStopped<'_, T>, StopError> {
        self.stop_by(StopPurpose::Request.into())
    }

    /// As [`stop`](Self::stop), but does not wait for the end of another stop. It does wait for
    /// attached threads.
    ///
    /// # Errors
    ///
    /// Those of [`stop`](Self::stop). [`StopError::Busy`] if another thread has stopped the world,
    /// or waits for its turn to do so. Then this thread has stayed attached.
    pub fn try_stop(&self) -> Result<WorldStopped<'_, T>, StopError> {
        self.stop_by(StopRequest::from(StopPurpose::Request).if_free())
    }

    /// As [`stop`](Self::stop), but gives up if an attached thread has not come to a safepoint
    /// within `limit`. So a thread that blocks attached delays the work that needs the stop, and
    /// not the whole program. With a limit of zero it waits for a few microseconds.
    ///
    /// The limit begins when this stop does. The wait for another thread's stop before has no
    /// limit, because this thread cannot be attached meanwhile.
    ///
    /// ```
    /// use standstill::safepoint::{Coordinator, StopError};
    /// use std::time::Duration;
    ///
    /// let coordinator = Coordinator::new();
    /// let me = coordinator.register("main");
    /// me.attach().unwrap();
    /// std::thread::scope(|s| {
    ///     let (attached, wait) = std::sync::mpsc::channel();
    ///     let (end, ended) = std::sync::mpsc::channel::<()>();
    ///     let coordinator = &coordinator;
    ///     s.spawn(move || {
    ///         let blocking = coordinator.register("blocking");
    ///         blocking.attach().unwrap();
    ///         attached.send(blocking.id()).unwrap();
    ///         ended.recv().unwrap_err(); // attached, so that a stop waits for it
    ///     });
    ///     let id = wait.recv().unwrap();
    ///     match me.stop_for(Duration::from_millis(1)) {
    ///         Err(StopError::TimedOut { stragglers }) => assert_eq!(stragglers[0].thread.id, id),
    ///         other => unreachable!("{other:?}"),
    ///     }
    ///     drop(end);
    /// });
    /// assert!(me.stop_for(Duration::ZERO).is_ok());
    /// ```
    ///
    /// # Errors
    ///
    /// Those of [`stop`](Self::stop). [`StopError::TimedOut`] with the threads that are late. All
    /// threads run on then, and the next stop begins as if this one had not been.
    pub fn stop_for(&self, limit: Duration) -> Result<WorldStopped<'_, T>, StopError> {
        self.stop_by(StopRequest::from(StopPurpose::Request).within(limit))
    }

    /// Stops the world if no other thread is attached. `None`: another one is, or attaches at this
    /// moment, or stops the world, or waits for its turn.
    ///
    /// The call waits for nothing, and this thread stays attached. So it is no safepoint, and is
    /// also allowed where a stop is not.
    #[cfg_attr(not(feature = "cpython"), allow(dead_code, reason = "only `dynamic` calls it"))]
    pub(crate) fn stop_alone(&self) -> Option<WorldStopped<'_, T>> {
        if thread_words::is_stopping() || !self.is_attached() {
            return None;
        }
        let coordinator = &*self.coordinator;
        let id = self.record.id;
        let mut registry = coordinator.registry.lock();
        // A hint, so that the usual refusal begins no stop, which would disturb other threads.
        let is_away = |record: &Record<T>| record.id == id || record.state() == DETACHED;
        if !registry.may_stop(id) || !registry.entries.iter().all(|e| is_away(&e.record)) {
            return None;
        }
        // From here on no thread attaches, and the scan inside finds those that have just attached.
        coordinator.begin(&mut registry, id, StopPurpose::Inspection, Instant::now());
        // Relaxed, because the registry is locked.
        if coordinator.pending.load(Ordering::Relaxed) != 0 {
            coordinator.resume(&mut registry);
            return None;
        }
        registry.stopped_since = Some(Instant::now());
        drop(registry);
        words(|w| w.set_flag(thread_words::STOPPING));
        let (time_to_stop, not_send) = (Duration::ZERO, PhantomData);
        Some(WorldStopped { coordinator, requester: id, time_to_stop, not_send })
    }

    /// Whether this thread may stop the world now, and so wait for another stop.
    #[inline(always)]
    pub(crate) fn may_stop(&self) -> Result<(), StopError> {
        if thread_words::is_stopping() {
            Err(StopError::Nested)
        } else if !self.is_attached() {
            Err(StopError::NotAttached)
        } else if !self.may_detach() {
            Err(StopError::NoSafepoint)
        } else {
            Ok(())
        }
    }

    #[inline(always)]
    pub(crate) fn stop_by(&self, request: StopRequest) -> Result<WorldStopped<'_, T>, StopError> {
        self.may_stop()?;
        let coordinator = &*self.coordinator;
        let id = self.record.id;
        let mut registry = coordinator.registry.lock();
        if !registry.may_stop(id) {
            if !request.waits_for_turn && registry.is_busy() {
                return Err(StopError::Busy);
            }
            registry = self.wait_for_other_stops(registry);
        }
        coordinator.stop_as(id, request, registry)
    }

    /// Waits among the requesters, detached. It returns attached, when this thread may begin its
    /// stop, or when no stop can succeed (`Registry::orphan_error`).
    #[cold]
    fn wait_for_other_stops<'a>(
        &'a self,
        mut registry: Guard<'a, Registry<T>>,
    ) -> Guard<'a, Registry<T>> {
        let coordinator = &*self.coordinator;
        let id = self.record.id;
        let away = Away::leaving();
        registry.requesters.push_back(id);
        coordinator.step_out(&mut registry, &self.record);
        loop {
            if !registry.is_stuck() && !registry.may_stop(id) {
                registry = coordinator.sleep_as_requester(registry);
                continue;
            }
            match self.record.step(DETACHED, ATTACHED) {
                Ok(_) => break,
                Err(SUSPENDED | AWAITED) => {
                    registry = coordinator.await_suspension(registry, &self.record)
                }
                Err(state) => unreachable_state(id, state),
            }
        }
        words(|w| w.attached(id.get()));
        away.disarm();
        registry.requesters.retain(|&waiting| waiting != id);
        registry
    }
}

/// Whether this thread may stop worlds that it is not attached to: it is attached to none.
pub(crate) fn may_stop_unattached() -> Result<(), StopError> {
    if thread_words::attached_as() != 0 {
        Err(StopError::Attached)
    } else if words(|w| w.forbids_safepoint()) {
        Err(if thread_words::is_stopping() { StopError::Nested } else { StopError::NoSafepoint })
    } else {
        Ok(())
    }
}

impl<T> Coordinator<T> {
    /// Stops the world on behalf of a thread that is no participant, or a detached one. It waits
    /// for its turn as other requesters do, and cannot attach anywhere in the stop.
    ///
    /// The caller may keep stops of other coordinators already. Then all callers stop these in the
    /// same order, and none is attached, because otherwise two callers could wait for each other.
    pub(crate) fn stop_unattached(
        &self,
        limit: Option<Duration>,
    ) -> Result<WorldStopped<'_, T>, StopError> {
        debug_assert_eq!(thread_words::attached_as(), 0, "a stop would wait for this thread");
        // Without an id, of which there are 2^40, there is no place among the requesters.
        let id = ThreadId::next().ok_or(StopError::NoMemory)?;
        let mut registry = self.registry.lock();
        if !registry.may_stop(id) {
            let places = registry.entries.len() + 1;
            registry.requesters.try_reserve(places).map_err(|_| StopError::NoMemory)?;
            registry.requesters.push_back(id);
            while !registry.may_stop(id) && !registry.is_stuck() {
                registry = self.sleep_as_requester(registry);
            }
            registry.requesters.retain(|&requester| requester != id);
        }
        self.stop_as(id, StopRequest::from(StopPurpose::Fork).within(limit), registry)
    }

    /// Stops the world for the requester `id`, whose turn it is, or fails if no stop can succeed.
    #[inline(always)]
    fn stop_as<'a>(
        &'a self,
        id: ThreadId,
        request: StopRequest,
        mut registry: Guard<'a, Registry<T>>,
    ) -> Result<WorldStopped<'a, T>, StopError> {
        if let Some(gone) = registry.orphan_error() {
            registry.failed_stops += 1;
            self.notify_requesters(&registry);
            drop(registry);
            self.report_gone();
            return Err(gone);
        }
        let begun = Instant::now();
        self.begin(&mut registry, id, request.purpose, begun);
        drop(registry);
        words(|w| w.set_flag(thread_words::STOPPING));
        match self.await_arrivals(begun, request) {
            Ok(time_to_stop) => {
                maybe_yield(&self.under, Step::Stop);
                let not_send = PhantomData;
                Ok(WorldStopped { coordinator: self, requester: id, time_to_stop, not_send })
            }
            Err(error) => {
                words(|w| w.clear_flag(thread_words::STOPPING));
                self.report_gone();
                Err(error)
            }
        }
    }

    /// Begins a stop: from here on no thread attaches, and attached threads come to a safepoint.
    fn begin(
        &self,
        registry: &mut Registry<T>,
        requester: ThreadId,
        purpose: StopPurpose,
        begun: Instant,
    ) {
        registry.stopper = Some(requester);
        registry.purpose = purpose;
        registry.begun = begun;
        registry.last_arrival = None;
        // The requester stores `stop`, then loads the states: see the module's `Orderings`. No
        // thread acquires data through `true`, because a thread that reads it takes the lock.
        self.stop.store(true, Ordering::SeqCst);
        maybe_yield(&self.under, Step::Stop);
        for entry in &mut registry.entries {
            if entry.record.state() != DETACHED && entry.record.id != requester {
                self.count(entry);
            }
        }
    }

    /// Ends a stop, complete or not.
    pub(super) fn resume(&self, registry: &mut Registry<T>) {
        maybe_yield(&self.under, Step::Resume);
        if self.pending.swap(0, Ordering::Relaxed) != 0 {
            for entry in registry.entries.iter_mut().filter(|e| e.counted) {
                entry.counted = false;
                entry.record.word.requests.fetch_and(!STOP, Ordering::Relaxed);
            }
        }
        registry.stopper = None;
        registry.stopped_since = None;
        registry.last_held_report = Duration::ZERO;
        // Release: a thread that attaches after it reads `false` sees all that the requester wrote.
        self.stop.store(false, Ordering::Release);
        self.open_gate(registry);
        self.notify_requesters(registry);
    }

    /// Waits until `pending` is 0. Returns how long the stop took from its beginning. If it gives
    /// up, the world runs again.
    fn await_arrivals(&self, begun: Instant, request: StopRequest) -> Result<Duration, StopError> {
        for _ in 0..self.spin {
            // Relaxed, because it is a hint, while the check under the lock below decides.
            if self.pending.load(Ordering::Relaxed) == 0 {
                break;
            }
            spin_loop();
        }
        // The sleep before the next report is as long as the wait so far, so that reports get
        // rarer.
        let mut patience = self.slow_stop;
        let mut registry = self.registry.lock();
        while self.pending.load(Ordering::Relaxed) != 0 {
            let left = request.left(begun);
            let given_up = registry
                .orphan_error()
                .or_else(|| left.is_some_and(|left| left.is_zero()).then(|| registry.late_error()));
            if let Some(error) = given_up {
                self.resume(&mut registry);
                registry.failed_stops += 1;
                return Err(error);
            }
            let sleep = left.map_or(patience, |left| left.min(patience));
            registry.stopper_sleeps = true;
            let timed_out;
            (registry, timed_out) = self.arrivals.wait_for(registry, sleep);
            registry.stopper_sleeps = false;
            if timed_out && self.pending.load(Ordering::Relaxed) != 0 {
                if registry.find_ended() || sleep < patience {
                    continue;
                }
                if !registry.slow_stop.is_empty() {
                    let stragglers = registry.entries.iter().filter(|e| e.counted);
                    let stragglers = stragglers.map(Straggler::of);
                    let report = SlowStop {
                        waiter: registry.this_thread(),
                        purpose: Some(registry.purpose),
                        ..SlowStop::new(SlowStopKind::Waiting, begun.elapsed(), stragglers)
                    };
                    drop(registry);
                    self.report(&report);
                    registry = self.registry.lock();
                }
                patience = patience.max(begun.elapsed());
            }
        }
        let now = Instant::now();
        let time_to_stop = now - begun;
        registry.stopped_since = Some(now);
        registry.stops += 1;
        registry.time_to_stop += time_to_stop;
        registry.max_time_to_stop = registry.max_time_to_stop.max(time_to_stop);
        Ok(time_to_stop)
    }
}

impl<T> WorldStopped<'_, T> {
    /// How long the stop took until all other threads stood still, without the wait for other
    /// stops.
    pub fn time_to_stop(&self) -> Duration {
        self.time_to_stop
    }

    /// The participant that stopped the world.
    pub fn requester(&self) -> ThreadId {
        self.requester
    }

    /// The coordinator of the stopped threads.
    pub fn coordinator(&self) -> &Coordinator<T> {
        self.coordinator
    }

    /// Calls `f` with every registered thread: parked threads, detached threads, the requester
    /// itself. A thread that registers or ends meanwhile may be missed.
    pub fn threads(&self, mut f: impl FnMut(ThreadId, &T)) {
        let mut records = {
            let registry = &mut *self.coordinator.registry.lock();
            let mut list = std::mem::take(&mut registry.scratch);
            list.extend(registry.entries.iter().map(|e| e.record.clone()));
            list
        };
        for record in records.drain(..) {
            f(record.id, &record.data);
        }
        let scratch = &mut self.coordinator.registry.lock().scratch;
        if scratch.capacity() < records.capacity() {
            *scratch = records;
        }
    }
}

impl<T> Drop for WorldStopped<'_, T> {
    fn drop(&mut self) {
        words(|w| w.clear_flag(thread_words::STOPPING));
        self.coordinator.resume(&mut self.coordinator.registry.lock());
    }
}

impl<T> fmt::Debug for WorldStopped<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WorldStopped")
            .field("requester", &self.requester)
            .field("time_to_stop", &self.time_to_stop)
            .finish_non_exhaustive()
    }
}
