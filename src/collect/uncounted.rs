//! Objects that references without a count keep alive.
//!
//! A model names them in two ways: a traversal reports uncounted edges ([`Tracer::uncounted`]), and
//! [`Uncounted::roots`](crate::model::Uncounted::roots) reports objects. Each phase treats them so:
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
//! ([`Uncounted::COLLECTS_YOUNG`](crate::model::Uncounted::COLLECTS_YOUNG)). In the recheck all
//! objects outside the set are in the same position: a finalizer can store an uncounted reference
//! to a member in any of them. If the model does not report these targets
//! ([`Uncounted::RECHECKS`](crate::model::Uncounted::RECHECKS)), the recheck traverses all tracked
//! objects for their uncounted edges alone.

#![forbid(unsafe_code)]

use std::collections::HashMap;

use crate::base::fallible::NoMemory;
use crate::base::{fallible, steps};
use crate::collect::candidates::Candidates;
use crate::collect::scope::{Selection, live};
use crate::collect::traversal::{Abandoned, guard_traversal, tracer_of};
use crate::heap::model::ObjectModel;
use crate::heap::parts::*;
use crate::heap::world::World;
use crate::object::address::Object;
use crate::object::state;

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
        UncountedOf::<M>::roots(&world.core().model, world, &is_candidate, &mut report);
    })?;
    result?;
    if UncountedOf::<M>::RECHECKS && selection == Selection::Claimed {
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

/// The corrections of some objects. An object without one has the correction 0.
#[derive(Default)]
pub(crate) struct Adjustments(HashMap<u32, i64>);

impl Adjustments {
    /// Asks the model. Keeps the corrections of the granules for which `is_wanted` returns `true`.
    pub(crate) fn ask<M: ObjectModel>(
        world: &World<'_, M>,
        is_wanted: impl Fn(usize) -> bool,
    ) -> Result<Self, NoMemory> {
        let (mut by_granule, mut result) = (HashMap::new(), Ok(()));
        if AdjustedOf::<M>::PRESENT {
            let space = &world.core().space;
            AdjustedOf::<M>::adjustments(&world.core().model, world, &mut |object, by| {
                if !space.contains(object.address()) {
                    return;
                }
                let granule = space.granule(object.address());
                if !is_wanted(granule) {
                    return;
                }
                match by_granule.try_reserve(1) {
                    Ok(()) => *by_granule.entry(granule as u32).or_default() += by,
                    Err(error) => result = Err(error.into()),
                }
            });
        }
        result.map(|()| Self(by_granule))
    }

    /// The correction of the object at a granule.
    #[inline(always)]
    pub(crate) fn of(&self, granule: usize) -> i64 {
        self.0.get(&(granule as u32)).copied().unwrap_or_default()
    }

    /// The granules with corrections, in no order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, i64)> {
        self.0.iter().map(|(&granule, &by)| (granule, by))
    }
}
