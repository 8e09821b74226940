//! An object is shared, so its vector is not changed without the lock of a `GcCell`.

use standstill::{Gc, GcVec, Heap, Trace};

#[derive(Trace)]
struct Node {
    edges: GcVec<Node, 3>,
}

fn main() {
    let heap = Heap::new();
    let m = heap.attach();
    let node: Gc<Node> = m.alloc(Node { edges: GcVec::new() });
    node.edges.push(&m, node.clone());
}
