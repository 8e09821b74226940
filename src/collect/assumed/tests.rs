//! Tests of `collect/assumed.rs`.

#![forbid(unsafe_code)]

use super::*;
use crate::base::stress::Stress;
use crate::collect::scope::tests::stopped;
use crate::collect::tests::script::{Script, scripted_heap};
use crate::heap::mark_tables::each_bit;
use crate::heap::request::Collect;
use crate::managed::Managed;
use crate::{Gc, GcCell, Heap, Mutator, Pacing, Trace, Tracer};

/// An object with any number of edges.
struct Node(GcCell<Vec<Gc<Node>>>);

impl Trace for Node {
    fn traverse(this: &Self, tracer: &mut Tracer) {
        Trace::traverse(&this.0, tracer);
    }

    fn clear(this: &Self, m: &Mutator) {
        Trace::clear(&this.0, m);
    }
}

fn node(m: &Mutator, edges: &[&Gc<Node>]) -> Gc<Node> {
    m.alloc(Node(GcCell::new(edges.iter().map(|&edge| edge.clone()).collect())))
}

fn link(m: &Mutator, from: &Gc<Node>, to: &Gc<Node>) {
    from.0.lock(m).push(to.clone());
}

/// Runs a test on heaps with one worker and with several, with usual and with small constants.
fn on_heaps(test: impl Fn(&Heap, &mut Mutator)) {
    for workers in [1, 3] {
        for small in [false, true] {
            let stress = Stress::none().small_constants(small);
            let builder = Heap::builder().reserve(1 << 30).workers(workers).serial_below(0);
            let heap = builder.stress(stress).pacing(Pacing::manual()).build().unwrap();
            let mut m = heap.attach();
            test(&heap, &mut m);
            m.collect();
            assert_eq!(heap.stats().live_objects, 0);
        }
    }
}

fn remembered(m: &Mutator) -> Vec<FoundRoot> {
    let roots = m.raw().core().remembered.take();
    m.raw().core().remembered.set(roots.clone());
    roots
}

#[test]
fn roots_are_remembered_with_their_references_from_inside() {
    on_heaps(|_, m| {
        let (held, inner) = (node(m, &[]), node(m, &[]));
        for edges in 0..300 {
            // From the second collection on, the root is assumed.
            assert_eq!(m.collect().collected, 0);
            let granule = m.raw().core().space.granule(Gc::as_ptr(&held).addr());
            let root = FoundRoot { granule: granule as u32, inside: edges };
            assert!(remembered(m).contains(&root), "{edges}");
            link(m, &held, &inner);
            link(m, &inner, &held);
        }
        held.0.set(m, Vec::new());
    });
}

/// An object is held, remembered, and then only a cycle refers to it. Its count is the same.
#[test]
fn an_assumed_root_without_references_from_outside_is_collected() {
    on_heaps(|heap, m| {
        let others: Vec<_> = (0..100).map(|_| node(m, &[])).collect();
        let root = node(m, &[&others[0]]);
        m.collect();
        assert!(remembered(m).len() > 100);
        let ring = node(m, &[&root]);
        link(m, &root, &ring);
        // The ring's edge replaces the handle.
        drop((root, ring));
        assert_eq!(m.collect().collected, 2);
        assert_eq!(heap.stats().live_objects, 100);
        assert_eq!(remembered(m).len(), 100);
        assert_eq!(m.collect().collected, 0);
    });
}

/// Assumed roots that are none reach objects that only they reach, and others.
#[test]
fn what_refuted_roots_reach_is_judged_by_the_other_roots() {
    on_heaps(|heap, m| {
        let n = 50;
        let shared = node(m, &[]);
        let own: Vec<_> = (0..n).map(|_| node(m, &[])).collect();
        let roots: Vec<_> = own.iter().map(|own| node(m, &[own, &shared])).collect();
        drop(own);
        m.collect();
        for (at, root) in roots.iter().enumerate() {
            if at % 2 == 0 {
                let ring = node(m, &[root]);
                link(m, root, &ring);
            }
        }
        let kept: Vec<_> = roots.iter().skip(1).step_by(2).cloned().collect();
        drop(roots);
        assert_eq!(m.collect().collected, 3 * n / 2);
        assert_eq!(heap.stats().live_objects, 1 + n);
        for root in &kept {
            assert_eq!(root.0.lock(m).len(), 2);
        }
    });
}

