//! Dynamic objects: their types, handlers written in Rust, and access to their fields.
//!
//! An object has a tag behind its head, and its fields behind that. Instances of heap types have
//! attributes instead. A typed object's destructor may panic wherever a reference is dropped, and
//! no panic may leave a handler. So handlers drop references through the world.

use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::ptr::NonNull;
use std::sync::OnceLock;

use standstill::dynamic::{
    self, Family, Flags, RawObject, RawVarObject, Type, TypeRecord, TypeSpec, VisitProc, WEAKREF,
};
use standstill::{AnyGc, Mutator};

use crate::objects::Ref;
use crate::program::Shape;
use crate::world::{Tag, World};

type Ptr = NonNull<RawObject>;
type Field = *mut RawObject;

/// Fields of a pair.
const PAIR: usize = 2;
/// Items of an object with items.
const ITEMS: usize = 3;
/// The names of attributes.
const NAMES: [&str; 2] = ["first", "second"];

// ------------------------------------------------------------------------------------------ layout

/// Where the tag's address lies, and the fields behind it.
///
/// # Safety
///
/// `object` is alive or dying, of a type made here, and no other thread changes it now.
unsafe fn parts<'a>(object: Ptr) -> (&'a Cell<*mut Tag>, &'a [Cell<Field>]) {
    // SAFETY: such objects are laid out like this.
    unsafe {
        let (head, fields) = match dynamic::Obj::new(object).size() {
            Ok(items) => (size_of::<RawVarObject>(), items as usize),
            Err(_) if dynamic::Obj::new(object).record().is_heap_type() => {
                (size_of::<RawObject>(), 0)
            }
            Err(_) => (size_of::<RawObject>(), PAIR),
        };
        let tag = object.byte_add(head).cast::<Cell<*mut Tag>>();
        (tag.as_ref(), std::slice::from_raw_parts(tag.add(1).cast().as_ptr(), fields))
    }
}

/// The tag of an object of a type made here; `None`: it is of another type.
pub(crate) fn tag(gc: &AnyGc) -> Option<&Tag> {
    let object = dynamic::as_raw(gc);
    // SAFETY: the handle keeps the object alive, and the tag lives as long. Types made here have a
    // tag's room, others are the metatype and that of weak references.
    unsafe {
        let record = dynamic::Obj::new(object).record();
        let own =
            !record.is_subtype_of(WEAKREF.get()) && dynamic::Obj::new(object).describe().is_none();
        own.then(|| parts(object).0.get().as_ref()).flatten()
    }
}

/// The world of an object.
///
/// # Safety
///
/// As for [`parts`].
unsafe fn world<'a>(object: Ptr) -> &'a World {
    // SAFETY: the tag is there until the object's memory is given back.
    unsafe { &(*parts(object).0.get()).world }
}

/// A handle from a field's reference.
///
/// # Safety
///
/// The field owned the reference, and gives it up.
unsafe fn own(field: Field) -> Option<AnyGc> {
    // SAFETY: as the caller says.
    NonNull::new(field).map(|object| unsafe { dynamic::from_raw(object) })
}

// ---------------------------------------------------------------------------------------- handlers

unsafe extern "C" fn traverse(object: *mut RawObject, visit: VisitProc, arg: *mut c_void) -> c_int {
    // SAFETY: called for a living object of a type made here, in a stop.
    unsafe {
        let object = NonNull::new_unchecked(object);
        let (tag, fields) = parts(object);
        if let Some(tag) = tag.get().as_ref() {
            tag.check();
        }
        let class = dynamic::Obj::new(object).record().object();
        for field in [class].into_iter().chain(fields.iter().map(Cell::get)) {
            if !field.is_null() {
                let result = visit(field, arg);
                if result != 0 {
                    return result;
                }
            }
        }
        dynamic::Obj::new(object).visit_managed_dict(dynamic::Visitor::new(visit, arg))
    }
}

unsafe extern "C" fn clear(object: *mut RawObject) -> c_int {
    // SAFETY: called for a living or dying object of a type made here.
    unsafe {
        let object = NonNull::new_unchecked(object);
        let (tag, fields) = parts(object);
        let Some(tag) = tag.get().as_ref() else { return 0 };
        tag.clear();
        for field in fields {
            drop(own(field.replace(std::ptr::null_mut())));
        }
        dynamic::Obj::new(object).clear_managed_dict();
    }
    0
}

