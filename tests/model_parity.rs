//! The services of threads and of the heap for a runtime with its own objects. They are those of
//! the typed face.
//!
//! Two ports of real runtimes have asked for them. A test is named after one need, and its comment
//! names the row of that need: row 1 (detach and attach), 2 (pacing), 4 (safepoints that do not
//! collect), 10 (fork), 11 (finalizers that block), 12 (the mutator without a parameter), 14
//! (hooks), 15 (stops of the world).
#![cfg(not(loom))]

mod common;
#[path = "common/forked.rs"]
mod forked;

use std::cell::{Cell, RefCell};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Barrier, Mutex, PoisonError, mpsc};
use std::time::{Duration, Instant};

use common::child::is_alone;
use common::deadline;
use forked::on_new_thread;
use standstill::model::{
    ClaimRef, Count, DeadObject, Finalizers, ForkLocks, Forks, Live, Local, ModelDetached,
    ModelHeap, ModelMutator, Object, ObjectModel, Reserved, SplitCounts, Stopped, StoppedWorld,
    ThreadData, Threads, Tracer, World,
};
use standstill::safepoint::{
    SlowStopKind, StopError, ThreadId, TraversalGuard, is_traversing, traversing,
};
use standstill::{AttachError, Collect, CollectError, CollectionEvent, Heap, HeapBuilder, Pacing};

/// An object: a count, and one reference.
#[repr(C)]
struct Header {
    count: AtomicUsize,
    next: AtomicPtr<u8>,
}

/// The code of a finalizer. It is run for each garbage object.
type Finalizer = Box<dyn Fn(&Mutator) + Send + Sync>;

/// A model with a list of drops for each mutator, and one for threads without a mutator.
#[derive(Default)]
struct Links {
    born: AtomicUsize,
    died: AtomicUsize,
    finalizer: Mutex<Option<Finalizer>>,
    /// References that unattached threads have dropped. A fork holds it.
    dropped_outside: Mutex<Vec<Object>>,
    /// Whether the fork leaves `dropped_outside` alone.
    forks_without_lock: AtomicBool,
    /// How many mutators a fork has lost in this process.
    lost: AtomicUsize,
    /// A call of `forked` panics.
    fails_in_fork: AtomicBool,
    attached: AtomicUsize,
}

/// The request at which a thread begins a traversal, which ends with `KEPT`.
const KEEP_GUARD: u32 = 1 << 8;
thread_local!(static KEPT: Cell<Option<TraversalGuard>> = const { Cell::new(None) });

type Mutator = ModelMutator<Links>;
type LinkHeap = ModelHeap<Links>;

fn unpoisoned<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Links {
    fn header(&self, object: Object) -> &Header {
        // SAFETY: an object starts with its header, and the caller has a reference to it.
        unsafe { object.as_ptr().cast().as_ref() }
    }

    fn drop_ref(&self, object: Object, m: &Mutator) {
        let mut dead = Some(object);
        while let Some(object) = dead.take() {
            if self.header(object).count.fetch_sub(1, SeqCst) != 1 {
                return;
            }
            let next = self.header(object).next.swap(null_mut(), SeqCst);
            self.died.fetch_add(1, SeqCst);
            // SAFETY: rule 2: the count is 0.
            unsafe { m.free(object.as_ptr()) };
            dead = std::ptr::NonNull::new(next).map(Object::new);
        }
    }

    fn drain(&self, list: &Mutex<Vec<Object>>, m: &Mutator) {
        let dropped = std::mem::take(&mut *unpoisoned(list));
        dropped.into_iter().for_each(|object| self.drop_ref(object, m));
    }
}

// SAFETY: 1. a count holds each reference, also those on the lists of drops. 2. `drop_ref` frees at
// 0. 3. attached threads and `merge` lower counts. 4. `next` is counted. 5. `merge` empties the
// lists of all mutators; references that were dropped outside still count. 6. no method but
// `finalize` calls code of the test, and that gets a shared reference to the mutator.
unsafe impl ObjectModel for Links {
    type Addresses = Reserved;
    type Parts = Self;

    fn count(&self, object: Stopped<'_>) -> Count {
        Count::Exact(self.header(*object).count.load(SeqCst) as i64)
    }

    fn traverse(&self, object: Stopped<'_>, tracer: &mut Tracer) {
        let next = self.header(*object).next.load(SeqCst);
        if let Some(next) = std::ptr::NonNull::new(next) {
            // SAFETY: rule 4: the reference is counted.
            unsafe { tracer.visit_object(Object::new(next)) };
        }
    }

    fn claim_ref(&self, object: Stopped<'_>, _: ThreadId) {
        self.header(*object).count.fetch_add(1, SeqCst);
    }

    fn release(&self, reference: ClaimRef, m: &Mutator) {
        self.drop_ref(reference.object(), m);
    }

    fn clear(&self, object: Live<'_>, m: &Mutator) {
        let next = self.header(*object).next.swap(null_mut(), SeqCst);
        if let Some(next) = std::ptr::NonNull::new(next) {
            self.drop_ref(Object::new(next), m);
        }
    }
}

standstill::parts!(Links: ThreadData, Threads, SplitCounts, Finalizers, Forks);

impl ThreadData<Links> for Links {
    type Local = Mutex<Vec<Object>>;
    type Private = ();

    fn local(_: &Self) -> Self::Local {
        Mutex::default()
    }

    fn private(_: &Self) -> Option<()> {
        Some(())
    }
}

impl Threads<Links> for Links {
    fn answer(_: &Self, requests: u32, _: &Mutator) {
        if requests & KEEP_GUARD != 0 {
            KEPT.set(Some(traversing()));
        }
    }

