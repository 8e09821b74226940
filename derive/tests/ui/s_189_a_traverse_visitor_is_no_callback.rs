//! A visitor of traversals answers 0 to go on, the callback of a visit to all objects says what it
//! wants.

use standstill::{AnyGc, Heap, Mutator};

fn visitor(_: &AnyGc, _: &mut Mutator) -> i32 {
    0
}

fn main() {
    let heap = Heap::new();
    let mut m = heap.attach();
    let _ = heap.services().visit_objects(&mut m, visitor);
}
