//! Many threads at once: mutators that share slots and cells, allocate, link, drop, collect,
//! detach, are born and die; unattached threads that drop; collectors that race. Each goes on for
//! the time of `common::stress_time`. At the end everything has been dropped, every object has been
//! destroyed exactly once (a second time would have aborted the process), and the heap is empty.

#![cfg(not(loom))]
#![allow(clippy::type_complexity)]

mod common;

use std::cell::RefCell;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Barrier, Mutex, mpsc};

use common::*;
use standstill::{
    AtomicGc, Collect, CollectError, CollectionKind, Gc, GcCell, GcWeak, Heap, Mutator, Pacing,
    WeakRef,
};

const SLOTS: usize = 64;

/// An object of the heap through which threads share references without handles.
struct Board<const FINAL: bool> {
    slots: [AtomicGc<Thing<FINAL>>; 8],
    cells: [GcCell<Vec<Gc<Thing<FINAL>>>>; 8],
}

impl<const FINAL: bool> standstill::Trace for Board<FINAL> {
    fn traverse(this: &Self, tracer: &mut standstill::Tracer) {
        standstill::Trace::traverse(&this.slots, tracer);
        standstill::Trace::traverse(&this.cells, tracer);
    }

    fn clear(this: &Self, m: &Mutator) {
        standstill::Trace::clear(&this.slots, m);
        standstill::Trace::clear(&this.cells, m);
    }
}

/// The data that the threads of one stress test share.
struct Shared<const FINAL: bool> {
    heap: Heap,
    census: Arc<Census>,
    slots: Vec<Mutex<Option<Gc<Thing<FINAL>>>>>,
    weaks: Vec<Mutex<GcWeak<Thing<FINAL>>>>,
    board: Mutex<Option<Gc<Board<FINAL>>>>,
    made: AtomicUsize,
    callbacks: AtomicUsize,
    clock: Arc<Clock>,
    /// Finalizers put objects back now and then, as long as this is on.
    lively: Arc<std::sync::atomic::AtomicBool>,
    saved: Arc<Shelf<Thing<FINAL>>>,
}

impl<const FINAL: bool> Shared<FINAL> {
    fn new(lab: &Lab, secs: u64) -> Self {
        let board = lab.heap.attach_scoped(|m| {
            m.alloc(Board {
                slots: std::array::from_fn(|_| AtomicGc::new(None)),
                cells: std::array::from_fn(|_| GcCell::default()),
            })
        });
        Self {
            heap: lab.heap.clone(),
            census: Census::new(),
            slots: (0..SLOTS).map(|_| Mutex::default()).collect(),
            weaks: (0..SLOTS).map(|_| Mutex::default()).collect(),
            board: Mutex::new(Some(board)),
            made: AtomicUsize::new(0),
            callbacks: AtomicUsize::new(0),
            clock: Clock::start(secs),
            lively: Arc::new(true.into()),
            saved: Shelf::new(),
        }
    }

    fn make(&self, m: &Mutator) -> Gc<Thing<FINAL>> {
        let name = self.made.fetch_add(1, SeqCst);
        let (lively, saved) = (self.lively.clone(), self.saved.clone());
        let mut value = Thing::value(&self.census, name);
        if name.is_multiple_of(8) {
            value = value.with_action(move |this: &Gc<Thing<FINAL>>, m| {
                // Some come back, some make more, some break up.
                match this.name() % 24 {
                    0 if lively.load(SeqCst) => saved.push(this.clone()),
                    8 => drop(cut(m, this)),
                    _ => drop(m.alloc(Thing::<FINAL>::value(this.witness.census(), 1))),
                }
            });
        }
        m.alloc(value)
    }

    fn pick(&self, rng: &mut Rng) -> Option<Gc<Thing<FINAL>>> {
        self.slots[rng.below(SLOTS)].lock().unwrap().clone()
    }

    /// Puts `gc` into a slot. The previous handle is dropped after the lock.
    fn put(&self, rng: &mut Rng, gc: Option<Gc<Thing<FINAL>>>) {
        let old = std::mem::replace(&mut *self.slots[rng.below(SLOTS)].lock().unwrap(), gc);
        drop(old);
    }

