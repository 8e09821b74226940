//! The data that the threads of one heap share.
//!
//! A thread may end, or have no mutator, while others still need what it knew about the heap. So
//! all of that is in one [`Core`], which every mutator, handle and page leads to. For example,
//! thread 1 attaches, allocates and ends. Its arena is empty then, and its last count, which makes
//! a collection due, is in [`Core::pace`], so thread 2 collects instead.

use std::any::Any;
use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, OnceLock};
use std::thread::Thread;
use std::time::Duration;

use crate::base::fallible::{self, NoMemory};
use crate::base::settings_lock::Setting;
use crate::base::stress::{MaybeStrain, Strain, Stress};
use crate::base::sync::{AtomicBool, AtomicUsize, Ordering, UnsafeCell};
use crate::heap::alloc::Freed;
use crate::heap::collector_lock::CollectorLock;
#[cfg(feature = "stacks")]
use crate::heap::late;
use crate::heap::mark_tables::Remembered;
use crate::heap::model::ObjectModel;
use crate::heap::mutator::SpareMutator;
use crate::heap::observer::{Observer, PacingRule, Verifier};
use crate::heap::pacing::Pace;
use crate::heap::parts::*;
use crate::heap::slow;
use crate::heap::spares::Spares;
use crate::heap::timings::Timings;
use crate::heap::workers::Workers;
use crate::memory::arena::Arena;
use crate::memory::quarantine::TypeNamer;
use crate::memory::space::Space;
use crate::object::address::Object;
use crate::object::live::DeadObject;
use crate::object::state::{self, StateByte};
use crate::report::hooks::Hooks;
use crate::safepoint::{self, Coordinator, lock};

/// The request bit for a collection that is due.
pub(crate) const COLLECT: u32 = 1 << 1;
/// The request bit by which a look for late polls learns that its thread has polled, or detached.
pub(crate) const WATCHED: u32 = 1 << 2;
/// The request bits that belong to the [`ObjectModel`], while the library uses the others.
pub const MODEL_REQUESTS: u32 = !0xff;

pub(crate) struct Core<M: ObjectModel> {
    pub(crate) space: Space<M::Addresses>,
    pub(crate) model: M,
    pub(crate) coordinator: Arc<Coordinator<MutatorShared<M>>>,
    pub(crate) pace: Pace,
    pub(crate) hooks: Arc<Hooks>,
    pub(crate) slow: Arc<slow::SlowHooks>,
    pub(crate) observer: Option<Arc<dyn Observer>>,
    /// Checks the heap in its collections, if a stress mode asks for that.
    pub(crate) verifier: Option<&'static dyn Verifier<M>>,
    pub(crate) workers: Workers,
    pub(crate) roots: Arc<KnownRoots>,
    /// The roots of the last full collection, which the next one assumes to be roots again.
    pub(crate) remembered: Remembered,
    pub(crate) name: Cow<'static, str>,
    /// The stress modes of this heap, whose state is `under`.
    pub(crate) stress: Stress,
    pub(crate) under: MaybeStrain,
    /// A collection over fewer cells counts and marks on one thread, unless parked threads join it.
    pub(crate) serial_below: usize,
    /// A collection that costs the program as much is reported.
    /// When a collection that the heap starts, or a promotion, gives up a stop.
    pub(crate) stop_limit: Option<Duration>,
    pub(crate) slow_collection: Duration,
    pub(crate) collector_lock: CollectorLock,
    /// Memory that threads without a mutator have freed.
    pub(super) freed: Freed,
    pub(crate) totals: Totals,
    pub(crate) timings: Timings,
    /// Whether a child searches. Of `std`, because there are no children in models.
    pub(crate) is_searched: Arc<std::sync::atomic::AtomicBool>,
    pub(crate) distress: Arc<Distress>,
    /// The thread that watches the heap, which is woken when the heap ends.
    pub(crate) watcher: OnceLock<Thread>,
    /// Locked during a fork, because attaching threads, and threads that have left, lock it too.
    pub(crate) spares: lock::ForkMutex<Spares<SpareMutator<M>>>,
}

