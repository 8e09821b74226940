//! The functions of the extension module. The Python package around it has the documentation for
//! users.

use std::collections::HashSet;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicI64, AtomicIsize, Ordering};
use std::time::{Duration, Instant};

use pyo3_ffi::{
    METH_FASTCALL, METH_NOARGS, METH_O, Py_DECREF, Py_None, Py_mod_exec, Py_mod_gil,
    Py_mod_multiple_interpreters, Py_ssize_t, PyBool_FromLong, PyErr_Occurred, PyErr_SetString,
    PyEval_RestoreThread, PyEval_SaveThread, PyFloat_AsDouble, PyFloat_FromDouble,
    PyInterpreterState_Get, PyInterpreterState_Main, PyList_Append, PyList_New, PyLong_AsSsize_t,
    PyLong_AsUnsignedLongLong, PyLong_FromLongLong, PyLong_FromUnsignedLongLong, PyMethodDef,
    PyMethodDefPointer, PyModuleDef, PyModuleDef_HEAD_INIT, PyModuleDef_Slot, PyObject,
    PyObject_CallFunction, PySequence_Fast, PyUnicode_FromStringAndSize,
};

use crate::checks::{self, Expectations, symbol};
use crate::collection::{self, Outcome, new_reference, put_all};
use crate::layout as c;
use crate::model::Python;
use crate::pages::Pages;
use crate::pressure;
use crate::stop::StopFunctions;
use crate::traversals::Known;

/// The model of the main interpreter, if this thread runs in it.
fn model() -> Result<Python, String> {
    // SAFETY: this thread is attached.
    let (interpreter, main) = unsafe { (PyInterpreterState_Get(), PyInterpreterState_Main()) };
    if interpreter != main {
        return Err("subinterpreters remain with CPython's collector".into());
    }
    // SAFETY: this thread is attached, and the world runs.
    unsafe { checks::run(&Expectations::tested()) }?;
    let stop = StopFunctions {
        // SAFETY: the functions have these types in all tested versions.
        stop: unsafe {
            std::mem::transmute::<*mut c_void, unsafe extern "C" fn(*mut c::PyInterpreterState)>(
                symbol(c"_PyEval_StopTheWorld")?,
            )
        },
        // SAFETY: as above.
        start: unsafe {
            std::mem::transmute::<*mut c_void, unsafe extern "C" fn(*mut c::PyInterpreterState)>(
                symbol(c"_PyEval_StartTheWorld")?,
            )
        },
    };
    // SAFETY: as above.
    let clear_weak = unsafe {
        std::mem::transmute::<*mut c_void, crate::weak::ClearRef>(symbol(c"_PyWeakref_ClearRef")?)
    };
    // SAFETY: this thread is attached, and the arguments match the format.
    let known = unsafe {
        let metaclass = (&raw mut pyo3_ffi::PyType_Type).cast();
        let class = PyObject_CallFunction(metaclass, c"s(){}".as_ptr(), c"probe".as_ptr());
        if class.is_null() {
            pyo3_ffi::PyErr_Clear();
            return Err("no class can be created".into());
        }
        let known = Known::new(class.cast());
        Py_DECREF(class);
        known
    };
    Ok(Python::new(interpreter.cast(), stop, clear_weak, known))
}

/// A text of the interpreter.
///
/// # Safety
///
/// This thread is attached.
unsafe fn text(text: &str) -> *mut PyObject {
    // SAFETY: the bytes are valid UTF-8.
    unsafe { PyUnicode_FromStringAndSize(text.as_ptr().cast::<c_char>(), text.len() as Py_ssize_t) }
}

/// # Safety
///
/// This thread is attached.
unsafe fn none() -> *mut PyObject {
    // SAFETY: as the caller says.
    unsafe { new_reference(Py_None()) }
}

/// `activate()`: checks the interpreter, and makes the heap. Returns the reason why it cannot, or
/// `None`.
unsafe extern "C" fn activate(_: *mut PyObject, _: *mut PyObject) -> *mut PyObject {
    // SAFETY: the interpreter calls it on an attached thread.
    if !unsafe { pressure::prepare() } {
        return std::ptr::null_mut();
    }
    let result = model().and_then(|model| match collection::heap() {
        Some(_) => Ok(()),
        None => collection::open(model),
    });
    // SAFETY: the interpreter calls it on an attached thread.
    unsafe {
        match result {
            Ok(()) => none(),
            Err(reason) => text(&reason),
        }
    }
}

