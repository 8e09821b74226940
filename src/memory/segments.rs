//! A runtime such as CPython has objects wherever its own allocator puts them, so no range contains
//! them all and no subtraction leads to their table entries. For this map the address space
//! consists of *units*, which are aligned pieces of 64 KiB, a page each. Because the units of a
//! heap have numbers, a table of two levels leads from an address to the number of its unit. An
//! array leads from the number back to the address:
//!
//! ```text
//! address   | block: bits 30..48 | leaf entry: bits 16..30 | offset in the unit: bits 0..16 |
//!                 |                        |
//!  blocks [262144 + 1]  -> leaf      leaves [16384 each] -> unit      units [unit] -> address
//! ```
//!
//! A granule is `unit * 2048 + offset / 32`, and a page is a unit, so that the side tables stay
//! linear arrays by granule and by page. For example, the address `0x7f3a_1234_5678` has entry
//! `0x1234` in the leaf of block `0x1fce8`. If unit 5 is there, the granule is `5 * 2048 + 0x5678 /
//! 32`, which is 10,931. The heap reserves 4.3 KiB of tables for each unit that it can have, but no
//! address for the unit itself.
//!
//! Unit 0 has no memory and no object, and each address outside the heap has a granule there. So
//! counting and marking need no test whether a reference leads into the heap, because they treat
//! the granule as that of an object that is no candidate. Its page is `Nowhere`, and its counting
//! bytes are zeroed with the page, which each full collection visits. All other units are
//! *adopted*, with `Foreign` pages. The pool hands out none of them, because a heap with this map
//! has no memory of its own.
//!
//! Addresses from 2^48 on all have the last block, which has no leaf with an entry.
//!
//! # Adopted memory
//!
//! A runtime gives the heap aligned memory ([`ModelMutator::adopt`]) and *registers* the objects
//! that it creates there. A registered object has a state byte like any other object, and the
//! collector treats it as one. The heap never frees adopted memory, and reads and writes it only
//! through the model. Therefore the pages have no header, and `Space::heap_of` does not exist for
//! this map.
//!
//! An object in adopted memory takes at least 32 bytes, and starts at a multiple of 16, so that no
//! two objects start in one granule. The bit of the granule in the table of free bits, which
//! adopted pages do not use otherwise, tells in which *half* of the granule the object starts. The
//! bit is written when the object is registered or listed, and stays when the object is gone.
//!
//! Both halves of a granule have the same index. So a reference to another thing in the same
//! granule, such as 16 bytes in front of an object, would count as one to the object. Therefore no
//! traversal may report such an address ([`ModelMutator::register`] says so).
//!
//! # Access
//!
//! The tables of this map are written under the pool's lock, by threads that are attached, and read
//! without a lock. Each entry is written once, before the high-water mark is raised, and a thread
//! that has the address of an object is ordered behind that (see [`PageTable::high_water`]). For
//! another address the answers of before and of after are both right. So all accesses can be
//! relaxed. An entry that is not written yet reads as 0, because the leaves lie in memory that is
//! zero before the heap exists.
//!
//! # Invariants
//!
//! * An entry of a leaf is 0, or the number of a unit whose pages have table entries.
//! * If an object lives at a granule of an adopted page, the granule's bit is set if the object
//!   starts in the second half.
//! * The address in `units` of unit 0 is in no unit.
//!
//! [`ModelMutator::adopt`]: crate::model::ModelMutator::adopt
//! [`ModelMutator::register`]: crate::model::ModelMutator::register

#[allow(unsafe_code)]
#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;

use std::any::Any;
use std::fmt;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64};

use crate::base::sync::{AtomicUsize, Ordering};
use crate::memory::address_map::{AddressMap, Index, Map};
use crate::memory::pool::{PagePool, SpaceError};
use crate::memory::range::{ENOMEM, HeapRange, Range, ReserveError, with_ranges};
use crate::memory::shape::{
    GRANULE, GRANULE_SHIFT, PAGE_GRANULES, PAGE_SHIFT, PAGE_SIZE, PageKind, Shape,
};
use crate::memory::space::Space;
use crate::memory::table::PageTable;

