//! Objects are shared between threads; the cell for them is `GcCell`.

use std::cell::RefCell;

use standstill::{Gc, Trace};

#[derive(Trace)]
struct Node {
    next: RefCell<Option<Gc<Node>>>,
}

fn main() {}
