//! Nothing hangs without a word: threads that hold up a stop, leaked mutators and cells that wait
//! for one another are reported, to a hook, to `tracing`, or on standard error.
//!
//! A thread that hangs for ever does so in a child process, which is killed once it has printed
//! why.

#![cfg(not(loom))]

mod common;

use std::cell::RefCell;
use std::io::{BufRead, BufReader};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::Stdio;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Barrier, Mutex, mpsc};
use std::time::Duration;

use common::child::{Process, is_alone, role};
use common::{deadline, panic_text};
use standstill::safepoint::{SlowStop, SlowStopKind, StopPurpose};
use standstill::{
    Collect, During, Finalizer, Gc, GcCell, Heap, HeapBuilder, Mutator, Pacing, SlowLock, Trace,
    Tracer,
};

/// This program in a process of its own, and the lines of its standard error. Killed when this is
/// dropped.
struct Other {
    process: Process,
    lines: mpsc::Receiver<String>,
}

impl Other {
    fn new(test: &str, role: &str) -> Self {
        let mut process = Process::start(test, role, |command| {
            command.stderr(Stdio::piped());
        });
        let errors = BufReader::new(process.stderr());
        let (sender, lines) = mpsc::channel();
        // Ends with the child's standard error.
        std::thread::spawn(move || {
            errors.lines().map_while(Result::ok).try_for_each(|line| sender.send(line))
        });
        Self { process, lines }
    }

    /// Waits for a line on standard error that has all of these words.
    fn says(&self, words: &[&str]) -> String {
        let mut others = Vec::new();
        loop {
            match self.lines.recv_timeout(self.process.left()) {
                Ok(line) if words.iter().all(|word| line.contains(word)) => return line,
                Ok(line) => others.push(line),
                Err(why) => panic!("the child has not said {words:?} ({why}), only {others:#?}"),
            }
        }
    }

    /// Waits for the end of the child, which succeeds, and returns the library's lines on standard
    /// error.
    fn ends(self) -> Vec<String> {
        let mut said = Vec::new();
        loop {
            match self.lines.recv_timeout(self.process.left()) {
                Ok(line) => said.push(line),
                Err(mpsc::RecvTimeoutError::Disconnected) => break,
                Err(mpsc::RecvTimeoutError::Timeout) => {
                    panic!("the child hangs, and says only {said:#?}")
                }
            }
        }
        let status = self.process.ends();
        assert!(status.success(), "{status}: {said:#?}");
        said.retain(|line| line.starts_with("standstill:"));
        said
    }

    /// The system's name of the thread with this number in the child.
    #[cfg(target_os = "linux")]
    fn name_of(&self, os_thread: &str) -> String {
        let file = format!("/proc/{}/task/{os_thread}/comm", self.process.id());
        std::fs::read_to_string(file).expect("a thread of the child").trim_end().to_owned()
    }
}

fn builder() -> HeapBuilder {
    let builder =
        Heap::builder().name("silent").reserve(1 << 30).workers(1).pacing(Pacing::manual());
    builder.slow_stop(Duration::from_millis(20))
}

fn named<R: Send + 'static>(
    name: &str,
    f: impl FnOnce() -> R + Send + 'static,
) -> std::thread::JoinHandle<R> {
    std::thread::Builder::new().name(name.into()).spawn(f).expect("a thread")
}

#[derive(Trace)]
struct Node {
    next: GcCell<Option<Gc<Node>>>,
}

/// A ring of one.
fn garbage(m: &Mutator) {
    let node = m.alloc(Node { next: GcCell::default() });
    node.next.set(m, Some(node.clone()));
}

// --------------------------------------------------------------------------------- stops that wait

/// On a thread that is attached, waits for another one, which collects.
type Block = fn(&Heap);

const BLOCKS: [(&str, Block); 3] = [
    ("the end of a scope", |heap| {
        std::thread::scope(|scope| {
            scope.spawn(|| heap.attach().collect());
        });
    }),
    ("a message", |heap| {
        let (sender, receiver) = mpsc::channel();
        let heap = heap.clone();
        std::thread::spawn(move || sender.send(heap.attach().collect().collected));
        let _ = receiver.recv();
    }),
    ("a mutex", |heap| {
        let (mutex, heap) = (&*Box::leak(Box::new(Mutex::new(()))), heap.clone());
        let (sender, receiver) = mpsc::channel();
        std::thread::spawn(move || {
            let _guard = mutex.lock().unwrap();
            sender.send(()).unwrap();
            heap.attach().collect();
        });
        receiver.recv().unwrap();
        drop(mutex.lock());
    }),
];

#[test]
fn a_thread_that_blocks_while_attached_is_named_on_standard_error() {
    if let Some(role) = role() {
        let (_, block) = BLOCKS.iter().find(|(name, _)| *name == role).expect("a way to block");
        let heap = builder().build().expect("a heap");
        let blocker = named("blocker", move || {
            let _m = heap.attach();
            block(&heap);
        });
        let _ = blocker.join();
        return;
    }
    for (way, _) in BLOCKS {
        let test = "a_thread_that_blocks_while_attached_is_named_on_standard_error";
        let other = Other::new(test, way);
        // Again as long as it lasts.
        for _ in 0..2 {
            let line = other.says(&["standstill: heap 'silent': a stop for ", "thread 'blocker'"]);
            let (_, rest) = line.split_once("thread 'blocker' (OS thread ").expect("its number");
            let (number, rest) = rest.split_once("), registered ").expect("since when it exists");
            assert!(rest.contains("s ago"), "{line}");
            #[cfg(target_os = "linux")]
            assert_eq!(other.name_of(number), "blocker");
            #[cfg(not(target_os = "linux"))]
            let _ = number;
        }
    }
}

