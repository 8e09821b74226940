//! What is put into a slot by one name of its type comes out by another: the names must be the same
//! type. So do the keys of a table, and the objects of a guardian.

use standstill::{AtomicGc, Gc, GcOnce, GcWeakSet, Guardian, Trace, Tracer};

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

type Functions<F> = GcWeakSet<Gc<Function<F>>>;

fn narrowed_keys(keys: &Functions<OfAny>) -> &Functions<OfStatic> {
    keys
}

fn widened_keys(keys: &Functions<OfStatic>) -> &Functions<OfAny> {
    keys
}

type Queue<F> = Guardian<Gc<Function<F>>>;

fn narrowed_queue(queue: &Queue<OfAny>) -> &Queue<OfStatic> {
    queue
}

fn main() {}
