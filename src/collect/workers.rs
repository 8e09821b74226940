//! Floor 1: a leaf that uses floor 0 alone (`sync`, `event`): the heap's own marking threads.
//!
//! The pool is a rayon pool of this heap alone, started at its first use. Work is handed over by
//! `spawn` and awaited on a condition variable, never by `install`: called from a worker of another
//! pool, `install` would run that pool's strangers' jobs inside the pause.
//!
//! A job that the pool has not begun when the caller is done with its own share is withdrawn, so a
//! busy machine delays nobody: the caller alone can always finish everything.

use std::fmt;

use crate::fallible::{self, NoMemory};
use crate::sync::Mutex;

/// The marking threads of one heap.
pub(crate) struct Workers {
    /// Threads that work on a collection at most, the collecting one included.
    size: usize,
    pool: Mutex<Pool>,
    /// Counting tables that collections have used, all zero, kept because fresh memory faults.
    tables: Mutex<Vec<Vec<u8>>>,
}

enum Pool {
    NotStarted,
    #[cfg(not(all(test, loom)))]
    Running(rayon::ThreadPool),
    #[cfg(not(all(test, loom)))]
    Unavailable,
}

impl fmt::Debug for Workers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Workers").field("size", &self.size).finish_non_exhaustive()
    }
}

impl Workers {
    /// `size` threads, the collecting one included; none is started yet.
    pub(crate) fn new(size: usize) -> Self {
        Self { size: size.max(1), pool: Mutex::new(Pool::NotStarted), tables: Mutex::new(Vec::new()) }
    }

    /// Threads that work on a collection at most.
    pub(crate) fn size(&self) -> usize {
        self.size
    }

    /// A table of at least `len` zeroes.
    pub(crate) fn take_table(&self, len: usize) -> Result<Vec<u8>, NoMemory> {
        match self.tables.lock().pop() {
            Some(table) if table.len() >= len => Ok(table),
            _ => fallible::zeroes(len),
        }
    }

    /// Takes a table back; it is all zero again. Without memory for its place it is not kept.
    pub(crate) fn give_table(&self, table: Vec<u8>) {
        let _ = fallible::push(&mut self.tables.lock(), table);
    }

    /// In a forked child: the pool's threads do not exist here. A new pool is started when one is needed.
    pub(crate) fn forget_pool(&self) {
        std::mem::forget(std::mem::replace(&mut *self.pool.lock(), Pool::NotStarted));
    }
}

#[cfg(not(all(test, loom)))]
mod run {
    use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
    use std::sync::Arc;

    use super::{Pool, Workers};
    use crate::event;
    use crate::fallible;
    use crate::sync::{Condvar, Mutex};

    type Job<'a> = dyn Fn(usize) + Sync + 'a;

    /// More than handing over the work of one step takes, and than starting the pool does, stacks aside.
    const HEADROOM: usize = 256 << 10;

    /// One call of [`Workers::run`].
    struct Call {
        /// The caller's closure, its lifetime erased: see the safety comment at its use.
        job: *const Job<'static>,
        state: Mutex<CallState>,
        finished: Condvar,
    }

    struct CallState {
        /// The caller is done: whoever has not begun must not.
        closed: bool,
        running: usize,
        panic: Option<Box<dyn std::any::Any + Send>>,
    }

    // SAFETY: rule V: the job is `Sync`, and is called only while `Workers::run` waits (see there).
    unsafe impl Send for Call {}
    // SAFETY: as above.
    unsafe impl Sync for Call {}

    impl Call {
        fn work(&self, index: usize) {
            {
                let mut state = self.state.lock();
                if state.closed {
                    return;
                }
                state.running += 1;
            }
            // SAFETY: rule V: `running` was raised before `closed` was set, so `Workers::run`, which owns the
            // closure, returns only after it is lowered below.
            let job = unsafe { &*self.job };
            let result = catch_unwind(AssertUnwindSafe(|| job(index)));
            let mut state = self.state.lock();
            state.running -= 1;
            if let Err(payload) = result {
                state.panic.get_or_insert(payload);
            }
            if state.running == 0 {
                self.finished.notify_all();
            }
        }
    }

