//! The nine laws of the design, each tested with code that tries to break it.
//!
//! Law 5 (no lock, no atomic read-modify-write, no shared line on the fast paths) is a statement
//! about code. From outside one can see that a thread in user code, for any time, keeps no other
//! thread from allocating, cloning, dropping and polling.

#![cfg(not(loom))]
#![allow(clippy::type_complexity)]

mod common;

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, mpsc};

use common::*;
use standstill::{
    AnyGc, AtomicGc, AttachError, Collect, CollectError, Finalizer, Gc, GcCell, GcOnce, GcWeak,
    Heap, Mutator, Pacing, Trace, Tracer,
};

// ---------------------------------------------------------------- law 1: the collector never frees

/// Shows its references a chosen number of times.
struct Liar {
    next: GcCell<Option<Gc<Liar>>>,
    times: AtomicUsize,
    witness: Witness,
}

impl Trace for Liar {
    fn traverse(this: &Self, tracer: &mut Tracer) {
        this.witness.check();
        for _ in 0..this.times.load(SeqCst) {
            Trace::traverse(&this.next, tracer);
        }
    }

    fn clear(this: &Self, m: &Mutator) {
        Trace::clear(&this.next, m);
    }
}

impl Liar {
    fn new(m: &Mutator, lab: &Lab, name: usize) -> Gc<Self> {
        let witness = Witness::new(&lab.census, name);
        m.alloc(Self { next: GcCell::default(), times: AtomicUsize::new(1), witness })
    }
}

/// A reference from outside that a traversal hides by showing an inner one twice: the live object
/// is cleared. It is not freed, and everything about it still works.
#[test]
fn law_1_a_live_object_that_looks_like_garbage_is_cleared_and_not_freed() {
    on_every_heap_attached(|lab, m| {
        let live = Liar::new(m, lab, 0);
        let other = Liar::new(m, lab, 1);
        live.next.set(m, Some(live.clone()));
        live.times.store(2, SeqCst);
        let weak = Gc::downgrade(&live, m);
        let report = m.collect();
        assert_eq!((report.unreachable, report.collected, report.uncollectable), (1, 0, 1));
        assert_eq!(lab.census.alive(), 2);
        assert!(live.next.get(m).is_none(), "cleared");
        assert!(weak.upgrade(m).is_none());
        assert_eq!(Gc::strong_count(&live), 1);
        // Good as new.
        live.times.store(1, SeqCst);
        live.witness.check();
        let weak = Gc::downgrade(&live, m);
        assert!(weak.upgrade(m).expect("alive") == live);
        live.next.set(m, Some(other.clone()));
        other.next.set(m, Some(live.clone()));
        m.safepoint();
        assert_eq!(m.collect().unreachable, 0);
        drop((live, other));
        assert_eq!(m.collect().collected, 2);
        assert_eq!(lab.census.dead_names(), [0, 1]);
    });
}

#[test]
fn law_1_a_traversal_may_show_a_handle_that_its_object_does_not_hold() {
    struct Shows {
        other: Arc<Mutex<Option<Gc<Node>>>>,
    }
    impl Trace for Shows {
        fn traverse(this: &Self, tracer: &mut Tracer) {
            if let Ok(other) = this.other.try_lock() {
                Trace::traverse(&*other, tracer);
            }
        }
    }
    on_every_heap_attached(|lab, m| {
        let target = node(m, &lab.census, 0);
        let tail = node(m, &lab.census, 1);
        link(m, &target, &tail);
        drop(tail);
        let other = Arc::new(Mutex::new(Some(target)));
        let shows = m.alloc(Shows { other: other.clone() });
        // The object that shows the handle is alive, so the collection reaches the target.
        assert_eq!(m.collect().unreachable, 0);
        // The object that shows the handle is garbage. Objects that seem to have only its
        // references die with it.
        let report = {
            drop(shows);
            let shows = m.alloc(vec![GcCell::new(Vec::<AnyGc>::new())]);
            let inner = m.alloc(Shows { other: other.clone() });
            shows[0].lock(m).extend([AnyGc::from(shows.clone()), AnyGc::from(inner)]);
            drop(shows);
            m.collect()
        };
        assert_eq!(report.unreachable, 4);
        let target = other.lock().unwrap().take().expect("still there");
        assert_eq!(target.name(), 0);
        assert!(edge_names(m, &target).is_empty(), "cleared");
        assert_eq!(lab.census.dead_names(), [1], "its tail died by count");
        drop(target);
        assert_eq!(lab.census.dead_names(), [0, 1]);
    });
}

/// More references shown than exist: the object is kept, and a report is made.
#[test]
fn law_1_an_impossible_count_keeps_the_object_and_is_reported() {
    on_every_heap_attached(|lab, m| {
        if lab.stress {
            return; // its checks find the lie before the collection does
        }
        let a = Liar::new(m, lab, 0);
        let b = Liar::new(m, lab, 1);
        a.next.set(m, Some(b.clone()));
        b.next.set(m, Some(a.clone()));
        b.times.store(5, SeqCst);
        let weak = Gc::downgrade(&b, m);
        drop((a, b));
        let report = m.collect();
        assert_eq!((report.unreachable, report.overvisited), (0, 1));
        assert_eq!(lab.census.alive(), 2);
        let b = weak.upgrade(m).expect("kept");
        assert!(b.next.get(m).is_some(), "nothing was cleared");
        b.times.store(1, SeqCst);
        drop(b);
        let report = m.collect();
        assert_eq!((report.collected, report.overvisited), (2, 0));
        lab.reports();
    });
}

