//! Replays the heap of a real program: reads a V8 heap snapshot, builds its graph as typed objects
//! from several threads, collects it, churns it, drops it, and checks that nothing was lost, freed
//! too early, or freed twice.
//!
//! ```text
//! cargo run --release --bin replay -- tools/heaps/sympy.heapsnapshot.zst
//! ```
//! The phases, in order, and the condition after each:
//!
//! 1. **read** (the package `standstill-heap`): the file is valid, or exit status 2;
//! 2. **build** (`build`, `graph`): each of `--threads` mutators makes its share of the nodes and
//!    hands references to the others. Afterwards only the root and the targets of its edges are
//!    held;
//! 3. **settle**: one full collection, which frees only the objects that are unreachable in the
//!    file;
//! 4. **collect**: `--collections` full ones with all roots held, which must free nothing;
//! 5. **churn** (`churn`): `--churn` operations a thread under automatic collection;
//! 6. **drop**: all references are dropped, and one collection runs. Every destructor ran exactly
//!    once (`ledger`), no weak reference is alive, the heap is empty; or exit status 1.

mod build;
mod churn;
mod graph;
mod ledger;
mod pauses;
mod random;
mod report;

use std::io::Write;
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use clap::Parser;
use standstill::Heap;
use standstill_heap::snapshot::Snapshot;
use standstill_heap::{file, progress};

use crate::graph::Board;
use crate::ledger::{Ledger, first_alive};
use crate::pauses::{Pauses, pause};
use crate::report::{Report, ms, peak_rss_kb, spread};

/// The end of the text of `--help`.
const AFTER_HELP: &str = "\
Example:
  cargo run --release --bin replay -- tools/heaps/sympy.heapsnapshot.zst --threads 4

The JSON line has the numbers of the table, and the names of the checks that failed;
times are in the unit that their name says:
  heap, objects, edges, reachable      what the file holds
  threads, seed, churn_operations      what was asked for (operations of all threads)
  read_ms, build_ns_per_object         wall time
  full_pause_ms_min, _median, _max     the full collections with all roots held
  young_pause_ms_max                   all young collections, mostly of the mutation phase
  time_to_stop_us_max                  all collections: from the request to the last thread's stop
  churn_ns_per_op                      one operation of one thread, pauses included
  collections, young_collections, abandoned
  collected                            garbage that collections, not counts, freed
  freed, leaked, destroyed_twice       by the destructors that ran
  weak_alive                           weak references alive at the end
  peak_rss_kb                          of the whole process
  failed_checks

Exit status: 0 if all is well, 1 if a check failed, 2 if the input is bad.";

/// Replays the heap of a real program against the collector, and checks that nothing is lost.
///
/// Reads a V8 heap snapshot, builds its graph as typed objects from several threads, collects it
/// with all roots held, churns it under automatic collection, drops everything, and checks that
/// every destructor ran exactly once, that no weak reference is left alive, and that the heap is
/// empty.
#[derive(Parser)]
#[command(name = "replay", after_long_help = AFTER_HELP)]
struct Options {
    /// A .heapsnapshot file, plain or zstd-compressed
    file: PathBuf,
    /// Mutators that build and churn [default: one a core]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: Option<u16>,
    /// Operations of the mutation phase, a thread
    #[arg(long, value_name = "K", default_value_t = 50_000)]
    churn: u64,
    /// Full collections to measure with all roots held
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..))]
    collections: u16,
    /// Seed of the mutation phase; thread interleaving still differs from run to run
    #[arg(long, value_name = "SEED", default_value_t = 1)]
    seed: u64,
    /// Give each object as many bytes as its size says, up to 4096
    #[arg(long)]
    payload: bool,
    /// Print one line of JSON in place of the table
    #[arg(long)]
    json: bool,
}

fn main() -> ExitCode {
    let options = Options::parse();
    let bar = progress::bar("read", 0);
    let start = Instant::now();
    let snapshot = match file::read(&options.file, &bar) {
        Ok(snapshot) => snapshot,
        Err(bad) => {
            bar.finish_and_clear();
            eprintln!("{bad}");
            return ExitCode::from(2);
        }
    };
    let read_ms = ms(start.elapsed());
    bar.finish_and_clear();

    let report = replay(&options, &snapshot, read_ms);
    for failed in &report.failed_checks {
        eprintln!("check failed: {failed}");
    }
    let mut out = std::io::stdout().lock();
    let printed = if options.json {
        serde_json::to_writer(&mut out, &report).map_err(Into::into).and_then(|()| writeln!(out))
    } else {
        write!(out, "{report}")
    };
    match printed {
        Ok(()) if report.failed_checks.is_empty() => ExitCode::SUCCESS,
        // A reader that went away is no reason to say more, but the result did not arrive.
        _ => ExitCode::from(1),
    }
}

/// The checks that did not hold.
#[derive(Default)]
struct Checks(Vec<String>);

