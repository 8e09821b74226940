//! Dead objects for the runtime, finalizers of single objects, and values that return to their
//! thread.
#![cfg(not(any(loom, shuttle)))]

mod common;

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::rc::Rc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, LazyLock, Mutex};
use std::thread;

use common::{Census, Rng, Witness, deadline};
use standstill::{
    AnyGc, AtHome, Collect, Gc, GcCell, GcStr, GcWeak, GcWeakMap, Guardian, Heap, Home, Mutator,
    Pacing, Trace,
};

fn heap() -> Heap {
    Heap::builder().pacing(Pacing::manual()).build().unwrap()
}

#[derive(Trace)]
struct Node {
    name: usize,
    edges: GcCell<Vec<Gc<Node>>>,
    #[trace(skip)]
    witness: Witness,
}

fn node(m: &Mutator, census: &Arc<Census>, name: usize) -> Gc<Node> {
    m.alloc(Node { name, edges: GcCell::default(), witness: Witness::new(census, name) })
}

/// Of a cycle.
fn ring(m: &Mutator, census: &Arc<Census>, name: usize) -> Gc<Node> {
    let node = node(m, census, name);
    node.edges.lock(m).push(node.clone());
    node
}

#[test]
fn a_guardian_gets_dead_objects_in_the_order_of_their_deaths() {
    let heap = heap();
    let mut m = heap.attach();
    let census = Census::new();
    let guardian = Guardian::new();
    let [one, two, three] = [0, 1, 2].map(|name| node(&m, &census, name));
    for it in [&one, &two, &three] {
        guardian.register(&m, it);
    }
    assert!(!guardian.is_ready() && guardian.next(&m).is_none());
    drop(two);
    drop(one);
    assert!(guardian.is_ready());
    let first = guardian.next(&m).unwrap();
    assert_eq!((first.name, Gc::strong_count(&first), census.alive()), (1, 1, 3));
    // It is not registered any more.
    drop(first);
    assert_eq!(census.alive(), 2);
    let second = guardian.next(&m).unwrap();
    guardian.register(&m, &second);
    drop(second);
    assert_eq!((guardian.next(&m).unwrap().name, guardian.is_ready()), (0, false));
    drop((three, guardian.clone()));
    drop(guardian);
    assert_eq!((census.alive(), m.collect().unreachable), (0, 0));
}

#[test]
fn a_guardian_gets_garbage_intact_and_again_if_it_is_registered_again() {
    let heap = heap();
    let mut m = heap.attach();
    let census = Census::new();
    let guardian: Guardian<Gc<Node>> = Guardian::new();
    let ring = ring(&m, &census, 0);
    ring.edges.lock(&m).push(node(&m, &census, 1));
    guardian.register(&m, &ring);
    guardian.register(&m, &ring);
    drop(ring);
    for round in 0..3 {
        let report = m.collect();
        assert_eq!((report.resurrected, report.collected), (2, 0), "round {round}");
        let ring = guardian.next(&m).unwrap();
        assert_eq!(ring.edges.lock(&m)[1].name, 1);
        guardian.register(&m, &ring);
        if round == 0 {
            assert!(guardian.next(&m).unwrap() == ring, "it was registered twice");
        }
    }
    drop(guardian);
    assert_eq!((m.collect().collected, census.alive()), (2, 0));
}

#[test]
fn a_finalizer_of_the_type_runs_at_the_death_and_not_before() {
    static CALLS: AtomicUsize = AtomicUsize::new(0);
    #[derive(Trace)]
    #[trace(finalize)]
    struct Loud(GcCell<Option<Gc<Loud>>>);
    impl Loud {
        fn finalize(_: &Gc<Self>, _: &Mutator) {
            CALLS.fetch_add(1, SeqCst);
        }
    }
    let heap = heap();
    let mut m = heap.attach();
    let guardian = Guardian::new();
    let (counted, cyclic) = (m.alloc(Loud(GcCell::default())), m.alloc(Loud(GcCell::default())));
    cyclic.0.set(&m, Some(cyclic.clone()));
    guardian.register(&m, &counted);
    guardian.register(&m, &cyclic);
    drop(counted);
    drop(cyclic);
    m.collect();
    assert_eq!(CALLS.load(SeqCst), 0);
    let all: Vec<_> = std::iter::from_fn(|| guardian.next(&m)).collect();
    assert_eq!(all.len(), 2);
    drop(all);
    assert_eq!(CALLS.load(SeqCst), 1);
    assert_eq!((m.collect().collected, CALLS.load(SeqCst)), (1, 2));
}

