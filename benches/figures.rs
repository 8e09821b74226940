//! The figures that the project promises, each beside its yardstick in the same run.
//!
//! `cargo bench --bench figures`: alternates the contestants so that drift cancels, repeats, and
//! prints medians with the spread. `-- ROUNDS` sets the number of rounds (default 9).

#![allow(missing_docs)]
#![cfg(not(loom))]

use std::hint::black_box;
use std::sync::{Arc, Barrier};
use std::time::Instant;

use standstill::{Gc, GcCell, Heap, Mutator, Pacing, Trace};

/// 48 bytes of payload without references.
#[derive(Trace)]
struct Plain([u64; 6]);

fn plain(i: u64) -> Plain {
    Plain([i, 1, 2, 3, 4, 5])
}

/// 48 bytes of payload: a tree's node with parent links.
#[derive(Trace)]
struct Tree {
    children: [GcCell<Option<Gc<Tree>>>; 2],
    parent: GcCell<Option<Gc<Tree>>>,
}

/// Up to four edges.
#[derive(Trace)]
struct Node {
    edges: [GcCell<Option<Gc<Node>>>; 4],
}

/// 48 bytes of payload with two edges.
#[derive(Trace)]
struct Young {
    next: GcCell<Option<Gc<Young>>>,
    other: GcCell<Option<Gc<Young>>>,
    payload: [u64; 2],
}

fn heap(workers: usize) -> Heap {
    Heap::builder().workers(workers).pacing(Pacing::manual()).build().expect("a heap")
}

struct SplitMix(u64);

impl SplitMix {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % n as u64) as usize
    }
}

/// Nanoseconds an operation, the slowest of `threads` that do `n` each.
fn timed(threads: usize, n: usize, work: impl Fn(usize) + Sync) -> f64 {
    if threads == 1 {
        let begun = Instant::now();
        work(n);
        return begun.elapsed().as_nanos() as f64 / n as f64;
    }
    let barrier = Barrier::new(threads);
    let times: Vec<f64> = std::thread::scope(|scope| {
        let spawned: Vec<_> = (0..threads)
            .map(|_| {
                scope.spawn(|| {
                    barrier.wait();
                    let begun = Instant::now();
                    work(n);
                    begun.elapsed().as_nanos() as f64 / n as f64
                })
            })
            .collect();
        spawned.into_iter().map(|t| t.join().expect("a worker")).collect()
    });
    times.into_iter().fold(0.0, f64::max)
}

fn alloc_gc(threads: usize) -> f64 {
    let heap = heap(1);
    timed(threads, 1_000_000, |n| {
        let m = heap.attach();
        for i in 0..n as u64 {
            black_box(m.alloc(plain(i)));
        }
    })
}

fn alloc_arc(threads: usize) -> f64 {
    timed(threads, 1_000_000, |n| {
        for i in 0..n as u64 {
            black_box(Arc::new(plain(i)));
        }
    })
}

fn clone_gc() -> f64 {
    let heap = heap(1);
    let m = heap.attach();
    let gc = m.alloc(plain(0));
    timed(1, 4_000_000, |n| {
        for _ in 0..n {
            black_box(gc.clone());
        }
    })
}

fn clone_arc() -> f64 {
    let arc = Arc::new(plain(0));
    timed(1, 4_000_000, |n| {
        for _ in 0..n {
            black_box(arc.clone());
        }
    })
}

fn tree(m: &Mutator, depth: u32) -> Gc<Tree> {
    let node = m.alloc(Tree { children: Default::default(), parent: GcCell::default() });
    if depth > 1 {
        for child in &node.children {
            let below = tree(m, depth - 1);
            below.parent.set(m, Some(node.clone()));
            child.set(m, Some(below));
        }
    }
    node
}

fn graph(m: &Mutator, n: usize) -> Gc<Node> {
    let mut random = SplitMix(7);
    let nodes: Vec<_> = (0..n).map(|_| m.alloc(Node { edges: Default::default() })).collect();
    for (i, node) in nodes.iter().enumerate() {
        let first = if i + 1 < n { i + 1 } else { 0 };
        node.edges[0].set(m, Some(nodes[first].clone()));
        for edge in &node.edges[1..] {
            edge.set(m, Some(nodes[random.below(n)].clone()));
        }
    }
    nodes[0].clone()
}

/// Nanoseconds an object of one full collection that frees nothing, and the bytes an object.
fn full<T>(workers: usize, build: impl Fn(&Mutator) -> T) -> impl FnMut() -> f64 {
    let heap = heap(workers);
    let kept = {
        let m = heap.attach();
        build(&m)
    };
    move || {
        let _kept = &kept;
        let mut m = heap.attach();
        let report = m.collect();
        assert_eq!(report.collected, 0);
        report.stops[0].as_nanos() as f64 / report.candidates as f64
    }
}

/// As `full` with one worker. The held object is named as a known root.
fn hinted<T: Trace>(build: impl Fn(&Mutator) -> Gc<T>) -> impl FnMut() -> f64 {
    let heap = heap(1);
    let root = {
        let m = heap.attach();
        heap.known_root(build(&m))
    };
    move || {
        let _root = &root;
        let mut m = heap.attach();
        let report = m.collect();
        assert_eq!((report.collected, report.known_alive), (0, report.candidates));
        report.stops[0].as_nanos() as f64 / report.candidates as f64
    }
}

