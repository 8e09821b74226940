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

use std::fmt;
use std::marker::PhantomData;
use std::num::{NonZeroU64, NonZeroUsize};
use std::ops::Deref;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use crossbeam_utils::CachePadded;

use crate::base::error::RegisterError;
use crate::base::event::{self, Hook};
use crate::base::fallible::{self, NoMemory, Shared};
use crate::base::stress::{Step, Under, maybe_yield};
use crate::base::sync::{Aside, AtomicBool, AtomicU32, AtomicUsize, Ordering, spin_loop};
use crate::base::system::{has_ended, os_thread};

mod current;

#[cfg(all(test, loom))]
pub(crate) use current::end_thread;
pub use current::{TraversalGuard, current, is_stopping, is_traversing, traversing};
pub(crate) use current::{attached_as, is_suspending};
use lock::{Condvar, Guard, Mutex};

/// The coordinator's bit in a poll word: a stop waits for this thread. The others are the user's.
pub const STOP: u32 = 1;

/// Not working on what the stop protects. A stop does not wait for it.
const DETACHED: u32 = 0;
/// At work, or about to look whether it may. A stop waits for it.
const ATTACHED: u32 = 1;
/// Detached, and somebody acts for it. A stop waits until that is over; so does an attach.
const SUSPENDED: u32 = 2;
/// Suspended, and somebody sleeps at the gate until that is over.
const AWAITED: u32 = 3;
/// The participant is gone.
const ENDED: u32 = 4;

/// The name of a participant: unique in the process, never given again, below 2^40.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ThreadId(NonZeroU64);

/// The last id that was given. The one static beside the thread-locals: ids must differ between coordinators,
/// because the `current` word does not say which one it speaks of. std's atomic under loom too: its own cannot live
/// in a static, and no ordering is needed for numbers to differ.
static LAST: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);

impl ThreadId {
    /// The largest id there is: 2^40 - 2.
    pub const MAX: u64 = (1 << 40) - 2;

    /// The number behind the name; never 0.
    #[inline]
    pub fn get(self) -> u64 {
        self.0.get()
    }

    /// The id with this number; `None` for what no id can be.
    pub(crate) fn from_raw(id: u64) -> Option<Self> {
        if id > Self::MAX { None } else { NonZeroU64::new(id).map(Self) }
    }

    /// Whether an id with this number was ever given.
    pub(crate) fn was_given(id: u64) -> bool {
        id != 0 && id <= LAST.load(std::sync::atomic::Ordering::Relaxed)
    }

    /// `None`: the process has used up its ids.
    fn next() -> Option<Self> {
        Self::from_raw(LAST.fetch_add(1, std::sync::atomic::Ordering::Relaxed) + 1)
    }
}

impl fmt::Display for ThreadId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "#{}", self.0)
    }
}

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

/// What the registry knows of a participant for as long as anybody holds on to it.
struct Record<T> {
    word: CachePadded<Word>,
    id: ThreadId,
    /// The OS thread, by which a fork's child knows which participants it still has.
    thread: std::thread::ThreadId,
    /// What the system calls it, see [`ThreadInfo::os_thread`]; 0: unknown. Relaxed: a number for reports.
    /// std's atomic, as for `LAST`. Written by its thread: when it registers, and in a fork's child.
    os_thread: std::sync::atomic::AtomicU64,
    name: Option<String>,
    registered: Instant,
    data: T,
}

/// The two words that are looked at without a lock, on a cache line of their own: their thread
/// writes them all the time, others hardly ever.
struct Word {
    requests: AtomicU32,
    state: AtomicU32,
}

impl<T> Record<T> {
    fn state(&self) -> u32 {
        // `SeqCst`: the requester's half of the store-load race. Acquires the thread's writes.
        self.word.state.load(Ordering::SeqCst)
    }

    /// `SeqCst`: the thread's half of the store-load race; releases what it wrote so far. On
    /// failure nothing is known, and nothing is read.
    fn step(&self, from: u32, to: u32) -> Result<u32, u32> {
        self.word.state.compare_exchange(from, to, Ordering::SeqCst, Ordering::Relaxed)
    }

    fn os_thread(&self) -> u64 {
        self.os_thread.load(std::sync::atomic::Ordering::Relaxed)
    }

    fn set_state(&self, to: u32) -> u32 {
        // As in `step`.
        self.word.state.swap(to, Ordering::SeqCst)
    }

    /// Whether this thread is attached. For the record's own thread only: nobody else takes a record
    /// to `ATTACHED` or away from it, so the order does not matter.
    fn is_mine_attached(&self) -> bool {
        self.word.state.load(Ordering::Relaxed) == ATTACHED
    }
}

struct Entry<T> {
    record: Shared<Record<T>>,
    /// The stop that is on waits for this thread; `pending` counts it, its poll word says so.
    counted: bool,
    /// Its OS thread has ended while it was attached.
    orphaned: bool,
    /// The callbacks for slow stops have been told of that.
    told: bool,
    /// The thread waits for the end of a suspension, and sleeps for so long at least before it reports that.
    patience: Duration,
}

/// What the lock protects.
struct Registry<T> {
    /// By rising id. Ids are given without the lock, so a thread may come here after one with a later id.
    entries: Vec<Entry<T>>,
    /// Whose stop is on, complete or not. `Coordinator::stop` says whether there is one.
    stopper: Option<ThreadId>,
    /// Since when that stop is complete; `None`: there is no stop, or it is not complete.
    stopped_since: Option<Instant>,
    /// How long the world had been stopped when a thread reported that the stop does not end.
    held_told: Duration,
    /// The requester sleeps until `pending` is 0.
    stopper_sleeps: bool,
    /// Requesters that wait for their stop, first come first served.
    queue: std::collections::VecDeque<ThreadId>,
    /// Threads that were kept waiting by a stop and have not been attached since.
    owed: usize,
    /// Threads that sleep at the gate, for whatever reason.
    at_gate: usize,
    orphans: usize,
    slow_stop: Vec<SlowStopCallback>,
    /// Room for a list of all threads, and for all of them in the queue: made when they register, so that a stop takes
    /// no memory. Taken while the list is in use.
    room: Vec<Shared<Record<T>>>,
    stops: u64,
    failed_stops: u64,
    time_to_stop: Duration,
    max_time_to_stop: Duration,
}

type SlowStopCallback = Hook<dyn Fn(&SlowStop) + Send + Sync>;

impl<T> Registry<T> {
    fn position(&self, id: ThreadId) -> Option<usize> {
        self.entries.binary_search_by_key(&id, |e| e.record.id).ok()
    }

    fn find(&self, id: ThreadId) -> Option<&Shared<Record<T>>> {
        self.position(id).map(|at| &self.entries[at].record)
    }

