//! The child of a `fork` has one thread, so it can use a heap only if no other thread was changing
//! it, or held one of its locks.
//!
//! So a fork first stops the world, and then takes the locks that unattached threads take too,
//! because no stop waits for these threads. The locks are the registry of the coordinator, the
//! spare mutators, the job slot, the mutex of the collector lock, and the locks of the model
//! ([`Forks::lock_for_fork`](crate::model::Forks::lock_for_fork)). Last it takes the lock of
//! settings, which is the [innermost](crate::base::settings_lock).
//!
//! A fork by an attached thread ([`ModelMutator::prepare_fork`]) stops the heap of that thread. A
//! fork by a detached thread ([`ModelHeap::prepare_fork`]) stops any number of heaps: first all of
//! them, in the order of their addresses, so that two such forks do not wait for each other. Only
//! then it takes their locks, so that no thread of a heap that is being stopped waits for one of
//! them.
//!
//! In the parent the fork releases all of this again. In the child it first removes other threads
//! from the helpers, the requesters and the registry, before the world runs again. Then it removes
//! the remains of each lost thread: its arena, and its data of the model
//! ([`Forks::forked`](crate::model::Forks::forked)).
//!
//! A fork does not wait for a collection, because, for example, its thread may have left in a
//! finalizer that waits for the forking thread. The child abandons the collection of a lost thread,
//! as [`collector_lock`](crate::heap::collector_lock) describes. Its objects are ordinary again, so
//! that a later collection finds those that are still unreachable.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::base::fallible::{self, NoMemory, words};
use crate::base::outside::{guarded, panic_message};
use crate::base::settings_lock::SettingsHold;
use crate::base::sync::Aside;
use crate::collect::clear;
use crate::collect::scope::object_at;
use crate::heap::collector_lock::{LockState, LostCollection, ParkedClaims};
use crate::heap::core::{Core, MutatorShared};
use crate::heap::helpers::JobState;
use crate::heap::model::ObjectModel;
use crate::heap::model_heap::ModelHeap;
use crate::heap::mutator::{ModelMutator, SpareMutator};
use crate::heap::parts::{ForkLocks, *};
use crate::heap::reclaim_queue::{OpenReport, ReclaimQueue};
use crate::heap::spares::Spares;
use crate::heap::world::World;
use crate::memory::shape::PAGE_GRANULES;
use crate::object::address::Object;
use crate::object::live::ClaimRefs;
use crate::object::state::{StateByte, UNREACHABLE};
use crate::report::facts::During;
use crate::safepoint::{Ended, ForkGuard, StopError, WorldStopped, lock};

impl<M: ObjectModel> ModelMutator<M> {
    /// Prepares the heap for a `fork`. Call it directly before `fork`.
    ///
    /// It stops the world so that the child inherits a consistent heap. After the `fork`, the
    /// parent calls [`ModelFork::parent`] and the child calls [`ModelFork::child`]. Until then this
    /// thread holds the lock of the heap's thread list, so
    /// [`ModelHeap::stats`](crate::model::ModelHeap::stats) panics on it.
    ///
    /// It does not wait for the end of another thread's collection, if the thread reaches a
    /// safepoint, waits for a stop, or has [left](Self::leave_for_now) in a finalizer. The child
    /// then abandons that collection, so that the objects that it had found unreachable are
    /// ordinary objects again, which a later collection finds. Finalizers that had run do not run
    /// again.
    ///
    /// A stop does not wait for threads that are not attached, so these run on. They wait for the
    /// end of the fork if they attach, name a [root](crate::model::ModelHeap::known_root), or make
    /// or end a heap. They also wait if they use a heap's settings or hooks, or data that the
    /// model's [`lock_for_fork`](crate::model::Forks::lock_for_fork) locks.
    ///
    /// The standard library locks a mutex of its own while a thread of a Rust program starts or
    /// ends. If that happens during the fork, the child inherits the mutex locked, and the threads
    /// that the child starts with [`std::thread`] never begin to run. The heap's helper threads are
    /// such threads, so the child then collects on one thread.
    ///
    /// # Errors
    ///
    /// If the world cannot be stopped, or if the mutator is lent: inside a destructor, finalizer or
    /// callback. [`StopError::NoMemory`] if there is no memory for the guards of the model's locks.
    pub fn prepare_fork(&mut self) -> Result<ModelFork<'_, M>, StopError> {
        self.prepare_fork_within(None)
    }

    /// As [`prepare_fork`](Self::prepare_fork), but gives up if an attached thread has not come to
    /// a safepoint within `limit`, such as one whose finalizer waits for this thread.
    ///
    /// # Errors
    ///
    /// Those of [`prepare_fork`](Self::prepare_fork). [`StopError::TimedOut`] with the threads that
    /// are late: nothing is prepared, and a child must not use the heap.
    pub fn try_prepare_fork(&mut self, limit: Duration) -> Result<ModelFork<'_, M>, StopError> {
        self.prepare_fork_within(Some(limit))
    }

    fn prepare_fork_within(
        &mut self,
        limit: Option<Duration>,
    ) -> Result<ModelFork<'_, M>, StopError> {
        let this = &*self;
        let held = HeldHeap::new(this.core(), this.stop_for_fork(limit)?)?;
        let settings = Some(SettingsHold::new());
        Ok(ModelFork { held: Some(held), mutator: this, settings, known: Some(Aside::all()) })
    }
}

