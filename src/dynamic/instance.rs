//! How instances are allocated, and change their number of items.
//!
//! A traverse handler reads all fields of an instance, so a collection must not meet half an
//! object. Therefore the memory is cleared and the head is written before the object is published.
//! A new number of items makes a new object, so that the old address is invalid.

use std::borrow::Cow;
use std::ffi::c_void;
use std::fmt;
use std::ptr::NonNull;
use std::sync::atomic::Ordering;

use crate::base::fallible::{self, words};
use crate::dynamic::attributes::Attributes;
use crate::dynamic::dealloc::{self, Dying};
use crate::dynamic::handlers;
use crate::dynamic::object::{
    Obj, Part, RawObject, RawVarObject, TYPE_INDEX, from_raw, is_checked, refuse_in_traversal,
};
use crate::dynamic::record::{Defaults, Flags, TypeRecord};
use crate::memory::shape::GRANULE;
use crate::object::address::Object;
use crate::object::header::Header;
use crate::object::state;
use crate::report::error::{Code, Fault};
use crate::{AnyGc, Mutator};

/// The functions for types that are made in Rust, whose face is the record, or the type's object. A
/// static, because its address identifies the maker of a type.
pub(crate) static DEFAULTS: Defaults = Defaults {
    alloc: generic_alloc,
    gc_free: dealloc::generic_free,
    plain_free: dealloc::generic_free,
};

/// The most bytes that an instance, or a type's object, may have.
pub(super) const SIZE_LIMIT: usize = isize::MAX as usize / 2;

/// Allocates an instance of the type: zeroed, with one reference, and untracked, so that a
/// collection does not meet it before its constructor is done.
///
/// `items` is the number of items, 0 for types without, and `extra` bytes follow the object.
///
/// # Errors
///
/// When the number is negative, the type has no items, the size is too large, or there is no
/// memory. Also for `extra` bytes of a type with items, for the type of types, and in a traverse
/// handler.
pub fn allocate(
    m: &Mutator,
    record: &TypeRecord,
    items: isize,
    extra: usize,
) -> Result<NonNull<RawObject>, Fault> {
    allocate_as(m, record, items, extra, false).map(Obj::address)
}

/// As [`allocate_tracked`], without items. The handle owns the object's reference.
pub(super) fn allocate_handle(m: &Mutator, record: &TypeRecord) -> Result<AnyGc, Fault> {
    allocate_tracked(m, record, 0).map(handle)
}

