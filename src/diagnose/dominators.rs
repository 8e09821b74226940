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
//!
//! A large graph does not fit into caches, so time is the number of reads at random places. What is
//! read together lies together, and neither the search nor the compression of paths has a stack.
//!
//! Half of the time goes to semidominators, a third to the search, and the rest to turning the
//! edges around. Some changes were measured with 4 edges a node and left out, because they save
//! less than 5 % of the processor time on one of the graphs of `heap/examples/large.rs`. A prefetch
//! instead of reading ahead does nothing on processors other than x86-64. To store only edges that
//! come from a higher position saves 4 bytes a node of the random graph. To sort the edges in parts
//! while the search goes on, which reads the graph once, takes up to 45 bytes a node.

#![forbid(unsafe_code)]

use std::ops::{AddAssign, Range};

use crate::base::fallible::{self, NoMemory};

/// In [`Dominators`]: no path leads to the node.
const UNREACHED: u32 = u32::MAX;
/// In [`Dominators`]: no node dominates the node.
const OUTSIDE: u32 = u32::MAX - 1;

/// A graph whose nodes and edges are numbers from 0 up, as [`Dominators`] reads it.
pub trait Digraph {
    /// The number of nodes.
    fn nodes(&self) -> usize;

    /// The numbers of the edges out of a node.
    fn edges_of(&self, node: u32) -> Range<usize>;

    /// The node that an edge leads to. `None`: the edge keeps nothing alive, and does not count.
    fn target(&self, edge: usize) -> Option<u32>;
}

/// Which node of a graph dominates which, as seen from its roots.
///
/// For example, node 0 refers to 1 and 2, and both refer to 3. Without node 0 the other ones would
/// be free:
///
/// ```
/// use std::ops::Range;
/// use standstill::diagnose::{Digraph, Dominators};
///
/// struct Diamond;
///
/// impl Digraph for Diamond {
///     fn nodes(&self) -> usize { 4 }
///     fn edges_of(&self, node: u32) -> Range<usize> {
///         [0..2, 2..3, 3..4, 4..4][node as usize].clone()
///     }
///     fn target(&self, edge: usize) -> Option<u32> { Some([1, 2, 3, 3][edge]) }
/// }
///
/// let dominators = Dominators::of(&Diamond, &[0]);
/// assert_eq!(dominators.of_node(3), Some(0));
/// let mut bytes = [10, 20, 30, 40];
/// dominators.add_up(&mut bytes);
/// assert_eq!(bytes, [100, 20, 30, 40]); // what each node retains
/// ```
#[derive(Debug)]
pub struct Dominators {
    order: Vec<u32>,
    /// Of each node.
    dominator: Vec<u32>,
}

/// A node of the graph, while its edges are turned around.
#[derive(Clone, Copy, Default)]
struct GraphPlace {
    /// The position in the search, counted from 1, because 0 is the outside. 0: not reached.
    position: u32,
    /// The number of edges to it; then where the next source of an edge to it is stored.
    sources: u32,
}

/// A position, while semidominators are computed.
#[derive(Clone, Copy)]
struct Link {
    /// An ancestor in the search tree; at first its parent.
    ancestor: u32,
    /// The lowest semidominator between the ancestor and this position.
    lowest: u32,
}

impl Dominators {
    /// Computes the dominators of all nodes that the roots reach. It takes 20 bytes for a node and
    /// 4 for an edge while it runs, and 8 for a node afterwards.
    ///
    /// # Panics
    ///
    /// * If a root or a target is no node of the graph.
    /// * If there are 2^32 - 2 nodes or more, or 2^32 edges out of one or between reachable ones.
    pub fn of(graph: &impl Digraph, roots: &[u32]) -> Self {
        Self::try_of(graph, roots).unwrap_or_else(NoMemory::abort_process)
    }

