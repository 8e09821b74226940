//! `load`: how long a server's threads are kept waiting by standstill.
//!
//! Threads serve requests from a table of long-lived objects, one after the other, under automatic
//! collection ([`server`]). The reports of the collector ([`observer`]) and the observations of the
//! threads are printed as percentiles and as utilisation ([`busy`]). The birth and the death of
//! every object are counted ([`ledger`]): at the end each must have died once.
//!
//! Each number of threads is measured in a process of its own, so that its peak memory is its own
//! too.

mod busy;
mod ledger;
mod observer;
mod outcome;
mod report;
mod server;
mod usage;

use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Barrier, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use clap::Parser;
use hdrhistogram::Histogram;
use pauses::machine;
use standstill::{ForkedSearch, Heap, Pacing};

use crate::busy::{Interval, Pauses};
use crate::ledger::Tally;
use crate::observer::{Collection, Observer};
use crate::outcome::{Distribution, Outcome, Sample, Search, Utilisation, Work, seconds};
use crate::server::{Plan, Served};
use crate::usage::Processors;

/// How long a server's threads are kept waiting by standstill.
#[derive(Clone, Debug, Parser)]
struct Args {
    /// Threads that serve: one number, or several, each in a process of its own.
    #[arg(long, value_delimiter = ',', default_value = "2")]
    threads: Vec<usize>,
    /// Where full collections search: in a stop, in a child of the process, or both, one after the
    /// other.
    #[arg(long, value_delimiter = ',', default_value = "stop")]
    search: Vec<Search>,
    /// Threads that work on a collection.
    #[arg(long, default_value_t = 2)]
    workers: usize,
    /// Long-lived objects [default: 4000000].
    #[arg(long)]
    live: Option<usize>,
    /// Sessions that each thread keeps before it drops the oldest: how much of the young lives a
    /// while.
    #[arg(long, default_value_t = 32)]
    recent: usize,
    /// Seconds of requests [default: 60].
    #[arg(long)]
    seconds: Option<f64>,
    /// 100,000 long-lived objects and 3 seconds, unless said otherwise.
    #[arg(long)]
    quick: bool,
    /// Where tables, charts and lines of JSON go.
    #[arg(long, default_value = "target/pauses")]
    out: PathBuf,
    /// Make tables and charts anew from `load.jsonl`, and measure nothing.
    #[arg(long)]
    report: bool,
    /// Measure here, with the first number of threads, and print the outcome.
    #[arg(long, hide = true)]
    here: bool,
}

impl Args {
    fn live(&self) -> usize {
        self.live.unwrap_or(if self.quick { 100_000 } else { 4_000_000 })
    }

    fn seconds(&self) -> f64 {
        self.seconds.unwrap_or(if self.quick { 3.0 } else { 60.0 })
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let args = Args::parse();
    if args.here {
        let outcome = measure(&args, args.threads[0], args.search[0])?;
        println!("{}", serde_json::to_string(&outcome)?);
        return Ok(());
    }
    fs::create_dir_all(&args.out)?;
    let lines = args.out.join("load.jsonl");
    if !args.report {
        let outcomes = args
            .threads
            .iter()
            .flat_map(|&threads| args.search.iter().map(move |&search| (threads, search)));
        let outcomes = outcomes.map(|(threads, search)| measure_apart(&args, threads, search));
        fs::write(&lines, outcomes.collect::<Result<String, _>>()?)?;
    }
    let outcomes = fs::read_to_string(&lines)?;
    let outcomes =
        outcomes.lines().map(serde_json::from_str).collect::<Result<Vec<Outcome>, _>>()?;
    report::write(&args.out, &outcomes)
}

/// Measures in a process of its own, and returns its line.
fn measure_apart(args: &Args, threads: usize, search: Search) -> Result<String, Box<dyn Error>> {
    eprintln!(
        "{threads} thread(s), search in a {search}: building {} objects, then {} s of requests",
        args.live(),
        args.seconds()
    );
    let child = Command::new(std::env::current_exe()?)
        .arg("--here")
        .args(["--threads", &threads.to_string(), "--workers", &args.workers.to_string()])
        .args(["--live", &args.live().to_string(), "--seconds", &args.seconds().to_string()])
        .args(["--recent", &args.recent.to_string(), "--search", &search.to_string()])
        .arg("--out")
        .arg(&args.out)
        .stderr(Stdio::inherit())
        .output()?;
    if !child.status.success() {
        return Err(
            format!("{threads} thread(s): the measuring process failed: {}", child.status).into()
        );
    }
    Ok(String::from_utf8(child.stdout)?)
}

/// Builds, serves, drops everything, and checks that everything is gone.
fn measure(args: &Args, threads: usize, search: Search) -> Result<Outcome, Box<dyn Error>> {
    // The others would wait for a thread that has panicked.
    let print = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        print(panic);
        std::process::abort();
    }));
    let observer = Observer::install();
    let forked = match search {
        Search::Stop => ForkedSearch::Never,
        Search::Child => ForkedSearch::FromObjects(100_000),
    };
    let pacing = Pacing::default().with_forked(forked);
    let heap = Heap::builder().workers(args.workers).pacing(pacing).build()?;
    observer.watch(&heap);
    let plan = Plan {
        heap: &heap,
        threads,
        live: args.live(),
        recent: args.recent,
        length: Duration::from_secs_f64(args.seconds()),
        now: &|| observer.now(),
        step: &Barrier::new(threads + 1),
        made: Mutex::default(),
        table: Mutex::default(),
    };
    let (mut tallies, mut times) = (vec![Tally::now()], vec![observer.now()]);
    let mut mark = || {
        tallies.push(Tally::now());
        times.push(observer.now());
    };
    let (mut memory, mut cores) = (Vec::new(), (0.0, 0.0));
    let served: Vec<Served> = thread::scope(|scope| {
        let plan = &plan;
        let threads: Vec<_> =
            (0..threads).map(|id| scope.spawn(move || server::serve(plan, id))).collect();
        plan.step.wait();
        plan.lay_table();
        plan.step.wait();
        plan.step.wait();
        mark();
        let before = Processors::now();
        memory = watch_memory(plan.length);
        cores = Processors::now().since(before, args.seconds());
        plan.step.wait();
        mark();
        threads.into_iter().map(|thread| thread.join().expect("a panic aborts")).collect()
    });
    drop(plan.table.into_inner());
    let last = heap.attach().collect();
    let end = Tally::now();
    if !end.is_settled() {
        return Err(format!("not each object has died once: {end:?}").into());
    }

    let collections = observer.take();
    write_collections(&args.out, (threads, search), &collections)?;
    let (build, run) =
        (Interval { from: times[0], to: times[1] }, Interval { from: times[1], to: times[2] });
    let pauses: Vec<Vec<Interval>> = served.iter().map(|served| served.pauses.clone()).collect();
    Ok(Outcome {
        threads,
        workers: args.workers,
        search,
        live: tallies[1].alive(),
        build: Work::of(build, &collections, &pauses, tallies[0], tallies[1]),
        run: Work::of(run, &collections, &pauses, tallies[1], tallies[2]),
        requests: served.iter().map(|served| served.requests).sum(),
        cores,
        distributions: distributions(run, &collections, &served),
        utilisations: utilisations(run, &collections, &pauses),
        memory,
        peak_mib: machine::peak_memory().map_or(f64::NAN, |bytes| bytes as f64 / (1 << 20) as f64),
        last_collection_ms: last.duration.as_secs_f64() * 1e3,
        died: end.dead,
    })
}

