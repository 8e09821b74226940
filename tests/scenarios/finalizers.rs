//! G-23, G-35 to G-37, G-58 to G-72: finalizers, and the objects that they resurrect.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use standstill::{Finalizer, Gc, GcWeak, Mutator, Trace, Tracer, WeakRef};

use crate::common::*;

/// The action of one member of a scenario's graph when it is finalized.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Does {
    Nothing,
    /// Puts itself on the shelf.
    Survive,
    /// Drops its references.
    Break,
}

/// A member with a chosen action. It records if its own reference differs from the one that it was
/// made with.
fn member(
    lab: &Lab,
    m: &Mutator,
    shelf: &Arc<Shelf<Fin>>,
    insane: &Arc<AtomicUsize>,
    name: usize,
    does: Does,
    next: usize,
) -> Gc<Fin> {
    let (shelf, insane) = (shelf.clone(), insane.clone());
    fin(m, &lab.census, name, move |this, m| {
        // The neighbour is whole: no object was cleared. It may have broken its own links by
        // itself.
        for neighbour in this.edges.lock(m).iter() {
            insane.fetch_add(usize::from(neighbour.name() != next), SeqCst);
        }
        match does {
            Does::Nothing => (),
            Does::Survive => shelf.push(this.clone()),
            Does::Break => drop(cut(m, this)),
        }
    })
}

/// A ring whose members act as `what` says, found by a collection. Returns the names of the
/// survivors.
fn ring_of(lab: &Lab, m: &mut Mutator, what: &[Does]) {
    use Does::Survive;
    let n = what.len();
    let (shelf, insane) = (Shelf::new(), Arc::new(AtomicUsize::new(0)));
    let members: Vec<_> = (0..n)
        .map(|name| member(lab, m, &shelf, &insane, name, what[name], (name + 1) % n))
        .collect();
    tie(m, &members);
    let plain: Vec<GcWeak<Fin>> = members.iter().map(|gc| Gc::downgrade(gc, m)).collect();
    let calls = Calls::new();
    let watching: Vec<_> = members.iter().map(|gc| watched(m, gc, &calls)).collect();
    m.safepoint();
    drop(members);
    let report = m.collect();

    let all: Vec<usize> = (0..n).collect();
    assert_eq!(report.finalized, n);
    assert_eq!(lab.census.finalized_names(), all, "each is finalized once");
    assert_eq!(insane.load(SeqCst), 0, "links were damaged before a finalizer ran");
    lab.census.assert_finalizers_came_first();
    assert_eq!((calls.count(), calls.saw()), (n, 0), "callbacks run once each and see no object");
    let survivors = shelf.take();
    let names = set(survivors.iter().map(|gc| gc.name()));
    assert_eq!(names, set((0..n).filter(|&i| what[i] == Survive)));

    // All objects that a survivor reaches survive: everything up to the next broken link.
    let mut alive = vec![false; n];
    for start in (0..n).filter(|&i| what[i] == Survive) {
        let mut at = start;
        while !std::mem::replace(&mut alive[at], true) && what[at] != Does::Break {
            at = (at + 1) % n;
        }
    }
    for (i, weak) in plain.iter().enumerate() {
        assert_eq!(weak.upgrade(m).is_some(), alive[i], "plain weak reference to {i} of {what:?}");
        assert!(watching[i].upgrade(m).is_none(), "a weak reference with a callback is dead");
    }
    let living = alive.iter().filter(|&&alive| alive).count();
    assert_eq!(lab.census.alive(), living);
    // Those that broke their links by hand may have died without the collector's help.
    assert_eq!(report.unreachable, n);
    assert_eq!(report.resurrected, living);
    if !what.contains(&Does::Break) {
        assert_eq!(report.collected, n - living);
    }

    for gc in &survivors {
        assert!(Gc::is_finalized(gc, m));
        assert!(Gc::is_tracked(gc, m));
    }
    drop(survivors);
    let report = m.collect();
    assert_eq!(report.finalized, 0, "no object is finalized twice");
    assert_eq!(report.resurrected, 0);
    assert_eq!(lab.census.alive(), 0);
    assert_eq!(lab.census.finalized(), n);
    assert_eq!(lab.census.dead_names(), all);
    assert!(plain.iter().all(|weak| weak.upgrade(m).is_none()));
    assert_eq!(calls.count(), n, "no callback runs twice");
}

