//! Small calls into the interpreter: errors, warnings, lists. All need an attached thread.

use std::ffi::{CStr, CString, c_char};

use pyo3_ffi::{
    Py_None, Py_ssize_t, PyErr_Clear, PyErr_Occurred, PyList_Append, PyUnicode_FromStringAndSize,
};

use crate::collection::new_reference;
use crate::layout as c;

unsafe extern "C" {
    fn PyErr_FormatUnraisable(format: *const c_char, ...);
    fn PySys_FormatStderr(format: *const c_char, ...);
}

/// A text of the interpreter. Null: an error is set.
///
/// # Safety
///
/// This thread is attached.
pub unsafe fn text(text: &str) -> *mut pyo3_ffi::PyObject {
    // SAFETY: the bytes are valid UTF-8.
    unsafe { PyUnicode_FromStringAndSize(text.as_ptr().cast::<c_char>(), text.len() as Py_ssize_t) }
}

/// `None`.
///
/// # Safety
///
/// This thread is attached.
pub unsafe fn none() -> *mut pyo3_ffi::PyObject {
    // SAFETY: as the caller says.
    unsafe { new_reference(Py_None()) }
}

/// Reports the current error, which no caller can receive. The text may contain one `%R`.
///
/// # Safety
///
/// An error is set, and this thread is attached.
pub unsafe fn unraisable(text: &CStr, object: *mut pyo3_ffi::PyObject) {
    // SAFETY: as the caller says.
    unsafe { PyErr_FormatUnraisable(text.as_ptr(), object) };
}

/// The name of an object's type.
///
/// # Safety
///
/// The object is alive.
pub unsafe fn type_name(op: *mut c::PyObject) -> String {
    // SAFETY: as the caller says.
    unsafe { CStr::from_ptr((*(*op).ob_type).tp_name) }.to_string_lossy().into_owned()
}

/// Reports an error that a finalizer or a destructor has set and left, if any.
///
/// # Safety
///
/// This thread is attached.
pub unsafe fn report_error() {
    // SAFETY: as the caller says.
    unsafe {
        if !PyErr_Occurred().is_null() {
            unraisable(c"Exception ignored in garbage collection", std::ptr::null_mut());
        }
    }
}

/// Reports an error that a clear function has set, if any.
///
/// # Safety
///
/// The object is alive, and this thread is attached.
pub unsafe fn report_error_of_clear(op: *mut c::PyObject) {
    // SAFETY: as the caller says.
    unsafe {
        if !PyErr_Occurred().is_null() {
            let text = c"Exception ignored in tp_clear of %s";
            PyErr_FormatUnraisable(text.as_ptr(), (*(*op).ob_type).tp_name);
        }
    }
}

/// Appends an object to a list, or forgets it if there is no memory, as CPython does.
///
/// # Safety
///
/// The object is alive, and this thread is attached.
pub unsafe fn append_or_forget(list: *mut c::PyObject, op: *mut c::PyObject) {
    // SAFETY: as the caller says.
    unsafe {
        if PyList_Append(list.cast(), op.cast()) < 0 {
            PyErr_Clear();
        }
    }
}

/// Writes a line of `gc.DEBUG_COLLECTABLE` or `gc.DEBUG_UNCOLLECTABLE`.
///
/// # Safety
///
/// The object is alive, and this thread is attached.
pub unsafe fn debug_line(what: &str, op: *mut c::PyObject) {
    let Ok(what) = CString::new(what) else { return };
    // SAFETY: as the caller says.
    unsafe {
        let format = c"gc: %s <%s %p>\n";
        PySys_FormatStderr(format.as_ptr(), what.as_ptr(), (*(*op).ob_type).tp_name, op);
    }
}

/// Writes a line to `sys.stderr`.
///
/// # Safety
///
/// This thread is attached.
pub unsafe fn write_line(line: &str) {
    let Ok(line) = CString::new(line) else { return };
    // SAFETY: as the caller says.
    unsafe { PySys_FormatStderr(c"%s\n".as_ptr(), line.as_ptr()) };
}

/// The statistics of a generation.
///
/// # Safety
///
/// The interpreter exists.
pub unsafe fn statistics(
    state: *mut c::_gc_runtime_state,
    generation: usize,
) -> *mut c::gc_generation_stats {
    // SAFETY: as the caller says.
    unsafe {
        #[cfg(py315)]
        {
            let all = &mut *(*state).generation_stats;
            if generation == 0 {
                &raw mut all.young.items[all.young.index as usize]
            } else {
                let old = &mut all.old[generation - 1];
                &raw mut old.items[old.index as usize]
            }
        }
        #[cfg(not(py315))]
        {
            &raw mut (*state).generation_stats[generation]
        }
    }
}

/// In debug builds the interpreter has a total of all references. The collector adds references on
/// threads that cannot change it, and tells their number here.
///
/// # Safety
///
/// This thread is attached.
pub unsafe fn add_to_total(references: usize) {
    #[cfg(py_debug)]
    {
        unsafe extern "C" {
            fn _Py_INCREF_IncRefTotal();
        }
        for _ in 0..references {
            // SAFETY: as the caller says.
            unsafe { _Py_INCREF_IncRefTotal() };
        }
    }
    let _ = references;
}
