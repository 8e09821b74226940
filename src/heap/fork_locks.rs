//! Locks of a model that a fork holds.

#![forbid(unsafe_code)]

use std::fmt;

use crate::base::fallible::{self, NoMemory};

/// Locks that a fork holds, from [`ObjectModel::lock_for_fork`]. Dropping it releases them.
///
/// [`ObjectModel::lock_for_fork`]: crate::model::ObjectModel::lock_for_fork
#[must_use = "the locks are released when this is dropped"]
pub struct ForkLocks<'a>(Result<Option<Box<dyn HeldLocks + 'a>>, NoMemory>);

impl<'a> ForkLocks<'a> {
    /// No lock.
    pub fn none() -> Self {
        Self(Ok(None))
    }

    /// The locks whose guards `guards` contains. The guards are dropped with it.
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

    /// Whether the child of a fork could take each lock that unattached threads take: the fork
    /// holds it, or it is open.
    #[cfg(all(test, loom))]
    pub(crate) fn are_whole(&self) -> bool {
        self.0.as_ref().is_ok_and(|locks| locks.as_ref().is_none_or(|locks| locks.are_whole()))
    }
}

/// The guards of some locks.
pub(crate) trait HeldLocks {
    /// See [`ForkLocks::are_whole`].
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
