//! Answers questions about heap snapshots.
//!
//! ```text
//! cargo run --release -p standstill-heap -- suspects tools/heaps/django.heapsnapshot.zst
//! ```

#![forbid(unsafe_code)]

use std::fmt::{self, Display};
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use serde::Serialize;
use standstill_heap::bad_input::BadInput;
use standstill_heap::census::{ClassTable, Summary};
use standstill_heap::diff::{Before, Diff};
use standstill_heap::fold::Fold;
use standstill_heap::page::Page;
use standstill_heap::paths::Paths;
use standstill_heap::pauses::Pauses;
use standstill_heap::snapshot::Snapshot;
use standstill_heap::suspects::Suspects;
use standstill_heap::text::{grouped, plain, share, table};
use standstill_heap::tree::{Object, Tree};
use standstill_heap::{file, perfetto, pprof, progress};

/// Answers questions about heap snapshots: what retains what, why an object is alive, what grew.
///
/// Reads files in V8's format (.heapsnapshot), plain or compressed with zstd, of V8, Node and
/// standstill. An object is named by its id, which it keeps in all snapshots of a process.
///
/// Exit status: 0 with an answer, 1 if there is no such object, 2 if a file is bad.
#[derive(Parser)]
#[command(name = "standstill-heap")]
struct Options {
    #[command(subcommand)]
    question: Question,
    /// Print one line of JSON
    #[arg(long, global = true)]
    json: bool,
}

#[derive(Subcommand)]
enum Question {
    /// How much is there?
    Summary {
        /// The snapshot
        file: PathBuf,
    },
    /// Of which classes is it?
    Census {
        /// The snapshot
        file: PathBuf,
        /// The classes that are listed, those that retain most first
        #[arg(long, value_name = "N", default_value_t = 30)]
        most: usize,
    },
    /// What looks like a leak, and where does it pile up?
    Suspects {
        /// The snapshot
        file: PathBuf,
        /// The share of the reachable bytes that makes a suspect
        #[arg(long, value_name = "PERCENT", default_value_t = 10, value_parser = percent())]
        share: u64,
    },
    /// Why is an object alive? The shortest path to it from the root
    Path {
        /// The snapshot
        file: PathBuf,
        /// An id, or a class (`Session` for `app::Session`): then its object that retains most
        object: String,
    },
    /// What does an object retain? Without one: which objects retain most?
    Dominators {
        /// The snapshot
        file: PathBuf,
        /// An id, or a class (`Session` for `app::Session`): then its object that retains most
        object: Option<String>,
        /// The objects that are listed
        #[arg(long, value_name = "N", default_value_t = 30)]
        most: usize,
    },
    /// What has grown, and which new references hold it?
    Diff {
        /// The earlier snapshot
        before: PathBuf,
        /// A later one of the same heap
        after: PathBuf,
        /// The share of the new bytes whose references are listed
        #[arg(long, value_name = "PERCENT", default_value_t = 90, value_parser = percent())]
        share: u64,
        /// The classes and the references that are listed
        #[arg(long, value_name = "N", default_value_t = 20)]
        most: usize,
    },
    /// Make a small snapshot of a large one: what retains most, and exact sums of the rest
    Fold {
        /// The snapshot
        file: PathBuf,
        #[command(flatten)]
        out: Out,
        /// The nodes that are left at most
        #[arg(long, value_name = "N", default_value_t = 100_000, value_parser = fold_nodes())]
        nodes: u32,
    },
    /// Write the snapshot in a format of others
    Convert {
        /// The snapshot
        file: PathBuf,
        #[command(flatten)]
        out: Out,
        /// The format
        #[arg(long)]
        to: Format,
    },
    /// All of it in one HTML file: treemap, suspects, classes, pauses
    Report {
        /// The snapshot
        file: PathBuf,
        #[command(flatten)]
        out: Out,
        /// The file that STANDSTILL_LOG=gc:FILE made the process write
        #[arg(long, value_name = "FILE")]
        log: Option<PathBuf>,
        /// The share of the reachable bytes that makes a suspect
        #[arg(long, value_name = "PERCENT", default_value_t = 10, value_parser = percent())]
        share: u64,
    },
}

fn fold_nodes() -> clap::builder::RangedI64ValueParser<u32> {
    clap::value_parser!(u32).range(Fold::LEAST as i64..)
}

