//! A thread that is not the object's owner drops a reference. It lowers the shared half of the
//! count, but must not read the owner's half, so it cannot tell whether the object is dead. There
//! are three ways on:
//!
//! * The thread is not attached to the object's heap, so it may not lower the count: it
//!   [defers](defer) the reference.
//! * The shared half becomes negative: the thread puts the object into the [queue](merge_queue) of
//!   its owner, which adds up both halves later. If the owner is detached, the thread suspends it
//!   and merges on its behalf. If the owner has ended, the thread merges the object itself.
//! * The owner has ended before: the mutator *inherits* the object ([`Header::inherit`]), because
//!   otherwise every thread would count it by atomic read-modify-writes for the rest of its life.
//!   The page of [`header`](crate::object::header) describes how an inheritance meets other
//!   threads.
//!
//! # How a mutator learns that an owner has ended
//!
//! It looks up the owner's id in a table of the coordinator, without a lock. If the table knows no
//! participant with this id, the thread asks the registry, whose lock orders the owner's last count
//! before the inheritance. The thread keeps the id, so that it asks once for a series of objects of
//! one owner. This is sound, because an id is never reused. If a living participant has an id at
//! the same place, the table misses the ended owner, and the object is counted as before.
//!
//! # Objects that are not inherited
//!
//! * A merged object: its owner has dropped its last local reference, or several threads counted it
//!   at once. It has no owner that could end, and stays merged until a collection claims it.
//! * An object that the mutator only clones, because a clone looks at no table.
//! * An object that an unattached thread drops: it defers the reference, and the thread that drains
//!   the list inherits the object.
//!
//! Because the new owner is an owner as any other, another thread may queue the object for it, and
//! if it ends, another mutator can inherit the object.

use std::ptr::NonNull;

use crate::base::stress::{Step, maybe_yield};
use crate::heap::core::MutatorShared;
use crate::managed::deferred::defer;
use crate::managed::merge_queue::{self, MergeQueue, OwnerEnded};
use crate::managed::parts::{Managed, Raw};
use crate::managed::release::{OnPanic, destroy_all, destroy_each};
use crate::object::counted::{CountedRef, object};
use crate::object::header::{Dropped, Header};
use crate::object::live::DeadObject;
use crate::object::weak::HeaderPtr;
use crate::safepoint::is_traversing;

/// Drops a reference on a thread that is not the owner.
#[inline]
pub(super) fn drop_foreign(reference: CountedRef) {
    match Raw::current_owning(object(reference.as_ptr())) {
        Some(m) => drop_shared(&m, reference, OnPanic::PassOn),
        None => defer(reference),
    }
}

/// Drops a reference to an object that is shared for life, on any thread.
///
/// Nothing reads the object's cache line before the count, so that a contended line moves to this
/// core once, and not twice.
///
/// # Safety
///
/// The caller owns the reference, and gives it up. The object is shared for life.
#[inline(always)]
pub(crate) unsafe fn drop_shared_for_life(header: NonNull<Header>) {
    // SAFETY: rule *counted*: the reference keeps the object alive.
    debug_assert!(unsafe { header.as_ref() }.is_shared_for_life());
    if let Some(m) = Raw::current_owning(object(header)) {
        // SAFETY: rule *counted*: the reference keeps the object alive.
        match unsafe { header.as_ref() }.drop_merged() {
            Dropped::Alive => {}
            // SAFETY: rule *zero*: the count answered this thread.
            more => unsafe { finish_foreign_drop(&m, header, more, OnPanic::PassOn) },
        }
    } else {
        // SAFETY: as the caller says.
        defer(unsafe { CountedRef::new(header) });
    }
}

/// Drops a reference to an object that this mutator has inherited.
#[cold]
#[inline(never)]
fn drop_inherited(m: &Raw, reference: CountedRef, on_panic: OnPanic) {
    if let Some(dead) = reference.drop_local() {
        destroy_all(m, dead, on_panic);
    }
}

/// Drops a reference on a thread that is attached to the object's heap, and is not the owner.
#[inline]
pub(super) fn drop_shared(m: &Raw, reference: CountedRef, on_panic: OnPanic) {
    if inherit(m, reference.header()) {
        return drop_inherited(m, reference, on_panic);
    }
    match reference.header().drop_shared() {
        Dropped::Alive => {}
        // SAFETY: rule *zero*: the count answered this thread.
        more => unsafe { finish_foreign_drop(m, reference.into_ptr(), more, on_panic) },
    }
}

