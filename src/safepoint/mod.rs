//! A collector needs moments in which no thread uses objects, and a thread must not be stopped in
//! the middle of a use. So each thread stops itself, at points where it polls for a request, and
//! says beforehand when it will use no objects for a while.
//!
//! A [`Coordinator`] needs no knowledge of objects, because it knows each registered thread by its
//! [`Participant`]. A participant is *attached* while its thread uses the data that a stop
//! protects, and *detached* while it does not. [`Participant::stop`] returns once no other thread
//! is attached, and while the returned [`WorldStopped`] lives, no thread attaches. Attached threads
//! come to a safepoint ([`Participant::park`]) when their poll word requests it, while detached
//! threads are not disturbed. `docs/safepoints.md` describes the protocol and proves it.
//!
//! For example, A and B are attached, and C is detached, because it reads a file. To stop the
//! world, A sets `stop`, and raises [`STOP`] in the poll word of B. When B polls, it parks, which
//! detaches it, so that the stop is complete. When C has read its file and attaches, it sees
//! `stop`, so it undoes the attach and sleeps at the gate. When A drops the `WorldStopped`, the
//! gate opens, and B and C attach.
//!
//! # States
//!
//! The `state` word of a record, and the threads that change it:
//!
//! | from → to | by |
//! |---|---|
//! | `DETACHED` → `ATTACHED` | its thread: attach, or leave the gate (registry locked) |
//! | `ATTACHED` → `DETACHED` | its thread: detach, park, wait to stop, undo an attach |
//! | `DETACHED` → `SUSPENDED` | the suspender (registry locked) |
//! | `SUSPENDED` → `AWAITED` | its thread, or the next suspender, about to wait (registry locked) |
//! | `SUSPENDED`, `AWAITED` → `DETACHED` | the suspender |
//! | any → `ENDED` | its thread, when it drops the participant; a fork's child, for a lost thread |
//!
//! # Access to the fields
//!
//! * `Record::state`: every transition is a read-modify-write, so that the transitions have one
//!   order, and a reader of a later state also sees the writes before an earlier one.
//! * `Record::requests`, the poll word: bit [`STOP`] changes only under the registry lock, and is
//!   set exactly while the record is `counted`. The other bits are the user's: any thread sets
//!   them, the record's thread takes them.
//! * The coordinator does not know the user's own word. So after each change that raises bits of
//!   `Record::requests` it calls the user's function (`requested`), which sets the word. Only the
//!   record's thread clears it, by a read-modify-write, and then polls `Record::requests`.
//! * `Record::os_thread`: written by its thread, when it registers and in a fork's child, and read
//!   for reports and to find a thread that has ended.
//! * `Coordinator::stop`: written under the registry lock, and read by every attach and detach.
//! * `Coordinator::pending`: the number of `counted` entries, written under the registry lock. The
//!   requester may read it without the lock, because it takes the lock before it relies on a 0.
//! * `Registry`: all of it is under the lock. No user code but `requested` runs under the lock,
//!   because it could call the coordinator. So records are cloned out, and callbacks are called and
//!   the user's data is dropped after the lock is released.
//!
//! # Coming back
//!
//! Some detached threads have callers that hold the proof of attachment: a thread that parks, that
//! waits to stop the world, or that runs the closure of a detach. Such a thread has an `Away` while
//! it is detached, and either attaches again or ends the process. It never unwinds in between,
//! because its callers could catch the panic and go on without an attachment.
//!
//! # Orderings
//!
//! A thread writes its `state` and then reads `stop`, while the requester writes `stop` and then
//! reads all `state`s. At least one must see the other's write, because otherwise the thread would
//! be attached during a stop. Acquire and release cannot give that, so these four accesses are
//! `SeqCst`.
//!
//! The rest is ordinary happens-before. The writes of an attached thread reach the requester in one
//! of two ways. Either the scan reads that thread's last transition, which releases them, or the
//! thread acknowledges under the registry lock. The writes of the requester reach an attaching
//! thread by the release of `stop := false`, or by the lock at the gate.

#![forbid(unsafe_code)]

// One thread.

/// The membership of a thread: attach, poll, park, detach, stop.
mod participant;
/// The part of it that other threads read: the state word, the poll word, the id.
mod record;
/// The part of it that no other thread reads: words in thread-locals, without a destructor.
#[cfg(not(any(all(test, loom), standstill_loom)))]
mod thread_words;
#[cfg(any(all(test, loom), standstill_loom))]
pub(crate) mod thread_words;

// All threads.

