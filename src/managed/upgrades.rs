//! The upgrade of weak references to dynamic objects.

#![forbid(unsafe_code)]

use std::ptr::NonNull;

use crate::base::stress::{Step, maybe_yield};
use crate::managed::parts::Raw;
#[cfg(feature = "cpython")]
use crate::object::counted::object;
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
    let _no_upgrade = record.map(WeakRecord::block_upgrades);
    state.set(state::DYING)
}

/// Adds a reference to the target of a weak record; `None`: the target is dying or dead, or lies in
/// another heap.
#[cfg(feature = "cpython")]
pub(crate) fn upgrade(m: &Raw, record: &WeakRecord) -> Option<NonNull<Header>> {
    let is_own = |target| {
        let is_dying = || m.core().state_at(object(target)).get() & state::DYING != 0;
        m.owns(object(target)) && !is_dying()
    };
    let upgrade = |header: &Header| header.try_upgrade(m.id()).then(|| NonNull::from(header));
    record.with_own_target(is_own, upgrade).flatten()
}
