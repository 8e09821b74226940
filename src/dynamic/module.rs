//! Modules: objects with a name, a token and a state of bytes, to which types can belong.
//!
//! The handlers of several types may share data, which may die with the last of these types. So the
//! data is the state of a module, to which each type owns a reference. A handler finds the module
//! by its token, because a derived type may belong to another module.

use std::cell::UnsafeCell;
use std::ffi::{CStr, CString, c_int, c_void};
use std::ptr::NonNull;

use crate::base::fallible;
use crate::dynamic::builtin::Builtin;
use crate::dynamic::calls::RustHandlers;
use crate::dynamic::dealloc::Dying;
use crate::dynamic::draft::builtin;
use crate::dynamic::instance;
use crate::dynamic::object::{
    FreeProc, Inquiry, Obj, PARTS_SIZE, Part, RawObject, TraverseProc, Visitor,
};
use crate::dynamic::record::{Flags, TypeRecord};
use crate::{AnyGc, Code, Fault, Mutator};

/// The type of modules.
pub static MODULE: Builtin = Builtin::new(|| {
    let record = builtin::<ModuleParts>("module", PARTS_SIZE, Flags::BASE_TYPE)?;
    Ok(TypeRecord { clears_last: true, ..record })
});

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

pub(super) struct ModuleParts {
    spec: ModuleSpec,
    name: CString,
    /// Words, so that the state has the largest alignment, and cells, because the program writes to
    /// the state while references to the parts exist.
    state: Box<[UnsafeCell<u128>]>,
}

// SAFETY: rule *dynamic*: `MODULE` gives the type this size, and derived types are larger.
unsafe impl Part for ModuleParts {
    const IN_TAIL: bool = false;

    fn is_in_instances_of(record: &TypeRecord) -> bool {
        record.is_subtype_of(MODULE.get())
    }
}

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
    let name = fallible::c_text(&spec.name)?;
    let words = spec.state_size.div_ceil(size_of::<u128>());
    let mut state = Vec::new();
    state.try_reserve_exact(words).map_err(|_| {
        Fault::new(Code::Memory, FUNCTION).because("no memory for the module's state")
    })?;
    state.resize_with(words, || UnsafeCell::new(0));
    let state = state.into_boxed_slice();
    instance::allocate_with(m, MODULE.get(), ModuleParts { spec, name, state }, |_| Ok(()))
}

impl<'a> Obj<'a> {
    fn module_parts(self) -> Option<&'a ModuleParts> {
        self.part()
    }

    /// The state of a module; `None`: the object is no module. Null: it has no state.
    pub fn module_state(self) -> Option<*mut c_void> {
        let parts = self.module_parts()?;
        Some(if parts.state.is_empty() {
            std::ptr::null_mut()
        } else {
            UnsafeCell::raw_get(parts.state.as_ptr()).cast()
        })
    }

    /// The token of a module; `None`: the object is no module.
    pub fn module_token(self) -> Option<usize> {
        self.module_parts().map(|parts| parts.spec.token)
    }

    /// The address that the runtime has given the module; `None`: the object is no module.
    pub fn module_face(self) -> Option<*const c_void> {
        self.module_parts().map(|parts| parts.spec.face)
    }

    /// The name of a module; `None`: the object is no module.
    pub fn module_name(self) -> Option<&'a CStr> {
        self.module_parts().map(|parts| parts.name.as_c_str())
    }
}

/// The module that exactly this type belongs to, borrowed. It lives as long as the type belongs to
/// it, and in any case until this thread's next safepoint.
pub fn type_module(record: &TypeRecord) -> Option<NonNull<RawObject>> {
    NonNull::new(record.module())
}

/// The first module with this token, of the types in `record`'s order. Borrowed, as from
/// [`type_module`].
///
/// # Safety
///
/// This thread is attached, or runs a traverse handler.
pub unsafe fn type_module_by_token(
    record: &TypeRecord,
    token: usize,
) -> Option<NonNull<RawObject>> {
    // SAFETY: as the caller says.
    let mut modules = record.mro().filter_map(|record| unsafe { record.module_object() });
    let found = modules.find(|module| token != 0 && module.module_token() == Some(token));
    found.map(Obj::address)
}

impl RustHandlers for ModuleParts {
    fn traverse(object: Obj<'_>, visitor: Visitor<'_>) -> c_int {
        let handler = object.module_parts().and_then(|parts| parts.spec.traverse);
        handler.map_or(0, |handler| object.visit_by(handler, visitor.visit, visitor.arg))
    }

    fn clear(object: Obj<'_>) -> c_int {
        let handler = object.module_parts().and_then(|parts| parts.spec.clear);
        handler.map_or(0, |handler| object.ask(handler))
    }

    fn dealloc(dying: Dying<'_>) {
        dying.untrack();
        dying.clear_weak_references();
        // The handler is copied first, so that no reference to the state exists during the call.
        let handler = dying.object().module_parts().and_then(|parts| parts.spec.free);
        if let Some(handler) = handler {
            dying.object().free_by(handler);
        }
        drop(dying.take::<Self>());
        // This does not release a heap type derived from this one, because its own handler does so.
        dying.run_free();
    }
}