    fn attached(model: &Self, _: &Mutator) {
        model.attached.fetch_add(1, SeqCst);
    }

    fn ending(model: &Self, m: &Mutator) {
        model.drain(m.local(), m);
    }
}

impl SplitCounts<Links> for Links {
    fn prepare(model: &Self, m: &Mutator) {
        model.drain(m.local(), m);
        model.drain(&model.dropped_outside, m);
    }

    fn pending(_: &Self, world: &World<'_, Self>) -> usize {
        let mut pending = 0;
        world.locals(|_, local| pending += unpoisoned(local).len());
        pending
    }

    fn merge(model: &Self, world: &World<'_, Self>, dead: &mut Vec<DeadObject>) {
        world.locals(|_, local| {
            for object in std::mem::take(&mut *unpoisoned(local)) {
                if model.header(object).count.fetch_sub(1, SeqCst) == 1 {
                    // SAFETY: rule 5: the count is 0, and no thread knows the object.
                    dead.push(unsafe { DeadObject::new(object) });
                }
            }
        });
    }

    fn destroy_merged(model: &Self, dead: DeadObject, m: &Mutator) {
        model.header(dead.object()).count.store(1, SeqCst);
        model.drop_ref(dead.object(), m);
    }
}

impl Finalizers<Links> for Links {
    fn has_finalizer(model: &Self, _: Live<'_>) -> bool {
        unpoisoned(&model.finalizer).is_some()
    }

    fn finalize(model: &Self, _: Live<'_>, m: &Mutator) {
        let finalizer = unpoisoned(&model.finalizer).take();
        if let Some(finalizer) = finalizer {
            finalizer(m);
        }
    }
}

impl Forks<Links> for Links {
    fn lock_for_fork(model: &Self) -> ForkLocks<'_> {
        if model.forks_without_lock.load(SeqCst) {
            return ForkLocks::none();
        }
        ForkLocks::new(unpoisoned(&model.dropped_outside))
    }

    fn forked(model: &Self, lost: ThreadId, local: &Local<Self>, m: &Mutator) {
        model.lost.fetch_add(1, SeqCst);
        assert_ne!(lost, m.thread_id());
        let theirs = std::mem::take(&mut *unpoisoned(local));
        unpoisoned(m.local()).extend(theirs);
        if model.fails_in_fork.load(SeqCst) {
            // Without the panic hook: another thread of the parent may have held its lock.
            std::panic::resume_unwind(Box::new("the repair of the model, as asked"));
        }
    }
}

fn builder() -> HeapBuilder {
    Heap::builder().reserve(1 << 28).pacing(Pacing::manual()).workers(2).serial_below(0)
}

fn heap() -> LinkHeap {
    builder().build_with(Links::default()).unwrap()
}

/// A new object with one reference.
fn alloc(m: &Mutator) -> Object {
    let cell = m.allocate(size_of::<Header>(), 32).unwrap();
    m.model().born.fetch_add(1, SeqCst);
    // SAFETY: the cell is new, large enough and aligned; then it is an object of the model.
    unsafe {
        let header = Header { count: AtomicUsize::new(1), next: AtomicPtr::new(null_mut()) };
        cell.cast::<Header>().write(header);
        m.publish(Object::new(cell), true);
    }
    Object::new(cell)
}

/// An object that refers to itself, and nothing else refers to it.
fn garbage(m: &Mutator) {
    let object = alloc(m);
    m.model().header(object).next.store(object.as_ptr().as_ptr(), SeqCst);
}

/// The finalizer of the next garbage object.
fn finalize_with(heap: &LinkHeap, f: impl Fn(&Mutator) + Send + Sync + 'static) {
    *unpoisoned(&heap.model().finalizer) = Some(Box::new(f));
}

fn collected(m: &mut Mutator) -> usize {
    let report = m.try_collect(Collect::full()).unwrap();
    assert_eq!(report.abandoned, None);
    report.collected
}

fn live(heap: &LinkHeap) -> usize {
    heap.stats().live_objects
}

/// The text of a panic.
fn panics(f: impl FnOnce()) -> String {
    let payload = std::panic::catch_unwind(std::panic::AssertUnwindSafe(f)).unwrap_err();
    payload
        .downcast_ref::<String>()
        .cloned()
        .or_else(|| payload.downcast_ref::<&str>().map(|text| (*text).to_owned()))
        .unwrap()
}

/// Runs `f` on a thread that is attached, while this thread waits.
fn on_another_thread<R: Send>(heap: &LinkHeap, f: impl FnOnce(&mut Mutator) -> R + Send) -> R {
    std::thread::scope(|scope| scope.spawn(|| f(&mut heap.attach())).join().unwrap())
}

/// Row 1.
#[test]
fn a_thread_detaches_and_attaches_without_a_closure() {
    let _deadline = deadline("a detached mutator of a model");
    let (heap, other) = (heap(), heap());
    let m = heap.attach();
    assert!(m.may_park());
    garbage(&m);
    let id = m.thread_id();
    let detached = m.into_detached().unwrap();
    assert!(detached.heap().ptr_eq(&heap) && !detached.heap().ptr_eq(&other));
    assert!(Mutator::current().is_none());
    // No stop waits for this thread.
    assert_eq!(on_another_thread(&heap, collected), 1);
    // The thread works elsewhere meanwhile, and must come to an end there.
    let elsewhere = other.attach();
    let detached = detached.attach().unwrap_err();
    drop(elsewhere);
    let m = detached.attach().unwrap();
    assert_eq!(m.thread_id(), id, "it is the same mutator");
    garbage(&m);
    assert!(m.heap().ptr_eq(&heap));
    drop(m.into_detached().unwrap());
    assert_eq!(heap.stats().mutators, 0);
}

