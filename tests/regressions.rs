//! Programs that broke the library once, each as short as possible. Every test describes the old
//! fault, and asserts the present behaviour.

#![cfg(not(loom))]
#![allow(clippy::type_complexity)]
#![allow(missing_docs)]

use std::cell::Cell;
use std::os::unix::process::ExitStatusExt;
use std::panic::{AssertUnwindSafe, catch_unwind, panic_any};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Barrier, Mutex, OnceLock, PoisonError, mpsc};
use std::time::{Duration, Instant};

use standstill::dynamic::Class;
use standstill::safepoint::{self, StopError};
use standstill::{
    AnyGc, AtomicGc, AttachError, Collect, CollectError, Finalizer, Gc, GcCell, GcSlice, GcWeak,
    Heap, Mutator, Pacing, Trace, Tracer,
};

/// A heap that collects when it is reports to.
fn manual() -> Heap {
    Heap::builder().pacing(Pacing::manual()).build().expect("a heap")
}

/// As `manual`. Cleared values are kept for a while in any case.
fn stressed() -> Heap {
    Heap::builder().pacing(Pacing::manual()).stress(true).build().expect("a heap")
}

fn panics<R>(f: impl FnOnce() -> R) -> bool {
    catch_unwind(AssertUnwindSafe(f)).is_err()
}

/// Collects until no deferred or retired reference is left.
fn collect_completely(m: &mut Mutator) {
    for _ in 0..3 {
        m.safepoint();
        m.collect();
    }
    m.safepoint();
}

/// One reference that can change.
#[derive(Trace)]
struct Node {
    next: GcCell<Option<Gc<Node>>>,
}

fn node(m: &Mutator, next: Option<Gc<Node>>) -> Gc<Node> {
    m.alloc(Node { next: GcCell::new(next) })
}

/// Larger than a node, so that it lies on a page of its own class.
#[derive(Trace)]
struct Big<T: Trace> {
    pad: [u64; 40],
    to: Gc<T>,
}

fn big<T: Trace + Send + Sync>(m: &Mutator, to: &Gc<T>) -> Gc<Big<T>> {
    let big = m.alloc(Big { pad: [1; 40], to: to.clone() });
    assert!(big.pad[39] == 1 && big.to == *to);
    big
}

// ----------------------------------------------------------------------------------------- lending

/// The mutator that `with_current` lent was freed under its user, together with its arena.
#[test]
fn a_mutator_dropped_while_lent_lasts_as_long_as_the_loan() {
    let heap = Heap::new();
    let m = heap.attach();
    Mutator::with_current(|outer| {
        Mutator::with_current(|inner| {
            drop(m);
            assert_eq!(*inner.alloc(5u64), 5);
        })
        .expect("attached");
        let gc = outer.alloc(6u64);
        assert_eq!(*gc, 6);
        assert_eq!(heap.stats().mutators, 1);
    })
    .expect("attached");
    assert_eq!(heap.stats().mutators, 0);
    assert!(Mutator::with_current(|_| ()).is_none());
    heap.attach().collect();
    assert_eq!(heap.stats().live_objects, 0);
}

/// A borrow from the lent mutator was used after a safepoint of the mutator itself had freed its
/// object.
#[test]
fn a_borrow_from_a_lent_mutator_outlasts_safepoints() {
    let heap = Heap::new();
    let mut m = heap.attach();
    let slot = AtomicGc::new(Some(m.alloc(vec![7u64; 1000])));
    Mutator::with_current(|lent| {
        let borrowed: &Vec<u64> = slot.peek(lent).expect("full");
        slot.store(lent, None);
        m.safepoint();
        let refused = m.try_collect(Collect::full());
        assert!(matches!(refused, Err(CollectError::Stop(StopError::NoSafepoint))), "{refused:?}");
        assert!(matches!(m.prepare_fork(), Err(StopError::NoSafepoint)));
        assert!(panics(|| m.detach(|| ())), "detached under a borrow");
        assert_eq!(borrowed.iter().sum::<u64>(), 7000);
    })
    .expect("attached");
    collect_completely(&mut m);
    assert_eq!(heap.stats().live_objects, 0);
}

/// A destructor that drops its thread's mutator pulled it from under the code that called the
/// destructor.
#[test]
fn a_destructor_drops_its_threads_mutator() {
    thread_local! { static MINE: Cell<Option<Mutator>> = const { Cell::new(None) } }
    struct Bomb(Heap);
    impl Trace for Bomb {
        const TRACKED: bool = false;
        fn traverse(_: &Self, _: &mut Tracer) {}
    }
    impl Drop for Bomb {
        fn drop(&mut self) {
            drop(MINE.take());
            assert_eq!(self.0.stats().mutators, 1, "it ends after this destructor");
        }
    }
    // An object without a weak record is destroyed in place, and another one by its table.
    for is_weak in [false, true] {
        let heap = Heap::new();
        let m = heap.attach();
        let bomb = m.alloc(Bomb(heap.clone()));
        let weak = is_weak.then(|| Gc::downgrade(&bomb, &m));
        MINE.set(Some(m));
        drop(bomb);
        assert_eq!(heap.stats().mutators, 0);
        assert_eq!(heap.stats().live_objects, 0);
        let mut m = heap.attach();
        assert!(weak.is_none_or(|weak| weak.upgrade(&m).is_none()));
        m.verify().expect("a whole heap");
    }
}

// --------------------------------------------------------------------------------------- detaching

/// Runs one test of this file again as a process of its own, where it has to abort; `true`: this is
/// that process.
fn aborts(test: &str) -> bool {
    const CHILD: &str = "STANDSTILL_TEST_ABORTS";
    if std::env::var_os(CHILD).is_some_and(|name| name == test) {
        return true;
    }
    let me = std::env::current_exe().expect("a test binary");
    let child = std::process::Command::new(me)
        .args(["--exact", test, "--nocapture", "--test-threads=1"])
        .env(CHILD, test)
        .output()
        .expect("a child process");
    let said = String::from_utf8_lossy(&child.stderr);
    assert_eq!(child.status.signal(), Some(libc::SIGABRT), "{:?}: {said}", child.status);
    assert!(said.contains("cannot attach again"), "{said}");
    false
}

/// Two threads that keep each other suspended would wait for each other when they attach.
#[test]
#[cfg_attr(miri, ignore = "starts a process")]
fn a_detach_that_keeps_a_thread_suspended_aborts() {
    if !aborts("a_detach_that_keeps_a_thread_suspended_aborts") {
        return;
    }
    let coordinator = safepoint::Coordinator::new();
    let other = coordinator.register(());
    let heap = Heap::new();
    let mut m = heap.attach();
    let _ = panics(|| m.detach(|| std::mem::forget(coordinator.suspend(other.id()))));
}

/// The mutator stayed detached and usable when its thread came back attached to something else.
#[test]
#[cfg_attr(miri, ignore = "starts a process")]
fn a_detach_that_stays_attached_elsewhere_aborts() {
    if !aborts("a_detach_that_stays_attached_elsewhere_aborts") {
        return;
    }
    let other = safepoint::Coordinator::new().register(());
    let heap = Heap::new();
    let mut m = heap.attach();
    let _ = panics(|| m.detach(|| other.attach().expect("nothing forbids it")));
}

/// A detach that the traversal refused went on all the same, and the drop in it found no mutator.
#[test]
fn a_detach_inside_a_traversal_panics_before_it_does_anything() {
    let heap = Heap::new();
    let mut m = heap.attach();
    let gc = m.alloc("x".to_owned());
    let traversing = safepoint::traversing();
    let ran = Cell::new(false);
    assert!(panics(|| {
        m.detach(|| {
            ran.set(true);
            drop((traversing, gc));
        });
    }));
    assert!(!ran.get());
    collect_completely(&mut m);
    assert_eq!(heap.stats().live_objects, 0);
    m.detach(|| ());
}

