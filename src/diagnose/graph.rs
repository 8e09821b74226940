//! All objects and references of a heap, as tables.
//!
//! A question about paths needs the whole graph, and no stop should last as long as the answer. So
//! the workers of a survey copy objects and edges into tables of their own, which are joined when
//! the world runs again.
//!
//! For example, worker 1 visits A and B, with an edge from A to B, and worker 2 visits C, with one
//! to A. The tables of both hold addresses. Joined, the nodes are A, B and C, in the order of their
//! addresses, the edges are those from 0 to 1 and from 2 to 0, and the name of each field is stored
//! once.

#![forbid(unsafe_code)]

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::num::Saturating;

use crate::base::fallible::{self, NoMemory};
use crate::diagnose::dominators::{Digraph, Dominators};
use crate::diagnose::survey::{SurveyVisitor, Surveyed, TypeNames};
use crate::memory::shape::PAGE_SIZE;
use crate::object::handle_places::{self, HandlePlace};

/// A copy of all objects and references of a heap, at the moment of a stop.
#[derive(Debug)]
pub struct HeapGraph {
    pub(super) types: TypeNames,
    /// In the order of their addresses.
    pub(super) nodes: Vec<GraphNode>,
    /// Where the edges of each node begin, and one more.
    pub(super) starts: Vec<usize>,
    pub(super) targets: Vec<u32>,
    fields: Vec<u32>,
    /// The names of fields.
    pub(super) names: Vec<String>,
    /// The nodes that have labels, in their order.
    pub(super) labels: Vec<(u32, String)>,
    /// Those that are held by counted references from outside, with the places of handles.
    places: Vec<(u32, Vec<HandlePlace>)>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct GraphNode {
    pub(super) address: usize,
    pub(super) bytes: usize,
    pub(super) external_bytes: usize,
    /// At most `u32::MAX`.
    pub(super) outside: u32,
    pub(super) number: u32,
    pub(super) type_number: u32,
    pub(super) is_held: bool,
    pub(super) is_old: bool,
}

/// The part of one worker.
#[derive(Default)]
pub(super) struct GraphPart {
    nodes: Vec<GraphNode>,
    /// Where the edges of each node end.
    ends: Vec<usize>,
    /// The addresses of the targets.
    targets: Vec<usize>,
    fields: Vec<u32>,
    names: Vec<String>,
    labels: Vec<(u32, String)>,
    places: Vec<(u32, Vec<HandlePlace>)>,
    numbers: HashMap<String, u32>,
}

impl GraphPart {
    fn name(&mut self, name: &str) -> Result<u32, NoMemory> {
        if let Some(&number) = self.numbers.get(name) {
            return Ok(number);
        }
        let number = self.names.len() as u32;
        self.numbers.try_reserve(1)?;
        fallible::push(&mut self.names, fallible::owned(name)?)?;
        self.numbers.insert(fallible::owned(name)?, number);
        Ok(number)
    }
}

impl SurveyVisitor for GraphPart {
    fn object(&mut self, object: &Surveyed<'_>) -> Result<(), NoMemory> {
        let mut last: Option<(&str, u32)> = None;
        for (target, name) in object.references() {
            let number = match last {
                Some((before, number)) if std::ptr::eq(before, name) => number,
                _ => self.name(name)?,
            };
            last = Some((name, number));
            fallible::push(&mut self.targets, target)?;
            fallible::push(&mut self.fields, number)?;
        }
        fallible::push(&mut self.ends, self.targets.len())?;
        if !object.label.is_empty() {
            let label = (self.nodes.len() as u32, fallible::owned(object.label)?);
            fallible::push(&mut self.labels, label)?;
        }
        if object.outside > 0 {
            let places = handle_places::places(object.address)?;
            if !places.is_empty() {
                fallible::push(&mut self.places, (self.nodes.len() as u32, places))?;
            }
        }
        let node = GraphNode {
            address: object.address,
            bytes: object.bytes,
            external_bytes: object.external_bytes,
            outside: u32::try_from(object.outside).unwrap_or(u32::MAX),
            number: object.number,
            type_number: object.type_number,
            is_held: object.is_held,
            is_old: !object.flags.is_young(),
        };
        fallible::push(&mut self.nodes, node)
    }
}

/// An object that is held from outside.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Holder {
    /// The name of its type.
    pub type_name: String,
    /// Its label. Empty: it has none, or the graph was made without labels.
    pub label: String,
    /// Its address.
    pub address: usize,
    /// The references to it from outside. 0: it is held without a counted reference.
    pub outside: usize,
    /// With the feature `handle-places`: where handles to it were made, those from outside among
    /// them. Otherwise empty.
    pub places: Vec<HandlePlace>,
    /// The bytes that would become free without it: its own, and those of all objects that are
    /// reachable through it alone, in the heap and outside.
    pub retained_bytes: usize,
    /// The number of these objects, with itself.
    pub retained_objects: usize,
}

