//! Deferred references, and the traversal of objects that hold some.
//!
//! A *stack reference* to an object with deferred counting is not counted. Stack references lie in
//! the frames of running threads, which are no objects, and in generators, coroutines,
//! asynchronous generators and frame objects. If the collector overlooks one, it clears a function
//! that is in use.
//!
//! # Frames of threads
//!
//! [`roots`] reports all objects on the stacks, counted or not: they are alive.
//!
//! # Frames in objects
//!
//! Their traverse function shows a deferred reference to every visitor but two of CPython's own. So
//! [`Traverse`] first lists the deferred references of the frame. The visitor reports an address of
//! this list as *uncounted*, as often as it is in the list, and all other addresses as counted.
//!
//! Extension modules may have frames in their objects, too: see [`foreign`](crate::foreign).

use std::ffi::{c_int, c_void};

use smallvec::SmallVec;
use standstill::model::{Object, Tracer};

use crate::counts::{add_reference, each_thread, is_tracked};
use crate::layout as c;

/// The object of a stack reference that is not counted.
///
/// # Safety
///
/// The reference is valid, and the world is stopped.
pub unsafe fn uncounted(reference: c::_PyStackRef) -> Option<*mut c::PyObject> {
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
        each_local(frame, f);
        !(*frame).stackpointer.is_null()
    }
}