/// Each attempt meets too many edges to another root.
#[test]
fn traversals_that_refute_one_root_after_the_other_cost_two_attempts() {
    const ROOTS: usize = 20;
    const TRAVERSALS: &str = "ssssssssssssssssssssts";
    let Some(heap) = scripted_heap() else { return };
    let mut m = heap.attach();
    let pairs: Vec<_> = (0..ROOTS)
        .map(|_| {
            let [root, inner] = ['r', 'i'].map(|name| Script::thing(&m, name, "", "s"));
            Script::link(&m, root, inner);
            (0..2).for_each(|_| Script::link(&m, inner, root));
            heap.model().drop_ref(inner, &m);
            (root, inner)
        })
        .collect();
    let full = |m: &mut _| crate::collect::collection::collect(m, Collect::full()).expect("a stop");
    for _ in 0..2 {
        assert_eq!(full(&mut m).unreachable, 0);
    }
    for (at, &(_, inner)) in pairs.iter().enumerate() {
        // The first `at` traversals are right.
        let traversals = &TRAVERSALS[ROOTS - at..];
        Script::of(&m, inner, |thing| (thing.traversals, thing.traversed) = (traversals, 0));
    }
    let report = full(&mut m);
    assert_eq!((report.abandoned, report.unreachable, report.overvisited), (None, 0, 1));
    for (_, inner) in pairs {
        // Two attempts, a count of all candidates, and marking.
        Script::of(&m, inner, |thing| assert!(thing.traversed <= 4, "{}", thing.traversed));
    }
}

#[test]
fn a_remembered_cell_with_another_object_is_judged_by_that_object() {
    on_heaps(|heap, m| {
        let addresses: Vec<_> = (0..20)
            .map(|_| {
                let root = node(m, &[]);
                m.collect();
                Gc::as_ptr(&root)
            })
            .collect();
        // Rings of two, in cells that were roots.
        let rings: Vec<_> = (0..20)
            .map(|_| {
                let one = node(m, &[]);
                link(m, &one, &node(m, &[&one]));
                one
            })
            .collect();
        assert!(rings.iter().any(|ring| addresses.contains(&Gc::as_ptr(ring))));
        m.collect();
        drop(rings);
        assert_eq!((m.collect().collected, heap.stats().live_objects), (40, 0));
    });
}

