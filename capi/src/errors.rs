//! Errors: the indicator of the thread, reports of misuse, the unraisable hook.
//!
//! A handler may run while its thread has an error in its indicator, which the handler must not see
//! or replace. So the indicator is set aside during the call, and an error that the handler leaves
//! there is reported as unraisable.
//!
//! The hooks belong to the process. While a hook runs, the mutator is lent, so that the hook cannot
//! reach a safepoint. No hook is called in a stop, so misuse in a traverse handler is reported when
//! the world runs again. Only the hook for slow stops is called by a thread that waits: for its own
//! stop, or for the end of another one's.

use std::borrow::Cow;
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::fmt::{self, Display, Write as _};
use std::fs::File;
use std::io::Read;
use std::ptr::NonNull;
use std::sync::Mutex;

use standstill::dynamic::{self, Head};
use standstill::fallible::{self, NoMemory};
use standstill::safepoint::SlowStop;
use standstill::{AnyGc, CallGuards, Code, During, Fault, Heap, Mutator, Unraisable, stderr};

use crate::builtins::{self, Exception};
use crate::call::{self, export};
use crate::gc::Bound;
use crate::layout::PyObject;

/// A text for C, or only its beginning, if there is no memory for the whole text.
pub(crate) enum Text {
    Whole(CString),
    Beginning(Beginning),
}

/// The part of a text that fits into a fixed buffer, with a 0 at its end.
pub(crate) struct Beginning {
    bytes: [u8; 120],
    len: usize,
}

impl fmt::Write for Beginning {
    fn write_str(&mut self, more: &str) -> fmt::Result {
        for c in more.chars() {
            let c = if c == '\0' { '?' } else { c };
            if self.len + c.len_utf8() >= self.bytes.len() {
                return Err(fmt::Error);
            }
            c.encode_utf8(&mut self.bytes[self.len..]);
            self.len += c.len_utf8();
        }
        Ok(())
    }
}

impl Text {
    pub(crate) fn new(text: impl Display) -> Self {
        fallible::c_text(&text).map(Self::Whole).unwrap_or_else(|NoMemory| {
            let mut beginning = Beginning { bytes: [0; 120], len: 0 };
            // The error means that the rest of the text does not fit.
            write!(beginning, "{text}").ok();
            Self::Beginning(beginning)
        })
    }

    /// A copy of a text from C, byte by byte.
    fn copy(text: &CStr) -> Self {
        fallible::c_copy(text).map_or_else(|NoMemory| Self::new(Shown(text)), Self::Whole)
    }

    fn as_c_str(&self) -> &CStr {
        match self {
            Self::Whole(text) => text,
            Self::Beginning(text) => CStr::from_bytes_until_nul(&text.bytes).unwrap_or_default(),
        }
    }

    pub(crate) fn as_ptr(&self) -> *const c_char {
        self.as_c_str().as_ptr()
    }

    /// Converts the text for the library, which keeps it.
    fn into_words(self) -> Cow<'static, str> {
        let text = match self {
            // Without a copy, which would need memory.
            Self::Whole(text) => match text.into_string() {
                Ok(text) => return Cow::Owned(text),
                Err(error) => Self::Whole(error.into_cstring()),
            },
            beginning => beginning,
        };
        let copy =
            fallible::lossy(text.as_c_str().to_bytes()).and_then(|text| fallible::owned(&text));
        copy.map_or(Cow::Borrowed(fallible::NO_WORDS), Cow::Owned)
    }
}

/// A text from C. Bytes that are not UTF-8 are replaced when it is displayed.
struct Shown<'a>(&'a CStr);

impl Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut chunks = self.0.to_bytes().utf8_chunks();
        chunks.try_for_each(|chunk| {
            f.write_str(chunk.valid())?;
            f.write_str(if chunk.invalid().is_empty() { "" } else { "\u{fffd}" })
        })
    }
}

impl Display for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Shown(self.as_c_str()).fmt(f)
    }
}

/// The error in an indicator.
struct Indicator {
    code: Code,
    exception: NonNull<PyObject>,
    /// Keeps the exception alive, if it is an object of a heap.
    #[expect(dead_code, reason = "it is dropped with the indicator")]
    held: Option<AnyGc>,
    message: Text,
}

