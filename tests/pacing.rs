//! A heap starts collections so that garbage stays bounded: whatever the program requests itself,
//! and also if the memory of the objects lies outside the heap.

#![cfg(not(loom))]

mod common;

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use common::*;
use proptest::prelude::*;
use standstill::{
    CollectionEvent, CollectionKind, DeferGuard, Gc, GcCell, GcSlice, Heap, HeapBuilder, Mutator,
    OutOfMemory, Pacing, Trace,
};

const MIB: usize = 1 << 20;
/// Bytes that a thread may not have reported yet.
const UNREPORTED: usize = 64 << 10;

/// A heap, unless the environment makes all heaps collect at safepoints.
fn heap_of(builder: HeapBuilder) -> Option<Heap> {
    let heap = builder.build().expect("a heap");
    let before = heap.stats().collections;
    heap.attach().safepoint();
    (heap.stats().collections == before).then_some(heap)
}

fn heap(pacing: Pacing) -> Option<Heap> {
    heap_of(Heap::builder().pacing(pacing))
}

fn full_collections(heap: &Heap) -> usize {
    let stats = heap.stats();
    stats.collections - stats.young_collections
}

/// A ring of objects.
fn cycle(m: &Mutator, census: &Arc<Census>, len: usize) -> Gc<Node> {
    ring(m, census, 0, len).swap_remove(0)
}

/// Threads that attach for a moment each: the heap looks at its pace when a mutator ends, and when
/// one attaches.
#[test]
fn short_attachments_leave_no_more_garbage_than_long_ones() {
    let Some(heap) = heap(Pacing::default().with_young_objects(100)) else { return };
    let census = Census::new();
    for _ in 0..1_000 {
        heap.attach_scoped(|m| {
            m.safepoint();
            drop(cycle(m, &census, 20));
        });
        assert!(census.alive() < 400, "{}", census.alive());
    }
    // A thread that only polls is asked by the ends of the others' mutators.
    let mut m = heap.attach();
    for _ in 0..1_000 {
        std::thread::scope(|scope| {
            let other = || heap.attach_scoped(|m| drop(cycle(m, &census, 20)));
            let other = scope.spawn(other);
            while !other.is_finished() {
                m.safepoint();
            }
        });
        m.safepoint();
        assert!(census.alive() < 400, "{}", census.alive());
    }
}

#[test]
fn a_bound_of_objects_that_is_unlimited_leaves_that_of_bytes() {
    let pacing = Pacing::default().with_full_minimum(usize::MAX).with_full_minimum_bytes(MIB);
    let Some(heap) = heap(pacing) else { return };
    let mut m = heap.attach();
    for _ in 0..100 {
        // Memory that survives young collections.
        let kept = blob(&m, vec![1_u8; MIB]);
        m.collect_young();
        drop(kept);
        m.safepoint();
    }
    assert!(full_collections(&heap) > 0);
}

/// Bytes are new up to `young_bytes`, or a part of the heap's bytes, whatever the number of objects
/// is that makes a collection due.
#[test]
fn many_small_objects_do_not_allow_for_many_large_ones() {
    let Some(heap) = heap(Pacing::default().with_young_objects(10)) else { return };
    let census = Census::new();
    let mut m = heap.attach();
    let mut kept = Vec::new();
    for _ in 0..100_000 {
        kept.push(node(&m, &census, 0));
        m.safepoint();
    }
    let mut most = 0;
    for _ in 0..100 {
        drop(blob(&m, vec![1_u8; MIB]));
        m.safepoint();
        most = most.max(heap.stats().external_bytes);
    }
    assert!(most < 8 * MIB, "{most}");
}

/// The pattern of a server that collects between requests: sessions outlive some requests, and
/// become garbage when they are old.
fn old_garbage_is_found(mut make_pacing: impl FnMut() -> Pacing, sessions: usize) {
    let Some(heap) = heap(make_pacing()) else { return };
    let census = Census::new();
    let mut m = heap.attach();
    let mut open = VecDeque::new();
    for _ in 0..sessions {
        open.push_back(cycle(&m, &census, 20));
        if open.len() > 10 {
            open.pop_front();
        }
        m.collect_young();
        m.safepoint();
    }
    assert!(full_collections(&heap) > 0);
    assert!(census.alive() < sessions * 20 / 2, "{} of {} objects", census.alive(), sessions * 20);
}

