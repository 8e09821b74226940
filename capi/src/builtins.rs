//! The built-in types, with their faces in exported statics: tuples, strings, numbers, None,
//! callbacks, and the exception types, which only serve as names.

use std::cell::Cell;
use std::ffi::{CStr, c_char, c_int, c_long, c_longlong, c_void};
use std::ptr::NonNull;
use std::sync::{Mutex, OnceLock, PoisonError};

use standstill::dynamic::{
    self, BASE, Flags, METATYPE, MODULE, Slots, TypeRecord, TypeSpec, VisitProc, WEAKREF,
};
use standstill::fallible;
use standstill::words;
use standstill::{Code, Fault, Mutator};

use crate::call::{self, export};
use crate::errors;
use crate::layout::{Global, PyObject, PyTypeObject};
use crate::types;

macro_rules! faces {
    ($($(#[$meta:meta])* $name:ident = $text:literal;)*) => {$(
        $(#[$meta])*
        // SAFETY: rule *bounds*: no other name begins with `standstill_`; `ci/capi_symbols.sh`
        // looks.
        #[unsafe(no_mangle)]
        pub static $name: Global<PyTypeObject> = Global::new(PyTypeObject::named($text));
    )*};
}

faces! {
    /// The root of all types.
    standstill_PyBaseObject_Type = c"object";
    /// The type of types.
    standstill_PyType_Type = c"type";
    /// The type of modules.
    standstill_PyModule_Type = c"module";
    /// Tuples.
    standstill_PyTuple_Type = c"tuple";
    /// Strings.
    standstill_PyUnicode_Type = c"str";
    /// 64-bit numbers.
    standstill_PyLong_Type = c"int";
    /// Weak references.
    standstill_PyWeakref_Type = c"weakref";
}

static NONE_TYPE: Global<PyTypeObject> = Global::new(PyTypeObject::named(c"NoneType"));
static CALLBACK_TYPE: Global<PyTypeObject> =
    Global::new(PyTypeObject::named(c"standstill.Callback"));

/// None.
// SAFETY: rule *bounds*: no other name begins with `standstill_`; `ci/capi_symbols.sh` looks.
#[unsafe(no_mangle)]
pub static standstill__Py_NoneStruct: Global<PyObject> = Global::new(PyObject::immortal());

/// The exception types.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exception {
    Type,
    Value,
    System,
    Memory,
    Runtime,
    Attribute,
}

static TYPE_ERROR: Global<PyTypeObject> = Global::new(PyTypeObject::named(c"TypeError"));
static VALUE_ERROR: Global<PyTypeObject> = Global::new(PyTypeObject::named(c"ValueError"));
static SYSTEM_ERROR: Global<PyTypeObject> = Global::new(PyTypeObject::named(c"SystemError"));
static MEMORY_ERROR: Global<PyTypeObject> = Global::new(PyTypeObject::named(c"MemoryError"));
static RUNTIME_ERROR: Global<PyTypeObject> = Global::new(PyTypeObject::named(c"RuntimeError"));
static ATTRIBUTE_ERROR: Global<PyTypeObject> = Global::new(PyTypeObject::named(c"AttributeError"));

impl Exception {
    const ALL: [Self; 6] =
        [Self::Type, Self::Value, Self::System, Self::Memory, Self::Runtime, Self::Attribute];

    fn name(self) -> &'static str {
        match self {
            Self::Type => "TypeError",
            Self::Value => "ValueError",
            Self::System => "SystemError",
            Self::Memory => "MemoryError",
            Self::Runtime => "RuntimeError",
            Self::Attribute => "AttributeError",
        }
    }

    const fn face(self) -> *mut PyTypeObject {
        match self {
            Self::Type => TYPE_ERROR.get(),
            Self::Value => VALUE_ERROR.get(),
            Self::System => SYSTEM_ERROR.get(),
            Self::Memory => MEMORY_ERROR.get(),
            Self::Runtime => RUNTIME_ERROR.get(),
            Self::Attribute => ATTRIBUTE_ERROR.get(),
        }
    }

    /// The static object of the exception type.
    pub(crate) const fn object(self) -> NonNull<PyObject> {
        // SAFETY: rule *statics*: the address of a static.
        unsafe { NonNull::new_unchecked(self.face().cast()) }
    }
}

