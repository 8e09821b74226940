//! A thread that is not attached to an object's heap may not lower its count. No stop waits for
//! that thread, so the object could die while the collector reads it. So it puts the reference on
//! the heap's *deferred* list, and a thread that is attached drops it later. The thread with the
//! stop defers too, because no object may die in a stop.

use std::sync::Arc;

use crate::base::fallible;
use crate::base::stress::{Step, maybe_yield};
use crate::base::sync::Ordering;
use crate::managed::closed::drop_in_closed;
use crate::managed::parts::{DRAIN_REQUEST, Managed, ManagedCore, Raw, SharedPart};
use crate::managed::release::drop_attached;
use crate::memory::space::Space;
use crate::object::counted::{CountedRef, object};
use crate::object::header::Dropped;
use crate::object::live::DeadObject;
use crate::report::error::{Code, Fault};
use crate::report::facts::During;
use crate::safepoint::{ThreadId, is_stopping, is_traversing};

/// The heap of a reference, to which this thread need not be attached. `None`: the object is
/// static, so it lies in no heap, and its references are not counted.
pub(super) fn heap_of(reference: &CountedRef) -> Option<Arc<ManagedCore>> {
    if reference.header().is_static() {
        return None;
    }
    // SAFETY: rule *counted*: the reference keeps the object alive, and the core outlives its
    // objects. Handles and mutators own the core of an open heap. `Deferred::closed` owns the core
    // of a closed heap until the last object has died. The caller gets a count of its own: another
    // thread may drop the reference, and with it the core.
    unsafe {
        let core = Space::heap_of(reference.address()).cast::<ManagedCore>();
        Arc::increment_strong_count(core);
        Some(Arc::from_raw(core))
    }
}

/// Puts a reference on the deferred list of its heap, because this thread may not lower the count.
#[cold]
#[inline(never)]
pub(super) fn defer(reference: CountedRef) {
    let Some(core) = heap_of(&reference) else { return };
    maybe_yield(&core.under, Step::Defer);
    let page = core.space.page(core.space.page_index(reference.address()));
    let bytes = page.shape().footprint().bytes();
    // This thread may have locked the list and the registry for a fork of this heap, so it uses a
    // list of its own. That is drained after the stop of a collection or an inspection, and after a
    // fork by the next drop, attach or answer.
    if is_stopping() && (Raw::is_attached_to(&core) || core.model.deferred.is_kept_here()) {
        if fallible::push(&mut core.model.deferred_in_stop.lock(), reference).is_err() {
            // The fault is recorded only, because hooks are not called in a stop.
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

/// Closes the queue of a mutator that cannot destroy objects, because its thread does not exist in
/// a forked child, or has a traversal guard.
///
/// The queued objects are merged, and a dead one goes on the deferred list, where the next attached
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

/// Drops the deferred references, if there are any.
#[inline(always)]
pub(super) fn drain_deferred(m: &Raw) {
    // SeqCst: see `defer`.
    if m.model().has_deferred.load(Ordering::SeqCst) {
        drain_list(m);
    }
}

/// Drops the references that are on the lists now.
///
/// Other threads can add references as fast as this thread drops them, so it does not wait for an
/// empty list. None is forgotten, because the first addition after this raises the request again.
#[cold]
#[inline(never)]
pub(super) fn drain_list(m: &Raw) {
    if is_traversing() {
        return;
    }
    let model = m.model();
    let list = {
        let mut deferred = model.deferred.lock();
        // Relaxed: like the list, the flag changes under the lock.
        model.has_deferred.store(false, Ordering::Relaxed);
        deferred.poked = false;
        std::mem::take(&mut deferred.list)
    };
    // After the flag, because a thread that adds a reference from here on raises the flag again.
    let in_stop = std::mem::take(&mut *model.deferred_in_stop.lock());
    m.core().pace.drained();
    for reference in list.into_iter().chain(in_stop) {
        drop_attached(m, reference);
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
