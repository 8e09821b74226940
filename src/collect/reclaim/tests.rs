//! Tests of reclaiming: which thread clears what, where it parks, and what the report says.

#![forbid(unsafe_code)]

use super::*;
use crate::collect::clear::POLL_DISTANCE;
use crate::collect::reclaim;
use crate::collect::tests::script::{Script, are_ordinary, collect, heap_with, scripted_heap};
use crate::collect::tests::{ends, heap};
use crate::safepoint;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc;

use crate::base::sync::{AtomicBool, AtomicUsize, Ordering};
use crate::collect::collection::collect_due;
use crate::heap::request::Collect;
use crate::object::tracer::Tracer;
use crate::{Gc, GcCell, Heap, Mutator, Pacing, Trace};

/// Counts that all objects of a test share.
#[derive(Default)]
struct Shared {
    cleared: AtomicUsize,
    /// Destructors of rings that have run; `held_died`: of the objects that rings held.
    died: AtomicUsize,
    held_died: AtomicUsize,
    /// The number of the clear handler, from 1, that waits until another thread requests a
    /// stop. 0: none.
    waits: usize,
    /// Whether a handler waits now.
    is_waiting: AtomicBool,
}

/// The object that a ring holds besides itself.
struct HeldGarbage(Arc<Shared>);

impl Trace for HeldGarbage {
    const TRACKED: bool = false;
    fn traverse(_: &Self, _: &mut Tracer) {}
}

impl Drop for HeldGarbage {
    fn drop(&mut self) {
        self.0.held_died.fetch_add(1, Ordering::Relaxed);
    }
}

/// References itself and a `HeldGarbage`.
struct Ring<const N: usize> {
    next: GcCell<Option<Gc<Ring<N>>>>,
    held: GcCell<Option<Gc<HeldGarbage>>>,
    shared: Arc<Shared>,
    _size: [u64; N],
}

impl<const N: usize> Trace for Ring<N> {
    fn traverse(this: &Self, tracer: &mut Tracer) {
        Trace::traverse(&this.next, tracer);
        Trace::traverse(&this.held, tracer);
    }
    fn clear(this: &Self, m: &Mutator) {
        let number = this.shared.cleared.fetch_add(1, Ordering::Relaxed) + 1;
        if number == this.shared.waits {
            this.shared.is_waiting.store(true, Ordering::Relaxed);
            while m.raw().poll() & safepoint::STOP == 0 {
                std::thread::yield_now();
            }
        }
        Trace::clear(&this.next, m);
        Trace::clear(&this.held, m);
    }
}

/// References itself.
struct Link(GcCell<Option<Gc<Self>>>);

impl Trace for Link {
    fn traverse(this: &Self, tracer: &mut Tracer) {
        Trace::traverse(&this.0, tracer);
    }
    fn clear(this: &Self, m: &Mutator) {
        Trace::clear(&this.0, m);
    }
}

impl<const N: usize> Drop for Ring<N> {
    fn drop(&mut self) {
        self.shared.died.fetch_add(1, Ordering::Relaxed);
    }
}

fn rings<const N: usize>(m: &Mutator, n: usize, shared: &Arc<Shared>) {
    for _ in 0..n {
        let held = Some(m.alloc(HeldGarbage(shared.clone())));
        let (next, held) = (GcCell::new(None), GcCell::new(held));
        let ring = m.alloc(Ring { next, held, shared: shared.clone(), _size: [0; N] });
        ring.next.set(m, Some(ring.clone()));
    }
}