macro_rules! exceptions {
    ($($(#[$meta:meta])* $name:ident = $which:ident;)*) => {$(
        $(#[$meta])*
        // SAFETY: rule *bounds*: no other name begins with `standstill_`; `ci/capi_symbols.sh`
        // looks.
        #[unsafe(no_mangle)]
        pub static $name: Global<*mut PyObject> = Global::new(Exception::$which.object().as_ptr());
    )*};
}

exceptions! {
    /// An object of the wrong type.
    standstill_PyExc_TypeError = Type;
    /// A value that is not allowed.
    standstill_PyExc_ValueError = Value;
    /// A bug in an extension.
    standstill_PyExc_SystemError = System;
    /// Out of memory.
    standstill_PyExc_MemoryError = Memory;
    /// Any other error.
    standstill_PyExc_RuntimeError = Runtime;
    /// There is no such attribute.
    standstill_PyExc_AttributeError = Attribute;
}

/// Whether an error of exception type `error` counts as one of `exception`.
pub(crate) fn exception_matches(error: *mut PyObject, exception: *mut PyObject) -> bool {
    if std::ptr::eq(error, exception) {
        return true;
    }
    let known = |object: *mut PyObject| {
        Exception::ALL.iter().any(|which| std::ptr::eq(which.object().as_ptr(), object))
    };
    if known(error) || error.is_null() || exception.is_null() {
        return false;
    }
    // SAFETY: rule *argument*: the program has passed this pointer as its own exception type.
    unsafe { types::is_subtype(error.cast(), exception.cast()) }
}

/// The size of a tuple's head. The items follow it.
const TUPLE_SIZE: usize = 32;

/// The size of a string's head. The items are the bytes of the text, with a 0 at the end.
const STRING_SIZE: usize = 32;

#[repr(C)]
struct Number {
    base: PyObject,
    value: c_longlong,
}

/// The function of a callback.
pub(crate) type CallbackFn = unsafe extern "C" fn(*mut PyObject, *mut PyObject);

#[repr(C)]
struct Callback {
    base: PyObject,
    function: Option<CallbackFn>,
    own: *mut PyObject,
}

/// Gives the built-in types their faces, once.
///
/// # Errors
///
/// There is no memory for some of the types. The next call makes the missing ones.
pub(crate) fn start() -> Result<(), Fault> {
    static STARTED: OnceLock<()> = OnceLock::new();
    static STARTING: Mutex<()> = Mutex::new(());
    if STARTED.get().is_some() {
        return Ok(());
    }
    let _one = STARTING.lock().unwrap_or_else(PoisonError::into_inner);
    if STARTED.get().is_none() {
        make_all()?;
        STARTED.get_or_init(|| ());
    }
    Ok(())
}

/// Makes the built-in types that do not exist yet.
fn make_all() -> Result<(), Fault> {
    // Each face shows functions of its record and compares them with the metatype's. From here on
    // the metatype exists.
    METATYPE.try_get()?;
    for (builtin, face) in [
        (&BASE, standstill_PyBaseObject_Type.get()),
        (&METATYPE, standstill_PyType_Type.get()),
        (&MODULE, standstill_PyModule_Type.get()),
        (&WEAKREF, standstill_PyWeakref_Type.get()),
    ] {
        // SAFETY: rule *statics*: the library is starting. The functions of this crate accept faces
        // of this kind.
        unsafe {
            let record = builtin.try_get()?;
            if (*face).ss_own.get().is_null() {
                builtin.set_face(face.cast());
                types::expect_ready()?;
                types::wear(face, record);
            }
        }
    }
    let mut tuple =
        spec("tuple", TUPLE_SIZE, Flags::HAVE_GC.and(Flags::BASE_TYPE).and(Flags(1 << 26)))?;
    tuple.item_size = size_of::<*mut PyObject>() as isize;
    tuple.flags = tuple.flags.and(Flags::ITEMS_ARE_REFERENCES);
    tuple.slots =
        Slots { traverse: Some(traverse_tuple), dealloc: Some(dealloc_tuple), ..Slots::default() };
    make(&tuple, &standstill_PyTuple_Type)?;
    let mut string = spec("str", STRING_SIZE, Flags::BASE_TYPE.and(Flags(1 << 28)))?;
    string.item_size = 1;
    make(&string, &standstill_PyUnicode_Type)?;
    let number = spec("int", size_of::<Number>(), Flags::BASE_TYPE.and(Flags(1 << 24)))?;
    make(&number, &standstill_PyLong_Type)?;
    let none = make(&spec("NoneType", 0, Flags::default())?, &NONE_TYPE)?;
    let mut callback = spec("standstill.Callback", size_of::<Callback>(), Flags::HAVE_GC)?;
    callback.slots = Slots {
        traverse: Some(traverse_callback),
        clear: Some(clear_callback),
        ..Slots::default()
    };
    make(&callback, &CALLBACK_TYPE)?;
    for which in Exception::ALL {
        make_at(&spec(which.name(), 0, Flags::BASE_TYPE.and(Flags(1 << 30)))?, which.face())?;
    }
    // SAFETY: rule *statics*: a static object of this crate.
    unsafe {
        dynamic::set_static_type(NonNull::new_unchecked(standstill__Py_NoneStruct.get()), none)
    };
    Ok(())
}

fn spec(name: &str, size: usize, flags: Flags) -> Result<TypeSpec, Fault> {
    let mut spec = TypeSpec::new(fallible::owned(name)?);
    spec.basic_size = size as isize;
    spec.flags = flags;
    spec.defaults = Some(&types::DEFAULTS);
    Ok(spec)
}

fn make(
    spec: &TypeSpec,
    face: &'static Global<PyTypeObject>,
) -> Result<&'static TypeRecord, Fault> {
    make_at(spec, face.get())
}

fn make_at(spec: &TypeSpec, face: *mut PyTypeObject) -> Result<&'static TypeRecord, Fault> {
    // SAFETY: rule *statics*; the handlers fit objects of these layouts.
    unsafe {
        if let Some(made) = (*face).ss_own.get().as_ref() {
            return Ok(made);
        }
        types::expect_ready()?;
        let record = dynamic::ready_static(spec, face.cast())?;
        types::wear(face, record);
        Ok(record)
    }
}