/// A path through the heap, from an object that is held from outside.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Path {
    /// The references from outside to the first object.
    pub outside: usize,
    /// As [`Holder::places`], of the first object.
    pub places: Vec<HandlePlace>,
    /// The objects, the first one being held from outside.
    pub steps: Vec<PathStep>,
}

impl Path {
    /// The path of an object whose destruction has begun, although handles to it exist.
    pub(crate) fn dying(type_name: &str, address: usize) -> Self {
        let (field, label, type_name) = (String::new(), String::new(), type_name.to_owned());
        Self {
            outside: 1,
            places: Vec::new(),
            steps: vec![PathStep { field, type_name, label, address }],
        }
    }
}

/// An object on a [`Path`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PathStep {
    /// The field of the object before that refers to this one. Empty for the first object, and if
    /// the name is unknown.
    pub field: String,
    /// The name of its type.
    pub type_name: String,
    /// Its label. Empty: it has none, or the graph was made without labels.
    pub label: String,
    /// Its address.
    pub address: usize,
}

/// For example `outside (2 references) -> app.Registry .sessions -> app.Session "alice"`.
impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.outside {
            0 => f.write_str("outside")?,
            1 => f.write_str("outside (1 reference)")?,
            many => write!(f, "outside ({many} references)")?,
        }
        for (at, place) in self.places.iter().enumerate() {
            write!(f, "{} {place}", if at == 0 { ", handles made at" } else { "," })?;
        }
        for PathStep { field, type_name, label, .. } in &self.steps {
            let dot = if field.is_empty() { "" } else { " ." };
            write!(f, "{dot}{field} -> {type_name}")?;
            if !label.is_empty() {
                write!(f, " {label:?}")?;
            }
        }
        Ok(())
    }
}

/// What a list in the order of nodes has for a node.
fn of_node<T>(list: &[(u32, T)], node: usize) -> Option<&T> {
    let at = list.binary_search_by_key(&node, |&(node, _)| node as usize).ok()?;
    Some(&list[at].1)
}

/// The node at an address, for millions of edges: by page, and then among the nodes on the page.
struct NodeIndex<'a> {
    order: &'a [(usize, u32, u32)],
    /// Where the nodes of each page begin and end.
    pages: HashMap<usize, (u32, u32)>,
}

impl<'a> NodeIndex<'a> {
    fn of(order: &'a [(usize, u32, u32)]) -> Result<Self, NoMemory> {
        let mut pages = HashMap::new();
        for (node, &(address, ..)) in order.iter().enumerate() {
            pages.try_reserve(1)?;
            pages.entry(address / PAGE_SIZE).or_insert((node as u32, 0)).1 = node as u32 + 1;
        }
        Ok(Self { order, pages })
    }

    fn node(&self, address: usize) -> Option<u32> {
        let &(first, end) = self.pages.get(&(address / PAGE_SIZE))?;
        let nodes = &self.order[first as usize..end as usize];
        let at = nodes.binary_search_by_key(&address, |&(address, ..)| address).ok()?;
        Some(first + at as u32)
    }
}

