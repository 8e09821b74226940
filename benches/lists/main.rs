//! What it costs to make and drop an interpreter's lists, beside a free list and malloc: `cargo
//! bench --bench lists` in `benches/pauses`.
//!
//! The processor time of the process counts, so that other programs matter less. All are measured
//! by turns, and the medians are shown.

#![allow(missing_docs)]

mod lists;

use std::time::Duration;

use lists::{Ambient, FreeList, Held, Lists, LookedUp, Malloc, Memory};
use pauses::{machine::describe, stats::spread};
use rustix::time::{ClockId, clock_gettime};
use standstill::{Heap, Pacing};

const TIMES: usize = 1_000_000;
const ROUNDS: usize = 31;

/// The names of the contestants, which are measured in this order.
const NAMES: [&str; 5] =
    ["free list", "malloc", "held mutator", "ambient guard", "`current_unlent` at each call"];
const WORK: [&str; 3] = ["one at a time", "100 alive", "lists of 10 lists"];

fn cpu_time() -> Duration {
    let now = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

/// The nanoseconds for a list, by workload.
fn measure(memory: &impl Memory) -> [f64; 3] {
    let time = |work: &dyn Fn()| {
        let begun = cpu_time();
        work();
        (cpu_time() - begun).as_secs_f64() * 1e9 / TIMES as f64
    };
    [
        time(&|| lists::one(memory, TIMES)),
        time(&|| lists::window(memory, TIMES)),
        time(&|| lists::nested(memory, TIMES)),
    ]
}

fn main() {
    let heap = Heap::builder().pacing(Pacing::manual()).build_with(Lists).expect("a heap");
    let mut rounds = Vec::new();
    for _ in 0..ROUNDS {
        let [free_list, malloc] = [measure(&FreeList), measure(&Malloc)];
        // Each round attaches twice, because a thread that is attached lends its mutator to guards.
        let m = heap.attach();
        let [held, looked_up] = [measure(&Held(&m)), measure(&LookedUp)];
        drop(m);
        let ambient = measure(&Ambient(&heap.enter()));
        rounds.push([free_list, malloc, held, ambient, looked_up]);
    }
    assert_eq!(heap.stats().live_objects, 0);

    println!(
        "{}\n\nns a list, medians of {ROUNDS}, and the free list's time by theirs\n",
        describe()
    );
    println!("| | {} |\n|---|---|---|---|", WORK.join(" | "));
    for (at, name) in NAMES.iter().enumerate() {
        let median = |work: usize, of: usize| {
            let times: Vec<f64> = rounds.iter().map(|round| round[of][work]).collect();
            spread(&times).expect("rounds").median
        };
        let cell =
            |work| format!("{:.1}, {:.2}", median(work, at), median(work, 0) / median(work, at));
        println!("| {name} | {} |", [0, 1, 2].map(cell).join(" | "));
    }
}