/// Row 1.
#[test]
fn a_detached_mutator_is_not_taken_up_inside_the_closure_of_a_detach() {
    let (heap, other) = (heap(), heap());
    let detached = heap.attach().into_detached().unwrap();
    let mut m = other.attach();
    let detached: ModelDetached<Links> = m.detach(|| detached.attach().unwrap_err());
    drop(m);
    detached.attach().unwrap();
}

/// Row 1.
#[test]
fn a_detached_mutator_that_is_dropped_on_a_thread_attached_elsewhere_ends_with_the_next() {
    let (heap, other) = (heap(), heap());
    let detached = heap.attach().into_detached().unwrap();
    let elsewhere = other.attach();
    drop(detached);
    assert_eq!(heap.stats().mutators, 1);
    drop(elsewhere);
    assert_eq!((heap.stats().mutators, other.stats().mutators), (0, 0));
}

thread_local! {
    /// As a runtime keeps it: it cannot be moved out, because callers up the stack have borrowed
    /// it.
    static HERE: RefCell<Option<Box<Mutator>>> = const { RefCell::new(None) };
}

/// The mutator of this thread, for the calls of a language's runtime.
fn in_place<R>(f: impl FnOnce(&Mutator) -> R) -> R {
    HERE.with_borrow(|here| f(here.as_ref().unwrap()))
}

fn leave() -> bool {
    // SAFETY: the tests use no reference to an object until `come_back`.
    in_place(|m| unsafe { m.leave_for_now() })
}

/// Row 1.
#[test]
fn a_mutator_stays_in_a_thread_local_while_its_thread_is_detached() {
    let _deadline = deadline("a mutator that stays in its place");
    let (heap, other) = (heap(), heap());
    HERE.set(Some(Box::new(heap.attach())));
    in_place(garbage);
    for _ in 0..3 {
        let attached = heap.model().attached.load(SeqCst);
        assert!(!in_place(Mutator::come_back), "it is attached");
        assert!(leave());
        assert!(!leave(), "it has left");
        assert!(Mutator::current().is_none());
        on_another_thread(&heap, |m| {
            collected(m);
            garbage(m);
        });
        assert!(in_place(Mutator::come_back));
        assert!(heap.model().attached.load(SeqCst) >= attached + 2, "the model is told");
        in_place(|m| drop((alloc(m), Mutator::current().unwrap())));
    }
    // Attached elsewhere, and in the closure of another mutator's detach.
    assert!(leave());
    let mut elsewhere = other.attach();
    assert!(!in_place(Mutator::come_back));
    assert!(elsewhere.detach(|| !in_place(Mutator::come_back)));
    drop(elsewhere);
    assert!(in_place(Mutator::come_back));
    HERE.take();
    assert_eq!(heap.stats().mutators, 0);
}

/// Row 1.
#[test]
fn a_thread_does_not_leave_while_its_mutator_is_lent() {
    let heap = heap();
    let m = heap.attach();
    // SAFETY: nothing is used until the thread comes back; it does not leave.
    let left = Mutator::with_current(|m| unsafe { m.leave_for_now() });
    assert_eq!(left, Some(false));
    // SAFETY: nothing is used until the thread comes back.
    let (left, guard) = (unsafe { m.leave_for_now() }, Mutator::current());
    assert!(left && guard.is_none());
    assert!(m.come_back());
    let guard = Mutator::current().unwrap();
    assert!(!guard.may_park());
    // SAFETY: nothing is used until the thread comes back.
    assert!(!unsafe { m.leave_for_now() });
    drop(guard);
    assert!(m.may_park());
}

/// Row 1. The model answers after the first look whether the thread may leave.
#[test]
fn a_thread_stays_attached_if_its_model_keeps_a_guard_before_it_leaves() {
    let heap = heap();
    let m = heap.attach();
    m.raise(KEEP_GUARD);
    assert!(m.may_park());
    // SAFETY: nothing is used until the thread comes back.
    assert!(!unsafe { m.leave_for_now() });
    assert!(is_traversing());
    KEPT.take();
    // SAFETY: nothing is used until the thread comes back.
    assert!(unsafe { m.leave_for_now() } && m.come_back());
}

/// Row 1. A program may drop the mutator in its place.
#[test]
fn a_mutator_that_is_dropped_while_its_thread_is_away_ends() {
    let _deadline = deadline("the end of a mutator whose thread is away");
    let (heap, other) = (heap(), heap());
    for elsewhere in [false, true] {
        HERE.set(Some(Box::new(heap.attach())));
        in_place(|m| unpoisoned(m.local()).push(alloc(m)));
        assert!(leave());
        let attached = elsewhere.then(|| other.attach());
        HERE.take();
        assert_eq!(heap.stats().mutators, usize::from(elsewhere));
        on_another_thread(&heap, collected);
        drop(attached);
        assert_eq!((heap.stats().mutators, live(&heap)), (0, 0));
    }
}

/// Row 1. The destructor of the thread-local drops the mutator on the ending thread.
#[test]
fn a_thread_that_ends_while_it_is_away_delays_no_stop() {
    let _deadline = deadline("the end of a thread that is away");
    let heap = heap();
    let theirs = heap.clone();
    let thread = std::thread::spawn(move || {
        HERE.set(Some(Box::new(theirs.attach())));
        in_place(garbage);
        leave()
    });
    assert!(thread.join().unwrap());
    assert_eq!(heap.stats().mutators, 0);
    assert_eq!(collected(&mut heap.attach()), 1);
    assert_eq!(heap.stats().leaked_mutators, Vec::<String>::new());
}

