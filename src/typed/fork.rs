//! Floor 5: a stop around a `fork`.

use std::fmt;
use std::sync::Arc;

use crate::base::sync::Aside;
use crate::collect::{self};
use crate::heap::helpers;
use crate::managed::{self, Managed};
use crate::safepoint::{ForkGuard, StopError, lock};
use crate::typed::mutator::Mutator;

impl Mutator {
    /// To be called right before `fork`: waits until no collection runs, stops the world, and keeps it so
    /// that the child finds the heap whole. Then the parent calls [`Fork::parent`], the child
    /// [`Fork::child`]. In between, [`Heap::stats`](crate::Heap::stats) panics on this thread, which holds the lock of the heap's threads.
    ///
    /// What threads that are not attached do cannot be waited for. They may drop references, attach and detach at that moment; but one
    /// that is naming a [root](crate::Heap::known_root), changing a heap's settings or hooks, or making or ending a heap would leave a lock in
    /// the child that nobody opens.
    ///
    /// # Errors
    ///
    /// When the world cannot be stopped.
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
                    _deferred: core.model.hold_deferred(),
                    _arenas: core.arena_ids.lock_for_fork(),
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

/// A lock that a fork keeps.
type Held<'a, T> = (lock::ForkHold<'a>, lock::Guard<'a, T>);

/// What threads that are not attached may be in the middle of changing, when nobody keeps them from it: the child would wait
/// for them for ever.
struct Lists<'a> {
    _deferred: Held<'a, managed::Deferred>,
    _arenas: Held<'a, crate::heap::mutator::ArenaIds>,
    _job_slot: Option<Held<'a, helpers::JobState>>,
}

/// The world is stopped for a `fork`. Made by [`Mutator::prepare_fork`].
///
/// It must not be leaked, as by [`std::mem::forget`]: the world then stays stopped and the heap's locks
/// stay locked. This thread panics when it needs one of these locks: when it collects, detaches, asks for
/// a fork or for statistics, or drops its mutator. Other threads wait for ever when they attach or pass
/// a safepoint. A thread that begins to wait for one of the locks later says so on standard error after a second. A
/// thread that has parked for the fork says nothing.
#[must_use = "the world stays stopped until `parent` or `child` is called"]
pub struct Fork<'a> {
    guard: Option<ForkGuard<'a, crate::heap::mutator::Shared<Managed>>>,
    lists: Option<Lists<'a>>,
    collector_lock: Option<Held<'a, crate::heap::collector_lock::LockState>>,
    core: &'a managed::ManagedCore,
    /// Dropped last: the thread knows that it keeps the locks of the others above.
    _known: Aside,
}

impl Fork<'_> {
    /// In the parent (also when `fork` failed): the world runs again. In the child this does what
    /// [`child`](Self::child) does, and so does a drop.
    pub fn parent(self) {}

    /// In the child: this thread is the heap's only one. Objects of the others are nobody's now, and
    /// collected like any. The marking pool is started anew when it is needed.
    ///
    /// # Panics
    ///
    /// In the process that prepared the fork, which still has its other threads. The world runs again then, as after
    /// [`parent`](Self::parent).
    pub fn child(self) {
        if let Some(guard) = &self.guard {
            guard.must_be_child();
        }
    }
}

#[cfg(all(test, loom))]
impl Fork<'_> {
    /// Whether a child, which has this thread alone, could take each lock that threads take which are not attached: this
    /// fork holds it, or it is open.
    pub(crate) fn is_whole_for_child(&self) -> bool {
        let (lists, guard) =
            (self.lists.as_ref().expect("held"), self.guard.as_ref().expect("held"));
        guard.has_registry()
            && self.core.model.is_whole_for_child(&lists._deferred.1)
            && self.core.arena_ids.is_held_by_or_open(Some(&lists._arenas.1))
    }
}

impl Drop for Fork<'_> {
    fn drop(&mut self) {
        drop(self.lists.take());
        match self.guard.take() {
            Some(guard) if guard.is_child() => {
                self.core.workers.forget_others();
                if let Some((_, state)) = &mut self.collector_lock {
                    state.forget_others();
                }
                for ended in guard.child() {
                    // This thread is the only one there is.
                    self.core.abandon(ended.data());
                    managed::orphan(self.core, &ended.data().local);
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
