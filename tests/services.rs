//! The services of CPython's `gc` module, row by row of the conformance table: the name of each
//! test starts with the row's.

#![cfg(not(loom))]
#![allow(missing_docs)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering::*};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use standstill::gc_module::{
    CallbackPhase, DEBUG_COLLECTABLE, DEBUG_LEAK, DEBUG_SAVEALL, DEBUG_STATS, DEBUG_UNCOLLECTABLE,
    Visit, process_memory,
};
use standstill::model::{
    ClaimRef, Count, Found, Live, ModelMutator, Object, ObjectModel, Stopped, Tracer, Verdict,
    Verdicts,
};
use standstill::safepoint::ThreadId;
use standstill::{
    AnyGc, Code, Collect, Gc, GcCell, GcWeak, Heap, HeapBuilder, Mutator, Pacing, Thresholds, Trace,
};

// ------------------------------------------------------------------------------------------- tools

/// Refuses large requests of a thread that asks for it.
struct Refusing;

thread_local! {
    static REFUSE_FROM: Cell<usize> = const { Cell::new(usize::MAX) };
}

// SAFETY: the system's allocator, or no memory.
unsafe impl GlobalAlloc for Refusing {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if layout.size() >= REFUSE_FROM.get() {
            return null_mut();
        }
        // SAFETY: as the caller says.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, cell: *mut u8, layout: Layout) {
        // SAFETY: as the caller says.
        unsafe { System.dealloc(cell, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Refusing = Refusing;

fn builder() -> HeapBuilder {
    Heap::builder().reserve(1 << 30).workers(2)
}

/// A heap that collects only on request.
fn manual() -> Heap {
    builder().pacing(Pacing::manual()).build().expect("a heap")
}

/// The events, in order.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<String>>>);

impl Log {
    fn add(&self, line: impl Into<String>) {
        self.0.lock().unwrap().push(line.into());
    }

    fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().unwrap())
    }

    /// The failures that no caller receives.
    fn of_unraisable(heap: &Heap) -> Self {
        let log = Self::default();
        let to = log.clone();
        heap.on_unraisable(move |what| {
            to.add(format!("{:?} {}: {}", what.during, what.type_name, what.message))
        });
        log
    }
}

#[derive(Trace)]
struct Node {
    next: GcCell<Option<Gc<Node>>>,
}

fn node(m: &Mutator, next: Option<Gc<Node>>) -> Gc<Node> {
    m.alloc(Node { next: GcCell::new(next) })
}

/// Makes garbage: a ring of so many.
fn ring(m: &Mutator, len: usize) {
    let first = node(m, None);
    let last = (1..len).fold(first.clone(), |next, _| node(m, Some(next)));
    first.next.set(m, Some(last));
}

/// Counts its finalizations and its end.
#[derive(Trace)]
#[trace(finalize = finalized)]
struct Counted {
    next: GcCell<Option<Gc<Counted>>>,
    #[trace(skip)]
    figures: Arc<Figures>,
}

#[derive(Default)]
struct Figures {
    finalized: AtomicUsize,
    dropped: AtomicUsize,
}

impl Figures {
    fn get(&self) -> (usize, usize) {
        (self.finalized.load(SeqCst), self.dropped.load(SeqCst))
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.figures.dropped.fetch_add(1, SeqCst);
    }
}

fn finalized(this: &Gc<Counted>, _: &Mutator) {
    this.figures.finalized.fetch_add(1, SeqCst);
}

/// Two that refer to each other.
fn pair(m: &Mutator, figures: &Arc<Figures>) -> Gc<Counted> {
    let a = m.alloc(Counted { next: GcCell::default(), figures: Arc::clone(figures) });
    let b = m.alloc(Counted { next: GcCell::new(Some(a.clone())), figures: Arc::clone(figures) });
    a.next.set(m, Some(b));
    a
}

fn code<T: std::fmt::Debug>(result: Result<T, standstill::Fault>) -> Code {
    result.expect_err("a fault").code
}

// ------------------------------------------------------------------- PyGC_Collect, enable, disable

#[test]
fn s_165_collects_in_full_and_returns_the_number_of_found_objects() {
    let heap = manual();
    let mut m = heap.attach();
    ring(&m, 3);
    let report = heap.services().collect_if_enabled(&mut m).expect("a collection");
    assert_eq!((report.found(), report.collected, report.generation), (3, 3, 2));
}

/// Its `clear` does nothing: a cycle through it stays.
struct Fixed {
    to: std::sync::OnceLock<Gc<Fixed>>,
}

impl Trace for Fixed {
    fn traverse(this: &Self, tracer: &mut Tracer) {
        this.to.get().into_iter().for_each(|to| Trace::traverse(to, tracer));
    }
}

#[test]
fn s_166_uncollectable_objects_count_as_found() {
    let heap = manual();
    let mut m = heap.attach();
    ring(&m, 2);
    let fixed = m.alloc(Fixed { to: std::sync::OnceLock::new() });
    assert!(fixed.to.set(fixed.clone()).is_ok());
    drop(fixed);
    let report = heap.services().collect_if_enabled(&mut m).expect("a collection");
    assert_eq!((report.found(), report.collected, report.uncollectable), (3, 2, 1));
}

#[test]
fn s_167_disabled_means_nothing_happens() {
    let heap = manual();
    let services = heap.services();
    let mut m = heap.attach();
    let called = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&called);
    services.add_callback(move |_, _| {
        count.fetch_add(1, SeqCst);
    });
    assert!(services.disable());
    ring(&m, 3);
    let stops = heap.stats().stops;
    assert!(services.collect_if_enabled(&mut m).is_none());
    assert_eq!((heap.stats().live_objects, heap.stats().stops, called.load(SeqCst)), (3, stops, 0));
}

#[test]
fn s_168_nothing_while_another_thread_collects() {
    let heap = manual();
    let services = heap.services();
    let mut m = heap.attach();
    let inside = Arc::new(AtomicUsize::new(0));
    let id = {
        let (heap, inside) = (heap.clone(), Arc::clone(&inside));
        services.add_callback(move |_, _| {
            std::thread::scope(|scope| {
                let other = scope.spawn(|| {
                    let mut m = heap.attach();
                    let services = heap.services();
                    assert!(services.collect_if_enabled(&mut m).is_none());
                    assert_eq!(services.collect_generation(&mut m, 2), Ok(0));
                    assert_eq!(services.collect_generation(&mut m, 0), Ok(0));
                });
                other.join().expect("it does not wait");
            });
            inside.fetch_add(1, SeqCst);
        })
    };
    ring(&m, 3);
    assert_eq!(services.collect_generation(&mut m, 2), Ok(3));
    assert_eq!(inside.load(SeqCst), 2);
    assert!(services.remove_callback(id) && !services.remove_callback(id));
}

#[test]
fn s_172_to_174_the_switch_returns_its_state_before() {
    let heap = manual();
    let services = heap.services();
    assert!(services.is_enabled());
    assert!(services.disable() && !services.disable());
    assert!(!heap.services().is_enabled(), "all handles share it");
    assert!(!services.enable() && services.enable());
    assert!(services.is_enabled());
}

