//! Address maps: from an address to the index of its table entries, and back.
//!
//! The side tables of a heap are linear arrays, indexed by granule or page. A [`Map`] computes the
//! index. There are two maps:
//!
//! | map | an address belongs to the heap if | index | memory of the pages |
//! |---|---|---|---|
//! | [`reserved`](super::reserved) | it lies in one reserved range | one subtraction | the range |
//! | [`segments`](super::segments) | its aligned 64 KiB are in a table of two levels | two
//! dependent loads | segments of 1 to 32 MiB, and memory of others |
//!
//! The model of a heap chooses its map by a type ([`ObjectModel::Addresses`]), so that a heap with
//! a reserved range contains no code of the other map, and no branch
//! ([ADR 42](../../docs/adr/0042-address-maps.md)). The pool gets the memory of pages from the same
//! type: see `pool::PageSource`.
//!
//! # Rules of a map
//!
//! * Each address of the heap has one index as long as the heap exists.
//! * The granules of a page are adjacent, in memory and in the tables. Two pages with consecutive
//!   numbers that the pool may hand out as parts of one run are adjacent in memory.
//! * All pages below the high-water mark have table entries.
//! * An address that a tracer of the heap accepts has an index below the high-water mark. For an
//!   address outside the heap it lies on page 0, where such a map has no object.
//!
//! [`ObjectModel::Addresses`]: crate::model::ObjectModel::Addresses

use std::fmt;
use std::ptr::NonNull;

use crate::memory::pool::PageSource;

/// How a heap finds its own data about an object by the object's address:
/// [`Reserved`](crate::model::Reserved) or [`Segments`](crate::model::Segments).
///
/// An [`ObjectModel`](crate::model::ObjectModel) names the map of its heaps. Only the two types of
/// the library implement the trait.
#[expect(private_bounds, reason = "only types of this crate are maps")]
pub trait AddressMap: PageSource {}

/// The arithmetic of a map. The value is a part of the heap's table of pages.
pub(crate) trait Map: Sized + fmt::Debug + Send + Sync + 'static {
    /// The part of the map that the loops of a collection need. It stays in registers. The table
    /// itself would not, because other threads change it.
    type Origin: Index;

    /// Whether a heap may have pages in memory that it does not own.
    const ADOPTS: bool;

    /// The part of the map for the loops of a collection.
    fn origin(&self) -> Self::Origin;

    /// Start and length of the addresses that a tracer keeps.
    fn bounds(&self) -> (usize, usize);

    /// Bytes of address space that the heap has reserved for pages.
    fn reserved_bytes(&self) -> usize;

    /// Whether the address belongs to the heap.
    fn contains(&self, addr: usize) -> bool;

    /// The granule of an address that a tracer of the heap accepts.
    fn granule(&self, addr: usize) -> usize;

    /// The page of such an address.
    fn page_index(&self, addr: usize) -> usize;

    /// The address of a granule below the high-water mark.
    fn address(&self, granule: usize) -> usize;

    /// The first byte of a page below the high-water mark.
    fn page_start(&self, page: usize) -> NonNull<u8>;
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
