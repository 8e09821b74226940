//! How a call from C is run, and how the pointers in it are looked at.

use std::ffi::{CStr, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use standstill::dynamic::{self, Address, METATYPE, TypeRecord};
use standstill::{Code, Fault, Mutator, safepoint, stderr, words};

use crate::errors;
use crate::layout::{PyObject, PyTypeObject};
use crate::types;

/// Defines exported functions. What each does stands in the header.
macro_rules! export {
    ($($(#[$meta:meta])* fn $name:ident($($arg:ident: $type:ty),* $(,)?) $(-> $result:ty)? $body:block)*) => {$(
        $(#[$meta])*
        ///
        /// # Safety
        ///
        /// Rule C of the crate: each pointer is what the header says of it.
        // SAFETY: rule B: no other name begins with `standstill_`; `ci/capi_symbols.sh` looks.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($arg: $type),*) $(-> $result)? $body
    )*};
}
pub(crate) use export;

/// Why the fast paths leave everything to the slow ones, as bits.
static SPECIAL: AtomicU8 = AtomicU8::new(0);
/// Some heap is in checked mode.
const CHECKED: u8 = 1;

/// A heap in checked mode has come into being.
pub(crate) fn note_checked() {
    SPECIAL.fetch_or(CHECKED, Ordering::Relaxed);
}

/// Whether a fast path is to be left.
#[inline(always)]
pub(crate) fn is_special() -> bool {
    // Relaxed: set before the heap is known to anybody.
    SPECIAL.load(Ordering::Relaxed) != 0
}

/// Says that a function cannot be called in a traverse handler.
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
    // Not dropped: its destructor is somebody's code, too.
    std::mem::forget(payload);
}

/// Runs a function that needs no attached thread, but not in a traverse handler.
pub(crate) fn outside<R: Copy>(function: &'static str, failure: R, f: impl FnOnce() -> R) -> R {
    if safepoint::is_traversing() {
        refuse(function);
        return failure;
    }
    catching(function, failure, f)
}

/// Runs a function wherever it is called.
pub(crate) fn catching<R: Copy>(function: &'static str, failure: R, f: impl FnOnce() -> R) -> R {
    match catch_unwind(AssertUnwindSafe(f)) {
        Ok(result) => result,
        Err(payload) => {
            panicked(function, payload);
            failure
        }
    }
}

/// Runs a function of an attached thread; a fault goes to `tell`.
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

/// Runs a function of an attached thread; a fault goes into the error indicator.
pub(crate) fn fallible<R: Copy>(
    function: &'static str,
    failure: R,
    f: impl FnOnce(&Mutator) -> Result<R, Fault>,
) -> R {
    attached(function, failure, |fault| errors::set_fault(&fault), f)
}

/// As [`fallible`], for functions that cannot fail: a fault is a report of misuse.
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

/// A pointer that must not be null.
pub(crate) fn some<T>(pointer: *mut T) -> Result<NonNull<T>, Fault> {
    NonNull::new(pointer).ok_or_else(|| null("argument"))
}

/// An object from C: not null; in checked mode looked up.
///
/// # Safety
///
/// Rule C.
pub(crate) unsafe fn object(
    m: &Mutator,
    pointer: *mut PyObject,
) -> Result<NonNull<PyObject>, Fault> {
    let object = some(pointer)?;
    if dynamic::is_checked(m) {
        // SAFETY: rule C.
        unsafe { look_at(m, object) }?;
    }
    Ok(object)
}

/// An object from C that has a type. A static type that is not ready has none: the fault has this code.
///
/// # Safety
///
/// Rule C.
pub(crate) unsafe fn typed_object(
    m: &Mutator,
    pointer: *mut PyObject,
    code: Code,
) -> Result<NonNull<PyObject>, Fault> {
    // SAFETY: rule C.
    unsafe {
        let object = object(m, pointer)?;
        must_have_type(object, code)?;
        Ok(object)
    }
}

/// Fails for a static type that is not ready.
///
/// # Safety
///
/// A living object, or a static one.
pub(crate) unsafe fn must_have_type(object: NonNull<PyObject>, code: Code) -> Result<(), Fault> {
    // SAFETY: as the caller says.
    if unsafe { dynamic::try_type_of(object) }.is_some() {
        return Ok(());
    }
    let fault = Fault::new(code, "argument").at(object.as_ptr() as usize);
    Err(fault.because("the object is a static type that is not ready"))
}

/// An object from C that may be null.
///
/// # Safety
///
/// Rule C.
pub(crate) unsafe fn optional(
    m: &Mutator,
    pointer: *mut PyObject,
) -> Result<Option<NonNull<PyObject>>, Fault> {
    // SAFETY: rule C.
    if pointer.is_null() { Ok(None) } else { unsafe { object(m, pointer) }.map(Some) }
}

/// Checked mode's look at an address.
///
/// # Safety
///
/// Rule C, less what is looked for.
pub(crate) unsafe fn look_at(m: &Mutator, object: NonNull<PyObject>) -> Result<(), Fault> {
    // SAFETY: as the caller says.
    unsafe { judge(dynamic::look_up(m, object), object) }
}

/// What follows from what an address is.
///
/// # Safety
///
/// That is what the address is.
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

/// Checked mode's look at an object, for functions that can be called anywhere; `false`: it is none, and that was reported.
///
/// # Safety
///
/// Rule C, less what is looked for.
#[inline(always)]
pub(crate) unsafe fn is_object(object: NonNull<PyObject>, function: &'static str) -> bool {
    // SAFETY: as the caller says.
    !is_special() || told(unsafe { look_here(object) }, function)
}

/// The same for a type, ready or not.
///
/// # Safety
///
/// As for [`is_object`].
#[inline(always)]
pub(crate) unsafe fn is_type(face: NonNull<PyTypeObject>, function: &'static str) -> bool {
    // SAFETY: as the caller says. What is an object can be asked for its type.
    !is_special()
        || told(unsafe { look_here(face.cast()).and_then(|()| must_be_type(face)) }, function)
}

fn told(looked: Result<(), Fault>, function: &'static str) -> bool {
    let Err(mut fault) = looked else { return true };
    fault.function = function;
    errors::misuse(fault);
    false
}

/// As [`look_at`], wherever this thread is. Where it has no checked heap there is nothing to look in.
#[cold]
#[inline(never)]
unsafe fn look_here(object: NonNull<PyObject>) -> Result<(), Fault> {
    // SAFETY: rule C; and that is what the address is.
    unsafe { dynamic::look_up_here(object).map_or(Ok(()), |address| judge(address, object)) }
}

/// Fails for an object that is no type. One without a type is a static type that is not ready yet.
///
/// # Safety
///
/// A living object, or a static one.
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

/// Whether a living object is a dynamic one. A head that can be neither kind's has been written over: that ends the process.
///
/// # Safety
///
/// A living object of a heap.
unsafe fn is_sound(object: NonNull<PyObject>) -> bool {
    // More types than any program has, and far less than random bits.
    const TYPES: u64 = 1 << 16;
    // SAFETY: as the caller says: the header's first word, which is read as others write it.
    let word = unsafe { AtomicU64::from_ptr(object.as_ptr().cast()) }.load(Ordering::Relaxed);
    let index = word & 0xff_ffff;
    if (1..TYPES).contains(&index) {
        return false;
    }
    // SAFETY: rule D: the record's address stands behind the header.
    let record = unsafe { object.as_ptr().cast::<usize>().add(2).read() };
    if index != 0 || record < 4096 || !record.is_multiple_of(align_of::<TypeRecord>()) {
        let head = object.as_ptr();
        stderr::abort(format_args!(
            "standstill: the head of the object at {head:p} has been written over"
        ));
    }
    true
}

/// The record of a type from C: not null, ready; in checked mode looked up.
///
/// # Safety
///
/// Rule C. The record lives as long as the type.
pub(crate) unsafe fn record<'a>(
    m: &Mutator,
    face: *mut PyTypeObject,
) -> Result<&'a TypeRecord, Fault> {
    // SAFETY: rules C and F.
    unsafe {
        if dynamic::is_checked(m) && !face.is_null() {
            let face = NonNull::new_unchecked(face);
            look_at(m, face.cast())?;
            must_be_type(face)?;
        }
        ready(face)
    }
}

