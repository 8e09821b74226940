//! Compares the costs of objects with handlers in C and of typed objects, in one run of
//! `cargo bench -p standstill-capi`.
//!
//! Compiles `objects.c` with `cc` against the static library. Alternates it with the same work on
//! typed objects, and prints medians.

#![allow(missing_docs)]

use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use standstill::{Gc, GcCell, Heap, Mutator, Pacing, Trace};

/// Two fields.
#[derive(Trace)]
struct Pair {
    first: GcCell<Option<Gc<Pair>>>,
    second: GcCell<Option<Gc<Pair>>>,
}

#[derive(Trace)]
struct Tree {
    children: [GcCell<Option<Gc<Tree>>>; 2],
    parent: GcCell<Option<Gc<Tree>>>,
}

fn heap() -> Heap {
    Heap::builder().workers(1).pacing(Pacing::manual()).build().expect("a heap")
}

fn create() -> f64 {
    const N: usize = 2_000_000;
    let heap = heap();
    let m = heap.attach();
    let begun = Instant::now();
    for _ in 0..N {
        black_box(m.alloc(Pair { first: GcCell::default(), second: GcCell::default() }));
    }
    begun.elapsed().as_nanos() as f64 / N as f64
}

fn tree(m: &Mutator, depth: u32) -> Gc<Tree> {
    let node = m.alloc(Tree { children: Default::default(), parent: GcCell::default() });
    if depth > 1 {
        for child in &node.children {
            let below = tree(m, depth - 1);
            below.parent.set(m, Some(node.clone()));
            child.set(m, Some(below));
        }
    }
    node
}

fn collect() -> f64 {
    let heap = heap();
    let mut m = heap.attach();
    let kept = tree(&m, 20);
    let mut best = f64::INFINITY;
    for _ in 0..5 {
        let begun = Instant::now();
        let report = m.collect();
        best = best.min(begun.elapsed().as_nanos() as f64 / report.candidates as f64);
    }
    drop(kept);
    best
}

/// Compiles the C program.
fn compile() -> PathBuf {
    // target/release/deps/objects-0123: the library lies two folders up.
    let this = std::env::current_exe().expect("a path");
    let release = this.parent().and_then(Path::parent).expect("target/release");
    let library = release.join("libstandstill_capi.a");
    // A bench builds the library for Rust alone.
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
    let target = release.parent().expect("target");
    let status = Command::new(cargo)
        .args(["build", "--release", "-q", "-p", "standstill-capi"])
        .env("CARGO_TARGET_DIR", target)
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .status()
        .expect("cargo");
    assert!(status.success(), "the library does not build");
    let program = release.join("standstill-bench-objects");
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let status = Command::new("cc")
        .args(["-std=c11", "-O2", "-Wall", "-Wextra", "-I"])
        .arg(here.join("include"))
        .arg(here.join("benches/objects.c"))
        .arg(library)
        .args(["-lpthread", "-ldl", "-lm", "-o"])
        .arg(&program)
        .status()
        .expect("a C compiler");
    assert!(status.success(), "objects.c does not compile");
    program
}

fn run(program: &Path, work: &str, kind: &str) -> f64 {
    let output = Command::new(program).args([work, kind]).output().expect("the C program");
    assert!(output.status.success(), "objects {work} {kind}: {output:?}");
    String::from_utf8_lossy(&output.stdout).trim().parse().expect("a number")
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn main() {
    let rounds: usize = std::env::args().find_map(|word| word.parse().ok()).unwrap_or(7);
    let program = compile();
    println!(
        "{rounds} rounds, medians in ns an object; the ratio is to the typed object beside it"
    );
    println!("| work | C | typed | ratio | goal |");
    println!("|---|---:|---:|---:|---:|");
    type Row = (&'static str, &'static str, &'static str, fn() -> f64, f64);
    let rows: [Row; 5] = [
        ("create + release, static type, generic path", "create", "generic", create, 1.5),
        ("create + track + release, static type", "create", "static", create, 1.5),
        ("create + track + release, heap type", "create", "heap", create, 2.5),
        ("full collection of a tree, 1M, static type", "collect", "static", collect, 1.6),
        ("full collection of a tree, 1M, heap type", "collect", "heap", collect, f64::NAN),
    ];
    for (name, work, kind, typed, goal) in rows {
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        for _ in 0..rounds {
            ours.push(run(&program, work, kind));
            theirs.push(typed());
        }
        let (c, rust) = (median(&mut ours), median(&mut theirs));
        let goal = if goal.is_nan() { String::new() } else { goal.to_string() };
        println!("| {name} | {c:.1} | {rust:.1} | {:.2} | {goal} |", c / rust);
    }
}
