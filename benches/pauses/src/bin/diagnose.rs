//! What a look into a heap costs: the longest stop that a second thread sees, and the whole time.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use clap::Parser;
use pauses::machine::describe;
use pauses::random::SplitMix;
use standstill::{Gc, GcCell, Heap, Mutator, Pacing, Trace};

/// Measures surveys, graphs and snapshots of a random graph, beside a full collection.
#[derive(Parser)]
struct Options {
    /// Objects in the heap.
    #[arg(long, default_value_t = 1_000_000)]
    n: usize,
    /// How often each is measured. The medians are shown.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
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

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}

fn main() -> std::io::Result<()> {
    let options = Options::parse();
    std::fs::create_dir_all(&options.out)?;
    let file = options.out.join("diagnose.heapsnapshot");
    let heap = Heap::builder().pacing(Pacing::manual()).build().expect("a heap");
    let mut m = heap.attach();
    let root = build(&m, options.n);
    m.collect();
    let (ends, longest) = (AtomicBool::new(false), AtomicU64::new(0));
    println!("{}\n\n{} objects, medians of {}\n", describe(), options.n, options.rounds);
    println!("| | longest stop, ms | whole, ms |\n|---|---|---|");
    std::thread::scope(|scope| {
        // A thread that does nothing but pass safepoints.
        scope.spawn(|| {
            let mut m = heap.attach();
            let mut last = Instant::now();
            while !ends.load(Ordering::Relaxed) {
                m.safepoint();
                let now = Instant::now();
                longest.fetch_max((now - last).as_nanos() as u64, Ordering::Relaxed);
                last = now;
            }
        });
        let mut measure = |name: &str, f: &mut dyn FnMut(&mut Mutator)| {
            let rounds = (0..options.rounds).map(|_| {
                longest.store(0, Ordering::Relaxed);
                let begun = Instant::now();
                f(&mut m);
                (Duration::from_nanos(longest.load(Ordering::Relaxed)), begun.elapsed())
            });
            let (stops, whole) = rounds.unzip();
            let [stop, whole] = [median(stops), median(whole)].map(|time| time.as_secs_f64() * 1e3);
            println!("| {name} | {stop:.1} | {whole:.0} |");
        };
        measure("nothing, for 100 ms", &mut |m| {
            m.detach(|| std::thread::sleep(Duration::from_millis(100)))
        });
        measure("full collection", &mut |m| drop(m.collect()));
        measure("census", &mut |m| drop(m.census()));
        measure("graph", &mut |m| drop(m.graph()));
        measure("snapshot", &mut |m| m.snapshot(&file).expect("a snapshot"));
        ends.store(true, Ordering::Relaxed);
    });
    let bytes = std::fs::metadata(&file)?.len();
    println!("\nThe file has {:.1} MB.", bytes as f64 / 1e6);
    std::fs::remove_file(file)?;
    drop(root);
    Ok(())
}
