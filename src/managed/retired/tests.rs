//! Tests of `managed/retired.rs`.

#![forbid(unsafe_code)]

use std::sync::atomic::Ordering::SeqCst;

use super::*;
use crate::heap::parts::SplitCounts;
use crate::managed::tests::{Calls, Noting, header_of, on_attached_thread, plain_heap};
use std::sync::Arc;

use crate::{Gc, Mutator};

#[test]
fn a_reference_removed_from_a_slot_waits_until_no_thread_can_read_it() {
    use crate::AtomicGc;
    let heap = plain_heap();
    let mut m = heap.attach();
    let core = Arc::clone(m.raw().core());
    let live = || heap.stats().live_objects;
    let gathered = |m: &Mutator| m.raw().private().retired.borrow().len();
    let retired = || core.model.retired.lock().len();
    let (sender, receiver) = std::sync::mpsc::channel();
    let (ask, asked) = std::sync::mpsc::channel::<bool>();
    std::thread::scope(|scope| {
        let heap = &heap;
        scope.spawn(move || {
            let mut m = heap.attach();
            let poll = |m: &Mutator| m.raw().poll() & QUIESCE_REQUEST;
            sender.send(poll(&m)).expect("a receiver");
            for passes in asked {
                if passes {
                    m.safepoint();
                }
                sender.send(poll(&m)).expect("a receiver");
            }
        });
        assert_eq!(receiver.recv(), Ok(0));
        let other = |passes: bool| {
            ask.send(passes).expect("a receiver");
            receiver.recv().expect("a sender")
        };
        let slot = AtomicGc::new(None);
        let retire = |m: &Mutator| {
            slot.store(m, Some(m.alloc(7)));
            slot.store(m, None);
        };
        retire(&m);
        assert_eq!((gathered(&m), retired(), other(false)), (1, 0, 0), "only this thread knows");
        assert_ne!(m.raw().poll() & QUIESCE_REQUEST, 0, "it hands it over at its next safepoint");
        (1..RETIRE_BATCH - 1).for_each(|_| retire(&m));
        assert_eq!((gathered(&m), retired()), (RETIRE_BATCH - 1, 0));
        retire(&m);
        assert_eq!((gathered(&m), retired()), (0, RETIRE_BATCH), "so many are handed over at once");
        assert_eq!(other(false), QUIESCE_REQUEST, "and others are asked");
        m.safepoint();
        assert_eq!(live(), RETIRE_BATCH, "the other may be looking at them");
        assert_eq!(other(true), 0);
        m.safepoint();
        assert_eq!((live(), retired()), (0, 0));
        // This thread passes a safepoint, and then the other thread.
        retire(&m);
        m.safepoint();
        assert_eq!((gathered(&m), retired(), live()), (0, 1, 1));
        other(true);
        assert_eq!((retired(), live()), (0, 1), "who passes last drops what this thread owns");
        m.safepoint();
        assert_eq!(live(), 0);
        drop(ask);
    });
}

#[test]
fn a_reference_taken_out_elsewhere_is_retired_deferred_in_a_stop_and_dropped_after_the_heap() {
    let heap = plain_heap();
    let mut m = heap.attach();
    let core = Arc::clone(m.raw().core());
    let model = &core.model;
    let lists = || (model.retired.lock().len(), model.deferred.lock().list.len());
    let live = || heap.stats().live_objects;
    let retire = |object: Gc<u64>| retire_elsewhere(object.into_reference());
    retire(m.alloc(1));
    assert_eq!((lists(), live()), ((1, 0), 1));
    assert_ne!(
        m.raw().poll() & QUIESCE_REQUEST,
        0,
        "attached threads are asked to pass a safepoint"
    );
    m.safepoint();
    assert_eq!((lists(), live()), ((0, 0), 0));
    let object = m.alloc(2);
    let world = m.raw().stop_here().expect("a stop");
    retire(object);
    assert_eq!((lists(), model.deferred_in_stop.lock().len(), live()), ((0, 0), 1, 1));
    drop(world);
    Managed::resumed(m.raw().model(), m.raw());
    assert_eq!((model.deferred_in_stop.lock().len(), live()), (0, 0));
    drop(core);
    // After the heap.
    let calls = Arc::new(Calls::default());
    let object = m.alloc(Noting(calls.clone()));
    let address = header_of(&object).as_ptr() as usize;
    drop((m, heap));
    assert!(crate::memory::range::is_in_any_heap(address), "objects keep the range");
    retire_elsewhere(object.into_reference());
    assert_eq!(calls.get(), [0, 1, 0], "there is no mutator for a finalizer");
    assert!(
        !crate::memory::range::is_in_any_heap(address),
        "the last object takes the range with it"
    );
}

#[test]
fn a_thread_that_attaches_takes_over_the_epoch() {
    let heap = plain_heap();
    let m = heap.attach();
    let model = m.raw().model();
    let epoch = model.new_epoch();
    on_attached_thread(&heap, |m| assert_eq!(m.raw().local().seen.load(SeqCst), epoch));
    assert_eq!(m.raw().local().seen.load(SeqCst), epoch - 1, "not at a safepoint since");
    // The next call drops the references that no thread can use any more.
    let reference = m.alloc(1).into_reference();
    assert!(!Managed::after_clear(model, m.raw()));
    model.retired.lock().push((u64::MAX, reference));
    assert!(Managed::after_clear(model, m.raw()), "it waits");
    model.retired.lock()[0].0 = epoch;
    assert!(!Managed::after_clear(model, m.raw()));
    assert_eq!(heap.stats().live_objects, 0);
}

#[test]
fn a_thread_that_attaches_drops_what_waits_for_no_other_thread() {
    let heap = plain_heap();
    let mut m = heap.attach();
    let core = Arc::clone(m.raw().core());
    let reference = m.alloc(1).into_reference();
    m.detach(|| {
        let retired = (core.model.new_epoch(), reference);
        core.model.retired.lock().push(retired);
        on_attached_thread(&heap, |_| assert_eq!(heap.stats().live_objects, 0));
    });
}
