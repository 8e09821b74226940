//! Ours, with `SharedGc` handles: the counts of an object that all threads use.

use std::time::Duration;

use standstill::{GcCell, Heap, Mutator, SharedGc, Trace};

use crate::peer::{Can, Contestant, Peer};
use crate::tally::Tally;
use crate::task::{Task, Workload};
use crate::workloads;

/// Only where all threads share one object.
pub const SHARED: Contestant = Contestant {
    name: "standstill-shared",
    rival: false,
    can: |workload| match workload {
        Workload::W7hot => Can::Many,
        _ => Can::No,
    },
    run: workloads::shared::<Shared>,
};

#[derive(Trace)]
pub struct Node {
    #[trace(skip)]
    tally: Tally,
    edges: GcCell<Vec<SharedGc<Node>>>,
}

pub struct Shared;

impl Peer for Shared {
    type Shared = Heap;
    type Local<'a> = Mutator;
    type Node = SharedGc<Node>;

    fn shared(task: &Task) -> Heap {
        Heap::builder().workers(task.threads).build().expect("a heap")
    }

    fn attach(heap: &Heap) -> Mutator {
        heap.attach()
    }

    #[inline]
    fn alloc(m: &Mutator, tally: Tally) -> SharedGc<Node> {
        m.alloc_shared(Node { tally, edges: GcCell::default() })
    }

    #[inline]
    fn link(m: &Mutator, from: &SharedGc<Node>, to: &SharedGc<Node>) {
        from.edges.lock(m).push(to.clone());
    }

    #[inline]
    fn unlink(m: &Mutator, from: &SharedGc<Node>) -> Option<SharedGc<Node>> {
        from.edges.lock(m).pop()
    }

    fn read(m: &Mutator, node: &SharedGc<Node>) -> u64 {
        node.edges.lock(m).iter().map(|to| u64::from(to.tally.id())).sum()
    }

    #[inline]
    fn safepoint(m: &mut Mutator) {
        m.safepoint();
    }

    fn collect(m: &mut Mutator) -> Option<Duration> {
        Some(m.collect().stops.iter().sum())
    }
}
