//! The ambient mutator: an attachment that belongs to the thread, and not to a value of the caller.
//!
//! A runtime that is embedded, or called back, has no place for a mutator in its functions. So the
//! heap keeps one for each thread that [enters](ModelHeap::enter), and a guard counts how deep the
//! thread is inside. For example, thread 1 enters to run a script, whose native function enters
//! again, and neither knows of the other. When the outer guard is dropped, the thread is detached,
//! so that no stop waits for it. Its mutator stays, so that the next script finds it, and the
//! objects of the thread keep their owner. It ends with the thread.
//!
//! # States
//!
//! A [`Slot`] has the mutator of one thread in one heap. `depth` counts its living guards, and
//! `base` those that were made before the last [`depart`](ModelAttached::depart).
//!
//! | event | `depth`, `base` | the thread |
//! |---|---|---|
//! | `enter` | `depth + 1` | attaches, or comes back, unless it is attached |
//! | a guard is dropped | `depth - 1`; `base` is at most `depth` | leaves, if `depth` is `base` now |
//! | `depart`, `detached` | `base` is `depth`, and later the old number | leaves, and comes back |
//! | `enter` in between, as in a callback | `depth + 1`, and `- 1` | comes back, and leaves |
//! | the thread ends | | the mutator ends. A guard that lives on returns [`AttachError::ThreadEnding`] |
//!
//! Nothing relies on the numbers for the question whether the thread is attached, since code of the
//! caller may have detached it in another way: each use asks the [mutator of the
//! thread](ModelMutator::current).
//!
//! # Why safepoints need no `&mut`
//!
//! A borrow from an object needs `&ModelMutator`, which a guard only [lends](super::mutator) to a
//! closure. A safepoint, and each function that leaves, does nothing while the mutator is lent. So
//! neither meets a borrow. [`with_mut`](ModelAttached::with_mut) gives a `&mut`, and while its
//! closure runs the guards do none of these, because the closure may hold a borrow of that.
//!
//! If the thread is attached by a mutator of the caller, `enter` lends that one. Then the guards
//! never park or leave, because the caller may have borrows up the stack.
//!
//! # Who may touch it
//!
//! The thread alone. A fork's child has the slot of the thread that forked, and those of lost
//! threads leak.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::ptr::NonNull;
use std::rc::Rc;
use std::sync::Arc;

use crate::base::sync::const_thread_local;
use crate::heap::current::CurrentMutator;
use crate::heap::model::ObjectModel;
use crate::heap::model_heap::ModelHeap;
use crate::heap::mutator::ModelMutator;
use crate::report::error::AttachError;
use crate::safepoint::{self, current};

/// The mutator that is kept for a thread.
struct Slot<M: ObjectModel> {
    /// `None`: it has ended with the thread.
    mutator: RefCell<Option<ModelMutator<M>>>,
    depth: Cell<usize>,
    base: Cell<usize>,
    /// The closure of a `with_mut` runs.
    taken: Cell<bool>,
}

/// A slot of any model.
trait KeptSlot {
    /// The address of the core of its heap.
    fn heap(&self) -> *const ();
    /// Whether no guard lives, and nothing else keeps the heap open.
    fn is_forgotten(&self) -> bool;
    fn end_mutator(&self);
    fn into_any(self: Rc<Self>) -> Rc<dyn std::any::Any>;
}

/// The slots of this thread. Their mutators end when it is dropped.
struct ThreadSlots(RefCell<Vec<Rc<dyn KeptSlot>>>);

const_thread_local! {
    static SLOTS: ThreadSlots = ThreadSlots(RefCell::new(Vec::new()))
}

const_thread_local! {
    /// Whether [`SLOTS`] was used. The system destroys the thread-locals of a thread in the reverse
    /// order of their first use. A mutator must end before the library looks for those that its
    /// thread has leaked, so `SLOTS` is first used when the thread has attached.
    static HAS_SLOTS: Cell<bool> = Cell::new(false)
}

impl Drop for ThreadSlots {
    fn drop(&mut self) {
        for slot in self.0.take() {
            slot.end_mutator();
        }
    }
}

impl<M: ObjectModel> KeptSlot for Slot<M> {
    fn heap(&self) -> *const () {
        self.mutator.borrow().as_ref().map_or(std::ptr::null(), |m| address(m.heap()))
    }