/// A stopped heap, the granules of its objects, each with one reference, and its candidates.
fn on_candidates(test: impl Fn(&World<'_, Managed>, &[u32], &Candidates)) {
    stopped(|world, scope| {
        let candidates = Candidates::new(world, scope, 1).expect("memory");
        let mut all = Vec::new();
        for &page in scope.pages() {
            for (first, bits) in candidates.unmarked_on(page) {
                each_bit(first, bits, |granule| all.push(granule as u32));
            }
        }
        test(world, &all, &candidates);
        candidates.close(world, scope);
    });
}

#[test]
fn only_unmarked_candidates_with_more_references_are_assumed() {
    on_candidates(|world, all, candidates| {
        let root = |granule, inside| FoundRoot { granule, inside };
        assert!(candidates.mark_alone(all[2] as usize));
        let (no_object, last) = (all[0] + 1, *all.last().expect("some"));
        assert!(!all.contains(&no_object));
        let list = vec![
            root(all[0], 0),
            root(all[1], 1),
            root(all[2], 0),
            root(no_object, 0),
            root(last, 0),
        ];
        world.core().remembered.set(list);
        assert_eq!(take(world, candidates), [root(all[0], 0), root(last, 0)]);
        assert_eq!(take(world, candidates), [], "the list is empty now");
    });
}

#[test]
fn each_edge_is_counted_once_and_each_root_checked() {
    on_candidates(|world, all, _| {
        let table = world.core().space.counts();
        let inside = Inside::new(table);
        let mut targets = vec![all[1], all[3], all[3]];
        inside.count(&mut targets).expect("memory");
        assert_eq!(targets, [], "counted targets leave the list");
        inside.count(&mut targets).expect("memory");
        // More edges than a byte counts.
        (0..300).for_each(|_| inside.count(&mut vec![all[4]]).expect("memory"));
        let counts = [1, 3].map(|at| table[all[at] as usize].load(Ordering::Relaxed));
        assert_eq!(counts, [1, 2]);
        let mut roots: Vec<_> =
            (0..6).map(|at| FoundRoot { granule: all[at], inside: 7 }).collect();
        // Each object has one reference: the test's.
        let proven = check(world, &Adjustments::default(), &mut roots, &inside.into_spills());
        let mut found = roots[..proven].to_vec();
        found.sort_by_key(|root| root.granule);
        assert_eq!(found, [0, 2, 5].map(|at| FoundRoot { granule: all[at], inside: 0 }));
        let mut others: Vec<u32> = roots[proven..].iter().map(|root| root.granule).collect();
        others.sort_unstable();
        assert_eq!(others, [all[1], all[3], all[4]]);
        assert!(all.iter().all(|&at| table[at as usize].load(Ordering::Relaxed) == 0));
    });
}

/// A young collection changes no list. Each collection zeroes the tables, and gives them back.
#[test]
fn a_heap_remembers_a_number_of_roots_and_no_more() {
    on_heaps(|_, m| {
        let mut held: Vec<_> = (0..LEAST).map(|_| node(m, &[])).collect();
        let inner = node(m, &[]);
        held.iter().for_each(|root| link(m, root, &inner));
        (0..3).for_each(|_| link(m, &inner, &held[0]));
        drop(inner);
        for (more, expected) in [(0, LEAST), (1, 0), (0, 0)] {
            held.extend((0..more).map(|_| node(m, &[])));
            for young in [false, true] {
                let report = if young { m.collect_young() } else { m.collect() };
                assert!(young || report.tracked == held.len() + 1);
                assert_eq!(remembered(m).len(), expected);
                assert_tables_are_back(m);
            }
        }
        held.pop();
        m.collect();
        assert_eq!(remembered(m).len(), LEAST, "the list is not empty for ever");
    });
}

fn assert_tables_are_back(m: &Mutator) {
    let core = m.raw().core();
    let (tables, pages) = (core.workers.take_mark_tables(), core.space.high_water());
    assert!(tables.fits(pages), "the memory of the tables is kept");
    assert!(tables.are_zero());
    assert!(core.space.counts().iter().all(|byte| byte.load(Ordering::Relaxed) == 0));
    core.workers.give_mark_tables(tables);
}

#[test]
fn more_roots_than_a_heap_remembers_change_no_result() {
    on_heaps(|heap, m| {
        let n = 3 * LEAST;
        let mut held: Vec<_> = (0..n).map(|_| node(m, &[])).collect();
        (1..n).for_each(|at| link(m, &held[at - 1], &held[at]));
        for _ in 0..3 {
            assert_eq!(m.collect().collected, 0);
            assert_eq!(remembered(m), []);
        }
        link(m, &held[n - 1], &held[0]);
        let middle = held.swap_remove(n / 2);
        drop(held);
        assert_eq!((m.collect().collected, heap.stats().live_objects), (0, n));
        drop(middle);
        assert_eq!(m.collect().collected, n);
    });
}

#[test]
fn the_second_attempt_begins_from_the_roots_that_are_left() {
    let Some(heap) = scripted_heap() else { return };
    let mut m = heap.attach();
    let [root, inner, one, other] =
        ['r', 'i', 'o', 'p'].map(|name| Script::thing(&m, name, "", "s"));
    Script::link(&m, root, inner);
    heap.model().drop_ref(inner, &m);
    let full = |m: &mut _| crate::collect::collection::collect(m, Collect::full()).expect("a stop");
    assert_eq!(full(&mut m).unreachable, 0);
    // Two assumptions fail: the references from outside become a ring.
    Script::link(&m, one, other);
    Script::link(&m, other, one);
    [one, other].iter().for_each(|&object| heap.model().drop_ref(object, &m));
    let before = Script::of(&m, inner, |thing| thing.traversed);
    assert_eq!(full(&mut m).unreachable, 2);
    let traversed = Script::of(&m, inner, |thing| thing.traversed) - before;
    assert_eq!(traversed, 2, "once in each attempt, and never to count its edges");
    heap.model().drop_ref(root, &m);
}
