//! Sparse pages: the memory between the objects that live on returns to the system.
//!
//! A page with one live cell stays in use. Its memory consists of *pieces*, each as large as a page
//! of the system (4 KiB mostly). A piece without a live cell holds nothing, so its memory can be
//! returned ([ADR 28](../../docs/adr/0028-sparse-pages.md)).
//!
//! * **When.** A full collection begins a *round*. In a round each arena visits its own pages once,
//!   a few at a time: a thread visits pages when it refills or flushes a magazine, and the thread
//!   that has called a full collection visits all of its pages before the call returns. An arena
//!   that has visited its own pages visits abandoned pages. No thread visits pages in a stop.
//! * **Which.** A visit drains the remote stack of the page. An empty page is released. If at most
//!   a quarter of the cells are in use, the pieces without a cell in use are returned. A piece with
//!   a part of a cell in use stays.
//! * **Header.** The first piece also has the heap word of the page, which is the same for all
//!   pages of a heap. Once the piece is returned the word reads as 0, and a thread that needs the
//!   word finds it in the list of ranges. The owner writes the word again when it uses a cell of
//!   the piece.
//! * **How often.** A piece that is used again costs a page fault. If more than half of the pieces
//!   that were returned since the last round are in use again, the next round is delayed: by 1 full
//!   collection, then by 3, 7, 15, 31. So a program that fills and empties the same pages again and
//!   again takes few such faults.
//! * **Huge pages.** If a round has returned more than half of the memory in use, the range gives
//!   up huge pages. Otherwise the system would join the rest of the memory to huge pages again, and
//!   the returned memory would come back. The range requests huge pages again once less than an
//!   eighth of the memory in use is returned.
//! * **Tables.** After such a round the tables of collections return as well. They are zero.
//!
//! # Invariants
//!
//! * A piece in `Owned::returned` contains no byte of a cell in use, of a cell in a magazine or in
//!   quarantine, or of a cell on the remote stack: all cells that begin, end or lie in the piece
//!   are marked in the free bits. So no thread reads or writes there, except for the heap word.
//! * A heap word in use is right or 0.
//! * Only the owner of a page returns its pieces, and only while the cells are marked.
//! * With poison no piece is returned, because the poison of a free cell must stay.

use std::ops::ControlFlow;
use std::ptr::NonNull;

use crate::base::steps;
use crate::base::sync::{AtomicUsize, Ordering};
use crate::memory::pieces::{HEADER, MOST_PIECES, pieces, pieces_of, unit};
use crate::memory::pool::PagePool;
use crate::memory::reserved::AddressMap;
use crate::memory::shape::{PAGE_GRANULES, PAGE_SHIFT, PAGE_SIZE};
use crate::memory::size_class::CLASSES;
use crate::memory::space::Space;

/// Pages that a thread visits when it refills or flushes a magazine. A visit that returns memory
/// takes microseconds, or some tens of them in a huge page.
pub(super) const VISITED_ASIDE: usize = 2;
/// Pages that a thread visits at the end of a collection before it looks for a stop.
pub(crate) const VISITED_TOGETHER: usize = 16;
/// A page is sparse if at most this part of its cells is in use.
const SPARSE_PART: usize = 4;
impl<A: AddressMap> Space<A> {
    /// The number of the current round.
    #[inline]
    pub(super) fn round(&self) -> u32 {
        // The pages of models have one piece.
        if MOST_PIECES < 2 { 0 } else { self.rounds.begun.load(Ordering::Relaxed) }
    }

