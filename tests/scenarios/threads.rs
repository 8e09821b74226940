//! G-76 to G-78, G-80 to G-82: the same from several threads at once.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::mpsc;

use standstill::{AnyGc, Gc, GcCell, Mutator, Pacing};

use crate::common::*;
use crate::trace_fields;

/// Makes garbage and kept objects until it is stopped.
fn allocate(lab: &Lab, m: &mut Mutator, stop: &AtomicBool) {
    let mut kept = Vec::new();
    let mut name = 0;
    while !stop.load(SeqCst) {
        drop(ring(m, &lab.census, name, 3));
        kept.push(node(m, &lab.census, name));
        if kept.len() > 100 {
            kept.clear();
        }
        name += 1;
        m.safepoint();
    }
}

/// Sets a flag when dropped, also by a panic: the other threads end, and the panic is seen.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, SeqCst);
    }
}

/// The number of inspections of the heap.
fn inspections(lab: &Lab) -> usize {
    if lab.stress { 20 } else { 100 }
}

#[test]
fn g_76_objects_against_allocating_threads() {
    on_every_heap(|lab| {
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| allocate(lab, &mut lab.heap.attach(), &stop));
            }
            let _stop = Stop(&stop);
            let mut m = lab.heap.attach();
            for _ in 0..inspections(lab) {
                for any in m.objects() {
                    if let Some(node) = any.downcast_ref::<Node>(&m) {
                        node.witness.check();
                    }
                }
            }
        });
    });
}

struct Entry {
    entries: GcCell<Vec<Gc<Node>>>,
    _witness: Witness,
}
trace_fields!(Entry { entries });

#[test]
fn g_77_referrers_against_threads_that_make_referrers() {
    on_every_heap(|lab| {
        let (stop, seen) = (AtomicBool::new(false), AtomicUsize::new(0));
        let target = lab.heap.attach_scoped(|m| node(m, &lab.census, 0));
        std::thread::scope(|scope| {
            let (stop, seen, target) = (&stop, &seen, &target);
            for _ in 0..4 {
                scope.spawn(move || {
                    let mut m = lab.heap.attach();
                    while !stop.load(SeqCst) {
                        let made: Vec<_> = (0..10)
                            .map(|name| {
                                let entries = GcCell::new(vec![target.clone()]);
                                m.alloc(Entry {
                                    entries,
                                    _witness: Witness::new(&lab.census, name),
                                })
                            })
                            .collect();
                        m.safepoint();
                        drop(made);
                        m.safepoint();
                    }
                });
            }
            let lookers: Vec<_> = (0..2)
                .map(|_| {
                    scope.spawn(move || {
                        let mut m = lab.heap.attach();
                        for _ in 0..inspections(lab) {
                            for any in m.referrers(&AnyGc::from(target.clone())) {
                                let entry = any
                                    .downcast_ref::<Entry>(&m)
                                    .expect("only entries refer to it");
                                let held = entry.entries.lock(&m).len();
                                assert_eq!(held, 1);
                                seen.fetch_add(1, SeqCst);
                            }
                            m.safepoint();
                        }
                    })
                })
                .collect();
            let _stop = Stop(stop);
            for looker in lookers {
                looker.join().expect("a looker");
            }
        });
        assert!(seen.load(SeqCst) > 0);
        lab.heap.attach_scoped(|_| drop(target));
    });
}

/// An object that another thread drops while it is frozen dies, independently of its owner's
/// actions.
#[test]
fn g_78_a_frozen_object_dropped_by_another_thread() {
    on_every_heap(|lab| {
        let (give, take) = mpsc::channel::<Gc<Node>>();
        let (done, wait) = mpsc::channel::<()>();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                let mut m = lab.heap.attach();
                let gc = m.detach(|| take.recv().unwrap());
                m.freeze();
                drop(gc);
                m.collect();
                m.unfreeze();
                m.collect();
                done.send(()).unwrap();
            });
            let mut m = lab.heap.attach();
            let mine = node(&m, &lab.census, 0);
            link(&m, &mine, &node(&m, &lab.census, 1));
            give.send(mine).unwrap();
            m.detach(|| wait.recv().unwrap());
            m.safepoint();
            assert_eq!(lab.census.alive(), 0);
        });
    });
}

/// The owner is blocked, detached; the drop by another thread frees its object all the same.
#[test]
fn g_80_dropped_while_its_owner_is_blocked() {
    on_every_heap(|lab| {
        let (give, take) = mpsc::channel::<Gc<Node>>();
        let (done, wait) = mpsc::channel::<()>();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                let mut m = lab.heap.attach();
                let gc = m.detach(|| take.recv().unwrap());
                assert_eq!(lab.census.alive(), 1);
                drop(gc);
                // No collection and no safepoint of any thread was needed.
                assert_eq!(lab.census.alive(), 0);
                drop(m);
                done.send(()).unwrap();
            });
            let mut m = lab.heap.attach();
            let mine = node(&m, &lab.census, 0);
            m.detach(|| {
                give.send(mine).unwrap();
                wait.recv().unwrap();
            });
        });
    });
}

#[test]
fn g_81_setting_the_policy_against_threads_that_make_cycles() {
    on_every_heap(|lab| {
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..7 {
                scope.spawn(|| allocate(lab, &mut lab.heap.attach(), &stop));
            }
            let _stop = Stop(&stop);
            for i in 0..10_000 {
                let pacing = if i % 100 == 0 { Pacing::manual() } else { Pacing::default() };
                lab.heap.set_pacing(pacing.with_young_objects(100 + i));
            }
        });
        assert_eq!(lab.heap.pacing(), Pacing::default().with_young_objects(100 + 9_999));
    });
}

#[test]
fn g_82_reading_statistics_against_threads_that_allocate() {
    on_every_heap(|lab| {
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..7 {
                scope.spawn(|| allocate(lab, &mut lab.heap.attach(), &stop));
            }
            let _stop = Stop(&stop);
            let mut last = 0;
            for _ in 0..300 {
                let stats = lab.heap.stats();
                assert!(stats.committed_bytes <= stats.reserved_bytes);
                assert!(stats.collected >= last, "a total never goes back");
                last = stats.collected;
            }
        });
        assert_eq!(lab.heap.stats().mutators, 0);
    });
}

/// A thread that ends leaves its objects to the others.
#[test]
fn cycles_of_a_thread_that_ended_are_collected_by_another() {
    on_every_heap(|lab| {
        let kept = std::thread::scope(|scope| {
            scope
                .spawn(|| {
                    let m = lab.heap.attach();
                    drop(ring(&m, &lab.census, 0, 5));
                    let kept = node(&m, &lab.census, 9);
                    link(&m, &kept, &kept);
                    kept
                })
                .join()
                .expect("the thread")
        });
        let mut m = lab.heap.attach();
        assert_eq!(kept.name(), 9);
        assert_eq!(Gc::strong_count(&kept), 2);
        let report = m.collect();
        assert_eq!(report.collected, 5);
        drop(kept);
        assert_eq!(m.collect().collected, 1);
    });
}
