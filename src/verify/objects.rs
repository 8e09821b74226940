//! Verification of a whole heap, by two views of its memory.
//!
//! The stress modes, the tests and [`Mutator::verify`](crate::Mutator::verify) use it.
//!
//! Damage shows where two views of the same memory disagree. The *pages* name the free cells, by
//! the pool, the arenas' lists, the free bits, the remote stacks and the quarantine. The *objects*
//! name the live ones, by state bytes, headers and fields. For example, if A refers to B, although
//! B's cell is in a magazine, B was freed too early. A cell in neither view is no error, because it
//! may be allocated and hold no object yet.

#![forbid(unsafe_code)]

use std::collections::HashMap;

use crate::base::fallible::NoMemory;
use crate::base::sync::Ordering;
use crate::collect::calls::guard_traversal;
use crate::collect::listing::Adjustments;
use crate::collect::scope::stopped_at;
use crate::heap::model::{Count, ObjectModel};
use crate::heap::parts::*;
use crate::heap::world::World;
use crate::memory::shape::PAGE_GRANULES;
use crate::object::live::Stopped;
use crate::object::state::{DYING, LIVE, StateByte, TRACKED, UNREACHABLE};
use crate::object::tracer::Tracer;
use crate::verify::pages::{PageLists, pages};
use crate::verify::rules::{self, Asked, compare_traversals};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd)]
pub(crate) enum Depth {
    /// The conditions that safe user code cannot break: pages, tables and headers are sound, and
    /// edges lead to live objects.
    Structure,
    /// Also that no object is visited more often than references to it exist, which a wrong
    /// traversal can break.
    Counts,
    /// Also that no traversal panics, because the edges of such an object are unknown.
    Complete,
}

/// Verifies the heap as its stress modes say, and panics if it is damaged.
#[cold]
#[inline(never)]
pub(super) fn verify<M: ObjectModel>(world: &World<'_, M>, when: &str) {
    let core = world.core();
    let depth = if core.stress.verifies_counts() { Depth::Counts } else { Depth::Structure };
    if let Err(error) = check(world, depth) {
        rules::breach(core, when, &error);
    }
    if let Some(strain) = &core.under {
        strain.verified();
    }
}

/// Checks the heap, up to the first defect, which the error names.
pub(crate) fn check<M: ObjectModel>(world: &World<'_, M>, depth: Depth) -> Result<(), String> {
    let space = &world.core().space;
    if let Some(granule) = space.counts().iter().position(|c| c.load(Ordering::Relaxed) != 0) {
        return Err(format!("the counting table is not zero at {:#x}", space.address(granule)));
    }
    pages(world, PageLists::of(world))?;
    objects(world, depth)
}

