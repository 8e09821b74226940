//! Automatic collections: the package's thread, and the rule by which a collection is due.
//!
//! The thread's outermost function is native: [`run`]. So no exception ends the thread. An
//! exception that another thread or a trace function raises there arrives in the Python function
//! that collects, and goes to `sys.unraisablehook`. Three events end the thread: `uninstall`, a
//! fork (the child has a thread of its own), and the end of the interpreter.
//!
//! An older thread may be in a finalizer when the package is installed anew. So there may be two
//! threads, but one automatic collection: see [`COLLECTS`].
//!
//! # On a thread of the program
//!
//! Some objects may only be traversed or destroyed on the thread that made them. For these the
//! package's thread collects nothing itself: it [requests](request) a collection, which is a
//! *pending call* of the interpreter, for the [main thread or for any thread](Place). A thread
//! makes such a call between two instructions of Python. The package's thread waits for its end.
//!
//! | [`REQUEST`] | meaning | changed by |
//! |---|---|---|
//! | `NONE` | no call is pending, or it does nothing | |
//! | `MADE` | a call is pending | the package's thread, from `NONE`, and back if it shall end or
//! the place changes |
//! | `RUNS` | a thread collects | that thread, from `MADE`, and to `NONE` at the end |
//!
//! An exception that arrives in the call, for example `KeyboardInterrupt`, leaves it, because it
//! was meant for the program. A warning that is an error goes to `sys.unraisablehook`. A
//! `RecursionError` is dropped: the collection is still due.

use std::ffi::{c_int, c_void};
use std::ptr::null_mut;
use std::sync::atomic::{
    AtomicBool, AtomicI32, AtomicI64, AtomicIsize, AtomicU8, AtomicU64, AtomicUsize, Ordering,
};
use std::sync::{Mutex, PoisonError};
use std::thread::Thread;
use std::time::{Duration, Instant};

use pyo3_ffi::{
    Py_DECREF, PyErr_Clear, PyErr_ExceptionMatches, PyEval_RestoreThread, PyEval_SaveThread,
    PyExc_RecursionError, PyExc_Warning, PyLong_AsUnsignedLongLong, PyObject,
};

use crate::collection::{self, thread_number};
use crate::layout as c;
use crate::stop::Collecting;
use crate::{pressure, python, switch};

/// How often the package's thread looks at the number of new objects while it grows.
const POLL: Duration = Duration::from_millis(2);

/// How often it looks while the number stands still. The time between two looks doubles up to this.
const IDLE: Duration = Duration::from_millis(32);

/// How often it looks while automatic collections are disabled. [`wake`] wakes it when that
/// changes.
const DISABLED: Duration = Duration::from_secs(1);

/// How long the thread rests after an error, and for threads that want to collect.
const REST: Duration = Duration::from_millis(50);

/// The thread that runs an automatic collection, in checked mode with CPython's part of it; 0:
/// none.
static COLLECTS: AtomicU64 = AtomicU64::new(0);

/// The number of threads that wait for the end of an automatic collection, to collect then.
static WAITERS: AtomicUsize = AtomicUsize::new(0);

/// The last automatic collection has had such waiters, or has failed: the package's thread rests.
/// Otherwise the next one could begin before a waiter wakes.
static RESTS: AtomicBool = AtomicBool::new(false);

/// Where automatic collections run.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// On the thread of the package.
    Package,
    /// On the main thread.
    Main,
    /// On the thread of the program that next looks for pending calls.
    Any,
}

impl Place {
    pub const ALL: [Self; 3] = [Self::Package, Self::Main, Self::Any];
}

/// The state of the request to a thread of the program: see the [module's page](self).
static REQUEST: AtomicU8 = AtomicU8::new(NONE);
const NONE: u8 = 0;
const MADE: u8 = 1;
const RUNS: u8 = 2;

/// The newest thread of the package. A thread is attached while it has the lock, so no thread forks
/// meanwhile.
static PACKAGE_THREAD: Mutex<Option<Thread>> = Mutex::new(None);

