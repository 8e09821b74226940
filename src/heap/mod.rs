//! A heap, its mutators, and the seam to the object model.
//!
//! Many threads allocate in one heap, while the collector needs a moment in which no object
//! changes, and knows about objects only what their runtime tells it. So this folder has the data
//! that the threads share, the ways in which a thread takes part, and the traits of a runtime.
//!
//! For example, threads 1 and 2 attach to a heap, and each gets a [`mutator`], perhaps with the
//! memory that an earlier one left among the [`spares`]. Thread 1 allocates ([`alloc`]) until a
//! collection is due by the heap's [`pacing`], or until the program [requests](request) one, so at
//! its next safepoint it takes the [`collector_lock`]. Thread 2 is [detached](detach) for a
//! [`blocking`] call, so that the stop does not wait for it. A [`world`] is the proof that the
//! threads stand still, and its holder marks in the [`mark_tables`] with the [`workers`], which
//! parked threads join as [`helpers`]. The collector sees the objects only through their [`model`],
//! with those [`parts`] that the runtime has. After the stop each thread reclaims its garbage from
//! the [`reclaim_queue`]. If a [`child`] of the process searches instead, the [`unfinished`]
//! collection waits for it without a thread.
//!
//! The data that the threads share is in [`core`](self::core), to which a [`model_heap`] is the
//! handle, while [`settings`] has what its owner may change. Code that gets no mutator uses the
//! [`current`] one, and a [`pair_room`] has the memory of its two parts. A runtime may stop its
//! threads itself ([`runtime_stop`]), and may have allocated the objects itself ([`listed`]).
//! Reports of long waits are in [`slow`], the stacks in them in `late`, the times of collections in
//! [`timings`], and the hooks of Python's gc module in [`observer`].

#[allow(unsafe_code)]
pub(crate) mod model;

pub(crate) mod parts;

#[allow(unsafe_code)]
pub(crate) mod model_heap;

#[allow(unsafe_code)]
pub(crate) mod core;

pub(crate) mod settings;

#[allow(unsafe_code)]
pub(crate) mod mutator;

#[allow(unsafe_code)]
pub(crate) mod alloc;

#[allow(unsafe_code)]
pub(crate) mod detach;

#[allow(unsafe_code)]
pub(crate) mod ambient;

pub(crate) mod blocking;

#[allow(unsafe_code)]
pub(crate) mod current;

pub(crate) mod spares;

#[allow(unsafe_code)]
mod pair_room;

#[allow(unsafe_code)]
pub(crate) mod world;

#[allow(unsafe_code)]
pub(crate) mod child;

pub(crate) mod child_pace;

pub(crate) mod runtime_stop;

pub(crate) mod slow;

#[cfg(feature = "stacks")]
mod late;

pub(crate) mod timings;

pub(crate) mod pacing;

pub(crate) mod request;

pub(crate) mod collector_lock;

pub(crate) mod reclaim_queue;

pub(crate) mod unfinished;

pub(crate) mod workers;

#[allow(unsafe_code)]
pub(crate) mod helpers;

pub(crate) mod mark_tables;

#[allow(unsafe_code)]
pub(crate) mod listed;

pub(crate) mod observer;
