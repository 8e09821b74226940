//! The collector against a naive one: random programs run on a heap and on a plain graph in which what is
//! alive is defined by reachability, and after every step the two must agree about everything that can be
//! seen: who is alive, every count, every weak reference, who is tracked, finalized and frozen.
//!
//! A failing program is shrunk and printed as a program.

#![cfg(not(loom))]
#![allow(clippy::type_complexity)]

mod common;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::sync::{Arc, Mutex};

use common::Rng;
use common::*;
use proptest::prelude::*;
use standstill::{
    AnyGc, CollectionReport, Gc, GcCell, GcWeak, Heap, KnownRoot, Mutator, Pacing, Trace, Tracer,
};

// --------------------------------------------------------------------------------------- programs

/// What an object does when it is finalized. It touches nothing but itself and the anchors, so the order of
/// finalizers, which nobody promises, does not matter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// It has no finalizer.
    Plain,
    /// Nothing.
    Quiet,
    /// Goes to the shelf: a handle outside the heap.
    Rise,
    /// Makes the second anchor refer to it.
    Cling,
    /// Refers to the first anchor from now on.
    Reach,
    /// Makes a new object, refers to it, and lets it refer back.
    Breed,
    /// Lets go of its own references.
    Cut,
}

/// Handles and weak references live in numbered places, so that a step means the same whatever was left out
/// before it.
const PLACES: usize = 6;
const WEAKS: usize = 4;

#[derive(Clone, Copy)]
enum Step {
    Alloc(usize, Kind),
    Link(usize, usize),
    /// An edge to an anchor, or from one.
    LinkAnchor(usize, usize, bool),
    Unlink(usize, usize),
    Clear(usize),
    ClearAnchor(usize),
    Clone(usize, usize),
    Drop(usize),
    Follow(usize, usize, usize),
    Weak(usize, usize),
    DropWeak(usize),
    Upgrade(usize, usize),
    Track(usize),
    Untrack(usize),
    Immortalize(usize),
    Freeze,
    Unfreeze,
    TakeShelf(usize),
    ClearShelf,
    /// Names a known root, in place of the one before.
    Name(usize),
    Unname,
    Safepoint,
    Young,
    Full,
}

impl fmt::Debug for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Alloc(p, kind) => write!(f, "h{p} = alloc({kind:?})"),
            Self::Link(a, b) => write!(f, "h{a}.push(h{b})"),
            Self::LinkAnchor(p, a, true) => write!(f, "anchor{a}.push(h{p})"),
            Self::LinkAnchor(p, a, false) => write!(f, "h{p}.push(anchor{a})"),
            Self::Unlink(p, k) => write!(f, "h{p}.remove({k})"),
            Self::Clear(p) => write!(f, "h{p}.clear()"),
            Self::ClearAnchor(a) => write!(f, "anchor{a}.clear()"),
            Self::Clone(a, b) => write!(f, "h{b} = h{a}.clone()"),
            Self::Drop(p) => write!(f, "drop(h{p})"),
            Self::Follow(a, k, b) => write!(f, "h{b} = h{a}[{k}]"),
            Self::Weak(p, w) => write!(f, "w{w} = downgrade(h{p})"),
            Self::DropWeak(w) => write!(f, "drop(w{w})"),
            Self::Upgrade(w, p) => write!(f, "h{p} = w{w}.upgrade()"),
            Self::Track(p) => write!(f, "track(h{p})"),
            Self::Untrack(p) => write!(f, "untrack(h{p})"),
            Self::Immortalize(p) => write!(f, "immortalize(h{p})"),
            Self::Freeze => write!(f, "freeze()"),
            Self::Unfreeze => write!(f, "unfreeze()"),
            Self::TakeShelf(p) => write!(f, "h{p} = shelf.take_lowest()"),
            Self::ClearShelf => write!(f, "shelf.clear()"),
            Self::Name(p) => write!(f, "root = known_root(h{p})"),
            Self::Unname => write!(f, "drop(root)"),
            Self::Safepoint => write!(f, "safepoint()"),
            Self::Young => write!(f, "collect_young()"),
            Self::Full => write!(f, "collect()"),
        }
    }
}

#[derive(Clone)]
struct Program(Vec<Step>);

impl fmt::Debug for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f)?;
        self.0.iter().enumerate().try_for_each(|(i, step)| writeln!(f, "    {i:3}: {step:?}"))
    }
}

fn kinds() -> impl Strategy<Value = Kind> {
    use Kind::{Breed, Cling, Cut, Plain, Quiet, Reach, Rise};
    prop_oneof![
        6 => Just(Plain),
        1 => Just(Quiet),
        1 => Just(Rise),
        1 => Just(Cling),
        1 => Just(Reach),
        1 => Just(Breed),
        1 => Just(Cut),
    ]
}

