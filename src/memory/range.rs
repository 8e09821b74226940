//! A heap must grow although its tables are arrays that cannot move. So it reserves one mapping for
//! its largest size, which is made accessible in chunks.
//!
//! The range contains the pages, unless they lie elsewhere, and behind them the tables that belong
//! to the pages. So a table's entry has a fixed distance from the start of the range, however far
//! the heap grows. The process has one list of the ranges of all its heaps.

use std::fmt;

#[cfg(not(any(all(test, loom), standstill_loom)))]
pub(super) use mapped::Range;
#[cfg(any(all(test, loom), standstill_loom))]
pub(super) use modelled::Range;

use crate::base::settings_lock::SettingsHold;
use crate::base::steps;
use crate::base::sync::StaticMutex;
use crate::base::system;

pub(super) const ENOMEM: i32 = system::NO_MEMORY;

/// The system refused the address range, even at its smallest size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ReserveError {
    /// Bytes requested in the last attempt.
    pub(crate) asked: usize,
    pub(crate) code: i32,
}

impl fmt::Display for ReserveError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot reserve {} bytes of address space: ", self.asked)?;
        match self.code {
            // Not the system's text, because it would take memory.
            ENOMEM => f.write_str("no memory"),
            code => std::io::Error::from_raw_os_error(code).fmt(f),
        }
    }
}

impl std::error::Error for ReserveError {}

/// The range of one heap, or adopted memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct HeapRange {
    pub(super) base: usize,
    pub(super) length: usize,
    /// The heap word, exposed, or 0 if the heap has none yet.
    pub(super) word: usize,
    /// Whether this is the one range of a heap, and not adopted memory.
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

/// The ranges of all heaps of the process, sorted by base: see [ADR
/// 10](../../docs/adr/0010-one-list-of-ranges.md). It has a lock that models do not know, because
/// only cold paths read it.
static RANGES: StaticMutex<Vec<HeapRange>> = StaticMutex::new(Vec::new());

/// Calls `f` with the ranges. `f` must not call this function.
pub(super) fn with_ranges<R>(f: impl FnOnce(&mut Vec<HeapRange>) -> R) -> R {
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
    with_ranges(|ranges| {
        steps::took(1 + ranges.len().checked_ilog2().unwrap_or(0) as usize);
        // Only the last range that begins at or before the address can contain it, because the
        // ranges are disjoint.
        let before = ranges.partition_point(|range| range.base <= addr);
        let range = ranges[..before].last()?;
        (addr - range.base < range.length).then_some(range.word)
    })
}

/// The real range: one mapping without access, made accessible in chunks.
#[cfg(not(any(all(test, loom), standstill_loom)))]
mod mapped {
    use std::ptr::NonNull;

    use super::ReserveError;
    use std::sync::atomic::AtomicU64;

    use crate::base::sync::{AtomicU8, UnsafeCell};
    use crate::base::system;
    use crate::base::system::page_size;
    use crate::memory::page::{FreeBits, PageInfo};
    use crate::memory::shape::{GRANULE, PAGE_GRANULES, PAGE_SHIFT, PAGE_SIZE};

    /// The range grows by this much at a time, because a huge page can back a chunk of its size.
    const CHUNK_BYTES: usize = 2 << 20;
    /// The smallest range worth reserving, because a system that refuses it is out of address
    /// space.
    const SMALLEST_RESERVE: usize = 64 << 20;
    /// The largest range by default, even on a machine with more memory.
    const LARGEST_DEFAULT: usize = 64 << 30;
    /// By default the first heap reserves at most this fraction of the address space. A later heap
    /// reserves at most that part divided by the number of heaps, so that others find room.
    const ADDRESS_SPACE_PARTS: usize = 16;
    /// From this size on the range requests huge pages. They save 5 to 13 percent of the marking
    /// time once the heap is far larger than the reach of the second-level TLB (about 8 MiB). In a
    /// smaller heap the gain does not justify the memory that is lost when every hole is rounded up
    /// to 2 MiB.
    const HUGE_PAGES_THRESHOLD: usize = 32 << 20;

