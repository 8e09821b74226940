//! Instances: allocation, the tracked set, and the end of an object.
//!
//! # The end
//!
//! When the count reaches 0 the object is *dying*, and its type's dealloc handler has it. The generic one finalizes
//! (which may bring it back), clears weak references, takes it out of the tracked set, lets its references go by whatever handler there
//! is, and gives the memory back. One written in C does the same by itself, in [`free`] at last. Until then the memory stays: a
//! handler that forgets leaks.
//!
//! In checked mode freed memory is poisoned, and kept in quarantine for a while, so that a stale address is recognised.

use std::borrow::Cow;
use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicPtr, Ordering};

use crate::Mutator;
use crate::base::error::{Code, Fault};
use crate::base::fallible::words;
use crate::dynamic::{
    Flags, METATYPE, RawObject, RawVarObject, TYPE_INDEX, TypeRecord, attributes, from_raw,
    handlers, header, raw, refuse_in_traversal, share, type_of,
};
use crate::managed;
use crate::memory::space::{GRANULE, Space};
use crate::object::header::Header;
use crate::object::state;
use crate::object::type_info::Object;
use crate::object::weak::Target;

/// The most bytes that an instance, or a type's object, may have.
pub(crate) const MOST: usize = isize::MAX as usize / 2;
/// What freed memory is filled with in checked mode.
const POISON: u8 = 0xdb;

/// The two kinds of objects, by who gives their memory back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// Those whose types take part in cycle collection.
    Container,
    /// The others.
    Plain,
}

fn object_of(object: NonNull<RawObject>) -> Object {
    Object::new(object.cast())
}

/// A fault concerning an object.
fn fault_at(
    code: Code,
    function: &'static str,
    object: NonNull<RawObject>,
    record: &TypeRecord,
) -> Fault {
    Fault::new(code, function).of_type(record.kept_name()).at(object.as_ptr() as usize)
}

/// Allocates an instance of the type: zeroed, with one reference, untracked.
///
/// `items`: how many, 0 for types without items. `extra`: bytes behind it all.
///
/// # Errors
///
/// When the number is negative, the type has no items, the size is too large, or there is no memory; in a traverse handler.
///
/// # Safety
///
/// The record is a ready type's, and the type is alive.
pub unsafe fn allocate(
    m: &Mutator,
    record: &TypeRecord,
    items: isize,
    extra: usize,
) -> Result<NonNull<RawObject>, Fault> {
    // SAFETY: as the caller says.
    unsafe { allocate_as(m, record, items, extra, false) }
}

/// As [`allocate`], tracked at once if the type takes part in cycle collection: its fields are null until somebody sets them.
///
/// # Errors
///
/// As for [`allocate`].
///
/// # Safety
///
/// As for [`allocate`].
#[inline]
pub unsafe fn allocate_tracked(
    m: &Mutator,
    record: &TypeRecord,
    items: isize,
) -> Result<NonNull<RawObject>, Fault> {
    // SAFETY: as the caller says.
    unsafe {
        let object = allocate_as(m, record, items, 0, record.has_gc())?;
        if super::is_checked(m)
            && record.has_gc()
            && !record.tried.load(Ordering::Relaxed)
            && let Err(fault) = handlers::check_fields(m, object, "allocation")
        {
            raw(m).core().hooks.misuse(&fault);
        }
        Ok(object)
    }
}

/// The common case of [`allocate_tracked`]: a type that takes part in cycle collection, without items or a dictionary, whose instances are
/// small. `None`: ask [`allocate_tracked`].
///
/// # Safety
///
/// As for [`allocate`]. No traverse handler is running on this thread.
#[inline(always)]
pub unsafe fn allocate_common(m: &Mutator, record: &TypeRecord) -> Option<NonNull<RawObject>> {
    let class = record.common_class?;
    if super::is_checked(m) {
        return None;
    }
    let cell = m.raw().allocate_cell(class).ok()?;
    // SAFETY: rule N: fresh memory of an instance's size at least. Cells are whole granules, so whole words can be
    // cleared.
    unsafe {
        let object = cell.cast::<RawObject>();
        object.write(RawObject { header: Header::new(m.id(), TYPE_INDEX), record });
        let words = cell.cast::<u64>();
        let mut at = size_of::<RawObject>() / size_of::<u64>();
        while at * size_of::<u64>() < record.basic_size {
            // Volatile, so that it is not made a call: there are a few of them.
            words.add(at).write_volatile(0);
            at += 1;
        }
        if let Some(type_object) = NonNull::new(record.object) {
            own_type(type_object);
        }
        m.raw().publish_as(object_of(object), state::TRACKED | state::BY_ALLOCATOR);
        Some(object)
    }
}

