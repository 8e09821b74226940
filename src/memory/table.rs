//! A collection finds its data about an object by the object's address. So this data lies in tables
//! beside the pages, indexed by granule or page.
//!
//! The [address map](crate::memory::address_map) computes the indices.

use std::ptr::NonNull;

use crate::base::sync::{AtomicU8, AtomicUsize, Ordering};
use crate::memory::address_map::{Index, Map};
use crate::memory::page::{FreeBits, PageInfo};
use crate::memory::range::Range;
use crate::memory::shape::{Cell, GRANULE_SHIFT, PAGE_GRANULES, PageKind, Shape};

/// Granules of one page at equal distances, so that a step of the iterator is one addition and one
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

/// The tables, the map that finds their entries, and the range with the memory of both.
pub(crate) struct PageTable<A: Map> {
    /// Bytes of the pages that can have entries.
    pub(super) length: usize,
    pub(super) range: Range,
    /// Pages below this number have entries. Written under the pool's lock.
    pub(super) high_water: AtomicUsize,
    pub(super) map: A,
}

impl<A: Map> PageTable<A> {
    /// The memory of the cell or large object that starts at `start`.
    ///
    /// # Safety
    ///
    /// As for [`page_of`](Self::page_of).
    pub(crate) unsafe fn memory(&self, start: NonNull<u8>) -> Cell {
        // SAFETY: as the caller says.
        Cell::of(unsafe { self.page_of(start.as_ptr().addr()) }.shape(), start)
    }

    #[inline(always)]
    pub(crate) fn contains(&self, addr: usize) -> bool {
        self.map.contains(addr)
    }

    /// Start and length of the addresses that a tracer keeps. They include all addresses of this
    /// space. A map that has granules for other addresses includes these, too, because the loops
    /// then need no test.
    #[inline(always)]
    pub(crate) fn bounds(&self) -> (usize, usize) {
        self.map.bounds()
    }

    /// The part of the map that the loops of a collection need.
    #[inline(always)]
    pub(crate) fn origin(&self) -> A::Origin {
        self.map.origin()
    }

    /// The index of an address of this space in the tables with one byte for each granule.
    #[inline(always)]
    pub(crate) fn granule(&self, addr: usize) -> usize {
        self.map.granule(addr)
    }

    #[inline(always)]
    pub(crate) fn address(&self, granule: usize) -> usize {
        self.map.address(granule)
    }

    /// The page that an address of this space is on.
    #[inline(always)]
    pub(crate) fn page_index(&self, addr: usize) -> usize {
        self.map.page_index(addr)
    }

    /// How many pages have table entries. No later page was handed out.
    ///
    /// Acquire pairs with the release stores of the maps, so that the entries below the mark are
    /// accessible. A thread that has the address of a page is ordered behind that store, and cannot
    /// read an older mark.
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

    /// For assertions, but not under loom, because the tables check themselves there and each load
    /// here would add a branch to the model.
    fn handed_out(&self, page: usize) -> bool {
        cfg!(any(all(test, loom), standstill_loom)) || page < self.high_water()
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

    /// The state byte of one granule, for births and deaths: it does not read the high-water mark.
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

    /// The granules on which the cells of a page start, in use or not, in address order, or the
    /// granule of a large object. Free pages and tail pages have none.
    #[inline]
    pub(crate) fn starts(&self, page: usize) -> Starts {
        let shape = self.page(page).shape();
        let (step, left) = match shape.kind() {
            PageKind::Small | PageKind::Foreign => (shape.cell(), shape.cells()),
            PageKind::Large => (0, 1),
            PageKind::Free | PageKind::Tail | PageKind::Nowhere => (0, 0),
        };
        Starts { next: page * PAGE_GRANULES + shape.first(), step, left }
    }

    /// The granules on which objects of a page can start, in address order. These are the starts
    /// of its cells or, if objects with a prefix may lie on the page, all granules of its cells.
    #[inline]
    pub(crate) fn objects(&self, page: usize) -> Starts {
        let cells = self.starts(page);
        // Relaxed: see `PageInfo::prefixed`. No large page has the flag.
        match self.page(page).prefixed.load(Ordering::Relaxed) {
            0 => cells,
            _ => Starts { step: 1, left: cells.left * cells.step, ..cells },
        }
    }

    /// The start of the cell that an object lies in, or the address of a large object.
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
        if !self.contains(addr) || page >= self.high_water() || self.address(granule) != addr {
            return false;
        }
        let shape = self.page(page).shape();
        let first = page * PAGE_GRANULES + shape.first();
        match shape.kind() {
            PageKind::Small | PageKind::Foreign => {
                granule >= first
                    && (granule - first).is_multiple_of(shape.cell())
                    && (granule - first) / shape.cell() < shape.cells()
            }
            PageKind::Large => granule == first,
            PageKind::Free | PageKind::Tail | PageKind::Nowhere => false,
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

    /// Bytes of address space that are reserved for pages.
    pub(crate) fn reserved_bytes(&self) -> usize {
        self.map.reserved_bytes()
    }

    /// The memory at a granule. The pointer may access the whole cell.
    ///
    /// # Safety
    ///
    /// The granule is below the high-water mark.
    #[inline(always)]
    pub(crate) unsafe fn cell(&self, granule: usize) -> NonNull<u8> {
        // SAFETY: as the caller says.
        unsafe { self.origin().cell(granule) }
    }

    #[inline(always)]
    pub(super) fn page_start(&self, page: u32) -> NonNull<u8> {
        self.map.page_start(page as usize)
    }

    /// Returns memory without content to the system: pages that are free, or parts of a page. Pages
    /// that are released together are adjacent in memory.
    pub(super) fn discard(&self, page: u32, from: usize, bytes: usize) {
        if bytes > 0 {
            self.range.discard(self.map.page_start(page as usize), from, bytes);
        }
    }
}
