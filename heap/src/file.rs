//! A snapshot in a file.

use std::fs::File;
use std::io;
use std::path::Path;

use indicatif::ProgressBar;

use crate::bad_input::{BadInput, Fault};
use crate::snapshot::Snapshot;
use crate::source::Source;

/// Reads `file`, and checks all of it; `bar` moves with the bytes read.
///
/// # Errors
///
/// If the file cannot be opened, or is not a whole snapshot.
pub fn read(file: &Path, bar: &ProgressBar) -> Result<Snapshot, BadInput> {
    open(file, bar).and_then(Snapshot::read).map_err(|fault| fault.of(file))
}

fn open(file: &Path, bar: &ProgressBar) -> Result<Source, Fault> {
    let failed = |error: io::Error| Fault::new("open", error.to_string());
    let opened = File::open(file).map_err(failed)?;
    let metadata = opened.metadata().map_err(failed)?;
    if metadata.is_dir() {
        return Err(Fault::new("open", "a directory, not a file"));
    }
    bar.set_length(metadata.len());
    Source::new(Box::new(bar.wrap_read(opened)))
}
