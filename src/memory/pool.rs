//! Pages become free and are needed again, often soon afterwards, so a heap must decide how many of
//! them keep their memory.
//!
//! The pool has the free and the abandoned pages of a space. It returns the memory of free pages to
//! the system, but memory that was returned costs a page fault for each 4 KiB when it is used
//! again. Therefore some free pages stay resident, at most the greatest of these numbers:
//!
//! * [`RESIDENT_PAGES`];
//! * an eighth of the pages in use;
//! * `reused`, at most [`MOST_REUSED`]. Each page that is taken again after its memory was returned
//!   adds 1. So a program that repeatedly frees and allocates the same amount soon finds all of it
//!   resident ([ADR 27](../../docs/adr/0027-kept-runs.md)). A full collection subtracts the number
//!   of pages that stayed free and resident since the last one.
//!
//! The pool has two bits for each page that was ever accessible, one for pages in use and one for
//! free pages that are resident. A release never fails, because the pool needs memory for these
//! bits only when it makes pages accessible.

use std::fmt;
use std::ops::Range;

use crate::base::stress::Stress;
use crate::base::sync::{AtomicUsize, Ordering};
use crate::memory::address_map::Map;
use crate::memory::page::PageList;
use crate::memory::page_set::PageSet;
use crate::memory::range::ENOMEM;
#[cfg(all(debug_assertions, not(any(all(test, loom), standstill_loom))))]
use crate::memory::shape::PAGE_GRANULES;
use crate::memory::shape::{MAX_ALIGN, PAGE_SHIFT, PAGE_SIZE, Shape};
use crate::memory::size_class::CLASSES;
use crate::memory::sparse::Plan;
use crate::memory::table::PageTable;

/// The lists of abandoned pages: one for each class, and in a library that can sample one more for
/// the pages of samples.
const LISTS: usize = if cfg!(any(feature = "stacks", test)) { 2 * CLASSES } else { CLASSES };

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
pub(crate) struct PagePool {
    /// Pages in use, and those that the pool never hands out. All other pages below the high-water
    /// mark are free.
    pub(super) used: PageSet,
    /// How many pages of `used` the pool never hands out.
    outside: usize,
    /// No page from this one on was ever handed out.
    touched: usize,
    /// Free pages whose memory was not returned to the system.
    resident: PageSet,
    /// How many free pages stay resident because pages were used again.
    reused: usize,
    /// The least number of resident free pages since the last full collection.
    least: usize,
    /// Pages without an arena, which the holder of the lock owns: by class those of arenas that
    /// have ended, and behind these, by class, those of samples.
    pub(super) abandoned: [PageList; LISTS],
    /// How many pages were made accessible.
    pub(super) committed: usize,
    /// Bytes of these pages and of their entries in the tables.
    pub(super) committed_bytes: usize,
    pub(super) heap: HeapWord,
    pub(super) plan: Plan,
}

/// The word at the start of each page.
#[derive(Clone, Copy, Debug)]
pub(super) struct HeapWord(pub(super) *const ());

// SAFETY: rule *guarded*: an opaque value for this module, never dereferenced here.
unsafe impl Send for HeapWord {}

impl PagePool {
    pub(super) fn new() -> Self {
        Self {
            used: PageSet::default(),
            outside: 0,
            touched: 0,
            resident: PageSet::default(),
            reused: 0,
            least: 0,
            abandoned: [const { PageList::EMPTY }; LISTS],
            committed: 0,
            committed_bytes: 0,
            heap: HeapWord(std::ptr::null()),
            plan: Plan::NEW,
        }
    }

    /// Takes `pages` adjacent pages out of the pool, at the lowest address possible, and writes the
    /// page header.
    pub(super) fn take<A: Map>(
        &mut self,
        table: &PageTable<A>,
        pages: u32,
    ) -> Result<u32, SpaceError> {
        let count = pages as usize;
        let mut start = self.used.first_gap(count);
        if start + count > table.high_water() {
            start = A::extend(table, self, start, count)?;
        }
        let (end, mark) = (start + count, self.touched);
        self.touched = mark.max(end);
        self.used.insert(start..end);
        let resident = self.resident.remove(start..end);
        self.least = self.least.min(self.resident.len());
        // The memory of the pages that were in use before and are not resident was returned.
        let returned = end.min(mark).saturating_sub(start + resident);
        self.reused = MOST_REUSED.min(self.reused + returned);
        let start = start as u32;
        // SAFETY: rules *owner* and *mapped*: the page is accessible and unowned, and its start is
        // aligned for any type.
        unsafe { table.page_start(start).cast::<*const ()>().write(self.heap.0) };
        Ok(start)
    }

    pub(super) fn in_use(&self) -> usize {
        self.used.len() - self.outside
    }

    /// Excludes pages from the pool for as long as the space exists: no memory of the heap belongs
    /// to them.
    pub(super) fn exclude(&mut self, pages: Range<usize>) {
        if !pages.is_empty() {
            self.outside += pages.len();
            self.used.insert(pages);
        }
    }

    /// Makes the pages below `end` accessible, and possibly more, and makes room for their bits.
    pub(super) fn commit(&mut self, table: &PageTable<impl Map>, end: usize) -> Result<(), i32> {
        let (committed, bytes) = table.range.commit(self.committed, end)?;
        let room = self.used.reserve(committed).and_then(|()| self.resident.reserve(committed));
        room.map_err(|_| ENOMEM)?;
        (self.committed, self.committed_bytes) = (committed, bytes);
        Ok(())
    }

