//! Full collections whose search runs in a child of the process.
#![cfg(all(target_os = "linux", target_env = "gnu", not(any(loom, shuttle))))]

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use standstill::{
    Collect, CollectError, CollectionKind, CollectionReport, Gc, GcCell, Heap, Mutator, Pacing,
    Trace, Tracer,
};

#[expect(dead_code, reason = "some tools are for the tests of lists")]
#[path = "../model_lists/blocks.rs"]
mod blocks;
mod due;
mod listed;

#[derive(Trace)]
struct Node {
    edges: GcCell<Vec<Gc<Node>>>,
    #[trace(skip)]
    dies: Arc<AtomicUsize>,
}

impl Drop for Node {
    fn drop(&mut self) {
        self.dies.fetch_add(1, Ordering::Relaxed);
    }
}

fn heap() -> Heap {
    Heap::builder().pacing(Pacing::manual()).build().unwrap()
}

fn node(m: &Mutator, dies: &Arc<AtomicUsize>) -> Gc<Node> {
    m.alloc(Node { edges: GcCell::default(), dies: Arc::clone(dies) })
}

/// A cycle of so many objects, of which one is returned.
fn ring(m: &Mutator, size: usize, dies: &Arc<AtomicUsize>) -> Gc<Node> {
    let first = node(m, dies);
    let mut last = first.clone();
    for _ in 1..size {
        let next = node(m, dies);
        last.edges.lock(m).push(next.clone());
        last = next;
    }
    last.edges.lock(m).push(first.clone());
    first
}

fn forked(m: &mut Mutator) -> CollectionReport {
    m.try_collect(Collect::full().forked(true)).unwrap()
}

#[test]
fn a_child_finds_the_garbage_and_only_that() {
    let heap = heap();
    let mut m = heap.attach();
    let [dead, alive] = [(); 2].map(|()| Arc::new(AtomicUsize::new(0)));
    let kept: Vec<_> = (0..10).map(|_| ring(&m, 50, &alive)).collect();
    (0..10).for_each(|_| drop(ring(&m, 50, &dead)));
    let report = forked(&mut m);
    assert_eq!(report.no_child, None);
    let child = report.child.expect("a child has searched");
    assert_eq!((child.proposed, child.examined, child.parts, child.unreadable), (500, 500, 1, 0));
    assert_eq!((report.kind, report.candidates), (CollectionKind::Full, 1_000));
    assert_eq!((report.unreachable, report.collected, report.stops.len()), (500, 500, 2));
    assert_eq!(dead.load(Ordering::Relaxed), 500);
    assert_eq!(alive.load(Ordering::Relaxed), 0);
    let report = forked(&mut m);
    assert_eq!((report.child.unwrap().proposed, report.stops.len()), (0, 1));
    drop(kept);
    assert_eq!(forked(&mut m).collected, 500);
    assert_eq!(alive.load(Ordering::Relaxed), 500);
    assert_eq!(heap.stats().collections, 3);
}

#[test]
fn many_structures_are_collected_in_parts() {
    let heap = heap();
    let mut m = heap.attach();
    let dead = Arc::new(AtomicUsize::new(0));
    (0..150).for_each(|_| drop(ring(&m, 200, &dead)));
    // One structure is one part, however large.
    drop(ring(&m, 12_000, &dead));
    let report = forked(&mut m);
    let child = report.child.unwrap();
    assert_eq!(child.proposed, 42_000);
    assert!((5..=8).contains(&child.parts), "{child:?}");
    assert_eq!(report.stops.len(), 1 + child.parts);
    assert_eq!((report.unreachable, report.collected), (42_000, 42_000));
    assert_eq!(dead.load(Ordering::Relaxed), 42_000);
}

