//! The data that the threads of one heap share.

#[allow(unsafe_code)]
mod adopted;
#[allow(unsafe_code)]
pub(crate) mod alloc;
pub mod api;
pub(crate) mod cell_wait;
pub(crate) mod collector_lock;
#[allow(unsafe_code)]
pub(crate) mod core;
#[allow(unsafe_code)]
pub(crate) mod helpers;
pub(crate) mod known_roots;
pub(crate) mod mark_tables;
#[allow(unsafe_code)]
pub(crate) mod model;
#[allow(unsafe_code)]
pub(crate) mod model_heap;
#[allow(unsafe_code)]
pub(crate) mod mutator;
pub(crate) mod observer;
pub(crate) mod pacing;
#[allow(unsafe_code)]
mod pair_room;
pub(crate) mod policy;
pub(crate) mod reclaim_queue;
pub(crate) mod remembered;
pub(crate) mod slow;
pub(crate) mod spares;
pub(crate) mod workers;
#[allow(unsafe_code)]
pub(crate) mod world;
