//! dumpster's `unsync`: trial deletion for one thread; collects by itself.

use std::cell::RefCell;
use std::time::Duration;

use dumpster::Trace;
use dumpster::unsync::{Gc, collect};

use crate::peer::{Contestant, Peer};
use crate::tally::Tally;
use crate::task::Task;
use crate::workloads;

pub const DUMPSTER_UNSYNC: Contestant = Contestant {
    name: "dumpster-unsync",
    rival: true,
    can: super::one_thread,
    run: workloads::solo::<Unsync>,
};

#[derive(Trace)]
pub struct Node {
    tally: Tally,
    edges: RefCell<Vec<Gc<Node>>>,
}

pub struct Unsync;

impl Peer for Unsync {
    type Shared = ();
    type Local<'a> = ();
    type Node = Gc<Node>;

    fn shared(_: &Task) {}

    fn attach((): &()) {}

    #[inline]
    fn alloc((): &(), tally: Tally) -> Gc<Node> {
        Gc::new(Node { tally, edges: RefCell::default() })
    }

    #[inline]
    fn link((): &(), from: &Gc<Node>, to: &Gc<Node>) {
        from.edges.borrow_mut().push(to.clone());
    }

    #[inline]
    fn unlink((): &(), from: &Gc<Node>) -> Option<Gc<Node>> {
        from.edges.borrow_mut().pop()
    }

    fn read((): &(), node: &Gc<Node>) -> u64 {
        node.edges.borrow().iter().map(|to| u64::from(to.tally.id())).sum()
    }

    fn collect((): &mut ()) -> Option<Duration> {
        collect();
        None
    }
}