#[test]
fn garbage_that_survived_a_requested_young_collection_is_found() {
    old_garbage_is_found(
        || Pacing::default().with_young_objects(500).with_full_minimum(2_000),
        400,
    );
}

#[cfg(feature = "cpython")]
#[test]
fn garbage_that_survived_a_requested_young_collection_is_found_under_thresholds() {
    use standstill::Thresholds;
    let thresholds = Thresholds { t0: 50, ..Thresholds::default() };
    old_garbage_is_found(|| Pacing::default().with_thresholds(thresholds), 400);
}

#[test]
fn a_full_collection_begins_where_the_policy_changes_and_where_a_guard_ends() {
    let pacing = Pacing::default().with_young_objects(1 << 30);
    let Some(heap) = heap(pacing) else { return };
    let census = Census::new();
    let mut m = heap.attach();
    let survives_young = |m: &mut Mutator| {
        let kept = cycle(m, &census, 1_000);
        m.collect_young();
        drop(kept);
        m.safepoint();
    };
    survives_young(&mut m);
    assert_eq!((census.alive(), full_collections(&heap)), (1_000, 0));
    heap.set_pacing(pacing.with_full_minimum(999));
    m.safepoint();
    assert_eq!((census.alive(), full_collections(&heap)), (0, 1));
    let guard = heap.defer_collections();
    survives_young(&mut m);
    assert_eq!((census.alive(), full_collections(&heap)), (1_000, 1));
    drop(guard);
    m.safepoint();
    assert_eq!((census.alive(), full_collections(&heap)), (0, 2));
}

#[test]
fn objects_that_a_finalizer_revived_in_a_young_collection_are_growth() {
    let pacing = Pacing::default().with_young_objects(1 << 30).with_full_minimum(500);
    let Some(heap) = heap(pacing) else { return };
    let census = Census::new();
    let revived = m_revived();
    let mut m = heap.attach();
    for name in 0..501 {
        let revived = revived.clone();
        let object =
            fin(&m, &census, name, move |this, _| revived.lock().unwrap().push(this.clone()));
        tie(&m, &[object]);
    }
    m.collect_young();
    assert_eq!(revived.lock().unwrap().len(), 501);
    revived.lock().unwrap().clear();
    assert_eq!(census.alive(), 501);
    m.safepoint();
    assert_eq!((census.alive(), full_collections(&heap)), (0, 1));
}

fn m_revived() -> Arc<std::sync::Mutex<Vec<Gc<Fin>>>> {
    Arc::default()
}

// ---------------------------------------------------------------------- memory outside the heap

#[derive(Trace)]
struct Blob<T: Trace + Default + Send + Sync> {
    this: GcCell<Option<Gc<Self>>>,
    buffer: T,
}

fn blob<T: Trace + Default + Send + Sync>(m: &Mutator, buffer: T) -> Gc<Blob<T>> {
    let blob = m.alloc(Blob { this: GcCell::default(), buffer });
    blob.this.set(m, Some(blob.clone()));
    blob
}

/// Makes `many` dead objects. Returns the most bytes outside the heap that they had together.
fn most_external(many: usize, mut make: impl FnMut(&Mutator)) -> Option<usize> {
    let heap = heap(Pacing::default())?;
    let mut m = heap.attach();
    let mut most = 0;
    for _ in 0..many {
        make(&m);
        most = most.max(heap.stats().external_bytes);
        m.safepoint();
    }
    m.collect();
    assert!(heap.stats().external_bytes <= UNREPORTED, "{}", heap.stats().external_bytes);
    assert_eq!(heap.stats().live_objects, 0);
    Some(most)
}

#[test]
fn dead_cycles_with_large_buffers_are_collected_before_there_are_many() {
    let bounded = |most: Option<usize>| {
        if let Some(most) = most {
            assert!((MIB..16 * MIB).contains(&most), "{most} bytes");
        }
    };
    bounded(most_external(200, |m| drop(blob(m, vec![1_u8; MIB]))));
    // In a cell.
    bounded(most_external(200, |m| drop(blob(m, GcCell::new(vec![1_u8; MIB])))));
    // After its birth.
    bounded(most_external(200, |m| {
        let blob = blob(m, GcCell::<Vec<u8>>::default());
        blob.buffer.lock(m).resize(MIB, 1);
    }));
    // Elsewhere, as the program says.
    #[derive(Trace)]
    struct Foreign {
        this: GcCell<Option<Gc<Self>>>,
    }
    impl Drop for Foreign {
        fn drop(&mut self) {
            Mutator::with_current(|m| m.adjust_external_bytes(-(MIB as isize)));
        }
    }
    bounded(most_external(200, |m| {
        let foreign = m.alloc(Foreign { this: GcCell::default() });
        foreign.this.set(m, Some(foreign.clone()));
        m.adjust_external_bytes(MIB as isize);
    }));
}