const UNIT_SHIFT: u32 = PAGE_SHIFT;
/// Bytes of a unit, and the alignment of segments.
pub(crate) const UNIT: usize = 1 << UNIT_SHIFT;
/// The shift from a granule to its unit.
const GRANULES_SHIFT: u32 = UNIT_SHIFT - GRANULE_SHIFT;
const BLOCK_SHIFT: u32 = 30;
/// The number of blocks, which end at 2^48, because the addresses of programs are mostly below.
const BLOCKS: usize = 1 << (48 - BLOCK_SHIFT);
const LEAF: usize = 1 << (BLOCK_SHIFT - UNIT_SHIFT);
/// Bytes from the start of the directory to the leaves.
const LEAVES_AT: usize = ((BLOCKS + 1) * size_of::<u32>()).next_multiple_of(PAGE_SIZE);
/// Half a granule: objects in adopted memory start at multiples of it.
pub(crate) const HALF: usize = GRANULE / 2;
/// The address of unit 0, which has no memory. It is not 0, so that it can be an object's.
const NOWHERE: usize = GRANULE;

/// The map of a heap whose objects lie in memory that others allocated.
///
/// Such a heap has no memory of its own: [`adopt`](crate::model::ModelMutator::adopt) and
/// [`ObjectList`](crate::model::ObjectList) name the memory, and a call of
/// [`allocate`](crate::model::ModelMutator::allocate) does not compile. The heap reserves address
/// space for tables only, a fifteenth of the bytes that
/// [`HeapBuilder::reserve`](crate::HeapBuilder::reserve) names. A reference costs two loads more
/// than with a [`Reserved`](crate::model::Reserved) range each time that the collector looks at it.
#[derive(Debug)]
pub struct Segments {
    directory: Directory,
    /// Leaves that the directory has room for.
    most_leaves: usize,
    /// Leaves in use, of which the first one belongs to all blocks without a unit. Relaxed, because
    /// it is read and written under the pool's lock.
    leaves: AtomicUsize,
    /// Bytes of the tables.
    reserved: usize,
}

// SAFETY: rule *guarded*: atomics, in memory of the space.
unsafe impl Send for Segments {}
// SAFETY: as above.
unsafe impl Sync for Segments {}

impl AddressMap for Segments {}

/// Why memory cannot be adopted, or an object in it cannot be registered. Nothing has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AdoptError {
    /// The start or the length is not a multiple of 64 KiB, or the length is 0.
    Unaligned {
        /// The first byte.
        start: usize,
        /// The length.
        bytes: usize,
    },
    /// A part of the memory belongs to a heap already.
    Taken {
        /// The first byte.
        start: usize,
        /// The length.
        bytes: usize,
    },
    /// The heap has no table entries for so much memory, or the memory ends above 2^48.
    /// `HeapBuilder::reserve` sets how many entries it has.
    Full {
        /// Bytes for which the heap has table entries.
        reserved: usize,
    },
    /// The system has no memory for the tables.
    System {
        /// The system's error code.
        code: i32,
    },
    /// The object does not lie in memory that the heap has adopted.
    NotAdopted {
        /// The object's address.
        address: usize,
    },
    /// The object's address is not a multiple of 16.
    Misplaced {
        /// The object's address.
        address: usize,
    },
    /// An object is registered at the address, or starts in the same aligned 32 bytes.
    Registered {
        /// The object's address.
        address: usize,
    },
}

impl fmt::Display for AdoptError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Unaligned { start, bytes } => write!(
                f,
                "a heap adopts memory in units of {UNIT} bytes: {bytes} bytes at {start:#x} are not \
                 aligned to that"
            ),
            Self::Taken { start, bytes } => {
                write!(f, "a part of the {bytes} bytes at {start:#x} belongs to a heap already")
            }
            Self::Full { reserved } => write!(
                f,
                "the heap has tables for {reserved} bytes, which are used up or end below the \
                 address: reserve more with `HeapBuilder::reserve`, or adopt memory below 2^48"
            ),
            Self::System { code } => {
                let cause = std::io::Error::from_raw_os_error(code);
                write!(f, "the system has no memory for the tables of adopted memory: {cause}")
            }
            Self::NotAdopted { address } => write!(
                f,
                "the object at {address:#x} does not lie in adopted memory: call `adopt` first"
            ),
            Self::Misplaced { address } => {
                write!(f, "the object at {address:#x} does not start at a multiple of {HALF}")
            }
            Self::Registered { address } => {
                write!(
                    f,
                    "an object is registered at {address:#x} already, or starts in the same aligned \
                     {GRANULE} bytes"
                )
            }
        }
    }
}