#[test]
fn s_173_disabling_stops_automatic_runs() {
    let heap = builder()
        .pacing(Pacing::default().with_thresholds(Thresholds::default()))
        .build()
        .expect("a heap");
    let services = heap.services();
    let mut m = heap.attach();
    services.disable();
    for _ in 0..10_000 {
        ring(&m, 1);
        m.safepoint();
    }
    assert_eq!(heap.stats().collections, 0);
    services.enable();
    // Objects that were made meanwhile would be reclaimed over many safepoints, and the next
    // collection would wait for that.
    m.collect();
    let before = heap.stats().collections;
    for _ in 0..10_000 {
        ring(&m, 1);
        m.safepoint();
    }
    assert!(heap.stats().collections - before >= 4);
}

// ---------------------------------------------------------------------------- visiting all objects

#[test]
fn s_177_each_tracked_object_once_frozen_ones_too() {
    let heap = manual();
    let services = heap.services();
    let mut m = heap.attach();
    let frozen = node(&m, None);
    assert_eq!(services.freeze(&mut m), Ok(1));
    let tracked = node(&m, None);
    let untracked = node(&m, None);
    assert!(Gc::untrack(&untracked, &m));
    let number = m.alloc(7u32);
    ring(&m, 2);
    let mut seen = Vec::new();
    let visited = services.visit_objects(&mut m, |object, _| {
        seen.push(object.clone());
        Visit::Continue
    });
    assert_eq!(visited, Ok(4));
    let times = |gc: AnyGc| seen.iter().filter(|other| **other == gc).count();
    assert_eq!((times(frozen.into()), times(tracked.into())), (1, 1));
    assert_eq!((times(untracked.into()), times(number.into())), (0, 0));
}

/// Announces that it is being finalized, and takes its time.
#[derive(Trace)]
#[trace(finalize = dawdle)]
struct Dawdler {
    this: GcCell<Option<Gc<Dawdler>>>,
    #[trace(skip)]
    tell: Mutex<mpsc::Sender<()>>,
}

fn dawdle(this: &Gc<Dawdler>, m: &Mutator) {
    this.tell.lock().unwrap().send(()).expect("heard");
    std::thread::sleep(Duration::from_millis(50));
    // Still tracked, for a holder.
    assert!(Gc::is_tracked(this, m));
}

#[test]
fn s_177_garbage_of_a_running_collection_is_left_out() {
    let heap = manual();
    let mut m = heap.attach();
    let (tell, told) = mpsc::channel();
    let dawdler = m.alloc(Dawdler { this: GcCell::default(), tell: Mutex::new(tell) });
    dawdler.this.set(&m, Some(dawdler.clone()));
    drop(dawdler);
    let _held = node(&m, None);
    std::thread::scope(|scope| {
        let other = scope.spawn(|| {
            let told = told;
            let mut m = heap.attach();
            m.detach(|| told.recv().expect("told"));
            // The world stops when the finalizer is done; the collection has not gone on then.
            let services = heap.services();
            let visited = services.visit_objects(&mut m, |object, m| {
                assert!(object.is::<Node>(m));
                Visit::Continue
            });
            assert_eq!(visited, Ok(1));
            assert_eq!(services.objects(&mut m, None).expect("objects").len(), 1);
        });
        assert_eq!(heap.services().collect_generation(&mut m, 2), Ok(1));
        m.detach(|| other.join()).expect("a thread");
    });
}

#[test]
fn s_179_the_set_is_fixed_and_held() {
    let heap = manual();
    let services = heap.services();
    let mut m = heap.attach();
    let figures = Arc::new(Figures::default());
    let held: Vec<_> = (0..100)
        .map(|_| m.alloc(Counted { next: GcCell::default(), figures: Arc::clone(&figures) }))
        .collect();
    let (mut held, mut made) = (Some(held), Vec::new());
    let visited = services.visit_objects(&mut m, |object, m| {
        // The last references outside, all at once, and a new object a visit.
        drop(held.take());
        made.push(node(m, None));
        assert!(object.downcast_ref::<Counted>(m).expect("one of the first").next.get(m).is_none());
        assert!(figures.get().1 < 100);
        Visit::Continue
    });
    assert_eq!((visited, made.len(), figures.get().1), (Ok(100), 100, 100));
}

#[test]
fn s_180_nothing_collects_by_itself_meanwhile_and_the_switch_is_the_users() {
    let thresholds = Thresholds { t0: 1, t1: 0, t2: 0 };
    let heap =
        builder().pacing(Pacing::default().with_thresholds(thresholds)).build().expect("a heap");
    let services = heap.services();
    let mut m = heap.attach();
    let _held = node(&m, None);
    let visited = services.visit_objects(&mut m, |_, m| {
        assert!(services.is_visiting() && services.is_enabled());
        let before = heap.stats().collections;
        for _ in 0..1000 {
            ring(m, 1);
            m.safepoint();
        }
        assert_eq!(heap.stats().collections, before);
        assert!(services.disable());
        Visit::Continue
    });
    assert_eq!(visited, Ok(1));
    assert!(!services.is_visiting() && !services.is_enabled());
    services.enable();
    let before = heap.stats().collections;
    for _ in 0..1000 {
        ring(&m, 1);
        m.safepoint();
    }
    assert!(heap.stats().collections > before);
}

#[test]
fn a_collection_that_becomes_due_in_a_visit_runs_at_the_next_safepoint() {
    let heap = builder().pacing(Pacing::default().with_young_objects(10)).build().expect("a heap");
    let mut m = heap.attach();
    let _held = node(&m, None);
    let visited = heap.services().visit_objects(&mut m, |_, m| {
        (0..1000).for_each(|_| ring(m, 1));
        m.safepoint();
        Visit::Continue
    });
    assert_eq!((visited, heap.stats().collections), (Ok(1), 0));
    m.safepoint();
    assert_eq!(heap.stats().collections, 1);
}

#[test]
fn s_181_explicit_collections_give_nothing_meanwhile() {
    let heap = manual();
    let services = heap.services();
    let mut m = heap.attach();
    let _held = (node(&m, None), node(&m, None));
    let visited = services.visit_objects(&mut m, |_, m| {
        ring(m, 2);
        assert!(services.collect_if_enabled(m).is_none());
        assert_eq!(services.collect_generation(m, 2), Ok(0));
        assert_eq!(code(services.collect_generation(m, 3)), Code::BadGeneration);
        Visit::Continue
    });
    assert_eq!(visited, Ok(2));
    assert_eq!(services.collect_generation(&mut m, 2), Ok(4));
}

#[test]
fn s_182_visits_nest() {
    let heap = manual();
    let services = heap.services();
    let mut m = heap.attach();
    let _held = (node(&m, None), node(&m, None), node(&m, None));
    let mut inner = 0;
    let outer = services.visit_objects(&mut m, |_, m| {
        inner += services.visit_objects(m, |_, _| Visit::Continue).expect("a visit");
        assert!(services.is_visiting());
        Visit::Continue
    });
    assert_eq!((outer, inner), (Ok(3), 9));
    assert!(!services.is_visiting());
}

