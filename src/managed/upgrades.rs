//! The upgrade of weak references to dynamic objects.

use std::ptr::NonNull;

use crate::base::stress::{Step, maybe_yield};
use crate::managed::parts::Raw;
use crate::object::header::Header;
use crate::object::state::{self, StateByte};
use crate::object::weak::WeakRecord;

/// Sets `DYING` of an object that may have a weak record, and returns the state byte before.
///
/// The lock of the record orders this and upgrades.
#[cold]
#[inline(never)]
pub(crate) fn mark_dying_for_upgrades(m: &Raw, header: &Header, state: StateByte<'_>) -> u8 {
    maybe_yield(&m.core().under, Step::Weak);
    let record = m.model().weak.get(NonNull::from(header));
    let _no_upgrade = record.as_deref().map(WeakRecord::block_upgrades);
    state.set(state::DYING)
}

/// Adds a reference to the target of a weak record; `None`: the target is dying or dead, or lies in
/// another heap.
#[cfg(feature = "cpython")]
pub(crate) fn upgrade(m: &Raw, record: &WeakRecord) -> Option<NonNull<Header>> {
    let upgraded = record.with_target(|header| {
        let header = NonNull::from(header);
        // SAFETY: rules *counted* and *mapped*: the record keeps the target's memory for this call;
        // the target lies in this heap.
        let is_dying =
            || unsafe { m.core().state(header.as_ptr() as usize) }.get() & state::DYING != 0;
        if !m.owns(crate::managed::parts::object(header)) || is_dying() {
            return None;
        }
        // SAFETY: rule *counted*: as above.
        unsafe { header.as_ref() }.try_upgrade(m.id()).then_some(header)
    });
    upgraded.flatten()
}
