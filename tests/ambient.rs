//! The mutator that a heap keeps for a thread: `Heap::enter`, and what its guards can do.
#![cfg(not(any(loom, shuttle)))]

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc::channel;
use std::thread;

use standstill::safepoint::STOP;
use standstill::{AttachError, Attached, Collect, Gc, GcCell, Heap, Mutator, Pacing, Trace};

fn heap() -> Heap {
    Heap::builder().pacing(Pacing::manual()).build().unwrap()
}

/// Whether another thread could stop the world now, without this thread's help.
fn others_can_stop(heap: &Heap) -> bool {
    let heap = heap.clone();
    let (tell, told) = channel();
    let thread = thread::spawn(move || {
        heap.attach().collect();
        tell.send(()).unwrap();
    });
    let can = told.recv_timeout(std::time::Duration::from_secs(5)).is_ok();
    if can {
        thread.join().unwrap();
    }
    can
}

/// Calls `f`, which must not wait for this thread, and then lets the other thread's stop happen.
fn stops_wait(heap: &Heap, attached: &Attached) {
    let other = {
        let heap = heap.clone();
        thread::spawn(move || drop(heap.attach().collect()))
    };
    while attached.poll() & STOP == 0 {
        thread::yield_now();
    }
    assert!(!other.is_finished());
    attached.safepoint();
    attached.detached(|| other.join().unwrap());
}

#[test]
fn guards_are_counted_and_the_last_one_leaves() {
    let heap = heap();
    let outer = heap.enter();
    let number = heap.with(|m| m.alloc(1_u32));
    let inner = heap.enter();
    stops_wait(&heap, &inner);
    drop(outer);
    // Their order is free.
    stops_wait(&heap, &inner);
    assert_eq!(inner.with(|m| *m.alloc(2_u32)), 2);
    drop(inner);
    assert!(others_can_stop(&heap));
    assert_eq!((*number, heap.stats().mutators), (1, 1));
    // The same mutator comes back.
    let again = heap.enter();
    assert_eq!(heap.stats().mutators, 1);
    stops_wait(&heap, &again);
}

#[test]
fn a_call_attaches_for_itself() {
    let heap = heap();
    let number = heap.with(|m| m.alloc(7_u32));
    assert!(others_can_stop(&heap));
    assert_eq!(heap.with(|_| Mutator::with_current(|m| *m.alloc(*number + 1))), Some(8));
    let error = heap.try_with(|m| m.heap().try_attach().err()).unwrap();
    assert_eq!(error, Some(AttachError::AlreadyAttached));
    // A panic leaves, too.
    let panicked = catch_unwind(AssertUnwindSafe(|| heap.with(|_| resume_unwind(Box::new(())))));
    assert!(panicked.is_err() && others_can_stop(&heap));
}

#[test]
fn no_safepoint_is_reached_while_the_mutator_is_lent() {
    let heap = heap();
    let attached = heap.enter();
    let cell = attached.with(|m| m.alloc(GcCell::new(1_u32)));
    let other = {
        let heap = heap.clone();
        thread::spawn(move || heap.attach().collect().duration)
    };
    while attached.poll() == 0 {
        thread::yield_now();
    }
    attached.with(|m| {
        let mut number = cell.lock(m);
        attached.safepoint();
        attached.park();
        assert!(!attached.may_park() && attached.with_mut(|_| ()).is_none());
        attached.detached(|| assert!(!other.is_finished()));
        let left = attached.depart();
        assert!(!left.has_left());
        heap.enter().safepoint();
        assert!(!other.is_finished());
        *number += 1;
    });
    assert!(attached.may_park() && attached.poll() != 0);
    attached.park();
    attached.detached(|| other.join().unwrap());
    assert_eq!(attached.with(|m| *cell.lock(m)), 2);
}

#[test]
fn exclusive_use_collects_and_is_exclusive() {
    let heap = heap();
    let attached = heap.enter();
    attached.with(|m| {
        let node = m.alloc(Node::default());
        node.next.lock(m).replace(node.clone());
    });
    let collected = attached.with_mut(|m| {
        assert!(attached.with_mut(|_| ()).is_none() && heap.enter().with_mut(|_| ()).is_none());
        assert!(!attached.depart().has_left());
        attached.safepoint();
        assert_eq!(heap.with(|m| *m.alloc(3_u32)), 3);
        let report = m.collect();
        // In the closure of a detach a kept mutator could outlive it.
        m.detach(|| {
            assert_eq!(heap.try_enter().err(), Some(AttachError::InsideDetach));
            assert_eq!(
                (heap.with(|m| *m.alloc(4_u32)), attached.with(|m| *m.alloc(5_u32))),
                (4, 5)
            );
            assert!(attached.with_mut(|_| ()).is_none());
        });
        report.collected
    });
    assert_eq!(collected, Some(1));
    let panicked =
        catch_unwind(AssertUnwindSafe(|| attached.with_mut(|_| resume_unwind(Box::new(())))));
    assert!(panicked.is_err());
    assert_eq!(attached.with_mut(|m| m.collect().collected), Some(0));
}

