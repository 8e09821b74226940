//! G-21, G-22, G-30 to G-34, G-39 to G-42: looking at the heap, and setting parts of it aside.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use standstill::{AnyGc, CollectionKind, Gc, GcCell, Mutator, Trace, Tracer};

use crate::basics::Stubborn;
use crate::common::*;
use crate::trace_fields;

/// The names of the [`Node`]s among `objects`, sorted.
fn names(m: &Mutator, objects: &[AnyGc]) -> Vec<usize> {
    let mut names: Vec<_> =
        objects.iter().filter_map(|any| any.downcast_ref::<Node>(m)).map(Node::name).collect();
    names.sort_unstable();
    names
}

fn any<const FINAL: bool>(gc: &Gc<Thing<FINAL>>) -> AnyGc {
    AnyGc::from(gc.clone())
}

#[derive(Default)]
struct Row {
    list: Vec<Gc<Node>>,
    map: BTreeMap<u8, Gc<Node>>,
}
trace_fields!(Row { list, map });

struct Mixed {
    row: GcCell<Row>,
    pair: (Gc<Node>, Option<Gc<Node>>),
    array: [Gc<Node>; 2],
    leaf: Gc<Leaf>,
}
trace_fields!(Mixed { row, pair, array, leaf });

/// Holds no references.
struct Leaf(u64);

impl Trace for Leaf {
    const TRACKED: bool = false;
    fn traverse(_: &Self, _: &mut Tracer) {}
}

#[test]
fn g_21_referents() {
    on_every_heap_attached(|lab, m| {
        let a = node(m, &lab.census, 1);
        let b = node(m, &lab.census, 2);
        let leaf = m.alloc(Leaf(5));
        assert!(m.referents(&any(&a)).is_empty());
        link(m, &a, &b);
        link(m, &a, &a);
        link(m, &a, &b);
        let found = m.referents(&any(&a));
        assert_eq!(names(m, &found), [1, 2, 2], "once for each reference");
        drop(found);

        let mixed = m.alloc(Mixed {
            row: GcCell::new(Row {
                list: vec![a.clone()],
                map: BTreeMap::from([(1, b.clone()), (2, a.clone())]),
            }),
            pair: (b.clone(), None),
            array: [a.clone(), b.clone()],
            leaf: leaf.clone(),
        });
        let found = m.referents(&AnyGc::from(mixed.clone()));
        assert_eq!(found.len(), 7, "a leaf is visited too");
        assert_eq!(names(m, &found), [1, 1, 1, 2, 2, 2]);
        assert_eq!(found.iter().filter(|any| any.is::<Leaf>(m)).count(), 1);
        assert_eq!(mixed.leaf.0, 5);
        let _ = (&mixed.row, &mixed.pair, &mixed.array);

        assert!(m.referents(&AnyGc::from(leaf)).is_empty());
        drop(found);
        assert_eq!(Gc::strong_count(&a), 5, "the handle, its own edge, three in the mixed object");
    });
}

#[test]
fn g_22_is_tracked() {
    on_every_heap_attached(|lab, m| {
        assert!(!Gc::is_tracked(&m.alloc(1u64), m));
        assert!(!Gc::is_tracked(&m.alloc(1.5f64), m));
        assert!(!Gc::is_tracked(&m.alloc(true), m));
        assert!(!Gc::is_tracked(&m.alloc(()), m));
        assert!(!Gc::is_tracked(&m.alloc(String::from("text")), m));
        assert!(!Gc::is_tracked(&m.alloc(vec![1u8, 2, 3]), m), "a container of leaves");
        assert!(!Gc::is_tracked(&m.alloc(Leaf(1)), m));
        let leaf = m.alloc(Leaf(1));
        assert!(Gc::is_tracked(&m.alloc(vec![leaf.clone()]), m), "a container of references");
        assert!(Gc::is_tracked(&m.alloc(Some(leaf)), m));
        let gc = node(m, &lab.census, 0);
        assert!(Gc::is_tracked(&gc, m));
        let any = any(&gc);
        assert!(any.is_tracked(m));
        m.safepoint();
        assert!(Gc::untrack(&gc, m));
        assert!(!Gc::is_tracked(&gc, m));
        assert!(!any.is_tracked(m));
        assert!(!Gc::untrack(&gc, m));
        assert!(!Gc::is_tracked(&gc, m), "twice is the same as once");
        m.safepoint();
        assert!(any.track(m));
        assert!(!any.track(m));
        assert!(Gc::is_tracked(&gc, m));
    });
}

