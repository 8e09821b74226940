//! Threads, with the data of a mutator, and the work that a thread does for the model.
//!
//! For example, thread 1 drops a reference to an object of thread 2, but only thread 2 may write
//! its half of the count. So thread 1 puts the object into the queue in thread 2's
//! [`Local`](ThreadData::Local) and raises a request, which thread 2 [answers](Threads::answer) at
//! its next safepoint.

#![forbid(unsafe_code)]

use crate::heap::model::ObjectModel;
use crate::heap::mutator::ModelMutator;

/// The model keeps data for each mutator.
pub trait ThreadData<M: ObjectModel> {
    /// The data of the model for each mutator, which must synchronise itself because other threads
    /// read it.
    type Local: Send + Sync + 'static;

    /// The data of the model for each mutator that only its own thread uses.
    ///
    /// If the destructor of this data or of [`Local`](Self::Local) panics, the mutator ends all the
    /// same, and the panic is treated as one of [`ending`](crate::model::Threads::ending).
    type Private: 'static;

    /// Creates the shared data of a new mutator.
    fn local(model: &M) -> Self::Local;

    /// Creates the private data of a new mutator, or returns `None` if there is no memory for it,
    /// so that the attach fails.
    fn private(model: &M) -> Option<Self::Private>;

    /// Whether the private data of a mutator that has ended may serve the next mutator of the heap,
    /// on any thread. If so, it is as new now.
    #[doc(hidden)]
    fn keeps_private(model: &M, private: &mut Self::Private) -> bool {
        let _ = (model, private);
        false
    }
}

impl<M: ObjectModel> ThreadData<M> for () {
    type Local = ();
    type Private = ();

    fn local(_: &M) {}

    fn private(_: &M) -> Option<()> {
        Some(())
    }
}

/// The model works when a thread attaches, answers a request, lacks memory or ends.
pub trait Threads<M: ObjectModel> {
    /// The requests of [`MODEL_REQUESTS`](crate::model::MODEL_REQUESTS) that another thread may
    /// answer for the requested thread, which is any attached thread, or the next thread that
    /// attaches.
    ///
    /// A thread answers its pending requests before it detaches. Shared requests that arrive
    /// meanwhile are passed on to the attached threads, because other threads could otherwise delay
    /// the detach without end. The thread answers all other requests itself until none is pending.
    const SHARED_REQUESTS: u32 = 0;

    /// Called after each attach, after [`park`](ModelMutator::park) has parked, and in each
    /// safepoint that has work, with the world running. A thread that parks while it clears and
    /// releases garbage does not call it then.
    fn attached(model: &M, m: &ModelMutator<M>) {
        let _ = (model, m);
    }

    /// Answers requests that the model has raised with the bits of
    /// [`MODEL_REQUESTS`](crate::model::MODEL_REQUESTS). Called in a safepoint that has work,
    /// before a detach, and before a mutator ends. Requests that arrive while a thread is detached
    /// wait for its next such point, although [`attached`](Self::attached) can do their work at
    /// once.
    fn answer(model: &M, requests: u32, m: &ModelMutator<M>) {
        let _ = (model, requests, m);
    }

    /// The heap has no memory for a new object, so a model that caches freed memory returns it to
    /// the heap here. Returns `true` if it returned some, so that the heap tries the allocation
    /// again.
    fn refused(model: &M, m: &ModelMutator<M>) -> bool {
        let _ = (model, m);
        false
    }

    /// Called when a mutator ends, on its own thread, still attached. A panic leaves the mutator's
    /// drop after the thread has detached, or is reported as unraisable if the thread is already
    /// unwinding.
    fn ending(model: &M, m: &ModelMutator<M>) {
        let _ = (model, m);
    }
}

impl<M: ObjectModel> Threads<M> for () {}