/// As [`record`], without the look: for functions that may be called anywhere.
///
/// # Safety
///
/// Rule C.
pub(crate) unsafe fn ready<'a>(face: *mut PyTypeObject) -> Result<&'a TypeRecord, Fault> {
    let face = some(face)?;
    // SAFETY: rules C and F. The pointer is published once; see `types`.
    unsafe { types::own(face.as_ptr()) }.ok_or_else(|| {
        // SAFETY: rule C.
        let name = unsafe { text((*face.as_ptr()).tp_name) }.ok().flatten();
        let name = name.unwrap_or("without a name");
        Fault::new(Code::NotReady, "argument").because(words!("type '{name}' is not ready"))
    })
}

/// A text from C; `None`: null. Fails for one that is not UTF-8: two of those could not be told apart.
///
/// # Safety
///
/// Null, or a text with a 0 at its end, which stays as long as the result.
pub(crate) unsafe fn text<'a>(text: *const c_char) -> Result<Option<&'a str>, Fault> {
    if text.is_null() {
        return Ok(None);
    }
    // SAFETY: as the caller says.
    utf_8(unsafe { CStr::from_ptr(text) }).map(Some)
}

/// A text that is UTF-8.
pub(crate) fn utf_8(text: &CStr) -> Result<&str, Fault> {
    text.to_str()
        .map_err(|_| Fault::new(Code::WrongType, "argument").because("the text is not UTF-8"))
}