/// A thread that is attached, at no safepoint, until something comes through the channel.
fn dawdler(heap: &Heap) -> (std::thread::JoinHandle<u64>, mpsc::SyncSender<()>) {
    let (go_on, wait) = mpsc::sync_channel(16);
    let (attach, attached) = mpsc::channel();
    let heap = heap.clone();
    let thread = named("dawdler", move || {
        let m = heap.attach();
        attach.send(()).expect("the caller listens");
        wait.recv().expect("something happens");
        drop(m);
        os_thread()
    });
    attached.recv().expect("it attaches");
    (thread, go_on)
}

/// The number of the calling thread.
fn os_thread() -> u64 {
    // SAFETY: no arguments, and no memory.
    #[cfg(target_os = "linux")]
    return unsafe { libc::syscall(libc::SYS_gettid) } as u64;
    #[cfg(not(target_os = "linux"))]
    return 0;
}

#[test]
fn a_hook_for_slow_stops_receives_the_missing_thread_and_the_time_of_its_attachment() {
    let _watch = deadline("a slow stop");
    let heap = builder().build().expect("a heap");
    let (dawdler, go_on) = dawdler(&heap);
    let seen = Arc::new(Mutex::new(Vec::new()));
    // The second hook takes the place of the first.
    heap.on_slow_stop(|_| unreachable!("it was replaced"));
    heap.on_slow_stop({
        let seen = Arc::clone(&seen);
        move |slow: &SlowStop| {
            seen.lock().unwrap().push(slow.clone());
            if seen.lock().unwrap().len() == 3 {
                go_on.send(()).expect("the dawdler listens");
            }
            panic!("a hook that panics; nothing is wrong");
        }
    });
    let mut m = heap.attach();
    garbage(&m);
    assert_eq!(m.collect().collected, 1);
    let os_thread = m.join(dawdler).expect("no panic");
    let seen = std::mem::take(&mut *seen.lock().unwrap());
    assert!(seen.len() >= 3, "{seen:?}");
    for slow in &seen {
        let [straggler] = &slow.stragglers[..] else { panic!("{slow:?}") };
        let thread = &straggler.thread;
        assert_eq!(thread.name.as_deref(), Some("dawdler"));
        assert_eq!(thread.os_thread, (os_thread != 0).then_some(os_thread));
        assert_eq!(slow.purpose, Some(StopPurpose::Collection));
        let waiter = slow.waiter.as_ref().expect("this thread");
        assert_ne!(waiter.id, thread.id);
        let line = slow.to_string();
        let begin = format!("a stop for a collection by {waiter} has waited ");
        assert!(line.starts_with(&begin) && line.contains("thread 'dawdler'"), "{line}");
        assert!(
            slow.waited >= Duration::from_millis(20)
                && !straggler.has_ended
                && !straggler.is_suspended
        );
    }
    // Rarer and rarer.
    assert!(seen.windows(2).all(|two| two[1].waited >= 2 * two[0].waited), "{seen:?}");
}

#[cfg(feature = "tracing")]
#[test]
fn a_hook_or_a_subscriber_takes_the_place_of_standard_error() {
    use tracing_subscriber::layer::{Context, Layer, SubscriberExt};

    /// Lets the dawdler go on.
    struct Listener(mpsc::SyncSender<()>);
    impl<S: tracing::Subscriber> Layer<S> for Listener {
        fn on_event(&self, event: &tracing::Event<'_>, _: Context<'_, S>) {
            if *event.metadata().level() == tracing::Level::WARN {
                let _ = self.0.try_send(());
            }
        }
    }

    if let Some(role) = role() {
        let heap = builder().build().expect("a heap");
        let (dawdler, go_on) = dawdler(&heap);
        let mut m = heap.attach();
        match role.as_str() {
            "hook" => {
                heap.on_slow_stop(move |_| {
                    let _ = go_on.try_send(());
                });
                m.collect();
            }
            "subscriber" => {
                let subscriber = tracing_subscriber::registry().with(Listener(go_on));
                tracing::subscriber::with_default(subscriber, || m.collect());
            }
            other => panic!("{other}"),
        }
        m.join(dawdler).expect("no panic");
        return;
    }
    for role in ["hook", "subscriber"] {
        let said =
            Other::new("a_hook_or_a_subscriber_takes_the_place_of_standard_error", role).ends();
        assert!(said.is_empty(), "with a {role}: {said:#?}");
    }
}

// --------------------------------------------------------------------------- stops that do not end

/// Its traversal waits until it is released.
struct Waits(Mutex<mpsc::Receiver<()>>);

impl Trace for Waits {
    fn traverse(this: &Self, _: &mut Tracer) {
        let _ = this.0.lock().unwrap().recv();
    }
}

