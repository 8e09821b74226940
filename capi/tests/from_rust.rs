//! A Rust program that uses the library itself, and the functions for C besides: objects of Rust
//! types, panics, and heaps that C has not made.

use std::ffi::{CStr, c_int, c_void};
use std::panic::panic_any;
use std::ptr::{NonNull, null_mut};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use standstill::{AnyGc, Code, Gc, Heap, Mutator, Trace, Tracer, dynamic};
use standstill_capi::PyObject;
use standstill_capi::builtins::{
    standstill_PyTuple_New, standstill_PyTuple_SetItem, standstill_PyTuple_Size,
};
use standstill_capi::errors::{
    standstill_PyErr_Clear, standstill_error_code, standstill_error_message, standstill_misuse,
    standstill_set_misuse_hook, standstill_set_unraisable_hook, standstill_unraisable,
};
use standstill_capi::gc::{standstill_PyUnstable_GC_VisitObjects, standstill_gc_get_objects};
use standstill_capi::layout::{PyModuleDef, PyType_Spec};
use standstill_capi::modules::{
    standstill_PyModule_Create, standstill_PyModule_FromDefAndSpec, standstill_PyModule_GetName,
};
use standstill_capi::objects::{standstill_Py_DecRef, standstill_Py_REFCNT};
use standstill_capi::thread::{standstill_attach, standstill_detach};
use standstill_capi::types::standstill_PyType_FromSpec;
use standstill_capi::world::{standstill_heap_free, standstill_heap_new, standstill_heap_options};

/// Reports of all tests: each test looks for its own.
static REPORTS: Mutex<Vec<String>> = Mutex::new(Vec::new());

fn count(report: &str) -> usize {
    REPORTS.lock().expect("whole").iter().filter(|known| known.contains(report)).count()
}

unsafe extern "C" fn misuse(report: *const standstill_misuse, _: *mut c_void) {
    // SAFETY: a report of the library's, with texts.
    let (code, text) = unsafe { ((*report).code, CStr::from_ptr((*report).text)) };
    REPORTS.lock().expect("whole").push(format!("misuse {code} {}", text.to_string_lossy()));
}

unsafe extern "C" fn unraisable(report: *const standstill_unraisable, _: *mut c_void) {
    // SAFETY: a report of the library's, with texts.
    let (kind, message) =
        unsafe { (CStr::from_ptr((*report).kind), CStr::from_ptr((*report).message)) };
    let report = format!("unraisable {} {}", kind.to_string_lossy(), message.to_string_lossy());
    REPORTS.lock().expect("whole").push(report);
}

fn set_hooks() {
    // SAFETY: hooks for such reports.
    unsafe {
        standstill_set_misuse_hook(Some(misuse), null_mut());
        standstill_set_unraisable_hook(Some(unraisable), null_mut());
    }
}

/// Runs `f` on a thread of its own, which C has attached to a heap of C's.
fn on_c_thread(checked: bool, f: fn()) {
    set_hooks();
    let options = standstill_heap_options {
        size: size_of::<standstill_heap_options>(),
        reserve: 1 << 30,
        limit: 0,
        workers: 1,
        checked: c_int::from(checked),
        stress: 0,
        serial_below: 0,
        slow_stop_ms: 0,
        slow_collection_ms: 0,
        child_from: 0,
    };
    let run = move || {
        // SAFETY: the options are whole, and the heap is this thread's until it is freed.
        unsafe {
            let heap = standstill_heap_new(&options);
            assert!(!heap.is_null());
            assert_eq!(standstill_attach(heap), 0);
            f();
            assert_eq!((standstill_detach(), standstill_heap_free(heap)), (0, 0));
        }
    };
    std::thread::spawn(run).join().expect("a thread without a panic");
}

fn alloc<T: Trace + Send + Sync + 'static>(value: T) -> AnyGc {
    Mutator::with_current(|m| AnyGc::from(m.alloc(value))).expect("attached")
}

/// The address of an object, whose reference goes with it.
fn address(object: AnyGc) -> *mut PyObject {
    dynamic::into_raw(object).as_ptr()
}

fn definition() -> PyModuleDef {
    PyModuleDef {
        ob_base: PyObject::immortal(),
        m_init: None,
        m_index: 0,
        m_copy: null_mut(),
        m_name: c"test.module".as_ptr(),
        m_doc: std::ptr::null(),
        m_size: 0,
        m_methods: null_mut(),
        m_slots: null_mut(),
        m_traverse: None,
        m_clear: None,
        m_free: None,
    }
}

