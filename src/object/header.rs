//! The object header, with the biased reference count.
//!
//! A count that all threads change needs a read-modify-write for each clone and each drop, although
//! most objects are used by one thread only. So the count is *biased*: one thread, the owner,
//! counts its references in a half of its own, by plain loads and stores. For example, A makes an
//! object (local 1, shared 0), and B clones a reference that it borrows (shared 1). When A drops
//! the last reference of its own, the shared half is in use, so A *merges* the object: only the
//! shared half counts from now on. The drop by B brings that to 0, and B destroys the object.
//!
//! ```text
//!  0                    5        8        12        16
//! +---------------------+--------+---------+---------+----------
//! | owner (40 bits)     | type   | local   | shared  | payload …
//! +---------------------+--------+---------+---------+----------
//!        `word` u64, little end first: type index 24 bits, owner above
//! ```
//!
//! The number of references to an object is `local + shared`, or `shared` alone once the object is
//! merged. Both halves and the owner's id lie in one cache line, so that operations touch no other.
//!
//! # States
//!
//! | state | flags of `shared` | counts |
//! |---|---|---|
//! | biased | none | the attached owner counts in `local`, other threads in `shared` |
//! | queued | `QUEUED` | as biased |
//! | merged | `MERGED` | all threads count in `shared`; `local` is void |
//! | merged, queued | both | as merged |
//! | shared for life | `MERGED`; owner `SHARED_OWNER` | as merged, until the object is freed |
//! | immortal | `IMMORTAL` | void for ever; counting never frees the object |
//!
//! * Every change of `shared` is a read-modify-write, unless only one thread finds the object. A
//!   biased object's `local` and owner change by plain loads and stores, because only the attached
//!   owner changes them, or a thread that keeps it from counting. An ended owner's id changes by a
//!   CAS.
//! * A queued object is in its owner's queue exactly once, and is not freed before it leaves the
//!   queue. So the thread that drains the queue decides whether a merged, queued object is dead.
//! * An object that is *shared for life* is never queued and never has an owner again, because no
//!   transition leaves this state. So a thread may count it without a look at its header, by a
//!   `SharedGc`, which is a reference to such an object. The object may be immortal too.
//! * `WEAK` says that a weak record may exist, so that the path to zero must consult it. Only that
//!   path removes the flag, if a collection has removed the record of its garbage before.
//!
//! # Transitions
//!
//! * *clone*, *drop* by the owner: a plain load and store of `local`.
//! * *last local drop*: `local` goes from 1 to 0. If `shared` is 0, without flags, the object is
//!   dead, and no read-modify-write was needed. Otherwise it is merged, unless it is immortal.
//! * *foreign drop* of a biased object: one CAS subtracts the reference. If the shared half becomes
//!   negative, the same CAS sets `QUEUED`, because between two steps the owner could merge the
//!   object to zero and free it.
//! * *foreign drop* whose CAS met another foreign count: it queues the object too, because once the
//!   object is merged, each foreign count is a single instruction.
//! * *merge*: by the owner, by a thread that suspended the detached owner or stopped the world, or
//!   by one that queued the object and finds the owner ended. Although several may try, the CAS of
//!   `MERGED` lets exactly one thread merge.
//! * *inherit*: a mutator with a reference becomes the owner of a biased object whose owner has
//!   ended; see below.
//! * *share for life*: an object that is not queued, by its owner or, once it is merged, by any
//!   mutator. The CAS that sets `MERGED` fails if another thread has queued the object. The caller
//!   has a reference, so the count is not 0, and the owner's id can change afterwards. It changes
//!   after all other stores of the id: a merge stores `NO_OWNER` before its CAS, which this
//!   transition acquires, and no stop begins meanwhile.
//! * *claim*: the collector takes an unreachable object for the thread that will clear it, in a
//!   stop. If that may be any thread, the collector merges the object instead. To an object that is
//!   shared for life it only adds a reference.
//! * *revive*: the thread that brought the count to 0 takes the object back for its finalizer. To
//!   an object that is shared for life it only adds a reference.
//!
//! # Inheritance
//!
//! After an owner has ended, the first of two transitions decides: a mutator inherits the object,
//! or a thread that has queued it merges it. Both begin with a CAS of the owner's id, from that of
//! the ended owner to the mutator's, or to `NO_OWNER`. The thread whose CAS succeeds has the local
//! half to itself, and the ended owner's last value of it. Although the new owner could count on at
//! once, it first moves the shared half into the local one, if there is room. Then its next last
//! drop finds nothing shared and need not merge.
//!
//! No owner's id comes back, because ids are not reused, and an ended owner takes no object. So if
//! the CAS finds the id, no thread has inherited or merged the object before. The shared half
//! decides nothing here, and may have had the same bits before.
//!
//! A thread may read the id of an ended owner, and queue the object for it after another mutator
//! has inherited the object. It then finds the queue closed, and its own CAS fails. `QUEUED` keeps
//! the object alive until this thread has put it into the queue of the new owner. If the new owner
//! is dropping its last local reference, the id is `NO_OWNER` by then. So this thread clears
//! `QUEUED`, and the later of the two CASes of `shared` decides whether the object is dead.
//!
//! Threads do not take a merged object from each other, because such an object is not inherited.
//!
//! # Saturation
//!
//! The local half counts fewer than 2²⁵ references, because the owner's next clone adds them all to
//! the shared half. So an owner that clones while other threads drop, in balance, never reaches a
//! limit. The word of the local half is the number of references plus `LOCAL_ZERO`, so that the
//! sign bit shows the limit, and a clone needs no compare.
//!
//! The shared half has 28 bits and makes the object immortal at ±2²⁶. This is far from wrapping,
//! even if the owner adds its local half and every thread of a machine overshoots by one. So a
//! count can leak an object, but cannot wrap to zero under a live reference. In a program that
//! drops no reference twice, only objects with 2²⁶ references or more become immortal.
//!
//! A thread counts an immortal object that is shared for life like any other such object. Although
//! such a count may wrap, `IMMORTAL` stays, because the flags are the lowest bits of the word, and
//! a count adds and subtracts multiples of `ONE`.
//!
//! # Orderings
//!
//! Increments are relaxed, because a new reference is made from an old one, and the way to another
//! thread orders the rest. Decrements of `shared` release, and the thread that reads zero acquires,
//! so that all uses of the object happen before its destruction. The owner's plain operations need
//! no ordering, because they happen on one thread.