#[test]
fn one_object_gets_a_finalizer() {
    let heap = heap();
    let mut m = heap.attach();
    let census = Census::new();
    let calls = Arc::new(Mutex::new(Vec::new()));
    for name in 0..2 {
        let node = if name == 0 { node(&m, &census, 0) } else { ring(&m, &census, 1) };
        for text in ["first", "second"] {
            let calls = Arc::clone(&calls);
            Gc::finalize_with(&node, &m, move |node, _| {
                node.witness.check();
                calls.lock().unwrap().push((node.name, text));
            });
        }
    }
    m.collect();
    let expected = [(0, "first"), (0, "second"), (1, "first"), (1, "second")];
    assert_eq!(calls.lock().unwrap().drain(..).collect::<Vec<_>>(), expected);
    // It was kept for the call, and has no finalizer now.
    m.collect();
    assert_eq!((census.alive(), calls.lock().unwrap().len()), (0, 0));
}

#[test]
fn a_finalizer_of_one_object_may_revive_it_panic_and_register_it_again() {
    let heap = heap();
    let m = heap.attach();
    let census = Census::new();
    let texts = Arc::new(Mutex::new(Vec::new()));
    heap.on_unraisable({
        let texts = Arc::clone(&texts);
        move |event| texts.lock().unwrap().push(event.to_string())
    });
    let guardian: Guardian<AnyGc> = Guardian::new();
    let one = node(&m, &census, 0);
    Gc::finalize_with(&one, &m, {
        let guardian = guardian.clone();
        move |one, m| {
            guardian.register(m, &Gc::into_any(one.clone()));
            std::panic::resume_unwind(Box::new("a finalizer of one object"));
        }
    });
    drop(one);
    assert!(texts.lock().unwrap()[0].contains("a finalizer of one object"));
    // The drop of the reference in the finalizer came while it was still running.
    let again = guardian.next(&m).expect("registered by the finalizer");
    assert!(again.is::<Node>(&m));
    drop(again);
    assert_eq!(census.alive(), 0);
}

/// An object that a finalizer registers is handed over before it dies: one that dies by its count
/// at once, and garbage by the next collection.
#[test]
fn an_object_that_a_finalizer_registers_is_handed_over() {
    static SAVED: LazyLock<Guardian<Gc<Saver>>> = LazyLock::new(Guardian::new);
    #[derive(Trace)]
    #[trace(finalize)]
    struct Saver {
        saves: bool,
        edges: GcCell<Vec<Gc<Saver>>>,
    }
    impl Saver {
        fn finalize(this: &Gc<Self>, m: &Mutator) {
            let edges = this.edges.lock(m).clone();
            match (this.saves, edges.first()) {
                (true, Some(other)) => SAVED.register(m, other),
                (true, None) => SAVED.register(m, this),
                _ => {}
            }
        }
    }
    let heap = heap();
    let mut m = heap.attach();
    drop(m.alloc(Saver { saves: true, edges: GcCell::default() }));
    assert!(SAVED.next(&m).is_some_and(|saver| Gc::is_finalized(&saver, &m)));
    // The finalizer of one of two runs before or after the turn of the other.
    for saver in [0, 1] {
        let ring = [0, 1].map(|at| m.alloc(Saver { saves: at == saver, edges: GcCell::default() }));
        ring[0].edges.lock(&m).push(ring[1].clone());
        ring[1].edges.lock(&m).push(ring[0].clone());
        drop(ring);
        let mut next = Vec::new();
        for _ in 0..2 {
            assert_eq!(m.collect().collected, 0);
            next.extend(SAVED.next(&m));
        }
        assert!(next.len() == 1 && !next[0].saves && next[0].edges.lock(&m)[0].saves);
        drop(next);
        assert_eq!((m.collect().collected, heap.stats().live_objects), (2, 0));
    }
}

