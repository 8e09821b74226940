//! Reports of the library change nothing: subscribers, hooks and standard error may fail in any
//! way, and their failures stay there. No code of theirs runs under a lock of the library.
#![cfg(not(loom))]

mod common;

use std::collections::BTreeSet;
use std::fmt::Write;
use std::fs::File;
use std::os::unix::process::ExitStatusExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::{ExitStatus, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use common::child::{Process, role};
use common::is_full;
use standstill::dynamic::{self, Class, Flags, TypeSpec};
use standstill::gc_module::DEBUG_STATS;
use standstill::safepoint::Coordinator;
use standstill::{Collect, Finalizer, Gc, GcCell, Heap, Mutator, Pacing, Trace, Tracer};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Record};
use tracing::{Event, Id, Metadata, Subscriber};

/// The part of a process that can start no thread.
const NO_POOL: &str = "no pool";

/// Runs `test` of this program in a process of its own, which plays `part`.
fn play(test: &str, part: &str, stderr: Stdio) -> ExitStatus {
    let process = Process::start(test, part, |command| {
        command.stderr(stderr);
        if part == NO_POOL {
            // More than there are addresses: no thread can be started.
            command.env("RUST_MIN_STACK", (1u64 << 47).to_string());
        }
    });
    process.ends()
}

/// A standard error that takes nothing: each write to it fails.
fn full() -> Stdio {
    File::options().write(true).open("/dev/full").expect("a full device").into()
}

fn builder() -> standstill::HeapBuilder {
    Heap::builder().reserve(1 << 30).workers(1).pacing(Pacing::manual())
}

fn silence() {
    std::panic::set_hook(Box::new(|_| {}));
}

// ---------------------------------------------------------------------------------- standard error

#[test]
fn a_detach_that_cannot_come_back_ends_the_process_though_standard_error_is_full() {
    if role().is_none() {
        let test = "a_detach_that_cannot_come_back_ends_the_process_though_standard_error_is_full";
        for stderr in [full(), Stdio::null()] {
            let status = play(test, "detach", stderr);
            assert_eq!(status.signal(), Some(libc::SIGABRT), "{status}");
        }
        return;
    }
    silence();
    let coordinator = Coordinator::new();
    let elsewhere = coordinator.register(());
    let heap = builder().build().expect("a heap");
    let mut m = heap.attach();
    let _ = catch_unwind(AssertUnwindSafe(|| {
        m.detach(|| elsewhere.attach().expect("nothing hinders it"))
    }));
    // The mutator is here, and the thread is not attached.
    std::process::exit(3);
}

/// Fails in its finalizer and in its destructor.
struct Failing(GcCell<Option<Gc<Failing>>>);

impl Trace for Failing {
    const FINALIZER: Option<Finalizer<Self>> = Some(Finalizer::new(|_, _| {
        panic!("a finalizer that fails");
    }));

    fn traverse(this: &Self, tracer: &mut Tracer) {
        Trace::traverse(&this.0, tracer);
    }

    fn clear(this: &Self, m: &Mutator) {
        Trace::clear(&this.0, m);
    }
}

impl Drop for Failing {
    fn drop(&mut self) {
        panic!("a destructor that fails");
    }
}

#[test]
fn a_line_that_cannot_be_written_is_lost_and_nothing_else() {
    if role().is_none() {
        let status =
            play("a_line_that_cannot_be_written_is_lost_and_nothing_else", "lines", full());
        assert_eq!(status.code(), Some(0), "{status}");
        return;
    }
    silence();
    // Each of these has a line for standard error: there is no hook.
    let heap = builder().slow_handler(Duration::from_nanos(1)).build().expect("a heap");
    heap.services().set_debug(DEBUG_STATS).expect("a flag");
    let mut m = heap.attach();
    let failing = m.alloc(Failing(GcCell::default()));
    failing.0.set(&m, Some(failing.clone()));
    drop(failing);
    let class = Class::new("tests.Slow").make(&m).expect("a class");
    let slow = class.instantiate(&m).expect("an instance");
    let report = m.collect();
    assert_eq!((report.collected, report.abandoned), (1, None));
    drop(slow);
    m.collect();
    assert_eq!(m.verify(), Ok(()));
}

/// A reference to another of its kind, and a destructor that is counted, and fails on request.
struct Chained {
    next: Option<Gc<Chained>>,
    fails: bool,
}