/// The reference that an instance owns to its heap type. By itself, so that instances of others need no registers for it.
#[inline(never)]
unsafe fn own_type(type_object: NonNull<RawObject>) {
    // SAFETY: rule R: the type is alive, as whoever allocates says. The instance owns what the handle does.
    std::mem::forget(unsafe { share(type_object) });
}

#[inline]
unsafe fn allocate_as(
    m: &Mutator,
    record: &TypeRecord,
    items: isize,
    extra: usize,
    tracked: bool,
) -> Result<NonNull<RawObject>, Fault> {
    if items == 0
        && extra == 0
        && record.item_size == 0
        && let Some(class) = record.class
        && !crate::safepoint::is_traversing()
    {
        // The common case: everything about the size is known.
        let size = record.basic_size + if record.flags().has(Flags::MANAGED_DICT) { 8 } else { 0 };
        let cell =
            m.raw().allocate_cell(class).map_err(|reason| memory(record, words!("{reason}")))?;
        // SAFETY: rule N: fresh memory of at least `size` bytes.
        return Ok(unsafe { be_born(m, record, cell, size, tracked) });
    }
    let size = instance_size(record, items, extra)?;
    // SAFETY: as for `allocate`.
    let object =
        unsafe { allocate_sized(m, record, size, record.flags().has(Flags::MANAGED_DICT)) }?;
    if record.item_size != 0 {
        // SAFETY: rule N: objects with items have the room for their number.
        unsafe { (*object.cast::<RawVarObject>().as_ptr()).size = items };
    }
    if tracked {
        // SAFETY: rule N: just made.
        unsafe {
            m.raw().track(object_of(object));
            m.raw().core().state(object.as_ptr() as usize).set(state::BY_ALLOCATOR);
        }
    }
    Ok(object)
}

#[cold]
fn memory(record: &TypeRecord, reason: Cow<'static, str>) -> Fault {
    Fault::new(Code::Memory, "allocation").of_type(record.kept_name()).because(reason)
}

/// Bytes of an instance, without its tail.
fn instance_size(record: &TypeRecord, items: isize, extra: usize) -> Result<usize, Fault> {
    const FUNCTION: &str = "allocation";
    let fault = |code, text: Cow<'static, str>| {
        Err(Fault::new(code, FUNCTION).of_type(record.kept_name()).because(text))
    };
    if std::ptr::eq(record, METATYPE.get()) {
        return fault(
            Code::WrongType,
            "a type is made from a description, and not allocated".into(),
        );
    }
    let Ok(items) = usize::try_from(items) else {
        return fault(Code::BadSize, words!("{items} items"));
    };
    if record.item_size == 0 && items != 0 {
        return fault(Code::NotResizable, "the type has no items".into());
    }
    if extra != 0 && record.item_size != 0 {
        return fault(Code::BadSize, "extra bytes would lie where the items do".into());
    }
    let size = items
        .checked_mul(record.item_size)
        .and_then(|bytes| bytes.checked_add(record.basic_size))
        .and_then(|bytes| bytes.checked_add(extra))
        .and_then(|bytes| bytes.checked_next_multiple_of(size_of::<usize>()));
    match size {
        Some(size) if size <= MOST => Ok(size),
        _ => fault(Code::Memory, "an object of this size cannot exist".into()),
    }
}

/// Allocates `size` bytes as an object of a type, untracked, with or without a tail. What is in the tail is not said, but for objects
/// with a dictionary, which have none yet.
///
/// # Safety
///
/// The record is a ready type's, and the type is alive; `size` is that of an instance at least.
pub(crate) unsafe fn allocate_sized(
    m: &Mutator,
    record: &TypeRecord,
    size: usize,
    tail: bool,
) -> Result<NonNull<RawObject>, Fault> {
    refuse_in_traversal("allocation").map_err(|fault| fault.of_type(record.kept_name()))?;
    debug_assert!(size <= MOST);
    let whole = size + if tail { size_of::<usize>() } else { 0 };
    let cell =
        m.raw().allocate(whole, GRANULE).map_err(|reason| memory(record, words!("{reason}")))?;
    // SAFETY: rule N: fresh memory of that size.
    Ok(unsafe { be_born(m, record, cell, size, false) })
}

