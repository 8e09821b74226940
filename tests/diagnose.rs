//! Surveys beside collections of other threads, and parts of objects.

use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use standstill::{Collect, CollectionKind, Gc, GcCell, GcVec, Heap, Mutator, Pacing, Trace};

#[derive(Trace)]
struct Leaf(u64);

#[derive(Trace)]
struct Owner {
    list: GcCell<GcVec<Leaf, 2>>,
}

#[test]
fn the_buffer_of_a_vector_belongs_to_its_object() {
    let heap = Heap::new();
    let mut m = heap.attach();
    let owner = m.alloc(Owner { list: GcCell::new(GcVec::new()) });
    for number in 0..1000 {
        let leaf = m.alloc(Leaf(number));
        owner.list.lock(&m).push(&m, leaf);
    }
    let census = m.census();
    assert_eq!((census.total().objects, census.total().held), (1002, 1), "{census}");
    let holders = m.graph().holders();
    assert_eq!(holders.len(), 1);
    assert_eq!(holders[0].retained_bytes, census.total().bytes);
    assert_eq!(owner.list.lock(&m)[7].0, 7);
}

#[derive(Default, Trace)]
struct Buffers {
    text: String,
    words: Vec<String>,
    cell: GcCell<Vec<u8>>,
    boxed: Option<Box<[u8]>>,
    named: HashMap<u64, String>,
    #[trace(skip)]
    skipped: Vec<u8>,
}

#[derive(Default, Trace)]
struct Linked {
    buffers: Buffers,
    pairs: GcCell<Vec<(Option<Gc<Linked>>, String)>>,
}

fn text(bytes: usize) -> String {
    String::with_capacity(bytes)
}

fn buffers() -> (Buffers, usize) {
    let buffers = Buffers {
        text: text(100),
        words: vec![text(10), text(20)],
        cell: GcCell::new(vec![0; 300]),
        boxed: Some(vec![0; 40].into()),
        named: HashMap::from([(1, text(5))]),
        skipped: vec![0; 10_000],
    };
    let vectors = buffers.words.capacity() * size_of::<String>() + 300 + 40;
    let map = buffers.named.capacity() * (size_of::<(u64, String)>() + 1) + 5;
    (buffers, 100 + 10 + 20 + vectors + map)
}

#[test]
fn the_buffers_of_an_object_are_counted_with_those_inside_of_them() {
    let heap = Heap::builder().pacing(Pacing::manual()).build().expect("a heap");
    let mut m = heap.attach();
    let (value, expected) = buffers();
    // A type without references, whose objects are never tracked.
    let plain = m.alloc(value);
    assert_eq!(plain.skipped.len(), 10_000);
    assert_eq!(m.census().total().external_bytes, expected);
    let (value, more) = buffers();
    let linked = m.alloc(Linked { buffers: value, pairs: GcCell::default() });
    linked.pairs.lock(&m).push((Some(linked.clone()), text(50)));
    let list = linked.pairs.lock(&m).capacity() * size_of::<(Option<Gc<Linked>>, String)>();
    let all = expected + more + 50 + list;
    assert_eq!(m.census().total().external_bytes, all);
    let retained: usize = m.graph().holders().iter().map(|holder| holder.retained_bytes).sum();
    assert_eq!(retained, m.census().total().bytes + all);
    // A cell that is locked, here for ever, cannot be read.
    std::mem::forget((plain.cell.lock(&m), linked.pairs.lock(&m)));
    assert_eq!(m.census().total().external_bytes, all - 300 - list - 50);
}

#[derive(Trace)]
struct Node {
    saver: GcCell<Option<Gc<Saver>>>,
}

/// Brings its node back when it is destroyed.
#[derive(Trace)]
struct Saver {
    target: Gc<Node>,
}

static SAVED: Mutex<Vec<Gc<Node>>> = Mutex::new(Vec::new());