// ----------------------------------------------------------------------------- drops inside a stop

/// Panics with its handle when it is traversed, while armed.
struct Thrower<T: Trace + Send> {
    holds: Mutex<Option<Gc<T>>>,
    armed: Arc<AtomicBool>,
    /// On a page of its own.
    _pad: [u64; 40],
}

impl<T: Trace + Send + Sync> Trace for Thrower<T> {
    fn traverse(this: &Self, tracer: &mut Tracer) {
        let mut holds = this.holds.lock().unwrap_or_else(PoisonError::into_inner);
        if this.armed.load(SeqCst) {
            let thrown = holds.take();
            drop(holds);
            if let Some(gc) = thrown {
                panic_any(gc);
            }
        } else {
            Trace::traverse(&*holds, tracer);
        }
    }
}

fn thrower<T: Trace + Send + Sync>(m: &Mutator, gc: Gc<T>) -> (Gc<Thrower<T>>, Arc<AtomicBool>) {
    let armed = Arc::new(AtomicBool::new(false));
    (
        m.alloc(Thrower { holds: Mutex::new(Some(gc)), armed: Arc::clone(&armed), _pad: [0; 40] }),
        armed,
    )
}

/// Counts its destructions, and notes whether one happened in a stop.
struct Mortal {
    deaths: Arc<AtomicUsize>,
    in_stop: Arc<AtomicBool>,
    to: Option<Gc<String>>,
}

impl Trace for Mortal {
    fn traverse(this: &Self, tracer: &mut Tracer) {
        assert_eq!(this.deaths.load(SeqCst), 0, "traversed after its destruction");
        Trace::traverse(&this.to, tracer);
    }
}

impl Drop for Mortal {
    fn drop(&mut self) {
        self.deaths.fetch_add(1, SeqCst);
        self.in_stop.fetch_or(safepoint::is_stopping(), SeqCst);
    }
}

/// A reference dropped inside the stop of `referrers` destroyed its object there, and the walk met
/// it again.
#[test]
fn a_reference_thrown_inside_an_inspection_is_destroyed_once() {
    let heap = Heap::new();
    heap.on_unraisable(|_| {});
    let mut m = heap.attach();
    let (deaths, in_stop) = (Arc::<AtomicUsize>::default(), Arc::<AtomicBool>::default());
    let target = m.alloc("t".to_owned());
    let mortal =
        Mortal { deaths: deaths.clone(), in_stop: in_stop.clone(), to: Some(target.clone()) };
    let (_thrower, armed) = thrower(&m, m.alloc(mortal));
    let target = Gc::into_any(target);
    assert_eq!(m.referrers(&target).len(), 1);
    armed.store(true, SeqCst);
    let _ = panics(|| m.referrers(&target));
    armed.store(false, SeqCst);
    collect_completely(&mut m);
    assert_eq!(deaths.load(SeqCst), 1);
    assert!(!in_stop.load(SeqCst));
    m.verify().expect("a whole heap");
}

/// A panic's payload that owned the last reference ran the destructor with the world stopped.
#[test]
fn a_reference_thrown_inside_a_collection_dies_after_the_stop() {
    let heap = Heap::new();
    heap.on_unraisable(|_| {});
    let mut m = heap.attach();
    let (deaths, in_stop) = (Arc::<AtomicUsize>::default(), Arc::<AtomicBool>::default());
    let mortal = Mortal { deaths: deaths.clone(), in_stop: in_stop.clone(), to: None };
    let (thrower, armed) = thrower(&m, m.alloc(mortal));
    armed.store(true, SeqCst);
    assert!(m.collect().abandoned.is_some());
    collect_completely(&mut m);
    assert_eq!(deaths.load(SeqCst), 1);
    assert!(!in_stop.load(SeqCst));
    assert_eq!(heap.stats().live_objects, 1);
    drop(thrower);
}

/// The same with a plain value: its count, too, reached 0 with the world stopped.
#[test]
fn a_plain_value_thrown_inside_a_collection_is_freed() {
    let heap = Heap::new();
    heap.on_unraisable(|_| {});
    let mut m = heap.attach();
    let (thrower, armed) = thrower(&m, m.alloc("last".to_owned()));
    armed.store(true, SeqCst);
    assert!(!panics(|| m.collect()));
    collect_completely(&mut m);
    assert_eq!(heap.stats().live_objects, 1);
    drop(thrower);
}

// ------------------------------------------------------------------------------------------- cells

/// `GcCell<T>` was `Sync` for a `T` that is only `Send`, and two workers shared a value that must
/// not be shared.
#[test]
fn a_cell_is_sync_only_if_its_value_is_sync() {
    trait AmbiguousIfSync<A> {
        fn is_not_sync() {}
    }
    impl<T: ?Sized> AmbiguousIfSync<()> for T {}
    impl<T: ?Sized + Sync> AmbiguousIfSync<u8> for T {}
    fn is_sync<T: Sync>() {}
    // Does not compile once the type is `Sync`: there are two functions to choose from then.
    <GcCell<Cell<u32>> as AmbiguousIfSync<_>>::is_not_sync();
    is_sync::<GcCell<u32>>();
}

/// Tries to lock its cell on a thread that is attached to another heap, while its own heap is
/// stopped.
struct Lends {
    cell: GcCell<Vec<u64>>,
    other: Heap,
    armed: AtomicBool,
    tried: AtomicUsize,
    locked: AtomicUsize,
}

impl Trace for Lends {
    fn traverse(this: &Self, tracer: &mut Tracer) {
        if this.armed.load(SeqCst) {
            std::thread::scope(|s| {
                s.spawn(|| {
                    let m = this.other.attach();
                    let refused = [
                        panics(|| this.cell.lock(&m).push(1)),
                        panics(|| drop(this.cell.try_lock(&m))),
                    ];
                    this.tried.fetch_add(refused.len(), SeqCst);
                    this.locked
                        .fetch_add(refused.iter().filter(|&&refused| !refused).count(), SeqCst);
                });
            });
        }
        Trace::traverse(&this.cell, tracer);
    }
}

/// A thread attached to another heap changed a cell while the collector was reading it.
#[test]
fn a_cell_is_not_locked_through_another_heap() {
    let heap = Heap::new();
    let mut m = heap.attach();
    let lends = m.alloc(Lends {
        cell: GcCell::new(vec![7]),
        other: Heap::new(),
        armed: AtomicBool::new(true),
        tried: AtomicUsize::new(0),
        locked: AtomicUsize::new(0),
    });
    assert_eq!(m.collect().abandoned, None);
    let lends = &*lends;
    lends.armed.store(false, SeqCst);
    assert_ne!(lends.tried.load(SeqCst), 0);
    assert_eq!(lends.locked.load(SeqCst), 0, "locked in a stop of its heap");
    assert_eq!(lends.cell.get(&m), [7]);
}

/// The content of a cell. Its first armed traversal waits for an attempt of another thread to lock
/// the cell.
#[derive(Default)]
struct Watched {
    text: Vec<String>,
    step: Arc<AtomicUsize>,
}

const ARMED: usize = 1;
const READING: usize = 2;
const TRIED: usize = 3;

/// Waits for a step of a test, for at most ten seconds.
fn wait_for(step: &AtomicUsize, least: usize) {
    let begun = Instant::now();
    while step.load(SeqCst) < least && begun.elapsed() < Duration::from_secs(10) {
        std::thread::yield_now();
    }
}

