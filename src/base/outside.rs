//! Foreign code (`tracing` subscribers, hooks, standard error) can panic, and it can call the
//! library, so the library calls it only through this file. Two rules hold for each such call, and
//! for each drop of a foreign value (a hook, a span, a panic's payload):
//!
//! * *It does not unwind into the library.* [`call_outside`] calls subscribers, [`Hook::call`]
//!   calls hooks, and [`line`] writes lines, or calls the sink for them. Each catches a panic,
//!   which the panic hook of the process has printed by then.
//! * *It runs without locks of the library.* Debug builds count the locks that a thread holds, so
//!   that a call with a lock ends the process ([`must_hold_no_lock`]). Release builds do not count.
//!
//! Types and lints enforce this: `Span`, `EnteredSpan` and [`Hook`] call only through this file.
//! `ci/floors.sh` rejects the name `tracing` in other files. `clippy` rejects `eprintln!` and
//! `println!` in the library's packages.
//!
//! If the process cannot go on, [`abort`] ends it, without unwinding.

#![forbid(unsafe_code)]

use std::any::Any;
use std::borrow::Cow;
use std::cell::Cell;
use std::fmt;
use std::fmt::Write;
use std::sync::{Arc, OnceLock};

use crate::base::fallible::{self, NoMemory};
use crate::base::settings_lock::SettingsHold;
use crate::base::sync::are_locks_held;
use crate::base::system;

/// Ends the process in a debug build if this thread holds a lock of the library. Release builds do
/// not count locks.
#[inline(always)]
pub(crate) fn must_hold_no_lock() {
    if are_locks_held() {
        abort(format_args!(
            "standstill: code of the program is about to run under a lock of the library; \
             this is a fault of the library"
        ));
    }
}

/// Runs code of the program and catches its panic.
pub(crate) fn guarded<R>(f: impl FnOnce() -> R) -> Result<R, Box<dyn Any + Send>> {
    must_hold_no_lock();
    // Unwind safety: the closure touches user data behind the user's own locks, or data that the
    // caller keeps consistent.
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(f))
}

/// Calls foreign code and catches its panic, which the panic hook has printed.
pub(crate) fn call_outside(f: impl FnOnce()) {
    if let Err(payload) = guarded(f) {
        panic_message(payload);
    }
}

/// The text of a caught panic. The payload is dropped here, because its destructor is user code,
/// whose panic does no harm here.
pub(crate) fn panic_message(payload: Box<dyn Any + Send>) -> Cow<'static, str> {
    // Moved out of the payload, because a copy would take memory.
    let payload = match payload.downcast::<String>() {
        Ok(message) => return Cow::Owned(*message),
        Err(payload) => payload,
    };
    let message = payload
        .downcast_ref::<&'static str>()
        .map_or("a panic without a message", |message| message);
    let message = Cow::Borrowed(message);
    if let Err(again) = guarded(|| drop(payload)) {
        // Leaked, not dropped, because the destructors could panic for ever.
        std::mem::forget(again);
    }
    message
}

type LineSink = Box<dyn Fn(&str) + Send + Sync>;

/// A sink for lines as it was set, and the one that was set after it. None is ever dropped, because
/// a thread may be calling it. So a report finds the last one without a lock, also while a fork
/// holds the locks.
struct SetSink {
    sink: Option<LineSink>,
    next: OnceLock<Box<SetSink>>,
}

static FIRST_SINK: SetSink = SetSink { sink: None, next: OnceLock::new() };

thread_local! {
    /// Whether this thread runs the sink.
    static IN_SINK: Cell<bool> = const { Cell::new(false) };
}

impl SetSink {
    fn last() -> &'static Self {
        let mut last = &FIRST_SINK;
        while let Some(next) = last.next.get() {
            last = next;
        }
        last
    }
}

/// Sets the function that receives each line that the library would write to standard error: slow
/// waits, misuse and failures without a hook, debugging lines without a sink of their own, and the
/// lines of `STANDSTILL_LOG=gc`. `None`: standard error receives them, as at first.
///
/// The sink belongs to the process, and any thread may call it, in the middle of an operation of
/// the library. So it uses no heap. These lines go to standard error all the same: one that the
/// sink itself causes, one at which it panics, one for which there is no memory, and the last one
/// of a process that the library ends. A sink that was replaced stays in memory.
///
/// ```
/// use std::sync::mpsc;
///
/// let (lines, received) = mpsc::channel();
/// let sink = move |line: &str| lines.send(line.to_owned()).unwrap_or_default();
/// standstill::set_line_sink(Some(Box::new(sink)));
///
/// let heap = standstill::Heap::new();
/// heap.on_collection(|_| panic!("a faulty callback"));
/// heap.attach().collect();
/// assert!(received.recv()?.contains("a faulty callback"));
/// # Ok::<_, mpsc::RecvError>(())
/// ```
pub fn set_line_sink(sink: Option<LineSink>) {
    try_set_line_sink(sink).unwrap_or_else(NoMemory::abort_process);
}

