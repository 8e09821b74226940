//! Dynamic objects through the Rust API: types made at run time, with handlers. The names carry the
//! rows of the conformance table. Statements of a row about C are shown through C, in `capi/tests`.

#![cfg(not(loom))]
#![allow(clippy::type_complexity, unpredictable_function_pointer_comparisons)]

mod common;

use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Barrier, Mutex};

use common::deadline;
use standstill::dynamic::{
    self, Address, BASE, Class, Family, Flags, METATYPE, MODULE, ModuleSpec, RawObject,
    RawVarObject, Slots, Type, TypeRecord, TypeSpec, VisitProc,
};
use standstill::{
    AnyGc, AnyObject, Code, Gc, GcCell, GcWeak, GcWeakMap, Heap, Mutator, Pacing, Trace,
};

type Ptr = NonNull<RawObject>;

/// Two fields behind the head.
#[repr(C)]
struct Pair {
    base: std::mem::MaybeUninit<RawObject>,
    fields: [*mut RawObject; 2],
}

static DEALLOCS: AtomicUsize = AtomicUsize::new(0);

unsafe fn fields<'a>(object: *mut RawObject) -> &'a mut [*mut RawObject; 2] {
    // SAFETY: called for pairs alone, by a caller with exclusive access to the object.
    unsafe { &mut (*object.cast::<Pair>()).fields }
}

unsafe extern "C" fn pair_traverse(
    object: *mut RawObject,
    visit: VisitProc,
    arg: *mut c_void,
) -> c_int {
    // SAFETY: a living pair.
    unsafe {
        let record = dynamic::Obj::new(NonNull::new_unchecked(object)).record();
        if record.is_heap_type() {
            let result = visit(record.object(), arg);
            if result != 0 {
                return result;
            }
        }
        for &field in &*fields(object) {
            if !field.is_null() {
                let result = visit(field, arg);
                if result != 0 {
                    return result;
                }
            }
        }
    }
    0
}

unsafe extern "C" fn pair_clear(object: *mut RawObject) -> c_int {
    // SAFETY: a living pair, which owns its fields.
    unsafe {
        for field in fields(object) {
            if let Some(old) = NonNull::new(std::mem::replace(field, std::ptr::null_mut())) {
                assert!(dynamic::decref(old));
            }
        }
    }
    0
}

unsafe extern "C" fn pair_dealloc(object: *mut RawObject) {
    DEALLOCS.fetch_add(1, SeqCst);
    // SAFETY: a dying pair.
    unsafe {
        Mutator::with_current(|m| {
            let this = NonNull::new_unchecked(object);
            dynamic::Obj::new(this).untrack(m).unwrap();
            pair_clear(object);
            let record = dynamic::Obj::new(this).record();
            let type_object = NonNull::new(record.object());
            dynamic::free(m, this, Family::Container).unwrap();
            if let Some(type_object) = type_object {
                assert!(dynamic::decref(type_object));
            }
        })
        .expect("handlers run attached");
    }
}

fn pair_spec(name: &str) -> TypeSpec {
    let mut spec = TypeSpec::new(name);
    spec.basic_size = size_of::<Pair>() as isize;
    spec.flags = Flags::HAVE_GC.and(Flags::BASE_TYPE);
    spec.slots.traverse = Some(pair_traverse);
    spec.slots.clear = Some(pair_clear);
    spec
}

fn static_pair(dealloc: bool) -> &'static TypeRecord {
    let mut spec = pair_spec("tests.Pair");
    spec.slots.dealloc = dealloc.then_some(pair_dealloc as _);
    // SAFETY: the handlers are a pair's.
    unsafe { dynamic::ready_static(&spec, std::ptr::null_mut()) }.unwrap()
}

fn heap() -> Heap {
    Heap::builder().reserve(1 << 30).pacing(Pacing::manual()).checked(true).build().unwrap()
}

fn new(m: &Mutator, record: &TypeRecord) -> AnyGc {
    // SAFETY: a ready type; the reference goes over.
    unsafe { dynamic::from_raw(dynamic::allocate_tracked(m, record, 0).unwrap()) }
}

/// Stores a counted reference in a field.
fn set(object: &AnyGc, field: usize, value: Option<&AnyGc>) {
    let value = value.map_or(std::ptr::null_mut(), |gc| dynamic::into_raw(gc.clone()).as_ptr());
    // SAFETY: pairs, of one thread.
    unsafe {
        let old = std::mem::replace(&mut fields(dynamic::as_raw(object).as_ptr())[field], value);
        if let Some(old) = NonNull::new(old) {
            assert!(dynamic::decref(old));
        }
    }
}

fn live(heap: &Heap) -> usize {
    heap.stats().live_objects
}

#[test]
fn s_001_a_cycle_of_dynamic_objects_is_collected() {
    let _watch = deadline("dynamic");
    for dealloc in [false, true] {
        let record = static_pair(dealloc);
        let heap = heap();
        let mut m = heap.attach();
        let (a, b) = (new(&m, record), new(&m, record));
        set(&a, 0, Some(&b));
        set(&b, 0, Some(&a));
        set(&b, 1, Some(&b));
        drop((a, b));
        assert_eq!(live(&heap), 2);
        let report = m.collect();
        assert_eq!((report.collected, report.stops.len()), (2, 1));
        assert_eq!(live(&heap), 0);
        m.verify().unwrap();
    }
}

#[test]
fn s_076_a_chain_of_a_million_dies_without_recursion() {
    let _watch = deadline("chain");
    let record = static_pair(false);
    let heap = heap();
    std::thread::Builder::new()
        .stack_size(256 << 10)
        .spawn({
            let heap = heap.clone();
            move || {
                let m = heap.attach();
                let mut head: Option<AnyGc> = None;
                for _ in 0..1_000_000 {
                    let next = new(&m, record);
                    set(&next, 0, head.as_ref());
                    head = Some(next);
                }
                drop(head);
            }
        })
        .unwrap()
        .join()
        .unwrap();
    assert_eq!(live(&heap), 0);
}

#[test]
fn s_008_s_111_a_heap_type_dies_with_its_instances() {
    let _watch = deadline("heap type");
    let heap = heap();
    let mut m = heap.attach();
    // SAFETY: the handlers are a pair's.
    let ty = unsafe { dynamic::ready_heap(&m, &pair_spec("tests.HeapPair"), |_, _| {}) }.unwrap();
    let a = new(&m, ty.record());
    set(&a, 0, Some(&a));
    // The type's own attributes refer to an instance: type and instance are one cycle.
    let object = dynamic::as_raw(ty.object().unwrap());
    // SAFETY: a living type.
    unsafe { dynamic::Obj::new(object).set_attribute(&m, "first", Some(a.clone())) }.unwrap();
    drop(a);
    assert_eq!(m.collect().collected, 0);
    drop(ty);
    assert_eq!(m.collect().collected, 2);
    assert_eq!(live(&heap), 0);
}

#[test]
fn s_117_a_cycle_through_an_attribute_is_collected() {
    let _watch = deadline("attributes");
    let heap = heap();
    let mut m = heap.attach();
    // SAFETY: the handlers are this very kind's.
    let ty =
        unsafe { dynamic::ready_heap(&m, &TypeSpec::with_attributes("tests.Thing"), |_, _| {}) }
            .unwrap();
    let (a, b) = (new(&m, ty.record()), new(&m, ty.record()));
    // SAFETY: living objects.
    unsafe {
        dynamic::Obj::new(dynamic::as_raw(&a)).set_attribute(&m, "peer", Some(b.clone())).unwrap();
        dynamic::Obj::new(dynamic::as_raw(&b)).set_attribute(&m, "peer", Some(a.clone())).unwrap();
        assert!(dynamic::Obj::new(dynamic::as_raw(&a)).get_attribute(&m, "peer").unwrap() == b);
        let none = dynamic::Obj::new(dynamic::as_raw(&a)).get_attribute(&m, "none").unwrap_err();
        assert_eq!(none.code, Code::NoAttribute);
    }
    assert_eq!(m.collect().collected, 0);
    drop((a, b));
    assert_eq!(m.collect().collected, 2);
    drop(ty);
    m.collect();
    assert_eq!(live(&heap), 0);
}

