//! The last handle and the last mutator of a heap can end before its last object, for example if
//! another heap's object refers to it. Then no mutator can destroy that object, so the thread that
//! drops the last reference does it here, without one.

use std::cell::Cell;
use std::panic::resume_unwind;
use std::sync::Arc;

use crate::base::sync::{Ordering, const_thread_local};
use crate::managed::parts::ManagedCore;
use crate::managed::release::{Panic, run_destructor};
use crate::memory::arena::Arena;
use crate::object::counted::{CountedRef, object};
use crate::object::handle_places;
use crate::object::header::Dropped;
use crate::object::live::DeadObject;

/// A dead object, and the core of its heap, which keeps the memory mapped.
type InClosed = (Arc<ManagedCore>, DeadObject);

const_thread_local! {
    /// The stack of the `drop_in_closed` that runs on this thread; null: none runs. The vector lies
    /// in the frame of that call, and [`InUse`] resets the pointer. The pointer has no destructor,
    /// so that destructors of other thread-locals can still drop references.
    static CLOSED: Cell<*mut Vec<InClosed>> = Cell::new(std::ptr::null_mut())
}

/// Lives as long as [`CLOSED`] points to a vector in its frame.
struct InUse;

impl Drop for InUse {
    fn drop(&mut self) {
        CLOSED.with(|closed| closed.set(std::ptr::null_mut()));
    }
}

/// Drops a reference to an object of a closed heap, in which no object has an owner, because all
/// mutators have ended.
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
    let _in_use = InUse;
    CLOSED.with(|closed| closed.set(stack));
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
/// Handlers of dynamic objects do not run, because they need a mutator, so the references of such
/// an object leak.
fn destroy_in_closed(core: &Arc<ManagedCore>, dead: DeadObject) -> Result<(), Panic> {
    let info = core.model.info(dead.header());
    let header = dead.into_header();
    // SAFETY: rule *zero*: this thread has exclusive access to the object, which is one of this
    // heap.
    let result = unsafe {
        let result = run_destructor(info, header);
        core.state(header.as_ptr() as usize).death();
        handle_places::forget(header.as_ptr() as usize);
        Arena::free_remote(&core.space, header.cast());
        result
    };
    // AcqRel: the thread that destroys the last object unmaps the range, so it must come after the
    // last use by the other threads.
    if core.model.left.fetch_sub(1, Ordering::AcqRel) == 1 {
        // The core is dropped after the lock is released, because this may free the lock.
        let _closed = core.model.deferred.lock().closed.take();
    }
    result
}

/// Closes a heap, after its last handle and its last mutator are gone.
pub(crate) fn close(core: &Arc<ManagedCore>) {
    // Before an object that dies in the closed heap is freed: its record would still name it.
    core.model.weak.close();
    let left = core.live().0;
    let list = {
        let mut deferred = core.model.deferred.lock();
        // Before a thread can find the heap closed. No object has died since the count, because
        // there is no mutator, and other threads defer.
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

#[allow(unsafe_code)]
#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
