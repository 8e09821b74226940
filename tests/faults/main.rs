//! Failures around a collector that it survives: counts that overflow, panics that meet, threads
//! that end at the wrong time, processes that fork, exit or run out of address space in the middle
//! of everything. Refused memory is in `alloc_failure.rs`.

#![cfg(not(loom))]

#[path = "../common/mod.rs"]
mod common;
mod counts;
#[path = "../common/forked.rs"]
mod forked;
mod panics;
mod process;
mod threads;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use standstill::{Gc, GcCell, Mutator, Trace};

/// Objects that were born and have not died.
#[derive(Debug, Default)]
struct Alive(AtomicUsize);

impl Alive {
    fn now(&self) -> usize {
        self.0.load(SeqCst)
    }
}

/// A birth, and at its end a death.
#[derive(Debug)]
struct Life(Arc<Alive>);

impl Life {
    fn new(alive: &Arc<Alive>) -> Self {
        alive.0.fetch_add(1, SeqCst);
        Self(Arc::clone(alive))
    }
}

impl Drop for Life {
    fn drop(&mut self) {
        assert!(self.0.0.fetch_sub(1, SeqCst) > 0, "more deaths than births");
    }
}

#[derive(Trace)]
struct Node {
    next: GcCell<Option<Gc<Node>>>,
    #[trace(skip)]
    _life: Life,
}

fn node(m: &Mutator, alive: &Arc<Alive>) -> Gc<Node> {
    m.alloc(Node { next: GcCell::default(), _life: Life::new(alive) })
}

/// A ring of so many: garbage when the handle goes.
fn ring(m: &Mutator, alive: &Arc<Alive>, len: usize) -> Gc<Node> {
    let first = node(m, alive);
    let last = (1..len).fold(first.clone(), |next, _| {
        let node = node(m, alive);
        node.next.set(m, Some(next));
        node
    });
    first.next.set(m, Some(last));
    first
}
