//! `GcCell`: the lock in an object, taken by mutators and looked at by the collector.
//!
//! The lock's word is one of loom's atomics; the value holds a loom `UnsafeCell`, so loom fails a model in which two threads
//! have the value at once, or one does not see what the other did.
//!
//! # Transitions
//!
//! | transition | models |
//! |---|---|
//! | free, locked, free: two mutators | `two_threads_lock_a_cell` |
//! | the same, by those that do not wait | `two_threads_try_a_cell` |
//! | read in a stop without the lock: a cell in an object of the heap | `a_stop_reads_a_cell_that_was_written` |
//! | read in a stop with the lock: a cell anywhere else, locked through another heap | `a_cell_elsewhere_meets_a_collection` |

use std::sync::Arc;

use loom::thread;

use super::model;
use crate::base::sync::UnsafeCell;
use crate::{Collect, Gc, GcCell, Heap, Mutator, Pacing, Trace, Tracer};

/// Plain data, for whoever has the cell.
#[derive(Default)]
struct Counter(UnsafeCell<usize>);

// SAFETY: this is the claim under test.
unsafe impl Sync for Counter {}
// SAFETY: nothing in it belongs to a thread.
unsafe impl Send for Counter {}

impl Counter {
    fn add(&self) {
        // SAFETY: see `Sync`.
        self.0.with_mut(|n| unsafe { *n += 1 });
    }

    fn get(&self) -> usize {
        // SAFETY: see `Sync`.
        self.0.with(|n| unsafe { *n })
    }
}

impl Trace for Counter {
    const TRACKED: bool = true;

    fn traverse(&self, _: &mut Tracer) {
        self.get();
    }
}

/// An object with a cell, that refers to itself: the collector looks at it.
struct Node {
    counter: GcCell<Counter>,
    edge: GcCell<Option<Gc<Node>>>,
}

impl Trace for Node {
    fn traverse(&self, tracer: &mut Tracer) {
        self.counter.traverse(tracer);
        self.edge.traverse(tracer);
    }

    fn clear(&self, m: &Mutator) {
        self.edge.clear(m);
    }
}

/// An object with a cell that others share.
struct Shared {
    counter: Arc<GcCell<Counter>>,
    edge: GcCell<Option<Gc<Shared>>>,
}

impl Trace for Shared {
    fn traverse(&self, tracer: &mut Tracer) {
        // The cell itself: an `Arc` shows nothing.
        GcCell::traverse(&self.counter, tracer);
        self.edge.traverse(tracer);
    }

    fn clear(&self, m: &Mutator) {
        self.edge.clear(m);
    }
}

fn heap() -> Heap {
    Heap::builder().pacing(Pacing::manual()).workers(1).build().unwrap()
}

fn node(m: &Mutator) -> Gc<Node> {
    m.alloc(Node { counter: GcCell::new(Counter::default()), edge: GcCell::new(None) })
}

/// Mutations: the lock taken relaxed; given back relaxed; taken without looking whether it is free.
#[test]
fn loom_two_threads_lock_a_cell() {
    model(|| {
        let heap = heap();
        let mut m = heap.attach();
        let node = node(&m);
        let theirs = node.clone();
        let other = thread::spawn(move || {
            let m = heap.attach();
            theirs.get(&m).counter.lock(&m).add();
            drop(theirs);
        });
        node.get(&m).counter.lock(&m).add();
        m.detach(|| other.join().unwrap());
        assert_eq!(node.get(&m).counter.lock(&m).get(), 2);
    });
}

/// Mutations: as for those that wait.
#[test]
fn loom_two_threads_try_a_cell() {
    model(|| {
        let heap = heap();
        let mut m = heap.attach();
        let node = node(&m);
        let theirs = node.clone();
        let add = |node: &Gc<Node>, m: &Mutator| {
            node.get(m).counter.try_lock(m).map_or(0, |counter| {
                counter.add();
                1
            })
        };
        let other = thread::spawn(move || add(&theirs, &heap.attach()));
        let added = add(&node, &m) + m.detach(|| other.join().unwrap());
        assert!(added > 0, "one of them found it free");
        assert_eq!(node.get(&m).counter.lock(&m).get(), added);
    });
}

/// What a mutator wrote under the lock, the collector reads in its stop without it.
///
/// Mutation: an unlock after the thread has left.
#[test]
fn loom_a_stop_reads_a_cell_that_was_written() {
    model(|| {
        let heap = heap();
        let mut m = heap.attach();
        let node = node(&m);
        node.get(&m).edge.set(&m, Some(node.clone()));
        let theirs = node.clone();
        let writer = thread::spawn(move || {
            let m = heap.attach();
            theirs.get(&m).counter.lock(&m).add();
            drop(theirs);
        });
        let report = m.try_collect(Collect::full()).unwrap();
        assert_eq!((report.abandoned, report.collected), (None, 0));
        m.detach(|| writer.join().unwrap());
        assert_eq!(node.get(&m).counter.lock(&m).get(), 1);
        node.get(&m).edge.set(&m, None);
    });
}

/// A cell outside of all objects is locked through another heap, whose threads no stop of this one waits for.
///
/// Mutation: the collector does not take the lock of such a cell.
#[test]
fn loom_a_cell_elsewhere_meets_a_collection() {
    model(|| {
        let heap = heap();
        let mut m = heap.attach();
        let counter = Arc::new(GcCell::new(Counter::default()));
        let node = m.alloc(Shared { counter: Arc::clone(&counter), edge: GcCell::new(None) });
        node.get(&m).edge.set(&m, Some(node.clone()));
        let theirs = Arc::clone(&counter);
        let other = self::heap();
        let elsewhere = thread::spawn(move || theirs.lock(&other.attach()).add());
        let report = m.try_collect(Collect::full()).unwrap();
        assert_eq!(report.collected, 0);
        m.detach(|| elsewhere.join().unwrap());
        assert_eq!(counter.lock(&m).get(), 1);
        node.get(&m).edge.set(&m, None);
    });
}
