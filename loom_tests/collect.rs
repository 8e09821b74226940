//! Whole collections, by the collector itself, while another thread changes the graph.
//!
//! Space, arenas, coordinator, side tables and the ten steps are the real ones. Only the marking
//! pool is replaced by the serial driver, because loom cannot follow rayon's threads. The objects
//! are those of the [tiny model](super::tiny): an atomic count, and a body that only the stop
//! protects. loom reports it if the collector and the other thread access a body at once, or if one
//! does not see an earlier write of the other.
//!
//! # Transitions
//!
//! The page of `collect` describes the steps, and the page of `collector_lock` its states.
//!
//! * the collector lock: acquired, waited for, released: `two_collectors_take_turns`,
//!   `young_meets_full`
//! * the lock is not acquired, and the thread stops for the other one:
//!   `a_collection_that_gives_way_is_a_safepoint`
//! * counting and marking against a graph that changes before and after the stop:
//!   `collection_meets_a_moving_edge`, `young_collection_meets_a_moving_edge`
//! * claim, clear, release, against the last drop: `collection_meets_the_last_drop`
//! * finalizers; recheck: an object is resurrected, alone, or with the objects that it reaches:
//!   `resurrection_meets_a_taker`, `a_resurrected_object_keeps_the_objects_it_reaches`
//! * young against full: `young_meets_full`
//! * ageing; pages made young again by a tracked object, a new object, a freed cell:
//!   `late_tracking_meets_a_young_collection`, `allocation_makes_a_page_young`,
//!   `a_freed_cell_makes_a_page_young`
//! * a promotion: pages with cells in magazines stay young, late tracking makes a page young again,
//!   old objects are left to a full collection: `allocation_meets_a_promotion`,
//!   `late_tracking_meets_a_promotion`
//! * a mutator is created, and ends: `collection_meets_a_birth_and_an_end`
//! * the trigger flag: raised by a refill, taken at a safepoint: `the_heap_collects_by_itself`
//! * a reclaim queue: handed over, its batches taken by their owners, and by a requester:
//!   `the_heap_collects_by_itself`, `a_requester_finishes_the_reclaim_queue`,
//!   `a_reclaim_queue_is_finished_once`,
//!   `collector_lock::a_reclaim_queue_ends_once_and_the_lock_is_released`
//! * weak references cleared in the first stop, in the second:
//!   `managed::weak_handle_meets_a_collection`, `managed::weak_handle_meets_finalizers`
//! * pending counts merged in the stop: `managed::a_collection_merges_the_queues`,
//!   `managed::deferred_drop_meets_a_collection`
//! * several workers: none, because loom cannot follow rayon's threads; see
//!   `docs/memory-ordering.md` and ThreadSanitizer

use std::sync::atomic::Ordering::Relaxed;

use loom::thread;

use super::model;
use super::tiny::{Mutator, Tiny, set, try_new};
use crate::base::sync::Ordering;
use crate::model::ModelHeap;
use crate::object::address::Object;
use crate::{Collect, CollectError, Heap, Pacing};

/// A tracked object with one reference.
fn new(m: &Mutator, finalizer: bool) -> Object {
    try_new(m, finalizer).unwrap()
}

/// As [`new`], but the object is not tracked yet.
fn new_untracked(m: &Mutator) -> Object {
    let object = new(m, false);
    // SAFETY: alive, and of this heap.
    assert!(unsafe { m.untrack(object) });
    object
}

/// An object that refers to itself.
fn new_cycle(m: &Mutator, finalizer: bool) -> Object {
    let object = new(m, finalizer);
    set(m, object, Some(m.model().add_ref(object)));
    object
}

fn assert_whole(m: &Mutator, object: Object) {
    assert!(!m.model().body(object, |body| body.cleared), "cleared while a thread holds it");
}

fn collect(m: &mut Mutator, _: [Object; 2]) -> usize {
    collect_as(m, Collect::full())
}

fn collect_young(m: &mut Mutator, _: [Object; 2]) -> usize {
    collect_as(m, Collect::young())
}

fn collect_as(m: &mut Mutator, what: Collect) -> usize {
    let report = m.try_collect(what).unwrap();
    assert_eq!((report.abandoned, report.uncollectable, report.overvisited), (None, 0, 0));
    report.collected
}