/// Collects garbage, and stops the world from another thread when the clear handler with the
/// number `waits` runs. The result is three numbers at the stop: cleared objects, dead objects,
/// and dead held objects.
fn stopped_while_clearing(garbage: usize, waits: usize) -> [usize; 3] {
    let heap = heap();
    let shared = Arc::new(Shared { waits, ..Shared::default() });
    let mut m = heap.attach();
    rings::<1>(&m, garbage, &shared);
    let seen = std::thread::scope(|scope| {
        let other = scope.spawn(|| {
            while !shared.is_waiting.load(Ordering::Relaxed) {
                std::thread::yield_now();
            }
            let m = heap.attach();
            let _world = m.raw().stop_here().expect("a stop");
            let count = |count: &AtomicUsize| count.load(Ordering::Relaxed);
            [count(&shared.cleared), count(&shared.died), count(&shared.held_died)]
        });
        assert_eq!(m.collect().collected, garbage);
        m.join(other).expect("no panic")
    });
    assert_eq!(heap.stats().live_objects, 0);
    seen
}

/// The thread drops the references from the cleared fields before it parks.
#[test]
fn another_stop_waits_for_a_few_objects_that_are_cleared_and_not_for_all_garbage() {
    assert_eq!(stopped_while_clearing(3 * POLL_DISTANCE, 1), [POLL_DISTANCE, 0, POLL_DISTANCE]);
    assert_eq!(
        stopped_while_clearing(3 * POLL_DISTANCE, POLL_DISTANCE + 1),
        [2 * POLL_DISTANCE, 0, 2 * POLL_DISTANCE]
    );
    // When all objects are cleared, the stop waits for no release.
    assert_eq!(
        stopped_while_clearing(3 * POLL_DISTANCE, 3 * POLL_DISTANCE),
        [3 * POLL_DISTANCE, 0, 3 * POLL_DISTANCE]
    );
}

#[test]
fn a_thread_takes_batches_of_one_collection_and_not_of_the_next() {
    const GARBAGE: usize = RECLAIMED_FIRST + 2 * GARBAGE_BATCH;
    let heap = heap();
    let mut m = heap.attach();
    for number in 1..3 {
        rings::<1>(&m, GARBAGE, &Arc::default());
        collect_due(m.raw_mut(), Collect::young()).expect("no other thread collects");
        let mut collection = Some(number - 1);
        assert_eq!(
            reclaim_batch(m.raw_mut(), Owner::Any, &mut collection),
            None,
            "another collection's number"
        );
        let mut collection = None;
        assert_eq!(reclaim_batch(m.raw_mut(), Owner::Any, &mut collection), Some(GARBAGE_BATCH));
        assert_eq!(collection, Some(number));
        while reclaim_batch(m.raw_mut(), Owner::Any, &mut collection).is_some() {}
        assert!(!m.raw().core().collector_lock.is_reclaiming());
    }
    assert_eq!(heap.stats().live_objects, 0);
}

#[test]
fn each_running_thread_reclaims_the_garbage_on_its_own_pages() {
    // This thread's objects lie on both sides of the other thread's objects.
    const OTHERS: usize = 700;
    const OWN: [usize; 2] = [500, 300];
    let heap = heap();
    let ends = ends(&heap);
    let (mine, theirs) = (Arc::new(Shared::default()), Arc::new(Shared::default()));
    let is_left = AtomicBool::new(false);
    let died = |shared: &Shared| shared.died.load(Ordering::Relaxed);
    std::thread::scope(|scope| {
        let mut m = heap.attach();
        rings::<1>(&m, OWN[0], &mine);
        let (sender, receiver) = mpsc::channel();
        let (others, is_left, theirs, heap) = (theirs.clone(), &is_left, &theirs, &heap);
        let other = scope.spawn(move || {
            let mut m = heap.attach();
            rings::<1>(&m, OTHERS, &others);
            sender.send(()).expect("a receiver");
            while !is_left.load(Ordering::Acquire) {
                m.raw_mut().wait_parked();
                std::thread::yield_now();
            }
            let is_asked = m.raw().poll() & COLLECT != 0;
            let whose = Owner::This(m.raw().thread_id());
            assert!(reclaim(m.raw_mut(), whose, usize::MAX), "its own part");
            assert!(
                !m.raw().core().collector_lock.is_reclaiming(),
                "it is the last, and ends the collection"
            );
            is_asked
        });
        m.recv(&receiver).expect("a sender");
        rings::<20>(&m, OWN[1], &mine);
        collect_due(m.raw_mut(), Collect::young()).expect("nobody else collects");
        assert_eq!((died(&mine), died(theirs)), (OWN[0] + OWN[1], 0), "each its own");
        let whose = Owner::This(m.raw().thread_id());
        assert!(!reclaim(m.raw_mut(), whose, usize::MAX), "this thread is done");
        assert_eq!(ends.try_iter().count(), 0);
        is_left.store(true, Ordering::Release);
        assert!(m.join(other).expect("no panic"), "it is requested to reclaim");
    });
    assert_eq!((died(&mine), died(&theirs)), (OWN[0] + OWN[1], OTHERS));
    assert_eq!(ends.try_iter().collect::<Vec<_>>(), [(OWN[0] + OWN[1] + OTHERS, 0)]);
    assert_eq!(heap.stats().live_objects, 0);
}

