//! `stops`: the cost of bringing threads to a standstill, and the fixed cost of a collection.
//!
//! A heap of typed objects has no call that only stops the world. But [`Mutator::prepare_fork`]
//! followed by [`Fork::parent`](standstill::Fork::parent) comes close: beside the stop it takes and
//! releases two uncontended locks. [`Participant::stop`] is the coordinator's own stop, without
//! them.
//!
//! Each row is measured in a process of its own, so that neither threads nor memory of another one
//! are in its way.

use std::error::Error;
use std::fmt::Write;
use std::fs;
use std::hint::black_box;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use clap::Parser;
use pauses::random::SplitMix;
use pauses::stats::spread;
use pauses::{machine, stats};
use serde::{Deserialize, Serialize};
use standstill::safepoint::{Coordinator, Participant};
use standstill::{Gc, GcCell, Heap, Mutator, Pacing, Trace};

/// Measures the cost of bringing threads to a standstill.
#[derive(Clone, Debug, Parser)]
struct Args {
    /// How often each row is measured.
    #[arg(long, default_value_t = 21)]
    rounds: usize,
    /// A tenth of the old objects and of the rounds.
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
}

struct Row {
    name: &'static str,
    unit: &'static str,
    goal: Option<f64>,
    /// One value a round.
    measure: fn(&Args) -> Vec<f64>,
}