/// A gigabyte of buffers, one after another. In a process of its own, because the system measures
/// the memory of processes.
#[test]
#[cfg(target_os = "linux")]
#[cfg_attr(miri, ignore = "asks the system")]
fn a_program_that_loses_cycles_with_large_buffers_stays_small() {
    if !common::child::is_alone("a_program_that_loses_cycles_with_large_buffers_stays_small") {
        return;
    }
    let Some(heap) = heap(Pacing::default()) else { return };
    let mut m = heap.attach();
    for _ in 0..1_024 {
        drop(blob(&m, vec![1_u8; MIB]));
        m.safepoint();
    }
    let status = std::fs::read_to_string("/proc/self/status").expect("the process's figures");
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("a peak");
    let kib: usize = peak.trim().trim_end_matches(" kB").parse().expect("a number");
    assert!(kib < 64 << 10, "{kib} KiB");
}

#[test]
fn buffers_that_survived_young_collections_are_collected_before_there_are_many() {
    let Some(heap) = heap(Pacing::default()) else { return };
    let mut m = heap.attach();
    let mut kept = VecDeque::new();
    let mut most = 0;
    for _ in 0..200 {
        kept.push_back(blob(&m, vec![1_u8; MIB]));
        if kept.len() > 4 {
            kept.pop_front();
        }
        m.safepoint();
        most = most.max(heap.stats().external_bytes);
    }
    // Four are in use. The minimum of growth is 16 MiB, or what twice the factor allows.
    assert!(most < 32 * MIB, "{most} bytes");
    assert!(full_collections(&heap) > 0);
}

/// What each type tells: at birth, and in all at death.
#[test]
fn each_byte_that_was_counted_is_subtracted_once() {
    #[derive(Trace, Default)]
    struct Fields {
        text: String,
        #[trace(skip)]
        _skipped: Vec<u8>,
        pair: (Box<[u64]>, Option<Vec<u16>>),
        array: [Vec<u8>; 2],
    }
    #[derive(Trace)]
    enum Either {
        Text(String),
        Number(u64),
    }
    #[derive(Trace)]
    #[trace(untracked)]
    struct Untracked(Vec<u8>);
    let Some(heap) = heap(Pacing::manual()) else { return };
    let m = heap.attach();
    let counted = |expected: usize| {
        // Larger than what stays unreported.
        assert_eq!(heap.stats().external_bytes, expected);
    };
    let fields = m.alloc(Fields {
        text: String::with_capacity(MIB),
        _skipped: Vec::with_capacity(MIB),
        pair: (vec![0; MIB / 8].into(), Some(Vec::with_capacity(MIB / 2))),
        array: [Vec::with_capacity(MIB), Vec::new()],
    });
    counted(4 * MIB);
    drop(fields);
    counted(0);
    let either =
        [Either::Text(String::with_capacity(MIB)), Either::Number(1)].map(|it| m.alloc(it));
    counted(MIB);
    drop(either);
    counted(0);
    let untracked = m.alloc(Untracked(Vec::with_capacity(MIB)));
    counted(MIB);
    drop(untracked);
    counted(0);
    let slice: GcSlice<String, Vec<u8>> =
        m.alloc_slice(String::with_capacity(MIB), vec![Vec::with_capacity(MIB), Vec::new()]);
    counted(2 * MIB);
    drop(slice);
    counted(0);
    let map: HashMap<u64, u64> = HashMap::with_capacity(100_000);
    let room = map.capacity() * 17;
    let map = m.alloc(map);
    counted(room);
    drop(map);
    counted(0);
    // A cell: its contents grow, shrink, and leave.
    let cell = m.alloc(GcCell::new(Vec::<u8>::new()));
    cell.lock(&m).reserve_exact(2 * MIB);
    counted(2 * MIB);
    cell.lock(&m).shrink_to(MIB);
    counted(MIB);
    let left = cell.take(&m);
    counted(0);
    cell.set(&m, left);
    counted(MIB);
    drop(cell);
    counted(0);
    // A cell that is no part of an object.
    let outside = GcCell::new(Vec::<u8>::new());
    outside.lock(&m).reserve(MIB);
    counted(0);
    let inside = m.alloc(outside);
    assert!((MIB..2 * MIB).contains(&heap.stats().external_bytes));
    drop(inside);
    counted(0);
}

