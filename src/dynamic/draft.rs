//! The record of a type, drafted from a [`TypeSpec`].
//!
//! A program describes only what is special about a type, and leaves the rest to its bases. The
//! collector and the allocator need all values, but cannot search each object's bases. So a type is
//! made *ready* once: its record is the spec, completed by inheritance, and checked.
//!
//! For example, a program derives the heap type `Stack`, without handlers, from a static type for
//! lists that has the flag `HAVE_GC`. The record of `Stack` gets the flag, the clear handler of
//! lists, and a traverse handler. This one visits `Stack`, because each instance owns a reference
//! to it, and then calls the handler of lists.
//!
//! # Inheritance
//!
//! A type inherits sizes, flags and handlers from its *primary* base, the first one. The flag
//! `HAVE_GC`, the traverse handler and the clear handler are inherited together or not at all,
//! because a handler has to know the fields of the type. So a type that sets the flag must bring
//! its own handlers. The order of all bases (C3) serves subtype tests and searches by token.
//!
//! # Runtimes
//!
//! A runtime's functions can read only the faces of the runtime's own types, and an inherited
//! function is called with the face of the derived type. So a type and all its bases must be made
//! by one runtime, that is, with the same [`Defaults`]. The built-in types are bases for all
//! runtimes.

#![forbid(unsafe_code)]

use std::any::Any;
use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicPtr};

use crate::AnyGc;
use crate::base::fallible::{self, NoMemory, words};
use crate::dynamic::attributes::Attributes;
use crate::dynamic::builtin::{BASE, Inherited, OnlyAttributes};
use crate::dynamic::calls::{RustHandlers, clear_in_rust, dealloc_in_rust, traverse_in_rust};
use crate::dynamic::instance::{self, DEFAULTS};
use crate::dynamic::object::{FreeProc, RawObject, RawVarObject};
use crate::dynamic::record::{ClassFinalizer, Defaults, Flags, RecordRef, Slots, Type, TypeRecord};
use crate::memory::shape::GRANULE;
use crate::memory::size_class::class_for;
use crate::report::error::{Code, Fault};
use crate::report::event;

/// The smallest size of a heap type's object, in bytes. Every runtime may read so many bytes of any
/// heap type, because at least as many are allocated. If another runtime made the type, the bytes
/// behind the head are zero.
pub const FACE: usize = 264;

/// The description of a type.
#[derive(Clone, Debug)]
pub struct TypeSpec {
    /// The name, customarily `module.name`.
    pub name: String,
    /// Bytes of an instance, from its first byte; 0: as many as the base. A negative number
    /// reserves a part of that many bytes behind the base's, for
    /// [`type_data`](crate::dynamic::Obj::type_data).
    pub basic_size: isize,
    /// Bytes of an item; 0: as many as the base.
    pub item_size: isize,
    /// Its flags.
    pub flags: Flags,
    /// Its bases, the primary one first; none: [`BASE`].
    pub bases: Vec<Type>,
    /// Its handlers.
    pub slots: Slots,
    /// The module that it belongs to.
    pub module: Option<AnyGc>,
    /// The token by which [`base_by_token`](crate::dynamic::base_by_token) finds it; 0: none.
    pub token: usize,
    /// The functions for its empty slots; `None`: this library's own. Each base has the same
    /// functions, at the same address, or is built in.
    pub defaults: Option<&'static Defaults>,
    /// Bytes of a heap type's object, in which the runtime stores the face. At least [`FACE`] bytes
    /// are allocated.
    pub face_size: usize,
    /// Data that is dropped with the type, for example texts to which its face points.
    pub keeps: Option<Arc<dyn Any + Send + Sync>>,
    /// The finalizer of a class.
    pub(crate) finalizer: Option<ClassFinalizer>,
}

impl TypeSpec {
    /// A type with this name, and defaults for everything else.
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

    /// A heap type for instances that have attributes and no fields. It takes part in cycle
    /// collection, with this library's handlers.
    pub fn with_attributes(name: impl Into<String>) -> Self {
        let mut spec = Self::new(name);
        spec.flags = Flags::HAVE_GC.and(Flags::MANAGED_DICT).and(Flags::BASE_TYPE);
        spec.slots.traverse = Some(traverse_in_rust::<OnlyAttributes>);
        spec.slots.clear = Some(clear_in_rust::<OnlyAttributes>);
        spec
    }
}