    /// The most pages of a range, because the collector's lists store granules as `u32`.
    const MAX_PAGES: usize = (1 << 32) / PAGE_GRANULES;

    pub(in crate::memory) struct Range {
        mapping: NonNull<u8>,
        mapped: usize,
        pub(in crate::memory) base: NonNull<u8>,
        pub(in crate::memory) length: usize,
        states: NonNull<AtomicU8>,
        counts: NonNull<AtomicU8>,
        bits: NonNull<UnsafeCell<FreeBits>>,
        infos: NonNull<PageInfo>,
        /// `length`, or 0 if the pages lie elsewhere.
        page_bytes: usize,
        pub(in crate::memory) directory: NonNull<u8>,
    }

    impl Range {
        /// Reserves the default size for a process with `heaps` other heaps. If the system would
        /// not give as much again, half of the size is left to the program, because the process is
        /// near a limit.
        pub(in crate::memory) fn reserve_some(heaps: usize) -> Result<Self, ReserveError> {
            let range = Self::reserve(Self::default_length(heaps))?;
            if range.length <= SMALLEST_RESERVE || system::would_reserve(range.mapped) {
                return Ok(range);
            }
            let half = range.length / 2;
            drop(range);
            Self::reserve(half.max(SMALLEST_RESERVE))
        }

        /// Bytes of pages of a heap by default.
        pub(in crate::memory) fn default_length(heaps: usize) -> usize {
            default_length(heaps, system::addresses(), total_memory())
        }

        /// Reserves `bytes` bytes, or fewer if the system refuses.
        pub(in crate::memory) fn reserve(bytes: usize) -> Result<Self, ReserveError> {
            Self::reserve_with(bytes, None)
        }

        /// Reserves tables for `bytes` bytes of pages that lie elsewhere, or for fewer if the
        /// system refuses. Behind the tables lies a directory, whose bytes `directory` returns for
        /// so many bytes of pages.
        pub(in crate::memory) fn reserve_tables(
            bytes: usize,
            directory: fn(usize) -> usize,
        ) -> Result<Self, ReserveError> {
            Self::reserve_with(bytes, Some(directory))
        }

        fn reserve_with(
            bytes: usize,
            directory: Option<fn(usize) -> usize>,
        ) -> Result<Self, ReserveError> {
            let pages = bytes.div_ceil(PAGE_SIZE).clamp(1, MAX_PAGES);
            let mut length = pages << PAGE_SHIFT;
            let floor = SMALLEST_RESERVE.min(length);
            loop {
                match Self::map(length, directory) {
                    Ok(range) => return Ok(range),
                    Err(_) if length / 2 >= floor => {
                        length = (length / 2).next_multiple_of(PAGE_SIZE)
                    }
                    Err(code) => return Err(ReserveError { asked: length, code }),
                }
            }
        }

        fn map(length: usize, directory: Option<fn(usize) -> usize>) -> Result<Self, i32> {
            // Each table starts on a chunk, so that opening a chunk never touches the neighbouring
            // table.
            let after = |start: usize, bytes: usize| (start + bytes).next_multiple_of(CHUNK_BYTES);
            let page_bytes = if directory.is_none() { length } else { 0 };
            let states = after(0, page_bytes);
            let counts = after(states, length / GRANULE);
            let bits = after(counts, length / GRANULE);
            let infos = after(bits, length / PAGE_SIZE * size_of::<FreeBits>());
            let behind = after(infos, length / PAGE_SIZE * size_of::<PageInfo>());
            let directory_bytes = directory.map_or(0, |bytes| bytes(length));
            let end = after(behind, directory_bytes);
            // One more chunk, because the base is aligned to a chunk within the mapping.
            let mapped = end + CHUNK_BYTES;
            let mapping = system::reserve(mapped)?;
            let base_offset = mapping.as_ptr().align_offset(CHUNK_BYTES);
            // SAFETY: rule *mapped*: all offsets are inside the mapping, which has one chunk to
            // spare.
            unsafe {
                let base = mapping.add(base_offset);
                Ok(Self {
                    mapping,
                    mapped,
                    base,
                    length,
                    states: base.add(states).cast(),
                    counts: base.add(counts).cast(),
                    bits: base.add(bits).cast(),
                    infos: base.add(infos).cast(),
                    page_bytes,
                    directory: base.add(behind),
                })
            }
        }

