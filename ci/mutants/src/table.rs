//! The table of survivors with their reasons (`ci/mutants/survivors.toml`).

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs;
use std::path::Path;

use serde::Deserialize;

use crate::tree::Entry;

type Error = Box<dyn std::error::Error>;

/// One reason, for one mutant or several of a function.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Row {
    function: String,
    /// The changes, in the words of the runner.
    changes: Vec<String>,
    reason: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    /// Tests that take too long to be asked, each a program and a name.
    slow: HashSet<String>,
    /// How many of 100 mutants of a sample must be caught.
    least: f64,
    survivors: BTreeMap<String, Vec<Row>>,
}

/// Reasons by mutant.
pub struct Table {
    /// Tests that are not asked: they take too long.
    pub slow: HashSet<String>,
    /// How many of 100 mutants of a sample must be caught.
    pub least: f64,
    reasons: HashMap<String, String>,
}

impl Table {
    /// Reads the table. Every row must name a mutant that there is, and give its reason.
    pub fn read(path: &Path, entries: &[Entry]) -> Result<Self, Error> {
        let File { slow, least, survivors } = toml::from_str(&fs::read_to_string(path)?)?;
        let known: HashSet<String> = entries.iter().map(Entry::key).collect();
        let mut reasons = HashMap::new();
        let mut complaints = Vec::new();
        for (file, rows) in survivors {
            for row in rows {
                if row.reason.trim().is_empty() {
                    complaints.push(format!("{file} {}: no reason", row.function));
                }
                for change in &row.changes {
                    let key = format!("{file} {}: {change}", row.function);
                    if !known.contains(&key) {
                        complaints.push(format!("no such mutant: {key}"));
                    }
                    if reasons.insert(key.clone(), row.reason.clone()).is_some() {
                        complaints.push(format!("explained twice: {key}"));
                    }
                }
            }
        }
        if complaints.is_empty() {
            Ok(Self { slow, least, reasons })
        } else {
            Err(complaints.join("\n").into())
        }
    }

    /// Why a mutant survives.
    pub fn reason(&self, entry: &Entry) -> Option<&str> {
        self.reasons.get(&entry.key()).map(String::as_str)
    }
}