/// A fault of a type that does not become ready. Its name is only part of the text, because copies
/// of names ([`TypeRecord::kept_name`]) are never freed, so that only ready types get one.
pub(super) fn fault(code: Code, name: &str, text: fmt::Arguments<'_>) -> Fault {
    Fault::new(code, "type readiness").because(words!("type '{name}': {text}"))
}

/// The largest size of an instance that is allocated by `instance::allocate_common`, which clears
/// the fields in a plain loop.
const COMMON_SIZE: usize = 128;

/// Computes the record of a type: adds the inherited values, and checks the result.
pub(super) fn draft(spec: &TypeSpec, heap_type: bool) -> Result<TypeRecord, Fault> {
    let name = &spec.name;
    let refuse = |code, text: fmt::Arguments<'_>| Err(fault(code, name, text));
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
    inherit_collection(name, &mut flags, &mut slots, base, heap_type)?;
    if flags.has(Flags::HAVE_GC) && slots.clear.is_none() && base.clear.is_some() {
        event::no_clear_handler(name, &base.name);
    }
    let inherited = Flags::MANAGED_DICT.and(Flags::ITEMS_AT_END).and(Flags::ITEMS_ARE_REFERENCES);
    // The bits for type families (CPython's `Py_TPFLAGS_*_SUBCLASS`) are inherited, too.
    let inherited = inherited.and(Flags(0xff00_0000));
    flags = flags.and(Flags(base.flags.0 & inherited.0)).and(Flags::READY);
    flags =
        if heap_type { flags.and(Flags::HEAP_TYPE) } else { Flags(flags.0 & !Flags::HEAP_TYPE.0) };
    let tail = flags.has(Flags::MANAGED_DICT);
    let gc = flags.has(Flags::HAVE_GC);
    if tail && !(gc && heap_type) {
        let text = format_args!("a managed dictionary requires Py_TPFLAGS_HAVE_GC and a heap type");
        return refuse(Code::BadFlags, text);
    }
    let (basic_size, data) = sizes(name, spec.basic_size, base)?;
    let item_size = match usize::try_from(spec.item_size) {
        Ok(0) => base.item_size,
        Ok(size) if base.item_size == 0 || size == base.item_size => size,
        Ok(_) => {
            let text = format_args!("its items have another size than the base's");
            return refuse(Code::BadSize, text);
        }
        Err(_) => return refuse(Code::BadSize, format_args!("a negative item size")),
    };
    if item_size != 0 && basic_size < size_of::<RawVarObject>() {
        let text = format_args!("a type with items needs room for their number behind the head");
        return refuse(Code::BadSize, text);
    }
    // The number of items lies behind the head, where a base without items has its first field.
    if item_size != 0 && base.item_size == 0 && base.basic_size > size_of::<RawObject>() {
        let text = format_args!(
            "the number of items would lie in the fields of '{}', which has none",
            base.name
        );
        return refuse(Code::BadSize, text);
    }
    // `resize` and C programs read such items as whole words.
    const WORD: usize = size_of::<usize>();
    let whole_words = item_size == WORD && basic_size.is_multiple_of(WORD);
    if flags.has(Flags::ITEMS_ARE_REFERENCES) && !whole_words {
        let text = format_args!(
            "items that are references must have {WORD} bytes, at a multiple of {WORD}"
        );
        return refuse(Code::BadSize, text);
    }
    let free = free_function(name, slots.free, flags, base, defaults)?;
    let class = class_for(basic_size + if tail { WORD } else { 0 }, GRANULE);
    let dealloc = slots.dealloc.or(base.dealloc);
    let finalize = slots.finalize.or(base.finalize);
    let del = slots.del.or(base.del);
    let usual_free = gc && std::ptr::fn_addr_eq(free, defaults.gc_free);
    let is_common = gc && !tail && item_size == 0 && basic_size <= COMMON_SIZE;
    Ok(TypeRecord {
        made_by: Some(defaults),
        traverse: slots.traverse,
        static_traverse: if base.is_heap_type() { base.static_traverse } else { base.traverse },
        clear: slots.clear,
        finalize,
        del,
        dealloc,
        own_dealloc: slots.dealloc.is_some(),
        is_gc: slots.is_gc.or(base.is_gc),
        // The root's allocator is not inherited, because it reads only faces of types made in Rust.
        alloc: slots.alloc.or((!is_root(base)).then_some(base.alloc)).unwrap_or(defaults.alloc),
        free,
        flags,
        basic_size,
        item_size,
        data,
        class,
        common_class: class.filter(|_| is_common),
        ends_simply: usual_free
            && !tail
            && dealloc.is_none()
            && finalize.is_none()
            && del.is_none(),
        mro: linearize(name, &bases)?,
        // The handles own references to heap types.
        bases: fallible::collect(bases.iter().map(|base| Type::from_record(base.get())))?.into(),
        keeps: spec.keeps.clone(),
        token: spec.token,
        finalizer: spec.finalizer,
        clears_last: base.clears_last,
        tried: AtomicBool::new(false),
        ..root(name)?
    })
}