#[test]
fn s_183_the_callback_can_wait_for_another_thread() {
    let heap = manual();
    let services = heap.services();
    let mut m = heap.attach();
    let _held = node(&m, None);
    let (ask, asked) = mpsc::channel::<()>();
    let (answer, answered) = mpsc::channel::<usize>();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let asked = asked;
            let mut m = heap.attach();
            m.detach(|| asked.recv().expect("asked"));
            ring(&m, 1);
            m.safepoint();
            // It does not wait for a thread that is waiting for this one.
            answer
                .send(heap.services().collect_generation(&mut m, 2).expect("a number"))
                .expect("heard");
            // With the visitor detached the world can be stopped.
            m.detach(|| asked.recv().expect("asked"));
            answer.send(m.objects().len()).expect("heard");
        });
        let visited = services.visit_objects(&mut m, |_, m| {
            ask.send(()).expect("heard");
            assert_eq!(answered.recv(), Ok(0));
            ask.send(()).expect("heard");
            assert_eq!(m.detach(|| answered.recv()), Ok(2));
            Visit::Continue
        });
        assert_eq!(visited, Ok(1));
    });
}

#[test]
fn s_184_a_panic_ends_the_visit() {
    let heap = manual();
    let services = heap.services();
    let mut m = heap.attach();
    let held: Vec<_> = (0..10).map(|_| node(&m, None)).collect();
    let mut visits = 0;
    let result = catch_unwind(AssertUnwindSafe(|| {
        services.visit_objects(&mut m, |_, _| {
            visits += 1;
            assert!(visits < 3, "as asked");
            Visit::Continue
        })
    }));
    assert!(result.is_err() && visits == 3);
    assert!(!services.is_visiting());
    assert!(held.iter().all(|gc| Gc::strong_count(gc) == 1), "all references were dropped");
    ring(&m, 2);
    assert_eq!(services.collect_generation(&mut m, 2), Ok(2));
}

#[test]
fn s_185_no_memory_for_the_set() {
    let heap = manual();
    let services = heap.services();
    let mut m = heap.attach();
    let held: Vec<_> = (0..1000).map(|_| node(&m, None)).collect();
    REFUSE_FROM.set(8000);
    let mut visits = 0;
    let visited = services.visit_objects(&mut m, |_, _| {
        visits += 1;
        Visit::Continue
    });
    let objects = services.objects(&mut m, None);
    let targets = [AnyGc::from(held[0].clone())];
    let referents = services.referents(&mut m, &targets);
    // All of them refer to one.
    let hub = node(&m, None);
    held.iter().for_each(|each| each.next.set(&m, Some(hub.clone())));
    let hubs = [AnyGc::from(hub)];
    let referrers = services.referrers(&mut m, &hubs);
    REFUSE_FROM.set(usize::MAX);
    assert_eq!(code(referrers), Code::Memory);
    assert_eq!(services.referrers(&mut m, &hubs).expect("memory is back").len(), 1000);
    held.iter().for_each(|each| each.next.set(&m, None));
    assert_eq!((code(visited), visits), (Code::Memory, 0));
    assert_eq!(code(objects), Code::Memory);
    assert!(referents.is_ok());
    assert!(!services.is_visiting());
    assert!(held[1..].iter().all(|gc| Gc::strong_count(gc) == 1));
    assert_eq!(services.collect_generation(&mut m, 2), Ok(0));
}

#[test]
fn s_186_stop_is_the_last_visit() {
    let heap = manual();
    let mut m = heap.attach();
    let _held: Vec<_> = (0..10).map(|_| node(&m, None)).collect();
    let mut visits = 0;
    let visited = heap.services().visit_objects(&mut m, |_, _| {
        visits += 1;
        if visits == 2 { Visit::Stop } else { Visit::Continue }
    });
    assert_eq!((visited, visits), (Ok(2), 2));
}

// -------------------------------------------------------------------------------------- the module

#[test]
fn u_01_collect_runs_when_disabled_and_knows_three_generations() {
    let heap = manual();
    let services = heap.services();
    let mut m = heap.attach();
    services.disable();
    for (generation, found) in [(2, 3), (0, 3), (1, 3)] {
        ring(&m, 3);
        assert_eq!(services.collect_generation(&mut m, generation), Ok(found));
    }
    for wrong in [3, -1, i32::MAX, i32::MIN] {
        assert_eq!(code(services.collect_generation(&mut m, wrong)), Code::BadGeneration);
    }
    let stats = services.stats();
    assert_eq!(stats.map(|s| (s.collections, s.collected)), [(1, 3); 3]);
    assert_eq!(heap.stats().young_collections, 2);
}

#[test]
fn u_01_a_young_collection_leaves_old_garbage() {
    let heap = manual();
    let services = heap.services();
    let mut m = heap.attach();
    let old = node(&m, None);
    old.next.set(&m, Some(old.clone()));
    assert_eq!(services.collect_generation(&mut m, 0), Ok(0));
    drop(old);
    assert_eq!(services.collect_generation(&mut m, 1), Ok(0));
    assert_eq!(services.collect_generation(&mut m, 2), Ok(1));
}

#[test]
fn u_01_a_world_that_cannot_be_stopped_is_reported_to_the_hook() {
    let heap = manual();
    let failures = Log::of_unraisable(&heap);
    let mut m = heap.attach();
    let other = heap.clone();
    m.detach(|| {
        std::thread::spawn(move || std::mem::forget(other.attach())).join().expect("it ends")
    });
    assert_eq!(heap.services().collect_generation(&mut m, 2), Ok(0));
    let told = failures.take();
    assert!(told.iter().any(|line| line.starts_with("Collect : ")), "{told:?}");
}

#[test]
fn u_04_thresholds_round_trip() {
    let heap = Heap::builder().build().expect("a heap");
    let services = heap.services();
    assert_eq!(services.threshold(), [2000, 10, 0]);
    services.set_threshold(700, None, None).expect("thresholds");
    assert_eq!(services.threshold(), [700, 10, 0]);
    services.set_threshold(i32::MAX, Some(5), Some(7)).expect("thresholds");
    assert_eq!(heap.services().threshold(), [i32::MAX, 5, 7]);
    for (t0, t1, t2) in [(-1, None, None), (1, Some(-1), None), (1, None, Some(i32::MIN))] {
        assert_eq!(code(services.set_threshold(t0, t1, t2)), Code::BadThreshold);
    }
    assert_eq!(services.threshold(), [i32::MAX, 5, 7]);
    assert_eq!(heap.pacing().thresholds(), Some(Thresholds { t0: i32::MAX as u32, t1: 5, t2: 7 }));
}

#[test]
fn u_04_threshold_zero_switches_automatic_runs_off() {
    let heap = builder().build().expect("a heap");
    let services = heap.services();
    services.set_threshold(0, None, None).expect("thresholds");
    let mut m = heap.attach();
    for i in 0..1_000_000 {
        ring(&m, 1);
        if i % 64 == 0 {
            m.safepoint();
        }
    }
    assert_eq!(heap.stats().collections, 0);
    assert_eq!(services.counts(&mut m).expect("counts")[0], 1_000_000);
    assert_eq!(services.collect_generation(&mut m, 2), Ok(1_000_000));
}

/// Cells that a thread fetches at a time: by so much counts are early or late.
const BUFFERED: usize = 64;

#[test]
fn u_05_without_the_second_threshold_a_full_run_starts_at_the_first() {
    let heap = builder().build().expect("a heap");
    let services = heap.services();
    services.set_threshold(2000, Some(0), None).expect("thresholds");
    let mut m = heap.attach();
    let mut held = Vec::new();
    while services.stats()[2].collections == 0 {
        held.push(node(&m, None));
        m.safepoint();
        assert!(held.len() <= 2000 + BUFFERED);
    }
    assert!(held.len() > 2000 - BUFFERED);
    assert_eq!(services.stats()[0].collections, 0);
    // At a safepoint, and nowhere else.
    for _ in 0..10_000 {
        held.push(node(&m, None));
    }
    assert_eq!(services.stats()[2].collections, 1);
    m.safepoint();
    assert_eq!(services.stats()[2].collections, 2);
}

