//! One collection of the interpreter's objects, with all that CPython's own collection promises.
//!
//! 1. The flag `interp->gc.collecting` is set. If it is set already, nothing happens.
//! 2. `gc.callbacks` are called with "start".
//! 3. standstill collects: see [`model`](crate::model).
//! 4. The statistics of `gc.get_stats()` and the number of live objects are updated.
//! 5. `gc.callbacks` are called with "stop".
//!
//! If standstill abandons the collection, the caller has CPython collect. Nothing was cleared then,
//! unless a child has searched: the parts before are cleared, and in no statistics.
//!
//! # The heap
//!
//! There is one heap for the process, for the main interpreter. It lives until the process ends.
//! Two events replace it: the tables are full, because the allocator's segments have moved much;
//! and a fork, because the threads of the old one do not exist in the child. The heap knows no
//! object between collections. The old one is never freed, because another thread may use it. If
//! another thread collected during the fork, its garbage and its due callbacks leak in the child.
//! The results of the checked mode begin anew with the heap.

use std::borrow::Cow;
use std::collections::HashSet;
use std::ffi::{CStr, c_int};
use std::sync::atomic::{AtomicIsize, AtomicPtr, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use pyo3_ffi::{
    Py_DECREF, Py_INCREF, Py_ssize_t, PyDict_New, PyDict_SetItemString, PyErr_Occurred,
    PyList_GetItemRef, PyList_Size, PyLong_FromLongLong, PyObject, PyUnicode_FromString,
};
use standstill::model::ModelHeap;
use standstill::safepoint::SlowStopKind;
use standstill::{Collect, CollectionReport, Heap, Pacing};

use crate::layout as c;
use crate::model::{Python, StopTimes};
use crate::pressure::{self, Pressure};
use crate::stop::Collecting;
use crate::{automatic, child, counts, python, switch};

/// Bytes of the allocator's segments for which the heap has tables: the most that it can have. The
/// tables take a fifteenth of that, in addresses, and memory for segments in use only.
const RESERVE: usize = 128 << 30;

/// Granules of the pages with objects, below which one thread collects: to wake others costs more
/// than they save. These are some 40,000 objects, the interpreter's own included.
const SERIAL_BELOW: usize = 150_000;

/// The heap. Null: the package is not active.
static HEAP: AtomicPtr<ModelHeap<Python>> = AtomicPtr::new(std::ptr::null_mut());

/// The thread that collects, by the interpreter's number for it; 0: none.
static COLLECTOR: AtomicU64 = AtomicU64::new(0);

/// The figures of one collection.
pub struct Outcome {
    /// Calls of finalizers.
    pub finalized: usize,
    pub collected: usize,
    pub uncollectable: usize,
    /// Why standstill has cleared nothing.
    pub abandoned: Option<Cow<'static, str>>,
    pub report: Option<CollectionReport>,
    pub duration: Duration,
    pub stop_times: StopTimes,
}

impl Outcome {
    /// Nothing was done.
    fn nothing() -> Self {
        Self {
            finalized: 0,
            collected: 0,
            uncollectable: 0,
            abandoned: None,
            report: None,
            duration: Duration::ZERO,
            stop_times: StopTimes::default(),
        }
    }
}

/// The heap of the process, if the package is active.
pub fn heap() -> Option<&'static ModelHeap<Python>> {
    // SAFETY: a heap is never freed.
    unsafe { HEAP.load(Ordering::Acquire).as_ref() }
}

/// The bytes for which the heap has tables: not more than the process may have addresses (`ulimit
/// -v`). Larger tables would take the addresses that the program needs.
fn reserve() -> usize {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the system writes to the structure.
    let is_known = unsafe { libc::getrlimit(libc::RLIMIT_AS, &raw mut limit) } == 0;
    if is_known { RESERVE.min(limit.rlim_cur as usize) } else { RESERVE }
}