/// Row 1.
#[test]
fn a_callback_attaches_inside_a_detach() {
    let (heap, other) = (heap(), heap());
    let mut m = heap.attach();
    m.detach(|| {
        assert_eq!(heap.try_attach().unwrap_err(), AttachError::InsideDetach);
        // To the same heap, and to another one.
        for entered in [&heap, &other] {
            entered.attach_scoped(|inner| {
                garbage(inner);
                assert_eq!(heap.try_attach_scoped(|_| ()), Err(AttachError::AlreadyAttached));
                assert_eq!(collected(inner), 1);
                inner.detach(|| entered.attach_scoped(|_| ()));
            });
        }
        assert!(Mutator::current().is_none());
    });
    let refused = panics(|| other.attach_scoped(|_| ()));
    assert!(refused.contains("attached to a heap already"));
}

/// Row 2.
#[test]
fn pacing_is_set_while_the_heap_is_in_use() {
    let heap = heap();
    let mut m = heap.attach();
    let collections = || heap.stats().collections + heap.stats().promotions;
    let make = |m: &mut Mutator| {
        for _ in 0..20_000 {
            garbage(m);
            m.safepoint();
        }
    };
    make(&mut m);
    assert_eq!((heap.pacing(), collections()), (Pacing::manual(), 0));
    let automatic = Pacing::default().with_young_objects(500);
    heap.set_pacing(automatic);
    assert_eq!(heap.pacing(), automatic);
    // The guard needs no other handle.
    let deferred = heap.clone().defer_collections();
    assert!(format!("{deferred:?}").contains("DeferGuard"));
    make(&mut m);
    assert_eq!(collections(), 0);
    let second = heap.defer_collections();
    drop(deferred);
    make(&mut m);
    assert_eq!(collections(), 0, "the second guard lives");
    drop(second);
    make(&mut m);
    assert!(collections() > 0);
    let wrong = panics(|| heap.set_pacing(Pacing::default().with_full_growth(f64::NAN)));
    assert!(wrong.contains("full_growth"));
    assert_eq!(heap.pacing(), automatic);
}

/// Row 4.
#[test]
fn a_thread_parks_without_collecting() {
    let _deadline = deadline("parking");
    let heap = builder()
        .pacing(Pacing::default().with_young_objects(500))
        .build_with(Links::default())
        .unwrap();
    let mut m = heap.attach();
    assert!(!m.collection_is_due() && m.poll() == 0);
    while !m.collection_is_due() {
        garbage(&m);
    }
    assert_ne!(m.poll(), 0);
    let collections = || heap.stats().collections + heap.stats().promotions;
    m.park();
    assert!(m.collection_is_due() && collections() == 0);
    // Another thread stops the world: this one parks, and still does not collect.
    let (stops, attached) = (AtomicBool::new(false), heap.model().attached.load(SeqCst));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut other = heap.attach();
            let world = other.stop().unwrap();
            stops.store(true, SeqCst);
            drop(world);
        });
        while !stops.load(SeqCst) {
            m.park();
        }
    });
    assert!(heap.model().attached.load(SeqCst) >= attached + 2, "once for each thread");
    assert!(m.collection_is_due());
    assert_eq!(collections(), 0);
    // While the mutator is lent, a safepoint does nothing, and parking does not either.
    m.safepoint();
    assert!(collections() > 0);
}

/// Row 4. The model may drop references there, and with them run code that needs the locks that the
/// caller of `park` holds.
#[test]
fn parking_leaves_the_requests_of_the_model_raised() {
    const REQUEST: u32 = 1 << 20;
    const { assert!(REQUEST & standstill::model::MODEL_REQUESTS != 0) };
    let heap = heap();
    let mut m = heap.attach();
    m.raise(REQUEST);
    m.park();
    assert_eq!(m.poll(), REQUEST);
    m.safepoint();
    assert_eq!(m.poll(), 0);
}

/// The exit status of a child.
fn child_says(pid: libc::pid_t) -> i32 {
    let mut status = 0;
    // SAFETY: `pid` is a child of this process.
    assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
    assert!(libc::WIFEXITED(status), "the child was killed: {status:#x}");
    libc::WEXITSTATUS(status)
}

/// Forks, and runs `child` in the child. That child ends the fork by `ModelFork::child`, or,
/// without `repairs`, by `ModelFork::parent`, which must do the same. Returns the child's report.
fn fork(m: &mut Mutator, repairs: bool, child: impl FnOnce(&mut Mutator)) -> i32 {
    let fork = m.prepare_fork().unwrap();
    // SAFETY: the world is stopped; the child uses this heap and ends without destructors.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0, "fork failed");
    if pid == 0 {
        // SAFETY: a child that hangs is killed.
        unsafe { libc::alarm(20) };
        if repairs {
            fork.child();
        } else {
            fork.parent();
        }
        let works = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| child(m)));
        // SAFETY: no destructors, no output: this is a copy of a test process.
        unsafe { libc::_exit(i32::from(works.is_err())) };
    }
    fork.parent();
    m.detach(|| child_says(pid))
}

