//! How long collections of real programs' heaps stop the world, beside the ideal mark of the same
//! graph, and beside CPython with the same graph.
//!
//! One program is driver and worker. The driver reads the heaps once ([`graph`]) and
//! writes them as bare graphs. Each measurement is a process of its own. It builds its graph from
//! the file ([`measure`], [`typed`]; [`python`], `pause.py`) and prints its times ([`figures`]).
//! The contestants alternate, and each round begins with another contestant. [`report`] makes the
//! table and the charts. The README explains how to read them.

mod figures;
mod graph;
mod measure;
mod python;
mod report;
mod typed;

use std::error::Error;
use std::fs::{self, File};
use std::io::Write;
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use clap::{Parser, ValueEnum};
use indicatif::{ProgressBar, ProgressStyle};

use figures::{Figures, Line};
use graph::Graph;
use measure::Contestant;
use python::Interpreter;

/// Collections with everything held that a measurement makes.
const COLLECTIONS: usize = 7;
/// Where the repository keeps its heaps.
const HEAPS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tools/heaps");

/// Measures collections of real programs' heaps; writes heaps.jsonl, heaps.md and charts.
///
/// Exit status: 0 if all is well, 1 if a measurement failed, 2 if the input is bad.
#[derive(Debug, Parser)]
struct Args {
    /// V8 heap snapshots, plain or zstd-compressed [default: those in tools/heaps]
    files: Vec<PathBuf>,
    /// Numbers of threads that work on a collection
    #[arg(long, value_delimiter = ',', default_value = "1,2")]
    workers: Vec<NonZero<usize>>,
    /// How often each measurement is made
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..))]
    rounds: u16,
    /// A CPython of 3.13 or later, `auto` for all that are on the path, or `none`; may be repeated
    #[arg(long, value_name = "PATH|auto|none", default_value = "auto")]
    python: Vec<String>,
    /// Where the results go
    #[arg(long, default_value = "target/pauses")]
    out: PathBuf,
    /// One round
    #[arg(long)]
    quick: bool,
    /// One measurement, in this process (for the driver)
    #[arg(long, num_args = 3, value_names = ["CONTESTANT", "GRAPH", "WORKERS"], hide = true)]
    measure: Option<Vec<String>>,
}

fn main() -> ExitCode {
    let args = Args::parse();
    if let Some(words) = &args.measure {
        return exit(worker(words).map(|()| true));
    }
    let files = if args.files.is_empty() { own_heaps() } else { Ok(args.files.clone()) };
    let input = files.and_then(|files| Ok((read(&files)?, Interpreter::find(&args.python)?)));
    match input {
        Ok((heaps, interpreters)) => exit(drive(&args, &heaps, &interpreters)),
        Err(bad) => {
            eprintln!("{bad}");
            ExitCode::from(2)
        }
    }
}

/// Success if all is well.
fn exit(well: Result<bool, Box<dyn Error>>) -> ExitCode {
    match well {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn worker(words: &[String]) -> Result<(), Box<dyn Error>> {
    let [contestant, graph, workers] = words else { return Err("three words".into()) };
    let contestant = Contestant::from_str(contestant, false)?;
    let figures = measure::measure(contestant, Path::new(graph), workers.parse()?, COLLECTIONS)?;
    println!("{}", serde_json::to_string(&figures)?);
    Ok(())
}

/// A heap to measure.
struct Program {
    name: String,
    graph: Graph,
}

/// The snapshots that the repository has.
fn own_heaps() -> Result<Vec<PathBuf>, Box<dyn Error>> {
    let entries = fs::read_dir(HEAPS).map_err(|error| format!("{HEAPS}: {error}"))?;
    let mut files: Vec<PathBuf> = entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.extension().is_some_and(|extension| extension == "zst"))
        .collect();
    files.sort();
    Ok(files)
}

/// Reads the snapshots.
fn read(files: &[PathBuf]) -> Result<Vec<Program>, Box<dyn Error>> {
    let style = ProgressStyle::with_template("reading {msg} {bar:30} {percent}%")?;
    let mut heaps = Vec::new();
    for file in files {
        let bar = ProgressBar::no_length().with_style(style.clone()).with_message(name_of(file));
        let snapshot = standstill_heap::file::read(file, &bar).map_err(|bad| bad.to_string());
        bar.finish_and_clear();
        heaps.push(Program { name: name_of(file), graph: Graph::of(&snapshot?) });
    }
    Ok(heaps)
}

/// The name of the file up to its first dot: `sympy`.
fn name_of(file: &Path) -> String {
    let name = file.file_name().unwrap_or(file.as_os_str()).to_string_lossy();
    name.split('.').find(|part| !part.is_empty()).unwrap_or(&name).to_owned()
}

/// One measurement of a round.
#[derive(Clone, Copy)]
enum Task<'a> {
    Ours(Contestant, usize),
    Python(&'a Interpreter),
}

impl Task<'_> {
    fn contestant(self) -> String {
        match self {
            Self::Ours(contestant, _) => contestant.name().to_owned(),
            Self::Python(interpreter) => interpreter.name(),
        }
    }

    fn workers(self) -> Option<usize> {
        match self {
            Self::Ours(_, workers) => Some(workers),
            Self::Python(_) => None,
        }
    }

    /// The process that does it.
    fn command(self, graph: &Path) -> std::io::Result<Command> {
        match self {
            Self::Ours(contestant, workers) => {
                let word = contestant.to_possible_value().expect("no contestant is hidden");
                let mut command = Command::new(std::env::current_exe()?);
                command.args(["--measure", word.get_name()]).arg(graph).arg(workers.to_string());
                Ok(command)
            }
            Self::Python(interpreter) => Ok(interpreter.measure(graph, COLLECTIONS)),
        }
    }
}

