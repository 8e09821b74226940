//! The end of an object.
//!
//! When the count reaches 0 the object is *dying*, and its type's dealloc handler has it. The generic one finalizes
//! (which may bring it back), clears weak references, takes it out of the tracked set, lets its references go by whatever handler there
//! is, and gives the memory back. One written in C does the same by itself, in [`free`] at last. Until then the memory stays: a
//! handler that forgets leaks.
//!
//! In checked mode freed memory is poisoned, and kept in quarantine for a while, so that a stale address is recognised.

use std::ffi::c_void;
use std::ptr::NonNull;

use crate::Mutator;
use crate::base::error::{Code, Fault};
use crate::dynamic::object::{
    RawObject, fault_at, from_raw, header, is_checked, object_of, raw, refuse_in_traversal, type_of,
};
use crate::dynamic::record::{Flags, TypeRecord};
use crate::dynamic::tracking::{is_at_hand, is_finalized};
use crate::dynamic::{attributes, handlers};
use crate::managed;
use crate::memory::quarantine::POISON;
use crate::object::header::Header;
use crate::object::state;
use crate::object::weak::HeaderPtr;
use crate::safepoint;
use crate::typed::mutator::mutator;

/// The two kinds of objects, by who gives their memory back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// Those whose types take part in cycle collection.
    Container,
    /// The others.
    Plain,
}

/// Gives an object's memory back: the last step of a dealloc handler, or of a constructor that failed.
///
/// It neither releases fields nor the type, and runs no handler.
///
/// # Errors
///
/// When the memory is of the other family, or references are left: nothing has happened then. [`Code::StillTracked`] alone comes
/// after the memory was given back.
///
/// # Safety
///
/// `object` is a dynamic object of the mutator's heap that nobody uses any more.
pub unsafe fn free(m: &Mutator, object: NonNull<RawObject>, family: Family) -> Result<(), Fault> {
    const FUNCTION: &str = "free";
    refuse_in_traversal(FUNCTION)?;
    // SAFETY: as the caller says.
    unsafe {
        let record = type_of(object);
        let fault = |code| fault_at(code, FUNCTION, object, record);
        if !raw(m).owns(object_of(object)) || record.has_gc() != (family == Family::Container) {
            return Err(fault(Code::WrongAllocator));
        }
        let state = raw(m).core().state(object.as_ptr() as usize);
        // From here on no weak reference leads to it. In a dealloc handler that is so already.
        let was_dying =
            managed::mark_dying_for_upgrades(raw(m), header(object)) & state::DYING != 0;
        // A constructor has a reference. In a dealloc handler there is none: who has taken one there still has it.
        if !is_last(m, object, 0) && (was_dying || !is_last(m, object, 1)) {
            if !was_dying {
                state.unset(state::DYING);
            }
            return Err(fault(Code::ReferencesLeft));
        }
        // Whoever frees an object has it alone.
        let was_tracked = state.change_alone(0, state::TRACKED) & state::TRACKED != 0;
        let result = if was_tracked { Err(fault(Code::StillTracked)) } else { Ok(()) };
        clear_weak_references(m, object);
        if record.flags().has(Flags::MANAGED_DICT) {
            attributes::drop_dict(object);
        }
        give_back(m, object);
        result
    }
}

/// Whether `count` references to an object are all there are, and no queue knows it, which would outlive it.
///
/// # Safety
///
/// `object` is a dynamic object of the mutator's heap, that nobody else uses.
pub(super) unsafe fn is_last(m: &Mutator, object: NonNull<RawObject>, count: i64) -> bool {
    // SAFETY: as the caller says.
    let header = unsafe { header(object).as_ref() };
    let is_so = || header.count() == Some(count);
    if is_so() && count > 0 && header.is_queued() {
        // Others have dropped what this thread had counted, or has.
        managed::merge_early(raw(m), header);
    }
    is_so() && !header.is_queued()
}

/// The common case of [`free`] for objects that take part in cycle collection: dying, untracked, without weak references or a
/// dictionary. `false`: nothing was done, ask [`free`].
///
/// # Safety
///
/// As for [`free`], and as for `track_common`.
#[inline]
pub unsafe fn free_common(m: &Mutator, object: NonNull<RawObject>) -> bool {
    // SAFETY: as the caller says.
    unsafe {
        // Such types take part in cycle collection, and have no dictionary.
        if !is_at_hand(m, object) || type_of(object).common_class.is_none() {
            return false;
        }
        let state = raw(m).core().state(object.as_ptr() as usize).get();
        let dying = state & (state::DYING | state::TRACKED) == state::DYING;
        if !dying || !header(object).as_ref().is_spent() {
            return false;
        }
        raw(m).free(object.cast());
        true
    }
}

