//! Locks that survive a fork.
//!
//! The child of a fork inherits the locks that the fork holds, and must be able to release them
//! without other threads. So they are std's, because such a lock is one futex word. A `parking_lot`
//! lock would hand itself to its first waiter, which the child does not have.

#![forbid(unsafe_code)]

#[cfg(any(all(test, any(loom, shuttle)), standstill_loom, standstill_shuttle))]
pub(crate) use modelled::*;
#[cfg(not(any(all(test, any(loom, shuttle)), standstill_loom, standstill_shuttle)))]
pub(crate) use system::*;

#[cfg(not(any(all(test, any(loom, shuttle)), standstill_loom, standstill_shuttle)))]
mod system {
    use std::cell::Cell;
    use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
    use std::sync::{PoisonError, TryLockError};
    use std::time::{Duration, Instant};

    use super::super::thread_words;
    use crate::base::outside;
    use crate::base::sync::{CountedGuard, are_locks_held};
    use crate::base::system::os_thread;

    pub(crate) type Guard<'a, T> = CountedGuard<std::sync::MutexGuard<'a, T>>;

    /// How long a thread waits for a fork before it reports the wait.
    const REPORT_DELAY: Duration = Duration::from_secs(1);

    #[derive(Debug)]
    pub(crate) struct ForkMutex<T> {
        value: std::sync::Mutex<T>,
        keeper: Keeper,
    }

    /// The thread that holds a lock through a fork. It alone writes this, and threads that wait for
    /// the lock read it. Relaxed, because it finds its own number without any ordering, and the
    /// others only report.
    #[derive(Debug, Default)]
    struct Keeper {
        /// By [`this_thread`]; 0: no fork holds the lock.
        thread: AtomicUsize,
        /// The thread's participant; 0: the thread is not attached.
        participant: AtomicU64,
        /// The system's number of the thread; 0: unknown.
        os_thread: AtomicU64,
    }

    impl Keeper {
        fn is_this_thread(&self) -> bool {
            self.thread.load(Ordering::Relaxed) == this_thread()
        }
    }

    /// A number of this thread, which no other thread has while this one lives: the address of a
    /// thread-local. It is the same in the child of a fork, unlike the system's number.
    fn this_thread() -> usize {
        thread_local!(static HERE: Cell<u8> = const { Cell::new(0) });
        HERE.with(|here| std::ptr::from_ref(here).addr())
    }

    impl<T> ForkMutex<T> {
        pub(crate) fn new(value: T) -> Self {
            Self { value: std::sync::Mutex::new(value), keeper: Keeper::default() }
        }

        pub(crate) fn lock(&self) -> Guard<'_, T> {
            CountedGuard::new(self.try_lock().unwrap_or_else(|| self.wait()))
        }