    /// The thread that no stop can wait for: it has ended, attached.
    fn gone(&self) -> Option<StopError> {
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
    fn find_ended(&mut self) -> bool {
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
    fn untold(&mut self) -> Vec<Straggler> {
        let entries =
            self.entries.iter_mut().filter(|e| e.orphaned && e.record.state() == ATTACHED);
        let untold = entries.filter(|e| !e.told).map(|entry| {
            entry.told = true;
            Straggler::of(entry, Duration::ZERO)
        });
        untold.collect()
    }

    /// Whether `id`'s stop may begin: none is on, nobody is owed a turn, and it is first.
    fn is_turn_of(&self, id: ThreadId) -> bool {
        self.stopper.is_none()
            && self.owed == 0
            && self.queue.front().is_none_or(|&first| first == id)
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
    registry: Mutex<Registry<T>>,
    /// Threads that wait for the end of a stop to attach, or of a suspension.
    gate: Condvar,
    /// The requester, waiting for `pending` to be 0.
    arrivals: Condvar,
    /// The queue, waiting for its turn.
    turn: Condvar,
    slow_stop: Duration,
    spin: u32,
    processors: usize,
    name: Option<String>,
    under: Under,
}

impl<T: Send + Sync + 'static> Coordinator<T> {
    /// A coordinator without threads, with the default [`Config`].
    pub fn new() -> Arc<Self> {
        Self::with_config(Config::default())
    }

    /// A coordinator without threads.
    pub fn with_config(config: Config) -> Arc<Self> {
        Self::under(None, config).unwrap_or_else(NoMemory::end_process)
    }

    /// As [`with_config`](Self::with_config), of a heap that may be under stress.
    pub(crate) fn under(under: Under, config: Config) -> Result<Arc<Self>, NoMemory> {
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
            registry: Mutex::new(Registry {
                entries: Vec::new(),
                stopper: None,
                stopped_since: None,
                held_told: Duration::ZERO,
                stopper_sleeps: false,
                queue: Default::default(),
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
            gate: Condvar::new(),
            arrivals: Condvar::new(),
            turn: Condvar::new(),
            slow_stop: config.slow_stop.max(SHORTEST_SLOW_STOP),
            spin: if processors == 1 { 0 } else { config.spin },
            processors,
            name: config.name,
            under,
        })
    }

    /// Makes the calling thread a participant, detached at first. Allowed at any time, also while
    /// the world is stopped. `data` is what others see of it; the thread's name is noted for reports.
    ///
    /// # Panics
    ///
    /// When the process has used up its thread ids, [`ThreadId::MAX`] of them.
    pub fn register(self: &Arc<Self>, data: T) -> Participant<T> {
        self.try_register(data).unwrap_or_else(|error| match error {
            RegisterError::Memory => NoMemory::end_process(NoMemory),
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
        current::watch(id, weak as Weak<dyn current::Watched>)?;
        let entered = self.enter(&record);
        if entered.is_err() {
            current::unwatch(id);
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
        let waiting = registry.queue.len();
        registry.queue.try_reserve(threads - waiting.min(threads))?;
        let entry = Entry {
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

    /// Keeps one detached thread from attaching, to act for it meanwhile.
    ///
    /// While the guard lives the thread waits when it attaches or ends, and so does everybody
    /// else who wants to suspend it. A suspension counts as work: a stop waits until it is over, and a
    /// thread that is not attached here waits in this call while a stop is on (so a stop's requester must
    /// not wait for a helper that suspends). Hold it shortly: meanwhile the calling thread may
    /// neither attach, park, detach nor stop, nor suspend a second thread.
    ///
    /// # Panics
    ///
    /// When this thread keeps another one suspended already: two threads that do so could wait for
    /// one another.
    pub fn suspend(&self, id: ThreadId) -> Suspend<'_, T> {
        assert!(
            current::suspended() == 0,
            "this thread keeps another one suspended, and a thread suspends one at a time; drop that guard first"
        );
        let me = NonZeroU64::new(current::attached_as()).map(ThreadId);
        let mut registry = self.registry.lock();
        loop {
            let Some(at) = registry.position(id) else { return Suspend::Ended };
            let record = registry.entries[at].record.clone();
            // A caller that is attached here is a part of the world that has not stopped yet, and must
            // not wait for a stop that waits for it. Anybody else comes in like an attaching thread.
            let is_inside = me.is_some_and(|me| registry.find(me).is_some());
            if !is_inside && registry.stopper.is_some() {
                drop(self.wait_at_gate(registry, None));
                // Without the lock, here and below: it may be the last, and what it shows is the user's.
                drop(record);
                registry = self.registry.lock();
                continue;
            }
            match record.step(DETACHED, SUSPENDED) {
                Ok(_) => {
                    if registry.stopper.is_some() && registry.stopper != me {
                        // The scan has seen it detached. It is not complete without us, so it can still
                        // be told to wait for this one too.
                        self.count(&mut registry.entries[at]);
                    }
                    current::set_suspended(id.get());
                    maybe_yield(&self.under, Step::Suspend);
                    return Suspend::Suspended(Suspended {
                        coordinator: self,
                        record,
                        not_send: PhantomData,
                    });
                }
                Err(SUSPENDED | AWAITED) => {
                    drop(self.await_suspension(registry, &record));
                    drop(record);
                    registry = self.registry.lock();
                }
                Err(ATTACHED) => return Suspend::Attached,
                Err(_) => return Suspend::Ended,
            }
        }
    }

    /// Adds a callback for stops that take longer than [`Config::slow_stop`]. The requester calls it while
    /// it waits, without any lock, and again each time its wait has doubled. A panic in it is caught.
    ///
    /// A thread that waits for the end of another thread's stop calls it too, once the world has been stopped for so long, and again
    /// each time that has doubled; so does a thread that waits for the end of its own suspension. Both are detached then:
    /// inside the callback they cannot attach, as inside a [traversal](traversing).
    ///
    /// The first requester whose stop fails because of a thread that ended attached calls it too, once for
    /// that thread, which is then a straggler that [has ended](Straggler::has_ended).
    pub fn on_slow_stop(&self, f: impl Fn(&SlowStop) + Send + Sync + 'static) {
        self.try_on_slow_stop(f).unwrap_or_else(NoMemory::end_process);
    }

    /// As [`on_slow_stop`](Self::on_slow_stop), where memory may be refused: then nothing is added.
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

    /// To be called before `fork`: stops the world and keeps the registry locked, so that the child
    /// finds both whole. Afterwards the parent calls [`ForkGuard::parent`], the child
    /// [`ForkGuard::child`]. Between the two, this thread holds the coordinator's lock: should it call
    /// the coordinator, that panics.
    ///
    /// # Errors
    ///
    /// As [`Participant::stop`]; [`StopError::NotAttached`] also when `by` belongs to another coordinator.
    pub fn prepare_fork<'a>(
        &'a self,
        by: &'a Participant<T>,
    ) -> Result<ForkGuard<'a, T>, StopError> {
        if !std::ptr::eq(self, &*by.coordinator) {
            return Err(StopError::NotAttached);
        }
        let world = by.stop()?;
        let (kept, registry) = self.registry.keep();
        let process = std::process::id();
        Ok(ForkGuard {
            _kept: kept,
            registry,
            _known: Aside::all(),
            world,
            lost: Vec::new(),
            process,
        })
    }

    /// The thread's state is `DETACHED` or `ENDED` now: if a stop waits for it, one less to wait for.
    fn acknowledge(&self, registry: &mut Registry<T>, at: usize) {
        let entry = &mut registry.entries[at];
        if !std::mem::take(&mut entry.counted) {
            return;
        }
        // Relaxed, both: under the lock. The requester takes it before it believes in a 0.
        entry.record.word.requests.fetch_and(!STOP, Ordering::Relaxed);
        if self.pending.fetch_sub(1, Ordering::Relaxed) == 1 && registry.stopper_sleeps {
            self.arrivals.notify_one();
        }
    }

    /// From attached to detached, with the registry locked: no stop can begin in between.
    fn step_out(&self, registry: &mut Registry<T>, record: &Record<T>) {
        record.set_state(DETACHED);
        if let Some(at) = registry.position(record.id) {
            self.acknowledge(registry, at);
        }
    }

    /// Whether a thread that parks may do something with its processor: nobody else can want it, neither a thread that the stop
    /// still waits for, nor one that works for it.
    fn has_room(&self, registry: &Registry<T>) -> bool {
        // Relaxed: under the lock.
        self.processors > 1
            && (self.pending.load(Ordering::Relaxed) == 0
                || registry.entries.len() <= self.processors)
    }

    /// From detached to attached, after the end of the stop that is on, and of a suspension. `is_owed`: it is among the
    /// `owed` already.
    fn step_in<'a>(
        &'a self,
        mut registry: Guard<'a, Registry<T>>,
        record: &Record<T>,
        mut is_owed: bool,
    ) -> Guard<'a, Registry<T>> {
        loop {
            if registry.stopper.is_some() {
                // The next stop waits until this thread has been attached once.
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
        if is_owed {
            registry.owed -= 1;
            self.call_queue(&registry);
        }
        registry
    }

    /// Sleeps until a suspension is over; the caller looks again.
    fn await_suspension<'a>(
        &'a self,
        registry: Guard<'a, Registry<T>>,
        record: &Record<T>,
    ) -> Guard<'a, Registry<T>> {
        match record.step(SUSPENDED, AWAITED) {
            // The suspender sees AWAITED, and takes the lock before it notifies: we sleep by then.
            Ok(_) | Err(AWAITED) => self.wait_at_gate(registry, Some(record.id)),
            Err(_) => registry,
        }
    }

    /// Sleeps until the gate is opened, or it is time to look again. `suspended`: the participant whose suspension the thread
    /// waits for; `None`: it waits for the end of a stop.
    fn wait_at_gate<'a>(
        &'a self,
        mut registry: Guard<'a, Registry<T>>,
        suspended: Option<ThreadId>,
    ) -> Guard<'a, Registry<T>> {
        let waiting =
            suspended.and_then(|id| registry.position(id)).map(|at| &registry.entries[at]);
        let limit =
            self.patience(&registry).max(waiting.map_or(Duration::ZERO, |entry| entry.patience));
        let timed_out;
        registry.at_gate += 1;
        (registry, timed_out) = self.gate.wait_for(registry, limit);
        registry.at_gate -= 1;
        if timed_out { self.report_end(registry, suspended, limit) } else { registry }
    }

