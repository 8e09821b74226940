//! Larger graphs, and all small ones: exactly the unreachable objects are collected.

use standstill::{Collect, CollectionReport, Heap, Pacing};

use crate::common::*;

fn heap() -> Heap {
    Heap::builder().reserve(1 << 30).pacing(Pacing::manual()).build().unwrap()
}

/// Random graphs around the threshold of connectivity, with some held objects. Exactly the
/// unreachable objects are collected, over many rounds in which edges and handles come and go.
fn large_graphs(lab: &Lab, n: usize, rounds: u64) {
    let mut m = lab.heap.attach();
    let mut rng = Rng::new(n as u64);
    for round in 0..rounds {
        let all: Vec<_> = (0..n).map(|name| node(&m, &lab.census, name)).collect();
        let degree = [6, 9, 12, 20][round as usize % 4];
        let mut edges = Vec::new();
        for _ in 0..n * degree / 10 {
            let (from, to) = (rng.below(n), rng.below(n));
            link(&m, &all[from], &all[to]);
            edges.push((from, to));
        }
        if round % 2 == 1 {
            m.collect_young();
        }
        // Some edges go again.
        for _ in 0..n / 20 {
            let from = rng.below(n);
            drop(cut(&m, &all[from]));
            edges.retain(|edge| edge.0 != from);
            if n > 5_000 {
                break; // `retain` is linear
            }
        }
        let mut held: Vec<usize> = (0..n / 50).map(|_| rng.below(n)).collect();
        held.sort_unstable();
        held.dedup();
        let handles: Vec<_> = held.iter().map(|&i| all[i].clone()).collect();
        let before = lab.census.alive();
        drop(all);
        // Unreachable objects outside of cycles have died by count. The other unreachable objects
        // are collected.
        let by_count = before - lab.census.alive();
        let reached = reachable(n, &edges, &held).into_iter().filter(|&seen| seen).count();
        let report = m.try_collect(Collect::full().forked(round % 4 == 3)).unwrap();
        assert_eq!(report.collected + by_count, n - reached, "round {round}: {report:?}");
        assert_eq!(lab.census.alive(), reached);
        assert!(handles.iter().zip(&held).all(|(gc, &name)| gc.name() == name));
        drop(handles);
        let by_count = reached - lab.census.alive();
        assert_eq!(m.collect().collected + by_count, reached);
        m.safepoint();
    }
}

#[test]
fn large_random_graphs() {
    for lab in labs() {
        let _watch = deadline(lab.name);
        let (n, rounds) = if lab.stress { (500, 8) } else { (20_000, 8) };
        large_graphs(&lab, n, rounds);
        assert_eq!(lab.census.alive(), 0);
        assert!(lab.reports().is_empty());
    }
}

/// Twice the same random graph, once with the roots named and once without: every figure of every
/// collection that is no figure of the hint itself is the same.
#[test]
fn u_40_known_roots_change_no_result() {
    fn rounds(lab: &Lab, seed: u64, named: bool) -> Vec<CollectionReport> {
        const N: usize = 3_000;
        let mut m = lab.heap.attach();
        let mut rng = Rng::new(seed);
        let mut all: Vec<_> = (0..N).map(|name| node(&m, &lab.census, name)).collect();
        for _ in 0..N * 3 / 2 {
            link(&m, &all[rng.below(N)], &all[rng.below(N)]);
        }
        all.truncate(40);
        let roots: Vec<_> =
            all.iter().filter(|_| named).map(|gc| lab.heap.known_root(gc.clone())).collect();
        let mut reports = Vec::new();
        for round in 0..12 {
            reports.push(m.collect());
            for _ in 0..3 {
                drop(cut(&m, &all[rng.below(all.len())]));
            }
            reports.push(m.collect_young());
            if round == 5 {
                m.freeze();
            } else if round == 8 {
                m.unfreeze();
            }
        }
        drop((all, roots));
        reports.push(m.collect());
        m.verify().expect("a sound heap");
        reports
    }
    for (plain, hinted) in labs().into_iter().zip(labs()).filter(|(lab, _)| !lab.stress) {
        let _watch = deadline(plain.name);
        let mut saved = 0;
        for seed in 0..if is_full() { 30 } else { 10 } {
            let with = rounds(&hinted, seed, true);
            let without = rounds(&plain, seed, false);
            saved += with.iter().map(|report| report.known_alive).sum::<usize>();
            assert!(without.iter().all(|report| report.known_alive == 0));
            let facts = |reports: &[CollectionReport]| -> Vec<_> {
                let facts = |r: &CollectionReport| {
                    (
                        r.tracked,
                        r.candidates,
                        r.unreachable,
                        r.collected,
                        r.uncollectable,
                        r.abandoned.clone(),
                    )
                };
                reports.iter().map(facts).collect()
            };
            assert_eq!(facts(&with), facts(&without), "seed {seed}");
        }
        assert!(saved > 3_000, "the hint saved {saved} looks");
        assert_eq!((plain.census.alive(), hinted.census.alive()), (0, 0));
    }
}

#[test]
#[should_panic(expected = "an object of another heap")]
fn a_known_root_of_another_heap_is_refused() {
    let (one, other) = (heap(), heap());
    let foreign = other.attach_scoped(|m| m.alloc(7u32));
    drop(one.known_root(foreign));
}

/// All small graphs: every graph of three objects, with every choice of held objects.
#[test]
fn every_graph_of_three() {
    on_every_heap_attached(|lab, m| {
        // All of them on the plain heap, some of them where a collection costs more.
        let others = if is_full() { 5 } else { 31 };
        for shape in (0..1usize << 9).step_by(if lab.name == "plain" { 1 } else { others }) {
            let edges: Vec<(usize, usize)> =
                (0..9).filter(|bit| shape >> bit & 1 == 1).map(|bit| (bit / 3, bit % 3)).collect();
            for held in 0..8usize {
                let all: Vec<_> = (0..3).map(|name| node(m, &lab.census, name)).collect();
                for &(from, to) in &edges {
                    link(m, &all[from], &all[to]);
                }
                let roots: Vec<usize> = (0..3).filter(|bit| held >> bit & 1 == 1).collect();
                let handles: Vec<_> = roots.iter().map(|&i| all[i].clone()).collect();
                drop(all);
                if held % 2 == 0 {
                    m.collect_young();
                } else {
                    m.collect();
                }
                let reached = reachable(3, &edges, &roots).into_iter().filter(|&seen| seen).count();
                assert_eq!(lab.census.alive(), reached, "edges {edges:?}, held {roots:?}");
                drop(handles);
                m.collect();
                assert_eq!(lab.census.alive(), 0, "edges {edges:?}, held {roots:?}");
            }
        }
    });
}