#[test]
fn g_23_is_finalized() {
    on_every_heap_attached(|lab, m| {
        let shelf = Shelf::new();
        let plain = node(m, &lab.census, 0);
        assert!(!Gc::is_finalized(&plain, m));
        let gc = fin(m, &lab.census, 1, {
            let shelf = shelf.clone();
            move |this, _| shelf.push(this.clone())
        });
        assert!(!Gc::is_finalized(&gc, m));
        link(m, &gc, &gc);
        drop(gc);
        m.collect();
        let back = shelf.take().pop().expect("resurrected");
        assert!(Gc::is_finalized(&back, m));
        assert!(!Gc::is_finalized(&plain, m));
    });
}

#[test]
fn g_35_finalizer_runs_once() {
    on_every_heap_attached(|lab, m| {
        let shelf = Shelf::new();
        let gc = fin(m, &lab.census, 0, {
            let shelf = shelf.clone();
            move |this, _| shelf.push(this.clone())
        });
        link(m, &gc, &gc);
        drop(gc);
        let report = m.collect();
        assert_eq!((report.finalized, report.resurrected, report.collected), (1, 1, 0));
        assert_eq!((shelf.len(), lab.census.alive()), (1, 1));
        drop(shelf.take());
        let report = m.collect();
        assert_eq!((report.finalized, report.resurrected, report.collected), (0, 0, 1));
        assert_eq!((shelf.len(), lab.census.finalized(), lab.census.alive()), (0, 1, 0));
    });
}

#[test]
fn g_36_resurrection_is_transitive() {
    on_every_heap_attached(|lab, m| {
        let shelf = Shelf::new();
        let lazarus = fin(m, &lab.census, 0, {
            let shelf = shelf.clone();
            move |this, _| shelf.push(this.clone())
        });
        let cargo: Vec<_> = (1..4).map(|name| fin(m, &lab.census, name, |_, _| ())).collect();
        link(m, &lazarus, &lazarus);
        link(m, &lazarus, &cargo[0]);
        link(m, &cargo[0], &cargo[1]);
        link(m, &cargo[1], &cargo[2]);
        link(m, &cargo[2], &cargo[0]);
        let before: Vec<_> = cargo.iter().map(Gc::as_ptr).collect();
        drop((lazarus, cargo));
        let report = m.collect();
        assert_eq!((report.resurrected, report.collected), (4, 0));
        let back = shelf.take().pop().expect("resurrected");
        let cargo0 = back.edges.lock(m)[1].clone();
        let cargo1 = cargo0.edges.lock(m)[0].clone();
        let cargo2 = cargo1.edges.lock(m)[0].clone();
        assert_eq!(
            [&cargo0, &cargo1, &cargo2].map(Gc::as_ptr).to_vec(),
            before,
            "the same objects"
        );
        assert_eq!([&cargo0, &cargo1, &cargo2].map(|gc| gc.name()), [1, 2, 3]);
        assert!(cargo2.edges.lock(m)[0] == cargo0, "linked as before");
        assert!(!lab.census.events().iter().any(|event| matches!(event, Event::Cleared(_))));
    });
}

#[test]
fn g_37_counts_with_resurrection() {
    on_every_heap_attached(|lab, m| {
        const N: usize = 100;
        let shelf = Shelf::new();
        let lazarus = |m: &Mutator| {
            let shelf = shelf.clone();
            let gc = fin(m, &lab.census, 1000, move |this, _| shelf.push(this.clone()));
            link(m, &gc, &gc);
        };
        let plain = |m: &Mutator| (0..N).for_each(|name| garbage_loop(m, &lab.census, name));
        let total = || lab.heap.stats().collected;
        let before = total();

        plain(m);
        assert_eq!(m.collect().collected, N);
        assert_eq!(total() - before, N);

        lazarus(m);
        let report = m.collect();
        assert_eq!((report.collected, report.uncollectable, report.resurrected), (0, 0, 1));
        assert_eq!(total() - before, N);

        plain(m);
        lazarus(m);
        let report = m.collect();
        assert_eq!((report.collected, report.uncollectable, report.resurrected), (N, 0, 1));
        assert_eq!(total() - before, 2 * N);

        assert_eq!(shelf.len(), 2);
        drop(shelf.take());
        assert_eq!(m.collect().collected, 2);
        assert_eq!(total() - before, 2 * N + 2);
    });
}