    /// Sleeps until the requesters in the queue are called, or it is time to look again.
    fn wait_in_queue<'a>(&'a self, mut registry: Guard<'a, Registry<T>>) -> Guard<'a, Registry<T>> {
        let limit = self.patience(&registry);
        let timed_out;
        (registry, timed_out) = self.turn.wait_for(registry, limit);
        if timed_out { self.report_end(registry, None, limit) } else { registry }
    }

    /// For how long a thread that waits for the end of a stop sleeps before it looks: as long as the world has been stopped.
    fn patience(&self, registry: &Registry<T>) -> Duration {
        registry.stopped_since.map_or(Duration::ZERO, |since| since.elapsed()).max(self.slow_stop)
    }

    /// A detached thread has slept for `limit`, and waits for the end of a stop, or of its suspension. Calls the callbacks
    /// for slow stops, where they have not been told of this, or the wait has doubled since they were.
    ///
    /// A stop that is not complete is reported by its requester.
    #[cold]
    fn report_end<'a>(
        &'a self,
        mut registry: Guard<'a, Registry<T>>,
        suspended: Option<ThreadId>,
        limit: Duration,
    ) -> Guard<'a, Registry<T>> {
        let stopped_for = registry.stopped_since.map(|since| since.elapsed());
        let (kind, id, waited) = match (registry.stopper, stopped_for) {
            (Some(stopper), Some(waited))
                if waited >= self.slow_stop.max(2 * registry.held_told) =>
            {
                registry.held_told = waited;
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
            entry.patience = limit.saturating_mul(2);
        }
        let stragglers = vec![Straggler::of(entry, waited)];
        drop(registry);
        let alone = current::Nowhere::new();
        self.report(&SlowStop { kind, waited, stragglers });
        drop(alone);
        self.registry.lock()
    }

    /// A detached thread has waited so long for its turn to collect, which is taken by these: calls the callbacks for slow stops.
    #[cold]
    pub(crate) fn report_collecting(&self, waited: Duration, by: &[u64]) {
        let registry = self.registry.lock();
        // A stop of theirs that takes so long is reported itself.
        if registry.stopper.is_some() || registry.slow_stop.is_empty() {
            return;
        }
        let stragglers =
            registry.entries.iter().filter(|entry| by.contains(&entry.record.id.get()));
        let stragglers = stragglers.map(|entry| Straggler::of(entry, waited)).collect();
        drop(registry);
        self.report(&SlowStop { kind: SlowStopKind::Collecting, waited, stragglers });
    }

    fn open_gate(&self, registry: &Registry<T>) {
        if registry.at_gate != 0 {
            self.gate.notify_all();
        }
    }

    /// Wakes the requesters that wait for their turn, when one of them may have it.
    fn call_queue(&self, registry: &Registry<T>) {
        if registry.stopper.is_none() && registry.owed == 0 && !registry.queue.is_empty() {
            self.turn.notify_all();
        }
    }

    /// The beginning of a stop: from here on nobody attaches, and who is attached will come.
    fn begin(&self, registry: &mut Registry<T>, requester: ThreadId) {
        registry.stopper = Some(requester);
        // The requester's store, then its loads of the states. See the module's `Orderings`. Nobody reads through `true`:
        // who finds it takes the lock.
        self.stop.store(true, Ordering::SeqCst);
        maybe_yield(&self.under, Step::Stop);
        for entry in &mut registry.entries {
            if entry.record.state() != DETACHED && entry.record.id != requester {
                self.count(entry);
            }
        }
    }

    /// The stop that is on waits for this thread too. Its acknowledgement is the reverse.
    fn count(&self, entry: &mut Entry<T>) {
        // Once: a thread that has left and not acknowledged yet may be suspended in between. Then one
        // acknowledgement is due for both, the suspension's.
        if std::mem::replace(&mut entry.counted, true) {
            return;
        }
        // Relaxed, both: under the lock; to its thread the bit is a hint to come there.
        entry.record.word.requests.fetch_or(STOP, Ordering::Relaxed);
        self.pending.fetch_add(1, Ordering::Relaxed);
    }

    /// The end of a stop, complete or not.
    fn end(&self, registry: &mut Registry<T>) {
        maybe_yield(&self.under, Step::Resume);
        if self.pending.swap(0, Ordering::Relaxed) != 0 {
            for entry in registry.entries.iter_mut().filter(|e| e.counted) {
                entry.counted = false;
                entry.record.word.requests.fetch_and(!STOP, Ordering::Relaxed);
            }
        }
        registry.stopper = None;
        registry.stopped_since = None;
        registry.held_told = Duration::ZERO;
        // Release: an attach that reads it has what the requester wrote.
        self.stop.store(false, Ordering::Release);
        self.open_gate(registry);
        self.call_queue(registry);
    }

    /// Waits until nobody is pending, and says how long the stop took from its beginning.
    fn await_arrivals(&self, begun: Instant) -> Result<Duration, StopError> {
        for _ in 0..self.spin {
            // Relaxed: a hint, the lock below decides.
            if self.pending.load(Ordering::Relaxed) == 0 {
                break;
            }
            spin_loop();
        }
        // How long to sleep before the next report: as long as the wait has taken until then.
        let mut patience = self.slow_stop;
        let mut registry = self.registry.lock();
        while self.pending.load(Ordering::Relaxed) != 0 {
            if let Some(gone) = registry.gone() {
                self.end(&mut registry);
                registry.failed_stops += 1;
                return Err(gone);
            }
            registry.stopper_sleeps = true;
            let timed_out;
            (registry, timed_out) = self.arrivals.wait_for(registry, patience);
            registry.stopper_sleeps = false;
            if timed_out && self.pending.load(Ordering::Relaxed) != 0 {
                if registry.find_ended() {
                    continue;
                }
                if !registry.slow_stop.is_empty() {
                    let waited = begun.elapsed();
                    let stragglers = registry.entries.iter().filter(|e| e.counted);
                    let stragglers = stragglers.map(|e| Straggler::of(e, waited)).collect();
                    drop(registry);
                    self.report(&SlowStop { kind: SlowStopKind::Waiting, waited, stragglers });
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

    /// Calls the callbacks for slow stops. The caller holds no lock.
    fn report(&self, report: &SlowStop) {
        let callbacks = self.registry.lock().slow_stop.clone();
        for callback in callbacks {
            // A report may not decide whether the world stops. The panic hook has printed it.
            drop(callback.call(|callback| callback(report)));
        }
    }

    /// A stop has failed because a thread has ended attached: reports each such thread, once.
    #[cold]
    fn report_gone(&self) {
        let mut registry = self.registry.lock();
        let stragglers = if registry.slow_stop.is_empty() { Vec::new() } else { registry.untold() };
        drop(registry);
        if !stragglers.is_empty() {
            self.report(&SlowStop {
                kind: SlowStopKind::Failed,
                waited: Duration::ZERO,
                stragglers,
            });
        }
    }
}

/// Sets the user's bits in a poll word. SeqCst: release for the taker, and before whatever the caller loads
/// of the thread's state next; see [`Participant::detach_and_poll`].
fn raise<T>(record: &Record<T>, bits: u32) {
    record.word.requests.fetch_or(bits & !STOP, Ordering::SeqCst);
}

/// A participant is in a state that its own thread cannot find it in: whoever put it there had no right to. Its thread cannot be
/// attached again, so it ends here, and the process with it.
#[cold]
fn unreachable_state(id: ThreadId, state: u32) -> ! {
    match state {
        ENDED => event::abort(format_args!(
            "standstill: participant {id} was taken for lost in a fork, in a process that has not lost it"
        )),
        _ => event::abort(format_args!("standstill: participant {id} is used by two threads")),
    }
}

/// This thread is detached, or about to be, while code further up its stack relies on its attachment. See the
/// module's page.
///
/// Dropped, by a panic that passes above all, it ends the process: a thread that goes on with the proof of an attachment that it
/// does not have works on objects while the world is stopped.
#[must_use = "a thread that does not come back ends the process"]
#[derive(Debug)]
pub(crate) struct Away(());

impl Away {
    fn leaving() -> Self {
        Self(())
    }

    /// The thread is attached again, or nobody relies on the attachment any more.
    pub(crate) fn end(self) {
        std::mem::forget(self);
    }
}

impl Drop for Away {
    #[cold]
    #[inline(never)]
    fn drop(&mut self) {
        if cfg!(all(test, any(loom, shuttle))) {
            // A model that fails unwinds out of wherever its threads are.
            return;
        }
        event::abort(format_args!(
            "standstill: a detached thread unwinds into code that relies on its attachment"
        ));
    }
}

impl<T: Send + Sync> current::Watched for Coordinator<T> {
    fn thread_ended(&self, id: u64) {
        let Some(id) = NonZeroU64::new(id).map(ThreadId) else { return };
        let mut registry = self.registry.lock();
        let Some(at) = registry.position(id) else { return };
        if registry.entries[at].record.is_mine_attached() {
            registry.entries[at].orphaned = true;
            registry.orphans += 1;
            self.arrivals.notify_one();
            self.turn.notify_all();
        }
    }
}

impl<T> fmt::Debug for Coordinator<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Coordinator").field("name", &self.name).finish_non_exhaustive()
    }
}

/// One thread's membership in a [`Coordinator`]. Dropping it ends the membership, also while it is
/// attached, or while a stop is on. Neither `Send` nor `Sync`.
///
/// A participant that is leaked while it is attached stays so: once its thread has ended, every stop
/// returns [`StopError::ThreadGone`].
pub struct Participant<T = ()> {
    record: Shared<Record<T>>,
    coordinator: Arc<Coordinator<T>>,
    /// How many [`NoSafepoint`]s live.
    depth: std::cell::Cell<u32>,
    not_send: PhantomData<*mut ()>,
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
    pub fn attach(&self) -> Result<(), AttachError> {
        if current::obstacles() != (0, 0) {
            return Err(AttachError::now());
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
            let error = AttachError::now();
            event::abort(format_args!("standstill: a detached thread cannot attach again: {error}"))
        }
        if !current::may_come_back() {
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
        current::enter(id);
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
                away.end();
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
        current::leave(self.record.id.get());
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
    fn may_leave(&self) -> bool {
        self.is_attached() && self.depth.get() == 0 && !current::forbids_safepoint()
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
            away.end();
            return;
        }
        drop(registry);
        // Detached, for this thread's own eyes too: what it works on has no mutator.
        current::leave(self.record.id.get());
        // Relaxed: a hint to come back; the lock decides.
        let is_on = || coordinator.stop.load(Ordering::Relaxed);
        let result = catch_unwind(AssertUnwindSafe(|| meanwhile(&is_on)));
        drop(coordinator.step_in(coordinator.registry.lock(), &self.record, true));
        current::enter(self.record.id.get());
        away.end();
        if let Err(payload) = result {
            resume_unwind(payload);
        }
    }

    /// Stops the world: returns when no other thread is attached, and none will be before the
    /// returned value is dropped. Requests are served one after the other; who waits for its turn
    /// waits like a detached thread.
    ///
    /// # Errors
    ///
    /// The world runs then, and nothing has changed, although other stops may have come and gone meanwhile.
    pub fn stop(&self) -> Result<WorldStopped<'_, T>, StopError> {
        if current::is_stopping() {
            return Err(StopError::Nested);
        }
        if !self.is_attached() {
            return Err(StopError::NotAttached);
        }
        if !self.may_leave() {
            return Err(StopError::NoSafepoint);
        }
        let coordinator = &*self.coordinator;
        let id = self.record.id;
        let mut registry = coordinator.registry.lock();
        if !registry.is_turn_of(id) {
            registry = self.wait_turn(registry);
        }
        if let Some(gone) = registry.gone() {
            registry.failed_stops += 1;
            coordinator.call_queue(&registry);
            drop(registry);
            coordinator.report_gone();
            return Err(gone);
        }
        let begun = Instant::now();
        coordinator.begin(&mut registry, id);
        drop(registry);
        current::hold(current::STOPPING);
        match coordinator.await_arrivals(begun) {
            Ok(time_to_stop) => {
                maybe_yield(&coordinator.under, Step::Stop);
                Ok(WorldStopped { coordinator, requester: id, time_to_stop, not_send: PhantomData })
            }
            Err(gone) => {
                current::let_go(current::STOPPING);
                coordinator.report_gone();
                Err(gone)
            }
        }
    }

    /// Waits in the queue, detached, and comes back attached: because it is this thread's turn, or
    /// because no turn will ever come (`Registry::gone`).
    #[cold]
    fn wait_turn<'a>(&'a self, mut registry: Guard<'a, Registry<T>>) -> Guard<'a, Registry<T>> {
        let coordinator = &*self.coordinator;
        let id = self.record.id;
        let away = Away::leaving();
        registry.queue.push_back(id);
        coordinator.step_out(&mut registry, &self.record);
        loop {
            let is_gone = registry.stopper.is_none() && registry.gone().is_some();
            if !is_gone && !registry.is_turn_of(id) {
                registry = coordinator.wait_in_queue(registry);
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
        away.end();
        registry.queue.retain(|&waiting| waiting != id);
        registry
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
        current::unwatch(self.record.id.get());
        let coordinator = &*self.coordinator;
        let id = self.record.id;
        let mut registry = coordinator.registry.lock();
        if registry.stopper == Some(id) {
            // Its `WorldStopped` was leaked; nobody can look at it any more.
            current::let_go(current::STOPPING);
            coordinator.end(&mut registry);
        }
        loop {
            match self.record.word.state.load(Ordering::Relaxed) {
                // Somebody acts for this thread, and must not find it gone half way; unless that is
                // this very thread.
                SUSPENDED | AWAITED if current::suspended() != id.get() => {
                    registry = coordinator.await_suspension(registry, &self.record);
                }
                _ => break,
            }
        }
        current::leave(id.get());
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

/// The proof that the world stands still: no other participant is attached, or suspended by
/// another thread. Dropping it lets the world go. `Sync`, so that helpers may be shown the proof;
/// not `Send`, because it is given back where it was asked for.
#[must_use = "the world runs again when this is dropped"]
pub struct WorldStopped<'a, T = ()> {
    coordinator: &'a Coordinator<T>,
    requester: ThreadId,
    time_to_stop: Duration,
    /// `Sync` and not `Send`, like this guard.
    not_send: PhantomData<std::sync::MutexGuard<'a, ()>>,
}

impl<T> WorldStopped<'_, T> {
    /// How long it took from the request, without the wait for other stops, until all others stood still.
    pub fn time_to_stop(&self) -> Duration {
        self.time_to_stop
    }

    /// Who asked for it.
    pub fn requester(&self) -> ThreadId {
        self.requester
    }

    /// Whose world it is.
    pub fn coordinator(&self) -> &Coordinator<T> {
        self.coordinator
    }

    /// Calls `f` with every registered thread: parked, detached, and the requester itself. Threads
    /// that are born meanwhile may be missed, threads that end meanwhile included.
    pub fn threads(&self, mut f: impl FnMut(ThreadId, &T)) {
        let mut records = {
            let registry = &mut *self.coordinator.registry.lock();
            let mut room = std::mem::take(&mut registry.room);
            room.extend(registry.entries.iter().map(|e| e.record.clone()));
            room
        };
        for record in records.drain(..) {
            f(record.id, &record.data);
        }
        let room = &mut self.coordinator.registry.lock().room;
        if room.capacity() < records.capacity() {
            *room = records;
        }
    }
}

impl<T> Drop for WorldStopped<'_, T> {
    fn drop(&mut self) {
        current::let_go(current::STOPPING);
        self.coordinator.end(&mut self.coordinator.registry.lock());
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

/// What [`Coordinator::suspend`] found.
#[must_use = "a suspension ends when its guard is dropped"]
#[derive(Debug)]
pub enum Suspend<'a, T> {
    /// The thread was detached, and cannot attach before the guard is dropped.
    Suspended(Suspended<'a, T>),
    /// The thread is attached, or about to be.
    Attached,
    /// The thread has ended.
    Ended,
}

/// One detached thread is kept so; see [`Coordinator::suspend`]. Derefs to what it shows of itself.
pub struct Suspended<'a, T> {
    coordinator: &'a Coordinator<T>,
    record: Shared<Record<T>>,
    not_send: PhantomData<*mut ()>,
}

impl<T> Suspended<'_, T> {
    /// Whom it suspends.
    pub fn id(&self) -> ThreadId {
        self.record.id
    }
}

impl<T> Deref for Suspended<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.record.data
    }
}

