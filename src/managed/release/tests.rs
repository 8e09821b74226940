//! Tests of drops and destructions.

use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use super::*;
use crate::heap::model::ObjectModel;
use crate::heap::parts::SplitCounts;
use crate::managed::merge_queue::MERGE_REQUEST;
use crate::managed::parts::Managed;
use crate::managed::tests::{Calls, Holds, Noting, Panics, Plain, on_attached_thread, plain_heap};
use std::sync::Arc;

use crate::managed::{destroy_dynamic_in_place, type_index};
use crate::object::address::Object;
use crate::object::tracer::Tracer;
use crate::{AnyGc, Finalizer, Gc, Heap, Mutator, SharedGc, Trace};

static DIED: AtomicUsize = AtomicUsize::new(0);

struct Loud;

impl Trace for Loud {
    fn traverse(_: &Self, _: &mut Tracer) {}
}

impl Drop for Loud {
    fn drop(&mut self) {
        DIED.fetch_add(1, SeqCst);
        panic!("a destructor that panics");
    }
}

/// Found by random programs on threads: after the first panic the other dead objects of a queue
/// were never destroyed.
#[test]
fn of_several_that_are_dead_all_are_destroyed_whoever_panics() {
    let heap = Heap::builder().reserve(1 << 30).build().unwrap();
    let reported = Arc::new(AtomicUsize::new(0));
    heap.on_unraisable({
        let reported = reported.clone();
        move |_| {
            reported.fetch_add(1, SeqCst);
        }
    });
    let m = heap.attach();
    let dead: Vec<_> = (0..3)
        .map(|_| m.alloc(Loud).into_reference().take_last(m.raw().id()).expect("the last"))
        .collect();
    let thrown = outside::guarded(|| destroy_each(m.raw(), dead.into_iter(), OnPanic::PassOn));
    assert!(thrown.is_err());
    assert_eq!((DIED.load(SeqCst), reported.load(SeqCst), heap.stats().live_objects), (3, 2, 0));
}

#[test]
fn what_another_thread_drops_waits_for_its_owner() {
    const OBJECTS: usize = 5;
    let heap = plain_heap();
    let mut m = heap.attach();
    let live = || heap.stats().live_objects;
    let queued = |m: &Mutator| m.raw().local().queue.len();
    let make = |m: &Mutator| -> Vec<Gc<u64>> { (0..OBJECTS as u64).map(|n| m.alloc(n)).collect() };
    // The owner is attached: a request makes it merge at its next safepoint.
    let objects = make(&m);
    on_attached_thread(&heap, |_| drop(objects));
    assert_eq!((queued(&m), live()), (Some(OBJECTS), OBJECTS));
    assert_ne!(m.raw().poll() & MERGE_REQUEST, 0, "it is asked");
    m.safepoint();
    assert_eq!((queued(&m), live(), m.raw().poll() & MERGE_REQUEST), (Some(0), 0, 0));
    // An object with another reference is merged, and stays alive.
    let objects = make(&m);
    let clones = objects.clone();
    on_attached_thread(&heap, |_| drop(objects));
    m.safepoint();
    assert_eq!((queued(&m), live()), (Some(0), OBJECTS));
    drop(clones);
    assert_eq!(live(), 0);
    // The owner is detached: the dropping thread merges for it.
    let objects = make(&m);
    m.detach(|| {
        on_attached_thread(&heap, |_| drop(objects));
        assert_eq!(live(), 0);
    });
    // The owner has ended.
    let objects = on_attached_thread(&heap, |m| make(m));
    assert_eq!(live(), OBJECTS);
    drop(objects);
    assert_eq!((live(), queued(&m)), (0, Some(0)));
    // A collection merges all queues.
    let objects = make(&m);
    on_attached_thread(&heap, |_| drop(objects));
    let world = m.raw().stop_here().expect("a stop");
    assert_eq!(Managed::pending(&world.core().model, &world), OBJECTS);
    let (mut dead, epoch) = (Vec::new(), m.raw().model().new_epoch());
    Managed::merge(&world.core().model, &world, &mut dead);
    assert_eq!((dead.len(), queued(&m), live()), (OBJECTS, Some(0), OBJECTS));
    assert_eq!(m.raw().local().seen.load(SeqCst), epoch, "a stop is a safepoint");
    drop(world);
    dead.into_iter().for_each(|dead| Managed::destroy_merged(m.raw().model(), dead, m.raw()));
    assert_eq!(live(), 0);
    // A thread that ends empties its queue.
    let (sender, receiver) = std::sync::mpsc::channel();
    let (go, going) = std::sync::mpsc::channel::<()>();
    std::thread::scope(|scope| {
        let (heap, make, queued) = (&heap, &make, &queued);
        scope.spawn(move || {
            let m = heap.attach();
            sender.send(make(&m)).expect("a receiver");
            // Attached, and at no safepoint.
            going.recv().expect("a sender");
            assert_eq!(queued(&m), Some(OBJECTS));
        });
        drop(receiver.recv().expect("a sender"));
        assert_eq!(live(), OBJECTS);
        go.send(()).expect("a receiver");
    });
    assert_eq!(live(), 0);
}

