//! A heap as a file that viewers open.
//!
//! Looking into a heap needs a viewer, and people have one: the developer tools of Chrome, which
//! read V8's `.heapsnapshot`. So a graph is written in that format, and other tools that read it
//! work too, such as `standstill-heap`.
//!
//! For example, a handle refers to A, and A to B by its field `next`. The file has node 0, which
//! stands for all that is outside, an edge from it to A, the nodes A and B, and an edge `next`. The
//! id of an object is where it lies in the heap, so two files of one process agree on the objects
//! that were alive in both. It is no address, because viewers keep 32 bits of it.
//!
//! What the format does not have is in members that its readers skip: each node has `outside`, the
//! number of references from outside, and `old`. `process` tells files of one process from others,
//! where the same ids are other objects. Bytes outside of the heap are a node of their own,
//! because the format has one size for a node. The last member, `trailer`, repeats the counts, so
//! that a file without it is known as cut.

#![forbid(unsafe_code)]

use std::ffi::OsString;
use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

use crate::base::fallible;
use crate::diagnose::graph::HeapGraph;
use crate::report::log::Quoted;

/// V8's number for a node that is an ordinary object.
const OBJECT: u32 = 3;
/// Memory of other libraries.
const NATIVE: u32 = 8;
/// A node that stands for no object.
const SYNTHETIC: u32 = 9;
/// An edge whose name is a number.
const ELEMENT: u32 = 1;
/// An edge whose name is a string.
const PROPERTY: u32 = 2;
/// An edge that no program has named.
const INTERNAL: u32 = 3;

const FIELDS: [&str; 9] = [
    "type",
    "name",
    "id",
    "self_size",
    "edge_count",
    "trace_node_id",
    "detachedness",
    "outside",
    "old",
];

/// The first strings of a file.
pub(super) const STRINGS: [&str; 4] =
    ["", "(outside)", "outside the heap", "(bytes outside the heap)"];
const OUTSIDE: usize = 1;
const EXTERNAL: usize = 2;
const EXTERNAL_EDGE: usize = 3;

/// How many there are in a file.
#[derive(Clone, Copy, Default)]
pub(super) struct SnapshotTotals {
    pub(super) objects: usize,
    pub(super) references: usize,
    /// The objects that are held from outside.
    pub(super) held: usize,
    /// The objects with bytes outside the heap.
    pub(super) externals: usize,
}

/// An object of a file.
pub(super) struct SnapshotNode {
    /// The number of the string with the name of its type.
    pub(super) name: usize,
    pub(super) number: u32,
    pub(super) bytes: usize,
    pub(super) external_bytes: usize,
    /// The number of its references.
    pub(super) edges: usize,
    pub(super) outside: usize,
    pub(super) is_held: bool,
    pub(super) is_old: bool,
}

impl SnapshotNode {
    /// The id: odd, as those of V8's objects are. The next number is that of the bytes outside the
    /// heap.
    fn id(&self) -> usize {
        2 * self.number as usize + 3
    }
}

/// A reference of an object, or the end of its references.
pub(super) enum SnapshotEdge {
    /// The `name` is the number of a string, the target that of a node.
    Reference {
        index: usize,
        name: Option<usize>,
        target: usize,
    },
    End {
        has_external: bool,
    },
}

/// What is written into a file: the same nodes in the same order each time.
pub(super) trait SnapshotSource {
    type Error: From<io::Error>;

    fn totals(&self) -> SnapshotTotals;

    fn nodes(
        &mut self,
        row: impl FnMut(SnapshotNode) -> Result<(), Self::Error>,
    ) -> Result<(), Self::Error>;

    /// The references of all nodes, in the order of the nodes.
    fn edges(
        &mut self,
        row: impl FnMut(SnapshotEdge) -> Result<(), Self::Error>,
    ) -> Result<(), Self::Error>;

    /// All strings, by their numbers: first [`STRINGS`].
    fn strings(
        &self,
        row: impl FnMut(&dyn fmt::Display) -> Result<(), Self::Error>,
    ) -> Result<(), Self::Error>;
}

