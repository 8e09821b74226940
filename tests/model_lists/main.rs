//! Models that list their objects, instead of registering them.
//!
//! The objects of the model, [`Blocks`], lie in memory of an allocator of its own. A page of 64 KiB
//! has blocks of one size, and the allocator knows which blocks are in use. The heap learns about
//! them in stops alone. Other pages contain *atoms*: blocks of 16 bytes to which objects refer and
//! which are not listed.
#![cfg(not(loom))]

mod blocks;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering::*};
use std::sync::{Arc, Mutex};

use proptest::prelude::*;
use standstill::model::Object;
use standstill::safepoint::STOP;
use standstill::{Collect, Stress};

use blocks::*;

/// The objects that a collection finds unreachable, and those that exist after it, by a search from
/// the held objects and from those that take no part.
fn expected(
    blocks: &Blocks<false>,
    held: &BTreeMap<usize, usize>,
) -> (BTreeSet<usize>, BTreeSet<usize>) {
    let mut alive = blocks.alive();
    let edges = |&address: &usize| {
        let slots = blocks.slots(Object::new(pointer(address))).iter();
        let targets = slots.filter_map(|slot| NonNull::new(slot.load(Relaxed)).map(Object::new));
        targets.filter(|&target| !blocks.is_atom(target)).map(Object::address).collect::<Vec<_>>()
    };
    let edges: HashMap<usize, Vec<usize>> = alive.iter().map(|at| (*at, edges(at))).collect();
    let is_outside = |&at: &usize| blocks.has(Object::new(pointer(at)), UNTRACKED | FROZEN);
    let mut found: Vec<usize> = held.keys().copied().collect();
    found.extend(alive.iter().copied().filter(is_outside));
    let mut reached: BTreeSet<usize> = found.iter().copied().collect();
    while let Some(address) = found.pop() {
        found.extend(edges[&address].iter().filter(|&&target| reached.insert(target)));
    }
    let garbage: BTreeSet<usize> = alive.difference(&reached).copied().collect();
    // Without the garbage some of the others have no references.
    alive = reached;
    loop {
        let mut counts: HashMap<usize, usize> = HashMap::new();
        for address in alive.iter().flat_map(|at| &edges[at]) {
            *counts.entry(*address).or_default() += 1;
        }
        let before = alive.len();
        alive.retain(|at| held.contains_key(at) || counts.contains_key(at));
        if alive.len() == before {
            return (garbage, alive);
        }
    }
}

#[derive(Clone, Debug)]
struct Round {
    /// The size, whether the object takes no part, and whether it stays held.
    objects: Vec<(usize, u32, bool)>,
    /// From, slot, to. If the last number is 0, to an atom.
    links: Vec<(prop::sample::Index, usize, prop::sample::Index, u8)>,
    /// Held objects that are dropped.
    drops: Vec<prop::sample::Index>,
    returns_memory: bool,
    searches_in_child: bool,
}

fn round() -> impl Strategy<Value = Round> {
    let flags = prop_oneof![8 => Just(0), 1 => Just(UNTRACKED), 1 => Just(FROZEN)];
    let object = (0..SIZES.len(), flags, prop::bool::weighted(0.2));
    let index = any::<prop::sample::Index>;
    (
        prop::collection::vec(object, 0..60),
        prop::collection::vec((index(), 0usize..12, index(), 0u8..6), 0..120),
        prop::collection::vec(index(), 0..10),
        any::<bool>(),
        prop::bool::weighted(0.3),
    )
        .prop_map(|(objects, links, drops, returns_memory, searches_in_child)| Round {
            objects,
            links,
            drops,
            returns_memory,
            searches_in_child,
        })
}

/// How many cases a test tries of those of a full run.
fn cases(full: u32) -> ProptestConfig {
    let is_full = std::env::var_os("STANDSTILL_FULL").is_some();
    ProptestConfig::with_cases(if is_full { full } else { full / 4 })
}

