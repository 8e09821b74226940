//! Allocation, collection and statistics must agree on the first and the last byte of each object.
//! So only this file computes them, from the layout of the object's page:
//!
//! ```text
//!  a small page                               a run of pages with one large object
//!  | header | cell | cell | cell | rest |     | header | object ...        | ... last page |
//!  |<-----> offset of the first               |<-----> offset
//!           |<---> room, and footprint                 |<------------ room ------------>|
//!                                             |<--------------- footprint ------------->|
//! ```
//!
//! An object may have a *prefix*: bytes in front of its address. In a cell the object lies behind
//! the prefix. For a large object the offset of its run includes the prefix, so the offset always
//! leads to the object.
//!
//! Three numbers describe an object's memory:
//!
//! * [`Shape::offset`]: bytes from the start of the run to the object.
//! * [`Room`]: bytes that belong to the object, counted from the object's own address. Every access
//!   to an object's memory uses this number, because it never reaches beyond the object's own
//!   bytes.
//! * [`Footprint`]: bytes that the heap cannot give to another object meanwhile. Statistics and the
//!   pacing use this number, because it is the object's cost for the heap.
//!
//! For a cell, room and footprint are equal, but for a large object the footprint is larger by the
//! offset. Therefore `Room` and `Footprint` are separate types, so that code cannot confuse the
//! two.
//!
//! # Invariants
//!
//! * `offset + room` of the last object of a run is at most the length of the run.
//! * The offset is a multiple of [`GRANULE`], and at least [`PAGE_HEADER`]: no object contains a
//!   byte of a page's header.
//! * The room is a multiple of [`GRANULE`], and at least the requested size.
//!
//! Sizes and alignments come from users and may overflow, so the lint below enforces checked
//! arithmetic.
#![deny(clippy::arithmetic_side_effects)]

use std::ptr::NonNull;

/// The unit of addresses, because every cell starts on a granule and each granule has its bytes in
/// the side tables.
pub(crate) const GRANULE: usize = 1 << GRANULE_SHIFT;
/// The shift that turns an offset into a granule index.
pub(crate) const GRANULE_SHIFT: u32 = 5;
/// The unit of ownership: a page has one owner and one size class.
pub(crate) const PAGE_SIZE: usize = 1 << PAGE_SHIFT;
/// The shift that turns an offset into a page index. It is tiny under loom, where each table byte
/// costs time, and small under shuttle, where heaps are small.
pub(crate) const PAGE_SHIFT: u32 = if cfg!(any(all(test, loom), standstill_loom)) {
    9
} else if cfg!(any(all(test, shuttle), standstill_shuttle)) {
    12
} else {
    16
};
/// Bytes at the start of each page or run that no cell uses. They are a whole cache line, although
/// the heap word is shorter, so that cells keep their alignment.
pub(crate) const PAGE_HEADER: usize = 64;
pub(crate) const PAGE_GRANULES: usize = PAGE_SIZE / GRANULE;
/// The largest alignment of a large object. It is half a page, because the object must start on the
/// first page of its run.
pub(crate) const MAX_ALIGN: usize = PAGE_SIZE / 2;
/// The most bytes in front of an object, for the same reason.
pub(crate) const MAX_PREFIX: usize = MAX_ALIGN - PAGE_HEADER;

/// Bytes that belong to an object, counted from its own address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Room(usize);

impl Room {
    pub(crate) const fn bytes(self) -> usize {
        self.0
    }

    /// Bytes from the object's address to the last word of its room. A room is at least one
    /// granule.
    #[cfg_attr(not(feature = "cpython"), allow(dead_code, reason = "only `dynamic` calls it"))]
    pub(crate) const fn last_word(self) -> usize {
        self.0.saturating_sub(size_of::<usize>())
    }

    /// Bytes after the first `head` bytes.
    pub(crate) const fn behind(self, head: usize) -> usize {
        self.0.saturating_sub(head)
    }
}

/// Bytes that the heap cannot give to another object while this object has them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Footprint(usize);

impl Footprint {
    pub(crate) const fn bytes(self) -> usize {
        self.0
    }
}

/// The memory of one cell or large object: its address, and the bytes that belong to it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cell {
    start: NonNull<u8>,
    room: Room,
}

// SAFETY: rule *guarded*: bare memory without an owner.
unsafe impl Send for Cell {}

impl Cell {
    /// The cell or large object at `start`, on a page or run of this shape.
    pub(crate) const fn of(shape: Shape, start: NonNull<u8>) -> Self {
        Self { start, room: shape.room() }
    }

    /// Memory of a test.
    #[cfg(all(test, not(any(loom, shuttle))))]
    pub(crate) fn in_test(memory: &mut [u64; 8]) -> Self {
        Self { start: NonNull::from(memory).cast(), room: Room(64) }
    }

    pub(crate) const fn start(self) -> NonNull<u8> {
        self.start
    }

