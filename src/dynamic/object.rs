//! A dynamic object as pointers see it: its layout, references to it, and parts outside the cell.
//!
//! A runtime passes objects as bare addresses, which tell the compiler neither lifetime nor layout.
//! So an address becomes an [`Obj`] or a [`Head`], by a promise that makes their methods safe.
//!
//! # Parts
//!
//! Some data of an object, for example its managed dictionary, lies outside of its cell, behind a
//! pointer that the object owns. A module and a weak reference have this pointer behind the head.
//! Instances with a dictionary and the objects of heap types have it in the tail, the last word of
//! the cell. The pointer is null until the part is complete, and is set once, so that a traversal
//! never meets half a part. It is taken out only of a dying object, because nothing else then uses
//! the part.

use std::ffi::{c_int, c_void};
use std::fmt;
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::ptr::NonNull;

use crate::base::shared::OnceBox;
use crate::base::system::is_readable;
use crate::dynamic::attributes::Attributes;
use crate::dynamic::dealloc::Dying;
use crate::dynamic::handlers::traversed_heap;
use crate::dynamic::record::{Flags, TypeRecord};
use crate::managed::{self, ManagedCore};
use crate::memory::range::is_in_any_heap;
use crate::memory::space::Space;
use crate::object::address::Object;
use crate::object::header::Header;
use crate::object::state;
use crate::report::error::{Code, Fault};
use crate::{AnyGc, Mutator, safepoint};

/// The start of every dynamic object: 24 bytes, of which only the address has a meaning outside of
/// this module.
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
    /// An immortal object outside of all heaps, for statics. Its references are not counted, and it
    /// has no type before [`set_static_type`] gives it one.
    pub const fn immortal() -> Self {
        Self { header: Header::immortal(), record: std::ptr::null() }
    }
}

/// A traverse handler calls this for each reference, with the argument that the handler received,
/// and must return at once with any result that is not 0.
pub type VisitProc = unsafe extern "C" fn(*mut RawObject, *mut c_void) -> c_int;
/// Visits the targets of an object's references.
pub type TraverseProc = unsafe extern "C" fn(*mut RawObject, VisitProc, *mut c_void) -> c_int;
/// Answers a question about an object, or clears the object.
pub type Inquiry = unsafe extern "C" fn(*mut RawObject) -> c_int;
/// Finalizes or destroys an object.
pub type Destructor = unsafe extern "C" fn(*mut RawObject);
/// Makes an instance of the type with this face.
pub type AllocProc = unsafe extern "C" fn(*mut c_void, isize) -> *mut RawObject;
/// Frees the memory of an object.
pub type FreeProc = unsafe extern "C" fn(*mut c_void);

/// The type index of dynamic objects, in every heap: rule *dynamic*.
pub(crate) const TYPE_INDEX: u32 = 0;

/// A pointer to a dynamic object, with the promise that the object can be used for `'a`.
///
/// The promise is made once, where a pointer comes in ([`Obj::new`]), so that the methods are safe.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub struct Obj<'a> {
    address: NonNull<RawObject>,
    object: PhantomData<&'a RawObject>,
}

impl fmt::Debug for Obj<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Obj({:p})", self.address)
    }
}

impl<'a> Obj<'a> {
    /// The object at this address.
    ///
    /// # Safety
    ///
    /// During `'a`:
    ///
    /// - This thread is attached, or runs a traverse handler.
    /// - A dynamic object lies at the address. It is alive, or its dealloc handler runs on this
    ///   thread.
    /// - The object lies in a heap, or it is a static immortal object.
    /// - Its fields agree with the handlers of its type.
    /// - It has a type.
    #[inline(always)]
    pub unsafe fn new(address: NonNull<RawObject>) -> Self {
        Self { address, object: PhantomData }
    }

    /// The object at an address that may be null; `None`: it is null.
    ///
    /// # Safety
    ///
    /// As for [`new`](Self::new), if the pointer is not null.
    #[inline(always)]
    pub unsafe fn from_ptr(pointer: *mut RawObject) -> Option<Self> {
        // SAFETY: as the caller says.
        NonNull::new(pointer).map(|address| unsafe { Self::new(address) })
    }

    /// The object of a handle; `None`: the object is typed.
    pub(super) fn of(gc: &'a AnyGc, _attached: &'a Mutator) -> Option<Self> {
        // SAFETY: rule *counted*: the handle keeps the object alive.
        is_dynamic(gc).then(|| unsafe { Self::new(as_raw(gc)) })
    }