#[test]
fn an_untracked_object_is_not_collected_and_keeps_its_targets() {
    on_every_heap_attached(|lab, m| {
        let lone = node(m, &lab.census, 0);
        let held = ring(m, &lab.census, 1, 2);
        link(m, &lone, &lone);
        link(m, &lone, &held[0]);
        Gc::untrack(&lone, m);
        let weak = Gc::downgrade(&lone, m);
        drop((lone, held));
        let report = m.collect();
        assert_eq!((report.candidates, report.unreachable), (2, 0));
        assert_eq!(lab.census.alive(), 3);
        let lone = weak.upgrade(m).expect("alive");
        Gc::track(&lone, m);
        drop(lone);
        assert_eq!(m.collect().collected, 3);
    });
}

#[test]
fn g_30_statistics_are_sums_of_the_reports() {
    on_every_heap_attached(|lab, m| {
        let before = lab.heap.stats();
        garbage_loop(m, &lab.census, 0);
        let report = m.collect_young();
        assert_eq!((report.kind, report.collected), (CollectionKind::Young, 1));
        let young = lab.heap.stats();
        assert_eq!(young.young_collections, before.young_collections + 1);
        assert_eq!(young.collections, before.collections + 1);
        assert_eq!(young.collected, before.collected + 1);
        drop(ring(m, &lab.census, 1, 2));
        let report = m.collect();
        assert_eq!((report.kind, report.collected), (CollectionKind::Full, 2));
        let full = lab.heap.stats();
        assert_eq!(full.young_collections, young.young_collections);
        assert_eq!(full.collections, young.collections + 1);
        assert_eq!(full.collected, young.collected + 2);
        assert!(full.reserved_bytes >= full.committed_bytes);
        assert!(full.committed_bytes >= full.in_use_bytes && full.in_use_bytes >= full.live_bytes);
        assert_eq!(full.mutators, 1);
    });
}

#[test]
fn g_31_freeze_and_unfreeze() {
    on_every_heap_attached(|lab, m| {
        assert_eq!(m.frozen(), 0);
        let kept = ring(m, &lab.census, 0, 3);
        let leaf = m.alloc(Leaf(0));
        assert_eq!(m.freeze(), 3, "tracked objects only");
        assert_eq!(m.frozen(), 3);
        let later = node(m, &lab.census, 9);
        assert_eq!(m.frozen(), 3, "objects made later are not frozen");
        assert!(kept.iter().all(|gc| Gc::is_tracked(gc, m)));
        let report = m.collect();
        assert_eq!(report.candidates, 1);
        // Frozen garbage stays; frozen objects that die by count leave the number.
        let lone = kept[0].clone();
        drop(kept);
        assert_eq!(m.collect().unreachable, 0);
        drop(cut(m, &lone));
        drop(lone);
        assert_eq!(lab.census.alive(), 1);
        assert_eq!(m.frozen(), 0);
        m.unfreeze();
        assert_eq!(m.frozen(), 0);
        drop((leaf, later));
    });
}

#[test]
fn frozen_garbage_is_collected_after_unfreeze() {
    on_every_heap_attached(|lab, m| {
        drop(ring(m, &lab.census, 0, 4));
        assert_eq!(m.freeze(), 4);
        assert_eq!(m.collect().unreachable, 0);
        assert_eq!(m.collect_young().unreachable, 0);
        assert_eq!((m.frozen(), lab.census.alive()), (4, 4));
        m.unfreeze();
        m.unfreeze();
        assert_eq!(m.frozen(), 0);
        assert_eq!(m.collect().collected, 4);
    });
}

#[test]
fn g_32_objects_contains_a_new_object() {
    on_every_heap_attached(|lab, m| {
        let before = m.objects().len();
        let a = node(m, &lab.census, 0);
        let leaf = m.alloc(Leaf(0));
        let lone = node(m, &lab.census, 1);
        Gc::untrack(&lone, m);
        let objects = m.objects();
        assert_eq!(objects.len(), before + 1, "tracked objects only");
        let found = objects.iter().find_map(|any| any.downcast_ref::<Node>(m)).expect("found");
        assert!(std::ptr::eq(found, &*a));
        assert!(objects.iter().all(|any| !any.is::<Leaf>(m)));
        assert_eq!(Gc::strong_count(&a), 2, "a strong handle each");
        drop(objects);
        assert_eq!(Gc::strong_count(&a), 1);
        drop((leaf, lone));
    });
}

