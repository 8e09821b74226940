//! Full collections that are due, and search in a child.

use standstill::{CollectionEvent, CollectionReason, ForkedSearch};

use super::*;

/// A heap whose full collections soon are due, and search in a child.
struct Due {
    heap: Heap,
    /// How many full collections have begun.
    begun: Arc<AtomicUsize>,
    /// The reports of those that have ended.
    ended: Arc<Mutex<Vec<CollectionReport>>>,
    dies: Arc<AtomicUsize>,
}

impl Due {
    fn new() -> Self {
        Self::with(|heap| heap)
    }

    fn with(change: impl FnOnce(standstill::HeapBuilder) -> standstill::HeapBuilder) -> Self {
        let pacing = Pacing::default()
            .with_young_objects(100)
            .with_full_minimum(2_000)
            .with_full_growth(0.0)
            .with_forked(ForkedSearch::Always);
        let heap = change(Heap::builder().pacing(pacing)).build().unwrap();
        let (begun, ended) = (Arc::new(AtomicUsize::new(0)), Arc::new(Mutex::new(Vec::new())));
        let (counts, keeps) = (Arc::clone(&begun), Arc::clone(&ended));
        heap.on_collection(move |event| match event {
            CollectionEvent::Start(CollectionKind::Full) => {
                _ = counts.fetch_add(1, Ordering::SeqCst)
            }
            CollectionEvent::Stop(report) if report.kind == CollectionKind::Full => {
                keeps.lock().unwrap().push(CollectionReport::clone(report));
            }
            _ => {}
        });
        Self { heap, begun, ended, dies: Arc::default() }
    }

    /// Grows the heap by objects that stay, until a full collection begins.
    fn begin(&self, m: &mut Mutator) -> Vec<Gc<Node>> {
        let before = self.begun.load(Ordering::SeqCst);
        let mut kept = Vec::new();
        while self.begun.load(Ordering::SeqCst) == before {
            kept.push(ring(m, 10, &self.dies));
            m.safepoint();
            assert!(kept.len() < 100_000, "no full collection begins");
        }
        kept
    }

    /// Makes young garbage until so many full collections have ended.
    fn end(&self, m: &mut Mutator, ended: usize) -> CollectionReport {
        self.end_after(m, ended, |m| drop(ring(m, 10, &Arc::default())))
    }

    /// As [`end`](Self::end), but allocates nothing.
    fn end_idle(&self, m: &mut Mutator, ended: usize) -> CollectionReport {
        self.end_after(m, ended, |_| std::thread::yield_now())
    }

    fn end_after(
        &self,
        m: &mut Mutator,
        ended: usize,
        work: impl Fn(&mut Mutator),
    ) -> CollectionReport {
        let begun = std::time::Instant::now();
        while self.ended.lock().unwrap().len() < ended {
            work(m);
            m.safepoint();
            assert!(begun.elapsed() < Duration::from_secs(120), "the collection does not end");
        }
        self.ended.lock().unwrap()[ended - 1].clone()
    }
}

/// Runs `f` on a thread that ends, while this one is detached.
fn on_another_thread<R: Send>(
    m: &mut Mutator,
    heap: &Heap,
    f: impl FnOnce(&mut Mutator) -> R + Send,
) -> R {
    m.detach(|| std::thread::scope(|s| s.spawn(|| f(&mut heap.attach())).join().unwrap()))
}

/// Garbage that only a full collection finds, and whose traversal waits in the child.
fn old_garbage(m: &mut Mutator, shared: &'static Shared) {
    let waits = Strange::ring(m, InChild::Waits(shared));
    m.collect_young();
    drop(waits);
}

