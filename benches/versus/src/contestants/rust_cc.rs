//! rust-cc: counting with trial deletion in lists, breadth first; collects by itself when it
//! allocates.

use std::cell::RefCell;
use std::time::Duration;

use rust_cc::{Cc, Finalize, Trace, collect_cycles};

use crate::peer::{Contestant, Peer};
use crate::tally::Tally;
use crate::task::Task;
use crate::workloads;

pub const RUST_CC: Contestant = Contestant {
    name: "rust-cc",
    rival: true,
    can: super::one_thread,
    run: workloads::solo::<RustCc>,
};

#[derive(Trace, Finalize)]
pub struct Node {
    #[rust_cc(ignore)]
    tally: Tally,
    edges: RefCell<Vec<Cc<Node>>>,
}

pub struct RustCc;

impl Peer for RustCc {
    type Shared = ();
    type Local<'a> = ();
    type Node = Cc<Node>;

    fn shared(_: &Task) {}

    fn attach((): &()) {}

    #[inline]
    fn alloc((): &(), tally: Tally) -> Cc<Node> {
        Cc::new(Node { tally, edges: RefCell::default() })
    }

    #[inline]
    fn link((): &(), from: &Cc<Node>, to: &Cc<Node>) {
        from.edges.borrow_mut().push(to.clone());
    }

    #[inline]
    fn unlink((): &(), from: &Cc<Node>) -> Option<Cc<Node>> {
        from.edges.borrow_mut().pop()
    }

    fn read((): &(), node: &Cc<Node>) -> u64 {
        node.edges.borrow().iter().map(|to| u64::from(to.tally.id())).sum()
    }

    fn collect((): &mut ()) -> Option<Duration> {
        collect_cycles();
        None
    }
}
