//! W4: full collections that free nothing: right after the build (first), with nothing done since
//! (idle), and after a walk that changed one node in a hundred (touched). The last is the figure.

use std::time::{Duration, Instant};

use crate::peer::Peer;
use crate::shapes;
use crate::tally::{self, Tally};
use crate::task::{Measured, Task};

use super::{check_all_freed, drain};

pub(super) fn run<P: Peer>(task: &Task) -> Measured {
    let shared = P::shared(task);
    let mut local = P::attach(&shared);
    let root = build::<P>(&local, task);
    let hint = P::hint(&local, &root);
    let (first, _) = timed::<P>(&mut local);
    let (idle, _) = timed::<P>(&mut local);
    touch::<P>(&local, &root, shapes::steps(task.n));
    let (touched, stopped) = timed::<P>(&mut local);

    // The time of one pause counts, with any number of cores at work in it. So `cores` is one.
    let mut measured = Measured::new(touched, task.n as u64, 1);
    measured.fact("first_ns", first.as_nanos() as f64);
    measured.fact("idle_ns", idle.as_nanos() as f64);
    if let Some(stopped) = stopped {
        measured.fact("stopped_ns", stopped.as_nanos() as f64);
    }
    measured.check(tally::deaths() == 0, || format!("{} live nodes were freed", tally::deaths()));
    P::read(&local, &root);
    drop(hint);
    drop(root);
    drain::<P>(&mut local);
    check_all_freed::<P>(&mut measured);
    measured
}

fn timed<P: Peer>(local: &mut P::Local<'_>) -> (Duration, Option<Duration>) {
    let begun = Instant::now();
    let stopped = P::collect(local);
    (begun.elapsed(), stopped)
}

/// The tree or the graph; only its root is held.
pub(super) fn build<P: Peer>(local: &P::Local<'_>, task: &Task) -> P::Node {
    let nodes: Vec<P::Node> =
        (0..task.n).map(|id| P::alloc(local, Tally::new(id as u32))).collect();
    shapes::edges(task.workload, task.n, |from, to| P::link(local, &nodes[from], &nodes[to]));
    nodes[0].clone()
}

/// A walk from the root. Each step takes all edges out of a node, puts them back with the last one
/// first, and follows this one. Another visit of the node follows another edge.
fn touch<P: Peer>(local: &P::Local<'_>, root: &P::Node, steps: usize) {
    let mut node = root.clone();
    for _ in 0..steps {
        let edges: Vec<P::Node> = std::iter::from_fn(|| P::unlink(local, &node)).collect();
        let (last, others) = edges.split_first().expect("each node has an edge");
        P::link(local, &node, last);
        others.iter().rev().for_each(|edge| P::link(local, &node, edge));
        node = last.clone();
    }
}
