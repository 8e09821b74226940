//! Ours, with the edges of a node in a `GcVec` instead of a `Vec`: up to three lie in the node.

use std::time::Duration;

use standstill::{Gc, GcCell, GcVec, Heap, Mutator, Trace};

use crate::peer::{Can, Contestant, Peer};
use crate::tally::Tally;
use crate::task::Task;
use crate::workloads;

/// With automatic collections, as [`PLAIN`](super::standstill::PLAIN).
pub const INLINE: Contestant = Contestant {
    name: "standstill-gcvec",
    rival: false,
    can: |_| Can::Many,
    run: workloads::shared::<Inline<3>>,
};

#[derive(Trace)]
pub struct Node<const N: usize> {
    #[trace(skip)]
    tally: Tally,
    edges: GcCell<GcVec<Node<N>, N>>,
}

pub struct Inline<const N: usize>;

impl<const N: usize> Peer for Inline<N> {
    type Shared = Heap;
    type Local<'a> = Mutator;
    type Node = Gc<Node<N>>;

    fn shared(task: &Task) -> Heap {
        Heap::builder().workers(task.threads).build().expect("a heap")
    }

    fn attach(heap: &Heap) -> Mutator {
        heap.attach()
    }

    #[inline]
    fn alloc(m: &Mutator, tally: Tally) -> Gc<Node<N>> {
        m.alloc(Node { tally, edges: GcCell::default() })
    }

    #[inline]
    fn link(m: &Mutator, from: &Gc<Node<N>>, to: &Gc<Node<N>>) {
        from.edges.lock(m).push(m, to.clone());
    }

    #[inline]
    fn unlink(m: &Mutator, from: &Gc<Node<N>>) -> Option<Gc<Node<N>>> {
        from.edges.lock(m).pop()
    }

    fn read(m: &Mutator, node: &Gc<Node<N>>) -> u64 {
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