unsafe extern "C" fn finalize(object: *mut RawObject) {
    Mutator::with_current(|m| {
        // SAFETY: called for a living object of a type made here.
        let (tag, object) = unsafe {
            let object = NonNull::new_unchecked(object);
            (&*parts(object).0.get(), object)
        };
        tag.world.recording_bursts(|| {
            tag.finalize(m, || {
                // SAFETY: the caller of a finalizer has a reference; this handle gets a reference
                // of its own.
                Ref::Dynamic(unsafe {
                    assert!(dynamic::Obj::new(object).incref());
                    dynamic::from_raw(object)
                })
            });
        });
    })
    .expect("handlers run attached");
}

/// The end of objects with a type that destroys them itself.
unsafe extern "C" fn dealloc(object: *mut RawObject) {
    Mutator::with_current(|m| {
        // SAFETY: called for a dying object of a type made here, which owns its fields.
        unsafe {
            let object = NonNull::new_unchecked(object);
            if dynamic::Dying::new(m, dynamic::Obj::new(object)).call_finalizer() {
                return;
            }
            dynamic::Obj::new(object).untrack(m).expect("a container");
            dynamic::Dying::new(m, dynamic::Obj::new(object)).clear_weak_references();
            clear(object.as_ptr());
            free(object.as_ptr().cast());
        }
    })
    .expect("handlers run attached");
}

/// The end of an object's memory, and of its tag.
unsafe extern "C" fn free(object: *mut c_void) {
    Mutator::with_current(|m| {
        // SAFETY: called once for a dying object of a type of this file, whose tag is a box.
        unsafe {
            let object = NonNull::new_unchecked(object.cast::<RawObject>());
            drop(Box::from_raw(parts(object).0.get()));
            dynamic::free(m, object, Family::Container).expect("no reference is left");
        }
    })
    .expect("handlers run attached");
}

// ------------------------------------------------------------------------------------------- types

fn spec(name: &str, head: usize, fields: usize, finalizer: bool) -> TypeSpec {
    let mut spec = TypeSpec::new(name);
    spec.basic_size = (head + size_of::<*mut Tag>() + fields * size_of::<Field>()) as isize;
    spec.flags = Flags::HAVE_GC;
    spec.slots.traverse = Some(traverse);
    spec.slots.clear = Some(clear);
    spec.slots.finalize = finalizer.then_some(finalize as _);
    spec.slots.free = Some(free);
    spec
}

/// The static type of a shape.
fn static_type(shape: Shape, finalizer: bool) -> &'static TypeRecord {
    static TYPES: [OnceLock<&TypeRecord>; 5] = [const { OnceLock::new() }; 5];
    const HEAD: usize = size_of::<RawObject>();
    let at = match shape {
        Shape::Pair => usize::from(finalizer),
        Shape::Items => 2 + usize::from(finalizer),
        _ => 4,
    };
    TYPES[at].get_or_init(|| {
        let spec = match shape {
            Shape::Pair => spec("oracle.Pair", HEAD, PAIR, finalizer),
            Shape::Items => {
                let mut spec = spec("oracle.Items", size_of::<RawVarObject>(), 0, finalizer);
                spec.item_size = size_of::<Field>() as isize;
                spec.slots.dealloc = Some(dealloc);
                spec
            }
            _ => {
                let mut spec = spec("oracle.Legacy", HEAD, PAIR, false);
                spec.slots.del = Some(finalize);
                spec
            }
        };
        // SAFETY: the handlers are for objects that are laid out like this.
        unsafe { dynamic::ready_static(&spec, std::ptr::null_mut()) }.expect("a sound type")
    })
}

/// A heap type for instances with attributes.
pub(crate) fn heap_type(m: &Mutator, finalizer: bool) -> Type {
    let mut spec = spec("oracle.Instance", size_of::<RawObject>(), 0, finalizer);
    spec.flags = Flags::HAVE_GC.and(Flags::MANAGED_DICT);
    // SAFETY: the handlers are for objects that are laid out like this.
    unsafe { dynamic::ready_heap(m, &spec, |_, _| {}) }.expect("a sound type")
}

// --------------------------------------------------------------------------------------- instances

pub(crate) fn alloc(m: &Mutator, shape: Shape, tag: Tag) -> AnyGc {
    let finalizer = tag.kind.has_finalizer();
    let types = tag.world.types.lock().unwrap();
    let record = match shape {
        Shape::Instance => types[usize::from(finalizer)].record(),
        shape => static_type(shape, finalizer),
    };
    // SAFETY: a ready type. No other thread has the object before its tag is there, and no stop
    // comes in between.
    unsafe {
        let items = if shape == Shape::Items { ITEMS } else { 0 };
        let object = dynamic::allocate_tracked(m, record, items as isize).expect("memory");
        drop(types);
        parts(object).0.set(Box::into_raw(Box::new(tag)));
        dynamic::from_raw(object)
    }
}

