//! A mutator that is put down without a closure, and taken up again.

#![cfg(not(loom))]
#![allow(clippy::type_complexity)]

mod common;

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};

use common::deadline;
use standstill::safepoint::{self, StopError};
use standstill::{AtomicGc, Collect, CollectError, Gc, GcCell, Heap, Mutator, Trace};

#[derive(Trace)]
struct Node {
    next: GcCell<Option<Gc<Node>>>,
}

fn garbage(m: &Mutator) {
    let node = m.alloc(Node { next: GcCell::default() });
    node.next.set(m, Some(node.clone()));
}

#[test]
fn a_stop_does_not_wait_for_a_thread_that_has_put_its_mutator_down() {
    let _deadline = deadline("putting a mutator down");
    let heap = Heap::new();
    let (down, done) = (AtomicBool::new(false), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let m = heap.attach();
            garbage(&m);
            let detached = m.into_detached().expect("nothing holds it");
            assert!(Mutator::with_current(|_| ()).is_none());
            down.store(true, Ordering::SeqCst);
            while !done.load(Ordering::SeqCst) {
                std::thread::yield_now();
            }
            let mut m = detached.attach().expect("attached nowhere else");
            garbage(&m);
            assert_eq!(m.collect().collected, 1);
        });
        while !down.load(Ordering::SeqCst) {
            std::thread::yield_now();
        }
        let mut m = heap.attach();
        assert_eq!(m.collect().collected, 1);
        drop(m);
        done.store(true, Ordering::SeqCst);
    });
    assert_eq!(heap.stats().mutators, 0);
}

#[test]
fn an_attempt_to_attach_does_not_wait_for_a_stop() {
    let _deadline = deadline("an attempt to attach");
    let heap = Heap::new();
    let (tell, told) = mpsc::channel();
    let (go, wait) = mpsc::channel();
    std::thread::scope(|scope| {
        let heap = &heap;
        scope.spawn(move || {
            let mut detached = heap.attach().into_detached().expect("nothing holds it");
            tell.send(()).expect("it waits");
            wait.recv().expect("a stop");
            detached = detached.try_attach().expect_err("the world is stopped");
            assert!(Mutator::with_current(|_| ()).is_none());
            tell.send(()).expect("it waits");
            wait.recv().expect("its end");
            let m = detached.try_attach().expect("no stop is on");
            assert!(m.may_park());
        });
        told.recv().expect("detached");
        let mut m = heap.attach();
        let fork = m.prepare_fork().expect("a stop");
        go.send(()).expect("it waits");
        told.recv().expect("refused");
        fork.parent();
        go.send(()).expect("it waits");
    });
    assert_eq!(heap.stats().mutators, 0);
}

#[test]
fn another_heap_can_be_entered_meanwhile_and_must_be_left_first() {
    let (a, b) = (Heap::new(), Heap::new());
    let detached = a.attach().into_detached().expect("nothing holds it");
    let inner = b.attach();
    let detached = detached.attach().expect_err("the thread is attached elsewhere");
    assert!(detached.heap().ptr_eq(&a));
    drop(inner);
    let m = detached.attach().expect("now it is not");
    assert!(m.heap().ptr_eq(&a) && m.may_park());
    // Dropped while it is down: the heap is left in order all the same.
    drop(m.into_detached().expect("nothing holds it"));
    assert_eq!(a.stats().mutators, 0);
}

#[test]
fn a_destructor_cannot_put_it_down() {
    #[derive(Trace)]
    struct Asks(());
    static ASKED: AtomicBool = AtomicBool::new(false);
    impl Drop for Asks {
        fn drop(&mut self) {
            let may = Mutator::with_current(Mutator::may_park);
            ASKED.store(may == Some(false), Ordering::SeqCst);
        }
    }
    let m = Heap::new().attach();
    assert!(m.may_park());
    drop(m.alloc(Asks(())));
    assert!(ASKED.load(Ordering::SeqCst));
}

#[test]
fn a_mutator_is_not_taken_up_inside_the_closure_of_a_detach() {
    let _deadline = deadline("taking a mutator up inside a detach");
    let (one, other) = (Heap::new(), Heap::new());
    let down = one.attach().into_detached().unwrap();
    let mut m = other.attach();
    let down = m.detach(|| down.attach().unwrap_err());
    drop(m);
    let m = down.attach().unwrap();
    garbage(&m);
}

