//! The graph of a heap, in flat arrays.

use standstill::diagnose::Digraph;

use crate::bad_input::Fault;
use crate::reading;
use crate::source::Source;

/// A graph of nodes and edges. Node 0 is the root: what it refers to is held from outside.
#[derive(Debug)]
pub struct Snapshot {
    pub(crate) strings: Vec<Box<str>>,
    pub(crate) nodes: Vec<Node>,
    pub(crate) edges: EdgeArrays,
    pub(crate) node_kinds: Vec<String>,
    pub(crate) edge_kinds: Vec<String>,
    /// For each kind of edges: whether their labels are no strings.
    pub(crate) is_indexed: Vec<bool>,
    pub(crate) facts: Facts,
    pub(crate) process: Option<String>,
}

/// Which facts the file tells of each node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    /// [`Node::id`].
    pub ids: bool,
    /// [`Node::outside`].
    pub outside: bool,
    /// [`Node::is_old`].
    pub old: bool,
}

/// A node.
#[derive(Clone, Copy, Debug, Default)]
pub struct Node {
    /// The number of its name: see [`Snapshot::string`].
    pub name: u32,
    /// The number of its kind: see [`Snapshot::node_kind`].
    pub kind: u8,
    /// Whether it has survived a collection. Only standstill writes this.
    pub is_old: bool,
    /// The references to it from outside the heap. Only standstill writes them.
    pub outside: u32,
    /// The bytes that it took itself. The sizes of a snapshot sum up to less than 2^53.
    pub size: u64,
    /// The same number in all snapshots of a process, as long as the object lives. 0 if the file
    /// has no ids.
    pub id: u64,
    /// Where its edges end; they begin where those of the node before end.
    pub(crate) end: u32,
}

/// A reference of a node to another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Edge {
    target: u32,
    /// The number of its kind: see [`Snapshot::edge_kind`].
    pub kind: u8,
    /// Its name: see [`Snapshot::field`].
    pub label: Label,
    is_weak: bool,
}

/// The name of an edge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Label {
    /// A place among many, such as that of an element.
    Index(u32),
    /// The number of a name: see [`Snapshot::string`].
    Name(u32),
}

impl Edge {
    /// The node that it leads to.
    pub fn target(self) -> usize {
        self.target as usize
    }

    /// Whether it holds nothing alive.
    pub fn is_weak(self) -> bool {
        self.is_weak
    }
}

/// The class of a node, for grouping: nodes with the same number have the same
/// [`Snapshot::class_name`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Class(u32);

/// Two words and a byte for each edge.
#[derive(Debug, Default)]
pub(crate) struct EdgeArrays {
    /// The target, and in the lowest bit whether the edge is weak.
    pub(crate) targets: Vec<u32>,
    pub(crate) labels: Vec<u32>,
    pub(crate) kinds: Vec<u8>,
}

impl EdgeArrays {
    pub(crate) fn push(&mut self, target: u32, is_weak: bool, label: u32, kind: u8) {
        self.targets.push(target << 1 | u32::from(is_weak));
        self.labels.push(label);
        self.kinds.push(kind);
    }
}

/// Whether the label of an edge of this kind is an index, in all versions of V8.
pub(crate) fn is_indexed(kind: &str) -> bool {
    matches!(kind, "element" | "hidden")
}

/// Whether the name of a node of this kind is that of its class.
pub(crate) fn names_class(kind: &str) -> bool {
    matches!(kind, "object" | "native" | "synthetic")
}

impl Snapshot {
    /// Reads `source` to its end, and checks all of it.
    ///
    /// # Errors
    ///
    /// A fault, if the file is not a whole snapshot. No index or count of the file is believed
    /// unchecked, and memory grows only with the bytes read.
    pub fn read(source: Source) -> Result<Self, Fault> {
        reading::read(source)
    }

    /// The nodes. There is at least one, the root.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// The number of edges, weak ones included.
    pub fn edge_count(&self) -> usize {
        self.edges.targets.len()
    }

    /// What is known of each node.
    pub fn facts(&self) -> Facts {
        self.facts
    }

    /// The process that wrote the file: a text that no other one has. Only standstill tells it.
    pub fn process(&self) -> Option<&str> {
        self.process.as_deref()
    }