impl<M: ObjectModel> fmt::Debug for Core<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Core")
            .field("name", &self.name)
            .field("space", &self.space)
            .finish_non_exhaustive()
    }
}

pub(crate) struct CoreConfig<M: ObjectModel> {
    pub(crate) name: Cow<'static, str>,
    pub(crate) stress: Stress,
    pub(crate) serial_below: usize,
    pub(crate) workers: usize,
    pub(crate) slow_stop: Duration,
    pub(crate) stop_limit: Option<Duration>,
    #[cfg(feature = "stacks")]
    pub(crate) late_stacks: bool,
    pub(crate) slow_collection: Duration,
    pub(crate) pacing: crate::heap::pacing::Pacing,
    pub(crate) observer: Option<Arc<dyn Observer>>,
    pub(crate) rule: Option<Arc<dyn PacingRule>>,
    pub(crate) verifier: Option<&'static dyn Verifier<M>>,
}

impl<M: ObjectModel> Core<M> {
    pub(crate) fn new(
        mut space: Space<M::Addresses>,
        model: M,
        config: CoreConfig<M>,
    ) -> Result<Arc<Self>, NoMemory> {
        let under = Strain::new(config.stress);
        let coordinator = Coordinator::under(
            under.clone(),
            safepoint::Config {
                slow_stop: config.slow_stop,
                name: Some(fallible::owned(&config.name)?),
                ..safepoint::Config::default()
            },
            PollWordOf::<M>::PRESENT.then_some(|thread, shared: &MutatorShared<M>, bits| {
                PollWordOf::<M>::requested(thread, &shared.local, bits);
            }),
        )?;
        let slow = fallible::arc(slow::SlowHooks::default())?;
        let (told, name) = (Arc::clone(&slow), fallible::owned(&config.name)?);
        #[cfg(feature = "stacks")]
        let late_stacks = config.late_stacks;
        coordinator.try_on_slow_stop(move |report| {
            #[cfg(feature = "stacks")]
            if late_stacks {
                return told.stop(&name, &late::with_stacks(report));
            }
            told.stop(&name, report);
        })?;
        let hooks = fallible::arc(Hooks::default())?;
        let roots = fallible::arc(KnownRoots::default())?;
        let distress = fallible::arc(Distress::default())?;
        let is_searched = fallible::arc(std::sync::atomic::AtomicBool::new(false))?;
        let workers = Workers::new(config.workers)?;
        let pace = Pace::new(config.pacing, config.rule, space.limit.bytes());
        fallible::room_for_arc::<Self>()?;
        Ok(Arc::new_cyclic(|weak: &std::sync::Weak<Self>| {
            // The heap word of each page leads from an object to its heap where there is no
            // mutator.
            space.set_heap(weak.as_ptr().cast());
            let core = weak.clone();
            let name = move |dead| {
                core.upgrade().and_then(|core| ChecksOf::<M>::last_type(&core.model, dead))
            };
            let name = config.stress.uses_quarantine().then(|| Box::new(name) as TypeNamer);
            space.set_stress(config.stress, under.clone(), name);
            Self {
                space,
                model,
                coordinator,
                pace,
                hooks,
                slow,
                observer: config.observer,
                verifier: config.verifier,
                workers,
                roots,
                remembered: Remembered::default(),
                name: config.name,
                stress: config.stress,
                under,
                serial_below: config.serial_below,
                slow_collection: config.slow_collection,
                stop_limit: config.stop_limit,
                collector_lock: CollectorLock::new(),
                freed: Freed::default(),
                totals: Totals::default(),
                timings: Timings::default(),
                is_searched,
                distress,
                watcher: OnceLock::new(),
                spares: lock::ForkMutex::new(Spares::default()),
            }
        }))
    }

