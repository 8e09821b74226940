//! The shapes that are built, as calls that say which node leads to which: the same for every
//! contestant.

use pauses::random::SplitMix;

use crate::task::Workload;

/// All edges of a workload's graph: in the order of the shape, or so that a node's edges come one
/// after the other, and the nodes in allocation order or in random order.
pub fn edges(workload: Workload, n: usize, mut edge: impl FnMut(usize, usize)) {
    let is_tree = matches!(workload, Workload::W4t | Workload::W4tr);
    let shape = |edge: &mut dyn FnMut(usize, usize)| {
        if is_tree { tree(n, edge) } else { graph(n, edge) }
    };
    if !workload.orders_lists() {
        return shape(&mut edge);
    }
    let mut place: Vec<u32> = (0..n as u32).collect();
    if workload != Workload::W4ga {
        let mut random = SplitMix::new(11);
        (1..n).for_each(|i| place.swap(i, random.below(i + 1)));
    }
    let mut edges = Vec::new();
    shape(&mut |from, to| edges.push((place[from], from as u32, to as u32)));
    edges.sort_by_key(|(place, ..)| *place); // stable: the order within a list stays
    edges.into_iter().for_each(|(_, from, to)| edge(from as usize, to as usize));
}

/// How many steps the walk makes that touches a part of the nodes.
pub fn steps(n: usize) -> usize {
    n / 100
}

/// A binary tree of exactly `n` nodes in allocation order (a node, its left part, its right part),
/// each node with an edge to its parent. Calls `edge(from, to)`; nodes are numbered as they are to
/// be allocated.
pub fn tree(n: usize, mut edge: impl FnMut(usize, usize)) {
    // (root, nodes of this part); a list instead of recursion, since contestants' stacks are
    // limited on purpose.
    let mut parts = vec![(0, n)];
    while let Some((root, count)) = parts.pop() {
        let left = (count - 1) / 2;
        let right = count - 1 - left;
        // The right part first: the part that was pushed last is next, so lists of edges also grow
        // in allocation order.
        for (child, below) in [(root + 1 + left, right), (root + 1, left)] {
            if below > 0 {
                edge(root, child);
                edge(child, root);
                parts.push((child, below));
            }
        }
    }
}

/// A connected random graph: a random recursive tree, and three random edges a node.
pub fn graph(n: usize, mut edge: impl FnMut(usize, usize)) {
    let mut random = SplitMix::new(7);
    for child in 1..n {
        edge(random.below(child), child);
    }
    for from in 0..n {
        for _ in 0..3 {
            edge(from, random.below(n));
        }
    }
}

/// GCBench: how many nodes a full tree has.
pub fn tree_size(depth: u32) -> usize {
    (1 << (depth + 1)) - 1
}

/// GCBench: the depths of the temporary trees up to `max`, and how many of each, for each way of
/// building.
pub fn gcbench(max: u32) -> impl Iterator<Item = (u32, usize)> {
    (4..=max).step_by(2).map(move |depth| (depth, 2 * tree_size(max + 2) / tree_size(depth)))
}