#![forbid(unsafe_code)]

use crate::base::sync::{AtomicU32, AtomicU64, Ordering};

/// Bits of the word below the owner's id.
pub(crate) const TYPE_BITS: u32 = 24;
const TYPE_MASK: u64 = (1 << TYPE_BITS) - 1;

/// The owner's id of an object without an owner. No mutator has it.
pub(crate) const NO_OWNER: u64 = (1 << 40) - 1;
/// The owner's id of an object that is shared for life. No mutator has it.
const SHARED_OWNER: u64 = NO_OWNER - 1;

const MERGED: u32 = 1;
const QUEUED: u32 = 2;
const IMMORTAL: u32 = 4;
const WEAK: u32 = 8;
const ONE: u32 = 16;
const FLAGS: u32 = ONE - 1;

/// Beyond this distance from zero the shared half makes the object immortal.
const SHARED_LIMIT: i32 = 1 << 26;
/// How far threads may overshoot `SHARED_LIMIT`, by one each.
const OVERSHOOT_LIMIT: i32 = 1 << 20;
/// The local half counts fewer references than this.
const LOCAL_LIMIT: u32 = 1 << 25;
/// The word of a local half that counts no reference.
const LOCAL_ZERO: u32 = (1 << 31) - LOCAL_LIMIT;
/// The word of a local half that counts one reference.
const LOCAL_ONE: u32 = LOCAL_ZERO + 1;

const fn count_of(shared: u32) -> i32 {
    (shared as i32) >> 4
}

const fn local_count(local: u32) -> i32 {
    local.wrapping_sub(LOCAL_ZERO) as i32
}

/// The shared half after a merge, which is the sum of both halves, with the flag `MERGED`.
fn merged(shared: u32, local: u32) -> u32 {
    // The local half of an immortal object is void, so for such an object this sum is void too.
    let sum = count_of(shared) + local_count(local);
    if sum > SHARED_LIMIT {
        shared | MERGED | IMMORTAL
    } else {
        ((sum as u32) << 4) | (shared & FLAGS) | MERGED
    }
}