        /// Opens pages `from..` up to at least `to`, with their table entries. Returns how many
        /// pages are open now, and the bytes of these pages and entries. After a refusal a part may
        /// be open, which the next call opens again, while nothing else has changed.
        pub(in crate::memory) fn commit(
            &self,
            from: usize,
            to: usize,
        ) -> Result<(usize, usize), i32> {
            let to = to.next_multiple_of(CHUNK_BYTES / PAGE_SIZE).min(self.length / PAGE_SIZE);
            let per_page = |bytes: usize| (from * bytes, to * bytes);
            let mut total = 0;
            let granules = PAGE_SIZE / GRANULE;
            let parts = [
                (self.base, per_page(PAGE_SIZE)),
                (self.states.cast(), per_page(granules)),
                (self.counts.cast(), per_page(granules)),
                (self.bits.cast(), per_page(size_of::<FreeBits>())),
                (self.infos.cast(), per_page(size_of::<PageInfo>())),
            ];
            let unit = page_size();
            // Pages that lie elsewhere are skipped, because they are accessible already.
            for (start, (from, to)) in parts.into_iter().skip((self.page_bytes == 0).into()) {
                // Rounded outwards to the system's pages, because opening an open page again is
                // harmless.
                let (from, to) = (from / unit * unit, to.next_multiple_of(unit));
                // SAFETY: rule *mapped*: inside the mapping (each part ends before the next chunk).
                unsafe { system::commit(start.add(from), to - from) }?;
                total += to;
            }
            if (from * PAGE_SIZE) < HUGE_PAGES_THRESHOLD && to * PAGE_SIZE >= HUGE_PAGES_THRESHOLD {
                self.advise_huge(true);
            }
            Ok((to, total))
        }

        /// Requests huge pages for the whole range, or gives them up. A refusal only costs speed or
        /// memory.
        pub(in crate::memory) fn advise_huge(&self, request: bool) {
            let bytes = self.length / GRANULE;
            let parts = [
                (self.base, self.page_bytes),
                (self.states.cast(), bytes),
                (self.counts.cast(), bytes),
            ];
            for (start, bytes) in parts.into_iter().skip((self.page_bytes == 0).into()) {
                // SAFETY: rule *mapped*: inside the mapping.
                unsafe { system::advise_huge(start, bytes, request) };
            }
        }

        /// Gathers the memory of the first pages, and of their table entries, into huge pages
        /// again, after a clone of the process has broken them up: as much as takes less than a
        /// millisecond, from `at` on. Returns where to go on, or `None` at the end.
        pub(in crate::memory) fn restore_huge_pages(
            &self,
            pages: usize,
            at: usize,
        ) -> Option<usize> {
            /// The size of a huge page on most processors. Others round as they need.
            const UNIT: usize = 2 << 20;
            const AT_ONCE: usize = 2 * UNIT;
            let bytes = pages * PAGE_SIZE;
            let parts = [
                (self.base, bytes),
                (self.states.cast(), bytes / GRANULE),
                (self.counts.cast(), bytes / GRANULE),
            ];
            if self.page_bytes == 0 || bytes < HUGE_PAGES_THRESHOLD {
                return None;
            }
            let mut before = 0;
            for (start, bytes) in parts {
                let first = start.addr().get().next_multiple_of(UNIT) - start.addr().get();
                let bytes = bytes.saturating_sub(first) / UNIT * UNIT;
                if at < before + bytes {
                    let now = AT_ONCE.min(before + bytes - at);
                    // SAFETY: rule *mapped*: inside the mapping.
                    let can = unsafe { system::collapse(start.add(first + at - before), now) };
                    return can.then_some(at + now);
                }
                before += bytes;
            }
            None
        }