#[derive(Default)]
struct Errors {
    now: Option<Indicator>,
    /// The errors that were set aside, each with the number of times that an empty indicator was
    /// set aside before it. While an error is set, the list has room for it.
    aside: Vec<(Option<Indicator>, u32)>,
}

/// The nesting depth up to which errors can be set aside without more memory.
const ASIDE_DEPTH: usize = 8;

/// Prepares the indicator of a thread that is about to attach, so that the thread can set errors
/// aside without allocating.
pub(crate) fn prepare() -> Result<(), NoMemory> {
    with(|errors| Ok(errors.aside.try_reserve(ASIDE_DEPTH)?)).unwrap_or(Ok(()))
}

thread_local! {
    static ERRORS: RefCell<Errors> = RefCell::default();
    /// Whether the indicator holds an error. The code around handlers reads this flag, because
    /// hardly any handler fails.
    static IS_SET: Cell<bool> = const { Cell::new(false) };
    /// How often an empty indicator was set aside since the last error was.
    static EMPTY_ASIDE: Cell<u32> = const { Cell::new(0) };
    /// Whether this thread runs a hook.
    static IN_HOOK: Cell<bool> = const { Cell::new(false) };
}

/// `None` when the thread is ending and its indicator is gone.
fn with<R>(f: impl FnOnce(&mut Errors) -> R) -> Option<R> {
    ERRORS
        .try_with(|errors| {
            let errors = &mut *errors.borrow_mut();
            let result = f(errors);
            IS_SET.set(errors.now.is_some());
            result
        })
        .ok()
}

/// Whether this thread is ending and its indicator is gone.
pub(crate) fn is_gone() -> bool {
    ERRORS.try_with(|_| ()).is_err()
}

fn set(code: Code, exception: Head<'_>, message: Text) {
    // A static type that is not ready has no type, and its references are not counted.
    let is_counted = exception.typed().is_some() && exception.count().is_some();
    let held = is_counted.then(|| exception.share());
    let exception = exception.address();
    let new = Indicator { code, exception, held, message };
    let old = with(|errors| {
        // Without this room the error could not be set aside and would be lost, for which more than
        // `ASIDE_DEPTH` nested handlers and a refusal of memory must coincide.
        errors.aside.try_reserve(1).ok();
        errors.now.replace(new)
    });
    drop(old);
}

/// Puts a fault into the indicator.
#[cold]
#[inline(never)]
pub(crate) fn set_fault(fault: &Fault) {
    set(fault.code, exception_for(fault.code).head(), Text::new(fault));
}

fn exception_for(code: Code) -> Exception {
    match code {
        Code::Memory => Exception::Memory,
        Code::NoAttribute => Exception::Attribute,
        Code::NotAttached | Code::NotAllowedHere => Exception::Runtime,
        Code::BadSize | Code::BadGeneration | Code::BadThreshold | Code::BadDebugFlags => {
            Exception::Value
        }
        Code::BadFree
        | Code::BadBase
        | Code::BadMro
        | Code::BadFlags
        | Code::MixedBases
        | Code::NotGcType
        | Code::GcType
        | Code::NotResizable
        | Code::WrongType
        | Code::NoModule => Exception::Type,
        _ => Exception::System,
    }
}

/// Sets the indicator aside until [`put_back`].
pub(crate) fn set_aside() {
    if IS_SET.get() {
        set_something_aside();
    } else {
        EMPTY_ASIDE.set(EMPTY_ASIDE.get() + 1);
    }
}

#[cold]
#[inline(never)]
fn set_something_aside() {
    with(|errors| {
        let now = errors.now.take();
        if fallible::push(&mut errors.aside, (now, EMPTY_ASIDE.get())).is_ok() {
            EMPTY_ASIDE.set(0);
        } else {
            EMPTY_ASIDE.set(EMPTY_ASIDE.get() + 1);
        }
    });
}

/// Puts back the indicator that [`set_aside`] removed, and returns the error that was set
/// meanwhile.
pub(crate) fn put_back() -> Option<Cow<'static, str>> {
    let times = EMPTY_ASIDE.get();
    if times > 0 {
        EMPTY_ASIDE.set(times - 1);
        if !IS_SET.get() {
            return None;
        }
    }
    put_something_back(times > 0)
}

