//! Floor 3: upgrades of weak references to dynamic objects.

use std::ptr::NonNull;

use crate::base::stress::{Step, maybe_yield};
use crate::managed::parts::{Raw, object};
use crate::object::header::Header;
use crate::object::state;
use crate::object::weak::WeakRecord;

/// As [`mark_dying`], of an object that may have a weak record.
///
/// # Safety
///
/// The object is alive, or dying on this thread.
#[cold]
#[inline(never)]
pub(crate) unsafe fn mark_dying_for_upgrades(m: &Raw, header: NonNull<Header>) -> u8 {
    maybe_yield(&m.core().under, Step::Weak);
    let record = m.model().weak.get(header);
    let _no_upgrade = record.as_deref().map(WeakRecord::block_upgrades);
    // SAFETY: as the caller says.
    unsafe { m.core().state(header.as_ptr() as usize) }.set(state::DYING)
}

/// Adds a reference to a dynamic object to which a weak reference leads, unless it is dying or dead, or another heap's.
pub(crate) fn upgrade(m: &Raw, record: &WeakRecord) -> Option<NonNull<Header>> {
    let upgraded = record.with_target(|header| {
        let header = NonNull::from(header);
        // SAFETY: rules R and G: the target's memory is not freed meanwhile; an object of this heap.
        let is_dying =
            || unsafe { m.core().state(header.as_ptr() as usize) }.get() & state::DYING != 0;
        if !m.owns(object(header)) || is_dying() {
            return None;
        }
        // SAFETY: rule R: as above.
        unsafe { header.as_ref() }.try_upgrade(m.id()).then_some(header)
    });
    upgraded.flatten()
}