#[test]
fn g_58_no_cycle() {
    on_every_heap_attached(|lab, m| {
        let gc = fin(m, &lab.census, 0, |_, _| ());
        let weak = Gc::downgrade(&gc, m);
        drop(gc);
        assert_eq!((lab.census.finalized(), lab.census.alive()), (1, 0));
        assert!(weak.upgrade(m).is_none());
        let report = m.collect();
        assert_eq!((report.finalized, report.collected), (0, 0));
        assert_eq!(lab.census.finalized(), 1);
    });
}

#[test]
fn g_59_no_cycle_resurrecting() {
    on_every_heap_attached(|lab, m| {
        let shelf = Shelf::new();
        let gc = fin(m, &lab.census, 0, {
            let shelf = shelf.clone();
            move |this, _| shelf.push(this.clone())
        });
        let weak = Gc::downgrade(&gc, m);
        drop(gc);
        assert_eq!((lab.census.finalized(), lab.census.alive(), shelf.len()), (1, 1, 1));
        assert!(weak.upgrade(m).is_some(), "it lives");
        m.collect();
        assert_eq!((lab.census.finalized(), lab.census.alive()), (1, 1));
        let back = shelf.take().pop().expect("resurrected");
        assert!(Gc::is_finalized(&back, m));
        assert!(Gc::is_tracked(&back, m));
        assert_eq!(back.name(), 0);
        // It can still become garbage of a cycle, and is collected without a second call.
        link(m, &back, &back);
        drop(back);
        assert_eq!(m.collect().collected, 1);
        assert_eq!((lab.census.finalized(), lab.census.alive(), shelf.len()), (1, 0, 0));
        assert!(weak.upgrade(m).is_none());
    });
}

/// Holds no references; collections do not see it.
struct Atom {
    witness: Witness,
    shelf: Option<Arc<Shelf<Atom>>>,
}

impl Trace for Atom {
    const FINALIZER: Option<Finalizer<Self>> = Some(Finalizer::new(|this, _| {
        let atom = this;
        atom.witness.census().note(Event::Finalized(atom.witness.name()));
        if let Some(shelf) = &atom.shelf {
            shelf.push(this.clone());
        }
    }));
    const TRACKED: bool = false;

    fn traverse(_: &Self, _: &mut Tracer) {}
}

#[test]
fn g_60_an_untracked_type() {
    on_every_heap_attached(|lab, m| {
        let gc = m.alloc(Atom { witness: Witness::new(&lab.census, 0), shelf: None });
        assert!(!Gc::is_tracked(&gc, m));
        let weak = Gc::downgrade(&gc, m);
        assert_eq!(m.collect().candidates, 0);
        drop(gc);
        assert_eq!(lab.census.finalized_names(), [0]);
        assert_eq!(lab.census.alive(), 0);
        assert!(weak.upgrade(m).is_none());
        m.collect();
        assert_eq!(lab.census.finalized_names(), [0]);
    });
}

/// CPython calls such a finalizer every time, for want of a place to note that it ran. Here every
/// object has one, so it runs once.
#[test]
fn g_61_an_untracked_type_that_resurrects_is_finalized_once_too() {
    on_every_heap_attached(|lab, m| {
        let shelf = Shelf::new();
        let gc =
            m.alloc(Atom { witness: Witness::new(&lab.census, 0), shelf: Some(shelf.clone()) });
        let weak = Gc::downgrade(&gc, m);
        drop(gc);
        assert_eq!((lab.census.alive(), shelf.len()), (1, 1));
        assert!(weak.upgrade(m).is_some());
        let back = shelf.take().pop().expect("resurrected");
        assert!(Gc::is_finalized(&back, m));
        assert!(!Gc::is_tracked(&back, m), "still untracked");
        drop(back);
        assert_eq!((lab.census.alive(), shelf.len()), (0, 0));
        assert_eq!(lab.census.finalized_names(), [0]);
        assert!(weak.upgrade(m).is_none());
    });
}

#[test]
fn g_62_self_cycle() {
    on_every_heap_attached(|lab, m| ring_of(lab, m, &[Does::Nothing]));
}

#[test]
fn g_63_self_cycle_resurrecting() {
    on_every_heap_attached(|lab, m| ring_of(lab, m, &[Does::Survive]));
}

#[test]
fn g_64_self_cycle_that_breaks_itself() {
    on_every_heap_attached(|lab, m| ring_of(lab, m, &[Does::Break]));
}