/// One thread reclaims the garbage of all threads, which only take part in stops. The result is
/// the number of stops.
fn stops_for_one_thread(threads: usize) -> usize {
    let heap = heap();
    let stops = Arc::new(AtomicUsize::new(0));
    heap.on_collection({
        let stops = stops.clone();
        move |event| {
            if let Some(report) = event.report() {
                assert_eq!((report.collected, report.uncollectable), (report.unreachable, 0));
                stops.store(report.stops.len(), Ordering::Relaxed);
            }
        }
    });
    let (is_collected, is_over) = (AtomicBool::new(false), AtomicBool::new(false));
    let is_set = |flag: &AtomicBool| flag.load(Ordering::Acquire);
    std::thread::scope(|scope| {
        let mut m = heap.attach();
        let (sender, receiver) = mpsc::channel();
        let (heap, is_collected, is_over) = (&heap, &is_collected, &is_over);
        let spawn = |_| {
            let sender = sender.clone();
            scope.spawn(move || {
                let mut m = heap.attach();
                for _ in 0..=GARBAGE_BATCH {
                    let ring = m.alloc(Link(GcCell::new(None)));
                    ring.0.set(&m, Some(ring.clone()));
                }
                sender.send(()).expect("a receiver");
                while !is_set(is_collected) {
                    m.raw_mut().wait_parked();
                    std::thread::yield_now();
                }
                sender.send(()).expect("a receiver");
                while !is_set(is_over) {
                    m.raw_mut().wait_parked();
                    std::thread::yield_now();
                }
            })
        };
        let others: Vec<_> = (1..threads).map(spawn).collect();
        others.iter().for_each(|_| m.recv(&receiver).expect("a sender"));
        collect_due(m.raw_mut(), Collect::young()).expect("no other thread collects");
        is_collected.store(true, Ordering::Release);
        others.iter().for_each(|_| receiver.recv().expect("a sender"));
        while reclaim(m.raw_mut(), Owner::Any, usize::MAX) {}
        assert_eq!(heap.stats().live_objects, 0);
        is_over.store(true, Ordering::Release);
        others.into_iter().for_each(|other| m.join(other).expect("no panic"));
    });
    stops.load(Ordering::Relaxed)
}

/// The other threads would have to merge the counts, and may wait for a processor.
#[test]
fn garbage_of_more_threads_than_processors_waits_for_no_owner() {
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    assert_eq!(stops_for_one_thread(processors + 1), 1);
    if processors > 1 {
        // A thread counts its own objects faster, so another one must merge the counts.
        assert_eq!(stops_for_one_thread(processors), 2);
    }
}

/// Otherwise a heap with much garbage would have to allocate as much again before the next
/// collection is due.
#[test]
fn what_a_collection_frees_does_not_put_the_next_one_off() {
    let heap = heap();
    let mut m = heap.attach();
    let shared = Arc::new(Shared::default());
    rings::<1>(&m, 1_000, &shared);
    let counted = |m: &Mutator| m.raw().arena(|arena| arena.take_count());
    m.collect();
    let (objects, bytes) = counted(&m);
    assert!(objects >= 0 && bytes >= 0, "{objects} objects and {bytes} bytes");
    assert_eq!(heap.stats().live_objects, 0);
}

