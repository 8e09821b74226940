//! The range and the tables beside it: the arithmetic between addresses, granules and pages.

use std::ptr::NonNull;

use crate::base::sync::{AtomicU8, AtomicUsize, Ordering};
use crate::memory::page::{FreeBits, PageInfo};
use crate::memory::range::Range;
use crate::memory::shape::{
    Cell, GRANULE, GRANULE_SHIFT, PAGE_GRANULES, PAGE_SHIFT, PageKind, Shape,
};

/// The start of the range, which is enough to compute granules from addresses. In the loops of a
/// collection this value stays in a register. The space itself would not, because other threads
/// change it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Origin(NonNull<u8>);

impl Origin {
    /// The granule of an address of the space.
    #[inline(always)]
    pub(crate) fn granule(self, addr: usize) -> usize {
        (addr - self.0.addr().get()) >> GRANULE_SHIFT
    }

    /// The memory at a granule. The pointer may access the whole cell.
    ///
    /// # Safety
    ///
    /// The granule is inside the range.
    #[inline(always)]
    pub(crate) unsafe fn cell(self, granule: usize) -> NonNull<u8> {
        // SAFETY: as the caller says.
        unsafe { self.0.add(granule << GRANULE_SHIFT) }
    }
}

/// Granules of one page at equal distances. A step of the iterator is one addition and one
/// countdown.
#[derive(Clone, Debug)]
pub(crate) struct Starts {
    next: usize,
    step: usize,
    left: usize,
}

impl Iterator for Starts {
    type Item = usize;

    #[inline(always)]
    fn next(&mut self) -> Option<usize> {
        if self.left == 0 {
            return None;
        }
        let granule = self.next;
        self.left -= 1;
        self.next += self.step;
        Some(granule)
    }

    #[inline(always)]
    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left, Some(self.left))
    }
}

impl ExactSizeIterator for Starts {}

/// The range, and the entries of its pages.
pub(crate) struct PageTable {
    /// Both are plain and constant: `contains` must not load a field that threads write.
    pub(super) base: usize,
    pub(super) length: usize,
    pub(super) range: Range,
    /// Pages that were ever handed out. Written under the pool's lock.
    pub(super) high_water: AtomicUsize,
}

impl PageTable {
    /// The memory of the cell or large object that starts at `start`.
    ///
    /// # Safety
    ///
    /// As for [`page_of`](Self::page_of).
    pub(crate) unsafe fn memory(&self, start: NonNull<u8>) -> Cell {
        // SAFETY: as the caller says.
        Cell::of(unsafe { self.page_of(start.as_ptr().addr()) }.shape(), start)
    }

    /// Whether the address lies in this space's range. This takes no load.
    #[inline(always)]
    pub(crate) fn contains(&self, addr: usize) -> bool {
        addr.wrapping_sub(self.base) < self.length
    }

    /// The range's first address.
    #[inline(always)]
    pub(crate) fn base(&self) -> usize {
        self.base
    }

    /// Where the range begins.
    #[inline(always)]
    pub(crate) fn origin(&self) -> Origin {
        Origin(self.range.base)
    }

    /// The index of an address of this space in the tables with one byte for each granule.
    #[inline(always)]
    pub(crate) fn granule(&self, addr: usize) -> usize {
        debug_assert!(self.contains(addr));
        (addr - self.base) >> GRANULE_SHIFT
    }

    /// The address of a granule.
    #[inline(always)]
    pub(crate) fn address(&self, granule: usize) -> usize {
        self.base + (granule << GRANULE_SHIFT)
    }

    /// The page that an address of this space is on.
    #[inline(always)]
    pub(crate) fn page_index(&self, addr: usize) -> usize {
        debug_assert!(self.contains(addr));
        (addr - self.base) >> PAGE_SHIFT
    }

    /// How many pages were ever handed out. All later pages are untouched and have no table
    /// entries.
    ///
    /// Acquire pairs with the release store in `PagePool::take`: the entries below the mark are
    /// accessible. A thread that has the address of a page is ordered behind that store, so it
    /// cannot read an older mark.
    #[inline]
    pub(crate) fn high_water(&self) -> usize {
        self.high_water.load(Ordering::Acquire)
    }

    /// One page's entry. Panics at and above the high-water mark.
    #[inline]
    pub(crate) fn page(&self, index: usize) -> &PageInfo {
        assert!(index < self.high_water(), "page {index} was never handed out");
        // SAFETY: rule *mapped*: below the mark.
        unsafe { self.range.info(index) }
    }

    /// The entry of the page that `addr` is on, unchecked.
    ///
    /// # Safety
    ///
    /// `addr` lies on a page that this space has handed out.
    #[inline(always)]
    pub(crate) unsafe fn page_of(&self, addr: usize) -> &PageInfo {
        debug_assert!(self.handed_out(self.page_index(addr)));
        // SAFETY: rule *mapped*: the page was handed out, so it is below the mark.
        unsafe { self.range.info(self.page_index(addr)) }
    }

    /// As `page`, unchecked.
    ///
    /// # Safety
    ///
    /// This space has handed the page out.
    #[inline(always)]
    pub(crate) unsafe fn info(&self, page: u32) -> &PageInfo {
        debug_assert!(self.handed_out(page as usize));
        // SAFETY: rule *mapped*: the page was handed out, so it is below the mark.
        unsafe { self.range.info(page as usize) }
    }

    /// For assertions. Under loom the tables check themselves, and each load here would add a
    /// branch to the model.
    fn handed_out(&self, page: usize) -> bool {
        cfg!(all(test, loom)) || page < self.high_water()
    }

