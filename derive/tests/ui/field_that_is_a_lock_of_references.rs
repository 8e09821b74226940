//! A detached thread could change the lock during a collection; `GcCell` requires a mutator.

use std::sync::{Mutex, OnceLock, RwLock};

use standstill::{Gc, Trace};

#[derive(Trace)]
struct Node {
    next: Mutex<Option<Gc<Node>>>,
}

#[derive(Trace)]
struct Tree {
    children: parking_lot::RwLock<Vec<Gc<Tree>>>,
}

#[derive(Trace)]
struct Once {
    me: OnceLock<Gc<Once>>,
}

#[derive(Trace)]
struct Counter {
    count: RwLock<u64>,
}

fn main() {}