/// Makes fresh memory an object.
#[inline(always)]
unsafe fn be_born(
    m: &Mutator,
    record: &TypeRecord,
    cell: NonNull<u8>,
    size: usize,
    tracked: bool,
) -> NonNull<RawObject> {
    let object = cell.cast::<RawObject>();
    // SAFETY: rule N: the memory is fresh, and of that size; nobody else knows it.
    unsafe {
        object.write(RawObject { header: Header::new(m.id(), TYPE_INDEX), record });
        let head = size_of::<RawObject>();
        cell.add(head).write_bytes(0, size - head);
        if record.flags().has(Flags::MANAGED_DICT) {
            set_tail(object, std::ptr::null_mut());
        }
        if let Some(type_object) = NonNull::new(record.object) {
            std::mem::forget(share(type_object));
        }
        m.raw().publish_as(
            object_of(object),
            if tracked { state::TRACKED | state::BY_ALLOCATOR } else { 0 },
        );
    }
    object
}

/// The last word of an object's room.
///
/// # Safety
///
/// The object lies in a heap, and was allocated with a tail.
pub(crate) unsafe fn tail_slot<'a>(object: NonNull<RawObject>) -> &'a AtomicPtr<c_void> {
    let address = object.as_ptr() as usize;
    // SAFETY: rules R and G: the object lives, so its heap's core does; its room is at least as large as was asked for,
    // the last word included.
    unsafe {
        let core = &*Space::heap_of(address).cast::<managed::Core>();
        let cell = core.space.memory(object.cast());
        cell.start().add(cell.room().last_word()).cast::<AtomicPtr<c_void>>().as_ref()
    }
}

/// # Safety
///
/// As for [`tail_slot`].
pub(crate) unsafe fn set_tail(object: NonNull<RawObject>, tail: *mut c_void) {
    // SAFETY: as the caller says. Release: who reads the word sees what it leads to.
    unsafe { tail_slot(object) }.store(tail, Ordering::Release);
}

/// # Safety
///
/// As for [`tail_slot`].
pub(crate) unsafe fn tail(object: NonNull<RawObject>) -> *mut c_void {
    // SAFETY: as the caller says. Acquire: pairs with the release in `set_tail`.
    unsafe { tail_slot(object) }.load(Ordering::Acquire)
}

/// How many items an object has; an error for one of a type without.
///
/// # Errors
///
/// See above.
///
/// # Safety
///
/// `object` is a living dynamic object.
pub unsafe fn size(object: NonNull<RawObject>) -> Result<isize, Fault> {
    // SAFETY: rule D; objects with items have their number there.
    unsafe {
        let record = type_of(object);
        if record.item_size == 0 {
            return Err(fault_at(Code::NotResizable, "size", object, record));
        }
        Ok((*object.cast::<RawVarObject>().as_ptr()).size)
    }
}

/// How many references there are; `None`: the object is immortal. A snapshot.
///
/// # Safety
///
/// `object` is a living dynamic object.
pub unsafe fn count(object: NonNull<RawObject>) -> Option<i64> {
    // SAFETY: as the caller says.
    unsafe { header(object).as_ref() }.count()
}

/// Gives an object another number of items. It may move: the old address is dead then. New items are zero.
///
/// # Errors
///
/// When the object is tracked, shared, or weakly referred to, is of a type without items or without cycle collection, the
/// number is negative or too large, the number that the object says it has is more than it has room for, there is no memory, or in
/// checked mode a reference would be cut off. The object is as it was then.
///
/// # Safety
///
/// `object` is a living dynamic object of the mutator's heap; the caller owns its reference, and gives it up for
/// the new one if this succeeds.
pub unsafe fn resize(
    m: &Mutator,
    object: NonNull<RawObject>,
    items: isize,
) -> Result<NonNull<RawObject>, Fault> {
    const FUNCTION: &str = "resize";
    refuse_in_traversal(FUNCTION)?;
    // SAFETY: rule D, and as the caller says; the new object is as large as its type and number ask.
    unsafe {
        let record = type_of(object);
        let fault = |code| Err(fault_at(code, FUNCTION, object, record));
        if !record.has_gc() {
            return fault(Code::NotGcObject);
        }
        if record.item_size == 0 {
            return fault(Code::NotResizable);
        }
        if is_tracked(m, object) {
            return fault(Code::TrackedResize);
        }
        if !is_last(m, object, 1) || m.raw().model().weak.get(header(object)).is_some() {
            return fault(Code::SharedResize);
        }
        let size = instance_size(record, items, 0)?;
        let dict = record.flags().has(Flags::MANAGED_DICT);
        let count = (*object.cast::<RawVarObject>().as_ptr()).size;
        // The number lies where the object's user can write to it: no more is copied than there is.
        let room = m.raw().core().space.memory(object.cast()).room();
        let most =
            if dict { room.last_word() } else { room.bytes() }.saturating_sub(record.basic_size);
        let before = match count.unsigned_abs().checked_mul(record.item_size) {
            Some(before) if before <= most => before,
            _ => {
                let text =
                    format!("its number of items was changed to {count}, which it has no room for");
                return Err(fault_at(Code::BadSize, FUNCTION, object, record).because(text));
            }
        };
        // `instance_size` has looked at this product.
        let after = items.unsigned_abs() * record.item_size;
        if super::is_checked(m) && record.flags().has(Flags::ITEMS_ARE_REFERENCES) {
            let cut = (after..before).step_by(size_of::<usize>());
            let at = |offset: usize| {
                object.cast::<u8>().add(record.basic_size + offset).cast::<usize>().read()
            };
            if cut.map(at).any(|item| item != 0) {
                return fault(Code::CutReferences);
            }
        }
        let new = allocate_sized(m, record, size, dict)?;
        // Everything between header and record, and the end of what both have.
        let head = size_of::<RawObject>();
        let kept = record.basic_size - head + before.min(after);
        object.cast::<u8>().add(head).copy_to_nonoverlapping(new.cast::<u8>().add(head), kept);
        (*new.cast::<RawVarObject>().as_ptr()).size = items;
        if dict {
            set_tail(new, tail(object));
        }
        let was_finalized = m.raw().is_finalized(object_of(object));
        if was_finalized {
            m.raw().core().state(new.as_ptr() as usize).set(state::FINALIZED);
        }
        give_back(m, object);
        if let Some(type_object) = NonNull::new(record.object) {
            // The new object has its own.
            drop(from_raw(type_object));
        }
        Ok(new)
    }
}

