//! Calls at the limits of dynamic objects: in a traversal, with objects of another heap, of other
//! kinds, or of no heap; and traverse handlers under visitors that end the traversal.

#![cfg(not(loom))]

mod common;

use std::ffi::{c_int, c_void};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicIsize, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};

use common::deadline;
use standstill::dynamic::{
    self, BASE, Class, Family, Flags, METATYPE, MODULE, ModuleSpec, RawObject, RawVarObject, Type,
    TypeRecord, TypeSpec, VisitProc, WEAKREF,
};
use standstill::{AnyGc, Code, Fault, Gc, Heap, Mutator, Pacing, safepoint};

type Ptr = NonNull<RawObject>;

fn heap() -> Heap {
    Heap::builder()
        .reserve(1 << 30)
        .workers(1)
        .pacing(Pacing::manual())
        .checked(false)
        .build()
        .unwrap()
}

fn code<T>(result: Result<T, Fault>) -> Code {
    match result {
        Ok(_) => panic!("accepted"),
        Err(fault) => fault.code,
    }
}

/// A type for instances with attributes and items of a byte.
fn bytes_type(m: &Mutator) -> Type {
    let mut spec = TypeSpec::with_attributes("tests.Bytes");
    (spec.basic_size, spec.item_size) = (size_of::<RawVarObject>() as isize, 1);
    // SAFETY: the handlers are for attributes, which the type has.
    unsafe { dynamic::ready_heap(m, &spec, |_, _| {}) }.unwrap()
}

unsafe extern "C" fn visit_nothing(_: *mut RawObject, _: VisitProc, _: *mut c_void) -> c_int {
    0
}

unsafe extern "C" fn clear_nothing(_: *mut RawObject) -> c_int {
    0
}

/// A type that takes part in cycle collection and has neither fields nor attributes.
fn bare_spec(name: &str) -> TypeSpec {
    let mut spec = TypeSpec::new(name);
    spec.flags = Flags::HAVE_GC.and(Flags::BASE_TYPE);
    spec.slots.traverse = Some(visit_nothing);
    spec.slots.clear = Some(clear_nothing);
    spec
}

// -------------------------------------------------------------------------------- in a traversal

#[test]
fn in_a_traversal_calls_that_make_or_change_objects_are_refused_and_do_nothing() {
    let heap = heap();
    let m = heap.attach();
    let (class, bytes) = (Class::new("tests.Node").make(&m).unwrap(), bytes_type(&m));
    let object = class.instantiate(&m).unwrap();
    object.set_attribute(&m, "name", Some(class.instantiate(&m).unwrap())).unwrap();
    let tracked = dynamic::as_raw(&object);
    // SAFETY: ready types that live; objects of this thread, each of which is given back once.
    unsafe {
        let weak = dynamic::new_weakref(&m, dynamic::Obj::new(tracked), None).unwrap();
        let untracked = dynamic::allocate(&m, bytes.record(), 3, 0).unwrap();
        let (count, live) = (dynamic::Obj::new(tracked).count(), heap.stats().live_objects);
        let guard = safepoint::traversing();
        let refused = [
            ("allocate", code(dynamic::allocate(&m, class.record(), 0, 0))),
            ("allocate with items", code(dynamic::allocate(&m, bytes.record(), 3, 0))),
            ("allocate_tracked", code(dynamic::allocate_tracked(&m, class.record(), 0))),
            ("instantiate", code(class.instantiate(&m))),
            ("make", code(Class::new("tests.Other").make(&m))),
            ("get_attribute", code(dynamic::Obj::new(tracked).get_attribute(&m, "name"))),
            ("set_attribute", code(dynamic::Obj::new(tracked).set_attribute(&m, "name", None))),
            ("resize", code(dynamic::resize(&m, untracked, 5))),
            ("track", code(dynamic::Obj::new(untracked).track(&m))),
            ("untrack", code(dynamic::Obj::new(tracked).untrack(&m))),
            ("free", code(dynamic::free(&m, untracked, Family::Container))),
            ("new_weakref", code(dynamic::new_weakref(&m, dynamic::Obj::new(tracked), None))),
            ("weakref_target", code(dynamic::Obj::new(dynamic::as_raw(&weak)).weakref_target(&m))),
        ];
        let fault = dynamic::resize(&m, untracked, 5).unwrap_err();
        assert_eq!(fault.function, "resize", "before anything is looked at");
        let fault = dynamic::new_weakref(&m, dynamic::Obj::new(tracked), None).unwrap_err();
        assert_eq!(fault.function, "new_weakref");
        assert!(!dynamic::Obj::new(tracked).has_attribute(&m, "name"));
        assert!(!dynamic::Obj::new(tracked).clear_managed_dict());
        assert!(
            !dynamic::Obj::new(tracked).incref()
                && !dynamic::decref(tracked)
                && !dynamic::decref_last(&m, tracked)
        );
        drop(guard);
        for (function, code) in refused {
            assert_eq!(code, Code::InTraversal, "{function}");
        }
        assert_eq!((dynamic::Obj::new(tracked).count(), heap.stats().live_objects), (count, live));
        assert!(
            dynamic::Obj::new(tracked).has_attribute(&m, "name")
                && dynamic::Obj::new(tracked).is_tracked(&m)
        );
        assert!(!dynamic::Obj::new(untracked).is_tracked(&m));
        assert_eq!(dynamic::Obj::new(untracked).size().unwrap(), 3);
        drop(dynamic::from_raw(untracked));
    }
}

// ------------------------------------------------------------- of another heap, or of other kinds

#[test]
fn objects_of_another_heap_are_refused() {
    let (heap, other) = (heap(), self::heap());
    let (class, object) = other.attach_scoped(|m| {
        let class = Class::new("tests.Foreign").make(m).unwrap();
        let object = class.instantiate(m).unwrap();
        object.set_attribute(m, "name", Some(object.clone())).unwrap();
        (class, object)
    });
    let mut m = heap.attach();
    let foreign = dynamic::as_raw(&object);
    assert_eq!(code(class.instantiate(&m)), Code::ForeignPointer);
    assert_eq!(code(object.attribute(&m, "name")), Code::ForeignPointer);
    assert_eq!(code(object.set_attribute(&m, "name", None)), Code::ForeignPointer);
    // SAFETY: the object lives, and no other thread uses it.
    unsafe {
        assert!(dynamic::Obj::new(foreign).is_gc());
        assert_eq!(code(dynamic::Obj::new(foreign).track(&m)), Code::NotGcObject);
        assert_eq!(code(dynamic::Obj::new(foreign).untrack(&m)), Code::NotGcObject);
        let walk = dynamic::Obj::new(foreign).referents(&mut m, |_| panic!("it is not traversed"));
        assert_eq!(code(walk), Code::ForeignPointer);
        assert_eq!(code(dynamic::free(&m, foreign, Family::Container)), Code::WrongAllocator);
        assert!(
            !dynamic::Obj::new(foreign).track_common(&m)
                && !dynamic::Obj::new(foreign).untrack_common(&m)
        );
        assert!(!dynamic::free_common(&m, foreign));
        assert!(
            !dynamic::Obj::new(foreign).is_tracked(&m)
                && !dynamic::Obj::new(foreign).is_finalized(&m)
        );
    }
    m.collect();
    drop(m);
    let mut m = other.attach();
    assert!(object.attribute(&m, "name").unwrap() == object);
    // SAFETY: the object lives, and no other thread uses it.
    assert!(unsafe { dynamic::Obj::new(foreign).is_tracked(&m) });
    object.set_attribute(&m, "name", None).unwrap();
    drop((object, class));
    m.collect();
    assert_eq!(other.stats().live_objects, 0);
}

#[test]
fn typed_objects_have_no_attributes_and_no_type() {
    let heap = heap();
    let m = heap.attach();
    let typed = Gc::into_any(m.alloc(7u64));
    assert_eq!(code(typed.attribute(&m, "name")), Code::NoAttribute);
    assert_eq!(code(typed.set_attribute(&m, "name", Some(typed.clone()))), Code::NoAttribute);
    assert!(Type::of(&typed, &m).is_none());
    assert_eq!(code(Class::new("tests.OfNoModule").module(&typed).make(&m)), Code::WrongType);
}

#[test]
#[should_panic(expected = "another heap")]
fn the_type_of_an_object_of_another_heap_is_withheld() {
    let (heap, other) = (heap(), self::heap());
    let object = other
        .attach_scoped(|m| Class::new("tests.Foreign").make(m).unwrap().instantiate(m).unwrap());
    let m = heap.attach();
    let _ = Type::of(&object, &m);
}

