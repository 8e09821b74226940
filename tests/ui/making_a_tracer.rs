//! Only the library makes a tracer: a handmade one could pretend that the world is stopped.

use standstill::{Trace, Tracer};

fn main() {
    let mut tracer = Tracer {};
    7_u64.traverse(&mut tracer);
}