        /// Makes the directory accessible, which is zero.
        pub(in crate::memory) fn open_directory(&self, bytes: usize) -> Result<(), i32> {
            // SAFETY: rule *mapped*: inside the mapping.
            unsafe { system::commit(self.directory, bytes.next_multiple_of(page_size())) }
        }

        pub(in crate::memory) fn mapped_bytes(&self) -> usize {
            self.mapped
        }

        /// Returns memory without content to the system, which is that of free pages or of parts of
        /// a page. It reads as zero afterwards. A refusal only costs memory, because no code relies
        /// on the contents.
        pub(in crate::memory) fn discard(&self, start: NonNull<u8>, from: usize, bytes: usize) {
            // SAFETY: rules *mapped* and *owner*: inside the pages of the heap, on pages without
            // owners or of the caller.
            unsafe { system::discard(start.add(from), bytes) }
        }

        /// Returns the counting table of all pages below `pages`, which is zero, to the system.
        pub(in crate::memory) fn discard_counts(&self, pages: usize) {
            let bytes = (pages * PAGE_GRANULES).next_multiple_of(page_size());
            // SAFETY: rule *mapped*: each table ends before the next chunk. Its bytes are zero, and
            // stay so.
            unsafe { system::discard(self.counts.cast(), bytes) }
        }

        /// # Safety
        ///
        /// The page is open. The same holds for all methods below.
        #[inline(always)]
        pub(in crate::memory) unsafe fn info(&self, page: usize) -> &PageInfo {
            // SAFETY: rule *mapped*: open. Zeroed memory is a valid entry.
            unsafe { self.infos.add(page).as_ref() }
        }

        #[inline(always)]
        pub(in crate::memory) unsafe fn bits(&self, page: usize) -> &UnsafeCell<FreeBits> {
            // SAFETY: rule *mapped*: open. All bytes are valid.
            unsafe { self.bits.add(page).as_ref() }
        }

        /// The free bits of all pages, as words. Those of a page are accessible once it is open.
        pub(in crate::memory) fn bit_words(&self) -> NonNull<AtomicU64> {
            self.bits.cast()
        }

        #[inline(always)]
        pub(in crate::memory) unsafe fn state(&self, granule: usize) -> &AtomicU8 {
            // SAFETY: rule *mapped*: open. All bytes are valid.
            unsafe { self.states.add(granule).as_ref() }
        }

        #[inline(always)]
        pub(in crate::memory) unsafe fn states(&self, granules: usize) -> &[AtomicU8] {
            // SAFETY: rule *mapped*: open up to there. All bytes are valid.
            unsafe { std::slice::from_raw_parts(self.states.as_ptr(), granules) }
        }

        #[inline(always)]
        pub(in crate::memory) unsafe fn counts(&self, granules: usize) -> &[AtomicU8] {
            // SAFETY: rule *mapped*: open up to there. All bytes are valid.
            unsafe { std::slice::from_raw_parts(self.counts.as_ptr(), granules) }
        }
    }

    impl Drop for Range {
        fn drop(&mut self) {
            // SAFETY: rule *pinned*: the mapping belongs to the range, and no reference into the
            // space is left.
            let released = unsafe { system::release(self.mapping, self.mapped) };
            debug_assert!(released.is_ok());
        }
    }

    /// Bytes that a heap reserves by default if `heaps` other heaps exist. It is four times the
    /// machine's memory, but 64 GiB at most and 64 MiB at least. Above that least size it is also
    /// at most the heap's part of the `addresses` that a process has, so that other heaps and the
    /// program have room.
    ///
    /// The `k`th of the heaps that exist at a time was made when at least `k - 1` others existed.
    /// So the parts of `n` heaps sum up to at most a sixteenth of the addresses times the sum of
    /// `1/k` for `k` up to `n`. This is less than half of the addresses for a thousand heaps, and
    /// less than two thirds for ten thousand.
    pub(in crate::memory) fn default_length(
        heaps: usize,
        addresses: usize,
        memory: usize,
    ) -> usize {
        memory
            .saturating_mul(4)
            .min(LARGEST_DEFAULT)
            .min(addresses / ADDRESS_SPACE_PARTS / (heaps + 1))
            .max(SMALLEST_RESERVE)
    }

