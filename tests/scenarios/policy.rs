//! G-17, G-27, G-46 to G-48, G-52 to G-55: automatic collections, their reports, and the end of a
//! heap.

use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};

use standstill::{
    Collect, CollectError, CollectionEvent, CollectionKind, Gc, Heap, Mutator, Pacing,
};

use crate::basics::Stubborn;
use crate::common::*;

/// Counts a heap's collections from now on.
fn collections(heap: &Heap) -> Arc<AtomicUsize> {
    let count = Arc::new(AtomicUsize::new(0));
    let counted = count.clone();
    heap.on_collection(move |event| {
        counted.fetch_add(usize::from(event.report().is_some()), SeqCst);
    });
    count
}

#[test]
fn g_17_full_and_young_collections_are_counted_apart() {
    on_every_heap_attached(|lab, m| {
        let counts = || {
            let stats = lab.heap.stats();
            (stats.collections - stats.young_collections, stats.young_collections)
        };
        let (full, young) = counts();
        assert_eq!(m.collect_young().kind, CollectionKind::Young);
        assert_eq!(counts(), (full, young + 1));
        assert_eq!(m.collect().kind, CollectionKind::Full);
        assert_eq!(counts(), (full + 1, young + 1));
        assert!(m.try_collect(Collect::young()).is_ok());
        assert!(m.try_collect(Collect::full().wait(false)).is_ok());
        assert_eq!(counts(), (full + 2, young + 2));
    });
}

/// The garbage that a heap and its last mutator leave behind is destroyed with them.
#[test]
fn g_27_the_end_of_a_heap() {
    for finalizers in [false, true] {
        for lab in labs() {
            let Lab { heap, census, .. } = lab;
            let m = heap.attach();
            if finalizers {
                let ring: Vec<_> = (0..3).map(|name| fin(&m, &census, name, |_, _| ())).collect();
                tie(&m, &ring);
            } else {
                drop(ring(&m, &census, 0, 3));
            }
            drop(heap);
            assert_eq!(census.alive(), 3, "the mutator keeps the heap");
            drop(m);
            assert_eq!(census.alive(), 0);
            assert_eq!(census.finalized(), if finalizers { 3 } else { 0 });
        }
    }
}

/// The recorded part of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Seen {
    Start(CollectionKind),
    Stop(CollectionKind, usize, usize),
}

fn watch(heap: &Heap) -> Arc<Mutex<Vec<Seen>>> {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let events = seen.clone();
    heap.on_collection(move |event| {
        events.lock().unwrap().push(match event {
            CollectionEvent::Start(kind) => Seen::Start(*kind),
            CollectionEvent::Stop(report) => {
                assert_eq!(event.kind(), report.kind);
                assert_eq!(event.report().map(|report| report.collected), Some(report.collected));
                Seen::Stop(report.kind, report.collected, report.uncollectable)
            }
            _ => unreachable!("an unknown event"),
        });
    });
    seen
}

fn taken(seen: &Mutex<Vec<Seen>>) -> Vec<Seen> {
    std::mem::take(&mut seen.lock().unwrap())
}

#[test]
fn g_46_two_callbacks_are_each_called_at_start_and_stop() {
    use CollectionKind::Full;
    on_every_heap_attached(|lab, m| {
        let (first, second) = (watch(&lab.heap), watch(&lab.heap));
        garbage_loop(m, &lab.census, 0);
        m.collect();
        assert_eq!(taken(&first), [Seen::Start(Full), Seen::Stop(Full, 1, 0)]);
        assert_eq!(taken(&second), [Seen::Start(Full), Seen::Stop(Full, 1, 0)]);
    });
}

#[test]
fn g_47_the_kind_is_the_requested_one() {
    use CollectionKind::{Full, Young};
    on_every_heap_attached(|lab, m| {
        let seen = watch(&lab.heap);
        m.collect_young();
        assert_eq!(taken(&seen), [Seen::Start(Young), Seen::Stop(Young, 0, 0)]);
        m.collect();
        assert_eq!(taken(&seen), [Seen::Start(Full), Seen::Stop(Full, 0, 0)]);
    });
}

#[test]
fn g_48_uncollectable_objects_are_counted_apart() {
    use CollectionKind::Full;
    on_every_heap_attached(|lab, m| {
        let seen = watch(&lab.heap);
        Stubborn::garbage(m, &lab.census, 2);
        Stubborn::garbage(m, &lab.census, 2);
        garbage_loop(m, &lab.census, 0);
        m.collect();
        assert_eq!(taken(&seen), [Seen::Start(Full), Seen::Stop(Full, 1, 4)]);
        m.collect();
        assert_eq!(
            taken(&seen),
            [Seen::Start(Full), Seen::Stop(Full, 0, 4)],
            "they are still there"
        );
        assert_eq!(Stubborn::break_all(m), 4);
        taken(&seen);
        m.collect();
        assert_eq!(taken(&seen), [Seen::Start(Full), Seen::Stop(Full, 0, 0)]);
        assert_eq!(lab.census.alive(), 0);
    });
}