/// Calls `f` with the stack references of a frame that are variables or lie on its stack.
///
/// # Safety
///
/// As for [`each_reference`].
pub unsafe fn each_local(
    frame: *mut c::_PyInterpreterFrame,
    mut f: impl FnMut(*mut c::_PyStackRef),
) {
    // SAFETY: as the caller says.
    unsafe {
        let mut at = (&raw mut (*frame).localsplus).cast::<c::_PyStackRef>();
        while at < (*frame).stackpointer {
            f(at);
            at = at.add(1);
        }
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

/// The deferred references of a frame. Few frames have more than fit without an allocation, which
/// takes time, and could hang a child process.
type Deferred = SmallVec<[*mut c::PyObject; 32]>;

/// The data of the visitor of an object with a frame.
struct Visit<'t> {
    tracer: &'t mut Tracer,
    /// The addresses of deferred references that were not visited yet.
    deferred: Deferred,
}

/// The visitor of most objects.
unsafe extern "C" fn visit(op: *mut c::PyObject, tracer: *mut c_void) -> c_int {
    // SAFETY: `Traverse` passes its tracer. The target is alive: an object refers to it.
    unsafe { edge(&mut *tracer.cast(), op) };
    0
}

/// The visitor of objects with a frame.
unsafe extern "C" fn visit_of_frame(op: *mut c::PyObject, visit: *mut c_void) -> c_int {
    // SAFETY: `traverse_frame` passes its data.
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
pub unsafe fn edge(tracer: &mut Tracer, op: *mut c::PyObject) {
    // SAFETY: as the caller says.
    unsafe { tracer.visit_object(Object::new(std::ptr::NonNull::new_unchecked(op.cast()))) };
}

/// The traversal of some objects.
///
/// The objects of which a heap has most are read here, without the calls of a traverse function:
/// ADR 46 has the instructions that this saves.
pub struct Traverse {
    /// The traverse function of classes that a program has defined.
    of_classes: usize,
    /// The last class that was [plain](is_plain). Null: none was.
    plain: *mut pyo3_ffi::PyTypeObject,
    /// An extension module may show references that are not counted.
    #[cfg(py315)]
    is_redirected: bool,
}

impl Traverse {
    #[inline(always)]
    pub fn new(of_classes: usize) -> Self {
        Self {
            of_classes,
            plain: std::ptr::null_mut(),
            #[cfg(py315)]
            is_redirected: crate::foreign::is_redirected(),
        }
    }

    /// Reports all references of an object, if it is tracked. An untracked object may not be
    /// complete.
    ///
    /// # Panics
    ///
    /// If the traverse function fails, or if there is no memory. The collection is then abandoned.
    ///
    /// # Safety
    ///
    /// `op` is the object of a block in use. The world is stopped, in the same stop for all objects
    /// of this value.
    #[inline(always)]
    pub unsafe fn tracked(&mut self, op: *mut c::PyObject, tracer: &mut Tracer) {
        // SAFETY: as the caller says. The layouts of lists and tuples are the headers'.
        unsafe {
            if !is_tracked(op) {
                return;
            }
            let class: *mut pyo3_ffi::PyTypeObject = (*op).ob_type.cast();
            if class == &raw mut pyo3_ffi::PyList_Type {
                let list = op.cast::<c::PyListObject>();
                items((*list).ob_item, (*list).ob_base.ob_size, tracer);
            } else if class == self.plain {
                instance(op, class, tracer);
            } else if class == &raw mut pyo3_ffi::PyTuple_Type {
                let tuple = op.cast::<c::PyTupleObject>();
                let first = (&raw mut (*tuple).ob_item).cast();
                items(first, (*tuple).ob_base.ob_size, tracer);
            } else {
                self.other(op, class, tracer);
            }
        }
    }

    /// Reports the references of an object of another class.
    ///
    /// A function of its own: the registers that it saves would be saved for each list.
    ///
    /// # Safety
    ///
    /// As for [`tracked`](Self::tracked), and the class is that of the object.
    #[inline(never)]
    unsafe fn other(
        &mut self,
        op: *mut c::PyObject,
        class: *mut pyo3_ffi::PyTypeObject,
        tracer: &mut Tracer,
    ) {
        // SAFETY: as the caller says.
        unsafe {
            let Some(handler) = (*(*op).ob_type).tp_traverse else { return };
            if handler as usize == self.of_classes {
                if is_plain(class, self.of_classes) {
                    self.plain = class;
                    return instance(op, class, tracer);
                }
            } else if class == &raw mut pyo3_ffi::PyDict_Type {
                return dict(op.cast(), tracer);
            } else if class == &raw mut pyo3_ffi::PyFunction_Type {
                return function(op.cast(), tracer);
            } else if class == &raw mut pyo3_ffi::PyCode_Type {
                return code(op.cast(), tracer);
            }
            if frame_in(op).is_some() {
                return traverse_frame(op, tracer);
            }
            #[cfg(py315)]
            if self.is_redirected {
                return crate::foreign::traverse(op, handler, tracer);
            }
            let failed = handler(op, Some(visit), (&raw mut *tracer).cast());
            assert!(failed == 0, "a traverse function has failed");
        }
    }
}

/// # Safety
///
/// The memory has so many references or null pointers, and belongs to the object that is traversed.
/// The world is stopped.
#[inline(always)]
unsafe fn items(first: *mut *mut c::PyObject, count: isize, tracer: &mut Tracer) {
    if count > 0 {
        // SAFETY: as the caller says. An object is a pointer that is not null.
        unsafe {
            let items = std::slice::from_raw_parts(first.cast(), count as usize);
            tracer.visit_slots(items);
        }
    }
}

/// Whether the instances of a class have inline values or a managed dictionary, and no other
/// references than these and the one to the class: no slots, and no base in C but `object`.
///
/// # Safety
///
/// The class is alive, and was defined by a program.
#[inline(always)]
unsafe fn is_plain(class: *mut pyo3_ffi::PyTypeObject, of_classes: usize) -> bool {
    // SAFETY: as the caller says. A class keeps its bases alive, and the last one is `object`,
    // which has no traverse function.
    unsafe {
        let mut base = class;
        while (*base).tp_traverse.is_some_and(|handler| handler as usize == of_classes) {
            if (*base).ob_base.ob_size != 0 {
                return false;
            }
            base = (*base).tp_base;
        }
        let flags = (*class.cast::<c::PyTypeObject>()).tp_flags as i64 & c::SS_PLAIN_CLASS;
        base == &raw mut pyo3_ffi::PyBaseObject_Type && flags == c::SS_PLAIN_CLASS
    }
}

/// Reports the references of an instance of a [plain](is_plain) class.
///
/// # Safety
///
/// As for [`Traverse::tracked`], and the class is that of the object.
#[inline(always)]
unsafe fn instance(op: *mut c::PyObject, class: *mut pyo3_ffi::PyTypeObject, tracer: &mut Tracer) {
    // SAFETY: as the caller says. A dictionary that exists reports the inline values.
    unsafe {
        let managed = op.byte_offset(c::SS_MANAGED_DICT_OFFSET as isize);
        let dict = *managed.cast::<*mut c::PyObject>();
        if dict.is_null() {
            let values = op.byte_offset((*class).tp_basicsize).cast::<c::PyDictValues>();
            if (*values).valid != 0 {
                let first = (&raw mut (*values).values).cast();
                items(first, isize::from((*values).capacity), tracer);
            }
        } else {
            edge(tracer, dict);
        }
        edge(tracer, class.cast());
    }
}

/// Reports the references of a dictionary.
///
/// # Safety
///
/// As for [`Traverse::tracked`].
#[inline(always)]
unsafe fn dict(dict: *mut c::PyDictObject, tracer: &mut Tracer) {
    // SAFETY: as the caller says. The entries follow the indices.
    unsafe {
        let keys = (*dict).ma_keys;
        let number = (*keys).dk_nentries;
        let entries = (&raw mut (*keys).dk_indices).byte_add(1 << (*keys).dk_log2_index_bytes);
        if i64::from((*keys).dk_kind) == c::SS_DICT_KEYS_GENERAL {
            let entries = entries.cast::<c::PyDictKeyEntry>();
            for at in 0..number.max(0) as usize {
                let entry = entries.add(at);
                if !(*entry).me_value.is_null() {
                    edge(tracer, (*entry).me_value);
                    edge(tracer, (*entry).me_key);
                }
            }
        } else if (*dict).ma_values.is_null() {
            // The keys are strings, which refer to nothing.
            let entries = entries.cast::<c::PyDictUnicodeEntry>();
            for at in 0..number.max(0) as usize {
                let value = (*entries.add(at)).me_value;
                if !value.is_null() {
                    edge(tracer, value);
                }
            }
        } else {
            items((&raw mut (*(*dict).ma_values).values).cast(), number, tracer);
        }
    }
}

/// Reports the references of a function: all its fields that are pointers to objects, except the
/// list of weak references.
///
/// # Safety
///
/// As for [`Traverse::tracked`].
#[inline(always)]
unsafe fn function(function: *mut c::PyFunctionObject, tracer: &mut Tracer) {
    /// The number of references from one field to another one.
    macro_rules! fields {
        ($first:ident..=$last:ident) => {
            const {
                let first = std::mem::offset_of!(c::PyFunctionObject, $first);
                let last = std::mem::offset_of!(c::PyFunctionObject, $last);
                ((last - first) / size_of::<usize>() + 1) as isize
            }
        };
    }
    // SAFETY: as the caller says. Between these fields lie only references: see
    // `cpython/funcobject.h`.
    unsafe {
        let before_weak = fields!(func_globals..=func_dict);
        items(&raw mut (*function).func_globals, before_weak, tracer);
        let after_weak = fields!(func_module..=func_typeparams);
        items(&raw mut (*function).func_module, after_weak, tracer);
    }
}

/// Reports the references of a code object. Marking also gets those to its tuples of names, which
/// CPython's traverse function leaves out: counting would find each of these tuples to be a root,
/// in each collection. CPython's collector stops to track such a tuple at the first visit.
///
/// Counting does not get them. So the names of a garbage code object die by their counts. Names may
/// be an object of a class derived from `tuple`: as in CPython, no cycle through it is found.
///
/// # Safety
///
/// As for [`Traverse::tracked`].
#[inline(always)]
unsafe fn code(code: *mut c::PyCodeObject, tracer: &mut Tracer) {
    // SAFETY: as the caller says. The interpreter checks that the names are strings.
    unsafe {
        items(&raw mut (*code).co_consts, 1, tracer);
        if tracer.skips_leaves() {
            for names in [(*code).co_names, (*code).co_localsplusnames] {
                if let Some(names) = std::ptr::NonNull::new(names) {
                    tracer.visit_leaf(Object::new(names.cast()));
                }
            }
        }
    }
}

/// # Safety
///
/// As for [`Traverse::tracked`]. The object has a frame.
#[cold]
unsafe fn traverse_frame(op: *mut c::PyObject, tracer: &mut Tracer) {
    let mut deferred = Deferred::new();
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
        each_deferred(op, |at| count_reference(at));
    }
}

/// Makes a stack reference of a garbage object a counted one.
///
/// # Safety
///
/// The world is stopped. No other thread accesses the reference, which is valid.
pub unsafe fn count_reference(at: *mut c::_PyStackRef) {
    // SAFETY: as the caller says. The target is alive.
    unsafe {
        if let Some(target) = uncounted(*at)
            && add_reference(target)
        {
            *at = c::ss_stackref_steal(target);
        }
    }
}