#[test]
fn references_beyond_a_byte_are_counted() {
    let heap = heap();
    let mut m = heap.attach();
    let dead = Arc::new(AtomicUsize::new(0));
    for held in [false, true] {
        let hub = node(&m, &dead);
        for _ in 0..1_000 {
            let spoke = node(&m, &dead);
            spoke.edges.lock(&m).push(hub.clone());
            hub.edges.lock(&m).push(spoke);
        }
        // 256 more, so that the byte alone would explain all references.
        let outside: Vec<_> = (0..256).map(|_| hub.clone()).collect();
        drop(hub);
        let before = dead.load(Ordering::Relaxed);
        let report = if held {
            forked(&mut m)
        } else {
            drop(outside);
            forked(&mut m)
        };
        let expected = if held { 0 } else { 1_001 };
        assert_eq!(report.child.unwrap().proposed, expected);
        assert_eq!(dead.load(Ordering::Relaxed) - before, expected);
    }
}

/// What this process and its children share, so that no test depends on a clock.
struct Shared {
    /// A child has begun its search.
    searches: AtomicBool,
    /// It may go on.
    goes_on: AtomicBool,
    /// Its number.
    process: AtomicU32,
}

impl Shared {
    fn new() -> &'static Self {
        let (access, flags) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping, which stays. Zeroes are values.
        unsafe {
            let memory = libc::mmap(std::ptr::null_mut(), size_of::<Self>(), access, flags, -1, 0);
            assert_ne!(memory, libc::MAP_FAILED);
            &*memory.cast()
        }
    }

    fn until(flag: &AtomicBool) {
        while !flag.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

#[derive(Clone, Copy)]
enum InChild {
    Traverses,
    Waits(&'static Shared),
    Leaves,
    Panics,
    IsKilled,
    Faults,
    Aborts,
    Hangs,
}

/// What its traversal does in another process than that of the test.
#[derive(Clone)]
struct Strange {
    process: u32,
    acts: InChild,
    me: Arc<GcCell<Option<Gc<Strange>>>>,
}

impl Strange {
    /// A cycle of one.
    fn ring(m: &Mutator, acts: InChild) -> Gc<Self> {
        let me = Arc::new(GcCell::default());
        let this = m.alloc(Self { process: std::process::id(), acts, me: Arc::clone(&me) });
        me.set(m, Some(this.clone()));
        this
    }
}

impl Trace for Strange {
    fn traverse(this: &Self, tracer: &mut Tracer) {
        if std::process::id() != this.process {
            match this.acts {
                InChild::Traverses => {}
                InChild::Waits(shared) => {
                    shared.process.store(std::process::id(), Ordering::SeqCst);
                    shared.searches.store(true, Ordering::SeqCst);
                    Shared::until(&shared.goes_on);
                }
                // SAFETY: it ends the process.
                InChild::Leaves => unsafe { libc::_exit(0) },
                InChild::Panics => panic!("in the child"),
                // SAFETY: as above.
                InChild::IsKilled => _ = unsafe { libc::raise(libc::SIGKILL) },
                // SAFETY: there is no memory, so that the process ends.
                InChild::Faults => _ = unsafe { std::ptr::dangling::<u64>().read_volatile() },
                InChild::Aborts => std::process::abort(),
                InChild::Hangs => loop {
                    std::hint::spin_loop();
                },
            }
        }
        Trace::traverse(&*this.me, tracer);
    }

    fn clear(this: &Self, m: &Mutator) {
        Trace::clear(&*this.me, m);
    }
}

#[test]
fn without_a_child_the_search_runs_in_a_stop() {
    let reasons = [
        (InChild::Leaves, "ended without an answer"),
        (InChild::Panics, "code panicked"),
        (InChild::IsKilled, "signal 9"),
        (InChild::Faults, "signal 11"),
        (InChild::Aborts, "signal 6"),
        (InChild::Hangs, "took too long"),
    ];
    std::thread::scope(|s| {
        for (acts, reason) in reasons {
            s.spawn(move || {
                let heap = heap();
                let mut m = heap.attach();
                let alive = Strange::ring(&m, InChild::Traverses);
                drop(Strange::ring(&m, acts));
                let report = forked(&mut m);
                assert_eq!(report.child, None);
                let told = report.no_child.expect("a reason");
                assert!(told.contains(reason), "{told}");
                assert_eq!((report.abandoned, report.collected), (None, 1));
                assert_eq!((report.stops.len(), heap.stats().collections), (2, 1));
                // The next child ends well.
                let report = forked(&mut m);
                assert_eq!(report.no_child, None);
                assert_eq!(report.child.expect("a child").proposed, 0);
                drop(alive);
                assert_eq!(forked(&mut m).collected, 1);
            });
        }
    });
}

/// Runs `meanwhile` on another thread, attached, while a child searches, and returns the report.
/// The child waits for it, so that the test fails if it has to wait for the collection.
fn while_a_child_searches<R: Send>(
    heap: &Heap,
    m: &mut Mutator,
    meanwhile: impl FnOnce(&mut Mutator) -> R + Send,
) -> (CollectionReport, R) {
    let shared = Shared::new();
    let _waits = Strange::ring(m, InChild::Waits(shared));
    std::thread::scope(|s| {
        let other = s.spawn(move || {
            Shared::until(&shared.searches);
            let result = meanwhile(&mut heap.attach());
            shared.goes_on.store(true, Ordering::SeqCst);
            result
        });
        let report = forked(m);
        assert_eq!(report.no_child, None);
        (report, other.join().unwrap())
    })
}

#[test]
fn an_object_that_is_upgraded_meanwhile_stays_alive() {
    let heap = heap();
    let mut m = heap.attach();
    let dies = Arc::new(AtomicUsize::new(0));
    let lost = ring(&m, 10, &dies);
    let weak = Gc::downgrade(&lost, &m);
    drop(lost);
    drop(ring(&m, 10, &dies));
    let (report, saved) = while_a_child_searches(&heap, &mut m, |m| weak.upgrade(m));
    assert_eq!((report.child.unwrap().proposed, report.unreachable), (20, 10));
    assert_eq!(dies.load(Ordering::Relaxed), 10);
    drop(saved.expect("it was alive"));
    // With the object that waits.
    assert_eq!(forked(&mut m).collected, 11);
}

#[test]
fn other_collections_run_meanwhile_and_may_take_what_was_proposed() {
    let heap = heap();
    let mut m = heap.attach();
    let dies = Arc::new(AtomicUsize::new(0));
    drop(ring(&m, 10, &dies));
    let born = Arc::clone(&dies);
    let (report, (young, full)) = while_a_child_searches(&heap, &mut m, move |m| {
        drop(ring(m, 7, &born));
        let young = m.collect_young();
        // The old ones are left to the one that has begun, or to this one.
        (young, m.collect())
    });
    assert_eq!((young.collected, full.collected), (7, 10));
    let child = report.child.unwrap();
    assert_eq!((child.proposed, child.examined, report.collected), (10, 0, 0));
    let order: Vec<_> = heap.recent_collections().iter().map(|report| report.collected).collect();
    assert_eq!(order, [7, 10, 0]);
}

#[test]
fn the_process_may_fork_meanwhile_and_its_child_has_children() {
    let heap = heap();
    let mut m = heap.attach();
    let dies = Arc::new(AtomicUsize::new(0));
    drop(ring(&m, 10, &dies));
    let (report, process) = while_a_child_searches(&heap, &mut m, |m| {
        let fork = m.prepare_fork().expect("nothing forbids it");
        // SAFETY: the new process has this thread alone, and ends without a handler.
        let process = unsafe { libc::fork() };
        if process == 0 {
            fork.child();
            let collected = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                let report = forked(m);
                // The thread that held the other object does not exist here.
                report.no_child.is_none() && report.collected == 10
            }));
            // SAFETY: it ends the process.
            unsafe { libc::_exit(i32::from(!matches!(collected, Ok(true)))) };
        }
        fork.parent();
        process
    });
    assert_eq!(report.collected, 10);
    let mut status = -1;
    // SAFETY: the system writes the status.
    assert_eq!(unsafe { libc::waitpid(process, &raw mut status, 0) }, process);
    assert_eq!(status, 0);
}

