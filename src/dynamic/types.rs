//! Types: what a runtime says of one ([`TypeSpec`]), what becomes of it ([`TypeRecord`]), and the rules in between.
//!
//! Making a type *ready* fills in what it inherits and then checks it. Nothing of a record changes afterwards but what
//! synchronises itself: the module, the type's own attributes, and a note that the first instance was looked at.
//!
//! # Inheritance
//!
//! Sizes, flags and handlers come from the *primary* base, the first one. Flag, traverse and clear come together or not
//! at all: a type that sets the flag brings its handlers itself. The order of all bases (C3) is for subtype tests
//! and tokens.
//!
//! # Runtimes
//!
//! A runtime's functions take the faces of its own types. An inherited function would get a face of another runtime, so all bases of a
//! type are made by the runtime that makes the type: they have the same [`Defaults`]. The built-in types are bases for all.

use std::any::Any;
use std::collections::HashSet;
use std::ffi::c_void;
use std::fmt;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};
use std::sync::{Arc, OnceLock};

use crate::base::error::{Code, Fault};
use crate::base::event;
use crate::base::fallible::words;
use crate::base::fallible::{self, NoMemory};
use crate::base::sync::Mutex;
use crate::dynamic::attributes::Attributes;
use crate::dynamic::{
    AllocProc, Destructor, Finalizer, FreeProc, Inquiry, RawObject, RawVarObject, TraverseProc,
    from_raw, handlers, instance, module, share, type_of, weakref,
};
use crate::managed;
use crate::memory::arena::class_for;
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
    /// Not CPython's: items are references, so cutting off one that is not null is a mistake.
    pub const ITEMS_ARE_REFERENCES: Self = Self(1 << 61);
    /// Not CPython's: traverse handlers of types with this flag are called one at a time.
    pub const SERIAL_TRAVERSE: Self = Self(1 << 62);

    /// Both.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Whether all of `other` are set.
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

/// The handlers of a type. What is `None` is inherited, or has a default.
#[derive(Clone, Copy, Default)]
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

impl fmt::Debug for Slots {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Slots")
            .field("traverse", &self.traverse.is_some())
            .field("clear", &self.clear.is_some())
            .field("dealloc", &self.dealloc.is_some())
            .field("finalize", &self.finalize.is_some())
            .finish_non_exhaustive()
    }
}

/// The functions that fill empty slots: a runtime's own names for what this module does.
#[derive(Clone, Copy, Debug)]
pub struct Defaults {
    /// Allocates an instance of whatever type, tracked if it takes part in cycle collection.
    pub alloc: AllocProc,
    /// Gives back memory of types that take part in cycle collection.
    pub gc_free: FreeProc,
    /// Gives back other memory.
    pub plain_free: FreeProc,
}

/// The functions of this module itself, with faces that are records. A static: its address says who made a type.
pub(crate) static DEFAULTS: Defaults = Defaults {
    alloc: instance::generic_alloc,
    gc_free: instance::generic_free,
    plain_free: instance::generic_free,
};

/// Bytes that the object of each heap type has at least. All runtimes may read so many, and find zeros behind the head of a type that
/// another runtime made.
pub const FACE: usize = 264;

/// What a type is to be.
#[derive(Clone, Debug)]
pub struct TypeSpec {
    /// `module.name`.
    pub name: String,
    /// Bytes of an instance, from its first; 0: the base's; negative: so many behind the base's, to be found with
    /// [`type_data`].
    pub basic_size: isize,
    /// Bytes of an item; 0: the base's.
    pub item_size: isize,
    /// Its flags.
    pub flags: Flags,
    /// Its bases, the primary one first; none: [`BASE`].
    pub bases: Vec<Type>,
    /// Its handlers.
    pub slots: Slots,
    /// The module that it belongs to.
    pub module: Option<AnyGc>,
    /// What [`base_by_token`] finds it by; 0: nothing.
    pub token: usize,
    /// What fills its empty slots; `None`: this library's own functions. Its bases have the same, by address, or are built in.
    pub defaults: Option<&'static Defaults>,
    /// Bytes of the type's own object, [`FACE`] at least: for a heap type's face.
    pub face_size: usize,
    /// What is dropped when the type goes: texts to which its face leads, for example.
    pub keeps: Option<Arc<dyn Any + Send + Sync>>,
    /// For classes.
    pub(crate) finalizer: Option<Finalizer>,
}

impl TypeSpec {
    /// A type with nothing but a name.
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            basic_size: 0,
            item_size: 0,
            flags: Flags::default(),
            bases: Vec::new(),
            slots: Slots::default(),
            module: None,
            token: 0,
            defaults: None,
            face_size: FACE,
            keeps: None,
            finalizer: None,
        }
    }

    /// A type whose instances have attributes, take part in cycle collection, and need no handlers of their own.
    pub fn with_attributes(name: impl Into<String>) -> Self {
        let mut spec = Self::new(name);
        spec.flags = Flags::HAVE_GC.and(Flags::MANAGED_DICT).and(Flags::BASE_TYPE);
        spec.slots.traverse = Some(handlers::traverse_attributes);
        spec.slots.clear = Some(handlers::clear_attributes);
        spec
    }
}

