//! The spans and events of `tracing`: checks the table in `docs/tracing.md`.
#![cfg(not(loom))]

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::Duration;

use common::child::is_alone;
use standstill::dynamic::{self, Flags, TypeSpec};
use standstill::{Collect, CollectionReason, Gc, GcCell, Heap, Mutator, Pacing, Trace};
use tracing::field::{Field, Visit};
use tracing::span::Attributes;
use tracing::{Event, Id, Subscriber};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};

type Fields = BTreeMap<&'static str, String>;

#[derive(Clone, Default)]
struct Recorder(Arc<Mutex<Vec<(String, Fields)>>>);

struct Reader<'a>(&'a mut Fields);

impl Visit for Reader<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.0.insert(field.name(), format!("{value:?}"));
    }
}

impl<S: Subscriber> Layer<S> for Recorder {
    fn on_new_span(&self, span: &Attributes<'_>, _: &Id, _: Context<'_, S>) {
        let mut fields = Fields::new();
        span.record(&mut Reader(&mut fields));
        self.0.lock().unwrap().push((format!("span {}", span.metadata().name()), fields));
    }

    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let mut fields = Fields::new();
        event.record(&mut Reader(&mut fields));
        let message = fields.remove("message").unwrap_or_default();
        self.0.lock().unwrap().push((message, fields));
    }
}

impl Recorder {
    fn during(f: impl FnOnce()) -> Vec<(String, Fields)> {
        let recorder = Self::default();
        tracing::subscriber::with_default(tracing_subscriber::registry().with(recorder.clone()), f);
        let seen = recorder.0.lock().unwrap();
        seen.clone()
    }
}

#[derive(Trace)]
#[trace(finalize = finalized)]
struct Node {
    this: GcCell<Option<Gc<Node>>>,
    panics: bool,
}

fn finalized(this: &Gc<Node>, _: &Mutator) {
    assert!(!this.panics, "as asked");
}

fn cycle(m: &Mutator, panics: bool) {
    let node = m.alloc(Node { this: GcCell::default(), panics });
    node.this.set(m, Some(node.clone()));
}

/// The fields of an event in `docs/tracing.md`.
fn documented(message: &str) -> BTreeSet<&'static str> {
    let page = include_str!("../docs/tracing.md");
    let cell = format!("| `{message}` |");
    let row = page.lines().find(|line| line.contains(&cell)).expect("a row");
    let fields = row.split('|').nth(4).expect("a column");
    fields.split('`').skip(1).step_by(2).filter(|&name| name != "CollectionReport").collect()
}

#[test]
fn a_collection_shows_its_phases_in_order_and_its_facts() {
    let heap = Heap::builder().name("seen").pacing(Pacing::manual()).build().expect("a heap");
    let mut m = heap.attach();
    cycle(&m, false);
    let seen = Recorder::during(|| {
        m.try_collect(Collect::full().because("a test").tagged(7)).expect("no other thread");
    });
    let phases: Vec<_> = seen
        .iter()
        .filter_map(|(name, _)| name.strip_prefix("span "))
        .filter(|name| name.starts_with(char::is_uppercase))
        .collect();
    let expected = [
        "Merge",
        "Count",
        "Roots",
        "Mark",
        "Sweep",
        "Claim",
        "Callbacks",
        "Finalize",
        "Merge",
        "Recheck",
        "Clear",
    ];
    assert_eq!(phases, expected);
    let (name, fields) = &seen[0];
    assert_eq!((name.as_str(), fields["heap"].as_str()), ("span collection", "\"seen\""));
    assert_eq!(seen.iter().filter(|(name, _)| name == "stopped").count(), 2);
    assert_eq!(seen.iter().filter(|(name, _)| name == "resumed").count(), 2);
    let (_, facts) = seen.iter().find(|(name, _)| name == "collected").expect("the facts");
    let fact = |name: &str| facts[name].as_str();
    assert_eq!((fact("kind"), fact("candidates"), fact("collected")), ("\"full\"", "1", "1"));
    // Those of an abandoned collection, a slow stop, and a child.
    const ABSENT: [&str; 5] = ["abandoned", "late_thread", "child_us", "parts", "no_child"];
    let names: BTreeSet<_> = facts.keys().copied().chain(ABSENT).collect();
    assert_eq!(names, documented("collected"), "the row in docs/tracing.md");
    assert_eq!((fact("because"), fact("tag")), ("\"a test\"", "7"));
    assert_eq!((fact("finalized"), fact("stops"), fact("workers")), ("1", "2", "1"));
}

