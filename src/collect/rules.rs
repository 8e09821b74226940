//! The rules of an object model, checked while a program runs.
//!
//! With [`Stress::verify_counts`](crate::Stress::verify_counts) the collector compares the answers
//! of a model with each other. A finding names the rule of [`ObjectModel`], the method, and the
//! type and address of the object. There are two kinds.
//!
//! * *Breaches* are possible only if the model breaks the rule. They are panics, as all findings of
//!   [`verify`](super::verify).
//! * *Doubts*: the model has broken the rule, or code of the program took a reference meanwhile.
//!   The hook of [`on_unraisable`](crate::model::ModelHeap::on_unraisable) receives them.
//!
//! | check | when | kind |
//! |---|---|---|
//! | [`Asked`]: counts do not fall in a stop, no object is freed in it, answers agree | in each verification | breach |
//! | [`compare_traversals`]: two traversals report the same | in each verification | breach |
//! | [`merged`]: `merge` reports dead objects only, each once, and not too many | after each merge | breach |
//! | [`Claims`]: `claim_ref` adds one reference | around the claim | breach |
//! | [`callbacks`]: `take_callbacks` takes no more than `callbacks` has announced | in the claim | breach |
//! | [`Held`]: nothing frees an object that the collection holds | before the release | breach |
//! | [`Held`]: `release` removes a reference | after the release | doubt |
//! | [`survivors`]: `clear` breaks cycles and drops what it removes | when all is released | doubt |
//!
//! The stops of the last three are additional ones. The checks concern models of runtimes. The
//! built-in model answers for itself, and the handlers of a typed program follow other rules.

#![forbid(unsafe_code)]

use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt;

use crate::base::event::{During, guarded, panic_message};
use crate::collect::calls;
use crate::collect::scope::{live, state_of, stopped_at};
use crate::collect::stop;
use crate::collect::traversal::{guard_traversal, traverse_batch};
use crate::collect::verify::ADVICE;
use crate::heap::model::{Count, ObjectModel};
use crate::heap::mutator::{Core, ModelMutator, World};
use crate::object::live::{DeadObject, Stopped};
use crate::object::state::{DYING, LIVE, UNREACHABLE};
use crate::object::type_info::{Object, Tracer};

pub(super) const COUNTS: &str = "rule 1 (counts are real)";
pub(super) const MEMORY: &str = "rule 2 (memory is freed only at count 0)";
const STOP: &str = "rule 3 (no count falls and nothing is freed in a stop)";
pub(super) const TRAVERSAL: &str = "rule 4 (a traversal reports each counted reference once)";
const MERGE: &str = "rule 5 (`merge` makes counts exact and reports the dead)";
const STABLE: &str = "STABLE_DURING_STOP (two traversals in a stop report the same)";
const ANSWERS: &str = "the contract of `count` (an object's variant does not change in a stop)";
const LIMITS: &str = "the contract of `pending` and `callbacks` (they are upper limits)";
const PANICS: &str = "the table of docs/model.md (the method does not panic)";
const CLEARS: &str = "the contract of `clear` (it empties the fields that can be part of a cycle)";

/// Whether the rules are checked in this heap.
#[inline]
pub(super) fn are_checked<M: ObjectModel>(core: &Core<M>) -> bool {
    !M::IS_BUILT_IN && core.stress.verifies_counts()
}

/// Ends the operation that found a breach.
#[cold]
#[inline(never)]
fn breach<M: ObjectModel>(core: &Core<M>, when: &str, error: &str) -> ! {
    panic!("{when}, heap '{}': {error}. {ADVICE}", core.name)
}

/// "the node at 0x…", for findings.
pub(super) fn named<M: ObjectModel>(core: &Core<M>, object: Stopped<'_>) -> String {
    let name = guarded(|| core.model.type_name(object.live()))
        .unwrap_or_else(|_| "object (its `type_name` has panicked)".into());
    format!("the {name} at {:#x}", object.address())
}

/// Calls a method for an object. A panic of it is a breach.
fn ask<M: ObjectModel, R>(
    core: &Core<M>,
    method: &str,
    object: Stopped<'_>,
    f: impl FnOnce(&M) -> R,
) -> Result<R, String> {
    guarded(|| f(&core.model)).map_err(|payload| {
        let text = panic_message(payload);
        format!("{PANICS}: `{method}` of {} has panicked: {text}", named(core, object))
    })
}