/// Typed and dynamic objects in one cycle.
#[derive(Trace)]
struct Holder {
    held: GcCell<Option<AnyGc>>,
}

#[test]
fn typed_and_dynamic_objects_are_collected_in_one_cycle() {
    let _watch = deadline("mixed");
    let record = static_pair(false);
    let heap = heap();
    let mut m = heap.attach();
    let typed = m.alloc(Holder { held: GcCell::default() });
    let pair = new(&m, record);
    set(&pair, 0, Some(&Gc::into_any(typed.clone())));
    typed.held.set(&m, Some(pair.clone()));
    assert!(dynamic::is_dynamic(&pair) && !dynamic::is_dynamic(&Gc::into_any(typed.clone())));
    assert_eq!(pair.type_name(&m), "tests.Pair");
    drop((typed, pair));
    assert_eq!(m.collect().collected, 2);
    assert_eq!(live(&heap), 0);
}

thread_local! {
    static SAVED: Cell<*mut RawObject> = const { Cell::new(std::ptr::null_mut()) };
}
static FINALIZED: AtomicUsize = AtomicUsize::new(0);

unsafe extern "C" fn resurrect(object: *mut RawObject) {
    FINALIZED.fetch_add(1, SeqCst);
    // SAFETY: a living object; the new reference goes to the thread-local.
    assert!(unsafe { dynamic::Obj::new(NonNull::new_unchecked(object)).incref() });
    SAVED.set(object);
}

#[test]
fn u_26_u_30_a_finalizer_runs_once_and_may_bring_its_object_back() {
    let _watch = deadline("finalizer");
    let mut spec = pair_spec("tests.Phoenix");
    spec.slots.finalize = Some(resurrect);
    // SAFETY: the handlers are a pair's.
    let record = unsafe { dynamic::ready_static(&spec, std::ptr::null_mut()) }.unwrap();
    let heap = heap();
    let mut m = heap.attach();
    for cyclic in [false, true] {
        let before = FINALIZED.load(SeqCst);
        let a = new(&m, record);
        if cyclic {
            set(&a, 0, Some(&a));
        }
        drop(a);
        if cyclic {
            let report = m.collect();
            assert_eq!((report.collected, report.resurrected, report.finalized), (0, 1, 1));
        }
        let back = NonNull::new(SAVED.take()).expect("finalized");
        // SAFETY: the reference that the finalizer took.
        let back = unsafe { dynamic::from_raw(back) };
        assert!(back.is_finalized(&m) && back.is_tracked(&m));
        assert_eq!(live(&heap), 1);
        drop(back);
        m.collect();
        assert_eq!(live(&heap), 0);
        assert_eq!(FINALIZED.load(SeqCst), before + 1);
    }
}

#[test]
fn u_33_u_35_weak_references_with_callbacks() {
    let _watch = deadline("weak");
    static CALLED: AtomicUsize = AtomicUsize::new(0);
    unsafe extern "C" fn called(_: *mut RawObject, weak_ref: *mut RawObject) {
        CALLED.fetch_add(1, SeqCst);
        Mutator::with_current(|m| {
            // SAFETY: the weak reference is alive.
            let target =
                unsafe { dynamic::Obj::new(NonNull::new_unchecked(weak_ref)).weakref_target(m) };
            assert!(target.unwrap().is_none(), "cleared before the callback");
        });
    }
    let record = static_pair(false);
    let heap = heap();
    let mut m = heap.attach();
    let weak = |target: &AnyGc, callback: Option<AnyGc>| {
        // SAFETY: a living target.
        unsafe {
            dynamic::new_weakref(
                &m,
                dynamic::Obj::new(dynamic::as_raw(target)),
                callback.map(|c| (c, called as _)),
            )
        }
        .unwrap()
    };
    let (a, b, c) = (new(&m, record), new(&m, record), new(&m, record));
    set(&a, 0, Some(&a));
    let outside = weak(&a, Some(c.clone()));
    let plain = weak(&a, None);
    let at_zero = weak(&b, Some(c.clone()));
    // One that is garbage with its target: not called.
    set(&a, 1, Some(&weak(&a, Some(c.clone()))));
    drop(a);
    drop(b);
    assert_eq!(CALLED.load(SeqCst), 1);
    assert_eq!(m.collect().collected, 2);
    assert_eq!(CALLED.load(SeqCst), 2);
    for gone in [&outside, &plain, &at_zero] {
        // SAFETY: alive.
        let weak = unsafe { dynamic::Obj::new(dynamic::as_raw(gone)) };
        assert!(weak.weakref_target(&m).unwrap().is_none());
    }
    drop((outside, plain, at_zero, c));
    m.collect();
    assert_eq!(live(&heap), 0);
}

fn code_of(result: Result<&'static TypeRecord, standstill::Fault>) -> Code {
    result.expect_err("refused").code
}

/// Makes a static type; the handlers are a pair's, or none.
fn ready(spec: &TypeSpec) -> Result<&'static TypeRecord, standstill::Fault> {
    // SAFETY: the handlers are a pair's, or none.
    unsafe { dynamic::ready_static(spec, std::ptr::null_mut()) }
}

fn child(name: &str, bases: &[&Type]) -> TypeSpec {
    let mut spec = TypeSpec::new(name);
    spec.bases = bases.iter().map(|&base| base.clone()).collect();
    spec.flags = Flags::BASE_TYPE;
    spec
}

#[test]
fn s_013_flag_traverse_and_clear_are_inherited_together() {
    let base = Type::from_static(static_pair(false));
    let record = ready(&child("tests.Child", &[&base])).unwrap();
    assert!(record.has_gc());
    let slots = record.slots();
    let base_slots = base.record().slots();
    assert_eq!((slots.traverse, slots.clear), (base_slots.traverse, base_slots.clear));
    assert!(slots.traverse.is_some() && slots.clear.is_some());
    assert_eq!(record.basic_size(), size_of::<Pair>());
    let plain = Type::from_static(ready(&child("tests.Plain", &[])).unwrap());
    assert_eq!(code_of(ready(&child("tests.Mixed", &[&plain, &base]))), Code::MixedBases);
}

#[test]
fn s_014_s_015_s_016_handlers_and_the_flag() {
    let base = Type::from_static(static_pair(false));
    let mut spec = child("tests.NoFlag", &[&base]);
    spec.slots.clear = Some(pair_clear);
    let fault = ready(&spec).unwrap_err();
    assert_eq!(fault.code, Code::HandlersWithoutFlag);
    assert!(
        fault.text.contains("handlers given without Py_TPFLAGS_HAVE_GC under GC base"),
        "{fault}"
    );
    assert!(fault.text.contains("tests.NoFlag"));
    let mut spec = child("tests.FlagAlone", &[&base]);
    spec.flags = Flags::HAVE_GC;
    assert_eq!(code_of(ready(&spec)), Code::MissingTraverse);
    spec.slots.traverse = Some(pair_traverse);
    assert!(ready(&spec).unwrap().slots().clear.is_none(), "nothing else is filled in");
}