#[test]
fn u_05_with_it_a_full_run_waits_for_growth_and_young_ones_do_not() {
    let heap = builder().build().expect("a heap");
    let services = heap.services();
    services.set_threshold(0, None, None).expect("thresholds");
    let mut m = heap.attach();
    let mut held: Vec<_> = (0..100_000).map(|_| node(&m, None)).collect();
    services.collect_generation(&mut m, 2).expect("a collection");
    services.set_threshold(2000, Some(10), None).expect("thresholds");
    while services.stats()[2].collections == 1 {
        held.push(node(&m, None));
        m.safepoint();
        assert!(held.len() <= 100_000 + 25_000 + 2000 + 2 * BUFFERED);
    }
    assert!(held.len() >= 125_000 - BUFFERED);
    let young = services.stats()[0].collections;
    assert!((10..=13).contains(&young), "{young} young collections");
}

#[test]
fn u_06_runs_wait_for_memory_to_grow() {
    let heap = builder().build().expect("a heap");
    let services = heap.services();
    services.set_threshold(1000, Some(0), None).expect("thresholds");
    let memory = Arc::new(AtomicUsize::new(1_000_000));
    let source = Arc::clone(&memory);
    services.set_memory_source(move || Some(source.load(SeqCst)));
    let mut m = heap.attach();
    let mut held = Vec::new();
    let mut allocate = |m: &mut Mutator, n: usize| {
        for _ in 0..n {
            held.push(node(m, None));
            m.safepoint();
        }
    };
    allocate(&mut m, 5000);
    assert_eq!(heap.stats().collections, 0, "skipped");
    memory.store(1_099_999, SeqCst);
    allocate(&mut m, 2000);
    assert_eq!(heap.stats().collections, 0, "less than a tenth");
    memory.store(1_100_000, SeqCst);
    allocate(&mut m, 1500);
    assert_eq!(heap.stats().collections, 1, "taken");
    // From now on that is where growth is measured from; and 40 times the threshold is enough in
    // any case.
    allocate(&mut m, 39_000);
    assert_eq!(heap.stats().collections, 1);
    allocate(&mut m, 2500);
    assert_eq!(heap.stats().collections, 2);
    services.remove_memory_source();
    allocate(&mut m, 1100);
    assert!(heap.stats().collections > 2);
    if cfg!(target_os = "linux") {
        assert!(process_memory().expect("Linux tells") > 1 << 20);
    }
}

#[test]
fn u_07_counts_are_exact_for_objects_of_all_threads() {
    const N: usize = 777;
    let heap = manual();
    let services = heap.services();
    let mut m = heap.attach();
    let heap = &heap;
    std::thread::scope(|scope| {
        // Channels, and no barriers: a thread that panics drops its ends, and the others go on and
        // fail as well.
        let (ready, all_ready) = mpsc::channel();
        let mut done = Vec::new();
        for _ in 0..2 {
            let ready = ready.clone();
            let (end, ended) = mpsc::channel::<()>();
            done.push(end);
            scope.spawn(move || {
                let mut m = heap.attach();
                let held: Vec<_> = (0..N).map(|_| node(&m, None)).collect();
                m.detach(move || {
                    ready.send(()).expect("the test goes on");
                    drop(ready);
                    // An error says that the test has ended.
                    let _ = ended.recv();
                });
                drop(held);
            });
        }
        drop(ready);
        m.detach(|| (0..2).for_each(|_| all_ready.recv().expect("both threads are ready")));
        assert_eq!(services.counts(&mut m), Ok([2 * N, 0, 0]));
        services.collect_generation(&mut m, 0).expect("a collection");
        services.collect_generation(&mut m, 1).expect("a collection");
        assert_eq!(services.counts(&mut m), Ok([0, 0, 2]));
        let _new = node(&m, None);
        let gone = node(&m, None);
        drop(gone);
        assert_eq!(services.counts(&mut m), Ok([1, 0, 2]));
        services.collect_generation(&mut m, 2).expect("a collection");
        assert_eq!(services.counts(&mut m), Ok([0, 0, 0]));
        drop(done);
    });
}

#[test]
fn u_08_records_are_the_sums_of_results() {
    let heap = manual();
    let services = heap.services();
    let mut m = heap.attach();
    let mut reports = Vec::new();
    for i in 0..12 {
        ring(&m, i);
        if i % 4 == 0 {
            let fixed = m.alloc(Fixed { to: std::sync::OnceLock::new() });
            assert!(fixed.to.set(fixed.clone()).is_ok());
        }
        let report = match i % 3 {
            0 => services.collect(&mut m, 0).expect("a generation"),
            1 => services.collect(&mut m, 1).expect("a generation"),
            _ => Some(m.try_collect(Collect::full()).expect("a collection")),
        };
        reports.push(report.expect("a collection"));
    }
    for (generation, stats) in services.stats().iter().enumerate() {
        let of = || reports.iter().filter(|report| report.generation == generation);
        assert_eq!(stats.collections, of().count());
        assert_eq!(stats.collected, of().map(|r| r.collected).sum::<usize>());
        assert_eq!(stats.uncollectable, of().map(|r| r.uncollectable).sum::<usize>());
        assert_eq!(stats.candidates, of().map(|r| r.candidates).sum::<usize>());
        assert_eq!(stats.duration, of().map(|r| r.duration).sum::<Duration>());
        assert_eq!(stats.stopped, of().flat_map(|r| r.stops.iter()).sum::<Duration>());
        assert!(stats.stopped <= stats.duration);
    }
    assert!(services.stats().iter().any(|stats| stats.uncollectable > 0));
}

#[test]
fn u_09_callbacks_before_and_after() {
    let heap = manual();
    let services = heap.services();
    let mut m = heap.attach();
    let (log, failures) = (Log::default(), Log::of_unraisable(&heap));
    services.add_callback(|phase, _| panic!("no {}", phase.name()));
    let to = log.clone();
    services.add_callback(move |phase, info| {
        let (n, timed) =
            ((info.collected, info.uncollectable, info.candidates), !info.duration.is_zero());
        to.add(format!("{} {} {n:?} {timed}", phase.name(), info.generation));
    });
    ring(&m, 3);
    services.collect_generation(&mut m, 1).expect("a collection");
    services.collect_generation(&mut m, 2).expect("a collection");
    assert_eq!(
        log.take(),
        [
            "start 1 (0, 0, 0) false",
            "stop 1 (3, 0, 3) true",
            "start 2 (0, 0, 0) false",
            "stop 2 (0, 0, 0) true"
        ]
    );
    assert_eq!(
        failures.take()[..2],
        ["CollectionCallback : no start", "CollectionCallback : no stop"]
    );
}