/// Destroys or enqueues an object after a foreign drop.
///
/// # Safety
///
/// The count of the object gave this answer to this thread.
#[cold]
#[inline(never)]
pub(super) unsafe fn finish_foreign_drop(
    m: &Raw,
    header: NonNull<Header>,
    dropped: Dropped,
    on_panic: OnPanic,
) {
    let _lent = m.lend();
    match dropped {
        Dropped::Alive => {}
        // SAFETY: as the caller says.
        Dropped::Dead => destroy_all(m, unsafe { DeadObject::new(object(header)) }, on_panic),
        // SAFETY: as the caller says.
        Dropped::Enqueue(owner) => unsafe { enqueue(m, owner, header, on_panic) },
    }
}

/// Puts an object into its owner's queue, and destroys the objects that this thread merges for the
/// owner.
///
/// # Safety
///
/// A count answered [`Enqueue`](Dropped::Enqueue) for the object to this thread.
unsafe fn enqueue(m: &Raw, mut owner: u64, header: NonNull<Header>, on_panic: OnPanic) {
    fn queue(shared: &MutatorShared<Managed>) -> &MergeQueue {
        &shared.local.queue
    }
    let core = m.core();
    loop {
        let target = HeaderPtr(header);
        let queued =
            merge_queue::enqueue(&core.coordinator, &core.under, owner, target, queue, merge);
        let Err(OwnerEnded) = queued.map(|dead| destroy_each(m, prove_dead(dead), on_panic)) else {
            return;
        };
        // The lock of the queue, or of the registry, orders the owner's last count before this.
        // SAFETY: rule *counted*: the object is queued, in no queue, so it is not freed before this
        // thread has merged it, or has put it into a queue.
        match unsafe { header.as_ref() }.merge_ended(owner) {
            Dropped::Alive => return,
            Dropped::Dead => {
                // SAFETY: rule *zero*: the merge answered this thread.
                let dead = unsafe { DeadObject::new(object(header)) };
                return destroy_all(m, dead, on_panic);
            }
            Dropped::Enqueue(heir) => owner = heir,
        }
    }
}

/// Merges the halves of an object that a queue contained.
fn merge(queued: NonNull<Header>) -> Dropped {
    // SAFETY: rule *counted*: a queued object is not freed before the queue has merged it.
    unsafe { queued.as_ref() }.merge()
}

/// The objects that a [merge](MergeQueue::merge) found dead.
fn prove_dead(merged: Vec<HeaderPtr>) -> impl ExactSizeIterator<Item = DeadObject> {
    // SAFETY: rule *zero*: `merge` answered `Dead` for each of them, to this thread.
    merged.into_iter().map(|merged| unsafe { DeadObject::new(object(merged.0)) })
}

/// Merges the objects of a queue, and returns the dead ones. The caller is the owner, has suspended
/// the owner, or has stopped the world.
pub(super) fn merge_queue(queue: &MergeQueue) -> impl ExactSizeIterator<Item = DeadObject> {
    prove_dead(queue.merge(merge))
}

/// Merges the mutator's queue, and destroys the dead objects.
pub(super) fn merge_own_queue(m: &Raw) {
    if is_traversing() {
        return;
    }
    for dead in merge_queue(&m.local().queue) {
        destroy_all(m, dead, OnPanic::Report);
    }
}

/// Merges one object ahead of the mutator's next safepoint, if it is queued. It stays alive,
/// because the caller has a reference.
#[cfg(feature = "cpython")]
pub(crate) fn merge_early(m: &Raw, header: &Header) {
    m.local().queue.merge_one(header);
}

/// Makes this mutator the owner of an object, if the present owner has ended. The object stays
/// alive meanwhile, because the caller has a reference to it. `false`: nothing has happened.
#[inline(always)]
pub(crate) fn inherit(m: &Raw, header: &Header) -> bool {
    m.core().coordinator.has_probably_ended(header.owner()) && try_inherit(m, header)
}

#[cold]
#[inline(never)]
fn try_inherit(m: &Raw, header: &Header) -> bool {
    let (owner, known) = (header.owner(), &m.private().known_ended);
    if known.get() != owner {
        if !m.core().coordinator.has_ended(owner) {
            return false;
        }
        known.set(owner);
    }
    maybe_yield(&m.core().under, Step::Queue);
    header.inherit(owner, m.id())
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
