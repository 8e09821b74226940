//! Reads heap snapshots in V8's format, and answers questions about them: what retains what, why an
//! object is alive, what has grown.
//!
//! The command `standstill-heap` asks the questions; this library is for other programs. Snapshots
//! of V8, Node and standstill differ in a few fields, which [`Facts`](snapshot::Facts) names. A
//! file may be compressed with zstd. Whatever the file holds, memory grows only with the bytes that
//! were read, and a refusal is one line with the place and the reason.
//!
//! ```no_run
//! use std::path::Path;
//!
//! let bar = standstill_heap::progress::bar("read", 0);
//! match standstill_heap::file::read(Path::new("app.heapsnapshot"), &bar) {
//!     Ok(snapshot) => println!("{} objects", snapshot.nodes().len()),
//!     Err(bad) => eprintln!("{bad}"),
//! }
//! ```

#![forbid(unsafe_code)]

pub mod bad_input;
pub mod census;
pub mod diff;
pub mod file;
pub mod fold;
pub mod page;
pub mod paths;
pub mod pauses;
pub mod perfetto;
pub mod pprof;
pub mod progress;
mod reading;
mod schema;
pub mod snapshot;
pub mod source;
pub mod suspects;
pub mod text;
pub mod tree;
mod treemap;
