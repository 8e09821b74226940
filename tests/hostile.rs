//! Hostile and careless user code: traversals that lie, differ, panic, block, clone, drop, attach
//! and allocate; finalizers, clear handlers, destructors and callbacks that panic. In each case
//! every object is destroyed exactly once, no object is reached after its destruction, collections
//! continue, and an honest collection afterwards frees everything.

#![cfg(not(loom))]
#![allow(clippy::type_complexity)]

mod common;

use std::cell::RefCell;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::*;
use standstill::{AnyGc, Finalizer, Gc, GcCell, Heap, Mutator, Trace, Tracer};

/// The action of an object's traversal instead of showing its references.
type Trick = Arc<dyn Fn(&Hostile, &mut Tracer, usize) + Send + Sync>;

/// Plays a trick in its traversal while `on`.
struct Hostile {
    next: GcCell<Vec<Gc<Hostile>>>,
    trick: Trick,
    on: Arc<AtomicBool>,
    calls: Arc<AtomicUsize>,
    witness: Witness,
}

impl Trace for Hostile {
    fn traverse(this: &Self, tracer: &mut Tracer) {
        this.witness.check();
        if this.on.load(SeqCst) {
            let call = this.calls.fetch_add(1, SeqCst);
            (this.trick)(this, tracer, call);
        } else {
            Trace::traverse(&this.next, tracer);
        }
    }

    fn clear(this: &Self, m: &Mutator) {
        Trace::clear(&this.next, m);
    }
}

/// A random graph of `n` hostile objects.
fn graph(
    m: &Mutator,
    census: &Arc<Census>,
    n: usize,
    seed: u64,
    on: &Arc<AtomicBool>,
    trick: &Trick,
) -> Vec<Gc<Hostile>> {
    let calls = Arc::new(AtomicUsize::new(0));
    let all: Vec<_> = (0..n)
        .map(|name| {
            m.alloc(Hostile {
                next: GcCell::default(),
                trick: trick.clone(),
                on: on.clone(),
                calls: calls.clone(),
                witness: Witness::new(census, name),
            })
        })
        .collect();
    let mut rng = Rng::new(seed);
    for _ in 0..n * 2 {
        let (from, to) = (rng.below(n), rng.below(n));
        all[from].next.lock(m).push(all[to].clone());
    }
    all
}

/// Runs `trick` through many collections, some on several threads, with some of the objects held
/// and some dropped; then honestly.
fn play(trick: impl Fn(&Hostile, &mut Tracer, usize) + Send + Sync + 'static) {
    let trick: Trick = Arc::new(trick);
    // The checks of a stress heap are made to find a lie that contradicts the counts. Whether they
    // find it is not tested here.
    for lab in labs().into_iter().filter(|lab| !lab.stress) {
        let _watch = deadline(lab.name);
        let on = Arc::new(AtomicBool::new(true));
        let mut m = lab.heap.attach();
        for seed in 0..6 {
            let mut held = graph(&m, &lab.census, 60, seed, &on, &trick);
            // In half of the rounds collections start from a known root.
            let _root = (seed % 2 == 1).then(|| lab.heap.known_root(held[0].clone()));
            let mut rng = Rng::new(seed + 100);
            while !held.is_empty() {
                m.collect();
                m.collect_young();
                held.iter().for_each(|gc| gc.witness.check());
                for _ in 0..20.min(held.len()) {
                    held.swap_remove(rng.below(held.len()));
                }
                m.safepoint();
            }
        }
        // The same with other threads that collect, allocate and drop meanwhile.
        let running = Clock::start(1);
        let (heap, census) = (&lab.heap, &lab.census);
        m.detach(|| {
            std::thread::scope(|scope| {
                for thread in 0..3 {
                    let (on, trick, running) = (&on, &trick, &running);
                    scope.spawn(move || {
                        let mut m = heap.attach();
                        let mut rounds = 0;
                        while running.running() && rounds < 40 {
                            rounds += 1;
                            let mut held = graph(&m, census, 30, thread, on, trick);
                            held.truncate(5);
                            drop(m.collect());
                            held.iter().for_each(|gc| gc.witness.check());
                        }
                    });
                }
            });
        });
        on.store(false, SeqCst);
        lab.reports();
        m.collect();
        let report = m.collect();
        assert_eq!((report.abandoned, report.overvisited, report.uncollectable), (None, 0, 0));
        assert_eq!(census.alive(), 0);
        m.verify().expect("a sound heap");
        let reports = lab.reports();
        assert!(reports.is_empty(), "{reports:?}");
    }
}

