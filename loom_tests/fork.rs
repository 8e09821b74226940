//! The locks that a fork takes, against detached threads.
//!
//! No model forks. The child of a fork has one thread: the one that forked. It can go on if each
//! lock that it needs is open, or is held by the fork. So the models check, at the moment of the
//! fork, each lock that detached threads take: the fork holds it, or it is open. If another thread
//! held it, it would never be released in the child.
//!
//! # Transitions
//!
//! * prepared, forked, over, against a deferred drop: `a_fork_meets_a_deferred_drop`
//! * the same, against a reference retired from another heap:
//!   `a_fork_meets_a_slot_that_is_emptied_from_another_heap`
//! * the same, against a thread that attaches and ends: `a_fork_meets_a_birth_and_an_end`
//! * the same, by a thread that is detached, and waits for its turn without a record:
//!   `a_fork_of_a_detached_thread_meets_a_birth_a_collection_and_an_end`
//! * over, and the parked threads go on, against a deferred drop:
//!   `a_thread_parked_for_a_fork_meets_a_deferred_drop`

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use loom::thread;

use super::managed::world;
use super::model;
use crate::base::model_sync::watch_locks;
use crate::base::sync::{AtomicBool, Ordering};
use crate::{AtomicGc, Heap, Mutator, Pacing, Trace};

/// The parent's part of a fork.
fn fork(m: &mut Mutator) {
    let fork = m.prepare_fork().unwrap();
    assert!(fork.is_whole_for_child(), "the child waits for a thread that it does not have");
    fork.parent();
}

/// Mutation: the fork does not hold the deferred list.
#[test]
fn loom_a_fork_meets_a_deferred_drop() {
    model(|| {
        watch_locks(true);
        let (_heap, mut m, object, destroyed) = world();
        let dropper = thread::spawn(move || drop(object));
        fork(&mut m);
        m.detach(|| dropper.join().unwrap());
        assert_eq!(destroyed.load(Relaxed), 1);
    });
}

/// Mutations: the fork does not hold the deferred list; a retirement releases the deferred list
/// before it locks the list of retired references.
#[test]
fn loom_a_fork_meets_a_slot_that_is_emptied_from_another_heap() {
    model(|| {
        watch_locks(true);
        let (_heap, mut m, object, destroyed) = world();
        let slot = Arc::new(AtomicGc::from(object));
        let elsewhere = Heap::builder().pacing(Pacing::manual()).workers(1).build().unwrap();
        let emptier = thread::spawn(move || AtomicGc::clear(&slot, &elsewhere.attach()));
        fork(&mut m);
        m.detach(|| emptier.join().unwrap());
        m.safepoint();
        assert_eq!(destroyed.load(Relaxed), 1);
    });
}

/// Mutation: the fork does not hold the list of spare mutators.
#[test]
fn loom_a_fork_meets_a_birth_and_an_end() {
    model(|| {
        watch_locks(true);
        let (heap, mut m, object, destroyed) = world();
        let theirs = object.clone();
        let newborn = thread::spawn(move || {
            let _attached = heap.attach();
            theirs.touch();
            drop(theirs);
        });
        fork(&mut m);
        m.detach(|| newborn.join().unwrap());
        drop(object);
        m.safepoint();
        assert_eq!(destroyed.load(Relaxed), 1);
    });
}

/// Mutation: the fork does not hold the list of spare mutators.
#[test]
fn loom_a_fork_of_a_detached_thread_meets_a_birth_a_collection_and_an_end() {
    model(|| {
        watch_locks(true);
        let (heap, mut m, object, destroyed) = world();
        let heaps = [heap.clone()];
        let newborn = thread::spawn(move || {
            heap.attach().collect();
        });
        m.detach(|| {
            let fork = Heap::prepare_fork(&heaps).unwrap();
            assert!(
                fork.is_whole_for_child(),
                "the child waits for a thread that it does not have"
            );
            fork.parent();
            newborn.join().unwrap();
        });
        drop(object);
        m.safepoint();
        assert_eq!(destroyed.load(Relaxed), 1);
    });
}

/// A detached thread forks, and another one drops the last reference. If the only attached thread
/// is still parked for the fork, it gets no request. Then it looks for one when it goes on.
///
/// Mutations: a thread that was parked, at a safepoint or by `park`, does not look.
#[test]
fn loom_a_thread_parked_for_a_fork_meets_a_deferred_drop() {
    let ways: [fn(&mut Mutator); 2] = [Mutator::safepoint, |m| m.raw_mut().park()];
    for pass in ways {
        model(move || {
            let (heap, mut m, object, destroyed) = world();
            let over = Arc::new(AtomicBool::new(false));
            let o = Arc::clone(&over);
            let forker = thread::spawn(move || {
                Heap::prepare_fork(&[heap]).unwrap().parent();
                o.store(true, Ordering::Release);
            });
            let dropper = thread::spawn(move || drop(object));
            while !over.load(Ordering::Acquire) {
                pass(&mut m);
                thread::yield_now();
            }
            forker.join().unwrap();
            dropper.join().unwrap();
            m.safepoint();
            assert_eq!(destroyed.load(Relaxed), 1);
        });
    }
}
