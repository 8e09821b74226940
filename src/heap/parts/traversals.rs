//! Traversals in batches, and traversals by one thread.
//!
//! To look up the type of an object can take as long as to traverse it. For example, thread 1 has
//! 64 objects of one type in a row, and thread 2 has others. The model looks up the type once in
//! [`traverse_each`](Batches::traverse_each), and traverses all 64.

#![forbid(unsafe_code)]

use crate::heap::model::ObjectModel;
use crate::heap::mutator::ModelMutator;
use crate::object::live::Stopped;
use crate::object::tracer::{Ends, Tracer};

/// The model works on many objects at once, because this is faster than one by one.
pub trait Batches<M: ObjectModel> {
    /// Reports the references of one or more objects at the front of `objects`, as
    /// [`traverse`](ObjectModel::traverse) does for one. It passes these objects to
    /// [`Tracer::each`] in order and without gaps. `objects` is not empty.
    ///
    /// A model overrides this if it can traverse several objects of one type faster than it can
    /// look up the type of each. A reference reported outside [`Tracer::each`] is attributed to the
    /// next object, and one reported under another object to that object, with the consequences
    /// that rule 4 names. If the call traverses no object, the collection is abandoned.
    #[inline(always)]
    fn traverse_each(model: &M, objects: &[Stopped<'_>], tracer: &mut Tracer, ends: &mut Ends<'_>) {
        tracer.each(objects, ends, |object, tracer| model.traverse(object, tracer));
    }

    /// Whether [`prefetch_each`](Self::prefetch_each) has an effect. Called once for each pass over
    /// the heap.
    fn prefetches(model: &M) -> bool {
        let _ = model;
        false
    }

    /// Prefetches memory outside `objects`, which is not empty, that a traversal will read, with
    /// [`Tracer::fetch`]. The collector calls it some objects ahead of the traversal, and it
    /// reports nothing to the tracer.
    #[inline(always)]
    fn prefetch_each(model: &M, objects: &[Stopped<'_>], tracer: &mut Tracer) {
        let _ = (model, objects, tracer);
    }

    /// This thread is about to clear objects of a collection that clears `objects` in all.
    fn clearing(model: &M, m: &ModelMutator<M>, objects: usize) {
        let _ = (model, m, objects);
    }

    /// This thread has cleared an object, so the model may drop here, in batches, the references
    /// that [`clear`](ObjectModel::clear) removed. If `last` is true it must drop all of them,
    /// because objects are about to be released, or the thread is about to park.
    fn cleared(model: &M, m: &ModelMutator<M>, last: bool) {
        let _ = (model, m, last);
    }
}

impl<M: ObjectModel> Batches<M> for () {}

/// Some objects are traversed by one thread, because their traversal is not prepared for others.
pub trait Serial<M: ObjectModel> {
    /// Whether the model has this part, which a model with a parameter may compute.
    const PRESENT: bool = true;

    /// Whether only the thread that has stopped the world traverses and prefetches `object`, so
    /// that a worker that meets such an object leaves it to that thread.
    fn serial(model: &M, object: Stopped<'_>) -> bool;
}

impl<M: ObjectModel> Serial<M> for () {
    const PRESENT: bool = false;

    #[inline(always)]
    fn serial(_: &M, _: Stopped<'_>) -> bool {
        false
    }
}
