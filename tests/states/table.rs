//! `expected.tsv`: function, state, outcome. A line with the state `*` holds for all states of its
//! function that have no line of their own.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

#[derive(Default)]
pub(crate) struct Table(BTreeMap<String, BTreeMap<String, String>>);

fn path() -> std::path::PathBuf {
    std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/states/expected.tsv")
}

pub(crate) fn read() -> Table {
    let text = std::fs::read_to_string(path()).unwrap_or_default();
    let mut table = Table::default();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let mut parts = line.splitn(3, '\t');
        let [function, state, outcome] =
            std::array::from_fn(|_| parts.next().expect("three parts").to_owned());
        table.0.entry(function).or_default().insert(state, outcome);
    }
    table
}

impl Table {
    pub(crate) fn insert(&mut self, function: &str, outcomes: Vec<(String, String)>) {
        self.0.insert(function.into(), outcomes.into_iter().collect());
    }

    /// The differences, one line for each cell.
    pub(crate) fn difference(&self, function: &str, found: &[(String, String)]) -> Option<String> {
        let Some(row) = self.0.get(function) else {
            return Some(format!("no row of `expected.tsv` is called {function}"));
        };
        let mut text = String::new();
        for (state, outcome) in found {
            let expected =
                row.get(state).or_else(|| row.get("*")).map_or("nothing", String::as_str);
            if expected != outcome {
                let _ = writeln!(text, "{state}:\n  expected {expected}\n  found    {outcome}");
            }
        }
        (!text.is_empty()).then_some(text)
    }

    pub(crate) fn has_rows(&self, names: &[&str]) -> Result<(), String> {
        let here: BTreeSet<&str> = names.iter().copied().collect();
        let there: BTreeSet<&str> = self.0.keys().map(String::as_str).collect();
        if here.len() != names.len() {
            return Err("two rows have one name".into());
        }
        let odd: Vec<_> = here.symmetric_difference(&there).collect();
        if odd.is_empty() { Ok(()) } else { Err(format!("only on one side: {odd:?}")) }
    }
}

/// Writes the rows that were run; the others stay as they are.
pub(crate) fn write(names: &[&str], found: &Table) {
    let mut text = String::from(
        "# function, state, outcome; made by STATES_BLESS=1 cargo test --test states\n",
    );
    let before = read();
    for &name in names {
        let Some(row) = found.0.get(name).or_else(|| before.0.get(name)) else { continue };
        let mut often: BTreeMap<&String, usize> = BTreeMap::new();
        row.values().for_each(|outcome| *often.entry(outcome).or_default() += 1);
        let usual =
            row.get("*").or_else(|| often.iter().max_by_key(|(_, n)| **n).map(|(text, _)| *text));
        let usual = usual.expect("a cell").clone();
        let _ = writeln!(text, "{name}\t*\t{usual}");
        for (state, outcome) in
            row.iter().filter(|(state, outcome)| *state != "*" && **outcome != usual)
        {
            let _ = writeln!(text, "{name}\t{state}\t{outcome}");
        }
    }
    std::fs::write(path(), text).expect("the table is written");
}
