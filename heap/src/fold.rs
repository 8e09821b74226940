//! A small snapshot for a large one: the objects that retain most, and exact sums of the others.
//!
//! Objects are ranked by what they retain. A dominator ranks above what it dominates, so the best
//! ones form the top of the dominator tree. Each other object belongs to its nearest dominator
//! among them, and all such objects of one class become a single node, such as `1,234 x Session`.
//! An edge is kept if both its ends are. If all paths from an object to one that it dominates led
//! through others, an edge stands for them. So every object that is kept has the same dominator as
//! before, and retains as much.

use std::collections::HashMap;
use std::fmt;
use std::io::{self, Write};

use serde::Serialize;

use crate::snapshot::{Class, Label, is_indexed};
use crate::text::grouped;
use crate::tree::Tree;

/// In the place of a node: none.
const NONE: u32 = u32::MAX;

/// A snapshot with few nodes, ready to be written.
#[derive(Debug)]
pub struct Fold<'t> {
    tree: &'t Tree<'t>,
    /// The number of each node among those that are kept.
    numbers: Vec<u32>,
    /// The sums, each below the node that is kept, or below none.
    sums: Vec<Sum>,
    /// The number of nodes that are kept.
    kept: usize,
}

/// All objects of a class below a node.
#[derive(Debug)]
struct Sum {
    keeper: u32,
    /// `None`: objects of many classes.
    class: Option<Class>,
    objects: u64,
    bytes: u64,
}

/// What a fold has left of a snapshot.
#[derive(Debug, Serialize)]
pub struct Folded {
    /// The nodes that are kept.
    pub kept: usize,
    /// The nodes that stand for others.
    pub sums: usize,
    /// The nodes that they stand for.
    pub summed_up: usize,
}

impl<'t> Fold<'t> {
    /// The root, a sum of all that it reaches, and a sum of the rest.
    pub const LEAST: usize = 3;

    /// Folds so that `most` nodes are left at most, and about as many as possible. If there are
    /// more classes than that, the small ones are summed up together.
    ///
    /// # Panics
    ///
    /// If `most` is less than [`Fold::LEAST`].
    pub fn of(tree: &'t Tree<'t>, most: usize) -> Self {
        assert!(most >= Self::LEAST, "a fold has {} nodes, not {most}", Self::LEAST);
        let mut ranked: Vec<usize> = tree.order().collect();
        ranked.sort_by_key(|&node| std::cmp::Reverse(tree.retained(node)));
        let mut ranks = vec![NONE; tree.snapshot.nodes().len()];
        for (&node, rank) in ranked.iter().zip(0..) {
            ranks[node] = rank;
        }
        let sums = |kept: usize| sums(tree, &ranks, kept as u32);
        let (mut fits, mut too_many) = (1, most.min(ranked.len()));
        let mut best = sums(too_many);
        if too_many + best.len() <= most {
            fits = too_many;
        } else {
            best = sums(fits);
        }
        if fits + best.len() > most {
            best = without_small_classes(best, most - Self::LEAST);
        }
        while too_many - fits > 1 + most / 100 {
            let kept = fits + (too_many - fits) / 2;
            let found = sums(kept);
            if kept + found.len() <= most {
                (fits, best) = (kept, found);
            } else {
                too_many = kept;
            }
        }
        // The nodes that are kept have the order that they had.
        let mut numbers = ranks;
        let mut next = 0;
        for number in &mut numbers {
            let is_kept = (*number as usize) < fits;
            *number = if is_kept { next } else { NONE };
            next += u32::from(is_kept);
        }
        Self { tree, numbers, sums: best, kept: fits }
    }

    /// What is left.
    pub fn folded(&self) -> Folded {
        let summed_up = self.numbers.len() - self.kept;
        Folded { kept: self.kept, sums: self.sums.len(), summed_up }
    }