#[test]
fn bases_are_searched_in_c3_order() {
    let make = |name: &str, bases: &[&Type]| Type::from_static(ready(&child(name, bases)).unwrap());
    let a = make("A", &[]);
    let b = make("B", &[&a]);
    let c = make("C", &[&a]);
    let d = make("D", &[&b, &c]);
    let names: Vec<_> = d.record().mro().map(TypeRecord::name).collect();
    assert_eq!(names, ["D", "B", "C", "A", "object"]);
    assert_eq!(code_of(ready(&child("E", &[&a, &b]))), Code::BadMro);
    assert_eq!(code_of(ready(&child("F", &[&a, &a]))), Code::BadBase);
    assert!(d.record().is_subtype_of(a.record()) && !a.record().is_subtype_of(d.record()));
    let mut last = child("Last", &[]);
    last.flags = Flags::default();
    let last = Type::from_static(ready(&last).unwrap());
    assert_eq!(code_of(ready(&child("G", &[&last]))), Code::BadBase);
}

#[test]
fn sizes_are_checked() {
    let base = Type::from_static(static_pair(false));
    let mut spec = child("tests.Small", &[&base]);
    spec.basic_size = 32;
    assert_eq!(code_of(ready(&spec)), Code::BadSize);
    spec.basic_size = -20;
    let record = ready(&spec).unwrap();
    assert_eq!(record.basic_size(), 48 + 32, "40 bytes, rounded up to 16, and 20, likewise");
    assert_eq!(record.data_size(), 32);
    spec.basic_size = 0;
    spec.item_size = -1;
    assert_eq!(code_of(ready(&spec)), Code::BadSize);
    spec.name = String::new();
    assert_eq!(code_of(ready(&spec)), Code::BadSlot);
}

fn items_type() -> &'static TypeRecord {
    unsafe extern "C" fn traverse(
        object: *mut RawObject,
        visit: VisitProc,
        arg: *mut c_void,
    ) -> c_int {
        // SAFETY: a living object of this type.
        unsafe {
            let n = dynamic::Obj::new(NonNull::new_unchecked(object)).size().unwrap();
            let items = object.cast::<RawVarObject>().add(1).cast::<*mut RawObject>();
            for i in 0..n as usize {
                let item = *items.add(i);
                if !item.is_null() {
                    let result = visit(item, arg);
                    if result != 0 {
                        return result;
                    }
                }
            }
        }
        0
    }
    let mut spec = TypeSpec::new("tests.Items");
    spec.basic_size = 32;
    spec.item_size = 8;
    spec.flags = Flags::HAVE_GC.and(Flags::ITEMS_ARE_REFERENCES);
    spec.slots = Slots { traverse: Some(traverse), ..Slots::default() };
    ready(&spec).unwrap()
}

#[test]
fn s_041_to_s_047_resize() {
    let heap = heap();
    let m = heap.attach();
    let record = items_type();
    // SAFETY: objects of this type, of one thread.
    unsafe {
        let object = dynamic::allocate(&m, record, 4, 0).unwrap();
        let items = |object: Ptr| object.cast::<RawVarObject>().add(1).cast::<usize>();
        for i in 0..4 {
            items(object).add(i).write(i * 8);
        }
        let object = dynamic::resize(&m, object, 4000).unwrap();
        assert_eq!(dynamic::Obj::new(object).size().unwrap(), 4000);
        assert_eq!((0..4).map(|i| items(object).add(i).read()).collect::<Vec<_>>(), [0, 8, 16, 24]);
        assert!((4..4000).all(|i| items(object).add(i).read() == 0));
        let refused = |n, code| {
            assert_eq!(dynamic::resize(&m, object, n).unwrap_err().code, code);
            assert_eq!(dynamic::Obj::new(object).size().unwrap(), 4000);
        };
        refused(-1, Code::BadSize);
        refused(isize::MAX, Code::Memory);
        refused(2, Code::CutReferences);
        // The fields are no objects, which checked mode reports.
        dynamic::Obj::new(object).track(&m).unwrap_err();
        for i in 0..4 {
            items(object).add(i).write(0);
        }
        dynamic::Obj::new(object).track(&m).unwrap();
        refused(8, Code::TrackedResize);
        dynamic::Obj::new(object).untrack(&m).unwrap();
        assert!(dynamic::Obj::new(object).incref());
        refused(8, Code::SharedResize);
        assert!(dynamic::decref(object));
        let object = dynamic::resize(&m, object, 0).unwrap();
        assert_eq!(dynamic::Obj::new(object).size().unwrap(), 0);
        assert!(dynamic::decref(object));
        let fixed = dynamic::allocate(&m, static_pair(false), 0, 0).unwrap();
        assert_eq!(dynamic::resize(&m, fixed, 1).unwrap_err().code, Code::NotResizable);
        assert_eq!(
            dynamic::allocate(&m, static_pair(false), 1, 0).unwrap_err().code,
            Code::NotResizable
        );
        assert_eq!(dynamic::allocate(&m, record, -1, 0).unwrap_err().code, Code::BadSize);
        assert_eq!(dynamic::allocate(&m, record, 1, 8).unwrap_err().code, Code::BadSize);
        assert!(dynamic::decref(fixed));
    }
    assert_eq!(live(&heap), 0);
}

#[test]
fn s_035_extra_bytes_are_zero_and_writable() {
    let heap = heap();
    let m = heap.attach();
    let record = static_pair(false);
    // SAFETY: a pair with 1,000 bytes behind it.
    unsafe {
        let object = dynamic::allocate(&m, record, 0, 1000).unwrap();
        assert!(!dynamic::Obj::new(object).is_tracked(&m));
        let extra = object.cast::<u8>().add(record.basic_size());
        assert!((0..1000).all(|i| extra.add(i).read() == 0));
        extra.add(999).write(7);
        assert!(dynamic::decref(object));
    }
    assert_eq!(live(&heap), 0);
}

#[test]
fn s_073_s_074_freeing_a_tracked_or_referenced_object() {
    let heap = heap();
    let m = heap.attach();
    let record = static_pair(false);
    // SAFETY: pairs of one thread.
    unsafe {
        let object = dynamic::allocate_tracked(&m, record, 0).unwrap();
        assert_eq!(
            dynamic::free(&m, object, Family::Plain).unwrap_err().code,
            Code::WrongAllocator
        );
        assert!(dynamic::Obj::new(object).incref());
        assert_eq!(
            dynamic::free(&m, object, Family::Container).unwrap_err().code,
            Code::ReferencesLeft
        );
        assert!(dynamic::decref(object));
        assert_eq!(dynamic::look_up(&m, object), Address::Live);
        assert_eq!(
            dynamic::free(&m, object, Family::Container).unwrap_err().code,
            Code::StillTracked
        );
        assert_eq!(dynamic::look_up(&m, object), Address::Freed);
        let odd = NonNull::new(object.as_ptr().cast::<u8>().add(8).cast()).unwrap();
        assert_eq!(dynamic::look_up(&m, odd), Address::Foreign);
    }
    assert_eq!(live(&heap), 0);
}

