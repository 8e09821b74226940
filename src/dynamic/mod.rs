//! Floor 5: dynamic objects: types made at run time, with handlers, as in CPython's object protocol.
//!
//! For runtimes whose objects have types that a program makes: classes, extension types, modules. The C ABI (the
//! package `standstill-capi`) is this module with C's names. Dynamic and typed objects live in one heap, refer to
//! each other ([`AnyGc`] is a handle to either), and are collected together.
//!
//! # An object
//!
//! ```text
//!  0          16         24         32
//! +----------+----------+----------+----------------------+-----------+------+
//! | header   | record   | (items)  | fields …             | items …   | tail |
//! +----------+----------+----------+----------------------+-----------+------+
//!                        only of types with an item size               last word of the cell
//! ```
//!
//! The *record* is the type as the collector sees it: sizes, handlers, bases. It does not change after the type was made
//! ready. Sizes count from the object's first byte, as CPython's do. The *tail* is there for objects with a managed
//! dictionary, and for heap types.
//!
//! # A type
//!
//! is *static* (its record lives for ever, and nobody counts it) or a *heap type*: an object itself, whose tail leads
//! to the record, and to which each instance owns a reference. A type has a *face*: the address by which a runtime knows it.
//! For a heap type that is its object; for a static one whatever the runtime says (in C: its `PyTypeObject`).
//!
//! # Who runs what, when
//!
//! | handler | world | may |
//! |---|---|---|
//! | traverse | stopped, on any thread, several at once | call the visitor, and what is listed as safe |
//! | finalize, weak callbacks | running, in steps 8 and 10, or at count 0 | anything but a safepoint |
//! | clear | running, in step 10 | the same |
//! | dealloc | running, at count 0, on the thread that brought it there | the same |
//!
//! A handler written in Rust catches its own panics: one that leaves an `extern "C"` function aborts the process, as everywhere in
//! Rust. (The finalizer of a [`Class`] may panic: that goes to the hook.)
//!
//! A handler that breaks its rules can leak, or empty a live object; it cannot make the collector free memory that
//! is referred to, since nothing is freed but at count 0. What is noticed goes to
//! [`Heap::on_misuse`](crate::Heap::on_misuse).
//!
//! # Rules
//!
//! cited by their letters where unsafe code relies on them:
//!
//! * **D** (dynamic): a header with type index 0 belongs to a dynamic object, and is followed by the address of
//!   a record. The record of a living object lives: static ones for ever, others as long as their type's object, to
//!   which the instance owns a reference.
//! * **E** (exclusive): fields of an object may be read and written by whoever is attached and holds a reference, as the
//!   runtime's own locking arranges it. A stop finds nobody in the middle of it.
//! * **H** (handlers): a handler is what its type's maker said it is. Making a type with handlers is unsafe, for this reason.

mod attributes;
mod class;
mod handlers;
mod instance;
mod module;
mod types;
mod weakref;

use std::ffi::{c_int, c_void};
use std::fmt;
use std::ptr::NonNull;

use crate::base::error::{Code, Fault};
use crate::managed::{self, Raw};
use crate::object::header::Header;
use crate::safepoint;
use crate::{AnyGc, Mutator};

pub use attributes::{
    clear_managed_dict, get_attribute, has_attribute, set_attribute, visit_managed_dict,
};
pub use class::{Class, Finalizer};
pub use handlers::{note, referents};
pub use instance::{
    Family, allocate, allocate_common, allocate_tracked, call_finalizer,
    call_finalizer_from_dealloc, clear_weak_references, count, dealloc, free, free_common,
    is_finalized, is_gc, is_tracked, resize, size, track, track_common, untrack, untrack_common,
};
pub use module::{
    ModuleSpec, module_face, module_name, module_state, module_token, new_module, type_module,
    type_module_by_token,
};
pub(crate) use types::make_builtins;
pub use types::{
    BASE, Defaults, FACE, Flags, METATYPE, MODULE, Slots, Type, TypeRecord, TypeSpec, WEAKREF,
    base_by_token, describe, item_data, ready_heap, ready_static, type_data,
};
pub use weakref::{WeakCall, new_weakref, weakref_target};

/// The start of every dynamic object: 24 bytes.
///
/// Only its address means something outside of this module.
#[repr(C)]
pub struct RawObject {
    header: Header,
    record: *const TypeRecord,
}