fn has_attributes(gc: &AnyGc) -> bool {
    // SAFETY: the handle keeps the object alive.
    unsafe { dynamic::Obj::new(dynamic::as_raw(gc)).record() }.flags().has(Flags::MANAGED_DICT)
}

/// The fields of an object that has any of its own.
fn raw_fields(gc: &AnyGc) -> &[Cell<Field>] {
    match tag(gc) {
        // SAFETY: of a type made here; one thread at a time runs a program's steps.
        Some(_) => unsafe { parts(dynamic::as_raw(gc)).1 },
        None => &[],
    }
}

pub(crate) fn fields(m: &Mutator, gc: &AnyGc) -> Vec<Option<Ref>> {
    if has_attributes(gc) {
        return NAMES
            .iter()
            .map(|name| gc.attribute(m, name).ok().map(|gc| Ref::of(gc, m)))
            .collect();
    }
    let handle = |field: &Cell<Field>| {
        let object = NonNull::new(field.get())?;
        // SAFETY: the field's reference keeps the object alive; the handle gets its own.
        Some(Ref::of(
            unsafe {
                assert!(dynamic::Obj::new(object).incref());
                dynamic::from_raw(object)
            },
            m,
        ))
    };
    raw_fields(gc).iter().map(handle).collect()
}

/// Puts a reference into the first empty field; says whether there was one.
pub(crate) fn push(m: &Mutator, gc: &AnyGc, to: AnyGc) -> bool {
    if has_attributes(gc) {
        let empty = NAMES.iter().find(|name| gc.attribute(m, name).is_err());
        return empty.is_some_and(|name| gc.set_attribute(m, name, Some(to)).is_ok());
    }
    match raw_fields(gc).iter().find(|field| field.get().is_null()) {
        Some(field) => {
            field.set(dynamic::into_raw(to).as_ptr());
            true
        }
        None => false,
    }
}

/// Takes a reference out of a field.
pub(crate) fn remove(m: &Mutator, gc: &AnyGc, at: usize) -> Option<AnyGc> {
    if has_attributes(gc) {
        let name = NAMES.get(at)?;
        let old = gc.attribute(m, name).ok()?;
        gc.set_attribute(m, name, None).expect("an attribute that is there");
        return Some(old);
    }
    let field = raw_fields(gc).get(at)?;
    // SAFETY: the field owned the reference.
    unsafe { own(field.replace(std::ptr::null_mut())) }
}

// --------------------------------------------------------------------------------- weak references

/// A weak reference to `target`, which calls if it is given something to hold.
pub(crate) fn watch(m: &Mutator, target: &AnyGc, holds: Option<AnyGc>) -> AnyGc {
    unsafe extern "C" fn called(callback: *mut RawObject, weak_ref: *mut RawObject) {
        Mutator::with_current(|m| {
            // SAFETY: both are alive; the callback is an object of a type made here.
            let (world, weak_ref) = unsafe {
                (world(NonNull::new_unchecked(callback)), NonNull::new_unchecked(weak_ref))
            };
            // SAFETY: alive.
            let target = unsafe { dynamic::Obj::new(weak_ref).weakref_target(m) };
            assert!(target.expect("a weak reference").is_none(), "cleared before the callback");
            let id = world.names.lock().unwrap()[&(weak_ref.as_ptr() as usize)];
            world.was_called(id);
        })
        .expect("handlers run attached");
    }
    // SAFETY: the target is alive, and the function takes such callbacks.
    unsafe {
        dynamic::new_weakref(
            m,
            dynamic::Obj::new(dynamic::as_raw(target)),
            holds.map(|gc| (gc, called as _)),
        )
    }
    .expect("memory")
}

/// The target of a weak reference; `None`: it is no weak reference.
pub(crate) fn upgrade_any(m: &Mutator, gc: &AnyGc) -> Option<Option<AnyGc>> {
    // SAFETY: alive.
    unsafe { dynamic::Obj::new(dynamic::as_raw(gc)).weakref_target(m) }.ok()
}

/// A handle to the object that lies at an address.
///
/// # Safety
///
/// A living object of the mutator's heap lies there, and no thread drops its last reference
/// meanwhile.
pub(crate) unsafe fn at(_: &Mutator, address: usize) -> AnyGc {
    let object = std::ptr::with_exposed_provenance_mut::<RawObject>(address);
    // SAFETY: as the caller says; the handle gets a reference of its own.
    unsafe {
        let object = NonNull::new_unchecked(object);
        assert!(dynamic::Obj::new(object).incref());
        dynamic::from_raw(object)
    }
}
