//! The time and the memory of dominators and retained sizes of large graphs.
//!
//! ```text
//! cargo run --release -p standstill-heap --example large -- 10000000
//! ```
//!
//! Each node has 4 edges. In the graph `random` they lead anywhere, so that nearly every read
//! misses the caches. In `list` one leads to the next node, and the others back, so that the search
//! is as deep as the graph is large. The memory is what the process took beyond the graph itself.

use std::ops::Range;
use std::time::Instant;

use standstill::diagnose::{Digraph, Dominators};

use crate::random::Random;

#[path = "../../tests/common/random.rs"]
mod random;

const EDGES: usize = 4;

struct Graph {
    targets: Vec<u32>,
}

impl Digraph for Graph {
    fn nodes(&self) -> usize {
        self.targets.len() / EDGES
    }

    fn edges_of(&self, node: u32) -> Range<usize> {
        let first = node as usize * EDGES;
        first..first + EDGES
    }

    fn target(&self, edge: usize) -> Option<u32> {
        Some(self.targets[edge])
    }
}

/// The most memory of the process so far, in bytes. 0 where the system does not tell it.
fn peak() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.and_then(|line| line.trim().trim_end_matches(" kB").parse().ok()).unwrap_or(0) * 1024
}

fn main() {
    let nodes: usize = std::env::args().nth(1).map_or(1_000_000, |n| n.parse().expect("a number"));
    assert!(nodes > 0, "a graph has a node");
    for name in ["random", "list"] {
        let mut random = Random(1);
        let mut targets = Vec::with_capacity(nodes * EDGES);
        for node in 0..nodes {
            let limit = if name == "list" { node + 1 } else { nodes };
            let first =
                if name == "list" { (node + 1).min(nodes - 1) } else { random.below(nodes) };
            targets.push(first as u32);
            targets.extend((1..EDGES).map(|_| random.below(limit) as u32));
        }
        let graph = Graph { targets };
        let before = peak();
        let start = Instant::now();
        let dominators = Dominators::of(&graph, &[0]);
        let found = start.elapsed();
        let mut bytes = vec![64u64; nodes];
        dominators.add_up(&mut bytes);
        let (all, memory) = (start.elapsed(), peak().saturating_sub(before));
        println!(
            "{name}: {} of {nodes} nodes reached, dominators {:.2} s, with retained sizes {:.2} s, \
             {:.1} bytes a node, the root retains {}",
            dominators.order().len(),
            found.as_secs_f64(),
            all.as_secs_f64(),
            memory as f64 / nodes as f64,
            bytes[0],
        );
    }
}
