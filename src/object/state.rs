//! Floor 2: the tracked set, one byte an object.
//!
//! The set is the side table itself: an object is a member while the `TRACKED` bit of its first
//! granule's byte is set. It is sharded by page, and thereby by the arena that owns the page; to
//! enumerate it is a linear scan.
//!
//! | bit | meaning | set | cleared |
//! |---|---|---|---|
//! | `LIVE` | an object is here | at birth | at death |
//! | `TRACKED` | the collector may traverse it | at birth, or late by anybody attached | late by anybody attached; when its destruction begins |
//! | `FINALIZED` | its finalizer has been called | before the call | never |
//! | `FROZEN` | no candidate, until unfrozen | in a stop | in a stop |
//! | `OLD` | survived a collection, or was promoted; whatever is tracked on a page that is not young is old | in a stop, or by the collecting thread | when tracked late |
//! | `UNREACHABLE` | in the set that the running collection is about to clear | in a stop | by the collecting thread, or with the death |
//! | `ALIVE` | reached from a known root: no candidate. The same bit as `UNREACHABLE`, at another time | in a stop, before counting | in the same stop, before anything is unreachable |
//! | `DYING` | its destruction has begun; no candidate | with the count at 0 | at death |
//! | `BY_ALLOCATOR` | the same bit, of a dynamic object: its allocator has tracked it | at birth | when tracked or untracked by hand |
//! | `FINALIZER` | its type has a finalizer: the path to zero need not ask the type | at birth | at death |
//!
//! # Orderings
//!
//! Birth and death are plain relaxed *stores*: at birth nobody else knows the object, and at death the
//! count is 0 and this thread alone. Every other change of a running thread is a read-modify-write: two
//! attributes of one byte are changed by two threads, and by load and store one change would be lost. All
//! are relaxed: what decides by the table as a whole is a stop, and the stop orders it; `is_tracked` of a
//! running thread, and the statistics' scan, are snapshots by nature. (That scan takes the turn's lock for each page, since no stop
//! waits for who asks, and a stop writes some bytes as plain memory, under that lock.)
//!
//! In a stop `roots`, `sweep` and `promote` go over the bytes of a page as plain memory (`count::exclusively`), so that
//! their scans become wide: each page is one worker's. Counting reads them so, while nobody writes them. Whoever else
//! changes state bytes is attached, hence parked; so the claim, one thread's, loads and stores.

use crate::base::sync::{AtomicU8, Ordering};

/// An object is here.
pub(crate) const LIVE: u8 = 1;
/// The collector may traverse it.
pub(crate) const TRACKED: u8 = 2;
/// Its finalizer has been called.
pub(crate) const FINALIZED: u8 = 4;
/// No candidate, until unfrozen.
pub(crate) const FROZEN: u8 = 8;
/// Survived a collection, or was promoted.
pub(crate) const OLD: u8 = 16;
/// In the set that the running collection is about to clear.
pub(crate) const UNREACHABLE: u8 = 32;
/// Reached from a known root. It shares its bit with the opposite verdict, since all eight are taken and the two
/// never meet: this one lives from step 3 to step 6 of one stop, and that one from step 6 on.
pub(crate) const ALIVE: u8 = UNREACHABLE;
/// Its destruction has begun.
pub(crate) const DYING: u8 = 64;
/// Its type has a finalizer.
pub(crate) const FINALIZER: u8 = 128;
/// Of a dynamic object, which asks its type about finalizers: tracked by the allocator, and by nobody else yet.
pub(crate) const BY_ALLOCATOR: u8 = FINALIZER;

/// Of these bits a candidate of a full collection has `TRACKED` alone.
pub(crate) const FULL: u8 = TRACKED | FROZEN | UNREACHABLE | DYING;
/// Of these bits a candidate of a young collection has `TRACKED` alone.
pub(crate) const YOUNG: u8 = FULL | OLD;

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

/// The byte of one object.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StateByte<'a>(pub(crate) &'a AtomicU8);