#[test]
fn a_heap_has_one_child_at_a_time() {
    let heap = heap();
    let mut m = heap.attach();
    let dies = Arc::new(AtomicUsize::new(0));
    drop(ring(&m, 10, &dies));
    let (report, other) = while_a_child_searches(&heap, &mut m, forked);
    assert_eq!((other.child, other.collected), (None, 10));
    assert_eq!(other.no_child.as_deref(), Some("another child searches this heap"));
    assert_eq!((report.child.unwrap().examined, report.collected), (0, 0));
}

#[test]
fn a_thread_that_is_lost_meanwhile_ends_the_collection() {
    let heap = heap();
    let mut m = heap.attach();
    let dies = Arc::new(AtomicUsize::new(0));
    drop(ring(&m, 10, &dies));
    let (report, ()) = while_a_child_searches(&heap, &mut m, |_| {
        std::thread::scope(|s| _ = s.spawn(|| std::mem::forget(heap.attach())));
    });
    let why = report.abandoned.expect("no second stop");
    assert!(why.starts_with("the world cannot be stopped again"), "{why}");
    assert_eq!((report.child.unwrap().proposed, report.collected), (10, 0));
    assert_eq!(heap.recent_collections().len(), 1);
}

#[test]
fn a_request_that_does_not_wait_is_busy_while_another_thread_collects() {
    #[derive(Trace)]
    #[trace(finalize = finalize)]
    struct Waits {
        me: GcCell<Option<Gc<Waits>>>,
        #[trace(skip)]
        until: Mutex<mpsc::Receiver<()>>,
        #[trace(skip)]
        begun: mpsc::Sender<()>,
    }
    fn finalize(this: &Gc<Waits>, _: &Mutator) {
        this.begun.send(()).unwrap();
        this.until.lock().unwrap().recv().unwrap();
    }
    let heap = heap();
    let mut m = heap.attach();
    let (begun, has_begun) = mpsc::channel();
    let (go_on, until) = mpsc::channel();
    let waits = m.alloc(Waits { me: GcCell::default(), until: Mutex::new(until), begun });
    waits.me.set(&m, Some(waits.clone()));
    drop(waits);
    std::thread::scope(|s| {
        s.spawn(|| heap.attach().collect());
        m.detach(|| has_begun.recv().unwrap());
        let busy = m.try_collect(Collect::full().forked(true).wait(false));
        assert!(matches!(busy, Err(CollectError::Busy)), "{busy:?}");
        go_on.send(()).unwrap();
        // The recheck of the other thread stops the world.
        drop(m);
    });
}