/// Gives memory back, in checked mode by way of the quarantine.
pub(super) unsafe fn give_back(m: &Mutator, object: NonNull<RawObject>) {
    let model = raw(m).model();
    // SAFETY: as for `free`: the callers are done with the object.
    unsafe {
        if !model.is_checked() {
            raw(m).free(object.cast());
            return;
        }
        let core = raw(m).core();
        let address = object.as_ptr() as usize;
        let head = size_of::<RawObject>();
        let cell = core.space.memory(object.cast());
        cell.start().add(head).write_bytes(POISON, cell.room().behind(head));
        core.state(address).death();
        let footprint = core.space.page_of(address).shape().footprint();
        let kept = model.freed_objects.lock().push(HeaderPtr(object.cast()), footprint);
        if kept.is_err() {
            return raw(m).free(object.cast());
        }
        loop {
            // The lock is free again before the memory goes back.
            let oldest = model.freed_objects.lock().pop_excess();
            let Some(HeaderPtr(oldest)) = oldest else { return };
            raw(m).free(oldest.cast());
        }
    }
}

/// Calls an object's finalizer, unless that has been done.
///
/// # Safety
///
/// `object` is a living dynamic object of the mutator's heap, to which the caller has a reference.
pub unsafe fn call_finalizer(m: &Mutator, object: NonNull<RawObject>) {
    // SAFETY: as the caller says; rule H.
    unsafe {
        let record = type_of(object);
        let Some(finalize) = record.finalize else { return };
        if record.has_gc() || raw(m).owns(object_of(object)) {
            let state = raw(m).core().state(object.as_ptr() as usize);
            // Before the call: once, whatever it does.
            if state.set(state::FINALIZED) & state::FINALIZED != 0 {
                return;
            }
        }
        handlers::guarded(m, crate::During::Finalize, object, || finalize(object.as_ptr()));
    }
}

/// Calls a dying object's finalizer, in its dealloc handler; `true`: the object is alive again, and the handler is to return at
/// once.
///
/// # Safety
///
/// `object` is dying on this thread, in its dealloc handler.
pub unsafe fn call_finalizer_from_dealloc(m: &Mutator, object: NonNull<RawObject>) -> bool {
    // SAFETY: as the caller says.
    unsafe {
        if type_of(object).finalize.is_none() || is_finalized(m, object) {
            return false;
        }
        !managed::revived(raw(m), header(object), || call_finalizer(m, object))
    }
}

/// Kills the weak references of a dying object, and calls their callbacks.
///
/// # Safety
///
/// As for [`call_finalizer_from_dealloc`].
pub unsafe fn clear_weak_references(m: &Mutator, object: NonNull<RawObject>) {
    // SAFETY: as the caller says.
    unsafe { managed::clear_weak_references(raw(m), header(object)) };
}

/// The generic dealloc handler.
///
/// # Safety
///
/// As for [`call_finalizer_from_dealloc`].
#[inline]
pub unsafe fn dealloc(m: &Mutator, object: NonNull<RawObject>) {
    // SAFETY: as the caller says; rules D and H.
    unsafe {
        let record = type_of(object);
        if record.ends_simply && !is_checked(m) {
            end_simply(m, object, record);
        } else {
            end_in_full(m, object, record);
        }
    }
}

