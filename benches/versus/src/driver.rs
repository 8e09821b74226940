//! Starts one child for each measurement, the contestants in turn, and stores their outputs.

use std::collections::{BTreeMap, HashSet};
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

use crate::peer::{Can, Contestant};
use crate::task::{Line, Workload, cores};

/// A thread's usual stack, in MiB.
const STACK: usize = 8;
/// The stack of the second try of a contestant that overflowed it.
const LARGE_STACK: usize = 4096;

/// The selected measurements.
pub struct Plan {
    /// Which workloads.
    pub workloads: Vec<Workload>,
    /// The selected contestants.
    pub contestants: Vec<&'static Contestant>,
    /// With how many threads.
    pub threads: Vec<usize>,
    /// How often.
    pub rounds: usize,
    /// With small sizes.
    pub quick: bool,
    /// How long one may take.
    pub limit: Duration,
}

/// One measurement of the plan; a round makes each once.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Cell {
    workload: Workload,
    threads: usize,
    n: usize,
    contestant: &'static str,
}

impl Plan {
    /// All measurements of a round. Each round begins with another contestant, so that no
    /// contestant always follows the same one.
    fn round(&self, round: usize) -> Vec<Cell> {
        let mut cells = Vec::new();
        for &workload in &self.workloads {
            for &threads in &self.threads {
                for i in 0..self.contestants.len() {
                    let contestant = self.contestants[(i + round) % self.contestants.len()];
                    let able = match (contestant.can)(workload) {
                        Can::No => false,
                        Can::One => threads == 1,
                        Can::Many => true,
                    };
                    // GCBench has one thread, and a collection's workers are ours alone.
                    let workers = workload.threads_are_workers();
                    let sensible = threads == 1
                        || workload != Workload::W3
                            && (!workers || !contestant.rival && threads <= cores(threads).max(4));
                    if able && sensible {
                        let n = workload.size(self.quick, threads);
                        cells.push(Cell { workload, threads, n, contestant: contestant.name });
                    }
                }
            }
        }
        cells
    }
}

/// Measures it all; `results.jsonl` in `out` is written as results come.
pub fn run(plan: &Plan, out: &Path) -> Result<(), Box<dyn std::error::Error>> {
    fs::create_dir_all(out)?;
    let mut results = File::create(out.join("results.jsonl"))?;
    let style = ProgressStyle::with_template("{elapsed_precise} {bar:30} {pos}/{len} {msg}")?;
    let progress = ProgressBar::new((plan.round(0).len() * plan.rounds) as u64).with_style(style);
    // A contestant that was over the limit once is not measured again. One that overflowed its
    // stack gets the large stack at once.
    let (mut hopeless, mut deep) = (HashSet::new(), HashSet::new());
    for round in 0..plan.rounds {
        for cell in plan.round(round) {
            progress
                .set_message(format!("{:?} T={} {}", cell.workload, cell.threads, cell.contestant));
            if !hopeless.contains(&cell) {
                let mut overflowed = deep.contains(&cell);
                let stack = if overflowed { LARGE_STACK } else { STACK };
                let mut line = measure(cell, stack, plan.limit)?;
                if line.outcome == OVERFLOW && !overflowed {
                    overflowed = true;
                    deep.insert(cell);
                    line = measure(cell, LARGE_STACK, plan.limit)?;
                }
                line.round = round;
                line.overflowed = overflowed;
                if line.outcome == OVER_LIMIT {
                    hopeless.insert(cell);
                }
                writeln!(results, "{}", serde_json::to_string(&line)?)?;
            }
            progress.inc(1);
        }
    }
    progress.finish_and_clear();
    Ok(())
}

const OVERFLOW: &str = "crashed: overflowed its stack";
const OVER_LIMIT: &str = "over the limit";

fn measure(cell: Cell, stack: usize, limit: Duration) -> io::Result<Line> {
    let mut child = Command::new(std::env::current_exe()?)
        .arg("--measure")
        .args([&format!("{:?}", cell.workload), cell.contestant])
        .args([cell.threads, cell.n, stack].map(|number| number.to_string()))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    // Read while it runs: a child that says much would wait for a reader for ever.
    let said = reader(child.stdout.take());
    let complained = reader(child.stderr.take());
    let status = wait(&mut child, limit)?;
    let (said, complained) =
        (said.join().unwrap_or_default(), complained.join().unwrap_or_default());
    let failed = |outcome: String| Line {
        workload: cell.workload,
        contestant: cell.contestant.to_owned(),
        threads: cell.threads,
        n: cell.n,
        round: 0,
        outcome,
        ns: None,
        wall_s: None,
        overflowed: false,
        peak_rss_kib: None,
        facts: BTreeMap::new(),
    };
    Ok(match status {
        None => failed(OVER_LIMIT.to_owned()),
        Some(status) if status.success() => match serde_json::from_str(said.trim()) {
            Ok(line) => line,
            Err(error) => failed(format!("crashed: said no result ({error})")),
        },
        Some(_) if complained.contains("overflowed its stack") => failed(OVERFLOW.to_owned()),
        Some(status) => {
            let first =
                complained.lines().find(|line| !line.trim().is_empty()).unwrap_or("").trim();
            failed(format!(
                "crashed: {}{}{first}",
                describe(status),
                if first.is_empty() { "" } else { ": " }
            ))
        }
    })
}

/// The signal where there was one: `signal: 11 (SIGSEGV)`.
fn describe(status: ExitStatus) -> String {
    let text = status.to_string();
    text.split(" (core dumped)").next().unwrap_or_default().to_owned()
}

fn reader(pipe: Option<impl Read + Send + 'static>) -> std::thread::JoinHandle<String> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(mut pipe) = pipe {
            // Figures that precede an error are kept.
            let _ = pipe.read_to_end(&mut bytes);
        }
        String::from_utf8_lossy(&bytes).into_owned()
    })
}

/// `None` when it took too long, and was ended.
fn wait(child: &mut Child, limit: Duration) -> io::Result<Option<ExitStatus>> {
    let begun = Instant::now();
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if begun.elapsed() > limit {
            child.kill()?;
            child.wait()?;
            return Ok(None);
        }
        sleep(Duration::from_millis(5));
    }
}
