//! A thread may use settings and hooks of heaps, and lists of the process, without being attached.
//! No stop waits for such a thread, so the child of a fork could inherit the lock of these data
//! locked. A fork therefore holds the lock ([`SettingsHold`]), which is one of std, because the
//! child can release that. There is one for the process, because the data are many, and each is
//! used for a moment only, by cold paths. It is the innermost of all locks, because no code of the
//! user runs under it, and nothing waits under it.
//!
//! The thread that forks uses the data meanwhile, so the lock knows its thread ([`IS_HELD`]), and a
//! thread may take it again.

#![forbid(unsafe_code)]

#[cfg(not(any(all(test, any(loom, shuttle)), standstill_loom, standstill_shuttle)))]
use std::cell::Cell;
#[cfg(not(any(all(test, any(loom, shuttle)), standstill_loom, standstill_shuttle)))]
use std::sync::PoisonError;

use crate::base::sync::Mutex;

#[cfg(not(any(all(test, any(loom, shuttle)), standstill_loom, standstill_shuttle)))]
static LOCK: std::sync::Mutex<()> = std::sync::Mutex::new(());

#[cfg(not(any(all(test, any(loom, shuttle)), standstill_loom, standstill_shuttle)))]
thread_local! {
    /// Whether this thread holds [`LOCK`]. It has no destructor, so that a thread can fork until
    /// its end.
    static IS_HELD: Cell<bool> = const { Cell::new(false) };
}

/// This thread holds the lock while this lives.
#[derive(Debug)]
#[must_use = "the lock is released when this is dropped"]
pub(crate) struct SettingsHold {
    /// `None`: the thread held it already.
    #[cfg(not(any(all(test, any(loom, shuttle)), standstill_loom, standstill_shuttle)))]
    outermost: Option<std::sync::MutexGuard<'static, ()>>,
}

#[cfg(not(any(all(test, any(loom, shuttle)), standstill_loom, standstill_shuttle)))]
impl SettingsHold {
    #[inline]
    pub(crate) fn new() -> Self {
        let is_outermost = !IS_HELD.get();
        let outermost = is_outermost.then(|| LOCK.lock().unwrap_or_else(PoisonError::into_inner));
        IS_HELD.set(true);
        Self { outermost }
    }
}

#[cfg(not(any(all(test, any(loom, shuttle)), standstill_loom, standstill_shuttle)))]
impl Drop for SettingsHold {
    #[inline]
    fn drop(&mut self) {
        if self.outermost.is_some() {
            IS_HELD.set(false);
        }
    }
}

/// Does nothing, because all threads of a model are one of the system, which must not wait for
/// itself. The locks of the tool protect their data.
#[cfg(any(all(test, any(loom, shuttle)), standstill_loom, standstill_shuttle))]
impl SettingsHold {
    pub(crate) fn new() -> Self {
        Self {}
    }
}

/// A setting or a hook, under the lock.
#[derive(Debug, Default)]
pub(crate) struct Setting<T>(Mutex<T>);

impl<T> Setting<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(Mutex::new(value))
    }

    /// Calls `f` with the value. `f` calls no code of the user, because the lock is held, and does
    /// not use this value again.
    pub(crate) fn with<R>(&self, f: impl FnOnce(&mut T) -> R) -> R {
        let _held = SettingsHold::new();
        f(&mut self.0.lock())
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
