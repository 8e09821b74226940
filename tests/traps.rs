//! The design's traps: programs and interleavings that break the obvious implementation. Each test
//! quotes the sentence it stands for. Those that need one exact interleaving are loom's
//! (`loom_tests/`); the hammers here run the same races on real threads.

#![cfg(not(loom))]
#![allow(clippy::type_complexity)]

mod common;

use std::cell::RefCell;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Barrier, Mutex, mpsc};
use std::time::Duration;

use common::*;
use standstill::{
    AtomicGc, AttachError, Collect, CollectError, Gc, GcCell, GcWeak, Heap, HeapBuilder, Mutator,
    Trace, Tracer,
};

fn small() -> HeapBuilder {
    Heap::builder().reserve(1 << 30)
}

/// Runs `f` again and again, for as long as stress tests run, but at least `least` times.
fn hammer(least: usize, mut f: impl FnMut(usize)) {
    let clock = Clock::start(1);
    let mut round = 0;
    while round < least || clock.running() {
        f(round);
        round += 1;
    }
}

// --------------------------------------------------------------------------- threads and the world

/// "Two mutators on one thread, one lending borrows while the other reaches a safepoint."
#[test]
fn trap_two_mutators_on_one_thread() {
    let (a, b) = (small().build().unwrap(), small().build().unwrap());
    let mut m = a.attach();
    for heap in [&a, &b] {
        assert_eq!(heap.try_attach().err(), Some(AttachError::AlreadyAttached));
        assert!(panic_text(|| drop(heap.attach())).is_some());
        assert!(panic_text(|| heap.attach_scoped(|_| ())).is_some());
    }
    // Inside a detach a mutator that could outlive it is refused, a scoped one is not.
    m.detach(|| {
        for heap in [&a, &b] {
            assert_eq!(heap.try_attach().err(), Some(AttachError::InsideDetach));
            assert!(panic_text(|| drop(heap.attach())).is_some());
            heap.attach_scoped(|inner| {
                assert_eq!(a.try_attach().err(), Some(AttachError::AlreadyAttached));
                let gc = inner.alloc(7u8);
                inner.collect();
                assert_eq!(*gc, 7);
                inner.detach(|| heap.attach_scoped(|m| m.collect()));
            });
        }
    });
    // The refusals have cost nothing.
    assert_eq!(*m.alloc(1u8), 1);
    m.collect();
    drop(m);
    drop(b.attach());
    assert_eq!((a.stats().mutators, b.stats().mutators), (0, 0));
}

/// "It can touch objects, it cannot reach a safepoint under another caller's borrow":
/// `with_current` lends a second way to the same attachment. While it is lent the first one must
/// not park. Otherwise an object that was borrowed without counting is freed under the borrow.
#[test]
fn trap_with_current_lends_nothing_over_a_safepoint() {
    let heap = small().build().unwrap();
    let census = Census::new();
    let mut m = heap.attach();
    let slot = m.alloc(vec![AtomicGc::new(Some(node(&m, &census, 7)))]);
    Mutator::with_current(|lent| {
        let peeked = slot[0].peek(lent).expect("full");
        slot[0].store(lent, None);
        // Refused or without effect: in both cases the borrow is good afterwards.
        for _ in 0..3 {
            let _ = panic_text(|| m.safepoint());
            assert_eq!(census.dead(), 0, "a safepoint freed what is borrowed");
            let _ = panic_text(|| drop(m.try_collect(Collect::full())));
            assert_eq!(census.dead(), 0, "a collection freed what is borrowed");
            let _ = panic_text(|| m.detach(|| ()));
            assert_eq!(census.dead(), 0, "a detach freed what is borrowed");
        }
        assert_eq!(peeked.name(), 7);
        // A closure that still runs is run attached: it can touch the borrowed object.
        let mut attached = false;
        let refused =
            panic_text(|| m.detach(|| attached = Mutator::with_current(|_| ()).is_some()));
        assert!(refused.is_some() || attached, "detached under a borrow");
    })
    .expect("attached");
    for _ in 0..3 {
        m.safepoint();
    }
    m.collect();
    assert_eq!(census.alive(), 0);
}

