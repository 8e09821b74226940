//! G-11, G-12, G-24, G-38, G-43, G-50, G-51: weak references and their callbacks.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use standstill::{AnyGc, Gc, GcCell, GcWeak, Mutator, Trace, Tracer, WeakRef};

use crate::common::*;
use crate::trace_fields;

#[test]
fn g_11_a_weak_reference_made_by_a_finalizer_is_dead_before_anything_is_cleared() {
    on_every_heap_attached(|lab, m| {
        // `peek` is no garbage itself: it hangs on a garbage object and dies by count when that one
        // is cleared. It looks through the weak reference that a finalizer made of another member.
        let made: Arc<std::sync::Mutex<Option<GcWeak<Fin>>>> = Arc::default();
        let seen = Arc::new(AtomicUsize::new(0));
        let target = fin(m, &lab.census, 0, |_, _| ());
        let maker = fin(m, &lab.census, 1, {
            let made = made.clone();
            move |this, m| {
                let target = this.edges.lock(m)[0].clone();
                *made.lock().unwrap() = Some(Gc::downgrade(&target, m));
                assert!(
                    made.lock().unwrap().as_ref().unwrap().upgrade(m).is_some(),
                    "whole at this time"
                );
            }
        });
        tie(m, &[maker.clone(), target.clone()]);
        let peek = fin(m, &lab.census, 2, {
            let (made, seen) = (made.clone(), seen.clone());
            move |_, m| {
                let weak = made.lock().unwrap().clone().expect("the maker's finalizer came first");
                seen.fetch_add(if weak.upgrade(m).is_some() { 100 } else { 1 }, SeqCst);
            }
        });
        // Untracked, so no candidate: its finalizer runs in the cascade and not with the others.
        Gc::untrack(&peek, m);
        link(m, &target, &peek);
        drop((target, maker, peek));
        assert_eq!(m.collect().collected, 2);
        assert_eq!(seen.load(SeqCst), 1, "it ran once and saw nothing");
    });
}

#[test]
fn g_12_plain_weak_references_work_inside_finalizers() {
    on_every_heap_attached(|lab, m| {
        let state = fin(m, &lab.census, 0, |_, _| ());
        let weak = Gc::downgrade(&state, m);
        let seen = Arc::new(AtomicUsize::new(0));
        let user = fin(m, &lab.census, 1, {
            let (weak, seen) = (weak.clone(), seen.clone());
            move |_, m| {
                let state = weak.upgrade(m).expect("its own state is still there");
                seen.fetch_add(state.name() + 1, SeqCst);
            }
        });
        tie(m, &[state.clone(), user.clone()]);
        drop((state, user));
        assert_eq!(m.collect().collected, 2);
        assert_eq!(seen.load(SeqCst), 1);
        assert!(weak.upgrade(m).is_none());
    });
}

#[test]
fn g_24_callbacks_see_no_garbage_through_any_weak_reference_with_a_callback() {
    on_every_heap_attached(|lab, m| {
        let calls = Calls::new();
        let members: Vec<_> = (0..2).map(|name| fin(m, &lab.census, name, |_, _| ())).collect();
        tie(m, &members);
        let watching: Vec<_> = members.iter().map(|gc| watched(m, gc, &calls)).collect();
        *calls.others.lock().unwrap() = watching;
        drop(members);
        assert_eq!(m.collect().collected, 2);
        assert_eq!((calls.count(), calls.saw()), (2, 0));
        drop(std::mem::take(&mut *calls.others.lock().unwrap()));
    });
}

/// A reference that traversal does not show.
struct Hidden {
    inside: Gc<Fin>,
    _witness: Witness,
}

impl Trace for Hidden {
    fn traverse(_: &Self, _: &mut Tracer) {}
}

#[derive(Default)]
struct Parts(Vec<AnyGc>);
trace_fields!(Parts { 0 });

struct Holder {
    parts: GcCell<Parts>,
    _witness: Witness,
}
trace_fields!(Holder { parts });

