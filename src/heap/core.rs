//! Floor 3: what the threads of one heap share.

use std::borrow::Cow;
use std::fmt;
use std::mem::ManuallyDrop;
use std::sync::Arc;
use std::time::Duration;

use crate::base::fallible::{self, NoMemory};
use crate::base::hooks::Hooks;
use crate::base::stress::{MaybeStrain, Strain, Stress};
use crate::base::sync::{AtomicBool, AtomicUsize, UnsafeCell};
use crate::heap::collector_lock::CollectorLock;
use crate::heap::known_roots::KnownRoots;
use crate::heap::model::ObjectModel;
use crate::heap::observer::{Observer, PacingRule};
use crate::heap::pacing::Pace;
use crate::heap::slow;
use crate::heap::workers::Workers;
use crate::memory::arena::Arena;
use crate::memory::quarantine::TypeNamer;
use crate::memory::space::Space;
use crate::object::state::{self, StateByte};
use crate::safepoint::{self, Coordinator, lock};

/// A request: a collection is due.
pub(crate) const COLLECT: u32 = 1 << 1;
/// The request bits that belong to the [`ObjectModel`].
pub const MODEL_REQUESTS: u32 = !0xff;

/// Everything that the threads of one heap share.
pub(crate) struct Core<M: ObjectModel> {
    pub(crate) space: Space,
    pub(crate) model: M,
    pub(crate) coordinator: Arc<Coordinator<Shared<M>>>,
    pub(crate) pace: Pace,
    pub(crate) hooks: Arc<Hooks>,
    pub(crate) slow: Arc<slow::SlowHooks>,
    /// Observes collections; `None`: nothing does.
    pub(crate) observer: Option<Arc<dyn Observer>>,
    pub(crate) workers: Workers,
    pub(crate) roots: Arc<KnownRoots>,
    pub(crate) name: Cow<'static, str>,
    /// The stress modes, and what they do.
    pub(crate) stress: Stress,
    pub(crate) under: MaybeStrain,
    /// Objects below which one thread counts and marks alone.
    pub(crate) serial_below: usize,
    pub(crate) collector_lock: CollectorLock,
    pub(crate) totals: Totals,
    /// A fork holds it: threads that attach, or have just left, take it.
    pub(crate) arena_ids: lock::ForkMutex<ArenaIds>,
}

impl<M: ObjectModel> fmt::Debug for Core<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Core")
            .field("name", &self.name)
            .field("space", &self.space)
            .finish_non_exhaustive()
    }
}

/// What [`Core::new`] needs beside the space and the model.
#[derive(Debug)]
pub(crate) struct CoreConfig {
    pub(crate) name: Cow<'static, str>,
    pub(crate) stress: Stress,
    pub(crate) serial_below: usize,
    pub(crate) workers: usize,
    pub(crate) slow_stop: Duration,
    pub(crate) pacing: crate::heap::policy::Pacing,
    pub(crate) observer: Option<Arc<dyn Observer>>,
    pub(crate) rule: Option<Arc<dyn PacingRule>>,
}

impl<M: ObjectModel> Core<M> {
    pub(crate) fn new(
        mut space: Space,
        model: M,
        config: CoreConfig,
    ) -> Result<Arc<Self>, NoMemory> {
        let under = Strain::new(config.stress);
        let coordinator = Coordinator::under(
            under.clone(),
            safepoint::Config {
                slow_stop: config.slow_stop,
                name: Some(fallible::owned(&config.name)?),
                ..safepoint::Config::default()
            },
        )?;
        let slow = fallible::arc(slow::SlowHooks::default())?;
        let (told, name) = (Arc::clone(&slow), fallible::owned(&config.name)?);
        coordinator.try_on_slow_stop(move |report| told.stop(&name, report))?;
        let hooks = fallible::arc(Hooks::default())?;
        let roots = fallible::arc(KnownRoots::default())?;
        let workers = Workers::new(config.workers)?;
        fallible::room_for_arc::<Self>()?;
        Ok(Arc::new_cyclic(|weak: &std::sync::Weak<Self>| {
            // The word that leads from an object to its heap when no mutator is at hand.
            space.set_heap(weak.as_ptr().cast());
            let core = weak.clone();
            let name = move |dead| core.upgrade().and_then(|core| core.model.last_type(dead));
            let name = config.stress.uses_quarantine().then(|| Box::new(name) as TypeNamer);
            space.set_stress(config.stress, under.clone(), name);
            Self {
                space,
                model,
                coordinator,
                pace: Pace::new(config.pacing, config.rule),
                hooks,
                slow,
                observer: config.observer,
                workers,
                roots,
                name: config.name,
                stress: config.stress,
                under,
                serial_below: config.serial_below,
                collector_lock: CollectorLock::new(),
                totals: Totals::default(),
                arena_ids: lock::ForkMutex::new(ArenaIds::default()),
            }
        }))
    }