/// The work of a thread on the objects of a model. Returns the number of collected objects.
type Role = fn(&mut Mutator, [Object; 2]) -> usize;

/// Checks the objects afterwards, given the number of collected objects.
type End = fn(&mut Mutator, [Object; 2], usize);

/// Runs two mutators on two objects of a heap. `end` gets the number of collected objects, and must
/// leave no object.
///
/// Each role runs once on the first thread. That thread is attached already, which saves one of the
/// bounded preemptions.
fn race(make: fn(&mut Mutator) -> [Object; 2], roles: [Role; 2], end: End) {
    race_paced(Pacing::manual(), make, roles, end);
}

/// The same, in a heap that may start collections.
fn race_paced(pacing: Pacing, make: fn(&mut Mutator) -> [Object; 2], roles: [Role; 2], end: End) {
    let orders = [roles, [roles[1], roles[0]]];
    let alike = std::ptr::fn_addr_eq(roles[0], roles[1]);
    for [mine, theirs] in orders.into_iter().take(if alike { 1 } else { 2 }) {
        // Every interleaving would take hours.
        model(move || {
            let heap = Heap::builder().pacing(pacing).workers(1);
            let heap: ModelHeap<Tiny> = heap.build_with(Tiny::default()).unwrap();
            let mut m = heap.attach();
            let objects = make(&mut m);
            let other = {
                let heap = heap.clone();
                thread::spawn(move || theirs(&mut heap.attach(), objects))
            };
            let mine = mine(&mut m, objects);
            let theirs = m.detach(|| other.join().unwrap());
            end(&mut m, objects, mine + theirs);
            drop(m);
            assert_eq!(heap.model().destroyed.load(Relaxed), heap.model().born.load(Relaxed));
            assert_eq!(heap.stats().live_objects, 0);
        });
    }
}

/// A thread takes the only edge to a cycle out of an object, carries it over a safepoint, and puts
/// it back.
///
/// Mutations: one reference that the set does not explain makes no root (`collect/roots.rs`);
/// marking does not follow edges (`collect/mark.rs`); a parked thread does not wait for the end
/// of the stop (`safepoint/`, `park_slow`); the requester does not wait for the parked thread
/// (`await_arrivals`).
#[test]
fn loom_collection_meets_a_moving_edge() {
    let make = |m: &mut Mutator| {
        let [holder, cycle] = [new(m, false), new_cycle(m, false)];
        set(m, holder, Some(cycle));
        // The mover's reference, and one for the end.
        [m.model().add_ref(holder), cycle]
    };
    let mover: Role = |m, [holder, cycle]| {
        let taken = set(m, holder, None);
        m.safepoint();
        assert_whole(m, cycle);
        assert_eq!(set(m, holder, taken), None);
        m.safepoint();
        assert_whole(m, holder);
        m.model().drop_ref(holder, m);
        0
    };
    race(make, [mover, collect], |m, [holder, cycle], collected| {
        assert_eq!(collected, 0);
        assert_whole(m, holder);
        assert_whole(m, cycle);
        m.model().drop_ref(holder, m);
        assert_eq!(collect(m, [holder, cycle]), 1);
    });
}

/// A thread drops the last handle to a cycle of two objects while another thread collects. One of
/// two collections gets the cycle.
///
/// Mutations: the claim takes no references, so clearing frees objects that are released later;
/// `clear` releases nothing; the sweep leaves the marks (`wipe`).
#[test]
fn loom_collection_meets_the_last_drop() {
    let make = |m: &mut Mutator| {
        let [one, two] = [new(m, false), new(m, false)];
        set(m, one, Some(two));
        set(m, two, Some(m.model().add_ref(one)));
        [one, two]
    };
    let dropper: Role = |m, [one, two]| {
        assert_whole(m, one);
        m.safepoint();
        assert_whole(m, two);
        m.model().drop_ref(one, m);
        0
    };
    race(make, [dropper, collect], |m, objects, collected| {
        assert_eq!(collected + collect(m, objects), 2);
    });
}