/// A reference to a type's record that the type holding it keeps valid.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct RecordRef(NonNull<TypeRecord>);

// SAFETY: rule X: a record synchronises what changes in it.
unsafe impl Send for RecordRef {}
// SAFETY: as above.
unsafe impl Sync for RecordRef {}

impl RecordRef {
    pub(crate) fn get(&self) -> &TypeRecord {
        // SAFETY: rule D: static records live for ever; a heap type's are kept by its subtypes and instances.
        unsafe { self.0.as_ref() }
    }
}

/// A handle to a type: counted for a heap type.
#[derive(Clone)]
pub struct Type {
    record: RecordRef,
    /// Keeps a heap type.
    object: Option<AnyGc>,
}

impl Type {
    /// A static type.
    pub fn from_static(record: &'static TypeRecord) -> Self {
        Self { record: RecordRef(NonNull::from(record)), object: None }
    }

    /// The type with this record.
    ///
    /// # Safety
    ///
    /// The type is alive.
    pub unsafe fn from_record(record: &TypeRecord) -> Self {
        // SAFETY: as the caller says: somebody has a reference to the type's object.
        let object = NonNull::new(record.object).map(|object| unsafe { share(object) });
        Self { record: RecordRef(NonNull::from(record)), object }
    }

    /// Its record.
    pub fn record(&self) -> &TypeRecord {
        self.record.get()
    }

    /// The object of a heap type.
    pub fn object(&self) -> Option<&AnyGc> {
        self.object.as_ref()
    }
}

impl fmt::Debug for Type {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Type({})", self.record().name)
    }
}

/// A type as the collector sees it.
#[repr(C)]
pub struct TypeRecord {
    /// First, where faces may read it.
    face: AtomicPtr<c_void>,
    pub(crate) traverse: Option<TraverseProc>,
    /// The traverse handler of the nearest static type in the line of primary bases; see `handlers::traverse_inherited`.
    pub(crate) static_traverse: Option<TraverseProc>,
    pub(crate) clear: Option<Inquiry>,
    pub(crate) finalize: Option<Destructor>,
    pub(crate) del: Option<Destructor>,
    /// The type's own, or its nearest base's that has one; `None`: the generic one alone.
    pub(crate) dealloc: Option<Destructor>,
    /// Whether `dealloc` is this type's own.
    pub(crate) own_dealloc: bool,
    pub(crate) is_gc: Option<Inquiry>,
    pub(crate) alloc: AllocProc,
    pub(crate) free: FreeProc,
    flags: Flags,
    pub(crate) basic_size: usize,
    pub(crate) item_size: usize,
    /// Where the part is that a negative size has asked for; 0: there is none.
    data: (usize, usize),
    /// The size class of an instance without items.
    pub(crate) class: Option<u8>,
    /// The same, where allocation is as simple as can be; see `instance::allocate_common`.
    pub(crate) common_class: Option<u8>,
    /// Whether instances end without finalizers, dictionaries and handlers of bases, and their memory goes back the usual way.
    pub(crate) ends_simply: bool,
    /// The object of a heap type; null: static.
    pub(crate) object: *mut RawObject,
    pub(crate) bases: Box<[RecordRef]>,
    /// All bases in their order, without the type itself.
    mro: Box<[RecordRef]>,
    name: Box<str>,
    /// What goes with the type: see [`TypeSpec::keeps`].
    keeps: Option<Arc<dyn Any + Send + Sync>>,
    /// The module: the type owns a reference.
    module: AtomicPtr<RawObject>,
    token: usize,
    /// A heap type's own attributes.
    pub(crate) attributes: Attributes,
    /// A class's finalizer, called by the handler of the same name.
    pub(crate) finalizer: Option<Finalizer>,
    /// Checked mode has looked at an instance.
    pub(crate) tried: AtomicBool,
    /// Who made the type, and reads its face; `None`: built in, with a face that all may read.
    made_by: Option<&'static Defaults>,
}

