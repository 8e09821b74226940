//! Verification of a whole heap.
//!
//! The stress modes, the tests and [`Mutator::verify`](crate::Mutator::verify) use it.
//!
//! The verifier compares two views of the same memory. The *pages*: the free cells according to the
//! pool, the arenas' lists, the free bits, the remote stacks and the quarantine. The *objects*: the
//! live objects according to the state bytes, the headers and the fields. A cell in neither view is
//! no error: it may be allocated and hold no object yet.

#![forbid(unsafe_code)]

use crate::collect::adjustments::Adjustments;
use crate::collect::calls;
use crate::collect::listing;
use crate::collect::rules::{self, ADVICE, Asked, compare_traversals};
use crate::collect::scope::stopped_at;
use crate::object::live::Stopped;
use crate::object::state::{DYING, LIVE, TRACKED, UNREACHABLE};
use std::collections::HashMap;

use crate::base::fallible::NoMemory;
use crate::base::sync::Ordering;
use crate::collect::traversal::guard_traversal;
use crate::collect::verify_pages::{PageLists, pages};
use crate::heap::model::{Count, ObjectModel};
use crate::heap::mutator::ModelMutator;
use crate::heap::mutator::World;
use crate::memory::space::PAGE_GRANULES;
use crate::object::state::StateByte;
use crate::object::type_info::Tracer;

/// The extent of a verification.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd)]
pub(crate) enum Depth {
    /// The conditions that safe user code cannot break: pages, tables and headers are sound, and
    /// edges lead to live objects.
    Structure,
    /// Also that no object is visited more often than references to it exist. A wrong traversal can
    /// break this.
    Counts,
    /// Also that no traversal panics. The edges of an object are unknown if its traversal panics.
    Complete,
}

/// Verifies the heap if its stress modes include verification. Panics if the heap is damaged.
#[inline]
pub(crate) fn stressed<M: ObjectModel>(world: &World<'_, M>, when: &str) {
    if world.core().stress.verifies() {
        verify_now(world, when);
    }
}

#[cold]
#[inline(never)]
fn verify_now<M: ObjectModel>(world: &World<'_, M>, when: &str) {
    let core = world.core();
    let depth = if core.stress.verifies_counts() { Depth::Counts } else { Depth::Structure };
    if let Err(error) = check(world, depth) {
        panic!("{when}, heap '{}': {error}. {ADVICE}", core.name);
    }
    if let Some(strain) = &core.under {
        strain.verified();
    }
}

/// As [`stressed`], after a collection, with the world running.
#[inline]
pub(crate) fn after<M: ObjectModel>(m: &ModelMutator<M>) {
    if m.core().stress.verifies() {
        stop_and_verify(m);
    }
}

#[cold]
#[inline(never)]
fn stop_and_verify<M: ObjectModel>(m: &ModelMutator<M>) {
    // A stop that fails permanently is reported elsewhere, and so is a list that cannot be made.
    if let Ok(world) = m.stop_here() {
        if listing::list(&world, usize::MAX).is_ok() {
            verify_now(&world, "after a collection");
        }
        drop(world);
        calls::resumed(m);
    }
}

