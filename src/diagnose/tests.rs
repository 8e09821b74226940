#![cfg(feature = "derive")]
#![forbid(unsafe_code)]

use std::collections::{HashMap, HashSet, VecDeque};

use self::random::Random;
use crate::diagnose::{Census, Digraph, Dominators, HeapGraph, LeakWatch, TypeCensus};
use crate::{AnyGc, Code, Gc, GcCell, GcSlice, Heap, Mutator, Trace, Tracer};

#[path = "../../tests/common/random.rs"]
mod random;

#[derive(crate::Trace)]
#[trace(crate = crate)]
struct Node {
    next: GcCell<Vec<Gc<Node>>>,
    leaf: Option<Gc<u64>>,
    /// So that few nodes lie on a page, and both workers have some.
    pad: [u64; 500],
}

fn node(leaf: Option<Gc<u64>>) -> Node {
    Node { next: GcCell::default(), leaf, pad: [0; 500] }
}

fn address(gc: &AnyGc) -> usize {
    gc.header().as_ptr() as usize
}

/// Nodes, their edges by number, and which of them are held.
struct RandomHeap {
    addresses: Vec<usize>,
    edges: Vec<Vec<usize>>,
    handles: Vec<Gc<Node>>,
    held: Vec<bool>,
}

fn random_heap(m: &mut Mutator, random: &mut Random) -> RandomHeap {
    let count = 1 + random.below(40);
    let nodes: Vec<Gc<Node>> = (0..count)
        .map(|_| {
            let leaf = (random.below(3) == 0).then(|| m.alloc(1));
            m.alloc(node(leaf))
        })
        .collect();
    let mut edges = vec![Vec::new(); count];
    for _ in 0..random.below(3 * count) {
        let (from, to) = (random.below(count), random.below(count));
        nodes[from].next.lock(m).push(nodes[to].clone());
        edges[from].push(to);
    }
    let addresses = nodes.iter().map(|node| address(&Gc::into_any(node.clone()))).collect();
    let held: Vec<bool> = (0..count).map(|_| random.below(4) == 0).collect();
    let handles =
        nodes.into_iter().zip(&held).filter_map(|(node, &held)| held.then_some(node)).collect();
    RandomHeap { addresses, edges, handles, held }
}

/// The numbers of the nodes that `roots` reach, without passing `without`.
fn reachable(
    edges: &[Vec<usize>],
    roots: impl Iterator<Item = usize>,
    without: Option<usize>,
) -> HashSet<usize> {
    let mut found: HashSet<usize> = roots.filter(|&root| Some(root) != without).collect();
    let mut queue: Vec<usize> = found.iter().copied().collect();
    while let Some(node) = queue.pop() {
        for &target in &edges[node] {
            if Some(target) != without && found.insert(target) {
                queue.push(target);
            }
        }
    }
    found
}

/// Lists of targets. Target `u32::MAX` stands for an edge that does not count.
struct Lists {
    starts: Vec<usize>,
    targets: Vec<u32>,
}

impl Lists {
    fn of(lists: &[Vec<usize>]) -> Self {
        let mut this = Self { starts: vec![0], targets: Vec::new() };
        for list in lists {
            this.targets.extend(list.iter().map(|&target| target as u32));
            this.targets.push(u32::MAX);
            this.starts.push(this.targets.len());
        }
        this
    }
}

impl Digraph for Lists {
    fn nodes(&self) -> usize {
        self.starts.len() - 1
    }

    fn edges_of(&self, node: u32) -> std::ops::Range<usize> {
        self.starts[node as usize]..self.starts[node as usize + 1]
    }

    fn target(&self, edge: usize) -> Option<u32> {
        Some(self.targets[edge]).filter(|&target| target != u32::MAX)
    }
}

#[test]
fn dominators_are_those_of_the_definition() {
    for seed in 0..400 {
        let mut random = Random(seed);
        let count = 1 + random.below(14);
        let edges: Vec<Vec<usize>> = (0..count)
            .map(|_| (0..random.below(4)).map(|_| random.below(count)).collect())
            .collect();
        let mut roots: Vec<u32> = (0..count as u32).filter(|_| random.below(3) == 0).collect();
        roots.extend(roots.first().copied());
        let lists = Lists::of(&edges);
        let found = Dominators::of(&lists, &roots);
        let all = reachable(&edges, roots.iter().map(|&root| root as usize), None);
        let order: HashSet<usize> = found.order().iter().map(|&node| node as usize).collect();
        assert_eq!(order, all, "seed {seed}");
        assert_eq!(found.order().len(), all.len(), "seed {seed}");
        assert!((0..count).all(|node| found.is_reached(node as u32) == all.contains(&node)));
        let mut retained = vec![1; count];
        found.add_up(&mut retained);
        // Whether each path to `node` passes `other`.
        let dominates = |other: usize, node: usize| {
            let rest = reachable(&edges, roots.iter().map(|&root| root as usize), Some(other));
            other == node || !rest.contains(&node)
        };
        for &node in &all {
            let dominators: Vec<usize> = all
                .iter()
                .copied()
                .filter(|&other| other != node && dominates(other, node))
                .collect();
            // The direct one is dominated by all others.
            let direct = dominators
                .iter()
                .copied()
                .find(|&one| dominators.iter().all(|&other| dominates(other, one)));
            let expected = direct.map(|direct| direct as u32);
            assert_eq!(found.of_node(node as u32), expected, "seed {seed}, node {node}");
            let dominated = all.iter().filter(|&&other| dominates(node, other)).count();
            assert_eq!(retained[node], dominated, "seed {seed}, node {node}");
        }
    }
}

