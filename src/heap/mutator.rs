//! A thread that is attached to a heap.
//!
//! A collection may run whenever each thread of the heap has reached a safepoint, so a thread must
//! not hold a borrow from an object there. A [`ModelMutator`] is the proof that the calling thread
//! is attached to one heap, so it is neither `Send` nor `Sync`. It parks through `&mut self`, while
//! borrows from objects borrow it, so that none outlives a safepoint.
//!
//! For example, thread 1 borrows a field of an object through `&mutator`, while thread 2 stops the
//! world. Thread 1 cannot call `safepoint`, because that needs `&mut mutator`, until the borrow has
//! ended. Then it parks, and thread 2 may use the arena of thread 1.
//!
//! # Access to the data
//!
//! | data | access |
//! |---|---|
//! | [`MutatorShared::arena`] | its thread, while attached; a thread with a [`World`], for all mutators |
//! | [`MutatorShared::local`] | all threads; it synchronises itself |
//! | [`Inner`] | its thread only |
//! | `HERE` | its thread only: the mutator that has attached last, with its id. It is this thread's mutator while [`current`] is that id |
//!
//! The mutator of a detached thread is in the frame of a [`detach`](ModelMutator::detach), which
//! borrows it, or in a [detached mutator](super::detach), or, after
//! [`leave_for_now`](ModelMutator::leave_for_now), where its owner keeps it. A mutator that is
//! dropped while its thread is detached attaches the thread once more, to end the attachment.
//!
//! Rule *attached* makes the first row sound. The rules that unsafe code cites:
//!
//! * **attached**: `&ModelMutator` exists only on an attached thread, and an attached thread does
//!   not run while the world is stopped. So the owner or a stop accesses an arena, never both.
//! * **boxed**: [`Inner`] lives in a box from the attach to the mutator's drop. Ids are never
//!   reused, and a thread is attached as the id of a mutator only in between. So the box exists
//!   while its id in `HERE` is the id that the thread is attached as.
//! * **lent**: `with_current`, and every call into user code, lends a `&ModelMutator` with a
//!   lifetime that is independent of the mutator, while the lender holds a [`Lent`]. While one
//!   lives, this thread reaches no safepoint, and does not detach, collect or stop. A mutator that
//!   is dropped meanwhile ends when its last `Lent` is dropped. The one exception is unsafe, and is
//!   [`stop_inside`](ModelMutator::stop_inside).

use std::any::TypeId;
use std::panic::resume_unwind;
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::{Duration, Instant};
use std::{cell::Cell, fmt, marker::PhantomData, mem::ManuallyDrop};

use crate::base::fallible::NoMemory;
use crate::base::outside::{self, guarded};
use crate::base::stress::{Step, maybe_yield};
use crate::base::sync::{AtomicBool, Mutex, Ordering, UnsafeCell, const_thread_local};
use crate::heap::core::{COLLECT, Core, Handle, MODEL_REQUESTS, MutatorShared, WATCHED};
use crate::heap::model::ObjectModel;
use crate::heap::pair_room::PairRoom;
use crate::heap::parts::*;
use crate::heap::slow::{self, HeldUp};
use crate::heap::world::World;
use crate::heap::{runtime_stop, spares};
use crate::memory::arena::Arena;
use crate::object::address::Object;
use crate::report::error::AttachError;
use crate::report::event;
use crate::report::facts::During;
use crate::safepoint::{
    self, Participant, RecordRoom, StopError, StopPurpose, StopRequest, ThreadId, WorldStopped,
    current,
};

#[repr(C)]
struct Inner<M: ObjectModel> {
    /// First, so that `with_current` can read it for any model.
    model: TypeId,
    id: u64,
    participant: Participant<MutatorShared<M>>,
    core: Arc<Core<M>>,
    arena_id: u32,
    handle: Arc<Handle<M>>,
    lent: Cell<u32>,
    /// How many of the live [`Lent`]s are a collection's, for finalizers and weak callbacks.
    /// Nothing of the collection is borrowed while one of these runs.
    lent_to_finalizers: Cell<u32>,
    /// The mutator was dropped while lent.
    dropped: Cell<bool>,
    /// The thread reclaims no garbage before this time.
    rest: Cell<Instant>,
    held_up: HeldUp,
    /// The next mutator in the list [`Here::waiting`].
    next: Cell<Option<Waiting>>,
}