    /// One thing that a mutator may do.
    fn act(self: &Arc<Self>, m: &mut Mutator, rng: &mut Rng, watching: &mut Vec<Watch<FINAL>>) {
        match rng.below(24) {
            0..=4 => {
                let gc = self.make(m);
                if rng.one_in(2)
                    && let Some(other) = self.pick(rng)
                {
                    link(m, &gc, &other);
                }
                self.put(rng, Some(gc));
            }
            5..=7 => {
                if let (Some(a), Some(b)) = (self.pick(rng), self.pick(rng)) {
                    // Not too many edges to one object, or a single knot holds everything.
                    if a.edges.lock(m).len() < 4 {
                        link(m, &a, &b);
                    }
                }
            }
            8 | 9 => {
                if let Some(gc) = self.pick(rng) {
                    drop(cut(m, &gc));
                }
            }
            10 | 11 => self.put(rng, None),
            12 => {
                if let Some(gc) = self.pick(rng) {
                    let weak = Gc::downgrade(&gc, m);
                    *self.weaks[rng.below(SLOTS)].lock().unwrap() = weak;
                }
            }
            13 | 14 => {
                let weak = self.weaks[rng.below(SLOTS)].lock().unwrap().clone();
                if let Some(gc) = weak.upgrade(m) {
                    gc.witness.check();
                    if rng.one_in(2) {
                        self.put(rng, Some(gc));
                    }
                }
            }
            15 => {
                if let Some(gc) = self.pick(rng) {
                    watching.push(m.alloc_weak(&gc, self.clone(), |weak, _| {
                        weak.data().callbacks.fetch_add(1, SeqCst);
                    }));
                    if watching.len() > 20 {
                        watching.clear();
                    }
                }
            }
            16 | 17 => {
                let Some(board) = self.board.lock().unwrap().clone() else { return };
                let board = &*board;
                let slot = &board.slots[rng.below(8)];
                match rng.below(4) {
                    0 => slot.store(m, self.pick(rng)),
                    1 => {
                        let old = slot.swap(m, self.pick(rng));
                        self.put(rng, old);
                    }
                    2 => {
                        if let Some(thing) = slot.peek(m) {
                            thing.witness.check();
                        }
                    }
                    _ => {
                        let gc = slot.load(m);
                        self.put(rng, gc);
                    }
                }
            }
            18 => {
                let Some(board) = self.board.lock().unwrap().clone() else { return };
                let cell = &board.cells[rng.below(8)];
                let new = self.pick(rng);
                let mut inside = cell.lock(m);
                let old = if inside.len() > 4 { std::mem::take(&mut *inside) } else { Vec::new() };
                inside.extend(new);
                drop(inside);
                drop(old);
            }
            19 => {
                if let Some(gc) = self.pick(rng) {
                    Gc::untrack(&gc, m);
                    Gc::track(&gc, m);
                }
            }
            20 => {
                // Detached, with handles that are cloned and dropped meanwhile.
                let (a, b) = (self.pick(rng), self.pick(rng));
                let seed = rng.next();
                m.detach(|| {
                    let more = (a.clone(), b.clone());
                    drop(a);
                    if seed.is_multiple_of(8) {
                        std::thread::yield_now();
                    }
                    self.put(&mut Rng::new(seed), b);
                    drop(more);
                });
            }
            21 => {
                let saved = self.saved.take();
                if let Some(gc) = saved.into_iter().next() {
                    self.put(rng, Some(gc));
                }
            }
            _ => {
                for _ in 0..4 {
                    let ring: Vec<_> = (0..3).map(|_| self.make(m)).collect();
                    tie(m, &ring);
                }
            }
        }
    }

    /// A mutator's life.
    fn mutate(self: &Arc<Self>, seed: u64, steps: Option<usize>) {
        let mut rng = Rng::new(seed);
        let mut m = self.heap.attach();
        let mut watching = Vec::new();
        let mut done = 0;
        while self.clock.running() && steps.is_none_or(|steps| done < steps) {
            done += 1;
            self.act(&mut m, &mut rng, &mut watching);
            if rng.one_in(3) {
                m.safepoint();
            }
            match rng.below(4000) {
                0 => drop(m.collect()),
                1..=3 => drop(m.collect_young()),
                4..=6 => drop(m.try_collect(Collect::full().wait(false))),
                _ => {}
            }
        }
    }