// SAFETY: rule X: everything but the atomics and the locked attributes is constant once the type is ready.
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

    /// The same for a report, which may outlive the type. Each name that was asked for in this way is kept as long as the process
    /// runs, once. Empty where there is no memory for that.
    pub fn kept_name(&self) -> &'static str {
        kept(&self.name)
    }

    /// Its flags, with what was inherited.
    #[inline(always)]
    pub fn flags(&self) -> Flags {
        self.flags
    }

    /// Whether instances take part in cycle collection.
    #[inline(always)]
    pub fn has_gc(&self) -> bool {
        self.flags.has(Flags::HAVE_GC)
    }

    /// Whether it is an object of a heap.
    #[inline(always)]
    pub fn is_heap_type(&self) -> bool {
        !self.object.is_null()
    }

    /// The object of a heap type; null for a static one.
    pub fn object(&self) -> *mut RawObject {
        self.object
    }

    /// Bytes of an instance without items.
    pub fn basic_size(&self) -> usize {
        self.basic_size
    }

    /// Bytes of an item; 0: instances have none.
    pub fn item_size(&self) -> usize {
        self.item_size
    }

    /// Bytes of the part that this very type has asked for with a negative size.
    pub fn data_size(&self) -> usize {
        self.data.1
    }

    /// The handlers in force, inherited ones and defaults included; `dealloc` is `None` where there is only the generic one.
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
        self.bases.first().map(RecordRef::get)
    }

    /// The bases, the primary one first.
    pub fn bases(&self) -> impl Iterator<Item = &Self> {
        self.bases.iter().map(RecordRef::get)
    }

    /// The type and all its bases, in the order in which they are searched.
    pub fn mro(&self) -> impl Iterator<Item = &Self> {
        std::iter::once(self).chain(self.mro.iter().map(RecordRef::get))
    }

    /// Whether it is `other`, or derived from it.
    pub fn is_subtype_of(&self, other: &Self) -> bool {
        self.mro().any(|base| std::ptr::eq(base, other))
    }

    /// The module that the type belongs to; null: none. Borrowed.
    pub fn module(&self) -> *mut RawObject {
        // Acquire: pairs with the release of whoever clears it. `clear_type` retires the module, so it lives
        // until this thread's next safepoint.
        self.module.load(Ordering::Acquire)
    }

    /// What it is found by; 0: nothing.
    pub fn token(&self) -> usize {
        self.token
    }

    pub(crate) fn take_module(&self) -> *mut RawObject {
        self.module.swap(std::ptr::null_mut(), Ordering::AcqRel)
    }
}

/// Names in reports outlive their types: each is copied once. Empty: there is no memory for a copy.
fn kept(name: &str) -> &'static str {
    static NAMES: OnceLock<Mutex<HashSet<&'static str>>> = OnceLock::new();
    let mut names = NAMES.get_or_init(Mutex::default).lock();
    if let Some(known) = names.get(name) {
        return known;
    }
    let room = names.try_reserve(1).map_err(NoMemory::from);
    let Ok(copy) = room.and_then(|()| fallible::owned(name)) else { return "" };
    let leaked: &'static str = copy.leak();
    names.insert(leaked);
    leaked
}

/// The type does not become ready. Its name stands in the text alone: names that are [kept](kept) are those of types that there are.
fn fault(code: Code, name: &str, text: fmt::Arguments<'_>) -> Fault {
    Fault::new(code, "type readiness").because(words!("type '{name}': {text}"))
}

/// Bytes of an instance that are cleared in a plain loop.
const COMMON: usize = 128;

/// What a type is, before it has an address.
struct Draft {
    record: TypeRecord,
}