impl Trace for Watched {
    fn traverse(this: &Self, _: &mut Tracer) {
        if this.step.compare_exchange(ARMED, READING, SeqCst, SeqCst).is_ok() {
            let text = &this.text[0];
            wait_for(&this.step, TRIED);
            assert_eq!(text, "unchanged");
        }
    }
}

/// Collects `own`, and meanwhile calls `change` on a thread that is attached to `other`.
fn while_one_heap_reads(
    own: &Heap,
    other: &Heap,
    step: &AtomicUsize,
    change: impl FnOnce(&mut Mutator) -> bool + Send,
) {
    step.store(ARMED, SeqCst);
    std::thread::scope(|s| {
        s.spawn(|| assert_eq!(own.attach().collect().abandoned, None));
        s.spawn(|| {
            wait_for(step, READING);
            assert_eq!(step.load(SeqCst), READING, "the collection reads the cell");
            let is_changed = other.attach_scoped(change);
            step.store(TRIED, SeqCst);
            assert!(!is_changed, "the cell was locked while a collection read it");
        });
    });
}

fn watched(step: &Arc<AtomicUsize>) -> GcCell<Watched> {
    GcCell::new(Watched { text: vec!["unchanged".to_owned()], step: Arc::clone(step) })
}

fn try_change(cell: &GcCell<Watched>, m: &Mutator) -> bool {
    cell.try_lock(m).is_some_and(|mut guard| {
        guard.text = vec!["changed".to_owned()];
        true
    })
}

/// Shows a cell that objects of two heaps share.
struct ByArc(Arc<GcCell<Watched>>);

impl Trace for ByArc {
    fn traverse(this: &Self, tracer: &mut Tracer) {
        Trace::traverse(&*this.0, tracer);
    }
}

/// A collection read the cell without its lock. A collection of the other heap made the cell a part
/// of that heap, and a thread of that heap freed the content that the first collection was reading.
#[test]
fn a_cell_that_two_heaps_show_is_not_changed_while_one_reads_it() {
    let (one, two) = (manual(), manual());
    let step = Arc::default();
    let cell = Arc::new(watched(&step));
    let _objects = [&one, &two].map(|heap| heap.attach().alloc(ByArc(Arc::clone(&cell))));
    one.attach().collect();
    while_one_heap_reads(&one, &two, &step, |m| {
        m.collect();
        try_change(&cell, m)
    });
}

#[derive(Trace)]
struct Inner(GcCell<Watched>);

/// Shows the cell of an object of another heap.
struct Shows(Gc<Inner>);

impl Trace for Shows {
    fn traverse(this: &Self, tracer: &mut Tracer) {
        Trace::traverse(&this.0.0, tracer);
    }
}

/// A collection read the cell without its lock, and another thread changed the content meanwhile.
#[test]
fn a_cell_of_another_heaps_object_is_not_changed_while_it_is_read() {
    let (one, two) = (manual(), manual());
    let step = Arc::default();
    let inner = two.attach().alloc(Inner(watched(&step)));
    let _object = one.attach().alloc(Shows(inner.clone()));
    one.attach().collect();
    while_one_heap_reads(&one, &two, &step, |m| try_change(&inner.0, m));
    assert!(two.attach_scoped(|m| try_change(&inner.0, m)), "the lock is free again");
}

/// The cell of a box moves from one heap's object to another heap's. A collection of the second
/// heap finds it there.
#[test]
fn a_boxed_cell_that_moves_to_another_heap_is_usable_after_a_collection_there() {
    #[derive(Trace)]
    struct Holder(GcCell<Option<Box<GcCell<Watched>>>>);
    let (one, two) = (manual(), manual());
    let make = |content| move |m: &mut Mutator| m.alloc(Holder(GcCell::new(content)));
    let first = one.attach_scoped(make(Some(Box::new(watched(&Arc::default())))));
    one.attach().collect();
    let moved = one.attach_scoped(|m| first.0.take(m));
    let second = two.attach_scoped(make(moved));
    let push = |m: &mut Mutator| {
        let holder = second.0.lock(m);
        let cell = holder.as_ref().expect("a box");
        cell.lock(m).text.push("more".to_owned());
        cell.lock(m).text.len()
    };
    let refusal = catch_unwind(AssertUnwindSafe(|| two.attach_scoped(push)));
    let text = refusal.expect_err("a part of the first heap");
    let text = text.downcast_ref::<&str>().expect("a message");
    assert!(text.contains("collect the Mutator's heap first"), "{text}");
    two.attach().collect();
    assert_eq!(two.attach_scoped(push), 2);
}

// ----------------------------------------------------------------------------------- young and old

/// An unfrozen object was young on a page that was not, its reference went uncounted, and it was
/// cleared alive.
#[test]
fn a_young_collection_after_unfreeze_clears_nothing_alive() {
    let heap = manual();
    let mut m = heap.attach();
    let leaf = node(&m, None);
    let frozen = node(&m, Some(leaf));
    let _fill: Vec<_> = (0..5000).map(|_| node(&m, None)).collect();
    m.freeze();
    m.collect();
    m.unfreeze();
    let big = big(&m, &frozen);
    m.collect_young();
    m.verify().expect("a whole heap");
    drop(big);
    m.collect();
    assert!(frozen.next.get(&m).is_some(), "a live object was cleared");
}

/// Its `clear` leaves its reference to itself.
struct Stubborn {
    me: OnceLock<Gc<Stubborn>>,
    data: GcCell<Option<Gc<Node>>>,
}

impl Trace for Stubborn {
    fn traverse(this: &Self, tracer: &mut Tracer) {
        this.me.get().into_iter().for_each(|me| Trace::traverse(me, tracer));
        Trace::traverse(&this.data, tracer);
    }

    fn clear(this: &Self, m: &Mutator) {
        Trace::clear(&this.data, m);
    }
}

fn stubborn(m: &Mutator) -> Gc<Stubborn> {
    m.alloc(Stubborn { me: OnceLock::new(), data: GcCell::new(None) })
}

/// A stubborn object without an outside reference that has survived a collection, found again by
/// enumeration.
fn survivor(m: &mut Mutator, before: impl FnOnce(&Gc<Stubborn>, &Mutator)) -> Gc<Stubborn> {
    let gc = stubborn(m);
    gc.me.set(gc.clone()).expect("set once");
    before(&gc, m);
    drop(gc);
    assert_eq!(m.collect().uncollectable, 1);
    let found = m.objects().into_iter().filter_map(|o| o.downcast::<Stubborn>(m).ok());
    let found: Vec<_> = found.filter(|gc| gc.me.get().is_some()).collect();
    found.into_iter().next().expect("it survived")
}

/// An uncollectable object kept a young mark that its page had lost, and was cleared alive.
#[test]
fn a_young_collection_after_an_uncollectable_object_clears_nothing_alive() {
    let heap = manual();
    let mut m = heap.attach();
    let mut fill = Vec::new();
    let found = survivor(&mut m, |_, m| fill.extend((0..5000).map(|_| stubborn(m))));
    let leaf = node(&m, None);
    found.data.set(&m, Some(leaf));
    let big = big(&m, &found);
    m.collect_young();
    m.verify().expect("a whole heap");
    drop(big);
    m.collect();
    drop(fill);
    assert!(found.data.get(&m).is_some(), "a live object was cleared");
}

/// A weak reference was born dead if it was made to a survivor whose weak references had been
/// cleared once.
#[test]
fn a_new_weak_reference_to_a_survivor_is_alive() {
    let heap = manual();
    let mut m = heap.attach();
    let found = survivor(&mut m, |gc, m| drop(Gc::downgrade(gc, m)));
    assert!(Gc::downgrade(&found, &m).upgrade(&m).is_some());
}

