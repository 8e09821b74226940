//! Floor 3: who works on a collection beside the thread that has stopped the world.
//!
//! Work is shared through the [crew](super::helpers). Mutators that are parked for the stop come by themselves. For more, the heap has a
//! rayon pool of its own, started at its first use. It is asked by `spawn`, never by `install`: called from a
//! worker of another pool, `install` would run that pool's strangers' jobs inside the pause.
//!
//! Who has not come when the caller is done with its own share is not waited for, so a
//! busy machine delays nobody: the caller alone can always finish everything.

use std::fmt;
use std::sync::Arc;

#[cfg(not(all(test, loom)))]
use crate::base::event;
use crate::base::fallible::{self, NoMemory};
use crate::base::room::Spare;
use crate::base::sync::{AtomicBool, Mutex, Ordering};
use crate::heap::helpers::{Crew, Job, Seat};

/// More than asking the pool takes, and than starting it does, stacks aside.
#[cfg(not(all(test, loom)))]
const HEADROOM: usize = 256 << 10;

/// Cells from which on it is worth while to share the work with threads that need not be woken: two pages.
const SHARED_FROM: usize = if cfg!(all(test, any(loom, shuttle))) { 2 } else { 2_000 };

/// The marking threads of one heap.
pub(crate) struct Workers {
    /// Threads that work on a collection at most, the collecting one included.
    size: usize,
    crew: Arc<Crew>,
    /// Whether this collection is large enough to wake threads for it. Relaxed: for who has stopped the world.
    calls_pool: AtomicBool,
    /// The pool could not be started. Relaxed: a hint, for those who plan the next collection.
    lacks_pool: AtomicBool,
    pool: Mutex<Pool>,
    /// Counting tables that collections have used, all zero, kept because fresh memory faults.
    tables: Mutex<Vec<Vec<u8>>>,
    /// Memory for logs, kept for the same reason.
    pub(crate) spare: Spare,
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
    pub(crate) fn new(size: usize) -> Result<Self, NoMemory> {
        Ok(Self {
            size: size.max(1),
            crew: fallible::arc(Crew::new())?,
            calls_pool: AtomicBool::new(false),
            lacks_pool: AtomicBool::new(false),
            pool: Mutex::new(Pool::NotStarted),
            tables: Mutex::new(Vec::new()),
            spare: Spare::default(),
        })
    }

    /// Where parked threads wait for work, if there is ever any for them.
    pub(crate) fn crew(&self) -> Option<&Crew> {
        (self.size > 1).then_some(&*self.crew)
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
        #[expect(
            clippy::let_underscore_must_use,
            reason = "without memory for its place it is freed"
        )]
        let _ = fallible::push(&mut self.tables.lock(), table);
    }

    /// In a forked child: neither the pool's threads nor the parked ones exist here. A new pool is started when one is needed.
    pub(crate) fn forget_others(&self) {
        self.crew.forget_hands();
        self.lacks_pool.store(false, Ordering::Relaxed);
        std::mem::forget(std::mem::replace(&mut *self.pool.lock(), Pool::NotStarted));
    }
}

impl Workers {
    /// Calls the job on this thread, whose arena is `home`, and, as far as they come in time, on `n - 1` others: mutators that are
    /// parked, then the pool's threads. The work is shared inside `job`: any of the calls can do all of it.
    /// Returns when all calls that began have returned; passes a panic on.
    pub(crate) fn run(&self, n: usize, home: u32, job: &Job<'_>) {
        let n = n.min(self.size);
        if n <= 1 {
            return job(Seat { index: 0, home });
        }
        self.crew.share(n, home, job, || {
            if self.calls_pool.load(Ordering::Relaxed) {
                self.call_pool((n - 1).saturating_sub(self.crew.hands()));
            }
        });
    }

    /// Decides how many threads may work on a collection of so many cells, until the next is begun. Below `serial_below` they are
    /// those that need not be woken.
    pub(crate) fn muster(&self, cells: usize, serial_below: usize) -> usize {
        let calls_pool = cells >= serial_below && !self.lacks_pool.load(Ordering::Relaxed);
        self.calls_pool.store(calls_pool, Ordering::Relaxed);
        if calls_pool {
            self.size
        } else if cells >= SHARED_FROM {
            self.size.min(1 + self.crew.hands())
        } else {
            1
        }
    }

    /// loom has no pool.
    #[cfg(all(test, loom))]
    fn call_pool(&self, _: usize) {}

    /// Asks the pool for `n` threads.
    #[cfg(not(all(test, loom)))]
    fn call_pool(&self, n: usize) {
        self.call_pool_from(n, &|| {
            rayon::ThreadPoolBuilder::new()
                .num_threads(self.size - 1)
                .thread_name(|i| format!("gc-mark-{}", i + 1))
                .build()
        });
    }