/// Fills in what a type inherits, and checks it.
fn draft(spec: &TypeSpec, heap_type: bool) -> Result<Draft, Fault> {
    let name = &spec.name;
    if name.is_empty() {
        return Err(Fault::new(Code::BadSlot, "type readiness").because("a type needs a name"));
    }
    let bases: Vec<RecordRef> = match &spec.bases[..] {
        [] => fallible::collect([RecordRef(NonNull::from(BASE.try_get()?))].into_iter())?,
        bases => fallible::collect(bases.iter().map(|base| base.record))?,
    };
    let defaults = spec.defaults.unwrap_or(&DEFAULTS);
    check_bases(name, &bases, heap_type, defaults)?;
    let base = bases[0].get();
    let mut flags = spec.flags;
    let mut slots = spec.slots;
    inherit_collection(name, &mut flags, &mut slots, &bases, heap_type)?;
    if flags.has(Flags::HAVE_GC) && slots.clear.is_none() && base.clear.is_some() {
        event::no_clear_handler(name, &base.name);
    }
    let inherited = Flags::MANAGED_DICT.0 | Flags::ITEMS_AT_END.0 | Flags::ITEMS_ARE_REFERENCES.0;
    flags = flags.and(Flags(base.flags.0 & inherited));
    // Type families go down the line.
    flags = flags.and(Flags(base.flags.0 & 0xff00_0000));
    flags = Flags(flags.0 & !Flags::HEAP_TYPE.0).and(Flags::READY);
    if heap_type {
        flags = flags.and(Flags::HEAP_TYPE);
    }
    if flags.has(Flags::MANAGED_DICT) && !(flags.has(Flags::HAVE_GC) && heap_type) {
        let text = format_args!("a managed dictionary takes Py_TPFLAGS_HAVE_GC, and a heap type");
        return Err(fault(Code::BadFlags, name, text));
    }
    let (basic_size, data) = sizes(name, spec.basic_size, base)?;
    let item_size = match usize::try_from(spec.item_size) {
        Ok(0) => base.item_size,
        Ok(size) if base.item_size == 0 || size == base.item_size => size,
        Ok(_) => {
            return Err(fault(
                Code::BadSize,
                name,
                format_args!("items of another size than the base's"),
            ));
        }
        Err(_) => return Err(fault(Code::BadSize, name, format_args!("a negative item size"))),
    };
    if item_size != 0 && basic_size < size_of::<RawVarObject>() {
        return Err(fault(
            Code::BadSize,
            name,
            format_args!("items need the room for their number in front of them"),
        ));
    }
    // The number of items lies behind the head, where such a base has its first field.
    if item_size != 0 && base.item_size == 0 && base.basic_size > size_of::<RawObject>() {
        let text = format_args!(
            "the number of items would lie in the fields of '{}', which has none",
            base.name
        );
        return Err(fault(Code::BadSize, name, text));
    }
    // What cuts items off, or gives them to C as references, reads whole words.
    const WORD: usize = size_of::<usize>();
    if flags.has(Flags::ITEMS_ARE_REFERENCES)
        && (item_size != WORD || !basic_size.is_multiple_of(WORD))
    {
        let text = format_args!(
            "items that are references have {WORD} bytes, and begin on a multiple of it"
        );
        return Err(fault(Code::BadSize, name, text));
    }
    let gc = flags.has(Flags::HAVE_GC);
    let free = free_function(name, slots.free, gc, flags, base, defaults)?;
    let own_dealloc = slots.dealloc.is_some();
    let tail = flags.has(Flags::MANAGED_DICT);
    let class = class_for(
        basic_size + if tail { size_of::<usize>() } else { 0 },
        crate::memory::space::GRANULE,
    );
    let dealloc = slots.dealloc.or(base.dealloc);
    let finalize = slots.finalize.or(base.finalize);
    let del = slots.del.or(base.del);
    let usual_free = gc && std::ptr::fn_addr_eq(free, defaults.gc_free);
    let ends_simply =
        usual_free && !tail && dealloc.is_none() && finalize.is_none() && del.is_none();
    Ok(Draft {
        record: TypeRecord {
            face: AtomicPtr::new(std::ptr::null_mut()),
            made_by: Some(defaults),
            traverse: slots.traverse,
            static_traverse: if base.is_heap_type() { base.static_traverse } else { base.traverse },
            clear: slots.clear,
            finalize,
            del,
            dealloc,
            own_dealloc,
            is_gc: slots.is_gc.or(base.is_gc),
            // A base of another face has its functions for that face: the root's are nobody's.
            alloc: slots.alloc.or((!is_root(base)).then_some(base.alloc)).unwrap_or(defaults.alloc),
            free,
            flags,
            basic_size,
            item_size,
            data,
            class,
            common_class: class.filter(|_| gc && !tail && item_size == 0 && basic_size <= COMMON),
            ends_simply,
            object: std::ptr::null_mut(),
            mro: linearize(name, &bases)?,
            bases: bases.into(),
            name: fallible::owned(name)?.into_boxed_str(),
            keeps: spec.keeps.clone(),
            module: AtomicPtr::new(std::ptr::null_mut()),
            token: spec.token,
            attributes: Attributes::default(),
            finalizer: spec.finalizer,
            tried: AtomicBool::new(false),
        },
    })
}

fn is_root(record: &TypeRecord) -> bool {
    std::ptr::eq(record, BASE.get())
}

fn check_bases(
    name: &str,
    bases: &[RecordRef],
    heap_type: bool,
    defaults: &'static Defaults,
) -> Result<(), Fault> {
    for (at, base) in bases.iter().enumerate() {
        let record = base.get();
        if !record.flags.has(Flags::BASE_TYPE) {
            return Err(fault(
                Code::BadBase,
                name,
                format_args!("'{}' does not allow to be a base", record.name),
            ));
        }
        if record.made_by.is_some_and(|maker| !std::ptr::eq(maker, defaults)) {
            let text = format_args!("its base '{}' was made by another runtime", record.name);
            return Err(fault(Code::BadBase, name, text));
        }
        if bases[..at].contains(base) {
            return Err(fault(
                Code::BadBase,
                name,
                format_args!("'{}' is a base twice", record.name),
            ));
        }
        if record.is_heap_type() && !heap_type {
            return Err(fault(
                Code::BadBase,
                name,
                format_args!("a static type cannot have the heap type '{}' as a base", record.name),
            ));
        }
    }
    let primary = bases[0].get();
    for other in &bases[1..] {
        let other = other.get();
        if other.has_gc() && !primary.has_gc() {
            return Err(fault(
                Code::MixedBases,
                name,
                format_args!(
                    "its base '{}' takes part in cycle collection, and '{}', the primary one, does not",
                    other.name, primary.name
                ),
            ));
        }
        if !primary.is_subtype_of(solid(other)) {
            return Err(fault(
                Code::BadBase,
                name,
                format_args!(
                    "the fields of '{}' and '{}' cannot lie in one object",
                    primary.name, other.name
                ),
            ));
        }
    }
    Ok(())
}

