//! The byte in which a worker marks an object as reached.
//!
//! A worker claims an object when it pushes the object, by a relaxed load and a relaxed store of
//! one byte. Two workers may push the same object: it is traversed twice, which does no harm.

#![forbid(unsafe_code)]

use crate::base::sync::{AtomicU8, Ordering};
use crate::collect::count::Counts;
use crate::collect::log_reader::Reader;
use crate::collect::table::EXCLUDED;
use crate::object::state::{self, StateByte};

/// The place where a worker records that an object is reached.
pub(crate) trait Claims: Copy + Sync {
    /// Claims the object at a granule. Returns `false` if it was claimed before or is not a
    /// candidate.
    ///
    /// Without a branch: whether an edge leads to an unclaimed object cannot be predicted. A
    /// misprediction would prevent the loads of the next mark bytes from overlapping.
    fn claim(&self, target: usize) -> bool;

    /// The address of the mark byte of a granule.
    fn entry(&self, target: usize) -> *const u8;

    /// The result of counting, if counting is complete.
    fn counts(&self) -> Option<&Counts>;

    /// The edges that counting has logged, if any.
    fn log(&self) -> Option<&Reader<'_>>;
}

/// In the phase `Premark`: a bit in the state byte, which excludes the object
/// from the candidates.
#[derive(Clone, Copy)]
pub(crate) struct Premark<'a> {
    pub(super) states: &'a [AtomicU8],
}

impl Claims for Premark<'_> {
    #[inline(always)]
    fn claim(&self, target: usize) -> bool {
        // Relaxed load and store: in a stop only workers change state bytes, and they set only this
        // bit. So no change is lost, and a duplicate claim is harmless.
        let state = self.states[target].load(Ordering::Relaxed);
        let fresh = state::is_candidate(state);
        self.states[target].store(state | (state::ALIVE * u8::from(fresh)), Ordering::Relaxed);
        fresh
    }

    #[inline(always)]
    fn entry(&self, target: usize) -> *const u8 {
        self.states.as_ptr().wrapping_add(target).cast()
    }

    fn counts(&self) -> Option<&Counts> {
        None
    }

    fn log(&self) -> Option<&Reader<'_>> {
        None
    }
}

/// In the phase `Mark`: a mark in the side table.
#[derive(Clone, Copy)]
pub(crate) struct MarkBytes<'a, const YOUNG: bool> {
    pub(super) states: &'a [AtomicU8],
    pub(super) marks: &'a [AtomicU8],
    pub(super) counts: &'a Counts,
    /// In full collections: the edges that counting has logged.
    pub(super) log: &'a Reader<'a>,
}

impl<const YOUNG: bool> Claims for MarkBytes<'_, YOUNG> {
    #[inline(always)]
    fn claim(&self, target: usize) -> bool {
        // In a young collection only young candidates use the table. It must stay zero elsewhere.
        if YOUNG && !state::is_young_candidate(StateByte(&self.states[target]).get()) {
            return false;
        }
        // Relaxed: a duplicate is harmless; see the module's page.
        let fresh = self.marks[target].load(Ordering::Relaxed) == 0;
        self.marks[target].store(EXCLUDED, Ordering::Relaxed);
        fresh
    }

    #[inline(always)]
    fn entry(&self, target: usize) -> *const u8 {
        self.marks.as_ptr().wrapping_add(target).cast()
    }

    fn counts(&self) -> Option<&Counts> {
        Some(self.counts)
    }

    fn log(&self) -> Option<&Reader<'_>> {
        (!YOUNG && !self.log.is_empty()).then_some(self.log)
    }
}
