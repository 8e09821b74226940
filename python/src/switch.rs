//! The switch: which collector the process uses, and whether automatic collections run.
//!
//! Python code cannot hold this state: an exception of a signal or of another thread can arrive
//! between any two of its instructions. Each change is one native call, so such an exception
//! arrives before the change or after it.
//!
//! # States
//!
//! | field | meaning |
//! |---|---|
//! | `installed` | the functions of `gc` are the package's |
//! | `enabled` | the program wants automatic collections, by `gc.enable` and `gc.disable` |
//! | `blocks` | the open blocks of `defer`: the address of each block's object, and the thread that
//! began the block |
//!
//! *Covered* means that the package is installed or that a block is open.
//!
//! - The package's automatic collections run if it is installed, `enabled` is set, and no block is
//!   open.
//! - While the state is covered, CPython's own flag is off, and `enabled` has the program's wish.
//!   The call that covers the state reads the flag into `enabled`, and turns the flag off. The
//!   call that uncovers it turns the flag on again, if `enabled` is set.
//! - While the state is not covered, CPython's own flag has the wish, and `enabled` means nothing.
//!
//! A program that has called CPython's own `gc.enable` in a block, where the package is not
//! installed, gets automatic collections in the block. That wish stays after the block.
//!
//! # Two locks
//!
//! | lock | held for | while it is held |
//! |---|---|---|
//! | [`STATE`] | each access to the three fields | the thread is attached, runs no Python, and does
//! not detach |
//! | [`Change`] | the whole of `install`, `uninstall` and an import | the thread may detach; an
//! audit hook may run Python |
//!
//! A fork stops the world first, so `STATE` is free in the child. `Change` may belong to a thread
//! that does not exist there. The child frees it, and sets the names of `gc` anew.
//!
//! | | changed by | read by |
//! |---|---|---|
//! | [`RUNS`] | the holder of `STATE` | any thread |
//! | [`WORKER`] | the holder of `Change` | the package's threads |
//! | [`PLACE`] | the holder of `Change` | the package's threads, and a thread that gets their
//! request |
//! | [`KEPT`] | the first import, once | any thread |
//! | [`NEWEST`], [`THREAD`], [`LIMIT`] | the holder of `Change` | the same |
//! | [`MAIN`] | the holder of `Change`; the child of a fork | the child of a fork |
//! | [`CHANGING`] | the holder of `Change`; the child of a fork | each thread, for its own number |
//!
//! All of these are atomics with relaxed accesses, but for the first store of `KEPT`: the lock
//! orders them, or the process has one thread, or the reader looks again.
//!
//! # In the child of a fork
//!
//! Only the forking thread exists. The blocks that other threads began are over: their ends change
//! nothing. If the package is installed, the child starts a thread of its own. If it cannot, the
//! package is not installed there.

use std::collections::BTreeMap;
use std::ffi::c_int;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use pyo3_ffi::{
    METH_NOARGS, Py_DECREF, Py_XDECREF, Py_ssize_t, PyCFunction_New, PyErr_GetRaisedException,
    PyErr_SetRaisedException, PyGC_Disable, PyGC_Enable, PyGC_IsEnabled,
    PyLong_FromUnsignedLongLong, PyMethodDef, PyMethodDefPointer, PyMutex, PyMutex_Lock,
    PyMutex_Unlock, PyObject, PyObject_CallOneArg, PyObject_GetAttrString, PyObject_SetAttrString,
    PyTuple_GetItem,
};

use crate::automatic::{self, Place};
use crate::collection::{self, new_reference, thread_number};
use crate::interface::{Table, method};
use crate::python;
use crate::signals::Blocked;

/// See the [module's page](self).
struct State {
    installed: bool,
    enabled: bool,
    blocks: BTreeMap<usize, u64>,
}

static STATE: Mutex<State> =
    Mutex::new(State { installed: false, enabled: false, blocks: BTreeMap::new() });

/// Whether automatic collections of the package run.
static RUNS: AtomicBool = AtomicBool::new(false);

/// The number of the package's thread that shall run; 0: none. Each other one ends.
static WORKER: AtomicU64 = AtomicU64::new(0);

/// The most threads of an automatic collection; 0: one for each core.
static LIMIT: AtomicUsize = AtomicUsize::new(0);

