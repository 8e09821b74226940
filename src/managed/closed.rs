//! Floor 3: references to objects of a closed heap.

use std::cell::Cell;
use std::panic::resume_unwind;
use std::ptr::NonNull;
use std::sync::Arc;

use crate::base::sync::{Ordering, const_thread_local};
use crate::managed::destructor::{Panic, run_destructor};
use crate::managed::parts::ManagedCore;
use crate::memory::arena::Arena;
use crate::object::header::{Dropped, Header};
use crate::object::weak::HeaderPtr;

/// A dead object, and what keeps its heap's memory.
type InClosed = (Arc<ManagedCore>, HeaderPtr);

const_thread_local! {
    /// The stack of objects of closed heaps that wait for this thread to destroy them; null: it is not at it. The
    /// vector lies in the frame of the `drop_in_closed` that set this, whose [`InUse`] sets it back. A bare pointer, because
    /// it has no destructor: it can be used from the destructors of other thread-locals, which may drop references.
    static CLOSED: Cell<*mut Vec<InClosed>> = Cell::new(std::ptr::null_mut())
}

/// While this lives, [`CLOSED`] leads to a vector of the frame that made it.
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

/// Drops a reference to an object of a closed heap. Nobody owns anything there: all mutators have ended.
pub(super) unsafe fn drop_in_closed(core: &Arc<ManagedCore>, header: NonNull<Header>) {
    // SAFETY: rule R: the reference keeps the object alive until it is dropped.
    let h = unsafe { header.as_ref() };
    let dead = match h.drop_shared() {
        Dropped::Alive => false,
        Dropped::Dead => true,
        // The heap's last lock round ordered all owners' counts before this.
        Dropped::Enqueue(_) => h.merge_ended() == Dropped::Dead,
    };
    if !dead {
        return;
    }
    let outer = CLOSED.with(Cell::get);
    if !outer.is_null() {
        // SAFETY: rule V: set by a call of this function that is still going on, on this thread, and has its vector
        // in its frame; it uses the vector between destructions only, and this is inside one.
        unsafe { (*outer).push((Arc::clone(core), HeaderPtr(header))) };
        return;
    }
    let mut stack: Vec<InClosed> = vec![(Arc::clone(core), HeaderPtr(header))];
    let stack: *mut Vec<InClosed> = &raw mut stack;
    // Declared behind the vector, so dropped before it, whichever way this function is left.
    let in_use = InUse::begin(stack);
    let mut panic = None;
    // SAFETY: rule V: the vector is this frame's, and used through this pointer alone; nobody pushes while this pops.
    while let Some((core, HeaderPtr(header))) = unsafe { (*stack).pop() } {
        // SAFETY: rule Z: `Dead` was answered to this thread.
        if let Err(thrown) = unsafe { destroy_in_closed(&core, header) } {
            if panic.is_none() && !std::thread::panicking() {
                panic = Some(thrown);
            } else {
                thrown.report(&core.hooks);
            }
        }
    }
    drop(in_use);
    if let Some(Panic { payload, .. }) = panic {
        resume_unwind(payload);
    }
}

pub(super) unsafe fn destroy_in_closed(
    core: &Arc<ManagedCore>,
    header: NonNull<Header>,
) -> Result<(), Panic> {
    let info = core.model.info(header);
    // SAFETY: rule Z: as the caller says. Handlers of dynamic objects need a mutator, and are not run any more: what such an
    // object holds stays.
    unsafe {
        if header.as_ref().has_weak() {
            drop(core.model.weak.remove(header));
        }
        let state = core.state(header.as_ptr() as usize);
        state.dying();
        let result = run_destructor(info, header);
        state.death();
        Arena::free_remote(&core.space, header.cast());
        // AcqRel: whoever destroys the last object lets the range go, after all others are done with it.
        if core.model.left.fetch_sub(1, Ordering::AcqRel) == 1 {
            let closed = core.model.deferred.lock().closed.take();
            // Without the lock, which it may be the last to keep.
            drop(closed);
        }
        result
    }
}

/// Closes a heap whose last handle and mutator are gone.
pub(crate) fn close(core: &Arc<ManagedCore>) {
    let left = core.live().0;
    let list = {
        let mut deferred = core.model.deferred.lock();
        // Before anybody can see the heap closed, and nothing has died since the count: mutators are
        // gone, and the others defer.
        core.model.left.store(left, Ordering::Relaxed);
        if left > 0 {
            deferred.closed = Some(Arc::clone(core));
        }
        std::mem::take(&mut deferred.list)
    };
    let retired = std::mem::take(&mut *core.model.retired.lock());
    let saved = core.observer.as_ref().map(|observer| observer.take_saved()).unwrap_or_default();
    for target in list.into_iter().chain(retired.into_iter().map(|(_, target)| target)).chain(saved)
    {
        // SAFETY: rule R: the lists owned the references.
        unsafe { drop_in_closed(core, target.0) };
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
            // By misuse, through a mutator of another heap.
            let m = other.attach();
            assert!(event::guarded(|| slot.store(&m, None)).is_err());
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
        // Without objects nothing is left.
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
        assert!(!heap.core().model.is_closed());
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

    #[test]
    fn after_the_heap_weak_references_lead_nowhere_and_merged_objects_die() {
        let heap = plain_heap();
        let mut m = heap.attach();
        let calls = Arc::new(Calls::default());
        let object = m.alloc(Noting(calls.clone()));
        let weak = Gc::downgrade(&object, &m);
        let address = header_of(&object).as_ptr() as usize;
        // Merged: another thread has dropped what this one had counted.
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