#[cold]
#[inline(never)]
fn put_something_back(over_nothing: bool) -> Option<Cow<'static, str>> {
    let left = with(|errors| {
        let (before, nothing) = if over_nothing {
            (None, EMPTY_ASIDE.get())
        } else {
            errors.aside.pop().unwrap_or_default()
        };
        EMPTY_ASIDE.set(nothing);
        std::mem::replace(&mut errors.now, before)
    });
    left.flatten().map(|left| left.message.into_words())
}

/// Connects the reports of a heap to the hooks of the process.
pub(crate) fn connect_hooks(heap: &Heap) -> Result<(), NoMemory> {
    heap.try_on_misuse(deliver)?;
    heap.try_on_unraisable(|what| {
        let Unraisable { during, type_name, address, message, .. } = what;
        unraisable(kind(*during), type_name, std::ptr::without_provenance(*address), message);
    })?;
    heap.try_on_slow_stop(slow_stop)?;
    heap.set_call_guards(CallGuards { enter: set_aside, leave: put_back })
        .expect("a new heap has no call guards");
    Ok(())
}

fn kind(during: During) -> &'static str {
    match during {
        During::Traverse => "traverse handler",
        During::Finalize => "finalizer",
        During::WeakCallback => "weak reference callback",
        During::Clear => "clear handler",
        During::Drop => "deallocator",
        During::CollectionCallback => "collection callback",
        During::DebugSink => "debug sink",
        During::AuditHook => "audit hook",
        During::Collect => "collection",
        During::Shutdown => "heap's end",
        _ => "handler",
    }
}

/// `standstill_misuse` of the header.
#[repr(C)]
#[derive(Debug)]
#[expect(missing_docs, reason = "the header describes the fields")]
pub struct standstill_misuse {
    pub code: c_int,
    pub code_name: *const c_char,
    pub function: *const c_char,
    pub r#type: *const c_char,
    pub object: *const c_void,
    pub text: *const c_char,
}

/// `standstill_unraisable` of the header.
#[repr(C)]
#[derive(Debug)]
#[expect(missing_docs, reason = "the header describes the fields")]
pub struct standstill_unraisable {
    pub kind: *const c_char,
    pub r#type: *const c_char,
    pub object: *const c_void,
    pub message: *const c_char,
}

/// `standstill_slow_stop` of the header.
#[repr(C)]
#[derive(Debug)]
#[expect(missing_docs, reason = "the header describes the fields")]
pub struct standstill_slow_stop {
    pub thread: *const c_char,
    pub os_thread: u64,
    pub waited: f64,
    pub attached: f64,
    pub ended: c_int,
    pub text: *const c_char,
}

type MisuseHook = unsafe extern "C" fn(*const standstill_misuse, *mut c_void);
type UnraisableHook = unsafe extern "C" fn(*const standstill_unraisable, *mut c_void);
type LineHook = unsafe extern "C" fn(*const c_char, *mut c_void);
type SlowStopHook = unsafe extern "C" fn(*const standstill_slow_stop, *mut c_void);

type Hook<F> = Bound<Option<F>>;

/// The hooks of the process.
#[derive(Clone, Copy)]
pub(crate) struct Hooks {
    misuse: Hook<MisuseHook>,
    unraisable: Hook<UnraisableHook>,
    slow_stop: Hook<SlowStopHook>,
}

static HOOKS: Mutex<Hooks> = Mutex::new(Hooks {
    misuse: Bound { function: None, arg: std::ptr::null_mut() },
    unraisable: Bound { function: None, arg: std::ptr::null_mut() },
    slow_stop: Bound { function: None, arg: std::ptr::null_mut() },
});

thread_local! {
    /// A copy of the hooks, while this thread holds their lock for a fork.
    static KEPT: Cell<Option<Hooks>> = const { Cell::new(None) };
}

fn hooks() -> Hooks {
    KEPT.get().unwrap_or_else(|| *taken(&HOOKS))
}

