//! A heap, its mutators, and the seam to the object model.

/// The trait by which the collector uses the objects of a runtime.
#[allow(unsafe_code)]
pub(crate) mod model;

/// The parts of an object model: what a runtime has beyond the core trait.
pub(crate) mod parts;

/// A handle of a heap.
#[allow(unsafe_code)]
pub(crate) mod model_heap;

/// The data that the threads of one heap share, with the named roots.
#[allow(unsafe_code)]
pub(crate) mod core;

/// The settings of a heap, and the guards that defer collections.
pub(crate) mod settings;

/// A thread that is attached to a heap.
#[allow(unsafe_code)]
pub(crate) mod mutator;

/// Allocation, publication, tracking and freeing by a mutator.
#[allow(unsafe_code)]
pub(crate) mod alloc;

/// A mutator whose thread is detached.
#[allow(unsafe_code)]
pub(crate) mod detach;

/// Blocking operations of std, on a detached thread.
pub(crate) mod blocking;

/// The mutator of the calling thread, lent.
#[allow(unsafe_code)]
pub(crate) mod current;

/// What mutators that have ended leave to the next ones.
pub(crate) mod spares;

/// Room for the two parts of a mutator, for which memory may be refused.
#[allow(unsafe_code)]
mod pair_room;

/// The proof that the world is stopped, with the data of all mutators.
#[allow(unsafe_code)]
pub(crate) mod world;

/// A runtime that stops its threads itself.
pub(crate) mod runtime_stop;

/// Reports of slow stops, slow locks and slow calls.
pub(crate) mod slow;

/// When to collect.
pub(crate) mod pacing;

/// The right to collect, which one thread has at a time.
pub(crate) mod collector_lock;

/// The garbage of a collection, which mutators reclaim in batches.
pub(crate) mod reclaim_queue;

/// The threads that work on a collection.
pub(crate) mod workers;

/// Parked threads that help.
#[allow(unsafe_code)]
pub(crate) mod helpers;

/// The memory that collections keep for the next one.
pub(crate) mod mark_tables;

/// Objects in memory that the runtime has allocated.
#[allow(unsafe_code)]
pub(crate) mod listed;

/// The services of Python's gc module, as a heap calls them.
pub(crate) mod observer;
