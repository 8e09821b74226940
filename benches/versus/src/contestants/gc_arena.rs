//! gc-arena: incremental mark and sweep inside an arena, for one thread.
//!
//! References cannot leave `mutate`, so this file has its own workloads, with the same shapes.
//! Objects that other contestants hold on the stack lie in the root. `collect_debt` stands in the
//! places where others have a safepoint or collect in an allocation. W7 has no meaning: a reference
//! is copied, and a drop does nothing.

use std::time::{Duration, Instant};

use gc_arena::lock::RefLock;
use gc_arena::{Arena, Collect, Gc, Mutation, Rootable};
use pauses::random::SplitMix;

use crate::peer::{Can, Contestant};
use crate::shapes;
use crate::tally::{self, Tally};
use crate::task::{Measured, Task, Workload};

pub const GC_ARENA: Contestant = Contestant {
    name: "gc-arena",
    rival: true,
    can: |workload| match workload {
        Workload::W6 | Workload::W7hot | Workload::W7own | Workload::W7over => Can::No,
        _ => Can::One,
    },
    run: |task| match task.workload {
        Workload::W1 => alloc(task),
        Workload::W2 => churn(task),
        Workload::W3 => gcbench(task),
        Workload::W5 => garbage(task),
        workload if workload.is_pause() => pause(task),
        _ => unreachable!("cannot"),
    },
};

#[derive(Collect)]
#[collect(no_drop)]
struct Node<'gc> {
    #[collect(require_static)]
    tally: Tally,
    edges: RefLock<Vec<Edge<'gc>>>,
}

type Edge<'gc> = Gc<'gc, Node<'gc>>;

#[derive(Collect)]
#[collect(no_drop)]
struct Root<'gc> {
    held: Vec<Edge<'gc>>,
}

type Heap = Arena<Rootable![Root<'_>]>;

fn heap() -> Heap {
    Arena::new(|_| Root { held: Vec::new() })
}

#[inline]
fn node<'gc>(mc: &Mutation<'gc>, id: usize) -> Edge<'gc> {
    Gc::new(mc, Node { tally: Tally::new(id as u32), edges: RefLock::new(Vec::new()) })
}

#[inline]
fn link<'gc>(mc: &Mutation<'gc>, from: Edge<'gc>, to: Edge<'gc>) {
    gc_arena::barrier::unlock!(Gc::write(mc, from), Node, edges).borrow_mut().push(to);
}

fn drain(heap: &mut Heap) {
    heap.mutate_root(|_, root| root.held = Vec::new());
    for _ in 0..16 {
        if tally::alive() == 0 {
            break;
        }
        heap.finish_cycle();
    }
}

fn finish(heap: &mut Heap, mut measured: Measured) -> Measured {
    drain(heap);
    let alive = tally::alive();
    measured.check(alive == 0, || format!("{alive} nodes were never freed"));
    measured
}

fn alloc(task: &Task) -> Measured {
    let mut heap = heap();
    let begun = Instant::now();
    for batch in 0..task.n.div_ceil(64) {
        heap.mutate_root(|mc, root| {
            for i in batch * 64..task.n.min(batch * 64 + 64) {
                let new = node(mc, i);
                match root.held.get_mut(i % 64) {
                    Some(slot) => *slot = new,
                    None => root.held.push(new),
                }
            }
        });
        heap.collect_debt();
    }
    let measured = Measured::new(begun.elapsed(), task.n as u64, 1);
    finish(&mut heap, measured)
}

fn churn(task: &Task) -> Measured {
    let mut heap = heap();
    let mut random = SplitMix::new(0);
    let begun = Instant::now();
    let mut made = 0;
    while made < task.n {
        let ring = (2 + random.below(7)).min(task.n - made);
        heap.mutate(|mc, _| {
            let first = node(mc, made);
            let mut last = first;
            for i in 1..ring {
                let next = node(mc, made + i);
                link(mc, last, next);
                last = next;
            }
            link(mc, last, first);
        });
        made += ring;
        heap.collect_debt();
    }
    let draining = Instant::now();
    drain(&mut heap);
    let mut measured = Measured::new(begun.elapsed(), task.n as u64, 1);
    measured.fact("drain_ns", draining.elapsed().as_nanos() as f64);
    finish(&mut heap, measured)
}