impl<M: ObjectModel> ModelHeap<M> {
    /// Prepares heaps for a `fork` by a thread that is detached from all of them, or was never
    /// attached. Call it directly before `fork`. After the `fork`, the parent calls
    /// [`ModelDetachedFork::parent`] and the child calls [`ModelDetachedFork::child`]. Until then
    /// this thread cannot attach to any heap.
    ///
    /// [`ModelMutator::prepare_fork`] describes what holds for the threads and collections of these
    /// heaps. The child must not use a heap that was not prepared, unless no other thread was
    /// attached to it.
    ///
    /// # Errors
    ///
    /// If the world of one of the heaps cannot be stopped. [`StopError::Attached`] if this thread
    /// is attached to a heap. [`StopError::NoSafepoint`] if it is inside a traversal, or keeps
    /// another thread suspended. [`StopError::Nested`] if it holds a fork of other heaps already.
    /// [`StopError::NoMemory`] if there is no memory for the guards. After an error all heaps run
    /// again that were not stopped before.
    pub fn prepare_fork(heaps: &[Self]) -> Result<ModelDetachedFork<'_, M>, StopError> {
        ModelDetachedFork::new(heaps.iter(), None, || ()).map(|(fork, ())| fork)
    }

    /// As [`prepare_fork`](Self::prepare_fork), but gives up if an attached thread has not come to
    /// a safepoint within `limit`, for each heap.
    ///
    /// # Errors
    ///
    /// Those of [`prepare_fork`](Self::prepare_fork). [`StopError::TimedOut`] with the threads of a
    /// heap that are late: nothing is prepared, and a child must not use the heaps.
    pub fn try_prepare_fork(
        heaps: &[Self],
        limit: Duration,
    ) -> Result<ModelDetachedFork<'_, M>, StopError> {
        ModelDetachedFork::new(heaps.iter(), Some(limit), || ()).map(|(fork, ())| fork)
    }
}

type Held<'a, T> = (lock::ForkHold<'a>, lock::Guard<'a, T>);

/// Locks that unattached threads take too, so that the child could inherit one locked by another
/// thread, and would wait for it for ever.
struct HeldForFork<'a, M: ObjectModel> {
    _model: ForkLocks<'a>,
    _spares: Held<'a, Spares<SpareMutator<M>>>,
    _job_slot: Option<Held<'a, JobState>>,
}

/// A stopped heap, with its locks.
struct HeldHeap<'a, M: ObjectModel> {
    core: &'a Arc<Core<M>>,
    lists: HeldForFork<'a, M>,
    guard: ForkGuard<'a, MutatorShared<M>>,
    collector_lock: Held<'a, LockState>,
}

/// The remains of threads that a child does not have.
struct Remains<'a, M: ObjectModel> {
    core: &'a Arc<Core<M>>,
    threads: Vec<Ended<MutatorShared<M>>>,
    collection: Option<LostCollection>,
    unfinished: Option<OpenReport>,
}