#[test]
fn s_092_s_093_s_095_handlers_that_visit_too_much_refuse_or_panic() {
    let _watch = deadline("wrong handlers");
    thread_local! {
        static TRICK: Cell<u8> = const { Cell::new(0) };
    }
    unsafe extern "C" fn traverse(
        object: *mut RawObject,
        visit: VisitProc,
        arg: *mut c_void,
    ) -> c_int {
        // SAFETY: a living pair.
        unsafe {
            match TRICK.get() {
                1 => {
                    pair_traverse(object, visit, arg);
                    pair_traverse(object, visit, arg)
                }
                2 => 7,
                3 => visit(std::ptr::null_mut(), arg),
                _ => pair_traverse(object, visit, arg),
            }
        }
    }
    let mut spec = pair_spec("tests.Tricky");
    spec.slots.traverse = Some(traverse);
    let record = ready(&spec).unwrap();
    let heap = heap();
    let (misuses, failures) = (Arc::new(Mutex::new(Vec::new())), Arc::new(Mutex::new(Vec::new())));
    heap.on_misuse({
        let misuses = Arc::clone(&misuses);
        move |fault| misuses.lock().unwrap().push((fault.code, fault.type_name))
    });
    heap.on_unraisable({
        let failures = Arc::clone(&failures);
        move |failure| failures.lock().unwrap().push(failure.message.clone())
    });
    let mut m = heap.attach();
    let (a, b) = (new(&m, record), new(&m, record));
    set(&a, 0, Some(&b));
    set(&b, 0, Some(&a));
    drop(b);
    TRICK.set(1);
    let report = m.collect();
    assert_eq!((report.collected, report.abandoned.is_some()), (0, false));
    assert_eq!(
        std::mem::take(&mut *misuses.lock().unwrap()),
        [(Code::OverVisited, "tests.Tricky")]
    );
    TRICK.set(2);
    let report = m.collect();
    assert!(report.abandoned.unwrap().contains("returned 7"));
    assert_eq!(failures.lock().unwrap().len(), 1);
    TRICK.set(3);
    assert_eq!(m.collect().collected, 0);
    assert_eq!(std::mem::take(&mut *misuses.lock().unwrap()), [(Code::NullVisit, "tests.Tricky")]);
    TRICK.set(0);
    drop(a);
    assert_eq!(m.collect().collected, 2);
    assert_eq!(live(&heap), 0);
}

#[test]
fn s_094_checked_mode_reports_a_handler_that_visits_other_references() {
    let _watch = deadline("fickle");
    static CALLS: AtomicUsize = AtomicUsize::new(0);
    unsafe extern "C" fn traverse(
        object: *mut RawObject,
        visit: VisitProc,
        arg: *mut c_void,
    ) -> c_int {
        if CALLS.fetch_add(1, SeqCst) % 2 == 1 {
            return 0;
        }
        // SAFETY: a living pair.
        unsafe { pair_traverse(object, visit, arg) }
    }
    let mut spec = pair_spec("tests.Fickle");
    spec.slots.traverse = Some(traverse);
    let record = ready(&spec).unwrap();
    let heap = heap();
    let mut m = heap.attach();
    let a = new(&m, record);
    set(&a, 0, Some(&a));
    CALLS.store(0, SeqCst);
    let report = m.collect();
    assert!(
        report
            .abandoned
            .as_deref()
            .is_some_and(|why| why.contains("Fickle") || why.contains("other")),
        "{report:?}"
    );
    drop(a);
}

#[test]
fn s_148_to_s_153_modules_types_and_tokens() {
    let _watch = deadline("modules");
    let heap = heap();
    let mut m = heap.attach();
    let mut spec = ModuleSpec::new("tests.module");
    (spec.state_size, spec.token) = (24, 0x77);
    // SAFETY: no handlers.
    let module = unsafe { dynamic::new_module(&m, spec) }.unwrap();
    // SAFETY: a module with 24 bytes of state.
    unsafe {
        let state = dynamic::Obj::new(dynamic::as_raw(&module)).module_state().unwrap();
        assert!((0..24).all(|i| state.cast::<u8>().add(i).read() == 0));
        assert_eq!(dynamic::Obj::new(dynamic::as_raw(&module)).module_token(), Some(0x77));
        assert_eq!(
            dynamic::Obj::new(dynamic::as_raw(&module)).module_name().unwrap(),
            c"tests.module"
        );
    }
    let mut spec = pair_spec("tests.Member");
    (spec.module, spec.token) = (Some(module.clone()), 0x99);
    // SAFETY: the handlers are a pair's.
    let ty = unsafe { dynamic::ready_heap(&m, &spec, |_, _| {}) }.unwrap();
    // SAFETY: no handlers but the base's.
    let sub = unsafe { dynamic::ready_heap(&m, &child("tests.Sub", &[&ty]), |_, _| {}) }.unwrap();
    assert!(dynamic::type_module(sub.record()).is_none(), "bases are not searched");
    // SAFETY: this thread is attached.
    let by_token = unsafe { dynamic::type_module_by_token(sub.record(), 0x77) };
    assert_eq!(by_token, Some(dynamic::as_raw(&module)));
    // SAFETY: this thread is attached.
    let by_token = unsafe { dynamic::type_module_by_token(sub.record(), 1) };
    assert_eq!(by_token, None);
    assert!(std::ptr::eq(dynamic::base_by_token(sub.record(), 0x99).unwrap(), ty.record()));
    assert!(dynamic::base_by_token(sub.record(), 0).is_none());
    // SAFETY: a living type.
    unsafe {
        let member = new(&m, sub.record());
        dynamic::Obj::new(dynamic::as_raw(ty.object().unwrap()))
            .set_attribute(&m, "member", Some(member))
            .unwrap();
        assert!(std::ptr::eq(
            dynamic::Obj::new(dynamic::as_raw(ty.object().unwrap())).describe().unwrap(),
            ty.record()
        ));
        assert!(dynamic::Obj::new(dynamic::as_raw(&module)).describe().is_none());
    }
    assert!(METATYPE.get().has_gc() && MODULE.get().has_gc() && !BASE.get().has_gc());
    drop((ty, sub, spec));
    assert_eq!(m.collect().collected, 3, "two types and the instance that keeps them");
    drop(module);
    m.collect();
    assert_eq!(live(&heap), 0);
}

#[test]
fn s_085_a_walk_shows_the_direct_referents() {
    let heap = heap();
    let mut m = heap.attach();
    let record = static_pair(false);
    let (a, b, c) = (new(&m, record), new(&m, record), new(&m, record));
    set(&a, 0, Some(&b));
    set(&a, 1, Some(&b));
    set(&b, 0, Some(&c));
    let mut seen = Vec::new();
    // SAFETY: a living object, of one thread.
    unsafe { dynamic::Obj::new(dynamic::as_raw(&a)).referents(&mut m, |target| seen.push(target)) }
        .unwrap();
    assert_eq!(seen, [dynamic::as_raw(&b); 2]);
}

#[test]
fn s_054_tracking_an_object_with_a_dangling_field_is_refused() {
    let heap = heap();
    let m = heap.attach();
    let record = static_pair(false);
    // SAFETY: pairs of one thread; the dangling field is taken out again.
    unsafe {
        let (a, b) = (
            dynamic::allocate(&m, record, 0, 0).unwrap(),
            dynamic::allocate(&m, record, 0, 0).unwrap(),
        );
        fields(a.as_ptr())[0] = b.as_ptr();
        assert!(dynamic::decref(b));
        assert_eq!(dynamic::Obj::new(a).track(&m).unwrap_err().code, Code::FreedPointer);
        assert!(!dynamic::Obj::new(a).is_tracked(&m));
        fields(a.as_ptr())[0] = std::ptr::null_mut();
        dynamic::Obj::new(a).track(&m).unwrap();
        assert_eq!(dynamic::Obj::new(a).track(&m).unwrap_err().code, Code::AlreadyTracked);
        assert!(dynamic::decref(a));
    }
}