/// What such a function owns is dropped at the end of the heap, without a lock.
#[test]
fn the_end_of_a_heap_drops_the_functions_of_its_objects() {
    static DROPS: AtomicUsize = AtomicUsize::new(0);
    struct Upgrades(GcWeak<Node>, Heap);
    impl Drop for Upgrades {
        fn drop(&mut self) {
            assert!(self.0.upgrade(&self.1.attach()).is_none());
            DROPS.fetch_add(1, SeqCst);
        }
    }
    let _watch = deadline("the end of a heap with guards");
    let (heap, other) = (heap(), heap());
    let m = heap.attach();
    let node = node(&m, &Census::new(), 0);
    let upgrades = Upgrades(Gc::downgrade(&node, &m), other);
    Gc::finalize_with(&node, &m, move |_, _| _ = &upgrades);
    drop((m, heap));
    assert_eq!((node.name, DROPS.load(SeqCst)), (0, 1));
}

#[test]
fn an_entry_of_a_weak_table_outlasts_the_queue() {
    let heap = heap();
    let mut m = heap.attach();
    let census = Census::new();
    let (guardian, table) = (Guardian::new(), GcWeakMap::new(&m));
    let ring = ring(&m, &census, 0);
    guardian.register(&m, &ring);
    table.insert(&m, &ring, 7u32);
    drop(ring);
    m.collect();
    let ring = guardian.next(&m).unwrap();
    assert_eq!(table.get(&m, &ring), Some(7));
    drop(ring);
    assert_eq!((m.collect().collected, table.len(&m)), (1, 0));
    let names: Guardian<GcStr> = Guardian::new();
    names.register(&m, &m.alloc_str((), "untracked"));
    assert_eq!(&*names.next(&m).unwrap(), "untracked");
}

/// The number of deaths is that of births; each object comes out of the queue once.
#[test]
fn threads_share_a_guardian() {
    let _watch = deadline("a guardian of threads");
    let heap = Heap::builder().pacing(Pacing::default().with_young_objects(300)).build().unwrap();
    let census = Census::new();
    let guardian: Guardian<Gc<Node>> = Guardian::new();
    let taken = AtomicUsize::new(0);
    thread::scope(|scope| {
        for thread in 0..3 {
            let (heap, census, guardian, taken) = (&heap, &census, &guardian, &taken);
            scope.spawn(move || {
                let mut m = heap.attach();
                let mut rng = Rng::new(thread);
                for round in 0..10_000 {
                    let it = match rng.below(2) {
                        0 => ring(&m, census, round),
                        _ => node(&m, census, round),
                    };
                    guardian.register(&m, &it);
                    drop(it);
                    if rng.one_in(4) {
                        while let Some(it) = guardian.next(&m) {
                            it.witness.check();
                            taken.fetch_add(1, SeqCst);
                        }
                    }
                    if rng.one_in(2_000) {
                        _ = m.try_collect(Collect::full());
                    }
                    m.safepoint();
                }
            });
        }
    });
    let mut m = heap.attach();
    for _ in 0..2 {
        m.collect();
        while guardian.next(&m).is_some() {
            taken.fetch_add(1, SeqCst);
        }
    }
    m.collect();
    assert_eq!((taken.load(SeqCst), census.alive()), (30_000, 0));
}

#[test]
fn a_value_is_dropped_on_its_own_thread() {
    struct Local(Rc<RefCell<Vec<thread::ThreadId>>>);
    impl Drop for Local {
        fn drop(&mut self) {
            self.0.borrow_mut().push(thread::current().id());
        }
    }
    #[derive(Trace)]
    struct Holder(AtHome<Local>, GcCell<Option<Gc<Holder>>>);
    let heap = heap();
    let mut m = heap.attach();
    let (home, drops) = (Home::new(), Rc::default());
    let holders: Vec<_> = (0..100)
        .map(|_| m.alloc(Holder(home.bind(Local(Rc::clone(&drops))), GcCell::default())))
        .collect();
    for pair in holders.chunks(2) {
        pair[0].1.set(&m, Some(pair[1].clone()));
        pair[1].1.set(&m, Some(pair[0].clone()));
    }
    assert_eq!(Rc::strong_count(&holders[0].0.get().unwrap().0), 101);
    let shared: Gc<Holder> = holders[0].clone();
    let heap = &heap;
    thread::scope(|scope| {
        let other = scope.spawn(move || {
            let mut m = heap.attach();
            assert!(shared.0.get().is_none());
            drop(shared);
            m.detach(thread::park);
            m.collect().collected
        });
        drop(holders);
        other.thread().unpark();
        assert_eq!(m.detach(|| other.join().unwrap()), 100);
    });
    assert!(home.is_waiting() && drops.borrow().is_empty());
    assert_eq!((home.drain(), home.is_waiting()), (100, false));
    assert_eq!(*drops.borrow(), vec![thread::current().id(); 100]);
    // On its own thread it is dropped at once.
    drop(home.bind(Local(Rc::clone(&drops))));
    assert_eq!(drops.borrow().len(), 101);
}

