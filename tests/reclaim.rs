//! The garbage of an automatic collection is reclaimed in batches, by the threads that made it.
//! None of it is lost if a thread stops polling, collects, forks or ends meanwhile
//! (`docs/adr/0017-reclaiming-in-batches.md`).

#![cfg(not(loom))]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::thread::ThreadId;

use standstill::{CollectionEvent, Finalizer, Gc, GcCell, Heap, Mutator, Pacing, Trace, Tracer};

/// More objects than one safepoint reclaims.
const MANY: usize = 50_000;
/// The number of objects that one safepoint may reclaim: the first batches of a collection, and
/// then one more.
const AT_ONCE: usize = 8 * 512 + 512;

/// Knows the thread that made it, and records the thread that destroys it.
#[derive(Trace)]
struct Homebody {
    me: GcCell<Option<Gc<Homebody>>>,
    #[trace(skip)]
    born_on: ThreadId,
    #[trace(skip)]
    deaths: Arc<Deaths>,
}

#[derive(Default)]
struct Deaths {
    born: AtomicUsize,
    at_home: AtomicUsize,
    elsewhere: AtomicUsize,
}

impl Deaths {
    fn all(&self) -> usize {
        self.at_home.load(SeqCst) + self.elsewhere.load(SeqCst)
    }
}

impl Drop for Homebody {
    fn drop(&mut self) {
        let at_home = std::thread::current().id() == self.born_on;
        if at_home { &self.deaths.at_home } else { &self.deaths.elsewhere }.fetch_add(1, SeqCst);
    }
}

/// Makes cycles of one and loses them.
fn litter(m: &Mutator, deaths: &Arc<Deaths>, objects: usize) {
    for _ in 0..objects {
        deaths.born.fetch_add(1, SeqCst);
        let born_on = std::thread::current().id();
        let object = m.alloc(Homebody { me: GcCell::new(None), born_on, deaths: deaths.clone() });
        object.me.set(m, Some(object.clone()));
    }
}

fn heap() -> Heap {
    Heap::builder().reserve(1 << 30).pacing(Pacing::default()).build().unwrap()
}

#[test]
fn a_large_automatic_collection_is_reclaimed_over_many_safepoints() {
    let (heap, deaths) = (heap(), Arc::<Deaths>::default());
    let told = Arc::new(std::sync::Mutex::new(Vec::new()));
    heap.on_collection({
        let told = told.clone();
        move |event| {
            if let CollectionEvent::Stop(report) = event {
                told.lock().unwrap().push((report.collected, report.uncollectable));
            }
        }
    });
    let mut m = heap.attach();
    litter(&m, &deaths, MANY);
    let mut pieces = 0;
    while told.lock().unwrap().is_empty() {
        let before = deaths.all();
        m.safepoint();
        let died = deaths.all() - before;
        assert!(died <= AT_ONCE, "{died} at one safepoint");
        pieces += usize::from(died != 0);
    }
    assert_eq!(*told.lock().unwrap(), [(MANY, 0)]);
    assert!(pieces > MANY / AT_ONCE, "in {pieces} pieces");
    assert_eq!(deaths.all(), MANY);
    assert_eq!((heap.stats().collections, heap.stats().collected), (1, MANY));
    m.verify().unwrap();
}

#[test]
fn a_requested_collection_finishes_the_previous_one() {
    for wait in [true, false] {
        let (heap, deaths) = (heap(), Arc::<Deaths>::default());
        let mut m = heap.attach();
        litter(&m, &deaths, MANY);
        m.safepoint();
        assert!((1..MANY).contains(&deaths.all()), "some are buried, others not: {}", deaths.all());
        let report = m.try_collect(standstill::Collect::full().wait(wait)).unwrap();
        assert_eq!((deaths.all(), report.collected), (MANY, 0));
    }
}

/// The threads allocate by turns. A thread that is ahead of the others collects, and then reclaims
/// the garbage of threads that the system does not run.
#[test]
fn garbage_dies_on_the_thread_that_made_it() {
    let (heap, deaths) = (heap(), Arc::<Deaths>::default());
    let turns = [const { AtomicUsize::new(0) }; 2];
    std::thread::scope(|s| {
        for me in 0..2 {
            let (heap, deaths, turns) = (&heap, &deaths, &turns);
            s.spawn(move || {
                let mut m = heap.attach();
                for turn in 1..=1000 {
                    litter(&m, deaths, 64);
                    m.safepoint();
                    turns[me].store(turn, SeqCst);
                    while turns[1 - me].load(SeqCst) < turn {
                        m.safepoint();
                        std::thread::yield_now();
                    }
                }
            });
        }
    });
    let [at_home, elsewhere] = [&deaths.at_home, &deaths.elsewhere].map(|n| n.load(SeqCst));
    assert!(heap.stats().collections > 20, "{} collections", heap.stats().collections);
    assert!(at_home > 10 * elsewhere, "{at_home} at home, {elsewhere} elsewhere");
    heap.attach().collect();
    assert_eq!(deaths.all(), deaths.born.load(SeqCst));
}