#[test]
fn s_059_tracking_and_finalizing_at_once_lose_nothing() {
    let _watch = deadline("tracking on two threads");
    unsafe extern "C" fn nothing(_: *mut RawObject) {}
    let mut spec = pair_spec("tests.Ending");
    spec.slots.finalize = Some(nothing);
    let record = ready(&spec).unwrap();
    let heap = heap();
    let toggling = AtomicUsize::new(usize::MAX);
    let m = heap.attach();
    let all: Vec<_> = (0..40_000).map(|_| new(&m, record)).collect();
    let mut finalized = 0;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut m = heap.attach();
            for (i, object) in all.iter().enumerate() {
                toggling.store(i, SeqCst);
                // The first object is toggled until the other thread has come.
                let mut rounds = 0;
                loop {
                    // SAFETY: a living object, which `all` keeps alive.
                    let was_met = unsafe {
                        dynamic::Obj::new(dynamic::as_raw(object)).untrack(&m).unwrap();
                        dynamic::Obj::new(dynamic::as_raw(object)).track(&m).unwrap();
                        dynamic::Obj::new(dynamic::as_raw(object)).is_finalized(&m)
                    };
                    rounds += 1;
                    if rounds >= 20 && (i > 0 || was_met) {
                        break;
                    }
                }
                if i % 2 == 0 {
                    // SAFETY: a living object, which `all` keeps alive.
                    unsafe { dynamic::Obj::new(dynamic::as_raw(object)).untrack(&m).unwrap() };
                }
                m.safepoint();
            }
            toggling.store(all.len(), SeqCst);
        });
        // The object that the other thread is toggling now is finalized here.
        loop {
            let at = toggling.load(SeqCst);
            if at == all.len() {
                break;
            }
            if let Some(object) = all.get(at).map(dynamic::as_raw) {
                // SAFETY: a living object, which `all` keeps alive.
                unsafe {
                    if !dynamic::Obj::new(object).is_finalized(&m) {
                        dynamic::Obj::new(object).call_finalizer(&m);
                        finalized += 1;
                    }
                }
            }
        }
    });
    assert!(finalized > 0);
    for (i, object) in all.iter().enumerate() {
        // SAFETY: a living object, which `all` keeps alive.
        unsafe {
            assert_eq!(dynamic::Obj::new(dynamic::as_raw(object)).is_tracked(&m), i % 2 == 1);
            finalized -= usize::from(dynamic::Obj::new(dynamic::as_raw(object)).is_finalized(&m));
        }
    }
    assert_eq!(finalized, 0, "a finalized mark was lost");
}

#[test]
fn s_163_objects_of_other_threads_are_collected() {
    let _watch = deadline("threads");
    let record = static_pair(true);
    let heap = heap();
    std::thread::scope(|scope| {
        for seed in 0..4 {
            let heap = &heap;
            scope.spawn(move || {
                let mut m = heap.attach();
                for round in 0..200 {
                    let all: Vec<_> = (0..50).map(|_| new(&m, record)).collect();
                    for (i, object) in all.iter().enumerate() {
                        set(object, 0, Some(&all[(i + 1) % all.len()]));
                        set(object, 1, Some(&all[(i * 7 + seed + round) % all.len()]));
                    }
                    drop(all);
                    if round % 20 == 0 {
                        m.collect();
                    }
                    m.safepoint();
                }
            });
        }
    });
    heap.attach_scoped(|m| {
        m.collect();
        m.verify().unwrap();
    });
    assert_eq!(live(&heap), 0);
}

static RISEN: Mutex<Vec<AnyGc>> = Mutex::new(Vec::new());

#[test]
fn classes_need_no_unsafe_code() {
    let _watch = deadline("classes");
    static COUNT: AtomicUsize = AtomicUsize::new(0);
    fn finalizer(this: &AnyGc, m: &Mutator) {
        COUNT.fetch_add(1, SeqCst);
        match this.attribute(m, "fate") {
            Ok(_) => RISEN.lock().unwrap().push(this.clone()),
            Err(fault) => {
                assert_eq!(fault.code, Code::NoAttribute);
                panic!("on purpose");
            }
        }
    }
    let heap = heap();
    let failures = Arc::new(Mutex::new(Vec::new()));
    heap.on_unraisable({
        let failures = Arc::clone(&failures);
        move |failure| {
            failures.lock().unwrap().push((failure.type_name.clone(), failure.message.clone()))
        }
    });
    let mut m = heap.attach();
    let base = Class::new("tests.Base").make(&m).unwrap();
    let class = Class::new("tests.Derived").base(&base).finalizer(finalizer).make(&m).unwrap();
    let below = Class::new("tests.Below").base(&class).make(&m).unwrap();
    let (risen, lost) = (below.instantiate(&m).unwrap(), class.instantiate(&m).unwrap());
    for object in [&risen, &lost] {
        object.set_attribute(&m, "me", Some(object.clone())).unwrap();
    }
    risen.set_attribute(&m, "fate", Some(base.instantiate(&m).unwrap())).unwrap();
    let of = Type::of(&risen, &m).unwrap();
    assert!(std::ptr::eq(of.record(), below.record()) && of.record().is_subtype_of(base.record()));
    assert!(Type::of(&Gc::into_any(m.alloc(7u32)), &m).is_none());
    drop((risen, lost, of));
    let report = m.collect();
    assert_eq!((report.finalized, report.resurrected, report.collected), (2, 2, 1));
    assert_eq!(*failures.lock().unwrap(), [("tests.Derived".into(), "on purpose".into())]);
    let back = std::mem::take(&mut *RISEN.lock().unwrap());
    assert_eq!(back.len(), 1);
    assert!(back[0].set_attribute(&m, "nothing", None).is_err());
    drop((back, base, class, below));
    m.collect();
    m.collect();
    assert_eq!(COUNT.load(SeqCst), 2);
    assert_eq!(live(&heap), 0);
    let other = self::heap();
    drop(m);
    let foreign = other.attach_scoped(|m| Class::new("tests.Foreign").make(m).unwrap());
    let m = heap.attach();
    assert_eq!(foreign.instantiate(&m).unwrap_err().code, Code::ForeignPointer);
}

/// The actions of a hostile handler, by turns.
static TRICKS: AtomicUsize = AtomicUsize::new(0);

unsafe extern "C" fn hostile_traverse(
    object: *mut RawObject,
    visit: VisitProc,
    arg: *mut c_void,
) -> c_int {
    // SAFETY: a living pair.
    unsafe {
        let this = NonNull::new_unchecked(object);
        let fields = *fields(object);
        match TRICKS.fetch_add(1, SeqCst) % 11 {
            0 => 0,
            1 => {
                for _ in 0..300 {
                    pair_traverse(object, visit, arg);
                }
                0
            }
            2 => 7,
            3 => -1,
            4 => visit(std::ptr::null_mut(), arg),
            5 => {
                // Refused, all of it.
                assert!(!dynamic::Obj::new(this).incref() || fields[0].is_null());
                assert!(!dynamic::decref(this) || fields[0].is_null());
                assert!(Mutator::with_current(|_| ()).is_none());
                pair_traverse(object, visit, arg)
            }
            6 => visit(object, arg),
            7 => visit(fields[1], arg),
            // With an argument of its own: not believed.
            8 => {
                let mut other = 0usize;
                visit(object, (&raw mut other).cast())
            }
            9 => {
                std::thread::yield_now();
                pair_traverse(object, visit, arg)
            }
            _ => pair_traverse(object, visit, arg),
        }
    }
}

unsafe extern "C" fn hostile_clear(object: *mut RawObject) -> c_int {
    match TRICKS.fetch_add(1, SeqCst) % 4 {
        0 => 0,
        1 => -3,
        2 => {
            // A collection inside a handler is refused; objects can be made and dropped.
            Mutator::with_current(|m| {
                // SAFETY: the type of a living object.
                let record = unsafe { dynamic::Obj::new(NonNull::new_unchecked(object)).record() };
                let extra = new(m, record);
                set(&extra, 0, Some(&extra));
            });
            // SAFETY: a living pair.
            unsafe { pair_clear(object) }
        }
        // SAFETY: a living pair.
        _ => unsafe { pair_clear(object) },
    }
}