proptest! {
    #![proptest_config(cases(40))]

    /// Blocks are used again, for objects of other sizes too, and memory returns to the system.
    #[test]
    fn a_collection_of_listed_objects_finds_those_that_a_search_does_not_reach(
        rounds in prop::collection::vec(round(), 1..6),
    ) {
        on_heaps(|heap, m| {
            let blocks = heap.model();
            let mut held = BTreeMap::<usize, usize>::new();
            for round in &rounds {
                let new: Vec<_> = round.objects.iter().map(|&(size, flags, stays)| {
                    let object = blocks.block(size, flags);
                    held.insert(object.address(), 1);
                    (object, stays)
                }).collect();
                let all: Vec<_> = held.keys().map(|&at| Object::new(pointer(at))).collect();
                for (from, slot, to, to_atom) in &round.links {
                    if !all.is_empty() {
                        let (from, to) = (*from.get(&all), *to.get(&all));
                        let to = if *to_atom == 0 { blocks.atom() } else { to };
                        blocks.link(from, slot % blocks.slots(from).len(), to);
                    }
                }
                let mut dropped: BTreeSet<_> =
                    new.iter().filter(|new| !new.1).map(|new| new.0.address()).collect();
                if !all.is_empty() {
                    dropped.extend(round.drops.iter().map(|index| index.get(&all).address()));
                }
                for address in dropped {
                    held.remove(&address);
                    blocks.drop_ref(Object::new(pointer(address)));
                }
                let (garbage, alive) = expected(blocks, &held);
                let report = collect_with(m, Collect::full().forked(round.searches_in_child));
                assert_eq!((report.unreachable, report.collected), (garbage.len(), garbage.len()));
                assert_eq!(blocks.alive(), alive);
                let shown = shown(m);
                assert!(shown.keys().eq(&alive) && shown.values().all(|&is| !is));
                if round.returns_memory {
                    blocks.store.lock().unwrap().return_memory();
                }
            }
        });
    }
}

#[test]
fn objects_start_in_both_halves_and_are_found_there() {
    on_heaps(|heap, m| {
        let blocks = heap.model();
        let objects: Vec<_> = (0..200).map(|at| blocks.block(at % SIZES.len(), 0)).collect();
        let in_the_middle = objects.iter().filter(|object| object.address() % 32 == 16).count();
        assert!((50..150).contains(&in_the_middle), "{in_the_middle}");
        for pair in objects.windows(2) {
            blocks.link(pair[0], 0, pair[1]);
        }
        for pair in objects.windows(2) {
            let (mut to, mut from) = (Vec::new(), Vec::new());
            m.referents(pair[0], |object, _| to.push(object.address()));
            m.referrers(pair[1], |object, _| from.push(object.address()));
            assert_eq!((to, from), (vec![pair[1].address()], vec![pair[0].address()]));
            // The other half of the same 32 bytes.
            let beside = Object::new(pointer(pair[0].address() ^ 16));
            let text = message(|| m.referents(beside, |_, _| ()));
            assert!(text.starts_with("no object of this heap is at "), "{text}");
        }
        assert_eq!(m.verify(), Ok(()));
        blocks.link(objects[199], 0, objects[0]);
        objects.iter().for_each(|&object| blocks.drop_ref(object));
        assert_eq!((collect(m).collected, blocks.alive().len()), (200, 0));
    });
}

#[test]
fn memory_that_is_gone_has_no_objects_and_may_come_back() {
    on_heaps(|heap, m| {
        let blocks = heap.model();
        let mut segments = BTreeSet::new();
        for round in 0..6 {
            let kept = some_ring(blocks, 10);
            let garbage = some_ring(blocks, 20_000);
            segments.extend(blocks.store.lock().unwrap().segments.iter().copied());
            blocks.drop_ref(garbage);
            assert_eq!(collect(m).collected, 20_000, "round {round}");
            assert_eq!(blocks.alive().len(), 10);
            blocks.drop_ref(kept);
            assert_eq!(collect(m).collected, 10);
            assert!(blocks.store.lock().unwrap().return_memory() >= 1);
            // The pages have no objects, and are not read.
            assert_eq!((collect(m).collected, shown(m).len()), (0, 0));
        }
        assert!(segments.len() < 6, "each was used again: {} segments", segments.len());
    });
}