/// Wakes the package's thread: automatic collections are enabled again, or the thread shall end.
/// The calling thread is attached.
pub fn wake() {
    if let Some(thread) = &*PACKAGE_THREAD.lock().unwrap_or_else(PoisonError::into_inner) {
        thread.unpark();
    }
}

/// Whether this thread runs an automatic collection.
pub fn is_current() -> bool {
    // Relaxed: each thread looks for its own number.
    COLLECTS.load(Ordering::Relaxed) == thread_number()
}

/// Whether another thread runs an automatic collection.
pub fn runs_elsewhere() -> bool {
    // Acquire: a thread that sees the end sees that the flag of the collection is free.
    let thread = COLLECTS.load(Ordering::Acquire);
    thread != 0 && thread != thread_number()
}

/// In the child of a fork, on its only thread.
pub fn after_fork() {
    // Relaxed: the process has one thread.
    WAITERS.store(0, Ordering::Relaxed);
    REQUEST.store(NONE, Ordering::Relaxed);
    if runs_elsewhere() {
        COLLECTS.store(0, Ordering::Relaxed);
    }
}

/// Waits, detached, until no other thread runs an automatic collection, or for so long.
///
/// # Safety
///
/// This thread is attached.
pub unsafe fn wait(time: Duration) {
    // Relaxed, here and below: the package's thread reads a hint.
    WAITERS.fetch_add(1, Ordering::Relaxed);
    // SAFETY: as the caller says.
    unsafe { sleep(time, || !runs_elsewhere()) };
    WAITERS.fetch_sub(1, Ordering::Relaxed);
}

/// Whether a thread waits for the end of the automatic collection, to collect then.
pub fn is_wanted_elsewhere() -> bool {
    // Relaxed: a hint, and the caller looks again.
    WAITERS.load(Ordering::Relaxed) != 0
}

/// Waits, detached, until `is_over`, which is asked often.
///
/// # Safety
///
/// This thread is attached.
pub unsafe fn look_often(is_over: &mut dyn FnMut() -> bool) {
    // SAFETY: as the caller says.
    unsafe { while !sleep_and_look(REST, || std::thread::sleep(POLL), &mut *is_over) {} }
}

/// Waits, detached, until `is_over` or for so long. Returns the last answer.
///
/// # Safety
///
/// This thread is attached.
pub unsafe fn sleep(time: Duration, is_over: impl Fn() -> bool) -> bool {
    // SAFETY: as the caller says.
    unsafe { sleep_and_look(time, || std::thread::sleep(POLL), is_over) }
}

/// As [`sleep`]. `nap` sleeps until the next look.
///
/// # Safety
///
/// This thread is attached.
unsafe fn sleep_and_look(
    time: Duration,
    mut nap: impl FnMut(),
    mut is_over: impl FnMut() -> bool,
) -> bool {
    let end = Instant::now() + time;
    // SAFETY: as the caller says.
    unsafe {
        let thread = PyEval_SaveThread();
        let mut over = is_over();
        while !over && Instant::now() < end {
            nap();
            over = is_over();
        }
        PyEval_RestoreThread(thread);
        over
    }
}

