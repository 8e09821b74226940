//! Finalizers that a collection has to call.
//!
//! A finalizer may bring objects back, so a collection that calls one stops the program a second
//! time. Streams in memory (`io.BytesIO`, `io.StringIO`) have a finalizer, which closes the stream.
//! The interpreter does not call it for a stream that dies by its count: it frees the stream. So a
//! collection need not call it either. Web frameworks keep the body of each request in such a
//! stream.
//!
//! This holds for objects of exactly these types, without a dictionary. A subclass or an attribute
//! can replace `close`, which the finalizer calls.

use std::ffi::CStr;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};

use pyo3_ffi::{
    Py_TPFLAGS_IMMUTABLETYPE, Py_XDECREF, PyErr_Clear, PyImport_ImportModule,
    PyObject_GetAttrString, PyType_Check, PyType_GetFlags,
};

use crate::layout as c;

/// The types of streams in memory. They are never freed: this module has a reference to each.
#[derive(Clone, Copy)]
pub struct Streams([*mut c::PyTypeObject; 2]);

impl Streams {
    /// The types of this interpreter. A type that is not found is null.
    ///
    /// # Safety
    ///
    /// This thread is attached, and no error is set.
    pub unsafe fn find() -> Self {
        // SAFETY: as the caller says.
        unsafe {
            let module = PyImport_ImportModule(c"_io".as_ptr());
            let find = |name: &CStr| {
                if module.is_null() {
                    return null_mut();
                }
                let class = PyObject_GetAttrString(module, name.as_ptr());
                // A program may have put a class of its own there.
                let is_own = !class.is_null()
                    && PyType_Check(class) != 0
                    && PyType_GetFlags(class.cast()) & Py_TPFLAGS_IMMUTABLETYPE != 0;
                if !is_own {
                    Py_XDECREF(class);
                    return null_mut();
                }
                class.cast()
            };
            let found = Self([find(c"BytesIO"), find(c"StringIO")]);
            PyErr_Clear();
            Py_XDECREF(module);
            found
        }
    }

    /// Whether a collection has to call an object's finalizer.
    ///
    /// # Safety
    ///
    /// The object is alive.
    pub unsafe fn has_finalizer(self, op: *mut c::PyObject) -> bool {
        // SAFETY: as the caller says. So its type is alive, and a positive offset is inside the
        // object.
        unsafe {
            let class = (*op).ob_type;
            if (*class).tp_finalize.is_none() {
                return false;
            }
            let offset = (*class).tp_dictoffset;
            if offset <= 0 || !self.0.contains(&class) {
                return true;
            }
            // Relaxed: after the stop, another thread may have got the object through a weak
            // reference, and give it a dictionary. Both answers are right then.
            let dict = AtomicPtr::<c::PyObject>::from_ptr(op.byte_offset(offset).cast());
            !dict.load(Ordering::Relaxed).is_null()
        }
    }
}
