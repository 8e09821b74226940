#![doc = include_str!("../README.md")]
#![deny(unsafe_code)]
// `base::outside` writes the lines. It ignores write errors, at which the macros would panic.
#![cfg_attr(not(test), deny(clippy::print_stderr, clippy::print_stdout))]
#![cfg_attr(not(test), warn(clippy::let_underscore_must_use))]
// Models build the library only for its tests and use only a part of it. Without the feature `heap`
// the coordinator uses only a part of floors 0 and 1.
#![cfg_attr(
    any(all(test, any(loom, shuttle)), standstill_loom, standstill_shuttle, not(feature = "heap")),
    allow(dead_code, unused_imports)
)]

#[cfg(all(standstill_loom, not(feature = "loom")))]
compile_error!("with `--cfg standstill_loom` the package `standstill` needs its feature `loom`");
#[cfg(all(standstill_shuttle, not(feature = "shuttle")))]
compile_error!(
    "with `--cfg standstill_shuttle` the package `standstill` needs its feature `shuttle`"
);
#[cfg(all(standstill_loom, standstill_shuttle))]
compile_error!("`standstill_loom` and `standstill_shuttle` exclude each other");

// Rules of unsafe code that belong to no single file. Each place that cites one keeps it by itself.
// ci/unsafe-rules.toml lists all rules with their tests.
//
// * **bounds**: the code nearby has checked the precondition of the operation: it has compared
//   a length or an index, made room, or excluded null. Some operations have no precondition, such
//   as a prefetch or a system call that only inspects an address.
// * **pinned**: the value behind a bare pointer stays in its place while the pointer is used. A
//   box stays until it is taken back, once. A frame stays while it waits for the pointer's user or
//   lies below the user on the stack. A constant stays for ever.
// * **guarded**: data that a lock or an atomic guards is accessed only through that lock or
//   atomic. A type that crosses threads consists of such data, or it is a bare address, or it
//   requires of its value the bounds that `Arc` and `Mutex` require. Code that dereferences a bare
//   address cites another rule.

// Floor 0: no domain. Memory that can be refused, locks, the system, test modes.
mod base;
// Floor 1: what the program is told. Errors, reports, hooks, spans.
mod report;
// Floor 2: three subjects that do not know each other.
/// Bytes: address ranges, pages, one allocator for each thread.
#[cfg(feature = "heap")]
mod memory;
/// One object: its header, state byte, type and weak record.
#[cfg(feature = "heap")]
mod object;
// Threads that can be stopped.
pub mod safepoint;
// Floor 3: the state that the threads of a heap share.
#[cfg(feature = "heap")]
mod heap;
// Floor 4: collections; the built-in model.
#[cfg(feature = "heap")]
mod collect;
#[cfg(feature = "heap")]
#[allow(unsafe_code)]
mod managed;
// Floor 5: checks of a heap and its model.
#[cfg(feature = "heap")]
mod verify;
// Floor 6: the API for runtimes with objects of their own.
#[cfg(feature = "heap")]
pub mod model;
// Floor 7: what a heap holds, and why.
#[cfg(feature = "heap")]
pub mod diagnose;
// Floor 8: the typed API for Rust.
#[cfg(feature = "heap")]
mod typed;
// Floor 9: types made at run time; CPython's gc module.
#[cfg(all(feature = "cpython", not(any(all(test, loom), standstill_loom, standstill_shuttle))))]
pub mod dynamic;
#[cfg(feature = "cpython")]
pub mod gc_module;

