//! Collections of random graphs, compared with a plain search for reachable objects.

#![forbid(unsafe_code)]

use crate::collect::tests::{Ring, heap, rings};
use crate::report::facts::CollectionKind;
use std::sync::Arc;
use std::sync::Mutex;

use crate::base::sync::{AtomicBool, AtomicUsize, Ordering};
use crate::collect::collection::collect;
use crate::heap::request::Collect;
use crate::object::tracer::Tracer;
use crate::{AnyGc, Finalizer, Gc, GcCell, Heap, Mutator, Pacing, Trace};

/// The data that all objects of a graph share.
#[derive(Default)]
struct Shared {
    /// The finalizers that have run, by the numbers of their objects.
    finalized: Mutex<Vec<usize>>,
    /// The objects that their finalizers resurrected.
    brought_back: Mutex<Vec<AnyGc>>,
    called_back: AtomicUsize,
}

/// An object of a graph, with a finalizer or without.
struct Node<const FINAL: bool> {
    number: usize,
    edges: GcCell<Vec<AnyGc>>,
    /// Whether a traversal finds a field unreadable.
    is_locked: AtomicBool,
    shared: Arc<Shared>,
}

impl<const FINAL: bool> Trace for Node<FINAL> {
    const FINALIZER: Option<Finalizer<Self>> = if FINAL {
        Some(Finalizer::new(|this, _| {
            let node = this;
            node.shared.finalized.lock().expect("no panic").push(node.number);
            if is_brought_back(node.number) {
                node.shared.brought_back.lock().expect("no panic").push(this.clone().into());
            }
        }))
    } else {
        None
    };
    fn traverse(this: &Self, tracer: &mut Tracer) {
        if this.is_locked.load(Ordering::Relaxed) {
            tracer.unreadable();
        }
        Trace::traverse(&this.edges, tracer);
    }
    fn clear(this: &Self, m: &Mutator) {
        Trace::clear(&this.edges, m);
    }
}

/// The number of objects in a group of neighbours.
const GROUP: usize = 25;

fn has_finalizer(number: usize) -> bool {
    number % 5 == 3
}

fn is_brought_back(number: usize) -> bool {
    number % 75 == 3
}

fn is_watched(number: usize) -> bool {
    number % 3 == 1
}

fn numbers(seed: u64) -> impl FnMut(usize) -> usize {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    move |below| {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % below
    }
}

/// Whether a weak reference can be upgraded.
type Upgrades = Box<dyn Fn(&Mutator) -> bool>;

/// Objects, and a model of their expected state that does not read the heap.
struct Graph {
    m: Mutator,
    shared: Arc<Shared>,
    weak: Vec<Upgrades>,
    watchers: Vec<Box<dyn std::any::Any>>,
    /// The references from outside to objects, by number.
    held: Vec<Option<AnyGc>>,
    edges: Vec<Vec<usize>>,
    is_old: Vec<bool>,
    is_gone: Vec<bool>,
    is_locked: Vec<bool>,
    is_finalized: Vec<bool>,
    /// Whether the callback of the object's weak reference has run.
    is_called: Vec<bool>,
    /// Objects collected, finalized and resurrected, and callbacks run, by all collections.
    sums: [usize; 4],
}

impl Graph {
    fn new(m: Mutator) -> Self {
        Self {
            m,
            shared: Arc::default(),
            weak: Vec::new(),
            watchers: Vec::new(),
            held: Vec::new(),
            edges: Vec::new(),
            is_old: Vec::new(),
            is_gone: Vec::new(),
            is_locked: Vec::new(),
            is_finalized: Vec::new(),
            is_called: Vec::new(),
            sums: [0; 4],
        }
    }