#[test]
fn u_09_changes_inside_take_effect_from_the_next_phase() {
    let heap = manual();
    let services = Arc::new(heap.services());
    let mut m = heap.attach();
    let log = Log::default();
    let own = Arc::new(AtomicUsize::new(0));
    let id = {
        let (services, log, own) = (Arc::downgrade(&services), log.clone(), Arc::clone(&own));
        services.upgrade().expect("here").add_callback(move |phase, _| {
            log.add(format!("first {}", phase.name()));
            if phase == CallbackPhase::Start {
                let services = services.upgrade().expect("here");
                let log = log.clone();
                services.add_callback(move |phase, _| log.add(format!("second {}", phase.name())));
                assert!(services.remove_callback(own.load(SeqCst) as u64));
                // Set above, and the same.
                assert!(!services.remove_callback(own.load(SeqCst) as u64));
            }
        })
    };
    own.store(id as usize, SeqCst);
    services.collect_generation(&mut m, 2).expect("a collection");
    services.collect_generation(&mut m, 2).expect("a collection");
    assert_eq!(log.take(), ["first start", "second stop", "second start", "second stop"]);
}

#[test]
fn u_09_a_callback_that_another_one_removes_is_called_once_more() {
    let heap = manual();
    let services = Arc::new(heap.services());
    let mut m = heap.attach();
    let log = Log::default();
    let second = Arc::new(AtomicUsize::new(0));
    let (to, removed, remover) = (log.clone(), Arc::clone(&second), Arc::downgrade(&services));
    services.add_callback(move |phase, _| {
        to.add(format!("first {}", phase.name()));
        remover.upgrade().expect("here").remove_callback(removed.load(SeqCst) as u64);
    });
    let to = log.clone();
    let id = services.add_callback(move |phase, _| to.add(format!("second {}", phase.name())));
    second.store(id as usize, SeqCst);
    services.collect_generation(&mut m, 2).expect("a collection");
    assert_eq!(log.take(), ["first start", "second start", "first stop"]);
}

#[test]
fn u_10_debugging_flags_round_trip() {
    let heap = manual();
    let services = heap.services();
    assert_eq!(services.debug(), 0);
    for flags in [1, 2, 4, 32, 38, 39, 0] {
        services.set_debug(flags).expect("flags");
        assert_eq!(heap.services().debug(), flags);
    }
    for wrong in [8, 16, 64, 1 | 8, u32::MAX] {
        assert_eq!(code(services.set_debug(wrong)), Code::BadDebugFlags);
    }
    assert_eq!(services.debug(), 0);
}

/// Sends debugging lines to a log.
fn sink(heap: &Heap, flags: u32) -> Log {
    let log = Log::default();
    let to = log.clone();
    heap.services().set_debug_sink(move |line| to.add(line));
    heap.services().set_debug(flags).expect("flags");
    log
}

#[test]
fn u_11_stats_are_two_lines() {
    let heap = manual();
    let mut m = heap.attach();
    let log = sink(&heap, DEBUG_STATS);
    ring(&m, 3);
    m.collect();
    let lines = log.take();
    assert_eq!(lines.len(), 2);
    assert!(lines[0].contains("generation 2 begins"), "{lines:?}");
    assert!(lines[1].contains("3 unreachable") && lines[1].ends_with(" s elapsed"), "{lines:?}");
}

#[test]
fn u_12_a_line_for_each_collectable_object() {
    let heap = manual();
    let mut m = heap.attach();
    let log = sink(&heap, DEBUG_COLLECTABLE);
    let figures = Arc::new(Figures::default());
    let one = pair(&m, &figures);
    let address = format!("{:p}", one);
    drop(one);
    m.collect();
    let lines = log.take();
    assert_eq!((lines.len(), figures.get()), (2, (2, 2)));
    assert!(
        lines.iter().all(|line| line.starts_with("gc: collectable <") && line.contains("Counted"))
    );
    assert!(lines.iter().any(|line| line.contains(&address)));
    heap.services().set_debug_sink(|_| panic!("full"));
    let failures = Log::of_unraisable(&heap);
    ring(&m, 1);
    assert_eq!(m.collect().collected, 1);
    assert_eq!(failures.take(), ["DebugSink : full"]);
}

#[test]
fn u_14_saved_objects_are_whole_and_in_the_list() {
    let heap = manual();
    let services = heap.services();
    let mut m = heap.attach();
    let figures = Arc::new(Figures::default());
    let weak: GcWeak<Counted> = Gc::downgrade(&pair(&m, &figures), &m);
    sink(&heap, DEBUG_SAVEALL);
    assert_eq!(services.collect_generation(&mut m, 2), Ok(2));
    assert_eq!(figures.get(), (2, 0), "finalizers run, and nothing is destroyed");
    assert!(weak.upgrade(&m).is_none());
    assert_eq!(services.garbage_len(&m), 2);
    for object in services.garbage(&m) {
        assert!(services.is_tracked(&m, &object) && services.is_finalized(&m, &object));
        let saved = object.downcast_ref::<Counted>(&m).expect("one of the two");
        assert!(saved.next.get(&m).is_some(), "nothing was cleared");
    }
    assert_eq!(services.collect_generation(&mut m, 2), Ok(0), "the list holds them");
    assert!(services.garbage_get(&m, 1).is_some() && services.garbage_get(&m, 2).is_none());
    services.set_debug(0).expect("flags");
    assert!(services.garbage_remove(&m, 2).is_none() && services.garbage_remove(&m, 5).is_none());
    drop(services.garbage_remove(&m, 0));
    assert_eq!((services.garbage_take(&m).len(), services.garbage_len(&m)), (1, 0));
    assert_eq!(services.collect_generation(&mut m, 2), Ok(2));
    assert_eq!(figures.get(), (2, 2), "finalized once");
    m.verify().expect("a whole heap");
}

#[test]
fn u_12_a_sink_that_was_reset_receives_no_more_lines() {
    let heap = manual();
    let mut m = heap.attach();
    let log = sink(&heap, DEBUG_COLLECTABLE);
    ring(&m, 1);
    m.collect();
    assert_eq!(log.take().len(), 1);
    heap.services().reset_debug_sink();
    ring(&m, 1);
    m.collect();
    assert_eq!(log.take(), [""; 0], "the line went to stderr");
}

#[test]
fn u_15_leak_is_the_or_of_three() {
    assert_eq!(DEBUG_LEAK, DEBUG_COLLECTABLE | DEBUG_UNCOLLECTABLE | DEBUG_SAVEALL);
    assert_eq!(DEBUG_LEAK, 38);
    let heap = manual();
    let mut m = heap.attach();
    let log = sink(&heap, DEBUG_LEAK);
    ring(&m, 4);
    m.collect();
    assert_eq!((log.take().len(), heap.services().garbage_len(&m)), (4, 4));
    drop(heap.services().garbage_take(&m));
    heap.services().set_debug(0).expect("flags");
    assert_eq!(m.collect().collected, 4);
}

#[test]
fn u_16_a_list_that_is_not_empty_at_the_end_is_reported() {
    let heap = manual();
    let failures = Log::of_unraisable(&heap);
    let figures = Arc::new(Figures::default());
    let mut m = heap.attach();
    drop(pair(&m, &figures));
    let log = sink(&heap, DEBUG_SAVEALL | DEBUG_UNCOLLECTABLE);
    m.collect();
    // Found by the last collection, and saved by it.
    drop(pair(&m, &figures));
    drop((m, heap));
    let failures = failures.take();
    assert_eq!(failures.len(), 1, "{failures:?}");
    assert!(
        failures[0].starts_with("Shutdown : 4 objects are in the garbage list"),
        "{failures:?}"
    );
    // The collection that frees them says nothing.
    let told = log.take();
    assert_eq!(told.len(), 4, "{told:?}");
    assert!(told.iter().all(|line| line.starts_with("gc: uncollectable at the end <")), "{told:?}");
    assert_eq!(figures.get(), (4, 4), "and they are destroyed all the same");
}