impl HeapGraph {
    pub(super) fn of(parts: Vec<GraphPart>, types: TypeNames) -> Result<Self, NoMemory> {
        let mut order: Vec<(usize, u32, u32)> = Vec::new();
        for (number, part) in parts.iter().enumerate() {
            let nodes = part.nodes.iter().enumerate();
            order.try_reserve(nodes.len())?;
            order.extend(nodes.map(|(at, node)| (node.address, number as u32, at as u32)));
        }
        order.sort_unstable();
        let (mut names, mut numbers) = (Vec::new(), HashMap::new());
        let mut of_part: Vec<Vec<u32>> = Vec::new();
        for part in &parts {
            let mut of_names = Vec::new();
            for name in &part.names {
                let known = numbers.get(&name[..]).copied();
                let number = known.unwrap_or(names.len() as u32);
                if known.is_none() {
                    numbers.try_reserve(1)?;
                    numbers.insert(&name[..], number);
                    fallible::push(&mut names, fallible::owned(name)?)?;
                }
                fallible::push(&mut of_names, number)?;
            }
            fallible::push(&mut of_part, of_names)?;
        }
        let (mut nodes, mut starts) = (Vec::new(), Vec::new());
        nodes.try_reserve_exact(order.len())?;
        starts.try_reserve_exact(order.len() + 1)?;
        starts.push(0);
        let (targets, fields) = (Vec::new(), Vec::new());
        let (labels, places) = (Vec::new(), Vec::new());
        let mut this = Self { types, nodes, starts, targets, fields, names, labels, places };
        let index = NodeIndex::of(&order)?;
        for &(_, number, at) in &order {
            let (part, at) = (&parts[number as usize], at as usize);
            let node = this.nodes.len() as u32;
            if let Some(label) = of_node(&part.labels, at) {
                fallible::push(&mut this.labels, (node, fallible::owned(label)?))?;
            }
            if let Some(places) = of_node(&part.places, at) {
                fallible::push(
                    &mut this.places,
                    (node, fallible::collect(places.iter().copied())?),
                )?;
            }
            this.nodes.push(part.nodes[at]);
            let start = if at == 0 { 0 } else { part.ends[at - 1] };
            for edge in start..part.ends[at] {
                if let Some(node) = index.node(part.targets[edge]) {
                    let field = of_part[number as usize][part.fields[edge] as usize];
                    fallible::push(&mut this.targets, node)?;
                    fallible::push(&mut this.fields, field)?;
                }
            }
            this.starts.push(this.targets.len());
        }
        Ok(this)
    }

    /// The number of objects.
    pub fn objects(&self) -> usize {
        self.nodes.len()
    }

    /// The number of references between them.
    pub fn references(&self) -> usize {
        self.targets.len()
    }

    /// The references of the object at an address, each with the name of the field, which is empty
    /// if it is unknown, and the address of the target. There are none if no object is there.
    pub fn references_of(&self, address: usize) -> impl Iterator<Item = (&str, usize)> {
        let node = self.nodes.binary_search_by_key(&address, |node| node.address).ok();
        node.into_iter().flat_map(|node| self.edges_of(node)).map(|(target, field)| {
            (&self.names[field as usize][..], self.nodes[target as usize].address)
        })
    }

    /// The edges of a node: the target, and the number of the name of the field.
    pub(super) fn edges_of(&self, node: usize) -> impl Iterator<Item = (u32, u32)> {
        let range = self.starts[node]..self.starts[node + 1];
        self.targets[range.clone()].iter().copied().zip(self.fields[range].iter().copied())
    }

    fn type_name(&self, node: usize) -> Result<String, NoMemory> {
        fallible::owned(self.types.name(self.nodes[node].type_number))
    }

    /// The label of a node, which may be empty.
    fn label(&self, node: usize) -> Result<String, NoMemory> {
        fallible::owned(of_node(&self.labels, node).map_or("", |label| label))
    }

    fn places(&self, node: usize) -> Result<Vec<HandlePlace>, NoMemory> {
        fallible::collect(of_node(&self.places, node).map_or(&[][..], |it| it).iter().copied())
    }

    /// The objects that are held from outside, those that retain the most bytes first.
    pub fn holders(&self) -> Vec<Holder> {
        self.try_holders().unwrap_or_else(NoMemory::abort_process)
    }

