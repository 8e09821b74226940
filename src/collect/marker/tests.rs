//! Tests of the marking of one worker.

#![forbid(unsafe_code)]

use super::*;
use crate::base::event::CollectionKind;
use crate::collect::Collect;
use crate::collect::scope::Scope;
use crate::collect::script::tests::collect;
use crate::collect::script::tests::{Script, fan, scripted_heap, small_heap};
use crate::collect::traversal::tracer;
use crate::heap::remembered::FoundRoot;

/// A marker with nothing to do, in a stopped heap with one object that refers to `width`
/// others. `SHARED`: the first of two workers. The object is marked. `test` has all objects.
fn with_marker<const SHARED: bool>(
    width: usize,
    test: impl FnOnce(&mut Marker<'_, Script, SHARED>, &[Object], &Candidates),
) {
    let Some(heap) = scripted_heap() else { return };
    let m = heap.attach();
    let objects = fan(&m, width);
    let world = m.stop_here().expect("no other thread");
    let space = &world.core().space;
    let scope = Scope::new(space, CollectionKind::Full).expect("memory");
    let candidates = Candidates::new(&world, &scope, 1 + usize::from(SHARED)).expect("memory");
    assert!(candidates.mark_alone(granule(space, objects[0]) as usize));
    let mut tracer = tracer(space);
    let mut marker = Marker::new(&world, &candidates, 0, None, None, Leaves::Traverse, &mut tracer);
    test(&mut marker, &objects, &candidates);
    candidates.close(&world, &scope);
    drop(world);
    heap.model().drop_ref(objects[0], &m);
}

fn page_of<const SHARED: bool>(marker: &Marker<'_, Script, SHARED>, object: Object) -> u32 {
    granule(marker.space, object) / PAGE_GRANULES as u32
}

fn pages_of<const SHARED: bool>(
    marker: &Marker<'_, Script, SHARED>,
    objects: &[Object],
) -> Vec<u32> {
    let mut pages: Vec<u32> = objects.iter().map(|&object| page_of(marker, object)).collect();
    pages.sort_unstable();
    pages.dedup();
    pages
}

/// A worker follows new objects while they are few. Among several workers, it queues the pages
/// of many, each once. It also queues pages while others wait in its queue. A worker that marks at
/// once queues none.
#[test]
fn few_objects_are_followed_and_the_pages_of_many_queued() {
    fn check<const SHARED: bool>(width: usize, waits: bool, at_once: bool) {
        with_marker::<SHARED>(width, |marker, objects, _| {
            assert_eq!(marker.marks_at_once, !SHARED);
            marker.marks_at_once = at_once;
            let waiting: &[u32] = if waits { &[u32::MAX] } else { &[] };
            marker.pages.extend(waiting);
            marker.list = vec![objects[0]];
            marker.traverse_list(&Pool::new()).expect("memory");
            assert!(marker.seen.is_empty());
            assert_eq!(marker.done.traversed, 1);
            let middles: Vec<Object> = objects[1..].iter().copied().step_by(2).collect();
            let queued: Vec<u32> = marker.pages.drain(..).skip(waiting.len()).collect();
            if !at_once && (waits || (SHARED && width > DIRECT_MAX)) {
                assert_eq!(queued, pages_of(marker, &middles), "{width} {SHARED} {waits}");
                assert_eq!(marker.list, []);
            } else {
                assert_eq!((queued, &marker.list), (Vec::new(), &middles));
            }
        });
    }
    for width in [1, DIRECT_MAX, DIRECT_MAX + 1, 3_000] {
        for waits in [false, true] {
            check::<false>(width, waits, false);
            check::<false>(width, waits, true);
            check::<true>(width, waits, false);
            check::<true>(width, waits, true);
        }
    }
}

/// A worker takes a page if its list is shorter than `LIST_MIN`.
#[test]
fn pages_are_taken_until_the_list_is_long_enough() {
    with_marker::<true>(3_000, |marker, objects, candidates| {
        let space = marker.space;
        let is_new = |&&object: &&Object| candidates.see_root(granule(space, object) as usize);
        let new = objects[1..].iter().filter(is_new);
        let new: Vec<u32> = new.map(|&object| page_of(marker, object)).collect();
        marker.pages.extend(new);
        let pages = marker.pages.len();
        assert_eq!(Vec::from_iter(marker.pages.iter().copied()), pages_of(marker, &objects[1..]));
        marker.list = vec![objects[0]; LIST_MIN];
        marker.fill().expect("memory");
        assert_eq!((marker.list.len(), marker.pages.len()), (LIST_MIN, pages));
        marker.list.truncate(LIST_MIN - 1);
        marker.fill().expect("memory");
        assert!(marker.list.len() >= LIST_MIN && marker.pages.len() == pages - 1);
        let mut rest = 0;
        while !marker.pages.is_empty() {
            marker.list.clear();
            marker.fill().expect("memory");
            rest += marker.list.len();
        }
        assert!(rest > LIST_MIN);
    });
}

/// A worker that marks at once takes the end of a long list. Another one takes the whole list.
#[test]
fn a_worker_that_marks_at_once_traverses_the_end_of_a_long_list_first() {
    fn check<const SHARED: bool>(at_once: bool, most: usize) {
        with_marker::<SHARED>(3, |marker, objects, _| {
            marker.marks_at_once = at_once;
            let rest = [objects[1], objects[3], objects[5]];
            marker.list = rest.into_iter().chain(vec![objects[0]; most]).collect();
            marker.traverse_list(&Pool::new()).expect("memory");
            let left = if at_once { rest.len() } else { 0 };
            assert_eq!(marker.done.traversed, most + rest.len() - left);
            assert_eq!(marker.list[..left], rest[..left]);
            marker.list = vec![objects[0]; most];
            marker.traverse_list(&Pool::new()).expect("memory");
            assert_eq!(marker.list, [], "a list of this length is taken whole");
        });
    }
    check::<false>(true, LIST_MAX);
    check::<true>(true, SHARED_LIST_MAX);
    check::<true>(false, LIST_MAX);
}

/// A worker that marks at once gives half of its list away, if that is enough.
#[test]
fn half_of_a_list_is_given_away() {
    for (len, at_once, given) in [
        (2 * GIVEN_MIN, true, GIVEN_MIN),
        (2 * GIVEN_MIN + 1, true, GIVEN_MIN),
        (2 * GIVEN_MIN - 1, true, 0),
        (2 * GIVEN_MIN, false, 0),
    ] {
        with_marker::<true>(200, |marker, objects, _| {
            marker.marks_at_once = at_once;
            marker.list = objects[..len].to_vec();
            let pool = Pool::new();
            marker.give_work(&pool).expect("memory");
            assert_eq!(marker.list, objects[given..len]);
            let granules = objects[..given].iter().map(|&object| granule(marker.space, object));
            let piece = (given > 0).then(|| Piece::Objects(granules.collect()));
            assert_eq!(pool.steal(), piece);
        });
    }
}

/// A worker gives pages away before it has looked at all edges of an object.
#[test]
fn an_object_with_many_edges_occupies_all_workers() {
    for (width, gives) in [(EDGES_MAX, false), (2 * EDGES_MAX, true)] {
        for at_once in [false, true] {
            with_marker::<true>(width, |marker, objects, _| {
                marker.marks_at_once = at_once;
                let pool = Pool::new();
                pool.joined.store(2, Ordering::Relaxed);
                pool.idle.store(1, Ordering::Relaxed);
                marker.list = vec![objects[0]];
                marker.traverse_list(&pool).expect("memory");
                assert_eq!(pool.waiting.load(Ordering::Relaxed) > 0, gives, "{width} {at_once}");
            });
        }
    }
}

/// A worker reads a long slice in pieces, and gives half of the rest to an idle worker.
#[test]
fn a_long_slice_is_read_in_pieces_and_shared() {
    const WIDTH: usize = 17_000;
    for idle in [0, 1] {
        with_marker::<true>(WIDTH, |marker, objects, _| {
            let model = marker.model;
            model.state().things.get_mut(&objects[0]).expect("alive").traversals = "v";
            let pool = Pool::new();
            pool.joined.store(2, Ordering::Relaxed);
            let seen = |marker: &Marker<'_, Script, true>| {
                let is_seen = |&&object: &&Object| {
                    !marker.marks.is_unseen(granule(marker.space, object) as usize)
                };
                objects[1..].iter().step_by(2).filter(is_seen).count()
            };
            marker.list = vec![objects[0]];
            marker.traverse_list(&pool).expect("memory");
            assert_eq!((marker.list.len(), marker.pages.len(), seen(marker)), (0, 0, 0));
            pool.idle.store(idle, Ordering::Relaxed);
            marker.read_slices(&pool).expect("memory");
            let given = if idle == 0 { 0 } else { (WIDTH - EDGES_MAX) / 2 };
            assert_eq!((seen(marker), marker.list.len()), (WIDTH - given, 0));
            pool.idle.store(0, Ordering::Relaxed);
            if idle > 0 {
                let piece = pool.steal().expect("a piece");
                assert!(matches!(&piece, Piece::LongSlice(slots) if slots.len() == given));
                marker.run(piece, &pool).expect("memory");
            }
            marker.run(Piece::Objects(Vec::new()), &pool).expect("memory");
            assert_eq!(seen(marker), WIDTH);
            assert!(marker.pages.is_empty() && marker.list.is_empty());
        });
    }
}