/// Where detached threads wait for the end of a stop.
mod gate;
/// The list of participants, under the coordinator's lock.
mod registry;
/// One detached thread, for which another one acts.
mod suspend;
/// The stop of the world, and its end.
mod world;

// Forks.

/// All coordinators of a process stand still, and a child continues without the lost threads.
mod fork;
/// Locks that survive it.
pub(crate) mod lock;

// What goes wrong.

/// Threads for which a stop would wait long, before there is one.
mod late_poll;

/// Why a thread could not attach or stop the world.
mod error;
/// What a callback learns of a stop that takes long, and when it is called.
mod slow_stop;

use std::fmt;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_utils::CachePadded;

use crate::base::fallible::{self, NoMemory};
use crate::base::stress::MaybeStrain;
use crate::base::sync::{AtomicBool, AtomicUsize, IS_MODEL};

pub use error::{CannotAttach as AttachError, StopError};
pub use fork::{Ended, ForkGuard};
use lock::{ForkCondvar, ForkMutex};
pub(crate) use participant::{Away, RecordRoom};
pub use participant::{NoSafepoint, Participant};
use record::{ATTACHED, Record, raise};
pub use record::{STOP, ThreadId};
use registry::{Presence, Registry};
use slow_stop::NamedThread;
pub use slow_stop::{SlowStop, SlowStopKind, StopPurpose, Straggler, ThreadInfo, ThreadTimes};
pub use suspend::{Suspend, Suspended};
#[cfg(any(all(test, loom), standstill_loom))]
pub(crate) use thread_words::end_thread;
pub use thread_words::{TraversalGuard, current, is_stopping, is_traversing, traversing};
pub(crate) use thread_words::{attached_as, is_suspending, this_thread};
pub use world::WorldStopped;
pub(crate) use world::{StopRequest, may_stop_unattached};

/// The parameters of a [`Coordinator`].
#[derive(Clone, Debug)]
pub struct Config {
    /// How long a requester waits before it calls the [`Coordinator::on_slow_stop`] callbacks, and
    /// again each time its wait has doubled. Without a callback, nothing tells of a slow stop.
    /// Default: one second. Minimum: one millisecond.
    pub slow_stop: Duration,
    /// How often a requester checks for the last arrival before it sleeps. A check takes a few tens
    /// of nanoseconds, so that the default of 40 is one or two microseconds. On a machine with one
    /// processor it is 0, because the awaited thread needs the processor.
    pub spin: u32,
    /// A name for reports.
    pub name: Option<String>,
}

/// The shortest [`Config::slow_stop`], because with a shorter time a requester would not sleep.
const SHORTEST_SLOW_STOP: Duration = Duration::from_millis(1);

impl Default for Config {
    fn default() -> Self {
        // A requester spins in the one model that sets this field.
        let spin = if IS_MODEL { 0 } else { 40 };
        Self { slow_stop: Duration::from_secs(1), spin, name: None }
    }
}

/// Stops the threads that registered with it, and resumes them.
///
/// `T` is the data that each thread shares with the other threads.
///
/// ```
/// use standstill::safepoint::Coordinator;
/// use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
///
/// let coordinator = Coordinator::new();
/// let done = AtomicBool::new(false);
/// std::thread::scope(|s| {
///     s.spawn(|| {
///         let me = coordinator.register("worker");
///         me.attach().unwrap();
///         while !done.load(Relaxed) {
///             if me.poll() != 0 {
///                 me.park();
///             }
///         }
///     });
///     let me = coordinator.register("main");
///     me.attach().unwrap();
///     let world = me.stop().unwrap();
///     world.threads(|id, name| println!("{id} {name} stands still"));
///     drop(world);
///     done.store(true, Relaxed);
/// });
/// ```
pub struct Coordinator<T = ()> {
    /// A stop is on. It has its own cache line, because every attach and detach reads it while only
    /// stops write it.
    stop: CachePadded<AtomicBool>,
    /// The number of counted threads that the stop waits for.
    pending: CachePadded<AtomicUsize>,
    registry: ForkMutex<Registry<T>>,
    presence: Presence,
    /// Notified at the end of a stop or of a suspension, for threads that wait to attach.
    gate: ForkCondvar,
    /// Notified when `pending` is 0, for the requester.
    arrivals: ForkCondvar,
    /// Notified when the next stop may begin, for the waiting requesters.
    next_stop: ForkCondvar,
    slow_stop: Duration,
    spin: u32,
    processors: usize,
    name: Option<String>,
    under: MaybeStrain,
    /// Called after bits of a poll word were raised, often under the registry lock.
    requested: Option<Requested<T>>,
}