/// A finalizer gives a reference away. Another thread takes it, and may drop it before the recheck.
/// There is plain garbage, too.
///
/// Mutations: no recheck; the recheck does not count the claim's own reference, so that all objects
/// seem to be held from outside, or the recheck takes all objects for held from inside.
#[test]
fn loom_resurrection_meets_a_taker() {
    let make = |m: &mut Mutator| {
        let objects = [new_cycle(m, true), new_cycle(m, false)];
        objects.map(|object| {
            m.model().drop_ref(object, m);
            object
        })
    };
    let taker: Role = |m, _| {
        let taken = m.model().revived.lock().take();
        if let Some(object) = taken {
            // SAFETY: alive, and of this heap.
            assert!(unsafe { m.is_finalized(object) });
            assert_whole(m, object);
            m.safepoint();
            assert_whole(m, object);
            m.model().drop_ref(object, m);
        }
        0
    };
    race(make, [taker, collect], |m, objects, collected| {
        let left = m.model().revived.lock().take();
        if let Some(object) = left {
            assert_whole(m, object);
            m.model().drop_ref(object, m);
        }
        // The plain object was collected in the first collection. If the other object was
        // resurrected, it is garbage by now, and finalized.
        assert!(collected >= 1);
        assert_eq!(collected + collect(m, objects), 2);
    });
}

/// Two threads collect, one after the other. One of them gets the cycle.
///
/// Mutations: the collector lock is released without a notification (`CollectorLock::release`); the
/// requester stays attached (`collect/mod.rs`).
#[test]
fn loom_two_collectors_take_turns() {
    let make = |m: &mut Mutator| {
        let cycle = new_cycle(m, false);
        m.model().drop_ref(cycle, m);
        [cycle; 2]
    };
    race(make, [collect, collect], |_, _, collected| assert_eq!(collected, 1));
}

/// Only an old object refers to a young one. A thread takes out this edge, carries it over a
/// safepoint, and puts it back, while another thread runs a young collection.
///
/// The old object is no candidate, so its edge is not counted: it looks like a reference from
/// outside.
#[test]
fn loom_young_collection_meets_a_moving_edge() {
    let make = |m: &mut Mutator| {
        let holder = new(m, false);
        assert_eq!(collect(m, [holder; 2]), 0);
        let cycle = new_cycle(m, false);
        set(m, holder, Some(cycle));
        [m.model().add_ref(holder), cycle]
    };
    let mover: Role = |m, [holder, cycle]| {
        let taken = set(m, holder, None);
        m.safepoint();
        assert_whole(m, cycle);
        assert_eq!(set(m, holder, taken), None);
        m.safepoint();
        m.model().drop_ref(holder, m);
        0
    };
    race(make, [mover, collect_young], |m, [holder, cycle], collected| {
        assert_eq!(collected, 0);
        assert_whole(m, cycle);
        m.model().drop_ref(holder, m);
        assert_eq!(collect(m, [holder, cycle]), 1);
    });
}

/// There is old and young garbage. One thread runs a young collection, and the other a full one.
#[test]
fn loom_young_meets_full() {
    let make = |m: &mut Mutator| {
        let old = new_cycle(m, false);
        assert_eq!(collect(m, [old; 2]), 0);
        let young = new_cycle(m, false);
        [old, young].map(|object| {
            m.model().drop_ref(object, m);
            object
        })
    };
    race(make, [collect_young, collect], |_, _, collected| assert_eq!(collected, 2));
}

/// A thread tracks objects late, on old pages, and drops them, while another thread runs a young
/// collection. This collection finds them, or the next one.
#[test]
fn loom_late_tracking_meets_a_young_collection() {
    let make = |m: &mut Mutator| {
        // Two objects: then no free cell of their page waits in a magazine.
        let objects = [new_untracked(m), new(m, false)];
        for object in objects {
            set(m, object, Some(m.model().add_ref(object)));
        }
        assert_eq!(collect(m, objects), 0);
        objects
    };
    let tracker: Role = |m, [untracked, old]| {
        // SAFETY: alive, and of this heap.
        unsafe {
            assert!(m.track(untracked));
            assert!(m.untrack(old) && m.track(old));
        }
        m.model().drop_ref(untracked, m);
        m.model().drop_ref(old, m);
        0
    };
    race(make, [tracker, collect_young], |m, objects, collected| {
        assert_eq!(collected + collect_young(m, objects), 2);
    });
}

