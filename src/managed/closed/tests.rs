//! Tests of `managed/closed.rs`.

use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use super::*;
use crate::base::outside;
use crate::managed::tests::{
    Calls, Holds, Noting, Panics, header_of, on_attached_thread, plain_heap,
};
use crate::{Gc, Mutator};

#[test]
fn the_end_of_a_heap_drops_what_its_lists_hold() {
    use crate::AtomicGc;
    let calls = Arc::new(Calls::default());
    let new = |m: &Mutator| m.alloc(Noting(calls.clone()));
    let heap = plain_heap();
    let other = plain_heap();
    let m = heap.attach();
    let (deferred, retired, kept) = (new(&m), new(&m), new(&m));
    let address = header_of(&kept).as_ptr() as usize;
    let slot = AtomicGc::new(Some(retired));
    drop(m);
    let core = Arc::clone(heap.core());
    drop(deferred);
    {
        // The mutator is attached to another heap.
        let m = other.attach();
        crate::Trace::clear(&slot, &m);
    }
    assert_eq!((core.model.deferred.lock().list.len(), core.model.retired.lock().len()), (1, 1));
    drop((core, heap));
    assert_eq!(calls.died.load(SeqCst), 2);
    assert!(crate::memory::range::is_in_any_heap(address));
    drop(kept);
    assert_eq!(calls.died.load(SeqCst), 3);
    assert!(!crate::memory::range::is_in_any_heap(address));
    // A heap without objects is unmapped at once.
    let heap = plain_heap();
    let m = heap.attach();
    let address = header_of(&m.alloc(1)).as_ptr() as usize;
    drop((m, heap));
    assert!(!crate::memory::range::is_in_any_heap(address));
}

#[test]
fn a_weak_reference_into_a_heap_that_has_ended_leads_nowhere_and_into_another_one_panics() {
    let (heap, other) = (plain_heap(), plain_heap());
    let m = heap.attach();
    let object = m.alloc(7);
    let weak = Gc::downgrade(&object, &m);
    drop(m);
    let m = other.attach();
    assert!(outside::guarded(|| weak.upgrade(&m).is_some()).is_err());
    drop(heap);
    assert!(weak.upgrade(&m).is_none());
    drop(object);
}

#[test]
fn after_the_heap_a_panic_comes_out_once_and_never_while_the_thread_unwinds() {
    let reported = Arc::new(AtomicUsize::new(0));
    for (unwinds, reports) in [(false, 2), (true, 3)] {
        let heap = plain_heap();
        let to = Arc::clone(&reported);
        heap.on_unraisable(move |_| {
            to.fetch_add(1, SeqCst);
        });
        let m = heap.attach();
        let holds = m.alloc(Holds((0..3).map(|_| m.alloc(Panics)).collect()));
        let address = header_of(&holds).as_ptr() as usize;
        drop((m, heap));
        let thrown = outside::guarded(|| {
            let _holds = holds;
            assert!(!unwinds, "another panic");
        });
        let message = outside::panic_message(thrown.expect_err("a panic"));
        assert_eq!(message.contains("another panic"), unwinds);
        assert_eq!(reported.swap(0, SeqCst), reports);
        assert!(!crate::memory::range::is_in_any_heap(address), "all have died");
    }
}

/// The range stays as long as the heap has objects, and large objects do not.
#[test]
fn after_the_heap_a_large_object_gives_its_memory_back() {
    struct Large([u8; 1 << 16], Box<u8>);

    impl crate::Trace for Large {
        fn traverse(_: &Self, _: &mut crate::Tracer) {}
    }
    // Without small constants the heap keeps a few free pages.
    let stress = crate::Stress::none().small_constants(true);
    let heap = crate::Heap::builder().reserve(1 << 30).stress(stress).build().expect("a heap");
    let m = heap.attach();
    let (large, small) = (m.alloc(Large([0xab; 1 << 16], Box::new(1))), m.alloc(2));
    let last = &raw const large.0[(1 << 16) - 1];
    assert_eq!(*large.1, 1);
    // SAFETY: rule *mapped*: while the heap has objects, its range can be read.
    let read = || unsafe { last.read_volatile() };
    drop((m, heap));
    assert_eq!(read(), 0xab);
    drop(large);
    assert_eq!((read(), *small), (0, 2));
}

#[test]
fn after_the_heap_weak_references_lead_nowhere_and_merged_objects_die() {
    let heap = plain_heap();
    let mut m = heap.attach();
    let calls = Arc::new(Calls::default());
    let object = m.alloc(Noting(calls.clone()));
    let weak = Gc::downgrade(&object, &m);
    let address = header_of(&object).as_ptr() as usize;
    // Merged: another thread has dropped a reference that this thread had counted.
    let clone = object.clone();
    on_attached_thread(&heap, |_| drop(clone));
    m.safepoint();
    assert_eq!(heap.stats().live_objects, 1);
    drop((m, heap));
    assert_eq!(calls.died.load(SeqCst), 0);
    drop(object);
    assert_eq!(calls.died.load(SeqCst), 1);
    assert!(!crate::memory::range::is_in_any_heap(address));
    let other = plain_heap();
    assert!(weak.upgrade(&other.attach()).is_none());
}