// -------------------------------------------------------------------------------------- attributes

#[test]
fn an_attribute_that_is_not_there_cannot_be_read_or_removed() {
    let heap = heap();
    let m = heap.attach();
    // SAFETY: no handlers that matter.
    let bare = unsafe { dynamic::ready_heap(&m, &bare_spec("tests.Bare"), |_, _| {}) }.unwrap();
    let class = Class::new("tests.Node").make(&m).unwrap();
    let (object, without) = (class.instantiate(&m).unwrap(), bare.instantiate(&m).unwrap());
    for _ in 0..2 {
        for fault in [
            object.attribute(&m, "name").unwrap_err(),
            object.set_attribute(&m, "name", None).unwrap_err(),
        ] {
            assert_eq!((fault.code, fault.type_name), (Code::NoAttribute, "tests.Node"));
            assert!(
                fault.to_string().contains("'tests.Node' object has no attribute 'name'"),
                "{fault}"
            );
        }
        object.set_attribute(&m, "name", Some(without.clone())).unwrap();
        object.set_attribute(&m, "name", None).unwrap();
    }
    for value in [None, Some(object.clone())] {
        let fault = without.set_attribute(&m, "name", value).unwrap_err();
        assert_eq!((fault.code, fault.type_name), (Code::NoAttribute, "tests.Bare"));
        assert_eq!(fault.address, dynamic::as_raw(&without).as_ptr() as usize);
    }
    assert_eq!(object.strong_count(), 1);
}

/// The visits that a visitor of [`Visits`] has seen, and the visit at which it answers 7.
struct Visits {
    seen: Vec<*mut RawObject>,
    last: usize,
}

unsafe extern "C" fn record_visit(target: *mut RawObject, arg: *mut c_void) -> c_int {
    // SAFETY: called with the argument of `visits`.
    let visits = unsafe { &mut *arg.cast::<Visits>() };
    visits.seen.push(target);
    if visits.seen.len() == visits.last { 7 } else { 0 }
}

/// The answer of an object's traverse handler and its visits, with a visitor that answers 7 to the
/// visit of `last`.
fn visits(object: Ptr, last: usize) -> (c_int, Vec<*mut RawObject>) {
    let mut visits = Visits { seen: Vec::new(), last };
    // SAFETY: a living object, its own handler, and a visitor with its argument.
    let answer = unsafe {
        let handler =
            dynamic::Obj::new(object).record().slots().traverse.expect("a traverse handler");
        handler(object.as_ptr(), record_visit, (&raw mut visits).cast())
    };
    (answer, visits.seen)
}

/// The dictionary of a type is the type's own, and no managed one: a type visits it itself, and
/// keeps it.
#[test]
fn the_managed_dictionary_of_a_type_is_none() {
    let heap = heap();
    let m = heap.attach();
    let class = Class::new("tests.Node").make(&m).unwrap();
    let object = class.instantiate(&m).unwrap();
    let of_type = class.object().unwrap();
    of_type.set_attribute(&m, "name", Some(object.clone())).unwrap();
    object.set_attribute(&m, "name", Some(object.clone())).unwrap();
    let mut seen = Visits { seen: Vec::new(), last: 0 };
    // SAFETY: living objects of this thread; the visitor takes the argument.
    unsafe {
        let arg = (&raw mut seen).cast();
        assert_eq!(
            dynamic::Obj::new(dynamic::as_raw(of_type))
                .visit_managed_dict(dynamic::Visitor::new(record_visit, arg)),
            0
        );
        assert_eq!(
            dynamic::Obj::new(dynamic::as_raw(&object))
                .visit_managed_dict(dynamic::Visitor::new(record_visit, arg)),
            0
        );
        assert_eq!(seen.seen, [dynamic::as_raw(&object).as_ptr()]);
        assert!(dynamic::Obj::new(dynamic::as_raw(of_type)).clear_managed_dict());
        assert!(dynamic::Obj::new(dynamic::as_raw(&object)).clear_managed_dict());
    }
    assert!(of_type.attribute(&m, "name").unwrap() == object);
    assert_eq!(code(object.attribute(&m, "name")), Code::NoAttribute);
    of_type.set_attribute(&m, "name", None).unwrap();
}

/// The arguments of [`changes`]: a mutator, the object with the visited dictionary, and the number
/// of visited values.
type Changes<'a> = (&'a Mutator, &'a AnyGc, usize);