/// Objects without and with a destructor die alike, also by a handle that does not know the type.
#[test]
fn an_object_ends_with_its_last_reference_whatever_its_type_and_never_in_a_stop() {
    use crate::AnyGc;
    type Make = fn(&Mutator) -> Box<dyn std::any::Any>;
    let makes: [Make; 5] = [
        |m| Box::new(m.alloc(7u64)),
        |m| Box::new(m.alloc(vec![7u64])),
        |m| Box::new(AnyGc::from(m.alloc(vec![7u64]))),
        |m| Box::new(m.alloc_shared(vec![7u64])),
        |m| Box::new(Gc::from(m.alloc_shared(vec![7u64]))),
    ];
    let clone = |handle: &Box<dyn std::any::Any>| -> Box<dyn std::any::Any> {
        if let Some(handle) = handle.downcast_ref::<Gc<u64>>() {
            Box::new(handle.clone())
        } else if let Some(handle) = handle.downcast_ref::<Gc<Vec<u64>>>() {
            Box::new(handle.clone())
        } else if let Some(handle) = handle.downcast_ref::<SharedGc<Vec<u64>>>() {
            Box::new(handle.clone())
        } else {
            Box::new(handle.downcast_ref::<AnyGc>().expect("one of four").clone())
        }
    };
    let heap = plain_heap();
    let live = || heap.stats().live_objects;
    for make in makes {
        let m = heap.attach();
        let one = make(&m);
        let other = clone(&one);
        drop(one);
        assert_eq!(live(), 1);
        drop(other);
        assert_eq!(live(), 0);
        // In a stop the reference is deferred.
        let one = make(&m);
        let world = m.raw().stop_here().expect("a stop");
        drop(one);
        assert_eq!(live(), 1);
        drop(world);
        Managed::resumed(m.raw().model(), m.raw());
        assert_eq!(live(), 0);
    }
    let m = heap.attach();
    for is_held in [false, true] {
        let one = m.alloc(7u64);
        let weak = Gc::downgrade(&one, &m);
        let other = is_held.then(|| one.clone());
        drop(one);
        assert_eq!((weak.upgrade(&m).is_some(), live()), (is_held, usize::from(is_held)));
        drop(other);
        assert_eq!((weak.upgrade(&m).is_none(), live()), (true, 0));
    }
}

