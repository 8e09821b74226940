//! The model's corrections of counts ([`ObjectModel::adjustments`]), by granule.
//!
//! A model may report one for each of many objects: `standstill-gc` does for each code object and
//! class of a program. Most of them are reachable from named roots. So a collection asks when these
//! are marked, and keeps the corrections of the candidates that are left.

#![forbid(unsafe_code)]

use std::collections::HashMap;

use crate::base::fallible::NoMemory;
use crate::heap::model::ObjectModel;
use crate::heap::mutator::World;

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
        if M::ADJUSTS_COUNTS {
            let space = &world.core().space;
            world.core().model.adjustments(world, &mut |object, by| {
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
