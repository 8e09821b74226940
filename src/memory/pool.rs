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
//!
//! The pool has one bit for each page that was ever accessible: in use or free. Another bit says
//! whether a free page is resident. The pool needs memory for these bits only when it makes pages
//! accessible.

use std::fmt;
use std::ops::Range;

use crate::base::stress::Stress;
use crate::base::sync::Ordering;
use crate::memory::address_map::Map;
use crate::memory::page_list::PageList;
use crate::memory::page_set::PageSet;
use crate::memory::pieces::Plan;
use crate::memory::range::{ENOMEM, ReserveError};
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

/// Where the memory of a heap's pages comes from. Each address map has one such source.
pub(crate) trait PageSource: Map {
    /// Reserves address space for a heap with `bytes` bytes of pages. The pool has no pages.
    fn open(bytes: Option<usize>) -> Result<(PageTable<Self>, PagePool), ReserveError>;

    /// The pool has no gap of `count` pages below the high-water mark. Raises the mark, and returns
    /// the first page of a gap. `start` is where a gap begins that ends above the mark.
    fn extend(
        table: &PageTable<Self>,
        pool: &mut PagePool,
        start: usize,
        count: usize,
    ) -> Result<usize, SpaceError>;

    /// Returns memory above the high-water mark to the system, up to the page `committed`.
    fn discard_above(table: &PageTable<Self>, committed: usize);
}

