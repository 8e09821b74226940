//! The eight functions for traverse handlers: no counts, no allocation, no locks, no errors set.

use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::ptr::NonNull;

use standstill::dynamic;
use standstill::{Code, Fault, safepoint};

use crate::call::{self, export};
use crate::errors;
use crate::layout::{PyObject, PyTypeObject};

thread_local! {
    /// Failures of this thread, outside of the error indicator: for a debugger.
    static FAILURES: Cell<u64> = const { Cell::new(0) };
}

/// Whether a traverse handler is running, as all of these need it.
fn is_inside(function: &'static str) -> bool {
    let inside = safepoint::is_traversing();
    if !inside {
        errors::misuse(Fault::new(Code::OutsideTraversal, function));
    }
    inside
}

/// An answer, or null.
fn or_null<T>(function: &'static str, f: impl FnOnce() -> Option<*mut T>) -> *mut T {
    if !is_inside(function) {
        return std::ptr::null_mut();
    }
    f().unwrap_or_else(|| {
        FAILURES.set(FAILURES.get() + 1);
        std::ptr::null_mut()
    })
}

/// An object with a type.
unsafe fn known(object: *mut PyObject) -> Option<NonNull<PyObject>> {
    // SAFETY: rule C.
    NonNull::new(object).filter(|&object| unsafe { dynamic::try_type_of(object) }.is_some())
}

export! {
    /// As `PyObject_GetTypeData`.
    fn standstill_PyObject_GetTypeData_DuringGC(object: *mut PyObject, class: *mut PyTypeObject) -> *mut c_void {
        // SAFETY: rule C.
        or_null("PyObject_GetTypeData_DuringGC", || unsafe {
            dynamic::type_data(known(object)?, call::ready(class).ok()?).map(NonNull::as_ptr)
        })
    }

    /// As `PyObject_GetItemData`.
    fn standstill_PyObject_GetItemData_DuringGC(object: *mut PyObject) -> *mut c_void {
        // SAFETY: rule C.
        or_null("PyObject_GetItemData_DuringGC", || unsafe {
            dynamic::item_data(known(object)?).map(NonNull::as_ptr)
        })
    }

    /// As `PyType_GetModuleState`.
    fn standstill_PyType_GetModuleState_DuringGC(face: *mut PyTypeObject) -> *mut c_void {
        // SAFETY: rule C.
        or_null("PyType_GetModuleState_DuringGC", || unsafe {
            dynamic::module_state(dynamic::type_module(call::ready(face).ok()?)?)
        })
    }

    /// As `PyModule_GetState`.
    fn standstill_PyModule_GetState_DuringGC(module: *mut PyObject) -> *mut c_void {
        // SAFETY: rule C.
        or_null("PyModule_GetState_DuringGC", || unsafe { dynamic::module_state(known(module)?) })
    }

    /// As `PyModule_GetToken`.
    fn standstill_PyModule_GetToken_DuringGC(module: *mut PyObject, result: *mut *mut c_void) -> c_int {
        let inside = is_inside("PyModule_GetToken_DuringGC");
        if result.is_null() {
            return -1;
        }
        // SAFETY: rule C.
        unsafe {
            let token = known(module).filter(|_| inside).and_then(|module| dynamic::module_token(module));
            *result = std::ptr::with_exposed_provenance_mut(token.unwrap_or(0));
            if token.is_some() { 0 } else { -1 }
        }
    }

    /// As `PyType_GetBaseByToken`.
    fn standstill_PyType_GetBaseByToken_DuringGC(
        face: *mut PyTypeObject,
        token: *mut c_void,
        result: *mut *mut PyTypeObject,
    ) -> c_int {
        let inside = is_inside("PyType_GetBaseByToken_DuringGC");
        // SAFETY: rule C.
        unsafe {
            if !result.is_null() {
                *result = std::ptr::null_mut();
            }
            if !inside || token.is_null() || face.is_null() {
                return -1;
            }
            let Some(record) = (*face).ss_own.as_ref() else { return -1 };
            let Some(base) = dynamic::base_by_token(record, token as usize) else { return 0 };
            if !result.is_null() {
                *result = base.face().cast();
            }
            1
        }
    }

    /// As `PyType_GetModule`.
    fn standstill_PyType_GetModule_DuringGC(face: *mut PyTypeObject) -> *mut PyObject {
        // SAFETY: rule C.
        or_null("PyType_GetModule_DuringGC", || unsafe {
            dynamic::type_module(call::ready(face).ok()?).map(NonNull::as_ptr)
        })
    }

    /// As `PyType_GetModuleByToken`.
    fn standstill_PyType_GetModuleByToken_DuringGC(face: *mut PyTypeObject, token: *const c_void) -> *mut PyObject {
        // SAFETY: rule C.
        or_null("PyType_GetModuleByToken_DuringGC", || unsafe {
            dynamic::type_module_by_token(call::ready(face).ok()?, token as usize).map(NonNull::as_ptr)
        })
    }
}
