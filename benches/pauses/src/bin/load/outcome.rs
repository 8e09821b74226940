//! The figures of one process: a line of JSON for the process that started it.

use std::fmt;

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use crate::busy::{Interval, Pauses};
use crate::ledger::Tally;
use crate::observer::{Collection, PHASES};
use crate::usage;

/// Where full collections search for garbage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Search {
    /// In a stop.
    Stop,
    /// In a child of the process.
    Child,
}

impl fmt::Display for Search {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Stop => "stop",
            Self::Child => "child",
        })
    }
}

/// Everything about one number of threads, and one place of the search.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Outcome {
    pub(crate) threads: usize,
    pub(crate) workers: usize,
    pub(crate) search: Search,
    pub(crate) live: u64,
    pub(crate) build: Work,
    pub(crate) run: Work,
    pub(crate) requests: u64,
    /// Cores that the process used while it served, and that others did.
    pub(crate) cores: (f64, f64),
    pub(crate) distributions: Vec<Distribution>,
    pub(crate) utilisations: Vec<Utilisation>,
    pub(crate) memory: Vec<Sample>,
    pub(crate) peak_mib: f64,
    /// Milliseconds of the collection after everything was dropped.
    pub(crate) last_collection_ms: f64,
    /// The born objects, all of which have died.
    pub(crate) died: u64,
}

/// A stretch of time, with the work of the collector in it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Work {
    pub(crate) seconds: f64,
    /// Objects that were made.
    pub(crate) objects: u64,
    pub(crate) young: Collections,
    pub(crate) full: Collections,
    /// Collections that gave up.
    pub(crate) abandoned: usize,
    /// Thread-seconds that mutators have spent in safepoints that took long.
    pub(crate) blocked_s: f64,
}

/// The collections of one kind.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Collections {
    pub(crate) count: usize,
    /// From their first steps to their last.
    pub(crate) duration_s: f64,
    /// From the requests for stops to the resumptions.
    pub(crate) paused_s: f64,
    /// Before the requests: the remaining work with the world running, and the wait for the
    /// collector lock.
    pub(crate) prepared_s: f64,
    pub(crate) candidates: u64,
    pub(crate) collected: u64,
    /// The seconds of each phase, by name; those that were never entered are left out.
    pub(crate) phases: Vec<(String, f64)>,
}

impl Collections {
    fn of<'c>(collections: impl Iterator<Item = &'c Collection>) -> Self {
        let mut sum = Self::default();
        let mut phases = [0; PHASES.len()];
        for collection in collections {
            sum.count += 1;
            sum.duration_s += seconds(collection.duration);
            sum.paused_s += seconds(collection.paused());
            sum.prepared_s += seconds(collection.prepared);
            sum.candidates += collection.candidates as u64;
            sum.collected += collection.collected as u64;
            phases.iter_mut().zip(collection.phases).for_each(|(sum, took)| *sum += took);
        }
        let named = PHASES.iter().zip(phases).filter(|(_, took)| *took > 0);
        sum.phases = named.map(|(name, took)| ((*name).to_owned(), seconds(took))).collect();
        sum
    }
}

impl Work {
    pub(crate) fn of(
        period: Interval,
        collections: &[Collection],
        pauses: &[Vec<Interval>],
        before: Tally,
        after: Tally,
    ) -> Self {
        let inside = |c: &&Collection| (period.from..period.to).contains(&c.end);
        let blocked = pauses.iter().map(|pauses| Pauses::new(pauses.clone(), period).total());
        Self {
            seconds: seconds(period.length()),
            objects: after.born - before.born,
            young: Collections::of(collections.iter().filter(inside).filter(|c| !c.full)),
            full: Collections::of(collections.iter().filter(inside).filter(|c| c.full)),
            abandoned: collections.iter().filter(inside).filter(|c| c.abandoned).count(),
            blocked_s: seconds(blocked.sum()),
        }
    }