/// The answers of the model about objects at the beginning of a stop, for a comparison.
#[derive(Default)]
pub(super) struct Asked {
    /// The granules of all objects.
    alive: Vec<usize>,
    /// The answers about tracked objects, by granule.
    counts: Vec<(usize, Count)>,
}

impl Asked {
    /// Lists the objects. No answer is known.
    pub(super) fn nothing<M: ObjectModel>(world: &World<'_, M>) -> Self {
        let (space, mut alive) = (&world.core().space, Vec::new());
        live(world, |object, _| alive.push(space.granule(object.address())));
        Self { alive, counts: Vec::new() }
    }

    /// Asks about an object, for the first time.
    pub(super) fn ask<M: ObjectModel>(
        &mut self,
        world: &World<'_, M>,
        granule: usize,
        object: Stopped<'_>,
    ) -> Result<(), String> {
        let core = world.core();
        let count = ask(core, "count", object, |model| model.count(object))?;
        let immortal = ask(core, "is_immortal", object, |model| model.is_immortal(object))?;
        if immortal != matches!(count, Count::Immortal) {
            return Err(format!(
                "the contract of `is_immortal` (it agrees with `count`): of {} `is_immortal` is \
                 {immortal}, and `count` is {count:?}",
                named(core, object)
            ));
        }
        ask(core, "type_name", object, |model| model.type_name(object.live()))?;
        self.counts.push((granule, count));
        Ok(())
    }

    /// Asks again, and compares. `between`: the calls between the two questions.
    pub(super) fn compare<M: ObjectModel>(
        &self,
        world: &World<'_, M>,
        between: &str,
    ) -> Result<(), String> {
        let core = world.core();
        if let Some(&freed) =
            self.alive.iter().find(|&&granule| stopped_at(world, granule).is_none())
        {
            return Err(format!(
                "{STOP}: the object at {:#x} was freed in a stop, during {between}",
                core.space.address(freed)
            ));
        }
        for &(granule, before) in &self.counts {
            let Some(object) = stopped_at(world, granule) else { continue };
            let now = ask(core, "count", object, |model| model.count(object))?;
            same_variant(core, object, before, now)?;
            // Unattached threads may add references.
            if let (Count::Exact(before), Count::Exact(now)) = (before, now)
                && now < before
            {
                return Err(format!(
                    "{STOP}: `count` of {} fell from {before} to {now} in a stop, during {between}",
                    named(core, object)
                ));
            }
        }
        Ok(())
    }
}

fn same_variant<M: ObjectModel>(
    core: &Core<M>,
    object: Stopped<'_>,
    before: Count,
    now: Count,
) -> Result<(), String> {
    if std::mem::discriminant(&before) == std::mem::discriminant(&now) {
        return Ok(());
    }
    Err(format!(
        "{ANSWERS}: `count` of {} was {before:?} and is {now:?} in the same stop",
        named(core, object)
    ))
}

/// Compares the references that a traversal of `object` has reported with those of a second
/// traversal, and of a traversal by `traverse_each`. Panics of traversals unwind. The tracer's
/// buffer is lost.
pub(super) fn compare_traversals<M: ObjectModel>(
    core: &Core<M>,
    object: Stopped<'_>,
    tracer: &mut Tracer,
) -> Result<(), String> {
    let sorted = |edges: &[usize]| {
        let mut edges: Vec<usize> =
            edges.iter().copied().filter(|&edge| core.space.contains(edge)).collect();
        edges.sort_unstable();
        edges
    };
    let first = sorted(tracer.edges());
    let differ = |rule: &str, method: &str, second: &[usize]| {
        let lost = first.iter().find(|edge| !second.contains(edge));
        let which = lost.or_else(|| second.iter().find(|edge| !first.contains(edge)));
        let which = which.map_or(String::new(), |edge| format!(", one of them to {edge:#x}"));
        Err(format!(
            "{rule}: `traverse` of {} has reported {} references, and `{method}` in the same stop \
             {}{which}",
            named(core, object),
            first.len(),
            second.len()
        ))
    };
    tracer.begin(object.object());
    core.model.traverse(object, tracer);
    // A lock that another thread has taken meanwhile is no fault.
    if tracer.take_unreadable() {
        return Ok(());
    }
    let second = sorted(tracer.edges());
    if M::STABLE_DURING_STOP && first != second {
        return differ(STABLE, "traverse", &second);
    }
    tracer.clear();
    let (mut ends, mut is_readable) = ([0], true);
    let traversed = traverse_batch(&core.model, &[object], tracer, &mut ends, |_| {
        is_readable = false;
        Ok(())
    });
    if traversed.is_err() || !is_readable {
        return Ok(());
    }
    let together = sorted(&tracer.edges()[..ends[0] as usize]);
    if M::STABLE_DURING_STOP && first != together {
        return differ(TRAVERSAL, "traverse_each", &together);
    }
    Ok(())
}