/// Edges that are compared are read at once, however many they are.
#[test]
fn a_long_slice_of_a_verified_object_is_compared() {
    for traversals in ["v", "vt"] {
        let Some(heap) = scripted_heap() else { return };
        let mut m = heap.attach();
        let objects = fan(&m, 17_000);
        Script::of(&m, objects[0], |thing| {
            thing.has = "d";
            thing.traversals = traversals;
        });
        let (report, _) = collect(&mut m, Collect::full());
        assert_eq!(report.abandoned.is_some(), traversals == "vt", "{:?}", report.abandoned);
        heap.model().drop_ref(objects[0], &m);
    }
}

/// The others stay in their order.
#[test]
fn edges_to_assumed_roots_are_set_apart() {
    let Some(heap) = scripted_heap() else { return };
    let m = heap.attach();
    let objects = fan(&m, 10);
    let world = m.stop_here().expect("no other thread");
    let space = &world.core().space;
    let scope = Scope::new(space, CollectionKind::Full).expect("memory");
    let mut candidates = Candidates::new(&world, &scope, 1).expect("memory");
    let granules: Vec<u32> = objects.iter().map(|&object| granule(space, object)).collect();
    let is_root = |at: usize| [0, 1, 4, 9].contains(&at);
    let roots: Vec<FoundRoot> = (0..10)
        .filter(|&at| is_root(at))
        .map(|at| FoundRoot { granule: granules[at], inside: 0 })
        .collect();
    candidates.assume(space.high_water(), &roots, true).expect("memory");
    let mut tracer = tracer(space);
    let mut marker: Marker<'_, Script, false> =
        Marker::new(&world, &candidates, 0, None, None, Leaves::Traverse, &mut tracer);
    marker.seen = [&granules[..10], &granules[..10]].concat();
    marker.take_assumed().expect("memory");
    let expected = |kept: bool| {
        (0..20).map(|at| at % 10).filter(move |&at| is_root(at) != kept).map(|at| granules[at])
    };
    assert!(marker.seen.iter().copied().eq(expected(true)));
    assert!(marker.to_assumed.iter().copied().eq(expected(false)));
    drop(marker);
    candidates.assume(space.high_water(), &roots, false).expect("memory");
    candidates.close(&world, &scope);
    drop(world);
    heap.model().drop_ref(objects[0], &m);
}