    fn is_forgotten(&self) -> bool {
        let mutator = self.mutator.borrow();
        self.depth.get() == 0
            && mutator.as_ref().is_none_or(|m| Arc::strong_count(&m.heap().0) == 1)
    }

    fn end_mutator(&self) {
        // A destructor that runs meanwhile finds no mutator here, and no `RefCell` in use.
        let mutator = self.mutator.take();
        drop(mutator);
    }

    fn into_any(self: Rc<Self>) -> Rc<dyn std::any::Any> {
        self
    }
}

fn address<M: ObjectModel>(heap: &ModelHeap<M>) -> *const () {
    Arc::as_ptr(&heap.0.core).cast()
}

impl<M: ObjectModel> Slot<M> {
    /// The slot of this thread in a heap.
    fn find(heap: &ModelHeap<M>) -> Option<Rc<Self>> {
        if !HAS_SLOTS.with(Cell::get) {
            return None;
        }
        let heap = address(heap);
        let find = |slots: &ThreadSlots| {
            let slots = slots.0.borrow();
            slots.iter().find(|slot| slot.heap() == heap).map(Rc::clone)
        };
        // `Err`: the thread is ending.
        SLOTS.try_with(find).ok()??.into_any().downcast().ok()
    }

    /// Makes a slot with a new mutator.
    fn new(heap: &ModelHeap<M>) -> Result<Rc<Self>, AttachError> {
        let ending = |_| AttachError::ThreadEnding;
        if HAS_SLOTS.with(Cell::get) {
            let forgotten = SLOTS.try_with(ThreadSlots::forgotten).map_err(ending)?;
            forgotten.iter().for_each(|slot| slot.end_mutator());
        }
        let mutator = RefCell::new(Some(heap.try_attach()?));
        let (depth, base, taken) = Default::default();
        let slot = Rc::new(Self { mutator, depth, base, taken });
        let keep = |slots: &ThreadSlots| {
            let mut slots = slots.0.borrow_mut();
            slots.try_reserve(1).map_err(|_| AttachError::Memory)?;
            slots.push(slot.clone());
            Ok::<(), AttachError>(())
        };
        HAS_SLOTS.with(|has| has.set(true));
        SLOTS.try_with(keep).map_err(ending)??;
        Ok(slot)
    }

    /// The mutator, lent, if the thread is attached to its heap.
    #[inline]
    fn current(&self) -> Option<CurrentMutator<M>> {
        #[cold]
        #[inline(never)]
        fn another<M: ObjectModel>(mutator: &ModelMutator<M>) -> Option<CurrentMutator<M>> {
            ModelMutator::current().filter(|current| current.heap().ptr_eq(mutator.heap()))
        }
        let mutator = self.mutator.borrow();
        let mutator = mutator.as_ref()?;
        mutator.if_current().or_else(|| another(mutator))
    }

    /// Attaches, unless the thread is attached to this heap.
    fn arrive(&self) -> Result<(), AttachError> {
        if self.is_attached() && ModelMutator::<M>::here().is_some() {
            return Ok(());
        }
        let mutator = self.mutator.borrow();
        let mutator = mutator.as_ref().ok_or(AttachError::ThreadEnding)?;
        if mutator.come_back() {
            Ok(())
        } else if safepoint::is_traversing() {
            Err(AttachError::Traversing)
        } else if current() != 0 || safepoint::is_stopping() {
            Err(AttachError::AlreadyAttached)
        } else if safepoint::is_suspending() {
            Err(AttachError::Suspending)
        } else if ModelMutator::<M>::is_inside_detach() {
            Err(AttachError::InsideDetach)
        } else {
            Err(AttachError::ThreadEnding)
        }
    }

    fn enter(&self) -> Result<(), AttachError> {
        self.arrive()?;
        self.depth.set(self.depth.get() + 1);
        Ok(())
    }

    fn exit(&self) {
        let is_last = self.depth.get() == self.base.get() + 1;
        // While it still counts, so that a destructor that runs now can enter and exit.
        if is_last && !self.try_leave() && self.base.get() == 0 && self.is_attached() {
            // Somebody up the stack has lent the mutator, or the thread is in a traversal. Nobody
            // would poll afterwards, so the mutator ends, at the latest when the loan is over. The
            // next guard gets another one.
            drop(self.mutator.take());
        }
        let depth = self.depth.get() - 1;
        self.depth.set(depth);
        self.base.set(self.base.get().min(depth));
    }