#[test]
fn external_bytes_fall_when_another_thread_drops_the_objects() {
    let Some(heap) = heap(Pacing::manual()) else { return };
    let m = heap.attach();
    let objects: Vec<_> = (0..8).map(|_| m.alloc(vec![0_u8; MIB])).collect();
    assert_eq!(heap.stats().external_bytes, 8 * MIB);
    let mut m = m;
    m.detach(|| {
        std::thread::scope(|scope| {
            scope.spawn(|| heap.attach_scoped(|_| drop(objects)));
        });
    });
    m.safepoint();
    assert_eq!(heap.stats().external_bytes, 0);
}

#[test]
fn wrong_numbers_do_no_harm() {
    let Some(heap) = heap(Pacing::default()) else { return };
    let mut m = heap.attach();
    for change in [isize::MIN, isize::MAX, isize::MAX, -1, isize::MIN, 0, isize::MAX] {
        m.adjust_external_bytes(change);
        m.safepoint();
        drop(m.alloc(vec![0_u8; 100_000]));
        m.safepoint();
    }
    m.collect();
    assert_eq!(heap.stats().live_objects, 0);
}

#[test]
fn beyond_the_limit_of_cells_and_memory_outside_together_allocation_is_refused() {
    const LIMIT: usize = 16 * MIB;
    let build = |pacing| heap_of(Heap::builder().limit(LIMIT).pacing(pacing));
    let Some(heap) = build(Pacing::manual()) else { return };
    let mut m = heap.attach();
    let used = || heap.stats().in_use_bytes + heap.stats().external_bytes;
    let fill = || {
        let mut kept = Vec::new();
        while let Ok(object) = m.try_alloc(vec![0_u8; MIB]) {
            kept.push(object);
        }
        kept
    };
    let mut kept = fill();
    let full = kept.len();
    assert!((LIMIT..LIMIT + 2 * MIB).contains(&used()), "{} bytes", used());
    // Objects of all sizes are refused, and the value comes back.
    let error = m.try_alloc(7_u8).expect_err("a small object");
    assert!(matches!(error.reason(), OutOfMemory::Limit { limit: LIMIT }), "{error}");
    assert_eq!(error.into_inner(), 7);
    assert!(m.try_alloc([0_u8; 500]).is_err());
    assert!(m.try_alloc([0_u8; 200_000]).is_err());
    // An adjustment is never refused, and counts the same.
    drop(kept.split_off(full / 2));
    m.try_alloc(7_u8).expect("room");
    m.adjust_external_bytes(LIMIT as isize);
    assert!(m.try_alloc(7_u8).is_err());
    m.adjust_external_bytes(-(LIMIT as isize));
    m.try_alloc(7_u8).expect("room again");
    // Nothing is lost: the heap is as full as before.
    drop(kept);
    let kept = fill();
    assert_eq!(kept.len(), full);
    drop(kept);
    // A collection makes room.
    for _ in 0..full {
        drop(blob(&m, vec![0_u8; MIB]));
    }
    let error = m.try_alloc(7_u8).expect_err("full of garbage");
    m.alloc_or_collect(error.into_inner()).expect("garbage made room");
    assert_eq!(heap.stats().external_bytes, 0);
}

#[test]
fn a_program_that_grows_its_cells_asks_for_room() {
    const LIMIT: usize = 16 * MIB;
    let Some(heap) =
        heap_of(Heap::builder().reserve(1 << 30).limit(LIMIT).pacing(Pacing::manual()))
    else {
        return;
    };
    let mut m = heap.attach();
    let cell = m.alloc(GcCell::new(Vec::<u64>::new()));
    let ring = m.alloc(GcCell::new(None));
    let mut pushed = 0;
    // No growth is refused, so the loop of a program ends only by its own question.
    while m.has_room().is_ok() {
        cell.lock(&m).extend(0..1000);
        pushed += 8000;
    }
    assert!((LIMIT / 4..LIMIT + MIB).contains(&pushed), "{pushed} bytes");
    assert!(matches!(m.has_room(), Err(OutOfMemory::Limit { limit: LIMIT })));
    let collections = heap.stats().collections;
    let mut calls = 0;
    let refused = m.or_collect(|m| {
        calls += 1;
        m.has_room()
    });
    assert_eq!((refused.is_err(), calls, heap.stats().collections), (true, 2, collections + 1));
    // Garbage makes room.
    ring.set(&m, Some((Gc::into_any(ring.clone()), cell)));
    drop(ring);
    assert!(m.has_room().is_err());
    m.or_collect(|m| m.has_room()).expect("garbage made room");
    m.or_collect(|m| m.has_room()).expect("there is room");
    assert_eq!(heap.stats().collections, collections + 2);
}

