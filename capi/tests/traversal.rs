//! Every exported function is refused in a traverse handler, but for the safe list: S-126, S-127.
//!
//! The shared library is loaded as a program of another language would do it, and each symbol that
//! `symbols.txt` lists is called with as many pointers as any of them takes. A function that looks
//! at them before it refuses shows by what happens.

mod library;

use std::collections::BTreeSet;
use std::ffi::{CStr, c_int, c_void};
use std::path::PathBuf;
use std::ptr::null_mut;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use library::{Library, Pointer};
use standstill::Code;
use standstill::dynamic::{RawObject, VisitProc};
use standstill_capi::errors::standstill_misuse;
use standstill_capi::layout::PyTypeObject;

/// More arguments than any function takes; a callee looks at those it knows.
type Any = unsafe extern "C" fn(Pointer, Pointer, Pointer, Pointer) -> usize;

fn listed(file: &str) -> BTreeSet<String> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(file);
    let text = std::fs::read_to_string(&path)
        .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    text.lines().filter_map(|line| line.split_whitespace().next()).map(str::to_owned).collect()
}

static LIBRARY: Mutex<Option<Library>> = Mutex::new(None);
static SYMBOLS: Mutex<Vec<String>> = Mutex::new(Vec::new());
/// Codes of the reports since the last call.
static REPORTS: Mutex<Vec<c_int>> = Mutex::new(Vec::new());
/// Which function the next handler calls; `NONE`: none.
static NEXT: AtomicUsize = AtomicUsize::new(NONE);
const NONE: usize = usize::MAX;

unsafe extern "C" fn note(report: *const standstill_misuse, _: Pointer) {
    // SAFETY: a report, as the hook is given them.
    REPORTS.lock().unwrap().push(unsafe { (*report).code });
}

/// Something that is an object and a type, and may be written to.
fn scratch() -> *mut PyTypeObject {
    Box::into_raw(Box::new(PyTypeObject::named(c"test.Scratch")))
}

unsafe extern "C" fn traverse(_: *mut RawObject, _: VisitProc, _: Pointer) -> c_int {
    let next = NEXT.swap(NONE, SeqCst);
    if next == NONE {
        return 0;
    }
    let library = LIBRARY.lock().unwrap();
    let library = library.as_ref().unwrap();
    let target = scratch().cast::<c_void>();
    // SAFETY: whatever the function is, it refuses, or is one of those that look at an object or a
    // type.
    unsafe {
        library.function::<Any>(&SYMBOLS.lock().unwrap()[next])(target, target, target, target)
    };
    0
}

#[test]
fn s_126_s_127_every_function_is_refused_in_a_handler_but_the_safe_list() {
    let library = Library::load(&Library::build());
    let statics = ["_Type", "_NoneStruct"];
    let symbols: Vec<String> = listed("symbols.txt")
        .into_iter()
        .filter(|name| !name.contains("PyExc_") && !statics.iter().any(|end| name.ends_with(end)))
        .collect();
    assert!(symbols.len() > 100);
    let safe: BTreeSet<String> = listed("tests/conformance/safe_list.txt")
        .iter()
        .map(|name| match name.starts_with("standstill_") {
            true => name.clone(),
            false => format!("standstill_{name}"),
        })
        .collect();
    assert!(
        safe.iter().all(|name| symbols.contains(name)),
        "the safe list names what is not exported"
    );
    // SAFETY: the functions are of these types.
    unsafe {
        let initialize: unsafe extern "C" fn() = library.function("standstill_Py_Initialize");
        let set_hook: unsafe extern "C" fn(
            unsafe extern "C" fn(*const standstill_misuse, Pointer),
            Pointer,
        ) = library.function("standstill_set_misuse_hook");
        let ready: unsafe extern "C" fn(*mut PyTypeObject) -> c_int =
            library.function("standstill_PyType_Ready");
        let new: unsafe extern "C" fn(*mut PyTypeObject) -> *mut RawObject =
            library.function("standstill__PyObject_GC_New");
        let track: unsafe extern "C" fn(*mut RawObject) =
            library.function("standstill_PyObject_GC_Track");
        let collect: unsafe extern "C" fn() -> isize = library.function("standstill_PyGC_Collect");
        let error: unsafe extern "C" fn() -> *const std::ffi::c_char =
            library.function("standstill_error_message");
        let decref: unsafe extern "C" fn(*mut RawObject) = library.function("standstill_Py_DecRef");
        *SYMBOLS.lock().unwrap() = symbols.clone();
        initialize();
        set_hook(note, null_mut());
        let face = Box::leak(Box::new(PyTypeObject::named(c"test.Nosy")));
        face.tp_basicsize = size_of::<RawObject>() as isize;
        face.tp_flags = 1 << 14;
        face.tp_traverse = Some(traverse);
        assert_eq!(ready(face), 0, "{:?}", CStr::from_ptr(error()));
        let object = new(face);
        assert!(!object.is_null());
        *LIBRARY.lock().unwrap() = Some(library);
        track(object);
        let in_traversal = Code::InTraversal as c_int;
        for (at, symbol) in symbols.iter().enumerate() {
            REPORTS.lock().unwrap().clear();
            NEXT.store(at, SeqCst);
            collect();
            assert_eq!(NEXT.load(SeqCst), NONE, "the handler was not called");
            // Told when the world runs again.
            let reports = std::mem::take(&mut *REPORTS.lock().unwrap());
            let refused = reports.contains(&in_traversal);
            assert_eq!(refused, !safe.contains(symbol), "{symbol}: {reports:?}");
            assert!(!refused || reports.len() == 1, "{symbol} is reported once: {reports:?}");
        }
        decref(object);
    }
}
