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
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

use crate::diagnose::graph::{GraphNode, HeapGraph};
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

/// The strings before the names of types.
const STRINGS: [&str; 4] = ["", "(outside)", "outside the heap", "(bytes outside the heap)"];
const OUTSIDE: usize = 1;
const EXTERNAL: usize = 2;
const EXTERNAL_EDGE: usize = 3;

/// The id of an object: odd, as those of V8's objects are. The next number is that of its bytes
/// outside the heap.
fn id(node: &GraphNode) -> usize {
    2 * node.number as usize + 3
}

/// When this process, or the one that it is a fork of, wrote its first file, in nanoseconds since
/// the epoch. With the number of the process, which a later process may get, no two are alike.
fn first_written() -> u64 {
    static FIRST: AtomicU64 = AtomicU64::new(0);
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let now = now.as_nanos() as u64;
    // Relaxed: no other data is read with it.
    FIRST.compare_exchange(0, now, Ordering::Relaxed, Ordering::Relaxed).err().unwrap_or(now)
}

/// A writer that passes on large pieces, as std's does, except that its memory may be refused.
struct PieceWriter<W> {
    to: W,
    piece: Vec<u8>,
}

impl<W: Write> PieceWriter<W> {
    fn new(to: W) -> io::Result<Self> {
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
        for (at, number) in numbers.into_iter().enumerate() {
            let before = match at {
                0 if std::mem::replace(&mut self.is_first, false) => "",
                0 => ",\n",
                _ => ",",
            };
            write!(self.to, "{before}{number}")?;
        }
        Ok(())
    }

    fn close(self) -> io::Result<()> {
        self.to.write_all(b"]")
    }
}

impl HeapGraph {
    /// Writes the graph in the format `.heapsnapshot`, which the developer tools of Chrome and Edge
    /// open, and `standstill-heap`. It has names of types and fields, sizes and references, and no
    /// content of objects. The writer gets large pieces, and needs no buffer.
    ///
    /// # Errors
    ///
    /// Those of `to`, which has then got a part of the file; and
    /// [`OutOfMemory`](io::ErrorKind::OutOfMemory) if the memory of a piece is refused.
    pub fn write_snapshot(&self, to: impl Write) -> io::Result<()> {
        let mut to = PieceWriter::new(to)?;
        self.write_to(&mut to)?;
        to.flush()
    }

    /// Writes the graph into a file, as [`write_snapshot`](Self::write_snapshot) does. The file
    /// appears under its name when it is complete; until then `.part` is behind the name.
    ///
    /// # Errors
    ///
    /// Those of the file system, and [`OutOfMemory`](io::ErrorKind::OutOfMemory). The part is
    /// removed then, and a file that had the name is as it was.
    pub fn save_snapshot(&self, path: impl AsRef<Path>) -> io::Result<()> {
        let path = path.as_ref();
        let mut part = OsString::new();
        part.try_reserve_exact(path.as_os_str().len() + ".part".len())?;
        part.push(path);
        part.push(".part");
        // Not through a link that somebody has left there.
        drop(fs::remove_file(&part));
        let written = OpenOptions::new()
            .write(true)
            .create_new(true)
            .open(&part)
            .and_then(|file| {
                self.write_snapshot(&file)?;
                // A disk may tell only now that it is full.
                file.sync_all()
            })
            .and_then(|()| fs::rename(&part, path));
        if written.is_err() {
            // The first error is the one that explains the failure.
            drop(fs::remove_file(&part));
        }
        written
    }

    fn write_to(&self, to: &mut impl Write) -> io::Result<()> {
        let objects = self.nodes.len();
        let external = || self.nodes.iter().filter(|node| node.external_bytes > 0);
        let roots = self.nodes.iter().filter(|node| node.is_held).count();
        let (nodes, externals) = (1 + objects + external().count(), external().count());
        let edges = roots + self.targets.len() + externals;
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
             \"trace_function_count\":0,\"process\":\"{}-{}\"}}",
            std::process::id(),
            first_written()
        )?;
        let type_string = |number: u32| STRINGS.len() + number as usize;
        let field_string = |number: u32| STRINGS.len() + self.types.len() + number as usize;
        let mut rows = Numbers::begin(to, "nodes")?;
        rows.row([SYNTHETIC as usize, OUTSIDE, 1, 0, roots, 0, 0, 0, 0])?;
        for (at, node) in self.nodes.iter().enumerate() {
            let has_external = usize::from(node.external_bytes > 0);
            let edges = self.starts[at + 1] - self.starts[at] + has_external;
            let (name, id) = (type_string(node.type_number), id(node));
            let old = usize::from(node.is_old);
            let outside = node.outside as usize;
            rows.row([OBJECT as usize, name, id, node.bytes, edges, 0, 0, outside, old])?;
        }
        for node in external() {
            let (id, bytes) = (id(node) + 1, node.external_bytes);
            rows.row([NATIVE as usize, EXTERNAL, id, bytes, 0, 0, 0, 0, 0])?;
        }
        rows.close()?;
        let mut rows = Numbers::begin(to, "edges")?;
        let place = |node: usize| (1 + node) * width;
        let held = self.nodes.iter().enumerate().filter(|(_, node)| node.is_held);
        for (index, (node, _)) in held.enumerate() {
            rows.row([ELEMENT as usize, index, place(node)])?;
        }
        let mut native = objects;
        for (at, node) in self.nodes.iter().enumerate() {
            for (index, (target, field)) in self.edges_of(at).enumerate() {
                let is_named = !self.names[field as usize].is_empty();
                let (kind, name) =
                    if is_named { (PROPERTY, field_string(field)) } else { (ELEMENT, index) };
                rows.row([kind as usize, name, place(target as usize)])?;
            }
            if node.external_bytes > 0 {
                rows.row([INTERNAL as usize, EXTERNAL_EDGE, place(native)])?;
                native += 1;
            }
        }
        rows.close()?;
        let names = self.names.iter().map(|name| &**name);
        let types = (0..self.types.len()).map(|number| self.types.name(number as u32));
        write!(
            to,
            ",\n\"trace_function_infos\":[],\"trace_tree\":[],\"samples\":[],\"locations\":[],\n\
             \"strings\":["
        )?;
        let mut strings = 0;
        for text in STRINGS.into_iter().chain(types).chain(names) {
            write!(to, "{}{}", if strings == 0 { "" } else { ",\n" }, Quoted(text))?;
            strings += 1;
        }
        writeln!(
            to,
            "],\n\"trailer\":{{\"nodes\":{nodes},\"edges\":{edges},\"strings\":{strings}}}}}"
        )
    }
}
