//! The workloads, written once over [`Peer`](crate::peer::Peer): one file each.

mod w1_alloc;
mod w2_churn;
mod w3_gcbench;
mod w4_pause;
mod w5_garbage;
mod w6_shared;
mod w7_handles;

use std::time::Duration;

use crate::peer::Peer;
use crate::tally;
use crate::task::{Measured, Task, Workload};

/// The workloads for which a node never leaves its thread.
pub fn solo<P: Peer>(task: &Task) -> Measured {
    match task.workload {
        Workload::W1 => w1_alloc::run::<P>(task),
        Workload::W2 => w2_churn::run::<P>(task),
        Workload::W3 => w3_gcbench::run::<P>(task),
        Workload::W5 => w5_garbage::run::<P>(task),
        Workload::W7own => w7_handles::own::<P>(task),
        workload if workload.is_pause() => w4_pause::run::<P>(task),
        _ => unreachable!("needs `shared`"),
    }
}

/// All workloads.
pub fn shared<P: Peer>(task: &Task) -> Measured
where
    P::Node: Send + Sync,
{
    match task.workload {
        Workload::W6 => w6_shared::run::<P>(task),
        Workload::W7hot => w7_handles::hot::<P>(task),
        Workload::W7over => w7_handles::over::<P>(task),
        _ => solo::<P>(task),
    }
}

/// Collects until every node is dead, or until it is plain that some never will be; the time for
/// which others were stopped.
fn drain<P: Peer>(local: &mut P::Local<'_>) -> Option<Duration> {
    let mut stopped = None;
    for _ in 0..16 {
        if tally::alive() == 0 {
            break;
        }
        if let Some(more) = P::collect(local) {
            *stopped.get_or_insert(Duration::ZERO) += more;
        }
    }
    stopped
}

/// The check at the end of every workload.
fn check_all_freed<P: Peer>(measured: &mut Measured) {
    let alive = tally::alive();
    if P::LEAKS {
        measured.fact("leaked_nodes", alive as f64);
    } else {
        measured
            .check(alive == 0, || format!("{alive} of {} nodes were never freed", tally::births()));
    }
}
