//! Checks of a model, its objects and their traversals.
//!
//! A traversal that reports a reference twice makes the collector clear a live object, which the
//! program notices much later. For example, thread 1 traverses A, which reports its only reference
//! to B twice. B has the count 1, so the collector calls [`overvisited`](Checks::overvisited) for
//! it, and keeps it.

#![forbid(unsafe_code)]

use std::ptr::NonNull;

use crate::heap::model::ObjectModel;
use crate::object::address::Object;
use crate::object::live::{Live, Stopped};

/// The model checks itself, its objects and their traversals, for debugging.
pub trait Checks<M: ObjectModel> {
    /// Whether the collector calls [`verifies_traversal`](Self::verifies_traversal).
    fn verifies_traversals(model: &M) -> bool {
        let _ = model;
        false
    }

    /// Whether the collector compares the two traversals of `object` in one stop, and abandons the
    /// collection if they differ. The comparison is slow, and meant for debugging.
    fn verifies_traversal(model: &M, object: Stopped<'_>) -> bool {
        let _ = (model, object);
        false
    }

    /// Whether the collector traverses `object` once more in a stop of its own, after all objects
    /// of a batch are cleared and before one is released.
    #[doc(hidden)]
    fn examines_cleared(model: &M, object: Live<'_>) -> bool {
        let _ = (model, object);
        false
    }

    /// The fields of `object`, although cleared, refer to `target` more often than its count
    /// allows.
    #[doc(hidden)]
    fn dangles(model: &M, object: Stopped<'_>, target: Object) {
        let _ = (model, object, target);
    }

    /// Traversals reported more references to `object` than exist, so a traversal is wrong, and the
    /// object is kept.
    fn overvisited(model: &M, object: Stopped<'_>) {
        let _ = (model, object);
    }

    /// Checks the header of `object` for invalid content, when the heap is verified, before any
    /// other method is called for the object.
    ///
    /// # Errors
    /// A description of the defect.
    fn check(model: &M, object: Stopped<'_>) -> Result<(), String> {
        let _ = (model, object);
        Ok(())
    }

    /// Returns the name of the type of a destroyed object, if the remaining bytes still identify
    /// it, for the report about a write to freed memory. `memory` is the first byte of the object's
    /// memory, and not the object's address if
    /// [`allocate_at`](crate::model::ModelMutator::allocate_at) has put a prefix in front of it.
    /// The memory may never have held an object. Called only if [freed memory is
    /// poisoned](crate::Stress::poison).
    fn last_type(model: &M, memory: NonNull<u8>) -> Option<&'static str> {
        let _ = (model, memory);
        None
    }
}

impl<M: ObjectModel> Checks<M> for () {}
