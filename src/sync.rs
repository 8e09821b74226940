//! Floor 0: where the primitives come from whose interleavings the models explore.
//!
//! In the crate's own unit tests under `--cfg loom` they are loom's, which explores every interleaving; in
//! every other build they are the real ones, whatever flags a dependent sets. The API is normalised to
//! the shape of `parking_lot` (no poisoning), and [`UnsafeCell`] to loom's (`with_mut`), so code reads
//! alike in both worlds.
//!
//! # Who names std's all the same
//!
//! loom's primitives have no constant constructor, exist in a model only, and are nobody's but ours. So:
//!
//! | file | what | why |
//! |---|---|---|
//! | `cell` | the lock word, the value | `GcCell::new` is `const` |
//! | `slot` | `AtomicPtr` | no model looks at a slot |
//! | `object` | `AtomicPtr`, `AtomicU32`, `OnceLock` | arrays made in constants; no model looks at the type registry |
//! | `safepoint` | the counter of thread ids | a static |
//! | `safepoint`, its `lock` module | mutex and condition variable, outside models | a `parking_lot` lock does not survive a fork; under loom the module takes them from here |
//! | `current` | the exit watcher, outside models | a thread-local with a destructor: loom's threads have no end to watch |
//! | `managed` | `CLOSED` | a thread-local without a destructor; no model closes a heap |
//! | `space` | `RANGES` | a static |
//! | `heap`, `trace` | `Mutex`, `RwLock`, `OnceLock` and others | they are the user's: `Mutator::lock` takes a std mutex, and std's types are `Trace` |
//!
//! `Arc` and `Cell` are std's everywhere. The models check no ordering of what is in this table; `docs/memory-ordering.md`
//! argues it.
//!
//! # What differs under loom
//!
//! * `SeqCst` *accesses* are only acquire/release there; fences are modelled in full. Where a
//!   store-load race must be won, code calls [`dekker_fence`] between the store and the load. On
//!   real hardware the accesses beside it are `SeqCst` themselves and the fence compiles to nothing.
//! * There is no time: [`Condvar::wait_for`] waits without limit. No timed wait may carry progress.

#[cfg(not(all(test, loom)))]
mod real {
    pub(crate) use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering};

    pub(crate) use parking_lot::{Condvar, Mutex, MutexGuard};

    pub(crate) use std::hint::spin_loop;
    pub(crate) use std::thread::yield_now;

    /// Plain data whose exclusion comes from somewhere else (the stop, an owner), accessed through
    /// closures so that loom's twin can check the claim.
    #[derive(Debug, Default)]
    #[repr(transparent)]
    pub(crate) struct UnsafeCell<T>(std::cell::UnsafeCell<T>);

    impl<T> UnsafeCell<T> {
        pub(crate) const fn new(value: T) -> Self {
            Self(std::cell::UnsafeCell::new(value))
        }

        /// Calls `f` with a pointer that is valid for writes while nobody else reads or writes.
        #[inline(always)]
        pub(crate) fn with_mut<R>(&self, f: impl FnOnce(*mut T) -> R) -> R {
            f(self.0.get())
        }
    }

    /// Orders a `SeqCst` store before a `SeqCst` load of another location. Free here: the accesses
    /// do it themselves. See the module's page.
    #[inline(always)]
    pub(crate) fn dekker_fence() {}

    /// A thread-local without lazy initialisation: one address computation, no branch.
    macro_rules! const_thread_local {
        ($(#[$meta:meta])* static $name:ident: $ty:ty = $init:expr) => {
            std::thread_local! { $(#[$meta])* static $name: $ty = const { $init } }
        };
    }
    pub(crate) use const_thread_local;
}

#[cfg(all(test, loom))]
mod mocked {
    pub(crate) use loom::cell::UnsafeCell;
    pub(crate) use loom::hint::spin_loop;
    pub(crate) use loom::sync::MutexGuard;
    pub(crate) use loom::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering};
    pub(crate) use loom::thread::yield_now;

    /// loom's mutex in `parking_lot`'s shape.
    #[derive(Debug)]
    pub(crate) struct Mutex<T>(loom::sync::Mutex<T>);

    impl<T> Mutex<T> {
        pub(crate) fn new(value: T) -> Self {
            Self(loom::sync::Mutex::new(value))
        }

        pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
            self.0.lock().unwrap()
        }

        pub(crate) fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
            self.0.try_lock().ok()
        }
    }

    impl<T: Default> Default for Mutex<T> {
        fn default() -> Self {
            Self::new(T::default())
        }
    }

    /// loom's condition variable in `parking_lot`'s shape.
    #[derive(Debug)]
    pub(crate) struct Condvar(loom::sync::Condvar);

    impl Condvar {
        pub(crate) fn new() -> Self {
            Self(loom::sync::Condvar::new())
        }

        pub(crate) fn wait<T>(&self, guard: &mut MutexGuard<'_, T>) {
            // SAFETY: the guard is moved out, handed to loom, and the one loom returns is put back
            // before anybody can see the hole. loom's wait aborts the whole model when it panics.
            unsafe {
                let taken = std::ptr::read(guard);
                std::ptr::write(guard, self.0.wait(taken).unwrap());
            }
        }

        pub(crate) fn wait_for<T>(
            &self,
            guard: &mut MutexGuard<'_, T>,
            _limit: std::time::Duration,
        ) -> WaitResult {
            self.wait(guard);
            WaitResult
        }

        pub(crate) fn notify_one(&self) {
            self.0.notify_one();
        }

        pub(crate) fn notify_all(&self) {
            self.0.notify_all();
        }
    }

    /// There is no time under loom: a wait never ends by itself.
    #[derive(Debug)]
    pub(crate) struct WaitResult;

    impl WaitResult {
        pub(crate) fn timed_out(&self) -> bool {
            false
        }
    }

    pub(crate) fn dekker_fence() {
        loom::sync::atomic::fence(Ordering::SeqCst);
    }

    macro_rules! const_thread_local {
        ($(#[$meta:meta])* static $name:ident: $ty:ty = $init:expr) => {
            loom::thread_local! { $(#[$meta])* static $name: $ty = $init; }
        };
    }
    pub(crate) use const_thread_local;
}

#[cfg(all(test, loom))]
pub(crate) use mocked::*;
#[cfg(not(all(test, loom)))]
pub(crate) use real::*;
