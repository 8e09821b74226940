//! The mutator of the calling thread, for code that gets none as a parameter.
//!
//! For example, a destructor drops the last reference to another object, which lies in the same
//! heap. It frees that object through [`current`](ModelMutator::current), because the trait `Drop`
//! passes no mutator. Such a call lends the mutator (rule *lent* of [`mutator`](super::mutator)),
//! which costs two additions to a word of the thread.
//! [`current_unlent`](ModelMutator::current_unlent) leaves them out, so its caller promises what
//! the loan would enforce.

use std::fmt;
use std::mem::ManuallyDrop;
use std::ops::Deref;

use crate::heap::model::ObjectModel;
use crate::heap::mutator::{Lent, ModelMutator};

impl<M: ObjectModel> ModelMutator<M> {
    /// Calls `f` with this thread's mutator, if the thread is attached to a heap of this model.
    /// Returns `None` if it is not attached, during a traversal, and while it holds a stop.
    ///
    /// Meanwhile the mutator is lent, so the thread reaches no safepoint, and neither detaches nor
    /// collects. [`current`](Self::current) is the same without a closure.
    pub fn with_current<R>(f: impl FnOnce(&Self) -> R) -> Option<R> {
        Self::current().map(|mutator| f(&mutator))
    }

    /// Returns this thread's mutator, if the thread is attached to a heap of this model. It is for
    /// code that gets no mutator as a parameter, such as the destructor of a reference.
    ///
    /// Returns `None` if it is not attached, during a traversal, and while it holds a stop.
    ///
    /// The mutator is lent while the guard lives, so that `safepoint` and `park` do nothing,
    /// `detach` panics, and a collection or a stop returns an error. If the guard is leaked, the
    /// mutator stays lent, and every stop waits for this thread for ever.
    #[inline]
    pub fn current() -> Option<CurrentMutator<M>> {
        Self::here().map(CurrentMutator::lend)
    }

    /// Like [`current`](Self::current), if that is this mutator.
    #[inline(always)]
    pub(super) fn if_current(&self) -> Option<CurrentMutator<M>> {
        self.if_here().map(CurrentMutator::lend)
    }

    /// Like [`current`](Self::current), but spares the two additions of a loan. It is meant for a
    /// few calls, with no other code between them, of [`allocate`](Self::allocate),
    /// [`publish`](Self::publish), [`track`](Self::track), [`free`](Self::free) and
    /// [`local`](Self::local).
    ///
    /// # Safety
    ///
    /// While the guard lives, this thread does not drop its mutator, reaches no safepoint, and does
    /// not detach, collect or stop the world. The caller calls no code that could do so.
    #[inline(always)]
    pub unsafe fn current_unlent() -> Option<UnlentMutator<M>> {
        Self::here().map(UnlentMutator)
    }
}

/// The mutator of this thread, which [`ModelMutator::current`] has lent.
#[must_use = "the mutator is lent while this lives"]
pub struct CurrentMutator<M: ObjectModel> {
    /// A second value for the same attachment, so it is never dropped.
    mutator: ManuallyDrop<ModelMutator<M>>,
    _lent: Lent<M>,
}

impl<M: ObjectModel> CurrentMutator<M> {
    #[inline(always)]
    fn lend(mutator: ManuallyDrop<ModelMutator<M>>) -> Self {
        let lent = mutator.lend();
        Self { mutator, _lent: lent }
    }
}

impl<M: ObjectModel> Deref for CurrentMutator<M> {
    type Target = ModelMutator<M>;

    #[inline(always)]
    fn deref(&self) -> &ModelMutator<M> {
        &self.mutator
    }
}

impl<M: ObjectModel> fmt::Debug for CurrentMutator<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("CurrentMutator").field(&**self).finish()
    }
}

/// The mutator of this thread, not lent, as [`ModelMutator::current_unlent`] returns it.
pub struct UnlentMutator<M: ObjectModel>(ManuallyDrop<ModelMutator<M>>);

impl<M: ObjectModel> Deref for UnlentMutator<M> {
    type Target = ModelMutator<M>;

    #[inline(always)]
    fn deref(&self) -> &ModelMutator<M> {
        &self.0
    }
}

impl<M: ObjectModel> fmt::Debug for UnlentMutator<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("UnlentMutator").field(&**self).finish()
    }
}
