//! Building the graph from several mutators.
//!
//! Each thread owns a slice of the nodes and allocates it. Then it walks the edges out of its
//! slice. If an edge leads to another thread's node, a reference must be sent. Even and odd edges
//! are wired by different threads, so that references travel both ways:
//!
//! * even edges: the source's owner sends a reference to the *source*, and the target's owner adds
//!   its node to it (a change to an object of another thread);
//! * odd edges: the source's owner requests the *target*, the target's owner sends a reference to
//!   it, and the source's owner adds it (an object held by another thread).
//!
//! Channels are unbounded, so sending never blocks. Receiving blocks detached, so that no stop
//! waits for it. A thread has finished when all others have said so and all its requests are
//! answered. Until then it holds all its nodes; afterwards only the root holds them.

use std::ops::Range;
use std::sync::atomic::AtomicU8;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

use indicatif::ProgressBar;
use standstill::{Gc, GcWeak, Heap, Mutator};
use standstill_heap::snapshot::{Edge, Snapshot};

use crate::graph::Node;
use crate::ledger::Witness;

/// Letters that are sent together.
const BATCH: usize = 256;
/// Nodes between two safepoints.
const STRIDE: usize = 64;
/// Every so many nodes, one is watched through a weak reference.
const WATCHED: usize = 16;

/// The result: the references that hold the graph.
pub(crate) struct Built {
    /// Node 0 and the targets of its edges.
    pub(crate) roots: Vec<Gc<Node>>,
    /// Weak references to nodes from all over the graph.
    pub(crate) watched: Vec<GcWeak<Node>>,
}

/// The data that all builders share.
pub(crate) struct Plan<'p> {
    pub(crate) snapshot: &'p Snapshot,
    pub(crate) threads: usize,
    /// Whether nodes get bytes of their own.
    pub(crate) payload: bool,
    /// A page of the ledger with an entry for each node.
    pub(crate) page: &'static [AtomicU8],
    pub(crate) bar: &'p ProgressBar,
}

impl Plan<'_> {
    fn slice_len(&self) -> usize {
        self.snapshot.nodes().len().div_ceil(self.threads)
    }

    fn owner(&self, node: usize) -> usize {
        node / self.slice_len()
    }

    fn slice(&self, thread: usize) -> Range<usize> {
        let nodes = self.snapshot.nodes().len();
        let start = (thread * self.slice_len()).min(nodes);
        start..(start + self.slice_len()).min(nodes)
    }
}

/// Builds the graph in `heap`. The calling thread is detached: it only waits.
pub(crate) fn build(heap: &Heap, plan: &Plan<'_>) -> Built {
    let is_root = roots_of(plan.snapshot);
    let (senders, receivers): (Vec<_>, Vec<_>) = (0..plan.threads).map(|_| channel()).unzip();
    thread::scope(|scope| {
        let threads: Vec<_> = receivers
            .into_iter()
            .enumerate()
            .map(|(id, inbox)| {
                let (peers, is_root) = (senders.clone(), &is_root);
                scope.spawn(move || Builder::run(heap, plan, id, inbox, peers, is_root))
            })
            .collect();
        let mut built = Built { roots: Vec::new(), watched: Vec::new() };
        for thread in threads {
            let part = thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            built.roots.extend(part.roots);
            built.watched.extend(part.watched);
        }
        built
    })
}

/// Node 0 and the targets of its strong edges.
fn roots_of(snapshot: &Snapshot) -> Vec<bool> {
    let mut is_root = vec![false; snapshot.nodes().len()];
    is_root[0] = true;
    for edge in snapshot.edges_of(0).filter(|edge| !edge.is_weak()) {
        is_root[edge.target()] = true;
    }
    is_root
}

/// The messages between builders.
enum Letter {
    /// An even edge: add your node `edge.target()` to `source`.
    Offer { source: Gc<Node>, edge: Edge },
    /// An odd edge of `asker`'s node `source`: send your node `edge.target()`.
    Ask { asker: usize, source: usize, edge: Edge },
    /// The answer: add `target` to your node `source`.
    Give { source: usize, target: Gc<Node>, edge: Edge },
    /// The sender has walked all its edges: it will offer and ask no more.
    Done,
    /// The sender has panicked, and will not answer.
    Lost,
}

struct Builder<'p> {
    plan: &'p Plan<'p>,
    id: usize,
    first: usize,
    own: Vec<Gc<Node>>,
    inbox: Receiver<Vec<Letter>>,
    peers: Vec<Sender<Vec<Letter>>>,
    outbox: Vec<Vec<Letter>>,
    /// Asked for and not yet come.
    pending: usize,
    /// Other builders that may still offer and ask.
    busy: usize,
}

