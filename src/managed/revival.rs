//! Floor 3: a dying dynamic object is taken back while a handler runs.

use std::ptr::NonNull;

use crate::base::stress::{Step, maybe_yield};
use crate::managed::parts::Raw;
use crate::managed::release::{drop_revival, mark_dying, notify_watchers};
use crate::object::header::Header;
use crate::object::state;

/// Brings a dying object back for the length of `f`, with one reference; `true`: it is dying again, `false`: it stays.
///
/// # Safety
///
/// The object is dying on this thread, with nobody else knowing it.
pub(crate) unsafe fn revived(m: &Raw, header: NonNull<Header>, f: impl FnOnce()) -> bool {
    // SAFETY: as the caller says.
    unsafe {
        // First: whoever upgrades a weak reference from now on may take it for alive.
        m.core().state(header.as_ptr() as usize).unset(state::DYING);
        header.as_ref().revive(m.id());
        let _lent = m.lend();
        maybe_yield(&m.core().under, Step::Weak);
        f();
        let dead = drop_revival(m, header);
        if dead {
            // Answered to this thread, so it is this thread's again. No stop can have come in between.
            mark_dying(m, header);
        }
        dead
    }
}

/// Kills the weak references of a dying object, and calls their callbacks.
///
/// # Safety
///
/// As for [`revived`].
pub(crate) unsafe fn clear_weak_references(m: &Raw, header: NonNull<Header>) {
    // SAFETY: as the caller says.
    if unsafe { header.as_ref() }.has_weak() {
        notify_watchers(m, header);
    }
}