/// The result of a dropped reference.
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dropped {
    /// References are left, or another thread decides.
    Alive,
    /// It was the last reference. The caller, and no other thread, destroys the object.
    Dead,
    /// The object must be put into the queue of the owner with this id.
    Enqueue(u64),
}

/// The header of an object of the built-in model.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Header {
    word: AtomicU64,
    local: AtomicU32,
    shared: AtomicU32,
}

#[cfg(not(any(all(test, loom), standstill_loom)))]
const _: () = assert!(size_of::<Header>() == 16 && align_of::<Header>() == 8);

impl Header {
    /// A new object with one reference, which `owner` holds.
    #[inline(always)]
    pub(crate) fn new(owner: u64, type_index: u32) -> Self {
        Self {
            word: AtomicU64::new((owner << TYPE_BITS) | u64::from(type_index)),
            local: AtomicU32::new(LOCAL_ONE),
            shared: AtomicU32::new(0),
        }
    }

    /// The header of an object outside of all heaps, of type 0, without an owner. It is never
    /// freed.
    #[cfg(feature = "cpython")]
    #[cfg(not(any(all(test, loom), standstill_loom)))]
    pub(crate) const fn immortal() -> Self {
        Self {
            word: AtomicU64::new(NO_OWNER << TYPE_BITS),
            local: AtomicU32::new(0),
            shared: AtomicU32::new(IMMORTAL),
        }
    }

    /// Whether this looks like a header made by [`immortal`](Self::immortal).
    pub(crate) fn is_static(&self) -> bool {
        self.word.load(Ordering::Relaxed) == NO_OWNER << TYPE_BITS
            && self.shared.load(Ordering::Relaxed) & IMMORTAL != 0
    }

    /// The index of the object's type in its heap's registry.
    #[inline(always)]
    pub(crate) fn type_index(&self) -> u32 {
        // Relaxed, because these bits never change after birth.
        (self.word.load(Ordering::Relaxed) & TYPE_MASK) as u32
    }

    /// The id of the owner, [`NO_OWNER`] or [`SHARED_OWNER`]. The owner may have ended.
    #[inline(always)]
    pub(crate) fn owner(&self) -> u64 {
        // Relaxed: a caller compares it with its own id, or uses it as a hint that a CAS confirms.
        // Only the owner itself, or a stop in which it is parked, writes the owner's own id.
        self.word.load(Ordering::Relaxed) >> TYPE_BITS
    }

    /// Whether the mutator `current` counts locally. `current` is 0 on a thread that is not
    /// attached, and then the answer is `false`, because no object has 0 as its owner's id.
    #[inline(always)]
    pub(crate) fn is_owned_by(&self, current: u64) -> bool {
        self.owner() == current
    }

    fn set_owner(&self, owner: u64) {
        // Relaxed: written by the owner, for a suspended owner, in a stop, or if there is no owner.
        let word = self.word.load(Ordering::Relaxed);
        self.word.store((owner << TYPE_BITS) | (word & TYPE_MASK), Ordering::Relaxed);
    }

    /// Replaces the id of an owner that has ended; `Err`: the present owner's id is another one.
    ///
    /// The caller has a reference, or has queued the object. It learned of the end through a lock
    /// that the owner released after its last count: so `local` is final, and, if this succeeds,
    /// the caller's.
    fn replace_ended(&self, ended: u64, owner: u64) -> Result<(), u64> {
        let word = (ended << TYPE_BITS) | u64::from(self.type_index());
        let new = (owner << TYPE_BITS) | u64::from(self.type_index());
        // Relaxed, both, because the lock orders the owner's counts, as its end does for a later
        // owner.
        match self.word.compare_exchange(word, new, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => Ok(()),
            Err(now) => Err(now >> TYPE_BITS),
        }
    }