/// A thread that collects, while a traversal waits for the sender.
fn collector(heap: &Heap) -> (std::thread::JoinHandle<()>, mpsc::Sender<()>) {
    let (go_on, wait) = mpsc::channel();
    let heap = heap.clone();
    let thread = named("collector", move || {
        let mut m = heap.attach();
        let waits = m.alloc(Waits(Mutex::new(wait)));
        m.collect();
        drop(waits);
    });
    (thread, go_on)
}

#[test]
fn a_thread_that_does_not_poll_is_reported_before_anybody_waits() {
    if !is_alone("a_thread_that_does_not_poll_is_reported_before_anybody_waits") {
        return;
    }
    let heap = builder().late_poll(Duration::from_millis(1)).build().expect("a heap");
    let (tell, told) = mpsc::channel();
    heap.on_slow_stop(move |slow| drop(tell.send(slow.clone())));
    let late = named("late", {
        let heap = heap.clone();
        move || {
            let mut m = heap.attach();
            ["sorting", "merging"].map(|what| {
                m.mark(what);
                let report = told.recv().expect("a report");
                m.safepoint();
                report
            })
        }
    });
    for (report, mark) in late.join().expect("no panic").iter().zip(["sorting", "merging"]) {
        let [late] = &report.stragglers[..] else { panic!("{report:?}") };
        assert_eq!((report.kind, late.thread.mark), (SlowStopKind::LatePoll, Some(mark)));
        assert_eq!((late.thread.name.as_deref(), report.waiter.is_none()), (Some("late"), true));
        assert!(report.waited >= Duration::from_millis(1), "{report:?}");
    }
    drop(heap);
    // The thread that watched the heap ends with it.
    #[cfg(target_os = "linux")]
    while std::fs::read_dir("/proc/self/task").expect("tasks").any(|task| {
        let name = std::fs::read_to_string(task.expect("a task").path().join("comm"));
        name.is_ok_and(|name| name.trim_end() == "standstill diag")
    }) {
        std::thread::yield_now();
    }
}

#[test]
fn a_thread_that_waits_for_the_end_of_a_stop_names_the_thread_that_has_stopped_the_world() {
    let test =
        "a_thread_that_waits_for_the_end_of_a_stop_names_the_thread_that_has_stopped_the_world";
    if role().is_some() {
        let heap = builder().build().expect("a heap");
        let mut m = heap.attach();
        let (_thread, _go_on) = collector(&heap);
        loop {
            m.safepoint();
        }
    }
    let other = Other::new(test, "standard error");
    for _ in 0..2 {
        let line = other.says(&["standstill: heap 'silent': the world has been stopped for "]);
        assert!(line.contains("s by thread 'collector'"), "{line}");
    }

    let _watch = deadline("a stop that does not end");
    let heap = builder().build().expect("a heap");
    // Before the other thread can stop the world: until the hook is there, no report ends the stop.
    let mut m = heap.attach();
    let kept = m.alloc(7u64);
    let (collector, go_on) = collector(&heap);
    let (go_on, told) = (Mutex::new(Some(go_on)), Arc::new(Mutex::new(None)));
    heap.on_slow_stop({
        let (told, heap, kept) = (Arc::clone(&told), heap.clone(), Mutex::new(Some(kept.clone())));
        move |slow: &SlowStop| {
            if slow.kind != SlowStopKind::Held {
                return;
            }
            // No way leads to the mutator of this thread, which is detached. A reference can be
            // dropped.
            assert!(Mutator::with_current(|_| ()).is_none() && heap.try_attach().is_err());
            drop(kept.lock().unwrap().take());
            *told.lock().unwrap() = Some(slow.clone());
            drop(go_on.lock().unwrap().take());
        }
    });
    while told.lock().unwrap().is_none() {
        m.safepoint();
    }
    m.join(collector).expect("no panic");
    assert_eq!(*kept, 7);
    drop(kept);
    m.collect();
    assert_eq!(heap.stats().live_objects, 0);
    let told = told.lock().unwrap().take().expect("a report");
    assert_eq!(told.kind, SlowStopKind::Held);
    assert_eq!(told.stragglers[0].thread.name.as_deref(), Some("collector"));
}

// --------------------------------------------------------------------- collections that do not end

/// Where a collection stays until the test lets it go on.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Place {
    Finalizer,
    Destructor,
    /// The destructor runs in a piece of the heap's own collection.
    Piece,
}

const PLACES: [Place; 3] = [Place::Finalizer, Place::Destructor, Place::Piece];

/// Refers to itself. Announces that the collection has come to its place, and waits there.
struct Lasts {
    place: Place,
    gates: Mutex<(mpsc::Sender<()>, mpsc::Receiver<()>)>,
    own: GcCell<Option<Gc<Lasts>>>,
}

impl Lasts {
    fn wait(&self) {
        let (begins, go_on) = &*self.gates.lock().unwrap();
        begins.send(()).unwrap();
        let _ = go_on.recv();
    }
}

impl Trace for Lasts {
    const FINALIZER: Option<Finalizer<Self>> = Some(Finalizer::new(|this, _| {
        if this.place == Place::Finalizer {
            this.wait();
        }
    }));

    fn traverse(this: &Self, tracer: &mut Tracer) {
        Trace::traverse(&this.own, tracer);
    }

    fn clear(this: &Self, m: &Mutator) {
        Trace::clear(&this.own, m);
    }
}