#[test]
fn without_a_limit_memory_outside_the_heap_refuses_nothing() {
    let Some(heap) = heap_of(Heap::builder().reserve(16 * MIB).pacing(Pacing::manual())) else {
        return;
    };
    let m = heap.attach();
    m.adjust_external_bytes(1 << 40);
    assert_eq!(*m.try_alloc(7_u8).expect("memory"), 7);
    m.try_alloc([0_u8; 200_000]).expect("memory");
}

/// Far below the growth that makes full collections due in a heap without a limit.
#[test]
fn a_heap_is_collected_before_it_reaches_its_limit() {
    let pacing = Pacing::default().with_full_minimum_bytes(1 << 30);
    let Some(heap) = heap_of(Heap::builder().limit(16 * MIB).pacing(pacing)) else { return };
    let mut m = heap.attach();
    let mut kept = VecDeque::new();
    for _ in 0..200 {
        let made = m.try_alloc(Blob { this: GcCell::default(), buffer: vec![1_u8; MIB] });
        let blob = made.expect("garbage was found in time");
        blob.this.set(&m, Some(blob.clone()));
        kept.push_back(blob);
        if kept.len() > 4 {
            kept.pop_front();
        }
        m.safepoint();
    }
    assert!(full_collections(&heap) > 0);
}

#[test]
fn a_report_tells_the_memory_outside_the_heap_that_the_garbage_had() {
    let Some(heap) = heap(Pacing::manual()) else { return };
    let mut m = heap.attach();
    let kept = blob(&m, vec![0_u8; MIB]);
    for _ in 0..3 {
        drop(blob(&m, vec![0_u8; MIB]));
    }
    // Freed by its count alone.
    drop(m.alloc(vec![0_u8; MIB]));
    assert_eq!(m.collect().external_bytes, 3 * MIB);
    assert_eq!(m.collect().external_bytes, 0);
    drop(kept);
    assert_eq!(m.collect().external_bytes, MIB);
}

/// Exact with one thread. With several, an object may die of a drop that the collection has left to
/// another thread.
#[test]
fn the_reports_of_automatic_collections_tell_the_memory_outside_the_heap() {
    for threads in [1, 2] {
        let Some(heap) = heap(Pacing::default()) else { return };
        let told = Arc::new(AtomicUsize::new(0));
        let sum = Arc::clone(&told);
        heap.on_collection(move |event| {
            if let CollectionEvent::Stop(report) = event {
                sum.fetch_add(report.external_bytes, SeqCst);
            }
        });
        std::thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(|| {
                    let mut m = heap.attach();
                    for _ in 0..100 {
                        drop(blob(&m, vec![0_u8; MIB / 4]));
                        m.safepoint();
                    }
                });
            }
        });
        assert!(heap.stats().collections > 0);
        heap.attach().collect();
        assert_eq!(heap.stats().external_bytes, 0);
        let (told, made) = (told.load(SeqCst), threads * 100 * (MIB / 4));
        assert!(told == made || threads > 1 && (1..made).contains(&told), "{told} of {made}");
    }
}

// ------------------------------------------------------------------------------------- guards

#[test]
fn guards_that_are_alive_are_counted() {
    let heap = Heap::builder().pacing(Pacing::manual()).build().expect("a heap");
    assert_eq!(heap.stats().defer_guards, 0, "a policy is no guard");
    let guards = [heap.defer_collections(), heap.defer_collections()];
    assert_eq!(heap.stats().defer_guards, 2);
    drop(guards);
    assert_eq!(heap.stats().defer_guards, 0);
    std::mem::forget(heap.defer_collections());
    assert_eq!(heap.stats().defer_guards, 1);
}

// ------------------------------------------------------------------------------------ property

