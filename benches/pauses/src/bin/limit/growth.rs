//! `limit growth`: building, collecting and dropping heaps of every size.

use std::collections::BTreeMap;
use std::error::Error;
use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::Instant;

use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use pauses::machine;
use pauses::stats::spread;
use pauses::table::{Table, grouped, number, or_nothing};
use serde::{Deserialize, Serialize};
use standstill::{Heap, Pacing};

use crate::child;
use crate::shape::Shape;
use crate::shapes::{ideal_graph, ideal_mark, stopped};
use crate::typed;

/// The selection of measurements.
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// The smallest heap
    #[arg(long, default_value_t = 10_000)]
    min: usize,
    /// The largest heap [default: 30000000]
    #[arg(long)]
    max: Option<usize>,
    /// These shapes
    #[arg(long, value_delimiter = ',', value_enum, default_values_t = [Shape::Tree, Shape::Random])]
    shapes: Vec<Shape>,
    /// The collector's workers
    #[arg(long, default_value_t = 1)]
    workers: usize,
    /// How many processes measure each size
    #[arg(long)]
    rounds: Option<usize>,
    /// Small sizes and one round: whether everything works, not how fast it is
    #[arg(long)]
    quick: bool,
    /// Where the results go
    #[arg(long, default_value = "target/pauses")]
    out: PathBuf,
}

/// The task of a child: one size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct Task {
    shape: Shape,
    n: usize,
    workers: usize,
}

/// The key of a figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum What {
    /// Allocating the objects and writing their edges. Nanoseconds an object, as all below.
    Build,
    /// The first collection: everything is held, and young.
    First,
    /// A later one.
    Held,
    /// How long the world was stopped in it.
    HeldStopped,
    /// The drop of all references, and the collection that frees it.
    Dropped,
    /// How long the world was stopped in it.
    DroppedStopped,
    /// The ideal mark of the same graph.
    Ideal,
    /// Dependent loads from the same graph.
    Chase,
    /// Bytes an object that the heap says its cells take.
    CellBytes,
    /// Bytes an object that the heap made accessible.
    CommittedBytes,
    /// Bytes an object that the process took more than before, at most, while it built.
    BuildPeak,
    /// The same while it collected.
    CollectPeak,
}

/// One figure.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Line {
    #[serde(flatten)]
    task: Task,
    what: What,
    value: f64,
}

/// Measures and reports.
pub(crate) fn run(options: &Options) -> Result<(), Box<dyn Error>> {
    let (max, rounds) = if options.quick { (100_000, 1) } else { (30_000_000, 3) };
    let sizes = half_decades(options.min, options.max.unwrap_or(max));
    let rounds = options.rounds.unwrap_or(rounds).max(1);
    let tasks: Vec<Task> = options
        .shapes
        .iter()
        .flat_map(|shape| {
            sizes.iter().map(|n| Task { shape: *shape, n: *n, workers: options.workers.max(1) })
        })
        .collect();

    fs::create_dir_all(&options.out)?;
    let mut results = File::create(options.out.join("growth.jsonl"))?;
    let style = ProgressStyle::with_template("{elapsed_precise} {bar:30} {pos}/{len} {msg}")?;
    let progress = ProgressBar::new((2 * rounds * tasks.len()) as u64).with_style(style);
    let (mut lines, mut failed) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        for &task in &tasks {
            for part in [child::Task::Size(task), child::Task::IdealSize(task)] {
                progress.set_message(format!("{} {}", task.shape.name(), grouped(task.n)));
                let done = child::run(&part, |line: Line| {
                    writeln!(results, "{}", serde_json::to_string(&line)?)?;
                    lines.push(line);
                    Ok(())
                });
                // Such as one that the machine has not the memory for: the others still count.
                failed.extend(done.err().map(|error| error.to_string()));
                progress.inc(1);
            }
        }
    }
    progress.finish_and_clear();
    Report::of(&lines).write(options, rounds, &options.out)?;
    if failed.is_empty() { Ok(()) } else { Err(failed.join("; ").into()) }
}

