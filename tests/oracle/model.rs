//! The naive reference: plain sets, and reachability by definition.
//!
//! It has no owners, shared counts, queues, side tables or stops. The references of an object are
//! the fields and handles that lead to it. An object without references is finalized. If that
//! changes nothing, it dies together with its references. A collection takes the candidates that
//! cannot be reached from anywhere else, finalizes them, searches again, and empties the rest.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::program::{Kind, PLACES, Shape, WEAKS};

pub(crate) type Id = usize;

/// The anchors: two lists that are always held.
pub(crate) const ANCHORS: [Id; 2] = [0, 1];
/// The heap types of instances without a finalizer, and with one. They are always held.
pub(crate) const TYPES: [Id; 2] = [2, 3];
/// The name of an object that a finalizer makes is derived from its only parent.
pub(crate) const BRED: Id = 1_000_000;

/// An object.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub(crate) shape: Shape,
    kind: Kind,
    pub(crate) fields: Vec<Option<Id>>,
    /// An instance's type, to which it refers to its very end.
    class: Option<Id>,
    /// The target of a weak reference, while it has one.
    pub(crate) watches: Option<Id>,
    /// Whether the weak reference has a callback.
    calls: bool,
    /// Whether the callback has been called.
    pub(crate) called: bool,
    pub(crate) tracked: bool,
    young: bool,
    pub(crate) frozen: bool,
    pub(crate) immortal: bool,
    pub(crate) finalized: bool,
    /// A collection has found it to be garbage: if it is still there, some clear handler has
    /// failed.
    condemned: bool,
}

impl Node {
    /// Puts it into the tracked set.
    pub(crate) fn track(&mut self) {
        self.young |= !self.tracked;
        self.tracked = true;
    }

    /// Whether its destructor says that it is dead.
    pub(crate) fn has_destructor(&self) -> bool {
        !matches!(self.shape, Shape::DynWatcher | Shape::Type)
    }

    pub(crate) fn calls(&self) -> bool {
        self.calls
    }

    fn edges(&self) -> impl Iterator<Item = Id> {
        self.fields.iter().copied().flatten().chain(self.class)
    }
}

/// The events since the last check.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Events {
    /// The objects with called finalizers, including legacy finalizers.
    pub(crate) finalized: Vec<Id>,
    /// The panics, with their objects.
    pub(crate) panics: Vec<String>,
}

impl Events {
    /// The same without an order.
    pub(crate) fn sorted(mut self) -> Self {
        self.finalized.sort_unstable();
        self.panics.sort_unstable();
        self
    }
}

/// The facts that a report must have.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Expected {
    pub(crate) candidates: usize,
    pub(crate) unreachable: usize,
    pub(crate) finalized: usize,
    pub(crate) resurrected: usize,
    pub(crate) collected: usize,
    pub(crate) uncollectable: usize,
}

#[derive(Debug, Default)]
pub(crate) struct Model {
    pub(crate) alive: BTreeMap<Id, Node>,
    next: Id,
    pub(crate) places: [Option<Id>; PLACES],
    /// The original target of a weak reference, and whether the reference still leads there.
    pub(crate) weaks: [Option<(Id, bool)>; WEAKS],
    pub(crate) shelf: Vec<Id>,
    /// The known root.
    pub(crate) root: Option<Id>,
    /// Taken out of lock-free slots: kept until the next safepoint.
    pub(crate) retired: Vec<Id>,
    /// The garbage list: unreachable objects with a legacy finalizer.
    pub(crate) list: Vec<Id>,
    /// Anchors and types, while they are held.
    fixed: Vec<Id>,
    /// The objects that a running collection holds. For deaths these holds are references, for
    /// reachability they are none.
    held: BTreeSet<Id>,
    pub(crate) events: Events,
    /// The end is near: clear handlers panic no longer, nothing rises, and legacy finalizers are
    /// like others.
    pub(crate) meek: bool,
}

impl Model {
    pub(crate) fn new() -> Self {
        let fixed = [ANCHORS, TYPES].concat();
        let mut model = Self { next: fixed.len(), fixed, ..Self::default() };
        for (ids, shape) in [(ANCHORS, Shape::List), (TYPES, Shape::Type)] {
            ids.into_iter().for_each(|id| model.add(id, shape, Kind::Plain));
        }
        model
    }

    /// The name of the next object.
    pub(crate) fn name(&mut self) -> Id {
        self.next += 1;
        self.next - 1
    }