/// The outermost function of the package's thread. Its `self` is the thread's number.
///
/// # Safety
///
/// The interpreter calls it on an attached thread, and the package is active.
pub unsafe extern "C" fn run(number: *mut PyObject, _: *mut PyObject) -> *mut PyObject {
    // SAFETY: as the caller says. The main interpreter exists while a thread is attached to it, or
    // comes back to it.
    unsafe {
        let number = PyLong_AsUnsignedLongLong(number);
        let Some(interpreter) = collection::heap().map(|heap| heap.model().interpreter) else {
            return python::none();
        };
        let is_over = || !switch::shall_run(number);
        // While another collection runs, this one would do nothing.
        let begins = || switch::runs() && !Collecting::is_taken(interpreter) && due(interpreter);
        *PACKAGE_THREAD.lock().unwrap_or_else(PoisonError::into_inner) =
            Some(std::thread::current());
        let (mut time, mut last) = (POLL, 0);
        let mut nap = || {
            // Relaxed: a hint.
            let new = pressure::new_objects(interpreter).load(Ordering::Relaxed);
            time = if new == last { (time * 2).min(IDLE) } else { POLL };
            last = new;
            std::thread::park_timeout(if switch::runs() { time } else { DISABLED });
        };
        loop {
            let ends = || is_over() || begins();
            while !sleep_and_look(Duration::from_secs(1), &mut nap, ends) {}
            if is_over() {
                break;
            }
            let place = switch::place();
            let is_done = if place != Place::Package {
                request(interpreter, place, is_over)
            } else if let Some(result) = collect_here() {
                if result.is_null() {
                    report();
                } else {
                    Py_DECREF(result);
                }
                true
            } else {
                false
            };
            // Relaxed: this thread has written it, or `REQUEST` has shown it that of another one.
            if RESTS.swap(false, Ordering::Relaxed) || !is_done {
                sleep(REST, is_over);
            }
        }
        python::none()
    }
}

/// An automatic collection on this thread. Returns its result; null: an error is set. `None`: an
/// older thread collects.
///
/// # Safety
///
/// This thread is attached, no error is set, and the package was imported.
unsafe fn collect_here() -> Option<*mut PyObject> {
    // Relaxed: nothing is read on the strength of it. An older thread may collect.
    let (free, here) = (0, thread_number());
    COLLECTS.compare_exchange(free, here, Ordering::Relaxed, Ordering::Relaxed).ok()?;
    // SAFETY: as the caller says.
    let result = unsafe { switch::collect_automatically() };
    // Relaxed: a hint. A waiter that is missed waits for one more collection.
    let has_waiters = WAITERS.load(Ordering::Relaxed) != 0;
    RESTS.store(has_waiters || result.is_null(), Ordering::Relaxed);
    // Release: see `runs_elsewhere`.
    COLLECTS.store(0, Ordering::Release);
    Some(result)
}

