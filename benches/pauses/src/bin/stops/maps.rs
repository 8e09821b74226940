//! A model of four references an object and one atomic count.

use std::hint::black_box;
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering::*};
use std::time::Instant;

use pauses::random::SplitMix;
use standstill::model::{
    ClaimRef, Count, Live, ModelHeap, ModelMutator, Object, ObjectModel, Reserved, Stopped, Tracer,
};
use standstill::safepoint::ThreadId;
use standstill::{Collect, Heap, Pacing};

use crate::Args;

const EDGES: usize = 4;

/// An object: 40 bytes.
#[repr(C)]
struct Node {
    count: AtomicUsize,
    edges: [AtomicPtr<u8>; EDGES],
}

struct Nodes;

impl Nodes {
    fn heap(reserve: usize) -> ModelHeap<Self> {
        let builder = Heap::builder().reserve(reserve).workers(1).pacing(Pacing::manual());
        builder.build_with(Self).expect("a heap")
    }

    fn node(m: &ModelMutator<Self>) -> Object {
        let cell = m.allocate(size_of::<Node>(), align_of::<Node>()).expect("memory");
        let edges = [const { AtomicPtr::new(null_mut()) }; EDGES];
        // SAFETY: the memory is fresh, of this size and alignment.
        unsafe {
            cell.cast::<Node>().write(Node { count: AtomicUsize::new(1), edges });
            m.publish(Object::new(cell), true);
        }
        Object::new(cell)
    }

    fn view(object: &Object) -> &Node {
        // SAFETY: each object is a node, and callers have a reference or are the collector.
        unsafe { object.as_ptr().cast().as_ref() }
    }

    fn drop_reference(object: Object, m: &ModelMutator<Self>) {
        let mut dropped = vec![object];
        while let Some(object) = dropped.pop() {
            let node = Self::view(&object);
            if node.count.fetch_sub(1, AcqRel) != 1 {
                continue;
            }
            for edge in &node.edges {
                dropped.extend(NonNull::new(edge.swap(null_mut(), AcqRel)).map(Object::new));
            }
            // SAFETY: the count is 0.
            unsafe { m.free(object.as_ptr()) };
        }
    }
}

// SAFETY: counts are real, memory is freed at 0, `traverse` reports counted references, and nothing
// is deferred.
unsafe impl ObjectModel for Nodes {
    type Addresses = Reserved;
    type Parts = ();

    fn count(&self, object: Stopped<'_>) -> Count {
        Count::Exact(Self::view(&object).count.load(Relaxed) as i64)
    }

    fn traverse(&self, object: Stopped<'_>, tracer: &mut Tracer) {
        for edge in &Self::view(&object).edges {
            if let Some(target) = NonNull::new(edge.load(Relaxed)) {
                // SAFETY: a counted reference.
                unsafe { tracer.visit_object(Object::new(target)) };
            }
        }
    }

    fn claim_ref(&self, object: Stopped<'_>, _: ThreadId) {
        Self::view(&object).count.fetch_add(1, Relaxed);
    }

    fn release(&self, reference: ClaimRef, m: &ModelMutator<Self>) {
        Self::drop_reference(reference.object(), m);
    }

    fn clear(&self, object: Live<'_>, m: &ModelMutator<Self>) {
        for edge in &Self::view(&object).edges {
            if let Some(target) = NonNull::new(edge.swap(null_mut(), AcqRel)) {
                Self::drop_reference(Object::new(target), m);
            }
        }
    }
}

/// The edges of an object: to anywhere, or to the objects around it.
#[derive(Clone, Copy)]
pub(crate) enum Graph {
    Random,
    Local,
}

/// Full collections of a graph of which everything is held, in nanoseconds for each object.
pub(crate) fn full(args: &Args, graph: Graph) -> Vec<f64> {
    let objects = args.objects(1_000_000);
    let heap = Nodes::heap(4 << 30);
    let mut m = heap.attach();
    let all: Vec<Object> = (0..objects).map(|_| Nodes::node(&m)).collect();
    let mut random = SplitMix::new(7);
    for (at, object) in all.iter().enumerate() {
        for edge in &Nodes::view(object).edges {
            let to = match graph {
                Graph::Random => random.below(objects),
                Graph::Local => (at + random.below(512)) % objects,
            };
            Nodes::view(&all[to]).count.fetch_add(1, Relaxed);
            edge.store(all[to].as_ptr().as_ptr(), Relaxed);
        }
    }
    // Held: the first tenth. The others are mostly reached from there.
    all[objects / 10..].iter().for_each(|&object| Nodes::drop_reference(object, &m));
    let _warm = m.try_collect(Collect::full()).expect("a stop");
    (0..args.rounds())
        .map(|_| {
            let start = Instant::now();
            black_box(m.try_collect(Collect::full()).expect("a stop"));
            start.elapsed().as_nanos() as f64 / objects as f64
        })
        .collect()
}

/// An object that is allocated and dropped, in nanoseconds.
pub(crate) fn allocate(args: &Args) -> Vec<f64> {
    const COUNT: usize = 1_000_000;
    let heap = Nodes::heap(4 << 30);
    let m = heap.attach();
    (0..args.rounds())
        .map(|_| {
            let start = Instant::now();
            for _ in 0..COUNT {
                let node = black_box(Nodes::node(&m));
                // SAFETY: this thread has the only reference, and the node has no edges.
                unsafe { m.free(node.as_ptr()) };
            }
            start.elapsed().as_nanos() as f64 / COUNT as f64
        })
        .collect()
}

/// A thousand heaps: create, allocate an object, and drop them all, in microseconds for each.
pub(crate) fn heaps(args: &Args) -> Vec<f64> {
    const HEAPS: usize = 1_000;
    (0..args.rounds())
        .map(|_| {
            let start = Instant::now();
            let heaps: Vec<_> = (0..HEAPS)
                .map(|_| {
                    let heap = Nodes::heap(64 << 20);
                    black_box(Nodes::node(&heap.attach()));
                    heap
                })
                .collect();
            drop(heaps);
            start.elapsed().as_micros() as f64 / HEAPS as f64
        })
        .collect()
}

/// MiB of a figure of this process in `/proc/self/status`.
fn status(name: &str) -> f64 {
    let text = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    let kib = line.and_then(|rest| rest.split_whitespace().next()?.parse::<f64>().ok());
    kib.unwrap_or(f64::NAN) / 1024.0
}

/// The MiB of `name` in `/proc/self/status` that each of a thousand heaps with one object takes.
pub(crate) fn each_heap(name: &str) -> Vec<f64> {
    const HEAPS: usize = 1_000;
    let before = status(name);
    let heaps: Vec<_> = (0..HEAPS)
        .map(|_| {
            let heap = Nodes::heap(64 << 20);
            black_box(Nodes::node(&heap.attach()));
            heap
        })
        .collect();
    let each = (status(name) - before) / HEAPS as f64;
    drop(heaps);
    vec![each]
}