impl std::error::Error for AdoptError {}

/// The part of the map for the loops of a collection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Directory {
    /// The blocks, and the leaves behind them.
    blocks: NonNull<AtomicU32>,
    units: NonNull<AtomicPtr<u8>>,
    /// One bit for each granule, which says on adopted pages in which half an object starts.
    halves: NonNull<AtomicU64>,
}

impl Directory {
    fn block(&self, number: usize) -> &AtomicU32 {
        debug_assert!(number <= BLOCKS);
        // SAFETY: rule *mapped*: the directory is accessible, and has that many blocks and one
        // more. All bytes are valid.
        unsafe { self.blocks.add(number).as_ref() }
    }

    /// The entry of a unit of the address space in a leaf.
    fn entry(&self, leaf: usize, unit: usize) -> &AtomicU32 {
        // SAFETY: rule *mapped*: a block contains the number of a leaf that exists, and leaves
        // follow the blocks.
        unsafe { self.blocks.byte_add(LEAVES_AT).add(leaf * LEAF + unit % LEAF).as_ref() }
    }

    /// The number of the unit that an address is in; 0: in no unit of this heap.
    #[inline(always)]
    fn unit(&self, addr: usize) -> usize {
        self.unit_in((addr >> BLOCK_SHIFT).min(BLOCKS), addr)
    }

    /// As [`unit`](Self::unit), of an address in a block.
    #[inline(always)]
    fn unit_in(&self, block: usize, addr: usize) -> usize {
        let leaf = self.block(block).load(Ordering::Relaxed) as usize;
        self.entry(leaf, addr >> UNIT_SHIFT).load(Ordering::Relaxed) as usize
    }

    /// The word with the address of a unit.
    #[inline(always)]
    fn start(&self, unit: usize) -> &AtomicPtr<u8> {
        // SAFETY: rule *mapped*: units are numbers of pages below the high-water mark, and the
        // array has a word for each unit that can exist.
        unsafe { self.units.add(unit).as_ref() }
    }

    /// The address of a byte of a unit, by the unit's address.
    #[inline(always)]
    fn byte(start: *mut u8, offset: usize) -> NonNull<u8> {
        // SAFETY: rule *mapped*: no unit below the high-water mark starts at 0. The offset stays in
        // the unit, so the address is not 0 either.
        unsafe { NonNull::new_unchecked(start.wrapping_add(offset)) }
    }

    /// Where the object at a granule starts, if one does. Otherwise the granule's first byte, or
    /// its middle if the last object there started in it.
    #[inline(always)]
    pub(crate) fn place(&self, granule: usize) -> NonNull<u8> {
        let start = self.start(granule >> GRANULES_SHIFT).load(Ordering::Relaxed);
        Self::byte(start, Self::offset(granule) + self.half_offset(granule))
    }

    /// The offset of a granule from the start of its unit.
    #[inline(always)]
    fn offset(granule: usize) -> usize {
        (granule & ((1 << GRANULES_SHIFT) - 1)) << GRANULE_SHIFT
    }

    /// Whether a granule lies in adopted memory.
    #[inline(always)]
    pub(crate) fn is_adopted(&self, granule: usize) -> bool {
        granule >> GRANULES_SHIFT != 0
    }

    /// The word with the bit of a granule on an adopted page, and the bit.
    #[inline(always)]
    fn half(&self, granule: usize) -> (&AtomicU64, u64) {
        // SAFETY: rule *mapped*: the page has table entries. The bits are a part of them.
        (unsafe { self.halves.add(granule / 64).as_ref() }, 1 << (granule % 64))
    }

    /// The offset of the object at a granule of adopted memory from the start of the granule.
    #[inline(always)]
    fn half_offset(&self, granule: usize) -> usize {
        // Relaxed: the bit was written when the object was registered or listed, and a thread that
        // has the granule of an object is ordered behind that.
        let (word, bit) = self.half(granule);
        if word.load(Ordering::Relaxed) & bit == 0 { 0 } else { HALF }
    }

    /// Notes in which half of its granule an object in adopted memory starts. Other threads may
    /// write neighbouring bits at the same time.
    fn set_half(&self, granule: usize, address: usize) {
        let (word, bit) = self.half(granule);
        // Relaxed: see `half_offset`.
        if address & HALF == 0 {
            word.fetch_and(!bit, Ordering::Relaxed);
        } else {
            word.fetch_or(bit, Ordering::Relaxed);
        }
    }

