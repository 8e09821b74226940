//! References that are dropped on a thread that may not lower the count.

use std::sync::Arc;

use crate::base::error::{Code, Fault};
use crate::base::event::During;
use crate::base::fallible;
use crate::base::stress::{Step, maybe_yield};
use crate::base::sync::Ordering;
use crate::managed::closed::drop_in_closed;
use crate::managed::parts::{DRAIN_REQUEST, Managed, ManagedCore, Raw, SharedPart};
use crate::memory::space::Space;
use crate::object::counted::{CountedRef, object};
use crate::object::header::Dropped;
use crate::object::live::DeadObject;
use crate::safepoint::{ThreadId, is_stopping};

/// The heap of a reference, to which this thread need not be attached. `None`: the object is
/// static. It lies in no heap, and its references are not counted.
pub(super) fn heap_of(reference: &CountedRef) -> Option<Arc<ManagedCore>> {
    if reference.header().is_static() {
        return None;
    }
    // SAFETY: rule *counted*: the reference keeps the object alive, and the core outlives its
    // objects: handles and mutators own the core of an open heap, and `Deferred::closed` owns the
    // core of a closed heap until the last object has died. The caller gets a count of its own:
    // another thread may drop the reference, and with it the core.
    unsafe {
        let core = Space::heap_of(reference.address()).cast::<ManagedCore>();
        Arc::increment_strong_count(core);
        Some(Arc::from_raw(core))
    }
}

/// Puts a reference on the deferred list of its heap, because this thread may not lower the count.
pub(super) fn defer(reference: CountedRef) {
    let Some(core) = heap_of(&reference) else { return };
    maybe_yield(&core.under, Step::Defer);
    let page = core.space.page(core.space.page_index(reference.address()));
    let bytes = page.shape().footprint().bytes();
    // This thread may have locked the list and the registry, for a fork of this heap. A collection
    // or an inspection drains the lists after its stop. After a fork the next drop, attach or
    // answer drains them.
    if is_stopping() && (Raw::is_attached_to(&core) || core.model.deferred.is_kept_here()) {
        if fallible::push(&mut core.model.deferred_in_stop.lock(), reference).is_err() {
            // Hooks are not called in a stop.
            let fault = Fault::new(Code::Memory, "drop").because(LOST_REFERENCE);
            return core.model.record_fault(fault);
        }
        core.pace.deferred(bytes);
        // Relaxed: this thread drains the list itself, and a thread that attaches after the stop
        // has seen its end.
        core.model.has_deferred.store(true, Ordering::Relaxed);
        return;
    }
    let poke = {
        let mut deferred = core.model.deferred.lock();
        if deferred.closed.is_some() {
            drop(deferred);
            drop_in_closed(&core, reference);
            return;
        }
        if fallible::push(&mut deferred.list, reference).is_err() {
            drop(deferred);
            return report_lost_reference(&core);
        }
        core.pace.deferred(bytes);
        // SeqCst: against an attaching thread's load of it; see `Coordinator::poke_attached`.
        core.model.has_deferred.store(true, Ordering::SeqCst);
        !std::mem::replace(&mut deferred.poked, true)
    };
    if poke {
        core.coordinator.poke_attached(DRAIN_REQUEST);
    }
}

/// Reports a reference that could be neither counted nor listed: the object leaks.
#[cold]
fn report_lost_reference(core: &ManagedCore) {
    core.hooks.unraisable(During::Drop, "", LOST_REFERENCE);
}

const LOST_REFERENCE: &str =
    "no memory to note that a reference was dropped: its object stays for ever";

/// Closes the queue of a mutator that cannot destroy objects: in a forked child, where its thread
/// does not exist, or under a traversal guard.
///
/// The queued objects are merged. A dead object goes on the deferred list, and the next attached
/// thread that drains the list destroys it.
pub(super) fn orphan(model: &Managed, owner: ThreadId, local: &SharedPart) {
    for target in local.queue.close() {
        // SAFETY: rule *counted*: a queued object is not freed before the queue has merged it; its
        // owner has ended.
        let header = unsafe { target.0.as_ref() };
        if header.merge_ended(owner.get()) == Dropped::Dead {
            // SAFETY: rule *zero*: the merge answered this thread.
            let reference = unsafe { DeadObject::new(object(target.0)) }.revive(owner.get());
            model.deferred.lock().list.push(reference);
            // SeqCst: as in `defer`. The caller asks the attached threads, or is alone in a child.
            model.has_deferred.store(true, Ordering::SeqCst);
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use std::sync::atomic::Ordering::SeqCst;

    use super::*;
    use crate::heap::model::ObjectModel;
    use crate::managed::drain::drain_deferred;
    use crate::managed::tests::{on_attached_thread, plain_heap};
    use crate::{Gc, Heap, Mutator};

    /// Deferred references keep memory allocated. They make a collection due, as new objects do,
    /// and the collection drops them.
    #[test]
    fn what_is_deferred_makes_a_collection_due() {
        use crate::Pacing;
        use crate::heap::pacing::Due;
        const OBJECTS: usize = 100;
        let pacing = Pacing {
            young_objects: usize::MAX,
            young_bytes: OBJECTS * 1024 / 2,
            ..Pacing::default()
        };
        let heap = Heap::builder().reserve(1 << 30).pacing(pacing).build().unwrap();
        let mut m = heap.attach();
        let core = Arc::clone(m.raw().core());
        let make = |m: &Mutator| -> Vec<Gc<[u64; 126]>> {
            (0..OBJECTS).map(|_| m.alloc([0; 126])).collect()
        };
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
        m.raw().model().resumed(m.raw());
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
}