/// The same from a destructor that finds its thread's mutator somewhere and uses it: it reaches no
/// safepoint, and nothing is broken afterwards.
#[test]
fn trap_a_destructor_reaches_for_its_threads_mutator() {
    thread_local! { static MINE: RefCell<Option<Mutator>> = const { RefCell::new(None) }; }
    struct Grabby(Arc<Mutex<Vec<&'static str>>>, #[allow(dead_code)] Witness);
    impl Trace for Grabby {
        fn traverse(_: &Self, _: &mut Tracer) {}
    }
    impl Drop for Grabby {
        fn drop(&mut self) {
            let note = |what| self.0.lock().unwrap().push(what);
            MINE.with(|mine| {
                let Ok(mut mine) = mine.try_borrow_mut() else { return note("busy") };
                let m = mine.as_mut().expect("put there");
                m.safepoint();
                if m.try_collect(Collect::full()).is_err() {
                    note("no collection");
                }
                // A refusal by a panic is as good as none at all, if nothing is broken afterwards.
                let _ = panic_text(|| m.detach(|| note("detached")));
                note(if Mutator::with_current(|_| ()).is_some() {
                    "still attached"
                } else {
                    "lost"
                });
            });
        }
    }
    let heap = small().build().unwrap();
    let census = Census::new();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let gc = {
        let m = heap.attach();
        let gc = m.alloc(Grabby(seen.clone(), Witness::new(&census, 0)));
        MINE.with_borrow_mut(|mine| *mine = Some(m));
        gc
    };
    drop(gc);
    let seen = seen.lock().unwrap().clone();
    assert!(seen.contains(&"no collection"), "{seen:?}");
    assert_eq!(seen.last(), Some(&"still attached"), "{seen:?}");
    assert_eq!(census.dead(), 1);
    // All is as before.
    let mut m = MINE.take().expect("still there");
    assert!(Mutator::with_current(|_| ()).is_some());
    garbage_loop(&m, &census, 1);
    m.safepoint();
    assert_eq!(m.detach(|| 5), 5);
    assert_eq!(m.collect().collected, 1);
}

/// "Detach re-attaches by a drop guard, also when unwinding."
#[test]
fn trap_a_panic_leaves_a_detach_attached() {
    let heap = small().build().unwrap();
    let census = Census::new();
    let mut m = heap.attach();
    let gc = node(&m, &census, 3);
    assert!(panic_text(|| m.detach(|| panic!("inside"))).is_some());
    assert!(Mutator::with_current(|_| ()).is_some());
    assert_eq!(gc.name(), 3);
    assert!(panic_text(|| m.detach(|| heap.attach_scoped(|_| panic!("deeper")))).is_some());
    assert_eq!(heap.stats().mutators, 1);
    garbage_loop(&m, &census, 0);
    assert_eq!(m.collect().collected, 1);
}

/// "Two threads that each stop the heap the other sits in."
#[test]
fn trap_two_threads_stop_each_others_heap() {
    let _watch = deadline("crossed heaps");
    let heaps = [small().build().unwrap(), small().build().unwrap()];
    let census = Census::new();
    let clock = Clock::start(1);
    std::thread::scope(|scope| {
        for thread in 0..2 {
            let (heaps, census, clock) = (&heaps, &census, &clock);
            scope.spawn(move || {
                let mut m = heaps[thread].attach();
                let mut rounds = 0;
                while clock.running() || rounds < 50 {
                    rounds += 1;
                    garbage_loop(&m, census, 0);
                    m.detach(|| {
                        heaps[1 - thread].attach_scoped(|m| {
                            garbage_loop(m, census, 1);
                            m.collect();
                        });
                    });
                    m.collect();
                }
            });
        }
    });
    for heap in &heaps {
        heap.attach_scoped(|m| m.collect());
    }
    assert_eq!(census.alive(), 0);
}

/// "Taking thread exit for a detach, while a leaked borrow lives on another thread." The stop must
/// fail, naming the thread, whether it began before or after the thread's end.
#[test]
fn trap_a_thread_ends_without_dropping_its_mutator() {
    for stop_first in [false, true] {
        let _watch = deadline("leaked mutator");
        let heap = small().build().unwrap();
        let other = small().build().unwrap();
        let (lend, borrowed) = mpsc::channel::<&'static Node>();
        let stopping = Barrier::new(2);
        std::thread::scope(|scope| {
            let collector = scope.spawn(|| {
                let mut m = heap.attach();
                garbage_loop(&m, &Census::new(), 0);
                m.detach(|| stopping.wait());
                m.try_collect(Collect::full()).map(|report| report.collected)
            });
            let leaker = std::thread::Builder::new()
                .name("the leaker".into())
                .spawn_scoped(scope, || {
                    let m: &'static Mutator = Box::leak(Box::new(heap.attach()));
                    let gc: &'static Gc<Node> = Box::leak(Box::new(node(m, &Census::new(), 42)));
                    lend.send(gc).unwrap();
                    if stop_first {
                        stopping.wait();
                        // Time for the stop to begin; it cannot succeed either way.
                        std::thread::sleep(Duration::from_millis(50));
                    }
                })
                .unwrap();
            leaker.join().unwrap();
            let node = borrowed.recv().unwrap();
            if !stop_first {
                stopping.wait();
            }
            let result = collector.join().unwrap();
            let Err(CollectError::Stop(error)) = result else { panic!("{result:?}") };
            assert!(error.to_string().contains("the leaker"), "{error}");
            assert_eq!(node.name(), 42, "the borrow is good");
        });
        // The heap still works, except for operations that need a stop. They report it each time.
        let mut m = heap.attach();
        assert_eq!(*m.alloc(5u8), 5);
        m.safepoint();
        for _ in 0..3 {
            assert!(matches!(m.try_collect(Collect::young()), Err(CollectError::Stop(_))));
        }
        assert!(panic_text(|| drop(m.collect())).is_some_and(|text| text.contains("the leaker")));
        drop(m);
        assert_eq!(heap.stats().mutators, 1, "the leaked one");
        // No other thread is concerned.
        other.attach_scoped(|m| assert!(m.collect().abandoned.is_none()));
    }
}

/// "Z parks holding a plain lock `L`, attached X blocks on `L`, the stop waits for X."
#[test]
fn trap_a_parked_thread_holds_a_plain_lock() {
    on_every_heap(|lab| {
        let lock = Mutex::new(0);
        let barrier = Barrier::new(3);
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let (lock, barrier, over) = (&lock, &barrier, &over);
            // Z polls with the lock held until the stop is over.
            scope.spawn(move || {
                let mut m = lab.heap.attach();
                let mut held = lock.lock().unwrap();
                m.detach(|| barrier.wait());
                while !over.load(SeqCst) {
                    m.safepoint();
                }
                *held += 1;
            });
            // X wants it, attached.
            scope.spawn(move || {
                let mut m = lab.heap.attach();
                m.detach(|| barrier.wait());
                let mut held = m.lock(lock).unwrap();
                *held += 1;
                drop(held);
                garbage_loop(&m, &lab.census, 0);
            });
            // C stops the world, again and again.
            let mut m = lab.heap.attach();
            m.detach(|| barrier.wait());
            for name in 0..50 {
                garbage_loop(&m, &lab.census, name);
                m.collect();
            }
            over.store(true, SeqCst);
        });
        assert_eq!(*lock.lock().unwrap(), 2);
    });
}