    /// Like [`of`](Self::of), but returns an error when memory is refused.
    pub(super) fn try_of(graph: &impl Digraph, roots: &[u32]) -> Result<Self, NoMemory> {
        let nodes = graph.nodes();
        assert!(nodes < OUTSIDE as usize, "{nodes} nodes are more than a number of 32 bits tells");
        let mut search = DepthFirst {
            places: filled(GraphPlace::default(), nodes)?,
            order: filled(0, nodes + 1)?,
            parent: filled(0, nodes + 1)?,
            ends: filled(0, nodes + 1)?,
            reached: 0,
            edges: 0,
        };
        search.run(graph, roots);
        let sources = search.sources(graph, roots)?;
        let DepthFirst { places, mut order, mut parent, ends, reached, .. } = search;
        drop(places);
        let semi = semidominators(&parent, ends, &sources, reached)?;
        drop(sources);
        // Ancestors have lower positions, so their dominators stand in `parent` already.
        for at in 1..=reached {
            let mut above = parent[at];
            while above > semi[at] {
                above = parent[above as usize];
            }
            parent[at] = above;
        }
        drop(semi);
        let mut dominator = filled(UNREACHED, nodes)?;
        for at in 1..=reached {
            let above = parent[at] as usize;
            dominator[order[at] as usize] = if above == 0 { OUTSIDE } else { order[above] };
        }
        order.truncate(reached + 1);
        Ok(Self { order, dominator })
    }

    /// The nodes that the roots reach. A dominator comes before what it dominates.
    pub fn order(&self) -> &[u32] {
        &self.order[1..]
    }

    /// The node that dominates a node directly: all others that dominate it dominate this one, too.
    /// `None`: no node dominates it, or no root reaches it.
    ///
    /// # Panics
    ///
    /// If the graph has no such node.
    pub fn of_node(&self, node: u32) -> Option<u32> {
        let dominator = self.dominator[node as usize];
        (dominator < OUTSIDE).then_some(dominator)
    }

    /// Whether a path leads from a root to a node.
    ///
    /// # Panics
    ///
    /// If the graph has no such node.
    pub fn is_reached(&self, node: u32) -> bool {
        self.dominator[node as usize] != UNREACHED
    }

    /// Adds to the value of each node those of all nodes that it dominates. So the sizes of objects
    /// become the sizes that they retain. The value of a node that no root reaches stays.
    ///
    /// # Panics
    ///
    /// * If there are fewer values than nodes.
    /// * Where arithmetic is checked, if a sum overflows.
    pub fn add_up<T: Copy + AddAssign>(&self, values: &mut [T]) {
        for &node in self.order().iter().rev() {
            if let Some(above) = self.of_node(node) {
                let value = values[node as usize];
                values[above as usize] += value;
            }
        }
    }
}

fn filled<T: Copy>(value: T, len: usize) -> Result<Vec<T>, NoMemory> {
    fallible::collect(std::iter::repeat_n(value, len))
}

/// A depth-first search. What has an entry for each position has one for the outside, too.
struct DepthFirst {
    places: Vec<GraphPlace>,
    /// The node at each position.
    order: Vec<u32>,
    /// The position from which the search came to each position.
    parent: Vec<u32>,
    /// At first, how many edges of each position the search has followed; then where its sources
    /// end.
    ends: Vec<u32>,
    /// The last position.
    reached: usize,
    edges: usize,
}

