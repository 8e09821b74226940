//! Floor 3: the seam between the collector and objects of whatever shape.
//!
//! The collector knows addresses, side tables and steps. Everything about the objects themselves,
//! where their counts lie, what they refer to, how they are emptied and destroyed, it asks an
//! [`ObjectModel`]. The typed face ([`Gc`](crate::Gc), [`Trace`](crate::Trace)) is one model; a
//! runtime that already has objects brings its own, and gets the same collector, monomorphised.
//!
//! A model's objects live in memory that a [`ModelMutator`] hands out; so the
//! collector's tables cover them, and "is this an object of mine" needs no look at it.
//!
//! # The end of a heap
//!
//! There is no hook for it. When the last [`ModelHeap`] and the last mutator are gone the heap's
//! range is unmapped, with all objects that are still in it: they are neither collected nor cleared
//! nor destroyed, so what they own outside the heap leaks, and whoever still has their addresses
//! has dangling ones. A runtime that wants its objects destroyed collects, and drops what it holds,
//! before it lets go of the heap. (The typed face does more: it collects once more, and keeps the
//! range as long as objects are referred to.)

pub use crate::heap::core::MODEL_REQUESTS;
pub use crate::heap::model_heap::ModelHeap;
pub use crate::heap::mutator::ModelMutator;
pub use crate::heap::world::World;
pub use crate::object::live::{ClaimRef, DeadObject, Live, Stopped};
pub use crate::object::type_info::{Ends, Object, Tracer};
use crate::safepoint::ThreadId;

/// What a collection has found, for [`ObjectModel::judge`].
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Found<'a> {
    /// To be cleared.
    pub garbage: &'a [Live<'a>],
    /// Not to be cleared: they have a legacy finalizer, or are reached by such objects.
    pub uncollectable: &'a [Live<'a>],
    /// Of the uncollectable ones, those with a legacy finalizer.
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

/// What [`ObjectModel::judge`] has decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The garbage is cleared.
    Clear,
    /// Nothing is cleared: all of it is ordinary objects again, and counts as uncollectable. Weak
    /// references to them are dead, and finalizers have run.
    Keep,
}

