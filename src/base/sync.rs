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

/// How many of the library's locks this thread holds: counted in debug builds, so that [`event`](crate::base::event) can refuse
/// to call out under one. In release builds all of this is empty.
#[cfg(not(all(test, any(loom, shuttle))))]
mod held {
    use std::ops::{Deref, DerefMut};

    #[cfg(debug_assertions)]
    thread_local! {
        /// Below 0 between the drop of a lock that was [set aside](Aside) and the end of the setting aside.
        static HELD: std::cell::Cell<i32> = const { std::cell::Cell::new(0) };
    }

    #[inline(always)]
    fn add(_locks: i32) {
        #[cfg(debug_assertions)]
        HELD.set(HELD.get() + _locks);
    }

    /// Whether this thread holds a lock of the library's. Always `false` in release builds.
    #[inline(always)]
    pub(crate) fn are_locks_held() -> bool {
        #[cfg(debug_assertions)]
        return HELD.get() > 0;
        #[cfg(not(debug_assertions))]
        false
    }

    /// Counts one lock while it lives. Without a destructor in release builds.
    #[derive(Debug)]
    struct Held;

    #[cfg(debug_assertions)]
    impl Drop for Held {
        fn drop(&mut self) {
            add(-1);
        }
    }

    /// A lock's guard, counted while it lives.
    #[derive(Debug)]
    pub(crate) struct Counted<G>(G, Held);

    impl<G> Counted<G> {
        #[inline(always)]
        pub(crate) fn new(guard: G) -> Self {
            add(1);
            Self(guard, Held)
        }

        /// Passes the guard through `f`, which gives it back: a wait for a condition.
        pub(crate) fn through<R>(self, f: impl FnOnce(G) -> (G, R)) -> (Self, R) {
            let Self(guard, held) = self;
            let (guard, result) = f(guard);
            (Self(guard, held), result)
        }
    }

    impl<G: Deref> Deref for Counted<G> {
        type Target = G::Target;

        #[inline(always)]
        fn deref(&self) -> &G::Target {
            &self.0
        }
    }

    impl<G: DerefMut> DerefMut for Counted<G> {
        #[inline(always)]
        fn deref_mut(&mut self) -> &mut G::Target {
            &mut self.0
        }
    }

    /// While this lives, the locks that this thread held when it was made do not count: those of a fork, which the caller
    /// keeps and knows of, and the one around traverse handlers that want to be called one at a time.
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
}

#[cfg(not(all(test, any(loom, shuttle))))]
mod real {
    pub(crate) use std::sync::atomic::{
        AtomicBool, AtomicPtr, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering,
    };

    pub(crate) use super::held::{Aside, Counted, are_locks_held};

    pub(crate) use std::hint::spin_loop;
    pub(crate) use std::thread::yield_now;

    pub(crate) type MutexGuard<'a, T> = Counted<parking_lot::MutexGuard<'a, T>>;

    /// `parking_lot`'s mutex, whose guards are counted.
    #[derive(Debug, Default)]
    pub(crate) struct Mutex<T>(parking_lot::Mutex<T>);

    impl<T> Mutex<T> {
        pub(crate) fn new(value: T) -> Self {
            Self(parking_lot::Mutex::new(value))
        }

        #[inline(always)]
        pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
            Counted::new(self.0.lock())
        }

        pub(crate) fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
            self.0.try_lock().map(Counted::new)
        }
    }

    /// `parking_lot`'s lock for readers and writers, whose guards are counted.
    #[derive(Debug, Default)]
    pub(crate) struct RwLock<T>(parking_lot::RwLock<T>);

    impl<T> RwLock<T> {
        pub(crate) fn new(value: T) -> Self {
            Self(parking_lot::RwLock::new(value))
        }

        pub(crate) fn read(&self) -> Counted<parking_lot::RwLockReadGuard<'_, T>> {
            Counted::new(self.0.read())
        }

        pub(crate) fn try_read(&self) -> Option<Counted<parking_lot::RwLockReadGuard<'_, T>>> {
            self.0.try_read().map(Counted::new)
        }

        pub(crate) fn write(&self) -> Counted<parking_lot::RwLockWriteGuard<'_, T>> {
            Counted::new(self.0.write())
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

/// Locks and thread-locals of whichever tool runs the models: both have them in std's shape.
#[cfg(all(test, any(loom, shuttle)))]
mod mocked {
    use std::ops::{Deref, DerefMut};
    use std::sync::PoisonError;