#[test]
fn threads_go_on_while_the_child_searches_and_share_its_garbage() {
    let due = Due::new();
    let mut m = due.heap.attach();
    let dead = Arc::new(AtomicUsize::new(0));
    let shared = Shared::new();
    let waits = Strange::ring(&m, InChild::Waits(shared));
    // Old garbage, in more than one part. The second one is of another thread's memory.
    m.collect_young();
    let all: Vec<_> = (0..30).map(|_| ring(&m, 200, &dead)).collect();
    let others = on_another_thread(&mut m, &due.heap, |other| {
        (0..30).map(|_| ring(other, 200, &dead)).collect::<Vec<_>>()
    });
    m.collect_young();
    drop((all, others));
    let kept = due.begin(&mut m);
    Shared::until(&shared.searches);
    // The child waits for this thread, which would wait for ever if the collection held it up.
    let young = due.heap.stats().young_collections;
    let before = due.ended.lock().unwrap().len();
    while due.heap.stats().young_collections < young + 5 {
        drop(ring(&m, 10, &Arc::default()));
        m.safepoint();
    }
    assert_eq!(due.ended.lock().unwrap().len(), before, "the child still searches");
    shared.goes_on.store(true, Ordering::SeqCst);
    let report = due.end(&mut m, before + 1);
    assert_eq!((report.no_child, report.abandoned), (None, None));
    let child = report.child.expect("a child");
    assert_eq!((child.proposed, child.parts), (12_000, 3));
    assert_eq!((report.reason, report.collected), (CollectionReason::Growth, 12_000));
    assert_eq!((dead.load(Ordering::Relaxed), due.dies.load(Ordering::Relaxed)), (12_000, 0));
    assert_eq!(report.stops.len(), 4);
    drop((kept, waits));
    m.collect();
    assert_eq!(due.heap.stats().live_objects, 0);
}

#[test]
fn another_full_collection_ends_the_one_that_waits_for_its_child() {
    let due = Due::new();
    let mut m = due.heap.attach();
    let shared = Shared::new();
    old_garbage(&mut m, shared);
    let kept = due.begin(&mut m);
    Shared::until(&shared.searches);
    let report = m.collect();
    assert_eq!((report.child, report.collected, report.abandoned), (None, 1, None));
    let ended = due.ended.lock().unwrap().clone();
    assert_eq!(ended.len(), 2);
    let why = "another full collection has begun before this one was over";
    assert_eq!(ended[0].abandoned.as_deref(), Some(why));
    assert_eq!((ended[0].child, ended[0].collected), (None, 0));
    drop(kept);
}

#[test]
fn a_heap_that_outgrows_its_child_searches_in_a_stop() {
    let due = Due::new();
    let mut m = due.heap.attach();
    let shared = Shared::new();
    old_garbage(&mut m, shared);
    let first = due.begin(&mut m);
    Shared::until(&shared.searches);
    let all = [first, due.begin(&mut m)];
    let report = due.end(&mut m, 2);
    let why = "the heap has outgrown the last child process";
    assert_eq!(
        (report.child, report.no_child.as_deref(), report.abandoned),
        (None, Some(why), None)
    );
    assert_eq!((report.reason, report.collected), (CollectionReason::Growth, 1));
    assert!(due.ended.lock().unwrap()[0].abandoned.is_some());
    // As far as without a child, and once more as far.
    let most = all.iter().map(Vec::len).max().unwrap();
    assert!(most < 500, "{most} rings");
    while runs(shared.process.load(Ordering::SeqCst)) {
        std::thread::yield_now();
    }
}

#[test]
fn a_program_that_allocates_nothing_ends_its_collection() {
    let due = Due::new();
    let mut m = due.heap.attach();
    let dead = Arc::new(AtomicUsize::new(0));
    let all: Vec<_> = (0..60).map(|_| ring(&m, 200, &dead)).collect();
    m.collect_young();
    drop(all);
    let kept = due.begin(&mut m);
    let report = due.end_idle(&mut m, 1);
    assert_eq!((report.no_child, report.collected), (None, 12_000));
    assert!(report.child.unwrap().parts > 1);
    // So does one whose guard has deferred the rest.
    let all: Vec<_> = (0..60).map(|_| ring(&m, 200, &dead)).collect();
    m.collect_young();
    drop(all);
    let more = due.begin(&mut m);
    let guard = due.heap.defer_collections();
    for _ in 0..1_000 {
        m.safepoint();
    }
    drop(guard);
    assert_eq!(due.end_idle(&mut m, 2).collected, 12_000);
    drop((kept, more));
}

#[test]
fn a_child_that_fails_is_replaced_and_the_next_ones_are_fewer() {
    let due = Due::new();
    let mut m = due.heap.attach();
    let _killed = Strange::ring(&m, InChild::IsKilled);
    let mut all = Vec::new();
    for (collection, has_child) in [(1, true), (2, true), (3, false), (4, false), (5, true)] {
        drop(ring(&m, 100, &Arc::default()));
        all.push(due.begin(&mut m));
        let report = due.end(&mut m, collection);
        let expected = match has_child {
            true => "signal 9 has ended the child process",
            false => "the last child processes have failed",
        };
        assert_eq!(report.no_child.as_deref(), Some(expected), "of collection {collection}");
        assert_eq!((report.child, report.abandoned), (None, None));
    }
    assert_eq!(due.dies.load(Ordering::Relaxed), 0);
    // A new policy begins anew.
    due.heap.set_pacing(due.heap.pacing());
    all.push(due.begin(&mut m));
    assert!(due.end(&mut m, 6).no_child.is_some());
}

