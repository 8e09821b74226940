//! The pauses of a process, from the lines that `STANDSTILL_LOG=gc:FILE` makes it write.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;

use serde::Deserialize;

use crate::bad_input::{BadInput, Fault};

/// The longest line that is read, in bytes.
const LONGEST_LINE: u64 = 1 << 20;
/// The texts of slow waits that are kept.
const MOST_SLOW: usize = 20;

/// The pauses of a log, in its order.
#[derive(Debug, Default)]
pub struct Pauses {
    /// All of them.
    pub pauses: Vec<Pause>,
    /// The last reports of slow waits.
    pub slow: VecDeque<SlowReport>,
    /// The number of all such reports.
    pub slow_count: usize,
}

/// One stop of the world.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pause {
    /// What the stop was for.
    pub kind: PauseKind,
    /// How long it lasted, in microseconds.
    pub micros: u64,
}

/// A report of a slow wait. Logs of older versions have only the text.
#[derive(Clone, Debug, Default)]
pub struct SlowReport {
    /// The number of pauses that stand before it in the log.
    pub pauses_before: usize,
    /// The name of its event, such as `slow stop`.
    pub kind: Option<String>,
    /// How long the wait has taken, in microseconds.
    pub micros: Option<u64>,
    /// The thread that causes it.
    pub thread: Option<String>,
    /// All of it, in a sentence.
    pub text: String,
}

/// What a stop was for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PauseKind {
    /// A full collection.
    Full,
    /// A young collection.
    Young,
    /// A promotion of new objects.
    Promotion,
}

/// A line of the log, as far as it is needed. Lines of other events, and other members, may be
/// there.
#[derive(Deserialize)]
struct Line {
    event: String,
    kind: Option<String>,
    #[serde(default)]
    stops_us: Vec<u64>,
    stopped_us: Option<u64>,
    waited_us: Option<u64>,
    thread: Option<String>,
    text: Option<String>,
}

impl Pauses {
    /// Reads a log. A last line without an end was cut off with its process, and is left out.
    ///
    /// # Errors
    ///
    /// If the file cannot be read, or a line is not one of the log.
    pub fn read(file: &Path) -> Result<Self, BadInput> {
        let failed = |error: std::io::Error| Fault::new("open", error.to_string()).of(file);
        let mut reader = BufReader::new(File::open(file).map_err(failed)?);
        let mut this = Self::default();
        let mut line = Vec::new();
        for number in 1.. {
            let fault = |reason: String| Fault::new(format!("line {number}"), reason).of(file);
            line.clear();
            let limited = (&mut reader).take(LONGEST_LINE).read_until(b'\n', &mut line);
            let length = limited.map_err(|error| fault(error.to_string()))?;
            if length as u64 == LONGEST_LINE {
                return Err(fault(format!("longer than {LONGEST_LINE} bytes")));
            }
            if line.pop() != Some(b'\n') {
                break;
            }
            let line = serde_json::from_slice(&line).map_err(|error| fault(error.to_string()))?;
            this.add(line);
        }
        Ok(this)
    }

    fn add(&mut self, line: Line) {
        let kind = match (line.event.as_str(), line.kind.as_deref()) {
            ("collection", Some("full")) => PauseKind::Full,
            ("collection", _) => PauseKind::Young,
            ("promotion", _) => PauseKind::Promotion,
            _ => {
                if let Some(text) = line.text {
                    self.slow_count += 1;
                    if self.slow.len() == MOST_SLOW {
                        self.slow.pop_front();
                    }
                    self.slow.push_back(SlowReport {
                        pauses_before: self.pauses.len(),
                        kind: line.kind,
                        micros: line.waited_us,
                        thread: line.thread,
                        text,
                    });
                }
                return;
            }
        };
        let stops = line.stops_us.into_iter().chain(line.stopped_us);
        self.pauses.extend(stops.map(|micros| Pause { kind, micros }));
    }

    /// The times of one kind, in order of length.
    pub fn sorted(&self, kind: PauseKind) -> Vec<u64> {
        let of_kind = self.pauses.iter().filter(|pause| pause.kind == kind);
        let mut times: Vec<u64> = of_kind.map(|pause| pause.micros).collect();
        times.sort_unstable();
        times
    }
}

/// The time that `percent` of the times, at least one, do not exceed. `sorted` has at least one.
///
/// # Panics
///
/// If there are no times, or `percent` is more than 100.
pub fn nearest_rank(sorted: &[u64], percent: usize) -> u64 {
    let rank = (sorted.len() * percent).div_ceil(100).max(1);
    sorted[rank - 1]
}
