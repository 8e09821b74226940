//! The allocation of instances.

use std::borrow::Cow;
use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::atomic::Ordering;

use crate::base::error::{Code, Fault};
use crate::base::text::words;
use crate::dynamic::builtin::METATYPE;
use crate::dynamic::dealloc::give_back;
use crate::dynamic::handlers;
use crate::dynamic::object::{
    Obj, RawObject, RawVarObject, TYPE_INDEX, is_checked, raw, refuse_in_traversal, tail_slot,
};
use crate::dynamic::record::{Flags, TypeRecord};
use crate::memory::space::GRANULE;
use crate::object::header::Header;
use crate::object::state;
use crate::object::type_info::Object;
use crate::{AnyGc, Mutator};

/// The most bytes that an instance, or a type's object, may have.
pub(super) const SIZE_LIMIT: usize = isize::MAX as usize / 2;

/// Allocates an instance of the type: zeroed, with one reference, untracked.
///
/// `items` is the number of items, 0 for types without. `extra` bytes follow the object.
///
/// # Errors
///
/// When the number is negative, the type has no items, the size is too large, or there is no
/// memory; in a traverse handler.
pub fn allocate(
    m: &Mutator,
    record: &TypeRecord,
    items: isize,
    extra: usize,
) -> Result<NonNull<RawObject>, Fault> {
    allocate_as(m, record, items, extra, false)
}

/// As [`allocate`], but tracked at once if the type takes part in cycle collection. The fields are
/// null.
///
/// # Errors
///
/// As for [`allocate`].
#[inline]
pub fn allocate_tracked(
    m: &Mutator,
    record: &TypeRecord,
    items: isize,
) -> Result<NonNull<RawObject>, Fault> {
    let object = allocate_as(m, record, items, 0, record.has_gc())?;
    if is_checked(m) && record.has_gc() && !record.tried.load(Ordering::Relaxed) {
        // SAFETY: rule *new*: just made.
        let made = unsafe { Obj::new(object) };
        if let Err(fault) = handlers::check_fields(m, made, "allocation") {
            raw(m).core().hooks.misuse(&fault);
        }
    }
    Ok(object)
}

/// The common case of [`allocate_tracked`]: a type that takes part in cycle collection, without
/// items or a dictionary, with small instances. `None`: [`allocate_tracked`] must be called.
///
/// # Safety
///
/// This thread runs no traverse handler.
#[inline(always)]
pub unsafe fn allocate_common(m: &Mutator, record: &TypeRecord) -> Option<NonNull<RawObject>> {
    let class = record.common_class?;
    if is_checked(m) {
        return None;
    }
    let cell = m.raw().allocate_cell(class).ok()?;
    // SAFETY: rule *new*: fresh memory, at least as large as an instance. Cells are whole granules,
    // so whole words can be cleared.
    unsafe {
        let object = cell.cast::<RawObject>();
        object.write(RawObject { header: Header::new(m.id(), TYPE_INDEX), record });
        let words = cell.cast::<u64>();
        let mut at = size_of::<RawObject>() / size_of::<u64>();
        while at * size_of::<u64>() < record.basic_size {
            // Volatile, so that the compiler does not make the loop a call: it clears few words.
            words.add(at).write_volatile(0);
            at += 1;
        }
        if let Some(type_object) = record.type_object() {
            own_type(type_object);
        }
        m.raw().publish_as(Object::new(cell), state::TRACKED | state::BY_ALLOCATOR);
        Some(object)
    }
}

/// Adds the reference that an instance owns to its heap type. A function of its own, so that
/// instances of static types need no registers for it.
#[inline(never)]
fn own_type(type_object: Obj<'_>) {
    std::mem::forget(type_object.share());
}