/// The place of automatic collections: an index of [`Place::ALL`].
static PLACE: AtomicUsize = AtomicUsize::new(0);

/// The main thread of this process.
static MAIN: AtomicU64 = AtomicU64::new(0);

/// The handle of the package's thread, or null.
static THREAD: AtomicPtr<PyObject> = AtomicPtr::new(null_mut());

/// A tuple: the functions of `gc` as they were at the first import ([`NAMES`]), the module `gc`,
/// and `_thread.start_joinable_thread`. Null before the first import.
static KEPT: AtomicPtr<PyObject> = AtomicPtr::new(null_mut());

/// A tuple of the Python package's newest module: its functions for `gc` ([`NAMES`]), for automatic
/// collections, and for the child of a fork.
static NEWEST: AtomicPtr<PyObject> = AtomicPtr::new(null_mut());

/// The functions of `gc` that the package replaces.
const NAMES: [&std::ffi::CStr; 4] = [c"collect", c"enable", c"disable", c"isenabled"];
/// The places of the other objects in [`KEPT`].
const GC: Py_ssize_t = 4;
const START: Py_ssize_t = 5;
/// The places of the other objects in [`NEWEST`].
const COLLECT_AUTOMATICALLY: Py_ssize_t = 4;
const AFTER_FORK: Py_ssize_t = 5;

impl State {
    fn is_covered(&self) -> bool {
        self.installed || !self.blocks.is_empty()
    }

    /// Before the package is installed or a block begins.
    ///
    /// # Safety
    ///
    /// This thread is attached.
    unsafe fn cover(&mut self) {
        if !self.installed {
            // SAFETY: as the caller says.
            let was_enabled = unsafe { PyGC_Disable() } != 0;
            self.enabled = was_enabled || (self.enabled && self.is_covered());
        }
    }

    /// After the package is no longer installed, or a block has ended.
    ///
    /// # Safety
    ///
    /// This thread is attached.
    unsafe fn uncover(&self) {
        if !self.is_covered() && self.enabled {
            // SAFETY: as the caller says.
            unsafe { PyGC_Enable() };
        }
    }
}

/// Reads or changes the state. The function runs no Python, and does not detach.
fn state<T>(function: impl FnOnce(&mut State) -> T) -> T {
    let mut state = STATE.lock().unwrap_or_else(PoisonError::into_inner);
    let result = function(&mut state);
    let runs = state.installed && state.enabled && state.blocks.is_empty();
    // Relaxed: a thread that waits for a change looks again, and `wake` shows it this one.
    let ran = RUNS.swap(runs, Ordering::Relaxed);
    if runs && !ran {
        automatic::wake();
    }
    result
}

/// Whether automatic collections of the package run. The thread may be detached.
pub fn runs() -> bool {
    // Relaxed: as in `state`.
    RUNS.load(Ordering::Relaxed)
}

/// Whether the package's thread with this number shall go on. The thread may be detached.
pub fn shall_run(worker: u64) -> bool {
    // Relaxed: the thread looks again.
    WORKER.load(Ordering::Relaxed) == worker
}

/// Where automatic collections run. The thread may be detached.
pub fn place() -> Place {
    // Relaxed: a collection that has been requested runs where it was requested.
    Place::ALL[PLACE.load(Ordering::Relaxed)]
}

/// Whether the package is installed.
///
/// # Safety
///
/// This thread is attached, as for all functions below.
pub unsafe fn installed() -> bool {
    state(|state| state.installed)
}

/// Whether the program wants automatic collections.
///
/// # Safety
///
/// This thread is attached.
pub unsafe fn is_enabled() -> bool {
    state(|state| {
        // SAFETY: as the caller says.
        let is_on = unsafe { PyGC_IsEnabled() } != 0;
        if state.installed { state.enabled } else { is_on || state.is_covered() && state.enabled }
    })
}

/// The program wants automatic collections, or no longer.
///
/// # Safety
///
/// This thread is attached.
pub unsafe fn set_enabled(enabled: bool) {
    state(|state| {
        state.enabled = enabled;
        // SAFETY: as the caller says.
        unsafe {
            if enabled {
                state.uncover();
            } else {
                PyGC_Disable();
            }
        }
    });
}

