//! Tests of `managed/deferred.rs`.

#![forbid(unsafe_code)]

use std::sync::atomic::Ordering::SeqCst;

use super::*;
use crate::heap::parts::SplitCounts;
use crate::managed::deferred::drain_deferred;
use crate::managed::tests::{on_attached_thread, plain_heap};
use crate::{Gc, Heap, Mutator};

/// Deferred references keep memory allocated. They make a collection due, as new objects do,
/// and the collection drops them.
#[test]
fn what_is_deferred_makes_a_collection_due() {
    use crate::Pacing;
    use crate::heap::pacing::Due;
    const OBJECTS: usize = 100;
    let pacing =
        Pacing { young_objects: usize::MAX, young_bytes: OBJECTS * 1024 / 2, ..Pacing::default() };
    let heap = Heap::builder().reserve(1 << 30).pacing(pacing).build().unwrap();
    let mut m = heap.attach();
    let core = Arc::clone(m.raw().core());
    let make =
        |m: &Mutator| -> Vec<Gc<[u64; 126]>> { (0..OBJECTS).map(|_| m.alloc([0; 126])).collect() };
    let (first, second) = (make(&m), make(&m));
    m.collect();
    assert_eq!(core.pace.due(), Due::Nothing);
    std::thread::spawn(move || drop(first)).join().unwrap();
    assert_ne!(core.pace.due(), Due::Nothing, "by an unattached thread");
    drain_deferred(m.raw());
    assert_eq!(core.pace.due(), Due::Nothing, "drained");
    let world = m.raw().stop_here().unwrap();
    drop(second);
    assert_ne!(core.pace.due(), Due::Nothing, "in a stop of the thread's own");
    drop(world);
    drain_deferred(m.raw());
    assert_eq!((core.pace.due(), heap.stats().live_objects), (Due::Nothing, 0));
}

#[test]
fn what_an_unattached_thread_drops_is_listed_for_those_that_are_attached() {
    let heap = plain_heap();
    let mut m = heap.attach();
    let core = Arc::clone(m.raw().core());
    let (model, live) = (&core.model, || heap.stats().live_objects);
    let listed = || {
        let deferred = model.deferred.lock();
        (deferred.list.len(), deferred.poked)
    };
    for round in 0..2 {
        let (one, other) = (m.alloc(1), m.alloc(2));
        assert_eq!(
            (listed(), model.has_deferred.load(SeqCst)),
            ((0, false), false),
            "round {round}"
        );
        std::thread::scope(|scope| scope.spawn(|| drop(one)).join().expect("no panic"));
        assert_eq!((listed(), model.has_deferred.load(SeqCst)), ((1, true), true));
        assert_ne!(m.raw().poll() & DRAIN_REQUEST, 0, "whoever is attached is asked");
        std::thread::scope(|scope| scope.spawn(|| drop(other)).join().expect("no panic"));
        assert_eq!((listed(), live()), ((2, true), 2));
        m.safepoint();
        assert_eq!((listed(), live(), model.has_deferred.load(SeqCst)), ((0, false), 0, false));
    }
    // A thread that detaches drains the list before.
    let object = m.alloc(3);
    std::thread::scope(|scope| scope.spawn(|| drop(object)).join().expect("no panic"));
    m.detach(|| assert_eq!((listed(), live()), ((0, false), 0)));
    // A thread that attaches drains the list, too.
    let object = m.alloc(3);
    m.detach(|| {
        drop(object);
        assert_eq!((listed().0, live()), (1, 1));
        on_attached_thread(&heap, |_| assert_eq!((listed(), live()), ((0, false), 0)));
    });
    // The thread that holds the stop has a list of its own.
    let object = m.alloc(4);
    let world = m.raw().stop_here().expect("a stop");
    drop(object);
    assert_eq!((listed().0, model.deferred_in_stop.lock().len(), live()), (0, 1, 1));
    drop(world);
    Managed::resumed(m.raw().model(), m.raw());
    assert_eq!((model.deferred_in_stop.lock().len(), live()), (0, 0));
}

#[test]
fn a_queue_whose_owner_cannot_destroy_goes_to_the_deferred_list() {
    let heap = plain_heap();
    let m = heap.attach();
    let core = m.raw().core();
    let live = || heap.stats().live_objects;
    let (dead, alive) = (m.alloc(1), m.alloc(2));
    let clone = alive.clone();
    on_attached_thread(&heap, |_| drop((dead, clone)));
    orphan(&core.model, m.raw().thread_id(), m.raw().local());
    assert_eq!(m.raw().local().queue.len(), None);
    assert_eq!((core.model.deferred.lock().list.len(), live()), (1, 2));
    assert!(core.model.has_deferred.load(SeqCst));
    // The mutator ends like any other.
    m.raw().local().queue.reopen();
    drain_deferred(m.raw());
    assert_eq!((live(), *alive), (1, 2));
    drop(m);
    drop(alive);
    drop(heap.attach());
    assert_eq!(live(), 0);
}