#[test]
fn finalizers_and_weak_callbacks_run_whoever_drops_the_last_reference() {
    static PLAIN: Calls = Calls {
        finalized: AtomicUsize::new(0),
        died: AtomicUsize::new(0),
        called_back: AtomicUsize::new(0),
    };
    const { assert!(!std::mem::needs_drop::<Plain>()) };
    fn count_callback<T>(_: &Gc<crate::WeakRef<T, ()>>, _: &Mutator) {
        PLAIN.called_back.fetch_add(1, SeqCst);
    }
    let heap = plain_heap();
    let mut m = heap.attach();
    let live = || heap.stats().live_objects;
    let by_owner = |_: &mut Mutator, object: crate::AnyGc| drop(object);
    let by_another = |m: &mut Mutator, object: crate::AnyGc| {
        on_attached_thread(&heap, |_| drop(object));
        m.safepoint();
    };
    let by_nobody = |m: &mut Mutator, object: crate::AnyGc| {
        std::thread::scope(|scope| scope.spawn(|| drop(object)).join().expect("no panic"));
        m.safepoint();
    };
    type Way<'a> = &'a dyn Fn(&mut Mutator, crate::AnyGc);
    let ways: [Way<'_>; 3] = [&by_owner, &by_another, &by_nobody];
    for (round, way) in (1..).zip(ways) {
        let calls = Arc::new(Calls::default());
        let noting = m.alloc(Noting(calls.clone()));
        way(&mut m, noting.into());
        assert_eq!((calls.get(), live()), ([1, 1, 0], 0));
        let plain = m.alloc(Plain(&PLAIN));
        way(&mut m, plain.into());
        assert_eq!((PLAIN.finalized.load(SeqCst), live()), (2 * round - 1, 0));
        // A handle that knows the type, and the callback of a weak reference.
        let plain = m.alloc(Plain(&PLAIN));
        let weak = m.alloc_weak(&plain, (), count_callback);
        drop(plain);
        assert_eq!(PLAIN.get(), [2 * round, 0, 2 * round - 1]);
        drop(weak);
        let number = m.alloc(7u64);
        let weak = m.alloc_weak(&number, (), count_callback);
        way(&mut m, number.into());
        assert_eq!(PLAIN.called_back.load(SeqCst), 2 * round);
        drop(weak);
        assert_eq!(live(), 0);
    }
    // By handles that know the type.
    let calls = Arc::new(Calls::default());
    drop(m.alloc(Noting(calls.clone())));
    assert_eq!((calls.get(), live()), ([1, 1, 0], 0));
    let before = PLAIN.called_back.load(SeqCst);
    let number = m.alloc(7u64);
    let weak = m.alloc_weak(&number, (), count_callback);
    drop(number);
    assert_eq!(PLAIN.called_back.load(SeqCst), before + 1);
    drop(weak);
    // An object that another thread has cloned outlives the owner's last reference.
    let number = m.alloc(7u64);
    let clone = on_attached_thread(&heap, |_| number.clone());
    drop(number);
    assert_eq!((live(), *clone), (1, 7));
    drop(clone);
    assert_eq!(live(), 0);
}

#[test]
fn a_finalizer_that_panics_is_reported_and_its_object_dies() {
    struct Fails;

    impl Trace for Fails {
        const FINALIZER: Option<Finalizer<Self>> = Some(Finalizer::new(|_, _| {
            panic!("a finalizer that panics");
        }));

        fn traverse(_: &Self, _: &mut Tracer) {}
    }
    let heap = plain_heap();
    let told = Arc::new(std::sync::Mutex::new(Vec::new()));
    let to = Arc::clone(&told);
    heap.on_unraisable(move |error| {
        to.lock().expect("no panic").push((
            error.during,
            error.type_name.to_string(),
            error.message.to_string(),
        ));
    });
    let m = heap.attach();
    drop(m.alloc(Fails));
    let name = std::any::type_name::<Fails>();
    let told = told.lock().expect("no panic");
    assert_eq!(*told, [(During::Finalize, name.to_owned(), "a finalizer that panics".to_owned())]);
    assert_eq!(heap.stats().live_objects, 0);
}

/// A list is destroyed object by object, without nesting: a small stack is enough.
#[test]
fn a_long_list_needs_no_stack() {
    struct Link {
        next: Option<Gc<Link>>,
        _boxed: Box<u8>,
    }

    impl Trace for Link {
        fn traverse(this: &Self, tracer: &mut Tracer) {
            Trace::traverse(&this.next, tracer);
        }
    }
    let run = || {
        let heap = plain_heap();
        let m = heap.attach();
        let make = |m: &Mutator| {
            (0..20_000)
                .fold(None, |next, _| Some(m.alloc(Link { next, _boxed: Box::new(0) })))
                .expect("a list")
        };
        drop(make(&m));
        assert_eq!(heap.stats().live_objects, 0);
        // By a handle that does not know its type.
        drop(crate::AnyGc::from(make(&m)));
        assert_eq!(heap.stats().live_objects, 0);
        // After the heap.
        let list = make(&m);
        drop((m, heap));
        drop(list);
    };
    std::thread::scope(|scope| {
        std::thread::Builder::new()
            .stack_size(256 << 10)
            .spawn_scoped(scope, run)
            .expect("a thread")
            .join()
            .expect("no panic");
    });
}

#[test]
fn a_large_value_gives_its_memory_back() {
    struct Large {
        _bytes: [u8; 100_000],
        _text: String,
    }

    impl Trace for Large {
        fn traverse(_: &Self, _: &mut Tracer) {}
    }
    let heap = plain_heap();
    let m = heap.attach();
    let large = m.alloc(Large { _bytes: [0; 100_000], _text: "text".to_owned() });
    assert_eq!(heap.stats().live_objects, 1);
    drop(large);
    assert_eq!((heap.stats().live_objects, heap.stats().live_bytes), (0, 0));
}

#[test]
fn a_panic_of_what_dies_with_an_object_comes_out_of_the_drop() {
    let heap = plain_heap();
    let reported = Arc::new(AtomicUsize::new(0));
    let to = Arc::clone(&reported);
    heap.on_unraisable(move |_| {
        to.fetch_add(1, SeqCst);
    });
    let m = heap.attach();
    for (inner, reports) in [(1, 0), (3, 2)] {
        let holds = m.alloc(Holds((0..inner).map(|_| m.alloc(Panics)).collect()));
        let thrown = outside::guarded(|| drop(holds));
        assert!(thrown.is_err(), "the first panic comes out");
        assert_eq!(reported.swap(0, SeqCst), reports, "and the others are reported");
        assert_eq!(heap.stats().live_objects, 0);
        assert_eq!(m.raw().private().busy.get(), 0);
    }
}

/// Without memory for the stack an object is destroyed inside another destruction. A panic is
/// reported then.
#[test]
fn what_cannot_wait_dies_within() {
    let heap = plain_heap();
    let told = Arc::new(std::sync::Mutex::new(Vec::new()));
    let to = Arc::clone(&told);
    heap.on_unraisable(move |error| {
        to.lock().expect("no panic").push((error.during, error.message.to_string()));
    });
    let m = heap.attach();
    let reference = m.alloc(Panics).into_reference();
    destroy_nested(m.raw(), reference.take_last(m.raw().id()).expect("the last"));
    let told = std::mem::take(&mut *told.lock().expect("no panic"));
    assert_eq!(told, [(During::Drop, "a destructor that panics".to_owned())]);
    assert_eq!(heap.stats().live_objects, 0);
}

/// The table of objects that a handler destroys.
const fn table(
    id: fn() -> std::any::TypeId,
    dealloc: unsafe fn(NonNull<Header>, *const ()),
) -> TypeInfo {
    TypeInfo {
        id,
        name: |_| "Fails",
        offset: size_of::<Header>(),
        tracked: false,
        traverse_each: |_, _, _| (),
        describe: None,
        label: None,
        prefetch_each: None,
        clear: |_, _| (),
        finalize: None,
        has_finalizer: None,
        clears_last: None,
        legacy: None,
        external: None,
        drop: None,
        destroy: None,
        dealloc: Some(dealloc),
    }
}

/// The table of objects whose handler panics: before it frees the memory, or after that.
fn fails(freed: bool) -> &'static TypeInfo {
    static BEFORE: TypeInfo =
        table(std::any::TypeId::of::<[(); 0]>, |_, _| panic!("a handler that panics"));
    static AFTER: TypeInfo = table(std::any::TypeId::of::<[(); 1]>, |header, m| {
        // SAFETY: rule *zero*: the handler has exclusive access; `m` is a mutator.
        unsafe { crate::typed::mutator::mutator(m).raw().free(header.cast()) };
        panic!("a handler that panics");
    });
    if freed { &AFTER } else { &BEFORE }
}

