//! Collections by shape and size: `cargo bench --bench collections` in `benches/pauses`.

#![allow(missing_docs)]

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use criterion::{BatchSize, BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use standstill::{Gc, GcCell, Heap, Mutator, Pacing, Trace};

#[derive(Trace)]
struct Node {
    edges: GcCell<Vec<Gc<Node>>>,
}

type Build = fn(&Mutator, usize) -> Gc<Node>;

const SHAPES: [(&str, Build); 4] =
    [("list", list), ("tree", tree), ("random", random), ("hub", hub)];

fn heap(workers: usize) -> Heap {
    Heap::builder().workers(workers).pacing(Pacing::manual()).build().expect("a heap")
}

fn node(m: &Mutator) -> Gc<Node> {
    m.alloc(Node { edges: GcCell::default() })
}

fn link(m: &Mutator, from: &Gc<Node>, to: &Gc<Node>) {
    from.edges.lock(m).push(to.clone());
}

fn list(m: &Mutator, n: usize) -> Gc<Node> {
    let mut head = node(m);
    for _ in 1..n {
        let before = node(m);
        link(m, &before, &head);
        head = before;
    }
    head
}

/// Binary, with links to the parents.
fn tree(m: &Mutator, n: usize) -> Gc<Node> {
    let nodes: Vec<_> = (0..n).map(|_| node(m)).collect();
    for i in 1..n {
        link(m, &nodes[(i - 1) / 2], &nodes[i]);
        link(m, &nodes[i], &nodes[(i - 1) / 2]);
    }
    nodes[0].clone()
}

fn random(m: &Mutator, n: usize) -> Gc<Node> {
    let nodes: Vec<_> = (0..n).map(|_| node(m)).collect();
    let mut state = 1u64;
    for i in 0..n {
        link(m, &nodes[i], &nodes[(i + 1) % n]);
        for _ in 0..3 {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            link(m, &nodes[i], &nodes[(state >> 33) as usize % n]);
        }
    }
    nodes[0].clone()
}

/// All objects refer to one object, and it refers to all of them.
fn hub(m: &Mutator, n: usize) -> Gc<Node> {
    let hub = node(m);
    for _ in 1..n {
        let spoke = node(m);
        link(m, &spoke, &hub);
        link(m, &hub, &spoke);
    }
    hub
}

fn full_all_live(c: &mut Criterion) {
    let mut group = c.benchmark_group("full, all live");
    group.sample_size(10);
    for (name, build) in SHAPES {
        for (workers, n) in [(1, 10_000), (1, 100_000), (1, 1_000_000), (2, 1_000_000)] {
            let heap = heap(workers);
            let mut m = heap.attach();
            let root = build(&m, n);
            group.throughput(Throughput::Elements(n as u64));
            group.bench_function(
                BenchmarkId::new(format!("{name}, {workers} worker(s)"), n),
                |b| {
                    b.iter(|| m.collect());
                },
            );
            drop(root);
        }
    }
    group.finish();
}

/// One array that refers to everything: all work that marking has comes out of one object.
fn behind_one_array(c: &mut Criterion) {
    #[derive(Trace)]
    struct Element {
        next: GcCell<Option<Gc<Element>>>,
    }

    #[derive(Trace)]
    struct Array {
        elements: Vec<Gc<Element>>,
    }

    let mut group = c.benchmark_group("full, behind one array");
    group.sample_size(10);
    for n in [1_000_000, 4_000_000, 10_000_000] {
        for workers in [1, 2] {
            let heap = heap(workers);
            let mut m = heap.attach();
            let elements = (0..n).map(|_| m.alloc(Element { next: GcCell::default() })).collect();
            let root = m.alloc(Array { elements });
            group.throughput(Throughput::Elements(n as u64));
            group.bench_function(BenchmarkId::new(format!("{workers} worker(s)"), n), |b| {
                b.iter(|| m.collect());
            });
            drop(root);
        }
    }
    group.finish();
}

fn full_all_garbage(c: &mut Criterion) {
    let mut group = c.benchmark_group("full, all garbage");
    group.sample_size(10);
    for (name, build) in SHAPES {
        let n = 100_000;
        let heap = heap(1);
        let mut m = heap.attach();
        group.throughput(Throughput::Elements(n as u64));
        group.bench_function(BenchmarkId::new(name, n), |b| {
            b.iter_custom(|rounds| {
                (0..rounds)
                    .map(|_| {
                        drop(build(&m, n));
                        m.collect().duration
                    })
                    .sum()
            });
        });
    }
    group.finish();
}

fn young(c: &mut Criterion) {
    let mut group = c.benchmark_group("young, 10,000 new");
    group.sample_size(20);
    for old in [0, 100_000, 1_000_000] {
        let heap = heap(1);
        let m = std::cell::RefCell::new(heap.attach());
        let root = tree(&m.borrow(), old.max(1));
        m.borrow_mut().collect();
        group.bench_function(BenchmarkId::new("beside old", old), |b| {
            b.iter_batched(
                || tree(&m.borrow(), 10_000),
                |new| {
                    m.borrow_mut().collect_young();
                    new
                },
                BatchSize::PerIteration,
            );
        });
        drop(root);
    }
    group.finish();
}

/// A thread asks for a collection while others make cycles, so that the heap collects all the time:
/// how long the caller waits for its turn, and for its own collection.
fn asked_for(c: &mut Criterion) {
    #[derive(Trace)]
    struct Ring {
        next: GcCell<Option<Gc<Ring>>>,
    }

    let mut group = c.benchmark_group("asked for, among threads that make cycles");
    group.sample_size(10);
    for threads in [2, 16, 64] {
        let heap = Heap::new();
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(|| {
                    let mut m = heap.attach();
                    while !stop.load(Ordering::Relaxed) {
                        let ring = m.alloc(Ring { next: GcCell::default() });
                        ring.next.set(&m, Some(ring.clone()));
                        drop(ring);
                        m.safepoint();
                    }
                });
            }
            let mut m = heap.attach();
            group.bench_function(BenchmarkId::from_parameter(threads), |b| {
                b.iter_custom(|rounds| {
                    (0..rounds)
                        .map(|_| {
                            // The others come on in between.
                            m.detach(|| std::thread::sleep(Duration::from_millis(1)));
                            let begun = Instant::now();
                            m.collect();
                            begun.elapsed()
                        })
                        .sum()
                });
            });
            stop.store(true, Ordering::Relaxed);
        });
    }
    group.finish();
}

criterion_group!(benches, full_all_live, behind_one_array, full_all_garbage, young, asked_for);
criterion_main!(benches);
