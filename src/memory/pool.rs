//! The pool of a space's pages: free runs, resident free pages, abandoned pages.
//!
//! The pool returns the memory of free pages to the system, except for some pages. Memory that was
//! returned costs a page fault for each 4 KiB when it is used again. The number of free pages that
//! stay resident is the greatest of these:
//!
//! * [`RESIDENT_PAGES`];
//! * an eighth of the pages in use;
//! * `reused`, at most [`MOST_REUSED`]. A page whose memory was returned and that a thread takes
//!   again adds 1. So a program that frees and allocates the same amount again and again soon
//!   finds all of it resident ([ADR 27](../../docs/adr/0027-kept-runs.md)). A full collection
//!   subtracts the number of pages that stayed free and resident since the last one.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use crate::base::stress::Stress;
use crate::base::sync::Ordering;
use crate::memory::page_list::PageList;
#[cfg(all(debug_assertions, not(all(test, loom))))]
use crate::memory::shape::PAGE_GRANULES;
use crate::memory::shape::{MAX_ALIGN, PAGE_SHIFT, Shape};
use crate::memory::size_class::CLASSES;
use crate::memory::table::PageTable;

/// The number of free pages that stay resident even in a small heap: 1 MiB.
pub(super) const RESIDENT_PAGES: usize = 16;
/// The largest number of free pages that stay resident because pages were used again: 32 MiB.
pub(super) const MOST_REUSED: usize = (32 << 20) >> PAGE_SHIFT;

/// The pool cannot provide a page or a run of pages. Nothing has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SpaceError {
    /// The configured limit would be exceeded.
    Limit {
        /// Bytes requested, in whole pages.
        asked: usize,
        /// Bytes in use.
        in_use: usize,
        /// The limit.
        limit: usize,
    },
    /// The reserved range has no room, or no hole that is large enough.
    Full {
        /// Bytes requested, in whole pages.
        asked: usize,
        /// Bytes in use.
        in_use: usize,
        /// Bytes reserved.
        reserved: usize,
    },
    /// The system refuses the memory.
    Refused {
        /// Bytes requested, in whole pages.
        asked: usize,
        /// The system's error code.
        code: i32,
    },
    /// An alignment that is no power of two, or above [`MAX_ALIGN`].
    Alignment {
        /// The requested alignment.
        align: usize,
    },
}

impl fmt::Display for SpaceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Limit { asked, in_use, limit } => {
                write!(
                    f,
                    "the heap limit is reached: {asked} bytes asked, {in_use} of {limit} in use"
                )
            }
            Self::Full { asked, in_use, reserved } => {
                write!(
                    f,
                    "the address range is full: {asked} bytes asked, {in_use} of {reserved} in use"
                )
            }
            Self::Refused { asked, code } => {
                let cause = std::io::Error::from_raw_os_error(code);
                write!(f, "the system refuses {asked} bytes: {cause}")
            }
            Self::Alignment { align } => {
                write!(f, "alignment {align} is not a power of two up to {MAX_ALIGN}")
            }
        }
    }
}

impl std::error::Error for SpaceError {}

/// The state of the pool, behind the space's lock.
#[derive(Debug)]
pub(super) struct PagePool {
    /// Free runs below the high-water mark: first page and length. The runs are disjoint, and no
    /// two are adjacent.
    pub(super) free: BTreeMap<u32, u32>,
    /// Free pages whose memory was not returned to the system.
    resident: BTreeSet<u32>,
    /// How many free pages stay resident because pages were used again.
    reused: usize,
    /// The least number of resident free pages since the last full collection.
    least: usize,
    /// Pages of arenas that have ended, by class. The holder of the lock owns them.
    pub(super) abandoned: [PageList; CLASSES],
    /// How many pages were made accessible.
    committed: usize,
    /// Bytes of these pages and of their entries in the tables.
    pub(super) committed_bytes: usize,
    pub(super) in_use: usize,
    pub(super) heap: HeapWord,
}

/// A snapshot of the pool, for the verifier.
#[derive(Debug)]
pub(crate) struct PoolView {
    /// Free runs: first page and length, ascending.
    pub(crate) holes: Vec<(u32, u32)>,
    /// Abandoned pages, with their classes.
    pub(crate) abandoned: Vec<(u8, u32)>,
    /// How many pages are in use.
    pub(crate) in_use: usize,
    /// The word that the header of each page in use holds.
    pub(crate) heap: *const (),
}

/// The word at the start of each page.
#[derive(Clone, Copy, Debug)]
pub(super) struct HeapWord(pub(super) *const ());

// SAFETY: rule *guarded*: an opaque value for this module, never dereferenced here.
unsafe impl Send for HeapWord {}

impl PagePool {
    /// A pool without pages.
    pub(super) fn new() -> Self {
        Self {
            free: BTreeMap::new(),
            resident: BTreeSet::new(),
            reused: 0,
            least: 0,
            abandoned: [const { PageList::EMPTY }; CLASSES],
            committed: 0,
            committed_bytes: 0,
            in_use: 0,
            heap: HeapWord(std::ptr::null()),
        }
    }