#[test]
fn g_38_the_callback_of_a_garbage_weak_reference_is_not_called() {
    on_every_heap_attached(|lab, m| {
        // holder -> holder, holder -> weak reference, holder -> hidden -> target. The target is
        // kept by a reference that no traversal shows, so it is no garbage. It dies when `hidden`
        // dies in the cascade.
        let calls = Calls::new();
        let target = fin(m, &lab.census, 0, |_, _| ());
        let weak = watched(m, &target, &calls);
        let hidden = m.alloc(Hidden { inside: target, _witness: Witness::new(&lab.census, 1) });
        assert_eq!(hidden.inside.name(), 0);
        let holder =
            m.alloc(Holder { parts: GcCell::default(), _witness: Witness::new(&lab.census, 2) });
        holder.parts.lock(m).0 = vec![holder.clone().into(), hidden.into(), weak.into()];
        drop(holder);
        let report = m.collect();
        assert_eq!((report.unreachable, report.collected), (3, 3));
        assert_eq!(lab.census.alive(), 0);
        assert_eq!(calls.count(), 0, "its weak reference was garbage itself");
    });
}

#[test]
fn g_43_finalizers_walk_a_structure_of_weak_references() {
    on_every_heap_attached(|lab, m| {
        // A base and its derived classes, which it knows weakly; each finalizer walks the whole.
        let seen = Arc::new(AtomicUsize::new(0));
        let known: Arc<std::sync::Mutex<Vec<GcWeak<Fin>>>> = Arc::default();
        let walk = {
            let (seen, known) = (seen.clone(), known.clone());
            move |this: &Gc<Fin>, m: &Mutator| {
                let weaks = known.lock().unwrap().clone();
                for class in weaks.iter().filter_map(|weak| weak.upgrade(m)) {
                    let base = class.edges.lock(m)[0].clone();
                    assert_eq!(base.name(), 0);
                    seen.fetch_add(1, SeqCst);
                }
                assert!(!this.edges.lock(m).is_empty());
            }
        };
        let base = fin(m, &lab.census, 0, walk.clone());
        link(m, &base, &base);
        for name in 1..5 {
            let class = fin(m, &lab.census, name, walk.clone());
            link(m, &class, &base);
            link(m, &class, &class);
            known.lock().unwrap().push(Gc::downgrade(&class, m));
        }
        drop(base);
        assert_eq!(m.collect().collected, 5);
        assert_eq!(seen.load(SeqCst), 5 * 4, "each of five saw all four");
    });
}

/// An object outside the first garbage becomes garbage because that garbage is cleared.
fn clearing_exposes_nothing(callback: bool) {
    on_every_heap_attached(|lab, m| {
        let calls = Calls::new();
        let seen = Arc::new(AtomicUsize::new(0));
        let young = [fin(m, &lab.census, 0, |_, _| ()), fin(m, &lab.census, 1, |_, _| ())];
        tie(m, &young);
        let weak = Gc::downgrade(&young[0], m);
        let old = fin(m, &lab.census, 2, {
            let (weak, seen) = (weak.clone(), seen.clone());
            move |_, m| {
                seen.fetch_add(if weak.upgrade(m).is_some() { 100 } else { 1 }, SeqCst);
            }
        });
        // Not a candidate, so that it is not found as garbage together with the others.
        Gc::untrack(&old, m);
        link(m, &young[1], &old);
        calls.weaks.lock().unwrap().push(weak);
        let watch = watched(m, &old, &calls);
        drop((young, old));
        assert_eq!(m.collect().collected, 2);
        assert_eq!(lab.census.alive(), 0);
        if callback {
            assert_eq!((calls.count(), calls.saw()), (1, 0));
        } else {
            assert_eq!(seen.load(SeqCst), 1);
        }
        drop(watch);
    });
}

#[test]
fn g_50_a_callback_of_a_side_effect_sees_no_cleared_garbage() {
    clearing_exposes_nothing(true);
}

