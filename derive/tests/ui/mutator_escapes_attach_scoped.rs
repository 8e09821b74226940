//! A scoped attachment ends with its closure.

use standstill::Heap;

fn main() {
    let heap = Heap::new();
    let m = heap.attach_scoped(|m| m);
    m.safepoint();
}