    /// Empties all slots, and checks the rest.
    fn finish(self: &Arc<Self>) {
        self.lively.store(false, SeqCst);
        let mut m = self.heap.attach();
        for slot in &self.slots {
            let old = slot.lock().unwrap().take();
            drop(old);
        }
        let board = self.board.lock().unwrap().take();
        drop(board);
        // Twice: objects that a finalizer makes or saves die the second time.
        for _ in 0..3 {
            drop(self.saved.take());
            m.safepoint();
            m.collect();
        }
        m.verify().expect("a sound heap");
        eprintln!(
            "{} objects, {} finalizers, {} callbacks, {:?}",
            self.census.born(),
            self.census.finalized(),
            self.callbacks.load(SeqCst),
            self.heap.stats()
        );
        assert_eq!(self.census.alive(), 0);
        assert!(self.weaks.iter().all(|weak| weak.lock().unwrap().upgrade(&m).is_none()));
        assert!(m.objects().is_empty());
        assert_eq!(self.heap.stats().live_objects, 0);
    }
}

type Watch<const FINAL: bool> = Gc<WeakRef<Thing<FINAL>, Arc<Shared<FINAL>>>>;

/// Four mutators for the whole time; two that come and go, leaving objects behind; an unattached
/// thread that drops; one that inspects everything.
fn stress<const FINAL: bool>(lab: &Lab, secs: u64) {
    let shared = Arc::new(Shared::<FINAL>::new(lab, secs));
    lab.heap.set_pacing(Pacing::default().with_young_objects(2000).with_full_minimum(2000));
    std::thread::scope(|scope| {
        let shared = &shared;
        /// Stops the others when one of them panics, so that the panic is seen.
        struct Panics(Arc<Clock>);
        impl Drop for Panics {
            fn drop(&mut self) {
                if std::thread::panicking() {
                    self.0.stop();
                }
            }
        }
        let guarded = move |f: Box<dyn FnOnce() + Send>| {
            move || {
                let _panics = Panics(shared.clock.clone());
                f();
            }
        };
        for seed in 0..4 {
            let shared = shared.clone();
            scope.spawn(guarded(Box::new(move || shared.mutate(seed, None))));
        }
        for line in 0..2 {
            let shared = shared.clone();
            scope.spawn(guarded(Box::new(move || {
                let mut generation = 0;
                while shared.clock.running() {
                    generation += 1;
                    let life = shared.clone();
                    let seed = 1000 * (line + 1) + generation;
                    let left = std::thread::spawn(move || {
                        life.mutate(seed, Some(500));
                        // It ends with a handle as its result, which another thread drops.
                        life.heap.attach_scoped(|m| life.make(m))
                    });
                    drop(left.join().expect("a short life"));
                }
            })));
        }
        {
            let shared = shared.clone();
            scope.spawn(guarded(Box::new(move || {
                let mut rng = Rng::new(77);
                while shared.clock.running() {
                    shared.put(&mut rng, None);
                    let gc = shared.pick(&mut rng);
                    let more = (gc.clone(), gc.clone());
                    drop(gc);
                    std::thread::yield_now();
                    drop(more);
                }
            })));
        }
        let shared = shared.clone();
        scope.spawn(guarded(Box::new(move || {
            let mut m = shared.heap.attach();
            let mut rng = Rng::new(88);
            while shared.clock.running() {
                match rng.below(6) {
                    0 => m.objects().iter().for_each(|any| {
                        if let Some(thing) = any.downcast_ref::<Thing<FINAL>>(&m) {
                            thing.witness.check();
                        }
                    }),
                    1 => {
                        if let Some(gc) = shared.pick(&mut rng) {
                            drop(m.referrers(&gc.into()));
                        }
                    }
                    2 => {
                        if let Some(gc) = shared.pick(&mut rng) {
                            drop(m.referents(&gc.into()));
                        }
                    }
                    3 => {
                        m.freeze();
                        m.collect_young();
                        m.unfreeze();
                    }
                    4 => m.verify().expect("a sound heap"),
                    _ => drop(shared.heap.stats()),
                }
                m.detach(|| std::thread::sleep(std::time::Duration::from_millis(2)));
            }
            m.unfreeze();
        })));
    });
    shared.finish();
}

#[test]
fn stress_with_plain_objects() {
    for lab in labs().iter().filter(|lab| !lab.stress) {
        let _watch = deadline(lab.name);
        stress::<false>(lab, 3);
        assert!(lab.reports().is_empty());
    }
}

#[test]
fn stress_with_finalizers() {
    for lab in labs().iter().filter(|lab| !lab.stress) {
        let _watch = deadline(lab.name);
        stress::<true>(lab, 3);
        assert!(lab.reports().is_empty());
    }
}

