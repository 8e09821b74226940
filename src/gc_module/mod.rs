//! The services of CPython's `gc` module, for a heap of typed and dynamic objects.
//!
//! Programs in Python tune, watch and debug their collector through this module, so a runtime that
//! replaces CPython's collector must offer it. [`Heap::services`](crate::Heap::services) returns a
//! handle. It switches automatic collections on and off, and sets thresholds, callbacks and
//! debugging flags. It reads counters, records and the garbage list, freezes objects, and lists
//! objects and references. All handles of a heap are equal, because the heap holds the state. Until
//! a program uses the services, it pays nearly nothing for them, because most state is empty.
//!
//! ```
//! use standstill::{Gc, GcCell, Heap, Trace};
//!
//! #[derive(Trace)]
//! struct Node { next: GcCell<Option<Gc<Node>>> }
//!
//! let heap = Heap::new();
//! let services = heap.services();
//! let mut m = heap.attach();
//! let node = m.alloc(Node { next: GcCell::default() });
//! node.next.set(&m, Some(node.clone()));
//! drop(node);
//!
//! assert!(services.disable());
//! assert!(services.collect_if_enabled(&mut m).is_none());
//! assert_eq!(services.collect_generation(&mut m, 2), Ok(1));
//! assert_eq!(services.stats()[2].collected, 1);
//! ```
//!
//! # Generations
//!
//! CPython's interface has three generations, although the collector has only two kinds of
//! collection:
//!
//! | number | collection | objects | counter |
//! |---|---|---|---|
//! | 0 | young | new since the last collection or promotion | the number of these objects |
//! | 1 | young, recorded as 1 | none | 0 |
//! | 2 | full | all others | young collections since the last full one |
//!
//! A [promotion](crate::HeapStats::promotions) makes new objects old without a collection, but a
//! heap with thresholds promotes nothing.
//!
//! # State and access
//!
//! Each entry names a state, its file, and the threads that may read and change it:
//!
//! * Enabled or disabled, as the user has set it (`collecting`): any thread, with one atomic swap.
//!   A running collection continues.
//! * The number of visits to all objects (`collecting`): the visiting threads. While it is not 0,
//!   the heap starts no collection, and the collecting calls of this module do nothing.
//! * The source of memory (`thresholds`): any thread, under its lock. The thresholds are a part of
//!   the heap's [`Pacing`](crate::Pacing).
//! * Callbacks, debugging flags and sink, audit hook (`watching`), records (`collecting`): any
//!   thread.
//! * The garbage list (`garbage`): attached threads, under its lock. A collection adds to it
//!   between the recheck and the clearing.
//! * Whether legacy finalizers are expected (the built-in model): any thread. Off by default.
//!
//! The heap starts collections if the user has enabled them, no thread visits all objects, no
//! [`DeferGuard`](crate::DeferGuard) exists, and [`Pacing::automatic`](crate::Pacing::automatic) is
//! set. [`Services::is_enabled`] returns only the first condition.
//!
//! # Calls from inside
//!
//! A function that collects or stops the world takes `&mut Mutator`, which no finalizer,
//! destructor, weak callback or progress callback has. The layer of another language, however, may
//! have a mutator while a caller further up the stack uses it. Then collecting calls do nothing,
//! and other calls return a [`Fault`](crate::Fault) with
//! [`Code::NotAllowedHere`](crate::Code::NotAllowedHere). While another thread collects, collecting
//! calls neither collect nor wait for the end of that collection. They may reclaim some of its
//! garbage, however, and park.
//!
//! # The end of a heap
//!
//! When the last handle and mutator of a heap are gone, the heap runs a last full collection, which
//! calls finalizers, but no progress callbacks of this module. If the garbage list then has
//! objects, the hook of [`Heap::on_unraisable`](crate::Heap::on_unraisable) is called, the list is
//! emptied, and the heap is collected again. If the program has used the services, the hook then
//! gets the number of remaining objects of each type, without immortal ones; see
//! [`Services::report_leaks`]. If the thread cannot attach to the heap, there is no last
//! collection, and the hook gets only the number of all remaining objects.
//!
//! # Out of memory
//!
//! If memory for a snapshot of objects is refused, the call returns a [`Fault`](crate::Fault) with
//! [`Code::Memory`](crate::Code::Memory), and nothing has happened. A collection that gets no
//! memory for its work lists is abandoned, and its report says so. In the remaining cases, which
//! `tests/alloc_failure.rs` lists, a refusal aborts the process, as in std.

/// The handle `Services`, the stop of the world for one of its calls, and the state behind it.
mod services;

/// Collections on request, the switch of automatic ones, and the records of all.
mod collecting;

/// When the heap collects by itself.
mod thresholds;

/// Lists of objects, of their references and referrers; frozen objects.
mod objects;

/// The garbage list, and what is left at the end of a heap.
mod garbage;

/// Callbacks, debugging lines and the audit hook.
mod watching;

pub use collecting::GenerationStats;
pub(crate) use garbage::at_the_end;
pub use objects::Visit;
pub use services::Services;
pub(crate) use services::new_state;
pub use thresholds::{Thresholds, process_memory};
pub use watching::{
    CallbackInfo, CallbackPhase, DEBUG_COLLECTABLE, DEBUG_LEAK, DEBUG_SAVEALL, DEBUG_STATS,
    DEBUG_UNCOLLECTABLE,
};
