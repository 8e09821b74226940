//! A finalizer is named by `FINALIZER`, and not found by its own name.

use standstill::{Gc, Mutator, Trace, Tracer};

struct File {
    descriptor: i32,
}

impl Trace for File {
    fn traverse(_: &Self, _: &mut Tracer) {}

    fn finalize(this: &Gc<Self>, _: &Mutator) {
        println!("close {}", this.descriptor);
    }
}

fn main() {}
