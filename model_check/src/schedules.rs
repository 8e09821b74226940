//! The programs on several threads under schedules that shuttle draws, in builds with
//! `--cfg standstill_shuttle`.
//!
//! Real threads meet a wrong schedule rarely. Here all threads of a program take turns on one
//! thread of the system. A random generator decides at each lock and at each access of an atomic,
//! of the library and of the model, which of them goes on. So the seed repeats a failure, if the
//! model itself decides nothing by time or by addresses.

#![forbid(unsafe_code)]

use std::mem;
use std::sync::Arc;

use parking_lot::Mutex;
use shuttle::scheduler::{PctScheduler, RandomScheduler, Scheduler};
use shuttle::{Config, FailurePersistence, MaxSteps, Runner};

use crate::broken::{CheckReport, Rule, finding, guarded};
use crate::run::Failure;
use crate::specimen::Specimen;
use crate::threads;

/// Switches between threads after which a program counts as one that never ends. A program needs a
/// hundredth of it.
const STEPS: usize = 5_000_000;
/// The stack of a thread, in bytes.
const STACK: usize = 256 << 10;
/// Of the schedules with priorities: the points at which the priorities change.
const CHANGES: usize = 3;

/// What the schedules of one program have found.
#[derive(Default)]
struct Found {
    begun: usize,
    report: CheckReport,
    failure: Option<Box<Failure>>,
}

/// Runs one program under `schedules` schedules that switch threads at every step, and half as many
/// in which the thread with the highest priority runs alone until it waits.
pub(crate) fn run_threads<M: Specimen>(
    threads: usize,
    seed: u64,
    schedules: usize,
) -> Result<CheckReport, Box<Failure>> {
    let found = Arc::new(Mutex::new(Found::default()));
    run::<M>(RandomScheduler::new_from_seed(seed, schedules), threads, seed, &found)?;
    let fewer = schedules.div_ceil(2);
    run::<M>(PctScheduler::new_from_seed(seed, CHANGES, fewer), threads, seed, &found)?;
    Ok(mem::take(&mut found.lock().report))
}

fn run<M: Specimen>(
    scheduler: impl Scheduler + 'static,
    threads: usize,
    seed: u64,
    found: &Arc<Mutex<Found>>,
) -> Result<(), Box<Failure>> {
    let mut config = Config::new();
    config.stack_size = STACK;
    config.max_steps = MaxSteps::FailAfter(STEPS);
    config.failure_persistence = FailurePersistence::None;
    config.silence_warnings = true;
    let program = {
        let found = Arc::clone(found);
        move || {
            {
                let mut found = found.lock();
                // No code of the model runs after a finding.
                if found.failure.is_some() {
                    return;
                }
                found.begun += 1;
            }
            let result = threads::run_threads::<M>(threads, seed);
            let mut found = found.lock();
            match result {
                Ok(report) => found.report.add(&report),
                Err(failure) => found.failure = Some(failure),
            }
        }
    };
    // A deadlock, or a program without an end, is a panic of the scheduler.
    let ended = guarded(|| Runner::new(scheduler, config).run(program));
    let mut found = found.lock();
    let begun = found.begun;
    let failure = match (found.failure.take(), ended) {
        (Some(failure), _) => failure,
        (None, Err(text)) => {
            let log = vec![threads::text(threads)];
            let is_endless = ["deadlock!", "exceeded max_steps"].iter().any(|it| text.contains(it));
            let rule = if is_endless { Rule::Ends } else { Rule::Panics };
            let found = finding::<()>(rule, "a thread", None, text).expect_err("a finding");
            Failure::new(found, None, log)
        }
        (None, Ok(_)) => return Ok(()),
    };
    Err(failure.under(format!("under schedule {begun} of this seed")))
}