    /// The mutator `heir` becomes the owner of an object whose owner `ended` has ended. `false`:
    /// the object has another owner by now, or none.
    ///
    /// The caller is the mutator `heir`, attached to the object's heap, and has a reference. It
    /// knows of the end as [`replace_ended`](Self::replace_ended) requires.
    pub(crate) fn inherit(&self, ended: u64, heir: u64) -> bool {
        if self.replace_ended(ended, heir).is_err() {
            return false;
        }
        // Relaxed, both, because from here on this thread is the owner.
        let local = local_count(self.local.load(Ordering::Relaxed));
        let mut shared = self.shared.load(Ordering::Relaxed);
        loop {
            let sum = local + count_of(shared);
            if sum == local || !(1..LOCAL_LIMIT as i32).contains(&sum) {
                return true;
            }
            // A CAS: otherwise a drop that comes between could get a half above zero below zero,
            // without `QUEUED`. Relaxed: it is a read-modify-write, so this thread's last drop
            // still pairs with the releases of earlier drops.
            match self.shared.compare_exchange_weak(
                shared,
                shared & FLAGS,
                Ordering::Relaxed,
                Ordering::Relaxed,
            ) {
                Ok(_) => {
                    self.local.store(LOCAL_ZERO + sum as u32, Ordering::Relaxed);
                    return true;
                }
                Err(now) => shared = now,
            }
        }
    }

    /// Whether no reference is left and no weak record exists. The object must never have been
    /// merged.
    #[cfg(feature = "cpython")]
    #[inline(always)]
    pub(crate) fn is_spent(&self) -> bool {
        // Relaxed, because the caller has exclusive access to the object.
        self.local.load(Ordering::Relaxed) == LOCAL_ZERO && self.shared.load(Ordering::Relaxed) == 0
    }

    /// Whether the caller, the mutator `current`, has the only reference, and no weak record
    /// exists, so that no other thread can reach the object. `false` also if it cannot know.
    #[inline]
    pub(crate) fn is_unique(&self, current: u64) -> bool {
        // Acquire: pairs with the release of every drop by another thread, as in
        // `drop_last_local`, and a stale value does no harm for the same reason.
        match self.shared.load(Ordering::Acquire) {
            // Relaxed: as in `clone_local`.
            0 => self.is_owned_by(current) && self.local.load(Ordering::Relaxed) == LOCAL_ONE,
            shared => shared == ONE | MERGED,
        }
    }

    /// The owner `current` drops the only reference. `true`: the object is dead, and the caller
    /// destroys it. `false`: nothing has happened, because the caller is not the owner, or there
    /// are other references or a weak record.
    #[inline(always)]
    pub(crate) fn take_last(&self, current: u64) -> bool {
        // Acquire: as in `drop_last_local`.
        let last = self.is_owned_by(current)
            && self.local.load(Ordering::Relaxed) == LOCAL_ONE
            && self.shared.load(Ordering::Acquire) == 0;
        if last {
            self.local.store(LOCAL_ZERO, Ordering::Relaxed);
        }
        last
    }

    #[inline(always)]
    pub(crate) fn clone_ref(&self, current: u64) {
        if self.is_owned_by(current) {
            self.clone_local();
        } else {
            self.clone_shared();
        }
    }

    #[inline(always)]
    fn clone_local(&self) {
        // Relaxed, because only the owner touches `local` while it is attached.
        let more = self.local.load(Ordering::Relaxed) + 1;
        if (more as i32) < 0 {
            self.share_local();
        } else {
            self.local.store(more, Ordering::Relaxed);
        }
    }

    /// The owner of a full local half adds a reference, and moves all others to the shared half.
    #[cold]
    fn share_local(&self) {
        self.local.store(LOCAL_ONE, Ordering::Relaxed);
        // Relaxed: as in `clone_shared`. The sum of both halves is of interest only to the owner,
        // and to threads that find the owner suspended, stopped or ended.
        let before = self.shared.fetch_add((LOCAL_LIMIT - 1) * ONE, Ordering::Relaxed);
        if count_of(before) > SHARED_LIMIT - LOCAL_LIMIT as i32 {
            self.make_immortal();
        }
    }

    /// Adds a reference to the shared half, which any thread may do in any state.
    #[inline]
    pub(crate) fn clone_shared(&self) {
        // Relaxed, because the new reference is made from one that the caller holds already.
        let before = self.shared.fetch_add(ONE, Ordering::Relaxed);
        if count_of(before) >= SHARED_LIMIT {
            self.make_immortal();
        }
    }