#[test]
fn u_18_to_20_freezing() {
    let heap = manual();
    let services = heap.services();
    let mut m = heap.attach();
    assert_eq!(services.freeze_count(&mut m), Ok(0));
    services.unfreeze(&mut m).expect("nothing to do");
    ring(&m, 3);
    let held = node(&m, None);
    assert_eq!(services.freeze(&mut m), Ok(4));
    assert_eq!(services.freeze_count(&mut m), Ok(4));
    assert_eq!(services.collect_generation(&mut m, 2), Ok(0));
    drop(held);
    assert_eq!(services.freeze_count(&mut m), Ok(3));
    services.unfreeze(&mut m).expect("a stop");
    assert_eq!(services.freeze_count(&mut m), Ok(0));
    assert_eq!(services.collect_generation(&mut m, 2), Ok(3));
}

#[test]
fn u_22_objects_by_generation() {
    let heap = manual();
    let services = heap.services();
    let mut m = heap.attach();
    let is = |list: &[AnyGc], gc: &Gc<Node>| list.len() == 1 && list[0] == gc.clone().into();
    let frozen = node(&m, None);
    services.freeze(&mut m).expect("a stop");
    let old = node(&m, None);
    services.collect_generation(&mut m, 0).expect("a collection");
    let young = node(&m, None);
    let _number = m.alloc(7u32);
    assert!(is(&services.objects(&mut m, Some(0)).expect("objects"), &young));
    assert!(services.objects(&mut m, Some(1)).expect("objects").is_empty());
    assert!(is(&services.objects(&mut m, Some(2)).expect("objects"), &old));
    assert_eq!(services.objects(&mut m, None).expect("objects").len(), 2);
    for wrong in [3, -1] {
        assert_eq!(code(services.objects(&mut m, Some(wrong))), Code::BadGeneration);
    }
    services.unfreeze(&mut m).expect("a stop");
    assert_eq!(services.objects(&mut m, None).expect("objects").len(), 3);
    drop(frozen);
}

#[test]
fn u_23_and_24_services_list_referrers_and_referents() {
    let heap = manual();
    let services = heap.services();
    let mut m = heap.attach();
    let (a, b) = (node(&m, None), node(&m, None));
    let (to_a, to_b) = (node(&m, Some(a.clone())), node(&m, Some(b.clone())));
    let frozen = node(&m, Some(a.clone()));
    services.freeze(&mut m).expect("a stop");
    services.unfreeze(&mut m).expect("a stop");
    let any = |gc: &Gc<Node>| AnyGc::from(gc.clone());
    assert_eq!(
        services.referrers(&mut m, &[any(&a), any(&b), any(&a)]).expect("referrers").len(),
        3
    );
    drop(frozen);
    let found = services.referrers(&mut m, &[any(&a)]).expect("referrers");
    assert!(found.len() == 1 && found[0] == any(&to_a));
    assert!(services.referrers(&mut m, &[]).expect("referrers").is_empty());
    // Untracked ones are traversed too. An object that cannot have references is no mistake.
    assert!(Gc::untrack(&to_b, &m));
    let number = AnyGc::from(m.alloc(7u32));
    let found = services
        .referents(&mut m, &[any(&to_b), number, any(&to_a), any(&to_a)])
        .expect("referents");
    let expected = [&b, &a, &a];
    assert!(found.len() == 3 && found.iter().zip(expected).all(|(x, y)| *x == any(y)));
}

#[test]
fn u_25_is_tracked_and_is_finalized() {
    let heap = manual();
    let services = heap.services();
    let m = heap.attach();
    let tracked = AnyGc::from(node(&m, None));
    assert!(services.is_tracked(&m, &tracked) && !services.is_finalized(&m, &tracked));
    assert!(tracked.untrack(&m) && !services.is_tracked(&m, &tracked));
}

#[test]
fn u_38_the_last_collection_is_quiet_and_remaining_objects_are_reported() {
    let heap = manual();
    let services = heap.services();
    let (log, failures) = (Log::default(), Log::of_unraisable(&heap));
    let to = log.clone();
    services.add_callback(move |phase, _| to.add(phase.name()));
    let figures = Arc::new(Figures::default());
    let m = heap.attach();
    drop(pair(&m, &figures));
    let left = (node(&m, None), node(&m, None), m.alloc(7u32), m.alloc(8u32));
    Gc::immortalize(&left.3, &m);
    drop((services, m, heap));
    assert_eq!(figures.get(), (2, 2), "finalizers ran");
    assert_eq!(log.take(), [""; 0], "and no callback");
    let failures = failures.take();
    assert_eq!(failures.len(), 2, "{failures:?}");
    assert!(failures.iter().any(|line| line.contains("Node: 2 objects are left")), "{failures:?}");
    assert!(failures.iter().any(|line| line.contains("u32: 1 objects are left")), "{failures:?}");
    drop(left);
}

#[test]
fn u_38_a_heap_without_report_leaks_reports_no_remaining_object() {
    for ask in [false, true] {
        let heap = manual();
        let failures = Log::of_unraisable(&heap);
        if ask {
            heap.services().report_leaks(false);
        }
        let left = heap.attach().alloc(7u32);
        drop(heap);
        assert_eq!(failures.take(), [""; 0]);
        drop(left);
    }
}

#[test]
fn u_38_the_last_collection_of_a_runtime() {
    let heap = manual();
    let services = heap.services();
    let (log, failures) = (Log::default(), Log::of_unraisable(&heap));
    let to = log.clone();
    services.add_callback(move |phase, _| to.add(phase.name()));
    let lines = sink(&heap, 0);
    let mut m = heap.attach();
    services.disable();
    ring(&m, 2);
    assert_eq!(services.final_collection(&mut m).expect("a collection").collected, 2);
    services.set_debug(DEBUG_SAVEALL).expect("flags");
    ring(&m, 2);
    assert_eq!(services.final_collection(&mut m).expect("a collection").found(), 2);
    assert_eq!((log.take().len(), services.garbage_len(&m)), (0, 2));
    assert_eq!(failures.take().len(), 1);
    assert_eq!(lines.take(), [""; 0], "no flag asks for a line of each object");
    services.set_debug(0).expect("flags");
    drop(services.garbage_take(&m));
}

#[test]
fn u_46_questions_announce_themselves() {
    let heap = manual();
    let services = heap.services();
    let mut m = heap.attach();
    let log = Log::default();
    let to = log.clone();
    services.set_audit_hook(move |what| to.add(what));
    let one = AnyGc::from(node(&m, None));
    services.objects(&mut m, None).expect("objects");
    services.referrers(&mut m, std::slice::from_ref(&one)).expect("referrers");
    services.referents(&mut m, std::slice::from_ref(&one)).expect("referents");
    assert_eq!(log.take(), ["gc.get_objects", "gc.get_referrers", "gc.get_referents"]);
    let failures = Log::of_unraisable(&heap);
    services.set_audit_hook(|_| panic!("no"));
    assert_eq!(services.objects(&mut m, None).expect("objects").len(), 1);
    assert_eq!(failures.take(), ["AuditHook : no"]);
    services.remove_audit_hook();
    services.objects(&mut m, None).expect("objects");
    assert!(failures.take().is_empty());
}

