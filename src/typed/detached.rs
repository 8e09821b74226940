//! Mutators of detached threads.

#![forbid(unsafe_code)]

use std::fmt;

use crate::heap::detach::ModelDetached;
use crate::managed::Managed;
use crate::typed::heap::Heap;
use crate::typed::mutator::Mutator;

impl Mutator {
    /// Whether this thread may now reach a safepoint, detach or collect. It may not inside a
    /// destructor, finalizer, callback or traversal, while it holds a stop, or while it keeps
    /// another thread suspended.
    pub fn may_park(&self) -> bool {
        self.raw().may_park()
    }

    /// Detaches without a closure, for languages that mark the two ends of a blocking region. The
    /// thread may attach to another heap meanwhile. It must end that attachment before it attaches
    /// here again.
    ///
    /// # Errors
    ///
    /// The mutator itself, if [`may_park`](Self::may_park) returns `false`, or what the thread
    /// runs before it leaves keeps a [`TraversalGuard`](crate::safepoint::TraversalGuard): a hook,
    /// or a destructor of an object whose last reference another thread has dropped.
    pub fn into_detached(self) -> Result<Detached, Self> {
        self.into_raw().into_detached().map(Detached).map_err(Self::from_raw)
    }
}

/// The mutator of a detached thread. Made by [`Mutator::into_detached`].
///
/// The drop attaches the thread once more, to end the attachment properly. A thread that is
/// attached to another heap, is inside a traversal, holds a fork, or keeps another thread suspended
/// cannot attach. Then the attachment ends when the thread has dropped its next mutator, of any
/// heap. A panic of a destructor at that time goes to
/// [`Heap::on_unraisable`](crate::Heap::on_unraisable). Until then
/// [`HeapStats::mutators`](crate::HeapStats::mutators) counts the mutator and the heap stays open.
/// No stop waits for it.
#[must_use = "dropping it ends the attachment for good"]
pub struct Detached(ModelDetached<Managed>);

impl Detached {
    /// Attaches the thread again. Waits while the world is stopped.
    ///
    /// # Errors
    ///
    /// The value itself, if the thread is attached elsewhere, is inside a traversal, keeps another
    /// thread suspended, is ending, or is in the closure of a [`Mutator::detach`].
    pub fn attach(self) -> Result<Mutator, Self> {
        self.0.attach().map(Mutator::from_raw).map_err(Self)
    }

    /// The heap to which the mutator belongs.
    pub fn heap(&self) -> &Heap {
        Heap::from_model(self.0.heap())
    }
}

impl fmt::Debug for Detached {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Detached").field("heap", self.heap()).finish()
    }
}