    fn make<const FINAL: bool>(&mut self) {
        let m = &self.m;
        let node: Gc<Node<FINAL>> = m.alloc(Node {
            number: self.held.len(),
            edges: GcCell::new(Vec::new()),
            is_locked: AtomicBool::new(false),
            shared: self.shared.clone(),
        });
        let weak = Gc::downgrade(&node, m);
        self.weak.push(Box::new(move |m| weak.upgrade(m).is_some()));
        if is_watched(self.held.len()) {
            let watcher = m.alloc_weak(&node, Called(self.shared.clone()), |weak, _| {
                weak.data().0.called_back.fetch_add(1, Ordering::Relaxed);
            });
            self.watchers.push(Box::new(watcher));
        }
        self.held.push(Some(node.into()));
        self.edges.push(Vec::new());
        self.is_old.push(false);
        self.is_gone.push(false);
        self.is_locked.push(false);
        self.is_finalized.push(false);
        self.is_called.push(false);
    }

    /// Adds `n` objects. The test holds all of them. They have edges to each other and to older
    /// objects that the test holds.
    fn grow(&mut self, n: usize, seed: u64) {
        let first = self.held.len();
        for number in first..first + n {
            if has_finalizer(number) { self.make::<true>() } else { self.make::<false>() }
        }
        let mut random = numbers(seed);
        let there: Vec<usize> =
            (0..first + n).filter(|&number| self.held[number].is_some()).collect();
        for from in first..first + n {
            // Most objects have few edges. Some have more edges than a reader takes from the
            // log at once, more than the log holds for one object, or more than a batch.
            let edges = match random(100) {
                0 => 3_000,
                1..4 => 70,
                4..10 => 20,
                10..40 => 0,
                _ => 1 + random(3),
            };
            // Nearly all edges lead to neighbours, so that garbage rings form.
            let group = from - from % GROUP;
            for _ in 0..edges {
                let to = match random(edges.max(100)) {
                    0 => there[0],
                    1 => there[random(there.len())],
                    _ => (group + random(GROUP)).clamp(first, first + n - 1),
                };
                self.link(from, to);
            }
            // A list, which is marked one object at a time.
            if (from + 1) % GROUP != 0 && from % 7 < 5 {
                self.link(from, from + 1);
            }
            if random(100) == 0 {
                self.with(from, |is_locked, _| is_locked.store(true, Ordering::Relaxed));
                self.is_locked[from] = true;
            }
        }
    }

    fn with(&self, number: usize, f: impl FnOnce(&AtomicBool, &GcCell<Vec<AnyGc>>)) {
        let node = self.held[number].as_ref().expect("held");
        if let Some(node) = node.downcast_ref::<Node<true>>(&self.m) {
            f(&node.is_locked, &node.edges);
        } else {
            let node = node.downcast_ref::<Node<false>>(&self.m).expect("a node");
            f(&node.is_locked, &node.edges);
        }
    }

    fn link(&mut self, from: usize, to: usize) {
        let target = self.held[to].clone().expect("held");
        self.with(from, |_, edges| edges.lock(&self.m).push(target));
        self.edges[from].push(to);
    }

    /// Drops the test's references, except those to objects with a multiple of
    /// `except_multiples_of` as number.
    fn drop_held(&mut self, except_multiples_of: usize) {
        for (number, held) in self.held.iter_mut().enumerate() {
            if number % except_multiples_of != 0 {
                *held = None;
            }
        }
        let (finalized, calls) = self.die();
        self.check_reported(finalized, calls);
    }

    /// The objects of `among` that are reachable from `from` within `among`. Includes `from`
    /// itself.
    fn reached(&self, from: impl IntoIterator<Item = usize>, among: &[bool]) -> Vec<bool> {
        let mut reached = vec![false; among.len()];
        let mut stack: Vec<usize> = from.into_iter().collect();
        while let Some(number) = stack.pop() {
            if among[number]
                && !std::mem::replace(&mut reached[number], true)
                && !self.is_locked[number]
            {
                stack.extend(&self.edges[number]);
            }
        }
        reached
    }

