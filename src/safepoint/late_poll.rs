//! A thread that reaches no safepoint delays the next stop, and no report names it before. So a
//! heap in checked mode has a thread that looks at the others, and need not stop them.
//!
//! A look raises a bit of its own in the poll word of each attached thread, which clears it when it
//! polls or detaches. If the next looks find the bit still set, the thread has not polled since.
//! For example, thread 1 is attached and sorts a list. The look after 1 s finds the bit that the
//! look after 0 s has raised, and reports thread 1 once. When thread 1 polls, the bit is gone, and
//! the next look raises it again.
//!
//! Some waits detach a thread without a look at its bits. Each of them is for a stop, and a
//! completed stop shows that every other thread has been at a safepoint. So the time of all threads
//! begins again after a stop, and it does not end while one is on: then a slow stop is reported.

#![forbid(unsafe_code)]

use std::time::{Duration, Instant};

use super::Coordinator;
use super::record::ATTACHED;
use super::slow_stop::{SlowStop, SlowStopKind, Straggler, ThreadInfo};
use crate::base::sync::Ordering;

/// A poll that has not come yet.
#[derive(Clone, Copy)]
pub(super) struct Awaited {
    since: Instant,
    is_reported: bool,
}

impl<T> Coordinator<T> {
    /// Looks at all threads, and reports those that have been attached for `after` without a poll,
    /// each once until it polls. `bit` is a request bit that its thread clears in each poll and
    /// after each detach. The caller holds no lock. A thread for whose report there is no memory is
    /// reported by a later look.
    pub(crate) fn look_for_late_polls(&self, bit: u32, after: Duration) {
        let mut late = Vec::new();
        let mut guard = self.registry.lock();
        let registry = &mut *guard;
        // Also while one is on, because its own thread does not poll.
        let all_have_polled =
            registry.stops_at_look != registry.stops || registry.stopper.is_some();
        registry.stops_at_look = registry.stops;
        for entry in &mut registry.entries {
            let record = &*entry.record;
            let is_attached = record.state() == ATTACHED && !entry.orphaned;
            // Relaxed, as all accesses to the bit: it hands nothing over but itself.
            let has_polled = record.word.requests.load(Ordering::Relaxed) & bit == 0;
            match &mut entry.poll {
                Some(poll) if is_attached && !has_polled && !all_have_polled => {
                    let waited = poll.since.elapsed();
                    let is_due = waited >= after && !poll.is_reported;
                    if is_due && registry.stopper.is_none() && late.try_reserve(1).is_ok() {
                        let Ok(thread) = ThreadInfo::try_of(record) else { continue };
                        poll.is_reported = true;
                        late.push((thread, waited));
                    }
                }
                poll => {
                    *poll = None;
                    if is_attached {
                        self.raise(record, bit);
                    }
                    // Read after the raise, so that a thread that has not seen the bit as it
                    // detached is seen here: see `detach_and_poll`.
                    if is_attached && record.state() == ATTACHED {
                        *poll = Some(Awaited { since: Instant::now(), is_reported: false });
                    } else if is_attached || !has_polled {
                        record.word.requests.fetch_and(!bit, Ordering::Relaxed);
                    }
                }
            }
        }
        drop(guard);
        for (thread, waited) in late {
            let straggler =
                Straggler { thread, is_suspended: false, has_ended: false, stack: None };
            self.report(&SlowStop::new(SlowStopKind::LatePoll, waited, [straggler]));
        }
    }
}
