//! A heap across `fork`: the child finds it whole, with one mutator.
#![cfg(not(loom))]

mod common;
#[path = "common/forked.rs"]
mod forked;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use standstill::{Gc, GcCell, Heap, Pacing, Trace};

use crate::common::child::is_alone;
use crate::forked::on_new_thread;

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
    first.next.set(m, Some(last));
    first
}

/// The meaning of the child's exit status.
fn child_says(pid: libc::pid_t) -> i32 {
    let mut status = 0;
    // SAFETY: `pid` is a child of this process.
    assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
    assert!(libc::WIFEXITED(status), "the child was killed: {status:#x}");
    libc::WEXITSTATUS(status)
}

#[test]
fn the_child_collects_what_other_threads_left_and_goes_on() {
    if !is_alone("the_child_collects_what_other_threads_left_and_goes_on") {
        return;
    }
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
    // Most likely the pool runs now, so that the child has threads to forget.
    m.collect();
    for _ in 0..5 {
        let fork = m.prepare_fork().expect("the world stops");
        // SAFETY: the world is stopped; the child uses this heap and then leaves without
        // destructors.
        let pid = unsafe { libc::fork() };
        assert!(pid >= 0, "fork failed");
        if pid == 0 {
            // SAFETY: a child that hangs is killed.
            unsafe { libc::alarm(20) };
            fork.child();
            let code = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                let mut m = m;
                assert_eq!(heap.stats().mutators, 1);
                m.verify().expect("a whole heap");
                m.collect();
                // The other threads' last rings are held by handles on stacks that do not exist any
                // more: they stay. Everything else of theirs is gone, and ours is whole.
                assert!(heap.stats().live_objects <= 5 + 2 * 6, "{:?}", heap.stats());
                let mut at = mine.clone();
                for _ in 0..5 {
                    at = at.next.get(&m).expect("a ring");
                }
                assert!(at == mine);
                drop((at, mine));
                drop(ring(&m, 100));
                assert_eq!(m.collect().collected, 105);
                let other = || {
                    let mut m = heap.attach();
                    drop(ring(&m, 7));
                    m.collect().collected
                };
                let collected = m.detach(|| on_new_thread(other));
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

/// The text of a panic.
fn text(payload: Box<dyn std::any::Any + Send>) -> String {
    payload
        .downcast_ref::<&str>()
        .map(|&text| text.to_owned())
        .or_else(|| payload.downcast().ok().map(|text| *text))
        .unwrap_or_default()
}

/// Stops the other threads, also when a test fails.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn the_process_that_prepared_a_fork_is_not_taken_for_its_child() {
    let heap = Heap::builder().pacing(Pacing::manual()).build().expect("a heap");
    let (stop, safepoints) = (AtomicBool::new(false), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        let other = scope.spawn(|| {
            let mut m = heap.attach();
            let kept = ring(&m, 3);
            while !stop.load(Ordering::Relaxed) {
                m.safepoint();
                safepoints.fetch_add(1, Ordering::Relaxed);
                drop(m.alloc(Node { next: GcCell::default() }));
            }
            drop(kept);
        });
        let over = Over(&stop);
        let mut m = heap.attach();
        m.detach(|| {
            while safepoints.load(Ordering::Relaxed) == 0 {
                std::thread::yield_now();
            }
        });
        for _ in 0..20 {
            let fork = m.prepare_fork().expect("the world stops");
            let refused =
                catch_unwind(AssertUnwindSafe(|| fork.child())).expect_err("there was no fork");
            assert!(text(refused).contains("in the process that prepared the fork"));
            assert_eq!(heap.stats().mutators, 2);
            m.collect();
            m.verify().expect("a whole heap");
        }
        // The other thread goes on as before.
        let so_far = safepoints.load(Ordering::Relaxed);
        m.detach(|| {
            while safepoints.load(Ordering::Relaxed) < so_far + 10 {
                std::thread::yield_now();
            }
        });
        drop(over);
        m.detach(|| other.join()).expect("the other thread saw nothing of it");
        m.collect();
    });
    assert_eq!(heap.stats().live_objects, 0);
}

#[test]
fn a_child_that_calls_parent_is_a_child_all_the_same() {
    if !is_alone("a_child_that_calls_parent_is_a_child_all_the_same") {
        return;
    }
    let heap = Heap::builder()
        .workers(2)
        .serial_below(0)
        .pacing(Pacing::manual())
        .build()
        .expect("a heap");
    let (stop, attached) = (AtomicBool::new(false), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut m = heap.attach();
            while !stop.load(Ordering::Relaxed) {
                drop(m.alloc(Node { next: GcCell::default() }));
                m.safepoint();
                attached.store(true, Ordering::Relaxed);
            }
        });
        let _over = Over(&stop);
        let mut m = heap.attach();
        m.detach(|| {
            while !attached.load(Ordering::Relaxed) {
                std::thread::yield_now();
            }
        });
        for drops in [false, true] {
            let fork = m.prepare_fork().expect("the world stops");
            // SAFETY: the world is stopped; the child uses this heap and then leaves without
            // destructors.
            let pid = unsafe { libc::fork() };
            assert!(pid >= 0, "fork failed");
            if drops {
                drop(fork)
            } else {
                fork.parent()
            }
            if pid == 0 {
                // SAFETY: a child that hangs is killed.
                unsafe { libc::alarm(20) };
                let alone = heap.stats().mutators == 1;
                drop(ring(&m, 7));
                let works =
                    m.collect().abandoned.is_none() && m.collect_young().abandoned.is_none();
                // SAFETY: no destructors, no output: this is a copy of a test process.
                unsafe { libc::_exit(i32::from(!(alone && works))) };
            }
            assert_eq!(m.detach(|| child_says(pid)), 0);
        }
    });
}