#[test]
fn garbage_of_an_ended_thread_is_reclaimed_by_other_threads() {
    let (heap, deaths) = (heap(), Arc::<Deaths>::default());
    std::thread::scope(|s| {
        s.spawn(|| {
            let mut m = heap.attach();
            litter(&m, &deaths, MANY);
            m.safepoint();
            assert!(deaths.all() < MANY);
        });
    });
    let mut m = heap.attach();
    assert!(deaths.all() < MANY, "no thread has reclaimed all of them");
    m.collect();
    assert_eq!(deaths.all(), MANY);
}

#[test]
fn a_heap_that_ends_reclaims_the_remaining_garbage() {
    let (heap, deaths) = (heap(), Arc::<Deaths>::default());
    let mut m = heap.attach();
    litter(&m, &deaths, MANY);
    m.safepoint();
    assert!(deaths.all() < MANY);
    drop(m);
    drop(heap);
    assert_eq!(deaths.all(), MANY);
}

#[test]
fn a_fork_waits_for_no_garbage_that_no_thread_reclaims() {
    let (heap, deaths) = (heap(), Arc::<Deaths>::default());
    let mut m = heap.attach();
    litter(&m, &deaths, MANY);
    m.safepoint();
    assert!(deaths.all() < MANY);
    let reclaimed = deaths.all();
    m.prepare_fork().unwrap().parent();
    assert_eq!(deaths.all(), reclaimed);
    m.collect();
    assert_eq!(deaths.all(), MANY);
}

#[test]
fn unreclaimed_garbage_is_hidden_and_survives_a_panicking_destructor() {
    struct Loud(Arc<Deaths>);
    impl Drop for Loud {
        fn drop(&mut self) {
            if self.0.elsewhere.fetch_add(1, SeqCst).is_multiple_of(1000) {
                panic!("a destructor that panics");
            }
        }
    }
    #[derive(Trace)]
    struct Node {
        me: GcCell<Option<Gc<Node>>>,
        #[trace(skip)]
        _loud: Loud,
    }
    let (heap, deaths) = (heap(), Arc::<Deaths>::default());
    let reported = Arc::new(AtomicUsize::new(0));
    heap.on_unraisable({
        let reported = reported.clone();
        move |_| {
            reported.fetch_add(1, SeqCst);
        }
    });
    let mut m = heap.attach();
    for _ in 0..MANY {
        let node = m.alloc(Node { me: GcCell::new(None), _loud: Loud(deaths.clone()) });
        node.me.set(&m, Some(node.clone()));
    }
    m.safepoint();
    assert!(deaths.all() < MANY);
    assert_eq!(m.objects().len(), 0, "all are garbage");
    m.verify().unwrap();
    while deaths.all() < MANY {
        m.safepoint();
    }
    assert_eq!(reported.load(SeqCst), MANY / 1000);
    m.verify().unwrap();
}

#[test]
fn the_garbage_of_a_nearly_full_heap_is_reclaimed_at_once() {
    // As much as one collection finds is most of the heap.
    let pacing = Pacing::default().with_young_objects(90_000).with_young_bytes(1 << 30);
    let heap = Heap::builder().reserve(1 << 30).limit(8 << 20).pacing(pacing).build().unwrap();
    let deaths = Arc::<Deaths>::default();
    let mut m = heap.attach();
    for _ in 0..50 {
        // Panics when the heap is full.
        litter(&m, &deaths, 20_000);
        m.safepoint();
    }
    assert!(heap.stats().collections > 5);
}

/// Its `clear` does nothing: a cycle through it stays.
struct Fixed {
    me: std::sync::OnceLock<Gc<Fixed>>,
}

impl Trace for Fixed {
    fn traverse(this: &Self, tracer: &mut Tracer) {
        this.me.get().into_iter().for_each(|me| Trace::traverse(me, tracer));
    }
}