/// The box of an [`Inner`], with the model's private data behind it.
type InnerRoom<M> = PairRoom<Inner<M>, Private<M>>;

/// The parts that a mutator leaves to the next one of the heap when it ends, as a [spare](spares).
pub(crate) struct SpareMutator<M: ObjectModel> {
    /// It has retired.
    arena: Arena,
    record: RecordRoom<MutatorShared<M>>,
    inner: InnerRoom<M>,
}

// SAFETY: rule *guarded*: a model keeps private data only if any thread may use it next. The rest
// is `Send`, or memory without a value.
unsafe impl<M: ObjectModel> Send for SpareMutator<M> {}

impl<M: ObjectModel> SpareMutator<M> {
    #[cfg(test)]
    pub(super) fn arena_id(&self) -> u32 {
        self.arena.id()
    }

    fn new(core: &Core<M>, id: u32) -> Result<Self, NoMemory> {
        let mut arena = Arena::with_stress(core.stress, id)?;
        if let Some(samples) = core.space.samples() {
            arena.sample_every(samples.mean)?;
        }
        Ok(Self { arena, record: RecordRoom::new()?, inner: InnerRoom::new()? })
    }
}

/// User code has a `&ModelMutator` while this lives, by rule *lent*.
#[must_use = "the mutator is lent while this lives"]
pub(crate) struct Lent<M: ObjectModel>(NonNull<Inner<M>>);

impl<M: ObjectModel> Drop for Lent<M> {
    #[inline(always)]
    fn drop(&mut self) {
        #[cold]
        #[inline(never)]
        fn drop_lent<M: ObjectModel>(inner: NonNull<Inner<M>>) {
            // Reset first, because destructors that run in the drop lend the mutator again.
            // SAFETY: rules *boxed* and *lent*, as below.
            unsafe { inner.as_ref() }.dropped.set(false);
            drop(ModelMutator { inner: Unmarked(inner), thread: PhantomData });
        }
        // SAFETY: rules *boxed* and *lent*: a mutator that is dropped meanwhile ends only when this
        // is dropped.
        let inner = unsafe { self.0.as_ref() };
        inner.lent.set(inner.lent.get() - 1);
        if inner.lent.get() == 0 && inner.dropped.get() {
            drop_lent(self.0);
        }
    }
}

/// A collection runs finalizers or weak callbacks while this lives. It lends the mutator, and still
/// allows [`stop_inside`](ModelMutator::stop_inside).
#[must_use = "the mutator is lent while this lives"]
pub(crate) struct LentToFinalizers<M: ObjectModel>(Lent<M>);

impl<M: ObjectModel> Drop for LentToFinalizers<M> {
    fn drop(&mut self) {
        // SAFETY: rules *boxed* and *lent*: the loan ends after this.
        let inner = unsafe { self.0.0.as_ref() };
        inner.lent_to_finalizers.set(inner.lent_to_finalizers.get() - 1);
    }
}

struct Here {
    /// The id of the mutator that has attached last, or [`NOBODY`] if there is none, or it has
    /// ended.
    id: Cell<u64>,
    /// Its [`Inner`], which exists while this thread is attached as `id`.
    inner: Cell<NonNull<TypeId>>,
    /// The thread is in the closure of a detach, which a mutator must not outlive.
    detached: Cell<bool>,
    /// The first of the mutators that were dropped while this thread was detached, and that could
    /// not end then.
    waiting: Cell<Option<Waiting>>,
}

/// [`Here::id`] for no mutator, which [`current`] never is.
const NOBODY: u64 = u64::MAX;

