//! The derive adds `T: Trace` and no more; a cell that is cleared needs `T: Default` besides.

use standstill::{GcCell, Trace};

#[derive(Trace)]
struct Slot<T> {
    value: GcCell<T>,
}

fn main() {}
