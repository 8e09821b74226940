//! Stops, suspensions and ends of threads must agree on the list of participants, so one lock
//! protects it. Whether a thread has ended is asked too often for that lock, so a hint,
//! [`Presence`], answers most of these questions.

#![forbid(unsafe_code)]

use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

use super::error::StopError;
use super::late_poll::Awaited;
use super::record::{ATTACHED, AWAITED, Record, SUSPENDED, ThreadId};
use super::slow_stop::{SlowStop, StopPurpose, Straggler, ThreadInfo};
use super::thread_words::words;
use crate::base::fallible::{self, NoMemory};
use crate::base::outside::Hook;
use crate::base::shared::Shared;
use crate::base::system::has_ended;
use crate::report::times::Times;

/// An octave of these histograms has so many buckets: each thread has one, so they are small.
pub(super) const ARRIVALS_PRECISION: u64 = 4;

pub(super) struct RegistryEntry<T> {
    pub(super) record: Shared<Record<T>>,
    /// The present stop waits for this thread: `pending` includes it, and its poll word has
    /// [`STOP`](super::STOP).
    pub(super) counted: bool,
    /// Its OS thread has ended while it was attached.
    pub(super) orphaned: bool,
    /// A report of this was made, so that no other follows.
    pub(super) reported: bool,
    /// If the thread waits for the end of a suspension, it sleeps at least this long before its
    /// next report.
    pub(super) min_sleep: Duration,
    /// How long stops have waited for the thread.
    pub(super) arrivals: Times<ARRIVALS_PRECISION>,
    /// The poll that a look for late polls waits for.
    pub(super) poll: Option<Awaited>,
}

pub(super) struct Registry<T> {
    /// By rising id. Ids are given out without the lock, so a thread may enter after one with a
    /// later id.
    pub(super) entries: Vec<RegistryEntry<T>>,
    /// The requester of the present stop, complete or not. `Coordinator::stop` tells whether a
    /// stop is on.
    pub(super) stopper: Option<ThreadId>,
    /// The purpose of the present or last stop.
    pub(super) purpose: StopPurpose,
    /// When the present stop was complete. `None`: no stop is on, or it is not complete.
    pub(super) stopped_since: Option<Instant>,
    /// How long the world had been stopped when a thread last reported that the stop does not end.
    pub(super) last_held_report: Duration,
    /// When the present or last stop began.
    pub(super) begun: Instant,
    /// The last of the threads that acknowledged it.
    pub(super) last_arrival: Option<ThreadId>,
    /// The requester sleeps until `pending` is 0.
    pub(super) stopper_sleeps: bool,
    /// The waiting requesters, in their order.
    pub(super) requesters: std::collections::VecDeque<ThreadId>,
    /// Threads that a stop has kept waiting and that have not attached since.
    pub(super) owed: usize,
    /// Threads that sleep at the gate.
    pub(super) at_gate: usize,
    pub(super) orphans: usize,
    pub(super) slow_stop: Vec<SlowStopCallback>,
    /// Memory for a list of all threads, which is empty while a list is in use. It is reserved when
    /// a thread registers, as the memory of `requesters` is, so that a stop allocates nothing.
    pub(super) scratch: Vec<Shared<Record<T>>>,
    pub(super) stops: u64,
    /// `stops` at the last look for late polls.
    pub(super) stops_at_look: u64,
    pub(super) failed_stops: u64,
    pub(super) time_to_stop: Duration,
    pub(super) max_time_to_stop: Duration,
}

pub(super) type SlowStopCallback = Hook<dyn Fn(&SlowStop) + Send + Sync>;

impl<T> Registry<T> {
    pub(super) fn position(&self, id: ThreadId) -> Option<usize> {
        self.entries.binary_search_by_key(&id, |e| e.record.id).ok()
    }

    pub(super) fn find(&self, id: ThreadId) -> Option<&Shared<Record<T>>> {
        self.position(id).map(|at| &self.entries[at].record)
    }

    /// The error for a thread that has ended attached, because of which no stop can be complete.
    pub(super) fn orphan_error(&self) -> Option<StopError> {
        if self.orphans == 0 {
            return None;
        }
        let entry = self.entries.iter().find(|e| e.orphaned && e.record.state() == ATTACHED)?;
        Some(StopError::ThreadGone { name: entry.record.name(), id: entry.record.id })
    }

