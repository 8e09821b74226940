//! Floor 5: mutators whose thread is detached.

use std::fmt;

use crate::managed::Raw;
use crate::typed::heap::Heap;
use crate::typed::mutator::Mutator;

impl Mutator {
    /// Whether this thread may reach a safepoint, detach or collect now: not inside a destructor, finalizer, callback or
    /// traversal, and not while it holds a stop.
    pub fn may_park(&self) -> bool {
        self.raw().may_step_out()
    }

    /// Detaches without a closure, for languages that mark the two ends of a blocking region. The thread may attach
    /// elsewhere meanwhile, as long as it has left there again when it comes back.
    ///
    /// # Errors
    ///
    /// The mutator itself, where [`may_park`](Self::may_park) says no.
    pub fn into_detached(self) -> Result<Detached, Self> {
        if !self.may_park() {
            return Err(self);
        }
        // The mutator is put away: nothing relies on the attachment any more.
        self.raw().step_out().disarm();
        Ok(Detached(std::mem::ManuallyDrop::new(self)))
    }
}

/// A mutator whose thread is detached. Made by [`Mutator::into_detached`].
///
/// To drop it attaches the thread once more, to leave the heap in order.
#[must_use = "dropping it ends the attachment for good"]
pub struct Detached(std::mem::ManuallyDrop<Mutator>);

impl Detached {
    /// Attaches the thread again. If the world is stopped, that waits.
    ///
    /// # Errors
    ///
    /// The value itself, when the thread is attached elsewhere, inside a traversal, or in the closure of a
    /// [`Mutator::detach`].
    pub fn attach(self) -> Result<Mutator, Self> {
        // Inside the closure of another mutator's detach, this one could outlive the closure.
        if Raw::is_inside_detach() || !self.0.raw().step_in() {
            return Err(self);
        }
        let mut this = std::mem::ManuallyDrop::new(self);
        // SAFETY: rule V: taken once: `this` is neither used again nor dropped.
        Ok(unsafe { std::mem::ManuallyDrop::take(&mut this.0) })
    }

    /// The heap.
    pub fn heap(&self) -> &Heap {
        self.0.heap()
    }
}

impl Drop for Detached {
    fn drop(&mut self) {
        if self.0.raw().step_in() {
            // SAFETY: rule V: attached again, and not used any more.
            unsafe { std::mem::ManuallyDrop::drop(&mut self.0) };
        }
        // Else the thread is busy elsewhere, and leaks it, as it would leak a mutator.
    }
}

impl fmt::Debug for Detached {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Detached").field("heap", self.heap()).finish()
    }
}