/// The owner of the memory finds the free cells later, when frees count again.
#[test]
fn memory_that_another_thread_freed_as_garbage_is_new_when_it_is_used_again() {
    let heap = heap();
    let mut m = heap.attach();
    let shared = Arc::new(Shared::default());
    let make = |m: &Mutator| {
        for _ in 0..2_000 {
            let (next, held) = (GcCell::new(None), GcCell::new(None));
            let ring = m.alloc(Ring::<1> { next, held, shared: shared.clone(), _size: [0; 1] });
            ring.next.set(m, Some(ring.clone()));
        }
    };
    let new = |m: &Mutator| m.raw().core().pace.new_objects();
    make(&m);
    std::thread::scope(|scope| {
        let other = scope.spawn(|| heap.attach_scoped(|m| m.collect().collected));
        assert_eq!(m.join(other).expect("no panic"), 2_000);
    });
    assert_eq!(new(&m), 0);
    make(&m);
    // Objects count when a magazine is filled.
    assert!((1_900..=2_100).contains(&new(&m)), "{} of 2000 objects are new", new(&m));
}

/// Otherwise collections without garbage would become due when a thread drops objects that
/// another thread allocated.
#[test]
fn the_pace_counts_frees_by_a_thread_that_allocates_nothing() {
    let heap = heap();
    let mut m = heap.attach();
    let shared = Arc::new(Shared::default());
    let given: Vec<_> = std::thread::scope(|scope| {
        let maker = scope.spawn(|| {
            heap.attach_scoped(|m| {
                (0..1_000).map(|_| m.alloc(HeldGarbage(shared.clone()))).collect::<Vec<_>>()
            })
        });
        m.join(maker).expect("no panic")
    });
    let new = || m.raw().core().pace.new_objects();
    assert!(new() >= 1_000, "{} objects are new", new());
    drop(given);
    assert!(new() <= 100, "{} objects are new", new());
}

/// A magazine of the thread contains cells that no object ever used.
#[test]
fn a_thread_that_ends_tells_the_pace_what_it_has_not_used() {
    let heap = heap();
    for _ in 0..20 {
        std::thread::scope(|scope| {
            scope.spawn(|| heap.attach_scoped(|m| drop(m.alloc(HeldGarbage(Arc::default())))));
        });
    }
    assert_eq!(heap.attach().raw().core().pace.new_objects(), 0);
}