/// Makes the heap of the process.
pub fn open(model: Python) -> Result<(), String> {
    let workers = std::thread::available_parallelism().map_or(1, usize::from);
    let builder = Heap::builder().name("python").reserve(reserve()).workers(workers);
    let builder = builder.pacing(Pacing::manual()).serial_below(SERIAL_BELOW);
    let heap = builder.build_with(model).map_err(|error| error.to_string())?;
    // The package warns once of each reason to abandon a collection.
    heap.on_unraisable(|_| {});
    // The time of a collection is in `stats()`. The package's thread collects for the program, and
    // a program that collects by itself knows that its finalizers are slow.
    heap.on_slow_stop(|report| {
        if report.kind != SlowStopKind::HeldUp {
            standstill::stderr::line(format_args!("standstill: heap 'python': {report}"));
        }
    });
    // It lives until the process ends.
    HEAP.store(Box::into_raw(Box::new(heap)), Ordering::Release);
    Ok(())
}

/// Replaces the heap by a new one.
fn reopen(heap: &ModelHeap<Python>) -> Result<(), String> {
    let model = heap.model();
    let (known, streams) = (model.known.again(), model.streams);
    open(Python::new(model.interpreter, model.stop, model.clear_weak, known, streams))
}

/// In the child of a fork, on its only thread.
pub fn forked(thread: u64) -> Result<(), String> {
    let Some(heap) = heap() else { return Ok(()) };
    let collector = COLLECTOR.load(Ordering::Relaxed);
    if collector != 0 && collector != thread {
        // The collecting thread does not exist here. Its collection is over. The claimed objects
        // stay alive: no thread drops the references of the claim.
        COLLECTOR.store(0, Ordering::Relaxed);
        pressure::lost();
        let (interpreter, prefix) = (heap.model().interpreter, heap.model().prefix);
        // SAFETY: the interpreter exists, and the flag's owner does not. The interpreter has
        // stopped the world for the fork, and this is the only thread.
        unsafe {
            counts::show_all(interpreter, prefix);
            Collecting::end_of_lost_thread(interpreter);
        }
    }
    reopen(heap)
}

/// Collects on this thread. See the [module's page](self).
///
/// # Safety
///
/// This thread is attached to the main interpreter, and no error is set.
pub unsafe fn collect(
    generation: usize,
    threads: usize,
    expected: Option<HashSet<usize>>,
) -> Outcome {
    let Some(heap) = heap() else { return Outcome::nothing() };
    if automatic::is_current() && !switch::runs() {
        // A block of `defer` has begun since it was due.
        return Outcome::nothing();
    }
    let model = heap.model();
    let interpreter = model.interpreter;
    // SAFETY: as the caller says: the main interpreter exists.
    let Some(collecting) = (unsafe { Collecting::try_begin(interpreter) }) else {
        return Outcome::nothing();
    };
    COLLECTOR.store(thread_number(), Ordering::Relaxed);
    // SAFETY: as the caller says.
    let debug = unsafe {
        call_back(interpreter, c"start", generation, &Outcome::nothing());
        i64::from((*interpreter).gc.debug)
    };
    if debug & c::SS_DEBUG_STATS != 0 {
        // SAFETY: as the caller says.
        unsafe { python::write_line(&format!("gc: collecting generation {generation}...")) };
    }
    let begun = Instant::now();
    // SAFETY: as the caller says.
    let pressure = switch::runs().then(|| unsafe { Pressure::begin(interpreter) });
    model.checked.expect(expected);
    drop(model.take_stop_times());
    model.begin(generation, debug & c::SS_DEBUG_SAVEALL != 0);
    // SAFETY: as the caller says.
    let in_child = unsafe { child::is_wanted(interpreter, debug) };
    let what = Collect::full().wait(false).workers(threads).forked(in_child);
    let search = |what| match heap.try_attach() {
        Ok(mut mutator) => mutator.try_collect(what).map_err(|error| error.to_string()),
        Err(error) => Err(error.to_string()),
    };
    let mut result = search(what);
    let mut is_given_up = child::is_given_up();
    if !is_given_up && model.checked.note() {
        model.begin(generation, debug & c::SS_DEBUG_SAVEALL != 0);
        result = search(what);
        is_given_up = child::is_given_up();
    }
    if let (true, false, Ok(report)) = (in_child, is_given_up, &result) {
        // SAFETY: as the caller says.
        unsafe { child::ended(interpreter, report) };
    }
    drop(pressure);
    // SAFETY: as the caller says.
    unsafe { python::report_error() };
    model.checked.expect(None);
    let mut outcome = Outcome {
        duration: begun.elapsed(),
        stop_times: model.take_stop_times(),
        ..Outcome::nothing()
    };
    match result {
        Ok(_) if is_given_up => {
            // SAFETY: as the caller says: the interpreter exists.
            let new = unsafe { pressure::new_objects(interpreter) };
            child::take_back(new, model.counted.load(Ordering::Relaxed));
        }
        Ok(report) => {
            outcome.abandoned.clone_from(&report.abandoned);
            // The objects that `judge` has kept are in neither number of the interpreter's.
            outcome.finalized = model.figures.finalized.swap(0, Ordering::Relaxed);
            outcome.collected = model.figures.cleared.swap(0, Ordering::Relaxed);
            outcome.uncollectable = model.figures.uncollectable.swap(0, Ordering::Relaxed);
            outcome.report = Some(report);
        }
        Err(why) => outcome.abandoned = Some(why.into()),
    }
    if outcome.abandoned.as_deref().is_some_and(|why| why.contains("HeapBuilder::reserve")) {
        // Segments that the allocator has given back fill the tables. A new heap has none.
        outcome.abandoned = Some(match reopen(heap) {
            Ok(()) => "the tables were full, and are new for the next collection".into(),
            Err(why) => why.into(),
        });
    }
    // SAFETY: as the caller says. Only the collecting thread writes these fields.
    unsafe {
        if debug & c::SS_DEBUG_STATS != 0 {
            let (n, m) = (outcome.uncollectable, outcome.collected);
            let seconds = outcome.duration.as_secs_f64();
            python::write_line(&format!(
                "gc: done, {} unreachable, {n} uncollectable, {seconds:.4}s elapsed",
                n + m
            ));
        }
        if outcome.abandoned.is_none() {
            note(model, generation, &outcome);
        }
        call_back(interpreter, c"stop", generation, &outcome);
    }
    COLLECTOR.store(0, Ordering::Relaxed);
    drop(collecting);
    outcome
}

