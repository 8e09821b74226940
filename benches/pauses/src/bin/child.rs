//! Full collections whose search runs in a child of the process, beside those that search in a
//! stop: the longest stop, and the whole time.

use std::time::{Duration, Instant};

use clap::Parser;
use pauses::machine::describe;
use pauses::random::SplitMix;
use standstill::{Collect, CollectionReport, Gc, GcCell, Heap, Mutator, Pacing, Trace};

/// Measures full collections of a random graph, with garbage in rings of 100 objects.
#[derive(Parser)]
struct Options {
    /// Live objects.
    #[arg(long, default_value_t = 1_000_000)]
    n: usize,
    /// How often each is measured, by turns. The medians are shown.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Small and short: whether it works.
    #[arg(long)]
    quick: bool,
}

#[derive(Default, Trace)]
struct Node {
    edges: [GcCell<Option<Gc<Node>>>; 4],
}

/// Objects of a ring.
const RING: usize = 100;

/// Live objects, and handles of the rings that lie between them.
fn build(m: &Mutator, n: usize, rings: usize) -> (Gc<Node>, Vec<Gc<Node>>) {
    let every = n / rings.max(1);
    let (mut nodes, mut held) = (Vec::new(), Vec::new());
    for at in 0..n {
        if rings > 0 && at % every == 0 {
            held.push(ring(m));
        }
        nodes.push(m.alloc(Node::default()));
    }
    let mut random = SplitMix::new(1);
    for at in 1..n {
        nodes[random.below(at)].edges[random.below(3)].set(m, Some(nodes[at].clone()));
        nodes[at].edges[3].set(m, Some(nodes[random.below(n)].clone()));
        // An edge that was replaced may have been the only one.
        nodes[at - 1].edges[3].set(m, Some(nodes[at].clone()));
    }
    (nodes[0].clone(), held)
}

fn ring(m: &Mutator) -> Gc<Node> {
    let mut random = SplitMix::new(2);
    let nodes: Vec<Gc<Node>> = (0..RING).map(|_| m.alloc(Node::default())).collect();
    for at in 0..RING {
        nodes[at].edges[0].set(m, Some(nodes[(at + 1) % RING].clone()));
        nodes[at].edges[1].set(m, Some(nodes[random.below(RING)].clone()));
    }
    nodes[0].clone()
}

fn median(mut times: Vec<Duration>) -> f64 {
    times.sort_unstable();
    times[times.len() / 2].as_secs_f64() * 1e3
}

fn main() {
    let mut options = Options::parse();
    if options.quick {
        (options.n, options.rounds) = (20_000, 1);
    }
    println!("{}\n\n{} live objects, medians of {}\n", describe(), options.n, options.rounds);
    println!(
        "| garbage | search | first stop, ms | longest other, ms | stops | whole, ms | search of the child, ms |"
    );
    println!("|---|---|---|---|---|---|---|");
    for percent in [0, 1, 20] {
        let rings = options.n * percent / 100 / RING;
        for forked in [false, true] {
            let heap = Heap::builder().pacing(Pacing::manual()).build().expect("a heap");
            let mut m = heap.attach();
            let (mut first, mut longest, mut whole, mut child) =
                (Vec::new(), Vec::new(), Vec::new(), Vec::new());
            let mut stops = 0;
            for _ in 0..options.rounds {
                let (live, held) = build(&m, options.n, rings);
                // So that all objects are old.
                m.collect();
                drop(held);
                let begun = Instant::now();
                let what = Collect::full().forked(forked);
                let report: CollectionReport = m.try_collect(what).expect("a collection");
                whole.push(begun.elapsed());
                assert_eq!(report.collected, rings * RING);
                first.push(report.stops[0]);
                longest.push(report.stops[1..].iter().max().copied().unwrap_or_default());
                child.push(report.child.map_or(Duration::ZERO, |child| child.took));
                stops = report.stops.len();
                if forked && let Some(reason) = report.no_child {
                    println!("no child: {reason}");
                }
                drop(live);
                m.collect();
            }
            let name = if forked { "in a child" } else { "in a stop" };
            let [first, longest, whole, child] = [first, longest, whole, child].map(median);
            println!(
                "| {percent} % | {name} | {first:.1} | {longest:.1} | {stops} | {whole:.0} | {child:.0} |"
            );
        }
    }
}