#[test]
fn hostile_handlers_with_collections_on_other_threads() {
    let _watch = deadline("hostile handlers");
    for checked in [false, true] {
        let mut spec = pair_spec("tests.Hostile");
        spec.slots.traverse = Some(hostile_traverse);
        spec.slots.clear = Some(hostile_clear);
        spec.slots.dealloc = Some(pair_dealloc);
        let record = ready(&spec).unwrap();
        let heap = Heap::builder().reserve(1 << 30).checked(checked).build().unwrap();
        heap.on_misuse(|_| ());
        heap.on_unraisable(|_| ());
        let rounds = if cfg!(debug_assertions) { 60 } else { 300 };
        std::thread::scope(|scope| {
            for seed in 0..3 {
                let heap = &heap;
                scope.spawn(move || {
                    let mut m = heap.attach();
                    let mut kept = Vec::new();
                    for round in 0..rounds {
                        let all: Vec<_> = (0..40).map(|_| new(&m, record)).collect();
                        for (i, object) in all.iter().enumerate() {
                            set(object, 0, Some(&all[(i + 1) % all.len()]));
                            set(object, 1, Some(&all[(i * 3 + seed + round) % all.len()]));
                        }
                        kept.push(all[round % 40].clone());
                        if kept.len() > 10 {
                            kept.remove(0);
                        }
                        drop(all);
                        m.collect();
                        // A held object is whole, or cleared; it is never freed.
                        for object in &kept {
                            assert!(dynamic::is_dynamic(object) && object.strong_count() > 0);
                        }
                    }
                });
            }
        });
        // The remaining objects are unspecified: hostile handlers leak. The next heap starts
        // afresh.
    }
}

#[test]
fn s_128_a_handler_that_waits_is_reported_with_its_type() {
    let _watch = deadline("slow handler");
    static SLOW: AtomicUsize = AtomicUsize::new(0);
    unsafe extern "C" fn traverse(
        object: *mut RawObject,
        visit: VisitProc,
        arg: *mut c_void,
    ) -> c_int {
        if SLOW.load(SeqCst) == 1 {
            std::thread::sleep(std::time::Duration::from_millis(30));
        }
        // SAFETY: a living pair.
        unsafe { pair_traverse(object, visit, arg) }
    }
    let mut spec = pair_spec("tests.Slow");
    spec.slots.traverse = Some(traverse);
    let record = ready(&spec).unwrap();
    for limit in [0, 10, 3_600_000] {
        let after = std::time::Duration::from_millis(limit);
        let heap = Heap::builder()
            .reserve(1 << 30)
            .pacing(Pacing::manual())
            .slow_handler(after)
            .build()
            .unwrap();
        let misuses = Arc::new(Mutex::new(Vec::new()));
        heap.on_misuse({
            let misuses = Arc::clone(&misuses);
            move |fault| misuses.lock().unwrap().push((fault.code, fault.type_name))
        });
        let mut m = heap.attach();
        let object = new(&m, record);
        SLOW.store(1, SeqCst);
        m.collect();
        SLOW.store(0, SeqCst);
        let reports = std::mem::take(&mut *misuses.lock().unwrap());
        assert_eq!(
            reports,
            if limit == 10 { vec![(Code::SlowHandler, "tests.Slow")] } else { vec![] }
        );
        drop(object);
    }
}

#[test]
fn s_030_an_allocator_that_returns_something_else_is_an_error() {
    unsafe extern "C" fn of_another_type(_: *mut c_void, _: isize) -> *mut RawObject {
        let made = Mutator::with_current(|m| dynamic::allocate_tracked(m, static_pair(false), 0));
        made.expect("attached").expect("room").as_ptr()
    }
    let heap = heap();
    let m = heap.attach();
    let mut spec = pair_spec("tests.Odd");
    spec.slots.alloc = Some(of_another_type);
    let odd = Type::from_static(ready(&spec).unwrap());
    assert_eq!(odd.instantiate(&m).unwrap_err().code, Code::BadAllocResult);
    assert_eq!(live(&heap), 0);
    // A subclass inherits the allocator.
    let below = Type::from_static(ready(&child("tests.Below", &[&odd])).unwrap());
    assert_eq!(below.instantiate(&m).unwrap_err().code, Code::BadAllocResult);
}

/// Panics when it is destroyed, so many times.
#[derive(Trace)]
struct Bomb {
    #[trace(skip)]
    armed: Arc<AtomicUsize>,
}

impl Drop for Bomb {
    fn drop(&mut self) {
        if self.armed.fetch_sub(1, SeqCst) > 0 && !std::thread::panicking() {
            panic!("as asked");
        }
    }
}

#[test]
fn objects_that_die_with_another_die_also_when_a_destructor_panics() {
    let _watch = deadline("bombs");
    for dealloc in [false, true] {
        let record = static_pair(dealloc);
        let heap = Heap::builder()
            .reserve(1 << 30)
            .pacing(Pacing::manual())
            .checked(false)
            .build()
            .unwrap();
        heap.on_unraisable(|_| ());
        let m = heap.attach();
        let armed = Arc::new(AtomicUsize::new(100));
        let bomb = || Gc::into_any(m.alloc(Bomb { armed: Arc::clone(&armed) }));
        let (outer, inner) = (new(&m, record), new(&m, record));
        set(&inner, 0, Some(&bomb()));
        set(&inner, 1, Some(&bomb()));
        set(&outer, 0, Some(&inner));
        set(&outer, 1, Some(&bomb()));
        drop(inner);
        let outer = dynamic::into_raw(outer);
        // SAFETY: the last reference, of this thread.
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| unsafe {
            assert!(!dynamic::decref_common(outer));
            dynamic::decref_last(&m, outer)
        }));
        assert!(result.is_err());
        assert_eq!((live(&heap), armed.load(SeqCst)), (0, 97));
        // The thread's destruction stack is in order again.
        let after = new(&m, record);
        set(&after, 0, Some(&new(&m, record)));
        drop(after);
        assert_eq!(live(&heap), 0);
    }
}

