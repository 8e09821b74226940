//! W5: the random graph, dropped at once: from dropping the root to the last destructor.

use std::time::Instant;

use crate::peer::Peer;
use crate::task::{Measured, Task};

use super::{check_all_freed, drain, w4_pause};

pub(super) fn run<P: Peer>(task: &Task) -> Measured {
    let shared = P::shared(task);
    let mut local = P::attach(&shared);
    let root = w4_pause::build::<P>(&local, task);
    let begun = Instant::now();
    drop(root);
    let stopped = drain::<P>(&mut local);
    let mut measured = Measured::new(begun.elapsed(), task.n as u64, 1);
    if let Some(stopped) = stopped {
        measured.fact("stopped_ns", stopped.as_nanos() as f64);
    }
    check_all_freed::<P>(&mut measured);
    measured
}
