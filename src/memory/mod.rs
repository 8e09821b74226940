//! Bytes: the address range of a heap, its pages, and one allocator per thread.
//!
//! No module here knows what a cell contains. The state byte of a free cell must be 0; this is the only meaning that
//! memory gives to a byte of its side tables.

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
