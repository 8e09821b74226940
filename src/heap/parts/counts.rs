//! Counts that are not in one place.
//!
//! A count that every thread changes with an atomic instruction is slow, so a runtime may spread it
//! over halves, queues and tables. The collector needs the exact number all the same, because an
//! object whose references all come from garbage is garbage.

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
/// For example, thread 2 drops a reference to an object whose owner is thread 1, so it puts the
/// drop into the queue of thread 1. The collection calls [`prepare`](Self::prepare), stops the
/// world, and calls [`merge`](Self::merge), which empties the queues. If the count is 0 then, the
/// object is destroyed after the stop ([`destroy_merged`](Self::destroy_merged)).
pub trait SplitCounts<M: ObjectModel> {
    /// Drops deferred references, before a collection stops the world.
    fn prepare(model: &M, m: &ModelMutator<M>) {
        let _ = (model, m);
    }

    /// An upper limit for the number of objects that [`merge`](Self::merge) puts into `dead`. The
    /// collector reserves room for them first, so that without memory the collection is abandoned
    /// before the merge. Objects above the limit make `merge` allocate, and a failed allocation
    /// there ends the process.
    fn pending(model: &M, world: &World<'_, M>) -> usize {
        let _ = (model, world);
        0
    }

    /// Makes counts exact (rule 5), by merging the pending counts in the
    /// [`Local`](crate::model::ThreadData::Local)s of all threads, which [`World::locals`] lists.
    fn merge(model: &M, world: &World<'_, M>, dead: &mut Vec<DeadObject>) {
        let _ = (model, world, dead);
    }

    /// Destroys an object that [`merge`](Self::merge) found with count 0.
    fn destroy_merged(model: &M, dead: DeadObject, m: &ModelMutator<M>) {
        let _ = (model, dead.object(), m);
    }

    /// Like [`claim_ref`](ObjectModel::claim_ref), if the heap has more mutators than the machine
    /// has processors. Then any mutator may clear and release the object while the thread `by`
    /// waits for a processor, so a model whose owners count without atomics overrides this.
    ///
    /// Also called, by the collecting thread, for each object that is alive after it was released,
    /// in one more stop, after a [`merge`](Self::merge). So such an object is claimed and released
    /// twice.
    fn claim_ref_for_any(model: &M, object: Stopped<'_>, by: ThreadId) {
        model.claim_ref(object, by);
    }

    /// Called with the world running again, after a stop in which every thread was quiescent.
    fn resumed(model: &M, m: &ModelMutator<M>) {
        let _ = (model, m);
    }

    /// Called after a collection has released its garbage, to release retired memory that no thread
    /// can be reading. Returns `true` if the rest waits until every thread has passed a safepoint,
    /// so that a stop would help.
    fn after_clear(model: &M, m: &ModelMutator<M>) -> bool {
        let _ = (model, m);
        false
    }
}

impl<M: ObjectModel> SplitCounts<M> for () {}

/// The count of an object is wrong by a number that the model knows, because the rest of the count
/// is in tables of threads or in queues.
pub trait Adjusted<M: ObjectModel> {
    /// Whether the model has this part, which a model with a parameter may compute.
    const PRESENT: bool = true;

    /// Reports corrections of [`count`](ObjectModel::count), so that the number of references is
    /// the count plus all corrections of the object. Called in each stop that counts, after
    /// [`merge`](crate::model::SplitCounts::merge), and again if the collection begins again.
    fn adjustments(model: &M, world: &World<'_, M>, report: &mut dyn FnMut(Object, i64));
}

impl<M: ObjectModel> Adjusted<M> for () {
    const PRESENT: bool = false;

    fn adjustments(_: &M, _: &World<'_, M>, _: &mut dyn FnMut(Object, i64)) {}
}
