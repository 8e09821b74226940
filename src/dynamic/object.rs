//! An object's layout, and its references.

use std::ffi::{c_int, c_void};
use std::fmt;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicPtr, Ordering};

use crate::base::error::{Code, Fault};
use crate::dynamic::record::TypeRecord;
use crate::managed::{self, Raw};
use crate::memory::space::Space;
use crate::object::header::Header;
use crate::object::type_info::Object;
use crate::safepoint;
use crate::{AnyGc, Mutator};

/// The start of every dynamic object: 24 bytes.
///
/// Only its address means something outside of this module.
#[repr(C)]
pub struct RawObject {
    pub(super) header: Header,
    pub(super) record: *const TypeRecord,
}

/// The start of a dynamic object with items: 32 bytes.
#[repr(C)]
pub struct RawVarObject {
    base: RawObject,
    pub(super) size: isize,
}

const _: () = assert!(size_of::<RawObject>() == 24 && size_of::<RawVarObject>() == 32);

impl fmt::Debug for RawObject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RawObject({:p})", &raw const *self)
    }
}

impl fmt::Debug for RawVarObject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RawVarObject({:p})", &raw const *self)
    }
}

impl RawObject {
    /// An immortal object outside any heap, for statics: it is counted by nobody, and of no type until
    /// [`set_static_type`] says so.
    pub const fn immortal() -> Self {
        Self { header: Header::immortal(), record: std::ptr::null() }
    }
}

/// Called by a traverse handler for each reference, with the argument that the handler was given. What is not 0 is to be
/// returned at once.
pub type VisitProc = unsafe extern "C" fn(*mut RawObject, *mut c_void) -> c_int;

/// Visits what an object refers to.
pub type TraverseProc = unsafe extern "C" fn(*mut RawObject, VisitProc, *mut c_void) -> c_int;

/// Answers a question about an object, or clears it.
pub type Inquiry = unsafe extern "C" fn(*mut RawObject) -> c_int;

/// Finalizes or destroys an object.
pub type Destructor = unsafe extern "C" fn(*mut RawObject);

/// Makes an instance of the type with this face.
pub type AllocProc = unsafe extern "C" fn(*mut c_void, isize) -> *mut RawObject;

/// Gives an object's memory back.
pub type FreeProc = unsafe extern "C" fn(*mut c_void);

/// The type index of dynamic objects, in every heap: rule D.
pub(crate) const TYPE_INDEX: u32 = 0;

/// The record of an object's type.
///
/// # Safety
///
/// `object` is a living dynamic object. The record is borrowed from it: rule D.
#[inline(always)]
pub unsafe fn type_of<'a>(object: NonNull<RawObject>) -> &'a TypeRecord {
    // SAFETY: rule D.
    unsafe { &*(*object.as_ptr()).record }
}

/// The record of an object's type; `None`: it is static, and nobody has given it a type yet.
///
/// # Safety
///
/// As for [`type_of`].
pub unsafe fn try_type_of<'a>(object: NonNull<RawObject>) -> Option<&'a TypeRecord> {
    // SAFETY: rule D; a static's word is null until it is set.
    unsafe { (*object.as_ptr()).record.as_ref() }
}

/// Gives a static object its type.
///
/// # Safety
///
/// The object lies in a static, is [immortal](RawObject::immortal), and nobody else looks at it now.
pub unsafe fn set_static_type(object: NonNull<RawObject>, record: &'static TypeRecord) {
    // SAFETY: as the caller says.
    unsafe { (*object.as_ptr()).record = record };
}

pub(super) fn header(object: NonNull<RawObject>) -> NonNull<Header> {
    object.cast()
}

/// Adds a reference; `false`: refused, in a traverse handler. Who wants a handle calls [`share`], which is never refused.
///
/// # Safety
///
/// The caller has a reference to the object.
#[inline(always)]
#[must_use = "where this is refused no reference was added"]
pub unsafe fn incref(object: NonNull<RawObject>) -> bool {
    let current = safepoint::current();
    // SAFETY: rule R: the caller's reference keeps the object alive.
    let header = unsafe { header(object).as_ref() };
    if header.is_owned_by(current) {
        header.clone_ref(current);
        return true;
    }
    incref_slow(header, current)
}

#[inline(never)]
fn incref_slow(header: &Header, current: u64) -> bool {
    if safepoint::is_traversing() {
        return false;
    }
    // An immortal's count means nothing, and its line may be shared by everybody.
    if header.count().is_some() {
        header.clone_ref(current);
    }
    true
}

/// A handle with a reference of its own to an object to which the caller has one. In a traverse handler, too: there the reference
/// is counted as another thread's would be.
///
/// # Safety
///
/// The caller has a reference to the object.
#[inline(always)]
pub unsafe fn share(object: NonNull<RawObject>) -> AnyGc {
    // SAFETY: as the caller says; the handle owns the reference that is counted here.
    unsafe {
        if !incref(object) {
            share_in_traversal(header(object).as_ref());
        }
        from_raw(object)
    }
}

