//! The records of the collections of each generation.

use std::time::Duration;

use crate::base::event::{CollectionKind, CollectionReport};
use crate::base::sync::Mutex;

/// What collections of one generation did since the heap was made: the sums of their reports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct GenerationStats {
    /// How many there were.
    pub collections: usize,
    /// Objects that they destroyed.
    pub collected: usize,
    /// Unreachable objects that they did not. An object that several collections found counts several times.
    pub uncollectable: usize,
    /// Objects that they considered.
    pub candidates: usize,
    /// From first step to last.
    pub duration: Duration,
    /// Of this, how long the world was stopped.
    pub stopped: Duration,
}

/// The records of the three generations. A collection adds its figures when it is over.
#[derive(Debug, Default)]
pub(super) struct Records(Mutex<Figures>);

#[derive(Debug, Default)]
struct Figures {
    generations: [GenerationStats; 3],
    /// Young collections since the last full one.
    young: usize,
}

impl Records {
    /// Adds the figures of a collection that was not prevented.
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

    /// The three records, and how many young collections there were since the last full one.
    pub(super) fn get(&self) -> ([GenerationStats; 3], usize) {
        let records = self.0.lock();
        (records.generations, records.young)
    }
}
