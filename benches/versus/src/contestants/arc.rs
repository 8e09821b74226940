//! `std::sync::Arc` with a `Mutex`: the floor. It leaks cycles, so only workloads where that can be
//! borne.

use std::sync::{Arc as StdArc, Mutex};
use std::time::Duration;

use crate::peer::{Can, Contestant, Peer};
use crate::tally::Tally;
use crate::task::{Task, Workload};
use crate::workloads;

pub const ARC: Contestant = Contestant {
    name: "Arc",
    rival: false,
    can: |workload| match workload {
        Workload::W1 | Workload::W6 => Can::Many,
        Workload::W7hot | Workload::W7own | Workload::W7over => Can::Many,
        _ => Can::No,
    },
    run: workloads::shared::<Arc>,
};

pub struct Node {
    tally: Tally,
    edges: Mutex<Vec<StdArc<Node>>>,
}

pub struct Arc;

impl Peer for Arc {
    type Shared = ();
    type Local<'a> = ();
    type Node = StdArc<Node>;
    const LEAKS: bool = true;

    fn shared(_: &Task) {}

    fn attach((): &()) {}

    #[inline]
    fn alloc((): &(), tally: Tally) -> StdArc<Node> {
        StdArc::new(Node { tally, edges: Mutex::default() })
    }

    #[inline]
    fn link((): &(), from: &StdArc<Node>, to: &StdArc<Node>) {
        from.edges.lock().expect("edges").push(to.clone());
    }

    #[inline]
    fn unlink((): &(), from: &StdArc<Node>) -> Option<StdArc<Node>> {
        from.edges.lock().expect("edges").pop()
    }

    fn read((): &(), node: &StdArc<Node>) -> u64 {
        node.edges.lock().expect("edges").iter().map(|to| u64::from(to.tally.id())).sum()
    }

    fn collect((): &mut ()) -> Option<Duration> {
        None
    }
}