impl Drop for Lasts {
    fn drop(&mut self) {
        if self.place != Place::Finalizer {
            self.wait();
        }
    }
}

/// A heap, and a thread with a collection that stays at the place until the sender is gone.
fn collecting(place: Place) -> (Heap, std::thread::JoinHandle<()>, mpsc::Sender<()>) {
    let heap = builder().stress(place == Place::Piece).build().expect("a heap");
    let (begins, begun) = mpsc::channel();
    let (sender, go_on) = mpsc::channel();
    let its = heap.clone();
    let thread = named("collector", move || {
        let mut m = its.attach();
        let own = GcCell::new(None);
        let lasts = m.alloc(Lasts { place, gates: Mutex::new((begins, go_on)), own });
        lasts.own.set(&m, Some(lasts.clone()));
        drop(lasts);
        if place == Place::Piece { m.safepoint() } else { drop(m.collect()) }
    });
    begun.recv().expect("the collection begins");
    (heap, thread, sender)
}

#[test]
fn a_thread_that_waits_for_the_collector_lock_names_the_collecting_thread() {
    let test = "a_thread_that_waits_for_the_collector_lock_names_the_collecting_thread";
    if role().is_some() {
        let (heap, _thread, _go_on) = collecting(Place::Finalizer);
        heap.attach().collect();
    }
    let other = Other::new(test, "standard error");
    for _ in 0..2 {
        let line = other.says(&["standstill: heap 'silent': thread ", " to begin a collection"]);
        assert!(line.contains("because of thread 'collector'"), "{line}");
    }

    for place in PLACES {
        let _watch = deadline("a collection that does not end");
        let (heap, collector, go_on) = collecting(place);
        let (go_on, told) = (Mutex::new(Some(go_on)), Arc::new(Mutex::new(None)));
        heap.on_slow_stop({
            let told = Arc::clone(&told);
            move |slow: &SlowStop| {
                // The collecting thread reports itself afterwards.
                if slow.kind == SlowStopKind::HeldUp {
                    return;
                }
                *told.lock().unwrap() = Some(slow.clone());
                drop(go_on.lock().unwrap().take());
            }
        });
        let mut m = heap.attach();
        m.collect();
        m.join(collector).expect("no panic");
        m.collect();
        assert_eq!(heap.stats().live_objects, 0, "{place:?}");
        let told = told.lock().unwrap().take().expect("a report");
        assert_eq!(told.kind, SlowStopKind::Collecting, "{place:?}");
        assert!(told.waited >= Duration::from_millis(20), "{:?}", told.waited);
        assert_eq!(told.purpose, Some(StopPurpose::Collection));
        let [straggler] = &told.stragglers[..] else { panic!("{told}") };
        assert_eq!(straggler.thread.name.as_deref(), Some("collector"), "{place:?}");
        assert!(!straggler.is_suspended && !straggler.has_ended);
    }
}

// ------------------------------------------------------------------------------------ leaked forks

/// Uses a mutator with a leaked fork, and returns the mutator if it still exists.
type Use = fn(&Heap, Mutator) -> Option<Mutator>;

const USES: [(&str, Use); 7] = [
    ("a collection", |_, mut m| {
        m.collect();
        Some(m)
    }),
    ("a young collection that does not wait", |_, mut m| {
        let found = m.try_collect(Collect::young().wait(false));
        found.map(drop).unwrap_or_else(|error| panic!("{error}"));
        Some(m)
    }),
    ("a second fork", |_, mut m| {
        m.prepare_fork().map(drop).unwrap_or_else(|error| panic!("{error}"));
        Some(m)
    }),
    ("statistics", |heap, m| {
        heap.stats();
        Some(m)
    }),
    ("a detachment", |_, mut m| {
        m.detach(|| ());
        Some(m)
    }),
    ("a collection that is due", |_, mut m| {
        loop {
            garbage(&m);
            m.safepoint();
        }
    }),
    ("the end of the mutator", |_, m| {
        drop(m);
        None
    }),
];

#[test]
fn a_thread_that_leaks_a_fork_gets_an_error_and_never_waits_for_itself() {
    let test = "a_thread_that_leaks_a_fork_gets_an_error_and_never_waits_for_itself";
    if let Some(role) = role() {
        let (_, f) = USES.iter().find(|(name, _)| *name == role).expect("a use");
        let heap =
            builder().pacing(Pacing::default().with_young_objects(100)).build().expect("a heap");
        let forks = named("forks", move || {
            let mut m = heap.attach();
            std::mem::forget(m.prepare_fork().expect("the world stops"));
            // A reference that is dropped here is recorded, and waits for nothing.
            garbage(&m);
            let left = catch_unwind(AssertUnwindSafe(|| f(&heap, m)));
            if !matches!(left, Ok(None)) {
                // The end of the thread would get an error of its own.
                // SAFETY: ends the process, and runs no destructor.
                unsafe { libc::_exit(0) };
            }
        });
        let _ = forks.join();
        return;
    }
    for (way, _) in USES {
        let other = Other::new(test, way);
        other.says(&["this thread has stopped the world"]);
    }
}

