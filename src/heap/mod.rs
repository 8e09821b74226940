//! The data that the threads of one heap share.

pub(crate) mod alloc;
pub(crate) mod cell_wait;
pub(crate) mod collector_lock;
pub(crate) mod core;
pub(crate) mod helpers;
pub(crate) mod known_roots;
pub mod model;
pub(crate) mod model_heap;
pub(crate) mod mutator;
pub(crate) mod observer;
pub(crate) mod pacing;
pub(crate) mod policy;
pub(crate) mod reclaim_queue;
pub(crate) mod slow;
pub(crate) mod workers;
pub(crate) mod world;
