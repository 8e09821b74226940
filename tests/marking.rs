//! Full collections find the garbage of any graph: with one worker and several, with usual and with
//! small constants, in the first collection and in those that begin from its roots.

#![cfg(not(loom))]
#![allow(missing_docs)]

use proptest::prelude::*;
use standstill::{AnyGc, Collect, Gc, GcCell, Heap, HeapBuilder, Mutator, Pacing, Stress, Trace};

#[derive(Trace)]
struct Node {
    number: usize,
    edges: GcCell<Vec<Gc<Node>>>,
    #[trace(skip)]
    _bulk: [u64; 6],
}

/// Takes a run of pages.
#[derive(Trace)]
struct Large {
    edges: GcCell<Vec<Gc<Node>>>,
    any: GcCell<Vec<AnyGc>>,
    #[trace(skip)]
    _bulk: [u64; 9000],
}

/// A graph of `n` nodes, by their edges, of which some are held from outside.
#[derive(Clone, Debug)]
struct Graph {
    n: usize,
    edges: Vec<(usize, usize)>,
    held: Vec<usize>,
    /// Nodes with edges to very many others.
    hubs: Vec<(usize, usize)>,
}

impl Graph {
    fn all_edges(&self) -> impl Iterator<Item = (usize, usize)> {
        let hubs = self.hubs.iter().flat_map(|&(hub, many)| (0..many).map(move |i| (hub, i * 7)));
        self.edges.iter().copied().chain(hubs).map(|(from, to)| (from % self.n, to % self.n))
    }

    /// The objects that are reachable from `held`, found without a collector.
    fn reachable(&self, held: &[usize]) -> Vec<bool> {
        let mut lists = vec![Vec::new(); self.n];
        self.all_edges().for_each(|(from, to)| lists[from].push(to));
        let mut reached = vec![false; self.n];
        let mut stack: Vec<usize> = held.iter().map(|at| at % self.n).collect();
        while let Some(at) = stack.pop() {
            if !std::mem::replace(&mut reached[at], true) {
                stack.extend(&lists[at]);
            }
        }
        reached
    }

    fn check(&self, builder: HeapBuilder) {
        let heap = builder.pacing(Pacing::manual()).build().unwrap();
        let mut m = heap.attach();
        let alloc = |number| m.alloc(Node { number, edges: GcCell::default(), _bulk: [0; 6] });
        let nodes: Vec<Gc<Node>> = (0..self.n).map(alloc).collect();
        for (from, to) in self.all_edges() {
            nodes[from].edges.lock(&m).push(nodes[to].clone());
        }
        let mut held: Vec<Gc<Node>> =
            self.held.iter().map(|at| nodes[at % self.n].clone()).collect();
        drop(nodes);
        // Objects whose counts fall to 0 die with their last handle.
        let how_many = |held| self.reachable(held).into_iter().filter(|&it| it).count();
        let reachable = how_many(&self.held);
        for _ in 0..2 {
            let report = m.collect();
            assert_eq!((report.abandoned, report.overvisited), (None, 0));
            assert_eq!(heap.stats().live_objects, reachable);
        }
        let mut seen = vec![false; self.n];
        let mut stack: Vec<Gc<Node>> = held.clone();
        while let Some(node) = stack.pop() {
            if !std::mem::replace(&mut seen[node.number], true) {
                stack.extend(node.edges.lock(&m).iter().cloned());
            }
        }
        assert_eq!(seen, self.reachable(&self.held), "no living object lost an edge");
        drop(stack);
        // Each collection assumes the roots of the one before.
        while held.pop().is_some() {
            assert_eq!(m.collect().abandoned, None);
            assert_eq!(heap.stats().live_objects, how_many(&self.held[..held.len()]));
        }
        m.collect();
        assert_eq!(heap.stats().live_objects, 0);
    }

    fn check_all(&self) {
        for workers in [1, 3] {
            let builder = || Heap::builder().reserve(1 << 30).workers(workers).serial_below(0);
            self.check(builder());
            self.check(builder().stress(Stress::none().small_constants(true)));
        }
    }
}

/// How many cases a test tries of those of a full run.
fn cases(full: u32) -> ProptestConfig {
    let is_full = std::env::var_os("STANDSTILL_FULL").is_some();
    ProptestConfig::with_cases(if is_full { full } else { full / 4 })
}

proptest! {
    #![proptest_config(cases(32))]
    #[test]
    fn every_graph_is_marked_alike(
        n in 1..4000usize,
        edges in proptest::collection::vec((any::<usize>(), any::<usize>()), 0..6000),
        held in proptest::collection::vec(any::<usize>(), 0..4),
        hubs in proptest::collection::vec((any::<usize>(), 0..300usize), 0..20),
    ) {
        Graph { n, edges, held, hubs }.check_all();
    }
}

