//! loom's and shuttle's primitives differ in shape, and loom's also in meaning, from those that
//! [`sync`](crate::base::sync) promises, so this file wraps them for models.

#![forbid(unsafe_code)]

/// Locks and thread-locals of the tool that runs the models, which both tools have in the shape of
/// std.
#[cfg(any(all(test, any(loom, shuttle)), standstill_loom, standstill_shuttle))]
mod mocked {
    use std::ops::{Deref, DerefMut};
    use std::sync::PoisonError;

    /// Models do not count locks, because shuttle's threads share one thread of the system.
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

    #[cfg(any(loom, standstill_loom))]
    pub(crate) use loom as tool;
    #[cfg(any(shuttle, standstill_shuttle))]
    pub(crate) use shuttle as tool;

    pub(crate) use tool::hint::spin_loop;
    pub(crate) use tool::thread::yield_now;

    /// Whether a thread holds the lock. loom runs no other thread between the last step before an
    /// unlock and the unlock, so others never see a lock held for less than a step. Models that
    /// watch locks therefore write this word when the lock is taken and released, because each
    /// write is a step.
    #[cfg(any(loom, standstill_loom))]
    #[derive(Debug)]
    struct LockWatch(super::loomed::AtomicBool);

    #[cfg(any(loom, standstill_loom))]
    thread_local! {
        /// Whether this execution of a model watches locks. A model runs on one thread of the
        /// system.
        static WATCHES_LOCKS: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
    }

    /// Sets whether this execution watches locks.
    #[cfg(any(loom, standstill_loom))]
    pub(crate) fn watch_locks(watch: bool) {
        WATCHES_LOCKS.set(watch);
    }

    #[cfg(any(loom, standstill_loom))]
    impl LockWatch {
        fn new() -> Self {
            Self(super::loomed::AtomicBool::new(false))
        }

        fn set(&self, held: bool) {
            if WATCHES_LOCKS.get() && !std::thread::panicking() {
                self.0.store(held, super::loomed::Ordering::Release);
            }
        }

        fn get(&self) -> bool {
            // An exchange, because a load could read an older value.
            self.0
                .compare_exchange(
                    true,
                    true,
                    super::loomed::Ordering::AcqRel,
                    super::loomed::Ordering::Acquire,
                )
                .is_ok()
        }
    }

    /// shuttle does not watch locks.
    #[cfg(any(shuttle, standstill_shuttle))]
    #[derive(Debug)]
    struct LockWatch;

    #[cfg(any(shuttle, standstill_shuttle))]
    impl LockWatch {
        fn new() -> Self {
            Self
        }

        fn set(&self, _: bool) {}
    }

    /// The tool's mutex in `parking_lot`'s shape.
    #[derive(Debug)]
    pub(crate) struct Mutex<T>(tool::sync::Mutex<T>, LockWatch);

