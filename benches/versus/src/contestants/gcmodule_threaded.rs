//! gcmodule's `ThreadedObjectSpace`: CPython's older algorithm, one lock for all.
//!
//! It has no trigger; see [`Trigger`](super::Trigger). Two threads that collect at once make it
//! crash, so one at a time may, by a lock of ours.

use std::sync::Mutex;
use std::time::Duration;

use gcmodule::{ThreadedCc, ThreadedObjectSpace, Trace, Tracer};

use super::Trigger;
use crate::peer::{Contestant, Peer};
use crate::tally::Tally;
use crate::task::Task;
use crate::workloads;

pub const GCMODULE_THREADED: Contestant = Contestant {
    name: "gcmodule-threaded",
    rival: true,
    can: super::any_threads,
    run: workloads::shared::<Threaded>,
};

pub struct Node {
    tally: Tally,
    edges: Mutex<Vec<ThreadedCc<Node>>>,
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
pub struct Space {
    objects: ThreadedObjectSpace,
    trigger: Mutex<Trigger>,
}

pub struct Local<'a> {
    space: &'a Space,
    polls: u32,
}

pub struct Threaded;

impl Peer for Threaded {
    type Shared = Space;
    type Local<'a> = Local<'a>;
    type Node = ThreadedCc<Node>;

    fn shared(_: &Task) -> Space {
        Space::default()
    }

    fn attach(space: &Space) -> Local<'_> {
        Local { space, polls: 0 }
    }

    #[inline]
    fn alloc(local: &Local<'_>, tally: Tally) -> ThreadedCc<Node> {
        local.space.objects.create(Node { tally, edges: Mutex::default() })
    }

    #[inline]
    fn link(_: &Local<'_>, from: &ThreadedCc<Node>, to: &ThreadedCc<Node>) {
        // `borrow` takes a lock that cloning and dropping take too: never inside of it.
        let to = to.clone();
        from.borrow().edges.lock().expect("edges").push(to);
    }

    #[inline]
    fn unlink(_: &Local<'_>, from: &ThreadedCc<Node>) -> Option<ThreadedCc<Node>> {
        from.borrow().edges.lock().expect("edges").pop()
    }

    fn read(_: &Local<'_>, node: &ThreadedCc<Node>) -> u64 {
        let edges = node.borrow().edges.lock().expect("edges").clone();
        edges.iter().map(|to| u64::from(to.borrow().tally.id())).sum()
    }

    #[inline]
    fn safepoint(local: &mut Local<'_>) {
        local.polls += 1;
        // The test for a due collection reads a counter of all threads, so it does not run each
        // time.
        if local.polls.is_multiple_of(256)
            && let Ok(mut trigger) = local.space.trigger.try_lock()
        {
            trigger.poll(|| local.space.objects.collect_cycles());
        }
    }

    fn collect(local: &mut Local<'_>) -> Option<Duration> {
        local.space.objects.collect_cycles();
        None
    }
}
