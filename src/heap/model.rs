//! The trait by which the collector uses a runtime's objects, as [`model`](crate::model) explains.
//!
//! The collector finds garbage without knowing a single root, because it compares counts with
//! references. For example, A and B refer to each other, and thread 1 holds A.
//! [`count`](ObjectModel::count) returns 2 for A and 1 for B, while the two
//! [traversals](ObjectModel::traverse) report one reference to each. So one reference to A comes
//! from outside, and both are alive until thread 1 drops it.

use std::borrow::Cow;

use crate::heap::mutator::ModelMutator;
use crate::heap::parts::*;
use crate::memory::address_map::AddressMap;
use crate::object::live::{ClaimRef, Live, Stopped};
use crate::object::tracer::Tracer;
use crate::safepoint::ThreadId;

/// The part that an object takes in a collection, as [`ObjectModel::count`] returns it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Count {
    /// The object takes part, with the number of existing references to it.
    ///
    /// `Exact(0)`: its destruction has begun, and waits, for example in a callback or in a queue.
    /// The collector treats such an object as [`Outside`](Self::Outside), because the model
    /// destroys it already, and it still holds the references in its fields. If counting meets a
    /// reference to it, it is [overvisited](crate::model::Checks::overvisited).
    ///
    /// With [`Uncounted`](crate::model::Uncounted) or [`Adjusted`](crate::model::Adjusted) an
    /// object with `Exact(0)` may be an ordinary object, which takes part with the count 0. So such
    /// a model returns [`Outside`](Self::Outside) for an object whose destruction has begun.
    Exact(i64),
    /// The object takes no part in this collection, because the runtime has frozen it, or is
    /// destroying it, or this collection does not concern its part of the program.
    ///
    /// The object is kept alive, with all objects that it reaches. It stays in the tracked set, so
    /// the next collection that has it among its candidates asks again, which costs about as much
    /// as to count an ordinary object. An object that stays outside for long is cheaper if it is
    /// [untracked](ModelMutator::untrack) or [frozen](ModelMutator::freeze).
    Outside,
    /// The object lives as long as the heap, and is kept alive with all objects that it reaches.
    ///
    /// The collector removes it from the tracked set, as [`ModelMutator::untrack`] does. So the
    /// object is a candidate of no later collection, no enumeration of tracked objects shows it,
    /// and the model is not asked again. The references in its fields count as references from
    /// outside. Only [`ModelMutator::track`] brings it back.
    Immortal,
}