static DESTROYED: AtomicUsize = AtomicUsize::new(0);

impl Trace for Chained {
    fn traverse(this: &Self, tracer: &mut Tracer) {
        Trace::traverse(&this.next, tracer);
    }
}

impl Drop for Chained {
    fn drop(&mut self) {
        DESTROYED.fetch_add(1, SeqCst);
        assert!(!self.fails, "as asked");
    }
}

fn chain(m: &Mutator, len: usize, fails: bool) -> Gc<Chained> {
    let first = m.alloc(Chained { next: None, fails });
    (1..len).fold(first, |next, _| m.alloc(Chained { next: Some(next), fails }))
}

/// Uses the stack below the caller's frame for something else.
#[inline(never)]
fn scribble(depth: usize) -> usize {
    let words = std::hint::black_box([0x4141_4141_4141_4141usize; 512]);
    if depth == 0 { words[3] } else { scribble(depth - 1) ^ words[depth % 512] }
}

#[test]
fn a_closed_heap_destroys_all_dead_objects_even_if_its_reports_fail() {
    let Some(part) = role() else {
        let test = "a_closed_heap_destroys_all_dead_objects_even_if_its_reports_fail";
        for (part, stderr) in [("full", full()), ("subscriber", Stdio::null())] {
            let status = play(test, part, stderr);
            assert_eq!(status.code(), Some(0), "{part}: {status}");
        }
        return;
    };
    silence();
    if part == "subscriber" {
        tracing::subscriber::set_global_default(Target).expect("the first");
        *TARGET.lock().expect("whole") =
            Some(Case { what: "unraisable".into(), call: Call::Event, always: true });
    }
    let heap = builder().build().expect("a heap");
    let (failing, quiet) = heap.attach_scoped(|m| (chain(m, 3, true), chain(m, 3, false)));
    drop(heap);
    // One panic comes back to the drop; the other two are reported.
    assert!(catch_unwind(AssertUnwindSafe(|| drop(failing))).is_err());
    assert_eq!(DESTROYED.load(SeqCst), 3);
    std::hint::black_box(scribble(3));
    drop(quiet);
    assert_eq!(DESTROYED.load(SeqCst), 6);
}

// ------------------------------------------------------------------------------------------- hooks

/// Held while a test counts on no other test's subscriber.
static ALONE: Mutex<()> = Mutex::new(());

fn alone() -> std::sync::MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Calls its function when it is dropped.
struct OnDrop<F: Fn()>(F);

impl<F: Fn()> Drop for OnDrop<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

/// Sets a hook of one kind that holds something until it is dropped.
type SetHook = fn(&Heap, Box<dyn Send + Sync>);

fn uses(held: &(dyn Send + Sync)) {
    let _ = std::hint::black_box(held);
}

const HOOKS: [(&str, SetHook); 5] = [
    ("on_unraisable", |heap, held| heap.on_unraisable(move |_| uses(&*held))),
    ("on_misuse", |heap, held| heap.on_misuse(move |_| uses(&*held))),
    ("set_debug_sink", |heap, held| {
        heap.services().set_debug_sink(move |_| uses(&*held));
    }),
    ("set_audit_hook", |heap, held| {
        heap.services().set_audit_hook(move |_| uses(&*held));
    }),
    ("set_memory_source", |heap, held| {
        heap.services().set_memory_source(move || {
            uses(&*held);
            None
        });
    }),
];

#[test]
fn a_hook_that_is_replaced_may_set_hooks_as_it_is_dropped() {
    let _alone = alone();
    for (name, set) in HOOKS {
        let (tell, told) = mpsc::channel();
        std::thread::spawn(move || {
            let heap = builder().build().expect("a heap");
            let other = heap.clone();
            set(&heap, Box::new(OnDrop(move || set(&other, Box::new(())))));
            set(&heap, Box::new(()));
            tell.send(()).expect("the receiver waits");
        });
        assert!(told.recv_timeout(Duration::from_secs(20)).is_ok(), "`{name}` hangs");
    }
}

