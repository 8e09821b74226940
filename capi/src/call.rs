//! Calls from C. A program may pass wrong pointers, and no panic may cross into C. So the exported
//! functions get pointers as [`Given`], whose methods check them, and run their bodies in functions
//! of this file, which catch panics.

use std::ffi::{CStr, c_char, c_void};
use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use standstill::dynamic::{self, Address, Head, METATYPE, Obj, TypeRecord};
use standstill::{Code, Fault, Mutator, safepoint, stderr, words};

use crate::errors;
use crate::layout::{PyObject, PyTypeObject, PyVarObject};
use crate::types::Face;

/// Defines exported functions, which the header describes. The pointers that `#[given(…)]` names
/// become [`Given`] in the body, so that each is checked before it is used.
macro_rules! export {
    ($(
        $(#[doc = $doc:expr])* $(#[given($($given:ident),+)])?
        fn $name:ident($($arg:ident: $type:ty),* $(,)?) $(-> $result:ty)? $body:block
    )*) => {$(
        $(#[doc = $doc])*
        ///
        /// # Safety
        ///
        /// Rule *argument* of the crate: each pointer is valid as the header says.
        // SAFETY: rule *bounds*: no other name begins with `standstill_`; `ci/capi_symbols.sh`
        // looks.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($arg: $type),*) $(-> $result)? {
            $($(
                // SAFETY: rule *argument*: C promises this for the call.
                let $given = unsafe { $crate::call::Given::of($given) };
            )+)?
            $body
        }
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
    // Not dropped, because the payload's destructor is foreign code, which may panic again.
    std::mem::forget(payload);
}

/// Runs a function that needs no attached thread, but refuses it in a traverse handler.
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

/// Runs a function that needs an attached thread, and passes its fault to `tell`.
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

/// Runs a function that needs an attached thread, whose fault goes into the error indicator.
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

/// `*mut T` and `*const T`.
pub(crate) trait Pointer<T> {
    /// The pointer as `*mut T`.
    fn raw(self) -> *mut T;
}

impl<T> Pointer<T> for *mut T {
    #[inline(always)]
    fn raw(self) -> *mut T {
        self
    }
}

impl<T> Pointer<T> for *const T {
    #[inline(always)]
    fn raw(self) -> *mut T {
        self.cast_mut()
    }
}

/// A pointer from C for the time of a call: null, or valid as the header says (rule *argument*).
pub(crate) struct Given<'a, T> {
    pointer: *mut T,
    call: PhantomData<&'a T>,
}

impl<T> Clone for Given<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Given<'_, T> {}

impl<T> Given<'_, T> {
    /// The promise for a pointer.
    ///
    /// # Safety
    ///
    /// Rule *argument*, for `'a`.
    #[inline(always)]
    pub(crate) unsafe fn new(pointer: *mut T) -> Self {
        Self { pointer, call: PhantomData }
    }

    /// The promise for an argument.
    ///
    /// # Safety
    ///
    /// As for [`new`](Self::new).
    #[inline(always)]
    pub(crate) unsafe fn of(pointer: impl Pointer<T>) -> Self {
        Self { pointer: pointer.raw(), call: PhantomData }
    }

    /// The pointer.
    #[inline(always)]
    pub(crate) fn raw(self) -> *mut T {
        self.pointer
    }

    /// Whether the pointer is null.
    #[inline(always)]
    pub(crate) fn is_null(self) -> bool {
        self.pointer.is_null()
    }

    /// Fails for a null pointer.
    pub(crate) fn some(self) -> Result<NonNull<T>, Fault> {
        some(self.pointer)
    }
}

impl<'a> Given<'a, c_void> {
    /// The pointer of a function that takes objects as `void *`.
    #[inline(always)]
    pub(crate) fn to_object(self) -> Given<'a, PyObject> {
        Given { pointer: self.pointer.cast(), call: PhantomData }
    }

    /// The pointer of a function that takes types as `void *`.
    #[inline(always)]
    pub(crate) fn to_type(self) -> Given<'a, PyTypeObject> {
        Given { pointer: self.pointer.cast(), call: PhantomData }
    }
}

