//! A change through the second handle would put a function into the object that its type forbids.

use standstill::{Gc, Opaque};

type Any = Opaque<for<'a> fn(&'a u8)>;
type OfStatics = Opaque<fn(&'static u8)>;

fn widen(gc: Gc<Any>) -> Gc<OfStatics> {
    gc
}

fn main() {}