/// The lock of `m.lock` passes on poison, as a plain lock does, and a free lock is simply taken.
#[test]
fn trap_a_poisoned_plain_lock() {
    let heap = small().build().unwrap();
    let lock = Mutex::new(1);
    let mut m = heap.attach();
    *m.lock(&lock).unwrap() += 1;
    assert!(
        panic_text(|| {
            let _held = lock.lock();
            panic!("poison");
        })
        .is_some()
    );
    let poisoned = m.lock(&lock);
    assert_eq!(*poisoned.expect_err("poisoned").into_inner(), 2);
    m.collect();
}

/// "A `GcCell` locked twice by its own thread panics instead of hanging."
#[test]
fn trap_a_cell_locked_twice() {
    on_every_heap_attached(|lab, m| {
        let gc = node(m, &lab.census, 0);
        let edges = &gc.edges;
        let first = edges.lock(m);
        assert!(edges.try_lock(m).is_none());
        let again: [(&str, Box<dyn Fn() + '_>); 5] = [
            ("lock", Box::new(|| drop(edges.lock(m)))),
            ("get", Box::new(|| drop(edges.get(m)))),
            ("set", Box::new(|| edges.set(m, Vec::new()))),
            ("replace", Box::new(|| drop(edges.replace(m, Vec::new())))),
            ("take", Box::new(|| drop(edges.take(m)))),
        ];
        for (name, again) in &again {
            assert!(panic_text(again).is_some(), "{name}");
        }
        assert!(first.is_empty());
        drop(first);
        drop(again);
        // Another cell of the same thread was never in the way; neither is this one any more.
        let other = GcCell::new(1);
        let _other = other.lock(m);
        assert!(edges.try_lock(m).is_some());
        edges.lock(m).push(gc.clone());
    });
}

/// The same cell from several threads: they exclude each other, and no thread panics.
#[test]
fn trap_a_cell_locked_by_two_threads() {
    on_every_heap(|lab| {
        let rounds = if lab.stress { 50 } else { 2_000 };
        let cell = Arc::new(GcCell::new((0usize, 0usize)));
        std::thread::scope(|scope| {
            for _ in 0..4 {
                let cell = cell.clone();
                scope.spawn(move || {
                    let mut m = lab.heap.attach();
                    for round in 0..rounds {
                        {
                            let mut pair = cell.lock(&m);
                            assert_eq!(pair.0, pair.1);
                            pair.0 += 1;
                            if round % 64 == 0 {
                                std::thread::yield_now();
                            }
                            pair.1 += 1;
                        }
                        m.safepoint();
                    }
                });
            }
        });
        lab.heap.attach_scoped(|m| assert_eq!(*cell.lock(m), (4 * rounds, 4 * rounds)));
    });
}

/// "A thread kept waiting by back-to-back stops gets its turn before it can be stopped again."
#[test]
fn trap_back_to_back_stops_starve_no_thread() {
    let _watch = deadline("back-to-back stops");
    let heap = small().build().unwrap();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let mut m = heap.attach();
                while !done.load(SeqCst) {
                    m.collect();
                }
            });
        }
        // The same number of turns under any schedule: a starved thread never gets here.
        let mut m = heap.attach();
        for _ in 0..2_000 {
            m.safepoint();
            m.detach(|| ());
        }
        done.store(true, SeqCst);
    });
}

/// Threads that come and go while stops are requested all the time, none is missed and none hangs.
#[test]
fn trap_attach_and_detach_race_with_stops() {
    let _watch = deadline("handshake");
    let heap = small().build().unwrap();
    let census = Census::new();
    let clock = Clock::start(2);
    // The data that a stop protects: written only by attached threads, never while a thread sees
    // the world stopped.
    struct Flag(Arc<AtomicUsize>);
    impl Trace for Flag {
        fn traverse(this: &Self, _: &mut Tracer) {
            let before = this.0.load(SeqCst);
            std::thread::yield_now();
            if this.0.load(SeqCst) != before {
                die("an attached thread ran while the world was stopped");
            }
        }
    }
    let writes = Arc::new(AtomicUsize::new(0));
    let _flag = heap.attach_scoped(|m| m.alloc(Flag(writes.clone())));
    std::thread::scope(|scope| {
        for seed in 0..3 {
            let (heap, census, clock, writes) = (&heap, &census, &clock, &writes);
            scope.spawn(move || {
                let mut rng = Rng::new(seed);
                while clock.running() {
                    let mut m = heap.attach();
                    for _ in 0..rng.below(20) {
                        writes.fetch_add(1, SeqCst);
                        match rng.below(3) {
                            0 => m.safepoint(),
                            1 => m.detach(std::thread::yield_now),
                            _ => garbage_loop(&m, census, 0),
                        }
                        writes.fetch_add(1, SeqCst);
                    }
                }
            });
        }
        scope.spawn(|| {
            let mut m = heap.attach();
            while clock.running() {
                m.collect();
            }
        });
    });
    heap.attach_scoped(|m| m.collect());
    assert_eq!(census.alive(), 0);
}

// ------------------------------------------------------------------------------------------ memory

