//! Tests of the work that marking workers share.

#![forbid(unsafe_code)]

use super::super::*;

#[test]
fn a_worker_waits_for_work_as_long_as_another_one_may_give_some() {
    let pool = Pool::new();
    let idle = || pool.idle.load(Ordering::Relaxed);
    let waiting = || pool.waiting.load(Ordering::Relaxed);
    pool.joined.store(2, Ordering::Relaxed);
    for chunk in [1, 2] {
        pool.give(Piece::Objects(vec![chunk])).expect("memory");
        assert_eq!(waiting(), chunk as usize);
    }
    assert_eq!(pool.take(), Some(Piece::Objects(vec![2])));
    assert_eq!((idle(), waiting()), (0, 1), "who has work is not idle");
    assert_eq!(pool.steal(), Some(Piece::Objects(vec![1])));
    assert_eq!((pool.steal(), waiting()), (None, 0));
    // The other worker gives its work away while this worker waits, and then also has none.
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while idle() == 0 {
                yield_now();
            }
            pool.give(Piece::Objects(vec![3])).expect("memory");
            // The chunk is taken before the giver is idle.
            while waiting() > 0 {
                yield_now();
            }
            assert_eq!(pool.take(), None);
        });
        assert_eq!(pool.take(), Some(Piece::Objects(vec![3])));
        assert_eq!(pool.take(), None, "both are idle: that is all");
    });
    assert_eq!(idle(), 2);
    // If a worker has failed, other workers need not wait.
    let pool = Pool::new();
    pool.joined.store(2, Ordering::Relaxed);
    pool.failed.store(true, Ordering::Relaxed);
    assert_eq!(pool.take(), None);
}

#[test]
fn work_is_wanted_while_an_idle_worker_has_no_piece() {
    let wants = |idle: usize, waiting: usize| {
        let pool = Pool::new();
        pool.idle.store(idle, Ordering::Relaxed);
        for _ in 0..waiting {
            pool.give(Piece::Objects(vec![])).expect("memory");
        }
        pool.wants_work()
    };
    assert_eq!([wants(0, 0), wants(0, 1), wants(1, 1), wants(2, 3)], [false; 4]);
    assert_eq!([wants(1, 0), wants(2, 1)], [true; 2]);
}