#[test]
fn a_thread_that_waits_for_a_leaked_fork_says_so_on_standard_error() {
    if role().is_some() {
        let heap = builder().build().expect("a heap");
        let mut m = heap.attach();
        let kept = m.alloc(7u64);
        std::mem::forget(m.prepare_fork().expect("the world stops"));
        let attaches = heap.clone();
        let attaches = named("attaches", move || drop(attaches.attach()));
        // Unattached: takes the lock of the deferred references.
        let drops = named("drops", move || drop(kept));
        attaches.join().and(drops.join()).expect("they never end");
        return;
    }
    let other =
        Other::new("a_thread_that_waits_for_a_leaked_fork_says_so_on_standard_error", "leak");
    let said = [(); 2]
        .map(|()| other.says(&["standstill: thread '", " has waited ", "for the end of a fork"]));
    for name in ["'attaches'", "'drops'"] {
        assert!(said.iter().any(|line| line.contains(name)), "{said:?}");
    }
}

// --------------------------------------------------------------------------------- leaked mutators

#[test]
fn stats_and_reports_name_the_threads_that_leaked_a_mutator() {
    let heap = builder().build().expect("a heap");
    let (tell, told) = mpsc::channel();
    heap.on_slow_stop(move |slow: &SlowStop| tell.send(slow.clone()).expect("the test listens"));
    let abandoned = Arc::new(Mutex::new(Vec::new()));
    heap.on_collection({
        let abandoned = Arc::clone(&abandoned);
        move |event| {
            abandoned.lock().unwrap().extend(event.report().map(|report| report.abandoned.clone()))
        }
    });
    let mut m = heap.attach();
    m.collect();
    assert_eq!(heap.stats().leaked_mutators, [""; 0]);
    for name in ["first", "second"] {
        let heap = heap.clone();
        let leaks = named(name, move || {
            std::mem::forget(heap.attach());
            os_thread()
        });
        let os_thread = m.join(leaks).expect("no panic");
        let error = m.try_collect(Collect::full()).expect_err("no stop").to_string();
        assert!(error.contains("first"), "{error}");
        // Each of them once.
        let slow = told.try_recv().expect("a report");
        let [straggler] = &slow.stragglers[..] else { panic!("{slow:?}") };
        assert!(straggler.has_ended && straggler.thread.name.as_deref() == Some(name), "{slow:?}");
        assert_eq!(straggler.thread.os_thread, (os_thread != 0).then_some(os_thread));
        m.try_collect(Collect::young()).expect_err("no stop");
        assert!(told.try_recv().is_err());
    }
    let leaked = heap.stats().leaked_mutators;
    assert_eq!(leaked.len(), 2);
    assert!(leaked[0].contains("'first'") && leaked[1].contains("'second'"), "{leaked:?}");
    let abandoned = std::mem::take(&mut *abandoned.lock().unwrap());
    assert_eq!(abandoned.len(), 5);
    assert_eq!(abandoned[0], None);
    for reason in &abandoned[1..] {
        assert!(reason.as_deref().is_some_and(|reason| reason.contains("first")), "{abandoned:?}");
    }
}

/// Each attempt takes the turn and calls back. It is not made at every safepoint.
#[test]
fn a_heap_that_can_never_stop_tries_as_rarely_as_one_that_can() {
    let pacing = Pacing::default().with_young_objects(1000);
    let attempts = |is_leaked: bool| {
        let heap = builder().pacing(pacing).build().expect("a heap");
        heap.on_slow_stop(|_| ());
        let attempts = Arc::new(AtomicUsize::new(0));
        heap.on_collection({
            let attempts = Arc::clone(&attempts);
            move |event| {
                attempts.fetch_add(usize::from(event.report().is_some()), SeqCst);
            }
        });
        let mut m = heap.attach();
        if is_leaked {
            let heap = heap.clone();
            m.join(std::thread::spawn(move || std::mem::forget(heap.attach()))).expect("it leaks");
        }
        for _ in 0..100_000 {
            garbage(&m);
            m.safepoint();
        }
        attempts.load(SeqCst)
    };
    let (with, without) = (attempts(true), attempts(false));
    // The garbage that stays is growth, so a few full collections are tried beside the young ones.
    assert!(
        (1..=without + without / 20).contains(&with),
        "{with} attempts, but {without} collections of a heap that can stop"
    );
}

#[test]
fn a_leaked_mutator_is_reported_once_although_every_collection_fails() {
    if role().is_some() {
        let pacing = Pacing::default().with_young_objects(100);
        let heap = builder().pacing(pacing).build().expect("a heap");
        let leaky = {
            let heap = heap.clone();
            named("leaky", move || std::mem::forget(heap.attach()))
        };
        leaky.join().expect("it leaks, and no more");
        let mut m = heap.attach();
        for _ in 0..10_000 {
            garbage(&m);
            m.safepoint();
        }
        assert_eq!(heap.stats().collections, 0, "the world cannot be stopped");
        // No destructor of a heap that cannot collect.
        std::process::exit(0);
    }
    let said =
        Other::new("a_leaked_mutator_is_reported_once_although_every_collection_fails", "leak")
            .ends();
    let [line] = &said[..] else { panic!("one line, not {said:#?}") };
    assert!(
        line.contains("thread 'leaky'") && line.contains("ended without dropping its mutator"),
        "{line}"
    );
}

// ------------------------------------------------------------------------------------------- cells