#[test]
fn a_list_with_a_fault_is_an_abandoned_collection_and_nothing_is_lost() {
    on_heaps(|heap, m| {
        let blocks = heap.model();
        let kept = some_ring(blocks, 7);
        let elsewhere = Box::new([0u128; 2]);
        let outside = std::ptr::from_ref(&*elsewhere).addr();
        let faults = |blocks: &Blocks<false>| {
            let listed = *blocks.alive().first().unwrap();
            let segment = blocks.store.lock().unwrap().segments[0];
            let (unused, last) = (segment + UNIT - PAGE, segment + UNIT - 64);
            let run = |first, size, count| Fault::AddsBlocks(Run { first, size, count, free: &[] });
            let behind = Run { first: segment, size: 48, count: 2, free: &[1] };
            let behind = Fault::AddsBlocks(behind);
            [
                (Fault::RefusesParts, "no list, on purpose".to_owned()),
                (Fault::PanicsInParts, "no parts, on purpose".to_owned()),
                (Fault::PanicsInList, "no objects, on purpose".to_owned()),
                (Fault::Adds(outside), format!("{outside:#x}, which is not in adopted memory")),
                (Fault::Adds(listed + 8), format!("{:#x}, which is not", listed + 8)),
                (Fault::Adds(listed), format!("{listed:#x}, where one was listed before")),
                (Fault::Adds(listed ^ 16), format!("{:#x}, where one was", listed ^ 16)),
                (Fault::Adds(32), "0x20, which is not in adopted memory".to_owned()),
                (run(outside, 32, 1), format!("{outside:#x}, which is not in adopted memory")),
                (run(listed + 8, 32, 1), format!("{:#x}, which is not", listed + 8)),
                (run(listed, 32, 1), format!("{listed:#x}, where one was listed before")),
                (run(listed ^ 16, 32, 1), format!("{:#x}, where one was", listed ^ 16)),
                (run(unused, 24, 2), format!("{unused:#x}, with a block size of 24 bytes")),
                (run(unused, 40, 2), format!("{unused:#x}, with a block size of 40 bytes")),
                (run(unused, 16, 2), format!("{unused:#x}, with a block size of 16 bytes")),
                (run(unused, 0, 2), format!("{unused:#x}, with a block size of 0 bytes")),
                // The second one of them is in the next segment, which is not the heap's.
                (run(last, 64, 2), format!("{:#x}, which is not in adopted memory", last + 64)),
                // The first block is free. The second one is that of an object.
                (behind, format!("{:#x}, where one was listed before", listed + 32)),
            ]
        };
        collect(m);
        for (fault, reason) in faults(blocks) {
            let garbage = some_ring(blocks, 5);
            blocks.drop_ref(garbage);
            *blocks.fault.lock().unwrap() = Some(fault);
            let report = m.try_collect(Collect::full()).unwrap();
            let why = report.abandoned.as_deref().unwrap_or_default();
            assert!(why.contains(&reason), "{fault:?}: {why}");
            assert_eq!((report.unreachable, report.collected), (0, 0));
            let text = message(|| m.objects(|_, _| panic!("no object is shown")));
            let expected = "the objects cannot be listed: ";
            assert!(text.starts_with(expected) && text.contains(&reason), "{text}");
            assert_eq!(blocks.alive().len(), 12);
            *blocks.fault.lock().unwrap() = None;
            assert_eq!((shown(m).len(), m.verify()), (12, Ok(())));
            assert_eq!((collect(m).collected, blocks.alive().len()), (5, 7));
        }
        blocks.drop_ref(kept);
        assert_eq!(collect(m).collected, 7);
    });
}