    /// Takes `pages` adjacent pages out of the pool, at the lowest address possible, and writes the
    /// page header.
    pub(super) fn take(
        &mut self,
        table: &PageTable,
        limit: usize,
        pages: u32,
    ) -> Result<u32, SpaceError> {
        let (count, asked) = (pages as usize, (pages as usize) << PAGE_SHIFT);
        if self.in_use + count > limit {
            let (in_use, limit) = (self.in_use << PAGE_SHIFT, limit << PAGE_SHIFT);
            return Err(SpaceError::Limit { asked, in_use, limit });
        }
        let hole =
            self.free.iter().find(|&(_, &len)| len >= pages).map(|(&start, &len)| (start, len));
        // How many of the pages were in use before.
        let mut used_before = pages as usize;
        let start = match hole {
            Some((start, len)) => {
                self.free.remove(&start);
                if len > pages {
                    self.free.insert(start + pages, len - pages);
                }
                start
            }
            None => {
                let mark = table.high_water();
                let last = self.free.last_key_value().map(|(&start, &len)| (start, len));
                // A free run that reaches the high-water mark is the beginning of the new run.
                let joined = last.filter(|&(start, len)| (start + len) as usize == mark);
                let start = joined.map_or(mark as u32, |(start, _)| start);
                let end = start as usize + count;
                if end > table.length >> PAGE_SHIFT {
                    let in_use = self.in_use << PAGE_SHIFT;
                    return Err(SpaceError::Full { asked, in_use, reserved: table.length });
                }
                if end > self.committed {
                    let (committed, bytes) = table
                        .range
                        .commit(self.committed, end)
                        .map_err(|code| SpaceError::Refused { asked, code })?;
                    self.committed = committed;
                    self.committed_bytes = bytes;
                }
                if joined.is_some() {
                    self.free.remove(&start);
                }
                // Release: see `PageTable::high_water`.
                table.high_water.store(end, Ordering::Release);
                used_before = mark - start as usize;
                start
            }
        };
        if !self.resident.is_empty() {
            let kept: Vec<u32> = self.resident.range(start..start + pages).copied().collect();
            used_before -= kept.len();
            for page in kept {
                self.resident.remove(&page);
            }
            self.least = self.least.min(self.resident.len());
        }
        // The memory of the other pages was returned.
        self.reused = MOST_REUSED.min(self.reused + used_before);
        self.in_use += count;
        // SAFETY: rules *owner* and *mapped*: the page is accessible and unowned, and its start is
        // aligned for any type.
        unsafe { table.page_start(start).cast::<*const ()>().write(self.heap.0) };
        Ok(start)
    }

    /// Puts pages back, joins them with adjacent free runs, and returns memory beyond the resident
    /// pages to the system.
    pub(super) fn put(&mut self, table: &PageTable, page: u32, pages: u32, stress: Stress) {
        #[cfg(all(debug_assertions, not(all(test, loom))))]
        {
            let first = page as usize * PAGE_GRANULES;
            let states = &table.states()[first..first + PAGE_GRANULES];
            let clean = states.iter().all(|state| state.load(Ordering::Relaxed) == 0);
            debug_assert!(clean, "a page is released with an object's state on it");
            let info = table.page(page as usize);
            debug_assert!(!info.has_remote(), "a page is released with cells on its stack");
        }
        for free in page..page + pages {
            // SAFETY: rule *mapped*: the pages were handed out before.
            let info = unsafe { table.info(free) };
            info.shape.store(Shape::FREE.to_bits(), Ordering::Relaxed);
            info.young.store(0, Ordering::Relaxed);
            info.set_heir(0);
            info.arena.store(0, Ordering::Relaxed);
        }
        self.in_use -= pages as usize;

        let (mut start, mut len) = (page, pages);
        if let Some((&before, &room)) = self.free.range(..page).next_back()
            && before + room == page
        {
            (start, len) = (before, room + len);
        }
        if let Some(room) = self.free.remove(&(page + pages)) {
            len += room;
        }
        self.free.insert(start, len);

        let keep = self.keep(stress);
        if pages as usize > keep {
            table.range.discard(page as usize, pages as usize);
        } else {
            self.resident.extend(page..page + pages);
        }
        self.shrink(table, keep);
    }

    /// How many free pages stay resident.
    fn keep(&self, stress: Stress) -> usize {
        let reused = self.reused.min(stress.shrink(MOST_REUSED));
        reused.max(stress.shrink(RESIDENT_PAGES)).max(self.in_use / 8)
    }

    /// A full collection has ended: pages that no thread has used since the last one may go.
    pub(super) fn after_full(&mut self, table: &PageTable, stress: Stress) {
        self.reused = self.reused.saturating_sub(self.least);
        self.shrink(table, self.keep(stress));
        self.least = self.resident.len();
    }

