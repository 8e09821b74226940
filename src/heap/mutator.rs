//! Floor 3: a thread that is attached to a heap.
//!
//! A [`ModelMutator`] is the proof that the calling thread is attached to one heap: it is neither `Send`
//! nor `Sync`, it parks only through `&mut self`, and everything borrowed from an object borrows it.
//!
//! # Who may touch what
//!
//! | data | who, when |
//! |---|---|
//! | [`Shared::arena`] | its thread, while attached; whoever holds the [`World`], for any of them |
//! | [`Shared::local`] | anybody; it synchronises itself |
//! | [`Inner`] | its thread only |
//! | `HERE` | its thread only: which mutator `with_current` finds; null while detached |
//!
//! The rule that makes the first row sound is rule **A** below, cited by its letter:
//!
//! * **A** (arena): `&ModelMutator` exists only on an attached thread, and the world is not stopped
//!   while such a thread runs. So either the owner is in its arena, or a stop is, never both.
//! * **P** (pointer): [`Inner`] lives in a box from attach to the mutator's drop; `HERE` points to it
//!   only in between.
//! * **L** (lending): whoever lends a `&ModelMutator` that nothing ties to the mutator itself (`with_current`, and
//!   every call into user code) holds a [`Lent`]. While one lives, this thread reaches no safepoint, does
//!   not detach, collect or stop, and a mutator that is dropped ends only with the last of them.

use std::any::TypeId;
use std::cell::Cell;
use std::fmt;
use std::marker::PhantomData;
use std::mem::{ManuallyDrop, MaybeUninit};
use std::panic::resume_unwind;
use std::ptr::NonNull;
use std::sync::Arc;
use std::thread::Scope;
use std::time::Instant;

use crate::base::error::AttachError;
use crate::base::event::{self, During, guarded};
use crate::base::fallible::{self, NoMemory};
use crate::base::stress::{Step, maybe_yield};
use crate::base::sync::{AtomicBool, Ordering, UnsafeCell, const_thread_local};
pub(crate) use crate::heap::core::{ArenaIds, COLLECT, Core, Handle, MODEL_REQUESTS, Shared};
use crate::heap::model::ObjectModel;
use crate::heap::slow;
pub(crate) use crate::heap::world::World;
use crate::memory::arena::Arena;
use crate::object::type_info::Object;
use crate::safepoint::{self, Away, ForkGuard, Participant, StopError, ThreadId, current};

#[repr(C)]
struct Inner<M: ObjectModel> {
    /// First, so that `with_current` can read it whatever the model is.
    model: TypeId,
    id: u64,
    participant: Participant<Shared<M>>,
    core: Arc<Core<M>>,
    private: M::Private,
    arena_id: u32,
    handle: Arc<Handle<M>>,
    /// How many [`Lent`]s live.
    lent: Cell<u32>,
    /// The mutator was dropped while lent.
    dropped: Cell<bool>,
    /// Before that it buries nothing.
    rest: Cell<Instant>,
}

/// A `&ModelMutator` is in user code's hands: rule L.
#[must_use = "the mutator is lent while this lives"]
pub(crate) struct Lent<M: ObjectModel>(NonNull<Inner<M>>);

impl<M: ObjectModel> Drop for Lent<M> {
    #[inline(always)]
    fn drop(&mut self) {
        #[cold]
        #[inline(never)]
        fn end<M: ObjectModel>(inner: NonNull<Inner<M>>) {
            // Once: what is destroyed on the way lends it again.
            // SAFETY: rules P and L, as below.
            unsafe { inner.as_ref() }.dropped.set(false);
            drop(ModelMutator { inner: Unmarked(inner), thread: PhantomData });
        }
        // SAFETY: rules P and L: a mutator that is dropped meanwhile waits for this.
        let inner = unsafe { self.0.as_ref() };
        inner.lent.set(inner.lent.get() - 1);
        if inner.lent.get() == 0 && inner.dropped.get() {
            end(self.0);
        }
    }
}

/// Which mutator this thread has.
struct Here {
    /// The attached mutator's [`Inner`]; null: none.
    inner: Cell<*const TypeId>,
    /// Inside the closure of a detach, where a mutator must not outlive the closure.
    detached: Cell<bool>,
}

const_thread_local! {
    static HERE: Here = Here { inner: Cell::new(std::ptr::null()), detached: Cell::new(false) }
}

/// A field of a type that another field, a marker, binds to its thread. Compiler errors about
/// threads then name the marker, and not the type of this field.
#[repr(transparent)]
pub(crate) struct Unmarked<T>(pub(crate) T);

// SAFETY: rule X: it stands only beside a marker that is not `Send`.
unsafe impl<T> Send for Unmarked<T> {}
// SAFETY: rule X: it stands only beside a marker that is not `Sync`.
unsafe impl<T> Sync for Unmarked<T> {}