impl Drop for Saver {
    fn drop(&mut self) {
        SAVED.lock().expect("no panic").push(self.target.clone());
    }
}

#[test]
fn a_collection_that_has_released_an_object_has_no_reference_to_it() {
    let heap = Heap::new();
    let mut m = heap.attach();
    let guard = heap.defer_collections();
    for _ in 0..20_000 {
        let node = m.alloc(Node { saver: GcCell::default() });
        let saver = m.alloc(Saver { target: node.clone() });
        *node.saver.lock(&m) = Some(saver);
    }
    drop(guard);
    // The collection reclaims some of its garbage here, and leaves the rest to later safepoints.
    m.safepoint();
    let saved = SAVED.lock().expect("no panic").len();
    assert!((1..20_000).contains(&saved), "{saved}");
    let census = m.census();
    let nodes = census.types.iter().find(|row| row.type_name.ends_with("Node")).expect("nodes");
    assert_eq!((nodes.held, nodes.outside), (saved, saved), "{census}");
    let one = SAVED.lock().expect("no panic").pop().expect("one");
    assert_eq!(m.why_alive(&Gc::into_any(one)).outside, 1);
    m.collect();
    SAVED.lock().expect("no panic").clear();
    m.collect();
    assert_eq!(m.census().total().objects, 0);
}

#[derive(Trace)]
struct Chain {
    next: GcCell<Option<Gc<Chain>>>,
}

#[derive(Trace)]
#[trace(finalize = Head::save)]
struct Head {
    chain: Gc<Chain>,
    me: GcCell<Option<Gc<Head>>>,
}

static HEADS: Mutex<Vec<Gc<Head>>> = Mutex::new(Vec::new());

impl Head {
    fn save(this: &Gc<Self>, _: &Mutator) {
        std::thread::sleep(Duration::from_micros(300));
        HEADS.lock().expect("no panic").push(this.clone());
    }
}

#[test]
fn the_references_of_another_threads_collection_are_not_from_outside() {
    const ROUNDS: usize = if cfg!(debug_assertions) { 60 } else { 300 };
    let heap = Heap::builder().pacing(Pacing::manual()).build().expect("a heap");
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut m = heap.attach();
            for _ in 0..ROUNDS {
                let mut first: Option<Gc<Chain>> = None;
                for _ in 0..1000 {
                    first = Some(m.alloc(Chain { next: GcCell::new(first.take()) }));
                }
                let chain = first.take().expect("the last one");
                let head = m.alloc(Head { chain, me: GcCell::default() });
                *head.me.lock(&m) = Some(head.clone());
                drop(head);
                assert_eq!(m.collect().resurrected, 1001);
                for head in std::mem::take(&mut *HEADS.lock().expect("no panic")) {
                    assert!(head.chain.next.lock(&m).is_some());
                    *head.me.lock(&m) = None;
                }
            }
            done.store(true, Ordering::Relaxed);
        });
        let mut m = heap.attach();
        while !done.load(Ordering::Relaxed) {
            let census = m.census();
            if let Some(row) = census.types.iter().find(|row| row.type_name.ends_with("Chain")) {
                // The variables of the other thread hold two at most.
                assert!(row.held <= 2, "{census}");
            }
            m.safepoint();
        }
    });
}

// ------------------------------------------------------------------------------ STANDSTILL_LOG

#[derive(Trace)]
#[trace(finalize = Slow::finalize)]
struct Slow {
    me: GcCell<Option<Gc<Slow>>>,
}

