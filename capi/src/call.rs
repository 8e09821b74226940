//! Calls from C, which check their pointers and catch panics.

use std::ffi::{CStr, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use standstill::dynamic::{self, Address, METATYPE, Obj, TypeRecord};
use standstill::{Code, Fault, Mutator, safepoint, stderr, words};

use crate::errors;
use crate::layout::{PyObject, PyTypeObject};
use crate::types;

/// Defines exported functions. The header describes them.
macro_rules! export {
    ($(
        $(#[$meta:meta])*
        fn $name:ident($($arg:ident: $type:ty),* $(,)?) $(-> $result:ty)? $body:block
    )*) => {$(
        $(#[$meta])*
        ///
        /// # Safety
        ///
        /// Rule *argument* of the crate: each pointer is valid as the header says.
        // SAFETY: rule *bounds*: no other name begins with `standstill_`; `ci/capi_symbols.sh`
        // looks.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($arg: $type),*) $(-> $result)? $body
    )*};
}
pub(crate) use export;

/// Reasons why the fast paths are off, as bits.
static SPECIAL: AtomicU8 = AtomicU8::new(0);
/// At least one heap is in checked mode.
const CHECKED: u8 = 1;

/// Records that a heap in checked mode exists.
pub(crate) fn set_checked() {
    SPECIAL.fetch_or(CHECKED, Ordering::Relaxed);
}

/// Whether the fast paths are off.
#[inline(always)]
pub(crate) fn is_special() -> bool {
    // Relaxed: the flag is set before any thread can use the checked heap.
    SPECIAL.load(Ordering::Relaxed) != 0
}

/// Reports that a function is not allowed in a traverse handler.
#[cold]
#[inline(never)]
pub(crate) fn refuse(function: &'static str) {
    errors::misuse(Fault::new(Code::InTraversal, function));
}

#[cold]
#[inline(never)]
pub(crate) fn panicked(function: &'static str, payload: Box<dyn std::any::Any + Send>) {
    let known = payload.downcast_ref::<&str>().copied();
    let text = known.or_else(|| payload.downcast_ref::<String>().map(String::as_str));
    let text = text.unwrap_or("a panic without a message");
    errors::unraisable("panic", "", std::ptr::null(), &format_args!("{function}: {text}"));
    errors::set_fault(&Fault::new(Code::Panic, function).because(words!("{text}")));
    // Not dropped: the payload's destructor is foreign code, which may panic again.
    std::mem::forget(payload);
}

/// Runs a function that needs no attached thread. It is refused in a traverse handler.
pub(crate) fn outside<R: Copy>(function: &'static str, failure: R, f: impl FnOnce() -> R) -> R {
    if safepoint::is_traversing() {
        refuse(function);
        return failure;
    }
    catching(function, failure, f)
}

/// Runs a function that is allowed everywhere, and catches its panics.
pub(crate) fn catching<R: Copy>(function: &'static str, failure: R, f: impl FnOnce() -> R) -> R {
    match catch_unwind(AssertUnwindSafe(f)) {
        Ok(result) => result,
        Err(payload) => {
            panicked(function, payload);
            failure
        }
    }
}

/// Runs a function that needs an attached thread. A fault is passed to `tell`.
fn attached<R: Copy>(
    function: &'static str,
    failure: R,
    tell: fn(Fault),
    f: impl FnOnce(&Mutator) -> Result<R, Fault>,
) -> R {
    outside(function, failure, || {
        let result = Mutator::with_current(f);
        let result = result.unwrap_or_else(|| Err(Fault::new(Code::NotAttached, function)));
        result.unwrap_or_else(|mut fault| {
            fault.function = function;
            tell(fault);
            failure
        })
    })
}

/// Runs a function that needs an attached thread. A fault goes into the error indicator.
pub(crate) fn fallible<R: Copy>(
    function: &'static str,
    failure: R,
    f: impl FnOnce(&Mutator) -> Result<R, Fault>,
) -> R {
    attached(function, failure, |fault| errors::set_fault(&fault), f)
}

/// Like [`fallible`], for functions without a failure value: a fault is reported as misuse.
pub(crate) fn reported<R: Copy>(
    function: &'static str,
    failure: R,
    f: impl FnOnce(&Mutator) -> Result<R, Fault>,
) -> R {
    attached(function, failure, errors::misuse, f)
}

fn null(function: &'static str) -> Fault {
    Fault::new(Code::NullArgument, function)
}

/// Fails for a null pointer.
pub(crate) fn some<T>(pointer: *mut T) -> Result<NonNull<T>, Fault> {
    NonNull::new(pointer).ok_or_else(|| null("argument"))
}

/// An object from C. Fails for null. In checked mode the address is looked up.
///
/// # Safety
///
/// Rule *argument*.
pub(crate) unsafe fn object(
    m: &Mutator,
    pointer: *mut PyObject,
) -> Result<NonNull<PyObject>, Fault> {
    let object = some(pointer)?;
    if dynamic::is_checked(m) {
        // SAFETY: rule *argument*.
        unsafe { check_object(m, object) }?;
    }
    Ok(object)
}

/// Like [`object`], for functions that need the object's type. A static type that is not ready has
/// no type: for it the fault has this code.
///
/// # Safety
///
/// Rule *argument*, for `'a`.
pub(crate) unsafe fn typed_object<'a>(
    m: &Mutator,
    pointer: *mut PyObject,
    code: Code,
) -> Result<Obj<'a>, Fault> {
    // SAFETY: rule *argument*.
    unsafe { with_type(object(m, pointer)?, code) }
}

/// Fails for a static type that is not ready.
///
/// # Safety
///
/// For `'a` the object is alive or static.
pub(crate) unsafe fn with_type<'a>(
    object: NonNull<PyObject>,
    code: Code,
) -> Result<Obj<'a>, Fault> {
    // SAFETY: as the caller says.
    unsafe {
        if dynamic::try_type_of(object).is_some() {
            return Ok(Obj::new(object));
        }
    }
    let fault = Fault::new(code, "argument").at(object.as_ptr() as usize);
    Err(fault.because("the object is a static type that is not ready"))
}

