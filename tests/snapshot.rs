//! The file with all objects: its content, its errors, and the thread that writes it on request.
#![cfg(not(loom))]

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs;
use std::io::{self, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::Value;
use standstill::{Gc, GcCell, Heap, Mutator, Pacing, Trace, Tracer};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
use tracing_subscriber::registry;

#[derive(Trace)]
struct Leaf {
    text: String,
}

#[derive(Default, Trace)]
struct Registry {
    leaves: GcCell<Vec<Gc<Leaf>>>,
    me: GcCell<Option<Gc<Registry>>>,
}

/// A registry with ten leaves, one of which is held from outside too. It holds itself.
fn build(m: &Mutator) -> (Gc<Registry>, Gc<Leaf>) {
    let registry = m.alloc(Registry::default());
    for number in 0..10 {
        let leaf = m.alloc(Leaf { text: format!("secret {number}") });
        registry.leaves.lock(m).push(leaf);
    }
    let leaf = registry.leaves.lock(m)[3].clone();
    registry.me.set(m, Some(registry.clone()));
    assert_eq!(leaf.text, "secret 3");
    (registry, leaf)
}

/// A decoded file: nodes and edges as rows of numbers.
struct Decoded {
    nodes: Vec<Vec<usize>>,
    /// The node from which each edge leads, and the edge.
    edges: Vec<(usize, Vec<usize>)>,
    strings: Vec<String>,
    process: String,
}

impl Decoded {
    fn of(text: &str) -> Self {
        let file: Value = serde_json::from_str(text).expect("JSON");
        let numbers = |list: &Value| -> Vec<usize> {
            list.as_array().unwrap().iter().map(|n| n.as_u64().unwrap() as usize).collect()
        };
        let meta = &file["snapshot"]["meta"];
        let width = meta["node_fields"].as_array().unwrap().len();
        assert_eq!(meta["node_types"].as_array().unwrap().len(), width);
        let nodes: Vec<_> = numbers(&file["nodes"]).chunks(width).map(<[_]>::to_vec).collect();
        let mut rows = numbers(&file["edges"]);
        assert_eq!(rows.len() % 3, 0);
        let count = rows.len() / 3;
        for (key, count) in [("nodes", nodes.len()), ("edges", count)] {
            assert_eq!(file["trailer"][key], count);
        }
        assert_eq!(file["snapshot"]["node_count"], nodes.len());
        assert_eq!(file["snapshot"]["edge_count"], count);
        let mut edges = Vec::new();
        for (from, node) in nodes.iter().enumerate() {
            for edge in rows.drain(..3 * node[4]).as_slice().chunks(3) {
                assert!(edge[2] % width == 0 && edge[2] / width < nodes.len());
                edges.push((from, vec![edge[0], edge[1], edge[2] / width]));
            }
        }
        assert!(rows.is_empty());
        let strings: Vec<String> = file["strings"]
            .as_array()
            .unwrap()
            .iter()
            .map(|s| s.as_str().unwrap().into())
            .collect();
        assert_eq!(file["trailer"]["strings"], strings.len());
        let process = file["snapshot"]["process"].as_str().unwrap().to_owned();
        Self { nodes, edges, strings, process }
    }

    fn name(&self, node: usize) -> &str {
        &self.strings[self.nodes[node][1]]
    }

    /// The nodes to which edges with a name lead.
    fn named(&self, name: &str) -> Vec<usize> {
        let has_name = |edge: &Vec<usize>| edge[0] == 2 && self.strings[edge[1]] == name;
        self.edges.iter().filter(|(_, edge)| has_name(edge)).map(|(_, edge)| edge[2]).collect()
    }
}

#[test]
fn a_snapshot_has_all_objects_and_references_and_no_content() {
    let heap = Heap::builder().pacing(Pacing::manual()).build().expect("a heap");
    let mut m = heap.attach();
    let _held = build(&m);
    m.collect();
    let graph = m.graph();
    let mut bytes = Vec::new();
    graph.write_snapshot(&mut bytes).unwrap();
    let text = String::from_utf8(bytes).unwrap();
    assert!(!text.contains("secret"));
    let file = Decoded::of(&text);
    // The registry has a vector, and each leaf a string.
    assert_eq!((file.nodes.len(), file.edges.len()), (12 + 11, 2 + 11 + 11));
    assert_eq!(graph.objects(), 11);
    let native = file.nodes.iter().filter(|node| node[0] == 8);
    assert!(native.clone().all(|node| node[3] >= 8) && native.count() == 11);
    let held: Vec<_> = file.edges.iter().filter(|edge| edge.0 == 0).map(|edge| edge.1[2]).collect();
    let mut names: Vec<_> = held.iter().map(|&node| file.name(node)).collect();
    names.sort_unstable();
    assert_eq!(names, ["snapshot::Leaf", "snapshot::Registry"]);
    for node in 1..=graph.objects() {
        let is_held = held.contains(&node);
        let &[kind, _, id, size, _, _, _, outside, old] = &file.nodes[node][..] else { panic!() };
        assert_eq!((kind, outside, old), (3, usize::from(is_held), 1), "{}", file.name(node));
        assert!(size >= 24);
        assert!(id % 2 == 1 && id < 1 << 32);
    }
    assert_eq!(file.named("leaves").len(), 10);
    assert!(file.name(file.named("me")[0]).ends_with("Registry"));
}

#[derive(Trace)]
#[trace(label = Named::label)]
struct Named {
    name: String,
    next: Option<Gc<Named>>,
}

impl Named {
    fn label(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        assert_ne!(self.name, "a label that panics");
        // An error changes nothing, and what follows it is not seen.
        _ = f.write_str(&self.name);
        f.write_str("!")
    }
}

/// An object of a language, with its own names for its references.
#[derive(Trace)]
#[trace(describe = table_fields)]
struct Table {
    entries: Vec<(String, Option<Gc<Table>>)>,
}

fn table_fields(this: &Table, tracer: &mut Tracer) {
    tracer.external(this.entries.capacity() * size_of::<(String, Option<Gc<Table>>)>());
    for (key, value) in &this.entries {
        tracer.field(format!("entries[{key}]"));
        Trace::describe(value, tracer);
    }
}

#[test]
fn a_type_names_its_references_itself() {
    let heap = Heap::builder().pacing(Pacing::manual()).build().expect("a heap");
    let mut m = heap.attach();
    let leaf = m.alloc(Table { entries: Vec::new() });
    let entries = vec![("empty".to_owned(), None), ("leaf".to_owned(), Some(leaf.clone()))];
    let root = m.alloc(Table { entries });
    let leaf = Gc::into_any(leaf);
    let path = m.why_alive(&leaf).to_string();
    assert!(path.contains("snapshot::Table .entries[leaf] -> "), "{path}");
    drop(root);
}

#[test]
fn a_label_is_seen_only_where_it_is_asked_for_and_is_short() {
    let heap = Heap::builder().pacing(Pacing::manual()).build().expect("a heap");
    let mut m = heap.attach();
    let mut next = None;
    // The end of the last label but one lies inside a character.
    for name in ["a".repeat(63), "b".repeat(64), format!("{}äbc", "c".repeat(63)), "\"\n".into()] {
        next = Some(m.alloc(Named { name, next }));
    }
    let (first, leaf) = (next.expect("four"), m.alloc(7u64));
    let graph = m.graph_with_labels();
    let mut bytes = Vec::new();
    graph.write_snapshot(&mut bytes).unwrap();
    let file = Decoded::of(&String::from_utf8(bytes).unwrap());
    let mut names: Vec<_> = (1..=graph.objects()).map(|node| file.name(node)).collect();
    names.sort_unstable();
    let named = |label: &str| format!("snapshot::Named \"{label}\"");
    let (a, b, c) = ("a".repeat(63), "b".repeat(64), "c".repeat(63));
    let labels = ["\\\"\\n!", &format!("{a}!"), &format!("{b}…"), &format!("{c}…")];
    assert_eq!(names[..4], labels.map(named));
    assert_eq!(names[4], "u64");
    let held: BTreeSet<_> = graph.holders().into_iter().map(|holder| holder.label).collect();
    assert_eq!(held, BTreeSet::from(["".to_owned(), "\"\n!".to_owned()]));
    let last = first.next.as_ref().and_then(|it| it.next.as_ref()?.next.clone()).expect("the last");
    let plain = m.why_alive(&Gc::into_any(last));
    assert!(!plain.to_string().contains('"'), "{plain}");
    let path = graph.why_alive(plain.steps[3].address).expect("a path").to_string();
    assert!(
        path.contains(&format!("{} .next -> {}", named(labels[3]), named(labels[2]))),
        "{path}"
    );
    drop(leaf);
    let mut bytes = Vec::new();
    m.graph().write_snapshot(&mut bytes).unwrap();
    assert!(!String::from_utf8(bytes).unwrap().contains("aaa"));

    let _panics = m.alloc(Named { name: "a label that panics".into(), next: None });
    let refused = catch_unwind(AssertUnwindSafe(|| m.graph_with_labels()));
    assert!(refused.is_err());
    assert_eq!((m.graph().objects(), m.verify()), (5, Ok(())));
}

/// The nodes of a file by their ids: name, size, references from outside, age, and the edges, each
/// with its name and the id of its target.
type ById = BTreeMap<usize, (String, usize, usize, usize, Vec<(usize, String, usize)>)>;

fn by_id(file: &Decoded) -> ById {
    let mut nodes: ById = BTreeMap::new();
    for (at, node) in file.nodes.iter().enumerate() {
        nodes.insert(node[2], (file.name(at).to_owned(), node[3], node[7], node[8], Vec::new()));
    }
    for (from, edge) in &file.edges {
        // The edges of the root and of arrays have numbers.
        let name = if edge[0] == 1 { String::new() } else { file.strings[edge[1]].clone() };
        let edges = &mut nodes.get_mut(&file.nodes[*from][2]).expect("a node").4;
        edges.push((edge[0], name, file.nodes[edge[2]][2]));
    }
    nodes
}

/// Writes the heap in both ways, and compares the files.
fn compare(m: &mut Mutator, test: &str) -> Decoded {
    let folder = Folder::new(test);
    let (by_child, copied) = (folder.0.join("child"), folder.0.join("copied"));
    m.snapshot(&by_child).unwrap();
    m.graph().save_snapshot(&copied).unwrap();
    let [by_child, copied] =
        [by_child, copied].map(|path| Decoded::of(&fs::read_to_string(path).expect("a snapshot")));
    assert_eq!(by_id(&by_child), by_id(&copied));
    by_child
}

#[derive(Default, Trace)]
struct Node {
    next: GcCell<Option<Gc<Node>>>,
    more: GcCell<Vec<Gc<Node>>>,
    leaf: GcCell<Option<Gc<Leaf>>>,
}

#[test]
fn a_child_writes_the_file_of_a_copied_heap() {
    let heap = Heap::builder().pacing(Pacing::manual()).build().expect("a heap");
    let mut m = heap.attach();
    assert_eq!(compare(&mut m, "random").nodes.len(), 1, "of an empty heap, the outside");
    let mut state = 7_u64;
    let mut below = |n: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 33) as usize % n
    };
    let mut held: Vec<Gc<Node>> = Vec::new();
    for round in 0..3 {
        for _ in 0..2000 {
            let node = m.alloc(Node::default());
            if !held.is_empty() {
                node.next.set(&m, Some(held[below(held.len())].clone()));
                let more = below(4);
                let more = (0..more).map(|_| held[below(held.len())].clone());
                node.more.lock(&m).extend(more);
                let at = below(held.len());
                held[at].next.set(&m, Some(node.clone()));
            }
            if below(3) == 0 {
                node.leaf.set(&m, Some(m.alloc(Leaf { text: "secret".repeat(below(9)) })));
            }
            held.push(node);
        }
        // Some die, and some become garbage; those of the first rounds are old.
        let kept = held.len() / 4;
        held.truncate(kept);
        if round < 2 {
            m.collect();
        }
        assert!(compare(&mut m, "random").nodes.len() > kept);
    }
    // An object with more references than a page has objects, and two locked fields.
    let wide = m.alloc(Node::default());
    wide.more.lock(&m).extend(held.iter().cycle().take(100_000).cloned());
    assert!(compare(&mut m, "random").edges.len() > 100_000);
}

