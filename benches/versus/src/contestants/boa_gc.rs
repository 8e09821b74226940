//! boa_gc: mark and sweep, roots found by counting handles; collects by itself when it allocates.

use std::time::Duration;

use boa_gc::{Finalize, Gc, GcRefCell, Trace, force_collect};

use crate::peer::{Contestant, Peer};
use crate::tally::Tally;
use crate::task::Task;
use crate::workloads;

pub const BOA_GC: Contestant =
    Contestant { name: "boa_gc", rival: true, can: super::one_thread, run: workloads::solo::<Boa> };

#[derive(Trace, Finalize)]
#[boa_gc(unsafe_no_drop)]
pub struct Node {
    #[unsafe_ignore_trace]
    tally: Tally,
    edges: GcRefCell<Vec<Gc<Node>>>,
}

pub struct Boa;

impl Peer for Boa {
    type Shared = ();
    type Local<'a> = ();
    type Node = Gc<Node>;

    fn shared(_: &Task) {}

    fn attach((): &()) {}

    #[inline]
    fn alloc((): &(), tally: Tally) -> Gc<Node> {
        Gc::new(Node { tally, edges: GcRefCell::new(Vec::new()) })
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
        force_collect();
        None
    }
}