#[test]
fn a_destructor_that_panics_leaves_no_value_behind() {
    struct Loud(Rc<RefCell<usize>>);
    impl Drop for Loud {
        fn drop(&mut self) {
            *self.0.borrow_mut() += 1;
            resume_unwind(Box::new("a destructor"));
        }
    }
    let drops: Rc<RefCell<usize>> = Rc::default();
    for is_ending in [false, true] {
        let home = Home::new();
        let values = [0; 3].map(|_| home.bind(Loud(Rc::clone(&drops))));
        thread::scope(|scope| scope.spawn(move || drop(values)).join().unwrap());
        let dropped = catch_unwind(AssertUnwindSafe(|| match is_ending {
            true => drop(home),
            false => _ = home.drain(),
        }));
        assert!(dropped.is_err());
    }
    assert_eq!(*drops.borrow(), 6);
}

#[test]
fn a_home_wakes_its_thread_and_leaks_what_comes_too_late() {
    let wakes = Arc::new(AtomicUsize::new(0));
    let home = Home::waking({
        let wakes = Arc::clone(&wakes);
        move || _ = wakes.fetch_add(1, SeqCst)
    });
    let mut values: Vec<_> = (0..5).map(|n| home.bind(n)).collect();
    assert_eq!(values[0].get_mut(), Some(&mut 0));
    let late = values.split_off(3);
    thread::scope(|scope| scope.spawn(move || drop(values)).join().unwrap());
    assert_eq!((wakes.load(SeqCst), home.drain()), (1, 3));
    drop(home);
    let before = Home::leaked();
    thread::scope(|scope| scope.spawn(move || drop(late)).join().unwrap());
    assert_eq!((Home::leaked() - before, wakes.load(SeqCst)), (2, 1));
}

#[test]
fn a_function_that_revives_its_object_and_registers_itself_again_is_called_once_a_collection() {
    static POOL: Mutex<Vec<Gc<Node>>> = Mutex::new(Vec::new());
    fn rearm(node: &Gc<Node>, m: &Mutator) {
        POOL.lock().unwrap().push(node.clone());
        Gc::finalize_with(node, m, rearm);
    }
    let _watch = deadline("a function that registers itself");
    let heap = heap();
    let mut m = heap.attach();
    let census = Census::new();
    let ring = ring(&m, &census, 0);
    Gc::finalize_with(&ring, &m, rearm);
    drop(ring);
    for round in 0..3 {
        assert_eq!(m.collect().collected, 0);
        let pool = std::mem::take(&mut *POOL.lock().unwrap());
        assert_eq!(pool.len(), 1, "round {round}");
        pool[0].witness.check();
    }
    let last = std::mem::take(&mut *POOL.lock().unwrap());
    assert_eq!((last.len(), census.alive()), (0, 1));
}

#[test]
fn a_finalizer_of_the_type_finds_garbage_intact_that_a_function_has_let_go() {
    static FOUND: Mutex<Vec<bool>> = Mutex::new(Vec::new());
    #[derive(Trace)]
    #[trace(finalize)]
    struct Loud(GcCell<Option<Gc<Loud>>>);
    impl Loud {
        fn finalize(this: &Gc<Self>, m: &Mutator) {
            FOUND.lock().unwrap().push(this.0.lock(m).is_some());
        }
    }
    let heap = heap();
    let mut m = heap.attach();
    let loud = m.alloc(Loud(GcCell::default()));
    loud.0.set(&m, Some(loud.clone()));
    Gc::finalize_with(&loud, &m, |_, _| ());
    let gone = Guardian::new();
    gone.register(&m, &loud);
    drop((loud, gone));
    assert_eq!((m.collect().collected, FOUND.lock().unwrap().len()), (0, 0));
    assert_eq!((m.collect().collected, FOUND.lock().unwrap().clone()), (1, vec![true]));
    assert_eq!(heap.stats().live_objects, 0);
}