/// Row 10.
#[test]
fn the_child_of_a_fork_drops_references_whose_drop_lost_threads_had_put_off() {
    if !is_alone("the_child_of_a_fork_drops_references_whose_drop_lost_threads_had_put_off") {
        return;
    }
    let _deadline = deadline("a fork of a model's heap");
    let heap = heap();
    let mut m = heap.attach();
    let (ready, over) = (Barrier::new(3), Barrier::new(3));
    let statuses = std::thread::scope(|scope| {
        for detaches in [false, true] {
            let (heap, ready, over) = (&heap, &ready, &over);
            scope.spawn(move || {
                let mut m = heap.attach();
                // One is garbage after the drops that have been put off; one is held for ever.
                let object = alloc(&m);
                unpoisoned(m.local()).push(object);
                alloc(&m);
                if detaches {
                    m.detach(|| (ready.wait(), over.wait()));
                } else {
                    let detached = m.into_detached().unwrap();
                    ready.wait();
                    over.wait();
                    drop(detached);
                }
            });
        }
        m.detach(|| ready.wait());
        let statuses = [true, false].map(|repairs| {
            let status = fork(&mut m, repairs, |m| {
                assert_eq!((heap.stats().mutators, heap.model().lost.load(SeqCst)), (1, 2));
                assert_eq!(live(&heap), 4);
                // Objects that the lost threads held stay. Objects that they had dropped die.
                m.collect();
                assert_eq!(live(&heap), 2);
                garbage(m);
                assert_eq!(collected(m), 1);
                // A new thread works as in any process.
                let other = || {
                    let mut m = heap.attach();
                    garbage(&m);
                    collected(&mut m)
                };
                assert_eq!(m.detach(|| on_new_thread(other)), 1);
            });
            // The parent has lost nothing.
            let lost = (heap.stats().mutators, heap.model().lost.load(SeqCst)) != (3, 0);
            if lost { -1 } else { status }
        });
        m.detach(|| over.wait());
        statuses
    });
    let refused = panics(|| m.prepare_fork().unwrap().child());
    assert!(refused.contains("in the process that prepared the fork"));
    assert_eq!(heap.model().lost.load(SeqCst), 0);
    assert_eq!(statuses, [0, 0]);
    m.collect();
    assert_eq!(live(&heap), 2);
}

/// Rows 10 and 11. A finalizer that waits for another thread leaves meanwhile, so that thread may
/// fork. The child takes the garbage over from the collection of the lost thread.
#[test]
fn a_finalizer_that_has_left_delays_no_fork_and_the_child_collects_its_garbage() {
    if !is_alone("a_finalizer_that_has_left_delays_no_fork_and_the_child_collects_its_garbage") {
        return;
    }
    let _deadline = deadline("a fork while a finalizer waits for it");
    let heap = heap();
    let has_left = Arc::new(AtomicBool::new(false));
    let may_return = Arc::new(AtomicBool::new(false));
    let wait_for = |flag: &AtomicBool| {
        while !flag.load(SeqCst) {
            std::thread::yield_now();
        }
    };
    std::thread::scope(|scope| {
        let flags = (Arc::clone(&has_left), Arc::clone(&may_return));
        finalize_with(&heap, move |m| {
            // SAFETY: nothing is used until the thread comes back.
            assert!(unsafe { m.leave_for_now() });
            flags.0.store(true, SeqCst);
            wait_for(&flags.1);
            assert!(m.come_back());
        });
        let collector = scope.spawn(|| {
            let mut m = heap.attach();
            (0..3).for_each(|_| garbage(&m));
            collected(&mut m)
        });
        let mut m = heap.attach();
        m.detach(|| wait_for(&has_left));
        let status = fork(&mut m, true, |m| {
            assert_eq!((heap.stats().mutators, live(&heap)), (1, 3));
            assert_eq!(collected(m), 3);
            garbage(m);
            assert_eq!(collected(m), 1);
            assert_eq!(live(&heap), 0);
        });
        // Other stops pass, too.
        drop(m.stop().expect("the collecting thread is detached"));
        drop(m.try_prepare_fork(Duration::from_secs(60)).expect("as the fork"));
        may_return.store(true, SeqCst);
        assert_eq!(m.detach(|| collector.join().unwrap()), 3);
        assert_eq!(status, 0);
    });
    assert_eq!(live(&heap), 0);
}

/// It is detached, and no thread has suspended it.
#[test]
fn a_collecting_thread_that_has_left_is_not_reported_as_suspended() {
    let builder = builder().slow_stop(Duration::from_millis(1));
    let heap = builder.build_with(Links::default()).unwrap();
    let flags = [(); 2].map(|()| Arc::new(AtomicBool::new(false)));
    let [has_left, may_return] = &flags;
    let told = Arc::new(Mutex::new(Vec::new()));
    let (seen, go_on) = (Arc::clone(&told), Arc::clone(may_return));
    heap.on_slow_stop(move |report| {
        if report.kind == SlowStopKind::Collecting {
            unpoisoned(&seen).push(report.stragglers[0].is_suspended);
            go_on.store(true, SeqCst);
        }
    });
    let wait_for = |flag: &AtomicBool| {
        while !flag.load(SeqCst) {
            std::thread::yield_now();
        }
    };
    let (left, back) = (Arc::clone(has_left), Arc::clone(may_return));
    finalize_with(&heap, move |m| {
        // SAFETY: nothing is used until the thread comes back.
        assert!(unsafe { m.leave_for_now() });
        left.store(true, SeqCst);
        wait_for(&back);
        assert!(m.come_back());
    });
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut m = heap.attach();
            garbage(&m);
            assert_eq!(collected(&mut m), 1);
        });
        wait_for(has_left);
        assert_eq!(collected(&mut heap.attach()), 0);
    });
    let told = unpoisoned(&told);
    assert!(!told.is_empty() && told.iter().all(|is_suspended| !is_suspended), "{told:?}");
}