/// A function that learns of the request bits of a thread. See
/// [`PollWord::requested`](crate::model::PollWord::requested).
pub(crate) type Requested<T> = fn(ThreadId, &T, u32);

impl<T: Send + Sync + 'static> Coordinator<T> {
    /// A coordinator without threads, with the default [`Config`].
    pub fn new() -> Arc<Self> {
        Self::with_config(Config::default())
    }

    /// A coordinator without threads.
    pub fn with_config(config: Config) -> Arc<Self> {
        Self::try_with_config(config).unwrap_or_else(NoMemory::abort_process)
    }

    /// As [`with_config`](Self::with_config), but returns an error when memory is refused.
    #[doc(hidden)]
    pub fn try_with_config(config: Config) -> Result<Arc<Self>, NoMemory> {
        Self::under(None, config, None)
    }

    /// As [`with_config`](Self::with_config), for a heap that may be under stress. `requested` is
    /// called after each change that raises request bits.
    pub(crate) fn under(
        under: MaybeStrain,
        config: Config,
        requested: Option<Requested<T>>,
    ) -> Result<Arc<Self>, NoMemory> {
        // So that a model is the same on every machine.
        let processors = if IS_MODEL {
            2
        } else {
            std::thread::available_parallelism().map_or(1, NonZeroUsize::get)
        };
        fallible::arc(Self {
            stop: CachePadded::new(AtomicBool::new(false)),
            pending: CachePadded::new(AtomicUsize::new(0)),
            registry: ForkMutex::new(Registry {
                entries: Vec::new(),
                stopper: None,
                purpose: StopPurpose::Request,
                stopped_since: None,
                last_held_report: Duration::ZERO,
                begun: Instant::now(),
                last_arrival: None,
                stopper_sleeps: false,
                requesters: Default::default(),
                owed: 0,
                at_gate: 0,
                orphans: 0,
                slow_stop: Vec::new(),
                scratch: Vec::new(),
                stops: 0,
                stops_at_look: 0,
                failed_stops: 0,
                time_to_stop: Duration::ZERO,
                max_time_to_stop: Duration::ZERO,
            }),
            presence: Presence::default(),
            gate: ForkCondvar::new(),
            arrivals: ForkCondvar::new(),
            next_stop: ForkCondvar::new(),
            slow_stop: config.slow_stop.max(SHORTEST_SLOW_STOP),
            spin: if processors == 1 { 0 } else { config.spin },
            processors,
            name: config.name,
            under,
            requested,
        })
    }
}

impl<T> Coordinator<T> {
    /// The name in its [`Config`].
    pub fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    /// Raises request bits in the poll word of a thread, except for [`STOP`], which is ignored.
    /// `false`: the thread has ended. Once the thread has taken the bits, it sees the writes made
    /// before this call.
    pub fn poke(&self, id: ThreadId, bits: u32) -> bool {
        let registry = self.registry.lock();
        let record = registry.find(id);
        if let Some(record) = record {
            self.raise(record, bits);
        }
        record.is_some()
    }

    /// Raises request bits in the poll words of all attached threads, and returns their number.
    ///
    /// A thread that is attaching or parked may be missed. So that nothing is lost, the caller
    /// *first* stores a condition with `SeqCst`, and every thread loads it with `SeqCst` *after* it
    /// has attached: after [`attach`](Participant::attach), [`park`](Participant::park) and the end
    /// of a [`stop`](Participant::stop). Then the thread gets the bits, or reads the condition.
    pub fn poke_attached(&self, bits: u32) -> usize {
        let registry = self.registry.lock();
        // The caller stores its condition before this loop loads the states, while the thread
        // stores its state before it loads the condition. So it is the race of a stop, with the
        // same solution.
        let mut poked = 0;
        for entry in &registry.entries {
            if entry.record.state() == ATTACHED {
                self.raise(&entry.record, bits);
                poked += 1;
            }
        }
        poked
    }

    /// Sets the user's bits in a poll word, and then has the user's own word set.
    fn raise(&self, record: &Record<T>, bits: u32) {
        raise(record, bits);
        self.tell_requested(record, bits);
    }

    /// Has the user's own word set. The bits are in the poll word already, so that a thread which
    /// clears its own word and then reads the poll word finds them.
    fn tell_requested(&self, record: &Record<T>, bits: u32) {
        if let Some(requested) = self.requested {
            requested(record.id, &record.data, bits);
        }
    }

