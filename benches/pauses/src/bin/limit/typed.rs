//! The same shapes as objects of a heap.

use standstill::{AnyGc, Gc, GcCell, Mutator, Trace};

use crate::shape::Shape;

/// An object with nothing but its edges.
#[derive(Trace)]
struct Node<const N: usize> {
    edges: [GcCell<Option<Gc<Node<N>>>>; N],
}

/// Builds `n` objects of a shape. The returned value holds them all.
pub(crate) fn build(m: &Mutator, shape: Shape, n: usize) -> AnyGc {
    match shape.degree() {
        1 => build_with::<1>(m, shape, n),
        3 => build_with::<3>(m, shape, n),
        _ => build_with::<4>(m, shape, n),
    }
}

/// The size of such an object, header included.
pub(crate) fn object_size(shape: Shape) -> usize {
    const HEADER: usize = 16;
    HEADER
        + match shape.degree() {
            1 => size_of::<Node<1>>(),
            3 => size_of::<Node<3>>(),
            _ => size_of::<Node<4>>(),
        }
}

fn build_with<const N: usize>(m: &Mutator, shape: Shape, n: usize) -> AnyGc {
    let empty = || Node::<N> { edges: std::array::from_fn(|_| GcCell::default()) };
    let nodes: Vec<_> = (0..n).map(|_| m.alloc(empty())).collect();
    shape.edges(n, |from, nth, to| nodes[from].edges[nth].set(m, Some(nodes[to].clone())));
    nodes[0].clone().into()
}
