//! The built-in types: those that are there from the start.

use std::ffi::c_void;
use std::fmt;
use std::ptr::NonNull;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

use crate::Mutator;
use crate::base::error::Fault;
use crate::base::fallible;
use crate::dynamic::attributes::Attributes;
use crate::dynamic::object::{RawObject, RawVarObject, VisitProc, from_raw, type_of};
use crate::dynamic::ready::{DEFAULTS, TypeSpec, draft};
use crate::dynamic::record::{Flags, Slots, Type, TypeRecord};
use crate::dynamic::{dealloc, module, object, tracking, weakref};
use crate::managed;
use crate::memory::arena::class_for;

/// The record that a heap type's object describes; `None`: the object is no heap type's.
///
/// # Safety
///
/// `object` is a living dynamic object. The record is borrowed from it.
pub unsafe fn describe<'a>(object: NonNull<RawObject>) -> Option<&'a TypeRecord> {
    // SAFETY: rule D; objects of the metatype in a heap have a tail with their record.
    unsafe {
        if !std::ptr::eq(type_of(object), METATYPE.get()) || object::is_static(object) {
            return None;
        }
        object::tail(object).cast::<TypeRecord>().as_ref()
    }
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
    visit: VisitProc,
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
        if object::is_static(object) {
            return drop(from_raw(object));
        }
        let header = object::header(object);
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
            tracking::untrack_dying(m, object);
            dealloc::clear_weak_references(m, object);
        });
        let record = Box::from_raw(object::tail(object).cast::<TypeRecord>());
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
            if let Err(fault) = dealloc::free(m, object, dealloc::Family::Container) {
                m.raw().core().hooks.misuse(&fault);
            }
        });
    }
}
