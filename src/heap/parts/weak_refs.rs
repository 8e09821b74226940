//! Weak references.

#![forbid(unsafe_code)]

use crate::heap::model::ObjectModel;
use crate::heap::mutator::ModelMutator;
use crate::heap::world::World;
use crate::object::address::Object;
use crate::object::live::{Live, Stopped};

/// There are weak references to objects, with or without callbacks.
///
/// For example, a cache has a weak reference with a callback to an object that is garbage. In the
/// stop the collection calls [`take_callbacks`](Self::take_callbacks), which clears the reference.
/// After the stop it calls the callback, and then the finalizers. Rule 3 of [`ObjectModel`] applies
/// to what runs in the stop: it lowers no count.
pub trait WeakRefs<M: ObjectModel> {
    /// A due weak callback. It is created in a stop and called after the stop.
    type Callback: Send;

    /// Whether weak references to `object` may exist.
    fn has_weak(model: &M, object: Live<'_>) -> bool;

    /// An upper limit for the number of callbacks that [`take_callbacks`](Self::take_callbacks)
    /// puts into `due` for `object`. The collector reserves room for them first. If there is no
    /// memory, the collection is abandoned and clears nothing.
    /// [`pending`](crate::model::SplitCounts::pending) says what a wrong limit causes.
    fn callbacks(model: &M, object: Stopped<'_>) -> usize {
        let _ = (model, object);
        0
    }

    /// Clears those weak references to the unreachable `object` that have a callback. Puts their
    /// callbacks into `due`, except the callbacks of weak references that are garbage themselves.
    ///
    /// Called before any finalizer, for each object for which [`has_weak`](Self::has_weak) is true.
    /// Whether the weak references *without* a callback are cleared here, too, is the model's
    /// choice: then finalizers cannot make an object reachable again through them. The collector
    /// calls [`clear_weak`](Self::clear_weak) for each object that is still garbage after the
    /// finalizers, in any case. The method may add references, for example to make a weak reference
    /// live until its callback has run. It lowers no count (rule 3).
    #[expect(unused_variables, reason = "a model without callbacks takes none")]
    fn take_callbacks(
        model: &M,
        object: Stopped<'_>,
        is_unreachable: &dyn Fn(Object) -> bool,
        world: &World<'_, M>,
        due: &mut Vec<Self::Callback>,
    ) {
    }

    /// Calls a weak callback. May panic.
    fn call_back(model: &M, callback: Self::Callback, m: &ModelMutator<M>) {
        let _ = (model, callback, m);
    }

    /// Clears all weak references to `object`. Later upgrades fail.
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
