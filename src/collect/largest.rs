//! The types with the most bytes, for the report of a slow collection.
//!
//! The reader of such a report asks first what the heap consists of. A census would answer that by
//! another stop of the same length. So the slow stop itself visits a sample: up to 32 pages, evenly
//! spaced. For example, of 3,200 pages it visits each hundredth, and multiplies by 100. These have
//! at most 65,536 objects, of the smallest size, however large the heap is.

#![forbid(unsafe_code)]

use std::borrow::Cow;
use std::cmp::Reverse;
use std::collections::HashMap;

use crate::base::fallible::{self, NoMemory};
use crate::base::sync::Ordering;
use crate::collect::calls::{self, Abandoned, guard_traversal};
use crate::collect::scope::{Scope, stopped_at};
use crate::heap::model::ObjectModel;
use crate::heap::world::World;
use crate::object::state;
use crate::report::facts::{CollectionKind, TypeShare};

/// The most pages that are visited.
const SAMPLE: usize = 32;

/// The most types that a report names.
const NAMED: usize = 10;

/// The types with the most bytes, the largest first.
#[cold]
pub(super) fn types<M: ObjectModel>(world: &World<'_, M>) -> Result<Vec<TypeShare>, Abandoned> {
    let space = &world.core().space;
    let scope = Scope::new(space, CollectionKind::Full)?;
    let pages = scope.pages();
    let every = pages.len().div_ceil(SAMPLE).max(1);
    let sample = pages.iter().step_by(every);
    let scaled = |figure: usize| figure * pages.len() / sample.len().max(1);
    // The panic of a model's `type_name` ends the sample, not the collection.
    let counted = guard_traversal(world, &mut calls::tracer(space), |_| {
        let mut types: HashMap<Cow<'static, str>, (usize, usize)> = HashMap::new();
        // Neighbours are mostly of one type, so their name is looked up once.
        let (mut last, mut run): (Cow<'static, str>, _) = ("".into(), (0, 0));
        let mut add = |name, (objects, bytes)| {
            types.try_reserve(1)?;
            let sum = types.entry(name).or_default();
            *sum = (sum.0 + objects, sum.1 + bytes);
            Ok::<_, NoMemory>(())
        };
        for &page in sample.clone() {
            let bytes = space.page(page as usize).shape().footprint().bytes();
            for granule in space.objects(page as usize) {
                // Relaxed: in a stop.
                let is_dying = space.states()[granule].load(Ordering::Relaxed) & state::DYING != 0;
                let Some(object) = stopped_at(world, granule).filter(|_| !is_dying) else {
                    continue;
                };
                let name = world.core().model.type_name(object.live());
                if !std::ptr::eq(&*name, &*last) {
                    add(std::mem::replace(&mut last, name), std::mem::take(&mut run))?;
                }
                run = (run.0 + 1, run.1 + bytes);
            }
        }
        add(last, run)?;
        types.retain(|_, (objects, _)| *objects > 0);
        Ok::<_, NoMemory>(types)
    })??;
    let mut shares = Vec::new();
    for (type_name, (objects, bytes)) in counted {
        let share = TypeShare { type_name, objects: scaled(objects), bytes: scaled(bytes) };
        fallible::push(&mut shares, share)?;
    }
    shares.sort_unstable_by(|a, b| {
        (Reverse(a.bytes), &a.type_name).cmp(&(Reverse(b.bytes), &b.type_name))
    });
    shares.truncate(NAMED);
    Ok(shares)
}
