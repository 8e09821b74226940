//! The callbacks for slow stops.

#![forbid(unsafe_code)]

use std::time::Duration;

use super::Coordinator;
use super::lock::Guard;
use super::record::{AWAITED, SUSPENDED, ThreadId};
use super::registry::{Registry, SlowStopCallback};
use super::report::{SlowStop, SlowStopKind, StopPurpose, Straggler};
use super::thread_words;
use crate::base::fallible::{self, NoMemory};
use crate::base::outside::Hook;
use crate::report::facts::LongestCall;

impl<T> Coordinator<T> {
    /// Reports that a detached thread has slept for `limit`, waiting for the end of a stop or of
    /// its suspension. Does nothing if this was reported and the wait has not doubled since.
    ///
    /// If the stop is not complete, its requester reports it.
    #[cold]
    pub(super) fn report_end<'a>(
        &'a self,
        mut registry: Guard<'a, Registry<T>>,
        suspended: Option<ThreadId>,
        limit: Duration,
    ) -> Guard<'a, Registry<T>> {
        let stopped_for = registry.stopped_since.map(|since| since.elapsed());
        let (kind, id, waited) = match (registry.stopper, stopped_for) {
            (Some(stopper), Some(waited))
                if waited >= self.slow_stop.max(2 * registry.last_held_report) =>
            {
                registry.last_held_report = waited;
                (SlowStopKind::Held, Some(stopper), waited)
            }
            (None, _) => (SlowStopKind::Suspended, suspended, limit),
            _ => return registry,
        };
        let Some(at) = id.and_then(|id| registry.position(id)) else { return registry };
        let entry = &mut registry.entries[at];
        if kind == SlowStopKind::Suspended {
            if !matches!(entry.record.state(), SUSPENDED | AWAITED) {
                return registry;
            }
            entry.min_sleep = limit.saturating_mul(2);
        }
        let stragglers = vec![Straggler::of(entry)];
        let report = SlowStop {
            kind,
            waited,
            waiter: registry.this_thread(),
            purpose: (kind == SlowStopKind::Held).then_some(registry.purpose),
            stragglers,
            longest: None,
        };
        drop(registry);
        self.report_detached(&report);
        self.registry.lock()
    }

    /// Reports that a detached thread has waited so long for the right to collect, which it needs
    /// for `purpose`, because the participants `by` are collecting.
    #[cold]
    pub(crate) fn report_collecting(&self, purpose: StopPurpose, waited: Duration, by: &[u64]) {
        let registry = self.registry.lock();
        // If one of them waits for a slow stop, that stop is reported.
        if registry.stopper.is_some() || registry.slow_stop.is_empty() {
            return;
        }
        let stragglers =
            registry.entries.iter().filter(|entry| by.contains(&entry.record.id.get()));
        let report = SlowStop {
            kind: SlowStopKind::Collecting,
            waited,
            waiter: registry.this_thread(),
            purpose: Some(purpose),
            stragglers: stragglers.map(Straggler::of).collect(),
            longest: None,
        };
        drop(registry);
        self.report_detached(&report);
    }

    /// As [`report`](Self::report), on a detached thread with callers that rely on its attachment:
    /// the callbacks cannot attach it.
    fn report_detached(&self, report: &SlowStop) {
        let _alone = thread_words::traversing();
        self.report(report);
    }

    /// Reports that collecting has held up the calling thread, the participant `id`, for so long.
    #[cold]
    pub(crate) fn report_held_up(
        &self,
        id: ThreadId,
        held_up: Duration,
        longest: Option<LongestCall>,
    ) {
        let registry = self.registry.lock();
        if registry.slow_stop.is_empty() {
            return;
        }
        let me = registry.position(id).map(|at| Straggler::of(&registry.entries[at]));
        drop(registry);
        self.report(&SlowStop {
            kind: SlowStopKind::HeldUp,
            waited: held_up,
            waiter: None,
            purpose: None,
            stragglers: me.into_iter().collect(),
            longest,
        });
    }

    /// Calls the callbacks for slow stops. The caller holds no lock.
    pub(super) fn report(&self, report: &SlowStop) {
        let callbacks = self.registry.lock().slow_stop.clone();
        for callback in callbacks {
            // The result is ignored: a report must not change the stop. The panic hook has printed
            // a panic.
            drop(callback.call(|callback| callback(report)));
        }
    }

    /// Reports each thread that has ended attached, once. A stop has failed because of it.
    #[cold]
    pub(super) fn report_gone(&self) {
        let mut registry = self.registry.lock();
        let stragglers =
            if registry.slow_stop.is_empty() { Vec::new() } else { registry.take_unreported() };
        drop(registry);
        if !stragglers.is_empty() {
            self.report(&SlowStop {
                kind: SlowStopKind::Failed,
                waited: Duration::ZERO,
                waiter: None,
                purpose: None,
                stragglers,
                longest: None,
            });
        }
    }

    /// Adds a callback for stops that take longer than
    /// [`Config::slow_stop`](super::Config::slow_stop). The requester calls it while it waits,
    /// without any lock, and again each time its wait has doubled. A panic in it is caught.
    ///
    /// A thread that waits for the end of another thread's stop calls it too, once the world has
    /// been stopped for so long, and again each time that has doubled. So does a thread that waits
    /// for the end of a suspension: of its own, or of a thread that it is about to
    /// [suspend](Self::suspend). Inside the callback these threads cannot attach, as inside a
    /// [traversal](super::traversing). If the callback keeps a
    /// [`TraversalGuard`](super::TraversalGuard), the thread attaches all the same after the wait,
    /// and its traversal lasts until the guard is dropped.
    ///
    /// If a stop fails because a thread has ended attached, its requester calls it too, once for
    /// that thread. The straggler then [has ended](Straggler::has_ended).
    ///
    /// Without a callback, nothing tells of a slow stop: a coordinator writes to no log. A stop
    /// that waits for a thread which neither detaches nor reaches a safepoint then hangs in
    /// silence. (A heap has a callback of its own, which writes to standard error.)
    pub fn on_slow_stop(&self, f: impl Fn(&SlowStop) + Send + Sync + 'static) {
        self.try_on_slow_stop(f).unwrap_or_else(NoMemory::abort_process);
    }

    /// As [`on_slow_stop`](Self::on_slow_stop), but fails if there is no memory.
    pub(crate) fn try_on_slow_stop(
        &self,
        f: impl Fn(&SlowStop) + Send + Sync + 'static,
    ) -> Result<(), NoMemory> {
        let hook: SlowStopCallback = Hook::new(fallible::arc(f)?);
        let mut registry = self.registry.lock();
        if registry.slow_stop.try_reserve(1).is_err() {
            drop(registry);
            // `hook` is dropped without the lock.
            return Err(NoMemory);
        }
        registry.slow_stop.push(hook);
        Ok(())
    }
}
