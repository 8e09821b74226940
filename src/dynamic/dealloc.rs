//! The end of an object.
//!
//! When the count of an object reaches 0, work is left: its finalizer, its weak references, the
//! references that it owns, its memory. Part of this work is code of the program, which may revive
//! the object, or forget a step. So the object is *dying* for a while, in which the dealloc handler
//! of its type has exclusive access.
//!
//! For example, a thread drops the last reference to an instance of a class. The generic handler
//! calls the finalizer, and returns at once if that has stored a new reference, so that the object
//! lives on. Otherwise the handler removes the object from the tracked set, clears weak references,
//! releases the object's references with the clear handler, and frees the memory. The reference to
//! the class is released last, because the memory cannot be freed without the class's record. A
//! handler written in C does the same itself, and calls [`free`] for the memory, which leaks if the
//! call is omitted.
//!
//! In checked mode freed memory is poisoned, and kept in quarantine for a while, so that stale
//! addresses are detected.

use std::ffi::c_void;
use std::ptr::NonNull;

use crate::dynamic::attributes::Attributes;
use crate::dynamic::handlers;
use crate::dynamic::object::{Obj, RawObject, from_raw, is_checked, refuse_in_traversal};
use crate::dynamic::tracking::InHeap;
use crate::object::header::Header;
use crate::object::state;
use crate::report::error::{Code, Fault};
use crate::typed::mutator::mutator;
use crate::{During, Mutator, managed, safepoint};

/// The two kinds of objects, by the function that frees their memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// Objects of types that take part in cycle collection.
    Container,
    /// All other objects.
    Plain,
}

/// An object in its dealloc handler, on the thread that runs the handler.
#[derive(Debug)]
pub struct Dying<'m>(InHeap<'m>);

impl<'m> Dying<'m> {
    /// The object of a dealloc handler.
    ///
    /// # Safety
    ///
    /// The object lies in the mutator's heap, and its dealloc handler runs on this thread. Other
    /// values for the object are not used after a call that destroys it or its parts.
    #[inline(always)]
    pub unsafe fn new(m: &'m Mutator, object: Obj<'m>) -> Self {
        Self(InHeap { m, object })
    }

    #[inline(always)]
    pub(super) fn object(&self) -> Obj<'m> {
        self.0.object
    }

    /// Takes the object out of the tracked set, before its references are released.
    pub fn untrack(&self) {
        self.change_plainly(state::TRACKED | state::BY_ALLOCATOR);
    }

    #[inline(always)]
    fn change_plainly(&self, bits: u8) {
        self.0.state().change_plainly(0, bits);
    }

    /// Calls the finalizer; `true`: the object is alive again, and the handler must return at once.
    pub fn call_finalizer(&self) -> bool {
        let InHeap { m, object } = self.0;
        if object.record().finalize.is_none() || object.is_finalized(m) {
            return false;
        }
        self.survives(|| object.call_finalizer(m))
    }

    /// Revives the object for a call; `true`: it is alive afterwards.
    fn survives(&self, call: impl FnOnce()) -> bool {
        // SAFETY: rule *zero*: dying on this thread.
        !unsafe { managed::revived(self.0.m.raw(), self.object().header_ptr(), call) }
    }

    /// Clears the weak references to the object, and calls their callbacks.
    pub fn clear_weak_references(&self) {
        managed::clear_weak_references(self.0.m.raw(), self.object().header());
    }

    #[inline(always)]
    fn clear(&self) {
        let InHeap { m, object } = self.0;
        if let Some(handler) = object.record().clear {
            handlers::guarded(m, During::Clear, object, || {
                object.ask(handler);
            });
        }
    }

    /// The reference that the object owns to its heap type, for the end of the dealloc handler.
    #[inline(always)]
    pub(super) fn take_type(&self) -> OwnedType {
        OwnedType(NonNull::new(self.object().record().object))
    }

    /// As [`free()`], for an object of the mutator's heap.
    fn free(self, family: Family) -> Result<(), Fault> {
        const FUNCTION: &str = "free";
        let (InHeap { m, object }, state) = (self.0, self.0.state());
        let record = object.record();
        if record.has_gc() != (family == Family::Container) {
            return Err(object.fault(Code::WrongAllocator, FUNCTION));
        }
        // From here on no weak reference can be upgraded, as in a dealloc handler already.
        let before = managed::mark_dying_for_upgrades(m.raw(), object.header(), state);
        let was_dying = before & state::DYING != 0;
        // A constructor owns one reference, but a dealloc handler owns none. So any reference there
        // was added by the handler, and still exists.
        if !object.is_last(m, 0) && (was_dying || !object.is_last(m, 1)) {
            if !was_dying {
                state.unset(state::DYING);
            }
            return Err(object.fault(Code::ReferencesLeft, FUNCTION));
        }
        // This thread has exclusive access.
        let was_tracked = state.change_alone(0, state::TRACKED) & state::TRACKED != 0;
        let result =
            if was_tracked { Err(object.fault(Code::StillTracked, FUNCTION)) } else { Ok(()) };
        self.clear_weak_references();
        drop(self.take::<Attributes>());
        self.give_back();
        result
    }

    /// Frees the memory, in checked mode by way of the quarantine.
    pub(super) fn give_back(self) {
        let m = self.0.m;
        let model = m.raw().model();
        if !model.is_checked() {
            return self.free_memory();
        }
        self.0.state().death();
        // The header stays, because a stress mode reads its type when the memory is freed.
        // SAFETY: rule *zero*: no code uses the object any more. The others are freed objects,
        // which only this thread has taken from the list.
        unsafe {
            let mut due = model.quarantine.admit(self.0.cell(), size_of::<RawObject>());
            while let Some(oldest) = due {
                m.raw().free_unprefixed(oldest.start());
                due = model.quarantine.pop_excess();
            }
        }
    }

    #[inline(always)]
    fn free_memory(self) {
        // SAFETY: rule *zero*: no code uses the object any more.
        unsafe { self.0.m.raw().free_unprefixed(self.object().address().cast()) };
    }

    /// Calls the dealloc handler of the object's type: its own, or the generic one.
    #[inline(always)]
    fn destroy(self) {
        let record = self.object().record();
        match record.dealloc.filter(|_| record.own_dealloc) {
            Some(handler) => self.object().run(handler),
            None => self.dealloc(),
        }
    }

    /// The generic dealloc handler.
    #[inline]
    pub fn dealloc(self) {
        if self.object().record().ends_simply && !is_checked(self.0.m) {
            dealloc_simply(self);
        } else {
            dealloc_in_full(self);
        }
    }
}

