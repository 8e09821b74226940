//! The threads that work on a collection.
//!
//! Threads share the work through the [job slot](super::helpers). Mutators that are parked for the
//! stop join by themselves. For more threads, the heap has its own rayon pool, which is started at
//! its first use. The pool is used by `spawn`, never by `install`: called from a worker of another
//! pool, `install` would run jobs of that pool inside the pause.
//!
//! A build without the feature `parallel` has no pool: only parked mutators help. A collection then
//! uses at most as many threads as are parked, and the collecting one.
//!
//! The caller does not wait for threads that come after it has finished: it alone can do all of the
//! work. So a busy machine delays no collection.

#![forbid(unsafe_code)]

use std::fmt;
use std::sync::Arc;

use crate::base::fallible::{self, NoMemory};
use crate::base::sync::{AtomicBool, AtomicU32, Mutex, Ordering};
#[cfg(all(feature = "parallel", not(all(test, loom))))]
use crate::base::{event, system::signals};
use crate::heap::helpers::{Job, JobSlot, Worker};
use crate::heap::mark_tables::MarkTables;

/// Whether a heap has a pool. loom counts as a pool without threads.
const HAS_POOL: bool = cfg!(any(feature = "parallel", all(test, loom)));

/// More memory than a call or the start of the pool takes, without the stacks.
#[cfg(all(feature = "parallel", not(all(test, loom))))]
const HEADROOM: usize = 256 << 10;

/// The number of cells from which parked threads share the work: two pages.
const MIN_SHARED_CELLS: usize = if cfg!(all(test, any(loom, shuttle))) { 2 } else { 2_000 };

/// The marking threads of one heap.
pub(crate) struct Workers {
    /// The most threads that work on a collection, with the collecting thread.
    size: usize,
    slot: Arc<JobSlot>,
    /// Whether this collection is large enough to wake the pool. Relaxed: only the thread that has
    /// stopped the world uses it.
    calls_pool: AtomicBool,
    /// The pool could not be started. Relaxed: a hint for the plan of the next collection.
    lacks_pool: AtomicBool,
    /// The process in which the pool was started; 0: none was. The child of a fork that was not
    /// prepared has the pool, but not its threads: they may have held locks. Relaxed: only the
    /// thread that has stopped the world uses it.
    process: AtomicU32,
    pool: Mutex<PoolState>,
    /// Counting tables of past collections, all zero. They are reused because fresh memory faults.
    tables: Mutex<Vec<Vec<u8>>>,
    /// The tables of the last marking, for the same reason.
    mark_tables: Mutex<MarkTables>,
}

enum PoolState {
    NotStarted,
    #[cfg(all(feature = "parallel", not(all(test, loom))))]
    Running(rayon::ThreadPool),
    #[cfg(all(feature = "parallel", not(all(test, loom))))]
    Unavailable,
}

impl fmt::Debug for Workers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Workers").field("size", &self.size).finish_non_exhaustive()
    }
}

impl Workers {
    /// `size` threads, with the collecting thread. None is started yet.
    pub(crate) fn new(size: usize) -> Result<Self, NoMemory> {
        Ok(Self {
            size: size.max(1),
            slot: fallible::arc(JobSlot::new())?,
            calls_pool: AtomicBool::new(false),
            lacks_pool: AtomicBool::new(false),
            process: AtomicU32::new(0),
            pool: Mutex::new(PoolState::NotStarted),
            tables: Mutex::new(Vec::new()),
            mark_tables: Mutex::default(),
        })
    }

    /// The slot where parked threads wait for jobs. `None`: each collection runs on one thread.
    pub(crate) fn job_slot(&self) -> Option<&JobSlot> {
        (self.size > 1).then_some(&*self.slot)
    }

    /// A table of at least `len` zeroes.
    pub(crate) fn take_table(&self, len: usize) -> Result<Vec<u8>, NoMemory> {
        match self.tables.lock().pop() {
            Some(table) if table.len() >= len => Ok(table),
            _ => fallible::zeroes(len),
        }
    }

