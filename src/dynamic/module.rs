//! Modules: objects with a name, a token and a state of bytes, to which types can belong.

use std::cell::UnsafeCell;
use std::ffi::{CStr, CString, c_int, c_void};
use std::ptr::NonNull;

use crate::base::error::{Code, Fault};
use crate::base::fallible;
use crate::dynamic::builtin::MODULE;
use crate::dynamic::dealloc::Dying;
use crate::dynamic::instance;
use crate::dynamic::object::{
    Destructor, FreeProc, Inquiry, Obj, RawObject, TraverseProc, VisitProc, from_raw,
};
use crate::dynamic::record::{Slots, TypeRecord};
use crate::{AnyGc, Mutator};

/// A description of a module.
#[derive(Clone, Debug)]
pub struct ModuleSpec {
    /// Its name.
    pub name: String,
    /// Bytes of state, zeroed; 0: none.
    pub state_size: usize,
    /// The token by which [`type_module_by_token`] finds it.
    pub token: usize,
    /// An address for the runtime's own use.
    pub face: *const c_void,
    /// Visits the references of the state. Called with the module.
    pub traverse: Option<TraverseProc>,
    /// Clears the references of the state.
    pub clear: Option<Inquiry>,
    /// Called before the state is freed.
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
    parts: *mut ModuleParts,
}

struct ModuleParts {
    name: CString,
    /// Words, so that the state has the largest alignment. Cells, since the program writes to the
    /// state while references to the parts exist.
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
    let parts = fallible::boxed(ModuleParts {
        name,
        state: state.into_boxed_slice(),
        state_size: spec.state_size,
        token: spec.token,
        face: spec.face,
        traverse: spec.traverse,
        clear: spec.clear,
        free: spec.free,
    })?;
    let object = instance::allocate(m, MODULE.get(), 0, 0)?;
    // SAFETY: rule *new*: a built-in type with objects of that size. No other thread has the
    // object.
    unsafe {
        (*object.cast::<Module>().as_ptr()).parts = Box::into_raw(parts);
        m.raw().track(crate::object::type_info::Object::new(object.cast()));
        Ok(from_raw(object))
    }
}

impl<'a> Obj<'a> {
    /// The parts of a module; `None`: the object is no module.
    fn module_parts(self) -> Option<&'a ModuleParts> {
        if !self.record().is_subtype_of(MODULE.get()) {
            return None;
        }
        // SAFETY: rule *dynamic*: types derived from `module` start with the same fields.
        unsafe { (*self.address().cast::<Module>().as_ptr()).parts.as_ref() }
    }

    /// The state of a module; `None`: the object is no module. Null: it has no state.
    pub fn module_state(self) -> Option<*mut c_void> {
        let parts = self.module_parts()?;
        Some(if parts.state_size == 0 {
            std::ptr::null_mut()
        } else {
            UnsafeCell::raw_get(parts.state.as_ptr()).cast()
        })
    }

    /// The token of a module; `None`: the object is no module.
    pub fn module_token(self) -> Option<usize> {
        self.module_parts().map(|parts| parts.token)
    }

    /// The address that the runtime has given the module; `None`: the object is no module.
    pub fn module_face(self) -> Option<*const c_void> {
        self.module_parts().map(|parts| parts.face)
    }

    /// The name of a module; `None`: the object is no module.
    pub fn module_name(self) -> Option<&'a CStr> {
        self.module_parts().map(|parts| parts.name.as_c_str())
    }
}

/// The module that exactly this type belongs to, borrowed. It lives as long as the type belongs to
/// it, and at least until this thread's next safepoint.
pub fn type_module(record: &TypeRecord) -> Option<NonNull<RawObject>> {
    NonNull::new(record.module())
}

/// The first module with this token, of the types in `record`'s order. Borrowed, as from
/// [`type_module`].
pub fn type_module_by_token(record: &TypeRecord, token: usize) -> Option<NonNull<RawObject>> {
    record.mro().filter_map(type_module).find(|&module| {
        // SAFETY: rule *counted*: the type owns a reference to its module.
        token != 0 && unsafe { Obj::new(module) }.module_token() == Some(token)
    })
}

unsafe extern "C" fn traverse(object: *mut RawObject, visit: VisitProc, arg: *mut c_void) -> c_int {
    // SAFETY: rule *handlers*: called for a living module, with a visitor and its argument.
    unsafe {
        let parts = Obj::from_ptr(object).and_then(Obj::module_parts);
        parts.and_then(|parts| parts.traverse).map_or(0, |handler| handler(object, visit, arg))
    }
}

unsafe extern "C" fn clear(object: *mut RawObject) -> c_int {
    // SAFETY: rule *handlers*: called for a living module.
    unsafe {
        let parts = Obj::from_ptr(object).and_then(Obj::module_parts);
        parts.and_then(|parts| parts.clear).map_or(0, |handler| handler(object))
    }
}

unsafe extern "C" fn dealloc(object: *mut RawObject) {
    Mutator::with_current(|m| {
        // SAFETY: rules *handlers* and *zero*: called once, for a dying module.
        unsafe {
            let Some(object) = Obj::from_ptr(object) else { return };
            let dying = Dying::new(m, object);
            dying.untrack();
            dying.clear_weak_references();
            let record = object.record();
            // The handler may use the state, so no reference to the parts exists during the call.
            if let Some(free) = object.module_parts().and_then(|parts| parts.free) {
                free(object.address().as_ptr().cast());
            }
            let module = object.address().cast::<Module>().as_ptr();
            let parts = std::mem::replace(&mut (*module).parts, std::ptr::null_mut());
            if !parts.is_null() {
                drop(Box::from_raw(parts));
            }
            // Also for a heap type derived from this one: its dealloc handler drops the type.
            (record.free)(object.address().as_ptr().cast());
        }
    });
}
