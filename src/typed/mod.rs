//! The face for Rust: heaps, mutators, handles, cells and slots.

pub(crate) mod blocking;
pub(crate) mod cell;
pub(crate) mod gc;
pub(crate) mod heap;
pub(crate) mod inspect;
pub(crate) mod slice;
pub(crate) mod slot;
pub(crate) mod trace;
