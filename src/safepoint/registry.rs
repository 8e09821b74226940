//! The list of participants that the coordinator's lock protects.

#![forbid(unsafe_code)]

use std::time::{Duration, Instant};

use super::error::StopError;
use super::record::{ATTACHED, Record};
use super::report::{SlowStop, Straggler, ThreadInfo};
use super::thread_id::ThreadId;
use crate::base::event::Hook;
use crate::base::shared::Shared;
use crate::base::system::has_ended;

pub(super) struct RegistryEntry<T> {
    pub(super) record: Shared<Record<T>>,
    /// The stop that is on waits for this thread; `pending` counts it, its poll word says so.
    pub(super) counted: bool,
    /// Its OS thread has ended while it was attached.
    pub(super) orphaned: bool,
    /// The callbacks for slow stops have been told of that.
    pub(super) told: bool,
    /// The thread waits for the end of a suspension, and sleeps for so long at least before it reports that.
    pub(super) patience: Duration,
}

/// What the lock protects.
pub(super) struct Registry<T> {
    /// By rising id. Ids are given without the lock, so a thread may come here after one with a later id.
    pub(super) entries: Vec<RegistryEntry<T>>,
    /// Owner stop is on, complete or not. `Coordinator::stop` says whether there is one.
    pub(super) stopper: Option<ThreadId>,
    /// Since when that stop is complete; `None`: there is no stop, or it is not complete.
    pub(super) stopped_since: Option<Instant>,
    /// How long the world had been stopped when a thread reported that the stop does not end.
    pub(super) held_told: Duration,
    /// The requester sleeps until `pending` is 0.
    pub(super) stopper_sleeps: bool,
    /// Requesters that wait for their stop, first come first served.
    pub(super) requesters: std::collections::VecDeque<ThreadId>,
    /// Threads that were kept waiting by a stop and have not been attached since.
    pub(super) owed: usize,
    /// Threads that sleep at the gate, for whatever reason.
    pub(super) at_gate: usize,
    pub(super) orphans: usize,
    pub(super) slow_stop: Vec<SlowStopCallback>,
    /// Room for a list of all threads, and for all of them in the queue: made when they register, so that a stop takes
    /// no memory. Taken while the list is in use.
    pub(super) room: Vec<Shared<Record<T>>>,
    pub(super) stops: u64,
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

    /// The thread that no stop can wait for: it has ended, attached.
    pub(super) fn gone(&self) -> Option<StopError> {
        if self.orphans == 0 {
            return None;
        }
        let entry = self.entries.iter().find(|e| e.orphaned && e.record.state() == ATTACHED)?;
        Some(StopError::ThreadGone { name: entry.record.name.clone(), id: entry.record.id })
    }

    /// Asks the system for each thread that the stop waits for whether it has ended; `true`: one of them has. Its exit watcher has
    /// not told of it: it attached in a destructor that ran after the watcher's time, as that of a `pthread` key does.
    ///
    /// A thread whose number the system has given to another one counts as alive, and goes on being reported.
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

    /// The threads that have ended attached and that no report has named yet. They count as named from here on.
    pub(super) fn untold(&mut self) -> Vec<Straggler> {
        let entries =
            self.entries.iter_mut().filter(|e| e.orphaned && e.record.state() == ATTACHED);
        let untold = entries.filter(|e| !e.told).map(|entry| {
            entry.told = true;
            Straggler::of(entry, Duration::ZERO)
        });
        untold.collect()
    }

    /// Whether `id`'s stop may begin: none is on, nobody is owed a turn, and it is first.
    pub(super) fn may_stop(&self, id: ThreadId) -> bool {
        self.stopper.is_none()
            && self.owed == 0
            && self.requesters.front().is_none_or(|&first| first == id)
    }
}

impl Straggler {
    pub(super) fn of<T>(entry: &RegistryEntry<T>, waited: Duration) -> Self {
        Self {
            thread: ThreadInfo::of(&entry.record),
            attached_for: waited,
            is_suspended: entry.record.state() != ATTACHED,
            has_ended: entry.orphaned,
        }
    }
}
