#![doc = include_str!("../README.md")]
// Lines go through `base::event`, which is not disturbed when they cannot be written.
#![cfg_attr(not(test), deny(clippy::print_stderr, clippy::print_stdout))]
#![cfg_attr(not(test), warn(clippy::let_underscore_must_use))]
// Models build the library for its tests alone, and use a part of it.
#![cfg_attr(all(test, any(loom, shuttle)), allow(dead_code, unused_imports))]
// Lower floors have functions that only `dynamic` and `gc_module` call.
#![cfg_attr(not(feature = "cpython"), allow(dead_code, unused_imports))]

#[cfg(not(all(unix, target_pointer_width = "64")))]
compile_error!("standstill reserves large address ranges: it needs a 64-bit Unix");

// Rules of unsafe code that no one file keeps: each place that cites them keeps them by itself. All the rules, with what exercises
// them, are in docs/generated/unsafe.md.
//
// * **B** (bounds): what the operation asks for was seen to right here: a length or an index was compared, room was made, a null
//   excluded. Some ask for nothing: a prefetch, a question to the system about an address.
// * **V** (value): what a bare pointer was made from stays in its place while the pointer is used: a box until it is taken back, once;
//   a frame while it waits for the pointer's user, or lies below him on the stack; a constant for ever.
// * **X** (exclusion): what a lock or an atomic guards is touched by way of it alone. What crosses threads is made of these, is a bare
//   address (whoever follows it names another rule), or asks of its value what `Arc` and `Mutex` would.

// Floor 0: no domain.
mod base;
// Floor 1: threads; memory; one object.
mod memory;
mod object;
pub mod safepoint;
// Floor 2: what the threads of a heap share.
mod heap;
// Floor 3: a collection; the built-in model.
mod collect;
mod managed;
// Floor 4: what users of Rust see.
mod typed;
// Floor 5: types made at run time; CPython's gc module.
#[cfg(all(feature = "cpython", not(all(test, loom))))]
pub mod dynamic;
#[cfg(feature = "cpython")]
pub mod gc_module;

pub use base::error::{AllocError, AttachError, BuildError, Code, Fault, ForeignGc, OutOfMemory};
pub use base::hooks::CallGuards;
pub use base::report::{CollectionEvent, CollectionKind, CollectionReport, During, Unraisable};
/// Memory that may be refused, for the C library.
#[doc(hidden)]
pub mod fallible {
    pub use crate::base::fallible::*;
    pub use crate::base::text::*;
}
pub use collect::{Collect, CollectError};
pub use heap::model;
pub use typed::any::{AnyGc, GcDyn};
pub use typed::blocking::Join;
pub use typed::builder::HeapBuilder;
pub use typed::cell::{GcCell, GcCellGuard};
pub use typed::detached::Detached;
pub use typed::fork::Fork;
pub use typed::gc::Gc;
pub use typed::heap::{DeferGuard, Heap};
pub use typed::known_root::KnownRoot;
pub use typed::mutator::Mutator;
pub use typed::weak::{GcWeak, WeakCallback, WeakRef};
/// Lines on standard error, for the C library.
#[doc(hidden)]
pub mod stderr {
    pub use crate::base::event::is_warning_heard;
    pub use crate::base::outside::{abort, line};
}
pub use base::stress::{ParseStressError, Stress, StressStats};
#[cfg(feature = "cpython")]
pub use gc_module::Thresholds;
pub use heap::model_heap::HeapStats;
pub use heap::policy::Pacing;
pub use heap::slow::{CellWait, SlowLock};
#[doc(hidden)]
pub use object::tracer::Edge;
pub use object::tracer::Tracer;
#[cfg(feature = "derive")]
pub use standstill_derive::Trace;
pub use typed::slice::{GcSlice, HeaderSlice, RefusedSlice};
pub use typed::slot::{AtomicGc, GcOnce};
pub use typed::trace::Trace;

/// What the highest floor adds to a heap of typed objects.
static EXTENSIONS: typed::extensions::Extensions = typed::extensions::Extensions {
    #[cfg(all(feature = "cpython", not(all(test, loom))))]
    dynamic: Some(dynamic::EXTENSION),
    #[cfg(not(all(feature = "cpython", not(all(test, loom)))))]
    dynamic: None,
    #[cfg(feature = "cpython")]
    last_collection: Some(gc_module::at_the_end),
    #[cfg(not(feature = "cpython"))]
    last_collection: None,
    #[cfg(feature = "cpython")]
    observer: Some(gc_module::new_state),
    #[cfg(not(feature = "cpython"))]
    observer: None,
};

#[cfg(all(test, loom))]
#[path = "../loom_tests/mod.rs"]
mod loom_tests;
#[cfg(all(test, shuttle))]
#[path = "../shuttle_tests/mod.rs"]
mod shuttle_tests;
