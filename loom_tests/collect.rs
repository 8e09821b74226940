//! Whole collections, by the collector itself, while another thread changes the graph.
//!
//! Space, arenas, coordinator, side tables and the ten steps are the real ones; only the marking pool is
//! replaced by the serial driver (loom cannot see rayon's threads). The objects are those of a tiny
//! [`ObjectModel`]: an atomic count, and a body that nothing protects but the stop. loom reports it when the
//! collector and the other thread touch a body at once, or one does not see what the other did.
//!
//! Each model names the mutation that makes it fail; each was tried.

use std::ptr::NonNull;
use std::sync::Arc;
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
    /// Objects destroyed. What the test knows, no part of the protocol.
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

fn heap() -> ModelHeap<Tiny> {
    Heap::builder().pacing(Pacing::manual()).workers(1).build_with(Tiny::default()).unwrap()
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

fn collect(m: &mut Mutator) -> usize {
    let report = m.try_collect(Collect::full()).unwrap();
    assert_eq!((report.abandoned, report.uncollectable, report.overvisited), (None, 0, 0));
    report.collected
}

/// A second mutator.
fn spawn<R: 'static>(
    heap: &ModelHeap<Tiny>,
    f: impl FnOnce(&mut Mutator) -> R + 'static,
) -> thread::JoinHandle<R> {
    let heap = heap.clone();
    thread::spawn(move || f(&mut heap.attach()))
}

fn assert_destroyed(heap: &ModelHeap<Tiny>, objects: usize) {
    assert_eq!(heap.model().destroyed.load(Relaxed), objects);
    assert_eq!(heap.stats().live_objects, 0);
}

/// A thread takes the only edge to a cycle out of an object, carries it over a safepoint, and puts it back.
///
/// Mutations: a root is what has *many* more references than were counted (`collect/count.rs`, `roots`);
/// marking does not follow edges (`collect/mark.rs`, `scan`); a parked thread does not wait for the end of
/// the stop (`safepoint.rs`, `park`); the requester does not wait for it (`await_arrivals`).
#[test]
fn loom_collection_meets_a_moving_edge() {
    model(|| {
        let heap = heap();
        let mut m = heap.attach();
        let (holder, cycle) = (new(&m, false), new_cycle(&m, false));
        set(&m, holder, Some(cycle));
        m.model().add_ref(holder);
        let mover = spawn(&heap, move |m| {
            let taken = set(m, holder, None);
            m.safepoint();
            assert_whole(m, cycle);
            assert_eq!(set(m, holder, taken), None);
            m.safepoint();
            assert_whole(m, holder);
            m.model().drop_ref(holder, m);
        });
        assert_eq!(collect(&mut m), 0);
        mover.join().unwrap();
        assert_whole(&m, holder);
        assert_whole(&m, cycle);
        m.model().drop_ref(holder, &m);
        assert_eq!(collect(&mut m), 1);
        drop(m);
        assert_destroyed(&heap, 2);
    });
}

/// A thread drops the last handle to a cycle of two while another collects: one of two collections gets it.
///
/// Mutations: the claim does not hold (`collect/finalize.rs`): clearing frees what is to be let go of;
/// `clear` lets go of nothing; the sweep leaves the marks (`collect/mark.rs`, `wipe`); a parked thread does
/// not wait.
#[test]
fn loom_collection_meets_the_last_drop() {
    model(|| {
        let heap = heap();
        let mut m = heap.attach();
        let (one, two) = (new(&m, false), new(&m, false));
        set(&m, one, Some(two));
        set(&m, two, Some(m.model().add_ref(one)));
        let dropper = spawn(&heap, move |m| {
            assert_whole(m, one);
            m.safepoint();
            assert_whole(m, two);
            m.model().drop_ref(one, m);
        });
        let first = collect(&mut m);
        dropper.join().unwrap();
        assert_eq!(first + collect(&mut m), 2);
        drop(m);
        assert_destroyed(&heap, 2);
    });
}

/// A finalizer gives a reference away; another thread takes it, and may drop it before the recheck or not.
///
/// Mutations: no recheck (`collect/mod.rs`: `looked_at` is taken for `false`); the recheck does not count the
/// claim's own reference (`collect/finalize.rs`), so that everything seems to be held from outside.
#[test]
fn loom_resurrection_meets_a_taker() {
    model(|| {
        let heap = heap();
        let mut m = heap.attach();
        let object = new_cycle(&m, true);
        m.model().drop_ref(object, &m);
        let taker = spawn(&heap, |m| {
            let taken = m.model().revived.lock().take();
            if let Some(object) = taken {
                assert_whole(m, object);
                m.safepoint();
                assert_whole(m, object);
                m.model().drop_ref(object, m);
            }
        });
        let first = collect(&mut m);
        taker.join().unwrap();
        let left = m.model().revived.lock().take();
        if let Some(object) = left {
            assert_whole(&m, object);
            m.model().drop_ref(object, &m);
        }
        // Whatever was resurrected is finalized by now, and garbage.
        assert_eq!(first + collect(&mut m), 1);
        drop(m);
        assert_destroyed(&heap, 1);
    });
}

/// Two threads want to collect: they take turns, and one of them gets the cycle.
///
/// Mutations: the turn is given back without a call (`mutator.rs`, `Turn::give_back`); who waits for it stays
/// attached (`collect/mod.rs`).
#[test]
fn loom_two_collectors_take_turns() {
    model(|| {
        let heap = heap();
        let mut m = heap.attach();
        let cycle = new_cycle(&m, false);
        m.model().drop_ref(cycle, &m);
        let other = spawn(&heap, collect);
        let mine = collect(&mut m);
        let theirs = m.detach(|| other.join().unwrap());
        assert_eq!(mine + theirs, 1);
        drop(m);
        assert_destroyed(&heap, 1);
    });
}
