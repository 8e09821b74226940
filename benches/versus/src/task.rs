//! The task of one child process, and its answer.

use std::collections::BTreeMap;
use std::sync::Barrier;
use std::time::{Duration, Instant};

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

/// The workloads. The README describes each.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, ValueEnum, Serialize, Deserialize,
)]
#[allow(missing_docs)]
pub enum Workload {
    #[value(name = "W1")]
    W1,
    #[value(name = "W2")]
    W2,
    #[value(name = "W3")]
    W3,
    #[value(name = "W4t")]
    W4t,
    #[value(name = "W4tr")]
    W4tr,
    #[value(name = "W4g")]
    W4g,
    #[value(name = "W4ga")]
    W4ga,
    #[value(name = "W4gr")]
    W4gr,
    #[value(name = "W5")]
    W5,
    #[value(name = "W6")]
    W6,
    #[value(name = "W7hot")]
    W7hot,
    #[value(name = "W7own")]
    W7own,
    #[value(name = "W7over")]
    W7over,
}

impl Workload {
    /// All of them, in order.
    pub const ALL: &[Self] = &[
        Self::W1,
        Self::W2,
        Self::W3,
        Self::W4t,
        Self::W4tr,
        Self::W4g,
        Self::W4ga,
        Self::W4gr,
        Self::W5,
        Self::W6,
        Self::W7hot,
        Self::W7own,
        Self::W7over,
    ];

    /// In a few words.
    pub fn about(self) -> &'static str {
        match self {
            Self::W1 => "allocate and drop, 64 alive a thread",
            Self::W2 => "cycle churn: rings of 2 to 8 nodes, own trigger, until all are freed",
            Self::W3 => "GCBench's shape, trees with parent links",
            Self::W4t => "pause: a live tree with parent links, in allocation order",
            Self::W4tr => "pause: the tree, lists of edges allocated in random order",
            Self::W4g => "pause: a live random graph, edges added in random order",
            Self::W4ga => "pause: the random graph, lists of edges in allocation order",
            Self::W4gr => "pause: the random graph, lists of edges allocated in random order",
            Self::W5 => "garbage: the random graph, dropped at once",
            Self::W6 => "graph that threads share and change",
            Self::W7hot => "clone and drop: one object for all threads",
            Self::W7own => "clone and drop: an object of the thread's own",
            Self::W7over => "clone and drop: an object of a thread that has ended, for each thread",
        }
    }

    /// The unit of the figure.
    pub fn unit(self) -> &'static str {
        match self {
            Self::W6 => "operation",
            Self::W7hot | Self::W7own | Self::W7over => "clone and drop",
            _ => "node",
        }
    }

    /// The meaning of `T`: threads that work, or threads of the collector.
    pub fn threads_are_workers(self) -> bool {
        self.is_pause() || self == Self::W5
    }

    /// W4, in all variants.
    pub fn is_pause(self) -> bool {
        matches!(self, Self::W4t | Self::W4tr | Self::W4g | Self::W4ga | Self::W4gr)
    }

    /// The variants of W4 for our figures and the yardstick's alone.
    pub fn orders_lists(self) -> bool {
        matches!(self, Self::W4tr | Self::W4ga | Self::W4gr)
    }

    /// The size, for each thread where threads work (W3: the largest temporary tree's depth). More
    /// than four threads divide the work of four.
    pub fn size(self, quick: bool, threads: usize) -> usize {
        let (full, short) = match self {
            Self::W3 => (14, 10),
            Self::W7hot | Self::W7own | Self::W7over => (4_000_000, 400_000),
            _ => (1_000_000, 50_000),
        };
        let size = if quick { short } else { full };
        if self.threads_are_workers() { size } else { size * 4 / threads.max(4) }
    }
}

/// One measurement.
#[derive(Clone, Copy, Debug)]
pub struct Task {
    /// Which workload.
    pub workload: Workload,
    /// How many threads.
    pub threads: usize,
    /// Which size.
    pub n: usize,
    /// The stack of each thread that works.
    pub stack: usize,
}

/// The outcome.
#[derive(Clone, Debug)]
pub struct Measured {
    /// From the first thread's start to the last one's end.
    pub wall: Duration,
    /// How many nodes or operations.
    pub units: u64,
    /// Wall time is multiplied by this: the cores that the threads can have had.
    pub cores: usize,
    /// Other facts, in nanoseconds unless the name says otherwise.
    pub facts: BTreeMap<String, f64>,
    /// Checks that failed.
    pub failed: Vec<String>,
}

impl Measured {
    /// Without facts and failures.
    pub fn new(wall: Duration, units: u64, cores: usize) -> Self {
        Self { wall, units, cores, facts: BTreeMap::new(), failed: Vec::new() }
    }

    /// Notes a fact.
    pub fn fact(&mut self, name: &str, value: f64) {
        self.facts.insert(name.to_owned(), value);
    }

    /// Notes a failure unless the check holds.
    pub fn check(&mut self, holds: bool, what: impl FnOnce() -> String) {
        if !holds {
            self.failed.push(what());
        }
    }
}

/// One line of `results.jsonl`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Line {
    /// The workload.
    pub workload: Workload,
    /// The contestant.
    pub contestant: String,
    /// Threads, or workers of the collector.
    pub threads: usize,
    /// The size.
    pub n: usize,
    /// Which round; the driver sets it.
    #[serde(default)]
    pub round: usize,
    /// `ok`, `failed: ...`, `crashed: ...`, `over the limit`.
    pub outcome: String,
    /// Core nanoseconds a unit: wall time, times the cores used, by the units.
    pub ns: Option<f64>,
    /// Wall time, in seconds.
    pub wall_s: Option<f64>,
    /// The stack that it took, where the first try overflowed.
    #[serde(default)]
    pub overflowed: bool,
    /// The largest resident set of the process.
    pub peak_rss_kib: Option<u64>,
    /// Other facts.
    #[serde(default)]
    pub facts: BTreeMap<String, f64>,
}

/// The cores that `threads` threads can have.
pub fn cores(threads: usize) -> usize {
    threads.min(std::thread::available_parallelism().map_or(1, Into::into))
}

/// Runs `work` on so many threads at once, on this one if it is one; from the first start to the
/// last end.
pub fn on_threads(task: &Task, work: impl Fn(usize) + Sync) -> Duration {
    on_ready_threads(task, |_| (), |index, ()| work(index))
}

/// The same, of threads that `prepare` first; the time of that does not count.
pub fn on_ready_threads<T>(
    task: &Task,
    prepare: impl Fn(usize) -> T + Sync,
    work: impl Fn(usize, T) + Sync,
) -> Duration {
    if task.threads == 1 {
        let ready = prepare(0);
        let begun = Instant::now();
        work(0, ready);
        return begun.elapsed();
    }
    let barrier = Barrier::new(task.threads);
    let spans: Vec<(Instant, Instant)> = std::thread::scope(|scope| {
        let spawned: Vec<_> = (0..task.threads)
            .map(|index| {
                let (prepare, work, barrier) = (&prepare, &work, &barrier);
                std::thread::Builder::new()
                    .stack_size(task.stack)
                    .spawn_scoped(scope, move || {
                        let ready = prepare(index);
                        barrier.wait();
                        let begun = Instant::now();
                        work(index, ready);
                        (begun, Instant::now())
                    })
                    .expect("a thread")
            })
            .collect();
        spawned.into_iter().map(|thread| thread.join().expect("a worker")).collect()
    });
    let begun = spans.iter().map(|span| span.0).min().expect("a thread");
    let ended = spans.iter().map(|span| span.1).max().expect("a thread");
    ended - begun
}
