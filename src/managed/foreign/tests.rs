//! Tests of `managed/foreign.rs`.

#![forbid(unsafe_code)]

use std::sync::mpsc;

use super::*;
use crate::managed::tests::{on_attached_thread, plain_heap};
use crate::memory::shape::PAGE_SIZE;
use crate::{AnyGc, Gc, GcCell, Heap, Mutator, Trace, Tracer};

struct Node<const N: usize>(GcCell<Vec<AnyGc>>, [u8; N]);

impl<const N: usize> Trace for Node<N> {
    fn traverse(this: &Self, tracer: &mut Tracer) {
        Trace::traverse(&this.0, tracer);
    }

    fn clear(this: &Self, m: &Mutator) {
        Trace::clear(&this.0, m);
    }
}

type Small = Gc<Node<8>>;

fn node<const N: usize>(m: &Mutator) -> Gc<Node<N>> {
    m.alloc(Node(GcCell::default(), [0; N]))
}

/// The owner's id. Looking it up counts nothing: a clone and a drop would inherit the object.
fn owner<T: Trace>(gc: &Gc<T>) -> u64 {
    gc.counts().owner()
}

fn owned<T: Trace>(objects: &[Gc<T>], by: &Mutator) -> usize {
    objects.iter().filter(|object| owner(object) == by.raw().id()).count()
}

/// Nodes of a thread that ends, in rings of three.
fn rings(heap: &Heap, nodes: usize) -> Vec<Small> {
    on_attached_thread(heap, |m| {
        let nodes: Vec<Small> = (0..nodes).map(|_| node(m)).collect();
        for ring in nodes.chunks(3) {
            for (at, from) in ring.iter().enumerate() {
                let to: AnyGc = ring[(at + 1) % ring.len()].clone().into();
                from.0.lock(m).push(to);
            }
        }
        nodes
    })
}

fn use_once<T: Trace>(gc: &Gc<T>) {
    drop(gc.clone());
}

#[test]
fn a_mutator_inherits_the_objects_that_it_uses_and_frees_them() {
    let heap = plain_heap();
    let mut m = heap.attach();
    // Some objects are merged: their owner has dropped its reference.
    let (handles, merged) = on_attached_thread(&heap, |m| {
        let nodes: Vec<Small> = (0..10).map(|_| node(m)).collect();
        let clones = on_attached_thread(&heap, |_| nodes.clone());
        drop(nodes);
        (rings(&heap, 1000), clones)
    });
    let large = on_attached_thread(&heap, |m| node::<{ 2 * PAGE_SIZE }>(m));
    let weak = Gc::downgrade(&handles[0], &m);
    // An unattached thread has counted one reference in the shared half.
    let clone = std::thread::scope(|scope| scope.spawn(|| handles[0].clone()).join());
    let clone = clone.expect("no panic");
    m.collect();
    assert_eq!(owned(&handles, &m), 0, "a collection inherits nothing");
    handles.iter().take(999).for_each(use_once);
    merged.iter().for_each(use_once);
    use_once(&large);
    assert_eq!((owned(&handles, &m), owned(&merged, &m)), (999, 0));
    assert_eq!((owner(&large), owned(&handles[999..], &m)), (m.raw().id(), 0));
    m.verify().expect("a whole heap");
    assert_eq!(Gc::strong_count(&handles[0]), 3, "two handles, and the ring");
    assert!(weak.upgrade(&m).is_some());
    drop((clone, merged, large));
    assert_eq!(heap.stats().live_objects, 1000);
    drop(handles);
    m.collect();
    assert_eq!(heap.stats().live_objects, 0);
    assert!(weak.upgrade(&m).is_none());
    m.verify().expect("a whole heap");
}

#[test]
fn an_owner_that_is_detached_keeps_its_objects() {
    let heap = plain_heap();
    let m = heap.attach();
    let (send, made) = mpsc::channel();
    let (done, wait) = mpsc::channel::<()>();
    std::thread::scope(|scope| {
        let heap = &heap;
        scope.spawn(move || {
            let mut m = heap.attach();
            let object = node::<8>(&m);
            m.detach(|| {
                send.send((object.clone(), owner(&object))).expect("somebody waits");
                let _ = wait.recv();
            });
        });
        let (object, its_owner) = made.recv().expect("an object");
        use_once(&object);
        assert!(!try_inherit(m.raw(), object.counts()));
        assert_eq!(owner(&object), its_owner);
        drop(done);
    });
}

#[test]
fn the_first_mutator_inherits_and_the_second_one_after_its_end() {
    let heap = plain_heap();
    let mut m = heap.attach();
    let handles = rings(&heap, 30);
    on_attached_thread(&heap, |other| {
        handles.iter().for_each(use_once);
        assert_eq!(owned(&handles, other), 30);
    });
    assert_eq!(owned(&handles, &m), 0);
    handles.iter().for_each(use_once);
    assert_eq!(owned(&handles, &m), 30);
    // It owns them: another thread's drops below zero wait for it.
    on_attached_thread(&heap, |_| drop(handles));
    assert_eq!(heap.stats().live_objects, 30);
    m.safepoint();
    m.collect();
    assert_eq!(heap.stats().live_objects, 0);
}

#[test]
fn a_living_mutator_may_hide_that_an_owner_has_ended_until_it_ends_too() {
    const PLACES: u64 = 512;
    let heap = plain_heap();
    let m = heap.attach();
    let object = on_attached_thread(&heap, |m| node::<8>(m));
    let ended = owner(&object);
    // Ids are numbers of the process, and other tests take some of them.
    std::thread::scope(|scope| {
        scope
            .spawn(|| {
                let mut attached = heap.attach();
                while attached.raw().id() % PLACES != ended % PLACES {
                    drop(attached);
                    attached = heap.attach();
                }
                use_once(&object);
                assert!(!inherit(attached.raw(), object.counts()));
                assert_eq!(owner(&object), ended);
            })
            .join()
            .expect("no panic");
    });
    use_once(&object);
    assert_eq!(owned(&[object], &m), 1);
}

#[test]
fn an_object_of_an_ended_mutator_that_a_guard_kept_from_destroying_is_freed() {
    let heap = plain_heap();
    let m = heap.attach();
    let object = on_attached_thread(&heap, |m| m.alloc(1u32));
    // The queue of the new owner gets the last drop.
    use_once(&object);
    on_attached_thread(&heap, |_| drop(object));
    assert_eq!(heap.stats().live_objects, 1);
    crate::managed::orphan(m.raw().model(), m.raw().thread_id(), m.raw().local());
    assert_eq!(heap.stats().live_objects, 1, "it is on the deferred list");
    m.raw().local().queue.reopen();
    crate::managed::deferred::drain_deferred(m.raw());
    assert_eq!(heap.stats().live_objects, 0);
}