/// Checks the heap. The error names the first defect found.
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
    // Of each counted edge: the granule of its target, and its source.
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
                if let Err(what) = core.model.check(object) {
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
                    if M::LISTS_OBJECTS && !is_object {
                        // It is of no interest to collections, so it is not listed.
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
        // A traversal that panics is a defect in user code. The collection handles it.
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
mod tests {
    use super::*;
    use crate::collect::script::tests::{Raw, Script};
    use crate::object::state::OLD;
    use std::sync::Arc;

    use crate::base::stress::Stress;
    use crate::base::sync::AtomicBool;
    use crate::object::type_info::Object;
    use crate::{Heap, Pacing};

    /// Applies `damage` to two objects that refer to each other and an untracked third object. The
    /// test holds a reference to each. Returns the verifier's result at each depth.
    fn found(damage: impl FnOnce(&Raw, [Object; 3])) -> [Result<(), String>; 3] {
        let builder = Heap::builder().name("scripted").pacing(Pacing::manual()).reserve(1 << 28);
        let heap = builder.build_with(Script::default()).unwrap();
        let m = heap.attach();
        let things = ['a', 'b', 'c'].map(|name| Script::thing(&m, name, "", "s"));
        Script::link(&m, things[0], things[1]);
        Script::link(&m, things[1], things[0]);
        assert!(Script::untrack(&m, things[2]));
        let at_each_depth = || {
            let world = m.stop_here().unwrap();
            [Depth::Structure, Depth::Counts, Depth::Complete].map(|depth| check(&world, depth))
        };
        assert_eq!(at_each_depth(), [const { Ok(()) }; 3]);
        damage(&m, things);
        at_each_depth()
    }

    fn always(text: String) -> [Result<(), String>; 3] {
        std::array::from_fn(|_| Err(text.clone()))
    }

    const NO_ERRORS: [Result<(), String>; 3] = [const { Ok(()) }; 3];

    fn state(m: &Raw, object: Object) -> StateByte<'_> {
        m.core().state_at(object)
    }

    #[test]
    fn headers_of_all_objects_except_dying_ones_are_checked() {
        for at in [0, 2] {
            let mut address = 0;
            let result = found(|m, things| {
                address = things[at].address();
                Script::of(m, things[at], |thing| thing.has = "x");
            });
            let text =
                format!("the header of the object at {address:#x} is damaged: damage, on purpose");
            assert_eq!(result, always(text), "tracked or not");
        }
        let dying = |m: &Raw, [a, ..]: [Object; 3]| {
            Script::of(m, a, |thing| thing.has = "x");
            state(m, a).set(DYING);
        };
        assert_eq!(found(dying), NO_ERRORS);
    }

    #[test]
    fn fields_of_tracked_objects_lead_to_objects() {
        // The middle of an object, the memory of a dead object, and memory that never held an
        // object.
        let middle = |_: &Raw, b: Object| {
            Object::new(b.as_ptr().map_addr(|address| address.saturating_add(16)))
        };
        let free = |m: &Raw, _: Object| {
            let gone = Script::thing(m, 'd', "", "s");
            m.model().drop_ref(gone, m);
            gone
        };
        let unused = |m: &Raw, _: Object| Object::new(m.allocate(32, 32).unwrap());
        type Target<'a> = &'a dyn Fn(&Raw, Object) -> Object;
        let targets: [Target<'_>; 3] = [&middle, &free, &unused];
        for target in targets {
            let mut text = String::new();
            let result = found(|m, [a, b, _]| {
                let target = target(m, b);
                text = format!(
                    "the thing at {:#x} refers to {:#x}, where no object is",
                    a.address(),
                    target.address()
                );
                Script::of(m, a, |thing| thing.edges.push(target));
            });
            assert!(result.iter().all(|found| {
                found.as_ref().is_err_and(|found| found.contains(&text) && found.contains("rule 4"))
            }));
            // The verifier does not traverse untracked objects, and does not follow the edges of
            // unreadable objects.
            let result = found(|m, [_, b, c]| {
                let target = target(m, b);
                Script::of(m, c, |thing| thing.edges.push(target));
            });
            assert_eq!(result, NO_ERRORS);
            let result = found(|m, [a, b, _]| {
                let target = target(m, b);
                Script::of(m, a, |thing| {
                    thing.edges.push(target);
                    thing.traversals = "h";
                });
            });
            assert_eq!(result, NO_ERRORS);
        }
    }

    #[test]
    fn no_object_is_visited_more_often_than_it_is_referred_to() {
        let mut text = String::new();
        let twice = |m: &Raw, [a, b, _]: [Object; 3]| {
            Script::of(m, a, |thing| thing.traversals = "t");
            assert_eq!(Script::of(m, b, |thing| thing.count), 2);
        };
        assert_eq!(found(twice), NO_ERRORS, "as often as it is referred to");
        let [structure, counts, complete] = found(|m, things| {
            twice(m, things);
            m.model().drop_ref(things[1], m);
            text = format!(
                "the thing at {:#x} is visited 2 times but has 1 references",
                things[1].address()
            );
        });
        assert_eq!((structure, &counts), (Ok(()), &complete));
        let error = counts.unwrap_err();
        assert!(error.contains(&text), "{error}");
        for part in ["rule 1", "rule 4", " (2 times)"] {
            assert!(error.contains(part), "{error}");
        }
        // Objects that are about to be cleared are excluded.
        let unreachable = |m: &Raw, things: [Object; 3]| {
            twice(m, things);
            m.model().drop_ref(things[1], m);
            state(m, things[1]).set(UNREACHABLE);
        };
        assert_eq!(found(unreachable), NO_ERRORS);
    }

    #[test]
    fn a_traversal_that_panics_is_an_error_where_everything_is_to_be_seen() {
        let result = found(|m, [a, ..]| Script::of(m, a, |thing| thing.traversals = "p"));
        assert_eq!(result, [Ok(()), Ok(()), Err("a traversal, on purpose".to_owned())]);
    }

    #[test]
    fn states_of_what_is_no_object() {
        let mut text = String::new();
        let result = found(|m, _| {
            let object = Object::new(m.allocate(32, 32).unwrap());
            state(m, object).set(OLD);
            text = format!("a free cell at {:#x} has state 0x10", object.address());
        });
        assert_eq!(result, always(text));
        let mut text = String::new();
        let result = found(|m, _| {
            let space = &m.core().space;
            space.states()[0].store(LIVE, Ordering::Relaxed);
            text = format!("no object starts at {:#x}, yet it has a state", space.address(0));
        });
        assert_eq!(result, always(text));
    }

    /// Applies `damage` to a ring of two objects. Then runs a collection or a promotion under this
    /// stress. Returns the message of the verifier's panic, and how often the verifier found a
    /// sound heap.
    fn stressed_by(
        stress: Stress,
        damage: impl FnOnce(&Raw, &[Object]),
        promotes: bool,
    ) -> (String, u64) {
        let builder =
            Heap::builder().name("scripted").pacing(Pacing::manual()).reserve(1 << 28).workers(1);
        let heap = builder.stress(stress).build_with(Script::default()).unwrap();
        let mut m = heap.attach();
        let objects = Script::ring(&m, &[('a', "f"), ('b', "")]);
        Script::thing(&m, 'k', "", "s");
        damage(&m, &objects);
        let panics = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            if promotes {
                assert!(m.core().collector_lock.try_acquire());
                crate::collect::promotion::promote_now(&mut m).unwrap();
            } else {
                assert_eq!(m.try_collect(crate::Collect::full()).unwrap().collected, 2);
            }
        }));
        let text = panics.err().map_or(String::new(), |panic| *panic.downcast::<String>().unwrap());
        let verifications = heap.stress_stats().verifications;
        (text, verifications)
    }

    #[test]
    fn under_stress_the_heap_is_verified_before_within_and_after_each_collection() {
        let verify = Stress::none().verify(true);
        let nothing = |_: &Raw, _: &[Object]| ();
        if Heap::builder().build().unwrap().core().stress != Stress::none() {
            return; // The environment asks for more of it.
        }
        assert_eq!(stressed_by(Stress::none(), nothing, false), (String::new(), 0));
        assert_eq!(stressed_by(verify, nothing, false), (String::new(), 3));
        assert_eq!(stressed_by(verify, nothing, true), (String::new(), 1));
        let damaged =
            |m: &Raw, objects: &[Object]| Script::of(m, objects[0], |thing| thing.has = "x");
        for (promotes, when) in [(false, "before a collection"), (true, "after a promotion")] {
            let (text, verifications) = stressed_by(verify, damaged, promotes);
            let start = format!("{when}, heap 'scripted': the header of the object at ");
            let end = format!(" is damaged: damage, on purpose. {ADVICE}");
            assert!(text.starts_with(&start) && text.ends_with(&end), "{text}");
            assert_eq!(verifications, 0);
        }
        // `resumed` is called on the model, and the world is running then.
        let resumed = Arc::new(AtomicBool::new(false));
        let is_resumed = resumed.clone();
        let looks_again = |m: &Raw, _: &[Object]| {
            m.model().when("after_clear", move |m| {
                m.model().when("resumed", move |m| {
                    assert!(m.is_lent() && !crate::safepoint::is_stopping());
                    is_resumed.store(true, Ordering::Relaxed);
                });
            });
        };
        assert_eq!(stressed_by(verify, looks_again, false), (String::new(), 3));
        assert!(resumed.load(Ordering::Relaxed));
        // Later damage is found by the next verification.
        let later = |m: &Raw, _: &[Object]| {
            m.model()
                .when("after_clear", |m| assert_ne!(Script::thing(m, 'z', "x", "s").address(), 0));
        };
        let (text, verifications) = stressed_by(verify, later, false);
        assert!(text.starts_with("after a collection, heap 'scripted': the header of "), "{text}");
        assert_eq!(verifications, 2);
    }

    #[test]
    fn under_stress_a_wrong_traversal_is_an_error_only_where_counts_are_verified() {
        let twice = |m: &Raw, objects: &[Object]| {
            let kept = Script::thing(m, 't', "", "t");
            let target = Script::thing(m, 'u', "", "s");
            Script::link(m, kept, target);
            m.model().drop_ref(target, m);
            assert!(objects.len() == 2);
        };
        if Heap::builder().build().unwrap().core().stress != Stress::none() {
            return; // The environment asks for more of it.
        }
        assert_eq!(stressed_by(Stress::none().verify(true), twice, false), (String::new(), 3));
        let (text, _) = stressed_by(Stress::none().verify_counts(true), twice, false);
        assert!(text.starts_with("before a collection, heap 'scripted': rule 4 ("), "{text}");
        assert!(text.contains(" is visited 2 times but has 1 references; "), "{text}");
    }
}