/// Requests a collection of a thread of the program, and waits, detached, until it has ended, or
/// until `is_over` or the place changes before it has begun. `false`: the interpreter's queue of
/// calls is full.
///
/// # Safety
///
/// This thread is attached.
unsafe fn request(
    interpreter: *mut c::PyInterpreterState,
    place: Place,
    is_over: impl Fn() -> bool,
) -> bool {
    // Relaxed, but for the end: the call's queue orders what the threads see.
    if REQUEST.compare_exchange(NONE, MADE, Ordering::Relaxed, Ordering::Relaxed).is_err() {
        // An older thread of the package has requested one.
        return false;
    }
    let flags = if place == Place::Main { c::SS_PENDING_MAIN } else { 0 };
    // SAFETY: as the caller says, and the interpreter exists.
    let is_added = unsafe {
        let place = std::ptr::without_provenance_mut(place as usize);
        c::_PyEval_AddPendingCall(interpreter, Some(requested), place, flags as c_int) == 0
    };
    if !is_added {
        REQUEST.store(NONE, Ordering::Relaxed);
        return false;
    }
    let has_ended = || {
        let given_up = (is_over() || switch::place() != place)
            && REQUEST.compare_exchange(MADE, NONE, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        // Acquire: see `requested`.
        given_up || REQUEST.load(Ordering::Acquire) == NONE
    };
    // SAFETY: as the caller says.
    unsafe { while !sleep(Duration::from_secs(1), has_ended) {} }
    true
}

/// The pending call. The interpreter calls it on an attached thread.
unsafe extern "C" fn requested(place: *mut c_void) -> c_int {
    // Relaxed: see `request`.
    if place.addr() != switch::place() as usize
        || REQUEST.compare_exchange(MADE, RUNS, Ordering::Relaxed, Ordering::Relaxed).is_err()
    {
        // The request was given up, or made before a fork. The call for another place may still be
        // pending.
        return 0;
    }
    // SAFETY: as the caller says. A request is made only after the import.
    let result = unsafe { collect_here() };
    // Release: the package's thread sees `RESTS`.
    REQUEST.store(NONE, Ordering::Release);
    let Some(result) = result else { return 0 };
    if !result.is_null() {
        // SAFETY: the reference is this function's.
        unsafe { Py_DECREF(result) };
        return 0;
    }
    // SAFETY: an error is set.
    unsafe {
        if PyErr_ExceptionMatches(PyExc_RecursionError) != 0 {
            // The thread has no room for calls now. A collection is still due.
            PyErr_Clear();
        } else if PyErr_ExceptionMatches(PyExc_Warning) != 0 {
            report();
        } else {
            return -1;
        }
    }
    0
}

/// Reports the error of an automatic collection, for example a warning that is an error.
///
/// # Safety
///
/// This thread is attached, and an error is set.
unsafe fn report() {
    let text = c"Exception ignored in an automatic collection of standstill_gc";
    // SAFETY: as the caller says.
    unsafe { python::unraisable(text, null_mut()) };
}

/// CPython's rule for automatic collections: more new objects than the threshold, and at least a
/// quarter of the live ones. 3.14 also wants that the memory of the process has grown.
///
/// # Safety
///
/// The interpreter exists.
pub unsafe fn due(interpreter: *mut c::PyInterpreterState) -> bool {
    // SAFETY: as the caller says. Threads change the number by atomic operations. The others change
    // rarely, and any of their values will do. CPython writes them without atomic operations
    // (`gc.set_threshold`, its own collections), and reads them so while others write.
    unsafe {
        let state = &raw mut (*interpreter).gc;
        let new = pressure::new_objects(interpreter);
        let young = new.load(Ordering::Relaxed);
        let number = |of| AtomicI32::from_ptr(of).load(Ordering::Relaxed);
        let threshold = number(&raw mut (*state).young.threshold);
        let next = number(&raw mut (*state).old[0].threshold);
        let live = AtomicIsize::from_ptr(&raw mut (*state).long_lived_total);
        let live = live.load(Ordering::Relaxed);
        if threshold == 0 || young <= threshold {
            return false;
        }
        if next == 0 {
            return true;
        }
        if (young as isize) < live / 4 {
            return false;
        }
        cfg!(py315) || grown(new, threshold)
    }
}

/// KiB of memory when the last automatic collection was due.
static LAST_MEMORY: AtomicI64 = AtomicI64::new(0);

/// The collection that was due last has not taken place: the growth that made it due counts still.
pub fn forget_growth() {
    // Relaxed: see `grown`.
    LAST_MEMORY.store(0, Ordering::Relaxed);
}

/// Whether the memory of the process has grown by a tenth, and by 128 KiB, since this function has
/// last said so, or many objects were made in the meantime. Otherwise the new objects are counted
/// from 0 again.
fn grown(new: &AtomicI32, threshold: c_int) -> bool {
    /// Objects that were made since then, without those that `new` counts.
    static PASSED: AtomicI64 = AtomicI64::new(0);
    // Relaxed: one thread asks.
    let (last, passed) = (LAST_MEMORY.load(Ordering::Relaxed), PASSED.load(Ordering::Relaxed));
    let Some(now) = memory() else { return true };
    if passed > i64::from(threshold) * 40 || now - last > (last / 10).max(128) {
        LAST_MEMORY.store(now, Ordering::Relaxed);
        PASSED.store(0, Ordering::Relaxed);
        return true;
    }
    PASSED.fetch_add(i64::from(new.swap(0, Ordering::Relaxed)), Ordering::Relaxed);
    false
}

/// KiB of memory that the process uses.
fn memory() -> Option<i64> {
    let text = std::fs::read_to_string("/proc/self/statm").ok()?;
    Some(text.split(' ').nth(1)?.parse::<i64>().ok()? * 4)
}