#[test]
fn g_65_ring_of_plain_members() {
    on_every_heap_attached(|lab, m| ring_of(lab, m, &[Does::Nothing; 3]));
}

#[test]
fn g_66_ring_of_resurrectors() {
    on_every_heap_attached(|lab, m| ring_of(lab, m, &[Does::Survive; 3]));
}

#[test]
fn g_67_ring_of_breakers() {
    on_every_heap_attached(|lab, m| ring_of(lab, m, &[Does::Break; 3]));
}

#[test]
fn g_68_alternating_breakers_and_plain_members() {
    use Does::{Break, Nothing};
    on_every_heap_attached(|lab, m| ring_of(lab, m, &[Break, Nothing, Break, Nothing]));
}

#[test]
fn g_69_grouped_breakers_and_plain_members() {
    use Does::{Break, Nothing};
    on_every_heap_attached(|lab, m| ring_of(lab, m, &[Break, Break, Nothing, Nothing]));
}

#[test]
fn g_70_alternating_resurrectors_and_plain_members() {
    use Does::{Nothing, Survive};
    on_every_heap_attached(|lab, m| ring_of(lab, m, &[Survive, Nothing, Survive, Nothing]));
    on_every_heap_attached(|lab, m| ring_of(lab, m, &[Survive, Survive, Nothing, Nothing]));
}

#[test]
fn g_71_alternating_resurrectors_plain_members_and_breakers() {
    use Does::{Break, Nothing, Survive};
    on_every_heap_attached(|lab, m| {
        ring_of(lab, m, &[Survive, Break, Nothing, Survive, Break, Nothing])
    });
    on_every_heap_attached(|lab, m| ring_of(lab, m, &[Survive, Break, Survive, Break]));
}

#[test]
fn g_72_grouped_resurrectors_plain_members_and_breakers() {
    use Does::{Break, Nothing, Survive};
    on_every_heap_attached(|lab, m| {
        ring_of(lab, m, &[Survive, Survive, Break, Break, Nothing, Nothing])
    });
    on_every_heap_attached(|lab, m| ring_of(lab, m, &[Nothing, Survive, Nothing, Break]));
}

/// Its plain weak references can be upgraded meanwhile.
#[test]
fn an_object_is_tracked_finalized_and_counted_while_its_finalizer_runs() {
    on_every_heap_attached(|lab, m| {
        let seen = Arc::new(AtomicUsize::new(0));
        for cyclic in [false, true] {
            let counted = seen.clone();
            let gc = fin(m, &lab.census, usize::from(cyclic), move |this, m| {
                assert!(Gc::is_tracked(this, m));
                assert!(Gc::is_finalized(this, m));
                let again = Gc::downgrade(this, m).upgrade(m).expect("it lives");
                assert!(*this == again);
                assert!(Gc::strong_count(this) >= 2);
                counted.fetch_add(1, SeqCst);
            });
            if cyclic {
                link(m, &gc, &gc);
            }
            drop(gc);
            m.collect();
        }
        assert_eq!(seen.load(SeqCst), 2);
        assert_eq!(lab.census.alive(), 0);
    });
}

/// An object that a finalizer untracks leaves the garbage: it is neither cleared nor counted, and
/// the collector only drops its reference.
#[test]
fn a_finalizer_that_untracks_a_peer() {
    on_every_heap_attached(|lab, m| {
        let peer = fin(m, &lab.census, 0, |_, _| ());
        let weak = Gc::downgrade(&peer, m);
        let user = fin(m, &lab.census, 1, {
            let weak = weak.clone();
            move |_, m| {
                Gc::untrack(&weak.upgrade(m).expect("whole"), m);
            }
        });
        tie(m, &[peer.clone(), user.clone()]);
        drop((peer, user));
        let report = m.collect();
        assert_eq!((report.unreachable, report.finalized), (2, 2));
        assert!(!lab.census.events().contains(&Event::Cleared(0)));
        // Its reference counts as one from outside, so the other one stays with it.
        assert_eq!((report.collected, lab.census.alive()), (0, 2));
        let peer = weak.upgrade(m).expect("alive");
        assert_eq!(edge_names(m, &peer), [1]);
        Gc::track(&peer, m);
        drop(peer);
        assert_eq!(m.collect().collected, 2);
    });
}