    /// Calls `f` with a handle that borrows the caller's reference.
    pub(super) fn lend<R>(self, f: impl FnOnce(&AnyGc) -> R) -> R {
        // SAFETY: rule *counted*: the object lives for the call, and the handle is never dropped.
        f(&ManuallyDrop::new(unsafe { from_raw(self.address) }))
    }

    /// Its address.
    #[inline(always)]
    pub fn address(self) -> NonNull<RawObject> {
        self.address
    }

    #[inline(always)]
    pub(super) fn number(self) -> usize {
        self.address.as_ptr() as usize
    }

    /// The object as the collector's code refers to it.
    #[inline(always)]
    pub(super) fn object(self) -> Object {
        Object::new(self.address.cast())
    }

    #[inline(always)]
    pub(super) fn header(self) -> &'a Header {
        // SAFETY: rule *dynamic*: a dynamic object starts with its header.
        unsafe { &(*self.address.as_ptr()).header }
    }

    #[inline(always)]
    pub(super) fn header_ptr(self) -> NonNull<Header> {
        self.address.cast()
    }

    /// The core of its heap; `None`: a static object lies in no heap.
    pub(super) fn core(self) -> Option<&'a ManagedCore> {
        // SAFETY: rule *counted*: the object is alive, so its heap is.
        (!self.is_static()).then(|| unsafe { &*Space::heap_of(self.number()).cast() })
    }

    /// The record of its type.
    #[inline(always)]
    pub fn record(self) -> &'a TypeRecord {
        // SAFETY: rule *dynamic*: the object has a type, and keeps its record.
        unsafe { &*(*self.address.as_ptr()).record }
    }

    /// Adds a reference. `false`: refused, in a traverse handler. [`share`](Self::share), which
    /// makes a handle, is never refused.
    #[inline(always)]
    #[must_use = "where this is refused no reference was added"]
    pub fn incref(self) -> bool {
        let current = safepoint::current();
        let header = self.header();
        if header.is_owned_by(current) {
            header.clone_ref(current);
            return true;
        }
        incref_slow(header, current)
    }

    /// A new handle, with its own reference. A traverse handler may also call this, because its
    /// thread then counts the reference as if another thread owned the object.
    #[inline(always)]
    pub fn share(self) -> AnyGc {
        let current = safepoint::current();
        let header = self.header();
        if header.is_owned_by(current) {
            header.clone_ref(current);
        } else {
            count_slowly(header, current);
        }
        // SAFETY: rule *counted*: the handle owns the reference that was counted here.
        unsafe { from_raw(self.address) }
    }

    /// The number of its items.
    ///
    /// # Errors
    ///
    /// When its type has no items.
    pub fn size(self) -> Result<isize, Fault> {
        if self.record().item_size() == 0 {
            return Err(self.fault(Code::NotResizable, "size"));
        }
        Ok(self.items())
    }

    /// The word behind the head: the number of items, if its type has any.
    pub(super) fn items(self) -> isize {
        debug_assert_ne!(self.record().item_size(), 0);
        // SAFETY: rule *dynamic*: objects with items have their number there.
        unsafe { (*self.address.cast::<RawVarObject>().as_ptr()).size }
    }

    /// The number of references to it; `None`: it is immortal. A snapshot.
    pub fn count(self) -> Option<i64> {
        self.header().count()
    }

    /// Whether it lies outside of all heaps. The header alone cannot decide this, because an
    /// immortal object of a heap can have the same one.
    pub(super) fn is_static(self) -> bool {
        self.header().is_static() && !is_in_any_heap(self.number())
    }

    pub(super) fn fault(self, code: Code, function: &'static str) -> Fault {
        Fault::new(code, function).of_type(self.record().kept_name()).at(self.number())
    }
}

/// A pointer to a dynamic object that may have no type yet, with the promise that the object can be
/// used for `'a`. Only a static object lacks a type, until [`set_static_type`] gives it one.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub struct Head<'a>(Obj<'a>);

impl<'a> From<Obj<'a>> for Head<'a> {
    fn from(object: Obj<'a>) -> Self {
        Self(object)
    }
}