#[test]
fn a_traversal_that_shows_nothing() {
    play(|_, _, _| ());
}

#[test]
fn a_traversal_that_shows_some() {
    play(|this, tracer, call| {
        if call % 3 == 0 {
            Trace::traverse(&this.next, tracer);
        }
    });
}

#[test]
fn a_traversal_that_shows_everything_twice() {
    play(|this, tracer, _| {
        Trace::traverse(&this.next, tracer);
        Trace::traverse(&this.next, tracer);
    });
}

#[test]
fn a_traversal_that_shows_everything_three_hundred_times() {
    // More than a byte can count.
    play(|this, tracer, _| (0..300).for_each(|_| Trace::traverse(&this.next, tracer)));
}

#[test]
fn a_traversal_that_differs_each_time() {
    play(|this, tracer, call| (0..call % 4).for_each(|_| Trace::traverse(&this.next, tracer)));
}

#[test]
fn a_traversal_that_shows_references_of_a_static() {
    // A handle in a static, to an object of any heap, that every object shows: the most confusing
    // reference possible. Only the static holds its object.
    static BAIT: Mutex<Vec<AnyGc>> = Mutex::new(Vec::new());
    let census = Census::new();
    let bait = Heap::builder().reserve(1 << 30).build().unwrap();
    bait.attach_scoped(|m| BAIT.lock().unwrap().push(node(m, &census, 0).into()));
    play(|this, tracer, call| {
        Trace::traverse(&this.next, tracer);
        if let Ok(bait) = BAIT.try_lock() {
            bait.iter().for_each(|any| tracer.visit_any(any));
        }
        if call % 64 == 0 {
            tracer.unreadable();
        }
    });
    let taken = std::mem::take(&mut *BAIT.lock().unwrap());
    drop(taken);
    bait.attach_scoped(|m| m.safepoint());
    assert_eq!(census.alive(), 0);
}

/// One object's handles shown by another, through an `Arc` they share.
#[test]
fn a_traversal_that_shows_its_neighbours_references() {
    let shared: Arc<Mutex<Vec<Gc<Hostile>>>> = Arc::default();
    // The trick must not keep the list alive for ever: it is emptied below.
    let list = shared.clone();
    let trick: Trick = Arc::new(move |this, tracer, _| {
        Trace::traverse(&this.next, tracer);
        if let Ok(list) = list.try_lock() {
            list.iter().for_each(|gc| tracer.visit(gc));
        }
    });
    for lab in labs().into_iter().filter(|lab| !lab.stress) {
        let on = Arc::new(AtomicBool::new(true));
        let mut m = lab.heap.attach();
        let held = graph(&m, &lab.census, 50, 1, &on, &trick);
        shared.lock().unwrap().extend(held.iter().take(10).cloned());
        for _ in 0..5 {
            m.collect();
            held.iter().for_each(|gc| gc.witness.check());
        }
        drop(held);
        for _ in 0..5 {
            m.collect();
            let kept = shared.lock().unwrap().clone();
            kept.iter().for_each(|gc| gc.witness.check());
        }
        on.store(false, SeqCst);
        let taken = std::mem::take(&mut *shared.lock().unwrap());
        drop(taken);
        m.collect();
        assert_eq!(lab.census.alive(), 0);
        lab.reports();
    }
}

/// Every so many calls it panics: in counting, in marking, or in the second look, as it comes.
#[test]
fn a_traversal_that_panics_now_and_then() {
    for every in [2, 50, 150, 400] {
        play(move |this, tracer, call| {
            if call % every == every - 1 {
                panic!("hostile traversal");
            }
            Trace::traverse(&this.next, tracer);
            if call % every == every / 2 {
                panic!("hostile traversal, after showing");
            }
        });
    }
}

#[test]
fn a_traversal_that_takes_its_time() {
    play(|this, tracer, call| {
        if call % 97 == 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
        Trace::traverse(&this.next, tracer);
    });
}