/// The nearest ancestor, or the type itself, that has fields of its own.
fn solid(record: &TypeRecord) -> &TypeRecord {
    let mut record = record;
    while let Some(base) = record.base() {
        if record.basic_size != base.basic_size || record.item_size != base.item_size {
            return record;
        }
        record = base;
    }
    record
}

/// Flag, traverse and clear: all from the base, or all the type's own.
fn inherit_collection(
    name: &str,
    flags: &mut Flags,
    slots: &mut Slots,
    bases: &[RecordRef],
    heap_type: bool,
) -> Result<(), Fault> {
    let base = bases[0].get();
    if flags.has(Flags::HAVE_GC) {
        if slots.traverse.is_none() {
            return Err(fault(
                Code::MissingTraverse,
                name,
                format_args!("Py_TPFLAGS_HAVE_GC takes a traverse handler"),
            ));
        }
        return Ok(());
    }
    if !base.has_gc() {
        return Ok(());
    }
    if slots.traverse.is_some() || slots.clear.is_some() {
        return Err(fault(
            Code::HandlersWithoutFlag,
            name,
            format_args!("handlers given without Py_TPFLAGS_HAVE_GC under GC base '{}'", base.name),
        ));
    }
    *flags = flags.and(Flags::HAVE_GC);
    slots.traverse = match base.traverse {
        // Instances own their type now, which the base's handler knows nothing of.
        Some(_) if heap_type && !base.is_heap_type() => Some(handlers::traverse_inherited),
        inherited => inherited,
    };
    slots.clear = base.clear;
    Ok(())
}

/// Bytes of an instance, and place and size of the part that a negative number has asked for.
fn sizes(name: &str, asked: isize, base: &TypeRecord) -> Result<(usize, (usize, usize)), Fault> {
    const ALIGN: usize = 16;
    if asked < 0 {
        if base.item_size != 0 && !base.flags.has(Flags::ITEMS_AT_END) {
            return Err(fault(
                Code::BadSize,
                name,
                format_args!("the items of '{}' lie where its own part would", base.name),
            ));
        }
        // No base is larger than `MOST`, and no number's size larger than twice as much: rounding them up cannot overflow.
        let start = base.basic_size.next_multiple_of(ALIGN);
        let size = asked.unsigned_abs().next_multiple_of(ALIGN);
        return match start.checked_add(size) {
            Some(whole) if whole <= instance::MOST => Ok((whole, (start, size))),
            _ => Err(fault(Code::BadSize, name, format_args!("too large"))),
        };
    }
    match asked.unsigned_abs() {
        0 => Ok((base.basic_size, (0, 0))),
        size if size < base.basic_size => Err(fault(
            Code::BadSize,
            name,
            format_args!("{size} bytes are less than the {} of '{}'", base.basic_size, base.name),
        )),
        size if size > instance::MOST => Err(fault(Code::BadSize, name, format_args!("too large"))),
        size => Ok((size, (0, 0))),
    }
}

fn free_function(
    name: &str,
    own: Option<FreeProc>,
    gc: bool,
    flags: Flags,
    base: &TypeRecord,
    defaults: &Defaults,
) -> Result<FreeProc, Fault> {
    let same = |a: FreeProc, b: FreeProc| std::ptr::fn_addr_eq(a, b);
    let distinct = !same(defaults.plain_free, defaults.gc_free);
    match own {
        Some(free)
            if gc && flags.has(Flags::BASE_TYPE) && distinct && same(free, defaults.plain_free) =>
        {
            let text = "it takes part in cycle collection and may be a base, with a free function for other memory";
            Err(fault(Code::BadFree, name, format_args!("{text}")))
        }
        Some(free) => Ok(free),
        None if !is_root(base) && gc == base.has_gc() => Ok(base.free),
        None if gc => Ok(defaults.gc_free),
        None => Ok(defaults.plain_free),
    }
}