/// `check(name)`: runs the checks with one wrong expectation, for tests. `None`: with none. Returns
/// the reason of the check that has failed, or `None`.
unsafe extern "C" fn check(_: *mut PyObject, name: *mut PyObject) -> *mut PyObject {
    // SAFETY: the interpreter calls it on an attached thread.
    unsafe {
        let mut expectations = Expectations::tested();
        if name != Py_None() {
            let mut length = 0;
            let bytes = pyo3_ffi::PyUnicode_AsUTF8AndSize(name, &raw mut length);
            if bytes.is_null() {
                return std::ptr::null_mut();
            }
            let bytes = std::slice::from_raw_parts(bytes.cast::<u8>(), length as usize);
            let wrong = std::str::from_utf8(bytes).ok().and_then(Expectations::wrong);
            let Some(wrong) = wrong else {
                let why = c"there is no expectation of this name";
                PyErr_SetString(pyo3_ffi::PyExc_ValueError, why.as_ptr());
                return std::ptr::null_mut();
            };
            expectations = wrong;
        }
        match checks::run(&expectations) {
            Ok(()) => none(),
            Err(reason) => text(&reason),
        }
    }
}

/// `collect(generation, threads, expected, deferring)`: `threads` 0 means all. `expected` is
/// `None`, or a sequence of addresses for the checked mode. `deferring` is `None`, or the
/// dictionary of threads in blocks of `defer` for an automatic collection. Returns a dictionary of
/// figures.
unsafe extern "C" fn collect(
    _: *mut PyObject,
    arguments: *mut *mut PyObject,
    count: Py_ssize_t,
) -> *mut PyObject {
    // SAFETY: the interpreter calls it with so many arguments, on an attached thread.
    unsafe {
        if count != 4 {
            let why = c"collect() takes four arguments";
            PyErr_SetString(pyo3_ffi::PyExc_TypeError, why.as_ptr());
            return std::ptr::null_mut();
        }
        let [generation, threads] = [0, 1].map(|at| PyLong_AsSsize_t(*arguments.add(at)));
        if !PyErr_Occurred().is_null() {
            return std::ptr::null_mut();
        }
        if !(0..=2).contains(&generation) || threads < 0 {
            let why = c"invalid generation, or a negative number of threads";
            PyErr_SetString(pyo3_ffi::PyExc_ValueError, why.as_ptr());
            return std::ptr::null_mut();
        }
        let Ok(expected) = addresses(*arguments.add(2)) else { return std::ptr::null_mut() };
        let threads = if threads == 0 { usize::MAX } else { threads as usize };
        let deferring = *arguments.add(3);
        if deferring != Py_None() && pyo3_ffi::PyDict_Check(deferring) == 0 {
            PyErr_SetString(pyo3_ffi::PyExc_TypeError, c"a dictionary is needed".as_ptr());
            return std::ptr::null_mut();
        }
        let deferring = NonNull::new(deferring).filter(|dict| dict.as_ptr() != Py_None());
        figures(&collection::collect(generation as usize, threads, expected, deferring))
    }
}

/// The addresses in a sequence of integers; `None` of `None`. An error is set if it fails.
///
/// # Safety
///
/// This thread is attached.
unsafe fn addresses(sequence: *mut PyObject) -> Result<Option<HashSet<usize>>, ()> {
    // SAFETY: as the caller says.
    unsafe {
        if sequence == Py_None() {
            return Ok(None);
        }
        let list = PySequence_Fast(sequence, c"a sequence of addresses is needed".as_ptr());
        if list.is_null() {
            return Err(());
        }
        let mut all = HashSet::new();
        for at in 0..pyo3_ffi::PySequence_Size(list) {
            let item = pyo3_ffi::PySequence_GetItem(list, at);
            if !item.is_null() {
                all.insert(PyLong_AsUnsignedLongLong(item) as usize);
                Py_DECREF(item);
            }
        }
        Py_DECREF(list);
        if PyErr_Occurred().is_null() { Ok(Some(all)) } else { Err(()) }
    }
}

