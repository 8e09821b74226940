//! Mutators inherit the objects that they use and whose owner has ended.

#![cfg(all(feature = "derive", not(any(loom, shuttle))))]

mod common;

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread;

use common::*;
use standstill::{Gc, GcCell, GcWeak, Heap, Mutator, SharedGc, Trace};

#[derive(Trace)]
struct Node {
    next: GcCell<Option<Gc<Node>>>,
    #[trace(skip)]
    witness: Witness,
}

fn node(lab: &Lab, m: &Mutator) -> Gc<Node> {
    let witness = Witness::new(&lab.census, 0);
    m.alloc(Node { next: GcCell::default(), witness })
}

/// A chain of objects, of a thread that ends.
fn chain(lab: &Lab, length: usize) -> Vec<Gc<Node>> {
    on_thread(&lab.heap, |m| {
        let nodes: Vec<_> = (0..length).map(|_| node(lab, m)).collect();
        for pair in nodes.windows(2) {
            pair[0].next.set(m, Some(pair[1].clone()));
        }
        nodes
    })
}

/// Runs `f` on a thread that is attached to the heap.
fn on_thread<R: Send>(heap: &Heap, f: impl FnOnce(&mut Mutator) -> R + Send) -> R {
    thread::scope(|scope| scope.spawn(|| f(&mut heap.attach())).join().expect("no panic"))
}

fn check(nodes: &[Gc<Node>]) {
    nodes.iter().for_each(|node| node.witness.check());
}

#[test]
fn one_mutator_after_another_owns_an_object() {
    on_every_heap(|lab| {
        let mut nodes = chain(lab, 100);
        for round in 0..10 {
            nodes = on_thread(&lab.heap, |m| {
                let clones: Vec<_> = nodes.to_vec();
                // The old or the new handles remain: their number counts, not which ones they are.
                let kept = if round % 2 == 0 {
                    drop(nodes);
                    clones
                } else {
                    drop(clones);
                    nodes
                };
                check(&kept);
                for (at, node) in kept.iter().enumerate() {
                    let expected = if at == 0 { 1 } else { 2 };
                    assert_eq!(Gc::strong_count(node), expected, "object {at}");
                }
                if round % 3 == 0 {
                    m.collect();
                }
                kept
            });
        }
        on_thread(&lab.heap, |_| nodes.truncate(1));
        assert_eq!(lab.census.alive(), 100);
        on_thread(&lab.heap, |_| nodes.clear());
        assert_eq!(lab.census.alive(), 0, "no thread is left that could have an object queued");
    });
}

/// Several threads use the same objects, in different orders, and end at different times. A
/// collector, weak references and unattached threads come between.
#[test]
fn many_threads_inherit_the_same_objects_and_each_dies_once() {
    const THREADS: usize = 4;
    on_every_heap(|lab| {
        let heap = &lab.heap;
        for round in 0..5 {
            let nodes = chain(lab, 60);
            let (start, over) = (&Barrier::new(THREADS + 1), &AtomicBool::new(false));
            thread::scope(|scope| {
                let workers: Vec<_> = (0..THREADS)
                    .map(|me| {
                        let mut own = nodes.clone();
                        scope.spawn(move || {
                            start.wait();
                            for life in 0..3 {
                                let mut m = heap.attach();
                                let weak: Vec<GcWeak<Node>> =
                                    own.iter().map(|node| Gc::downgrade(node, &m)).collect();
                                for (step, weak) in weak.iter().enumerate() {
                                    let at = (step * (2 * me + 1) + life) % own.len();
                                    let clone = own[at].clone();
                                    own.push(clone);
                                    own.swap_remove(at);
                                    drop(weak.upgrade(&m).expect("a handle exists"));
                                    if step % 16 == me {
                                        m.safepoint();
                                    }
                                }
                                if life == me % 3 {
                                    own.truncate(own.len() / 2);
                                }
                                check(&own);
                                m.detach(|| own.extend_from_within(..1));
                            }
                            // Some handles are dropped by a thread that is not attached.
                            if me % 2 == 0 {
                                let _attached = heap.attach();
                                drop(own);
                            } else {
                                drop(own);
                            }
                        })
                    })
                    .collect();
                let collector = scope.spawn(move || {
                    let mut m = heap.attach();
                    while !over.load(SeqCst) {
                        m.collect();
                        m.safepoint();
                        thread::yield_now();
                    }
                });
                start.wait();
                workers.into_iter().for_each(|worker| worker.join().expect("no panic"));
                over.store(true, SeqCst);
                collector.join().expect("no panic");
            });
            on_thread(heap, |m| {
                check(&nodes);
                for (at, node) in nodes.iter().enumerate() {
                    let expected = if at == 0 { 1 } else { 2 };
                    assert_eq!(Gc::strong_count(node), expected, "round {round}, object {at}");
                }
                drop(nodes);
                m.verify().expect("a sound heap");
            });
            assert_eq!(lab.census.alive(), 0, "round {round}");
        }
    });
}

