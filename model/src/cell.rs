//! A mutable field. A lock of it is one step of loom, and a traversal in a stop is none.

use std::fmt;
use std::ops::{Deref, DerefMut};

use crate::sync::{Mutex, MutexGuard};
use crate::{Mutator, Trace};

/// A mutable field of an object: an exclusive lock, whose guard borrows the mutator.
pub struct GcCell<T> {
    lock: Mutex<()>,
    /// Locked by the holder of `lock`, and by a traversal, which is no step.
    value: std::sync::Mutex<T>,
}

impl<T> GcCell<T> {
    /// A cell that holds `value`.
    pub fn new(value: T) -> Self {
        Self { lock: Mutex::new(()), value: std::sync::Mutex::new(value) }
    }

    /// Consumes the cell and returns the value.
    pub fn into_inner(self) -> T {
        self.value.into_inner().unwrap()
    }

    /// Calls `f` with the value. Not if its guard was leaked: then its targets stay alive.
    pub(crate) fn read_in_stop(&self, f: impl FnOnce(&T)) {
        if let Ok(value) = self.value.try_lock() {
            f(&value);
        }
    }
}

impl<T: Trace> GcCell<T> {
    /// Locks the cell, after a wait if another thread holds the lock.
    ///
    /// # Panics
    ///
    /// If this thread is not attached to the mutator's heap. A thread that locks the cell twice
    /// waits for itself, which loom reports.
    pub fn lock<'a>(&'a self, m: &'a Mutator) -> GcCellGuard<'a, T> {
        m.must_be_attached();
        let lock = self.lock.lock().unwrap();
        GcCellGuard { value: self.value.lock().unwrap(), _lock: lock }
    }

    /// Replaces the value, and drops the old one after the cell is unlocked.
    pub fn set(&self, m: &Mutator, value: T) {
        drop(self.replace(m, value));
    }

    /// Replaces the value and returns the old value.
    pub fn replace(&self, m: &Mutator, value: T) -> T {
        std::mem::replace(&mut *self.lock(m), value)
    }

    /// Removes the value and returns it. The default stays in the cell.
    pub fn take(&self, m: &Mutator) -> T
    where
        T: Default,
    {
        self.replace(m, T::default())
    }

    /// A clone of the value, which is made while the cell is locked.
    pub fn get(&self, m: &Mutator) -> T
    where
        T: Clone,
    {
        self.lock(m).clone()
    }
}

impl<T: Default> Default for GcCell<T> {
    fn default() -> Self {
        Self::new(T::default())
    }
}

impl<T> fmt::Debug for GcCell<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GcCell").finish_non_exhaustive()
    }
}

/// A locked [`GcCell`].
#[derive(Debug)]
pub struct GcCellGuard<'a, T> {
    // Before the lock, so that it is free when the lock is.
    value: std::sync::MutexGuard<'a, T>,
    _lock: MutexGuard<'a, ()>,
}

impl<T> Deref for GcCellGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T> DerefMut for GcCellGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.value
    }
}