/// "Two threads change two attributes of one byte by load and store; one is lost." Tracked and
/// finalized lie in one byte: one thread tracks and untracks an object that another finalizes and
/// frees.
#[test]
fn trap_two_threads_change_two_attributes_of_one_object() {
    let heap = small().build().unwrap();
    let census = Census::with_log();
    let _watch = deadline("attributes");
    let (give, take) = mpsc::sync_channel::<GcWeak<Fin>>(0);
    let go = Barrier::new(2);
    std::thread::scope(|scope| {
        let (heap, go) = (&heap, &go);
        scope.spawn(move || {
            let mut m = heap.attach();
            while let Ok(weak) = m.detach(|| take.recv()) {
                go.wait();
                // While its finalizer runs the object can be had through the weak reference.
                for _ in 0..200 {
                    if let Some(gc) = weak.upgrade(&m) {
                        Gc::untrack(&gc, &m);
                        Gc::track(&gc, &m);
                    }
                    m.safepoint();
                }
            }
        });
        // Moved in here: a failure ends the other thread, too.
        let give = give;
        let mut m = heap.attach();
        hammer(300, |round| {
            let shelf = Shelf::new();
            let ran = Arc::new(AtomicUsize::new(0));
            let gc = fin(&m, &census, round, {
                let (shelf, ran) = (shelf.clone(), ran.clone());
                move |this, _| {
                    ran.fetch_add(1, SeqCst);
                    shelf.push(this.clone());
                }
            });
            link(&m, &gc, &gc);
            let weak = Gc::downgrade(&gc, &m);
            m.detach(|| give.send(weak).unwrap());
            m.detach(|| go.wait());
            drop(gc);
            // It may be found, or saved by the other thread's handle, or untracked just then.
            for _ in 0..3 {
                m.collect();
                for back in shelf.take() {
                    assert!(Gc::is_finalized(&back, &m), "the finalized bit was lost");
                }
            }
            assert!(ran.load(SeqCst) <= 1, "finalized twice");
        });
        m.detach(|| drop(give));
        m.collect();
    });
    heap.attach_scoped(|m| m.collect());
    assert_eq!(census.alive(), 0, "the tracked bit was lost");
}

/// Tracking by one thread against freezing, unfreezing and listing by another.
#[test]
fn trap_tracking_against_freezing() {
    let heap = small().build().unwrap();
    let census = Census::new();
    let clock = Clock::start(1);
    let shared =
        heap.attach_scoped(|m| (0..64).map(|name| node(m, &census, name)).collect::<Vec<_>>());
    std::thread::scope(|scope| {
        for seed in 0..2 {
            let (heap, clock, shared) = (&heap, &clock, &shared);
            scope.spawn(move || {
                let mut rng = Rng::new(seed);
                let mut m = heap.attach();
                while clock.running() {
                    let gc = &shared[rng.below(64)];
                    if rng.one_in(2) {
                        Gc::track(gc, &m);
                    } else {
                        Gc::untrack(gc, &m);
                    }
                    m.safepoint();
                }
            });
        }
        let mut m = heap.attach();
        while clock.running() {
            let frozen = m.freeze();
            assert!(frozen <= 64);
            m.unfreeze();
            assert_eq!(m.frozen(), 0);
            m.collect();
        }
    });
    let mut m = heap.attach();
    for gc in &shared {
        Gc::track(gc, &m);
    }
    assert_eq!(m.objects().len(), 64);
    for gc in &shared {
        link(&m, gc, gc);
    }
    drop(shared);
    assert_eq!(m.collect().collected, 64);
}

/// "*Has weak references* is set before the first weak reference exists, because the owner's last
/// drop must see it." Another thread makes the first weak reference and drops its handle; then the
/// owner drops.
#[test]
fn trap_the_owners_last_drop_and_the_first_weak_reference_of_another_thread() {
    let heap = small().build().unwrap();
    let census = Census::new();
    let _watch = deadline("weak");
    let (give, take) = mpsc::sync_channel::<Gc<Node>>(0);
    let (back, weak_back) = mpsc::channel();
    std::thread::scope(|scope| {
        let heap = &heap;
        scope.spawn(move || {
            let mut m = heap.attach();
            while let Ok(gc) = m.detach(|| take.recv()) {
                let weak = Gc::downgrade(&gc, &m);
                // Either order of the two drops is a race worth having.
                drop(gc);
                back.send(weak).unwrap();
            }
        });
        // Moved in here: a failure ends the other thread, too.
        let give = give;
        let mut m = heap.attach();
        hammer(500, |round| {
            let gc = node(&m, &census, round);
            let theirs = gc.clone();
            m.detach(|| give.send(theirs).unwrap());
            drop(gc);
            let weak = m.detach(|| weak_back.recv().unwrap());
            m.safepoint();
            m.safepoint();
            assert!(weak.upgrade(&m).is_none(), "a weak reference to a dead object");
        });
        m.detach(|| drop(give));
    });
    assert_eq!(census.alive(), 0);
}

/// "Another heap gets the same addresses while a stale handle lives."
#[test]
fn trap_handles_outlive_their_heap() {
    for stress in [false, true] {
        let heap = small().stress(stress).build().unwrap();
        let census = Census::with_log();
        let m = heap.attach();
        let kept: Vec<_> = (0..10).map(|name| node(&m, &census, name)).collect();
        link(&m, &kept[0], &kept[1]);
        let weak: Vec<_> = kept.iter().map(|gc| Gc::downgrade(gc, &m)).collect();
        drop(heap);
        assert_eq!(kept[3].name(), 3, "the mutator keeps the heap");
        drop(m);
        assert!(census.dead_names().is_empty(), "handles keep their objects");

        // Many heaps come and go; none of them lies where the stale handles point.
        for _ in 0..30 {
            let other = small().build().unwrap();
            let mut m = other.attach();
            let fresh: Vec<_> = (0..1000).map(|i| m.alloc([i as u64; 4])).collect();
            for (name, gc) in kept.iter().enumerate() {
                assert_eq!(gc.name(), name, "its value is whole");
                let refused = panic_text(|| _ = Gc::downgrade(gc, &m));
                assert!(refused.is_some(), "a stale handle is a foreign one");
                let at = Gc::as_ptr(gc) as usize;
                assert!(fresh.iter().all(|fresh| (Gc::as_ptr(fresh) as usize).abs_diff(at) >= 64));
            }
            assert!(weak.iter().all(|weak| weak.upgrade(&m).is_none()), "the heap is gone");
            m.collect();
            assert!(fresh.iter().enumerate().all(|(i, gc)| gc[0] == i as u64));
        }

        // A drop destroys on the dropping thread, attached somewhere or not, and follows the edges.
        assert!(census.dead_names().is_empty());
        let mut kept = kept.into_iter();
        let first = kept.next();
        drop(kept.next());
        assert!(census.dead_names().is_empty(), "1 is still held by 0");
        std::thread::spawn(move || drop(first)).join().unwrap();
        assert_eq!(census.dead_names(), [0, 1]);
        let other = small().build().unwrap();
        let m = other.attach();
        drop(kept);
        assert_eq!(census.dead_names(), (0..10).collect::<Vec<_>>());
        assert!(weak.iter().all(|weak| weak.upgrade(&m).is_none()));
        assert!(weak.clone().iter().all(|weak| weak.upgrade(&m).is_none()));
    }
}