/// A worker gives half of its pages away while another worker has none.
#[test]
fn work_is_given_away_while_another_worker_waits_for_some() {
    fn check<const SHARED: bool>(waiting_workers: usize) {
        with_marker::<SHARED>(3_000, |marker, objects, _| {
            let pool = Pool::new();
            pool.joined.store(2, Ordering::Relaxed);
            pool.idle.store(waiting_workers, Ordering::Relaxed);
            let first = vec![granule(marker.space, objects[0])];
            marker.run(Piece::Objects(first), &pool).expect("memory");
            let is_given = pool.waiting.load(Ordering::Relaxed) > 0;
            assert_eq!(is_given, SHARED && waiting_workers > 0);
            assert!(marker.list.is_empty() && marker.pages.is_empty());
            let all = if is_given { marker.done.traversed } else { objects.len() };
            assert!(marker.done.traversed == all && all > 1);
        });
    }
    for waiting_workers in [0, 1] {
        check::<false>(waiting_workers);
        check::<true>(waiting_workers);
    }
}

/// Two objects report other references in their second traversal.
#[test]
fn verified_objects_with_other_edges_abandon_the_collection() {
    let why = "the traverse handler of 'verified thing' visited other references the second time";
    for (has, traversals, is_full, found) in [
        (["d", "d"], ["s", "s"], true, None),
        (["d", "d"], ["s", "s"], false, None),
        (["", "d"], ["s", "st"], true, Some(why)),
        (["", "d"], ["s", "st"], false, Some(why)),
        (["d", ""], ["st", "s"], false, Some(why)),
        // An object without verification, and an unreadable object.
        (["d", ""], ["s", "st"], false, None),
        (["d", "d"], ["s", "h"], false, None),
    ] {
        let Some(heap) = scripted_heap() else { return };
        let mut m = heap.attach();
        let objects = [0, 1].map(|at| Script::thing(&m, 'a', has[at], traversals[at]));
        let end = Script::thing(&m, 'z', "", "s");
        Script::link(&m, objects[0], end);
        Script::link(&m, objects[1], objects[0]);
        Script::link(&m, objects[1], end);
        let what = if is_full { Collect::full() } else { Collect::young() };
        let (report, calls) = collect(&mut m, what);
        assert_eq!(report.abandoned.as_deref(), found, "{has:?} {traversals:?}");
        if let Some(why) = found {
            let failure =
                format!("failure: Traverse 'verified thing': the collection was abandoned: {why}");
            assert!(calls.contains(&failure), "{calls:?}");
        }
    }
}

#[test]
fn everything_that_many_edges_lead_to_is_found() {
    // More than `DIRECT_MAX` objects, more than `EDGES_MAX` edges, and more than a tracer reads at
    // once.
    for (width, traversals) in [(300, "s"), (5_000, "s"), (300, "v"), (17_000, "v")] {
        for workers in [1, 2] {
            for is_small in [false, true] {
                let heap = if is_small { small_heap(workers) } else { scripted_heap() };
                let Some(heap) = heap else { return };
                let mut m = heap.attach();
                let objects = fan(&m, width);
                Script::of(&m, objects[0], |thing| thing.traversals = traversals);
                for what in [Collect::young(), Collect::full(), Collect::full()] {
                    let report = crate::collect::collect(&mut m, what).expect("a stop");
                    assert_eq!((report.unreachable, report.abandoned), (0, None));
                }
                heap.model().drop_ref(objects[0], &m);
                assert_eq!(heap.stats().live_objects, 0);
            }
        }
    }
}