    /// Detaches, if the thread is attached and nobody relies on that.
    fn try_leave(&self) -> bool {
        if self.taken.get() || !self.is_attached() {
            return false;
        }
        let mutator = self.mutator.borrow();
        // SAFETY: rule *attached*: each use of a slot, and `ModelMutator::current`, looks whether
        // the thread is attached. A borrow from an object would keep the mutator lent, and a
        // collection that runs finalizers has it `taken`.
        mutator.as_ref().is_some_and(|m| unsafe { m.leave_for_now() })
    }
}

impl ThreadSlots {
    /// Removes the slots that keep a heap open that nobody else has.
    fn forgotten(&self) -> Vec<Rc<dyn KeptSlot>> {
        let mut slots = self.0.borrow_mut();
        let (forgotten, kept) = slots.drain(..).partition(|slot| slot.is_forgotten());
        *slots = kept;
        forgotten
    }
}

/// A thread is attached to a heap while this lives, and can use the mutator that the heap keeps for
/// it.
///
/// [`ModelHeap::enter`] makes it. There may be any number of them on a thread, and their order is
/// free. It is neither `Send` nor `Sync`, so that it is not held across an `.await`.
#[must_use = "the thread leaves when this is dropped"]
pub struct ModelAttached<M: ObjectModel>(By<M>);

enum By<M: ObjectModel> {
    Slot(Rc<Slot<M>>),
    /// A mutator of the caller.
    Lent(CurrentMutator<M>),
}

impl<M: ObjectModel> ModelHeap<M> {
    /// Attaches the calling thread by the mutator that this heap keeps for the thread, which the
    /// first call makes.
    ///
    /// # Panics
    ///
    /// If [`try_enter`](Self::try_enter) returns an error.
    #[track_caller]
    pub fn enter(&self) -> ModelAttached<M> {
        self.try_enter().unwrap_or_else(|error| panic!("{error}"))
    }

    /// Attaches the calling thread by the mutator that this heap keeps for the thread, which the
    /// first call makes, after a wait if the heap's world is stopped. On a thread that is attached
    /// by a mutator of the caller, it lends that one.
    ///
    /// The mutator keeps the heap open until the thread ends. A heap that nothing but such mutators
    /// keeps open ends when the thread enters another heap for the first time, too.
    ///
    /// # Errors
    ///
    /// If the thread is attached to another heap, inside a traversal, in the closure of
    /// [`ModelMutator::detach`], or ending, or in another case that [`AttachError`] lists.
    pub fn try_enter(&self) -> Result<ModelAttached<M>, AttachError> {
        let slot = Slot::find(self);
        if !slot.as_ref().is_some_and(|slot| slot.is_attached())
            && let Some(lent) = ModelMutator::current()
            && lent.heap().ptr_eq(self)
        {
            return Ok(ModelAttached(By::Lent(lent)));
        }
        let slot = slot.map_or_else(|| Slot::new(self), Ok)?;
        slot.enter()?;
        Ok(ModelAttached(By::Slot(slot)))
    }

    /// Calls `f` with the mutator of the calling thread, which is attached for this call if it is
    /// not attached already, also in the closure of [`ModelMutator::detach`].
    ///
    /// # Panics
    ///
    /// If [`try_with`](Self::try_with) returns an error.
    #[track_caller]
    pub fn with<R>(&self, f: impl FnOnce(&ModelMutator<M>) -> R) -> R {
        self.try_with(f).unwrap_or_else(|error| panic!("{error}"))
    }

    /// Calls `f` with the mutator of the calling thread, which is attached for this call if it is
    /// not attached already, also in the closure of [`ModelMutator::detach`]. The mutator is lent
    /// to `f`, so that no safepoint is reached meanwhile.
    ///
    /// # Errors
    ///
    /// If the thread is attached to another heap, inside a traversal, or ending, or in another case
    /// that [`AttachError`] lists. `f` was not called then.
    pub fn try_with<R>(&self, f: impl FnOnce(&ModelMutator<M>) -> R) -> Result<R, AttachError> {
        match self.try_enter() {
            Ok(attached) => attached.try_with(f),
            // A mutator that is kept could outlive the closure.
            Err(AttachError::InsideDetach) => self.with_scoped(f),
            Err(error) => Err(error),
        }
    }

    fn with_scoped<R>(&self, f: impl FnOnce(&ModelMutator<M>) -> R) -> Result<R, AttachError> {
        self.try_attach_scoped(|m| {
            let _lent = m.lend();
            f(m)
        })
    }
}

