//! A model tries many interleavings of the library's threads, so it must see each access of an
//! atomic and each lock. Therefore the library takes its primitives from this module, which has
//! three implementations. In the crate's own unit tests under `--cfg loom` the primitives are
//! loom's, which explores the interleavings of a few threads. Under `--cfg shuttle` they are
//! shuttle's, which draws random schedules of larger programs. For the models of a runtime that
//! uses this crate they are loom's under `--cfg standstill_loom` and shuttle's under
//! `--cfg standstill_shuttle`, flags of their own, because `--cfg loom` reaches every crate of a
//! build. In every other build they are the real ones. The interface has the shape of `parking_lot`
//! (no poisoning), and [`UnsafeCell`] the shape of loom's (`with_mut`), so that code reads alike in
//! all three.
//!
//! # Uses of std's primitives
//!
//! Because loom's primitives have no constant constructor, and the tools' primitives exist only in
//! models, some files use std's:
//!
//! | file | primitives | reason |
//! |---|---|---|
//! | `typed/cell` | the value | a guard lends a plain reference |
//! | `object/type_info` | `AtomicPtr`, `AtomicU32`, `OnceLock` | arrays made in constants |
//! | `safepoint` | the counter of thread ids | a static |
//! | `safepoint/lock` | mutex, condition variable | `parking_lot`'s do not survive a fork |
//! | `safepoint/thread_words` | the exit watcher | a thread-local with a destructor |
//! | `heap/slow` | the fields that report a long wait | numbers for reports |
//! | `dynamic` | atomics, thread-locals, `RwLock` | no model has dynamic objects |
//! | `memory/range` | `RANGES` | a static |
//! | `base/settings_lock` | mutex | a static, which survives a fork |
//! | `memory/space` | the headers of pages | memory of the system |
//! | `base/environment` | `OnceLock` | a static that is read once |
//! | `base/system` | `AtomicBool` | a static |
//! | `typed` | `Mutex`, `RwLock`, `OnceLock` | they belong to the user |
//!
//! In models `safepoint/lock` uses the primitives of this module, and the end of a thread is a step
//! (`end_thread`), without an exit watcher.
//!
//! All files use std's `Arc` and `Cell`. Because the models check no ordering of the primitives in
//! this table, `docs/memory-ordering.md` argues them.
//!
//! # Held locks
//!
//! Debug builds count the locks that each thread holds, so that
//! [`outside`](crate::base::outside) can refuse to call foreign code under a lock. Release builds
//! and models do not count.
//!
//! # Differences under loom
//!
//! * loom treats a `SeqCst` access as acquire and release only. The atomics here wrap loom's and
//!   add the rest: a `SeqCst` load never returns a value that is older than the newest `SeqCst`
//!   store to the same atomic. As in the language, both the store and the load must be `SeqCst`, so
//!   that a model fails when either is weakened.
//! * There is no time, so [`Condvar::wait_for`] waits without limit, and no timed wait may be
//!   needed for progress.
//!
//! # Differences under shuttle
//!
//! * shuttle's threads take turns on one thread of the system, so that every access is `SeqCst`,
//!   and loom has to find faults that need a weaker ordering. Another thread may run before each
//!   access of an atomic and at each lock, and nowhere else.
//! * The atomics are the real ones, with a scheduling point before each access, because shuttle's
//!   own are larger than their values. So objects, tables and pages have the same layout as outside
//!   models.
//! * There is no time, as under loom. Because all threads are one of the system,
//!   `std::thread::panicking` is true if any of them panics.

#![forbid(unsafe_code)]

/// Whether a tool for models schedules the threads. Then there is no clock, because the behaviour
/// of a model must not depend on time, and batches are small, so that a model meets their ends.
pub(crate) const IS_MODEL: bool =
    cfg!(any(all(test, any(loom, shuttle)), standstill_loom, standstill_shuttle));

/// Only for code that no model runs: see the table above.
#[cfg(any(all(test, any(loom, shuttle)), standstill_loom, standstill_shuttle))]
pub(crate) use parking_lot::RwLock;