#[test]
fn a_hook_that_fails_as_it_is_dropped_fails_alone() {
    let _alone = alone();
    for (name, set) in HOOKS {
        let dropped = Arc::new(AtomicUsize::new(0));
        let held = || {
            let dropped = dropped.clone();
            Box::new(OnDrop(move || {
                dropped.fetch_add(1, SeqCst);
                panic!("as asked");
            }))
        };
        let result = catch_unwind(|| {
            let heap = builder().build().expect("a heap");
            set(&heap, held());
            set(&heap, held());
            assert_eq!(dropped.load(SeqCst), 1);
            // The other goes with the heap.
            drop(heap);
        });
        assert!(result.is_ok(), "`{name}`");
        assert_eq!(dropped.load(SeqCst), 2, "`{name}`");
    }
}

// ------------------------------------------------------------------------------------- subscribers

/// The calls of the library to a subscriber.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Call {
    NewSpan,
    Enter,
    Exit,
    Record,
    Close,
    Event,
}

#[derive(Clone, Debug)]
struct Case {
    /// The message of the event, the name of the span, or of a phase.
    what: String,
    call: Call,
    /// It fails each time, and not only once.
    always: bool,
}

static TARGET: Mutex<Option<Case>> = Mutex::new(None);
static FAILED: AtomicUsize = AtomicUsize::new(0);
/// The names of the spans, by their numbers.
static SPANS: Mutex<Vec<String>> = Mutex::new(Vec::new());
static SEEN: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());

/// A panic's payload that fails as it is dropped.
struct Payload;

impl Drop for Payload {
    fn drop(&mut self) {
        panic!("a payload that fails");
    }
}

/// A subscriber that fails where [`TARGET`] says.
struct Target;

impl Target {
    fn reach(&self, what: &str, call: Call) {
        let mut target = TARGET.lock().expect("whole");
        if target.as_ref().is_some_and(|case| case.what == what && case.call == call) {
            if !target.as_ref().is_some_and(|case| case.always) {
                *target = None;
            }
            drop(target);
            FAILED.fetch_add(1, SeqCst);
            std::panic::panic_any(Payload);
        }
    }

    fn reach_span(&self, id: &Id, call: Call) {
        let name = SPANS.lock().expect("whole")[id.into_u64() as usize - 1].clone();
        self.reach(&name, call);
    }
}

/// The text of one field.
struct Text(&'static str, String);

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        if field.name() == self.0 {
            let _ = write!(self.1, "{value:?}");
        }
    }
}

impl Subscriber for Target {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("standstill")
    }

    fn new_span(&self, span: &Attributes<'_>) -> Id {
        let mut name = Text("name", String::new());
        span.record(&mut name);
        let name = if name.1.is_empty() { span.metadata().name().to_owned() } else { name.1 };
        SEEN.lock().expect("whole").insert(name.clone());
        self.reach(&name, Call::NewSpan);
        let mut spans = SPANS.lock().expect("whole");
        spans.push(name);
        Id::from_u64(spans.len() as u64)
    }

    fn record(&self, id: &Id, _: &Record<'_>) {
        self.reach_span(id, Call::Record);
    }

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut message = Text("message", String::new());
        event.record(&mut message);
        SEEN.lock().expect("whole").insert(message.1.clone());
        self.reach(&message.1, Call::Event);
    }

    fn enter(&self, id: &Id) {
        self.reach_span(id, Call::Enter);
    }

    fn exit(&self, id: &Id) {
        self.reach_span(id, Call::Exit);
    }

    fn try_close(&self, id: Id) -> bool {
        self.reach_span(&id, Call::Close);
        true
    }
}

#[derive(Trace)]
#[trace(finalize = finalized)]
struct Node {
    next: GcCell<Option<Gc<Node>>>,
    fails: bool,
}

fn finalized(this: &Gc<Node>, _: &Mutator) {
    assert!(!this.fails, "as asked");
}

fn ring(m: &Mutator, fails: bool) -> Gc<Node> {
    let first = m.alloc(Node { next: GcCell::default(), fails });
    let second = m.alloc(Node { next: GcCell::new(Some(first.clone())), fails });
    first.next.set(m, Some(second));
    first
}

/// Each traversal of it takes a while.
struct Slow;

