//! The functions that put an attachment down and take it up, called by a thread that is ending:
//! each is refused, and reported as misuse.

use std::ffi::{CStr, c_char, c_void};
use std::sync::Mutex;

use standstill_capi::errors::{
    standstill_error_code, standstill_error_message, standstill_misuse, standstill_set_misuse_hook,
    standstill_set_unraisable_hook, standstill_unraisable,
};
use standstill_capi::thread::{
    standstill_PyEval_RestoreThread, standstill_PyEval_SaveThread, standstill_PyGILState_Ensure,
    standstill_PyGILState_Release, standstill_attach, standstill_detach,
};

static REPORTS: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// # Safety
///
/// Texts with a 0 at their ends.
unsafe fn note(what: &str, first: *const c_char, second: *const c_char) {
    // SAFETY: as the caller says.
    let (first, second) = unsafe { (CStr::from_ptr(first), CStr::from_ptr(second)) };
    let text = format!("{what} {} {}", first.to_string_lossy(), second.to_string_lossy());
    REPORTS.lock().expect("whole").push(text);
}

unsafe extern "C" fn misuse(report: *const standstill_misuse, _: *mut c_void) {
    // SAFETY: a report of the library's, with texts.
    unsafe { note("misuse", (*report).code_name, (*report).function) };
}

unsafe extern "C" fn unraisable(report: *const standstill_unraisable, _: *mut c_void) {
    // SAFETY: a report of the library's, with texts.
    unsafe { note("unraisable", (*report).kind, (*report).message) };
}

/// Calls them all as it is dropped.
struct Last;

impl Drop for Last {
    fn drop(&mut self) {
        // SAFETY: the arguments may be anything of the kind.
        unsafe {
            assert_eq!(standstill_PyGILState_Ensure(), 0);
            standstill_PyGILState_Release(1);
            assert!(standstill_PyEval_SaveThread().is_null());
            standstill_PyEval_RestoreThread(std::ptr::dangling_mut());
            // Its error indicator has gone.
            assert_eq!(standstill_error_code(), 0);
            assert!(standstill_error_message().is_null());
        }
    }
}

thread_local! { static LAST: Last = const { Last }; }

#[test]
fn a_thread_that_is_ending_gets_an_error_when_it_attaches() {
    // SAFETY: hooks for such reports; the default heap.
    unsafe {
        standstill_set_misuse_hook(Some(misuse), std::ptr::null_mut());
        standstill_set_unraisable_hook(Some(unraisable), std::ptr::null_mut());
    }
    let thread = std::thread::spawn(|| {
        // Before the library's own: the first registered value is destroyed last.
        LAST.with(|_| ());
        // SAFETY: the default heap.
        unsafe {
            assert_eq!((standstill_attach(std::ptr::null_mut()), standstill_detach()), (0, 0))
        };
    });
    thread.join().expect("a thread");
    let expected =
        ["PyGILState_Ensure", "PyGILState_Release", "PyEval_SaveThread", "PyEval_RestoreThread"]
            .map(|function| format!("misuse NotAllowedHere {function}"));
    assert_eq!(*REPORTS.lock().expect("whole"), expected);
}