/// A thread allocates on an old page, from its free cells, while another thread runs a young
/// collection. This collection finds the garbage, or the next one.
#[test]
fn loom_allocation_makes_a_page_young() {
    let allocator: Role = |m, _| {
        let cycle = new_cycle(m, false);
        m.model().drop_ref(cycle, m);
        0
    };
    race(two_on_an_old_page, [allocator, collect_young], end_young);
    // The same with one free cell left.
    let make = |m: &mut Mutator| {
        let object = new(m, false);
        assert_eq!(collect(m, [object; 2]), 0);
        [object, m.model().add_ref(object)]
    };
    race(make, [allocator, collect_young], end_young);
}

/// Makes young objects old without a traversal.
fn promote(m: &mut Mutator, _: [Object; 2]) -> usize {
    crate::collect::sweep::promote_now(m).unwrap();
    0
}

/// A thread makes garbage while another thread promotes. A full collection finds the garbage.
/// Objects made afterwards, on a page with a free cell in a magazine, are young.
#[test]
fn loom_allocation_meets_a_promotion() {
    let allocator: Role = |m, _| {
        let cycle = new_cycle(m, false);
        m.safepoint();
        m.model().drop_ref(cycle, m);
        0
    };
    let make = |m: &mut Mutator| {
        // One object: the other free cell of the refill waits in the magazine.
        let object = new(m, false);
        [object, m.model().add_ref(object)]
    };
    race(make, [allocator, promote], |m, objects, _| {
        promote(m, objects);
        // Either thread runs either role, so this cell may be in use by now. Then this allocation
        // makes its page young.
        let cycle = new_cycle(m, false);
        m.model().drop_ref(cycle, m);
        assert_eq!(collect_young(m, objects), 1);
        assert_eq!(collect(m, objects), 1);
        objects.iter().for_each(|&object| m.model().drop_ref(object, m));
    });
}

/// A thread tracks an old object again while another thread promotes. The object is young or old,
/// and is found in either case.
#[test]
fn loom_late_tracking_meets_a_promotion() {
    let tracker: Role = |m, [object, _]| {
        // SAFETY: alive, and of this heap.
        unsafe { assert!(m.untrack(object) && m.track(object)) };
        0
    };
    let make = |m: &mut Mutator| {
        let objects = [new(m, false), new(m, false)];
        for object in objects {
            set(m, object, Some(m.model().add_ref(object)));
        }
        assert_eq!(collect(m, objects), 0);
        objects
    };
    race(make, [tracker, promote], |m, objects, _| {
        objects.iter().for_each(|&object| m.model().drop_ref(object, m));
        // The second object is old in each case.
        let young = collect_young(m, objects);
        assert!(young <= 1);
        assert_eq!(young + collect(m, objects), 2);
    });
}

/// The same, in a cell that was freed there just before.
#[test]
fn loom_a_freed_cell_makes_a_page_young() {
    let reuser: Role = |m, [object, _]| {
        m.model().drop_ref(object, m);
        let cycle = new_cycle(m, false);
        m.model().drop_ref(cycle, m);
        0
    };
    race(two_on_an_old_page, [reuser, collect_young], |m, objects, collected| {
        // Before any allocation: a refill would make the page young.
        assert_eq!(collected + collect_young(m, objects), 1);
        m.model().drop_ref(objects[1], m);
    });
}

/// Two objects, on a page that is old after a collection, because none of its free cells waits in a
/// magazine.
fn two_on_an_old_page(m: &mut Mutator) -> [Object; 2] {
    let objects = [new(m, false), new(m, false)];
    assert_eq!(collect(m, objects), 0);
    objects
}

/// One object became garbage. A young collection finds it, if it was not found before.
fn end_young(m: &mut Mutator, objects: [Object; 2], collected: usize) {
    assert_eq!(collected + collect_young(m, objects), 1);
    objects.iter().for_each(|&object| m.model().drop_ref(object, m));
}

/// A thread attaches, makes garbage, and ends while another thread collects.
#[test]
fn loom_collection_meets_a_birth_and_an_end() {
    let guest: Role = |m, _| {
        let cycle = new_cycle(m, false);
        let plain = new(m, false);
        m.model().drop_ref(cycle, m);
        m.model().drop_ref(plain, m);
        0
    };
    race(
        |m| [new(m, false); 2],
        [collect, guest],
        |m, [object, _], collected| {
            m.model().drop_ref(object, m);
            assert_eq!(collected + collect(m, [object; 2]), 1);
        },
    );
}

