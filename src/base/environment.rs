//! Reading the environment is not safe while a C program changes it. So a process reads
//! `STANDSTILL_CHECKED`, `STANDSTILL_STRESS`, `STANDSTILL_LOG` and `STANDSTILL_DIAG` only once,
//! when it makes its first [`HeapBuilder`](crate::HeapBuilder). If the process has more rights than
//! its caller (setuid, setgid, file capabilities), it reads none, because the caller chose the
//! environment.
//!
//! An invalid variable is ignored as a whole, with one line on standard error, so that no heap
//! fails because of it.

#![forbid(unsafe_code)]

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use crate::base::settings_lock::SettingsHold;
use crate::base::stress::{STRESS_VARIABLE, Stress};
use crate::base::{outside, system};

/// Switches checked mode for all heaps whose builder does not set it.
const CHECKED_VARIABLE: &str = "STANDSTILL_CHECKED";

/// Makes all heaps write a line for each collection, promotion and slow wait.
const LOG_VARIABLE: &str = "STANDSTILL_LOG";

/// The folder in which heaps look for requests, and write snapshots.
const DIAGNOSTICS_VARIABLE: &str = "STANDSTILL_DIAG";

/// The bytes of a path that std opens without memory.
const LONGEST_PATH: usize = 300;

/// Where the lines of [`log`](crate::report::log) go.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum LogTo {
    /// Standard error.
    Errors,
    File(PathBuf),
}

/// The values of the variables.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Environment {
    /// Whether checked mode is on if a program does not set it. `None`: the build decides.
    pub(crate) checked: Option<bool>,
    /// Modes for every heap.
    pub(crate) stress: Stress,
    pub(crate) log: Option<LogTo>,
    pub(crate) diagnostics: Option<PathBuf>,
}

impl Environment {
    /// The environment of this process at the first call.
    pub(crate) fn get() -> &'static Self {
        static ENVIRONMENT: OnceLock<Environment> = OnceLock::new();
        if let Some(known) = ENVIRONMENT.get() {
            return known;
        }
        let mut complaints = Vec::new();
        // A fork holds this lock, so that its child does not inherit the cell half set.
        let held = SettingsHold::new();
        let environment = ENVIRONMENT.get_or_init(|| {
            if system::has_more_rights_than_its_caller() {
                return Self::default();
            }
            let value =
                |name| std::env::var_os(name).map(|value| value.to_string_lossy().into_owned());
            let (mut this, invalid) =
                Self::of(value(CHECKED_VARIABLE).as_deref(), value(STRESS_VARIABLE).as_deref());
            complaints = invalid;
            match std::env::var_os(LOG_VARIABLE).map(LogTo::of) {
                Some(Ok(log)) => this.log = log,
                Some(Err(complaint)) => complaints.push(complaint),
                None => {}
            }
            match std::env::var_os(DIAGNOSTICS_VARIABLE).filter(|folder| !folder.is_empty()) {
                Some(folder) if Path::new(&folder).is_dir() => {
                    // The program may change its folder.
                    let folder = std::path::absolute(&folder).unwrap_or(folder.into());
                    this.diagnostics = Some(folder);
                }
                Some(other) => complaints.push(format!(
                    "{DIAGNOSTICS_VARIABLE} is `{}`, which is no folder, and ignored",
                    other.to_string_lossy()
                )),
                None => {}
            }
            this
        });
        // Before a sink of the program may be called.
        drop(held);
        for complaint in complaints {
            outside::line(format_args!("standstill: {complaint}"));
        }
        environment
    }

    /// Parses the values of the two variables, and also returns a line for each invalid one.
    fn of(checked: Option<&str>, stress: Option<&str>) -> (Self, Vec<String>) {
        let (mut this, mut complaints) = (Self::default(), Vec::new());
        match checked.map(str::to_ascii_lowercase).as_deref() {
            None | Some("") => {}
            Some("1" | "true" | "yes" | "on") => this.checked = Some(true),
            Some("0" | "false" | "no" | "off") => this.checked = Some(false),
            Some(other) => {
                complaints.push(format!("{CHECKED_VARIABLE} is `{other}`, not 0 or 1, and ignored"))
            }
        }
        match stress.unwrap_or("").parse() {
            Ok(stress) => this.stress = stress,
            Err(error) => complaints.push(format!("{error}; {STRESS_VARIABLE} is ignored")),
        }
        (this, complaints)
    }
}

impl LogTo {
    /// Parses the value: `gc`, or `gc:FILE`.
    fn of(value: OsString) -> Result<Option<Self>, String> {
        match value.to_str() {
            Some("" | "0" | "off") => Ok(None),
            Some("gc") => Ok(Some(Self::Errors)),
            text => match text.and_then(|text| text.strip_prefix("gc:")) {
                // A longer path would take memory each time.
                Some(path) if (1..LONGEST_PATH).contains(&path.len()) => {
                    Ok(Some(Self::File(path.into())))
                }
                _ => Err(format!(
                    "{LOG_VARIABLE} is `{}`, not gc, gc:FILE or off, and ignored",
                    value.to_string_lossy()
                )),
            },
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
