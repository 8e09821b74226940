//! Counts that overflow: the object becomes immortal, with the objects that it reaches, and all
//! else continues.

use std::sync::Arc;

use standstill::{Gc, Heap, Mutator, Pacing};

use crate::{Alive, Node, node, ring};

/// Where the shared half of a count ends.
const SHARED: usize = 1 << 26;
/// What the owner's half counts, before it moves to the shared half.
const LOCAL: usize = 1 << 25;

/// References that are never dropped.
fn leak(gc: &Gc<Node>, times: usize) {
    (0..times).for_each(|_| std::mem::forget(gc.clone()));
}

/// Makes the count of a ring's member overflow, by `overflow`, and then runs the usual operations
/// on it.
fn overflow_by(overflow: impl FnOnce(&Heap, &mut Mutator, &Gc<Node>)) {
    const RING: usize = 3;
    let heap = Heap::builder().reserve(1 << 30).pacing(Pacing::manual()).build().expect("a heap");
    let alive = Arc::new(Alive::default());
    let mut m = heap.attach();
    let gc = ring(&m, &alive, RING);
    overflow(&heap, &mut m, &gc);
    assert_eq!(Gc::strong_count(&gc), usize::MAX, "immortal");
    // No thread counts it any more.
    let clones: Vec<_> = (0..100).map(|_| gc.clone()).collect();
    std::thread::scope(|s| {
        s.spawn(|| clones.iter().cloned().for_each(drop));
        s.spawn(|| heap.attach_scoped(|_| clones.iter().cloned().for_each(drop)));
        m.detach(|| ());
    });
    drop(clones);
    let weak = Gc::downgrade(&gc, &m);
    drop(gc);
    // Others come and go beside it.
    drop((node(&m, &alive), ring(&m, &alive, 10)));
    for _ in 0..3 {
        m.safepoint();
        m.collect();
        m.verify().expect("a whole heap");
        assert_eq!((heap.stats().live_objects, alive.now()), (RING, RING));
    }
    assert!(weak.upgrade(&m).is_some());
}

#[test]
fn a_shared_count_that_overflows_is_immortal() {
    overflow_by(|heap, m, gc| {
        let clone = gc.clone();
        let other = heap.clone();
        let strangers = move || other.attach_scoped(|_| leak(&clone, SHARED + 1));
        m.detach(|| std::thread::spawn(strangers).join().expect("a thread"));
        m.safepoint();
    });
}

/// The owner's half moves to the shared half each time it is full.
#[test]
fn an_owners_count_that_overflows_is_immortal() {
    overflow_by(|_, _, gc| leak(gc, SHARED + LOCAL));
}

/// Another thread drops the owner's clones, and the owner passes no safepoint.
#[test]
#[cfg_attr(debug_assertions, ignore = "130 million references: with --release")]
fn an_owner_that_clones_while_another_thread_drops_reaches_no_limit() {
    const AT_ONCE: usize = 1 << 18;
    let heap = Heap::builder().pacing(Pacing::manual()).build().expect("a heap");
    let alive = Arc::new(Alive::default());
    let mut m = heap.attach();
    let gc = node(&m, &alive);
    let (send, clones) = std::sync::mpsc::sync_channel::<Vec<Gc<Node>>>(2);
    let other = heap.clone();
    let dropping = std::thread::spawn(move || {
        other.attach_scoped(|_| clones.into_iter().for_each(drop));
    });
    for _ in 0..2 * SHARED / AT_ONCE {
        send.send((0..AT_ONCE).map(|_| gc.clone()).collect()).expect("a thread that drops");
    }
    drop(send);
    m.detach(|| dropping.join()).expect("a thread that ends");
    m.safepoint();
    assert_eq!(Gc::strong_count(&gc), 1);
    drop(gc);
    assert_eq!((heap.stats().live_objects, alive.now()), (0, 0));
}
