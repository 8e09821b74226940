//! Objects that references without a count keep alive.
//!
//! A model names them in two ways: a traversal reports uncounted edges
//! ([`Tracer::uncounted`]), and [`ObjectModel::roots`] reports objects. Each phase treats them so:
//!
//! | phase | uncounted edges of a traversed object | reported roots |
//! |---|---|---|
//! | `Premark` | are followed; those to assumed roots are not counted | are marked first |
//! | `Count` | are ignored; kept, if marking does not traverse again | are marked, so not counted |
//! | `Mark` | are followed | |
//! | `Claim` | are followed from legacy finalizers | |
//! | `Recheck` | are followed | are marked first, as are the targets of other objects |
//!
//! If marks may be lost in `Premark` ([*plain marks*](super::candidates#plain-marks)), these
//! targets are marked again at its end.
//!
//! An object with an unreadable field loses its counted edges, because their targets then have
//! references that no candidate explains. Its uncounted edges stay: nothing else shows that their
//! targets are alive.
//!
//! # Uncounted edges of objects that are not traversed
//!
//! An old object can hold the only reference to a young one, without a count. So such a model runs
//! no young collections, unless it reports these targets as roots
//! ([`ObjectModel::COLLECTS_YOUNG`]). In the recheck all objects outside the set are in the same
//! position: a finalizer can store an uncounted reference to a member in any of them. If the model
//! does not report these targets ([`ObjectModel::RECHECKS_UNCOUNTED`]), the recheck traverses all
//! tracked objects for their uncounted edges alone.

#![forbid(unsafe_code)]

use crate::base::fallible;
use crate::base::steps;
use crate::collect::candidates::Candidates;
use crate::collect::scope::{Selection, live};
use crate::collect::traversal::{Abandoned, guard_traversal, tracer_of};
use crate::heap::model::ObjectModel;
use crate::heap::mutator::World;
use crate::object::state;
use crate::object::type_info::Object;

/// The granules of the candidates that the model reports as roots, and of the claimed objects that
/// uncounted references from other objects lead to. No candidate is marked yet.
pub(crate) fn roots<M: ObjectModel>(
    world: &World<'_, M>,
    candidates: &Candidates,
    selection: Selection,
) -> Result<Vec<u32>, Abandoned> {
    let space = &world.core().space;
    let granule = |object: Object| {
        let address = object.address();
        let granule = space.contains(address).then(|| space.granule(address));
        granule.filter(|&granule| candidates.is_unmarked(granule))
    };
    let mut found = Vec::new();
    let mut result = Ok(());
    let is_candidate = |object| granule(object).is_some();
    let mut report = |object| {
        if let Some(granule) = granule(object) {
            result = result.and(fallible::push(&mut found, granule as u32));
        }
    };
    guard_traversal(world, &mut tracer_of(world), |_| {
        world.core().model.roots(world, &is_candidate, &mut report);
    })?;
    result?;
    if M::RECHECKS_UNCOUNTED && selection == Selection::Claimed {
        let (space, model) = (&world.core().space, &world.core().model);
        guard_traversal(world, &mut tracer_of(world), |tracer| {
            let mut result = Ok(());
            live(world, |object, bits| {
                const HOLDER: u8 = state::TRACKED | state::UNREACHABLE | state::DYING;
                if bits.get() & HOLDER != state::TRACKED {
                    return;
                }
                steps::took(1);
                tracer.begin(object.object());
                tracer.forget_uncounted();
                model.traverse(object, tracer);
                tracer.take_unreadable();
                result = result.and(tracer.lost_nothing());
                let granules = tracer.all_uncounted().map(|address| space.granule(address));
                for granule in granules.filter(|&granule| candidates.is_unmarked(granule)) {
                    result = result.and(fallible::push(&mut found, granule as u32));
                }
            });
            result
        })??;
    }
    Ok(found)
}