impl<'a, M: ObjectModel> HeldHeap<'a, M> {
    fn new(
        core: &'a Arc<Core<M>>,
        world: WorldStopped<'a, MutatorShared<M>>,
    ) -> Result<Self, StopError> {
        let guard = world.keep_for_fork();
        let model = ForksOf::<M>::lock_for_fork(&core.model);
        if !model.are_held() {
            return Err(StopError::NoMemory);
        }
        let lists = HeldForFork {
            _model: model,
            _spares: core.spares.lock_for_fork(),
            _job_slot: core.workers.job_slot().map(|slot| slot.lock_for_fork()),
        };
        Ok(Self { core, lists, guard, collector_lock: core.collector_lock.lock_for_fork() })
    }

    /// Releases the locks and resumes the world. `None`: this is the parent.
    fn release(self) -> Option<Remains<'a, M>> {
        let Self { core, lists, guard, collector_lock: (kept, mut state) } = self;
        drop(lists);
        let mut remains = None;
        if guard.is_child() {
            core.workers.forget_others();
            // What searches the heap is a child of the parent.
            core.is_searched.store(false, std::sync::atomic::Ordering::Relaxed);
            let (collection, unfinished) = core.collector_lock.abandon_with(&mut state);
            remains = Some(Remains { core, threads: guard.child(), collection, unfinished });
        } else {
            drop(guard);
        }
        drop((kept, state));
        remains
    }
}

impl<M: ObjectModel> Remains<'_, M> {
    /// Removes what the lost threads have left, on the only thread of the process.
    fn remove(self, m: &ModelMutator<M>) {
        let Self { core, threads, collection, unfinished } = self;
        let report = |result: std::thread::Result<()>| {
            if let Err(payload) = result {
                core.hooks.unraisable(During::Drop, "", panic_message(payload));
            }
        };
        let _lent = m.lend();
        // The parent goes on with it.
        report(guarded(|| drop(unfinished)));
        for ended in threads {
            core.abandon(ended.data());
            if let Some(observer) = &core.observer {
                (0..observer.forget_thread(ended.id())).for_each(|_| core.pace.allow_collections());
            }
            let repaired =
                guarded(|| ForksOf::<M>::forked(&core.model, ended.id(), &ended.data().local, m));
            report(repaired.and_then(|()| guarded(|| drop(ended))));
        }
        // Last, so that the lost threads are no owners any more.
        if let Some(collection) = collection {
            report(guarded(|| release_lost(collection, m)));
        }
    }
}

/// The objects whose references a parked thread has not released yet.
///
/// # Safety
///
/// The thread does not go on while the list is used.
pub(crate) unsafe fn parked_list(parked: &ParkedClaims) -> &[Object] {
    // SAFETY: rule *counted*: the thread has borrowed the list until it goes on.
    unsafe {
        std::slice::from_raw_parts(std::ptr::with_exposed_provenance(parked.first), parked.len)
    }
}

/// The objects to which a running collection has a reference, while the world is stopped.
#[derive(Debug)]
pub(crate) struct ClaimedObjects {
    /// Each object with the state bit `UNREACHABLE` is one.
    all_unreachable: bool,
    /// Other ones, sorted.
    others: Vec<Object>,
}

impl ClaimedObjects {
    pub(crate) fn of<M: ObjectModel>(world: &World<'_, M>) -> Result<Self, NoMemory> {
        world.core().collector_lock.claims(|all_unreachable, queue, parked| {
            let mut others = Vec::new();
            for parked in parked {
                // SAFETY: rule *stopped*: the thread is parked, and goes on after the stop.
                for &object in unsafe { parked_list(parked) } {
                    fallible::push(&mut others, object)?;
                }
            }
            for object in queue.into_iter().flat_map(ReclaimQueue::untaken) {
                fallible::push(&mut others, object)?;
            }
            others.sort_unstable();
            Ok(Self { all_unreachable, others })
        })
    }

    /// Whether the collection has a reference to an object in this state.
    pub(crate) fn contains(&self, object: Object, state: u8) -> bool {
        (self.all_unreachable && state & UNREACHABLE != 0)
            || self.others.binary_search(&object).is_ok()
    }
}