/// A finalizer gives a reference away. The objects reachable from it are resurrected, too.
#[test]
fn loom_a_resurrected_object_keeps_the_objects_it_reaches() {
    let make = |m: &mut Mutator| {
        let [one, two] = [new(m, true), new(m, false)];
        set(m, one, Some(two));
        set(m, two, Some(one));
        [one, two]
    };
    let taker: Role = |m, [_, two]| {
        let taken = m.model().revived.lock().take();
        if let Some(one) = taken {
            m.safepoint();
            assert_whole(m, one);
            assert_whole(m, two);
            m.model().drop_ref(one, m);
        }
        0
    };
    race(make, [taker, collect], |m, objects, collected| {
        let left = m.model().revived.lock().take();
        if let Some(one) = left {
            objects.iter().for_each(|&object| assert_whole(m, object));
            m.model().drop_ref(one, m);
        }
        assert_eq!(collected + collect(m, objects), 2);
    });
}

/// A thread makes garbage until the heap finds that a collection is due, and passes safepoints.
fn make_garbage(m: &mut Mutator, _: [Object; 2]) -> usize {
    for _ in 0..2 {
        let cycle = new_cycle(m, false);
        m.model().drop_ref(cycle, m);
    }
    m.safepoint();
    0
}

/// Two threads make garbage, and the heap starts a collection. The flag that triggers it is not
/// lost, whichever thread collects, and whichever thread reclaims the garbage.
#[test]
fn loom_the_heap_collects_by_itself() {
    let pacing = Pacing::default().with_young_objects(2);
    race_paced(
        pacing,
        |m| [new(m, false); 2],
        [make_garbage, make_garbage],
        |m, [object, _], _| {
            m.model().drop_ref(object, m);
            assert!(m.model().destroyed.load(Relaxed) > 1, "no collection has begun");
            collect(m, [object; 2]);
        },
    );
}

/// One thread makes garbage until the heap starts a collection. Another thread requests a
/// collection, and helps to reclaim the garbage of the first.
#[test]
fn loom_a_requester_finishes_the_reclaim_queue() {
    let pacing = Pacing::default().with_young_objects(2);
    race_paced(
        pacing,
        |m| [new(m, false); 2],
        [make_garbage, collect],
        |m, [object, _], _| {
            m.model().drop_ref(object, m);
            collect(m, [object; 2]);
        },
    );
}

/// As the heap does: part of the garbage goes to the reclaim queue. The thread reclaims it at its
/// next safepoints, or another thread does.
fn collect_by_itself(m: &mut Mutator, _: [Object; 2]) -> usize {
    let _ = crate::collect::collection::collect_due(m, Collect::full());
    m.safepoint();
    0
}

/// A collection that the heap started leaves a reclaim queue. Another thread wants to collect, and
/// first finishes the queue. No object is left, no object is reclaimed twice, and the collector
/// lock is released.
#[test]
fn loom_a_reclaim_queue_is_finished_once() {
    let make = |m: &mut Mutator| {
        let objects = [new_cycle(m, false), new_cycle(m, false)];
        objects.map(|object| {
            m.model().drop_ref(object, m);
            object
        })
    };
    race(make, [collect_by_itself, collect], |m, objects, _| {
        assert_eq!(collect(m, objects), 0);
        assert_eq!(m.core().totals.collected.load(Ordering::Relaxed), 2);
    });
}

/// Collects as soon as no other thread does. The thread passes no other safepoint meanwhile.
fn collect_when_free(m: &mut Mutator, _: [Object; 2]) -> usize {
    loop {
        match m.try_collect(Collect::full().wait(false)) {
            Ok(report) => return report.collected,
            Err(CollectError::Busy) => thread::yield_now(),
            Err(error) => panic!("{error}"),
        }
    }
}

/// Two threads pass no safepoint but their collections, which do not wait for one another. A
/// collection that gives way to another one stops for it.
///
/// Mutation: a collection that gives way is no safepoint (`collect/mod.rs`, `collect`).
#[test]
fn loom_a_collection_that_gives_way_is_a_safepoint() {
    let make = |m: &mut Mutator| {
        let objects = [new_cycle(m, false), new_cycle(m, false)];
        objects.map(|object| {
            m.model().drop_ref(object, m);
            object
        })
    };
    race(make, [collect_when_free; 2], |m, objects, collected| {
        assert_eq!(collected, 2);
        assert_eq!(collect(m, objects), 0);
    });
}
