//! How many instructions the hot paths take: `ci/instructions.sh`, or `cargo bench --bench
//! instructions`.
//!
//! Times on shared machines are noise, and instructions are not. Each row of [`workloads::ROWS`]
//! runs once under valgrind's callgrind, in a process of its own, which counts only inside
//! [`workloads::measured`]. The count, divided by the operations, is compared with `counts.tsv`
//! beside this file. A row that is worse by more than the tolerance is a failure. A better row is
//! reported, and should be stored: otherwise it could be lost again unnoticed.
//!
//! `-- --update` stores the counts; other words select rows. Where a row's instructions go is in
//! its profile, which is kept: `callgrind_annotate --inclusive=yes
//! target/tmp/instructions/THE-ROW`.

#![allow(missing_docs)]
#![cfg(not(loom))]

#[expect(dead_code, reason = "some are only timed")]
#[path = "../lists/lists.rs"]
mod lists;
mod workloads;

use std::collections::HashMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use workloads::{ROWS, Row, Workload};

const STORED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/benches/instructions/counts.tsv");
const PROFILES: &str = concat!(env!("CARGO_TARGET_TMPDIR"), "/instructions");

/// The tolerance of a row: a share of the stored count, or a number of instructions. The larger one
/// counts.
struct Tolerance {
    share: f64,
    instructions: f64,
}

/// For the compiler that the stored counts are from: they repeat to the digit, but inlining shifts
/// with the code around.
const STRICT: Tolerance = Tolerance { share: 0.05, instructions: 1.0 };
/// For other compilers.
const WIDE: Tolerance = Tolerance { share: 0.15, instructions: 3.0 };

/// The stored counts, and the compiler that they are from.
struct Stored {
    compiler: String,
    counts: HashMap<String, f64>,
}

impl Stored {
    fn load() -> Self {
        let text = std::fs::read_to_string(STORED).unwrap_or_default();
        let compiler = text
            .lines()
            .find_map(|line| line.strip_prefix("# compiler: "))
            .unwrap_or_default()
            .into();
        let counts = text.lines().filter_map(|line| {
            let (name, count) = line.split_once('\t')?;
            Some((name.to_owned(), count.parse().ok()?))
        });
        Self { compiler, counts: counts.collect() }
    }

    fn save(&self) {
        let mut text = String::from(
            "# Instructions of the hot paths, written by ci/instructions.sh --update.\n",
        );
        let _ = writeln!(text, "# compiler: {}", self.compiler);
        for row in ROWS {
            if let Some(count) = self.counts.get(row.name) {
                let _ = writeln!(text, "{}\t{count:.1}", row.name);
            }
        }
        // Those of other features.
        let is_other = |name: &&String| ROWS.iter().all(|row| row.name != **name);
        let mut others: Vec<&String> = self.counts.keys().filter(is_other).collect();
        others.sort_unstable();
        for name in others {
            let _ = writeln!(text, "{name}\t{:.1}", self.counts[name]);
        }
        std::fs::write(STORED, text).expect("the stored counts can be written");
    }
}

/// The compiler's version, and the machine that it compiles for, as the compiler prints them.
fn compiler() -> String {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let output = Command::new(rustc).arg("-vV").output().expect("rustc tells its version");
    let text = String::from_utf8_lossy(&output.stdout);
    let host = text.lines().find_map(|line| line.strip_prefix("host: ")).unwrap_or_default();
    format!("{}, {host}", text.lines().next().unwrap_or_default())
}

/// The machine that a compiler compiles for.
fn machine(compiler: &str) -> &str {
    compiler.rsplit(' ').next().unwrap_or_default()
}

/// Runs a workload under callgrind; returns the instructions it took, and its operations.
fn count(row: &Row, which: &str) -> (f64, f64) {
    let profile =
        PathBuf::from(PROFILES).join(format!("{}{which}", row.name.replace([' ', ','], "-")));
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--quiet", "--toggle-collect=standstill_measured"])
        .arg(format!("--callgrind-out-file={}", profile.display()))
        .arg(std::env::current_exe().expect("this program's path"))
        .args(["--run", row.name, which])
        .output()
        .expect("valgrind runs");
    assert!(output.status.success(), "{}: {}", row.name, String::from_utf8_lossy(&output.stderr));
    let operations =
        String::from_utf8_lossy(&output.stdout).trim().parse().expect("the operations");
    (total(&profile), operations)
}