/// A fresh cycle, made by a finalizer, is no business of the collection that called it.
#[test]
fn a_cycle_made_by_a_finalizer_survives_the_running_collection() {
    on_every_heap_attached(|lab, m| {
        let made = lab.census.clone();
        let gc = fin(m, &lab.census, 0, move |_, m| drop(ring(m, &made, 10, 3)));
        link(m, &gc, &gc);
        drop(gc);
        let report = m.collect();
        assert_eq!((report.unreachable, report.collected), (1, 1));
        assert_eq!(lab.census.alive(), 3);
        assert_eq!(m.collect().collected, 3);
    });
}

/// Two cycles; one is resurrected; the other is freed by the same collection.
#[test]
fn resurrection_does_not_save_strangers() {
    on_every_heap_attached(|lab, m| {
        let shelf = Shelf::new();
        let saved = fin(m, &lab.census, 0, {
            let shelf = shelf.clone();
            move |this, _| shelf.push(this.clone())
        });
        link(m, &saved, &saved);
        let lost: Vec<_> = (1..4).map(|name| fin(m, &lab.census, name, |_, _| ())).collect();
        tie(m, &lost);
        // A garbage object that refers to the saved one is not thereby saved.
        link(m, &lost[0], &saved);
        drop((saved, lost));
        let report = m.collect();
        assert_eq!((report.unreachable, report.finalized), (4, 4));
        assert_eq!((report.resurrected, report.collected), (1, 3));
        let back = shelf.take();
        assert_eq!(Gc::strong_count(&back[0]), 2, "the shelf and its own reference");
    });
}

/// The finalizer leaves the object to a live one instead of a handle outside the heap.
#[test]
fn resurrection_through_a_live_object_of_the_heap() {
    on_every_heap_attached(|lab, m| {
        let harbour = fin(m, &lab.census, 0, |_, _| ());
        let weak = Gc::downgrade(&harbour, m);
        let guest = fin(m, &lab.census, 1, move |this, m| {
            link(m, &weak.upgrade(m).expect("alive"), this);
        });
        let friend = fin(m, &lab.census, 2, |_, _| ());
        tie(m, &[guest.clone(), friend.clone()]);
        drop((guest, friend));
        let report = m.collect();
        assert_eq!((report.unreachable, report.resurrected, report.collected), (2, 2, 0));
        assert_eq!(edge_names(m, &harbour), [1]);
        drop(harbour);
        // The harbour was never garbage before, so only its finalizer is left to run.
        assert_eq!(m.collect().collected, 2);
        assert_eq!(lab.census.finalized_names(), [0, 1, 2]);
    });
}

/// The data with which a callback resurrects a neighbour of its target.
struct Rescue<const FINAL: bool> {
    weak: GcWeak<Thing<FINAL>>,
    shelf: Arc<Shelf<Thing<FINAL>>>,
}

impl<const FINAL: bool> Trace for Rescue<FINAL> {
    fn traverse(_: &Self, _: &mut Tracer) {}
}

fn resurrection_by_a_callback<const FINAL: bool>() {
    on_every_heap_attached(|lab, m| {
        let shelf = Shelf::new();
        let a: Gc<Thing<FINAL>> = thing(m, &lab.census, 0);
        let b: Gc<Thing<FINAL>> = thing(m, &lab.census, 1);
        tie(m, &[a.clone(), b.clone()]);
        let data = Rescue { weak: Gc::downgrade(&b, m), shelf: shelf.clone() };
        let watch = m.alloc_weak(&a, data, |this: &Gc<WeakRef<_, Rescue<FINAL>>>, m| {
            let rescue = this.data();
            if let Some(gc) = rescue.weak.upgrade(m) {
                rescue.shelf.push(gc);
            }
        });
        drop((a, b));
        let report = m.collect();
        assert_eq!((report.unreachable, report.resurrected, report.collected), (2, 2, 0));
        assert!(watch.upgrade(m).is_none(), "it was cleared before its callback ran");
        assert_eq!(edge_names(m, &shelf.take()[0]), [0]);
    });
}

/// A callback may resurrect as well, through a plain weak reference that it holds.
#[test]
fn resurrection_by_a_weak_callback() {
    resurrection_by_a_callback::<true>();
}

/// The same where no member of the set has a finalizer: the callback alone makes the second look
/// necessary.
#[test]
fn resurrection_by_a_weak_callback_alone() {
    resurrection_by_a_callback::<false>();
}