/// C3: the bases of the bases in an order that respects that of each of them.
fn linearize(name: &str, bases: &[RecordRef]) -> Result<Box<[RecordRef]>, Fault> {
    if let [base] = bases {
        // The order of one base is consistent. Merging it with itself would take time quadratic in its length.
        let order = &base.get().mro;
        let mut all = Vec::new();
        all.try_reserve_exact(1 + order.len()).map_err(NoMemory::from)?;
        all.push(*base);
        all.extend_from_slice(order);
        return Ok(all.into());
    }
    let mut lists: Vec<Vec<RecordRef>> = Vec::new();
    lists.try_reserve_exact(bases.len() + 1).map_err(NoMemory::from)?;
    for base in bases {
        let mut list = Vec::new();
        for record in base.get().mro() {
            fallible::push(&mut list, RecordRef(NonNull::from(record)))?;
        }
        lists.push(list);
    }
    lists.push(fallible::collect(bases.iter().copied())?);
    let mut order = Vec::new();
    loop {
        lists.retain(|list| !list.is_empty());
        if lists.is_empty() {
            // A copy of the right size, since to shrink the list would take memory, too.
            return Ok(fallible::collect(order.iter().copied())?.into());
        }
        let next = lists
            .iter()
            .map(|list| list[0])
            .find(|head| !lists.iter().any(|list| list[1..].contains(head)))
            .ok_or_else(|| {
                let names = Names(bases);
                fault(Code::BadMro, name, format_args!("no consistent order for the bases {names}"))
            })?;
        fallible::push(&mut order, next)?;
        for list in &mut lists {
            if list[0] == next {
                list.remove(0);
            }
        }
    }
}

/// The names of types, with commas between them.
struct Names<'a>(&'a [RecordRef]);

impl fmt::Display for Names<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, record) in self.0.iter().enumerate() {
            write!(f, "{}{}", if at == 0 { "" } else { ", " }, record.get().name)?;
        }
        Ok(())
    }
}

/// Makes a static type ready. `face`: the address by which the runtime knows it, or null for the record itself.
///
/// # Errors
///
/// When the spec makes no sense. Nothing has changed then.
///
/// # Safety
///
/// The handlers are what they are said to be, for objects that are laid out as the spec says: rule H.
pub unsafe fn ready_static(
    spec: &TypeSpec,
    face: *mut c_void,
) -> Result<&'static TypeRecord, Fault> {
    let record = Box::leak(fallible::boxed(draft(spec, false)?.record)?);
    let face = if face.is_null() { (&raw mut *record).cast() } else { face };
    *record.face.get_mut() = face;
    Ok(record)
}

/// Makes a heap type. `init` gets its object, zeroed behind the first 24 bytes, and its record, before anybody else
/// sees them.
///
/// # Errors
///
/// When the spec makes no sense, or there is no memory. Nothing has changed then.
///
/// # Safety
///
/// As for [`ready_static`].
pub unsafe fn ready_heap(
    m: &Mutator,
    spec: &TypeSpec,
    init: impl FnOnce(NonNull<RawObject>, &TypeRecord),
) -> Result<Type, Fault> {
    let size = spec.face_size.max(FACE);
    if size > instance::MOST {
        return Err(fault(Code::BadSize, &spec.name, format_args!("a face of {size} bytes")));
    }
    let mut record = fallible::boxed(draft(spec, true)?.record)?;
    // SAFETY: rule N: a fresh object of the metatype with a tail; it is not tracked before it is whole.
    let object = unsafe { instance::allocate_sized(m, METATYPE.get(), size, true) }
        .map_err(|why| fault(why.code, &record.name, format_args!("{}", why.text)))?;
    record.object = object.as_ptr();
    *record.face.get_mut() = object.as_ptr().cast();
    if let Some(module) = &spec.module {
        *record.module.get_mut() = super::into_raw(module.clone()).as_ptr();
    }
    for base in &record.bases {
        if let Some(base) = NonNull::new(base.get().object) {
            // SAFETY: rule R: the spec's handles hold the bases; the type gets references of its own.
            std::mem::forget(unsafe { share(base) });
        }
    }
    let record = Box::into_raw(record);
    // SAFETY: rule N: the object has a tail, and belongs to this thread until it is tracked; the reference goes over.
    unsafe {
        // Before any other code can ask the object for its record.
        instance::set_tail(object, record.cast());
        init(object, &*record);
        m.raw().track(crate::object::type_info::Object::new(object.cast()));
        Ok(Type {
            record: RecordRef(NonNull::new_unchecked(record)),
            object: Some(AnyGc::from_header(object.cast())),
        })
    }
}

/// The record that a heap type's object describes; `None`: the object is no heap type's.
///
/// # Safety
///
/// `object` is a living dynamic object. The record is borrowed from it.
pub unsafe fn describe<'a>(object: NonNull<RawObject>) -> Option<&'a TypeRecord> {
    // SAFETY: rule D; objects of the metatype in a heap have a tail with their record.
    unsafe {
        if !std::ptr::eq(type_of(object), METATYPE.get()) || super::is_static(object) {
            return None;
        }
        instance::tail(object).cast::<TypeRecord>().as_ref()
    }
}