/// Releases the references of a collection whose thread is lost, in the child of a fork. Its
/// objects are ordinary again. If memory for the list runs out, references leak, so that their
/// objects stay.
fn release_lost<M: ObjectModel>(lost: LostCollection, m: &ModelMutator<M>) {
    let core = m.core();
    let (space, states) = (&core.space, core.space.states());
    let mut objects: Vec<Object> = Vec::new();
    let mut add = |object| fallible::push(&mut objects, object).unwrap_or(());
    for parked in &lost.parked {
        // SAFETY: rule *counted*: a lost thread was parked, and had borrowed this list until it
        // went on. Its memory is copied by the fork, and nothing in the child changes or frees it.
        unsafe { parked_list(parked) }.iter().copied().for_each(&mut add);
    }
    lost.queue.iter().flat_map(ReclaimQueue::untaken).for_each(&mut add);
    for page in 0..states.len() / PAGE_GRANULES {
        for granule in space.objects(page) {
            let survives = states.get(granule).is_some_and(|state| StateByte(state).survive());
            if survives && lost.all_unreachable {
                add(object_at(space, granule));
            }
        }
    }
    // Each object once, because a collection has one reference to each of its objects.
    objects.sort_unstable();
    objects.dedup();
    // SAFETY: rule *counted*: the lost collection has taken a reference to each of these objects,
    // and has not released it. The values that stood for the references belonged to its threads, or
    // to its queue, which is dropped here.
    let claims = unsafe { ClaimRefs::new(&objects) };
    claims.for_each(|claim| clear::release(claim, m));
}

/// The world is stopped for a `fork`, by [`ModelMutator::prepare_fork`].
///
/// It must not be leaked, for example by [`std::mem::forget`], because the world would stay stopped
/// and the heap's locks locked. [`Fork`](crate::Fork) lists the effects.
#[must_use = "the world stays stopped until `parent` or `child` is called"]
pub struct ModelFork<'a, M: ObjectModel> {
    held: Option<HeldHeap<'a, M>>,
    mutator: &'a ModelMutator<M>,
    settings: Option<SettingsHold>,
    /// Excludes the locks above from the thread's count of held locks. Dropped after them.
    known: Option<Aside>,
}

impl<M: ObjectModel> ModelFork<'_, M> {
    /// Resumes the world in the parent, also if `fork` failed. In the child it does the same as
    /// [`child`](Self::child), and so does a drop.
    pub fn parent(self) {}

    /// Repairs the heap in the child, where this thread is the heap's only thread. Calls
    /// [`Forks::forked`](crate::model::Forks::forked) for each mutator of another thread, and then
    /// these mutators are gone. Abandons the collection of another thread, if there was one. The
    /// helper threads for collections are started again on demand.
    ///
    /// # Panics
    ///
    /// In the process that prepared the fork, because its other threads still exist. The world runs
    /// again then, as after [`parent`](Self::parent).
    pub fn child(self) {
        if let Some(held) = &self.held {
            held.guard.must_be_child();
        }
    }
}

#[cfg(all(test, loom))]
impl<M: ObjectModel> HeldHeap<'_, M> {
    /// Whether this thread, as the only one of a child, could take every lock that unattached
    /// threads take. A lock is available if this fork holds it or if it is unlocked.
    fn is_whole_for_child(&self) -> bool {
        self.guard.has_registry()
            && self.lists._model.are_whole()
            && self.core.spares.is_held_by_or_open(Some(&self.lists._spares.1))
    }
}

#[cfg(all(test, loom))]
impl<M: ObjectModel> ModelFork<'_, M> {
    /// See [`HeldHeap::is_whole_for_child`].
    pub(crate) fn is_whole_for_child(&self) -> bool {
        self.held.as_ref().expect("held").is_whole_for_child()
    }
}

#[cfg(all(test, loom))]
impl<M: ObjectModel> ModelDetachedFork<'_, M> {
    /// See [`HeldHeap::is_whole_for_child`].
    pub(crate) fn is_whole_for_child(&self) -> bool {
        self.heaps.iter().all(|(_, held)| held.is_whole_for_child())
    }
}

