//! The allocation of instances.

use std::borrow::Cow;
use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::atomic::Ordering;

use crate::Mutator;
use crate::base::error::{Code, Fault};
use crate::base::text::words;
use crate::dynamic::builtin::{METATYPE, describe};
use crate::dynamic::dealloc::{give_back, is_last};
use crate::dynamic::handlers;
use crate::dynamic::object::{
    RawObject, RawVarObject, TYPE_INDEX, fault_at, from_raw, header, is_checked, object_of, raw,
    refuse_in_traversal, set_tail, share, tail, type_of,
};
use crate::dynamic::record::{Flags, TypeRecord};
use crate::dynamic::tracking::is_tracked;
use crate::memory::space::GRANULE;
use crate::object::header::Header;
use crate::object::state;
use crate::object::type_info::Object;

/// The most bytes that an instance, or a type's object, may have.
pub(crate) const MOST: usize = isize::MAX as usize / 2;

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
        if is_checked(m)
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
    if is_checked(m) {
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
        if is_checked(m) && record.flags().has(Flags::ITEMS_ARE_REFERENCES) {
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
        unsafe { describe(face.cast()) }
    } else {
        // SAFETY: rule H: a static type's record.
        Some(unsafe { face.cast::<TypeRecord>().as_ref() })
    }
}
