//! A call that can reach a safepoint borrows the mutator mutably.

use standstill::{Heap, Mutator};

fn both(one: &mut Mutator, other: &mut Mutator) {
    one.safepoint();
    other.safepoint();
}

fn main() {
    let mut m = Heap::new().attach();
    both(&mut m, &mut m);
}
