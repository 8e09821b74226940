//! A double of [`standstill`](https://docs.rs/standstill) for models under
//! [loom](https://docs.rs/loom): the same names with the same meaning, in a few steps each.
//!
//! A model of a runtime explores the interleavings of its steps, and their number grows
//! exponentially. The heap of the library takes some hundred steps for a collection, that of the
//! double a few. So a runtime models its own protocols on the double, and one line swaps the two:
//!
//! ```ignore
//! #[cfg(feature = "double")]
//! extern crate standstill_model as standstill; // in the root of the crate
//! ```
//!
//! Under `--cfg standstill_loom` the double is made of loom's primitives, and otherwise of std's.
//!
//! # What the double promises
//!
//! * An operation is one step, or two where others can see its middle: the request of a stop and
//!   the arrival of the last thread, a last drop and the destructor.
//! * It orders memory as the library's documentation promises, and no more. For example, the end of
//!   a stop happens before each later [attach](safepoint::Participant::attach), but a detach does
//!   not happen before the attach of another thread. loom finds a runtime that relies on more.
//! * What threads observe of the library, they observe of the double. `tests/refinement.rs` runs
//!   models on both, and compares their outcomes.
//! * Mistakes end the model: a reference that a `traverse` shows and nobody has counted, and a use
//!   of the heap by a thread that is not attached.
//!
//! # What it leaves out
//!
//! What the double has not, it has no name for, so that a use does not compile: other handles and
//! fields, such as `GcStr` and `AtomicGc`, tables with weak keys, guardians, channels, finalizers,
//! dynamic objects, `ObjectModel`, settings and reports. A heap collects only when it is asked to.
//! The mutator of [`Heap::enter`] ends with the last [`Attached`] of the thread, and no mutator of
//! the caller is lent.

#![forbid(unsafe_code)]

mod cell;
mod count;
#[cfg(standstill_loom)]
mod explore;
mod heap;
/// Threads that can be stopped.
pub mod safepoint;
mod sync;
mod trace;

pub use cell::{GcCell, GcCellGuard};
pub use count::{Gc, GcWeak};
#[cfg(standstill_loom)]
pub use explore::{Explored, explore, race};
pub use heap::{Attached, CollectionReport, Heap, Mutator};
pub use standstill_derive::Trace;
pub use trace::{AnySkipped, Skipped, Trace, Tracer};
