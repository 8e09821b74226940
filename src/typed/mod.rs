//! The face for Rust: heaps, mutators, handles, cells and slots.

#[allow(unsafe_code)]
pub(crate) mod any;
pub(crate) mod blocking;
pub(crate) mod builder;
#[allow(unsafe_code)]
pub(crate) mod cell;
pub(crate) mod detached;
pub(crate) mod extensions;
#[allow(unsafe_code)]
pub(crate) mod finalizer;
pub(crate) mod fork;
#[allow(unsafe_code)]
pub(crate) mod gc;
#[allow(unsafe_code)]
pub(crate) mod gc_vec;
pub(crate) mod heap;
pub(crate) mod inspect;
pub(crate) mod known_root;
#[allow(unsafe_code)]
pub(crate) mod mutator;
#[allow(unsafe_code)]
pub(crate) mod shared_gc;
#[allow(unsafe_code)]
pub(crate) mod slice;
#[allow(unsafe_code)]
pub(crate) mod slot;
pub(crate) mod teardown;
pub(crate) mod trace;
pub(crate) mod trace_std;
#[allow(unsafe_code)]
pub(crate) mod weak;
