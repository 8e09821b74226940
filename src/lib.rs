#![doc = include_str!("../README.md")]
// Models build the library for its tests alone, and use a part of it.
#![cfg_attr(all(test, any(loom, shuttle)), allow(dead_code, unused_imports))]

#[cfg(not(all(unix, target_pointer_width = "64")))]
compile_error!("standstill reserves large address ranges: it needs a 64-bit Unix");

mod arena;
mod cell;
mod collect;
mod discard;
#[cfg(not(all(test, loom)))]
pub mod dynamic;
mod error;
mod event;
mod fallible;
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
mod slice;
mod slot;
mod space;
mod stress;
mod sync;
mod trace;
mod tracked;
mod turn;
mod weak;

pub use cell::{GcCell, GcCellGuard};
pub use collect::{Collect, CollectError};
pub use error::{AllocError, AttachError, BuildError, Code, Fault, ForeignGc, OutOfMemory};
pub use event::{CallGuards, CollectionEvent, CollectionKind, CollectionReport, During, Unraisable};
pub use gc::{AnyGc, Gc, GcDyn, GcWeak, WeakCallback, WeakRef};
pub use heap::{DeferGuard, Detached, Fork, Heap, HeapBuilder, HeapStats, KnownRoot, Mutator, RefusedSlice};
pub use object::Tracer;
pub use pacing::{Pacing, Thresholds};
pub use slice::{GcSlice, HeaderSlice};
pub use slot::{AtomicGc, GcOnce};
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