/// The reference of a dying object to its heap type; `None`: the type is static. It is released
/// after the object, because it may be the last one, and freeing reads the record.
pub(super) struct OwnedType(Option<NonNull<RawObject>>);

impl OwnedType {
    #[inline(always)]
    pub(super) fn release(self) {
        if let Some(type_object) = self.0 {
            // SAFETY: rule *counted*: a dying object gives up its reference, once.
            drop(unsafe { from_raw(type_object) });
        }
    }
}

impl Obj<'_> {
    /// Calls the finalizer, unless it was called before.
    pub fn call_finalizer(self, m: &Mutator) {
        let Some(handler) = self.record().finalize else { return };
        if let Some(here) = self.here(m)
            // Set before the call, so that a nested call does nothing.
            && here.state().set(state::FINALIZED) & state::FINALIZED != 0
        {
            return;
        }
        handlers::guarded(m, During::Finalize, self, || self.run(handler));
    }

    /// Whether the object has exactly `count` references, and no merge queue contains it, because
    /// the entry of a queue would outlive the object.
    pub(super) fn is_last(self, m: &Mutator, count: i64) -> bool {
        let header = self.header();
        let is_so = || header.count() == Some(count);
        if is_so() && count > 0 && header.is_queued() {
            // Other threads have dropped references that this thread had counted.
            managed::merge_early(m.raw(), header);
        }
        is_so() && !header.is_queued()
    }
}

/// Frees the memory of an object: the last step of a dealloc handler, or of a constructor that
/// failed.
///
/// It releases neither fields nor type, and calls no handler, because its caller has done all this.
///
/// # Errors
///
/// When the object is of the other family, when references are left, and in a traverse handler.
/// Nothing has happened then, except with [`Code::StillTracked`]: the memory was freed all the
/// same.
///
/// # Safety
///
/// `object` is a dynamic object of the mutator's heap that no code uses any more.
pub unsafe fn free(m: &Mutator, object: NonNull<RawObject>, family: Family) -> Result<(), Fault> {
    const FUNCTION: &str = "free";
    refuse_in_traversal(FUNCTION)?;
    // SAFETY: as the caller says.
    let object = unsafe { Obj::new(object) };
    match object.here(m) {
        Some(here) => Dying(here).free(family),
        None => Err(object.fault(Code::WrongAllocator, FUNCTION)),
    }
}

