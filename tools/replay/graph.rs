//! The typed objects that the replay builds.

use standstill::{AtomicGc, Gc, GcCell, GcWeak, Mutator, Trace};

use crate::ledger::Witness;

/// The most bytes that `--payload` gives an object, whatever size the file claims.
const MOST_PAYLOAD: u64 = 4096;

/// An object of the replayed heap.
#[derive(Trace)]
pub(crate) struct Node {
    /// An index into the snapshot's names, or [`Node::CHURNED`].
    name: u32,
    size: u64,
    edges: GcCell<Vec<Gc<Node>>>,
    weak: GcCell<Vec<GcWeak<Node>>>,
    #[trace(skip)]
    _payload: Option<Box<[u8]>>,
    #[trace(skip)]
    _witness: Witness,
}

impl Node {
    /// The name of nodes that the churn makes.
    pub(crate) const CHURNED: u32 = u32::MAX;

    pub(crate) fn new(name: u32, size: u64, witness: Witness) -> Self {
        Self {
            name,
            size,
            edges: GcCell::new(Vec::new()),
            weak: GcCell::new(Vec::new()),
            _payload: None,
            _witness: witness,
        }
    }

    /// The node with bytes of its own, as many as its size says, within reason.
    pub(crate) fn with_payload(mut self) -> Self {
        self._payload = Some(vec![0; self.size.min(MOST_PAYLOAD) as usize].into_boxed_slice());
        self
    }

    /// A number that depends on the fields: a read of the node that cannot be left out.
    pub(crate) fn read(&self) -> u64 {
        self.size ^ u64::from(self.name)
    }

    /// Adds an edge to `target`.
    pub(crate) fn link(&self, m: &Mutator, target: Gc<Node>) {
        self.edges.lock(m).push(target);
    }

    /// Adds an edge to `target` that holds nothing alive.
    pub(crate) fn link_weak(&self, m: &Mutator, target: &Gc<Node>) {
        let weak = Gc::downgrade(target, m);
        self.weak.lock(m).push(weak);
    }

    /// The target of the edge that `choose` picks, given their number.
    pub(crate) fn follow(
        &self,
        m: &Mutator,
        choose: impl FnOnce(usize) -> usize,
    ) -> Option<Gc<Node>> {
        let edges = self.edges.lock(m);
        (!edges.is_empty()).then(|| edges[choose(edges.len())].clone())
    }

    /// The target of the weak edge that `choose` picks, if it is alive.
    pub(crate) fn follow_weak(
        &self,
        m: &Mutator,
        choose: impl FnOnce(usize) -> usize,
    ) -> Option<Gc<Node>> {
        let weak = {
            let weak = self.weak.lock(m);
            if weak.is_empty() {
                return None;
            }
            weak[choose(weak.len())].clone()
        };
        weak.upgrade(m)
    }

    /// Points the edge that `choose` picks to `target`, or adds it where there is none. The old
    /// target is given back: its death, if this was its last reference, must not happen under the
    /// lock.
    #[must_use]
    pub(crate) fn rewire(
        &self,
        m: &Mutator,
        target: Gc<Node>,
        choose: impl FnOnce(usize) -> usize,
    ) -> Option<Gc<Node>> {
        let mut edges = self.edges.lock(m);
        if edges.is_empty() {
            edges.push(target);
            return None;
        }
        let at = choose(edges.len());
        Some(std::mem::replace(&mut edges[at], target))
    }

    /// Takes one edge to `target` away, if it is still there.
    pub(crate) fn unlink(&self, m: &Mutator, target: &Gc<Node>) -> Option<Gc<Node>> {
        let mut edges = self.edges.lock(m);
        let at = edges.iter().rposition(|edge| *edge == *target)?;
        Some(edges.swap_remove(at))
    }
}

/// Where threads leave references for each other: slots that are read and written without a lock.
#[derive(Trace)]
pub(crate) struct Board {
    slots: Vec<AtomicGc<Node>>,
}

impl Board {
    pub(crate) fn new(slots: usize) -> Self {
        Self { slots: (0..slots).map(|_| AtomicGc::new(None)).collect() }
    }

    /// Exchanges the content of the slot that `choose` picks for `given`.
    pub(crate) fn swap(
        &self,
        m: &Mutator,
        given: Option<Gc<Node>>,
        choose: impl FnOnce(usize) -> usize,
    ) -> Option<Gc<Node>> {
        self.slots[choose(self.slots.len())].swap(m, given)
    }
}
