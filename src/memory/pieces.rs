//! The pieces of a page, and the plan of the rounds that return them: see
//! [`sparse`](crate::memory::sparse).

#![forbid(unsafe_code)]

use crate::base::sync::{AtomicU32, AtomicUsize};
pub(super) use crate::base::system::page_size as unit;
use crate::memory::shape::{GRANULE, PAGE_HEADER, PAGE_SIZE, Shape};
use crate::memory::size_class::CLASSES;

/// The most full collections by which a round is delayed.
const LONGEST_DELAY: u32 = 31;
/// The most pieces of a page: the smallest system page is 4 KiB.
pub(super) const MOST_PIECES: usize = PAGE_SIZE / 4096;

/// A set of pieces of a page.
pub(super) type Pieces = u16;

const _: () = assert!(MOST_PIECES <= Pieces::BITS as usize);

/// Figures of rounds that any thread may change. Relaxed: hints and figures. A thread that misses a
/// new round begins it later, and the pages that it visits are its own.
#[derive(Debug, Default)]
pub(super) struct Rounds {
    /// How many rounds have begun.
    pub(super) begun: AtomicU32,
    /// Pieces returned since the last round began.
    pub(super) returned: AtomicUsize,
    /// Returned pieces that were used again since then.
    pub(super) again: AtomicUsize,
}

/// The state that decides about the next round. The lock of the pool protects it.
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
    /// The first class of which no thread has visited abandoned pages in this round.
    pub(super) next_class: usize,
    /// Abandoned pages of the class before it that no thread has visited.
    pub(super) unvisited: usize,
}

impl Plan {
    pub(super) const NEW: Self = Self {
        delay: 0,
        waits: 0,
        away: 0,
        tables_due: false,
        no_huge_pages: false,
        next_class: CLASSES,
        unvisited: 0,
    };

    /// A full collection has ended. Decides whether a round begins. `figures` returns how many
    /// pieces were returned and used again, and resets both numbers.
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

/// The pieces that the header of a page touches.
pub(super) const HEADER: Pieces = 1;

const _: () = assert!(MOST_PIECES < 2 || PAGE_HEADER <= PAGE_SIZE / MOST_PIECES);

/// The pieces that the bytes `from..to` of a page touch.
pub(super) fn pieces(from: usize, to: usize) -> Pieces {
    let (first, last) = (from / unit(), (to - 1) / unit());
    (Pieces::MAX >> (Pieces::BITS as usize - 1 - last)) & (Pieces::MAX << first)
}

/// The pieces that a cell at a granule of its page touches.
pub(super) fn pieces_of(shape: Shape, granule: usize) -> Pieces {
    pieces(granule * GRANULE, (granule + shape.cell()) * GRANULE)
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

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
        let unit = unit();
        if unit * MOST_PIECES == PAGE_SIZE {
            assert_eq!((pieces(0, 1), pieces(0, PAGE_SIZE)), (HEADER, Pieces::MAX));
            assert_eq!((pieces(unit - 1, unit), pieces(unit, unit + 1)), (1, 2));
            assert_eq!((pieces(unit - 1, unit + 1), pieces(unit, 3 * unit)), (3, 6));
            assert_eq!(pieces(PAGE_SIZE - 1, PAGE_SIZE), 1 << 15);
        }
    }
}