/// Measures everything and writes the results; whether all measurements succeeded.
fn drive(
    args: &Args,
    heaps: &[Program],
    interpreters: &[Interpreter],
) -> Result<bool, Box<dyn Error>> {
    let workers = args.workers.iter().map(|workers| workers.get());
    let tasks: Vec<Task<'_>> = workers
        .flat_map(|workers| {
            Contestant::value_variants().iter().map(move |who| Task::Ours(*who, workers))
        })
        .chain(interpreters.iter().map(Task::Python))
        .collect();
    let rounds = if args.quick { 1 } else { usize::from(args.rounds) };

    fs::create_dir_all(&args.out)?;
    let mut results = File::create(args.out.join("heaps.jsonl"))?;
    let file = args.out.join("heaps.graph");
    let style = ProgressStyle::with_template("{elapsed_precise} {bar:30} {pos}/{len} {msg}")?;
    let bar = ProgressBar::new((rounds * heaps.len() * tasks.len()) as u64).with_style(style);
    let mut lines = Vec::new();
    for round in 0..rounds {
        for heap in heaps {
            heap.graph.write(&file)?;
            for turn in 0..tasks.len() {
                let task = tasks[(turn + round) % tasks.len()];
                bar.set_message(format!("{}: {}", heap.name, task.contestant()));
                let line = measured(heap, task, round, &file)?;
                writeln!(results, "{}", serde_json::to_string(&line)?)?;
                lines.push(line);
                bar.inc(1);
            }
        }
    }
    bar.finish_and_clear();
    fs::remove_file(&file)?;
    report::write(&args.out, &lines)?;

    let failed: Vec<&Line> = lines.iter().filter(|line| line.outcome != "ok").collect();
    for line in &failed {
        eprintln!("{}: {}: {}", line.heap, line.contestant, line.outcome);
    }
    Ok(failed.is_empty())
}

fn measured(heap: &Program, task: Task<'_>, round: usize, graph: &Path) -> std::io::Result<Line> {
    let output = task.command(graph)?.stdin(Stdio::null()).output()?;
    let complaint = || String::from_utf8_lossy(&output.stderr).trim().to_owned();
    let (outcome, figures) = match serde_json::from_slice::<Figures>(&output.stdout) {
        Ok(figures) if !output.status.success() => {
            (format!("{}: {}", output.status, complaint()), figures)
        }
        Ok(figures) if !figures.failed.is_empty() => (figures.failed.join("; "), figures),
        Ok(figures) => ("ok".to_owned(), figures),
        Err(_) => (format!("{}: {}", output.status, complaint()), Figures::default()),
    };
    Ok(Line {
        heap: heap.name.clone(),
        objects: heap.graph.nodes(),
        edges: heap.graph.edges(),
        contestant: task.contestant(),
        workers: task.workers(),
        round,
        outcome,
        figures,
    })
}