    /// Records the objects that die by reference counting, including those that finalizers
    /// resurrected. Returns the due finalizers by the numbers of their objects, and the number
    /// of due callbacks.
    fn die(&mut self) -> (Vec<usize>, usize) {
        loop {
            let brought_back =
                std::mem::take(&mut *self.shared.brought_back.lock().expect("no panic"));
            if brought_back.is_empty() {
                break;
            }
        }
        let (mut finalized, mut calls) = (Vec::new(), 0);
        let mut counts = vec![0usize; self.edges.len()];
        for number in (0..self.edges.len()).filter(|&number| !self.is_gone[number]) {
            counts[number] += usize::from(self.held[number].is_some());
            self.edges[number].iter().for_each(|&to| counts[to] += 1);
        }
        let mut dying: Vec<usize> = (0..counts.len())
            .filter(|&number| counts[number] == 0 && !self.is_gone[number])
            .collect();
        while let Some(number) = dying.pop() {
            self.is_gone[number] = true;
            if has_finalizer(number) && !std::mem::replace(&mut self.is_finalized[number], true) {
                finalized.push(number);
            }
            calls += usize::from(is_watched(number) && !self.is_called[number]);
            for &to in &self.edges[number] {
                counts[to] -= 1;
                if counts[to] == 0 {
                    dying.push(to);
                }
            }
        }
        (finalized, calls)
    }

    /// Compares the finalizers and callbacks that have run with those that were due.
    fn check_reported(&mut self, mut finalized: Vec<usize>, calls: usize) {
        finalized.sort_unstable();
        let mut ran = std::mem::take(&mut *self.shared.finalized.lock().expect("no panic"));
        ran.sort_unstable();
        assert_eq!(ran, finalized, "each finalizer once");
        assert_eq!(self.shared.called_back.swap(0, Ordering::Relaxed), calls, "each callback once");
        let is_there: Vec<bool> = self.weak.iter().map(|upgrades| upgrades(&self.m)).collect();
        for (number, is_there) in is_there.into_iter().enumerate() {
            assert_eq!(is_there, !self.is_gone[number], "object {number}");
        }
    }

    /// Collects, and compares the state of each object with the state that the edges imply.
    fn collect(&mut self, kind: CollectionKind) {
        let all = self.edges.len();
        let is_candidate: Vec<bool> = (0..all)
            .map(|number| {
                !self.is_gone[number] && (kind == CollectionKind::Full || !self.is_old[number])
            })
            .collect();
        let held = (0..all).filter(|&number| self.held[number].is_some());
        // An object that is not a candidate or is unreadable makes its targets reachable from
        // outside.
        let outside = (0..all).filter(|&number| {
            !self.is_gone[number] && (!is_candidate[number] || self.is_locked[number])
        });
        let roots = held.chain(outside.flat_map(|number| self.edges[number].iter().copied()));
        let reached = self.reached(roots, &is_candidate);
        let unreachable: Vec<bool> =
            (0..all).map(|number| is_candidate[number] && !reached[number]).collect();
        let among = |number: &usize| unreachable[*number];
        let finalized: Vec<usize> = (0..all)
            .filter(among)
            .filter(|&number| has_finalizer(number) && !self.is_finalized[number])
            .collect();
        let resurrected = self.reached(
            finalized.iter().copied().filter(|&number| is_brought_back(number)),
            &unreachable,
        );
        let count = |list: &[bool]| list.iter().filter(|&&is| is).count();
        let due = |&number: &usize| is_watched(number) && !self.is_called[number];
        let calls = (0..all).filter(among).filter(due).count();
        let what = match kind {
            CollectionKind::Full => Collect::full(),
            CollectionKind::Young => Collect::young(),
        };
        let report = collect(self.m.raw_mut(), what).expect("a stop");
        assert_eq!(report.abandoned, None);
        assert_eq!(report.unreachable, count(&unreachable), "unreachable");
        assert_eq!(report.finalized, finalized.len(), "finalized");
        assert_eq!(report.resurrected, count(&resurrected), "resurrected");
        assert_eq!(report.collected, count(&unreachable) - count(&resurrected), "collected");
        assert_eq!((report.uncollectable, report.overvisited), (0, 0));
        for (sum, more) in self.sums.iter_mut().zip([
            report.collected,
            report.finalized,
            report.resurrected,
            calls,
        ]) {
            *sum += more;
        }
        self.m.verify().expect("a sound heap");
        for number in 0..all {
            self.is_gone[number] |= unreachable[number] && !resurrected[number];
            self.is_old[number] = true;
            self.is_called[number] |= unreachable[number];
            self.is_finalized[number] |= finalized.binary_search(&number).is_ok();
        }
        // The test drops resurrected objects again. A target of an unreadable object dies with
        // that object.
        let (mut others, more_calls) = self.die();
        others.extend(finalized);
        self.check_reported(others, calls + more_calls);
    }
}

