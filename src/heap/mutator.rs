//! A thread that is attached to a heap.
//!
//! A [`ModelMutator`] is the proof that the calling thread is attached to one heap. It is neither
//! `Send` nor `Sync`. It parks only through `&mut self`, and every borrow from an object borrows
//! the mutator.
//!
//! # Access to the data
//!
//! | data | access |
//! |---|---|
//! | [`MutatorShared::arena`] | its thread, while attached; a thread with a [`World`], for all mutators |
//! | [`MutatorShared::local`] | all threads; it synchronises itself |
//! | [`Inner`] | its thread only |
//! | `HERE` | its thread only: the mutator that `with_current` finds; null while detached |
//!
//! Rule *attached* makes the first row sound. The rules that unsafe code cites:
//!
//! * **attached**: `&ModelMutator` exists only on an attached thread, and an attached thread does
//!   not run while the world is stopped. So either the owner or a stop accesses an arena, never
//!   both.
//! * **boxed**: [`Inner`] lives in a box from the attach to the mutator's drop. `HERE` points
//!   to it only in between.
//! * **lent**: `with_current`, and every call into user code, lends a `&ModelMutator` with a
//!   lifetime that is independent of the mutator. The lender holds a [`Lent`]. While one lives,
//!   this thread reaches no safepoint, and does not detach, collect or stop. A mutator that is
//!   dropped meanwhile ends when its last `Lent` is dropped.

use std::any::TypeId;
use std::cell::Cell;
use std::fmt;
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::panic::resume_unwind;
use std::ptr::NonNull;
use std::sync::{Arc, OnceLock};
use std::thread::Scope;
use std::time::{Duration, Instant};

use crate::base::error::AttachError;
use crate::base::event::{self, During, guarded};
use crate::base::fallible::NoMemory;
use crate::base::stress::{Step, maybe_yield};
use crate::base::sync::{AtomicBool, Mutex, Ordering, UnsafeCell, const_thread_local};
pub(crate) use crate::heap::core::{COLLECT, Core, Handle, MODEL_REQUESTS, MutatorShared};
use crate::heap::model::ObjectModel;
use crate::heap::pair_room::PairRoom;
use crate::heap::slow;
use crate::heap::spares;
pub(crate) use crate::heap::world::World;
use crate::memory::arena::Arena;
use crate::object::type_info::Object;
use crate::safepoint::{
    self, Away, ForkGuard, Participant, RecordRoom, StopError, ThreadId, WorldStopped, current,
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
    /// The number of live [`Lent`]s.
    lent: Cell<u32>,
    /// The mutator was dropped while lent.
    dropped: Cell<bool>,
    /// The thread reclaims no garbage before this time.
    rest: Cell<Instant>,
    /// The next mutator in the list [`Here::waiting`].
    next: Cell<Option<Waiting>>,
}

/// The box of an [`Inner`], with the model's private data behind it.
type InnerRoom<M> = PairRoom<Inner<M>, <M as ObjectModel>::Private>;

/// The parts that a mutator leaves to the next one when it ends. See [`spares`].
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
        Ok(Self {
            arena: Arena::with_stress(core.stress, id)?,
            record: RecordRoom::new()?,
            inner: InnerRoom::new()?,
        })
    }
}

/// User code has a `&ModelMutator` while this lives: rule *lent*.
#[must_use = "the mutator is lent while this lives"]
pub(crate) struct Lent<M: ObjectModel>(NonNull<Inner<M>>);