/// An object untracked while frozen stayed frozen for ever, and its cycles were never collected.
#[test]
fn an_object_untracked_while_frozen_can_be_collected_again() {
    let heap = manual();
    let mut m = heap.attach();
    let a = node(&m, None);
    m.freeze();
    assert!(Gc::untrack(&a, &m));
    m.unfreeze();
    assert!(Gc::track(&a, &m));
    a.next.set(&m, Some(a.clone()));
    drop(a);
    assert_eq!(m.collect().collected, 1);
}

#[derive(Trace)]
struct Leaf {
    data: GcCell<Option<Gc<String>>>,
}

#[derive(Trace)]
struct Branch {
    leaves: GcCell<Vec<Gc<Leaf>>>,
}

/// Cannot be read in the second traversal, as a field behind a lock that a thread outside holds
/// just then.
struct Doubtful {
    branches: Vec<Gc<Branch>>,
    calls: Arc<AtomicUsize>,
}

impl Trace for Doubtful {
    fn traverse(this: &Self, tracer: &mut Tracer) {
        if this.calls.fetch_add(1, SeqCst) == 1 {
            tracer.unreadable();
        } else {
            Trace::traverse(&this.branches, tracer);
        }
    }
}

/// The targets of an object that became unreadable between counting and marking were cleared alive.
#[test]
fn an_object_unreadable_the_second_time_keeps_its_targets() {
    let heap = manual();
    let mut m = heap.attach();
    let data = m.alloc(String::from("x"));
    let branches = (0..2000)
        .map(|_| {
            let leaves =
                (0..10).map(|_| m.alloc(Leaf { data: GcCell::new(Some(data.clone())) })).collect();
            m.alloc(Branch { leaves: GcCell::new(leaves) })
        })
        .collect();
    let calls = Arc::<AtomicUsize>::default();
    let root = m.alloc(Doubtful { branches, calls: Arc::clone(&calls) });
    m.collect();
    assert!(calls.load(SeqCst) >= 2, "it was asked twice");
    for branch in &root.branches {
        let leaves = branch.leaves.lock(&m);
        assert_eq!(leaves.len(), 10, "a live branch was cleared");
        assert!(leaves.iter().all(|leaf| leaf.data.lock(&m).is_some()), "a live leaf was cleared");
    }
}

// ----------------------------------------------------------------------- ends of threads and heaps

/// Empties a slot when it dies.
struct Empties<T: Trace + Send + Sync>(Arc<AtomicGc<T>>);

impl<T: Trace + Send + Sync> Trace for Empties<T> {
    const TRACKED: bool = false;
    fn traverse(_: &Self, _: &mut Tracer) {}
}

impl<T: Trace + Send + Sync> Drop for Empties<T> {
    fn drop(&mut self) {
        Mutator::with_current(|m| self.0.store(m, None));
    }
}

/// A chain of those.
struct Chain(Arc<AtomicGc<Chain>>);

impl Trace for Chain {
    const TRACKED: bool = false;
    fn traverse(_: &Self, _: &mut Tracer) {}
}

impl Drop for Chain {
    fn drop(&mut self) {
        Mutator::with_current(|m| self.0.store(m, None));
    }
}

/// A reference was lost if a destructor retired it while its thread's mutator was ending.
#[test]
fn a_reference_retired_while_a_mutator_ends_is_dropped() {
    let heap = Heap::new();
    let m = heap.attach();
    let slot = Arc::new(AtomicGc::new(Some(m.alloc("x".to_owned()))));
    let empties = m.alloc(Empties(slot));
    // Deferred: the mutator's end drops it.
    std::thread::spawn(move || drop(empties)).join().expect("a thread");
    drop(m);
    let mut m = heap.attach();
    m.safepoint();
    m.collect();
    assert_eq!(heap.stats().live_objects, 0);
}

/// The same, where each destructor retires the next.
#[test]
fn a_chain_that_is_retired_while_a_mutator_ends_is_freed() {
    let heap = Heap::new();
    let m = heap.attach();
    let mut slot = Arc::new(AtomicGc::new(None));
    for _ in 0..6 {
        slot = Arc::new(AtomicGc::new(Some(m.alloc(Chain(slot)))));
    }
    slot.store(&m, None);
    drop(m);
    collect_completely(&mut heap.attach());
    assert_eq!(heap.stats().live_objects, 0);
}

/// The last handle to a closed heap, dropped by a thread-local's destructor, aborted the process.
#[test]
fn a_thread_local_drops_a_handle_after_its_heap_has_closed() {
    thread_local! { static KEEP: Cell<Option<Gc<String>>> = const { Cell::new(None) } }
    let heap = Heap::new();
    let (a, b) = {
        let m = heap.attach();
        (m.alloc("a".to_owned()), m.alloc("b".to_owned()))
    };
    drop(heap);
    let thread = std::thread::spawn(move || {
        // Registered first, so that the library's thread-locals are destroyed before it.
        KEEP.set(Some(a));
        drop(b);
    });
    thread.join().expect("a thread that ends");
}

// ------------------------------------------------------------------------ panics and foreign heaps

/// Its destructor panics, and so does the destructor of the panic's payload.
struct PanicsTwice;

impl Trace for PanicsTwice {
    const TRACKED: bool = false;
    fn traverse(_: &Self, _: &mut Tracer) {}
}

impl Drop for PanicsTwice {
    fn drop(&mut self) {
        struct Payload;
        impl Drop for Payload {
            fn drop(&mut self) {
                if !std::thread::panicking() {
                    panic!("a payload");
                }
            }
        }
        panic_any(Payload);
    }
}

/// A payload with a panicking destructor unwound through the library, and nothing was freed on that
/// thread again.
#[test]
fn a_payload_that_panics_when_dropped_stays_inside() {
    let heap = Heap::new();
    let reports = Arc::<AtomicUsize>::default();
    let t = Arc::clone(&reports);
    heap.on_unraisable(move |_| {
        t.fetch_add(1, SeqCst);
    });
    let mut m = heap.attach();
    let gc = m.alloc(PanicsTwice);
    std::thread::spawn(move || drop(gc)).join().expect("deferred");
    assert!(!panics(|| m.safepoint()));
    assert_eq!(reports.load(SeqCst), 1);
    for _ in 0..2 {
        drop(m.alloc("later".to_owned()));
    }
    collect_completely(&mut m);
    assert_eq!(heap.stats().live_objects, 0);
}

/// A mutator of another heap emptied the slot, and panicked then.
#[test]
fn a_mutator_of_another_heap_leaves_a_slot_unchanged() {
    let (home, foreign) = (Heap::new(), Heap::new());
    let slots: Vec<_> = {
        let m = home.attach();
        (0..3).map(|i| AtomicGc::new(Some(m.alloc(i.to_string())))).collect()
    };
    {
        let m = foreign.attach();
        assert!(panics(|| slots[0].take(&m)));
        assert!(panics(|| slots[1].store(&m, None)));
        let other = m.alloc("other".to_owned());
        assert!(panics(|| slots[2].swap(&m, Some(other.clone()))));
        let own = std::thread::scope(|scope| {
            scope.spawn(|| slots[1].load(&home.attach())).join().expect("no panic")
        });
        assert!(panics(|| slots[1].compare_exchange(&m, own.as_ref(), Some(other.clone()))));
        assert_eq!(Gc::strong_count(&other), 1);
    }
    {
        let m = home.attach();
        let values: Vec<_> = slots.iter().map(|slot| slot.peek(&m).cloned()).collect();
        assert_eq!(values, ["0", "1", "2"].map(|value| Some(value.to_owned())));
    }
    drop(slots);
    collect_completely(&mut home.attach());
    collect_completely(&mut foreign.attach());
    assert_eq!((home.stats().live_objects, foreign.stats().live_objects), (0, 0));
}