/// The data of a weak reference.
struct Called(Arc<Shared>);

impl Trace for Called {
    const TRACKED: bool = false;
    fn traverse(_: &Self, _: &mut Tracer) {}
}

#[test]
fn of_any_graph_what_nobody_reaches_is_collected_and_nothing_else() {
    for (seed, workers, is_small) in [(1, 1, false), (2, 1, true), (3, 3, false), (4, 3, true)] {
        let stress = crate::Stress::none().small_constants(is_small);
        let builder =
            Heap::builder().reserve(1 << 30).workers(workers).serial_below(0).stress(stress);
        let heap = builder.pacing(Pacing::manual()).build().expect("a heap");
        let mut graph = Graph::new(heap.attach());
        graph.grow(600, seed);
        graph.drop_held(4 * GROUP);
        graph.collect(CollectionKind::Young);
        graph.collect(CollectionKind::Full);
        graph.grow(300, seed + 100);
        graph.drop_held(5 * GROUP);
        graph.collect(CollectionKind::Young);
        graph.collect(CollectionKind::Full);
        assert!(graph.sums.iter().all(|&sum| sum > 10), "each happens: {:?}", graph.sums);
    }
}

/// The outcome of one traversal of a moody object. Traversals beyond the end of its script
/// repeat the last outcome.
#[derive(Clone, Copy, PartialEq)]
enum Look {
    Shows,
    /// A field is unreadable.
    Hides,
    Panics,
}

/// An object with a script that determines the outcome of each traversal.
struct Moody<const FINAL: bool> {
    edges: GcCell<Vec<AnyGc>>,
    script: Arc<Mutex<Vec<Look>>>,
    shared: Arc<Shared>,
}

impl<const FINAL: bool> Trace for Moody<FINAL> {
    const FINALIZER: Option<Finalizer<Self>> = if FINAL {
        Some(Finalizer::new(|this, _| {
            this.shared.brought_back.lock().expect("no panic").push(this.clone().into());
        }))
    } else {
        None
    };
    fn traverse(this: &Self, tracer: &mut Tracer) {
        let mut script = this.script.lock().expect("no panic while it is held");
        let look = script[0];
        if script.len() > 1 {
            script.rotate_left(1);
            script.pop();
        }
        drop(script);
        match look {
            Look::Shows => Trace::traverse(&this.edges, tracer),
            Look::Hides => tracer.unreadable(),
            Look::Panics => panic!("on purpose"),
        }
    }
    fn clear(this: &Self, m: &Mutator) {
        Trace::clear(&this.edges, m);
    }
}

const LOCKED: &str = "a field that could be read when references were counted is locked now";

/// Makes a ring of one object, and a moody object with `edges` references to it.
fn moody<const FINAL: bool>(
    m: &Mutator,
    edges: usize,
    script: &[Look],
    shared: &Arc<Shared>,
) -> Gc<Moody<FINAL>> {
    let ring = m.alloc(Ring(GcCell::new(None), false));
    ring.0.set(m, Some(ring.clone()));
    let edges = (0..edges).map(|_| ring.clone().into()).collect();
    let script = Arc::new(Mutex::new(script.to_vec()));
    m.alloc(Moody { edges: GcCell::new(edges), script, shared: shared.clone() })
}