/// Checks what a merge has put into its list. `limit`: the answer of `pending` before it. Called
/// before the objects are marked as dying.
pub(super) fn merged<M: ObjectModel>(world: &World<'_, M>, dead: &[DeadObject], limit: usize) {
    if are_checked(world.core())
        && let Err(error) = check_merged(world, dead, limit)
    {
        breach(world.core(), "after a merge", &error);
    }
}

fn check_merged<M: ObjectModel>(
    world: &World<'_, M>,
    dead: &[DeadObject],
    limit: usize,
) -> Result<(), String> {
    let core = world.core();
    if dead.len() > limit {
        return Err(format!(
            "{LIMITS}: `pending` returned {limit}, and `merge` has reported {} dead objects",
            dead.len()
        ));
    }
    let mut seen = HashMap::new();
    for object in dead.iter().map(DeadObject::object) {
        let address = object.address();
        let found = core.space.contains(address).then(|| core.space.granule(address));
        let Some(stopped) = found.and_then(|granule| stopped_at(world, granule)) else {
            return Err(format!("{MERGE}: `merge` has reported {address:#x}, where no object is"));
        };
        let is_dying = state_of(&core.space, object).get() & DYING != 0;
        if seen.insert(address, ()).is_some() || is_dying {
            return Err(format!(
                "{MERGE}: `merge` has reported {} as dead twice",
                named(core, stopped)
            ));
        }
        let count = ask(core, "count", stopped, |model| model.count(stopped))?;
        // Otherwise the number is not complete.
        if !M::ADJUSTS_COUNTS && count != Count::Exact(0) {
            return Err(format!(
                "{MERGE}: `merge` has reported {} as dead, and its count is {count:?}",
                named(core, stopped)
            ));
        }
    }
    Ok(())
}

/// The counts of unreachable objects before the claim. Empty if they are not checked: a model with
/// adjustments may count the claim elsewhere.
pub(super) struct Claims(Vec<i64>);

impl Claims {
    /// Asks for the counts before the claim.
    pub(super) fn before<M: ObjectModel>(world: &World<'_, M>, found: &[Stopped<'_>]) -> Self {
        let core = world.core();
        if M::ADJUSTS_COUNTS || !are_checked(core) {
            return Self(Vec::new());
        }
        let count = |&object: &Stopped<'_>| match core.model.count(object) {
            Count::Exact(count) => count,
            other => {
                let error = same_variant(core, object, Count::Exact(0), other);
                breach(core, "before the claim", &error.expect_err("another variant"))
            }
        };
        Self(found.iter().map(count).collect())
    }

    /// Compares them with the counts after the claim. No other code knows the objects.
    pub(super) fn after<M: ObjectModel>(self, world: &World<'_, M>, found: &[Stopped<'_>]) {
        let core = world.core();
        for (&before, &object) in self.0.iter().zip(found) {
            let now = core.model.count(object);
            if now != Count::Exact(before + 1) {
                let error = format!(
                    "{COUNTS}: `claim_ref` adds one reference; `count` of {} was {before} before \
                     it and is {now:?} after it",
                    named(core, object)
                );
                breach(core, "after the claim", &error);
            }
        }
    }
}

/// Checks that `take_callbacks` has taken no more callbacks than announced.
pub(super) fn callbacks<M: ObjectModel>(
    core: &Core<M>,
    object: Stopped<'_>,
    limit: usize,
    taken: usize,
) {
    if taken > limit {
        let error = format!(
            "{LIMITS}: `callbacks` of {} returned {limit}, and `take_callbacks` has taken {taken}",
            named(core, object)
        );
        breach(core, "in the claim", &error);
    }
}

