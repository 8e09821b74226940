//! A collection that begins while the runtime is stopped.
//!
//! A runtime may call the collector inside a stop of its own. The first stop of the collection is
//! then inside that stop: the phases `Merge` to `Claim` run. The other phases run code of the
//! runtime, and stop it once more. So they wait until the runtime runs again, and the value of this
//! module holds the collector lock and the unreachable objects meanwhile.

#![forbid(unsafe_code)]

use std::fmt;
use std::sync::Arc;

use crate::base::event::{CollectionKind, CollectionReport};
use crate::collect::reclaim::{self, CollectorGuard};
use crate::collect::{
    Collect, CollectError, FirstStop, ReclaimedBy, calls, find_in_stop, find_rest, open_report,
    return_memory,
};
use crate::heap::model::ObjectModel;
use crate::heap::mutator::ModelMutator;
use crate::heap::reclaim_queue::OpenReport;

/// The first half of a collection, which a thread has run inside its own stop of the runtime. See
/// [`ModelMutator::collect_stopped`](crate::model::ModelMutator::collect_stopped).
///
/// Dropping it does the same as [`finish`](Self::finish). If it is leaked, no other collection
/// runs.
#[must_use = "the runtime is resumed first, and then the collection is finished"]
pub struct StoppedCollection<'m, M: ObjectModel> {
    m: &'m mut ModelMutator<M>,
    kind: CollectionKind,
    /// `None`: the rest has run.
    rest: Option<(FirstStop<M>, OpenReport)>,
}

impl<'m, M: ObjectModel> StoppedCollection<'m, M> {
    /// Runs the phases of the first stop. The calling thread has stopped the runtime.
    pub(crate) fn begin(m: &'m mut ModelMutator<M>, what: Collect) -> Result<Self, CollectError> {
        let core = Arc::clone(m.core());
        // Without a wait: the thread that collects may be one of the stopped threads.
        if !core.collector_lock.try_acquire() {
            return Err(CollectError::Busy);
        }
        let guard = CollectorGuard(&core);
        let mut open = open_report::open(m, what);
        m.free_left_memory();
        let Some(world) = m.stop_in_runtime_stop()? else { return Err(CollectError::Busy) };
        let first = find_in_stop(world, &mut open.report, ReclaimedBy::Collector, what.workers);
        std::mem::forget(guard);
        Ok(Self { kind: what.kind, m, rest: Some((first, open)) })
    }

    /// Runs the rest of the collection: the start callbacks, weak callbacks, finalizers, the
    /// recheck in a stop of its own, clearing, and the stop callbacks. The runtime is running.
    pub fn finish(mut self) -> CollectionReport {
        let kind = self.kind;
        self.run_rest().unwrap_or_else(|| CollectionReport::new(kind))
    }

    /// Runs the rest, unless it has run.
    fn run_rest(&mut self) -> Option<CollectionReport> {
        let (first, mut open) = self.rest.take()?;
        let m = &mut *self.m;
        let core = Arc::clone(m.core());
        let guard = CollectorGuard(&core);
        let begun = calls::begin_holding_up(m);
        open_report::announce(m, &open);
        let entered = open.span.enter();
        let found = find_rest(m, &mut open.report, first);
        drop(entered);
        let report = match found {
            Ok(Some(garbage)) => {
                open.report.uncollectable = garbage.kept;
                let report = reclaim::at_once(garbage, open, m);
                return_memory(m);
                report
            }
            Ok(None) => open_report::close(m, open, None),
            Err(refused) => open_report::close(m, open, Some(&refused)),
        };
        drop(guard);
        calls::report_held_up(m, begun);
        Some(report)
    }
}

impl<M: ObjectModel> Drop for StoppedCollection<'_, M> {
    fn drop(&mut self) {
        self.run_rest();
    }
}

impl<M: ObjectModel> fmt::Debug for StoppedCollection<'_, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("StoppedCollection").field(&self.m).finish()
    }
}