/// An object with this table, and one reference.
fn with_table(m: &Mutator, info: &'static TypeInfo) -> NonNull<Header> {
    let cell = m.raw().allocate(info.offset, align_of::<Header>()).expect("memory");
    // SAFETY: rule *new*: fresh memory, large enough for a header.
    unsafe {
        cell.cast::<Header>()
            .write(Header::new(m.id(), type_index(m.raw(), info).expect("memory")));
        m.raw().publish_as(Object::new(cell), 0);
    }
    cell.cast()
}

/// The handlers of types and modules are code of the program, as those of other objects.
#[test]
fn the_mutator_is_lent_to_the_clear_handlers_that_run_after_the_others() {
    static CLEARED: AtomicUsize = AtomicUsize::new(0);
    static LAST: TypeInfo = TypeInfo {
        clear: |_, m| {
            // SAFETY: rule *typed*: `m` is a mutator.
            assert!(!unsafe { crate::typed::mutator::mutator(m) }.may_park());
            CLEARED.fetch_add(1, SeqCst);
        },
        clears_last: Some(|_| true),
        dealloc: None,
        ..table(std::any::TypeId::of::<[(); 2]>, |_, _| ())
    };
    let heap = plain_heap();
    let m = heap.attach();
    // SAFETY: rule *counted*: the reference that the object was made with.
    let reference = unsafe { CountedRef::new(with_table(&m, &LAST)) };
    let model = m.raw().model();
    model.clear(reference.live(), m.raw());
    assert_eq!(CLEARED.load(SeqCst), 0, "after the others");
    Managed::after_clear(model, m.raw());
    assert_eq!(CLEARED.load(SeqCst), 1);
    assert!(m.may_park(), "no loan is left");
    drop_attached(m.raw(), reference);
    assert_eq!(heap.stats().live_objects, 0);
}

