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
//! | `Recheck` | are followed | are reached, as objects with references from outside |
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

use crate::base::fallible::{self, NoMemory};
use crate::base::steps;
use crate::collect::candidates::Candidates;
use crate::collect::scope::{live, stopped_at};
use crate::collect::subset::Subset;
use crate::collect::traversal::{Abandoned, guard_traversal, tracer_of};
use crate::heap::model::ObjectModel;
use crate::heap::mutator::World;
use crate::object::live::Stopped;
use crate::object::state;
use crate::object::type_info::{Object, Tracer};

/// The granules of the candidates that the model reports as roots. No candidate is marked yet.
pub(crate) fn roots<M: ObjectModel>(
    world: &World<'_, M>,
    candidates: &Candidates,
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
    Ok(found)
}

/// Marks the members of the set that uncounted references from outside lead to, and adds them to
/// `reached`.
pub(crate) fn reach_from_outside<'w, M: ObjectModel>(
    world: &'w World<'w, M>,
    set: &Subset<'w, M>,
    tracer: &mut Tracer,
    reached: &mut Vec<Stopped<'w>>,
) -> Result<(), NoMemory> {
    let (space, model) = (&world.core().space, &world.core().model);
    let mut result = Ok(());
    let member = |address: usize| {
        let object = space.contains(address).then(|| stopped_at(world, space.granule(address)));
        object.flatten().filter(|&object| set.contains(*object))
    };
    let mut reach = |address: usize| {
        if let Some(object) = member(address)
            && set.reach(*object)
        {
            result = result.and(fallible::push(reached, object));
        }
    };
    model.roots(world, &|object| member(object.address()).is_some(), &mut |object| {
        reach(object.address());
    });
    if M::RECHECKS_UNCOUNTED {
        let mut lost_nothing = Ok(());
        live(world, |object, bits| {
            const HOLDER: u8 = state::TRACKED | state::DYING;
            if bits.get() & HOLDER != state::TRACKED || set.contains(*object) {
                return;
            }
            steps::took(1);
            tracer.begin(object.object());
            tracer.forget_uncounted();
            model.traverse(object, tracer);
            tracer.take_unreadable();
            lost_nothing = lost_nothing.and(tracer.lost_nothing());
            tracer.all_uncounted().for_each(&mut reach);
        });
        lost_nothing?;
    }
    result
}
