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
use crate::object::tracer::LongSlice;

/// A part of the work of marking.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Piece {
    /// The granules of marked objects, which are to be traversed.
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
mod tests;