/// Handlers are C functions, also those that are written in Rust, and no panic may pass through
/// one.
#[test]
fn a_typed_object_that_a_handler_drops_may_panic() {
    let _watch = deadline("typed bombs");
    static KEPT: Mutex<Vec<Gc<Bomb>>> = Mutex::new(Vec::new());
    unsafe extern "C" fn clear(object: *mut RawObject) -> c_int {
        let kept = KEPT.lock().unwrap().pop();
        drop(kept);
        // SAFETY: a pair, whose clear handler is called.
        unsafe { pair_clear(object) }
    }
    let mut spec = pair_spec("tests.Keeper");
    spec.slots.clear = Some(clear);
    let record = ready(&spec).unwrap();
    let heap =
        Heap::builder().reserve(1 << 30).pacing(Pacing::manual()).checked(false).build().unwrap();
    let reports = Arc::new(Mutex::new(Vec::new()));
    heap.on_unraisable({
        let reports = Arc::clone(&reports);
        move |failure| reports.lock().unwrap().push(failure.message.clone())
    });
    let mut m = heap.attach();
    let armed = Arc::new(AtomicUsize::new(100));
    let fill = |m: &Mutator| {
        let bombs = (0..2).map(|_| m.alloc(Bomb { armed: Arc::clone(&armed) }));
        KEPT.lock().unwrap().extend(bombs);
    };
    // Cleared by a collection,
    fill(&m);
    let (one, other) = (new(&m, record), new(&m, record));
    set(&one, 0, Some(&other));
    set(&other, 0, Some(&one));
    drop((one, other));
    assert_eq!(m.collect().collected, 2);
    assert_eq!((live(&heap), armed.load(SeqCst)), (0, 98));
    assert_eq!(*reports.lock().unwrap(), ["as asked"; 2]);
    // and on the way to its end: the bomb waits until the handler is over, and its panic comes back
    // to the dropping thread.
    fill(&m);
    for _ in 0..2 {
        let last = new(&m, record);
        assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| drop(last))).is_err());
    }
    assert_eq!((live(&heap), armed.load(SeqCst)), (0, 96));
    assert_eq!(reports.lock().unwrap().len(), 2);
    // A weak reference's callback is one, too.
    unsafe extern "C" fn call(_: *mut RawObject, _: *mut RawObject) {
        let kept = KEPT.lock().unwrap().pop();
        drop(kept);
    }
    fill(&m);
    let (target, callback) = (new(&m, record), new(&m, record));
    set(&target, 0, Some(&target));
    // SAFETY: a living object, and a function for the callback.
    let weak = unsafe {
        dynamic::new_weakref(
            &m,
            dynamic::Obj::new(dynamic::as_raw(&target)),
            Some((callback, call)),
        )
    }
    .unwrap();
    drop(target);
    assert_eq!(m.collect().collected, 1);
    assert_eq!((live(&heap), armed.load(SeqCst)), (1, 94));
    drop(weak);
    assert_eq!(live(&heap), 0);
}

#[test]
fn a_weak_reference_without_a_type_gives_no_object_that_dies() {
    static WEAK: Mutex<Option<GcWeak<AnyObject>>> = Mutex::new(None);
    static MAP: Mutex<Option<Gc<GcWeakMap<AnyGc, u8>>>> = Mutex::new(None);
    static SEEN: Mutex<Option<(bool, usize)>> = Mutex::new(None);
    unsafe extern "C" fn dealloc(object: *mut RawObject) {
        // SAFETY: a dying pair, whose count is above 0 for a moment.
        unsafe {
            let this = NonNull::new_unchecked(object);
            assert!(dynamic::Obj::new(this).incref());
            Mutator::with_current(|m| {
                let weak = WEAK.lock().unwrap();
                let upgraded = weak.as_ref().and_then(|weak| weak.upgrade(m));
                let map = MAP.lock().unwrap();
                let entries = map.as_ref().map_or(0, |map| map.entries(m).len());
                *SEEN.lock().unwrap() = Some((upgraded.is_some(), entries));
            });
            assert!(dynamic::decref(this));
            pair_dealloc(object);
        }
    }
    let mut spec = pair_spec("tests.Weak");
    spec.slots.dealloc = Some(dealloc);
    let record = ready(&spec).unwrap();
    let heap = Heap::builder().reserve(1 << 30).pacing(Pacing::manual()).build().unwrap();
    let m = heap.attach();
    let object = new(&m, record);
    let map = GcWeakMap::new(&m);
    map.insert(&m, &object, 1);
    *WEAK.lock().unwrap() = Some(AnyGc::downgrade(&object, &m));
    *MAP.lock().unwrap() = Some(map);
    assert!(WEAK.lock().unwrap().as_ref().unwrap().upgrade(&m).is_some_and(|it| it == object));
    drop(object);
    assert_eq!(SEEN.lock().unwrap().take(), Some((false, 0)));
    assert!(WEAK.lock().unwrap().take().unwrap().upgrade(&m).is_none());
    drop(MAP.lock().unwrap().take());
    assert_eq!(live(&heap), 0);
}

#[test]
fn a_dealloc_handler_that_counts_its_object_up_and_down_destroys_nothing_else() {
    let _watch = deadline("counting dealloc");
    static NEXT: Mutex<Vec<AnyGc>> = Mutex::new(Vec::new());
    static MADE: AtomicUsize = AtomicUsize::new(0);
    unsafe extern "C" fn dealloc(object: *mut RawObject) {
        // SAFETY: a dying pair.
        unsafe {
            let this = NonNull::new_unchecked(object);
            assert!(dynamic::Obj::new(this).incref());
            assert!(dynamic::decref(this));
            let record = dynamic::Obj::new(this).record();
            pair_dealloc(object);
            // Most likely where the old one was.
            if MADE.fetch_add(1, SeqCst) == 0 {
                Mutator::with_current(|m| NEXT.lock().unwrap().push(new(m, record)));
            }
        }
    }
    let mut spec = pair_spec("tests.Counting");
    spec.slots.dealloc = Some(dealloc);
    let record = ready(&spec).unwrap();
    let heap =
        Heap::builder().reserve(1 << 30).pacing(Pacing::manual()).checked(false).build().unwrap();
    let m = heap.attach();
    let first = new(&m, record);
    let place = dynamic::as_raw(&first);
    drop(first);
    let next = NEXT.lock().unwrap().pop().expect("made");
    assert_eq!(dynamic::as_raw(&next), place, "the cell is used again");
    assert_eq!((live(&heap), next.strong_count()), (1, 1));
    drop(next);
    assert_eq!((live(&heap), MADE.load(SeqCst)), (0, 2));
}

/// An object that another thread drops last is in its owner's queue until the next safepoint. This
/// also holds if the owner, which has the only remaining reference, moves the object or frees its
/// memory before.
#[test]
fn a_queued_object_leaves_its_queue_before_its_memory_is_freed() {
    let _watch = deadline("queued");
    let record = items_type();
    for moves in [true, false] {
        let heap = Heap::builder()
            .reserve(1 << 30)
            .pacing(Pacing::manual())
            .checked(false)
            .build()
            .unwrap();
        let mut m = heap.attach();
        let make = || dynamic::allocate(&m, record, 4, 0).unwrap();
        let object = make();
        // SAFETY: objects of this heap; every reference is dropped once.
        unsafe {
            assert!(dynamic::Obj::new(object).incref());
            let (heap, theirs) = (&heap, dynamic::from_raw(object));
            std::thread::scope(|scope| {
                scope.spawn(move || {
                    let _m = heap.attach();
                    drop(theirs);
                });
            });
            if moves {
                assert!(dynamic::decref(dynamic::resize(&m, object, 40).unwrap()));
            } else {
                dynamic::free(&m, object, Family::Container).unwrap();
            }
            let next = make();
            assert_eq!(next, object, "the cell is used again");
            assert!(dynamic::decref(next));
        }
        m.safepoint();
        let (one, other) = (new(&m, record), new(&m, record));
        assert!(one != other, "one cell is handed out twice");
        drop((one, other));
        m.verify().unwrap();
        assert_eq!(live(&heap), 0);
    }
}

/// Such an object stays, but it has no name any more: its type may be gone.
#[test]
fn an_object_that_its_dealloc_handler_has_not_freed_is_not_told_at_the_end_of_its_heap() {
    let _watch = deadline("unfreed object");
    unsafe extern "C" fn dealloc(_: *mut RawObject) {}
    let mut spec = pair_spec("tests.Unfreed");
    spec.slots.dealloc = Some(dealloc);
    // SAFETY: the handlers are a pair's.
    let record = unsafe { dynamic::ready_static(&spec, std::ptr::null_mut()) }.unwrap();
    let heap = heap();
    let told = Arc::new(Mutex::new(Vec::new()));
    let to = told.clone();
    heap.on_unraisable(move |error| to.lock().unwrap().push(error.type_name.clone()));
    drop(heap.services());
    let m = heap.attach();
    drop(new(&m, record));
    let pair = new(&m, static_pair(false));
    assert_eq!(live(&heap), 2);
    drop((m, heap));
    assert_eq!(*told.lock().unwrap(), ["tests.Pair"]);
    drop(pair);
}

