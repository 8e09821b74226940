//! Whole programs under shuttle, which draws schedules at random: `ci/shuttle.sh`.
//!
//! These programs are too large for loom: several mutators and collectors share one real graph of
//! objects. An oracle keeps the same graph in plain maps, and each test compares the two.
//!
//! | file | its one idea |
//! |---|---|
//! | `shadow` | the oracle: the references between objects, in plain maps under one lock |
//! | `graph` | the objects and references under test, which report each change to the oracle |
//! | `programs` | the operations of a thread, and the threads of one schedule |
//! | `oracle` | the tests: one mix of operations each |
//! | `dynamics` | dynamic objects, with an oracle of their own |
//! | `bursts` | a scheduler that switches threads rarely |
//!
//! # When one fails
//!
//! The test writes the schedule to a file and prints the file's name.
//! `SHUTTLE_REPLAY=FILE ci/shuttle.sh NAME_OF_THE_TEST` runs the schedule again, step by step.
//!
//! # Limits
//!
//! - Every access is `SeqCst` under shuttle. A fault in a weaker ordering shows only under loom.
//! - The schedules are a random sample.
//! - No program panics: shuttle runs all threads of a program on one real thread, so all of them
//!   would unwind there. Tests on real threads cover panics.

mod bursts;
mod dynamics;
mod graph;
mod oracle;
mod programs;
mod shadow;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use shuttle::scheduler::{
    PctScheduler, RandomScheduler, ReplayScheduler, Scheduler,
    UncontrolledNondeterminismCheckScheduler,
};
use shuttle::{Config, FailurePersistence, MaxSteps, Runner};

/// The most thread switches of one schedule. A program that exceeds the limit never ends, and
/// fails: every program here needs a small fraction of it.
const STEPS: usize = 5_000_000;
/// The stack of a model's thread, in bytes.
const STACK: usize = 256 << 10;

/// Runs `program` under `SHUTTLE_SCHEDULES` schedules (default 30) of each of three kinds: a random
/// thread at every step; rare random switches ([`bursts`]); and PCT, with random priorities and a
/// few random points at which the priorities change.
pub(crate) fn explore(name: &str, program: impl Fn() + Send + Sync + 'static) {
    let program = Arc::new(program);
    if let Ok(file) = std::env::var("SHUTTLE_REPLAY") {
        let scheduler = ReplayScheduler::new_from_file(&file).expect("a file with a schedule");
        run(scheduler, program);
        return;
    }
    let schedules = std::env::var("SHUTTLE_SCHEDULES").map_or(30, |n| n.parse().expect("a number"));
    let steps = Arc::new(AtomicUsize::new(0));
    let counted = {
        let steps = steps.clone();
        Arc::new(move || {
            program();
            steps.fetch_add(shuttle::current::context_switches(), Relaxed);
        })
    };
    run(RandomScheduler::new(schedules), counted.clone());
    run(bursts::Bursts::new(schedules), counted.clone());
    for depth in [2, 5] {
        run(PctScheduler::new(depth, schedules.div_ceil(2)), counted.clone());
    }
    let (ran, steps) = (2 * schedules + 2 * schedules.div_ceil(2), steps.load(Relaxed));
    eprintln!("{name}: {ran} schedules, {steps} steps");
}

fn run(scheduler: impl Scheduler + 'static, program: Arc<impl Fn() + Send + Sync + 'static>) {
    let mut config = Config::new();
    config.stack_size = STACK;
    config.max_steps = MaxSteps::FailAfter(STEPS);
    config.failure_persistence = FailurePersistence::File(Some(std::env::temp_dir()));
    config.silence_warnings = true;
    Runner::new(scheduler, config).run(move || program());
}

/// Checks that the same random choices make the same run. Replaying a schedule depends on this.
pub(crate) fn assert_repeatable(program: impl Fn() + Send + Sync + 'static) {
    let program = Arc::new(program);
    // The first schedule fills what a process makes once, so its steps differ from those of others.
    run(RandomScheduler::new(1), program.clone());
    run(UncontrolledNondeterminismCheckScheduler::new(RandomScheduler::new(10)), program);
}

/// A random number below `n`, drawn by shuttle so that a replay repeats it.
pub(crate) fn below(n: usize) -> usize {
    use shuttle::rand::{RngCore, thread_rng};
    (thread_rng().next_u64() % n as u64) as usize
}

pub(crate) fn one_in(n: usize) -> bool {
    below(n) == 0
}
