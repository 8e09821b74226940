//! What a snapshot holds, in sum and by class.

use std::collections::HashMap;
use std::fmt;

use serde::Serialize;

use crate::snapshot::{Class, Snapshot};
use crate::text::{grouped, share, table};
use crate::tree::{Object, Tree};

/// A snapshot in numbers.
#[derive(Debug, Serialize)]
pub struct Summary {
    /// All nodes, the root included.
    pub nodes: usize,
    /// All edges.
    pub edges: usize,
    /// Those of the edges that hold nothing alive.
    pub weak_edges: usize,
    /// The bytes of all nodes.
    pub bytes: u64,
    /// The nodes that the root reaches, itself included.
    pub reachable_nodes: usize,
    /// The bytes of those nodes.
    pub reachable_bytes: u64,
    /// The number of classes.
    pub classes: usize,
    /// The strong edges of the root: what is held from outside.
    pub held: usize,
    /// The nodes that have survived a collection, if the file tells it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub old: Option<usize>,
    /// The references from outside, if the file tells them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub outside: Option<u64>,
    /// The objects that retain most.
    pub largest: Vec<Object>,
}

impl Summary {
    /// Sums a snapshot up.
    pub fn of(tree: &Tree<'_>) -> Self {
        let snapshot = tree.snapshot;
        let (nodes, facts) = (snapshot.nodes(), snapshot.facts());
        let edges = || (0..nodes.len()).flat_map(|node| snapshot.edges_of(node));
        let outside = nodes.iter().map(|node| u64::from(node.outside)).sum();
        Self {
            nodes: nodes.len(),
            edges: snapshot.edge_count(),
            weak_edges: edges().filter(|edge| edge.is_weak()).count(),
            bytes: nodes.iter().map(|node| node.size).sum(),
            reachable_nodes: tree.order().count(),
            reachable_bytes: tree.total(),
            classes: by_class(snapshot).len(),
            held: snapshot.edges_of(0).filter(|edge| !edge.is_weak()).count(),
            old: facts.old.then(|| nodes.iter().filter(|node| node.is_old).count()),
            outside: facts.outside.then_some(outside),
            largest: tree.tops().into_iter().take(5).map(|node| tree.object(node)).collect(),
        }
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rows = vec![
            [grouped(self.nodes as u64), "nodes".into()],
            [grouped(self.edges as u64), "edges".into()],
            [grouped(self.weak_edges as u64), "of these weak".into()],
            [grouped(self.bytes), "bytes".into()],
            [grouped(self.reachable_nodes as u64), "nodes reachable from the root".into()],
            [grouped(self.reachable_bytes), "bytes of these".into()],
            [grouped(self.classes as u64), "classes".into()],
            [grouped(self.held as u64), "references of the root".into()],
        ];
        rows.extend(self.old.map(|old| [grouped(old as u64), "old nodes".into()]));
        rows.extend(self.outside.map(|all| [grouped(all), "references from outside".into()]));
        table(f, ["number", "of"], rows)?;
        writeln!(f, "\nWhat retains most:")?;
        objects(f, &self.largest, self.reachable_bytes)
    }
}

/// Writes a table of objects.
pub(crate) fn objects(f: &mut fmt::Formatter<'_>, objects: &[Object], total: u64) -> fmt::Result {
    let rows = objects.iter().map(|object| {
        let retained = object.retained_bytes;
        [grouped(retained), share(retained, total), grouped(object.bytes), object.to_string()]
    });
    table(f, ["retained", "share", "bytes", "object"], rows)
}

/// The objects and bytes of each class.
#[derive(Debug, Serialize)]
pub struct ClassTable {
    /// The classes, those that retain most first.
    pub classes: Vec<ClassRow>,
    /// The classes that are left out.
    pub omitted: usize,
}

/// A class.
#[derive(Clone, Debug, Default, Serialize)]
pub struct ClassRow {
    /// Its name.
    pub class: String,
    /// The number of its objects.
    pub objects: u64,
    /// The bytes that these take themselves.
    pub bytes: u64,
    /// The bytes that would become free without all of them.
    pub retained_bytes: u64,
    /// Those that have survived a collection, if the file tells it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub old: Option<u64>,
    /// The references to them from outside, if the file tells them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub outside: Option<u64>,
}

fn by_class(snapshot: &Snapshot) -> HashMap<Class, ClassRow> {
    let facts = snapshot.facts();
    let mut rows: HashMap<Class, ClassRow> = HashMap::new();
    for (number, node) in snapshot.nodes().iter().enumerate().skip(1) {
        let row = rows.entry(snapshot.class_of(number)).or_default();
        row.objects += 1;
        row.bytes += node.size;
        if facts.old {
            *row.old.get_or_insert(0) += u64::from(node.is_old);
        }
        if facts.outside {
            *row.outside.get_or_insert(0) += u64::from(node.outside);
        }
    }
    rows
}

impl ClassTable {
    /// Counts all nodes but the root, and keeps the `most` first rows.
    pub fn of(tree: &Tree<'_>, most: usize) -> Self {
        let snapshot = tree.snapshot;
        let mut rows = by_class(snapshot);
        // An object below another one of its class is a part of what that one retains. So the walk
        // counts the objects of each class above the node where it is.
        let mut above: HashMap<Class, usize> = HashMap::new();
        let mut walk = vec![(0, tree.children(0))];
        while let Some((node, children)) = walk.last_mut() {
            let Some(child) = children.next() else {
                *above.entry(snapshot.class_of(*node)).or_default() -= usize::from(*node != 0);
                walk.pop();
                continue;
            };
            let class = snapshot.class_of(child);
            let count = above.entry(class).or_default();
            *count += 1;
            if *count == 1 {
                rows.entry(class).or_default().retained_bytes += tree.retained(child);
            }
            walk.push((child, tree.children(child)));
        }
        let named = |(class, row)| ClassRow { class: snapshot.class_name(class), ..row };
        let mut classes: Vec<ClassRow> = rows.into_iter().map(named).collect();
        classes.sort_by(|a, b| {
            let key = |row: &ClassRow| std::cmp::Reverse((row.retained_bytes, row.bytes));
            key(a).cmp(&key(b)).then_with(|| a.class.cmp(&b.class))
        });
        let omitted = classes.len().saturating_sub(most);
        classes.truncate(most);
        Self { classes, omitted }
    }
}

impl fmt::Display for ClassTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let told = |number: Option<u64>| number.map_or_else(|| "-".to_owned(), grouped);
        let rows = self.classes.iter().map(|row| {
            let ClassRow { class, objects, bytes, retained_bytes, old, outside } = row;
            let (objects, bytes) = (grouped(*objects), grouped(*bytes));
            let retained = grouped(*retained_bytes);
            [objects, bytes, retained, told(*old), told(*outside), class.clone()]
        });
        table(f, ["objects", "bytes", "retained", "old", "outside", "class"], rows)?;
        if self.omitted > 0 {
            writeln!(f, "and {} more classes", grouped(self.omitted as u64))?;
        }
        Ok(())
    }
}