pub use report::error::{AllocError, AttachError, BuildError, Code, Fault, ForeignGc, OutOfMemory};
pub use report::facts::{
    ChildSearch, CollectionEvent, CollectionKind, CollectionReason, CollectionReport, During,
    LongestCall, Phase, PhaseTimes, TypeShare, Unraisable,
};
pub use report::hooks::CallGuards;
/// Allocation that may be refused, for the C library.
#[doc(hidden)]
pub mod fallible {
    pub use crate::base::fallible::*;
}
#[cfg(any(doc, doctest))]
#[doc = include_str!("../docs/guide.md")]
pub mod guide {}
/// The examples of these pages are tests.
#[cfg(doctest)]
#[doc = include_str!("../docs/model.md")]
mod model_guide {}
#[cfg(doctest)]
#[doc = include_str!("../docs/diagnostics.md")]
mod diagnostics_guide {}
/// Lines on standard error, for the C library.
#[doc(hidden)]
pub mod stderr {
    pub use crate::base::outside::{abort, line, try_set_line_sink, write_line};
    pub use crate::report::event::is_warning_enabled;
}
pub use base::outside::set_line_sink;
pub use base::stress::{ParseStressError, Stress, StressStats};
#[cfg(feature = "cpython")]
pub use gc_module::Thresholds;
pub use report::times::Distribution;
#[cfg(feature = "derive")]
pub use standstill_derive::Trace;

// What needs the feature `heap`.
macro_rules! with_heap {
    ($($item:item)*) => { $(#[cfg(feature = "heap")] $item)* };
}
with_heap! {
    pub use heap::blocking::Join;
    pub use heap::child_pace::ForkedSearch;
    pub use heap::model_heap::HeapStats;
    pub use heap::pacing::Pacing;
    pub use heap::request::{Collect, CollectError};
    pub use heap::settings::DeferGuard;
    pub use heap::slow::{CellWait, SlowLock};
    pub use heap::timings::CollectionTimes;
    pub use model::stopped::StoppedCollection;
    #[doc(hidden)]
    pub use object::tracer::Edge;
    pub use object::tracer::Tracer;
    pub use typed::ambient::{Attached, Departure};
    pub use typed::any::AnyGc;
    pub use typed::builder::HeapBuilder;
    pub use typed::cell::{GcCell, GcCellGuard};
    pub use typed::cell_read::{GcCellMappedGuard, GcCellReadGuard};
    pub use typed::channel::GcChannel;
    pub use typed::finalizer::Finalizer;
    pub use typed::fork::{DetachedFork, Fork};
    pub use typed::gc::Gc;
    pub use typed::gc_vec::GcVec;
    pub use typed::guardian::Guardian;
    pub use typed::heap::{Heap, KnownRoot};
    pub use typed::home::{AtHome, Home};
    #[doc(hidden)]
    pub use typed::kit;
    pub use typed::mutator::{Detached, Mutator};
    pub use typed::opaque::Opaque;
    pub use typed::shared_gc::SharedGc;
    pub use typed::slice::{GcSlice, HeaderSlice, RefusedSlice};
    pub use typed::slot::{AtomicGc, GcOnce};
    pub use typed::text::GcStr;
    pub use typed::trace::Trace;
    #[doc(hidden)]
    pub use typed::trace::{AnySkipped, Skipped};
    pub use typed::unique::GcMut;
    pub use typed::wait::GcCondvar;
    pub use typed::weak::{AnyObject, GcWeak, WeakCallback, WeakRef, WeakTarget};
    pub use typed::weak_map::{GcWeakMap, GcWeakSet, WeakKey};
    pub use typed::wide::GcDyn;
}

/// The parts that the highest floor adds to a heap of typed objects.
#[cfg(feature = "heap")]
static EXTENSIONS: typed::heap::Extensions = typed::heap::Extensions {
    #[cfg(all(
        feature = "cpython",
        not(any(all(test, loom), standstill_loom, standstill_shuttle))
    ))]
    dynamic: Some(dynamic::EXTENSION),
    #[cfg(not(all(
        feature = "cpython",
        not(any(all(test, loom), standstill_loom, standstill_shuttle))
    )))]
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

#[allow(unsafe_code)]
#[cfg(all(test, loom))]
#[path = "../loom_tests/mod.rs"]
mod loom_tests;
#[allow(unsafe_code)]
#[cfg(all(test, shuttle))]
#[path = "../shuttle_tests/mod.rs"]
mod shuttle_tests;