/// The objects of a runtime, as a [`ModelHeap`] sees them.
///
/// # Safety
///
/// The collector trusts an implementation with the following. Breaking a rule is undefined
/// behaviour.
///
/// 1. **Counts are real.** [`count`](Self::count) tells the number of references that exist to an
///    object, wherever they are held. [`claim_ref`](Self::claim_ref) adds one,
///    [`release`](Self::release) takes one away.
/// 2. **Memory is freed only at count 0**, by the model, with
///    [`ModelMutator::free`](crate::heap::model::ModelMutator::free).
/// 3. **A stop is a stop.** Between a stop and the resume no thread lowers a count or frees an
///    object, attached or not. (Unattached threads may add references to what they hold references
///    to.)
/// 4. **Traversal reports live references only**: each address given to [`Tracer::visit_object`] is
///    an object that the traversed one holds a counted reference to. To report too few, or one
///    twice, is allowed: it keeps alive or clears the wrong object, and no more.
/// 5. **Pending counts are merged when asked.** After [`merge`](Self::merge), `count` is exact, and
///    every object whose count is 0 has been put into `dead`, or is one whose destruction has
///    begun.
/// 6. **No safepoint inside.** No method, and nothing it calls, reaches a safepoint, detaches, or
///    stops the world. (The mutator is passed as `&`, which cannot.)
///
/// Methods that are given a [`World`] token run while the world is stopped, possibly on a thread of
/// the collector's pool; the others on the collecting thread, attached, with the world running.
/// Garbage of a collection that the heap started itself is cleared and released by any attached
/// thread, each object by one.
pub unsafe trait ObjectModel: Sized + Send + Sync + 'static {
    /// What the model keeps for each mutator. Other threads read it, so it synchronises itself.
    type Local: Send + Sync + 'static;

    /// A weak callback that is due: made in a stop, called after it.
    type Callback: Send;

    /// What the model keeps for each mutator that no other thread ever sees.
    type Private: 'static;

    /// Whether two traversals of an object in one stop report the same references. If not, the
    /// collector keeps what the counting pass saw for the marking pass.
    const STABLE_DURING_STOP: bool;

    /// Of [`MODEL_REQUESTS`], those that any attached thread can answer, or the next one to attach,
    /// in place of the thread that was asked. A thread that is about to detach answers what it was
    /// asked by then; requests of these kinds that come while it does so are passed on to the
    /// attached threads, since others could go on asking for as long as it answers. Without this it
    /// answers until nothing is asked of it.
    const SHARED_REQUESTS: u32 = 0;

    /// The shared part of a new mutator.
    fn local(&self) -> Self::Local;

    /// The private part of a new mutator.
    fn private(&self) -> Self::Private;

    /// As [`private`](Self::private), where memory may be refused.
    #[doc(hidden)]
    fn try_private(&self) -> Option<Self::Private> {
        Some(self.private())
    }

    /// How many references exist; `None`: the object is immortal, and never a candidate.
    fn count(&self, object: Stopped<'_>) -> Option<i64>;

    /// Whether [`count`](Self::count) gives `None`.
    #[inline(always)]
    fn is_immortal(&self, object: Stopped<'_>) -> bool {
        self.count(object).is_none()
    }

    /// Reports every reference that `object` holds. May panic: the collection is abandoned.
    fn traverse(&self, object: Stopped<'_>, tracer: &mut Tracer);

    /// Reports the references of the first few of `objects`, as [`traverse`](Self::traverse) does
    /// of each, by calling [`Tracer::each`] for one or more of them, in their order and without
    /// gaps. There is at least one.
    ///
    /// For models to which it is faster to deal with several objects of one type than to look up
    /// each one's type. What is reported otherwise than by [`Tracer::each`], or under another
    /// object, counts as the next one's, or that one's (rule 4 says what this leads to). If nothing
    /// is looked at the collection is abandoned.
    #[inline(always)]
    fn traverse_each(&self, objects: &[Stopped<'_>], tracer: &mut Tracer, ends: &mut Ends<'_>) {
        tracer.each(objects, ends, |object, tracer| self.traverse(object, tracer));
    }

    /// Whether [`prefetch`](Self::prefetch) is worth calling: asked once for each pass over the
    /// heap.
    fn prefetches(&self) -> bool {
        false
    }

    /// Asks memory for what [`traverse`](Self::traverse) is going to read outside of the object,
    /// with [`Tracer::fetch`]. Called some objects ahead of it; it reports nothing to the tracer.
    #[inline]
    fn prefetch(&self, object: Stopped<'_>, tracer: &mut Tracer) {
        let _ = (object, tracer);
    }

    /// As [`prefetch`](Self::prefetch), for several objects, of which there is at least one. The
    /// collector calls this.
    #[inline(always)]
    fn prefetch_each(&self, objects: &[Stopped<'_>], tracer: &mut Tracer) {
        for &object in objects {
            tracer.go_on(object.object());
            self.prefetch(object, tracer);
        }
    }

    /// Adds a reference on behalf of the thread `by`: the collecting one, or another mutator that
    /// is parked now, and will most likely be the one to release it. Called once for each object,
    /// on several of the collection's threads at a time.
    fn claim_ref(&self, object: Stopped<'_>, by: ThreadId);

    /// Drops a reference that [`claim_ref`](Self::claim_ref) added, and destroys the object if it
    /// was the last. Mostly on the thread that `claim_ref` named, but any attached one may come to
    /// it first.
    fn release(&self, reference: ClaimRef, m: &ModelMutator<Self>);

    /// Takes the references out of those fields of `object` that can close a cycle. May panic: that
    /// is reported, and the collection goes on.
    fn clear(&self, object: Live<'_>, m: &ModelMutator<Self>);

    /// Objects are about to be cleared by this thread, of so many in all.
    fn clearing(&self, m: &ModelMutator<Self>, objects: usize) {
        let _ = (m, objects);
    }

    /// Some objects have been cleared: drops what [`clear`](Self::clear) took out of them, if it
    /// has put that off. Called every few objects, and `last` before any is released, and before
    /// the thread may park.
    fn cleared(&self, m: &ModelMutator<Self>, last: bool) {
        let _ = (m, last);
    }

    /// Whether `object` has a finalizer. It is asked only for objects that were not finalized yet.
    fn has_finalizer(&self, object: Live<'_>) -> bool {
        let _ = object;
        false
    }

    /// Runs the finalizer. May panic, make the object reachable again, allocate, and change the
    /// graph.
    fn finalize(&self, object: Live<'_>, m: &ModelMutator<Self>) {
        let _ = (object, m);
    }

    /// Whether [`verifies_traversal`](Self::verifies_traversal) is worth asking.
    fn verifies_traversals(&self) -> bool {
        false
    }

    /// Whether the two traversals of `object` in one stop are to be compared: if they differ, the
    /// collection is abandoned. Slow, and for finding mistakes.
    fn verifies_traversal(&self, object: Stopped<'_>) -> bool {
        let _ = object;
        false
    }

    /// More references to `object` were reported than exist: some traversal is wrong. The object is
    /// kept.
    fn overvisited(&self, object: Stopped<'_>) {
        let _ = object;
    }

    /// The heap has no memory for a new object. A model that keeps freed memory gives it back here.
    /// `true`: it gave some back, and the allocation is tried again.
    fn refused(&self, m: &ModelMutator<Self>) -> bool {
        let _ = m;
        false
    }

    /// Before a collection stops the world: drop what was deferred.
    fn prepare(&self, m: &ModelMutator<Self>) {
        let _ = m;
    }

    /// How many objects [`merge`](Self::merge) may put into `dead`, at most. The collector makes
    /// room for them first: if there is none, the collection is abandoned before anything is
    /// merged. More than that asks for memory in `merge`, where it ends the process if there is
    /// none.
    fn pending(&self, world: &World<'_, Self>) -> usize {
        let _ = world;
        0
    }

    /// Makes counts exact (rule 5): merges what threads have pending in their
    /// [`Local`](Self::Local)s, which [`World::locals`] lists.
    fn merge(&self, world: &World<'_, Self>, dead: &mut Vec<DeadObject>) {
        let _ = (world, dead);
    }

    /// Destroys an object whose count was found to be 0 in [`merge`](Self::merge).
    fn destroy_merged(&self, dead: DeadObject, m: &ModelMutator<Self>) {
        let _ = (dead.object(), m);
    }

    /// Whether weak references to `object` may exist.
    fn has_weak(&self, object: Live<'_>) -> bool {
        let _ = object;
        false
    }

    /// How many callbacks [`take_callbacks`](Self::take_callbacks) may put into `due` for `object`,
    /// at most. The collector makes room for them first: if there is none, nothing is cleared, and
    /// the collection is abandoned. As for [`pending`](Self::pending).
    fn callbacks(&self, object: Stopped<'_>) -> usize {
        let _ = object;
        0
    }

    /// Clears those weak references to the unreachable `object` that have a callback, and puts the
    /// callbacks of those that are not garbage themselves into `due`.
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

    /// Clears all weak references to `object`: upgrading one fails from now on.
    fn clear_weak(&self, object: Stopped<'_>) {
        let _ = object;
    }

    /// Whether there may be objects with a legacy finalizer: only then [`legacy`](Self::legacy) is
    /// asked.
    fn has_legacy(&self) -> bool {
        false
    }

    /// Whether `object` has a *legacy finalizer*: one that the collector must not call, since it
    /// expects all that it reaches to be whole, and that it must not destroy the object without.
    /// Such an object is not cleared when it is unreachable, nor is what it reaches: they count as
    /// uncollectable.
    fn legacy(&self, object: Stopped<'_>) -> bool {
        let _ = object;
        false
    }

    /// Decides what happens to the garbage, when finalizers have run and it is known what is
    /// garbage. The world is running. All objects named are held until this returns; the model may
    /// add references of its own.
    fn judge(&self, found: &Found<'_>, m: &ModelMutator<Self>) -> Verdict {
        let _ = (found, m);
        Verdict::Clear
    }

    /// A name for the type of `object`, for reports.
    fn type_name(&self, object: Live<'_>) -> &'static str {
        let _ = object;
        "*object"
    }

    /// Looks at what `object` itself keeps, a header, for what cannot be: asked when the heap is
    /// verified, before anything else is asked of it.
    ///
    /// # Errors
    /// What is wrong with it.
    fn check(&self, object: Stopped<'_>) -> Result<(), String> {
        let _ = object;
        Ok(())
    }

    /// The name of the type of an object that has just been destroyed, if what is left of it still
    /// tells: for a report, should somebody write there. The memory may never have been an object.
    /// Asked where [freed memory is poisoned](crate::Stress::poison).
    fn last_type(&self, memory: std::ptr::NonNull<u8>) -> Option<&'static str> {
        let _ = memory;
        None
    }

    /// After a stop in which everything was quiescent, the world running again.
    fn resumed(&self, m: &ModelMutator<Self>) {
        let _ = m;
    }

    /// After everything was cleared: lets go of what can be let go of. `true`: something waits
    /// until every thread has passed a safepoint, and a stop would help.
    fn after_clear(&self, m: &ModelMutator<Self>) -> bool {
        let _ = m;
        false
    }

    /// Answers requests that the model has raised with the bits from
    /// [`MODEL_REQUESTS`]: at a safepoint, before a detach, after an attach.
    fn answer(&self, requests: u32, m: &ModelMutator<Self>) {
        let _ = (requests, m);
    }

    /// After each attach, the world running.
    fn attached(&self, m: &ModelMutator<Self>) {
        let _ = m;
    }

    /// A mutator is ending, on its own thread, still attached. A panic comes out of the mutator's
    /// drop once the thread has left; if the thread unwinds already, the panic is reported as
    /// unraisable.
    fn ending(&self, m: &ModelMutator<Self>) {
        let _ = m;
    }
}
