//! The work that marking workers share.
//!
//! A worker that finds another worker idle gives half of its list of objects away, or half of a
//! long slice. A worker may join at any time or never, so no worker waits for
//! a thread that the system starts late.
//!
//! The pool is a vector under a lock: a worker gives many objects at a time, and the growth of a
//! lock-free queue could not be refused. A long list has one object at a time to traverse, so one
//! worker marks it.

#![forbid(unsafe_code)]

use crossbeam_utils::CachePadded;

use crate::base::sync::{AtomicBool, AtomicUsize, Mutex, Ordering, spin_loop, yield_now};
use crate::object::long_slice::LongSlice;

/// A part of the work of marking.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Piece {
    /// The granules of claimed objects, which are to be traversed.
    Objects(Vec<u32>),
    /// A part of a long slice of an object that was traversed.
    LongSlice(LongSlice),
}

/// The work that the workers share.
pub(crate) struct Pool {
    pub(super) work: Mutex<Vec<Piece>>,
    /// The number of pieces of work: a hint for workers that poll.
    pub(super) waiting: CachePadded<AtomicUsize>,
    /// Workers that have joined.
    pub(super) joined: CachePadded<AtomicUsize>,
    /// The number of joined workers without work.
    pub(super) idle: CachePadded<AtomicUsize>,
    pub(super) failed: AtomicBool,
}

impl Pool {
    pub(super) fn new() -> Self {
        Self {
            work: Mutex::new(Vec::new()),
            waiting: CachePadded::new(AtomicUsize::new(0)),
            joined: CachePadded::new(AtomicUsize::new(0)),
            idle: CachePadded::new(AtomicUsize::new(0)),
            failed: AtomicBool::new(false),
        }
    }

    /// Adds a piece of work. Returns it if there is no memory for its place.
    pub(super) fn give(&self, piece: Piece) -> Result<(), Piece> {
        let mut work = self.work.lock();
        if work.try_reserve(1).is_err() {
            return Err(piece);
        }
        work.push(piece);
        // Relaxed, under the lock: a hint.
        self.waiting.store(work.len(), Ordering::Relaxed);
        Ok(())
    }

    /// Takes a piece of work, if there is one.
    pub(super) fn steal(&self) -> Option<Piece> {
        // Relaxed: a worker that misses a piece polls again, or the worker that added the piece
        // processes it.
        if self.waiting.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let mut work = self.work.lock();
        let piece = work.pop();
        self.waiting.store(work.len(), Ordering::Relaxed);
        piece
    }

    /// Waits for work. `None`: no worker has any, and marking is over.
    pub(super) fn take(&self) -> Option<Piece> {
        // Relaxed counters: they only limit the polling. A piece is in the pool, or a worker that
        // is not idle has it. If a worker leaves early, other workers do the remaining work.
        self.idle.fetch_add(1, Ordering::Relaxed);
        let mut spins = 0u32;
        loop {
            if let Some(piece) = self.steal() {
                self.idle.fetch_sub(1, Ordering::Relaxed);
                return Some(piece);
            }
            if self.idle.load(Ordering::Relaxed) >= self.joined.load(Ordering::Relaxed)
                || self.failed.load(Ordering::Relaxed)
            {
                return None;
            }
            spins += 1;
            if spins.is_multiple_of(64) { yield_now() } else { spin_loop() }
        }
    }

    /// Whether another worker waits for work that is not in the pool.
    #[inline(always)]
    pub(super) fn wants_work(&self) -> bool {
        // Relaxed, both: hints.
        let idle = self.idle.load(Ordering::Relaxed);
        idle > 0 && self.waiting.load(Ordering::Relaxed) < idle
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

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
}