    pub(crate) fn add(&mut self, id: Id, shape: Shape, kind: Kind) {
        let fields = vec![None; shape.room().unwrap_or(0)];
        let class = (shape == Shape::Instance).then(|| TYPES[usize::from(kind.has_finalizer())]);
        let node = Node {
            shape,
            kind,
            fields,
            class,
            watches: None,
            calls: false,
            called: false,
            tracked: true,
            young: true,
            frozen: false,
            immortal: false,
            finalized: false,
            condemned: false,
        };
        assert!(self.alive.insert(id, node).is_none());
    }

    /// Adds a weak reference that is an object. One without a callback is none for the callback's
    /// purposes.
    pub(crate) fn add_watcher(
        &mut self,
        id: Id,
        shape: Shape,
        target: Id,
        holds: Option<Id>,
        calls: bool,
    ) {
        self.add(id, shape, Kind::Plain);
        let node = self.node(id);
        (node.watches, node.calls) = (Some(target), calls);
        if let Some(to) = holds {
            node.fields.clear();
            node.fields.push(Some(to));
        }
    }

    pub(crate) fn node(&mut self, id: Id) -> &mut Node {
        self.alive.get_mut(&id).expect("alive in the model")
    }

    // -------------------------------------------------------------------------------------- fields

    /// Whether programs may change an object's references.
    fn is_open(&self, id: Id) -> bool {
        !matches!(self.alive[&id].shape, Shape::DynWatcher | Shape::Type)
    }

    /// Whether an object can refer to another one.
    fn accepts(&self, from: Id, to: Id) -> bool {
        let to = &self.alive[&to];
        match self.alive[&from].shape {
            Shape::Slots | Shape::Once => {
                matches!(to.shape, Shape::List | Shape::Cyclic) && !to.kind.has_finalizer()
            }
            // No function could return it with its type.
            shape if shape.is_dynamic() => to.shape != Shape::Slice,
            _ => self.is_open(from),
        }
    }

    /// Where the next reference goes; `None`: nowhere.
    pub(crate) fn slot_for(&self, from: Id, to: Id) -> Option<usize> {
        let node = &self.alive[&from];
        if !self.accepts(from, to) {
            return None;
        }
        match node.shape.room() {
            None => Some(node.fields.len()),
            Some(_) => node.fields.iter().position(Option::is_none),
        }
    }

    /// Whether a lock-free slot of `from` can hold `to`, which may be nothing.
    pub(crate) fn fits_slot(&self, from: Id, to: Option<Id>) -> bool {
        self.alive[&from].shape == Shape::Slots && to.is_none_or(|to| self.accepts(from, to))
    }

    /// Adds a reference, if there is room for it; says whether there was.
    pub(crate) fn push(&mut self, from: Id, to: Id) -> bool {
        let Some(at) = self.slot_for(from, to) else { return false };
        let fields = &mut self.node(from).fields;
        if at == fields.len() {
            fields.push(None);
        }
        fields[at] = Some(to);
        true
    }

    /// Takes a reference out, which is the caller's now.
    pub(crate) fn remove(&mut self, from: Id, at: usize) -> Option<Id> {
        let node = self.node(from);
        let out = match node.shape {
            Shape::List | Shape::Cyclic | Shape::Watcher if at < node.fields.len() => {
                node.fields.remove(at)
            }
            Shape::Slots
            | Shape::Slice
            | Shape::Pair
            | Shape::Items
            | Shape::Instance
            | Shape::Legacy => node.fields.get_mut(at).and_then(Option::take),
            _ => None,
        };
        if self.alive[&from].shape == Shape::Slots {
            self.retired.extend(out);
        }
        out
    }

    /// Takes all references out.
    pub(crate) fn take_fields(&mut self, from: Id) -> Vec<Id> {
        if matches!(self.alive[&from].shape, Shape::Once | Shape::DynWatcher | Shape::Type) {
            return Vec::new();
        }
        let out = self.empty(from);
        if self.alive[&from].shape == Shape::Slots {
            self.retired.extend(&out);
        }
        out
    }

    fn empty(&mut self, from: Id) -> Vec<Id> {
        let node = self.node(from);
        let out = node.fields.iter().copied().flatten().collect();
        match node.shape.room() {
            None => node.fields.clear(),
            Some(_) => node.fields.fill(None),
        }
        out
    }

    /// Whether the fields of an object have an order: finalizers append to anchors in any.
    pub(crate) fn is_ordered(&self, id: Id) -> bool {
        !ANCHORS.contains(&id)
    }

    // ------------------------------------------------------------------------------------ counting