fn steps(leaks: bool) -> impl Strategy<Value = Step> {
    let p = || 0..PLACES;
    let w = || 0..WEAKS;
    let k = || 0..4usize;
    prop_oneof![
        8 => (p(), kinds()).prop_map(|(p, kind)| Step::Alloc(p, kind)),
        10 => (p(), p()).prop_map(|(a, b)| Step::Link(a, b)),
        1 => (p(), 0..2usize, any::<bool>()).prop_map(|(p, a, to)| Step::LinkAnchor(p, a, to)),
        3 => (p(), k()).prop_map(|(p, k)| Step::Unlink(p, k)),
        1 => p().prop_map(Step::Clear),
        1 => (0..2usize).prop_map(Step::ClearAnchor),
        2 => (p(), p()).prop_map(|(a, b)| Step::Clone(a, b)),
        8 => p().prop_map(Step::Drop),
        3 => (p(), k(), p()).prop_map(|(a, k, b)| Step::Follow(a, k, b)),
        3 => (p(), w()).prop_map(|(p, w)| Step::Weak(p, w)),
        1 => w().prop_map(Step::DropWeak),
        2 => (w(), p()).prop_map(|(w, p)| Step::Upgrade(w, p)),
        1 => p().prop_map(Step::Track),
        3 => (p(), 0..4).prop_map(move |(p, which)| match which {
            0 if leaks => Step::Immortalize(p),
            1 | 2 if leaks => Step::Untrack(p),
            _ => Step::Safepoint,
        }),
        1 => Just(Step::Freeze),
        1 => Just(Step::Unfreeze),
        1 => p().prop_map(Step::TakeShelf),
        1 => Just(Step::ClearShelf),
        2 => p().prop_map(Step::Name),
        1 => Just(Step::Unname),
        2 => Just(Step::Safepoint),
        4 => Just(Step::Young),
        4 => Just(Step::Full),
    ]
}

fn programs() -> impl Strategy<Value = Program> {
    // Immortal objects, and cycles through untracked ones, outlive their heap. In most programs there are none, and
    // nothing may be left.
    let length = 1..120;
    prop_oneof![
        3 => prop::collection::vec(steps(false), length.clone()),
        1 => prop::collection::vec(steps(true), length),
    ]
    .prop_map(Program)
}

// ---------------------------------------------------------------------------------------- the model

type Id = usize;

/// The anchors: two objects that are always held.
const ANCHORS: [Id; 2] = [0, 1];
/// What a finalizer breeds is called after its parent, of which there is one.
const BRED: Id = 1_000_000;

#[derive(Clone, Debug)]
struct Node {
    kind: Kind,
    edges: Vec<Id>,
    tracked: bool,
    young: bool,
    frozen: bool,
    immortal: bool,
    finalized: bool,
}

#[derive(Debug, Default)]
struct Model {
    alive: BTreeMap<Id, Node>,
    next: Id,
    places: [Option<Id>; PLACES],
    weaks: [Option<Id>; WEAKS],
    shelf: Vec<Id>,
    /// The known root.
    root: Option<Id>,
}

/// What the model expects of a report.
#[derive(Debug, PartialEq, Eq)]
struct Expected {
    candidates: usize,
    unreachable: usize,
    finalized: usize,
    resurrected: usize,
    collected: usize,
    uncollectable: usize,
}

impl Model {
    fn new() -> Self {
        let mut model = Self { next: 2, ..Self::default() };
        for id in ANCHORS {
            model.add(id, Kind::Plain);
        }
        model
    }

    fn add(&mut self, id: Id, kind: Kind) {
        let node = Node {
            kind,
            edges: Vec::new(),
            tracked: true,
            young: true,
            frozen: false,
            immortal: false,
            finalized: false,
        };
        assert!(self.alive.insert(id, node).is_none());
    }

    fn node(&mut self, id: Id) -> &mut Node {
        self.alive.get_mut(&id).expect("alive in the model")
    }

    /// Whether the edges of the object in a place have an order: finalizers append to anchors in any.
    fn is_ordered(&self, place: usize) -> bool {
        self.places[place].is_some_and(|id| !ANCHORS.contains(&id))
    }

    /// References from outside the heap.
    fn handles(&self, id: Id) -> usize {
        usize::from(ANCHORS.contains(&id))
            + usize::from(self.root == Some(id))
            + self.places.iter().flatten().filter(|&&held| held == id).count()
            + self.shelf.iter().filter(|&&held| held == id).count()
    }

    fn count(&self, id: Id) -> usize {
        if self.alive[&id].immortal {
            return usize::MAX;
        }
        self.handles(id) + self.alive.values().flat_map(|node| &node.edges).filter(|&&to| to == id).count()
    }

