//! Weak references, which must not lead to an object that a collection is about to clear.

#![forbid(unsafe_code)]

use crate::heap::model::ObjectModel;
use crate::heap::mutator::ModelMutator;
use crate::heap::world::World;
use crate::object::address::Object;
use crate::object::live::{Live, Stopped};

/// There are weak references to objects, with or without callbacks.
///
/// For example, a cache of thread 2 has a weak reference with a callback to an object that thread 1
/// has found to be garbage. In the stop the collection calls
/// [`take_callbacks`](Self::take_callbacks), which clears the reference, so that thread 2 cannot
/// upgrade it later. After the stop it calls the callback, and then the finalizers. Rule 3 of
/// [`ObjectModel`] applies to what runs in the stop, so it lowers no count.
pub trait WeakRefs<M: ObjectModel> {
    /// A due weak callback, which is created in a stop and called after the stop.
    type Callback: Send;

    /// Whether weak references to `object` may exist.
    fn has_weak(model: &M, object: Live<'_>) -> bool;

    /// An upper limit for the number of callbacks that [`take_callbacks`](Self::take_callbacks)
    /// puts into `due` for `object`. The collector reserves room for them first, so that without
    /// memory the collection is abandoned and clears nothing.
    /// [`pending`](crate::model::SplitCounts::pending) says what a wrong limit causes.
    fn callbacks(model: &M, object: Stopped<'_>) -> usize {
        let _ = (model, object);
        0
    }

    /// Clears those weak references to the unreachable `object` that have a callback. Puts their
    /// callbacks into `due`, except the callbacks of weak references that are garbage themselves.
    ///
    /// Called before any finalizer, for each object for which [`has_weak`](Self::has_weak) is true.
    /// Whether the weak references *without* a callback are cleared here, too, so that finalizers
    /// cannot make an object reachable again through them, is the model's choice. In any case the
    /// collector calls [`clear_weak`](Self::clear_weak) for each object that is still garbage after
    /// the finalizers. The method may add references, for example to make a weak reference live
    /// until its callback has run, although it lowers no count (rule 3).
    #[expect(unused_variables, reason = "a model without callbacks takes none")]
    fn take_callbacks(
        model: &M,
        object: Stopped<'_>,
        is_unreachable: &dyn Fn(Object) -> bool,
        world: &World<'_, M>,
        due: &mut Vec<Self::Callback>,
    ) {
    }

    /// Calls a weak callback, which may panic.
    fn call_back(model: &M, callback: Self::Callback, m: &ModelMutator<M>) {
        let _ = (model, callback, m);
    }

    /// Clears all weak references to `object`, so that later upgrades fail.
    fn clear_weak(model: &M, object: Stopped<'_>);
}

impl<M: ObjectModel> WeakRefs<M> for () {
    type Callback = ();

    #[inline(always)]
    fn has_weak(_: &M, _: Live<'_>) -> bool {
        false
    }

    fn clear_weak(_: &M, _: Stopped<'_>) {}
}
