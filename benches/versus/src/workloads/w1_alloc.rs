//! W1: acyclic nodes, 64 alive a thread.

use crate::peer::Peer;
use crate::tally::{self, Tally};
use crate::task::{Measured, Task, cores, on_threads};

use super::{check_all_freed, drain};

pub(super) fn run<P: Peer>(task: &Task) -> Measured {
    let shared = P::shared(task);
    let wall = on_threads(task, |_| {
        let mut local = P::attach(&shared);
        let mut alive: [Option<P::Node>; 64] = [const { None }; 64];
        for i in 0..task.n {
            alive[i % 64] = Some(P::alloc(&local, Tally::new(i as u32)));
            if i % 64 == 63 {
                P::safepoint(&mut local);
            }
        }
    });
    let units = (task.n * task.threads) as u64;
    let mut measured = Measured::new(wall, units, cores(task.threads));
    // Objects that a tracing collector has not freed yet are not timed.
    drain::<P>(&mut P::attach(&shared));
    check_all_freed::<P>(&mut measured);
    measured.check(tally::births() == units, || "nodes are missing".into());
    measured
}