/// A thread attached to a heap of objects of model `M`.
///
/// The typed face wraps it as [`Mutator`](crate::Mutator); a runtime with objects of its own uses it
/// directly, see [`model`](crate::heap::model).
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

    /// As [`attach`](Self::attach), also inside a detach: the caller sees to it that the mutator does not
    /// outlive the detach.
    fn attach_unchecked(handle: &Arc<Handle<M>>) -> Result<Self, AttachError> {
        if safepoint::is_traversing() {
            return Err(AttachError::Traversing);
        }
        if current() != 0 {
            return Err(AttachError::AlreadyAttached);
        }
        let core = Arc::clone(&handle.core);
        let private = core.model.try_private().ok_or(NoMemory)?;
        let mut room = fallible::boxed(MaybeUninit::<Inner<M>>::uninit())?;
        let arena = core.take_arena_id()?;
        let shared = Shared {
            arena: UnsafeCell::new(Arena::with_stress(core.stress, arena.id)?),
            arena_id: arena.id,
            parked: AtomicBool::new(false),
            waits: slow::Waits::default(),
            local: core.model.local(),
        };
        let participant = core.coordinator.try_register(shared)?;
        if let Err(error) = participant.attach() {
            return Err(match error {
                safepoint::AttachError::AlreadyAttached => AttachError::AlreadyAttached,
                safepoint::AttachError::Traversing => AttachError::Traversing,
                safepoint::AttachError::Suspending => AttachError::Suspending,
                safepoint::AttachError::ThreadEnding => AttachError::ThreadEnding,
            });
        }
        // From here on nothing fails.
        let arena_id = arena.keep();
        room.write(Inner {
            model: TypeId::of::<M>(),
            id: participant.id().get(),
            participant,
            private,
            core,
            arena_id,
            handle: Arc::clone(handle),
            lent: Cell::new(0),
            dropped: Cell::new(false),
            rest: Cell::new(Instant::now()),
        });
        let inner = NonNull::from(Box::leak(room)).cast::<Inner<M>>();
        let this = Self { inner: Unmarked(inner), thread: PhantomData };
        this.arrive();
        Ok(this)
    }

    /// Attaches for the length of a closure; allowed inside [`detach`](Self::detach).
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
        // Dropped last: what runs when the mutator ends, and maybe its heap, is inside the detach again.
        let mut mutator = Self::attach_unchecked(handle)?;
        let _restore = Restore(HERE.with(|here| here.detached.replace(false)));
        Ok(f(&mut mutator))
    }

    /// The thread has just been attached.
    fn arrive(&self) {
        self.arrive_in(self.core());
    }

    /// As [`arrive`](Self::arrive), in a core that the caller had looked up before it attached.
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

    /// The thread is about to be detached.
    fn leave(&self) {
        HERE.with(|here| here.inner.set(std::ptr::null()));
    }

    /// Calls `f` with this thread's mutator, which the caller knows to be of this model.
    ///
    /// It is not lent: `f` calls no user code.
    ///
    /// # Safety
    ///
    /// `current` is the id of a mutator of model `M`.
    #[inline(always)]
    pub(crate) unsafe fn with_known<R>(f: impl FnOnce(&Self) -> R) -> R {
        // SAFETY: rule P: attached, as `current` says, and of this model.
        let inner =
            unsafe { NonNull::new_unchecked(HERE.with(|here| here.inner.get()).cast_mut().cast()) };
        f(&ManuallyDrop::new(Self { inner: Unmarked(inner), thread: PhantomData }))
    }

    /// This thread's mutator, if it is attached to a heap of this model, traverses nothing, and holds no stop.
    ///
    /// A second value for the same attachment: it is never dropped, and it is not lent. Who calls user code with it
    /// lends it first.
    #[inline(always)]
    fn here() -> Option<ManuallyDrop<Self>> {
        if current() == 0 || safepoint::is_stopping() {
            return None;
        }
        let inner = NonNull::new(HERE.with(|here| here.inner.get()).cast_mut())?;
        // SAFETY: rule P; `model` is the first field of every `Inner`.
        if unsafe { inner.read() } != TypeId::of::<M>() {
            return None;
        }
        Some(ManuallyDrop::new(Self { inner: Unmarked(inner.cast()), thread: PhantomData }))
    }

    /// Calls `f` with this thread's mutator, if it is attached to a heap of this model.
    ///
    /// `None` when it is not, while it runs a traversal, and while it holds a stop.
    pub fn with_current<R>(f: impl FnOnce(&Self) -> R) -> Option<R> {
        let mutator = Self::here()?;
        let _lent = mutator.lend();
        Some(f(&mutator))
    }

    /// This thread's mutator, not lent, if it is attached to the heap that `object` lies in; else as `with_current`.
    #[inline(always)]
    pub(crate) fn current_owning(object: Object) -> Option<ManuallyDrop<Self>> {
        Self::here().filter(|mutator| mutator.owns(object))
    }

    /// Whether this thread has a mutator of this very heap.
    pub(crate) fn is_attached_to(core: &Core<M>) -> bool {
        let Some(inner) = NonNull::new(HERE.with(|here| here.inner.get()).cast_mut()) else {
            return false;
        };
        // SAFETY: rule P; the model is compared first.
        unsafe {
            inner.read() == TypeId::of::<M>()
                && std::ptr::eq(Arc::as_ptr(&inner.cast::<Inner<M>>().as_ref().core), core)
        }
    }

    /// Lends the mutator to user code: rule L.
    #[inline]
    pub(crate) fn lend(&self) -> Lent<M> {
        let lent = &self.inner().lent;
        lent.set(lent.get() + 1);
        Lent(self.inner.0)
    }

    /// Whether user code up the stack has the mutator, or something else forbids a safepoint.
    #[inline]
    pub(crate) fn is_lent(&self) -> bool {
        self.inner().lent.get() != 0 || self.inner().participant.no_safepoint_depth() != 0
    }

    #[inline(always)]
    fn inner(&self) -> &Inner<M> {
        // SAFETY: rule P.
        unsafe { self.inner.0.as_ref() }
    }

    /// This mutator's id, as [`safepoint::current`] tells it.
    #[inline(always)]
    pub(crate) fn id(&self) -> u64 {
        self.inner().id
    }

    /// This thread's id at the coordinator.
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

    /// What the model keeps for this mutator and others may see.
    #[inline(always)]
    pub fn local(&self) -> &M::Local {
        &self.inner().participant.data().local
    }

    /// What this thread shows of its wait for a cell.
    pub(crate) fn waits(&self) -> &slow::Waits {
        &self.inner().participant.data().waits
    }

    /// What the model keeps for this mutator alone.
    #[inline(always)]
    pub fn private(&self) -> &M::Private {
        &self.inner().private
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
            // SAFETY: rule A; arenas call nobody back, so this does not nest.
            f(unsafe { &mut *arena })
        })
    }

    /// Raises request bits of this thread itself.
    pub fn raise(&self, requests: u32) {
        self.inner().participant.raise(requests);
    }

    /// What this thread is asked for: one relaxed load.
    #[inline(always)]
    pub(crate) fn poll(&self) -> u32 {
        self.inner().participant.poll()
    }

    /// Takes back the flag that a collection is due; whether it was up.
    pub(crate) fn take_collect(&self) -> bool {
        self.inner().participant.take_requests(COLLECT) != 0
    }

    /// Lets the model answer what was asked of it. Under a traversal guard the requests stay raised.
    pub(crate) fn answer(&self) {
        if safepoint::is_traversing() {
            return;
        }
        let requests = self.inner().participant.take_requests(MODEL_REQUESTS);
        if requests != 0 {
            self.core().model.answer(requests, self);
        }
    }

    /// Takes part in a stop, if one is on.
    pub(crate) fn park(&mut self) {
        if self.poll() & safepoint::STOP == 0 {
            return;
        }
        self.comes_back(true);
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
        self.comes_back(false);
    }

    /// Whether this thread is about to wait for nothing but a stop, or a collection.
    fn comes_back(&self, soon: bool) {
        self.inner().participant.data().parked.store(soon, Ordering::Relaxed);
    }

    /// When this thread may bury the next piece.
    pub(crate) fn rest_until(&self) -> Instant {
        self.inner().rest.get()
    }

    /// Buries nothing for a while.
    pub(crate) fn rest(&self, until: Instant) {
        self.inner().rest.set(until);
    }

    /// Lets the collection that is running catch up with this thread, for a few milliseconds at most.
    pub(crate) fn keep_pace(&mut self) {
        let core = Arc::clone(self.core());
        self.comes_back(true);
        self.detach(|| core.collector_lock.wait_briefly());
        self.comes_back(false);
    }

    /// Runs `f` detached: stops do not wait for this thread meanwhile, and it can block.
    ///
    /// It is attached again afterwards, also when `f` panics; if the world is stopped then, that waits.
    ///
    /// # Panics
    ///
    /// Inside a destructor, finalizer, callback or traversal. The process aborts if the thread cannot be attached
    /// again, since `f` left it attached elsewhere: code further up relies on the attachment.
    #[track_caller]
    pub fn detach<R>(&mut self, f: impl FnOnce() -> R) -> R {
        self.refuse_lent();
        let away = self.step_out();
        let _reattach = Reattach::new(self, HERE.with(|here| here.detached.replace(true)), away);
        f()
    }

    /// Runs `f` attached, with a scope for threads, and waits for these detached; see [`Mutator::scope`](crate::Mutator::scope).
    #[track_caller]
    pub(crate) fn scope<'env, R>(
        &mut self,
        f: impl for<'scope> FnOnce(&'scope Scope<'scope, 'env>, &mut Self) -> R,
    ) -> R {
        /// Detaches where `f` has returned or panicked, and notes what the thread was inside of before.
        struct Leave<'a, M: ObjectModel>(&'a mut ModelMutator<M>, &'a mut Option<(bool, Away)>);
        impl<M: ObjectModel> Drop for Leave<'_, M> {
            fn drop(&mut self) {
                // Else `f` has leaked what forbids it, and the thread waits attached.
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
                let leave = Leave(self, &mut left);
                f(scope, leave.0)
            })
        });
        drop(left.map(|(was_inside, away)| Reattach::new(self, was_inside, away)));
        result.unwrap_or_else(|payload| resume_unwind(payload))
    }

    #[track_caller]
    fn refuse_lent(&self) {
        assert!(
            !self.is_lent(),
            "`Mutator::detach` inside a destructor, finalizer or callback: whoever called that relies on the \
             attachment; detach when it has returned"
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

    /// Attaches again after [`step_out`](Self::step_out); `false`: the thread is attached elsewhere, or traverses.
    pub(crate) fn step_in(&self) -> bool {
        let attached = self.inner().participant.attach().is_ok();
        if attached {
            self.arrive();
        }
        attached
    }

    /// Detaches, with nothing left to answer that this thread alone can answer. A panic leaves the thread attached.
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
            // Another thread may have asked for something in between, and found this one attached.
            let requests = requests & MODEL_REQUESTS;
            if requests == 0 {
                self.leave();
                return away;
            }
            answered += 1;
            if answered > 1 && requests & !M::SHARED_REQUESTS == 0 {
                // Others can ask again for as long as this thread goes back.
                self.core().coordinator.poke_attached(requests);
                self.leave();
                return away;
            }
            away.disarm();
            participant.come_back();
        }
    }

    /// Stops the world: every other thread of this heap parks at its next safepoint, or is detached.
    ///
    /// # Errors
    ///
    /// When a thread has ended without dropping its mutator (it can never be stopped), or inside
    /// another stop.
    pub fn stop(&mut self) -> Result<World<'_, M>, StopError> {
        self.stop_here()
    }

    /// As [`stop`](Self::stop), for callers that have the mutator exclusively and need it meanwhile.
    pub(crate) fn stop_here(&self) -> Result<World<'_, M>, StopError> {
        if self.is_lent() {
            return Err(StopError::NoSafepoint);
        }
        let inner = self.inner();
        let stopped = inner.participant.stop()?;
        event::stopped(stopped.time_to_stop());
        let (requester, home) = (inner.participant.id(), inner.arena_id);
        Ok(World { since: Instant::now(), core: &inner.core, requester, home, stopped })
    }

    /// Stops the world for a `fork`.
    pub(crate) fn prepare_fork(&self) -> Result<ForkGuard<'_, Shared<M>>, StopError> {
        let participant = &self.inner().participant;
        if self.is_lent() {
            return Err(StopError::NoSafepoint);
        }
        participant.coordinator().prepare_fork(participant)
    }
}