/// What tells the files of one process from those of others, where the same ids are other objects.
#[derive(Clone, Copy)]
pub(super) struct ProcessStamp {
    process: u32,
    /// When this process, or the one that it is a fork of, wrote its first file, in nanoseconds
    /// since the epoch. A later process may get the same number.
    first: u64,
}

impl ProcessStamp {
    pub(super) fn new() -> Self {
        static FIRST: AtomicU64 = AtomicU64::new(0);
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let now = now.as_nanos() as u64;
        // Relaxed: no other data is read with it.
        let first = FIRST.compare_exchange(0, now, Ordering::Relaxed, Ordering::Relaxed);
        Self { process: std::process::id(), first: first.err().unwrap_or(now) }
    }
}

/// A writer that passes on large pieces, as std's does, except that its memory may be refused.
pub(super) struct PieceWriter<W> {
    to: W,
    piece: Vec<u8>,
}

impl<W: Write> PieceWriter<W> {
    pub(super) fn new(to: W) -> io::Result<Self> {
        let mut piece = Vec::new();
        piece.try_reserve_exact(1 << 16)?;
        Ok(Self { to, piece })
    }

    fn pass_on(&mut self) -> io::Result<()> {
        self.to.write_all(&self.piece)?;
        self.piece.clear();
        Ok(())
    }
}

impl<W: Write> Write for PieceWriter<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.piece.len() == self.piece.capacity() {
            self.pass_on()?;
        }
        let room = self.piece.capacity() - self.piece.len();
        let fitting = &bytes[..bytes.len().min(room)];
        self.piece.extend_from_slice(fitting);
        Ok(fitting.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.pass_on()?;
        self.to.flush()
    }
}

/// A list of numbers, separated by commas and by lines.
struct Numbers<'w, W> {
    to: &'w mut W,
    is_first: bool,
}

impl<'w, W: Write> Numbers<'w, W> {
    fn begin(to: &'w mut W, name: &str) -> io::Result<Self> {
        write!(to, ",\n\"{name}\":[")?;
        Ok(Self { to, is_first: true })
    }

    fn row<const N: usize>(&mut self, numbers: [usize; N]) -> io::Result<()> {
        // The longest numbers, each with a comma, and a line feed.
        const { assert!(N * (20 + 1) < 256) };
        // Backwards, because the last digit is found first. std's formatting takes three times as
        // long.
        let mut text = [0; 256];
        let mut at = text.len();
        let mut put = |byte| {
            at -= 1;
            text[at] = byte;
        };
        for (place, mut number) in numbers.into_iter().enumerate().rev() {
            while {
                put(b'0' + (number % 10) as u8);
                number /= 10;
                number > 0
            } {}
            match place {
                0 if std::mem::replace(&mut self.is_first, false) => {}
                0 => b"\n,".iter().copied().for_each(&mut put),
                _ => put(b','),
            }
        }
        self.to.write_all(&text[at..])
    }

    fn close(self) -> io::Result<()> {
        self.to.write_all(b"]")
    }
}

impl HeapGraph {
    /// Writes the graph in the format `.heapsnapshot`, which the developer tools of Chrome and Edge
    /// open, and `standstill-heap`. It has names of types and fields, sizes and references, and no
    /// content of objects but the labels of
    /// [`graph_with_labels`](crate::Mutator::graph_with_labels). An object with a label is named
    /// `Session "alice"`, so it is a class of its own to a viewer. The writer gets large pieces,
    /// and needs no buffer.
    ///
    /// # Errors
    ///
    /// Those of `to`, which has then got a part of the file; and
    /// [`OutOfMemory`](io::ErrorKind::OutOfMemory) if the memory of a piece is refused.
    pub fn write_snapshot(&self, to: impl Write) -> io::Result<()> {
        let mut to = PieceWriter::new(to)?;
        write_from(&mut &*self, ProcessStamp::new(), &mut to)?;
        to.flush()
    }

    /// Writes the graph into a file, as [`write_snapshot`](Self::write_snapshot) does. The file
    /// appears under its name when it is complete; until then `.PID-N.part` is behind the name.
    ///
    /// # Errors
    ///
    /// Those of the file system, and [`OutOfMemory`](io::ErrorKind::OutOfMemory). The part is
    /// removed then, and a file that had the name is as it was.
    pub fn save_snapshot(&self, path: impl AsRef<Path>) -> io::Result<()> {
        let part = PartFile::new(path.as_ref())?;
        self.write_snapshot(&part.file)?;
        part.complete()
    }
}