#[test]
fn g_33_objects_grow_old() {
    on_every_heap_attached(|lab, m| {
        let old = ring(m, &lab.census, 0, 3);
        assert_eq!(m.collect_young().candidates, 3);
        assert_eq!(m.collect_young().candidates, 0, "they are old now");
        let new = ring(m, &lab.census, 3, 2);
        drop(old);
        assert_eq!(m.collect_young().unreachable, 0, "old garbage is not looked at");
        assert_eq!(lab.census.alive(), 5);
        drop(new);
        assert_eq!(m.collect_young().candidates, 0);
        let report = m.collect();
        assert_eq!((report.candidates, report.collected), (5, 5));
    });
}

#[test]
fn young_collections_keep_the_targets_of_old_objects() {
    on_every_heap_attached(|lab, m| {
        let old = node(m, &lab.census, 0);
        m.collect();
        let new = ring(m, &lab.census, 1, 2);
        link(m, &old, &new[0]);
        drop(new);
        garbage_loop(m, &lab.census, 9);
        let report = m.collect_young();
        assert_eq!((report.candidates, report.collected), (3, 1));
        assert_eq!(edge_names(m, &old), [1]);
        // Garbage that spans the ages is found by a full collection, not before.
        link(m, &old, &old);
        drop(old);
        assert_eq!(m.collect_young().unreachable, 0);
        assert_eq!(m.collect().collected, 3);
    });
}

#[test]
fn young_garbage_that_refers_to_old_objects_lets_go_of_them() {
    on_every_heap_attached(|lab, m| {
        let old = node(m, &lab.census, 0);
        m.collect();
        let new = ring(m, &lab.census, 1, 2);
        link(m, &new[1], &old);
        drop(new);
        assert_eq!(m.collect_young().collected, 2);
        assert_eq!(Gc::strong_count(&old), 1);
    });
}

#[test]
fn an_object_that_is_tracked_again_is_young_again() {
    on_every_heap_attached(|lab, m| {
        let gc = node(m, &lab.census, 0);
        link(m, &gc, &gc);
        m.collect();
        Gc::untrack(&gc, m);
        m.collect();
        Gc::track(&gc, m);
        drop(gc);
        assert_eq!(m.collect_young().collected, 1);
    });
}

#[test]
fn g_34_two_inspections_agree() {
    on_every_heap_attached(|lab, m| {
        let kept = ring(m, &lab.census, 0, 10);
        let first = m.objects();
        let second = m.objects();
        assert_eq!(first.len(), second.len());
        assert_eq!(names(m, &first), (0..10).collect::<Vec<_>>());
        assert_eq!(names(m, &second), names(m, &first));
        drop(kept);
    });
}

#[test]
fn g_39_referents_of_an_untracked_object() {
    on_every_heap_attached(|lab, m| {
        let a = node(m, &lab.census, 0);
        let b = node(m, &lab.census, 1);
        link(m, &a, &b);
        Gc::untrack(&a, m);
        let found = m.referents(&any(&a));
        assert_eq!(names(m, &found), [1], "an untracked object is asked too");
        Gc::track(&a, m);
        let found = m.referents(&any(&a));
        assert_eq!(names(m, &found), [1]);
    });
}

#[test]
fn referrers() {
    on_every_heap_attached(|lab, m| {
        let target = node(m, &lab.census, 0);
        let users: Vec<_> = (1..6).map(|name| node(m, &lab.census, name)).collect();
        assert!(m.referrers(&any(&target)).is_empty());
        for user in &users {
            link(m, user, &target);
            link(m, user, &target);
        }
        let found = m.referrers(&any(&target));
        assert_eq!(names(m, &found), [1, 2, 3, 4, 5], "each once");
        Gc::untrack(&users[0], m);
        drop(cut(m, &users[1]));
        link(m, &target, &target);
        let found = m.referrers(&any(&target));
        assert_eq!(names(m, &found), [0, 3, 4, 5]);
        m.freeze();
        let found = m.referrers(&any(&target));
        assert!(found.is_empty(), "frozen objects are not listed");
        assert!(m.objects().is_empty());
        m.unfreeze();
        let found = m.referrers(&any(&target));
        assert_eq!(names(m, &found), [0, 3, 4, 5]);
    });
}