impl Here {
    #[inline(always)]
    fn find(&self, id: u64) -> Option<NonNull<TypeId>> {
        (self.id.get() == id).then(|| self.inner.get())
    }

    /// The [`Inner`] of [`ModelMutator::here`], of any model.
    #[inline(always)]
    fn now() -> Option<NonNull<TypeId>> {
        if safepoint::is_stopping() { None } else { HERE.with(|here| here.find(current())) }
    }
}

const_thread_local! {
    static HERE: Here = Here {
        id: Cell::new(NOBODY),
        inner: Cell::new(NonNull::dangling()),
        detached: Cell::new(false),
        waiting: Cell::new(None),
    }
}

/// A detached mutator of some model, which was dropped when this thread could not attach to its
/// heap.
#[derive(Clone, Copy)]
struct Waiting {
    inner: NonNull<()>,
    /// [`ModelMutator::end_waiting`] of the model.
    end: unsafe fn(NonNull<()>) -> Option<Waiting>,
}

/// Sets whether this thread is in the closure of a detach, and returns the previous state.
#[inline(always)]
pub(super) fn set_inside_detach(inside: bool) -> bool {
    HERE.with(|here| here.detached.replace(inside))
}

/// A field of a type that another field, a marker, binds to its thread, so that compiler errors
/// about threads name the marker, and not the type of this field.
#[repr(transparent)]
pub(crate) struct Unmarked<T>(pub(crate) T);

// SAFETY: rule *guarded*: used only beside a marker field that is not `Send`.
unsafe impl<T> Send for Unmarked<T> {}
// SAFETY: rule *guarded*: used only beside a marker field that is not `Sync`.
unsafe impl<T> Sync for Unmarked<T> {}

/// A thread attached to a heap of objects of model `M`.
///
/// The typed API wraps it as [`Mutator`](crate::Mutator), while a runtime with its own objects uses
/// it directly, as [`model`](crate::model) explains.
pub struct ModelMutator<M: ObjectModel> {
    inner: Unmarked<NonNull<Inner<M>>>,
    /// Makes the type neither `Send` nor `Sync`.
    thread: PhantomData<*mut ()>,
}

impl<M: ObjectModel> fmt::Debug for ModelMutator<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ModelMutator")
            .field("id", &self.id())
            .field("heap", &self.core().name)
            .finish()
    }
}

impl<M: ObjectModel> ModelMutator<M> {
    pub(crate) fn attach(handle: &Arc<Handle<M>>) -> Result<Self, AttachError> {
        if Self::is_inside_detach() {
            return Err(AttachError::InsideDetach);
        }
        Self::attach_unchecked(handle)
    }

    /// Attaches also inside a detach, because the caller ensures that the mutator does not outlive
    /// the detach.
    fn attach_unchecked(handle: &Arc<Handle<M>>) -> Result<Self, AttachError> {
        if safepoint::is_traversing() {
            return Err(AttachError::Traversing);
        }
        // A detached thread may hold stops for a fork, and then also the locks taken below.
        if current() != 0 || safepoint::is_stopping() {
            return Err(AttachError::AlreadyAttached);
        }
        let core = Arc::clone(&handle.core);
        let (spare, arena_id) = spares::take(&core.spares, |spare| spare.arena.id())?;
        let SpareMutator { arena, record, inner: mut room } = match spare {
            Some(spare) => spare,
            None => SpareMutator::new(&core, arena_id.get())?,
        };
        room.fill(|| ThreadDataOf::<M>::private(&core.model))?;
        let shared = MutatorShared {
            arena: UnsafeCell::new(arena),
            arena_id: arena_id.get(),
            parked: AtomicBool::new(false),
            waits: slow::Waits::default(),
            local: ThreadDataOf::<M>::local(&core.model),
        };
        let participant = core.coordinator.try_register_in(record, shared)?;
        runtime_stop::attach(&core, &participant)?;
        // From here on nothing fails.
        let (arena_id, rest) = (arena_id.into_id(), Cell::new(participant.registered()));
        let inner = room.write(Inner {
            model: TypeId::of::<M>(),
            id: participant.id().get(),
            participant,
            core,
            arena_id,
            handle: Arc::clone(handle),
            lent: Cell::new(0),
            lent_to_finalizers: Cell::new(0),
            dropped: Cell::new(false),
            rest,
            held_up: HeldUp::default(),
            next: Cell::new(None),
        });
        let this = Self { inner: Unmarked(inner), thread: PhantomData };
        this.return_to_runtime();
        this.arrive();
        if this.core().pace.is_unattended() {
            this.raise(COLLECT);
        }
        Ok(this)
    }

