//! The address map of a heap with one reserved range.

use std::ptr::NonNull;

use crate::base::sync::{AtomicUsize, Ordering};
use crate::memory::address_map::{AddressMap, Index, Map};
use crate::memory::pool::{PagePool, PageSource, SpaceError};
use crate::memory::range::{ENOMEM, Range, ReserveError};
use crate::memory::ranges::{self, HeapRange};
use crate::memory::shape::{GRANULE_SHIFT, PAGE_SHIFT};
use crate::memory::table::PageTable;

/// The map of a heap that reserves one range of addresses.
///
/// It is the fastest map. The heap cannot have objects outside its range. Heaps of typed objects
/// use it.
#[derive(Debug)]
pub struct Reserved {
    /// The address of `start`. Both numbers are plain and constant: `contains` must not load a
    /// field that threads write.
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
}

impl PageSource for Reserved {
    /// Reserves the range. If the system refuses, it tries smaller ranges, down to 64 MiB or
    /// `bytes` if that is less.
    fn open(bytes: Option<usize>) -> Result<(PageTable<Self>, PagePool), ReserveError> {
        // The lock is held until the range is in the list, because the number of heaps decides the
        // length of the next range.
        ranges::with(|ranges| {
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
