//! What has grown from one snapshot of a process to a later one, and which references hold it.
//!
//! An object is *new* if the earlier snapshot has none of its class with its id. All that is old
//! becomes a single node, from which references lead to new objects. In the dominator tree of this
//! graph, what such a reference retains would be free without it. For example, a registry of the
//! earlier snapshot refers to 1,000 new sessions with their carts: the 1,000 references have one
//! holder and one class, so they are a single answer, which retains all that.

use std::collections::HashMap;
use std::fmt;
use std::ops::Range;

use serde::Serialize;
use standstill::diagnose::{Digraph, Dominators};

use crate::snapshot::{Class, Edge, Snapshot};
use crate::text::{grouped, plain, share, table};
use crate::tree::{Object, Tree};

/// What the comparison needs of the earlier snapshot.
#[derive(Debug)]
pub struct Before {
    /// The id of each node, and the number of its class, sorted.
    objects: Vec<(u64, u32)>,
    classes: Vec<Change>,
    numbers: HashMap<String, u32>,
}

/// The difference of two snapshots of a process.
#[derive(Debug, Serialize)]
pub struct Diff {
    /// The classes with new or gone objects or other bytes, those that grew most first.
    pub classes: Vec<Change>,
    /// The classes that are left out, or have not changed.
    pub omitted: usize,
    /// The objects that are new.
    pub new_objects: u64,
    /// Their bytes.
    pub new_bytes: u64,
    /// The bytes of those that strong references hold.
    pub held_bytes: u64,
    /// The references that hold most of these, in the order in which they cover the most of it.
    pub holds: Vec<Hold>,
}

/// A class in both snapshots.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Change {
    /// Its name.
    pub class: String,
    /// Its objects in the earlier snapshot, and their bytes.
    pub before: (u64, u64),
    /// The same in the later one.
    pub after: (u64, u64),
    /// The objects that are new.
    pub new_objects: u64,
    /// The objects that are gone.
    pub gone_objects: u64,
}

impl Change {
    fn growth(&self) -> i64 {
        // The sizes of a snapshot sum up to less than 2^53.
        self.after.1 as i64 - self.before.1 as i64
    }
}

/// All references from one old object to new objects of one class.
#[derive(Debug, Serialize)]
pub struct Hold {
    /// The old object, or the root.
    pub holder: Object,
    /// The name of the reference, if all have the same.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub field: Option<String>,
    /// The number of references.
    pub references: usize,
    /// The class of the new objects.
    pub class: String,
    /// The new bytes that would be free without these references.
    pub retained_bytes: u64,
    /// The new bytes that these references and those before them in the list lead to.
    pub covered_bytes: u64,
}

impl Before {
    /// Takes ids and classes out of a snapshot. `None`: it has no ids.
    pub fn of(snapshot: &Snapshot) -> Option<Self> {
        if !snapshot.facts().ids {
            return None;
        }
        let mut this = Self { objects: Vec::new(), classes: Vec::new(), numbers: HashMap::new() };
        let mut known = HashMap::new();
        for (at, node) in snapshot.nodes().iter().enumerate().skip(1) {
            let number = this.number(snapshot, snapshot.class_of(at), &mut known);
            this.objects.push((node.id, number));
            let before = &mut this.classes[number as usize].before;
            *before = (before.0 + 1, before.1 + node.size);
        }
        this.objects.sort_unstable();
        Some(this)
    }

    fn number(
        &mut self,
        snapshot: &Snapshot,
        class: Class,
        known: &mut HashMap<Class, u32>,
    ) -> u32 {
        *known.entry(class).or_insert_with(|| {
            let name = snapshot.class_name(class);
            *self.numbers.entry(name.clone()).or_insert_with(|| {
                self.classes.push(Change { class: name, ..Change::default() });
                self.classes.len() as u32 - 1
            })
        })
    }
}

/// The new objects, with everything old as node 0. Then come the groups of references, and then the
/// new objects.
struct Growth<'s> {
    snapshot: &'s Snapshot,
    /// Of each node of the snapshot its number here; 0 if it is old.
    numbers: Vec<u32>,
    /// The node of the snapshot behind each new object.
    new: Vec<u32>,
    groups: Vec<Group>,
    /// The targets of the groups, one group after the other, each group sorted. A target is there
    /// once for each reference.
    targets: Vec<u32>,
}

