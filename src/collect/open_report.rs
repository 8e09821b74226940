//! The report of a collection, from the start callbacks to the stop callbacks.

#![forbid(unsafe_code)]

use std::time::{Duration, Instant};

use crate::base::sync::Ordering;
use crate::collect::calls::Abandoned;
use crate::heap::core::{COLLECT, Core};
use crate::heap::model::ObjectModel;
use crate::heap::mutator::ModelMutator;
use crate::heap::parts::*;
use crate::heap::reclaim_queue::OpenReport;
use crate::heap::request::Collect;
use crate::report::facts::{
    CollectionEvent, CollectionKind, CollectionReason, CollectionReport, PhaseTimes,
};
use crate::report::{event, log};
use crate::safepoint::StopError;

/// The least time between the parts of a proposal, so that the program goes on in between.
const BETWEEN_PARTS: Duration = Duration::from_millis(1);

/// Opens the report, while the caller holds the collector lock. A heap without young collections
/// runs a full one instead.
pub(crate) fn open<M: ObjectModel>(m: &ModelMutator<M>, what: Collect) -> OpenReport {
    let kind = kind::<M>(what);
    let mut report = CollectionReport::new(kind);
    report.generation = usize::from(what.generation);
    report.reason = what.reason;
    (report.because, report.tag) = (what.because, what.tag);
    let stop_limit = match what.reason {
        CollectionReason::Requested => what.stop_limit,
        _ => m.core().stop_limit,
    };
    let span = event::collection(kind, &m.core().name);
    let (quiet, begun) = (what.quiet, Instant::now());
    let (external_before, phases_before) = sums(m);
    m.core().timings.forget_calls();
    OpenReport {
        report,
        quiet,
        begun,
        span,
        stop_limit,
        external_before,
        phases_before,
        rest: None,
        is_superseded: false,
    }
}

/// The extent of a collection in a heap of this model.
pub(super) fn kind<M: ObjectModel>(what: Collect) -> CollectionKind {
    if collects_young::<M>() { what.kind } else { CollectionKind::Full }
}

/// The heap's sums, of which a collection adds a part.
fn sums<M: ObjectModel>(m: &ModelMutator<M>) -> (usize, PhaseTimes) {
    let core = m.core();
    // Relaxed: the collector lock orders the collections, and the threads that have reclaimed
    // garbage have finished their batches, under a lock.
    let external = core.totals.external_reclaimed.load(Ordering::Relaxed);
    (external, core.timings.phases.sums())
}

/// Adds to the report what the heap's sums have grown since the collector lock was acquired.
fn add_sums<M: ObjectModel>(m: &ModelMutator<M>, open: &mut OpenReport) {
    let (external, phases) = sums(m);
    open.report.external_bytes += external.wrapping_sub(open.external_before);
    open.report.phases = open.report.phases.plus(phases.since(open.phases_before));
}

/// The collector lock is about to be released, and other collections may come before the rest of
/// this one.
pub(super) fn pause<M: ObjectModel>(m: &ModelMutator<M>, open: &mut OpenReport) {
    add_sums(m, open);
    open.report.slowest = m.core().timings.take_calls();
}

/// The collector lock has been acquired again, so from now on the figures of the heap are those of
/// this collection.
pub(super) fn resume<M: ObjectModel>(m: &ModelMutator<M>, open: &mut OpenReport) {
    (open.external_before, open.phases_before) = sums(m);
    m.core().timings.forget_calls();
    open.report.slowest.iter().for_each(|call| m.core().timings.note_call(call));
}

/// Puts the collection off for a later safepoint of any thread, after so long at the earliest. The
/// caller holds the collector lock, and releases it now.
pub(super) fn put_off<M: ObjectModel>(m: &ModelMutator<M>, mut open: OpenReport, after: Duration) {
    pause(m, &mut open);
    m.core().collector_lock.keep_unfinished(open, after, m.thread_id());
    m.raise(COLLECT);
}

/// Takes up the collection that was put off, if there is one, while the caller holds the collector
/// lock.
pub(super) fn take_up<M: ObjectModel>(m: &ModelMutator<M>) -> Option<OpenReport> {
    let mut open = m.core().collector_lock.take_unfinished()?;
    resume(m, &mut open);
    Some(open)
}