/// Row 10. The lock is one that unattached threads take; no stop waits for them.
#[test]
fn a_fork_holds_the_locks_of_the_model() {
    let _deadline = deadline("the model's locks in a fork");
    let heap = heap();
    let mut m = heap.attach();
    let fork = m.prepare_fork().unwrap();
    assert!(heap.model().dropped_outside.try_lock().is_err(), "the fork has it");
    fork.parent();
    assert!(heap.model().dropped_outside.try_lock().is_ok());
    heap.model().forks_without_lock.store(true, SeqCst);
    let fork = m.prepare_fork().unwrap();
    assert!(heap.model().dropped_outside.try_lock().is_ok());
    fork.parent();
    heap.model().forks_without_lock.store(false, SeqCst);
    // An unattached thread drops references all the time.
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(SeqCst) {
                drop(unpoisoned(&heap.model().dropped_outside));
            }
        });
        let statuses = [(); 20].map(|()| fork_and_drop_outside(&mut m));
        over.store(true, SeqCst);
        assert_eq!(statuses, [0; 20]);
    });
}

fn fork_and_drop_outside(m: &mut Mutator) -> i32 {
    fork(m, true, |m| {
        unpoisoned(&m.model().dropped_outside).push(alloc(m));
        m.collect();
        assert_eq!(m.heap().stats().live_objects, 0);
    })
}

/// Row 10.
#[test]
fn a_panic_of_the_repair_is_reported_and_the_child_goes_on() {
    let _deadline = deadline("a repair that panics");
    let heap = heap();
    let mut m = heap.attach();
    let (ready, over) = (Barrier::new(2), Barrier::new(2));
    std::thread::scope(|scope| {
        scope.spawn(|| heap.attach().detach(|| (ready.wait(), over.wait())));
        m.detach(|| ready.wait());
        heap.model().fails_in_fork.store(true, SeqCst);
        let reported = Arc::new(Mutex::new(Vec::new()));
        let to = Arc::clone(&reported);
        heap.on_unraisable(move |what| unpoisoned(&to).push(what.message.to_string()));
        let status = fork(&mut m, true, |m| {
            assert_eq!(*unpoisoned(&reported), ["the repair of the model, as asked"]);
            assert_eq!(heap.stats().mutators, 1);
            garbage(m);
            assert_eq!(collected(m), 1);
        });
        m.detach(|| over.wait());
        assert_eq!(status, 0);
    });
}

/// Row 11. The thread that waits for a finalizer is not attached, or does not want a stop.
#[test]
fn a_finalizer_may_block_while_other_threads_go_on() {
    let _deadline = deadline("a finalizer that blocks");
    let heap = heap();
    let mut m = heap.attach();
    let (go, wait) = mpsc::channel();
    let wait = Mutex::new(wait);
    let seen = Arc::new(Mutex::new(None));
    let to = Arc::clone(&seen);
    finalize_with(&heap, move |m| {
        *unpoisoned(&to) = Some((m.may_park(), m.collection_is_due()));
        unpoisoned(&wait).recv().unwrap();
    });
    garbage(&m);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut other = heap.attach();
            while unpoisoned(&seen).is_none() {
                other.safepoint();
                garbage(&other);
            }
            // No other thread collects meanwhile.
            let busy = other.try_collect(Collect::full().wait(false));
            assert_eq!(busy.unwrap_err(), CollectError::Busy);
            go.send(()).unwrap();
        });
        m.collect();
        m.detach(|| ());
    });
    assert_eq!(*unpoisoned(&seen), Some((false, false)), "it may not park there");
}

/// Row 12.
#[test]
fn code_without_a_parameter_finds_the_mutator() {
    let heap = heap();
    assert!(Mutator::current().is_none());
    // SAFETY: the thread is not attached, so there is nothing to promise.
    assert!(unsafe { Mutator::current_unlent() }.is_none());
    let mut m = heap.attach();
    // SAFETY: the guards live for one call each.
    unsafe {
        let object = alloc(&Mutator::current_unlent().unwrap());
        heap.model().drop_ref(object, &Mutator::current_unlent().unwrap());
    }
    assert_eq!((live(&heap), m.may_park()), (0, true), "it is not lent");
    let guard = Mutator::current().unwrap();
    garbage(&guard);
    assert!(format!("{guard:?}").contains("ModelMutator"));
    assert!(!m.may_park());
    assert_eq!(m.try_collect(Collect::full()).unwrap_err(), StopError::NoSafepoint.into());
    assert!(panics(|| m.detach(|| ())).contains("detach"));
    let second = Mutator::current().unwrap();
    drop(guard);
    assert!(!m.may_park(), "the second guard lives");
    drop(second);
    assert_eq!(collected(&mut m), 1);
    let world = m.stop().unwrap();
    assert!(Mutator::current().is_none());
    drop(world);
    // A mutator of another model is none of these.
    let m = m.into_detached().unwrap();
    let typed = Heap::new().attach();
    assert!(Mutator::current().is_none());
    drop((typed, m));
}

/// Row 12.
#[test]
fn a_mutator_that_is_dropped_while_a_guard_lives_ends_with_the_guard() {
    let heap = heap();
    let m = heap.attach();
    let guard = Mutator::current().unwrap();
    drop(m);
    assert_eq!(heap.stats().mutators, 1);
    garbage(&guard);
    drop(guard);
    assert_eq!(heap.stats().mutators, 0);
}

