//! The calls of safe code about dynamic objects in a traversal, and the library's knowledge about
//! the traversed object there.

#![cfg(not(loom))]
#![forbid(unsafe_code)]

mod common;

use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};

use common::deadline;
use standstill::dynamic::{self, Class, Type};
use standstill::{AnyGc, Code, Fault, Gc, Heap, Mutator, Pacing, Trace, Tracer, safepoint};

fn heap() -> Heap {
    Heap::builder().reserve(1 << 30).workers(1).pacing(Pacing::manual()).build().unwrap()
}

/// Each handle to a type owns a reference: also one that is made, or dropped, in a traversal.
#[test]
fn a_handle_to_a_type_owns_a_reference_wherever_it_is_made_and_dropped() {
    let _watch = deadline("handles to types");
    let heap = heap();
    let mut m = heap.attach();
    let class = Class::new("tests.Node").make(&m).unwrap();
    let object = class.instantiate(&m).unwrap();
    let count = || class.object().unwrap().strong_count();
    let before = count();
    for dropped_inside in [true, false] {
        let guard = safepoint::traversing();
        let handle = Type::of(&object, &m).unwrap();
        let copy = handle.clone();
        if dropped_inside {
            drop((handle, copy, guard));
        } else {
            drop(guard);
            assert_eq!(count(), before + 2);
            drop((handle, copy));
        }
        m.safepoint();
        assert_eq!(count(), before);
    }
    assert_eq!(class.record().name(), "tests.Node");
    drop((object, class));
    m.collect();
    assert_eq!(heap.stats().live_objects, 0);
}

/// The results of `dynamic::record_fault` in the traversals of `Empty`: how often it returned the
/// fault, and how often it did not.
static GIVEN_BACK: AtomicUsize = AtomicUsize::new(0);
static KEPT: AtomicUsize = AtomicUsize::new(0);

/// A value without bytes, which ends where the next cell begins.
#[repr(align(32))]
struct Empty;

impl Trace for Empty {
    fn traverse(_: &Self, _: &mut Tracer) {
        match dynamic::record_fault(Fault::new(Code::Custom, "tests")) {
            Ok(()) => &KEPT,
            Err(_) => &GIVEN_BACK,
        }
        .fetch_add(1, SeqCst);
    }
}

/// A value whose first word is not the address of a type. The word lies in the place where a
/// dynamic object has that address.
struct Words(#[allow(dead_code)] u64, #[allow(dead_code)] u64);

impl Trace for Words {
    fn traverse(_: &Self, _: &mut Tracer) {}
}

/// A traversal of a typed object runs no handler of a dynamic type, independently of the object's
/// value: the fault comes back.
#[test]
fn a_fault_noted_in_a_typed_traversal_comes_back() {
    let _watch = deadline("notes");
    for checked in [false, true] {
        let heap = Heap::builder()
            .reserve(1 << 30)
            .workers(1)
            .pacing(Pacing::manual())
            .checked(checked)
            .build()
            .unwrap();
        let told: Arc<Mutex<Vec<Fault>>> = Arc::default();
        heap.on_misuse({
            let told = told.clone();
            move |fault| told.lock().unwrap().push(fault.clone())
        });
        let mut m = heap.attach();
        let class = Class::new("tests.Neighbour").make(&m).unwrap();
        let keep: Vec<AnyGc> = (0..10).map(|_| class.instantiate(&m).unwrap()).collect();
        let all: Vec<(Gc<Empty>, Gc<Words>)> =
            (0..50).map(|_| (m.alloc(Empty), m.alloc(Words(0x4141_4141_4140, 0)))).collect();
        let before = (GIVEN_BACK.load(SeqCst), KEPT.load(SeqCst));
        m.collect();
        assert!(GIVEN_BACK.load(SeqCst) >= before.0 + 50, "each was traversed");
        assert_eq!(KEPT.load(SeqCst), before.1, "a typed traversal was taken for a handler");
        assert_eq!(told.lock().unwrap().len(), 0);
        drop((keep, all));
    }
}

/// Outside of all traversals, and under a guard without a traversal, there is no handler to note
/// anything for.
#[test]
fn a_fault_noted_without_a_handler_comes_back() {
    let heap = heap();
    let mut m = heap.attach();
    let class = Class::new("tests.Bystander").make(&m).unwrap();
    let keep = class.instantiate(&m).unwrap();
    m.collect();
    let fault = || Fault::new(Code::Custom, "tests");
    assert_eq!(dynamic::record_fault(fault()), Err(fault()));
    let guard = safepoint::traversing();
    assert_eq!(dynamic::record_fault(fault()), Err(fault()));
    drop(guard);
    drop(keep);
}

/// Under a guard the thread has no mutator, which dealloc handlers need. An object that would die
/// at a safepoint there dies at the next one after it.
#[test]
fn nothing_dies_at_a_safepoint_under_a_guard_and_nothing_is_forgotten() {
    let _watch = deadline("safepoints under a guard");
    let heap = heap();
    let mut m = heap.attach();
    let class = Class::new("tests.Mortal").make(&m).unwrap();
    let live = || heap.stats().live_objects;
    let before = live();
    let make = |m: &Mutator| {
        let (object, held) = (class.instantiate(m).unwrap(), class.instantiate(m).unwrap());
        object.set_attribute(m, "held", Some(held)).unwrap();
        object
    };
    let deferred = make(&m);
    std::thread::spawn(move || drop(deferred)).join().unwrap();
    let queued = make(&m);
    let copy = queued.clone();
    let heap_too = heap.clone();
    std::thread::spawn(move || {
        let _m = heap_too.attach();
        drop(copy);
    })
    .join()
    .unwrap();
    drop(queued);
    assert_eq!(live(), before + 4);
    let guard = safepoint::traversing();
    m.safepoint();
    assert_eq!(live(), before + 4, "destroyed where its handlers have no mutator");
    drop(guard);
    m.safepoint();
    assert_eq!(live(), before);
    m.verify().unwrap();
}

/// A mutator that ends under a guard leaves its doomed objects to other threads.
#[test]
fn objects_of_a_mutator_that_ends_under_a_guard_die_elsewhere() {
    let _watch = deadline("mutators that end under a guard");
    for others in [false, true] {
        let heap = heap();
        let mut first = others.then(|| heap.attach());
        let heap_too = heap.clone();
        let ends = move || {
            let mut m = heap_too.attach();
            let class = Class::new("tests.Left").make(&m).unwrap();
            let (deferred, queued) =
                (class.instantiate(&m).unwrap(), class.instantiate(&m).unwrap());
            let copy = queued.clone();
            let heap_too = heap_too.clone();
            std::thread::spawn(move || {
                drop(deferred);
                let _m = heap_too.attach();
                drop(copy);
            })
            .join()
            .unwrap();
            drop((queued, class));
            let guard = safepoint::traversing();
            m.safepoint();
            drop(m);
            drop(guard);
        };
        match &mut first {
            Some(first) => first.detach(|| std::thread::spawn(ends).join().unwrap()),
            None => std::thread::spawn(ends).join().unwrap(),
        }
        let mut m = first.unwrap_or_else(|| heap.attach());
        m.safepoint();
        m.collect();
        assert_eq!(heap.stats().live_objects, 0);
        m.verify().unwrap();
    }
}