/// Records its end. Its remains can be inspected.
struct Marked<'a>(AtomicUsize, &'a AtomicUsize);

impl Trace for Marked<'static> {
    fn traverse(_: &Self, _: &mut Tracer) {}
}

impl Drop for Marked<'_> {
    fn drop(&mut self) {
        self.0.store(0, SeqCst);
        self.1.fetch_add(1, SeqCst);
    }
}

/// A reference that was removed through another heap's mutator was dropped while threads of its own
/// heap were reading it.
#[test]
fn a_slot_emptied_through_another_heap_waits_for_its_readers() {
    static ENDED: AtomicUsize = AtomicUsize::new(0);
    for done in 0..3 {
        let (home, foreign) = (Heap::new(), Heap::new());
        // Of a thread that has ended: any other may destroy it.
        let slot = home
            .attach_scoped(|m| AtomicGc::new(Some(m.alloc(Marked(AtomicUsize::new(7), &ENDED)))));
        // Read; emptied and collected as far as possible.
        let [looked_at, settled] = [const { Barrier::new(2) }; 2];
        std::thread::scope(|s| {
            s.spawn(|| {
                let mut m = home.attach();
                {
                    let value = slot.peek(&m).expect("just put there");
                    looked_at.wait();
                    settled.wait();
                    assert_eq!((value.0.load(SeqCst), ENDED.load(SeqCst)), (7, done));
                }
                m.safepoint();
            });
            let foreign = foreign.attach();
            looked_at.wait();
            Trace::clear(&slot, &foreign);
            drop(foreign);
            // A thread that attaches drains the deferred references. Not a safepoint: under stress
            // it collects, and that waits for the other thread.
            (0..3).for_each(|_| drop(home.attach()));
            settled.wait();
        });
        collect_completely(&mut home.attach());
        assert_eq!((home.stats().live_objects, ENDED.load(SeqCst)), (0, done + 1));
    }
}

/// Drops its handle when it is traversed.
struct DropsInTraverse(Mutex<Option<Gc<String>>>);

impl Trace for DropsInTraverse {
    fn traverse(this: &Self, _: &mut Tracer) {
        drop(this.0.lock().expect("no thread panics with the lock").take());
    }
}

/// A reference dropped in another heap's traversal was deferred, and neither it nor any after it
/// announced.
#[test]
fn references_deferred_in_another_heaps_traversal_are_dropped() {
    let (here, there) = (Heap::new(), Heap::new());
    let (send, receive) = mpsc::channel();
    let stop = AtomicBool::new(false);
    std::thread::scope(|s| {
        let (there, stop) = (&there, &stop);
        s.spawn(move || {
            let mut m = there.attach();
            send.send((m.alloc("a".to_owned()), m.alloc("b".to_owned())))
                .expect("the receiver waits");
            while !stop.load(SeqCst) {
                m.safepoint();
                std::thread::yield_now();
            }
        });
        let (a, b) = receive.recv().expect("two objects");
        let left_over = |expected: usize| {
            let deadline = Instant::now() + Duration::from_secs(20);
            while there.stats().live_objects > expected && Instant::now() < deadline {
                std::thread::yield_now();
            }
            there.stats().live_objects
        };
        let mut m = here.attach();
        let drops = m.alloc(DropsInTraverse(Mutex::new(Some(a))));
        m.collect();
        drop((drops, m));
        let first = left_over(1);
        drop(b);
        let second = left_over(0);
        // Before anything is asserted: the scope waits for the thread.
        stop.store(true, SeqCst);
        assert_eq!((first, second), (1, 0));
    });
}

// -------------------------------------------------------------------------------------------- fork

/// The last reference, dropped by the thread that prepares a fork, was destroyed with the world
/// stopped.
#[test]
fn a_drop_in_a_prepared_fork_waits_for_its_end() {
    let heap = Heap::new();
    let mut m = heap.attach();
    let (deaths, in_stop) = (Arc::<AtomicUsize>::default(), Arc::<AtomicBool>::default());
    let gc = m.alloc(Mortal { deaths: deaths.clone(), in_stop: in_stop.clone(), to: None });
    let plain = m.alloc(5u64);
    let fork = m.prepare_fork().expect("the world stops");
    drop((gc, plain));
    assert_eq!(deaths.load(SeqCst), 0);
    fork.parent();
    collect_completely(&mut m);
    assert_eq!(deaths.load(SeqCst), 1);
    assert!(!in_stop.load(SeqCst));
    assert_eq!(heap.stats().live_objects, 0);
}

/// A thread that prepared a fork dropped a reference to another thread's object, and waited for
/// itself.
#[test]
fn a_foreign_drop_in_a_prepared_fork_does_not_wait() {
    let heap = Heap::new();
    let h = heap.clone();
    let gc =
        std::thread::spawn(move || h.attach().alloc("x".to_owned())).join().expect("an object");
    let mut m = heap.attach();
    let fork = m.prepare_fork().expect("the world stops");
    drop(gc);
    fork.parent();
    collect_completely(&mut m);
    assert_eq!(heap.stats().live_objects, 0);
}
// -------------------------------------------------------------------------- destructors that panic