impl Slow {
    fn finalize(_: &Gc<Self>, _: &Mutator) {
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// The next test runs this one as a process, too.
#[test]
fn a_program_that_collects() {
    // Shorter than the finalizer takes.
    let limit = Duration::from_millis(1);
    let heap = Heap::builder().name("a \"name\"").slow_stop(limit).build().expect("a heap");
    let mut m = heap.attach();
    let slow = m.alloc(Slow { me: GcCell::default() });
    *slow.me.lock(&m) = Some(slow.clone());
    drop(slow);
    m.try_collect(Collect::full().because("a \"test\"").tagged(7)).expect("the only thread");
    m.collect_young();
    // Promoted at a safepoint, because young collections find nothing.
    let mut kept = Vec::new();
    while heap.stats().promotions == 0 {
        for number in 0..10_000 {
            kept.push(m.alloc(Leaf(number)));
            m.safepoint();
        }
    }
    let recent = heap.recent_collections();
    assert_eq!((recent[0].finalized, recent[1].kind), (1, CollectionKind::Young));
}

/// The lines of JSON that the program above writes with `STANDSTILL_LOG` set to `log`.
fn logged(log: &str) -> (Vec<serde_json::Value>, String) {
    let output = std::process::Command::new(std::env::current_exe().expect("this program"))
        .args(["--exact", "a_program_that_collects", "--nocapture"])
        .env("STANDSTILL_LOG", log)
        .output()
        .expect("a process");
    assert!(output.status.success());
    let text = String::from_utf8(output.stderr).expect("text");
    let lines = text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    (lines, text)
}

fn check_log(lines: &[serde_json::Value]) {
    let of = |event: &str| lines.iter().filter(|line| line["event"] == event).collect::<Vec<_>>();
    let collections = of("collection");
    let first = collections[0];
    assert_eq!(first["heap"], "a \"name\"");
    assert_eq!((&first["sequence"], &first["kind"]), (&1.into(), &"full".into()));
    assert_eq!((&first["collected"], &first["finalized"]), (&1.into(), &1.into()));
    assert_eq!(first["stops_us"].as_array().expect("a list").len(), 2);
    assert!(first["phases_us"]["Finalize"].as_u64() >= Some(2000), "{first}");
    assert!(first["slowest"][0]["type"].as_str().expect("a name").ends_with("Slow"));
    assert!(first["abandoned"].is_null() && collections[1]["because"].is_null());
    assert_eq!((&first["because"], &first["tag"]), (&"a \"test\"".into(), &7.into()));
    assert_eq!(
        (&collections[1]["sequence"], &collections[1]["kind"]),
        (&2.into(), &"young".into())
    );
    assert!(of("promotion")[0]["objects"].as_u64() > Some(0));
    let slow = of("slow");
    let slow = slow.iter().find(|line| line["kind"] == "held up").expect("a slow finalizer");
    assert!(slow["waited_us"].as_u64() >= Some(2000) && slow["os_thread"].is_u64(), "{slow}");
    assert!(slow["thread"].is_string(), "{slow}");
    assert_eq!((&slow["purpose"], &slow["slowest"][0]["during"]), (&().into(), &"Finalize".into()));
    assert!(slow["text"].as_str().expect("a text").contains("a finalizer of "), "{slow}");
}

#[test]
fn a_variable_makes_a_program_log_its_collections() {
    check_log(&logged("gc").0);
    assert_eq!(logged("off").0, Vec::<serde_json::Value>::new());
    let (lines, text) = logged("gcc");
    assert!(lines.is_empty());
    assert!(
        text.contains("STANDSTILL_LOG is `gcc`, not gc, gc:FILE or off, and ignored"),
        "{text}"
    );
}

#[test]
fn the_log_goes_to_a_file_if_one_is_named() {
    let path = std::env::temp_dir().join(format!("standstill-log-{}", std::process::id()));
    let (lines, _) = logged(&format!("gc:{}", path.display()));
    assert!(lines.is_empty());
    let text = std::fs::read_to_string(&path).expect("the file");
    std::fs::remove_file(&path).expect("the file");
    let parsed = text.lines().map(|line| serde_json::from_str(line).expect("JSON"));
    check_log(&parsed.collect::<Vec<_>>());
    // Without such a file, no line is lost.
    check_log(&logged("gc:/nowhere/at/all").0);
}
