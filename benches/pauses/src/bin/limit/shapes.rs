//! `limit shapes`: full collections with everything held, beside the ideal mark of the same graph.

use std::collections::BTreeMap;
use std::error::Error;
use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::Instant;

use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use pauses::stats::{Spread, spread};
use pauses::table::{Table, grouped, number, or_nothing, with_extremes};
use pauses::{ideal, machine};
use serde::{Deserialize, Serialize};
use standstill::{AnyGc, CollectionReport, Heap, Pacing};

use crate::child;
use crate::shape::Shape;
use crate::typed;

/// The selection of measurements.
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Objects in a heap
    #[arg(long)]
    n: Option<usize>,
    /// These shapes
    #[arg(long, value_delimiter = ',', value_enum, default_values_t = Shape::ALL.iter().copied())]
    shapes: Vec<Shape>,
    /// Numbers of workers [default: those of 1,2,4,8,16 that the machine has cores for]
    #[arg(long, value_delimiter = ',')]
    workers: Vec<usize>,
    /// How often each is measured
    #[arg(long)]
    rounds: Option<usize>,
    /// Small sizes and few rounds: whether everything works, not how fast it is
    #[arg(long)]
    quick: bool,
    /// Where the results go
    #[arg(long, default_value = "target/pauses")]
    out: PathBuf,
}

/// The task of a child: one shape.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Task {
    shape: Shape,
    n: usize,
    workers: Vec<usize>,
    rounds: usize,
}

/// The key of a figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum What {
    /// A collection that knows counts alone, as its caller sees it.
    Pause,
    /// How long the world was stopped in it.
    Stopped,
    /// A collection that knows the root, as its caller sees it.
    NamedPause,
    /// How long the world was stopped in it.
    NamedStopped,
    /// The ideal mark.
    Ideal,
    /// The independent loads, with one thread for any number of workers.
    Independent,
    /// The dependent loads; as above.
    Chase,
}

/// One figure.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Line {
    shape: Shape,
    n: usize,
    workers: usize,
    round: usize,
    what: What,
    /// Nanoseconds an object.
    ns: f64,
}

/// Measures and reports.
pub(crate) fn run(options: &Options) -> Result<(), Box<dyn Error>> {
    let (n, rounds) = if options.quick { (100_000, 2) } else { (1_000_000, 5) };
    let task = |shape| Task {
        shape,
        n: options.n.unwrap_or(n).max(1),
        workers: workers(&options.workers),
        rounds: options.rounds.unwrap_or(rounds).max(1),
    };
    let tasks: Vec<Task> = options.shapes.iter().copied().map(task).collect();

    fs::create_dir_all(&options.out)?;
    let mut results = File::create(options.out.join("shapes.jsonl"))?;
    let style = ProgressStyle::with_template("{elapsed_precise} {bar:30} {pos}/{len} {msg}")?;
    let count: usize = tasks.iter().map(Task::figures).sum();
    let progress = ProgressBar::new(count as u64).with_style(style);
    let mut lines = Vec::new();
    for task in &tasks {
        progress.set_message(task.shape.name());
        child::run(&child::Task::Shape(task.clone()), |line: Line| {
            writeln!(results, "{}", serde_json::to_string(&line)?)?;
            lines.push(line);
            progress.inc(1);
            Ok(())
        })?;
    }
    progress.finish_and_clear();
    Report::of(&lines).write(&tasks, &options.out)
}

/// The requested number, or otherwise the number of the machine's cores.
fn workers(asked: &[usize]) -> Vec<usize> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let usual = [1, 2, 4, 8, 16].into_iter().filter(|workers| *workers <= cores);
    let mut workers = if asked.is_empty() { usual.collect() } else { asked.to_vec() };
    workers.retain(|workers| *workers > 0);
    workers.sort_unstable();
    workers.dedup();
    workers
}

impl Task {
    fn figures(&self) -> usize {
        self.rounds * (5 * self.workers.len() + 2)
    }
}

/// A heap with everything held.
struct Held {
    heap: Heap,
    root: AnyGc,
    workers: usize,
}