/// Checks the state, the header and the edges of every object. If `depth` includes counts, also
/// compares the edges with the counts.
fn objects<M: ObjectModel>(world: &World<'_, M>, depth: Depth) -> Result<(), String> {
    let core = world.core();
    let space = &core.space;
    let states = space.states();
    let (start, bytes) = space.bounds();
    let mut tracer = Tracer::new(start, bytes);
    let mut visits = HashMap::<usize, i64>::new();
    // The granule of the target of each counted edge, and its source.
    let mut counted = Vec::new();
    let checks_model = depth >= Depth::Counts && !M::IS_BUILT_IN;
    let mut asked = if checks_model { Asked::nothing(world) } else { Asked::default() };
    let adjustments = Adjustments::ask(world, |_| true).map_err(|_| NoMemory::REASON.to_owned())?;
    let mut error = None;
    let mut starts = vec![false; states.len()];
    let result = guard_traversal(world, &mut tracer, |tracer| {
        for page in 0..space.high_water() {
            let shape = space.page(page).shape();
            let (first, step) = (page * PAGE_GRANULES + shape.first(), shape.cell().max(1));
            let mut last = None;
            for granule in space.objects(page) {
                starts[granule] = true;
                let bits = StateByte(&states[granule]).get();
                if bits != 0 {
                    let cell = (granule - first) / step;
                    if last.replace(cell) == Some(cell) {
                        error = Some(format!(
                            "the object at {:#x} lies in the cell of another object",
                            space.address(granule)
                        ));
                        return;
                    }
                }
                if bits & LIVE == 0 && bits != 0 {
                    error = Some(format!(
                        "a free cell at {:#x} has state {bits:#04x}",
                        space.address(granule)
                    ));
                    return;
                }
                if bits & (LIVE | DYING) != LIVE {
                    continue;
                }
                let Some(object) = stopped_at(world, granule) else { continue };
                if let Err(what) = ChecksOf::<M>::check(&core.model, object) {
                    error = Some(format!(
                        "the header of the object at {:#x} is damaged: {what}",
                        object.address()
                    ));
                    return;
                }
                // An unreachable object is included, although enumerations skip it.
                if bits & TRACKED == 0 {
                    continue;
                }
                if checks_model && let Err(what) = asked.ask(world, granule, object) {
                    error = Some(what);
                    return;
                }
                tracer.begin(object.object());
                tracer.forget_uncounted();
                core.model.traverse(object, tracer);
                if tracer.take_unreadable() {
                    continue;
                }
                let edges = tracer.edges().iter().map(|&edge| (edge, true));
                let uncounted = tracer.all_uncounted().map(|edge| (edge, false));
                let edges = edges.chain(uncounted).filter(|&(edge, _)| space.contains(edge));
                for (edge, is_counted) in edges {
                    let target = space.granule(edge);
                    let is_live = |state| StateByte(state).get() & LIVE != 0;
                    let is_object = states.get(target).is_some_and(is_live);
                    if ListsOf::<M>::PRESENT && !is_object {
                        // An object that is of no interest to collections is not listed.
                        continue;
                    }
                    if !is_object || space.address(target) != edge {
                        error = Some(nowhere(world, object, edge));
                        return;
                    }
                    if is_counted && depth >= Depth::Counts {
                        *visits.entry(target).or_default() += 1;
                        counted.push((target, object.object()));
                    }
                }
                if checks_model && let Err(what) = compare_traversals(core, object, tracer) {
                    error = Some(what);
                    return;
                }
            }
        }
    });
    if let Err(abandoned) = result {
        // A traversal that panics is a defect in user code, which the collection handles.
        return if depth == Depth::Complete { Err(abandoned.reason.into_owned()) } else { Ok(()) };
    }
    if let Some(error) = error {
        return Err(error);
    }
    asked.compare(world, "the traversal of all objects")?;
    if let Some(granule) =
        (0..states.len()).find(|&g| !starts[g] && StateByte(&states[g]).get() != 0)
    {
        return Err(format!(
            "no object starts at {:#x}, yet it has a state",
            space.address(granule)
        ));
    }
    for (granule, visits) in visits {
        let Some(object) = stopped_at(world, granule) else { continue };
        let Count::Exact(count) = core.model.count(object) else { continue };
        let count = count + adjustments.of(granule);
        let bits = StateByte(&states[granule]).get();
        if count < visits && bits & (UNREACHABLE | DYING) == 0 {
            let rules = if M::IS_BUILT_IN {
                String::new()
            } else {
                format!("{} or {}: ", rules::TRAVERSAL, rules::COUNTS)
            };
            return Err(format!(
                "{rules}{} is visited {visits} times but has {count} references; it is visited \
                 by {}: `traverse` reports too many references, or `count` is too low",
                rules::named(core, object),
                rules::sources(world, &counted, granule)
            ));
        }
    }
    Ok(())
}

/// The text for an edge of `object` that leads to no object.
fn nowhere<M: ObjectModel>(world: &World<'_, M>, object: Stopped<'_>, edge: usize) -> String {
    let core = world.core();
    let rules = if M::IS_BUILT_IN {
        String::new()
    } else {
        format!("{} or {}: ", rules::TRAVERSAL, rules::MEMORY)
    };
    let space = &core.space;
    let granule = space.granule(edge);
    let page = granule / PAGE_GRANULES;
    let around = (page < space.high_water()).then(|| {
        let shape = space.page(page).shape();
        let first = page * PAGE_GRANULES + shape.first();
        let cell = |granule: usize| granule.wrapping_sub(first) / shape.cell().max(1);
        let mut starts = space.objects(page).filter(|&start| cell(start) == cell(granule));
        starts.find_map(|start| stopped_at(world, start))
    });
    let what =
        around.flatten().map_or("the memory is free or not published".to_owned(), |around| {
            format!("it lies inside the memory of {}", rules::named(core, around))
        });
    format!(
        "{rules}{} refers to {edge:#x}, where no object is: {what}; `traverse` reports a reference \
         that does not exist, or its target was freed too early",
        rules::named(core, object)
    )
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