impl DepthFirst {
    fn run(&mut self, graph: &impl Digraph, roots: &[u32]) {
        for &root in roots {
            if !self.visit(root, 0) {
                continue;
            }
            let mut at = self.reached as u32;
            'node: while at != 0 {
                let edges = graph.edges_of(self.order[at as usize]);
                assert!(edges.len() <= u32::MAX as usize, "a node has more than 2^32 - 1 edges");
                let first = edges.start + self.ends[at as usize] as usize;
                for edge in first..edges.end {
                    if let Some(target) = graph.target(edge)
                        && self.visit(target, at)
                    {
                        self.ends[at as usize] = (edge + 1 - edges.start) as u32;
                        at = self.reached as u32;
                        continue 'node;
                    }
                }
                at = self.parent[at as usize];
            }
        }
        let edges = self.edges;
        assert!(
            edges <= u32::MAX as usize,
            "{edges} edges are more than a number of 32 bits tells"
        );
    }

    /// Counts an edge; whether it is the first one that leads to the node.
    #[inline]
    fn visit(&mut self, node: u32, from: u32) -> bool {
        let place = &mut self.places[node as usize];
        place.sources = place.sources.wrapping_add(1);
        self.edges += 1;
        let is_new = place.position == 0;
        if is_new {
            self.reached += 1;
            place.position = self.reached as u32;
            self.order[self.reached] = node;
            self.parent[self.reached] = from;
        }
        is_new
    }

    /// The positions that have an edge to each position. Those of position `at` lie between
    /// `ends[at - 1]` and `ends[at]`.
    fn sources(&mut self, graph: &impl Digraph, roots: &[u32]) -> Result<Vec<u32>, NoMemory> {
        let Self { places, order, ends, reached, edges, .. } = self;
        let mut end = 0;
        ends[0] = 0;
        for (&node, last) in order[1..=*reached].iter().zip(&mut ends[1..]) {
            let place = &mut places[node as usize];
            let count = std::mem::replace(&mut place.sources, end);
            end += count;
            *last = end;
        }
        let mut sources = filled(0, *edges)?;
        let mut add = |source: u32, target: u32| {
            let place = &mut places[target as usize];
            sources[place.sources as usize] = source;
            place.sources += 1;
        };
        roots.iter().for_each(|&root| add(0, root));
        for (&node, at) in order[1..=*reached].iter().zip(1..) {
            for target in graph.edges_of(node).filter_map(|edge| graph.target(edge)) {
                add(at, target);
            }
        }
        Ok(sources)
    }
}

/// How many sources ahead the link of a source's ancestor is read, and twice as many the link of
/// the source itself, so that both are in a cache when they are needed. This halves the time of a
/// graph that is larger than the caches.
const AHEAD: usize = 32;

/// The semidominator of each position, in the place of the ends.
fn semidominators(
    parent: &[u32],
    mut ends: Vec<u32>,
    sources: &[u32],
    reached: usize,
) -> Result<Vec<u32>, NoMemory> {
    let links = parent[..=reached].iter().enumerate();
    let links = links.map(|(at, &ancestor)| Link { ancestor, lowest: at as u32 });
    let mut links: Vec<Link> = fallible::collect(links)?;
    let mut read_ahead = 0;
    for at in (1..=reached).rev() {
        let (start, end) = (ends[at - 1] as usize, ends[at] as usize);
        let mut semi = at as u32;
        for (number, &source) in (start..end).zip(&sources[start..end]) {
            if let Some(ahead) = number.checked_sub(2 * AHEAD) {
                read_ahead ^= links[sources[ahead] as usize].lowest;
                let above = links[sources[ahead + AHEAD] as usize].ancestor;
                read_ahead ^= links[above as usize].lowest;
            }
            semi = semi.min(lowest(&mut links, source, at as u32));
        }
        links[at].lowest = semi;
        ends[at] = semi;
    }
    std::hint::black_box(read_ahead);
    Ok(ends)
}

/// The lowest semidominator on the path in the search tree from `source` up to positions that are
/// not above `at`, whose semidominators are not known yet. The path is compressed, so that later
/// questions are short: on the way up each link refers to the position below, and on the way down
/// to the end of the path.
#[inline]
fn lowest(links: &mut [Link], source: u32, at: u32) -> u32 {
    if source <= at {
        return source;
    }
    let (mut node, mut below) = (source, 0);
    while links[node as usize].ancestor > at {
        let above = std::mem::replace(&mut links[node as usize].ancestor, below);
        (below, node) = (node, above);
    }
    let mut path = links[node as usize];
    while below != 0 {
        let link = &mut links[below as usize];
        path.lowest = path.lowest.min(link.lowest);
        below = std::mem::replace(link, path).ancestor;
    }
    path.lowest
}
