//! The eight functions for traverse handlers, which run in a stop, where another thread may hold
//! any lock. So they take no lock, allocate nothing, change no count and set no error, unless they
//! report misuse.

use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::ptr::NonNull;

use standstill::dynamic::{self, Obj, TypeRecord};
use standstill::{Code, Fault, safepoint};

use crate::call::{Given, export};
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

/// An object that has a type.
fn known<'a>(object: Given<'a, PyObject>, function: &'static str) -> Option<Obj<'a>> {
    object.here(function)?.typed()
}

/// The record of a ready type.
fn ready<'a>(face: Given<'a, PyTypeObject>, function: &'static str) -> Option<&'a TypeRecord> {
    face.here(function)?.ready().ok()
}

export! {
    /// Like `PyObject_GetTypeData`.
    #[given(object, class)]
    fn standstill_PyObject_GetTypeData_DuringGC(
        object: *mut PyObject,
        class: *mut PyTypeObject,
    ) -> *mut c_void {
        const FUNCTION: &str = "PyObject_GetTypeData_DuringGC";
        or_null(FUNCTION, || {
            known(object, FUNCTION)?.type_data(ready(class, FUNCTION)?).map(NonNull::as_ptr)
        })
    }

    /// Like `PyObject_GetItemData`.
    #[given(object)]
    fn standstill_PyObject_GetItemData_DuringGC(object: *mut PyObject) -> *mut c_void {
        const FUNCTION: &str = "PyObject_GetItemData_DuringGC";
        or_null(FUNCTION, || known(object, FUNCTION)?.item_data().map(NonNull::as_ptr))
    }

    /// Like `PyType_GetModuleState`.
    #[given(face)]
    fn standstill_PyType_GetModuleState_DuringGC(face: *mut PyTypeObject) -> *mut c_void {
        const FUNCTION: &str = "PyType_GetModuleState_DuringGC";
        or_null(FUNCTION, || {
            let record = ready(face, FUNCTION)?;
            // SAFETY: rule *thread*: this thread is attached, or runs a traverse handler.
            unsafe { record.module_object() }?.module_state()
        })
    }

    /// Like `PyModule_GetState`.
    #[given(module)]
    fn standstill_PyModule_GetState_DuringGC(module: *mut PyObject) -> *mut c_void {
        const FUNCTION: &str = "PyModule_GetState_DuringGC";
        or_null(FUNCTION, || known(module, FUNCTION)?.module_state())
    }

    /// Like `PyModule_GetToken`.
    #[given(module, result)]
    fn standstill_PyModule_GetToken_DuringGC(
        module: *mut PyObject,
        result: *mut *mut c_void,
    ) -> c_int {
        const FUNCTION: &str = "PyModule_GetToken_DuringGC";
        let inside = is_inside(FUNCTION);
        if result.is_null() {
            return -1;
        }
        let token = known(module, FUNCTION).filter(|_| inside).and_then(Obj::module_token);
        result.write(std::ptr::with_exposed_provenance_mut(token.unwrap_or(0)));
        if token.is_some() { 0 } else { -1 }
    }

    /// Like `PyType_GetBaseByToken`.
    #[given(face, result)]
    fn standstill_PyType_GetBaseByToken_DuringGC(
        face: *mut PyTypeObject,
        token: *mut c_void,
        result: *mut *mut PyTypeObject,
    ) -> c_int {
        const FUNCTION: &str = "PyType_GetBaseByToken_DuringGC";
        let inside = is_inside(FUNCTION);
        result.write(std::ptr::null_mut());
        if !inside || token.is_null() || face.is_null() {
            return -1;
        }
        let Some(record) = ready(face, FUNCTION) else { return -1 };
        let Some(base) = dynamic::base_by_token(record, token as usize) else { return 0 };
        result.write(base.face().cast());
        1
    }

    /// Like `PyType_GetModule`.
    #[given(face)]
    fn standstill_PyType_GetModule_DuringGC(face: *mut PyTypeObject) -> *mut PyObject {
        const FUNCTION: &str = "PyType_GetModule_DuringGC";
        or_null(FUNCTION, || dynamic::type_module(ready(face, FUNCTION)?).map(NonNull::as_ptr))
    }

    /// Like `PyType_GetModuleByToken`.
    #[given(face)]
    fn standstill_PyType_GetModuleByToken_DuringGC(
        face: *mut PyTypeObject,
        token: *const c_void,
    ) -> *mut PyObject {
        const FUNCTION: &str = "PyType_GetModuleByToken_DuringGC";
        or_null(FUNCTION, || {
            let record = ready(face, FUNCTION)?;
            // SAFETY: as in `standstill_PyType_GetModuleState_DuringGC`.
            unsafe { dynamic::type_module_by_token(record, token as usize) }.map(NonNull::as_ptr)
        })
    }
}