impl Checks {
    /// Records a failure unless `holds`.
    fn expect(&mut self, holds: bool, wrong: impl FnOnce() -> String) {
        if !holds {
            self.0.push(wrong());
        }
    }
}

/// All phases after the reading.
fn replay(options: &Options, snapshot: &Snapshot, read_ms: f64) -> Report {
    let threads = options.threads.map_or_else(cores, usize::from);
    let objects = snapshot.nodes().len();
    let reachable = snapshot.reachable();
    let mut checks = Checks::default();

    let heap = Heap::new();
    let listener = Pauses::listen(&heap);
    let ledger = Ledger::default();
    let page = ledger.page(objects);
    let mut mutator = heap.attach();
    let m = &mut mutator;

    let bar = progress::bar("build", 2 * objects as u64);
    let plan = build::Plan { snapshot, threads, payload: options.payload, page, bar: &bar };
    let start = Instant::now();
    let build::Built { roots, mut watched } = m.detach(|| build::build(&heap, &plan));
    let build_ns_per_object = start.elapsed().as_nanos() as f64 / objects as f64;
    bar.finish_and_clear();

    let bar = progress::bar("collect", 1 + u64::from(options.collections));
    let settled = m.collect();
    bar.inc(1);
    let tally = ledger.tally();
    checks.expect(settled.uncollectable == 0 && settled.abandoned.is_none(), || {
        format!("after the build, a full collection left garbage: {settled:?}")
    });
    checks.expect(tally.dead == objects - reachable, || {
        let (dead, unreachable) = (tally.dead, objects - reachable);
        format!("after the build, {dead} objects were freed, but {unreachable} are unreachable in the file")
    });
    let mut full = Vec::new();
    for _ in 0..options.collections {
        let report = m.collect();
        checks.expect(
            report.collected == 0 && report.unreachable == 0 && report.abandoned.is_none(),
            || format!("a collection with all roots held found garbage: {report:?}"),
        );
        full.push(pause(&report));
        bar.inc(1);
    }
    let dead = ledger.tally().dead;
    checks.expect(dead == tally.dead, || {
        format!("{} objects were freed with all roots held", dead - tally.dead)
    });
    bar.finish_and_clear();

    let bar = progress::bar("churn", options.churn.saturating_mul(threads as u64));
    let board = m.alloc(Board::new(4 * threads));
    let plan = churn::Plan {
        threads,
        operations: options.churn,
        seed: options.seed,
        roots: &roots,
        board: &board,
        ledger: &ledger,
        bar: &bar,
    };
    let churned = m.detach(|| churn::churn(&heap, &plan));
    bar.finish_and_clear();
    watched.extend(churned.watched);

    drop((roots, board));
    m.safepoint();
    m.collect();
    let tally = ledger.tally();
    let leaked = tally.born - tally.dead;
    let weak_alive = watched.iter().filter(|weak| weak.upgrade(m).is_some()).count();
    let live = heap.stats().live_objects;
    checks.expect(leaked == 0, || {
        let first = first_alive(page)
            .map(|node| format!(", first node {node} ({:?})", snapshot.name_of(node)));
        format!("{leaked} of {} objects were never freed{}", tally.born, first.unwrap_or_default())
    });
    checks.expect(tally.twice == 0, || {
        format!("{} objects were destroyed more than once", tally.twice)
    });
    checks.expect(weak_alive == 0, || {
        format!("{weak_alive} of {} weak references are still alive", watched.len())
    });
    checks.expect(live == 0, || format!("the heap still counts {live} objects"));

    let pauses = listener.so_far();
    let [full_pause_ms_min, full_pause_ms_median, full_pause_ms_max] = spread(full).map(ms);
    Report {
        heap: heap_name(&options.file),
        objects,
        edges: snapshot.edge_count(),
        reachable,
        threads,
        seed: options.seed,
        read_ms,
        build_ns_per_object,
        full_pause_ms_min,
        full_pause_ms_median,
        full_pause_ms_max,
        young_pause_ms_max: ms(pauses.young_pause_max),
        time_to_stop_us_max: pauses.time_to_stop_max.as_secs_f64() * 1e6,
        churn_operations: churned.operations,
        churn_ns_per_op: churned.busy.as_nanos() as f64 / churned.operations.max(1) as f64,
        collections: pauses.collections,
        young_collections: pauses.young_collections,
        abandoned: pauses.abandoned,
        collected: pauses.collected,
        freed: tally.dead,
        leaked,
        destroyed_twice: tally.twice,
        weak_alive,
        peak_rss_kb: peak_rss_kb(),
        failed_checks: checks.0,
    }
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, NonZero::get)
}

/// The name of the file up to its first dot: `sympy`.
fn heap_name(file: &Path) -> String {
    let name = file.file_name().unwrap_or(file.as_os_str()).to_string_lossy();
    let stem = name.split('.').find(|part| !part.is_empty());
    stem.unwrap_or(&name).to_string()
}
