//! The entry of a page in the side table.

use crate::base::sync::{AtomicU8, AtomicU32, AtomicU64, Ordering, UnsafeCell};
use crate::memory::shape::{PAGE_GRANULES, Shape};

/// What only the owner of a page touches.
#[derive(Debug, Default)]
pub(crate) struct Owned {
    /// Cells marked in the free bits.
    pub(crate) free: u32,
    pub(super) prev: u32,
    pub(super) next: u32,
}

/// One page's entry in the side table: one cache line, so that neighbours do not share.
///
/// All zero is the entry of a page never used.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct PageInfo {
    /// [`Shape`]. Relaxed: who acts on it either holds a cell of the page, which reached him after the
    /// store through whatever handed the cell over, or runs in a stop, ordered by its handshake.
    pub(super) shape: AtomicU64,
    /// The arena that owns the page; 0 is nobody. Relaxed: the only question is "is it mine", and only
    /// this thread writes its own id here or takes it away. An id that is given out again is ordered
    /// behind the retirement by whatever gave it out, so nobody can read his own id from an older life.
    pub(super) arena: AtomicU32,
    /// Cells freed by threads that do not own the page: the granule within the page of the newest, 0
    /// for none; each dead cell's first word is the link to the next.
    pub(super) remote: AtomicU32,
    /// Something on this page may be newer than the last collection. Relaxed: set by running threads,
    /// read and cleared in a stop, whose handshake orders them.
    pub(crate) young: AtomicU8,
    owned: UnsafeCell<Owned>,
}

impl PageInfo {
    /// The page's layout.
    #[inline(always)]
    pub(crate) fn shape(&self) -> Shape {
        Shape::from_bits(self.shape.load(Ordering::Relaxed))
    }

    /// The arena that owns the page; 0 is nobody.
    #[inline(always)]
    pub(crate) fn arena(&self) -> u32 {
        self.arena.load(Ordering::Relaxed)
    }

    /// Gives the page an owner, or takes it away.
    ///
    /// # Safety
    ///
    /// The caller owns the page, and orders the new owner behind itself (the pool's lock does).
    pub(crate) unsafe fn set_arena(&self, id: u32) {
        self.arena.store(id, Ordering::Relaxed);
    }

    /// Gives the page a layout that is not its own: a fault, for tests of what finds it.
    ///
    /// # Safety
    ///
    /// The world is stopped, and the layout is put right before it goes on.
    #[cfg(test)]
    pub(crate) unsafe fn set_shape(&self, shape: Shape) {
        self.shape.store(shape.to_bits(), Ordering::Relaxed);
    }

    /// Whether cells wait on the remote stack. Relaxed and a hint: a miss is found the next time.
    #[inline]
    pub(crate) fn has_remote(&self) -> bool {
        self.remote.load(Ordering::Relaxed) != 0
    }

    /// The owner's data.
    ///
    /// # Safety
    ///
    /// The caller owns the page, and `f` does not come here again.
    #[inline]
    pub(crate) unsafe fn owned<R>(&self, f: impl FnOnce(&mut Owned) -> R) -> R {
        // SAFETY: rule O: the owner is one thread, and it does not nest (caller).
        self.owned.with_mut(|owned| f(unsafe { &mut *owned }))
    }

    #[cfg(all(test, loom))]
    pub(super) fn new() -> Self {
        Self {
            shape: AtomicU64::new(0),
            arena: AtomicU32::new(0),
            remote: AtomicU32::new(0),
            young: AtomicU8::new(0),
            owned: UnsafeCell::new(Owned::default()),
        }
    }
}

/// One page's free bits, by granule: set on the first granule of each free cell.
pub(crate) type FreeBits = [u64; PAGE_GRANULES.div_ceil(64)];
