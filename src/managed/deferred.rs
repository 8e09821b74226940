//! Floor 3: references that are dropped where they cannot be counted.

use std::ptr::NonNull;
use std::sync::Arc;

use crate::base::error::{Code, Fault};
use crate::base::event::During;
use crate::base::fallible;
use crate::base::stress::{Step, maybe_yield};
use crate::base::sync::Ordering;
use crate::managed::closed::drop_in_closed;
use crate::managed::parts::{DRAIN_REQUEST, ManagedCore, Raw, SharedPart};
use crate::memory::space::Space;
use crate::object::header::{Dropped, Header, NO_OWNER};
use crate::object::weak::HeaderPtr;
use crate::safepoint::is_stopping;

/// The heap of an object, to which this thread need not be attached.
///
/// # Safety
///
/// The caller has a reference to the object, which is in a heap.
pub(super) unsafe fn heap_of(header: NonNull<Header>) -> Arc<ManagedCore> {
    // SAFETY: rule R: the reference keeps the object alive, and the core outlives its objects: an open heap's handles
    // and mutators keep it, a closed heap's is kept by `Deferred::closed` until the last object has died. A count of
    // our own: once the reference is given away, somebody else may drop it, and the core go.
    unsafe {
        let core = Space::heap_of(header.as_ptr() as usize).cast::<ManagedCore>();
        Arc::increment_strong_count(core);
        Arc::from_raw(core)
    }
}

/// Puts a reference on the deferred list of its heap: this thread may not count there.
///
/// # Safety
///
/// As for [`drop_reference`].
pub(super) unsafe fn defer(header: NonNull<Header>) {
    // SAFETY: rule R: the reference keeps the object alive.
    if unsafe { header.as_ref() }.is_static() {
        // In no heap, and counted by nobody.
        return;
    }
    // SAFETY: rule R: as above.
    let core = unsafe { heap_of(header) };
    maybe_yield(&core.under, Step::Defer);
    // SAFETY: rules R and G: an object's page was handed out; the object is alive: this is its reference.
    let bytes = unsafe { core.space.page_of(header.as_ptr() as usize) }.shape().footprint().bytes();
    // This thread may have locked the list and the registry, for a fork of this very heap. Collections and inspections drain
    // the lists themselves when their stop is over; after a fork the next to drop, attach or answer sees to it.
    if is_stopping() && Raw::is_attached_to(&core) {
        if fallible::push(&mut core.model.deferred_in_stop.lock(), HeaderPtr(header)).is_err() {
            // No hook is called in a stop.
            return core
                .model
                .record_fault(Fault::new(Code::Memory, "drop").because(LOST_REFERENCE));
        }
        core.pace.deferred(bytes);
        // Relaxed: this thread drains it itself, and whoever attaches after this stop has seen its end.
        core.model.has_deferred.store(true, Ordering::Relaxed);
        return;
    }
    let mut deferred = core.model.deferred.lock();
    if deferred.closed.is_some() {
        drop(deferred);
        // SAFETY: rule R: the caller gives the reference up; the heap is closed.
        unsafe { drop_in_closed(&core, header) };
        return;
    }
    if fallible::push(&mut deferred.list, HeaderPtr(header)).is_err() {
        drop(deferred);
        return report_lost_reference(&core);
    }
    core.pace.deferred(bytes);
    // SeqCst: against an attaching thread's load of it; see `Coordinator::poke_attached`.
    core.model.has_deferred.store(true, Ordering::SeqCst);
    let poke = !std::mem::replace(&mut deferred.poked, true);
    drop(deferred);
    if poke {
        core.coordinator.poke_attached(DRAIN_REQUEST);
    }
}

/// Tells of a reference that was dropped where it could not be counted, and that there is no memory to note down: the object stays.
#[cold]
pub(super) fn report_lost_reference(core: &ManagedCore) {
    core.hooks.unraisable(During::Drop, "", LOST_REFERENCE);
}

pub(super) const LOST_REFERENCE: &str =
    "no memory to note that a reference was dropped: its object stays for ever";

/// Closes the queue of a mutator that cannot destroy anything: in a forked child, where its thread does not exist, or under a
/// traversal guard. What is in it is merged; what that finds dead is destroyed by the next attached thread that drains the deferred
/// list.
pub(crate) fn orphan(core: &ManagedCore, local: &SharedPart) {
    for target in local.queue.close() {
        // SAFETY: rule R: a queued object is not freed before the queue lets go of it; its owner has ended.
        let header = unsafe { target.0.as_ref() };
        if header.merge_ended() == Dropped::Dead {
            header.revive(NO_OWNER);
            core.model.deferred.lock().list.push(target);
            // Relaxed: this process has one thread.
            core.model.has_deferred.store(true, Ordering::Relaxed);
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use std::sync::atomic::Ordering::SeqCst;

    use super::*;
    use crate::heap::model::ObjectModel;
    use crate::managed::tests::{on_attached_thread, plain_heap};
    use crate::{Gc, Heap, Mutator};

    /// References that were dropped where they could not be counted keep memory: they make a collection, which drops them, due as new
    /// objects do.
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
        core.model.drain_on(m.raw());
        assert_eq!(core.pace.due(), Due::Nothing, "drained");
        let world = m.raw().stop_here().unwrap();
        drop(second);
        assert_ne!(core.pace.due(), Due::Nothing, "in a stop of the thread's own");
        drop(world);
        core.model.drain_on(m.raw());
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
        // A thread that attaches finds them, too.
        let object = m.alloc(3);
        m.detach(|| {
            drop(object);
            assert_eq!((listed().0, live()), (1, 1));
            on_attached_thread(&heap, |_| assert_eq!((listed(), live()), ((0, false), 0)));
        });
        // In a stop of the thread's own there is a list for that thread alone.
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
        orphan(core, m.raw().local());
        assert_eq!(m.raw().local().queue.len(), None);
        assert_eq!((core.model.deferred.lock().list.len(), live()), (1, 2));
        assert!(core.model.has_deferred.load(SeqCst));
        // It ends like any other.
        m.raw().local().queue.reopen();
        core.model.drain_on(m.raw());
        assert_eq!((live(), *alive.get(&m)), (1, 2));
        drop(m);
        drop(alive);
        drop(heap.attach());
        assert_eq!(live(), 0);
    }
}