    /// Writes the snapshot, with the kinds of the one that it was.
    ///
    /// # Errors
    ///
    /// Those of `out`.
    pub fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        let snapshot = self.tree.snapshot;
        let (mut node_kinds, mut edge_kinds) =
            (snapshot.node_kinds.clone(), snapshot.edge_kinds.clone());
        let sum_kind = number_of("object", &mut node_kinds);
        let folded_kind = number_of("internal", &mut edge_kinds);
        let mut strings = Strings::default();
        let mut edges = 0u64;
        let kept = || (0..self.numbers.len()).filter(|&node| self.numbers[node] != NONE);
        let is_linked = self.linked();
        let edges_of = |node: usize, strings: &mut Strings| {
            let mut all = Vec::new();
            for edge in snapshot.edges_of(node) {
                let number = self.numbers[edge.target()];
                if number == NONE {
                    continue;
                }
                let label = match edge.label {
                    Label::Name(name) => strings.number(snapshot.string(name)),
                    Label::Index(index) if is_indexed(snapshot.edge_kind(edge.kind)) => index,
                    Label::Index(_) => strings.number(""),
                };
                all.push((edge.kind, label, number));
            }
            for child in self.tree.children(node).filter(|&child| !is_linked[child]) {
                if self.numbers[child] != NONE {
                    all.push((folded_kind, strings.number("folded path"), self.numbers[child]));
                }
            }
            let first = self.sums.partition_point(|sum| (sum.keeper as usize) < node);
            let own = self.sums[first..].iter().take_while(|sum| sum.keeper as usize == node);
            for (number, _) in (self.kept + first..).zip(own) {
                all.push((folded_kind, strings.number("folded"), number as u32));
            }
            all
        };
        for node in kept() {
            edges += edges_of(node, &mut strings).len() as u64;
        }
        let nodes = self.kept + self.sums.len();
        write!(out, "{{\"snapshot\":{{\"meta\":{{")?;
        write!(out, "\"node_fields\":[\"type\",\"name\",\"id\",\"self_size\",\"edge_count\",")?;
        write!(out, "\"trace_node_id\",\"detachedness\"],\"node_types\":[")?;
        serde_json::to_writer(&mut *out, &node_kinds)?;
        write!(out, ",\"string\"{}],", ",\"number\"".repeat(5))?;
        write!(out, "\"edge_fields\":[\"type\",\"name_or_index\",\"to_node\"],\"edge_types\":[")?;
        serde_json::to_writer(&mut *out, &edge_kinds)?;
        write!(out, ",\"string_or_number\",\"node\"],\"trace_function_info_fields\":[],")?;
        write!(out, "\"trace_node_fields\":[],\"sample_fields\":[],\"location_fields\":[]}},")?;
        write!(out, "\"node_count\":{nodes},\"edge_count\":{edges},\"trace_function_count\":0")?;
        if let Some(process) = snapshot.process() {
            write!(out, ",\"process\":")?;
            serde_json::to_writer(&mut *out, process)?;
        }
        write!(out, "}},")?;
        write!(out, "\n\"nodes\":[")?;
        let mut comma = "";
        for node in kept() {
            let (name, count) =
                (strings.number(snapshot.name_of(node)), edges_of(node, &mut strings).len());
            let (kind, size) = (snapshot.nodes()[node].kind, snapshot.nodes()[node].size);
            write!(out, "{comma}{kind},{name},{},{size},{count},0,0", snapshot.id_of(node))?;
            comma = "\n,";
        }
        let mut id = (0..self.numbers.len()).map(|node| snapshot.id_of(node)).max().unwrap_or(0);
        for Sum { class, objects, bytes, .. } in &self.sums {
            let name = match class {
                Some(class) => format!("{} x {}", grouped(*objects), snapshot.class_name(*class)),
                None => format!("{} x others", grouped(*objects)),
            };
            id = id.wrapping_add(1);
            write!(out, "\n,{sum_kind},{},{id},{bytes},0,0,0", strings.number(&name))?;
        }
        write!(out, "],\n\"edges\":[")?;
        comma = "";
        let stride = 7;
        for node in kept() {
            for (kind, label, number) in edges_of(node, &mut strings) {
                write!(out, "{comma}{kind},{label},{}", u64::from(number) * stride)?;
                comma = "\n,";
            }
        }
        write!(out, "],\n\"trace_function_infos\":[],\"trace_tree\":[],\"samples\":[],")?;
        write!(out, "\"locations\":[],\n\"strings\":")?;
        serde_json::to_writer(&mut *out, &strings.texts)?;
        writeln!(out, "}}")
    }

    /// Which nodes have a strong edge from the node that dominates them.
    fn linked(&self) -> Vec<bool> {
        let mut is_linked = vec![false; self.numbers.len()];
        for node in self.tree.order() {
            for edge in self.tree.snapshot.edges_of(node).filter(|edge| !edge.is_weak()) {
                let target = edge.target();
                is_linked[target] |= self.tree.dominator(target) == Some(node);
            }
        }
        is_linked
    }
}