/// Like [`set_line_sink`], but returns an error when memory is refused.
#[doc(hidden)]
pub fn try_set_line_sink(sink: Option<LineSink>) -> Result<(), NoMemory> {
    let set = fallible::boxed(SetSink { sink, next: OnceLock::new() })?;
    // A fork holds this lock, so that its child does not inherit a cell half set.
    let _held = SettingsHold::new();
    // It is the last one until the lock is released, so its cell is empty.
    drop(SetSink::last().next.set(set));
    Ok(())
}

/// Passes a line to the sink. `false`: it belongs to standard error.
fn to_sink(text: fmt::Arguments<'_>) -> bool {
    let Some(sink) = &SetSink::last().sink else { return false };
    if IN_SINK.replace(true) {
        return false;
    }
    let mut is_passed = false;
    call_outside(|| {
        if let Some(text) = fallible::written(text) {
            sink(&text);
            is_passed = true;
        }
    });
    IN_SINK.set(false);
    is_passed
}

/// Passes a line to the [sink](set_line_sink), or writes it to standard error, where it is lost if
/// standard error is closed or full.
#[doc(hidden)]
pub fn line(text: fmt::Arguments<'_>) {
    if !to_sink(text) {
        call_outside(|| write_line(text));
    }
}

/// The same for a line that is complete, and so one write. It ends in a line feed.
pub(crate) fn whole_line(line: &str) {
    if !to_sink(format_args!("{}", line.trim_end())) {
        call_outside(|| system::write_error(line.as_bytes()));
    }
}

/// Writes a line in parts of at most 1 KiB, between which lines of other threads can come.
struct LinePart {
    bytes: [u8; 1024],
    len: usize,
}

impl LinePart {
    fn flush(&mut self) {
        system::write_error(&self.bytes[..self.len]);
        self.len = 0;
    }
}

impl fmt::Write for LinePart {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for bytes in text.as_bytes().chunks(self.bytes.len()) {
            if self.len + bytes.len() > self.bytes.len() {
                self.flush();
            }
            self.bytes[self.len..][..bytes.len()].copy_from_slice(bytes);
            self.len += bytes.len();
        }
        Ok(())
    }
}

/// Writes a line to standard error. It takes no memory, which may have run out, and no lock that a
/// fork could leave locked.
#[doc(hidden)]
pub fn write_line(text: fmt::Arguments<'_>) {
    let mut part = LinePart { bytes: [0; 1024], len: 0 };
    // The only errors are those of the values in the text.
    writeln!(part, "{text}").unwrap_or_default();
    part.flush();
}

/// Ends the process, after writing a line to standard error if possible. It never unwinds, for
/// threads that must not go on.
#[doc(hidden)]
#[cold]
#[inline(never)]
pub fn abort(reason: fmt::Arguments<'_>) -> ! {
    // Not by `line`, which calls this function if a lock is held.
    let written = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| write_line(reason)));
    std::mem::forget(written);
    std::process::abort()
}

/// A function of the program, which the library calls and drops by the rules on [this page](self).
pub(crate) struct Hook<F: ?Sized>(Option<Arc<F>>);

impl<F: ?Sized> Hook<F> {
    pub(crate) fn new(function: Arc<F>) -> Self {
        Self(Some(function))
    }

    /// Calls the function through `f`.
    ///
    /// # Errors
    ///
    /// The message of its panic.
    pub(crate) fn call<R>(&self, f: impl FnOnce(&F) -> R) -> Result<R, Cow<'static, str>> {
        match &self.0 {
            Some(function) => guarded(|| f(function)).map_err(panic_message),
            // It is `None` only during the hook's own drop.
            None => Err("the hook has been dropped".into()),
        }
    }
}

impl<F: ?Sized> Clone for Hook<F> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<F: ?Sized> Drop for Hook<F> {
    fn drop(&mut self) {
        let function = self.0.take();
        call_outside(|| drop(function));
    }
}

impl<F: ?Sized> fmt::Debug for Hook<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hook").finish_non_exhaustive()
    }
}