    /// Lets die what has no reference left, among `suspects` and what they held.
    fn reap(&mut self, suspects: Vec<Id>) {
        let mut suspects = VecDeque::from(suspects);
        while let Some(id) = suspects.pop_front() {
            if !self.alive.contains_key(&id) || self.count(id) > 0 {
                continue;
            }
            if self.finalize(id, &mut suspects) && self.count(id) > 0 {
                continue;
            }
            let node = self.alive.remove(&id).expect("alive");
            suspects.extend(node.edges);
        }
    }

    /// Calls the finalizer, if there is one and it was not called before.
    fn finalize(&mut self, id: Id, suspects: &mut VecDeque<Id>) -> bool {
        let node = self.node(id);
        if node.kind == Kind::Plain || std::mem::replace(&mut node.finalized, true) {
            return false;
        }
        match node.kind {
            Kind::Plain | Kind::Quiet => {}
            Kind::Rise => self.shelf.push(id),
            Kind::Cling => self.node(ANCHORS[1]).edges.push(id),
            Kind::Reach => node.edges.push(ANCHORS[0]),
            Kind::Breed => {
                node.edges.push(BRED + id);
                self.add(BRED + id, Kind::Plain);
                self.node(BRED + id).edges.push(id);
            }
            Kind::Cut => suspects.extend(std::mem::take(&mut node.edges)),
        }
        true
    }

    /// Which members of `set` are reachable from outside of it.
    fn reached(&self, set: &BTreeSet<Id>) -> BTreeSet<Id> {
        let outside = self.alive.iter().filter(|(id, _)| !set.contains(id)).flat_map(|(_, node)| &node.edges);
        let mut stack: Vec<Id> = outside.copied().filter(|id| set.contains(id)).collect();
        stack.extend(set.iter().filter(|&&id| self.handles(id) > 0 || self.alive[&id].immortal));
        let mut reached = BTreeSet::new();
        while let Some(id) = stack.pop() {
            if reached.insert(id) {
                stack.extend(self.alive[&id].edges.iter().filter(|to| set.contains(to)));
            }
        }
        reached
    }

    fn collect(&mut self, full: bool) -> Expected {
        let candidates: BTreeSet<Id> = self
            .alive
            .iter()
            .filter(|(_, node)| node.tracked && !node.frozen && (full || node.young))
            .map(|(&id, _)| id)
            .collect();
        let reached = self.reached(&candidates);
        let mut garbage: BTreeSet<Id> = candidates.difference(&reached).copied().collect();
        for (id, node) in &mut self.alive {
            // Frozen objects age with the others.
            node.young &= !node.tracked;
            // Met once, an immortal is no candidate again.
            node.tracked &= !(node.immortal && candidates.contains(id));
        }
        let unreachable = garbage.len();
        let mut freed = VecDeque::new();
        let finalized = garbage.clone().into_iter().filter(|&id| self.finalize(id, &mut freed)).count();
        // What a finalizer let go of dies there and then, except for the garbage, which the collector holds.
        freed.retain(|id| !garbage.contains(id));
        self.reap(freed.into());
        let back = self.reached(&garbage);
        garbage.retain(|id| !back.contains(id));
        // Clear all, then let go of all: what the garbage referred to dies with it.
        let mut suspects: Vec<Id> = garbage.iter().copied().collect();
        for &id in &garbage {
            suspects.extend(std::mem::take(&mut self.node(id).edges));
        }
        let collected = garbage.len();
        self.reap(suspects);
        assert!(
            garbage.iter().all(|id| !self.alive.contains_key(id)),
            "garbage has no finalizer left to run"
        );
        Expected {
            candidates: candidates.len(),
            unreachable,
            finalized,
            resurrected: back.len(),
            collected,
            uncollectable: 0,
        }
    }

    /// Puts a handle into a place; what was there is dropped.
    fn put(&mut self, place: usize, id: Option<Id>) {
        let old = std::mem::replace(&mut self.places[place], id);
        self.reap(old.into_iter().collect());
    }
}

// ------------------------------------------------------------------------------------- the real thing

/// Who is alive, and what is outside the heap but within finalizers' reach.
#[derive(Default)]
struct World {
    alive: Mutex<BTreeSet<Id>>,
    shelf: Mutex<Vec<(Id, Ref)>>,
    /// The anchor that objects cling to, and the one that they reach for.
    anchors: Mutex<Vec<GcWeak<Object<false>>>>,
}

struct Object<const FINAL: bool> {
    id: Id,
    kind: Kind,
    edges: GcCell<Edges>,
    world: Arc<World>,
    state: Witness,
}

#[derive(Default)]
struct Edges(Vec<Ref>);

/// A reference to an object with a finalizer or to one without: they are of different types.
#[derive(Clone)]
enum Ref {
    Plain(Gc<Object<false>>),
    Final(Gc<Object<true>>),
}

enum Weak {
    Plain(GcWeak<Object<false>>),
    Final(GcWeak<Object<true>>),
}

