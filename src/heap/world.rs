//! The proof that the world is stopped.
//!
//! Code that reads the arena of another thread is sound only while that thread stands still, so it
//! asks for a [`World`], which exists only then. For example, thread 1 stops threads 2 and 3, and
//! gets a [`World`] through which it reads the arenas of all three. When it drops the value, the
//! others run again, and it can reach their data no longer.

use std::fmt;
use std::time::{Duration, Instant};

use crate::base::outside::{self, guarded};
use crate::base::steps;
use crate::base::sync::{IS_MODEL, Mutex, Ordering};
use crate::heap::core::{Core, MutatorShared};
use crate::heap::helpers::Job;
use crate::heap::model::ObjectModel;
use crate::heap::mutator::{Lent, ModelMutator};
use crate::heap::parts::*;
use crate::memory::arena::Arena;
use crate::memory::view::SpaceView;
use crate::report::event;
use crate::safepoint::{self, StopError, StopPurpose, StopRequest, ThreadId, WorldStopped};

/// Proof that the world is stopped, with access to the data of the stopped threads, until dropping
/// it resumes the world.
pub struct World<'a, M: ObjectModel> {
    pub(super) stopped: WorldStopped<'a, MutatorShared<M>>,
    pub(super) core: &'a Core<M>,
    pub(super) requester: ThreadId,
    /// The arena of the thread that stopped the world.
    pub(super) arena_id: u32,
    pub(super) since: Instant,
    /// If the runtime is stopped too, the data of the thread that stopped both, and how long the
    /// runtime took.
    pub(super) runtime: Option<(&'a Local<M>, Duration)>,
    /// Held by the thread that visits the arenas, because workers share a `World`.
    pub(super) visit: Mutex<()>,
}

impl<M: ObjectModel> std::fmt::Debug for World<'_, M> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("World").field("requester", &self.requester).finish_non_exhaustive()
    }
}

impl<M: ObjectModel> World<'_, M> {
    /// The thread that stopped the world.
    pub fn requester(&self) -> ThreadId {
        self.requester
    }

    /// How long the stop took until the last thread parked, without the wait for another stop
    /// before.
    pub fn time_to_stop(&self) -> Duration {
        self.stopped.time_to_stop() + self.runtime.map_or(Duration::ZERO, |(_, took)| took)
    }

    /// The thread that was last to stop, if that took at least 1 ms.
    #[cold]
    pub(crate) fn late_thread(&self) -> Option<String> {
        // Models have no clock, because their behaviour must not depend on time.
        let is_late = !IS_MODEL && self.stopped.time_to_stop() >= Duration::from_millis(1);
        is_late.then(|| self.core.coordinator.last_arrival()).flatten()
    }

    /// Calls `f` with the id of each mutator and the part of the mutator that belongs to the model.
    pub fn locals(&self, mut f: impl FnMut(ThreadId, &Local<M>)) {
        self.stopped.threads(|id, shared| f(id, &shared.local));
    }

    /// Calls `f` with the arena id and the thread of each mutator that is parked and continues when
    /// the world does.
    pub(crate) fn parked(&self, mut f: impl FnMut(u32, ThreadId)) {
        self.stopped.threads(|id, shared| {
            steps::took(1);
            if shared.parked.load(Ordering::Relaxed) {
                f(shared.arena_id, id);
            }
        });
    }

    /// Runs a job on this thread and up to `n - 1` others, as
    /// [`Workers::run`](crate::heap::workers::Workers::run) does.
    pub(crate) fn share(&self, n: usize, job: &Job<'_>) {
        let others = steps::HelperSteps::expect(n - 1);
        self.core
            .workers
            .run(n, self.arena_id, &|worker| others.part(worker.index != 0, || job(worker)));
        others.join();
    }

    #[cfg(feature = "cpython")]
    pub(crate) fn stopped(&self) -> &WorldStopped<'_, MutatorShared<M>> {
        &self.stopped
    }

    pub(crate) fn elapsed(&self) -> Duration {
        self.since.elapsed()
    }

    /// Whether the stop has lasted so long that its collection is reported as a slow one.
    pub(crate) fn is_slow(&self) -> bool {
        // As in `late_thread`.
        !IS_MODEL && self.elapsed() >= self.core.slow_collection
    }

    pub(crate) fn core(&self) -> &Core<M> {
        self.core
    }

    pub(crate) fn pages(&self) -> SpaceView<'_, M::Addresses> {
        // SAFETY: rule *stopped*: the threads that own pages stand still, and the collector itself
        // neither allocates nor frees cells in a stop.
        unsafe { SpaceView::new(&self.core.space) }
    }

    /// Calls `f` with the arena of each mutator. `f` uses no arena but its argument.
    pub(crate) fn arenas(&self, mut f: impl FnMut(&mut Arena)) {
        let _only = self.visit.lock();
        self.stopped.threads(|_, shared| {
            // SAFETY: rule *attached*: the world is stopped, so the owners of arenas stand still.
            // The thread that holds the stop is here, or runs a job that uses no arena, and of the
            // threads with this `World`, one holds the lock.
            shared.arena.with_mut(|arena| f(unsafe { &mut *arena }));
        });
    }
}

impl<M: ObjectModel> Drop for World<'_, M> {
    fn drop(&mut self) {
        event::resumed(self.elapsed());
        if let Some((local, _)) = self.runtime
            && let Err(payload) =
                guarded(|| RuntimeStopOf::<M>::resume_runtime(&self.core.model, local))
        {
            let reason = outside::panic_message(payload);
            outside::abort(format_args!("standstill: the runtime cannot be resumed: {reason}"));
        }
    }
}