    /// Attaches as [`try_attach_scoped`](crate::model::ModelHeap::try_attach_scoped) says.
    pub(crate) fn attach_scoped<R>(
        handle: &Arc<Handle<M>>,
        f: impl FnOnce(&mut Self) -> R,
    ) -> Result<R, AttachError> {
        struct Restore(bool);
        impl Drop for Restore {
            fn drop(&mut self) {
                set_inside_detach(self.0);
            }
        }
        // Dropped last, so that destructors that run when the mutator (and perhaps its heap) ends
        // run inside the detach again.
        let mut mutator = Self::attach_unchecked(handle)?;
        let _restore = Restore(set_inside_detach(false));
        Ok(f(&mut mutator))
    }

    pub(super) fn arrive(&self) {
        self.arrive_in(self.core());
    }

    /// Completes an attach, with a core that the caller looked up before it attached.
    #[inline(always)]
    pub(super) fn arrive_in(&self, core: &Core<M>) {
        HERE.with(|here| {
            here.id.set(self.id());
            here.inner.set(self.inner.0.cast());
        });
        if core.under.is_some() {
            self.arrive_under_stress();
        }
        self.call_attached(core);
    }

    #[cold]
    #[inline(never)]
    fn arrive_under_stress(&self) {
        maybe_yield(&self.core().under, Step::Attach);
        if self.core().stress.collects() {
            self.inner().participant.raise(COLLECT);
        }
    }

    /// Makes `with_current` not find this mutator any more.
    fn clear_here(&self) {
        HERE.with(|here| here.id.set(NOBODY));
    }

    /// Calls `f` with this thread's mutator, which is not lent, because `f` calls no user code.
    ///
    /// # Safety
    ///
    /// `current` is the id of a mutator of model `M`.
    #[inline(always)]
    pub(crate) unsafe fn with_known<R>(f: impl FnOnce(&Self) -> R) -> R {
        // Rule *boxed*: attached, as `current` says, and of this model.
        let inner = HERE.with(|here| {
            debug_assert_eq!(here.id.get(), current());
            here.inner.get().cast()
        });
        f(&ManuallyDrop::new(Self { inner: Unmarked(inner), thread: PhantomData }))
    }

    /// Returns this thread's mutator, if it is attached to a heap of this model, is not traversing
    /// and holds no stop.
    ///
    /// The result is a second value for the same attachment, never dropped. It is not lent, so that
    /// a caller lends it before it calls user code with it.
    #[inline(always)]
    pub(super) fn here() -> Option<ManuallyDrop<Self>> {
        let inner = Here::now()?;
        // SAFETY: rule *boxed*; `model` is the first field of every `Inner`.
        if unsafe { inner.read() } != TypeId::of::<M>() {
            return None;
        }
        Some(ManuallyDrop::new(Self { inner: Unmarked(inner.cast()), thread: PhantomData }))
    }

    /// Like [`here`](Self::here), if that is this mutator, which is told by its address.
    #[inline(always)]
    pub(super) fn if_here(&self) -> Option<ManuallyDrop<Self>> {
        let this = ManuallyDrop::new(Self { inner: Unmarked(self.inner.0), thread: PhantomData });
        (Here::now()? == self.inner.0.cast()).then_some(this)
    }

