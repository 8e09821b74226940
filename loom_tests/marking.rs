//! Marking with several workers: the tables of `collect/candidates.rs`.
//!
//! * unmarked, met by two workers, marked: `loom_a_candidate_is_in_the_list_of_one_worker`
//! * marked, and unmarked by another worker's store: `loom_a_plain_mark_loses_no_traversal`
//! * an assumed root that two workers meet: `loom_each_edge_to_an_assumed_root_is_noted`

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use loom::thread;

use super::model;
use crate::collect::candidates::Candidates;
use crate::collect::scope::Scope;
use crate::heap::mark_tables::{FoundRoot, each_bit};
use crate::heap::world::World;
use crate::managed::Managed;
use crate::memory::address_map::Index;
use crate::memory::shape::PAGE_GRANULES;
use crate::report::facts::CollectionKind;
use crate::{Gc, GcCell, Heap, Pacing, Trace, Tracer};

/// A tracked object, so a candidate.
struct Node(GcCell<Option<Gc<Node>>>);

impl Trace for Node {
    fn traverse(this: &Self, tracer: &mut Tracer) {
        Trace::traverse(&this.0, tracer);
    }
}

/// The candidates of a heap with two objects on one page, and the granules of the objects.
fn with_two(f: impl FnOnce(&World<'_, Managed>, Candidates, [usize; 2]) -> Candidates) {
    let heap = Heap::builder().pacing(Pacing::manual()).workers(2).build().unwrap();
    let m = heap.attach();
    let nodes = [0, 1].map(|_| m.alloc(Node(GcCell::new(None))));
    let world = m.raw().stop_here().expect("a stop");
    let space = &world.core().space;
    let scope = Scope::new(space, CollectionKind::Full).expect("memory");
    let candidates = Candidates::new(&world, &scope, 2).expect("memory");
    let granules: Vec<usize> = scope
        .pages()
        .iter()
        .flat_map(|&page| candidates.unmarked_on(page))
        .flat_map(|(first, bits)| {
            let mut found = Vec::new();
            each_bit(first, bits, |granule| found.push(granule));
            found
        })
        .collect();
    let granules: [usize; 2] = granules.try_into().expect("two objects");
    assert_eq!(granules[0] / PAGE_GRANULES, granules[1] / PAGE_GRANULES);
    f(&world, candidates, granules).close(&world, &scope);
    drop(world);
    drop(nodes);
}

/// Addresses that name granules, for workers that are not given the space.
#[derive(Clone, Copy, Debug)]
struct Names;

impl Index for Names {
    fn granule(self, addr: usize) -> usize {
        addr - 1
    }

    unsafe fn cell(self, _: usize) -> NonNull<u8> {
        unreachable!("no object is accessed")
    }

    fn target(self, addr: usize) -> NonNull<u8> {
        NonNull::without_provenance(addr.try_into().expect("not 0"))
    }
}

/// How the workers of a model mark.
#[derive(Clone, Copy, PartialEq)]
enum Way {
    Exactly,
    Plainly,
    /// Exactly, and there are assumed roots.
    BesideAssumed,
}

/// A worker meets edges to `targets`. Returns the granules that it marks, and its entries for edges
/// to assumed roots.
fn mark_all(candidates: &Candidates, way: Way, targets: &[usize]) -> (Vec<usize>, Vec<u32>) {
    let edges: Vec<usize> = targets.iter().map(|target| target + 1).collect();
    let (mut met, mut marked, mut noted) = Default::default();
    let to_assumed = (way == Way::BesideAssumed).then_some(&mut noted);
    candidates
        .mark_all(way != Way::Plainly, &edges, Names, to_assumed, &mut met, &mut marked)
        .expect("memory");
    (marked.iter().map(|object| Names.granule(object.address())).collect(), noted)
}

/// Two workers meet edges to `targets` each. Returns the candidates, and what both have marked and
/// noted, in order.
fn by_two(
    candidates: Candidates,
    way: Way,
    [mine, theirs]: [[usize; 2]; 2],
) -> (Candidates, Vec<usize>, Vec<u32>) {
    let candidates = Arc::new(candidates);
    let other = {
        let candidates = Arc::clone(&candidates);
        thread::spawn(move || mark_all(&candidates, way, &theirs))
    };
    let (mut marked, mut noted) = mark_all(&candidates, way, &mine);
    let (also_marked, also_noted) = other.join().unwrap();
    marked.extend(also_marked);
    noted.extend(also_noted);
    marked.sort_unstable();
    (Arc::into_inner(candidates).expect("no other thread"), marked, noted)
}

/// Two workers meet edges to the same two objects. Each object is in one worker's list.
///
/// Mutations: a worker marks by a load and a store; the load that comes before decides.
#[test]
fn loom_a_candidate_is_in_the_list_of_one_worker() {
    model(|| {
        with_two(|_, candidates, [one, two]| {
            let (candidates, marked, _) =
                by_two(candidates, Way::Exactly, [[one, two], [two, one]]);
            assert_eq!(marked, [one, two]);
            assert!(![one, two].iter().any(|&at| candidates.is_unmarked(at)));
            candidates
        });
    });
}

/// Two workers meet edges to the same two objects, and use plain marks. Each object is marked by a
/// worker, which traverses it, even if the mark is lost.
///
/// Mutation: the mark of one candidate also marks its neighbours.
#[test]
fn loom_a_plain_mark_loses_no_traversal() {
    let losses = Arc::new(AtomicUsize::new(0));
    let lost = Arc::clone(&losses);
    model(move || {
        with_two(|_, candidates, [one, two]| {
            let (candidates, mut marked, _) =
                by_two(candidates, Way::Plainly, [[one, two], [two, one]]);
            marked.dedup();
            assert_eq!(marked, [one, two]);
            let unmarked = [one, two].iter().filter(|&&at| candidates.is_unmarked(at)).count();
            lost.fetch_add(unmarked, Relaxed);
            candidates
        });
    });
    assert!(losses.load(Relaxed) > 0, "no mark was lost");
}

/// Two workers meet an edge each to an assumed root, and to another object. Both edges to the root
/// are noted, and neither worker traverses it again.
///
/// Mutation: edges to assumed roots are not noted.
#[test]
fn loom_each_edge_to_an_assumed_root_is_noted() {
    model(|| {
        with_two(|world, mut candidates, [root, other]| {
            let roots = [FoundRoot { granule: root as u32, inside: 0 }];
            let pages = world.core().space.high_water();
            candidates.assume(pages, &roots, true).expect("memory");
            let (mut candidates, marked, noted) =
                by_two(candidates, Way::BesideAssumed, [[root, other], [other, root]]);
            assert_eq!((marked, noted), (vec![other], vec![root as u32; 2]));
            candidates.assume(pages, &roots, false).expect("memory");
            candidates
        });
    });
}