        fn try_lock(&self) -> Option<std::sync::MutexGuard<'_, T>> {
            match self.value.try_lock() {
                Ok(guard) => Some(guard),
                Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
                Err(TryLockError::WouldBlock) => None,
            }
        }

        /// Takes the lock for a fork, during which this thread panics if it locks it again, because
        /// it would wait for itself. The caller drops the first value of the result before the
        /// second, because the next fork may set the keeper as soon as the lock is free.
        pub(crate) fn lock_for_fork(&self) -> (ForkHold<'_>, Guard<'_, T>) {
            let guard = self.lock();
            self.keeper.os_thread.store(os_thread(), Ordering::Relaxed);
            self.keeper.participant.store(thread_words::attached_as(), Ordering::Relaxed);
            self.keeper.thread.store(this_thread(), Ordering::Relaxed);
            (ForkHold(&self.keeper), guard)
        }

        /// Whether this thread holds the lock through a fork.
        pub(crate) fn is_kept_here(&self) -> bool {
            self.keeper.is_this_thread()
        }

        #[cold]
        fn wait(&self) -> std::sync::MutexGuard<'_, T> {
            let (since, mut is_reported) = (Instant::now(), false);
            // This loop polls, because std's lock has no wait with a timeout after which the thread
            // could report.
            while self.keeper.thread.load(Ordering::Relaxed) != 0 {
                assert!(
                    !self.is_kept_here(),
                    "this thread has stopped the world for a fork, and would wait for itself; \
                     call `parent` or `child` of the fork first"
                );
                // Not while this thread holds a lock, because code of the user may capture standard
                // error.
                if since.elapsed() >= REPORT_DELAY && !is_reported && !are_locks_held() {
                    is_reported = true;
                    self.report(since.elapsed());
                }
                if let Some(guard) = self.try_lock() {
                    return guard;
                }
                std::thread::sleep(Duration::from_millis(1));
            }
            self.value.lock().unwrap_or_else(PoisonError::into_inner)
        }

        fn report(&self, waited: Duration) {
            let thread = thread_words::this_thread();
            let name = thread.as_ref().and_then(|thread| thread.name()).unwrap_or("without a name");
            let keeper = self.keeper.participant.load(Ordering::Relaxed);
            let number = self.keeper.os_thread.load(Ordering::Relaxed);
            outside::line(format_args!(
                "standstill: thread '{name}' has waited {waited:.1?} for the end of a fork: thread \
                 #{keeper} (OS thread {number}) has called neither `parent` nor `child` of it"
            ));
        }
    }

    /// A fork holds a lock while this lives. See [`ForkMutex::lock_for_fork`].
    #[derive(Debug)]
    pub(crate) struct ForkHold<'a>(&'a Keeper);

    impl Drop for ForkHold<'_> {
        fn drop(&mut self) {
            self.0.thread.store(0, Ordering::Relaxed);
        }
    }

    #[derive(Debug)]
    pub(crate) struct ForkCondvar(std::sync::Condvar);

    impl ForkCondvar {
        pub(crate) fn new() -> Self {
            Self(std::sync::Condvar::new())
        }

        pub(crate) fn wait<'a, T>(&self, guard: Guard<'a, T>) -> Guard<'a, T> {
            guard
                .through(|guard| (self.0.wait(guard).unwrap_or_else(PoisonError::into_inner), ()))
                .0
        }

        /// The second value: the wait has timed out.
        pub(crate) fn wait_for<'a, T>(
            &self,
            guard: Guard<'a, T>,
            limit: Duration,
        ) -> (Guard<'a, T>, bool) {
            guard.through(|guard| {
                let (guard, result) =
                    self.0.wait_timeout(guard, limit).unwrap_or_else(PoisonError::into_inner);
                (guard, result.timed_out())
            })
        }

        pub(crate) fn notify_one(&self) {
            self.0.notify_one();
        }

        pub(crate) fn notify_all(&self) {
            self.0.notify_all();
        }
    }
}

#[cfg(any(all(test, any(loom, shuttle)), standstill_loom, standstill_shuttle))]
mod modelled {
    use std::marker::PhantomData;
    use std::time::Duration;

    pub(crate) use crate::base::sync::{Mutex as ForkMutex, MutexGuard as Guard};

    impl<T> ForkMutex<T> {
        /// No model leaks a fork.
        pub(crate) fn lock_for_fork(&self) -> (ForkHold<'_>, Guard<'_, T>) {
            (ForkHold(PhantomData), self.lock())
        }

        /// No thread of a model locks a lock again that it holds through a fork.
        pub(crate) fn is_kept_here(&self) -> bool {
            false
        }
    }

    #[derive(Debug)]
    pub(crate) struct ForkHold<'a>(PhantomData<&'a ()>);

    #[derive(Debug)]
    pub(crate) struct ForkCondvar(crate::base::model_sync::Condvar);

    impl ForkCondvar {
        pub(crate) fn new() -> Self {
            Self(crate::base::model_sync::Condvar::new())
        }

        pub(crate) fn wait<'a, T>(&self, mut guard: Guard<'a, T>) -> Guard<'a, T> {
            self.0.wait(&mut guard);
            guard
        }

        pub(crate) fn wait_for<'a, T>(
            &self,
            mut guard: Guard<'a, T>,
            limit: Duration,
        ) -> (Guard<'a, T>, bool) {
            let timed_out = self.0.wait_for(&mut guard, limit).timed_out();
            (guard, timed_out)
        }

        pub(crate) fn notify_one(&self) {
            self.0.notify_one();
        }

        pub(crate) fn notify_all(&self) {
            self.0.notify_all();
        }
    }
}
