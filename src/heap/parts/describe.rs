//! What a report about the heap says of an object, beyond its type and its references.
//!
//! A census needs no more than [`ObjectModel`] tells, but a path through the heap is only useful
//! with the names of the fields, and an object of a listed heap has a size that only its runtime
//! knows. For example, A refers to B by its field `next`. [`fields`](Describe::fields) calls
//! [`Tracer::field`] with `next`, and then reports B, so that the path says `A.next → B`.

#![forbid(unsafe_code)]

use std::fmt;

use crate::heap::model::ObjectModel;
use crate::object::live::Stopped;
use crate::object::tracer::Tracer;

/// The model describes its objects for [surveys](crate::model::ModelMutator::survey).
///
/// All methods run while the world is stopped, possibly on several threads at once, under the same
/// guard as a traversal. [`fields`](Self::fields) is called for tracked objects, and the others
/// also for untracked ones, which may be incomplete.
pub trait Describe<M: ObjectModel> {
    /// Reports the references that [`ObjectModel::traverse`] reports, in any order, and calls
    /// [`Tracer::field`] before those of each field.
    fn fields(model: &M, object: Stopped<'_>, tracer: &mut Tracer) {
        model.traverse(object, tracer);
    }

    /// Writes a few words that tell the object from others of its type. Called only for
    /// [`graph_with_labels`](crate::model::ModelMutator::graph_with_labels), which keeps the first
    /// 64 bytes.
    ///
    /// # Errors
    ///
    /// Those of `f`. Nothing depends on them: what was written is the label.
    fn label(model: &M, object: Stopped<'_>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let _ = (model, object, f);
        Ok(())
    }

    /// Whether the object is a part of another one, whose traversal does not report it. Its one
    /// reference does not come from outside then.
    fn is_part(model: &M, object: Stopped<'_>) -> bool {
        let _ = (model, object);
        false
    }

    /// The bytes of the object itself. `None`: those of its cell, or 0 if the heap has not
    /// allocated it.
    fn bytes(model: &M, object: Stopped<'_>) -> Option<usize> {
        let _ = (model, object);
        None
    }

    /// The bytes outside the heap that the object owns. `tracer` is at the object, for models whose
    /// traversals tell them; the references that it gets here are ignored.
    fn external_bytes(model: &M, object: Stopped<'_>, tracer: &mut Tracer) -> usize {
        let _ = (model, object, tracer);
        0
    }
}

impl<M: ObjectModel> Describe<M> for () {}