/// A long list dies without recursion after its heap is gone, and a cycle leaks without harm.
#[test]
fn trap_long_lists_outlive_their_heap() {
    on_stack(256 << 10, || {
        let census = Census::new();
        let first = {
            let heap = small().build().unwrap();
            let m = heap.attach();
            let mut first = node(&m, &census, 0);
            for name in 1..200_000 {
                let next = first;
                first = node(&m, &census, name);
                link(&m, &first, &next);
            }
            first
        };
        assert_eq!(census.alive(), 200_000);
        drop(first);
        assert_eq!(census.alive(), 0);
    });
}

/// "The range stays reserved until the last handle and weak reference are gone too", and no longer.
#[test]
fn trap_ranges_are_given_back() {
    const RANGE: usize = 64 << 30;
    let mut sizes = set([]);
    // 256 TiB in all, twice the address space of a process.
    for round in 0..4096 {
        let heap = Heap::builder().reserve(RANGE).build().unwrap();
        sizes.insert(heap.stats().reserved_bytes);
        let m = heap.attach();
        let gc = m.alloc(round);
        let weak = Gc::downgrade(&gc, &m);
        drop(m);
        drop(heap);
        if round % 2 == 0 {
            drop(gc);
            drop(weak);
        } else {
            drop(weak);
            drop(gc);
        }
    }
    assert_eq!(sizes.len(), 1, "some ranges were smaller: {sizes:?}");
}

/// Heaps that end while their handles are dropped on other threads.
#[test]
fn trap_the_last_mutator_goes_while_others_drop() {
    let _watch = deadline("teardown");
    hammer(200, |round| {
        let census = Census::new();
        let heap = small().build().unwrap();
        let m = heap.attach();
        let mut parts: Vec<Vec<_>> = (0..3).map(|_| Vec::new()).collect();
        for name in 0..90 {
            let gc = node(&m, &census, name);
            link(&m, &gc, &node(&m, &census, 100 + name));
            if name % 2 == 0 {
                parts[(name + 1) % 3].push((Gc::downgrade(&gc, &m), gc.clone()));
            }
            parts[name % 3].push((Gc::downgrade(&gc, &m), gc));
        }
        let start = Barrier::new(4);
        std::thread::scope(|scope| {
            for part in parts {
                let start = &start;
                scope.spawn(move || {
                    start.wait();
                    for (i, (weak, gc)) in part.into_iter().enumerate() {
                        if i % 2 == round % 2 {
                            drop(weak);
                            drop(gc);
                        } else {
                            drop(gc);
                            drop(weak);
                        }
                    }
                });
            }
            start.wait();
            drop(heap);
            drop(m);
        });
        assert_eq!(census.alive(), 0, "round {round}");
    });
}

// ------------------------------------------------------------------------------------------ counts

/// "A detached owner that still counts locally while a stop or another thread merges it (62 wrong
/// counts in 200,000 tries)." The owner counts attached and detached, others count, others collect.
#[test]
fn trap_a_detached_owner_counts_while_others_merge() {
    on_every_heap(|lab| {
        let clock = Clock::start(1);
        let made = AtomicUsize::new(0);
        let (give, take) = mpsc::channel::<Gc<Node>>();
        let take = Mutex::new(take);
        let survivors: Mutex<Vec<(Gc<Node>, usize)>> = Mutex::default();
        std::thread::scope(|scope| {
            let (clock, made, take, survivors) = (&clock, &made, &take, &survivors);
            for owner in 0..2 {
                let give = give.clone();
                scope.spawn(move || {
                    let mut rng = Rng::new(owner);
                    let mut m = lab.heap.attach();
                    while clock.running() {
                        let gc = node(&m, &lab.census, made.fetch_add(1, SeqCst));
                        for _ in 0..rng.below(4) {
                            give.send(gc.clone()).unwrap();
                        }
                        let clones: Vec<_> = (0..rng.below(8)).map(|_| gc.clone()).collect();
                        // Detached, the owner is a stranger to its own object.
                        m.detach(|| {
                            let more = clones.to_vec();
                            drop(clones);
                            give.send(gc.clone()).unwrap();
                            drop(more);
                        });
                        for _ in 0..rng.below(3) {
                            drop(gc.clone());
                            m.safepoint();
                        }
                        if rng.one_in(10) {
                            // To be counted when all threads are gone.
                            let extra = rng.below(5);
                            for _ in 0..extra {
                                std::mem::forget(gc.clone());
                            }
                            let mut survivors = survivors.lock().unwrap();
                            if survivors.len() < 200 {
                                survivors.push((gc, 1 + extra));
                            } else {
                                (0..extra).for_each(|_| drop(unforget(&gc)));
                            }
                        }
                    }
                });
            }
            drop(give);
            for attached in [true, false] {
                scope.spawn(move || {
                    let mut m = attached.then(|| lab.heap.attach());
                    loop {
                        let next = || take.lock().unwrap().recv();
                        let next = match &mut m {
                            Some(m) => m.detach(next),
                            None => next(),
                        };
                        let Ok(gc) = next else { break };
                        let more = (gc.clone(), gc.clone());
                        drop(gc);
                        drop(more);
                    }
                });
            }
            scope.spawn(move || {
                let mut m = lab.heap.attach();
                while clock.running() {
                    m.collect_young();
                    m.collect();
                }
            });
        });
        let mut m = lab.heap.attach();
        m.safepoint();
        m.collect();
        let survivors = survivors.into_inner().unwrap();
        assert_eq!(lab.census.alive(), survivors.len());
        for (gc, count) in survivors {
            assert_eq!(Gc::strong_count(&gc), count, "a wrong count");
            (1..count).for_each(|_| drop(unforget(&gc)));
            drop(gc);
        }
        assert_eq!(lab.census.alive(), 0);
    });
}

