//! Marking with several workers: the tables of `collect/candidates.rs`.
//!
//! * unmarked, seen by two workers, marked: `loom_a_seen_candidate_is_marked_once`
//! * seen while another worker takes the page: the same
//! * unmarked, marked at once by two workers: `loom_a_candidate_is_marked_once_without_its_page`
//! * some candidates of a word marked meanwhile: `loom_a_word_loses_a_candidate_to_another_worker`
//! * marked, and unmarked by another worker's store: `loom_a_plain_mark_loses_no_traversal`

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use loom::thread;

use super::Model;
use crate::base::event::CollectionKind;
use crate::collect::candidates::{Candidates, WorkerMarks};
use crate::collect::scope::Scope;
use crate::heap::mark_tables::{WORD, each_bit};
use crate::memory::address_map::Index;
use crate::memory::space::PAGE_GRANULES;
use crate::{Gc, GcCell, Heap, Pacing, Trace, Tracer};

/// A tracked object, so a candidate.
struct Node(GcCell<Option<Gc<Node>>>);

impl Trace for Node {
    fn traverse(this: &Self, tracer: &mut Tracer) {
        Trace::traverse(&this.0, tracer);
    }
}

/// The candidates of a heap with two objects on one page, and the granules of the objects.
fn with_two(f: impl FnOnce(Arc<Candidates>, [usize; 2])) {
    let heap = Heap::builder().pacing(Pacing::manual()).workers(2).build().unwrap();
    let m = heap.attach();
    let nodes = [0, 1].map(|_| m.alloc(Node(GcCell::new(None))));
    let world = m.raw().stop_here().expect("a stop");
    let space = &world.core().space;
    let scope = Scope::new(space, CollectionKind::Full).expect("memory");
    let candidates = Arc::new(Candidates::new(&world, &scope, 2).expect("memory"));
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
    f(Arc::clone(&candidates), granules);
    Arc::into_inner(candidates).expect("no other thread").close(&world, &scope);
    drop(world);
    drop(nodes);
}

/// A worker sees a candidate. Returns whether it had not seen it, and it was unmarked.
fn see(marks: WorkerMarks<'_>, target: usize) -> bool {
    marks.see(target / WORD, 1 << (target % WORD)) != 0
}

/// A worker meets edges to `targets`, and marks the candidates of the pages that it queues.
fn meet_and_take(marks: WorkerMarks<'_>, targets: &[usize], marked: &mut Vec<usize>) {
    let mut new = Vec::new();
    for &target in targets {
        if marks.is_unseen(target) && see(marks, target) {
            new.push(target / PAGE_GRANULES);
        }
    }
    WorkerMarks::before_queueing::<true>();
    for page in new {
        if marks.queue::<true>(page) {
            take(marks, page, marked);
        }
    }
}

fn take(marks: WorkerMarks<'_>, page: usize, marked: &mut Vec<usize>) {
    marks.mark_page::<true>(page as u32, |first, bits| {
        each_bit(first, bits, |granule| marked.push(granule));
    });
}

/// One worker takes a page from its queue, because of one object. Another worker meets an edge to
/// each of the two objects on the page. Each object is marked, by one worker.
///
/// Mutations: no fence on either side; a mark by a load and a store; a page that is taken stays
/// queued; a worker overlooks the table of the other.
#[test]
fn loom_a_seen_candidate_is_marked_once() {
    Model::new().check(|| {
        with_two(|candidates, [one, two]| {
            assert!(candidates.see_root(one));
            let theirs = {
                let candidates = Arc::clone(&candidates);
                thread::spawn(move || {
                    let mut marked = Vec::new();
                    meet_and_take(candidates.worker(1), &[two, one], &mut marked);
                    marked
                })
            };
            let mut marked = Vec::new();
            take(candidates.worker(0), one / PAGE_GRANULES, &mut marked);
            marked.extend(theirs.join().unwrap());
            marked.sort_unstable();
            assert_eq!(marked, [one, two]);
        });
    });
}

/// One worker takes a page on which it has seen both objects. Another worker marks one of them
/// without its page. Each object is marked, by one worker.
///
/// Mutation: a worker marks nothing if some of the candidates that it found unmarked are marked.
#[test]
fn loom_a_word_loses_a_candidate_to_another_worker() {
    Model::new().check(|| {
        with_two(|candidates, [one, two]| {
            assert!(candidates.see_root(one) && !candidates.see_root(two));
            let theirs = {
                let candidates = Arc::clone(&candidates);
                thread::spawn(move || {
                    let marks = candidates.worker(1);
                    see(marks, one) && marks.mark::<true>(one)
                })
            };
            let mut marked = Vec::new();
            take(candidates.worker(0), one / PAGE_GRANULES, &mut marked);
            if theirs.join().unwrap() {
                marked.push(one);
            }
            marked.sort_unstable();
            assert_eq!(marked, [one, two]);
        });
    });
}

/// Two workers follow an edge to the same object, without its page.
///
/// Mutations: a mark by a load and a store; the load that comes before decides.
#[test]
fn loom_a_candidate_is_marked_once_without_its_page() {
    Model::new().check(|| {
        with_two(|candidates, [one, _]| {
            let follow = move |candidates: &Candidates, worker: usize| {
                let marks = candidates.worker(worker);
                see(marks, one) && marks.mark::<true>(one)
            };
            let theirs = {
                let candidates = Arc::clone(&candidates);
                thread::spawn(move || follow(&candidates, 1))
            };
            let mine = follow(&candidates, 0);
            assert_eq!(usize::from(mine) + usize::from(theirs.join().unwrap()), 1);
        });
    });
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

/// The granules that a worker marks which meets edges to `targets`.
fn meet_all(marks: WorkerMarks<'_>, targets: &[usize]) -> Vec<usize> {
    let edges: Vec<usize> = targets.iter().map(|target| target + 1).collect();
    let mut marked = Vec::new();
    marks.mark_all::<true>(&edges, Names, &mut marked).expect("memory");
    marked.iter().map(|object| Names.granule(object.address())).collect()
}

/// Two workers meet edges to the same two objects, and use plain marks. Each object is marked by a
/// worker, which traverses it, even if the mark is lost.
///
/// Mutation: the mark of one candidate also marks its neighbours.
#[test]
fn loom_a_plain_mark_loses_no_traversal() {
    let losses = Arc::new(AtomicUsize::new(0));
    let lost = Arc::clone(&losses);
    Model::new().check(move || {
        with_two(|candidates, [one, two]| {
            let theirs = {
                let candidates = Arc::clone(&candidates);
                thread::spawn(move || meet_all(candidates.worker(1), &[two, one]))
            };
            let mut marked = meet_all(candidates.worker(0), &[one, two]);
            marked.extend(theirs.join().unwrap());
            marked.sort_unstable();
            marked.dedup();
            assert_eq!(marked, [one, two]);
            let unmarked = [one, two].iter().filter(|&&at| candidates.is_unmarked(at)).count();
            lost.fetch_add(unmarked, Relaxed);
        });
    });
    assert!(losses.load(Relaxed) > 0, "no mark was lost");
}
