//! Forks of the process, which lose all threads but one.
//!
//! For example, thread 1 forks while thread 2, unattached, has locked a list of the model. The
//! child has no thread 2, so the lock would stay locked there for ever. So the fork takes it first.

#![forbid(unsafe_code)]

use std::fmt;

use crate::base::fallible::{self, NoMemory};
use crate::heap::model::ObjectModel;
use crate::heap::mutator::ModelMutator;
use crate::heap::parts::Local;
use crate::safepoint::ThreadId;

/// The model survives a fork of the process.
pub trait Forks<M: ObjectModel> {
    /// Takes the locks of the model that unattached threads take too. The calls that prepare a fork
    /// call it after they have stopped the world, and the result is dropped after the fork, in both
    /// processes, before the world resumes.
    ///
    /// A child of the fork has one thread, so a lock that another thread of the parent held at that
    /// moment stays locked in the child for ever. An attached thread holds no lock of the model
    /// when it has stopped at a safepoint. But a stop does not wait for unattached threads, so the
    /// fork must hold the locks that they take. Such a lock must survive a fork, as std's locks do,
    /// and those of `parking_lot` do not.
    ///
    /// A model whose unattached threads take no lock need not override this.
    fn lock_for_fork(model: &M) -> ForkLocks<'_> {
        let _ = model;
        ForkLocks::none()
    }

    /// In the child of a fork, repairs the model after the loss of a thread. `lost` is a mutator
    /// whose thread does not exist in this process, and `local` its data. Called once for each of
    /// them when the child ends the fork ([`ModelFork::child`](crate::model::ModelFork::child), or
    /// the same of a [`ModelDetachedFork`](crate::model::ModelDetachedFork)). This is on the only
    /// thread of the process, with the world running, before the data is dropped.
    /// [`ending`](crate::model::Threads::ending) is not called for these mutators, and their
    /// private data leaks.
    ///
    /// A model moves pending work of the lost thread, such as deferred drops in `local`, to this
    /// mutator, and gives objects that belong to the thread another owner. References on the stacks
    /// of lost threads still count, so their objects stay.
    ///
    /// A panic goes to [`ModelHeap::on_unraisable`](crate::model::ModelHeap::on_unraisable).
    fn forked(model: &M, lost: ThreadId, local: &Local<M>, m: &ModelMutator<M>) {
        let _ = (model, lost, local, m);
    }
}

impl<M: ObjectModel> Forks<M> for () {}

/// Locks that a fork holds, from [`Forks::lock_for_fork`](crate::model::Forks::lock_for_fork),
/// until this is dropped.
#[must_use = "the locks are released when this is dropped"]
pub struct ForkLocks<'a>(Result<Option<Box<dyn HeldLocks + 'a>>, NoMemory>);

impl<'a> ForkLocks<'a> {
    /// Locks nothing, for a model whose unattached threads take no lock.
    pub fn none() -> Self {
        Self(Ok(None))
    }

    /// The locks whose guards `guards` contains, and which are dropped with it.
    ///
    /// If there is no memory for it, the guards are dropped at once, and
    /// [`prepare_fork`](crate::model::ModelMutator::prepare_fork) returns
    /// [`StopError::NoMemory`](crate::safepoint::StopError::NoMemory).
    pub fn new<T: 'a>(guards: T) -> Self {
        Self::of(Guards { _guards: guards })
    }

    pub(crate) fn of(locks: impl HeldLocks + 'a) -> Self {
        Self(fallible::boxed(locks).map(|locks| Some(locks as Box<dyn HeldLocks + 'a>)))
    }

    /// Whether there was memory for the guards.
    pub(crate) fn are_held(&self) -> bool {
        self.0.is_ok()
    }

    /// Whether the child of a fork could take each lock that unattached threads take, because the
    /// fork holds it, or it is open.
    #[cfg(all(test, loom))]
    pub(crate) fn are_whole(&self) -> bool {
        self.0.as_ref().is_ok_and(|locks| locks.as_ref().is_none_or(|locks| locks.are_whole()))
    }
}

pub(crate) trait HeldLocks {
    #[cfg(all(test, loom))]
    fn are_whole(&self) -> bool;
}

/// The guards of a model, of which this module knows nothing.
struct Guards<T> {
    _guards: T,
}

impl<T> HeldLocks for Guards<T> {
    #[cfg(all(test, loom))]
    fn are_whole(&self) -> bool {
        true
    }
}

impl fmt::Debug for ForkLocks<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ForkLocks").field(&matches!(self.0, Ok(Some(_)))).finish()
    }
}