proptest! {
    #![proptest_config(cases(300))]

    /// Blocks are listed as their objects would be, one by one: from any place of a page to any
    /// other page, with any block free.
    #[test]
    fn blocks_are_the_objects_of_blocks_in_use(
        first in 0..2 * PAGE / 16,
        size in prop_oneof![4 => 2..20usize, 2 => 20..300usize, 1 => 2_000..9_000usize],
        count in prop_oneof![0..4usize, 60..70usize, 0..3_000usize],
        free in prop_oneof![
            Just(vec![]),
            prop::collection::vec(any::<u64>(), 0..50),
            prop::collection::vec(prop::sample::select(vec![0, u64::MAX, 1, 1 << 63]), 0..50),
        ],
    ) {
        let heap = heap::<false>();
        let m = &mut heap.attach();
        let blocks = heap.model();
        let object = blocks.block(0, 0);
        let segment = blocks.store.lock().unwrap().segments[0];
        let (first, size) = (segment + PAGE + first * 16, size * 16);
        let count = count.min((segment + UNIT - first) / size);
        let is_free = |at: usize| free.get(at / 64).is_some_and(|word| word >> (at % 64) & 1 != 0);
        let in_use = (0..count).filter(|&at| !is_free(at)).map(|at| first + at * size);
        let expected: BTreeSet<_> = in_use.chain([object.address()]).collect();
        let free = free.leak();
        *blocks.fault.lock().unwrap() = Some(Fault::AddsBlocks(Run { first, size, count, free }));
        for _ in 0..2 {
            prop_assert!(shown(m).keys().eq(&expected));
        }
        *blocks.fault.lock().unwrap() = None;
        prop_assert_eq!(shown(m).len(), 1);
    }
}

#[test]
fn an_object_in_memory_that_is_not_adopted_is_refused() {
    let heap = heap::<false>();
    let mut m = heap.attach();
    let own = Box::new([0u64; 8]);
    let kept = some_ring(heap.model(), 2);
    *heap.model().fault.lock().unwrap() = Some(Fault::Adds((&raw const *own).addr() & !15));
    let report = m.try_collect(Collect::full()).unwrap();
    assert!(report.abandoned.unwrap().contains("which is not in adopted memory"));
    *heap.model().fault.lock().unwrap() = None;
    heap.model().drop_ref(kept);
    assert_eq!(collect(&mut m).collected, 2);
    assert_eq!(m.verify(), Ok(()));
}

#[test]
fn methods_that_change_states_are_refused() {
    let heap = heap::<false>();
    let mut m = heap.attach();
    let object = some_ring(heap.model(), 2);
    type Call = fn(&mut Mutator, Object);
    // SAFETY: all calls are refused.
    let calls: [(&str, Call); 9] = unsafe {
        [
            ("publish", |m, object| m.publish(object, true)),
            ("register", |m, object| assert!(m.register(object, true).is_err())),
            ("unregister", |m, object| m.unregister(object)),
            ("track", |m, object| assert!(m.track(object))),
            ("untrack", |m, object| assert!(m.untrack(object))),
            ("dead", |m, object| m.dead(object)),
            ("set_finalized", |m, object| assert!(m.set_finalized(object))),
            ("freeze", |m, _| assert!(m.freeze() > 0)),
            ("unfreeze", |m, _| m.unfreeze()),
        ]
    };
    for (name, call) in calls {
        let text = message(|| call(&mut m, object));
        assert!(text.starts_with(&format!("`{name}` is not for a model that lists")), "{text}");
    }
    heap.model().drop_ref(object);
    assert_eq!(collect(&mut m).collected, 2);
}

#[test]
fn each_stop_that_looks_at_objects_lists_them_and_no_other() {
    let heap = heap::<false>();
    let mut m = heap.attach();
    let kept = some_ring(heap.model(), 3);
    let mut lists = |f: &mut dyn FnMut(&mut Mutator)| {
        let before = heap.model().lists.load(Relaxed);
        f(&mut m);
        heap.model().lists.load(Relaxed) - before
    };
    assert_eq!(lists(&mut |m| drop(collect(m))), 1);
    assert_eq!(lists(&mut |m| drop(m.stop_owned().unwrap())), 0);
    assert_eq!(lists(&mut |m| drop(m.stop().unwrap())), 0);
    assert_eq!(lists(&mut |m| assert_eq!(shown(m).len(), 3)), 1);
    assert_eq!(lists(&mut |m| assert_eq!(m.verify(), Ok(()))), 1);
    assert_eq!(lists(&mut |m| m.referrers(kept, |_, _| ())), 1);
    assert_eq!(lists(&mut |m| m.referents(kept, |_, _| ())), 1);
    // A young collection is a full one.
    let report = m.try_collect(Collect::young()).unwrap();
    assert_eq!((report.kind, report.candidates), (standstill::CollectionKind::Full, 3));
    heap.model().drop_ref(kept);
    assert_eq!(collect(&mut m).collected, 3);
}