#[test]
fn a_deferral_defers_the_rest_of_a_collection() {
    let due = Due::new();
    let mut m = due.heap.attach();
    let dead = ring(&m, 100, &due.dies);
    m.collect_young();
    drop(dead);
    let kept = due.begin(&mut m);
    let before = due.ended.lock().unwrap().len();
    let guard = due.heap.defer_collections();
    for _ in 0..200 {
        std::thread::sleep(Duration::from_millis(1));
        drop(ring(&m, 100, &Arc::default()));
        m.safepoint();
    }
    assert_eq!(due.ended.lock().unwrap().len(), before);
    drop(guard);
    // With garbage that is made while the collection ends, perhaps.
    assert!(due.end(&mut m, before + 1).collected >= 100);
    assert_eq!(due.dies.load(Ordering::Relaxed), 100);
    drop(kept);
}

/// The process with this number runs.
fn runs(process: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    // Behind the name, which may contain anything. A process that has ended is there as well, until
    // its parent has waited for it.
    let state = stat.rsplit(") ").next().and_then(|rest| rest.chars().next());
    !matches!(state, None | Some('Z' | 'X'))
}

#[test]
fn the_end_of_the_heap_ends_the_child() {
    let due = Due::new();
    let mut m = due.heap.attach();
    let shared = Shared::new();
    let waits = Strange::ring(&m, InChild::Waits(shared));
    let kept = due.begin(&mut m);
    Shared::until(&shared.searches);
    let child = shared.process.load(Ordering::SeqCst);
    assert!(runs(child));
    drop((kept, waits));
    drop(m);
    drop(due);
    while runs(child) {
        std::thread::yield_now();
    }
}

#[test]
fn a_child_outlives_the_thread_that_has_cloned_it() {
    let due = Due::new();
    let mut m = due.heap.attach();
    let shared = Shared::new();
    old_garbage(&mut m, shared);
    let kept = std::thread::scope(|s| {
        let other = s.spawn(|| due.begin(&mut due.heap.attach()));
        while !other.is_finished() {
            m.safepoint();
        }
        other.join().unwrap()
    });
    Shared::until(&shared.searches);
    shared.goes_on.store(true, Ordering::SeqCst);
    // The thread that looked for the child's end at its safepoints has ended as well.
    let report = due.end_idle(&mut m, 1);
    assert_eq!((report.no_child, report.collected), (None, 1));
    drop(kept);
}

#[test]
fn a_fork_of_the_program_leaves_the_child_to_its_parent() {
    let due = Due::new();
    let mut m = due.heap.attach();
    let shared = Shared::new();
    old_garbage(&mut m, shared);
    let kept = due.begin(&mut m);
    Shared::until(&shared.searches);
    let fork = m.prepare_fork().expect("nothing forbids it");
    // SAFETY: the new process has this thread alone, and ends without a handler.
    let process = unsafe { libc::fork() };
    if process == 0 {
        fork.child();
        // What it has inherited is gone, and has taken no process with it. Otherwise this thread
        // would find no process of its own, and search in a stop, where the object waits for ever.
        // SAFETY: a signal ends this process.
        unsafe { libc::alarm(30) };
        for _ in 0..20 {
            std::thread::sleep(Duration::from_millis(1));
            drop(ring(&m, 100, &Arc::default()));
            m.safepoint();
        }
        let is_right = runs(shared.process.load(Ordering::SeqCst));
        // SAFETY: it ends the process.
        unsafe { libc::_exit(i32::from(!is_right)) };
    }
    fork.parent();
    let mut status = -1;
    // SAFETY: the system writes the status.
    assert_eq!(unsafe { libc::waitpid(process, &raw mut status, 0) }, process);
    assert_eq!(status, 0);
    shared.goes_on.store(true, Ordering::SeqCst);
    let report = due.end(&mut m, 1);
    assert_eq!((report.no_child, report.collected), (None, 1));
    drop(kept);
}

