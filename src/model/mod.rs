//! A runtime has objects with counts, references and destructors of its own, of which a collector
//! knows nothing.
//!
//! So the collector works on addresses and side tables. It calls an [`ObjectModel`] for everything
//! about the objects: their counts, their references, how to clear them and how to destroy them.
//! The typed API ([`Gc`](crate::Gc), [`Trace`](crate::Trace)) is one model. A runtime that already
//! has objects implements its own, for which the same collector is monomorphised.
//!
//! The objects of a model lie in memory from [`ModelMutator::allocate`]. With [`Segments`] they lie
//! in memory that the heap has [adopted](ModelMutator::adopt) instead: they are registered one by
//! one, or the model lists them in each stop. The side tables of the heap therefore cover them, and
//! the collector recognises an object of its heap without reading it.
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
//! A model that [lists its objects](Lists) calls none of these functions, because an object is in
//! the heap if the last list has it. Its other states are answers of [`ObjectModel::count`].
//!
//! The [guide](https://example.invalid/standstill/blob/main/docs/model.md) has a table of all
//! methods (when, on which thread, what they may do), the rights of finalizers, the costs, and a
//! port step by step.
//!
//! The package `standstill-model-check` checks a model in a test: `check` names the rule that the
//! model breaks, and the method.
//!
//! # The end of a heap
//!
//! No method is called when a heap ends: when the last [`ModelHeap`] and the last mutator are
//! dropped, the heap unmaps its memory. Objects that still exist are not collected, cleared or
//! destroyed, so resources that they own outside the heap leak, and their addresses dangle.
//! Therefore a runtime that wants its objects destroyed releases its references and collects before
//! it drops the heap. (The typed API does more: it collects once more, and keeps the memory mapped
//! while references to objects exist.)
//!
//! # References that nobody counts
//!
//! Some runtimes do not count each reference, and describe this by four parts of an
//! [`ObjectModel`]. Each has an associated constant or an empty default, so that it costs nothing
//! in a model without it.
//!
//! * [`Tracer::uncounted`]: the traversed object refers to the target and holds no counted
//!   reference to it, as the frame of a generator does. The target stays alive while the source is
//!   alive, although counting ignores the reference.
//! * [`Uncounted::roots`]: objects that uncounted references from outside keep alive, such as the
//!   references on the threads' stacks.
//! * [`Adjusted::adjustments`]: a count is the sum of the object's own number and of numbers in
//!   other places.
//! * [`Serial::serial`]: some objects are traversed on the collecting thread alone.
//!
//! An object that holds uncounted references is tracked. If one of its fields cannot be read
//! ([`Tracer::unreadable`]), its traversal still reports all its uncounted references, because
//! nothing else keeps their targets alive. If that is impossible, the traversal panics, so that the
//! collection is abandoned. [`clear`](ObjectModel::clear) removes uncounted references too, because
//! once the world runs, their targets may be destroyed before the object is.
//!
//! # A poll word of the runtime
//!
//! An interpreter already checks a word of its own, and should not also have to check the one
//! behind [`ModelMutator::safepoint`]. So with [`PollWord`] the heap tells the runtime to set its
//! word.
//!
//! 1. Any thread raises bits in the mutator's poll word, and then calls
//!    [`PollWord::requested`], which sets the runtime's word by a read-modify-write with
//!    `Release`.
//! 2. The mutator's thread polls the runtime's word, relaxed. If it is set, the thread clears it,
//!    by a read-modify-write with `Acquire`, and then calls [`ModelMutator::safepoint`], which
//!    reads the mutator's poll word. No other thread clears the word, and the thread clears it at
//!    no other place.
//! 3. If requests are left when `safepoint` returns or panics, it calls `requested` once more.
//!    Requests are left, for example, while the mutator is lent to a finalizer.
//!
//! No request is lost, because the changes in steps 1 and 2 have an order. If the thread's change
//! comes after the other, it acquires the raised bits, so `safepoint` finds them. Otherwise the
//! runtime's word is set afterwards. A word that is set without a request costs one call of
//! `safepoint`.
//!
//! # A stop of the runtime
//!
//! A runtime may have threads that are not mutators of the heap, and stop them itself. With
//! [`RuntimeStop`] each stop of the heap is two stops:
//!
//! 1. The thread leaves the runtime ([`RuntimeStop::leaving`]), waits for the mutators of the heap,
//!    and comes back to the runtime ([`RuntimeStop::comes_back`]).
//! 2. It stops the runtime ([`RuntimeStop::stop_runtime`]).
//! 3. It does its work.
//! 4. It resumes the runtime, and then the mutators ([`RuntimeStop::resume_runtime`]).
//!
//! If the runtime cannot stop, nothing has changed, and the collection ends with
//! [`StopError::Refused`](crate::safepoint::StopError::Refused).
//!
//! The stop of [`ModelMutator::prepare_fork`] is the first one alone, because the runtime prepares
//! the fork itself.
//!
//! The runtime may stop its threads at any time for reasons of its own, so both stops could wait
//! for each other. No deadlock is possible if threads acquire these in this order: the collector
//! lock, the heap's stop, the runtime's stop. So:
//!
//! * A thread that waits for the heap (at a safepoint, for its own stop, detached) does not run in
//!   the runtime. Therefore the library calls `leaving` before, and `comes_back` after. If
//!   `comes_back` returns `false`, the thread detaches once more and calls
//!   [`RuntimeStop::wait_for_runtime`].
//! * A thread that the runtime stops waits for the end of that stop detached from the heap, inside
//!   [`ModelMutator::detach`].
//! * A thread that has stopped the runtime for another reason does not attach, reach a safepoint,
//!   stop or collect before it resumes the runtime. [`ModelMutator::collect_stopped`] is the
//!   exception, because it does not wait for other threads that collect or stop the heap, but gives
//!   up.
//! * `stop_runtime` may wait for another stop of the runtime, in which the thread counts as
//!   stopped.
//!
//! The first thread that stops the runtime wins. If it is not the collecting thread, the mutators
//! that have stopped for the collection wait for the end of both stops.

