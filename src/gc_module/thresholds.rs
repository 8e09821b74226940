//! The thresholds of CPython's `gc.set_threshold`, as a rule that paces a heap.

#![forbid(unsafe_code)]

use crate::Pacing;
use crate::gc_module::memory::{MemoryCondition, OVERRUN_LIMIT};
use crate::heap::observer::{Figures, Ruling};
use crate::heap::policy::RuleNumbers;

/// When a heap starts collections, in the terms of CPython's `gc.set_threshold`.
///
/// A collection is due when more than `t0` objects are new. It is full if `t1` is 0, or if the
/// objects since the last full collection exceed a quarter of the objects that it left. Otherwise
/// it is young. The cost of a young collection does not depend on the size of the heap, so it has
/// no such condition. With `t0` at 0 the heap starts no collection.
///
/// A program can request young collections so often that `t0` is never exceeded. So a full
/// collection is also due when more objects have survived young collections, since the last full
/// one, than 40 times `t0` and a quarter of the objects that it left; or when the bytes of all
/// objects have doubled since, and grown by more than
/// [`full_minimum_bytes`](Pacing::full_minimum_bytes).
///
/// New objects are counted as in [`Pacing`]: tracked and untracked cells, minus cells that were
/// given back. A thread counts cells when it fetches them, up to 64 of one size at a time. So a
/// collection can begin that much early or late.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Thresholds {
    /// The number of new objects that makes no collection due yet. 0: any number.
    pub t0: u32,
    /// 0: every automatic collection is full. All other values have the same effect.
    pub t1: u32,
    /// Without effect. It is stored so that
    /// [`Services::threshold`](crate::gc_module::Services::threshold) returns it.
    pub t2: u32,
}

impl Default for Thresholds {
    fn default() -> Self {
        Self { t0: 2000, t1: 10, t2: 0 }
    }
}

impl Thresholds {
    /// The number of new objects at which a collection may first be due.
    fn first_due(self) -> usize {
        if self.t0 == 0 { usize::MAX } else { self.t0 as usize + 1 }
    }
}

impl From<Thresholds> for RuleNumbers {
    fn from(thresholds: Thresholds) -> Self {
        let Thresholds { t0, t1, t2 } = thresholds;
        Self { first_due: thresholds.first_due(), numbers: [t0, t1, t2] }
    }
}

impl Pacing {
    /// Sets thresholds, which replace `young_objects`, `young_bytes`, `full_growth` and
    /// `full_minimum`.
    pub fn with_thresholds(mut self, thresholds: Thresholds) -> Self {
        self.rule = Some(thresholds.into());
        self
    }

    /// The thresholds. `None`: the settings that thresholds would replace decide.
    pub fn thresholds(&self) -> Option<Thresholds> {
        self.rule.map(|RuleNumbers { numbers: [t0, t1, t2], .. }| Thresholds { t0, t1, t2 })
    }
}

/// The decision when more than `t0` objects are new.
pub(super) fn decide([t0, t1, _]: [u32; 3], memory: &MemoryCondition, figures: Figures) -> Ruling {
    let Figures { new, set_aside, grown, old } = figures;
    if !memory.holds(t0, new + set_aside) {
        return Ruling::SetAside;
    }
    if t1 == 0 || grown + set_aside + new > old / 4 { Ruling::Full } else { Ruling::Young }
}

/// The growth beyond which a full collection is due, however few objects are new.
pub(super) fn allowed_growth([t0, ..]: [u32; 3], old: usize) -> usize {
    if t0 == 0 { usize::MAX } else { (old / 4).max(OVERRUN_LIMIT * t0 as usize) }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn a_collection_is_due_behind_the_first_threshold_and_0_starts_none() {
        let first_due =
            |t0| RuleNumbers::from(Thresholds { t0, ..Thresholds::default() }).first_due;
        assert_eq!([1, 700, 0].map(first_due), [2, 701, usize::MAX]);
    }

    #[test]
    fn a_collection_is_full_if_the_heap_has_grown_by_more_than_a_quarter() {
        let decide = |t1, [new, set_aside, grown, old]: [usize; 4]| {
            let figures = Figures { new, set_aside, grown, old };
            decide([10, t1, 0], &MemoryCondition::default(), figures)
        };
        assert_eq!(decide(1, [11, 0, 0, 44]), Ruling::Young);
        assert_eq!(decide(1, [12, 0, 0, 44]), Ruling::Full);
        assert_eq!(decide(1, [11, 1, 0, 44]), Ruling::Full);
        assert_eq!(decide(1, [11, 0, 1, 44]), Ruling::Full);
        assert_eq!(decide(1, [11, 4, 5, 80]), Ruling::Young);
        assert_eq!(decide(0, [11, 0, 0, 44]), Ruling::Full);
    }
}
