//! Whole collections, by the collector itself, while another thread changes the graph.
//!
//! Space, arenas, coordinator, side tables and the ten steps are the real ones; only the marking pool is
//! replaced by the serial driver (loom cannot see rayon's threads). The objects are those of a tiny
//! [`ObjectModel`]: an atomic count, and a body that nothing protects but the stop. loom reports it when the
//! collector and the other thread touch a body at once, or one does not see what the other did.
//!
//! Each model names the mutation that makes it fail; each was tried.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize as Plain, Ordering::Relaxed};

use loom::thread;

use crate::model::{ModelHeap, ModelMutator, Object, ObjectModel, Tracer};
use crate::safepoint::ThreadId;
use crate::sync::{AtomicUsize, Mutex, Ordering, UnsafeCell};
use crate::{Collect, Heap, Pacing};

type Mutator = ModelMutator<Tiny>;

/// Explores `f`, which has more branches than loom expects of a model.
fn model(f: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = builder.preemption_bound.or(Some(2));
    builder.max_branches = 20_000;
    builder.check(f);
}

/// What lies in a cell.
struct Node {
    count: AtomicUsize,
    body: UnsafeCell<Body>,
}

struct Body {
    /// Counted.
    edge: Option<Object>,
    cleared: bool,
    finalizer: bool,
}

#[derive(Default)]
struct Tiny {
    /// What the test knows, no part of the protocol.
    born: Plain,
    destroyed: Plain,
    /// Where finalizers put a reference.
    revived: Mutex<Option<Object>>,
}

impl Tiny {
    fn node(&self, object: Object) -> &Node {
        // SAFETY: rule 4: whoever names an object here holds a reference, or is the collector in a stop.
        unsafe { object.as_ptr().cast().as_ref() }
    }

    fn body<R>(&self, object: Object, f: impl FnOnce(&mut Body) -> R) -> R {
        // SAFETY: the claim under test: the stop, or who alone reaches the object. loom checks it.
        self.node(object).body.with_mut(|body| f(unsafe { &mut *body }))
    }

    fn add_ref(&self, object: Object) -> Object {
        self.node(object).count.fetch_add(1, Ordering::Relaxed);
        object
    }

    fn drop_ref(&self, object: Object, m: &Mutator) {
        let mut next = Some(object);
        while let Some(object) = next {
            if self.node(object).count.fetch_sub(1, Ordering::AcqRel) != 1 {
                return;
            }
            next = self.body(object, |body| body.edge.take());
            self.destroyed.fetch_add(1, Relaxed);
            // SAFETY: rule 2: the count is 0, so nobody else knows the object.
            unsafe {
                object.as_ptr().cast::<Node>().drop_in_place();
                m.free(object.as_ptr());
            }
        }
    }
}

// SAFETY: 1. `count` is the one count there is. 2. `drop_ref` frees at 0. 3. only attached threads drop.
// 4. edges are counted. 5. nothing is pending. 6. nothing here reaches a safepoint.
unsafe impl ObjectModel for Tiny {
    type Local = ();
    type Callback = ();
    type Private = ();

    const STABLE_DURING_STOP: bool = true;

    fn local(&self) {}

    fn private(&self) {}

    unsafe fn count(&self, object: Object) -> Option<i64> {
        Some(self.node(object).count.load(Ordering::Relaxed) as i64)
    }

    unsafe fn traverse(&self, object: Object, tracer: &mut Tracer) {
        // SAFETY: the world is stopped.
        let edge = self.node(object).body.with(|body| unsafe { (*body).edge });
        if let Some(target) = edge {
            // SAFETY: rule 4.
            unsafe { tracer.visit_object(target) };
        }
    }

    unsafe fn hold(&self, object: Object, _: ThreadId) {
        self.add_ref(object);
    }

    unsafe fn release(&self, object: Object, m: &Mutator) {
        self.drop_ref(object, m);
    }

    unsafe fn clear(&self, object: Object, m: &Mutator) {
        let edge = self.body(object, |body| {
            body.cleared = true;
            body.edge.take()
        });
        if let Some(target) = edge {
            self.drop_ref(target, m);
        }
    }

    unsafe fn has_finalizer(&self, object: Object) -> bool {
        // SAFETY: set at birth and never changed.
        self.node(object).body.with(|body| unsafe { (*body).finalizer })
    }

    unsafe fn finalize(&self, object: Object, _: &Mutator) {
        *self.revived.lock() = Some(self.add_ref(object));
    }
}

/// A tracked object with one reference.
fn new(m: &Mutator, finalizer: bool) -> Object {
    let cell = m.allocate(size_of::<Node>(), 32).unwrap().cast::<Node>();
    let body = Body { edge: None, cleared: false, finalizer };
    // SAFETY: the cell is ours, large enough and aligned; once written, the model can count it.
    unsafe {
        cell.write(Node { count: AtomicUsize::new(1), body: UnsafeCell::new(body) });
        let object = Object::new(NonNull::cast(cell));
        m.publish(object, true);
        m.model().born.fetch_add(1, Relaxed);
        object
    }
}