    /// Seconds from first steps to last ones.
    pub(crate) fn collecting_s(&self) -> f64 {
        self.young.duration_s + self.full.duration_s
    }

    /// Seconds from requests for stops to resumptions.
    pub(crate) fn paused_s(&self) -> f64 {
        self.young.paused_s + self.full.paused_s
    }
}

/// Percentiles, in microseconds.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Distribution {
    pub(crate) name: String,
    pub(crate) count: u64,
    pub(crate) p50: f64,
    pub(crate) p99: f64,
    pub(crate) p999: f64,
    pub(crate) max: f64,
    pub(crate) mean: f64,
    /// The value that one in so many reaches.
    pub(crate) curve: Vec<(f64, f64)>,
}

impl Distribution {
    pub(crate) fn of(name: &str, histogram: &Histogram<u64>) -> Self {
        /// Points of the curve for each power of ten.
        const DENSITY: f64 = 8.0;
        let at = |quantile| histogram.value_at_quantile(quantile) as f64 / 1e3;
        let one_in = (2..).map(|i| 10f64.powf(f64::from(i) / DENSITY));
        Self {
            name: name.to_owned(),
            count: histogram.len(),
            p50: at(0.5),
            p99: at(0.99),
            p999: at(0.999),
            max: histogram.max() as f64 / 1e3,
            mean: histogram.mean() / 1e3,
            curve: one_in
                .take_while(|&n| n <= histogram.len() as f64)
                .map(|n| (n, at(1.0 - 1.0 / n)))
                .collect(),
        }
    }

    /// Of lengths in nanoseconds.
    pub(crate) fn of_lengths(name: &str, lengths: impl Iterator<Item = u64>) -> Self {
        let mut histogram = Histogram::<u64>::new(3).expect("three digits are allowed");
        lengths.for_each(|length| histogram.record(length).expect("it resizes itself"));
        Self::of(name, &histogram)
    }
}

/// Windows for the minimum mutator utilisation, in milliseconds.
const WINDOWS: [u64; 10] = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000];
/// The window that has a distribution, in milliseconds.
pub(crate) const WINDOW: u64 = 10;

/// The mutator's share beside the pauses.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Utilisation {
    pub(crate) name: String,
    pub(crate) mean: f64,
    /// The minimum for each window, in milliseconds.
    pub(crate) minimum: Vec<(u64, f64)>,
    /// Of windows of [`WINDOW`] side by side: the least, one in a hundred, one in ten, the median.
    pub(crate) windows: [f64; 4],
}

impl Utilisation {
    /// Of one timeline; of several, the means and the worst.
    pub(crate) fn of(name: &str, timelines: &[Pauses]) -> Self {
        const MS: u64 = 1_000_000;
        let minimum = WINDOWS.into_iter().filter_map(|window| {
            let each = timelines.iter().filter_map(|pauses| pauses.minimum(window * MS));
            each.reduce(f64::min).map(|least| (window, least))
        });
        let mut windows: Vec<f64> =
            timelines.iter().flat_map(|pauses| pauses.windows(WINDOW * MS)).collect();
        windows.sort_by(f64::total_cmp);
        let at = |share: f64| {
            windows.get((share * windows.len() as f64) as usize).copied().unwrap_or(1.0)
        };
        Self {
            name: name.to_owned(),
            mean: timelines.iter().map(Pauses::utilisation).sum::<f64>() / timelines.len() as f64,
            minimum: minimum.collect(),
            windows: [at(0.0), at(0.01), at(0.1), at(0.5)],
        }
    }
}

/// Memory at one time.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Sample {
    /// Since the first request.
    pub(crate) seconds: f64,
    pub(crate) resident_mib: f64,
}

impl Sample {
    pub(crate) fn now(seconds: f64) -> Self {
        Self { seconds, resident_mib: usage::resident_mib() }
    }
}

/// Nanoseconds as seconds.
pub(crate) fn seconds(nanoseconds: u64) -> f64 {
    nanoseconds as f64 / 1e9
}