impl<M: ObjectModel> Drop for ModelFork<'_, M> {
    fn drop(&mut self) {
        drop(self.settings.take());
        let remains = self.held.take().and_then(HeldHeap::release);
        drop(self.known.take());
        if let Some(remains) = remains {
            remains.remove(self.mutator);
        }
    }
}

impl<M: ObjectModel> fmt::Debug for ModelFork<'_, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fork").finish_non_exhaustive()
    }
}

/// Heaps that a detached thread has stopped for a `fork`, by [`ModelHeap::prepare_fork`].
///
/// It must not be leaked: see [`ModelFork`].
#[must_use = "the worlds stay stopped until `parent` or `child` is called"]
pub struct ModelDetachedFork<'a, M: ObjectModel> {
    heaps: Vec<(&'a ModelHeap<M>, HeldHeap<'a, M>)>,
    settings: Option<SettingsHold>,
    /// Excludes the locks above from the thread's count of held locks. Dropped after them.
    known: Option<Aside>,
}

impl<'a, M: ObjectModel> ModelDetachedFork<'a, M> {
    /// `lock_more` takes locks of the caller, between those of the heaps and that of settings.
    pub(crate) fn new<L>(
        heaps: impl ExactSizeIterator<Item = &'a ModelHeap<M>>,
        limit: Option<Duration>,
        lock_more: impl FnOnce() -> L,
    ) -> Result<(Self, L), StopError> {
        crate::safepoint::may_stop_unattached()?;
        let room = || StopError::NoMemory;
        let (mut all, mut worlds, mut held) = (Vec::new(), Vec::new(), Vec::new());
        all.try_reserve_exact(heaps.len()).map_err(|_| room())?;
        worlds.try_reserve_exact(heaps.len()).map_err(|_| room())?;
        held.try_reserve_exact(heaps.len()).map_err(|_| room())?;
        all.extend(heaps);
        all.sort_unstable_by_key(|heap| Arc::as_ptr(&heap.0.core).addr());
        all.dedup_by(|one, other| one.ptr_eq(other));
        for heap in &all {
            worlds.push(heap.0.core.coordinator.stop_unattached(limit)?);
        }
        for (heap, world) in all.into_iter().zip(worlds) {
            held.push((heap, HeldHeap::new(&heap.0.core, world)?));
        }
        let more = lock_more();
        let settings = Some(SettingsHold::new());
        Ok((Self { heaps: held, settings, known: Some(Aside::all()) }, more))
    }

    /// Resumes the worlds in the parent, also if `fork` failed. In the child it does the same as
    /// [`child`](Self::child), and so does a drop.
    pub fn parent(self) {}

    /// Repairs the heaps in the child, where this thread is the only one, as [`ModelFork::child`]
    /// does. It attaches to each heap for this, one after the other.
    ///
    /// The thread must not be inside a traversal, or keep another thread suspended, because it
    /// could not attach then. The heap's hook for failures would say so, and the objects of lost
    /// threads, with all that they refer to, would stay for ever.
    ///
    /// # Panics
    ///
    /// In the process that prepared the fork, because its other threads still exist. The worlds run
    /// again then, as after [`parent`](Self::parent).
    pub fn child(self) {
        if let Some((_, held)) = self.heaps.first() {
            held.guard.must_be_child();
        }
    }
}

impl<M: ObjectModel> Drop for ModelDetachedFork<'_, M> {
    fn drop(&mut self) {
        drop(self.settings.take());
        let heaps = std::mem::take(&mut self.heaps);
        // All worlds run before code of the model is called, because it could use any of the heaps.
        let mut remains: Vec<_> = heaps
            .into_iter()
            .filter_map(|(heap, held)| held.release().map(|remains| (heap, remains)))
            .collect();
        drop(self.known.take());
        for (heap, remains) in remains.drain(..) {
            let hooks = &heap.0.core.hooks;
            if let Err(error) = heap.try_attach_scoped(|m| remains.remove(m)) {
                let text = words!("the child of a fork cannot repair a heap: {error}");
                hooks.unraisable(During::Drop, "", text);
            }
        }
    }
}

impl<M: ObjectModel> fmt::Debug for ModelDetachedFork<'_, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DetachedFork").finish_non_exhaustive()
    }
}
