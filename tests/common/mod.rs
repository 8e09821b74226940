//! Shared by the integration tests: witnesses that count births and deaths, objects with chosen
//! behaviour, and the heaps on which every scenario runs.

#![allow(dead_code)] // each test binary uses its own part of this

pub(crate) mod child;

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use standstill::{
    Finalizer, Gc, GcCell, GcWeak, Heap, HeapBuilder, Mutator, Trace, Tracer, WeakRef,
};

// ------------------------------------------------------------------------------------- witnesses

/// The events of an object, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// Its finalizer was called.
    Finalized(usize),
    /// Its `clear` was called.
    Cleared(usize),
    /// Its destructor ran.
    Died(usize),
}

/// Counts the births and deaths of one test's objects.
#[derive(Debug, Default)]
pub(crate) struct Census {
    born: AtomicUsize,
    dead: AtomicUsize,
    finalized: AtomicUsize,
    log: Option<Mutex<Vec<Event>>>,
}

impl Census {
    /// Counts only.
    pub(crate) fn new() -> Arc<Self> {
        Arc::default()
    }

    /// Counts, and remembers every event.
    pub(crate) fn with_log() -> Arc<Self> {
        Arc::new(Self { log: Some(Mutex::default()), ..Self::default() })
    }

    pub(crate) fn born(&self) -> usize {
        self.born.load(SeqCst)
    }

    pub(crate) fn dead(&self) -> usize {
        self.dead.load(SeqCst)
    }

    /// How many finalizers were called.
    pub(crate) fn finalized(&self) -> usize {
        self.finalized.load(SeqCst)
    }

    pub(crate) fn alive(&self) -> usize {
        // Deaths first: a birth and a death in between can then not make the difference negative.
        let dead = self.dead();
        self.born() - dead
    }

    pub(crate) fn note(&self, event: Event) {
        if let Some(log) = &self.log {
            log.lock().unwrap().push(event);
        }
    }

    pub(crate) fn events(&self) -> Vec<Event> {
        self.log.as_ref().expect("a census with a log").lock().unwrap().clone()
    }

    /// The names of the objects with called finalizers, once for each call, sorted.
    pub(crate) fn finalized_names(&self) -> Vec<usize> {
        self.names(|event| if let Event::Finalized(name) = event { Some(name) } else { None })
    }

    /// The names of the objects with called destructors, once for each call, sorted.
    pub(crate) fn dead_names(&self) -> Vec<usize> {
        self.names(|event| if let Event::Died(name) = event { Some(name) } else { None })
    }

    fn names(&self, pick: impl Fn(Event) -> Option<usize>) -> Vec<usize> {
        let mut names: Vec<_> = self.events().into_iter().filter_map(pick).collect();
        names.sort_unstable();
        names
    }

    /// No `clear` and no destructor ran before the last finalizer.
    pub(crate) fn assert_finalizers_came_first(&self) {
        let events = self.events();
        let last = events.iter().rposition(|event| matches!(event, Event::Finalized(_)));
        let first =
            events.iter().position(|event| matches!(event, Event::Cleared(_) | Event::Died(_)));
        let last = last.expect("a finalizer ran");
        if let Some(first) = first {
            assert!(last < first, "cleared or destroyed before the last finalizer: {events:?}");
        }
    }
}

const LIVING: u64 = 0x1199_A11F_E0B1_EC75;
const BURIED: u64 = 0xDEAD_0B1E_C700_0000;

/// Sits in an object and aborts the process when its destructor runs a second time or on memory
/// that never was a living witness.
#[derive(Debug)]
pub(crate) struct Witness {
    census: Arc<Census>,
    name: usize,
    state: AtomicU64,
}

impl Witness {
    pub(crate) fn new(census: &Arc<Census>, name: usize) -> Self {
        census.born.fetch_add(1, SeqCst);
        Self { census: census.clone(), name, state: AtomicU64::new(LIVING) }
    }

    pub(crate) fn name(&self) -> usize {
        self.name
    }

    pub(crate) fn census(&self) -> &Arc<Census> {
        &self.census
    }

    /// Aborts unless the object it sits in is alive.
    pub(crate) fn check(&self) {
        let state = self.state.load(SeqCst);
        if state != LIVING {
            die(&format!("an object that is not alive was reached: state {state:#x}"));
        }
    }
}