#[test]
fn law_1_a_reference_not_shown_leaks_and_no_more() {
    on_every_heap_attached(|lab, m| {
        let a = Liar::new(m, lab, 0);
        let b = Liar::new(m, lab, 1);
        a.next.set(m, Some(b.clone()));
        b.next.set(m, Some(a.clone()));
        a.times.store(0, SeqCst);
        let weak = Gc::downgrade(&a, m);
        drop((a, b));
        assert_eq!(m.collect().unreachable, 0);
        assert_eq!(lab.census.alive(), 2);
        weak.upgrade(m).expect("leaked").times.store(1, SeqCst);
        assert_eq!(m.collect().collected, 2);
    });
}

// ---------------------------------------------------------------- law 2: doubt keeps objects alive

/// Panics, or cannot read, at chosen calls of its traversal.
struct Moody {
    next: GcCell<Vec<Gc<Moody>>>,
    mood: Arc<Mood>,
    witness: Witness,
}

/// The actions of the next calls: `skip` honest ones, then `bad` bad ones, then honest again.
#[derive(Default)]
struct Mood {
    calls: AtomicUsize,
    skip: AtomicUsize,
    bad: AtomicUsize,
    panics: AtomicBool,
}

impl Mood {
    fn set(&self, panics: bool, skip: usize, bad: usize) {
        self.calls.store(0, SeqCst);
        self.panics.store(panics, SeqCst);
        self.skip.store(skip, SeqCst);
        self.bad.store(bad, SeqCst);
    }

    fn is_bad_now(&self) -> bool {
        let call = self.calls.fetch_add(1, SeqCst);
        let skip = self.skip.load(SeqCst);
        (skip..skip.saturating_add(self.bad.load(SeqCst))).contains(&call)
    }
}

impl Trace for Moody {
    const FINALIZER: Option<Finalizer<Self>> = Some(Finalizer::new(|this, _| {
        let witness = &this.witness;
        witness.census().note(Event::Finalized(witness.name()));
    }));

    fn traverse(this: &Self, tracer: &mut Tracer) {
        this.witness.check();
        if this.mood.is_bad_now() {
            if this.mood.panics.load(SeqCst) {
                panic!("a bad mood");
            }
            return tracer.unreadable();
        }
        Trace::traverse(&this.next, tracer);
    }

    fn clear(this: &Self, m: &Mutator) {
        this.witness.census().note(Event::Cleared(this.witness.name()));
        Trace::clear(&this.next, m);
    }
}

/// A ring of five that is garbage and a chain of three that is not. Returns the chain's head.
fn moody_graph(lab: &Lab, m: &Mutator, mood: &Arc<Mood>) -> Gc<Moody> {
    let all: Vec<_> = (0..8)
        .map(|name| {
            let witness = Witness::new(&lab.census, name);
            m.alloc(Moody { next: GcCell::default(), mood: mood.clone(), witness })
        })
        .collect();
    let link = |from: usize, to: usize| all[from].next.lock(m).push(all[to].clone());
    (0..5).for_each(|i| link(i, (i + 1) % 5));
    link(5, 6);
    link(6, 7);
    link(0, 5);
    all[5].clone()
}

fn chain(m: &Mutator, head: &Gc<Moody>) -> Vec<usize> {
    let mut names = vec![head.witness.name()];
    let mut at = head.clone();
    loop {
        let next = at.next.lock(m).first().cloned();
        let Some(next) = next else { return names };
        names.push(next.witness.name());
        at = next;
    }
}

/// A traversal that panics, at every place of a collection in turn: while counting, while marking,
/// while looking a second time. Before finalizers, nothing has changed; after, all stay alive.
#[test]
fn law_2_a_panicking_traversal_abandons_the_collection() {
    let abandoned_after_finalizers = AtomicUsize::new(0);
    for at in 0..40 {
        on_every_heap_attached(|lab, m| {
            let mood = Arc::new(Mood::default());
            let head = moody_graph(lab, m, &mood);
            mood.set(true, at, 1);
            let report = m.collect();
            mood.set(true, 0, 0);
            let finalized = lab.census.finalized_names();
            let reports = lab.reports();
            if let Some(reason) = &report.abandoned {
                assert!(reason.contains("a bad mood"), "{reason}");
                assert!(reports.iter().any(|report| report.contains("a bad mood")), "{reports:?}");
                assert_eq!((report.collected, lab.census.alive()), (0, 8));
                assert!(
                    !lab.census.events().iter().any(|event| matches!(event, Event::Cleared(_)))
                );
                if !finalized.is_empty() {
                    assert_eq!(finalized, [0, 1, 2, 3, 4]);
                    abandoned_after_finalizers.fetch_add(1, SeqCst);
                }
            } else if !lab.stress {
                // Without a panic it must have been a whole collection.
                assert!(reports.is_empty(), "{reports:?}");
                assert_eq!(report.collected, 5);
            }
            assert_eq!(chain(m, &head), [5, 6, 7]);
            m.collect();
            assert_eq!(lab.census.dead_names(), [0, 1, 2, 3, 4], "the next traversal is correct");
            assert_eq!(
                lab.census.finalized_names(),
                [0, 1, 2, 3, 4],
                "no object is finalized twice"
            );
            assert_eq!(chain(m, &head), [5, 6, 7]);
        });
    }
    assert!(abandoned_after_finalizers.load(SeqCst) > 0, "the second look was never reached");
}

