//! Weak references to garbage.
//!
//! The order is that of the interpreter's version:
//!
//! | | 3.14 | 3.15 |
//! |---|---|---|
//! | first stop | all weak references to garbage are cleared, and garbage weak references | those
//! with a callback |
//! | then | callbacks, finalizers | callbacks, finalizers |
//! | second stop | weak references that finalizers have made | all others, and garbage weak
//! references |
//!
//! A callback is called if its weak reference is not garbage itself. The list of an object begins
//! with its newest weak reference. The callbacks of an object are called in the other order, the
//! oldest first.

use crate::layout as c;

/// `_PyWeakref_ClearRef`: clears a weak reference, and keeps its callback.
pub type ClearRef = unsafe extern "C" fn(*mut c::PyWeakReference);

/// A weak reference with a callback that is to be called. The holder has a reference to it.
pub struct Callback(pub *mut c::PyWeakReference);

// SAFETY: a counted reference may move to another thread.
unsafe impl Send for Callback {}

/// The list of the weak references to an object, if its type supports them.
///
/// # Safety
///
/// `op` is alive, and no thread changes it.
unsafe fn list(op: *mut c::PyObject) -> Option<*mut *mut c::PyWeakReference> {
    // SAFETY: as the caller says.
    unsafe {
        let offset = (*(*op).ob_type).tp_weaklistoffset;
        (offset != 0).then(|| op.byte_offset(offset).cast())
    }
}

/// Whether an object is a weak reference.
///
/// # Safety
///
/// `op` is alive.
unsafe fn is_weak_reference(op: *mut c::PyObject) -> bool {
    // SAFETY: as the caller says. Each type below is one of the interpreter.
    unsafe {
        let class: *mut pyo3_ffi::PyTypeObject = (*op).ob_type.cast();
        let weak = &raw mut pyo3_ffi::_PyWeakref_RefType;
        class == weak
            || class == (&raw mut c::_PyWeakref_ProxyType).cast()
            || class == (&raw mut c::_PyWeakref_CallableProxyType).cast()
            || ((*(*op).ob_type).tp_basicsize >= size_of::<c::PyWeakReference>() as isize
                && pyo3_ffi::PyType_IsSubtype(class, weak) != 0)
    }
}

/// Whether [`take_callbacks`] and [`clear_all`] have something to do for a garbage object.
///
/// # Safety
///
/// The world is stopped.
pub unsafe fn concerns(op: *mut c::PyObject) -> bool {
    // SAFETY: as the caller says.
    unsafe { list(op).is_some_and(|list| !(*list).is_null()) || is_weak_reference(op) }
}

/// The number of weak references to an object that have a callback.
///
/// # Safety
///
/// The world is stopped.
pub unsafe fn callbacks(op: *mut c::PyObject) -> usize {
    let mut count = 0;
    // SAFETY: as the caller says.
    unsafe {
        let mut weak = list(op).map_or(std::ptr::null_mut(), |list| *list);
        while !weak.is_null() {
            count += usize::from(!(*weak).wr_callback.is_null());
            weak = (*weak).wr_next;
        }
    }
    count
}

/// Clears weak references to a garbage object in the first stop, and adds the due callbacks.
///
/// # Safety
///
/// The world is stopped, by this thread.
pub unsafe fn take_callbacks(
    op: *mut c::PyObject,
    clear: ClearRef,
    is_garbage: impl Fn(*mut c::PyObject) -> bool,
    due: &mut Vec<Callback>,
) {
    // SAFETY: as the caller says. `clear` takes a weak reference from its list, so the next one is
    // read before.
    unsafe {
        if cfg!(not(py315)) && is_weak_reference(op) {
            clear(op.cast());
        }
        let before = due.len();
        let mut weak = list(op).map_or(std::ptr::null_mut(), |list| *list);
        while !weak.is_null() {
            let next = (*weak).wr_next;
            let has_callback = !(*weak).wr_callback.is_null();
            if has_callback || cfg!(not(py315)) {
                clear(weak);
            }
            if has_callback && !is_garbage(weak.cast()) {
                crate::counts::add_reference(weak.cast());
                due.push(Callback(weak));
            }
            weak = next;
        }
        due[before..].reverse();
    }
}

/// Clears a garbage object if it is a weak reference, and all weak references to it.
///
/// # Safety
///
/// The world is stopped, by this thread.
pub unsafe fn clear_all(op: *mut c::PyObject, clear: ClearRef) {
    // SAFETY: as the caller says. `clear` takes a weak reference from its list.
    unsafe {
        if is_weak_reference(op) {
            clear(op.cast());
        }
        if let Some(list) = list(op) {
            while !(*list).is_null() {
                clear(*list);
            }
        }
    }
}

/// Calls a callback, with the world running, and drops the reference to its weak reference.
///
/// # Safety
///
/// This thread is attached to the interpreter.
pub unsafe fn call(Callback(weak): Callback) {
    // SAFETY: as the caller says. The holder of `Callback` has a reference.
    unsafe {
        let callback: *mut pyo3_ffi::PyObject = (*weak).wr_callback.cast();
        let result = pyo3_ffi::PyObject_CallOneArg(callback, weak.cast());
        if result.is_null() {
            let text = c"Exception ignored while calling weakref callback %R";
            crate::python::unraisable(text, callback);
        } else {
            pyo3_ffi::Py_DECREF(result);
        }
        pyo3_ffi::Py_DECREF(weak.cast());
    }
}
