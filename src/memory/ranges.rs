//! The list of the ranges of all heaps of the process: see
//! [ADR 10](../../docs/adr/0010-one-list-of-ranges.md). Only cold paths read it.
//!
//! Threads take its lock without being attached, so a fork holds it. The lock is of the process:
//! a thread that forks may still make or end another heap. So it finds its own guard in [`KEPT`].

#![forbid(unsafe_code)]

use std::cell::RefCell;
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::base::steps;

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

type Guard = MutexGuard<'static, Vec<HeapRange>>;

/// The ranges, sorted by base. A lock of std, because the child of a fork must be able to release
/// it.
static RANGES: Mutex<Vec<HeapRange>> = Mutex::new(Vec::new());

thread_local! {
    /// The list while a fork of this thread holds it. Without a destructor, so that a thread can
    /// fork until its end.
    static KEPT: RefCell<ManuallyDrop<Option<Guard>>> =
        const { RefCell::new(ManuallyDrop::new(None)) };
}

fn locked() -> Guard {
    RANGES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Calls `f` with the ranges. `f` must not call this function.
pub(super) fn with<R>(f: impl FnOnce(&mut Vec<HeapRange>) -> R) -> R {
    KEPT.with_borrow_mut(|kept| match &mut **kept {
        Some(ranges) => f(ranges),
        None => f(&mut locked()),
    })
}

/// A fork of this thread holds the lock of the list while this lives. A thread is inside one fork
/// at a time.
#[derive(Debug)]
pub(crate) struct RangesHold(PhantomData<Guard>);

impl RangesHold {
    pub(crate) fn new() -> Self {
        // All threads of a model are one of the system, which must not wait for itself.
        #[cfg(not(all(test, any(loom, shuttle))))]
        KEPT.with_borrow_mut(|kept| {
            kept.get_or_insert_with(locked);
        });
        Self(PhantomData)
    }
}

impl Drop for RangesHold {
    fn drop(&mut self) {
        drop(KEPT.with_borrow_mut(|kept| kept.take()));
    }
}

/// Whether an address lies in any heap's range.
#[cold]
pub(crate) fn is_in_any_heap(addr: usize) -> bool {
    word_at(addr).is_some()
}

/// The heap word of the heap whose range contains an address.
#[cold]
pub(super) fn word_at(addr: usize) -> Option<usize> {
    with(|ranges| {
        steps::took(1 + ranges.len().checked_ilog2().unwrap_or(0) as usize);
        // The ranges are disjoint. Only the last range that begins at or before the address can
        // contain it.
        let before = ranges.partition_point(|range| range.base <= addr);
        let range = ranges[..before].last()?;
        (addr - range.base < range.length).then_some(range.word)
    })
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_holds_the_list_for_a_fork_reads_it_and_others_wait() {
        let hold = RangesHold::new();
        assert!(!is_in_any_heap(0));
        assert!(RANGES.try_lock().is_err());
        drop(hold);
        assert!(KEPT.with_borrow(|kept| kept.is_none()));
        assert!(!is_in_any_heap(0));
    }
}
