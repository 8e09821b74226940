//! Calls of code that is not the library's.
//!
//! This file is the only one through which the library speaks to the outside: a `tracing` subscriber, a hook, standard
//! error. All of these are code of somebody else's: they can panic, and they can call the library. Two rules hold for
//! each such call, and for each drop of something that belongs to the outside (a hook, a span, a panic's payload):
//!
//! * *It does not unwind into the library.* Subscribers are called through [`call_outside`], hooks through [`Hook::call`],
//!   lines are written by [`line`]. Each catches a panic. The panic hook of the process has printed it by then.
//! * *It runs under no lock of the library's.* In debug builds `sync` counts the locks that a thread holds, and each call
//!   out ends the process when there is one ([`must_hold_no_lock`]). Release builds do not count.
//!
//! Types and lints keep other ways closed: [`Span`], [`EnteredSpan`] and [`Hook`] call nobody but through here, `ci/floors.sh`
//! refuses the name `tracing` in other files, and `clippy` refuses `eprintln!` and `println!` in the library's packages.
//!
//! A condition under which the process cannot go on ends it by [`abort`], which does not unwind either.

use std::any::Any;
use std::borrow::Cow;
use std::fmt;
use std::io::Write;
use std::sync::Arc;

use crate::base::sync::are_locks_held;

/// Ends the process in a debug build if this thread holds a lock of the library's. Release builds do not count locks.
#[inline(always)]
pub(crate) fn must_hold_no_lock() {
    if are_locks_held() {
        abort(format_args!(
            "standstill: code of the program is about to run under a lock of the library; that is a fault of the library"
        ));
    }
}

/// Runs code of the program's, and catches its panic.
pub(crate) fn guarded<R>(f: impl FnOnce() -> R) -> Result<R, Box<dyn Any + Send>> {
    must_hold_no_lock();
    // Unwind safety: what the closure touches is user data behind the user's own locks, or ours that
    // each caller keeps whole by itself.
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(f))
}

/// Calls a subscriber, or whoever else listens. A panic there ends with this call: the panic hook has printed it.
pub(super) fn call_outside(f: impl FnOnce()) {
    if let Err(payload) = guarded(f) {
        panic_message(payload);
    }
}

/// The text of a caught panic. The payload is dropped here, where a panic of its own destructor, which is user
/// code too, does no harm.
pub(crate) fn panic_message(payload: Box<dyn Any + Send>) -> Cow<'static, str> {
    // Taken out of the payload, since a copy would take memory.
    let payload = match payload.downcast::<String>() {
        Ok(message) => return Cow::Owned(*message),
        Err(payload) => payload,
    };
    let message = payload
        .downcast_ref::<&'static str>()
        .map_or("a panic without a message", |message| message);
    let message = Cow::Borrowed(message);
    if let Err(again) = guarded(|| drop(payload)) {
        // Somebody means it. Leaked rather than dropped: it could go on for ever.
        std::mem::forget(again);
    }
    message
}

/// Writes a line to standard error. If that is closed, or full, the line is lost.
#[doc(hidden)]
pub fn line(text: fmt::Arguments<'_>) {
    call_outside(|| write_line(text));
}

fn write_line(text: fmt::Arguments<'_>) {
    // Unlike `eprintln!`, which panics when the line cannot be written. There is nowhere to tell that.
    drop(writeln!(std::io::stderr(), "{text}"));
}

/// Ends the process, after a line on standard error if one can be written. It never unwinds, whatever that line meets: for
/// threads that must not go on, and whose callers must not either.
#[doc(hidden)]
#[cold]
#[inline(never)]
pub fn abort(reason: fmt::Arguments<'_>) -> ! {
    // Not by `line`, which comes here when a lock is held.
    let written = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| write_line(reason)));
    std::mem::forget(written);
    std::process::abort()
}

/// A function of the program's that the library calls: whoever registers one gets it called, and dropped, as the
/// [module's page](self) says.
pub(crate) struct Hook<F: ?Sized>(Option<Arc<F>>);

impl<F: ?Sized> Hook<F> {
    pub(crate) fn new(function: Arc<F>) -> Self {
        Self(Some(function))
    }

    /// Calls it, by way of `f`.
    ///
    /// # Errors
    ///
    /// The message of its panic.
    pub(crate) fn call<R>(&self, f: impl FnOnce(&F) -> R) -> Result<R, Cow<'static, str>> {
        match &self.0 {
            Some(function) => guarded(|| f(function)).map_err(panic_message),
            // It is taken out when the hook is dropped, and at no other time.
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