impl<'a> Given<'a, PyVarObject> {
    /// The pointer as one to an object.
    pub(crate) fn to_object(self) -> Given<'a, PyObject> {
        Given { pointer: self.pointer.cast(), call: PhantomData }
    }
}

/// A value that a function writes for its caller.
pub(crate) trait Answer {}
impl<T> Answer for *mut T {}

impl<T: Answer> Given<'_, T> {
    /// Writes a result, if the pointer is not null.
    pub(crate) fn write(self, value: T) {
        if !self.is_null() {
            // SAFETY: rule *argument*: the caller's variable.
            unsafe { self.pointer.write(value) };
        }
    }
}

impl<T> Given<'_, T> {
    /// Writes three results. Fails for a null pointer.
    pub(crate) fn write_three(self, values: [T; 3]) -> Result<(), Fault>
    where
        T: Triple,
    {
        // SAFETY: rule *argument*: there is room for three.
        self.some().map(|place| unsafe { place.cast::<[T; 3]>().write(values) })
    }
}

/// A value of which a function writes three.
pub(crate) trait Triple {}
impl Triple for std::ffi::c_int {}
impl Triple for isize {}
impl Triple for crate::gc::standstill_gc_stats {}

impl<'a> Given<'a, c_char> {
    /// The text, or `None` for null.
    pub(crate) fn text(self) -> Option<&'a CStr> {
        // SAFETY: rule *argument*: a text with a 0 at its end.
        (!self.is_null()).then(|| unsafe { CStr::from_ptr(self.pointer) })
    }

    /// The text as UTF-8. Fails for null.
    pub(crate) fn utf_8(self) -> Result<&'a str, Fault> {
        utf_8(self.text().ok_or_else(|| null("argument"))?)
    }
}

