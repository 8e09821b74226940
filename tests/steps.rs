//! Single steps of the protocols that no model shows: each test fails when one step is left out.

use std::cell::RefCell;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use standstill::safepoint::{self, Coordinator, Suspend};
use standstill::{Gc, GcCell, Heap, Mutator, Pacing, Trace, Tracer};

fn heap() -> Heap {
    Heap::builder().pacing(Pacing::manual()).build().unwrap()
}

/// The cell of a plain value is used again as soon as the value has ended. A weak reference to the
/// value does not lead to the next one.
#[test]
fn a_weak_reference_to_a_plain_value_ends_with_it() {
    let heap = heap();
    let m = heap.attach();
    let value = m.alloc(1u64);
    let weak = Gc::downgrade(&value, &m);
    let address = Gc::as_ptr(&value);
    drop(value);
    let next = m.alloc(2u64);
    assert_eq!(Gc::as_ptr(&next), address, "the cell is used again");
    assert!(weak.upgrade(&m).is_none());
}

/// Inside a traversal a thread has no mutator: its drops are deferred, and not counted.
#[test]
fn inside_a_traversal_no_mutator_is_current() {
    let heap = heap();
    let mut m = heap.attach();
    let me = safepoint::current();
    assert_ne!(me, 0);
    let value = m.alloc(1u64);
    {
        let _outer = safepoint::traversing();
        assert_eq!(safepoint::current(), 0);
        let inner = safepoint::traversing();
        drop(inner);
        assert_eq!(safepoint::current(), 0);
        drop(value);
        assert_eq!(heap.stats().live_objects, 1, "deferred");
    }
    assert_eq!(safepoint::current(), me);
    m.detach(|| ());
    assert_eq!(heap.stats().live_objects, 0);
}

thread_local! { static MINE: RefCell<Option<Mutator>> = const { RefCell::new(None) }; }

/// How many destructors have run, and how many of them on an attached thread.
static RUN: AtomicUsize = AtomicUsize::new(0);
static ATTACHED: AtomicUsize = AtomicUsize::new(0);

/// A value with a destructor that ends its thread's mutator, if that is stored in `MINE`.
struct Ends(GcCell<Option<Gc<Ends>>>);

impl Trace for Ends {
    fn traverse(this: &Self, tracer: &mut Tracer) {
        Trace::traverse(&this.0, tracer);
    }
}

impl Drop for Ends {
    fn drop(&mut self) {
        RUN.fetch_add(1, Relaxed);
        ATTACHED.fetch_add(usize::from(safepoint::current() != 0), Relaxed);
        drop(MINE.take());
    }
}

/// A destructor drops its thread's mutator. The mutator lasts until all that dies with the object
/// has ended, and so it is with several objects that were merged together.
#[test]
fn a_mutator_that_a_destructor_drops_lasts_until_all_have_ended() {
    // One object, with a weak reference, and the object to which it refers.
    let first = heap();
    let m = first.attach();
    let next = m.alloc(Ends(GcCell::new(None)));
    let object = m.alloc(Ends(GcCell::new(Some(next))));
    let weak = Gc::downgrade(&object, &m);
    MINE.set(Some(m));
    drop(object);
    assert_eq!((RUN.swap(0, Relaxed), ATTACHED.swap(0, Relaxed)), (2, 2));
    assert!(MINE.take().is_none());
    assert_eq!(safepoint::current(), 0, "it has ended");
    drop(weak);

    // Two objects of an owner that is detached, merged by the thread that drops the second.
    let second = heap();
    let m = second.attach();
    let [one, other] = [(); 2].map(|()| m.alloc(Ends(GcCell::new(None))));
    std::thread::scope(|scope| {
        let (detach, detached) = std::sync::mpsc::channel::<()>();
        let (done, is_done) = std::sync::mpsc::channel::<()>();
        let mut m = m;
        let heap = &second;
        scope.spawn(move || {
            detached.recv().unwrap();
            MINE.set(Some(heap.attach()));
            let elsewhere = Coordinator::<()>::new();
            let idle = elsewhere.register(());
            let Suspend::Suspended(guard) = elsewhere.suspend(idle.id()) else {
                panic!("it is detached")
            };
            // A thread that keeps another suspended suspends no second one: the object waits in its
            // owner's queue.
            drop(one);
            assert_eq!(RUN.load(Relaxed), 0);
            drop(guard);
            drop(other);
            assert_eq!((RUN.swap(0, Relaxed), ATTACHED.swap(0, Relaxed)), (2, 2));
            assert!(MINE.take().is_none());
            assert_eq!(safepoint::current(), 0, "it has ended");
            done.send(()).unwrap();
        });
        m.detach(|| {
            detach.send(()).unwrap();
            is_done.recv().unwrap();
        });
    });
}
