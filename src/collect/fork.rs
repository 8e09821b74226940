//! A stop around a `fork`.
//!
//! A fork is prepared like a collection: the thread acquires the collector lock, so no collection
//! is half done in the child, and stops the world. Then it takes the locks that unattached threads
//! take too, because no stop waits for these threads: the registry of the coordinator, the spare
//! mutators, the job slot, and the locks of the model ([`ObjectModel::lock_for_fork`]).
//!
//! In the parent the fork releases all of this again. In the child it first removes the
//! places of other threads among helpers, readers and waiters. Then it removes the remains of each
//! lost thread: its entry in the registry, its arena, and its data of the model
//! ([`ObjectModel::forked`]). The model is called last, when the heap is whole.

#![forbid(unsafe_code)]

use std::fmt;
use std::sync::Arc;

use crate::base::event::{During, guarded, panic_message};
use crate::base::sync::Aside;
use crate::collect;
use crate::heap::collector_lock::LockState;
use crate::heap::core::MutatorShared;
use crate::heap::fork_locks::ForkLocks;
use crate::heap::helpers::JobState;
use crate::heap::model::ObjectModel;
use crate::heap::mutator::{ModelMutator, SpareMutator};
use crate::heap::spares::Spares;
use crate::safepoint::{ForkGuard, StopError, StopPurpose, lock};

impl<M: ObjectModel> ModelMutator<M> {
    /// Prepares the heap for a `fork`. Call it directly before `fork`.
    ///
    /// It waits for the end of a running collection, and stops the world so that the child inherits
    /// a consistent heap. After the `fork`, the parent calls [`ModelFork::parent`] and the child
    /// calls [`ModelFork::child`]. Until then this thread holds the lock of the heap's thread list,
    /// so [`ModelHeap::stats`](crate::model::ModelHeap::stats) panics on it.
    ///
    /// A stop does not wait for threads that are not attached. During the fork they may attach and
    /// detach, and use the data that the model's [`lock_for_fork`](ObjectModel::lock_for_fork)
    /// locks. They must not name a [root](crate::model::ModelHeap::known_root), change a heap's
    /// settings or hooks, or make or end a heap: the child could inherit a lock that a thread of
    /// the parent holds.
    ///
    /// The standard library locks a mutex of its own while a thread of a Rust program starts or
    /// ends. If that happens during the fork, the child inherits the mutex locked, and the threads
    /// that the child starts with [`std::thread`] never begin to run. The heap's helper threads are
    /// such threads: without them the child collects on one thread.
    ///
    /// # Errors
    ///
    /// If the world cannot be stopped, or if the mutator is lent: inside a destructor, finalizer or
    /// callback. [`StopError::NoMemory`] if there is no memory for the guards of the model's locks.
    pub fn prepare_fork(&mut self) -> Result<ModelFork<'_, M>, StopError> {
        if self.is_lent() {
            return Err(StopError::NoSafepoint);
        }
        let core = Arc::clone(self.core());
        collect::acquire_lock(self, StopPurpose::Fork);
        let this = &*self;
        match this.stop_for_fork() {
            Ok(guard) => {
                let core = this.core();
                let model = core.model.lock_for_fork();
                if !model.are_held() {
                    drop((model, guard));
                    core.collector_lock.release();
                    return Err(StopError::NoMemory);
                }
                let lists = Lists {
                    _model: model,
                    _spares: core.spares.lock_for_fork(),
                    _job_slot: core.workers.job_slot().map(|slot| slot.lock_for_fork()),
                };
                let collector_lock = Some(core.collector_lock.lock_for_fork());
                Ok(ModelFork {
                    guard: Some(guard),
                    lists: Some(lists),
                    collector_lock,
                    mutator: this,
                    known: Some(Aside::all()),
                })
            }
            Err(error) => {
                core.collector_lock.release();
                Err(error)
            }
        }
    }
}

/// A lock that is held across a fork.
type Held<'a, T> = (lock::ForkHold<'a>, lock::Guard<'a, T>);

/// Locks that unattached threads take too. If the child inherited one of them locked by another
/// thread, it would wait for that lock for ever.
struct Lists<'a, M: ObjectModel> {
    _model: ForkLocks<'a>,
    _spares: Held<'a, Spares<SpareMutator<M>>>,
    _job_slot: Option<Held<'a, JobState>>,
}

/// The world is stopped for a `fork`. Made by [`ModelMutator::prepare_fork`].
///
/// It must not be leaked, for example by [`std::mem::forget`]: the world would stay stopped, and
/// the heap's locks would stay locked. [`Fork`](crate::Fork) lists the effects.
#[must_use = "the world stays stopped until `parent` or `child` is called"]
pub struct ModelFork<'a, M: ObjectModel> {
    guard: Option<ForkGuard<'a, MutatorShared<M>>>,
    lists: Option<Lists<'a, M>>,
    collector_lock: Option<Held<'a, LockState>>,
    mutator: &'a ModelMutator<M>,
    /// Excludes the locks above from the thread's count of held locks. Dropped after them.
    known: Option<Aside>,
}

impl<M: ObjectModel> ModelFork<'_, M> {
    /// Resumes the world in the parent. Call it also if `fork` failed. In the child it does the
    /// same as [`child`](Self::child), and so does a drop.
    pub fn parent(self) {}

    /// Repairs the heap in the child, where this thread is the heap's only thread. Calls
    /// [`ObjectModel::forked`] for each mutator of another thread, and then these mutators are
    /// gone. The helper threads for collections are started again on demand.
    ///
    /// # Panics
    ///
    /// In the process that prepared the fork, because its other threads still exist. The world runs
    /// again then, as after [`parent`](Self::parent).
    pub fn child(self) {
        if let Some(guard) = &self.guard {
            guard.must_be_child();
        }
    }
}

#[cfg(all(test, loom))]
impl<M: ObjectModel> ModelFork<'_, M> {
    /// Whether this thread, as the only one of a child, could take every lock that unattached
    /// threads take. A lock is available if this fork holds it or if it is unlocked.
    pub(crate) fn is_whole_for_child(&self) -> bool {
        let (lists, guard) =
            (self.lists.as_ref().expect("held"), self.guard.as_ref().expect("held"));
        guard.has_registry()
            && lists._model.are_whole()
            && self.mutator.core().spares.is_held_by_or_open(Some(&lists._spares.1))
    }
}

impl<M: ObjectModel> Drop for ModelFork<'_, M> {
    fn drop(&mut self) {
        let core = &**self.mutator.core();
        drop(self.lists.take());
        let mut lost = Vec::new();
        match self.guard.take() {
            Some(guard) if guard.is_child() => {
                core.workers.forget_others();
                core.forget_readers();
                if let Some((_, state)) = &mut self.collector_lock {
                    state.forget_others();
                }
                lost = guard.child();
            }
            guard => drop(guard),
        }
        if let Some((kept, state)) = self.collector_lock.take() {
            drop(kept);
            core.collector_lock.release_with(state);
        }
        drop(self.known.take());
        let _lent = self.mutator.lend();
        for ended in lost {
            // No other thread exists in the child.
            core.abandon(ended.data());
            let repaired =
                guarded(|| core.model.forked(ended.id(), &ended.data().local, self.mutator));
            if let Err(payload) = repaired.and_then(|()| guarded(|| drop(ended))) {
                core.hooks.unraisable(During::Drop, "", panic_message(payload));
            }
        }
    }
}

impl<M: ObjectModel> fmt::Debug for ModelFork<'_, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ModelFork").finish_non_exhaustive()
    }
}