/// Whether an object is an instance of a built-in type or of a derived type.
///
/// # Safety
///
/// The object is alive or static.
pub(crate) unsafe fn is_a(object: NonNull<PyObject>, face: &Global<PyTypeObject>) -> bool {
    // SAFETY: as the caller says. A static object without a type is a type that is not ready.
    unsafe {
        match (dynamic::try_type_of(object), (*face.get()).ss_own.get().as_ref()) {
            (Some(own), Some(wanted)) => own.is_subtype_of(wanted),
            _ => false,
        }
    }
}

fn own(face: &Global<PyTypeObject>) -> Result<&'static TypeRecord, Fault> {
    start()?;
    // SAFETY: rule *statics*: after the start there is a record, which is static.
    Ok(unsafe { &*(*face.get()).ss_own.get() })
}

fn expected(function: &'static str, what: &str, object: NonNull<PyObject>) -> Fault {
    // SAFETY: rule *counted*: the callers' object is alive.
    let type_name = unsafe { dynamic::try_type_of(object) }.map_or("type", TypeRecord::kept_name);
    Fault::new(Code::WrongType, function)
        .of_type(type_name)
        .at(object.as_ptr() as usize)
        .because(words!("{what} is needed, not an object of type '{type_name}'"))
}

/// The items of a tuple. They are cells, since several threads may read them at the same time.
///
/// # Safety
///
/// The object is a living tuple.
pub(crate) unsafe fn items<'a>(object: NonNull<PyObject>) -> &'a [Cell<*mut PyObject>] {
    // SAFETY: as the caller says, a tuple; rule *locking* of the library says when items may
    // change.
    unsafe {
        let length = dynamic::Obj::new(object).size().unwrap_or(0).unsigned_abs();
        // A derived type may have fields before the items.
        let place = dynamic::Obj::new(object).record().basic_size();
        std::slice::from_raw_parts(object.as_ptr().byte_add(place).cast(), length)
    }
}

unsafe extern "C" fn traverse_tuple(
    object: *mut PyObject,
    visit: VisitProc,
    arg: *mut c_void,
) -> c_int {
    let Some(object) = NonNull::new(object) else { return 0 };
    // SAFETY: rule *handlers*: called for a living tuple.
    unsafe {
        for item in items(object) {
            if !item.get().is_null() {
                let result = visit(item.get(), arg);
                if result != 0 {
                    return result;
                }
            }
        }
    }
    0
}