#[test]
fn a_graph_has_the_objects_edges_holders_and_paths_of_the_heap() {
    for (seed, workers) in (0..60).flat_map(|seed| [(seed, 1), (seed, 2)]) {
        let mut random = Random(seed);
        let heap = Heap::builder().workers(workers).serial_below(0).build().unwrap();
        let mut m = heap.attach();
        // Garbage is a part of the heap until a collection.
        let guard = heap.defer_collections();
        let RandomHeap { addresses, edges, handles, held } = random_heap(&mut m, &mut random);
        let count = addresses.len();
        let census = m.census();
        let row = census.types.iter().find(|row| row.type_name.ends_with("::Node"));
        let row = row.cloned().unwrap_or_default();
        let outside = held.iter().filter(|&&held| held).count();
        // Objects without a reference have died when their handle was dropped.
        let graph = m.graph();
        let is_alive = |node: usize| graph.why_alive(addresses[node]).is_some();
        let live = reachable(&edges, (0..count).filter(|&node| held[node]), None);
        for node in 0..count {
            assert_eq!(is_alive(node), live.contains(&node), "seed {seed}, node {node}");
        }
        assert_eq!((row.held, row.outside), (outside, outside), "seed {seed}");
        assert!(row.objects >= live.len() && row.bytes >= row.objects * size_of::<Node>());
        assert_eq!(row.old, 0);
        // Holders retain what becomes unreachable without them.
        let holders = graph.holders();
        let nodes: Vec<_> =
            holders.iter().filter(|holder| holder.type_name.ends_with("::Node")).collect();
        assert_eq!(nodes.len(), outside, "seed {seed}");
        for holder in nodes {
            let this = addresses.iter().position(|&address| address == holder.address).unwrap();
            let rest = reachable(&edges, (0..count).filter(|&node| held[node]), Some(this));
            let lost = live.difference(&rest).count();
            let leaves = live.difference(&rest).filter(|&&node| {
                graph.why_alive(addresses[node]).is_some() && has_leaf(&graph, addresses[node])
            });
            assert_eq!(holder.retained_objects, lost + leaves.count(), "seed {seed}, node {this}");
            assert_eq!(holder.outside, 1);
        }
        // Paths are the shortest ones, and exist.
        for &node in &live {
            let path = graph.why_alive(addresses[node]).unwrap();
            let from_others: HashMap<usize, usize> = distances(&edges, &held, node);
            let expected = from_others.get(&node).copied().unwrap_or(0);
            assert_eq!(path.steps.len(), expected + 1, "seed {seed}, node {node}: {path}");
            for pair in path.steps.windows(2) {
                let at = |step: usize| addresses.iter().position(|&it| it == pair[step].address);
                assert!(edges[at(0).unwrap()].contains(&at(1).unwrap()), "seed {seed}: {path}");
                assert_eq!(pair[1].field, "next");
            }
        }
        drop((handles, guard));
        // The tables are zero again, so a collection finds all garbage.
        let report = m.collect();
        assert_eq!(report.abandoned, None);
        assert_eq!((report.overvisited, heap.stats().live_objects), (0, 0), "seed {seed}");
    }
}

/// Whether the graph has a reference by the field `leaf` at an object.
fn has_leaf(graph: &HeapGraph, address: usize) -> bool {
    graph.references_of(address).any(|(field, _)| field == "leaf")
}

/// The distance of each node from the nearest held one, without `goal` among those.
fn distances(edges: &[Vec<usize>], held: &[bool], goal: usize) -> HashMap<usize, usize> {
    let mut found: HashMap<usize, usize> =
        (0..edges.len()).filter(|&node| held[node] && node != goal).map(|node| (node, 0)).collect();
    let mut queue: VecDeque<usize> = found.keys().copied().collect();
    while let Some(node) = queue.pop_front() {
        for &target in &edges[node] {
            if !found.contains_key(&target) {
                found.insert(target, found[&node] + 1);
                queue.push_back(target);
            }
        }
    }
    found
}

