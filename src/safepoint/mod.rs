//! Floor 2: threads that can be brought to a standstill, and nothing about objects.
//!
//! A [`Coordinator`] knows the threads that registered with it, each by a [`Participant`]. A
//! participant is *attached* while its thread works on what the stop protects, *detached* while it
//! does not. [`Participant::stop`] returns once nobody else is attached; while the
//! [`WorldStopped`] it gives lives, nobody can become so. Attached threads come to a safepoint
//! ([`Participant::park`]) when their poll word says so; detached ones are not bothered at all.
//! The protocol's page, with its proof, is `docs/safepoints.md`.
//!
//! # States
//!
//! The `state` word of a record, and who may take which arrow:
//!
//! | from → to | who |
//! |---|---|
//! | `DETACHED` → `ATTACHED` | its thread: attach, or at the gate (registry locked) once no stop is on |
//! | `ATTACHED` → `DETACHED` | its thread: detach, park, waiting for its own stop, stepping back from an attach that met a stop |
//! | `DETACHED` → `SUSPENDED` | whoever suspends it (registry locked) |
//! | `SUSPENDED` → `AWAITED` | its thread, or the next to suspend it, about to wait (registry locked) |
//! | `SUSPENDED`, `AWAITED` → `DETACHED` | the suspender |
//! | any → `ENDED` | its thread, when the participant is dropped; the child of a fork for a thread that it lost |
//!
//! # Fields: who may touch which, when
//!
//! * `Record::state`: as above, every transition a read-modify-write, so that it has one order and a
//!   reader that sees a later state also sees what was written before an earlier one.
//! * `Record::requests`, the poll word: bit [`STOP`] is set and cleared under the registry lock only,
//!   and is set exactly while the record is `counted`. The other bits are the user's: anybody sets,
//!   its own thread takes.
//! * `Record::os_thread`: written by its thread when it registers and in a fork's child; read for reports.
//! * `Coordinator::stop`: written under the registry lock; read by every attach and detach.
//! * `Coordinator::pending`: the number of `counted` entries; written under the registry lock; the
//!   requester may look at it without.
//! * everything in `Registry`: under its lock. No user code runs under it: payloads are cloned out
//!   as `Arc`s, callbacks are called and payloads dropped after it was let go.
//!
//! # Coming back
//!
//! A thread that parks, waits for its turn to stop, or runs the closure of a detach has callers that hold the proof of its
//! attachment, and go on when it returns. Such a thread has an `Away` while it is detached: it comes back, or the process ends.
//! It never unwinds in between, since its callers could catch that.
//!
//! # Orderings
//!
//! Two words cross: a thread writes its `state` and reads `stop`; the requester writes `stop` and
//! reads all `state`s. At least one must see the other's write, which acquire and release cannot
//! give: these four accesses are `SeqCst`. Everything
//! else is ordinary happens-before: what an attached thread wrote reaches the requester by the
//! release of its last transition, read by the scan, or by the registry lock under which it
//! acknowledged; what the requester wrote reaches an attaching thread by the release of `stop :=
//! false`, or by the lock at the gate.

#![forbid(unsafe_code)]

mod away;
mod error;
mod fork;
mod gate;
pub(crate) mod lock;
mod participant;
mod record;
mod registry;
mod report;
mod slow_stop;
mod suspend;
mod thread_id;
mod thread_words;
mod world;

use std::fmt;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use crossbeam_utils::CachePadded;

use crate::base::fallible::{self, NoMemory};
use crate::base::stress::MaybeStrain;
use crate::base::sync::{AtomicBool, AtomicUsize};

pub(crate) use away::Away;
pub use error::{CannotAttach as AttachError, StopError};
pub use fork::{Ended, ForkGuard};
use lock::{ForkCondvar, ForkMutex};
pub use participant::{NoSafepoint, Participant};
pub use record::STOP;
use record::{ATTACHED, raise};
use registry::Registry;
pub use report::{SlowStop, SlowStopKind, Straggler, ThreadInfo};
pub use suspend::{Suspend, Suspended};
pub use thread_id::ThreadId;
#[cfg(all(test, loom))]
pub(crate) use thread_words::end_thread;
pub use thread_words::{TraversalGuard, current, is_stopping, is_traversing, traversing};
pub(crate) use thread_words::{attached_as, is_suspending};
pub use world::WorldStopped;

/// How a [`Coordinator`] behaves.
#[derive(Clone, Debug)]
pub struct Config {
    /// How long a requester waits before it calls the [`Coordinator::on_slow_stop`] callbacks. It calls
    /// them again each time its wait has doubled. Default: one second. A shorter time than a millisecond, zero
    /// too, is taken for a millisecond.
    pub slow_stop: Duration,
    /// How often a requester looks whether all have come before it goes to sleep; a look is a few
    /// tens of nanoseconds. Default: 40, a microsecond or two. Never more on one processor than 0:
    /// there the thread that is waited for needs it.
    pub spin: u32,
    /// A name, for reports.
    pub name: Option<String>,
}

/// The shortest [`Config::slow_stop`]: a requester that waits no time between two looks never sleeps.
const SHORTEST_SLOW_STOP: Duration = Duration::from_millis(1);

impl Default for Config {
    fn default() -> Self {
        // In models only the one that asks for it has its requester look before it sleeps.
        let spin = if cfg!(all(test, any(loom, shuttle))) { 0 } else { 40 };
        Self { slow_stop: Duration::from_secs(1), spin, name: None }
    }
}

