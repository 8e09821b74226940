//! A scheduler that switches threads rarely.
//!
//! Most faults of a protocol need a handful of switches at the right places, with long runs of one
//! thread in between. A scheduler that draws a thread at every step seldom makes such runs.

use shuttle::rand::RngCore;
use shuttle::scheduler::{DataSource, RandomDataSource, Schedule, Scheduler, Task, TaskId};

/// Average numbers of steps between two switches. Each schedule draws one.
const LENGTHS: [u64; 4] = [4, 16, 64, 256];

/// The scheduler: see the [module's page](self).
#[derive(Debug)]
pub(crate) struct Bursts {
    left: usize,
    length: u64,
    /// Random numbers for the program. A replay repeats them.
    data: RandomDataSource,
    /// Random numbers for the scheduler.
    choices: RandomDataSource,
}

impl Bursts {
    /// A scheduler that makes `schedules` schedules.
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