/// A file that is being written, under another name than its own. It is removed unless it is
/// completed.
pub(super) struct PartFile {
    pub(super) file: File,
    part: OsString,
    path: PathBuf,
    is_complete: bool,
}

impl PartFile {
    pub(super) fn new(path: &Path) -> io::Result<Self> {
        /// Relaxed: the numbers only differ.
        static PARTS: AtomicU64 = AtomicU64::new(0);
        // Two snapshots may have one path.
        let number = PARTS.fetch_add(1, Ordering::Relaxed);
        let ending = format_args!(".{}-{number}.part", std::process::id());
        let ending = fallible::written(ending).ok_or(io::ErrorKind::OutOfMemory)?;
        let mut part = OsString::new();
        part.try_reserve_exact(path.as_os_str().len() + ending.len())?;
        part.push(path);
        part.push(ending);
        let mut kept = OsString::new();
        kept.try_reserve_exact(path.as_os_str().len())?;
        kept.push(path);
        // Not through a link that somebody has left there.
        drop(fs::remove_file(&part));
        let file = OpenOptions::new().write(true).create_new(true).open(&part)?;
        Ok(Self { file, part, path: kept.into(), is_complete: false })
    }

    /// The path, when the part is given up.
    pub(super) fn path(mut self) -> PathBuf {
        std::mem::take(&mut self.path)
    }

    pub(super) fn complete(mut self) -> io::Result<()> {
        // A disk may tell only now that it is full.
        self.file.sync_all()?;
        fs::rename(&self.part, &self.path)?;
        self.is_complete = true;
        Ok(())
    }
}

impl Drop for PartFile {
    fn drop(&mut self) {
        if !self.is_complete {
            // An earlier error is the one that explains the failure.
            drop(fs::remove_file(&self.part));
        }
    }
}

impl SnapshotSource for &HeapGraph {
    type Error = io::Error;

    fn totals(&self) -> SnapshotTotals {
        let (nodes, references) = (&self.nodes, self.targets.len());
        SnapshotTotals {
            objects: nodes.len(),
            references,
            held: nodes.iter().filter(|node| node.is_held).count(),
            externals: nodes.iter().filter(|node| node.external_bytes > 0).count(),
        }
    }

    fn nodes(&mut self, row: impl FnMut(SnapshotNode) -> io::Result<()>) -> io::Result<()> {
        let first_label = STRINGS.len() + self.types.len() + self.names.len();
        let mut labels = (first_label..).zip(&self.labels).peekable();
        let mut nodes = self.nodes.iter().enumerate().map(|(at, node)| {
            let label = labels.next_if(|(_, (labelled, _))| *labelled as usize == at);
            let of_type = STRINGS.len() + node.type_number as usize;
            SnapshotNode {
                name: label.map_or(of_type, |(name, _)| name),
                number: node.number,
                bytes: node.bytes,
                external_bytes: node.external_bytes,
                edges: self.starts[at + 1] - self.starts[at],
                outside: node.outside as usize,
                is_held: node.is_held,
                is_old: node.is_old,
            }
        });
        nodes.try_for_each(row)
    }

    fn edges(&mut self, mut row: impl FnMut(SnapshotEdge) -> io::Result<()>) -> io::Result<()> {
        let first_field = STRINGS.len() + self.types.len();
        for (at, node) in self.nodes.iter().enumerate() {
            for (index, (target, field)) in self.edges_of(at).enumerate() {
                let is_named = !self.names[field as usize].is_empty();
                let name = is_named.then_some(first_field + field as usize);
                row(SnapshotEdge::Reference { index, name, target: target as usize })?;
            }
            row(SnapshotEdge::End { has_external: node.external_bytes > 0 })?;
        }
        Ok(())
    }

    fn strings(&self, mut row: impl FnMut(&dyn fmt::Display) -> io::Result<()>) -> io::Result<()> {
        let types = (0..self.types.len()).map(|number| self.types.name(number as u32));
        let names = self.names.iter().map(|name| &**name);
        let mut texts = STRINGS.into_iter().chain(types).chain(names);
        texts.try_for_each(|text| row(&text))?;
        self.labels.iter().try_for_each(|(node, label)| {
            let type_name = self.types.name(self.nodes[*node as usize].type_number);
            row(&format_args!("{type_name} {label:?}"))
        })
    }
}