/// # Safety
///
/// This thread is attached.
unsafe fn figures(outcome: &Outcome) -> *mut PyObject {
    let number = |number: usize| {
        // SAFETY: as the caller says.
        unsafe { PyLong_FromLongLong(number as i64) }
    };
    let seconds = |time: Duration| {
        // SAFETY: as the caller says.
        unsafe { PyFloat_FromDouble(time.as_secs_f64()) }
    };
    // SAFETY: as the caller says.
    unsafe {
        let mut entries = vec![
            (c"collected", number(outcome.collected)),
            (c"uncollectable", number(outcome.uncollectable)),
            (c"duration", seconds(outcome.duration)),
            (c"abandoned", outcome.abandoned.as_deref().map_or_else(|| none(), |why| text(why))),
            (c"ran", PyBool_FromLong(c_int::from(outcome.report.is_some()).into())),
        ];
        if let Some(report) = &outcome.report {
            let stop = |at: usize| report.stops.get(at).copied().unwrap_or_default();
            entries.extend([
                (c"candidates", number(report.candidates)),
                (c"unreachable", number(report.unreachable)),
                (c"finalized", number(report.finalized)),
                (c"resurrected", number(report.resurrected)),
                (c"overvisited", number(report.overvisited)),
                (c"threads", number(report.workers)),
                (c"time_to_stop", seconds(report.time_to_stop)),
                (c"find", seconds(stop(0))),
                (c"recheck", seconds(stop(1))),
            ]);
        }
        put_all(pyo3_ffi::PyDict_New(), &entries)
    }
}

/// Set to end the current or the next wait.
static WAKE: AtomicBool = AtomicBool::new(false);

/// Waits, detached, until `is_over` or for so long. Returns the last answer. An error is set if
/// `seconds` is no number.
///
/// # Safety
///
/// This thread is attached.
unsafe fn wait(seconds: *mut PyObject, mut is_over: impl FnMut() -> bool) -> *mut PyObject {
    // SAFETY: as the caller says.
    unsafe {
        let seconds = PyFloat_AsDouble(seconds);
        if !PyErr_Occurred().is_null() {
            return std::ptr::null_mut();
        }
        let end = Instant::now() + Duration::try_from_secs_f64(seconds).unwrap_or_default();
        let thread = PyEval_SaveThread();
        let mut over = is_over();
        // Relaxed: a request to look again.
        while !over && Instant::now() < end && !WAKE.swap(false, Ordering::Relaxed) {
            std::thread::sleep(POLL);
            over = is_over();
        }
        PyEval_RestoreThread(thread);
        PyBool_FromLong(c_int::from(over).into())
    }
}

/// `wait_until_due(seconds)`: waits, detached, until an automatic collection is due by CPython's
/// rule, or for so long. Returns whether one is due.
unsafe extern "C" fn wait_until_due(_: *mut PyObject, seconds: *mut PyObject) -> *mut PyObject {
    let Some(heap) = collection::heap() else {
        // SAFETY: the interpreter calls it on an attached thread.
        return unsafe { PyBool_FromLong(0) };
    };
    let interpreter = heap.model().interpreter;
    // SAFETY: as above. The main interpreter exists while a thread is in this function.
    unsafe { wait(seconds, || due(interpreter)) }
}

/// `pause(seconds)`: waits, detached.
unsafe extern "C" fn pause(_: *mut PyObject, seconds: *mut PyObject) -> *mut PyObject {
    // SAFETY: the interpreter calls it on an attached thread.
    unsafe { wait(seconds, || false) }
}

/// `wake()`: ends a wait.
unsafe extern "C" fn wake(_: *mut PyObject, _: *mut PyObject) -> *mut PyObject {
    WAKE.store(true, Ordering::Relaxed);
    // SAFETY: the interpreter calls it on an attached thread.
    unsafe { none() }
}

