//! A runtime may call the collector inside a stop of its own, although a collection must also call
//! code of the runtime and stop it once more. So only its first stop, with the phases `Merge` to
//! `Claim`, is inside that stop. Until the runtime runs again, a [`StoppedCollection`] holds the
//! collector lock and the unreachable objects for the other phases.

#![forbid(unsafe_code)]

use std::fmt;

use crate::collect::collection::{Collection, FirstStop, first_stop};
use crate::collect::reclaim::CollectorGuard;
use crate::heap::model::ObjectModel;
use crate::heap::mutator::ModelMutator;
use crate::heap::request::{Collect, CollectError};
use crate::report::facts::{CollectionKind, CollectionReport};
use crate::safepoint::StopError;

impl<M: ObjectModel> ModelMutator<M> {
    /// Begins a collection on a thread that has stopped the runtime
    /// ([`RuntimeStop`](crate::model::RuntimeStop)) for a reason of
    /// its own. Finds the unreachable objects, and stops no thread of the runtime.
    ///
    /// All other threads of the runtime wait for the end of its stop detached from the heap. The
    /// thread resumes the runtime before it finishes the collection
    /// ([`StoppedCollection::finish`](crate::StoppedCollection::finish)), because finalizers and
    /// clearing need a runtime that runs. The model's `prepare` is not called.
    ///
    /// # Errors
    ///
    /// As [`try_collect`](Self::try_collect). [`CollectError::Busy`] if another thread is
    /// collecting, has stopped the heap or is about to. This is so even if `what` says to wait,
    /// because that thread may wait for the runtime.
    pub fn collect_stopped(
        &mut self,
        what: Collect,
    ) -> Result<StoppedCollection<'_, M>, CollectError> {
        if self.is_lent() {
            return Err(StopError::NoSafepoint.into());
        }
        StoppedCollection::begin(self, what)
    }
}

/// The first half of a collection, which a thread has run inside its own stop of the runtime. See
/// [`ModelMutator::collect_stopped`](crate::model::ModelMutator::collect_stopped).
///
/// Dropping it does the same as [`finish`](Self::finish). If it is leaked, no other collection
/// runs, because it holds the collector lock.
#[must_use = "the runtime is resumed first, and then the collection is finished"]
pub struct StoppedCollection<'m, M: ObjectModel> {
    kind: CollectionKind,
    /// `None`: the rest has run.
    rest: Option<(Collection<'m, M>, FirstStop<M>)>,
}

impl<'m, M: ObjectModel> StoppedCollection<'m, M> {
    /// Runs the phases of the first stop, on a thread that has stopped the runtime.
    pub(crate) fn begin(m: &'m mut ModelMutator<M>, what: Collect) -> Result<Self, CollectError> {
        // Without a wait, because the thread that collects may be one of the stopped threads.
        let guard = CollectorGuard::try_acquire(m.core()).ok_or(CollectError::Busy)?;
        let mut begun = Collection::begin(m, guard, what);
        begun.m.free_left_memory();
        let world = begun.m.stop_in_runtime_stop(begun.open.stop_request())?;
        let first = first_stop(world, &mut begun.open.report, what);
        Ok(Self { kind: what.kind, rest: Some((begun, first)) })
    }

    /// Runs the rest of the collection: the start callbacks, weak callbacks, finalizers, the
    /// recheck in a stop of its own, clearing, and the stop callbacks. The runtime is running.
    pub fn finish(mut self) -> CollectionReport {
        let kind = self.kind;
        self.run_rest().unwrap_or_else(|| CollectionReport::new(kind))
    }

    /// Runs the rest, unless it has run.
    fn run_rest(&mut self) -> Option<CollectionReport> {
        let (mut collection, first) = self.rest.take()?;
        collection.runtime_resumed();
        Some(collection.finish(first))
    }
}

impl<M: ObjectModel> Drop for StoppedCollection<'_, M> {
    fn drop(&mut self) {
        self.run_rest();
    }
}

impl<M: ObjectModel> fmt::Debug for StoppedCollection<'_, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoppedCollection").field("kind", &self.kind).finish_non_exhaustive()
    }
}
