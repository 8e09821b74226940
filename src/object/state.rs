//! A list of all objects that the collector may traverse would grow with each allocation. So the
//! tracked set is a side table, with one state byte for each object. An object is a member while
//! the `TRACKED` bit of its first granule's byte is set, so that one store adds it. For example,
//! the byte of a new object is `LIVE | TRACKED`, and a full collection that keeps it adds `OLD`. An
//! enumeration is a linear scan over pages, which threads can share.
//!
//! | bit | meaning | set | cleared |
//! |---|---|---|---|
//! | `LIVE` | an object is here | birth | death: its memory is freed, or waits for that |
//! | `TRACKED` | the collector may traverse it | birth, or late | late, or with `DYING` |
//! | `FINALIZED` | its finalizer has been called | before the call, or by the model | never |
//! | `FROZEN` | no candidate | in a stop | in a stop |
//! | `OLD` | survived a collection, or was promoted | in a stop (1) | when tracked late |
//! | `UNREACHABLE` | the running collection will clear it | in a stop | (1), or death |
//! | `DYING` | its destruction has begun: no candidate | at a count of 0 | death |
//! | `BY_TYPE` | its type has a finalizer or memory outside the heap | birth | death |
//! | `BY_ALLOCATOR` | tracked by its allocator | birth | when tracked or untracked |
//!
//! * (1): also by the collecting thread while the world runs.
//! * "Late" means by any attached thread, at any time.
//! * Every tracked object on a page that is not young is old.
//! * `BY_TYPE` lets the path to zero skip the type of most objects. Dynamic objects always consult
//!   their type, so `BY_ALLOCATOR` can be the same bit.
//!
//! # Orderings
//!
//! Birth and death are plain relaxed *stores*, because at birth only one thread knows the object,
//! and at death only the destroying thread has it. Every other change while the world runs is a
//! read-modify-write, because two threads may change two bits of one byte, and stores would lose a
//! change. All are relaxed, because only a stop, which orders them, decides by the table as a
//! whole. `is_tracked` of a running thread and the scan of the statistics are snapshots. That scan
//! takes the collector's lock for each page, because no stop waits for its thread, and a stop
//! writes some bytes as plain memory, under that lock.
//!
//! In a stop `listing`, `sweep` and `promote` access the bytes of a page as plain memory
//! (`scope::exclusively`), so that their scans are vectorised. Each page then belongs to one
//! worker, while all other threads that change state bytes are attached, and so parked. The search
//! for candidates reads the bytes so, while no thread writes them. The claim uses loads and stores,
//! because each object has one worker.

#![forbid(unsafe_code)]

use crate::base::sync::{AtomicU8, Ordering};

/// An object is here.
pub(crate) const LIVE: u8 = 1;
/// The collector may traverse it.
pub(crate) const TRACKED: u8 = 2;
/// Its finalizer has been called.
pub(crate) const FINALIZED: u8 = 4;
/// No candidate until it is unfrozen.
pub(crate) const FROZEN: u8 = 8;
/// Survived a collection, or was promoted.
pub(crate) const OLD: u8 = 16;
/// The running collection is about to clear the object.
pub(crate) const UNREACHABLE: u8 = 32;
/// The object's destruction has begun.
pub(crate) const DYING: u8 = 64;
/// The death of the object consults its type, which has a finalizer or memory outside the heap.
pub(crate) const BY_TYPE: u8 = 128;
/// For dynamic objects, which consult their type about finalizers: the allocator has tracked the
/// object, and no other code has since.
#[cfg(feature = "cpython")]
pub(crate) const BY_ALLOCATOR: u8 = BY_TYPE;

/// A candidate of a full collection has `TRACKED` and no other of these bits.
pub(crate) const FULL: u8 = TRACKED | FROZEN | UNREACHABLE | DYING;
/// A candidate of a young collection has `TRACKED` and no other of these bits.
pub(crate) const YOUNG: u8 = FULL | OLD;

/// An object that a running collection has claimed has both bits, while it is tracked.
pub(crate) const CLAIMED: u8 = TRACKED | UNREACHABLE;

/// Whether an object in this state takes part in a full collection.
#[inline(always)]
pub(crate) fn is_candidate(state: u8) -> bool {
    state & FULL == TRACKED
}

/// Whether an object in this state takes part in a young collection.
#[inline(always)]
pub(crate) fn is_young_candidate(state: u8) -> bool {
    state & YOUNG == TRACKED
}

/// Whether an enumeration shows an object in this state.
#[inline(always)]
pub(crate) fn is_visible(state: u8) -> bool {
    state & (TRACKED | UNREACHABLE | DYING) == TRACKED
}

/// The state of an object, as an inspection of the heap shows it.
///
/// [`ModelMutator::objects`](crate::model::ModelMutator::objects) passes it on.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct ObjectFlags(u8);

impl ObjectFlags {
    pub(crate) fn of(state: u8) -> Self {
        Self(state)
    }

    /// Whether the object is in the tracked set.
    pub fn is_tracked(self) -> bool {
        self.0 & TRACKED != 0
    }