unsafe extern "C" fn dealloc_tuple(object: *mut PyObject) {
    let Some(object) = NonNull::new(object) else { return };
    // SAFETY: rule *handlers*: called once, for a dying tuple.
    unsafe {
        Mutator::with_current(|m| {
            dynamic::Obj::new(object).untrack(m).unwrap_or_else(errors::misuse);
            dynamic::Dying::new(m, dynamic::Obj::new(object)).clear_weak_references();
            for item in items(object) {
                if let Some(item) = NonNull::new(item.replace(std::ptr::null_mut())) {
                    drop(dynamic::from_raw(item));
                }
            }
            // For an instance of a heap type that derives from this type, the calling handler
            // releases the type.
            if let Some(free) = dynamic::Obj::new(object).record().slots().free {
                free(object.as_ptr().cast());
            }
        });
    }
}

unsafe extern "C" fn traverse_callback(
    object: *mut PyObject,
    visit: VisitProc,
    arg: *mut c_void,
) -> c_int {
    // SAFETY: rule *handlers*: called for a living callback, with a visitor and its argument.
    unsafe {
        let own = (*object.cast::<Callback>()).own;
        if own.is_null() { 0 } else { visit(own, arg) }
    }
}

unsafe extern "C" fn clear_callback(object: *mut PyObject) -> c_int {
    // SAFETY: rule *handlers*: called for a living callback.
    unsafe {
        let callback = object.cast::<Callback>();
        (*callback).function = None;
        if let Some(own) =
            NonNull::new(std::mem::replace(&mut (*callback).own, std::ptr::null_mut()))
        {
            drop(dynamic::from_raw(own));
        }
    }
    0
}

/// Whether an object is a callback.
///
/// # Safety
///
/// The object is alive.
pub(crate) unsafe fn is_callback(object: NonNull<PyObject>) -> bool {
    // SAFETY: as the caller says.
    unsafe { is_a(object, &CALLBACK_TYPE) }
}

/// Calls a callback for a weak reference.
///
/// # Safety
///
/// `callback` is a living callback.
pub(crate) unsafe extern "C" fn invoke_callback(callback: *mut PyObject, weak_ref: *mut PyObject) {
    // SAFETY: as the caller says.
    unsafe {
        let Callback { function, own, .. } = &*callback.cast::<Callback>();
        if let Some(function) = *function {
            function(*own, weak_ref);
        }
    }
}

/// A new tuple of `length` items, all null.
///
/// # Errors
///
/// There is no memory, or `length` is negative.
pub(crate) fn new_tuple(m: &Mutator, length: isize) -> Result<NonNull<PyObject>, Fault> {
    dynamic::allocate_tracked(m, own(&standstill_PyTuple_Type)?, length)
}

/// A new tuple of these objects. It takes over their references.
///
/// # Errors
///
/// There is no memory. The references are dropped then.
pub(crate) fn tuple_of(
    m: &Mutator,
    objects: Vec<standstill::AnyGc>,
) -> Result<NonNull<PyObject>, Fault> {
    let tuple = new_tuple(m, objects.len() as isize)?;
    // SAFETY: rule *new*: the tuple is new and as long as the list.
    for (place, object) in unsafe { items(tuple) }.iter().zip(objects) {
        place.set(dynamic::into_raw(object).as_ptr());
    }
    Ok(tuple)
}

/// The text of a string, or `None` if the object is no string.
///
/// # Safety
///
/// The object is alive. The text is borrowed from it.
pub(crate) unsafe fn string<'a>(object: NonNull<PyObject>) -> Option<&'a CStr> {
    // SAFETY: as the caller says. The items are bytes and follow the fields of the object's type.
    unsafe {
        if !is_a(object, &standstill_PyUnicode_Type) {
            return None;
        }
        let place = dynamic::Obj::new(object).record().basic_size();
        let length = dynamic::Obj::new(object).size().unwrap_or(0).unsigned_abs();
        let bytes = std::slice::from_raw_parts(object.as_ptr().byte_add(place).cast(), length);
        // A string that has not been filled yet has no text.
        Some(CStr::from_bytes_until_nul(bytes).unwrap_or(c""))
    }
}

macro_rules! checks {
    ($($name:ident, $text:literal, $face:ident, $exact:literal;)*) => {
        export! {$(
            /// Whether an object is of this type.
            fn $name(object: *mut PyObject) -> c_int {
                let Some(object) = NonNull::new(object) else {
                    errors::misuse(Fault::new(Code::NullArgument, $text));
                    return 0;
                };
                // SAFETY: rule *argument*.
                unsafe {
                    if !call::is_object(object, $text) {
                        return 0;
                    }
                    if $exact {
                        let record = dynamic::try_type_of(object);
                        let own = (*$face.get()).ss_own.get();
                        c_int::from(record.is_some_and(|record| std::ptr::eq(record, own)))
                    } else {
                        c_int::from(is_a(object, &$face))
                    }
                }
            }
        )*}
    };
}