    /// Puts pages back, and returns memory beyond the resident pages to the system.
    pub(super) fn put(
        &mut self,
        table: &PageTable<impl Map>,
        page: u32,
        pages: u32,
        stress: Stress,
    ) {
        #[cfg(all(debug_assertions, not(any(all(test, loom), standstill_loom))))]
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
            info.prefixed.store(0, Ordering::Relaxed);
            info.arena.store(0, Ordering::Relaxed);
        }
        let freed = page as usize..(page + pages) as usize;
        let removed = self.used.remove(freed.clone());
        debug_assert_eq!(removed, freed.len(), "a free page is put back");
        let keep = self.keep(stress);
        if freed.len() > keep {
            discard(table, &freed);
        } else {
            self.resident.insert(freed);
        }
        self.shrink(table, keep);
    }

    /// How many free pages stay resident.
    fn keep(&self, stress: Stress) -> usize {
        let reused = self.reused.min(stress.shrink(MOST_REUSED));
        reused.max(stress.shrink(RESIDENT_PAGES)).max(self.in_use() / 8)
    }

    /// Returns free pages to the system, except for `reused` pages, and also the memory above the
    /// high-water mark, because a huge page may have brought it. Called when most memory of the
    /// pages in use has returned.
    pub(super) fn give_up_unused<A: Map>(&mut self, table: &PageTable<A>) {
        self.shrink(table, self.reused);
        A::discard_above(table, self.committed);
    }

    #[cfg(all(test, not(any(loom, shuttle))))]
    pub(super) fn free_resident(&self) -> usize {
        self.resident.len()
    }

    /// Called when a full collection has ended, because free pages that no thread has used since
    /// the last one may then go.
    pub(super) fn after_full(&mut self, table: &PageTable<impl Map>, stress: Stress) {
        self.reused = self.reused.saturating_sub(self.least);
        self.shrink(table, self.keep(stress));
        self.least = self.resident.len();
    }

    /// If more than `keep` free pages are resident, returns the highest ones to the system. Three
    /// quarters of `keep` stay, so that the next release need not return any.
    fn shrink(&mut self, table: &PageTable<impl Map>, keep: usize) {
        if self.resident.len() <= keep {
            return;
        }
        let least = keep - keep / 4;
        let mut run = 0..0;
        while self.resident.len() > least {
            let pages = self.resident.pop_last(self.resident.len() - least);
            if pages.end == run.start {
                run.start = pages.start;
            } else {
                discard(table, &run);
                run = pages;
            }
        }
        discard(table, &run);
    }
}

fn discard(table: &PageTable<impl Map>, pages: &Range<usize>) {
    table.discard(pages.start as u32, 0, pages.len() << PAGE_SHIFT);
}

/// The limit of a space, for its pages in use together with memory outside of it.
///
/// Objects get memory outside the space without asking, and threads report it late, so this memory
/// can exceed the limit. Pages cannot, because a page is taken only if the limit has room for it
/// then.
#[derive(Debug)]
pub(crate) struct Limit {
    /// `None`: no limit, so `check` and `is_tight` read no atomic.
    pages: Option<usize>,
    external: AtomicUsize,
}

impl Limit {
    /// `None`: no limit.
    pub(super) fn new(bytes: Option<usize>) -> Self {
        Self { pages: bytes.map(|bytes| bytes >> PAGE_SHIFT), external: AtomicUsize::new(0) }
    }

    /// In bytes. `usize::MAX`: no limit.
    pub(crate) fn bytes(&self) -> usize {
        self.pages.map_or(usize::MAX, |pages| pages << PAGE_SHIFT)
    }

    /// Records bytes outside the space that objects have got (positive) or given up (negative).
    pub(crate) fn count_external(&self, change: isize) {
        let change = |now: usize| Some(now.saturating_add_signed(change));
        // Relaxed: threads report late, so the limit is approximate in any case.
        self.external
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, change)
            .unwrap_or_default();
    }

    /// Bytes outside the space that objects have.
    pub(crate) fn external_bytes(&self) -> usize {
        self.external.load(Ordering::Relaxed)
    }

    /// The pages that count for the limit while `in_use` pages are in use.
    fn used(&self, in_use: usize) -> usize {
        in_use.saturating_add(self.external_bytes() >> PAGE_SHIFT)
    }

    /// An error, if the limit has no room for `more` pages besides those that `in_use` returns.
    pub(super) fn check(
        &self,
        in_use: impl FnOnce() -> usize,
        more: usize,
    ) -> Result<(), SpaceError> {
        let Some(pages) = self.pages else { return Ok(()) };
        let used = self.used(in_use());
        if used.saturating_add(more) <= pages {
            return Ok(());
        }
        let [asked, in_use] = [more, used].map(|pages| pages.saturating_mul(PAGE_SIZE));
        Err(SpaceError::Limit { asked, in_use, limit: self.bytes() })
    }

    /// Whether more than three quarters of the limit are used, or of `most` pages.
    pub(super) fn is_tight(&self, in_use: usize, most: usize) -> bool {
        let is_tight = |used: usize, most: usize| used > most - most / 4;
        is_tight(in_use, most) || self.pages.is_some_and(|pages| is_tight(self.used(in_use), pages))
    }
}

#[allow(unsafe_code)]
#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
