//! Runs the command, and makes small snapshots.

#![allow(dead_code, reason = "each test program uses a part")]

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::{Value, json};

pub(crate) fn run(arguments: &[&OsStr]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_standstill-heap")).args(arguments).output().unwrap()
}

/// The answer to a question that has one, as JSON.
#[track_caller]
pub(crate) fn ask(arguments: &[&dyn AsRef<OsStr>]) -> Value {
    let mut all: Vec<&OsStr> = arguments.iter().map(|argument| argument.as_ref()).collect();
    all.push("--json".as_ref());
    let output = run(&all);
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(0), "{all:?}: {error}");
    assert_eq!(error, "", "{all:?}");
    serde_json::from_slice(&output.stdout).unwrap()
}

/// The same answer, for people.
#[track_caller]
pub(crate) fn tell(arguments: &[&dyn AsRef<OsStr>]) -> String {
    let all: Vec<&OsStr> = arguments.iter().map(|argument| argument.as_ref()).collect();
    let output = run(&all);
    assert_eq!(output.status.code(), Some(0), "{all:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// The path of a file with these bytes.
pub(crate) fn file(name: &str, bytes: &[u8]) -> PathBuf {
    let path = place(name);
    std::fs::write(&path, bytes).unwrap();
    path
}

/// The path of a file that only this test program uses.
pub(crate) fn place(name: &str) -> PathBuf {
    let program = std::env::current_exe().unwrap();
    let program = program.file_stem().unwrap().to_string_lossy().into_owned();
    Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{program}-{name}"))
}

/// The heap of a real program.
pub(crate) fn real(name: &str) -> PathBuf {
    let heaps = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tools/heaps");
    heaps.join(format!("{name}.heapsnapshot.zst"))
}

/// A snapshot in the making. Node 0 is the root, with id 1.
#[derive(Default)]
pub(crate) struct Made {
    nodes: Vec<(u64, String, u64, u64)>,
    edges: Vec<(usize, u64, String, usize)>,
}

const NODE_KINDS: [&str; 4] = ["synthetic", "object", "string", "native"];
const EDGE_KINDS: [&str; 3] = ["property", "element", "weak"];

impl Made {
    pub(crate) fn new() -> Self {
        let mut this = Self::default();
        this.node("synthetic", "", 1, 0);
        this
    }

    pub(crate) fn node(&mut self, kind: &str, name: &str, id: u64, size: u64) -> usize {
        let kind = NODE_KINDS.iter().position(|it| *it == kind).unwrap() as u64;
        self.nodes.push((kind, name.to_owned(), id, size));
        self.nodes.len() - 1
    }

    pub(crate) fn object(&mut self, name: &str, id: u64, size: u64) -> usize {
        self.node("object", name, id, size)
    }

    /// An edge by a name, by an index if `field` is a number, or a weak one if it is empty.
    pub(crate) fn edge(&mut self, from: usize, field: &str, to: usize) {
        let kind = match field {
            "" => 2,
            _ if field.parse::<u32>().is_ok() => 1,
            _ => 0,
        };
        self.edges.push((from, kind, field.to_owned(), to));
    }

    pub(crate) fn write(&self, name: &str) -> PathBuf {
        let mut strings: Vec<String> = Vec::new();
        let mut number = |text: &str| {
            strings.iter().position(|it| it == text).unwrap_or_else(|| {
                strings.push(text.to_owned());
                strings.len() - 1
            })
        };
        let (mut nodes, mut edges) = (Vec::new(), Vec::new());
        for (at, (kind, name, id, size)) in self.nodes.iter().enumerate() {
            let own = self.edges.iter().filter(|edge| edge.0 == at);
            let count = own.clone().count() as u64;
            nodes.extend([*kind, number(name) as u64, *id, *size, count]);
            for (_, kind, field, to) in own {
                let label = field.parse().unwrap_or_else(|_| number(field) as u64);
                edges.extend([*kind, label, 5 * *to as u64]);
            }
        }
        let json = json!({
            "snapshot": {
                "meta": {
                    "node_fields": ["type", "name", "id", "self_size", "edge_count"],
                    "node_types": [NODE_KINDS, "string", "number", "number", "number"],
                    "edge_fields": ["type", "name_or_index", "to_node"],
                    "edge_types": [EDGE_KINDS, "string_or_number", "node"],
                },
                "node_count": self.nodes.len(),
                "edge_count": self.edges.len(),
            },
            "nodes": nodes,
            "edges": edges,
            "strings": strings,
        });
        // serde_json sorts the members of an object by their names, and the reader needs V8's
        // order.
        let member = |name: &str| format!("\"{name}\":{}", json[name]);
        let members = ["snapshot", "nodes", "edges", "strings"].map(member);
        file(name, format!("{{{}}}", members.join(",")).as_bytes())
    }
}