#[derive(crate::Trace)]
#[trace(crate = crate)]
enum Shape {
    Pair(Gc<u64>, Gc<u64>),
    Named { inner: Inner, boxed: Box<Option<Gc<u64>>> },
    Many { list: GcCell<Vec<Inner>>, map: HashMap<u8, Option<Inner>> },
    Mixed { pair: (Inner, Gc<u64>), rest: Gc<u64> },
}

#[derive(crate::Trace)]
#[trace(crate = crate)]
struct Inner {
    deep: Gc<u64>,
}

struct ByHand(Gc<u64>);

impl Trace for ByHand {
    fn traverse(this: &Self, tracer: &mut Tracer) {
        Trace::traverse(&this.0, tracer);
    }
}

#[test]
fn references_have_the_names_of_their_fields() {
    let heap = Heap::new();
    let mut m = heap.attach();
    let number = |m: &Mutator| m.alloc(1u64);
    let pair = m.alloc(Shape::Pair(number(&m), number(&m)));
    let named = m.alloc(Shape::Named {
        inner: Inner { deep: number(&m) },
        boxed: Box::new(Some(number(&m))),
    });
    let by_hand = m.alloc(ByHand(number(&m)));
    let inner = |m: &Mutator| Inner { deep: number(m) };
    let many = m.alloc(Shape::Many {
        list: GcCell::new(vec![inner(&m), inner(&m)]),
        map: HashMap::from([(1, Some(inner(&m))), (2, None)]),
    });
    let items = [number(&m), number(&m)];
    let slice = m.alloc_slice(number(&m), items);
    let mixed = m.alloc(Shape::Mixed { pair: (inner(&m), number(&m)), rest: number(&m) });
    let graph = m.graph();
    let fields = |gc: AnyGc| -> Vec<&str> {
        graph.references_of(address(&gc)).map(|(field, _)| field).collect()
    };
    assert_eq!(fields(Gc::into_any(pair)), ["0", "1"]);
    assert_eq!(fields(Gc::into_any(named)), ["deep", "boxed"]);
    assert_eq!(fields(Gc::into_any(by_hand)), [""]);
    assert_eq!(fields(Gc::into_any(many)), ["deep"; 3]);
    assert_eq!(fields(Gc::into_any(mixed)), ["deep", "pair", "rest"]);
    assert_eq!(fields(GcSlice::into_any(slice)), ["header", "items", "items"]);
}

#[cfg(feature = "cpython")]
#[test]
fn attributes_have_their_names() {
    use crate::dynamic::Class;
    let heap = Heap::new();
    let mut m = heap.attach();
    let class = Class::new("app.User").make(&m).unwrap();
    let (user, friend) = (class.instantiate(&m).unwrap(), class.instantiate(&m).unwrap());
    user.set_attribute(&m, "friend", Some(friend.clone())).unwrap();
    let path = m.why_alive(&friend);
    assert_eq!(path.to_string(), "outside (1 reference) -> app.User .friend -> app.User");
    user.set_attribute(&m, "enemy", Some(friend.clone())).unwrap();
    let graph = m.graph();
    let mut names: Vec<_> = graph.references_of(address(&user)).map(|(name, _)| name).collect();
    names.sort_unstable();
    assert_eq!(names, ["", "enemy", "friend"], "and the type");
    let class = address(class.object().expect("a type of the heap"));
    let labelled = m.graph_with_labels().why_alive(class).expect("it has instances");
    assert!(labelled.to_string().ends_with("type \"app.User\""), "{labelled}");
    assert!(m.census().of_type("app.User").is_some_and(|row| row.objects == 2 && row.held == 2));
}

#[test]
fn counts_that_are_pending_are_merged_first() {
    let heap = Heap::new();
    let mut m = heap.attach();
    let shared = m.alloc(node(None));
    let dead = m.alloc(node(None));
    std::thread::scope(|scope| {
        let copies: Vec<_> = (0..3).map(|_| shared.clone()).collect();
        scope.spawn(|| {
            let _attached = heap.attach();
            drop((copies, dead));
        });
    });
    // The other thread has dropped three references, and the last one to the other object.
    let census = m.census();
    let row = &census.types[0];
    assert_eq!((row.objects, row.held, row.outside), (1, 1, 1), "{census}");
    assert_eq!(heap.stats().live_objects, 1);
}