/// The common case of [`free`] for objects that take part in cycle collection: dying, untracked,
/// without weak references or a dictionary. `false`: nothing was done; `free` must be called.
///
/// # Safety
///
/// As for [`free`]. The heap is not in checked mode, and this thread runs no traverse handler in a
/// stop.
#[inline]
pub unsafe fn free_common(m: &Mutator, object: NonNull<RawObject>) -> bool {
    debug_assert!(!is_checked(m));
    // SAFETY: as the caller says.
    let Some(here) = unsafe { Obj::new(object) }.here(m) else { return false };
    // Types with a common class take part in cycle collection, and have no dictionaries.
    if here.object.record().common_class.is_none() {
        return false;
    }
    let dying = here.state().get() & (state::DYING | state::TRACKED) == state::DYING;
    if !dying || !here.object.header().is_spent() {
        return false;
    }
    Dying(here).free_memory();
    true
}

/// [`Dying::dealloc`] with all its steps.
#[inline(never)]
fn dealloc_in_full(dying: Dying<'_>) {
    let object = dying.object();
    let record = object.record();
    // The object is still tracked, so a revival needs to restore nothing.
    if dying.call_finalizer() {
        return;
    }
    if let Some(del) = record.del {
        // Before the legacy finalizer, as in CPython.
        dying.clear_weak_references();
        let run = || handlers::guarded(dying.0.m, During::Finalize, object, || object.run(del));
        if dying.survives(run) {
            return;
        }
    }
    if record.has_gc() {
        dying.change_plainly(state::TRACKED);
    }
    dying.clear_weak_references();
    object.clear_managed_dict();
    let owned_type = dying.take_type();
    // The dealloc handler of the nearest base does the remaining steps, and releases the instance's
    // type, too, if it belongs to a heap type, as in CPython.
    let mut primary = std::iter::successors(Some(record), |record| record.base());
    let base = primary.find(|base| base.own_dealloc).filter(|_| !record.own_dealloc);
    if let Some((base, dealloc)) = base.and_then(|base| Some((base, base.dealloc?))) {
        let base_is_heap_type = base.is_heap_type();
        dying.object().run(dealloc);
        if !base_is_heap_type {
            owned_type.release();
        }
        return;
    }
    dying.clear();
    dying.run_free();
    owned_type.release();
}

/// [`Dying::dealloc`] for a type with [`ends_simply`](crate::dynamic::TypeRecord).
#[inline(never)]
fn dealloc_simply(dying: Dying<'_>) {
    dying.untrack();
    dying.clear_weak_references();
    let owned_type = dying.take_type();
    dying.clear();
    if dying.object().header().is_spent() {
        dying.free_memory();
    } else {
        dying.run_free();
    }
    owned_type.release();
}

/// Drops the only reference to an object that this thread owns, and runs its dealloc handler.
/// `false`: nothing was done, since other references or a weak record exist, another thread is the
/// owner, or a traverse handler runs.
///
/// # Safety
///
/// The caller owns the reference, and gives it up. The thread holds no stop.
#[inline(always)]
#[must_use = "where nothing was done the caller still owns the reference"]
pub unsafe fn decref_last(m: &Mutator, object: NonNull<RawObject>) -> bool {
    let header = object.cast::<Header>();
    // SAFETY: rule *counted*: the reference keeps the object alive. An owner is attached to the
    // object's heap.
    unsafe {
        let last = !safepoint::is_traversing() && header.as_ref().take_last(m.raw().id());
        if last {
            managed::destroy_dynamic_in_place(m.raw(), header, |_| {
                Dying::new(m, Obj::new(object)).destroy();
            });
        }
        last
    }
}

/// Calls the dealloc handler of a dying object: its type's own, or the generic one.
///
/// # Safety
///
/// Rule *typed*: a dying dynamic object; `m` is a mutator.
#[inline]
pub(super) unsafe fn call_dealloc(header: NonNull<Header>, m: *const ()) {
    // SAFETY: as the caller says; rule *zero*.
    unsafe { Dying::new(mutator(m), Obj::new(header.cast())) }.destroy();
}

/// The default free function: [`free`] with the family of the object's type.
pub(super) unsafe extern "C" fn generic_free(object: *mut c_void) {
    Mutator::with_current(|m| {
        // SAFETY: rule *handlers*: called by a dealloc handler, or by a constructor that failed.
        let freed = unsafe {
            Obj::from_ptr(object.cast()).map(|object| {
                let is_container = object.record().has_gc();
                let family = if is_container { Family::Container } else { Family::Plain };
                free(m, object.address(), family)
            })
        };
        if let Some(Err(fault)) = freed {
            m.raw().core().hooks.misuse(&fault);
        }
    });
}