/// A large graph: hubs beside small objects, and one hub of a hundred thousand edges.
#[test]
fn hubs_and_many_pages() {
    let n = 60_000;
    let edges = (0..n).flat_map(|i| [(i, i / 2), (i, (i * 31 + 7) % n), (i / 3, i)]).collect();
    let hubs = vec![(0, 100_000), (5, 62), (6, 63), (7, 64), (50_000, 5000)];
    Graph { n, edges, held: vec![59_999], hubs }.check_all();
}

/// A binary tree with nodes before their children, and with edges to the parents: edges of `step *
/// i` and so on.
fn preorder(n: usize, step: usize) -> Vec<(usize, usize)> {
    let mut edges = Vec::new();
    let mut parts = vec![(0, n)];
    while let Some((root, count)) = parts.pop() {
        let left = (count - 1) / 2;
        for (child, below) in [(root + 1 + left, count - 1 - left), (root + 1, left)] {
            if below > 0 {
                edges.extend([(child * step, root * step), (root * step, child * step)]);
                parts.push((child, below));
            }
        }
    }
    edges
}

/// Heaps whose edges lead up, down, and anywhere.
#[test]
fn heaps_in_order_and_out_of_order() {
    let n = 12_000;
    let tree = preorder(n, 1);
    let graph =
        |edges: &[(usize, usize)], held| Graph { n, edges: edges.to_vec(), held, hubs: Vec::new() };
    graph(&tree, vec![0]).check_all();
    // Held by the last leaf: found from behind.
    graph(&tree, vec![n - 1]).check_all();
    // Children first.
    let turned: Vec<_> = tree.iter().map(|&(from, to)| (n - 1 - from, n - 1 - to)).collect();
    graph(&turned, vec![n - 1]).check_all();
    // A list, upwards and downwards.
    let list: Vec<_> = (1..n).map(|i| (i - 1, i)).collect();
    graph(&list, vec![0]).check_all();
    let back: Vec<_> = list.iter().map(|&(from, to)| (to, from)).collect();
    graph(&back, vec![n - 1]).check_all();
    // Every second object is garbage, and every tenth.
    let half = preorder(n / 2, 2);
    let rings = |step: usize| (0..n / step).map(move |i| (i * step + 1, (i * 7 * step + 1) % n));
    graph(&half.iter().copied().chain(rings(2)).collect::<Vec<_>>(), vec![0]).check_all();
    let most: Vec<_> = (0..n).filter(|i| i % 10 != 1).collect();
    let sparse =
        list.iter().filter(|(_, to)| *to < most.len()).map(|&(from, to)| (most[from], most[to]));
    graph(&sparse.chain(rings(10)).collect::<Vec<_>>(), vec![0]).check_all();
    // In order for a third, and then not. The edges ahead are known from the beginning.
    let mixed =
        preorder(n / 3, 1).into_iter().chain((0..n / 3).map(|i| (i, n - 1 - (i * 17) % (n / 3))));
    graph(&mixed.chain((n / 3..n).map(|i| (i, (i * 7919) % n))).collect::<Vec<_>>(), vec![0])
        .check_all();
    // Objects with many edges, ahead and behind.
    for many in [8, 9, 40, 62, 63, 200] {
        let wide = (0..n / 100).flat_map(|i| (1..=many).map(move |k| (i, i + k)));
        let edges: Vec<_> =
            wide.chain((n / 100..n).map(|i| (i, i / 2))).chain(list.clone()).collect();
        graph(&edges, vec![0]).check_all();
    }
}

/// Any number of edges.
#[test]
fn objects_with_few_and_with_many_edges() {
    let n = 4000;
    for most in [17, 40, 62] {
        let sizes = (0..n).flat_map(|i| (0..=i % most).map(move |k| (i, (i + k * k + 1) % n)));
        Graph { n, edges: sizes.collect(), held: vec![0], hubs: Vec::new() }.check_all();
    }
}

/// No object is at granule 0.
#[test]
fn a_heap_without_its_first_pages() {
    let heap = Heap::builder().workers(1).pacing(Pacing::manual()).build().unwrap();
    let mut m = heap.attach();
    let first =
        m.alloc(Large { edges: GcCell::default(), any: GcCell::default(), _bulk: [0; 9000] });
    let n = 5000;
    let nodes: Vec<_> = (0..n)
        .map(|number| m.alloc(Node { number, edges: GcCell::default(), _bulk: [0; 6] }))
        .collect();
    for (i, node) in nodes.iter().enumerate() {
        let many = if i % 37 == 3 { 70 } else { 1 };
        let targets = (1..=many).map(|k| nodes[(i + k) % n].clone());
        node.edges.set(&m, targets.collect());
    }
    drop(first);
    let held = nodes[0].clone();
    drop(nodes);
    for _ in 0..3 {
        let report = m.collect();
        assert_eq!((report.abandoned, report.collected), (None, 0));
        assert_eq!(heap.stats().live_objects, n);
    }
    drop(held);
    assert_eq!(m.collect().collected, n);
}

