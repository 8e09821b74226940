//! A thread may have loaded a reference from a slot, and not yet counted it, when another thread
//! removes it from there. So the removed reference is *retired*: it waits until every thread has
//! passed a safepoint, and can use no address that it loaded before.

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

/// Retires a reference that was in a slot, because other threads may have loaded it, and may still
/// use the object.
pub(crate) fn retire(m: &Raw, reference: CountedRef) {
    let mut buffer = m.private().retired.borrow_mut();
    if buffer.try_reserve(1).is_err() {
        // The object leaks, because the threads that may use it are not known.
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

/// As [`retire`], on a thread that is not attached to the object's heap. That is a misuse, but the
/// reference is out of its slot, and threads that are attached to that heap may use the object.
pub(crate) fn retire_elsewhere(reference: CountedRef) {
    // A static object never dies, so its references need not wait.
    let Some(core) = heap_of(&reference) else { return };
    if is_stopping() && Raw::is_attached_to(&core) {
        // The other threads are parked and use no object, so the reference need not wait for them.
        return defer(reference);
    }
    {
        // The lock keeps the end of the heap away, and forks, because in the child the lock of the
        // retired would stay locked.
        let deferred = core.model.deferred.lock();
        if deferred.closed.is_some() {
            drop(deferred);
            // There is no thread to wait for, because none is attached to a closed heap.
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

/// Tells other threads that this one, at a safepoint, uses no reference that it loaded before.
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
mod tests;