    /// As [`set_half`](Self::set_half), while no other thread writes bits of this page.
    #[inline(always)]
    pub(crate) fn set_half_alone(&self, granule: usize, address: usize) {
        let (word, bit) = self.half(granule);
        let now = word.load(Ordering::Relaxed);
        let is_second = address & HALF != 0;
        // Mostly nothing changes, because blocks of one size lie in the same halves each time.
        if is_second != (now & bit != 0) {
            word.store(now ^ bit, Ordering::Relaxed);
        }
    }

    /// As [`set_half_alone`](Self::set_half_alone), for objects in 64 granules: those whose bits
    /// are set in `first` or in `second`, according to the half. `granule` is the first granule, a
    /// multiple of 64, so that the granules have a word of their own.
    #[inline(always)]
    pub(crate) fn set_halves_alone(&self, granule: usize, first: u64, second: u64) {
        let (word, _) = self.half(granule);
        let now = word.load(Ordering::Relaxed);
        let halves = (now & !first) | second;
        if halves != now {
            word.store(halves, Ordering::Relaxed);
        }
    }
}

impl Directory {
    /// The granule of any address. An address outside the heap has a granule of unit 0.
    #[inline(always)]
    pub(crate) fn find(&self, addr: usize) -> usize {
        Self::granule_in(self.unit(addr), addr)
    }

    #[inline(always)]
    fn granule_in(unit: usize, addr: usize) -> usize {
        unit << GRANULES_SHIFT | addr >> GRANULE_SHIFT & ((1 << GRANULES_SHIFT) - 1)
    }
}

impl Index for Directory {
    #[inline(always)]
    fn granule(self, addr: usize) -> usize {
        // Without `min`, because a tracer accepts only addresses in blocks (see `bounds`).
        debug_assert!(addr >> BLOCK_SHIFT < BLOCKS);
        Self::granule_in(self.unit_in(addr >> BLOCK_SHIFT, addr), addr)
    }

    #[inline(always)]
    unsafe fn cell(self, granule: usize) -> NonNull<u8> {
        self.place(granule)
    }

    /// The page's address and the halves of the word are read once.
    #[inline(always)]
    unsafe fn cells(self, first: usize) -> impl Fn(usize) -> NonNull<u8> {
        let start = self.start(first >> GRANULES_SHIFT).load(Ordering::Relaxed);
        // Relaxed: see `half_offset`.
        let word = self.half(first).0.load(Ordering::Relaxed);
        let (halves, offset) = (word >> (first % 64), Self::offset(first));
        move |at| {
            let half = (halves >> at & 1) as usize * HALF;
            Self::byte(start, offset + (at << GRANULE_SHIFT) + half)
        }
    }

    #[inline(always)]
    fn target(self, addr: usize) -> NonNull<u8> {
        let start = std::ptr::with_exposed_provenance_mut(addr & !(HALF - 1));
        // SAFETY: rule *mapped*: a tracer accepts addresses from `UNIT` on.
        unsafe { NonNull::new_unchecked(start) }
    }
}

/// Leaves for a heap of so many units. They are few, because the units of a process mostly lie
/// close together, in a few blocks of 1 GiB.
fn most_leaves(units: usize) -> usize {
    1 + (units / 64).clamp(16, 4095)
}

/// Bytes from the start of the directory to the array of units.
fn units_at(units: usize) -> usize {
    LEAVES_AT + most_leaves(units) * LEAF * size_of::<u32>()
}

/// Bytes of the directory of a heap with so many bytes of pages.
fn directory_bytes(length: usize) -> usize {
    let units = length / UNIT;
    units_at(units) + units * size_of::<AtomicPtr<u8>>()
}