    /// Makes the object immortal, so that counting never frees it.
    #[cold]
    pub(crate) fn make_immortal(&self) {
        // Relaxed, because the flag only keeps the object alive.
        self.shared.fetch_or(IMMORTAL, Ordering::Relaxed);
    }

    /// The common drop: the owner drops a reference that is not its last. `false`: nothing has
    /// happened.
    ///
    /// It takes two loads, a store and two compares, of which the second also catches the last
    /// reference and the void half of a static object (0).
    #[inline(always)]
    pub(crate) fn try_drop_local(&self, current: u64) -> bool {
        // Relaxed: as in `clone_local`.
        let local = self.local.load(Ordering::Relaxed);
        let common = self.is_owned_by(current) && local > LOCAL_ONE;
        if common {
            self.local.store(local - 1, Ordering::Relaxed);
        }
        common
    }

    /// The owner drops a reference.
    #[inline]
    pub(crate) fn drop_local(&self) -> Dropped {
        // Relaxed: as in `clone_local`.
        let local = self.local.load(Ordering::Relaxed);
        if local > LOCAL_ONE {
            self.local.store(local - 1, Ordering::Relaxed);
            return Dropped::Alive;
        }
        self.drop_last_local(local)
    }

    #[inline]
    fn drop_last_local(&self, local: u32) -> Dropped {
        if local != LOCAL_ONE {
            return Dropped::Alive; // immortal
        }
        // Acquire: pairs with the release of every foreign drop, whose uses of the object must
        // happen before its destruction. A stale value does no harm, because the caller holds the
        // only local reference, and any other was counted in `shared` before this thread could
        // reach its holder.
        let shared = self.shared.load(Ordering::Acquire);
        if shared == 0 {
            self.local.store(LOCAL_ZERO, Ordering::Relaxed);
            return Dropped::Dead;
        }
        self.merge_last()
    }

    /// The owner drops its last local reference to an object that is shared, queued or immortal, or
    /// has a weak record.
    #[cold]
    fn merge_last(&self) -> Dropped {
        if self.shared.load(Ordering::Relaxed) & IMMORTAL != 0 {
            self.local.store(LOCAL_ZERO, Ordering::Relaxed);
            return Dropped::Alive;
        }
        // Before the CAS: after it the object may be freed by another thread at any time.
        self.set_owner(NO_OWNER);
        let mut shared = self.shared.load(Ordering::Relaxed);
        loop {
            // AcqRel: publishes this thread's uses of the object to the thread that frees it. If
            // this thread frees it, it acquires the uses of the others.
            match self.shared.compare_exchange_weak(
                shared,
                shared | MERGED,
                Ordering::AcqRel,
                Ordering::Relaxed,
            ) {
                Ok(_) => break,
                Err(now) => shared = now,
            }
        }
        if count_of(shared) == 0 && shared & (QUEUED | IMMORTAL) == 0 {
            Dropped::Dead
        } else {
            Dropped::Alive
        }
    }

    /// The mutator `current`, attached to the object's heap and perhaps the owner, drops a
    /// reference.
    pub(crate) fn drop_ref(&self, current: u64) -> Dropped {
        if self.is_owned_by(current) { self.drop_local() } else { self.drop_shared() }
    }

    /// A thread that is attached to the object's heap and is not the owner drops a reference.
    #[inline]
    pub(crate) fn drop_shared(&self) -> Dropped {
        let mut shared = self.shared.load(Ordering::Relaxed);
        let mut contended = false;
        loop {
            if shared & IMMORTAL != 0 {
                return Dropped::Alive;
            }
            if shared & MERGED != 0 {
                return self.drop_merged();
            }
            // Before the CAS, after which the reference is gone, and the header may not be read.
            let owner = self.owner();
            let mut less = shared.wrapping_sub(ONE);
            // If several threads count an object at once, it is better merged: a count is then one
            // instruction, while this loop retries. An object without an owner is just being merged
            // (`merge_last`).
            let hot = contended && owner != NO_OWNER;
            let enqueue = (count_of(less) < 0 || hot) && shared & QUEUED == 0;
            if enqueue {
                less |= QUEUED;
            }
            if count_of(less) < -SHARED_LIMIT {
                less |= IMMORTAL;
            }
            // Release, so that this thread's uses happen before the destruction. Unlike
            // `drop_merged` it needs no acquire, because this path never destroys.
            match self.shared.compare_exchange_weak(
                shared,
                less,
                Ordering::Release,
                Ordering::Relaxed,
            ) {
                Ok(_) if enqueue => return Dropped::Enqueue(owner),
                Ok(_) => return Dropped::Alive,
                Err(now) => (shared, contended) = (now, shared != now),
            }
        }
    }