#[test]
fn callbacks_run_with_the_world_running_and_may_allocate() {
    on_every_heap_attached(|lab, m| {
        let calls = Arc::new(AtomicUsize::new(0));
        let (counted, census) = (calls.clone(), lab.census.clone());
        lab.heap.on_collection(move |_| {
            let made = Mutator::with_current(|m| drop(node(m, &census, 0)));
            counted.fetch_add(if made.is_some() { 1 } else { 100 }, SeqCst);
        });
        garbage_loop(m, &lab.census, 0);
        assert_eq!(m.collect().collected, 1);
        assert_eq!(calls.load(SeqCst), 2);
    });
}

/// Allocates garbage cycles, one safepoint each, until the heap has collected by itself. Returns
/// how many it took.
fn cycles_until_a_collection(lab: &Lab, m: &mut Mutator, at_most: usize) -> Option<usize> {
    let count = collections(&lab.heap);
    (1..=at_most).find(|_| {
        garbage_loop(m, &lab.census, 0);
        m.safepoint();
        count.load(SeqCst) != 0
    })
}

/// The heaps that collect when their policy says so: in stress mode they do anyway.
fn on_paced_heaps(scenario: impl Fn(&Lab, &mut Mutator)) {
    on_every_heap_attached(|lab, m| {
        if !lab.stress {
            scenario(lab, m);
        }
    });
}

#[test]
fn g_52_a_threshold_of_1000_collects_within_10_000_allocations_unless_switched_off() {
    on_paced_heaps(|lab, m| {
        lab.heap.set_pacing(Pacing::default().with_young_objects(1000));
        assert!(cycles_until_a_collection(lab, m, 10_000).is_some());
        lab.heap.set_pacing(Pacing::manual());
        assert_eq!(cycles_until_a_collection(lab, m, 10_000), None);
        lab.heap.set_pacing(Pacing::default().with_young_objects(1000));
        assert!(cycles_until_a_collection(lab, m, 10_000).is_some());
    });
}

#[test]
fn the_default_policy_collects() {
    on_paced_heaps(|lab, m| {
        assert_eq!(lab.heap.pacing(), Pacing::default());
        assert!(cycles_until_a_collection(lab, m, 1_000_000).is_some());
    });
}

#[test]
fn bytes_count_as_well_as_objects() {
    struct Big {
        _bytes: Vec<u8>,
        _inline: [u64; 1000],
    }
    impl standstill::Trace for Big {
        fn traverse(_: &Self, _: &mut standstill::Tracer) {}
    }
    on_paced_heaps(|lab, m| {
        lab.heap
            .set_pacing(Pacing::default().with_young_objects(1 << 30).with_young_bytes(1 << 20));
        let count = collections(&lab.heap);
        let mut kept = Vec::new();
        while count.load(SeqCst) == 0 {
            kept.push(m.alloc(Big { _bytes: Vec::new(), _inline: [0; 1000] }));
            assert!(kept.len() < 10_000, "80 MB made without a collection");
            m.safepoint();
        }
    });
}

/// Freeing more than was allocated since the last collection must not put off the next one.
#[test]
fn g_53_frees_do_not_put_off_the_next_collection() {
    on_paced_heaps(|lab, m| {
        lab.heap.set_pacing(Pacing::default().with_young_objects(1000).with_full_minimum(1 << 30));
        let kept: Vec<_> = (0..50_000).map(|name| node(m, &lab.census, name)).collect();
        m.collect();
        drop(kept);
        m.safepoint();
        assert!(cycles_until_a_collection(lab, m, 10_000).is_some());
    });
}

#[test]
fn g_54_reading_statistics_all_the_time_does_not_prevent_collections() {
    on_paced_heaps(|lab, m| {
        lab.heap.set_pacing(Pacing::default().with_young_objects(1000));
        let count = collections(&lab.heap);
        for name in 0..5_000 {
            garbage_loop(m, &lab.census, name);
            let _ = (lab.heap.stats(), lab.heap.pacing());
            m.safepoint();
        }
        assert!(count.load(SeqCst) > 0);
    });
}

#[test]
fn g_55_switched_off_it_never_collects() {
    on_paced_heaps(|lab, m| {
        lab.heap.set_pacing(Pacing::manual());
        assert_eq!(cycles_until_a_collection(lab, m, 50_000), None);
        assert_eq!(lab.census.alive(), 50_000);
        assert_eq!(m.collect().collected, 50_000, "an explicit collection ignores the policy");
    });
}

/// Each live set is traversed in full again only after it has grown by a share of itself, so the
/// work is in proportion to the growth. And it is traversed, so each garbage object is found.
#[test]
fn building_a_large_heap_neither_starves_nor_runs_away() {
    on_paced_heaps(|lab, m| {
        lab.heap.set_pacing(Pacing::default().with_young_objects(1000).with_full_minimum(1000));
        let before = lab.heap.stats();
        let mut kept = Vec::new();
        let many = if is_full() { 200_000 } else { 50_000 };
        for name in 0..many {
            kept.push(node(m, &lab.census, name));
            m.safepoint();
        }
        let after = lab.heap.stats();
        let young = after.young_collections - before.young_collections;
        let full = after.collections - before.collections - young;
        // Doubling from 1000 to 200 000 takes eight steps, and to 50 000 six.
        assert!((1..=20).contains(&full), "{full} full collections");
        assert!((1..=220).contains(&young), "{young} young collections");
        // Old garbage goes without being asked for, before as much again has been made twice over.
        tie(m, &kept);
        drop(kept);
        let mut kept = Vec::new();
        while lab.census.dead() < many {
            kept.push(node(m, &lab.census, kept.len()));
            m.safepoint();
            assert!(kept.len() < many * 5 / 2, "old garbage is not found");
        }
    });
}

