//! A runtime that stops and polls in its own way.

#![forbid(unsafe_code)]

use std::borrow::Cow;

use crate::heap::model::ObjectModel;
use crate::heap::parts::Local;
use crate::safepoint::ThreadId;

/// The runtime stops its threads itself, because some of them are no mutators of the heap. The page
/// of [`model`](crate::model#a-stop-of-the-runtime) has the order of both stops.
pub trait RuntimeStop<M: ObjectModel> {
    /// Whether the model has this part. A model with a parameter may compute it.
    const PRESENT: bool = true;

    /// Stops all threads of the runtime but this one. Called in each stop except that of a fork,
    /// after all other attached threads of the heap have stopped. `local` belongs to the mutator of
    /// this thread.
    ///
    /// # Errors
    ///
    /// The reason why the runtime cannot stop. Then the threads of the heap continue, and the stop
    /// fails with [`StopError::Refused`](crate::safepoint::StopError::Refused). A panic counts as
    /// an error.
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

    /// Whether this thread, which has left the runtime, runs in it again. `false`: the runtime is
    /// stopped, or about to be. Called until it returns `true`: after each
    /// [`leaving`](Self::leaving), attached, possibly in a stop of this thread. Must not block or
    /// panic.
    fn comes_back(model: &M, local: &Local<M>) -> bool {
        let _ = (model, local);
        true
    }

    /// [`comes_back`](Self::comes_back) has returned `false`: waits until another call may return
    /// `true`. The thread is detached, or has stopped the heap. Must not attach or panic.
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
    /// Whether the model has this part. A model with a parameter may compute it.
    const PRESENT: bool = true;

    /// Request bits of a thread were raised: its own word is to be set. `local` belongs to the
    /// mutator of that thread. Called by any thread, and for [`STOP`](crate::safepoint::STOP) under
    /// the coordinator's lock. The function may set atomics and do nothing else: no lock, no
    /// allocation, no panic, no call of the library.
    ///
    /// `bits` has [`STOP`](crate::safepoint::STOP), bits of
    /// [`MODEL_REQUESTS`](crate::model::MODEL_REQUESTS), or others: a collection is due. More bits
    /// than these may be pending. The module's page describes [the protocol][own].
    ///
    /// [own]: crate::model#a-poll-word-of-the-runtime
    fn requested(thread: ThreadId, local: &Local<M>, bits: u32);
}

impl<M: ObjectModel> PollWord<M> for () {
    const PRESENT: bool = false;

    fn requested(_: ThreadId, _: &Local<M>, _: u32) {}
}