    /// No model counts locks: shuttle's threads share one thread of the system.
    pub(crate) fn are_locks_held() -> bool {
        false
    }

    /// See [`are_locks_held`].
    #[derive(Debug)]
    pub(crate) struct Aside;

    impl Aside {
        pub(crate) fn all() -> Self {
            Self
        }
    }

    #[cfg(loom)]
    pub(crate) use loom as tool;
    #[cfg(shuttle)]
    pub(crate) use shuttle as tool;

    pub(crate) use tool::hint::spin_loop;
    pub(crate) use tool::thread::yield_now;

    /// Whether somebody holds a lock. loom runs no other thread between the last step before an unlock and the unlock, so a
    /// lock that is held for less than a step is never seen held. In a model that asks for it this word is written, which
    /// is a step, at the beginning and the end.
    #[cfg(loom)]
    #[derive(Debug)]
    struct Held(super::AtomicBool);

    #[cfg(loom)]
    thread_local! {
        /// This execution of a model asks which locks are held. Each model runs on one thread of the system.
        static WATCHED: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
    }

    /// This execution asks, or asks no more, which locks are held.
    #[cfg(loom)]
    pub(crate) fn watch_locks(watch: bool) {
        WATCHED.set(watch);
    }

    #[cfg(loom)]
    impl Held {
        fn new() -> Self {
            Self(super::AtomicBool::new(false))
        }

        fn set(&self, held: bool) {
            if WATCHED.get() && !std::thread::panicking() {
                self.0.store(held, super::Ordering::Release);
            }
        }

        fn get(&self) -> bool {
            // An exchange: it gives the newest value.
            self.0
                .compare_exchange(true, true, super::Ordering::AcqRel, super::Ordering::Acquire)
                .is_ok()
        }
    }

    /// shuttle does not ask.
    #[cfg(shuttle)]
    #[derive(Debug)]
    struct Held;

    #[cfg(shuttle)]
    impl Held {
        fn new() -> Self {
            Self
        }

        fn set(&self, _: bool) {}
    }

    /// The tool's mutex in `parking_lot`'s shape.
    #[derive(Debug)]
    pub(crate) struct Mutex<T>(tool::sync::Mutex<T>, Held);

    impl<T> Mutex<T> {
        pub(crate) fn new(value: T) -> Self {
            Self(tool::sync::Mutex::new(value), Held::new())
        }

        pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
            let guard = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            self.1.set(true);
            MutexGuard(Some(guard), &self.1)
        }

