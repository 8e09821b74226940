//! The mutation phase: every thread changes the graph at random, under automatic collection.
//!
//! An operation is one of: point an edge elsewhere; make a ring of new nodes and drop it; hang a
//! small tree of new nodes into the graph, to cut it off later; read through a weak reference; swap
//! a reference with another thread through a slot of the board. Nodes are found by walking from a
//! root. After each operation comes a safepoint, where collections happen.

use std::collections::VecDeque;
use std::thread;
use std::time::{Duration, Instant};

use indicatif::ProgressBar;
use standstill::{Gc, GcWeak, Heap, Mutator};

use crate::graph::{Board, Node};
use crate::ledger::{Ledger, Register};
use crate::random::Random;

/// The longest walk from a root.
const WALK: usize = 8;
/// Trees that a thread keeps in the graph before it cuts the oldest off.
const GRAFTS: usize = 32;
/// Weak references that a thread keeps.
const WEAKS: usize = 256;
/// Operations between two moves of the progress bar.
const STRIDE: u64 = 256;

/// The data that all threads share.
pub(crate) struct Plan<'p> {
    pub(crate) threads: usize,
    /// Operations a thread.
    pub(crate) operations: u64,
    pub(crate) seed: u64,
    pub(crate) roots: &'p [Gc<Node>],
    pub(crate) board: &'p Gc<Board>,
    pub(crate) ledger: &'p Ledger,
    pub(crate) bar: &'p ProgressBar,
}

/// The reports of the threads.
#[derive(Default)]
pub(crate) struct Churned {
    /// Operations of all threads.
    pub(crate) operations: u64,
    /// The time that all threads took, added up.
    pub(crate) busy: Duration,
    /// The weak references that they kept.
    pub(crate) watched: Vec<GcWeak<Node>>,
}

/// Churns. The calling thread is detached: it only waits.
pub(crate) fn churn(heap: &Heap, plan: &Plan<'_>) -> Churned {
    thread::scope(|scope| {
        let threads: Vec<_> =
            (0..plan.threads).map(|id| scope.spawn(move || Churner::run(heap, plan, id))).collect();
        let mut churned = Churned::default();
        for thread in threads {
            let part = thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            churned.operations += part.operations;
            churned.busy += part.busy;
            churned.watched.extend(part.watched);
        }
        churned
    })
}

struct Churner<'p> {
    plan: &'p Plan<'p>,
    random: Random,
    register: Register<'p>,
    /// Trees in the graph, oldest first, each with the node it hangs on.
    grafts: VecDeque<(Gc<Node>, Gc<Node>)>,
    weaks: Vec<GcWeak<Node>>,
    /// A sum of the values read, so that reads are not optimised out.
    sum: u64,
}

impl<'p> Churner<'p> {
    fn run(heap: &Heap, plan: &'p Plan<'p>, id: usize) -> Churned {
        let mut mutator = heap.attach();
        let m = &mut mutator;
        let mut churner = Self {
            plan,
            random: Random::new(plan.seed, id as u64),
            register: Register::new(plan.ledger),
            grafts: VecDeque::new(),
            weaks: Vec::new(),
            sum: 0,
        };
        let start = Instant::now();
        for operation in 1..=plan.operations {
            churner.step(m);
            m.safepoint();
            if operation % STRIDE == 0 {
                plan.bar.inc(STRIDE);
            }
        }
        let busy = start.elapsed();
        std::hint::black_box(churner.sum);
        Churned { operations: plan.operations, busy, watched: churner.weaks }
    }

    fn step(&mut self, m: &Mutator) {
        match self.random.below(100) {
            0..40 => self.rewire(m),
            40..55 => self.ring(m),
            55..70 => self.graft(m),
            70..90 => self.read_weak(m),
            _ => self.swap(m),
        }
    }

    /// A node of the graph, found by a random walk.
    fn walk(&mut self, m: &Mutator) -> Gc<Node> {
        let random = &mut self.random;
        let mut node = random.pick(self.plan.roots).expect("the root is held").clone();
        for _ in 0..random.below(WALK + 1) {
            let Some(next) = node.follow(m, |edges| random.below(edges)) else { break };
            node = next;
        }
        node
    }

    /// A new node, without edges.
    fn node(&mut self, m: &Mutator) -> Gc<Node> {
        m.alloc(Node::new(Node::CHURNED, size_of::<Node>() as u64, self.register.witness()))
    }

    fn rewire(&mut self, m: &Mutator) {
        let (source, target) = (self.walk(m), self.walk(m));
        let random = &mut self.random;
        drop(source.rewire(m, target, |edges| random.below(edges)));
    }

    /// Garbage that counts alone cannot free.
    fn ring(&mut self, m: &Mutator) {
        let ring: Vec<_> = (0..2 + self.random.below(7)).map(|_| self.node(m)).collect();
        for (at, node) in ring.iter().enumerate() {
            node.link(m, ring[(at + 1) % ring.len()].clone());
        }
        if self.random.below(8) == 0 {
            self.watch(m, &ring[0]);
        }
    }

    /// Hangs a tree of up to 13 nodes into the graph; half of the inner nodes know their parent, so
    /// that some trees are cyclic. Cuts the oldest tree off when there are many.
    fn graft(&mut self, m: &Mutator) {
        let place = self.walk(m);
        let tree = self.node(m);
        for _ in 0..1 + self.random.below(3) {
            let child = self.node(m);
            for _ in 0..self.random.below(4) {
                let leaf = self.node(m);
                child.link(m, leaf);
            }
            if self.random.below(2) == 0 {
                child.link(m, tree.clone());
            }
            tree.link(m, child);
        }
        place.link(m, tree.clone());
        self.grafts.push_back((place, tree));
        if self.grafts.len() > GRAFTS {
            let oldest = self.grafts.pop_front();
            if let Some((place, tree)) = oldest {
                // Another thread may have redirected that edge already.
                drop(place.unlink(m, &tree));
            }
        }
    }

    fn read_weak(&mut self, m: &Mutator) {
        let alive = self.random.pick(&self.weaks).and_then(|weak| weak.upgrade(m));
        let node = match alive {
            Some(node) => node,
            None => {
                let node = self.walk(m);
                self.watch(m, &node);
                node
            }
        };
        let node = &*node;
        self.sum = self.sum.wrapping_add(node.read());
        let random = &mut self.random;
        if let Some(target) = node.follow_weak(m, |edges| random.below(edges)) {
            self.sum = self.sum.wrapping_add(target.read());
        }
    }

    /// Keeps a weak reference to `node`, in place of a random one when there are many.
    fn watch(&mut self, m: &Mutator, node: &Gc<Node>) {
        let weak = Gc::downgrade(node, m);
        if self.weaks.len() < WEAKS {
            self.weaks.push(weak);
        } else {
            let at = self.random.below(WEAKS);
            self.weaks[at] = weak;
        }
    }

    /// Leaves a reference, or none, and links the previous one into the graph.
    fn swap(&mut self, m: &Mutator) {
        let given = if self.random.below(4) == 0 { None } else { Some(self.walk(m)) };
        let random = &mut self.random;
        if let Some(taken) = self.plan.board.swap(m, given, |slots| random.below(slots)) {
            self.sum = self.sum.wrapping_add(taken.read());
            let place = self.walk(m);
            let random = &mut self.random;
            drop(place.rewire(m, taken, |edges| random.below(edges)));
        }
    }
}