    /// Like [`holders`](Self::holders), but returns an error when memory is refused.
    #[doc(hidden)]
    pub fn try_holders(&self) -> Result<Vec<Holder>, NoMemory> {
        let held = |&node: &u32| self.nodes[node as usize].is_held;
        let mut roots: Vec<u32> = Vec::new();
        for root in (0..self.nodes.len() as u32).filter(held) {
            fallible::push(&mut roots, root)?;
        }
        let dominators = Dominators::try_of(self, &roots)?;
        // What a program tells of its external bytes may be wrong.
        let all =
            self.nodes.iter().map(|node| Saturating(node.bytes) + Saturating(node.external_bytes));
        let mut bytes: Vec<Saturating<usize>> = fallible::collect(all)?;
        dominators.add_up(&mut bytes);
        let mut objects = fallible::collect(self.nodes.iter().map(|_| 1))?;
        dominators.add_up(&mut objects);
        let mut holders: Vec<Holder> = Vec::new();
        for &node in &roots {
            let at = node as usize;
            let (retained_bytes, retained_objects) = (bytes[at].0, objects[at]);
            let GraphNode { address, outside, .. } = self.nodes[at];
            fallible::push(
                &mut holders,
                Holder {
                    type_name: self.type_name(at)?,
                    label: self.label(at)?,
                    address,
                    outside: outside as usize,
                    places: self.places(at)?,
                    retained_bytes,
                    retained_objects,
                },
            )?;
        }
        let order = |holder: &Holder| (std::cmp::Reverse(holder.retained_bytes), holder.address);
        holders.sort_unstable_by_key(order);
        Ok(holders)
    }

    /// The shortest path to the object at an address from another one that is held from outside. If
    /// there is none, the path is the object itself. `None`: the object is not reachable, so it is
    /// garbage; or no object is there.
    pub fn why_alive(&self, address: usize) -> Option<Path> {
        self.try_why_alive(address).unwrap_or_else(NoMemory::abort_process)
    }

    /// Like [`why_alive`](Self::why_alive), but returns an error when memory is refused.
    #[doc(hidden)]
    pub fn try_why_alive(&self, address: usize) -> Result<Option<Path>, NoMemory> {
        let goal = self.nodes.binary_search_by_key(&address, |node| node.address);
        let Ok(goal) = goal else { return Ok(None) };
        // How the search came to each node: from which node, and by which field.
        let mut came: Vec<Option<(u32, u32)>> = fallible::collect(self.nodes.iter().map(|_| None))?;
        let mut queue: VecDeque<usize> = VecDeque::new();
        for root in (0..self.nodes.len()).filter(|&node| self.nodes[node].is_held && node != goal) {
            came[root] = Some((root as u32, 0));
            queue.try_reserve(1)?;
            queue.push_back(root);
        }
        while came[goal].is_none()
            && let Some(node) = queue.pop_front()
        {
            for (target, field) in self.edges_of(node) {
                let place = &mut came[target as usize];
                if place.is_none() {
                    *place = Some((node as u32, field));
                    queue.try_reserve(1)?;
                    queue.push_back(target as usize);
                }
            }
        }
        let is_alive = came[goal].is_some() || self.nodes[goal].is_held;
        is_alive.then(|| self.path(goal, &came)).transpose()
    }

    fn path(&self, goal: usize, came: &[Option<(u32, u32)>]) -> Result<Path, NoMemory> {
        let mut steps = Vec::new();
        let mut node = goal;
        loop {
            let (from, field) = came[node].unwrap_or((node as u32, 0));
            let is_first = from as usize == node;
            let step = PathStep {
                field: fallible::owned(if is_first { "" } else { &self.names[field as usize] })?,
                type_name: self.type_name(node)?,
                label: self.label(node)?,
                address: self.nodes[node].address,
            };
            fallible::push(&mut steps, step)?;
            if is_first {
                break;
            }
            node = from as usize;
        }
        steps.reverse();
        let outside = self.nodes[node].outside as usize;
        Ok(Path { outside, places: self.places(node)?, steps })
    }
}

impl Digraph for HeapGraph {
    fn nodes(&self) -> usize {
        self.nodes.len()
    }

    fn edges_of(&self, node: u32) -> std::ops::Range<usize> {
        self.starts[node as usize]..self.starts[node as usize + 1]
    }

    fn target(&self, edge: usize) -> Option<u32> {
        Some(self.targets[edge])
    }
}