#[test]
fn two_cells_locked_in_opposite_order_name_both_threads() {
    if role().is_some() {
        let heap = builder().build().expect("a heap");
        let m = heap.attach();
        let cells = [0, 1].map(|_| m.alloc(GcCell::new(0u32)));
        drop(m);
        let both = std::sync::Arc::new(Barrier::new(2));
        let threads = ["left", "right"].into_iter().enumerate().map(|(at, name)| {
            let (heap, cells, both) = (heap.clone(), cells.clone(), both.clone());
            named(name, move || {
                let m = heap.attach();
                let first = cells[at].lock(&m);
                both.wait();
                let second = cells[1 - at].lock(&m);
                drop((first, second));
            })
        });
        let threads: Vec<_> = threads.collect();
        threads.into_iter().for_each(|thread| drop(thread.join()));
        return;
    }
    let other = Other::new("two_cells_locked_in_opposite_order_name_both_threads", "deadlock");
    let line = other.says(&["standstill: heap 'silent': ", "GcCell<u32>", "a deadlock"]);
    for holder in ["locked by thread 'left' (OS thread ", "locked by thread 'right' (OS thread "] {
        assert!(line.contains(holder), "{line}");
    }
}

#[test]
fn a_cell_whose_guard_was_leaked_is_reported_although_its_thread_is_gone() {
    if role().is_some() {
        let heap = builder().build().expect("a heap");
        let cell = heap.attach_scoped(|m| m.alloc(GcCell::new(0u32)));
        let leaks = {
            let (heap, cell) = (heap.clone(), cell.clone());
            named("leaky", move || {
                let m = heap.attach();
                std::mem::forget(cell.lock(&m));
            })
        };
        leaks.join().expect("it leaks, and no more");
        named("waiter", move || {
            let m = heap.attach();
            cell.set(&m, 1);
        })
        .join()
        .expect("it waits for ever");
    }
    let other =
        Other::new("a_cell_whose_guard_was_leaked_is_reported_although_its_thread_is_gone", "wait");
    other.says(&[
        "standstill: heap 'silent': thread 'waiter'",
        "GcCell<u32>",
        "that no thread of this heap has locked",
    ]);
}

/// Not a deadlock: the holder unlocks the cell as soon as the wait has been reported.
#[test]
fn a_hook_for_slow_locks_receives_the_waiting_and_the_locking_thread() {
    let _watch = deadline("a slow lock");
    let heap = builder().build().expect("a heap");
    let (report, reported) = mpsc::channel();
    heap.on_slow_lock(move |slow: &SlowLock| {
        report.send(slow.clone()).expect("the holder listens");
        panic!("a hook that panics; nothing is wrong");
    });
    let cell = heap.attach_scoped(|m| m.alloc(GcCell::new(0u32)));
    let (lock, locked) = mpsc::channel();
    let holder = {
        let (heap, cell) = (heap.clone(), cell.clone());
        named("holder", move || {
            let m = heap.attach();
            let guard = cell.lock(&m);
            lock.send(()).expect("the waiter listens");
            let slow = reported.recv().expect("a report");
            drop(guard);
            (slow, reported)
        })
    };
    locked.recv().expect("it is locked");
    let waiter = named("waiter", move || {
        let m = heap.attach();
        cell.set(&m, 1);
        Gc::as_ptr(&cell) as usize
    });
    let address = waiter.join().expect("it waits until the other one has unlocked");
    let (slow, reported) = holder.join().expect("a report");
    let [wait] = &slow.waits[..] else { panic!("{slow:?}") };
    assert_eq!((wait.cell, slow.type_name, slow.is_deadlock), (address, "u32", false));
    assert_eq!(wait.waiter.name.as_deref(), Some("waiter"));
    assert_eq!(wait.holder.as_ref().and_then(|holder| holder.name.as_deref()), Some("holder"));
    assert!(slow.waited >= Duration::from_millis(20));
    assert!(reported.try_recv().is_err(), "once for each wait");
}

/// The hook waits for the cell that its report is about. Only the first wait calls the hook.
#[test]
fn a_hook_for_slow_locks_may_lock_the_cell_and_is_not_called_for_its_own_wait() {
    let _watch = deadline("a slow lock in a hook");
    let heap = builder().slow_stop(Duration::ZERO).build().expect("a heap");
    let cell = heap.attach_scoped(|m| m.alloc(GcCell::new(0u32)));
    let (call, called) = mpsc::channel();
    let calls = Arc::new(AtomicUsize::new(0));
    heap.on_slow_lock({
        let (calls, cell) = (Arc::clone(&calls), cell.clone());
        move |_| {
            if calls.fetch_add(1, SeqCst) == 0 {
                call.send(()).expect("the holder listens");
                Mutator::with_current(|m| *cell.lock(m) += 1).expect("an attached thread");
            }
        }
    });
    let (lock, locked) = mpsc::channel();
    let holder = {
        let (heap, cell) = (heap.clone(), cell.clone());
        named("holder", move || {
            let m = heap.attach();
            let guard = cell.lock(&m);
            lock.send(()).expect("the waiter listens");
            called.recv().expect("a report");
            // Long enough for the hook's own wait to become a slow one.
            std::thread::sleep(Duration::from_millis(200));
            drop(guard);
        })
    };
    locked.recv().expect("it is locked");
    let m = heap.attach();
    *cell.lock(&m) += 1;
    assert_eq!((cell.get(&m), calls.load(SeqCst)), (2, 1));
    drop(m);
    holder.join().expect("a thread");
}

