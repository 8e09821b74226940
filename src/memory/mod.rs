//! Bytes: the address range of a heap, its pages, and one allocator per thread.
//!
//! No module here knows what a cell contains. The state byte of a free cell must be 0; this is the only meaning that
//! memory gives to a byte of its side tables.

pub(crate) mod arena;
pub(crate) mod quarantine;
pub(crate) mod shape;
pub(crate) mod space;
