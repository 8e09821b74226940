//! The entry of a page in the side table.

use crate::base::sync::{AtomicU8, AtomicU32, AtomicU64, Ordering, UnsafeCell};
use crate::memory::pieces::Pieces;
use crate::memory::shape::{PAGE_GRANULES, Shape};

/// The data that only the owner of a page touches.
#[derive(Debug, Default)]
pub(crate) struct Owned {
    /// Cells marked in the free bits.
    pub(crate) free: u32,
    pub(super) prev: u32,
    pub(super) next: u32,
    /// The pieces whose memory was returned to the system: see `sparse`.
    pub(super) returned: Pieces,
}

/// One page's entry in the side table. It fills one cache line, so that neighbours do not share a
/// line.
///
/// The entry of a page that was never used is all zero.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct PageInfo {
    /// [`Shape`]. Relaxed: a reader either holds a cell of the page or runs in a stop. The thread
    /// that handed over the cell ordered this store before, and the handshake of the stop orders it
    /// too.
    pub(super) shape: AtomicU64,
    /// The arena that owns the page; 0 for none. Relaxed: a thread only compares it with its own
    /// id, and only that thread writes the id here or removes it. When an id is given out again,
    /// its source orders the retirement before. So a thread cannot read its own id from an earlier
    /// use of the id.
    pub(super) arena: AtomicU32,
    /// The cells that other threads have freed, as a stack: the granule of the newest cell within
    /// the page, or 0. The first word of each dead cell is the link to the next.
    pub(super) remote: AtomicU32,
    /// An object on this page may be newer than the last collection. Relaxed: running threads set
    /// it, and a stop reads and clears it. The stop's handshake orders both.
    pub(crate) young: AtomicU8,
    /// Objects on this page may start behind the first byte of their cells. Relaxed: the owner sets
    /// it before it has the object's address, and a thread that has the address is ordered behind
    /// that. The pool clears it, under its lock, when the page is free.
    pub(crate) prefixed: AtomicU8,
    owned: UnsafeCell<Owned>,
}

impl PageInfo {
    /// The page's layout.
    #[inline(always)]
    pub(crate) fn shape(&self) -> Shape {
        Shape::from_bits(self.shape.load(Ordering::Relaxed))
    }

    /// The arena that owns the page; 0 for none.
    #[inline(always)]
    pub(crate) fn arena(&self) -> u32 {
        self.arena.load(Ordering::Relaxed)
    }

    /// Gives the page an owner, or removes the owner.
    ///
    /// # Safety
    ///
    /// The caller owns the page, and orders the new owner behind itself (the pool's lock does).
    pub(crate) unsafe fn set_arena(&self, id: u32) {
        self.arena.store(id, Ordering::Relaxed);
    }

    /// Gives the page a wrong layout: a fault, for tests of the verifier.
    ///
    /// # Safety
    ///
    /// The world is stopped, and the layout is restored before the world resumes.
    #[cfg(test)]
    pub(crate) unsafe fn set_shape(&self, shape: Shape) {
        self.shape.store(shape.to_bits(), Ordering::Relaxed);
    }

    /// Whether the remote stack has cells. Relaxed: a hint. The next call finds cells that this
    /// call missed.
    #[inline]
    pub(crate) fn has_remote(&self) -> bool {
        self.remote.load(Ordering::Relaxed) != 0
    }

    /// The owner's data.
    ///
    /// # Safety
    ///
    /// The caller owns the page, and `f` does not call `owned` for it.
    #[inline]
    pub(crate) unsafe fn owned<R>(&self, f: impl FnOnce(&mut Owned) -> R) -> R {
        // SAFETY: rule *owner*: the owner is one thread, and it does not nest (caller).
        self.owned.with_mut(|owned| f(unsafe { &mut *owned }))
    }

    #[cfg(all(test, loom))]
    pub(super) fn new() -> Self {
        Self {
            shape: AtomicU64::new(0),
            arena: AtomicU32::new(0),
            remote: AtomicU32::new(0),
            young: AtomicU8::new(0),
            prefixed: AtomicU8::new(0),
            owned: UnsafeCell::new(Owned::default()),
        }
    }
}

/// One page's free bits, by granule. The bit of the first granule of each free cell is set.
pub(crate) type FreeBits = [u64; PAGE_GRANULES.div_ceil(64)];

/// Sets the bit of each cell of a small page with this shape, and clears all others.
pub(super) fn all_free(shape: Shape, bits: &mut FreeBits) {
    let cell = shape.cell();
    let behind_last = shape.first() + shape.cells() * cell;
    // A word with the bits 0, `cell`, 2 · `cell` …
    let mut pattern = 1;
    let mut period = cell;
    while period < 64 {
        pattern |= pattern << period;
        period *= 2;
    }
    let mut next = shape.first();
    for (index, word) in bits.iter_mut().enumerate() {
        let start = index * 64;
        *word = 0;
        if next < start + 64 && next < behind_last {
            let at = next - start;
            let room = (behind_last - start).min(64);
            *word = (pattern << at) & (u64::MAX >> (64 - room));
            next += (64 - at).div_ceil(cell) * cell;
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::memory::size_class::CLASS_SHAPES;

    #[test]
    fn the_bits_of_an_empty_page_are_the_starts_of_its_cells() {
        for shape in CLASS_SHAPES {
            let mut expected = [0; _];
            for n in 0..shape.cells() {
                let granule = shape.first() + n * shape.cell();
                expected[granule / 64] |= 1 << (granule % 64);
            }
            let mut bits: FreeBits = [u64::MAX; _];
            all_free(shape, &mut bits);
            assert_eq!(bits, expected, "cells of {} granules", shape.cell());
        }
    }
}