impl<'a> Given<'a, PyObject> {
    /// The object, whose address is looked up in checked mode. Fails for null.
    pub(crate) fn object(self, m: &Mutator) -> Result<Head<'a>, Fault> {
        let object = self.some()?;
        // SAFETY: rule *argument*; the lookup accepts any address.
        unsafe {
            if dynamic::is_checked(m) {
                check_object(m, object)?;
            }
            Ok(Head::new(object))
        }
    }

    /// Like [`object`](Self::object), for functions that need the object's type. The fault has this
    /// code for a static type that is not ready, because such an object has no type.
    pub(crate) fn typed(self, m: &Mutator, code: Code) -> Result<Obj<'a>, Fault> {
        with_type(self.object(m)?, code)
    }

    /// The object, or `None` for null.
    pub(crate) fn optional(self, m: &Mutator) -> Result<Option<Head<'a>>, Fault> {
        if self.is_null() { Ok(None) } else { self.object(m).map(Some) }
    }

    /// The object, for a function that is allowed everywhere. `None`: the pointer is null, or in
    /// checked mode no object lies there, which is reported as misuse.
    #[inline(always)]
    pub(crate) fn here(self, function: &'static str) -> Option<Head<'a>> {
        let object = NonNull::new(self.pointer)?;
        // SAFETY: rule *argument*; the lookup accepts any address.
        unsafe { is_object(object, function).then(|| Head::new(object)) }
    }

    /// Like [`here`](Self::here). A null pointer is reported as misuse, too.
    pub(crate) fn needed_here(self, function: &'static str) -> Option<Head<'a>> {
        if self.is_null() {
            errors::misuse(null(function));
        }
        self.here(function)
    }

    /// Like [`here`](Self::here), for an object that is a type, ready or not.
    pub(crate) fn type_here(self, function: &'static str) -> Option<Head<'a>> {
        let object = NonNull::new(self.pointer)?;
        // SAFETY: rule *argument*; the lookup accepts any address.
        unsafe { is_type(object.cast(), function).then(|| Head::new(object)) }
    }

    /// The object for a fast path. `None`: the fast paths are off, or the pointer is null.
    #[inline(always)]
    pub(crate) fn fast(self) -> Option<Obj<'a>> {
        // SAFETY: rule *argument*: an object with a type.
        if is_special() { None } else { unsafe { Obj::from_ptr(self.pointer) } }
    }
}

impl<'a> Given<'a, PyTypeObject> {
    /// The type. Fails for null.
    pub(crate) fn face(self) -> Result<Face<'a>, Fault> {
        // SAFETY: rule *argument*.
        self.some().map(|face| unsafe { Face::new(face) })
    }

    /// The type, for a function that is allowed everywhere. `None`: the pointer is null, or in
    /// checked mode no type lies there, which is reported as misuse.
    #[inline(always)]
    pub(crate) fn here(self, function: &'static str) -> Option<Face<'a>> {
        let face = NonNull::new(self.pointer)?;
        // SAFETY: rule *argument*; the lookup accepts any address.
        unsafe { is_type(face, function).then(|| Face::new(face)) }
    }

    /// Like [`here`](Self::here). A null pointer is reported as misuse, too.
    pub(crate) fn needed_here(self, function: &'static str) -> Option<Face<'a>> {
        if self.is_null() {
            errors::misuse(null(function));
        }
        self.here(function)
    }

    /// The record of the type, whose address is looked up in checked mode. Fails for null, and for
    /// a type that is not ready.
    pub(crate) fn record(self, m: &Mutator) -> Result<&'a TypeRecord, Fault> {
        if dynamic::is_checked(m)
            && let Some(face) = NonNull::new(self.pointer)
        {
            // SAFETY: rule *argument*; the lookup accepts any address.
            must_be_type(unsafe {
                check_object(m, face.cast())?;
                Head::new(face.cast())
            })?;
        }
        self.face()?.ready()
    }
}

/// Fails for a null pointer.
pub(crate) fn some<T>(pointer: *mut T) -> Result<NonNull<T>, Fault> {
    NonNull::new(pointer).ok_or_else(|| null("argument"))
}

/// Fails for a static type that is not ready.
pub(crate) fn with_type(object: Head<'_>, code: Code) -> Result<Obj<'_>, Fault> {
    object.typed().ok_or_else(|| {
        let fault = Fault::new(code, "argument").at(object.address().as_ptr() as usize);
        fault.because("the object is a static type that is not ready")
    })
}

/// Looks up an address, in checked mode.
///
/// # Safety
///
/// Rule *argument*, except that the address may be no object.
unsafe fn check_object(m: &Mutator, object: NonNull<PyObject>) -> Result<(), Fault> {
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

/// In checked mode, looks up an object for a function that is allowed everywhere. `false`: no
/// object lies at the address, which was reported as misuse.
///
/// # Safety
///
/// Rule *argument*, except that the address may be no object.
#[inline(always)]
unsafe fn is_object(object: NonNull<PyObject>, function: &'static str) -> bool {
    // SAFETY: as the caller says.
    !is_special() || is_accepted(unsafe { check_object_here(object) }, function)
}

/// Like [`is_object`], for a type, ready or not.
///
/// # Safety
///
/// As for [`is_object`].
#[inline(always)]
unsafe fn is_type(face: NonNull<PyTypeObject>, function: &'static str) -> bool {
    // SAFETY: as the caller says. The first lookup has shown that the type can be read.
    !is_special()
        || is_accepted(
            unsafe {
                check_object_here(face.cast()).and_then(|()| must_be_type(Head::new(face.cast())))
            },
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

/// Fails for an object that is no type, but not for one without a type, because that is a static
/// type that is not ready.
pub(crate) fn must_be_type(face: Head<'_>) -> Result<(), Fault> {
    match face.record() {
        Some(record) if !std::ptr::eq(record, METATYPE.get()) => {
            let text = words!("a type is needed, not an object of type '{}'", record.name());
            let fault = Fault::new(Code::WrongType, "argument").of_type(record.kept_name());
            Err(fault.at(face.address().as_ptr() as usize).because(text))
        }
        _ => Ok(()),
    }
}

/// Whether a living object is a dynamic one. If the head fits neither a dynamic nor a typed object,
/// the program has overwritten it, and the process ends.
///
/// # Safety
///
/// The object is alive and lies in a heap.
unsafe fn is_sound(object: NonNull<PyObject>) -> bool {
    // More types than any program has, although random bits are nearly always larger.
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
            "standstill: the head of the object at {head:p} has been overwritten: look for a write \
             past the end of the object before it, or through the pointer to an object that was freed"
        ));
    }
    true
}

/// A text from C, or `None` for null. Fails for a text that is not UTF-8, because after a lossy
/// conversion two different texts could be equal.
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