    /// Returns this thread's mutator, not lent, if it is attached to the heap of `object`, and
    /// otherwise `None`, as `with_current` does.
    #[inline(always)]
    pub(crate) fn current_owning(object: Object) -> Option<ManuallyDrop<Self>> {
        Self::here().filter(|mutator| mutator.owns(object))
    }

    /// Whether this thread is attached to this heap, also inside a traversal.
    pub(crate) fn is_attached_to(core: &Core<M>) -> bool {
        let Some(inner) = HERE.with(|here| here.find(safepoint::attached_as())) else {
            return false;
        };
        // SAFETY: rule *boxed*; the model is compared first.
        unsafe {
            inner.read() == TypeId::of::<M>()
                && std::ptr::eq(Arc::as_ptr(&inner.cast::<Inner<M>>().as_ref().core), core)
        }
    }

    /// Lends the mutator to user code, by rule *lent*.
    #[inline]
    pub(crate) fn lend(&self) -> Lent<M> {
        let lent = &self.inner().lent;
        lent.set(lent.get() + 1);
        Lent(self.inner.0)
    }

    /// Lends the mutator to a method of the model that may run user code. The built-in model lends
    /// it itself, where it calls such code.
    #[inline(always)]
    pub(crate) fn lend_to_model(&self) -> Option<Lent<M>> {
        (!M::IS_BUILT_IN).then(|| self.lend())
    }

    /// Lends the mutator to the finalizers and weak callbacks of a collection.
    pub(crate) fn lend_to_finalizers(&self) -> LentToFinalizers<M> {
        let count = &self.inner().lent_to_finalizers;
        count.set(count.get() + 1);
        LentToFinalizers(self.lend())
    }

    /// Whether another caller up the stack than a collection that runs finalizers has lent the
    /// mutator, or a guard forbids safepoints.
    pub(super) fn is_lent_otherwise(&self) -> bool {
        let inner = self.inner();
        inner.lent.get() != inner.lent_to_finalizers.get()
            || inner.participant.no_safepoint_depth() != 0
    }

    /// Whether a caller up the stack has lent the mutator, or a guard forbids safepoints.
    #[inline]
    pub(crate) fn is_lent(&self) -> bool {
        self.inner().lent.get() != 0 || self.inner().participant.no_safepoint_depth() != 0
    }

    #[inline(always)]
    fn inner(&self) -> &Inner<M> {
        // SAFETY: rule *boxed*.
        unsafe { self.inner.0.as_ref() }
    }

    #[inline(always)]
    pub(crate) fn participant(&self) -> &Participant<MutatorShared<M>> {
        &self.inner().participant
    }

    #[inline(always)]
    pub(crate) fn id(&self) -> u64 {
        self.inner().id
    }

    /// Notes what this thread is about to do, such as `"reading a request"`, so that a report says
    /// where a late thread was. Empty: nothing. It takes some nanoseconds.
    pub fn mark(&self, at: &'static str) {
        self.inner().participant.mark(at);
    }

    /// The id of this thread at the coordinator of its heap.
    pub fn thread_id(&self) -> ThreadId {
        self.inner().participant.id()
    }

    #[inline(always)]
    pub(crate) fn core(&self) -> &Arc<Core<M>> {
        &self.inner().core
    }

    pub(crate) fn handle(&self) -> &Arc<Handle<M>> {
        &self.inner().handle
    }

    /// The model with which the heap was made.
    #[inline(always)]
    pub fn model(&self) -> &M {
        &self.inner().core.model
    }

    /// The data of the model for this mutator that other threads may read.
    #[inline(always)]
    pub fn local(&self) -> &Local<M> {
        &self.inner().participant.data().local
    }

    pub(crate) fn waits(&self) -> &slow::Waits {
        &self.inner().participant.data().waits
    }

    /// The data of the model that only this mutator's thread uses.
    #[inline(always)]
    pub fn private(&self) -> &Private<M> {
        // SAFETY: rule *boxed*.
        unsafe { InnerRoom::<M>::beside(self.inner.0) }
    }

