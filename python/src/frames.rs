//! Deferred references, and the traversal of objects that hold some.
//!
//! A *stack reference* to an object with deferred counting is not counted. Stack references lie in
//! the frames of running threads, which are no objects, and in generators, coroutines,
//! asynchronous generators and frame objects. If the collector overlooks one, it clears a function
//! that is in use.
//!
//! # Frames of threads
//!
//! [`roots`] reports what they hold, counted or not: an object on a stack is alive.
//!
//! # Frames in objects
//!
//! Their traverse function shows a deferred reference to every visitor but two of CPython's own. So
//! [`traverse`] first lists the deferred references of the frame. The visitor reports an address of
//! this list as *uncounted*, as often as it is in the list, and all other addresses as counted.

use std::ffi::{c_int, c_void};

use standstill::model::{Object, Tracer};

use crate::counts::{add_reference, each_thread};
use crate::layout as c;

/// The object of a stack reference that is not counted.
///
/// # Safety
///
/// The reference is valid, and the world is stopped.
unsafe fn uncounted(reference: c::_PyStackRef) -> Option<*mut c::PyObject> {
    // SAFETY: as the caller says.
    unsafe {
        let object = c::ss_stackref_object(reference);
        (!object.is_null() && c::ss_stackref_is_counted(reference) == 0).then_some(object)
    }
}

/// Calls `f` with the stack references of a frame. `false`: the frame's stack cannot be read now.
///
/// # Safety
///
/// The frame is one of a thread or an object, and the world is stopped.
unsafe fn each_reference(
    frame: *mut c::_PyInterpreterFrame,
    mut f: impl FnMut(*mut c::_PyStackRef),
) -> bool {
    // SAFETY: as the caller says.
    unsafe {
        f(&raw mut (*frame).f_executable);
        f(&raw mut (*frame).f_funcobj);
        let top = (*frame).stackpointer;
        let mut at = (&raw mut (*frame).localsplus).cast::<c::_PyStackRef>();
        while at < top {
            f(at);
            at = at.add(1);
        }
        !top.is_null()
    }
}

/// Reports the objects that are alive for sure: on the stacks of threads, and in the tables of the
/// interpreter. Returns whether all stacks could be read. If not, objects with deferred references
/// must be kept.
///
/// # Safety
///
/// The world is stopped.
pub unsafe fn roots(
    interpreter: *mut c::PyInterpreterState,
    report: &mut dyn FnMut(*mut c::PyObject),
) -> bool {
    let mut are_read = true;
    let mut all = |object: *mut c::PyObject| {
        if !object.is_null() {
            report(object);
        }
    };
    // SAFETY: as the caller says.
    unsafe {
        let it = &*interpreter;
        [it.sysdict, it.builtins, it.dict].into_iter().for_each(&mut all);
        let (own, others) = (&it.types.builtins.initialized, &it.types.for_extensions.initialized);
        for class in own.iter().chain(others) {
            all(class.tp_dict);
            all(class.tp_subclasses);
        }
        each_thread(interpreter, |thread| {
            let mut reference = (*thread).c_stack_refs;
            while !reference.is_null() {
                all(c::ss_stackref_object((*reference).ref_));
                reference = (*reference).next;
            }
            let mut frame = (*thread).base.current_frame;
            while !frame.is_null() {
                if i64::from((*frame).owner) < c::SS_FRAME_OWNED_BY_INTERPRETER {
                    are_read &= each_reference(frame, |at| all(c::ss_stackref_object(*at)));
                }
                frame = (*frame).previous;
            }
        });
    }
    are_read
}

/// The frame in a generator or frame object, and whether only its first reference is valid.
///
/// # Safety
///
/// `op` is an object, and the world is stopped.
#[inline(always)]
unsafe fn frame_in(op: *mut c::PyObject) -> Option<(*mut c::_PyInterpreterFrame, bool)> {
    // SAFETY: as the caller says. The type tells the layout.
    unsafe {
        let class: *mut pyo3_ffi::PyTypeObject = (*op).ob_type.cast();
        if class == &raw mut pyo3_ffi::PyGen_Type
            || class == &raw mut pyo3_ffi::PyCoro_Type
            || class == &raw mut pyo3_ffi::PyAsyncGen_Type
        {
            let generator = op.cast::<c::PyGenObject>();
            let is_cleared = i64::from((*generator).gi_frame_state) == c::SS_FRAME_CLEARED;
            return Some((&raw mut (*generator).gi_iframe, is_cleared));
        }
        if class == &raw mut pyo3_ffi::PyFrame_Type {
            let frame = (*op.cast::<c::PyFrameObject>()).f_frame;
            if i64::from((*frame).owner) == c::SS_FRAME_OWNED_BY_FRAME_OBJECT {
                return Some((frame, false));
            }
        }
        None
    }
}

/// Calls `f` with each deferred reference that an object holds.
///
/// # Safety
///
/// `op` is an object, and the world is stopped.
unsafe fn each_deferred(op: *mut c::PyObject, mut f: impl FnMut(*mut c::_PyStackRef)) {
    // SAFETY: as the caller says.
    unsafe {
        let Some((frame, only_first)) = frame_in(op) else { return };
        let mut each = |at: *mut c::_PyStackRef| {
            if uncounted(*at).is_some() {
                f(at);
            }
        };
        if only_first {
            each(&raw mut (*frame).f_executable);
        } else {
            each_reference(frame, each);
        }
    }
}

