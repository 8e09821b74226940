//! Address maps: from an address to the index of its table entries, and back.
//!
//! The side tables of a heap are linear arrays, indexed by granule or page. An [`AddressMap`]
//! computes the index. There are two maps:
//!
//! | map | an address belongs to the heap if | index | memory of the pages |
//! |---|---|---|---|
//! | [`Reserved`] | it lies in one reserved range | one subtraction | the range |
//! | [`Segments`](crate::memory::segments::Segments) | its aligned MiB is in a table of two levels | two dependent loads | segments of 1 to 32 MiB, and memory of others |
//!
//! The model of a heap chooses its map by a type ([`ObjectModel::Addresses`]), so that a heap with
//! a reserved range contains no code of the other map, and no branch
//! ([ADR 42](../../docs/adr/0042-address-maps.md)).
//!
//! # Rules of a map
//!
//! * Each address of the heap has one index as long as the heap exists.
//! * The granules of a page are adjacent, in memory and in the tables. Two pages with consecutive
//!   numbers that the pool may hand out as parts of one run are adjacent in memory.
//! * All pages below the high-water mark have table entries.
//! * An address that a tracer of the heap accepts has an index below the high-water mark. For an
//!   address outside the heap this is granule 0, where such a map has no object.
//!
//! [`ObjectModel::Addresses`]: crate::model::ObjectModel::Addresses

use std::fmt;
use std::ptr::NonNull;

use crate::base::sync::{AtomicUsize, Ordering};
use crate::memory::pool::{PagePool, SpaceError};
use crate::memory::range::{ENOMEM, Range, ReserveError};
use crate::memory::ranges::{HeapRange, RANGES};
use crate::memory::shape::{GRANULE_SHIFT, PAGE_SHIFT};
use crate::memory::space::SpaceConfig;
use crate::memory::table::PageTable;

/// How a heap finds its own data about an object by the object's address: [`Reserved`] or
/// [`Segments`](crate::model::Segments).
///
/// An [`ObjectModel`](crate::model::ObjectModel) names the map of its heaps. Only the two types of
/// the library implement the trait.
#[expect(private_bounds, reason = "only the types of this crate are maps")]
pub trait AddressMap: Map {}

/// The map of a heap that reserves one range of addresses.
///
/// It is the fastest map. The heap cannot have objects outside its range. Heaps of typed objects
/// use it.
#[derive(Debug)]
pub enum Reserved {}

impl AddressMap for Reserved {}

/// The arithmetic of an address map. Each function takes the table that contains the map's data.
pub(crate) trait Map: Sized + fmt::Debug + 'static {
    /// The data of the map, beside the tables.
    type State: fmt::Debug + Send + Sync;

    /// The part of the map that the loops of a collection need. It stays in registers.
    type Origin: Index;

    /// Whether a heap may have pages in memory that it does not own.
    const ADOPTS: bool;

    /// Reserves the address space of a heap, whose pool has no pages.
    fn open(config: SpaceConfig) -> Result<(PageTable<Self>, PagePool), ReserveError>;

    /// The part of the map for the loops of a collection.
    fn origin(table: &PageTable<Self>) -> Self::Origin;

    /// Start and length of the addresses that a tracer keeps.
    fn bounds(table: &PageTable<Self>) -> (usize, usize);

    /// Bytes of address space that the heap has reserved for pages.
    fn reserved_bytes(table: &PageTable<Self>) -> usize;

    /// Whether the address belongs to the heap.
    fn contains(table: &PageTable<Self>, addr: usize) -> bool;

    /// The granule of an address that belongs to the heap.
    fn granule(table: &PageTable<Self>, addr: usize) -> usize;

    /// The page of an address that belongs to the heap.
    fn page_index(table: &PageTable<Self>, addr: usize) -> usize;

    /// The address of a granule.
    fn address(table: &PageTable<Self>, granule: usize) -> usize;

    /// A page's first byte.
    fn page_start(table: &PageTable<Self>, page: usize) -> NonNull<u8>;

    /// The pool has no gap of `count` pages below the high-water mark. Raises the mark, and returns
    /// the first page of a gap. `start` is where a gap begins that ends above the mark.
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
}

/// The start of the range, which is enough to compute granules from addresses. In the loops of a
/// collection this value stays in a register. The space itself would not, because other threads
/// change it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Origin(NonNull<u8>);

impl Index for Origin {
    #[inline(always)]
    fn granule(self, addr: usize) -> usize {
        (addr - self.0.addr().get()) >> GRANULE_SHIFT
    }

    #[inline(always)]
    unsafe fn cell(self, granule: usize) -> NonNull<u8> {
        // SAFETY: as the caller says.
        unsafe { self.0.add(granule << GRANULE_SHIFT) }
    }
}

impl Map for Reserved {
    type State = ();
    type Origin = Origin;

    const ADOPTS: bool = false;

    /// Reserves the range. If the system refuses, it tries smaller ranges, down to 64 MiB or
    /// `config.reserve` if that is less.
    fn open(config: SpaceConfig) -> Result<(PageTable<Self>, PagePool), ReserveError> {
        // The lock is held until the range is in the list, because the number of heaps decides the
        // length of the next range.
        let mut ranges = RANGES.write();
        let range = match config.reserve {
            Some(bytes) => Range::reserve(bytes)?,
            None => Range::reserve_some(ranges.iter().filter(|range| range.is_heap).count())?,
        };
        let (base, length) = (range.base.as_ptr().expose_provenance(), range.length);
        let known = ranges.try_reserve(1).map_err(|_| ReserveError { asked: length, code: ENOMEM });
        known?;
        HeapRange { base, length, word: 0, is_heap: true }.insert_into(&mut ranges);
        drop(ranges);
        let high_water = AtomicUsize::new(0);
        Ok((PageTable { base, length, range, high_water, state: () }, PagePool::new()))
    }

    #[inline(always)]
    fn origin(table: &PageTable<Self>) -> Origin {
        Origin(table.range.base)
    }

    #[inline(always)]
    fn bounds(table: &PageTable<Self>) -> (usize, usize) {
        (table.base, table.length)
    }

    fn reserved_bytes(table: &PageTable<Self>) -> usize {
        table.length
    }

    #[inline(always)]
    fn contains(table: &PageTable<Self>, addr: usize) -> bool {
        addr.wrapping_sub(table.base) < table.length
    }

    #[inline(always)]
    fn granule(table: &PageTable<Self>, addr: usize) -> usize {
        debug_assert!(Self::contains(table, addr));
        (addr - table.base) >> GRANULE_SHIFT
    }

    #[inline(always)]
    fn page_index(table: &PageTable<Self>, addr: usize) -> usize {
        debug_assert!(Self::contains(table, addr));
        (addr - table.base) >> PAGE_SHIFT
    }

    #[inline(always)]
    fn address(table: &PageTable<Self>, granule: usize) -> usize {
        table.base + (granule << GRANULE_SHIFT)
    }

    #[inline(always)]
    fn page_start(table: &PageTable<Self>, page: usize) -> NonNull<u8> {
        debug_assert!(page < table.length >> PAGE_SHIFT);
        // SAFETY: rule *mapped*: inside the range.
        unsafe { table.range.base.add(page << PAGE_SHIFT) }
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
