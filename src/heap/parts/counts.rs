//! Counts that are not in one place.

#![forbid(unsafe_code)]

use crate::heap::model::ObjectModel;
use crate::heap::mutator::ModelMutator;
use crate::heap::world::World;
use crate::object::address::Object;
use crate::object::live::{DeadObject, Stopped};
use crate::safepoint::ThreadId;

/// The model keeps a count in several places, for example in halves or in queues, and makes it
/// exact in a stop.
///
/// For example, a thread that is not an object's owner puts a drop into the owner's queue. The
/// collection calls [`prepare`](Self::prepare), stops the world, and calls [`merge`](Self::merge),
/// which empties the queues. An object whose count is 0 then is destroyed after the stop
/// ([`destroy_merged`](Self::destroy_merged)).
pub trait SplitCounts<M: ObjectModel> {
    /// Drops deferred references, before a collection stops the world.
    fn prepare(model: &M, m: &ModelMutator<M>) {
        let _ = (model, m);
    }

    /// An upper limit for the number of objects that [`merge`](Self::merge) puts into `dead`. The
    /// collector reserves room for them first. If there is no memory, the collection is abandoned
    /// before the merge. Objects above the limit make `merge` allocate, and a failed allocation
    /// there ends the process.
    fn pending(model: &M, world: &World<'_, M>) -> usize {
        let _ = (model, world);
        0
    }

    /// Makes counts exact (rule 5): merges the pending counts in the
    /// [`Local`](crate::model::ThreadData::Local)s of all threads. [`World::locals`] lists them.
    fn merge(model: &M, world: &World<'_, M>, dead: &mut Vec<DeadObject>) {
        let _ = (model, world, dead);
    }

    /// Destroys an object that [`merge`](Self::merge) found with count 0.
    fn destroy_merged(model: &M, dead: DeadObject, m: &ModelMutator<M>) {
        let _ = (model, dead.object(), m);
    }

    /// As [`claim_ref`](ObjectModel::claim_ref), if the heap has more mutators than the machine has
    /// processors. Then any mutator may clear and release the object, while the thread `by` waits
    /// for a processor. A model whose owners count without atomic instructions overrides this.
    ///
    /// Also called, by the collecting thread, for each object that is alive after it was released:
    /// in one more stop, after a [`merge`](Self::merge). So such an object is claimed and released
    /// twice.
    fn claim_ref_for_any(model: &M, object: Stopped<'_>, by: ThreadId) {
        model.claim_ref(object, by);
    }

    /// Called with the world running again, after a stop in which every thread was quiescent.
    fn resumed(model: &M, m: &ModelMutator<M>) {
        let _ = (model, m);
    }

    /// Called after a collection has released its garbage. Releases retired memory that no thread
    /// can be reading. `true`: the rest waits until every thread has passed a safepoint, and a stop
    /// would help.
    fn after_clear(model: &M, m: &ModelMutator<M>) -> bool {
        let _ = (model, m);
        false
    }
}

impl<M: ObjectModel> SplitCounts<M> for () {}

/// The count of an object is wrong by a number that the model knows, because the rest of the count
/// is elsewhere: in tables of threads, in queues.
pub trait Adjusted<M: ObjectModel> {
    /// Whether the model has this part. A model with a parameter may compute it.
    const PRESENT: bool = true;

    /// Reports corrections of [`count`](ObjectModel::count), for counts that are kept in several
    /// places: tables of threads, queues. The number of references is the count plus all
    /// corrections of the object. Called in each stop that counts, after
    /// [`merge`](crate::model::SplitCounts::merge), and again if the collection begins again.
    fn adjustments(model: &M, world: &World<'_, M>, report: &mut dyn FnMut(Object, i64));
}

impl<M: ObjectModel> Adjusted<M> for () {
    const PRESENT: bool = false;

    fn adjustments(_: &M, _: &World<'_, M>, _: &mut dyn FnMut(Object, i64)) {}
}
