//! The trait by which the collector uses the objects of a runtime. See [`model`](crate::model).

use std::borrow::Cow;

use crate::heap::fork_locks::ForkLocks;
use crate::heap::listed::{ListedMemory, ObjectList};
use crate::heap::mutator::ModelMutator;
use crate::heap::world::World;
use crate::memory::reserved::AddressMap;
use crate::object::live::{ClaimRef, DeadObject, Live, Stopped};
use crate::object::type_info::{Ends, Object, Tracer};
use crate::safepoint::ThreadId;

/// The result of a collection, for [`ObjectModel::judge`].
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Found<'a> {
    /// The objects to be cleared.
    pub garbage: &'a [Live<'a>],
    /// The objects that are not cleared: they have a legacy finalizer, or such objects reach them.
    pub uncollectable: &'a [Live<'a>],
    /// The uncollectable objects that have a legacy finalizer.
    pub legacy: &'a [Live<'a>],
}

impl<'a> Found<'a> {
    pub(crate) fn new(
        garbage: &'a [Live<'a>],
        uncollectable: &'a [Live<'a>],
        legacy: &'a [Live<'a>],
    ) -> Self {
        Self { garbage, uncollectable, legacy }
    }
}

/// The part that an object takes in a collection: the result of [`ObjectModel::count`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Count {
    /// The object takes part. The number of existing references to it.
    ///
    /// `Exact(0)`: its destruction has begun, and waits, for example in a callback or in a queue.
    /// The collector treats such an object as [`Outside`](Self::Outside): it is no garbage, because
    /// the model destroys it already, and it still holds the references in its fields. If counting
    /// meets a reference to it, it is [overvisited](ObjectModel::overvisited).
    ///
    /// With [`UNCOUNTED_EDGES`](ObjectModel::UNCOUNTED_EDGES) or
    /// [`ADJUSTS_COUNTS`](ObjectModel::ADJUSTS_COUNTS) an object with `Exact(0)` may be an ordinary
    /// object. It takes part, with the count 0. Such a model returns [`Outside`](Self::Outside) for
    /// an object whose destruction has begun.
    Exact(i64),
    /// The object takes no part in this collection: the runtime has frozen it, or is destroying it,
    /// or it belongs to a part of the program that this collection does not concern.
    ///
    /// The object is kept alive, with all objects that it reaches. It stays in the tracked set, and
    /// the next collection that has it among its candidates asks again. To ask costs about as much
    /// as to count an ordinary object. An object that stays outside for long is cheaper if it is
    /// [untracked](ModelMutator::untrack) or [frozen](ModelMutator::freeze).
    Outside,
    /// The object lives as long as the heap. It is kept alive, with all objects that it reaches.
    ///
    /// The collector removes it from the tracked set, as [`ModelMutator::untrack`] does. So the
    /// object is a candidate of no later collection, no enumeration of tracked objects shows it,
    /// and the model is not asked again. The references in its fields count as references from
    /// outside. Only [`ModelMutator::track`] brings it back.
    Immortal,
}

/// The decision of [`ObjectModel::judge`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The garbage is cleared.
    Clear,
    /// Nothing is cleared. The garbage becomes ordinary objects again and is reported as
    /// uncollectable. Its weak references stay cleared, and its finalizers have run.
    Keep,
}