#[test]
fn a_thread_that_has_left_may_come_back_inside() {
    let heap = heap();
    let attached = heap.enter();
    let value = attached.with(|m| m.alloc(5_u32));
    {
        let left = attached.depart();
        assert!(left.has_left() && others_can_stop(&heap));
        // A callback.
        let inner = heap.enter();
        stops_wait(&heap, &inner);
        let nested = inner.depart();
        assert!(nested.has_left() && others_can_stop(&heap));
        drop(nested);
        stops_wait(&heap, &inner);
        drop(inner);
        assert!(others_can_stop(&heap));
        assert_eq!(attached.with(|m| *m.alloc(*value + 1)), 6);
        assert!(others_can_stop(&heap) && attached.with_mut(|_| ()).is_none());
    }
    stops_wait(&heap, &attached);
    let panicked =
        catch_unwind(AssertUnwindSafe(|| attached.detached(|| resume_unwind(Box::new(())))));
    assert!(panicked.is_err());
    stops_wait(&heap, &attached);
    // A guard that is dropped, and one that is kept, while the thread is away.
    let left = attached.depart();
    let kept = heap.enter();
    drop(heap.enter());
    drop(left);
    drop(attached);
    stops_wait(&heap, &kept);
    drop(kept);
    assert!(others_can_stop(&heap));
}

#[test]
fn an_attempt_to_come_back_does_not_wait_for_a_stop() {
    let heap = heap();
    let attached = heap.enter();
    let departure = attached.depart();
    let (tell, told) = channel();
    let (end, ended) = channel::<()>();
    thread::scope(|s| {
        let other = heap.clone();
        s.spawn(move || {
            let mut m = other.attach();
            let stopped = m.prepare_fork().unwrap();
            tell.send(()).unwrap();
            ended.recv().unwrap_err();
            drop(stopped);
        });
        told.recv().unwrap();
        let departure = departure.try_come_back().expect_err("the world is stopped");
        assert!(departure.has_left() && !attached.may_park());
        drop(end);
        // It still comes back when it is dropped.
        drop(departure);
    });
    let departure = attached.depart();
    assert!(departure.has_left());
    departure.try_come_back().expect("no stop is on");
    assert!(attached.may_park());
    stops_wait(&heap, &attached);
    // In a loan the thread does not leave, so it is back at once.
    attached.with(|_| attached.depart().try_come_back().expect("it has not left"));
    // A guard that was made meanwhile leaves again, and the outer one stays.
    let departure = attached.depart();
    let inner = heap.enter();
    departure.try_come_back().expect("the thread is attached");
    drop(inner);
    stops_wait(&heap, &attached);
    drop(attached);
    assert!(others_can_stop(&heap));
}

#[test]
fn a_leaked_departure_leaves_the_thread_detached() {
    let heap = heap();
    let attached = heap.enter();
    std::mem::forget(attached.depart());
    assert!(others_can_stop(&heap));
    assert_eq!(attached.with(|m| *m.alloc(1_u32)), 1);
    assert!(others_can_stop(&heap));
    drop(attached);
    let again = heap.enter();
    stops_wait(&heap, &again);
    drop(again);
    assert!(others_can_stop(&heap));
}

#[test]
fn a_mutator_of_the_caller_is_lent() {
    let heap = heap();
    let mut m = heap.attach();
    let attached = heap.enter();
    assert_eq!(attached.with(|m| *m.alloc(1_u32)), 1);
    assert!(!attached.may_park() && !attached.depart().has_left());
    assert_eq!(
        attached.poll_word().map(|word| word.as_ptr()),
        heap.enter().poll_word().map(|word| word.as_ptr())
    );
    m.safepoint();
    assert!(m.try_collect(Collect::full()).is_err());
    drop(attached);
    assert_eq!(m.collect().collected, 0);
    // Over a kept mutator, whose thread has left.
    m.detach(|| heap.attach_scoped(|_| heap.enter().with(|m| *m.alloc(2_u32))));
    drop(m);
    let outer = heap.enter();
    outer.detached(|| {
        let mut m = heap.attach();
        assert!(!heap.enter().may_park());
        // The guard finds the caller's mutator, which is not its own.
        assert_eq!(outer.with(|m| *m.alloc(4_u32)), 4);
        m.collect();
    });
    stops_wait(&heap, &outer);
    // It ends with the last loan.
    drop(outer);
    let m = heap.attach();
    let attached = heap.enter();
    drop(m);
    assert_eq!(attached.with(|m| *m.alloc(3_u32)), 3);
    drop(attached);
    assert!(others_can_stop(&heap));
}