impl<T> Drop for Suspended<'_, T> {
    fn drop(&mut self) {
        current::set_suspended(0);
        let was_awaited = match self.record.step(SUSPENDED, DETACHED) {
            Ok(_) => false,
            Err(AWAITED) => {
                self.record.set_state(DETACHED);
                true
            }
            // The participant has ended in our hands: it is this thread's own.
            Err(_) => return,
        };
        // `SeqCst`: the same race as a detach's, see the module's `Orderings`.
        if was_awaited || self.coordinator.stop.load(Ordering::SeqCst) {
            let mut registry = self.coordinator.registry.lock();
            if let Some(at) = registry.position(self.record.id) {
                registry.entries[at].patience = Duration::ZERO;
            }
            // This is not the record's thread, which may have attached by now, and been asked to park by
            // another stop than the one that was seen above: nobody else may acknowledge that.
            if self.record.state() == DETACHED
                && let Some(at) = registry.position(self.record.id)
            {
                self.coordinator.acknowledge(&mut registry, at);
            }
            self.coordinator.open_gate(&registry);
        }
    }
}

impl<T> fmt::Debug for Suspended<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Suspended").field(&self.record.id).finish()
    }
}

/// The world is stopped and the registry locked for a fork; see [`Coordinator::prepare_fork`].
/// Dropping it is [`parent`](Self::parent).
///
/// It must not be leaked, as by [`std::mem::forget`]: the world then stays stopped and the registry stays locked. The
/// thread that leaked it panics at the next call that needs the registry. A thread that begins to wait for the registry
/// later says so on standard error after a second. A thread that waits already for the end of the stop says nothing.
#[must_use = "the world runs again when this is dropped"]
pub struct ForkGuard<'a, T> {
    // In this order: the registry is unlocked before the world runs, and the payloads of lost threads, which are the
    // user's, are dropped after both.
    _kept: lock::Kept<'a>,
    registry: Guard<'a, Registry<T>>,
    _known: Aside,
    world: WorldStopped<'a, T>,
    /// The participants that a child has lost, where the caller did not ask for them.
    lost: Vec<Ended<T>>,
    /// The process that is about to fork.
    process: u32,
}