fn percent() -> clap::builder::RangedU64ValueParser<u64> {
    clap::value_parser!(u64).range(1..=100)
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum Format {
    /// A trace for ui.perfetto.dev, which opens it in its Heap Dump Explorer
    Perfetto,
    /// A profile for pprof: the classes of each object's dominators are its stack
    Pprof,
}

/// A file to write.
#[derive(clap::Args)]
struct Out {
    /// The file to write
    #[arg(short = 'o', long = "out", value_name = "FILE")]
    path: PathBuf,
}

impl Out {
    fn write(&self, content: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> Result<(), Failure> {
        let written = File::create(&self.path).and_then(|file| {
            let mut file = io::BufWriter::new(file);
            content(&mut file)?;
            file.flush()
        });
        written.map_err(|error| Failure::Bad(format!("{}: write: {error}", self.path.display())))
    }
}

/// Why there is no answer.
enum Failure {
    /// The file has no such object.
    None(String),
    /// The reason, in one line.
    Bad(String),
    /// The answer could not be printed.
    Output(io::Error),
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::Output(error)
    }
}

fn main() -> ExitCode {
    let options = Options::parse();
    let (line, status) = match answer(&options) {
        Ok(()) => return ExitCode::SUCCESS,
        // The process that reads the answer, such as `head`, has ended.
        Err(Failure::Output(error)) if error.kind() == io::ErrorKind::BrokenPipe => {
            return ExitCode::SUCCESS;
        }
        Err(Failure::Output(error)) => (format!("standard output: {error}"), 2),
        Err(Failure::None(line)) => (line, 1),
        Err(Failure::Bad(line)) => (line, 2),
    };
    eprintln!("{}", plain(&line));
    ExitCode::from(status)
}

fn bad(input: BadInput) -> Failure {
    Failure::Bad(input.to_string())
}

fn read(path: &Path) -> Result<Snapshot, Failure> {
    let bar = progress::bar("read", 0);
    let snapshot = file::read(path, &bar).map_err(bad);
    bar.finish_and_clear();
    snapshot
}

fn answer(options: &Options) -> Result<(), Failure> {
    let print = Printer { json: options.json };
    match &options.question {
        Question::Summary { file } => print.out(&Summary::of(&Tree::of(&read(file)?))),
        Question::Census { file, most } => {
            print.out(&ClassTable::of(&Tree::of(&read(file)?), *most))
        }
        Question::Suspects { file, share } => {
            print.out(&Suspects::of(&Tree::of(&read(file)?), *share))
        }
        Question::Path { file, object } => {
            let snapshot = read(file)?;
            let tree = Tree::of(&snapshot);
            let node = find(file, &tree, object)?;
            let path = Paths::of(&tree).to(node);
            let none = || format!("{}: nothing holds {}", file.display(), tree.object(node));
            print.out(&path.ok_or_else(|| Failure::None(none()))?)
        }
        Question::Dominators { file, object, most } => {
            let snapshot = read(file)?;
            let tree = Tree::of(&snapshot);
            let (of, nodes) = match object {
                None => (None, tree.tops()),
                Some(object) => {
                    let node = find(file, &tree, object)?;
                    (Some(tree.object(node)), tree.children(node).collect())
                }
            };
            let omitted = nodes.len().saturating_sub(*most);
            let listed = nodes.into_iter().take(*most).map(|node| tree.object(node));
            print.out(&Retained { of, objects: listed.collect(), omitted, total: tree.total() })
        }
        Question::Diff { before, after, share, most } => {
            print.out(&diff(before, after, *share, *most)?)
        }
        Question::Fold { file, out, nodes } => {
            let snapshot = read(file)?;
            let tree = Tree::of(&snapshot);
            let fold = Fold::of(&tree, *nodes as usize);
            out.write(|file| fold.write(file))?;
            print.out(&fold.folded())
        }
        Question::Convert { file, out, to } => {
            let snapshot = read(file)?;
            let name = file.file_name().unwrap_or(file.as_os_str()).to_string_lossy();
            out.write(|out| match to {
                Format::Perfetto => perfetto::write(&snapshot, &name, out),
                Format::Pprof => pprof::write(&Tree::of(&snapshot), out),
            })
        }
        Question::Report { file, out, log, share } => {
            let read_log = |log: &PathBuf| Pauses::read(log).map_err(bad);
            let pauses = log.as_ref().map(read_log).transpose()?;
            let (snapshot, name) = (read(file)?, file.file_name().unwrap_or(file.as_os_str()));
            let tree = &Tree::of(&snapshot);
            let page = Page {
                title: &name.to_string_lossy(),
                tree,
                pauses: pauses.as_ref(),
                share: *share,
            };
            out.write(|file| write!(file, "{page}"))
        }
    }
}

fn diff(before: &Path, after: &Path, share: u64, most: usize) -> Result<Diff, Failure> {
    let no_ids = |file: &Path| {
        Failure::Bad(format!("{}: no object has an id, so none can be found again", file.display()))
    };
    // The earlier snapshot is dropped before the later one is read.
    let (earlier, process) = {
        let snapshot = read(before)?;
        (Before::of(&snapshot), snapshot.process().map(str::to_owned))
    };
    let earlier = earlier.ok_or_else(|| no_ids(before))?;
    let snapshot = read(after)?;
    if let (Some(one), Some(other)) = (process, snapshot.process())
        && one != other
    {
        return Err(Failure::Bad(format!(
            "{}: of process {other}, but {} is of process {one}, and ids of two processes have \
             nothing in common; compare the answers of census",
            after.display(),
            before.display()
        )));
    }
    Diff::of(earlier, &Tree::of(&snapshot), share, most).ok_or_else(|| no_ids(after))
}

/// The classes that are named if none is the one that a user names.
const SIMILAR: usize = 5;

/// The node that a user names: by an id, a class, or the end of one class from a `::` on.
fn find(file: &Path, tree: &Tree<'_>, object: &str) -> Result<usize, Failure> {
    let snapshot = tree.snapshot;
    let none = |more: &str| {
        Failure::None(format!("{}: there is no object {object:?}{more}", file.display()))
    };
    if let Ok(id) = object.trim_start_matches('@').parse() {
        return snapshot.node_with_id(id).ok_or_else(|| none(""));
    }
    let of_class = |class: &str| {
        (1..snapshot.nodes().len())
            .filter(|&node| snapshot.class_name(snapshot.class_of(node)) == class)
            .max_by_key(|&node| (tree.is_reached(node), tree.retained(node)))
    };
    if let Some(node) = of_class(object) {
        return Ok(node);
    }
    let mut similar = ClassTable::of(tree, usize::MAX).classes;
    similar.retain(|row| row.class.contains(object));
    let ending = format!("::{object}");
    let mut ending = similar.iter().filter(|row| row.class.ends_with(&ending));
    if let (Some(row), None) = (ending.next(), ending.next()) {
        return of_class(&row.class).ok_or_else(|| none(""));
    }
    similar.sort_by_key(|row| std::cmp::Reverse(row.bytes));
    let names: Vec<&str> = similar.iter().take(SIMILAR).map(|row| &*row.class).collect();
    Err(none(&if names.is_empty() {
        String::new()
    } else {
        format!("; classes with this in their name: {}", names.join(", "))
    }))
}

struct Printer {
    json: bool,
}

impl Printer {
    fn out(&self, answer: &(impl Serialize + Display)) -> Result<(), Failure> {
        let mut out = io::BufWriter::new(io::stdout().lock());
        if self.json {
            serde_json::to_writer(&mut out, answer).map_err(io::Error::from)?;
            writeln!(out)?;
        } else {
            write!(out, "{answer}")?;
        }
        Ok(out.flush()?)
    }
}

/// Objects, and what they retain.
#[derive(Serialize)]
struct Retained {
    #[serde(skip_serializing_if = "Option::is_none")]
    of: Option<Object>,
    objects: Vec<Object>,
    omitted: usize,
    total: u64,
}

impl Display for Retained {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rows = self.of.iter().chain(&self.objects).map(|object| {
            let (retained, bytes) = (object.retained_bytes, object.bytes);
            let share = share(retained, self.total);
            [grouped(retained), share, grouped(bytes), object.to_string()]
        });
        table(f, ["retained", "share", "bytes", "object"], rows)?;
        match self.omitted {
            0 => Ok(()),
            more => writeln!(f, "and {} more objects", grouped(more as u64)),
        }
    }
}