checks! {
    standstill_PyType_Check, "PyType_Check", standstill_PyType_Type, false;
    standstill_PyType_CheckExact, "PyType_CheckExact", standstill_PyType_Type, true;
    standstill_PyModule_Check, "PyModule_Check", standstill_PyModule_Type, false;
    standstill_PyModule_CheckExact, "PyModule_CheckExact", standstill_PyModule_Type, true;
    standstill_PyTuple_Check, "PyTuple_Check", standstill_PyTuple_Type, false;
    standstill_PyTuple_CheckExact, "PyTuple_CheckExact", standstill_PyTuple_Type, true;
    standstill_PyUnicode_Check, "PyUnicode_Check", standstill_PyUnicode_Type, false;
    standstill_PyUnicode_CheckExact, "PyUnicode_CheckExact", standstill_PyUnicode_Type, true;
    standstill_PyLong_Check, "PyLong_Check", standstill_PyLong_Type, false;
    standstill_PyLong_CheckExact, "PyLong_CheckExact", standstill_PyLong_Type, true;
    standstill_PyWeakref_Check, "PyWeakref_Check", standstill_PyWeakref_Type, false;
}

unsafe fn tuple(
    m: &Mutator,
    object: *mut PyObject,
    function: &'static str,
) -> Result<NonNull<PyObject>, Fault> {
    // SAFETY: rule *argument*.
    unsafe {
        let object = call::object(m, object)?;
        if is_a(object, &standstill_PyTuple_Type) {
            Ok(object)
        } else {
            Err(expected(function, "a tuple", object))
        }
    }
}

fn no_item(function: &'static str, index: isize) -> Fault {
    Fault::new(Code::BadSize, function).because(words!("there is no item {index}"))
}

unsafe fn long(
    m: &Mutator,
    object: *mut PyObject,
    function: &'static str,
) -> Result<c_longlong, Fault> {
    // SAFETY: rule *argument*.
    unsafe {
        let object = call::object(m, object)?;
        if is_a(object, &standstill_PyLong_Type) {
            Ok((*object.cast::<Number>().as_ptr()).value)
        } else {
            Err(expected(function, "a number", object))
        }
    }
}

fn new_long(m: &Mutator, value: c_longlong) -> Result<*mut PyObject, Fault> {
    // SAFETY: rules *statics* and *new*: a ready, static type of this layout.
    unsafe {
        let object = dynamic::allocate(m, own(&standstill_PyLong_Type)?, 0, 0)?;
        (*object.cast::<Number>().as_ptr()).value = value;
        Ok(object.as_ptr())
    }
}