impl<M: ObjectModel> Slot<M> {
    /// Whether the thread is attached by this mutator, and not by another one of the heap.
    fn is_attached(&self) -> bool {
        self.mutator.borrow().as_ref().is_some_and(|m| m.participant().is_attached())
    }
}

impl<M: ObjectModel> ModelAttached<M> {
    /// The pending requests to the thread, as [`ModelMutator::poll`] returns them, by one relaxed
    /// load. 0: nothing is to be done. Also 0 when the thread is ending.
    #[inline]
    pub fn poll(&self) -> u32 {
        match &self.0 {
            By::Slot(slot) => slot.mutator.borrow().as_ref().map_or(0, ModelMutator::poll),
            By::Lent(current) => current.poll(),
        }
    }

    /// The word that [`poll`](Self::poll) loads, for compiled code. It may be read atomically by
    /// this thread until the thread ends, and is not 0 while something is to be done.
    #[cfg(not(standstill_loom))]
    pub fn poll_word(&self) -> Option<NonNull<u32>> {
        match &self.0 {
            By::Slot(slot) => slot.mutator.borrow().as_ref().map(|m| m.participant().poll_word()),
            By::Lent(current) => Some(current.participant().poll_word()),
        }
    }

    /// Parks, collects or reclaims, if the heap has requested it, as
    /// [`ModelMutator::safepoint`] does. It does nothing if [`may_park`](Self::may_park) returns
    /// `false`.
    #[inline]
    pub fn safepoint(&self) {
        if self.poll() != 0 {
            self.with_mut(ModelMutator::safepoint);
        }
    }

    /// Parks, if a stop is requested, as [`ModelMutator::park`] does. It does nothing if
    /// [`may_park`](Self::may_park) returns `false`.
    #[inline]
    pub fn park(&self) {
        if self.poll() != 0 {
            self.with_mut(ModelMutator::park);
        }
    }

    /// Whether the thread may reach a safepoint or leave now. It may not while somebody up the
    /// stack uses the mutator, such as the closure of a `with`, a destructor or a finalizer, and
    /// while it is attached by a mutator of the caller.
    pub fn may_park(&self) -> bool {
        self.with_mut(|_| ()).is_some()
    }

    /// Calls `f` with the mutator, lent. If the thread is detached, it is attached for this call.
    ///
    /// # Panics
    ///
    /// If [`try_with`](Self::try_with) returns an error.
    #[track_caller]
    pub fn with<R>(&self, f: impl FnOnce(&ModelMutator<M>) -> R) -> R {
        self.try_with(f).unwrap_or_else(|error| panic!("{error}"))
    }

    /// Calls `f` with the mutator, lent. If the thread is detached, it is attached for this call.
    ///
    /// # Errors
    ///
    /// Those of [`ModelHeap::try_enter`], if the thread is detached. `f` was not called then.
    #[inline]
    pub fn try_with<R>(&self, f: impl FnOnce(&ModelMutator<M>) -> R) -> Result<R, AttachError> {
        let own;
        let current = match &self.0 {
            By::Lent(current) => current,
            By::Slot(slot) => {
                let Some(current) = slot.current() else { return Self::enter_with(slot, f) };
                own = current;
                &own
            }
        };
        Ok(f(current))
    }

    /// As [`try_with`](Self::try_with), when the thread is not attached. Apart, so that its many
    /// calls are not inlined where the thread is.
    #[cold]
    #[inline(never)]
    fn enter_with<R>(
        slot: &Rc<Slot<M>>,
        f: impl FnOnce(&ModelMutator<M>) -> R,
    ) -> Result<R, AttachError> {
        match slot.enter() {
            Ok(()) => {}
            Err(AttachError::InsideDetach) => {
                let heap = slot.mutator.borrow().as_ref().map(|m| m.heap().clone());
                return heap.ok_or(AttachError::ThreadEnding)?.with_scoped(f);
            }
            Err(error) => return Err(error),
        }
        let _entered = ModelAttached(By::Slot(Rc::clone(slot)));
        // In a traversal, or in a stop of the thread, an attached thread has no mutator either.
        let current = slot.current().ok_or(AttachError::Traversing)?;
        Ok(f(&current))
    }

