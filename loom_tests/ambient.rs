//! The mutator that a heap keeps for a thread, beside the stops of another thread.
//!
//! # Transitions
//!
//! The page of `heap/ambient.rs` has the states.
//!
//! * enters, leaves, comes back, is dropped; the mutator ends:
//!   `a_guard_meets_a_collection`
//! * the last guard is dropped, and another one finds the mutator again:
//!   `a_thread_that_enters_again_meets_a_collection`

use std::sync::atomic::Ordering::Relaxed;

use loom::thread;

use super::model;
use super::tiny::{Mutator, Tiny, set, try_new};
use crate::model::ModelHeap;
use crate::object::address::Object;
use crate::{Collect, Heap, Pacing};

/// One thread collects, and another one runs `role` on an object that refers to a cycle, and that
/// it drops at the end.
fn race(role: fn(&ModelHeap<Tiny>, [Object; 2])) {
    model(move || {
        let heap = Heap::builder().pacing(Pacing::manual()).workers(1);
        let heap: ModelHeap<Tiny> = heap.build_with(Tiny::default()).unwrap();
        let mut m = heap.attach();
        let [holder, cycle] = [(); 2].map(|()| try_new(&m, false).unwrap());
        set(&m, cycle, Some(m.model().add_ref(cycle)));
        set(&m, holder, Some(cycle));
        let other = {
            let heap = heap.clone();
            thread::spawn(move || {
                role(&heap, [holder, cycle]);
                // loom destroys thread-locals that the end of a mutator needs before the slots.
                heap.enter().end_mutator();
            })
        };
        m.try_collect(Collect::full()).unwrap();
        m.detach(|| other.join().unwrap());
        m.try_collect(Collect::full()).unwrap();
        drop(m);
        assert_eq!(heap.model().destroyed.load(Relaxed), heap.model().born.load(Relaxed));
    });
}

fn assert_whole(m: &Mutator, object: Object) {
    assert!(!m.model().body(object, |body| body.cleared), "cleared while a thread holds it");
}

/// A thread takes the only edge to a cycle, carries it through a departure, and puts it back.
#[test]
fn loom_a_guard_meets_a_collection() {
    race(|heap, [holder, cycle]| {
        let attached = heap.enter();
        let taken = attached.with(|m| {
            let taken = set(m, holder, None);
            assert!(!attached.depart().has_left());
            taken
        });
        assert!(attached.depart().has_left());
        attached.safepoint();
        attached.with(|m| {
            assert_whole(m, cycle);
            set(m, holder, taken);
            m.model().drop_ref(holder, m);
        });
    });
}

/// The guard does not live for all of the time.
///
/// Mutation: a thread that enters again does not attach (`heap/ambient.rs`).
#[test]
fn loom_a_thread_that_enters_again_meets_a_collection() {
    race(|heap, [holder, cycle]| {
        let taken = heap.enter().with(|m| set(m, holder, None));
        heap.with(|m| {
            assert_whole(m, cycle);
            set(m, holder, taken);
            m.model().drop_ref(holder, m);
        });
    });
}