/// The start of a dynamic object with items: 32 bytes.
#[repr(C)]
pub struct RawVarObject {
    base: RawObject,
    size: isize,
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

pub(crate) use handlers::INFO;

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

fn header(object: NonNull<RawObject>) -> NonNull<Header> {
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

/// Drops the last reference of an object that this thread has made and nobody else refers to; `false`: that is not so, and
/// nothing was done. The object's dealloc handler runs.
///
/// # Safety
///
/// As for [`decref`]. The thread holds no stop.
#[inline(always)]
#[must_use = "where nothing was done the caller still owns the reference"]
pub unsafe fn decref_last(m: &Mutator, object: NonNull<RawObject>) -> bool {
    // SAFETY: rule R: the reference keeps the object alive; an owner is attached to the object's heap.
    unsafe {
        let last = !safepoint::is_traversing() && header(object).as_ref().take_last(m.raw().id());
        if last {
            managed::end(m.raw(), header(object), |raw| {
                handlers::dealloc(header(object), (&raw const *raw).cast());
            });
        }
        last
    }
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

/// What an address is, as far as looking it up can tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Address {
    /// A living object of the mutator's heap.
    Live,
    /// An immortal object outside of all heaps, by what lies there.
    Static,
    /// An object of the mutator's heap that was freed.
    Freed,
    /// In a heap, but no object of the mutator's.
    Foreign,
    /// Memory outside of all heaps, with no immortal object in it.
    Outside,
    /// Nothing that could be read.
    Nowhere,
}

/// Looks an address up in the mutator's heap: what checked mode does with every pointer that comes in.
///
/// # Safety
///
/// Outside of all heaps the address is looked at if it can be read; nobody may take it away meanwhile.
pub unsafe fn look_up(m: &Mutator, object: NonNull<RawObject>) -> Address {
    look_up_in(m.raw().core(), object)
}

/// As [`look_up`], wherever this thread is: in a traverse handler the heap is the one that is traversed. `None`: the thread has no
/// heap, or one that is not in checked mode.
///
/// # Safety
///
/// As for [`look_up`].
pub unsafe fn look_up_here(object: NonNull<RawObject>) -> Option<Address> {
    let looked = |core: &managed::Core| core.model.is_checked().then(|| look_up_in(core, object));
    match handlers::traversed_heap() {
        Some(core) => looked(core),
        None => Mutator::with_current(|m| looked(m.raw().core())).flatten(),
    }
}

fn look_up_in(core: &managed::Core, object: NonNull<RawObject>) -> Address {
    let address = object.as_ptr() as usize;
    if !core.space.contains(address) {
        return look_outside(object);
    }
    if !core.space.starts_at(address) {
        return Address::Foreign;
    }
    // SAFETY: rule G: an object can start there, so its page was handed out.
    let state = unsafe { core.state(address) }.get();
    if state & crate::object::state::LIVE != 0 { Address::Live } else { Address::Freed }
}

/// What lies at an address that is not the heap's own.
fn look_outside(object: NonNull<RawObject>) -> Address {
    let address = object.as_ptr() as usize;
    if crate::memory::space::is_in_any_heap(address) {
        Address::Foreign
    } else if is_static_at(object) {
        Address::Static
    } else if crate::base::system::is_readable(address, size_of::<RawObject>()) {
        Address::Outside
    } else {
        Address::Nowhere
    }
}

/// Whether an object lies outside of all heaps. By its count alone it might also be one of a heap, merged and immortal.
///
/// # Safety
///
/// `object` is a living dynamic object.
unsafe fn is_static(object: NonNull<RawObject>) -> bool {
    // SAFETY: as the caller says.
    unsafe { header(object).as_ref() }.is_static()
        && !crate::memory::space::is_in_any_heap(object.as_ptr() as usize)
}

/// Whether a static object is at an address outside of all heaps, by what lies there; no, where nothing does.
fn is_static_at(object: NonNull<RawObject>) -> bool {
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
fn refuse_in_traversal(function: &'static str) -> Result<(), Fault> {
    if safepoint::is_traversing() {
        return Err(Fault::new(Code::InTraversal, function));
    }
    Ok(())
}

fn raw(m: &Mutator) -> &Raw {
    m.raw()
}