/// The interpreter's number for this thread.
pub fn thread_number() -> u64 {
    // SAFETY: it only reads a register or the thread's own data.
    unsafe { pyo3_ffi::PyThread_get_thread_ident() as u64 }
}

/// Updates the interpreter's statistics.
///
/// # Safety
///
/// This thread collects, and is attached.
unsafe fn note(model: &Python, generation: usize, outcome: &Outcome) {
    let Some(report) = &outcome.report else { return };
    // SAFETY: as the caller says.
    unsafe {
        let state = &raw mut (*model.interpreter).gc;
        let blocks = model.figures.blocks.load(Ordering::Relaxed);
        let live = (blocks + report.resurrected).saturating_sub(report.unreachable);
        // Relaxed: the package's thread reads it at any time, and any of its values will do there
        // (`automatic::due`).
        AtomicIsize::from_ptr(&raw mut (*state).long_lived_total)
            .store(live as Py_ssize_t, Ordering::Relaxed);
        let statistics = python::statistics(state, generation);
        add(&raw mut (*statistics).collections, 1);
        add(&raw mut (*statistics).collected, outcome.collected);
        add(&raw mut (*statistics).uncollectable, outcome.uncollectable);
        #[cfg(py315)]
        {
            add(&raw mut (*statistics).candidates, report.candidates);
            // Relaxed: as in `add`.
            let duration = AtomicU64::from_ptr((&raw mut (*statistics).duration).cast());
            let before = f64::from_bits(duration.load(Ordering::Relaxed));
            let sum = before + outcome.duration.as_secs_f64();
            duration.store(sum.to_bits(), Ordering::Relaxed);
        }
        #[cfg(not(py315))]
        {
            (*state).deferred_count = 0;
        }
        // One allocation of debug builds for each reference that was added without the interpreter.
        python::add_to_total(model.figures.added.swap(0, Ordering::Relaxed));
    }
}

