//! Tests of `verify/objects.rs`.

#![forbid(unsafe_code)]

use super::*;
use crate::collect::tests::script::{Raw, Script};
use crate::object::state::OLD;
use crate::verify::rules::ADVICE;
use std::sync::Arc;

use crate::base::stress::Stress;
use crate::base::sync::AtomicBool;
use crate::object::address::Object;
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
    let middle =
        |_: &Raw, b: Object| Object::new(b.as_ptr().map_addr(|address| address.saturating_add(16)));
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
            crate::collect::sweep::promote_now(&mut m).unwrap();
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
    let damaged = |m: &Raw, objects: &[Object]| Script::of(m, objects[0], |thing| thing.has = "x");
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
        m.model().when("after_clear", |m| assert_ne!(Script::thing(m, 'z', "x", "s").address(), 0));
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