/// Reads the memory use sixty times.
fn watch_memory(length: Duration) -> Vec<Sample> {
    const SAMPLES: u32 = 60;
    let begun = Instant::now();
    let mut samples = vec![Sample::now(0.0)];
    for i in 1..=SAMPLES {
        thread::sleep((length * i / SAMPLES).saturating_sub(begun.elapsed()));
        samples.push(Sample::now(begun.elapsed().as_secs_f64()));
    }
    samples
}

fn distributions(
    run: Interval,
    collections: &[Collection],
    served: &[Served],
) -> Vec<Distribution> {
    let inside = |time: u64| (run.from..run.to).contains(&time);
    let collections = || collections.iter().filter(|collection| inside(collection.end));
    let stops = |full| collections().filter(move |c| c.full == full).flat_map(|c| &c.stops);
    let all = || collections().flat_map(|c| &c.stops);
    let pauses = served.iter().flat_map(|served| &served.pauses).filter(|pause| inside(pause.from));
    let mut latencies = Histogram::<u64>::new(3).expect("three digits are allowed");
    for served in served {
        latencies.add(&served.latencies).expect("it resizes itself");
    }
    // The waits of requests that a closed loop does not begin while it waits.
    let corrected = latencies.clone_correct(latencies.value_at_quantile(0.5));
    vec![
        Distribution::of_lengths("time to stop", all().map(|stop| stop.time_to_stop)),
        Distribution::of_lengths("stopped, young", stops(false).map(|stop| stop.stopped)),
        Distribution::of_lengths("stopped, full", stops(true).map(|stop| stop.stopped)),
        Distribution::of_lengths("mutators' pauses", pauses.map(|pause| pause.length())),
        Distribution::of("requests", &latencies),
        Distribution::of("requests, if they came steadily", &corrected),
    ]
}

fn utilisations(
    run: Interval,
    collections: &[Collection],
    pauses: &[Vec<Interval>],
) -> Vec<Utilisation> {
    let stops =
        collections.iter().flat_map(|collection| &collection.stops).map(|stop| stop.interval());
    let each: Vec<Pauses> = pauses.iter().map(|pauses| Pauses::new(pauses.clone(), run)).collect();
    vec![
        Utilisation::of("stops", &[Pauses::new(stops.collect(), run)]),
        Utilisation::of("mutators", &each),
    ]
}

/// A line of JSON for each collection of the process.
fn write_collections(
    out: &Path,
    (threads, search): (usize, Search),
    collections: &[Collection],
) -> Result<(), Box<dyn Error>> {
    let lines = collections.iter().map(serde_json::to_string).collect::<Result<Vec<_>, _>>()?;
    fs::create_dir_all(out)?;
    fs::write(
        out.join(format!("load-collections-{threads}-{search}.jsonl")),
        lines.join("\n") + "\n",
    )?;
    let total: u64 = collections.iter().map(|collection| collection.duration).sum();
    eprintln!("{threads} thread(s): {} collections, {:.2} s", collections.len(), seconds(total));
    Ok(())
}