impl<'a, T> ForkGuard<'a, T> {
    /// In the parent, or when the fork failed: everything goes on. In the child it does what [`child`](Self::child)
    /// does, and drops what that returns.
    pub fn parent(self) {}

    /// In the child: the participants of all other threads are gone, and returned, for somebody to
    /// care for what they owned. The world runs again.
    ///
    /// # Panics
    ///
    /// In the process that prepared the fork, which still has its other threads. Nothing has changed then but that the
    /// world runs again.
    pub fn child(mut self) -> Vec<Ended<T>> {
        self.must_be_child();
        self.lose_others()
    }

    /// In the child: takes the participants of all other threads out of the registry.
    fn lose_others(&mut self) -> Vec<Ended<T>> {
        let here = std::thread::current().id();
        let registry = &mut *self.registry;
        let all = std::mem::take(&mut registry.entries);
        let (kept, lost): (_, Vec<_>) = all.into_iter().partition(|e| e.record.thread == here);
        registry.entries = kept;
        let os_thread = os_thread();
        for entry in &registry.entries {
            entry.record.os_thread.store(os_thread, std::sync::atomic::Ordering::Relaxed);
        }
        registry.orphans = registry.entries.iter().filter(|e| e.orphaned).count();
        // Those who waited, for whatever, wait no more.
        registry.owed = 0;
        registry.at_gate = 0;
        registry.queue.clear();
        let end = |entry: Entry<T>| {
            entry.record.set_state(ENDED);
            Ended(entry.record)
        };
        lost.into_iter().map(end).collect()
    }