/// Takes back a handle that was forgotten.
fn unforget<T>(gc: &Gc<T>) -> Gc<T> {
    // SAFETY: the caller forgot a clone of `gc` and calls this once for each, so the count that the
    // copy stands for is there. `Gc` is one word without interior state.
    unsafe { std::ptr::read(gc) }
}

/// "`fetch_sub` first, flag later, and the owner frees in between." The owner drops its last handle
/// while another thread drops its own.
#[test]
fn trap_the_owner_and_another_thread_drop_at_once() {
    let _watch = deadline("last drops");
    let heap = small().build().unwrap();
    let census = Census::new();
    let start = Barrier::new(3);
    let slots: [Mutex<Vec<Gc<Node>>>; 2] = Default::default();
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for (i, slot) in slots.iter().enumerate() {
            let (heap, start, over) = (&heap, &start, &over);
            scope.spawn(move || {
                // One of them attached, the other never.
                let mut m = (i == 0).then(|| heap.attach());
                let wait = || start.wait();
                loop {
                    let _ = m.as_mut().map_or_else(wait, |m| m.detach(wait));
                    if over.load(SeqCst) {
                        return;
                    }
                    let taken = std::mem::take(&mut *slot.lock().unwrap());
                    taken.into_iter().for_each(drop);
                    let _ = m.as_mut().map_or_else(wait, |m| m.detach(wait));
                }
            });
        }
        let mut m = heap.attach();
        hammer(200, |_| {
            let mine: Vec<_> = (0..100).map(|name| node(&m, &census, name)).collect();
            for slot in &slots {
                slot.lock().unwrap().extend(mine.iter().cloned());
            }
            m.detach(|| start.wait());
            mine.into_iter().for_each(drop);
            m.detach(|| start.wait());
            // The other attached thread may have taken the deferred drops over, and be at work on
            // them.
            while census.alive() != 0 {
                m.safepoint();
                m.detach(std::thread::yield_now);
            }
        });
        over.store(true, SeqCst);
        m.detach(|| start.wait());
    });
}

/// "Owner queues close when the owner ends; exactly one thread merges for an ended owner." The
/// owner of the objects ends while others drop them.
#[test]
fn trap_the_owner_ends_while_others_drop() {
    on_every_heap(|lab| {
        let clock = Clock::start(1);
        let mut rounds = 0;
        while clock.running() || rounds < 20 {
            rounds += 1;
            let (give, take) = mpsc::channel::<Gc<Node>>();
            let take = Mutex::new(take);
            std::thread::scope(|scope| {
                let take = &take;
                scope.spawn(move || {
                    let m = lab.heap.attach();
                    for name in 0..50 {
                        let gc = node(&m, &lab.census, name);
                        give.send(gc.clone()).unwrap();
                        give.send(gc.clone()).unwrap();
                        if name % 5 == 0 {
                            link(&m, &gc, &gc);
                        }
                    }
                    // It ends here, while other threads hold its objects.
                });
                for _ in 0..2 {
                    scope.spawn(move || {
                        let mut m = lab.heap.attach();
                        loop {
                            let next = m.detach(|| take.lock().unwrap().recv());
                            let Ok(gc) = next else { break };
                            assert!(gc.name() < 50);
                            drop(gc);
                        }
                    });
                }
            });
            lab.heap.attach_scoped(|m| assert_eq!(m.collect().uncollectable, 0));
            assert_eq!(lab.census.alive(), 0, "round {rounds}");
        }
    });
}

/// "An object in the middle of its destructor, count 0 and still tracked, meets a stop, is held,
/// cleared, released, and dies twice." The stop is requested while the destructor sits.
#[test]
fn trap_a_stop_is_requested_in_the_middle_of_a_destructor() {
    struct Slow {
        next: GcCell<Option<Gc<Slow>>>,
        sit: Option<Arc<dyn Fn() + Send + Sync>>,
        _witness: Witness,
    }
    trace_fields!(Slow { next });
    impl Drop for Slow {
        fn drop(&mut self) {
            if let Some(sit) = &self.sit {
                // A destructor can touch objects, and cannot reach a safepoint.
                Mutator::with_current(|m| drop(self.next.get(m)));
                sit();
                Mutator::with_current(|m| drop(self.next.get(m)));
            }
        }
    }
    on_every_heap(|lab| {
        let (entered, enter) = mpsc::channel::<()>();
        let entered = Mutex::new(entered);
        let requested = Arc::new(AtomicBool::new(false));
        std::thread::scope(|scope| {
            let requested = &requested;
            scope.spawn(move || {
                let mut m = lab.heap.attach();
                let requested = requested.clone();
                let new = |m: &Mutator, name, sit| {
                    m.alloc(Slow {
                        next: GcCell::default(),
                        sit,
                        _witness: Witness::new(&lab.census, name),
                    })
                };
                let friend = new(&m, 0, None);
                friend.next.set(&m, Some(friend.clone()));
                let slow = new(
                    &m,
                    1,
                    Some(Arc::new(move || {
                        entered.lock().unwrap().send(()).unwrap();
                        while !requested.load(SeqCst) {
                            std::thread::yield_now();
                        }
                        // The request comes right after the flag.
                        std::thread::sleep(Duration::from_millis(5));
                    })),
                );
                slow.next.set(&m, Some(friend));
                drop(slow);
                m.safepoint();
            });
            let mut m = lab.heap.attach();
            m.detach(|| enter.recv().unwrap());
            requested.store(true, SeqCst);
            m.collect();
        });
        lab.heap.attach_scoped(|m| m.collect());
        assert_eq!(lab.census.dead_names(), [0, 1]);
    });
}