#[test]
fn a_slow_collection_is_one_event_that_names_the_late_thread() {
    let heap = Heap::builder().name("slow").pacing(Pacing::manual());
    let heap = heap.slow_collection(Duration::ZERO).slow_stop(Duration::from_millis(1));
    let heap = heap.build().expect("a heap");
    let (attached, is_attached) = mpsc::channel();
    let (waits, is_awaited) = mpsc::channel();
    let (seen_all, may_end) = mpsc::channel();
    heap.on_slow_stop(move |_| {
        let _ = waits.send(());
    });
    let seen = thread::scope(|scope| {
        let late = thread::Builder::new().name("late".into());
        let other = heap.clone();
        late.spawn_scoped(scope, move || {
            let mut m = other.attach();
            m.mark("reading a request");
            attached.send(()).unwrap();
            // It keeps the stop waiting until that is reported.
            is_awaited.recv().unwrap();
            m.detach(|| may_end.recv().unwrap());
        })
        .expect("a thread");
        let mut m = heap.attach();
        cycle(&m, false);
        is_attached.recv().unwrap();
        Recorder::during(|| {
            let report = m.try_collect(Collect::full().because("a test")).expect("it waits");
            assert_eq!(report.reason, CollectionReason::Requested);
            let late = report.late_thread.expect("a late thread");
            assert!(late.starts_with("thread 'late' (OS thread"), "{late}");
            assert!(late.ends_with(r#"last at "reading a request")"#), "{late}");
            assert_eq!(report.largest_types[0].objects, 1);
            assert!(report.largest_types[0].type_name.ends_with("Node"));
            let times = heap.threads();
            let late = times.iter().find(|times| times.thread.name.as_deref() == Some("late"));
            let times = late.map_or_else(Default::default, |late| late.time_to_stop);
            assert!(times.count == 1 && times.max >= Duration::from_millis(1), "{times:?}");
            seen_all.send(()).unwrap();
        })
    });
    let slow: Vec<_> = seen.iter().filter(|(name, _)| name == "slow collection").collect();
    let [(_, facts)] = slow[..] else { panic!("{slow:?}") };
    // No code of the program took long.
    let names: BTreeSet<_> = facts.keys().copied().chain(["longest"]).collect();
    assert_eq!(names, documented("slow collection"), "the row in docs/tracing.md");
    assert!(facts["phases"].contains("Count"), "{facts:?}");
    assert!(facts["types"].contains("Node: 1 objects, "), "{facts:?}");
}

#[test]
fn a_collection_is_slow_from_its_threshold_on() {
    let heap = Heap::builder().pacing(Pacing::manual());
    let heap = heap.slow_collection(Duration::from_secs(1000)).build().expect("a heap");
    let mut m = heap.attach();
    cycle(&m, false);
    let mut largest = Vec::new();
    let seen = Recorder::during(|| largest = m.collect().largest_types);
    assert!(seen.iter().all(|(name, _)| name != "slow collection"), "{seen:?}");
    assert!(largest.is_empty());
}

#[test]
fn a_collection_without_candidates_has_no_roots_and_marks_nothing() {
    let heap = Heap::builder().pacing(Pacing::manual()).build().expect("a heap");
    let mut m = heap.attach();
    let seen = Recorder::during(|| {
        m.collect();
    });
    let phases: Vec<_> = seen
        .iter()
        .filter_map(|(name, _)| name.strip_prefix("span "))
        .filter(|name| name.starts_with(char::is_uppercase))
        .collect();
    assert_eq!(phases, ["Merge", "Count", "Sweep", "Claim", "Clear"]);
}

#[test]
fn a_promotion_emits_an_event() {
    let pacing = Pacing::default().with_young_objects(200).with_full_minimum(2_000);
    let heap = Heap::builder().name("built").pacing(pacing).build().expect("a heap");
    let mut m = heap.attach();
    m.safepoint();
    if heap.stats().collections != 0 {
        return; // All safepoints collect, as the environment says.
    }
    let mut kept = Vec::new();
    let seen = Recorder::during(|| {
        for _ in 0..40_000 {
            kept.push(m.alloc(Node { this: GcCell::default(), panics: false }));
            m.safepoint();
        }
    });
    let promotions = heap.stats().promotions;
    assert!(promotions > 0);
    let count = |what: &str| seen.iter().filter(|(name, _)| name == what).count();
    assert_eq!((count("span promotion"), count("promoted")), (promotions, promotions));
    assert_eq!(count("span collection"), heap.stats().collections);
    let at = seen.iter().position(|(name, _)| name == "span promotion").expect("the span");
    assert_eq!(seen[at].1["heap"], "\"built\"");
    // It has no phases of its own but the merge.
    let names: Vec<_> = seen[at..].iter().map(|(name, _)| name.as_str()).take(5).collect();
    assert_eq!(names, ["span promotion", "stopped", "span Merge", "resumed", "promoted"]);
    let (_, facts) = &seen[at + 4];
    assert!(facts["objects"].parse::<usize>().expect("a number") >= 100);
    assert!(facts.contains_key("stopped_us"));
}

#[test]
fn a_failure_emits_an_event() {
    let heap = Heap::builder().pacing(Pacing::manual()).build().expect("a heap");
    heap.on_unraisable(|_| ());
    let mut m = heap.attach();
    cycle(&m, true);
    let seen = Recorder::during(|| {
        m.collect();
    });
    let (_, fields) = seen.iter().find(|(name, _)| name == "unraisable").expect("told");
    assert_eq!(
        (fields["during"].as_str(), fields["message_text"].as_str()),
        ("Finalize", "as asked")
    );
}

#[test]
fn a_slow_stop_names_the_thread() {
    let heap = Heap::builder()
        .slow_stop(Duration::from_millis(1))
        .pacing(Pacing::manual())
        .build()
        .expect("a heap");
    let (attached, wait) = std::sync::mpsc::channel();
    let (told, seen_it) = std::sync::mpsc::channel();
    let dawdler = std::thread::Builder::new()
        .name("dawdler".into())
        .spawn({
            let heap = heap.clone();
            move || {
                let mut m = heap.attach();
                attached.send(()).expect("the main thread listens");
                // Attached, and at no safepoint, until the report has been made.
                seen_it.recv().expect("a report");
                m.safepoint();
            }
        })
        .expect("a thread");
    wait.recv().expect("attached");
    let told = Mutex::new(Some(told));
    let recorder = Recorder::default();
    let seen = Arc::clone(&recorder.0);
    struct Tell(Mutex<Option<std::sync::mpsc::Sender<()>>>);
    impl<S: Subscriber> Layer<S> for Tell {
        fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
            let mut fields = Fields::new();
            event.record(&mut Reader(&mut fields));
            if fields.get("message").is_some_and(|m| m == "slow stop")
                && let Some(told) = self.0.lock().unwrap().take()
            {
                told.send(()).expect("the dawdler listens");
            }
        }
    }
    let subscriber = tracing_subscriber::registry().with(recorder).with(Tell(told));
    tracing::subscriber::with_default(subscriber, || {
        heap.attach().collect();
    });
    dawdler.join().expect("a thread");
    let seen = seen.lock().unwrap();
    let (_, fields) = seen.iter().find(|(name, _)| name == "slow stop").expect("a report");
    assert_eq!(fields["thread"], "\"dawdler\"");
    assert_eq!(fields.contains_key("os_thread"), cfg!(target_os = "linux"));
    for field in ["heap", "waited_ms", "registered_ms", "waiter"] {
        assert!(fields.contains_key(field), "{fields:?}");
    }
    assert_eq!(fields["purpose"], "\"a collection\"");
}

#[test]
fn a_late_poll_names_the_thread_and_its_mark() {
    // Alone, because the thread that watches the heap has no subscriber of its own.
    if !is_alone("a_late_poll_names_the_thread_and_its_mark") {
        return;
    }
    let recorder = Recorder::default();
    let subscriber = tracing_subscriber::registry().with(recorder.clone());
    tracing::subscriber::set_global_default(subscriber).expect("the first");
    let heap = Heap::builder().late_poll(Duration::from_millis(1)).build().expect("a heap");
    let (tell, told) = mpsc::channel();
    heap.on_slow_stop(move |_| _ = tell.send(()));
    let m = heap.attach();
    m.mark("sorting");
    told.recv().expect("a report");
    let seen = recorder.0.lock().unwrap();
    let (_, fields) = seen.iter().find(|(name, _)| name == "late poll").expect("a report");
    assert_eq!(fields["mark"], "\"sorting\"");
    let mut documented = documented("late poll");
    if !cfg!(target_os = "linux") {
        documented.remove("os_thread");
    }
    assert_eq!(fields.keys().copied().collect::<BTreeSet<_>>(), documented);
}

#[test]
fn a_leaked_mutator_emits_an_event() {
    let heap = Heap::builder().name("left").pacing(Pacing::manual()).build().expect("a heap");
    let leaks = {
        let heap = heap.clone();
        let thread = std::thread::Builder::new().name("leaky".into());
        thread.spawn(move || std::mem::forget(heap.attach())).expect("a thread")
    };
    let mut m = heap.attach();
    m.join(leaks).expect("it leaks, and no more");
    let seen = Recorder::during(|| {
        for _ in 0..2 {
            m.try_collect(Collect::full()).expect_err("no stop");
        }
    });
    let told: Vec<_> = seen.iter().filter(|(name, _)| name == "leaked mutator").collect();
    let [(_, fields)] = &told[..] else { panic!("{told:?}") };
    assert_eq!((fields["heap"].as_str(), fields["thread"].as_str()), ("\"left\"", "\"leaky\""));
    assert_eq!(fields.contains_key("os_thread"), cfg!(target_os = "linux"));
    assert!(fields.contains_key("registered_ms"));
    let ends = || seen.iter().filter(|(name, _)| name == "collected").map(|(_, fields)| fields);
    assert_eq!(ends().filter(|fields| fields["abandoned"].contains("leaky")).count(), 2);
    assert!(ends().all(|fields| fields["workers"] == "1"), "no other thread has worked");
}

#[test]
fn guards_that_defer_collections_for_long_emit_one_event() {
    let heap = Heap::builder().name("guarded").build().expect("a heap");
    let mut m = heap.attach();
    let allocate = |m: &mut Mutator, bytes: isize| {
        m.adjust_external_bytes(bytes);
        m.safepoint();
        m.adjust_external_bytes(-bytes);
    };
    let told = |seen: &[(String, Fields)]| -> Vec<Fields> {
        let told = seen.iter().filter(|(name, _)| name == "long deferral");
        told.map(|(_, fields)| fields.clone()).collect()
    };
    let many = 400 * Pacing::default().young_bytes as isize;
    let seen = Recorder::during(|| allocate(&mut m, 2 * many));
    assert_eq!(told(&seen), [], "no guard");
    let guards = [heap.defer_collections(), heap.defer_collections()];
    let seen = Recorder::during(|| {
        allocate(&mut m, many - 1);
        allocate(&mut m, many);
        allocate(&mut m, 2 * many);
    });
    let [fields] = &told(&seen)[..] else { panic!("{seen:?}") };
    assert_eq!((fields["heap"].as_str(), fields["guards"].as_str()), ("\"guarded\"", "2"));
    assert_eq!(fields["bytes"], many.to_string());
    assert!(fields.contains_key("objects"));
    drop(guards);
    let guard = heap.defer_collections();
    let seen = Recorder::during(|| allocate(&mut m, 2 * many));
    assert_eq!(told(&seen).len(), 1, "another guard");
    drop(guard);
    // A heap that is to collect often says so early.
    heap.set_pacing(Pacing::default().with_young_objects(10));
    let (_guard, mut kept) = (heap.defer_collections(), Vec::new());
    for (objects, count) in [(2_000, 0), (20_000, 1)] {
        let seen = Recorder::during(|| {
            for _ in 0..objects {
                kept.push(m.alloc(Vec::<Gc<u8>>::new()));
                m.safepoint();
            }
        });
        assert_eq!(told(&seen).len(), count);
    }
}

#[test]
fn a_slow_lock_emits_an_event() {
    let heap = Heap::builder().slow_stop(Duration::from_millis(1)).pacing(Pacing::manual()).build();
    let heap = heap.expect("a heap");
    let cell = heap.attach_scoped(|m| m.alloc(GcCell::new(0u32)));
    let (lock, locked) = std::sync::mpsc::channel();
    let (tell, told) = std::sync::mpsc::channel();
    let holder = {
        let (heap, cell) = (heap.clone(), cell.clone());
        let thread = std::thread::Builder::new().name("holder".into());
        thread
            .spawn(move || {
                let m = heap.attach();
                let guard = cell.lock(&m);
                lock.send(()).expect("the other thread listens");
                told.recv().expect("a report");
                drop(guard);
            })
            .expect("a thread")
    };
    locked.recv().expect("it is locked");
    // The hook comes after the event, also where there is a subscriber.
    heap.on_slow_lock(move |_| tell.send(()).expect("the holder listens"));
    let m = heap.attach();
    let seen = Recorder::during(|| cell.set(&m, 1));
    drop(m);
    holder.join().expect("a thread");
    let (_, fields) = seen.iter().find(|(name, _)| name == "slow lock").expect("a report");
    assert!(fields["holder"].contains("thread 'holder'") && fields["waiter"].contains("thread '"));
    assert_eq!(
        (fields["type_name"].as_str(), fields["is_deadlock"].as_str()),
        ("\"u32\"", "false")
    );
    assert!(fields.contains_key("heap") && fields.contains_key("waited_ms"));
}

#[test]
fn s_015_a_type_without_the_clear_handler_of_its_base_is_noted() {
    let note = "a type without the clear handler that its base has";
    let seen = Recorder::during(|| {
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
    });
    let notes: Vec<_> = seen.iter().filter(|(message, _)| message == note).collect();
    assert_eq!(notes.len(), 1, "{seen:?}");
    assert_eq!(notes[0].1["type_name"], "\"tests.Child\"");
    assert_eq!(notes[0].1["base"], "\"tests.Base\"");
}