/// The sums of the nodes whose rank is not below `kept`, in the order of their keepers.
fn sums(tree: &Tree<'_>, ranks: &[u32], kept: u32) -> Vec<Sum> {
    let snapshot = tree.snapshot;
    let mut keepers = vec![NONE; ranks.len()];
    for node in tree.order() {
        let above = || tree.dominator(node).map_or(NONE, |above| keepers[above]);
        keepers[node] = if ranks[node] < kept { node as u32 } else { above() };
    }
    let mut sums: HashMap<(u32, Class), (u64, u64)> = HashMap::new();
    for (node, &keeper) in keepers.iter().enumerate().filter(|(node, _)| ranks[*node] >= kept) {
        let sum = sums.entry((keeper, snapshot.class_of(node))).or_default();
        *sum = (sum.0 + 1, sum.1 + snapshot.nodes()[node].size);
    }
    let sum =
        |((keeper, class), (objects, bytes))| Sum { keeper, class: Some(class), objects, bytes };
    let mut sums: Vec<Sum> = sums.into_iter().map(sum).collect();
    sums.sort_by_key(|sum| (sum.keeper, sum.class));
    sums
}

/// The `most` largest sums, and for each keeper one of the others.
fn without_small_classes(mut sums: Vec<Sum>, most: usize) -> Vec<Sum> {
    sums.sort_by_key(|sum| (std::cmp::Reverse(sum.bytes), sum.keeper, sum.class));
    let mut others: Vec<Sum> = Vec::new();
    for small in sums.drain(most..) {
        match others.iter_mut().find(|sum| sum.keeper == small.keeper) {
            Some(sum) => {
                sum.objects += small.objects;
                sum.bytes += small.bytes;
            }
            None => others.push(Sum { class: None, ..small }),
        }
    }
    sums.append(&mut others);
    sums.sort_by_key(|sum| (sum.keeper, sum.class));
    sums
}

fn number_of(kind: &str, kinds: &mut Vec<String>) -> u8 {
    let number = kinds.iter().position(|it| it == kind).unwrap_or_else(|| {
        // The reader takes 256 kinds, and the last one of so many stands for another.
        kinds.truncate(255);
        kinds.push(kind.to_owned());
        kinds.len() - 1
    });
    number as u8
}

/// Strings by their numbers.
#[derive(Default)]
struct Strings {
    texts: Vec<String>,
    numbers: HashMap<String, u32>,
}

impl Strings {
    fn number(&mut self, text: &str) -> u32 {
        if let Some(&number) = self.numbers.get(text) {
            return number;
        }
        let number = self.texts.len() as u32;
        self.texts.push(text.to_owned());
        self.numbers.insert(text.to_owned(), number);
        number
    }
}

impl fmt::Display for Folded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let numbers = [self.kept, self.sums, self.summed_up].map(|number| grouped(number as u64));
        let [kept, sums, summed_up] = numbers;
        writeln!(f, "{kept} objects are kept, and {sums} sums stand for {summed_up} others")
    }
}