    /// All references from outside the heap.
    fn handles(&self) -> impl Iterator<Item = Id> {
        let lists = [&self.shelf, &self.retired, &self.list, &self.fixed].into_iter().flatten();
        self.places.iter().flatten().chain(&self.root).chain(lists).copied()
    }

    /// How many references lead to each object; `usize::MAX`: it is immortal.
    pub(crate) fn counts(&self) -> BTreeMap<Id, usize> {
        let mut counts: BTreeMap<Id, usize> = self.alive.keys().map(|&id| (id, 0)).collect();
        for id in self.handles().chain(self.alive.values().flat_map(Node::edges)) {
            *counts.get_mut(&id).expect("references lead to the living") += 1;
        }
        for (&id, _) in self.alive.iter().filter(|(_, node)| node.immortal) {
            counts.insert(id, usize::MAX);
        }
        counts
    }

    fn is_referred_to(&self, id: Id) -> bool {
        self.alive[&id].immortal
            || self.held.contains(&id)
            || self.handles().any(|held| held == id)
            || self.alive.values().any(|node| node.edges().any(|to| to == id))
    }

    // -------------------------------------------------------------------------------------- deaths

    /// Destroys the objects without references, among `suspects` and the objects to which they
    /// refer.
    pub(crate) fn reap(&mut self, suspects: impl IntoIterator<Item = Id>) {
        let mut suspects: VecDeque<Id> = suspects.into_iter().collect();
        while let Some(id) = suspects.pop_front() {
            if !self.alive.contains_key(&id) || self.is_referred_to(id) {
                continue;
            }
            self.finalize(id, &mut suspects);
            if self.is_referred_to(id) {
                continue;
            }
            self.forget(id, &mut suspects);
            if self.alive[&id].shape == Shape::Legacy {
                self.events.finalized.push(id);
                if self.alive[&id].kind == Kind::Rise && !self.meek {
                    self.shelf.push(id);
                    continue;
                }
            }
            let node = self.alive.remove(&id).expect("alive");
            if node.kind == Kind::Burst {
                self.events.panics.push(format!("burst {id}"));
            }
            suspects.extend(node.edges());
        }
    }

    /// Calls the finalizer, if there is one and it was not called before.
    fn finalize(&mut self, id: Id, suspects: &mut VecDeque<Id>) {
        let node = self.node(id);
        let kind = node.kind;
        if node.shape == Shape::Legacy || !kind.has_finalizer() || node.finalized {
            return;
        }
        node.finalized = true;
        self.events.finalized.push(id);
        match kind {
            Kind::Plain | Kind::Stubborn | Kind::Burst | Kind::Quiet => {}
            Kind::Rise if self.meek => {}
            Kind::Rise => self.shelf.push(id),
            Kind::Cling => {
                self.push(ANCHORS[1], id);
            }
            Kind::Reach => {
                self.push(id, ANCHORS[0]);
            }
            Kind::Breed => {
                let child = BRED + id;
                self.add(child, Shape::List, Kind::Plain);
                if self.push(id, child) {
                    self.push(child, id);
                } else {
                    self.alive.remove(&child);
                }
            }
            Kind::Cut => suspects.extend(self.empty(id)),
            Kind::Throw => self.events.panics.push(format!("throw {id}")),
        }
    }

    /// No weak reference leads to an object any more; callbacks are called.
    fn forget(&mut self, id: Id, suspects: &mut VecDeque<Id>) {
        self.weaks.iter_mut().flatten().filter(|weak| weak.0 == id).for_each(|weak| weak.1 = false);
        for watcher in self.watchers_of(|to| to == id) {
            let referred_to = self.is_referred_to(watcher);
            let node = self.node(watcher);
            node.watches = None;
            if node.calls && !node.condemned && referred_to {
                self.call(watcher, suspects);
            }
        }
    }

    fn watchers_of(&self, target: impl Fn(Id) -> bool) -> Vec<Id> {
        let watches = |node: &Node| node.watches.is_some_and(&target);
        self.alive.iter().filter(|(_, node)| watches(node)).map(|(&id, _)| id).collect()
    }

    fn call(&mut self, watcher: Id, suspects: &mut VecDeque<Id>) {
        let node = self.node(watcher);
        node.called = true;
        if node.shape == Shape::DynWatcher {
            // It owns its callback until it has been called.
            suspects.extend(node.fields[0].take());
        }
    }

    /// A safepoint: references that were removed from lock-free slots are dropped.
    pub(crate) fn safepoint(&mut self) {
        let retired = std::mem::take(&mut self.retired);
        self.reap(retired);
    }

    // --------------------------------------------------------------------------------- collections