/// Puts an object into the tracked set.
///
/// # Errors
///
/// When its type takes no part in cycle collection, when it is tracked already (but for the first time after
/// [`allocate_tracked`], which is silent), in a traverse handler, and in checked mode when a
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
            if super::is_checked(m) {
                handlers::check_fields(m, object, FUNCTION)?;
            }
            return Ok(());
        }
        if super::is_checked(m) {
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
fn is_at_hand(m: &Mutator, object: NonNull<RawObject>) -> bool {
    debug_assert!(!super::is_checked(m));
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
        if super::is_static(object) {
            return false;
        }
        let record = type_of(object);
        record.has_gc() && record.is_gc.is_none_or(|test| test(object.as_ptr()) != 0)
    }
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
unsafe fn is_last(m: &Mutator, object: NonNull<RawObject>, count: i64) -> bool {
    // SAFETY: as the caller says.
    let header = unsafe { header(object).as_ref() };
    let is_so = || header.count() == Some(count);
    if is_so() && count > 0 && header.is_queued() {
        // Others have dropped what this thread had counted, or has.
        managed::leave_queue(raw(m), header);
    }
    is_so() && !header.is_queued()
}

/// The common case of [`free`] for objects that take part in cycle collection: dying, untracked, without weak references or a
/// dictionary. `false`: nothing was done, ask [`free`].
///
/// # Safety
///
/// As for [`free`], and as for [`track_common`].
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
unsafe fn give_back(m: &Mutator, object: NonNull<RawObject>) {
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
        let kept = model.quarantine.lock().keep(Target(object.cast()), footprint);
        if kept.is_err() {
            return raw(m).free(object.cast());
        }
        loop {
            // The lock is free again before the memory goes back.
            let oldest = model.quarantine.lock().release();
            let Some(Target(oldest)) = oldest else { return };
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
        if record.ends_simply && !super::is_checked(m) {
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

/// [`allocate_tracked`] as a slot, for types whose face is their record or object.
pub(crate) unsafe extern "C" fn generic_alloc(face: *mut c_void, items: isize) -> *mut RawObject {
    // SAFETY: rule H: called with a type's face, by a runtime without a better function: its object, or the record.
    let made = Mutator::with_current(|m| unsafe {
        let record = record_of_face(m, face)?;
        allocate_tracked(m, record, items).ok()
    });
    made.flatten().map_or(std::ptr::null_mut(), NonNull::as_ptr)
}

/// The record behind a face that no runtime has given: the record itself, or the type's object.
unsafe fn record_of_face<'a>(m: &Mutator, face: *mut c_void) -> Option<&'a TypeRecord> {
    let face = NonNull::new(face)?;
    if raw(m).owns(Object::new(face.cast())) {
        // SAFETY: rule H: an object of this heap, and a type's, as whoever calls the slot says.
        unsafe { super::describe(face.cast()) }
    } else {
        // SAFETY: rule H: a static type's record.
        Some(unsafe { face.cast::<TypeRecord>().as_ref() })
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
