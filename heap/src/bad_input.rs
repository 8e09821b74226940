//! Why a file was refused: one line that says file, place and reason.

use std::fmt;
use std::path::{Path, PathBuf};

/// Where in a file something is wrong, and what.
#[derive(Debug)]
pub struct Fault {
    /// A JSON path with line and column, a byte of the compressed file, or the step that failed.
    pub place: String,
    /// The fault.
    pub reason: String,
}

impl Fault {
    /// This `reason`, at this `place`.
    pub fn new(place: impl Into<String>, reason: impl Into<String>) -> Self {
        Self { place: place.into(), reason: reason.into() }
    }

    /// The same fault, of this file.
    pub fn of(self, file: &Path) -> BadInput {
        BadInput { file: file.to_path_buf(), fault: self }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.place, self.reason)
    }
}

impl std::error::Error for Fault {}

/// A refused file. Its `Display` is always a single line.
#[derive(Debug)]
pub struct BadInput {
    file: PathBuf,
    fault: Fault,
}

impl fmt::Display for BadInput {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Fault { place, reason } = &self.fault;
        write!(
            f,
            "{}: {}: {}",
            one_line(&self.file.to_string_lossy()),
            one_line(place),
            one_line(reason)
        )
    }
}

/// `text` without control characters, and short: names and messages may quote the file.
fn one_line(text: &str) -> String {
    const LONGEST: usize = 300;
    let mut line: String = text
        .chars()
        .take(LONGEST)
        .map(|c| if c.is_control() { char::REPLACEMENT_CHARACTER } else { c })
        .collect();
    if text.chars().nth(LONGEST).is_some() {
        line.push('…');
    }
    line
}