/// A field that cannot be read, from any call on and for any number of calls, never costs a live
/// object anything: in particular not when counting could read it and marking cannot.
#[test]
fn law_2_a_field_that_cannot_be_read_keeps_its_targets() {
    for at in 0..24 {
        for bad in [1, 2, usize::MAX] {
            on_every_heap_attached(|lab, m| {
                let mood = Arc::new(Mood::default());
                let head = moody_graph(lab, m, &mood);
                mood.set(false, at, bad);
                let report = m.collect();
                mood.set(false, 0, 0);
                assert_eq!(chain(m, &head), [5, 6, 7], "live objects were cleared: {report:?}");
                assert!(lab.census.dead_names().iter().all(|&name| name < 5));
                m.collect();
                assert_eq!(lab.census.dead_names(), [0, 1, 2, 3, 4]);
                assert_eq!(chain(m, &head), [5, 6, 7]);
                lab.reports();
            });
        }
    }
}

/// A guard that was leaked keeps its cell locked for ever, and with it everything the cell refers
/// to.
#[test]
fn law_2_a_leaked_guard_keeps_the_targets_alive() {
    on_every_heap_attached(|lab, m| {
        let a = node(m, &lab.census, 0);
        let b = node(m, &lab.census, 1);
        let c = node(m, &lab.census, 2);
        link(m, &a, &b);
        link(m, &b, &a);
        link(m, &b, &c);
        link(m, &c, &b);
        std::mem::forget(a.edges.lock(m));
        let weak = Gc::downgrade(&b, m);
        drop((a, b, c));
        garbage_loop(m, &lab.census, 9);
        let report = m.collect();
        assert_eq!((report.collected, &report.abandoned), (1, &None));
        assert_eq!(lab.census.dead_names(), [9]);
        let b = weak.upgrade(m).expect("kept by the locked cell");
        assert_eq!(edge_names(m, &b), [0, 2]);
        // A lock that is never released does not stop counting: with broken links, all three die.
        drop(cut(m, &b));
        drop(b);
        assert_eq!(lab.census.alive(), 0);
    });
}

// ----------------------------------- law 3: no user code while the world is stopped, save traverse

/// Tries something inside its traversal.
struct Curious {
    next: GcCell<Option<Gc<Curious>>>,
    attempt: Arc<dyn Fn() + Send + Sync>,
    on: Arc<AtomicBool>,
    _witness: Witness,
}

impl Trace for Curious {
    fn traverse(this: &Self, tracer: &mut Tracer) {
        if this.on.load(SeqCst) {
            (this.attempt)();
        }
        Trace::traverse(&this.next, tracer);
    }

    fn clear(this: &Self, m: &Mutator) {
        Trace::clear(&this.next, m);
    }
}

/// Makes a garbage cycle of three with traversals that do `attempt`, collects, and collects again
/// without it. Returns whether the first collection was abandoned.
fn attempted(lab: &Lab, m: &mut Mutator, attempt: impl Fn() + Send + Sync + 'static) -> bool {
    let (attempt, on): (Arc<dyn Fn() + Send + Sync>, _) =
        (Arc::new(attempt), Arc::new(AtomicBool::new(false)));
    let members: Vec<_> = (0..3)
        .map(|name| {
            let _witness = Witness::new(&lab.census, name);
            m.alloc(Curious {
                next: GcCell::default(),
                attempt: attempt.clone(),
                on: on.clone(),
                _witness,
            })
        })
        .collect();
    for i in 0..3 {
        members[i].next.set(m, Some(members[(i + 1) % 3].clone()));
    }
    drop(members);
    on.store(true, SeqCst);
    let report = m.collect();
    on.store(false, SeqCst);
    if report.abandoned.is_some() {
        assert_eq!(report.collected, 0);
        assert!(!lab.reports().is_empty(), "the heap reports it");
        assert_eq!(m.collect().collected, 3);
    } else {
        lab.reports();
        assert_eq!(report.collected, 3);
    }
    m.verify().expect("a sound heap");
    report.abandoned.is_some()
}

#[test]
fn law_3_attaching_inside_a_traversal_is_refused_for_every_heap() {
    on_every_heap_attached(|lab, m| {
        let other = Heap::builder().reserve(1 << 30).build().unwrap();
        let other_census = Census::new();
        let kept = other.attach_scoped_elsewhere(|m| node(m, &other_census, 0));
        let refused = Arc::new(AtomicUsize::new(0));
        for heap in [lab.heap.clone(), other.clone()] {
            let seen = refused.clone();
            let try_heap = heap.clone();
            let abandoned = attempted(lab, m, move || {
                assert_eq!(try_heap.try_attach().err(), Some(AttachError::Traversing));
                seen.fetch_add(1, SeqCst);
            });
            assert!(!abandoned, "an error is no panic");
            assert!(attempted(lab, m, {
                let heap = heap.clone();
                move || drop(heap.attach())
            }));
            assert!(attempted(lab, m, move || heap.attach_scoped(|_| ())));
        }
        assert!(refused.load(SeqCst) >= 6);
        other.attach_scoped_elsewhere(|_| drop(kept));
        assert_eq!(other_census.alive(), 0);
    });
}

