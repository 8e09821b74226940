//! A runtime that stops and polls in its own way.
//!
//! A runtime with threads that are no mutators must stop them too, or their stores would change
//! objects while the collector counts. For example, thread 1 collects, thread 2 is a mutator, and
//! thread 3 a compiler's. Thread 1 stops thread 2 through the heap, and then calls
//! [`stop_runtime`](RuntimeStop::stop_runtime), which stops thread 3.

#![forbid(unsafe_code)]

use std::borrow::Cow;

use crate::heap::model::ObjectModel;
use crate::heap::parts::Local;
use crate::safepoint::ThreadId;

/// What follows a runtime's own [wait for a child process](RuntimeStop::wait_for_child).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChildWait {
    /// The library waits until the child has ended, if it has not.
    ToTheEnd,
    /// Unless the child has ended, the heap has grown too much to wait for longer. The search runs
    /// in a stop.
    Outgrown,
    /// Unless the child has ended, the collection is over, and its report has the reason as
    /// [`abandoned`](crate::CollectionReport::abandoned). The garbage waits for the next one.
    GivenUp,
}

/// The runtime stops its threads itself, because some of them are no mutators of the heap. The page
/// of [`model`](crate::model#a-stop-of-the-runtime) has the order of both stops.
pub trait RuntimeStop<M: ObjectModel> {
    /// Whether the model has this part, which a model with a parameter may compute.
    const PRESENT: bool = true;

    /// Stops all threads of the runtime but this one, whose mutator `local` belongs to. Called in
    /// each stop except that of a fork, after all other attached threads of the heap have stopped.
    ///
    /// # Errors
    ///
    /// The reason why the runtime cannot stop, where a panic counts as one. Then the threads of the
    /// heap continue, and the stop fails with
    /// [`StopError::Refused`](crate::safepoint::StopError::Refused).
    fn stop_runtime(model: &M, local: &Local<M>) -> Result<(), Cow<'static, str>>;

    /// Ends a stop that [`stop_runtime`](Self::stop_runtime) has made, on the same thread, before
    /// the threads of the heap continue. A panic ends the process, because threads may stay
    /// stopped.
    fn resume_runtime(model: &M, local: &Local<M>);

    /// This thread is about to wait for a stop of the heap, or has just detached. From here on a
    /// stop of the runtime does not wait for it. Must not block or panic.
    fn leaving(model: &M, local: &Local<M>) {
        let _ = (model, local);
    }

    /// Whether this thread, which has left the runtime, runs in it again. `false` means that the
    /// runtime is stopped, or about to be. Called after each [`leaving`](Self::leaving) until it
    /// returns `true`, on a thread that is attached, perhaps in a stop of its own, or could not
    /// attach. Must not block or panic.
    fn comes_back(model: &M, local: &Local<M>) -> bool {
        let _ = (model, local);
        true
    }

    /// A [child process](crate::Collect::forked) searches for a collection of this thread, which
    /// has detached from the heap, while the runtime runs. A runtime whose stops wait for the
    /// thread lets it leave, and come back at the end. It may call `has_ended`, which asks the
    /// system, as often as wanted, and end the child before that, for example because somebody else
    /// wants to collect. The default lets the library wait. Must not panic.
    #[expect(unused_variables, reason = "most runtimes have nothing to do")]
    fn wait_for_child(model: &M, has_ended: &mut dyn FnMut() -> bool) -> ChildWait {
        ChildWait::ToTheEnd
    }

    /// Waits, after [`comes_back`](Self::comes_back) has returned `false`, until another call may
    /// return `true`. The thread is detached, or has stopped the heap. Must not attach or panic.
    fn wait_for_runtime(model: &M, local: &Local<M>) {
        let _ = (model, local);
    }
}

impl<M: ObjectModel> RuntimeStop<M> for () {
    const PRESENT: bool = false;

    fn stop_runtime(_: &M, _: &Local<M>) -> Result<(), Cow<'static, str>> {
        Ok(())
    }

    fn resume_runtime(_: &M, _: &Local<M>) {}
}

/// The threads of the runtime poll a word of their own.
pub trait PollWord<M: ObjectModel> {
    /// Whether the model has this part, which a model with a parameter may compute.
    const PRESENT: bool = true;

    /// Request bits of a thread were raised, so its own word is to be set. `local` belongs to the
    /// mutator of that thread. Called by any thread, and for [`STOP`](crate::safepoint::STOP) under
    /// the coordinator's lock, so the function may set atomics and do nothing else. It takes no
    /// lock, does not allocate or panic, and calls nothing of the library.
    ///
    /// `bits` has [`STOP`](crate::safepoint::STOP), bits of
    /// [`MODEL_REQUESTS`](crate::model::MODEL_REQUESTS), or others, which say that a collection is
    /// due. More bits than these may be pending, as the page of `model` explains with [the
    /// protocol][own].
    ///
    /// [own]: crate::model#a-poll-word-of-the-runtime
    fn requested(thread: ThreadId, local: &Local<M>, bits: u32);
}

impl<M: ObjectModel> PollWord<M> for () {
    const PRESENT: bool = false;

    fn requested(_: ThreadId, _: &Local<M>, _: u32) {}
}