/// Begins a block of `defer`. `false`: it is open already.
///
/// # Safety
///
/// This thread is attached.
pub unsafe fn begin(block: usize) -> bool {
    state(|state| {
        let is_new = !state.blocks.contains_key(&block);
        if is_new {
            // SAFETY: as the caller says.
            unsafe { state.cover() };
            state.blocks.insert(block, thread_number());
        }
        is_new
    })
}

/// Ends a block of `defer`, if it is open.
///
/// # Safety
///
/// This thread is attached.
pub unsafe fn end(block: usize) {
    state(|state| {
        if state.blocks.remove(&block).is_some() {
            // SAFETY: as the caller says.
            unsafe { state.uncover() };
        }
    });
}

/// The right to change the names of `gc` and the package's thread. See the [module's page](self).
struct Change {
    /// References to objects that are dropped after the change: their destructors may be Python.
    dropped: Vec<*mut PyObject>,
}

static CHANGE: PyMutex = PyMutex::new();
/// The thread that has the right; 0: none.
static CHANGING: AtomicU64 = AtomicU64::new(0);

impl Change {
    /// Waits, detached, for other threads. `None`: this thread has the right already, and an audit
    /// hook calls.
    ///
    /// # Safety
    ///
    /// This thread is attached.
    unsafe fn begin() -> Option<Self> {
        // Relaxed: each thread looks for its own number.
        if CHANGING.load(Ordering::Relaxed) == thread_number() {
            return None;
        }
        // SAFETY: as the caller says. The mutex has interior mutability.
        unsafe { PyMutex_Lock((&raw const CHANGE).cast_mut()) };
        CHANGING.store(thread_number(), Ordering::Relaxed);
        Some(Self { dropped: Vec::new() })
    }

    /// In the child of a fork: takes the right from a thread that does not exist. Returns whether
    /// there was one.
    ///
    /// # Safety
    ///
    /// The process has one thread, and no thread has waited for the lock since the fork.
    unsafe fn lost() -> bool {
        // Relaxed, here and below: the process has one thread.
        let thread = CHANGING.load(Ordering::Relaxed);
        let is_lost = thread != 0 && thread != thread_number();
        if is_lost {
            CHANGING.store(0, Ordering::Relaxed);
        }
        if thread != thread_number() {
            // SAFETY: a `PyMutex` is one byte, and 0 is an unlocked one. As the caller says.
            let byte = unsafe { AtomicU8::from_ptr((&raw const CHANGE).cast_mut().cast()) };
            byte.store(0, Ordering::Relaxed);
        }
        is_lost
    }

    /// Replaces the functions of `gc` by those of [`KEPT`] or [`NEWEST`]. `false`: an error is set,
    /// and some of them are replaced.
    ///
    /// # Safety
    ///
    /// This thread is attached, no error is set, and the package was imported.
    unsafe fn name(&mut self, functions: &AtomicPtr<PyObject>) -> bool {
        // Relaxed: `KEPT` never changes after the import, and this thread has the right to read
        // `NEWEST`.
        let functions = functions.load(Ordering::Relaxed);
        let gc = KEPT.load(Ordering::Relaxed);
        // SAFETY: as the caller says. The tuples have these elements.
        unsafe {
            let gc = PyTuple_GetItem(gc, GC);
            for (at, name) in NAMES.iter().enumerate() {
                let old = PyObject_GetAttrString(gc, name.as_ptr());
                if old.is_null() {
                    // The program has deleted the name.
                    pyo3_ffi::PyErr_Clear();
                }
                self.dropped.push(old);
                let function = PyTuple_GetItem(functions, at as Py_ssize_t);
                if PyObject_SetAttrString(gc, name.as_ptr(), function) < 0 {
                    return false;
                }
            }
        }
        true
    }