/// Work in a second heap while this thread sits in a first one.
trait Elsewhere {
    fn attach_scoped_elsewhere<R: Send>(&self, f: impl FnOnce(&mut Mutator) -> R + Send) -> R;
}

impl Elsewhere for Heap {
    fn attach_scoped_elsewhere<R: Send>(&self, f: impl FnOnce(&mut Mutator) -> R + Send) -> R {
        std::thread::scope(|scope| scope.spawn(|| self.attach_scoped(f)).join().expect("no panic"))
    }
}

#[test]
fn law_3_there_is_no_mutator_inside_a_traversal() {
    on_every_heap_attached(|lab, m| {
        let seen = Arc::new(AtomicUsize::new(0));
        let counted = seen.clone();
        let abandoned = attempted(lab, m, move || {
            let found = Mutator::with_current(|m| drop(m.alloc(1u8)));
            counted.fetch_add(if found.is_none() { 1 } else { 1000 }, SeqCst);
        });
        assert!(!abandoned);
        assert!((3..1000).contains(&seen.load(SeqCst)));
    });
}

/// A clone of a counted handle would lie in the way of the counting that is going on.
#[test]
fn law_3_cloning_inside_a_traversal_changes_no_count() {
    on_every_heap_attached(|lab, m| {
        let target = node(m, &lab.census, 9);
        let stolen: Arc<Mutex<Vec<Gc<Node>>>> = Arc::default();
        let (handle, into) = (target.clone(), stolen.clone());
        attempted(lab, m, move || {
            into.lock().unwrap_or_else(|e| e.into_inner()).push(handle.clone())
        });
        // The closure, with its handle, died with the objects.
        let got = std::mem::take(&mut *stolen.lock().unwrap_or_else(|e| e.into_inner()));
        assert_eq!(Gc::strong_count(&target), 1 + got.len());
        drop(got);
        let any = AnyGc::from(target.clone());
        attempted(lab, m, move || drop(any.clone()));
        assert_eq!(Gc::strong_count(&target), 1);
    });
}

/// A value that is dropped inside a traversal dies later, once, with the world running.
#[test]
fn law_3_a_drop_inside_a_traversal_is_deferred() {
    on_every_heap_attached(|lab, m| {
        let stash: Arc<Mutex<Vec<Gc<Node>>>> = Arc::default();
        for name in 0..10 {
            let gc = node(m, &lab.census, 100 + name);
            link(m, &gc, &node(m, &lab.census, 200 + name));
            stash.lock().unwrap().push(gc);
        }
        let early = Arc::new(AtomicUsize::new(0));
        attempted(lab, m, {
            let (stash, early, census) = (stash.clone(), early.clone(), lab.census.clone());
            move || {
                let before = census.dead();
                let taken = stash.lock().unwrap_or_else(|e| e.into_inner()).pop();
                drop(taken);
                early.fetch_add(census.dead() - before, SeqCst);
            }
        });
        assert_eq!(early.load(SeqCst), 0, "a destructor ran inside a traversal");
        drop(std::mem::take(&mut *stash.lock().unwrap_or_else(|e| e.into_inner())));
        m.safepoint();
        assert_eq!(lab.census.alive(), 0);
    });
}

/// Weak handles may be cloned and dropped anywhere, also in a traversal.
#[test]
fn law_3_weak_handles_inside_a_traversal() {
    on_every_heap_attached(|lab, m| {
        let target = node(m, &lab.census, 9);
        let weak = Gc::downgrade(&target, m);
        let kept: Arc<Mutex<Vec<GcWeak<Node>>>> = Arc::default();
        let into = kept.clone();
        attempted(lab, m, move || {
            let clone = weak.clone();
            drop(clone.clone());
            into.lock().unwrap_or_else(|e| e.into_inner()).push(clone);
        });
        let kept = std::mem::take(&mut *kept.lock().unwrap_or_else(|e| e.into_inner()));
        assert!(kept.iter().all(|weak| weak.upgrade(m).is_some()));
        drop(target);
        assert!(kept.iter().all(|weak| weak.upgrade(m).is_none()));
    });
}

/// Asks a second, attached thread to do something, and waits for it. With the world stopped that
/// would wait for ever.
struct Helper {
    ask: Mutex<mpsc::Sender<()>>,
    answer: Mutex<mpsc::Receiver<()>>,
    asked: AtomicUsize,
}

impl Helper {
    fn run(&self) {
        let answer = self.answer.lock().unwrap();
        self.ask.lock().unwrap().send(()).unwrap();
        answer.recv().unwrap();
        self.asked.fetch_add(1, SeqCst);
    }
}

