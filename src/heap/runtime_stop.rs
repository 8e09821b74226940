//! The stop of a runtime that stops its threads itself, by
//! [`RuntimeStop`](crate::model::RuntimeStop).
//!
//! Such a runtime has a stop of its own beside the heap's, and two stops that wait for each other's
//! threads would never end. For example, thread 1 stops the runtime, while thread 2 waits for a
//! stop of the heap. Thread 2 has left the runtime before
//! ([`RuntimeStop::leaving`](crate::model::RuntimeStop::leaving)), so the stop of thread 1 does not
//! wait for it. When thread 2 is attached again, it comes back
//! ([`RuntimeStop::comes_back`](crate::model::RuntimeStop::comes_back)), which it can only when
//! thread 1 has resumed the runtime.
//!
//! | the thread | leaves | comes back | if the runtime is stopped then |
//! |---|---|---|---|
//! | parks, attaches after a detach | before it detaches | attached | detaches once more, and waits |
//! | makes its mutator | registered, before it attaches | attached | as above |
//! | could not attach | as above | detached | waits |
//! | attaches without a wait | has left before | attached | detaches once more, and gives up |
//! | stops the heap, prepares a fork | before the heap's stop | in the heap's stop | waits in its stop |
//! | could not stop the heap | as above | attached | detaches, and waits |
//!
//! The wait in its own stop is safe, because all other threads of the heap are detached. A thread
//! that has stopped the runtime waits for no stop of the heap. It does not reach a safepoint, and
//! its collections ([`collect_stopped`]) give up if another thread has stopped the heap, or waits
//! for its turn.
//!
//! If the constant is `false`, each function here is a branch that the compiler removes.
//!
//! [`collect_stopped`]: crate::model::ModelMutator::collect_stopped

#![forbid(unsafe_code)]

use std::time::{Duration, Instant};

use crate::base::outside::{self, guarded};
use crate::heap::core::{Core, MutatorShared};
use crate::heap::model::ObjectModel;
use crate::heap::mutator::ModelMutator;
use crate::heap::parts::*;
use crate::safepoint::{self, Participant, StopError, StopPurpose, StopRequest, WorldStopped};

/// Stops the mutators of the heap, and then the runtime. The second part of the result is how long
/// the runtime took, if it was stopped.
#[inline(always)]
pub(super) fn stop<'a, M: ObjectModel>(
    core: &Core<M>,
    participant: &'a Participant<MutatorShared<M>>,
    request: StopRequest,
) -> Result<(WorldStopped<'a, MutatorShared<M>>, Option<Duration>), StopError> {
    let stopped = outside(core, participant, || participant.stop_by(request))?;
    let runtime =
        if RuntimeStopOf::<M>::PRESENT { Some(stop_runtime(core, participant)?) } else { None };
    Ok((stopped, runtime))
}

/// Calls `stop`, which stops the heap, on a thread that has left the runtime.
#[inline(always)]
pub(super) fn outside<M: ObjectModel, R>(
    core: &Core<M>,
    participant: &Participant<MutatorShared<M>>,
    stop: impl FnOnce() -> Result<R, StopError>,
) -> Result<R, StopError> {
    // A thread that has left already, or that may not detach, gets an error.
    if !RuntimeStopOf::<M>::PRESENT || !participant.may_detach() {
        return stop();
    }
    RuntimeStopOf::<M>::leaving(&core.model, &participant.data().local);
    let result = stop();
    match result {
        Ok(_) => wait_until_back(core, participant),
        Err(_) => return_attached(core, participant),
    }
    result
}

/// Attaches a new mutator, which is then attached and has left the runtime.
#[inline(always)]
pub(super) fn attach<M: ObjectModel>(
    core: &Core<M>,
    participant: &Participant<MutatorShared<M>>,
) -> Result<(), safepoint::AttachError> {
    if RuntimeStopOf::<M>::PRESENT {
        RuntimeStopOf::<M>::leaving(&core.model, &participant.data().local);
    }
    let attached = participant.attach();
    if RuntimeStopOf::<M>::PRESENT && attached.is_err() {
        wait_until_back(core, participant);
    }
    attached
}

/// Comes back to the runtime, on a thread that is detached or holds a stop of the heap.
fn wait_until_back<M: ObjectModel>(core: &Core<M>, participant: &Participant<MutatorShared<M>>) {
    let local = &participant.data().local;
    while !RuntimeStopOf::<M>::comes_back(&core.model, local) {
        RuntimeStopOf::<M>::wait_for_runtime(&core.model, local);
    }
}

/// Comes back to the runtime, attached. While the runtime is stopped the thread waits detached,
/// because the thread that has stopped the runtime may stop the heap too.
pub(super) fn return_attached<M: ObjectModel>(
    core: &Core<M>,
    participant: &Participant<MutatorShared<M>>,
) {
    let local = &participant.data().local;
    while !RuntimeStopOf::<M>::comes_back(&core.model, local) {
        let away = participant.step_away_again();
        RuntimeStopOf::<M>::wait_for_runtime(&core.model, local);
        away.disarm();
        participant.come_back();
    }
}

/// Comes back to the runtime, attached. `false`: it is stopped, and the thread is detached.
pub(super) fn try_return<M: ObjectModel>(
    core: &Core<M>,
    participant: &Participant<MutatorShared<M>>,
) -> bool {
    let back = !RuntimeStopOf::<M>::PRESENT
        || RuntimeStopOf::<M>::comes_back(&core.model, &participant.data().local);
    if !back {
        // The caller does not rely on the attachment, since it learns that there is none.
        participant.step_away_again().disarm();
    }
    back
}

/// Makes the runtime stop its threads, and returns how long that took.
fn stop_runtime<M: ObjectModel>(
    core: &Core<M>,
    participant: &Participant<MutatorShared<M>>,
) -> Result<Duration, StopError> {
    let begun = Instant::now();
    let stopped =
        guarded(|| RuntimeStopOf::<M>::stop_runtime(&core.model, &participant.data().local));
    let stopped = stopped.unwrap_or_else(|payload| Err(outside::panic_message(payload)));
    stopped.map_err(|reason| StopError::Refused { reason })?;
    Ok(begun.elapsed())
}

impl<M: ObjectModel> ModelMutator<M> {
    /// Stops the world without a wait, also if the mutator is lent, as `Participant::stop_alone`
    /// does.
    #[cfg_attr(not(feature = "cpython"), allow(dead_code, reason = "only `dynamic` calls it"))]
    pub(crate) fn stop_alone(&self) -> Option<WorldStopped<'_, MutatorShared<M>>> {
        // A runtime may have to wait for its own threads.
        if RuntimeStopOf::<M>::PRESENT { None } else { self.participant().stop_alone() }
    }

    pub(crate) fn stop_for_fork(
        &self,
        limit: Option<Duration>,
    ) -> Result<WorldStopped<'_, MutatorShared<M>>, StopError> {
        if self.is_lent() {
            return Err(StopError::NoSafepoint);
        }
        let request = StopRequest::from(StopPurpose::Fork).within(limit);
        outside(self.core(), self.participant(), || self.participant().stop_by(request))
    }
}
