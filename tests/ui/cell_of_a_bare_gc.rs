//! A cell must be able to let go of its reference, and a `Gc` is never null.

use standstill::{Gc, GcCell, Trace};

#[derive(Trace)]
struct Node {
    next: GcCell<Gc<Node>>,
}

fn main() {}