impl Trace for Edges {
    fn traverse(&self, tracer: &mut Tracer) {
        for edge in &self.0 {
            match edge {
                Ref::Plain(gc) => gc.traverse(tracer),
                Ref::Final(gc) => gc.traverse(tracer),
            }
        }
    }
}

impl<const FINAL: bool> Trace for Object<FINAL> {
    const HAS_FINALIZER: bool = FINAL;

    fn traverse(&self, tracer: &mut Tracer) {
        self.state.check();
        self.edges.traverse(tracer);
    }

    fn clear(&self, m: &Mutator) {
        self.state.check();
        self.edges.clear(m);
    }

    fn finalize(this: &Gc<Self>, m: &Mutator) {
        let object = this.get(m);
        object.state.check();
        // The handle that finalizers make of themselves has the type's other face only here.
        let me = || Ref::of(AnyGc::from(this.clone()), m);
        let anchor = |i: usize| object.world.anchors.lock().unwrap()[i].upgrade(m).expect("anchors are held");
        match object.kind {
            Kind::Plain | Kind::Quiet => {}
            Kind::Rise => object.world.shelf.lock().unwrap().push((object.id, me())),
            Kind::Cling => anchor(1).get(m).edges.lock(m).0.push(me()),
            Kind::Reach => object.edges.lock(m).0.push(Ref::Plain(anchor(0))),
            Kind::Breed => {
                let child =
                    Ref::alloc(m, &object.world, object.state.census(), BRED + object.id, Kind::Plain);
                child.edges(m).lock(m).0.push(me());
                object.edges.lock(m).0.push(child);
            }
            Kind::Cut => drop(object.edges.take(m)),
        }
    }
}

impl<const FINAL: bool> Drop for Object<FINAL> {
    fn drop(&mut self) {
        assert!(self.world.alive.lock().unwrap().remove(&self.id), "died twice");
    }
}

impl Ref {
    fn alloc(m: &Mutator, world: &Arc<World>, census: &Arc<Census>, id: Id, kind: Kind) -> Self {
        fn new<const FINAL: bool>(
            m: &Mutator,
            world: &Arc<World>,
            census: &Arc<Census>,
            id: Id,
            kind: Kind,
        ) -> Gc<Object<FINAL>> {
            assert!(world.alive.lock().unwrap().insert(id));
            let (world, state) = (world.clone(), Witness::new(census, id));
            m.alloc(Object { id, kind, edges: GcCell::default(), world, state })
        }
        match kind {
            Kind::Plain => Self::Plain(new(m, world, census, id, kind)),
            _ => Self::Final(new(m, world, census, id, kind)),
        }
    }

    fn of(any: AnyGc, m: &Mutator) -> Self {
        match any.downcast(m) {
            Ok(plain) => Self::Plain(plain),
            Err(any) => Self::Final(any.downcast(m).expect("one of two types")),
        }
    }

    fn any(&self) -> AnyGc {
        match self {
            Self::Plain(gc) => gc.clone().into(),
            Self::Final(gc) => gc.clone().into(),
        }
    }

    fn id(&self, m: &Mutator) -> Id {
        match self {
            Self::Plain(gc) => gc.get(m).id,
            Self::Final(gc) => gc.get(m).id,
        }
    }

    fn edges<'a>(&'a self, m: &'a Mutator) -> &'a GcCell<Edges> {
        match self {
            Self::Plain(gc) => &gc.get(m).edges,
            Self::Final(gc) => &gc.get(m).edges,
        }
    }

    fn count(&self, m: &Mutator) -> usize {
        match self {
            Self::Plain(gc) => Gc::strong_count(gc, m),
            Self::Final(gc) => Gc::strong_count(gc, m),
        }
    }

    fn weak(&self, m: &Mutator) -> Weak {
        match self {
            Self::Plain(gc) => Weak::Plain(Gc::downgrade(gc, m)),
            Self::Final(gc) => Weak::Final(Gc::downgrade(gc, m)),
        }
    }
}

impl Weak {
    fn upgrade(&self, m: &Mutator) -> Option<Ref> {
        match self {
            Self::Plain(weak) => weak.upgrade(m).map(Ref::Plain),
            Self::Final(weak) => weak.upgrade(m).map(Ref::Final),
        }
    }
}

/// The fields are dropped in this order: finalizers need the anchors.
struct Real {
    places: [Option<Ref>; PLACES],
    weaks: [Option<Weak>; WEAKS],
    root: Option<KnownRoot>,
    anchors: [Ref; 2],
    world: Arc<World>,
    census: Arc<Census>,
}