    /// A full collection has ended, and begins a round, unless the round is delayed. The result is
    /// that of `return_tables`, for the last round.
    pub(super) fn begin_round(&self, pool: &mut PagePool) -> bool {
        if MOST_PIECES < 2 || unit() >= PAGE_SIZE || self.stress().poisons() {
            return false;
        }
        let in_use = pool.in_use();
        let plan = &mut pool.plan;
        let returned = self.rounds.returned.load(Ordering::Relaxed);
        let away = plan.away + returned;
        let away = away.saturating_sub(self.rounds.again.load(Ordering::Relaxed));
        if plan.no_huge_pages && away * unit() < (in_use << PAGE_SHIFT) / 8 {
            plan.no_huge_pages = false;
            self.range().advise_huge(true);
        }
        let reset = |figure: &AtomicUsize| figure.swap(0, Ordering::Relaxed);
        if !plan.begins(|| (reset(&self.rounds.returned), reset(&self.rounds.again))) {
            return false;
        }
        (plan.next_class, plan.unvisited) = (0, 0);
        plan.tables_due = true;
        self.rounds.begun.fetch_add(1, Ordering::Relaxed);
        self.return_tables_of(pool, returned)
    }

    /// Returns the counting table to the system and gives up huge pages, if the round that began
    /// with this collection has returned more than half of the memory in use. The result says
    /// whether it did.
    ///
    /// The caller holds the collector lock and is attached. So there is no stop, and the table is
    /// zero.
    pub(crate) fn return_tables(&self) -> bool {
        let mut pool = self.pool.lock();
        std::mem::take(&mut pool.plan.tables_due)
            && self.return_tables_of(&mut pool, self.rounds.returned.load(Ordering::Relaxed))
    }

    /// As `return_tables`, for a round that has returned so many pieces.
    fn return_tables_of(&self, pool: &mut PagePool, returned: usize) -> bool {
        let is_much = returned * unit() > (pool.in_use() << PAGE_SHIFT) / 2;
        if is_much {
            pool.plan.no_huge_pages = true;
            self.range().advise_huge(false);
            self.range().discard_counts(self.high_water());
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
            self.discard(page, from as usize * unit(), length as usize * unit());
        }
        if gone != 0 {
            // SAFETY: rule *owner*: as before.
            unsafe { info.owned(|owned| owned.returned |= gone) };
            self.rounds.returned.fetch_add(gone.count_ones() as usize, Ordering::Relaxed);
        }
    }