impl PageTable<Segments> {
    /// Adopts units: makes their table entries accessible, numbers them, and raises the high-water
    /// mark.
    ///
    /// Memory that is not recorded may be adopted by several heaps: see
    /// [`listing`](crate::collect::listing).
    ///
    /// The caller holds the lock of the pool.
    fn adopt_units(
        &self,
        pool: &mut PagePool,
        start: NonNull<u8>,
        units: usize,
        is_recorded: bool,
    ) -> Result<(), AdoptError> {
        let first = self.high_water();
        let pages = first..first + units;
        let full = AdoptError::Full { reserved: self.length };
        if pages.end > self.length >> PAGE_SHIFT {
            return Err(full);
        }
        if pages.end > pool.committed {
            pool.commit(self, pages.end).map_err(|code| AdoptError::System { code })?;
        }
        let (base, length) = (start.as_ptr().expose_provenance(), units * UNIT);
        with_ranges(|ranges| {
            ranges.try_reserve(1).map_err(|_| AdoptError::System { code: ENOMEM })?;
            let is_taken = if is_recorded {
                HeapRange::overlaps(ranges, base, length)
            } else {
                (0..units).any(|unit| self.contains(base + unit * UNIT))
            };
            if is_taken {
                return Err(AdoptError::Taken { start: base, bytes: length });
            }
            if !self.map.has_leaves(base, length) {
                return Err(full);
            }
            if is_recorded {
                let word = pool.heap.0.expose_provenance();
                HeapRange { base, length, word, is_heap: false }.insert_into(ranges);
            }
            Ok(())
        })?;
        // From here on nothing fails, so the caller never sees a part of the units adopted.
        for (unit, page) in pages.clone().enumerate() {
            self.map.number(start.as_ptr().wrapping_add(unit * UNIT), page);
            self.set_shape(page, Shape::FOREIGN);
        }
        pool.exclude(pages.clone());
        // Release: see `PageTable::high_water`.
        self.high_water.store(pages.end, Ordering::Release);
        Ok(())
    }

    fn set_shape(&self, page: usize, shape: Shape) {
        // SAFETY: rule *mapped*: the entry is accessible.
        unsafe { self.range.info(page) }.shape.store(shape.to_bits(), Ordering::Relaxed);
    }
}

impl Segments {
    /// Whether there are leaves for `length` bytes of the address space from `start` on.
    fn has_leaves(&self, start: usize, length: usize) -> bool {
        let blocks = start >> BLOCK_SHIFT..=(start + length - 1) >> BLOCK_SHIFT;
        let is_new = |block: &usize| self.directory.block(*block).load(Ordering::Relaxed) == 0;
        let leaves = self.leaves.load(Ordering::Relaxed);
        leaves + blocks.filter(is_new).count() <= self.most_leaves
    }

    /// Gives the unit at `memory` a number. There is a leaf for it.
    fn number(&self, memory: *mut u8, unit: usize) {
        let block = self.directory.block(memory.addr() >> BLOCK_SHIFT);
        if block.load(Ordering::Relaxed) == 0 {
            block.store(self.leaves.fetch_add(1, Ordering::Relaxed) as u32, Ordering::Relaxed);
        }
        self.directory.start(unit).store(memory, Ordering::Relaxed);
        let leaf = block.load(Ordering::Relaxed) as usize;
        let entry = self.directory.entry(leaf, memory.addr() >> UNIT_SHIFT);
        entry.store(unit as u32, Ordering::Relaxed);
    }
}

impl Map for Segments {
    type Origin = Directory;

    const ADOPTS: bool = true;

    #[inline(always)]
    fn origin(&self) -> Directory {
        self.directory
    }

    /// All addresses in blocks, because each has a granule, except for the first unit of the
    /// address space. No object lies there, so a null pointer is outside.
    #[inline(always)]
    fn bounds(&self) -> (usize, usize) {
        (UNIT, (BLOCKS << BLOCK_SHIFT) - UNIT)
    }

    fn reserved_bytes(&self) -> usize {
        self.reserved
    }

    #[inline(always)]
    fn contains(&self, addr: usize) -> bool {
        self.directory.unit(addr) != 0
    }

    #[inline(always)]
    fn granule(&self, addr: usize) -> usize {
        self.directory.find(addr)
    }

    #[inline(always)]
    fn page_index(&self, addr: usize) -> usize {
        Map::granule(self, addr) / PAGE_GRANULES
    }

    #[inline(always)]
    fn address(&self, granule: usize) -> usize {
        self.directory.place(granule).addr().get()
    }

    #[inline(always)]
    fn page_start(&self, page: usize) -> NonNull<u8> {
        Directory::byte(self.directory.start(page).load(Ordering::Relaxed), 0)
    }