impl<M: ObjectModel> Drop for Lent<M> {
    #[inline(always)]
    fn drop(&mut self) {
        #[cold]
        #[inline(never)]
        fn drop_lent<M: ObjectModel>(inner: NonNull<Inner<M>>) {
            // Reset first: destructors that run in the drop lend the mutator again.
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

/// The mutator of this thread.
struct Here {
    /// The [`Inner`] of the attached mutator, or null.
    inner: Cell<*const TypeId>,
    /// The thread is in the closure of a detach. A mutator must not outlive that closure.
    detached: Cell<bool>,
    /// The first of the mutators that [`end_detached`](ModelMutator::end_detached) could not end.
    waiting: Cell<Option<Waiting>>,
}

const_thread_local! {
    static HERE: Here = Here {
        inner: Cell::new(std::ptr::null()),
        detached: Cell::new(false),
        waiting: Cell::new(None),
    }
}

/// A detached mutator of some model. It was dropped when this thread could not attach to its heap.
#[derive(Clone, Copy)]
struct Waiting {
    inner: NonNull<()>,
    /// [`ModelMutator::end_waiting`] of the model.
    end: unsafe fn(NonNull<()>) -> Option<Waiting>,
}

/// A field of a type that another field, a marker, binds to its thread. Compiler errors about
/// threads then name the marker, and not the type of this field.
#[repr(transparent)]
pub(crate) struct Unmarked<T>(pub(crate) T);

// SAFETY: rule *guarded*: used only beside a marker field that is not `Send`.
unsafe impl<T> Send for Unmarked<T> {}
// SAFETY: rule *guarded*: used only beside a marker field that is not `Sync`.
unsafe impl<T> Sync for Unmarked<T> {}

/// A thread attached to a heap of objects of model `M`.
///
/// The typed API wraps it as [`Mutator`](crate::Mutator). A runtime with its own objects uses it
/// directly, see [`model`](crate::model).
pub struct ModelMutator<M: ObjectModel> {
    inner: Unmarked<NonNull<Inner<M>>>,
    /// Neither `Send` nor `Sync`.
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
        if HERE.with(|here| here.detached.get()) {
            return Err(AttachError::InsideDetach);
        }
        Self::attach_unchecked(handle)
    }

    /// As [`attach`](Self::attach), also inside a detach. The caller ensures that the mutator does
    /// not outlive the detach.
    fn attach_unchecked(handle: &Arc<Handle<M>>) -> Result<Self, AttachError> {
        if safepoint::is_traversing() {
            return Err(AttachError::Traversing);
        }
        if current() != 0 {
            return Err(AttachError::AlreadyAttached);
        }
        let core = Arc::clone(&handle.core);
        let (spare, arena_id) = spares::take(&core.spares, |spare| spare.arena.id())?;
        let SpareMutator { arena, record, inner: mut room } = match spare {
            Some(spare) => spare,
            None => SpareMutator::new(&core, arena_id.get())?,
        };
        room.fill(|| core.model.try_private())?;
        let shared = MutatorShared {
            arena: UnsafeCell::new(arena),
            arena_id: arena_id.get(),
            parked: AtomicBool::new(false),
            waits: slow::Waits::default(),
            local: core.model.local(),
        };
        let participant = core.coordinator.try_register_in(record, shared)?;
        if M::STOPS_RUNTIME {
            core.model.leaving(&participant.data().local);
        }
        if let Err(error) = participant.attach() {
            if M::STOPS_RUNTIME {
                let local = &participant.data().local;
                while !core.model.comes_back(local) {
                    core.model.wait_for_runtime(local);
                }
            }
            return Err(match error {
                safepoint::AttachError::AlreadyAttached => AttachError::AlreadyAttached,
                safepoint::AttachError::Traversing => AttachError::Traversing,
                safepoint::AttachError::Suspending => AttachError::Suspending,
                safepoint::AttachError::ThreadEnding => AttachError::ThreadEnding,
            });
        }
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
            dropped: Cell::new(false),
            rest,
            next: Cell::new(None),
        });
        let this = Self { inner: Unmarked(inner), thread: PhantomData };
        this.return_to_runtime();
        this.arrive();
        Ok(this)
    }

    /// Attaches for the duration of a closure. Allowed inside [`detach`](Self::detach).
    pub(crate) fn attach_scoped<R>(
        handle: &Arc<Handle<M>>,
        f: impl FnOnce(&mut Self) -> R,
    ) -> Result<R, AttachError> {
        struct Restore(bool);
        impl Drop for Restore {
            fn drop(&mut self) {
                HERE.with(|here| here.detached.set(self.0));
            }
        }
        // Dropped last: destructors that run when the mutator (and perhaps its heap) ends run
        // inside the detach again.
        let mut mutator = Self::attach_unchecked(handle)?;
        let _restore = Restore(HERE.with(|here| here.detached.replace(false)));
        Ok(f(&mut mutator))
    }