    /// Takes back a table, which is all zero again. Without memory for the list it is freed.
    pub(crate) fn give_table(&self, table: Vec<u8>) {
        #[expect(
            clippy::let_underscore_must_use,
            reason = "without memory for its place it is freed"
        )]
        let _ = fallible::push(&mut self.tables.lock(), table);
    }

    /// Takes the tables for marking, which are zero. Only one collection at a time has them.
    pub(crate) fn take_mark_tables(&self) -> MarkTables {
        std::mem::take(&mut *self.mark_tables.lock())
    }

    /// Takes them back, zero again.
    pub(crate) fn give_mark_tables(&self, tables: MarkTables) {
        *self.mark_tables.lock() = tables;
    }

    /// Frees the tables that are kept for the next collection.
    pub(crate) fn forget_tables(&self) {
        *self.tables.lock() = Vec::new();
        *self.mark_tables.lock() = MarkTables::default();
    }

    /// In the child of a fork: the pool's threads and the parked threads do not exist here. A new
    /// pool is started when it is needed.
    #[cfg_attr(
        not(feature = "parallel"),
        allow(clippy::forget_non_drop, reason = "without a pool there is nothing to drop")
    )]
    pub(crate) fn forget_others(&self) {
        self.slot.forget_helpers();
        self.lacks_pool.store(false, Ordering::Relaxed);
        self.process.store(0, Ordering::Relaxed);
        std::mem::forget(std::mem::replace(&mut *self.pool.lock(), PoolState::NotStarted));
    }
}

impl Workers {
    /// Calls the job on this thread, as that of `arena`, and on up to `n - 1` other threads
    /// that come in time: parked mutators first, then threads of the pool. Returns when all calls
    /// that began have returned. Passes a panic on.
    pub(crate) fn run(&self, n: usize, arena: u32, job: &Job<'_>) {
        let n = n.min(self.size);
        if n <= 1 {
            return job(Worker { index: 0, arena });
        }
        self.slot.run_on(n, arena, job, || {
            if self.calls_pool.load(Ordering::Relaxed) {
                self.call_pool((n - 1).saturating_sub(self.slot.helpers()));
            }
        });
    }

    /// Decides how many threads may work on a collection of so many cells. Below `serial_below`
    /// these are the threads that need not be woken. The plan holds until the next call.
    ///
    /// A process that has inherited the pool from its parent uses one thread.
    pub(crate) fn plan_workers(&self, cells: usize, serial_below: usize) -> usize {
        let process = self.process.load(Ordering::Relaxed);
        let is_inherited = process != 0 && process != std::process::id();
        let calls_pool = HAS_POOL
            && cells >= serial_below
            && !is_inherited
            && !self.lacks_pool.load(Ordering::Relaxed);
        self.calls_pool.store(calls_pool, Ordering::Relaxed);
        if is_inherited {
            1
        } else if calls_pool {
            self.size
        } else if cells >= MIN_SHARED_CELLS {
            self.size.min(1 + self.slot.helpers())
        } else {
            1
        }
    }

    /// loom has no pool, and no build without the feature `parallel` has one.
    #[cfg(not(all(feature = "parallel", not(all(test, loom)))))]
    fn call_pool(&self, _: usize) {}

    /// Calls `n` threads of the pool.
    #[cfg(all(feature = "parallel", not(all(test, loom))))]
    fn call_pool(&self, n: usize) {
        self.call_pool_from(n, &|| {
            let _blocked = signals::block_signals();
            rayon::ThreadPoolBuilder::new()
                .num_threads(self.size - 1)
                .thread_name(|i| format!("gc-mark-{}", i + 1))
                .build()
        });
    }

