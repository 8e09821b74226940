//! Tests of `heap/workers.rs`.

#![forbid(unsafe_code)]

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
    let own = rayon::ThreadPoolBuilder::new().num_threads(1).use_current_thread().build().unwrap();
    let refused = || rayon::ThreadPoolBuilder::new().num_threads(1).use_current_thread().build();
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
