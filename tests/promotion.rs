//! While a heap is being built, most new objects become old without a traversal. No object is lost
//! by that, and little garbage is kept for longer (`docs/adr/0020-promotion-without-traversal.md`).

#![cfg(not(loom))]

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use common::*;
use standstill::{
    AnyGc, CollectionKind, Gc, GcCell, Heap, Mutator, Pacing, Stress, Thresholds, Trace, Tracer,
};

/// New objects that make something due here.
const YOUNG: usize = 500;
/// Threads fetch so many cells at a time, and notice a due collection then.
const REFILL: usize = 64;

fn pacing() -> Pacing {
    Pacing::default().with_young_objects(YOUNG).with_full_minimum(8_000)
}

/// Whether the environment makes all heaps collect at safepoints.
fn heap_collects_anyway(heap: &Heap) -> bool {
    let before = heap.stats().collections;
    heap.attach().safepoint();
    heap.stats().collections != before
}

/// A heap of this pacing, unless it would collect anyway.
fn heap(pacing: Pacing, stress: Stress) -> Option<Heap> {
    let heap = Heap::builder().reserve(1 << 30).pacing(pacing).stress(stress).build().unwrap();
    (!heap_collects_anyway(&heap)).then_some(heap)
}

/// Builds so many objects more.
fn build(m: &mut Mutator, census: &Arc<Census>, kept: &mut Vec<Gc<Node>>, more: usize) {
    for _ in 0..more {
        kept.push(node(m, census, kept.len()));
        m.safepoint();
    }
}

/// Builds on until there has just been a promotion.
fn build_until_a_promotion(
    m: &mut Mutator,
    heap: &Heap,
    census: &Arc<Census>,
    kept: &mut Vec<Gc<Node>>,
) {
    let before = heap.stats().promotions;
    let until = kept.len() + 100_000;
    while heap.stats().promotions == before {
        assert!(kept.len() < until, "no promotion");
        // Few at a time: the figures take a scan of the heap.
        build(m, census, kept, REFILL / 2);
    }
}

#[test]
fn most_new_objects_are_promoted_without_a_traversal_or_a_report() {
    let Some(heap) = heap(pacing(), Stress::none()) else { return };
    let looked_at = Arc::new(AtomicUsize::new(0));
    let told = Arc::new(AtomicUsize::new(0));
    heap.on_collection({
        let (looked_at, told) = (looked_at.clone(), told.clone());
        move |event| {
            if let Some(report) = event.report() {
                told.fetch_add(1, SeqCst);
                if report.kind == CollectionKind::Young {
                    looked_at.fetch_add(report.candidates, SeqCst);
                }
            }
        }
    });
    let census = Census::new();
    let mut m = heap.attach();
    let mut kept = Vec::new();
    const MANY: usize = 150_000;
    build(&mut m, &census, &mut kept, MANY);
    let stats = heap.stats();
    assert!(stats.promotions > 30, "{} promotions", stats.promotions);
    assert_eq!(stats.collections, told.load(SeqCst), "a promotion is no collection");
    let full = stats.collections - stats.young_collections;
    assert!((2..=4).contains(&full), "{full} full collections, as growth has it");
    let looked_at = looked_at.load(SeqCst);
    assert!(looked_at < MANY / 2, "{looked_at} of {MANY} looked at while young");
    // A requested collection traverses.
    let report = m.collect_young();
    assert_eq!(report.kind, CollectionKind::Young);
    assert_eq!(heap.stats().promotions, stats.promotions);
    m.verify().unwrap();
    drop(kept);
    assert_eq!(census.alive(), 0);
}

#[test]
fn promoted_garbage_is_old_and_a_full_collection_finds_it() {
    let Some(heap) = heap(pacing(), Stress::none()) else { return };
    let census = Census::new();
    let mut m = heap.attach();
    let mut kept = Vec::new();
    build(&mut m, &census, &mut kept, 100_000);
    // Some loops among much that lives, right after a promotion, so that the next one comes before
    // a look: with eight slices in a period it does, or does the next time.
    for attempt in 0.. {
        assert!(attempt < 10, "each promotion was followed by a look");
        build_until_a_promotion(&mut m, &heap, &census, &mut kept);
        let before = heap.stats();
        let alive = census.alive();
        (0..100).for_each(|name| garbage_loop(&m, &census, name));
        build_until_a_promotion(&mut m, &heap, &census, &mut kept);
        if heap.stats().young_collections != before.young_collections {
            continue;
        }
        let report = m.collect_young();
        assert_eq!((report.collected, census.alive() > alive + 100), (0, true));
        assert!(report.candidates <= 2 * REFILL, "{} were still young", report.candidates);
        assert_eq!(m.collect().collected, 100);
        break;
    }
    m.verify().unwrap();
}

/// After any sudden change the garbage is found within a period and a traversal. Only the objects
/// that were promoted meanwhile wait for a full collection.
#[test]
fn a_program_that_turns_from_building_to_making_garbage_is_detected() {
    let Some(heap) = heap(pacing(), Stress::none()) else { return };
    for kept_objects in [50_000, 100_000, 150_000] {
        let census = Census::new();
        let mut m = heap.attach();
        let mut kept = Vec::new();
        build(&mut m, &census, &mut kept, kept_objects);
        build_until_a_promotion(&mut m, &heap, &census, &mut kept);
        let live = census.alive();
        // The new objects after which a young collection would run without promotions.
        let period = YOUNG.max(live / 16) + REFILL;
        let mut made = 0;
        while census.dead() == 0 {
            garbage_loop(&m, &census, made);
            m.safepoint();
            made += 1;
            assert!(made <= period, "{made} made and none found, with {live} alive");
        }
        let mut most = 0;
        for name in 0..20 * period {
            garbage_loop(&m, &census, name);
            m.safepoint();
            most = most.max(census.alive() - live);
        }
        // The old objects of one period, and the young ones of another, with the unreclaimed
        // garbage.
        assert!(most <= 3 * period, "{most} pieces of garbage at a time, with {live} alive");
        m.collect();
        assert_eq!(census.alive(), live);
    }
}