#[test]
fn a_field_that_is_locked_after_it_was_counted_is_tried_again_and_else_keeps_everything() {
    use Look::{Hides, Panics, Shows};
    for (kind, edges) in
        [(CollectionKind::Young, 1), (CollectionKind::Full, 1), (CollectionKind::Full, 100)]
    {
        for workers in [1, 3] {
            for script in [
                &[Shows, Shows][..],
                &[Hides],
                &[Hides, Shows],
                &[Shows, Hides, Shows],
                &[Shows, Hides, Hides, Hides, Shows],
                &[Shows, Hides],
                &[Shows, Panics],
                &[Panics],
            ] {
                let builder = Heap::builder().reserve(1 << 30).workers(workers).serial_below(0);
                let heap = builder.pacing(Pacing::manual()).build().expect("a heap");
                heap.on_unraisable(|_| {});
                let mut m = heap.attach();
                let shared = Arc::default();
                let kept: Gc<Moody<false>> = moody(&m, edges, script, &shared);
                rings(&m, 3, false);
                let what =
                    if kind == CollectionKind::Young { Collect::young() } else { Collect::full() };
                let report = collect(m.raw_mut(), what).expect("a stop");
                let expected = match script {
                    [Panics] => Some("on purpose"),
                    [Shows, Panics] => Some("on purpose"),
                    [Shows, Hides] => Some(LOCKED),
                    _ => None,
                };
                assert_eq!(
                    report.abandoned.as_deref(),
                    expected,
                    "{kind:?}, {edges} edges, {workers} workers"
                );
                assert_eq!(report.collected, if expected.is_none() { 3 } else { 0 });
                *kept.script.lock().expect("no panic") = vec![Shows];
                m.verify().expect("a sound heap");
                assert_eq!(m.collect().collected, if expected.is_none() { 0 } else { 3 });
                assert_eq!(heap.stats().live_objects, 2, "it, and its ring");
                drop(kept);
                assert_eq!(m.collect().collected, 1);
            }
        }
    }
}

/// The finalizer resurrects the object. The recheck then traverses it twice: to count, and to
/// find the objects that it reaches.
#[test]
fn a_field_that_is_locked_in_the_second_traversal_keeps_its_possible_targets() {
    use Look::{Hides, Panics, Shows};
    for (script, is_abandoned) in [
        (&[Shows][..], false),
        (&[Shows, Hides, Shows], false),
        (&[Shows, Hides], false),
        (&[Shows, Shows, Hides], true),
        (&[Shows, Shows, Panics], true),
        (&[Shows, Panics], true),
    ] {
        let heap = heap();
        heap.on_unraisable(|_| {});
        let mut m = heap.attach();
        let shared: Arc<Shared> = Arc::default();
        let lost: Gc<Moody<true>> = moody(&m, 2, script, &shared);
        let itself = lost.clone().into();
        lost.edges.lock(&m).push(itself);
        drop(lost);
        rings(&m, 3, false);
        let report = m.collect();
        let back = std::mem::take(&mut *shared.brought_back.lock().expect("no panic"));
        assert_eq!(
            (report.abandoned.is_some(), report.finalized, back.len()),
            (is_abandoned, 1, 1)
        );
        let kept = if is_abandoned { 5 } else { 2 };
        assert_eq!((report.resurrected, report.collected), (kept, 5 - kept));
        assert_eq!(heap.stats().live_objects, kept);
        let moody = back[0].downcast_ref::<Moody<true>>(&m).expect("it");
        *moody.script.lock().expect("no panic") = vec![Shows];
        m.verify().expect("a sound heap");
        assert_eq!(m.collect().collected, kept - 2);
        drop(back);
        assert_eq!((m.collect().collected, heap.stats().live_objects), (2, 0));
    }
}
