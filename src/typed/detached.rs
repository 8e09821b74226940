//! Mutators of detached threads.

#![forbid(unsafe_code)]

use std::fmt;

use crate::managed::Raw;
use crate::typed::heap::Heap;
use crate::typed::mutator::Mutator;

impl Mutator {
    /// Whether this thread may now reach a safepoint, detach or collect. It may not inside a
    /// destructor, finalizer, callback or traversal, while it holds a stop, or while it keeps
    /// another thread suspended.
    pub fn may_park(&self) -> bool {
        self.raw().may_step_out()
    }

    /// Detaches without a closure, for languages that mark the two ends of a blocking region. The
    /// thread may attach to another heap meanwhile. It must end that attachment before it attaches
    /// here again.
    ///
    /// # Errors
    ///
    /// The mutator itself, if [`may_park`](Self::may_park) returns `false`.
    pub fn into_detached(self) -> Result<Detached, Self> {
        if !self.may_park() {
            return Err(self);
        }
        // The mutator is inside `Detached` now, so no code relies on the attachment.
        self.raw().step_out().disarm();
        Ok(Detached(Some(self)))
    }
}

/// The mutator of a detached thread. Made by [`Mutator::into_detached`].
///
/// The drop attaches the thread once more, to end the attachment properly. A thread that is
/// attached to another heap, or that is inside a traversal, cannot attach. Then the attachment ends
/// when the thread has dropped its next mutator, of any heap. A panic of a destructor at that time
/// goes to [`Heap::on_unraisable`](crate::Heap::on_unraisable). Until then
/// [`HeapStats::mutators`](crate::HeapStats::mutators) counts the mutator and the heap stays open.
/// No stop waits for it.
#[must_use = "dropping it ends the attachment for good"]
pub struct Detached(Option<Mutator>);

impl Detached {
    fn mutator(&self) -> &Mutator {
        self.0.as_ref().expect("it is taken by the last call")
    }

    /// Attaches the thread again. Waits while the world is stopped.
    ///
    /// # Errors
    ///
    /// The value itself, if the thread is attached elsewhere, is inside a traversal, or is in the
    /// closure of a [`Mutator::detach`].
    pub fn attach(mut self) -> Result<Mutator, Self> {
        // In the closure of another mutator's detach, the new mutator could outlive the closure.
        if Raw::is_inside_detach() || !self.mutator().raw().step_in() {
            return Err(self);
        }
        self.0.take().ok_or(self)
    }

    /// The heap to which the mutator belongs.
    pub fn heap(&self) -> &Heap {
        self.mutator().heap()
    }
}

impl Drop for Detached {
    fn drop(&mut self) {
        if let Some(mutator) = self.0.take() {
            mutator.into_raw().end_detached();
        }
    }
}

impl fmt::Debug for Detached {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Detached").field("heap", self.heap()).finish()
    }
}