#[test]
fn frozen_objects_and_those_without_references_are_a_part_of_the_heap() {
    let heap = Heap::new();
    let mut m = heap.attach();
    let inner = m.alloc(node(Some(m.alloc(5))));
    let outer = m.alloc(Node { next: GcCell::new(vec![inner]), ..node(None) });
    assert_eq!(m.freeze(), 2);
    let census = m.census();
    assert_eq!(census.total().objects, 3);
    assert_eq!(census.total().held, 1, "only the handle, although frozen: {census}");
    let graph = m.graph();
    assert_eq!((graph.objects(), graph.references()), (3, 2));
    assert_eq!(graph.holders()[0].retained_objects, 3);
    m.unfreeze();
    drop(outer);
}

struct Panics;

impl Trace for Panics {
    fn traverse(_: &Self, _: &mut Tracer) {
        panic!("on purpose");
    }
}

#[test]
fn a_traversal_that_panics_leaves_the_heap_as_it_is() {
    let heap = Heap::builder().workers(2).serial_below(0).build().unwrap();
    let mut m = heap.attach();
    let this = m.alloc(node(None));
    this.next.lock(&m).push(this.clone());
    let bad = m.alloc(Panics);
    let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| m.census()));
    let text = crate::base::outside::panic_message(result.unwrap_err());
    assert_eq!(text, "the heap cannot be surveyed: on purpose");
    assert_eq!(m.try_graph().unwrap_err().code, Code::HandlerError);
    drop((bad, this));
    assert_eq!(m.collect().collected, 1);
    assert_eq!(m.census().total().objects, 0);
}

#[test]
fn a_visit_that_panics_leaves_the_heap_as_it_is() {
    let heap = Heap::new();
    let mut m = heap.attach();
    let this = m.alloc(node(None));
    let raw = m.raw_mut();
    let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        raw.survey(|object| panic!("{} at a visit", object.outside));
    }));
    let text = crate::base::outside::panic_message(result.unwrap_err());
    assert_eq!(text, "the heap cannot be surveyed: 1 at a visit");
    assert_eq!(m.collect().collected, 0);
    assert_eq!(this.next.lock(&m).len(), 0);
}

#[test]
fn a_census_prints_each_figure_under_its_name() {
    let row = TypeCensus {
        type_name: "app.User".to_owned(),
        objects: 1,
        bytes: 2,
        external_bytes: 3,
        old: 4,
        held: 5,
        outside: 6,
    };
    let text = Census { types: vec![row] }.to_string();
    let lines: Vec<Vec<&str>> =
        text.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(lines[0], ["objects", "bytes", "external", "old", "held", "outside", "type"]);
    assert_eq!(lines[1], ["1", "2", "3", "4", "5", "6", "app.User"]);
    assert_eq!(lines[2], ["1", "2", "3", "4", "5", "6", "all", "types"]);
}

#[test]
fn a_difference_names_what_has_changed() {
    let row = |type_name: &str, objects: usize| TypeCensus {
        type_name: type_name.to_owned(),
        objects,
        bytes: 10 * objects,
        external_bytes: objects,
        old: objects,
        held: 1,
        outside: 2,
    };
    let before = Census { types: vec![row("a", 5), row("b", 7), row("c", 1)] };
    let after = Census { types: vec![row("a", 9), row("c", 1), row("d", 2)] };
    let grown: Vec<_> = after
        .since(&before)
        .into_iter()
        .map(|growth| (growth.type_name, growth.objects, growth.bytes, growth.held))
        .collect();
    let expected = [("a", 4, 44, 0), ("d", 2, 22, 1), ("b", -7, -77, -1)];
    assert_eq!(grown, expected.map(|(name, o, b, h)| (name.to_owned(), o, b, h)));
}

#[test]
fn a_type_that_grows_in_each_look_is_suspected() {
    let census = |grows: usize, swings: usize, is_old: bool| {
        let row = |name: &str, objects: usize, old: bool| TypeCensus {
            type_name: name.to_owned(),
            objects,
            bytes: objects,
            old: if old { objects } else { 0 },
            ..TypeCensus::default()
        };
        Census {
            types: vec![
                row("grows", grows, true),
                row("swings", swings, true),
                row("young", grows, is_old),
            ],
        }
    };
    let mut watch = LeakWatch::new(3);
    let looks = [(1, 5, false), (2, 6, false), (3, 4, false), (4, 7, false)];
    let mut found = Vec::new();
    for (grows, swings, is_old) in looks {
        assert_eq!(found, [], "before the third growth");
        found = watch.look(census(grows, swings, is_old));
    }
    let names: Vec<_> = found.iter().map(|suspect| &suspect.grown.type_name[..]).collect();
    assert_eq!(names, ["grows"]);
    assert_eq!((found[0].grown.objects, found[0].now.objects), (3, 4));
    // Only the last looks count.
    assert_eq!(watch.look(census(4, 8, true)), []);
    assert_eq!(LeakWatch::new(0).look(Census::default()), []);
}
