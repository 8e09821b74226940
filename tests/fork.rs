//! A heap across `fork`: the child finds it whole, with one mutator.
#![cfg(not(loom))]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use standstill::{Gc, GcCell, Heap, Pacing, Trace};

#[derive(Trace)]
struct Node {
    next: GcCell<Option<Gc<Node>>>,
}

fn ring(m: &standstill::Mutator, n: usize) -> Gc<Node> {
    let first = m.alloc(Node { next: GcCell::default() });
    let mut last = first.clone();
    for _ in 1..n {
        last = m.alloc(Node { next: GcCell::new(Some(last)) });
    }
    first.get(m).next.set(m, Some(last));
    first
}

/// What the child says with its exit status.
fn child_says(pid: libc::pid_t) -> i32 {
    let mut status = 0;
    // SAFETY: `pid` is a child of this process.
    assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
    assert!(libc::WIFEXITED(status), "the child was killed: {status:#x}");
    libc::WEXITSTATUS(status)
}

#[test]
fn the_child_collects_what_other_threads_left_and_goes_on() {
    let heap = Heap::builder()
        .workers(2)
        .serial_below(0)
        .pacing(Pacing::default().with_young_objects(500))
        .build()
        .expect("a heap");
    let stop = Arc::new(AtomicBool::new(false));
    let others: Vec<_> = (0..2)
        .map(|_| {
            let (heap, stop) = (heap.clone(), Arc::clone(&stop));
            std::thread::spawn(move || {
                let mut m = heap.attach();
                let mut kept = ring(&m, 3);
                while !stop.load(Ordering::Relaxed) {
                    kept = ring(&m, 3);
                    m.safepoint();
                }
                drop(kept);
            })
        })
        .collect();
    let mut m = heap.attach();
    let mine = ring(&m, 5);
    // The pool has run once, so that the child has threads to forget.
    m.collect();
    for _ in 0..5 {
        let fork = m.prepare_fork().expect("the world stops");
        // SAFETY: the world is stopped; the child uses this heap and then leaves without destructors.
        let pid = unsafe { libc::fork() };
        assert!(pid >= 0, "fork failed");
        if pid == 0 {
            fork.child();
            let code = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                let mut m = m;
                assert_eq!(heap.stats().mutators, 1);
                m.verify().expect("a whole heap");
                m.collect();
                // The other threads' last rings are held by handles on stacks that do not exist any more: they
                // stay. Everything else of theirs is gone, and ours is whole.
                assert!(heap.stats().live_objects <= 5 + 2 * 6, "{:?}", heap.stats());
                let mut at = mine.clone();
                for _ in 0..5 {
                    at = at.get(&m).next.get(&m).expect("a ring");
                }
                assert!(Gc::ptr_eq(&at, &mine));
                drop((at, mine));
                drop(ring(&m, 100));
                assert_eq!(m.collect().collected, 105);
                let other = std::thread::spawn(move || {
                    let mut m = heap.attach();
                    drop(ring(&m, 7));
                    m.collect().collected
                });
                let collected = m.detach(|| other.join().expect("a thread of the child"));
                assert_eq!(collected, 7);
                std::mem::forget(m);
            }));
            // SAFETY: no destructors, no output: this is a copy of a test process.
            unsafe { libc::_exit(i32::from(code.is_err())) };
        }
        fork.parent();
        assert_eq!(m.detach(|| child_says(pid)), 0);
    }
    stop.store(true, Ordering::Relaxed);
    m.detach(|| others.into_iter().for_each(|t| t.join().expect("a thread")));
    drop(mine);
    m.collect();
    assert_eq!(heap.stats().live_objects, 0);
}
