//! The rules of an object model, checked while a program runs.
//!
//! With [`Stress::verify_counts`](crate::Stress::verify_counts) the collector compares the answers
//! of a model with each other, because it cannot know the true ones. A finding names the rule of
//! [`ObjectModel`], the method, and the type and address of the object. There are two kinds.
//!
//! * *Breaches* are possible only if the model breaks the rule, so they are panics, as all findings
//!   of [`verify`](super). For example, the count of A falls in a stop.
//! * *Doubts* have two causes: the model has broken the rule, or code of the program took a
//!   reference meanwhile. So only the hook of
//!   [`on_unraisable`](crate::model::ModelHeap::on_unraisable) receives them. For example, A is
//!   alive after its release.
//!
//! | check | when | kind |
//! |---|---|---|
//! | [`Asked`]: counts do not fall in a stop, no object is freed in it, answers agree | in each
//! verification, and [around](watch) the phases of each stop | breach |
//! | [`Asked`]: `claim_ref` adds one reference | after the phases of the first stop | breach |
//! | [`compare_traversals`]: two traversals report the same | in each verification | breach |
//! | [`merged`]: `merge` reports dead objects only, each once, and not too many | after each merge
//! | breach |
//! | [`callbacks`]: `take_callbacks` takes no more than `callbacks` has announced | in the claim |
//! breach |
//! | [`released::counts`]: nothing frees an object that the collection holds | before the release |
//! breach |
//! | [`released::compare`]: `release` removes a reference | after the release | doubt |
//! | [`released::survivors`]: `clear` breaks cycles and drops what it removes | when all is released
//! | doubt |
//!
//! The last three make stops of their own, in [`released`]. The checks concern models of runtimes,
//! because the built-in model answers for itself, and the handlers of a typed program follow other
//! rules.

#![forbid(unsafe_code)]

use std::borrow::Cow;
use std::collections::HashMap;

use crate::base::outside::{guarded, panic_message};
use crate::collect::calls::traverse_batch;
use crate::collect::scope::{live, state_of, stopped_at};
use crate::heap::core::Core;
use crate::heap::model::{Count, ObjectModel};
use crate::heap::parts::*;
use crate::heap::world::World;
use crate::object::address::Object;
use crate::object::live::{DeadObject, Stopped};
use crate::object::state::{DYING, TRACKED, UNREACHABLE};
use crate::object::tracer::Tracer;
#[cfg(doc)]
use crate::verify::released;

/// The end of each message, with possible causes, and how to find the true one.
pub(super) const ADVICE: &str = "Unsafe code, an object model, a C extension or this library has damaged the \
                      heap or a count since the last verification. More of `standstill::Stress`, \
                      or STANDSTILL_STRESS=all, may find the damage earlier: poison and quarantine \
                      find writes through stale pointers. `standstill_model_check::check` tells \
                      which rule an object model breaks, and in which method";

pub(super) const COUNTS: &str = "rule 1 (counts are real)";
pub(super) const MEMORY: &str = "rule 2 (memory is freed only at count 0)";
const STOP: &str = "rule 3 (no count falls and nothing is freed in a stop)";
pub(super) const TRAVERSAL: &str = "rule 4 (a traversal reports each counted reference once)";
const MERGE: &str = "rule 5 (`merge` makes counts exact and reports the dead)";
const STABLE: &str = "rule 8 (two traversals in a stop report the same)";
const ANSWERS: &str = "the contract of `count` (an object's variant does not change in a stop)";
const LIMITS: &str = "the contract of `pending` and `callbacks` (they are upper limits)";
const PANICS: &str = "the table of docs/model.md (the method does not panic)";

#[inline]
pub(super) fn are_checked<M: ObjectModel>(core: &Core<M>) -> bool {
    !M::IS_BUILT_IN && core.stress.verifies_counts()
}

#[cold]
#[inline(never)]
pub(super) fn breach<M: ObjectModel>(core: &Core<M>, when: &str, error: &str) -> ! {
    panic!("{when}, heap '{}': {error}. {ADVICE}", core.name)
}

/// The name of the object's type, also if `type_name` panics.
pub(super) fn name_of_type<M: ObjectModel>(
    core: &Core<M>,
    object: Stopped<'_>,
) -> Cow<'static, str> {
    guarded(|| core.model.type_name(object.live())).unwrap_or_else(|payload| {
        panic_message(payload);
        "object (its `type_name` has panicked)".into()
    })
}

/// "the node at 0x…", for findings.
pub(super) fn named<M: ObjectModel>(core: &Core<M>, object: Stopped<'_>) -> String {
    format!("the {} at {:#x}", name_of_type(core, object), object.address())
}