// ---------------------------------------------------------------- the short way is the correct one

/// Each of these waits for a thread that collects, and would hang if the waiting thread were
/// attached.
#[test]
fn join_recv_and_scope_hold_up_no_stop() {
    let _watch = deadline("waiting detached");
    let heap = builder().build().expect("a heap");
    let mut m = heap.attach();
    let collects = |heap: &Heap| {
        let heap = heap.clone();
        move || {
            let mut m = heap.attach();
            garbage(&m);
            m.collect().collected
        }
    };
    assert_eq!(m.join(std::thread::spawn(collects(&heap))).expect("no panic"), 1);
    let (sender, receiver) = mpsc::channel();
    let collect = collects(&heap);
    let thread = std::thread::spawn(move || sender.send(collect()));
    assert_eq!(m.recv(&receiver), Ok(1));
    m.join(thread).expect("no panic").expect("a receiver");
    assert_eq!(m.recv(&receiver), Err(mpsc::RecvError), "no sender is left");
    let done = AtomicUsize::new(0);
    let result = m.scope(|s, m| {
        garbage(m);
        let joined = s.spawn(collects(&heap));
        // The garbage of this thread goes with theirs.
        assert!(m.join(joined).expect("no panic") >= 1);
        for _ in 0..3 {
            s.spawn(|| done.fetch_add(collects(&heap)(), SeqCst));
        }
        m.alloc(7u32)
    });
    assert_eq!((*result, done.load(SeqCst)), (7, 3));
    assert_eq!(m.collect().collected, 0);
    assert_eq!(heap.stats().mutators, 1);
}

#[test]
fn a_scope_that_panics_leaves_its_thread_attached() {
    let _watch = deadline("a scope that panics");
    let heap = builder().build().expect("a heap");
    let mut m = heap.attach();
    let collect = || {
        heap.attach().collect();
    };
    let text = panic_text(|| {
        m.scope(|s, _| {
            s.spawn(collect);
            panic!("by the closure");
        })
    });
    assert_eq!(text.as_deref(), Some("by the closure"));
    garbage(&m);
    let text = panic_text(|| {
        m.scope(|s, _| {
            s.spawn(|| {
                collect();
                panic!("by a thread");
            });
        });
    });
    assert_eq!(text.as_deref(), Some("a scoped thread panicked"));
    garbage(&m);
    assert_eq!(m.collect().collected, 1, "and the other one was collected by the thread");
    let thread = std::thread::spawn(|| panic!("by a thread that is joined"));
    assert!(m.join(thread).is_err());
    garbage(&m);
    assert_eq!(m.collect().collected, 1);
}

#[test]
fn a_scope_inside_a_destructor_is_refused_before_it_starts_anything() {
    struct Asks(Mutex<mpsc::Sender<Option<String>>>);
    impl Trace for Asks {
        fn traverse(_: &Self, _: &mut Tracer) {}
    }
    thread_local! {
        static MUTATOR: RefCell<Option<Mutator>> = const { RefCell::new(None) };
    }
    impl Drop for Asks {
        fn drop(&mut self) {
            let text = MUTATOR.with_borrow_mut(|m| {
                let m = m.as_mut().expect("the mutator");
                panic_text(|| {
                    m.scope(|_, _| self.0.lock().unwrap().send(None).expect("a listener"))
                })
            });
            self.0.lock().unwrap().send(text).expect("a listener");
        }
    }
    let heap = builder().build().expect("a heap");
    let m = heap.attach();
    let (tell, told) = mpsc::channel();
    let asks = m.alloc(Asks(Mutex::new(tell)));
    MUTATOR.set(Some(m));
    drop(asks);
    let text = told.recv().expect("an answer").expect("the closure has not run");
    assert!(text.contains("inside a destructor"), "{text}");
    MUTATOR.take();
}

// ------------------------------------------------------------------------- slow collections

/// How long each slow call takes: longer than the heap's `slow_stop`.
const SLOW_CALL: Duration = Duration::from_millis(40);

/// Refers to itself. Its code of the kind `KIND` is slow: 0, the finalizer; 1, the clear handler;
/// 2, the destructor.
struct Sluggish<const KIND: u8>(GcCell<Option<Gc<Self>>>);

impl<const KIND: u8> Sluggish<KIND> {
    fn runs(kind: u8) {
        if kind == KIND {
            std::thread::sleep(SLOW_CALL);
        }
    }
}

impl<const KIND: u8> Trace for Sluggish<KIND> {
    const FINALIZER: Option<Finalizer<Self>> =
        if KIND == 0 { Some(Finalizer::new(|_, _| Self::runs(0))) } else { None };
    fn traverse(this: &Self, tracer: &mut Tracer) {
        Trace::traverse(&this.0, tracer);
    }
    fn clear(this: &Self, m: &Mutator) {
        Self::runs(1);
        Trace::clear(&this.0, m);
    }
}

impl<const KIND: u8> Drop for Sluggish<KIND> {
    fn drop(&mut self) {
        Self::runs(2);
    }
}

