//! Locks of a model that a fork holds.

#![forbid(unsafe_code)]

use std::fmt;

/// Locks that a fork holds, from [`ObjectModel::lock_for_fork`]. Dropping it releases them.
///
/// [`ObjectModel::lock_for_fork`]: crate::model::ObjectModel::lock_for_fork
#[must_use = "the locks are released when this is dropped"]
#[derive(Default)]
pub struct ForkLocks<'a>(Option<Box<dyn HeldLocks + 'a>>);

impl<'a> ForkLocks<'a> {
    /// No lock.
    pub fn none() -> Self {
        Self::default()
    }

    /// The locks whose guards `guards` contains. The guards are dropped with it.
    pub fn new<T: 'a>(guards: T) -> Self {
        Self::of(Guards { _guards: guards })
    }

    pub(crate) fn of(locks: impl HeldLocks + 'a) -> Self {
        Self(Some(Box::new(locks)))
    }

    /// Whether the child of a fork could take each lock that unattached threads take: the fork
    /// holds it, or it is open.
    #[cfg(all(test, loom))]
    pub(crate) fn are_whole(&self) -> bool {
        self.0.as_ref().is_none_or(|locks| locks.are_whole())
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
        f.debug_tuple("ForkLocks").field(&self.0.is_some()).finish()
    }
}