impl Real {
    fn new(m: &Mutator) -> Self {
        let (world, census) = (Arc::new(World::default()), Census::new());
        let anchors = ANCHORS.map(|id| Ref::alloc(m, &world, &census, id, Kind::Plain));
        for anchor in &anchors {
            let Weak::Plain(weak) = anchor.weak(m) else { unreachable!("anchors are plain") };
            world.anchors.lock().unwrap().push(weak);
        }
        Self { world, census, anchors, root: None, places: Default::default(), weaks: Default::default() }
    }

    fn put(&mut self, place: usize, gc: Option<Ref>) {
        let old = std::mem::replace(&mut self.places[place], gc);
        drop(old);
    }
}

// -------------------------------------------------------------------------------------- both at once

struct Run<'a> {
    m: &'a mut Mutator,
    stress: bool,
    real: Real,
    model: Model,
}

impl Run<'_> {
    fn collected(&mut self, full: bool, report: &CollectionReport) {
        let expected = self.model.collect(full);
        let got = Expected {
            candidates: report.candidates,
            unreachable: report.unreachable,
            finalized: report.finalized,
            resurrected: report.resurrected,
            collected: report.collected,
            uncollectable: report.uncollectable,
        };
        assert_eq!(got, expected, "{report:?}");
        assert_eq!((&report.abandoned, report.overvisited), (&None, 0));
    }

    fn step(&mut self, step: Step) {
        let Self { m, real, model, .. } = self;
        match step {
            Step::Alloc(place, kind) => {
                let id = model.next;
                model.next += 1;
                let gc = Ref::alloc(m, &real.world, &real.census, id, kind);
                model.add(id, kind);
                real.put(place, Some(gc));
                model.put(place, Some(id));
            }
            Step::Link(a, b) => {
                if let (Some(from), Some(to)) = (&real.places[a], &real.places[b]) {
                    from.edges(m).lock(m).0.push(to.clone());
                    let (from, to) = (model.places[a].unwrap(), model.places[b].unwrap());
                    model.node(from).edges.push(to);
                }
            }
            Step::LinkAnchor(place, anchor, to_place) => {
                if let Some(gc) = &real.places[place] {
                    let id = model.places[place].unwrap();
                    if to_place {
                        real.anchors[anchor].edges(m).lock(m).0.push(gc.clone());
                        model.node(ANCHORS[anchor]).edges.push(id);
                    } else {
                        gc.edges(m).lock(m).0.push(real.anchors[anchor].clone());
                        model.node(id).edges.push(ANCHORS[anchor]);
                    }
                }
            }
            Step::Unlink(place, k) => {
                if let Some(gc) = real.places[place].as_ref().filter(|_| model.is_ordered(place)) {
                    let mut edges = gc.edges(m).lock(m);
                    let old = if k < edges.0.len() { Some(edges.0.remove(k)) } else { None };
                    drop(edges);
                    drop(old);
                    let id = model.places[place].unwrap();
                    let edges = &mut model.node(id).edges;
                    let old = if k < edges.len() { Some(edges.remove(k)) } else { None };
                    model.reap(old.into_iter().collect());
                }
            }
            Step::Clear(place) => {
                if let Some(gc) = &real.places[place] {
                    drop(gc.edges(m).take(m));
                    let id = model.places[place].unwrap();
                    let old = std::mem::take(&mut model.node(id).edges);
                    model.reap(old);
                }
            }
            Step::ClearAnchor(anchor) => {
                drop(real.anchors[anchor].edges(m).take(m));
                let old = std::mem::take(&mut model.node(ANCHORS[anchor]).edges);
                model.reap(old);
            }
            Step::Clone(from, to) => {
                let gc = real.places[from].clone();
                real.put(to, gc);
                model.put(to, model.places[from]);
            }
            Step::Drop(place) => {
                real.put(place, None);
                model.put(place, None);
            }
            Step::Follow(from, k, to) => {
                if let Some(gc) = real.places[from].as_ref().filter(|_| model.is_ordered(from)) {
                    let next = gc.edges(m).lock(m).0.get(k).cloned();
                    let id = model.places[from].unwrap();
                    let expected = model.alive[&id].edges.get(k).copied();
                    assert_eq!(next.as_ref().map(|gc| gc.id(m)), expected);
                    if next.is_some() {
                        real.put(to, next);
                        model.put(to, expected);
                    }
                }
            }
            Step::Weak(place, w) => {
                if let Some(gc) = &real.places[place] {
                    real.weaks[w] = Some(gc.weak(m));
                    model.weaks[w] = model.places[place];
                }
            }
            Step::DropWeak(w) => {
                real.weaks[w] = None;
                model.weaks[w] = None;
            }
            Step::Upgrade(w, place) => {
                if let Some(weak) = &real.weaks[w] {
                    let gc = weak.upgrade(m);
                    let id = model.weaks[w].filter(|id| model.alive.contains_key(id));
                    assert_eq!(gc.as_ref().map(|gc| gc.id(m)), id);
                    if gc.is_some() {
                        real.put(place, gc);
                        model.put(place, id);
                    }
                }
            }
            Step::Track(place) => {
                if let Some(gc) = &real.places[place] {
                    let node = model.node(model.places[place].unwrap());
                    assert_eq!(gc.any().track(m), !node.tracked);
                    node.young |= !node.tracked;
                    node.tracked = true;
                }
            }
            Step::Untrack(place) => {
                if let Some(gc) = &real.places[place] {
                    let node = model.node(model.places[place].unwrap());
                    assert_eq!(gc.any().untrack(m), node.tracked);
                    node.tracked = false;
                }
            }
            Step::Immortalize(place) => {
                if let Some(gc) = &real.places[place] {
                    gc.any().immortalize(m);
                    model.node(model.places[place].unwrap()).immortal = true;
                }
            }
            Step::Freeze => {
                m.freeze();
                model.alive.values_mut().filter(|node| node.tracked).for_each(|node| node.frozen = true);
            }
            Step::Unfreeze => {
                m.unfreeze();
                model.alive.values_mut().for_each(|node| node.frozen = false);
            }
            Step::TakeShelf(place) => {
                let mut shelf = real.world.shelf.lock().unwrap();
                let lowest = (0..shelf.len()).min_by_key(|&i| shelf[i].0);
                let gc = lowest.map(|i| shelf.swap_remove(i).1);
                drop(shelf);
                let lowest = (0..model.shelf.len()).min_by_key(|&i| model.shelf[i]);
                let id = lowest.map(|i| model.shelf.swap_remove(i));
                assert_eq!(gc.as_ref().map(|gc| gc.id(m)), id);
                if gc.is_some() {
                    real.put(place, gc);
                    model.put(place, id);
                }
            }
            Step::ClearShelf => {
                let taken = std::mem::take(&mut *real.world.shelf.lock().unwrap());
                drop(taken);
                let taken = std::mem::take(&mut model.shelf);
                model.reap(taken);
            }
            Step::Name(place) => {
                if let Some(gc) = &real.places[place] {
                    let named = m.heap().known_root(gc.any());
                    drop(real.root.replace(named));
                    let old = std::mem::replace(&mut model.root, model.places[place]);
                    model.reap(old.into_iter().collect());
                }
            }
            Step::Unname => {
                real.root = None;
                let old = model.root.take();
                model.reap(old.into_iter().collect());
            }
            Step::Safepoint => {
                m.safepoint();
                if self.stress {
                    self.model.collect(true);
                }
            }
            Step::Young => {
                let report = m.collect_young();
                self.collected(false, &report);
            }
            Step::Full => {
                let report = m.collect();
                self.collected(true, &report);
            }
        }
    }

    fn compare(&mut self) {
        let Self { m, real, model, .. } = self;
        let alive: BTreeSet<Id> = model.alive.keys().copied().collect();
        assert_eq!(*real.world.alive.lock().unwrap(), alive, "who is alive");
        assert_eq!(real.census.alive(), alive.len());
        for (place, gc) in real.places.iter().enumerate() {
            let id = model.places[place];
            assert_eq!(gc.as_ref().map(|gc| gc.id(m)), id, "h{place}");
            let (Some(gc), Some(id)) = (gc, id) else { continue };
            let node = &model.alive[&id];
            assert_eq!(gc.count(m), model.count(id), "the count of h{place}, which is {id}");
            let any = gc.any();
            assert_eq!(any.is_tracked(m), node.tracked, "is h{place}, which is {id}, tracked?");
            assert_eq!(any.is_finalized(m), node.finalized, "is h{place}, which is {id}, finalized?");
            if model.is_ordered(place) {
                let edges: Vec<Id> = gc.edges(m).lock(m).0.iter().map(|to| to.id(m)).collect();
                assert_eq!(edges, node.edges, "what h{place}, which is {id}, refers to");
            }
        }
        for (w, weak) in real.weaks.iter().enumerate() {
            let got = weak.as_ref().and_then(|weak| weak.upgrade(m)).map(|gc| gc.id(m));
            assert_eq!(got, model.weaks[w].filter(|id| model.alive.contains_key(id)), "w{w}");
        }
        for (anchor, id) in real.anchors.iter().zip(ANCHORS) {
            assert_eq!(anchor.count(m), model.count(id), "the count of anchor {id}");
            let mut got: Vec<Id> = anchor.edges(m).lock(m).0.iter().map(|to| to.id(m)).collect();
            let mut expected = model.alive[&id].edges.clone();
            got.sort_unstable();
            expected.sort_unstable();
            assert_eq!(got, expected, "what anchor {id} refers to");
        }
        let frozen = model.alive.values().filter(|node| node.frozen && node.tracked).count();
        assert_eq!(m.frozen(), frozen, "how many are frozen");
        let tracked: BTreeSet<Id> =
            model.alive.iter().filter(|(_, node)| node.tracked).map(|(&id, _)| id).collect();
        let objects = m.objects();
        let mut listed: BTreeSet<Id> = objects.iter().map(|any| Ref::of(any.clone(), m).id(m)).collect();
        assert_eq!(listed.len(), objects.len(), "listed twice");
        // Whether frozen objects are listed is a scenario's question.
        listed.extend(tracked.iter().filter(|id| model.alive[id].frozen));
        assert_eq!(listed, tracked, "who is listed");
    }
}