    /// The edges out of `node`.
    pub fn edges_of(&self, node: usize) -> impl ExactSizeIterator<Item = Edge> {
        self.range_of(node).map(|edge| self.edge(edge))
    }

    fn range_of(&self, node: usize) -> std::ops::Range<usize> {
        let start = node.checked_sub(1).map_or(0, |before| self.nodes[before].end);
        start as usize..self.nodes[node].end as usize
    }

    fn edge(&self, edge: usize) -> Edge {
        let EdgeArrays { targets, labels, kinds } = &self.edges;
        let (target, label, kind) = (targets[edge], labels[edge], kinds[edge]);
        let label =
            if self.is_indexed[kind as usize] { Label::Index(label) } else { Label::Name(label) };
        Edge { target: target >> 1, kind, label, is_weak: target & 1 == 1 }
    }

    /// A string: up to 80 characters of it, because some objects are named after the text they
    /// hold, or up to 4,000 if it names a class. A cut one ends in `…`.
    pub fn string(&self, number: u32) -> &str {
        &self.strings[number as usize]
    }

    /// The name of a node.
    pub fn name_of(&self, node: usize) -> &str {
        self.string(self.nodes[node].name)
    }

    /// The name of the kind of a node, such as `object`.
    pub fn node_kind(&self, kind: u8) -> &str {
        &self.node_kinds[kind as usize]
    }

    /// The name of the kind of an edge, such as `property`.
    pub fn edge_kind(&self, kind: u8) -> &str {
        &self.edge_kinds[kind as usize]
    }

    /// The label of an edge as text, such as `.sessions` or `[3]`.
    pub fn field(&self, edge: Edge) -> String {
        match edge.label {
            Label::Index(index) => format!("[{index}]"),
            Label::Name(name) => format!(".{}", self.string(name)),
        }
    }

    /// The class of a node: its name if it is an object, and otherwise its kind, because a string
    /// is named after its text.
    pub fn class_of(&self, node: usize) -> Class {
        let Node { name, kind, .. } = self.nodes[node];
        if names_class(self.node_kind(kind)) {
            Class(name)
        } else {
            Class(self.strings.len() as u32 + u32::from(kind))
        }
    }

    /// The name of a class, such as `Session` or `(string)`.
    pub fn class_name(&self, class: Class) -> String {
        match (class.0 as usize).checked_sub(self.strings.len()) {
            None => self.string(class.0).to_owned(),
            Some(kind) => match self.node_kinds[kind].as_str() {
                "hidden" => "(system)".to_owned(),
                "closure" => "Function".to_owned(),
                "code" => "(compiled code)".to_owned(),
                "regexp" => "RegExp".to_owned(),
                other => format!("({other})"),
            },
        }
    }

    /// The id of a node, or its number if the file has no ids.
    pub fn id_of(&self, node: usize) -> u64 {
        if self.facts.ids { self.nodes[node].id } else { node as u64 }
    }

    /// The first node with an id, if there is one.
    pub fn node_with_id(&self, id: u64) -> Option<usize> {
        (0..self.nodes.len()).find(|&node| self.id_of(node) == id)
    }

    /// The number of nodes that strong edges lead to from the root, the root included.
    pub fn reachable(&self) -> usize {
        let mut reached = vec![false; self.nodes.len()];
        reached[0] = true;
        let mut count = 0;
        let mut stack = vec![0];
        while let Some(node) = stack.pop() {
            count += 1;
            for edge in self.edges_of(node).filter(|edge| !edge.is_weak()) {
                if !std::mem::replace(&mut reached[edge.target()], true) {
                    stack.push(edge.target());
                }
            }
        }
        count
    }
}

/// Weak edges hold nothing, so they are none here.
impl Digraph for Snapshot {
    fn nodes(&self) -> usize {
        self.nodes.len()
    }

    fn edges_of(&self, node: u32) -> std::ops::Range<usize> {
        self.range_of(node as usize)
    }

    fn target(&self, edge: usize) -> Option<u32> {
        let target = self.edges.targets[edge];
        (target & 1 == 0).then_some(target >> 1)
    }
}
