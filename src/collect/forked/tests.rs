//! Tests of `collect/forked.rs`: proposals that no honest child makes.

#![forbid(unsafe_code)]

use std::sync::Weak;
use std::sync::atomic::{AtomicBool, Ordering};

use proptest::prelude::*;

use super::*;
use crate::collect::reclaim::CollectorGuard;
use crate::collect::tests::heap;
use crate::collect::tests::script::{Script, collect, scripted_heap};
use crate::safepoint::StopPurpose;
use crate::{Gc, GcCell, Mutator, Trace, Tracer};

/// Refers to others, and knows whether it was cleared.
struct Node {
    edges: GcCell<Vec<Gc<Node>>>,
    cleared: AtomicBool,
    alive: Arc<()>,
}

impl Trace for Node {
    fn traverse(this: &Self, tracer: &mut Tracer) {
        Trace::traverse(&this.edges, tracer);
    }
    fn clear(this: &Self, m: &Mutator) {
        this.cleared.store(true, Ordering::Relaxed);
        Trace::clear(&this.edges, m);
    }
}

/// Collects what `words` propose.
fn collect_proposed(m: &mut Mutator, words: &[u64]) -> CollectionReport {
    let core = Arc::clone(m.raw().core());
    let m = m.raw_mut();
    let waited = collection::acquire_lock(m, StopPurpose::Collection);
    assert!(waited.is_zero());
    let mut collection = Collection::begin(m, CollectorGuard::new(&core), Collect::full());
    open_report::announce(collection.m, &collection.open);
    collection.open.report.child = Some(ChildSearch::default());
    let proposal = Proposal::hostile(words, &core.pace);
    collection.open.rest = Some(Rest::Proposed(proposal));
    collect_parts(&mut collection).unwrap();
    collection.close_by(|m, open| open_report::close(m, open, None))
}

/// The calls of the second stop and later are those of a collection that searches in one stop.
#[test]
fn a_model_is_asked_to_merge_in_each_stop() {
    if !child::is_possible() {
        return;
    }
    let [in_a_stop, in_a_child] = [false, true].map(|forked| {
        let heap = scripted_heap()?;
        let mut m = heap.attach();
        Script::ring(&m, &[('a', ""), ('b', "")]);
        let (report, calls) = collect(&mut m, Collect::full().forked(forked));
        assert_eq!((report.no_child, report.collected), (None, 2));
        Some(calls)
    });
    let (Some(in_a_stop), Some(mut in_a_child)) = (in_a_stop, in_a_child) else { return };
    let first: Vec<_> = in_a_child.drain(1..4).collect();
    assert_eq!(first, ["prepare", "merge", "resumed"]);
    let end = in_a_child.last_mut().expect("the end");
    *end = end.replace("2 stops", "1 stops");
    assert_eq!(in_a_child, in_a_stop);
}

/// The nodes that the held ones reach.
fn reachable(held: &[Gc<Node>], m: &Mutator) -> Vec<Gc<Node>> {
    let (mut seen, mut next) = (Vec::<Gc<Node>>::new(), held.to_vec());
    while let Some(node) = next.pop() {
        if !seen.iter().any(|other| other.header() == node.header()) {
            next.extend(node.edges.lock(m).iter().cloned());
            seen.push(node);
        }
    }
    seen
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 300,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    /// Whatever is proposed, in whatever parts, nothing that is reachable is cleared, and garbage
    /// whose objects are all in one part dies.
    #[test]
    fn a_hostile_proposal_clears_nothing_that_is_alive(
        edges in prop::collection::vec((0_usize..24, 0_usize..24), 0..60),
        held in prop::collection::vec(0_usize..24, 0..4),
        proposed in prop::collection::vec((0_u32..3, 0_usize..40), 0..60),
        wild in prop::collection::vec(any::<u64>(), 0..8),
    ) {
        if !child::is_possible() {
            return Ok(());
        }
        let heap = heap();
        let mut m = heap.attach();
        let node = |_| m.alloc(Node {
            edges: GcCell::default(),
            cleared: AtomicBool::new(false),
            alive: Arc::new(()),
        });
        let nodes: Vec<Gc<Node>> = (0..24).map(node).collect();
        for &(from, to) in &edges {
            nodes[from].edges.lock(&m).push(nodes[to].clone());
        }
        let space = &m.raw().core().space;
        let granules: Vec<u32> =
            nodes.iter().map(|node| space.granule(node.header().as_ptr().addr()) as u32).collect();
        let watched: Vec<Weak<()>> =
            nodes.iter().map(|node| Arc::downgrade(&node.alive)).collect();
        // Some are no objects, but granules beside them.
        let granule =
            |at: usize| granules.get(at).copied().unwrap_or_else(|| granules[at - 20] + 1);
        let mut words: Vec<u64> = proposed
            .iter()
            .map(|&(part, at)| u64::from(part) << 32 | u64::from(granule(at)))
            .chain(wild)
            .collect();
        words.sort_unstable();
        let held: Vec<Gc<Node>> = held.iter().map(|&at| nodes[at].clone()).collect();
        drop(nodes);
        collect_proposed(&mut m, &words);
        for node in reachable(&held, &m) {
            prop_assert!(!node.cleared.load(Ordering::Relaxed));
        }
        let alive = watched.iter().filter(|alive| alive.strong_count() > 0).count();
        prop_assert_eq!(heap.stats().live_objects, alive);
        // All of them in one part, and twice.
        let all: Vec<u64> = granules.iter().map(|&granule| granule.into()).collect();
        collect_proposed(&mut m, &[&all[..], &all].concat());
        let reachable = reachable(&held, &m);
        prop_assert!(reachable.iter().all(|node| !node.cleared.load(Ordering::Relaxed)));
        let alive = watched.iter().filter(|alive| alive.strong_count() > 0).count();
        prop_assert_eq!(alive, reachable.len());
        // Nothing keeps a trace of having been proposed.
        drop((held, reachable));
        m.collect();
        prop_assert_eq!(heap.stats().live_objects, 0);
    }
}