impl Trace for Slow {
    fn traverse(_: &Self, _: &mut Tracer) {
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Refers to itself. Its destructor takes a while.
#[derive(Trace)]
struct Lasts {
    own: GcCell<Option<Gc<Lasts>>>,
    #[trace(skip)]
    tell: mpsc::Sender<()>,
}

impl Drop for Lasts {
    fn drop(&mut self) {
        self.tell.send(()).expect("the receiver waits");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Weak callbacks that were called.
static CALLED: AtomicUsize = AtomicUsize::new(0);

/// Everything happens here that has a span or an event, but for those that need a process of their
/// own.
fn everything() {
    let heap = builder()
        .slow_stop(Duration::from_millis(1))
        .slow_collection(Duration::ZERO)
        .slow_handler(Duration::from_nanos(1))
        .build()
        .expect("a heap");
    heap.on_unraisable(|_| ());
    heap.on_misuse(|_| ());
    let mut m = heap.attach();
    // Rings that live, each held by one reference from outside, some by a named root.
    let mut live: Vec<_> = (0..100).map(|_| ring(&m, false)).collect();
    let named = heap.known_root(live[0].clone());
    for round in 0..100 {
        // One finalizer fails.
        drop(ring(&m, round == 50));
    }
    let target = ring(&m, false);
    let called = CALLED.load(SeqCst);
    let watch = m.alloc_weak(&target, 0u64, |_, _| {
        CALLED.fetch_add(1, SeqCst);
    });
    drop(target);
    let class = Class::new("tests.Slow").make(&m).expect("a class");
    live.push(ring(&m, false));
    let slow = class.instantiate(&m).expect("an instance");

    let report = m.collect();
    assert_eq!((report.unreachable, report.collected, report.abandoned), (202, 202, None));
    assert_eq!(CALLED.load(SeqCst), called + 1);
    for _ in 0..2 {
        assert_eq!(m.collect().unreachable, 0);
        assert_eq!(m.verify(), Ok(()));
    }
    let broken = live.iter().filter(|ring| ring.next.get(&m).is_none()).count();
    assert_eq!(broken, 0, "the fields of what lives are whole");

    // A thread that does not poll until this is reported.
    let watched = builder().late_poll(Duration::from_millis(1)).build().expect("a heap");
    let (tell, told) = mpsc::channel();
    watched.on_slow_stop(move |_| _ = tell.send(()));
    m.detach(|| watched.attach_scoped(|_| told.recv())).expect("it is reported");

    // A stop that waits.
    let (tell, told) = mpsc::channel();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut m = heap.attach();
            tell.send(()).expect("the receiver waits");
            std::thread::sleep(Duration::from_millis(20));
            m.safepoint();
        });
        m.detach(|| told.recv()).expect("attached");
        m.collect();
        m.detach(|| ());
    });

    // A stop that takes long.
    let looked_at = m.alloc(Slow);
    let (tell, told) = mpsc::channel();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut m = heap.attach();
            tell.send(()).expect("the receiver waits");
            m.detach(|| std::thread::sleep(Duration::from_millis(5)));
        });
        m.detach(|| told.recv()).expect("attached");
        m.collect();
        m.detach(|| ());
    });
    drop(looked_at);

    // A collection that takes long.
    let (tell, told) = mpsc::channel();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut m = heap.attach();
            let lasts = m.alloc(Lasts { own: GcCell::default(), tell });
            lasts.own.set(&m, Some(lasts.clone()));
            drop(lasts);
            m.collect();
        });
        m.detach(|| told.recv()).expect("a collection");
        m.collect();
        m.detach(|| ());
    });

    // A thread that waits for a cell.
    let cell = m.alloc(Node { next: GcCell::default(), fails: false });
    let (tell, told) = mpsc::channel();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let m = heap.attach();
            let locked = cell.next.lock(&m);
            tell.send(()).expect("the receiver waits");
            std::thread::sleep(Duration::from_millis(20));
            drop(locked);
        });
        m.detach(|| told.recv()).expect("locked");
        drop(cell.next.lock(&m));
        m.detach(|| ());
    });
    drop(cell);

    // A guard that defers collections for long.
    let guard = heap.defer_collections();
    m.adjust_external_bytes(1 << 30);
    m.safepoint();
    m.adjust_external_bytes(-(1 << 30));
    drop(guard);

    // A thread that leaks its mutator.
    let leaky = builder().build().expect("a heap");
    std::thread::scope(|scope| {
        scope.spawn(|| std::mem::forget(leaky.attach()));
    });
    m.detach(|| leaky.attach_scoped(|m| assert!(m.try_collect(Collect::full()).is_err())));

    // A type that leaves a handler out.
    let mut spec = TypeSpec::with_attributes("tests.Base");
    spec.flags = Flags::HAVE_GC.and(Flags::BASE_TYPE);
    let base = spec.clone();
    // SAFETY: handlers for attributes, of which objects of these types have none.
    let base = unsafe { dynamic::ready_static(&base, std::ptr::null_mut()) }.expect("a base");
    spec.name = "tests.Child".into();
    spec.bases = vec![dynamic::Type::from_static(base)];
    spec.slots.clear = None;
    // SAFETY: handlers for attributes, of which objects of these types have none.
    unsafe { dynamic::ready_static(&spec, std::ptr::null_mut()) }.expect("a child");

    drop((named, live, watch, slow, class));
    m.collect();
    assert_eq!(heap.stats().live_objects, 0);
    drop(m);

    // A heap that is being built.
    let pacing = Pacing::default().with_young_objects(200).with_full_minimum(2_000);
    let heap = Heap::builder().reserve(1 << 30).workers(1).pacing(pacing).build().expect("a heap");
    let mut m = heap.attach();
    let mut kept = Vec::new();
    for _ in 0..8_000 {
        kept.push(m.alloc(Node { next: GcCell::default(), fails: false }));
        m.safepoint();
    }
    assert_eq!(m.verify(), Ok(()));
    drop(kept);
    m.collect();
    assert_eq!(heap.stats().live_objects, 0);
}