#[test]
fn immortal_objects_are_asked_about_again() {
    on_heaps(|heap, m| {
        let blocks = heap.model();
        let object = blocks.block(1, IMMORTAL);
        let target = some_ring(blocks, 3);
        blocks.link(object, 0, target);
        blocks.drop_ref(target);
        for _ in 0..3 {
            assert_eq!((collect(m).collected, shown(m).len()), (0, 4));
        }
        blocks.link(object, 1, object);
        blocks.drop_ref(object);
        assert_eq!(collect(m).collected, 0);
        blocks.header(object).flags.store(0, Relaxed);
        assert_eq!((collect(m).collected, blocks.alive().len()), (4, 0));
    });
}

#[test]
fn garbage_that_survives_is_an_ordinary_object_again() {
    on_heaps(|heap, m| {
        let blocks = heap.model();
        let objects: Vec<_> = (0..10).map(|at| blocks.block(at % 5, REFUSES)).collect();
        blocks.drop_ref(ring(blocks, &objects));
        for _ in 0..3 {
            // The report cannot know better.
            let report = collect(m);
            assert_eq!((report.unreachable, report.collected, report.uncollectable), (10, 10, 0));
            let shown = shown(m);
            assert!(shown.len() == 10 && shown.values().all(|&is| !is), "{shown:?}");
        }
        objects.iter().for_each(|&object| blocks.header(object).flags.store(0, Relaxed));
        assert_eq!((collect(m).collected, blocks.alive().len()), (10, 0));
    });
}

#[test]
fn weak_callbacks_are_called_once_and_objects_may_come_back() {
    on_heaps(|heap, m| {
        let blocks = heap.model();
        let weak: Vec<_> = (0..20).map(|at| blocks.block(at % 5, WEAK)).collect();
        let serials: BTreeSet<_> = weak.iter().map(|&object| blocks.serial(object)).collect();
        blocks.link(weak[3], 1, blocks.atom());
        blocks.drop_ref(ring(blocks, &weak));
        let before = blocks.called_back.lock().unwrap().len();
        assert_eq!((collect(m).collected, blocks.alive().len()), (20, 0));
        let called = blocks.called_back.lock().unwrap()[before..].to_vec();
        assert_eq!((called.len(), called.into_iter().collect()), (20, serials));
    });
}

/// Finalizers change the graph: one makes its object reachable again, others drop objects and make
/// new ones in their places.
fn finalizers_change_the_graph<const RECHECKS: bool>() {
    for workers in [1, 3] {
        let stress = Stress::none().verify(true);
        let builder = builder().workers(workers).serial_below(0).stress(stress);
        let heap = builder.build_with(Blocks::<RECHECKS>::default()).unwrap();
        let mut m = heap.attach();
        let blocks = heap.model();
        let [back, gone] = [0, 1].map(|_| {
            let objects: Vec<_> =
                (0..4).map(|at| blocks.block(at, if at == 0 { FINALIZER } else { 0 })).collect();
            ring(blocks, &objects)
        });
        // Objects that the finalizer destroys: the recheck must not look at them.
        let passing: Vec<_> = (0..300).map(|at| blocks.block(at % 5, 0)).collect();
        blocks.when_finalized(
            back,
            Box::new(move |object, m| {
                passing.into_iter().for_each(|object| m.model().drop_ref(object));
                m.model().add_ref(object);
            }),
        );
        [back, gone].into_iter().for_each(|object| blocks.drop_ref(object));
        let lists = blocks.lists.load(Relaxed);
        let report = collect(&mut m);
        assert_eq!((report.unreachable, report.finalized), (8, 2));
        assert_eq!((report.resurrected, report.collected), (4, 4));
        // One of them in the verification after the collection.
        assert_eq!(blocks.lists.load(Relaxed) - lists, if RECHECKS { 3 } else { 2 });
        assert_eq!(blocks.alive().len(), 4);
        blocks.drop_ref(back);
        let report = collect(&mut m);
        assert_eq!((report.finalized, report.collected, blocks.alive().len()), (0, 4, 0));
    }
}