    /// Completes an attach.
    fn arrive(&self) {
        self.arrive_in(self.core());
    }

    /// As [`arrive`](Self::arrive), with a core that the caller looked up before it attached.
    #[inline(always)]
    fn arrive_in(&self, core: &Core<M>) {
        HERE.with(|here| here.inner.set(self.inner.0.as_ptr().cast::<TypeId>()));
        if core.under.is_some() {
            self.arrive_under_stress();
        }
        core.model.attached(self);
    }

    #[cold]
    #[inline(never)]
    fn arrive_under_stress(&self) {
        maybe_yield(&self.core().under, Step::Attach);
        if self.core().stress.collects() {
            self.inner().participant.raise(COLLECT);
        }
    }

    /// Prepares a detach.
    fn clear_here(&self) {
        HERE.with(|here| here.inner.set(std::ptr::null()));
    }

    /// Calls `f` with this thread's mutator. The mutator is not lent: `f` calls no user code.
    ///
    /// # Safety
    ///
    /// `current` is the id of a mutator of model `M`.
    #[inline(always)]
    pub(crate) unsafe fn with_known<R>(f: impl FnOnce(&Self) -> R) -> R {
        // SAFETY: rule *boxed*: attached, as `current` says, and of this model.
        let inner =
            unsafe { NonNull::new_unchecked(HERE.with(|here| here.inner.get()).cast_mut().cast()) };
        f(&ManuallyDrop::new(Self { inner: Unmarked(inner), thread: PhantomData }))
    }

    /// Returns this thread's mutator, if it is attached to a heap of this model, is not traversing
    /// and holds no stop.
    ///
    /// The result is a second value for the same attachment. It is never dropped, and it is not
    /// lent. A caller lends it before it calls user code with it.
    #[inline(always)]
    fn here() -> Option<ManuallyDrop<Self>> {
        if current() == 0 || safepoint::is_stopping() {
            return None;
        }
        let inner = NonNull::new(HERE.with(|here| here.inner.get()).cast_mut())?;
        // SAFETY: rule *boxed*; `model` is the first field of every `Inner`.
        if unsafe { inner.read() } != TypeId::of::<M>() {
            return None;
        }
        Some(ManuallyDrop::new(Self { inner: Unmarked(inner.cast()), thread: PhantomData }))
    }

    /// Calls `f` with this thread's mutator, if the thread is attached to a heap of this model.
    ///
    /// Returns `None` if it is not attached, during a traversal, and while it holds a stop.
    pub fn with_current<R>(f: impl FnOnce(&Self) -> R) -> Option<R> {
        let mutator = Self::here()?;
        let _lent = mutator.lend();
        Some(f(&mutator))
    }

    /// Returns this thread's mutator, not lent, if it is attached to the heap of `object`.
    /// Otherwise as `with_current`.
    #[inline(always)]
    pub(crate) fn current_owning(object: Object) -> Option<ManuallyDrop<Self>> {
        Self::here().filter(|mutator| mutator.owns(object))
    }

    /// Whether this thread has a mutator of this heap.
    pub(crate) fn is_attached_to(core: &Core<M>) -> bool {
        let Some(inner) = NonNull::new(HERE.with(|here| here.inner.get()).cast_mut()) else {
            return false;
        };
        // SAFETY: rule *boxed*; the model is compared first.
        unsafe {
            inner.read() == TypeId::of::<M>()
                && std::ptr::eq(Arc::as_ptr(&inner.cast::<Inner<M>>().as_ref().core), core)
        }
    }