// Forks: they stop the heap, and the child abandons a collection.
#[allow(unsafe_code)]
pub(crate) mod fork;
// The first half of a collection, inside a stop of the runtime.
pub(crate) mod stopped;
// The objects of a heap and their references, for debuggers.
pub(crate) mod inspect;

pub use self::fork::{ModelDetachedFork, ModelFork};
pub use crate::heap::ambient::{ModelAttached, ModelDeparture};
pub use crate::heap::core::MODEL_REQUESTS;
pub use crate::heap::current::{CurrentMutator, UnlentMutator};
pub use crate::heap::detach::ModelDetached;
pub use crate::heap::listed::{Blocks, ListedMemory, ObjectList};
pub use crate::heap::model::{Count, ObjectModel};
pub use crate::heap::model_heap::ModelHeap;
pub use crate::heap::mutator::ModelMutator;
pub use crate::heap::parts::ForkLocks;
pub use crate::heap::parts::{
    Adjusted, Batches, Checks, ChildWait, Describe, Ephemeron, Ephemerons, Finalizers, Forks,
    Found, Lists, Local, Parts, PollWord, Private, RuntimeStop, Serial, SplitCounts, ThreadData,
    Threads, Uncounted, Verdict, Verdicts, WeakRefs,
};
pub use crate::heap::world::StoppedWorld;
pub use crate::heap::world::World;
pub use crate::memory::address_map::AddressMap;
pub use crate::memory::address_map::Reserved;
pub use crate::memory::segments::{AdoptError, Segments};
pub use crate::object::address::Object;
pub use crate::object::live::{ClaimRef, DeadObject, Live, Stopped};
pub use crate::object::state::ObjectFlags;
pub use crate::object::tracer::{Ends, Tracer};
