//! What is put into a slot by one name of its type comes out by another: the names must be the same
//! type.

use standstill::{AtomicGc, GcOnce, Trace, Tracer};

struct Function<F>(F);

impl<F: 'static> Trace for Function<F> {
    const TRACKED: bool = false;
    fn traverse(_: &Self, _: &mut Tracer) {}
}

type OfAny = for<'a> fn(&'a str);
type OfStatic = fn(&'static str);

fn narrowed(slot: &AtomicGc<Function<OfAny>>) -> &AtomicGc<Function<OfStatic>> {
    slot
}

fn narrowed_once(slot: &GcOnce<Function<OfAny>>) -> &GcOnce<Function<OfStatic>> {
    slot
}

fn main() {}