/// Puts the collection off if its child has proposed more, and closes the report otherwise. The
/// caller holds the collector lock, and releases it now.
pub(super) fn put_off_or_close<M: ObjectModel>(m: &ModelMutator<M>, open: OpenReport) {
    if open.has_steps() {
        put_off(m, open, BETWEEN_PARTS);
    } else {
        close(m, open, None);
    }
}

/// Calls the start callbacks: the hook of the heap, and then its observer.
pub(crate) fn announce<M: ObjectModel>(m: &ModelMutator<M>, open: &OpenReport) {
    let core = m.core();
    let _entered = open.span.enter();
    core.hooks.collection(&CollectionEvent::Start(open.report.kind));
    let _lent = m.lend();
    if let Some(observer) = &core.observer {
        observer.begins(&core.hooks, open.report.generation, open.quiet);
    }
}

/// Handles a stop that failed. If no stop can succeed any more, or if a thread was late, it
/// postpones the next collection, because otherwise each safepoint would try again.
#[cold]
pub(crate) fn stop_failed<M: ObjectModel>(core: &Core<M>, kind: CollectionKind, error: &StopError) {
    if matches!(error, StopError::ThreadGone { .. } | StopError::TimedOut { .. }) {
        core.pace.after_nothing(kind);
    }
}

/// Closes the report: completes its figures and calls the stop callbacks, while the caller still
/// holds the collector lock. A collection that could not stop the world is not counted.
pub(crate) fn close<M: ObjectModel>(
    m: &ModelMutator<M>,
    mut open: OpenReport,
    refused: Option<&StopError>,
) -> CollectionReport {
    let core = m.core();
    if let Some(verifier) = core.verifier {
        verifier.ends(m);
    }
    add_sums(m, &mut open);
    if let Some(proposal) = open.proposal() {
        core.pace.after_child(proposal.candidates(), open.report.unreachable, proposal.pace);
    }
    let OpenReport { mut report, quiet, begun, span, is_superseded, .. } = open;
    core.pace.after_reclaim(report.resurrected + report.uncollectable);
    if let Some(observer) = &core.observer {
        observer.after_collection();
    }
    report.duration = begun.elapsed();
    if let Some(error) = refused {
        // A request with a short limit of its own tells nothing about the heap's collections.
        let is_own = report.reason != CollectionReason::Requested;
        if is_own || !matches!(error, StopError::TimedOut { .. }) {
            stop_failed(core, report.kind, error);
        }
        report.abandoned = Some(crate::base::fallible::words!("{error}"));
    } else {
        if let Some(observer) = &core.observer {
            observer.record(&report);
        }
        // Relaxed: figures.
        core.totals.collected.fetch_add(report.collected, Ordering::Relaxed);
        // One whose place another full collection takes has found nothing yet.
        if report.kind == CollectionKind::Full && !is_superseded {
            if core.space.after_full() {
                core.workers.forget_tables();
            }
            // The garbage is gone, and still little memory is left.
            if core.space.is_tight() {
                core.distress.tell();
            }
        }
        if core.pace.is_full_due() {
            // It is requested here and not by the next allocation, which may be far away.
            m.raise(COLLECT);
        }
    }
    core.timings.close(&mut report);
    let _entered = span.enter();
    event::collected(&span, &report);
    log::collection(&core.name, &report);
    #[cfg(feature = "metrics")]
    crate::report::recorder::collection(
        &core.name,
        &report,
        &crate::report::recorder::HeapSizes {
            in_use: core.space.in_use_bytes(),
            committed: core.space.committed_bytes(),
            external: core.space.limit.external_bytes(),
            limit: core.space.limit.bytes(),
            threads: core.coordinator.threads(),
        },
    );
    if report.cost() >= core.slow_collection {
        event::slow_collection(&core.name, &report);
    }
    core.hooks.collection(&CollectionEvent::Stop(&report));
    let _lent = m.lend();
    if let Some(observer) = &core.observer {
        observer.finishes(&core.hooks, &report, quiet);
    }
    report
}

/// Records that the collection was abandoned, and reports the reason.
pub(crate) fn abandon<M: ObjectModel>(
    m: &ModelMutator<M>,
    report: &mut CollectionReport,
    why: Abandoned,
) {
    m.core().hooks.unraisable(
        why.during,
        why.type_name,
        crate::base::fallible::words!("the collection was abandoned: {}", why.reason),
    );
    report.abandoned = Some(why.reason);
}