    /// Calls `f` with the data of each attached thread. A thread that is attaching may be missed,
    /// as in [`poke_attached`](Self::poke_attached). The registry is locked meanwhile, so `f` must
    /// not call the coordinator.
    pub(crate) fn attached(&self, mut f: impl FnMut(ThreadId, &T)) {
        let registry = self.registry.lock();
        for entry in &registry.entries {
            if entry.record.state() == ATTACHED {
                f(entry.record.id, &entry.record.data);
            }
        }
    }

    /// Calls `f` with the data of a thread. `None`: the thread has ended.
    pub fn with_data<R>(&self, id: ThreadId, f: impl FnOnce(&T) -> R) -> Option<R> {
        let record = self.registry.lock().find(id).cloned();
        record.map(|record| f(&record.data))
    }

    /// Whether a thread has ended; `id` was an id of this coordinator, or is none. A thread that
    /// gets `true` sees all that the ended thread did as a participant.
    pub(crate) fn has_ended(&self, id: u64) -> bool {
        ThreadId::from_raw(id).is_some_and(|id| self.registry.lock().find(id).is_none())
    }

    /// A hint for [`has_ended`](Self::has_ended), without a lock.
    #[inline(always)]
    pub(crate) fn has_probably_ended(&self, id: u64) -> bool {
        self.presence.lacks(id)
    }

    pub(crate) fn slow_stop(&self) -> Duration {
        self.slow_stop
    }

    /// Counts and times so far.
    pub fn stats(&self) -> Stats {
        let registry = self.registry.lock();
        Stats {
            threads: registry.entries.len(),
            attached: registry.entries.iter().filter(|e| e.record.state() == ATTACHED).count(),
            stops: registry.stops,
            failed_stops: registry.failed_stops,
            time_to_stop: registry.time_to_stop,
            max_time_to_stop: registry.max_time_to_stop,
        }
    }

    /// The threads that have ended attached, because of which no stop succeeds.
    pub fn leaked(&self) -> Vec<ThreadInfo> {
        let registry = self.registry.lock();
        let entries =
            registry.entries.iter().filter(|e| e.orphaned && e.record.state() == ATTACHED);
        entries.map(|e| ThreadInfo::of(&e.record)).collect()
    }

    /// The participant's thread. `None`: the participant has ended.
    pub fn thread(&self, id: ThreadId) -> Option<ThreadInfo> {
        self.registry.lock().find(id).map(|record| ThreadInfo::of(record))
    }

    /// How many threads are registered.
    pub fn threads(&self) -> usize {
        self.registry.lock().entries.len()
    }

    /// The registered threads, with how long stops have waited for each.
    ///
    /// # Panics
    ///
    /// On a thread that holds a fork.
    pub fn thread_times(&self) -> Vec<ThreadTimes> {
        self.try_thread_times().unwrap_or_else(NoMemory::abort_process)
    }

    /// Like [`thread_times`](Self::thread_times), but returns an error when memory is refused.
    pub(crate) fn try_thread_times(&self) -> Result<Vec<ThreadTimes>, NoMemory> {
        let registry = self.registry.lock();
        let mut all = Vec::new();
        for entry in &registry.entries {
            let times = ThreadTimes {
                thread: ThreadInfo::try_of(&entry.record)?,
                is_attached: entry.record.state() == ATTACHED,
                time_to_stop: entry.arrivals.distribution().unwrap_or_default(),
            };
            fallible::push(&mut all, times)?;
        }
        Ok(all)
    }

    /// The thread that was last to acknowledge the present or last stop, for a report. `None`: it
    /// has ended, there was none, or there is no memory.
    pub(crate) fn last_arrival(&self) -> Option<String> {
        let registry = self.registry.lock();
        let record = registry.find(registry.last_arrival?)?;
        fallible::written(format_args!("{}", NamedThread::of(record)))
    }
}

impl<T> fmt::Debug for Coordinator<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Coordinator").field("name", &self.name).finish_non_exhaustive()
    }
}

/// The counts and times of a [`Coordinator`].
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Stats {
    /// Threads that are registered now.
    pub threads: usize,
    /// Threads that are attached now.
    pub attached: usize,
    /// Stops that were completed.
    pub stops: u64,
    /// Stops that failed, because a thread had ended attached or their limit was over.
    pub failed_stops: u64,
    /// The sum of the times that stops took until all other threads stood still. A wait for another
    /// stop before is not included.
    pub time_to_stop: Duration,
    /// The longest of these times.
    pub max_time_to_stop: Duration,
}