#[test]
fn stress_with_a_checked_collection_at_every_safepoint() {
    for lab in labs().iter().filter(|lab| lab.stress) {
        let _watch = deadline(lab.name);
        stress::<true>(lab, 2);
        assert!(lab.reports().is_empty());
    }
}

// ---------------------------------------------------------------------------- collectors at once

/// Each of several collectors that wait gets a collection of its own, one after the other.
#[test]
fn collectors_at_once_are_served_one_after_the_other() {
    on_every_heap(|lab| {
        const THREADS: usize = 4;
        const ROUNDS: usize = 25;
        let running = Arc::new(AtomicUsize::new(0));
        let counted = running.clone();
        lab.heap.on_collection(move |event| {
            // Starts and stops never overlap.
            match event.report() {
                None => assert_eq!(counted.fetch_add(1, SeqCst), 0, "two collections at once"),
                Some(_) => drop(counted.fetch_sub(1, SeqCst)),
            }
        });
        let before = lab.heap.stats().collections;
        let start = Barrier::new(THREADS);
        let collected = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let (start, collected) = (&start, &collected);
                scope.spawn(move || {
                    let mut m = lab.heap.attach();
                    m.detach(|| start.wait());
                    for round in 0..ROUNDS {
                        drop(ring(&m, &lab.census, thread * 1000 + round, 3));
                        let report = match round % 3 {
                            0 => m.collect(),
                            1 => m.collect_young(),
                            _ => m.try_collect(Collect::full().wait(true)).expect("it waits"),
                        };
                        assert_eq!(report.abandoned, None);
                        assert!(report.kind == CollectionKind::Young || round % 3 != 1);
                        collected.fetch_add(report.collected, SeqCst);
                    }
                });
            }
        });
        assert!(lab.heap.stats().collections >= before + THREADS * ROUNDS);
        if !lab.stress {
            assert_eq!(collected.load(SeqCst), THREADS * ROUNDS * 3, "each object is counted once");
        }
        assert_eq!(lab.census.alive(), 0);
    });
}

/// One that will not wait gets a collection or `Busy`, nothing else, and never hangs.
#[test]
fn the_loser_that_will_not_wait_gets_busy_or_a_report() {
    on_every_heap(|lab| {
        let clock = Clock::start(1);
        let (reports, busy) = (AtomicUsize::new(0), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            for seed in 0..4 {
                let (clock, reports, busy) = (&clock, &reports, &busy);
                scope.spawn(move || {
                    let mut rng = Rng::new(seed);
                    let mut m = lab.heap.attach();
                    loop {
                        drop(ring(&m, &lab.census, 0, 5));
                        let what = if rng.one_in(2) { Collect::full() } else { Collect::young() };
                        match m.try_collect(what.wait(false)) {
                            Ok(report) => {
                                assert_eq!(report.abandoned, None);
                                reports.fetch_add(1, SeqCst);
                            }
                            Err(CollectError::Busy) => drop(busy.fetch_add(1, SeqCst)),
                            Err(error) => panic!("{error}"),
                        }
                        m.safepoint();
                        // After the first round, so that there is a report on a busy machine too.
                        if !clock.running() {
                            break;
                        }
                    }
                });
            }
        });
        assert!(reports.load(SeqCst) > 0);
        eprintln!("{} reports, {} times busy", reports.load(SeqCst), busy.load(SeqCst));
    });
}

// ---------------------------------------------------------------------------- births and deaths

/// Cycles that span threads which have ended, in every order of ending.
#[test]
fn cycles_across_threads_that_ended() {
    on_every_heap(|lab| {
        for n in [2usize, 17, 100] {
            let senders: Vec<_> = (0..n).map(|_| mpsc::channel::<Gc<Node>>()).collect();
            let (senders, receivers): (Vec<_>, Vec<_>) = senders.into_iter().unzip();
            std::thread::scope(|scope| {
                for (i, receiver) in receivers.into_iter().enumerate() {
                    let next = senders[(i + 1) % n].clone();
                    scope.spawn(move || {
                        let mut m = lab.heap.attach();
                        let mine = node(&m, &lab.census, i);
                        next.send(mine.clone()).unwrap();
                        let theirs = m.detach(|| receiver.recv().unwrap());
                        link(&m, &mine, &theirs);
                    });
                }
            });
            lab.heap.attach_scoped(|m| {
                if !lab.stress {
                    assert_eq!(lab.census.alive(), n);
                    assert_eq!(m.collect().collected, n);
                }
                m.collect();
                assert_eq!(lab.census.alive(), 0);
            });
        }
    });
}