    /// The state of the object at `address`.
    ///
    /// # Safety
    ///
    /// `address` names an object of this heap that is alive or has just been allocated.
    #[inline(always)]
    pub(crate) unsafe fn state(&self, address: usize) -> StateByte<'_> {
        // SAFETY: rule *mapped*: an object lies on a page that was handed out.
        StateByte(unsafe { self.space.state(self.space.granule(address)) })
    }

    /// The state at an address of this heap, where an object is or was. Panics if no object was
    /// ever there.
    #[cfg(test)]
    pub(crate) fn state_at(&self, object: crate::object::address::Object) -> StateByte<'_> {
        StateByte(&self.space.states()[self.space.granule(object.address())])
    }

    /// Whether an object at an address starts there, and not in the other half of its granule.
    pub(crate) fn is_start(&self, address: usize) -> bool {
        self.space.address(self.space.granule(address)) == address
    }

    /// The state of an object of this heap that is not destroyed yet.
    #[inline(always)]
    pub(crate) fn dead_state(&self, dead: &DeadObject) -> StateByte<'_> {
        // SAFETY: rule *zero*: the destruction, which frees the memory, consumes the value.
        unsafe { self.state(dead.object().address()) }
    }

    /// In the child of a fork, where the thread of a mutator does not exist, retires its arena. The
    /// id of the arena is not reused.
    pub(crate) fn abandon(&self, ended: &MutatorShared<M>) {
        // SAFETY: rule *attached*: the owner does not exist, and this is the only thread.
        ended.arena.with_mut(|arena| self.retire(unsafe { &mut *arena }));
    }

    /// Empties the arena of a thread that ends, and reports its last count to the pace. If that
    /// makes a collection due, the attached threads look at the pace, and so does the next mutator.
    /// Otherwise a program whose mutators all end soon would never collect.
    pub(super) fn retire(&self, arena: &mut Arena) {
        arena.retire(&self.space);
        let is_any = self.count(arena);
        if self.collector_lock.is_unfinished() {
            self.collector_lock.forget_keeper();
            self.pace.leave_unattended();
            self.request_what_is_due();
        } else if is_any && self.pace.may_be_due() {
            self.pace.leave_unattended();
            self.request_what_is_due();
        }
    }

    /// Has the attached threads look at the pace, if something is due because a policy has changed,
    /// or a guard or a mutator has ended. A detached thread looks when it next needs memory.
    pub(crate) fn request_what_is_due(&self) {
        // A thread that holds a fork has locked the list of threads, which the call would lock.
        let is_due = self.pace.may_be_due() || self.collector_lock.is_unfinished();
        if !safepoint::is_stopping() && is_due {
            self.coordinator.poke_attached(COLLECT);
        }
    }

    /// Reports the count of an arena to the pace. Returns whether it had any new objects or bytes.
    pub(crate) fn count(&self, arena: &mut Arena) -> bool {
        let (objects, bytes) = arena.take_count();
        let is_any = (objects, bytes) != (0, 0);
        if is_any {
            self.pace.taken(objects, bytes);
        }
        let (reclaimed, external_reclaimed, external) = arena.take_uncounted();
        if (reclaimed, external) != (0, 0) {
            self.pace.reclaimed(reclaimed);
            // Relaxed: a figure of the report, which is closed when all have counted.
            self.totals.external_reclaimed.fetch_add(external_reclaimed, Ordering::Relaxed);
            self.space.limit.count_external(external);
        }
        is_any
    }

    /// The number of live objects, and the bytes of their cells. A snapshot while other threads
    /// run.
    pub(crate) fn live(&self) -> (usize, usize) {
        self.count_states(state::LIVE)
    }

    /// The number of live objects in the tracked set, as a snapshot while other threads run.
    pub(crate) fn live_tracked(&self) -> usize {
        self.count_states(state::LIVE | state::TRACKED).0
    }

    /// The number of objects with all these state bits, and the bytes of their cells.
    fn count_states(&self, wanted: u8) -> (usize, usize) {
        let (mut objects, mut bytes) = (0, 0);
        let states = self.space.states();
        for page in 0..states.len() / crate::memory::shape::PAGE_GRANULES {
            // The caller may be detached, so a stop does not wait for it, but for the lock. Because
            // it holds the lock for one page at a time, the stop waits at most for one page.
            let _table = self.collector_lock.lock_states();
            let shape = self.space.page(page).shape();
            let size = shape.footprint().bytes();
            for granule in self.space.objects(page) {
                if states.get(granule).is_some_and(|s| StateByte(s).get() & wanted == wanted) {
                    objects += 1;
                    bytes += size;
                }
            }
        }
        (objects, bytes)
    }
}