impl Held {
    fn new(task: &Task, workers: usize) -> Result<Self, Box<dyn Error>> {
        let heap = Heap::builder().workers(workers).pacing(Pacing::manual()).build()?;
        let mut m = heap.attach();
        let root = typed::build(&m, task.shape, task.n);
        m.collect(); // the first one finds everything young
        drop(m); // a thread works in one heap at a time
        Ok(Self { heap, root, workers })
    }

    /// Collects twice, with the root named or not, and measures the second collection: nanoseconds
    /// an object, as seen by the caller and stopped. The first one finds the roots that the second
    /// one begins with. A collection with the root named remembers none.
    fn collect(&self, task: &Task, named: bool) -> [f64; 2] {
        let mut m = self.heap.attach();
        let name = named.then(|| self.heap.known_root(self.root.clone()));
        m.collect();
        let begun = Instant::now();
        let report = m.collect();
        let pause = begun.elapsed();
        drop(name);
        assert!(report.abandoned.is_none() && report.unreachable == 0, "{report:?}");
        assert_eq!(report.candidates, task.n, "{report:?}");
        assert_eq!(report.known_alive, if named { task.n } else { 0 }, "{report:?}");
        assert_eq!(self.heap.stats().live_objects, task.n);
        [pause.as_nanos() as f64, stopped(&report)].map(|ns| ns / task.n as f64)
    }

    /// Drops everything: nothing may be left.
    fn end(self) {
        let mut m = self.heap.attach();
        drop(self.root);
        m.collect();
        assert_eq!(self.heap.stats().live_objects, 0, "everything was dropped");
    }
}

/// For how many nanoseconds a collection stopped the world.
pub(crate) fn stopped(report: &CollectionReport) -> f64 {
    report.stops.iter().map(|stop| stop.as_nanos() as f64).sum()
}

/// The plain graph of a shape, with nodes as large as its objects.
pub(crate) fn ideal_graph(shape: Shape, n: usize) -> ideal::Graph {
    let mut edges = Vec::with_capacity(n * shape.degree());
    shape.edges(n, |from, _, to| edges.push((from as u32, to as u32)));
    ideal::Graph::new(&vec![typed::object_size(shape) as u32; n], &edges)
}

/// One ideal mark of all; nanoseconds a node.
pub(crate) fn ideal_mark(graph: &mut ideal::Graph, workers: usize) -> f64 {
    let marked = graph.mark(&[0], workers);
    assert_eq!(marked.visited, graph.nodes(), "number 0 reaches all");
    marked.time.as_nanos() as f64 / marked.visited as f64
}

/// A child's work. Contestants alternate, and each round begins with another one.
pub(crate) fn measure(task: &Task) -> Result<(), Box<dyn Error>> {
    let mut graph = ideal_graph(task.shape, task.n);
    let mut heaps = task
        .workers
        .iter()
        .map(|workers| Held::new(task, *workers))
        .collect::<Result<Vec<_>, _>>()?;
    ideal_mark(&mut graph, 1);
    for round in 0..task.rounds {
        let say = |workers, what, ns| {
            let (shape, n) = (task.shape, task.n);
            child::say(&Line { shape, n, workers, round, what, ns })
        };
        heaps.rotate_left(1);
        for held in &heaps {
            let workers = held.workers;
            for turn in 0..3 {
                match (turn + round) % 3 {
                    0 => {
                        let [pause, stopped] = held.collect(task, false);
                        say(workers, What::Pause, pause)?;
                        say(workers, What::Stopped, stopped)?;
                    }
                    1 => {
                        let [pause, stopped] = held.collect(task, true);
                        say(workers, What::NamedPause, pause)?;
                        say(workers, What::NamedStopped, stopped)?;
                    }
                    _ => say(workers, What::Ideal, ideal_mark(&mut graph, workers))?,
                }
            }
        }
        say(1, What::Independent, graph.independent())?;
        say(1, What::Chase, graph.chase())?;
    }
    heaps.into_iter().for_each(Held::end);
    Ok(())
}