/// The reports to a heap's hook: the time, the type, and the message.
type Reports = Arc<Mutex<Vec<(standstill::During, std::borrow::Cow<'static, str>)>>>;

fn reports(heap: &Heap) -> Reports {
    let reports = Reports::default();
    let to = Arc::clone(&reports);
    heap.on_unraisable(move |what| {
        to.lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push((what.during, what.type_name.clone()));
    });
    reports
}

/// Counts itself through the token, and panics when it is dropped.
struct Panics {
    _token: Arc<()>,
}
impl Trace for Panics {
    const TRACKED: bool = false;
    fn traverse(_: &Self, _: &mut Tracer) {}
}
impl Drop for Panics {
    fn drop(&mut self) {
        panic!("dropped");
    }
}

/// As `Panics`, and does not.
struct Quiet {
    _token: Arc<()>,
}
impl Trace for Quiet {
    const TRACKED: bool = false;
    fn traverse(_: &Self, _: &mut Tracer) {}
}
impl Drop for Quiet {
    fn drop(&mut self) {}
}

/// A second handle to an object with a panicking destructor, dropped while the first handle's panic
/// unwound, ended the process.
#[test]
fn destructors_that_panic_side_by_side() {
    let (heap, token) = (stressed(), Arc::new(()));
    let reports = reports(&heap);
    let m = heap.attach();
    let several: Vec<_> = (0..3).map(|_| m.alloc(Panics { _token: Arc::clone(&token) })).collect();
    assert!(panics(|| drop(several)), "the first goes on to the user");
    let reports = reports.lock().unwrap_or_else(PoisonError::into_inner);
    assert_eq!(reports.len(), 2, "{reports:?}");
    assert!(
        reports
            .iter()
            .all(|(during, of)| *during == standstill::During::Drop && of.ends_with("Panics"))
    );
    assert_eq!((heap.stats().live_objects, Arc::strong_count(&token)), (0, 1));
}

/// So did one that was dropped while the user's own panic unwound.
#[test]
fn a_destructor_that_panics_while_unwinding() {
    let (heap, token) = (stressed(), Arc::new(()));
    let reports = reports(&heap);
    let m = heap.attach();
    let caught = catch_unwind(AssertUnwindSafe(|| {
        let _last = m.alloc(Panics { _token: Arc::clone(&token) });
        panic!("the user's");
    }));
    assert_eq!(caught.expect_err("panics").downcast_ref::<&str>(), Some(&"the user's"));
    assert_eq!(reports.lock().unwrap_or_else(PoisonError::into_inner).len(), 1);
    assert_eq!((heap.stats().live_objects, Arc::strong_count(&token)), (0, 1));
}

#[derive(Trace)]
struct Owner {
    me: GcCell<Option<Gc<Owner>>>,
    _owned: Gc<Panics>,
}

/// The panic of an object that died with garbage was reported under the type of the garbage.
#[test]
fn a_panic_is_reported_with_the_type_of_its_destructor() {
    let (heap, token) = (stressed(), Arc::new(()));
    let reports = reports(&heap);
    let mut m = heap.attach();
    let owner = m.alloc(Owner {
        me: GcCell::default(),
        _owned: m.alloc(Panics { _token: Arc::clone(&token) }),
    });
    owner.me.set(&m, Some(owner.clone()));
    drop(owner);
    assert_eq!(m.collect().collected, 1);
    let reports = reports.lock().unwrap_or_else(PoisonError::into_inner);
    assert!(reports.len() == 1 && reports[0].1.ends_with("Panics"), "{reports:?}");
    assert_eq!((heap.stats().live_objects, Arc::strong_count(&token)), (0, 1));
}

#[derive(Trace)]
struct Parts {
    _before: Gc<Quiet>,
    _fails: Panics,
    _after: Gc<Link>,
    _more: Vec<Gc<Panics>>,
}

#[derive(Trace)]
struct Link {
    _next: Option<Gc<Link>>,
    _quiet: Quiet,
}

/// A destructor that panics in the common end of an object: its memory is freed, and its fields are
/// destroyed.
#[test]
fn the_fields_of_a_failed_destructor_are_destroyed() {
    let (heap, token) = (stressed(), Arc::new(()));
    let reports = reports(&heap);
    let m = heap.attach();
    let quiet = || Quiet { _token: Arc::clone(&token) };
    let mut list = None;
    for _ in 0..100_000 {
        list = Some(m.alloc(Link { _next: list, _quiet: quiet() }));
    }
    let parts = m.alloc(Parts {
        _before: m.alloc(quiet()),
        _fails: Panics { _token: Arc::clone(&token) },
        _after: list.expect("a list"),
        _more: (0..3).map(|_| m.alloc(Panics { _token: Arc::clone(&token) })).collect(),
    });
    assert!(panics(|| drop(parts)));
    let reports = reports.lock().unwrap_or_else(PoisonError::into_inner);
    assert_eq!(reports.len(), 3, "the user hears of the first: {reports:?}");
    assert_eq!((heap.stats().live_objects, Arc::strong_count(&token)), (0, 1));
    // The mutator is fit for more.
    drop(m.alloc(quiet()));
    assert_eq!(heap.stats().live_objects, 0);
}

// --------------------------------------------------------------------- values taken out of garbage

#[derive(Default, Trace)]
struct Wide {
    // More than a discarded value may have.
    fails: Vec<Gc<Panics>>,
    quiet: Vec<Gc<Quiet>>,
}

#[derive(Trace)]
struct Fields {
    many: GcCell<Vec<Gc<Panics>>>,
    one: GcCell<Option<Gc<Panics>>>,
    quiet: GcCell<Option<Gc<Quiet>>>,
    next: GcCell<Option<Gc<Fields>>>,
    // Last: a value that is not kept is dropped at once, and its panic ends the clearing of its
    // object.
    wide: GcCell<Wide>,
}

/// A collection that removes failing values from garbage: each is dropped once, each panic is
/// reported under the object with the field, and the fields after it are cleared all the same.
/// Fewer values than are kept, as many, and more.
#[test]
fn discarded_values_that_panic_are_reported_and_nothing_leaks() {
    for n in [1, 31, 32, 33, 100] {
        let (heap, token) = (stressed(), Arc::new(()));
        let reports = reports(&heap);
        let mut m = heap.attach();
        let fails = || m.alloc(Panics { _token: Arc::clone(&token) });
        let quiet = || m.alloc(Quiet { _token: Arc::clone(&token) });
        let ring: Vec<_> = (0..n)
            .map(|_| {
                m.alloc(Fields {
                    many: GcCell::new(vec![fails(), fails(), fails()]),
                    one: GcCell::new(Some(fails())),
                    quiet: GcCell::new(Some(quiet())),
                    next: GcCell::default(),
                    wide: GcCell::new(Wide { fails: vec![fails()], quiet: vec![quiet()] }),
                })
            })
            .collect();
        for (at, one) in ring.iter().enumerate() {
            one.next.set(&m, Some(ring[(at + 1) % n].clone()));
        }
        drop(ring);
        assert_eq!(m.collect().collected, n);
        let reports = reports.lock().unwrap_or_else(PoisonError::into_inner);
        // Of three side by side the first unwinds out of the value, the others are reports by
        // themselves.
        let clear = reports
            .iter()
            .filter(|t| t.0 == standstill::During::Clear && t.1.ends_with("Fields"))
            .count();
        let drops = reports
            .iter()
            .filter(|t| t.0 == standstill::During::Drop && t.1.ends_with("Panics"))
            .count();
        assert_eq!((clear, drops, reports.len()), (3 * n, 2 * n, 5 * n), "{reports:?}");
        assert_eq!((heap.stats().live_objects, Arc::strong_count(&token)), (0, 1));
    }
}

/// Its destructor panics, as a hook's payload.
struct Payload;
impl Drop for Payload {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            panic!("the payload");
        }
    }
}

struct FailsToClear;
impl Trace for FailsToClear {
    fn traverse(_: &Self, _: &mut Tracer) {}
    fn clear(_: &Self, _: &Mutator) {
        panic!("clear");
    }
}

#[derive(Trace)]
struct Half {
    value: GcCell<Option<Gc<Quiet>>>,
    me: GcCell<Option<Gc<Half>>>,
    fails: FailsToClear,
}

/// A hook that panicked with a failing payload threw a collection out of its clearing. The values
/// that were waiting to be dropped were dropped with the mutator's memory, when the thread had no
/// mutator any more but was still attached.
#[test]
fn a_hook_that_panics_badly_does_not_end_a_collection() {
    let (heap, token) = (stressed(), Arc::new(()));
    heap.on_unraisable(|_| panic_any(Payload));
    let mut m = heap.attach();
    let value = m.alloc(Quiet { _token: Arc::clone(&token) });
    let half = m.alloc(Half {
        value: GcCell::new(Some(value)),
        me: GcCell::default(),
        fails: FailsToClear,
    });
    half.me.set(&m, Some(half.clone()));
    drop(half);
    assert!(!panics(|| m.collect()), "hooks' panics go nowhere");
    drop(m);
    assert_eq!((heap.stats().live_objects, Arc::strong_count(&token)), (0, 1));
}

// ------------------------------------------------------------------------- what is asked for ahead

#[derive(Trace)]
struct Cells {
    plain: GcCell<Vec<Gc<u64>>>,
    each: [GcCell<Vec<Gc<Cells>>>; 3],
    behind: GcCell<Option<Box<GcCell<Vec<Gc<u64>>>>>>,
}

/// The prefetch hooks read cells, except cells with a leaked guard: with a guard goes `&mut`.
#[test]
fn locked_cells_are_not_prefetched() {
    let heap = stressed();
    let mut m = heap.attach();
    let mut all: Vec<Gc<Cells>> = Vec::new();
    for n in 0..300u64 {
        let cells = m.alloc(Cells {
            plain: GcCell::new(vec![m.alloc(n)]),
            each: std::array::from_fn(|_| GcCell::new(all.last().cloned().into_iter().collect())),
            behind: GcCell::new(Some(Box::new(GcCell::new(vec![m.alloc(n)])))),
        });
        if n % 3 == 0 {
            std::mem::forget(cells.plain.lock(&m));
            std::mem::forget(cells.each[1].lock(&m));
        }
        all.push(cells);
    }
    let report = m.collect();
    assert_eq!((report.abandoned, report.candidates, report.unreachable), (None, 300, 0));
    let last = all.pop().expect("some");
    drop(all);
    let report = m.collect();
    assert_eq!((report.abandoned, report.unreachable), (None, 0), "all are reached from the last");
    drop(last);
    m.collect();
}

