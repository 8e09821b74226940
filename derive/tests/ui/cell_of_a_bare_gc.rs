//! The collector takes the reference out of a cell, and a `Gc` is never null.

use standstill::{Gc, GcCell, Trace};

#[derive(Trace)]
struct Node {
    next: GcCell<Gc<Node>>,
}

fn main() {}
