//! A type's record: the type as the collector uses it.
//!
//! All threads read sizes and handlers for each object, so they must not need a lock for it.
//! Therefore a record is constant once the type is ready. Four fields are exceptions, so each is an
//! atomic or behind a lock. They are the module, the type's own attributes, the flag that checked
//! mode has examined an instance, and the face of a built-in type.

use std::any::Any;
use std::collections::HashSet;
use std::ffi::c_void;
use std::fmt;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};
use std::sync::{Arc, OnceLock};

use crate::base::fallible::{self, NoMemory};
use crate::base::settings_lock::SettingsHold;
use crate::base::sync::Mutex;
use crate::dynamic::attributes::Attributes;
use crate::dynamic::object::{
    AllocProc, Destructor, FreeProc, Inquiry, Obj, RawObject, TraverseProc, from_raw,
};
use crate::heap::child;
use crate::{AnyGc, Mutator};

/// Flags of a type: CPython's bits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Flags(pub u64);

impl Flags {
    /// Instances have an attribute dictionary that the runtime keeps.
    pub const MANAGED_DICT: Self = Self(1 << 4);
    /// The type is an object of a heap.
    pub const HEAP_TYPE: Self = Self(1 << 9);
    /// The type may be a base of others.
    pub const BASE_TYPE: Self = Self(1 << 10);
    /// The type was made ready.
    pub const READY: Self = Self(1 << 12);
    /// Instances take part in cycle collection.
    pub const HAVE_GC: Self = Self(1 << 14);
    /// Items lie behind the fields of the most derived type.
    pub const ITEMS_AT_END: Self = Self(1 << 23);
    /// Not in CPython: items are references. In checked mode [`resize`](crate::dynamic::resize)
    /// refuses to cut off one that is not null.
    pub const ITEMS_ARE_REFERENCES: Self = Self(1 << 61);
    /// Not in CPython: traverse handlers of types with this flag are called one at a time.
    pub const SERIAL_TRAVERSE: Self = Self(1 << 62);

    /// The flags of both sets.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Whether all flags of `other` are set.
    #[inline(always)]
    pub const fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

impl fmt::Debug for Flags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Flags({:#x})", self.0)
    }
}

/// The handlers of a type, where an empty slot (`None`) is inherited, or gets a default.
#[derive(Clone, Copy, Debug, Default)]
#[expect(missing_docs, reason = "named after the slots; the types say what each is")]
pub struct Slots {
    pub traverse: Option<TraverseProc>,
    pub clear: Option<Inquiry>,
    pub dealloc: Option<Destructor>,
    pub finalize: Option<Destructor>,
    /// The legacy finalizer: garbage that has one is never cleared.
    pub del: Option<Destructor>,
    pub is_gc: Option<Inquiry>,
    pub alloc: Option<AllocProc>,
    pub free: Option<FreeProc>,
}

/// A runtime's functions for empty slots, which are called with the faces of the runtime's types.
#[derive(Clone, Copy, Debug)]
pub struct Defaults {
    /// Allocates an instance of any type of the runtime, tracked if the type takes part in cycle
    /// collection.
    pub alloc: AllocProc,
    /// Frees an instance of a type that takes part in cycle collection.
    pub gc_free: FreeProc,
    /// Frees an instance of any other type.
    pub plain_free: FreeProc,
}

/// A pointer to a type's record, which its holder, a [`Type`] or the record of a derived type,
/// keeps alive.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct RecordRef(pub(super) NonNull<TypeRecord>);

// SAFETY: rule *guarded*: a record synchronises its own changes.
unsafe impl Send for RecordRef {}

// SAFETY: as above.
unsafe impl Sync for RecordRef {}

impl RecordRef {
    pub(crate) fn get(&self) -> &TypeRecord {
        // SAFETY: rule *dynamic*: a static record lives for ever. The holder keeps a heap type's
        // record.
        unsafe { self.0.as_ref() }
    }
}

/// A handle to a type. It owns a reference to the object of a heap type.
#[derive(Clone)]
pub struct Type {
    pub(super) record: RecordRef,
    /// The object of a heap type, which keeps the record alive; `None`: the type is static.
    pub(super) object: Option<AnyGc>,
}

impl Type {
    /// A static type.
    pub fn from_static(record: &'static TypeRecord) -> Self {
        Self { record: RecordRef(NonNull::from(record)), object: None }
    }

    /// The type with this record.
    pub fn from_record(record: &TypeRecord) -> Self {
        let object = record.type_object().map(Obj::share);
        Self { record: RecordRef(NonNull::from(record)), object }
    }

    /// Its record.
    pub fn record(&self) -> &TypeRecord {
        self.record.get()
    }

    /// The object of a heap type; `None`: the type is static.
    pub fn object(&self) -> Option<&AnyGc> {
        self.object.as_ref()
    }
}

impl fmt::Debug for Type {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Type({})", self.record().name)
    }
}