fn spec() -> PyType_Spec {
    PyType_Spec {
        name: c"test.Type".as_ptr(),
        basicsize: 0,
        itemsize: 0,
        flags: 0,
        slots: null_mut(),
    }
}

fn rust_heap() -> Heap {
    Heap::builder().reserve(1 << 30).workers(1).build().expect("a heap")
}

#[test]
fn a_tuple_can_be_the_first_object_of_c() {
    let heap = rust_heap();
    let _m = heap.attach();
    // SAFETY: a tuple, whose reference is this test's.
    unsafe {
        let tuple = standstill_PyTuple_New(2);
        assert_eq!(standstill_PyTuple_Size(tuple), 2);
        standstill_Py_DecRef(tuple);
    }
    assert_eq!(heap.stats().live_objects, 0);
}

#[test]
fn a_module_can_be_the_first_object_of_c() {
    let heap = rust_heap();
    let _m = heap.attach();
    let mut definition = definition();
    // SAFETY: the definition outlives the module, whose reference is this test's.
    unsafe {
        let module = standstill_PyModule_Create(&mut definition);
        assert!(!module.is_null());
        standstill_Py_DecRef(module);
    }
    assert_eq!(heap.stats().live_objects, 0);
}

#[test]
fn a_type_can_be_the_first_object_of_c() {
    let heap = rust_heap();
    let _m = heap.attach();
    // SAFETY: a whole spec; the type's reference is this test's.
    unsafe {
        let made = standstill_PyType_FromSpec(&mut spec());
        assert!(!made.is_null());
        standstill_Py_DecRef(made);
    }
}

#[test]
fn checked_mode_takes_an_object_of_a_rust_type_for_none_of_c() {
    on_c_thread(true, || {
        let object = address(alloc(7u64));
        let code = Code::ForeignPointer as c_int;
        let before = count(&format!("misuse {code} Py_REFCNT"));
        // SAFETY: checked mode looks at the address.
        assert_eq!(unsafe { standstill_Py_REFCNT(object) }, 0);
        assert_eq!(count(&format!("misuse {code} Py_REFCNT")), before + 1);
        // SAFETY: the reference that `address` has given up.
        drop(unsafe { dynamic::from_raw(NonNull::new(object).expect("an address")) });
    });
}

struct Node(AnyGc);

impl Trace for Node {
    fn traverse(this: &Self, tracer: &mut Tracer) {
        Trace::traverse(&this.0, tracer);
    }
}

static VISITED: AtomicUsize = AtomicUsize::new(0);

unsafe extern "C" fn count_visit(object: *mut PyObject, _: *mut c_void) -> c_int {
    assert!(dynamic::is_dynamic(
        // SAFETY: an object of this heap, which is visited: a reference more keeps the count as it
        // was.
        &unsafe { dynamic::Obj::new(NonNull::new(object).expect("an address")).share() }
    ));
    VISITED.fetch_add(1, SeqCst);
    1
}

#[test]
fn the_lists_of_objects_for_c_leave_those_of_rust_types_out() {
    on_c_thread(false, || {
        let node = alloc(Node(alloc(1u64)));
        // SAFETY: tuples, whose references are this test's; a visitor for such objects.
        unsafe {
            let tuple = standstill_PyTuple_New(1);
            let all = standstill_gc_get_objects(-1);
            assert_eq!(standstill_PyTuple_Size(all), 1, "the tuple, and not the node");
            standstill_Py_DecRef(all);
            standstill_PyUnstable_GC_VisitObjects(Some(count_visit), null_mut());
            assert_eq!(VISITED.load(SeqCst), 1);
            standstill_Py_DecRef(tuple);
        }
        drop(node);
    });
}

#[test]
fn a_name_that_is_an_object_of_a_rust_type_names_no_module() {
    on_c_thread(false, || {
        let mut definition = definition();
        // SAFETY: a whole spec and definition; the references are this test's.
        unsafe {
            let from = standstill_PyType_FromSpec(&mut spec());
            let object = NonNull::new(from).expect("a type");
            let set = |value| {
                Mutator::with_current(|m| dynamic::Obj::new(object).set_attribute(m, "name", value))
            };
            set(Some(alloc(0x4141_4141_4141_4141_u64)))
                .expect("attached")
                .expect("a type has attributes");
            let module = standstill_PyModule_FromDefAndSpec(&mut definition, from);
            assert_eq!(CStr::from_ptr(standstill_PyModule_GetName(module)), c"test.module");
            standstill_Py_DecRef(module);
            standstill_Py_DecRef(from);
        }
    });
}

