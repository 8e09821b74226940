//! References to objects of a closed heap.

use std::cell::Cell;
use std::panic::resume_unwind;
use std::sync::Arc;

use crate::base::sync::{Ordering, const_thread_local};
use crate::managed::destructor::{Panic, run_destructor};
use crate::managed::parts::ManagedCore;
use crate::memory::arena::Arena;
use crate::object::counted::{CountedRef, object};
use crate::object::header::Dropped;
use crate::object::live::DeadObject;

/// A dead object, and the core of its heap, which keeps the memory mapped.
type InClosed = (Arc<ManagedCore>, DeadObject);

const_thread_local! {
    /// The stack of the `drop_in_closed` that runs on this thread; null: none runs. The vector lies
    /// in the frame of that call, and [`InUse`] resets the pointer. The pointer has no destructor,
    /// so destructors of other thread-locals can drop references.
    static CLOSED: Cell<*mut Vec<InClosed>> = Cell::new(std::ptr::null_mut())
}

/// While this value lives, [`CLOSED`] points to a vector in the frame that made it.
struct InUse;

impl InUse {
    fn begin(stack: *mut Vec<InClosed>) -> Self {
        CLOSED.with(|closed| closed.set(stack));
        Self
    }
}

impl Drop for InUse {
    fn drop(&mut self) {
        CLOSED.with(|closed| closed.set(std::ptr::null_mut()));
    }
}

/// Drops a reference to an object of a closed heap. All mutators have ended, so no object has an
/// owner.
pub(super) fn drop_in_closed(core: &Arc<ManagedCore>, reference: CountedRef) {
    let header = reference.header();
    let is_dead = match header.drop_shared() {
        Dropped::Alive => false,
        Dropped::Dead => true,
        // The heap's last lock round ordered the counts of all owners before this.
        Dropped::Enqueue(owner) => header.merge_ended(owner) == Dropped::Dead,
    };
    if !is_dead {
        return;
    }
    // SAFETY: rule *zero*: the count answered this thread.
    let dead = (Arc::clone(core), unsafe { DeadObject::new(object(reference.into_ptr())) });
    let outer = CLOSED.with(Cell::get);
    if !outer.is_null() {
        // SAFETY: rule *pinned*: the call of this function that set the pointer still runs on this
        // thread, and its frame has the vector. It uses the vector between destructions only, and
        // this call is inside one.
        unsafe { (*outer).push(dead) };
        return;
    }
    let mut stack: Vec<InClosed> = vec![dead];
    let stack: *mut Vec<InClosed> = &raw mut stack;
    // Declared behind the vector, so that it is dropped first, also by a panic.
    let _in_use = InUse::begin(stack);
    let mut panic = None;
    // SAFETY: rule *pinned*: the vector lies in this frame, and is used through this pointer only;
    // no call pushes now.
    while let Some((core, dead)) = unsafe { (*stack).pop() } {
        if let Err(thrown) = destroy_in_closed(&core, dead) {
            if panic.is_none() && !std::thread::panicking() {
                panic = Some(thrown);
            } else {
                thrown.report(&core.hooks);
            }
        }
    }
    if let Some(Panic { payload, .. }) = panic {
        resume_unwind(payload);
    }
}

/// Destroys an object of a closed heap.
///
/// Handlers of dynamic objects need a mutator, so they do not run. The references of such an object
/// leak.
fn destroy_in_closed(core: &Arc<ManagedCore>, dead: DeadObject) -> Result<(), Panic> {
    let info = core.model.info(dead.header());
    let header = dead.into_header();
    // SAFETY: rule *zero*: this thread has exclusive access to the object, which is one of this
    // heap.
    let result = unsafe {
        let result = run_destructor(info, header);
        core.state(header.as_ptr() as usize).death();
        Arena::free_remote(&core.space, header.cast());
        result
    };
    // AcqRel: the thread that destroys the last object unmaps the range after the last use by the
    // other threads.
    if core.model.left.fetch_sub(1, Ordering::AcqRel) == 1 {
        // The core is dropped after the statement has released the lock: this may free the lock.
        let _closed = core.model.deferred.lock().closed.take();
    }
    result
}

/// Closes a heap, after its last handle and its last mutator are gone.
pub(crate) fn close(core: &Arc<ManagedCore>) {
    // Before the memory of an object that dies in the closed heap is freed.
    core.model.weak.close();
    let left = core.live().0;
    let list = {
        let mut deferred = core.model.deferred.lock();
        // Before a thread can find the heap closed. No object has died since the count: there is no
        // mutator, and other threads defer.
        core.model.left.store(left, Ordering::Relaxed);
        if left > 0 {
            deferred.closed = Some(Arc::clone(core));
        }
        std::mem::take(&mut deferred.list)
    };
    let retired = std::mem::take(&mut *core.model.retired.lock());
    let saved = core.observer.as_ref().map(|observer| observer.take_saved()).unwrap_or_default();
    let retired = retired.into_iter().map(|(_, reference)| reference);
    for reference in list.into_iter().chain(retired).chain(saved) {
        drop_in_closed(core, reference);
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

    use super::*;
    use crate::base::event;
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
        assert_eq!(
            (core.model.deferred.lock().list.len(), core.model.retired.lock().len()),
            (1, 1)
        );
        drop((core, heap));
        assert_eq!(calls.died.load(SeqCst), 2);
        assert!(crate::memory::space::is_in_any_heap(address));
        drop(kept);
        assert_eq!(calls.died.load(SeqCst), 3);
        assert!(!crate::memory::space::is_in_any_heap(address));
        // A heap without objects is unmapped at once.
        let heap = plain_heap();
        let m = heap.attach();
        let address = header_of(&m.alloc(1)).as_ptr() as usize;
        drop((m, heap));
        assert!(!crate::memory::space::is_in_any_heap(address));
    }

    #[test]
    fn a_weak_reference_into_a_heap_that_has_ended_leads_nowhere_and_into_another_one_panics() {
        let (heap, other) = (plain_heap(), plain_heap());
        let m = heap.attach();
        let object = m.alloc(7);
        let weak = Gc::downgrade(&object, &m);
        drop(m);
        let m = other.attach();
        assert!(event::guarded(|| weak.upgrade(&m).is_some()).is_err());
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
            let thrown = event::guarded(|| {
                let _holds = holds;
                assert!(!unwinds, "another panic");
            });
            let message = event::panic_message(thrown.expect_err("a panic"));
            assert_eq!(message.contains("another panic"), unwinds);
            assert_eq!(reported.swap(0, SeqCst), reports);
            assert!(!crate::memory::space::is_in_any_heap(address), "all have died");
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
        assert!(!crate::memory::space::is_in_any_heap(address));
        let other = plain_heap();
        assert!(weak.upgrade(&other.attach()).is_none());
    }
}