#[test]
fn a_cell_that_another_heap_has_locked_is_read_the_next_time() {
    #[derive(Trace)]
    struct Holder {
        cells: Vec<GcCell<Option<Gc<Holder>>>>,
        me: GcCell<Option<Gc<Holder>>>,
    }
    let [heap, other] = [(); 2].map(|()| heap());
    let cells: Vec<GcCell<Option<Gc<Holder>>>> = (0..3).map(|_| GcCell::default()).collect();
    other.attach_scoped(|m| cells.iter().for_each(|cell| drop(cell.lock(m))));
    let mut m = heap.attach();
    let holder = m.alloc(Holder { cells, me: GcCell::default() });
    holder.me.set(&m, Some(holder.clone()));
    drop(holder);
    let first = forked(&mut m);
    let child = first.child.unwrap();
    assert_eq!((child.unreadable, child.parts, first.collected), (1, 0, 0));
    assert_eq!(first.stops.len(), 2);
    let second = forked(&mut m);
    assert_eq!((second.child.unwrap().unreadable, second.collected), (0, 1));
}

#[test]
fn a_traversal_that_is_wrong_is_found_in_a_stop() {
    struct Twice(GcCell<Option<Gc<Twice>>>);
    impl Trace for Twice {
        fn traverse(this: &Self, tracer: &mut Tracer) {
            Trace::traverse(&this.0, tracer);
            Trace::traverse(&this.0, tracer);
        }
    }
    let heap = heap();
    let mut m = heap.attach();
    let wrong = m.alloc(Twice(GcCell::default()));
    wrong.0.set(&m, Some(wrong.clone()));
    drop(wrong);
    let report = forked(&mut m);
    let why = "a traversal has reported more references than exist";
    assert_eq!(report.no_child.as_deref(), Some(why));
    assert_eq!((report.overvisited, report.collected), (1, 0));
}