#[derive(Clone, Copy, Debug)]
enum Op {
    /// A group of objects that is kept.
    Keep(usize),
    /// Groups that are garbage at once.
    Garbage(usize),
    /// The oldest groups become garbage.
    Lose(usize),
    Young,
    Full,
    Policy(usize, usize),
    Guard,
    EndOfGuard,
}

fn any_op() -> impl Strategy<Value = Op> {
    prop_oneof![
        6 => (1..300_usize).prop_map(Op::Keep),
        6 => (1..300_usize).prop_map(Op::Garbage),
        6 => (1..4_usize).prop_map(Op::Lose),
        6 => Just(Op::Young),
        1 => Just(Op::Full),
        1 => (20..400_usize, 0..1_000_usize).prop_map(|(young, least)| Op::Policy(young, least)),
        1 => Just(Op::Guard),
        2 => Just(Op::EndOfGuard),
    ]
}

/// The bytes outside the heap of an object.
const BUFFER: usize = 2 << 10;

#[derive(Trace)]
struct Counted {
    next: GcCell<Option<Gc<Counted>>>,
    _buffer: Vec<u8>,
    #[trace(skip)]
    alive: Arc<AtomicUsize>,
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.alive.fetch_sub(1, SeqCst);
    }
}

/// A cycle of objects.
fn group(m: &mut Mutator, alive: &Arc<AtomicUsize>, len: usize) -> Gc<Counted> {
    let make = |m: &Mutator, next| {
        alive.fetch_add(1, SeqCst);
        let _buffer = vec![0; BUFFER];
        m.alloc(Counted { next: GcCell::new(next), _buffer, alive: alive.clone() })
    };
    let first = make(m, None);
    let mut last = first.clone();
    for _ in 1..len {
        last = make(m, Some(last));
        m.safepoint();
    }
    first.next.set(m, Some(last));
    first
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// The bounds of [`Pacing`], with objects that a heap counts and destroys itself.
    #[test]
    fn garbage_stays_below_the_documented_bound(ops in prop::collection::vec(any_op(), 1..80)) {
        let policy = |young: usize, least: usize| {
            Pacing::default()
                .with_young_objects(young)
                .with_full_minimum(least)
                .with_full_minimum_bytes(1 << 40)
        };
        let (mut young, mut least) = (100, 500);
        let Some(heap) = heap(policy(young, least)) else { return Ok(()) };
        let mut m = heap.attach();
        let alive = Arc::new(AtomicUsize::new(0));
        // What the last full collection left.
        let left = Arc::new(AtomicUsize::new(0));
        heap.on_collection({
            let (alive, left) = (alive.clone(), left.clone());
            move |event| {
                if event.report().is_some_and(|report| report.kind == CollectionKind::Full) {
                    left.store(alive.load(SeqCst), SeqCst);
                }
            }
        });
        let mut kept = VecDeque::new();
        let mut guards: Vec<DeferGuard> = Vec::new();
        for op in ops {
            match op {
                Op::Keep(len) => kept.push_back((group(&mut m, &alive, len), len)),
                Op::Garbage(len) => drop(group(&mut m, &alive, len)),
                Op::Lose(groups) => drop(kept.drain(..groups.min(kept.len()))),
                Op::Young => drop(m.collect_young()),
                Op::Full => drop(m.collect()),
                Op::Policy(objects, minimum) => {
                    (young, least) = (objects, minimum);
                    heap.set_pacing(policy(young, least));
                }
                Op::Guard => guards.push(heap.defer_collections()),
                Op::EndOfGuard => drop(guards.pop()),
            }
            m.safepoint();
            if !guards.is_empty() {
                continue;
            }
            let bound = || {
                let left = left.load(SeqCst);
                let old = left + (2 * left).max(least);
                // A thread fetches up to 64 cells at a time, of one size here, in each of up to
                // eight parts of a period.
                old + young.max(old / 15) + 8 * 64
            };
            // The garbage of a collection is destroyed in batches, with pauses between them.
            let mut patience = 10_000_000;
            while alive.load(SeqCst) > bound() && patience > 0 {
                m.safepoint();
                patience -= 1;
            }
            let used: usize = kept.iter().map(|(_, len)| len).sum();
            prop_assert!(
                alive.load(SeqCst) <= bound(),
                "{op:?}: {} objects, {used} in use, at most {}", alive.load(SeqCst), bound()
            );
        }
    }
}
