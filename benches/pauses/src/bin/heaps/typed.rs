//! The graph as typed objects, in two layouts.
//!
//! | layout | an object | an edge |
//! |---|---|---|
//! | [`with_vec`] | a header, and a cell with a growing list that lies outside of the heap | 8 bytes |
//! | [`inline`] | a header, and a cell for each edge behind it | 16 bytes |
//!
//! Each object has a [`Witness`] that counts its death.

use std::cell::Cell;

use standstill::{AnyGc, Gc, GcCell, GcSlice, Mutator, Trace};

use crate::graph::Graph;

thread_local! {
    /// Destructors that this thread ran: it makes all objects, and it alone collects.
    static DEAD: Cell<usize> = const { Cell::new(0) };
}

/// Dies with its object, and counts it.
struct Witness;

impl Drop for Witness {
    fn drop(&mut self) {
        DEAD.set(DEAD.get() + 1);
    }
}

/// How many objects' destructors ran.
pub(crate) fn dead() -> usize {
    DEAD.get()
}

#[derive(Trace)]
struct Node {
    #[trace(skip)]
    _witness: Witness,
    edges: GcCell<Vec<Gc<Node>>>,
}

/// Builds the graph of objects with edges in a `Vec`. Only the returned value holds it.
pub(crate) fn with_vec(m: &Mutator, graph: &Graph) -> AnyGc {
    let nodes: Vec<Gc<Node>> = (0..graph.nodes())
        .map(|_| m.alloc(Node { _witness: Witness, edges: GcCell::default() }))
        .collect();
    for (node, targets) in nodes.iter().zip(graph.targets()) {
        let edges = targets.iter().map(|target| nodes[*target as usize].clone()).collect();
        node.edges.set(m, edges);
    }
    Gc::into_any(nodes[0].clone())
}

#[derive(Trace)]
struct Head {
    #[trace(skip)]
    _witness: Witness,
}

type InlineNode = GcSlice<Head, Edge>;

#[derive(Default, Trace)]
struct Edge(GcCell<Option<InlineNode>>);

/// Builds the graph of objects with edges in the object itself. Only the returned value holds it.
pub(crate) fn inline(m: &Mutator, graph: &Graph) -> AnyGc {
    let nodes: Vec<InlineNode> = graph
        .targets()
        .map(|targets| {
            m.alloc_slice(Head { _witness: Witness }, targets.iter().map(|_| Edge::default()))
        })
        .collect();
    for (node, targets) in nodes.iter().zip(graph.targets()) {
        for (edge, target) in node.items.iter().zip(targets) {
            edge.0.set(m, Some(nodes[*target as usize].clone()));
        }
    }
    GcSlice::into_any(nodes[0].clone())
}