/// The figures by key.
struct Report(BTreeMap<(Shape, usize, What), Spread>);

impl Report {
    fn of(lines: &[Line]) -> Self {
        let mut values: BTreeMap<_, Vec<f64>> = BTreeMap::new();
        for line in lines {
            values.entry((line.shape, line.workers, line.what)).or_default().push(line.ns);
        }
        Self(values.into_iter().filter_map(|(of, values)| Some((of, spread(&values)?))).collect())
    }

    fn get(&self, shape: Shape, workers: usize, what: What) -> Option<Spread> {
        self.0.get(&(shape, workers, what)).copied()
    }

    fn median(&self, shape: Shape, workers: usize, what: What) -> Option<f64> {
        self.get(shape, workers, what).map(|spread| spread.median)
    }

    /// How many times as long as the ideal mark with as many workers.
    fn of_ideal(&self, shape: Shape, workers: usize, what: What) -> Option<f64> {
        Some(self.median(shape, workers, what)? / self.median(shape, workers, What::Ideal)?)
    }

    /// How many times as fast as with one worker.
    fn speedup(&self, shape: Shape, workers: usize, what: What) -> Option<f64> {
        Some(self.median(shape, 1, what)? / self.median(shape, workers, what)?)
    }

    fn write(&self, tasks: &[Task], out: &Path) -> Result<(), Box<dyn Error>> {
        let Some(first) = tasks.first() else { return Ok(()) };
        let text = format!(
            "Full collections of {} objects, everything held; ns an object: median (least..greatest) of {} \
             rounds. {}\n\n{}\n{}",
            grouped(first.n),
            first.rounds,
            machine::describe(),
            self.collections(tasks).text(),
            self.limits(tasks).text(),
        );
        fs::write(out.join("shapes.md"), &text)?;
        println!("{text}\nwritten to {}", out.display());
        Ok(())
    }

    fn collections(&self, tasks: &[Task]) -> Table {
        let mut table = Table::new(&[
            "shape",
            "workers",
            "counts alone: pause",
            "stopped",
            "x ideal",
            "efficiency",
            "root named: pause",
            "stopped",
            "x ideal",
            "efficiency",
            "ideal mark",
            "efficiency",
        ]);
        for task in tasks {
            let shape = task.shape;
            for &workers in &task.workers {
                let figure = |what| with_extremes(self.get(shape, workers, what));
                let ratio = |what| or_nothing(self.of_ideal(shape, workers, what));
                let efficiency = |what| {
                    let speedup = self.speedup(shape, workers, what)?;
                    Some(format!("{:.0} %", 100.0 * speedup / workers as f64))
                };
                let efficiency = |what| efficiency(what).unwrap_or_default();
                table.row([
                    shape.name().to_owned(),
                    workers.to_string(),
                    figure(What::Pause),
                    figure(What::Stopped),
                    ratio(What::Stopped),
                    efficiency(What::Stopped),
                    figure(What::NamedPause),
                    figure(What::NamedStopped),
                    ratio(What::NamedStopped),
                    efficiency(What::NamedStopped),
                    figure(What::Ideal),
                    efficiency(What::Ideal),
                ]);
            }
        }
        table
    }

    fn limits(&self, tasks: &[Task]) -> Table {
        let mut table = Table::new(&[
            "shape",
            "bytes an object",
            "independent loads",
            "ideal mark, 1 worker",
            "dependent loads",
            "counts alone, per dependent load",
        ]);
        for &Task { shape, .. } in tasks {
            let ratio = || {
                let stopped = self.median(shape, 1, What::Stopped)?;
                Some(number(stopped / self.median(shape, 1, What::Chase)?))
            };
            table.row([
                shape.name().to_owned(),
                typed::object_size(shape).to_string(),
                with_extremes(self.get(shape, 1, What::Independent)),
                with_extremes(self.get(shape, 1, What::Ideal)),
                with_extremes(self.get(shape, 1, What::Chase)),
                ratio().unwrap_or_default(),
            ]);
        }
        table
    }
}
