//! Modules: objects with a name, a token and a state of bytes, to which types can belong.

use std::cell::UnsafeCell;
use std::ffi::{CString, c_int, c_void};
use std::ptr::NonNull;

use crate::base::error::{Code, Fault};
use crate::base::fallible;
use crate::dynamic::builtin::MODULE;
use crate::dynamic::dealloc::clear_weak_references;
use crate::dynamic::object::{
    Destructor, FreeProc, Inquiry, RawObject, TraverseProc, VisitProc, from_raw, type_of,
};
use crate::dynamic::record::{Slots, TypeRecord};
use crate::dynamic::{instance, tracking};
use crate::{AnyGc, Mutator};

/// What a module is to be.
#[derive(Clone, Debug)]
pub struct ModuleSpec {
    /// Its name.
    pub name: String,
    /// Bytes of state, zeroed; 0: none.
    pub state_size: usize,
    /// What it is found by.
    pub token: usize,
    /// An address that the runtime keeps with it.
    pub face: *const c_void,
    /// Visits what the state holds. Called with the module.
    pub traverse: Option<TraverseProc>,
    /// Lets go of what the state holds.
    pub clear: Option<Inquiry>,
    /// Called before the state goes.
    pub free: Option<FreeProc>,
}

impl ModuleSpec {
    /// A module without state.
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            state_size: 0,
            token: 0,
            face: std::ptr::null(),
            traverse: None,
            clear: None,
            free: None,
        }
    }
}

/// A module's object.
#[repr(C)]
struct Module {
    base: RawObject,
    /// Owned; null before the module is whole.
    parts: *mut Parts,
}

struct Parts {
    name: CString,
    /// Words, so that the state is aligned for anything. In cells: the program writes to it while others have the parts.
    state: Box<[UnsafeCell<u128>]>,
    state_size: usize,
    token: usize,
    face: *const c_void,
    traverse: Option<TraverseProc>,
    clear: Option<Inquiry>,
    free: Option<FreeProc>,
}

pub(crate) const SIZE: usize = size_of::<Module>();
pub(crate) const SLOTS: Slots = Slots {
    traverse: Some(traverse),
    clear: Some(clear),
    dealloc: Some(dealloc as Destructor),
    finalize: None,
    del: None,
    is_gc: None,
    alloc: None,
    free: None,
};

/// Makes a module.
///
/// # Errors
///
/// When the name has a null byte, or there is no memory.
///
/// # Safety
///
/// The handlers are for a state of that size.
pub unsafe fn new_module(m: &Mutator, spec: ModuleSpec) -> Result<AnyGc, Fault> {
    const FUNCTION: &str = "new_module";
    if spec.name.contains('\0') {
        return Err(
            Fault::new(Code::BadSlot, FUNCTION).because("a module's name with a null byte in it")
        );
    }
    let name = crate::base::text::c_text(&spec.name)?;
    let words = spec.state_size.div_ceil(size_of::<u128>());
    let mut state = Vec::new();
    state.try_reserve_exact(words).map_err(|_| {
        Fault::new(Code::Memory, FUNCTION).because("no memory for the module's state")
    })?;
    state.resize_with(words, || UnsafeCell::new(0));
    let parts = fallible::boxed(Parts {
        name,
        state: state.into_boxed_slice(),
        state_size: spec.state_size,
        token: spec.token,
        face: spec.face,
        traverse: spec.traverse,
        clear: spec.clear,
        free: spec.free,
    })?;
    // SAFETY: rule N: a built-in type, whose objects are of that size; nobody else knows the object.
    unsafe {
        let object = instance::allocate(m, MODULE.get(), 0, 0)?;
        (*object.cast::<Module>().as_ptr()).parts = Box::into_raw(parts);
        m.raw().track(crate::object::type_info::Object::new(object.cast()));
        Ok(from_raw(object))
    }
}

