//! Collections whose child has searched, while another thread changes the graph.
//!
//! The child itself is a process, and so none of this. What it has proposed was put off into the
//! collector lock, and the threads go on with it at their safepoints. Each model proposes more than
//! the garbage, as a child may.
//!
//! # Transitions
//!
//! The page of `heap/unfinished.rs` has the states, and that of `collect/forked.rs` the argument.
//!
//! * put off, taken up for a stop, put off, closed: `a_part_meets_a_moving_edge`
//! * taken up by two threads: `two_threads_go_on`
//! * taken up, while another thread collects: `a_full_collection_supersedes_a_proposal`,
//!   `a_young_collection_meets_a_part`
//! * put off when the heap ends: `a_heap_ends_with_a_proposal`

use std::sync::atomic::Ordering::Relaxed;

use loom::thread;

use super::model;
use super::tiny::{Mutator, Tiny, set, try_new};
use crate::collect::forked::{go_on, put_off_proposed};
use crate::collect::reclaim;
use crate::heap::reclaim_queue::Owner;
use crate::model::ModelHeap;
use crate::object::address::Object;
use crate::{Collect, CollectError, Heap, Pacing};

fn heap() -> ModelHeap<Tiny> {
    let heap = Heap::builder().pacing(Pacing::manual()).workers(1);
    heap.build_with(Tiny::default()).unwrap()
}

/// An object that refers to itself, with one more reference.
fn cycle(m: &Mutator) -> Object {
    let object = try_new(m, false).unwrap();
    set(m, object, Some(m.model().add_ref(object)));
    object
}

/// Puts off a proposal with a part for each list.
fn propose(m: &mut Mutator, parts: &[&[Object]]) {
    let mut words = Vec::new();
    for (number, part) in parts.iter().enumerate() {
        for object in *part {
            let granule = m.core().space.granule(object.address());
            words.push((number as u64) << 32 | granule as u64);
        }
    }
    put_off_proposed(m, &words);
}

/// Goes on once. Another thread may collect.
fn step(m: &mut Mutator) {
    match go_on(m) {
        Ok(()) | Err(CollectError::Busy) => m.safepoint(),
        Err(error) => panic!("{error}"),
    }
}

/// Goes on to the end. No other thread is attached.
fn finish(m: &mut Mutator) {
    let core = std::sync::Arc::clone(m.core());
    let lock = &core.collector_lock;
    let mut steps = 0;
    while lock.is_unfinished() || lock.is_reclaiming() {
        step(m);
        // Also the garbage of the thread that has ended.
        reclaim::reclaim(m, Owner::Any, usize::MAX);
        steps += 1;
        assert!(steps <= 4, "a step for each part, one before, and one after the other thread");
    }
}

/// Runs two roles on two objects that `make` has proposed. `end` must leave no object.
fn race(
    make: fn(&mut Mutator) -> [Object; 2],
    roles: [fn(&mut Mutator, [Object; 2]); 2],
    end: fn(&mut Mutator, [Object; 2]),
) {
    for [mine, theirs] in [roles, [roles[1], roles[0]]] {
        model(move || {
            let heap = heap();
            let mut m = heap.attach();
            let objects = make(&mut m);
            let other = {
                let heap = heap.clone();
                thread::spawn(move || theirs(&mut heap.attach(), objects))
            };
            mine(&mut m, objects);
            m.detach(|| other.join().unwrap());
            finish(&mut m);
            end(&mut m, objects);
            m.try_collect(Collect::full()).unwrap();
            drop(m);
            assert_eq!(heap.model().destroyed.load(Relaxed), heap.model().born.load(Relaxed));
        });
    }
}

fn goes_on(m: &mut Mutator, _: [Object; 2]) {
    step(m);
    step(m);
}

/// A thread takes the only edge to a proposed cycle out of a proposed object, carries it over a
/// safepoint, and puts it back.
///
/// Mutations: candidates with references from outside make no roots (`collect/roots.rs`); an object
/// that is not proven keeps its bit (`collect/forked.rs`, `Named`).
#[test]
fn loom_a_part_meets_a_moving_edge() {
    let make = |m: &mut Mutator| {
        let [holder, held] = [try_new(m, false).unwrap(), cycle(m)];
        set(m, holder, Some(held));
        propose(m, &[&[holder, held]]);
        // The reference of `make` is the mover's.
        [m.model().add_ref(holder), held]
    };
    let mover = |m: &mut Mutator, [holder, held]: [Object; 2]| {
        let taken = set(m, holder, None);
        m.safepoint();
        assert!(!m.model().body(held, |body| body.cleared), "cleared while a thread holds it");
        set(m, holder, taken);
        m.model().drop_ref(holder, m);
    };
    race(make, [goes_on, mover], |m, [holder, held]| {
        assert!(!m.model().body(held, |body| body.cleared), "cleared while an object holds it");
        m.model().drop_ref(holder, m);
    });
}

/// Both parts are garbage, and each of two threads goes on when it can. Each part is collected
/// once.
#[test]
fn loom_two_threads_go_on() {
    let make = |m: &mut Mutator| {
        let objects = [cycle(m), cycle(m)];
        objects.iter().for_each(|&object| m.model().drop_ref(object, m));
        propose(m, &[&objects[..1], &objects[1..]]);
        objects
    };
    race(make, [goes_on, goes_on], |m, _| {
        assert_eq!(m.model().destroyed.load(Relaxed), 2);
        assert_eq!(m.core().totals.collected.load(crate::base::sync::Ordering::Relaxed), 2);
    });
}

/// A thread requests a full collection while another one goes on. The garbage is collected once,
/// by either.
///
/// Mutation: a collection that was taken up still seems to be put off (`heap/collector_lock.rs`).
#[test]
fn loom_a_full_collection_supersedes_a_proposal() {
    let make = |m: &mut Mutator| {
        let objects = [cycle(m), cycle(m)];
        m.model().drop_ref(objects[0], m);
        propose(m, &[&objects[..1], &objects[1..]]);
        objects
    };
    let collects = |m: &mut Mutator, [_, held]: [Object; 2]| {
        m.try_collect(Collect::full()).unwrap();
        assert_eq!(m.model().destroyed.load(Relaxed), 1, "a full collection leaves nothing");
        assert!(!m.model().body(held, |body| body.cleared));
    };
    race(make, [goes_on, collects], |m, [_, held]| m.model().drop_ref(held, m));
}

/// The same with a young collection, which leaves the proposal.
#[test]
fn loom_a_young_collection_meets_a_part() {
    let make = |m: &mut Mutator| {
        let objects = [cycle(m), cycle(m)];
        m.model().drop_ref(objects[0], m);
        propose(m, &[&objects]);
        objects
    };
    let collects = |m: &mut Mutator, [_, held]: [Object; 2]| {
        m.try_collect(Collect::young()).unwrap();
        assert!(!m.model().body(held, |body| body.cleared));
    };
    race(make, [goes_on, collects], |m, [_, held]| {
        assert_eq!(m.model().destroyed.load(Relaxed), 1);
        m.model().drop_ref(held, m);
    });
}

/// Nothing is lost, and nothing waits.
#[test]
fn loom_a_heap_ends_with_a_proposal() {
    model(|| {
        let heap = heap();
        let mut m = heap.attach();
        let object = cycle(&m);
        propose(&mut m, &[&[object]]);
        let other = {
            let heap = heap.clone();
            thread::spawn(move || step(&mut heap.attach()))
        };
        m.model().drop_ref(object, &m);
        drop(m);
        other.join().unwrap();
    });
}
