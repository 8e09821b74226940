//! The built-in types, with their faces in exported statics: tuples, strings, numbers, None,
//! callbacks, and the exception types, which only serve as names.

use std::cell::Cell;
use std::ffi::{CStr, c_char, c_int, c_long, c_longlong, c_void};
use std::ptr::NonNull;
use std::sync::{Mutex, OnceLock, PoisonError};

use standstill::dynamic::{
    self, BASE, Dying, Flags, Head, METATYPE, MODULE, Obj, Slots, TypeRecord, TypeSpec, VisitProc,
    WEAKREF,
};
use standstill::fallible;
use standstill::words;
use standstill::{AnyGc, Code, Fault, Mutator, safepoint};

use crate::call::{self, Given, export};
use crate::errors;
use crate::layout::{Global, PyObject, PyTypeObject};
use crate::types::{self, Face};

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

    /// The static object of the exception type, as an object.
    pub(crate) fn head(self) -> Head<'static> {
        // SAFETY: rule *statics*: a static object of this crate.
        unsafe { Head::new(self.object()) }
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
pub(crate) fn exception_matches(error: NonNull<PyObject>, exception: Head<'_>) -> bool {
    if error == exception.address() {
        return true;
    }
    if Exception::ALL.iter().any(|which| which.object() == error) {
        return false;
    }
    // SAFETY: rule *argument*: the program has passed both as its own exception types, and keeps
    // the type of an error that is set.
    let face = |object: NonNull<PyObject>| unsafe { Face::new(object.cast()) };
    face(error).is_subtype(face(exception.address()))
}

/// The size of a tuple's head. The items follow it.
const TUPLE_SIZE: usize = 32;

/// The size of a string's head. The items are the bytes of the text, with a 0 at the end.
const STRING_SIZE: usize = 32;

#[repr(C)]
struct Number {
    base: PyObject,
    value: Cell<c_longlong>,
}

/// The function of a callback.
pub(crate) type CallbackFn = unsafe extern "C" fn(*mut PyObject, *mut PyObject);

#[repr(C)]
struct Callback {
    base: PyObject,
    function: Cell<Option<CallbackFn>>,
    own: Cell<*mut PyObject>,
}

/// The layout of the instances of a built-in type, whose fields are cells, because program and
/// collector change them.
///
/// # Safety
///
/// Instances of the type, and of derived types, start with these fields.
unsafe trait Layout: Sized {
    fn face() -> &'static Global<PyTypeObject>;
}

// SAFETY: rule *statics*: `make_all` gives the type this size.
unsafe impl Layout for Number {
    fn face() -> &'static Global<PyTypeObject> {
        &standstill_PyLong_Type
    }
}

// SAFETY: rule *statics*: `make_all` gives the type this size.
unsafe impl Layout for Callback {
    fn face() -> &'static Global<PyTypeObject> {
        &CALLBACK_TYPE
    }
}

/// The fields of an object; `None`: it is no instance of the type.
fn fields<L: Layout>(object: Head<'_>) -> Option<&L> {
    let object = as_a(object, L::face())?;
    // SAFETY: rule *record*: an instance of this type.
    Some(unsafe { object.address().cast().as_ref() })
}

impl Callback {
    /// Takes the object of the callback out.
    fn take(&self) -> Option<AnyGc> {
        let own = NonNull::new(self.own.replace(std::ptr::null_mut()));
        // SAFETY: rule *counted*: the callback has owned the reference.
        own.map(|own| unsafe { dynamic::from_raw(own) })
    }
}

/// A tuple.
#[derive(Clone, Copy)]
pub(crate) struct Tuple<'a>(Obj<'a>);

impl<'a> Tuple<'a> {
    /// The object as a tuple; `None`: it is none.
    pub(crate) fn of(object: Head<'a>) -> Option<Self> {
        as_a(object, &standstill_PyTuple_Type).map(Self)
    }

    /// A new tuple of `length` items, all null.
    ///
    /// # Errors
    ///
    /// There is no memory, or `length` is negative.
    fn new(m: &'a Mutator, length: isize) -> Result<Self, Fault> {
        let made = dynamic::allocate_tracked(m, own(&standstill_PyTuple_Type)?, length)?;
        // SAFETY: rule *new*: a tuple.
        Ok(Self(unsafe { Obj::new(made) }))
    }

    fn as_ptr(self) -> *mut PyObject {
        self.0.address().as_ptr()
    }