impl StateByte<'_> {
    /// Its bits.
    #[inline(always)]
    pub(crate) fn get(self) -> u8 {
        self.0.load(Ordering::Relaxed)
    }

    /// The object comes into being, unpublished: `TRACKED` or not, `FINALIZER` or not.
    #[inline(always)]
    pub(crate) fn birth(self, bits: u8) {
        debug_assert_eq!(self.get(), 0, "a cell in use was handed out");
        debug_assert_eq!(bits & !(TRACKED | FINALIZER), 0);
        self.0.store(LIVE | bits, Ordering::Relaxed);
    }

    /// The object's destruction begins: its count is 0, and this thread alone knows it.
    #[inline(always)]
    pub(crate) fn dying(self) {
        // What is left of UNREACHABLE matters to nobody else, but the death of a member is
        // recognised by the bit's absence.
        self.0.store(LIVE | DYING, Ordering::Relaxed);
    }

    /// The object is gone.
    #[inline(always)]
    pub(crate) fn death(self) {
        self.0.store(0, Ordering::Relaxed);
    }

    /// Sets and clears bits by a load and a store; returns the byte before. In a stop, or on the way to the object's death, which is the
    /// last word about all bits.
    ///
    /// The one who may be changing the byte then is the tally; of what a legacy finalizer brings back in that very moment, in a heap that
    /// expects none, the bit `UNREACHABLE` can stay.
    #[inline(always)]
    pub(crate) fn change_plainly(self, set: u8, clear: u8) -> u8 {
        let now = self.get();
        self.0.store((now & !clear) | set, Ordering::Relaxed);
        now
    }

    /// The same of a living object that this thread alone has, with the world running. Then nobody changes the byte but the tally, which
    /// does not ask who has what, and that only while the object counts as unreachable; it becomes so in a stop alone.
    #[inline(always)]
    pub(crate) fn change_alone(self, set: u8, clear: u8) -> u8 {
        if self.get() & UNREACHABLE != 0 {
            return self.change_beside_the_tally(set, clear);
        }
        self.change_plainly(set, clear)
    }

    #[cold]
    fn change_beside_the_tally(self, set: u8, clear: u8) -> u8 {
        let changed = |now: u8| Some((now & !clear) | set);
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, changed).unwrap_or_else(|now| now)
    }

    /// Sets bits; returns the byte before.
    #[inline]
    pub(crate) fn set(self, bits: u8) -> u8 {
        self.0.fetch_or(bits, Ordering::Relaxed)
    }

    /// Clears bits; returns the byte before.
    #[inline]
    pub(crate) fn unset(self, bits: u8) -> u8 {
        self.0.fetch_and(!bits, Ordering::Relaxed)
    }

    /// Enters the tracked set late; `false`: it was a member, or is beyond being one.
    pub(crate) fn track(self) -> bool {
        // A dying object must stay out: the compare-exchange sees the bit and the change as one.
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

    /// The object was to be cleared and is still there: it is no longer unreachable, and it is old, since its
    /// page is not young. `false`: it is not the object that it was.
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

    /// Leaves the tracked set; `false`: it was not in it.
    pub(crate) fn untrack(self) -> bool {
        self.unset(TRACKED) & TRACKED != 0
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn life_of_a_byte() {
        let byte = AtomicU8::new(0);
        let s = StateByte(&byte);
        s.birth(TRACKED);
        assert!(is_candidate(s.get()) && is_young_candidate(s.get()) && is_visible(s.get()));
        s.set(OLD);
        assert!(is_candidate(s.get()) && !is_young_candidate(s.get()));
        s.set(FROZEN);
        assert!(!is_candidate(s.get()) && is_visible(s.get()));
        s.unset(FROZEN);
        s.set(UNREACHABLE);
        assert!(!is_visible(s.get()) && s.get() & TRACKED != 0);
        assert!(!s.track());
        assert!(s.untrack() && !s.untrack() && s.track());
        assert_eq!(s.get() & OLD, 0, "tracked late is young again");
        s.dying();
        assert!(!s.track() && !is_candidate(s.get()));
        s.death();
        assert!(!s.track());
        assert_eq!(s.get(), 0);
    }

    #[test]
    fn two_threads_change_two_attributes() {
        // The trap of the design: with load and store, one of the changes gets lost.
        let byte = AtomicU8::new(LIVE | TRACKED);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for _ in 0..100_000 {
                    assert!(StateByte(&byte).untrack());
                    assert!(StateByte(&byte).track());
                }
            });
            scope.spawn(|| {
                for _ in 0..100_000 {
                    assert_eq!(StateByte(&byte).set(FROZEN) & FROZEN, 0);
                    assert_ne!(StateByte(&byte).unset(FROZEN) & FROZEN, 0);
                }
            });
        });
        assert_eq!(StateByte(&byte).get() & (LIVE | TRACKED | FROZEN), LIVE | TRACKED);
    }
}
