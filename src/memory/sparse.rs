//! A page with one live cell stays in use, so a program that frees nearly all of its objects could
//! keep nearly all of its memory. But the memory of a page consists of *pieces*, each as large as a
//! page of the system (4 KiB mostly). A piece of a *sparse* page can be returned if it has no live
//! cell ([ADR 28](../../docs/adr/0028-sparse-pages.md)). For example, if the live cells of a page
//! begin at bytes 4096 and 40,000 and are 64 bytes long, they lie in pieces 1 and 9. The other 14
//! pieces are returned, so that the page takes 8 KiB instead of 64.
//!
//! * **When.** A full collection begins a *round*. In a round each arena visits as many pages as it
//!   owns at first, mostly each one once, and then abandoned pages. A thread visits few at a time,
//!   when it refills or flushes a magazine, because a visit takes microseconds. The thread that has
//!   called a full collection visits all of its pages before the call returns. No thread visits
//!   pages in a stop.
//! * **Which.** A visit drains the remote stack of the page. If the page is empty then, it is
//!   released, unless it is the spare page of its class. If at most a quarter of the cells are in
//!   use, the pieces without a cell in use are returned. A piece with a part of a cell in use
//!   stays.
//! * **Header.** The first piece also has the heap word of the page. Once the piece is returned the
//!   word reads as 0, so a thread that needs it looks in the list of ranges, which has the same
//!   word. The owner writes the word again when it uses a cell of the piece.
//! * **How often.** A piece that is used again costs a page fault. So the next round is delayed if
//!   more than half of the pieces that were returned since the last one are in use again. The delay
//!   is 1 full collection, then 3, 7, 15, 31, so that a program that repeatedly fills and empties
//!   the same pages takes few such faults. If fewer are in use again, the delay halves.
//! * **Huge pages.** If a round has returned more than half of the memory in use, the range gives
//!   up huge pages. Otherwise the returned memory would come back, because the system would join
//!   the rest to huge pages again. The range requests huge pages again once less than an eighth of
//!   the memory in use is returned.
//! * **Tables.** After such a round the tables of collections return as well, because they are zero
//!   between collections.
//!
//! # Invariants
//!
//! * A piece in `Owned::returned` contains no byte of a cell in use, in a magazine, in quarantine
//!   or on the remote stack. All cells that begin, end or lie in the piece are marked in the free
//!   bits, so no thread reads or writes there, except for the heap word.
//! * A heap word in use is right or 0.
//! * Only the owner of a page returns its pieces, and only while the cells are marked.
//! * With poison no piece is returned, because the poison of a free cell must stay.

use std::ops::ControlFlow;
use std::ptr::NonNull;

use crate::base::steps;
use crate::base::sync::{AtomicU32, AtomicUsize, Ordering};
use crate::base::system::page_size;
use crate::memory::address_map::AddressMap;
use crate::memory::class_pages::is_empty;
use crate::memory::pool::PagePool;
use crate::memory::shape::{GRANULE, PAGE_GRANULES, PAGE_HEADER, PAGE_SHIFT, PAGE_SIZE, Shape};
use crate::memory::space::Space;

/// The most full collections by which a round is delayed.
const LONGEST_DELAY: u32 = 31;
/// The most pieces of a page: the smallest system page is 4 KiB.
pub(super) const MOST_PIECES: usize = PAGE_SIZE / 4096;

pub(super) type Pieces = u16;

const _: () = assert!(MOST_PIECES <= Pieces::BITS as usize);

/// Figures of rounds that any thread may change. Relaxed, because they are only hints and
/// statistics. A thread that misses a new round begins it later, and the pages that it visits are
/// its own.
#[derive(Debug, Default)]
pub(super) struct Rounds {
    pub(super) begun: AtomicU32,
    /// Pieces returned since the last round began.
    pub(super) returned: AtomicUsize,
    /// Returned pieces that were used again since then.
    pub(super) again: AtomicUsize,
}

/// The state that decides about the next round, which the lock of the pool protects.
#[derive(Debug)]
pub(super) struct Plan {
    /// By how many full collections rounds are delayed now.
    delay: u32,
    /// How many full collections the next round waits for.
    waits: u32,
    /// Pieces that were returned and not used again, until the last round began.
    pub(super) away: usize,
    /// Whether the thread that has begun the round has yet to look at the tables.
    pub(super) tables_due: bool,
    /// Whether the range has given up huge pages.
    pub(super) no_huge_pages: bool,
    /// The first list of abandoned pages that no thread has visited in this round.
    pub(super) next_list: usize,
    /// Abandoned pages of the list before it that no thread has visited.
    pub(super) unvisited: usize,
}

