//! The record of a type, drafted from a [`TypeSpec`].
//!
//! A program describes only what is special about a type, and leaves the rest to its bases. The
//! collector and the allocator need all values, and cannot search for them in the bases of each
//! object. So a type is made *ready* once: its record is the spec, completed by inheritance, and
//! checked.
//!
//! For example, a runtime has a static type for lists, with the flag `HAVE_GC` and its handlers,
//! and a program derives the heap type `Stack` from it, without handlers. The record of `Stack`
//! gets the flag, the clear handler of lists, and a traverse handler that visits `Stack` and then
//! calls the handler of lists, because an instance of a heap type also owns a reference to its
//! type.
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
use crate::dynamic::builtin::BASE;
use crate::dynamic::instance::{self, DEFAULTS};
use crate::dynamic::object::{FreeProc, RawObject, RawVarObject};
use crate::dynamic::record::{ClassFinalizer, Defaults, Flags, RecordRef, Slots, Type, TypeRecord};
use crate::dynamic::rust_handlers::{self, Inherited, OnlyAttributes, RustHandlers};
use crate::memory::size_class::class_for;
use crate::report::error::{Code, Fault};
use crate::report::event;

/// The smallest size of a heap type's object, in bytes. Every runtime may read so many bytes of any
/// heap type. If another runtime made the type, the bytes behind the head are zero.
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
        spec.slots.traverse = Some(rust_handlers::traverse::<OnlyAttributes>);
        spec.slots.clear = Some(rust_handlers::clear::<OnlyAttributes>);
        spec
    }
}

/// A fault of a type that does not become ready. Its name is only part of the text: copies of names
/// ([`TypeRecord::kept_name`]) are never freed, so only ready types get one.
pub(super) fn fault(code: Code, name: &str, text: fmt::Arguments<'_>) -> Fault {
    Fault::new(code, "type readiness").because(words!("type '{name}': {text}"))
}

/// The largest size of an instance that is allocated by `instance::allocate_common`, which clears
/// the fields in a plain loop.
const COMMON_SIZE: usize = 128;

/// The record of a type, before it has its final address.
pub(super) struct Draft {
    pub(super) record: TypeRecord,
}

/// Computes the record of a type: adds the inherited values, and checks the result.
pub(super) fn draft(spec: &TypeSpec, heap_type: bool) -> Result<Draft, Fault> {
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
    // The bits for type families (CPython's `Py_TPFLAGS_*_SUBCLASS`) are inherited.
    flags = flags.and(Flags(base.flags.0 & 0xff00_0000));
    flags = Flags(flags.0 & !Flags::HEAP_TYPE.0).and(Flags::READY);
    if heap_type {
        flags = flags.and(Flags::HEAP_TYPE);
    }
    if flags.has(Flags::MANAGED_DICT) && !(flags.has(Flags::HAVE_GC) && heap_type) {
        let text = format_args!("a managed dictionary requires Py_TPFLAGS_HAVE_GC and a heap type");
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
                format_args!("its items have another size than the base's"),
            ));
        }
        Err(_) => return Err(fault(Code::BadSize, name, format_args!("a negative item size"))),
    };
    if item_size != 0 && basic_size < size_of::<RawVarObject>() {
        return Err(fault(
            Code::BadSize,
            name,
            format_args!("a type with items needs room for their number behind the head"),
        ));
    }
    // The number of items lies behind the head. A base without items has its first field there.
    if item_size != 0 && base.item_size == 0 && base.basic_size > size_of::<RawObject>() {
        let text = format_args!(
            "the number of items would lie in the fields of '{}', which has none",
            base.name
        );
        return Err(fault(Code::BadSize, name, text));
    }
    // `resize` and C programs read such items as whole words.
    const WORD: usize = size_of::<usize>();
    if flags.has(Flags::ITEMS_ARE_REFERENCES)
        && (item_size != WORD || !basic_size.is_multiple_of(WORD))
    {
        let text = format_args!(
            "items that are references must have {WORD} bytes, at a multiple of {WORD}"
        );
        return Err(fault(Code::BadSize, name, text));
    }
    let gc = flags.has(Flags::HAVE_GC);
    let free = free_function(name, slots.free, gc, flags, base, defaults)?;
    let own_dealloc = slots.dealloc.is_some();
    let tail = flags.has(Flags::MANAGED_DICT);
    let class = class_for(
        basic_size + if tail { size_of::<usize>() } else { 0 },
        crate::memory::shape::GRANULE,
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
            // The root's allocator is not inherited: it reads only faces of types made in Rust.
            alloc: slots.alloc.or((!is_root(base)).then_some(base.alloc)).unwrap_or(defaults.alloc),
            free,
            flags,
            basic_size,
            item_size,
            data,
            class,
            common_class: class
                .filter(|_| gc && !tail && item_size == 0 && basic_size <= COMMON_SIZE),
            ends_simply,
            object: std::ptr::null_mut(),
            mro: linearize(name, &bases)?,
            bases: own_bases(&bases)?,
            name: fallible::owned(name)?.into_boxed_str(),
            keeps: spec.keeps.clone(),
            module: AtomicPtr::new(std::ptr::null_mut()),
            token: spec.token,
            attributes: Attributes::default(),
            finalizer: spec.finalizer,
            is_metatype: false,
            clears_last: base.clears_last,
            tried: AtomicBool::new(false),
        },
    })
}

