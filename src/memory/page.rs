//! A free must find the owner and the layout of a page from an address, so each page has an entry
//! in a side table. Lists of pages are linked through the entries, so that a list needs no memory
//! of its own.

use crate::base::sync::{AtomicU8, AtomicU32, AtomicU64, Ordering, UnsafeCell};
use crate::memory::address_map::Map;
use crate::memory::shape::{PAGE_GRANULES, Shape};
use crate::memory::sparse::Pieces;
use crate::memory::table::PageTable;

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

/// One page's entry in the side table. It fills one cache line, because the threads that write to
/// neighbouring entries should not share a line.
///
/// The entry of a page that was never used is all zero, because the system provides zeroed memory.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct PageInfo {
    /// [`Shape`]. Relaxed, because a reader either holds a cell of the page or runs in a stop. Both
    /// the thread that handed over the cell and the stop order this store before.
    pub(super) shape: AtomicU64,
    /// The arena that owns the page; 0 for none. Relaxed, because a thread only compares it with
    /// its own id, which only that thread writes here or removes. A thread cannot read its own id
    /// from an earlier use of the id, because the source of ids orders the retirement before. A
    /// thread that frees memory also compares it with [`SAMPLED`], which is written before the
    /// address of the memory is handed out, and stays until all of the page is freed.
    pub(super) arena: AtomicU32,
    /// The cells that other threads have freed, as a stack: the granule of the newest cell within
    /// the page, or 0. The first word of each dead cell is the link to the next.
    pub(super) remote: AtomicU32,
    /// An object on this page may be newer than the last collection. Relaxed, because running
    /// threads set it, and only a stop, which is ordered behind them, reads it. A stop clears it,
    /// and the pool does when the page is free.
    pub(crate) young: AtomicU8,
    /// Objects on this page may start behind the first byte of their cells. Relaxed, because the
    /// owner sets it before it has the object's address, and a thread that has the address is
    /// ordered behind that. The pool clears it, under its lock, when the page is free.
    pub(crate) prefixed: AtomicU8,
    owned: UnsafeCell<Owned>,
}

impl PageInfo {
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

    /// Whether the remote stack has cells. Relaxed, because it is only a hint, and the next call
    /// finds cells that this call missed.
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

    #[cfg(any(all(test, loom), standstill_loom))]
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

/// The [arena](PageInfo::arena) of a page of samples, or of the first page of a large one. The pool
/// owns the page, as if it was abandoned, but no arena takes it over.
pub(crate) const SAMPLED: u32 = u32::MAX;

/// One page's free bits, by granule, of which only those of the first granules of free cells are
/// set.
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

/// "No page", in a link.
const NO_PAGE: u32 = u32::MAX;

/// A doubly linked list of pages. The owner of the list owns its pages, because the links are in
/// `Owned`.
#[derive(Debug)]
pub(crate) struct PageList {
    head: u32,
    tail: u32,
    len: u32,
}

impl PageList {
    pub(crate) const EMPTY: Self = Self { head: NO_PAGE, tail: NO_PAGE, len: 0 };

    pub(crate) fn len(&self) -> usize {
        self.len as usize
    }

    pub(crate) fn front(&self) -> Option<u32> {
        (self.head != NO_PAGE).then_some(self.head)
    }

    /// Calls `f` with each page.
    ///
    /// # Safety
    ///
    /// The caller owns the list's pages, and `f` changes no list.
    pub(crate) unsafe fn for_each(&self, table: &PageTable<impl Map>, mut f: impl FnMut(u32)) {
        let mut next = self.front();
        for _ in 0..self.len {
            let Some(page) = next else { return };
            f(page);
            // SAFETY: rule *owner*: the caller owns the page.
            let link = unsafe { table.info(page).owned(|owned| owned.next) };
            next = (link != NO_PAGE).then_some(link);
        }
    }

    /// Puts a page in front.
    ///
    /// # Safety
    ///
    /// The caller owns `page`, which is on no list, and the list's pages.
    pub(crate) unsafe fn push_front(&mut self, table: &PageTable<impl Map>, page: u32) {
        // SAFETY: rule *owner*: the caller owns all pages involved.
        unsafe { self.link(table, NO_PAGE, page, self.head) }
    }

    /// Puts a page at the end.
    ///
    /// # Safety
    ///
    /// The caller owns `page`, which is on no list, and the list's pages.
    pub(crate) unsafe fn push_back(&mut self, table: &PageTable<impl Map>, page: u32) {
        // SAFETY: rule *owner*: the caller owns all pages involved.
        unsafe { self.link(table, self.tail, page, NO_PAGE) }
    }

    /// Takes the first page off.
    ///
    /// # Safety
    ///
    /// The caller owns the list's pages.
    pub(crate) unsafe fn pop_front(&mut self, table: &PageTable<impl Map>) -> Option<u32> {
        let page = self.front()?;
        // SAFETY: rule *owner*: it is on this list.
        unsafe { self.remove(table, page) };
        Some(page)
    }

    /// Takes one page off.
    ///
    /// # Safety
    ///
    /// The caller owns the list's pages, of which `page` is one.
    pub(crate) unsafe fn remove(&mut self, table: &PageTable<impl Map>, page: u32) {
        // SAFETY: rule *owner*: the caller owns the page and its neighbours; each closure touches
        // one entry.
        unsafe {
            let (prev, next) = table.info(page).owned(|owned| (owned.prev, owned.next));
            self.set_next(table, prev, next);
            self.set_prev(table, next, prev);
        }
        self.len -= 1;
    }

    /// Inserts a page with free cells at the front, and a page without at the end.
    ///
    /// # Safety
    ///
    /// The caller owns `page`, which is on no list, and the list's pages.
    pub(super) unsafe fn file(&mut self, table: &PageTable<impl Map>, page: u32) {
        // SAFETY: rule *owner*: the caller owns all pages involved.
        unsafe {
            match table.info(page).owned(|owned| owned.free) {
                0 => self.push_back(table, page),
                _ => self.push_front(table, page),
            }
        }
    }

    /// # Safety
    ///
    /// The caller owns the list and all the pages. `prev` and `next` are neighbours on the list.
    unsafe fn link(&mut self, table: &PageTable<impl Map>, prev: u32, page: u32, next: u32) {
        // SAFETY: rule *owner*: the caller owns the pages; each closure touches one entry.
        unsafe {
            table.info(page).owned(|owned| (owned.prev, owned.next) = (prev, next));
            self.set_next(table, prev, page);
            self.set_prev(table, next, page);
        }
        self.len += 1;
    }

    /// # Safety
    ///
    /// The caller owns `page`. If it is `NO_PAGE`, the method sets the list's head.
    unsafe fn set_next(&mut self, table: &PageTable<impl Map>, page: u32, next: u32) {
        match page {
            NO_PAGE => self.head = next,
            // SAFETY: rule *owner*: the caller owns the page.
            page => unsafe { table.info(page).owned(|owned| owned.next = next) },
        }
    }

    /// # Safety
    ///
    /// The caller owns `page`. If it is `NO_PAGE`, the method sets the list's tail.
    unsafe fn set_prev(&mut self, table: &PageTable<impl Map>, page: u32, prev: u32) {
        match page {
            NO_PAGE => self.tail = prev,
            // SAFETY: rule *owner*: the caller owns the page.
            page => unsafe { table.info(page).owned(|owned| owned.prev = prev) },
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