/// Runs `f` beside a thread that is attached to the heap and, whenever asked, attaches afresh,
/// allocates, clones, drops and polls.
fn with_helper(lab: &Lab, f: impl FnOnce(&mut Mutator, &Arc<Helper>)) {
    let (ask, asked) = mpsc::channel();
    let (answer, answered) = mpsc::channel();
    let helper = Arc::new(Helper {
        ask: Mutex::new(ask),
        answer: Mutex::new(answered),
        asked: AtomicUsize::new(0),
    });
    lab.heap.set_pacing(Pacing::manual());
    let stop = Arc::new(AtomicBool::new(false));
    /// Ends the helper, also when `f` panics.
    struct End(Arc<Helper>, Arc<AtomicBool>);
    impl Drop for End {
        fn drop(&mut self) {
            self.1.store(true, SeqCst);
            let _ = self.0.ask.lock().unwrap_or_else(|e| e.into_inner()).send(());
        }
    }
    std::thread::scope(|scope| {
        let stopped = stop.clone();
        scope.spawn(move || {
            let mut m = lab.heap.attach();
            loop {
                m.detach(|| asked.recv().unwrap());
                if stopped.load(SeqCst) {
                    return;
                }
                let mut kept = Vec::new();
                for _ in 0..1000 {
                    let gc = m.alloc(Counted::default());
                    kept.push(gc.clone());
                    gc.0.fetch_add(1, SeqCst);
                }
                drop(kept);
                answer.send(()).unwrap();
            }
        });
        let _end = End(helper.clone(), stop);
        f(&mut lab.heap.attach(), &helper);
    });
}

#[derive(Default)]
struct Counted(AtomicUsize, GcCell<Option<Gc<Counted>>>);

impl Trace for Counted {
    fn traverse(this: &Self, tracer: &mut Tracer) {
        Trace::traverse(&this.1, tracer);
    }
}

/// Waits for a second thread in its `clear`, its destructor and its finalizer.
struct Patient {
    next: GcCell<Option<Gc<Patient>>>,
    helper: Arc<Helper>,
    _witness: Witness,
}

impl Trace for Patient {
    const FINALIZER: Option<Finalizer<Self>> = Some(Finalizer::new(|this, _| {
        this.helper.run();
    }));

    fn traverse(this: &Self, tracer: &mut Tracer) {
        Trace::traverse(&this.next, tracer);
    }

    fn clear(this: &Self, m: &Mutator) {
        this.helper.run();
        Trace::clear(&this.next, m);
    }
}

impl Drop for Patient {
    fn drop(&mut self) {
        self.helper.run();
    }
}

#[test]
fn law_3_and_5_finalizers_callbacks_clear_and_destructors_run_with_the_world_running() {
    on_every_heap(|lab| {
        if lab.stress {
            return; // the helper's safepoints would wait for the very collection that waits for it
        }
        with_helper(lab, |m, helper| {
            let hook = helper.clone();
            let hooked = Arc::new(AtomicUsize::new(0));
            lab.heap.on_collection({
                let hooked = hooked.clone();
                move |_| {
                    // Not for the collections after the scenario: the helper is gone by then.
                    if hooked.fetch_add(1, SeqCst) < 2 {
                        hook.run();
                    }
                }
            });
            let witness = |name| Witness::new(&lab.census, name);
            let new = |m: &Mutator, name| {
                m.alloc(Patient {
                    next: GcCell::default(),
                    helper: helper.clone(),
                    _witness: witness(name),
                })
            };
            let (a, b) = (new(m, 0), new(m, 1));
            a.next.set(m, Some(b.clone()));
            b.next.set(m, Some(a.clone()));
            let watch = m.alloc_weak(&a, helper.clone(), |weak, _| weak.data().run());
            drop((a, b));
            let report = m.collect();
            assert_eq!((report.finalized, report.collected), (2, 2));
            // Start and stop, a callback, two finalizers, two destructors; one or both are cleared.
            assert_eq!(hooked.load(SeqCst), 2);
            let asked = helper.asked.load(SeqCst);
            assert!(asked == 8 || asked == 9, "asked {asked} times");
            drop(watch);
        });
    });
}

#[test]
fn law_5_no_thread_waits_for_user_code_of_another_thread() {
    on_every_heap(|lab| {
        if lab.stress {
            return; // a safepoint of the helper would wait for a collection that waits for it
        }
        with_helper(lab, |m, helper| {
            // An iterator that feeds an allocation, and a constructor that gets its own weak
            // handle.
            let slice = m.alloc_slice((), (0..3).inspect(|_| helper.run()));
            assert_eq!(slice.items, [0, 1, 2]);
            let cyclic = Gc::new_cyclic(m, |_| {
                helper.run();
                Counted::default()
            });
            // A lock on a cell of one object is no lock on anything else.
            let cell = GcCell::new(1);
            let guard = cell.lock(m);
            helper.run();
            drop(guard);
            assert_eq!(helper.asked.load(SeqCst), 5);
            drop(cyclic);
        });
    });
}

// ---------------------------------------------------------------- law 4: allocation never collects