    /// Whether this is another process than the one that prepared the fork.
    pub(crate) fn is_child(&self) -> bool {
        self.process != std::process::id()
    }

    /// Panics in the process that prepared the fork.
    pub(crate) fn must_be_child(&self) {
        assert!(
            self.is_child(),
            "`child` of a fork was called in the process that prepared the fork, which has not lost its other threads; \
             call `parent` there"
        );
    }
}

impl<T> Drop for ForkGuard<'_, T> {
    fn drop(&mut self) {
        if self.is_child() {
            self.lost = self.lose_others();
        }
    }
}

#[cfg(all(test, loom))]
impl<T> ForkGuard<'_, T> {
    /// Whether a child could lock the registry.
    pub(crate) fn has_registry(&self) -> bool {
        self.world.coordinator.registry.is_held_by_or_open(Some(&self.registry))
    }
}

impl<T> fmt::Debug for ForkGuard<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ForkGuard").field(&self.world).finish()
    }
}

/// A participant whose thread a fork's child does not have.
pub struct Ended<T>(Shared<Record<T>>);

impl<T> Ended<T> {
    /// Its name.
    pub fn id(&self) -> ThreadId {
        self.0.id
    }

    /// What it showed of itself.
    pub fn data(&self) -> &T {
        &self.0.data
    }
}

impl<T> fmt::Debug for Ended<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Ended").field(&self.0.id).finish()
    }
}

/// Who a participant's thread is, for reports.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ThreadInfo {
    /// The participant.
    pub id: ThreadId,
    /// What its thread was called when it registered.
    pub name: Option<String>,
    /// The number by which the system's tools know the thread: `gettid` on Linux and Android, `None` elsewhere.
    pub os_thread: Option<u64>,
    /// How long ago the participant was registered: of a heap's mutator, how long ago
    /// [`Heap::attach`](crate::Heap::attach) made it.
    pub registered_for: Duration,
}

impl ThreadInfo {
    fn of<T>(record: &Record<T>) -> Self {
        let os_thread = record.os_thread();
        Self {
            id: record.id,
            name: record.name.clone(),
            os_thread: (os_thread != 0).then_some(os_thread),
            registered_for: record.registered.elapsed(),
        }
    }
}

/// As `thread 'reader' (OS thread 4711)`.
impl fmt::Display for ThreadInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.name {
            Some(name) => write!(f, "thread '{name}'")?,
            None => write!(f, "thread {} without a name", self.id)?,
        }
        match self.os_thread {
            Some(number) => write!(f, " (OS thread {number})"),
            None => Ok(()),
        }
    }
}

/// A stop that takes long, fails, or does not end: because of which threads.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct SlowStop {
    /// What has happened.
    pub kind: SlowStopKind,
    /// How long the wait has taken; zero for a stop that has failed.
    pub waited: Duration,
    /// The threads that the wait is for.
    pub stragglers: Vec<Straggler>,
}

/// What a [`SlowStop`] tells of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SlowStopKind {
    /// A stop is not complete: the stragglers have not come to a safepoint. Told by the stop's requester.
    Waiting,
    /// A stop has failed: the stragglers have ended attached. Told by the stop's requester.
    Failed,
    /// A stop is complete, and does not end: the straggler has asked for it. Told by one of the threads that wait for
    /// the end. Either the straggler's work takes so long, or it has leaked its [`WorldStopped`] or its
    /// [`Fork`](crate::Fork).
    Held,
    /// The straggler has the turn to collect, or clears a piece of a collection's garbage, and does not end: one of its finalizers,
    /// callbacks or destructors takes so long. Told by a thread that waits for its turn to collect.
    Collecting,
    /// The straggler waits to attach, or to end, while another thread keeps it [suspended](Coordinator::suspend). Told by the
    /// straggler's own thread.
    Suspended,
}

/// How many stragglers a line of text names.
const NAMED: usize = 4;