/// Thousands of threads, each with some objects, and never more than a few at a time.
#[test]
fn many_short_lives() {
    on_every_heap(|lab| {
        let lives = if lab.stress { 200 } else { 2_000 };
        let kept: Mutex<Vec<Gc<Node>>> = Mutex::default();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for life in 0..lives / 4 {
                        std::thread::scope(|scope| {
                            scope.spawn(|| {
                                let m = lab.heap.attach();
                                drop(ring(&m, &lab.census, life, 2));
                                let gc = node(&m, &lab.census, life);
                                let old = {
                                    let mut kept = kept.lock().unwrap();
                                    kept.push(gc);
                                    if kept.len() > 50 {
                                        Some(kept.swap_remove(life % 50))
                                    } else {
                                        None
                                    }
                                };
                                drop(old);
                            });
                        });
                    }
                });
            }
        });
        let kept = kept.into_inner().unwrap();
        let mut m = lab.heap.attach();
        m.collect();
        assert_eq!(lab.census.alive(), kept.len());
        assert!(kept.iter().all(|gc| Gc::strong_count(gc) == 1));
        drop(kept);
        assert_eq!(lab.census.alive(), 0);
        // Pages of the dead are used again: the objects of 2000 threads, one after the other, fit
        // little memory.
        assert!(lab.heap.stats().committed_bytes < 64 << 20, "{:?}", lab.heap.stats());
    });
}

/// A handle kept in a thread-local is dropped when the thread's locals are, after its mutator went.
#[test]
fn handles_in_thread_locals() {
    thread_local! {
        static KEPT: RefCell<Vec<Gc<Node>>> = const { RefCell::new(Vec::new()) };
    }
    on_every_heap(|lab| {
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let m = lab.heap.attach();
                    for name in 0..100 {
                        let gc = node(&m, &lab.census, name);
                        link(&m, &gc, &node(&m, &lab.census, 1000 + name));
                        KEPT.with_borrow_mut(|kept| kept.push(gc));
                    }
                });
            }
        });
        // The scope ends with the closures; the locals may take a moment longer.
        let mut m = lab.heap.attach();
        while lab.census.alive() > 0 {
            m.safepoint();
            m.detach(std::thread::yield_now);
        }
    });
}

/// A mutator kept in a thread-local ends with the thread, and the heap does not wait for it.
#[test]
fn mutators_in_thread_locals() {
    thread_local! {
        static MINE: RefCell<Option<Mutator>> = const { RefCell::new(None) };
    }
    on_every_heap(|lab| {
        let threads: Vec<_> = (0..4)
            .map(|_| {
                let (heap, census) = (lab.heap.clone(), lab.census.clone());
                std::thread::spawn(move || {
                    let m = heap.attach();
                    drop(ring(&m, &census, 0, 3));
                    MINE.with_borrow_mut(|mine| *mine = Some(m));
                })
            })
            .collect();
        for thread in threads {
            thread.join().expect("no panic");
        }
        let mut m = lab.heap.attach();
        m.collect();
        assert_eq!(lab.census.alive(), 0);
        assert_eq!(lab.heap.stats().mutators, 1);
    });
}

/// The heap's last handle goes while mutators work, and the last mutator while handles and weak
/// handles are still about on other threads.
#[test]
fn a_heap_ends_while_its_users_live() {
    let _watch = deadline("ends");
    let clock = Clock::start(2);
    let mut rounds = 0;
    while clock.running() || rounds < 20 {
        rounds += 1;
        let census = Census::new();
        let heap = Heap::builder().reserve(1 << 30).build().unwrap();
        let (give, take) = mpsc::channel::<(Gc<Node>, GcWeak<Node>)>();
        std::thread::scope(|scope| {
            for thread in 0..3 {
                let (heap, census, give) = (heap.clone(), census.clone(), give.clone());
                scope.spawn(move || {
                    let mut m = heap.attach();
                    drop(heap);
                    for name in 0..200 {
                        let gc = node(&m, &census, name);
                        link(&m, &gc, &node(&m, &census, 1000));
                        drop(ring(&m, &census, 2000, 2));
                        let weak = Gc::downgrade(&gc, &m);
                        give.send((gc, weak)).unwrap();
                        if name % 64 == thread {
                            m.collect();
                        }
                        m.safepoint();
                    }
                });
            }
            drop(give);
            drop(heap);
            scope.spawn(move || {
                // Drops most of them at once, and the rest when no thread can be left.
                let mut late = Vec::new();
                for (i, (gc, weak)) in take.into_iter().enumerate() {
                    match i % 4 {
                        0 => late.push((Some(gc), weak)),
                        1 => late.push((None, weak)),
                        _ => drop((gc, weak)),
                    }
                }
                std::thread::yield_now();
                drop(late);
            });
        });
        assert_eq!(census.alive(), 0, "round {rounds}");
    }
}