/// Collects 600 objects. In the call `called` the thread waits until another thread requests a
/// stop. The result is the list of calls to the model before the stop.
fn stopped_in(called: &'static str) -> Option<Vec<String>> {
    let heap = scripted_heap()?;
    let mut m = heap.attach();
    let named: Vec<(char, &'static str)> =
        ('\u{4e00}'..).take(600).map(|name| (name, "")).collect();
    Script::ring(&m, &named);
    let (sender, receiver) = std::sync::mpsc::channel();
    heap.model().when(called, move |m| {
        sender.send(()).expect("a receiver");
        while m.poll() & crate::safepoint::STOP == 0 {
            std::thread::yield_now();
        }
    });
    let calls = std::thread::scope(|scope| {
        let heap = &heap;
        let other = scope.spawn(move || {
            receiver.recv().expect("a call");
            let m = heap.attach();
            let _world = m.stop_here().expect("a stop");
            heap.model().calls()
        });
        assert_eq!(collect(&mut m, Collect::full()).0.collected, 600);
        m.detach(|| other.join()).expect("no panic")
    });
    Some(calls)
}

#[test]
fn a_thread_that_clears_parks_after_a_few_objects_and_drops_before_what_it_has_taken_out() {
    let Some(calls) = stopped_in("clear \u{4e00}") else { return };
    assert_eq!(calls.iter().filter(|what| what.starts_with("clear \u{4e00}")).count(), 1);
    assert_eq!(calls.iter().filter(|what| *what == "cleared").count(), 256);
    assert_eq!(calls.last().map(String::as_str), Some("all cleared"));
}

#[test]
fn a_thread_that_releases_parks_after_a_few_objects() {
    let Some(calls) = stopped_in("release \u{4e0a}") else { return };
    assert_eq!(calls.iter().filter(|what| what.starts_with("release")).count(), 256);
}

#[test]
fn objects_that_die_while_settling_are_destroyed_after_a_separate_stop() {
    let Some(heap) = scripted_heap() else { return };
    let mut m = heap.attach();
    let late = Script::thing(&m, 'e', "", "s");
    Script::ring(&m, &[('a', "")]);
    heap.model().state().needs_stop = true;
    heap.model().when("after_clear", move |m| m.model().state().later.push(late));
    let (_, calls) = collect(&mut m, Collect::full());
    let expected = [
        "after_clear",
        "merge",
        "destroy_merged e, dying: false",
        "e dies",
        "resumed",
        "stop: 2 stops, 1 unreachable, 0 finalized, 0 resurrected, 1 collected, 0 uncollectable",
    ];
    assert_eq!(calls[calls.len() - expected.len()..], expected);
}

/// The objects after the failed release keep their references, and count as uncollectable.
#[test]
fn a_collection_whose_release_unwinds_is_closed_first() {
    for is_requested in [false, true] {
        unwinds(is_requested);
    }
}

fn unwinds(is_requested: bool) {
    let Some(heap) = scripted_heap() else { return };
    let mut m = heap.attach();
    let ring = Script::ring(&m, &[('a', ""), ('b', ""), ('c', "")]);
    heap.model().when("release b", |_| panic!("a release, on purpose"));
    let unwound = catch_unwind(AssertUnwindSafe(|| match is_requested {
        false => collect_due(&mut m, Collect::young()),
        true => m.try_collect(Collect::young()).map(|_| ()),
    }));
    assert!(unwound.is_err());
    assert!(m.arena(|arena| arena.count_frees(true)), "the pace hears of frees again");
    let calls = heap.model().calls();
    let end =
        "stop: 2 stops, 3 unreachable, 0 finalized, 0 resurrected, 1 collected, 2 uncollectable";
    let settled =
        ["after_clear", "merge", "hold b", "hold c", "resumed", "release b", "release c", end];
    let from = calls.len() - settled.len() - 3;
    assert_eq!(calls[from..][..3], ["release a", "a dies", "release b"]);
    assert_eq!(calls[from + 3..], settled);
    assert!(m.core().collector_lock.try_acquire() && !m.core().collector_lock.is_reclaiming());
    m.core().collector_lock.release();
    // The objects still have the claim's references.
    are_ordinary(&m, &ring[1..], 1);
    let released: Vec<_> =
        ring[1..].iter().map(|&object| heap.model().drop_ref(object, &m)).collect();
    assert_eq!((released.len(), heap.stats().live_objects), (2, 0));
}

/// The garbage is kept, so that only references to spared objects are released.
#[test]
fn a_collection_whose_release_of_a_kept_object_unwinds_is_closed_first() {
    let Some(heap) = scripted_heap() else { return };
    let mut m = heap.attach();
    let ring = Script::ring(&m, &[('a', ""), ('b', "")]);
    heap.model().keep_all();
    heap.model().when("release b", |_| panic!("a release, on purpose"));
    let unwound = catch_unwind(AssertUnwindSafe(|| m.try_collect(Collect::full()).map(|_| ())));
    assert!(unwound.is_err());
    let calls = heap.model().calls();
    let end =
        "stop: 1 stops, 2 unreachable, 0 finalized, 0 resurrected, 0 collected, 2 uncollectable";
    assert_eq!(calls.last().map(String::as_str), Some(end));
    assert!(m.core().collector_lock.try_acquire(), "the lock is free");
    m.core().collector_lock.release();
    are_ordinary(&m, &ring[..1], 1);
    are_ordinary(&m, &ring[1..], 2);
    heap.model().drop_ref(ring[1], &m);
    heap.model().state().keeps = false;
    assert_eq!((collect(&mut m, Collect::full()).0.collected, heap.stats().live_objects), (2, 0));
}

/// Otherwise the lock would be taken for good, and the report lost.
#[test]
fn a_collection_whose_settling_unwinds_is_closed_first() {
    let Some(heap) = scripted_heap() else { return };
    let mut m = heap.attach();
    Script::ring(&m, &[('a', ""), ('b', "")]);
    heap.model().state().needs_stop = true;
    heap.model().when("after_clear", |m| m.model().state().merge_fails = true);
    let unwound =
        catch_unwind(AssertUnwindSafe(|| collect_due(&mut m, Collect::full()).map(|_| ())));
    assert!(unwound.is_err());
    let calls = heap.model().calls();
    let end =
        "stop: 1 stops, 2 unreachable, 0 finalized, 0 resurrected, 2 collected, 0 uncollectable";
    assert_eq!(calls.last().map(String::as_str), Some(end));
    assert!(m.core().collector_lock.try_acquire(), "the lock is free");
    m.core().collector_lock.release();
}

#[test]
fn what_a_clear_handler_untracks_is_not_cleared() {
    let Some(heap) = scripted_heap() else { return };
    let mut m = heap.attach();
    let ring = Script::ring(&m, &[('a', ""), ('b', "")]);
    let other = ring[1];
    heap.model().when("clear a", move |m| assert!(Script::untrack(m, other)));
    let (_, calls) = collect(&mut m, Collect::full());
    assert!(!calls.contains(&"clear b".to_owned()), "{calls:?}");
    assert_eq!(heap.stats().live_objects, 0);
}

#[test]
fn nothing_is_due_after_a_small_collection_and_its_garbage_slows_no_thread_down() {
    let Some(heap) = heap_with(Pacing::default().with_young_objects(1)) else { return };
    let mut m = heap.attach();
    Script::ring(&m, &[('o', ""); 100]);
    m.take_collect();
    collect_due(&mut m, Collect::full()).expect("a turn");
    assert_eq!(m.poll() & crate::heap::core::COLLECT, 0);
    let pace = &heap.0.core.pace;
    pace.taken(40, 0);
    assert!(pace.is_overdue(), "less than half of the garbage of a collection that is over");
    assert_eq!(heap.stats().live_objects, 0);
}

/// If pages run short, the collecting thread clears all garbage before its call returns.
#[test]
fn in_a_heap_that_is_nearly_full_all_garbage_is_reclaimed_at_once() {
    for is_tight in [false, true] {
        let limit = if is_tight { 6 << 16 } else { 1 << 27 };
        let builder =
            Heap::builder().reserve(1 << 28).limit(limit).workers(1).pacing(Pacing::manual());
        let heap = builder.build_with(Script::default()).expect("a heap");
        let mut m = heap.attach();
        Script::ring(&m, &vec![('o', ""); reclaim::RECLAIMED_FIRST + 3 * GARBAGE_BATCH]);
        let kept: Vec<Object> = (0..3).map(|_| Script::sized(&m, 60_000, 'k', "", "s")).collect();
        assert_eq!(m.core().space.is_tight(), is_tight);
        collect_due(&mut m, Collect::full()).expect("a turn");
        assert_eq!(m.core().collector_lock.is_reclaiming(), !is_tight);
        while reclaim::reclaim(&mut m, Owner::Any, usize::MAX) {}
        kept.iter().for_each(|&object| heap.model().drop_ref(object, &m));
        assert_eq!(heap.stats().live_objects, 0);
    }
}
