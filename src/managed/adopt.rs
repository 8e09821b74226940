//! A mutator adopts the objects that it uses and whose owner has ended.
//!
//! An object whose owner has ended has no thread that counts locally: every thread would count it
//! by atomic read-modify-writes. So the first mutator that drops a reference to such an object
//! becomes the owner ([`Header::adopt`]), and counts it locally from then on. The page of
//! [`header`](crate::object::header) describes how this meets other threads.
//!
//! # How a mutator learns that an owner has ended
//!
//! A drop by a thread that is not the owner looks up the owner's id in a table of the coordinator,
//! without a lock. If the table knows no participant with this id, the thread asks the registry,
//! whose lock orders the owner's last count before the adoption. It keeps the id. So it asks once
//! for a series of objects of one owner: an id is never reused.
//!
//! The table may miss an ended owner while a living participant has an id at the same place. Then
//! the object is counted as before.
//!
//! # Objects that are not adopted
//!
//! * A merged object: its owner has dropped its last local reference, or several threads counted
//!   it at once. It stays merged, until a collection claims it.
//! * An object that the mutator only clones: a clone looks at no table.
//! * An object that an unattached thread drops: it defers the reference, and the thread that drains
//!   the list adopts the object.
//!
//! # The new owner
//!
//! It is an owner as any other. Another thread that drops a reference may queue the object for it.
//! If it ends, another mutator can adopt the object.

#![forbid(unsafe_code)]

use crate::base::stress::{Step, maybe_yield};
use crate::managed::parts::Raw;
use crate::object::header::Header;

/// Makes this mutator the owner of an object, if the present owner has ended. The caller has a
/// reference to the object. `false`: nothing has happened.
#[inline(always)]
pub(crate) fn adopt(m: &Raw, header: &Header) -> bool {
    m.core().coordinator.has_probably_ended(header.owner()) && try_adopt(m, header)
}

#[cold]
#[inline(never)]
fn try_adopt(m: &Raw, header: &Header) -> bool {
    let (owner, known) = (header.owner(), &m.private().known_ended);
    if known.get() != owner {
        if !m.core().coordinator.has_ended(owner) {
            return false;
        }
        known.set(owner);
    }
    maybe_yield(&m.core().under, Step::Queue);
    header.adopt(owner, m.id())
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
