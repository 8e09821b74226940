//! The objects that look like a leak, by the rule of Eclipse's Memory Analyzer.
//!
//! An object that no other one dominates and that retains more than a share of the heap is a
//! suspect, and so are the others of one class, if they retain that much together. From a suspect
//! the tree leads down, as long as a single child keeps most of it, to the *accumulation point*:
//! there the memory is spread over many objects, so there something piles up.
//!
//! In a linked list each node keeps nearly all that the one before it keeps, and the point would be
//! a node near its end. So a list is taken as a whole, and its point is the object that holds it.

use std::collections::HashMap;
use std::fmt;

use serde::Serialize;

use crate::paths::{Path, Paths};
use crate::snapshot::Class;
use crate::text::{grouped, plain, share};
use crate::tree::{Object, Tree};

/// A child that keeps more than this percentage of what its parent retains is followed.
const MOST_OF_IT: u64 = 80;
/// The classes that are named of what lies below an accumulation point.
const CLASSES: usize = 3;
/// The fewest objects of one class, each in the one before, that are a list.
const SHORTEST_LIST: usize = 10;

/// All suspects.
#[derive(Debug, Serialize)]
pub struct Suspects {
    /// The bytes of all reachable objects.
    pub total: u64,
    /// Those that retain most first.
    pub suspects: Vec<Suspect>,
}

/// An object, or the objects of a class, that retain much.
#[derive(Debug, Serialize)]
pub struct Suspect {
    /// The class.
    pub class: String,
    /// The number of objects. 1 if it is a single one.
    pub objects: usize,
    /// The bytes that they retain together.
    pub retained_bytes: u64,
    /// The object, or the one of the group that retains most.
    pub largest: Object,
    /// Where the memory of that object piles up. If that is a list, the next object above it that
    /// is of another class.
    pub accumulation_point: Object,
    /// The list, if the memory piles up in one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub list: Option<LinkedList>,
    /// The classes of the objects right below that point: number, retained bytes, name.
    pub below: Vec<(usize, u64, String)>,
    /// The shortest path to that point, or to the first object of the list.
    pub path: Path,
}

/// Objects of one class, each of which dominates the next.
#[derive(Debug, Serialize)]
pub struct LinkedList {
    /// The class.
    pub class: String,
    /// The number of objects.
    pub objects: usize,
    /// The bytes that the first one retains.
    pub retained_bytes: u64,
    /// How the accumulation point refers to the list, such as `.first`.
    pub field: String,
}

impl Suspects {
    /// Looks for what retains at least `percent` of the reachable bytes.
    pub fn of(tree: &Tree<'_>, percent: u64) -> Self {
        let snapshot = tree.snapshot;
        let is_much = |bytes: u64| bytes > 0 && of_hundred(bytes) >= percent * tree.total();
        let paths = Paths::of(tree);
        let mut suspects = Vec::new();
        let mut groups: HashMap<Class, (usize, u64, usize)> = HashMap::new();
        for node in tree.tops() {
            if is_much(tree.retained(node)) {
                suspects.extend(Suspect::of(&paths, tree, node, 1, tree.retained(node)));
            } else {
                // The first one retains most.
                let group = groups.entry(snapshot.class_of(node)).or_insert((node, 0, 0));
                group.1 += tree.retained(node);
                group.2 += 1;
            }
        }
        for (node, bytes, count) in groups.into_values() {
            if is_much(bytes) {
                suspects.extend(Suspect::of(&paths, tree, node, count, bytes));
            }
        }
        suspects.sort_by(|a, b| {
            b.retained_bytes.cmp(&a.retained_bytes).then_with(|| a.class.cmp(&b.class))
        });
        Self { total: tree.total(), suspects }
    }
}

/// The number of objects in the list from `first` on. `None`: what `point`, one of them, keeps is
/// not mainly the rest of a list.
fn list_length(tree: &Tree<'_>, first: usize, point: usize) -> Option<usize> {
    let next = next_of_class(tree, point)?;
    let count = || std::iter::successors(Some(first), |&node| next_of_class(tree, node)).count();
    (2 * tree.retained(next) > tree.retained(point))
        .then(count)
        .filter(|&count| count >= SHORTEST_LIST)
}

