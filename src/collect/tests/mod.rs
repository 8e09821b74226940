//! Tests of whole collections.

/// Collections of random graphs, compared with a plain search for reachable objects.
mod graph;
/// The calls of a collection to an object model: their order, and the effects of each result.
mod protocol;
/// The scripted object model of the tests. It records each call of a collection, and returns the
/// results that a test has set.
#[allow(unsafe_code)]
pub(crate) mod script;

use crate::base::sync::{AtomicBool, AtomicUsize, Ordering};
use crate::collect::collection::{collect, collect_due};
use crate::collect::reclaim;
use crate::collect::sweep::promote_now;
use crate::heap::reclaim_queue::{GARBAGE_BATCH, Owner};
use crate::heap::request::{Collect, CollectError};
use crate::object::tracer::Tracer;
use crate::report::facts::CollectionEvent;
use crate::{AtomicGc, Gc, GcCell, Heap, Mutator, Pacing, Trace, safepoint};
use std::sync::Arc;
use std::sync::mpsc;

/// References itself, by a slot that is read without a lock. The second field counts the rounds
/// of a running thread.
struct Slotted(AtomicGc<Slotted>, Arc<AtomicUsize>);

impl Trace for Slotted {
    fn traverse(this: &Self, tracer: &mut Tracer) {
        Trace::traverse(&this.0, tracer);
    }
    fn clear(this: &Self, m: &Mutator) {
        // Two more rounds: the thread has certainly returned from the previous stop.
        let before = this.1.load(Ordering::Relaxed);
        while this.1.load(Ordering::Relaxed) < before + 2 {
            std::thread::yield_now();
        }
        Trace::clear(&this.0, m);
    }
}

/// References itself, and may refuse to be cleared.
pub(crate) struct Ring(pub(crate) GcCell<Option<Gc<Ring>>>, pub(crate) bool);

impl Trace for Ring {
    fn traverse(this: &Self, tracer: &mut Tracer) {
        Trace::traverse(&this.0, tracer);
    }
    fn clear(this: &Self, m: &Mutator) {
        if !this.1 {
            Trace::clear(&this.0, m);
        }
    }
}

pub(super) fn heap() -> Heap {
    Heap::builder().reserve(1 << 30).workers(1).pacing(Pacing::manual()).build().expect("a heap")
}

pub(crate) fn rings(m: &Mutator, n: usize, refuses: bool) {
    for _ in 0..n {
        let ring = m.alloc(Ring(GcCell::new(None), refuses));
        ring.0.set(m, Some(ring.clone()));
    }
}

/// Receives the figures of each collection that ends: collected and uncollectable.
pub(super) fn ends(heap: &Heap) -> mpsc::Receiver<(usize, usize)> {
    let (sender, receiver) = mpsc::channel();
    heap.on_collection(move |event| {
        if let CollectionEvent::Stop(report) = event {
            let _ = sender.send((report.collected, report.uncollectable));
        }
    });
    receiver
}

/// Another thread is attached all the time. It takes part in stops, and passes no other
/// safepoint. So it counts as a reader of each slot until the collection stops the world again.
#[test]
fn what_lock_free_slots_held_is_gone_when_the_collection_ends_though_other_threads_run() {
    const OBJECTS: usize = 100;
    let heap = heap();
    let ends = ends(&heap);
    let on = AtomicBool::new(true);
    let rounds = Arc::new(AtomicUsize::new(0));
    std::thread::scope(|scope| {
        let (sender, receiver) = mpsc::channel();
        let other = heap.clone();
        let (on, rounds) = (&on, &rounds);
        scope.spawn(move || {
            let mut m = other.attach();
            sender.send(()).expect("a receiver");
            while on.load(Ordering::Relaxed) {
                if m.raw().poll() & safepoint::STOP != 0 {
                    m.raw_mut().wait_parked();
                }
                rounds.fetch_add(1, Ordering::Relaxed);
                std::thread::yield_now();
            }
        });
        let mut m = heap.attach();
        m.recv(&receiver).expect("a sender");
        let garbage = |m: &Mutator| {
            for _ in 0..OBJECTS {
                let slotted = m.alloc(Slotted(AtomicGc::new(None), rounds.clone()));
                slotted.0.store(m, Some(slotted.clone()));
            }
        };
        garbage(&m);
        let report = m.collect();
        garbage(&m);
        collect_due(m.raw_mut(), Collect::young()).expect("nobody else collects");
        on.store(false, Ordering::Relaxed);
        assert_eq!((report.collected, report.uncollectable), (OBJECTS, 0), "by request");
        assert!(report.stops.len() >= 2, "each stop is in the report");
        assert_eq!(ends.try_iter().collect::<Vec<_>>(), [(OBJECTS, 0); 2]);
        assert_eq!(heap.stats().live_objects, 0);
    });
}

/// The thread reclaims batches up to a limit, and the report counts each object once.
#[test]
fn a_late_thread_reclaims_up_to_a_limit_and_the_report_is_exact() {
    const REFUSING: usize = 7;
    let heap = heap();
    let ends = ends(&heap);
    let mut m = heap.attach();
    let whole = Owner::This(m.raw().thread_id());
    let garbage = reclaim::RECLAIMED_FIRST + 2 * GARBAGE_BATCH;
    rings(&m, REFUSING, true);
    rings(&m, garbage - REFUSING, false);
    collect_due(m.raw_mut(), Collect::young()).expect("nobody else collects");
    let live = || heap.stats().live_objects;
    assert_eq!(live(), 2 * GARBAGE_BATCH + REFUSING, "all but two batches");
    assert_ne!(m.raw().poll() & crate::heap::core::COLLECT, 0, "the rest is due");
    assert_eq!(collect_due(m.raw_mut(), Collect::young()), Err(CollectError::Busy));
    assert_eq!(
        collect(m.raw_mut(), Collect::full().wait(false)).map(|_| ()),
        Ok(()),
        "what is in nobody's hands"
    );
    assert_eq!(
        ends.try_iter().collect::<Vec<_>>(),
        [(garbage - REFUSING, REFUSING), (0, REFUSING)]
    );
    assert!(!m.raw().core().collector_lock.is_reclaiming());
    assert!(!reclaim::reclaim(m.raw_mut(), whole, usize::MAX), "nothing is left");
    assert_eq!(live(), REFUSING);
}

/// An object is new also in a cell that an allocator has kept since before the collection.
#[test]
fn what_is_made_after_a_collection_is_new() {
    let heap = heap();
    let mut m = heap.attach();
    let mut kept = Vec::new();
    for round in 0..6 {
        kept.push(m.alloc(Ring(GcCell::new(None), false)));
        match round % 3 {
            0 => drop(m.collect_young()),
            1 => drop(m.collect()),
            _ => promote_now(m.raw_mut()).expect("a stop"),
        }
        rings(&m, 1, false);
        m.verify().expect("a sound heap");
        assert_eq!(m.collect_young().collected, 1, "round {round}");
    }
}
