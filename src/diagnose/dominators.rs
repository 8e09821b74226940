//! Which object retains which.
//!
//! An object *dominates* another one if every path from outside to the other one leads through it.
//! So the memory of the other one becomes free if the first one dies. For example, the roots refer
//! to A and B, both refer to C, and C refers to D. C dominates D, and neither A nor B dominates C.
//!
//! The algorithm is that of Lengauer and Tarjan in its variant *semi-NCA*. It numbers the objects
//! in the order of a depth-first search, and computes for each its *semidominator*, the lowest
//! number from which a path leads to it over higher numbers alone. The dominator is the nearest
//! ancestor in the search tree that is not above the semidominator.

#![forbid(unsafe_code)]

/// The number of no object.
const NONE: u32 = u32::MAX;

/// A graph of the nodes `0..nodes`, and its roots.
pub(super) struct Edges<'a> {
    /// Of each node, where its targets begin; and one more.
    pub(super) starts: &'a [usize],
    pub(super) targets: &'a [u32],
    pub(super) roots: &'a [u32],
}

/// The dominator tree.
pub(super) struct Dominators {
    /// The reachable nodes, in the order of the search: a dominator comes before what it dominates.
    pub(super) order: Vec<u32>,
    /// The dominator of each node. `None`: no node dominates it, or it is unreachable.
    dominator: Vec<u32>,
}

impl Dominators {
    pub(super) fn of(edges: &Edges<'_>) -> Self {
        let nodes = edges.starts.len() - 1;
        // The position in the search is counted from 1, because position 0 is the outside.
        let mut position = vec![NONE; nodes];
        let mut order = Vec::new();
        let mut parent = vec![0u32];
        let mut path: Vec<(u32, usize)> = Vec::new();
        let mut roots = edges.roots.iter();
        loop {
            let (from, node) = match path.last_mut() {
                Some((at, next)) => {
                    let node = order[*at as usize - 1] as usize;
                    if *next == edges.starts[node + 1] {
                        path.pop();
                        continue;
                    }
                    let target = edges.targets[*next];
                    *next += 1;
                    (*at, target)
                }
                None => match roots.next() {
                    Some(&root) => (0, root),
                    None => break,
                },
            };
            if position[node as usize] == NONE {
                order.push(node);
                let at = order.len() as u32;
                position[node as usize] = at;
                parent.push(from);
                path.push((at, edges.starts[node as usize]));
            }
        }
        let reached = order.len();
        let (sources, starts) = Self::sources(edges, &order, &position);
        let mut semi: Vec<u32> = (0..=reached as u32).collect();
        let mut ancestor = vec![NONE; reached + 1];
        let mut label: Vec<u32> = (0..=reached as u32).collect();
        let mut chain = Vec::new();
        for at in (1..=reached).rev() {
            for &source in &sources[starts[at]..starts[at + 1]] {
                let best = evaluate(source, &mut ancestor, &mut label, &semi, &mut chain);
                semi[at] = semi[at].min(semi[best as usize]);
            }
            ancestor[at] = parent[at];
        }
        let mut dominator = vec![NONE; nodes];
        let mut idom = vec![0u32; reached + 1];
        for at in 1..=reached {
            let mut above = parent[at];
            while above > semi[at] {
                above = idom[above as usize];
            }
            idom[at] = above;
            if above > 0 {
                dominator[order[at - 1] as usize] = order[above as usize - 1];
            }
        }
        Self { order, dominator }
    }

    /// The positions of the nodes that refer to each reachable node: those of position `at` lie
    /// from `starts[at]` to `starts[at + 1]`.
    fn sources(edges: &Edges<'_>, order: &[u32], position: &[u32]) -> (Vec<u32>, Vec<usize>) {
        let targets = |node: u32| {
            let node = node as usize;
            &edges.targets[edges.starts[node]..edges.starts[node + 1]]
        };
        let mut starts = vec![0usize; order.len() + 2];
        let mut count = |node: u32| starts[position[node as usize] as usize + 1] += 1;
        edges.roots.iter().for_each(|&root| count(root));
        order.iter().for_each(|&node| targets(node).iter().for_each(|&target| count(target)));
        for at in 1..starts.len() {
            starts[at] += starts[at - 1];
        }
        let mut next = starts.clone();
        let mut sources = vec![0u32; starts[order.len() + 1]];
        let mut add = |source: u32, target: u32| {
            let next = &mut next[position[target as usize] as usize];
            sources[*next] = source;
            *next += 1;
        };
        edges.roots.iter().for_each(|&root| add(0, root));
        for (at, &node) in order.iter().enumerate() {
            targets(node).iter().for_each(|&target| add(at as u32 + 1, target));
        }
        (sources, starts)
    }

    /// The node that dominates a node directly.
    pub(super) fn of_node(&self, node: u32) -> Option<u32> {
        let dominator = self.dominator[node as usize];
        (dominator != NONE).then_some(dominator)
    }
}

/// The node with the lowest semidominator on the path of linked ancestors of `at`, whose path is
/// compressed, so that later questions are short.
fn evaluate(
    at: u32,
    ancestor: &mut [u32],
    label: &mut [u32],
    semi: &[u32],
    chain: &mut Vec<u32>,
) -> u32 {
    if ancestor[at as usize] == NONE {
        return at;
    }
    let mut top = at;
    while ancestor[ancestor[top as usize] as usize] != NONE {
        chain.push(top);
        top = ancestor[top as usize];
    }
    while let Some(below) = chain.pop() {
        let above = ancestor[below as usize];
        if semi[label[above as usize] as usize] < semi[label[below as usize] as usize] {
            label[below as usize] = label[above as usize];
        }
        ancestor[below as usize] = ancestor[above as usize];
    }
    label[at as usize]
}
