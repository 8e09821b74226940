//! A detached thread that finds a stop or a suspension must wait for its end, and must not miss it.
//! So it waits at the gate, a condition variable that is notified under the registry's lock.

#![forbid(unsafe_code)]

use std::num::NonZeroU64;
use std::time::Duration;

use super::Coordinator;
use super::lock::Guard;
use super::record::{
    ATTACHED, AWAITED, DETACHED, Record, STOP, SUSPENDED, ThreadId, unreachable_state,
};
use super::registry::{Registry, RegistryEntry};
use super::thread_words::{self, words};
use crate::base::sync::Ordering;
use crate::report::event::{self, EnteredSpan};

impl<T> Coordinator<T> {
    /// Whether a parking thread may use its processor to help, because no thread needs it that
    /// works for the stop, or that the stop waits for.
    pub(super) fn may_help(&self, registry: &Registry<T>) -> bool {
        // Relaxed, because the registry is locked.
        self.processors > 1
            && (self.pending.load(Ordering::Relaxed) == 0
                || !self.is_crowded(registry.entries.len()))
    }

    pub(crate) fn is_crowded(&self, threads: usize) -> bool {
        threads > self.processors
    }

    /// Steps from detached to attached, after the end of the present stop and of a suspension.
    /// `is_owed`: the thread is counted in `owed` already.
    pub(super) fn step_in<'a>(
        &'a self,
        mut registry: Guard<'a, Registry<T>>,
        record: &Record<T>,
        mut is_owed: bool,
    ) -> Guard<'a, Registry<T>> {
        loop {
            if registry.stopper.is_some() {
                // The next stop waits until this thread has attached, so that stops in a row cannot
                // starve it.
                if !std::mem::replace(&mut is_owed, true) {
                    registry.owed += 1;
                }
                registry = self.wait_at_gate(registry, None);
                continue;
            }
            match record.step(DETACHED, ATTACHED) {
                Ok(_) => break,
                Err(SUSPENDED | AWAITED) => registry = self.await_suspension(registry, record),
                Err(state) => unreachable_state(record.id, state),
            }
        }
        words(|w| w.attached(record.id.get()));
        if is_owed {
            registry.owed -= 1;
            self.notify_requesters(&registry);
        }
        registry
    }

    /// Steps from attached to detached. No stop begins in between, because the registry is locked.
    pub(super) fn step_out(&self, registry: &mut Registry<T>, record: &Record<T>) {
        words(|w| w.detached(record.id.get()));
        record.set_state(DETACHED);
        if let Some(at) = registry.position(record.id) {
            self.acknowledge(registry, at);
        }
    }

    /// Enters the span of a thread that may have to wait for the end of a stop. The caller holds no
    /// lock. While the span is made and left, the thread cannot attach anywhere.
    #[cold]
    pub(super) fn waits_in_span(&self) -> WaitSpan {
        let _alone = thread_words::traversing();
        WaitSpan(Some(event::thread_stopped(self.name.as_deref().unwrap_or_default())))
    }

    /// Sleeps until a suspension may be over, so the caller checks the state again.
    pub(super) fn await_suspension<'a>(
        &'a self,
        registry: Guard<'a, Registry<T>>,
        record: &Record<T>,
    ) -> Guard<'a, Registry<T>> {
        match record.step(SUSPENDED, AWAITED) {
            // The suspender reads AWAITED, and takes the lock before it notifies, so that this
            // thread already sleeps.
            Ok(_) | Err(AWAITED) => self.wait_at_gate(registry, Some(record.id)),
            Err(_) => registry,
        }
    }

    /// Sleeps until the gate is opened, or until the wait is long. `suspended`: the thread
    /// waits for the end of this participant's suspension. `None`: it waits for the end of a stop.
    pub(super) fn wait_at_gate<'a>(
        &'a self,
        mut registry: Guard<'a, Registry<T>>,
        suspended: Option<ThreadId>,
    ) -> Guard<'a, Registry<T>> {
        let waiting =
            suspended.and_then(|id| registry.position(id)).map(|at| &registry.entries[at]);
        let limit = self
            .sleep_limit(&registry)
            .max(waiting.map_or(Duration::ZERO, |entry| entry.min_sleep));
        let timed_out;
        registry.at_gate += 1;
        (registry, timed_out) = self.gate.wait_for(registry, limit);
        registry.at_gate -= 1;
        if timed_out { self.report_end(registry, suspended, limit) } else { registry }
    }

    /// Sleeps until the requesters are notified, or until the wait is long.
    pub(super) fn sleep_as_requester<'a>(
        &'a self,
        mut registry: Guard<'a, Registry<T>>,
    ) -> Guard<'a, Registry<T>> {
        let limit = self.sleep_limit(&registry);
        let timed_out;
        (registry, timed_out) = self.next_stop.wait_for(registry, limit);
        if timed_out { self.report_end(registry, None, limit) } else { registry }
    }

    /// How long a thread that waits for the end of a stop sleeps before it checks the stop. It is
    /// as long as the world has been stopped, so that a long wait costs few checks.
    fn sleep_limit(&self, registry: &Registry<T>) -> Duration {
        registry.stopped_since.map_or(Duration::ZERO, |since| since.elapsed()).max(self.slow_stop)
    }

    pub(super) fn open_gate(&self, registry: &Registry<T>) {
        if registry.at_gate != 0 {
            self.gate.notify_all();
        }
    }

    /// Wakes the waiting requesters when one of them may begin its stop.
    pub(super) fn notify_requesters(&self, registry: &Registry<T>) {
        if registry.stopper.is_none() && registry.owed == 0 && !registry.requesters.is_empty() {
            self.next_stop.notify_all();
        }
    }

    /// Lowers `pending` if a stop waits for this thread, whose state is now `DETACHED` or `ENDED`.
    pub(super) fn acknowledge(&self, registry: &mut Registry<T>, at: usize) {
        let entry = &mut registry.entries[at];
        if !std::mem::take(&mut entry.counted) {
            return;
        }
        entry.arrivals.add(registry.begun.elapsed());
        registry.last_arrival = Some(entry.record.id);
        // Both relaxed, because the requester takes the lock before it relies on a 0.
        entry.record.word.requests.fetch_and(!STOP, Ordering::Relaxed);
        if self.pending.fetch_sub(1, Ordering::Relaxed) == 1 && registry.stopper_sleeps {
            self.arrivals.notify_one();
        }
    }

    /// Makes the present stop wait for this thread too. The reverse of
    /// [`acknowledge`](Self::acknowledge).
    pub(super) fn count(&self, entry: &mut RegistryEntry<T>) {
        // Counted once, because a thread that has left and has not acknowledged may be suspended in
        // between. Then the end of the suspension makes the one acknowledgement that is due for
        // both.
        if std::mem::replace(&mut entry.counted, true) {
            return;
        }
        // Both relaxed, because the registry is locked, and for the thread itself the bit is a
        // hint.
        entry.record.word.requests.fetch_or(STOP, Ordering::Relaxed);
        self.pending.fetch_add(1, Ordering::Relaxed);
        self.tell_requested(&entry.record, STOP);
    }
}

/// Leaves the span of a thread that has waited for the end of a stop.
pub(super) struct WaitSpan(Option<EnteredSpan>);

impl Drop for WaitSpan {
    fn drop(&mut self) {
        let _alone = thread_words::traversing();
        self.0 = None;
    }
}

impl<T: Send + Sync> thread_words::Watched for Coordinator<T> {
    fn thread_ended(&self, id: u64) {
        let Some(id) = NonZeroU64::new(id).map(ThreadId) else { return };
        // The thread ends inside its fork, for example in a child that exits because its `exec`
        // failed. The world stays stopped, so no other thread asks whether this one still exists.
        if self.registry.is_kept_here() {
            return;
        }
        let mut registry = self.registry.lock();
        let Some(at) = registry.position(id) else { return };
        if registry.entries[at].record.is_mine_attached() {
            registry.entries[at].orphaned = true;
            registry.orphans += 1;
            self.arrivals.notify_one();
            self.next_stop.notify_all();
        }
    }
}