    /// Calls `n` threads of the pool. `start` starts the pool.
    #[cfg(all(feature = "parallel", not(all(test, loom))))]
    fn call_pool_from(
        &self,
        n: usize,
        start: &dyn Fn() -> Result<rayon::ThreadPool, rayon::ThreadPoolBuildError>,
    ) {
        // The pool allocates memory that cannot be refused. If memory is short, it is not called.
        if n == 0 || !fallible::seems_to_have(HEADROOM) {
            return;
        }
        let mut refused = None;
        let mut pool = self.pool.lock();
        if matches!(*pool, PoolState::NotStarted) {
            *pool = match start() {
                Ok(built) => {
                    self.process.store(std::process::id(), Ordering::Relaxed);
                    PoolState::Running(built)
                }
                Err(error) => {
                    self.lacks_pool.store(true, Ordering::Relaxed);
                    refused = Some(error);
                    PoolState::Unavailable
                }
            };
        }
        if let PoolState::Running(pool) = &*pool {
            for _ in 0..n {
                let slot = Arc::clone(&self.slot);
                pool.spawn(move || {
                    slot.join(0);
                });
            }
        }
        drop(pool);
        if let Some(error) = refused {
            event::no_pool(&error.to_string());
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    #[cfg(feature = "parallel")]
    fn a_job_is_done_once_even_when_the_pool_is_late() {
        let workers = Workers::new(4).unwrap();
        assert_eq!(workers.plan_workers(2, 1), 4, "large enough to wake all threads");
        for _ in 0..200 {
            let next = AtomicUsize::new(0);
            let sum = AtomicUsize::new(0);
            workers.run(4, 1, &|_| {
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
    fn a_panic_of_any_worker_comes_back() {
        let workers = Workers::new(2).unwrap();
        workers.plan_workers(2, 1);
        let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            workers.run(2, 1, &|worker| assert_ne!(worker.index, 0, "worker zero fails"));
        }));
        assert!(caught.is_err());
        workers.run(2, 1, &|_| {});
    }

    #[test]
    #[cfg(feature = "parallel")]
    fn a_small_collection_wakes_no_thread() {
        let workers = Workers::new(4).unwrap();
        let helpers = [(); 2].map(|()| workers.slot.helper(1));
        let cells = 10 * MIN_SHARED_CELLS;
        assert_eq!(workers.plan_workers(MIN_SHARED_CELLS - 1, usize::MAX), 1);
        assert_eq!(workers.plan_workers(cells, cells + 1), 3, "the caller with two helpers");
        // The helpers have gone to sleep by now.
        drop(helpers);
        workers.run(3, 1, &|_| {});
        assert!(matches!(*workers.pool.lock(), PoolState::NotStarted));
        assert_eq!(workers.plan_workers(cells, cells), 4);
        workers.run(4, 1, &|_| {});
        assert!(!matches!(*workers.pool.lock(), PoolState::NotStarted));
    }

    #[test]
    #[cfg(not(feature = "parallel"))]
    fn without_the_feature_only_parked_threads_help() {
        let workers = Workers::new(4).unwrap();
        assert_eq!(workers.plan_workers(usize::MAX, 0), 1);
        let helpers = [(); 2].map(|()| workers.slot.helper(1));
        assert_eq!(workers.plan_workers(usize::MAX, 0), 3);
        drop(helpers);
        let calls = AtomicUsize::new(0);
        workers.run(4, 1, &|_| {
            calls.fetch_add(1, Ordering::Relaxed);
        });
        assert_eq!(calls.into_inner(), 1);
        assert!(matches!(*workers.pool.lock(), PoolState::NotStarted));
    }

    #[test]
    fn one_worker_is_the_caller_itself() {
        let one = Workers::new(0).unwrap();
        assert!(one.job_slot().is_none(), "no thread waits for jobs");
        assert_eq!(one.plan_workers(usize::MAX, 0), 1);
        let calls = AtomicUsize::new(0);
        one.run(7, 5, &|worker| {
            assert_eq!((worker.index, worker.arena), (0, 5));
            calls.fetch_add(1, Ordering::Relaxed);
        });
        assert_eq!(calls.into_inner(), 1);
        assert!(Workers::new(2).unwrap().job_slot().is_some());
    }

    #[test]
    #[cfg(feature = "parallel")]
    fn the_pool_is_started_once_for_the_first_large_collection() {
        let workers = Workers::new(3).unwrap();
        let is_started = || !matches!(*workers.pool.lock(), PoolState::NotStarted);
        workers.run(3, 1, &|_| {});
        assert!(!is_started(), "no collection has called the pool");
        workers.plan_workers(2, 1);
        workers.call_pool(0);
        assert!(!is_started(), "no thread is needed");
        // The caller waits for two threads of the pool.
        let came = AtomicUsize::new(0);
        workers.run(3, 9, &|worker| {
            assert_eq!(worker.arena, if worker.index == 0 { 9 } else { 0 });
            came.fetch_add(1, Ordering::Relaxed);
            while came.load(Ordering::Relaxed) < 3 {
                std::thread::yield_now();
            }
        });
        let PoolState::Running(pool) = &*workers.pool.lock() else { panic!("the pool runs") };
        assert_eq!(pool.current_num_threads(), 2);
        let again = || -> Result<rayon::ThreadPool, _> { panic!("the pool is running") };
        let other = Workers::new(3).unwrap();
        *other.pool.lock() = PoolState::Unavailable;
        other.call_pool_from(1, &again);
        assert!(matches!(*other.pool.lock(), PoolState::Unavailable));
    }

    #[test]
    #[cfg(all(feature = "parallel", feature = "tracing"))]
    fn without_a_pool_collections_go_on_and_a_warning_is_sent() {
        use tracing_subscriber::layer::{Context, Layer, SubscriberExt};

        struct Counter<'a>(&'a AtomicUsize);
        impl<S: tracing::Subscriber> Layer<S> for Counter<'static> {
            fn on_event(&self, event: &tracing::Event<'_>, _: Context<'_, S>) {
                assert_eq!(*event.metadata().level(), tracing::Level::WARN);
                self.0.fetch_add(1, Ordering::Relaxed);
            }
        }
        static WARNINGS: AtomicUsize = AtomicUsize::new(0);

        let workers = Workers::new(4).unwrap();
        assert_eq!(workers.plan_workers(2, 1), 4);
        // A pool cannot have a thread of another pool.
        let own =
            rayon::ThreadPoolBuilder::new().num_threads(1).use_current_thread().build().unwrap();
        let refused =
            || rayon::ThreadPoolBuilder::new().num_threads(1).use_current_thread().build();
        tracing::subscriber::with_default(
            tracing_subscriber::registry().with(Counter(&WARNINGS)),
            || {
                workers.call_pool_from(2, &refused);
            },
        );
        drop(own);
        assert_eq!(WARNINGS.load(Ordering::Relaxed), 1);
        assert!(matches!(*workers.pool.lock(), PoolState::Unavailable));
        assert_eq!(workers.plan_workers(2, 1), 1);
        // The child of a fork has no helpers, and tries again to start the pool.
        let helpers = [(); 2].map(|()| workers.slot.helper(1));
        assert_eq!(workers.plan_workers(MIN_SHARED_CELLS, usize::MAX), 3);
        std::mem::forget(helpers);
        workers.forget_others();
        assert!(matches!(*workers.pool.lock(), PoolState::NotStarted));
        assert_eq!(workers.slot.helpers(), 0);
        assert_eq!(workers.plan_workers(2, 1), 4);
    }

    #[test]
    #[cfg(feature = "parallel")]
    fn no_signal_of_the_program_arrives_at_the_pool() {
        // The numbers are Linux's. Other systems are not tested.
        let [int, usr1, segv, alrm, term] = [2, 10, 11, 14, 15];
        let Some(before) = signals::blocked_signals() else { return };
        let blocked = || signals::blocked_signals().expect("read before");
        let bit = |signal: u32| 1 << (signal - 1);
        assert_eq!(before & bit(term), 0, "the test's own thread");
        let workers = Workers::new(2).unwrap();
        workers.plan_workers(2, 1);
        let (came, in_pool) = (AtomicUsize::new(0), std::sync::Mutex::new(None));
        workers.run(2, 1, &|worker| {
            if worker.index != 0 {
                *in_pool.lock().unwrap() = Some(blocked());
            }
            came.fetch_add(1, Ordering::Relaxed);
            while came.load(Ordering::Relaxed) < 2 {
                std::thread::yield_now();
            }
        });
        let in_pool = in_pool.into_inner().unwrap().expect("a thread of the pool came");
        for signal in [int, usr1, alrm, term] {
            assert_ne!(in_pool & bit(signal), 0, "{signal}");
        }
        assert_eq!(in_pool & bit(segv), 0, "handlers of faults run");
        assert_eq!(blocked(), before, "this thread has its signals again");
    }

    /// Both locks are held, as threads of the parent may hold them.
    #[test]
    #[cfg(feature = "parallel")]
    fn the_child_of_an_unprepared_fork_calls_no_thread_of_its_parent() {
        let workers = Workers::new(2).unwrap();
        workers.plan_workers(2, 1);
        workers.run(2, 1, &|_| {});
        assert_eq!(workers.plan_workers(2, 1), 2);
        let parent = workers.process.fetch_add(1, Ordering::Relaxed);
        assert_eq!(parent, std::process::id());
        assert_eq!(workers.plan_workers(usize::MAX, 0), 1);
        let held = (workers.slot.lock_for_fork(), workers.pool.lock());
        let n = workers.plan_workers(usize::MAX, 0);
        let calls = AtomicUsize::new(0);
        workers.run(n, 1, &|_| {
            calls.fetch_add(1, Ordering::Relaxed);
        });
        assert_eq!(calls.into_inner(), 1);
        drop(held);
        workers.forget_others();
        assert_eq!(workers.plan_workers(2, 1), 2, "a prepared child starts a pool of its own");
    }

    #[test]
    fn tables_come_back_zeroed_and_large_enough() {
        let workers = Workers::new(2).unwrap();
        workers.give_table(vec![0; 10]);
        assert_eq!(workers.take_table(5).unwrap().len(), 10);
        let table = vec![0; 10];
        let start = table.as_ptr();
        workers.give_table(table);
        let table = workers.take_table(10).unwrap();
        assert_eq!(table.as_ptr(), start, "the table is long enough");
        assert_eq!(workers.take_table(100).unwrap(), vec![0; 100]);
        assert_eq!(workers.take_table(usize::MAX), Err(NoMemory));
    }
}