#[test]
fn finalizers_may_change_the_graph() {
    finalizers_change_the_graph::<false>();
    finalizers_change_the_graph::<true>();
}

/// The second stop lists the objects again, if it traverses them: the object with the reference is
/// new.
#[test]
fn a_new_object_that_refers_without_a_count_keeps_its_target() {
    let heap = heap::<true>();
    let mut m = heap.attach();
    let blocks = heap.model();
    let (object, other) = (blocks.block(2, FINALIZER), blocks.block(1, 0));
    ring(blocks, &[object, other]);
    let holder = Arc::new(Mutex::new(None));
    let kept = holder.clone();
    blocks.when_finalized(
        object,
        Box::new(move |object, m| {
            let new = m.model().block(4, BORROWS);
            let last = m.model().slots(new).len() - 1;
            m.model().link(new, last, object);
            *kept.lock().unwrap() = Some(new);
        }),
    );
    blocks.drop_ref(object);
    let report = collect(&mut m);
    assert_eq!((report.unreachable, report.resurrected, report.collected), (2, 2, 0));
    assert_eq!(blocks.alive().len(), 3);
    blocks.drop_ref(holder.lock().unwrap().take().unwrap());
    assert_eq!((collect(&mut m).collected, blocks.alive().len()), (2, 0));
}

/// Without a list for the second stop, all is kept.
#[test]
fn a_second_list_that_fails_keeps_the_set() {
    let heap = heap::<true>();
    let mut m = heap.attach();
    let blocks = heap.model();
    let object = blocks.block(0, FINALIZER);
    blocks.link(object, 0, object);
    blocks.when_finalized(
        object,
        Box::new(|_, m| *m.model().fault.lock().unwrap() = Some(Fault::RefusesParts)),
    );
    blocks.drop_ref(object);
    let report = m.try_collect(Collect::full()).unwrap();
    assert_eq!(report.abandoned.as_deref(), Some("no list, on purpose"));
    assert_eq!((report.unreachable, report.resurrected, report.collected), (1, 1, 0));
    *blocks.fault.lock().unwrap() = None;
    assert_eq!(shown(&mut m), BTreeMap::from([(object.address(), false)]));
    assert_eq!(collect(&mut m).collected, 1);
}

/// Between the stops of a collection another thread inspects the heap, once with success and once
/// without. The members keep their states: the recheck follows them.
#[test]
fn an_inspection_between_the_stops_of_a_collection_changes_nothing() {
    for fault in [None, Some(Fault::RefusesParts), Some(Fault::PanicsInList)] {
        let heap = heap::<false>();
        let mut m = heap.attach();
        let blocks = heap.model();
        let first = blocks.block(2, FINALIZER);
        let targets: Vec<_> = (0..5).map(|at| blocks.block(at, 0)).collect();
        for (slot, &target) in targets.iter().enumerate() {
            blocks.link(target, 0, target);
            blocks.link(first, slot, target);
            blocks.drop_ref(target);
        }
        blocks.link(first, 5, first);
        let kept = some_ring(blocks, 3);
        let other = heap.clone();
        blocks.when_finalized(
            first,
            Box::new(move |object, m| {
                *other.model().fault.lock().unwrap() = fault;
                std::thread::scope(|scope| {
                    let inspected = scope.spawn(|| {
                        let mut m = other.attach();
                        match fault {
                            None => Some(shown(&mut m)),
                            Some(_) => {
                                message(|| drop(shown(&mut m)));
                                None
                            }
                        }
                    });
                    let until = std::time::Instant::now() + std::time::Duration::from_secs(20);
                    while !inspected.is_finished() {
                        assert!(std::time::Instant::now() < until, "the inspection hangs");
                        // The inspection stops the world, and so this thread.
                        // SAFETY: in a finalizer, and no reference to an object is kept.
                        drop(unsafe { m.stop_inside() });
                    }
                    if let Some(shown) = inspected.join().unwrap() {
                        let unreachable = shown.values().filter(|&&is| is).count();
                        assert_eq!((shown.len(), unreachable), (9, 6));
                    }
                });
                *m.model().fault.lock().unwrap() = None;
                m.model().add_ref(object);
            }),
        );
        blocks.drop_ref(first);
        let report = collect(&mut m);
        assert_eq!((report.unreachable, report.resurrected, report.collected), (6, 6, 0));
        assert_eq!(blocks.alive().len(), 9, "what the resurrected object reaches");
        blocks.drop_ref(first);
        blocks.drop_ref(kept);
        assert_eq!((collect(&mut m).collected, blocks.alive().len()), (9, 0));
    }
}

