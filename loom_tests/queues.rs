//! The merge queue of a mutator, where no safepoint and no collection empties it.
//!
//! The usual ways are in the models of [`managed`](super::managed), which have the same heap and
//! the same values.
//!
//! # Transitions
//!
//! * merged ahead of the others, by the owner: `an_owner_merges_early`
//! * the owner ends under a traversal guard, against a drop by another thread:
//!   `an_owner_ends_in_a_traversal_before_a_stranger_drops`
//! * the same, against a thread that attaches, and that destroys the objects:
//!   `an_owner_ends_in_a_traversal_while_a_thread_attaches`

use std::sync::atomic::Ordering::Relaxed;

use loom::thread;

use super::managed::{Value, world};
use super::model;
use crate::managed::merge_early;
use crate::{Gc, safepoint};

/// Another thread drops a reference that the owner counted. The owner takes the object out of its
/// queue, if it is there, and drops the last reference.
///
/// Mutation: the object leaves the queue and is not merged.
#[test]
fn loom_an_owner_merges_early() {
    model(|| {
        let (heap, mut m, object, destroyed) = world();
        let theirs = object.clone();
        let stranger = thread::spawn(move || {
            let _attached = heap.attach();
            theirs.touch();
            drop(theirs);
        });
        // SAFETY: rule *counted*: this thread has a reference.
        merge_early(m.raw(), unsafe { Gc::header(&object).as_ref() });
        object.touch();
        drop(object);
        m.detach(|| stranger.join().unwrap());
        m.safepoint();
        assert_eq!(destroyed.load(Relaxed), 1);
    });
}

/// The owner ends under a traversal guard, so it destroys nothing. Another thread drops a reference
/// that the owner counted. It finds the queue open or closed.
///
/// Mutation: the queue is closed, and its objects are not merged.
#[test]
fn loom_an_owner_ends_in_a_traversal_before_a_stranger_drops() {
    model(|| {
        let (heap, m, object, destroyed) = world();
        let theirs = object.clone();
        let h = heap.clone();
        let stranger = thread::spawn(move || {
            let _attached = h.attach();
            theirs.touch();
            drop(theirs);
        });
        drop(object);
        let traversal = safepoint::traversing();
        drop(m);
        drop(traversal);
        stranger.join().unwrap();
        drop(heap.attach());
        assert_eq!(destroyed.load(Relaxed), 1);
    });
}

/// The same with an object that is in the queue already, while a thread attaches. This thread
/// drains the deferred list, or gets a request.
///
/// Mutations: the attached threads are not asked; the store of the flag is not `SeqCst`.
#[test]
fn loom_an_owner_ends_in_a_traversal_while_a_thread_attaches() {
    model(|| {
        let (heap, m, object, destroyed) = world();
        drop(object);
        drop(m);
        destroyed.store(0, Relaxed);
        let (h, d) = (heap.clone(), destroyed.clone());
        let owner = thread::spawn(move || {
            let m = h.attach();
            let object = m.alloc(Value::new(&d));
            let theirs = object.clone();
            drop(object);
            let stranger = thread::spawn(move || {
                let _attached = h.attach();
                drop(theirs);
            });
            stranger.join().unwrap();
            let traversal = safepoint::traversing();
            drop(m);
            drop(traversal);
        });
        let mut m = heap.attach();
        owner.join().unwrap();
        m.safepoint();
        assert_eq!(destroyed.load(Relaxed), 1);
    });
}