    /// Cells of a page are about to be used: their pieces are no longer returned.
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
            if again & HEADER != 0 {
                self.write_header(page, self.pool.lock().heap);
            }
        }
    }

    /// Visits up to `most` abandoned pages that no thread has visited in this round. Breaks when it
    /// has visited as many.
    pub(super) fn visit_abandoned(&self, mut most: usize) -> ControlFlow<()> {
        let mut pool = self.pool.lock();
        loop {
            if pool.plan.unvisited == 0 {
                let from = pool.plan.next_class;
                let next = (from..CLASSES).find(|&class| pool.abandoned[class].len() != 0);
                let Some(class) = next else { return ControlFlow::Continue(()) };
                pool.plan.unvisited = pool.abandoned[class].len();
                pool.plan.next_class = class + 1;
            }
            if most == 0 {
                return ControlFlow::Break(());
            }
            most -= 1;
            pool.plan.unvisited -= 1;
            let class = pool.plan.next_class - 1;
            // SAFETY: rule *owner*: the lock owns abandoned pages.
            unsafe {
                let Some(page) = pool.abandoned[class].pop_front(self) else { continue };
                self.drain(page);
                let info = self.info(page);
                if info.owned(|owned| owned.free as usize) == info.shape().cells() {
                    self.put(&mut pool, page, 1);
                } else {
                    self.return_pieces(page);
                    pool.abandoned[class].push_back(self, page);
                }
            }
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::base::stress::Stress;
    use crate::memory::arena::{Arena, class_size};
    use crate::memory::size_class::{CLASS_SHAPES, class_of};
    use crate::memory::space::SpaceConfig;

    const WORD: usize = 0xbeef0;

    fn space(stress: Stress) -> Space {
        let config = SpaceConfig { reserve: Some(1 << 30), limit: None };
        let mut space = Space::reserve(config).unwrap();
        space.set_stress(stress, None, None);
        space.set_heap(std::ptr::without_provenance(WORD));
        space
    }

    fn addr(cell: NonNull<u8>) -> usize {
        cell.as_ptr().addr()
    }

    /// The cells of a few full pages, filled with 7.
    fn full_pages(space: &Space, arena: &mut Arena, class: u8) -> Vec<NonNull<u8>> {
        let cells = 3 * PAGE_SIZE / class_size(class);
        let cells: Vec<_> = (0..cells).map(|_| arena.alloc(space, class).unwrap()).collect();
        // SAFETY: rule *owner*: all bytes belong to this thread.
        cells.iter().for_each(|cell| unsafe { cell.write_bytes(7, class_size(class)) });
        cells
    }

    /// The cells at the indices for which `f` is true, and the others.
    fn split(
        cells: &[NonNull<u8>],
        f: impl Fn(usize) -> bool,
    ) -> (Vec<NonNull<u8>>, Vec<NonNull<u8>>) {
        let (yes, no): (Vec<_>, Vec<_>) = (0..cells.len()).partition(|&n| f(n));
        let cells = |list: Vec<usize>| list.into_iter().map(|n| cells[n]).collect();
        (cells(yes), cells(no))
    }

    fn free_all(space: &Space, arena: &mut Arena, cells: &[NonNull<u8>]) {
        // SAFETY: rule *owner*: freed once each.
        cells.iter().for_each(|&cell| unsafe { arena.free(space, cell) });
    }

    /// A round for one arena.
    fn round(space: &Space, arena: &mut Arena) {
        space.after_full();
        while arena.visit_pages(space, 1) {}
    }

    /// Whether a piece of the range reads as zero.
    fn is_zero(piece: usize) -> bool {
        let start = std::ptr::with_exposed_provenance::<u64>(piece);
        // SAFETY: rule *mapped*: the piece lies on a page that was handed out.
        (0..unit() / 8).all(|at| unsafe { start.add(at).read_volatile() } == 0)
    }

    /// The pieces of the pages of these cells.
    fn pieces_around(cells: &[NonNull<u8>]) -> impl Iterator<Item = usize> {
        let mut pages: Vec<_> = cells.iter().map(|&cell| addr(cell) & !(PAGE_SIZE - 1)).collect();
        pages.dedup();
        pages.into_iter().flat_map(|page| (page..page + PAGE_SIZE).step_by(unit()))
    }

    /// Whether a piece overlaps one of the cells.
    fn holds(piece: usize, cells: &[NonNull<u8>], class: u8) -> bool {
        cells
            .iter()
            .any(|&cell| piece < addr(cell) + class_size(class) && addr(cell) < piece + unit())
    }

    #[test]
    fn a_sparse_page_returns_the_pieces_without_a_cell_in_use() {
        for size in [32, 64, 96, 480, 1056, 3000, 5000] {
            let (space, class) = (space(Stress::none()), class_of(size).unwrap());
            let mut arena = Arena::new(1);
            let all = full_pages(&space, &mut arena, class);
            // Two or three cells of each page.
            let step = all.len() / 8 + 1;
            let (kept, freed) = split(&all, |n| n % step == step / 2);
            free_all(&space, &mut arena, &freed);
            arena.trim(&space);
            round(&space, &mut arena);
            let mut returned = 0;
            for piece in pieces_around(&kept) {
                assert_eq!(is_zero(piece), !holds(piece, &kept, class), "{size} bytes");
                returned += usize::from(is_zero(piece));
            }
            assert!(returned > 10, "{size} bytes: {returned} pieces");
            for &cell in &kept {
                // SAFETY: rule *owner*: in use, by this thread.
                let bytes = unsafe { std::slice::from_raw_parts(cell.as_ptr(), class_size(class)) };
                assert!(bytes.iter().all(|&byte| byte == 7));
                // SAFETY: rule *mapped*: a cell in use.
                assert_eq!(unsafe { Space::heap_of(addr(cell)) }.addr(), WORD);
            }
            // All cells can be used again, and then no piece counts as returned.
            let again = full_pages(&space, &mut arena, class);
            for &cell in again.iter().chain(&kept) {
                // SAFETY: rule *mapped*: a cell in use.
                assert_eq!(unsafe { Space::heap_of(addr(cell)) }.addr(), WORD);
                // SAFETY: rule *owner*: in use, by this thread.
                assert_eq!(unsafe { cell.add(class_size(class) - 1).read() }, 7);
            }
            let used = space.rounds.again.load(Ordering::Relaxed);
            assert!(used >= returned.min(16), "{used} of {returned} pieces");
            free_all(&space, &mut arena, &again);
            free_all(&space, &mut arena, &kept);
            arena.retire(&space);
            assert_eq!(space.in_use_bytes(), 0);
        }
    }

    #[test]
    fn a_header_is_written_again_with_the_first_cell() {
        let (space, class) = (space(Stress::none()), class_of(64).unwrap());
        let mut arena = Arena::new(1);
        let cells = full_pages(&space, &mut arena, class);
        let page = addr(cells[0]) & !(PAGE_SIZE - 1);
        let on_a_page = CLASS_SHAPES[usize::from(class)].cells();
        // The last cell of the first page stays.
        let (kept, freed) = split(&cells, |n| n == on_a_page - 1);
        free_all(&space, &mut arena, &freed);
        arena.trim(&space);
        round(&space, &mut arena);
        let word = std::ptr::with_exposed_provenance::<usize>(page);
        // SAFETY: rule *mapped*: the page is in use.
        let (before, found) = unsafe { (word.read_volatile(), Space::heap_of(addr(kept[0]))) };
        assert_eq!((before, found.addr()), (0, WORD));
        let taken = full_pages(&space, &mut arena, class);
        assert!(taken.iter().any(|&cell| addr(cell) & !(unit() - 1) == page));
        // SAFETY: rule *mapped*: the page is in use.
        assert_eq!(unsafe { word.read_volatile() }, WORD);
        free_all(&space, &mut arena, &taken);
        free_all(&space, &mut arena, &kept);
        arena.retire(&space);
    }

    #[test]
    fn a_page_with_more_than_a_quarter_in_use_stays() {
        let (space, class) = (space(Stress::none()), class_of(8000).unwrap());
        let mut arena = Arena::new(1);
        let cells = full_pages(&space, &mut arena, class);
        let on_a_page = CLASS_SHAPES[usize::from(class)].cells();
        let least = on_a_page / 4 + 1;
        let (kept, freed) = split(&cells, |n| n % on_a_page < least);
        free_all(&space, &mut arena, &freed);
        arena.trim(&space);
        round(&space, &mut arena);
        assert_eq!(space.rounds.returned.load(Ordering::Relaxed), 0);
        // One less on each page.
        let (less, rest) = split(&kept, |n| n % least == 0);
        free_all(&space, &mut arena, &less);
        arena.trim(&space);
        round(&space, &mut arena);
        assert!(space.rounds.returned.load(Ordering::Relaxed) > 20);
        free_all(&space, &mut arena, &rest);
        arena.retire(&space);
    }

    #[test]
    fn cells_in_a_magazine_stay_and_remote_frees_return() {
        let (space, class) = (space(Stress::none()), class_of(64).unwrap());
        let mut arena = Arena::new(1);
        let cells = full_pages(&space, &mut arena, class);
        let (kept, rest) = cells.split_at(1);
        let (remote, own) = rest.split_at(rest.len() / 2);
        free_all(&space, &mut arena, own);
        // By a thread without an arena.
        // SAFETY: rule *owner*: freed once each.
        remote.iter().for_each(|&cell| unsafe { Arena::free_remote(&space, cell) });
        round(&space, &mut arena);
        let mut cached = Vec::new();
        arena.for_each_cached(|cell| cached.push(cell));
        assert!(!cached.is_empty());
        for piece in pieces_around(&cached).filter(|&piece| holds(piece, &cached, class)) {
            assert!(!is_zero(piece));
        }
        let page = addr(kept[0]) & !(PAGE_SIZE - 1);
        assert!((1..PAGE_SIZE / unit()).all(|piece| is_zero(page + piece * unit())));
        free_all(&space, &mut arena, kept);
        arena.retire(&space);
        assert_eq!(space.in_use_bytes(), 0);
    }

    #[test]
    fn abandoned_pages_return_and_empty_ones_are_released() {
        let (space, class) = (space(Stress::none()), class_of(64).unwrap());
        let (mut ended, mut other) = (Arena::new(1), Arena::new(2));
        let cells = full_pages(&space, &mut ended, class);
        ended.retire(&space);
        let in_use = space.in_use_bytes();
        let (kept, freed) = cells.split_at(1);
        // SAFETY: rule *owner*: freed once each.
        freed.iter().for_each(|&cell| unsafe { Arena::free_remote(&space, cell) });
        round(&space, &mut other);
        assert!(space.in_use_bytes() == PAGE_SIZE && in_use > PAGE_SIZE);
        let page = addr(kept[0]) & !(PAGE_SIZE - 1);
        let zero = (0..PAGE_SIZE / unit()).filter(|piece| is_zero(page + piece * unit())).count();
        assert_eq!(zero, PAGE_SIZE / unit() - 1);
        free_all(&space, &mut other, kept);
        round(&space, &mut other);
        assert_eq!(space.in_use_bytes(), 0);
    }

    #[test]
    fn with_poison_nothing_returns_and_cells_in_quarantine_stay() {
        for (stress, returns) in
            [(Stress::none().poison(true), false), (Stress::none().quarantine(5), true)]
        {
            let (space, class) = (space(stress), class_of(64).unwrap());
            let mut arena = Arena::with_stress(stress, 1).unwrap();
            let cells = full_pages(&space, &mut arena, class);
            let (kept, freed) = cells.split_at(1);
            free_all(&space, &mut arena, freed);
            round(&space, &mut arena);
            assert_eq!(space.rounds.returned.load(Ordering::Relaxed) > 0, returns);
            for held in space.quarantine().unwrap().cells() {
                assert!(!is_zero(addr(held.start()) & !(unit() - 1)));
            }
            let again = full_pages(&space, &mut arena, class);
            free_all(&space, &mut arena, &again);
            free_all(&space, &mut arena, kept);
            space.drain_quarantine();
            arena.retire(&space);
            assert_eq!(space.in_use_bytes(), 0);
        }
    }

    /// Each refill and flush goes on with the round, also on other pages.
    #[test]
    fn a_round_ends_although_the_thread_never_waits_for_it() {
        let (space, class) = (space(Stress::none()), class_of(64).unwrap());
        let mut arena = Arena::new(1);
        let cells: Vec<_> = (0..100_000).map(|_| arena.alloc(&space, class).unwrap()).collect();
        let (kept, freed): (Vec<_>, Vec<_>) =
            cells.iter().partition(|&&cell| addr(cell) % 16384 == 64);
        free_all(&space, &mut arena, &freed);
        let (large, pages) = (class_of(8000).unwrap(), kept.len() / 4);
        space.after_full();
        for _ in 0..pages {
            let few: Vec<_> = (0..16).map(|_| arena.alloc(&space, large).unwrap()).collect();
            free_all(&space, &mut arena, &few);
        }
        assert!(!arena.visit_pages(&space, 1), "the round is over");
        let returned = space.rounds.returned.load(Ordering::Relaxed);
        assert!(returned > 10 * pages, "{returned} pieces of {pages} pages");
        assert!(space.return_tables() && !space.return_tables());
        assert_eq!(space.pool.lock().free_resident(), 0);
        free_all(&space, &mut arena, &kept);
        arena.retire(&space);
        assert_eq!(space.in_use_bytes(), 0);
    }
}