/// One line.
impl fmt::Display for SlowStop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind {
            SlowStopKind::Failed => {
                f.write_str("no stop can succeed, and so no collection, because of ")?
            }
            SlowStopKind::Waiting => write!(f, "a stop has waited {:.1?} for ", self.waited)?,
            SlowStopKind::Held => {
                write!(f, "the world has been stopped for {:.1?} by ", self.waited)?
            }
            SlowStopKind::Suspended => {
                write!(f, "a thread has waited {:.1?} to attach: ", self.waited)?
            }
            SlowStopKind::Collecting => {
                write!(
                    f,
                    "a thread has waited {:.1?} for its turn to collect, which is taken by ",
                    self.waited
                )?;
            }
        }
        if self.stragglers.is_empty() {
            f.write_str("an unknown thread")?;
        }
        for (at, straggler) in self.stragglers.iter().take(NAMED).enumerate() {
            write!(f, "{}{straggler}", if at == 0 { "" } else { ", " })?;
        }
        match self.stragglers.len().saturating_sub(NAMED) {
            0 => {}
            more => write!(f, ", and {more} more")?,
        }
        match self.kind {
            SlowStopKind::Waiting => {
                f.write_str(": a thread that blocks must be detached meanwhile")
            }
            SlowStopKind::Held => f.write_str(": all others wait until it has let the world run"),
            SlowStopKind::Collecting => {
                f.write_str(": a finalizer, callback or destructor there takes so long")
            }
            SlowStopKind::Failed | SlowStopKind::Suspended => Ok(()),
        }
    }
}

/// A thread that a stop waits for, or that others wait for in one; see [`SlowStopKind`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Straggler {
    /// Who.
    pub thread: ThreadInfo,
    /// For how long it has been attached *at least*: as long as the wait has taken, where it is attached. Attaching is too
    /// cheap to look at a clock.
    pub attached_for: Duration,
    /// It is not attached itself: another thread keeps it [suspended](Coordinator::suspend).
    pub is_suspended: bool,
    /// Its thread has ended without detaching, because its participant (its [`Mutator`](crate::Mutator)) was
    /// leaked: no stop succeeds any more.
    pub has_ended: bool,
}

impl Straggler {
    fn of<T>(entry: &Entry<T>, waited: Duration) -> Self {
        Self {
            thread: ThreadInfo::of(&entry.record),
            attached_for: waited,
            is_suspended: entry.record.state() != ATTACHED,
            has_ended: entry.orphaned,
        }
    }
}

impl fmt::Display for Straggler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, which attached {:.1?} ago", self.thread, self.thread.registered_for)?;
        match self {
            Self { has_ended: true, .. } => f.write_str(" and ended without dropping its mutator"),
            Self { is_suspended: true, .. } => f.write_str(" and is suspended by another thread"),
            _ => Ok(()),
        }
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

/// Why a thread could not attach.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AttachError {
    /// It is attached, here or elsewhere.
    AlreadyAttached,
    /// It is inside a [traversal](traversing).
    Traversing,
    /// It keeps another thread [suspended](Coordinator::suspend).
    Suspending,
    /// It is ending: this is a thread-local's destructor, and nobody would notice a leak any more.
    ThreadEnding,
}

impl AttachError {
    #[cold]
    fn now() -> Self {
        if is_traversing() {
            Self::Traversing
        } else if current::current() != 0 {
            Self::AlreadyAttached
        } else if current::is_ending() {
            Self::ThreadEnding
        } else {
            Self::Suspending
        }
    }
}

impl fmt::Display for AttachError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::AlreadyAttached => {
                "this thread is attached already, here or elsewhere; detach it there first"
            }
            Self::Traversing => {
                "this thread is inside a traversal; attach when its guard has been dropped"
            }
            Self::Suspending => "this thread keeps another one suspended; drop that guard first",
            Self::ThreadEnding => "this thread is ending",
        })
    }
}

impl std::error::Error for AttachError {}

/// Why the world was not stopped.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StopError {
    /// This thread has stopped the world already.
    Nested,
    /// This thread is not attached (to this coordinator).
    NotAttached,
    /// This thread must not reach a safepoint now.
    NoSafepoint,
    /// A thread has ended without detaching: its participant was leaked.
    ThreadGone {
        /// What the thread was called when it registered.
        name: Option<String>,
        /// Its participant.
        id: ThreadId,
    },
}

impl fmt::Display for StopError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nested => f.write_str("this thread has stopped the world already; let it run again first"),
            Self::NotAttached => {
                f.write_str("this thread is not attached to this coordinator; attach it first")
            }
            Self::NoSafepoint => f.write_str(
                "this thread must not reach a safepoint now: it is inside a destructor, finalizer, callback, \
                 traversal or suspension; do this when that has returned",
            ),
            Self::ThreadGone { name, id } => {
                let name = name.as_deref().unwrap_or("without a name");
                write!(f, "thread {id} ({name}) has ended attached: its participant was leaked")
            }
        }
    }
}

impl std::error::Error for StopError {}

/// Locks that a fork must find whole, and what is waited for with them: std's, not `parking_lot`'s. A
/// `parking_lot` lock keeps its waiters in a table of the process, and hands itself over to the
/// first of them: in the child that is a thread which does not exist. std's is one futex word.
#[cfg(not(all(test, any(loom, shuttle))))]
pub(crate) mod lock {
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::sync::{PoisonError, TryLockError};
    use std::time::{Duration, Instant};

    use super::{ThreadId, current};
    use crate::base::event;
    use crate::base::sync::{Counted, are_locks_held};
    use crate::base::system::os_thread;

    pub(crate) type Guard<'a, T> = Counted<std::sync::MutexGuard<'a, T>>;

    /// How long a thread waits for a fork before it says so.
    const LONG: Duration = Duration::from_secs(1);

    #[derive(Debug)]
    pub(crate) struct Mutex<T> {
        value: std::sync::Mutex<T>,
        keeper: Keeper,
    }

    /// The thread that keeps a lock through a fork. Written by that thread, which has the lock; read by threads that wait for
    /// the lock, and by no others. Relaxed: the thread finds its own number without any ordering; other threads only report.
    #[derive(Debug, Default)]
    struct Keeper {
        /// The thread's participant, whose number no other participant ever gets; 0: no fork keeps the lock.
        participant: AtomicU64,
        /// What the system calls the thread; 0: unknown.
        os_thread: AtomicU64,
    }

    impl<T> Mutex<T> {
        pub(crate) fn new(value: T) -> Self {
            Self { value: std::sync::Mutex::new(value), keeper: Keeper::default() }
        }

        pub(crate) fn lock(&self) -> Guard<'_, T> {
            Counted::new(self.try_lock().unwrap_or_else(|| self.wait()))
        }