/// The state of the pool, behind the space's lock.
#[derive(Debug)]
pub(crate) struct PagePool {
    /// Pages in use, and those that the pool never hands out. All other pages below the high-water
    /// mark are free.
    pub(super) used: PageSet,
    /// How many pages of `used` the pool never hands out.
    outside: usize,
    /// All pages from this one on were never handed out.
    touched: usize,
    /// Free pages whose memory was not returned to the system.
    resident: PageSet,
    /// How many free pages stay resident because pages were used again.
    reused: usize,
    /// The least number of resident free pages since the last full collection.
    least: usize,
    /// Pages of arenas that have ended, by class. The holder of the lock owns them.
    pub(super) abandoned: [PageList; CLASSES],
    /// How many pages were made accessible.
    pub(super) committed: usize,
    /// Bytes of these pages and of their entries in the tables.
    pub(super) committed_bytes: usize,
    /// Bytes of pages that lie in segments, and not in the range.
    segment_bytes: usize,
    pub(super) heap: HeapWord,
    pub(super) plan: Plan,
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
            used: PageSet::default(),
            outside: 0,
            touched: 0,
            resident: PageSet::default(),
            reused: 0,
            least: 0,
            abandoned: [const { PageList::EMPTY }; CLASSES],
            committed: 0,
            committed_bytes: 0,
            segment_bytes: 0,
            heap: HeapWord(std::ptr::null()),
            plan: Plan::NEW,
        }
    }

    /// Takes `pages` adjacent pages out of the pool, at the lowest address possible, and writes the
    /// page header.
    pub(super) fn take<A: PageSource>(
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

    /// How many pages of the pool are in use.
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

    /// A segment was mapped.
    pub(super) fn add_segment(&mut self, bytes: usize) {
        self.segment_bytes += bytes;
        self.committed_bytes += bytes;
    }

    /// Makes the pages below `end` accessible, and possibly more, and makes room for their bits.
    pub(super) fn commit(&mut self, table: &PageTable<impl Map>, end: usize) -> Result<(), i32> {
        let (committed, bytes) = table.range.commit(self.committed, end)?;
        let room = self.used.reserve(committed).and_then(|()| self.resident.reserve(committed));
        room.map_err(|_| ENOMEM)?;
        (self.committed, self.committed_bytes) = (committed, bytes + self.segment_bytes);
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

    /// Returns free pages to the system, except for `reused` pages. Returns the memory above the
    /// high-water mark, too: a huge page may have brought it. Called when most memory of the pages
    /// in use has returned.
    pub(super) fn give_up_unused<A: PageSource>(&mut self, table: &PageTable<A>) {
        self.shrink(table, self.reused);
        A::discard_above(table, self.committed);
    }

    /// Free pages that are resident.
    #[cfg(all(test, not(any(loom, shuttle))))]
    pub(super) fn free_resident(&self) -> usize {
        self.resident.len()
    }

    /// A full collection has ended: pages that no thread has used since the last one may go.
    pub(super) fn after_full(&mut self, table: &PageTable<impl Map>, stress: Stress) {
        self.reused = self.reused.saturating_sub(self.least);
        self.shrink(table, self.keep(stress));
        self.least = self.resident.len();
    }

    /// Returns resident free pages to the system, highest address first, until `keep` are left. It
    /// returns a few more than needed, so that the next release does not have to.
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

/// Returns the memory of free pages to the system.
fn discard(table: &PageTable<impl Map>, pages: &Range<usize>) {
    table.discard(pages.start as u32, 0, pages.len() << PAGE_SHIFT);
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::memory::range::Range;
    use crate::memory::reserved::Reserved;

    fn none() -> Stress {
        Stress::none()
    }

    fn table() -> PageTable<Reserved> {
        table_of(256 << 20)
    }

    fn table_of(bytes: usize) -> PageTable<Reserved> {
        Reserved::table(Range::reserve(bytes).expect("a range"))
    }

    /// Takes runs of some pages, and then puts them back. Returns how many pages were returned to
    /// the system before and are used again, and how many are resident when all are free.
    fn cycle(
        pool: &mut PagePool,
        table: &PageTable<Reserved>,
        runs: u32,
        pages: u32,
    ) -> (usize, usize) {
        let resident = pool.resident.len();
        let heads: Vec<_> = (0..runs).map(|_| pool.take(table, pages).expect("pages")).collect();
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
        let head = pool.take(&table, 3000).expect("pages");
        assert!(cycle(&mut pool, &table, 1, 512).1 <= MOST_REUSED);
        pool.put(&table, head, 3000, none());
        assert!(pool.resident.len() <= MOST_REUSED);
    }

    #[test]
    fn memory_that_is_used_for_the_first_time_is_not_used_again() {
        let (table, mut pool) = (table(), PagePool::new());
        let first = pool.take(&table, 100).expect("pages");
        let second = pool.take(&table, 100).expect("pages");
        pool.put(&table, second, 100, none());
        assert_eq!((pool.reused, pool.resident.len()), (0, 0));
        // It begins with the run that was returned.
        assert_eq!(pool.take(&table, 150), Ok(second));
        assert_eq!(pool.reused, 100);
        pool.put(&table, first, 100, none());
        assert_eq!(pool.resident.len(), 100);
        // A resident page does not count.
        assert_eq!(pool.take(&table, 100), Ok(first));
        assert_eq!(pool.reused, 100);
    }

    #[test]
    fn with_small_constants_almost_no_free_page_is_resident() {
        let (table, mut pool) = (table(), PagePool::new());
        for _ in 0..5 {
            let head = pool.take(&table, 7).expect("pages");
            pool.put(&table, head, 7, Stress::none().small_constants(true));
            assert_eq!(pool.resident.len(), 0);
        }
    }

    #[test]
    fn a_refusal_changes_nothing() {
        let (table, mut pool) = (table_of(100 << PAGE_SHIFT), PagePool::new());
        let full = |pages: usize, in_use: usize| SpaceError::Full {
            asked: pages << PAGE_SHIFT,
            in_use: in_use << PAGE_SHIFT,
            reserved: 100 << PAGE_SHIFT,
        };
        assert_eq!(pool.take(&table, 101), Err(full(101, 0)));
        assert_eq!((table.high_water(), pool.committed), (0, 0));
        assert_eq!(pool.take(&table, 100), Ok(0));
        assert_eq!(pool.take(&table, 1), Err(full(1, 100)));
        pool.put(&table, 0, 100, none());
        assert_eq!(pool.take(&table, 30), Ok(0));
        assert_eq!(pool.take(&table, 71), Err(full(71, 30)));
        assert_eq!(pool.take(&table, 70), Ok(30));
    }

    /// The state of a page in [`Naive`].
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    enum Page {
        Fresh,
        Used,
        Resident,
        Returned,
    }

    /// The pool, as simple as possible: it examines all pages in each step.
    struct Naive {
        pages: Vec<Page>,
        reused: usize,
        least: usize,
    }

    impl Naive {
        fn count(&self, page: Page) -> usize {
            self.pages.iter().filter(|&&other| other == page).count()
        }

        /// `None`: no run of free pages is long enough.
        fn take(&mut self, pages: usize) -> Option<u32> {
            let is_free = |run: &[Page]| !run.contains(&Page::Used);
            let start = self.pages.windows(pages).position(is_free)?;
            let run = &mut self.pages[start..start + pages];
            self.reused += run.iter().filter(|&&page| page == Page::Returned).count();
            run.fill(Page::Used);
            self.reused = self.reused.min(MOST_REUSED);
            self.least = self.least.min(self.count(Page::Resident));
            Some(start as u32)
        }

        fn put(&mut self, start: u32, pages: usize) {
            let run = start as usize..start as usize + pages;
            self.pages[run.clone()].fill(Page::Returned);
            if pages <= self.keep() {
                self.pages[run].fill(Page::Resident);
            }
            self.shrink();
        }

        fn after_full(&mut self) {
            self.reused = self.reused.saturating_sub(self.least);
            self.shrink();
            self.least = self.count(Page::Resident);
        }

        fn keep(&self) -> usize {
            self.reused.max(RESIDENT_PAGES).max(self.count(Page::Used) / 8)
        }

        fn shrink(&mut self) {
            let keep = self.keep();
            if self.count(Page::Resident) > keep {
                while self.count(Page::Resident) > keep - keep / 4 {
                    let last = self.pages.iter().rposition(|&page| page == Page::Resident);
                    self.pages[last.expect("a resident page")] = Page::Returned;
                }
            }
        }

        /// Runs of free pages below the high-water mark.
        fn holes(&self) -> Vec<(u32, u32)> {
            let mut first = 0;
            let runs = self.pages.chunk_by(|&a, &b| {
                (a == Page::Used) == (b == Page::Used) && (a == Page::Fresh) == (b == Page::Fresh)
            });
            let runs = runs.map(|run| {
                first += run.len();
                (run[0], ((first - run.len()) as u32, run.len() as u32))
            });
            runs.filter(|&(page, _)| page != Page::Used && page != Page::Fresh)
                .map(|(_, run)| run)
                .collect()
        }
    }

    /// One step of a random program.
    #[derive(Clone, Copy, Debug)]
    enum Op {
        Take(usize),
        /// Puts one of the runs back.
        Put(prop::sample::Index),
        AfterFull,
    }

    fn op() -> impl Strategy<Value = Op> {
        prop_oneof![
            6 => (1..6_usize).prop_map(Op::Take),
            2 => (30..200_usize).prop_map(Op::Take),
            7 => any::<prop::sample::Index>().prop_map(Op::Put),
            1 => Just(Op::AfterFull),
        ]
    }

    /// Which memory is where: a page in use has a byte that is not 0, and a page whose memory was
    /// returned has not.
    fn byte(table: &PageTable<Reserved>, page: usize) -> *mut u8 {
        table.page_start(page as u32).as_ptr().wrapping_add(100)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 1 } else { 64 }))]

        #[test]
        fn the_pool_does_the_same_as_a_naive_pool(
            ops in prop::collection::vec(op(), 1..300),
        ) {
            const PAGES: usize = 900;
            let (table, mut pool) = (table_of(PAGES << PAGE_SHIFT), PagePool::new());
            let mut naive = Naive { pages: vec![Page::Fresh; PAGES], reused: 0, least: 0 };
            let mut runs = Vec::new();
            for op in ops {
                match op {
                    Op::Take(pages) => {
                        let taken = pool.take(&table, pages as u32).ok();
                        prop_assert_eq!(taken, naive.take(pages));
                        let Some(start) = taken else { continue };
                        for page in start as usize..start as usize + pages {
                            // SAFETY: rule *owner*: the page is in use, by this thread.
                            unsafe { byte(&table, page).write(1) };
                        }
                        runs.push((start, pages));
                    }
                    Op::Put(_) if runs.is_empty() => {}
                    Op::Put(which) => {
                        let (start, pages) = runs.swap_remove(which.index(runs.len()));
                        pool.put(&table, start, pages as u32, none());
                        naive.put(start, pages);
                    }
                    Op::AfterFull => {
                        pool.after_full(&table, none());
                        naive.after_full();
                    }
                }
                prop_assert_eq!(pool.used.len(), naive.count(Page::Used));
                prop_assert_eq!(pool.resident.len(), naive.count(Page::Resident));
                prop_assert_eq!((pool.reused, pool.least), (naive.reused, naive.least));
                prop_assert_eq!(pool.used.gaps(table.high_water()), naive.holes());
                let fresh = naive.count(Page::Fresh);
                prop_assert_eq!(table.high_water(), PAGES - fresh);
                for (page, &state) in naive.pages[..PAGES - fresh].iter().enumerate() {
                    // SAFETY: rule *mapped*: below the high-water mark; no other thread exists.
                    let written = unsafe { byte(&table, page).read() } != 0;
                    prop_assert_eq!(written, state != Page::Returned, "page {}", page);
                }
            }
        }
    }
}