    /// Lends the mutator to user code: rule *lent*.
    #[inline]
    pub(crate) fn lend(&self) -> Lent<M> {
        let lent = &self.inner().lent;
        lent.set(lent.get() + 1);
        Lent(self.inner.0)
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

    /// The id of this mutator, as [`safepoint::current`] returns it.
    #[inline(always)]
    pub(crate) fn id(&self) -> u64 {
        self.inner().id
    }

    /// The id of this thread at the coordinator.
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

    /// The heap's model.
    #[inline(always)]
    pub fn model(&self) -> &M {
        &self.inner().core.model
    }

    /// The data of the model for this mutator that other threads may read.
    #[inline(always)]
    pub fn local(&self) -> &M::Local {
        &self.inner().participant.data().local
    }

    /// The published data about this thread's wait for a cell.
    pub(crate) fn waits(&self) -> &slow::Waits {
        &self.inner().participant.data().waits
    }

    /// The data of the model for this mutator alone.
    #[inline(always)]
    pub fn private(&self) -> &M::Private {
        // SAFETY: rule *boxed*.
        unsafe { InnerRoom::<M>::beside(self.inner.0) }
    }

    /// Whether an address lies in this heap.
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

    /// The pending requests to this thread: one relaxed load.
    #[inline(always)]
    pub(crate) fn poll(&self) -> u32 {
        self.inner().participant.poll()
    }

    /// Has the runtime's own word set again, if requests to this thread are left.
    pub(crate) fn tell_left(&self) {
        self.inner().participant.tell_left();
    }

    /// Clears the flag that a collection is due. Returns whether it was set.
    pub(crate) fn take_collect(&self) -> bool {
        self.inner().participant.take_requests(COLLECT) != 0
    }

    /// Makes the model answer its pending requests. Under a traversal guard the requests stay
    /// raised.
    pub(crate) fn answer(&self) {
        if safepoint::is_traversing() {
            return;
        }
        let requests = self.inner().participant.take_requests(MODEL_REQUESTS);
        if requests != 0 {
            self.core().model.answer(requests, self);
        }
    }

    /// Parks for a stop, if one is requested.
    pub(crate) fn park(&mut self) {
        if self.poll() & safepoint::STOP == 0 {
            return;
        }
        self.comes_back(true);
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
        self.comes_back(false);
    }

    /// Leaves the runtime, if it stops its threads itself: a stop of the runtime no longer waits
    /// for this thread.
    #[inline(always)]
    fn leave_runtime(&self) {
        if M::STOPS_RUNTIME {
            self.model().leaving(self.local());
        }
    }

    /// Comes back to the runtime, attached. While the runtime is stopped the thread waits detached:
    /// the thread that has stopped the runtime may stop the heap too.
    #[inline(always)]
    fn return_to_runtime(&self) {
        if M::STOPS_RUNTIME {
            while !self.model().comes_back(self.local()) {
                let participant = &self.inner().participant;
                let (away, _) = participant.step_away().expect("the thread has just attached");
                self.model().wait_for_runtime(self.local());
                away.disarm();
                participant.come_back();
            }
        }
    }

    /// Sets whether this thread is about to wait only for a stop or a collection.
    fn comes_back(&self, soon: bool) {
        self.inner().participant.data().parked.store(soon, Ordering::Relaxed);
    }

    /// The time at which this thread may reclaim the next batch.
    pub(crate) fn rest_until(&self) -> Instant {
        self.inner().rest.get()
    }

    /// Reclaims nothing until `until`.
    pub(crate) fn rest(&self, until: Instant) {
        self.inner().rest.set(until);
    }

    /// Waits a few milliseconds at most, so that the running collection catches up with this
    /// thread.
    pub(crate) fn wait_for_reclaim(&mut self) {
        let core = Arc::clone(self.core());
        self.comes_back(true);
        self.detach(|| core.collector_lock.wait_briefly());
        self.comes_back(false);
    }

    /// Runs `f` detached. Stops do not wait for this thread meanwhile, so `f` can block.
    ///
    /// The thread attaches again afterwards, also if `f` panics. If the world is stopped at that
    /// time, the thread waits for the resume.
    ///
    /// # Panics
    ///
    /// Inside a destructor, finalizer, callback or traversal. The process aborts if the thread
    /// cannot attach again because `f` left it attached to another heap: code up the stack relies
    /// on the attachment.
    #[track_caller]
    pub fn detach<R>(&mut self, f: impl FnOnce() -> R) -> R {
        self.refuse_lent();
        let away = self.step_out();
        let _reattach = Reattach::new(self, HERE.with(|here| here.detached.replace(true)), away);
        f()
    }

    /// Runs `f` attached, with a scope for threads, and waits for these threads detached. See
    /// [`Mutator::scope`](crate::Mutator::scope).
    #[track_caller]
    pub(crate) fn scope<'env, R>(
        &mut self,
        f: impl for<'scope> FnOnce(&'scope Scope<'scope, 'env>, &mut Self) -> R,
    ) -> R {
        /// Detaches when `f` has returned or panicked, and records the previous state of the
        /// thread.
        struct DetachAtEnd<'a, M: ObjectModel>(
            &'a mut ModelMutator<M>,
            &'a mut Option<(bool, Away)>,
        );
        impl<M: ObjectModel> Drop for DetachAtEnd<'_, M> {
            fn drop(&mut self) {
                // Otherwise `f` has leaked a guard that forbids a detach, and the thread waits
                // attached.
                if self.0.may_step_out() {
                    let away = self.0.step_out();
                    *self.1 = Some((HERE.with(|here| here.detached.replace(true)), away));
                }
            }
        }
        self.refuse_lent();
        assert!(
            self.may_step_out(),
            "`Mutator::scope` inside a traversal or a stop of this thread; open the scope when that is over"
        );
        let mut left = None;
        let result = guarded(|| {
            std::thread::scope(|scope| {
                let attached = DetachAtEnd(self, &mut left);
                f(scope, attached.0)
            })
        });
        drop(left.map(|(was_inside, away)| Reattach::new(self, was_inside, away)));
        result.unwrap_or_else(|payload| resume_unwind(payload))
    }

    #[track_caller]
    fn refuse_lent(&self) {
        assert!(
            !self.is_lent(),
            "`Mutator::detach` inside a destructor, finalizer, callback or `with_current`: its caller \
             relies on the attachment; detach when it has returned"
        );
    }

    /// Whether the calling thread is in the closure of a detach.
    pub(crate) fn is_inside_detach() -> bool {
        HERE.with(|here| here.detached.get())
    }

    /// Whether [`step_out`](Self::step_out) is possible.
    pub(crate) fn may_step_out(&self) -> bool {
        !self.is_lent()
            && !safepoint::is_traversing()
            && !safepoint::is_stopping()
            && !safepoint::is_suspending()
    }

    /// Attaches again after [`step_out`](Self::step_out). Returns `false` if the thread is attached
    /// to another heap, or is traversing.
    pub(crate) fn step_in(&self) -> bool {
        let attached = self.inner().participant.attach().is_ok();
        if attached {
            self.return_to_runtime();
            self.arrive();
        }
        attached
    }

    /// Ends the mutator of a detached thread. For that, the thread attaches once more. If it cannot
    /// attach now, the mutator ends when the thread has dropped its next mutator, of any heap.
    ///
    /// A thread never attaches here while it is attached to another heap, not even for a moment.
    /// Two threads, each attached to one of two heaps, would wait for each other if both heaps were
    /// being stopped.
    pub(crate) fn end_detached(self) {
        if self.inner().participant.attach_to_end() {
            self.return_to_runtime();
            self.arrive();
            return;
        }
        let inner = ManuallyDrop::new(self).inner.0;
        let this = Waiting { inner: inner.cast(), end: Self::end_waiting };
        // SAFETY: rule *boxed*: the mutator was not dropped.
        HERE.with(|here| unsafe { inner.as_ref() }.next.set(here.waiting.replace(Some(this))));
    }

    /// Ends a mutator of [`Here::waiting`], and returns the next one of the list. A panic is
    /// reported, because the caller has dropped another mutator.
    ///
    /// # Safety
    ///
    /// [`end_detached`](Self::end_detached) of this model put `inner` into the list, and the caller
    /// has removed it.
    unsafe fn end_waiting(inner: NonNull<()>) -> Option<Waiting> {
        let this = Self { inner: Unmarked(inner.cast()), thread: PhantomData };
        let next = this.inner().next.take();
        let core = Arc::clone(this.core());
        if let Err(payload) = guarded(|| this.end_detached()) {
            core.hooks.unraisable(During::Drop, "", event::panic_message(payload));
        }
        next
    }

    /// Detaches, after this thread has answered every request that only it can answer. A panic
    /// leaves the thread attached.
    #[track_caller]
    pub(crate) fn step_out(&self) -> Away {
        let participant = &self.inner().participant;
        let mut answered = 0;
        loop {
            if self.poll() & MODEL_REQUESTS != 0 {
                self.answer();
            }
            let (away, requests) = participant.step_away().expect(
                "`Mutator::detach` inside a traversal or a stop of this thread; detach when that is over",
            );
            // Another thread may have raised a request meanwhile, while this thread was still
            // attached.
            let requests = requests & MODEL_REQUESTS;
            self.leave_runtime();
            if requests == 0 {
                self.clear_here();
                return away;
            }
            answered += 1;
            if answered > 1 && requests & !M::SHARED_REQUESTS == 0 {
                // Each further answer would give other threads time to raise the next request.
                self.core().coordinator.poke_attached(requests);
                self.clear_here();
                return away;
            }
            away.disarm();
            participant.come_back();
            self.return_to_runtime();
        }
    }

    /// Stops the world: every other thread of this heap parks at its next safepoint or is detached.
    ///
    /// # Errors
    ///
    /// If a thread has ended without dropping its mutator (it can never be stopped), if this
    /// thread's mutator is lent, or inside another stop.
    pub fn stop(&mut self) -> Result<World<'_, M>, StopError> {
        self.stop_here()
    }

    /// As [`stop`](Self::stop), for callers that have exclusive access to the mutator and use it
    /// during the stop.
    pub(crate) fn stop_here(&self) -> Result<World<'_, M>, StopError> {
        if self.is_lent() {
            return Err(StopError::NoSafepoint);
        }
        let inner = self.inner();
        self.leave_runtime();
        let stopped = inner.participant.stop();
        if M::STOPS_RUNTIME {
            // If this thread holds a stop, all other threads of the heap are detached, and it can
            // wait where it is.
            while !self.model().comes_back(self.local()) {
                self.model().wait_for_runtime(self.local());
            }
        }
        let stopped = stopped?;
        let runtime = if M::STOPS_RUNTIME { Some(self.stop_runtime()?) } else { None };
        Ok(self.world(stopped, runtime))
    }

    /// As [`stop_here`](Self::stop_here), on a thread that has stopped the runtime already.
    pub(crate) fn stop_in_runtime_stop(&self) -> Result<World<'_, M>, StopError> {
        if self.is_lent() {
            return Err(StopError::NoSafepoint);
        }
        let stopped = self.inner().participant.stop()?;
        Ok(self.world(stopped, None))
    }

    /// Makes the runtime stop its threads. Returns how long that took.
    fn stop_runtime(&self) -> Result<Duration, StopError> {
        let begun = Instant::now();
        let stopped = guarded(|| self.model().stop_runtime(self.local()));
        let stopped = stopped.unwrap_or_else(|payload| Err(event::panic_message(payload)));
        stopped.map_err(|reason| StopError::Refused { reason })?;
        Ok(begun.elapsed())
    }

    /// The proof of a stop. `runtime`: how long it took to stop the runtime, if that is a part of
    /// the stop.
    fn world<'a>(
        &'a self,
        stopped: WorldStopped<'a, MutatorShared<M>>,
        runtime: Option<Duration>,
    ) -> World<'a, M> {
        let inner = self.inner();
        event::stopped(stopped.time_to_stop());
        let (requester, arena_id) = (inner.participant.id(), inner.arena_id);
        let (since, visit) = (Instant::now(), Mutex::new(()));
        let (core, adjusted) = (&*inner.core, OnceLock::new());
        let runtime = runtime.map(|took| (self.local(), took));
        World { since, core, requester, arena_id, stopped, runtime, adjusted, visit }
    }

    /// Stops the world for a `fork`.
    pub(crate) fn prepare_fork(&self) -> Result<ForkGuard<'_, MutatorShared<M>>, StopError> {
        let participant = &self.inner().participant;
        if self.is_lent() {
            return Err(StopError::NoSafepoint);
        }
        self.leave_runtime();
        let guard = participant.coordinator().prepare_fork(participant);
        if M::STOPS_RUNTIME {
            // As in `stop_here`.
            while !self.model().comes_back(self.local()) {
                self.model().wait_for_runtime(self.local());
            }
        }
        guard
    }
}