    /// Starts the package's thread. `false`: an error is set.
    ///
    /// # Safety
    ///
    /// This thread is attached, no error is set, and the package was imported.
    unsafe fn start(&mut self) -> bool {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        // Relaxed: this thread has the right.
        let number = NUMBER.fetch_add(1, Ordering::Relaxed) + 1;
        // Relaxed: the thread begins after this.
        WORKER.store(number, Ordering::Relaxed);
        // SAFETY: as the caller says. The tuple has this element.
        let handle = unsafe {
            let number = PyLong_FromUnsignedLongLong(number);
            let run =
                if number.is_null() { null_mut() } else { PyCFunction_New(RUN.0.get(), number) };
            let start = PyTuple_GetItem(KEPT.load(Ordering::Relaxed), START);
            let handle = if run.is_null() {
                null_mut()
            } else {
                let _blocked = Blocked::new();
                PyObject_CallOneArg(start, run)
            };
            Py_XDECREF(run);
            Py_XDECREF(number);
            handle
        };
        if handle.is_null() {
            self.stop();
            return false;
        }
        // Relaxed: this thread has the right.
        self.dropped.push(THREAD.swap(handle, Ordering::Relaxed));
        true
    }

    /// The package's thread ends soon.
    fn stop(&self) {
        // Relaxed: the thread looks again. `unpark` shows this store to a thread that it wakes.
        WORKER.store(0, Ordering::Relaxed);
        automatic::wake();
    }
}

impl Drop for Change {
    fn drop(&mut self) {
        // Relaxed: see `begin`.
        CHANGING.store(0, Ordering::Relaxed);
        // SAFETY: `begin` has locked it on this thread, which is attached.
        unsafe { PyMutex_Unlock((&raw const CHANGE).cast_mut()) };
        for &object in &self.dropped {
            // SAFETY: the reference is this value's.
            unsafe { Py_XDECREF(object) };
        }
    }
}

static RUN: Table<PyMethodDef> = Table(std::cell::UnsafeCell::new(method(
    c"run",
    PyMethodDefPointer { PyCFunction: automatic::run },
    METH_NOARGS,
)));

/// Installs the package. 0 for `limit`, or `None` for `place`, changes nothing if it is installed.
/// `false`: an error is set, and nothing has changed.
///
/// # Safety
///
/// This thread is attached, and no error is set.
pub unsafe fn install(limit: usize, place: Option<Place>) -> bool {
    // SAFETY: as the caller says.
    unsafe {
        let Some(mut change) = Change::begin() else { return true };
        // Relaxed, here and below: this thread has the right, and so has each thread that reads
        // `LIMIT`.
        if KEPT.load(Ordering::Relaxed).is_null() {
            // An import that was interrupted is no import.
            return true;
        }
        if !installed() || limit != 0 {
            LIMIT.store(limit, Ordering::Relaxed);
        }
        if let Some(place) = place.or(if installed() { None } else { Some(Place::Package) }) {
            PLACE.store(place as usize, Ordering::Relaxed);
        }
        if installed() {
            return true;
        }
        if !change.start() {
            return false;
        }
        if !change.name(&NEWEST) {
            let error = PyErr_GetRaisedException();
            change.name(&KEPT);
            PyErr_SetRaisedException(error);
            change.stop();
            return false;
        }
        state(|state| {
            state.cover();
            state.installed = true;
        });
        true
    }
}

/// Gives all collections back to CPython's collector. Waits for the end of the package's thread,
/// for so many seconds if `seconds` is not `None`. A signal may interrupt the wait.
///
/// # Safety
///
/// This thread is attached, and no error is set.
pub unsafe fn uninstall(seconds: *mut PyObject) -> *mut PyObject {
    // SAFETY: as the caller says.
    unsafe {
        let Some(mut change) = Change::begin() else { return python::none() };
        if !installed() {
            return python::none();
        }
        let is_named = change.name(&KEPT);
        state(|state| {
            state.installed = false;
            state.uncover();
        });
        change.stop();
        // Relaxed: this thread has the right.
        let thread = THREAD.swap(null_mut(), Ordering::Relaxed);
        // Without the lock: a finalizer on the package's thread may need it.
        drop(change);
        let result = if !is_named {
            null_mut()
        } else if automatic::is_current() {
            python::none()
        } else {
            pyo3_ffi::PyObject_CallMethod(thread, c"join".as_ptr(), c"O".as_ptr(), seconds)
        };
        Py_XDECREF(thread);
        result
    }
}

/// The objects that the first import has given to [`adopt`], or `None`.
///
/// # Safety
///
/// This thread is attached.
pub unsafe fn kept() -> *mut PyObject {
    // Acquire: see `adopt`.
    let kept = KEPT.load(Ordering::Acquire);
    // SAFETY: as the caller says. The tuple is never dropped.
    unsafe { if kept.is_null() { python::none() } else { new_reference(kept) } }
}