#[test]
fn a_traversal_that_clones_and_drops_handles() {
    static LOOT: Mutex<Vec<AnyGc>> = Mutex::new(Vec::new());
    let census = Census::new();
    let heap = Heap::builder().reserve(1 << 30).build().unwrap();
    let fill = || {
        heap.attach_scoped(|m| {
            let made = (0..500).map(|name| AnyGc::from(node(m, &census, name)));
            LOOT.lock().unwrap_or_else(|e| e.into_inner()).extend(made);
        });
    };
    fill();
    play(|this, tracer, call| {
        // The lock is released before anything may panic.
        let taken = LOOT.lock().unwrap_or_else(|e| e.into_inner()).pop();
        if let Some(any) = taken {
            if call % 2 == 0 {
                drop(any.clone());
            }
            drop(any);
        }
        Trace::traverse(&this.next, tracer);
    });
    let rest = std::mem::take(&mut *LOOT.lock().unwrap_or_else(|e| e.into_inner()));
    drop(rest);
    heap.attach_scoped(|m| m.safepoint());
    assert_eq!(census.alive(), 0, "a handle was lost, or counted twice");
}

/// The same with handles of the heap that is being collected, and of the very objects.
#[test]
fn a_traversal_that_drops_handles_of_its_own_heap() {
    thread_local! { static NONE: RefCell<()> = const { RefCell::new(()) }; }
    for lab in labs() {
        let _watch = deadline(lab.name);
        let kept: Arc<Mutex<Vec<Gc<Hostile>>>> = Arc::default();
        let from = kept.clone();
        let trick: Trick = Arc::new(move |this, tracer, call| {
            NONE.with(|none| drop(none.borrow_mut()));
            if call % 5 == 0 {
                let taken = from.lock().unwrap_or_else(|e| e.into_inner()).pop();
                drop(taken);
            }
            Trace::traverse(&this.next, tracer);
        });
        let on = Arc::new(AtomicBool::new(true));
        let mut m = lab.heap.attach();
        for seed in 0..20 {
            let held = graph(&m, &lab.census, 40, seed, &on, &trick);
            kept.lock().unwrap().extend(held);
            for _ in 0..10 {
                m.collect();
                m.safepoint();
            }
        }
        on.store(false, SeqCst);
        let rest = std::mem::take(&mut *kept.lock().unwrap());
        drop(rest);
        m.collect();
        m.collect();
        assert_eq!(lab.census.alive(), 0);
        lab.reports();
    }
}

#[test]
fn a_traversal_that_attaches() {
    static OTHER: Mutex<Option<Heap>> = Mutex::new(None);
    *OTHER.lock().unwrap() = Some(Heap::builder().reserve(1 << 30).build().unwrap());
    play(|this, tracer, call| {
        let heap = OTHER.lock().unwrap_or_else(|e| e.into_inner()).clone().unwrap();
        if heap.try_attach().is_ok() {
            die("attached inside a traversal");
        }
        Trace::traverse(&this.next, tracer);
        if call % 200 == 199 {
            heap.attach_scoped(|_| die("attached inside a traversal"));
        }
    });
    let other = OTHER.lock().unwrap_or_else(|e| e.into_inner()).take().unwrap();
    assert_eq!(other.stats().mutators, 0);
    drop(other.attach());
}

#[test]
fn a_traversal_that_allocates() {
    play(|this, tracer, _| {
        if Mutator::with_current(|m| drop(m.alloc(1u8))).is_some() {
            die("a mutator inside a traversal");
        }
        Trace::traverse(&this.next, tracer);
    });
}

#[test]
fn a_traversal_that_uses_its_heap() {
    // The statistics, and a heap of its own that it makes and drops: odd, slow, and no harm.
    static HEAP: Mutex<Option<Heap>> = Mutex::new(None);
    *HEAP.lock().unwrap() = Some(Heap::builder().reserve(1 << 30).build().unwrap());
    play(|this, tracer, call| {
        if call % 100 == 0 {
            let heap = HEAP.lock().unwrap_or_else(|e| e.into_inner()).clone().unwrap();
            let _ = heap.stats();
            drop(Heap::builder().reserve(1 << 30).build());
        }
        Trace::traverse(&this.next, tracer);
    });
}