/// All instructions of a profile.
fn total(profile: &Path) -> f64 {
    let text = std::fs::read_to_string(profile).expect("a profile");
    let total =
        text.lines().find_map(|line| line.strip_prefix("totals: ")?.parse().ok()).unwrap_or(0.0);
    assert!(
        total > 0.0,
        "{}: nothing was counted: is `standstill_measured` called?",
        profile.display()
    );
    total
}

/// Instructions for an operation of the row, to one decimal, as they are stored.
fn measure(row: &Row) -> f64 {
    let (instructions, operations) = count(row, "");
    let (fewer, less) = row.less.map_or((0.0, 0.0), |_| count(row, LESS));
    ((instructions - fewer) / (operations - less) * 10.0).round() / 10.0
}

const LESS: &str = "--less";

/// In the process under valgrind.
fn run(name: &str, which: Option<&str>) {
    let row = ROWS.iter().find(|row| row.name == name).expect("a row");
    let workload: Workload =
        if which == Some(LESS) { row.less.expect("a second workload") } else { row.work };
    println!("{}", workload());
}

/// Measures the requested rows, compares them with the stored ones, and replaces those. Returns the
/// numbers of worse, better and new rows.
fn table(names: &[String], stored: &mut Stored, tolerance: &Tolerance) -> [usize; 3] {
    let [mut worse, mut better, mut new] = [0; 3];
    println!("{:<52} {:>10} {:>10} {:>9}", "instructions", "stored", "seen", "change");
    for row in ROWS {
        if !names.is_empty() && !names.iter().any(|name| row.name.contains(name)) {
            continue;
        }
        let seen = measure(row);
        let Some(before) = stored.counts.insert(row.name.to_owned(), seen) else {
            new += 1;
            println!("{:<52} {:>10} {seen:>10.1} {:>9}  NEW", row.name, "", "");
            continue;
        };
        let allowed = f64::max(before * tolerance.share, tolerance.instructions);
        let verdict = if seen > before + allowed {
            worse += 1;
            "  WORSE"
        } else if seen < before - allowed {
            better += 1;
            "  better"
        } else {
            ""
        };
        let change = (seen / before - 1.0) * 100.0;
        println!("{:<52} {before:>10.1} {seen:>10.1} {change:>+8.1}%{verdict}", row.name);
    }
    [worse, better, new]
}

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if words.first().is_some_and(|word| word == "--run") {
        run(&words[1], words.get(2).map(String::as_str));
        return ExitCode::SUCCESS;
    }
    let (options, names): (Vec<_>, Vec<_>) =
        words.into_iter().partition(|word| word.starts_with('-'));
    if !options.iter().any(|option| option == "--bench") {
        println!("nothing is counted: this is no `cargo bench`, so nothing is optimised either");
        return ExitCode::SUCCESS;
    }
    let update = options.iter().any(|option| option == "--update");
    let (mut stored, compiler) = (Stored::load(), compiler());
    if !update && !stored.counts.is_empty() && machine(&compiler) != machine(&stored.compiler) {
        eprintln!(
            "!!!! SKIPPED: the stored counts are of {}, not of {compiler} !!!!",
            stored.compiler
        );
        return ExitCode::SUCCESS;
    }
    let tolerance = if compiler == stored.compiler { STRICT } else { WIDE };
    std::fs::create_dir_all(PROFILES).expect("a folder for the profiles");
    let [worse, better, new] = table(&names, &mut stored, &tolerance);
    if update {
        stored.compiler = compiler;
        stored.save();
        println!("stored in {STORED}");
        return ExitCode::SUCCESS;
    }
    let Tolerance { share, instructions } = tolerance;
    println!(
        "the tolerance is {:.0} %, or {instructions:.1} instructions where that is more",
        share * 100.0
    );
    if compiler != stored.compiler && !stored.compiler.is_empty() {
        println!(
            "that is wide: the stored counts are of {}, and this is {compiler}",
            stored.compiler
        );
    }
    if better > 0 {
        println!("{better} better: store that, or it can be lost again unnoticed (--update)");
    }
    if new > 0 {
        println!("{new} NEW: store them (--update)");
    }
    if worse > 0 {
        println!(
            "{worse} WORSE: callgrind_annotate --inclusive=yes {PROFILES}/THE-ROW says where they go"
        );
    }
    if worse + new > 0 { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}