    /// A thread that is attached to the object's heap drops a reference to a merged object. The
    /// thread has seen that it is merged, or the object is shared for life.
    #[inline]
    pub(crate) fn drop_merged(&self) -> Dropped {
        // AcqRel: release for the thread that destroys, and acquire because this may be the last
        // reference, after which this thread destroys the object.
        let before = self.shared.fetch_sub(ONE, Ordering::AcqRel);
        if count_of(before) == 1 && before & (QUEUED | IMMORTAL) == 0 {
            Dropped::Dead
        } else {
            Dropped::Alive
        }
    }

    /// Sums both halves into the shared half, and clears `QUEUED`, as the object leaves its queue.
    ///
    /// The caller is the owner, has suspended the owner, or has stopped the world. It has removed
    /// the object from its queue. `Dead`: the caller destroys the object.
    pub(crate) fn merge(&self) -> Dropped {
        let local = self.local.load(Ordering::Relaxed);
        // Before the CAS, for the reason given in `merge_last`. The owner is not counting now.
        self.set_owner(NO_OWNER);
        self.merge_with(Some(local))
    }

    /// [`merge`](Self::merge) on behalf of `ended`, an owner that has ended. `Enqueue`: another
    /// mutator has inherited the object, which stays queued and must be put into the queue of this
    /// owner.
    ///
    /// The caller has queued the object, or removed it from the queue of `ended`. It knows of the
    /// end as [`replace_ended`](Self::replace_ended) requires.
    pub(crate) fn merge_ended(&self, ended: u64) -> Dropped {
        match self.replace_ended(ended, NO_OWNER) {
            Ok(()) => self.merge_with(Some(self.local.load(Ordering::Relaxed))),
            // An owner has dropped, or is dropping, its last local reference, so `local` is void.
            Err(NO_OWNER) => self.merge_with(None),
            Err(owner) => Dropped::Enqueue(owner),
        }
    }

    /// Clears `QUEUED`, and merges with the local half, if that is given.
    fn merge_with(&self, local: Option<u32>) -> Dropped {
        let mut shared = self.shared.load(Ordering::Relaxed);
        loop {
            let merged = match local {
                Some(local) if shared & MERGED == 0 => merged(shared, local),
                _ => shared,
            };
            let merged = merged & !QUEUED;
            // AcqRel: as in `merge_last`.
            match self.shared.compare_exchange_weak(
                shared,
                merged,
                Ordering::AcqRel,
                Ordering::Relaxed,
            ) {
                Ok(_) => {
                    let is_counted = merged & (MERGED | IMMORTAL) == MERGED;
                    let dead = is_counted && count_of(merged) == 0;
                    // For a merged object that was not queued, the thread that brought it to zero
                    // decided.
                    let mine = shared & MERGED == 0 || shared & QUEUED != 0;
                    return if dead && mine { Dropped::Dead } else { Dropped::Alive };
                }
                Err(now) => shared = now,
            }
        }
    }