/// Empties its slot as it is dropped, through the mutator that the thread has. The removed
/// reference is retired, and requests a safepoint of that mutator.
struct Empties(Arc<AtomicGc<u64>>);

impl Trace for Empties {
    fn traverse(_: &Self, _: &mut standstill::Tracer) {}
}

impl Drop for Empties {
    fn drop(&mut self) {
        Mutator::with_current(|m| self.0.store(m, None));
    }
}

/// The action of a thread-local's destructor on a mutator.
type Last = Box<dyn FnOnce(Mutator)>;

struct Holder(RefCell<Option<(Mutator, Last)>>);

impl Drop for Holder {
    fn drop(&mut self) {
        if let Some((m, last)) = self.0.take() {
            last(m);
        }
    }
}

thread_local! { static HOLDER: Holder = const { Holder(RefCell::new(None)) }; }

/// Runs `first` with a mutator on a thread of its own, and `last` with it when that thread ends,
/// later than the guard for the end of an attached thread.
fn at_the_end_of_a_thread(
    heap: &Heap,
    first: impl FnOnce(&Mutator) + Send + 'static,
    last: impl FnOnce(Mutator) + Send + 'static,
) -> std::thread::JoinHandle<()> {
    let heap = heap.clone();
    std::thread::spawn(move || {
        // Before the thread attaches for the first time: the destructor that is registered first
        // runs last.
        HOLDER.with(|_| ());
        let m = heap.attach();
        first(&m);
        HOLDER.with(|holder| *holder.0.borrow_mut() = Some((m, Box::new(last))));
    })
}

#[test]
fn a_detach_in_the_destructor_of_a_thread_local_comes_back() {
    let _deadline = deadline("a detach at the end of a thread");
    let heap = Heap::new();
    let (send, receive) = mpsc::channel();
    let (told, tell) = mpsc::channel();
    let (go, wait) = mpsc::channel::<()>();
    let thread = at_the_end_of_a_thread(
        &heap,
        move |m| {
            let slot = Arc::new(AtomicGc::new(Some(m.alloc(7u64))));
            send.send(m.alloc(Empties(slot))).expect("the receiver waits");
            wait.recv().expect("a word");
        },
        move |mut m| {
            // There is something to answer, and to answer it asks for something more.
            let detached =
                catch_unwind(AssertUnwindSafe(|| m.detach(|| safepoint::current() == 0)));
            let attached = safepoint::current() != 0;
            told.send((detached.ok(), attached)).expect("the receiver waits");
        },
    );
    // By a thread that is not attached: the other is asked to do it.
    drop(receive.recv().expect("an object"));
    go.send(()).expect("it waits");
    assert_eq!(tell.recv().expect("a message"), (Some(true), true));
    thread.join().expect("a thread");
    heap.attach().collect();
    assert_eq!(heap.stats().live_objects, 0);
}

#[test]
fn no_stop_passes_a_thread_that_works_in_the_destructor_of_a_thread_local() {
    let _deadline = deadline("stops at the end of a thread");
    let heap = Heap::new();
    let (tell, told) = mpsc::channel();
    let (go, next) = mpsc::channel::<()>();
    let thread = at_the_end_of_a_thread(
        &heap,
        |_| (),
        move |mut m| {
            let step = |m: Option<&mut Mutator>, what: &'static str| {
                tell.send(what).expect("the receiver waits");
                match m {
                    Some(m) => m.detach(|| next.recv()),
                    None => next.recv(),
                }
                .expect("the next step");
            };
            step(None, "attached");
            step(Some(&mut m), "detached");
            step(None, "attached");
            drop(m);
            step(None, "gone");
        },
    );
    let mut m = heap.attach();
    for expected in ["attached", "detached", "attached", "gone"] {
        let what = m.detach(|| told.recv()).expect("a message");
        assert_eq!(what, expected);
        // The message can come before the thread has detached. No thread waits for a thread that
        // ends attached.
        let result = loop {
            match m.try_collect(Collect::full()) {
                Err(CollectError::Stop(StopError::ThreadGone { .. })) if what == "detached" => {}
                result => break result.is_ok(),
            }
        };
        assert_eq!(result, what != "attached", "{what}");
        go.send(()).expect("it waits");
    }
    thread.join().expect("a thread");
    m.collect();
}

