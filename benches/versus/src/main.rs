//! standstill beside everything a Rust user could pick instead.
//!
//! One program is driver and worker. The driver starts itself once for each measurement, so that a
//! crash, a hang and the peak of memory belong to one measurement. The README describes the
//! measurements and how to read them.

mod contestants;
mod driver;
mod peer;
mod report;
mod shapes;
mod tally;
mod task;
mod worker;
mod workloads;

use std::path::PathBuf;
use std::time::Duration;

use clap::Parser;

use task::Workload;

/// Measures standstill beside its rivals; writes results.jsonl, table.md and charts.
#[derive(Debug, Parser)]
struct Args {
    /// Small sizes, one round: whether everything works, not how fast it is
    #[arg(long)]
    quick: bool,
    /// How often each measurement is made
    #[arg(long)]
    rounds: Option<usize>,
    /// Numbers of threads (W4, W5: of the collector's workers, at most 4 or the number of cores)
    #[arg(long, value_delimiter = ',', default_value = "1,2,4,16,64")]
    threads: Vec<usize>,
    /// These workloads; W4 and W7 stand for all of theirs
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    /// These contestants
    #[arg(long, value_delimiter = ',')]
    contestants: Vec<String>,
    /// Where the results go
    #[arg(long, default_value = "target/versus")]
    out: PathBuf,
    /// Seconds a measurement may take
    #[arg(long, default_value_t = 20)]
    limit: u64,
    /// Make the table and the charts anew from the results in the folder, and measure nothing
    #[arg(long)]
    report: bool,
    /// One measurement, in this process: workload, contestant, threads, n, MiB of stack (for the
    /// driver)
    #[arg(long, num_args = 5, hide = true)]
    measure: Option<Vec<String>>,
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args = Args::parse();
    if let Some(words) = &args.measure {
        return worker::measure(words);
    }
    if !args.report {
        let plan = driver::Plan {
            workloads: workloads(&args.only)?,
            contestants: contestants(&args.contestants)?,
            threads: args.threads.clone(),
            rounds: args.rounds.unwrap_or(if args.quick { 1 } else { 5 }),
            quick: args.quick,
            limit: Duration::from_secs(args.limit),
        };
        driver::run(&plan, &args.out)?;
    }
    report::write(&args.out)
}

fn workloads(words: &[String]) -> Result<Vec<Workload>, String> {
    for word in words {
        if !Workload::ALL.iter().any(|workload| format!("{workload:?}").starts_with(word)) {
            return Err(format!("no workload is called {word}"));
        }
    }
    let asked = |workload: &Workload| {
        words.is_empty() || words.iter().any(|word| format!("{workload:?}").starts_with(word))
    };
    Ok(Workload::ALL.iter().copied().filter(asked).collect())
}

fn contestants(words: &[String]) -> Result<Vec<&'static peer::Contestant>, String> {
    for word in words {
        if !contestants::ALL.iter().any(|contestant| contestant.name == word) {
            let names: Vec<_> = contestants::ALL.iter().map(|contestant| contestant.name).collect();
            return Err(format!("no contestant is called {word}; there are {}", names.join(", ")));
        }
    }
    let asked = |contestant: &&peer::Contestant| {
        words.is_empty() || words.iter().any(|word| contestant.name == word)
    };
    Ok(contestants::ALL.iter().filter(asked).collect())
}
