//! A collection has the address of an object, but its data about the object is in the side tables.
//!
//! The tables are linear arrays, indexed by granule or page, and a [`Map`] computes the index.
//! There are two maps, because not every heap owns the memory of its objects:
//!
//! | map | an address belongs to the heap if | index | objects lie |
//! |---|---|---|---|
//! | [`Reserved`] | it lies in one reserved range | one subtraction | on pages of the range |
//! | [`segments`](super::segments) | its aligned 64 KiB are in a table of two levels | two dependent loads | in memory of others |
//!
//! The model of a heap chooses its map by a type ([`ObjectModel::Addresses`]). So a heap with a
//! reserved range contains no code of the other map, and no branch ([ADR
//! 42](../../docs/adr/0042-address-maps.md)).
//!
//! # Rules of a map
//!
//! * Each address of the heap keeps its index as long as the heap exists.
//! * The granules of a page are adjacent, in memory and in the tables. Two pages with consecutive
//!   numbers that the pool may hand out as parts of one run are adjacent in memory.
//! * All pages below the high-water mark have table entries.
//! * An address that a tracer of the heap accepts has an index below the high-water mark. If the
//!   map also has indices for addresses outside the heap, they lie on its page 0, which has no
//!   object.
//!
//! [`ObjectModel::Addresses`]: crate::model::ObjectModel::Addresses

use std::fmt;
use std::ptr::NonNull;

use crate::base::sync::{AtomicUsize, Ordering};
use crate::memory::pool::{PagePool, SpaceError};
use crate::memory::range::{ENOMEM, HeapRange, Range, ReserveError, with_ranges};
use crate::memory::shape::{GRANULE_SHIFT, PAGE_SHIFT};
use crate::memory::table::PageTable;

/// How a heap finds its own data about an object by the object's address, which is
/// [`Reserved`](crate::model::Reserved) or [`Segments`](crate::model::Segments).
///
/// An [`ObjectModel`](crate::model::ObjectModel) names the map of its heaps. Only the two types of
/// the library implement the trait.
#[expect(private_bounds, reason = "only types of this crate are maps")]
pub trait AddressMap: Map {}

/// The arithmetic of a map, and the memory behind its pages.
pub(crate) trait Map: Sized + fmt::Debug + Send + Sync + 'static {
    /// The part of the map that the loops of a collection need. It stays in registers, while the
    /// table itself would not, because other threads change it.
    type Origin: Index;

    /// Whether a heap may have pages in memory that it does not own.
    const ADOPTS: bool;

    /// The part of the map for the loops of a collection.
    fn origin(&self) -> Self::Origin;

    /// Start and length of the addresses that a tracer keeps.
    fn bounds(&self) -> (usize, usize);

    /// Bytes of address space that the heap has reserved for pages.
    fn reserved_bytes(&self) -> usize;

    fn contains(&self, addr: usize) -> bool;

    /// The granule of an address that a tracer of the heap accepts.
    fn granule(&self, addr: usize) -> usize;

    /// The page of such an address.
    fn page_index(&self, addr: usize) -> usize;

    /// The address of a granule below the high-water mark.
    fn address(&self, granule: usize) -> usize;

    /// The first byte of a page below the high-water mark.
    fn page_start(&self, page: usize) -> NonNull<u8>;

    /// Reserves address space for a heap with `bytes` bytes of pages. The pool hands out none yet.
    fn open(bytes: Option<usize>) -> Result<(PageTable<Self>, PagePool), ReserveError>;

    /// Raises the high-water mark, because the pool has no gap of `count` pages below it, and
    /// returns the first page of a gap. `start` is where a gap begins that ends above the mark.
    fn extend(
        table: &PageTable<Self>,
        pool: &mut PagePool,
        start: usize,
        count: usize,
    ) -> Result<usize, SpaceError>;

    /// Returns memory above the high-water mark to the system, up to the page `committed`.
    fn discard_above(table: &PageTable<Self>, committed: usize);
}

/// The arithmetic of the loops of a collection.
pub(crate) trait Index: Copy + fmt::Debug {
    /// The granule of an address that a tracer of the heap accepts.
    fn granule(self, addr: usize) -> usize;

    /// The memory at a granule. The pointer may access the whole cell.
    ///
    /// # Safety
    ///
    /// The granule is below the high-water mark.
    unsafe fn cell(self, granule: usize) -> NonNull<u8>;

    /// [`cell`](Self::cell) for the granules of a word of tables: a function of the granule's
    /// number in the word, whose first granule is `first`.
    ///
    /// # Safety
    ///
    /// The granules of the word are below the high-water mark, and on one page.
    #[inline(always)]
    unsafe fn cells(self, first: usize) -> impl Fn(usize) -> NonNull<u8> {
        // SAFETY: as the caller says.
        move |at| unsafe { self.cell(first + at) }
    }

    /// The object that a reference leads to, by an address that a tracer of the heap accepts. The
    /// pointer may access the whole cell.
    fn target(self, addr: usize) -> NonNull<u8>;
}