impl Drop for Witness {
    fn drop(&mut self) {
        let state = self.state.swap(BURIED, SeqCst);
        if state != LIVING {
            die(&format!("an object was destroyed twice, or never was one: state {state:#x}"));
        }
        self.census.note(Event::Died(self.name));
        self.census.dead.fetch_add(1, SeqCst);
    }
}

/// A panic could be swallowed by the code under test; this cannot.
pub(crate) fn die(what: &str) -> ! {
    // Not `eprintln!`, which the test harness captures and an abort would lose.
    use std::io::Write;
    let _ = writeln!(
        std::io::stderr(),
        "\nFATAL: {what}\n{}",
        std::backtrace::Backtrace::force_capture()
    );
    std::process::abort()
}

// --------------------------------------------------------------------------------------- objects

/// The action of an object's finalizer.
pub(crate) type Action<const FINAL: bool> = Arc<dyn Fn(&Gc<Thing<FINAL>>, &Mutator) + Send + Sync>;

/// An object with any number of references to others of its kind.
pub(crate) struct Thing<const FINAL: bool> {
    pub(crate) edges: GcCell<Vec<Gc<Thing<FINAL>>>>,
    action: Option<Action<FINAL>>,
    pub(crate) witness: Witness,
}

/// A [`Thing`] without a finalizer.
pub(crate) type Node = Thing<false>;

/// A [`Thing`] with a finalizer, which counts itself and does the chosen action.
pub(crate) type Fin = Thing<true>;

impl<const FINAL: bool> Thing<FINAL> {
    pub(crate) fn value(census: &Arc<Census>, name: usize) -> Self {
        Self { edges: GcCell::new(Vec::new()), action: None, witness: Witness::new(census, name) }
    }

    pub(crate) fn with_action(
        self,
        action: impl Fn(&Gc<Self>, &Mutator) + Send + Sync + 'static,
    ) -> Self {
        Self { action: Some(Arc::new(action)), ..self }
    }

    pub(crate) fn name(&self) -> usize {
        self.witness.check();
        self.witness.name
    }
}

impl<const FINAL: bool> Debug for Thing<FINAL> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Thing({})", self.witness.name)
    }
}

impl<const FINAL: bool> Trace for Thing<FINAL> {
    const FINALIZER: Option<Finalizer<Self>> = if FINAL {
        Some(Finalizer::new(|this, m| {
            let thing = this;
            thing.witness.check();
            thing.witness.census.finalized.fetch_add(1, SeqCst);
            thing.witness.census.note(Event::Finalized(thing.witness.name));
            if let Some(action) = thing.action.clone() {
                action(this, m);
            }
        }))
    } else {
        None
    };

    fn traverse(this: &Self, tracer: &mut Tracer) {
        this.witness.check();
        Trace::traverse(&this.edges, tracer);
    }

    fn clear(this: &Self, m: &Mutator) {
        this.witness.census.note(Event::Cleared(this.witness.name));
        Trace::clear(&this.edges, m);
    }
}

/// A new object without references.
pub(crate) fn thing<const FINAL: bool>(
    m: &Mutator,
    census: &Arc<Census>,
    name: usize,
) -> Gc<Thing<FINAL>> {
    m.alloc(Thing::value(census, name))
}

pub(crate) fn node(m: &Mutator, census: &Arc<Census>, name: usize) -> Gc<Node> {
    thing(m, census, name)
}

/// A new object that does `action` when it is finalized.
pub(crate) fn fin(
    m: &Mutator,
    census: &Arc<Census>,
    name: usize,
    action: impl Fn(&Gc<Fin>, &Mutator) + Send + Sync + 'static,
) -> Gc<Fin> {
    m.alloc(Fin::value(census, name).with_action(action))
}

/// Adds the reference `from -> to`.
pub(crate) fn link<const FINAL: bool>(m: &Mutator, from: &Gc<Thing<FINAL>>, to: &Gc<Thing<FINAL>>) {
    from.edges.lock(m).push(to.clone());
}

/// Removes the references from `from`. Objects that only they kept alive die when the result is
/// dropped.
pub(crate) fn cut<const FINAL: bool>(
    m: &Mutator,
    from: &Gc<Thing<FINAL>>,
) -> Vec<Gc<Thing<FINAL>>> {
    from.edges.take(m)
}