/// Locks a cell of its own and forgets the guard: unreadable for ever, so its targets stay.
#[test]
fn a_guard_that_is_forgotten() {
    on_every_heap_attached(|lab, m| {
        let honest: Trick = Arc::new(|this, tracer, _| Trace::traverse(&this.next, tracer));
        let on = Arc::new(AtomicBool::new(false));
        let mut all = graph(m, &lab.census, 50, 3, &on, &honest);
        let locked = all.swap_remove(7);
        let targets: Vec<_> = locked.next.lock(m).iter().map(|gc| gc.witness.name()).collect();
        std::mem::forget(locked.next.lock(m));
        drop(all);
        for _ in 0..3 {
            m.collect();
            assert!(targets.iter().all(|name| !lab.census.dead_names().contains(name)));
        }
        // Dropped by count it takes its targets along: that needs no lock.
        drop(locked);
        m.collect();
        m.collect();
        lab.leaves_behind(lab.census.alive());
        assert!(lab.census.alive() <= 50);
    });
}

// ------------------------------------------------------------------------ panics outside the stop

/// Panics in the chosen places.
struct Touchy {
    next: GcCell<Option<Gc<Touchy>>>,
    finalize: bool,
    clear: bool,
    die: bool,
    witness: Witness,
}

impl Trace for Touchy {
    const FINALIZER: Option<Finalizer<Self>> = Some(Finalizer::new(|this, _| {
        this.witness.census().note(Event::Finalized(this.witness.name()));
        if this.finalize {
            panic!("in finalize");
        }
    }));

    fn traverse(this: &Self, tracer: &mut Tracer) {
        Trace::traverse(&this.next, tracer);
    }

    fn clear(this: &Self, m: &Mutator) {
        Trace::clear(&this.next, m);
        if this.clear {
            panic!("in clear");
        }
    }
}

impl Drop for Touchy {
    fn drop(&mut self) {
        if self.die {
            panic!("in a destructor");
        }
    }
}

fn touchy_ring(
    m: &Mutator,
    lab: &Lab,
    n: usize,
    who: impl Fn(usize) -> (bool, bool, bool),
) -> Vec<Gc<Touchy>> {
    let all: Vec<_> = (0..n)
        .map(|name| {
            let (finalize, clear, die) = who(name);
            let witness = Witness::new(&lab.census, name);
            m.alloc(Touchy { next: GcCell::default(), finalize, clear, die, witness })
        })
        .collect();
    for i in 0..n {
        all[i].next.set(m, Some(all[(i + 1) % n].clone()));
    }
    all
}

fn panics_in(what: &str, who: impl Fn(usize) -> (bool, bool, bool)) {
    on_every_heap_attached(|lab, m| {
        const N: usize = 9;
        drop(touchy_ring(m, lab, N, &who));
        garbage_loop(m, &lab.census, 100);
        let report = m.collect();
        assert_eq!(report.abandoned, None);
        assert_eq!((report.unreachable, report.finalized, report.collected), (N + 1, N, N + 1));
        assert_eq!(lab.census.finalized_names(), (0..N).collect::<Vec<_>>());
        assert_eq!(lab.census.dead_names(), (0..N).chain([100]).collect::<Vec<_>>());
        let reports = lab.reports();
        assert!(
            !reports.is_empty() && reports.iter().all(|text| text.contains(what)),
            "{reports:?}"
        );
        assert!(
            reports.iter().all(|text| text.contains("Touchy")),
            "the type is named: {reports:?}"
        );
        assert_eq!(m.collect().unreachable, 0);
    });
}

#[test]
fn panicking_finalizers_are_reported_and_the_collection_goes_on() {
    panics_in("in finalize", |_| (true, false, false));
    panics_in("in finalize", |name| (name % 3 == 0, false, false));
}

#[test]
fn panicking_clear_handlers_are_reported_and_the_collection_goes_on() {
    panics_in("in clear", |_| (false, true, false));
    panics_in("in clear", |name| (false, name % 3 == 0, false));
}

#[test]
fn panicking_destructors_are_reported_and_the_collection_goes_on() {
    panics_in("in a destructor", |_| (false, false, true));
    panics_in("in a destructor", |name| (false, false, name % 3 == 0));
}

