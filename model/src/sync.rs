//! The primitives, of loom or std, and data that no step of loom belongs to.

use std::fmt;
use std::sync::PoisonError;

#[cfg(standstill_loom)]
pub(crate) use loom::{
    sync::{
        Condvar, Mutex, MutexGuard,
        atomic::{AtomicU32, AtomicUsize, Ordering},
    },
    thread_local,
};
#[cfg(not(standstill_loom))]
pub(crate) use std::{
    sync::{
        Condvar, Mutex, MutexGuard,
        atomic::{AtomicU32, AtomicUsize, Ordering},
    },
    thread_local,
};

/// Data that an operation reads and changes at once. loom switches threads only at its own
/// primitives, so this is atomic in a model, and no step, and orders nothing. `f` uses no primitive
/// of loom: another thread could then wait for this lock, which loom does not know.
pub(crate) struct Plain<T>(std::sync::Mutex<T>);

impl<T> Plain<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(std::sync::Mutex::new(value))
    }

    pub(crate) fn with<R>(&self, f: impl FnOnce(&mut T) -> R) -> R {
        f(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl<T> fmt::Debug for Plain<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Plain").finish_non_exhaustive()
    }
}

/// A step, and an order: what happens before a [`release`](Self::release) happens before the code
/// after each later [`acquire`](Self::acquire). Two releases are not ordered.
///
/// loom tries both orders of two steps only if they use the same primitive. So two operations use
/// one `Order` if a thread can observe which of them came first. All are read-modify-writes,
/// because a load could return an older value, and would add executions for it.
#[derive(Debug)]
pub(crate) struct Order(AtomicUsize);

impl Order {
    pub(crate) fn new() -> Self {
        Self(AtomicUsize::new(0))
    }

    pub(crate) fn release(&self) {
        self.0.fetch_add(0, Ordering::Release);
    }

    pub(crate) fn acquire(&self) {
        self.0.fetch_add(0, Ordering::Acquire);
    }

    pub(crate) fn step(&self) {
        self.0.fetch_add(0, Ordering::Relaxed);
    }
}
