//! The work that marking workers share.
//!
//! The queue of chunks starts with the roots. A worker that finds another worker idle gives half of
//! its stack away. A worker may join at any time or never, so no worker waits for a thread that the
//! system starts late.
//!
//! The queue is a vector under a lock: a chunk has thousands of objects, and the growth of a
//! lock-free queue could not be refused. A long list has one object at a time to traverse, so one
//! worker marks it.

#![forbid(unsafe_code)]

use crossbeam_utils::CachePadded;

use crate::base::fallible;
use crate::base::steps;
use crate::base::sync::{AtomicBool, AtomicUsize, Mutex, Ordering, spin_loop, yield_now};

/// Roots in one chunk of shared work.
pub(crate) const CHUNK: usize = 2048;

/// The work that the workers share.
pub(crate) struct Pool {
    pub(super) chunks: Mutex<Vec<Vec<u32>>>,
    /// The number of chunks: a hint for workers that poll.
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
            chunks: Mutex::new(Vec::new()),
            waiting: CachePadded::new(AtomicUsize::new(0)),
            joined: CachePadded::new(AtomicUsize::new(0)),
            idle: CachePadded::new(AtomicUsize::new(0)),
            failed: AtomicBool::new(false),
        }
    }

    /// Adds a chunk of work. Returns the chunk if there is no memory for its place.
    pub(super) fn give(&self, chunk: Vec<u32>) -> Result<(), Vec<u32>> {
        let mut chunks = self.chunks.lock();
        if chunks.try_reserve(1).is_err() {
            return Err(chunk);
        }
        chunks.push(chunk);
        // Relaxed, under the lock: a hint.
        self.waiting.store(chunks.len(), Ordering::Relaxed);
        Ok(())
    }

    /// Takes a chunk, if there is one.
    pub(super) fn steal(&self) -> Option<Vec<u32>> {
        // Relaxed: a worker that misses a chunk polls again, or the worker that added the chunk
        // processes it.
        if self.waiting.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let mut chunks = self.chunks.lock();
        let chunk = chunks.pop();
        self.waiting.store(chunks.len(), Ordering::Relaxed);
        chunk
    }

    /// Waits for work. `None`: no worker has any, and marking is over.
    pub(super) fn take(&self) -> Option<Vec<u32>> {
        // Relaxed counters: they only limit the polling. A chunk is in the queue, or a worker that
        // is not idle has it. If a worker leaves early, other workers do the remaining work.
        self.idle.fetch_add(1, Ordering::Relaxed);
        let mut spins = 0u32;
        loop {
            if let Some(chunk) = self.steal() {
                self.idle.fetch_sub(1, Ordering::Relaxed);
                return Some(chunk);
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
}

/// Gives the older half of a stack away, at most `most` objects. Older objects are nearer to the
/// roots, so their part of the graph is likely larger. The newest objects move to the free places.
/// All other objects stay in place, which limits the copying.
#[cold]
#[inline(never)]
pub(crate) fn give_oldest(stack: &mut Vec<u32>, pool: &Pool, most: usize) {
    // Relaxed, both: hints. The waiting chunks are enough for the idle workers.
    if pool.waiting.load(Ordering::Relaxed) >= pool.idle.load(Ordering::Relaxed) {
        return;
    }
    let give = stack.len().div_ceil(2).min(most);
    // Without memory for the chunk, this worker keeps the work.
    if give > 0
        && let Ok(chunk) = fallible::collect(stack[..give].iter().copied())
        && pool.give(chunk).is_ok()
    {
        let rest = stack.len() - give;
        let newest = rest.max(give)..stack.len();
        steps::took(give + newest.len());
        stack.copy_within(newest, 0);
        stack.truncate(rest);
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
            pool.give(vec![chunk]).expect("memory");
            assert_eq!(waiting(), chunk as usize);
        }
        assert_eq!(pool.take(), Some(vec![2]));
        assert_eq!((idle(), waiting()), (0, 1), "who has work is not idle");
        assert_eq!(pool.steal(), Some(vec![1]));
        assert_eq!((pool.steal(), waiting()), (None, 0));
        // The other worker gives its work away while this worker waits, and then also has none.
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while idle() == 0 {
                    yield_now();
                }
                pool.give(vec![3]).expect("memory");
                // The chunk is taken before the giver is idle.
                while waiting() > 0 {
                    yield_now();
                }
                assert_eq!(pool.take(), None);
            });
            assert_eq!(pool.take(), Some(vec![3]));
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
    fn work_is_given_away_only_to_who_waits_for_some() {
        let given = |idle: usize, waiting: usize, len: usize, most: usize| {
            let pool = Pool::new();
            pool.idle.store(idle, Ordering::Relaxed);
            for _ in 0..waiting {
                pool.give(vec![]).expect("memory");
            }
            let mut stack: Vec<u32> = (0..len as u32).collect();
            give_oldest(&mut stack, &pool, most);
            let chunk = pool.chunks.lock().split_off(waiting).pop().unwrap_or_default();
            assert_eq!(chunk.len() + stack.len(), len);
            assert!(chunk.iter().copied().eq(0..chunk.len() as u32), "the oldest");
            chunk.len()
        };
        assert_eq!(given(1, 0, 9, 100), 5);
        assert_eq!(given(1, 0, 9, 3), 3);
        assert_eq!(given(1, 1, 9, 100), 0, "there is a chunk for the one who waits");
        assert_eq!(given(2, 1, 9, 100), 5);
        assert_eq!(given(1, 0, 0, 100), 0);
        let pool = Pool::new();
        pool.idle.store(1, Ordering::Relaxed);
        give_oldest(&mut Vec::new(), &pool, 100);
        assert!(pool.chunks.lock().is_empty(), "nothing is no chunk");
    }

    /// A worker with all objects on its stack, and another that takes each chunk at once.
    #[test]
    fn work_that_is_given_away_costs_what_is_given_however_much_is_left() {
        for n in [0, 1, 2, CHUNK, 2 * CHUNK, 2 * CHUNK + 1, 100 * CHUNK + 7] {
            let pool = Pool::new();
            pool.joined.store(2, Ordering::Relaxed);
            pool.idle.store(1, Ordering::Relaxed);
            let mut stack: Vec<u32> = (0..n as u32).collect();
            let mut given = Vec::new();
            let ((), steps) = steps::during(|| {
                while !stack.is_empty() {
                    give_oldest(&mut stack, &pool, CHUNK);
                    give_oldest(&mut stack, &pool, CHUNK);
                    let chunk = pool.steal().expect("a chunk");
                    assert!(pool.steal().is_none(), "one is enough for one who is idle");
                    given.extend(chunk);
                }
            });
            assert!(steps <= 2 * n, "{steps} steps to give {n} away");
            assert_eq!(given.first().copied(), (n > 0).then_some(0), "the oldest first");
            given.sort_unstable();
            assert!(given.into_iter().eq(0..n as u32), "each once");
        }
    }
}