#[test]
fn no_thresholds_no_explicit_policy_and_no_small_heap_promotes() {
    let thresholds = Pacing::default().with_thresholds(Thresholds::default());
    for (pacing, objects) in
        [(thresholds, 100_000), (Pacing::manual(), 100_000), (Pacing::default(), 39_000)]
    {
        let Some(heap) = heap(pacing, Stress::none()) else { return };
        let census = Census::new();
        let mut m = heap.attach();
        build(&mut m, &census, &mut Vec::new(), objects);
        assert_eq!(heap.stats().promotions, 0, "{pacing:?}");
    }
}

/// Where most pages are in use, all that is garbage counts.
#[test]
fn a_tight_heap_promotes_nothing() {
    let builder = Heap::builder().reserve(1 << 30).pacing(pacing());
    let heap = builder.limit(16 << 20).build().unwrap();
    if heap_collects_anyway(&heap) {
        return;
    }
    let census = Census::new();
    let mut m = heap.attach();
    let mut kept = Vec::new();
    while heap.stats().in_use_bytes < 13 << 20 {
        build(&mut m, &census, &mut kept, 1_000);
    }
    let before = heap.stats();
    build(&mut m, &census, &mut kept, 10_000);
    let after = heap.stats();
    assert_eq!(after.promotions, before.promotions);
    assert!(after.promotions > 0 && after.collections > before.collections);
}

/// Threads that build, trade objects and lose cycles, under checks of each stop: nothing is lost,
/// nothing dies early.
#[test]
fn threads_that_build_and_trade_lose_nothing() {
    let stress = Stress::none().verify(true).poison(true);
    let Some(heap) =
        heap(Pacing::default().with_young_objects(200).with_full_minimum(1_000), stress)
    else {
        return;
    };
    let census = Census::new();
    let shelf = Shelf::<Node>::new();
    std::thread::scope(|s| {
        for thread in 0..3 {
            let (heap, census, shelf) = (&heap, &census, &shelf);
            s.spawn(move || {
                let mut m = heap.attach();
                let mut kept: Vec<Gc<Node>> = Vec::new();
                // A thread that runs alone needs more objects: the old set must reach the size at
                // which a period has two slices.
                for name in 0.. {
                    if name >= 6_000 && name % 100 == 0 && heap.stats().promotions > 0 {
                        break;
                    }
                    assert!(name < 100_000, "no promotion");
                    let object = node(&m, census, name);
                    if let Some(last) = kept.last() {
                        link(&m, last, &object);
                    }
                    kept.push(object);
                    match name % 100 {
                        // Objects of other threads are dropped here: their counts are merged in
                        // stops.
                        7 => shelf.push(kept[name / 2].clone()),
                        57 => drop(shelf.take()),
                        // In the second half: cycles of promoted objects.
                        99 if thread == 0 && name > 3_000 => {
                            tie(&m, &kept.split_off(kept.len() - 50))
                        }
                        _ => {}
                    }
                    m.safepoint();
                }
                kept.iter().for_each(|object| object.witness.check());
            });
        }
    });
    let mut m = heap.attach();
    drop(shelf.take());
    m.collect();
    m.verify().unwrap();
    assert_eq!(census.alive(), 0);
}

/// A reference that can change.
#[derive(Default, Trace)]
struct Link(GcCell<Option<Gc<Link>>>);

/// A thread that freed more than it allocated did not report it. So a program that makes and frees
/// objects all the time collected again and again, in proportion to its allocations.
#[test]
fn objects_that_counting_frees_make_no_collection_due() {
    let heap = Heap::new();
    if heap_collects_anyway(&heap) {
        return;
    }
    let mut m = heap.attach();
    for _ in 0..1000 {
        let some: Vec<_> = (0..1000).map(|_| m.alloc(Link::default())).collect();
        m.safepoint();
        drop(some);
        m.safepoint();
    }
    assert_eq!(heap.stats().collections, 0);
    // But garbage is not taken for something that is freed as it goes, when a collection has found
    // it.
    for _ in 0..1_000_000 {
        let cycle = m.alloc(Link::default());
        cycle.0.set(&m, Some(cycle.clone()));
        m.safepoint();
    }
    let stats = heap.stats();
    assert!(stats.collections >= 50 && stats.live_objects < 100_000, "{stats:?}");
}

/// After an abandoned collection the next one was due at once, at each refill, as long as the cause
/// persisted.
#[test]
fn a_traversal_that_always_panics_does_not_stop_the_world_all_the_time() {
    struct Bad(GcCell<Option<AnyGc>>);
    impl Trace for Bad {
        fn traverse(_: &Self, _: &mut Tracer) {
            panic!("on purpose");
        }
        fn clear(this: &Self, m: &Mutator) {
            Trace::clear(&this.0, m);
        }
    }
    let heap = Heap::new();
    if heap_collects_anyway(&heap) {
        return;
    }
    heap.on_unraisable(|_| {});
    let mut m = heap.attach();
    let _bad = m.alloc(Bad(GcCell::default()));
    let mut kept = Vec::new();
    for _ in 0..300_000 {
        kept.push(m.alloc(Link::default()));
        m.safepoint();
    }
    let stats = heap.stats();
    assert!((5..300).contains(&stats.stops), "{stats:?}");
}