/// Handles to the bases, which own references to heap types.
fn own_bases(bases: &[RecordRef]) -> Result<Box<[Type]>, NoMemory> {
    let bases = bases.iter().map(|base| Type::from_record(base.get()));
    Ok(fallible::collect(bases)?.into())
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
                format_args!("'{}' cannot be a base", record.name),
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

/// Inherits the flag `HAVE_GC` with the traverse and clear handlers, unless the type sets the flag.
/// Handlers without the flag are an error under a base with the flag.
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
                format_args!("Py_TPFLAGS_HAVE_GC requires a traverse handler"),
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
        // Instances of a heap type own a reference to it. A static base's handler does not visit
        // it.
        Some(_) if heap_type && !base.is_heap_type() => Some(rust_handlers::traverse::<Inherited>),
        inherited => inherited,
    };
    slots.clear = base.clear;
    Ok(())
}

/// Bytes of an instance, and offset and size of the part that a negative number reserves.
fn sizes(name: &str, asked: isize, base: &TypeRecord) -> Result<(usize, (usize, usize)), Fault> {
    const ALIGN: usize = 16;
    if asked < 0 {
        if base.item_size != 0 && !base.flags.has(Flags::ITEMS_AT_END) {
            return Err(fault(
                Code::BadSize,
                name,
                format_args!("its own part would overlap the items of '{}'", base.name),
            ));
        }
        // A base has at most `SIZE_LIMIT` bytes, and `asked` is at least -2^63. So rounding up
        // cannot overflow.
        let start = base.basic_size.next_multiple_of(ALIGN);
        let size = asked.unsigned_abs().next_multiple_of(ALIGN);
        return match start.checked_add(size) {
            Some(whole) if whole <= instance::SIZE_LIMIT => Ok((whole, (start, size))),
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
        size if size > instance::SIZE_LIMIT => {
            Err(fault(Code::BadSize, name, format_args!("too large")))
        }
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
            let text = "it may be a base and takes part in cycle collection, but its free function is for other types";
            Err(fault(Code::BadFree, name, format_args!("{text}")))
        }
        Some(free) => Ok(free),
        None if !is_root(base) && gc == base.has_gc() => Ok(base.free),
        None if gc => Ok(defaults.gc_free),
        None => Ok(defaults.plain_free),
    }
}

/// All ancestors in C3 order. It keeps the order of the bases, and the order of each base's own
/// ancestors.
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
            // A copy of the exact size. Shrinking the list also allocates, and cannot report
            // failure.
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

/// A built-in type that takes part in cycle collection.
pub(super) fn builtin<H: RustHandlers>(
    name: &'static str,
    size: usize,
    flags: Flags,
) -> Result<TypeRecord, Fault> {
    let mut spec = TypeSpec::new(fallible::owned(name)?);
    spec.basic_size = size as isize;
    spec.flags = flags.and(Flags::HAVE_GC);
    spec.slots.traverse = Some(rust_handlers::traverse::<H>);
    spec.slots.clear = Some(rust_handlers::clear::<H>);
    spec.slots.dealloc = Some(rust_handlers::dealloc::<H>);
    draft(&spec, false).map(|draft| TypeRecord { made_by: None, ..draft.record })
}