struct Group {
    holder: u32,
    class: Class,
    /// One of the references.
    edge: Edge,
    has_one_label: bool,
    /// Where its targets are.
    range: Range<usize>,
}

impl<'s> Growth<'s> {
    fn of(tree: &Tree<'s>, is_new: &[bool]) -> Self {
        let snapshot = tree.snapshot;
        let new: Vec<u32> =
            (0..is_new.len() as u32).filter(|&node| is_new[node as usize]).collect();
        let mut groups: Vec<Group> = Vec::new();
        let mut targets = Vec::new();
        for holder in tree.order().filter(|&node| !is_new[node]) {
            let edges = snapshot.edges_of(holder);
            let mut found: Vec<(Class, Edge)> = edges
                .filter(|edge| !edge.is_weak() && is_new[edge.target()])
                .map(|edge| (snapshot.class_of(edge.target()), edge))
                .collect();
            found.sort_by_key(|&(class, edge)| (class, edge.target()));
            for of_class in found.chunk_by(|a, b| a.0 == b.0) {
                let (class, edge) = of_class[0];
                let start = targets.len();
                targets.extend(of_class.iter().map(|(_, edge)| edge.target() as u32));
                groups.push(Group {
                    holder: holder as u32,
                    class,
                    edge,
                    has_one_label: of_class.iter().all(|(_, other)| other.label == edge.label),
                    range: start..targets.len(),
                });
            }
        }
        let mut numbers = vec![0; is_new.len()];
        for (&node, number) in new.iter().zip(1 + groups.len() as u32..) {
            numbers[node as usize] = number;
        }
        targets.iter_mut().for_each(|target| *target = numbers[*target as usize]);
        Self { snapshot, numbers, new, groups, targets }
    }
}

/// The edges of node 0, those of groups, and those of the snapshot, in this order.
impl Digraph for Growth<'_> {
    fn nodes(&self) -> usize {
        1 + self.groups.len() + self.new.len()
    }

    fn edges_of(&self, node: u32) -> Range<usize> {
        let (node, groups) = (node as usize, self.groups.len());
        let (offset, range) = match node.checked_sub(1 + groups) {
            _ if node == 0 => (0, 0..groups),
            None => (groups, self.groups[node - 1].range.clone()),
            Some(new) => {
                (groups + self.targets.len(), Digraph::edges_of(self.snapshot, self.new[new]))
            }
        };
        offset + range.start..offset + range.end
    }

    fn target(&self, edge: usize) -> Option<u32> {
        let (groups, all) = (self.groups.len(), self.groups.len() + self.targets.len());
        if edge < groups {
            return Some(edge as u32 + 1);
        }
        if edge < all {
            return Some(self.targets[edge - groups]);
        }
        let target = Digraph::target(self.snapshot, edge - all)?;
        Some(self.numbers[target as usize]).filter(|&number| number != 0)
    }
}

impl Diff {
    /// Compares. `holds` covers at least `percent` of the new bytes that are held, and it and
    /// `classes` have `most` entries at most. `None`: the later snapshot has no ids.
    pub fn of(mut before: Before, tree: &Tree<'_>, percent: u64, most: usize) -> Option<Self> {
        let snapshot = tree.snapshot;
        if !snapshot.facts().ids {
            return None;
        }
        let mut known = HashMap::new();
        let mut is_new = vec![false; snapshot.nodes().len()];
        for (at, node) in snapshot.nodes().iter().enumerate().skip(1) {
            let number = before.number(snapshot, snapshot.class_of(at), &mut known);
            is_new[at] = before.objects.binary_search(&(node.id, number)).is_err();
            let change = &mut before.classes[number as usize];
            change.after = (change.after.0 + 1, change.after.1 + node.size);
            change.new_objects += u64::from(is_new[at]);
        }
        let mut classes = before.classes;
        for change in &mut classes {
            let Change { before, after, new_objects, .. } = *change;
            change.gone_objects = (before.0 + new_objects).saturating_sub(after.0);
        }
        let count = classes.len();
        classes.retain(|change| {
            change.new_objects > 0 || change.gone_objects > 0 || change.growth() != 0
        });
        classes.sort_by(|a, b| b.growth().cmp(&a.growth()).then_with(|| a.class.cmp(&b.class)));
        let new_objects = classes.iter().map(|change| change.new_objects).sum();
        classes.truncate(most);
        let sizes = snapshot.nodes().iter().zip(&is_new).filter(|(_, is_new)| **is_new);
        let new_bytes = sizes.map(|(node, _)| node.size).sum();
        let (held_bytes, holds) = holds(tree, &is_new, percent, most);
        let omitted = count - classes.len();
        Some(Self { classes, omitted, new_objects, new_bytes, held_bytes, holds })
    }
}