/// The names in the first column of a table of `docs/tracing.md`, or in the second.
fn documented(section: &str, column: usize) -> Vec<String> {
    let page = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/tracing.md"))
        .expect("a page");
    let (_, rest) = page.split_once(section).expect("a section");
    let rows = rest.lines().skip_while(|line| !line.starts_with("|---")).skip(1);
    let cells =
        rows.take_while(|line| line.starts_with('|')).map(|line| line.split('|').nth(column + 1));
    cells.map(|cell| cell.expect("a column").trim().trim_matches('`').to_owned()).collect()
}

/// How often [`everything`] runs until it has all spans and events: on a busy machine a wait can be
/// too short for a report.
const TRIES: usize = 100;

/// The events that [`everything`] leaves out.
const NOT_HERE: [&str; 4] = [
    "the marking pool cannot start; collections are serial",
    "no child process",
    "snapshot",
    "no snapshot",
];

#[test]
fn a_subscriber_that_fails_anywhere_changes_nothing() {
    if role().is_none() {
        let status = play(
            "a_subscriber_that_fails_anywhere_changes_nothing",
            "subscriber",
            Stdio::inherit(),
        );
        assert_eq!(status.code(), Some(0), "{status}");
        return;
    }
    std::panic::set_hook(Box::new(|info| {
        let message = info.payload_as_str().unwrap_or_default();
        if !info.payload().is::<Payload>()
            && message != "a payload that fails"
            && message != "as asked"
        {
            println!("{info}");
        }
    }));
    tracing::subscriber::set_global_default(Target).expect("the first");
    let spans: Vec<_> = ["collection", "promotion", "thread stopped"].map(str::to_owned).into();
    let phases = documented("| `name` | world |", 0);
    let mut events = documented("## Events", 1);
    let all = events.len();
    events.retain(|event| !NOT_HERE.contains(&&event[..]));
    assert_eq!(events.len(), all - NOT_HERE.len(), "{NOT_HERE:?} are documented");
    assert_eq!((phases.len(), events.len() > 8), (11, true), "{phases:?} {events:?}");

    let expected: BTreeSet<_> = spans.iter().chain(&phases).chain(&events).cloned().collect();
    for _ in 0..TRIES {
        everything();
        if *SEEN.lock().expect("whole") == expected {
            break;
        }
    }
    assert_eq!(*SEEN.lock().expect("whole"), expected, "what is documented is what there is");

    let of_span = [Call::NewSpan, Call::Enter, Call::Exit, Call::Close];
    let mut cases = Vec::new();
    for what in spans.iter().chain(&phases) {
        cases.extend(of_span.map(|call| (what.clone(), call)));
    }
    cases.push(("collection".into(), Call::Record));
    cases.extend(events.into_iter().map(|what| (what, Call::Event)));
    for (at, (what, call)) in cases.into_iter().enumerate() {
        for always in [false, true] {
            // Each case in one of two ways unless the run is a full one.
            if !is_full() && always != at.is_multiple_of(2) {
                continue;
            }
            let case = Case { what: what.clone(), call, always };
            FAILED.store(0, SeqCst);
            *TARGET.lock().expect("whole") = Some(case.clone());
            let result = catch_unwind(|| {
                for _ in 0..TRIES {
                    everything();
                    if FAILED.load(SeqCst) != 0 {
                        break;
                    }
                }
            });
            if let Err(payload) = result {
                let text = payload.downcast_ref::<String>().cloned();
                let text = text.or_else(|| payload.downcast_ref::<&str>().map(|&text| text.into()));
                println!(
                    "{case:?}: {}",
                    text.unwrap_or_else(|| "the subscriber's panic came through".into())
                );
                std::process::exit(1);
            }
            *TARGET.lock().expect("whole") = None;
            assert_ne!(FAILED.load(SeqCst), 0, "{case:?} came to pass");
        }
    }
}