    #[inline(always)]
    pub(crate) fn owns_address(&self, address: usize) -> bool {
        self.inner().core.space.contains(address)
    }

    /// Whether `object` lies in this heap.
    #[inline(always)]
    pub fn owns(&self, object: Object) -> bool {
        self.inner().core.space.contains(object.address())
    }

    #[inline(always)]
    pub(crate) fn arena<R>(&self, f: impl FnOnce(&mut Arena) -> R) -> R {
        self.inner().participant.data().arena.with_mut(|arena| {
            // SAFETY: rule *attached*; arenas call no foreign code, so this does not nest.
            f(unsafe { &mut *arena })
        })
    }

    /// Raises request bits of this thread.
    pub fn raise(&self, requests: u32) {
        self.inner().participant.raise(requests);
    }

    /// The pending requests to this thread, by one relaxed load. If it is 0, a
    /// [`safepoint`](Self::safepoint) would do nothing.
    ///
    /// With [`STOP`](crate::safepoint::STOP) a stop waits for this thread, while the bits of
    /// [`MODEL_REQUESTS`](crate::model::MODEL_REQUESTS) are the model's requests, and other bits
    /// belong to the collector.
    #[inline(always)]
    pub fn poll(&self) -> u32 {
        self.inner().participant.poll()
    }

    /// Whether the next [`safepoint`](Self::safepoint) has work for the collector, because a
    /// collection or a promotion is due, or there is garbage to reclaim. It is one relaxed load.
    #[inline(always)]
    pub fn collection_is_due(&self) -> bool {
        self.poll() & COLLECT != 0
    }

    /// Has the runtime's own word set again, if requests to this thread are left.
    pub(crate) fn tell_left(&self) {
        self.inner().participant.tell_left();
    }

    /// Clears the flag that a collection is due, and returns whether it was set.
    pub(crate) fn take_collect(&self) -> bool {
        self.inner().participant.take_requests(COLLECT) != 0
    }

    /// Makes the model answer its pending requests, unless a traversal guard keeps them raised.
    pub(crate) fn answer(&self) {
        if safepoint::is_traversing() {
            return;
        }
        let requests = self.inner().participant.take_requests(MODEL_REQUESTS);
        if requests != 0 {
            let _lent = self.lend_to_model();
            ThreadsOf::<M>::answer(&self.core().model, requests, self);
        }
    }

    /// Parks here if a stop is requested, and otherwise is one relaxed load. It never collects,
    /// reclaims garbage or answers requests of the model, so the caller may hold locks that these
    /// need.
    ///
    /// A thread that has parked calls [`Threads::attached`](crate::model::Threads::attached) before
    /// this returns. Like [`safepoint`](Self::safepoint), it does nothing while the mutator is
    /// lent, which it is inside a destructor, finalizer, callback or traversal.
    #[inline]
    pub fn park(&mut self) {
        if self.poll() & (safepoint::STOP | WATCHED) != 0 {
            self.park_and_look();
        }
    }

    #[cold]
    #[inline(never)]
    fn park_and_look(&mut self) {
        if self.is_lent() || safepoint::is_traversing() || safepoint::is_stopping() {
            return;
        }
        self.wait_parked();
        // A parked thread may have missed requests to the model.
        self.call_attached(self.core());
    }

    /// Parks for a stop, if one is requested. If the thread continues to use objects, the caller
    /// calls [`Threads::attached`](crate::model::Threads::attached).
    pub(crate) fn wait_parked(&mut self) {
        if self.is_lent() || self.take_watched() & safepoint::STOP == 0 {
            return;
        }
        self.set_parked(true);
        self.leave_runtime();
        let participant = &self.inner().participant;
        match self.core().workers.job_slot() {
            Some(slot) => {
                let helper = slot.helper(self.inner().arena_id);
                participant.park_and(|is_on| helper.wait(is_on));
            }
            None => {
                participant.park();
            }
        }
        self.return_to_runtime();
        self.set_parked(false);
    }