/// 1 and 3 times the powers of ten.
fn half_decades(min: usize, max: usize) -> Vec<usize> {
    let all = (0..12).flat_map(|power| [1, 3].map(|factor| factor * 10usize.pow(power)));
    all.filter(|n| (min.max(1)..=max).contains(n)).collect()
}

/// The repetitions in one process: small heaps are collected quickly, and a disturbance changes
/// their times most.
fn often(n: usize) -> usize {
    (1_000_000 / n).clamp(3, 30)
}

/// A child's work: a heap.
pub(crate) fn measure(task: &Task) -> Result<(), Box<dyn Error>> {
    let n = task.n;
    let a_node = |value: f64| value / n as f64;
    let say = |what, value| child::say(&Line { task: *task, what, value });
    let timed = |begun: Instant| a_node(begun.elapsed().as_nanos() as f64);

    let before = machine::peak_memory();
    let peak = || Some(a_node(machine::peak_memory()?.saturating_sub(before?) as f64));
    let heap = Heap::builder().workers(task.workers).pacing(Pacing::manual()).build()?;
    let mut m = heap.attach();
    let begun = Instant::now();
    let root = typed::build(&m, task.shape, n);
    say(What::Build, timed(begun))?;
    if let Some(peak) = peak() {
        say(What::BuildPeak, peak)?;
    }
    machine::forget_peak_memory();

    for i in 0..=often(n) {
        let begun = Instant::now();
        let report = m.collect();
        say(if i == 0 { What::First } else { What::Held }, timed(begun))?;
        if i > 0 {
            say(What::HeldStopped, a_node(stopped(&report)))?;
        }
        assert!(report.abandoned.is_none() && report.unreachable == 0, "{report:?}");
        assert_eq!((report.candidates, heap.stats().live_objects), (n, n), "{report:?}");
    }
    let stats = heap.stats();
    say(What::CellBytes, a_node(stats.live_bytes as f64))?;
    say(What::CommittedBytes, a_node(stats.committed_bytes as f64))?;

    let begun = Instant::now();
    drop(root);
    let report = m.collect();
    say(What::Dropped, timed(begun))?;
    say(What::DroppedStopped, a_node(stopped(&report)))?;
    if let Some(peak) = peak() {
        say(What::CollectPeak, peak)?;
    }
    assert!(report.abandoned.is_none(), "{report:?}");
    assert_eq!(heap.stats().live_objects, 0, "everything was dropped: {report:?}");
    Ok(())
}

/// A child's work: no heap, the same graph.
pub(crate) fn measure_ideal(task: &Task) -> Result<(), Box<dyn Error>> {
    let mut graph = ideal_graph(task.shape, task.n);
    let say = |what, value| child::say(&Line { task: *task, what, value });
    ideal_mark(&mut graph, task.workers);
    for _ in 0..often(task.n) {
        say(What::Ideal, ideal_mark(&mut graph, task.workers))?;
    }
    say(What::Chase, graph.chase())
}

/// Medians by key.
struct Report(BTreeMap<(Task, What), f64>);

/// The figures that must not grow faster than the ideal mark, with the tolerated excess of each.
const STEPS: [(What, &str); 5] = [
    (What::Build, "build"),
    (What::First, "first"),
    (What::Held, "held"),
    (What::Dropped, "dropped"),
    (What::CollectPeak, "memory"),
];
const SUSPICIOUS: f64 = 1.5;

impl Report {
    fn of(lines: &[Line]) -> Self {
        let mut values: BTreeMap<_, Vec<f64>> = BTreeMap::new();
        for line in lines {
            values.entry((line.task, line.what)).or_default().push(line.value);
        }
        let median = |values: Vec<f64>| spread(&values).map(|spread| spread.median);
        Self(values.into_iter().filter_map(|(of, values)| Some((of, median(values)?))).collect())
    }