    /// Bytes of memory of this machine, or a guess if the system does not say it.
    fn total_memory() -> usize {
        system::total_memory().unwrap_or(LARGEST_DEFAULT / 4)
    }
}

/// The range under loom: a few pages, and tables of loom's own atomics, which no mapping can hold.
#[cfg(any(all(test, loom), standstill_loom))]
mod modelled {
    use std::alloc::{Layout, alloc_zeroed, dealloc};
    use std::ptr::NonNull;

    use super::ReserveError;
    use crate::base::sync::{AtomicU8, UnsafeCell};
    use crate::memory::page::{FreeBits, PageInfo};
    use crate::memory::shape::{PAGE_GRANULES, PAGE_SIZE};

    const MODEL_PAGES: usize = 6;

    pub(in crate::memory) struct Range {
        pub(in crate::memory) base: NonNull<u8>,
        pub(in crate::memory) length: usize,
        states: Vec<AtomicU8>,
        counts: Vec<AtomicU8>,
        bits: Vec<UnsafeCell<FreeBits>>,
        infos: Vec<PageInfo>,
    }

    impl Range {
        fn layout(length: usize) -> Layout {
            Layout::from_size_align(length, PAGE_SIZE).expect("a small power of two")
        }

        pub(in crate::memory) fn reserve_some(_: usize) -> Result<Self, ReserveError> {
            Self::reserve(MODEL_PAGES * PAGE_SIZE)
        }

        pub(in crate::memory) fn reserve(bytes: usize) -> Result<Self, ReserveError> {
            let pages = bytes.div_ceil(PAGE_SIZE).clamp(1, MODEL_PAGES);
            let length = pages * PAGE_SIZE;
            // SAFETY: rule *bounds*: the layout is not empty.
            let base = NonNull::new(unsafe { alloc_zeroed(Self::layout(length)) });
            let bytes = || (0..pages * PAGE_GRANULES).map(|_| AtomicU8::new(0)).collect();
            Ok(Self {
                base: base.ok_or(ReserveError { asked: length, code: 0 })?,
                length,
                states: bytes(),
                counts: bytes(),
                bits: (0..pages).map(|_| UnsafeCell::new([0; _])).collect(),
                infos: (0..pages).map(|_| PageInfo::new()).collect(),
            })
        }

        pub(in crate::memory) fn commit(
            &self,
            _from: usize,
            to: usize,
        ) -> Result<(usize, usize), i32> {
            Ok((to, to * PAGE_SIZE))
        }

        pub(in crate::memory) fn discard(&self, _: NonNull<u8>, _from: usize, _bytes: usize) {}

        pub(in crate::memory) fn discard_counts(&self, _pages: usize) {}

        pub(in crate::memory) fn advise_huge(&self, _request: bool) {}

        pub(in crate::memory) fn restore_huge_pages(&self, _: usize, _: usize) -> Option<usize> {
            None
        }

        pub(in crate::memory) unsafe fn info(&self, page: usize) -> &PageInfo {
            &self.infos[page]
        }

        pub(in crate::memory) unsafe fn bits(&self, page: usize) -> &UnsafeCell<FreeBits> {
            &self.bits[page]
        }

        pub(in crate::memory) unsafe fn state(&self, granule: usize) -> &AtomicU8 {
            &self.states[granule]
        }

        pub(in crate::memory) unsafe fn states(&self, granules: usize) -> &[AtomicU8] {
            &self.states[..granules]
        }

        pub(in crate::memory) unsafe fn counts(&self, granules: usize) -> &[AtomicU8] {
            &self.counts[..granules]
        }
    }

    impl Drop for Range {
        fn drop(&mut self) {
            // SAFETY: rule *pinned*: allocated with this layout.
            unsafe { dealloc(self.base.as_ptr(), Self::layout(self.length)) }
        }
    }
}