/// The reasons that events name.
#[derive(Clone, Default)]
struct Told(Arc<Mutex<Vec<String>>>);

impl<S: tracing::Subscriber> Layer<S> for Told {
    fn on_event(&self, event: &tracing::Event<'_>, _: Context<'_, S>) {
        event.record(&mut |field: &tracing::field::Field, value: &dyn std::fmt::Debug| {
            if field.name() == "reason" {
                self.0.lock().unwrap().push(format!("{value:?}"));
            }
        });
    }
}

/// What [`Odd::describe`] does in a child of the process.
static ODD: AtomicUsize = AtomicUsize::new(0);
static PARENT: AtomicU32 = AtomicU32::new(0);

/// An object that must not be described in a child.
struct Odd(GcCell<Vec<Gc<Leaf>>>);

impl Trace for Odd {
    fn traverse(this: &Self, tracer: &mut Tracer) {
        Trace::traverse(&this.0, tracer);
    }

    fn describe(this: &Self, tracer: &mut Tracer) {
        let is_child = std::process::id() != PARENT.load(Ordering::Relaxed);
        match ODD.load(Ordering::Relaxed) {
            0 if is_child => panic!("in the child"),
            1 if is_child => std::process::abort(),
            2 if is_child && ODD_CALLS.fetch_add(1, Ordering::Relaxed) > 0 => {}
            _ => Trace::describe(&this.0, tracer),
        }
    }
}

