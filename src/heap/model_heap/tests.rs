//! Tests of `heap/model_heap.rs`.

use super::*;
use crate::base::outside::{guarded, panic_message};
use crate::heap::model::Count;
use crate::heap::parts::*;
use crate::object::live::{ClaimRef, Live, Stopped};
use crate::object::tracer::Tracer;
use crate::safepoint::ThreadId;

/// The data of a model for a mutator: it panics when it is dropped.
struct Loud(&'static str);

impl Drop for Loud {
    fn drop(&mut self) {
        panic!("{}", self.0);
    }
}

/// A model without objects.
struct Loudly;

// SAFETY: rule *counted*: there is no object.
unsafe impl ObjectModel for Loudly {
    type Addresses = crate::memory::address_map::Reserved;
    type Parts = Self;

    fn count(&self, _: Stopped<'_>) -> Count {
        Count::Immortal
    }

    fn traverse(&self, _: Stopped<'_>, _: &mut Tracer) {}

    fn claim_ref(&self, _: Stopped<'_>, _: ThreadId) {}

    fn release(&self, reference: ClaimRef, _: &ModelMutator<Self>) {
        drop(reference);
    }

    fn clear(&self, _: Live<'_>, _: &ModelMutator<Self>) {}
}

crate::parts!(Loudly: ThreadData);

impl ThreadData<Loudly> for Loudly {
    type Local = Loud;
    type Private = Loud;

    fn local(_: &Self) -> Loud {
        Loud("the shared part")
    }

    fn private(_: &Self) -> Option<Loud> {
        Some(Loud("the private part"))
    }
}

#[test]
fn a_mutator_whose_parts_panic_leaves_its_arena_to_the_next() {
    let heap = crate::Heap::builder().reserve(1 << 30).workers(1).build_with(Loudly);
    let heap = heap.expect("a heap");
    for _ in 0..3 {
        let m = heap.attach();
        let core = Arc::clone(m.core());
        assert_eq!(m.arena(|arena| arena.id()), 1);
        let thrown = guarded(|| drop(m)).expect_err("the first panic goes on");
        assert_eq!(panic_message(thrown), "the private part");
        assert_eq!(core.coordinator.threads(), 0);
        assert_eq!(crate::safepoint::current(), 0);
    }
}