    /// The items, which are cells, because several threads may read them at the same time.
    fn items(self) -> &'a [Cell<*mut PyObject>] {
        let length = self.0.size().unwrap_or(0).unsigned_abs();
        // A derived type may have fields before the items.
        let place = self.0.record().basic_size();
        // SAFETY: rule *record*: a tuple; rule *locking* of the library says when items may change.
        unsafe { std::slice::from_raw_parts(self.as_ptr().byte_add(place).cast(), length) }
    }

    /// The items as objects.
    pub(crate) fn objects(self) -> impl Iterator<Item = Option<Head<'a>>> {
        // SAFETY: rule *counted*: the tuple owns a reference to each item.
        let object = |item: NonNull<PyObject>| unsafe { Head::new(item) };
        self.items().iter().map(move |item| NonNull::new(item.get()).map(object))
    }

    /// Replaces an item, so that the tuple takes over a reference, and gives up the one to the old
    /// item.
    fn put(place: &Cell<*mut PyObject>, item: Option<AnyGc>) -> Option<AnyGc> {
        let new = item.map_or(std::ptr::null_mut(), |item| dynamic::into_raw(item).as_ptr());
        let old = NonNull::new(place.replace(new));
        // SAFETY: rule *counted*: the tuple has owned the reference.
        old.map(|old| unsafe { dynamic::from_raw(old) })
    }
}

/// The lock under which the built-in types get their faces, and which a fork takes.
pub(crate) static STARTING: Mutex<()> = Mutex::new(());