/// Several threads that make nothing but garbage. Dead objects that are not freed yet stay within
/// some multiple of the threshold, for any number of threads, and only one thread collects.
#[test]
fn garbage_of_many_threads_does_not_run_away() {
    const THREADS: usize = 6;
    let cycles = if is_full() { 40_000 } else { 10_000 };
    on_every_heap(|lab| {
        if lab.stress {
            return;
        }
        lab.heap.set_pacing(Pacing::default().with_young_objects(1000));
        let census = Census::new();
        let peak = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| {
                    let mut m = lab.heap.attach();
                    for name in 0..cycles {
                        garbage_loop(&m, &census, name);
                        m.safepoint();
                        peak.fetch_max(census.alive(), SeqCst);
                    }
                });
            }
        });
        let peak = peak.into_inner();
        assert!(
            peak < THREADS * cycles / 4,
            "{peak} of {} cycles were there at once",
            THREADS * cycles
        );
        lab.heap.attach_scoped(|m| m.collect());
        assert_eq!(census.alive(), 0);
    });
}

#[test]
fn a_guard_defers_automatic_collections_only() {
    on_paced_heaps(|lab, m| {
        lab.heap.set_pacing(Pacing::default().with_young_objects(1000));
        let outer = lab.heap.defer_collections();
        let inner = lab.heap.defer_collections();
        assert_eq!(cycles_until_a_collection(lab, m, 20_000), None);
        drop(outer);
        assert_eq!(cycles_until_a_collection(lab, m, 5_000), None, "one guard is left");
        assert_eq!(m.collect().collected, 25_000, "asked for, it collects");
        drop(inner);
        assert!(cycles_until_a_collection(lab, m, 10_000).is_some());
    });
}

#[test]
fn stress_collects_at_every_safepoint() {
    on_every_heap_attached(|lab, m| {
        if !lab.stress {
            return;
        }
        let count = collections(&lab.heap);
        for name in 0..50 {
            let before = count.load(SeqCst);
            drop(ring(m, &lab.census, name, 3));
            let weak = {
                let kept = node(m, &lab.census, name);
                Gc::downgrade(&kept, m)
            };
            m.safepoint();
            assert!(count.load(SeqCst) > before);
            assert_eq!(lab.census.alive(), 0);
            assert!(weak.upgrade(m).is_none());
        }
    });
}

/// A finalizer cannot collect, wait for a collection or attach. By other calls it can see that it
/// is inside a collection.
#[test]
fn nothing_collects_inside_a_collection() {
    on_every_heap_attached(|lab, m| {
        let heap = lab.heap.clone();
        let tried = Arc::new(AtomicUsize::new(0));
        let gc = fin(m, &lab.census, 0, {
            let tried = tried.clone();
            move |_, _| {
                assert!(heap.try_attach().is_err());
                assert!(panic_text(|| drop(heap.attach())).is_some());
                tried.fetch_add(1, SeqCst);
            }
        });
        link(m, &gc, &gc);
        drop(gc);
        assert_eq!(m.collect().collected, 1);
        assert_eq!(tried.load(SeqCst), 1);
    });
}

#[test]
fn a_second_collector_that_does_not_wait_gets_an_error() {
    on_every_heap(|lab| {
        // The first collection sits in a finalizer until the second has been refused.
        let (entered, enter) = std::sync::mpsc::channel();
        let (leave, left) = std::sync::mpsc::channel();
        let left = Mutex::new(left);
        std::thread::scope(|scope| {
            let mut m = lab.heap.attach();
            scope.spawn(move || {
                let mut m = lab.heap.attach();
                let entered = Mutex::new(Some(entered));
                let left = Mutex::new(Some(left));
                let gc = fin(&m, &lab.census, 0, move |_, _| {
                    entered.lock().unwrap().take().expect("once").send(()).unwrap();
                    let left = left.lock().unwrap().take().expect("once").into_inner().unwrap();
                    left.recv().unwrap();
                });
                link(&m, &gc, &gc);
                drop(gc);
                let _ = m.collect();
            });
            m.detach(|| enter.recv().unwrap());
            let refused = m.try_collect(Collect::full().wait(false));
            assert!(matches!(refused, Err(CollectError::Busy)), "{refused:?}");
            let refused = m.try_collect(Collect::young().wait(false));
            assert!(matches!(refused, Err(CollectError::Busy)), "{refused:?}");
            leave.send(()).unwrap();
            // Willing to wait, it gets its own collection.
            assert!(m.try_collect(Collect::full().wait(true)).is_ok());
        });
    });
}