/// The parts of a module; `None`: the object is none.
///
/// # Safety
///
/// `object` is a living dynamic object; the result is borrowed from it.
unsafe fn parts<'a>(object: NonNull<RawObject>) -> Option<&'a Parts> {
    // SAFETY: as the caller says. Types derived from `module` start with the same fields.
    unsafe {
        if !type_of(object).is_subtype_of(MODULE.get()) {
            return None;
        }
        (*object.cast::<Module>().as_ptr()).parts.as_ref()
    }
}

/// A module's state; `None`: the object is no module. Null: it has no state.
///
/// # Safety
///
/// `object` is a living dynamic object.
pub unsafe fn module_state(object: NonNull<RawObject>) -> Option<*mut c_void> {
    // SAFETY: as the caller says.
    let parts = unsafe { parts(object) }?;
    Some(if parts.state_size == 0 {
        std::ptr::null_mut()
    } else {
        UnsafeCell::raw_get(parts.state.as_ptr()).cast()
    })
}

/// A module's token; `None`: the object is no module.
///
/// # Safety
///
/// `object` is a living dynamic object.
pub unsafe fn module_token(object: NonNull<RawObject>) -> Option<usize> {
    // SAFETY: as the caller says.
    unsafe { parts(object) }.map(|parts| parts.token)
}

/// The address that the runtime keeps with a module; `None`: the object is no module.
///
/// # Safety
///
/// `object` is a living dynamic object.
pub unsafe fn module_face(object: NonNull<RawObject>) -> Option<*const c_void> {
    // SAFETY: as the caller says.
    unsafe { parts(object) }.map(|parts| parts.face)
}

/// A module's name; `None`: the object is no module.
///
/// # Safety
///
/// `object` is a living dynamic object; the result is borrowed from it.
pub unsafe fn module_name<'a>(object: NonNull<RawObject>) -> Option<&'a std::ffi::CStr> {
    // SAFETY: as the caller says.
    unsafe { parts(object) }.map(|parts| parts.name.as_c_str())
}

/// The module that exactly this type belongs to, borrowed. It lives as long as the type belongs to
/// it, and at least until this thread's next safepoint.
pub fn type_module(record: &TypeRecord) -> Option<NonNull<RawObject>> {
    NonNull::new(record.module())
}

/// The module, with this token, of the first type in `record`'s order that belongs to such a one. Borrowed,
/// as from [`type_module`].
pub fn type_module_by_token(record: &TypeRecord, token: usize) -> Option<NonNull<RawObject>> {
    record.mro().filter_map(type_module).find(|&module| {
        // SAFETY: rule R: the type owns a reference to its module.
        token != 0 && unsafe { module_token(module) } == Some(token)
    })
}

unsafe extern "C" fn traverse(object: *mut RawObject, visit: VisitProc, arg: *mut c_void) -> c_int {
    // SAFETY: rule H: called for a living module, with a visitor and its argument.
    unsafe {
        let handler =
            NonNull::new(object).and_then(|object| parts(object)).and_then(|parts| parts.traverse);
        handler.map_or(0, |handler| handler(object, visit, arg))
    }
}

unsafe extern "C" fn clear(object: *mut RawObject) -> c_int {
    // SAFETY: rule H: called for a living module.
    unsafe {
        let handler =
            NonNull::new(object).and_then(|object| parts(object)).and_then(|parts| parts.clear);
        handler.map_or(0, |handler| handler(object))
    }
}

unsafe extern "C" fn dealloc(object: *mut RawObject) {
    let Some(object) = NonNull::new(object) else { return };
    // SAFETY: rules H and Z: called once, for a dying module.
    unsafe {
        Mutator::with_current(|m| {
            tracking::untrack_dying(m, object);
            clear_weak_references(m, object);
            let record = type_of(object);
            // Nothing is borrowed from the parts while the handler runs, which asks for the state.
            if let Some(free) = parts(object).and_then(|parts| parts.free) {
                free(object.as_ptr().cast());
            }
            let parts = std::mem::replace(
                &mut (*object.cast::<Module>().as_ptr()).parts,
                std::ptr::null_mut(),
            );
            if !parts.is_null() {
                drop(Box::from_raw(parts));
            }
            // Of a heap type derived from this one, too: then whoever called this lets go of the type.
            (record.free)(object.as_ptr().cast());
        });
    }
}