struct FailsAhead(Gc<u64>);
impl Trace for FailsAhead {
    const INDIRECT: bool = true;
    fn traverse(this: &Self, tracer: &mut Tracer) {
        Trace::traverse(&this.0, tracer);
    }
    fn prefetch(_: &Self, _: &Tracer) {
        panic!("ahead");
    }
}

/// A hook that asks ahead and panics abandons the collection, under its own type's name, as a
/// traversal does.
#[test]
fn a_prefetch_that_panics_abandons_the_collection() {
    let heap = stressed();
    let reports = reports(&heap);
    let mut m = heap.attach();
    let all: Vec<_> = (0..100u64).map(|n| m.alloc(FailsAhead(m.alloc(n)))).collect();
    let report = m.collect();
    assert!(report.abandoned.is_some_and(|why| why.contains("ahead")));
    assert!(reports.lock().unwrap_or_else(PoisonError::into_inner)[0].1.ends_with("FailsAhead"));
    drop(all);
    assert_eq!(heap.stats().live_objects, 0);
}

// --------------------------------------------------------------------------- lending

/// A mutator that was dropped while lent, with references of others to drop at its end, ended
/// twice: destructors on the way lent it again, and the last of those loans freed it during the
/// first.
#[test]
fn a_mutator_dropped_while_lent_ends_once() {
    thread_local! { static MINE: Cell<Option<Mutator>> = const { Cell::new(None) } }
    struct Drops;
    impl Trace for Drops {
        const TRACKED: bool = false;
        fn traverse(_: &Self, _: &mut Tracer) {}
    }
    impl Drop for Drops {
        fn drop(&mut self) {
            drop(MINE.take());
        }
    }
    let (heap, token) = (stressed(), Arc::new(()));
    let m = heap.attach();
    let values: Vec<_> = (0..3).map(|_| m.alloc(Quiet { _token: Arc::clone(&token) })).collect();
    let last = m.alloc(Drops);
    MINE.set(Some(m));
    std::thread::scope(|scope| {
        scope.spawn(|| drop(values));
    });
    drop(last);
    assert_eq!((heap.stats().mutators, heap.stats().live_objects), (0, 0));
    assert_eq!(Arc::strong_count(&token), 1);
}

/// Found by random programs on threads: the destructor's panic left the clear handler, a C
/// function, and ended the process.
#[test]
fn a_destructor_that_panics_under_a_dynamic_objects_clear_handler_is_reported() {
    #[derive(Trace)]
    struct Loud;
    impl Drop for Loud {
        fn drop(&mut self) {
            panic!("a destructor that panics");
        }
    }
    let heap = Heap::builder().reserve(1 << 30).pacing(Pacing::manual()).build().unwrap();
    let reported = Arc::new(AtomicUsize::new(0));
    heap.on_unraisable({
        let reported = reported.clone();
        move |what| {
            assert!(what.message.contains("a destructor that panics"), "{what}");
            reported.fetch_add(1, SeqCst);
        }
    });
    let mut m = heap.attach();
    let object = Class::new("t.A").make(&m).unwrap().instantiate(&m).unwrap();
    object.set_attribute(&m, "me", Some(object.clone())).unwrap();
    object.set_attribute(&m, "loud", Some(Gc::into_any(m.alloc(Loud)))).unwrap();
    drop(object);
    let report = m.collect();
    // The class was of no more use either.
    assert_eq!((report.collected, report.uncollectable), (report.unreachable, 0));
    assert_eq!(reported.load(SeqCst), 1);
    // Without a handler in between, the panic goes on to the thread that dropped the reference, as
    // ever.
    let loud = m.alloc(Loud);
    assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| drop(loud))).is_err());
    assert_eq!(reported.load(SeqCst), 1);
}

/// Found by random programs: the panic ended the clearing, and a cycle through a later item stayed
/// until the next collection.
#[test]
fn a_value_that_panics_when_dropped_does_not_end_the_clearing_of_a_slice() {
    #[derive(Default)]
    struct Bomb(bool);
    impl Drop for Bomb {
        fn drop(&mut self) {
            assert!(!self.0, "a value that panics when dropped");
        }
    }
    #[derive(Default, Trace)]
    struct Content {
        edge: Option<AnyGc>,
        #[trace(skip)]
        _bomb: Bomb,
    }
    let heap = manual();
    heap.on_unraisable(|what| assert!(what.message.contains("panics when dropped"), "{what}"));
    let mut m = heap.attach();
    let slice = m.alloc_slice((), (0..3).map(|_| GcCell::new(Content::default())));
    for (item, armed) in slice.items.iter().zip([true, true, false]) {
        item.set(&m, Content { edge: None, _bomb: Bomb(armed) });
    }
    slice.items[2].lock(&m).edge = Some(GcSlice::into_any(slice.clone()));
    drop(slice);
    let report = m.collect();
    assert_eq!((report.collected, report.uncollectable), (1, 0));
}

// --------------------------------------------------------------------------- finalizers

/// The reference of a running finalizer was dropped as one of the owner's, also if the object had
/// been merged meanwhile. So it was not dropped at all, and the object stayed for ever. Here
/// another thread upgrades a weak reference and gives the new reference to the finalizer, whose
/// drop of it is the owner's last.
#[test]
fn an_object_that_is_merged_in_its_finalizer_dies_all_the_same() {
    struct Mortal {
        begun: mpsc::Sender<()>,
        gift: Mutex<mpsc::Receiver<Gc<Mortal>>>,
        dead: Arc<AtomicUsize>,
    }
    impl Trace for Mortal {
        const FINALIZER: Option<Finalizer<Self>> = Some(Finalizer::new(|this, _| {
            let mortal = this;
            mortal.begun.send(()).expect("the receiver waits");
            drop(mortal.gift.lock().unwrap().recv().expect("the sender sends"));
        }));
        fn traverse(_: &Self, _: &mut Tracer) {}
    }
    impl Drop for Mortal {
        fn drop(&mut self) {
            self.dead.fetch_add(1, SeqCst);
        }
    }
    let heap = manual();
    let mut m = heap.attach();
    let dead = Arc::<AtomicUsize>::default();
    let ((begun, begins), (giver, gift)) = (mpsc::channel(), mpsc::channel());
    let mortal = m.alloc(Mortal { begun, gift: Mutex::new(gift), dead: dead.clone() });
    let weak = Gc::downgrade(&mortal, &m);
    std::thread::scope(|scope| {
        let heap = &heap;
        scope.spawn(move || {
            let m = heap.attach();
            begins.recv().expect("a finalizer");
            giver
                .send(weak.upgrade(&m).expect("alive as long as its finalizer runs"))
                .expect("the finalizer waits");
        });
        drop(mortal);
    });
    collect_completely(&mut m);
    assert_eq!((dead.load(SeqCst), heap.stats().live_objects), (1, 0));
}

// --------------------------------------------------------------------------- several at once

