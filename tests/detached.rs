//! A mutator that is put down without a closure, and taken up again.

#![cfg(not(loom))]
#![allow(clippy::type_complexity)]

mod common;

use std::sync::atomic::{AtomicBool, Ordering};

use common::deadline;
use standstill::{Gc, GcCell, Heap, Mutator, Trace};

#[derive(Trace)]
struct Node {
    next: GcCell<Option<Gc<Node>>>,
}

fn garbage(m: &Mutator) {
    let node = m.alloc(Node { next: GcCell::default() });
    node.get(m).next.set(m, Some(node.clone()));
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
