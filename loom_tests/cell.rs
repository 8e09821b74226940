//! `GcCell`: the lock in an object, which mutators take and which the collector reads.
//!
//! The lock word is one of loom's atomics, and the value holds a loom `UnsafeCell`. So loom fails a
//! model in which two threads access the value at once, or in which a thread does not see an
//! earlier write.
//!
//! # Transitions
//!
//! * free, locked, free, by two mutators: `two_threads_lock_a_cell`
//! * the same, by mutators that do not wait: `two_threads_try_a_cell`
//! * free, read, locked, read again: `a_reader_meets_a_writer`
//! * read by two, and locked: `two_readers_keep_a_writer_out`
//! * a cell in an object of the heap, read in a stop without the lock:
//!   `a_stop_reads_a_cell_that_was_written`
//! * a cell outside of the heap, locked through another heap; read in a stop with the lock, which
//!   makes it part of the heap; then read again in a second stop, and locked through no other heap:
//!   `a_cell_elsewhere_meets_a_collection`

use std::sync::Arc;

use loom::thread;

use super::model;
use crate::base::sync::UnsafeCell;
use crate::{Collect, Gc, GcCell, Heap, Mutator, Pacing, Trace, Tracer};

/// Plain data, for the thread that has locked the cell.
#[derive(Default)]
struct Counter {
    added: UnsafeCell<usize>,
    /// Whether a collection has read the data.
    traversed: UnsafeCell<bool>,
}

// SAFETY: this is the claim under test.
unsafe impl Sync for Counter {}
// SAFETY: it belongs to no thread.
unsafe impl Send for Counter {}

impl Counter {
    fn add(&self) {
        // SAFETY: see `Sync`.
        self.added.with_mut(|n| unsafe { *n += 1 });
    }

    fn get(&self) -> usize {
        // SAFETY: see `Sync`.
        self.added.with(|n| unsafe { *n })
    }

    fn is_traversed(&self) -> bool {
        // SAFETY: see `Sync`.
        self.traversed.with(|traversed| unsafe { *traversed })
    }
}

impl Trace for Counter {
    const TRACKED: bool = true;

    fn traverse(this: &Self, _: &mut Tracer) {
        this.get();
        // SAFETY: see `Sync`. The collection has one worker.
        this.traversed.with_mut(|traversed| unsafe { *traversed = true });
    }
}

/// An object with a cell that refers to the object itself. The collector traverses it.
struct Node {
    counter: GcCell<Counter>,
    edge: GcCell<Option<Gc<Node>>>,
}

impl Trace for Node {
    fn traverse(this: &Self, tracer: &mut Tracer) {
        Trace::traverse(&this.counter, tracer);
        Trace::traverse(&this.edge, tracer);
    }

    fn clear(this: &Self, m: &Mutator) {
        Trace::clear(&this.edge, m);
    }
}

/// An object with a shared cell.
struct Shared {
    counter: Arc<GcCell<Counter>>,
    edge: GcCell<Option<Gc<Shared>>>,
}

impl Trace for Shared {
    fn traverse(this: &Self, tracer: &mut Tracer) {
        // The cell itself: an `Arc` is not traversed.
        GcCell::traverse(&this.counter, tracer);
        Trace::traverse(&this.edge, tracer);
    }

    fn clear(this: &Self, m: &Mutator) {
        Trace::clear(&this.edge, m);
    }
}

fn heap() -> Heap {
    Heap::builder().pacing(Pacing::manual()).workers(1).build().unwrap()
}

fn node(m: &Mutator) -> Gc<Node> {
    m.alloc(Node { counter: GcCell::new(Counter::default()), edge: GcCell::new(None) })
}

/// Mutations: the lock is taken relaxed; it is released relaxed; it is taken although it is not
/// free.
#[test]
fn loom_two_threads_lock_a_cell() {
    model(|| {
        let heap = heap();
        let mut m = heap.attach();
        let node = node(&m);
        let theirs = node.clone();
        let other = thread::spawn(move || {
            let m = heap.attach();
            theirs.counter.lock(&m).add();
            drop(theirs);
        });
        node.counter.lock(&m).add();
        m.detach(|| other.join().unwrap());
        assert_eq!(node.counter.lock(&m).get(), 2);
    });
}