/// Stops the world, makes counts exact, and calls `f`. `None` without a stop. A stop outside the
/// phases of the collection: the report does not contain it.
fn in_stop<M: ObjectModel, R>(
    m: &ModelMutator<M>,
    f: impl FnOnce(&World<'_, M>) -> R,
) -> Option<R> {
    let mut dead = Vec::new();
    let result = {
        let world = m.stop_here().ok()?;
        stop::merge_counts(&world, &mut dead).ok().map(|()| f(&world))
    };
    stop::destroy_merged(dead, m);
    calls::resumed(m);
    result
}

/// Reports a doubt.
fn doubt<M: ObjectModel>(core: &Core<M>, during: During, (object, text): (Object, String)) {
    core.hooks.unraisable_at(during, "", object.address(), text);
}

/// The counts of cleared objects that a collection is about to release.
pub(super) struct Held(Vec<(Object, i64)>);

impl Held {
    /// Asks for the counts. The collection has a reference to each object.
    pub(super) fn before<M: ObjectModel>(
        m: &ModelMutator<M>,
        objects: impl Iterator<Item = Object>,
    ) -> Option<Self> {
        let core = m.core();
        if M::ADJUSTS_COUNTS || !are_checked(core) {
            return None;
        }
        let held = in_stop(m, |world| {
            let mut held = Vec::new();
            for object in objects {
                held.extend(Self::look(world, object)?);
            }
            Ok::<_, String>(Self(held))
        })?;
        match held {
            Ok(held) => Some(held),
            Err(error) => breach::<M>(core, "after clearing", &error),
        }
    }

    /// The object with its count. `None`: `count` says that it takes no part.
    fn look<M: ObjectModel>(
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
    pub(super) fn after<M: ObjectModel>(self, m: &ModelMutator<M>) {
        let found = in_stop(m, |world| {
            let core = world.core();
            self.0.iter().find_map(|&(object, before)| {
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
                    (object, text)
                })
            })
        });
        if let Some(found) = found.flatten() {
            doubt(m.core(), During::Drop, found);
        }
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
    let found = in_stop(m, |world| {
        // Those that died in the merge of this stop are left out.
        let is_left = |object: &Object| {
            state_of(&core.space, *object).get() & (UNREACHABLE | DYING) == UNREACHABLE
        };
        let left: Vec<Object> = released.iter().copied().filter(is_left).collect();
        explain(world, &left)
    });
    if let Some(found) = found.flatten() {
        doubt(core, During::Clear, found);
    }
}

/// Why objects are alive: a cycle of them, or else an object to which none of them refers.
fn explain<M: ObjectModel>(world: &World<'_, M>, left: &[Object]) -> Option<(Object, String)> {
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
        let first = *cycle.iter().min_by_key(|&&number| left[number].address())?;
        let others = match cycle.len() {
            1 => "refers to itself".to_owned(),
            n => format!("is in a cycle of {n} objects"),
        };
        let text = format!(
            "{CLEARS}: {} still {others} after `clear` (or code of the program has linked it again)",
            named(core, at(first)?)
        );
        return Some((left[first], text));
    }
    let mut is_target = vec![false; left.len()];
    edges.iter().flatten().for_each(|&target| is_target[target] = true);
    // There is no cycle, so there is an object to which none of the others refers.
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
    Some((left[first], text))
}

/// A number, or the variant.
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
    // Removes the nodes without edges to the rest, again and again. Each node that stays has an
    // edge to another one that stays.
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

/// The sources of references to `target`, for a finding.
pub(super) fn sources<M: ObjectModel>(
    world: &World<'_, M>,
    edges: &[(usize, Object)],
    target: usize,
) -> String {
    let core = world.core();
    let mut times: Vec<(Object, usize)> = Vec::new();
    for &(_, source) in edges.iter().filter(|&&(granule, _)| granule == target) {
        match times.iter_mut().find(|(known, _)| *known == source) {
            Some((_, times)) => *times += 1,
            None => times.push((source, 1)),
        }
    }
    times.sort_by_key(|&(_, times)| std::cmp::Reverse(times));
    let mut list: Vec<Cow<'_, str>> = times
        .iter()
        .take(3)
        .filter_map(|&(source, times)| {
            let object = stopped_at(world, core.space.granule(source.address()))?;
            let times = if times == 1 { "once".to_owned() } else { format!("{times} times") };
            Some(format!("{} ({times})", named(core, object)).into())
        })
        .collect();
    if times.len() > 3 {
        list.push("others".into());
    }
    list.join(", ")
}