#[derive(Trace)]
struct Small {
    edges: GcCell<Vec<AnyGc>>,
}

/// On pages of its own, not where the first object of a page would be.
#[derive(Trace)]
#[repr(align(4096))]
struct Aligned {
    edges: GcCell<Vec<AnyGc>>,
    #[trace(skip)]
    _bulk: [u64; 9000],
}

/// Some object of the next test.
enum Any {
    Small(Gc<Small>),
    Large(Gc<Large>),
    Aligned(Gc<Aligned>),
}

impl Any {
    fn alloc(m: &Mutator, number: usize) -> Self {
        match number % 300 {
            7 => Self::Large(m.alloc(Large {
                edges: GcCell::default(),
                any: GcCell::default(),
                _bulk: [0; 9000],
            })),
            150 => Self::Aligned(m.alloc(Aligned { edges: GcCell::default(), _bulk: [0; 9000] })),
            _ => Self::Small(m.alloc(Small { edges: GcCell::default() })),
        }
    }

    fn handle(&self) -> AnyGc {
        match self {
            Self::Small(gc) => Gc::into_any(gc.clone()),
            Self::Large(gc) => Gc::into_any(gc.clone()),
            Self::Aligned(gc) => Gc::into_any(gc.clone()),
        }
    }

    fn add(&self, m: &Mutator, target: &Self) {
        let edges = match self {
            Self::Small(gc) => &gc.edges,
            Self::Large(gc) => &gc.any,
            Self::Aligned(gc) => &gc.edges,
        };
        edges.lock(m).push(target.handle());
    }
}

/// Large objects ahead and behind.
#[test]
fn large_objects_lead_on() {
    let n = 3000;
    let up = |i: usize| i + 1;
    let stride = |i: usize| (i + 1277) % n;
    for small_constants in [false, true] {
        for (next, back) in [(&up as &dyn Fn(usize) -> usize, false), (&up, true), (&stride, false)]
        {
            let stress = Stress::none().small_constants(small_constants);
            let builder = Heap::builder().reserve(1 << 30).workers(1).stress(stress);
            let heap = builder.pacing(Pacing::manual()).build().unwrap();
            let mut m = heap.attach();
            let all: Vec<Any> = (0..n).map(|number| Any::alloc(&m, number)).collect();
            for i in 0..n {
                let to = next(i);
                if to < n {
                    let (from, to) = if back { (to, i) } else { (i, to) };
                    all[from].add(&m, &all[to]);
                    // A cycle each, so that counts alone free nothing.
                    all[to].add(&m, &all[to]);
                }
            }
            let held = all[if back { n - 1 } else { 0 }].handle();
            drop(all);
            for _ in 0..2 {
                assert_eq!((m.collect().collected, heap.stats().live_objects), (0, n));
            }
            drop(held);
            m.collect();
            assert_eq!(heap.stats().live_objects, 0);
        }
    }
}

/// Objects with pages of their own lead to others, and are led to by none.
#[test]
fn large_objects_are_followed() {
    for count in [0, 1, 8, 62, 63, 5000] {
        let heap = Heap::builder().pacing(Pacing::manual()).build().unwrap();
        let mut m = heap.attach();
        let large =
            m.alloc(Large { edges: GcCell::default(), any: GcCell::default(), _bulk: [0; 9000] });
        for number in 0..count {
            let node = m.alloc(Node { number, edges: GcCell::default(), _bulk: [0; 6] });
            node.edges.lock(&m).push(node.clone());
            large.edges.lock(&m).push(node);
        }
        m.collect();
        assert_eq!(heap.stats().live_objects, count + 1);
        for (number, node) in large.edges.lock(&m).iter().enumerate() {
            assert_eq!(node.edges.lock(&m)[0].number, number);
        }
        drop(large);
        assert_eq!(m.collect().collected, count);
    }
}

/// A request can limit the number of threads, but not raise it.
#[test]
fn a_request_limits_the_threads_of_its_collection() {
    let heap = Heap::builder().workers(3).serial_below(0).pacing(Pacing::manual()).build().unwrap();
    let mut m = heap.attach();
    for (most, workers) in [(0, 1), (1, 1), (2, 2), (3, 3), (usize::MAX, 3)] {
        let report = m.try_collect(Collect::full().workers(most)).unwrap();
        assert_eq!(report.workers, workers, "{most}");
    }
    assert_eq!(m.collect().workers, 3);
}