    /// Leaves the runtime, so that a stop of the runtime no longer waits for this thread.
    #[inline(always)]
    pub(super) fn leave_runtime(&self) {
        if RuntimeStopOf::<M>::PRESENT {
            RuntimeStopOf::<M>::leaving(self.model(), self.local());
        }
    }

    #[inline(always)]
    pub(super) fn return_to_runtime(&self) {
        if RuntimeStopOf::<M>::PRESENT {
            runtime_stop::return_attached(self.core(), self.participant());
        }
    }

    /// Sets whether this thread is about to wait only for a stop or a collection.
    fn set_parked(&self, parked: bool) {
        self.inner().participant.data().parked.store(parked, Ordering::Relaxed);
    }

    pub(crate) fn rest_until(&self) -> Instant {
        self.inner().rest.get()
    }

    pub(crate) fn held_up(&self) -> &HeldUp {
        &self.inner().held_up
    }

    pub(crate) fn rest(&self, until: Instant) {
        self.inner().rest.set(until);
    }

    /// Waits a few milliseconds at most, so that the running collection can catch up.
    pub(crate) fn wait_for_reclaim(&mut self) {
        let core = Arc::clone(self.core());
        self.set_parked(true);
        self.detach(|| core.collector_lock.wait_briefly());
        self.set_parked(false);
    }

    #[inline(always)]
    pub(super) fn is_inside_detach() -> bool {
        HERE.with(|here| here.detached.get())
    }

    /// Puts this mutator, which is being dropped, on the list of this thread, so that it ends when
    /// the thread has dropped its next mutator, of any heap.
    ///
    /// A thread never attaches to end a mutator while it is attached to another heap, not even for
    /// a moment. Two threads, each attached to one of two heaps, would wait for each other if both
    /// heaps were being stopped.
    fn wait_for_end(&self) {
        let this = Waiting { inner: self.inner.0.cast(), end: Self::end_waiting };
        HERE.with(|here| self.inner().next.set(here.waiting.replace(Some(this))));
    }

    /// Ends a mutator of [`Here::waiting`], and returns the next one of the list. A panic is
    /// reported, because the caller has dropped another mutator.
    ///
    /// # Safety
    ///
    /// [`wait_for_end`](Self::wait_for_end) of this model put `inner` into the list, and the caller
    /// has removed it.
    unsafe fn end_waiting(inner: NonNull<()>) -> Option<Waiting> {
        let this = Self { inner: Unmarked(inner.cast()), thread: PhantomData };
        let next = this.inner().next.take();
        let core = Arc::clone(this.core());
        if let Err(payload) = guarded(|| drop(this)) {
            core.hooks.unraisable(During::Drop, "", outside::panic_message(payload));
        }
        next
    }

