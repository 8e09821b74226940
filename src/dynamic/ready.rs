//! How a type is made ready from a [`TypeSpec`].
//!
//! Making a type *ready* fills in what it inherits and then checks it.
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
use std::ffi::c_void;
use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

use crate::base::error::{Code, Fault};
use crate::base::event;
use crate::base::fallible::{self, NoMemory};
use crate::base::text::words;
use crate::dynamic::attributes::Attributes;
use crate::dynamic::builtin::{BASE, METATYPE};
use crate::dynamic::class::Finalizer;
use crate::dynamic::object::{FreeProc, RawObject, RawVarObject, into_raw};
use crate::dynamic::record::{Defaults, Flags, RecordRef, Slots, Type, TypeRecord};
use crate::dynamic::{dealloc, handlers, instance, object};
use crate::memory::arena::class_for;
use crate::{AnyGc, Mutator};

/// The functions of this module itself, with faces that are records. A static: its address says who made a type.
pub(crate) static DEFAULTS: Defaults = Defaults {
    alloc: instance::generic_alloc,
    gc_free: dealloc::generic_free,
    plain_free: dealloc::generic_free,
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
    /// `type_data`.
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
    /// What `base_by_token` finds it by; 0: nothing.
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

/// The type does not become ready. Its name stands in the text alone: names that are [kept](kept) are those of types that there are.
fn fault(code: Code, name: &str, text: fmt::Arguments<'_>) -> Fault {
    Fault::new(code, "type readiness").because(words!("type '{name}': {text}"))
}

/// Bytes of an instance that are cleared in a plain loop.
const COMMON: usize = 128;

/// What a type is, before it has an address.
pub(super) struct Draft {
    pub(super) record: TypeRecord,
}

/// Fills in what a type inherits, and checks it.
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
    // It is not tracked before its tail is set.
    let object = instance::allocate_sized(m, METATYPE.get(), size, true)
        .map_err(|why| fault(why.code, &record.name, format_args!("{}", why.text)))?;
    record.object = object.as_ptr();
    *record.face.get_mut() = object.as_ptr().cast();
    if let Some(module) = &spec.module {
        *record.module.get_mut() = into_raw(module.clone()).as_ptr();
    }
    for base in &record.bases {
        if let Some(base) = base.get().type_object() {
            // The type gets references of its own.
            std::mem::forget(base.share());
        }
    }
    let record = Box::into_raw(record);
    // SAFETY: rule N: the object has a tail, and belongs to this thread until it is tracked; the reference goes over.
    unsafe {
        // Before any other code can ask the object for its record.
        object::tail_slot(object).store(record.cast(), Ordering::Release);
        init(object, &*record);
        m.raw().track(crate::object::type_info::Object::new(object.cast()));
        Ok(Type {
            record: RecordRef(NonNull::new_unchecked(record)),
            object: Some(AnyGc::from_header(object.cast())),
        })
    }
}
