//! Finalizers, and the judgement of garbage.
//!
//! A finalizer is code of the program, which may make garbage reachable again. For example, A and B
//! refer to each other, and thread 1 finds both unreachable. It calls the finalizer of A, which
//! stores a reference to B in a list of the program. So the collection looks at both once more
//! before it clears one, and keeps them.

#![forbid(unsafe_code)]

use crate::heap::model::ObjectModel;
use crate::heap::mutator::ModelMutator;
use crate::object::live::{Live, Stopped};

/// The result of a collection, for [`Verdicts::judge`].
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Found<'a> {
    /// The objects to be cleared.
    pub garbage: &'a [Live<'a>],
    /// The objects that are not cleared, because they have a legacy finalizer, or such objects
    /// reach them.
    pub uncollectable: &'a [Live<'a>],
    /// The uncollectable objects that have a legacy finalizer.
    pub legacy: &'a [Live<'a>],
}

impl<'a> Found<'a> {
    pub(crate) fn new(
        garbage: &'a [Live<'a>],
        uncollectable: &'a [Live<'a>],
        legacy: &'a [Live<'a>],
    ) -> Self {
        Self { garbage, uncollectable, legacy }
    }
}

/// The decision of [`Verdicts::judge`] about the garbage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The garbage is cleared.
    Clear,
    /// Nothing is cleared. The garbage becomes ordinary objects again and is reported as
    /// uncollectable, although its weak references stay cleared, and its finalizers have run.
    Keep,
}

/// Objects may have finalizers, which a collection calls once, before it clears the object.
pub trait Finalizers<M: ObjectModel> {
    /// Whether `object` has a finalizer. Called only for objects that were not finalized yet.
    ///
    /// It has no default, so that a model cannot define [`finalize`](Self::finalize) and leave it
    /// uncalled.
    fn has_finalizer(model: &M, object: Live<'_>) -> bool;

    /// Runs the finalizer of an `object` that [has one](Self::has_finalizer). It may panic, make
    /// the object reachable again, allocate, and change the graph.
    ///
    /// It may block, for example for a lock or a thread. A finalizer that a collection calls may
    /// leave meanwhile with [`ModelMutator::leave_for_now`]. Otherwise the thread is attached, and
    /// [`ModelMutator::may_park`] returns `false`, so the thread that it waits for must not wait
    /// for a stop. That thread must not call [`ModelMutator::stop`] or
    /// [`ModelMutator::prepare_fork`], and gets [`CollectError::Busy`](crate::CollectError::Busy)
    /// from a collection that does not wait.
    fn finalize(model: &M, object: Live<'_>, m: &ModelMutator<M>);

    /// Whether garbage is to be [handed over](Self::hand_over) to the program instead of being
    /// finalized. Called for each object that a collection has found.
    #[inline(always)]
    fn is_guarded(model: &M, object: Live<'_>) -> bool {
        let _ = (model, object);
        false
    }

    /// Gives the program references to an object that [is guarded](Self::is_guarded), for example
    /// in a queue, so that it lives on. Its finalizer is not called meanwhile.
    fn hand_over(model: &M, object: Live<'_>, m: &ModelMutator<M>) {
        let _ = (model, object, m);
    }
}

impl<M: ObjectModel> Finalizers<M> for () {
    #[inline(always)]
    fn has_finalizer(_: &M, _: Live<'_>) -> bool {
        false
    }

    fn finalize(_: &M, _: Live<'_>, _: &ModelMutator<M>) {}
}

/// The model decides what becomes of garbage.
pub trait Verdicts<M: ObjectModel> {
    /// Whether objects with a legacy finalizer may exist, so that the collector calls
    /// [`legacy`](Self::legacy).
    fn has_legacy(model: &M) -> bool {
        let _ = model;
        false
    }

    /// Whether `object` has a *legacy finalizer*. The collector must not call such a finalizer,
    /// since it expects all objects that it reaches to be intact, and must not destroy the object
    /// without a call. So if such an object is unreachable, neither it nor the objects that it
    /// reaches are cleared, and they are reported as uncollectable.
    fn legacy(model: &M, object: Stopped<'_>) -> bool {
        let _ = (model, object);
        false
    }

    /// Decides about the garbage after finalizers have run and the recheck is complete, while the
    /// world is running. The collection holds references to all objects in `found` until this
    /// returns, and the model may add references of its own.
    fn judge(model: &M, found: &Found<'_>, m: &ModelMutator<M>) -> Verdict {
        let _ = (model, found, m);
        Verdict::Clear
    }
}

impl<M: ObjectModel> Verdicts<M> for () {}