/// Between the first finalizer and the end of a collection, its garbage is invisible to all
/// threads.
#[test]
fn g_40_objects_under_collection_are_hidden() {
    on_every_heap(|lab| {
        let (finals, looked) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let over = AtomicUsize::new(0);
        let (finals, looked, over) = (&finals, &looked, &over);
        std::thread::scope(|scope| {
            // The finalizers let the watcher start. The rest is a race with two permitted outcomes.
            let (start, started) = std::sync::mpsc::channel::<AnyGc>();
            let start = std::sync::Mutex::new(Some(start));
            let start = std::sync::Arc::new(start);
            let watcher = scope.spawn(move || {
                let mut m = lab.heap.attach();
                let Ok(kept) = m.detach(|| started.recv()) else { return };
                while over.load(SeqCst) == 0 {
                    let objects = m.objects();
                    let referrers = m.referrers(&kept);
                    // Seen before it was over? Then the pictures were taken while it ran.
                    if over.load(SeqCst) == 0 {
                        looked.fetch_add(1, SeqCst);
                        assert!(objects.iter().all(|any| !any.is::<Fin>(&m)));
                        assert!(referrers.is_empty(), "only garbage refers to it");
                    }
                }
            });
            let mut m = lab.heap.attach();
            let kept = node(&m, &lab.census, 0);
            struct Ref {
                kept: Gc<Node>,
                fins: GcCell<Vec<Gc<Fin>>>,
                me: GcCell<Option<Gc<Ref>>>,
            }
            crate::trace_fields!(Ref { kept, fins, me });
            let fins: Vec<_> = (1..50)
                .map(|name| {
                    let (start, kept) = (start.clone(), any(&kept));
                    fin(&m, &lab.census, name, move |_, _| {
                        if let Some(start) = start.lock().unwrap().take() {
                            let _ = start.send(kept.clone());
                        }
                        std::thread::yield_now();
                    })
                })
                .collect();
            tie(&m, &fins);
            let refs =
                m.alloc(Ref { kept: kept.clone(), fins: GcCell::new(fins), me: GcCell::default() });
            refs.me.set(&m, Some(refs.clone()));
            drop(refs);
            let report = m.collect();
            over.store(1, SeqCst);
            assert_eq!((report.unreachable, report.collected), (50, 50));
            finals.store(lab.census.finalized(), SeqCst);
            drop(start);
            m.detach(|| watcher.join().expect("the watcher saw only what it may see"));
        });
        assert_eq!(finals.load(SeqCst), 49);
        eprintln!("{} looks during the collection", looked.load(SeqCst));
    });
}

#[test]
fn g_41_garbage_that_refers_to_a_frozen_object() {
    on_every_heap_attached(|lab, m| {
        let frozen = node(m, &lab.census, 0);
        assert_eq!(m.freeze(), 1);
        let garbage = ring(m, &lab.census, 1, 2);
        link(m, &garbage[0], &frozen);
        assert_eq!(Gc::strong_count(&frozen), 2);
        drop(garbage);
        assert_eq!(m.collect().collected, 2);
        assert_eq!(Gc::strong_count(&frozen), 1);
        assert_eq!(m.frozen(), 1);
        m.unfreeze();
        assert_eq!(m.collect().candidates, 1);
        drop(frozen);
        assert_eq!(lab.census.alive(), 0);
    });
}

#[test]
fn g_42_freeze_collect_unfreeze() {
    on_every_heap_attached(|lab, m| {
        for round in 0..10 {
            let kept = ring(m, &lab.census, round, 5);
            m.freeze();
            garbage_loop(m, &lab.census, 100 + round);
            assert_eq!(m.collect().collected, 1);
            m.unfreeze();
            assert_eq!(m.collect().unreachable, 0);
            drop(kept);
            assert_eq!(m.collect().collected, 5);
        }
    });
}

