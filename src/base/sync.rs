//! Floor 0: where the primitives come from whose interleavings the models explore.
//!
//! It has three faces. In the crate's own unit tests under `--cfg loom` the primitives are loom's, which
//! explores every interleaving of a few threads; under `--cfg shuttle` they are shuttle's, which draws
//! schedules of larger programs at random; in every other build they are the real ones, whatever flags a
//! dependent sets. The API is normalised to the shape of `parking_lot` (no poisoning), and [`UnsafeCell`] to
//! loom's (`with_mut`), so code reads alike in all three.
//!
//! # Who names std's all the same
//!
//! loom's primitives have no constant constructor, the tools' exist in a model only, and are nobody's but ours.
//! So:
//!
//! | file | what | why |
//! |---|---|---|
//! | `cell` | the value | what a guard lends is a plain reference; the lock's word is from here |
//! | `object` | `AtomicPtr`, `AtomicU32`, `OnceLock` | arrays made in constants; no model looks at the type registry |
//! | `safepoint` | the counter of thread ids, the system's number of a thread | a static; a number for reports |
//! | `slow` | what a thread shows of a long wait | numbers for reports, and no model waits long |
//! | `safepoint`, its `lock` module | mutex and condition variable, outside models | a `parking_lot` lock does not survive a fork; in models the module takes them from here |
//! | `current` | the exit watcher, outside models | a thread-local with a destructor: in a model the end of a thread is a step (`end_thread`) |
//! | `dynamic` | atomics, thread-locals, `RwLock` | loom does not see it, and shuttle's models make no dynamic objects |
//! | `space` | `RANGES` | a static |
//! | `environment` | `OnceLock` | a constant; what it keeps is read once, and no model sets the variables |
//! | `heap`, `trace` | `Mutex`, `RwLock`, `OnceLock` and others | they are the user's: `Mutator::lock` takes a std mutex, and std's types are `Trace` |
//!
//! `Arc` and `Cell` are std's everywhere. The models check no ordering of what is in this table; `docs/memory-ordering.md`
//! argues it.
//!
//! # What differs under loom
//!
//! * loom takes a `SeqCst` access for acquire and release alone. The atomics here wrap loom's and add the rest: a
//!   `SeqCst` load never gives a value that is older than the newest `SeqCst` store to the same atomic. This takes
//!   `SeqCst` on the store and on the load, as in the language: a model sees when either is weakened.
//! * There is no time: [`Condvar::wait_for`] waits without limit. No timed wait may carry progress.
//!
//! # What differs under shuttle
//!
//! * Its threads take turns on one thread of the system, so every access is `SeqCst`, whatever it says: what a weaker
//!   ordering would allow is loom's to find. Another thread may run before each access of an atomic and at each
//!   lock, and nowhere else.
//! * The atomics are the real ones, each access behind a scheduling point: shuttle's own are larger than the value they
//!   hold. So objects, tables and pages lie in memory as they do outside models.
//! * There is no time, as under loom. `std::thread::panicking` speaks of all threads together.

/// Only where no model looks: see the table above.
#[cfg(all(test, any(loom, shuttle)))]
pub(crate) use parking_lot::RwLock;

/// What is the same wherever memory is the real one.
#[cfg(not(all(test, loom)))]
mod plain {
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
}

#[cfg(not(all(test, any(loom, shuttle))))]
mod real {
    pub(crate) use std::sync::atomic::{
        AtomicBool, AtomicPtr, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering,
    };

    pub(crate) use crate::base::held::{Aside, CountedGuard, are_locks_held};

    pub(crate) use std::hint::spin_loop;
    pub(crate) use std::thread::yield_now;

    pub(crate) type MutexGuard<'a, T> = CountedGuard<parking_lot::MutexGuard<'a, T>>;

    /// `parking_lot`'s mutex, whose guards are counted.
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

        pub(crate) fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
            self.0.try_lock().map(CountedGuard::new)
        }
    }

    /// `parking_lot`'s lock for readers and writers, whose guards are counted.
    #[derive(Debug, Default)]
    pub(crate) struct RwLock<T>(parking_lot::RwLock<T>);

    impl<T> RwLock<T> {
        pub(crate) fn new(value: T) -> Self {
            Self(parking_lot::RwLock::new(value))
        }

        pub(crate) fn read(&self) -> CountedGuard<parking_lot::RwLockReadGuard<'_, T>> {
            CountedGuard::new(self.0.read())
        }

        pub(crate) fn try_read(&self) -> Option<CountedGuard<parking_lot::RwLockReadGuard<'_, T>>> {
            self.0.try_read().map(CountedGuard::new)
        }

        pub(crate) fn write(&self) -> CountedGuard<parking_lot::RwLockWriteGuard<'_, T>> {
            CountedGuard::new(self.0.write())
        }
    }

    /// A thread-local without lazy initialisation: one address computation, no branch.
    macro_rules! const_thread_local {
        ($(#[$meta:meta])* static $name:ident: $ty:ty = $init:expr) => {
            std::thread_local! { $(#[$meta])* static $name: $ty = const { $init } }
        };
    }
    pub(crate) use const_thread_local;
}

#[cfg(all(test, any(loom, shuttle)))]
pub(crate) use crate::base::model_sync::*;
#[cfg(not(all(test, loom)))]
pub(crate) use plain::*;
#[cfg(not(all(test, any(loom, shuttle))))]
pub(crate) use real::*;

#[cfg(all(test, not(any(loom, shuttle))))]
#[cfg(debug_assertions)]
mod tests {
    use super::*;
    use crate::safepoint::lock;

    #[test]
    fn each_lock_counts_as_long_as_it_is_held() {
        let (mutex, rw, survives_forks) = (Mutex::new(1), RwLock::new(2), lock::ForkMutex::new(3));
        assert!(!are_locks_held());
        let first = mutex.lock();
        assert!(are_locks_held());
        let second = rw.write();
        drop(first);
        assert!(are_locks_held());
        drop(second);
        assert!(!are_locks_held());
        let third = rw.try_read();
        assert!(are_locks_held());
        drop(third);
        let condition = lock::ForkCondvar::new();
        let (fourth, timed_out) =
            condition.wait_for(survives_forks.lock(), std::time::Duration::from_millis(1));
        assert!(timed_out && are_locks_held());
        drop(fourth);
        assert!(!are_locks_held());
    }

    #[test]
    fn a_lock_that_is_set_aside_does_not_count_and_others_do() {
        let (outer, inner) = (Mutex::new(1), Mutex::new(2));
        let held = outer.lock();
        let aside = Aside::all();
        assert!(!are_locks_held());
        let second = inner.lock();
        assert!(are_locks_held());
        drop(second);
        assert!(!are_locks_held());
        drop(aside);
        assert!(are_locks_held());
        // Dropped in the other order, as the locks of a fork are.
        let aside = Aside::all();
        drop(held);
        drop(aside);
        assert!(!are_locks_held());
    }
}