static ODD_CALLS: AtomicUsize = AtomicUsize::new(0);

/// An object with many attributes, of which some have the same value, and one leads to itself.
#[cfg(feature = "cpython")]
#[test]
fn a_child_names_attributes_as_a_copy_does() {
    let heap = Heap::builder().pacing(Pacing::manual()).build().expect("a heap");
    let mut m = heap.attach();
    let class = standstill::dynamic::Class::new("tests.Full").make(&m).unwrap();
    let [object, other] = [(); 2].map(|()| class.instantiate(&m).unwrap());
    let shared = Gc::into_any(m.alloc(Leaf { text: "shared".into() }));
    for number in 0..100 {
        let own = Gc::into_any(m.alloc(Leaf { text: String::new() }));
        object.set_attribute(&m, &format!("own{number}"), Some(own)).unwrap();
    }
    for name in ["one", "two"] {
        object.set_attribute(&m, name, Some(shared.clone())).unwrap();
    }
    object.set_attribute(&m, "me", Some(object.clone())).unwrap();
    other.set_attribute(&m, "object", Some(object.clone())).unwrap();
    let file = compare(&mut m, "attributes");
    for name in (0..100)
        .map(|number| format!("own{number}"))
        .chain(["one", "two", "me", "object"].map(str::to_owned))
    {
        assert_eq!(file.named(&name).len(), 1, "{name}");
    }
}