/// [`dealloc`], whatever there is to do.
#[inline(never)]
unsafe fn end_in_full(m: &Mutator, object: NonNull<RawObject>, record: &TypeRecord) {
    // SAFETY: as for `dealloc`.
    unsafe {
        let gc = record.has_gc();
        // Tracked as it was, while they run: one that comes back needs nothing done to it.
        if call_finalizer_from_dealloc(m, object) {
            return;
        }
        if record.del.is_some() {
            // A legacy finalizer finds them gone, as in CPython.
            clear_weak_references(m, object);
            if call_legacy(m, object, record) {
                return;
            }
        }
        if gc {
            // Dying: nobody else knows it.
            raw(m).core().state(object.as_ptr() as usize).change_plainly(0, state::TRACKED);
        }
        clear_weak_references(m, object);
        if record.flags().has(Flags::MANAGED_DICT) {
            attributes::clear_managed_dict(object);
        }
        // Kept past the object: its memory may be the last to hold the type.
        let type_object = NonNull::new(record.object);
        // Called by a type's own handler, this does the rest.
        let mut primary = std::iter::successors(Some(record), |record| record.base());
        let base = primary.find(|base| base.own_dealloc).filter(|_| !record.own_dealloc);
        if let Some(base) = base
            && let Some(dealloc) = base.dealloc
        {
            let base_is_heap_type = base.is_heap_type();
            dealloc(object.as_ptr());
            if let Some(type_object) = type_object.filter(|_| !base_is_heap_type) {
                drop(from_raw(type_object));
            }
            return;
        }
        if let Some(clear) = record.clear {
            handlers::guarded(m, crate::During::Clear, object, || {
                clear(object.as_ptr());
            });
        }
        (record.free)(object.as_ptr().cast());
        if let Some(type_object) = type_object {
            drop(from_raw(type_object));
        }
    }
}

/// [`dealloc`], where there is little to do.
#[inline(never)]
unsafe fn end_simply(m: &Mutator, object: NonNull<RawObject>, record: &TypeRecord) {
    // SAFETY: as for `dealloc`.
    unsafe {
        raw(m)
            .core()
            .state(object.as_ptr() as usize)
            .change_plainly(0, state::TRACKED | state::BY_ALLOCATOR);
        clear_weak_references(m, object);
        let type_object = NonNull::new(record.object);
        if let Some(clear) = record.clear {
            handlers::guarded(m, crate::During::Clear, object, || {
                clear(object.as_ptr());
            });
        }
        if header(object).as_ref().is_spent() {
            raw(m).free(object.cast());
        } else {
            (record.free)(object.as_ptr().cast());
        }
        if let Some(type_object) = type_object {
            drop(from_raw(type_object));
        }
    }
}

/// Calls the legacy finalizer of a dying object; `true`: it is alive again.
unsafe fn call_legacy(m: &Mutator, object: NonNull<RawObject>, record: &TypeRecord) -> bool {
    let Some(del) = record.del else { return false };
    // SAFETY: as for `dealloc`; rule H.
    unsafe {
        !managed::revived(raw(m), header(object), || {
            handlers::guarded(m, crate::During::Finalize, object, || del(object.as_ptr()));
        })
    }
}

/// Drops the last reference of an object that this thread has made and nobody else refers to; `false`: that is not so, and
/// nothing was done. The object's dealloc handler runs.
///
/// # Safety
///
/// As for `decref`. The thread holds no stop.
#[inline(always)]
#[must_use = "where nothing was done the caller still owns the reference"]
pub unsafe fn decref_last(m: &Mutator, object: NonNull<RawObject>) -> bool {
    // SAFETY: rule R: the reference keeps the object alive; an owner is attached to the object's heap.
    unsafe {
        let last = !safepoint::is_traversing() && header(object).as_ref().take_last(m.raw().id());
        if last {
            managed::destroy_dynamic_in_place(m.raw(), header(object), |raw| {
                call_dealloc(header(object), (&raw const *raw).cast());
            });
        }
        last
    }
}

#[inline]
pub(crate) unsafe fn call_dealloc(header: NonNull<Header>, m: *const ()) {
    let object = header.cast::<RawObject>();
    // SAFETY: rules Y, Z and H: a dying dynamic object; `m` is a mutator.
    unsafe {
        let record = type_of(object);
        match record.dealloc.filter(|_| record.own_dealloc) {
            Some(handler) => handler(object.as_ptr()),
            None => dealloc(mutator(m), object),
        }
    }
}

/// [`free`] as a slot.
pub(crate) unsafe extern "C" fn generic_free(object: *mut c_void) {
    let Some(object) = NonNull::new(object.cast::<RawObject>()) else { return };
    Mutator::with_current(|m| {
        // SAFETY: rule H: called at an object's end.
        unsafe {
            let family = if type_of(object).has_gc() { Family::Container } else { Family::Plain };
            if let Err(fault) = free(m, object, family) {
                raw(m).core().hooks.misuse(&fault);
            }
        }
    });
}