    fn get(&self, task: Task, what: What) -> Option<f64> {
        self.0.get(&(task, what)).copied()
    }

    /// The sizes of a shape, the smallest first.
    fn sizes(&self, shape: Shape) -> Vec<Task> {
        let mut tasks: Vec<Task> =
            self.0.keys().map(|(task, _)| *task).filter(|task| task.shape == shape).collect();
        tasks.dedup();
        tasks
    }

    fn write(&self, options: &Options, rounds: usize, out: &Path) -> Result<(), Box<dyn Error>> {
        let text = format!(
            "Heaps of growing size, {} worker{}; ns and bytes an object, medians of {rounds} \
             processes. {}\n\n{}\nThe growth of the cost of an object over the size before, and in \
             brackets the growth beyond that of the ideal mark; suspicious, **beyond \
             {SUSPICIOUS}**:\n\n{}",
            options.workers,
            if options.workers == 1 { "" } else { "s" },
            machine::describe(),
            self.figures(&options.shapes).text(),
            self.steps(&options.shapes).text(),
        );
        fs::write(out.join("growth.md"), &text)?;
        println!("{text}\nwritten to {}", out.display());
        Ok(())
    }

    fn figures(&self, shapes: &[Shape]) -> Table {
        const COLUMNS: [(What, &str); 12] = [
            (What::Build, "build"),
            (What::First, "first collection"),
            (What::Held, "all held"),
            (What::HeldStopped, "stopped"),
            (What::Dropped, "all dropped"),
            (What::DroppedStopped, "stopped"),
            (What::Ideal, "ideal mark"),
            (What::Chase, "dependent load"),
            (What::CellBytes, "bytes: cells"),
            (What::CommittedBytes, "accessible"),
            (What::BuildPeak, "peak, building"),
            (What::CollectPeak, "peak, collecting"),
        ];
        let names = COLUMNS.iter().map(|(_, name)| *name);
        let mut table =
            Table::new(&["shape", "objects"].into_iter().chain(names).collect::<Vec<_>>());
        for task in shapes.iter().flat_map(|shape| self.sizes(*shape)) {
            let begin = [task.shape.name().to_owned(), grouped(task.n)];
            let figures = COLUMNS.iter().map(|(what, _)| or_nothing(self.get(task, *what)));
            table.row(begin.into_iter().chain(figures));
        }
        table
    }

    fn steps(&self, shapes: &[Shape]) -> Table {
        let names = STEPS.iter().map(|(_, name)| *name);
        let columns: Vec<_> =
            ["shape", "objects"].into_iter().chain(names).chain(["ideal mark"]).collect();
        let mut table = Table::new(&columns);
        for shape in shapes {
            for step in self.sizes(*shape).windows(2) {
                let growth = |what| Some(self.get(step[1], what)? / self.get(step[0], what)?);
                // A step into slower memory costs the ideal mark as well. Bytes know no caches.
                let caches = growth(What::Ideal).unwrap_or(1.0).max(1.0);
                let judged = |what| {
                    let growth = growth(what)?;
                    let beyond = if what == What::CollectPeak { growth } else { growth / caches };
                    let mark = if beyond > SUSPICIOUS { "**" } else { "" };
                    Some(format!("{mark}{} ({}){mark}", number(growth), number(beyond)))
                };
                let begin = [shape.name().to_owned(), grouped(step[1].n)];
                let figures = STEPS.iter().map(|(what, _)| judged(*what).unwrap_or_default());
                table
                    .row(begin.into_iter().chain(figures).chain([or_nothing(growth(What::Ideal))]));
            }
        }
        table
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_half_decades() {
        assert_eq!(half_decades(10_000, 300_000), [10_000, 30_000, 100_000, 300_000]);
        assert_eq!(half_decades(0, 20), [1, 3, 10]);
    }
}