impl<'a> Head<'a> {
    /// The object at this address.
    ///
    /// # Safety
    ///
    /// As for [`Obj::new`], but the object may have no type.
    #[inline(always)]
    pub unsafe fn new(address: NonNull<RawObject>) -> Self {
        Self(Obj { address, object: PhantomData })
    }

    /// The object, if it has a type.
    #[inline(always)]
    pub fn typed(self) -> Option<Obj<'a>> {
        // SAFETY: rule *dynamic*; the word of a static object is null before it is set.
        let record = unsafe { (*self.0.address.as_ptr()).record };
        (!record.is_null()).then_some(self.0)
    }

    /// The record of its type, if it has a type.
    pub fn record(self) -> Option<&'a TypeRecord> {
        self.typed().map(Obj::record)
    }

    /// Its address.
    #[inline(always)]
    pub fn address(self) -> NonNull<RawObject> {
        self.0.address
    }

    /// The number of references to it; `None`: it is immortal. A snapshot.
    pub fn count(self) -> Option<i64> {
        self.0.count()
    }

    /// Adds a reference; `false`: refused, in a traverse handler.
    #[inline(always)]
    #[must_use = "where this is refused no reference was added"]
    pub fn incref(self) -> bool {
        self.0.incref()
    }

    /// A new handle, with its own reference; see [`Obj::share`].
    pub fn share(self) -> AnyGc {
        self.0.share()
    }

    /// Whether the object is in the tracked set.
    pub fn is_tracked(self, m: &'a Mutator) -> bool {
        self.0.is_tracked(m)
    }

    /// Whether its finalizer was called.
    pub fn is_finalized(self, m: &'a Mutator) -> bool {
        self.0.is_finalized(m)
    }

    /// Whether the object takes part in cycle collection. `false` for an object without a type.
    pub fn is_gc(self) -> bool {
        self.typed().is_some_and(Obj::is_gc)
    }

    /// The object, of which only the header is used.
    pub(super) fn untyped(self) -> Obj<'a> {
        self.0
    }
}

/// Gives a static object its type.
///
/// # Safety
///
/// The object lies in a static and is [immortal](RawObject::immortal). No other thread reads it
/// during the call.
pub unsafe fn set_static_type(object: NonNull<RawObject>, record: &'static TypeRecord) {
    // SAFETY: as the caller says.
    unsafe { (*object.as_ptr()).record = record };
}

#[inline(never)]
fn incref_slow(header: &Header, current: u64) -> bool {
    let allowed = !safepoint::is_traversing();
    if allowed {
        count_slowly(header, current);
    }
    allowed
}

/// Counts a reference, unless the object is immortal, because its count then has no meaning, and a
/// write would take its cache line from all other threads.
#[inline]
fn count_slowly(header: &Header, current: u64) {
    if header.count().is_some() {
        header.clone_ref(current);
    }
}

/// Drops a reference; `false`: refused, in a traverse handler. The drop of a [handle](from_raw) is
/// never refused.
///
/// # Safety
///
/// The caller owns the reference, and gives it up.
#[inline(always)]
#[must_use = "where this is refused the caller still owns the reference"]
pub unsafe fn decref(object: NonNull<RawObject>) -> bool {
    // SAFETY: as the caller says.
    unsafe { decref_common(object) || decref_slow(object) }
}

/// The common case of [`decref`]: the calling thread owns the object, and there are other
/// references. `false`: nothing was done; [`decref`] must be called.
///
/// # Safety
///
/// As for [`decref`].
#[inline(always)]
#[must_use = "where nothing was done the caller still owns the reference"]
pub unsafe fn decref_common(object: NonNull<RawObject>) -> bool {
    // SAFETY: rule *counted*: the reference keeps the object alive.
    unsafe { object.cast::<Header>().as_ref() }.try_drop_local(safepoint::current())
}

/// Drops a reference where [`decref_common`] could not; `false`: refused, in a traverse handler.
///
/// # Safety
///
/// As for [`decref`].
#[inline(never)]
#[must_use = "where this is refused the caller still owns the reference"]
pub unsafe fn decref_slow(object: NonNull<RawObject>) -> bool {
    let header = object.cast::<Header>();
    // SAFETY: as the caller says. An owner is attached and in no traversal. An immortal object may
    // lie in no heap.
    unsafe {
        if header.as_ref().is_owned_by(safepoint::current()) {
            managed::drop_slowly(header);
            return true;
        }
        if safepoint::is_traversing() {
            return false;
        }
        if header.as_ref().count().is_some() {
            managed::drop_reference(header);
        }
    }
    true
}