fn run(heap: &Heap, stress: bool, program: &Program) {
    let mut m = heap.attach();
    let world = {
        let (real, model) = (Real::new(&m), Model::new());
        let mut run = Run { m: &mut m, stress, real, model };
        for (i, &step) in program.0.iter().enumerate() {
            // The harness prints the program; this says how far it got.
            let at = panic_text(|| {
                run.step(step);
                run.compare();
            });
            if let Some(text) = at {
                panic!("at {i}, {step:?}: {text}");
            }
        }
        run.m.verify().expect("a sound heap");
        // Everything goes, except for what is immortal and what that refers to.
        for place in 0..PLACES {
            run.real.put(place, None);
            run.model.put(place, None);
        }
        run.step(Step::Unname);
        run.step(Step::Unfreeze);
        // Each finalizer may still bring its object back, once, with others that then do the same.
        let bringers = run.model.alive.values().filter(|node| !node.finalized).count();
        for _ in 0..=bringers {
            run.step(Step::ClearAnchor(0));
            run.step(Step::ClearAnchor(1));
            run.step(Step::ClearShelf);
            run.step(Step::Full);
        }
        run.compare();
        run.real.world
    };
    drop(world);
    m.collect();
    // Nothing else is left: no object, no reference, no trace.
    if !program.0.iter().any(|step| matches!(step, Step::Immortalize(_) | Step::Untrack(_))) {
        assert_eq!(heap.stats().live_objects, 0);
        assert_eq!(m.frozen(), 0);
    }
    m.verify().expect("a sound heap");
}

