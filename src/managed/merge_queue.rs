//! A drop by another thread can make the shared half of an object negative. Whether the object is
//! dead, only a thread knows that may read the owner's half too. So the object goes into the *merge
//! queue* of its owner, which merges the halves later.
//!
//! While the queue is open, any attached thread may add an object under the lock. Three threads may
//! merge:
//!
//! * the owner, at a safepoint;
//! * a thread that has suspended the detached owner;
//! * a thread that has stopped the world.
//!
//! The owner closes its queue for good when it ends, and only while the queue is empty. A thread
//! that finds the queue closed merges the object itself, which is sound because the lock orders the
//! owner's last count before that thread.
//!
//! An object is in one queue at most, once, and its memory stays until the queue has merged it.

#![forbid(unsafe_code)]

use std::ptr::NonNull;

use crate::base::steps;
use crate::base::stress::{MaybeStrain, Step, maybe_yield};
use crate::base::sync::Mutex;
use crate::object::header::{Dropped, Header};
use crate::object::weak::HeaderPtr;
use crate::safepoint::{Coordinator, Suspend, ThreadId, is_suspending};

/// The request to an owner to merge its queue.
pub(crate) const MERGE_REQUEST: u32 = 1 << 8;

/// The objects that other threads have dropped, and that their owner merges.
#[derive(Debug)]
pub(crate) struct MergeQueue {
    /// `None`: closed.
    objects: Mutex<Option<Vec<HeaderPtr>>>,
}

/// The owner has closed its queue, or has left the registry.
#[derive(Debug)]
pub(crate) struct OwnerEnded;

impl MergeQueue {
    pub(crate) fn new() -> Self {
        Self { objects: Mutex::new(Some(Vec::new())) }
    }

    /// Adds an object; `false`: the queue is closed.
    pub(crate) fn enqueue(&self, object: HeaderPtr) -> bool {
        match &mut *self.objects.lock() {
            Some(objects) => {
                objects.push(object);
                true
            }
            None => false,
        }
    }

    /// The number of objects; `None`: the queue is closed.
    pub(crate) fn len(&self) -> Option<usize> {
        self.objects.lock().as_ref().map(Vec::len)
    }

    /// Takes the objects out of the queue, calls `merge` for each, and returns the dead ones.
    ///
    /// The caller is the owner, has suspended the owner, or has stopped the world.
    pub(crate) fn merge(
        &self,
        mut merge: impl FnMut(NonNull<Header>) -> Dropped,
    ) -> Vec<HeaderPtr> {
        // The list of the queued becomes the list of the dead, so that this allocates nothing.
        let mut objects = match &mut *self.objects.lock() {
            Some(objects) => std::mem::take(objects),
            None => return Vec::new(),
        };
        steps::took(objects.len());
        objects.retain(|object| merge(object.0) == Dropped::Dead);
        objects
    }

    /// Merges one object ahead of the others, if it is queued. The caller is the owner, and has a
    /// reference to the object, which therefore stays alive.
    #[cfg(feature = "cpython")]
    pub(super) fn merge_one(&self, header: &Header) {
        let mut objects = self.objects.lock();
        if let Some(objects) = &mut *objects
            && let Some(at) =
                objects.iter().position(|object| std::ptr::eq(object.0.as_ptr(), header))
        {
            objects.swap_remove(at);
            let merged = header.merge();
            debug_assert_eq!(merged, Dropped::Alive, "the caller's reference counts");
        }
    }

    /// Closes the queue if it is empty; `false`: it contains objects, and stays open.
    pub(crate) fn close_if_empty(&self) -> bool {
        let mut objects = self.objects.lock();
        // Under the lock, because a thread that finds the queue closed merges the object itself.
        let is_empty = objects.as_ref().is_some_and(Vec::is_empty);
        if is_empty {
            *objects = None;
        }
        is_empty
    }

    /// Closes the queue, and returns the objects that were in it, not merged.
    pub(super) fn close(&self) -> Vec<HeaderPtr> {
        self.objects.lock().take().unwrap_or_default()
    }

    /// Opens a closed queue again.
    #[cfg(all(test, not(any(loom, shuttle))))]
    pub(super) fn reopen(&self) {
        *self.objects.lock() = Some(Vec::new());
    }
}

/// Puts an object into the queue of its owner, and raises the [request](MERGE_REQUEST).
///
/// If the owner is detached, this thread suspends it, merges its queue, and returns the dead
/// objects.
#[inline(always)]
pub(crate) fn enqueue<S>(
    coordinator: &Coordinator<S>,
    under: &MaybeStrain,
    owner: u64,
    object: HeaderPtr,
    queue: impl Fn(&S) -> &MergeQueue,
    merge: impl FnMut(NonNull<Header>) -> Dropped,
) -> Result<Vec<HeaderPtr>, OwnerEnded> {
    let owner = ThreadId::from_raw(owner).ok_or(OwnerEnded)?;
    if coordinator.with_data(owner, |data| queue(data).enqueue(object)) != Some(true) {
        return Err(OwnerEnded);
    }
    maybe_yield(under, Step::Queue);
    coordinator.poke(owner, MERGE_REQUEST);
    // A thread suspends one other thread at a time, whatever the coordinator, so otherwise the
    // owner merges later.
    if !is_suspending()
        && let Suspend::Suspended(owner) = coordinator.suspend(owner)
    {
        maybe_yield(under, Step::Merge);
        return Ok(queue(&owner).merge(merge));
    }
    Ok(Vec::new())
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
