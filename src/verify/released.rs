//! The counts of cleared and released objects, which show whether a model drops its references.

#![forbid(unsafe_code)]

use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt;

use crate::base::outside::guarded;
use crate::collect::calls::guard_traversal;
use crate::collect::released::in_stop;
use crate::collect::scope::{state_of, stopped_at};
use crate::heap::core::Core;
use crate::heap::model::{Count, ObjectModel};
use crate::heap::mutator::ModelMutator;
use crate::heap::parts::*;
use crate::heap::world::World;
use crate::object::address::Object;
use crate::object::live::{Live, Stopped};
use crate::object::state::{DYING, LIVE, UNREACHABLE};
use crate::object::tracer::Tracer;
use crate::report::facts::During;
use crate::verify::rules::{COUNTS, MEMORY, are_checked, ask, breach, name_of_type, named};

const CLEARS: &str = "the contract of `clear` (it empties the fields that can be part of a cycle)";

/// A finding about an object that is alive.
struct Doubt {
    address: usize,
    type_name: Cow<'static, str>,
    text: String,
}

impl Doubt {
    fn new<M: ObjectModel>(core: &Core<M>, object: Stopped<'_>, text: String) -> Self {
        Self { address: object.address(), type_name: name_of_type(core, object), text }
    }

    fn report<M: ObjectModel>(self, core: &Core<M>, during: During) {
        core.hooks.unraisable_at(during, self.type_name, self.address, self.text);
    }
}

