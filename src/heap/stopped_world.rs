//! A stop as a value that borrows nothing.
//!
//! A [`World`] borrows the mutator, so it ends in the function that made it. Runtimes stop the
//! world in one call and resume it in another one. A [`StoppedWorld`] holds a loan of the mutator
//! instead: rule *lent* of [`mutator`](super::mutator). So while it lives, its thread does not
//! park, detach, collect or stop the world again, and a mutator that is dropped ends after it.
//!
//! # What is stopped
//!
//! All other threads of the heap. The thread that holds the value still has its mutator, and may
//! allocate, write and drop references. Therefore the value gives no access to objects as the stops
//! of the collector do: it contains no proof that an object stays alive. That is also why rule 3 of
//! [`ObjectModel`] does not apply to the thread itself.
//!
//! # Inside a collection
//!
//! While finalizers and weak callbacks run, nothing of the collection is borrowed, and the world
//! runs. The collecting thread has the collector lock, so no other thread collects or promotes.
//! Another thread may stop the world for itself, and the collecting thread waits for the end
//! of that stop, detached.
//!
//! If the value outlives its finalizer, the collection goes on with the world stopped. Its second
//! stop fails, so it is abandoned and keeps all objects.

use std::fmt;
use std::time::Duration;

use crate::heap::model::ObjectModel;
use crate::heap::mutator::{Lent, ModelMutator};
use crate::heap::world::World;
use crate::safepoint::{self, StopError, ThreadId};

impl<M: ObjectModel> ModelMutator<M> {
    /// Stops the world, as [`stop`](Self::stop) does. The result does not borrow the mutator, so it
    /// can be kept across calls, for example in a record of the thread.
    ///
    /// While it lives, the mutator is lent: `safepoint` and `park` do nothing, `detach` panics, and
    /// a collection, a fork or another stop returns an error. [`current`](Self::current) returns
    /// `None`.
    ///
    /// # Errors
    ///
    /// * [`StopError::Nested`]: this thread has stopped the world of a heap already.
    /// * [`StopError::NoSafepoint`]: the mutator is lent, or the thread is inside a traversal or
    ///   keeps another thread suspended.
    /// * [`StopError::NotAttached`]: the thread has [left](Self::leave_for_now).
    /// * [`StopError::ThreadGone`]: a thread has ended without dropping its mutator. No stop can
    ///   succeed then.
    pub fn stop_owned(&mut self) -> Result<StoppedWorld<M>, StopError> {
        self.stop_unless(Self::is_lent)
    }

    /// As [`stop_owned`](Self::stop_owned), for code that has no exclusive access to the mutator.
    /// It is also allowed inside [`ObjectModel::finalize`] and [`ObjectModel::call_back`], if a
    /// collection calls them.
    ///
    /// If the value outlives that call, the collection is abandoned and keeps its objects.
    ///
    /// # Errors
    ///
    /// As [`stop_owned`](Self::stop_owned). [`StopError::NoSafepoint`] while a destruction,
    /// [`ObjectModel::judge`], [`ObjectModel::clear`] or [`with_current`](Self::with_current) lends
    /// the mutator, and while a [`current`](Self::current) guard lives, also inside a finalizer.
    ///
    /// # Safety
    ///
    /// The caller is in none of the other methods of the model. The thread may wait detached for
    /// the end of another thread's stop. So no caller up the stack uses, afterwards, a reference to
    /// an object that is valid only until the next safepoint.
    pub unsafe fn stop_inside(&self) -> Result<StoppedWorld<M>, StopError> {
        self.stop_unless(Self::is_lent_otherwise)
    }

    fn stop_unless(
        &self,
        is_refused: impl FnOnce(&Self) -> bool,
    ) -> Result<StoppedWorld<M>, StopError> {
        if safepoint::is_stopping() {
            return Err(StopError::Nested);
        }
        if is_refused(self) {
            return Err(StopError::NoSafepoint);
        }
        // SAFETY: rule *lent*: the fields are dropped in this order, the world before the loan.
        let (world, lent) = unsafe { self.stop_lending()? };
        Ok(StoppedWorld { world, _lent: lent })
    }
}

/// The world of a heap is stopped. Dropping this resumes the world. Made by
/// [`ModelMutator::stop_owned`]. Neither `Send` nor `Sync`.
///
/// It must not be leaked, for example by [`std::mem::forget`]: the other threads of the heap would
/// stand still for ever, and the mutator would never end.
#[must_use = "the world runs again when this is dropped"]
pub struct StoppedWorld<M: ObjectModel> {
    // The order matters: the world resumes before the loan ends, and with it perhaps the mutator.
    world: World<'static, M>,
    _lent: Lent<M>,
}

impl<M: ObjectModel> StoppedWorld<M> {
    /// The thread that stopped the world.
    pub fn requester(&self) -> ThreadId {
        self.world.requester()
    }

    /// How long the stop took until the last thread parked. A wait for another stop before is not
    /// included.
    pub fn time_to_stop(&self) -> Duration {
        self.world.time_to_stop()
    }

    /// Calls `f` with the id of each mutator and the part of the mutator that belongs to the model.
    pub fn locals(&self, f: impl FnMut(ThreadId, &M::Local)) {
        self.world.locals(f);
    }

    /// Resumes the world, as a drop does.
    pub fn resume(self) {}
}

impl<M: ObjectModel> fmt::Debug for StoppedWorld<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoppedWorld").field("requester", &self.requester()).finish_non_exhaustive()
    }
}
