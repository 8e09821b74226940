//! A snapshot as a trace that ui.perfetto.dev opens in its Heap Dump Explorer.
//!
//! The trace has packets with a `HeapGraph` each, which continue each other. A packet has up to
//! 1,000 objects or roots, or 1 MiB of names, so only an object with very many references makes it
//! large. What the root refers to is a root of the kind `JNI_GLOBAL`, which is the nearest one to
//! "held from outside". Weak edges are left out, because the explorer takes each reference for a
//! strong one.

use std::collections::HashMap;
use std::io::{self, Write};

use standstill::diagnose::protobuf::Message;

use crate::snapshot::{Class, Label, Snapshot};

/// The objects of a packet, or the roots of one.
const OBJECTS: usize = 1_000;
const PROCESS: u64 = 1;
/// Zero is no id in this format, so that the number of each name, class or object is one more here.
const FIRST: u64 = 1;

/// The numbers of fields, as perfetto's `trace.proto` has them.
mod field {
    pub(super) const PACKET: u32 = 1;
    pub(super) const TIMESTAMP: u32 = 8;
    pub(super) const SEQUENCE: u32 = 10;
    pub(super) const PROCESS_TREE: u32 = 2;
    pub(super) const HEAP_GRAPH: u32 = 56;
    pub(super) const PID: u32 = 1;
    pub(super) const OBJECT: u32 = 2;
    pub(super) const FIELD_NAME: u32 = 4;
    pub(super) const CONTINUED: u32 = 5;
    pub(super) const INDEX: u32 = 6;
    pub(super) const ROOTS: u32 = 7;
    pub(super) const LOCATION_NAME: u32 = 8;
    pub(super) const TYPE: u32 = 9;
}

/// `ROOT_JNI_GLOBAL`.
const ROOT_KIND: u64 = 1;
/// `KIND_NORMAL`.
const TYPE_KIND: u64 = 1;

/// Writes the trace.
///
/// # Errors
///
/// Those of `out`.
pub fn write(snapshot: &Snapshot, process: &str, out: &mut dyn Write) -> io::Result<()> {
    let mut named = Message::default();
    named.number(1, PROCESS).bytes(3, process.as_bytes());
    let mut tree = Message::default();
    tree.bytes(1, &named.0);
    packet(out, field::PROCESS_TREE, &tree)?;

    let mut graph = Message::default();
    graph.number(field::PID, PROCESS);
    // Objects come last, because they refer to names and types.
    interned(&mut graph, field::LOCATION_NAME, FIRST, "heap");
    let mut classes: HashMap<Class, u64> = HashMap::new();
    let mut index = 0;
    let strings = snapshot.strings.iter();
    // The name of elements comes first.
    for (number, name) in (FIRST..).zip(std::iter::once("[]").chain(strings.map(|it| &**it))) {
        interned(&mut graph, field::FIELD_NAME, number, name);
        if graph.0.len() > 1 << 20 {
            flush(out, &mut graph, &mut index, true)?;
        }
    }
    for (node, record) in snapshot.nodes().iter().enumerate().skip(1) {
        let class = snapshot.class_of(node);
        let next = FIRST + classes.len() as u64;
        let number = *classes.entry(class).or_insert(next);
        if number == next {
            let mut kind = Message::default();
            kind.number(1, number).number(2, FIRST).number(7, TYPE_KIND);
            kind.bytes(3, snapshot.class_name(class).as_bytes());
            graph.bytes(field::TYPE, &kind.0);
        }
        let strong =
            || snapshot.edges_of(node).filter(|edge| !edge.is_weak() && edge.target() != 0);
        let name = |label| match label {
            Label::Index(_) => FIRST,
            Label::Name(name) => FIRST + 1 + u64::from(name),
        };
        let mut object = Message::default();
        object.number(1, FIRST + node as u64).number(2, number).number(3, record.size);
        object.packed(4, strong().map(|edge| name(edge.label)));
        object.packed(5, strong().map(|edge| FIRST + edge.target() as u64));
        graph.bytes(field::OBJECT, &object.0);
        if node % OBJECTS == 0 {
            flush(out, &mut graph, &mut index, true)?;
        }
    }
    let held = snapshot.edges_of(0).filter(|edge| !edge.is_weak() && edge.target() != 0);
    let mut held = held.map(|edge| FIRST + edge.target() as u64).peekable();
    while held.peek().is_some() {
        let mut roots = Message::default();
        roots.packed(1, held.by_ref().take(OBJECTS)).number(2, ROOT_KIND);
        graph.bytes(field::ROOTS, &roots.0);
        if held.peek().is_some() {
            flush(out, &mut graph, &mut index, true)?;
        }
    }
    flush(out, &mut graph, &mut index, false)
}

fn interned(graph: &mut Message, field: u32, number: u64, text: &str) {
    let mut name = Message::default();
    name.number(1, number).bytes(2, text.as_bytes());
    graph.bytes(field, &name.0);
}

/// Writes a part of the graph, and begins the next one.
fn flush(
    out: &mut dyn Write,
    graph: &mut Message,
    index: &mut u64,
    continues: bool,
) -> io::Result<()> {
    graph.number(field::CONTINUED, u64::from(continues)).number(field::INDEX, *index);
    packet(out, field::HEAP_GRAPH, graph)?;
    *index += 1;
    graph.0.clear();
    graph.number(field::PID, PROCESS);
    Ok(())
}

fn packet(out: &mut dyn Write, field: u32, content: &Message) -> io::Result<()> {
    let mut packet = Message::default();
    packet.number(field::TIMESTAMP, 1).number(field::SEQUENCE, 1).bytes(field, &content.0);
    let mut trace = Message::default();
    trace.bytes(field::PACKET, &packet.0);
    out.write_all(&trace.0)
}