/// Takes a snapshot when it is dropped.
struct OnDrop<'a>(&'a mut Mutator, PathBuf);

impl Drop for OnDrop<'_> {
    fn drop(&mut self) {
        // A panic in the child must not come back here either.
        let taken = catch_unwind(AssertUnwindSafe(|| self.0.snapshot(&self.1)));
        taken.expect("no panic").expect("a snapshot");
    }
}

#[test]
fn a_snapshot_while_the_thread_panics_is_a_copy() {
    let heap = Heap::builder().pacing(Pacing::manual()).build().expect("a heap");
    let mut m = heap.attach();
    let held = build(&m);
    let folder = Folder::new("panics");
    let path = folder.0.join("file");
    let died = catch_unwind(AssertUnwindSafe(|| {
        let _guard = OnDrop(&mut m, path.clone());
        panic!("as planned");
    }));
    assert!(died.is_err());
    assert_eq!(Decoded::of(&fs::read_to_string(path).unwrap()).nodes.len(), 12 + 11);
    assert_eq!(folder.files(), ["file"]);
    drop(held);
}

#[test]
fn snapshots_with_one_path_do_not_meet() {
    let folder = Folder::new("same");
    let path = folder.0.join("file");
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                let heap = Heap::builder().pacing(Pacing::manual()).build().expect("a heap");
                let mut m = heap.attach();
                let held = build(&m);
                for _ in 0..10 {
                    m.snapshot(&path).expect("a file of its own");
                    Decoded::of(&fs::read_to_string(&path).expect("one is there"));
                }
                drop(held);
            });
        }
    });
    assert_eq!(folder.files(), ["file"]);
}

