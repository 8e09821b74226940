//! The steps of every stop of a collection.

#![forbid(unsafe_code)]

use std::time::{Duration, Instant};

use crate::base::event::{self, CollectionReport, During, Phase};
use crate::base::fallible::NoMemory;
use crate::collect::calls::call;
use crate::collect::rules;
use crate::collect::scope::state_of;
use crate::heap::model::ObjectModel;
use crate::heap::mutator::ModelMutator;
use crate::heap::mutator::World;
use crate::object::live::DeadObject;
use crate::object::state;

/// Makes all counts exact. An object with count 0 is dying from now on, and not a candidate.
pub(crate) fn merge_counts<M: ObjectModel>(
    world: &World<'_, M>,
    dead: &mut Vec<DeadObject>,
) -> Result<(), NoMemory> {
    let _phase = event::phase(Phase::Merge);
    let core = world.core();
    let before = dead.len();
    let limit = core.model.pending(world);
    dead.try_reserve(limit)?;
    core.model.merge(world, dead);
    rules::merged(world, &dead[before..], limit);
    for object in &dead[before..] {
        state_of(&core.space, object.object()).set(state::DYING);
    }
    Ok(())
}

/// Resumes the world. The report gets the duration of the stop.
pub(crate) fn resume<M: ObjectModel>(world: World<'_, M>, report: &mut CollectionReport) {
    report.time_to_stop = report.time_to_stop.max(world.time_to_stop());
    let since = Instant::now();
    let stopped = world.elapsed();
    drop(world);
    if report.stops.try_reserve(1).is_ok() {
        report.stops.push(stopped + since.elapsed().min(Duration::from_millis(1)));
    }
}

/// Destroys the objects that a merge has found dead, also when the collection was abandoned.
pub(crate) fn destroy_merged<M: ObjectModel>(dead: Vec<DeadObject>, m: &ModelMutator<M>) {
    for object in dead {
        state_of(&m.core().space, object.object()).unset(state::DYING);
        call(m, During::Drop, "destroy_merged", |model| model.destroy_merged(object, m));
    }
}