/// Mutations: the same as for mutators that wait.
#[test]
fn loom_two_threads_try_a_cell() {
    model(|| {
        let heap = heap();
        let mut m = heap.attach();
        let node = node(&m);
        let theirs = node.clone();
        let add = |node: &Gc<Node>, m: &Mutator| {
            node.counter.try_lock(m).map_or(0, |counter| {
                counter.add();
                1
            })
        };
        let other = thread::spawn(move || add(&theirs, &heap.attach()));
        let added = add(&node, &m) + m.detach(|| other.join().unwrap());
        assert!(added > 0, "one of them found it free");
        assert_eq!(node.counter.lock(&m).get(), added);
    });
}

/// One thread reads a cell, and another one locks it and reads it afterwards.
///
/// Mutations: a reader enters relaxed; it leaves relaxed; a reader enters a locked cell.
#[test]
fn loom_a_reader_meets_a_writer() {
    model(|| {
        let heap = heap();
        let mut m = heap.attach();
        let node = node(&m);
        let theirs = node.clone();
        let writer = thread::spawn(move || {
            let m = heap.attach();
            theirs.counter.lock(&m).add();
            theirs.counter.read(&m).get();
            drop(theirs);
        });
        node.counter.read(&m).get();
        m.detach(|| writer.join().unwrap());
        assert_eq!(node.counter.read(&m).get(), 1);
    });
}

/// Two threads read a cell at once, and each tries to lock it afterwards.
///
/// Mutations: as in `a_reader_meets_a_writer`; a reader that leaves frees the cell although another
/// one is left.
#[test]
fn loom_two_readers_keep_a_writer_out() {
    model(|| {
        let heap = heap();
        let mut m = heap.attach();
        let node = node(&m);
        let theirs = node.clone();
        let read_and_add = |node: &Gc<Node>, m: &Mutator| {
            node.counter.try_read(m).map(|counter| counter.get());
            node.counter.try_lock(m).map_or(0, |counter| {
                counter.add();
                1
            })
        };
        let other = thread::spawn(move || read_and_add(&theirs, &heap.attach()));
        let added = read_and_add(&node, &m) + m.detach(|| other.join().unwrap());
        assert_eq!(node.counter.lock(&m).get(), added);
    });
}

/// In its stop the collector reads, without the lock, the value that a mutator wrote under the
/// lock.
///
/// Mutation: the thread unlocks after it has detached.
#[test]
fn loom_a_stop_reads_a_cell_that_was_written() {
    model(|| {
        let heap = heap();
        let mut m = heap.attach();
        let node = node(&m);
        node.edge.set(&m, Some(node.clone()));
        let theirs = node.clone();
        let writer = thread::spawn(move || {
            let m = heap.attach();
            theirs.counter.lock(&m).add();
            drop(theirs);
        });
        let report = m.try_collect(Collect::full()).unwrap();
        assert_eq!((report.abandoned, report.collected), (None, 0));
        m.detach(|| writer.join().unwrap());
        assert_eq!(node.counter.lock(&m).get(), 1);
        node.edge.set(&m, None);
    });
}

/// A thread locks a cell outside of the heap through another heap, unless a collection has found
/// the cell in an object. A stop of this heap does not wait for the threads of that heap.
///
/// Mutations: the collector does not lock such a cell; the thread locks a cell that is part of this
/// heap, which could then change between two traversals of one stop.
#[test]
fn loom_a_cell_elsewhere_meets_a_collection() {
    model(|| {
        let heap = heap();
        let mut m = heap.attach();
        let counter = Arc::new(GcCell::new(Counter::default()));
        let node = m.alloc(Shared { counter: Arc::clone(&counter), edge: GcCell::new(None) });
        node.edge.set(&m, Some(node.clone()));
        let theirs = Arc::clone(&counter);
        let other = self::heap();
        let elsewhere = thread::spawn(move || {
            theirs.try_lock_own(&other.attach()).map_or(0, |counter| {
                assert!(!counter.is_traversed(), "the cell is part of the other heap");
                counter.add();
                1
            })
        });
        for _ in 0..2 {
            let report = m.try_collect(Collect::full()).unwrap();
            assert_eq!(report.collected, 0);
        }
        let added = m.detach(|| elsewhere.join().unwrap());
        assert_eq!(counter.lock(&m).get(), added);
        node.edge.set(&m, None);
    });
}