#[inline]
fn allocate_as(
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
        // The common case: the size is known.
        let size = record.basic_size + if record.flags().has(Flags::MANAGED_DICT) { 8 } else { 0 };
        let cell =
            m.raw().allocate_cell(class).map_err(|reason| memory(record, words!("{reason}")))?;
        // SAFETY: rule *new*: fresh memory of at least `size` bytes.
        return Ok(unsafe { be_born(m, record, cell, size, tracked) });
    }
    let size = instance_size(record, items, extra)?;
    let object = allocate_sized(m, record, size, record.flags().has(Flags::MANAGED_DICT))?;
    // SAFETY: rule *new*: just made. Objects with items have a word for their number.
    unsafe {
        if record.item_size != 0 {
            (*object.cast::<RawVarObject>().as_ptr()).size = items;
        }
        if tracked {
            m.raw().track(Object::new(object.cast()));
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
            "a type cannot be allocated; make it from a description".into(),
        );
    }
    let Ok(items) = usize::try_from(items) else {
        return fault(Code::BadSize, words!("the number of items is negative: {items}"));
    };
    if record.item_size == 0 && items != 0 {
        return fault(Code::NotResizable, "the type has no items".into());
    }
    if extra != 0 && record.item_size != 0 {
        return fault(Code::BadSize, "the extra bytes would overlap the items".into());
    }
    let size = items
        .checked_mul(record.item_size)
        .and_then(|bytes| bytes.checked_add(record.basic_size))
        .and_then(|bytes| bytes.checked_add(extra))
        .and_then(|bytes| bytes.checked_next_multiple_of(size_of::<usize>()));
    match size {
        Some(size) if size <= SIZE_LIMIT => Ok(size),
        _ => fault(Code::Memory, "the object would be larger than any object can be".into()),
    }
}

/// Allocates `size` bytes as an untracked object of a type, with or without a tail. The size is at
/// least that of an instance. If the type has managed dictionaries, the tail is null. Otherwise it
/// is uninitialised.
pub(super) fn allocate_sized(
    m: &Mutator,
    record: &TypeRecord,
    size: usize,
    tail: bool,
) -> Result<NonNull<RawObject>, Fault> {
    refuse_in_traversal("allocation").map_err(|fault| fault.of_type(record.kept_name()))?;
    debug_assert!(size <= SIZE_LIMIT);
    let whole = size + if tail { size_of::<usize>() } else { 0 };
    let cell =
        m.raw().allocate(whole, GRANULE).map_err(|reason| memory(record, words!("{reason}")))?;
    // SAFETY: rule *new*: fresh memory of that size.
    Ok(unsafe { be_born(m, record, cell, size, false) })
}

/// Makes an object of fresh memory.
///
/// # Safety
///
/// The memory has `size` bytes, and a word more for a tail.
#[inline(always)]
unsafe fn be_born(
    m: &Mutator,
    record: &TypeRecord,
    cell: NonNull<u8>,
    size: usize,
    tracked: bool,
) -> NonNull<RawObject> {
    let object = cell.cast::<RawObject>();
    // SAFETY: rule *new*: the memory is fresh, and of that size; no other thread has its address.
    unsafe {
        object.write(RawObject { header: Header::new(m.id(), TYPE_INDEX), record });
        let head = size_of::<RawObject>();
        cell.add(head).write_bytes(0, size - head);
        if record.flags().has(Flags::MANAGED_DICT) {
            tail_slot(object).store(std::ptr::null_mut(), Ordering::Release);
        }
        if let Some(type_object) = record.type_object() {
            std::mem::forget(type_object.share());
        }
        m.raw().publish_as(
            Object::new(cell),
            if tracked { state::TRACKED | state::BY_ALLOCATOR } else { 0 },
        );
    }
    object
}

