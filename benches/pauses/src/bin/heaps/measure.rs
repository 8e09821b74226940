//! One measurement of ours, in a process of its own.

use std::error::Error;
use std::path::Path;
use std::time::{Duration, Instant};

use clap::ValueEnum;
use pauses::ideal;
use standstill::{AnyGc, Heap, Mutator, Pacing};

use crate::figures::Figures;
use crate::graph::Graph;
use crate::typed;

/// The rows of the table beside CPython's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, ValueEnum)]
pub(crate) enum Contestant {
    /// Edges in a `Vec`; the collector knows counts alone
    Vec,
    /// Edges in a `Vec`; the root is named to the collector
    VecNamed,
    /// Edges in the object; the collector knows counts alone
    Inline,
    /// Edges in the object; the root is named to the collector
    InlineNamed,
    /// No collector: the mark alone, over a plain graph
    Ideal,
}

impl Contestant {
    /// As in the table.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Vec => "Vec",
            Self::VecNamed => "Vec, root named",
            Self::Inline => "inline",
            Self::InlineNamed => "inline, root named",
            Self::Ideal => "ideal mark",
        }
    }
}

/// Measures, with `collections` of everything held.
pub(crate) fn measure(
    contestant: Contestant,
    graph: &Path,
    workers: usize,
    collections: usize,
) -> Result<Figures, Box<dyn Error>> {
    let graph = Graph::read(graph)?;
    match contestant {
        Contestant::Vec => ours(&graph, typed::with_vec, false, workers, collections),
        Contestant::VecNamed => ours(&graph, typed::with_vec, true, workers, collections),
        Contestant::Inline => ours(&graph, typed::inline, false, workers, collections),
        Contestant::InlineNamed => ours(&graph, typed::inline, true, workers, collections),
        Contestant::Ideal => Ok(ideal(&graph, workers, collections)),
    }
}

fn ours(
    graph: &Graph,
    build: fn(&Mutator, &Graph) -> AnyGc,
    named: bool,
    workers: usize,
    collections: usize,
) -> Result<Figures, Box<dyn Error>> {
    let heap = Heap::builder().workers(workers).pacing(Pacing::manual()).build()?;
    let mut m = heap.attach();
    let root = build(&m, graph);
    let name = named.then(|| heap.known_root(root.clone()));
    let mut figures = Figures::default();

    m.collect(); // the first one finds everything young
    for _ in 0..collections {
        let begun = Instant::now();
        let report = m.collect();
        figures.held_ms.push(ms(begun.elapsed()));
        figures.held_stopped_ms.push(ms(report.stops.iter().sum()));
        if report.unreachable > 0 || report.abandoned.is_some() {
            figures.failed.push(format!("with everything held: {report:?}"));
        }
    }
    if typed::dead() > 0 {
        figures
            .failed
            .push(format!("{} objects were freed while everything was held", typed::dead()));
    }

    let begun = Instant::now();
    drop((name, root));
    let counted = begun.elapsed();
    let report = m.collect();
    let ended = begun.elapsed();
    figures.dropped_ms = Some(ms(ended));
    figures.dropped_collecting_ms = Some(ms(ended - counted));
    figures.dropped_stopped_ms = Some(ms(report.stops.iter().sum()));
    let (dead, live) = (typed::dead(), heap.stats().live_objects);
    if dead != graph.nodes() || live > 0 {
        figures.failed.push(format!(
            "with everything dropped, {dead} of {} destructors ran, {live} objects are left",
            graph.nodes()
        ));
    }
    Ok(figures)
}

fn ideal(graph: &Graph, workers: usize, collections: usize) -> Figures {
    /// Header, lock and length; then a word for each edge.
    fn size(targets: &[u32]) -> u32 {
        32 + 8 * targets.len() as u32
    }
    let sizes: Vec<u32> = graph.targets().map(size).collect();
    let edges: Vec<(u32, u32)> = (0..)
        .zip(graph.targets())
        .flat_map(|(from, targets)| targets.iter().map(move |to| (from, *to)))
        .collect();
    let mut plain = ideal::Graph::new(&sizes, &edges);
    let mut figures = Figures::default();
    plain.mark(&[0], workers); // the first one touches the marks
    for _ in 0..collections {
        let marked = plain.mark(&[0], workers);
        figures.held_ms.push(ms(marked.time));
        if marked.visited != graph.nodes() {
            figures.failed.push(format!(
                "{} of {} nodes were visited",
                marked.visited,
                graph.nodes()
            ));
        }
    }
    figures
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}
