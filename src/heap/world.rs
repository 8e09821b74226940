//! The proof that the world is stopped.

use std::time::{Duration, Instant};

use crate::base::event::{self, guarded};
use crate::base::steps;
use crate::base::sync::{Mutex, Ordering};
use crate::heap::core::{Core, MutatorShared};
use crate::heap::helpers::Job;
use crate::heap::model::ObjectModel;
use crate::memory::arena::Arena;
use crate::memory::stopped::StoppedSpace;
use crate::safepoint::{ThreadId, WorldStopped};

/// Proof that the world is stopped, with access to the data of the stopped threads. Dropping it
/// resumes the world.
#[derive(Debug)]
pub struct World<'a, M: ObjectModel> {
    pub(super) stopped: WorldStopped<'a, MutatorShared<M>>,
    pub(super) core: &'a Core<M>,
    pub(super) requester: ThreadId,
    /// The arena of the thread that stopped the world.
    pub(super) arena_id: u32,
    pub(super) since: Instant,
    /// If the runtime is stopped too: the data of the thread that stopped both, and how long the
    /// runtime took.
    pub(super) runtime: Option<(&'a M::Local, Duration)>,
    /// Held by the thread that visits the arenas: workers share a `World`.
    pub(super) visit: Mutex<()>,
}

impl<M: ObjectModel> World<'_, M> {
    /// The thread that stopped the world.
    pub fn requester(&self) -> ThreadId {
        self.requester
    }

    /// How long the stop took until the last thread parked. A wait for another stop before is not
    /// included.
    pub fn time_to_stop(&self) -> Duration {
        self.stopped.time_to_stop() + self.runtime.map_or(Duration::ZERO, |(_, took)| took)
    }

    /// Calls `f` with the id of each mutator and the part of the mutator that belongs to the model.
    pub fn locals(&self, mut f: impl FnMut(ThreadId, &M::Local)) {
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

    /// Runs a job on this thread and up to `n - 1` others; see
    /// [`Workers::run`](crate::heap::workers::Workers::run).
    pub(crate) fn share(&self, n: usize, job: &Job<'_>) {
        let others = steps::HelperSteps::expect(n - 1);
        self.core
            .workers
            .run(n, self.arena_id, &|worker| others.part(worker.index != 0, || job(worker)));
        others.join();
    }

    /// The stop.
    #[cfg(feature = "cpython")]
    pub(crate) fn stopped(&self) -> &WorldStopped<'_, MutatorShared<M>> {
        &self.stopped
    }

    /// The time since the world was stopped.
    pub(crate) fn elapsed(&self) -> Duration {
        self.since.elapsed()
    }

    pub(crate) fn core(&self) -> &Core<M> {
        self.core
    }

    /// The pages of the heap.
    pub(crate) fn pages(&self) -> StoppedSpace<'_, M::Addresses> {
        // SAFETY: rule *stopped*: the threads that own pages stand still. The collector itself
        // neither allocates nor frees cells in a stop.
        unsafe { StoppedSpace::new(&self.core.space) }
    }

    /// Calls `f` with the arena of each mutator. `f` uses no arena but its argument.
    pub(crate) fn arenas(&self, mut f: impl FnMut(&mut Arena)) {
        let _only = self.visit.lock();
        self.stopped.threads(|_, shared| {
            // SAFETY: rule *attached*: the world is stopped, so the owners of arenas stand still.
            // The thread that holds the stop is here, or runs a job that uses no arena. Of the
            // threads with this `World`, one holds the lock.
            shared.arena.with_mut(|arena| f(unsafe { &mut *arena }));
        });
    }
}

impl<M: ObjectModel> Drop for World<'_, M> {
    fn drop(&mut self) {
        event::resumed(self.elapsed());
        if let Some((local, _)) = self.runtime
            && let Err(payload) = guarded(|| self.core.model.resume_runtime(local))
        {
            let reason = event::panic_message(payload);
            event::abort(format_args!("standstill: the runtime cannot be resumed: {reason}"));
        }
    }
}