/// Runs each program on a heap of its own, so that one program's immortals are no other's candidates.
/// `PROPTEST_CASES` says how many programs, 256 by default; of these each test runs a share, in per cent.
fn check(build: fn() -> Heap, stress: bool, share: u32) {
    let _watch = deadline("oracle");
    let config = ProptestConfig::default();
    let config = ProptestConfig {
        cases: config.cases * share / 100,
        failure_persistence: None,
        max_shrink_iters: 20_000,
        ..config
    };
    proptest!(config, |(program in programs())| {
        run(&build(), stress, &program);
    });
}

fn plain() -> Heap {
    Heap::builder().reserve(1 << 30).pacing(Pacing::manual()).build().unwrap()
}

fn parallel() -> Heap {
    Heap::builder().reserve(1 << 30).pacing(Pacing::manual()).workers(3).serial_below(0).build().unwrap()
}

fn stress() -> Heap {
    Heap::builder().reserve(1 << 30).pacing(Pacing::manual()).stress(true).build().unwrap()
}

#[test]
fn random_programs() {
    check(plain, false, 300);
}

#[test]
fn random_programs_with_several_markers() {
    check(parallel, false, 100);
}

#[test]
fn random_programs_under_stress() {
    check(stress, true, 100);
}

// ------------------------------------------------------------------------------------- larger graphs

/// Random graphs around the threshold at which they fall to pieces, some of them held: what is collected is
/// what cannot be reached, over many rounds in which edges and handles come and go.
fn large_graphs(lab: &Lab, n: usize, rounds: u64) {
    let mut m = lab.heap.attach();
    let mut rng = Rng::new(n as u64);
    for round in 0..rounds {
        let all: Vec<_> = (0..n).map(|name| node(&m, &lab.census, name)).collect();
        let degree = [6, 9, 12, 20][round as usize % 4];
        let mut edges = Vec::new();
        for _ in 0..n * degree / 10 {
            let (from, to) = (rng.below(n), rng.below(n));
            link(&m, &all[from], &all[to]);
            edges.push((from, to));
        }
        if round % 2 == 1 {
            m.collect_young();
        }
        // Some edges go again.
        for _ in 0..n / 20 {
            let from = rng.below(n);
            drop(cut(&m, &all[from]));
            edges.retain(|edge| edge.0 != from);
            if n > 5_000 {
                break; // `retain` is linear
            }
        }
        let mut held: Vec<usize> = (0..n / 50).map(|_| rng.below(n)).collect();
        held.sort_unstable();
        held.dedup();
        let handles: Vec<_> = held.iter().map(|&i| all[i].clone()).collect();
        let before = lab.census.alive();
        drop(all);
        // What is in no cycle has died by count; the rest of what cannot be reached is collected.
        let by_count = before - lab.census.alive();
        let reached = reachable(n, &edges, &held).into_iter().filter(|&seen| seen).count();
        let report = m.collect();
        assert_eq!(report.collected + by_count, n - reached, "round {round}: {report:?}");
        assert_eq!(lab.census.alive(), reached);
        assert!(handles.iter().zip(&held).all(|(gc, &name)| gc.get(&m).name() == name));
        drop(handles);
        let by_count = reached - lab.census.alive();
        assert_eq!(m.collect().collected + by_count, reached);
        m.safepoint();
    }
}