#[test]
fn a_panic_in_one_part_does_not_lose_the_others() {
    struct Throws(GcCell<Option<Gc<Throws>>>);
    impl Trace for Throws {
        fn traverse(this: &Self, tracer: &mut Tracer) {
            Trace::traverse(&this.0, tracer);
        }
        fn clear(this: &Self, m: &Mutator) {
            Trace::clear(&this.0, m);
            // Without the hook, whose lock a child of another test needs.
            std::panic::resume_unwind(Box::new("in clear"));
        }
    }
    let due = Due::new();
    let told = Arc::new(AtomicUsize::new(0));
    let counts = Arc::clone(&told);
    due.heap.on_unraisable(move |_| _ = counts.fetch_add(1, Ordering::SeqCst));
    let mut m = due.heap.attach();
    let dead = Arc::new(AtomicUsize::new(0));
    let throws = m.alloc(Throws(GcCell::default()));
    throws.0.set(&m, Some(throws.clone()));
    let all: Vec<_> = (0..60).map(|_| ring(&m, 200, &dead)).collect();
    m.collect_young();
    drop((throws, all));
    let kept = due.begin(&mut m);
    let report = due.end(&mut m, 1);
    assert_eq!((report.no_child, report.abandoned), (None, None));
    assert_eq!((report.collected, dead.load(Ordering::Relaxed)), (12_001, 12_000));
    assert_eq!(told.load(Ordering::SeqCst), 1);
    drop(kept);
}

#[test]
fn small_heaps_search_in_a_stop() {
    for (forked, has_child) in [
        (ForkedSearch::Never, false),
        (ForkedSearch::FromObjects(1_000_000), false),
        (ForkedSearch::FromObjects(2_000), true),
        (ForkedSearch::FromStop(Duration::from_secs(10)), false),
        (ForkedSearch::FromStop(Duration::from_nanos(1)), true),
    ] {
        let due = Due::new();
        due.heap.set_pacing(due.heap.pacing().with_forked(forked));
        let mut m = due.heap.attach();
        let kept = due.begin(&mut m);
        let report = due.end(&mut m, 1);
        assert_eq!((report.child.is_some(), report.no_child), (has_child, None), "{forked:?}");
        drop(kept);
    }
}

#[test]
fn threads_lose_nothing_and_keep_nothing_while_children_search() {
    const THREADS: usize = 3;
    const ROUNDS: usize = 1_500;
    let due = Due::new();
    // So that a child can search before the heap has outgrown it, unless the machine is busy.
    due.heap.set_pacing(due.heap.pacing().with_full_minimum(20_000));
    let born = AtomicUsize::new(0);
    std::thread::scope(|s| {
        for thread in 0..THREADS {
            let (due, born) = (&due, &born);
            s.spawn(move || {
                let mut m = due.heap.attach();
                let mut kept: Vec<(Gc<Node>, usize)> = Vec::new();
                let mut weak = Vec::new();
                for round in 0..ROUNDS {
                    let size = 1 + (round * 7 + thread) % 90;
                    let first = ring(&m, size, &due.dies);
                    born.fetch_add(size, Ordering::SeqCst);
                    weak.push((Gc::downgrade(&first, &m), size));
                    kept.push((first, size));
                    if kept.len() > 60 {
                        // Old garbage, of which some comes back.
                        kept.swap_remove(round * 31 % 60);
                        let (weak, size) = weak.swap_remove(round * 17 % weak.len());
                        if round % 16 == 0
                            && let Some(back) = weak.upgrade(&m)
                        {
                            kept.push((back, size));
                        }
                    }
                    m.safepoint();
                    // A ring that is alive is whole.
                    let (first, size) = &kept[round * 13 % kept.len()];
                    let mut at = first.clone();
                    for _ in 0..*size {
                        let next = at.edges.lock(&m).first().cloned();
                        at = next.expect("nothing alive was cleared");
                    }
                    assert!(std::ptr::eq(&*at, &**first), "the ring is closed");
                }
            });
        }
    });
    // The threads may be faster than a child.
    let is_fast = |why: &str| why.contains("outgrown") || why.contains("last child processes");
    let ended = std::mem::take(&mut *due.ended.lock().unwrap());
    assert!(ended.iter().all(|report| report.no_child.as_deref().is_none_or(is_fast)));
    due.heap.attach().collect();
    assert_eq!(due.dies.load(Ordering::SeqCst), born.load(Ordering::SeqCst));
    assert_eq!(due.heap.stats().live_objects, 0);
}