#[test]
fn law_4_allocation_never_collects() {
    on_every_heap_attached(|lab, m| {
        let before = lab.heap.stats();
        for name in 0..60_000 {
            garbage_loop(m, &lab.census, name);
        }
        let after = lab.heap.stats();
        assert_eq!(lab.census.dead(), 0);
        assert_eq!(after.collections, before.collections);
        // But it has raised a flag: the next safepoint collects, and that one and the following
        // ones clear the garbage.
        m.safepoint();
        assert!(lab.heap.stats().collections > before.collections);
        while lab.census.alive() != 0 {
            m.safepoint();
        }
    });
}

#[test]
fn law_4_an_allocation_that_finds_no_room_does_not_collect_either() {
    let heap = Heap::builder().reserve(1 << 30).limit(4 << 20).build().unwrap();
    let census = Census::new();
    let m = heap.attach();
    let mut made = 0;
    while let Ok(gc) = m.try_alloc(Node::value(&census, made)) {
        link(&m, &gc, &gc);
        made += 1;
    }
    assert_eq!(heap.stats().collections, 0);
    // The refused value was dropped by the loop; all others are there.
    assert_eq!((census.dead(), census.alive()), (1, made));
}

// ------------------------------------------------------------------------ law 6: proof is a value

/// Compiles only where the type does *not* implement the trait: otherwise two impls apply and `_`
/// is ambiguous.
macro_rules! assert_not {
    ($($ty:ty: $bound:path),+ $(,)?) => {$({
        trait Ambiguous<A> { fn it() {} }
        struct Implements;
        impl<T: ?Sized> Ambiguous<()> for T {}
        impl<T: ?Sized + $bound> Ambiguous<Implements> for T {}
        let _ = <$ty as Ambiguous<_>>::it;
    })+};
}

fn assert_shared<T: Send + Sync>() {}

#[test]
fn law_6_a_mutator_stays_on_its_thread_and_handles_do_not() {
    assert_not!(
        Mutator: Send,
        Mutator: Sync,
        Mutator: Clone,
        Tracer: Send,
        Tracer: Sync,
        Tracer: Clone,
        Tracer: Default,
        standstill::GcCellGuard<'static, u8>: Send,
        Gc<std::cell::Cell<u8>>: Send,
        Gc<std::cell::Cell<u8>>: Sync,
        Gc<u8>: Copy,
    );
    assert_shared::<Heap>();
    assert_shared::<Gc<Node>>();
    assert_shared::<GcWeak<Node>>();
    assert_shared::<GcCell<Vec<Gc<Node>>>>();
    assert_shared::<AtomicGc<Node>>();
    assert_shared::<GcOnce<Node>>();
    assert_shared::<AnyGc>();
    assert_eq!(size_of::<Gc<Node>>(), size_of::<usize>());
    assert_eq!(size_of::<Option<Gc<Node>>>(), size_of::<usize>());
}

// ------------------------------------------------------- law 7: no recursion over the object graph

const SMALL_STACK: usize = 256 << 10;

/// A link of a long list, as small as can be; its deaths are counted in a static.
struct Link(GcCell<Option<Gc<Link>>>);

static LINKS_DEAD: AtomicUsize = AtomicUsize::new(0);

/// The tests that count in `LINKS_DEAD` take turns.
static LINKS: Mutex<()> = Mutex::new(());

impl Trace for Link {
    fn traverse(this: &Self, tracer: &mut Tracer) {
        Trace::traverse(&this.0, tracer);
    }

    fn clear(this: &Self, m: &Mutator) {
        Trace::clear(&this.0, m);
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        LINKS_DEAD.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    }
}

/// The length of a long list.
fn long() -> usize {
    if is_full() { 10_000_000 } else { 300_000 }
}

/// A list of [`long`] links. Returns its first and its last.
fn list(m: &Mutator) -> (Gc<Link>, Gc<Link>) {
    let last = m.alloc(Link(GcCell::default()));
    let mut first = last.clone();
    for _ in 1..long() {
        first = m.alloc(Link(GcCell::new(Some(first))));
    }
    (first, last)
}

fn big_heap() -> Heap {
    Heap::builder().reserve(8 << 30).build().unwrap()
}

#[test]
fn law_7_a_long_list_dies_by_count_on_a_small_stack() {
    let _turn = LINKS.lock().unwrap_or_else(|e| e.into_inner());
    LINKS_DEAD.store(0, SeqCst);
    on_stack(SMALL_STACK, || {
        let heap = big_heap();
        let m = heap.attach();
        drop(list(&m));
        assert_eq!(LINKS_DEAD.load(SeqCst), long());
        assert_eq!(heap.stats().live_objects, 0);
    });
}

#[test]
fn law_7_a_long_list_is_marked_and_collected_on_a_small_stack() {
    let _turn = LINKS.lock().unwrap_or_else(|e| e.into_inner());
    LINKS_DEAD.store(0, SeqCst);
    on_stack(SMALL_STACK, || {
        let heap = big_heap();
        let mut m = heap.attach();
        let (first, last) = list(&m);
        last.0.set(&m, Some(first.clone()));
        drop(last);
        // Alive, so marking walks the whole of it, link by link.
        let report = m.collect();
        assert_eq!((report.candidates, report.unreachable, report.abandoned), (long(), 0, None));
        drop(first);
        let report = m.collect();
        assert_eq!((report.unreachable, report.collected), (long(), long()));
        assert_eq!(LINKS_DEAD.load(SeqCst), long());
    });
}

