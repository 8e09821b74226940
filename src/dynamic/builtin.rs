//! The built-in types.

use std::ffi::c_void;
use std::fmt;
use std::ptr::NonNull;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

use crate::Mutator;
use crate::base::error::Fault;
use crate::base::fallible;
use crate::dynamic::attributes::Attributes;
use crate::dynamic::dealloc::Dying;
use crate::dynamic::object::{
    Obj, RawObject, RawVarObject, VisitProc, Visitor, from_raw, tail_slot,
};
use crate::dynamic::ready::{DEFAULTS, TypeSpec, draft};
use crate::dynamic::record::{Flags, Slots, Type, TypeRecord};
use crate::dynamic::{dealloc, module, weakref};
use crate::managed;
use crate::memory::arena::class_for;

impl<'a> Obj<'a> {
    /// The record that the object of a heap type describes; `None`: it is another object.
    pub fn describe(self) -> Option<&'a TypeRecord> {
        if !std::ptr::eq(self.record(), METATYPE.get()) || self.is_static() {
            return None;
        }
        // SAFETY: rule *dynamic*: an object of the metatype in a heap has a tail with its record.
        unsafe { tail_slot(self.address()).load(Ordering::Acquire).cast::<TypeRecord>().as_ref() }
    }
}

/// A built-in type. Its record is made at the first use.
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
    /// Its record. It exists in a process that has made a heap.
    pub fn get(&self) -> &'static TypeRecord {
        self.cell
            .get()
            .copied()
            .unwrap_or_else(|| self.try_get().unwrap_or_else(|fault| panic!("{fault}")))
    }

    /// Its record. Makes it, if it does not exist yet.
    ///
    /// # Errors
    ///
    /// When there is no memory.
    pub fn try_get(&self) -> Result<&'static TypeRecord, Fault> {
        if let Some(record) = self.cell.get() {
            return Ok(record);
        }
        let record = Box::into_raw(fallible::boxed((self.make)()?)?);
        // SAFETY: rule *pinned*: just made, and never freed once it is in the cell.
        let known = unsafe { &*record };
        known.face.store(record.cast(), Ordering::Relaxed);
        if self.cell.set(known).is_err() {
            // SAFETY: rule *pinned*: another thread was first, and no other thread has this record.
            drop(unsafe { Box::from_raw(record) });
        }
        Ok(self.get())
    }

    /// A handle to it.
    pub fn handle(&self) -> Type {
        Type::from_static(self.get())
    }

    /// Gives it a face, before it has instances or derived types.
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

/// Makes the built-in types, so that their first use needs no memory.
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
        // Without a size class, allocation calls `instance_size`, which refuses: a type's object
        // needs a record.
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

/// Visits the references of a heap type: its bases, its module, its attributes.
unsafe extern "C" fn traverse_type(
    object: *mut RawObject,
    visit: VisitProc,
    arg: *mut c_void,
) -> std::ffi::c_int {
    // SAFETY: rule *handlers*: called for a living object of the metatype, with a visitor and its
    // argument.
    let (object, visitor) = unsafe { (Obj::from_ptr(object), Visitor::new(visit, arg)) };
    let Some(record) = object.and_then(Obj::describe) else { return 0 };
    let bases = record.bases.iter().filter_map(|base| base.get().type_object());
    // SAFETY: rule *counted*: the type owns a reference to its module, which is retired when it is
    // cleared.
    let module = unsafe { Obj::from_ptr(record.module()) };
    for target in bases.chain(module) {
        let result = visitor.visit(target);
        if result != 0 {
            return result;
        }
    }
    record.attributes.visit(visitor)
}

/// Removes attributes and module. Handlers stay, so instances can still be used and freed.
///
/// Another thread may just have read the module's address from the type. So the reference is
/// retired: it is dropped after each attached thread has passed a safepoint.
unsafe extern "C" fn clear_type(object: *mut RawObject) -> std::ffi::c_int {
    // SAFETY: rule *handlers*: called for a living object of the metatype.
    if let Some(record) = unsafe { Obj::from_ptr(object) }.and_then(Obj::describe) {
        record.attributes.clear();
        if let Some(module) = NonNull::new(record.take_module()) {
            // SAFETY: rule *counted*: the type owned the reference.
            unsafe { retire(module) };
        }
    }
    0
}

/// Retires a reference. A reference to a static object, which never dies, is dropped at once.
///
/// # Safety
///
/// The caller owns the reference.
unsafe fn retire(object: NonNull<RawObject>) {
    // SAFETY: rule *counted*: as the caller says; an object that is not static lies in a heap.
    unsafe {
        if Obj::new(object).is_static() {
            return drop(from_raw(object));
        }
        let header = object.cast();
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

/// The dealloc handler of heap types. The type has no instances and no subtypes any more.
unsafe extern "C" fn dealloc_type(object: *mut RawObject) {
    let Some(object) = NonNull::new(object) else { return };
    // SAFETY: rules *handlers* and *zero*: called once, for a dying object of the metatype. It owns
    // its record.
    unsafe {
        Mutator::with_current(|m| {
            let dying = Dying::new(m, Obj::new(object));
            dying.untrack();
            dying.clear_weak_references();
        });
        let record = Box::from_raw(tail_slot(object).load(Ordering::Acquire).cast::<TypeRecord>());
        record.attributes.clear();
        // No thread has the type any more, so none reads its module.
        let bases = record.bases.iter().map(|base| base.get().object);
        let owned = std::iter::once(record.take_module()).chain(bases);
        owned.filter_map(NonNull::new).for_each(|object| drop(from_raw(object)));
        drop(record);
        Mutator::with_current(|m| {
            if let Err(fault) = dealloc::free(m, object, dealloc::Family::Container) {
                m.raw().core().hooks.misuse(&fault);
            }
        });
    }
}