/// Brings the threads that registered with it to a standstill, and lets them go again.
///
/// `T` is what each thread shows of itself to the others, by shared reference.
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
    /// A stop is on. On a line of its own: every attach and detach reads it, only stops write it.
    stop: CachePadded<AtomicBool>,
    /// How many counted threads the stop still waits for.
    pending: CachePadded<AtomicUsize>,
    registry: ForkMutex<Registry<T>>,
    /// Threads that wait for the end of a stop to attach, or of a suspension.
    gate: ForkCondvar,
    /// The requester, waiting for `pending` to be 0.
    arrivals: ForkCondvar,
    /// The queue, waiting for its turn.
    next_stop: ForkCondvar,
    slow_stop: Duration,
    spin: u32,
    processors: usize,
    name: Option<String>,
    under: MaybeStrain,
}

impl<T: Send + Sync + 'static> Coordinator<T> {
    /// A coordinator without threads, with the default [`Config`].
    pub fn new() -> Arc<Self> {
        Self::with_config(Config::default())
    }

    /// A coordinator without threads.
    pub fn with_config(config: Config) -> Arc<Self> {
        Self::under(None, config).unwrap_or_else(NoMemory::abort_process)
    }

    /// As [`with_config`](Self::with_config), of a heap that may be under stress.
    pub(crate) fn under(under: MaybeStrain, config: Config) -> Result<Arc<Self>, NoMemory> {
        let modelled = cfg!(all(test, any(loom, shuttle)));
        // A model is the same on every machine.
        let processors = if modelled {
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
                stopped_since: None,
                held_told: Duration::ZERO,
                stopper_sleeps: false,
                requesters: Default::default(),
                owed: 0,
                at_gate: 0,
                orphans: 0,
                slow_stop: Vec::new(),
                room: Vec::new(),
                stops: 0,
                failed_stops: 0,
                time_to_stop: Duration::ZERO,
                max_time_to_stop: Duration::ZERO,
            }),
            gate: ForkCondvar::new(),
            arrivals: ForkCondvar::new(),
            next_stop: ForkCondvar::new(),
            slow_stop: config.slow_stop.max(SHORTEST_SLOW_STOP),
            spin: if processors == 1 { 0 } else { config.spin },
            processors,
            name: config.name,
            under,
        })
    }
}

impl<T> Coordinator<T> {
    /// The name it was given.
    pub fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    /// Raises request bits in that thread's poll word; `false`: there is no such thread (any more).
    /// What was written before is seen by the thread once it has taken the bits. [`STOP`] is left out.
    pub fn poke(&self, id: ThreadId, bits: u32) -> bool {
        let registry = self.registry.lock();
        let record = registry.find(id);
        if let Some(record) = record {
            raise(record, bits);
        }
        record.is_some()
    }

    /// Raises request bits in the poll words of all threads that are attached, and says how many.
    ///
    /// A thread that is just attaching, or parked, may be missed. Nothing is lost if the caller
    /// *first* stores its condition with `SeqCst`, and every thread loads it with `SeqCst` *after* it
    /// attached (after [`attach`](Participant::attach), [`park`](Participant::park) and the end of a
    /// [`stop`](Participant::stop)): either it is poked, or it sees the condition.
    pub fn poke_attached(&self, bits: u32) -> usize {
        let registry = self.registry.lock();
        // The caller's store, then our loads of the states; against it, the thread's transition to
        // attached, then its load of the condition. The same race as a stop's, won the same way.
        let mut poked = 0;
        for entry in &registry.entries {
            if entry.record.state() == ATTACHED {
                raise(&entry.record, bits);
                poked += 1;
            }
        }
        poked
    }

    /// Calls `f` with what each attached thread shows of itself. A thread that is just attaching may be
    /// missed, in the way that [`poke_attached`](Self::poke_attached) tells of. The registry is locked
    /// meanwhile: `f` calls nothing here.
    pub(crate) fn attached(&self, mut f: impl FnMut(ThreadId, &T)) {
        let registry = self.registry.lock();
        for entry in &registry.entries {
            if entry.record.state() == ATTACHED {
                f(entry.record.id, &entry.record.data);
            }
        }
    }

    /// Calls `f` with what that thread shows of itself; `None`: it has ended.
    pub fn with_data<R>(&self, id: ThreadId, f: impl FnOnce(&T) -> R) -> Option<R> {
        let record = self.registry.lock().find(id).cloned();
        record.map(|record| f(&record.data))
    }

    /// How long a wait may take before it is reported.
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

    /// The threads that have ended attached: no stop succeeds any more.
    pub fn leaked(&self) -> Vec<ThreadInfo> {
        let registry = self.registry.lock();
        let entries =
            registry.entries.iter().filter(|e| e.orphaned && e.record.state() == ATTACHED);
        entries.map(|e| ThreadInfo::of(&e.record)).collect()
    }

    /// Who the participant is, as long as it has not ended.
    pub fn thread(&self, id: ThreadId) -> Option<ThreadInfo> {
        self.registry.lock().find(id).map(|record| ThreadInfo::of(record))
    }

    /// How many threads are registered.
    pub fn threads(&self) -> usize {
        self.registry.lock().entries.len()
    }
}

impl<T> fmt::Debug for Coordinator<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Coordinator").field("name", &self.name).finish_non_exhaustive()
    }
}

/// What a [`Coordinator`] has seen.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Stats {
    /// Threads that are registered now.
    pub threads: usize,
    /// Threads that are attached now.
    pub attached: usize,
    /// Stops that were completed.
    pub stops: u64,
    /// Stops that were given up, because a thread had ended attached.
    pub failed_stops: u64,
    /// From request to standstill, all stops together.
    pub time_to_stop: Duration,
    /// From request to standstill, the longest.
    pub max_time_to_stop: Duration,
}
