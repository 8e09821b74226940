//! The structs of the header, in Rust.

use std::cell::UnsafeCell;
use std::ffi::{c_char, c_int, c_uint, c_void};
use std::fmt;
use std::mem::offset_of;
use std::sync::atomic::{AtomicPtr, Ordering};

use standstill::dynamic::{
    AllocProc, Destructor, FreeProc, Inquiry, RawObject, TraverseProc, TypeRecord,
};

/// The head of every object.
pub type PyObject = RawObject;
/// Stored and inherited. The library never calls it.
pub type NewProc =
    unsafe extern "C" fn(*mut PyTypeObject, *mut PyObject, *mut PyObject) -> *mut PyObject;
/// Stored and inherited. The library never calls it.
pub type InitProc = unsafe extern "C" fn(*mut PyObject, *mut PyObject, *mut PyObject) -> c_int;

/// The head of an object with items.
#[repr(C)]
#[derive(Debug)]
#[expect(missing_docs, reason = "the header describes the fields")]
pub struct PyVarObject {
    pub ob_base: PyObject,
    pub ob_size: isize,
}

/// The record of a type that this library made or made ready. Null for a type that is not ready,
/// and for a heap type that was made elsewhere.
#[repr(transparent)]
#[derive(Debug)]
pub struct ShownRecord(AtomicPtr<TypeRecord>);

impl ShownRecord {
    /// The record, or null. Acquire: pairs with the release in `set`. A thread that finds the
    /// record reads the complete record and the type's complete members.
    #[inline(always)]
    pub fn get(&self) -> *const TypeRecord {
        self.0.load(Ordering::Acquire)
    }

    /// The record of a type that is ready and was not made elsewhere.
    #[inline(always)]
    pub(crate) fn record(&self) -> Option<&TypeRecord> {
        // SAFETY: rule *record*.
        unsafe { self.get().as_ref() }
    }

    /// Publishes the record. The caller has written all other members of the type, because threads
    /// read them without a lock.
    pub(crate) fn set(&self, record: &TypeRecord) {
        self.0.store(std::ptr::from_ref(record).cast_mut(), Ordering::Release);
    }
}

/// A type as C reads it: its face.
#[repr(C)]
#[expect(missing_docs, reason = "the header describes the fields")]
pub struct PyTypeObject {
    pub ob_base: PyVarObject,
    pub tp_name: *const c_char,
    pub tp_basicsize: isize,
    pub tp_itemsize: isize,
    pub tp_dealloc: Option<Destructor>,
    pub tp_flags: u64,
    pub tp_doc: *const c_char,
    pub tp_traverse: Option<TraverseProc>,
    pub tp_clear: Option<Inquiry>,
    pub tp_weaklistoffset: isize,
    pub tp_base: *mut PyTypeObject,
    pub tp_dictoffset: isize,
    pub tp_init: Option<InitProc>,
    pub tp_alloc: Option<AllocProc>,
    pub tp_new: Option<NewProc>,
    pub tp_free: Option<FreeProc>,
    pub tp_is_gc: Option<Inquiry>,
    pub tp_bases: *mut PyObject,
    pub tp_weaklist: *mut PyObject,
    pub tp_del: Option<Destructor>,
    pub tp_version_tag: c_uint,
    pub tp_finalize: Option<Destructor>,
    pub ss_reserved: [*mut c_void; 7],
    pub ss_own: ShownRecord,
}

impl fmt::Debug for PyTypeObject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PyTypeObject({:p})", &raw const *self)
    }
}

