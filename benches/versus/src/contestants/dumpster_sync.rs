//! dumpster's `sync`: trial deletion over buffers of possible roots; collects by itself.

use std::sync::Mutex;
use std::time::Duration;

use dumpster::sync::{Gc, collect};
use dumpster::{Trace, TraceWith, Visitor};

use crate::peer::{Contestant, Peer};
use crate::tally::Tally;
use crate::task::Task;
use crate::workloads;

pub const DUMPSTER_SYNC: Contestant = Contestant {
    name: "dumpster-sync",
    rival: true,
    can: super::any_threads,
    run: workloads::shared::<Sync>,
};

// SAFETY: a tally holds no reference.
unsafe impl<V: Visitor> TraceWith<V> for Tally {
    fn accept(&self, _: &mut V) -> Result<(), ()> {
        Ok(())
    }
}

#[derive(Trace)]
pub struct Node {
    tally: Tally,
    edges: Mutex<Vec<Gc<Node>>>,
}

pub struct Sync;

impl Peer for Sync {
    type Shared = ();
    type Local<'a> = ();
    type Node = Gc<Node>;

    fn shared(_: &Task) {}

    fn attach((): &()) {}

    #[inline]
    fn alloc((): &(), tally: Tally) -> Gc<Node> {
        Gc::new(Node { tally, edges: Mutex::default() })
    }

    #[inline]
    fn link((): &(), from: &Gc<Node>, to: &Gc<Node>) {
        // Cloned outside of the lock, so that the contestant's counting is not serialised.
        let to = to.clone();
        from.edges.lock().expect("edges").push(to);
    }

    #[inline]
    fn unlink((): &(), from: &Gc<Node>) -> Option<Gc<Node>> {
        from.edges.lock().expect("edges").pop()
    }

    fn read((): &(), node: &Gc<Node>) -> u64 {
        node.edges.lock().expect("edges").iter().map(|to| u64::from(to.tally.id())).sum()
    }

    fn collect((): &mut ()) -> Option<Duration> {
        collect();
        None
    }
}