/// An object from C, or null.
///
/// # Safety
///
/// Rule *argument*.
pub(crate) unsafe fn optional(
    m: &Mutator,
    pointer: *mut PyObject,
) -> Result<Option<NonNull<PyObject>>, Fault> {
    // SAFETY: rule *argument*.
    if pointer.is_null() { Ok(None) } else { unsafe { object(m, pointer) }.map(Some) }
}

/// Looks up an address, in checked mode.
///
/// # Safety
///
/// Rule *argument*, except that the address may be no object.
pub(crate) unsafe fn check_object(m: &Mutator, object: NonNull<PyObject>) -> Result<(), Fault> {
    // SAFETY: as the caller says.
    unsafe { judge(dynamic::look_up(m, object), object) }
}

/// The fault for an address of this kind.
///
/// # Safety
///
/// `address` is the result of looking up `object`.
unsafe fn judge(address: Address, object: NonNull<PyObject>) -> Result<(), Fault> {
    let fault = |code| Err(Fault::new(code, "argument").at(object.as_ptr() as usize));
    match address {
        Address::Live => {
            // SAFETY: as the caller says: a living object of the heap.
            if unsafe { is_sound(object) } { Ok(()) } else { fault(Code::ForeignPointer) }
        }
        Address::Static => Ok(()),
        Address::Freed => fault(Code::FreedPointer),
        Address::Foreign | Address::Outside | Address::Nowhere => fault(Code::ForeignPointer),
    }
}

/// In checked mode, looks up an object for a function that is allowed everywhere. If the address is
/// no object, reports misuse and returns `false`.
///
/// # Safety
///
/// Rule *argument*, except that the address may be no object.
#[inline(always)]
pub(crate) unsafe fn is_object(object: NonNull<PyObject>, function: &'static str) -> bool {
    // SAFETY: as the caller says.
    !is_special() || is_accepted(unsafe { check_object_here(object) }, function)
}

/// Like [`is_object`], for a type, ready or not.
///
/// # Safety
///
/// As for [`is_object`].
#[inline(always)]
pub(crate) unsafe fn is_type(face: NonNull<PyTypeObject>, function: &'static str) -> bool {
    // SAFETY: as the caller says. The first lookup has shown that the type can be read.
    !is_special()
        || is_accepted(
            unsafe { check_object_here(face.cast()).and_then(|()| must_be_type(face)) },
            function,
        )
}

fn is_accepted(looked: Result<(), Fault>, function: &'static str) -> bool {
    let Err(mut fault) = looked else { return true };
    fault.function = function;
    errors::misuse(fault);
    false
}