/// The first type in `record`'s order with this token.
pub fn base_by_token(record: &TypeRecord, token: usize) -> Option<&TypeRecord> {
    record.mro().find(|base| token != 0 && base.token == token)
}

/// The part of an object that its class `record` has asked for with a negative size.
///
/// # Safety
///
/// `object` is a living dynamic object.
pub unsafe fn type_data(
    object: NonNull<RawObject>,
    record: &TypeRecord,
) -> Option<NonNull<c_void>> {
    // SAFETY: rule D.
    let own = unsafe { type_of(object) };
    if record.data.1 == 0 || !own.is_subtype_of(record) {
        return None;
    }
    // SAFETY: rule D: instances are at least so large.
    Some(unsafe { object.cast::<u8>().add(record.data.0).cast() })
}

/// Where the items of an object lie whose type keeps them at the end.
///
/// # Safety
///
/// `object` is a living dynamic object.
pub unsafe fn item_data(object: NonNull<RawObject>) -> Option<NonNull<c_void>> {
    // SAFETY: rule D.
    let record = unsafe { type_of(object) };
    if !record.flags.has(Flags::ITEMS_AT_END) || record.item_size == 0 {
        return None;
    }
    // SAFETY: rule D: instances are at least so large.
    Some(unsafe { object.cast::<u8>().add(record.basic_size).cast() })
}

/// A type that is there from the start.
pub struct Builtin {
    cell: OnceLock<&'static TypeRecord>,
    make: fn() -> Result<TypeRecord, Fault>,
}

impl fmt::Debug for Builtin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Builtin").field(&self.get().name).finish()
    }
}

impl Builtin {
    /// Its record. Where a heap has been made it is there.
    pub fn get(&self) -> &'static TypeRecord {
        self.cell
            .get()
            .copied()
            .unwrap_or_else(|| self.try_get().unwrap_or_else(|fault| panic!("{fault}")))
    }

    /// Its record, made if need be.
    ///
    /// # Errors
    ///
    /// When there is no memory.
    pub fn try_get(&self) -> Result<&'static TypeRecord, Fault> {
        if let Some(record) = self.cell.get() {
            return Ok(record);
        }
        let record = Box::into_raw(fallible::boxed((self.make)()?)?);
        // SAFETY: rule V: made just now, and never freed once it is in the cell.
        let known = unsafe { &*record };
        known.face.store(record.cast(), Ordering::Relaxed);
        if self.cell.set(known).is_err() {
            // SAFETY: rule V: another thread was first, and this record is known to nobody.
            drop(unsafe { Box::from_raw(record) });
        }
        Ok(self.get())
    }

    /// A handle to it.
    pub fn handle(&self) -> Type {
        Type::from_static(self.get())
    }

    /// Gives it a face, before anything is made of it.
    ///
    /// # Safety
    ///
    /// The functions in the type's slots can be called with the face.
    pub unsafe fn set_face(&self, face: *mut c_void) {
        // Relaxed: as in `TypeRecord::face`.
        self.get().face.store(face, Ordering::Relaxed);
    }
}

/// The root of all types: `object`.
pub static BASE: Builtin = Builtin { cell: OnceLock::new(), make: root };

fn root() -> Result<TypeRecord, Fault> {
    Ok(TypeRecord {
        face: AtomicPtr::new(std::ptr::null_mut()),
        made_by: None,
        traverse: None,
        static_traverse: None,
        clear: None,
        finalize: None,
        del: None,
        dealloc: None,
        own_dealloc: false,
        is_gc: None,
        alloc: DEFAULTS.alloc,
        free: DEFAULTS.plain_free,
        flags: Flags::BASE_TYPE.and(Flags::READY),
        basic_size: size_of::<RawObject>(),
        item_size: 0,
        data: (0, 0),
        class: class_for(size_of::<RawObject>(), crate::memory::space::GRANULE),
        common_class: None,
        ends_simply: false,
        object: std::ptr::null_mut(),
        bases: Box::new([]),
        mro: Box::new([]),
        name: fallible::owned("object")?.into_boxed_str(),
        keeps: None,
        module: AtomicPtr::new(std::ptr::null_mut()),
        token: 0,
        attributes: Attributes::default(),
        finalizer: None,
        tried: AtomicBool::new(true),
    })
}

/// A built-in type that takes part in cycle collection.
fn builtin(
    name: &'static str,
    size: usize,
    flags: Flags,
    slots: Slots,
) -> Result<TypeRecord, Fault> {
    let mut spec = TypeSpec::new(fallible::owned(name)?);
    spec.basic_size = size as isize;
    spec.flags = flags.and(Flags::HAVE_GC);
    spec.slots = slots;
    draft(&spec, false).map(|draft| TypeRecord { made_by: None, ..draft.record })
}

