//! One measurement, in a process of its own.

use clap::ValueEnum;
use pauses::machine;

use crate::contestants;
use crate::task::{Line, Task, Workload};

/// Measures and prints one line of JSON.
pub fn measure(words: &[String]) -> Result<(), Box<dyn std::error::Error>> {
    let [workload, contestant, threads, n, stack] = words else { return Err("five words".into()) };
    let mebibytes: usize = stack.parse()?;
    let task = Task {
        workload: Workload::from_str(workload, false)?,
        threads: threads.parse()?,
        n: n.parse()?,
        stack: mebibytes << 20,
    };
    let contestant = contestants::ALL
        .iter()
        .find(|known| known.name == contestant)
        .ok_or("no such contestant")?;
    // On a thread of its own, since the main thread's stack is the system's choice.
    let run = contestant.run;
    let measured = std::thread::Builder::new()
        .stack_size(task.stack)
        .spawn(move || run(&task))?
        .join()
        .map_err(|_| "panicked")?;
    let wall = measured.wall.as_nanos() as f64;
    let line = Line {
        workload: task.workload,
        contestant: contestant.name.to_owned(),
        threads: task.threads,
        n: task.n,
        round: 0,
        outcome: if measured.failed.is_empty() {
            "ok".to_owned()
        } else {
            format!("failed: {}", measured.failed.join("; "))
        },
        ns: Some(wall * measured.cores as f64 / measured.units as f64),
        wall_s: Some(wall / 1e9),
        overflowed: false,
        peak_rss_kib: machine::peak_memory().map(|bytes| bytes / 1024),
        facts: measured.facts,
    };
    println!("{}", serde_json::to_string(&line)?);
    Ok(())
}