fn young() -> impl FnMut() -> f64 {
    let heap = heap(1);
    let kept = {
        let mut m = heap.attach();
        let mut old: Option<Gc<Young>> = None;
        for _ in 0..4_000_000 {
            old = Some(m.alloc(Young {
                next: GcCell::new(old.take()),
                other: GcCell::default(),
                payload: [0; 2],
            }));
        }
        m.collect();
        old
    };
    move || {
        let _kept = &kept;
        let mut m = heap.attach();
        let new: Vec<_> = (0..10_000)
            .map(|_| {
                m.alloc(Young {
                    next: GcCell::new(kept.clone()),
                    other: GcCell::default(),
                    payload: [0; 2],
                })
            })
            .collect();
        black_box(new[0].payload);
        let report = m.collect_young();
        assert!(report.candidates >= 10_000 && report.candidates < 20_000, "{report:?}");
        report.stops[0].as_secs_f64() * 1e3
    }
}

fn resident_bytes() -> f64 {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages: f64 =
        text.split_whitespace().nth(1).and_then(|p| p.parse().ok()).unwrap_or(f64::NAN);
    pages * 4096.0
}

fn memory() -> f64 {
    const N: usize = 1_000_000;
    let heap = heap(1);
    let mut m = heap.attach();
    let before = resident_bytes();
    let mut head: Option<Gc<Young>> = None;
    for _ in 0..N {
        head = Some(m.alloc(Young {
            next: GcCell::new(head.take()),
            other: GcCell::default(),
            payload: [0; 2],
        }));
    }
    m.collect();
    (resident_bytes() - before) / N as f64
}

type Measure = Box<dyn FnMut() -> f64>;
type Yardstick = (&'static str, fn() -> f64);

struct Row {
    name: &'static str,
    unit: &'static str,
    ours: fn() -> Measure,
    /// The alternatives of a user.
    yardstick: Option<Yardstick>,
    goal: Option<f64>,
}

const ROWS: &[Row] = &[
    Row {
        name: "allocate + track + drop, 1 thread",
        unit: "ns",
        ours: || Box::new(|| alloc_gc(1)),
        yardstick: Some(("Arc", || alloc_arc(1))),
        goal: Some(1.0),
    },
    Row {
        name: "allocate + track + drop, 2 threads",
        unit: "ns",
        ours: || Box::new(|| alloc_gc(2)),
        yardstick: Some(("Arc", || alloc_arc(2))),
        goal: Some(1.0),
    },
    Row {
        name: "clone + drop by the owner",
        unit: "ns",
        ours: || Box::new(clone_gc),
        yardstick: Some(("Arc", clone_arc)),
        goal: Some(0.25),
    },
    Row {
        name: "full, 1M live, tree with parents, 1 worker",
        unit: "ns/object",
        ours: || Box::new(full(1, |m| tree(m, 20))),
        yardstick: None,
        goal: Some(20.0),
    },
    Row {
        name: "full, 1M live, random graph, 1 worker",
        unit: "ns/object",
        ours: || Box::new(full(1, |m| graph(m, 1_000_000))),
        yardstick: None,
        goal: Some(60.0),
    },
    Row {
        name: "full, 1M live, tree with parents, 2 workers",
        unit: "ns/object",
        ours: || Box::new(full(2, |m| tree(m, 20))),
        yardstick: None,
        goal: None,
    },
    Row {
        name: "full, 1M live, random graph, 2 workers",
        unit: "ns/object",
        ours: || Box::new(full(2, |m| graph(m, 1_000_000))),
        yardstick: None,
        goal: None,
    },
    Row {
        name: "full, 1M live, tree with parents, 1 worker, root named",
        unit: "ns/object",
        ours: || Box::new(hinted(|m| tree(m, 20))),
        yardstick: None,
        goal: None,
    },
    Row {
        name: "full, 1M live, random graph, 1 worker, root named",
        unit: "ns/object",
        ours: || Box::new(hinted(|m| graph(m, 1_000_000))),
        yardstick: None,
        goal: None,
    },
    Row {
        name: "young, 10,000 new beside 4M old",
        unit: "ms",
        ours: || Box::new(young()),
        yardstick: None,
        goal: Some(5.0),
    },
    Row {
        name: "memory, 1M nodes of 48 bytes",
        unit: "bytes/node",
        ours: || Box::new(memory),
        yardstick: None,
        goal: Some(80.0),
    },
];

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn main() {
    // Cargo passes `--bench`; a number is the rounds, other words select rows.
    let words = || std::env::args().skip(1).filter(|word| !word.starts_with('-'));
    let rounds = words().find_map(|word| word.parse().ok()).unwrap_or(9);
    let only: Vec<String> = words().filter(|word| word.parse::<usize>().is_err()).collect();
    println!("{rounds} rounds; the goal is the ratio to the yardstick where there is one");
    println!("| work | median | min | max | yardstick | ratio | goal |");
    println!("|---|---:|---:|---:|---:|---:|---:|");
    for row in ROWS {
        if !only.is_empty() && !only.iter().any(|word| row.name.contains(word.as_str())) {
            continue;
        }
        let mut measure = (row.ours)();
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        for _ in 0..rounds {
            ours.push(measure());
            theirs.extend(row.yardstick.map(|(_, yardstick)| yardstick()));
        }
        let mid = median(&mut ours);
        let (yardstick, ratio) = row.yardstick.map_or_else(Default::default, |(name, _)| {
            let theirs = median(&mut theirs);
            (format!("{name} {theirs:.1}"), format!("{:.2}", mid / theirs))
        });
        let goal = row.goal.map_or_else(String::new, |goal| goal.to_string());
        let (min, max) = (ours[0], ours[ours.len() - 1]);
        println!(
            "| {} | {mid:.1} {} | {min:.1} | {max:.1} | {yardstick} | {ratio} | {goal} |",
            row.name, row.unit
        );
    }
}
