//! Some work is quick in each small test and endless in a large heap, for example a search of a
//! list in a loop over objects. So the loops of a collection report their steps ([`took`]). A step
//! is any work of bounded time: an object, an edge, a byte of a table, a moved element. In the
//! crate's own tests each thread adds up its steps, so that tests can demand, without measuring
//! time, that the work grows no faster than the heap. In every other build the calls cost nothing.
//!
//! A new loop of a collection must call [`took`], because the tests miss its work otherwise.

#![forbid(unsafe_code)]

#[cfg(all(test, feature = "cpython", not(any(loom, shuttle))))]
pub(crate) use counting::during;
#[cfg(all(test, not(any(loom, shuttle))))]
pub(crate) use counting::taken;
pub(crate) use counting::{HelperSteps, took};

#[cfg(all(test, not(any(loom, shuttle))))]
mod counting {
    use std::cell::Cell;
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
    use std::time::{Duration, Instant};

    thread_local! {
        static STEPS: Cell<usize> = const { Cell::new(0) };
    }

    /// Records steps that were taken, or are about to be.
    pub(crate) fn took(steps: usize) {
        STEPS.set(STEPS.get() + steps);
    }

    /// The number of this thread's steps.
    pub(crate) fn taken() -> usize {
        STEPS.get()
    }

    /// The result of `f`, and the number of its steps.
    pub(crate) fn during<R>(f: impl FnOnce() -> R) -> (R, usize) {
        let before = taken();
        let result = f();
        (result, taken() - before)
    }

    thread_local! {
        /// Whether the helpers of this thread wait for each other before each job, so that the
        /// course of a collection depends less on the machine.
        pub(super) static WAITS: Cell<bool> = const { Cell::new(false) };
    }

    /// The steps that helpers take on behalf of this thread.
    pub(crate) struct HelperSteps {
        steps: AtomicUsize,
        expected: AtomicUsize,
        waits: bool,
    }

    impl HelperSteps {
        /// Expects up to `threads` helpers.
        pub(crate) fn expect(threads: usize) -> Self {
            Self {
                steps: AtomicUsize::new(0),
                expected: AtomicUsize::new(threads),
                waits: WAITS.get(),
            }
        }

        /// Calls `f`, whose steps count as a helper's if `is_other`.
        pub(crate) fn part(&self, is_other: bool, f: impl FnOnce()) {
            self.expected.fetch_sub(usize::from(is_other), Relaxed);
            let begun = Instant::now();
            while self.waits
                && self.expected.load(Relaxed) > 0
                && begun.elapsed() < Duration::from_millis(10)
            {
                std::thread::yield_now();
            }
            let ((), steps) = during(f);
            self.steps.fetch_add(if is_other { steps } else { 0 }, Relaxed);
        }

        /// Adds the steps to this thread's.
        pub(crate) fn join(self) {
            took(self.steps.into_inner());
        }
    }
}

#[cfg(not(all(test, not(any(loom, shuttle)))))]
mod counting {
    #[inline(always)]
    pub(crate) fn took(_: usize) {}

    pub(crate) struct HelperSteps;

    impl HelperSteps {
        #[inline(always)]
        pub(crate) fn expect(_: usize) -> Self {
            Self
        }

        #[inline(always)]
        pub(crate) fn part(&self, _: bool, f: impl FnOnce()) {
            f();
        }

        #[inline(always)]
        pub(crate) fn join(self) {}
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
#[cfg(feature = "cpython")]
mod tests;
