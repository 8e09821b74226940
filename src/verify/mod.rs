//! What the heap checks about itself and its model.
//!
//! A heap with the [stress modes](crate::Stress) `verify` or `counts` has a [`Verifier`], which its
//! collections call at fixed moments. An ordinary heap has none, so it pays nothing but the
//! question.

// The objects of a heap.
pub(crate) mod objects;
// Its pages.
pub(crate) mod pages;
// The rules of `ObjectModel`.
pub(crate) mod rules;
// The counts of released objects.
pub(crate) mod released;

use crate::base::stress::Stress;
use crate::collect::{calls, listing};
use crate::heap::model::ObjectModel;
use crate::heap::mutator::ModelMutator;
use crate::heap::observer::Verifier;
use crate::heap::world::World;
use crate::object::address::Object;
use crate::object::live::{DeadObject, Live, Stopped};

pub(crate) fn verifier<M: ObjectModel>(stress: Stress) -> Option<&'static dyn Verifier<M>> {
    if stress.verifies() { Some(&WholeHeap) } else { None }
}

struct WholeHeap;

impl<M: ObjectModel> Verifier<M> for WholeHeap {
    fn verify(&self, world: &World<'_, M>, when: &str) {
        objects::verify(world, when);
    }

    fn watch(&self, world: &World<'_, M>, phases: &mut dyn FnMut()) {
        rules::watch(world, phases);
    }

    fn merged(&self, world: &World<'_, M>, dead: &[DeadObject], limit: usize) {
        rules::merged(world, dead, limit);
    }

    fn callbacks(&self, world: &World<'_, M>, object: Stopped<'_>, limit: usize, taken: usize) {
        rules::callbacks(world.core(), object, limit, taken);
    }

    fn releasing(&self, m: &ModelMutator<M>, claimed: &[Live<'_>]) -> Option<Vec<(Object, i64)>> {
        released::counts(m, claimed)
    }

    fn released(&self, m: &ModelMutator<M>, counts: &[(Object, i64)]) {
        released::compare(m, counts);
    }

    fn survivors(&self, m: &ModelMutator<M>, released: &[Object]) {
        released::survivors(m, released);
    }

    fn ends(&self, m: &ModelMutator<M>) {
        // Failures are left out, because a stop that fails permanently is reported elsewhere, and
        // so is a list that cannot be made.
        if let Ok(world) = m.stop_here() {
            if listing::list(&world, usize::MAX).is_ok() {
                objects::verify(&world, "after a collection");
            }
            drop(world);
            calls::resumed(m);
        }
    }
}