/// The report of a collection that was reclaimed in batches counts over all of them: the destroyed,
/// the surviving, and the uncollectable objects.
#[test]
fn a_report_has_the_figures_of_all_batches() {
    use standstill::dynamic::{self, RawObject, TypeSpec};
    unsafe extern "C" fn legacy(_: *mut RawObject) {}
    const STUCK: usize = MANY / 10;
    const LEGACY: usize = 7;
    let (heap, deaths) = (heap(), Arc::<Deaths>::default());
    let figures = Arc::new(std::sync::Mutex::new(Vec::new()));
    heap.on_collection({
        let figures = figures.clone();
        move |event| {
            if let CollectionEvent::Stop(report) = event {
                figures.lock().unwrap().push((report.collected, report.uncollectable));
            }
        }
    });
    let mut m = heap.attach();
    heap.services().expect_legacy_finalizers(true);
    let mut spec = TypeSpec::with_attributes("tests.Legacy");
    spec.slots.del = Some(legacy);
    // SAFETY: the handlers are for attributes, which the type has.
    let ty = unsafe { dynamic::ready_heap(&m, &spec, |_, _| {}) }.unwrap();
    for _ in 0..LEGACY {
        let object = ty.instantiate(&m).unwrap();
        object.set_attribute(&m, "me", Some(object.clone())).unwrap();
    }
    for _ in 0..STUCK {
        litter(&m, &deaths, MANY / STUCK);
        let fixed = m.alloc(Fixed { me: std::sync::OnceLock::new() });
        assert!(fixed.me.set(fixed.clone()).is_ok());
    }
    while figures.lock().unwrap().is_empty() {
        m.safepoint();
    }
    assert_eq!(*figures.lock().unwrap(), [(MANY, STUCK + LEGACY)]);
    assert_eq!((deaths.all(), heap.stats().collected), (MANY, MANY));
    m.verify().unwrap();
}

/// Refers to itself, so only a collection destroys it. `older` is not emptied by a clear handler:
/// mostly it is a node of another thread, which dies when the destructor of this one drops it.
struct Linked<const FINALIZER: bool> {
    me: GcCell<Option<Gc<Self>>>,
    older: Option<Gc<Self>>,
    deaths: Arc<AtomicUsize>,
}

impl<const FINALIZER: bool> Trace for Linked<FINALIZER> {
    const FINALIZER: Option<Finalizer<Self>> =
        if FINALIZER { Some(Finalizer::new(|_, _| {})) } else { None };
    fn traverse(this: &Self, tracer: &mut Tracer) {
        Trace::traverse(&this.me, tracer);
        Trace::traverse(&this.older, tracer);
    }
    fn clear(this: &Self, m: &Mutator) {
        Trace::clear(&this.me, m);
    }
}

impl<const FINALIZER: bool> Drop for Linked<FINALIZER> {
    fn drop(&mut self) {
        self.deaths.fetch_add(1, SeqCst);
    }
}

fn figures_agree_with_destructors<const FINALIZER: bool>(threads: usize) {
    const NODES: usize = 60_000;
    let pacing = Pacing::default().with_young_objects(2_000);
    let heap = Heap::builder().reserve(1 << 30).pacing(pacing).build().unwrap();
    let sums = Arc::new([const { AtomicUsize::new(0) }; 3]);
    heap.on_collection({
        let sums = sums.clone();
        move |event| {
            if let CollectionEvent::Stop(report) = event {
                let figures = [report.unreachable, report.collected, report.uncollectable];
                sums.iter().zip(figures).for_each(|(sum, n)| _ = sum.fetch_add(n, SeqCst));
            }
        }
    });
    let deaths = Arc::new(AtomicUsize::new(0));
    let newest = std::sync::Mutex::new(None::<Gc<Linked<FINALIZER>>>);
    std::thread::scope(|s| {
        for _ in 0..threads {
            s.spawn(|| {
                let mut m = heap.attach();
                for number in 0..NODES / threads {
                    let older =
                        if number % 8 == 0 { m.lock(&newest).unwrap().take() } else { None };
                    let node =
                        m.alloc(Linked { me: GcCell::new(None), older, deaths: deaths.clone() });
                    node.me.set(&m, Some(node.clone()));
                    if number % 8 == 1 {
                        *m.lock(&newest).unwrap() = Some(node);
                    }
                    m.safepoint();
                }
            });
        }
    });
    drop(newest);
    assert_ne!(heap.stats().collections, 0, "the heap collects by itself");
    let mut m = heap.attach();
    m.collect();
    assert_eq!(deaths.load(SeqCst), NODES, "all are garbage");
    assert_eq!(sums.each_ref().map(|sum| sum.load(SeqCst)), [NODES, NODES, 0], "{threads} threads");
    assert_eq!(heap.stats().collected, NODES);
    m.verify().unwrap();
}

#[test]
fn reports_count_the_collected_objects_that_destructors_count() {
    for threads in [1, 2, 4] {
        figures_agree_with_destructors::<false>(threads);
        figures_agree_with_destructors::<true>(threads);
    }
}
