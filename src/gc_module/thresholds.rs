//! The thresholds of CPython's `gc.set_threshold`, as a rule that paces a heap.

use crate::Pacing;
use crate::gc_module::memory::MemoryCondition;
use crate::heap::observer::{Figures, Ruling};
use crate::heap::policy::RuleNumbers;

/// When a heap collects by itself, in the terms of CPython's `gc.set_threshold`.
///
/// More than `t0` new objects make a collection due: a full one if `t1` is 0, or if there are more objects than the last
/// full collection left by over a quarter; else a young one. The cost of those does not depend on the size of the
/// heap, so they need no such condition. With `t0` at 0 the heap never collects by itself.
///
/// New objects are counted like everywhere in [`Pacing`]: as cells, tracked or not, less those given back, and when a
/// thread fetches them, up to 64 of a size at a time. So a collection starts that much early, or late.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Thresholds {
    /// New objects that may be there without a collection; 0: any number.
    pub t0: u32,
    /// 0: every automatic collection is a full one. Other values are alike.
    pub t1: u32,
    /// Kept for who asks; it means nothing.
    pub t2: u32,
}

impl Default for Thresholds {
    fn default() -> Self {
        Self { t0: 2000, t1: 10, t2: 0 }
    }
}

impl Thresholds {
    /// New objects with which something may be due.
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
    /// By the rule of these thresholds, instead of the four other settings.
    pub fn with_thresholds(mut self, thresholds: Thresholds) -> Self {
        self.rule = Some(thresholds.into());
        self
    }

    /// The thresholds that decide; `None`: the other settings do.
    pub fn thresholds(&self) -> Option<Thresholds> {
        self.rule.map(|RuleNumbers { numbers: [t0, t1, t2], .. }| Thresholds { t0, t1, t2 })
    }
}

/// What is due when more than `t0` objects are new.
pub(super) fn decide([t0, t1, _]: [u32; 3], memory: &MemoryCondition, figures: Figures) -> Ruling {
    let Figures { new, set_aside, grown, old } = figures;
    if !memory.holds(t0, new + set_aside) {
        return Ruling::SetAside;
    }
    if t1 == 0 || grown + set_aside + new > old / 4 { Ruling::Full } else { Ruling::Young }
}
