//! Why an object is alive: the shortest path to it from the root.

use std::fmt;

use serde::Serialize;

use crate::snapshot::Edge;
use crate::text::plain;
use crate::tree::{Object, Tree};

/// The shortest paths from the root to all nodes, over strong edges.
#[derive(Debug)]
pub struct Paths<'t> {
    tree: &'t Tree<'t>,
    /// The node from which the search came to each node, and the number of the edge among its
    /// edges.
    came: Vec<(u32, u32)>,
}

const NOWHERE: u32 = u32::MAX;

/// A path from the root to an object.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Path {
    /// The objects, the root first.
    pub steps: Vec<Step>,
}

/// An object on a path.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Step {
    /// How the object before refers to this one, such as `.sessions` or `[3]`. Empty for the root.
    pub field: String,
    /// The object.
    #[serde(flatten)]
    pub object: Object,
}

impl<'t> Paths<'t> {
    /// Searches, in the breadth.
    pub fn of(tree: &'t Tree<'t>) -> Self {
        let snapshot = tree.snapshot;
        let mut came = vec![(NOWHERE, 0); snapshot.nodes().len()];
        came[0] = (0, 0);
        let mut level = vec![0];
        while !level.is_empty() {
            let mut next = Vec::new();
            for node in level {
                for (number, edge) in snapshot.edges_of(node).enumerate() {
                    if !edge.is_weak() && came[edge.target()].0 == NOWHERE {
                        came[edge.target()] = (node as u32, number as u32);
                        next.push(edge.target());
                    }
                }
            }
            level = next;
        }
        Self { tree, came }
    }

    /// The path to a node. `None`: the root does not reach it.
    pub fn to(&self, node: usize) -> Option<Path> {
        let snapshot = self.tree.snapshot;
        let step = |field, node| Step { field, object: self.tree.object(node) };
        let mut steps = Vec::new();
        let mut at = node;
        while at != 0 {
            let (from, number) = self.came[at];
            if from == NOWHERE {
                return None;
            }
            let edge: Option<Edge> = snapshot.edges_of(from as usize).nth(number as usize);
            steps.push(step(edge.map(|edge| snapshot.field(edge)).unwrap_or_default(), at));
            at = from as usize;
        }
        steps.push(step(String::new(), 0));
        steps.reverse();
        Some(Path { steps })
    }
}

impl Path {
    /// How an object on the path refers to the next one. Empty if there is no next one.
    pub fn field_of(&self, object: &Object) -> &str {
        let after = self.steps.iter().skip_while(|step| step.object != *object).nth(1);
        after.map_or("", |step| &step.field)
    }
}

/// The most objects of a path that are printed; a longer one leaves out those in its middle.
const SHOWN: usize = 40;

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = self.steps.len();
        for (at, Step { field, object }) in self.steps.iter().enumerate() {
            if count > SHOWN && at >= SHOWN / 2 && at < count - SHOWN / 2 {
                if at == SHOWN / 2 {
                    writeln!(f, "  ... {} more objects", count - SHOWN)?;
                }
                continue;
            }
            let text = if at == 0 { "root".to_owned() } else { format!("{field} -> {object}") };
            writeln!(f, "  {}", plain(&text))?;
        }
        Ok(())
    }
}
