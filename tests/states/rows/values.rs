//! Plain values: they need nothing, and are the same everywhere.

use std::ops::Range;
use std::time::Duration;

use standstill::gc_module::CallbackPhase;
use standstill::{
    Code, Collect, CollectionEvent, CollectionKind, Distribution, Fault, Finalizer, ForkedSearch,
    Mutator, Pacing, RefusedSlice, Stress, Thresholds, model::Object, safepoint,
};

use super::{Rows, done, ok};
use crate::stage::Call::{Free, Shared};

pub(super) const ROWS: Rows = &[
    ("Pacing::manual", Free(|_| ok(Pacing::manual().automatic))),
    (
        "Pacing::with_young_objects",
        Free(|_| ok(Pacing::manual().with_young_objects(7).young_objects)),
    ),
    ("Pacing::with_young_bytes", Free(|_| ok(Pacing::manual().with_young_bytes(7).young_bytes))),
    ("Pacing::with_full_growth", Free(|_| ok(Pacing::manual().with_full_growth(7.0).full_growth))),
    (
        "Pacing::with_thresholds",
        Free(|_| ok(Pacing::manual().with_thresholds(Thresholds::default()).thresholds())),
    ),
    ("Pacing::thresholds", Free(|_| ok(Pacing::manual().thresholds()))),
    ("Pacing::with_full_minimum", Free(|_| ok(Pacing::manual().with_full_minimum(7).full_minimum))),
    (
        "Pacing::with_full_minimum_bytes",
        Free(|_| ok(Pacing::manual().with_full_minimum_bytes(7).full_minimum_bytes)),
    ),
    (
        "Pacing::with_forked",
        Free(|_| ok(Pacing::manual().with_forked(ForkedSearch::Always).forked)),
    ),
    ("ForkedSearch: Default", Free(|_| ok(ForkedSearch::default()))),
    ("Pacing: Default", Free(|_| ok(Pacing::default().automatic))),
    ("Distribution::of", Free(|_| ok(Distribution::of([Duration::ZERO]).count))),
    ("Thresholds: Default", Free(|_| ok(Thresholds::default()))),
    ("Stress::none", Free(|_| ok(Stress::none().is_none()))),
    ("Stress::all", Free(|_| ok(Stress::all(7).is_none()))),
    (
        "Stress::collect_at_safepoints",
        Free(|_| ok(Stress::none().collect_at_safepoints(1).is_none())),
    ),
    ("Stress::verify", Free(|_| ok(Stress::none().verify(true).is_none()))),
    ("Stress::verify_counts", Free(|_| ok(Stress::none().verify_counts(true).is_none()))),
    ("Stress::poison", Free(|_| ok(Stress::none().poison(true).is_none()))),
    ("Stress::quarantine", Free(|_| ok(Stress::none().quarantine(8).is_none()))),
    ("Stress::yield_at_random", Free(|_| ok(Stress::none().yield_at_random(7).is_none()))),
    ("Stress::small_constants", Free(|_| ok(Stress::none().small_constants(true).is_none()))),
    ("Stress::is_none", Free(|_| ok(Stress::none().is_none()))),
    ("Stress::and", Free(|_| ok(Stress::none().and(Stress::all(7)).is_none()))),
    ("Collect::full", Free(|_| ok(Collect::full()))),
    ("Collect::young", Free(|_| ok(Collect::young()))),
    ("Collect::wait", Free(|_| ok(Collect::young().wait(false)))),
    ("Collect::within", Free(|_| ok(Collect::young().within(Duration::from_secs(1))))),
    ("Collect::because", Free(|_| ok(Collect::young().because("a row")))),
    ("Collect::tagged", Free(|_| ok(Collect::young().tagged(30)))),
    ("Collect::workers", Free(|_| ok(Collect::young().workers(0)))),
    ("Collect::forked", Free(|_| ok(Collect::full().forked(true)))),
    ("Code::name", Free(|_| ok(Code::Memory.name()))),
    ("Code::meaning", Free(|_| ok(Code::Memory.meaning()))),
    ("Fault::new", Free(|_| ok(Fault::new(Code::Custom, "states").to_string()))),
    ("Fault::of_type", Free(|_| ok(Fault::new(Code::Custom, "states").of_type("Row").to_string()))),
    ("Fault::at", Free(|_| ok(Fault::new(Code::Custom, "states").at(16).to_string()))),
    (
        "Fault::because",
        Free(|_| ok(Fault::new(Code::Custom, "states").because("of it").to_string())),
    ),
    ("CollectionEvent::kind", Free(|_| ok(CollectionEvent::Start(CollectionKind::Full).kind()))),
    (
        "CollectionEvent::report",
        Free(|_| ok(CollectionEvent::Start(CollectionKind::Full).report().is_some())),
    ),
    ("CallbackPhase::name", Free(|_| ok(CallbackPhase::Start.name()))),
    (
        "Object::new",
        Free(|t| ok(Object::new(standstill::dynamic::as_raw(&t.any).cast()).address() > 0)),
    ),
    (
        "Object::as_ptr",
        Free(|t| {
            let address = standstill::dynamic::as_raw(&t.any).cast();
            ok(Object::new(address).as_ptr() == address)
        }),
    ),
    (
        "Object::address",
        Free(|t| {
            ok(Object::new(standstill::dynamic::as_raw(&t.any).cast()).address().is_multiple_of(8))
        }),
    ),
    ("AllocError::into_inner", Shared(|_, m| ok(too_large(m).into_inner()))),
    ("AllocError::reason", Shared(|_, m| ok(too_large(m).reason()))),
    ("Finalizer::new", Free(|_| done(Finalizer::<u8>::new(|_, _| {})))),
    ("Finalizer: Clone", Free(|_| done(Clone::clone(&Finalizer::<u8>::new(|_, _| {}))))),
    ("safepoint::current", Free(|_| ok(safepoint::current() != 0))),
    ("safepoint::is_traversing", Free(|_| ok(safepoint::is_traversing()))),
    ("safepoint::is_stopping", Free(|_| ok(safepoint::is_stopping()))),
    (
        "safepoint::traversing",
        Free(|_| {
            let guard = safepoint::traversing();
            let inside = (safepoint::is_traversing(), Mutator::with_current(|_| ()).is_some());
            drop(guard);
            ok(inside)
        }),
    ),
    (
        "TraversalGuard: Drop",
        Free(|_| {
            drop(safepoint::traversing());
            ok(safepoint::is_traversing())
        }),
    ),
];

/// The error of an object that is larger than the heap.
fn too_large(m: &Mutator) -> RefusedSlice<u8, Range<u32>> {
    m.try_alloc_slice(5, 0..20_000_000).expect_err("80 megabytes in a heap of 64")
}