impl<M: ObjectModel> ModelMutator<M> {
    /// Stops the world, so that every other thread of this heap parks at its next safepoint or is
    /// detached.
    ///
    /// # Errors
    ///
    /// If a thread has ended without dropping its mutator (it can never be stopped), if this
    /// thread's mutator is lent, or inside another stop.
    pub fn stop(&mut self) -> Result<World<'_, M>, StopError> {
        self.stop_by(StopPurpose::Request)
    }

    /// As [`stop`](Self::stop), but does not wait for the end of another stop. It does wait for
    /// attached threads.
    ///
    /// # Errors
    ///
    /// Those of [`stop`](Self::stop). [`StopError::Busy`] if another thread has stopped the world,
    /// or waits for its turn to do so.
    pub fn try_stop(&mut self) -> Result<World<'_, M>, StopError> {
        self.stop_by(StopRequest::from(StopPurpose::Request).if_free())
    }

    /// As [`stop`](Self::stop), but gives up if an attached thread has not come to a safepoint
    /// within `limit`. [`Participant::stop_for`](safepoint::Participant::stop_for) says when the
    /// limit begins. It does not limit the stop of a runtime that
    /// [stops its threads itself](crate::model::RuntimeStop).
    ///
    /// # Errors
    ///
    /// Those of [`stop`](Self::stop). [`StopError::TimedOut`] with the threads that are late. All
    /// threads run on then.
    pub fn stop_for(&mut self, limit: Duration) -> Result<World<'_, M>, StopError> {
        self.stop_by(StopRequest::from(StopPurpose::Request).within(limit))
    }

    /// Like [`stop`](Self::stop), for callers with exclusive access that use the mutator meanwhile.
    pub(crate) fn stop_here(&self) -> Result<World<'_, M>, StopError> {
        self.stop_by(StopPurpose::Inspection)
    }

    /// Stops the world, as [`stop`](Self::stop) does. The result does not borrow the mutator, so it
    /// can be kept across calls, for example in a record of the thread.
    ///
    /// While it lives, the mutator is lent, so that `safepoint` and `park` do nothing, `detach`
    /// panics, and a collection, a fork or another stop returns an error.
    /// [`current`](Self::current) returns `None`.
    ///
    /// # Errors
    ///
    /// * [`StopError::Nested`]: this thread has stopped the world of a heap already.
    /// * [`StopError::NoSafepoint`]: the mutator is lent, or the thread is inside a traversal or
    ///   keeps another thread suspended.
    /// * [`StopError::NotAttached`]: the thread has [left](Self::leave_for_now).
    /// * [`StopError::ThreadGone`]: a thread has ended without dropping its mutator, so no stop can
    ///   succeed any more.
    pub fn stop_owned(&mut self) -> Result<StoppedWorld<M>, StopError> {
        self.stop_unless(Self::is_lent)
    }

    /// Like [`stop_owned`](Self::stop_owned), for code that has no exclusive access to the mutator.
    /// It is also allowed inside [`Finalizers::finalize`](crate::model::Finalizers::finalize) and
    /// [`WeakRefs::call_back`](crate::model::WeakRefs::call_back), if a collection calls them. If
    /// the value outlives that call, the collection is abandoned and keeps its objects.
    ///
    /// # Errors
    ///
    /// Those of [`stop_owned`](Self::stop_owned). [`StopError::NoSafepoint`], also inside a
    /// finalizer, while a destruction, [`Verdicts::judge`](crate::model::Verdicts::judge),
    /// [`ObjectModel::clear`] or [`with_current`](Self::with_current) lends the mutator, or a
    /// [`current`](Self::current) guard lives.
    ///
    /// # Safety
    ///
    /// The caller is in none of the other methods of the model. The thread may wait detached for
    /// the end of another thread's stop. So no caller up the stack uses, afterwards, a reference to
    /// an object that is valid only until the next safepoint.
    pub unsafe fn stop_inside(&self) -> Result<StoppedWorld<M>, StopError> {
        self.stop_unless(Self::is_lent_otherwise)
    }

    fn stop_unless(
        &self,
        is_refused: impl FnOnce(&Self) -> bool,
    ) -> Result<StoppedWorld<M>, StopError> {
        if safepoint::is_stopping() {
            return Err(StopError::Nested);
        }
        if is_refused(self) {
            return Err(StopError::NoSafepoint);
        }
        // SAFETY: rule *lent*: the fields are dropped in this order, the world before the loan.
        let (world, lent) = unsafe { self.stop_lending()? };
        Ok(StoppedWorld { world, _lent: lent })
    }
}

/// The world of a heap is stopped, by [`ModelMutator::stop_owned`], until dropping this resumes it.
/// Neither `Send` nor `Sync`.
///
/// It must not be leaked, for example by [`std::mem::forget`], because the other threads of the
/// heap would stand still for ever, and the mutator would never end.
#[must_use = "the world runs again when this is dropped"]
pub struct StoppedWorld<M: ObjectModel> {
    // The order matters, because the loan, with which the mutator may end, must end last.
    world: World<'static, M>,
    _lent: Lent<M>,
}

impl<M: ObjectModel> StoppedWorld<M> {
    /// The thread that stopped the world.
    pub fn requester(&self) -> ThreadId {
        self.world.requester()
    }

    /// How long the stop took until the last thread parked, without the wait for another stop
    /// before.
    pub fn time_to_stop(&self) -> Duration {
        self.world.time_to_stop()
    }

    /// Calls `f` with the id of each mutator and the part of the mutator that belongs to the model.
    pub fn locals(&self, f: impl FnMut(ThreadId, &Local<M>)) {
        self.world.locals(f);
    }

    /// Resumes the world, as a drop does.
    pub fn resume(self) {}
}

impl<M: ObjectModel> fmt::Debug for StoppedWorld<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoppedWorld").field("requester", &self.requester()).finish_non_exhaustive()
    }
}