/// Adds to a number that only collecting threads write, and that any thread may read
/// (`gc.get_stats`).
///
/// # Safety
///
/// The number exists, and this thread collects.
unsafe fn add(number: *mut Py_ssize_t, by: usize) {
    // SAFETY: as the caller says.
    let number = unsafe { AtomicIsize::from_ptr(number) };
    // Relaxed, and a load and a store: no other thread writes it now, and any of its values will do
    // for a reader.
    number.store(number.load(Ordering::Relaxed) + by as Py_ssize_t, Ordering::Relaxed);
}

/// Calls the functions in `gc.callbacks`.
///
/// # Safety
///
/// This thread is attached, and no error is set.
unsafe fn call_back(
    interpreter: *mut c::PyInterpreterState,
    phase: &CStr,
    generation: usize,
    outcome: &Outcome,
) {
    // SAFETY: as the caller says. Each new reference is dropped.
    unsafe {
        let callbacks: *mut PyObject = (*interpreter).gc.callbacks.cast();
        if callbacks.is_null() || PyList_Size(callbacks) <= 0 {
            return;
        }
        let (info, name) = (info(generation, outcome), PyUnicode_FromString(phase.as_ptr()));
        if info.is_null() || name.is_null() {
            let text = c"Exception ignored while invoking gc callbacks";
            python::unraisable(text, std::ptr::null_mut());
        } else {
            let mut at = 0;
            while at < PyList_Size(callbacks) {
                let callback = PyList_GetItemRef(callbacks, at);
                at += 1;
                if callback.is_null() {
                    pyo3_ffi::PyErr_Clear();
                    break;
                }
                let arguments = [name, info];
                let result = pyo3_ffi::PyObject_Vectorcall(
                    callback,
                    arguments.as_ptr(),
                    arguments.len(),
                    std::ptr::null_mut(),
                );
                if result.is_null() {
                    let text = c"Exception ignored while calling GC callback %R";
                    python::unraisable(text, callback);
                } else {
                    Py_DECREF(result);
                }
                Py_DECREF(callback);
            }
        }
        pyo3_ffi::Py_XDECREF(info);
        pyo3_ffi::Py_XDECREF(name);
        debug_assert!(PyErr_Occurred().is_null());
    }
}

/// The dictionary for callbacks. Null: no memory.
///
/// # Safety
///
/// This thread is attached.
unsafe fn info(generation: usize, outcome: &Outcome) -> *mut PyObject {
    // SAFETY: as the caller says.
    unsafe {
        let info = PyDict_New();
        let number = |number: usize| PyLong_FromLongLong(number as i64);
        let info = put_all(
            info,
            &[
                (c"generation", number(generation)),
                (c"collected", number(outcome.collected)),
                (c"uncollectable", number(outcome.uncollectable)),
            ],
        );
        #[cfg(py315)]
        let info = {
            let candidates = outcome.report.as_ref().map_or(0, |report| report.candidates);
            let duration = pyo3_ffi::PyFloat_FromDouble(outcome.duration.as_secs_f64());
            put_all(info, &[(c"candidates", number(candidates)), (c"duration", duration)])
        };
        info
    }
}

/// Puts entries into a dictionary, and drops the values. Returns the dictionary; null: an error is
/// set, and the dictionary was dropped.
///
/// # Safety
///
/// This thread is attached. `dict` is a new reference, or null. Each value is one, too.
pub unsafe fn put_all(dict: *mut PyObject, entries: &[(&CStr, *mut PyObject)]) -> *mut PyObject {
    let mut failed = dict.is_null();
    // SAFETY: as the caller says.
    unsafe {
        for &(key, value) in entries {
            failed = failed || value.is_null();
            failed = failed || PyDict_SetItemString(dict, key.as_ptr(), value) as c_int != 0;
            pyo3_ffi::Py_XDECREF(value);
        }
        if failed {
            pyo3_ffi::Py_XDECREF(dict);
            return std::ptr::null_mut();
        }
    }
    dict
}

/// Adds a reference to a constant, and returns it.
///
/// # Safety
///
/// This thread is attached.
pub unsafe fn new_reference(op: *mut PyObject) -> *mut PyObject {
    // SAFETY: as the caller says.
    unsafe { Py_INCREF(op) };
    op
}