struct Loud;

impl Trace for Loud {
    fn traverse(_: &Self, _: &mut Tracer) {}
}

impl Drop for Loud {
    fn drop(&mut self) {
        panic!("a loud destructor");
    }
}

static PAYLOADS: AtomicUsize = AtomicUsize::new(0);

struct Payload;

impl Drop for Payload {
    fn drop(&mut self) {
        PAYLOADS.fetch_add(1, SeqCst);
    }
}

struct Odd;

impl Trace for Odd {
    fn traverse(_: &Self, _: &mut Tracer) {}
}

impl Drop for Odd {
    fn drop(&mut self) {
        panic_any(Payload);
    }
}

/// Drops the last reference to a tuple with an object in it: the message that stands in the
/// indicator then.
fn drop_in_tuple(object: AnyGc) -> String {
    // SAFETY: a tuple whose reference is this function's, and an item that goes with it.
    unsafe {
        let tuple = standstill_PyTuple_New(1);
        assert_eq!(standstill_PyTuple_SetItem(tuple, 0, address(object)), 0);
        assert_eq!(standstill_error_code(), 0);
        standstill_Py_DecRef(tuple);
        assert_eq!(standstill_error_code(), Code::Panic as c_int);
        let message = CStr::from_ptr(standstill_error_message()).to_string_lossy().into_owned();
        standstill_PyErr_Clear();
        message
    }
}

#[test]
fn a_panic_of_a_rust_destructor_ends_at_the_functions_for_c() {
    fn loud() {
        let before = count("unraisable panic Py_DecRef: a loud destructor");
        let message = drop_in_tuple(alloc(Loud));
        assert!(
            !REPORTS
                .lock()
                .expect("whole")
                .iter()
                .any(|known| known.starts_with("misuse") && known.contains("Py_DecRef"))
        );
        assert!(message.contains("Py_DecRef: a loud destructor"), "{message}");
        assert_eq!(count("unraisable panic Py_DecRef: a loud destructor"), before + 1);
    }
    fn odd() {
        let message = drop_in_tuple(alloc(Odd));
        assert!(message.contains("a panic without a message"), "{message}");
        assert_eq!(
            PAYLOADS.load(SeqCst),
            0,
            "a payload's destructor is user code, too: it does not run"
        );
    }
    on_c_thread(false, loud);
    on_c_thread(false, odd);
    // Attached by Rust: the C library's fast paths have no mutator at hand.
    set_hooks();
    let heap = Heap::builder().reserve(1 << 30).workers(1).checked(false).build().expect("a heap");
    let _m = heap.attach();
    loud();
}

#[test]
fn a_handle_of_rust_and_a_reference_of_c_are_one_count() {
    on_c_thread(false, || {
        // SAFETY: a tuple, with a reference for C and one for Rust.
        unsafe {
            let tuple = NonNull::new(standstill_PyTuple_New(1)).expect("a tuple");
            let handle = dynamic::Obj::new(tuple).share();
            assert_eq!(standstill_Py_REFCNT(tuple.as_ptr()), 2);
            standstill_Py_DecRef(tuple.as_ptr());
            assert_eq!(standstill_Py_REFCNT(tuple.as_ptr()), 1);
            drop(handle);
        }
        let live = Mutator::with_current(|m| m.heap().stats().live_objects);
        assert_eq!(live, Some(0));
    });
}

/// Handles of known types go where handles of any type go.
#[test]
fn an_item_of_a_tuple_can_be_an_object_of_a_rust_type() {
    on_c_thread(false, || {
        let (number, weak) = Mutator::with_current(|m| {
            let number = m.alloc(7u64);
            let weak = Gc::downgrade(&number, m);
            (number, weak)
        })
        .expect("attached");
        // SAFETY: a tuple whose reference is this test's; the item's reference goes with it.
        unsafe {
            let tuple = standstill_PyTuple_New(1);
            standstill_PyTuple_SetItem(tuple, 0, address(AnyGc::from(number)));
            let is_alive = || Mutator::with_current(|m| weak.upgrade(m).is_some());
            assert_eq!(is_alive(), Some(true));
            standstill_Py_DecRef(tuple);
            assert_eq!(is_alive(), Some(false));
        }
    });
}