/// "Objects with a count that reaches 0 in the merge step leave the candidates and are destroyed by
/// the collecting thread after the restart, also when the collection is abandoned."
#[test]
fn trap_objects_that_die_in_the_merge() {
    struct Fuse(Arc<AtomicBool>);
    impl Trace for Fuse {
        fn traverse(this: &Self, _: &mut Tracer) {
            assert!(!this.0.load(SeqCst), "abandon this one");
        }
    }
    on_every_heap(|lab| {
        if lab.stress {
            return; // its safepoints would merge before the collection that is meant to
        }
        for abandon in [false, true] {
            let abandoning = Arc::new(AtomicBool::new(false));
            let handles: Mutex<Vec<Gc<Fin>>> = Mutex::default();
            let (owner_ready, ready) = mpsc::channel();
            let (end, ended) = mpsc::channel::<()>();
            std::thread::scope(|scope| {
                let handles = &handles;
                scope.spawn(move || {
                    let mut m = lab.heap.attach();
                    let made: Vec<_> =
                        (0..50).map(|name| fin(&m, &lab.census, name, |_, _| ())).collect();
                    for (i, gc) in made.iter().enumerate() {
                        link(&m, gc, &thing(&m, &lab.census, 100 + i));
                    }
                    *handles.lock().unwrap() = made;
                    // Attached and busy: drops by others are queued for it until a stop merges
                    // them.
                    owner_ready.send(()).unwrap();
                    while ended.try_recv().is_err() {
                        m.safepoint();
                    }
                });
                let mut m = lab.heap.attach();
                m.detach(|| ready.recv().unwrap());
                let _fuse = m.alloc(Fuse(abandoning.clone()));
                abandoning.store(abandon, SeqCst);
                drop(std::mem::take(&mut *handles.lock().unwrap()));
                let report = m.collect();
                abandoning.store(false, SeqCst);
                assert_eq!(report.abandoned.is_some(), abandon);
                end.send(()).unwrap();
            });
            lab.heap.attach_scoped(|m| m.safepoint());
            assert_eq!(lab.census.alive(), 0);
            lab.reports();
        }
        assert_eq!(lab.census.finalized(), 200);
    });
}

/// "Both counts saturate", and a forgotten clone is a leak, no more.
#[test]
fn trap_forgotten_clones() {
    let heap = small().build().unwrap();
    let census = Census::new();
    let mut m = heap.attach();
    let gc = node(&m, &census, 0);
    for _ in 0..100_000 {
        std::mem::forget(gc.clone());
    }
    assert_eq!(Gc::strong_count(&gc), 100_001);
    link(&m, &gc, &gc);
    drop(gc);
    assert_eq!(m.collect().unreachable, 0);
    assert_eq!(census.alive(), 1);
}

// ---------------------------------------------------------------------------------- the typed face

/// "`Arc<GcCell<…>>` borrowed through a mutator of *another* heap while this heap traverses it."
#[test]
fn trap_a_cell_shared_between_heaps() {
    /// Shows the references behind an `Arc`. It is the only object that holds this `Arc`, so that
    /// is honest.
    struct Window {
        shared: Arc<GcCell<Vec<Gc<Window>>>>,
        _witness: Witness,
    }
    impl Trace for Window {
        fn traverse(this: &Self, tracer: &mut Tracer) {
            Trace::traverse(this.shared.as_ref(), tracer);
        }
        fn clear(this: &Self, m: &Mutator) {
            Trace::clear(this.shared.as_ref(), m);
        }
    }
    on_every_heap(|lab| {
        let other = small().build().unwrap();
        let clock = Clock::start(1);
        let cell = Arc::new(GcCell::new(Vec::new()));
        std::thread::scope(|scope| {
            let (writer_cell, other, running) = (cell.clone(), &other, &clock);
            scope.spawn(move || {
                // Attached to the other heap: nothing ever stops this thread.
                let m = other.attach();
                let mut rng = Rng::new(1);
                // A lock panics once a collection has found the cell in the window.
                let mut change = || {
                    let mut inside = writer_cell.lock(&m);
                    match rng.below(3) {
                        0 => {
                            let more: Vec<_> = inside.iter().take(100).cloned().collect();
                            inside.truncate(100);
                            inside.extend(more);
                            inside.shrink_to_fit();
                        }
                        1 => inside.truncate(1),
                        _ => std::thread::yield_now(),
                    }
                };
                while running.running() && panic_text(&mut change).is_none() {
                    std::thread::yield_now();
                }
            });
            let mut m = lab.heap.attach();
            let window =
                m.alloc(Window { shared: cell.clone(), _witness: Witness::new(&lab.census, 0) });
            let inner =
                m.alloc(Window { shared: Arc::default(), _witness: Witness::new(&lab.census, 1) });
            cell.lock(&m).push(inner.clone());
            while clock.running() {
                let report = m.collect();
                assert_eq!(report.unreachable, 0);
                assert!(Gc::strong_count(&inner) >= 2, "still held by the cell");
                m.safepoint();
            }
            drop((window, inner));
        });
        // Where counting could read the cell and marking could not, the collection was given up.
        for report in lab.reports() {
            assert!(report.contains("could be read when references were counted"), "{report}");
        }
        // No thread writes any more. The window is dead, and the cell's `Arc` is ours.
        lab.heap.attach_scoped(|m| {
            m.collect();
            assert_eq!(lab.census.dead_names(), [0]);
            drop(cell.take(m));
            assert_eq!(lab.census.alive(), 0);

            // Held, it hides its targets; free, a cycle through it is garbage like any other.
            let cell = Arc::new(GcCell::new(Vec::new()));
            let window =
                m.alloc(Window { shared: cell.clone(), _witness: Witness::new(&lab.census, 2) });
            cell.lock(m).push(window);
            let (locked, is_locked) = mpsc::channel::<()>();
            let (leave, left) = mpsc::channel::<()>();
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    let m = other.attach();
                    let cell = cell; // the last one outside the window
                    let guard = cell.lock(&m);
                    locked.send(()).unwrap();
                    let left = left;
                    left.recv().unwrap();
                    drop(guard);
                });
                is_locked.recv().unwrap();
                assert_eq!(m.collect().unreachable, 0);
                leave.send(()).unwrap();
            });
            // A mutator of the other heap was the last to lock the cell. The first collection only
            // makes the cell a part of this heap.
            assert_eq!(m.collect().collected + m.collect().collected, 1);
        });
    });
}

