//! W7: clone and drop a handle: to an object of the thread's own, to one that all threads share, or
//! to one that a thread made which has ended.

use std::hint::black_box;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use crate::peer::Peer;
use crate::tally::Tally;
use crate::task::{Measured, Task, cores, on_ready_threads, on_threads};

use super::{check_all_freed, drain};

pub(super) fn own<P: Peer>(task: &Task) -> Measured {
    let shared = P::shared(task);
    let wall = on_threads(task, |index| {
        let mut local = P::attach(&shared);
        let node = P::alloc(&local, Tally::new(index as u32));
        churn::<P>(&mut local, &node, task.n);
    });
    finish::<P>(&shared, Measured::new(wall, (task.n * task.threads) as u64, cores(task.threads)))
}

pub(super) fn hot<P: Peer>(task: &Task) -> Measured
where
    P::Node: Send + Sync,
{
    let shared = P::shared(task);
    let node = P::alloc(&P::attach(&shared), Tally::new(0));
    let wall = on_threads(task, |_| {
        let mut local = P::attach(&shared);
        churn::<P>(&mut local, &node, task.n);
    });
    {
        let _local = P::attach(&shared);
        drop(node);
    }
    finish::<P>(&shared, Measured::new(wall, (task.n * task.threads) as u64, cores(task.threads)))
}

/// Each thread has its own object, made by a thread that has ended. Before the time begins, all
/// threads use their objects, and a collection runs: a contestant may give the objects new owners.
pub(super) fn over<P: Peer>(task: &Task) -> Measured
where
    P::Node: Send + Sync,
{
    /// Objects between those that are used, so that no two threads write one cache line.
    const APART: usize = 8;
    let shared = P::shared(task);
    let nodes: Vec<P::Node> = std::thread::scope(|scope| {
        let maker = || {
            let local = P::attach(&shared);
            let node = |id| P::alloc(&local, Tally::new(id as u32));
            (0..task.threads * APART).map(node).collect()
        };
        scope.spawn(maker).join().expect("the maker")
    });
    let ready = AtomicUsize::new(0);
    let prepare = |index: usize| {
        let mut local = P::attach(&shared);
        churn::<P>(&mut local, &nodes[index * APART], 640);
        ready.fetch_add(1, Relaxed);
        // The first thread collects once all others are here; they wait for its end.
        let awaited = if index == 0 { task.threads } else { task.threads + 1 };
        while ready.load(Relaxed) < awaited {
            P::safepoint(&mut local);
            std::thread::yield_now();
        }
        if index == 0 {
            P::collect(&mut local);
            ready.fetch_add(1, Relaxed);
        }
        local
    };
    let wall = on_ready_threads(task, prepare, |index, mut local| {
        churn::<P>(&mut local, &nodes[index * APART], task.n);
    });
    {
        let _local = P::attach(&shared);
        drop(nodes);
    }
    finish::<P>(&shared, Measured::new(wall, (task.n * task.threads) as u64, cores(task.threads)))
}

fn churn<P: Peer>(local: &mut P::Local<'_>, node: &P::Node, n: usize) {
    for i in 0..n {
        drop(black_box(node.clone()));
        // A runtime polls at calls and back edges; a poll each time would measure the poll.
        if i % 64 == 63 {
            P::safepoint(local);
        }
    }
}

fn finish<P: Peer>(shared: &P::Shared, mut measured: Measured) -> Measured {
    drain::<P>(&mut P::attach(shared));
    check_all_freed::<P>(&mut measured);
    measured
}