/// An owner ends while other threads drop references that it has counted.
#[test]
fn an_owner_ends_while_its_objects_are_dropped() {
    on_every_heap(|lab| {
        let heap = &lab.heap;
        for _ in 0..50 {
            let gate = &Barrier::new(3);
            thread::scope(|scope| {
                let m = heap.attach();
                let nodes: Vec<_> = (0..20).map(|_| node(lab, &m)).collect();
                for _ in 0..2 {
                    let theirs = nodes.clone();
                    scope.spawn(move || {
                        let mut m = heap.attach();
                        m.detach(|| gate.wait());
                        check(&theirs);
                        for node in theirs {
                            drop(node.clone());
                            drop(node);
                        }
                    });
                }
                let mut m = m;
                m.detach(|| gate.wait());
                drop(nodes);
                drop(m);
            });
            assert_eq!(lab.census.alive(), 0);
        }
    });
}

/// A mutator inherits an object, then another mutator makes it garbage, shares it for life, or lets
/// a collection claim it.
#[test]
fn an_inherited_object_is_like_any_other() {
    on_every_heap(|lab| {
        let heap = &lab.heap;
        let mut m = heap.attach();
        // A ring of inherited objects is garbage.
        let ring = chain(lab, 10);
        ring[9].next.set(&m, Some(ring[0].clone()));
        ring.iter().for_each(|node| drop(node.clone()));
        drop(ring);
        assert_eq!(lab.census.alive(), 10);
        assert_eq!(m.collect().collected, 10);
        // So is one that a mutator has inherited which has ended.
        let ring = chain(lab, 10);
        m.detach(|| {
            on_thread(heap, |m| {
                ring[9].next.set(m, Some(ring[0].clone()));
                ring.iter().for_each(|node| drop(node.clone()));
                drop(ring);
            })
        });
        m.collect();
        assert_eq!(lab.census.alive(), 0);
        // It can be shared for life, by its heir, or by a mutator that inherits it to share it.
        let two: Result<[_; 2], _> = chain(lab, 2).try_into();
        let Ok([one, two]) = two else { panic!("two objects") };
        drop(one.clone());
        for object in [one, two] {
            let shared = Gc::try_share(object, &m).expect("it is this mutator's");
            let clone = SharedGc::clone(&shared);
            m.detach(|| on_thread(heap, |_| drop(shared)));
            clone.witness.check();
        }
        m.safepoint();
        assert_eq!(lab.census.alive(), 0);
    });
}

/// No thread is attached any more, and the heap is closed: an object of an heir dies with its
/// last handle.
#[test]
fn an_inherited_object_outlives_the_heap() {
    let heap = Heap::new();
    let census = Census::new();
    let make =
        |m: &Mutator| m.alloc(Node { next: GcCell::default(), witness: Witness::new(&census, 0) });
    let (one, two) = on_thread(&heap, |m| (make(m), make(m)));
    on_thread(&heap, |_| drop(one.clone()));
    drop(heap);
    one.witness.check();
    drop((one.clone(), two.clone()));
    assert_eq!(census.alive(), 2);
    thread::scope(|scope| {
        scope.spawn(|| drop((one.clone(), two.clone())));
        scope.spawn(|| drop((one.clone(), two.clone())));
    });
    drop(one);
    assert_eq!(census.alive(), 1);
    drop(two);
    assert_eq!(census.alive(), 0);
}