    /// Asks the pool for `n` threads. `start` starts it.
    #[cfg(not(all(test, loom)))]
    fn call_pool_from(
        &self,
        n: usize,
        start: &dyn Fn() -> Result<rayon::ThreadPool, rayon::ThreadPoolBuildError>,
    ) {
        // What follows asks for memory in ways that cannot be refused. Where there is hardly any left, the others have to do without.
        if n == 0 || !fallible::seems_to_have(HEADROOM) {
            return;
        }
        let mut refused = None;
        let mut pool = self.pool.lock();
        if matches!(*pool, Pool::NotStarted) {
            *pool = match start() {
                Ok(built) => Pool::Running(built),
                Err(error) => {
                    self.lacks_pool.store(true, Ordering::Relaxed);
                    refused = Some(error);
                    Pool::Unavailable
                }
            };
        }
        if let Pool::Running(pool) = &*pool {
            for _ in 0..n {
                let crew = Arc::clone(&self.crew);
                pool.spawn(move || {
                    crew.join(0);
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
    fn every_share_is_done_once_even_when_the_pool_is_late() {
        let workers = Workers::new(4).unwrap();
        assert_eq!(workers.muster(2, 1), 4, "large enough to wake them all");
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
    fn a_panic_in_any_share_comes_back() {
        let workers = Workers::new(2).unwrap();
        workers.muster(2, 1);
        let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            workers.run(2, 1, &|seat| assert_ne!(seat.index, 0, "share zero fails"));
        }));
        assert!(caught.is_err());
        workers.run(2, 1, &|_| {});
    }

    #[test]
    fn a_small_collection_wakes_nobody() {
        let workers = Workers::new(4).unwrap();
        let hands = [(); 2].map(|()| workers.crew.hand(1));
        let cells = 10 * SHARED_FROM;
        assert_eq!(workers.muster(SHARED_FROM - 1, usize::MAX), 1);
        assert_eq!(workers.muster(cells, cells + 1), 3, "itself, and two that are there");
        // They have given up by now.
        drop(hands);
        workers.run(3, 1, &|_| {});
        assert!(matches!(*workers.pool.lock(), Pool::NotStarted));
        assert_eq!(workers.muster(cells, cells), 4);
        workers.run(4, 1, &|_| {});
        assert!(!matches!(*workers.pool.lock(), Pool::NotStarted));
    }

    #[test]
    fn one_worker_is_the_caller_itself() {
        let one = Workers::new(0).unwrap();
        assert!(one.crew().is_none(), "no thread waits for work");
        assert_eq!(one.muster(usize::MAX, 0), 1);
        let calls = AtomicUsize::new(0);
        one.run(7, 5, &|seat| {
            assert_eq!((seat.index, seat.home), (0, 5));
            calls.fetch_add(1, Ordering::Relaxed);
        });
        assert_eq!(calls.into_inner(), 1);
        assert!(Workers::new(2).unwrap().crew().is_some());
    }

    #[test]
    fn the_pool_is_started_once_for_the_first_large_collection() {
        let workers = Workers::new(3).unwrap();
        let is_started = || !matches!(*workers.pool.lock(), Pool::NotStarted);
        workers.run(3, 1, &|_| {});
        assert!(!is_started(), "no collection has called for it");
        workers.muster(2, 1);
        workers.call_pool(0);
        assert!(!is_started(), "no thread is needed");
        // The caller waits for two threads of the pool.
        let came = AtomicUsize::new(0);
        workers.run(3, 9, &|seat| {
            assert_eq!(seat.home, if seat.index == 0 { 9 } else { 0 });
            came.fetch_add(1, Ordering::Relaxed);
            while came.load(Ordering::Relaxed) < 3 {
                std::thread::yield_now();
            }
        });
        let Pool::Running(pool) = &*workers.pool.lock() else { panic!("it runs") };
        assert_eq!(pool.current_num_threads(), 2);
        let again = || -> Result<rayon::ThreadPool, _> { panic!("it is there") };
        let other = Workers::new(3).unwrap();
        *other.pool.lock() = Pool::Unavailable;
        other.call_pool_from(1, &again);
        assert!(matches!(*other.pool.lock(), Pool::Unavailable));
    }

    #[test]
    fn without_a_pool_the_next_collections_do_without_and_that_is_told() {
        use tracing_subscriber::layer::{Context, Layer, SubscriberExt};

        struct Told<'a>(&'a AtomicUsize);
        impl<S: tracing::Subscriber> Layer<S> for Told<'static> {
            fn on_event(&self, event: &tracing::Event<'_>, _: Context<'_, S>) {
                assert_eq!(*event.metadata().level(), tracing::Level::WARN);
                self.0.fetch_add(1, Ordering::Relaxed);
            }
        }
        static TOLD: AtomicUsize = AtomicUsize::new(0);

        let workers = Workers::new(4).unwrap();
        assert_eq!(workers.muster(2, 1), 4);
        // A pool cannot have a thread that has one already.
        let own =
            rayon::ThreadPoolBuilder::new().num_threads(1).use_current_thread().build().unwrap();
        let refused =
            || rayon::ThreadPoolBuilder::new().num_threads(1).use_current_thread().build();
        tracing::subscriber::with_default(tracing_subscriber::registry().with(Told(&TOLD)), || {
            workers.call_pool_from(2, &refused);
        });
        drop(own);
        assert_eq!(TOLD.load(Ordering::Relaxed), 1);
        assert!(matches!(*workers.pool.lock(), Pool::Unavailable));
        assert_eq!(workers.muster(2, 1), 1);
        // In the child of a fork it is tried again, and no thread of the parent is there.
        let hands = [(); 2].map(|()| workers.crew.hand(1));
        assert_eq!(workers.muster(SHARED_FROM, usize::MAX), 3);
        std::mem::forget(hands);
        workers.forget_others();
        assert!(matches!(*workers.pool.lock(), Pool::NotStarted));
        assert_eq!(workers.crew.hands(), 0);
        assert_eq!(workers.muster(2, 1), 4);
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
        assert_eq!(table.as_ptr(), start, "it is long enough");
        assert_eq!(workers.take_table(100).unwrap(), vec![0; 100]);
        assert_eq!(workers.take_table(usize::MAX), Err(NoMemory));
    }
}