/// A cell inside an object can be reached on another thread, which is attached to another heap and
/// is not stopped here. Through that thread's mutator it cannot be locked.
#[test]
fn trap_a_cell_of_one_heap_locked_through_another() {
    let (here, there) = (small().build().unwrap(), small().build().unwrap());
    let census = Census::new();
    let m = here.attach();
    let gc = node(&m, &census, 0);
    link(&m, &gc, &gc);
    let lent: &Node = &gc;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let other = there.attach();
            assert!(panic_text(|| drop(lent.edges.lock(&other))).is_some());
            assert!(panic_text(|| drop(lent.edges.try_lock(&other))).is_some());
            assert!(panic_text(|| drop(lent.edges.take(&other))).is_some());
            // A cell that no object contains belongs to no heap.
            *GcCell::new(1).lock(&other) += 1;
        });
    });
    assert_eq!(edge_names(&m, &gc), [0]);
    drop(cut(&m, &gc));
}

/// "Load, swap by another thread, free, use." Readers load, peek and clone references that writers
/// swap out and drop.
#[test]
fn trap_an_atomic_slot_is_read_while_others_swap_and_free() {
    struct Board {
        slots: [AtomicGc<Node>; 4],
    }
    trace_fields!(Board { slots });
    on_every_heap(|lab| {
        let clock = Clock::start(2);
        let board = lab.heap.attach_scoped(|m| {
            m.alloc(Board {
                slots: std::array::from_fn(|i| AtomicGc::new(Some(node(m, &lab.census, i)))),
            })
        });
        let made = AtomicUsize::new(100);
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let (clock, board, made) = (&clock, &board, &made);
                scope.spawn(move || {
                    let mut rng = Rng::new(thread);
                    let mut m = lab.heap.attach();
                    while clock.running() {
                        for _ in 0..50 {
                            let slot = &board.slots[rng.below(4)];
                            let new = |m: &Mutator| node(m, &lab.census, made.fetch_add(1, SeqCst));
                            match rng.below(8) {
                                0 => slot.store(&m, Some(new(&m))),
                                1 => drop(slot.swap(&m, Some(new(&m)))),
                                2 => {
                                    let taken = slot.take(&m);
                                    if let Some(gc) = &taken {
                                        gc.witness.check();
                                    }
                                }
                                3 | 4 => {
                                    if let Some(gc) = slot.load(&m) {
                                        gc.witness.check();
                                        link(&m, &gc, &gc);
                                    }
                                }
                                5 | 6 => {
                                    // Borrowed without counting: good until this thread's next
                                    // safepoint.
                                    if let Some(thing) = slot.peek(&m) {
                                        thing.witness.check();
                                        for _ in 0..20 {
                                            std::hint::spin_loop();
                                        }
                                        thing.witness.check();
                                    }
                                }
                                _ => {
                                    let now = slot.load(&m);
                                    let new = Some(new(&m));
                                    let expected =
                                        now.as_ref().map_or(std::ptr::null(), Gc::as_ptr);
                                    match slot.compare_exchange(&m, now.as_ref(), new) {
                                        Ok(old) => {
                                            let old =
                                                old.as_ref().map_or(std::ptr::null(), Gc::as_ptr);
                                            assert_eq!(old, expected);
                                        }
                                        Err(mine) => drop(mine),
                                    }
                                }
                            }
                        }
                        match rng.below(20) {
                            0 => drop(m.collect_young()),
                            1 => m.detach(std::thread::yield_now),
                            _ => m.safepoint(),
                        }
                    }
                });
            }
        });
        lab.heap.attach_scoped(|m| {
            drop(board);
            m.safepoint();
            m.collect();
            m.safepoint();
            m.collect();
            assert_eq!(lab.census.alive(), 0);
        });
    });
}

/// A slot's references count like others: in a cycle through it they are garbage, and it can be
/// cleared.
#[test]
fn trap_a_cycle_through_an_atomic_slot() {
    struct Vertex {
        next: AtomicGc<Vertex>,
        once: standstill::GcOnce<Vertex>,
        _witness: Witness,
    }
    trace_fields!(Vertex { next, once });
    on_every_heap_attached(|lab, m| {
        let new = |name| {
            let _witness = Witness::new(&lab.census, name);
            m.alloc(Vertex { next: AtomicGc::new(None), once: standstill::GcOnce::new(), _witness })
        };
        let (a, b) = (new(0), new(1));
        a.next.store(m, Some(b.clone()));
        assert!(b.once.set_handle(m, a.clone()).is_ok());
        assert!(b.once.set_handle(m, b.clone()).expect_err("set once") == b);
        assert!(b.once.handle(m).expect("set") == a);
        assert!(std::ptr::eq(b.once.get(m).expect("set"), &*a));
        drop((a, b));
        let report = m.collect();
        assert_eq!((report.unreachable, report.uncollectable), (2, 0));
        m.safepoint();
        assert_eq!(lab.census.alive(), 0);
    });
}
