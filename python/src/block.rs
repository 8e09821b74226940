//! The type of blocks of `defer`: a native context manager.
//!
//! Its `__enter__` and `__exit__` are one native call each: see [`switch`]. An exception may arrive
//! between the return of `__enter__` and the body of the `with` statement. Then the object dies
//! without `__exit__`, and its destructor ends the block.

use std::ffi::{c_int, c_uint, c_void};

use pyo3_ffi::{
    METH_FASTCALL, METH_NOARGS, Py_DECREF, Py_TPFLAGS_BASETYPE, Py_TPFLAGS_DEFAULT, Py_TYPE,
    Py_ssize_t, Py_tp_dealloc, Py_tp_free, Py_tp_methods, PyErr_SetString, PyMethodDef,
    PyMethodDefPointer, PyObject, PyType_FromSpec, PyType_GetSlot, PyType_Slot, PyType_Spec,
};

use crate::interface::{Table, method};
use crate::{python, switch};

static METHODS: Table<[PyMethodDef; 3]> = Table(std::cell::UnsafeCell::new([
    method(c"__enter__", PyMethodDefPointer { PyCFunction: enter }, METH_NOARGS),
    method(c"__exit__", PyMethodDefPointer { PyCFunctionFast: exit }, METH_FASTCALL),
    PyMethodDef::zeroed(),
]));

/// A new type of blocks. Null: an error is set.
///
/// # Safety
///
/// This thread is attached.
pub unsafe fn make_type() -> *mut PyObject {
    let mut slots = [
        PyType_Slot { slot: Py_tp_methods, pfunc: METHODS.0.get().cast() },
        PyType_Slot { slot: Py_tp_dealloc, pfunc: destroy as *mut c_void },
        PyType_Slot { slot: 0, pfunc: std::ptr::null_mut() },
    ];
    let mut spec = PyType_Spec {
        name: c"standstill_gc._standstill_gc.Block".as_ptr(),
        basicsize: size_of::<PyObject>() as c_int,
        itemsize: 0,
        flags: (Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE) as c_uint,
        slots: slots.as_mut_ptr(),
    };
    // SAFETY: as the caller says. The interpreter copies the slots. The name and the table of
    // methods are constants.
    unsafe { PyType_FromSpec(&raw mut spec) }
}

/// `__enter__()`: begins the block.
unsafe extern "C" fn enter(block: *mut PyObject, _: *mut PyObject) -> *mut PyObject {
    // SAFETY: the interpreter calls it on an attached thread.
    unsafe {
        if switch::begin(block.addr()) {
            return python::none();
        }
        let why = c"this block of defer() is open already";
        PyErr_SetString(pyo3_ffi::PyExc_RuntimeError, why.as_ptr());
        std::ptr::null_mut()
    }
}

/// `__exit__(type, value, traceback)`: ends the block, on any thread.
unsafe extern "C" fn exit(
    block: *mut PyObject,
    _: *mut *mut PyObject,
    _: Py_ssize_t,
) -> *mut PyObject {
    // SAFETY: the interpreter calls it on an attached thread.
    unsafe {
        switch::end(block.addr());
        python::none()
    }
}

/// The destructor.
unsafe extern "C" fn destroy(block: *mut PyObject) {
    // SAFETY: the interpreter calls it on an attached thread, and nothing else refers to the
    // object. The object has a reference to its type, which has a function that frees.
    unsafe {
        switch::end(block.addr());
        let kind = Py_TYPE(block);
        let free = PyType_GetSlot(kind, Py_tp_free);
        let free = std::mem::transmute::<*mut c_void, unsafe extern "C" fn(*mut c_void)>(free);
        free(block.cast());
        Py_DECREF(kind.cast());
    }
}
