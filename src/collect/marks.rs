//! The byte in which a worker marks an object as reached.
//!
//! A worker claims an object when it pushes the object, by a relaxed load and a relaxed store of
//! one byte. Two workers may push the same object: it is traversed twice, which does no harm.

use crate::base::sync::{AtomicU8, Ordering};
use crate::collect::count::Counts;
use crate::collect::log_reader::Reader;
use crate::collect::table::EXCLUDED;
use crate::object::state::{self, StateByte};

/// Where a worker notes that an object has been reached.
pub(crate) trait Claims: Copy + Sync {
    /// Claims the object at a granule; `false`: somebody has, or it is no candidate.
    ///
    /// Without a branch: whether an edge leads to something new cannot be predicted, and a wrong
    /// guess would stop the loads of the next edges' notes from overlapping.
    fn claim(&self, target: usize) -> bool;

    /// Where the note about a granule lies.
    fn entry(&self, target: usize) -> *const u8;

    /// What counting has seen, where it has been done.
    fn counts(&self) -> Option<&Counts>;

    /// What counting has written down, if anything.
    fn log(&self) -> Option<&Reader<'_>>;
}

/// In step 3: as a bit of the state, which takes the object out of the candidates.
#[derive(Clone, Copy)]
pub(crate) struct Premark<'a> {
    pub(super) states: &'a [AtomicU8],
}

impl Claims for Premark<'_> {
    #[inline(always)]
    fn claim(&self, target: usize) -> bool {
        // Relaxed load and store: nobody changes a state byte in a stop but workers that set this
        // very bit, so none loses another's change; a duplicate is harmless.
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

/// In step 5b: as a mark in the side table.
#[derive(Clone, Copy)]
pub(crate) struct MarkBytes<'a, const YOUNG: bool> {
    pub(super) states: &'a [AtomicU8],
    pub(super) marks: &'a [AtomicU8],
    pub(super) counts: &'a Counts,
    /// In full collections: what counting has written down.
    pub(super) log: &'a Reader<'a>,
}

impl<const YOUNG: bool> Claims for MarkBytes<'_, YOUNG> {
    #[inline(always)]
    fn claim(&self, target: usize) -> bool {
        // In a young collection the table belongs to young candidates alone: it must stay zero
        // elsewhere.
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