#[test]
fn u_47_everything_from_eight_threads_at_once() {
    let heap = builder()
        .pacing(Pacing::default().with_thresholds(Thresholds::default()))
        .build()
        .expect("a heap");
    heap.services().set_debug_sink(|_| ());
    std::thread::scope(|scope| {
        for thread in 0..8usize {
            let heap = &heap;
            scope.spawn(move || {
                let services = heap.services();
                let mut m = heap.attach();
                let mut held = Vec::new();
                for round in 0..if cfg!(miri) { 3 } else { 150 } {
                    ring(&m, 3);
                    held.push(AnyGc::from(node(&m, None)));
                    m.safepoint();
                    match (round + thread * 7) % 19 {
                        0 => drop(services.collect_if_enabled(&mut m)),
                        1 => drop(services.collect_generation(&mut m, round as i32 % 3)),
                        2 => drop(services.disable()),
                        3 => drop(services.enable()),
                        4 => services.set_threshold(round as i32, None, None).expect("thresholds"),
                        5 => drop(services.counts(&mut m).expect("counts")),
                        6 => drop(services.stats()),
                        7 => {
                            let id = services.add_callback(|_, _| ());
                            assert!(services.remove_callback(id));
                        }
                        8 => services
                            .set_debug([0, DEBUG_SAVEALL, DEBUG_STATS][round % 3])
                            .expect("flags"),
                        9 => drop(services.garbage(&m)),
                        10 => drop(services.garbage_take(&m)),
                        11 => drop(services.freeze(&mut m).expect("a stop")),
                        12 => services.unfreeze(&mut m).expect("a stop"),
                        13 => drop(services.freeze_count(&mut m).expect("a stop")),
                        14 => drop(services.objects(&mut m, None).expect("objects")),
                        15 => drop(services.referrers(&mut m, &held).expect("referrers")),
                        16 => drop(services.referents(&mut m, &held).expect("referents")),
                        17 => services.set_audit_hook(|_| ()),
                        _ => {
                            let visit = services.visit_objects(&mut m, |object, m| {
                                assert!(!object.type_name(m).is_empty());
                                m.safepoint();
                                Visit::Continue
                            });
                            visit.expect("a visit");
                        }
                    }
                }
            });
        }
    });
    let services = heap.services();
    let mut m = heap.attach();
    services.enable();
    services.set_debug(0).expect("flags");
    services.unfreeze(&mut m).expect("a stop");
    drop(services.garbage_take(&m));
    assert!(!services.is_visiting());
    m.collect();
    m.verify().expect("a whole heap");
    assert_eq!(heap.stats().live_objects, 0);
}

#[test]
fn the_wrong_heap_is_detected() {
    let (one, other) = (manual(), manual());
    let mut m = one.attach();
    let services = other.services();
    type Call<'a> = (&'a str, &'a dyn Fn(&mut Mutator));
    let calls: &[Call<'_>] = &[
        ("collect_if_enabled", &|m| drop(services.collect_if_enabled(m))),
        ("collect", &|m| drop(services.collect(m, 2))),
        ("collect_generation", &|m| drop(services.collect_generation(m, 2))),
        ("final_collection", &|m| drop(services.final_collection(m))),
        ("counts", &|m| drop(services.counts(m))),
        ("garbage_len", &|m| _ = services.garbage_len(m)),
        ("garbage_get", &|m| drop(services.garbage_get(m, 0))),
        ("garbage", &|m| drop(services.garbage(m))),
        ("garbage_remove", &|m| drop(services.garbage_remove(m, 0))),
        ("garbage_take", &|m| drop(services.garbage_take(m))),
        ("freeze", &|m| drop(services.freeze(m))),
        ("unfreeze", &|m| drop(services.unfreeze(m))),
        ("freeze_count", &|m| drop(services.freeze_count(m))),
        ("objects", &|m| drop(services.objects(m, None))),
        ("referrers", &|m| drop(services.referrers(m, &[]))),
        ("referents", &|m| drop(services.referents(m, &[]))),
        ("visit_objects", &|m| drop(services.visit_objects(m, |_, _| Visit::Continue))),
    ];
    for (name, call) in calls {
        let payload = catch_unwind(AssertUnwindSafe(|| call(&mut m))).expect_err(name);
        let text = payload.downcast_ref::<&str>().expect("a text");
        assert!(text.contains("with the Mutator of another"), "{name}: {text}");
    }
    assert_eq!(one.services().collect_generation(&mut m, 2), Ok(0));
}

// ------------------------------------------------------------------------------- legacy finalizers

/// Objects of two slots, some with a legacy finalizer.
#[derive(Default)]
struct Slotted {
    /// The collector's message: garbage, uncollectable, legacy.
    judged: Mutex<Vec<[Vec<Object>; 3]>>,
    keeps: AtomicUsize,
    died: AtomicUsize,
    bites: AtomicUsize,
}

#[repr(C)]
struct Cells {
    count: AtomicUsize,
    legacy: usize,
    slots: [AtomicPtr<u8>; 2],
}

impl Slotted {
    fn cells(&self, object: Object) -> &Cells {
        // SAFETY: objects start with this, and a caller that names one has a reference.
        unsafe { object.as_ptr().cast().as_ref() }
    }

    fn drop_ref(&self, object: Object, m: &ModelMutator<Self>) {
        if self.cells(object).count.fetch_sub(1, AcqRel) == 1 {
            self.empty(object, m);
            self.died.fetch_add(1, SeqCst);
            // SAFETY: its count is 0.
            unsafe { m.free(object.as_ptr()) };
        }
    }

    fn empty(&self, object: Object, m: &ModelMutator<Self>) {
        for slot in &self.cells(object).slots {
            if let Some(target) = NonNull::new(slot.swap(null_mut(), AcqRel)) {
                self.drop_ref(Object::new(target), m);
            }
        }
    }

    fn alloc(m: &ModelMutator<Self>, legacy: bool) -> Object {
        let cell = m.allocate(size_of::<Cells>(), 32).expect("memory");
        let cells = Cells {
            count: AtomicUsize::new(1),
            legacy: usize::from(legacy),
            slots: [AtomicPtr::default(), AtomicPtr::default()],
        };
        // SAFETY: the cell is ours, and large enough.
        unsafe {
            cell.cast().write(cells);
            m.publish(Object::new(cell), true);
        }
        Object::new(cell)
    }

    fn link(&self, from: Object, slot: usize, to: Object) {
        self.cells(to).count.fetch_add(1, Relaxed);
        assert!(self.cells(from).slots[slot].swap(to.as_ptr().as_ptr(), AcqRel).is_null());
    }
}

// SAFETY: counts hold all references, lowered by attached threads alone; `drop_ref` frees, at 0;
// slots are counted.
unsafe impl ObjectModel for Slotted {
    type Addresses = standstill::model::Reserved;
    type Parts = Self;

    fn count(&self, object: Stopped<'_>) -> Count {
        Count::Exact(self.cells(*object).count.load(Relaxed) as i64)
    }

    fn traverse(&self, object: Stopped<'_>, tracer: &mut Tracer) {
        let cells = self.cells(*object);
        if cells.legacy != 0 && self.bites.load(SeqCst) != 0 {
            assert!(self.bites.fetch_sub(1, SeqCst) != 1, "this one bites");
        }
        for slot in &cells.slots {
            if let Some(target) = NonNull::new(slot.load(Relaxed)) {
                // SAFETY: a slot's reference is counted.
                unsafe { tracer.visit_object(Object::new(target)) };
            }
        }
    }