const ROWS: &[Row] = &[
    Row { name: "stop and resume, alone", unit: "µs", goal: None, measure: |args| idle(args, 0) },
    Row {
        name: "stop and resume, 1,000 threads detached",
        unit: "µs",
        goal: Some(2.0),
        measure: |args| idle(args, 1000),
    },
    Row {
        name: "the same, of a heap",
        unit: "µs",
        goal: Some(2.0),
        measure: |args| idle_heap(args, 1000),
    },
    Row {
        name: "stop and resume, one thread running",
        unit: "µs",
        goal: Some(5.0),
        measure: |args| running(args, Duration::ZERO, |stop| stop.whole),
    },
    Row {
        name: "of it, until it stands still",
        unit: "µs",
        goal: None,
        measure: |args| running(args, Duration::ZERO, |stop| stop.time_to_stop),
    },
    Row {
        name: "the same stop and resume, with 100 µs between them, those left out",
        unit: "µs",
        goal: None,
        measure: |args| running(args, HELD, |stop| stop.whole),
    },
    Row {
        name: "from that resumption until the thread runs",
        unit: "µs",
        goal: None,
        measure: |args| running(args, HELD, |stop| stop.until_it_runs),
    },
    Row {
        name: "the same stop and resume, of a heap",
        unit: "µs",
        goal: Some(5.0),
        measure: running_heap,
    },
    Row { name: "attach and detach", unit: "ns", goal: Some(13.0), measure: attach },
    Row {
        name: "detach and attach, of a heap",
        unit: "ns",
        goal: Some(13.0),
        measure: attach_heap,
    },
    Row { name: "safepoint poll", unit: "ns", goal: None, measure: poll },
    Row {
        name: "young collection, 10,000 new beside 10,000,000 old: stopped",
        unit: "ms",
        goal: None,
        measure: |args| young(args, |report| report.stops[0]),
    },
    Row {
        name: "the same: from start to end",
        unit: "ms",
        goal: None,
        measure: |args| young(args, |report| report.duration),
    },
    Row {
        name: "memory of 1,000,000 objects with 48 bytes, at rest",
        unit: "bytes/object",
        goal: None,
        measure: |_| memory(1, Fate::Live, |memory| memory.at_rest),
    },
    Row {
        name: "at the peak of a collection, all live, 1 worker",
        unit: "bytes/object",
        goal: None,
        measure: |_| memory(1, Fate::Live, |memory| memory.peak),
    },
    Row {
        name: "at the peak of a collection, all live, 2 workers",
        unit: "bytes/object",
        goal: None,
        measure: |_| memory(2, Fate::Live, |memory| memory.peak),
    },
    Row {
        name: "at the peak of a collection, all garbage, 1 worker",
        unit: "bytes/object",
        goal: None,
        measure: |_| memory(1, Fate::Garbage, |memory| memory.peak),
    },
    Row {
        name: "at the peak of a collection, all garbage, 2 workers",
        unit: "bytes/object",
        goal: None,
        measure: |_| memory(2, Fate::Garbage, |memory| memory.peak),
    },
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
    table += "| | median | least | greatest | goal |\n|---|---:|---:|---:|---:|\n";
    for (number, row) in ROWS.iter().enumerate() {
        if !args.only.is_empty() && !args.only.iter().any(|part| row.name.contains(part)) {
            continue;
        }
        let figure = Figure {
            name: row.name.to_owned(),
            unit: row.unit.to_owned(),
            values: apart(&args, number)?,
        };
        eprintln!("{}", figure.line(row.goal));
        writeln!(table, "{}", figure.line(row.goal))?;
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
    fn line(&self, goal: Option<f64>) -> String {
        let Self { name, unit, values } = self;
        let Some(stats::Spread { median, least, greatest }) = spread(values) else {
            return format!("| {name} | | | | |");
        };
        let goal = goal.map_or_else(String::new, |goal| format!("{goal}"));
        format!("| {name} | {median:.2} {unit} | {least:.2} | {greatest:.2} | {goal} |")
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

/// Runs `measure` while `n` threads wait. Each keeps the value that `prepare` has given it.
fn beside<T>(
    n: usize,
    prepare: impl Fn() -> T + Sync,
    measure: impl FnOnce() -> Vec<f64>,
) -> Vec<f64> {
    const STACK: usize = 128 << 10;
    let (ready, over) = (Barrier::new(n + 1), Barrier::new(n + 1));
    thread::scope(|scope| {
        for _ in 0..n {
            let thread = || {
                let kept = prepare();
                ready.wait();
                over.wait();
                drop(kept);
            };
            thread::Builder::new().stack_size(STACK).spawn_scoped(scope, thread).expect("a thread");
        }
        ready.wait();
        let values = measure();
        over.wait();
        values
    })
}

/// Stops beside threads that are detached.
fn idle(args: &Args, threads: usize) -> Vec<f64> {
    let coordinator = Coordinator::<()>::new();
    let detached = || {
        let other = coordinator.register(());
        other.attach().expect("nothing forbids it");
        other.detach();
        other
    };
    let measure = || {
        let me = coordinator.register(());
        me.attach().expect("nothing forbids it");
        each(args, 1000, || drop(me.stop().expect("nobody has gone")))
    };
    in_us(beside(threads, detached, measure))
}

fn idle_heap(args: &Args, threads: usize) -> Vec<f64> {
    let heap = Heap::new();
    let measure = || {
        let mut m = heap.attach();
        each(args, 1000, || m.prepare_fork().expect("nobody has gone").parent())
    };
    in_us(beside(threads, || heap.attach().into_detached().expect("it may park"), measure))
}

/// Long enough for the thread that is stopped to fall asleep, as it does in a collection.
const HELD: Duration = Duration::from_micros(100);

/// One stop of a running thread, in microseconds.
#[derive(Clone, Copy)]
struct RunningStop {
    whole: f64,
    time_to_stop: f64,
    until_it_runs: f64,
}

/// Calls `stop` beside a thread that calls `poll` all the time, each time after that thread has
/// resumed. Returns the median of the values that `value` selects in each round. `stop` returns the
/// time to stop, and holds the stop for so long.
fn beside_running(
    args: &Args,
    poller: impl FnOnce(&mut dyn FnMut(&mut dyn FnMut())) + Send,
    mut stop: impl FnMut() -> Option<Duration>,
    held: Duration,
    value: impl Fn(RunningStop) -> f64,
) -> Vec<f64> {
    const STOPS: usize = 1000;
    let (polls, over) = (AtomicU64::new(0), AtomicBool::new(false));
    let runs = || {
        let before = polls.load(Ordering::Relaxed);
        let begun = Instant::now();
        while polls.load(Ordering::Relaxed) < before + 1 {
            std::hint::spin_loop();
        }
        us(begun.elapsed())
    };
    thread::scope(|scope| {
        scope.spawn(|| {
            poller(&mut |poll| {
                while !over.load(Ordering::Relaxed) {
                    poll();
                    polls.fetch_add(1, Ordering::Relaxed);
                }
            });
        });
        let mut one = || {
            // It is under way for a while, and not just out of the last stop.
            for _ in 0..10 {
                runs();
            }
            let begun = Instant::now();
            let time_to_stop = stop().map_or(f64::NAN, us);
            let whole = us(begun.elapsed().saturating_sub(held));
            RunningStop { whole, time_to_stop, until_it_runs: runs() }
        };
        let round =
            |_| spread(&(0..STOPS).map(|_| value(one())).collect::<Vec<_>>()).map(|all| all.median);
        let values = (0..args.rounds()).filter_map(round).collect();
        over.store(true, Ordering::Relaxed);
        values
    })
}

fn running(args: &Args, held: Duration, value: fn(RunningStop) -> f64) -> Vec<f64> {
    let coordinator = Coordinator::<()>::new();
    let attached = || {
        let participant = coordinator.register(());
        participant.attach().expect("nothing forbids it");
        participant
    };
    let poller = |run: &mut dyn FnMut(&mut dyn FnMut())| {
        let other: Participant = attached();
        run(&mut || {
            if other.poll() != 0 {
                other.park();
            }
        });
    };
    let me = attached();
    let stop = || {
        let world = me.stop().expect("nobody has gone");
        let standing = Instant::now();
        while standing.elapsed() < held {
            std::hint::spin_loop();
        }
        Some(world.time_to_stop())
    };
    beside_running(args, poller, stop, held, value)
}

fn running_heap(args: &Args) -> Vec<f64> {
    let heap = Heap::new();
    let poller = |run: &mut dyn FnMut(&mut dyn FnMut())| {
        let mut other = heap.attach();
        run(&mut || other.safepoint());
    };
    let mut m = heap.attach();
    let stop = || {
        m.prepare_fork().expect("nobody has gone").parent();
        None
    };
    beside_running(args, poller, stop, Duration::ZERO, |stop| stop.whole)
}

fn attach(args: &Args) -> Vec<f64> {
    let coordinator = Coordinator::<()>::new();
    let me = coordinator.register(());
    each(args, 1_000_000, || {
        me.attach().expect("nothing forbids it");
        me.detach();
    })
}

fn attach_heap(args: &Args) -> Vec<f64> {
    let heap = Heap::new();
    let mut m = heap.attach();
    each(args, 1_000_000, || m.detach(|| black_box(())))
}

fn poll(args: &Args) -> Vec<f64> {
    let heap = Heap::new();
    let mut m = heap.attach();
    each(args, 10_000_000, || m.safepoint())
}

/// 48 bytes of payload.
#[derive(Trace)]
struct Node {
    next: GcCell<Option<Gc<Node>>>,
    other: GcCell<Option<Gc<Node>>>,
    payload: [u64; 2],
}

fn node(m: &Mutator, next: Option<Gc<Node>>) -> Gc<Node> {
    m.alloc(Node { next: GcCell::new(next), other: GcCell::default(), payload: [1, 2] })
}

fn quiet_heap(workers: usize) -> Heap {
    Heap::builder().workers(workers).pacing(Pacing::manual()).build().expect("a heap")
}

/// Milliseconds of young collections beside many old objects. The new ones stay, so there is
/// nothing to free.
fn young(args: &Args, value: fn(&standstill::CollectionReport) -> Duration) -> Vec<f64> {
    const NEW: usize = 10_000;
    let heap = quiet_heap(1);
    let mut m = heap.attach();
    let mut old = node(&m, None);
    for _ in 0..if args.quick { 1_000_000 } else { 10_000_000 } {
        old = node(&m, Some(old));
    }
    m.collect();
    let mut round = || {
        let new: Vec<_> = (0..NEW).map(|_| node(&m, Some(old.clone()))).collect();
        assert_eq!(new[0].payload, [1, 2]);
        let report = m.collect_young();
        assert!((NEW..2 * NEW).contains(&report.candidates), "{report:?}");
        us(value(&report)) / 1e3
    };
    round();
    (0..args.rounds()).map(|_| round()).collect()
}

/// The fate of the objects in [`memory`].
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fate {
    Live,
    Garbage,
}

/// Bytes an object.
struct Memory {
    at_rest: f64,
    peak: f64,
}

/// A list whose nodes also refer to random earlier nodes.
fn memory(workers: usize, fate: Fate, value: fn(Memory) -> f64) -> Vec<f64> {
    const N: usize = 1_000_000;
    let peak = || machine::peak_memory().map_or(f64::NAN, |bytes| bytes as f64);
    let heap = quiet_heap(workers);
    let mut m = heap.attach();
    machine::forget_peak_memory();
    let before = peak();
    let first = node(&m, None);
    {
        let mut random = SplitMix::new(1);
        let mut nodes = Vec::with_capacity(N);
        nodes.push(first.clone());
        for made in 1..N {
            let node = node(&m, Some(nodes[made - 1].clone()));
            node.other.set(&m, Some(nodes[random.below(made)].clone()));
            nodes.push(node);
        }
        first.next.set(&m, nodes.pop());
    }
    machine::forget_peak_memory();
    let at_rest = peak() - before;
    let root = (fate == Fate::Live).then_some(first);
    let report = m.collect();
    assert_eq!(report.collected, if root.is_some() { 0 } else { N });
    vec![value(Memory { at_rest: at_rest / N as f64, peak: (peak() - before) / N as f64 })]
}
