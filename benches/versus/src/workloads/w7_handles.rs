//! W7: clone and drop a handle, to an object of the thread's own or to one that all threads share.

use std::hint::black_box;

use crate::peer::Peer;
use crate::tally::Tally;
use crate::task::{Measured, Task, cores, on_threads};

use super::{check_all_freed, drain};

pub(super) fn own<P: Peer>(task: &Task) -> Measured {
    let shared = P::shared(task);
    let wall = on_threads(task, |index| {
        let mut local = P::attach(&shared);
        let node = P::alloc(&local, Tally::new(index as u32));
        churn::<P>(&mut local, &node, task.n);
    });
    finish::<P>(&shared, Measured::new(wall, (task.n * task.threads) as u64, cores(task.threads)))
}

pub(super) fn hot<P: Peer>(task: &Task) -> Measured
where
    P::Node: Send + Sync,
{
    let shared = P::shared(task);
    let node = P::alloc(&P::attach(&shared), Tally::new(0));
    let wall = on_threads(task, |_| {
        let mut local = P::attach(&shared);
        churn::<P>(&mut local, &node, task.n);
    });
    {
        let _local = P::attach(&shared);
        drop(node);
    }
    finish::<P>(&shared, Measured::new(wall, (task.n * task.threads) as u64, cores(task.threads)))
}

fn churn<P: Peer>(local: &mut P::Local<'_>, node: &P::Node, n: usize) {
    for i in 0..n {
        drop(black_box(node.clone()));
        // A runtime polls at calls and back edges; a poll each time would measure the poll.
        if i % 64 == 63 {
            P::safepoint(local);
        }
    }
}

fn finish<P: Peer>(shared: &P::Shared, mut measured: Measured) -> Measured {
    drain::<P>(&mut P::attach(shared));
    check_all_freed::<P>(&mut measured);
    measured
}
