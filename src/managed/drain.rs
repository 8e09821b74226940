//! Floor 3: the deferred references are dropped.

use crate::base::sync::Ordering;
use crate::managed::parts::{Managed, Raw};
use crate::managed::release::drop_attached;
use crate::safepoint::is_traversing;

impl Managed {
    /// Drops the deferred references on the thread of a mutator of this model.
    #[inline(always)]
    pub(super) fn drain_on(&self, m: &Raw) {
        // SeqCst: see `defer`.
        if self.has_deferred.load(Ordering::SeqCst) {
            drain_list(m);
        }
    }
}

/// Drops the deferred references.
#[inline(always)]
pub(super) fn drain_deferred(m: &Raw) {
    m.model().drain_on(m);
}

/// As [`drain_deferred`], once there is something.
///
/// It drops what is on the lists now. Other threads can add to them as fast as this one drops: each addition after this
/// asks the attached threads again, and the next safepoint drains it.
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
    // After the flag: a thread that adds something from here on raises it again.
    let in_stop = std::mem::take(&mut *model.deferred_in_stop.lock());
    m.core().pace.drained();
    for target in list.into_iter().chain(in_stop) {
        // SAFETY: rule R: the list owned the reference; this thread is attached to its heap.
        unsafe { drop_attached(m, target.0) };
    }
}