/// The objects of a runtime, as a [`ModelHeap`](crate::model::ModelHeap) uses them.
///
/// # Safety
///
/// The collector relies on the following rules. An implementation that breaks one causes undefined
/// behaviour.
///
/// 1. **Counts are real.** If [`count`](Self::count) returns [`Count::Exact`], its number is that
///    of the existing references to the object, including those outside the heap.
///    [`claim_ref`](Self::claim_ref) adds one reference. [`release`](Self::release) removes one.
/// 2. **Memory is freed only at count 0**, once, by the model, with
///    [`ModelMutator::free`](crate::heap::model::ModelMutator::free), or later, after
///    [`ModelMutator::dead`](crate::heap::model::ModelMutator::dead).
/// 3. **A stop is a stop.** Between a stop and the resume no thread, attached or not, lowers a
///    count or frees an object. (Unattached threads may add references to objects that they hold
///    references to, and the methods that run in the stop may add references to any object. The
///    memory of objects that are [dead](crate::heap::model::ModelMutator::dead) already may be
///    freed with [`free_from_anywhere`](crate::model::ModelHeap::free_from_anywhere). A thread with
///    a [`StoppedWorld`](crate::model::StoppedWorld) of its own may lower counts: no collection
///    relies on that stop.)
/// 4. **Traversal reports live references only.** For each address in the heap that is given to
///    [`Tracer::visit_object`], the traversed object holds a counted reference to the object at
///    that address. Other addresses are ignored. An address given to [`Tracer::uncounted`] is that
///    of a live object. To report too few references, or one reference twice, is not undefined
///    behaviour, but the collector then keeps or clears the wrong objects.
/// 5. **`merge` merges pending counts.** After [`merge`](Self::merge), `count` is exact. Every
///    object with count 0 has been put into `dead`, unless its destruction has already begun.
/// 6. **No safepoint inside.** No method, and no function that it calls, reaches a safepoint,
///    detaches or stops the world. (The mutator is passed as `&`, which allows none of them. Inside
///    a finalizer, [`ModelMutator::stop_inside`] is allowed.)
/// 7. **Uncounted references are named.** If a reference without a count keeps an object alive, the
///    object has a counted reference too that no traversal reports, or a traversal of each stop
///    reports it with [`Tracer::uncounted`], or [`roots`](Self::roots) reports its target. With
///    such references an object with count 0 may be alive; [`merge`](Self::merge) does not put it
///    into `dead`.
///
/// # Threads
///
/// Methods with a [`World`] or a [`Stopped`] parameter run while the world is stopped, possibly on
/// a worker thread of the collector. Methods with a [`ModelMutator`] parameter run on an attached
/// thread with the world running. This is the collecting thread, with one exception: if the heap
/// started the collection by itself, any attached thread may clear and release garbage. Each object
/// is cleared by one thread. All other methods may run in either state.
///
/// The mutator is lent while a method has it, except in [`refused`](Self::refused). So code of the
/// program that the method runs may ask [`ModelMutator::may_park`].
pub unsafe trait ObjectModel: Sized + Send + Sync + 'static {
    /// The data of the model for each mutator. Other threads read it, so it must synchronise
    /// itself.
    type Local: Send + Sync + 'static;

    /// A due weak callback. It is created in a stop and called after the stop.
    type Callback: Send;

    /// The data of the model for each mutator that only its own thread uses.
    ///
    /// If the destructor of this data or of [`Local`](Self::Local) panics, the mutator ends all the
    /// same. The panic is treated as one of [`ending`](Self::ending).
    type Private: 'static;

    /// How a heap finds its own data about an object by the object's address:
    /// [`Reserved`](crate::model::Reserved), the fastest map, or
    /// [`Segments`](crate::model::Segments), for objects in memory that others allocated and for
    /// processes without a large range of addresses.
    type Addresses: AddressMap;

    /// Whether two traversals of an object in one stop always report the same references. If
    /// `false`, the collector records the references that the counting pass reported and marks from
    /// the record.
    const STABLE_DURING_STOP: bool;

    /// The requests of [`MODEL_REQUESTS`](crate::model::MODEL_REQUESTS) that another thread may
    /// answer for the requested thread: any attached thread, or the next thread that attaches.
    ///
    /// A thread answers its pending requests before it detaches. Shared requests that arrive
    /// meanwhile are passed on to the attached threads. Without this, other threads could delay the
    /// detach without end. The thread answers all other requests itself until none is pending.
    const SHARED_REQUESTS: u32 = 0;

    /// Whether this is the model of the typed face. Its own code lends the mutator where it calls
    /// code of the program. Checked mode does not make it responsible for that code.
    #[doc(hidden)]
    const IS_BUILT_IN: bool = false;

    /// Creates the shared data of a new mutator.
    fn local(&self) -> Self::Local;

    /// Creates the private data of a new mutator.
    fn private(&self) -> Self::Private;

    /// As [`private`](Self::private); `None` if there is no memory.
    #[doc(hidden)]
    fn try_private(&self) -> Option<Self::Private> {
        Some(self.private())
    }

    /// Whether the private data of a mutator that has ended may serve the next mutator of the heap,
    /// on any thread. If so, it is as new now.
    #[doc(hidden)]
    fn keeps_private(&self, private: &mut Self::Private) -> bool {
        let _ = private;
        false
    }

    /// Returns the number of existing references to `object`, or that it takes no part in this
    /// collection. Within a stop the variant for an object is always the same. A number may rise,
    /// because unattached threads add references.
    fn count(&self, object: Stopped<'_>) -> Count;

    /// Whether [`count`](Self::count) returns [`Count::Immortal`].
    #[inline(always)]
    fn is_immortal(&self, object: Stopped<'_>) -> bool {
        matches!(self.count(object), Count::Immortal)
    }

    /// Reports every reference that `object` holds. May panic: the collection is then abandoned.
    fn traverse(&self, object: Stopped<'_>, tracer: &mut Tracer);

    /// Reports the references of one or more objects at the front of `objects`, as
    /// [`traverse`](Self::traverse) does for one. It passes these objects to [`Tracer::each`] in
    /// order and without gaps. `objects` is not empty.
    ///
    /// A model overrides this if it can traverse several objects of one type faster than it can
    /// look up the type of each. A reference reported outside [`Tracer::each`] is attributed to the
    /// next object. A reference reported under another object is attributed to that object. Rule 4
    /// names the consequences. If the call traverses no object, the collection is abandoned.
    #[inline(always)]
    fn traverse_each(&self, objects: &[Stopped<'_>], tracer: &mut Tracer, ends: &mut Ends<'_>) {
        tracer.each(objects, ends, |object, tracer| self.traverse(object, tracer));
    }

    /// Whether [`prefetch`](Self::prefetch) has an effect. Called once for each pass over the heap.
    fn prefetches(&self) -> bool {
        false
    }

    /// Prefetches memory outside `object` that [`traverse`](Self::traverse) will read, with
    /// [`Tracer::fetch`]. The collector calls it some objects ahead of the traversal. It reports
    /// nothing to the tracer.
    #[inline]
    fn prefetch(&self, object: Stopped<'_>, tracer: &mut Tracer) {
        let _ = (object, tracer);
    }

    /// As [`prefetch`](Self::prefetch), for several objects. `objects` is not empty. The collector
    /// calls only this method.
    #[inline(always)]
    fn prefetch_each(&self, objects: &[Stopped<'_>], tracer: &mut Tracer) {
        for &object in objects {
            tracer.go_on(object.object());
            self.prefetch(object, tracer);
        }
    }

    /// Adds a reference on behalf of the thread `by`. This is the collecting thread or another
    /// mutator that is parked, and most likely the thread that will release the reference. Called
    /// once for each object, on several threads of the collection at the same time.
    fn claim_ref(&self, object: Stopped<'_>, by: ThreadId);

    /// As [`claim_ref`](Self::claim_ref), if the heap has more mutators than the machine has
    /// processors. Then any mutator may clear and release the object, while the thread `by` waits
    /// for a processor. A model whose owners count without atomic instructions overrides this.
    ///
    /// Also called, by the collecting thread, for each object that is alive after it was released:
    /// in one more stop, after a [`merge`](Self::merge). So such an object is claimed and released
    /// twice.
    fn claim_ref_for_any(&self, object: Stopped<'_>, by: ThreadId) {
        self.claim_ref(object, by);
    }

    /// Drops a reference that [`claim_ref`](Self::claim_ref) or
    /// [`claim_ref_for_any`](Self::claim_ref_for_any) added, and destroys the object if it
    /// was the last reference. It usually runs on the thread that `claim_ref` named, but any
    /// attached thread may run it.
    fn release(&self, reference: ClaimRef, m: &ModelMutator<Self>);

    /// Removes the references from those fields of `object` that can be part of a cycle. May panic:
    /// the panic is reported, and the collection continues.
    fn clear(&self, object: Live<'_>, m: &ModelMutator<Self>);

    /// This thread is about to clear objects of a collection that clears `objects` in all.
    fn clearing(&self, m: &ModelMutator<Self>, objects: usize) {
        let _ = (m, objects);
    }

    /// This thread has cleared an object. The model may defer the drops of the references that
    /// [`clear`](Self::clear) removed, and drop them here in batches. If `last` is true it must
    /// drop all of them: objects are about to be released, or the thread is about to park.
    fn cleared(&self, m: &ModelMutator<Self>, last: bool) {
        let _ = (m, last);
    }

    /// Whether `object` has a finalizer. Called only for objects that were not finalized yet.
    ///
    /// It has no default, so that a model cannot define [`finalize`](Self::finalize) and leave it
    /// uncalled.
    fn has_finalizer(&self, object: Live<'_>) -> bool;

    /// Runs the finalizer of an `object` that [has one](Self::has_finalizer). May panic, make the
    /// object reachable again, allocate, and change the graph.
    ///
    /// May block, for example for a lock or a thread. A finalizer that a collection calls may leave
    /// meanwhile with [`ModelMutator::leave_for_now`]. Otherwise the thread is attached, and
    /// [`ModelMutator::may_park`] returns `false`. Then the thread that it waits for must not wait
    /// for a stop: it must not call [`ModelMutator::stop`] or [`ModelMutator::prepare_fork`], and
    /// gets [`CollectError::Busy`](crate::CollectError::Busy) from a collection that does not wait.
    fn finalize(&self, object: Live<'_>, m: &ModelMutator<Self>) {
        let _ = (object, m);
    }

    /// Whether the collector calls [`verifies_traversal`](Self::verifies_traversal).
    fn verifies_traversals(&self) -> bool {
        false
    }

    /// Whether the collector compares the two traversals of `object` in one stop. If they differ,
    /// the collection is abandoned. The comparison is slow, and meant for debugging.
    fn verifies_traversal(&self, object: Stopped<'_>) -> bool {
        let _ = object;
        false
    }

    /// Whether the collector traverses `object` once more in a stop of its own, after all objects
    /// of a batch are cleared and before one is released.
    #[doc(hidden)]
    fn examines_cleared(&self, object: Live<'_>) -> bool {
        let _ = object;
        false
    }

    /// The fields of `object`, which was cleared, refer to `target` more often than its count
    /// allows.
    #[doc(hidden)]
    fn dangles(&self, object: Stopped<'_>, target: Object) {
        let _ = (object, target);
    }

    /// Traversals reported more references to `object` than exist, so a traversal is wrong. The
    /// object is kept.
    fn overvisited(&self, object: Stopped<'_>) {
        let _ = object;
    }

    /// The heap has no memory for a new object. A model that caches freed memory returns it to the
    /// heap here. `true`: it returned some, and the heap tries the allocation again.
    fn refused(&self, m: &ModelMutator<Self>) -> bool {
        let _ = m;
        false
    }

    /// Drops deferred references, before a collection stops the world.
    fn prepare(&self, m: &ModelMutator<Self>) {
        let _ = m;
    }

    /// An upper limit for the number of objects that [`merge`](Self::merge) puts into `dead`. The
    /// collector reserves room for them first. If there is no memory, the collection is abandoned
    /// before the merge. Objects above the limit make `merge` allocate, and a failed allocation
    /// there ends the process.
    fn pending(&self, world: &World<'_, Self>) -> usize {
        let _ = world;
        0
    }

    /// Makes counts exact (rule 5): merges the pending counts in the [`Local`](Self::Local)s of all
    /// threads. [`World::locals`] lists them.
    fn merge(&self, world: &World<'_, Self>, dead: &mut Vec<DeadObject>) {
        let _ = (world, dead);
    }

    /// Destroys an object that [`merge`](Self::merge) found with count 0.
    fn destroy_merged(&self, dead: DeadObject, m: &ModelMutator<Self>) {
        let _ = (dead.object(), m);
    }

    /// Whether weak references to `object` may exist.
    fn has_weak(&self, object: Live<'_>) -> bool {
        let _ = object;
        false
    }

    /// An upper limit for the number of callbacks that [`take_callbacks`](Self::take_callbacks)
    /// puts into `due` for `object`. The collector reserves room for them first. If there is no
    /// memory, the collection is abandoned and clears nothing. [`pending`](Self::pending) says what
    /// a wrong limit causes.
    fn callbacks(&self, object: Stopped<'_>) -> usize {
        let _ = object;
        0
    }

    /// Clears those weak references to the unreachable `object` that have a callback. Puts their
    /// callbacks into `due`, except the callbacks of weak references that are garbage themselves.
    ///
    /// Called before any finalizer, for each object for which [`has_weak`](Self::has_weak) is true.
    /// Whether the weak references *without* a callback are cleared here, too, is the model's
    /// choice: then finalizers cannot make an object reachable again through them. The collector
    /// calls [`clear_weak`](Self::clear_weak) for each object that is still garbage after the
    /// finalizers, in any case. The method may add references, for example to make a weak reference
    /// live until its callback has run. It lowers no count (rule 3).
    #[expect(unused_variables, reason = "a model without callbacks takes none")]
    fn take_callbacks(
        &self,
        object: Stopped<'_>,
        is_unreachable: &dyn Fn(Object) -> bool,
        world: &World<'_, Self>,
        due: &mut Vec<Self::Callback>,
    ) {
    }

    /// Calls a weak callback. May panic.
    fn call_back(&self, callback: Self::Callback, m: &ModelMutator<Self>) {
        let _ = (callback, m);
    }

    /// Clears all weak references to `object`. Later upgrades fail.
    fn clear_weak(&self, object: Stopped<'_>) {
        let _ = object;
    }

    /// Whether objects with a legacy finalizer may exist. If `false`, the collector does not call
    /// [`legacy`](Self::legacy).
    fn has_legacy(&self) -> bool {
        false
    }

    /// Whether `object` has a *legacy finalizer*. The collector must not call such a finalizer,
    /// since it expects all objects that it reaches to be intact. The object must not be destroyed
    /// without a call of it either. If such an object is unreachable, neither it nor the objects
    /// that it reaches are cleared. They are reported as uncollectable.
    fn legacy(&self, object: Stopped<'_>) -> bool {
        let _ = object;
        false
    }

    /// Decides about the garbage after finalizers have run and the recheck is complete. The world
    /// is running. The collection holds references to all objects in `found` until this returns.
    /// The model may add references of its own.
    fn judge(&self, found: &Found<'_>, m: &ModelMutator<Self>) -> Verdict {
        let _ = (found, m);
        Verdict::Clear
    }

    /// Returns a name for the type of `object`, for reports. It may run while the world is stopped.
    /// A collection also asks for it once for every 32 objects that it releases, because one of
    /// these may turn out to be slow. So it should take little time.
    fn type_name(&self, object: Live<'_>) -> Cow<'static, str> {
        let _ = object;
        "*object".into()
    }

    /// Checks the header of `object` for invalid content. Called when the heap is verified, before
    /// any other method is called for the object.
    ///
    /// # Errors
    /// A description of the defect.
    fn check(&self, object: Stopped<'_>) -> Result<(), String> {
        let _ = object;
        Ok(())
    }

    /// Returns the name of the type of a destroyed object, if the remaining bytes still identify
    /// it. `memory` is the first byte of the object's memory, and not the object's address if
    /// [`allocate_at`](ModelMutator::allocate_at) has put a prefix in front of it. The report about
    /// a write to freed memory contains it. The memory may never have held an object. Called only
    /// if [freed memory is poisoned](crate::Stress::poison).
    fn last_type(&self, memory: std::ptr::NonNull<u8>) -> Option<&'static str> {
        let _ = memory;
        None
    }

    /// Called with the world running again, after a stop in which every thread was quiescent.
    fn resumed(&self, m: &ModelMutator<Self>) {
        let _ = m;
    }

    /// Called after a collection has released its garbage. Releases retired memory that no thread
    /// can be reading. `true`: the rest waits until every thread has passed a safepoint, and a stop
    /// would help.
    fn after_clear(&self, m: &ModelMutator<Self>) -> bool {
        let _ = m;
        false
    }

    /// Answers requests that the model has raised with the bits of
    /// [`MODEL_REQUESTS`](crate::model::MODEL_REQUESTS). Called in a safepoint that has
    /// work, before a detach, and before a mutator ends. Requests that arrive while a thread is
    /// detached wait for its next such point; [`attached`](Self::attached) can handle their work
    /// at once.
    fn answer(&self, requests: u32, m: &ModelMutator<Self>) {
        let _ = (requests, m);
    }

    /// Called after each attach, after [`park`](ModelMutator::park) has parked, and in each
    /// safepoint that has work, with the world running. A thread that parks while it clears and
    /// releases garbage does not call it then.
    fn attached(&self, m: &ModelMutator<Self>) {
        let _ = m;
    }

    /// Called when a mutator ends, on its own thread, still attached. A panic leaves the mutator's
    /// drop after the thread has detached. If the thread is already unwinding, the panic is
    /// reported as unraisable.
    fn ending(&self, m: &ModelMutator<Self>) {
        let _ = m;
    }

    // The seam to a runtime that counts, polls and stops in its own way. See the module's page.

    /// Whether [`requested`](Self::requested) is called.
    const OWN_POLL_WORD: bool = false;

    /// Request bits of a thread were raised: its own word is to be set. `local` belongs to the
    /// mutator of that thread. Called by any thread, and for [`STOP`](crate::safepoint::STOP) under
    /// the coordinator's lock. The function may set atomics and do nothing else: no lock, no
    /// allocation, no panic, no call of the library.
    ///
    /// `bits` has [`STOP`](crate::safepoint::STOP), bits of
    /// [`MODEL_REQUESTS`](crate::model::MODEL_REQUESTS), or others: a collection is due. More bits
    /// than these may be pending. The module's page describes [the protocol][own].
    ///
    /// [own]: crate::model#a-poll-word-of-the-runtime
    fn requested(thread: ThreadId, local: &Self::Local, bits: u32) {
        let _ = (thread, local, bits);
    }

    /// Whether a traversal may report [uncounted references](Tracer::uncounted). If `false`, such a
    /// report panics, and the collection is abandoned.
    const UNCOUNTED_EDGES: bool = false;

    /// Whether young collections and promotions run. If `false`, each collection is full, also one
    /// that was requested as [young](crate::Collect::young).
    ///
    /// A young collection does not traverse old objects, so it does not find their uncounted
    /// references. The default is `false` with [`UNCOUNTED_EDGES`](Self::UNCOUNTED_EDGES). A model
    /// sets it to `true` if [`roots`](Self::roots) reports these references.
    const COLLECTS_YOUNG: bool = !Self::UNCOUNTED_EDGES && !Self::LISTS_OBJECTS;

    /// Whether the second stop of a collection, after the finalizers, traverses all tracked objects
    /// for uncounted references to objects that the first stop has found unreachable. This takes
    /// about as long as the first stop.
    ///
    /// A model sets it to `false` if [`roots`](Self::roots) reports these references, or if there
    /// are none, for example because [`claim_ref`](Self::claim_ref) makes sure that all further
    /// references to the object are counted.
    const RECHECKS_UNCOUNTED: bool = Self::UNCOUNTED_EDGES && !Self::COLLECTS_YOUNG;

    /// Whether the model lists its objects, with [`list_parts`](Self::list_parts) and
    /// [`list`](Self::list), in each stop that looks at objects: in collections and inspections.
    /// Then nobody tells the heap about births and deaths.
    ///
    /// Such a model has [`Segments`](crate::model::Segments) and no young collections
    /// ([`COLLECTS_YOUNG`](Self::COLLECTS_YOUNG)); otherwise a heap of it does not compile. It
    /// differs from others in these points.
    ///
    /// * The states of objects are the model's. The methods that change one panic: `publish`,
    ///   `register`, `unregister`, `dead`, `track`, `untrack`, `set_finalized`, `freeze` and
    ///   `unfreeze` of [`ModelMutator`]. An object that is untracked, frozen or dying returns
    ///   [`Count::Outside`] from [`count`](Self::count). [`has_finalizer`](Self::has_finalizer)
    ///   returns `false` once the finalizer has run. [`Count::Immortal`] holds for one collection.
    /// * A traversal may report addresses in adopted memory where no listed object starts. They
    ///   count as untracked objects.
    /// * A report counts each released object as collected, even if it has survived.
    /// * The heap does not know how many objects there are. The statistics show the objects of the
    ///   last list, and no number of them makes a collection due.
    const LISTS_OBJECTS: bool = false;

    /// Prepares a list of all objects: adopts memory that is new, and returns the number of parts
    /// of the list. Called on the thread that has stopped the world, in a collection before
    /// [`merge`](Self::merge). May panic: this counts as an error.
    ///
    /// # Errors
    ///
    /// The reason why the objects cannot be listed. The collection is abandoned, and an inspection
    /// panics.
    fn list_parts(
        &self,
        world: &World<'_, Self>,
        memory: &ListedMemory<'_>,
    ) -> Result<usize, Cow<'static, str>> {
        let (_, _) = (world, memory);
        Ok(0)
    }

    /// Lists the objects of one part, from 0 to one less than the number that
    /// [`list_parts`](Self::list_parts) has returned. Called once for each part, on several threads
    /// at the same time. May panic: the collection is then abandoned, and an inspection panics.
    ///
    /// The list has all objects that take part in collections. It may also have others:
    /// [`count`](Self::count) returns [`Count::Outside`] for them. All that such an object refers
    /// to is kept. So its traversal reports its references, or nothing: then the targets have
    /// references that no traversal explains, and are kept as well.
    fn list(&self, part: usize, list: &mut ObjectList<'_>) {
        let (_, _) = (part, list);
    }

    /// Reports objects that references without a count keep alive, for example the references on
    /// the stacks of the runtime's threads. These objects, and all objects that they reach, stay
    /// alive. Called once in each stop that decides which objects are alive: in the first stop of
    /// each collection, young or full, and in the recheck.
    ///
    /// `traverses` tells whether the collector traverses an object in this stop. An uncounted
    /// reference from an object that it does not traverse is reported here, by its target. Such
    /// objects are, by the kind of the stop:
    ///
    /// * full collection: untracked and frozen objects, and objects whose destruction has begun;
    /// * young collection: these, and old objects;
    /// * recheck: all objects outside the set that the first stop has found unreachable. If
    ///   [`COLLECTS_YOUNG`](Self::COLLECTS_YOUNG) is `false`, the recheck finds the uncounted
    ///   references from all tracked objects itself.
    fn roots(
        &self,
        world: &World<'_, Self>,
        traverses: &dyn Fn(Object) -> bool,
        report: &mut dyn FnMut(Object),
    ) {
        let (_, _, _) = (world, traverses, report);
    }

    /// Whether [`adjustments`](Self::adjustments) reports any. If `false` and it does, the
    /// collection is abandoned.
    const ADJUSTS_COUNTS: bool = false;

    /// Reports corrections of [`count`](Self::count), for counts that are kept in several places:
    /// tables of threads, queues. The number of references is the count plus all corrections of the
    /// object. Called in each stop that counts, after [`merge`](Self::merge), and again if the
    /// collection begins again.
    fn adjustments(&self, world: &World<'_, Self>, report: &mut dyn FnMut(Object, i64)) {
        let (_, _) = (world, report);
    }

    /// Whether [`serial`](Self::serial) is called.
    const HAS_SERIAL: bool = false;

    /// Whether only the thread that has stopped the world traverses and prefetches `object`. A
    /// worker that meets such an object leaves it to that thread.
    fn serial(&self, object: Stopped<'_>) -> bool {
        let _ = object;
        false
    }

    /// Whether two threads may traverse one object at the same time, and one thread may traverse an
    /// object twice. Then several workers mark faster. A traversal must report the same references
    /// each time, so the collector ignores this without
    /// [`STABLE_DURING_STOP`](Self::STABLE_DURING_STOP). A [prefetch](Self::prefetch) may overlap,
    /// too. A [serial](Self::serial) object is still traversed by one thread.
    const OVERLAPPING_TRAVERSALS: bool = false;

    /// Whether the runtime stops its threads itself. If `false`, none of the methods below is
    /// called. The module's page has [the order][order] of both stops.
    ///
    /// [order]: crate::model#a-stop-of-the-runtime
    const STOPS_RUNTIME: bool = false;

    /// Stops all threads of the runtime but this one. Called in each stop except that of a fork,
    /// after all other attached threads of the heap have stopped. `local` belongs to the mutator of
    /// this thread.
    ///
    /// # Errors
    ///
    /// The reason why the runtime cannot stop. Then the threads of the heap continue, and the stop
    /// fails with [`StopError::Refused`](crate::safepoint::StopError::Refused). A panic counts as
    /// an error.
    fn stop_runtime(&self, local: &Self::Local) -> Result<(), Cow<'static, str>> {
        let _ = local;
        Ok(())
    }

    /// Ends a stop that [`stop_runtime`](Self::stop_runtime) has made, on the same thread, before
    /// the threads of the heap continue. A panic ends the process, because threads may stay
    /// stopped.
    fn resume_runtime(&self, local: &Self::Local) {
        let _ = local;
    }

    /// This thread is about to wait for a stop of the heap, or has just detached. From here on a
    /// stop of the runtime does not wait for it. Must not block or panic.
    fn leaving(&self, local: &Self::Local) {
        let _ = local;
    }

    /// Whether this thread, which has left the runtime, runs in it again. `false`: the runtime is
    /// stopped, or about to be. Called until it returns `true`: after each
    /// [`leaving`](Self::leaving), attached, possibly in a stop of this thread. Must not block or
    /// panic.
    fn comes_back(&self, local: &Self::Local) -> bool {
        let _ = local;
        true
    }

    /// [`comes_back`](Self::comes_back) has returned `false`: waits until another call may return
    /// `true`. The thread is detached, or has stopped the heap. Must not attach or panic.
    fn wait_for_runtime(&self, local: &Self::Local) {
        let _ = local;
    }

    /// Takes the locks of the model that unattached threads take too, for a fork. Called by the
    /// calls that prepare a fork, after they have stopped the world. The result is dropped after
    /// the fork, in both processes, before the world resumes.
    ///
    /// A child of the fork has one thread. If another thread of the parent held a lock at that
    /// moment, the lock stays locked in the child for ever. A stop waits for attached threads,
    /// which hold no lock of the model at a safepoint. It does not wait for unattached threads, so
    /// the fork must hold the locks that they take. Such a lock must survive a fork: std's locks
    /// do, and those of `parking_lot` do not.
    ///
    /// A model whose unattached threads take no lock need not override this.
    fn lock_for_fork(&self) -> ForkLocks<'_> {
        ForkLocks::none()
    }

    /// In the child of a fork: repairs the model after the loss of a thread. `lost` is a mutator
    /// whose thread does not exist in this process, and `local` its data. Called once for each of
    /// them when the child ends the fork ([`ModelFork::child`](crate::model::ModelFork::child), or
    /// the same of a [`ModelDetachedFork`](crate::model::ModelDetachedFork)), on the only thread of
    /// the process, with the world running, before the data is dropped. [`ending`](Self::ending) is
    /// not called for these mutators, and their private data leaks.
    ///
    /// A model moves pending work of the lost thread, such as deferred drops in `local`, to this
    /// mutator, and gives objects that belong to the thread another owner. References on the
    /// stacks of lost threads still count, so their objects stay.
    ///
    /// A panic goes to [`ModelHeap::on_unraisable`](crate::model::ModelHeap::on_unraisable).
    fn forked(&self, lost: ThreadId, local: &Self::Local, m: &ModelMutator<Self>) {
        let _ = (lost, local, m);
    }
}