#[test]
fn another_heap_needs_a_departure() {
    let [one, two] = [heap(), heap()];
    let attached = one.enter();
    assert_eq!(two.try_enter().err(), Some(AttachError::AlreadyAttached));
    assert_eq!(two.try_with(|_| ()).err(), Some(AttachError::AlreadyAttached));
    attached.detached(|| {
        let other = two.enter();
        assert_eq!(one.try_enter().err(), Some(AttachError::AlreadyAttached));
        assert_eq!(attached.try_with(|_| ()).err(), Some(AttachError::AlreadyAttached));
        stops_wait(&two, &other);
    });
    stops_wait(&one, &attached);
    assert!(others_can_stop(&two));
    // The closure leaves the thread elsewhere: the next use tries again.
    let mut kept = None;
    attached.detached(|| kept = Some(two.enter()));
    assert_eq!(attached.try_with(|_| ()).err(), Some(AttachError::AlreadyAttached));
    assert!(others_can_stop(&one));
    drop(kept);
    assert_eq!(attached.with(|m| *m.alloc(1_u32)), 1);
}

#[test]
fn the_last_guard_in_a_loan_ends_the_mutator_with_the_loan() {
    let heap = heap();
    let attached = heap.enter();
    let ended = Mutator::with_current(|m| {
        drop(attached);
        *m.alloc(1_u32)
    });
    assert_eq!((ended, heap.stats().mutators), (Some(1), 0));
    assert!(others_can_stop(&heap));
    stops_wait(&heap, &heap.enter());
}

#[derive(Default, Trace)]
struct Node {
    next: GcCell<Option<Gc<Node>>>,
}

/// Its destructor enters.
#[derive(Trace)]
struct Enters {
    #[trace(skip)]
    heap: Heap,
    #[trace(skip)]
    born: Arc<AtomicUsize>,
    next: GcCell<Option<Gc<Enters>>>,
}

impl Drop for Enters {
    fn drop(&mut self) {
        let attached = self.heap.enter();
        attached.safepoint();
        assert!(!attached.depart().has_left());
        self.born.fetch_add(*attached.with(|m| m.alloc(1_usize)), Relaxed);
    }
}

#[test]
fn destructors_may_enter() {
    let heap = heap();
    let born = Arc::new(AtomicUsize::new(0));
    let make = |m: &Mutator| {
        let (heap, born) = (heap.clone(), Arc::clone(&born));
        m.alloc(Enters { heap, born, next: GcCell::default() })
    };
    let attached = heap.enter();
    attached.with(|m| drop(make(m)));
    assert_eq!(born.load(Relaxed), 1);
    // By the collector.
    attached.with(|m| {
        let node = make(m);
        node.next.lock(m).replace(node.clone());
    });
    assert_eq!(attached.with_mut(|m| m.collect().collected), Some(1));
    assert_eq!(born.load(Relaxed), 2);
    // When the thread leaves: another thread has dropped the last handle meanwhile.
    let node = attached.with(make);
    attached.with(|_| thread::spawn(move || drop(node)).join().unwrap());
    drop(attached);
    heap.with(|_| ());
    heap.enter().with_mut(|m| m.collect());
    assert_eq!(born.load(Relaxed), 3);
    assert!(others_can_stop(&heap));
}

/// Its finalizer leaves, and forgets that.
#[derive(Trace)]
#[trace(finalize)]
struct Leaves {
    #[trace(skip)]
    heap: Heap,
    #[trace(skip)]
    has_left: Arc<AtomicUsize>,
    next: GcCell<Option<Gc<Leaves>>>,
}

impl Leaves {
    fn finalize(this: &Gc<Self>, _: &Mutator) {
        let left = this.heap.enter().depart().has_left();
        let attached = this.heap.enter();
        let kept = attached.depart();
        this.has_left.fetch_add(usize::from(left || kept.has_left()) + 1, Relaxed);
        std::mem::forget(kept);
    }
}

