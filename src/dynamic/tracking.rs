//! The tracked set: which objects the collector looks at.

use std::ptr::NonNull;

use crate::Mutator;
use crate::base::error::{Code, Fault};
use crate::dynamic::handlers;
use crate::dynamic::object::{
    RawObject, fault_at, header, is_checked, is_static, object_of, raw, refuse_in_traversal,
    type_of,
};
use crate::object::state;

/// Puts an object into the tracked set.
///
/// # Errors
///
/// When its type takes no part in cycle collection, when it is tracked already (but for the first time after
/// `allocate_tracked`, which is silent), in a traverse handler, and in checked mode when a
/// field leads to what is no object: then it stays untracked.
///
/// # Safety
///
/// `object` is a living dynamic object of the mutator's heap, and its fields can be traversed.
pub unsafe fn track(m: &Mutator, object: NonNull<RawObject>) -> Result<(), Fault> {
    const FUNCTION: &str = "track";
    refuse_in_traversal(FUNCTION)?;
    // SAFETY: as the caller says.
    unsafe {
        let record = type_of(object);
        if !is_gc(object) || !raw(m).owns(object_of(object)) {
            return Err(fault_at(Code::NotGcObject, FUNCTION, object, record));
        }
        let state = raw(m).core().state(object.as_ptr() as usize);
        if state.get() & state::TRACKED != 0 {
            // Both ways to make an object are customary: the allocator has tracked it, and its constructor does.
            let before = if header(object).as_ref().is_alone(m.id()) {
                state.change_alone(0, state::BY_ALLOCATOR)
            } else {
                state.unset(state::BY_ALLOCATOR)
            };
            if before & state::BY_ALLOCATOR == 0 {
                return Err(fault_at(Code::AlreadyTracked, FUNCTION, object, record));
            }
            if is_checked(m) {
                handlers::check_fields(m, object, FUNCTION)?;
            }
            return Ok(());
        }
        if is_checked(m) {
            handlers::check_fields(m, object, FUNCTION)?;
        }
        raw(m).track(object_of(object));
    }
    Ok(())
}

/// The common case of [`track`]: nothing is wrong, and no code of the program's runs. `false`: nothing was done, ask [`track`].
///
/// # Safety
///
/// As for [`track`]. The heap is not in checked mode, and no traverse handler runs on this thread in a stop.
#[inline]
pub unsafe fn track_common(m: &Mutator, object: NonNull<RawObject>) -> bool {
    // SAFETY: as the caller says.
    unsafe {
        if !is_at_hand(m, object) {
            return false;
        }
        let state = raw(m).core().state(object.as_ptr() as usize);
        let now = state.get();
        if now & state::TRACKED == 0 {
            return is_common(object) && raw(m).track(object_of(object));
        }
        // Only objects that take part in cycle collection are tracked by the allocator.
        if now & state::BY_ALLOCATOR == 0 {
            return false;
        }
        let before = if header(object).as_ref().is_alone(m.id()) {
            state.change_alone(0, state::BY_ALLOCATOR)
        } else {
            state.unset(state::BY_ALLOCATOR)
        };
        before & state::BY_ALLOCATOR != 0
    }
}

/// The common case of [`untrack`]; as [`track_common`].
///
/// # Safety
///
/// As for [`untrack`], and as for [`track_common`].
#[inline]
pub unsafe fn untrack_common(m: &Mutator, object: NonNull<RawObject>) -> bool {
    // SAFETY: as the caller says.
    unsafe {
        if !is_at_hand(m, object) {
            return false;
        }
        let state = raw(m).core().state(object.as_ptr() as usize);
        let now = state.get();
        if now & (state::DYING | state::TRACKED) == state::DYING | state::TRACKED {
            // In its dealloc handler, which has it alone.
            state.change_plainly(0, state::TRACKED | state::BY_ALLOCATOR);
        } else if now & state::TRACKED != 0 {
            state.unset(state::TRACKED | state::BY_ALLOCATOR);
        } else {
            return is_common(object);
        }
        true
    }
}

/// Whether an object can be dealt with without a second look: it is the mutator's heap's.
#[inline(always)]
pub(super) fn is_at_hand(m: &Mutator, object: NonNull<RawObject>) -> bool {
    debug_assert!(!is_checked(m));
    raw(m).owns(object_of(object))
}

/// Whether an object takes part in cycle collection, and its type has no test of its own.
///
/// # Safety
///
/// As for [`track`].
#[inline(always)]
unsafe fn is_common(object: NonNull<RawObject>) -> bool {
    // SAFETY: as the caller says.
    let record = unsafe { type_of(object) };
    record.has_gc() && record.is_gc.is_none()
}

/// Takes an object out of the tracked set; nothing if it is not in it.
///
/// # Errors
///
/// When its type takes no part in cycle collection, and in a traverse handler.
///
/// # Safety
///
/// `object` is a living dynamic object of the mutator's heap.
pub unsafe fn untrack(m: &Mutator, object: NonNull<RawObject>) -> Result<(), Fault> {
    const FUNCTION: &str = "untrack";
    refuse_in_traversal(FUNCTION)?;
    // SAFETY: as the caller says.
    unsafe {
        if !is_gc(object) || !raw(m).owns(object_of(object)) {
            return Err(fault_at(Code::NotGcObject, FUNCTION, object, type_of(object)));
        }
        let state = raw(m).core().state(object.as_ptr() as usize);
        if state.get() & state::DYING != 0 {
            // In its dealloc handler, which has it alone.
            state.change_plainly(0, state::TRACKED | state::BY_ALLOCATOR);
        } else {
            state.unset(state::TRACKED | state::BY_ALLOCATOR);
        }
    }
    Ok(())
}

/// Takes a dying object out of the tracked set, in its dealloc handler.
///
/// # Safety
///
/// `object` is a dynamic object of the mutator's heap that is dying on this thread.
pub(crate) unsafe fn untrack_dying(m: &Mutator, object: NonNull<RawObject>) {
    // SAFETY: as the caller says: its dealloc handler has the object alone.
    unsafe { raw(m).core().state(object.as_ptr() as usize) }
        .change_plainly(0, state::TRACKED | state::BY_ALLOCATOR);
}

/// Whether an object is in the tracked set.
///
/// # Safety
///
/// `object` is a living dynamic object.
pub unsafe fn is_tracked(m: &Mutator, object: NonNull<RawObject>) -> bool {
    // SAFETY: as the caller says.
    raw(m).owns(object_of(object)) && unsafe { raw(m).is_tracked(object_of(object)) }
}

/// Whether an object's finalizer has been called.
///
/// # Safety
///
/// `object` is a living dynamic object.
pub unsafe fn is_finalized(m: &Mutator, object: NonNull<RawObject>) -> bool {
    // SAFETY: as the caller says.
    raw(m).owns(object_of(object)) && unsafe { raw(m).is_finalized(object_of(object)) }
}

/// Whether an object takes part in cycle collection: its type says so, and its own test, if there is one, agrees.
///
/// # Safety
///
/// `object` is a living dynamic object.
pub unsafe fn is_gc(object: NonNull<RawObject>) -> bool {
    // SAFETY: rules D and H. What is static is in no heap.
    unsafe {
        if is_static(object) {
            return false;
        }
        let record = type_of(object);
        record.has_gc() && record.is_gc.is_none_or(|test| test(object.as_ptr()) != 0)
    }
}
