#![doc = include_str!("../README.md")]
// Lines go through `event`, which is not disturbed when they cannot be written.
#![cfg_attr(not(test), deny(clippy::print_stderr, clippy::print_stdout))]
#![cfg_attr(not(test), warn(clippy::let_underscore_must_use))]
// Models build the library for its tests alone, and use a part of it.
#![cfg_attr(all(test, any(loom, shuttle)), allow(dead_code, unused_imports))]

#[cfg(not(all(unix, target_pointer_width = "64")))]
compile_error!("standstill reserves large address ranges: it needs a 64-bit Unix");

// Rules of unsafe code that no one file keeps: each place that cites them keeps them by itself. All the rules, with what exercises
// them, are in docs/unsafe.md.
//
// * **B** (bounds): what the operation asks for was seen to right here: a length or an index was compared, room was made, a null
//   excluded. Some ask for nothing: a prefetch, a question to the system about an address.
// * **V** (value): what a bare pointer was made from stays in its place while the pointer is used: a box until it is taken back, once;
//   a frame while it waits for the pointer's user, or lies below him on the stack; a constant for ever.
// * **X** (exclusion): what a lock or an atomic guards is touched by way of it alone. What crosses threads is made of these, is a bare
//   address (whoever follows it names another rule), or asks of its value what `Arc` and `Mutex` would.

mod arena;
mod blocking;
mod cell;
mod collect;
mod discard;
#[cfg(not(all(test, loom)))]
pub mod dynamic;
mod environment;
mod error;
mod event;
#[doc(hidden)]
pub mod fallible;
mod freed;
mod gc;
mod header;
mod heap;
mod inspect;
mod managed;
pub mod model;
mod mutator;
mod notices;
mod object;
mod pacing;
mod roots;
pub mod safepoint;
pub mod services;
mod shape;
mod slice;
mod slot;
mod slow;
mod space;
mod steps;
mod stress;
mod sync;
mod system;
mod trace;
mod tracked;
mod turn;
mod weak;

pub use blocking::Join;
pub use cell::{GcCell, GcCellGuard};
pub use collect::{Collect, CollectError};
pub use error::{AllocError, AttachError, BuildError, Code, Fault, ForeignGc, OutOfMemory};
pub use event::{CallGuards, CollectionEvent, CollectionKind, CollectionReport, During, Unraisable};
pub use gc::{AnyGc, Gc, GcDyn, GcWeak, WeakCallback, WeakRef};
pub use heap::{DeferGuard, Detached, Fork, Heap, HeapBuilder, HeapStats, KnownRoot, Mutator, RefusedSlice};
/// Lines on standard error, for the C library.
#[doc(hidden)]
pub mod stderr {
    pub use crate::event::{abort, is_warning_heard, line};
}
#[doc(hidden)]
pub use object::Target;
pub use object::Tracer;
pub use pacing::{Pacing, Thresholds};
pub use slice::{GcSlice, HeaderSlice};
pub use slot::{AtomicGc, GcOnce};
pub use slow::{CellWait, SlowLock};
#[cfg(feature = "derive")]
pub use standstill_derive::Trace;
pub use stress::{ParseStressError, Stress, StressStats};
pub use trace::Trace;

#[cfg(all(test, loom))]
#[path = "../loom_tests/mod.rs"]
mod loom_tests;
#[cfg(all(test, shuttle))]
#[path = "../shuttle_tests/mod.rs"]
mod shuttle_tests;