/// An inspection while a collection releases its garbage shows the objects that are not released
/// yet, and a new object in the place of a released one as what it is.
#[test]
fn an_inspection_among_the_releases_shows_members_and_new_objects() {
    const GARBAGE: usize = 1_000;
    let heap = heap::<false>();
    let mut m = heap.attach();
    let blocks = heap.model();
    let objects: Vec<_> = (0..GARBAGE).map(|_| blocks.block(1, 0)).collect();
    let places = blocks.alive();
    blocks.drop_ref(ring(blocks, &objects));
    // The address of a new object.
    let new = Arc::new(AtomicUsize::new(0));
    let is_new = new.clone();
    blocks.at_release.lock().unwrap().insert(
        300,
        Box::new(move |_, m| {
            is_new.store(m.model().block(1, 0).address(), Release);
            while m.poll() & STOP == 0 {
                std::thread::yield_now();
            }
        }),
    );
    std::thread::scope(|scope| {
        let inspected = scope.spawn(|| {
            while new.load(Acquire) == 0 {
                std::thread::yield_now();
            }
            shown(&mut heap.attach())
        });
        assert_eq!(m.try_collect(Collect::full()).unwrap().collected, GARBAGE);
        let shown = m.join(inspected).unwrap();
        let new = new.load(Relaxed);
        assert!(places.contains(&new), "in the place of a released object");
        assert_eq!(shown.get(&new), Some(&false));
        assert!(shown.len() > 1 && shown.len() < GARBAGE - 298, "{}", shown.len());
        assert!(shown.iter().all(|(&at, &is)| is == (at != new)));
        assert_eq!(blocks.alive(), BTreeSet::from([new]));
        blocks.drop_ref(Object::new(pointer(new)));
    });
}

/// Several threads make and drop rings, exchange objects and collect.
#[test]
fn several_threads_and_their_collections() {
    const THREADS: usize = 4;
    let stress = Stress::none().verify(true).small_constants(true);
    let builder = builder().workers(3).serial_below(0).stress(stress);
    let heap = builder.build_with(Blocks::<false>::default()).unwrap();
    let shared = Mutex::new(Vec::<usize>::new());
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (heap, shared) = (&heap, &shared);
            scope.spawn(move || {
                let mut m = heap.attach();
                for round in 0..400 {
                    let first = some_ring(heap.model(), 1 + round % 6);
                    let mut shared = shared.lock().unwrap();
                    shared.push(first.address());
                    if round % 3 != 0 {
                        let at = (round * 7 + thread) % shared.len();
                        let other = Object::new(pointer(shared.swap_remove(at)));
                        heap.model().drop_ref(other);
                    }
                    drop(shared);
                    m.safepoint();
                    match round % 40 {
                        20 => drop(m.try_collect(Collect::full().wait(false))),
                        30 => drop(shown(&mut m)),
                        _ => {}
                    }
                }
            });
        }
    });
    let mut m = heap.attach();
    for first in shared.into_inner().unwrap() {
        heap.model().drop_ref(Object::new(pointer(first)));
    }
    collect(&mut m);
    assert!(heap.model().alive().is_empty());
    assert!(heap.stats().collections > 4);
}
