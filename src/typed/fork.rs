//! A child process has only the thread that called `fork`. A lock that another thread holds at that
//! time stays locked in the child, and data that it was changing stay half changed. So before the
//! call this thread stops the world and takes the heap's locks. Afterwards the parent resumes the
//! world, and the child removes the other threads from the heap.

#![forbid(unsafe_code)]

use std::time::Duration;

use crate::managed::Managed;
use crate::model::{ModelDetachedFork, ModelFork};
use crate::safepoint::StopError;
use crate::typed::heap::Heap;
use crate::typed::mutator::Mutator;

impl Mutator {
    /// Prepares the heap for a `fork`. Call it directly before `fork`.
    ///
    /// It stops the world, so that the child inherits a consistent heap. After the `fork`, the
    /// parent calls [`Fork::parent`] and the child calls [`Fork::child`]. Until then this thread
    /// holds the lock of the heap's thread list, so [`Heap::stats`](crate::Heap::stats) panics on
    /// it. The process may exit inside the fork, in the parent or in the child: a child whose
    /// `exec` has failed need not call [`Fork::child`] first.
    ///
    /// It does not wait for the end of another thread's collection, only for the next safepoint of
    /// that thread. A finalizer has none, so the call waits for the end of a running finalizer. The
    /// child abandons a collection that was not over. The objects that the collection had found
    /// unreachable are ordinary objects again, and a later collection finds them. Finalizers that
    /// had run do not run again.
    ///
    /// A stop does not wait for threads that are not attached. During the fork they may drop
    /// references, attach and detach. A thread that names a [root](crate::Heap::known_root), uses a
    /// heap's settings or hooks, or makes or ends a heap, waits for the end of the fork.
    ///
    /// The standard library locks a mutex of its own while a thread of a Rust program starts or
    /// ends. If that happens during the fork, the child inherits the mutex locked, and the threads
    /// that the child starts with [`std::thread`] never begin to run. The heap's helper threads are
    /// such threads: without them the child collects on one thread.
    ///
    /// On Windows, which has no `fork`, the call works as a stop, which [`Fork::parent`] ends.
    ///
    /// # Errors
    ///
    /// If the world cannot be stopped. [`StopError::NoMemory`] if there is no memory for the guards
    /// of the heap's locks.
    pub fn prepare_fork(&mut self) -> Result<Fork<'_>, StopError> {
        self.raw_mut().prepare_fork()
    }

    /// As [`prepare_fork`](Self::prepare_fork), but gives up if an attached thread has not come to
    /// a safepoint within `limit`, such as one whose finalizer waits for this thread.
    ///
    /// # Errors
    ///
    /// Those of [`prepare_fork`](Self::prepare_fork). [`StopError::TimedOut`] with the threads that
    /// are late: nothing is prepared, and a child must not use the heap.
    pub fn try_prepare_fork(&mut self, limit: Duration) -> Result<Fork<'_>, StopError> {
        self.raw_mut().try_prepare_fork(limit)
    }
}

impl Heap {
    /// Prepares heaps for a `fork` by a thread that is detached from all of them, or was never
    /// attached. Call it directly before `fork`. After the `fork`, the parent calls
    /// [`DetachedFork::parent`] and the child calls [`DetachedFork::child`]. Until then this thread
    /// cannot attach to any heap.
    ///
    /// [`Mutator::prepare_fork`] describes what holds for the threads and collections of these
    /// heaps. The child must not use a heap that was not prepared, unless no other thread was
    /// attached to it.
    ///
    /// # Errors
    ///
    /// If the world of one of the heaps cannot be stopped. [`StopError::Attached`] if this thread
    /// is attached to a heap. [`StopError::NoSafepoint`] if it is inside a traversal, or keeps
    /// another thread suspended. [`StopError::Nested`] if it holds a fork of other heaps already.
    /// [`StopError::NoMemory`] if there is no memory for the guards. All heaps that were not
    /// stopped before run again then.
    pub fn prepare_fork(heaps: &[Self]) -> Result<DetachedFork<'_>, StopError> {
        Self::prepare_fork_with(heaps, || ()).map(|(fork, ())| fork)
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
    ) -> Result<DetachedFork<'_>, StopError> {
        let heaps = heaps.iter().map(|heap| &heap.0);
        ModelDetachedFork::new(heaps, Some(limit), || ()).map(|(fork, ())| fork)
    }

    /// [`prepare_fork`](Self::prepare_fork) for a caller with locks of its own, under which threads
    /// may use settings. `lock_more` takes them.
    #[doc(hidden)]
    pub fn prepare_fork_with<L>(
        heaps: &[Self],
        lock_more: impl FnOnce() -> L,
    ) -> Result<(DetachedFork<'_>, L), StopError> {
        ModelDetachedFork::new(heaps.iter().map(|heap| &heap.0), None, lock_more)
    }
}

/// The world is stopped for a `fork`. Made by [`Mutator::prepare_fork`].
///
/// It must not be leaked, for example by [`std::mem::forget`], because the world would stay
/// stopped, and the heap's locks would stay locked. This thread then panics when it takes one of
/// these locks: when it collects, detaches, reads statistics, or drops its mutator. Other threads
/// wait for ever when they attach or reach a safepoint, and when they use settings or hooks of any
/// heap. A thread that starts to wait for one of the heap's locks after the leak reports the wait
/// on standard error after one second. A thread that had already parked for the fork reports
/// nothing.
///
/// In the child, objects of the other threads become unowned, and are collected like all others.
pub type Fork<'a> = ModelFork<'a, Managed>;

/// Heaps that are stopped for a `fork` by a detached thread. Made by [`Heap::prepare_fork`].
///
/// It must not be leaked: see [`Fork`].
pub type DetachedFork<'a> = ModelDetachedFork<'a, Managed>;