/// Tells when it is dropped, and panics then.
#[derive(Trace)]
struct Tells(#[trace(skip)] mpsc::Sender<&'static str>);

impl Drop for Tells {
    fn drop(&mut self) {
        self.0.send("destroyed").expect("the receiver waits");
        panic!("a destructor at the end of a mutator");
    }
}

#[test]
fn a_detached_mutator_that_is_dropped_elsewhere_ends_with_the_next_mutator() {
    let _deadline = deadline("a mutator that is dropped elsewhere");
    let (a, b) = (Heap::new(), Heap::new());
    let (tell, told) = mpsc::channel();
    let reports = tell.clone();
    a.on_unraisable(move |_| reports.send("reported").expect("the receiver waits"));
    let m = a.attach();
    garbage(&m);
    let kept = m.alloc(Tells(tell));
    let (first, second) = (m.into_detached().unwrap(), a.attach().into_detached().unwrap());
    let third = b.attach().into_detached().unwrap();
    let elsewhere = Heap::new().attach();
    // Deferred until a thread attaches to the heap.
    drop(kept);
    drop((first, third, second));
    assert_eq!((a.stats().mutators, b.stats().mutators), (2, 1));
    assert!(a.stats().leaked_mutators.is_empty());
    // The mutators are detached: no stop waits for them, and the heap is usable.
    std::thread::scope(|scope| {
        scope.spawn(|| assert_eq!(b.attach().collect().abandoned, None));
    });
    assert_eq!(told.try_recv(), Err(mpsc::TryRecvError::Empty));
    drop(elsewhere);
    assert_eq!((a.stats().mutators, b.stats().mutators), (0, 0));
    assert_eq!(told.try_iter().collect::<Vec<_>>(), ["destroyed", "reported"]);
    assert_eq!(a.attach().collect().collected, 1);
}

#[test]
fn a_heap_ends_with_the_detached_mutator_that_was_its_last() {
    #[derive(Trace)]
    struct Ring {
        #[trace(skip)]
        _counted: Arc<()>,
        slot: Gc<GcCell<Option<Gc<Ring>>>>,
    }
    let counted = Arc::new(());
    let (a, b) = (Heap::new(), Heap::new());
    let m = a.attach();
    let ring = m.alloc(Ring { _counted: counted.clone(), slot: m.alloc(GcCell::default()) });
    ring.slot.set(&m, Some(ring.clone()));
    drop(ring);
    let detached = m.into_detached().unwrap();
    drop(a);
    let elsewhere = b.attach();
    drop(detached);
    assert_eq!(Arc::strong_count(&counted), 2, "the cycle lives as long as its heap is open");
    drop(elsewhere);
    assert_eq!(Arc::strong_count(&counted), 1, "the last collection has run");
}

#[test]
fn a_detached_mutator_that_is_dropped_in_a_traversal_ends_with_the_next_mutator() {
    let heap = Heap::new();
    let detached = heap.attach().into_detached().unwrap();
    let traversal = safepoint::traversing();
    drop(detached);
    assert_eq!(heap.stats().mutators, 1);
    drop(traversal);
    // The inner mutator ends while the outer one is detached.
    let mut outer = Heap::new().attach();
    outer.detach(|| Heap::new().attach_scoped(|_| assert_eq!(heap.stats().mutators, 1)));
    assert_eq!(heap.stats().mutators, 0);
    // The outer one is as usable as before.
    garbage(&outer);
    assert_eq!(outer.collect().collected, 1);
}

#[test]
fn a_detached_mutator_ends_in_the_destructor_of_a_thread_local() {
    let _deadline = deadline("a detached mutator at the end of a thread");
    let heap = Heap::new();
    let thread = at_the_end_of_a_thread(&heap, garbage, |m| {
        let detached = m.into_detached().expect("nothing holds it");
        let detached = detached.attach().expect_err("the thread is ending");
        drop(detached);
    });
    thread.join().expect("a thread");
    let stats = heap.stats();
    assert_eq!((stats.mutators, stats.leaked_mutators), (0, Vec::new()));
    assert_eq!(heap.attach().collect().collected, 1);
}
