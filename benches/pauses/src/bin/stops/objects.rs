//! The rows with objects: collections, weak references, memory.

use std::hint::black_box;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use pauses::machine;
use pauses::random::SplitMix;
use standstill::{Collect, CollectionReport, Gc, GcCell, GcWeak, Heap, Mutator, Pacing, Trace};

use crate::{Args, each, in_us, us};

/// 48 bytes of payload.
#[derive(Trace)]
pub(crate) struct Node {
    next: GcCell<Option<Gc<Node>>>,
    other: GcCell<Option<Gc<Node>>>,
    payload: [u64; 2],
}

pub(crate) fn node(m: &Mutator, next: Option<Gc<Node>>) -> Gc<Node> {
    m.alloc(Node { next: GcCell::new(next), other: GcCell::default(), payload: [1, 2] })
}

pub(crate) fn quiet_heap(workers: usize) -> Heap {
    Heap::builder().workers(workers).pacing(Pacing::manual()).build().expect("a heap")
}

/// Milliseconds of young collections beside many old objects. The new ones stay, so there is
/// nothing to free.
pub(crate) fn young(args: &Args, value: fn(&CollectionReport) -> Duration) -> Vec<f64> {
    const NEW: usize = 10_000;
    let heap = quiet_heap(1);
    let mut m = heap.attach();
    let mut old = node(&m, None);
    for _ in 0..args.objects(10_000_000) {
        old = node(&m, Some(old));
    }
    m.collect();
    let mut round = || {
        let new: Vec<_> = (0..NEW).map(|_| node(&m, Some(old.clone()))).collect();
        assert_eq!(new[0].payload, [1, 2]);
        let report = m.collect_young();
        assert!((NEW..2 * NEW).contains(&report.candidates), "{report:?}");
        us(value(&report)) / 1e3
    };
    round();
    (0..args.rounds()).map(|_| round()).collect()
}

/// Milliseconds of young collections that a thread asks for every 20 ms, beside 64 threads that
/// make cyclic garbage all the time: from the request to the end. If the request does not wait for
/// another collection, the thread asks again after 20 ms.
pub(crate) fn starved(args: &Args, wait: bool) -> Vec<f64> {
    const EVERY: Duration = Duration::from_millis(20);
    let heap = Heap::new();
    let over = AtomicBool::new(false);
    let length = Duration::from_secs(if args.quick { 1 } else { 10 });
    thread::scope(|scope| {
        for seed in 0..64 {
            let (heap, over) = (&heap, &over);
            scope.spawn(move || {
                let mut m = heap.attach();
                let mut random = SplitMix::new(seed);
                while !over.load(Ordering::Relaxed) {
                    ring(&m, 2 + random.below(7));
                    m.safepoint();
                }
            });
        }
        let mut m = heap.attach();
        let (begun, mut values) = (Instant::now(), Vec::new());
        while begun.elapsed() < length || values.is_empty() {
            m.detach(|| thread::sleep(EVERY));
            let asked = Instant::now();
            while m.try_collect(Collect::young().wait(wait)).is_err() {
                m.detach(|| thread::sleep(EVERY));
            }
            values.push(us(asked.elapsed()) / 1e3);
        }
        over.store(true, Ordering::Relaxed);
        drop(m); // the others end without waiting for this thread
        values
    })
}

/// A ring of objects, dropped.
fn ring(m: &Mutator, n: usize) {
    let first = node(m, None);
    let last = (1..n).fold(first.clone(), |next, _| node(m, Some(next)));
    first.next.set(m, Some(last));
}

/// An object that refers to all others.
#[derive(Trace)]
struct Array(Vec<Gc<Node>>);

/// Full collections of an array of objects with two workers, by those with one.
pub(crate) fn array(args: &Args, n: usize) -> Vec<f64> {
    let n = args.objects(n);
    let heaps = [2, 1].map(|workers| {
        let heap = quiet_heap(workers);
        let mut m = heap.attach();
        let array = m.alloc(Array((0..n).map(|_| node(&m, None)).collect()));
        m.collect();
        drop(m); // a thread works in one heap at a time
        (heap, array)
    });
    let pause = |(heap, array): &(Heap, Gc<Array>)| {
        let mut m = heap.attach();
        let begun = Instant::now();
        let report = m.collect();
        let pause = us(begun.elapsed());
        assert_eq!((report.unreachable, array.0.len()), (0, n), "{report:?}");
        pause
    };
    (0..args.rounds()).map(|_| pause(&heaps[0]) / pause(&heaps[1])).collect()
}

