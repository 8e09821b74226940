//! Bytes: the address range of a heap, its pages, and one allocator per thread.
//!
//! This folder treats the contents of cells as opaque bytes. It gives a meaning to one byte only:
//! the state byte of a free cell is 0.

pub(crate) mod arena;
mod class_pages;
mod magazine;
mod page;
mod page_list;
mod pool;
pub(crate) mod quarantine;
mod range;
mod remote;
pub(crate) mod shape;
pub(crate) mod size_class;
pub(crate) mod space;
mod table;