/// The panics that a heap reports: the object's type, and the message.
type Told = Arc<std::sync::Mutex<Vec<(String, String)>>>;

fn told(heap: &Heap) -> Told {
    let told = Told::default();
    let to = Arc::clone(&told);
    heap.on_unraisable(move |error| {
        to.lock().expect("no panic").push((error.type_name.to_string(), error.message.to_string()));
    });
    told
}

fn take(told: &Told) -> Vec<(String, String)> {
    std::mem::take(&mut *told.lock().expect("no panic"))
}

/// The type of an object is named as long as the object can be read.
#[test]
fn a_panic_of_a_handler_is_reported_with_the_type_of_an_object_that_is_left() {
    const MESSAGE: &str = "a handler that panics";
    let heap = plain_heap();
    let told = told(&heap);
    let m = heap.attach();
    for (freed, name) in [(false, "Fails"), (true, "")] {
        let header = with_table(&m, fails(freed));
        // SAFETY: rule *counted*: the reference that the object was made with.
        let reference = unsafe { CountedRef::new(header) };
        let dead = reference.take_last(m.raw().id()).expect("the last");
        destroy_all(m.raw(), dead, OnPanic::Report);
        assert_eq!(take(&told), [(name.to_owned(), MESSAGE.to_owned())]);
        // By a handle the panic goes on.
        let header = with_table(&m, fails(freed));
        // SAFETY: rule *counted*: as above.
        let handle = unsafe { AnyGc::from_header(header) };
        let thrown = outside::guarded(|| drop(handle)).expect_err("a panic");
        assert_eq!((outside::panic_message(thrown).as_ref(), take(&told).len()), (MESSAGE, 0));
        assert_eq!(m.raw().private().busy.get(), 0);
    }
}