#[test]
fn a_child_that_fails_costs_only_a_stop() {
    PARENT.store(std::process::id(), Ordering::Relaxed);
    let heap = Heap::builder().pacing(Pacing::manual()).build().expect("a heap");
    let mut m = heap.attach();
    let odd = m.alloc(Odd(GcCell::new(Vec::new())));
    odd.0.lock(&m).push(m.alloc(Leaf { text: String::new() }));
    let reasons = ["panicked", "signal 6", "differently"];
    for (mode, reason) in reasons.into_iter().enumerate() {
        ODD.store(mode, Ordering::Relaxed);
        let told = Told::default();
        tracing::subscriber::with_default(registry().with(told.clone()), || compare(&mut m, "odd"));
        let told = told.0.lock().unwrap();
        assert!(told.iter().any(|event| event.contains(reason)), "{told:?}");
    }
    assert!(m.collect().abandoned.is_none());
}

#[test]
fn ids_name_the_same_objects_in_two_files() {
    let heap = Heap::builder().pacing(Pacing::manual()).build().expect("a heap");
    let mut m = heap.attach();
    let kept = build(&m);
    let ids = |m: &mut Mutator| -> (Vec<usize>, String) {
        let mut bytes = Vec::new();
        m.graph().write_snapshot(&mut bytes).unwrap();
        let file = Decoded::of(&String::from_utf8(bytes).unwrap());
        (file.nodes.iter().map(|node| node[2]).collect(), file.process)
    };
    let (before, process) = ids(&mut m);
    let more = build(&m);
    let (after, same_process) = ids(&mut m);
    assert_eq!(process, same_process);
    assert!(process.starts_with(&format!("{}-", std::process::id())), "{process}");
    assert!(before.iter().all(|id| after.contains(id)));
    assert_eq!(after.len(), before.len() + 22);
    drop((kept, more));
}

/// Takes some bytes, and then refuses.
struct Small(usize);