/// A handle to an object, which takes over a reference of the caller.
///
/// # Safety
///
/// The caller owns a reference to the object, which lies in a heap.
#[inline(always)]
pub unsafe fn from_raw(object: NonNull<RawObject>) -> AnyGc {
    // SAFETY: as the caller says.
    unsafe { AnyGc::from_header(object.cast()) }
}

/// The address of the object that a handle refers to, without a reference of its own.
pub fn as_raw(gc: &AnyGc) -> NonNull<RawObject> {
    gc.header().cast()
}

/// The reference of a handle, as an address.
pub fn into_raw(gc: AnyGc) -> NonNull<RawObject> {
    let gc = ManuallyDrop::new(gc);
    gc.header().cast()
}

/// Whether a handle refers to a dynamic object.
pub fn is_dynamic(gc: &AnyGc) -> bool {
    gc.header_ref().type_index() == TYPE_INDEX
}

/// Whether the mutator's heap is in checked mode.
#[inline]
pub fn is_checked(m: &Mutator) -> bool {
    m.raw().model().is_checked()
}

/// Fails in a traverse handler, for a function that changes objects.
pub(super) fn refuse_in_traversal(function: &'static str) -> Result<(), Fault> {
    if safepoint::is_traversing() {
        return Err(Fault::new(Code::InTraversal, function));
    }
    Ok(())
}

/// A visitor of a traverse handler, with its argument.
#[derive(Clone, Copy)]
pub struct Visitor<'a> {
    pub(super) visit: VisitProc,
    pub(super) arg: *mut c_void,
    argument: PhantomData<&'a ()>,
}

impl fmt::Debug for Visitor<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Visitor").finish_non_exhaustive()
    }
}

impl Visitor<'_> {
    /// The visitor and the argument that a traverse handler received.
    ///
    /// # Safety
    ///
    /// For `'a` the function can be called with the argument, for any living object.
    #[inline(always)]
    pub unsafe fn new(visit: VisitProc, arg: *mut c_void) -> Self {
        Self { visit, arg, argument: PhantomData }
    }

    /// Visits references up to the first with an answer other than 0, and returns that answer.
    pub(super) fn visit_all<'o>(self, targets: impl IntoIterator<Item = Obj<'o>>) -> c_int {
        targets
            .into_iter()
            .map(|target| self.visit(target))
            .find(|&answer| answer != 0)
            .unwrap_or(0)
    }

    /// Visits one reference: 0, or the answer that the handler must return.
    #[inline(always)]
    pub fn visit<'o>(self, target: impl Into<Head<'o>>) -> c_int {
        self.visit_at(target.into().address())
    }

    /// Visits the object of a handle, which may be a typed one.
    #[inline(always)]
    pub(super) fn visit_gc(self, target: &AnyGc) -> c_int {
        self.visit_at(as_raw(target))
    }

    #[inline(always)]
    fn visit_at(self, target: NonNull<RawObject>) -> c_int {
        // SAFETY: rule *pinned*: the promise to `new`. The callers have a living object.
        unsafe { (self.visit)(target.as_ptr(), self.arg) }
    }
}

/// The answer of [`look_up`], by which checked mode judges each pointer that comes from a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Address {
    /// A living object of the mutator's heap.
    Live,
    /// An immortal object outside of all heaps, as far as the bytes there tell.
    Static,
    /// An object of the mutator's heap that was freed.
    Freed,
    /// An address in another heap, or in the mutator's heap where no object can start.
    Foreign,
    /// Readable memory outside of all heaps, without an immortal object.
    Outside,
    /// Memory that cannot be read.
    Nowhere,
}

/// Looks up an address in the mutator's heap. The C ABI does this in checked mode with each pointer
/// that it receives.
///
/// # Safety
///
/// If the address is outside of all heaps and its memory can be read, the memory stays readable
/// during the call.
pub unsafe fn look_up(m: &Mutator, object: NonNull<RawObject>) -> Address {
    look_up_in(m.raw().core(), object)
}

