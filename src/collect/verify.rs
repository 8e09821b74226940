//! Verification of a whole heap.
//!
//! The stress modes, the tests and [`Mutator::verify`](crate::Mutator::verify) use it.
//!
//! The verifier compares two views of the same memory. The *pages*: the free cells according to the
//! pool, the arenas' lists, the free bits, the remote stacks and the quarantine. The *objects*: the
//! live objects according to the state bytes, the headers and the fields. A cell in neither view is
//! no error: it may be allocated and hold no object yet.

#![forbid(unsafe_code)]

use crate::collect::listing;
use crate::collect::scope::stopped_at;
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

/// The end of each message: possible causes, and how to find the cause.
const ADVICE: &str = "Unsafe code, an object model, a C extension or this library has damaged the \
                      heap or a count since the last verification. More of `standstill::Stress`, \
                      or STANDSTILL_STRESS=all, may find the damage earlier: poison and quarantine \
                      find writes through stale pointers. `standstill::model::check` tells which \
                      rule an object model breaks, and in which method";

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
        m.model().resumed(m);
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
    world.adjust().map_err(|_| NoMemory::REASON.to_owned())?;
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
                        let name = core.model.type_name(object.live());
                        error = Some(format!(
                            "the {name} at {:#x} refers to {edge:#x}, where no object is",
                            object.address()
                        ));
                        return;
                    }
                    if is_counted && depth >= Depth::Counts {
                        *visits.entry(target).or_default() += 1;
                    }
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
        let count = count + world.adjustment(granule);
        let bits = StateByte(&states[granule]).get();
        if count < visits && bits & (UNREACHABLE | DYING) == 0 {
            let name = core.model.type_name(object.live());
            return Err(format!(
                "the {name} at {:#x} is visited {visits} times but has {count} references",
                object.address()
            ));
        }
    }
    Ok(())
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
            assert_eq!(result, always(text));
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
        assert_eq!((structure, counts, complete), (Ok(()), Err(text.clone()), Err(text)));
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
                crate::collect::promote_now(&mut m).unwrap();
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
                    drop(m.stop_here().unwrap());
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
        assert!(text.starts_with("before a collection, heap 'scripted': the thing at "), "{text}");
        assert!(text.contains(" is visited 2 times but has 1 references. "), "{text}");
    }
}
