//! Gives arbitrary bytes to the reader of snapshots. The reader accepts them, or names the mistake
//! and its place in one line. Its memory is bounded by the number of bytes. All questions about a
//! snapshot that it accepts have answers.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::io::Cursor;
use std::path::Path;

use standstill_heap::census::{ClassTable, Summary};
use standstill_heap::diff::{Before, Diff};
use standstill_heap::fold::Fold;
use standstill_heap::page::Page;
use standstill_heap::paths::Paths;
use standstill_heap::snapshot::Snapshot;
use standstill_heap::source::Source;
use standstill_heap::tree::Tree;
use standstill_heap::{perfetto, pprof};

/// Bytes that any file may cost: buffers, a decoder, and the growth that is not judged.
const FREE: usize = 16 << 20;
/// Bytes of memory for a byte of JSON.
const JSON: usize = 32;
/// The reader's limit: bytes of JSON for each byte of the file.
const GROWTH: usize = 256;

/// Reads `bytes`, whatever they are.
pub(crate) fn examine(bytes: &[u8]) {
    let packed =
        matches!(bytes, [0x28, 0xB5, 0x2F, 0xFD, ..] | [0x50..=0x5F, 0x2A, 0x4D, 0x18, ..]);
    let allowed = FREE + JSON * if packed { GROWTH } else { 1 } * bytes.len();
    Counting::start();
    let read = Source::new(Box::new(Cursor::new(bytes.to_vec()))).and_then(Snapshot::read);
    let taken = Counting::most();
    assert!(taken <= allowed, "{} bytes of a file took {taken} bytes of memory", bytes.len());
    match read {
        Ok(snapshot) => check_all(&snapshot),
        Err(fault) => {
            assert!(
                !fault.place.is_empty() && !fault.reason.is_empty(),
                "what is wrong, and where? {fault:?}"
            );
            let line = fault.of(Path::new("file")).to_string();
            assert!(
                line.starts_with("file: ") && line.lines().count() == 1,
                "not one line: {line:?}"
            );
        }
    }
}

/// Whatever has been read can be looked at.
fn check_all(snapshot: &Snapshot) {
    let nodes = snapshot.nodes().len();
    let mut edges = 0;
    for (node, record) in snapshot.nodes().iter().enumerate() {
        assert!(record.size < 1 << 53 && snapshot.name_of(node).chars().count() <= 80);
        // Every number leads to a string.
        let _ = snapshot.class_name(snapshot.class_of(node));
        for edge in snapshot.edges_of(node) {
            assert!(edge.target() < nodes && !snapshot.field(edge).is_empty());
        }
        edges += snapshot.edges_of(node).len();
    }
    assert_eq!(edges, snapshot.edge_count());
    let reachable = snapshot.reachable();
    assert!((1..=nodes).contains(&reachable));
    answer_all(snapshot, reachable);
}

/// Each question has an answer, whatever the snapshot is.
fn answer_all(snapshot: &Snapshot, reachable: usize) {
    let tree = Tree::of(snapshot);
    assert_eq!(tree.order().count(), reachable);
    let bytes = tree.order().map(|node| snapshot.nodes()[node].size).sum::<u64>();
    assert_eq!(tree.total(), bytes);
    let (paths, last) = (Paths::of(&tree), snapshot.nodes().len() - 1);
    assert_eq!(paths.to(last).is_some(), tree.is_reached(last));
    let texts = [Summary::of(&tree).to_string(), ClassTable::of(&tree, 10).to_string()];
    assert!(texts.iter().all(|text| text.chars().all(|c| c == '\n' || !c.is_control())));
    let page = Page { title: "<fuzz>", tree: &tree, pauses: None, share: 10 }.to_string();
    assert!(!page.contains("NaN") && !page.contains("<fuzz>") && !page.contains("<script"));
    if let Some(before) = Before::of(snapshot) {
        let same = Diff::of(before, &tree, 90, 10);
        assert_eq!(same.map(|same| same.new_objects), Some(0));
    }
    perfetto::write(snapshot, "fuzz", &mut std::io::sink()).expect("a sink takes all");
    pprof::write(&tree, &mut std::io::sink()).expect("a sink takes all");
    for most in [Fold::LEAST, 8, 1_000] {
        let mut file = Vec::new();
        Fold::of(&tree, most).write(&mut file).expect("a list takes all");
        let source = Source::new(Box::new(Cursor::new(file))).expect("it is not empty");
        let folded = Snapshot::read(source).expect("a fold is a snapshot");
        assert!(folded.nodes().len() <= most);
        let sum = |it: &Snapshot| it.nodes().iter().map(|node| node.size).sum::<u64>();
        assert_eq!(sum(&folded), sum(snapshot));
        assert_eq!(Tree::of(&folded).total(), tree.total());
    }
}

/// Counts the bytes that a thread has allocated.
pub(crate) struct Counting;

thread_local! {
    static NOW: Cell<usize> = const { Cell::new(0) };
    static MOST: Cell<usize> = const { Cell::new(0) };
}

impl Counting {
    /// Counts from here on.
    fn start() {
        NOW.set(0);
        MOST.set(0);
    }

    /// The most at a time, since the start.
    fn most() -> usize {
        MOST.get()
    }

    fn took(bytes: usize) {
        let now = NOW.get() + bytes;
        NOW.set(now);
        MOST.set(MOST.get().max(now));
    }
}

// SAFETY: the system's allocator does it all; counting allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        Self::took(layout.size());
        // SAFETY: as the caller says.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        Self::took(layout.size());
        // SAFETY: as the caller says.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        NOW.set(NOW.get().saturating_sub(layout.size()));
        // SAFETY: as the caller says.
        unsafe { System.dealloc(block, layout) }
    }
}
