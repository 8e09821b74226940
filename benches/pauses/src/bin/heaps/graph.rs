//! A heap as a bare graph, and the file in which it goes to the processes that measure.
//!
//! The file is a sequence of `u32`, little-endian: the number of nodes, the number of edges, where
//! each node's edges begin (and at last where they end), and the edges' targets.

use std::fs;
use std::io;
use std::path::Path;

use standstill_heap::snapshot::Snapshot;

/// Nodes by number; node 0 is the root, from which all others are reached.
#[derive(Debug, PartialEq)]
pub(crate) struct Graph {
    /// Where each node's edges begin; one more says where the last one's end.
    offsets: Vec<u32>,
    targets: Vec<u32>,
}

impl Graph {
    /// The objects that strong edges reach from the snapshot's root, in the order of the file.
    pub(crate) fn of(snapshot: &Snapshot) -> Self {
        let strong =
            |node| snapshot.edges_of(node).filter(|edge| !edge.is_weak()).map(|edge| edge.target());
        let mut reached = vec![false; snapshot.nodes().len()];
        reached[0] = true;
        let mut stack = vec![0];
        while let Some(node) = stack.pop() {
            for target in strong(node) {
                if !std::mem::replace(&mut reached[target], true) {
                    stack.push(target);
                }
            }
        }

        let nodes: Vec<usize> = (0..reached.len()).filter(|node| reached[*node]).collect();
        let mut number = vec![0; reached.len()];
        for (to, from) in (0..).zip(&nodes) {
            number[*from] = to;
        }
        let (mut offsets, mut targets) = (vec![0], Vec::new());
        for node in nodes {
            targets.extend(strong(node).map(|target| number[target]));
            offsets.push(targets.len() as u32);
        }
        Self { offsets, targets }
    }

    /// The number of nodes.
    pub(crate) fn nodes(&self) -> usize {
        self.offsets.len() - 1
    }

    /// The number of edges.
    pub(crate) fn edges(&self) -> usize {
        self.targets.len()
    }

    /// The targets of each node's edges, node by node.
    pub(crate) fn targets(&self) -> impl Iterator<Item = &[u32]> {
        self.offsets.windows(2).map(|ends| &self.targets[ends[0] as usize..ends[1] as usize])
    }

    /// Writes the file.
    pub(crate) fn write(&self, file: &Path) -> io::Result<()> {
        let head = [self.nodes() as u32, self.edges() as u32];
        let numbers = head.iter().chain(&self.offsets).chain(&self.targets);
        fs::write(file, numbers.flat_map(|number| number.to_le_bytes()).collect::<Vec<u8>>())
    }

    /// Reads a file of [`write`](Self::write).
    pub(crate) fn read(file: &Path) -> io::Result<Self> {
        let bytes = fs::read(file)?;
        let (words, _) = bytes.as_chunks();
        let mut numbers = words.iter().map(|word| u32::from_le_bytes(*word));
        let nodes = numbers.next().unwrap_or_default() as usize;
        let edges = numbers.next().unwrap_or_default() as usize;
        let offsets: Vec<u32> = numbers.by_ref().take(nodes + 1).collect();
        let targets: Vec<u32> = numbers.collect();
        if offsets.last().is_none_or(|end| *end as usize != edges) || targets.len() != edges {
            return Err(io::Error::other("no graph, or a part of one"));
        }
        Ok(Self { offsets, targets })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_written_graph_is_read_and_a_part_of_it_is_refused() {
        let graph = Graph { offsets: vec![0, 2, 2, 3], targets: vec![1, 2, 0] };
        let file = std::env::temp_dir().join(format!("heaps-test-{}.graph", std::process::id()));
        graph.write(&file).unwrap();
        assert_eq!(Graph::read(&file).unwrap(), graph);
        assert_eq!(graph.targets().collect::<Vec<_>>(), [&[1, 2][..], &[], &[0]]);

        let whole = fs::read(&file).unwrap();
        for part in (0..whole.len()).step_by(4) {
            fs::write(&file, &whole[..part]).unwrap();
            assert!(Graph::read(&file).is_err(), "{part} bytes");
        }
        fs::remove_file(&file).unwrap();
    }
}