fn set_hook(set: impl FnOnce(&mut Hooks)) {
    match KEPT.get() {
        Some(mut kept) => {
            set(&mut kept);
            KEPT.set(Some(kept));
        }
        None => set(&mut locked(&HOOKS)),
    }
}

/// The lock of the hooks, held through a fork.
pub(crate) struct KeptHooks(std::sync::MutexGuard<'static, Hooks>);

impl KeptHooks {
    pub(crate) fn new() -> Self {
        let hooks = taken(&HOOKS);
        KEPT.set(Some(*hooks));
        Self(hooks)
    }
}

impl Drop for KeptHooks {
    fn drop(&mut self) {
        if let Some(kept) = KEPT.take() {
            *self.0 = kept;
        }
    }
}

/// The number of reports on stderr, by code and type.
static LINES: Mutex<Option<HashMap<(Code, &'static str), usize>>> = Mutex::new(None);
/// The number of lines for one code and type.
const LINES_OF_A_KIND: usize = 5;

/// Locks a mutex of this library, poisoned or not. The lock of the hooks is taken by [`taken`], all
/// others by this function. `docs/fork.md` says of each who takes it for a fork.
///
/// No traverse handler may take such a lock, because the world is stopped, and a stopped thread may
/// hold the lock. Debug builds check this.
pub(crate) fn locked<T: ?Sized>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    debug_assert!(!standstill::safepoint::is_traversing(), "a lock is taken in a traverse handler");
    taken(mutex)
}

/// Like [`locked`], for the places where the hook for slow stops may be called. A thread that waits
/// for the end of a stop calls this hook as if inside a traverse handler. That is sound, because
/// these locks are held only for a few instructions, and no thread is stopped while it holds one.
fn taken<T: ?Sized>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Reports misuse at once, or, in a traverse handler, when the world runs again.
#[cold]
#[inline(never)]
pub(crate) fn misuse(fault: Fault) {
    if let Err(fault) = dynamic::record_fault(fault) {
        deliver(&fault);
    }
}

fn line(fault: &Fault) {
    // A report that cannot be counted, because memory is short or another thread counts, is
    // written. No thread waits for this lock, because a fork does not hold it.
    let count = || {
        let mut lines = LINES.try_lock().ok()?;
        let lines = lines.get_or_insert_default();
        let key = (fault.code, fault.type_name);
        if !lines.contains_key(&key) {
            lines.try_reserve(1).ok()?;
        }
        let seen = lines.entry(key).or_default();
        *seen += 1;
        Some(*seen)
    };
    let seen = count().unwrap_or(0);
    if seen <= LINES_OF_A_KIND {
        stderr::line(format_args!("standstill: misuse: {fault}"));
    }
}

/// Runs a hook with the mutator lent; `false`: it was not run, because this thread is already in a
/// hook.
fn in_hook(f: impl FnOnce()) -> bool {
    let inside = IN_HOOK.replace(true);
    if !inside {
        let mut f = Some(f);
        let mut run = || f.take().map_or((), |f| f());
        if Mutator::with_current(|_| run()).is_none() {
            run();
        }
        IN_HOOK.set(false);
    }
    !inside
}

fn deliver(fault: &Fault) {
    let hook = hooks().misuse;
    let Some(function) = hook.function else { return line(fault) };
    let name = Text::new(fault.code.name());
    let where_ = Text::new(fault.function);
    let type_name = Text::new(fault.type_name);
    let text = Text::new(fault);
    let report = standstill_misuse {
        code: fault.code as c_int,
        code_name: name.as_ptr(),
        function: where_.as_ptr(),
        r#type: if fault.type_name.is_empty() { std::ptr::null() } else { type_name.as_ptr() },
        object: std::ptr::without_provenance(fault.address),
        text: text.as_ptr(),
    };
    // SAFETY: rule *argument*: the program has set the hook for such reports.
    if !in_hook(|| unsafe { function(&report, hook.arg) }) {
        line(fault);
    }
}

/// Reports an error that no caller can receive.
pub(crate) fn unraisable(
    kind: &str,
    type_name: &str,
    object: *const c_void,
    message: &dyn Display,
) {
    let hook = hooks().unraisable;
    let to_stderr = || {
        let of = if type_name.is_empty() { "" } else { " of " };
        stderr::line(format_args!(
            "standstill: an error was ignored\n  in: {kind}{of}{type_name}\n  error: {message}"
        ));
    };
    let Some(function) = hook.function else { return to_stderr() };
    let (kind, message) = (Text::new(kind), Text::new(message));
    let type_text = Text::new(type_name);
    let report = standstill_unraisable {
        kind: kind.as_ptr(),
        r#type: if type_name.is_empty() { std::ptr::null() } else { type_text.as_ptr() },
        object,
        message: message.as_ptr(),
    };
    // SAFETY: as in `deliver`.
    if !in_hook(|| unsafe { function(&report, hook.arg) }) {
        to_stderr();
    }
}

/// The system's name for a thread of this process.
pub(crate) fn system_name(os_thread: u64) -> Option<String> {
    let path = fallible::written(format_args!("/proc/self/task/{os_thread}/comm"))?;
    // More than any name has.
    let mut name = [0; 64];
    let len = File::open(path).and_then(|mut file| file.read(&mut name)).ok()?;
    let name = std::str::from_utf8(&name[..len]).ok()?.trim_end();
    if name.is_empty() { None } else { fallible::owned(name).ok() }
}

/// Reports a slow stop, once for each thread that the stop waits for.
pub(crate) fn slow_stop(slow: &SlowStop) {
    let mut slow = slow.clone();
    for straggler in &mut slow.stragglers {
        // From the system, because std has no name for a thread that C has started.
        let thread = &mut straggler.thread;
        thread.name = thread.name.take().or_else(|| system_name(thread.os_thread?));
    }
    let to_stderr = || {
        if !stderr::is_warning_enabled() {
            stderr::line(format_args!("standstill: {slow}"));
        }
    };
    let hook = hooks().slow_stop;
    let Some(function) = hook.function else { return to_stderr() };
    let text = Text::new(&slow);
    let was_inside = !in_hook(|| {
        for straggler in &slow.stragglers {
            let thread = &straggler.thread;
            let name = Text::new(thread.name.as_deref().unwrap_or_default());
            let report = standstill_slow_stop {
                thread: if thread.name.is_none() { std::ptr::null() } else { name.as_ptr() },
                os_thread: thread.os_thread.unwrap_or(0),
                waited: slow.waited.as_secs_f64(),
                attached: thread.registered_for.as_secs_f64(),
                ended: c_int::from(straggler.has_ended),
                text: text.as_ptr(),
            };
            // SAFETY: as in `deliver`.
            unsafe { function(&report, hook.arg) };
        }
    });
    if was_inside {
        to_stderr();
    }
}

export! {
    /// The exception type of the current error, if any.
    fn standstill_PyErr_Occurred() -> *mut PyObject {
        call::outside("PyErr_Occurred", std::ptr::null_mut(), || {
            let found = with(|errors| errors.now.as_ref().map(|now| now.exception.as_ptr()));
            found.flatten().unwrap_or(std::ptr::null_mut())
        })
    }

    /// Clears the indicator.
    fn standstill_PyErr_Clear() {
        call::outside("PyErr_Clear", (), || drop(with(|errors| errors.now.take())));
    }

    /// Sets an error of the program.
    #[given(exception, message)]
    fn standstill_PyErr_SetString(exception: *mut PyObject, message: *const c_char) {
        const FUNCTION: &str = "PyErr_SetString";
        call::outside(FUNCTION, (), || {
            let message = Text::copy(message.text().unwrap_or(c""));
            let known = exception.type_here(FUNCTION);
            set(Code::Custom, known.unwrap_or(Exception::System.head()), message);
        });
    }

    /// Sets an out-of-memory error.
    fn standstill_PyErr_NoMemory() -> *mut PyObject {
        call::outside("PyErr_NoMemory", (), || {
            set_fault(&Fault::new(Code::Memory, "PyErr_NoMemory"))
        });
        std::ptr::null_mut()
    }

    /// Sets an error for a bad internal call.
    fn standstill_PyErr_BadInternalCall() {
        call::outside("PyErr_BadInternalCall", (), || {
            let message = Text::new("bad argument to an internal function");
            set(Code::Custom, Exception::System.head(), message);
        });
    }

    /// Whether an error of this type is set.
    #[given(exception)]
    fn standstill_PyErr_ExceptionMatches(exception: *mut PyObject) -> c_int {
        const FUNCTION: &str = "PyErr_ExceptionMatches";
        call::outside(FUNCTION, 0, || {
            let Some(exception) = exception.type_here(FUNCTION) else { return 0 };
            let matches = with(|errors| {
                errors
                    .now
                    .as_ref()
                    .is_some_and(|now| builtins::exception_matches(now.exception, exception))
            });
            c_int::from(matches == Some(true))
        })
    }

    /// Passes the current error to the unraisable hook and clears it.
    #[given(object)]
    fn standstill_PyErr_WriteUnraisable(object: *mut PyObject) {
        const FUNCTION: &str = "PyErr_WriteUnraisable";
        call::outside(FUNCTION, (), || {
            let Some(now) = with(|errors| errors.now.take()).flatten() else { return };
            let record = object.here(FUNCTION).and_then(Head::record);
            let type_name = record.map_or("", dynamic::TypeRecord::name);
            unraisable("call", type_name, object.raw().cast(), &now.message);
        });
    }

    /// The code of the current error.
    fn standstill_error_code() -> c_int {
        call::outside("standstill_error_code", 0, || {
            with(|errors| errors.now.as_ref().map_or(0, |now| now.code as c_int)).unwrap_or(0)
        })
    }

    /// The message of the current error.
    fn standstill_error_message() -> *const c_char {
        call::outside("standstill_error_message", std::ptr::null(), || {
            let text = with(|errors| {
                errors.now.as_ref().map_or(std::ptr::null(), |now| now.message.as_ptr())
            });
            text.unwrap_or(std::ptr::null())
        })
    }

    /// Sets the hook for misuse.
    fn standstill_set_misuse_hook(
        hook: Option<unsafe extern "C" fn(*const standstill_misuse, *mut c_void)>,
        arg: *mut c_void,
    ) {
        call::outside("standstill_set_misuse_hook", (), || {
            set_hook(|hooks| hooks.misuse = Bound { function: hook, arg });
        });
    }

    /// Sets the hook for errors that no caller can receive.
    fn standstill_set_unraisable_hook(
        hook: Option<unsafe extern "C" fn(*const standstill_unraisable, *mut c_void)>,
        arg: *mut c_void,
    ) {
        call::outside("standstill_set_unraisable_hook", (), || {
            set_hook(|hooks| hooks.unraisable = Bound { function: hook, arg });
        });
    }

    /// Sets the function that receives the lines for standard error.
    fn standstill_set_line_sink(
        sink: Option<unsafe extern "C" fn(*const c_char, *mut c_void)>,
        arg: *mut c_void,
    ) -> c_int {
        const FUNCTION: &str = "standstill_set_line_sink";
        call::outside(FUNCTION, -1, || {
            let boxed = |function: LineHook| {
                let bound = Bound { function, arg };
                fallible::boxed(move |line: &str| {
                    let bound = &bound;
                    // A part of a line could be taken for the whole.
                    let Ok(text) = fallible::c_text(line) else {
                        return stderr::write_line(format_args!("{line}"));
                    };
                    // SAFETY: as in `deliver`.
                    let call = || unsafe { (bound.function)(text.as_ptr(), bound.arg) };
                    // Inside a hook the mutator is lent already.
                    if !in_hook(call) {
                        call();
                    }
                })
            };
            let sink = sink.map(boxed).transpose();
            match sink.and_then(|sink| stderr::try_set_line_sink(sink.map(|sink| sink as _))) {
                Ok(()) => 0,
                Err(NoMemory) => {
                    set_fault(&Fault::new(Code::Memory, FUNCTION));
                    -1
                }
            }
        })
    }

    /// Sets the hook for slow stops.
    fn standstill_set_slow_stop_hook(
        hook: Option<unsafe extern "C" fn(*const standstill_slow_stop, *mut c_void)>,
        arg: *mut c_void,
    ) {
        call::outside("standstill_set_slow_stop_hook", (), || {
            set_hook(|hooks| hooks.slow_stop = Bound { function: hook, arg });
        });
    }
}

#[cfg(test)]
mod tests;
