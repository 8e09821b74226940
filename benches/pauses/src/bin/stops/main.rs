//! `stops`: the cost of bringing threads to a standstill, and other single costs of a heap.
//!
//! Each row of [`ROWS`] is measured in a process of its own, so that neither threads nor memory of
//! another one are in its way. [`threads`] has the rows without objects, [`maps`] those of the
//! address maps, [`objects`] the others.

mod maps;
mod objects;
mod threads;

use std::error::Error;
use std::fmt::Write;
use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use clap::Parser;
use pauses::machine;
use pauses::stats::{Spread, spread};
use serde::{Deserialize, Serialize};

use maps::{Graph, allocate, each_heap, full, heaps};
use objects::{Fate, array, churned, downgrade, large, memory, starved, weak_garbage, young};
use threads::{
    HELD, attach, attach_heap, detach, detach_heap, detach_in_place, detach_moved, exchanges, idle,
    idle_heap, poll, running, running_heap,
};

/// Measures the cost of bringing threads to a standstill, and other single costs.
#[derive(Clone, Debug, Parser)]
struct Args {
    /// How often each row is measured.
    #[arg(long, default_value_t = 21)]
    rounds: usize,
    /// A tenth of the objects and of the rounds.
    #[arg(long)]
    quick: bool,
    /// Rows to measure, by parts of their names; all by default.
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    /// Where the table and the lines of JSON go.
    #[arg(long, default_value = "target/pauses")]
    out: PathBuf,
    /// Measure this row here, and print its values.
    #[arg(long, hide = true)]
    row: Option<usize>,
}

impl Args {
    fn rounds(&self) -> usize {
        if self.quick { self.rounds.div_ceil(10) } else { self.rounds }
    }

    /// So many objects, or a tenth.
    fn objects(&self, n: usize) -> usize {
        if self.quick { n / 10 } else { n }
    }
}

struct Row {
    name: &'static str,
    unit: &'static str,
    /// One value a round.
    measure: fn(&Args) -> Vec<f64>,
}

const fn row(name: &'static str, unit: &'static str, measure: fn(&Args) -> Vec<f64>) -> Row {
    Row { name, unit, measure }
}

const ROWS: &[Row] = &[
    row("stop and resume, alone", "µs", |args| idle(args, 0)),
    row("stop and resume, 1,000 threads detached", "µs", |args| idle(args, 1000)),
    row("the same, of a heap", "µs", |args| idle_heap(args, 1000)),
    row("stop and resume, one thread running", "µs", |args| {
        running(args, Duration::ZERO, |stop| stop.whole)
    }),
    row("of it, until it stands still", "µs", |args| {
        running(args, Duration::ZERO, |stop| stop.time_to_stop)
    }),
    row("the same stop and resume, with 100 µs between them, those left out", "µs", |args| {
        running(args, HELD, |stop| stop.whole)
    }),
    row("from that resumption until the thread runs", "µs", |args| {
        running(args, HELD, |stop| stop.until_it_runs)
    }),
    row("the same stop and resume, of a heap", "µs", running_heap),
    row("attach and detach", "ns", detach),
    row("detach and attach, of a heap", "ns", detach_heap),
    row("detach and attach, of a model's mutator that is moved", "ns", detach_moved),
    row("detach and attach, of a model's mutator in its place", "ns", detach_in_place),
    row("two exchanges of one atomic word: the limit of both", "ns", exchanges),
    row("attach to a heap, and drop the mutator", "ns", |args| attach_heap(args, |_| ())),
    row("the same, and allocate and drop an object in between", "ns", |args| {
        attach_heap(args, attach)
    }),
    row("safepoint poll", "ns", poll),
    row("young collection, 10,000 new beside 10,000,000 old: stopped", "ms", |args| {
        young(args, |report| report.stops[0])
    }),
    row("the same: from start to end", "ms", |args| young(args, |report| report.duration)),
    row("young collection asked for every 20 ms, beside 64 busy threads", "ms", |args| {
        starved(args, true)
    }),
    row("the same, with requests that do not wait", "ms", |args| starved(args, false)),
    row("array of 1,000,000 objects: two workers by one", "x", |args| array(args, 1_000_000)),
    row("array of 4,000,000 objects: two workers by one", "x", |args| array(args, 4_000_000)),
    row("first weak reference to each of 100,000 objects", "ns", |args| downgrade(args, 100_000)),
    row("first weak reference to each of 3,000,000 objects", "ns", |args| {
        downgrade(args, 3_000_000)
    }),
    row("garbage with a weak reference each, by garbage without", "x", weak_garbage),
    row("allocate and drop objects of 160 kB, 32 together", "µs", large),
    row("memory of 955 objects, left of 2,000,000", "MiB", churned),
    row("memory of 1,000,000 objects with 48 bytes, at rest", "bytes/object", |_| {
        memory(1, Fate::Live, |memory| memory.at_rest)
    }),
    row("at the peak of a collection, all live, 1 worker", "bytes/object", |_| {
        memory(1, Fate::Live, |memory| memory.peak)
    }),
    row("at the peak of a collection, all live, 2 workers", "bytes/object", |_| {
        memory(2, Fate::Live, |memory| memory.peak)
    }),
    row("at the peak of a collection, all garbage, 1 worker", "bytes/object", |_| {
        memory(1, Fate::Garbage, |memory| memory.peak)
    }),
    row("at the peak of a collection, all garbage, 2 workers", "bytes/object", |_| {
        memory(2, Fate::Garbage, |memory| memory.peak)
    }),
    row("full collection of a random graph, a range", "ns/object", |args| {
        full(args, Graph::Random)
    }),
    row("full collection of a local graph, a range", "ns/object", |args| full(args, Graph::Local)),
    row("allocate and free an object of a model, a range", "ns", allocate),
    row("a thousand heaps with one object each, ranges", "µs/heap", heaps),
    row("addresses of each of a thousand heaps, ranges", "MiB", |_| each_heap("VmSize:")),
    row("memory of each of a thousand heaps, ranges", "MiB", |_| each_heap("VmRSS:")),
];