/// The reports of a collection with one object whose code is slow.
fn told_of_a_slow_call<const KIND: u8>(by_the_heap: bool) -> Vec<SlowStop> {
    let pacing =
        if by_the_heap { Pacing::default().with_young_objects(1) } else { Pacing::manual() };
    let heap = builder().pacing(pacing).build().expect("a heap");
    let told = Arc::new(Mutex::new(Vec::new()));
    heap.on_slow_stop({
        let told = Arc::clone(&told);
        move |slow: &SlowStop| told.lock().unwrap().push(slow.clone())
    });
    let thread = named("collector", move || {
        let mut m = heap.attach();
        let object = m.alloc(Sluggish::<KIND>(GcCell::new(None)));
        object.0.set(&m, Some(object.clone()));
        drop(object);
        if !by_the_heap {
            m.collect();
        }
        while heap.stats().live_objects > 0 {
            // Each allocation may fill a magazine, which makes a collection due.
            drop(m.alloc([0u64; 500]));
            m.safepoint();
        }
    });
    thread.join().expect("no panic");
    std::mem::take(&mut *told.lock().unwrap())
}

#[test]
fn a_collection_that_holds_up_its_thread_is_reported_with_the_type_whose_code_ran_longest() {
    let _watch = deadline("slow collections");
    for by_the_heap in [false, true] {
        let all = [
            (During::Finalize, told_of_a_slow_call::<0>(by_the_heap)),
            (During::Clear, told_of_a_slow_call::<1>(by_the_heap)),
            (During::Drop, told_of_a_slow_call::<2>(by_the_heap)),
        ];
        for (during, told) in all {
            let is_slow = |slow: &&SlowStop| {
                slow.longest.as_ref().is_some_and(|longest| longest.took >= SLOW_CALL)
            };
            let slow = told.iter().find(is_slow).unwrap_or_else(|| panic!("{during:?}: {told:?}"));
            assert_eq!(slow.kind, SlowStopKind::HeldUp);
            assert!(slow.waited >= SLOW_CALL, "{slow:?}");
            let [straggler] = &slow.stragglers[..] else { panic!("{slow:?}") };
            assert_eq!(straggler.thread.name.as_deref(), Some("collector"));
            let longest = slow.longest.as_ref().expect("the slow call");
            assert_eq!(longest.during, during);
            assert!(longest.type_name.contains("Sluggish"), "{longest:?}");
            let line = slow.to_string();
            assert!(line.starts_with("collecting has taken "), "{line}");
            assert!(line.contains("Sluggish") && line.contains("'collector'"), "{line}");
        }
    }
}

/// The first collection does not end before the second thread has waited for it, and said so.
#[test]
fn a_report_contains_the_wait_for_the_collections_of_others() {
    let _watch = deadline("a collection that waits");
    let (heap, collector, go_on) = collecting(Place::Finalizer);
    let (go_on, waited) = (Mutex::new(Some(go_on)), Arc::new(Mutex::new(Duration::ZERO)));
    heap.on_slow_stop({
        let waited = Arc::clone(&waited);
        move |slow: &SlowStop| {
            if slow.kind == SlowStopKind::Collecting {
                *waited.lock().unwrap() = slow.waited;
                drop(go_on.lock().unwrap().take());
            }
        }
    });
    let mut m = heap.attach();
    let second = m.collect();
    m.join(collector).expect("no panic");
    let waited = *waited.lock().unwrap();
    assert!(waited >= Duration::from_millis(20) && second.waited >= waited, "{second:?}");
}

// --------------------------------------------------------------------------------- a line's sink

#[test]
fn a_sink_gets_each_line_but_those_that_it_causes_itself() {
    const NAME: &str = "a_sink_gets_each_line_but_those_that_it_causes_itself";
    if role().is_none() {
        let ends = ["inside the sink", "faulty", "without a sink"];
        let mut said = Other::new(NAME, "sink").ends();
        // Without the lines of backtraces.
        said.retain(|line| line.starts_with("standstill: "));
        assert!(said.iter().zip(ends).all(|(line, end)| line.ends_with(end)), "{said:#?}");
        assert_eq!(said.len(), ends.len(), "{said:#?}");
        return;
    }
    static WORD: Mutex<&str> = Mutex::new("");
    let heap = builder().slow_stop(Duration::from_secs(3600)).build().expect("a heap");
    heap.on_collection(|event| {
        if event.report().is_some() {
            // Taken, because the heap's last collection is silent.
            let word = std::mem::take(&mut *WORD.lock().unwrap());
            assert!(word.is_empty(), "{word}");
        }
    });
    let mut m = heap.attach();
    let mut fail = |word| {
        *WORD.lock().unwrap() = word;
        m.collect();
    };
    let (sender, lines) = mpsc::channel();
    standstill::set_line_sink(Some(Box::new(move |line| {
        if line.ends_with("nested") {
            standstill::stderr::line(format_args!("standstill: inside the sink"));
        }
        assert!(!line.ends_with("faulty"), "the sink fails");
        sender.send(line.to_owned()).expect("a receiver");
    })));
    ["plain", "nested", "faulty", "afterwards"].into_iter().for_each(&mut fail);
    standstill::set_line_sink(None);
    fail("without a sink");
    for end in ["plain", "nested", "afterwards"] {
        let line = lines.try_recv().expect("a line");
        assert!(line.starts_with("standstill: ") && line.ends_with(end), "{line}");
    }
    assert!(lines.try_recv().is_err(), "no other line");
}
