//! The data that the threads of one heap share.

#[allow(unsafe_code)]
mod adopted;
#[allow(unsafe_code)]
pub(crate) mod alloc;
pub(crate) mod blocking;
pub(crate) mod cell_wait;
pub(crate) mod collector_lock;
#[allow(unsafe_code)]
pub(crate) mod core;
#[allow(unsafe_code)]
pub(crate) mod current;
#[allow(unsafe_code)]
pub(crate) mod detach;
pub(crate) mod fork_locks;
#[allow(unsafe_code)]
pub(crate) mod freed;
#[allow(unsafe_code)]
pub(crate) mod helpers;
pub(crate) mod known_roots;
#[allow(unsafe_code)]
pub(crate) mod listed;
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
pub(crate) mod runtime_stop;
pub(crate) mod settings;
pub(crate) mod slow;
pub(crate) mod spares;
#[allow(unsafe_code)]
pub(crate) mod stopped_world;
pub(crate) mod workers;
#[allow(unsafe_code)]
pub(crate) mod world;
