//! The threads that work on a collection.
//!
//! One thread could do all the work of a collection, but others may shorten the stop if they cost
//! nothing or come soon. Threads share the work through the [job slot](super::helpers), which
//! mutators that are parked for the stop join by themselves. For more threads, the heap has its own
//! rayon pool, which is started at its first use. For example, thread 1 collects 10^6 objects on 8
//! processors, while threads 2 and 3 are parked. Both join, so thread 1 calls five of the pool.
//!
//! The caller does not wait for threads that come after it has finished, because it alone can do
//! all of the work. So a busy machine delays no collection. The pool is used by `spawn`, never by
//! `install`, because if a worker of another pool called `install`, it would run jobs of that pool
//! inside the pause. A build without the feature `parallel` has no pool, so only parked mutators
//! help.

#![forbid(unsafe_code)]

use std::fmt;
use std::sync::Arc;

use crate::base::fallible::{self, NoMemory};
use crate::base::sync::{AtomicBool, AtomicU32, IS_MODEL, Mutex, Ordering};
#[cfg(all(
    feature = "parallel",
    not(any(all(test, loom), standstill_loom, standstill_shuttle))
))]
use crate::base::system::signals;
use crate::heap::helpers::{Job, JobSlot, Worker};
use crate::heap::mark_tables::MarkTables;
#[cfg(all(
    feature = "parallel",
    not(any(all(test, loom), standstill_loom, standstill_shuttle))
))]
use crate::report::event;

/// Whether a heap has a pool, although that of loom has no threads.
const HAS_POOL: bool = cfg!(any(feature = "parallel", any(all(test, loom), standstill_loom)));

/// More memory than a call or the start of the pool takes, without the stacks.
#[cfg(all(feature = "parallel", not(any(all(test, loom), standstill_loom, standstill_shuttle))))]
const HEADROOM: usize = 256 << 10;

/// The number of cells from which parked threads share the work, which fill two pages.
const MIN_SHARED_CELLS: usize = if IS_MODEL { 2 } else { 2_000 };

pub(crate) struct Workers {
    /// The most threads that work on a collection, including the collecting thread.
    size: usize,
    slot: Arc<JobSlot>,
    /// Whether this collection is large enough to wake the pool. Relaxed, because only the thread
    /// that has stopped the world uses it.
    calls_pool: AtomicBool,
    /// The pool could not be started. Relaxed, as a hint for the plan of the next collection.
    lacks_pool: AtomicBool,
    /// The process in which the pool was started, or 0 if none was. The child of a fork that was
    /// not prepared has the pool, but not its threads, which may have held locks. Relaxed, because
    /// only the thread that has stopped the world uses it.
    process: AtomicU32,
    pool: Mutex<PoolState>,
    /// Counting tables of past collections, all zero, which are reused because fresh memory faults.
    tables: Mutex<Vec<Vec<u8>>>,
    /// The tables of the last marking, for the same reason.
    mark_tables: Mutex<MarkTables>,
}

enum PoolState {
    NotStarted,
    #[cfg(all(
        feature = "parallel",
        not(any(all(test, loom), standstill_loom, standstill_shuttle))
    ))]
    Running(rayon::ThreadPool),
    #[cfg(all(
        feature = "parallel",
        not(any(all(test, loom), standstill_loom, standstill_shuttle))
    ))]
    Unavailable,
}

impl fmt::Debug for Workers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Workers").field("size", &self.size).finish_non_exhaustive()
    }
}

impl Workers {
    /// At most `size` threads, with the collecting thread. None is started yet.
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

    /// The slot where parked threads wait for jobs. `None` if each collection runs on one thread.
    pub(crate) fn job_slot(&self) -> Option<&JobSlot> {
        (self.size > 1).then_some(&*self.slot)
    }

    pub(crate) fn take_table(&self, len: usize) -> Result<Vec<u8>, NoMemory> {
        match self.tables.lock().pop() {
            Some(table) if table.len() >= len => Ok(table),
            _ => fallible::zeroes(len),
        }
    }

    /// Takes back a table, which is all zero again, and frees it if the list has no memory.
    pub(crate) fn give_table(&self, table: Vec<u8>) {
        #[expect(
            clippy::let_underscore_must_use,
            reason = "without memory for its place it is freed"
        )]
        let _ = fallible::push(&mut self.tables.lock(), table);
    }

    /// Takes the tables for marking, which are zero, as only one collection at a time has them.
    pub(crate) fn take_mark_tables(&self) -> MarkTables {
        std::mem::take(&mut *self.mark_tables.lock())
    }

    pub(crate) fn give_mark_tables(&self, tables: MarkTables) {
        *self.mark_tables.lock() = tables;
    }

    /// Frees the tables that are kept for the next collection.
    pub(crate) fn forget_tables(&self) {
        *self.tables.lock() = Vec::new();
        *self.mark_tables.lock() = MarkTables::default();
    }

    /// In the child of a fork, where neither the pool's threads nor the parked threads exist. A new
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
    /// Calls the job on this thread, as that of `arena`, and on up to `n - 1` other threads that
    /// come in time. Parked mutators come first, then threads of the pool. Returns when all calls
    /// that began have returned, and passes a panic on.
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

    #[cfg(not(all(
        feature = "parallel",
        not(any(all(test, loom), standstill_loom, standstill_shuttle))
    )))]
    fn call_pool(&self, _: usize) {}

    #[cfg(all(
        feature = "parallel",
        not(any(all(test, loom), standstill_loom, standstill_shuttle))
    ))]
    fn call_pool(&self, n: usize) {
        self.call_pool_from(n, &|| {
            let _blocked = signals::block_signals();
            rayon::ThreadPoolBuilder::new()
                .num_threads(self.size - 1)
                .thread_name(|i| format!("gc-mark-{}", i + 1))
                .build()
        });
    }

    /// Calls `n` threads of the pool, which `start` starts.
    #[cfg(all(
        feature = "parallel",
        not(any(all(test, loom), standstill_loom, standstill_shuttle))
    ))]
    fn call_pool_from(
        &self,
        n: usize,
        start: &dyn Fn() -> Result<rayon::ThreadPool, rayon::ThreadPoolBuildError>,
    ) {
        // The pool allocates memory that cannot be refused, so it is not called if memory is short.
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
mod tests;
