//! The counters and the records of the three generations.

#![forbid(unsafe_code)]

use std::time::Duration;

use crate::base::sync::Mutex;
use crate::gc_module::services::{Services, stopped};
use crate::object::state::{FROZEN, OLD};
use crate::report::error::Fault;
use crate::report::facts::{CollectionKind, CollectionReport};
use crate::{Mutator, collect};

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

impl Services {
    /// The exact counters of the three generations; see the [module's
    /// page](crate::gc_module#generations).
    ///
    /// # Errors
    ///
    /// When the world cannot be stopped.
    pub fn counts(&self, m: &mut Mutator) -> Result<[usize; 3], Fault> {
        self.check(m);
        let new = stopped(m, "counts", |_, world| {
            let mut new = 0;
            collect::visible(world, |_, state| {
                new += usize::from(state.get() & (OLD | FROZEN) == 0)
            });
            Ok(new)
        })?;
        Ok([new, 0, self.state().records.get().1])
    }

    /// The records of all collections so far, by generation. Collections that were not started
    /// through these services are included.
    pub fn stats(&self) -> [GenerationStats; 3] {
        self.state().records.get().0
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