#[test]
fn g_51_a_finalizer_of_a_side_effect_sees_no_cleared_garbage() {
    clearing_exposes_nothing(false);
}

#[test]
fn a_callback_runs_once_when_the_count_reaches_zero() {
    on_every_heap_attached(|lab, m| {
        let calls = Calls::new();
        let gc = fin(m, &lab.census, 0, |_, _| ());
        let weak = watched(m, &gc, &calls);
        let other = Gc::downgrade(&gc, m);
        assert!(weak.upgrade(m).expect("alive") == gc);
        assert_eq!(Arc::as_ptr(weak.data()), Arc::as_ptr(&calls));
        drop(gc);
        assert_eq!((calls.count(), calls.saw()), (1, 0));
        assert!(weak.upgrade(m).is_none());
        assert!(other.upgrade(m).is_none());
        m.collect();
        assert_eq!(calls.count(), 1);
    });
}

/// All callbacks of a collection come before its first finalizer; at count 0 the finalizer comes
/// first, since it may still save the object.
#[test]
fn callbacks_and_finalizers_in_their_order() {
    type Log = Arc<std::sync::Mutex<Vec<&'static str>>>;
    on_every_heap_attached(|lab, m| {
        let log = Log::default();
        let watch = |m: &Mutator, gc: &Gc<Fin>| {
            m.alloc_weak(gc, log.clone(), |weak, _| weak.data().lock().unwrap().push("callback"))
        };
        let new = |m: &Mutator, name| {
            let log = log.clone();
            fin(m, &lab.census, name, move |_, _| log.lock().unwrap().push("finalizer"))
        };
        let members: Vec<_> = (0..3).map(|name| new(m, name)).collect();
        tie(m, &members);
        let watching: Vec<_> = members.iter().map(|gc| watch(m, gc)).collect();
        drop(members);
        assert_eq!(m.collect().collected, 3);
        let seen = std::mem::take(&mut *log.lock().unwrap());
        assert_eq!(
            seen,
            ["callback", "callback", "callback", "finalizer", "finalizer", "finalizer"]
        );

        let lone = new(m, 3);
        let weak = watch(m, &lone);
        drop(lone);
        assert_eq!(*log.lock().unwrap(), ["finalizer", "callback"]);
        drop((watching, weak));
    });
}

#[test]
fn a_callback_of_a_weak_reference_that_died_first_does_not_run() {
    on_every_heap_attached(|lab, m| {
        let calls = Calls::new();
        let gc = fin(m, &lab.census, 0, |_, _| ());
        drop(watched(m, &gc, &calls));
        link(m, &gc, &gc);
        drop(gc);
        m.collect();
        assert_eq!((calls.count(), lab.census.alive()), (0, 0));
    });
}

/// A callback may drop the weak reference that called it, and may allocate.
#[test]
fn a_callback_may_drop_its_own_weak_reference() {
    type Slot = Arc<std::sync::Mutex<Option<Gc<WeakRef<Fin, Slots>>>>>;
    struct Slots(Slot, Arc<Census>);
    impl Trace for Slots {
        fn traverse(_: &Self, _: &mut Tracer) {}
    }
    on_every_heap_attached(|lab, m| {
        for by_collection in [false, true] {
            let slot = Slot::default();
            let gc = fin(m, &lab.census, 0, |_, _| ());
            if by_collection {
                link(m, &gc, &gc);
            }
            let weak = m.alloc_weak(&gc, Slots(slot.clone(), lab.census.clone()), |weak, m| {
                let Slots(slot, census) = weak.data();
                let taken = slot.lock().unwrap().take();
                assert!(taken.expect("called once") == *weak);
                garbage_loop(m, census, 1);
            });
            *slot.lock().unwrap() = Some(weak);
            drop(gc);
            m.collect();
            assert!(slot.lock().unwrap().is_none(), "the callback ran");
        }
    });
}

#[test]
fn a_default_weak_reference_is_dead() {
    on_every_heap_attached(|lab, m| {
        assert!(GcWeak::<Node>::new().upgrade(m).is_none());
        assert!(GcWeak::<Node>::default().clone().upgrade(m).is_none());
        assert_eq!(lab.census.born(), 0);
    });
}