/// The map of a heap that reserves one range of addresses.
///
/// It is the fastest map, because one subtraction leads from an address to its index, and heaps of
/// typed objects use it. But no object can lie outside the range.
#[derive(Debug)]
pub struct Reserved {
    /// The address of `start`. This number and `length` are plain and constant, because `contains`
    /// must not load a field that threads write.
    base: usize,
    length: usize,
    start: NonNull<u8>,
}

// SAFETY: rule *guarded*: a constant pointer, which this type never reads through.
unsafe impl Send for Reserved {}
// SAFETY: as above.
unsafe impl Sync for Reserved {}

impl AddressMap for Reserved {}

/// The start of the range, which is enough to compute granules from addresses.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Origin(NonNull<u8>);

impl Index for Origin {
    #[inline(always)]
    fn granule(self, addr: usize) -> usize {
        (addr - self.0.addr().get()) >> GRANULE_SHIFT
    }

    #[inline(always)]
    unsafe fn cell(self, granule: usize) -> NonNull<u8> {
        // SAFETY: rule *mapped*: a granule below the high-water mark is inside the range.
        unsafe { self.0.add(granule << GRANULE_SHIFT) }
    }

    #[inline(always)]
    fn target(self, addr: usize) -> NonNull<u8> {
        let start = self.0.as_ptr().with_addr(addr >> GRANULE_SHIFT << GRANULE_SHIFT);
        // SAFETY: rule *mapped*: no granule of the range is at 0.
        unsafe { NonNull::new_unchecked(start) }
    }
}

impl Reserved {
    /// A table without pages, for a range.
    pub(super) fn table(range: Range) -> PageTable<Self> {
        let (start, length) = (range.base, range.length);
        let map = Self { base: start.as_ptr().expose_provenance(), length, start };
        PageTable { length, range, high_water: AtomicUsize::new(0), map }
    }
}

impl Map for Reserved {
    type Origin = Origin;

    const ADOPTS: bool = false;

    #[inline(always)]
    fn origin(&self) -> Origin {
        Origin(self.start)
    }

    #[inline(always)]
    fn bounds(&self) -> (usize, usize) {
        (self.base, self.length)
    }

    fn reserved_bytes(&self) -> usize {
        self.length
    }

    #[inline(always)]
    fn contains(&self, addr: usize) -> bool {
        addr.wrapping_sub(self.base) < self.length
    }

    #[inline(always)]
    fn granule(&self, addr: usize) -> usize {
        debug_assert!(self.contains(addr));
        (addr - self.base) >> GRANULE_SHIFT
    }

    #[inline(always)]
    fn page_index(&self, addr: usize) -> usize {
        debug_assert!(self.contains(addr));
        (addr - self.base) >> PAGE_SHIFT
    }

    #[inline(always)]
    fn address(&self, granule: usize) -> usize {
        self.base + (granule << GRANULE_SHIFT)
    }

    #[inline(always)]
    fn page_start(&self, page: usize) -> NonNull<u8> {
        debug_assert!(page < self.length >> PAGE_SHIFT);
        // SAFETY: rule *mapped*: inside the range.
        unsafe { self.start.add(page << PAGE_SHIFT) }
    }

    /// Reserves the range. If the system refuses, it tries smaller ranges, down to 64 MiB, or down
    /// to `bytes` if that is less.
    fn open(bytes: Option<usize>) -> Result<(PageTable<Self>, PagePool), ReserveError> {
        // The lock is held until the range is in the list, because the number of heaps decides the
        // length of the next range.
        with_ranges(|ranges| {
            let range = match bytes {
                Some(bytes) => Range::reserve(bytes)?,
                None => Range::reserve_some(ranges.iter().filter(|range| range.is_heap).count())?,
            };
            let table = Self::table(range);
            let (base, length) = table.bounds();
            let room = ranges.try_reserve(1);
            room.map_err(|_| ReserveError { asked: length, code: ENOMEM })?;
            HeapRange { base, length, word: 0, is_heap: true }.insert_into(ranges);
            Ok((table, PagePool::new()))
        })
    }

    fn extend(
        table: &PageTable<Self>,
        pool: &mut PagePool,
        start: usize,
        count: usize,
    ) -> Result<usize, SpaceError> {
        let (end, asked) = (start + count, count << PAGE_SHIFT);
        if end > table.length >> PAGE_SHIFT {
            let in_use = pool.in_use() << PAGE_SHIFT;
            return Err(SpaceError::Full { asked, in_use, reserved: table.length });
        }
        if end > pool.committed {
            pool.commit(table, end).map_err(|code| SpaceError::Refused { asked, code })?;
        }
        // Release: see `PageTable::high_water`.
        table.high_water.store(end, Ordering::Release);
        Ok(start)
    }

    fn discard_above(table: &PageTable<Self>, committed: usize) {
        let from = table.high_water();
        let bytes = committed.saturating_sub(from) << PAGE_SHIFT;
        table.range.discard(table.range.base, from << PAGE_SHIFT, bytes);
    }
}