/// Counters over the life of a heap. They are relaxed because they are statistics.
#[derive(Debug)]
pub(crate) struct Totals {
    pub(crate) collections: AtomicUsize,
    pub(crate) young: AtomicUsize,
    pub(crate) promotions: AtomicUsize,
    pub(crate) collected: AtomicUsize,
    /// Bytes outside the heap that garbage has given up. It wraps, as reports need differences.
    pub(crate) external_reclaimed: AtomicUsize,
}

impl Totals {
    /// How often objects could become old.
    pub(crate) fn epoch(&self) -> usize {
        self.collections.load(Ordering::Relaxed) + self.promotions.load(Ordering::Relaxed)
    }
}

impl Default for Totals {
    fn default() -> Self {
        Self {
            collections: AtomicUsize::new(0),
            young: AtomicUsize::new(0),
            promotions: AtomicUsize::new(0),
            collected: AtomicUsize::new(0),
            external_reclaimed: AtomicUsize::new(0),
        }
    }
}

/// The part of a mutator that other threads can read.
pub(crate) struct MutatorShared<M: ObjectModel> {
    pub(super) arena: UnsafeCell<Arena>,
    pub(super) arena_id: u32,
    /// The thread is parked at a safepoint and continues when the stop ends. Relaxed, because the
    /// thread writes it before it parks, and a stop reads it.
    pub(super) parked: AtomicBool,
    pub(crate) waits: slow::Waits,
    pub(crate) local: Local<M>,
}

// SAFETY: the arena is touched under rule *attached*; the rest is `Sync`.
unsafe impl<M: ObjectModel> Sync for MutatorShared<M> {}

/// Whether the heap has run out of memory, or nearly, for the thread that
/// [watches](crate::model::ModelHeap::watch_diagnostics) it. Relaxed, because it hands nothing over
/// but itself, and std's, because no model reads it.
#[derive(Debug, Default)]
pub(crate) struct Distress(std::sync::atomic::AtomicBool);

impl Distress {
    #[cold]
    pub(crate) fn tell(&self) {
        self.0.store(true, std::sync::atomic::Ordering::Relaxed);
    }

    pub(crate) fn take(&self) -> bool {
        self.0.swap(false, std::sync::atomic::Ordering::Relaxed)
    }
}

/// The data that a program has given to a heap.
pub(crate) type UserData = Box<dyn Any + Send + Sync>;

/// The handles and mutators of a heap share this, and when the last of them is dropped, `last`
/// tears the heap down.
pub(crate) struct Handle<M: ObjectModel> {
    pub(crate) core: Arc<Core<M>>,
    pub(crate) last: fn(&Arc<Core<M>>, Option<UserData>),
    /// Here, and not in the core, because the data may have references to objects, which would keep
    /// the core.
    pub(crate) user: OnceLock<UserData>,
}

impl<M: ObjectModel> Drop for Handle<M> {
    fn drop(&mut self) {
        (self.last)(&self.core, self.user.take());
        if let Some(watcher) = self.core.watcher.get() {
            watcher.unpark();
        }
    }
}

/// The named roots of one heap.
///
/// Each entry belongs to a handle that holds a reference to the object. The entry is removed before
/// the reference is dropped. So an object that is listed while the world is stopped is alive until
/// the world resumes.
#[derive(Debug, Default)]
pub(crate) struct KnownRoots(Setting<RootTable>);

#[derive(Debug, Default)]
struct RootTable {
    by_key: HashMap<u64, Object>,
    last: u64,
}

impl KnownRoots {
    /// Adds a root, and returns the key that removes it.
    pub(crate) fn add(&self, object: Object) -> u64 {
        self.0.with(|entries| {
            entries.last += 1;
            entries.by_key.insert(entries.last, object);
            entries.last
        })
    }

    pub(crate) fn remove(&self, key: u64) {
        self.0.with(|entries| entries.by_key.remove(&key));
    }

    pub(crate) fn list(&self) -> Result<Vec<Object>, NoMemory> {
        self.0.with(|entries| fallible::collect(entries.by_key.values().copied()))
    }
}
