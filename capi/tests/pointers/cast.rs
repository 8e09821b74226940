//! What the functions are called with: right values, and wrong ones, made through the library
//! itself.

use std::ffi::{CStr, c_int, c_uint};
use std::ptr::null_mut;

use standstill::dynamic::{RawObject, VisitProc};
use standstill_capi::layout::{PyModuleDef, PyObject, PyType_Slot, PyType_Spec, PyTypeObject};
use standstill_capi::world::standstill_heap_options;

use crate::library::{Library, Pointer};
use crate::signatures::{Kind, Signature};

/// What is wrong with a pointer.
pub(crate) const OBJECTS: &[&str] = &[
    "null",
    "zeroed",
    "random",
    "stack",
    "interior",
    "unmapped",
    "freed",
    "another heap's",
    "an instance",
    "a number",
    "a tuple",
    "a string",
    "a module",
    "a type",
    "the type of types",
    "a weak reference",
    "None",
];
pub(crate) const HEAPS: &[&str] = &["null", "zeroed", "random", "stack", "freed"];
pub(crate) const THREADS: &[&str] = &["null", "zeroed", "random", "stack", "freed"];

/// The wrong values that make sense for a parameter: where no check can tell, for example for
/// texts, only null.
pub(crate) fn wrongs(kind: Kind) -> &'static [&'static str] {
    match kind {
        Kind::Object | Kind::Type | Kind::Array | Kind::Typed => OBJECTS,
        Kind::Heap => HEAPS,
        Kind::Thread | Kind::Participant => THREADS,
        Kind::Description => &["null", "zeroed"],
        Kind::Text | Kind::Out | Kind::Function | Kind::Opaque | Kind::Coordinator => &["null"],
        Kind::Number => &[],
    }
}

/// The library's functions and what they have made, in a process of their own.
pub(crate) struct Cast {
    pub(crate) library: Library,
    heap: Pointer,
    instance: Pointer,
    module: Pointer,
    class: Pointer,
    tuple: Pointer,
    string: Pointer,
    number: Pointer,
    weakref: Pointer,
    callback: Pointer,
    map: Pointer,
    guardian: Pointer,
    freed: Pointer,
    freed_type: Pointer,
    elsewhere: Pointer,
    def: *mut PyModuleDef,
}

static mut VISIT_DICT: Option<unsafe extern "C" fn(*mut PyObject, VisitProc, Pointer) -> c_int> =
    None;
static mut CLEAR_DICT: Option<unsafe extern "C" fn(*mut PyObject)> = None;

/// The face of an object's type: what `Py_TYPE` gives.
unsafe fn face_of(object: *mut PyObject) -> *mut PyObject {
    // SAFETY: a living object: its record stands at 16, and starts with the face.
    unsafe { *object.cast::<*mut *mut PyObject>().add(2).read() }
}

unsafe extern "C" fn traverse(object: *mut RawObject, visit: VisitProc, arg: Pointer) -> c_int {
    // SAFETY: called for a living instance; the function is set before any is made.
    unsafe {
        let result = visit(face_of(object), arg);
        if result != 0 {
            return result;
        }
        #[allow(static_mut_refs)]
        VISIT_DICT.map_or(0, |visit_dict| visit_dict(object, visit, arg))
    }
}

unsafe extern "C" fn clear(object: *mut RawObject) -> c_int {
    // SAFETY: as in `traverse`.
    unsafe {
        #[allow(static_mut_refs)]
        if let Some(clear_dict) = CLEAR_DICT {
            clear_dict(object);
        }
    }
    0
}

unsafe extern "C" fn nothing(_: Pointer, _: Pointer) -> c_int {
    0
}

unsafe extern "C" fn visit_nothing(_: *mut RawObject, _: Pointer) -> c_int {
    0
}

/// A block of memory that nothing is known of, large enough for whatever it is taken for.
fn block(fill: impl Fn(usize) -> u8) -> Pointer {
    let bytes: Vec<u8> = (0..4096).map(fill).collect();
    Vec::leak(bytes).as_mut_ptr().cast()
}