/// `parking_lot`'s lock in a static, for code that no model runs: see the table above.
pub(crate) use parking_lot::Mutex as StaticMutex;

/// The primitives for real memory.
#[cfg(not(any(all(test, loom), standstill_loom)))]
mod plain {
    /// Plain data that is protected by other means (a stop, an owner). It is accessed through
    /// closures, so that loom's version can check the claim.
    #[derive(Debug, Default)]
    #[repr(transparent)]
    pub(crate) struct UnsafeCell<T>(std::cell::UnsafeCell<T>);

    impl<T> UnsafeCell<T> {
        pub(crate) const fn new(value: T) -> Self {
            Self(std::cell::UnsafeCell::new(value))
        }

        pub(crate) fn into_inner(self) -> T {
            self.0.into_inner()
        }

        /// Calls `f` with a pointer that is valid for writes while no other thread reads or writes.
        #[inline(always)]
        pub(crate) fn with_mut<R>(&self, f: impl FnOnce(*mut T) -> R) -> R {
            f(self.0.get())
        }
    }
}

#[cfg(not(any(all(test, any(loom, shuttle)), standstill_loom, standstill_shuttle)))]
mod real {
    pub(crate) use std::sync::atomic::{
        AtomicBool, AtomicPtr, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering,
    };

    use std::ops::{Deref, DerefMut};

    pub(crate) use std::hint::spin_loop;
    pub(crate) use std::thread::yield_now;

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

    /// Counts one lock while it lives, by a destructor that release builds lack.
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

    /// While this lives, the locks that this thread held before do not count. A fork needs this
    /// for its locks, and so do the traverse handlers that must be called one at a time.
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

    pub(crate) type MutexGuard<'a, T> = CountedGuard<parking_lot::MutexGuard<'a, T>>;

    /// `parking_lot`'s mutex, with counted guards.
    #[derive(Debug, Default)]
    pub(crate) struct Mutex<T>(parking_lot::Mutex<T>);

    impl<T> Mutex<T> {
        pub(crate) fn new(value: T) -> Self {
            Self(parking_lot::Mutex::new(value))
        }

        #[inline(always)]
        pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
            CountedGuard::new(self.0.lock())
        }
    }

    /// `parking_lot`'s read-write lock, with counted guards.
    #[derive(Debug, Default)]
    pub(crate) struct RwLock<T>(parking_lot::RwLock<T>);

    impl<T> RwLock<T> {
        pub(crate) fn new(value: T) -> Self {
            Self(parking_lot::RwLock::new(value))
        }

        pub(crate) fn read(&self) -> CountedGuard<parking_lot::RwLockReadGuard<'_, T>> {
            CountedGuard::new(self.0.read())
        }

        #[cfg_attr(not(feature = "cpython"), allow(dead_code, reason = "only `dynamic` calls it"))]
        pub(crate) fn try_read(&self) -> Option<CountedGuard<parking_lot::RwLockReadGuard<'_, T>>> {
            self.0.try_read().map(CountedGuard::new)
        }

        pub(crate) fn write(&self) -> CountedGuard<parking_lot::RwLockWriteGuard<'_, T>> {
            CountedGuard::new(self.0.write())
        }
    }

    /// A thread-local without lazy initialisation: one address computation and no branch.
    macro_rules! const_thread_local {
        ($(#[$meta:meta])* static $name:ident: $ty:ty = $init:expr) => {
            std::thread_local! { $(#[$meta])* static $name: $ty = const { $init } }
        };
    }
    pub(crate) use const_thread_local;
}

#[cfg(any(all(test, any(loom, shuttle)), standstill_loom, standstill_shuttle))]
pub(crate) use crate::base::model_sync::*;
#[cfg(not(any(all(test, loom), standstill_loom)))]
pub(crate) use plain::*;
#[cfg(not(any(all(test, any(loom, shuttle)), standstill_loom, standstill_shuttle)))]
pub(crate) use real::*;

#[cfg(all(test, not(any(loom, shuttle))))]
#[cfg(debug_assertions)]
mod tests;