/// Marking by looking at objects, as from named roots and in young collections, puts off the claims
/// of a batch, but not of one with very many edges: an object with thousands of references, among
/// small ones that are reached before and after it.
#[test]
fn an_object_with_very_many_references_leads_to_all_of_them() {
    type Hub = GcCell<Vec<AnyGc>>;
    let heap = manual();
    let mut m = heap.attach();
    let root = m.alloc(Hub::default());
    let mut at = root.clone();
    for step in 0..40 {
        let next = m.alloc(Hub::default());
        let many = if step % 20 == 7 { 6000 } else { 3 };
        let mut edges: Vec<AnyGc> = (0..many).map(|_| m.alloc(Hub::default()).into()).collect();
        edges.insert(many / 2, next.clone().into());
        at.set(&m, edges);
        at = next;
    }
    drop(at);
    let all = heap.stats().live_objects;
    let report = m.try_collect(Collect::young()).expect("a collection");
    assert_eq!((report.abandoned, report.candidates, report.unreachable), (None, all, 0));
    let named = heap.known_root(root.clone());
    let report = m.collect();
    assert_eq!((report.known_alive, report.unreachable), (all, 0));
    drop((named, root));
    m.collect();
    assert_eq!(heap.stats().live_objects, 0);
}

/// Objects that a named root reaches are known to be alive. But an immortal object among them is
/// reported to counting, and is tracked no more.
#[test]
fn an_immortal_that_a_named_root_leads_to_is_no_longer_tracked() {
    let heap = manual();
    let mut m = heap.attach();
    let nodes: Vec<AnyGc> =
        (0..50).map(|_| m.alloc(GcCell::<Option<AnyGc>>::default()).into()).collect();
    let root = m.alloc(GcCell::new(nodes.clone()));
    let _named = heap.known_root(root);
    nodes[33].immortalize(&m);
    let report = m.collect();
    assert_eq!((report.candidates, report.known_alive), (51, 50));
    let tracked: Vec<usize> = (0..50).filter(|&at| !nodes[at].is_tracked(&m)).collect();
    assert_eq!(tracked, [33]);
}

/// A young collection traverses new objects, and reports the number of others on the same pages.
#[test]
fn a_young_collection_tells_the_old_from_the_new() {
    let heap = manual();
    let mut m = heap.attach();
    let mut kept: Vec<_> = (0..20).map(|n: u64| m.alloc(GcCell::new(vec![m.alloc(n)]))).collect();
    let first = m.try_collect(Collect::young()).expect("a collection");
    kept.extend((0..3).map(|n: u64| m.alloc(GcCell::new(vec![m.alloc(n)]))));
    let second = m.try_collect(Collect::young()).expect("a collection");
    assert_eq!((first.tracked, first.candidates), (20, 20));
    assert_eq!((second.tracked, second.candidates), (23, 3));
}

/// A thread that may not attach learns the reason: the remedy for one reason does not help against
/// another.
#[test]
fn an_attach_that_is_refused_says_why() {
    struct Late(Heap, mpsc::Sender<Option<AttachError>>);
    impl Drop for Late {
        fn drop(&mut self) {
            self.1.send(self.0.try_attach().err()).unwrap();
        }
    }
    thread_local! {
        static LATE: std::cell::RefCell<Option<Late>> = const { std::cell::RefCell::new(None) };
    }
    let heap = Heap::new();
    let (tell, reports) = mpsc::channel();
    let heap_too = heap.clone();
    std::thread::spawn(move || {
        // Before the library watches the thread: destroyed after that has ended.
        LATE.with(|late| *late.borrow_mut() = Some(Late(heap_too.clone(), tell)));
        drop(heap_too.attach());
    })
    .join()
    .unwrap();
    // Which destructor comes first is the platform's choice.
    assert!(matches!(reports.recv().unwrap(), None | Some(AttachError::ThreadEnding)));

    let coordinator = safepoint::Coordinator::new();
    let (tell, reports) = mpsc::channel();
    let (go, gone) = mpsc::channel::<()>();
    let coordinator_too = coordinator.clone();
    let other = std::thread::spawn(move || {
        let me = coordinator_too.register(());
        tell.send(me.id()).unwrap();
        gone.recv().unwrap();
        drop(me);
    });
    let safepoint::Suspend::Suspended(guard) = coordinator.suspend(reports.recv().unwrap()) else {
        panic!("it is detached")
    };
    let error = heap.try_attach().err();
    assert_eq!(error, Some(AttachError::Suspending));
    assert!(error.unwrap().to_string().contains("suspended"));
    drop(guard);
    go.send(()).unwrap();
    other.join().unwrap();
    assert!(heap.try_attach().is_ok());
}

/// A heap of 1 MiB without room for another object.
fn full_heap() -> (Heap, Mutator, Vec<Gc<[u64; 4]>>) {
    let heap = Heap::builder().limit(1 << 20).pacing(Pacing::manual()).build().expect("a heap");
    let m = heap.attach();
    let mut kept = Vec::new();
    while let Ok(gc) = m.try_alloc([0; 4]) {
        kept.push(gc);
    }
    (heap, m, kept)
}

fn message(f: impl FnOnce()) -> String {
    let payload = catch_unwind(AssertUnwindSafe(f)).expect_err("a panic");
    match payload.downcast::<String>() {
        Ok(text) => *text,
        Err(payload) => (*payload.downcast_ref::<&str>().expect("a text")).to_owned(),
    }
}

#[test]
fn a_refused_allocation_names_the_type_of_the_object() {
    struct Named {
        _words: [u64; 50],
    }
    impl Trace for Named {
        fn traverse(_: &Self, _: &mut Tracer) {}
    }
    let (_heap, m, kept) = full_heap();
    let target = &kept[0];
    let weak = message(|| drop(m.alloc_weak(target, (), |_, _| ())));
    assert!(
        weak.starts_with("cannot allocate a standstill::")
            && weak.contains("WeakRef<[u64; 4], ()>: the heap's limit"),
        "{weak}"
    );
    let Err(error) = m.try_alloc_weak(target, 7u8, |_, _| ()) else { panic!("the heap is full") };
    assert!(error.to_string().contains("WeakRef<[u64; 4], u8>"), "{error}");
    assert_eq!(error.into_inner(), 7);
    let Err(error) = Gc::try_new_cyclic(&m, |_| -> Named { unreachable!("there is no memory") })
    else {
        panic!("the heap is full")
    };
    assert!(error.to_string().contains("Named: the heap's limit"), "{error}");
    let slice = message(|| drop(m.alloc_slice(1u8, [Named { _words: [0; 50] }])));
    assert!(
        slice.contains("HeaderSlice<u8, [regressions::") && slice.contains("Named]>"),
        "{slice}"
    );
}

#[test]
fn a_cyclic_object_whose_function_panics_leaves_no_memory_behind() {
    let heap = manual();
    let m = heap.attach();
    let (mut escaped, before) = (GcWeak::new(), heap.stats().live_objects);
    let thrown = catch_unwind(AssertUnwindSafe(|| {
        Gc::new_cyclic(&m, |weak: &GcWeak<[u64; 4]>| {
            escaped = weak.clone();
            panic!("no value")
        })
    }));
    assert!(thrown.is_err() && escaped.upgrade(&m).is_none());
    assert_eq!(heap.stats().live_objects, before);
    // The next object gets the same memory, and a weak reference of its own.
    let next = m.alloc([0u64; 4]);
    assert!(escaped.upgrade(&m).is_none());
    assert!(Gc::downgrade(&next, &m).upgrade(&m) == Some(next));
}

#[test]
fn a_refusal_inside_with_current_names_it() {
    let m = Cell::new(Some(manual().attach()));
    let (detached, collected) = Mutator::with_current(|_| {
        let mut own = m.take().expect("there");
        let detached = message(|| own.detach(|| ()));
        let collected = own.try_collect(Collect::full()).expect_err("it is lent").to_string();
        m.set(Some(own));
        (detached, collected)
    })
    .expect("attached");
    assert!(detached.contains("`with_current`"), "{detached}");
    assert!(collected.contains("`with_current`"), "{collected}");
}
