//! A thread waits until another one has changed a cell.
//!
//! A guard of a cell borrows the mutator, and a thread that waits must detach. So the wait itself
//! locks the cell, looks, and unlocks it. Suppose that thread 1 finds a queue empty, and thread 2
//! pushes an item and notifies before thread 1 sleeps. The notification must not be lost, so thread
//! 1 enters the list of waiters while it still has the cell locked. Thread 2, which locks the cell
//! afterwards, finds it there.
//!
//! The list is a cell too. Only attached threads lock it, so no thread has it locked in a stop, and
//! the child of a fork finds it open. The waiters of lost threads stay in the child's list. Each
//! entry has the number of its process, so that a notification passes them over.

#![forbid(unsafe_code)]

use std::collections::VecDeque;
use std::fmt;
use std::panic::resume_unwind;
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use crate::base::outside::guarded;
use crate::{GcCell, Mutator, Opaque, Trace, Tracer};

/// Threads that wait for a change of a [`GcCell`], as a condition variable. It may be a field of an
/// object, beside the cell.
///
/// For a `std::sync::Mutex` use a `std::sync::Condvar`, detached:
/// `m.detach(|| condvar.wait(guard))`.
///
/// ```
/// use standstill::{GcCell, GcCondvar, Gc, Heap, Trace};
///
/// #[derive(Default, Trace)]
/// struct Promise {
///     value: GcCell<Option<Gc<u32>>>,
///     resolved: GcCondvar,
/// }
///
/// let heap = Heap::new();
/// let mut m = heap.attach();
/// let promise = m.alloc(Promise::default());
/// m.scope(|s, m| {
///     s.spawn(|| {
///         let m = heap.attach();
///         promise.value.set(&m, Some(m.alloc(7)));
///         promise.resolved.notify_all(&m);
///     });
///     let value = m.wait(&promise.resolved, &promise.value, |value, _| value.clone());
///     assert_eq!(*value, 7);
/// });
/// ```
#[derive(Default)]
pub struct GcCondvar {
    waiters: GcCell<Opaque<VecDeque<Waiter>>>,
}

/// A thread, and the number of its process.
type Waiter = (u32, Thread);

fn is_of_this_process(waiter: &Waiter) -> bool {
    waiter.0 == std::process::id()
}

impl GcCondvar {
    /// A condition variable for which no thread waits.
    pub fn new() -> Self {
        Self::default()
    }

    /// Wakes the thread that has waited longest, if any waits. Change the cell first. The cell may
    /// still be locked.
    ///
    /// # Panics
    ///
    /// If the condition variable is part of an object of another heap; see [`GcCell::lock`].
    #[track_caller]
    pub fn notify_one(&self, m: &Mutator) {
        let mut waiters = self.waiters.lock(m);
        let next = std::iter::from_fn(|| waiters.0.pop_front()).find(is_of_this_process);
        drop(waiters);
        if let Some((_, thread)) = next {
            thread.unpark();
        }
    }

    /// Wakes all threads that wait. Change the cell first. The cell may still be locked.
    ///
    /// # Panics
    ///
    /// If the condition variable is part of an object of another heap; see [`GcCell::lock`].
    #[track_caller]
    pub fn notify_all(&self, m: &Mutator) {
        let mut waiters = self.waiters.take(m).0;
        waiters.retain(is_of_this_process);
        waiters.iter().for_each(|(_, thread)| thread.unpark());
    }

    fn add_waiter(&self, m: &Mutator) {
        self.waiters.lock(m).0.push_back((std::process::id(), thread::current()));
    }

    /// Removes this thread, if no notification has.
    fn remove_waiter(&self, m: &Mutator) {
        let this = thread::current().id();
        self.waiters.lock(m).0.retain(|(_, thread)| thread.id() != this);
    }
}

impl Trace for GcCondvar {
    const TRACKED: bool = false;

    #[inline]
    fn traverse(_: &Self, _: &mut Tracer) {}
}

impl fmt::Debug for GcCondvar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GcCondvar").finish_non_exhaustive()
    }
}

impl Mutator {
    /// Waits, detached, until `ready` returns a value for the contents of the cell.
    ///
    /// The thread locks the cell and calls `ready`, now and after each notification. A notification
    /// of a change that `ready` has not seen is never lost. The thread is woken without one at
    /// times, and then `ready` returns `None` again.
    ///
    /// # Panics
    ///
    /// * If `ready` panics, or returns `None` and [`detach`](Self::detach) would panic.
    /// * As [`GcCell::lock`], and if the condition variable is part of an object of another heap.
    #[track_caller]
    pub fn wait<T: Trace, R>(
        &mut self,
        condvar: &GcCondvar,
        cell: &GcCell<T>,
        ready: impl FnMut(&mut T, &Self) -> Option<R>,
    ) -> R {
        self.wait_to(None, condvar, cell, ready).expect("a wait without a deadline")
    }

    /// Waits as [`wait`](Self::wait) does, but not longer than `timeout`. When that is over, it
    /// calls `ready` once more, and returns `None` if `ready` does. To attach and to lock the cell
    /// may take more time.
    ///
    /// # Panics
    ///
    /// As [`wait`](Self::wait).
    #[track_caller]
    pub fn wait_timeout<T: Trace, R>(
        &mut self,
        timeout: Duration,
        condvar: &GcCondvar,
        cell: &GcCell<T>,
        ready: impl FnMut(&mut T, &Self) -> Option<R>,
    ) -> Option<R> {
        // A time that the clock cannot express does not come.
        match Instant::now().checked_add(timeout) {
            Some(deadline) => self.wait_to(Some(deadline), condvar, cell, ready),
            None => Some(self.wait(condvar, cell, ready)),
        }
    }

    #[track_caller]
    fn wait_to<T: Trace, R>(
        &mut self,
        deadline: Option<Instant>,
        condvar: &GcCondvar,
        cell: &GcCell<T>,
        mut ready: impl FnMut(&mut T, &Self) -> Option<R>,
    ) -> Option<R> {
        loop {
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            let mut value = cell.lock(self);
            let found = ready(&mut value, self);
            if found.is_some() || left.is_some_and(|left| left.is_zero()) {
                return found;
            }
            // Before the cell is unlocked, so that the next change finds this thread in the list.
            condvar.add_waiter(self);
            drop(value);
            let slept =
                guarded(|| self.detach(|| left.map_or_else(thread::park, thread::park_timeout)));
            condvar.remove_waiter(self);
            if let Err(payload) = slept {
                resume_unwind(payload);
            }
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
