//! Whole programs under shuttle, which draws schedules at random: `ci/shuttle.sh`.
//!
//! What is too large for loom: several mutators and collectors on one real graph of objects, checked against the
//! graph as it is by definition.
//!
//! | file | its one idea |
//! |---|---|
//! | `shadow` | the oracle: who refers to whom, in plain maps under one lock |
//! | `graph` | the objects and references under test, which tell the oracle what they do |
//! | `programs` | what a thread may do, and the threads of one schedule |
//! | `oracle` | the tests: one mix of operations each |
//! | `dynamics` | dynamic objects, with an oracle of their own |
//! | `bursts` | a scheduler that switches threads rarely |
//!
//! # When one fails
//!
//! The schedule is written to a file, whose name is printed. `SHUTTLE_REPLAY=FILE ci/shuttle.sh NAME_OF_THE_TEST` runs it
//! again, step by step.
//!
//! # What this cannot see
//!
//! Every access is `SeqCst` here, so no weak ordering shows: that is loom's part. Nothing is exhaustive. Panics are left
//! to tests on real threads, since all of a model's threads unwind on the same one.

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

/// Switches of thread that one schedule may take: many times what any of them does, so that a program that never ends
/// fails.
const STEPS: usize = 5_000_000;
/// Bytes of a model thread's stack.
const STACK: usize = 256 << 10;

/// Runs `program` under `SHUTTLE_SCHEDULES` schedules (default 30) of each kind: a thread drawn anew at every step;
/// rare switches, at random; and PCT, which draws priorities and a few points at which they change.
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

/// The same choices make the same run: else a printed schedule would replay something else.
pub(crate) fn assert_repeatable(program: impl Fn() + Send + Sync + 'static) {
    run(UncontrolledNondeterminismCheckScheduler::new(RandomScheduler::new(10)), Arc::new(program));
}

/// A number below `n`, of shuttle's choice.
pub(crate) fn below(n: usize) -> usize {
    use shuttle::rand::{RngCore, thread_rng};
    (thread_rng().next_u64() % n as u64) as usize
}

pub(crate) fn one_in(n: usize) -> bool {
    below(n) == 0
}
