//! The check of cleared garbage in checked mode.
//!
//! A clear handler may drop a reference and leave its address in the field. The next user of the
//! field would read freed memory, so the model can have cleared objects traversed before any of
//! them is released. This check, and those of the [verifier](crate::verify), compare exact counts,
//! for which they need stops of their own. The report of the collection does not contain these
//! stops.

#![forbid(unsafe_code)]

use crate::collect::calls::{self, Abandoned, edges_of, guard_traversal, tracer_of};
use crate::collect::collection;
use crate::collect::scope::{state_of, stopped_at};
use crate::heap::model::{Count, ObjectModel};
use crate::heap::mutator::ModelMutator;
use crate::heap::parts::*;
use crate::heap::world::World;
use crate::object::address::Object;
use crate::object::live::Live;
use crate::object::state::{TRACKED, UNREACHABLE};
use crate::object::tracer::Tracer;

/// Stops the world, makes counts exact, and calls `f`. `None` without a stop.
///
/// The thread still has its collection's references to the objects `claimed`. The child of a fork
/// must know of them, because its stop may come first while this thread waits for its own.
pub(crate) fn in_stop<M: ObjectModel, R>(
    m: &ModelMutator<M>,
    claimed: &[Live<'_>],
    f: impl FnOnce(&World<'_, M>) -> R,
) -> Option<R> {
    let announced = m.core().collector_lock.parks(claimed);
    let stopped = m.stop_here();
    drop(announced);
    let mut dead = Vec::new();
    let world = stopped.ok()?;
    let result = collection::merge_unmeasured(&world, &mut dead).ok().map(|()| f(&world));
    drop(world);
    collection::destroy_merged(dead, m);
    calls::resumed(m);
    result
}

/// Traverses cleared objects in a stop, before one of them is released, if the model asks for that.
/// `held`: the references that the collection still has to each object of its garbage.
///
/// The tracer looks up each address that a handler visits. An object of the garbage is still alive,
/// so a dangling field can refer to it. Its count reveals that, because it is less than the visits
/// and the collection's reference together.
pub(super) fn examine<M: ObjectModel>(m: &ModelMutator<M>, objects: &[Live<'_>], held: i64) {
    let core = m.core();
    if !objects.iter().any(|&object| ChecksOf::<M>::examines_cleared(&core.model, object)) {
        return;
    }
    let failed = in_stop(m, objects, |world| {
        let mut tracer = tracer_of(world);
        guard_traversal(world, &mut tracer, |tracer| {
            for object in objects
                .iter()
                .filter(|&&object| ChecksOf::<M>::examines_cleared(&core.model, object))
            {
                // A handler may have untracked the object.
                if state_of(&core.space, object.object()).get() & TRACKED != 0 {
                    examine_one(world, object.object(), tracer, held);
                }
            }
        })
        .err()
    });
    if let Some(Abandoned { during, type_name, reason }) = failed.flatten() {
        core.hooks.unraisable(during, type_name, reason);
    }
}

fn examine_one<M: ObjectModel>(
    world: &World<'_, M>,
    object: Object,
    tracer: &mut Tracer,
    held: i64,
) {
    edges_of(world, object, tracer);
    let core = world.core();
    let at = |address| stopped_at(world, core.space.granule(address));
    let Some(object) = at(object.address()) else { return };
    for &edge in tracer.edges() {
        let Some(target) = at(edge) else { continue };
        let is_garbage = state_of(&core.space, target.object()).get() & UNREACHABLE != 0;
        let visits = tracer.edges().iter().filter(|&&other| other == edge).count() as i64;
        if is_garbage
            && let Count::Exact(count) = core.model.count(target)
            && count < held + visits
        {
            ChecksOf::<M>::dangles(&core.model, object, target.object());
        }
    }
}