/// The data of a visitor of [`traverse`].
struct Visit<'t> {
    tracer: &'t mut Tracer,
    /// The addresses of deferred references that were not visited yet.
    deferred: Vec<*mut c::PyObject>,
}

/// The visitor of most objects.
unsafe extern "C" fn visit(op: *mut c::PyObject, tracer: *mut c_void) -> c_int {
    // SAFETY: `traverse` passes its tracer. The target is alive: an object refers to it.
    unsafe { edge(&mut *tracer.cast(), op) };
    0
}

/// The visitor of objects with a frame.
unsafe extern "C" fn visit_of_frame(op: *mut c::PyObject, visit: *mut c_void) -> c_int {
    // SAFETY: `traverse` passes its data.
    let visit = unsafe { &mut *visit.cast::<Visit<'_>>() };
    match visit.deferred.iter().position(|&object| object == op) {
        // SAFETY: the target is alive: a frame refers to it.
        Some(at) => unsafe {
            visit.deferred.swap_remove(at);
            visit.tracer.uncounted(Object::new(std::ptr::NonNull::new_unchecked(op.cast())));
        },
        // SAFETY: the target is alive: an object refers to it.
        None => unsafe { edge(visit.tracer, op) },
    }
    0
}

/// # Safety
///
/// `op` is an object that the traversed object refers to.
#[inline(always)]
unsafe fn edge(tracer: &mut Tracer, op: *mut c::PyObject) {
    // SAFETY: as the caller says.
    unsafe { tracer.visit_object(Object::new(std::ptr::NonNull::new_unchecked(op.cast()))) };
}

/// Reports all references of an object that takes part.
///
/// # Panics
///
/// If the traverse function fails, or if there is no memory. The collection is then abandoned.
///
/// # Safety
///
/// `op` is an object that takes part, and the world is stopped.
#[inline(always)]
pub unsafe fn traverse(op: *mut c::PyObject, tracer: &mut Tracer) {
    // SAFETY: as the caller says. The layouts of lists and tuples are the headers'.
    unsafe {
        let class: *mut pyo3_ffi::PyTypeObject = (*op).ob_type.cast();
        if class == &raw mut pyo3_ffi::PyList_Type {
            let list = op.cast::<c::PyListObject>();
            return items((*list).ob_item, (*list).ob_base.ob_size, tracer);
        }
        if class == &raw mut pyo3_ffi::PyTuple_Type {
            let tuple = op.cast::<c::PyTupleObject>();
            let first = (&raw mut (*tuple).ob_item).cast();
            return items(first, (*tuple).ob_base.ob_size, tracer);
        }
        if frame_in(op).is_some() {
            return traverse_frame(op, tracer);
        }
        let Some(handler) = (*(*op).ob_type).tp_traverse else { return };
        let failed = handler(op, Some(visit), (&raw mut *tracer).cast());
        assert!(failed == 0, "a traverse function has failed");
    }
}

/// # Safety
///
/// The memory has so many references or null pointers, and the world is stopped.
#[inline(always)]
unsafe fn items(first: *mut *mut c::PyObject, count: isize, tracer: &mut Tracer) {
    for at in 0..count.max(0) as usize {
        // SAFETY: as the caller says.
        unsafe {
            let item = *first.add(at);
            if !item.is_null() {
                edge(tracer, item);
            }
        }
    }
}

/// # Safety
///
/// As for [`traverse`]. The object has a frame.
#[cold]
unsafe fn traverse_frame(op: *mut c::PyObject, tracer: &mut Tracer) {
    let mut deferred = Vec::new();
    // SAFETY: as the caller says.
    unsafe {
        each_deferred(op, |at| {
            assert!(deferred.try_reserve(1).is_ok(), "no memory to traverse a frame");
            deferred.extend(uncounted(*at));
        });
        let mut visit = Visit { tracer, deferred };
        let Some(handler) = (*(*op).ob_type).tp_traverse else { return };
        let failed = handler(op, Some(visit_of_frame), (&raw mut visit).cast());
        assert!(failed == 0, "the traverse function of a frame has failed");
        // A generator that runs shows no stack to its visitors. The frame is one of a thread then.
        for object in std::mem::take(&mut visit.deferred) {
            visit.tracer.uncounted(Object::new(std::ptr::NonNull::new_unchecked(object.cast())));
        }
    }
}

/// Replaces the deferred references of a garbage object by counted ones: a finalizer may bring the
/// object back, and the targets may have lost their deferred counts by then. Other workers may
/// claim the targets at the same time.
///
/// # Safety
///
/// The world is stopped, and the object is garbage. One thread calls this for the object.
#[inline(always)]
pub unsafe fn strengthen(op: *mut c::PyObject) {
    // SAFETY: as the caller says. The target is alive.
    unsafe {
        each_deferred(op, |at| {
            let target = c::ss_stackref_object(*at);
            if add_reference(target) {
                *at = c::ss_stackref_steal(target);
            }
        });
    }
}