/// Changes the number of an object's items. New items are zero. The object moves, and the old
/// address is invalid.
///
/// # Errors
///
/// The object is unchanged after an error.
///
/// - The object is tracked, shared, or has a weak record.
/// - Its type has no items, or takes no part in cycle collection.
/// - The number is negative or too large.
/// - The object's present number of items is larger than its cell.
/// - There is no memory.
/// - In checked mode: a reference would be cut off.
/// - A traverse handler runs on this thread.
///
/// # Safety
///
/// `object` is a living dynamic object of the mutator's heap. The caller owns its reference. On
/// success the caller gives it up, and owns the reference to the new object.
pub unsafe fn resize(
    m: &Mutator,
    object: NonNull<RawObject>,
    items: isize,
) -> Result<NonNull<RawObject>, Fault> {
    const FUNCTION: &str = "resize";
    refuse_in_traversal(FUNCTION)?;
    // SAFETY: as the caller says.
    let old = unsafe { Obj::new(object) };
    let record = old.record();
    let fault = |code| Err(old.fault(code, FUNCTION));
    if !record.has_gc() {
        return fault(Code::NotGcObject);
    }
    if record.item_size == 0 {
        return fault(Code::NotResizable);
    }
    if old.is_tracked(m) {
        return fault(Code::TrackedResize);
    }
    if !old.is_last(m, 1) || m.raw().model().weak.get(old.header_ptr()).is_some() {
        return fault(Code::SharedResize);
    }
    let size = instance_size(record, items, 0)?;
    let dict = record.flags().has(Flags::MANAGED_DICT);
    let count = old.items();
    // SAFETY: rule *mapped*: an object of this heap.
    let room = unsafe { m.raw().core().space.memory(object.cast()) }.room();
    // The program can write to the number, so the copy is limited by the cell.
    let most = if dict { room.last_word() } else { room.bytes() }.saturating_sub(record.basic_size);
    let before = match count.unsigned_abs().checked_mul(record.item_size) {
        Some(before) if before <= most => before,
        _ => {
            let text =
                format!("its number of items was changed to {count}, more than it has room for");
            return Err(old.fault(Code::BadSize, FUNCTION).because(text));
        }
    };
    // `instance_size` has checked this product.
    let after = items.unsigned_abs() * record.item_size;
    if is_checked(m) && record.flags().has(Flags::ITEMS_ARE_REFERENCES) {
        let mut cut = (after..before).step_by(size_of::<usize>());
        // SAFETY: rule *bounds*: `before` was compared with the cell.
        let at = |offset: usize| unsafe {
            object.cast::<u8>().add(record.basic_size + offset).cast::<usize>().read()
        };
        if cut.any(|offset| at(offset) != 0) {
            return fault(Code::CutReferences);
        }
    }
    let new = allocate_sized(m, record, size, dict)?;
    // Everything after the head, up to the end of the shorter object.
    let head = size_of::<RawObject>();
    let kept = record.basic_size - head + before.min(after);
    // SAFETY: rules *bounds* and *new*: both objects have that many bytes. This thread has
    // exclusive access to both.
    unsafe {
        object.cast::<u8>().add(head).copy_to_nonoverlapping(new.cast::<u8>().add(head), kept);
        (*new.cast::<RawVarObject>().as_ptr()).size = items;
        if dict {
            let dict = tail_slot(object).load(Ordering::Acquire);
            tail_slot(new).store(dict, Ordering::Release);
        }
        if old.is_finalized(m) {
            m.raw().core().state(new.as_ptr() as usize).set(state::FINALIZED);
        }
        give_back(m, object);
        if let Some(type_object) = NonNull::new(record.object) {
            // The reference of the old object: the new object has its own.
            drop(AnyGc::from_header(type_object.cast()));
        }
    }
    Ok(new)
}

/// The default allocator: [`allocate_tracked`] for a face that is a type's record or object.
pub(super) unsafe extern "C" fn generic_alloc(face: *mut c_void, items: isize) -> *mut RawObject {
    let made = Mutator::with_current(|m| {
        // SAFETY: rule *handlers*: a type with this allocator has its record or its object as its
        // face.
        let record = unsafe { record_of_face(m, face) }?;
        allocate_tracked(m, record, items).ok()
    });
    made.flatten().map_or(std::ptr::null_mut(), NonNull::as_ptr)
}

/// The record behind a default face: the face is the record itself, or the type's object.
///
/// # Safety
///
/// The face is null, or the default face of a type.
unsafe fn record_of_face<'a>(m: &Mutator, face: *mut c_void) -> Option<&'a TypeRecord> {
    let face = NonNull::new(face)?;
    // SAFETY: as the caller says: a type's object in this heap, or a static type's record.
    unsafe {
        if raw(m).owns(Object::new(face.cast())) {
            Obj::new(face.cast()).describe()
        } else {
            Some(face.cast::<TypeRecord>().as_ref())
        }
    }
}
