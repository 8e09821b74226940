//! Tests of the steps that calls take inside a stop.

#![forbid(unsafe_code)]

use super::counting::WAITS;
use super::during;
use super::took;
use crate::memory::shape::PAGE_GRANULES;
use crate::{Gc, GcCell, GcWeak, GcWeakMap, Heap, Mutator, Pacing, Trace, Tracer, dynamic};

/// An object with any number of references.
struct Node(GcCell<Vec<Gc<Node>>>);

impl Trace for Node {
    fn traverse(this: &Self, tracer: &mut Tracer) {
        Trace::traverse(&this.0, tracer);
    }
    fn clear(this: &Self, m: &Mutator) {
        Trace::clear(&this.0, m);
    }
}

fn node(m: &Mutator, edges: Vec<Gc<Node>>) -> Gc<Node> {
    m.alloc(Node(GcCell::new(edges)))
}

fn link(m: &Mutator, from: &Gc<Node>, to: &Gc<Node>) {
    from.0.lock(m).push(to.clone());
}

/// The handles that keep a shape alive.
type Handles = Vec<Box<dyn std::any::Any>>;

/// Makes a shape of `n` objects.
type Build = fn(&Mutator, usize) -> Handles;

/// One object that refers to all others, and to itself.
fn array(m: &Mutator, n: usize) -> Handles {
    let elements = (0..n).map(|_| node(m, Vec::new())).collect();
    let array = node(m, elements);
    link(m, &array, &array);
    vec![Box::new(array)]
}

/// Each object refers to the object made before it, and the first to the last.
fn list(m: &Mutator, n: usize) -> Handles {
    let first = node(m, Vec::new());
    let last = (1..n).fold(first.clone(), |next, _| node(m, vec![next]));
    link(m, &first, &last);
    vec![Box::new(last)]
}

/// A binary tree with links to the parents.
fn tree(m: &Mutator, n: usize) -> Handles {
    let nodes: Vec<_> = (0..n).map(|_| node(m, Vec::new())).collect();
    for at in 1..n {
        link(m, &nodes[(at - 1) / 2], &nodes[at]);
        link(m, &nodes[at], &nodes[(at - 1) / 2]);
    }
    vec![Box::new(nodes[0].clone())]
}

/// One object that refers to all others, which refer to it.
fn star(m: &Mutator, n: usize) -> Handles {
    let hub = node(m, Vec::new());
    for _ in 1..n {
        let spoke = node(m, vec![hub.clone()]);
        link(m, &hub, &spoke);
    }
    vec![Box::new(hub)]
}

/// Rings of two objects, each with a handle.
fn roots(m: &Mutator, n: usize) -> Handles {
    let ring = |_| {
        let one = node(m, Vec::new());
        let other = node(m, vec![one.clone()]);
        link(m, &one, &other);
        Box::new(one) as Box<dyn std::any::Any>
    };
    (0..n / 2).map(ring).collect()
}

/// As [`roots`], with a weak reference to each object, half of them with a callback.
fn weak(m: &Mutator, n: usize) -> Handles {
    let rings = roots(m, n);
    let mut kept: Handles = Vec::new();
    for ring in &rings {
        let ring: &Gc<Node> = ring.downcast_ref().expect("a ring");
        let weak: GcWeak<Node> = Gc::downgrade(ring, m);
        kept.push(Box::new(weak));
        kept.push(Box::new(m.alloc_weak(ring, (), |_, _| {})));
    }
    kept.extend(rings);
    kept
}

/// All weak references lead to one object.
fn watched(m: &Mutator, n: usize) -> Handles {
    let target = node(m, Vec::new());
    let mut kept: Handles =
        (0..n).map(|_| Box::new(m.alloc_weak(&target, (), |_, _| {})) as _).collect();
    link(m, &target, &target);
    kept.push(Box::new(target));
    kept
}

/// Each object is the key of an entry whose value is the next object.
fn entries(m: &Mutator, n: usize) -> Handles {
    let table: Gc<GcWeakMap<Gc<Node>, Gc<Node>>> = GcWeakMap::new(m);
    let first = node(m, Vec::new());
    let last = (1..n).fold(first.clone(), |last, _| {
        let next = node(m, Vec::new());
        table.insert(m, &last, next.clone());
        next
    });
    link(m, &last, &first);
    vec![Box::new(table), Box::new(first)]
}

/// Each object has a type of its own.
fn types(m: &Mutator, n: usize) -> Handles {
    let instance = |number: usize| {
        let class = dynamic::Class::new(format!("T{number}")).make(m).expect("a class");
        let object = class.instantiate(m).expect("an instance");
        Box::new((class, object)) as Box<dyn std::any::Any>
    };
    (0..n / 8).map(instance).collect()
}

/// Each shape with the fewest objects that show a non-linear loop. A shape in which one object
/// refers to all others needs several chunks of work.
const SHAPES: [(&str, Build, usize); 9] = [
    ("array", array, 1 << 15),
    ("list", list, 1 << 13),
    ("tree", tree, 1 << 13),
    ("star", star, 1 << 14),
    ("roots", roots, 1 << 13),
    ("weak references", weak, 1 << 13),
    ("weak references to one", watched, 1 << 13),
    ("entries", entries, 1 << 13),
    ("types", types, 1 << 13),
];