    pub(crate) const fn room(self) -> Room {
        self.room
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum PageKind {
    /// Unowned or not yet used.
    Free,
    /// Cells of one size.
    Small,
    /// The first page of one large object.
    Large,
    /// A later page of a large object.
    Tail,
    /// A page in memory that the heap does not own, so an object may start at each granule. See
    /// `segments`.
    Foreign,
    /// An entry without memory. See `segments`.
    Nowhere,
}

/// A page's layout in one word, so that a reader never sees half of a change.
///
/// Bits 0..8 are the kind, 8..16 the class, 16..32 the first cell's granule. For small pages,
/// 32..48 are the granules of a cell and 48..64 the number of cells. For large ones, 32..64 are the
/// pages of the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape(u64);

impl Shape {
    pub(crate) const FREE: Self = Self(PageKind::Free as u64);
    pub(crate) const TAIL: Self = Self(PageKind::Tail as u64);
    pub(crate) const NOWHERE: Self = Self(PageKind::Nowhere as u64);
    /// A page on which an object may start at each granule.
    pub(crate) const FOREIGN: Self =
        Self(PageKind::Foreign as u64 | 1 << 32 | (PAGE_GRANULES as u64) << 48);

    /// A page cut into as many cells of `size` bytes as fit. `size` is a multiple of a granule.
    /// Cells start at the natural alignment of their size if that costs no cell.
    #[expect(
        clippy::arithmetic_side_effects,
        reason = "evaluated in constants alone, where overflow is an error"
    )]
    pub(crate) const fn small(class: u8, size: usize) -> Self {
        assert!(size > 0 && size.is_multiple_of(GRANULE));
        let cells = (PAGE_SIZE - PAGE_HEADER) / size;
        let mut first = PAGE_HEADER;
        while size.is_multiple_of(first * 2) && (PAGE_SIZE - first * 2) / size == cells {
            first *= 2;
        }
        assert!(cells > 0 && first + size * cells <= PAGE_SIZE);
        Self(
            PageKind::Small as u64
                | (class as u64) << 8
                | ((first / GRANULE) as u64) << 16
                | ((size / GRANULE) as u64) << 32
                | (cells as u64) << 48,
        )
    }

    /// A run of pages for one object of `size` bytes on a multiple of `align`, a power of two that
    /// is at most [`MAX_ALIGN`]. At least `prefix` bytes, at most [`MAX_PREFIX`], lie between the
    /// header and the object. `None`: no run can be that long.
    pub(crate) const fn large(size: usize, align: usize, prefix: usize) -> Option<Self> {
        debug_assert!(align.is_power_of_two() && align <= MAX_ALIGN && prefix <= MAX_PREFIX);
        let align = if align > GRANULE { align } else { GRANULE };
        let Some(front) = PAGE_HEADER.checked_add(prefix) else { return None };
        let Some(offset) = front.checked_next_multiple_of(align) else { return None };
        let Some(bytes) = size.checked_add(offset) else { return None };
        let pages = bytes.div_ceil(PAGE_SIZE);
        if pages > u32::MAX as usize {
            return None;
        }
        Some(Self(
            PageKind::Large as u64 | ((offset / GRANULE) as u64) << 16 | (pages as u64) << 32,
        ))
    }

    #[inline(always)]
    pub(crate) const fn to_bits(self) -> u64 {
        self.0
    }

    #[inline(always)]
    pub(crate) const fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    #[inline(always)]
    pub(crate) const fn kind(self) -> PageKind {
        match self.0 as u8 {
            0 => PageKind::Free,
            1 => PageKind::Small,
            2 => PageKind::Large,
            3 => PageKind::Tail,
            4 => PageKind::Foreign,
            _ => PageKind::Nowhere,
        }
    }

    /// The size class of a small page.
    #[inline(always)]
    pub(crate) const fn class(self) -> u8 {
        (self.0 >> 8) as u8
    }

    /// The first cell's granule, counted from the page's start.
    #[inline(always)]
    pub(crate) const fn first(self) -> usize {
        (self.0 >> 16) as u16 as usize
    }

    /// Bytes from the start of the page, or of the run, to the first object.
    #[inline(always)]
    pub(crate) const fn offset(self) -> usize {
        self.first() << GRANULE_SHIFT
    }

    /// Granules of a cell, on a small page.
    #[inline(always)]
    pub(crate) const fn cell(self) -> usize {
        (self.0 >> 32) as u16 as usize
    }

    #[inline(always)]
    pub(crate) const fn cells(self) -> usize {
        (self.0 >> 48) as usize
    }

    /// Pages of the large object that starts on this page; 1 for a small page.
    #[inline(always)]
    pub(crate) const fn pages(self) -> usize {
        match self.kind() {
            PageKind::Large => (self.0 >> 32) as usize,
            _ => 1,
        }
    }

    /// Bytes of the heap that one object of the page, or the object of the run, takes up.
    pub(crate) const fn footprint(self) -> Footprint {
        Footprint(match self.kind() {
            PageKind::Small | PageKind::Foreign => self.cell() << GRANULE_SHIFT,
            // It does not overflow, because a run has less than 2^32 pages.
            _ => self.pages() << PAGE_SHIFT,
        })
    }

    /// Bytes of the footprint that belong to the object, from the object's address on.
    pub(crate) const fn room(self) -> Room {
        let Footprint(bytes) = self.footprint();
        Room(match self.kind() {
            PageKind::Small => bytes,
            // A large object begins behind the header of its run, and ends with the run.
            _ => bytes.saturating_sub(self.offset()),
        })
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