/// Deferred drops of threads that never attach are done by the next thread that is at a safepoint,
/// or attaches.
#[test]
fn unattached_threads_drop() {
    on_every_heap(|lab| {
        let mut m = lab.heap.attach();
        for round in 0..20 {
            let made: Vec<_> = (0..400)
                .map(|name| {
                    let gc = node(&m, &lab.census, name);
                    link(&m, &gc, &node(&m, &lab.census, 1000));
                    gc
                })
                .collect();
            let mut parts: Vec<Vec<_>> = (0..4).map(|_| Vec::new()).collect();
            for (i, gc) in made.into_iter().enumerate() {
                parts[i % 4].push(gc.clone());
                parts[(i + 1) % 4].push(gc);
            }
            m.detach(|| {
                std::thread::scope(|scope| {
                    for part in parts {
                        scope.spawn(move || drop(part));
                    }
                });
            });
            if round % 2 == 0 {
                m.safepoint();
            } else {
                m.collect();
            }
            assert_eq!(lab.census.alive(), 0, "round {round}");
        }
    });
}

/// Weak handles are upgraded while their targets die by every way there is: each upgrade gives a
/// whole object or nothing.
#[test]
fn upgrades_race_with_deaths() {
    on_every_heap(|lab| {
        let clock = Clock::start(1);
        let weak: Vec<Mutex<GcWeak<Node>>> = (0..8).map(|_| Mutex::default()).collect();
        std::thread::scope(|scope| {
            let (clock, weak) = (&clock, &weak);
            for thread in 0..2 {
                scope.spawn(move || {
                    let mut m = lab.heap.attach();
                    let mut name = thread;
                    while clock.running() {
                        name += 1;
                        let gc = node(&m, &lab.census, name);
                        *weak[name % 8].lock().unwrap() = Gc::downgrade(&gc, &m);
                        match name % 3 {
                            // By its owner's last drop.
                            0 => drop(gc),
                            // By a collection.
                            1 => {
                                link(&m, &gc, &gc);
                                drop(gc);
                                if name % 8 == 1 {
                                    m.collect_young();
                                }
                            }
                            // By a drop on a thread that is not attached here.
                            _ => m.detach(|| drop(gc)),
                        }
                        m.safepoint();
                    }
                });
            }
            for seed in 0..2 {
                scope.spawn(move || {
                    let mut rng = Rng::new(seed);
                    let mut m = lab.heap.attach();
                    while clock.running() {
                        let weak = weak[rng.below(8)].lock().unwrap().clone();
                        if let Some(gc) = weak.upgrade(&m) {
                            gc.witness.check();
                            let edges = edge_names(&m, &gc);
                            // Its only reference is to itself. Cleared it would be empty, which no
                            // upgrade may see: that edge is made before any thread can find the
                            // object dead.
                            assert!(edges.iter().all(|&name| name == gc.name()));
                        }
                        m.safepoint();
                    }
                });
            }
        });
    });
}