/// The object right below `node` that keeps most of what all those of the same class keep.
fn next_of_class(tree: &Tree<'_>, node: usize) -> Option<usize> {
    let class = tree.snapshot.class_of(node);
    let mut same = tree.children(node).filter(|&child| tree.snapshot.class_of(child) == class);
    let next = same.next()?;
    let all = tree.retained(next) + same.map(|child| tree.retained(child)).sum::<u64>();
    (of_hundred(tree.retained(next)) >= MOST_OF_IT * all).then_some(next)
}

/// Sizes of a snapshot sum up to less than 2^53, so this does not overflow.
fn of_hundred(bytes: u64) -> u64 {
    bytes * 100
}

impl Suspect {
    fn of(
        paths: &Paths<'_>,
        tree: &Tree<'_>,
        node: usize,
        objects: usize,
        retained_bytes: u64,
    ) -> Option<Self> {
        let snapshot = tree.snapshot;
        let (mut point, mut first) = (node, node);
        // Along objects of one class the share is that of the first: a list loses little at each.
        while let Some(child) = tree.children(point).next()
            && of_hundred(tree.retained(child)) > MOST_OF_IT * tree.retained(first)
        {
            if snapshot.class_of(child) != snapshot.class_of(first) {
                first = child;
            }
            point = child;
        }
        let objects_in_list = list_length(tree, first, point);
        let path = paths.to(if objects_in_list.is_some() { first } else { point })?;
        let list = objects_in_list.map(|objects| {
            let class = snapshot.class_of(first);
            let mut above = std::iter::successors(Some(first), |&node| tree.dominator(node));
            point = above.find(|&node| snapshot.class_of(node) != class).unwrap_or(0);
            LinkedList {
                class: snapshot.class_name(class),
                objects,
                retained_bytes: tree.retained(first),
                field: path.field_of(&tree.object(point)).to_owned(),
            }
        });
        let mut below: HashMap<Class, (usize, u64)> = HashMap::new();
        for child in tree.children(point) {
            let sum = below.entry(snapshot.class_of(child)).or_default();
            sum.0 += 1;
            sum.1 += tree.retained(child);
        }
        let named = |(class, (count, bytes))| (count, bytes, snapshot.class_name(class));
        let mut below: Vec<(usize, u64, String)> = below.into_iter().map(named).collect();
        below.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.2.cmp(&b.2)));
        below.truncate(CLASSES);
        let largest = tree.object(node);
        Some(Self {
            class: largest.class.clone(),
            objects,
            retained_bytes,
            largest,
            accumulation_point: tree.object(point),
            list,
            below,
            path,
        })
    }

    /// Where it piles up, in a few words. `bytes` writes a number of bytes.
    pub fn place(&self, bytes: impl Fn(u64) -> String) -> String {
        let point = &self.accumulation_point;
        let text = match &self.list {
            None => format!("at {point}, {}", bytes(point.retained_bytes)),
            Some(LinkedList { class, objects, retained_bytes, field }) => format!(
                "in a list of {} x {class}, retained {}, held by {point}{field}",
                grouped(*objects as u64),
                bytes(*retained_bytes)
            ),
        };
        plain(&text)
    }

    /// The suspect in a sentence.
    pub fn headline(&self, total: u64) -> String {
        let (bytes, part) = (grouped(self.retained_bytes), share(self.retained_bytes, total));
        let (who, verb) = match self.objects {
            1 => (self.largest.to_string(), "retains"),
            many => (format!("{} x {}", grouped(many as u64), self.class), "retain"),
        };
        plain(&format!("{who} {verb} {bytes} bytes, {part}"))
    }
}

impl fmt::Display for Suspects {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.suspects.is_empty() {
            writeln!(f, "nothing retains that much")?;
        }
        for suspect in &self.suspects {
            writeln!(f, "{}", suspect.headline(self.total))?;
            let bytes = |bytes| format!("{} bytes", grouped(bytes));
            writeln!(f, "  piles up {}", suspect.place(bytes))?;
            let below = if suspect.list.is_some() { &[][..] } else { &suspect.below };
            for (count, bytes, class) in below {
                let (count, bytes) = (grouped(*count as u64), grouped(*bytes));
                writeln!(f, "    in {count} x {}, {bytes} bytes", plain(class))?;
            }
            writeln!(f, "{}", suspect.path)?;
        }
        Ok(())
    }
}
