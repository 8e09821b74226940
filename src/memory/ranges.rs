//! The list of the ranges of all heaps of the process: see
//! [ADR 10](../../docs/adr/0010-one-list-of-ranges.md). Only cold paths read it.

use crate::base::steps;
use crate::base::sync::StaticRwLock;

/// The range of one heap, or one of its segments.
#[derive(Clone, Copy, Debug)]
pub(super) struct HeapRange {
    pub(super) base: usize,
    pub(super) length: usize,
    /// The heap word, exposed. 0: none yet.
    pub(super) word: usize,
    /// Whether this is the one range of a heap, and no segment.
    pub(super) is_heap: bool,
}

impl HeapRange {
    /// Whether `length` bytes from `base` on overlap one of the ranges.
    pub(super) fn overlaps(ranges: &[Self], base: usize, length: usize) -> bool {
        // The ranges are disjoint, so only the last one that begins before the end can reach them.
        let before = ranges.partition_point(|range| range.base < base + length);
        ranges[..before].last().is_some_and(|range| range.base + range.length > base)
    }

    /// Adds the range to the list, which has room.
    pub(super) fn insert_into(self, ranges: &mut Vec<Self>) {
        let at = ranges.partition_point(|other| other.base < self.base);
        ranges.insert(at, self);
    }
}

/// The ranges, sorted by base.
pub(super) static RANGES: StaticRwLock<Vec<HeapRange>> = StaticRwLock::new(Vec::new());

/// Whether an address lies in any heap's range.
#[cold]
pub(crate) fn is_in_any_heap(addr: usize) -> bool {
    word_at(addr).is_some()
}

/// The heap word of the heap whose range contains an address.
#[cold]
pub(super) fn word_at(addr: usize) -> Option<usize> {
    let ranges = RANGES.read();
    steps::took(1 + ranges.len().checked_ilog2().unwrap_or(0) as usize);
    // The ranges are disjoint. Only the last range that begins at or before the address can contain
    // it.
    let before = ranges.partition_point(|range| range.base <= addr);
    let range = ranges[..before].last()?;
    (addr - range.base < range.length).then_some(range.word)
}

/// In the child of a fork: ends the reads of threads that do not exist here.
///
/// # Safety
///
/// The caller is the only thread of the process.
pub(crate) unsafe fn forget_readers() {
    // SAFETY: as the caller says, and this thread does not read the list.
    unsafe { forget_readers_of(&RANGES) }
}

/// # Safety
///
/// No thread that exists reads under the lock.
unsafe fn forget_readers_of<T>(lock: &StaticRwLock<T>) {
    while lock.try_write().is_none() && !lock.is_locked_exclusive() {
        // SAFETY: as the caller says. The lock is locked, and not for writing.
        unsafe { lock.force_unlock_read() };
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn readers_that_did_not_survive_a_fork_are_forgotten() {
        let lock = StaticRwLock::new(1);
        (0..3).for_each(|_| std::mem::forget(lock.read()));
        assert!(lock.try_write().is_none());
        // SAFETY: rule *guarded*: no thread reads.
        unsafe { forget_readers_of(&lock) };
        std::mem::forget(lock.try_write().expect("no reader"));
        // SAFETY: as above. A writer may have left half a change: the lock stays closed.
        unsafe { forget_readers_of(&lock) };
        assert!(lock.try_read().is_none());
    }
}