    /// Whether the object is new since the last collection or promotion.
    pub fn is_young(self) -> bool {
        self.0 & OLD == 0
    }

    /// Whether the object is frozen.
    pub fn is_frozen(self) -> bool {
        self.0 & FROZEN != 0
    }

    /// Whether the object's finalizer has been called.
    pub fn is_finalized(self) -> bool {
        self.0 & FINALIZED != 0
    }

    /// Whether a running collection has found the object unreachable, so that it is about to clear
    /// it, unless a finalizer brings it back.
    pub fn is_unreachable(self) -> bool {
        self.0 & UNREACHABLE != 0
    }
}

impl std::fmt::Debug for ObjectFlags {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let all = [
            (self.is_tracked(), "tracked"),
            (self.is_young(), "young"),
            (self.is_frozen(), "frozen"),
            (self.is_finalized(), "finalized"),
            (self.is_unreachable(), "unreachable"),
        ];
        let set = all.into_iter().filter_map(|(is, name)| is.then_some(name));
        f.debug_set().entries(set).finish()
    }
}

/// The state byte of one object.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StateByte<'a>(pub(crate) &'a AtomicU8);

impl StateByte<'_> {
    #[inline(always)]
    pub(crate) fn get(self) -> u8 {
        self.0.load(Ordering::Relaxed)
    }

    /// The object is born, so no other thread knows it. `bits` may contain `TRACKED` and `BY_TYPE`.
    #[inline(always)]
    pub(crate) fn birth(self, bits: u8) {
        debug_assert_eq!(self.get(), 0, "a cell in use was handed out");
        debug_assert_eq!(bits & !(TRACKED | BY_TYPE), 0);
        self.0.store(LIVE | bits, Ordering::Relaxed);
    }

    /// The object's destruction begins: its count is 0, and only this thread knows it.
    #[inline(always)]
    pub(crate) fn dying(self) {
        // Clears `UNREACHABLE` too, because the collection recognises the death of a member by the
        // absence of this bit, which other threads ignore.
        self.0.store(LIVE | DYING, Ordering::Relaxed);
    }

    #[inline(always)]
    pub(crate) fn death(self) {
        self.0.store(0, Ordering::Relaxed);
    }

    /// Sets and clears bits by a load and a store, and returns the old byte. For a stop, or for an
    /// object on its way to death, whose last store overwrites all bits.
    ///
    /// In the second case the closing of a collection may write the byte at the same time. If a
    /// legacy finalizer brings an object back in that moment, in a heap that expects none, the bit
    /// `UNREACHABLE` can stay set.
    #[inline(always)]
    pub(crate) fn change_plainly(self, set: u8, clear: u8) -> u8 {
        let now = self.get();
        self.0.store((now & !clear) | set, Ordering::Relaxed);
        now
    }

    /// Sets and clears bits of a living object to which only this thread has access, while the
    /// world runs. The only other writer is the closing of a collection, and only while
    /// `UNREACHABLE` is set, which happens only in a stop.
    #[cfg(feature = "cpython")]
    #[inline(always)]
    pub(crate) fn change_alone(self, set: u8, clear: u8) -> u8 {
        if self.get() & UNREACHABLE != 0 {
            return self.change_beside_the_closing(set, clear);
        }
        self.change_plainly(set, clear)
    }

    #[cfg(feature = "cpython")]
    #[cold]
    fn change_beside_the_closing(self, set: u8, clear: u8) -> u8 {
        let changed = |now: u8| Some((now & !clear) | set);
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, changed).unwrap_or_else(|now| now)
    }

    /// Sets bits and returns the old byte.
    #[inline]
    pub(crate) fn set(self, bits: u8) -> u8 {
        self.0.fetch_or(bits, Ordering::Relaxed)
    }

    /// Clears bits and returns the old byte.
    #[inline]
    pub(crate) fn unset(self, bits: u8) -> u8 {
        self.0.fetch_and(!bits, Ordering::Relaxed)
    }

    /// Adds the object to the tracked set late. `false`: it was a member, or it is dying or dead.
    pub(crate) fn track(self) -> bool {
        // A dying object must not enter the set, so the compare-exchange tests the bit and changes
        // the byte in one step.
        let mut now = self.get();
        while now & (TRACKED | DYING) == 0 && now & LIVE != 0 {
            let tracked = (now | TRACKED) & !OLD;
            match self.0.compare_exchange_weak(now, tracked, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return true,
                Err(seen) => now = seen,
            }
        }
        false
    }

    /// The object was to be cleared and has survived, so it is not unreachable any more. It is old,
    /// because its page is not young. `false`: the byte belongs to another object now.
    pub(crate) fn survive(self) -> bool {
        let mut now = self.get();
        while now & UNREACHABLE != 0 {
            match self.0.compare_exchange_weak(
                now,
                (now & !UNREACHABLE) | OLD,
                Ordering::Relaxed,
                Ordering::Relaxed,
            ) {
                Ok(_) => return true,
                Err(seen) => now = seen,
            }
        }
        false
    }

    /// Removes the object from the tracked set. `false`: it was not a member.
    pub(crate) fn untrack(self) -> bool {
        self.unset(TRACKED) & TRACKED != 0
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