fn main() -> Result<(), Box<dyn Error>> {
    let args = Args::parse();
    if let Some(row) = args.row {
        println!("{}", serde_json::to_string(&(ROWS[row].measure)(&args))?);
        return Ok(());
    }
    fs::create_dir_all(&args.out)?;
    let mut lines = String::new();
    let mut table = format!("## Stops\n\n{}; {} rounds.\n\n", machine::describe(), args.rounds());
    table += "| | median | least | greatest |\n|---|---:|---:|---:|\n";
    for (number, row) in ROWS.iter().enumerate() {
        if !args.only.is_empty() && !args.only.iter().any(|part| row.name.contains(part)) {
            continue;
        }
        let figure = Figure {
            name: row.name.to_owned(),
            unit: row.unit.to_owned(),
            values: apart(&args, number)?,
        };
        eprintln!("{}", figure.line());
        writeln!(table, "{}", figure.line())?;
        writeln!(lines, "{}", serde_json::to_string(&figure)?)?;
    }
    fs::write(args.out.join("stops.md"), &table)?;
    fs::write(args.out.join("stops.jsonl"), lines)?;
    print!("{table}");
    Ok(())
}

/// A row's values.
#[derive(Debug, Serialize, Deserialize)]
struct Figure {
    name: String,
    unit: String,
    values: Vec<f64>,
}

impl Figure {
    /// Its line in the table.
    fn line(&self) -> String {
        let Self { name, unit, values } = self;
        let Some(Spread { median, least, greatest }) = spread(values) else {
            return format!("| {name} | | | |");
        };
        format!("| {name} | {median:.2} {unit} | {least:.2} | {greatest:.2} |")
    }
}

/// Measures a row in a process of its own.
fn apart(args: &Args, row: usize) -> Result<Vec<f64>, Box<dyn Error>> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["--row", &row.to_string(), "--rounds", &args.rounds.to_string()]);
    if args.quick {
        command.arg("--quick");
    }
    let child = command.stderr(Stdio::inherit()).output()?;
    if !child.status.success() {
        return Err(format!("{}: {}", ROWS[row].name, child.status).into());
    }
    Ok(serde_json::from_slice(&child.stdout)?)
}

fn us(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

/// Nanoseconds that `work` takes, on the average of `n` times in each round.
fn each(args: &Args, n: u32, mut work: impl FnMut()) -> Vec<f64> {
    let mut round = || {
        let begun = Instant::now();
        for _ in 0..n {
            work();
        }
        begun.elapsed().as_secs_f64() * 1e9 / f64::from(n)
    };
    round();
    (0..args.rounds()).map(|_| round()).collect()
}

fn in_us(nanoseconds: Vec<f64>) -> Vec<f64> {
    nanoseconds.into_iter().map(|ns| ns / 1e3).collect()
}