        pub(crate) fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
            let guard = self.0.try_lock().ok()?;
            self.1.set(true);
            Some(MutexGuard(Some(guard), &self.1))
        }

        /// Whether the lock is the one that gave this guard, or is open. For models that [watch](watch_locks) locks.
        #[cfg(loom)]
        pub(crate) fn is_held_by_or_open(&self, guard: Option<&MutexGuard<'_, T>>) -> bool {
            let place = std::ptr::from_ref(self).addr();
            let data = guard.map_or(0, |guard| std::ptr::from_ref(&**guard).addr());
            (place..place + size_of::<Self>()).contains(&data) || !self.1.get()
        }
    }

    impl<T: Default> Default for Mutex<T> {
        fn default() -> Self {
            Self::new(T::default())
        }
    }

    /// Empty while its thread waits on a condition variable, and at no other time.
    #[derive(Debug)]
    pub(crate) struct MutexGuard<'a, T>(Option<tool::sync::MutexGuard<'a, T>>, &'a Held);

    impl<T> Drop for MutexGuard<'_, T> {
        fn drop(&mut self) {
            self.1.set(false);
        }
    }

    impl<T> Deref for MutexGuard<'_, T> {
        type Target = T;

        fn deref(&self) -> &T {
            self.0.as_ref().expect("not waiting")
        }
    }

    impl<T> DerefMut for MutexGuard<'_, T> {
        fn deref_mut(&mut self) -> &mut T {
            self.0.as_mut().expect("not waiting")
        }
    }

    /// The tool's condition variable in `parking_lot`'s shape.
    #[derive(Debug)]
    pub(crate) struct Condvar(tool::sync::Condvar);

    impl Condvar {
        pub(crate) fn new() -> Self {
            Self(tool::sync::Condvar::new())
        }

        pub(crate) fn wait<T>(&self, guard: &mut MutexGuard<'_, T>) {
            if let Some(held) = guard.0.take() {
                guard.1.set(false);
                guard.0 = Some(self.0.wait(held).unwrap_or_else(PoisonError::into_inner));
                guard.1.set(true);
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

    /// There is no time in a model: a wait never ends by itself.
    #[derive(Debug)]
    pub(crate) struct WaitResult;

    impl WaitResult {
        pub(crate) fn timed_out(&self) -> bool {
            false
        }
    }

    macro_rules! const_thread_local {
        ($(#[$meta:meta])* static $name:ident: $ty:ty = $init:expr) => {
            $crate::base::sync::tool::thread_local! { $(#[$meta])* static $name: $ty = $init; }
        };
    }
    pub(crate) use const_thread_local;
}

#[cfg(all(test, loom))]
mod loomed {
    use std::cell::{Cell, RefCell};
    use std::marker::PhantomData;
    use std::sync::atomic::{AtomicU32 as Plain, Ordering::Relaxed};

    use loom::lazy_static::Lazy;
    use loom::sync::atomic;

    pub(crate) use loom::cell::UnsafeCell;
    pub(crate) use loom::sync::atomic::Ordering;

    /// What `SeqCst` adds to acquire and release, for one atomic.
    ///
    /// Each `SeqCst` store leaves a *mark*: one of loom's lazy statics, which the storing thread initialises. A `SeqCst`
    /// load uses the newest mark of its atomic first. In loom the initialisation happens before each use, and
    /// neither is a step of its own. So the load gives no value that is older than the store.
    ///
    /// This is the order of all `SeqCst` accesses in an execution: a store, or an exchange, takes its place when it
    /// is executed, a load when it uses the mark. Both `SeqCst`s are needed: a store without leaves no mark, and a
    /// load without uses none.
    #[derive(Debug)]
    struct Newest(Plain);

    thread_local! {
        /// All marks. Each model runs on one thread of the system.
        static MARKS: RefCell<Vec<&'static Lazy<()>>> = const { RefCell::new(Vec::new()) };
        /// How many of the marks this execution has used.
        static USED: Cell<usize> = const { Cell::new(0) };
    }

    /// A new execution of a model begins: loom has forgotten what was initialised.
    pub(crate) fn begin_execution() {
        USED.set(0);
        super::watch_locks(false);
    }

    impl Newest {
        /// A store, or an exchange, was executed.
        fn stored(&self, order: Ordering) {
            if order == Ordering::SeqCst {
                let used = USED.replace(USED.get() + 1);
                let mark = MARKS.with_borrow_mut(|marks| {
                    if used == marks.len() {
                        marks.push(Box::leak(Box::new(Lazy { init: || (), _p: PhantomData })));
                    }
                    marks[used]
                });
                mark.get();
                self.0.store(used as u32 + 1, Relaxed);
            }
        }

        /// A load comes next.
        fn loading(&self, order: Ordering) {
            if order == Ordering::SeqCst
                && let Some(mark) = self.0.load(Relaxed).checked_sub(1)
            {
                MARKS.with_borrow(|marks| marks[mark as usize]).get();
            }
        }
    }

    /// loom's atomics, with what `SeqCst` means; see [`Newest`]. An exchange reads the newest value anyway.
    macro_rules! atomics {
        ($($name:ident $(<$t:ident>)?: $value:ty),*) => {$(
            #[derive(Debug)]
            pub(crate) struct $name $(<$t>)? {
                value: atomic::$name $(<$t>)?,
                newest: Newest,
            }

            impl $(<$t>)? $name $(<$t>)? {
                #[track_caller]
                pub(crate) fn new(value: $value) -> Self {
                    Self { value: atomic::$name::new(value), newest: Newest(Plain::new(0)) }
                }

                #[track_caller]
                pub(crate) fn load(&self, order: Ordering) -> $value {
                    self.newest.loading(order);
                    self.value.load(order)
                }

                #[track_caller]
                pub(crate) fn store(&self, value: $value, order: Ordering) {
                    self.value.store(value, order);
                    self.newest.stored(order);
                }

                #[track_caller]
                pub(crate) fn swap(&self, value: $value, order: Ordering) -> $value {
                    let old = self.value.swap(value, order);
                    self.newest.stored(order);
                    old
                }

                #[track_caller]
                pub(crate) fn compare_exchange(
                    &self,
                    from: $value,
                    to: $value,
                    success: Ordering,
                    failure: Ordering,
                ) -> Result<$value, $value> {
                    let result = self.value.compare_exchange(from, to, success, failure);
                    if result.is_ok() {
                        self.newest.stored(success);
                    }
                    result
                }

                /// A try never fails for nothing here.
                #[track_caller]
                pub(crate) fn compare_exchange_weak(
                    &self,
                    from: $value,
                    to: $value,
                    success: Ordering,
                    failure: Ordering,
                ) -> Result<$value, $value> {
                    self.compare_exchange(from, to, success, failure)
                }

                #[track_caller]
                pub(crate) fn fetch_update(
                    &self,
                    set: Ordering,
                    fetch: Ordering,
                    mut step: impl FnMut($value) -> Option<$value>,
                ) -> Result<$value, $value> {
                    let mut now = self.load(fetch);
                    while let Some(next) = step(now) {
                        match self.compare_exchange(now, next, set, fetch) {
                            Ok(old) => return Ok(old),
                            Err(newer) => now = newer,
                        }
                    }
                    Err(now)
                }
            }
        )*};
    }

    macro_rules! arithmetic {
        ($($name:ident: $value:ty: $($step:ident),*;)*) => {$(
            impl Default for $name {
                #[track_caller]
                fn default() -> Self {
                    Self::new(<$value>::default())
                }
            }

            impl $name {$(
                #[track_caller]
                pub(crate) fn $step(&self, by: $value, order: Ordering) -> $value {
                    let old = self.value.$step(by, order);
                    self.newest.stored(order);
                    old
                }
            )*}
        )*};
    }

    atomics!(AtomicBool: bool, AtomicU8: u8, AtomicU32: u32, AtomicU64: u64, AtomicUsize: usize, AtomicPtr<T>: *mut T);
    arithmetic! {
        AtomicBool: bool: ;
        AtomicU8: u8: fetch_or, fetch_and;
        AtomicU32: u32: fetch_add, fetch_sub, fetch_or, fetch_and;
        AtomicU64: u64: fetch_add, fetch_sub, fetch_max;
        AtomicUsize: usize: fetch_add, fetch_sub, fetch_max;
    }
}

#[cfg(all(test, shuttle))]
mod shuttled {
    use std::ops::Deref;
    use std::time::Duration;

    pub(crate) use std::sync::atomic::Ordering;

    /// Atomics whose every access goes through `deref`, which lets another thread run first.
    macro_rules! atomics {
        ($($name:ident $(<$t:ident>)?: $value:ty),*) => {$(
            #[derive(Debug, Default)]
            #[repr(transparent)]
            pub(crate) struct $name $(<$t>)? (std::sync::atomic::$name $(<$t>)?);

            impl $(<$t>)? $name $(<$t>)? {
                pub(crate) const fn new(value: $value) -> Self {
                    Self(std::sync::atomic::$name::new(value))
                }
            }

            impl $(<$t>)? Deref for $name $(<$t>)? {
                type Target = std::sync::atomic::$name $(<$t>)?;

                fn deref(&self) -> &Self::Target {
                    // A scheduling point and nothing else: shuttle knows no time.
                    shuttle::thread::sleep(Duration::ZERO);
                    &self.0
                }
            }
        )*};
    }

    atomics!(AtomicBool: bool, AtomicU8: u8, AtomicU32: u32, AtomicU64: u64, AtomicUsize: usize, AtomicPtr<T>: *mut T);
}

#[cfg(all(test, loom))]
pub(crate) use loomed::*;
#[cfg(all(test, any(loom, shuttle)))]
pub(crate) use mocked::*;
#[cfg(not(all(test, loom)))]
pub(crate) use plain::*;
#[cfg(not(all(test, any(loom, shuttle))))]
pub(crate) use real::*;
#[cfg(all(test, shuttle))]
pub(crate) use shuttled::*;

#[cfg(all(test, not(any(loom, shuttle))))]
#[cfg(debug_assertions)]
mod tests {
    use super::*;
    use crate::safepoint::lock;

    #[test]
    fn each_lock_counts_as_long_as_it_is_held() {
        let (mutex, rw, survives_forks) = (Mutex::new(1), RwLock::new(2), lock::Mutex::new(3));
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
        let condition = lock::Condvar::new();
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