/// [`look_up`] without a mutator. In a traverse handler it uses the heap that is traversed,
/// otherwise the heap to which this thread is attached. `None`: there is no such heap, or the heap
/// is not in checked mode.
///
/// # Safety
///
/// As for [`look_up`].
pub unsafe fn look_up_here(object: NonNull<RawObject>) -> Option<Address> {
    let looked = |core: &ManagedCore| core.model.is_checked().then(|| look_up_in(core, object));
    match traversed_heap() {
        Some(core) => looked(core),
        None => Mutator::with_current(|m| looked(m.raw().core())).flatten(),
    }
}

fn look_up_in(core: &ManagedCore, object: NonNull<RawObject>) -> Address {
    let address = object.as_ptr() as usize;
    if !core.space.contains(address) {
        return look_outside(object);
    }
    if !core.space.starts_at(address) {
        return Address::Foreign;
    }
    // SAFETY: rule *mapped*: an object can start there, so its page was handed out.
    let state = unsafe { core.state(address) };
    if state.get() & state::LIVE != 0 { Address::Live } else { Address::Freed }
}

fn look_outside(object: NonNull<RawObject>) -> Address {
    let address = object.as_ptr() as usize;
    if is_in_any_heap(address) {
        return Address::Foreign;
    }
    let is_static = address.is_multiple_of(align_of::<RawObject>())
        && is_readable(address, size_of::<Header>())
        // SAFETY: rule *bounds*: readable, and outside of all heaps.
        && unsafe { object.cast::<Header>().as_ref() }.is_static();
    if is_static {
        Address::Static
    } else if is_readable(address, size_of::<RawObject>()) {
        Address::Outside
    } else {
        Address::Nowhere
    }
}

/// The fault of an address that a handler visits; `None`: the address is of a living object, of a
/// static object, or in another heap.
pub(super) fn target_fault(core: &ManagedCore, target: NonNull<RawObject>) -> Option<Code> {
    match look_up_in(core, target) {
        Address::Live | Address::Static => None,
        Address::Foreign if !core.space.contains(target.as_ptr() as usize) => None,
        Address::Foreign | Address::Freed => Some(Code::FreedPointer),
        Address::Outside | Address::Nowhere => Some(Code::ForeignPointer),
    }
}

/// A value outside of the cell, which one pointer of the object owns.
///
/// # Safety
///
/// Each instance in a heap of a type with such parts has the pointer at this place, and the library
/// uses the place for nothing else.
pub(super) unsafe trait Part: Sized {
    /// Whether the pointer lies in the tail. Otherwise it lies behind the head.
    const IN_TAIL: bool;

    /// Whether the instances of this type have the pointer.
    fn is_in_instances_of(record: &TypeRecord) -> bool;
}

// SAFETY: rule *dynamic*: with the flag there is a tail.
unsafe impl Part for Attributes {
    const IN_TAIL: bool = true;

    fn is_in_instances_of(record: &TypeRecord) -> bool {
        record.flags().has(Flags::MANAGED_DICT)
    }
}

// SAFETY: rule *dynamic*: the object of a heap type has a tail, with its record.
unsafe impl Part for TypeRecord {
    const IN_TAIL: bool = true;

    fn is_in_instances_of(record: &TypeRecord) -> bool {
        record.is_metatype
    }
}

/// Bytes of an object with a pointer to a part behind its head.
pub(super) const PARTS_SIZE: usize = size_of::<RawObject>() + size_of::<OnceBox<RawObject>>();

impl<'a> Obj<'a> {
    /// The pointer to the object's part of this kind; `None`: the object has none.
    pub(super) fn slot<P: Part>(self) -> Option<&'a OnceBox<P>> {
        if !P::is_in_instances_of(self.record()) {
            return None;
        }
        let start = self.address.cast::<u8>();
        // SAFETY: rules *dynamic*, *counted* and *mapped*: the object lives, and was allocated with
        // the pointer. Its cell is at least as large as the allocation, the last word included.
        unsafe {
            let pointer = if P::IN_TAIL {
                let cell = self.core()?.space.memory(start);
                cell.start().add(cell.room().last_word())
            } else {
                start.add(size_of::<RawObject>())
            };
            Some(pointer.cast().as_ref())
        }
    }

    pub(super) fn part<P: Part>(self) -> Option<&'a P> {
        self.slot()?.get()
    }
}

impl<'m> Dying<'m> {
    pub(super) fn take<P: Part + 'm>(&self) -> Option<Box<P>> {
        // SAFETY: rule *zero*: this thread has exclusive access to the object.
        unsafe { self.object().slot()?.take() }
    }
}
