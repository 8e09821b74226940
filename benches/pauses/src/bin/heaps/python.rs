//! The installed interpreters, and their times for the same graph.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde::Deserialize;

/// Builds the graph, collects, and prints [`Figures`](crate::figures::Figures).
const SCRIPT: &str = include_str!("pause.py");
/// The version and the build of an interpreter.
const PROBE: &str = "\
import json, os, sys
print(json.dumps({
    'path': os.path.realpath(sys.executable),
    'cpython': sys.implementation.name == 'cpython',
    'version': sys.version_info[:2],
    'full_version': sys.version.split()[0],
    'free_threaded': not getattr(sys, '_is_gil_enabled', lambda: True)(),
}))";
/// The end of the name of such an interpreter.
pub(crate) const FREE_THREADED: &str = "free-threaded";
/// The names that `auto` looks for on the path.
const NAMES: [&str; 7] = [
    "python3",
    "python3.13",
    "python3.13t",
    "python3.14",
    "python3.14t",
    "python3.15",
    "python3.15t",
];
/// The first that is comparable: before it, the collector was another one.
const OLDEST: (u32, u32) = (3, 13);

/// A CPython that runs here.
#[derive(Clone, Debug, Deserialize, PartialEq)]
pub(crate) struct Interpreter {
    path: PathBuf,
    cpython: bool,
    version: (u32, u32),
    full_version: String,
    free_threaded: bool,
}

impl Interpreter {
    /// Those that `asked` names: paths, `auto` or `none`.
    pub(crate) fn find(asked: &[String]) -> Result<Vec<Self>, String> {
        let mut found: Vec<Self> = Vec::new();
        for word in asked {
            let several: Vec<Self> = match word.as_str() {
                "none" => Vec::new(),
                // A shim may stand for a version that is not selected, so only interpreters that
                // answer are listed.
                "auto" => NAMES.iter().filter_map(|name| Self::probe(name).ok()).collect(),
                path => vec![Self::probe(path)?],
            };
            for interpreter in several {
                if !found.contains(&interpreter) {
                    found.push(interpreter);
                }
            }
        }
        Ok(found)
    }

    fn probe(program: &str) -> Result<Self, String> {
        let output = isolated(Path::new(program))
            .args(["-c", PROBE])
            .output()
            .map_err(|error| format!("{program}: {error}"))?;
        let interpreter: Self = serde_json::from_slice(&output.stdout)
            .map_err(|_| format!("{program}: does not answer like a Python ({})", output.status))?;
        if !interpreter.cpython || interpreter.version < OLDEST {
            let (major, minor) = OLDEST;
            return Err(format!("{program}: not a CPython {major}.{minor} or later"));
        }
        Ok(interpreter)
    }

    /// `CPython 3.14.0, free-threaded`.
    pub(crate) fn name(&self) -> String {
        let kind = if self.free_threaded { FREE_THREADED } else { "with GIL" };
        format!("CPython {}, {kind}", self.full_version)
    }

    /// How to run one measurement.
    pub(crate) fn measure(&self, graph: &Path, collections: usize) -> Command {
        let mut command = isolated(&self.path);
        command.args(["-c", SCRIPT]).arg(graph).arg(collections.to_string());
        command
    }
}

/// An interpreter without the user's settings and packages: fewer objects of its own, and none by
/// chance.
fn isolated(program: &Path) -> Command {
    let mut command = Command::new(program);
    command.args(["-I", "-S"]);
    command
}