#[test]
fn many_weak_references_to_one_object() {
    on_every_heap_attached(|lab, m| {
        let gc = node(m, &lab.census, 0);
        let mut weaks: Vec<_> = (0..1000).map(|_| Gc::downgrade(&gc, m)).collect();
        weaks.extend(weaks.clone());
        assert_eq!(Gc::strong_count(&gc), 1, "weak references do not count");
        assert!(weaks.iter().all(|weak| weak.upgrade(m).expect("alive") == gc));
        assert_eq!(Gc::strong_count(&gc), 1);
        link(m, &gc, &gc);
        drop(gc);
        m.safepoint();
        m.collect();
        assert!(weaks.iter().all(|weak| weak.upgrade(m).is_none()));
    });
}

/// Weak references to garbage without code die in the first stop, before the cycle is cleared, and
/// one that is upgraded in time saves its target.
#[test]
fn an_upgraded_weak_reference_is_a_root() {
    on_every_heap_attached(|lab, m| {
        let members = ring(m, &lab.census, 0, 3);
        let weak = Gc::downgrade(&members[1], m);
        drop(members);
        let strong = weak.upgrade(m).expect("no collection yet");
        assert_eq!(m.collect().unreachable, 0);
        drop(strong);
        assert_eq!(m.collect().collected, 3);
        assert!(weak.upgrade(m).is_none());
    });
}

#[test]
fn an_object_at_the_address_of_a_dead_one_has_a_record_of_its_own() {
    on_every_heap_attached(|lab, m| {
        let mut old = Vec::new();
        for round in 0..20 {
            let members = ring(m, &lab.census, 0, 100);
            for member in &members {
                let weak = Gc::downgrade(member, m);
                assert!(weak == Gc::downgrade(member, m), "one record for all");
                assert!(!old.contains(&weak));
                old.push(weak);
            }
            if round % 2 == 0 {
                drop(members);
                assert_eq!(m.collect().collected, 100);
            } else {
                // By count.
                members[0].edges.lock(m).clear();
                drop(members);
            }
            assert!(old.iter().all(|weak| weak.upgrade(m).is_none()), "round {round}");
        }
    });
}

/// A collection clears the weak references to an object that clearing does not free. Those that
/// are made later work like all others.
#[test]
fn a_survivor_of_a_collection_has_new_weak_references() {
    /// It has no clear handler, so a collection cannot break its cycle.
    struct Stubborn {
        me: GcCell<Option<Gc<Stubborn>>>,
        _witness: Witness,
    }
    impl Trace for Stubborn {
        fn traverse(this: &Self, tracer: &mut Tracer) {
            Trace::traverse(&this.me, tracer);
        }
    }
    on_every_heap_attached(|lab, m| {
        let calls = Arc::new(AtomicUsize::new(0));
        let stubborn = Stubborn { me: GcCell::default(), _witness: Witness::new(&lab.census, 0) };
        let gc = m.alloc(stubborn);
        gc.me.set(m, Some(gc.clone()));
        let early = Gc::downgrade(&gc, m);
        drop(gc);
        assert_eq!(m.collect().uncollectable, 1);
        assert!(early.upgrade(m).is_none());
        let survivors = m.objects().into_iter().filter_map(|it| it.downcast::<Stubborn>(m).ok());
        let gc = survivors.last().expect("it survived");
        let late = Gc::downgrade(&gc, m);
        assert!(late != early && late.upgrade(m).expect("alive") == gc);
        let watch = m.alloc_weak(&gc, calls.clone(), |weak, _| {
            weak.data().fetch_add(1, SeqCst);
        });
        gc.me.set(m, None);
        drop(gc);
        assert!(late.upgrade(m).is_none() && watch.upgrade(m).is_none());
        assert_eq!((calls.load(SeqCst), lab.census.alive()), (1, 0));
    });
}
