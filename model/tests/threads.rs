//! The double on the primitives of std: several threads of the system, and mistakes.

#![cfg(not(standstill_loom))]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use standstill_model::safepoint::{AttachError, Coordinator, StopError};
use standstill_model::{Gc, GcCell, Heap, Mutator, Trace, Tracer};

#[derive(Trace)]
#[trace(crate = standstill_model)]
struct Node {
    next: GcCell<Option<Gc<Node>>>,
    #[trace(skip)]
    alive: Arc<AtomicUsize>,
}

impl Drop for Node {
    fn drop(&mut self) {
        self.alive.fetch_sub(1, Relaxed);
    }
}

fn cycle(m: &Mutator, alive: &Arc<AtomicUsize>) -> Gc<Node> {
    alive.fetch_add(1, Relaxed);
    let node = m.alloc(Node { next: GcCell::default(), alive: alive.clone() });
    node.next.set(m, Some(node.clone()));
    node
}

#[test]
fn threads_drop_and_collect() {
    let (heap, alive) = (Heap::new(), Arc::new(AtomicUsize::new(0)));
    let kept = cycle(&heap.attach(), &alive);
    std::thread::scope(|s| {
        for _ in 0..3 {
            s.spawn(|| {
                let attached = heap.enter();
                for round in 0..100 {
                    let weak = attached.with(|m| {
                        let node = cycle(m, &alive);
                        let weak = Gc::downgrade(&node, m);
                        assert!(weak.upgrade(m).is_some_and(|target| target == node));
                        weak
                    });
                    attached.safepoint();
                    if round % 10 == 0 {
                        attached.with_mut(Mutator::collect).expect("not lent");
                        assert!(attached.with(|m| weak.upgrade(m)).is_none());
                    }
                    attached.detached(|| drop(kept.clone()));
                }
            });
        }
    });
    let mut m = heap.attach();
    m.collect();
    assert_eq!(alive.load(Relaxed), 1);
    drop(kept);
    assert_eq!((m.collect().collected, alive.load(Relaxed)), (1, 0));
}

/// A thread that cannot do what it asks for is told why.
#[test]
fn refusals() {
    let coordinator = Coordinator::new();
    let (me, again) = (coordinator.register(()), coordinator.register(()));
    assert_eq!(me.stop().unwrap_err(), StopError::NotAttached);
    assert!(!me.detach() && !me.park());
    me.attach().unwrap();
    assert_eq!(again.attach(), Err(AttachError::AlreadyAttached));
    let world = me.stop().unwrap();
    assert_eq!(me.stop().unwrap_err(), StopError::Nested);
    assert!(!me.detach() && !me.park());
    drop(world);
    assert!(me.detach());
}

struct Twice(Gc<u32>);

impl Trace for Twice {
    fn traverse(this: &Self, tracer: &mut Tracer) {
        tracer.visit(&this.0);
        tracer.visit(&this.0);
    }
}

#[test]
#[should_panic(expected = "a reference that its object does not own")]
fn a_reference_that_is_shown_twice_is_found() {
    let mut m = Heap::new().attach();
    let twice = m.alloc(Twice(m.alloc(1)));
    m.collect();
    drop(twice);
}

#[test]
#[should_panic(expected = "already")]
fn a_thread_attaches_once() {
    let _m = Heap::new().attach();
    Heap::new().attach();
}
