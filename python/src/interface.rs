//! The functions of the extension module. The Python package around it has the documentation for
//! users.

use std::collections::HashSet;
use std::ffi::{CStr, c_int, c_void};
use std::sync::atomic::Ordering;
use std::time::Duration;

use pyo3_ffi::{
    METH_FASTCALL, METH_NOARGS, METH_O, Py_DECREF, Py_None, Py_mod_exec, Py_mod_gil,
    Py_mod_multiple_interpreters, Py_ssize_t, PyBool_FromLong, PyDict_GetItemString,
    PyDict_SetItemString, PyErr_Occurred, PyErr_SetString, PyFloat_AsDouble, PyFloat_FromDouble,
    PyInterpreterState_Get, PyInterpreterState_GetDict, PyInterpreterState_Main, PyList_Append,
    PyList_New, PyLong_AsSsize_t, PyLong_AsUnsignedLongLong, PyLong_FromLongLong,
    PyLong_FromUnsignedLongLong, PyMethodDef, PyMethodDefPointer, PyModuleDef,
    PyModuleDef_HEAD_INIT, PyModuleDef_Slot, PyObject, PyObject_CallFunction, PySequence_Fast,
};
use standstill::{CollectionReport, Distribution};

use crate::automatic::{self, Place};
use crate::checks::{self, Expectations, symbol};
use crate::collection::{self, put_all};
use crate::finalizers::Streams;
use crate::layout as c;
use crate::model::Python;
use crate::pages::Pages;
use crate::python::{none, text};
use crate::records::{self, Record};
use crate::stop::StopFunctions;
use crate::traversals::Known;
use crate::{block, child, pressure, switch};

/// The model of the main interpreter, if this thread runs in it.
fn model() -> Result<Python, String> {
    // SAFETY: this thread is attached.
    let (interpreter, main) = unsafe { (PyInterpreterState_Get(), PyInterpreterState_Main()) };
    if interpreter != main {
        return Err("subinterpreters remain with CPython's collector".into());
    }
    // SAFETY: this thread is attached, and the world runs.
    unsafe { checks::run(&Expectations::tested()) }?;
    #[cfg(py315)]
    crate::foreign::prepare()?;
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
    // SAFETY: this thread is attached.
    let streams = unsafe { Streams::find() };
    Ok(Python::new(interpreter.cast(), stop, clear_weak, known, streams))
}

/// # Safety
///
/// This thread is attached.
unsafe fn truth(truth: bool) -> *mut PyObject {
    // SAFETY: as the caller says.
    unsafe { PyBool_FromLong(c_int::from(truth).into()) }
}

/// The key of the entry that [`open`] makes in the interpreter's dictionary.
const OPENED: &CStr = c"standstill_gc";

/// Makes the heap, unless there is one.
///
/// A program may end the interpreter, and initialize it again. Its address is the same then, and
/// its dictionary is another one. The heap and the state of the package belong to the first one,
/// with objects that do not exist any more.
fn open(model: Python) -> Result<(), String> {
    // SAFETY: this thread is attached to the interpreter.
    unsafe {
        let entries = PyInterpreterState_GetDict(PyInterpreterState_Get());
        if entries.is_null() {
            return Err("the interpreter has no dictionary".into());
        }
        if collection::heap().is_none() {
            // The entry first: a heap without it would be that of an earlier interpreter.
            if PyDict_SetItemString(entries, OPENED.as_ptr(), Py_None()) != 0 {
                pyo3_ffi::PyErr_Clear();
                return Err("there is no memory for an entry of the interpreter".into());
            }
            collection::open(model)?;
        } else if PyDict_GetItemString(entries, OPENED.as_ptr()).is_null() {
            return Err("it was active before the interpreter was initialized again".into());
        }
    }
    Ok(())
}