/// A dealloc handler that has taken a reference to its object still has it: the memory stays, and
/// references to the object remain valid.
#[test]
fn s_074_a_dealloc_handler_cannot_free_its_object_while_references_remain() {
    let _watch = deadline("given away");
    static CODE: Mutex<Option<Code>> = Mutex::new(None);
    unsafe extern "C" fn dealloc(object: *mut RawObject) {
        // SAFETY: a dying pair.
        unsafe {
            let this = NonNull::new_unchecked(object);
            assert!(dynamic::Obj::new(this).incref());
            Mutator::with_current(|m| {
                dynamic::Obj::new(this).untrack(m).unwrap();
                *CODE.lock().unwrap() =
                    dynamic::free(m, this, Family::Container).err().map(|fault| fault.code);
            });
        }
    }
    let mut spec = pair_spec("tests.Given");
    spec.slots.dealloc = Some(dealloc);
    let record = ready(&spec).unwrap();
    let heap = heap();
    let m = heap.attach();
    let object = new(&m, record);
    let place = dynamic::as_raw(&object);
    drop(object);
    assert_eq!(CODE.lock().unwrap().take(), Some(Code::ReferencesLeft));
    // SAFETY: the address of an object of this heap.
    assert_eq!(unsafe { dynamic::look_up(&m, place) }, Address::Live);
    assert_eq!(live(&heap), 1);
}

/// After any change of the count by a dealloc handler, a weak reference leads to its object no
/// more. Here another thread tries while the handler has a reference.
#[test]
fn a_weak_reference_to_an_object_in_its_dealloc_handler_is_dead() {
    let _watch = deadline("upgrade in dealloc");
    static COUNTED: Barrier = Barrier::new(2);
    static ASKED: Barrier = Barrier::new(2);
    unsafe extern "C" fn dealloc(object: *mut RawObject) {
        // SAFETY: a dying pair.
        unsafe {
            let this = NonNull::new_unchecked(object);
            assert!(dynamic::Obj::new(this).incref());
            COUNTED.wait();
            ASKED.wait();
            assert!(dynamic::decref(this));
            pair_dealloc(object);
        }
    }
    let mut spec = pair_spec("tests.Countdown");
    spec.slots.dealloc = Some(dealloc);
    spec.slots.finalize = Some(finalize);
    /// Does nothing: its object is taken back for it, and dies again.
    unsafe extern "C" fn finalize(_: *mut RawObject) {}
    let record = ready(&spec).unwrap();
    let heap =
        Heap::builder().reserve(1 << 30).pacing(Pacing::manual()).checked(false).build().unwrap();
    let mut m = heap.attach();
    let object = new(&m, record);
    // SAFETY: a living target.
    let weak =
        unsafe { dynamic::new_weakref(&m, dynamic::Obj::new(dynamic::as_raw(&object)), None) }
            .unwrap();
    std::thread::scope(|scope| {
        let (heap, weak) = (&heap, weak.clone());
        let asking = scope.spawn(move || {
            let m = heap.attach();
            COUNTED.wait();
            // SAFETY: alive.
            let target =
                unsafe { dynamic::Obj::new(dynamic::as_raw(&weak)).weakref_target(&m) }.unwrap();
            ASKED.wait();
            target.map(std::mem::forget).is_none()
        });
        drop(object);
        assert!(asking.join().unwrap(), "what is dying is alive again");
    });
    drop(weak);
    m.collect();
    m.verify().unwrap();
    assert_eq!(live(&heap), 0);
}

/// An object of a heap that is merged and immortal looks like a static one by its count, and is
/// none.
#[test]
fn an_immortal_type_without_an_owner_remains_a_type() {
    let _watch = deadline("immortal type");
    let heap = heap();
    let m = heap.attach();
    let class = Class::new("tests.Lasting").make(&m).unwrap();
    let theirs = std::thread::scope(|scope| {
        let (heap, class) = (&heap, &class);
        scope.spawn(move || {
            let _m = heap.attach();
            class.clone()
        });
        scope
            .spawn(move || {
                let _m = heap.attach();
                class.clone()
            })
            .join()
            .unwrap()
    });
    // The owner's last reference but those that the others have counted.
    drop(class);
    theirs.object().unwrap().immortalize(&m);
    theirs
        .object()
        .unwrap()
        .set_attribute(&m, "answer", Some(theirs.object().unwrap().clone()))
        .unwrap();
    let instance = theirs.instantiate(&m).unwrap();
    instance.set_attribute(&m, "name", Some(instance.clone())).unwrap();
    assert!(theirs.object().unwrap().attribute(&m, "answer").is_ok());
}

#[test]
fn a_handle_does_not_track_an_object_that_takes_no_part_in_collection() {
    let heap = heap();
    let misuses = Arc::new(Mutex::new(Vec::new()));
    heap.on_misuse({
        let misuses = Arc::clone(&misuses);
        move |fault| misuses.lock().unwrap().push(fault.code)
    });
    let m = heap.attach();
    let mut spec = TypeSpec::new("tests.Plain");
    spec.basic_size = size_of::<Pair>() as isize;
    let plain = new(&m, ready(&spec).unwrap());
    assert!(!plain.track(&m));
    assert!(!plain.is_tracked(&m));
    let pair = new(&m, static_pair(false));
    assert!(pair.untrack(&m) && pair.track(&m) && pair.is_tracked(&m));
    drop((plain, pair));
    assert_eq!(*misuses.lock().unwrap(), []);
    assert_eq!(live(&heap), 0);
}

/// Visits the fields alone, as the handler of a static type does.
unsafe extern "C" fn fields_traverse(
    object: *mut RawObject,
    visit: VisitProc,
    arg: *mut c_void,
) -> c_int {
    // SAFETY: a living pair.
    let fields = unsafe { *fields(object) };
    for field in fields.into_iter().filter(|field| !field.is_null()) {
        // SAFETY: the visitor accepts the object's references.
        let result = unsafe { visit(field, arg) };
        if result != 0 {
            return result;
        }
    }
    0
}

/// Each heap type is derived from the one before, and the first from a static type. All of them
/// inherit that type's handlers.
fn derive_on(m: &Mutator, length: usize) -> Vec<Type> {
    let mut spec = pair_spec("tests.Fields");
    spec.slots.traverse = Some(fields_traverse);
    // SAFETY: the handlers are a pair's.
    let base =
        Type::from_static(unsafe { dynamic::ready_static(&spec, std::ptr::null_mut()) }.unwrap());
    let mut types: Vec<Type> = Vec::new();
    while types.len() < length {
        let base = types.last().unwrap_or(&base);
        // SAFETY: the handlers are the static base's.
        types.push(
            unsafe { dynamic::ready_heap(m, &child("tests.Deep", &[base]), |_, _| {}) }.unwrap(),
        );
    }
    types
}

#[test]
fn instances_of_deeply_derived_types_are_collected() {
    let heap = heap();
    heap.on_misuse(|fault| panic!("{fault}"));
    let mut m = heap.attach();
    let types = derive_on(&m, 200);
    assert!(types[199].record().is_subtype_of(types[0].record()));
    assert!(!types[0].record().is_subtype_of(types[199].record()));
    for ty in [&types[0], &types[199]] {
        let first = new(&m, ty.record());
        let second = new(&m, ty.record());
        set(&first, 0, Some(&second));
        set(&second, 0, Some(&first));
    }
    assert_eq!(m.collect().collected, 4);
    drop(types);
    m.collect();
    assert_eq!(live(&heap), 0);
}