/// The objects of a runtime, as a [`ModelHeap`](crate::model::ModelHeap) uses them.
///
/// # Safety
///
/// The collector relies on the following rules, so an implementation that breaks one causes
/// undefined behaviour. It vouches for its [parts](Self::Parts), too.
///
/// 1. **Counts are real.** If [`count`](Self::count) returns [`Count::Exact`], its number is that
///    of the existing references to the object, including those outside the heap.
///    [`claim_ref`](Self::claim_ref) adds one reference, and [`release`](Self::release) removes
///    one.
/// 2. **Memory is freed only at count 0**, once, by the model, with
///    [`ModelMutator::free`](crate::heap::model::ModelMutator::free), or later, after
///    [`ModelMutator::dead`](crate::heap::model::ModelMutator::dead).
/// 3. **A stop is a stop.** Between a stop and the resume no thread, attached or not, lowers a
///    count or frees an object. (Unattached threads may add references to objects that they hold
///    references to, and the methods that run in the stop may add references to any object. The
///    memory of objects that are [dead](crate::heap::model::ModelMutator::dead) already may be
///    freed with [`free_from_anywhere`](crate::model::ModelHeap::free_from_anywhere). A thread with
///    a [`StoppedWorld`](crate::model::StoppedWorld) of its own may lower counts, because no
///    collection relies on that stop.)
/// 4. **Traversal reports live references only.** For each address in the heap that is given to
///    [`Tracer::visit_object`], the traversed object holds a counted reference to the object at
///    that address. Other addresses are ignored. An address given to [`Tracer::uncounted`] is that
///    of a live object. To report too few references, or one reference twice, is not undefined
///    behaviour, but the collector then keeps or clears the wrong objects.
/// 5. **`merge` merges pending counts.** After [`merge`](crate::model::SplitCounts::merge), `count`
///    is exact. Every object with count 0 has been put into `dead`, unless its destruction has
///    already begun.
/// 6. **No safepoint inside.** No method, and no function that it calls, reaches a safepoint,
///    detaches or stops the world. (The mutator is passed as `&`, which allows none of them. Inside
///    a finalizer, [`ModelMutator::stop_inside`] is allowed.)
/// 7. **Uncounted references are named.** If a reference without a count keeps an object alive, one
///    of three holds. The object has a counted reference too that no traversal reports; or a
///    traversal of each stop reports the uncounted one with [`Tracer::uncounted`]; or
///    [`roots`](crate::model::Uncounted::roots) reports its target. With such references an object
///    with count 0 may be alive; [`merge`](crate::model::SplitCounts::merge) does not put it into
///    `dead`.
/// 8. **A traversal repeats itself.** All traversals of an object in one stop report the same
///    references, because the collector counts those of one traversal and follows those of another
///    one. A field that [cannot be read](Tracer::unreadable), because an unattached thread has
///    locked it, is the exception: that thread does not change its references during the stop. To
///    break this rule is not undefined behaviour, but the collector then clears the wrong objects.
///
/// # Threads
///
/// Methods with a [`World`](crate::model::World) or a [`Stopped`] parameter run while the world is
/// stopped, possibly on a worker thread of the collector. Methods with a [`ModelMutator`] parameter
/// run on an attached thread with the world running. This is the collecting thread, except that any
/// attached thread may clear and release garbage if the heap started the collection by itself. Each
/// object is cleared by one thread. All other methods may run in either state.
///
/// The mutator is lent while a method has it, except in
/// [`refused`](crate::model::Threads::refused), so that code of the program that the method runs
/// may ask [`ModelMutator::may_park`].
pub unsafe trait ObjectModel: Sized + Send + Sync + 'static {
    /// How a heap finds its own data about an object by the object's address:
    /// [`Reserved`](crate::model::Reserved), the fastest map, or
    /// [`Segments`](crate::model::Segments), for objects in memory that others allocated.
    type Addresses: AddressMap;

    /// The parts of the model, which are `()` for none, and otherwise the model itself, with
    /// [`parts!`](crate::parts).
    type Parts: Parts<Self>;

    /// Whether this is the model of the typed face, whose own code lends the mutator where it calls
    /// code of the program. Checked mode does not make it responsible for that code.
    #[doc(hidden)]
    const IS_BUILT_IN: bool = false;

    /// Returns the number of existing references to `object`, or that it takes no part in this
    /// collection. Within a stop the variant for an object is always the same, although a number
    /// may rise, because unattached threads add references.
    fn count(&self, object: Stopped<'_>) -> Count;

    /// Whether [`count`](Self::count) returns [`Count::Immortal`].
    #[inline(always)]
    fn is_immortal(&self, object: Stopped<'_>) -> bool {
        matches!(self.count(object), Count::Immortal)
    }

    /// Reports every reference that `object` holds. If it panics, the collection is abandoned.
    fn traverse(&self, object: Stopped<'_>, tracer: &mut Tracer);

    /// Adds a reference on behalf of the thread `by`. This is the collecting thread or another
    /// mutator that is parked, and most likely the thread that will release the reference. Called
    /// once for each object, on several threads of the collection at the same time.
    fn claim_ref(&self, object: Stopped<'_>, by: ThreadId);

    /// Drops a reference that [`claim_ref`](Self::claim_ref) or
    /// [`claim_ref_for_any`](crate::model::SplitCounts::claim_ref_for_any) added, and destroys the
    /// object if it was the last reference. It usually runs on the thread that `claim_ref` named,
    /// although any attached thread may run it.
    fn release(&self, reference: ClaimRef, m: &ModelMutator<Self>);

    /// Removes the references from those fields of `object` that can be part of a cycle. If it
    /// panics, the panic is reported, and the collection continues.
    fn clear(&self, object: Live<'_>, m: &ModelMutator<Self>);

    /// Returns a name for the type of `object`, for reports. It may run while the world is stopped.
    /// It should take little time, because a collection also asks for it once for every 32 objects
    /// that it releases, as one of these may turn out to be slow.
    fn type_name(&self, object: Live<'_>) -> Cow<'static, str> {
        let _ = object;
        "*object".into()
    }

    /// Whether two threads may traverse one object at the same time, and one thread may traverse an
    /// object twice. Then several workers mark faster. A
    /// [prefetch](crate::model::Batches::prefetch_each) may overlap, too, while a
    /// [serial](crate::model::Serial::serial) object is still traversed by one thread.
    const OVERLAPPING_TRAVERSALS: bool = false;
}
