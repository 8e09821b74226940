//! A guard into an object ends before its thread leaves the heap.

use standstill::{GcCell, Heap};

fn main() {
    let heap = Heap::new();
    let m = heap.attach();
    let counter = m.alloc(GcCell::new(0_u64));
    let guard = counter.lock(&m);
    drop(m);
    drop(guard);
}
