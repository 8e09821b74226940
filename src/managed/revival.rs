//! The revival of a dying dynamic object while a handler runs.

use std::ptr::NonNull;

use crate::base::stress::{Step, maybe_yield};
use crate::managed::parts::Raw;
use crate::managed::release::{drop_revival, mark_dying, notify_watchers};
use crate::object::counted::object;
use crate::object::header::Header;
use crate::object::live::DeadObject;
use crate::object::state;

/// Revives a dying object for the call of `f`, with one reference; `true`: the object is dying
/// again afterwards.
///
/// # Safety
///
/// The object is dying on this thread, which has exclusive access to it.
pub(crate) unsafe fn revived(m: &Raw, header: NonNull<Header>, f: impl FnOnce()) -> bool {
    // SAFETY: rule *zero*: as the caller says.
    let dead = unsafe { DeadObject::new(object(header)) };
    // Before the revival: an upgrade that finds a count reads the bit as well.
    m.core().dead_state(&dead).unset(state::DYING);
    let reference = dead.revive(m.id());
    let _lent = m.lend();
    maybe_yield(&m.core().under, Step::Weak);
    f();
    let dead = drop_revival(m, reference);
    if let Some(dead) = &dead {
        // SAFETY: rule *zero*: the count answered this thread. No stop came in between.
        unsafe { mark_dying(m, dead.header_ptr()) };
    }
    dead.map(DeadObject::into_header).is_some()
}

/// Clears the weak references to a dying object, and calls their callbacks.
pub(crate) fn clear_weak_references(m: &Raw, dying: &Header) {
    if dying.has_weak() {
        notify_watchers(m, dying);
    }
}
