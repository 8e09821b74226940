//! Collections whose stops have a limit, beside a thread that is attached and does not poll.

#![cfg(not(any(loom, shuttle)))]

mod common;

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use common::deadline;
use standstill::safepoint::StopError;
use standstill::{
    Collect, CollectError, CollectionEvent, CollectionReason, CollectionReport, Gc, GcCell, Heap,
    HeapBuilder, Mutator, Pacing, Trace,
};

const LIMIT: Duration = Duration::from_millis(5);

#[derive(Trace)]
struct Node {
    me: GcCell<Option<Gc<Node>>>,
}

fn garbage(m: &Mutator) {
    let node = m.alloc(Node { me: GcCell::default() });
    node.me.set(m, Some(node.clone()));
}

/// The reports of a heap's collections.
type Reports = Arc<Mutex<Vec<CollectionReport>>>;

fn heap(builder: HeapBuilder) -> (Heap, Reports) {
    let heap = builder.build().unwrap();
    let reports = Reports::default();
    let told = reports.clone();
    heap.on_collection(move |event| {
        if let CollectionEvent::Stop(report) = event {
            told.lock().unwrap().push((*report).clone());
        }
    });
    (heap, reports)
}

/// Calls `f` while another thread is attached and does not poll.
fn beside_a_late_thread<R>(heap: &Heap, f: impl FnOnce() -> R) -> R {
    thread::scope(|s| {
        let (tell, told) = channel();
        let (end, ended) = channel::<()>();
        s.spawn(move || late(heap, &tell, &ended));
        told.recv().unwrap();
        let result = f();
        drop(end);
        result
    })
}

fn late(heap: &Heap, tell: &Sender<()>, ended: &Receiver<()>) {
    let _late = heap.attach();
    tell.send(()).unwrap();
    ended.recv().unwrap_err();
}

#[test]
fn a_collection_that_cannot_stop_the_world_in_time_has_not_happened() {
    let _deadline = deadline("a collection with a limit");
    let (heap, reports) = heap(Heap::builder().pacing(Pacing::manual()));
    let mut m = heap.attach();
    garbage(&m);
    for what in [Collect::full(), Collect::young(), Collect::full().forked(true)] {
        for limit in [Duration::ZERO, LIMIT] {
            let result = beside_a_late_thread(&heap, || m.try_collect(what.within(limit)));
            let Err(CollectError::Stop(StopError::TimedOut { stragglers })) = result else {
                panic!("{result:?}")
            };
            assert_eq!(stragglers.len(), 1);
            let report = reports.lock().unwrap().pop().unwrap();
            assert!(report.abandoned.unwrap().contains("at its limit"));
            assert_eq!((report.candidates, report.stops.len()), (0, 0));
        }
    }
    assert_eq!((heap.stats().collections, heap.stats().live_objects), (0, 1));
    for limit in [Duration::ZERO, Duration::MAX] {
        let report = m.try_collect(Collect::full().within(limit)).unwrap();
        assert_eq!((report.abandoned, report.collected), (None, usize::from(limit.is_zero())));
    }
}

/// Its finalizer waits until another thread is attached, which it stays.
#[derive(Trace)]
#[trace(finalize)]
struct Ended {
    me: GcCell<Option<Gc<Ended>>>,
    #[trace(skip)]
    attached: Mutex<Receiver<()>>,
    #[trace(skip)]
    runs: Sender<()>,
}

impl Ended {
    fn finalize(&self, _: &Mutator) {
        self.runs.send(()).unwrap();
        self.attached.lock().unwrap().recv().unwrap();
    }
}

#[test]
fn a_collection_whose_second_stop_is_late_keeps_its_objects_for_the_next_one() {
    let _deadline = deadline("a second stop with a limit");
    let (heap, reports) = heap(Heap::builder().pacing(Pacing::manual()));
    let failures = Arc::new(Mutex::new(Vec::new()));
    let told = failures.clone();
    heap.on_unraisable(move |failure| told.lock().unwrap().push(failure.message.to_string()));
    let mut m = heap.attach();
    let (tell, attached) = channel();
    let (runs, running) = channel();
    let object = m.alloc(Ended { me: GcCell::default(), attached: Mutex::new(attached), runs });
    object.me.set(&m, Some(object.clone()));
    drop(object);
    thread::scope(|s| {
        let (end, ended) = channel::<()>();
        let heap = &heap;
        s.spawn(move || {
            running.recv().unwrap();
            late(heap, &tell, &ended);
        });
        let report = m.try_collect(Collect::full().within(LIMIT)).unwrap();
        assert!(report.abandoned.as_ref().unwrap().contains("at its limit"), "{report:?}");
        assert_eq!((report.unreachable, report.finalized, report.collected), (1, 1, 0));
        assert_eq!(reports.lock().unwrap().pop().unwrap(), report);
        drop(end);
    });
    assert_eq!(failures.lock().unwrap().len(), 1);
    assert!(failures.lock().unwrap()[0].contains("thread"));
    let report = m.collect();
    assert_eq!((report.finalized, report.collected, report.abandoned), (0, 1, None));
    m.verify().unwrap();
}

#[test]
fn a_collection_of_the_heap_gives_up_and_is_not_tried_at_each_safepoint() {
    let _deadline = deadline("a heap with a limit");
    let pacing = Pacing::default().with_young_objects(1 << 30);
    let (heap, reports) = heap(Heap::builder().stop_limit(LIMIT).pacing(pacing));
    let mut m = heap.attach();
    let kept: Vec<_> = (0..1_000).map(|_| m.alloc(Node { me: GcCell::default() })).collect();
    kept.iter().for_each(|node| node.me.set(&m, Some(node.clone())));
    m.collect_young();
    drop(kept);
    reports.lock().unwrap().clear();
    beside_a_late_thread(&heap, || {
        heap.set_pacing(pacing.with_full_minimum(999));
        (0..10).for_each(|_| m.safepoint());
    });
    let told = std::mem::take(&mut *reports.lock().unwrap());
    assert_eq!(told.len(), 1, "{told:?}");
    assert_eq!(told[0].reason, CollectionReason::Growth);
    assert!(told[0].abandoned.as_ref().unwrap().contains("at its limit"));
    assert_eq!(heap.stats().live_objects, 1_000);
    // A request has only the limit that it names.
    assert_eq!(m.collect().collected, 1_000);
}

#[test]
fn a_promotion_of_the_heap_gives_up_too() {
    let _deadline = deadline("a promotion with a limit");
    let pacing = Pacing::default().with_young_objects(10);
    let (heap, _) = heap(Heap::builder().stop_limit(LIMIT).pacing(pacing));
    let mut m = heap.attach();
    let mut kept = Vec::new();
    let mut work = |m: &mut Mutator| {
        for _ in 0..100 {
            kept.push(m.alloc(Node { me: GcCell::default() }));
            m.safepoint();
        }
    };
    let done = |heap: &Heap| heap.stats().promotions + heap.stats().collections;
    beside_a_late_thread(&heap, || work(&mut m));
    assert_eq!(done(&heap), 0);
    work(&mut m);
    assert!(done(&heap) > 0);
}