fn populate<'gc>(mc: &Mutation<'gc>, parent: Edge<'gc>, depth: u32) {
    if depth == 0 {
        return;
    }
    for _ in 0..2 {
        let child = node(mc, depth as usize);
        link(mc, parent, child);
        link(mc, child, parent);
        populate(mc, child, depth - 1);
    }
}

fn bottom_up<'gc>(mc: &Mutation<'gc>, depth: u32) -> Edge<'gc> {
    if depth == 0 {
        return node(mc, 0);
    }
    let children = [bottom_up(mc, depth - 1), bottom_up(mc, depth - 1)];
    let parent = node(mc, depth as usize);
    for child in children {
        link(mc, parent, child);
        link(mc, child, parent);
    }
    parent
}

fn gcbench(task: &Task) -> Measured {
    let mut heap = heap();
    let max = task.n as u32;
    let begun = Instant::now();
    heap.mutate(|mc, _| {
        bottom_up(mc, max + 2);
    });
    heap.collect_debt();
    heap.mutate_root(|mc, root| {
        let long_lived = node(mc, 0);
        populate(mc, long_lived, max);
        root.held.push(long_lived);
    });
    for (depth, count) in shapes::gcbench(max) {
        for _ in 0..count {
            heap.mutate(|mc, _| populate(mc, node(mc, 0), depth));
            heap.collect_debt();
        }
        for _ in 0..count {
            heap.mutate(|mc, _| {
                bottom_up(mc, depth);
            });
            heap.collect_debt();
        }
    }
    let mut measured = Measured::new(begun.elapsed(), tally::births(), 1);
    heap.finish_cycle();
    let held = shapes::tree_size(max);
    // The edges but the first lead to the children, and so does the first one of the root.
    let found = heap.mutate(|_, root| {
        let mut todo = vec![(root.held[0], 0)];
        let mut found = 0;
        while let Some((node, skip)) = todo.pop() {
            node.tally.id();
            found += 1;
            todo.extend(node.edges.borrow().iter().skip(skip).map(|child| (*child, 1)));
        }
        found
    });
    measured.check(found == held, || format!("the long-lived tree has {found} nodes of {held}"));
    finish(&mut heap, measured)
}

fn build(task: &Task) -> Heap {
    let mut heap = heap();
    heap.mutate_root(|mc, root| {
        let nodes: Vec<_> = (0..task.n).map(|id| node(mc, id)).collect();
        shapes::edges(task.workload, task.n, |from, to| link(mc, nodes[from], nodes[to]));
        root.held.push(nodes[0]);
    });
    // A cycle that the build has begun is not part of the first pause.
    heap.finish_cycle();
    heap
}

fn pause(task: &Task) -> Measured {
    let mut heap = build(task);
    let timed = |heap: &mut Heap| -> Duration {
        let begun = Instant::now();
        heap.finish_cycle();
        begun.elapsed()
    };
    let (first, idle) = (timed(&mut heap), timed(&mut heap));
    // The walk of the other contestants.
    heap.mutate_root(|mc, root| {
        let mut node = root.held[0];
        for _ in 0..shapes::steps(task.n) {
            let mut edges =
                gc_arena::barrier::unlock!(Gc::write(mc, node), Node, edges).borrow_mut();
            edges.rotate_right(1);
            let next = edges[0];
            drop(edges);
            node = next;
        }
    });
    let mut measured = Measured::new(timed(&mut heap), task.n as u64, 1);
    measured.fact("first_ns", first.as_nanos() as f64);
    measured.fact("idle_ns", idle.as_nanos() as f64);
    measured.check(tally::deaths() == 0, || format!("{} live nodes were freed", tally::deaths()));
    finish(&mut heap, measured)
}

fn garbage(task: &Task) -> Measured {
    let mut heap = build(task);
    let begun = Instant::now();
    drain(&mut heap);
    let measured = Measured::new(begun.elapsed(), task.n as u64, 1);
    finish(&mut heap, measured)
}
