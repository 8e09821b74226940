//! Tests of the pool of runs.

use proptest::prelude::*;

use super::*;
use crate::memory::address_map::Reserved;
use crate::memory::range::Range;

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

/// How many programs are tried.
fn cases() -> u32 {
    let is_full = std::env::var_os("STANDSTILL_FULL").is_some();
    if cfg!(miri) {
        1
    } else if is_full {
        64
    } else {
        16
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(cases()))]

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

#[test]
fn pages_and_memory_outside_share_the_limit() {
    let limit = Limit::new(Some(4 * PAGE_SIZE + 100));
    assert_eq!(limit.bytes(), 4 * PAGE_SIZE);
    assert!(limit.check(|| 4, 0).is_ok() && limit.check(|| 1, 3).is_ok());
    limit.count_external(3 * PAGE_SIZE as isize - 1);
    assert!(limit.check(|| 1, 1).is_ok());
    let (asked, in_use) = (PAGE_SIZE, 4 * PAGE_SIZE);
    let refused = Err(SpaceError::Limit { asked, in_use, limit: 4 * PAGE_SIZE });
    assert_eq!(limit.check(|| 2, 1), refused);
    limit.count_external(1);
    assert!(limit.check(|| 2, 0).is_err());
    limit.count_external(isize::MIN);
    assert_eq!(limit.external_bytes(), 0, "never negative");
    assert!(limit.check(|| 2, 2).is_ok());
}

#[test]
fn without_a_limit_nothing_is_refused() {
    let limit = Limit::new(None);
    limit.count_external(isize::MAX);
    assert!(limit.check(|| usize::MAX, usize::MAX).is_ok());
    assert!(!limit.is_tight(6, 8) && limit.is_tight(7, 8));
}

#[test]
fn more_than_three_quarters_of_the_limit_are_tight() {
    let limit = Limit::new(Some(8 * PAGE_SIZE));
    assert!(!limit.is_tight(6, 100) && limit.is_tight(7, 100) && limit.is_tight(7, 8));
    limit.count_external(PAGE_SIZE as isize);
    assert!(!limit.is_tight(5, 100) && limit.is_tight(6, 100));
}