/// The names of the objects that `from` refers to, in order.
pub(crate) fn edge_names<const FINAL: bool>(m: &Mutator, from: &Gc<Thing<FINAL>>) -> Vec<usize> {
    from.edges.lock(m).iter().map(|to| to.name()).collect()
}

/// Links `members` into one ring.
pub(crate) fn tie<const FINAL: bool>(m: &Mutator, members: &[Gc<Thing<FINAL>>]) {
    for (i, member) in members.iter().enumerate() {
        link(m, member, &members[(i + 1) % members.len()]);
    }
}

/// `n` nodes, named from `first`, in one ring.
pub(crate) fn ring(m: &Mutator, census: &Arc<Census>, first: usize, n: usize) -> Vec<Gc<Node>> {
    let members: Vec<_> = (first..first + n).map(|name| node(m, census, name)).collect();
    tie(m, &members);
    members
}

/// An object with itself as its only reference, made and dropped.
pub(crate) fn garbage_loop(m: &Mutator, census: &Arc<Census>, name: usize) {
    drop(ring(m, census, name, 1));
}

/// Writes `Trace` as the derive would: visit and clear each field.
#[macro_export]
macro_rules! trace_fields {
    ($ty:ty { $($field:tt),* }) => {
        impl standstill::Trace for $ty {
            fn traverse(this: &Self, tracer: &mut standstill::Tracer) {
                let _ = &tracer;
                $(standstill::Trace::traverse(&this.$field, tracer);)*
            }

            fn clear(this: &Self, m: &standstill::Mutator) {
                let _ = m;
                $(standstill::Trace::clear(&this.$field, m);)*
            }
        }
    };
}

/// Handles kept outside the heap: an object that a finalizer puts here lives again.
#[derive(Debug)]
pub(crate) struct Shelf<T: 'static>(Mutex<Vec<Gc<T>>>);

impl<T: 'static> Shelf<T> {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self(Mutex::new(Vec::new())))
    }

    pub(crate) fn push(&self, gc: Gc<T>) {
        self.0.lock().unwrap().push(gc);
    }

    /// Empties the shelf. The lock is free again before anything can die of it.
    pub(crate) fn take(&self) -> Vec<Gc<T>> {
        std::mem::take(&mut *self.0.lock().unwrap())
    }

    pub(crate) fn len(&self) -> usize {
        self.0.lock().unwrap().len()
    }
}

/// A weak reference with a callback that records in [`Calls`].
pub(crate) type FinWeak = Gc<WeakRef<Fin, Arc<Calls>>>;

/// The calls of the callbacks of one group of weak references.
#[derive(Debug, Default)]
pub(crate) struct Calls {
    /// How often a callback ran.
    pub(crate) count: AtomicUsize,
    /// How often a callback found one of `weaks`, or its own target, alive.
    pub(crate) saw: AtomicUsize,
    /// Weak references that every callback tries.
    pub(crate) weaks: Mutex<Vec<GcWeak<Fin>>>,
    /// Weak references with callbacks that every callback tries.
    pub(crate) others: Mutex<Vec<FinWeak>>,
}

impl Calls {
    pub(crate) fn new() -> Arc<Self> {
        Arc::default()
    }

    pub(crate) fn count(&self) -> usize {
        self.count.load(SeqCst)
    }

    pub(crate) fn saw(&self) -> usize {
        self.saw.load(SeqCst)
    }
}

/// A weak reference to `gc` with a callback that counts itself in `calls`.
pub(crate) fn watched(m: &Mutator, gc: &Gc<Fin>, calls: &Arc<Calls>) -> FinWeak {
    fn callback(weak: &FinWeak, m: &Mutator) {
        let calls = weak.data();
        calls.count.fetch_add(1, SeqCst);
        let mut saw = usize::from(weak.upgrade(m).is_some());
        saw += calls.weaks.lock().unwrap().iter().filter(|weak| weak.upgrade(m).is_some()).count();
        saw += calls.others.lock().unwrap().iter().filter(|weak| weak.upgrade(m).is_some()).count();
        calls.saw.fetch_add(saw, SeqCst);
    }
    m.alloc_weak(gc, calls.clone(), callback)
}

// ----------------------------------------------------------------------------------------- heaps

