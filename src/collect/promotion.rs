//! Promotions: new objects become old without a collection.

#![forbid(unsafe_code)]

use std::sync::Arc;

use crate::base::sync::Ordering;
use crate::collect::collection::{CollectError, prepare};
use crate::collect::reclaim::CollectorGuard;
use crate::collect::{calls, collection, open_report, sweep};
use crate::heap::model::ObjectModel;
use crate::heap::mutator::ModelMutator;
use crate::heap::pacing::Due;
use crate::report::event;
use crate::report::facts::CollectionKind;
use crate::safepoint::{StopError, StopPurpose};

/// A young collection or a promotion is due, and the model has neither: the new objects count as
/// old from now on, so that a full collection becomes due. If another thread collects, it counts
/// them.
pub(crate) fn skip_young<M: ObjectModel>(m: &ModelMutator<M>) {
    if let Some(_guard) = CollectorGuard::try_acquire(m.core()) {
        m.core().pace.skip_young();
    }
}

/// Makes all new objects old without traversing them, if a promotion is due and no other thread
/// collects: see [`pacing`](crate::heap::pacing). A promotion is no collection, so it calls no
/// callbacks. Its stop merges counts, as the first stop of a collection does.
pub(crate) fn promote<M: ObjectModel>(m: &mut ModelMutator<M>) -> Result<(), CollectError> {
    let _guard = CollectorGuard::try_acquire(m.core()).ok_or(CollectError::Busy)?;
    // Another thread may have collected or promoted since this thread found the promotion due.
    if m.core().pace.due() != Due::Promotion {
        return Ok(());
    }
    Ok(promote_now(m)?)
}

/// Promotes all new objects. The caller holds the collector lock.
pub(crate) fn promote_now<M: ObjectModel>(m: &mut ModelMutator<M>) -> Result<(), StopError> {
    let core = Arc::clone(m.core());
    let _span = event::promotion(&core.name);
    prepare(m);
    m.free_left_memory();
    let mut dead = Vec::new();
    let world = m
        .stop_for(StopPurpose::Promotion)
        .inspect_err(|error| open_report::stop_failed(&core, CollectionKind::Young, error))?;
    #[expect(
        clippy::let_underscore_must_use,
        reason = "without memory for its list, the next collection merges"
    )]
    let _ = collection::merge_counts(&world, &mut dead);
    let promoted = sweep::promote(&world);
    core.pace.after_promotion(promoted);
    // Relaxed: figures.
    core.totals.promotions.fetch_add(1, Ordering::Relaxed);
    if let Some(verifier) = core.verifier {
        verifier.verify(&world, "after a promotion");
    }
    let stopped = world.elapsed();
    drop(world);
    collection::destroy_merged(dead, m);
    calls::resumed(m);
    event::promoted(promoted, stopped);
    Ok(())
}