/// `hold_up(wanted)`: whether automatic collections may hold threads up, from now on.
unsafe extern "C" fn hold_up(_: *mut PyObject, wanted: *mut PyObject) -> *mut PyObject {
    // SAFETY: the interpreter calls it on an attached thread.
    unsafe {
        let wanted = pyo3_ffi::PyObject_IsTrue(wanted);
        if wanted < 0 {
            return std::ptr::null_mut();
        }
        pressure::want(wanted != 0);
        none()
    }
}

/// `held_up()`: the pauses of threads that were held up.
unsafe extern "C" fn held_up(_: *mut PyObject, _: *mut PyObject) -> *mut PyObject {
    let (count, total, longest) = pressure::figures();
    // SAFETY: the interpreter calls it on an attached thread.
    unsafe {
        let entries = [
            (c"count", PyLong_FromUnsignedLongLong(count)),
            (c"total", PyFloat_FromDouble(total.as_secs_f64())),
            (c"max", PyFloat_FromDouble(longest.as_secs_f64())),
        ];
        put_all(pyo3_ffi::PyDict_New(), &entries)
    }
}

/// How often the number of new objects is looked at.
const POLL: Duration = Duration::from_millis(2);

/// CPython's rule for automatic collections: more new objects than the threshold, and than a
/// quarter of the live ones. 3.14 also wants that the memory of the process has grown.
///
/// # Safety
///
/// The interpreter exists.
unsafe fn due(interpreter: *mut c::PyInterpreterState) -> bool {
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

/// Whether the memory of the process has grown by a tenth since this function has last said so, or
/// many objects were made in the meantime. Otherwise the new objects are counted from 0 again.
fn grown(new: &AtomicI32, threshold: c_int) -> bool {
    /// KiB of memory when the last automatic collection was due.
    static LAST: AtomicI64 = AtomicI64::new(0);
    /// Objects that were made since then, without those that `new` counts.
    static PASSED: AtomicI64 = AtomicI64::new(0);
    // Relaxed: one thread asks.
    let (last, passed) = (LAST.load(Ordering::Relaxed), PASSED.load(Ordering::Relaxed));
    let Some(now) = memory() else { return true };
    if passed > i64::from(threshold) * 40 || now - last > (last / 10).max(128) {
        LAST.store(now, Ordering::Relaxed);
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

/// `settle()`: has this thread process its delayed decrements at the next function call.
unsafe extern "C" fn settle(_: *mut PyObject, _: *mut PyObject) -> *mut PyObject {
    // SAFETY: the interpreter calls it on an attached thread.
    unsafe {
        c::ss_settle(pyo3_ffi::PyThreadState_Get().cast());
        none()
    }
}

/// `forked()`: in the child of a fork.
unsafe extern "C" fn forked(_: *mut PyObject, _: *mut PyObject) -> *mut PyObject {
    let result = collection::forked(collection::thread_number());
    // SAFETY: the interpreter calls it on an attached thread.
    unsafe {
        match result {
            Ok(()) => none(),
            Err(reason) => text(&reason),
        }
    }
}

/// `blocks()`: the addresses of all tracked objects, as the collector enumerates them.
unsafe extern "C" fn blocks(_: *mut PyObject, _: *mut PyObject) -> *mut PyObject {
    // SAFETY: the interpreter calls it on an attached thread. Nothing is allocated in the stop but
    // memory of Rust.
    unsafe {
        let Some(heap) = collection::heap() else { return none() };
        let model = heap.model();
        let mut found: Vec<usize> = Vec::new();
        (model.stop.stop)(model.interpreter);
        if let Ok(pages) = Pages::list(model.interpreter, model.prefix) {
            for &page in pages.pages() {
                pages.each(page, |object| {
                    if crate::counts::is_tracked(object.cast().as_ptr()) {
                        found.push(object.addr().get());
                    }
                });
            }
        }
        (model.stop.start)(model.interpreter);
        let list = PyList_New(0);
        for address in found {
            let number = PyLong_FromUnsignedLongLong(address as u64);
            let failed = number.is_null() || PyList_Append(list, number) < 0;
            pyo3_ffi::Py_XDECREF(number);
            if failed {
                pyo3_ffi::Py_XDECREF(list);
                return std::ptr::null_mut();
            }
        }
        list
    }
}

/// `checked_results()`: the figures of the checked mode.
unsafe extern "C" fn checked_results(_: *mut PyObject, _: *mut PyObject) -> *mut PyObject {
    let results =
        collection::heap().and_then(|heap| Some(*heap.model().checked.results.lock().ok()?));
    let results = results.unwrap_or_default();
    // SAFETY: the interpreter calls it on an attached thread.
    unsafe {
        let number = |number: usize| PyLong_FromLongLong(number as i64);
        let entries = [
            (c"compared", number(results.compared)),
            (c"missed", number(results.missed)),
            (c"wrong", number(results.wrong)),
        ];
        put_all(pyo3_ffi::PyDict_New(), &entries)
    }
}

const fn method(name: &'static CStr, meth: PyMethodDefPointer, flags: c_int) -> PyMethodDef {
    PyMethodDef { ml_name: name.as_ptr(), ml_meth: meth, ml_flags: flags, ml_doc: std::ptr::null() }
}

/// A table for the interpreter, which does not change it.
struct Table<T>(std::cell::UnsafeCell<T>);

// SAFETY: the interpreter synchronises its accesses, and this module has none.
unsafe impl<T> Sync for Table<T> {}

static METHODS: Table<[PyMethodDef; 13]> = Table(std::cell::UnsafeCell::new([
    method(c"activate", PyMethodDefPointer { PyCFunction: activate }, METH_NOARGS),
    method(c"check", PyMethodDefPointer { PyCFunction: check }, METH_O),
    method(c"collect", PyMethodDefPointer { PyCFunctionFast: collect }, METH_FASTCALL),
    method(c"wait_until_due", PyMethodDefPointer { PyCFunction: wait_until_due }, METH_O),
    method(c"pause", PyMethodDefPointer { PyCFunction: pause }, METH_O),
    method(c"wake", PyMethodDefPointer { PyCFunction: wake }, METH_NOARGS),
    method(c"hold_up", PyMethodDefPointer { PyCFunction: hold_up }, METH_O),
    method(c"held_up", PyMethodDefPointer { PyCFunction: held_up }, METH_NOARGS),
    method(c"settle", PyMethodDefPointer { PyCFunction: settle }, METH_NOARGS),
    method(c"forked", PyMethodDefPointer { PyCFunction: forked }, METH_NOARGS),
    method(c"blocks", PyMethodDefPointer { PyCFunction: blocks }, METH_NOARGS),
    method(c"checked_results", PyMethodDefPointer { PyCFunction: checked_results }, METH_NOARGS),
    PyMethodDef::zeroed(),
]));

unsafe extern "C" fn execute(_: *mut PyObject) -> c_int {
    0
}

static SLOTS: Table<[PyModuleDef_Slot; 4]> = Table(std::cell::UnsafeCell::new([
    PyModuleDef_Slot { slot: Py_mod_exec, value: execute as *mut c_void },
    PyModuleDef_Slot {
        slot: Py_mod_multiple_interpreters,
        value: pyo3_ffi::Py_MOD_PER_INTERPRETER_GIL_SUPPORTED,
    },
    PyModuleDef_Slot { slot: Py_mod_gil, value: pyo3_ffi::Py_MOD_GIL_NOT_USED },
    PyModuleDef_Slot { slot: 0, value: std::ptr::null_mut() },
]));

static MODULE: Table<PyModuleDef> = Table(std::cell::UnsafeCell::new(PyModuleDef {
    m_base: PyModuleDef_HEAD_INIT,
    m_name: c"_standstill_gc".as_ptr(),
    m_doc: c"The collector behind standstill_gc.".as_ptr(),
    m_size: 0,
    m_methods: METHODS.0.get().cast(),
    m_slots: SLOTS.0.get().cast(),
    m_traverse: None,
    m_clear: None,
    m_free: None,
}));

/// Makes the module.
///
/// # Safety
///
/// The interpreter calls it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn PyInit__standstill_gc() -> *mut PyObject {
    // SAFETY: the table lives for ever.
    unsafe { pyo3_ffi::PyModuleDef_Init(MODULE.0.get()) }
}