/// The finalizer of a class. It is called once in an object's life, when the object is unreachable
/// or its count reaches 0. It revives the object if it stores a clone of the handle.
pub type ClassFinalizer = fn(&AnyGc, &Mutator);

/// A type as the collector uses it.
#[repr(C)]
pub struct TypeRecord {
    /// The first field, so that its offset is fixed.
    pub(super) face: AtomicPtr<c_void>,
    pub(crate) traverse: Option<TraverseProc>,
    /// The traverse handler of the nearest static type in the chain of primary bases; see
    /// `builtin::Inherited`.
    pub(crate) static_traverse: Option<TraverseProc>,
    pub(crate) clear: Option<Inquiry>,
    pub(crate) finalize: Option<Destructor>,
    pub(crate) del: Option<Destructor>,
    /// The dealloc handler of the type, or of the nearest primary base that has one; `None`: only
    /// the generic handler.
    pub(crate) dealloc: Option<Destructor>,
    pub(crate) own_dealloc: bool,
    pub(crate) is_gc: Option<Inquiry>,
    pub(crate) alloc: AllocProc,
    pub(crate) free: FreeProc,
    pub(super) flags: Flags,
    pub(crate) basic_size: usize,
    pub(crate) item_size: usize,
    /// Offset and size of the part that the type reserved with a negative size. Size 0: no part.
    pub(super) data: (usize, usize),
    /// The size class of an instance without items.
    pub(crate) class: Option<u8>,
    /// The same, for a type that `instance::allocate_common` can allocate.
    pub(crate) common_class: Option<u8>,
    /// Whether instances end by the short path of the generic dealloc handler. They can, because
    /// they have no finalizer and no dictionary, no primary base has a dealloc handler, and the
    /// default function frees them.
    pub(crate) ends_simply: bool,
    /// The object of a heap type; null: static.
    pub(crate) object: *mut RawObject,
    /// The bases. The record owns the references to those that are heap types.
    pub(crate) bases: Box<[Type]>,
    /// All bases in the order in which they are searched, without the type itself.
    pub(super) mro: Box<[RecordRef]>,
    pub(super) name: Box<str>,
    pub(super) keeps: Option<Arc<dyn Any + Send + Sync>>,
    /// The module: the type owns a reference.
    pub(super) module: AtomicPtr<RawObject>,
    pub(super) token: usize,
    /// A heap type's own attributes.
    pub(crate) attributes: Attributes,
    /// The finalizer of a class, which the class's finalize handler calls.
    pub(crate) finalizer: Option<ClassFinalizer>,
    /// The instances are types: only `ready_heap` makes them.
    pub(crate) is_metatype: bool,
    /// The instances are types or modules, which a collection clears after its other garbage,
    /// because the handlers of that garbage may use them.
    pub(crate) clears_last: bool,
    /// Whether checked mode has examined an instance.
    pub(crate) tried: AtomicBool,
    /// The runtime that made the type and can read its face, identified by the address of its
    /// functions. `None`: a built-in type, with a face that all runtimes can read.
    pub(super) made_by: Option<&'static Defaults>,
}

// SAFETY: rule *guarded*: once the type is ready, only the atomics and the locked attributes
// change.
unsafe impl Send for TypeRecord {}

// SAFETY: as above.
unsafe impl Sync for TypeRecord {}

impl fmt::Debug for TypeRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TypeRecord")
            .field("name", &self.name)
            .field("flags", &self.flags)
            .finish_non_exhaustive()
    }
}

impl TypeRecord {
    /// The address by which the runtime knows the type.
    #[inline]
    pub fn face(&self) -> *mut c_void {
        // Relaxed: set before the type is published.
        self.face.load(Ordering::Relaxed)
    }

