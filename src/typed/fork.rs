//! A stop around a `fork`.

#![forbid(unsafe_code)]

use std::fmt;
use std::sync::Arc;

use crate::base::sync::Aside;
use crate::collect::{self};
use crate::heap::helpers;
use crate::heap::mutator::SpareMutator;
use crate::heap::spares::Spares;
use crate::managed::{self, Managed};
use crate::safepoint::{ForkGuard, StopError, lock};
use crate::typed::mutator::Mutator;

impl Mutator {
    /// Prepares the heap for a `fork`. Call it directly before `fork`.
    ///
    /// It waits for the end of a running collection, and stops the world so that the child inherits
    /// a consistent heap. After the `fork`, the parent calls [`Fork::parent`] and the child calls
    /// [`Fork::child`]. Until then this thread holds the lock of the heap's thread list, so
    /// [`Heap::stats`](crate::Heap::stats) panics on it.
    ///
    /// A stop does not wait for threads that are not attached. During the fork they may drop
    /// references, attach and detach. They must not name a [root](crate::Heap::known_root), change
    /// a heap's settings or hooks, or make or end a heap: the child could inherit a lock that a
    /// thread of the parent holds.
    ///
    /// # Errors
    ///
    /// If the world cannot be stopped.
    pub fn prepare_fork(&mut self) -> Result<Fork<'_>, StopError> {
        if self.raw().is_lent() {
            return Err(StopError::NoSafepoint);
        }
        let core = Arc::clone(self.raw().core());
        collect::acquire_lock(self.raw_mut());
        let raw = self.raw();
        match raw.prepare_fork() {
            Ok(guard) => {
                let core = raw.core();
                let lists = Lists {
                    _deferred: core.model.lock_deferred_for_fork(),
                    _spares: core.spares.lock_for_fork(),
                    _job_slot: core.workers.job_slot().map(|slot| slot.lock_for_fork()),
                };
                let collector_lock = Some(core.collector_lock.lock_for_fork());
                Ok(Fork {
                    guard: Some(guard),
                    lists: Some(lists),
                    collector_lock,
                    core,
                    _known: Aside::all(),
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
struct Lists<'a> {
    _deferred: Held<'a, managed::Deferred>,
    _spares: Held<'a, Spares<SpareMutator<Managed>>>,
    _job_slot: Option<Held<'a, helpers::JobState>>,
}

/// The world is stopped for a `fork`. Made by [`Mutator::prepare_fork`].
///
/// It must not be leaked, for example by [`std::mem::forget`]: the world would stay stopped, and
/// the heap's locks would stay locked. This thread then panics when it takes one of these locks:
/// when it collects, detaches, prepares a fork, reads statistics, or drops its mutator. Other
/// threads wait for ever when they attach or reach a safepoint. A thread that starts to wait for
/// one of the locks after the leak reports the wait on standard error after one second. A thread
/// that had already parked for the fork reports nothing.
#[must_use = "the world stays stopped until `parent` or `child` is called"]
pub struct Fork<'a> {
    guard: Option<ForkGuard<'a, crate::heap::mutator::MutatorShared<Managed>>>,
    lists: Option<Lists<'a>>,
    collector_lock: Option<Held<'a, crate::heap::collector_lock::LockState>>,
    core: &'a managed::ManagedCore,
    /// Excludes the locks above from the thread's count of held locks. Dropped last.
    _known: Aside,
}

impl Fork<'_> {
    /// Resumes the world in the parent. Call it also if `fork` failed. In the child it does the
    /// same as [`child`](Self::child), and so does a drop.
    pub fn parent(self) {}

    /// Repairs the heap in the child, where this thread is the heap's only thread. Objects of the
    /// other threads become unowned, and are collected like all others. The helper threads for
    /// collections are started again on demand.
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
impl Fork<'_> {
    /// Whether this thread, as the only one of a child, could take every lock that unattached
    /// threads take. A lock is available if this fork holds it or if it is unlocked.
    pub(crate) fn is_whole_for_child(&self) -> bool {
        let (lists, guard) =
            (self.lists.as_ref().expect("held"), self.guard.as_ref().expect("held"));
        guard.has_registry()
            && self.core.model.is_whole_for_child(&lists._deferred.1)
            && self.core.spares.is_held_by_or_open(Some(&lists._spares.1))
    }
}

impl Drop for Fork<'_> {
    fn drop(&mut self) {
        drop(self.lists.take());
        match self.guard.take() {
            Some(guard) if guard.is_child() => {
                self.core.workers.forget_others();
                self.core.forget_readers();
                if let Some((_, state)) = &mut self.collector_lock {
                    state.forget_others();
                }
                for ended in guard.child() {
                    // No other thread exists in the child.
                    self.core.abandon(ended.data());
                    managed::orphan(self.core, ended.id(), &ended.data().local);
                }
            }
            guard => drop(guard),
        }
        if let Some((kept, state)) = self.collector_lock.take() {
            drop(kept);
            self.core.collector_lock.release_with(state);
        }
    }
}

impl fmt::Debug for Fork<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fork").finish_non_exhaustive()
    }
}
