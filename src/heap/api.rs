//! The interface between the collector and the objects of a runtime.
//!
//! The collector works on addresses and side tables. It calls an [`ObjectModel`] for everything
//! about the objects: their counts, their references, how to clear them and how to destroy them.
//! The typed API ([`Gc`](crate::Gc), [`Trace`](crate::Trace)) is one model. A runtime that already
//! has objects implements its own model and gets the same collector, monomorphised.
//!
//! The objects of a model lie in memory from [`ModelMutator::allocate`]. The side tables of the
//! heap therefore cover them, and the collector recognises an object of its heap without reading
//! it.
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

pub use crate::heap::core::MODEL_REQUESTS;
pub use crate::heap::model::{Found, ObjectModel, Verdict};
pub use crate::heap::model_heap::ModelHeap;
pub use crate::heap::mutator::ModelMutator;
pub use crate::heap::world::World;
#[cfg(all(feature = "model-check", not(all(test, any(loom, shuttle)))))]
pub use crate::model_check::check;
pub use crate::object::live::{ClaimRef, DeadObject, Live, Stopped};
pub use crate::object::type_info::{Ends, Object, Tracer};
