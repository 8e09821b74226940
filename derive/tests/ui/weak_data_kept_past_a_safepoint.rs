//! The data beside a weak reference lies in an object like any other.

use standstill::{AtomicGc, Mutator, WeakRef};

fn read(weak: &AtomicGc<WeakRef<u64, String>>, m: &mut Mutator) {
    let text = weak.peek(m).unwrap().data();
    m.safepoint();
    println!("{text}");
}

fn main() {}
