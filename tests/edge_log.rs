//! Full collections that follow edges from the log of counting, and those that look at every object again, find the
//! same: in heaps where all is logged, where the first objects of each page are (small constants), and where nothing is.

#![cfg(not(loom))]
#![allow(missing_docs)]

use proptest::prelude::*;
use standstill::{Gc, GcCell, Heap, HeapBuilder, Pacing, Stress, Trace};

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

    /// What is reachable from what is held, found without a collector.
    fn reachable(&self) -> Vec<bool> {
        let mut lists = vec![Vec::new(); self.n];
        self.all_edges().for_each(|(from, to)| lists[from].push(to));
        let mut reached = vec![false; self.n];
        let mut stack: Vec<usize> = self.held.iter().map(|at| at % self.n).collect();
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
            nodes[from].get(&m).edges.lock(&m).push(nodes[to].clone());
        }
        let held: Vec<Gc<Node>> = self.held.iter().map(|at| nodes[at % self.n].clone()).collect();
        drop(nodes);
        // Those whose counts come to 0 die with their last handle.
        let reachable = self.reachable().into_iter().filter(|&it| it).count();
        for _ in 0..2 {
            let report = m.collect();
            assert_eq!((report.abandoned, report.overvisited), (None, 0));
            assert_eq!(heap.stats().live_objects, reachable);
        }
        let mut seen = vec![false; self.n];
        let mut stack: Vec<Gc<Node>> = held.clone();
        while let Some(node) = stack.pop() {
            if !std::mem::replace(&mut seen[node.get(&m).number], true) {
                stack.extend(node.get(&m).edges.lock(&m).iter().cloned());
            }
        }
        assert_eq!(seen, self.reachable(), "no living object lost an edge");
        drop((held, stack));
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

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]
    #[test]
    fn logged_and_unlogged_objects_are_marked_alike(
        n in 1..4000usize,
        edges in proptest::collection::vec((any::<usize>(), any::<usize>()), 0..6000),
        held in proptest::collection::vec(any::<usize>(), 0..4),
        hubs in proptest::collection::vec((any::<usize>(), 0..300usize), 0..20),
    ) {
        Graph { n, edges, held, hubs }.check_all();
    }
}

/// A large graph: several chunks, hubs beside small objects, and one hub of a hundred thousand edges.
#[test]
fn hubs_and_many_pages() {
    let n = 60_000;
    let edges = (0..n).flat_map(|i| [(i, i / 2), (i, (i * 31 + 7) % n), (i / 3, i)]).collect();
    let hubs = vec![(0, 100_000), (5, 62), (6, 63), (7, 64), (50_000, 5000)];
    Graph { n, edges, held: vec![59_999], hubs }.check_all();
}

/// Objects with pages of their own lead to others, and are led to by none.
#[test]
fn large_objects_are_followed() {
    for count in [0, 1, 8, 62, 63, 5000] {
        let heap = Heap::builder().pacing(Pacing::manual()).build().unwrap();
        let mut m = heap.attach();
        let large = m.alloc(Large { edges: GcCell::default(), _bulk: [0; 9000] });
        for number in 0..count {
            let node = m.alloc(Node { number, edges: GcCell::default(), _bulk: [0; 6] });
            node.get(&m).edges.lock(&m).push(node.clone());
            large.get(&m).edges.lock(&m).push(node);
        }
        m.collect();
        assert_eq!(heap.stats().live_objects, count + 1);
        for (number, node) in large.get(&m).edges.lock(&m).iter().enumerate() {
            assert_eq!(node.get(&m).edges.lock(&m)[0].get(&m).number, number);
        }
        drop(large);
        assert_eq!(m.collect().collected, count);
    }
}
