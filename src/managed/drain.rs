//! The drop of the deferred references.

#![forbid(unsafe_code)]

use crate::base::sync::Ordering;
use crate::managed::parts::Raw;
use crate::managed::release::drop_attached;
use crate::safepoint::is_traversing;

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
/// Other threads can add references as fast as this thread drops them. Each addition after this
/// raises the request again, so the next safepoint drains it.
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
    // After the flag: a thread that adds a reference from here on raises the flag again.
    let in_stop = std::mem::take(&mut *model.deferred_in_stop.lock());
    m.core().pace.drained();
    for reference in list.into_iter().chain(in_stop) {
        drop_attached(m, reference);
    }
}