impl Plan {
    pub(super) const NEW: Self = Self {
        delay: 0,
        waits: 0,
        away: 0,
        tables_due: false,
        no_huge_pages: false,
        next_list: usize::MAX,
        unvisited: 0,
    };

    /// Decides, when a full collection has ended, whether a round begins. `figures` returns how
    /// many pieces were returned and used again, and resets both numbers.
    pub(super) fn begins(&mut self, figures: impl FnOnce() -> (usize, usize)) -> bool {
        if let Some(waits) = self.waits.checked_sub(1) {
            self.waits = waits;
            return false;
        }
        let (returned, again) = figures();
        self.away = (self.away + returned).saturating_sub(again);
        self.delay = match again > returned / 2 {
            true => (2 * self.delay + 1).min(LONGEST_DELAY),
            false => self.delay / 2,
        };
        self.waits = self.delay;
        true
    }
}

/// The piece with the header of a page.
pub(super) const HEADER_PIECE: Pieces = 1;

const _: () = assert!(MOST_PIECES < 2 || PAGE_HEADER <= PAGE_SIZE / MOST_PIECES);

/// The pieces that the bytes `from..to` of a page touch.
pub(super) fn pieces(from: usize, to: usize) -> Pieces {
    let (first, last) = (from / page_size(), (to - 1) / page_size());
    (Pieces::MAX >> (Pieces::BITS as usize - 1 - last)) & (Pieces::MAX << first)
}

/// The pieces that a cell at a granule of its page touches.
pub(super) fn pieces_of(shape: Shape, granule: usize) -> Pieces {
    pieces(granule * GRANULE, (granule + shape.cell()) * GRANULE)
}

/// Pages that a thread visits when it refills or flushes a magazine. A visit that returns memory
/// takes microseconds, or some tens of them in a huge page.
pub(super) const VISITED_ASIDE: usize = 2;
/// Pages that a thread visits at the end of a collection before it looks for a stop.
pub(crate) const VISITED_TOGETHER: usize = 16;
/// A page is sparse if at most this part of its cells is in use.
const SPARSE_PART: usize = 4;

impl<A: AddressMap> Space<A> {
    #[inline]
    pub(super) fn round(&self) -> u32 {
        // Models have no rounds, because their pages have one piece.
        if MOST_PIECES < 2 { 0 } else { self.rounds.begun.load(Ordering::Relaxed) }
    }

    /// A full collection has ended, and begins a round, unless the round is delayed. The result is
    /// that of `return_tables`, for the last round.
    pub(super) fn begin_round(&self, pool: &mut PagePool) -> bool {
        if MOST_PIECES < 2 || page_size() >= PAGE_SIZE || self.stress().poisons() {
            return false;
        }
        let in_use = pool.in_use();
        let plan = &mut pool.plan;
        let returned = self.rounds.returned.load(Ordering::Relaxed);
        let away = plan.away + returned;
        let away = away.saturating_sub(self.rounds.again.load(Ordering::Relaxed));
        if plan.no_huge_pages && away * page_size() < (in_use << PAGE_SHIFT) / 8 {
            plan.no_huge_pages = false;
            self.range.advise_huge(true);
        }
        let reset = |figure: &AtomicUsize| figure.swap(0, Ordering::Relaxed);
        if !plan.begins(|| (reset(&self.rounds.returned), reset(&self.rounds.again))) {
            return false;
        }
        (plan.next_list, plan.unvisited) = (0, 0);
        plan.tables_due = true;
        self.rounds.begun.fetch_add(1, Ordering::Relaxed);
        self.return_tables_of(pool, returned)
    }

    /// Gathers memory into huge pages again, after a clone of the process, for less than a
    /// millisecond, from `at` on. Returns where to go on, or `None` at the end.
    pub(crate) fn restore_huge_pages(&self, at: usize) -> Option<usize> {
        let is_wanted = !self.pool.lock().plan.no_huge_pages;
        is_wanted.then(|| self.range.restore_huge_pages(self.high_water(), at))?
    }

    /// If the round that began with this collection has returned more than half of the memory in
    /// use, returns the counting table and gives up huge pages. The result says whether it did.
    ///
    /// The caller holds the collector lock and is attached, so that there is no stop and the table
    /// is zero.
    pub(crate) fn return_tables(&self) -> bool {
        let mut pool = self.pool.lock();
        std::mem::take(&mut pool.plan.tables_due)
            && self.return_tables_of(&mut pool, self.rounds.returned.load(Ordering::Relaxed))
    }