    /// Calls `f` with exclusive use of the mutator, so that it can collect, stop the world, and so
    /// on. `None`, and `f` was not called: [`may_park`](Self::may_park) is `false`, or the thread
    /// is detached.
    pub fn with_mut<R>(&self, f: impl FnOnce(&mut ModelMutator<M>) -> R) -> Option<R> {
        struct Taken<'a>(&'a Cell<bool>);
        impl Drop for Taken<'_> {
            fn drop(&mut self) {
                self.0.set(false);
            }
        }
        let By::Slot(slot) = &self.0 else { return None };
        if slot.taken.get() || !slot.is_attached() {
            return None;
        }
        let mut mutator = ModelMutator::<M>::here().filter(|m| m.may_park())?;
        slot.taken.set(true);
        let _taken = Taken(&slot.taken);
        Some(f(&mut mutator))
    }

    /// Calls `f`, detached, so that it can block, and comes back afterwards, also if `f` panics. If
    /// [`may_park`](Self::may_park) returns `false`, `f` is called attached.
    pub fn detached<R>(&self, f: impl FnOnce() -> R) -> R {
        let _left = self.depart();
        f()
    }

    /// Detaches until the result is dropped, as [`detached`](Self::detached) does, for languages
    /// that mark the two ends of a region in which a thread may block.
    ///
    /// If the result is leaked, the thread stays detached, and each `with` attaches for itself.
    pub fn depart(&self) -> ModelDeparture<'_, M> {
        let By::Slot(slot) = &self.0 else { return ModelDeparture { slot: None, base: 0 } };
        if !slot.try_leave() {
            return ModelDeparture { slot: None, base: 0 };
        }
        let base = slot.base.replace(slot.depth.get());
        ModelDeparture { slot: Some(slot), base }
    }

    /// Ends the thread's mutator, so that it no longer keeps the heap open. If another guard of the
    /// thread lives, or if the mutator is the caller's, this only drops the guard.
    pub fn end_mutator(self) {
        let By::Slot(slot) = &self.0 else { return };
        let slot = Rc::clone(slot);
        drop(self);
        if slot.depth.get() == 0 {
            let remove = |slots: &ThreadSlots| {
                slots
                    .0
                    .borrow_mut()
                    .retain(|other| !std::ptr::addr_eq(&raw const **other, &raw const *slot));
            };
            // `Err`: the thread is ending, and the slot has ended.
            _ = SLOTS.try_with(remove);
            slot.end_mutator();
        }
    }
}

impl<M: ObjectModel> Drop for ModelAttached<M> {
    fn drop(&mut self) {
        if let By::Slot(slot) = &self.0 {
            slot.exit();
        }
    }
}

impl<M: ObjectModel> fmt::Debug for ModelAttached<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ModelAttached").field("may_park", &self.may_park()).finish()
    }
}

/// A thread that has left, until this is dropped. See [`ModelAttached::depart`].
#[must_use = "the thread comes back when this is dropped"]
pub struct ModelDeparture<'a, M: ObjectModel> {
    /// `None`: the thread could not leave.
    slot: Option<&'a Slot<M>>,
    /// The slot's number before.
    base: usize,
}

impl<M: ObjectModel> ModelDeparture<'_, M> {
    /// Whether the thread has left.
    pub fn has_left(&self) -> bool {
        self.slot.is_some()
    }

    /// Comes back, as a drop does, but does not wait for the end of a stop. For a thread that holds
    /// a lock which the stopped threads may need.
    ///
    /// # Errors
    ///
    /// The value itself, if the world is stopped, or if the thread cannot be attached for another
    /// reason, as when it is attached elsewhere.
    pub fn try_come_back(self) -> Result<(), Self> {
        let is_back = |slot: &Slot<M>| {
            let mutator = slot.mutator.borrow();
            slot.is_attached() || mutator.as_ref().is_some_and(ModelMutator::try_come_back)
        };
        if self.slot.is_none_or(is_back) { Ok(()) } else { Err(self) }
    }
}

impl<M: ObjectModel> Drop for ModelDeparture<'_, M> {
    fn drop(&mut self) {
        if let Some(slot) = self.slot {
            slot.base.set(self.base.min(slot.depth.get()));
            // It fails only if the thread is attached elsewhere. Then the next use tries again.
            _ = slot.arrive();
        }
    }
}

impl<M: ObjectModel> fmt::Debug for ModelDeparture<'_, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ModelDeparture").field("has_left", &self.has_left()).finish()
    }
}