#[test]
fn large_random_graphs() {
    for lab in labs() {
        let _watch = deadline(lab.name);
        let (n, rounds) = if lab.stress { (500, 8) } else { (20_000, 8) };
        large_graphs(&lab, n, rounds);
        assert_eq!(lab.census.alive(), 0);
        assert!(lab.reports().is_empty());
    }
}

/// Twice the same random graph, once with the roots named and once without: every figure of every collection that is
/// no figure of the hint itself is the same.
#[test]
fn u_40_known_roots_change_no_result() {
    fn rounds(lab: &Lab, seed: u64, named: bool) -> Vec<CollectionReport> {
        const N: usize = 3_000;
        let mut m = lab.heap.attach();
        let mut rng = Rng::new(seed);
        let mut all: Vec<_> = (0..N).map(|name| node(&m, &lab.census, name)).collect();
        for _ in 0..N * 3 / 2 {
            link(&m, &all[rng.below(N)], &all[rng.below(N)]);
        }
        all.truncate(40);
        let roots: Vec<_> = all.iter().filter(|_| named).map(|gc| lab.heap.known_root(gc.clone())).collect();
        let mut reports = Vec::new();
        for round in 0..12 {
            reports.push(m.collect());
            for _ in 0..3 {
                drop(cut(&m, &all[rng.below(all.len())]));
            }
            reports.push(m.collect_young());
            if round == 5 {
                m.freeze();
            } else if round == 8 {
                m.unfreeze();
            }
        }
        drop((all, roots));
        reports.push(m.collect());
        m.verify().expect("a sound heap");
        reports
    }
    for (plain, hinted) in labs().into_iter().zip(labs()).filter(|(lab, _)| !lab.stress) {
        let _watch = deadline(plain.name);
        let mut saved = 0;
        for seed in 0..30 {
            let with = rounds(&hinted, seed, true);
            let without = rounds(&plain, seed, false);
            saved += with.iter().map(|report| report.known_alive).sum::<usize>();
            assert!(without.iter().all(|report| report.known_alive == 0));
            let facts = |reports: &[CollectionReport]| -> Vec<_> {
                let facts = |r: &CollectionReport| {
                    (
                        r.tracked,
                        r.candidates,
                        r.unreachable,
                        r.collected,
                        r.uncollectable,
                        r.abandoned.clone(),
                    )
                };
                reports.iter().map(facts).collect()
            };
            assert_eq!(facts(&with), facts(&without), "seed {seed}");
        }
        assert!(saved > 10_000, "the hint saved {saved} looks");
        assert_eq!((plain.census.alive(), hinted.census.alive()), (0, 0));
    }
}

#[test]
#[should_panic(expected = "an object of another heap")]
fn a_known_root_of_another_heap_is_refused() {
    let (one, other) = (plain(), plain());
    let foreign = other.attach_scoped(|m| m.alloc(7u32));
    drop(one.known_root(foreign));
}

/// Small ones exhaustively: every graph of three objects, with every choice of who is held.
#[test]
fn every_graph_of_three() {
    on_every_heap_attached(|lab, m| {
        // All of them on the plain heap, every fifth where a collection costs more.
        for shape in (0..1usize << 9).step_by(if lab.name == "plain" { 1 } else { 5 }) {
            let edges: Vec<(usize, usize)> =
                (0..9).filter(|bit| shape >> bit & 1 == 1).map(|bit| (bit / 3, bit % 3)).collect();
            for held in 0..8usize {
                let all: Vec<_> = (0..3).map(|name| node(m, &lab.census, name)).collect();
                for &(from, to) in &edges {
                    link(m, &all[from], &all[to]);
                }
                let roots: Vec<usize> = (0..3).filter(|bit| held >> bit & 1 == 1).collect();
                let handles: Vec<_> = roots.iter().map(|&i| all[i].clone()).collect();
                drop(all);
                if held % 2 == 0 {
                    m.collect_young();
                } else {
                    m.collect();
                }
                let reached = reachable(3, &edges, &roots).into_iter().filter(|&seen| seen).count();
                assert_eq!(lab.census.alive(), reached, "edges {edges:?}, held {roots:?}");
                drop(handles);
                m.collect();
                assert_eq!(lab.census.alive(), 0, "edges {edges:?}, held {roots:?}");
            }
        }
    });
}
