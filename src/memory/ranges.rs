//! The list of the ranges of all heaps of the process: see
//! [ADR 10](../../docs/adr/0010-one-list-of-ranges.md). Only cold paths read it.

#![forbid(unsafe_code)]

use crate::base::settings_lock::SettingsHold;
use crate::base::steps;
use crate::base::sync::StaticMutex;

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

/// The ranges, sorted by base. Its own lock is one that models do not know.
static RANGES: StaticMutex<Vec<HeapRange>> = StaticMutex::new(Vec::new());

/// Calls `f` with the ranges. `f` must not call this function.
pub(super) fn with<R>(f: impl FnOnce(&mut Vec<HeapRange>) -> R) -> R {
    let _held = SettingsHold::new();
    f(&mut RANGES.lock())
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
