//! The face for Rust: heaps, mutators, handles, cells and slots.

pub(crate) mod any;
pub(crate) mod blocking;
pub(crate) mod builder;
pub(crate) mod cell;
pub(crate) mod detached;
pub(crate) mod extensions;
pub(crate) mod fork;
pub(crate) mod gc;
pub(crate) mod heap;
pub(crate) mod inspect;
pub(crate) mod known_root;
pub(crate) mod mutator;
pub(crate) mod poll;
pub(crate) mod slice;
pub(crate) mod slot;
pub(crate) mod teardown;
pub(crate) mod trace;
pub(crate) mod trace_std;
pub(crate) mod weak;
