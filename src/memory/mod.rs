//! All threads allocate at once, and collections must find the data about an object from its
//! address alone. So each thread has an allocator with pages of its own, and tables lie beside the
//! pages.
//!
//! For an allocation an arena pops a cell from a magazine, and refills an empty magazine from its
//! pages. If these have no free cell, it takes a page from the pool, which commits memory of the
//! range.
//!
//! The folder knows only one value of a state byte, 0 for a free cell, because the model of the
//! heap defines the others.

// Addresses: which belong to a heap, and at which index of its tables.

/// The arithmetic between addresses and indices, for which there are two maps, and the first of
/// these, for a heap with one range.
#[allow(unsafe_code)]
pub(crate) mod address_map;
/// One mapping of the system, which grows in chunks, with the tables behind the pages; and the list
/// of the ranges of all heaps.
#[allow(unsafe_code)]
pub(crate) mod range;
/// The second map, for objects in units of 64 KiB that lie anywhere, because others allocated them.
#[allow(unsafe_code)]
pub(crate) mod segments;

// Pages: runs of 64 KiB, with the entries of the tables beside them.

/// The entry of a page, and lists of pages.
#[allow(unsafe_code)]
mod page;
/// A set of pages, one bit for each.
mod page_set;
/// The pages that no arena owns, and the limit of a heap.
#[allow(unsafe_code)]
pub(crate) mod pool;
/// The layout of a page: which bytes belong to which object.
#[allow(unsafe_code)]
pub(crate) mod shape;
/// The sizes of cells.
pub(crate) mod size_class;
/// The memory of one heap as a whole, and the rules *mapped* and *owner*.
#[allow(unsafe_code)]
pub(crate) mod space;
/// The tables beside the pages.
#[allow(unsafe_code)]
pub(crate) mod table;

// Cells: from a thread to an object, and back.

/// The allocator of one thread.
#[allow(unsafe_code)]
pub(crate) mod arena;
/// The pages of one size class of an arena.
#[allow(unsafe_code)]
mod class_pages;
/// The free cells of an arena that a fast path takes or gives.
#[allow(unsafe_code)]
mod magazine;
/// The frees of a page's cells by threads that do not own the page.
#[allow(unsafe_code)]
mod remote;

/// The objects whose stack is kept.
pub(crate) mod samples;

// Memory that is free for longer.

/// Freed cells that wait, filled with poison, so that a use after free shows.
#[allow(unsafe_code)]
pub(crate) mod quarantine;
/// The way back to the system for the memory between the objects that live on.
#[allow(unsafe_code)]
pub(crate) mod sparse;
/// The pool, and in a stop the pages and free cells, for the verifier.
#[allow(unsafe_code)]
pub(crate) mod view;