export! {
    /// Makes a tuple of null items.
    fn standstill_PyTuple_New(size: isize) -> *mut PyObject {
        call::fallible("PyTuple_New", std::ptr::null_mut(), |m| {
            new_tuple(m, size).map(NonNull::as_ptr)
        })
    }

    /// The number of items of a tuple.
    fn standstill_PyTuple_Size(object: *mut PyObject) -> isize {
        const FUNCTION: &str = "PyTuple_Size";
        // SAFETY: rule *argument*.
        call::fallible(FUNCTION, -1, |m| unsafe {
            Ok(items(tuple(m, object, FUNCTION)?).len() as isize)
        })
    }

    /// An item of a tuple, borrowed.
    fn standstill_PyTuple_GetItem(object: *mut PyObject, index: isize) -> *mut PyObject {
        const FUNCTION: &str = "PyTuple_GetItem";
        call::fallible(FUNCTION, std::ptr::null_mut(), |m| {
            // SAFETY: rule *argument*.
            let items = unsafe { items(tuple(m, object, FUNCTION)?) };
            usize::try_from(index)
                .ok()
                .and_then(|at| items.get(at))
                .map(Cell::get)
                .ok_or_else(|| no_item(FUNCTION, index))
        })
    }

    /// Sets an item of a tuple. Takes over the reference to `item` in any case.
    fn standstill_PyTuple_SetItem(
        object: *mut PyObject,
        index: isize,
        item: *mut PyObject,
    ) -> c_int {
        const FUNCTION: &str = "PyTuple_SetItem";
        let came = Cell::new(false);
        let result = call::fallible(FUNCTION, -1, |m| {
            came.set(true);
            // SAFETY: rule *argument*.
            unsafe {
                let item = call::optional(m, item)?;
                let place = tuple(m, object, FUNCTION).and_then(|tuple| {
                    let place = usize::try_from(index).ok().and_then(|at| items(tuple).get(at));
                    place.ok_or_else(|| no_item(FUNCTION, index))
                });
                let (old, result) = match place {
                    Ok(place) => {
                        let new = item.map_or(std::ptr::null_mut(), NonNull::as_ptr);
                        (NonNull::new(place.replace(new)), Ok(0))
                    }
                    Err(fault) => (item, Err(fault)),
                };
                drop(old.map(|old| dynamic::from_raw(old)));
                result
            }
        });
        if !came.get()
            && let Some(item) = NonNull::new(item)
        {
            // The call was refused: the thread is not attached, or runs a traverse handler. The
            // reference is dropped later, by an attached thread.
            // SAFETY: rule *argument*: the reference that was passed.
            unsafe {
                if call::is_object(item, FUNCTION) {
                    drop(dynamic::from_raw(item));
                }
            }
        }
        result
    }

    /// Makes a string.
    fn standstill_PyUnicode_FromString(text: *const c_char) -> *mut PyObject {
        const FUNCTION: &str = "PyUnicode_FromString";
        call::fallible(FUNCTION, std::ptr::null_mut(), |m| {
            call::some(text.cast_mut())?;
            // SAFETY: rule *argument*.
            let text = unsafe { CStr::from_ptr(text) };
            call::utf_8(text)?;
            let bytes = text.to_bytes_with_nul();
            // SAFETY: rules *statics* and *new*: a ready, static type with room for the bytes.
            unsafe {
                let object = dynamic::allocate(
                    m,
                    own(&standstill_PyUnicode_Type)?,
                    bytes.len() as isize,
                    0,
                )?;
                let place = object.as_ptr().byte_add(STRING_SIZE).cast::<u8>();
                place.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
                Ok(object.as_ptr())
            }
        })
    }

    /// The text of a string, borrowed.
    fn standstill_PyUnicode_AsUTF8(object: *mut PyObject) -> *const c_char {
        const FUNCTION: &str = "PyUnicode_AsUTF8";
        call::fallible(FUNCTION, std::ptr::null(), |m| {
            // SAFETY: rule *argument*.
            unsafe {
                let object = call::object(m, object)?;
                string(object)
                    .map(CStr::as_ptr)
                    .ok_or_else(|| expected(FUNCTION, "a string", object))
            }
        })
    }

    /// Makes a number.
    fn standstill_PyLong_FromLong(value: c_long) -> *mut PyObject {
        call::fallible("PyLong_FromLong", std::ptr::null_mut(), |m| new_long(m, value))
    }

    /// Makes a number.
    fn standstill_PyLong_FromLongLong(value: c_longlong) -> *mut PyObject {
        call::fallible("PyLong_FromLongLong", std::ptr::null_mut(), |m| new_long(m, value))
    }

    /// The value of a number.
    fn standstill_PyLong_AsLong(object: *mut PyObject) -> c_long {
        // SAFETY: rule *argument*.
        call::fallible("PyLong_AsLong", -1, |m| unsafe { long(m, object, "PyLong_AsLong") })
    }

    /// The value of a number.
    fn standstill_PyLong_AsLongLong(object: *mut PyObject) -> c_longlong {
        // SAFETY: rule *argument*.
        call::fallible("PyLong_AsLongLong", -1, |m| unsafe { long(m, object, "PyLong_AsLongLong") })
    }

    /// Makes a callback.
    fn standstill_Callback_New(
        function: Option<unsafe extern "C" fn(*mut PyObject, *mut PyObject)>,
        own_object: *mut PyObject,
    ) -> *mut PyObject {
        const FUNCTION: &str = "standstill_Callback_New";
        call::fallible(FUNCTION, std::ptr::null_mut(), |m| {
            if function.is_none() {
                return Err(Fault::new(Code::NullArgument, FUNCTION));
            }
            // SAFETY: rule *argument*; a ready, static type of this layout.
            unsafe {
                let held = call::optional(m, own_object)?;
                let object = dynamic::allocate(m, own(&CALLBACK_TYPE)?, 0, 0)?;
                let callback = object.cast::<Callback>().as_ptr();
                (*callback).function = function;
                if let Some(held) = held {
                    (*callback).own = dynamic::into_raw(dynamic::Obj::new(held).share()).as_ptr();
                }
                dynamic::Obj::new(object).track(m)?;
                Ok(object.as_ptr())
            }
        })
    }
}