/// Row 14.
#[test]
fn hooks_are_set_without_a_typed_heap() {
    let _deadline = deadline("the hooks");
    let heap = builder().slow_stop(Duration::from_millis(1)).build_with(Links::default()).unwrap();
    let events = Arc::new(Mutex::new(Vec::new()));
    let note = |text: &'static str| {
        let to = Arc::clone(&events);
        move |what: String| unpoisoned(&to).push(format!("{text} {what}"))
    };
    let (on_event, on_failure, on_slow) = (note("event"), note("failure"), note("slow"));
    heap.on_collection(move |event| {
        on_event(match event {
            CollectionEvent::Stop { .. } => "stop".into(),
            _ => "start".into(),
        })
    });
    heap.on_unraisable(move |what| on_failure(what.message.to_string()));
    heap.on_slow_stop(move |report| {
        if report.kind == SlowStopKind::Waiting {
            on_slow("stop".into());
        }
    });
    let mut m = heap.attach();
    finalize_with(&heap, |_| panic!("a finalizer, as asked"));
    garbage(&m);
    assert_eq!(collected(&mut m), 1);
    let so_far = std::mem::take(&mut *unpoisoned(&events));
    assert_eq!(so_far, ["event start", "failure a finalizer, as asked", "event stop"]);
    // A stop waits for a thread that does not come.
    let attached = Barrier::new(2);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut other = heap.attach();
            attached.wait();
            while unpoisoned(&events).is_empty() {
                std::thread::yield_now();
            }
            other.safepoint();
        });
        m.detach(|| attached.wait());
        drop(m.stop().unwrap());
    });
    assert_eq!(unpoisoned(&events).first().unwrap(), "slow stop");
}

thread_local! {
    /// As a runtime keeps it between two calls of its own.
    static STOPPED: RefCell<Option<StoppedWorld<Links>>> = const { RefCell::new(None) };
}

fn stop_the_world(m: &mut Mutator) {
    STOPPED.set(Some(m.stop_owned().unwrap()));
}

fn start_the_world() {
    STOPPED.take().unwrap().resume();
}

/// Row 15.
#[test]
fn a_stop_is_kept_across_calls() {
    let _deadline = deadline("a stop across calls");
    let heap = heap();
    let mut m = heap.attach();
    let (steps, over) = (AtomicUsize::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut other = heap.attach();
            while !over.load(SeqCst) {
                steps.fetch_add(1, SeqCst);
                other.safepoint();
            }
        });
        while steps.load(SeqCst) == 0 {
            std::thread::yield_now();
        }
        for _ in 0..3 {
            stop_the_world(&mut m);
            let before = steps.load(SeqCst);
            // The thread itself still works with objects.
            let object = alloc(&m);
            let mut threads = Vec::new();
            STOPPED.with_borrow(|world| {
                let world = world.as_ref().unwrap();
                assert_eq!(world.requester(), m.thread_id());
                assert!(world.time_to_stop() < Duration::from_secs(60));
                world.locals(|id, _| threads.push(id));
            });
            assert_eq!((threads.len(), threads.contains(&m.thread_id())), (2, true));
            std::thread::sleep(Duration::from_millis(2));
            heap.model().drop_ref(object, &m);
            // It does nothing that could end the stop, and stops nothing again.
            m.safepoint();
            m.park();
            assert!(!m.may_park() && Mutator::current().is_none());
            assert_eq!(m.stop_owned().unwrap_err(), StopError::Nested);
            assert!(m.stop().is_err() && m.prepare_fork().is_err());
            assert_eq!(m.try_collect(Collect::full()).unwrap_err(), StopError::NoSafepoint.into());
            assert!(panics(|| m.detach(|| ())).contains("detach"));
            assert_eq!(steps.load(SeqCst), before, "the other thread stands still");
            start_the_world();
            while steps.load(SeqCst) == before {
                std::thread::yield_now();
            }
        }
        assert_eq!(collected(&mut m), 0);
        over.store(true, SeqCst);
    });
    assert_eq!(live(&heap), 0);
}

/// Row 15.
#[test]
fn a_stop_gives_up_beside_another_stop_and_at_its_limit() {
    let _deadline = deadline("stops that give up");
    let heap = heap();
    let mut m = heap.attach();
    assert!(m.try_stop().is_ok() && m.stop_for(Duration::ZERO).is_ok());
    let guard = Mutator::current().unwrap();
    assert_eq!(m.try_stop().map(drop), Err(StopError::NoSafepoint));
    assert_eq!(m.stop_for(Duration::ZERO).map(drop), Err(StopError::NoSafepoint));
    drop(guard);
    let (tell, told) = mpsc::channel();
    let (end, ended) = mpsc::channel::<()>();
    std::thread::scope(|scope| {
        let heap = &heap;
        scope.spawn(move || {
            let mut late = heap.attach();
            tell.send(late.thread_id()).unwrap();
            ended.recv().unwrap_err();
            while late.poll() == 0 {
                std::thread::yield_now();
            }
            assert_eq!(late.try_stop().map(drop), Err(StopError::Busy));
            late.safepoint();
        });
        let id = told.recv().unwrap();
        match m.stop_for(Duration::from_millis(2)).map(drop) {
            Err(StopError::TimedOut { stragglers }) => assert_eq!(stragglers[0].thread.id, id),
            other => panic!("{other:?}"),
        }
        assert!(m.may_park());
        drop(end);
        drop(m.stop_for(Duration::MAX).unwrap());
        m.detach(|| ());
    });
}

/// Row 15.
#[test]
fn a_mutator_that_is_dropped_in_its_own_stop_ends_after_the_stop() {
    let heap = heap();
    let mut m = heap.attach();
    let world = m.stop_owned().unwrap();
    drop(m);
    assert_eq!(heap.stats().mutators, 1);
    assert_eq!(world.requester().get(), standstill::safepoint::current());
    drop(world);
    assert_eq!((heap.stats().mutators, standstill::safepoint::current()), (0, 0));
    // A new mutator of this thread stops as ever.
    drop(heap.attach().stop_owned().unwrap());
}

