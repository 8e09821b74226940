//! Mutators that are parked for a collection work on it (`docs/adr/0021-parked-threads-help.md`):
//! they traverse objects, pass their handlers' panics on, and continue afterwards.

#![cfg(not(loom))]

use std::cell::Cell;
use std::num::NonZero;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};

use standstill::{Gc, GcCell, Heap, Mutator, Pacing, Trace, Tracer};

/// Enough for two threads, and not enough to call for the pool's.
const OBJECTS: usize = 5_000;

thread_local! {
    /// 1: the thread that only comes to safepoints; 0: any other.
    static NUMBER: Cell<usize> = const { Cell::new(0) };
}

/// Records the thread that traverses it.
struct Witness {
    next: GcCell<Option<Gc<Witness>>>,
    looks: &'static [AtomicUsize; 2],
    fails: &'static AtomicBool,
}

impl Trace for Witness {
    fn traverse(this: &Self, tracer: &mut Tracer) {
        let number = NUMBER.get();
        this.looks[number].fetch_add(1, SeqCst);
        assert!(number == 0 || !this.fails.load(SeqCst), "the handler fails on the parked thread");
        Trace::traverse(&this.next, tracer);
    }

    fn clear(this: &Self, m: &Mutator) {
        Trace::clear(&this.next, m);
    }
}

/// A ring of witnesses.
fn ring(m: &Mutator, looks: &'static [AtomicUsize; 2], fails: &'static AtomicBool) -> Gc<Witness> {
    let one = |next| m.alloc(Witness { next: GcCell::new(next), looks, fails });
    let first = one(None);
    let mut last = first.clone();
    for _ in 1..OBJECTS {
        last = one(Some(last));
    }
    first.next.set(m, Some(last));
    first
}

fn heap() -> Heap {
    Heap::builder().workers(2).pacing(Pacing::manual()).build().unwrap()
}

/// Threads park and wait where they have no processor to themselves.
fn is_alone() -> bool {
    std::thread::available_parallelism().is_ok_and(|n| n == NonZero::<usize>::MIN)
}

/// Runs `f` beside a thread that has a ring of its own and comes to safepoints all the time.
fn beside<'a>(
    heap: &Heap,
    make: &(dyn Fn(&Mutator) -> Gc<Witness> + Sync + 'a),
    f: impl FnOnce(&mut Mutator),
) {
    let (ready, done) = (AtomicBool::new(false), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            NUMBER.set(1);
            let mut m = heap.attach();
            let ring = make(&m);
            ready.store(true, SeqCst);
            while !done.load(SeqCst) {
                m.safepoint();
                std::hint::spin_loop();
            }
            drop(ring);
        });
        let mut m = heap.attach();
        let ring = make(&m);
        while !ready.load(SeqCst) {
            m.safepoint();
        }
        f(&mut m);
        drop(ring);
        done.store(true, SeqCst);
    });
}

/// The first collection of a heap counts the objects of all pages. Later ones mark from the
/// remembered roots, which are two here, and may leave nothing for a second thread. A parked thread
/// may also be held up by the system until a collection is over. So each attempt has a heap of its
/// own.
#[test]
fn a_parked_thread_traverses_objects() {
    static LOOKS: [AtomicUsize; 2] = [const { AtomicUsize::new(0) }; 2];
    static NEVER: AtomicBool = AtomicBool::new(false);
    if is_alone() {
        return;
    }
    while LOOKS[1].load(SeqCst) == 0 {
        let heap = heap();
        beside(&heap, &|m| ring(m, &LOOKS, &NEVER), |m| {
            let report = m.collect();
            assert_eq!((report.candidates, report.collected), (2 * OBJECTS, 0));
        });
        let report = heap.attach().collect();
        assert_eq!(report.collected, 2 * OBJECTS);
    }
}

#[test]
fn a_handler_that_panics_on_a_parked_thread_abandons_the_collection_and_nothing_else() {
    static LOOKS: [AtomicUsize; 2] = [const { AtomicUsize::new(0) }; 2];
    static FAILS: AtomicBool = AtomicBool::new(true);
    if is_alone() {
        return;
    }
    let mut is_abandoned = false;
    while !is_abandoned {
        let heap = heap();
        FAILS.store(true, SeqCst);
        beside(&heap, &|m| ring(m, &LOOKS, &FAILS), |m| {
            let before = LOOKS[1].load(SeqCst);
            let report = m.collect();
            assert_eq!(report.collected, 0);
            is_abandoned = report.abandoned.is_some();
            assert_eq!(is_abandoned, LOOKS[1].load(SeqCst) > before, "{report:?}");
            FAILS.store(false, SeqCst);
            let report = m.collect();
            assert!(report.abandoned.is_none(), "{report:?}");
        });
        assert_eq!(heap.attach().collect().collected, 2 * OBJECTS);
    }
}