    impl Workers {
        /// Calls `job(0)` on this thread and, as far as the pool gets to it in time, `job(1)` to
        /// `job(n - 1)` on others. The work is shared inside `job`: any of the calls can do all of it.
        /// Returns when all calls that began have returned; passes a panic on.
        pub(crate) fn run(&self, n: usize, job: &Job<'_>) {
            let n = n.min(self.size);
            // What follows asks for memory in ways that cannot be refused. Where there is hardly any left, this thread does
            // without the others.
            if n <= 1 || !fallible::seems_to_have(HEADROOM) {
                return job(0);
            }
            let call = Arc::new(Call {
                // SAFETY: rule V: only the lifetime changes; `work` dereferences it only while this frame waits.
                job: unsafe { std::mem::transmute::<*const Job<'_>, *const Job<'static>>(job) },
                state: Mutex::new(CallState { closed: false, running: 0, panic: None }),
                finished: Condvar::new(),
            });
            self.spawn(n, &call);
            let mine = catch_unwind(AssertUnwindSafe(|| job(0)));
            let mut state = call.state.lock();
            state.closed = true;
            while state.running > 0 {
                call.finished.wait(&mut state);
            }
            let theirs = state.panic.take();
            drop(state);
            if let Err(payload) = mine {
                resume_unwind(payload);
            }
            if let Some(payload) = theirs {
                resume_unwind(payload);
            }
        }

        fn spawn(&self, n: usize, call: &Arc<Call>) {
            let mut pool = self.pool.lock();
            if matches!(*pool, Pool::NotStarted) {
                let built = rayon::ThreadPoolBuilder::new()
                    .num_threads(self.size - 1)
                    .thread_name(|i| format!("gc-mark-{}", i + 1))
                    .build();
                *pool = match built {
                    Ok(built) => Pool::Running(built),
                    Err(error) => {
                        event::no_pool(&error.to_string());
                        Pool::Unavailable
                    }
                };
            }
            if let Pool::Running(pool) = &*pool {
                for index in 1..n {
                    let call = Arc::clone(call);
                    pool.spawn(move || call.work(index));
                }
            }
        }
    }
}

#[cfg(all(test, loom))]
impl Workers {
    /// loom has no pool: the serial driver of the same functions.
    pub(crate) fn run(&self, _: usize, job: &(dyn Fn(usize) + Sync)) {
        job(0);
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn every_share_is_done_once_even_when_the_pool_is_late() {
        let workers = Workers::new(4);
        for _ in 0..200 {
            let next = AtomicUsize::new(0);
            let sum = AtomicUsize::new(0);
            workers.run(4, &|_| {
                loop {
                    let i = next.fetch_add(1, Ordering::Relaxed);
                    if i >= 100 {
                        break;
                    }
                    sum.fetch_add(i, Ordering::Relaxed);
                }
            });
            assert_eq!(sum.into_inner(), 4950);
        }
    }

    #[test]
    fn a_panic_in_any_share_comes_back() {
        let workers = Workers::new(2);
        let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            workers.run(2, &|i| assert_ne!(i, 0, "share zero fails"));
        }));
        assert!(caught.is_err());
        workers.run(2, &|_| {});
    }

    #[test]
    fn tables_come_back_zeroed_and_large_enough() {
        let workers = Workers::new(2);
        workers.give_table(vec![0; 10]);
        assert_eq!(workers.take_table(5).unwrap().len(), 10);
        assert_eq!(workers.take_table(100).unwrap(), vec![0; 100]);
        assert_eq!(workers.take_table(usize::MAX), Err(NoMemory));
    }
}