    /// Returns resident free pages to the system, highest address first, until `keep` are left. It
    /// returns a few more than needed, so that the next release does not have to.
    fn shrink(&mut self, table: &PageTable, keep: usize) {
        if self.resident.len() <= keep {
            return;
        }
        let mut run = 0..0;
        while self.resident.len() > keep - keep / 4 {
            let Some(page) = self.resident.pop_last() else { break };
            let page = page as usize;
            if page + 1 == run.start {
                run.start = page;
            } else {
                table.range.discard(run.start, run.len());
                run = page..page + 1;
            }
        }
        table.range.discard(run.start, run.len());
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::base::sync::AtomicUsize;
    use crate::memory::range::Range;

    fn none() -> Stress {
        Stress::none()
    }

    fn table() -> PageTable {
        let range = Range::reserve(256 << 20).expect("a range");
        let (base, length) = (range.base.as_ptr().addr(), range.length);
        PageTable { base, length, range, high_water: AtomicUsize::new(0) }
    }

    /// Takes runs of some pages, and then puts them back. Returns how many pages were returned to
    /// the system before and are used again, and how many are resident when all are free.
    fn cycle(pool: &mut PagePool, table: &PageTable, runs: u32, pages: u32) -> (usize, usize) {
        let resident = pool.resident.len();
        let heads: Vec<_> =
            (0..runs).map(|_| pool.take(table, usize::MAX, pages).expect("pages")).collect();
        let faults = (runs * pages) as usize - (resident - pool.resident.len());
        heads.into_iter().for_each(|head| pool.put(table, head, pages, none()));
        (faults, pool.resident.len())
    }

    #[test]
    fn runs_that_are_used_again_stay_resident_until_a_full_collection_finds_them_idle() {
        let (table, mut pool) = (table(), PagePool::new());
        let (faults, resident) = cycle(&mut pool, &table, 32, 3);
        assert!(faults == 96 && resident <= RESIDENT_PAGES, "used once: {resident} resident");
        for _ in 0..3 {
            cycle(&mut pool, &table, 32, 3);
        }
        for _ in 0..3 {
            assert_eq!(cycle(&mut pool, &table, 32, 3), (0, 96));
        }
        // All were used since the last collection, and then 36 of them.
        pool.after_full(&table, none());
        assert_eq!(cycle(&mut pool, &table, 12, 3), (0, 96));
        pool.after_full(&table, none());
        let resident = pool.resident.len();
        assert!((36..=60).contains(&resident), "{resident} resident");
        assert_eq!(cycle(&mut pool, &table, 12, 3), (0, resident));
        for _ in 0..4 {
            pool.after_full(&table, none());
        }
        assert!(pool.resident.len() <= RESIDENT_PAGES);
        assert_eq!(pool.reused, 0);
    }

    #[test]
    fn at_most_32_mib_stay_resident_because_they_are_used_again() {
        let (table, mut pool) = (table(), PagePool::new());
        for pages in [1, 1, 4, 1, 32, 512, 512, 1024, 1024] {
            let (_, resident) = cycle(&mut pool, &table, 1024 / pages, pages);
            assert!(resident <= MOST_REUSED, "{resident} resident");
        }
        assert_eq!(pool.reused, MOST_REUSED);
        // Beside that, an eighth of the pages in use.
        let head = pool.take(&table, usize::MAX, 3000).expect("pages");
        assert!(cycle(&mut pool, &table, 1, 512).1 <= MOST_REUSED);
        pool.put(&table, head, 3000, none());
        assert!(pool.resident.len() <= MOST_REUSED);
    }

    #[test]
    fn memory_that_is_used_for_the_first_time_is_not_used_again() {
        let (table, mut pool) = (table(), PagePool::new());
        let first = pool.take(&table, usize::MAX, 100).expect("pages");
        let second = pool.take(&table, usize::MAX, 100).expect("pages");
        pool.put(&table, second, 100, none());
        assert_eq!((pool.reused, pool.resident.len()), (0, 0));
        // It begins with the run that was returned.
        assert_eq!(pool.take(&table, usize::MAX, 150), Ok(second));
        assert_eq!(pool.reused, 100);
        pool.put(&table, first, 100, none());
        assert_eq!(pool.resident.len(), 100);
        // A resident page does not count.
        assert_eq!(pool.take(&table, usize::MAX, 100), Ok(first));
        assert_eq!(pool.reused, 100);
    }

    #[test]
    fn with_small_constants_almost_no_free_page_is_resident() {
        let (table, mut pool) = (table(), PagePool::new());
        for _ in 0..5 {
            let head = pool.take(&table, usize::MAX, 7).expect("pages");
            pool.put(&table, head, 7, Stress::none().small_constants(true));
            assert_eq!(pool.resident.len(), 0);
        }
    }
}