/// Writes a file.
pub(super) fn write_from<S: SnapshotSource>(
    source: &mut S,
    ProcessStamp { process, first }: ProcessStamp,
    to: &mut impl Write,
) -> Result<(), S::Error> {
    let SnapshotTotals { objects, references, held, externals } = source.totals();
    let (nodes, edges) = (1 + objects + externals, held + references + externals);
    let width = FIELDS.len();
    to.write_all(b"{\"snapshot\":{\"meta\":{\"node_fields\":[")?;
    for (at, field) in FIELDS.into_iter().enumerate() {
        write!(to, "{}{}", if at == 0 { "" } else { "," }, Quoted(field))?;
    }
    write!(
        to,
        "],\"node_types\":[[\"hidden\",\"array\",\"string\",\"object\",\"code\",\"closure\",\
         \"regexp\",\"number\",\"native\",\"synthetic\"],\"string\",\"number\",\"number\",\
         \"number\",\"number\",\"number\",\"number\",\"number\"],\
         \"edge_fields\":[\"type\",\"name_or_index\",\"to_node\"],\
         \"edge_types\":[[\"context\",\"element\",\"property\",\"internal\",\"hidden\",\
         \"shortcut\",\"weak\"],\"string_or_number\",\"node\"],\
         \"trace_function_info_fields\":[],\"trace_node_fields\":[],\"sample_fields\":[],\
         \"location_fields\":[]}},\"node_count\":{nodes},\"edge_count\":{edges},\
         \"trace_function_count\":0,\"process\":\"{process}-{first}\"}}"
    )?;
    let mut rows = Numbers::begin(to, "nodes")?;
    rows.row([SYNTHETIC as usize, OUTSIDE, 1, 0, held, 0, 0, 0, 0])?;
    source.nodes(|node| {
        let edges = node.edges + usize::from(node.external_bytes > 0);
        let old = usize::from(node.is_old);
        let (name, id, outside) = (node.name, node.id(), node.outside);
        Ok(rows.row([OBJECT as usize, name, id, node.bytes, edges, 0, 0, outside, old])?)
    })?;
    if externals > 0 {
        source.nodes(|node| {
            let (id, bytes) = (node.id() + 1, node.external_bytes);
            if bytes > 0 {
                rows.row([NATIVE as usize, EXTERNAL, id, bytes, 0, 0, 0, 0, 0])?;
            }
            Ok(())
        })?;
    }
    rows.close()?;
    let mut rows = Numbers::begin(to, "edges")?;
    let place = |node: usize| (1 + node) * width;
    let (mut index, mut node) = (0, 0);
    source.nodes(|SnapshotNode { is_held, .. }| {
        if is_held {
            rows.row([ELEMENT as usize, index, place(node)])?;
            index += 1;
        }
        node += 1;
        Ok(())
    })?;
    let mut native = objects;
    source.edges(|edge| {
        match edge {
            SnapshotEdge::Reference { index, name, target } => {
                let (kind, name) = name.map_or((ELEMENT, index), |name| (PROPERTY, name));
                rows.row([kind as usize, name, place(target)])?;
            }
            SnapshotEdge::End { has_external: true } => {
                rows.row([INTERNAL as usize, EXTERNAL_EDGE, place(native)])?;
                native += 1;
            }
            SnapshotEdge::End { has_external: false } => {}
        }
        Ok(())
    })?;
    rows.close()?;
    write!(
        to,
        ",\n\"trace_function_infos\":[],\"trace_tree\":[],\"samples\":[],\"locations\":[],\n\
         \"strings\":["
    )?;
    let mut strings = 0;
    source.strings(|text| {
        write!(to, "{}{}", if strings == 0 { "" } else { ",\n" }, Quoted(text))?;
        strings += 1;
        Ok(())
    })?;
    Ok(writeln!(
        to,
        "],\n\"trailer\":{{\"nodes\":{nodes},\"edges\":{edges},\"strings\":{strings}}}}}"
    )?)
}