/// Allocates an instance of a built-in type with these parts. It is tracked after `finish`.
pub(super) fn allocate_with<P: Part>(
    m: &Mutator,
    record: &TypeRecord,
    parts: P,
    finish: impl FnOnce(Obj<'_>) -> Result<(), Fault>,
) -> Result<AnyGc, Fault> {
    let parts = fallible::boxed(parts)?;
    let object = allocate_as(m, record, 0, 0, false)?;
    // If a later step fails, the handle drops the object with its parts.
    let made = handle(object.address());
    object.slot().map(|slot| slot.set(parts));
    finish(object)?;
    object.put_in(m);
    Ok(made)
}

/// The object of a heap type: untracked, of `size` bytes, with an empty tail.
pub(super) fn allocate_type(
    m: &Mutator,
    metatype: &TypeRecord,
    size: usize,
) -> Result<AnyGc, Fault> {
    let object = Fresh::of_size(m, metatype, size, true)?.into_object(None, false);
    Ok(handle(object.address()))
}

/// The handle to an object that a function of this file has just allocated.
fn handle(made: NonNull<RawObject>) -> AnyGc {
    // SAFETY: rule *new*: the handle takes over the only reference to the new object.
    unsafe { from_raw(made) }
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
    if is_checked(m)
        && record.has_gc()
        && !record.tried.load(Ordering::Relaxed)
        && let Err(fault) = handlers::check_fields(m, object, "allocation")
    {
        m.raw().core().hooks.misuse(&fault);
    }
    Ok(object.address())
}

/// The common case of [`allocate_tracked`]: a type that takes part in cycle collection, without
/// items or a dictionary, with small instances. `None`: [`allocate_tracked`] must be called.
///
/// A traverse handler must not call it, because this function makes no check.
#[inline(always)]
pub fn allocate_common(m: &Mutator, record: &TypeRecord) -> Option<NonNull<RawObject>> {
    let class = record.common_class?;
    if is_checked(m) {
        return None;
    }
    let cell = m.raw().allocate_cell(class).ok()?;
    // SAFETY: rule *new*: fresh memory, at least as large as an instance. Whole words can be
    // cleared, because cells are whole granules.
    unsafe {
        let object = cell.cast::<RawObject>();
        object.write(RawObject { header: Header::new(m.id(), TYPE_INDEX), record });
        let words = cell.cast::<u64>();
        let mut at = size_of::<RawObject>() / size_of::<u64>();
        while at * size_of::<u64>() < record.basic_size {
            // Volatile, because the compiler would make the loop a call, even for few words.
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
fn allocate_as<'m>(
    m: &'m Mutator,
    record: &TypeRecord,
    items: isize,
    extra: usize,
    tracked: bool,
) -> Result<Obj<'m>, Fault> {
    let tail = record.flags().has(Flags::MANAGED_DICT);
    if items == 0
        && extra == 0
        && record.item_size == 0
        && let Some(class) = record.class
        && !crate::safepoint::is_traversing()
    {
        let cell = m.raw().allocate_cell(class).map_err(|reason| no_memory(record, reason))?;
        let fresh = Fresh { m, record, cell, size: record.basic_size, tail };
        return Ok(fresh.into_object(None, tracked));
    }
    let size = instance_size(record, items, extra)?;
    let items = (record.item_size != 0).then_some(Items { number: items, contents: &[] });
    let object = Fresh::of_size(m, record, size, tail)?.into_object(items, false);
    if tracked && let Some(here) = object.here(m) {
        here.put_in();
        here.state().set(state::BY_ALLOCATOR);
    }
    Ok(object)
}

#[cold]
fn no_memory(record: &TypeRecord, reason: impl fmt::Display) -> Fault {
    Fault::new(Code::Memory, "allocation").of_type(record.kept_name()).because(words!("{reason}"))
}

/// Bytes of an instance, without its tail.
fn instance_size(record: &TypeRecord, items: isize, extra: usize) -> Result<usize, Fault> {
    const FUNCTION: &str = "allocation";
    let fault = |code, text: Cow<'static, str>| {
        Err(Fault::new(code, FUNCTION).of_type(record.kept_name()).because(text))
    };
    if record.is_metatype {
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

struct Items<'a> {
    number: isize,
    /// The bytes behind the number, as many as fit. The rest is zero.
    contents: &'a [u8],
}

/// Fresh memory for an object. It has `size` bytes, and a word more for a tail.
struct Fresh<'m, 'r> {
    m: &'m Mutator,
    record: &'r TypeRecord,
    cell: NonNull<u8>,
    size: usize,
    tail: bool,
}

impl<'m, 'r> Fresh<'m, 'r> {
    /// For an object of `size` bytes, at least as many as an instance has.
    fn of_size(
        m: &'m Mutator,
        record: &'r TypeRecord,
        size: usize,
        tail: bool,
    ) -> Result<Self, Fault> {
        refuse_in_traversal("allocation").map_err(|fault| fault.of_type(record.kept_name()))?;
        debug_assert!(size <= SIZE_LIMIT);
        let whole = size + if tail { size_of::<usize>() } else { 0 };
        let cell = m.raw().allocate(whole, GRANULE).map_err(|reason| no_memory(record, reason))?;
        Ok(Self { m, record, cell, size, tail })
    }

    /// Makes an object of the memory; `items`, if the type has items.
    #[inline(always)]
    fn into_object(self, items: Option<Items<'_>>, tracked: bool) -> Obj<'m> {
        let Self { m, record, cell, size, tail } = self;
        // SAFETY: rule *new*: the memory is fresh, and of that size. Objects with items have a word
        // for their number. No other thread has the address.
        unsafe {
            let object = cell.cast::<RawObject>();
            object.write(RawObject { header: Header::new(m.id(), TYPE_INDEX), record });
            let head = size_of::<RawObject>();
            cell.add(head).write_bytes(0, size - head);
            if let Some(items) = items {
                let head = size_of::<RawVarObject>();
                (*cell.cast::<RawVarObject>().as_ptr()).size = items.number;
                let contents = &items.contents[..items.contents.len().min(size - head)];
                cell.add(head)
                    .copy_from_nonoverlapping(NonNull::from(contents).cast(), contents.len());
            }
            let object = Obj::new(object);
            if tail {
                let cell = m.raw().core().space.memory(cell);
                cell.start().add(cell.room().last_word()).cast::<usize>().write(0);
            }
            if let Some(type_object) = record.type_object() {
                std::mem::forget(type_object.share());
            }
            let bits = if tracked { state::TRACKED | state::BY_ALLOCATOR } else { 0 };
            m.raw().publish_as(Object::new(cell), bits);
            object
        }
    }
}

/// Changes the number of an object's items, of which new ones are zero. The object moves: the old
/// address is invalid.
///
/// # Errors
///
/// The object is unchanged after an error.
///
/// - The object is tracked, or other references or weak references to it exist.
/// - Its type has no items, or takes no part in cycle collection.
/// - The number is negative or too large.
/// - The object's present number of items is larger than its cell.
/// - The object lies in another heap.
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
    if !old.is_last(m, 1) || m.raw().model().weak.has_references(old.header()) {
        return fault(Code::SharedResize);
    }
    let size = instance_size(record, items, 0)?;
    let dict = record.flags().has(Flags::MANAGED_DICT);
    let count = old.items();
    let Some(here) = old.here(m) else { return fault(Code::ForeignPointer) };
    let room = here.cell().room();
    // The cell limits the copy, because the program can write to the number.
    let most = if dict { room.last_word() } else { room.bytes() }.saturating_sub(record.basic_size);
    let before = match count.unsigned_abs().checked_mul(record.item_size) {
        Some(before) if before <= most => before,
        _ => {
            let text =
                format!("its number of items was changed to {count}, more than it has room for");
            return Err(old.fault(Code::BadSize, FUNCTION).because(text));
        }
    };
    // No overflow, because `instance_size` has checked this product.
    let after = items.unsigned_abs() * record.item_size;
    let head = size_of::<RawVarObject>();
    let fields = record.basic_size - head;
    // SAFETY: rule *bounds*: `before` was compared with the cell, and no other thread writes to the
    // object.
    let contents = unsafe {
        std::slice::from_raw_parts(object.cast::<u8>().add(head).as_ptr(), fields + before)
    };
    if is_checked(m)
        && record.flags().has(Flags::ITEMS_ARE_REFERENCES)
        && contents.iter().skip(fields + after).any(|&byte| byte != 0)
    {
        return fault(Code::CutReferences);
    }
    let contents = &contents[..fields + before.min(after)];
    let items = Items { number: items, contents };
    let new = Fresh::of_size(m, record, size, dict)?.into_object(Some(items), false);
    // SAFETY: rule *zero*: the caller gives up the only reference.
    let old = unsafe { Dying::new(m, old) };
    if let (Some(slot), Some(dict)) = (new.slot::<Attributes>(), old.take()) {
        slot.set(dict);
    }
    if here.state().get() & state::FINALIZED != 0
        && let Some(new) = new.here(m)
    {
        new.state().set(state::FINALIZED);
    }
    // Clears the record that earlier weak references left, because the address may be used again.
    old.clear_weak_references();
    // Released below, because the new object has its own reference to the type.
    let owned_type = old.take_type();
    old.give_back();
    owned_type.release();
    Ok(new.address())
}

/// The default allocator: [`allocate_tracked`] for a face that is a type's record or object.
pub(super) unsafe extern "C" fn generic_alloc(face: *mut c_void, items: isize) -> *mut RawObject {
    let made = Mutator::with_current(|m| {
        let face = NonNull::new(face)?;
        // SAFETY: rule *handlers*: a type with this allocator has its record as its face, or its
        // object, which lies in this heap.
        let record = unsafe {
            if m.raw().owns(Object::new(face.cast())) {
                Obj::new(face.cast()).describe()?
            } else {
                face.cast::<TypeRecord>().as_ref()
            }
        };
        allocate_tracked(m, record, items).ok()
    });
    made.flatten().map_or(std::ptr::null_mut(), NonNull::as_ptr)
}