/// Makes the built-in types, so that nobody needs memory for them later.
///
/// # Errors
///
/// When there is no memory.
pub(crate) fn make_builtins() -> Result<(), Fault> {
    [&BASE, &METATYPE, &MODULE, &WEAKREF]
        .into_iter()
        .try_for_each(|builtin| builtin.try_get().map(drop))
}

/// The type of heap types: `type`.
pub static METATYPE: Builtin = Builtin {
    cell: OnceLock::new(),
    make: || {
        let slots = Slots {
            traverse: Some(traverse_type),
            clear: Some(clear_type),
            dealloc: Some(dealloc_type),
            ..Slots::default()
        };
        let record = builtin("type", size_of::<RawVarObject>(), Flags(1 << 31), slots)?;
        // Never allocated by size alone: a type without a record would be none. `instance_size` refuses it.
        Ok(TypeRecord { class: None, common_class: None, ..record })
    },
};

/// The type of modules.
pub static MODULE: Builtin = Builtin {
    cell: OnceLock::new(),
    make: || builtin("module", module::SIZE, Flags::BASE_TYPE, module::SLOTS),
};

/// The type of weak references.
pub static WEAKREF: Builtin = Builtin {
    cell: OnceLock::new(),
    make: || builtin("weakref", weakref::SIZE, Flags::default(), weakref::SLOTS),
};

/// Visits what a heap type owns: its bases, its module, its attributes.
unsafe extern "C" fn traverse_type(
    object: *mut RawObject,
    visit: super::VisitProc,
    arg: *mut c_void,
) -> std::ffi::c_int {
    // SAFETY: rule H: called for a living object of the metatype.
    let Some(record) = NonNull::new(object).and_then(|object| unsafe { describe(object) }) else {
        return 0;
    };
    for base in &record.bases {
        let base = base.get().object;
        if !base.is_null() {
            // SAFETY: rules H and R: `visit` belongs to `arg`, and the type owns the reference.
            let result = unsafe { visit(base, arg) };
            if result != 0 {
                return result;
            }
        }
    }
    let module = record.module();
    if !module.is_null() {
        // SAFETY: as above.
        let result = unsafe { visit(module, arg) };
        if result != 0 {
            return result;
        }
    }
    // SAFETY: as above.
    unsafe { record.attributes.visit(visit, arg) }
}

/// Takes attributes and module out. Handlers stay, so instances can still be used, and freed.
///
/// Other threads may have read the module's address from the type just now. So the reference is
/// retired: it is dropped when each attached thread has passed a safepoint.
unsafe extern "C" fn clear_type(object: *mut RawObject) -> std::ffi::c_int {
    // SAFETY: rule H: called for a living object of the metatype.
    if let Some(record) = NonNull::new(object).and_then(|object| unsafe { describe(object) }) {
        record.attributes.clear();
        if let Some(module) = NonNull::new(record.take_module()) {
            // SAFETY: rule R: the type owned the reference.
            unsafe { retire(module) };
        }
    }
    0
}

/// Retires a reference. One to a static object, which never dies, is given up at once.
///
/// # Safety
///
/// The caller owns the reference.
unsafe fn retire(object: NonNull<RawObject>) {
    // SAFETY: rule R: as the caller says; an object that is not static lies in a heap.
    unsafe {
        if super::is_static(object) {
            return drop(from_raw(object));
        }
        let header = super::header(object);
        let is_retired = Mutator::with_current(|m| {
            let is_here = m.raw().owns(managed::object(header));
            if is_here {
                managed::retire(m.raw(), header);
            }
            is_here
        });
        if is_retired != Some(true) {
            managed::retire_elsewhere(header);
        }
    }
}

/// The end of a heap type: nobody has instances, or subtypes, any more.
unsafe extern "C" fn dealloc_type(object: *mut RawObject) {
    let Some(object) = NonNull::new(object) else { return };
    // SAFETY: rules H and Z: called once, for a dying object of the metatype, which owns its record.
    unsafe {
        Mutator::with_current(|m| {
            instance::untrack_dying(m, object);
            instance::clear_weak_references(m, object);
        });
        let record = Box::from_raw(instance::tail(object).cast::<TypeRecord>());
        record.attributes.clear();
        // No thread has the type any more, so none reads its module.
        if let Some(module) = NonNull::new(record.take_module()) {
            drop(from_raw(module));
        }
        for base in &record.bases {
            if let Some(base) = NonNull::new(base.get().object) {
                drop(from_raw(base));
            }
        }
        drop(record);
        Mutator::with_current(|m| {
            if let Err(fault) = instance::free(m, object, instance::Family::Container) {
                m.raw().core().hooks.misuse(&fault);
            }
        });
    }
}