/// Gives the built-in types their faces, once.
///
/// # Errors
///
/// There is no memory for some of the types, which the next call then makes.
pub(crate) fn start() -> Result<(), Fault> {
    static STARTED: OnceLock<()> = OnceLock::new();
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
    // First the metatype, because each face shows functions of its record and compares them with
    // the metatype's.
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

/// The record of a built-in type; `None`: it was not made yet.
fn record(face: &'static Global<PyTypeObject>) -> Option<&'static TypeRecord> {
    // SAFETY: rule *statics*: a face of this crate.
    unsafe { (*face.get()).ss_own.record() }
}

/// The object as an instance of a built-in type or of a derived type; `None`: it is none.
pub(crate) fn as_a<'a>(object: Head<'a>, face: &'static Global<PyTypeObject>) -> Option<Obj<'a>> {
    // A static object without a type is a type that is not ready.
    let (object, wanted) = (object.typed()?, record(face)?);
    object.record().is_subtype_of(wanted).then_some(object)
}

fn own(face: &'static Global<PyTypeObject>) -> Result<&'static TypeRecord, Fault> {
    start()?;
    record(face).ok_or_else(|| Fault::new(Code::NotReady, "argument"))
}

fn expected(function: &'static str, what: &str, object: Head<'_>) -> Fault {
    let type_name = object.record().map_or("type", TypeRecord::kept_name);
    Fault::new(Code::WrongType, function)
        .of_type(type_name)
        .at(object.address().as_ptr() as usize)
        .because(words!("{what} is needed, not an object of type '{type_name}'"))
}

unsafe extern "C" fn traverse_tuple(
    object: *mut PyObject,
    visit: VisitProc,
    arg: *mut c_void,
) -> c_int {
    // SAFETY: rule *handlers*: called for a living tuple, with a visitor and its argument.
    let (object, visitor) = unsafe { (Obj::from_ptr(object), dynamic::Visitor::new(visit, arg)) };
    let Some(tuple) = object.map(Tuple) else { return 0 };
    let mut results = tuple.objects().flatten().map(|item| visitor.visit(item));
    results.find(|&result| result != 0).unwrap_or(0)
}

unsafe extern "C" fn dealloc_tuple(object: *mut PyObject) {
    Mutator::with_current(|m| {
        // SAFETY: rule *handlers*: called once, for a dying tuple.
        let (tuple, dying) = unsafe {
            let Some(object) = Obj::from_ptr(object) else { return };
            (Tuple(object), Dying::new(m, object))
        };
        tuple.0.untrack(m).unwrap_or_else(errors::misuse);
        dying.clear_weak_references();
        for item in tuple.items() {
            drop(Tuple::put(item, None));
        }
        // The type is not released here, because the calling handler does so for an instance of a
        // heap type that derives from this type.
        dying.run_free();
    });
}

unsafe extern "C" fn traverse_callback(
    object: *mut PyObject,
    visit: VisitProc,
    arg: *mut c_void,
) -> c_int {
    // SAFETY: rule *handlers*: called for a living callback, with a visitor and its argument.
    unsafe {
        let own = (*object.cast::<Callback>()).own.get();
        if own.is_null() { 0 } else { visit(own, arg) }
    }
}

unsafe extern "C" fn clear_callback(object: *mut PyObject) -> c_int {
    // SAFETY: rule *handlers*: called for a living callback.
    let callback = unsafe { &*object.cast::<Callback>() };
    callback.function.set(None);
    drop(callback.take());
    0
}

/// Whether an object is a callback.
pub(crate) fn is_callback(object: Head<'_>) -> bool {
    as_a(object, &CALLBACK_TYPE).is_some()
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
        if let Some(function) = function.get() {
            function(own.get(), weak_ref);
        }
    }
}

/// A new tuple of these objects, which takes over their references.
///
/// # Errors
///
/// There is no memory, in which case the references are dropped.
pub(crate) fn tuple_of(m: &Mutator, objects: Vec<AnyGc>) -> Result<*mut PyObject, Fault> {
    let tuple = Tuple::new(m, objects.len() as isize)?;
    for (place, object) in tuple.items().iter().zip(objects) {
        drop(Tuple::put(place, Some(object)));
    }
    Ok(tuple.as_ptr())
}

/// The text of a string, or `None` if the object is no string.
pub(crate) fn string(object: Head<'_>) -> Option<&CStr> {
    let object = as_a(object, &standstill_PyUnicode_Type)?;
    let place = object.record().basic_size();
    let length = object.size().unwrap_or(0).unsigned_abs();
    // SAFETY: rule *record*: the items are bytes and follow the fields of the object's type.
    let bytes = unsafe {
        std::slice::from_raw_parts(object.address().as_ptr().byte_add(place).cast(), length)
    };
    // A string that has not been filled yet has no text.
    Some(CStr::from_bytes_until_nul(bytes).unwrap_or(c""))
}

macro_rules! checks {
    ($($name:ident, $text:literal, $face:ident, $exact:literal;)*) => {
        export! {$(
            /// Whether an object is of this type.
            #[given(object)]
            fn $name(object: *mut PyObject) -> c_int {
                let Some(object) = object.needed_here($text) else { return 0 };
                c_int::from(if $exact {
                    let records = object.record().zip(record(&$face));
                    records.is_some_and(|(own, wanted)| std::ptr::eq(own, wanted))
                } else {
                    as_a(object, &$face).is_some()
                })
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

fn tuple<'a>(
    m: &Mutator,
    object: Given<'a, PyObject>,
    function: &'static str,
) -> Result<Tuple<'a>, Fault> {
    let object = object.object(m)?;
    Tuple::of(object).ok_or_else(|| expected(function, "a tuple", object))
}

fn no_item(function: &'static str, index: isize) -> Fault {
    Fault::new(Code::BadSize, function).because(words!("there is no item {index}"))
}

fn long(
    m: &Mutator,
    object: Given<'_, PyObject>,
    function: &'static str,
) -> Result<c_longlong, Fault> {
    let object = object.object(m)?;
    let number = fields::<Number>(object).ok_or_else(|| expected(function, "a number", object))?;
    Ok(number.value.get())
}

/// A new object of a built-in type, with the fields of its layout.
fn new<'a>(
    m: &'a Mutator,
    face: &'static Global<PyTypeObject>,
    items: isize,
) -> Result<Obj<'a>, Fault> {
    let made = dynamic::allocate(m, own(face)?, items, 0)?;
    // SAFETY: rule *new*: just made.
    Ok(unsafe { Obj::new(made) })
}

fn new_long(m: &Mutator, value: c_longlong) -> Result<*mut PyObject, Fault> {
    let object = new(m, &standstill_PyLong_Type, 0)?;
    if let Some(number) = fields::<Number>(object.into()) {
        number.value.set(value);
    }
    Ok(object.address().as_ptr())
}

export! {
    /// Makes a tuple of null items.
    fn standstill_PyTuple_New(size: isize) -> *mut PyObject {
        call::fallible("PyTuple_New", std::ptr::null_mut(), |m| {
            Tuple::new(m, size).map(Tuple::as_ptr)
        })
    }

    /// The number of items of a tuple.
    #[given(object)]
    fn standstill_PyTuple_Size(object: *mut PyObject) -> isize {
        const FUNCTION: &str = "PyTuple_Size";
        call::fallible(FUNCTION, -1, |m| Ok(tuple(m, object, FUNCTION)?.items().len() as isize))
    }

    /// An item of a tuple, borrowed.
    #[given(object)]
    fn standstill_PyTuple_GetItem(object: *mut PyObject, index: isize) -> *mut PyObject {
        const FUNCTION: &str = "PyTuple_GetItem";
        call::fallible(FUNCTION, std::ptr::null_mut(), |m| {
            let items = tuple(m, object, FUNCTION)?.items();
            usize::try_from(index)
                .ok()
                .and_then(|at| items.get(at))
                .map(Cell::get)
                .ok_or_else(|| no_item(FUNCTION, index))
        })
    }

    /// Sets an item of a tuple. It takes over the reference to `item` even when it fails, except in
    /// a traverse handler, where no count may change.
    #[given(object, item)]
    fn standstill_PyTuple_SetItem(
        object: *mut PyObject,
        index: isize,
        item: *mut PyObject,
    ) -> c_int {
        const FUNCTION: &str = "PyTuple_SetItem";
        let came = Cell::new(false);
        let result = call::fallible(FUNCTION, -1, |m| {
            came.set(true);
            let item = item.optional(m)?.map(taken);
            let place = tuple(m, object, FUNCTION).and_then(|tuple| {
                let place = usize::try_from(index).ok().and_then(|at| tuple.items().get(at));
                place.ok_or_else(|| no_item(FUNCTION, index))
            });
            place.map(|place| {
                drop(Tuple::put(place, item));
                0
            })
        });
        if !came.get() && !safepoint::is_traversing() {
            // The thread is not attached. An attached thread drops the reference later.
            drop(item.here(FUNCTION).map(taken));
        }
        result
    }

    /// Makes a string.
    #[given(text)]
    fn standstill_PyUnicode_FromString(text: *const c_char) -> *mut PyObject {
        const FUNCTION: &str = "PyUnicode_FromString";
        call::fallible(FUNCTION, std::ptr::null_mut(), |m| {
            text.some()?;
            let text = text.text().unwrap_or(c"");
            call::utf_8(text)?;
            let bytes = text.to_bytes_with_nul();
            let object = new(m, &standstill_PyUnicode_Type, bytes.len() as isize)?;
            let place = object.address().as_ptr();
            // SAFETY: rule *new*: the new string has room for the bytes.
            unsafe {
                let place = place.byte_add(STRING_SIZE).cast::<u8>();
                place.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
            }
            Ok(place)
        })
    }

    /// The text of a string, borrowed.
    #[given(object)]
    fn standstill_PyUnicode_AsUTF8(object: *mut PyObject) -> *const c_char {
        const FUNCTION: &str = "PyUnicode_AsUTF8";
        call::fallible(FUNCTION, std::ptr::null(), |m| {
            let object = object.object(m)?;
            string(object).map(CStr::as_ptr).ok_or_else(|| expected(FUNCTION, "a string", object))
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
    #[given(object)]
    fn standstill_PyLong_AsLong(object: *mut PyObject) -> c_long {
        call::fallible("PyLong_AsLong", -1, |m| long(m, object, "PyLong_AsLong"))
    }

    /// The value of a number.
    #[given(object)]
    fn standstill_PyLong_AsLongLong(object: *mut PyObject) -> c_longlong {
        call::fallible("PyLong_AsLongLong", -1, |m| long(m, object, "PyLong_AsLongLong"))
    }

    /// Makes a callback.
    #[given(own_object)]
    fn standstill_Callback_New(
        function: Option<unsafe extern "C" fn(*mut PyObject, *mut PyObject)>,
        own_object: *mut PyObject,
    ) -> *mut PyObject {
        const FUNCTION: &str = "standstill_Callback_New";
        call::fallible(FUNCTION, std::ptr::null_mut(), |m| {
            if function.is_none() {
                return Err(Fault::new(Code::NullArgument, FUNCTION));
            }
            let held = own_object.optional(m)?;
            let object = new(m, &CALLBACK_TYPE, 0)?;
            if let Some(callback) = fields::<Callback>(object.into()) {
                callback.function.set(function);
                if let Some(held) = held {
                    callback.own.set(dynamic::into_raw(held.share()).as_ptr());
                }
            }
            object.track(m)?;
            Ok(object.address().as_ptr())
        })
    }
}

/// The reference to an argument that C gives up.
fn taken(item: Head<'_>) -> AnyGc {
    // SAFETY: rule *argument*: the reference that was passed.
    unsafe { dynamic::from_raw(item.address()) }
}