impl Write for Small {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.0 < bytes.len() {
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.0 -= bytes.len();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A folder of a test, removed at its end.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("standstill-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn files(&self) -> Vec<String> {
        let files = fs::read_dir(&self.0).unwrap();
        let mut names: Vec<_> =
            files.map(|file| file.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn a_snapshot_that_cannot_be_written_leaves_no_part() {
    let heap = Heap::builder().pacing(Pacing::manual()).build().expect("a heap");
    let mut m = heap.attach();
    let (registry, _leaf) = build(&m);
    let graph = m.graph();
    assert_eq!(graph.write_snapshot(Small(100)).unwrap_err().kind(), io::ErrorKind::StorageFull);
    let folder = Folder::new("errors");
    assert!(m.snapshot(folder.0.join("none").join("file")).is_err());
    // The name is that of a folder, so that the part cannot get it.
    fs::create_dir(folder.0.join("taken")).unwrap();
    assert!(m.snapshot(folder.0.join("taken")).is_err());
    assert_eq!(folder.files(), ["taken"]);
    m.snapshot(folder.0.join("file")).unwrap();
    assert_eq!(folder.files(), ["file", "taken"]);
    assert_eq!(m.collect().collected, 0);
    assert_eq!(registry.leaves.lock(&m).len(), 10);
}

// ------------------------------------------------------------------------------ STANDSTILL_DIAG

/// A process that ends with its test.
struct Served(Option<Child>);

impl Drop for Served {
    fn drop(&mut self) {
        if let Some(mut child) = self.0.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Served {
    fn id(&self) -> u32 {
        self.0.as_ref().expect("a child").id()
    }

    /// What it has written to standard error, at its end.
    fn stderr(mut self) -> String {
        let output = self.0.take().expect("a child").wait_with_output().unwrap();
        String::from_utf8_lossy(&output.stderr).into_owned()
    }
}

/// The test in a process of its own, with the variable.
fn served(test: &str, folder: &Path) -> Served {
    let child = Command::new(std::env::current_exe().expect("this program"))
        .args(["--exact", test, "--nocapture"])
        .env("STANDSTILL_DIAG", folder)
        .env("SNAPSHOT_PART", test)
        .stderr(Stdio::piped())
        .stdout(Stdio::null())
        .spawn();
    Served(Some(child.expect("a process")))
}

fn plays(test: &str) -> bool {
    std::env::var_os("SNAPSHOT_PART").is_some_and(|part| part == test)
}

/// Waits until a file of this name is there.
fn await_file(folder: &Folder, ending: &str) -> PathBuf {
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(120) {
        if let Some(name) = folder.files().into_iter().find(|name| name.ends_with(ending)) {
            return folder.0.join(name);
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    panic!("no file *{ending} among {:?}", folder.files());
}

#[test]
fn a_file_in_the_folder_asks_for_a_snapshot() {
    let test = "a_file_in_the_folder_asks_for_a_snapshot";
    if plays(test) {
        // It never polls, and so is detached.
        let heap = Heap::builder().name("my app").build().expect("a heap");
        let mut m = heap.attach();
        let kept = build(&m);
        m.detach(|| std::thread::sleep(Duration::from_secs(300)));
        drop(kept);
        return;
    }
    let folder = Folder::new("asked");
    let child = served(test, &folder.0);
    // Until the file is newer than the heap, and then once more.
    let mut begun = Instant::now();
    for number in 1..=2 {
        let ending = format!("-my_app-{number}.heapsnapshot");
        let request = folder.0.join(format!("snapshot.{}", child.id()));
        while !folder.files().iter().any(|name| name.ends_with(&ending)) {
            fs::write(&request, "").unwrap();
            std::thread::sleep(Duration::from_millis(1100));
            assert!(begun.elapsed() < Duration::from_secs(120), "{:?}", folder.files());
        }
        let path = await_file(&folder, &ending);
        let file = Decoded::of(&fs::read_to_string(path).unwrap());
        assert_eq!(file.nodes.len(), 12 + 11);
        begun = Instant::now();
    }
}

#[test]
fn a_heap_that_is_full_writes_one_snapshot() {
    let test = "a_heap_that_is_full_writes_one_snapshot";
    if plays(test) {
        let heap = Heap::builder().name("full").limit(4 << 20).build().expect("a heap");
        let mut m = heap.attach();
        let registry = m.alloc(Registry::default());
        loop {
            while let Ok(leaf) = m.try_alloc(Leaf { text: String::new() }) {
                registry.leaves.lock(&m).push(leaf);
                m.safepoint();
            }
            // It goes on to be refused.
            m.detach(|| std::thread::sleep(Duration::from_millis(50)));
        }
    }
    let folder = Folder::new("full");
    let mut child = served(test, &folder.0);
    let path = await_file(&folder, "-full-1.heapsnapshot");
    assert!(Decoded::of(&fs::read_to_string(path).unwrap()).nodes.len() > 1000);
    std::thread::sleep(Duration::from_millis(1500));
    assert_eq!(folder.files().len(), 1, "{:?}", folder.files());
    child.0.as_mut().expect("a child").kill().unwrap();
    let text = child.stderr();
    assert!(text.contains("standstill: heap 'full': a snapshot with "), "{text}");
}

#[test]
fn heaps_of_one_name_write_files_of_their_own() {
    let test = "heaps_of_one_name_write_files_of_their_own";
    if plays(test) {
        let heaps = [Heap::new(), Heap::new()];
        let held = heaps.each_ref().map(|heap| build(&heap.attach()));
        std::thread::sleep(Duration::from_secs(300));
        drop(held);
        return;
    }
    let folder = Folder::new("twice");
    let child = served(test, &folder.0);
    let begun = Instant::now();
    let complete = |folder: &Folder| {
        let files = folder.files().into_iter().filter(|name| name.ends_with(".heapsnapshot"));
        files.map(|name| folder.0.join(name)).collect::<Vec<_>>()
    };
    while complete(&folder).len() < 2 {
        fs::write(folder.0.join("snapshot"), "").unwrap();
        std::thread::sleep(Duration::from_millis(600));
        assert!(begun.elapsed() < Duration::from_secs(120), "{:?}", folder.files());
    }
    for path in complete(&folder) {
        assert_eq!(Decoded::of(&fs::read_to_string(path).unwrap()).nodes.len(), 12 + 11);
    }
    drop(child);
}

#[test]
fn a_value_that_is_no_folder_is_told() {
    let test = "a_value_that_is_no_folder_is_told";
    if plays(test) {
        drop(Heap::new());
        return;
    }
    let text = served(test, Path::new("/nowhere/at/all")).stderr();
    assert!(text.contains("STANDSTILL_DIAG is `/nowhere/at/all`, which is no folder"), "{text}");
}
