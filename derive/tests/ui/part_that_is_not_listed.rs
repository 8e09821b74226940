//! The collector would not call the part.
use standstill::model::{
    ClaimRef, Count, Finalizers, Live, ModelMutator, ObjectModel, Reserved, Serial, Stopped, Tracer,
};
use standstill::safepoint::ThreadId;

struct Runtime;

// SAFETY: no heap has an object.
unsafe impl ObjectModel for Runtime {
    type Addresses = Reserved;
    type Parts = Self;

    fn count(&self, _: Stopped<'_>) -> Count {
        Count::Immortal
    }

    fn traverse(&self, _: Stopped<'_>, _: &mut Tracer) {}

    fn claim_ref(&self, _: Stopped<'_>, _: ThreadId) {}

    fn release(&self, _: ClaimRef, _: &ModelMutator<Self>) {}

    fn clear(&self, _: Live<'_>, _: &ModelMutator<Self>) {}
}

standstill::parts!(Runtime: Serial);

impl Serial<Runtime> for Runtime {
    fn serial(_: &Self, _: Stopped<'_>) -> bool {
        true
    }
}

impl Finalizers<Runtime> for Runtime {
    fn has_finalizer(_: &Self, _: Live<'_>) -> bool {
        true
    }

    fn finalize(_: &Self, _: Live<'_>, _: &ModelMutator<Self>) {}
}

fn main() {}