/// One heap, and the observations of its scenario.
#[derive(Debug)]
pub(crate) struct Lab {
    /// Which variant of the heap this is.
    pub(crate) name: &'static str,
    pub(crate) heap: Heap,
    pub(crate) census: Arc<Census>,
    /// Every safepoint of this heap collects.
    pub(crate) stress: bool,
    reports: Arc<Mutex<Vec<String>>>,
    survivors: AtomicUsize,
}

impl Lab {
    fn new(name: &'static str, stress: bool, builder: HeapBuilder) -> Self {
        let heap = builder.reserve(1 << 30).stress(stress).build().expect("a heap");
        let reports = Arc::new(Mutex::new(Vec::new()));
        heap.on_unraisable({
            let reports = reports.clone();
            move |report| reports.lock().unwrap().push(format!("{report:?}"))
        });
        Self {
            name,
            heap,
            census: Census::with_log(),
            stress,
            reports,
            survivors: AtomicUsize::new(0),
        }
    }

    /// The reports to the heap's `on_unraisable` since the last call.
    pub(crate) fn reports(&self) -> Vec<String> {
        std::mem::take(&mut self.reports.lock().unwrap())
    }

    /// The scenario means to leave `n` objects that no collection can free.
    pub(crate) fn leaves_behind(&self, n: usize) {
        self.survivors.store(n, SeqCst);
    }
}

/// The heaps on which every scenario runs: one thread; several marking threads for a heap of any
/// size; both again with a full collection, checked before and after, at every safepoint.
pub(crate) fn labs() -> Vec<Lab> {
    let parallel = || Heap::builder().workers(3).serial_below(0);
    vec![
        Lab::new("plain", false, Heap::builder()),
        Lab::new("parallel", false, parallel()),
        Lab::new("stress", true, Heap::builder()),
        Lab::new("parallel stress", true, parallel()),
    ]
}

/// Runs a scenario on every heap. It attaches by itself; afterwards every object must be gone.
pub(crate) fn on_every_heap(scenario: impl Fn(&Lab)) {
    for lab in labs() {
        let _watch = deadline(lab.name);
        eprintln!("on the {} heap", lab.name);
        scenario(&lab);
        lab.heap.attach_scoped(|m| {
            m.collect();
            m.collect();
            m.verify().expect("a sound heap");
        });
        assert_eq!(
            lab.census.alive(),
            lab.survivors.load(SeqCst),
            "objects alive at the end of the scenario"
        );
        let reports = lab.reports();
        assert!(reports.is_empty(), "unexpected reports: {reports:#?}");
    }
}

/// [`on_every_heap`] for a scenario of one thread, which is attached already.
pub(crate) fn on_every_heap_attached(scenario: impl Fn(&Lab, &mut Mutator)) {
    on_every_heap(|lab| {
        let mut m = lab.heap.attach();
        scenario(lab, &mut m);
    });
}

// ----------------------------------------------------------------------------------- odds and ends

/// Ends the process, naming the test, if it is still running after five minutes, or 20 in a full
/// run: a deadlock in the code under test must fail, not hang. Nothing is measured with it.
#[must_use]
pub(crate) fn deadline(name: &str) -> impl Sized + use<> {
    struct Watch(Arc<(Mutex<bool>, Condvar)>);
    impl Drop for Watch {
        fn drop(&mut self) {
            *self.0.0.lock().unwrap() = true;
            self.0.1.notify_all();
        }
    }
    let name = format!("{} ({name})", std::thread::current().name().unwrap_or("?"));
    let done = Arc::new((Mutex::new(false), Condvar::new()));
    let watch = Watch(done.clone());
    let limit = Duration::from_secs(if is_full() { 1200 } else { 300 })
        .max(stress_time(Duration::ZERO) * 3);
    std::thread::spawn(move || {
        let (over, changed) = &*done;
        let (over, _) =
            changed.wait_timeout_while(over.lock().unwrap(), limit, |over| !*over).unwrap();
        if !*over {
            die(&format!("{name} hangs"));
        }
    });
    watch
}

/// Whether `ci/full.sh` runs the tests: then the longest ones run in full.
pub(crate) fn is_full() -> bool {
    std::env::var_os("STANDSTILL_FULL").is_some()
}