    /// As `return_tables`, for a round that has returned so many pieces.
    fn return_tables_of(&self, pool: &mut PagePool, returned: usize) -> bool {
        let is_much = returned * page_size() > (pool.in_use() << PAGE_SHIFT) / 2;
        if is_much {
            pool.plan.no_huge_pages = true;
            self.range.advise_huge(false);
            self.range.discard_counts(self.high_water());
            pool.give_up_unused(&self.table);
        }
        is_much
    }

    /// Visits an owned page: returns its pieces without a cell in use, if the page is sparse.
    ///
    /// # Safety
    ///
    /// The caller owns the small page.
    pub(super) unsafe fn return_pieces(&self, page: u32) {
        // SAFETY: rule *owner*: the caller owns the page.
        let (info, (free, returned)) = unsafe {
            let info = self.info(page);
            (info, info.owned(|owned| (owned.free as usize, owned.returned)))
        };
        let shape = info.shape();
        steps::took(1);
        if (shape.cells() - free) * SPARSE_PART > shape.cells() {
            return;
        }
        let first = page as usize * PAGE_GRANULES;
        let mut stay = returned;
        let starts = self.starts(page as usize).map(|granule| granule - first);
        steps::took(starts.len());
        // SAFETY: rule *owner*: as before.
        unsafe {
            self.free_bits(page, |bits| {
                let in_use = |at: &usize| bits[at / 64] >> (at % 64) & 1 == 0;
                starts.filter(in_use).for_each(|at| stay |= pieces_of(shape, at));
            });
        }
        let gone = !stay & pieces(0, PAGE_SIZE);
        let mut rest = gone;
        while rest != 0 {
            let from = rest.trailing_zeros();
            let length = (rest >> from).trailing_ones();
            rest &= rest.wrapping_add(1 << from);
            self.discard(page, from as usize * page_size(), length as usize * page_size());
        }
        if gone != 0 {
            // SAFETY: rule *owner*: as before.
            unsafe { info.owned(|owned| owned.returned |= gone) };
            self.rounds.returned.fetch_add(gone.count_ones() as usize, Ordering::Relaxed);
        }
    }

    /// Removes the pieces of cells from those returned, because the cells are about to be used.
    ///
    /// # Safety
    ///
    /// The caller owns the small page and the cells, which lie on it.
    #[cold]
    pub(super) unsafe fn use_pieces(&self, page: u32, cells: &[NonNull<u8>]) {
        // SAFETY: rule *owner*: the caller owns the page.
        unsafe {
            let info = self.info(page);
            let at = |cell: &NonNull<u8>| self.granule(cell.as_ptr().addr()) % PAGE_GRANULES;
            let used = cells.iter().fold(0, |set, cell| set | pieces_of(info.shape(), at(cell)));
            let again = info.owned(|owned| {
                let again = owned.returned & used;
                owned.returned &= !used;
                again
            });
            self.rounds.again.fetch_add(again.count_ones() as usize, Ordering::Relaxed);
            if again & HEADER_PIECE != 0 {
                self.write_header(page, self.pool.lock().heap);
            }
        }
    }

    /// Visits up to `most` abandoned pages that no thread has visited in this round. Breaks if more
    /// may be left.
    pub(super) fn visit_abandoned(&self, mut most: usize) -> ControlFlow<()> {
        let mut pool = self.pool.lock();
        loop {
            if pool.plan.unvisited == 0 {
                let mut lists = pool.plan.next_list..pool.abandoned.len();
                let next = lists.find(|&list| pool.abandoned[list].len() != 0);
                let Some(list) = next else { return ControlFlow::Continue(()) };
                pool.plan.unvisited = pool.abandoned[list].len();
                pool.plan.next_list = list + 1;
            }
            if most == 0 {
                return ControlFlow::Break(());
            }
            most -= 1;
            pool.plan.unvisited -= 1;
            let list = pool.plan.next_list - 1;
            // SAFETY: rule *owner*: the lock owns abandoned pages.
            unsafe {
                let Some(page) = pool.abandoned[list].pop_front(self) else { continue };
                self.drain(page);
                if is_empty(self, page) {
                    self.put(&mut pool, page, 1);
                } else {
                    self.return_pieces(page);
                    pool.abandoned[list].push_back(self, page);
                }
            }
        }
    }
}

#[allow(unsafe_code)]
#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