#[test]
fn everything_panics() {
    panics_in("in ", |_| (true, true, true));
}

/// A destructor that panics while counting frees a chain: the rest of the chain dies all the same.
#[test]
fn a_panicking_destructor_in_a_cascade() {
    on_every_heap_attached(|lab, m| {
        let all = touchy_ring(m, lab, 20, |name| (false, false, name % 4 == 1));
        let last = all[19].clone();
        let first = all[0].clone();
        drop(all);
        drop(last.next.take(m));
        drop(last);
        // The panic comes out here or goes to the heap's reports. In both cases every object dies
        // once.
        let thrown = panic_text(|| drop(first));
        assert_eq!(lab.census.dead_names(), (0..20).collect::<Vec<_>>());
        let reports = lab.reports();
        assert!(thrown.is_some() || !reports.is_empty(), "the panic was lost");
        m.safepoint();
        garbage_loop(m, &lab.census, 100);
        assert_eq!(m.collect().collected, 1);
    });
}

/// The same on a thread that is unwinding already: a second panic must not come out.
#[test]
fn a_panicking_destructor_while_unwinding() {
    on_every_heap_attached(|lab, m| {
        let lone = touchy_ring(m, lab, 1, |_| (false, false, true)).remove(0);
        drop(lone.next.take(m));
        let text = panic_text(move || {
            let _lone = lone;
            panic!("the first panic");
        });
        assert_eq!(text.as_deref(), Some("the first panic"));
        assert_eq!(lab.census.dead_names(), [0]);
        assert!(!lab.reports().is_empty(), "the second one is reported");
    });
}

#[test]
fn panicking_weak_callbacks_are_reported() {
    on_every_heap_attached(|lab, m| {
        let calls = Arc::new(AtomicUsize::new(0));
        let a = node(m, &lab.census, 0);
        let b = node(m, &lab.census, 1);
        link(m, &a, &a);
        let watching: Vec<_> = [&a, &a, &b]
            .into_iter()
            .map(|gc| {
                m.alloc_weak(gc, calls.clone(), |weak, _| {
                    weak.data().fetch_add(1, SeqCst);
                    panic!("in a callback");
                })
            })
            .collect();
        drop(a);
        let report = m.collect();
        assert_eq!((report.collected, report.abandoned), (1, None));
        let thrown = panic_text(|| drop(b));
        assert_eq!(calls.load(SeqCst), 3);
        let reports = lab.reports();
        assert_eq!(reports.len() + usize::from(thrown.is_some()), 3, "{reports:?}");
        assert_eq!(lab.census.dead_names(), [0, 1]);
        drop(watching);
    });
}

#[test]
fn panicking_collection_callbacks_are_reported() {
    on_every_heap_attached(|lab, m| {
        let calls = Arc::new(AtomicUsize::new(0));
        let counted = calls.clone();
        let on = Arc::new(AtomicBool::new(true));
        let still = on.clone();
        lab.heap.on_collection(move |_| {
            if still.load(SeqCst) {
                panic!("in a collection callback");
            }
        });
        let still = on.clone();
        lab.heap.on_collection(move |_| {
            counted.fetch_add(usize::from(still.load(SeqCst)), SeqCst);
        });
        garbage_loop(m, &lab.census, 0);
        assert_eq!(m.collect().collected, 1);
        assert_eq!(calls.load(SeqCst), 2, "the second callback is called all the same");
        on.store(false, SeqCst);
        let reports = lab.reports();
        assert_eq!(reports.len(), 2);
        assert!(
            reports.iter().all(|text| text.contains("in a collection callback")),
            "{reports:?}"
        );
    });
}

/// A report hook that panics itself.
#[test]
fn a_panicking_report_hook() {
    let heap = Heap::builder().reserve(1 << 30).build().unwrap();
    let census = Census::with_log();
    heap.on_unraisable(|_| panic!("in the hook"));
    let mut m = heap.attach();
    let gc = fin(&m, &census, 0, |_, _| panic!("in the finalizer"));
    link(&m, &gc, &gc);
    drop(gc);
    assert_eq!(m.collect().collected, 1);
    assert_eq!(census.dead_names(), [0]);
}

