//! The most frequent operations of mutators: `cargo bench --bench hot_paths` in `benches/pauses`.

#![allow(missing_docs)]

use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use standstill::safepoint::Coordinator;
use standstill::{AtomicGc, Gc, GcCell, Heap, Pacing, Trace};

#[derive(Trace)]
struct Plain<const N: usize>([u64; N]);

#[derive(Trace)]
struct Owner {
    next: GcCell<Option<Gc<Owner>>>,
    name: String,
}

fn heap() -> Heap {
    Heap::builder().pacing(Pacing::manual()).build().expect("a heap")
}

fn allocation(c: &mut Criterion) {
    let mut group = c.benchmark_group("allocate and drop");
    let heap = heap();
    let m = heap.attach();
    group.bench_function("16 bytes", |b| b.iter(|| black_box(m.alloc(Plain([1; 2])))));
    group.bench_function("48 bytes", |b| b.iter(|| black_box(m.alloc(Plain([1; 6])))));
    group.bench_function("240 bytes", |b| b.iter(|| black_box(m.alloc(Plain([1; 30])))));
    group.bench_function("48 bytes, Arc", |b| b.iter(|| black_box(Arc::new(Plain([1; 6])))));
    group.bench_function("with a destructor", |b| {
        b.iter(|| black_box(m.alloc(Owner { next: GcCell::default(), name: String::new() })));
    });
    group.finish();
}

fn references(c: &mut Criterion) {
    let mut group = c.benchmark_group("references");
    let heap = heap();
    let mut m = heap.attach();
    let gc = m.alloc(Plain([1; 6]));
    let arc = Arc::new(Plain([1; 6]));
    group.bench_function("clone and drop, owner", |b| b.iter(|| black_box(gc.clone())));
    group.bench_function("clone and drop, Arc", |b| b.iter(|| black_box(arc.clone())));
    // Counted by another thread too when this mutator drops its last local reference.
    let own = m.alloc(Plain([1; 6]));
    let merged = std::thread::scope(|scope| scope.spawn(|| own.clone()).join().expect("a clone"));
    drop(own);
    group.bench_function("clone and drop, merged", |b| b.iter(|| black_box(merged.clone())));
    let left = std::thread::spawn({
        let heap = heap.clone();
        move || heap.attach().alloc(Plain([1; 6]))
    })
    .join()
    .expect("a handle");
    group.bench_function("clone and drop, inherited", |b| b.iter(|| black_box(left.clone())));
    group.bench_function("get", |b| b.iter(|| black_box(gc.0[0])));
    let weak = Gc::downgrade(&gc, &m);
    group.bench_function("weak upgrade", |b| b.iter(|| black_box(weak.upgrade(&m))));
    let owner = m.alloc(Owner { next: GcCell::default(), name: "n".into() });
    group.bench_function("cell lock", |b| b.iter(|| owner.next.lock(&m).is_some()));
    black_box(&owner.name);
    let slot = AtomicGc::new(Some(m.alloc(1u64)));
    group.bench_function("atomic slot, load", |b| b.iter(|| black_box(slot.load(&m))));
    group.bench_function("atomic slot, peek", |b| b.iter(|| black_box(slot.peek(&m))));
    group.bench_function("safepoint", |b| b.iter(|| m.safepoint()));
    group.bench_function("detach and attach", |b| b.iter(|| m.detach(|| ())));
    group.finish();
}

fn stops(c: &mut Criterion) {
    let mut group = c.benchmark_group("stop and resume");
    for detached in [0, 10, 100, 1000] {
        let coordinator = Coordinator::<()>::new();
        let others: Vec<_> = (0..detached).map(|_| coordinator.register(())).collect();
        let me = coordinator.register(());
        me.attach().expect("attached");
        group.bench_with_input(BenchmarkId::new("detached threads", detached), &(), |b, ()| {
            b.iter(|| me.stop().expect("stopped"));
        });
        drop(others);
    }
    for running in [1, 2] {
        let coordinator = Coordinator::<()>::new();
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..running {
                scope.spawn(|| {
                    let other = coordinator.register(());
                    other.attach().expect("attached");
                    while !done.load(Ordering::Relaxed) {
                        if other.poll() != 0 {
                            other.park();
                        }
                    }
                });
            }
            let me = coordinator.register(());
            me.attach().expect("attached");
            group.bench_with_input(BenchmarkId::new("running threads", running), &(), |b, ()| {
                b.iter(|| me.stop().expect("stopped"));
            });
            done.store(true, Ordering::Relaxed);
            me.detach();
        });
    }
    group.finish();
}

criterion_group!(benches, allocation, references, stops);
criterion_main!(benches);