impl<'p> Builder<'p> {
    fn run(
        heap: &Heap,
        plan: &'p Plan<'p>,
        id: usize,
        inbox: Receiver<Vec<Letter>>,
        peers: Vec<Sender<Vec<Letter>>>,
        is_root: &[bool],
    ) -> Built {
        let mut mutator = heap.attach();
        let m = &mut mutator;
        let slice = plan.slice(id);
        let mut builder = Self {
            plan,
            id,
            first: slice.start,
            own: Vec::with_capacity(slice.len()),
            inbox,
            outbox: peers.iter().map(|_| Vec::new()).collect(),
            pending: 0,
            busy: peers.len() - 1,
            peers,
        };
        builder.allocate(m, slice.clone());
        builder.wire(m, slice.clone());
        builder.serve(m);

        let watched =
            builder.own.iter().step_by(WATCHED).map(|node| Gc::downgrade(node, m)).collect();
        let roots = slice
            .zip(builder.own.drain(..))
            .filter(|(node, _)| is_root[*node])
            .map(|(_, gc)| gc)
            .collect();
        Built { roots, watched }
    }

    fn allocate(&mut self, m: &mut Mutator, slice: Range<usize>) {
        for index in slice {
            let record = self.plan.snapshot.nodes()[index];
            let node = Node::new(record.name, record.size, Witness::new(&self.plan.page[index]));
            let node = if self.plan.payload { node.with_payload() } else { node };
            self.own.push(m.alloc(node));
            if index % STRIDE == 0 {
                m.safepoint();
                self.plan.bar.inc(STRIDE as u64);
            }
        }
    }

    /// Wires the edges between own nodes, and writes to the owners of the others.
    fn wire(&mut self, m: &mut Mutator, slice: Range<usize>) {
        let plan = self.plan;
        for source in slice {
            for (at, edge) in plan.snapshot.edges_of(source).enumerate() {
                let owner = plan.owner(edge.target());
                if owner == self.id {
                    add(
                        m,
                        &self.own[source - self.first],
                        edge,
                        &self.own[edge.target() - self.first],
                    );
                } else if at % 2 == 0 {
                    let source = self.own[source - self.first].clone();
                    self.write(owner, Letter::Offer { source, edge });
                } else {
                    self.pending += 1;
                    self.write(owner, Letter::Ask { asker: self.id, source, edge });
                }
            }
            if source % STRIDE == 0 {
                m.safepoint();
                plan.bar.inc(STRIDE as u64);
                while let Ok(letters) = self.inbox.try_recv() {
                    self.read(m, letters);
                }
            }
        }
        for peer in (0..self.peers.len()).filter(|peer| *peer != self.id) {
            self.outbox[peer].push(Letter::Done);
        }
        self.send_all();
    }

    /// Answers the others until all are through.
    fn serve(&mut self, m: &mut Mutator) {
        while self.busy > 0 || self.pending > 0 {
            let inbox = &self.inbox;
            let letters = m.detach(|| inbox.recv()).expect("a builder keeps a sender to itself");
            self.read(m, letters);
            self.send_all();
        }
    }

    fn read(&mut self, m: &mut Mutator, letters: Vec<Letter>) {
        for letter in letters {
            match letter {
                Letter::Offer { source, edge } => {
                    add(m, &source, edge, &self.own[edge.target() - self.first])
                }
                Letter::Ask { asker, source, edge } => {
                    let target = self.own[edge.target() - self.first].clone();
                    self.write(asker, Letter::Give { source, target, edge });
                }
                Letter::Give { source, target, edge } => {
                    add(m, &self.own[source - self.first], edge, &target);
                    self.pending -= 1;
                }
                Letter::Done => self.busy -= 1,
                Letter::Lost => panic!("another builder panicked"),
            }
        }
        m.safepoint();
    }

    fn write(&mut self, to: usize, letter: Letter) {
        self.outbox[to].push(letter);
        if self.outbox[to].len() >= BATCH {
            self.send(to);
        }
    }

    fn send(&mut self, to: usize) {
        // A peer that is gone has panicked, and its panic is reported where it is joined.
        let _ = self.peers[to].send(std::mem::take(&mut self.outbox[to]));
    }

    fn send_all(&mut self) {
        for peer in 0..self.peers.len() {
            if !self.outbox[peer].is_empty() {
                self.send(peer);
            }
        }
    }
}

impl Drop for Builder<'_> {
    /// No builder may wait for one that panicked.
    fn drop(&mut self) {
        if thread::panicking() {
            for peer in &self.peers {
                let _ = peer.send(vec![Letter::Lost]);
            }
        }
    }
}

/// Adds the edge from `source` to `target`.
fn add(m: &Mutator, source: &Gc<Node>, edge: Edge, target: &Gc<Node>) {
    if edge.is_weak() {
        source.link_weak(m, target);
    } else {
        source.link(m, target.clone());
    }
}