#[cold]
#[inline(never)]
fn share_in_traversal(header: &Header) {
    // As in `incref_slow`.
    if header.count().is_some() {
        header.clone_ref(safepoint::current());
    }
}

/// Drops a reference; `false`: refused, in a traverse handler. Dropping a [handle](from_raw) is never refused.
///
/// # Safety
///
/// The caller owns the reference, and gives it up.
#[inline(always)]
#[must_use = "where this is refused the caller still owns the reference"]
pub unsafe fn decref(object: NonNull<RawObject>) -> bool {
    // SAFETY: rule R: the reference keeps the object alive.
    if unsafe { header(object).as_ref() }.try_drop_local(safepoint::current()) {
        return true;
    }
    // SAFETY: as the caller says.
    unsafe { decref_slow(object) }
}

/// The common case of [`decref`]: the calling thread owns the object, and there are other references. `false`: nothing was done, ask
/// [`decref`].
///
/// # Safety
///
/// As for [`decref`].
#[inline(always)]
#[must_use = "where nothing was done the caller still owns the reference"]
pub unsafe fn decref_common(object: NonNull<RawObject>) -> bool {
    // SAFETY: rule R: the reference keeps the object alive.
    unsafe { header(object).as_ref() }.try_drop_local(safepoint::current())
}

/// Drops a reference where [`decref_common`] could not; `false`: refused, in a traverse handler.
///
/// # Safety
///
/// As for [`decref`].
#[inline(never)]
#[must_use = "where this is refused the caller still owns the reference"]
pub unsafe fn decref_slow(object: NonNull<RawObject>) -> bool {
    // SAFETY: as the caller says. An owner is attached, and in no traversal.
    unsafe {
        if header(object).as_ref().is_owned_by(safepoint::current()) {
            managed::drop_slowly(header(object));
            return true;
        }
    }
    if safepoint::is_traversing() {
        return false;
    }
    // SAFETY: as the caller says. An immortal may lie in no heap.
    unsafe {
        if header(object).as_ref().count().is_some() {
            managed::drop_reference(header(object));
        }
    }
    true
}

/// A handle to an object, from a reference that the caller gives up.
///
/// # Safety
///
/// The caller owns a reference to the object, which lies in a heap.
pub unsafe fn from_raw(object: NonNull<RawObject>) -> AnyGc {
    // SAFETY: as the caller says.
    unsafe { AnyGc::from_header(header(object)) }
}

/// The address of the object that a handle refers to. It holds no reference.
pub fn as_raw(gc: &AnyGc) -> NonNull<RawObject> {
    gc.header().cast()
}

/// The reference of a handle, as an address.
pub fn into_raw(gc: AnyGc) -> NonNull<RawObject> {
    let gc = std::mem::ManuallyDrop::new(gc);
    gc.header().cast()
}

/// Whether a handle refers to a dynamic object.
pub fn is_dynamic(gc: &AnyGc) -> bool {
    // SAFETY: rule R: the handle keeps the object alive.
    unsafe { gc.header().as_ref() }.type_index() == TYPE_INDEX
}

pub(super) fn object_of(object: NonNull<RawObject>) -> Object {
    Object::new(object.cast())
}

/// A fault concerning an object.
pub(super) fn fault_at(
    code: Code,
    function: &'static str,
    object: NonNull<RawObject>,
    record: &TypeRecord,
) -> Fault {
    Fault::new(code, function).of_type(record.kept_name()).at(object.as_ptr() as usize)
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
        let core = &*Space::heap_of(address).cast::<managed::ManagedCore>();
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

/// Whether an object lies outside of all heaps. By its count alone it might also be one of a heap, merged and immortal.
///
/// # Safety
///
/// `object` is a living dynamic object.
pub(super) unsafe fn is_static(object: NonNull<RawObject>) -> bool {
    // SAFETY: as the caller says.
    unsafe { header(object).as_ref() }.is_static()
        && !crate::memory::space::is_in_any_heap(object.as_ptr() as usize)
}

/// Whether a static object is at an address outside of all heaps, by what lies there; no, where nothing does.
pub(super) fn is_static_at(object: NonNull<RawObject>) -> bool {
    let address = object.as_ptr() as usize;
    address.is_multiple_of(align_of::<RawObject>())
        && crate::base::system::is_readable(address, size_of::<Header>())
        // SAFETY: rule B: readable, and not a heap's.
        && unsafe { header(object).as_ref() }.is_static()
}

/// Whether the mutator's heap is in checked mode.
#[inline]
pub fn is_checked(m: &Mutator) -> bool {
    m.raw().model().is_checked()
}

/// Fails outside of traversals as `function` unless the mutator can be used for what changes objects.
pub(super) fn refuse_in_traversal(function: &'static str) -> Result<(), Fault> {
    if safepoint::is_traversing() {
        return Err(Fault::new(Code::InTraversal, function));
    }
    Ok(())
}

pub(super) fn raw(m: &Mutator) -> &Raw {
    m.raw()
}