    /// Stops the world for a caller with exclusive access that uses the mutator meanwhile.
    pub(crate) fn stop_by(
        &self,
        request: impl Into<StopRequest>,
    ) -> Result<World<'_, M>, StopError> {
        if self.is_lent() {
            return Err(StopError::NoSafepoint);
        }
        self.held_up().waiting(|| Self::stop_as(self.inner(), request.into()))
    }

    /// Stops the world, also if the mutator is lent. The result borrows nothing and comes with a
    /// loan.
    ///
    /// # Safety
    ///
    /// The caller drops the world before the loan.
    pub(super) unsafe fn stop_lending(&self) -> Result<(World<'static, M>, Lent<M>), StopError> {
        // SAFETY: rules *boxed* and *lent*: while the loan lives, the mutator does not end.
        let inner = unsafe { self.inner.0.as_ref() };
        Ok((Self::stop_as(inner, StopPurpose::Request.into())?, self.lend()))
    }

    fn stop_as(inner: &Inner<M>, request: StopRequest) -> Result<World<'_, M>, StopError> {
        let (stopped, runtime) = runtime_stop::stop(&inner.core, &inner.participant, request)?;
        Ok(Self::world(inner, stopped, runtime))
    }

    /// Stops the heap on a thread that has stopped the runtime already. Fails if another thread has
    /// stopped the heap, or is about to, because that thread may wait for the runtime.
    pub(crate) fn stop_in_runtime_stop(
        &mut self,
        request: StopRequest,
    ) -> Result<World<'_, M>, StopError> {
        if self.is_lent() {
            return Err(StopError::NoSafepoint);
        }
        let stopped = self.inner().participant.stop_by(request.if_free())?;
        Ok(Self::world(self.inner(), stopped, None))
    }

    /// The proof of a stop. `runtime` is how long it took to stop the runtime, if it was stopped.
    fn world<'a>(
        inner: &'a Inner<M>,
        stopped: WorldStopped<'a, MutatorShared<M>>,
        runtime: Option<Duration>,
    ) -> World<'a, M> {
        event::stopped(stopped.time_to_stop());
        let (requester, arena_id) = (inner.participant.id(), inner.arena_id);
        let (since, visit) = (Instant::now(), Mutex::new(()));
        let core = &*inner.core;
        let runtime = runtime.map(|took| (&inner.participant.data().local, took));
        World { since, core, requester, arena_id, stopped, runtime, visit }
    }
}

impl<M: ObjectModel> Drop for ModelMutator<M> {
    fn drop(&mut self) {
        if self.is_lent() {
            // A caller up the stack still uses it: rule *lent*.
            self.inner().dropped.set(true);
            return;
        }
        let mut arrived = Ok(());
        if !self.participant().is_attached() {
            if !self.participant().attach_to_end() {
                return self.wait_for_end();
            }
            arrived = guarded(|| {
                self.return_to_runtime();
                self.arrive();
            });
        }
        // A panic of the model is resumed after the thread has left, because the thread would
        // otherwise stay attached, and every stop would wait for it.
        let answered = guarded(|| {
            if self.poll() & MODEL_REQUESTS != 0 {
                self.answer();
            }
        });
        let ended = guarded(|| {
            let _lent = self.lend_to_model();
            ThreadsOf::<M>::ending(&self.core().model, self);
        });
        self.arena(|arena| self.core().retire(arena));
        self.clear_here();
        // SAFETY: rule *boxed*: `HERE` no longer points to it, and the mutator is dropped once.
        let (inner, mut room) = unsafe { InnerRoom::<M>::read(self.inner.0) };
        let Inner { participant, core, arena_id, handle, .. } = inner;
        // The model's data may panic too. The thread leaves all the same, and gives its parts back.
        let private = guarded(|| {
            room.empty(|private| ThreadDataOf::<M>::keeps_private(&core.model, private))
        });
        let mut local = Ok(());
        // The thread leaves, then its arena becomes spare, then the heap may end. Otherwise a new
        // mutator could share the arena's id for a moment, although a retired arena has no page.
        let spare = participant.end().map(|(shared, record)| {
            local = guarded(|| drop(shared.local));
            SpareMutator { arena: shared.arena.into_inner(), record, inner: room }
        });
        spares::put(&core.spares, arena_id, spare);
        let closed = guarded(|| drop(handle));
        // The list is taken as a whole, because a mutator that ends here drops its own, empty list.
        let mut waiting = HERE.with(|here| here.waiting.take());
        while let Some(Waiting { inner, end }) = waiting {
            // SAFETY: rule *boxed*: the list contained it, and the list was taken.
            waiting = unsafe { end(inner) };
        }
        let mut panics =
            [arrived, answered, ended, private, local, closed].into_iter().filter_map(Result::err);
        let first = if std::thread::panicking() { None } else { panics.next() };
        for payload in panics {
            core.hooks.unraisable(During::Drop, "", outside::panic_message(payload));
        }
        if let Some(payload) = first {
            resume_unwind(payload);
        }
    }
}