impl PyTypeObject {
    /// A static type that has only a name.
    pub const fn named(name: &'static std::ffi::CStr) -> Self {
        Self {
            ob_base: PyVarObject { ob_base: RawObject::immortal(), ob_size: 0 },
            tp_name: name.as_ptr(),
            tp_basicsize: 0,
            tp_itemsize: 0,
            tp_dealloc: None,
            tp_flags: 0,
            tp_doc: std::ptr::null(),
            tp_traverse: None,
            tp_clear: None,
            tp_weaklistoffset: 0,
            tp_dictoffset: 0,
            tp_base: std::ptr::null_mut(),
            tp_bases: std::ptr::null_mut(),
            tp_alloc: None,
            tp_new: None,
            tp_init: None,
            tp_free: None,
            tp_is_gc: None,
            tp_del: None,
            tp_finalize: None,
            tp_weaklist: std::ptr::null_mut(),
            tp_version_tag: 0,
            ss_reserved: [std::ptr::null_mut(); 7],
            ss_own: ShownRecord(AtomicPtr::new(std::ptr::null_mut())),
        }
    }
}

const _: () = {
    assert!(size_of::<PyObject>() == 24 && size_of::<PyVarObject>() == 32);
    assert!(offset_of!(PyTypeObject, tp_name) == 32);
    assert!(offset_of!(PyTypeObject, tp_dealloc) == 56);
    assert!(offset_of!(PyTypeObject, tp_flags) == 64);
    assert!(offset_of!(PyTypeObject, tp_traverse) == 80);
    assert!(offset_of!(PyTypeObject, tp_base) == 104);
    assert!(offset_of!(PyTypeObject, tp_alloc) == 128);
    assert!(offset_of!(PyTypeObject, tp_free) == 144);
    assert!(offset_of!(PyTypeObject, tp_finalize) == 192);
    assert!(offset_of!(PyTypeObject, ss_reserved) == 200);
    assert!(offset_of!(PyTypeObject, ss_own) == 256);
    assert!(size_of::<PyTypeObject>() == 264);
    // The object of a type that was made elsewhere has at least this size, so C can read it as a
    // face.
    assert!(size_of::<PyTypeObject>() <= standstill::dynamic::FACE);
};

/// A slot of a spec.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[expect(missing_docs, reason = "the header describes the fields")]
pub struct PyType_Slot {
    pub slot: c_int,
    pub pfunc: *mut c_void,
}

/// The description of a heap type.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[expect(missing_docs, reason = "the header describes the fields")]
pub struct PyType_Spec {
    pub name: *const c_char,
    pub basicsize: c_int,
    pub itemsize: c_int,
    pub flags: c_uint,
    pub slots: *mut PyType_Slot,
}

const _: () = assert!(size_of::<PyType_Slot>() == 16 && size_of::<PyType_Spec>() == 32);

/// A slot of a module definition.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[expect(missing_docs, reason = "the header describes the fields")]
pub struct PyModuleDef_Slot {
    pub slot: c_int,
    pub value: *mut c_void,
}

/// The description of a module.
#[repr(C)]
#[expect(missing_docs, reason = "the header describes the fields")]
pub struct PyModuleDef {
    pub ob_base: PyObject,
    pub m_init: Option<unsafe extern "C" fn() -> *mut PyObject>,
    pub m_index: isize,
    pub m_copy: *mut PyObject,
    pub m_name: *const c_char,
    pub m_doc: *const c_char,
    pub m_size: isize,
    pub m_methods: *mut c_void,
    pub m_slots: *mut PyModuleDef_Slot,
    pub m_traverse: Option<TraverseProc>,
    pub m_clear: Option<Inquiry>,
    pub m_free: Option<FreeProc>,
}

const _: () = assert!(offset_of!(PyModuleDef, m_name) == 48 && size_of::<PyModuleDef>() == 112);

impl fmt::Debug for PyModuleDef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PyModuleDef({:p})", &raw const *self)
    }
}

/// An exported static that C may write: rule *statics*.
#[repr(transparent)]
pub struct Global<T>(UnsafeCell<T>);

// SAFETY: rule *statics*.
unsafe impl<T> Sync for Global<T> {}

impl<T> Global<T> {
    pub(crate) const fn new(value: T) -> Self {
        Self(UnsafeCell::new(value))
    }

    /// The address of the static.
    pub const fn get(&self) -> *mut T {
        self.0.get()
    }
}

impl<T> fmt::Debug for Global<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Global({:p})", self.get())
    }
}