/// The steps of collections.
#[derive(Debug)]
struct Took {
    /// With `n` live objects: young, full (the larger of two). With `n` dead objects: full,
    /// young.
    steps: [usize; 4],
    objects: usize,
    /// Places in the table of a worker, for all objects of the heap.
    places: usize,
}

fn steps(build: Build, workers: usize, n: usize) -> Took {
    let builder = Heap::builder().workers(workers).serial_below(0).checked(false);
    let heap = builder.pacing(Pacing::manual()).build().expect("a heap");
    let mut m = heap.attach();
    let kept = build(&m, n);
    let objects = heap.stats().live_objects;
    let young = during(|| m.collect_young()).1;
    let alive = (0..2).map(|_| during(|| m.collect()).1).max().expect("some");
    m.collect();
    drop(kept);
    let garbage = during(|| m.collect()).1;
    let kept = build(&m, n);
    drop(kept);
    let young_garbage = during(|| m.collect_young()).1;
    let places = m.raw().core().space.high_water() * PAGE_GRANULES;
    Took { steps: [young, alive, garbage, young_garbage], objects, places }
}

/// The fixed cost of a collection: pages that are scanned whole.
const FIXED: usize = 5_000;

/// Whether twice the size took at most little more than twice the steps.
fn is_linear(small: usize, large: usize) -> bool {
    large <= small * 9 / 4 + FIXED
}

/// Whether several workers took few enough steps for a collection that takes one worker `one`.
///
/// The number depends on the relative speed of the workers. The bound holds for all schedules:
///
/// - Each worker that comes in time to count, except the first, has a table of its own. Each
///   place of it is added to the heap's table once and wiped once.
/// - A worker gives at most half of its stack to another worker, which must be idle: it has
///   traversed or given away its own stack. So an object is given away at most three times on
///   average, and takes 3 steps each time.
/// - The lists of the workers' results are merged, with one step for each object.
fn is_bounded(one: usize, several: &Took, at: usize, workers: usize) -> bool {
    several.steps[at] <= one + 2 * several.places * (workers - 1) + 10 * several.objects + FIXED
}

#[test]
fn the_measure_knows_a_loop_that_is_not_linear() {
    let took = |steps: usize| during(|| took(steps)).1;
    let n = 10_000;
    assert!(is_linear(took(n), took(2 * n)));
    assert!(!is_linear(took(n * n), took(4 * n * n)));
    assert!(!is_linear(took(10 * n + n * n / 500), took(20 * n + 4 * n * n / 500)));
    // As for lists: 2 places for each object.
    let objects = 1 << 15;
    let several = |steps| Took { steps: [steps; 4], objects, places: 2 * objects };
    let steps = 20 * objects;
    assert!(is_bounded(12 * objects, &several(steps), 0, 3));
    assert!(!is_bounded(12 * objects, &several(steps + objects * objects / 2000), 0, 3));
}

#[test]
fn a_stop_takes_no_more_steps_than_the_heap_has_objects() {
    const WORKERS: usize = 3;
    const COLLECTIONS: [&str; 4] = ["young", "full", "full, garbage", "young, garbage"];
    WAITS.set(true);
    for (name, build, n) in SHAPES {
        let sizes = [n, 2 * n, 4 * n];
        let one = sizes.map(|n| steps(build, 1, n).steps);
        let several = sizes.map(|n| steps(build, WORKERS, n));
        for (at, what) in COLLECTIONS.into_iter().enumerate() {
            let [small, middle, large] = one.map(|took| took[at]);
            assert!(
                is_linear(small, middle) && is_linear(middle, large),
                "{name}, 1 worker, {what}: {small}, {middle} and {large} steps for n, 2n and 4n objects"
            );
            for (one, several) in one.iter().zip(&several) {
                assert!(
                    is_bounded(one[at], several, at, WORKERS),
                    "{name}, {WORKERS} workers, {what}: {} steps for 1 worker, and for all: {several:?}",
                    one[at]
                );
            }
        }
    }
}

/// The number of heaps affects neither a collection of one heap nor the search for the heap of
/// an address.
#[test]
fn other_heaps_cost_a_collection_nothing() {
    let cost = |others: usize| {
        let heap = || Heap::builder().reserve(1 << 20).workers(1).pacing(Pacing::manual()).build();
        let others: Vec<_> = (0..others).map(|_| heap().expect("a heap")).collect();
        let heap = heap().expect("a heap");
        let mut m = heap.attach();
        let kept = roots(&m, 1_000);
        let outside = GcCell::new(Vec::<Gc<Node>>::new());
        let looks = during(|| (0..100).for_each(|_| drop(outside.lock(&m)))).1;
        let collection = during(|| m.collect()).1;
        drop((kept, others));
        (looks, collection)
    };
    let (few, many) = (cost(1), cost(500));
    assert_eq!(few.1, many.1, "steps of a collection");
    assert!(
        many.0 <= 20 * few.0,
        "steps of 100 looks at a cell outside of all heaps: {} and {}",
        few.0,
        many.0
    );
}