#[test]
fn frozen_objects_keep_their_targets() {
    on_every_heap_attached(|lab, m| {
        let frozen = node(m, &lab.census, 0);
        m.freeze();
        let held = ring(m, &lab.census, 1, 3);
        link(m, &frozen, &held[0]);
        drop(held);
        assert_eq!(m.collect().unreachable, 0);
        m.unfreeze();
        link(m, &frozen, &frozen);
        drop(frozen);
        assert_eq!(m.collect().collected, 4);
    });
}

/// Frozen objects age like others, on every page: unfrozen they are no business of young
/// collections, and leave no trace in them.
#[test]
fn frozen_objects_age() {
    on_every_heap_attached(|lab, m| {
        let count = if lab.stress { 3_000 } else { 20_000 };
        let frozen: Vec<_> = (0..count).map(|name| node(m, &lab.census, name)).collect();
        assert_eq!(m.freeze(), count);
        assert_eq!(m.collect_young().candidates, 0);
        m.unfreeze();
        // New ones that refer to them, on pages of their own.
        let new: Vec<_> = (0..count).map(|name| node(m, &lab.census, name)).collect();
        for (from, to) in new.iter().zip(&frozen) {
            link(m, from, to);
        }
        assert_eq!(m.collect_young().candidates, count);
        m.verify().expect("a sound heap");
        let report = m.collect();
        assert_eq!((report.candidates, report.unreachable), (2 * count, 0));
        drop((frozen, new));
        assert_eq!(lab.census.alive(), 0);
    });
}

/// Garbage that cannot be cleared survives young collections, on every page, and leaves no trace in
/// them.
#[test]
fn uncollectable_objects_in_young_collections() {
    on_every_heap_attached(|lab, m| {
        let count = if lab.stress { 2_000 } else { 10_000 };
        for _ in 0..count {
            Stubborn::garbage(m, &lab.census, 1);
        }
        let report = m.collect_young();
        assert_eq!((report.unreachable, report.uncollectable), (count, count));
        // New ones refer to them.
        let found: Vec<_> =
            m.objects().into_iter().filter_map(|any| any.downcast(m).ok()).collect();
        assert_eq!(found.len(), count);
        let new: Vec<_> =
            found.into_iter().map(|old| Stubborn::referring(m, &lab.census, old)).collect();
        m.collect_young();
        m.verify().expect("a sound heap");
        drop(new);
        m.collect_young();
        m.verify().expect("a sound heap");
        assert_eq!(m.collect().uncollectable, count, "a full one tries again");
        assert_eq!(Stubborn::break_all(m), count);
        assert_eq!(lab.census.alive(), 0);
    });
}

#[test]
fn an_erased_handle_knows_its_type() {
    on_every_heap_attached(|lab, m| {
        let gc = node(m, &lab.census, 3);
        let any = Gc::into_any(gc.clone());
        assert!(any.type_name(m).contains("Thing"), "{}", any.type_name(m));
        assert!(any.downcast_ref::<Fin>(m).is_none());
        assert_eq!(any.downcast_ref::<Node>(m).expect("a Node").name(), 3);
        let any = any.downcast::<Fin>(m).expect_err("not a Fin");
        let back = any.downcast::<Node>(m).expect("a Node");
        assert!(back == gc);
        assert_eq!(Gc::strong_count(&gc), 2);
    });
}

#[test]
fn immortal_objects_are_roots_for_ever() {
    on_every_heap_attached(|lab, m| {
        let immortal = node(m, &lab.census, 0);
        let held = ring(m, &lab.census, 1, 2);
        link(m, &immortal, &held[0]);
        link(m, &immortal, &immortal);
        Gc::immortalize(&immortal, m);
        let weak = Gc::downgrade(&immortal, m);
        drop((immortal, held));
        let report = m.collect();
        assert_eq!((report.unreachable, lab.census.alive()), (0, 3));
        let immortal = weak.upgrade(m).expect("immortal");
        for _ in 0..1000 {
            drop(immortal.clone());
        }
        assert_eq!(edge_names(m, &immortal), [1, 0]);
        drop(cut(m, &immortal));
        drop(immortal);
        assert_eq!(m.collect().collected, 2, "the objects that it dropped die");
        assert_eq!(weak.upgrade(m).expect("immortal").name(), 0);
        lab.leaves_behind(1);
    });
}
