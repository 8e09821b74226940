//! One measurement in one process, with its own memory and its own warm-up.
//!
//! A child is this program with a [`Task`]. It prints its measurements as lines of JSON.

use std::error::Error;
use std::io::{self, BufRead, BufReader, Write};
use std::process::{Command, Stdio};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::{growth, shapes};

/// The task of a child.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Task {
    /// All measurements of one shape.
    Shape(shapes::Task),
    /// One size, built, collected and dropped.
    Size(growth::Task),
    /// The ideal of the same size.
    IdealSize(growth::Task),
}

/// Starts a child, and hands over its lines as they come. Its standard error is ours.
pub(crate) fn run<Line: DeserializeOwned>(
    task: &Task,
    mut each: impl FnMut(Line) -> Result<(), Box<dyn Error>>,
) -> Result<(), Box<dyn Error>> {
    let mut child = Command::new(std::env::current_exe()?)
        .arg("measure")
        .arg(serde_json::to_string(task)?)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()?;
    let said = child.stdout.take().ok_or("the child has no stdout")?;
    // Read to the end before an error counts: the child would wait for a reader for ever.
    let lines: Result<(), Box<dyn Error>> =
        BufReader::new(said).lines().try_for_each(|line| each(serde_json::from_str(&line?)?));
    let status = child.wait()?;
    if !status.success() {
        return Err(format!("{task:?} ended with {status}").into());
    }
    lines
}

/// A child's line.
pub(crate) fn say(line: &impl Serialize) -> Result<(), Box<dyn Error>> {
    let mut out = io::stdout().lock();
    writeln!(out, "{}", serde_json::to_string(line)?)?;
    out.flush()?;
    Ok(())
}