/// The collection would go on with a thread that no stop waits for.
#[test]
fn no_thread_leaves_in_a_finalizer() {
    let heap = heap();
    let has_left = Arc::new(AtomicUsize::new(0));
    let attached = heap.enter();
    attached.with(|m| {
        let (heap, has_left) = (heap.clone(), Arc::clone(&has_left));
        let node = m.alloc(Leaves { heap, has_left, next: GcCell::default() });
        node.next.lock(m).replace(node.clone());
    });
    let collected = attached.with_mut(|m| m.collect().collected);
    assert_eq!((collected, has_left.load(Relaxed)), (Some(1), 1));
    stops_wait(&heap, &attached);
}

#[test]
fn the_mutator_ends_with_its_thread() {
    let heap = heap();
    let run = |f: fn(&Heap)| {
        let heap = heap.clone();
        thread::spawn(move || f(&heap)).join().unwrap();
    };
    run(|heap| drop(heap.enter()));
    run(|heap| std::mem::forget(heap.enter()));
    run(|heap| {
        heap.with(|m| std::mem::forget(m.alloc(1_u32)));
    });
    run(|heap| std::mem::forget(heap.enter().depart()));
    thread_local! {
        static KEPT: RefCell<Option<(Heap, Attached)>> = const { RefCell::new(None) };
        static LATE: RefCell<Option<Late>> = const { RefCell::new(None) };
    }
    /// Uses its guard when the thread ends.
    struct Late(Heap, Option<Attached>);
    impl Drop for Late {
        fn drop(&mut self) {
            let attached = self.1.take().unwrap();
            assert!(!attached.depart().has_left() || attached.poll() == 0);
            _ = attached.try_with(|m| *m.alloc(1_u32));
            attached.safepoint();
            drop(attached);
            _ = self.0.try_with(|_| ());
        }
    }
    run(|heap| KEPT.with(|kept| *kept.borrow_mut() = Some((heap.clone(), heap.enter()))));
    run(|heap| LATE.with(|late| *late.borrow_mut() = Some(Late(heap.clone(), Some(heap.enter())))));
    run(|heap| {
        LATE.with(|late| late.borrow_mut().is_none());
        let attached = heap.enter();
        LATE.with(|late| *late.borrow_mut() = Some(Late(heap.clone(), Some(attached))));
    });
    let stats = heap.stats();
    assert_eq!((stats.mutators, &stats.leaked_mutators[..]), (0, &[][..]));
    assert_eq!(heap.attach().collect().abandoned, None);
}

#[test]
fn a_heap_that_only_kept_mutators_keep_open_ends() {
    let dropped = Arc::new(AtomicUsize::new(0));
    struct Counts(Arc<AtomicUsize>);
    impl Drop for Counts {
        fn drop(&mut self) {
            self.0.fetch_add(1, Relaxed);
        }
    }
    let first = heap();
    let counts = Counts(Arc::clone(&dropped));
    first.on_collection(move |_| _ = &counts);
    drop(first.enter());
    drop(first);
    assert_eq!(dropped.load(Relaxed), 0);
    let second = heap();
    drop(second.enter());
    assert_eq!(dropped.load(Relaxed), 1);
    // By itself.
    let counts = Counts(Arc::clone(&dropped));
    second.on_collection(move |_| _ = &counts);
    let [attached, other] = [second.enter(), second.enter()];
    attached.end_mutator();
    assert_eq!(second.stats().mutators, 1);
    other.end_mutator();
    assert_eq!(second.stats().mutators, 0);
    drop(second);
    assert_eq!(dropped.load(Relaxed), 2);
}

#[test]
fn several_threads_enter_leave_and_collect() {
    let heap = Heap::builder().build().unwrap();
    let threads = (0..4).map(|number| {
        let heap = heap.clone();
        thread::spawn(move || {
            for round in 0..500 {
                let attached = heap.enter();
                attached.with(|m| {
                    let node = m.alloc(Node::default());
                    node.next.lock(m).replace(node.clone());
                });
                attached.safepoint();
                if round % 50 == number {
                    attached.with_mut(|m| m.collect());
                }
                attached.detached(|| heap.with(|m| *m.alloc(round)));
            }
        })
    });
    threads.collect::<Vec<_>>().into_iter().for_each(|thread| thread.join().unwrap());
    heap.attach().collect();
    let stats = heap.stats();
    assert_eq!((stats.mutators, stats.live_objects), (0, 0));
}