impl Cast {
    /// A checked heap, this thread attached to it, and one object of each sort.
    pub(crate) fn new(library: Library) -> Self {
        type Make = unsafe extern "C" fn(Pointer) -> Pointer;
        // SAFETY: the functions are of these types, and called as the header says.
        unsafe {
            let new_heap: unsafe extern "C" fn(*const standstill_heap_options) -> Pointer =
                library.function("standstill_heap_new");
            let attach: unsafe extern "C" fn(Pointer) -> c_int =
                library.function("standstill_attach");
            let detach: unsafe extern "C" fn() -> c_int = library.function("standstill_detach");
            let new_number: unsafe extern "C" fn(i64) -> Pointer =
                library.function("standstill_PyLong_FromLongLong");
            let new_tuple: unsafe extern "C" fn(isize) -> Pointer =
                library.function("standstill_PyTuple_New");
            let set_item: unsafe extern "C" fn(Pointer, isize, Pointer) -> c_int =
                library.function("standstill_PyTuple_SetItem");
            let new_string: unsafe extern "C" fn(*const std::ffi::c_char) -> Pointer =
                library.function("standstill_PyUnicode_FromString");
            let new_module: unsafe extern "C" fn(*mut PyModuleDef) -> Pointer =
                library.function("standstill_PyModule_Create");
            let new_type: unsafe extern "C" fn(Pointer, *mut PyType_Spec, Pointer) -> Pointer =
                library.function("standstill_PyType_FromModuleAndSpec");
            let new_instance: unsafe extern "C" fn(Pointer, isize) -> Pointer =
                library.function("standstill_PyType_GenericAlloc");
            let new_weakref: unsafe extern "C" fn(Pointer, Pointer) -> Pointer =
                library.function("standstill_PyWeakref_NewRef");
            let new_callback: unsafe extern "C" fn(Pointer, Pointer) -> Pointer =
                library.function("standstill_Callback_New");
            let new_map: unsafe extern "C" fn() -> Pointer =
                library.function("standstill_weak_map_new");
            let new_guardian: unsafe extern "C" fn() -> Pointer =
                library.function("standstill_guardian_new");
            let decref: Make = library.function("standstill_Py_DecRef");
            VISIT_DICT = Some(library.function("standstill_PyObject_VisitManagedDict"));
            CLEAR_DICT = Some(library.function("standstill_PyObject_ClearManagedDict"));
            let mut options: standstill_heap_options = std::mem::zeroed();
            options.size = size_of::<standstill_heap_options>();
            options.reserve = 64 << 20;
            options.workers = 1;
            options.checked = 1;
            let other = new_heap(&options);
            attach(other);
            let elsewhere = new_number(5);
            detach();
            let heap = new_heap(&options);
            assert_eq!(attach(heap), 0);
            let def = Box::leak(Box::new(std::mem::zeroed::<PyModuleDef>()));
            def.ob_base = PyObject::immortal();
            def.m_name = c"test".as_ptr();
            def.m_size = 16;
            let module = new_module(def);
            let class_of = |name: &'static CStr| {
                let slots = Box::leak(Box::new([
                    PyType_Slot { slot: 71, pfunc: traverse as *mut _ },
                    PyType_Slot { slot: 51, pfunc: clear as *mut _ },
                    PyType_Slot { slot: 83, pfunc: null_mut() },
                    PyType_Slot { slot: 0, pfunc: null_mut() },
                ]));
                let flags = 1 << 4 | 1 << 10 | 1 << 14;
                let spec = PyType_Spec {
                    name: name.as_ptr(),
                    basicsize: 0,
                    itemsize: 0,
                    flags,
                    slots: slots.as_mut_ptr(),
                };
                new_type(module, Box::leak(Box::new(spec)), null_mut())
            };
            let class = class_of(c"test.Class");
            let freed_type = class_of(c"test.Freed");
            decref(freed_type);
            let freed = new_number(7);
            decref(freed);
            let instance = new_instance(class, 0);
            let tuple = new_tuple(1);
            set_item(tuple, 0, new_number(8));
            let cast = Self {
                heap,
                instance,
                module,
                class,
                tuple,
                string: new_string(c"text".as_ptr()),
                number: new_number(9),
                weakref: new_weakref(instance, null_mut()),
                callback: new_callback(nothing as *mut _, null_mut()),
                map: new_map(),
                guardian: new_guardian(),
                freed,
                freed_type,
                elsewhere,
                def,
                library,
            };
            for made in [
                heap,
                instance,
                module,
                class,
                tuple,
                cast.string,
                cast.number,
                cast.weakref,
                cast.callback,
                cast.map,
                cast.guardian,
            ] {
                assert!(!made.is_null(), "something could not be made");
            }
            cast
        }
    }

    /// What the parameter is to be given.
    pub(crate) fn right(&self, signature: &Signature, at: usize) -> Pointer {
        let parameter = &signature.parameters[at];
        let number = |number: isize| number as Pointer;
        match (parameter.kind, parameter.name.as_str(), signature.name.as_str()) {
            (Kind::Object, "module", _) => self.module,
            (Kind::Object, "tuple", _) => self.tuple,
            (Kind::Object, "string", _) => self.string,
            (Kind::Object, "number", _) => self.number,
            (Kind::Object, "ref", _) => self.weakref,
            (Kind::Object, "callback", _) => self.callback,
            (Kind::Object, "bases", _) => null_mut(),
            (Kind::Object, "block", _) => {
                // SAFETY: as the header says.
                unsafe {
                    let new: unsafe extern "C" fn(usize) -> Pointer =
                        self.library.function("standstill_PyMem_Malloc");
                    new(8)
                }
            }
            (Kind::Object, "exception", _) => self.exception(),
            (Kind::Object, _, "_PyObject_GC_Resize" | "Py_SIZE") => self.tuple,
            (Kind::Object, ..) => self.instance,
            (Kind::Type, _, "_PyObject_New") => self.library.address("standstill_PyLong_Type"),
            (Kind::Type, _, "_PyObject_NewVar") => {
                self.library.address("standstill_PyUnicode_Type")
            }
            (Kind::Type, _, "_PyObject_GC_NewVar") => {
                self.library.address("standstill_PyTuple_Type")
            }
            (Kind::Type, ..) => self.class,
            (Kind::Array, ..) => self.array_of(self.instance),
            (Kind::Heap, ..) => self.heap,
            (Kind::Typed, "map", _) => self.map,
            (Kind::Typed, ..) => self.guardian,
            (Kind::Thread, ..) => null_mut(),
            (Kind::Coordinator, ..) => self.coordinator(),
            (Kind::Participant, ..) => self.participant(),
            (Kind::Text, "path", _) => {
                let path = concat!(env!("CARGO_TARGET_TMPDIR"), "/pointers.heapsnapshot\0");
                path.as_ptr().cast_mut().cast()
            }
            (Kind::Text, ..) => c"name".as_ptr().cast_mut().cast(),
            (Kind::Description, "options", _) => null_mut(),
            (Kind::Description, "def", _) => self.def.cast(),
            (Kind::Description, ..) => {
                let spec = PyType_Spec {
                    name: c"test.New".as_ptr(),
                    basicsize: 0,
                    itemsize: 0,
                    flags: 0,
                    slots: null_mut(),
                };
                Box::into_raw(Box::new(spec)).cast()
            }
            (Kind::Out, ..) => block(|_| 0),
            (Kind::Function, "visit", _) => visit_nothing as Pointer,
            (Kind::Function, ..) => nothing as Pointer,
            (Kind::Opaque, "arg", _) => null_mut(),
            (Kind::Opaque, ..) => self.def.cast(),
            (Kind::Number, "generation", _) => number(2),
            (Kind::Number, "slot", _) => number(71),
            (Kind::Number, "n" | "newsize" | "size", _) => number(1),
            (Kind::Number, "after", _) => number(-1),
            (Kind::Number, ..) => number(0),
        }
    }

    fn coordinator(&self) -> Pointer {
        // SAFETY: as the header says.
        unsafe {
            let new: unsafe extern "C" fn(Pointer, c_uint) -> Pointer =
                self.library.function("standstill_coordinator_new");
            new(null_mut(), 0)
        }
    }

    fn participant(&self) -> Pointer {
        // SAFETY: as the header says.
        unsafe {
            let new: unsafe extern "C" fn(Pointer, Pointer) -> Pointer =
                self.library.function("standstill_participant_new");
            new(self.coordinator(), null_mut())
        }
    }

    /// The type of an error.
    pub(crate) fn exception(&self) -> Pointer {
        // SAFETY: a static pointer of the library.
        unsafe { self.library.address("standstill_PyExc_TypeError").cast::<Pointer>().read() }
    }

    /// An array of one.
    fn array_of(&self, object: Pointer) -> Pointer {
        Box::leak(Box::new([object])).as_mut_ptr().cast()
    }

    /// The wrong value that is called so.
    pub(crate) fn wrong(&self, kind: Kind, what: &str) -> Pointer {
        let value = self.pointer(kind, what);
        match kind {
            Kind::Array if what != "null" => self.array_of(value),
            _ => value,
        }
    }

    fn pointer(&self, kind: Kind, what: &str) -> Pointer {
        match what {
            "null" => null_mut(),
            "zeroed" => block(|_| 0),
            "random" => block(|at| (at.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 7) as u8 | 1),
            "unmapped" => 0x10_0000 as Pointer,
            "interior" => self.instance.wrapping_byte_add(8),
            "freed" => match kind {
                Kind::Type => self.freed_type,
                Kind::Heap => {
                    // SAFETY: as the header says.
                    unsafe {
                        let new: unsafe extern "C" fn(Pointer) -> Pointer =
                            self.library.function("standstill_heap_new");
                        let free: unsafe extern "C" fn(Pointer) -> c_int =
                            self.library.function("standstill_heap_free");
                        let heap = new(null_mut());
                        free(heap);
                        heap
                    }
                }
                Kind::Thread => {
                    // SAFETY: as the header says.
                    unsafe {
                        let save: unsafe extern "C" fn() -> Pointer =
                            self.library.function("standstill_PyEval_SaveThread");
                        let restore: unsafe extern "C" fn(Pointer) =
                            self.library.function("standstill_PyEval_RestoreThread");
                        let state = save();
                        restore(state);
                        state
                    }
                }
                Kind::Participant => {
                    let participant = self.participant();
                    // SAFETY: as the header says.
                    unsafe {
                        let free: unsafe extern "C" fn(Pointer) -> c_int =
                            self.library.function("standstill_participant_free");
                        free(participant);
                    }
                    participant
                }
                _ => self.freed,
            },
            "another heap's" => self.elsewhere,
            "an instance" => self.instance,
            "a number" => self.number,
            "a tuple" => self.tuple,
            "a string" => self.string,
            "a module" => self.module,
            "a type" => self.class,
            "the type of types" => self.library.address("standstill_PyType_Type"),
            "a weak reference" => self.weakref,
            "None" => self.library.address("standstill__Py_NoneStruct"),
            _ => unreachable!("{what} is made by the caller"),
        }
    }
}

/// The type that a static description is made of, for handlers.
pub(crate) fn nosy(
    handler: unsafe extern "C" fn(*mut RawObject, VisitProc, Pointer) -> c_int,
) -> *mut PyTypeObject {
    let face = Box::leak(Box::new(PyTypeObject::named(c"test.Nosy")));
    face.tp_basicsize = size_of::<RawObject>() as isize;
    face.tp_flags = 1 << 14;
    face.tp_traverse = Some(handler);
    face
}
