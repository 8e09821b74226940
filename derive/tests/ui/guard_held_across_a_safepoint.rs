//! A thread must not park in the middle of a change to an object.

use standstill::{Gc, GcCell, Mutator};

fn count(counter: &Gc<GcCell<u64>>, m: &mut Mutator) {
    let mut number = counter.lock(m);
    m.safepoint();
    *number += 1;
}

fn main() {}
