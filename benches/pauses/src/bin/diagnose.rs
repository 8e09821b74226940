//! What a look into a heap costs: the longest stop, and the whole time.

use std::num::NonZero;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use clap::Parser;
use pauses::machine::describe;
use pauses::random::SplitMix;
use standstill::{Gc, GcCell, Heap, Mutator, Pacing, Trace};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

/// Measures surveys, graphs and snapshots of a random graph, beside a full collection.
#[derive(Parser)]
struct Options {
    /// Objects in the heap.
    #[arg(long, default_value_t = 1_000_000)]
    n: usize,
    /// How often each is measured. The medians are shown.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Small and short: whether it works.
    #[arg(long)]
    quick: bool,
    /// The folder for snapshots.
    #[arg(long, default_value = "target/pauses")]
    out: PathBuf,
}

#[derive(Default, Trace)]
struct Node {
    edges: [GcCell<Option<Gc<Node>>>; 4],
}

/// Four random edges an object. All are reachable from the first one.
fn build(m: &Mutator, n: usize) -> Gc<Node> {
    let nodes: Vec<Gc<Node>> = (0..n).map(|_| m.alloc(Node::default())).collect();
    let mut random = SplitMix::new(1);
    for at in 1..n {
        nodes[random.below(at)].edges[random.below(3)].set(m, Some(nodes[at].clone()));
        nodes[at].edges[3].set(m, Some(nodes[random.below(n)].clone()));
        // An edge that was replaced may have been the only one.
        nodes[at - 1].edges[3].set(m, Some(nodes[at].clone()));
    }
    nodes[0].clone()
}

/// The longest stop since the last look, in microseconds.
static LONGEST: AtomicU64 = AtomicU64::new(0);

/// Keeps the longest stop of which an event `resumed` tells.
struct Stops;

impl Visit for Stops {
    fn record_debug(&mut self, _: &Field, _: &dyn std::fmt::Debug) {}

    fn record_u64(&mut self, field: &Field, value: u64) {
        if field.name() == "stopped_us" {
            LONGEST.fetch_max(value, Ordering::Relaxed);
        }
    }
}

impl Subscriber for Stops {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event() && metadata.target() == "standstill"
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_non_zero_u64(NonZero::<u64>::MIN)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        event.record(&mut Self);
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}

fn main() -> std::io::Result<()> {
    let mut options = Options::parse();
    if options.quick {
        (options.n, options.rounds) = (20_000, 1);
    }
    std::fs::create_dir_all(&options.out)?;
    let file = options.out.join("diagnose.heapsnapshot");
    let heap = Heap::builder().pacing(Pacing::manual()).build().expect("a heap");
    let mut m = heap.attach();
    let root = build(&m, options.n);
    m.collect();
    tracing::subscriber::set_global_default(Stops).expect("the first");
    println!("{}\n\n{} objects, medians of {}\n", describe(), options.n, options.rounds);
    println!("| | longest stop, ms | whole, ms |\n|---|---|---|");
    let mut measure = |name: &str, f: &mut dyn FnMut(&mut Mutator)| {
        let rounds = (0..options.rounds).map(|_| {
            LONGEST.store(0, Ordering::Relaxed);
            let begun = Instant::now();
            f(&mut m);
            (Duration::from_micros(LONGEST.load(Ordering::Relaxed)), begun.elapsed())
        });
        let (stops, whole) = rounds.unzip();
        let [stop, whole] = [median(stops), median(whole)].map(|time| time.as_secs_f64() * 1e3);
        println!("| {name} | {stop:.1} | {whole:.0} |");
    };
    measure("full collection", &mut |m| drop(m.collect()));
    measure("census", &mut |m| drop(m.census()));
    measure("graph", &mut |m| drop(m.graph()));
    measure("snapshot", &mut |m| m.snapshot(&file).expect("a snapshot"));
    let bytes = std::fs::metadata(&file)?.len();
    println!("\nThe file has {:.1} MB.", bytes as f64 / 1e6);
    std::fs::remove_file(file)?;
    drop(root);
    Ok(())
}
