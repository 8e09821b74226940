//! Tests of sparse pages.

use super::*;
use crate::base::stress::Stress;
use crate::memory::arena::Arena;
use crate::memory::size_class::{CLASS_SHAPES, class_of, class_size};
use crate::memory::space::SpaceConfig;

const WORD: usize = 0xbeef0;

fn space(stress: Stress) -> Space {
    let config = SpaceConfig { reserve: Some(1 << 30), limit: None };
    let mut space = <Space>::open(config).unwrap();
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
fn split(cells: &[NonNull<u8>], f: impl Fn(usize) -> bool) -> (Vec<NonNull<u8>>, Vec<NonNull<u8>>) {
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
    (0..page_size() / 8).all(|at| unsafe { start.add(at).read_volatile() } == 0)
}

/// The pieces of the pages of these cells.
fn pieces_around(cells: &[NonNull<u8>]) -> impl Iterator<Item = usize> {
    let mut pages: Vec<_> = cells.iter().map(|&cell| addr(cell) & !(PAGE_SIZE - 1)).collect();
    pages.dedup();
    pages.into_iter().flat_map(|page| (page..page + PAGE_SIZE).step_by(page_size()))
}

/// Whether a piece overlaps one of the cells.
fn holds(piece: usize, cells: &[NonNull<u8>], class: u8) -> bool {
    cells
        .iter()
        .any(|&cell| piece < addr(cell) + class_size(class) && addr(cell) < piece + page_size())
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
    assert!(taken.iter().any(|&cell| addr(cell) & !(page_size() - 1) == page));
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
    assert!((1..PAGE_SIZE / page_size()).all(|piece| is_zero(page + piece * page_size())));
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
    let zero =
        (0..PAGE_SIZE / page_size()).filter(|piece| is_zero(page + piece * page_size())).count();
    assert_eq!(zero, PAGE_SIZE / page_size() - 1);
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
            assert!(!is_zero(addr(held.start()) & !(page_size() - 1)));
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
    let (kept, freed): (Vec<_>, Vec<_>) = cells.iter().partition(|&&cell| addr(cell) % 16384 == 64);
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

#[test]
fn rounds_are_rare_as_long_as_their_memory_is_used_again() {
    let mut plan = Plan::NEW;
    // The numbers of the full collections that begin a round.
    let mut begun = |collections: usize, again| {
        (0..collections).filter(|_| plan.begins(|| (100, again))).count()
    };
    assert_eq!(begun(10, 50), 10);
    // 1 + 1, 1 + 3, 1 + 7, 1 + 15, and 1 + 31 from then on.
    assert_eq!(begun(2 + 4 + 8 + 16, 51), 4);
    assert_eq!(begun(320, 100), 10);
    // 1 + 15, 1 + 7, 1 + 3, 1 + 1, and 1 from then on.
    assert_eq!(begun(16 + 8 + 4 + 2, 0), 4);
    assert_eq!(begun(10, 0), 10);
}

#[test]
fn the_pieces_of_an_address_range() {
    let unit = page_size();
    if unit * MOST_PIECES == PAGE_SIZE {
        assert_eq!((pieces(0, 1), pieces(0, PAGE_SIZE)), (HEADER_PIECE, Pieces::MAX));
        assert_eq!((pieces(unit - 1, unit), pieces(unit, unit + 1)), (1, 2));
        assert_eq!((pieces(unit - 1, unit + 1), pieces(unit, 3 * unit)), (3, 6));
        assert_eq!(pieces(PAGE_SIZE - 1, PAGE_SIZE), 1 << 15);
    }
}