/// The same with a finalizer that resurrects its far end: the second look is as deep as the first.
#[test]
fn law_7_a_long_list_is_resurrected_on_a_small_stack() {
    let length = if is_full() { 300_000 } else { 100_000 };
    on_stack(SMALL_STACK, || {
        on_every_heap_attached(|lab, m| {
            if lab.stress {
                return;
            }
            let shelf = Shelf::new();
            let mut first = fin(m, &lab.census, 0, |_, _| ());
            let last = first.clone();
            for name in 1..length {
                let next = first;
                first = if name + 1 < length {
                    thing(m, &lab.census, name)
                } else {
                    let shelf = shelf.clone();
                    fin(m, &lab.census, name, move |this, _| shelf.push(this.clone()))
                };
                link(m, &first, &next);
            }
            link(m, &last, &first);
            drop((first, last));
            let report = m.collect();
            assert_eq!((report.finalized, report.resurrected), (length, length));
            drop(shelf.take());
            assert_eq!(m.collect().collected, length);
        });
    });
}

#[test]
fn law_7_a_large_random_graph_is_collected_on_a_small_stack() {
    struct Vertex([GcCell<Option<Gc<Vertex>>>; 2]);
    static DEAD: AtomicUsize = AtomicUsize::new(0);
    impl Trace for Vertex {
        fn traverse(this: &Self, tracer: &mut Tracer) {
            Trace::traverse(&this.0, tracer);
        }
        fn clear(this: &Self, m: &Mutator) {
            Trace::clear(&this.0, m);
        }
    }
    impl Drop for Vertex {
        fn drop(&mut self) {
            DEAD.fetch_add(1, SeqCst);
        }
    }
    let n = if is_full() { 1_000_000 } else { 100_000 };
    on_stack(SMALL_STACK, move || {
        let heap = big_heap();
        let mut m = heap.attach();
        // Two graphs of half the size, one of them held by a single vertex.
        let mut rng = Rng::new(7);
        let all: Vec<_> =
            (0..n).map(|_| m.alloc(Vertex([GcCell::default(), GcCell::default()]))).collect();
        let mut edges = Vec::new();
        for (i, vertex) in all.iter().enumerate() {
            for slot in &vertex.0 {
                let to = i / (n / 2) * (n / 2) + rng.below(n / 2);
                slot.set(&m, Some(all[to].clone()));
                edges.push((i, to));
            }
        }
        let root = all[0].clone();
        drop(all);
        // Objects outside of cycles, and not behind one, have died by count.
        let by_count = DEAD.load(SeqCst);
        let reached = reachable(n, &edges, &[0]).into_iter().filter(|&seen| seen).count();
        let report = m.collect();
        assert_eq!(report.unreachable, n - by_count - reached);
        assert!(report.unreachable > n / 4, "the other half is one large knot");
        assert_eq!(DEAD.load(SeqCst), n - reached);
        drop(root);
        m.collect();
        assert_eq!(DEAD.load(SeqCst), n);
    });
}

// -------------------------------- law 8: what a collection writes does not lie in the objects

/// The kernel notes which pages are written. A collection of a heap in which everything is alive
/// writes to none of the pages on which the objects lie.
#[cfg(target_os = "linux")]
#[test]
fn law_8_a_collection_does_not_write_to_live_objects() {
    use std::os::unix::fs::FileExt;

    const PAGE: usize = 4096;
    let dirty = |address: usize| -> bool {
        let file = std::fs::File::open("/proc/self/pagemap").expect("pagemap");
        let mut entry = [0; 8];
        file.read_exact_at(&mut entry, (address / PAGE * 8) as u64).expect("an entry");
        u64::from_ne_bytes(entry) >> 55 & 1 == 1
    };
    let wipe = || std::fs::write("/proc/self/clear_refs", "4").is_ok();

    let probe = vec![1u8; 4 * PAGE];
    let at = probe.as_ptr() as usize + PAGE;
    if !wipe() || dirty(at) {
        eprintln!("this kernel does not track written pages: nothing was tested");
        return;
    }

    for parallel in [false, true] {
        let builder = Heap::builder().reserve(1 << 30);
        let builder =
            if parallel { builder.workers(3).serial_below(0) } else { builder.workers(1) };
        let heap = builder.build().unwrap();
        let census = Census::new();
        let mut m = heap.attach();
        let kept: Vec<_> = (0..50_000).map(|name| node(&m, &census, name)).collect();
        // An edge each, in random order; the vectors' buffers lie outside the heap.
        let mut rng = Rng::new(3);
        for gc in &kept {
            link(&m, gc, &kept[rng.below(kept.len())]);
        }
        let pages = set(kept.iter().map(|gc| Gc::as_ptr(gc) as usize / PAGE));
        let count: Vec<_> = kept.iter().map(Gc::strong_count).collect();
        m.collect();
        assert!(wipe());
        let report = m.collect();
        assert_eq!((report.candidates, report.unreachable), (50_000, 0));
        let written: Vec<_> = pages.iter().filter(|&&page| dirty(page * PAGE)).collect();
        assert!(written.is_empty(), "{} of {} pages were written", written.len(), pages.len());
        assert!(kept.iter().zip(&count).all(|(gc, &count)| Gc::strong_count(gc) == count));
    }
}