    impl<T> Mutex<T> {
        pub(crate) fn new(value: T) -> Self {
            Self(tool::sync::Mutex::new(value), LockWatch::new())
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

        /// Whether this lock is open, or `guard` is its guard. For models that [watch](watch_locks)
        /// locks.
        #[cfg(any(loom, standstill_loom))]
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

    /// The guard is `None` only while its thread waits on a condition variable.
    #[derive(Debug)]
    pub(crate) struct MutexGuard<'a, T>(Option<tool::sync::MutexGuard<'a, T>>, &'a LockWatch);

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

    /// The result of a wait, which never ends by itself, because a model has no time.
    #[derive(Debug)]
    pub(crate) struct WaitResult;

    impl WaitResult {
        pub(crate) fn timed_out(&self) -> bool {
            false
        }
    }

    macro_rules! const_thread_local {
        ($(#[$meta:meta])* static $name:ident: $ty:ty = $init:expr) => {
            $crate::base::model_sync::tool::thread_local! {
                $(#[$meta])* static $name: $ty = $init;
            }
        };
    }
    pub(crate) use const_thread_local;
}

#[cfg(any(all(test, loom), standstill_loom))]
mod loomed {
    use std::cell::{Cell, RefCell};
    use std::marker::PhantomData;
    use std::sync::atomic::{AtomicU32 as Plain, Ordering::Relaxed};

    use loom::lazy_static::Lazy;
    use loom::sync::atomic;

    pub(crate) use loom::cell::UnsafeCell;
    pub(crate) use loom::sync::atomic::{Ordering, fence};

    /// The part of `SeqCst` that loom lacks, for one atomic.
    ///
    /// Each `SeqCst` store leaves a *mark*: one of loom's lazy statics, which the storing thread
    /// initialises. A `SeqCst` load first uses the newest mark of its atomic. Because in loom the
    /// initialisation happens before each use, the load returns no value that is older than the
    /// store. Neither is a step.
    ///
    /// This defines the order of all `SeqCst` accesses of an execution. A store or an exchange
    /// takes its place when it is executed, and a load when it uses the mark. Both accesses must be
    /// `SeqCst`, because a weaker store leaves no mark, and a weaker load uses none.
    #[derive(Debug)]
    struct Newest(Plain);

    thread_local! {
        /// All marks, in a thread-local because each model runs on one thread of the system.
        static MARKS: RefCell<Vec<&'static Lazy<()>>> = const { RefCell::new(Vec::new()) };
        /// The number of marks that this execution has used.
        static USED: Cell<usize> = const { Cell::new(0) };
    }

    /// The beginning of an execution, for which loom has reset its lazy statics, the marks. The
    /// first atomic of an execution initialises it, before the model has a second thread.
    static EXECUTION: Lazy<()> = Lazy { init: || USED.set(0), _p: PhantomData };

    impl Newest {
        fn new() -> Self {
            EXECUTION.get();
            Self(Plain::new(0))
        }

        /// Called after a store or an exchange.
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

        /// Called before a load.
        fn loading(&self, order: Ordering) {
            if order == Ordering::SeqCst
                && let Some(mark) = self.0.load(Relaxed).checked_sub(1)
            {
                MARKS.with_borrow(|marks| marks[mark as usize]).get();
            }
        }
    }

    /// loom's atomics with the full meaning of `SeqCst`; see [`Newest`]. An exchange reads the
    /// newest value in any case.
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
                    Self { value: atomic::$name::new(value), newest: Newest::new() }
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

                /// It never fails spuriously here.
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

    atomics!(
        AtomicBool: bool, AtomicU8: u8, AtomicU32: u32, AtomicU64: u64, AtomicUsize: usize,
        AtomicPtr<T>: *mut T
    );
    arithmetic! {
        AtomicBool: bool: ;
        AtomicU8: u8: fetch_or, fetch_and;
        AtomicU32: u32: fetch_add, fetch_sub, fetch_or, fetch_and;
        AtomicU64: u64: fetch_add, fetch_sub, fetch_and, fetch_max;
        AtomicUsize: usize: fetch_add, fetch_sub, fetch_max;
    }
}

#[cfg(any(all(test, shuttle), standstill_shuttle))]
mod shuttled {
    use std::ops::Deref;
    use std::time::Duration;

    pub(crate) use std::sync::atomic::{Ordering, fence};

    /// Atomics, of which every access goes through `deref`, so that another thread can run first.
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
                    // This is only a scheduling point, because shuttle has no time.
                    shuttle::thread::sleep(Duration::ZERO);
                    &self.0
                }
            }
        )*};
    }

    atomics!(
        AtomicBool: bool, AtomicU8: u8, AtomicU32: u32, AtomicU64: u64, AtomicUsize: usize,
        AtomicPtr<T>: *mut T
    );
}

#[cfg(any(loom, standstill_loom))]
pub(crate) use loomed::*;
pub(crate) use mocked::*;
#[cfg(any(shuttle, standstill_shuttle))]
pub(crate) use shuttled::*;
