//! gc: mark and sweep with counted roots; collects by itself when it allocates.

// The derive writes its impls where a newer compiler does not want them.
#![allow(non_local_definitions)]

use std::time::Duration;

use gc::{Finalize, Gc as Handle, GcCell, Trace, force_collect};

use crate::peer::{Contestant, Peer};
use crate::tally::Tally;
use crate::task::Task;
use crate::workloads;

pub const GC: Contestant =
    Contestant { name: "gc", rival: true, can: super::one_thread, run: workloads::solo::<Gc> };

#[derive(Trace, Finalize)]
pub struct Node {
    #[unsafe_ignore_trace]
    tally: Tally,
    edges: GcCell<Vec<Handle<Node>>>,
}

pub struct Gc;

impl Peer for Gc {
    type Shared = ();
    type Local<'a> = ();
    type Node = Handle<Node>;

    fn shared(_: &Task) {}

    fn attach((): &()) {}

    #[inline]
    fn alloc((): &(), tally: Tally) -> Handle<Node> {
        Handle::new(Node { tally, edges: GcCell::new(Vec::new()) })
    }

    #[inline]
    fn link((): &(), from: &Handle<Node>, to: &Handle<Node>) {
        from.edges.borrow_mut().push(to.clone());
    }

    #[inline]
    fn unlink((): &(), from: &Handle<Node>) -> Option<Handle<Node>> {
        from.edges.borrow_mut().pop()
    }

    fn read((): &(), node: &Handle<Node>) -> u64 {
        node.edges.borrow().iter().map(|to| u64::from(to.tally.id())).sum()
    }

    fn collect((): &mut ()) -> Option<Duration> {
        force_collect();
        None
    }
}
