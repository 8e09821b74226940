//! Ours: with nothing but the counts, and with the root named (`Heap::known_root`).

use std::any::Any;
use std::time::Duration;

use standstill::{Gc, GcCell, Heap, Mutator, Trace};

use crate::peer::{Can, Contestant, Peer};
use crate::tally::Tally;
use crate::task::{Task, Workload};
use crate::workloads;

/// As it comes: automatic collections, decided at safepoints.
pub const PLAIN: Contestant = Contestant {
    name: "standstill",
    rival: false,
    can: |_| Can::Many,
    run: workloads::shared::<Ours<false>>,
};

/// The pauses once more, with a hint.
pub const HINTED: Contestant = Contestant {
    name: "standstill-hint",
    rival: false,
    can: |workload| match workload {
        Workload::W4t | Workload::W4g => Can::Many,
        _ => Can::No,
    },
    run: workloads::solo::<Ours<true>>,
};

#[derive(Trace)]
pub struct Node {
    #[trace(skip)]
    tally: Tally,
    edges: GcCell<Vec<Gc<Node>>>,
}

pub struct Ours<const HINT: bool>;

impl<const HINT: bool> Peer for Ours<HINT> {
    type Shared = Heap;
    type Local<'a> = Mutator;
    type Node = Gc<Node>;

    fn shared(task: &Task) -> Heap {
        Heap::builder().workers(task.threads).build().expect("a heap")
    }

    fn attach(heap: &Heap) -> Mutator {
        heap.attach()
    }

    #[inline]
    fn alloc(m: &Mutator, tally: Tally) -> Gc<Node> {
        m.alloc(Node { tally, edges: GcCell::default() })
    }

    #[inline]
    fn link(m: &Mutator, from: &Gc<Node>, to: &Gc<Node>) {
        from.edges.lock(m).push(to.clone());
    }

    #[inline]
    fn unlink(m: &Mutator, from: &Gc<Node>) -> Option<Gc<Node>> {
        from.edges.lock(m).pop()
    }

    fn read(m: &Mutator, node: &Gc<Node>) -> u64 {
        node.edges.lock(m).iter().map(|to| u64::from(to.tally.id())).sum()
    }

    #[inline]
    fn safepoint(m: &mut Mutator) {
        m.safepoint();
    }

    fn collect(m: &mut Mutator) -> Option<Duration> {
        Some(m.collect().stops.iter().sum())
    }

    fn hint(m: &Mutator, root: &Gc<Node>) -> Option<Box<dyn Any>> {
        HINT.then(|| Box::new(m.heap().known_root(root.clone())) as Box<dyn Any>)
    }
}