    /// The error of a stop that gives up, because it still waits for threads.
    #[cold]
    pub(super) fn late_error(&self) -> StopError {
        let mut stragglers = Vec::new();
        for entry in self.entries.iter().filter(|e| e.counted) {
            let Ok(late) = Straggler::try_of(entry) else { break };
            if fallible::push(&mut stragglers, late).is_err() {
                break;
            }
        }
        StopError::TimedOut { stragglers }
    }

    /// Whether a thread has stopped the world, or waits for its turn.
    pub(super) fn is_busy(&self) -> bool {
        self.stopper.is_some() || !self.requesters.is_empty()
    }

    /// Whether no stop can succeed, so that a requester need not wait for its turn.
    pub(super) fn is_stuck(&self) -> bool {
        self.stopper.is_none() && self.orphan_error().is_some()
    }

    /// Finds threads that have ended although the stop waits for them, by a query of the system.
    /// `true`: there is one. The exit watcher has missed such a thread if it attached in a
    /// destructor that ran after the watcher, for example that of a `pthread` key.
    ///
    /// If the system has reused the number of an ended thread, the thread counts as alive, and is
    /// reported again.
    pub(super) fn find_ended(&mut self) -> bool {
        let entries = self.entries.iter_mut().filter(|e| e.counted && !e.orphaned);
        let ended =
            entries.filter(|e| e.record.state() == ATTACHED && has_ended(e.record.os_thread()));
        let before = self.orphans;
        for entry in ended {
            entry.orphaned = true;
            self.orphans += 1;
        }
        self.orphans > before
    }

    /// The threads that have ended attached and were not reported yet, for the caller to report.
    pub(super) fn take_unreported(&mut self) -> Vec<Straggler> {
        let entries =
            self.entries.iter_mut().filter(|e| e.orphaned && e.record.state() == ATTACHED);
        let unreported = entries.filter(|e| !e.reported).map(|entry| {
            entry.reported = true;
            Straggler::of(entry)
        });
        unreported.collect()
    }

    /// The calling thread, if it is registered. Cold, because it searches all threads.
    pub(super) fn this_thread(&self) -> Option<ThreadInfo> {
        let me = words(|w| w.number());
        let mut entries = self.entries.iter();
        entries.find(|e| e.record.thread_number == me).map(|e| ThreadInfo::of(&e.record))
    }

    /// Whether the stop of `id` may begin: no stop is on, no thread is owed a run, and `id` is the
    /// first requester.
    pub(super) fn may_stop(&self, id: ThreadId) -> bool {
        self.stopper.is_none()
            && self.owed == 0
            && self.requesters.front().is_none_or(|&first| first == id)
    }
}

impl Straggler {
    pub(super) fn of<T>(entry: &RegistryEntry<T>) -> Self {
        Self::try_of(entry).unwrap_or_else(NoMemory::abort_process)
    }

    fn try_of<T>(entry: &RegistryEntry<T>) -> Result<Self, NoMemory> {
        Ok(Self {
            thread: ThreadInfo::try_of(&entry.record)?,
            is_suspended: matches!(entry.record.state(), SUSPENDED | AWAITED),
            has_ended: entry.orphaned,
            stack: None,
        })
    }
}

/// Ids are consecutive, so two of them share a place only if this many were given out between them.
const PLACES: usize = 512;

/// Which ids may be those of participants: a hint that takes no lock.
///
/// It counts participants by their ids, modulo its length. So an id whose place counts none has no
/// participant, while a place that counts one may mean another id. So a thread that meets the id of
/// an ended participant usually learns so from the table, and can then ask the registry.
///
/// Relaxed, because a thread that relies on the answer asks the registry, under its lock. They are
/// std's atomics also under loom, as `LAST_ID` is.
pub(super) struct Presence([AtomicU16; PLACES]);

impl Default for Presence {
    fn default() -> Self {
        Self([const { AtomicU16::new(0) }; PLACES])
    }
}

impl Presence {
    fn place(&self, id: u64) -> &AtomicU16 {
        &self.0[id as usize % PLACES]
    }

    pub(super) fn add(&self, id: ThreadId) {
        self.place(id.get()).fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn remove(&self, id: ThreadId) {
        self.place(id.get()).fetch_sub(1, Ordering::Relaxed);
    }

    /// Whether there is probably no participant with this id, which may be no id at all.
    #[inline(always)]
    pub(super) fn lacks(&self, id: u64) -> bool {
        id <= ThreadId::MAX && self.place(id).load(Ordering::Relaxed) == 0
    }
}