/// Attaches a thread that is away for a while, where this is dropped: it takes over from the thread's [`Away`]. The second value:
/// whether the thread was inside of another detach when it left.
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
        self.0.arrive_in(core);
    }
}

impl<M: ObjectModel> Drop for ModelMutator<M> {
    fn drop(&mut self) {
        if self.is_lent() {
            // Somebody up the stack is still using it: rule L.
            self.inner().dropped.set(true);
            return;
        }
        // A panic of the model's waits until the thread has left: else it would stay attached, and every stop would wait for it.
        let answered = guarded(|| self.answer());
        let ended = guarded(|| self.core().model.ending(self));
        let core = Arc::clone(self.core());
        self.arena(|arena| core.retire(arena));
        self.leave();
        // SAFETY: rule P: made by `Box::leak` in `attach_unchecked`, and `HERE` no longer points to it.
        let Inner { participant, arena_id, handle, .. } =
            *unsafe { Box::from_raw(self.inner.0.as_ptr()) };
        // In this order: the thread leaves, then its arena's id is free, then the heap may be torn down. Were the id free first, a
        // new mutator could share it for a moment with this one. That would do no harm: the arena has retired and owns no page.
        drop(participant);
        core.arena_ids.lock().free.push(arena_id);
        drop(handle);
        let mut panics = [answered.err(), ended.err()].into_iter().flatten();
        let first = if std::thread::panicking() { None } else { panics.next() };
        for payload in panics {
            core.hooks.unraisable(During::Drop, "", event::panic_message(payload));
        }
        if let Some(payload) = first {
            resume_unwind(payload);
        }
    }
}