/// The counts of cleared objects that a collection is about to release, and to each of which it has
/// a reference.
pub(super) fn counts<M: ObjectModel>(
    m: &ModelMutator<M>,
    claimed: &[Live<'_>],
) -> Option<Vec<(Object, i64)>> {
    let core = m.core();
    if AdjustedOf::<M>::PRESENT || !are_checked(core) {
        return None;
    }
    let counts = in_stop(m, claimed, |world| {
        let mut counts = Vec::new();
        for object in claimed {
            counts.extend(count_of(world, object.object())?);
        }
        Ok::<_, String>(counts)
    })?;
    match counts {
        Ok(counts) => Some(counts),
        Err(error) => breach::<M>(core, "after clearing", &error),
    }
}

/// The object with its count, or `None` if `count` says that it takes no part.
fn count_of<M: ObjectModel>(
    world: &World<'_, M>,
    object: Object,
) -> Result<Option<(Object, i64)>, String> {
    let core = world.core();
    let granule = core.space.granule(object.address());
    let is_here = state_of(&core.space, object).get() & UNREACHABLE != 0;
    let Some(stopped) = stopped_at(world, granule).filter(|_| is_here) else {
        return Err(format!(
            "{MEMORY}: the object at {:#x} was freed while the collection held a reference to \
             it; `clear` of an object that refers to it has dropped too many references, or \
             `traverse` reports a reference that is not counted",
            object.address()
        ));
    };
    match ask(core, "count", stopped, |model| model.count(stopped))? {
        Count::Exact(count) if count < 1 => Err(format!(
            "{COUNTS}: `count` of {} is {count} while the collection holds a reference to it; \
             `clear` of an object that refers to it has dropped too many references",
            named(core, stopped)
        )),
        Count::Exact(count) => Ok(Some((object, count))),
        Count::Outside | Count::Immortal => Ok(None),
    }
}

/// Reports the first object that has as many references as before its release.
pub(super) fn compare<M: ObjectModel>(m: &ModelMutator<M>, counts: &[(Object, i64)]) {
    let found = in_stop(m, &[], |world| {
        let core = world.core();
        counts.iter().find_map(|&(object, before)| {
            // The death of an object clears the bit.
            let bits = state_of(&core.space, object).get();
            if bits & (LIVE | UNREACHABLE | DYING) != LIVE | UNREACHABLE {
                return None;
            }
            let stopped = stopped_at(world, core.space.granule(object.address()))?;
            let count = guarded(|| core.model.count(stopped)).ok()?;
            let Count::Exact(now) = count else { return None };
            (now >= before).then(|| {
                let text = format!(
                    "{COUNTS}: `release` removes one reference; `count` of {} was {before} \
                     before it and is {now} after it (or code of the program has taken a \
                     reference meanwhile)",
                    named(core, stopped)
                );
                Doubt::new(core, stopped, text)
            })
        })
    });
    if let Some(found) = found.flatten() {
        found.report(m.core(), During::Drop);
    }
}

/// Examines the objects that are alive although they were cleared and released, and reports one of
/// them.
pub(super) fn survivors<M: ObjectModel>(m: &ModelMutator<M>, released: &[Object]) {
    let core = m.core();
    let survives = |object: &Object| state_of(&core.space, *object).get() & UNREACHABLE != 0;
    if !are_checked(core) || !released.iter().any(survives) {
        return;
    }
    let found = in_stop(m, &[], |world| {
        // The merge of this stop may have found some dead, which are left out.
        let is_left = |object: &Object| {
            state_of(&core.space, *object).get() & (UNREACHABLE | DYING) == UNREACHABLE
        };
        let left: Vec<Object> = released.iter().copied().filter(is_left).collect();
        explain(world, &left)
    });
    if let Some(found) = found.flatten() {
        found.report(core, During::Clear);
    }
}

/// Why objects are alive: a cycle of them, or else an object to which none of them refers.
fn explain<M: ObjectModel>(world: &World<'_, M>, left: &[Object]) -> Option<Doubt> {
    let core = world.core();
    let numbers: HashMap<usize, usize> =
        left.iter().enumerate().map(|(at, object)| (object.address(), at)).collect();
    let mut edges = vec![Vec::new(); left.len()];
    let (start, bytes) = core.space.bounds();
    let mut tracer = Tracer::new(start, bytes);
    guard_traversal(world, &mut tracer, |tracer| {
        for (&object, edges) in left.iter().zip(&mut edges) {
            let granule = core.space.granule(object.address());
            let Some(stopped) = stopped_at(world, granule) else { continue };
            tracer.begin(object);
            tracer.forget_uncounted();
            core.model.traverse(stopped, tracer);
            tracer.take_unreadable();
            edges.extend(tracer.edges().iter().filter_map(|edge| numbers.get(edge).copied()));
        }
    })
    .ok()?;
    let at = |number: usize| stopped_at(world, core.space.granule(left[number].address()));
    if let Some(cycle) = cycle_in(&edges) {
        let first = at(*cycle.iter().min_by_key(|&&number| left[number].address())?)?;
        let others = match cycle.len() {
            1 => "refers to itself".to_owned(),
            n => format!("is in a cycle of {n} objects"),
        };
        let text = format!(
            "{CLEARS}: {} still {others} after `clear` (or code of the program has linked it again)",
            named(core, first)
        );
        return Some(Doubt::new(core, first, text));
    }
    let mut is_target = vec![false; left.len()];
    edges.iter().flatten().for_each(|&target| is_target[target] = true);
    // Because there is no cycle, there is an object to which none of the others refers.
    let first = is_target.iter().position(|&is_target| !is_target)?;
    let stopped = at(first)?;
    let count = guarded(|| core.model.count(stopped)).ok()?;
    let text = format!(
        "{COUNTS}: {} was cleared and released, no garbage refers to it, and `count` is {}: a \
         method has removed a reference and not dropped it, or has not destroyed the object (or \
         code of the program has taken a reference meanwhile)",
        named(core, stopped),
        Shown(count)
    );
    Some(Doubt::new(core, stopped, text))
}

struct Shown(Count);

impl fmt::Display for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Count::Exact(count) => write!(f, "{count}"),
            other => write!(f, "{other:?}"),
        }
    }
}

/// The nodes of a cycle of the graph, if there is one.
fn cycle_in(edges: &[Vec<usize>]) -> Option<Vec<usize>> {
    // Removes the nodes without edges to the rest, again and again, so that each node that stays
    // has an edge to one that stays. Such edges lead into a cycle.
    let mut open: Vec<usize> = edges.iter().map(Vec::len).collect();
    let mut sources = vec![Vec::new(); edges.len()];
    for (from, targets) in edges.iter().enumerate() {
        targets.iter().for_each(|&to| sources[to].push(from));
    }
    let mut done: Vec<usize> = (0..edges.len()).filter(|&at| open[at] == 0).collect();
    while let Some(at) = done.pop() {
        for &from in &sources[at] {
            open[from] -= 1;
            if open[from] == 0 {
                done.push(from);
            }
        }
    }
    let mut path = vec![open.iter().position(|&open| open > 0)?];
    loop {
        let next = edges[*path.last()?].iter().copied().find(|&to| open[to] > 0)?;
        if let Some(start) = path.iter().position(|&at| at == next) {
            return Some(path.split_off(start));
        }
        path.push(next);
    }
}