/// Row 15.
#[test]
fn a_stop_is_refused_to_a_thread_that_may_not_wait() {
    let heap = heap();
    let mut m = heap.attach();
    let guard = Mutator::current().unwrap();
    assert_eq!(m.stop_owned().unwrap_err(), StopError::NoSafepoint);
    // SAFETY: this thread uses no reference to an object afterwards.
    assert_eq!(unsafe { guard.stop_inside() }.unwrap_err(), StopError::NoSafepoint);
    drop(guard);
    {
        let _traversing = standstill::safepoint::traversing();
        assert!(m.stop_owned().is_err());
    }
    // SAFETY: the thread uses no object while it is away or after a stop.
    unsafe {
        assert!(m.leave_for_now());
        assert_eq!(m.stop_inside().unwrap_err(), StopError::NotAttached);
        assert!(m.come_back());
        drop(m.stop_inside().unwrap());
    }
    drop(m.stop_owned().unwrap());
    let gone = heap.clone();
    std::thread::spawn(move || std::mem::forget(gone.attach())).join().unwrap();
    heap.on_slow_stop(|_| ());
    assert!(matches!(m.stop_owned(), Err(StopError::ThreadGone { .. })));
    assert!(m.may_park(), "nothing has changed");
}

/// Row 15.
#[test]
fn a_finalizer_stops_the_world() {
    let _deadline = deadline("a stop inside a finalizer");
    let heap = heap();
    let mut m = heap.attach();
    let (steps, over) = (Arc::new(AtomicUsize::new(0)), AtomicBool::new(false));
    let (seen, result) = (Arc::clone(&steps), Arc::new(Mutex::new(None)));
    let to = Arc::clone(&result);
    finalize_with(&heap, move |m| {
        // A guard up the stack may borrow something; the collection does not.
        let refused = Mutator::with_current(|m| {
            // SAFETY: nothing is used afterwards.
            unsafe { m.stop_inside() }.unwrap_err()
        });
        // SAFETY: the finalizer uses no reference to an object afterwards.
        let world = unsafe { m.stop_inside() }.unwrap();
        let before = seen.load(SeqCst);
        std::thread::sleep(Duration::from_millis(2));
        let stood = seen.load(SeqCst) == before;
        // SAFETY: the finalizer uses no reference to an object afterwards.
        let nested = unsafe { m.stop_inside() }.unwrap_err();
        drop(world);
        *unpoisoned(&to) = Some((refused, stood, nested));
    });
    garbage(&m);
    std::thread::scope(|scope| {
        // This thread stops the world for itself, too: the finalizer waits for it.
        scope.spawn(|| {
            let mut other = heap.attach();
            while !over.load(SeqCst) {
                steps.fetch_add(1, SeqCst);
                drop(other.stop().unwrap());
                other.safepoint();
            }
        });
        while steps.load(SeqCst) == 0 {
            std::thread::yield_now();
        }
        assert_eq!(collected(&mut m), 1);
        over.store(true, SeqCst);
        // The other thread may be about to stop the world.
        m.detach(|| ());
        while heap.stats().mutators > 1 {
            m.safepoint();
        }
    });
    let expected = (Some(StopError::NoSafepoint), true, StopError::Nested);
    assert_eq!(unpoisoned(&result).take().unwrap(), expected);
}

/// Row 15. Otherwise the second stop of the collection would end the first one, or clear objects
/// while the world is stopped.
#[test]
fn a_stop_that_outlives_its_finalizer_makes_the_collection_keep_its_objects() {
    let heap = heap();
    let mut m = heap.attach();
    finalize_with(&heap, |m| {
        // SAFETY: the finalizer uses no reference to an object afterwards.
        STOPPED.set(Some(unsafe { m.stop_inside() }.unwrap()));
    });
    let failures = Arc::new(AtomicUsize::new(0));
    let to = Arc::clone(&failures);
    heap.on_unraisable(move |_| {
        to.fetch_add(1, SeqCst);
    });
    garbage(&m);
    let report = m.try_collect(Collect::full()).unwrap();
    assert!(report.abandoned.is_some());
    assert_eq!((report.collected, live(&heap), failures.load(SeqCst)), (0, 1, 1));
    start_the_world();
    assert_eq!(collected(&mut m), 1, "later, as ever");
}

/// The blocking calls of the typed face. A stop does not wait for them.
#[test]
fn a_thread_waits_detached_for_locks_threads_and_messages() {
    let _deadline = deadline("waiting detached");
    let heap = heap();
    let mut m = heap.attach();
    let mutex = Mutex::new(7);
    let (sender, receiver) = mpsc::channel();
    let (taken, begun) = (Barrier::new(2), Instant::now());
    let sum = m.scope(|scope, m| {
        let (heap, mutex, taken) = (&heap, &mutex, &taken);
        scope.spawn(move || {
            let mut other = heap.attach();
            let held = mutex.lock().unwrap();
            taken.wait();
            garbage(&other);
            // It would wait for ever for an attached thread that waits for the lock.
            assert_eq!(collected(&mut other), 1);
            drop(held);
            assert_eq!(collected(&mut other), 0);
            sender.send(5).unwrap();
            collected(&mut other);
        });
        m.detach(|| taken.wait());
        let seven = *m.lock(mutex).unwrap();
        let five = m.recv(&receiver).unwrap();
        let thread = scope.spawn(move || collected(&mut heap.attach()));
        seven + five + m.join(thread).unwrap()
    });
    assert_eq!(sum, 12);
    assert!(m.may_park() && begun.elapsed() < Duration::from_secs(60));
    assert!(m.recv(&receiver).is_err());
    assert!(Mutator::with_current(|_| ()).is_some(), "attached again");
    let guard = Mutator::current().unwrap();
    assert!(panics(|| m.scope(|_, _| ())).contains("detach"));
    drop(guard);
}
