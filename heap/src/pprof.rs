//! A snapshot as a profile that pprof opens: who retains the objects and bytes of each class.
//!
//! The stack of an object is the chain of its dominators, each as its class. Neighbours of one
//! class are a single frame, because the depth of a list or a tree tells nothing. Objects with the
//! same stack are one sample.

use std::collections::HashMap;
use std::io::{self, Write};

use flate2::Compression;
use flate2::write::GzEncoder;
use standstill::diagnose::protobuf::Message;

use crate::snapshot::Class;
use crate::tree::Tree;

/// A stack has this many frames at most. What lies deeper counts for its last frame.
const DEEPEST: u32 = 64;

/// The end of a stack: its last frame, and the stack above it.
struct Stack {
    class: Class,
    above: Option<u32>,
    depth: u32,
    objects: u64,
    bytes: u64,
}

/// Writes the profile, compressed with gzip, of all nodes that the root reaches.
///
/// # Errors
///
/// Those of `out`.
pub fn write(tree: &Tree<'_>, out: &mut dyn Write) -> io::Result<()> {
    let stacks = stacks(tree);
    let mut out = GzEncoder::new(out, Compression::default());
    let mut strings: Vec<String> = ["", "objects", "count", "bytes"].map(str::to_owned).into();
    for (kind, unit) in [(1, 2), (3, 3)] {
        let mut value = Message::default();
        value.number(1, kind).number(2, unit);
        out.write_all(&Message::default().bytes(1, &value.0).0)?;
    }
    let mut classes: HashMap<Class, u64> = HashMap::new();
    for stack in &stacks {
        let next = classes.len() as u64 + 1;
        if *classes.entry(stack.class).or_insert(next) == next {
            // A location with one line of a function, which has the name of the class.
            let (mut line, mut location, mut function) = <(Message, Message, Message)>::default();
            line.number(1, next);
            location.number(1, next).bytes(4, &line.0);
            function.number(1, next).number(2, strings.len() as u64);
            out.write_all(&Message::default().bytes(4, &location.0).bytes(5, &function.0).0)?;
            strings.push(tree.snapshot.class_name(stack.class));
        }
    }
    for stack in stacks.iter().filter(|stack| stack.objects > 0) {
        let above = |stack: &&Stack| stack.above.map(|above| &stacks[above as usize]);
        let frames = std::iter::successors(Some(stack), above);
        let mut sample = Message::default();
        sample.packed(1, frames.map(|frame| classes[&frame.class]));
        sample.packed(2, [stack.objects, stack.bytes].into_iter());
        out.write_all(&Message::default().bytes(2, &sample.0).0)?;
    }
    for text in &strings {
        out.write_all(&Message::default().bytes(6, text.as_bytes()).0)?;
    }
    // The view that opens is that of bytes.
    out.write_all(&Message::default().number(14, 3).0)?;
    out.finish()?.flush()
}

/// All stacks, each after the one above it.
fn stacks(tree: &Tree<'_>) -> Vec<Stack> {
    let snapshot = tree.snapshot;
    let mut stacks: Vec<Stack> = Vec::new();
    let mut numbers: HashMap<(Option<u32>, Class), u32> = HashMap::new();
    let mut of_node = vec![None; snapshot.nodes().len()];
    // The root is in no stack: all objects would have it.
    for node in tree.order().filter(|&node| node != 0) {
        let above: Option<u32> = tree.dominator(node).and_then(|above| of_node[above]);
        let class = snapshot.class_of(node);
        let same = above.filter(|&above| {
            let above = &stacks[above as usize];
            above.class == class || above.depth == DEEPEST
        });
        let number = same.unwrap_or_else(|| {
            *numbers.entry((above, class)).or_insert_with(|| {
                let depth = above.map_or(1, |above| stacks[above as usize].depth + 1);
                stacks.push(Stack { class, above, depth, objects: 0, bytes: 0 });
                stacks.len() as u32 - 1
            })
        });
        of_node[node] = Some(number);
        let stack = &mut stacks[number as usize];
        stack.objects += 1;
        stack.bytes += snapshot.nodes()[node].size;
    }
    stacks
}