/// The new bytes that are held, and the references that hold most of them.
fn holds(tree: &Tree<'_>, is_new: &[bool], percent: u64, most: usize) -> (u64, Vec<Hold>) {
    let snapshot = tree.snapshot;
    let growth = Growth::of(tree, is_new);
    let dominators = Dominators::of(&growth, &[0]);
    let mut retained = vec![0; growth.nodes()];
    let first_new = 1 + growth.groups.len();
    for (&node, bytes) in growth.new.iter().zip(&mut retained[first_new..]) {
        *bytes = snapshot.nodes()[node as usize].size;
    }
    dominators.add_up(&mut retained);
    let held = retained[0];
    // What several groups hold together is retained by none of them. So that it counts, too, the
    // order is that of what a group retains, and what it shares with others.
    let reach = |group: &Group| -> u64 {
        let targets = growth.targets[group.range.clone()].chunk_by(|a, b| a == b);
        let shared = targets.map(|same| same[0]).filter(|&it| dominators.of_node(it) == Some(0));
        shared.map(|target| retained[target as usize]).sum()
    };
    let mut order: Vec<(u64, usize)> = (0..growth.groups.len())
        .map(|at| (retained[at + 1].saturating_add(reach(&growth.groups[at])), at))
        .collect();
    order.sort_by_key(|&(bytes, at)| (std::cmp::Reverse(bytes), at));
    let mut is_covered = vec![false; growth.nodes()];
    let mut covered = 0;
    let mut holds = Vec::new();
    for (_, at) in order {
        if covered * 100 >= percent * held || holds.len() == most {
            break;
        }
        let before = covered;
        let mut open = vec![at as u32 + 1];
        while let Some(node) = open.pop() {
            for target in growth.edges_of(node).filter_map(|edge| growth.target(edge)) {
                if !std::mem::replace(&mut is_covered[target as usize], true) {
                    let node = growth.new[target as usize - first_new];
                    covered += snapshot.nodes()[node as usize].size;
                    open.push(target);
                }
            }
        }
        if covered > before {
            let group = &growth.groups[at];
            holds.push(Hold {
                holder: tree.object(group.holder as usize),
                field: group.has_one_label.then(|| snapshot.field(group.edge)),
                references: group.range.len(),
                class: snapshot.class_name(group.class),
                retained_bytes: retained[at + 1],
                covered_bytes: covered,
            });
        }
    }
    (held, holds)
}

impl fmt::Display for Hold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { holder, field, references, class, .. } = self;
        let count = grouped(*references as u64);
        write!(f, "{holder} {} -> {count} x {class}", field.as_deref().unwrap_or("[...]"))
    }
}

impl fmt::Display for Diff {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rows = self.classes.iter().map(|change| {
            let Change { class, new_objects, gone_objects, after, .. } = change;
            let growth = change.growth();
            let sign = if growth < 0 { "-" } else { "+" };
            let growth = format!("{sign}{}", grouped(growth.unsigned_abs()));
            let (new, gone) = (grouped(*new_objects), grouped(*gone_objects));
            [growth, new, gone, grouped(after.0), class.clone()]
        });
        table(f, ["bytes", "new", "gone", "now", "class"], rows)?;
        if self.omitted > 0 {
            writeln!(f, "and {} more classes", grouped(self.omitted as u64))?;
        }
        let (objects, bytes) = (grouped(self.new_objects), grouped(self.new_bytes));
        writeln!(f, "\n{objects} objects with {bytes} bytes are new.")?;
        writeln!(f, "{} of these bytes are held, by", grouped(self.held_bytes))?;
        for hold in &self.holds {
            let covered = share(hold.covered_bytes, self.held_bytes);
            let retained = grouped(hold.retained_bytes);
            writeln!(f, "  {}", plain(&hold.to_string()))?;
            writeln!(f, "    retains {retained}; up to here {covered}")?;
        }
        Ok(())
    }
}
