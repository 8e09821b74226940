//! A scheduler that lets a thread run on for a while: most protocols are lost in a handful of switches at the
//! right places, and a thread that is drawn anew at every step seldom comes from one such place to the next.

use shuttle::rand::RngCore;
use shuttle::scheduler::{DataSource, RandomDataSource, Schedule, Scheduler, Task, TaskId};

/// How many steps a thread runs on for, on average: drawn from these for each schedule.
const LENGTHS: [u64; 4] = [4, 16, 64, 256];

/// See the [file's page](self).
#[derive(Debug)]
pub(crate) struct Bursts {
    left: usize,
    length: u64,
    /// The program's choices, which a replay repeats.
    data: RandomDataSource,
    /// The scheduler's own.
    choices: RandomDataSource,
}

impl Bursts {
    /// A scheduler for so many schedules.
    pub(crate) fn new(schedules: usize) -> Self {
        let seed = std::env::var("SHUTTLE_RANDOM_SEED").map_or_else(
            |_| std::hash::BuildHasher::hash_one(&std::hash::RandomState::new(), 0),
            |seed| seed.parse().expect("a number"),
        );
        Self {
            left: schedules,
            length: 1,
            data: RandomDataSource::initialize(seed),
            choices: RandomDataSource::initialize(!seed),
        }
    }
}

impl Scheduler for Bursts {
    fn new_execution(&mut self) -> Option<Schedule> {
        self.left = self.left.checked_sub(1)?;
        self.choices.reinitialize();
        self.length = LENGTHS[(self.choices.next_u64() % LENGTHS.len() as u64) as usize];
        Some(Schedule::new(self.data.reinitialize()))
    }

    fn next_task(
        &mut self,
        runnable: &[&Task],
        current: Option<TaskId>,
        is_yielding: bool,
    ) -> Option<TaskId> {
        let goes_on = !is_yielding && !self.choices.next_u64().is_multiple_of(self.length);
        if goes_on && let Some(current) = runnable.iter().find(|task| Some(task.id()) == current) {
            return Some(current.id());
        }
        let chosen = self.choices.next_u64() % runnable.len() as u64;
        Some(runnable[chosen as usize].id())
    }

    fn next_u64(&mut self) -> u64 {
        self.data.next_u64()
    }
}