    /// The state of the object at `address`.
    ///
    /// # Safety
    ///
    /// An object of this heap, alive or just allocated.
    #[inline(always)]
    pub(crate) unsafe fn state(&self, address: usize) -> StateByte<'_> {
        // SAFETY: rule G: an object lies on a page that was handed out.
        StateByte(unsafe { self.space.state(self.space.granule(address)) })
    }

    pub(super) fn take_arena_id(&self) -> Result<ArenaId<'_>, NoMemory> {
        let mut ids = self.arena_ids.lock();
        let id = match ids.free.pop() {
            Some(id) => id,
            None => {
                let room = ids.last as usize + 1;
                ids.free.try_reserve(room)?;
                ids.last += 1;
                ids.last
            }
        };
        Ok(ArenaId { ids: &self.arena_ids, id })
    }

    /// In a forked child: gives up the arena of a mutator whose thread does not exist here. Its id is not
    /// given out again.
    pub(crate) fn abandon(&self, ended: &Shared<M>) {
        // SAFETY: rule A: the owner is gone, and this is the only thread.
        ended.arena.with_mut(|arena| self.retire(unsafe { &mut *arena }));
    }

    /// Empties an arena whose thread allocates no more, and tells the pace its last count.
    pub(super) fn retire(&self, arena: &mut Arena) {
        arena.retire(&self.space);
        let (objects, bytes) = arena.take_count();
        self.pace.taken(objects, bytes);
    }

    /// Objects alive and the bytes of their cells: a snapshot when the world is running.
    pub(crate) fn live(&self) -> (usize, usize) {
        self.count(state::LIVE)
    }

    /// Objects alive that can be in cycles: a snapshot when another thread works in the heap.
    pub(crate) fn live_tracked(&self) -> usize {
        self.count(state::LIVE | state::TRACKED).0
    }

    /// Objects with these bits, and the bytes of their cells.
    fn count(&self, wanted: u8) -> (usize, usize) {
        let (mut objects, mut bytes) = (0, 0);
        let states = self.space.states();
        for page in 0..states.len() / crate::memory::space::PAGE_GRANULES {
            // The caller need not be attached, so a stop does not wait for it, save for one page of this.
            let _table = self.collector_lock.lock_states();
            let shape = self.space.page(page).shape();
            let size = shape.footprint().bytes();
            for granule in self.space.starts(page) {
                if states.get(granule).is_some_and(|s| StateByte(s).get() & wanted == wanted) {
                    objects += 1;
                    bytes += size;
                }
            }
        }
        (objects, bytes)
    }
}

/// Ids for arenas: small, reused only after the arena that had one has retired. There is room for all of them in `free`, so to
/// give one back takes no memory.
#[derive(Debug, Default)]
pub(crate) struct ArenaIds {
    pub(super) free: Vec<u32>,
    last: u32,
}

/// An arena's id, which goes back when this is dropped.
pub(super) struct ArenaId<'a> {
    ids: &'a lock::ForkMutex<ArenaIds>,
    pub(super) id: u32,
}

impl ArenaId<'_> {
    /// The id, whose owner gives it back itself.
    pub(super) fn keep(self) -> u32 {
        ManuallyDrop::new(self).id
    }
}

impl Drop for ArenaId<'_> {
    fn drop(&mut self) {
        self.ids.lock().free.push(self.id);
    }
}

/// Counters over a heap's life. Relaxed: figures.
#[derive(Debug)]
pub(crate) struct Totals {
    pub(crate) collections: AtomicUsize,
    pub(crate) young: AtomicUsize,
    pub(crate) promotions: AtomicUsize,
    pub(crate) collected: AtomicUsize,
}

impl Default for Totals {
    fn default() -> Self {
        Self {
            collections: AtomicUsize::new(0),
            young: AtomicUsize::new(0),
            promotions: AtomicUsize::new(0),
            collected: AtomicUsize::new(0),
        }
    }
}

/// What a mutator is to other threads.
pub(crate) struct Shared<M: ObjectModel> {
    pub(super) arena: UnsafeCell<Arena>,
    pub(super) arena_id: u32,
    /// The thread is at a safepoint, and goes on soon. Relaxed: written by its thread before it parks, read in a stop.
    pub(super) parked: AtomicBool,
    pub(crate) waits: slow::Waits,
    pub(crate) local: M::Local,
}

// SAFETY: the arena is touched under rule A; the rest is `Sync`.
unsafe impl<M: ObjectModel> Sync for Shared<M> {}

/// A heap is kept open by its handles and mutators: when the last goes, `last` tears it down.
pub(crate) struct Handle<M: ObjectModel> {
    pub(crate) core: Arc<Core<M>>,
    pub(crate) last: fn(&Arc<Core<M>>),
}

impl<M: ObjectModel> Drop for Handle<M> {
    fn drop(&mut self) {
        (self.last)(&self.core);
    }
}
