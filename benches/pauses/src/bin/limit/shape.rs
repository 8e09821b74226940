//! The shapes of heaps: which object refers to which.

use clap::ValueEnum;
use pauses::random::SplitMix;
use serde::{Deserialize, Serialize};

/// A shape. Objects have numbers in the order of their allocation; number 0 reaches all others.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, ValueEnum, Serialize, Deserialize,
)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Shape {
    /// A binary tree with parent links, allocated depth first: the kind case
    Tree,
    /// The same, allocated in random order
    TreeShuffled,
    /// Four edges an object, to anywhere: the worst case
    Random,
    /// Four edges an object, 90 % of them to the 512 objects before and after
    Local,
    /// Each object refers to the next one alone: nothing to do for a second worker
    List,
}

/// How far a local edge goes.
const NEAR: usize = 512;

impl Shape {
    /// All of them, in order.
    pub(crate) const ALL: &[Self] =
        &[Self::Tree, Self::TreeShuffled, Self::Random, Self::Local, Self::List];

    /// As on the command line.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Tree => "tree",
            Self::TreeShuffled => "tree-shuffled",
            Self::Random => "random",
            Self::Local => "local",
            Self::List => "list",
        }
    }

    /// The most edges that an object has.
    pub(crate) fn degree(self) -> usize {
        match self {
            Self::Tree | Self::TreeShuffled => 3,
            Self::Random | Self::Local => 4,
            Self::List => 1,
        }
    }

    /// All edges among `n` objects: from which, as its how many-eth, to which. The same ones each
    /// time.
    pub(crate) fn edges(self, n: usize, mut edge: impl FnMut(usize, usize, usize)) {
        let mut random = SplitMix::new(7);
        match self {
            Self::Tree => tree(n, edge),
            Self::TreeShuffled => {
                let mut number: Vec<u32> = (0..n as u32).collect();
                for i in (2..n).rev() {
                    number.swap(i, 1 + random.below(i)); // the root stays
                }
                let number = |node: usize| number[node] as usize;
                tree(n, |from, nth, to| edge(number(from), nth, number(to)));
            }
            Self::Random => graph(n, n, 0, &mut random, edge),
            // A quarter of the edges reach everything, and are near. Of the rest, 13 of 15:
            // together 90 %.
            Self::Local => graph(n, NEAR, 13, &mut random, edge),
            Self::List => (1..n).for_each(|to| edge(to - 1, 0, to)),
        }
    }
}

/// A balanced tree, numbered depth first. An object's edges: to its parent, and to its children.
fn tree(n: usize, mut edge: impl FnMut(usize, usize, usize)) {
    let mut subtrees = vec![(0, n)];
    while let Some((top, size)) = subtrees.pop() {
        let left = size / 2;
        let right = size.saturating_sub(1 + left);
        // Number 0 has no parent; its first edge stays empty.
        for (nth, child, size) in [(2, top + 1 + left, right), (1, top + 1, left)] {
            if size > 0 {
                edge(top, nth, child);
                edge(child, 0, top);
                subtrees.push((child, size));
            }
        }
    }
}

/// Four edges an object. First each object except 0 gets an edge from one of the `window` objects
/// before it, so all are reached. Then the empty places are filled, in `near` of 15 cases with a
/// neighbour.
fn graph(
    n: usize,
    window: usize,
    near: usize,
    random: &mut SplitMix,
    mut edge: impl FnMut(usize, usize, usize),
) {
    let mut degrees = vec![0u8; n];
    let mut next = |from: usize| {
        let nth = degrees[from];
        (nth < 4).then(|| {
            degrees[from] += 1;
            usize::from(nth)
        })
    };
    for to in 1..n {
        let (from, nth) = std::iter::repeat_with(|| to - 1 - random.below(to.min(window)))
            .find_map(|from| Some((from, next(from)?)))
            .expect("there is always room");
        edge(from, nth, to);
    }
    for from in 0..n {
        while let Some(nth) = next(from) {
            let to = if random.below(15) < near {
                (from + n * NEAR + random.below(2 * NEAR + 1) - NEAR) % n
            } else {
                random.below(n)
            };
            edge(from, nth, to);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn edges(shape: Shape, n: usize) -> Vec<(usize, usize, usize)> {
        let mut edges = Vec::new();
        shape.edges(n, |from, nth, to| edges.push((from, nth, to)));
        edges
    }

    #[test]
    fn number_0_reaches_all_and_no_place_is_used_twice() {
        for &shape in Shape::ALL {
            for n in [1, 2, 3, 10, 1000, 5000] {
                let edges = edges(shape, n);
                let mut places: Vec<_> = edges.iter().map(|&(from, nth, _)| (from, nth)).collect();
                assert!(places.iter().all(|&(from, nth)| from < n && nth < shape.degree()));
                places.sort_unstable();
                places.dedup();
                assert_eq!(places.len(), edges.len(), "{shape:?} {n}");

                let mut graph = vec![Vec::new(); n];
                edges.iter().for_each(|&(from, _, to)| graph[from].push(to));
                let mut reached = vec![false; n];
                let mut stack = vec![0];
                while let Some(node) = stack.pop() {
                    if !std::mem::replace(&mut reached[node], true) {
                        stack.extend(&graph[node]);
                    }
                }
                assert!(reached.iter().all(|reached| *reached), "{shape:?} {n}");
            }
        }
    }

    #[test]
    fn shapes_are_as_described() {
        assert_eq!(edges(Shape::Random, 1000).len(), 4000);
        assert_eq!(edges(Shape::Tree, 1000).len(), 2 * 999);
        let local = edges(Shape::Local, 20_000);
        let near = local.iter().filter(|&&(from, _, to)| from.abs_diff(to) <= NEAR).count();
        assert!((0.89..0.92).contains(&(near as f64 / local.len() as f64)));
        let steps =
            edges(Shape::TreeShuffled, 1000).iter().filter(|e| e.0.abs_diff(e.2) == 1).count();
        assert!(steps < 50);
    }
}
