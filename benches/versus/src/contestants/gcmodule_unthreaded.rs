//! gcmodule's `Cc`: CPython's older algorithm for one thread. It has no trigger; see
//! [`Trigger`](super::Trigger).

use std::cell::RefCell;
use std::time::Duration;

use gcmodule::{Cc, Trace, Tracer, collect_thread_cycles};

use super::Trigger;
use crate::peer::{Contestant, Peer};
use crate::tally::Tally;
use crate::task::Task;
use crate::workloads;

pub const GCMODULE: Contestant = Contestant {
    name: "gcmodule",
    rival: true,
    can: super::one_thread,
    run: workloads::solo::<Unthreaded>,
};

pub struct Node {
    tally: Tally,
    edges: RefCell<Vec<Cc<Node>>>,
}

// By hand: the derived one recurses without end over a type that refers to itself.
impl Trace for Node {
    fn trace(&self, tracer: &mut Tracer<'_>) {
        self.edges.trace(tracer);
    }

    fn is_type_tracked() -> bool {
        true
    }
}

#[derive(Default)]
pub struct Local {
    trigger: Trigger,
    polls: u32,
}

pub struct Unthreaded;

impl Peer for Unthreaded {
    type Shared = ();
    type Local<'a> = Local;
    type Node = Cc<Node>;

    fn shared(_: &Task) {}

    fn attach((): &()) -> Local {
        Local::default()
    }

    #[inline]
    fn alloc(_: &Local, tally: Tally) -> Cc<Node> {
        Cc::new(Node { tally, edges: RefCell::default() })
    }

    #[inline]
    fn link(_: &Local, from: &Cc<Node>, to: &Cc<Node>) {
        from.edges.borrow_mut().push(to.clone());
    }

    #[inline]
    fn unlink(_: &Local, from: &Cc<Node>) -> Option<Cc<Node>> {
        from.edges.borrow_mut().pop()
    }

    fn read(_: &Local, node: &Cc<Node>) -> u64 {
        node.edges.borrow().iter().map(|to| u64::from(to.tally.id())).sum()
    }

    #[inline]
    fn safepoint(local: &mut Local) {
        local.polls += 1;
        if local.polls.is_multiple_of(256) {
            local.trigger.poll(collect_thread_cycles);
        }
    }

    fn collect(_: &mut Local) -> Option<Duration> {
        collect_thread_cycles();
        None
    }
}
