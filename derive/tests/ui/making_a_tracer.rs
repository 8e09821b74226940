//! Only the library makes a tracer: a handmade one could pretend that the world is stopped.

use standstill::{Trace, Tracer};

fn main() {
    let mut tracer = Tracer {};
    u64::traverse(&7, &mut tracer);
}