    /// One byte for each granule up to the high-water mark. The model defines its meaning, except
    /// that it is 0 for free cells.
    #[inline]
    pub(crate) fn states(&self) -> &[AtomicU8] {
        // SAFETY: rule *mapped*: the entries below the mark are accessible.
        unsafe { self.range.states(self.high_water() * PAGE_GRANULES) }
    }

    /// One byte for each granule up to the high-water mark, for collections.
    #[inline]
    pub(crate) fn counts(&self) -> &[AtomicU8] {
        // SAFETY: rule *mapped*: the entries below the mark are accessible.
        unsafe { self.range.counts(self.high_water() * PAGE_GRANULES) }
    }

    /// The state byte of one granule. It does not read the high-water mark: for births and deaths.
    ///
    /// # Safety
    ///
    /// The granule lies on a page that this space has handed out.
    #[inline(always)]
    pub(crate) unsafe fn state(&self, granule: usize) -> &AtomicU8 {
        debug_assert!(self.handed_out(granule / PAGE_GRANULES));
        // SAFETY: rule *mapped*: the page was handed out, so its entries are accessible.
        unsafe { self.range.state(granule) }
    }

    /// The granules on which the cells of a page start, in use or not, in address order. For a
    /// large object, the granule of the object. Free pages and tail pages have none.
    #[inline]
    pub(crate) fn starts(&self, page: usize) -> Starts {
        let shape = self.page(page).shape();
        let (step, left) = match shape.kind() {
            PageKind::Small => (shape.cell(), shape.cells()),
            PageKind::Large => (0, 1),
            PageKind::Free | PageKind::Tail => (0, 0),
        };
        Starts { next: page * PAGE_GRANULES + shape.first(), step, left }
    }

    /// The granules on which objects of a page can start, in address order. These are the starts
    /// of its cells. If objects with a prefix may lie on the page, they are all granules of its
    /// cells.
    #[inline]
    pub(crate) fn objects(&self, page: usize) -> Starts {
        let cells = self.starts(page);
        // Relaxed: see `PageInfo::prefixed`. No large page has the flag.
        match self.page(page).prefixed.load(Ordering::Relaxed) {
            0 => cells,
            _ => Starts { step: 1, left: cells.left * cells.step, ..cells },
        }
    }

    /// The start of the cell that an object lies in. For a large object, the object's address.
    ///
    /// # Safety
    ///
    /// `object` is the address that an allocation of this space has returned for an object, and
    /// its memory is in use.
    #[inline(always)]
    pub(crate) unsafe fn cell_around(&self, object: NonNull<u8>) -> NonNull<u8> {
        // SAFETY: rule *mapped*: the object lies on a page that was handed out.
        let page = unsafe { self.page_of(object.as_ptr().addr()) };
        // Relaxed: see `PageInfo::prefixed`.
        if page.prefixed.load(Ordering::Relaxed) == 0 {
            return object;
        }
        // SAFETY: as the caller says.
        unsafe { self.find_cell(object, page.shape()) }
    }

    /// # Safety
    ///
    /// As for [`cell_around`](Self::cell_around). The object lies on a small page of this shape.
    #[cold]
    unsafe fn find_cell(&self, object: NonNull<u8>, shape: Shape) -> NonNull<u8> {
        debug_assert_eq!(shape.kind(), PageKind::Small);
        let granule = self.granule(object.as_ptr().addr()) % PAGE_GRANULES;
        let prefix = (granule - shape.first()) % shape.cell();
        // SAFETY: as the caller says: the cell starts `prefix` granules before.
        unsafe { object.sub(prefix << GRANULE_SHIFT) }
    }

    /// Whether a cell or a large object starts at an address.
    pub(crate) fn starts_at(&self, addr: usize) -> bool {
        let granule = self.granule(addr);
        let page = granule / PAGE_GRANULES;
        if !self.contains(addr) || !addr.is_multiple_of(GRANULE) || page >= self.high_water() {
            return false;
        }
        let shape = self.page(page).shape();
        let first = page * PAGE_GRANULES + shape.first();
        match shape.kind() {
            PageKind::Small => {
                granule >= first
                    && (granule - first).is_multiple_of(shape.cell())
                    && (granule - first) / shape.cell() < shape.cells()
            }
            PageKind::Large => granule == first,
            PageKind::Free | PageKind::Tail => false,
        }
    }

    /// A page's free bits.
    ///
    /// # Safety
    ///
    /// The caller owns the page, and `f` does not call `free_bits` for it.
    #[inline]
    pub(crate) unsafe fn free_bits<R>(&self, page: u32, f: impl FnOnce(&mut FreeBits) -> R) -> R {
        debug_assert!(self.handed_out(page as usize));
        // SAFETY: rules *mapped* and *owner*: the page was handed out, so its bits are accessible,
        // and only the owner calls this.
        unsafe { self.range.bits(page as usize).with_mut(|bits| f(&mut *bits)) }
    }

    /// Bytes of the range for pages.
    pub(crate) fn reserved_bytes(&self) -> usize {
        self.length
    }

    /// The memory at a granule. The pointer may access the whole cell.
    ///
    /// # Safety
    ///
    /// The granule is inside the range.
    #[inline(always)]
    pub(crate) unsafe fn cell(&self, granule: usize) -> NonNull<u8> {
        // SAFETY: as the caller says.
        unsafe { self.origin().cell(granule) }
    }

    /// A page's first byte.
    pub(super) fn page_start(&self, page: u32) -> NonNull<u8> {
        debug_assert!((page as usize) < self.length >> PAGE_SHIFT);
        // SAFETY: rule *mapped*: inside the range.
        unsafe { self.range.base.add((page as usize) << PAGE_SHIFT) }
    }
}
