//! Bytes: the address range of a heap, its pages, and one allocator per thread.
//!
//! This folder treats the contents of cells as opaque bytes. It gives a meaning to one byte only:
//! the state byte of a free cell is 0.

#[allow(unsafe_code)]
pub(crate) mod address_map;
#[allow(unsafe_code)]
pub(crate) mod arena;
#[allow(unsafe_code)]
mod class_pages;
mod limit;
#[allow(unsafe_code)]
mod magazine;
#[allow(unsafe_code)]
mod page;
#[allow(unsafe_code)]
mod page_list;
mod page_set;
mod pieces;
#[allow(unsafe_code)]
mod pool;
#[allow(unsafe_code)]
pub(crate) mod quarantine;
#[allow(unsafe_code)]
mod range;
mod ranges;
#[allow(unsafe_code)]
mod remote;
#[allow(unsafe_code)]
pub(crate) mod reserved;
#[allow(unsafe_code)]
pub(crate) mod segments;
#[allow(unsafe_code)]
pub(crate) mod shape;
pub(crate) mod size_class;
#[allow(unsafe_code)]
pub(crate) mod space;
#[allow(unsafe_code)]
pub(crate) mod sparse;
#[allow(unsafe_code)]
pub(crate) mod stopped;
#[allow(unsafe_code)]
mod table;