/// Like [`check_object`], with the heap of this thread. On a thread without a checked heap every
/// address passes.
#[cold]
#[inline(never)]
unsafe fn check_object_here(object: NonNull<PyObject>) -> Result<(), Fault> {
    // SAFETY: rule *argument*; `address` is the result of this lookup.
    unsafe { dynamic::look_up_here(object).map_or(Ok(()), |address| judge(address, object)) }
}

/// Fails for an object that is no type. An object without a type passes: it is a static type that
/// is not ready.
///
/// # Safety
///
/// The object is alive or static.
pub(crate) unsafe fn must_be_type(face: NonNull<PyTypeObject>) -> Result<(), Fault> {
    // SAFETY: as the caller says.
    match unsafe { dynamic::try_type_of(face.cast()) } {
        Some(record) if !std::ptr::eq(record, METATYPE.get()) => {
            let text = words!("a type is needed, not an object of type '{}'", record.name());
            let fault = Fault::new(Code::WrongType, "argument").of_type(record.kept_name());
            Err(fault.at(face.as_ptr() as usize).because(text))
        }
        _ => Ok(()),
    }
}

/// Whether a living object is a dynamic one. A head that fits neither a dynamic nor a typed object
/// has been overwritten; this ends the process.
///
/// # Safety
///
/// The object is alive and lies in a heap.
unsafe fn is_sound(object: NonNull<PyObject>) -> bool {
    // More types than any program has. Random bits are nearly always larger.
    const TYPES: u64 = 1 << 16;
    // SAFETY: as the caller says: the first word of the header. Other threads write it atomically.
    let word = unsafe { AtomicU64::from_ptr(object.as_ptr().cast()) }.load(Ordering::Relaxed);
    let index = word & 0xff_ffff;
    if (1..TYPES).contains(&index) {
        return false;
    }
    // SAFETY: rule *dynamic*: the record's address follows the header.
    let record = unsafe { object.as_ptr().cast::<usize>().add(2).read() };
    if index != 0 || record < 4096 || !record.is_multiple_of(align_of::<TypeRecord>()) {
        let head = object.as_ptr();
        stderr::abort(format_args!(
            "standstill: the head of the object at {head:p} has been overwritten"
        ));
    }
    true
}

/// The record of a ready type from C. Fails for null. In checked mode the address is looked up.
///
/// # Safety
///
/// Rule *argument*. The record lives as long as the type.
pub(crate) unsafe fn record<'a>(
    m: &Mutator,
    face: *mut PyTypeObject,
) -> Result<&'a TypeRecord, Fault> {
    // SAFETY: rules *argument* and *record*.
    unsafe {
        if dynamic::is_checked(m) && !face.is_null() {
            let face = NonNull::new_unchecked(face);
            check_object(m, face.cast())?;
            must_be_type(face)?;
        }
        ready(face)
    }
}

/// Like [`record`], without the lookup, for functions that are allowed everywhere.
///
/// # Safety
///
/// Rule *argument*.
pub(crate) unsafe fn ready<'a>(face: *mut PyTypeObject) -> Result<&'a TypeRecord, Fault> {
    let face = some(face)?;
    // SAFETY: rules *argument* and *record*. The pointer to the record is published once; see
    // `types`.
    unsafe { types::own(face.as_ptr()) }.ok_or_else(|| {
        // SAFETY: rule *argument*.
        let name = unsafe { text((*face.as_ptr()).tp_name) }.ok().flatten();
        let name = name.unwrap_or("without a name");
        Fault::new(Code::NotReady, "argument").because(words!("type '{name}' is not ready"))
    })
}

/// A text from C, or `None` for null. Fails for a text that is not UTF-8: after a lossy conversion,
/// two different texts could be equal.
///
/// # Safety
///
/// `text` is null, or a text with a 0 at its end that lives as long as the result.
pub(crate) unsafe fn text<'a>(text: *const c_char) -> Result<Option<&'a str>, Fault> {
    if text.is_null() {
        return Ok(None);
    }
    // SAFETY: as the caller says.
    utf_8(unsafe { CStr::from_ptr(text) }).map(Some)
}

/// The text as UTF-8.
pub(crate) fn utf_8(text: &CStr) -> Result<&str, Fault> {
    text.to_str()
        .map_err(|_| Fault::new(Code::WrongType, "argument").because("the text is not UTF-8"))
}