/// The record of the root of all types, but with this name.
pub(super) fn root(name: &str) -> Result<TypeRecord, Fault> {
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
        class: class_for(size_of::<RawObject>(), GRANULE),
        common_class: None,
        ends_simply: false,
        object: std::ptr::null_mut(),
        bases: Box::new([]),
        mro: Box::new([]),
        name: fallible::owned(name)?.into_boxed_str(),
        keeps: None,
        module: AtomicPtr::new(std::ptr::null_mut()),
        token: 0,
        attributes: Attributes::default(),
        finalizer: None,
        is_metatype: false,
        clears_last: false,
        tried: AtomicBool::new(true),
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
    let refuse = |code, text: fmt::Arguments<'_>| Err(fault(code, name, text));
    for (at, base) in bases.iter().enumerate() {
        let record = base.get();
        let base_name = &record.name;
        if !record.flags.has(Flags::BASE_TYPE) {
            return refuse(Code::BadBase, format_args!("'{base_name}' cannot be a base"));
        }
        if record.made_by.is_some_and(|maker| !std::ptr::eq(maker, defaults)) {
            let text = format_args!("its base '{base_name}' was made by another runtime");
            return refuse(Code::BadBase, text);
        }
        if bases[..at].contains(base) {
            return refuse(Code::BadBase, format_args!("'{base_name}' is a base twice"));
        }
        if record.is_heap_type() && !heap_type {
            let text =
                format_args!("a static type cannot have the heap type '{base_name}' as a base");
            return refuse(Code::BadBase, text);
        }
    }
    let primary = bases[0].get();
    for other in bases[1..].iter().map(RecordRef::get) {
        let (name, primary_name) = (&other.name, &primary.name);
        if other.has_gc() && !primary.has_gc() {
            let text = format_args!(
                "its base '{name}' takes part in cycle collection, and '{primary_name}', the \
                 primary one, does not"
            );
            return refuse(Code::MixedBases, text);
        }
        if !primary.is_subtype_of(solid(other)) {
            let text = format_args!(
                "the fields of '{primary_name}' and '{name}' cannot lie in one object"
            );
            return refuse(Code::BadBase, text);
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

/// Inherits the flag `HAVE_GC` with the traverse and clear handlers, unless the type sets the flag.
/// Handlers without the flag are an error under a base with the flag.
fn inherit_collection(
    name: &str,
    flags: &mut Flags,
    slots: &mut Slots,
    base: &TypeRecord,
    heap_type: bool,
) -> Result<(), Fault> {
    if flags.has(Flags::HAVE_GC) {
        if slots.traverse.is_none() {
            let text = format_args!("Py_TPFLAGS_HAVE_GC requires a traverse handler");
            return Err(fault(Code::MissingTraverse, name, text));
        }
        return Ok(());
    }
    if !base.has_gc() {
        return Ok(());
    }
    if slots.traverse.is_some() || slots.clear.is_some() {
        let text =
            format_args!("handlers given without Py_TPFLAGS_HAVE_GC under GC base '{}'", base.name);
        return Err(fault(Code::HandlersWithoutFlag, name, text));
    }
    *flags = flags.and(Flags::HAVE_GC);
    slots.traverse = match base.traverse {
        // Instances of a heap type own a reference to it, which no static base's handler visits.
        Some(_) if heap_type && !base.is_heap_type() => Some(traverse_in_rust::<Inherited>),
        inherited => inherited,
    };
    slots.clear = base.clear;
    Ok(())
}

/// Bytes of an instance, and offset and size of the part that a negative number reserves.
fn sizes(name: &str, asked: isize, base: &TypeRecord) -> Result<(usize, (usize, usize)), Fault> {
    const ALIGN: usize = 16;
    let refuse = |text: fmt::Arguments<'_>| Err(fault(Code::BadSize, name, text));
    let (size, data) = if asked < 0 {
        if base.item_size != 0 && !base.flags.has(Flags::ITEMS_AT_END) {
            let base_name = &base.name;
            return refuse(format_args!("its own part would overlap the items of '{base_name}'"));
        }
        // Rounding up cannot overflow, because a base has at most `SIZE_LIMIT` bytes, and `asked`
        // is at least -2^63.
        let start = base.basic_size.next_multiple_of(ALIGN);
        let own = asked.unsigned_abs().next_multiple_of(ALIGN);
        (start.saturating_add(own), (start, own))
    } else {
        (if asked == 0 { base.basic_size } else { asked.unsigned_abs() }, (0, 0))
    };
    if size < base.basic_size {
        let least = base.basic_size;
        return refuse(format_args!("{size} bytes are less than the {least} of '{}'", base.name));
    }
    if size > instance::SIZE_LIMIT {
        return refuse(format_args!("too large"));
    }
    Ok((size, data))
}

fn free_function(
    name: &str,
    own: Option<FreeProc>,
    flags: Flags,
    base: &TypeRecord,
    defaults: &Defaults,
) -> Result<FreeProc, Fault> {
    let same = |a: FreeProc, b: FreeProc| std::ptr::fn_addr_eq(a, b);
    let distinct = !same(defaults.plain_free, defaults.gc_free);
    let gc = flags.has(Flags::HAVE_GC);
    match own {
        Some(free)
            if gc && flags.has(Flags::BASE_TYPE) && distinct && same(free, defaults.plain_free) =>
        {
            let text = "it may be a base and takes part in cycle collection, but its free function is for other types";
            Err(fault(Code::BadFree, name, format_args!("{text}")))
        }
        Some(free) => Ok(free),
        None if !is_root(base) && gc == base.has_gc() => Ok(base.free),
        None if gc => Ok(defaults.gc_free),
        None => Ok(defaults.plain_free),
    }
}

/// All ancestors in C3 order, which keeps the orders of the bases and of each base's ancestors.
fn linearize(name: &str, bases: &[RecordRef]) -> Result<Box<[RecordRef]>, Fault> {
    if let [base] = bases {
        // A single base needs no merge, which would take time quadratic in the number of ancestors.
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
            // A copy, because shrinking the list also allocates, but cannot report failure.
            return Ok(fallible::collect(order.iter().copied())?.into());
        }
        let mut heads = lists.iter().map(|list| list[0]);
        let next = heads.find(|head| !lists.iter().any(|list| list[1..].contains(head)));
        let Some(next) = next else {
            let bases = Names(bases);
            let text = format_args!("no consistent order for the bases {bases}");
            return Err(fault(Code::BadMro, name, text));
        };
        fallible::push(&mut order, next)?;
        for list in &mut lists {
            if list[0] == next {
                list.remove(0);
            }
        }
    }
}

struct Names<'a>(&'a [RecordRef]);

impl fmt::Display for Names<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, record) in self.0.iter().enumerate() {
            write!(f, "{}{}", if at == 0 { "" } else { ", " }, record.get().name)?;
        }
        Ok(())
    }
}

/// A built-in type that takes part in cycle collection.
pub(super) fn builtin<H: RustHandlers>(
    name: &'static str,
    size: usize,
    flags: Flags,
) -> Result<TypeRecord, Fault> {
    let mut spec = TypeSpec::new(fallible::owned(name)?);
    spec.basic_size = size as isize;
    spec.flags = flags.and(Flags::HAVE_GC);
    spec.slots.traverse = Some(traverse_in_rust::<H>);
    spec.slots.clear = Some(clear_in_rust::<H>);
    spec.slots.dealloc = Some(dealloc_in_rust::<H>);
    Ok(TypeRecord { made_by: None, ..draft(&spec, false)? })
}