/// The first panic is that of the object which is destroyed in place. Within a handler of another
/// object no panic goes on.
#[test]
fn of_the_panics_of_a_dynamic_object_and_of_what_dies_with_it_the_first_goes_on() {
    let heap = plain_heap();
    let told = told(&heap);
    let m = heap.attach();
    let destroy = || {
        let inner = m.alloc(Panics);
        let header = with_table(&m, fails(false));
        // SAFETY: rules *counted* and *zero*: the only reference, which is given up. The thread
        // holds no stop.
        unsafe {
            assert!(header.as_ref().take_last(m.raw().id()));
            destroy_dynamic_in_place(m.raw(), header, |m| {
                drop(inner);
                m.free(header.cast());
                panic!("the first");
            });
        }
    };
    let second =
        (std::any::type_name::<Panics>().to_owned(), "a destructor that panics".to_owned());
    let thrown = outside::guarded(destroy).expect_err("a panic");
    assert_eq!(outside::panic_message(thrown).as_ref(), "the first");
    assert_eq!(take(&told), std::slice::from_ref(&second));
    m.raw().private().in_handler(destroy);
    assert_eq!(take(&told), [second, (String::new(), "the first".to_owned())]);
    assert_eq!((heap.stats().live_objects, m.raw().private().busy.get()), (0, 0));
}

/// The thread that drops a deferred reference did not ask for it, so no panic goes on there.
#[test]
fn a_panic_of_an_object_that_dies_by_a_deferred_drop_is_reported() {
    let heap = plain_heap();
    let told = told(&heap);
    let mut m = heap.attach();
    let panics = m.alloc(Panics);
    std::thread::scope(|scope| scope.spawn(|| drop(panics)).join().expect("no panic"));
    m.safepoint();
    let name = std::any::type_name::<Panics>();
    assert_eq!(take(&told), [(name.to_owned(), "a destructor that panics".to_owned())]);
    assert_eq!((heap.stats().live_objects, m.raw().private().busy.get()), (0, 0));
}

/// The objects that die with it die all the same, also when a handle drops it.
#[test]
fn an_object_with_a_destructor_that_panics_dies_with_its_fields() {
    struct Loud(Gc<Panics>);

    impl Trace for Loud {
        fn traverse(this: &Self, tracer: &mut Tracer) {
            Trace::traverse(&this.0, tracer);
        }
    }

    impl Drop for Loud {
        fn drop(&mut self) {
            panic!("the first");
        }
    }
    let heap = plain_heap();
    let told = told(&heap);
    let m = heap.attach();
    let loud = m.alloc(Loud(m.alloc(Panics)));
    let thrown = outside::guarded(|| drop(loud)).expect_err("a panic");
    assert_eq!(outside::panic_message(thrown).as_ref(), "the first");
    let name = std::any::type_name::<Panics>();
    assert_eq!(take(&told), [(name.to_owned(), "a destructor that panics".to_owned())]);
    assert_eq!((heap.stats().live_objects, m.raw().private().busy.get()), (0, 0));
}

#[test]
fn a_panic_of_a_weak_callback_is_reported_with_the_type_of_the_weak_reference() {
    let heap = plain_heap();
    let told = told(&heap);
    let m = heap.attach();
    let number = m.alloc(7u64);
    let weak = m.alloc_weak(&number, (), |_, _| panic!("a callback that panics"));
    drop(number);
    let name = std::any::type_name::<crate::WeakRef<u64, ()>>();
    assert_eq!(take(&told), [(name.to_owned(), "a callback that panics".to_owned())]);
    assert!(weak.upgrade(&m).is_none());
}