        fn try_lock(&self) -> Option<std::sync::MutexGuard<'_, T>> {
            match self.value.try_lock() {
                Ok(guard) => Some(guard),
                Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
                Err(TryLockError::WouldBlock) => None,
            }
        }

        /// Takes the lock, for a fork: should this thread want it once more, it panics, and does not wait for itself. The
        /// caller drops the first value, and then the second.
        pub(crate) fn keep(&self) -> (Kept<'_>, Guard<'_, T>) {
            let guard = self.lock();
            self.keeper.os_thread.store(os_thread(), Ordering::Relaxed);
            self.keeper.participant.store(current::attached_as(), Ordering::Relaxed);
            (Kept(&self.keeper), guard)
        }

        #[cold]
        fn wait(&self) -> std::sync::MutexGuard<'_, T> {
            let (since, mut is_told) = (Instant::now(), false);
            // std's lock has no wait with an end, after which a thread could report.
            while let Some(keeper) =
                ThreadId::from_raw(self.keeper.participant.load(Ordering::Relaxed))
            {
                assert!(
                    keeper.get() != current::attached_as(),
                    "this thread has stopped the world for a fork, and would wait for itself; call `parent` or \
                     `child` of the fork first"
                );
                // A line on standard error may be caught by somebody else's code, which is called under no lock.
                if since.elapsed() >= LONG && !is_told && !are_locks_held() {
                    is_told = true;
                    self.report(keeper, since.elapsed());
                }
                if let Some(guard) = self.try_lock() {
                    return guard;
                }
                std::thread::sleep(Duration::from_millis(1));
            }
            self.value.lock().unwrap_or_else(PoisonError::into_inner)
        }

        fn report(&self, keeper: ThreadId, waited: Duration) {
            let thread = std::thread::current();
            let (name, number) = (
                thread.name().unwrap_or("without a name"),
                self.keeper.os_thread.load(Ordering::Relaxed),
            );
            event::line(format_args!(
                "standstill: thread '{name}' has waited {waited:.1?} for the end of a fork: thread {keeper} (OS thread \
                 {number}) has called neither `parent` nor `child` of it"
            ));
        }
    }

    /// A fork keeps a lock while this lives; see [`Mutex::keep`].
    #[derive(Debug)]
    pub(crate) struct Kept<'a>(&'a Keeper);

    impl Drop for Kept<'_> {
        fn drop(&mut self) {
            self.0.participant.store(0, Ordering::Relaxed);
        }
    }

    #[derive(Debug)]
    pub(crate) struct Condvar(std::sync::Condvar);

    impl Condvar {
        pub(crate) fn new() -> Self {
            Self(std::sync::Condvar::new())
        }

        pub(crate) fn wait<'a, T>(&self, guard: Guard<'a, T>) -> Guard<'a, T> {
            guard
                .through(|guard| (self.0.wait(guard).unwrap_or_else(PoisonError::into_inner), ()))
                .0
        }

        /// The second value: the time is up.
        pub(crate) fn wait_for<'a, T>(
            &self,
            guard: Guard<'a, T>,
            limit: Duration,
        ) -> (Guard<'a, T>, bool) {
            guard.through(|guard| {
                let (guard, result) =
                    self.0.wait_timeout(guard, limit).unwrap_or_else(PoisonError::into_inner);
                (guard, result.timed_out())
            })
        }

        pub(crate) fn notify_one(&self) {
            self.0.notify_one();
        }

        pub(crate) fn notify_all(&self) {
            self.0.notify_all();
        }
    }
}

#[cfg(all(test, any(loom, shuttle)))]
pub(crate) mod lock {
    use std::marker::PhantomData;
    use std::time::Duration;

    pub(crate) use crate::base::sync::{Mutex, MutexGuard as Guard};

    impl<T> Mutex<T> {
        /// No model leaks a fork.
        pub(crate) fn keep(&self) -> (Kept<'_>, Guard<'_, T>) {
            (Kept(PhantomData), self.lock())
        }
    }

    #[derive(Debug)]
    pub(crate) struct Kept<'a>(PhantomData<&'a ()>);

    #[derive(Debug)]
    pub(crate) struct Condvar(crate::base::sync::Condvar);

    impl Condvar {
        pub(crate) fn new() -> Self {
            Self(crate::base::sync::Condvar::new())
        }

        pub(crate) fn wait<'a, T>(&self, mut guard: Guard<'a, T>) -> Guard<'a, T> {
            self.0.wait(&mut guard);
            guard
        }

        pub(crate) fn wait_for<'a, T>(
            &self,
            mut guard: Guard<'a, T>,
            limit: Duration,
        ) -> (Guard<'a, T>, bool) {
            let timed_out = self.0.wait_for(&mut guard, limit).timed_out();
            (guard, timed_out)
        }

        pub(crate) fn notify_one(&self) {
            self.0.notify_one();
        }

        pub(crate) fn notify_all(&self) {
            self.0.notify_all();
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    /// In a process of its own, since it uses up the ids of the process.
    #[test]
    fn when_the_ids_are_used_up_attaching_is_an_error_and_others_go_on() {
        const CHILD: &str = "STANDSTILL_IDS_CHILD";
        const NAME: &str =
            "safepoint::tests::when_the_ids_are_used_up_attaching_is_an_error_and_others_go_on";
        if std::env::var_os(CHILD).is_none() {
            let mut child = std::process::Command::new(std::env::current_exe().expect("a program"));
            let output = child.args([NAME, "--exact", "--nocapture"]).env(CHILD, "1").output();
            let output = output.expect("a child");
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            assert!(String::from_utf8_lossy(&output.stdout).contains("1 passed"));
            return;
        }
        let heap = crate::Heap::builder().reserve(1 << 30).workers(1).build().expect("a heap");
        let second = crate::Heap::builder().reserve(1 << 30).workers(1).build().expect("a heap");
        let mut m = heap.attach();
        let kept = m.alloc(7u64);
        LAST.store(ThreadId::MAX - 1, std::sync::atomic::Ordering::Relaxed);
        // The last id works.
        std::thread::scope(|scope| {
            m.detach(|| {
                scope
                    .spawn(|| assert_eq!(*kept.get(&heap.attach()), 7))
                    .join()
                    .expect("the last id");
            });
        });
        for _ in 0..3 {
            let error = m.detach(|| {
                std::thread::scope(|scope| {
                    scope.spawn(|| heap.try_attach().err()).join().expect("no panic")
                })
            });
            assert_eq!(error, Some(crate::AttachError::NoThreadIds));
        }
        // A heap can end without an id. It says that it did not collect.
        let told = Arc::new(std::sync::Mutex::new(Vec::new()));
        let heard = Arc::clone(&told);
        second
            .on_unraisable(move |unraisable| heard.lock().unwrap().push(format!("{unraisable:?}")));
        m.detach(|| drop(second));
        let told = told.lock().unwrap();
        assert!(told.len() == 1 && told[0].contains("no thread ids are left"), "{told:?}");
        // This thread goes on, and a stop waits for none of those that were refused.
        assert_eq!(m.collect().abandoned, None);
        assert_eq!(*kept.get(&m), 7);
        m.verify().expect("a whole heap");
    }
}
