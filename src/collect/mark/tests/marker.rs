//! Tests of the marking of one worker.

#![forbid(unsafe_code)]

use super::super::*;
use crate::collect::calls::tracer;
use crate::collect::scope::Scope;
use crate::collect::tests::script::{Script, collect, fan, scripted_heap, small_heap};
use crate::heap::request::Collect;
use crate::report::facts::CollectionKind;

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

#[test]
fn a_worker_traverses_the_end_of_a_long_list_first() {
    fn check<const SHARED: bool>(most: usize) {
        with_marker::<SHARED>(3, |marker, objects, _| {
            let rest = [objects[1], objects[3], objects[5]];
            marker.list = rest.into_iter().chain(vec![objects[0]; most]).collect();
            marker.traverse_list(&Pool::new()).expect("memory");
            assert_eq!(marker.done.traversed, most);
            assert_eq!(marker.list[..3], rest);
            marker.list = vec![objects[0]; most];
            marker.traverse_list(&Pool::new()).expect("memory");
            assert_eq!(marker.list, [], "a list of this length is taken whole");
        });
    }
    check::<false>(LIST_MAX);
    check::<true>(SHARED_LIST_MAX);
}

/// A worker gives half of its list away, if that is enough.
#[test]
fn half_of_a_list_is_given_away() {
    for (len, given) in
        [(2 * GIVEN_MIN, GIVEN_MIN), (2 * GIVEN_MIN + 1, GIVEN_MIN), (2 * GIVEN_MIN - 1, 0)]
    {
        with_marker::<true>(200, |marker, objects, _| {
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

/// A worker gives objects away before it has looked at all edges of an object.
#[test]
fn an_object_with_many_edges_occupies_all_workers() {
    for (width, gives) in [(EDGES_MAX, false), (2 * EDGES_MAX, true)] {
        with_marker::<true>(width, |marker, objects, _| {
            let pool = Pool::new();
            pool.joined.store(2, Ordering::Relaxed);
            pool.idle.store(1, Ordering::Relaxed);
            marker.list = vec![objects[0]];
            marker.traverse_list(&pool).expect("memory");
            assert_eq!(pool.waiting.load(Ordering::Relaxed) > 0, gives, "{width}");
        });
    }
}

/// A worker reads a long slice in pieces, and gives half of the rest to an idle worker.
#[test]
fn a_long_slice_is_read_in_pieces_and_shared() {
    const WIDTH: usize = 17_000;
    for idle in [0, 1] {
        with_marker::<true>(WIDTH, |marker, objects, candidates| {
            let model = marker.model;
            model.state().things.get_mut(&objects[0]).expect("alive").traversals = "v";
            let pool = Pool::new();
            pool.joined.store(2, Ordering::Relaxed);
            let marked = |marker: &Marker<'_, Script, true>| {
                let is_marked = |&&object: &&Object| {
                    !candidates.is_unmarked(granule(marker.space, object) as usize)
                };
                objects[1..].iter().step_by(2).filter(is_marked).count()
            };
            marker.list = vec![objects[0]];
            marker.traverse_list(&pool).expect("memory");
            assert_eq!((marker.list.len(), marked(marker)), (0, 0));
            pool.idle.store(idle, Ordering::Relaxed);
            marker.read_slices(&pool).expect("memory");
            let given = if idle == 0 { 0 } else { (WIDTH - EDGES_MAX) / 2 };
            assert_eq!((marked(marker), marker.list.len()), (WIDTH - given, WIDTH - given));
            pool.idle.store(0, Ordering::Relaxed);
            if idle > 0 {
                let piece = pool.steal().expect("a piece");
                assert!(matches!(&piece, Piece::LongSlice(slots) if slots.len() == given));
                marker.run(piece, &pool).expect("memory");
            }
            marker.follow(&pool).expect("memory");
            assert_eq!(marked(marker), WIDTH);
            assert!(marker.list.is_empty());
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

/// A worker gives half of its list away while another worker has none.
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
            assert!(marker.list.is_empty());
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
    // Some objects, more than `EDGES_MAX` edges, and more than a tracer reads at
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
                    let report = crate::collect::collection::collect(&mut m, what).expect("a stop");
                    assert_eq!((report.unreachable, report.abandoned), (0, None));
                }
                heap.model().drop_ref(objects[0], &m);
                assert_eq!(heap.stats().live_objects, 0);
            }
        }
    }
}