/// A constructor that panics leaves nothing behind.
#[test]
fn panicking_constructors() {
    on_every_heap_attached(|lab, m| {
        let before = lab.heap.stats().live_objects;
        let census = lab.census.clone();
        assert!(
            panic_text(|| drop(Gc::new_cyclic(m, |_| -> Node { panic!("in new_cyclic") })))
                .is_some()
        );
        let kept = Mutex::new(None);
        assert!(
            panic_text(|| {
                drop(Gc::new_cyclic(m, |weak| -> Node {
                    *kept.lock().unwrap() = Some(weak.clone());
                    panic!("in new_cyclic, after the weak handle got out");
                }));
            })
            .is_some()
        );
        let weak = kept.into_inner().unwrap_or_else(|e| e.into_inner()).expect("got out");
        assert!(weak.upgrade(m).is_none());
        // The third of five elements is never made; the two before are destroyed.
        let made = panic_text(|| {
            let items = (0..5).map(|name| {
                assert!(name != 2, "no third");
                Counted(Witness::new(&census, name))
            });
            drop(m.alloc_slice((), items));
        });
        assert!(made.is_some());
        assert_eq!((lab.census.born(), lab.census.alive()), (2, 0));
        m.collect();
        assert_eq!(lab.heap.stats().live_objects, before);
    });
}

struct Counted(#[allow(dead_code)] Witness);

impl Trace for Counted {
    fn traverse(_: &Self, _: &mut Tracer) {}
}

/// An iterator with a wrong length: more or fewer items than it reports.
#[test]
fn iterators_that_lie_about_their_length() {
    struct Lying<I>(I, usize);
    impl<I: Iterator> Iterator for Lying<I> {
        type Item = I::Item;
        fn next(&mut self) -> Option<I::Item> {
            self.0.next()
        }
        fn size_hint(&self) -> (usize, Option<usize>) {
            (self.1, Some(self.1))
        }
    }
    impl<I: Iterator> ExactSizeIterator for Lying<I> {}
    on_every_heap_attached(|lab, m| {
        for (real, said) in [(3, 5), (5, 3), (0, 4), (4, 0)] {
            let census = lab.census.clone();
            let items = (0..real).map(move |name| Counted(Witness::new(&census, name)));
            // It may refuse by a panic, or accept the items that fit.
            let _ = panic_text(|| {
                let slice = m.alloc_slice(7u8, Lying(items, said));
                assert_eq!(slice.header, 7);
                assert!(slice.items.len() <= real);
                slice.items.iter().for_each(|item| item.0.check());
            });
            assert_eq!(lab.census.alive(), 0, "{real} items, {said} announced");
        }
        lab.reports();
    });
}

/// Destructors, finalizers and clear handlers that allocate, link and resurrect while they die.
#[test]
fn destructors_that_allocate_and_link() {
    struct Phoenix {
        nest: Arc<Mutex<Vec<Gc<Node>>>>,
        next: GcCell<Option<Gc<Phoenix>>>,
        witness: Witness,
    }
    trace_fields!(Phoenix { next });
    impl Drop for Phoenix {
        fn drop(&mut self) {
            let census = self.witness.census().clone();
            let made = Mutator::with_current(|m| {
                garbage_loop(m, &census, 1000);
                let kept = node(m, &census, 1001);
                drop(node(m, &census, 1002));
                kept
            });
            if let Some(gc) = made {
                self.nest.lock().unwrap().push(gc);
            }
        }
    }
    on_every_heap_attached(|lab, m| {
        let nest: Arc<Mutex<Vec<Gc<Node>>>> = Arc::default();
        for round in 0..20 {
            let new = |m: &Mutator| {
                let witness = Witness::new(&lab.census, 0);
                m.alloc(Phoenix { nest: nest.clone(), next: GcCell::default(), witness })
            };
            let (a, b) = (new(m), new(m));
            a.next.set(m, Some(b.clone()));
            b.next.set(m, Some(a.clone()));
            drop((a, b));
            // Each of the last round's three destructors has left a cycle.
            assert_eq!(m.collect().collected, if round == 0 { 2 } else { 5 });
            drop(new(m));
        }
        let kept = std::mem::take(&mut *nest.lock().unwrap());
        assert_eq!(kept.len(), 60);
        kept.iter().for_each(|gc| assert_eq!(gc.name(), 1001));
    });
}
