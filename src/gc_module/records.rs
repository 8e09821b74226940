//! The records of the collections of each generation.

#![forbid(unsafe_code)]

use std::time::Duration;

use crate::base::event::{CollectionKind, CollectionReport};
use crate::base::sync::Mutex;

/// The sums of the reports of all collections of one generation since the heap was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct GenerationStats {
    /// The number of collections.
    pub collections: usize,
    /// Objects that the collections destroyed.
    pub collected: usize,
    /// Unreachable objects that they did not destroy. An object that several collections found
    /// counts several times.
    pub uncollectable: usize,
    /// Objects that they decided about.
    pub candidates: usize,
    /// The time from the first step of each collection to the last.
    pub duration: Duration,
    /// The part of `duration` in which the world was stopped.
    pub stopped: Duration,
}

/// The records of the three generations. A finished collection adds its figures.
#[derive(Debug, Default)]
pub(super) struct Records(Mutex<GenerationRecords>);

#[derive(Debug, Default)]
struct GenerationRecords {
    generations: [GenerationStats; 3],
    /// Young collections since the last full one.
    young: usize,
}

impl Records {
    /// Adds the figures of a collection that could stop the world.
    pub(super) fn add(&self, report: &CollectionReport) {
        let mut records = self.0.lock();
        records.young = if report.kind == CollectionKind::Full { 0 } else { records.young + 1 };
        if let Some(record) = records.generations.get_mut(report.generation) {
            record.collections += 1;
            record.collected += report.collected;
            record.uncollectable += report.uncollectable;
            record.candidates += report.candidates;
            record.duration += report.duration;
            record.stopped += report.stops.iter().sum::<Duration>();
        }
    }

    /// The three records, and the number of young collections since the last full one.
    pub(super) fn get(&self) -> ([GenerationStats; 3], usize) {
        let records = self.0.lock();
        (records.generations, records.young)
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::{Heap, Pacing};

    #[test]
    fn each_generation_has_the_sums_of_its_collections() {
        let heap = Heap::builder().pacing(Pacing::manual()).build().expect("a heap");
        let mut m = heap.attach();
        let records = Records::default();
        let mut sums = [GenerationStats::default(); 3];
        for (what, young) in [(0, 1), (0, 2), (2, 0), (0, 1)] {
            let kind = if what == 0 { crate::Collect::young() } else { crate::Collect::full() };
            let report = m.try_collect(kind).expect("a collection");
            records.add(&report);
            let sum = &mut sums[what];
            sum.collections += 1;
            sum.candidates += report.candidates;
            sum.duration += report.duration;
            sum.stopped += report.stops.iter().sum::<Duration>();
            assert!(!sum.stopped.is_zero());
            assert_eq!(records.get(), (sums, young));
        }
    }
}