/// `activate()`: checks the interpreter, and makes the heap. Returns the reason why it cannot, or
/// `None`.
unsafe extern "C" fn activate(_: *mut PyObject, _: *mut PyObject) -> *mut PyObject {
    let result = model().and_then(open);
    // A type of the main interpreter: threads of others are not asked.
    // SAFETY: the interpreter calls it on an attached thread.
    if result.is_ok() && !unsafe { pressure::prepare() } {
        return std::ptr::null_mut();
    }
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

/// `collect(generation, threads, expected)`: `threads` 0 means all. `expected` is `None`, or a
/// sequence of addresses for the checked mode. Returns a dictionary of figures.
unsafe extern "C" fn collect(
    _: *mut PyObject,
    arguments: *mut *mut PyObject,
    count: Py_ssize_t,
) -> *mut PyObject {
    // SAFETY: the interpreter calls it with so many arguments, on an attached thread.
    unsafe {
        if count != 3 {
            let why = c"collect() takes three arguments";
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
        figures(&records::keep(collection::collect(generation as usize, threads, expected)))
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
unsafe fn figures(record: &Record) -> *mut PyObject {
    let outcome = &record.outcome;
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
            (c"ran", truth(outcome.report.is_some())),
            (c"automatic", truth(record.automatic)),
            (c"ended", seconds(record.ended)),
        ];
        if let Some(report) = &outcome.report {
            let stop = |at: usize| report.stops.get(at).copied().unwrap_or_default();
            let (find, recheck) = match (&report.child, &report.no_child) {
                (None, None) => (stop(0), stop(1)),
                _ => (report.stops.iter().sum(), Duration::ZERO),
            };
            let times = &outcome.stop_times;
            entries.extend([
                (c"candidates", number(report.candidates)),
                (c"unreachable", number(report.unreachable)),
                (c"finalized", number(outcome.finalized)),
                (c"resurrected", number(report.resurrected)),
                (c"overvisited", number(report.overvisited)),
                (c"threads", number(report.workers)),
                (c"time_to_stop", seconds(times.to_stop)),
                (
                    c"late_thread",
                    report.late_thread.as_deref().map_or_else(|| none(), |it| text(it)),
                ),
                (c"child", child_of(report)),
                (c"no_child", report.no_child.as_deref().map_or_else(|| none(), |it| text(it))),
                (c"pauses", list_of(times.pauses.iter().map(|&pause| seconds(pause)))),
                (c"waited", seconds(times.waited)),
                (c"find", seconds(find)),
                (c"recheck", seconds(recheck)),
            ]);
        }
        put_all(pyo3_ffi::PyDict_New(), &entries)
    }
}

/// The figures of the child that has searched, or `None`.
///
/// # Safety
///
/// This thread is attached.
unsafe fn child_of(report: &CollectionReport) -> *mut PyObject {
    // SAFETY: as the caller says.
    unsafe {
        let Some(child) = &report.child else { return none() };
        let number = |number: usize| PyLong_FromLongLong(number as i64);
        let entries = [
            (c"took", PyFloat_FromDouble(child.took.as_secs_f64())),
            (c"proposed", number(child.proposed)),
            (c"parts", number(child.parts)),
        ];
        put_all(pyo3_ffi::PyDict_New(), &entries)
    }
}

/// `records()`: a list of the figures of the last collections, and the distribution of the pauses
/// of all of them.
unsafe extern "C" fn records(_: *mut PyObject, _: *mut PyObject) -> *mut PyObject {
    let all = records::all();
    let pauses = || all.iter().flat_map(|it| it.outcome.stop_times.pauses.iter().copied());
    let of = Distribution::of(pauses());
    let times = [
        (c"p50", of.p50),
        (c"p90", of.p90),
        (c"p99", of.p99),
        (c"p999", of.p999),
        (c"max", of.max),
        (c"total", pauses().sum()),
    ];
    // SAFETY: the interpreter calls it on an attached thread.
    unsafe {
        let mut entries: Vec<_> =
            times.iter().map(|(key, it)| (*key, PyFloat_FromDouble(it.as_secs_f64()))).collect();
        entries.push((c"count", PyLong_FromUnsignedLongLong(of.count)));
        let pauses = put_all(pyo3_ffi::PyDict_New(), &entries);
        list_of([list_of(all.iter().map(|record| figures(record))), pauses].into_iter())
    }
}

/// `forget_records()`: removes these figures.
unsafe extern "C" fn forget_records(_: *mut PyObject, _: *mut PyObject) -> *mut PyObject {
    records::forget();
    // SAFETY: the interpreter calls it on an attached thread.
    unsafe { none() }
}

/// `is_due()`: whether an automatic collection is due by CPython's rule.
unsafe extern "C" fn is_due(_: *mut PyObject, _: *mut PyObject) -> *mut PyObject {
    // SAFETY: the interpreter calls it on an attached thread, so the interpreter exists.
    unsafe {
        truth(collection::heap().is_some_and(|heap| automatic::due(heap.model().interpreter)))
    }
}

/// `runs_elsewhere()`: whether another thread runs an automatic collection.
unsafe extern "C" fn runs_elsewhere(_: *mut PyObject, _: *mut PyObject) -> *mut PyObject {
    // SAFETY: the interpreter calls it on an attached thread.
    unsafe { truth(automatic::runs_elsewhere()) }
}

/// `wait_for_automatic(seconds)`: waits, detached, until no other thread runs an automatic
/// collection, or for so long.
unsafe extern "C" fn wait_for_automatic(_: *mut PyObject, seconds: *mut PyObject) -> *mut PyObject {
    // SAFETY: the interpreter calls it on an attached thread.
    unsafe {
        let seconds = PyFloat_AsDouble(seconds);
        if !PyErr_Occurred().is_null() {
            return std::ptr::null_mut();
        }
        let seconds = Duration::try_from_secs_f64(seconds).unwrap_or_default();
        automatic::wait(seconds);
        none()
    }
}

/// `installed()`
unsafe extern "C" fn installed(_: *mut PyObject, _: *mut PyObject) -> *mut PyObject {
    // SAFETY: the interpreter calls it on an attached thread.
    unsafe { truth(switch::installed()) }
}

/// `isenabled()`
unsafe extern "C" fn isenabled(_: *mut PyObject, _: *mut PyObject) -> *mut PyObject {
    // SAFETY: the interpreter calls it on an attached thread.
    unsafe { truth(switch::is_enabled()) }
}

/// `set_enabled(enabled)`
unsafe extern "C" fn set_enabled(_: *mut PyObject, enabled: *mut PyObject) -> *mut PyObject {
    // SAFETY: the interpreter calls it on an attached thread.
    unsafe {
        let enabled = pyo3_ffi::PyObject_IsTrue(enabled);
        if enabled < 0 {
            return std::ptr::null_mut();
        }
        switch::set_enabled(enabled != 0);
        none()
    }
}

/// `install(threads, place, child_from)`: `threads` 0 means all. `place` is an index of
/// [`Place::ALL`], or -1: the place stays. `child_from` is a number of objects, 0 for never, or -1:
/// it stays.
unsafe extern "C" fn install(
    _: *mut PyObject,
    arguments: *mut *mut PyObject,
    count: Py_ssize_t,
) -> *mut PyObject {
    // SAFETY: the interpreter calls it with so many arguments, on an attached thread.
    unsafe {
        if count != 3 {
            let why = c"install() takes three arguments";
            PyErr_SetString(pyo3_ffi::PyExc_TypeError, why.as_ptr());
            return std::ptr::null_mut();
        }
        let [threads, place, child_from] = [0, 1, 2].map(|at| PyLong_AsSsize_t(*arguments.add(at)));
        let place = usize::try_from(place).ok().and_then(|at| Place::ALL.get(at).copied());
        if PyErr_Occurred().is_null() && switch::install(threads.max(0) as usize, place) {
            if let Ok(from) = usize::try_from(child_from) {
                // Relaxed: the next collection reads it.
                child::FROM.store(from, Ordering::Relaxed);
            }
            none()
        } else {
            std::ptr::null_mut()
        }
    }
}

/// `uninstall(seconds)`: `None` means that it waits for the package's thread for ever.
unsafe extern "C" fn uninstall(_: *mut PyObject, seconds: *mut PyObject) -> *mut PyObject {
    // SAFETY: the interpreter calls it on an attached thread.
    unsafe { switch::uninstall(seconds) }
}

/// `kept()`: the first tuple of the first call of `adopt`, or `None`.
unsafe extern "C" fn kept(_: *mut PyObject, _: *mut PyObject) -> *mut PyObject {
    // SAFETY: the interpreter calls it on an attached thread.
    unsafe { switch::kept() }
}

/// `adopt(own, newest, main)`: two tuples, and the number of the main thread. See
/// [`switch::adopt`].
unsafe extern "C" fn adopt(
    _: *mut PyObject,
    arguments: *mut *mut PyObject,
    count: Py_ssize_t,
) -> *mut PyObject {
    // SAFETY: the interpreter calls it with so many arguments, on an attached thread.
    unsafe {
        if count != 3 {
            let why = c"adopt() takes three arguments";
            PyErr_SetString(pyo3_ffi::PyExc_TypeError, why.as_ptr());
            return std::ptr::null_mut();
        }
        let [own, newest, main] = [0, 1, 2].map(|at| *arguments.add(at));
        let main = PyLong_AsUnsignedLongLong(main);
        if PyErr_Occurred().is_null()
            && switch::is_tuple_of_six(own)
            && switch::is_tuple_of_six(newest)
            && switch::adopt(own, newest, main)
        {
            none()
        } else {
            std::ptr::null_mut()
        }
    }
}

/// `after_fork()`: in the child of a fork.
unsafe extern "C" fn after_fork(_: *mut PyObject, _: *mut PyObject) -> *mut PyObject {
    // SAFETY: the interpreter calls it on the only thread of the process, which is attached.
    unsafe { switch::after_fork() }
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

/// `settle()`: has this thread process its delayed decrements at the next function call.
unsafe extern "C" fn settle(_: *mut PyObject, _: *mut PyObject) -> *mut PyObject {
    // SAFETY: the interpreter calls it on an attached thread.
    unsafe {
        c::ss_settle(pyo3_ffi::PyThreadState_Get().cast());
        none()
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
        list_of(found.into_iter().map(|address| PyLong_FromUnsignedLongLong(address as u64)))
    }
}

/// A list of new references. Null: an error is set.
///
/// # Safety
///
/// This thread is attached. Each item is a new reference; null: an error is set.
unsafe fn list_of(items: impl Iterator<Item = *mut PyObject>) -> *mut PyObject {
    // SAFETY: as the caller says.
    unsafe {
        let list = PyList_New(0);
        let mut failed = list.is_null();
        for item in items {
            failed = failed || item.is_null() || PyList_Append(list, item) < 0;
            pyo3_ffi::Py_XDECREF(item);
        }
        if failed {
            pyo3_ffi::Py_XDECREF(list);
            return std::ptr::null_mut();
        }
        list
    }
}

/// `keep_suspects(addresses)`: CPython has found the objects at these addresses to be alive.
unsafe extern "C" fn keep_suspects(_: *mut PyObject, alive: *mut PyObject) -> *mut PyObject {
    // SAFETY: the interpreter calls it on an attached thread.
    unsafe {
        let Ok(alive) = addresses(alive) else { return std::ptr::null_mut() };
        if let (Some(heap), Some(alive)) = (collection::heap(), alive) {
            heap.model().checked.keep_suspects(&alive);
        }
        none()
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

/// An entry of a table of functions.
pub const fn method(name: &'static CStr, meth: PyMethodDefPointer, flags: c_int) -> PyMethodDef {
    PyMethodDef { ml_name: name.as_ptr(), ml_meth: meth, ml_flags: flags, ml_doc: std::ptr::null() }
}

/// A table for the interpreter, which does not change it.
pub struct Table<T>(pub std::cell::UnsafeCell<T>);

// SAFETY: the interpreter synchronises its accesses, and this module has none.
unsafe impl<T> Sync for Table<T> {}

static METHODS: Table<[PyMethodDef; 22]> = Table(std::cell::UnsafeCell::new([
    method(c"activate", PyMethodDefPointer { PyCFunction: activate }, METH_NOARGS),
    method(c"check", PyMethodDefPointer { PyCFunction: check }, METH_O),
    method(c"collect", PyMethodDefPointer { PyCFunctionFast: collect }, METH_FASTCALL),
    method(c"records", PyMethodDefPointer { PyCFunction: records }, METH_NOARGS),
    method(c"forget_records", PyMethodDefPointer { PyCFunction: forget_records }, METH_NOARGS),
    method(c"is_due", PyMethodDefPointer { PyCFunction: is_due }, METH_NOARGS),
    method(c"runs_elsewhere", PyMethodDefPointer { PyCFunction: runs_elsewhere }, METH_NOARGS),
    method(c"wait_for_automatic", PyMethodDefPointer { PyCFunction: wait_for_automatic }, METH_O),
    method(c"installed", PyMethodDefPointer { PyCFunction: installed }, METH_NOARGS),
    method(c"isenabled", PyMethodDefPointer { PyCFunction: isenabled }, METH_NOARGS),
    method(c"set_enabled", PyMethodDefPointer { PyCFunction: set_enabled }, METH_O),
    method(c"install", PyMethodDefPointer { PyCFunctionFast: install }, METH_FASTCALL),
    method(c"uninstall", PyMethodDefPointer { PyCFunction: uninstall }, METH_O),
    method(c"kept", PyMethodDefPointer { PyCFunction: kept }, METH_NOARGS),
    method(c"adopt", PyMethodDefPointer { PyCFunctionFast: adopt }, METH_FASTCALL),
    method(c"after_fork", PyMethodDefPointer { PyCFunction: after_fork }, METH_NOARGS),
    method(c"held_up", PyMethodDefPointer { PyCFunction: held_up }, METH_NOARGS),
    method(c"settle", PyMethodDefPointer { PyCFunction: settle }, METH_NOARGS),
    method(c"blocks", PyMethodDefPointer { PyCFunction: blocks }, METH_NOARGS),
    method(c"keep_suspects", PyMethodDefPointer { PyCFunction: keep_suspects }, METH_O),
    method(c"checked_results", PyMethodDefPointer { PyCFunction: checked_results }, METH_NOARGS),
    PyMethodDef::zeroed(),
]));

unsafe extern "C" fn execute(module: *mut PyObject) -> c_int {
    // SAFETY: the interpreter calls it on an attached thread.
    unsafe {
        let block = block::make_type();
        // Null: the error stays.
        let result = pyo3_ffi::PyModule_AddObjectRef(module, c"Block".as_ptr(), block);
        pyo3_ffi::Py_XDECREF(block);
        result
    }
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
