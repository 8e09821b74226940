//! The data beside a weak reference lies in an object like any other.

use standstill::{Gc, Mutator, WeakRef};

fn read(weak: &Gc<WeakRef<u64, String>>, m: &mut Mutator) {
    let text = weak.get(m).data();
    m.safepoint();
    println!("{text}");
}

fn main() {}
