//! The interface between the collector and the objects of a runtime.
//!
//! The collector works on addresses and side tables. It calls an [`ObjectModel`] for everything
//! about the objects: their counts, their references, how to clear them and how to destroy them.
//! The typed API ([`Gc`](crate::Gc), [`Trace`](crate::Trace)) is one model. A runtime that already
//! has objects implements its own model and gets the same collector, monomorphised.
//!
//! The objects of a model lie in memory from [`ModelMutator::allocate`]. With [`Segments`] they may
//! also lie in memory that the heap has [adopted](ModelMutator::adopt). The side tables of the heap
//! therefore cover them, and the collector recognises an object of its heap without reading it.
//!
//! # The states of an object
//!
//! | the object | the runtime calls | its effect |
//! |---|---|---|
//! | is born | [`publish`](ModelMutator::publish) | the heap has an object |
//! | may be part of a cycle, or not | [`track`](ModelMutator::track), [`untrack`](ModelMutator::untrack) | it is a candidate of collections, or not |
//! | is not to be considered for some time | [`freeze`](ModelMutator::freeze), or [`Count::Outside`] | it is kept, with all that it reaches |
//! | lives as long as the heap | [`Count::Immortal`] | as before, and it is untracked |
//! | has run its finalizer | [`set_finalized`](ModelMutator::set_finalized) | no collection calls the finalizer |
//! | is being destroyed | [`Count::Exact`]`(0)` | it is kept, with all that it reaches |
//! | is dead, and its memory is in use | [`dead`](ModelMutator::dead) | the heap has no object there |
//! | is gone | [`free`](ModelMutator::free), [`free_from_anywhere`](ModelHeap::free_from_anywhere) | its memory may be used again |
//!
//! An object may have memory in front of its address: see
//! [`allocate_at`](ModelMutator::allocate_at).
//!
//! The [guide](https://example.invalid/standstill/blob/main/docs/model.md) has a table of all
//! methods (when, on which thread, what they may do), the rights of finalizers, the costs, and a
//! port step by step.
//!
//! [`model_check`](crate::model_check) checks a model in a test: `check` names the rule that the
//! model breaks, and the method.
//!
//! # The end of a heap
//!
//! No method is called when a heap ends. When the last [`ModelHeap`] and the last mutator are
//! dropped, the heap unmaps its memory. Objects that still exist are not collected, cleared or
//! destroyed: resources that they own outside the heap leak, and their addresses dangle. A runtime
//! that wants its objects destroyed releases its references and collects before it drops the heap.
//! (The typed API does more: it collects once more, and keeps the memory mapped while references to
//! objects exist.)

#![forbid(unsafe_code)]

pub use crate::collect::fork::ModelFork;
pub use crate::heap::core::MODEL_REQUESTS;
pub use crate::heap::current::{CurrentMutator, UnlentMutator};
pub use crate::heap::detach::ModelDetached;
pub use crate::heap::fork_locks::ForkLocks;
pub use crate::heap::model::{Count, Found, ObjectModel, Verdict};
pub use crate::heap::model_heap::ModelHeap;
pub use crate::heap::mutator::ModelMutator;
pub use crate::heap::stopped_world::StoppedWorld;
pub use crate::heap::world::World;
pub use crate::memory::reserved::{AddressMap, Reserved};
pub use crate::memory::segments::{AdoptError, Segments};
#[cfg(all(feature = "model-check", not(all(test, any(loom, shuttle)))))]
pub use crate::model_check::check;
pub use crate::object::live::{ClaimRef, DeadObject, Live, Stopped};
pub use crate::object::state::ObjectFlags;
pub use crate::object::type_info::{Ends, Object, Tracer};