/// An import of the Python package. Its functions are used from now on; `own` only if this is the
/// first import. `false`: an error is set.
///
/// # Safety
///
/// This thread is attached, no error is set, and the tuples have the elements that [`KEPT`] and
/// [`NEWEST`] say.
pub unsafe fn adopt(own: *mut PyObject, newest: *mut PyObject, main: u64) -> bool {
    // SAFETY: as the caller says.
    unsafe {
        let Some(mut change) = Change::begin() else { return true };
        if KEPT.load(Ordering::Relaxed).is_null() {
            // Release: a thread that reads the pointer sees the tuple.
            KEPT.store(new_reference(own), Ordering::Release);
        }
        // Relaxed: a thread that reads them has the right, or is alone.
        let old = NEWEST.swap(new_reference(newest), Ordering::Relaxed);
        change.dropped.push(old);
        MAIN.store(main, Ordering::Relaxed);
        !installed() || change.name(&NEWEST)
    }
}

/// An automatic collection, on this thread. Returns its result; null: an error is set.
///
/// # Safety
///
/// This thread is attached, no error is set, and the package was imported.
pub unsafe fn collect_automatically() -> *mut PyObject {
    // SAFETY: as the caller says.
    unsafe {
        let Some(change) = Change::begin() else { return python::none() };
        // Relaxed: this thread has the right.
        let functions = NEWEST.load(Ordering::Relaxed);
        let function = new_reference(PyTuple_GetItem(functions, COLLECT_AUTOMATICALLY));
        let limit = LIMIT.load(Ordering::Relaxed);
        drop(change);
        let result = pyo3_ffi::PyObject_CallFunction(function, c"n".as_ptr(), limit as Py_ssize_t);
        Py_DECREF(function);
        result
    }
}

/// In the child of a fork. See the [module's page](self). Returns the result of the newest module's
/// function.
///
/// # Safety
///
/// The process has one thread: this one. It is attached, and no error is set.
pub unsafe fn after_fork() -> *mut PyObject {
    let here = thread_number();
    // SAFETY: as the caller says.
    unsafe {
        let was_changing = Change::lost();
        automatic::after_fork();
        let heap = collection::forked(here);
        // Relaxed, here and below: the process has one thread.
        // The child of another thread than the main one ends with its thread, unless others run.
        let is_main = MAIN.swap(here, Ordering::Relaxed) == here;
        let (was_covered, was_installed) = state(|state| {
            let was = (state.is_covered(), state.installed);
            state.blocks.retain(|_, thread| *thread == here);
            was
        });
        let functions = NEWEST.load(Ordering::Relaxed);
        // If this thread has the right, an audit hook of `install` has forked. That call goes on.
        if (was_installed || was_changing)
            && !functions.is_null()
            && let Some(mut change) = Change::begin()
        {
            let has_thread = was_installed && is_main && heap.is_ok() && change.start();
            if !has_thread {
                pyo3_ffi::PyErr_Clear();
                change.stop();
            }
            if !change.name(if has_thread { &NEWEST } else { &KEPT }) {
                python::unraisable(c"Exception ignored in the child of a fork", null_mut());
            }
            state(|state| state.installed = has_thread);
        }
        if was_covered {
            state(|state| state.uncover());
        }
        if functions.is_null() {
            return python::none();
        }
        let reason = heap.map_or_else(|reason| python::text(&reason), |()| python::none());
        if reason.is_null() {
            return null_mut();
        }
        let result = PyObject_CallOneArg(PyTuple_GetItem(functions, AFTER_FORK), reason);
        Py_DECREF(reason);
        result
    }
}

/// Whether a tuple has so many elements. If not, an error is set.
///
/// # Safety
///
/// This thread is attached.
pub unsafe fn is_tuple_of_six(object: *mut PyObject) -> bool {
    // SAFETY: as the caller says.
    unsafe {
        let is =
            pyo3_ffi::PyTuple_Check(object) as c_int != 0 && pyo3_ffi::PyTuple_Size(object) == 6;
        if !is {
            let why = c"a tuple of six objects is needed";
            pyo3_ffi::PyErr_SetString(pyo3_ffi::PyExc_TypeError, why.as_ptr());
        }
        is
    }
}
