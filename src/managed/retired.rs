//! Retired references, which wait until every thread has passed a safepoint.

#![forbid(unsafe_code)]

use crate::base::sync::Ordering;
use crate::managed::closed::drop_in_closed;
use crate::managed::deferred::{defer, heap_of};
use crate::managed::parts::{Managed, QUIESCE_REQUEST, Raw};
use crate::managed::release::drop_attached;
use crate::object::counted::CountedRef;
use crate::safepoint::{is_stopping, is_traversing};

/// Retired references that a mutator gathers before it publishes them.
pub(super) const RETIRE_BATCH: usize = 64;

impl Managed {
    /// An epoch for references that were taken out of their slots before this call.
    pub(super) fn new_epoch(&self) -> u64 {
        // SeqCst: before the loads of the threads' states in `poke_attached` and `reap`. A thread
        // that attaches after those loads reads this epoch, and so it finds the slots empty.
        self.epoch.fetch_add(1, Ordering::SeqCst) + 1
    }
}

/// Retires a reference that was in a slot. Other threads may have loaded it, and may still use the
/// object.
pub(crate) fn retire(m: &Raw, reference: CountedRef) {
    let mut buffer = m.private().retired.borrow_mut();
    if buffer.try_reserve(1).is_err() {
        // The object leaks: threads that may use it are not known.
        return;
    }
    buffer.push(reference);
    if buffer.len() == 1 {
        m.raise(QUIESCE_REQUEST);
    }
    if buffer.len() >= m.core().stress.shrink(RETIRE_BATCH) {
        drop(buffer);
        publish_retired(m);
    }
}

/// As [`retire`], on a thread that is not attached to the object's heap: a misuse, after
/// which the reference is out of its slot nevertheless. Threads that are attached to that heap may
/// use the object.
pub(crate) fn retire_elsewhere(reference: CountedRef) {
    // Static objects never die.
    let Some(core) = heap_of(&reference) else { return };
    if is_stopping() && Raw::is_attached_to(&core) {
        // The other threads are parked, and use no object.
        return defer(reference);
    }
    {
        // The lock keeps the end of the heap away, and forks: in the child the lock of the retired
        // would stay locked.
        let deferred = core.model.deferred.lock();
        if deferred.closed.is_some() {
            drop(deferred);
            // No thread is attached to a closed heap.
            return drop_in_closed(&core, reference);
        }
        let epoch = core.model.new_epoch();
        core.model.retired.lock().push((epoch, reference));
    }
    core.coordinator.poke_attached(QUIESCE_REQUEST);
}

/// Gives the gathered references an epoch, and requests a safepoint of every attached thread.
/// `false`: there is no memory for that, and the references stay gathered.
pub(super) fn publish_retired(m: &Raw) -> bool {
    {
        let model = m.model();
        let mut buffer = m.private().retired.borrow_mut();
        if buffer.is_empty() {
            return true;
        }
        let mut retired = model.retired.lock();
        if retired.try_reserve(buffer.len()).is_err() {
            // The next safepoint tries again.
            m.raise(QUIESCE_REQUEST);
            return false;
        }
        let epoch = model.new_epoch();
        retired.extend(buffer.drain(..).map(|reference| (epoch, reference)));
    }
    m.core().coordinator.poke_attached(QUIESCE_REQUEST);
    true
}

/// This thread is at a safepoint, and uses no reference that it loaded before.
pub(super) fn quiesce(m: &Raw) {
    let _ = publish_retired(m);
    let model = m.model();
    // Acquire: later loads of this thread are at least as new as this epoch. Release: earlier uses
    // by this thread come before another thread reads the epoch in `seen`.
    m.local().seen.store(model.epoch.load(Ordering::Acquire), Ordering::Release);
    reap(m);
}

/// Drops the retired references with an epoch that every attached thread has seen.
pub(super) fn reap(m: &Raw) {
    let model = m.model();
    if is_traversing() || model.retired.lock().is_empty() {
        return;
    }
    // Relaxed: with an older epoch fewer references are dropped. It is newer than the retirements
    // below.
    let mut past = model.epoch.load(Ordering::Relaxed);
    m.core().coordinator.attached(|_, shared| {
        // Acquire: the uses by that thread come before the drops below.
        past = past.min(shared.local.seen.load(Ordering::Acquire));
    });
    let mut ready = Vec::new();
    {
        let mut retired = model.retired.lock();
        if ready.try_reserve_exact(retired.len()).is_err() {
            // A later safepoint tries again.
            return;
        }
        ready.extend(retired.extract_if(.., |(epoch, _)| *epoch <= past));
    }
    for (_, reference) in ready {
        drop_attached(m, reference);
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use std::sync::atomic::Ordering::SeqCst;

    use super::*;
    use crate::heap::model::ObjectModel;
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
            assert_eq!(
                (gathered(&m), retired(), other(false)),
                (1, 0, 0),
                "only this thread knows"
            );
            assert_ne!(
                m.raw().poll() & QUIESCE_REQUEST,
                0,
                "it hands it over at its next safepoint"
            );
            (1..RETIRE_BATCH - 1).for_each(|_| retire(&m));
            assert_eq!((gathered(&m), retired()), (RETIRE_BATCH - 1, 0));
            retire(&m);
            assert_eq!(
                (gathered(&m), retired()),
                (0, RETIRE_BATCH),
                "so many are handed over at once"
            );
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
        m.raw().model().resumed(m.raw());
        assert_eq!((model.deferred_in_stop.lock().len(), live()), (0, 0));
        drop(core);
        // After the heap.
        let calls = Arc::new(Calls::default());
        let object = m.alloc(Noting(calls.clone()));
        let address = header_of(&object).as_ptr() as usize;
        drop((m, heap));
        assert!(crate::memory::space::is_in_any_heap(address), "objects keep the range");
        retire_elsewhere(object.into_reference());
        assert_eq!(calls.get(), [0, 1, 0], "there is no mutator for a finalizer");
        assert!(
            !crate::memory::space::is_in_any_heap(address),
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
        assert!(!model.after_clear(m.raw()));
        model.retired.lock().push((u64::MAX, reference));
        assert!(model.after_clear(m.raw()), "it waits");
        model.retired.lock()[0].0 = epoch;
        assert!(!model.after_clear(m.raw()));
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
}
