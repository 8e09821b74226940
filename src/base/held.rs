//! Counts the library's locks that a thread holds.
//!
//! Debug builds count, so that [`outside`](crate::base::outside) can refuse to call foreign code
//! under a lock. In release builds all of this is empty.

#![forbid(unsafe_code)]

use std::ops::{Deref, DerefMut};

#[cfg(debug_assertions)]
thread_local! {
    /// Negative if a lock was dropped while it was [set aside](Aside).
    static HELD: std::cell::Cell<i32> = const { std::cell::Cell::new(0) };
}

#[inline(always)]
fn add(_locks: i32) {
    #[cfg(debug_assertions)]
    HELD.set(HELD.get() + _locks);
}

/// Whether this thread holds a lock of the library. Always `false` in release builds.
#[inline(always)]
pub(crate) fn are_locks_held() -> bool {
    #[cfg(debug_assertions)]
    return HELD.get() > 0;
    #[cfg(not(debug_assertions))]
    false
}

/// Counts one lock while it lives. It has no destructor in release builds.
#[derive(Debug)]
struct HeldLock;

#[cfg(debug_assertions)]
impl Drop for HeldLock {
    fn drop(&mut self) {
        add(-1);
    }
}

/// A lock's guard, which is counted while it lives.
#[derive(Debug)]
pub(crate) struct CountedGuard<G>(G, HeldLock);

impl<G> CountedGuard<G> {
    #[inline(always)]
    pub(crate) fn new(guard: G) -> Self {
        add(1);
        Self(guard, HeldLock)
    }

    /// Passes the guard through `f`, which returns it, as a wait for a condition does.
    pub(crate) fn through<R>(self, f: impl FnOnce(G) -> (G, R)) -> (Self, R) {
        let Self(guard, held) = self;
        let (guard, result) = f(guard);
        (Self(guard, held), result)
    }
}

impl<G: Deref> Deref for CountedGuard<G> {
    type Target = G::Target;

    #[inline(always)]
    fn deref(&self) -> &G::Target {
        &self.0
    }
}

impl<G: DerefMut> DerefMut for CountedGuard<G> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut G::Target {
        &mut self.0
    }
}

/// While this lives, the locks that this thread held before do not count. A fork needs this for its
/// locks, and so do the traverse handlers that must be called one at a time.
#[must_use = "the locks count again when this is dropped"]
#[derive(Debug)]
pub(crate) struct Aside {
    #[cfg(debug_assertions)]
    locks: i32,
}

impl Aside {
    pub(crate) fn all() -> Self {
        #[cfg(debug_assertions)]
        return Self { locks: HELD.replace(0) };
        #[cfg(not(debug_assertions))]
        Self {}
    }
}

#[cfg(debug_assertions)]
impl Drop for Aside {
    fn drop(&mut self) {
        add(self.locks);
    }
}
