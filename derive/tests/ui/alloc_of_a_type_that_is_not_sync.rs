//! Several threads may read an object, the marking ones among them.

use std::cell::Cell;

use standstill::{Heap, Trace};

#[derive(Trace)]
struct Counter {
    #[trace(skip)]
    number: Cell<u64>,
}

fn main() {
    let m = Heap::new().attach();
    m.alloc(Counter { number: Cell::new(0) });
}