    fn claim_ref(&self, object: Stopped<'_>, _: ThreadId) {
        self.cells(*object).count.fetch_add(1, Relaxed);
    }

    fn release(&self, reference: ClaimRef, m: &ModelMutator<Self>) {
        self.drop_ref(reference.object(), m);
    }

    fn clear(&self, object: Live<'_>, m: &ModelMutator<Self>) {
        self.empty(*object, m);
    }
}

standstill::parts!(Slotted: Verdicts);

impl Verdicts<Slotted> for Slotted {
    fn has_legacy(_: &Self) -> bool {
        true
    }

    fn legacy(model: &Self, object: Stopped<'_>) -> bool {
        model.cells(*object).legacy != 0
    }

    fn judge(model: &Self, found: &Found<'_>, _: &ModelMutator<Self>) -> Verdict {
        let Found { garbage, uncollectable, legacy, .. } = found;
        let objects = |list: &[Live<'_>]| list.iter().map(|live| live.object()).collect();
        model.judged.lock().unwrap().push([
            objects(garbage),
            objects(uncollectable),
            objects(legacy),
        ]);
        match model.keeps.load(SeqCst) {
            0 => Verdict::Clear,
            1 => Verdict::Keep,
            _ => panic!("undecided"),
        }
    }
}

/// `plain → legacy → reached`, closed to a ring, and a ring of two beside it that refers to the
/// first.
fn legacy_graph(model: &Slotted, m: &ModelMutator<Slotted>) -> (Vec<Object>, Object) {
    let [plain, legacy, reached, x, y] =
        [false, true, false, false, false].map(|l| Slotted::alloc(m, l));
    for (from, slot, to) in
        [(legacy, 0, reached), (reached, 0, legacy), (plain, 0, legacy), (plain, 1, plain)]
    {
        model.link(from, slot, to);
    }
    for (from, slot, to) in [(x, 0, y), (y, 0, x), (x, 1, reached)] {
        model.link(from, slot, to);
    }
    for object in [plain, legacy, reached, x, y] {
        model.drop_ref(object, m);
    }
    let mut kept = vec![legacy, reached];
    kept.sort_unstable();
    (kept, legacy)
}

#[test]
fn u_17_legacy_finalizers_keep_the_objects_they_reach() {
    let heap = builder().pacing(Pacing::manual()).build_with(Slotted::default()).expect("a heap");
    let mut m = heap.attach();
    let (kept, legacy) = legacy_graph(heap.model(), &m);
    for round in 0..2 {
        let report = m.try_collect(Collect::full()).expect("a collection");
        let judged = heap.model().judged.lock().unwrap().pop().expect("judged");
        let collected = if round == 0 { 3 } else { 0 };
        assert_eq!(
            (report.unreachable, report.collected, report.uncollectable),
            (collected + 2, collected, 2)
        );
        assert_eq!((judged[0].len(), &judged[1], &judged[2]), (collected, &kept, &vec![legacy]));
        assert_eq!(heap.model().died.load(SeqCst), 3);
    }
}

#[test]
fn u_17_a_traversal_that_fails_there_keeps_everything() {
    let heap = builder().pacing(Pacing::manual()).build_with(Slotted::default()).expect("a heap");
    let mut m = heap.attach();
    legacy_graph(heap.model(), &m);
    // Counting looks once, marking not at all, since nothing is a root; the closure is second.
    heap.model().bites.store(2, SeqCst);
    let report = m.try_collect(Collect::full()).expect("a collection");
    assert_eq!((report.found(), heap.model().died.load(SeqCst)), (0, 0));
    assert!(report.abandoned.expect("a reason").contains("this one bites"));
    heap.model().bites.store(0, SeqCst);
    let report = m.try_collect(Collect::full()).expect("a collection");
    assert_eq!((report.collected, report.uncollectable), (3, 2));
}

#[test]
fn a_model_may_keep_the_garbage() {
    let heap = builder().pacing(Pacing::manual()).build_with(Slotted::default()).expect("a heap");
    let mut m = heap.attach();
    legacy_graph(heap.model(), &m);
    for keeps in [1, 2] {
        heap.model().keeps.store(keeps, SeqCst);
        let report = m.try_collect(Collect::full()).expect("a collection");
        assert_eq!((report.collected, report.uncollectable), (0, 5));
    }
    heap.model().keeps.store(0, SeqCst);
    let report = m.try_collect(Collect::full()).expect("a collection");
    assert_eq!((report.collected, report.uncollectable), (3, 2));
}

/// Objects of another heap are an error, and no panic, which C would see printed.
#[test]
fn questions_about_objects_of_another_heap_are_refused_with_their_address() {
    let (here, there) = (Heap::new(), Heap::new());
    let foreign = there.attach_scoped(|m| Gc::into_any(m.alloc(0u8)));
    let mut m = here.attach();
    let services = here.services();
    let own = Gc::into_any(m.alloc(0u8));
    for objects in [vec![foreign.clone()], vec![own.clone(), foreign.clone()]] {
        let refused = [
            services.referrers(&mut m, &objects).unwrap_err(),
            services.referents(&mut m, &objects).unwrap_err(),
        ];
        for (fault, function) in refused.into_iter().zip(["referrers", "referents"]) {
            assert_eq!((fault.code, fault.function), (standstill::Code::ForeignPointer, function));
            assert_eq!(fault.address, standstill::dynamic::as_raw(&foreign).as_ptr() as usize);
        }
    }
    assert!(services.referrers(&mut m, &[own]).unwrap().is_empty());
}

/// Freezing and unfreezing, at any age and in any state, and the numbers meanwhile.
#[test]
fn a_freeze_covers_all_ages_and_its_end_covers_untracked_objects() {
    let heap = manual();
    let services = heap.services();
    let mut m = heap.attach();
    let keep: Vec<_> = (0..5).map(|_| node(&m, None)).collect();
    m.collect();
    let new: Vec<_> = (0..3).map(|_| node(&m, None)).collect();
    assert_eq!(services.counts(&mut m).unwrap()[0], 3);
    assert_eq!(services.freeze(&mut m), Ok(8), "old ones, too");
    assert_eq!(services.freeze_count(&mut m), Ok(8));
    assert_eq!(services.counts(&mut m).unwrap()[0], 0, "frozen objects are not new");
    assert!(services.objects(&mut m, None).unwrap().is_empty());
    let more = node(&m, None);
    assert_eq!(services.counts(&mut m).unwrap()[0], 1);
    // A frozen cycle that is lost stays, tracked or not, until the freeze is over.
    keep[0].next.set(&m, Some(keep[0].clone()));
    new[0].next.set(&m, Some(new[0].clone()));
    Gc::untrack(&new[0], &m);
    let weak = Gc::downgrade(&new[0], &m);
    drop((keep, new));
    assert_eq!(m.collect().collected, 0);
    assert_eq!(services.unfreeze(&mut m), Ok(()));
    assert_eq!(services.freeze_count(&mut m), Ok(0));
    let back = weak.upgrade(&m).expect("an untracked cycle lives");
    Gc::track(&back, &m);
    assert_eq!(services.freeze_count(&mut m), Ok(0), "it comes back as it is, and not frozen");
    drop(back);
    assert_eq!(m.collect().collected, 2);
    drop(more);
    assert_eq!(heap.stats().live_objects, 0);
}