    /// The type's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The type's name for a report. Because the report may outlive the type, the first call makes
    /// a copy that is never freed, or says in its place that there is no memory for the copy.
    pub fn kept_name(&self) -> &'static str {
        static NAMES: OnceLock<Mutex<HashSet<&'static str>>> = OnceLock::new();
        let name = &*self.name;
        if let Some(kept) = child::kept_in_child(name) {
            return kept;
        }
        let _held = SettingsHold::new();
        let mut names = NAMES.get_or_init(Mutex::default).lock();
        if let Some(known) = names.get(name) {
            return known;
        }
        let room = names.try_reserve(1).map_err(NoMemory::from);
        let Ok(copy) = room.and_then(|()| fallible::owned(name)) else {
            return fallible::NO_WORDS;
        };
        let leaked: &'static str = copy.leak();
        names.insert(leaked);
        leaked
    }

    /// Its flags, with the inherited ones.
    #[inline(always)]
    pub fn flags(&self) -> Flags {
        self.flags
    }

    /// Whether instances take part in cycle collection.
    #[inline(always)]
    pub fn has_gc(&self) -> bool {
        self.flags.has(Flags::HAVE_GC)
    }

    /// Whether the type is an object of a heap.
    #[inline(always)]
    pub fn is_heap_type(&self) -> bool {
        !self.object.is_null()
    }

    /// The object of a heap type; null for a static one.
    pub fn object(&self) -> *mut RawObject {
        self.object
    }

    /// The object of a heap type; `None`: the type is static.
    #[inline(always)]
    pub(super) fn type_object(&self) -> Option<Obj<'_>> {
        // SAFETY: rule *dynamic*: a borrowed record belongs to a living type.
        unsafe { Obj::from_ptr(self.object) }
    }

    /// Bytes of an instance without items.
    pub fn basic_size(&self) -> usize {
        self.basic_size
    }

    /// Bytes of an item; 0: instances have none.
    pub fn item_size(&self) -> usize {
        self.item_size
    }

    /// Bytes of the part that this type reserved with a negative size. The parts of its bases do
    /// not count.
    pub fn data_size(&self) -> usize {
        self.data.1
    }

    /// The handlers in force, with inherited handlers and defaults. `dealloc` is `None` if the type
    /// has no dealloc handler of its own.
    pub fn slots(&self) -> Slots {
        Slots {
            traverse: self.traverse,
            clear: self.clear,
            dealloc: self.dealloc.filter(|_| self.own_dealloc),
            finalize: self.finalize,
            del: self.del,
            is_gc: self.is_gc,
            alloc: Some(self.alloc),
            free: Some(self.free),
        }
    }

    /// The primary base.
    pub fn base(&self) -> Option<&Self> {
        self.bases.first().map(Type::record)
    }

    /// The bases, the primary one first.
    pub fn bases(&self) -> impl Iterator<Item = &Self> {
        self.bases.iter().map(Type::record)
    }

    /// The type and all its bases, in the order in which they are searched.
    pub fn mro(&self) -> impl Iterator<Item = &Self> {
        std::iter::once(self).chain(self.mro.iter().map(RecordRef::get))
    }

    /// Whether the type is `other`, or derived from `other`.
    pub fn is_subtype_of(&self, other: &Self) -> bool {
        self.mro().any(|base| std::ptr::eq(base, other))
    }

    /// The module that the type belongs to; null: none. Borrowed.
    pub fn module(&self) -> *mut RawObject {
        // Acquire: pairs with the release in `take_module`.
        self.module.load(Ordering::Acquire)
    }

    /// The module that the type belongs to. It lives until this thread's next safepoint, because
    /// the clear handler of the type retires the type's reference instead of dropping it.
    ///
    /// # Safety
    ///
    /// While the result is used, this thread is attached and passes no safepoint, or it runs a
    /// traverse handler.
    pub unsafe fn module_object(&self) -> Option<Obj<'_>> {
        // SAFETY: rule *counted*: the type owns a reference, which is retired when the type is
        // cleared. The caller passes no safepoint.
        unsafe { Obj::from_ptr(self.module()) }
    }

    /// The token by which [`base_by_token`] finds the type; 0: it has none.
    pub fn token(&self) -> usize {
        self.token
    }

    pub(super) fn take_module(&self) -> Option<AnyGc> {
        let module = NonNull::new(self.module.swap(std::ptr::null_mut(), Ordering::AcqRel));
        // SAFETY: rule *counted*: the type has owned the reference, and gives it up once.
        module.map(|module| unsafe { from_raw(module) })
    }
}

/// The first type in `record`'s order with this token.
pub fn base_by_token(record: &TypeRecord, token: usize) -> Option<&TypeRecord> {
    record.mro().find(|base| token != 0 && base.token == token)
}

impl Obj<'_> {
    pub(super) fn module_of_type(self) -> Option<Self> {
        let record = self.describe()?;
        // SAFETY: rule *dynamic*: the promise of `Obj` covers the use of the result.
        unsafe { record.module_object() }
    }

    /// The part of the object that the type of `record` reserved with a negative size. `None`: the
    /// type reserved none, or the object is no instance of it.
    pub fn type_data(self, record: &TypeRecord) -> Option<NonNull<c_void>> {
        let (start, size) = record.data;
        let has_part = size != 0 && self.record().is_subtype_of(record);
        if has_part { self.field(start) } else { None }
    }

    /// The first item of an object. `None`: its type does not place items at the end.
    pub fn item_data(self) -> Option<NonNull<c_void>> {
        let record = self.record();
        let has_items = record.flags.has(Flags::ITEMS_AT_END) && record.item_size != 0;
        if has_items { self.field(record.basic_size) } else { None }
    }

    fn field(self, offset: usize) -> Option<NonNull<c_void>> {
        NonNull::new(self.address().as_ptr().cast::<c_void>().wrapping_byte_add(offset))
    }
}