    /// Makes the object shared for life. `false`: nothing has happened, because another mutator
    /// owns the object, or it is queued.
    ///
    /// The caller is the mutator `current`, attached to the object's heap, and has a reference.
    pub(crate) fn share_for_life(&self, current: u64) -> bool {
        // Acquire, here and in the CAS: pairs with the CAS of `merge_last` or `merge_with`, so that
        // the store of `NO_OWNER` before that CAS also precedes the store below.
        let mut shared = self.shared.load(Ordering::Acquire);
        loop {
            if shared & QUEUED != 0 {
                return false;
            }
            if shared & MERGED != 0 {
                break;
            }
            if !self.is_owned_by(current) {
                return false;
            }
            // Relaxed on success, because the caller keeps its reference, whose drop publishes the
            // caller's uses of the object.
            match self.shared.compare_exchange_weak(
                shared,
                merged(shared, self.local.load(Ordering::Relaxed)),
                Ordering::Relaxed,
                Ordering::Acquire,
            ) {
                Ok(_) => break,
                Err(now) => shared = now,
            }
        }
        self.set_owner(SHARED_OWNER);
        true
    }

    /// Whether the object is shared for life. The caller has stopped the world, received `Dead`, or
    /// has a `SharedGc`.
    #[inline(always)]
    pub(crate) fn is_shared_for_life(&self) -> bool {
        self.owner() == SHARED_OWNER
    }

    /// Whether counts are void. In a stop.
    #[inline(always)]
    pub(crate) fn is_immortal(&self) -> bool {
        // Relaxed: the stop orders it.
        self.shared.load(Ordering::Relaxed) & IMMORTAL != 0
    }

    /// The number of references. `None`: immortal. It is exact in a stop, or if no other thread can
    /// reach the object, and a snapshot otherwise.
    #[inline(always)]
    pub(crate) fn count(&self) -> Option<i64> {
        // Relaxed: the stop orders it.
        self.count_with(self.shared.load(Ordering::Relaxed))
    }

    #[inline(always)]
    fn count_with(&self, shared: u32) -> Option<i64> {
        if shared & IMMORTAL != 0 {
            return None;
        }
        let local =
            if shared & MERGED != 0 { 0 } else { local_count(self.local.load(Ordering::Relaxed)) };
        Some(i64::from(local + count_of(shared)))
    }

    /// Whether the object is in a queue.
    #[cfg(feature = "cpython")]
    pub(crate) fn is_queued(&self) -> bool {
        // Relaxed: as for `count`.
        self.shared.load(Ordering::Relaxed) & QUEUED != 0
    }

    /// Checks the header of a live object in a stop. `was_given` says whether a mutator ever had an
    /// id.
    pub(crate) fn check(&self, was_given: impl FnOnce(u64) -> bool) -> Result<(), String> {
        let owner = self.owner();
        // Relaxed, because the stop orders both loads.
        let (local, shared) =
            (self.local.load(Ordering::Relaxed), self.shared.load(Ordering::Relaxed));
        if owner == SHARED_OWNER {
            if shared & (MERGED | QUEUED) != MERGED {
                return Err(format!("it is shared for life, with the flags {shared:#x}"));
            }
        } else if owner != NO_OWNER && !was_given(owner) {
            return Err(format!("its owner is #{owner}, and no thread ever had that id"));
        }
        let in_range = local.wrapping_sub(LOCAL_ZERO) < LOCAL_LIMIT
            && count_of(shared).abs() <= SHARED_LIMIT + OVERSHOOT_LIMIT;
        match self.count() {
            Some(_) if !in_range => Err(format!(
                "its counts are out of range: local {}, shared {}",
                local_count(local),
                count_of(shared)
            )),
            Some(count) if count < 0 => Err(format!("it is alive with a count of {count}")),
            // In a queue 0 is no fault, because the thread that drains the queue finds such a sum.
            Some(0) if shared & QUEUED == 0 => Err(format!(
                "it is alive with a count of 0: owner #{owner}, local {}, shared {shared:#x}",
                local_count(local)
            )),
            _ => Ok(()),
        }
    }

    /// In a stop, `owner` takes a reference and the ownership. The other references stay counted
    /// where they are, so the sum is right. Clearing and dropping then run on the plain path, and a
    /// survivor is biased again. An object that is shared for life gets the reference and no owner.
    pub(crate) fn claim(&self, owner: u64) {
        if self.shared.load(Ordering::Relaxed) & MERGED != 0 {
            if self.is_shared_for_life() {
                return self.clone_shared();
            }
            // In a stop only unattached threads count, and only objects that are reachable, which
            // this object is not. It is a read-modify-write all the same.
            self.shared.fetch_and(!MERGED, Ordering::Relaxed);
            self.local.store(LOCAL_ZERO, Ordering::Relaxed);
        }
        self.clone_local();
        self.set_owner(owner);
    }

