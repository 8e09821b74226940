//! The mutator of the calling thread, for code that gets none as a parameter.
//!
//! A safe call lends the mutator: rule *lent* of [`mutator`](super::mutator). The lending is two
//! additions to a word of the thread. [`current_unlent`](ModelMutator::current_unlent) leaves them
//! out, and its caller promises what the loan would enforce.

use std::fmt;
use std::mem::ManuallyDrop;
use std::ops::Deref;

use crate::heap::model::ObjectModel;
use crate::heap::mutator::{Lent, ModelMutator};

impl<M: ObjectModel> ModelMutator<M> {
    /// Calls `f` with this thread's mutator, if the thread is attached to a heap of this model.
    ///
    /// Returns `None` if it is not attached, during a traversal, and while it holds a stop.
    ///
    /// The mutator is lent meanwhile: the thread reaches no safepoint, does not detach and does not
    /// collect. [`current`](Self::current) is the same without a closure.
    pub fn with_current<R>(f: impl FnOnce(&Self) -> R) -> Option<R> {
        Self::current().map(|mutator| f(&mutator))
    }

    /// Returns this thread's mutator, if the thread is attached to a heap of this model. For code
    /// that gets no mutator as a parameter, such as the destructor of a reference.
    ///
    /// Returns `None` if it is not attached, during a traversal, and while it holds a stop.
    ///
    /// The mutator is lent while the guard lives: `safepoint` and `park` do nothing, `detach`
    /// panics, and a collection or a stop returns an error. If the guard is leaked, the mutator is
    /// lent for ever, and every stop waits for this thread for ever.
    #[inline]
    pub fn current() -> Option<CurrentMutator<M>> {
        let mutator = Self::here()?;
        let lent = mutator.lend();
        Some(CurrentMutator { mutator, _lent: lent })
    }

    /// As [`current`](Self::current), without lending: two additions less. It is meant for single
    /// calls of [`allocate`](Self::allocate), [`publish`](Self::publish), [`track`](Self::track),
    /// [`free`](Self::free) and [`local`](Self::local).
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

/// The mutator of this thread, lent. Made by [`ModelMutator::current`].
#[must_use = "the mutator is lent while this lives"]
pub struct CurrentMutator<M: ObjectModel> {
    /// A second value for the same attachment. It is never dropped.
    mutator: ManuallyDrop<ModelMutator<M>>,
    _lent: Lent<M>,
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

/// The mutator of this thread, not lent. Made by [`ModelMutator::current_unlent`].
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