// ------------------------------------------------------------------------- law 9: nothing global

/// A thread that sits in one heap, attached and never polling, delays no collection of another.
#[test]
fn law_9_each_heap_stops_only_its_own_threads() {
    let _watch = deadline("heaps");
    let stuck = Heap::builder().reserve(1 << 30).build().unwrap();
    let (leave, left) = mpsc::channel::<()>();
    let (entered, enter) = mpsc::channel::<()>();
    std::thread::scope(|scope| {
        let stuck = &stuck;
        scope.spawn(move || {
            let m = stuck.attach();
            entered.send(()).unwrap();
            left.recv().unwrap();
            drop(m);
        });
        enter.recv().unwrap();
        on_every_heap_attached(|lab, m| {
            drop(ring(m, &lab.census, 0, 100));
            assert_eq!(m.collect().collected, 100);
        });
        leave.send(()).unwrap();
    });
}

#[test]
fn law_9_many_heaps_at_once() {
    let _watch = deadline("heaps");
    let heaps: Vec<_> =
        (0..100).map(|_| Heap::builder().reserve(1 << 30).build().unwrap()).collect();
    let censuses: Vec<_> = (0..100).map(|_| Census::new()).collect();
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (heaps, censuses) = (&heaps, &censuses);
            scope.spawn(move || {
                let mut rng = Rng::new(thread);
                for round in 0..300 {
                    let i = rng.below(heaps.len());
                    let mut m = heaps[i].attach();
                    drop(ring(&m, &censuses[i], round, 5));
                    if rng.one_in(4) {
                        m.collect();
                    }
                    // From inside a detach, into another one, which may collect too.
                    let j = rng.below(heaps.len());
                    m.detach(|| {
                        heaps[j].attach_scoped(|m| {
                            garbage_loop(m, &censuses[j], round);
                            if rng.one_in(4) {
                                m.collect();
                            }
                        });
                    });
                }
            });
        }
    });
    for (heap, census) in heaps.iter().zip(&censuses) {
        heap.attach_scoped(|m| m.collect());
        assert_eq!(census.alive(), 0);
        assert_eq!(heap.stats().mutators, 0);
    }
}

/// One heap's collection neither sees nor touches another heap's objects, though each refers to the
/// other's.
#[test]
fn law_9_references_between_heaps_are_roots() {
    on_every_heap_attached(|_, m| {
        let other = Heap::builder().reserve(1 << 30).build().unwrap();
        let census = Census::with_log();
        let far = other.attach_scoped_elsewhere(|m| node(m, &census, 0));
        struct Near {
            far: GcCell<Vec<Gc<Node>>>,
            me: GcCell<Option<Gc<Near>>>,
        }
        trace_fields!(Near { far, me });
        let near = m.alloc(Near { far: GcCell::new(vec![far.clone()]), me: GcCell::default() });
        near.me.set(m, Some(near.clone()));
        drop(near);
        assert_eq!(m.collect().collected, 1);
        let count = |far: &Gc<Node>| other.attach_scoped_elsewhere(|_| Gc::strong_count(far));
        assert_eq!(count(&far), 1, "the handle dropped here, outside its heap, is gone");
        let collected = other.attach_scoped_elsewhere(|m| m.collect().unreachable);
        assert_eq!(collected, 0);
        assert!(panic_text(|| _ = Gc::downgrade(&far, m)).is_some());
        assert!(panic_text(|| _ = Gc::is_tracked(&far, m)).is_some());
        assert_eq!(far.name(), 0, "to read it takes no mutator");
        drop(far);
        other.attach_scoped_elsewhere(|m| m.safepoint());
        assert_eq!(census.dead_names(), [0]);
    });
}

/// A stop inside a stop, and a second collection, are values that say so.
#[test]
fn law_6_a_refused_collection_is_an_error() {
    fn name(error: &CollectError) -> &'static str {
        match error {
            CollectError::Busy => "busy",
            CollectError::Stop(_) => "stop",
            _ => "?",
        }
    }
    on_every_heap_attached(|lab, m| {
        if lab.stress {
            // The second thread would collect too early, and wait for the first.
            return;
        }
        let refused = Arc::new(Mutex::new(Vec::new()));
        let gc = fin(m, &lab.census, 0, |_, _| ());
        link(m, &gc, &gc);
        drop(gc);
        let (refusals, heap) = (refused.clone(), lab.heap.clone());
        let on = Arc::new(AtomicBool::new(true));
        lab.heap.on_collection({
            let on = on.clone();
            move |_| {
                if !on.swap(false, SeqCst) {
                    return;
                }
                // Another thread, while this one is collecting.
                let (refusals, heap) = (refusals.clone(), heap.clone());
                std::thread::scope(|scope| {
                    scope.spawn(move || {
                        let mut m = heap.attach();
                        if let Err(error) = m.try_collect(Collect::full().wait(false)) {
                            refusals.lock().unwrap().push(name(&error));
                        }
                    });
                });
            }
        });
        assert_eq!(m.collect().collected, 1);
        assert_eq!(*refused.lock().unwrap(), ["busy"]);
    });
}
