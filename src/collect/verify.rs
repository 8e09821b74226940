//! Looking at a whole heap for what must not be: for stress mode, tests, and
//! [`Mutator::verify`](crate::Mutator::verify).

use std::collections::HashMap;

use crate::collect::count::{guard_traversal, object_at};
use crate::model::ObjectModel;
use crate::mutator::World;
use crate::object::Tracer;
use crate::sync::Ordering;
use crate::tracked::{DYING, LIVE, State, TRACKED, UNREACHABLE};

/// How much to look at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Depth {
    /// What holds whatever user code does: state bytes, tables, and that edges lead to live objects.
    Structure,
    /// Also that no object is visited more often than it is referred to, which a wrong traversal can
    /// break.
    Counts,
}

/// Checks the heap; the error names the first thing found.
pub(crate) fn check<M: ObjectModel>(world: &World<'_, M>, depth: Depth) -> Result<(), String> {
    let core = world.core();
    let space = &core.space;
    let (states, counts) = (space.states(), space.counts());
    if let Some(granule) = counts.iter().position(|c| c.load(Ordering::Relaxed) != 0) {
        return Err(format!("the counting table is not zero at {:#x}", space.address(granule)));
    }
    let mut tracer = Tracer::new(space.base(), space.reserved_bytes());
    let mut internal = HashMap::<usize, i64>::new();
    let mut error = None;
    let mut starts = vec![false; states.len()];
    let result = guard_traversal(world, |at| {
        for page in 0..space.high_water() {
            for granule in space.starts(page) {
                starts[granule] = true;
                let bits = State(&states[granule]).get();
                if bits & LIVE == 0 && bits != 0 {
                    error =
                        Some(format!("a free cell at {:#x} has state {bits:#04x}", space.address(granule)));
                    return;
                }
                // Enumerations skip the unreachable, but the heap does not.
                if bits & (TRACKED | DYING) != TRACKED {
                    continue;
                }
                let object = object_at(space, granule);
                *at = Some(object);
                tracer.clear();
                // SAFETY: tracked and not dying, so alive; the world is stopped.
                unsafe { core.model.traverse(object, &mut tracer) };
                if tracer.take_unreadable() {
                    continue;
                }
                for &edge in tracer.edges() {
                    let target = space.granule(edge);
                    if states.get(target).is_none_or(|s| State(s).get() & LIVE == 0) {
                        // SAFETY: as above.
                        let name = unsafe { core.model.type_name(object) };
                        error = Some(format!(
                            "the {name} at {:#x} refers to {edge:#x}, where no object is",
                            object.address()
                        ));
                        return;
                    }
                    *internal.entry(target).or_default() += 1;
                }
            }
        }
    });
    if let Err(abandoned) = result {
        // A traversal that panics is the user's bug, and the collection's to deal with.
        return if depth == Depth::Counts { Err(abandoned.reason) } else { Ok(()) };
    }
    if let Some(error) = error {
        return Err(error);
    }
    if let Some(granule) = (0..states.len()).find(|&g| !starts[g] && State(&states[g]).get() != 0) {
        return Err(format!("no object starts at {:#x}, yet it has a state", space.address(granule)));
    }
    if depth == Depth::Counts {
        for (granule, visits) in internal {
            let object = object_at(space, granule);
            // SAFETY: an edge leads to it and it is live; the world is stopped.
            let count = unsafe { core.model.count(object) };
            let bits = State(&states[granule]).get();
            if count.is_some_and(|n| n < visits) && bits & (UNREACHABLE | DYING) == 0 {
                // SAFETY: as above.
                let name = unsafe { core.model.type_name(object) };
                return Err(format!(
                    "the {name} at {:#x} is visited {visits} times but has {count:?} references",
                    object.address()
                ));
            }
        }
    }
    Ok(())
}