#[test]
fn a_subscriber_that_fails_where_no_pool_can_start_changes_nothing() {
    if role().is_none() {
        let test = "a_subscriber_that_fails_where_no_pool_can_start_changes_nothing";
        let status = play(test, NO_POOL, Stdio::inherit());
        assert_eq!(status.code(), Some(0), "{status}");
        return;
    }
    silence();
    tracing::subscriber::set_global_default(Target).expect("the first");
    *TARGET.lock().expect("whole") =
        Some(Case { what: NOT_HERE[0].into(), call: Call::Event, always: true });
    let heap = builder().workers(4).serial_below(0).build().expect("a heap");
    let mut m = heap.attach();
    for _ in 0..3 {
        drop(ring(&m, false));
        let report = m.collect();
        assert_eq!((report.collected, report.abandoned), (2, None));
        assert_eq!(FAILED.load(SeqCst), 1, "told once");
        assert_eq!(m.verify(), Ok(()));
    }
}

/// A heap that ends on a thread that cannot attach to it gets no last collection. Its hook
/// receives, once, the number of remaining objects. If no remaining object could be in a cycle,
/// there is no report.
#[test]
fn a_heap_that_ends_without_a_last_collection_reports_the_remaining_objects() {
    #[derive(Trace)]
    struct Node(GcCell<Option<Gc<Node>>>);

    /// Drops its handles in a traversal.
    struct Ends(Mutex<Option<Heap>>);
    impl Trace for Ends {
        fn traverse(this: &Self, _: &mut Tracer) {
            drop(this.0.lock().unwrap().take());
        }
    }

    fn ending(garbage: usize, heard: &Arc<Mutex<Vec<String>>>) -> Heap {
        let heap = Heap::builder()
            .name("ending")
            .reserve(1 << 30)
            .pacing(Pacing::manual())
            .build()
            .unwrap();
        let heard = Arc::clone(heard);
        heap.on_unraisable(move |failure| heard.lock().unwrap().push(failure.to_string()));
        let inner = heap.clone();
        std::thread::spawn(move || {
            let m = inner.attach();
            for _ in 0..garbage {
                let node = m.alloc(Node(GcCell::new(None)));
                node.0.set(&m, Some(node.clone()));
            }
            drop(m.alloc(7));
        })
        .join()
        .unwrap();
        heap
    }

    let text = |why: &str| {
        vec![format!(
            "ignored failure in Shutdown: heap 'ending' ended without a last collection, because the thread that dropped \
             its last handle {why}; 3 objects are left, and cycles of them are never freed"
        )]
    };
    let heard = Arc::default();
    let take = |heard: &Arc<Mutex<Vec<String>>>| std::mem::take(&mut *heard.lock().unwrap());
    let other = Heap::builder().reserve(1 << 30).pacing(Pacing::manual()).build().unwrap();
    let mut m = other.attach();

    drop(ending(3, &heard));
    assert_eq!(take(&heard), text("is attached to another heap"));
    drop(ending(0, &heard));
    assert!(take(&heard).is_empty());
    // One that is detached can attach elsewhere.
    m.detach(|| drop(ending(3, &heard)));
    assert!(take(&heard).is_empty());

    let holder = m.alloc(Ends(Mutex::new(Some(ending(3, &heard)))));
    m.collect();
    drop(holder);
    assert_eq!(take(&heard), text("is in a traversal"));
}