/// An object that refers to itself.
fn new_cycle(m: &Mutator, finalizer: bool) -> Object {
    let object = new(m, finalizer);
    set(m, object, Some(m.model().add_ref(object)));
    object
}

/// Sets an object's edge to a reference that the caller gives up; the old one comes back.
fn set(m: &Mutator, object: Object, edge: Option<Object>) -> Option<Object> {
    m.model().body(object, |body| std::mem::replace(&mut body.edge, edge))
}

fn assert_whole(m: &Mutator, object: Object) {
    assert!(!m.model().body(object, |body| body.cleared), "cleared while somebody holds it");
}

fn collect(m: &mut Mutator, _: [Object; 2]) -> usize {
    let report = m.try_collect(Collect::full()).unwrap();
    assert_eq!((report.abandoned, report.uncollectable, report.overvisited), (None, 0, 0));
    report.collected
}

/// What a thread does to the objects of a model; comes back: how many it collected.
type Role = fn(&mut Mutator, [Object; 2]) -> usize;

/// Looks at the objects afterwards, given how many were collected.
type End = fn(&mut Mutator, [Object; 2], usize);

/// Lets two mutators loose on two objects of a heap; `end` learns how many they collected, and leaves nothing.
///
/// Each role is on the first thread once: that one is attached already, which saves one of the preemptions that
/// the search is bounded by.
fn race(make: fn(&Mutator) -> [Object; 2], roles: [Role; 2], end: End) {
    for [mine, theirs] in [roles, [roles[1], roles[0]]] {
        model(move || {
            let heap = Heap::builder().pacing(Pacing::manual()).workers(1);
            let heap: ModelHeap<Tiny> = heap.build_with(Tiny::default()).unwrap();
            let mut m = heap.attach();
            let objects = make(&m);
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

/// A thread takes the only edge to a cycle out of an object, carries it over a safepoint, and puts it back.
///
/// Mutations: one reference that the set does not explain makes no root yet (`collect/count.rs`, `roots`);
/// marking does not follow edges (`collect/mark.rs`, `scan`); a parked thread does not wait for the end of the
/// stop (`safepoint.rs`, `park_slow`); the requester does not wait for it (`await_arrivals`).
#[test]
fn loom_collection_meets_a_moving_edge() {
    let make = |m: &Mutator| {
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

/// A thread drops the last handle to a cycle of two while another collects: one of two collections gets it.
///
/// Mutations: the claim does not hold (`collect/finalize.rs`): clearing frees what is to be let go of;
/// `clear` lets go of nothing; the sweep leaves the marks (`collect/mark.rs`, `wipe`).
#[test]
fn loom_collection_meets_the_last_drop() {
    let make = |m: &Mutator| {
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

/// A finalizer gives a reference away; another thread takes it, and may drop it before the recheck or not. Beside
/// it lies plain garbage.
///
/// Mutations: no recheck (`collect/finalize.rs`: `looked_at` is `false`); the recheck does not count the
/// claim's own reference, so that everything seems to be held from outside, or takes everything for held
/// from inside.
#[test]
fn loom_resurrection_meets_a_taker() {
    let make = |m: &Mutator| {
        let objects = [new_cycle(m, true), new_cycle(m, false)];
        objects.map(|object| {
            m.model().drop_ref(object, m);
            object
        })
    };
    let taker: Role = |m, _| {
        let taken = m.model().revived.lock().take();
        if let Some(object) = taken {
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
        // The plain one was collected at once; the other, if it was resurrected, is garbage by now, and
        // finalized.
        assert!(collected >= 1);
        assert_eq!(collected + collect(m, objects), 2);
    });
}

/// Two threads want to collect: they take turns, and one of them gets the cycle.
///
/// Mutations: the turn is given back without a call (`mutator.rs`, `Turn::give_back`); who waits for it stays
/// attached (`collect/mod.rs`).
#[test]
fn loom_two_collectors_take_turns() {
    let make = |m: &Mutator| {
        let cycle = new_cycle(m, false);
        m.model().drop_ref(cycle, m);
        [cycle; 2]
    };
    race(make, [collect, collect], |_, _, collected| assert_eq!(collected, 1));
}

/// As the heap itself would: part of the garbage is left to bury, and buried at the next safepoints, or by somebody else.
fn collect_by_itself(m: &mut Mutator, _: [Object; 2]) -> usize {
    let _ = crate::collect::by_itself(m, Collect::full());
    m.safepoint();
    0
}

/// A collection of the heap's own leaves garbage to bury; another thread wants to collect, and first finishes it. Nothing is
/// left, nothing is buried twice, and the turn is given back.
///
/// Mutations: `Turn::take` does not count the piece as under way; `Turn::done` leaves the burial in its place at the end;
/// who wants the turn takes no pieces (`collect/mod.rs`, `take_turn`).
#[test]
fn loom_what_is_left_to_bury_is_buried_once() {
    let make = |m: &Mutator| {
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