/// Attaches a detached thread again when this is dropped. It takes over the duty of the thread's
/// [`Away`]. The second field: whether the thread was inside another detach before.
struct Reattach<'a, M: ObjectModel>(&'a ModelMutator<M>, bool);

impl<'a, M: ObjectModel> Reattach<'a, M> {
    #[inline(always)]
    fn new(mutator: &'a ModelMutator<M>, was_inside: bool, away: Away) -> Self {
        away.disarm();
        Self(mutator, was_inside)
    }
}

impl<M: ObjectModel> Drop for Reattach<'_, M> {
    fn drop(&mut self) {
        HERE.with(|here| here.detached.set(self.1));
        let core = &**self.0.core();
        self.0.inner().participant.come_back();
        self.0.return_to_runtime();
        self.0.arrive_in(core);
    }
}

impl<M: ObjectModel> Drop for ModelMutator<M> {
    fn drop(&mut self) {
        if self.is_lent() {
            // A caller up the stack still uses it: rule *lent*.
            self.inner().dropped.set(true);
            return;
        }
        // A panic of the model is resumed after the thread has left. Otherwise the thread would
        // stay attached, and every stop would wait for it.
        let answered = guarded(|| {
            if self.poll() & MODEL_REQUESTS != 0 {
                self.answer();
            }
        });
        let ended = guarded(|| self.core().model.ending(self));
        self.arena(|arena| self.core().retire(arena));
        self.clear_here();
        // SAFETY: rule *boxed*: `HERE` no longer points to it, and the mutator is dropped once.
        let (inner, mut room) = unsafe { InnerRoom::<M>::read(self.inner.0) };
        let Inner { participant, core, arena_id, handle, .. } = inner;
        // The model's data may panic too. The thread leaves all the same, and gives its parts back.
        let private = guarded(|| room.empty(|private| core.model.keeps_private(private)));
        let mut local = Ok(());
        // In this order: the thread leaves, then its arena becomes spare, then the heap may end. In
        // the reverse order a new mutator could briefly share the arena's id. That would do no
        // harm: the arena has retired and owns no page.
        let spare = participant.end().map(|(shared, record)| {
            local = guarded(|| drop(shared.local));
            SpareMutator { arena: shared.arena.into_inner(), record, inner: room }
        });
        spares::put(&core.spares, arena_id, spare);
        let closed = guarded(|| drop(handle));
        // The list is taken as a whole: each mutator that ends here drops its own, empty list.
        let mut waiting = HERE.with(|here| here.waiting.take());
        while let Some(Waiting { inner, end }) = waiting {
            // SAFETY: rule *boxed*: the list contained it, and the list was taken.
            waiting = unsafe { end(inner) };
        }
        let mut panics =
            [answered, ended, private, local, closed].into_iter().filter_map(Result::err);
        let first = if std::thread::panicking() { None } else { panics.next() };
        for payload in panics {
            core.hooks.unraisable(During::Drop, "", event::panic_message(payload));
        }
        if let Some(payload) = first {
            resume_unwind(payload);
        }
    }
}