/// The duration of a stress test: the value of `STANDSTILL_STRESS_SECS`, or `default` in a full run
/// and a quarter of it otherwise.
pub(crate) fn stress_time(default: Duration) -> Duration {
    match std::env::var("STANDSTILL_STRESS_SECS") {
        Ok(secs) => Duration::from_secs(secs.parse().expect("STANDSTILL_STRESS_SECS is a number")),
        Err(_) => default / if is_full() { 1 } else { 4 },
    }
}

/// True until the stress time is over or a thread panicked.
#[derive(Debug)]
pub(crate) struct Clock {
    end: Instant,
    stop: AtomicBool,
}

impl Clock {
    pub(crate) fn start(default_secs: u64) -> Arc<Self> {
        let time = stress_time(Duration::from_secs(default_secs));
        Arc::new(Self { end: Instant::now() + time, stop: AtomicBool::new(false) })
    }

    pub(crate) fn running(&self) -> bool {
        !self.stop.load(SeqCst) && Instant::now() < self.end
    }

    pub(crate) fn stop(&self) {
        self.stop.store(true, SeqCst);
    }
}

/// A small generator of numbers that look random (xorshift64*). The same seed gives the same run.
#[derive(Clone, Debug)]
pub(crate) struct Rng(u64);

impl Rng {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 16
    }

    pub(crate) fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    pub(crate) fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }
}

/// Which of `n` vertices can be reached from `roots`.
pub(crate) fn reachable(n: usize, edges: &[(usize, usize)], roots: &[usize]) -> Vec<bool> {
    let mut out = vec![Vec::new(); n];
    for &(from, to) in edges {
        out[from].push(to);
    }
    let mut seen = vec![false; n];
    let mut stack = roots.to_vec();
    while let Some(v) = stack.pop() {
        if !std::mem::replace(&mut seen[v], true) {
            stack.extend(&out[v]);
        }
    }
    seen
}

/// Runs `f` on a thread with a stack of `bytes`.
pub(crate) fn on_stack<R: Send>(bytes: usize, f: impl FnOnce() -> R + Send) -> R {
    std::thread::scope(|scope| {
        let handle = std::thread::Builder::new()
            .name(format!("stack of {} KiB", bytes >> 10))
            .stack_size(bytes)
            .spawn_scoped(scope, f)
            .expect("a thread");
        match handle.join() {
            Ok(result) => result,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })
}

/// The message of a panic.
pub(crate) fn panic_text(f: impl FnOnce()) -> Option<String> {
    let panic = std::panic::catch_unwind(std::panic::AssertUnwindSafe(f)).err()?;
    Some(match panic.downcast::<String>() {
        Ok(text) => *text,
        Err(panic) => panic.downcast::<&str>().map_or_else(|_| "?".into(), |text| (*text).into()),
    })
}

/// The set of `items`, for comparing values without an order.
pub(crate) fn set<T: Ord>(items: impl IntoIterator<Item = T>) -> BTreeSet<T> {
    items.into_iter().collect()
}

// -------------------------------------------------------------------------------- objects for ever

/// Declares to LeakSanitizer that these objects (immortal ones, and those that they reach) live for
/// ever, each with the memory that it owns. By itself it does not see them: it searches for
/// pointers in statics, stacks and memory of `malloc`, and a heap's pages are none of these. All
/// other objects that are left in the heap are reported. Does nothing without LeakSanitizer
/// (`cfg(leaks_count)`, which `ci/san.sh` sets).
pub(crate) fn live_for_ever(heap: &Heap, addresses: impl IntoIterator<Item = usize>) {
    // A heap with immortal objects is never given back: here are its tables.
    static HEAPS: Mutex<Vec<Heap>> = Mutex::new(Vec::new());
    HEAPS.lock().unwrap().push(heap.clone());
    for address in addresses {
        root_region(address);
    }
}

#[cfg(leaks_count)]
fn root_region(address: usize) {
    use std::ffi::c_void;
    // The largest object of the tests, with the header before it.
    const BEFORE: usize = 64;
    const BYTES: usize = 512;
    // SAFETY: the sanitizer's own function. It only reads the mapped parts of the region.
    unsafe extern "C" {
        fn __lsan_register_root_region(begin: *const c_void, size: usize);
    }
    // SAFETY: the function only reads the mapped parts of the region.
    unsafe {
        __lsan_register_root_region(std::ptr::without_provenance(address - BEFORE), BEFORE + BYTES)
    };
}

#[cfg(not(leaks_count))]
fn root_region(_: usize) {}