    /// In a stop, the collector takes a reference, and merges the object, because several threads
    /// will count it.
    pub(crate) fn claim_merged(&self) {
        // Relaxed: as in `claim`.
        let shared = self.shared.load(Ordering::Relaxed);
        if shared & MERGED == 0 {
            self.set_owner(NO_OWNER);
            let local = self.local.load(Ordering::Relaxed);
            // It is a read-modify-write for the reason given in `claim`.
            self.shared.fetch_add(merged(shared, local).wrapping_sub(shared), Ordering::Relaxed);
        }
        self.clone_shared();
    }

    /// The thread that received `Dead` takes the object back, with one reference.
    ///
    /// It drops this reference by [`drop_ref`](Self::drop_ref). The object may be merged by then,
    /// because this thread has locally dropped references that other threads have counted.
    /// An object that is shared for life gets no owner.
    pub(crate) fn revive(&self, owner: u64) {
        if self.is_shared_for_life() {
            return self.clone_shared();
        }
        self.local.store(LOCAL_ONE, Ordering::Relaxed);
        self.set_owner(owner);
        // Release: a weak upgrade that sees the object biased again sees the count above.
        self.shared.fetch_and(!MERGED, Ordering::Release);
    }

    /// Adds a reference unless the object is dead. For weak references: the caller holds the lock
    /// of the object's weak record, which the path to zero takes before the memory is freed.
    pub(crate) fn try_upgrade(&self, current: u64) -> bool {
        if self.is_owned_by(current) {
            // An owner has a local reference, because its last drop merges the object.
            self.clone_local();
            return true;
        }
        let mut shared = self.shared.load(Ordering::Relaxed);
        loop {
            if shared & IMMORTAL != 0 {
                return true;
            }
            if shared & MERGED != 0 && count_of(shared) == 0 {
                return false;
            }
            // Acquire: pairs with the release in `revive`.
            match self.shared.compare_exchange_weak(
                shared,
                shared.wrapping_add(ONE),
                Ordering::Acquire,
                Ordering::Relaxed,
            ) {
                Ok(_) => {
                    if count_of(shared) >= SHARED_LIMIT {
                        self.make_immortal();
                    }
                    return true;
                }
                Err(now) => shared = now,
            }
        }
    }

    /// Sets the counts of an object that only one thread knows, to values near their limits.
    #[cfg(all(test, loom))]
    pub(crate) fn preset(&self, local: u32, shared: i32) {
        self.local.store(LOCAL_ZERO + local, Ordering::Relaxed);
        self.shared.store((shared as u32) << 4, Ordering::Relaxed);
    }

    /// Marks the object as one with a weak record. The caller holds a reference. The flag is set
    /// before the first weak reference exists, so that the last drop cannot miss it.
    pub(crate) fn set_weak(&self) {
        // Relaxed: the weak reference reaches other threads by a stronger access. This thread's
        // later drops are ordered by program order on one location.
        self.shared.fetch_or(WEAK, Ordering::Relaxed);
    }

    /// Removes the flag. The mutator that calls this has [the only
    /// reference](Self::is_last_but_weak), and the object has no weak record, so no other thread
    /// can find it.
    pub(crate) fn unset_weak(&self) {
        // Relaxed, because only this thread uses the object.
        self.shared.store(0, Ordering::Relaxed);
    }

    /// Whether the caller, the mutator `current`, has the only reference, and the flag is set.
    #[inline(always)]
    pub(crate) fn is_last_but_weak(&self, current: u64) -> bool {
        // Acquire: as in `drop_last_local`. It suffices for a weak record too, because a thread
        // that has made one had a reference.
        self.shared.load(Ordering::Acquire) == WEAK
            && self.is_owned_by(current)
            && self.local.load(Ordering::Relaxed) == LOCAL_ONE
    }

    /// Whether the object may have a weak record.
    #[inline]
    pub(crate) fn has_weak(&self) -> bool {
        self.shared.load(Ordering::Relaxed) & WEAK != 0
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