/// Nanoseconds of the first weak reference to an object, while those to the others exist.
pub(crate) fn downgrade(args: &Args, n: usize) -> Vec<f64> {
    let n = args.objects(n);
    let heap = quiet_heap(1);
    let m = heap.attach();
    let round = |_| {
        let nodes: Vec<_> = (0..n).map(|_| node(&m, None)).collect();
        let mut weak = Vec::with_capacity(n);
        let begun = Instant::now();
        weak.extend(nodes.iter().map(|node| Gc::downgrade(node, &m)));
        begun.elapsed().as_secs_f64() * 1e9 / n as f64
    };
    (0..args.rounds().min(7)).map(round).collect()
}

/// Collections of garbage: if a weak reference to each object exists, by those if none does.
pub(crate) fn weak_garbage(args: &Args) -> Vec<f64> {
    let n = args.objects(1_000_000);
    let heap = quiet_heap(1);
    let mut m = heap.attach();
    let mut collect = |with_weak: bool| {
        let mut weak: Vec<GcWeak<Node>> = Vec::with_capacity(n);
        for _ in 0..n {
            let node = node(&m, None);
            node.next.set(&m, Some(node.clone()));
            weak.extend(with_weak.then(|| Gc::downgrade(&node, &m)));
        }
        let begun = Instant::now();
        let report = m.collect();
        let time = us(begun.elapsed());
        assert_eq!(report.collected, n, "{report:?}");
        assert!(weak.iter().all(|weak| weak.upgrade(&m).is_none()));
        time
    };
    (0..args.rounds()).map(|_| collect(true) / collect(false)).collect()
}

/// 160 kB that are not written as a whole: that would take most of the time.
#[derive(Trace)]
struct Large {
    #[trace(skip)]
    content: MaybeUninit<[AtomicU8; 160_000]>,
}

/// Microseconds for an object that is larger than a page of the heap, with a byte written in each
/// page of the system. Several are allocated, and then dropped.
pub(crate) fn large(args: &Args) -> Vec<f64> {
    const TOGETHER: u16 = 32;
    let heap = Heap::new();
    let m = heap.attach();
    let one = |_| {
        let object = m.alloc(Large { content: MaybeUninit::uninit() });
        let bytes = object.content.as_ptr().cast::<AtomicU8>();
        for at in (0..160_000).step_by(4096) {
            // SAFETY: the byte lies in the content, and is only written.
            unsafe { (*bytes.add(at)).store(1, Ordering::Relaxed) };
        }
        object
    };
    let several = || drop(black_box((0..TOGETHER).map(one).collect::<Vec<_>>()));
    let values = in_us(each(args, 100, several));
    values.into_iter().map(|us| us / f64::from(TOGETHER)).collect()
}

/// Mebibytes that the process keeps when 955 of two million objects live on, in places spread over
/// all of them.
pub(crate) fn churned(_: &Args) -> Vec<f64> {
    let resident = || machine::resident_memory().map_or(f64::NAN, |bytes| bytes as f64);
    let heap = quiet_heap(1);
    let mut m = heap.attach();
    let before = resident();
    let mut nodes: Vec<_> = (0..2_000_000).map(|_| node(&m, None)).collect();
    let mut place = 0;
    nodes.retain(|_| {
        place += 1;
        place % 2094 == 0
    });
    nodes.shrink_to_fit();
    assert_eq!(nodes.len(), 955);
    m.collect();
    vec![(resident() - before) / f64::from(1 << 20)]
}

/// The fate of the objects in [`memory`].
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fate {
    Live,
    Garbage,
}

/// Bytes an object.
pub(crate) struct Memory {
    pub(crate) at_rest: f64,
    pub(crate) peak: f64,
}

/// A list whose nodes also refer to random earlier nodes.
pub(crate) fn memory(workers: usize, fate: Fate, value: fn(Memory) -> f64) -> Vec<f64> {
    const N: usize = 1_000_000;
    let peak = || machine::peak_memory().map_or(f64::NAN, |bytes| bytes as f64);
    let heap = quiet_heap(workers);
    let mut m = heap.attach();
    machine::forget_peak_memory();
    let before = peak();
    let first = node(&m, None);
    {
        let mut random = SplitMix::new(1);
        let mut nodes = Vec::with_capacity(N);
        nodes.push(first.clone());
        for made in 1..N {
            let node = node(&m, Some(nodes[made - 1].clone()));
            node.other.set(&m, Some(nodes[random.below(made)].clone()));
            nodes.push(node);
        }
        first.next.set(&m, nodes.pop());
    }
    machine::forget_peak_memory();
    let at_rest = peak() - before;
    let root = (fate == Fate::Live).then_some(first);
    let report = m.collect();
    assert_eq!(report.collected, if root.is_some() { 0 } else { N });
    vec![value(Memory { at_rest: at_rest / N as f64, peak: (peak() - before) / N as f64 })]
}