    /// Reserves the tables of at least one unit, and those of unit 0. If the system refuses, it
    /// tries tables for less, down to 64 MiB or `bytes` if that is less.
    #[cfg(not(any(all(test, loom), standstill_loom)))]
    fn open(bytes: Option<usize>) -> Result<(PageTable<Self>, PagePool), ReserveError> {
        let heaps = || with_ranges(|all| all.iter().filter(|range| range.is_heap).count());
        let asked = bytes.unwrap_or_else(|| Range::default_length(heaps()));
        let with_unit_0 = asked.saturating_add(UNIT);
        let length = with_unit_0.checked_next_multiple_of(UNIT).unwrap_or(usize::MAX / UNIT * UNIT);
        let range = Range::reserve_tables(length, directory_bytes)?;
        let length = range.length / UNIT * UNIT;
        let failed = |code| ReserveError { asked: range.mapped_bytes(), code };
        range.open_directory(directory_bytes(range.length)).map_err(failed)?;
        let blocks = range.directory.cast();
        // SAFETY: rule *bounds*: the array lies in the directory.
        let units = unsafe { range.directory.byte_add(units_at(range.length / UNIT)) }.cast();
        let map = Self {
            directory: Directory { blocks, units, halves: range.bit_words() },
            most_leaves: most_leaves(range.length / UNIT),
            leaves: AtomicUsize::new(1),
            reserved: range.mapped_bytes(),
        };
        let table = PageTable { length, range, high_water: AtomicUsize::new(1), map };
        let mut pool = PagePool::new();
        pool.commit(&table, 1).map_err(|code| ReserveError { asked: length, code })?;
        let nowhere = std::ptr::without_provenance_mut(NOWHERE);
        table.map.directory.start(0).store(nowhere, Ordering::Relaxed);
        table.set_shape(0, Shape::NOWHERE);
        pool.exclude(0..1);
        Ok((table, pool))
    }

    /// Fails, because models have no segments.
    #[cfg(any(all(test, loom), standstill_loom))]
    fn open(_: Option<usize>) -> Result<(PageTable<Self>, PagePool), ReserveError> {
        let _ = (directory_bytes, NOWHERE);
        Err(ReserveError { asked: 0, code: ENOMEM })
    }

    /// Always fails, because the heap has no memory of its own, and `ModelMutator::allocate` does
    /// not compile.
    fn extend(
        table: &PageTable<Self>,
        _: &mut PagePool,
        _: usize,
        count: usize,
    ) -> Result<usize, SpaceError> {
        Err(SpaceError::Full { asked: count << PAGE_SHIFT, in_use: 0, reserved: table.length })
    }

    fn discard_above(_: &PageTable<Self>, _: usize) {}
}

impl<A: AddressMap> Space<A> {
    /// The space, if it can adopt memory.
    pub(crate) fn adopting(&self) -> Option<&Space<Segments>> {
        (self as &dyn Any).downcast_ref()
    }
}

impl Space<Segments> {
    /// Adopts memory: objects in it can be registered from now on.
    ///
    /// # Safety
    ///
    /// The memory is readable and stays so until the heap ends. The calling thread is attached.
    pub(crate) unsafe fn adopt_memory(
        &self,
        start: NonNull<u8>,
        bytes: usize,
        is_recorded: bool,
    ) -> Result<(), AdoptError> {
        let addr = start.as_ptr().addr();
        if bytes == 0 || !addr.is_multiple_of(UNIT) || !bytes.is_multiple_of(UNIT) {
            return Err(AdoptError::Unaligned { start: addr, bytes });
        }
        if addr.checked_add(bytes - 1).is_none_or(|last| last >> BLOCK_SHIFT >= BLOCKS) {
            return Err(AdoptError::Full { reserved: self.length });
        }
        let mut pool = self.pool.lock();
        let adopted = self.table.adopt_units(&mut pool, start, bytes / UNIT, is_recorded);
        self.count_committed(&pool);
        adopted
    }

    /// Notes in which half of its granule an object in adopted memory starts.
    pub(crate) fn set_half(&self, address: usize) {
        let directory = self.origin();
        directory.set_half(directory.find(address), address);
    }

    /// Checks that an object can be registered at an address, as far as its place goes.
    pub(crate) fn check_place(&self, address: usize) -> Result<(), AdoptError> {
        if !address.is_multiple_of(HALF) {
            return Err(AdoptError::Misplaced { address });
        }
        match self.page(self.page_index(address)).shape().kind() {
            PageKind::Foreign => Ok(()),
            _ => Err(AdoptError::NotAdopted { address }),
        }
    }
}