    /// Which members of `set` are reachable from outside of it.
    fn reached(&self, set: &BTreeSet<Id>) -> BTreeSet<Id> {
        let outside = self
            .alive
            .iter()
            .filter(|(id, _)| !set.contains(id))
            .flat_map(|(_, node)| node.edges());
        let immortal = self.alive.iter().filter(|(_, node)| node.immortal).map(|(&id, _)| id);
        self.closure(outside.chain(immortal).chain(self.handles()), set)
    }

    /// The members of `set` that `from` leads to, on ways inside of it.
    fn closure(&self, from: impl IntoIterator<Item = Id>, set: &BTreeSet<Id>) -> BTreeSet<Id> {
        let mut stack: Vec<Id> = from.into_iter().filter(|id| set.contains(id)).collect();
        let mut reached = BTreeSet::new();
        while let Some(id) = stack.pop() {
            if reached.insert(id) {
                stack.extend(self.alive[&id].edges().filter(|to| set.contains(to)));
            }
        }
        reached
    }

    pub(crate) fn collect(&mut self, full: bool) -> Expected {
        self.safepoint();
        let candidates: BTreeSet<Id> = self
            .alive
            .iter()
            .filter(|(_, node)| node.tracked && !node.frozen && (full || node.young))
            .map(|(&id, _)| id)
            .collect();
        let reached = self.reached(&candidates);
        for (id, node) in &mut self.alive {
            // Frozen objects age with the others.
            node.young &= !node.tracked;
            // Met once, an immortal is no candidate again.
            node.tracked &= !(node.immortal && candidates.contains(id));
        }
        let mut garbage: BTreeSet<Id> = candidates.difference(&reached).copied().collect();
        let unreachable = garbage.len();
        self.held = garbage.clone();
        // Objects with legacy finalizers are not cleared, and neither are the objects that they
        // need.
        let legacy: Vec<Id> = garbage
            .iter()
            .copied()
            .filter(|id| self.alive[id].shape == Shape::Legacy && !self.meek)
            .collect();
        let kept = self.closure(legacy.iter().copied(), &garbage);
        garbage.retain(|id| !kept.contains(id));
        // Callbacks, of weak references that are not garbage themselves.
        let mut suspects = VecDeque::new();
        for watcher in self.watchers_of(|to| garbage.contains(&to)) {
            if !self.alive[&watcher].calls {
                continue;
            }
            self.node(watcher).watches = None;
            if !garbage.contains(&watcher) && !self.alive[&watcher].condemned {
                self.call(watcher, &mut suspects);
            }
        }
        let before = self.events.finalized.len();
        garbage.iter().for_each(|&id| self.finalize(id, &mut suspects));
        let finalized = self.events.finalized.len() - before;
        self.reap(suspects);
        // Some of it may be reachable again.
        let back = self.reached(&garbage);
        garbage.retain(|id| !back.contains(id));
        self.weaks
            .iter_mut()
            .flatten()
            .filter(|weak| garbage.contains(&weak.0))
            .for_each(|weak| weak.1 = false);
        for watcher in self.watchers_of(|to| garbage.contains(&to)) {
            self.node(watcher).watches = None;
        }
        self.list.extend(legacy);
        let mut suspects = Vec::new();
        for &id in &garbage {
            let node = self.node(id);
            node.condemned = true;
            let panics = node.kind == Kind::Stubborn;
            if panics && !self.meek {
                self.events.panics.push(format!("stubborn {id}"));
            } else {
                suspects.extend(self.empty(id));
            }
        }
        self.reap(suspects);
        let held = std::mem::take(&mut self.held);
        self.reap(held);
        let left = garbage.iter().filter(|id| self.alive.contains_key(id)).count();
        Expected {
            candidates: candidates.len(),
            unreachable,
            finalized,
            resurrected: back.len(),
            collected: garbage.len() - left,
            uncollectable: left + kept.len(),
        }
    }

    // -------------------------------------------------------------------------------------- places

    /// Where a weak reference leads.
    pub(crate) fn led_to(&self, weak: usize) -> Option<Id> {
        self.weaks[weak].and_then(|(id, leads)| leads.then_some(id))
    }

    /// Puts a handle into a place, and drops the previous one.
    pub(crate) fn put(&mut self, place: usize, id: Option<Id>) {
        let old = std::mem::replace(&mut self.places[place], id);
        self.reap(old);
    }

    /// Drops anchors and types. Afterwards only programs hold objects.
    pub(crate) fn release(&mut self) {
        let fixed = std::mem::take(&mut self.fixed);
        self.reap(fixed);
    }
}