/// Threads make the first weak reference to the same objects at the same time: an object has one
/// record, for all of them.
#[test]
fn first_weak_references_race() {
    on_every_heap(|lab| {
        const THREADS: usize = 3;
        let clock = Clock::start(1);
        let mut rounds = 0;
        while clock.running() || rounds < 3 {
            rounds += 1;
            let mut m = lab.heap.attach();
            let kept: Vec<_> = (0..500).map(|name| node(&m, &lab.census, name)).collect();
            let start = std::sync::Barrier::new(THREADS);
            let downgrade_all = || {
                let mut m = lab.heap.attach();
                m.detach(|| start.wait());
                kept.iter().map(|gc| Gc::downgrade(gc, &m)).collect::<Vec<_>>()
            };
            let weaks: Vec<Vec<GcWeak<Node>>> = m.detach(|| {
                std::thread::scope(|scope| {
                    let threads: Vec<_> =
                        (0..THREADS).map(|_| scope.spawn(downgrade_all)).collect();
                    threads.into_iter().map(|thread| thread.join().unwrap()).collect()
                })
            });
            for weak in &weaks {
                assert!(*weak == weaks[0]);
                let targets = weak.iter().map(|weak| weak.upgrade(&m).expect("alive"));
                assert!(targets.eq(kept.iter().cloned()));
            }
            drop(kept);
            assert!(weaks.iter().flatten().all(|weak| weak.upgrade(&m).is_none()));
        }
    });
}

/// "Weak references to garbage read as empty before any code could see a cleared object."
#[test]
fn no_upgrade_shows_a_cleared_object() {
    on_every_heap(|lab| {
        let clock = Clock::start(1);
        let current: Mutex<GcWeak<Fin>> = Mutex::default();
        std::thread::scope(|scope| {
            let (clock, current) = (&clock, &current);
            for _ in 0..2 {
                scope.spawn(move || {
                    let mut m = lab.heap.attach();
                    while clock.running() {
                        let weak = current.lock().unwrap().clone();
                        if let Some(gc) = weak.upgrade(&m) {
                            assert_eq!(gc.edges.lock(&m).len(), 2, "a cleared object");
                        }
                        m.safepoint();
                    }
                });
            }
            let mut m = lab.heap.attach();
            let mut name = 0;
            while clock.running() {
                name += 1;
                let a: Gc<Fin> = thing(&m, &lab.census, name);
                let b: Gc<Fin> = thing(&m, &lab.census, name);
                for (from, to) in [(&a, &b), (&a, &a), (&b, &a), (&b, &b)] {
                    link(&m, from, to);
                }
                *current.lock().unwrap() = Gc::downgrade(&a, &m);
                drop((a, b));
                m.collect_young();
                m.collect();
            }
        });
    });
}

/// Two threads pass no safepoint but the calls of `collects`, each of which returns whether a
/// collection ran. If one of them were no safepoint, the other thread would wait for ever.
fn only_collections(heap: &Heap, collects: [fn(&mut Mutator) -> bool; 2], both_collect: bool) {
    const OFTEN: usize = 20;
    let done = [(); 2].map(|()| AtomicUsize::new(0));
    let run = |me: usize| {
        let mut m = heap.attach();
        let is_over = || {
            let often = |who: usize| done[who].load(SeqCst) >= OFTEN;
            often(0) && (often(1) || !both_collect)
        };
        while !is_over() {
            let ring = m.alloc(Ring(GcCell::default()));
            ring.0.set(&m, Some(ring.clone()));
            drop(ring);
            done[me].fetch_add(usize::from(collects[me](&mut m)), SeqCst);
            // The other thread finds the lock free now and then.
            (0..100).for_each(|_| std::thread::yield_now());
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(|| run(1));
        run(0);
    });
}

#[derive(standstill::Trace)]
struct Ring(GcCell<Option<Gc<Ring>>>);

#[test]
fn a_collection_that_gives_way_is_a_safepoint() {
    if !common::child::is_alone("a_collection_that_gives_way_is_a_safepoint") {
        return;
    }
    let heap = Heap::builder().pacing(Pacing::manual()).build().expect("a heap");
    let collects = |m: &mut Mutator| match m.try_collect(Collect::full().wait(false)) {
        Ok(_) => true,
        Err(CollectError::Busy) => false,
        Err(error) => panic!("{error}"),
    };
    only_collections(&heap, [collects; 2], true);
}

#[cfg(feature = "cpython")]
#[test]
fn a_collection_of_the_gc_module_that_does_not_run_is_a_safepoint() {
    if !common::child::is_alone("a_collection_of_the_gc_module_that_does_not_run_is_a_safepoint") {
        return;
    }
    let heap = Heap::builder().pacing(Pacing::manual()).build().expect("a heap");
    let collects =
        |m: &mut Mutator| m.heap().services().collect(m, 2).expect("a generation").is_some();
    only_collections(&heap, [collects; 2], true);
    heap.services().disable();
    let disabled = |m: &mut Mutator| m.heap().services().collect_if_enabled(m).is_some();
    only_collections(&heap, [collects, disabled], false);
}