/// Adds an attribute and removes the two that were there, in the middle of a visit.
unsafe extern "C" fn changes(value: *mut RawObject, arg: *mut c_void) -> c_int {
    // SAFETY: the test's argument, which no other thread uses meanwhile.
    let (m, object, seen) = unsafe { &mut *arg.cast::<Changes<'_>>() };
    *seen += 1;
    object.set_attribute(m, &format!("new{seen}"), Some(object.clone())).unwrap();
    if *seen == 1 {
        object.set_attribute(m, "one", None).unwrap();
        object.set_attribute(m, "other", None).unwrap();
    }
    // The visit keeps the value alive, although its attribute is gone.
    // SAFETY: a living object.
    let value = unsafe { dynamic::Obj::new(NonNull::new(value).unwrap()) };
    assert_eq!(value.record().name(), "tests.Node");
    assert!(dynamic::is_dynamic(object));
    0
}

#[test]
fn a_visitor_outside_of_traversals_may_change_the_dictionary_that_it_visits() {
    let _watch = deadline("a visit to a dictionary");
    let heap = heap();
    let mut m = heap.attach();
    let class = Class::new("tests.Node").make(&m).unwrap();
    let object = class.instantiate(&m).unwrap();
    for name in ["one", "other"] {
        object.set_attribute(&m, name, Some(class.instantiate(&m).unwrap())).unwrap();
    }
    let mut arg: Changes<'_> = (&m, &object, 0);
    // SAFETY: a living object of this thread; the visitor takes the argument.
    let answer = unsafe {
        dynamic::Obj::new(dynamic::as_raw(&object))
            .visit_managed_dict(dynamic::Visitor::new(changes, (&raw mut arg).cast()))
    };
    assert_eq!((answer, arg.2), (0, 2));
    let has = ["one", "other", "new1", "new2"].map(|name| object.attribute(&m, name).is_ok());
    assert_eq!(has, [false, false, true, true]);
    drop((object, class));
    m.collect();
    assert_eq!(heap.stats().live_objects, 0);
}

// --------------------------------------------------------------------------------------- handlers

unsafe extern "C" fn visit_twice(
    object: *mut RawObject,
    visit: VisitProc,
    arg: *mut c_void,
) -> c_int {
    for _ in 0..2 {
        // SAFETY: called with a visitor and its argument.
        let answer = unsafe { visit(object, arg) };
        if answer != 0 {
            return answer;
        }
    }
    0
}

unsafe extern "C" fn no_call(_: *mut RawObject, _: *mut RawObject) {}

/// The traverse handlers of the library return the visitor's answer, and visit no more then.
#[test]
fn a_visitor_that_wants_no_more_is_called_no_more() {
    let heap = heap();
    let m = heap.attach();
    let mut spec = ModuleSpec::new("tests.module");
    spec.traverse = Some(visit_twice);
    // SAFETY: the handlers are for any object.
    let (module, below_static) = unsafe {
        let module = dynamic::new_module(&m, spec).unwrap();
        let mut spec = bare_spec("tests.Twice");
        spec.slots.traverse = Some(visit_twice);
        let fixed = Type::from_static(dynamic::ready_static(&spec, std::ptr::null_mut()).unwrap());
        let mut spec = TypeSpec::new("tests.BelowStatic");
        spec.bases = vec![fixed];
        (module, dynamic::ready_heap(&m, &spec, |_, _| {}).unwrap())
    };
    let base = Class::new("tests.Base").make(&m).unwrap();
    let class = Class::new("tests.Derived").base(&base).module(&module).make(&m).unwrap();
    let (object, value) = (class.instantiate(&m).unwrap(), base.instantiate(&m).unwrap());
    object.set_attribute(&m, "name", Some(value.clone())).unwrap();
    let of_type = class.object().unwrap().clone();
    of_type.set_attribute(&m, "name", Some(value.clone())).unwrap();
    let inherited = below_static.instantiate(&m).unwrap();
    // SAFETY: a living target; the function does nothing with the callback.
    let (called, plain) = unsafe {
        let target = dynamic::as_raw(&value);
        let called =
            dynamic::new_weakref(&m, dynamic::Obj::new(target), Some((value.clone(), no_call)))
                .unwrap();
        (called, dynamic::new_weakref(&m, dynamic::Obj::new(target), None).unwrap())
    };
    let at = |gc: &AnyGc| dynamic::as_raw(gc).as_ptr();
    let type_at = |ty: &Type| at(ty.object().unwrap());
    let all: [(&str, &AnyGc, Vec<_>); 6] = [
        ("an instance", &object, vec![type_at(&class), at(&value)]),
        ("a type", &of_type, vec![type_at(&base), at(&module), at(&value)]),
        ("a module", &module, vec![at(&module); 2]),
        (
            "under a static base",
            &inherited,
            vec![type_at(&below_static), at(&inherited), at(&inherited)],
        ),
        ("a weak reference with a callback", &called, vec![at(&value)]),
        ("a weak reference", &plain, vec![]),
    ];
    for (what, object, wanted) in &all {
        let object = dynamic::as_raw(object);
        assert_eq!(visits(object, 0), (0, wanted.clone()), "{what}");
        for last in 1..=wanted.len() {
            assert_eq!(
                visits(object, last),
                (7, wanted[..last].to_vec()),
                "{what}, at visit {last}"
            );
        }
    }
    of_type.set_attribute(&m, "name", None).unwrap();
}

/// Handlers are C functions: with null, or before their object is whole, they do nothing and answer
/// 0.
#[test]
fn handlers_of_the_library_bear_null_and_objects_that_are_not_whole() {
    let heap = heap();
    let m = heap.attach();
    let class = Class::new("tests.Node").make(&m).unwrap();
    // SAFETY: no handlers that matter.
    let below = unsafe {
        let fixed = dynamic::ready_static(&bare_spec("tests.Fixed"), std::ptr::null_mut()).unwrap();
        let mut spec = TypeSpec::new("tests.BelowFixed");
        spec.bases = vec![Type::from_static(fixed)];
        dynamic::ready_heap(&m, &spec, |_, _| {}).unwrap()
    };
    let mut seen = Visits { seen: Vec::new(), last: 0 };
    for record in [METATYPE.get(), MODULE.get(), WEAKREF.get(), class.record(), below.record()] {
        let slots = record.slots();
        // SAFETY: the handlers are the library's, which take null.
        unsafe {
            let arg = (&raw mut seen).cast();
            assert_eq!(
                slots.traverse.unwrap()(std::ptr::null_mut(), record_visit, arg),
                0,
                "{}",
                record.name()
            );
            assert_eq!(slots.clear.unwrap()(std::ptr::null_mut()), 0, "{}", record.name());
            if let Some(dealloc) = slots.dealloc {
                dealloc(std::ptr::null_mut());
            }
        }
    }
    for record in [MODULE.get(), WEAKREF.get()] {
        // SAFETY: a ready type; the object is zeroed, and of this thread.
        unsafe {
            let object = dynamic::allocate(&m, record, 0, 0).unwrap();
            let slots = record.slots();
            let arg = (&raw mut seen).cast();
            assert_eq!(
                slots.traverse.unwrap()(object.as_ptr(), record_visit, arg),
                0,
                "{}",
                record.name()
            );
            assert_eq!(slots.clear.unwrap()(object.as_ptr()), 0, "{}", record.name());
            assert_eq!(dynamic::Obj::new(object).module_state(), None);
            let live = heap.stats().live_objects;
            drop(dynamic::from_raw(object));
            assert_eq!(heap.stats().live_objects, live - 1);
        }
    }
    assert!(seen.seen.is_empty());
}

// ---------------------------------------------------------------------------------------- classes

#[test]
fn a_class_has_the_base_module_and_finalizer_of_its_description() {
    let _watch = deadline("classes");
    static FINALIZED: AtomicUsize = AtomicUsize::new(0);
    fn finalizer(_: &AnyGc, _: &Mutator) {
        FINALIZED.fetch_add(1, SeqCst);
    }
    let heap = heap();
    let mut m = heap.attach();
    // SAFETY: no handlers.
    let module = unsafe { dynamic::new_module(&m, ModuleSpec::new("tests.module")) }.unwrap();
    let plain = Class::new("tests.Plain").make(&m).unwrap();
    let class = Class::new("tests.Class")
        .base(&plain)
        .module(&module)
        .finalizer(finalizer)
        .make(&m)
        .unwrap();
    let below = Class::new("tests.Below").base(&class).make(&m).unwrap();
    let last = Class::new("tests.Last").base(&below).make(&m).unwrap();
    assert_eq!(dynamic::type_module(class.record()), Some(dynamic::as_raw(&module)));
    for without in [&plain, &below, &last] {
        assert_eq!(dynamic::type_module(without.record()), None);
    }
    assert!(plain.record().slots().finalize.is_none());
    for (ty, finalized) in [(&plain, 0), (&class, 1), (&below, 1), (&last, 1)] {
        let object = ty.instantiate(&m).unwrap();
        object.set_attribute(&m, "name", Some(object.clone())).unwrap();
        let before = FINALIZED.load(SeqCst);
        drop(object);
        assert_eq!(m.collect().collected, 1);
        assert_eq!(FINALIZED.load(SeqCst) - before, finalized, "{}", ty.record().name());
    }
    // A base that takes part in cycle collection brings its own handlers, and its instances have no
    // attributes. SAFETY: no handlers that matter.
    let bare = unsafe { dynamic::ready_heap(&m, &bare_spec("tests.Bare"), |_, _| {}) }.unwrap();
    let of_bare = Class::new("tests.OfBare").base(&bare).make(&m).unwrap();
    assert_eq!(
        of_bare.record().slots().traverse.map(|f| f as usize),
        Some(visit_nothing as *const () as usize)
    );
    let object = of_bare.instantiate(&m).unwrap();
    assert_eq!(code(object.set_attribute(&m, "name", Some(object.clone()))), Code::NoAttribute);
}

static ITEMS: AtomicIsize = AtomicIsize::new(-1);

unsafe extern "C" fn own_alloc(face: *mut c_void, items: isize) -> *mut RawObject {
    ITEMS.store(items, SeqCst);
    // SAFETY: the face of these types is their record, or the object of a heap type, whose record
    // the library finds.
    let made = Mutator::with_current(|m| unsafe {
        let record = dynamic::Obj::new(NonNull::new(face.cast()).unwrap()).describe().unwrap();
        dynamic::allocate_tracked(m, record, items)
    });
    made.expect("attached").expect("room").as_ptr()
}

unsafe extern "C" fn refusing_alloc(_: *mut c_void, _: isize) -> *mut RawObject {
    std::ptr::null_mut()
}

#[test]
fn a_type_is_instantiated_by_its_own_allocator() {
    let heap = heap();
    let m = heap.attach();
    let with = |alloc: dynamic::AllocProc| {
        let mut spec = bare_spec("tests.Allocated");
        spec.slots.alloc = Some(alloc);
        // SAFETY: the allocators are for heap types.
        unsafe { dynamic::ready_heap(&m, &spec, |_, _| {}) }.unwrap()
    };
    let own = with(own_alloc);
    let object = own.instantiate(&m).unwrap();
    assert!(std::ptr::eq(Type::of(&object, &m).unwrap().record(), own.record()));
    assert_eq!(ITEMS.load(SeqCst), 0, "no items were asked for");
    assert_eq!(code(with(refusing_alloc).instantiate(&m)), Code::Memory);
    let fault = METATYPE.handle().instantiate(&m).unwrap_err();
    assert_eq!((fault.code, fault.type_name), (Code::WrongType, "type"));
    assert!(fault.to_string().contains("`Class::make`"), "{fault}");
    // A face that the library does not know: it is not read.
    static FACE: [u64; 8] = [u64::MAX; 8];
    // SAFETY: no handlers that matter.
    let record: &TypeRecord = unsafe {
        dynamic::ready_static(&bare_spec("tests.Faced"), (&raw const FACE).cast_mut().cast())
    }
    .unwrap();
    let object = Type::from_static(record).instantiate(&m).unwrap();
    assert!(std::ptr::eq(Type::of(&object, &m).unwrap().record(), record));
    assert!(!BASE.get().has_gc());
}

// ----------------------------------------------------------------------------------- checked mode

/// One reference.
#[repr(C)]
struct Link {
    base: std::mem::MaybeUninit<RawObject>,
    to: *mut RawObject,
}

/// Visits the reference, and not the type.
unsafe extern "C" fn link_traverse(
    object: *mut RawObject,
    visit: VisitProc,
    arg: *mut c_void,
) -> c_int {
    // SAFETY: a living link, and a visitor with its argument.
    unsafe {
        let to = (*object.cast::<Link>()).to;
        if to.is_null() { 0 } else { visit(to, arg) }
    }
}

unsafe extern "C" fn link_clear(object: *mut RawObject) -> c_int {
    // SAFETY: a living link, which owns the reference.
    unsafe {
        let to = std::mem::replace(&mut (*object.cast::<Link>()).to, std::ptr::null_mut());
        if let Some(to) = NonNull::new(to) {
            assert!(dynamic::decref(to));
        }
    }
    0
}

fn link_spec(name: &str) -> TypeSpec {
    let mut spec = TypeSpec::new(name);
    spec.basic_size = size_of::<Link>() as isize;
    spec.flags = Flags::HAVE_GC;
    spec.slots.traverse = Some(link_traverse);
    spec.slots.clear = Some(link_clear);
    spec
}

fn set_link(object: &AnyGc, to: &AnyGc) {
    // SAFETY: a link without a reference, of one thread, which owns the new one.
    unsafe {
        (*dynamic::as_raw(object).as_ptr().cast::<Link>()).to =
            dynamic::into_raw(to.clone()).as_ptr();
    }
}

/// A heap that records the reported mistakes: the code, the type, and whether a hook may use the
/// heap.
type Reports = Arc<Mutex<Vec<(Code, &'static str, bool)>>>;

fn recorded(checked: bool) -> (Heap, Reports) {
    let heap = Heap::builder()
        .reserve(1 << 30)
        .workers(1)
        .pacing(Pacing::manual())
        .checked(checked)
        .build()
        .unwrap();
    let reports = Reports::default();
    let told = reports.clone();
    heap.on_misuse(move |fault| {
        told.lock().unwrap().push((fault.code, fault.type_name, safepoint::is_traversing()));
    });
    (heap, reports)
}

fn take(reports: &Reports) -> Vec<(Code, &'static str, bool)> {
    std::mem::take(&mut *reports.lock().unwrap())
}

/// Checked mode tries the handlers of each type once: at its first instance.
#[test]
fn a_handler_that_forgets_its_type_or_dictionary_is_reported_at_the_first_instance() {
    for checked in [false, true] {
        let (heap, reports) = recorded(checked);
        let m = heap.attach();
        let make = |spec: &TypeSpec| {
            // SAFETY: the handlers are for links, for attributes, or for any object.
            unsafe { dynamic::ready_heap(&m, spec, |_, _| {}) }.unwrap()
        };
        let no_type = make(&link_spec("tests.NoType"));
        let mut spec = TypeSpec::with_attributes("tests.NoDict");
        spec.slots.traverse = Some(visit_type);
        let no_dict = make(&spec);
        let good = Class::new("tests.Good").make(&m).unwrap();
        let plain = make(&TypeSpec::new("tests.Plain"));
        let wanted = [
            (&plain, None),
            (&good, None),
            (&no_type, Some((Code::MissingTypeVisit, "tests.NoType", false))),
            (&good, None),
            (&no_dict, Some((Code::MissingDictVisit, "tests.NoDict", false))),
        ];
        for (ty, report) in wanted {
            drop(ty.instantiate(&m).unwrap());
            assert_eq!(take(&reports), Vec::from_iter(report.filter(|_| checked)), "{ty:?}");
            drop(ty.instantiate(&m).unwrap());
            assert_eq!(take(&reports), [], "{ty:?} again");
            if ty.record().has_gc() {
                // SAFETY: a ready type; the object is of this thread, and its type's handlers are
                // for it.
                unsafe {
                    let object = dynamic::allocate(&m, ty.record(), 0, 0).unwrap();
                    dynamic::Obj::new(object).track(&m).unwrap();
                    drop(dynamic::from_raw(object));
                }
                assert_eq!(take(&reports), [], "{ty:?}, tracked by hand");
            }
        }
    }
}

unsafe extern "C" fn visit_type(
    object: *mut RawObject,
    visit: VisitProc,
    arg: *mut c_void,
) -> c_int {
    // SAFETY: a living object of a heap type, and a visitor with its argument.
    unsafe { visit(dynamic::Obj::new(NonNull::new_unchecked(object)).record().object(), arg) }
}

/// Without checked mode a clear handler is called, and its object is not examined further.
#[test]
fn without_checked_mode_a_cleared_object_is_not_traversed_again() {
    let (heap, reports) = recorded(false);
    let mut m = heap.attach();
    // SAFETY: the handlers are a link's.
    let ty = unsafe { dynamic::ready_heap(&m, &link_spec("tests.Link"), |_, _| {}) }.unwrap();
    let object = ty.instantiate(&m).unwrap();
    set_link(&object, &object);
    drop(object);
    assert_eq!(m.collect().collected, 1);
    assert_eq!(take(&reports), []);
}

/// Clears nothing.
unsafe extern "C" fn keep_all(_: *mut RawObject) -> c_int {
    0
}

/// A reference that a clear handler leaves, to an object that the collection does not hold, is as
/// good as before.
#[test]
fn a_reference_that_a_clear_handler_leaves_is_no_mistake() {
    let (heap, reports) = recorded(true);
    let mut m = heap.attach();
    let mut spec = link_spec("tests.Keeping");
    spec.slots.clear = Some(keep_all);
    // SAFETY: the handlers are for links, or for any object.
    let (keeping, plain) = unsafe {
        let keeping =
            Type::from_static(dynamic::ready_static(&spec, std::ptr::null_mut()).unwrap());
        (keeping, dynamic::ready_heap(&m, &TypeSpec::new("tests.Plain"), |_, _| {}).unwrap())
    };
    let (object, held) = (keeping.instantiate(&m).unwrap(), plain.instantiate(&m).unwrap());
    set_link(&object, &held);
    drop(held);
    // SAFETY: a living link of this thread; its handlers are called as the collector calls them.
    unsafe {
        let this = dynamic::as_raw(&object);
        assert_eq!(
            dynamic::Obj::new(NonNull::new((*this.as_ptr().cast::<Link>()).to).unwrap()).count(),
            Some(1)
        );
    }
    let ring = Class::new("tests.Ring").make(&m).unwrap().instantiate(&m).unwrap();
    ring.set_attribute(&m, "me", Some(ring.clone())).unwrap();
    ring.set_attribute(&m, "object", Some(object)).unwrap();
    drop(ring);
    assert!(m.collect().collected >= 1);
    assert_eq!(take(&reports), []);
}

unsafe extern "C" fn record_mistakes(_: *mut RawObject, _: VisitProc, _: *mut c_void) -> c_int {
    let fault = || Fault::new(Code::Custom, "tests");
    dynamic::record_fault(fault()).unwrap();
    dynamic::record_fault(fault().of_type("tests.Named")).unwrap();
    0
}

/// A walk over an object's references is a traversal. A fault that its handler records is reported
/// right after it, outside, with the type that the fault names, or otherwise with the type of the
/// object.
#[test]
fn a_mistake_in_a_walk_is_reported_when_the_walk_is_over() {
    let (heap, reports) = recorded(false);
    let mut m = heap.attach();
    let mut spec = bare_spec("tests.Noting");
    spec.slots.traverse = Some(record_mistakes);
    // SAFETY: the handlers are for any object.
    let ty =
        Type::from_static(unsafe { dynamic::ready_static(&spec, std::ptr::null_mut()) }.unwrap());
    let object = ty.instantiate(&m).unwrap();
    assert_eq!(take(&reports), []);
    for _ in 0..2 {
        // SAFETY: a living object of this thread.
        unsafe {
            dynamic::Obj::new(dynamic::as_raw(&object))
                .referents(&mut m, |_| panic!("there is none"))
        }
        .unwrap();
        assert_eq!(
            take(&reports),
            [(Code::Custom, "tests.Noting", false), (Code::Custom, "tests.Named", false)]
        );
    }
}

/// The handlers of types with attributes, in a type that has none.
#[test]
fn a_static_type_with_the_handlers_for_attributes_visits_nothing() {
    let heap = heap();
    let m = heap.attach();
    let mut spec = TypeSpec::with_attributes("tests.Static");
    spec.flags = Flags::HAVE_GC;
    // SAFETY: the handlers are the library's.
    let record = unsafe { dynamic::ready_static(&spec, std::ptr::null_mut()) }.unwrap();
    let object = Type::from_static(record).instantiate(&m).unwrap();
    assert_eq!(visits(dynamic::as_raw(&object), 0), (0, vec![]));
}

// ----------------------------------------------------------------------------------------- memory

/// Fills an object behind its head and its number of items.
unsafe fn fill(object: Ptr, from: usize, to: usize) {
    // SAFETY: called for objects of that size, by their one user.
    unsafe { object.cast::<u8>().add(from).write_bytes(0xff, to - from) };
}

/// New objects are zero, independently of the memory's earlier content, and nothing is written
/// outside of them.
#[test]
fn a_new_object_is_zero_and_its_neighbours_are_as_they_were() {
    let heap = heap();
    let mut m = heap.attach();
    let head = size_of::<RawObject>();
    for (size, gc) in (head..=208).step_by(8).flat_map(|size| [(size, false), (size, true)]) {
        let mut spec = if gc { bare_spec("tests.Sized") } else { TypeSpec::new("tests.Sized") };
        spec.basic_size = size as isize;
        spec.slots.traverse = gc.then_some(visit_nothing);
        // SAFETY: the handlers are for any object.
        let record = unsafe { dynamic::ready_static(&spec, std::ptr::null_mut()) }.unwrap();
        let make = |at: usize| {
            // SAFETY: a ready type of this thread's; the reference goes over.
            unsafe {
                let common =
                    at.is_multiple_of(2).then(|| dynamic::allocate_common(&m, record)).flatten();
                let made =
                    common.unwrap_or_else(|| dynamic::allocate_tracked(&m, record, 0).unwrap());
                assert_eq!(dynamic::Obj::new(made).is_tracked(&m), gc);
                let bytes =
                    std::slice::from_raw_parts(made.as_ptr().cast::<u8>().add(head), size - head);
                assert!(bytes.iter().all(|&byte| byte == 0), "{size} bytes are not zero");
                fill(made, head, size);
                dynamic::from_raw(made)
            }
        };
        let mut all: Vec<AnyGc> = (0..100).map(make).collect();
        // SAFETY: alive; a head has more bytes.
        let first = unsafe { dynamic::as_raw(&all[99]).cast::<u64>().read() };
        for round in 0..3 {
            for at in (round..100).step_by(3) {
                let before = std::mem::replace(&mut all[at], make(at + round));
                drop(before);
            }
            for object in &all {
                let this = dynamic::as_raw(object);
                // SAFETY: alive, and of this size.
                unsafe {
                    assert_eq!(
                        dynamic::Obj::new(this).count(),
                        Some(1),
                        "the head of an object of {size} bytes"
                    );
                    // The word with its owner.
                    assert_eq!(
                        this.cast::<u64>().read(),
                        first,
                        "the head of an object of {size} bytes"
                    );
                    assert!(std::ptr::eq(dynamic::Obj::new(this).record(), record));
                    let bytes = std::slice::from_raw_parts(
                        this.as_ptr().cast::<u8>().add(head),
                        size - head,
                    );
                    assert!(bytes.iter().all(|&byte| byte == 0xff), "an object of {size} bytes");
                }
            }
        }
    }
    m.collect();
    m.verify().unwrap();
    assert_eq!(heap.stats().live_objects, 0);
}

/// An object has no attributes before one is set, independently of its memory's earlier content.
#[test]
fn a_new_object_has_no_attributes() {
    let heap = heap();
    let m = heap.attach();
    let head = size_of::<RawObject>();
    for size in (head..=128).step_by(8) {
        let mut spec = TypeSpec::with_attributes("tests.Attributed");
        spec.basic_size = size as isize;
        let mut filler = TypeSpec::new("tests.Filler");
        // SAFETY: the handlers are for attributes, which the type has.
        let ty = unsafe { dynamic::ready_heap(&m, &spec, |_, _| {}) }.unwrap();
        for bytes in [
            size.next_multiple_of(16),
            (size + 8).next_multiple_of(16),
            (size + 8).next_multiple_of(32),
        ] {
            filler.basic_size = bytes as isize;
            // SAFETY: no handlers; the filled objects are of that size.
            let filled: Vec<AnyGc> = unsafe {
                let filler = dynamic::ready_static(&filler, std::ptr::null_mut()).unwrap();
                let make = || {
                    let object = dynamic::allocate(&m, filler, 0, 0).unwrap();
                    fill(object, head, bytes);
                    dynamic::from_raw(object)
                };
                (0..50).map(|_| make()).collect()
            };
            drop(filled);
            for _ in 0..50 {
                let object = ty.instantiate(&m).unwrap();
                assert_eq!(code(object.attribute(&m, "name")), Code::NoAttribute);
                object.set_attribute(&m, "name", Some(ty.object().unwrap().clone())).unwrap();
                // The fields are the user's, up to the last byte.
                // SAFETY: alive, and of that size.
                unsafe { fill(dynamic::as_raw(&object), head, size) };
                assert!(object.attribute(&m, "name").is_ok());
            }
        }
    }
}

/// How many items of a byte an object of the type can claim to have, made with so many, before a
/// resize sees that it has no room for them.
fn claimed(m: &Mutator, ty: &Type, items: isize) -> isize {
    // SAFETY: objects of this thread with the number of items behind the head, which are given back
    // with their right number.
    let accepts = |claim: isize| unsafe {
        let object = dynamic::allocate(m, ty.record(), items, 0).unwrap();
        let size =
            object.as_ptr().cast::<RawVarObject>().cast::<isize>().byte_add(size_of::<RawObject>());
        size.write(claim);
        match dynamic::resize(m, object, items) {
            Ok(object) => {
                drop(dynamic::from_raw(object));
                true
            }
            Err(fault) => {
                assert_eq!(fault.code, Code::BadSize);
                size.write(items);
                drop(dynamic::from_raw(object));
                false
            }
        }
    };
    let most =
        (items..items + 1000).take_while(|&claim| accepts(claim)).last().expect("what it has");
    assert!(!accepts(-most - 1) && !accepts(isize::MAX) && !accepts(isize::MIN));
    most
}

/// A number of items that the user has overwritten is checked before so many are copied. Memory
/// behind the object is no item, and neither is the word with its attributes.
#[test]
fn a_resize_copies_no_more_than_the_object_has_room_for() {
    let heap = heap();
    let m = heap.attach();
    let with = bytes_type(&m);
    let mut spec = bare_spec("tests.PlainBytes");
    (spec.basic_size, spec.item_size) = (size_of::<RawVarObject>() as isize, 1);
    // SAFETY: the handlers are for any object.
    let without = unsafe { dynamic::ready_heap(&m, &spec, |_, _| {}) }.unwrap();
    // 40 items and 8 bytes for the attributes, or 48 items: the same room.
    assert_eq!(claimed(&m, &with, 40) + 8, claimed(&m, &without, 48));
    let class = Class::new("tests.Node").make(&m).unwrap();
    // SAFETY: objects of this thread; refused, so they stay.
    unsafe {
        for items in [0, 3] {
            let object = dynamic::allocate(&m, class.record(), 0, 0).unwrap();
            assert_eq!(code(dynamic::resize(&m, object, items)), Code::NotResizable);
            drop(dynamic::from_raw(object));
        }
    }
}

/// An object with items is tracked by its allocator too: its constructor may track it once more,
/// and once only.
#[test]
fn a_constructor_may_track_an_object_that_its_allocator_has_tracked() {
    for checked in [false, true] {
        let (heap, reports) = recorded(checked);
        let m = heap.attach();
        let (items, class) = (bytes_type(&m), Class::new("tests.Node").make(&m).unwrap());
        // SAFETY: ready types; objects of this thread, given back once.
        unsafe {
            for (ty, count) in [(&items, 3), (&items, 0), (&class, 0)] {
                let object = dynamic::allocate_tracked(&m, ty.record(), count).unwrap();
                assert!(dynamic::Obj::new(object).is_tracked(&m));
                dynamic::Obj::new(object).track(&m).unwrap();
                assert_eq!(code(dynamic::Obj::new(object).track(&m)), Code::AlreadyTracked);
                dynamic::Obj::new(object).untrack(&m).unwrap();
                dynamic::Obj::new(object).untrack(&m).unwrap();
                assert!(!dynamic::Obj::new(object).is_tracked(&m));
                dynamic::Obj::new(object).track(&m).unwrap();
                assert_eq!(code(dynamic::Obj::new(object).track(&m)), Code::AlreadyTracked);
                drop(dynamic::from_raw(object));
            }
            assert!(dynamic::allocate_common(&m, class.record()).is_none(), "it has a dictionary");
            // A type is made from a description.
            assert_eq!(code(dynamic::allocate(&m, METATYPE.get(), 0, 0)), Code::WrongType);
            assert_eq!(code(dynamic::allocate(&m, METATYPE.get(), 0, 8)), Code::WrongType);
        }
        assert_eq!(take(&reports), []);
    }
}

unsafe extern "C" fn end_in_common(object: *mut RawObject) {
    // SAFETY: a dying object of a static type, with memory that is freed once.
    Mutator::with_current(|m| unsafe {
        let object = NonNull::new_unchecked(object);
        assert!(
            dynamic::Obj::new(object).is_tracked(m) && !dynamic::free_common(m, object),
            "it is tracked"
        );
        for _ in 0..2 {
            assert!(
                dynamic::Obj::new(object).untrack_common(m)
                    && !dynamic::Obj::new(object).is_tracked(m)
            );
        }
        assert!(dynamic::free_common(m, object));
    });
}

#[test]
fn the_common_cases_end_an_object_in_its_dealloc_handler() {
    let heap = heap();
    let mut m = heap.attach();
    let mut spec = bare_spec("tests.Ending");
    spec.slots.dealloc = Some(end_in_common);
    // SAFETY: the handlers are for any object of a static type.
    let record = unsafe { dynamic::ready_static(&spec, std::ptr::null_mut()) }.unwrap();
    // SAFETY: a ready type; the reference is given up.
    drop(unsafe { dynamic::from_raw(dynamic::allocate_common(&m, record).unwrap()) });
    m.collect();
    m.verify().unwrap();
    assert_eq!(heap.stats().live_objects, 0);
}

/// The fast paths return without an effect if a check is needed.
#[test]
fn the_common_cases_leave_everything_else_to_the_functions_behind_them() {
    let (checked, _) = recorded(true);
    let (heap, _) = recorded(false);
    // SAFETY: the handlers are for any object.
    let (record, plain) = unsafe {
        let plain =
            dynamic::ready_static(&TypeSpec::new("tests.Plain"), std::ptr::null_mut()).unwrap();
        (dynamic::ready_static(&bare_spec("tests.Bare"), std::ptr::null_mut()).unwrap(), plain)
    };
    // SAFETY: ready types; objects of this thread, each given back once.
    unsafe {
        checked.attach_scoped(|m| assert!(dynamic::allocate_common(m, record).is_none()));
        let m = heap.attach();
        let object = dynamic::allocate_common(&m, record).unwrap();
        // Tracked by its allocator: once more, and no further.
        assert!(
            dynamic::Obj::new(object).track_common(&m)
                && !dynamic::Obj::new(object).track_common(&m)
        );
        assert!(
            dynamic::Obj::new(object).untrack_common(&m)
                && !dynamic::Obj::new(object).is_tracked(&m)
        );
        assert!(dynamic::Obj::new(object).untrack_common(&m));
        assert!(
            dynamic::Obj::new(object).track_common(&m) && dynamic::Obj::new(object).is_tracked(&m)
        );
        assert!(!dynamic::Obj::new(object).track_common(&m));
        assert!(!dynamic::free_common(&m, object), "it is alive");
        assert!(dynamic::Obj::new(object).untrack_common(&m) && !dynamic::free_common(&m, object));
        // One that another thread refers to, too.
        let shared = dynamic::allocate_tracked(&m, record, 0).unwrap();
        let handle = dynamic::Obj::new(shared).share();
        std::thread::scope(|scope| {
            scope.spawn(|| drop(handle.clone())).join().unwrap();
        });
        assert!(
            dynamic::Obj::new(shared).track_common(&m)
                && !dynamic::Obj::new(shared).track_common(&m)
        );
        assert_eq!(code(dynamic::Obj::new(shared).track(&m)), Code::AlreadyTracked);
        drop(handle);
        let leaf = dynamic::allocate(&m, plain, 0, 0).unwrap();
        assert!(
            !dynamic::Obj::new(leaf).track_common(&m)
                && !dynamic::Obj::new(leaf).untrack_common(&m)
        );
        assert!(!dynamic::free_common(&m, leaf) && !dynamic::Obj::new(leaf).is_tracked(&m));
        for object in [object, shared, leaf] {
            drop(dynamic::from_raw(object));
        }
    }
    assert_eq!(heap.stats().live_objects, 0);
}

/// Checked mode checks the fields of a tracked object, also if its allocator has tracked it before.
#[test]
fn checked_mode_tracks_no_object_with_a_reference_to_a_freed_one() {
    for checked in [true, false] {
        let (heap, reports) = recorded(checked);
        let m = heap.attach();
        // SAFETY: the handlers are for links, or for any object. The dangling reference is taken
        // out before anything is dropped.
        unsafe {
            let record =
                dynamic::ready_static(&link_spec("tests.Link"), std::ptr::null_mut()).unwrap();
            let plain =
                dynamic::ready_static(&TypeSpec::new("tests.Plain"), std::ptr::null_mut()).unwrap();
            for by_allocator in [true, false] {
                let object = match by_allocator {
                    true => dynamic::allocate_tracked(&m, record, 0).unwrap(),
                    false => dynamic::allocate(&m, record, 0, 0).unwrap(),
                };
                let link = object.as_ptr().cast::<Link>();
                let gone = dynamic::allocate(&m, plain, 0, 0).unwrap();
                drop(dynamic::from_raw(gone));
                (*link).to = gone.as_ptr();
                let tracked = dynamic::Obj::new(object).track(&m);
                (*link).to = std::ptr::null_mut();
                match checked {
                    true => assert_eq!(code(tracked), Code::FreedPointer),
                    false => tracked.unwrap(),
                }
                assert_eq!(dynamic::Obj::new(object).is_tracked(&m), by_allocator || !checked);
                drop(dynamic::from_raw(object));
            }
        }
        assert_eq!(take(&reports), []);
    }
}

/// The kinds of an address: an object of the heap, a freed one, one of another heap, a static one,
/// other memory, or memory that cannot be read.
#[test]
fn an_address_is_classified_by_the_memory_there() {
    use standstill::dynamic::Address;
    let ((heap, _), (other, _)) = (recorded(true), recorded(false));
    let foreign = other.attach_scoped(|m| Class::new("tests.Foreign").make(m).unwrap());
    let foreign = dynamic::as_raw(foreign.object().unwrap());
    let fixed = NonNull::from(Box::leak(Box::new(RawObject::immortal())));
    let words = NonNull::from(Box::leak(Box::new([0u64; 8])));
    // Two static objects, one behind the other, and an address in their middle.
    let two = NonNull::from(Box::leak(Box::new([RawObject::immortal(), RawObject::immortal()])));
    let nowhere = NonNull::new(std::ptr::without_provenance_mut::<RawObject>(1 << 47)).unwrap();
    // SAFETY: an address is examined as far as its memory can be read; no object is used.
    unsafe {
        assert_eq!(dynamic::look_up_here(fixed), None, "the thread has no heap");
        other.attach_scoped(|_| {
            assert_eq!(dynamic::look_up_here(fixed), None, "its heap is not checked")
        });
        let m = heap.attach();
        let class = Class::new("tests.Node").make(&m).unwrap();
        let (live, gone) =
            (dynamic::as_raw(class.object().unwrap()), class.instantiate(&m).unwrap());
        let freed = dynamic::as_raw(&gone);
        drop(gone);
        for (address, what) in [
            (live, Address::Live),
            (freed, Address::Freed),
            (live.byte_add(8), Address::Foreign),
            (foreign, Address::Foreign),
            (fixed, Address::Static),
            (two.cast::<RawObject>().add(1), Address::Static),
            (two.cast::<RawObject>().byte_add(4), Address::Outside),
            (words.cast(), Address::Outside),
            (nowhere, Address::Nowhere),
        ] {
            assert_eq!(dynamic::look_up(&m, address), what, "{address:?}");
            assert_eq!(dynamic::look_up_here(address), Some(what), "{address:?}");
        }
        assert!(dynamic::Head::new(fixed).typed().is_none() && !dynamic::Head::new(fixed).is_gc());
        dynamic::set_static_type(fixed, BASE.get());
        assert!(dynamic::Head::new(fixed).record().is_some_and(|it| std::ptr::eq(it, BASE.get())));
        assert_eq!(code(dynamic::new_weakref(&m, dynamic::Obj::new(fixed), None)), Code::WrongType);
        assert!(
            dynamic::Obj::new(fixed).incref()
                && dynamic::decref(fixed)
                && dynamic::Obj::new(fixed).count().is_none()
        );
        drop(dynamic::Obj::new(fixed).share());
        assert!(
            dynamic::Obj::new(fixed).describe().is_none()
                && dynamic::Obj::new(live).describe().is_some()
        );
    }
}

#[test]
fn descriptions_of_nothing_make_the_simplest_types_and_modules() {
    let heap = heap();
    let m = heap.attach();
    // SAFETY: no handlers.
    unsafe {
        let ty = dynamic::ready_heap(&m, &TypeSpec::new("tests.Simple"), |_, _| {}).unwrap();
        let record = ty.record();
        assert_eq!(
            (record.basic_size(), record.item_size(), record.data_size()),
            (size_of::<RawObject>(), 0, 0)
        );
        assert_eq!((record.token(), record.module()), (0, std::ptr::null_mut()));
        assert!(
            record.base().is_some_and(|base| std::ptr::eq(base, BASE.get())) && !record.has_gc()
        );
        assert!(record.slots().dealloc.is_none() && BASE.get().slots().dealloc.is_none());
        assert_eq!((BASE.get().token(), BASE.get().data_size(), BASE.get().item_size()), (0, 0, 0));
        let module = dynamic::new_module(&m, ModuleSpec::new("tests.module")).unwrap();
        let this = dynamic::as_raw(&module);
        assert_eq!(dynamic::Obj::new(this).module_state(), Some(std::ptr::null_mut()));
        assert_eq!(
            (dynamic::Obj::new(this).module_token(), dynamic::Obj::new(this).module_face()),
            (Some(0), Some(std::ptr::null()))
        );
        assert!(dynamic::Obj::new(this).is_tracked(&m));
        let mut spec = TypeSpec::new("tests.OfModule");
        spec.module = Some(module.clone());
        let of_module = dynamic::ready_heap(&m, &spec, |_, _| {}).unwrap();
        assert_eq!(dynamic::type_module_by_token(of_module.record(), 0), None, "0 is no token");
        assert_eq!(dynamic::type_module(of_module.record()), Some(this));
        assert_eq!(code(dynamic::new_module(&m, ModuleSpec::new("tests\0module"))), Code::BadSlot);
        assert_eq!(code(dynamic::ready_heap(&m, &TypeSpec::new(""), |_, _| {})), Code::BadSlot);
    }
}

unsafe extern "C" fn answer_seven(_: *mut RawObject, _: VisitProc, _: *mut c_void) -> c_int {
    7
}

unsafe extern "C" fn visit_null(_: *mut RawObject, visit: VisitProc, arg: *mut c_void) -> c_int {
    // SAFETY: a visitor with its argument.
    unsafe { visit(std::ptr::null_mut(), arg) }
}

/// An answer that is the handler's own ends the walk with an error, also where handlers of the type
/// are called one at a time. A visit of null is a mistake at no address, and the walk goes on.
#[test]
fn an_answer_of_a_handlers_own_is_an_error_of_the_walk() {
    let heap = heap();
    let addresses = Arc::new(Mutex::new(Vec::new()));
    let told = addresses.clone();
    heap.on_misuse(move |fault| told.lock().unwrap().push((fault.code, fault.address)));
    let mut m = heap.attach();
    for flags in [Flags::HAVE_GC, Flags::HAVE_GC.and(Flags::SERIAL_TRAVERSE)] {
        let make = |name: &str, traverse: dynamic::TraverseProc| {
            let mut spec = bare_spec(name);
            spec.flags = flags;
            spec.slots.traverse = Some(traverse);
            // SAFETY: the handlers are for any object.
            let record = unsafe { dynamic::ready_static(&spec, std::ptr::null_mut()) }.unwrap();
            Type::from_static(record).instantiate(&m).unwrap()
        };
        let (seven, null) =
            (make("tests.Seven", answer_seven), make(&format!("tests.Null{flags:?}"), visit_null));
        // SAFETY: living objects of this thread.
        unsafe {
            let fault = dynamic::Obj::new(dynamic::as_raw(&seven))
                .referents(&mut m, |_| panic!("there is none"))
                .unwrap_err();
            assert_eq!((fault.code, fault.type_name), (Code::HandlerError, "tests.Seven"));
            assert!(fault.to_string().contains("returned 7"), "{fault}");
            dynamic::Obj::new(dynamic::as_raw(&null))
                .referents(&mut m, |_| panic!("there is none"))
                .unwrap();
        }
        assert_eq!(std::mem::take(&mut *addresses.lock().unwrap()), [(Code::NullVisit, 0)]);
    }
}

// ----------------------------------------------------------------------------------- other borders

/// The functions in the slots of a type take its face: its object, or its record.
#[test]
fn the_slots_that_are_filled_in_can_be_called() {
    let (heap, reports) = recorded(false);
    let m = heap.attach();
    // SAFETY: the handlers are for any object; the slots are called as a runtime calls them, and
    // objects given back once.
    unsafe {
        let fixed = Type::from_static(
            dynamic::ready_static(&bare_spec("tests.Fixed"), std::ptr::null_mut()).unwrap(),
        );
        let made = dynamic::ready_heap(&m, &bare_spec("tests.Made"), |_, _| {}).unwrap();
        for ty in [fixed, made] {
            let (record, slots) = (ty.record(), ty.record().slots());
            let (alloc, free) = (slots.alloc.unwrap(), slots.free.unwrap());
            assert!(alloc(std::ptr::null_mut(), 0).is_null() && alloc(record.face(), -1).is_null());
            free(std::ptr::null_mut());
            let live = heap.stats().live_objects;
            for is_tracked in [true, false] {
                let object = NonNull::new(alloc(record.face(), 0)).unwrap();
                assert!(
                    std::ptr::eq(dynamic::Obj::new(object).record(), record)
                        && dynamic::Obj::new(object).is_tracked(&m)
                );
                if !is_tracked {
                    dynamic::Obj::new(object).untrack(&m).unwrap();
                }
                free(object.as_ptr().cast());
                let report = (Code::StillTracked, record.kept_name(), false);
                assert_eq!(take(&reports), Vec::from_iter(is_tracked.then_some(report)));
            }
            assert_eq!(heap.stats().live_objects, live);
        }
    }
}

/// A name that outlives its type is kept once.
#[test]
fn a_name_is_kept_once() {
    let heap = heap();
    let m = heap.attach();
    let names: Vec<_> = (0..3)
        .map(|_| Class::new("tests.KeptOnce").make(&m).unwrap().record().kept_name().as_ptr())
        .collect();
    assert!(names.iter().all(|&name| std::ptr::eq(name, names[0])));
}

#[test]
fn descriptions_that_make_no_sense_are_refused() {
    const MOST: isize = isize::MAX / 2;
    let heap = heap();
    let m = heap.attach();
    let class = |name: &str, bases: &[&Type]| {
        bases.iter().fold(Class::new(name), |class, base| class.base(base)).make(&m)
    };
    let (a, b) = (class("tests.A", &[]).unwrap(), class("tests.B", &[]).unwrap());
    let (ab, ba) = (class("tests.AB", &[&a, &b]).unwrap(), class("tests.BA", &[&b, &a]).unwrap());
    let fault = class("tests.Neither", &[&ab, &ba]).unwrap_err();
    assert_eq!(fault.code, Code::BadMro);
    assert!(fault.to_string().contains("tests.AB, tests.BA"), "{fault}");
    // SAFETY: no handlers that matter, and no instances.
    let ready = |change: &dyn Fn(&mut TypeSpec)| unsafe {
        let mut spec = TypeSpec::new("tests.Sized");
        change(&mut spec);
        dynamic::ready_static(&spec, std::ptr::null_mut())
    };
    assert_eq!(ready(&|spec| spec.basic_size = MOST).unwrap().basic_size(), MOST as usize);
    for size in [MOST + 1, isize::MAX, isize::MIN, -MOST, 8] {
        assert_eq!(code(ready(&|spec| spec.basic_size = size)), Code::BadSize, "{size}");
    }
    assert_eq!(code(ready(&|spec| spec.item_size = -1)), Code::BadSize);
    for (basic, item) in [(33, 8), (32, 4), (36, 8), (24, 8)] {
        let references = |spec: &mut TypeSpec| {
            (spec.basic_size, spec.item_size) = (basic, item);
            spec.flags = Flags::ITEMS_ARE_REFERENCES;
        };
        assert_eq!(code(ready(&references)), Code::BadSize, "{basic} {item}");
    }
    assert_eq!(
        code(ready(&|spec| spec.bases = vec![a.clone()])),
        Code::BadBase,
        "a heap type under a static one"
    );
    for (size, wanted) in [
        (usize::MAX, Code::BadSize),
        (MOST as usize + 1, Code::BadSize),
        (MOST as usize, Code::Memory),
    ] {
        let mut spec = TypeSpec::new("tests.Faced");
        spec.face_size = size;
        // SAFETY: no handlers.
        assert_eq!(code(unsafe { dynamic::ready_heap(&m, &spec, |_, _| {}) }), wanted, "{size}");
    }
}

/// Objects of other types are no modules and no weak references, independently of the values in the
/// places of their parts.
#[test]
fn an_object_of_another_type_has_no_parts() {
    let heap = heap();
    let m = heap.attach();
    // SAFETY: the handlers are a link's; living objects of this thread.
    unsafe {
        let record = dynamic::ready_static(&link_spec("tests.Link"), std::ptr::null_mut()).unwrap();
        let link = Type::from_static(record).instantiate(&m).unwrap();
        let (this, held) = (dynamic::as_raw(&link), bytes_type(&m).instantiate(&m).unwrap());
        set_link(&link, &held);
        assert_eq!(
            (dynamic::Obj::new(this).module_state(), dynamic::Obj::new(this).module_token()),
            (None, None)
        );
        assert!(
            dynamic::Obj::new(this).module_face().is_none()
                && dynamic::Obj::new(this).module_name().is_none()
        );
        assert_eq!(code(dynamic::Obj::new(this).weakref_target(&m)), Code::WrongType);
        assert!(
            dynamic::Obj::new(dynamic::as_raw(&held)).item_data().is_none(),
            "its items are not at the end"
        );
        let mut spec = TypeSpec::new("tests.NoItems");
        spec.flags = Flags::ITEMS_AT_END;
        let none = dynamic::ready_heap(&m, &spec, |_, _| {}).unwrap().instantiate(&m).unwrap();
        assert!(dynamic::Obj::new(dynamic::as_raw(&none)).item_data().is_none(), "it has no items");
    }
}

static CALLS: AtomicUsize = AtomicUsize::new(0);

unsafe extern "C" fn count_calls(_: *mut RawObject, _: *mut RawObject) {
    CALLS.fetch_add(1, SeqCst);
}

/// A cleared weak reference has no callback, and gives its reference to it up.
#[test]
fn a_cleared_weak_reference_calls_nothing() {
    let heap = heap();
    let m = heap.attach();
    let class = Class::new("tests.Node").make(&m).unwrap();
    let (target, callback) = (class.instantiate(&m).unwrap(), class.instantiate(&m).unwrap());
    // SAFETY: living objects of this thread; the handler is called as the collector calls it.
    unsafe {
        let make = || {
            dynamic::new_weakref(
                &m,
                dynamic::Obj::new(dynamic::as_raw(&target)),
                Some((callback.clone(), count_calls)),
            )
            .unwrap()
        };
        let (cleared, kept) = (make(), make());
        assert_eq!(callback.strong_count(), 3);
        assert_eq!(WEAKREF.get().slots().clear.unwrap()(dynamic::as_raw(&cleared).as_ptr()), 0);
        assert_eq!(callback.strong_count(), 2);
        drop(make());
        assert_eq!(callback.strong_count(), 2, "a weak reference owns its callback");
        drop(target);
        assert_eq!(CALLS.load(SeqCst), 1, "the other one");
        drop((cleared, kept));
    }
    assert_eq!(callback.strong_count(), 1);
}

/// A type may belong to a module of another heap: its reference goes when the type is collected.
#[test]
fn a_collected_type_gives_its_module_of_another_heap_back() {
    let (heap, other) = (heap(), self::heap());
    let module = other.attach_scoped(|m| {
        // SAFETY: no handlers.
        unsafe { dynamic::new_module(m, ModuleSpec::new("tests.module")) }.unwrap()
    });
    {
        let mut m = heap.attach();
        let class = Class::new("tests.OfFar").module(&module).make(&m).unwrap();
        class.object().unwrap().set_attribute(&m, "me", class.object().cloned()).unwrap();
        drop(class);
        assert_eq!(m.collect().collected, 1);
        m.safepoint();
        assert_eq!(heap.stats().live_objects, 0);
    }
    let mut m = other.attach();
    for _ in 0..3 {
        m.safepoint();
        m.collect();
    }
    assert_eq!(module.strong_count(), 1);
    drop(module);
    m.collect();
    assert_eq!(other.stats().live_objects, 0);
}

static FREED: AtomicUsize = AtomicUsize::new(0);

unsafe extern "C" fn count_free(object: *mut c_void) {
    FREED.fetch_add(1, SeqCst);
    // SAFETY: called at an object's end.
    Mutator::with_current(|m| unsafe {
        dynamic::free(m, NonNull::new_unchecked(object.cast()), Family::Container).unwrap();
    });
}

/// A free function of a type's own gives the memory back, and in checked mode the memory rests,
/// however simple the type.
#[test]
fn simple_objects_end_by_their_free_function_and_rest_in_checked_mode() {
    for checked in [false, true] {
        let (heap, reports) = recorded(checked);
        let m = heap.attach();
        let mut spec = bare_spec("tests.Freed");
        spec.slots.free = Some(count_free);
        let mut refusing = bare_spec("tests.Refusing");
        refusing.slots.traverse = Some(answer_seven);
        // SAFETY: the handlers are for any object.
        unsafe {
            let own = dynamic::ready_static(&spec, std::ptr::null_mut()).unwrap();
            let simple =
                dynamic::ready_static(&bare_spec("tests.Simple"), std::ptr::null_mut()).unwrap();
            let before = FREED.load(SeqCst);
            drop(dynamic::from_raw(dynamic::allocate_tracked(&m, own, 0).unwrap()));
            assert_eq!(FREED.load(SeqCst), before + 1);
            let first = dynamic::allocate_tracked(&m, simple, 0).unwrap();
            drop(dynamic::from_raw(first));
            let next = dynamic::allocate_tracked(&m, simple, 0).unwrap();
            assert_eq!(first == next, !checked, "used again at once");
            drop(dynamic::from_raw(next));
            assert_eq!(take(&reports), []);
            // A handler that fails in the first traversal is reported; the object exists.
            let refusing = dynamic::ready_static(&refusing, std::ptr::null_mut()).unwrap();
            drop(dynamic::from_raw(dynamic::allocate_tracked(&m, refusing, 0).unwrap()));
            let report = (Code::HandlerError, "tests.Refusing", false);
            assert_eq!(take(&reports), Vec::from_iter(checked.then_some(report)));
        }
    }
}

/// The face of a type is its runtime's, up to the last byte.
#[test]
fn the_library_writes_nothing_to_the_face_of_a_type() {
    let heap = heap();
    let m = heap.attach();
    let head = size_of::<RawObject>();
    for size in (32..=128).step_by(8) {
        let mut spec = TypeSpec::new("tests.Faced");
        spec.face_size = size;
        // SAFETY: the object has so many bytes; nothing else is written to them.
        unsafe {
            let ty = dynamic::ready_heap(&m, &spec, |object, _| fill(object, head, size)).unwrap();
            let this = dynamic::as_raw(ty.object().unwrap());
            let bytes =
                std::slice::from_raw_parts(this.as_ptr().cast::<u8>().add(head), size - head);
            assert!(bytes.iter().all(|&byte| byte == 0xff), "{size}");
            assert!(std::ptr::eq(dynamic::Obj::new(this).describe().unwrap(), ty.record()));
        }
    }
    for record in [METATYPE.get(), MODULE.get(), WEAKREF.get(), BASE.get()] {
        assert!(
            !record.flags().has(Flags::HEAP_TYPE)
                && !record.is_heap_type()
                && !record.face().is_null()
        );
    }
}
