//! W2: rings of 2 to 8 nodes, made and dropped; then collections until all are freed, timed too.

use std::time::Instant;

use pauses::random::SplitMix;

use crate::peer::Peer;
use crate::tally::Tally;
use crate::task::{Measured, Task, cores, on_threads};

use super::{check_all_freed, drain};

pub(super) fn run<P: Peer>(task: &Task) -> Measured {
    let shared = P::shared(task);
    let wall = on_threads(task, |index| {
        let mut local = P::attach(&shared);
        let mut random = SplitMix::new(index as u64);
        let mut made = 0;
        while made < task.n {
            let ring = (2 + random.below(7)).min(task.n - made);
            let first = P::alloc(&local, Tally::new(made as u32));
            let mut last = first.clone();
            for i in 1..ring {
                let next = P::alloc(&local, Tally::new((made + i) as u32));
                P::link(&local, &last, &next);
                last = next;
            }
            P::link(&local, &last, &first);
            made += ring;
            drop((first, last));
            P::safepoint(&mut local);
        }
    });
    let begun = Instant::now();
    drain::<P>(&mut P::attach(&shared));
    let drained = begun.elapsed();
    let mut measured =
        Measured::new(wall + drained, (task.n * task.threads) as u64, cores(task.threads));
    measured.fact("drain_ns", drained.as_nanos() as f64);
    check_all_freed::<P>(&mut measured);
    measured
}