/// Calls a method for an object, and makes a breach of its panic.
pub(super) fn ask<M: ObjectModel, R>(
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
    alive: Vec<usize>,
    /// The answers about tracked objects, by granule, and whether a collection holds them already.
    counts: Vec<(usize, Count, bool)>,
    /// Whether an object has weak references. This matters because weak callbacks, which the claim
    /// takes out, may refer to claimed objects.
    has_weak: bool,
}

impl Asked {
    /// Lists the objects, of which no answer is known yet.
    pub(super) fn nothing<M: ObjectModel>(world: &World<'_, M>) -> Self {
        let (space, mut alive) = (&world.core().space, Vec::new());
        live(world, |object, _| alive.push(space.granule(object.address())));
        Self { alive, ..Self::default() }
    }

    /// Asks about an object for the first time, and keeps the answers.
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
        self.has_weak |=
            ask(core, "has_weak", object, |model| WeakRefsOf::<M>::has_weak(model, object.live()))?;
        self.counts.push((granule, count, is_held(core, object)));
        Ok(())
    }

    /// Asks again, and compares. The calls `between` the two questions are named in the error.
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
        for &(granule, before, was_held) in &self.counts {
            let Some(object) = stopped_at(world, granule) else { continue };
            let now = ask(core, "count", object, |model| model.count(object))?;
            if std::mem::discriminant(&before) != std::mem::discriminant(&now) {
                return Err(format!(
                    "{ANSWERS}: `count` of {} was {before:?} and is {now:?} in the same stop",
                    named(core, object)
                ));
            }
            let (Count::Exact(before), Count::Exact(now)) = (before, now) else { continue };
            // No other code knows a claimed object, so only the claim changes its count. A model
            // with adjustments may count the claim elsewhere.
            let is_claimed = !AdjustedOf::<M>::PRESENT && !was_held && is_held(core, object);
            if is_claimed && (now <= before || now > before + 1 && !self.has_weak) {
                return Err(format!(
                    "{COUNTS}: `claim_ref` adds one reference; `count` of {} was {before} before \
                     it and is {now} after it",
                    named(core, object)
                ));
            }
            // Only a fall is a breach, because unattached threads may add references.
            if now < before {
                return Err(format!(
                    "{STOP}: `count` of {} fell from {before} to {now} in a stop, during {between}",
                    named(core, object)
                ));
            }
        }
        Ok(())
    }
}

/// Whether a collection holds a reference to the object.
fn is_held<M: ObjectModel>(core: &Core<M>, object: Stopped<'_>) -> bool {
    state_of(&core.space, object.object()).get() & UNREACHABLE != 0
}

/// Runs a part of a stop after its merge, and compares the answers of the model before and after
/// it.
pub(super) fn watch<M: ObjectModel>(world: &World<'_, M>, phases: &mut dyn FnMut()) {
    let core = world.core();
    if !are_checked(core) {
        return phases();
    }
    let mut asked = Asked::nothing(world);
    let mut outcome = Ok(());
    live(world, |object, state| {
        if state.get() & (TRACKED | DYING) == TRACKED && outcome.is_ok() {
            outcome = asked.ask(world, core.space.granule(object.address()), object);
        }
    });
    let compared = outcome.and_then(|()| {
        phases();
        asked.compare(world, "the phases of the stop")
    });
    compared.unwrap_or_else(|error| breach(core, "in a collection", &error));
}

/// Compares the references that a traversal of `object` has reported with those of a second
/// traversal, and of a traversal by `traverse_each`. Panics of traversals unwind, and the tracer's
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
    if first != second {
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
    if first != together {
        return differ(TRAVERSAL, "traverse_each", &together);
    }
    Ok(())
}

/// Checks what a merge has put into its list, before the objects are marked as dying. `limit` is
/// the answer of `pending` before the merge.
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
        // With adjustments the count alone is not complete.
        if !AdjustedOf::<M>::PRESENT && count != Count::Exact(0) {
            return Err(format!(
                "{MERGE}: `merge` has reported {} as dead, and its count is {count:?}",
                named(core, stopped)
            ));
        }
    }
    Ok(())
}

pub(super) fn callbacks<M: ObjectModel>(
    core: &Core<M>,
    object: Stopped<'_>,
    limit: usize,
    taken: usize,
) {
    if are_checked(core) && taken > limit {
        let error = format!(
            "{LIMITS}: `callbacks` of {} returned {limit}, and `take_callbacks` has taken {taken}",
            named(core, object)
        );
        breach(core, "in the claim", &error);
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
