//! The eight functions for traverse handlers. They change no count, allocate nothing, take no lock
//! and set no error.

use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::ptr::NonNull;

use standstill::dynamic::{self, TypeRecord};
use standstill::{Code, Fault, safepoint};

use crate::call::{self, export};
use crate::errors;
use crate::layout::{PyObject, PyTypeObject};

thread_local! {
    /// The number of failures on this thread, for a debugger. The error indicator stays unchanged.
    static FAILURES: Cell<u64> = const { Cell::new(0) };
}

/// Whether a traverse handler is running. If none is, reports misuse.
fn is_inside(function: &'static str) -> bool {
    let inside = safepoint::is_traversing();
    if !inside {
        errors::misuse(Fault::new(Code::OutsideTraversal, function));
    }
    inside
}

/// The result of `f`, or null outside a traverse handler and on failure.
fn or_null<T>(function: &'static str, f: impl FnOnce() -> Option<*mut T>) -> *mut T {
    if !is_inside(function) {
        return std::ptr::null_mut();
    }
    f().unwrap_or_else(|| {
        FAILURES.set(FAILURES.get() + 1);
        std::ptr::null_mut()
    })
}

/// Checks that an object has a type.
unsafe fn known(object: *mut PyObject, function: &'static str) -> Option<NonNull<PyObject>> {
    // SAFETY: rule *argument*.
    NonNull::new(object).filter(|&object| unsafe {
        call::is_object(object, function) && dynamic::try_type_of(object).is_some()
    })
}

/// The record of a ready type.
unsafe fn ready<'a>(face: *mut PyTypeObject, function: &'static str) -> Option<&'a TypeRecord> {
    // SAFETY: rule *argument*.
    unsafe {
        NonNull::new(face).filter(|&face| call::is_type(face, function))?;
        call::ready(face).ok()
    }
}

export! {
    /// Like `PyObject_GetTypeData`.
    fn standstill_PyObject_GetTypeData_DuringGC(
        object: *mut PyObject,
        class: *mut PyTypeObject,
    ) -> *mut c_void {
        const FUNCTION: &str = "PyObject_GetTypeData_DuringGC";
        // SAFETY: rule *argument*.
        or_null(FUNCTION, || unsafe {
            dynamic::Obj::new(known(object, FUNCTION)?)
                .type_data(ready(class, FUNCTION)?)
                .map(NonNull::as_ptr)
        })
    }

    /// Like `PyObject_GetItemData`.
    fn standstill_PyObject_GetItemData_DuringGC(object: *mut PyObject) -> *mut c_void {
        const FUNCTION: &str = "PyObject_GetItemData_DuringGC";
        // SAFETY: rule *argument*.
        or_null(FUNCTION, || unsafe {
            dynamic::Obj::new(known(object, FUNCTION)?).item_data().map(NonNull::as_ptr)
        })
    }

    /// Like `PyType_GetModuleState`.
    fn standstill_PyType_GetModuleState_DuringGC(face: *mut PyTypeObject) -> *mut c_void {
        const FUNCTION: &str = "PyType_GetModuleState_DuringGC";
        // SAFETY: rule *argument*.
        or_null(FUNCTION, || unsafe {
            dynamic::Obj::new(dynamic::type_module(ready(face, FUNCTION)?)?).module_state()
        })
    }

    /// Like `PyModule_GetState`.
    fn standstill_PyModule_GetState_DuringGC(module: *mut PyObject) -> *mut c_void {
        const FUNCTION: &str = "PyModule_GetState_DuringGC";
        // SAFETY: rule *argument*.
        or_null(FUNCTION, || unsafe { dynamic::Obj::new(known(module, FUNCTION)?).module_state() })
    }

    /// Like `PyModule_GetToken`.
    fn standstill_PyModule_GetToken_DuringGC(
        module: *mut PyObject,
        result: *mut *mut c_void,
    ) -> c_int {
        const FUNCTION: &str = "PyModule_GetToken_DuringGC";
        let inside = is_inside(FUNCTION);
        if result.is_null() {
            return -1;
        }
        // SAFETY: rule *argument*.
        unsafe {
            let token = known(module, FUNCTION)
                .filter(|_| inside)
                .and_then(|module| dynamic::Obj::new(module).module_token());
            *result = std::ptr::with_exposed_provenance_mut(token.unwrap_or(0));
            if token.is_some() { 0 } else { -1 }
        }
    }

    /// Like `PyType_GetBaseByToken`.
    fn standstill_PyType_GetBaseByToken_DuringGC(
        face: *mut PyTypeObject,
        token: *mut c_void,
        result: *mut *mut PyTypeObject,
    ) -> c_int {
        const FUNCTION: &str = "PyType_GetBaseByToken_DuringGC";
        let inside = is_inside(FUNCTION);
        // SAFETY: rule *argument*.
        unsafe {
            if !result.is_null() {
                *result = std::ptr::null_mut();
            }
            if !inside || token.is_null() || face.is_null() {
                return -1;
            }
            let Some(record) = ready(face, FUNCTION) else { return -1 };
            let Some(base) = dynamic::base_by_token(record, token as usize) else { return 0 };
            if !result.is_null() {
                *result = base.face().cast();
            }
            1
        }
    }

    /// Like `PyType_GetModule`.
    fn standstill_PyType_GetModule_DuringGC(face: *mut PyTypeObject) -> *mut PyObject {
        const FUNCTION: &str = "PyType_GetModule_DuringGC";
        // SAFETY: rule *argument*.
        or_null(FUNCTION, || unsafe {
            dynamic::type_module(ready(face, FUNCTION)?).map(NonNull::as_ptr)
        })
    }

    /// Like `PyType_GetModuleByToken`.
    fn standstill_PyType_GetModuleByToken_DuringGC(
        face: *mut PyTypeObject,
        token: *const c_void,
    ) -> *mut PyObject {
        const FUNCTION: &str = "PyType_GetModuleByToken_DuringGC";
        // SAFETY: rule *argument*.
        or_null(FUNCTION, || unsafe {
            dynamic::type_module_by_token(ready(face, FUNCTION)?, token as usize)
                .map(NonNull::as_ptr)
        })
    }
}
