//! Hostile users, cell by cell: every public function of the typed face called from every state
//! that it could be called from by mistake.
//!
//! A *row* is a function, a *column* a state of the calling thread, a *cell* the outcome of the
//! call. Each row runs in a process of its own, each of its cells on a thread of its own with fresh
//! heaps. A cell that hangs or kills the process fails. The outcome must equal the one in
//! `expected.tsv`. Afterwards the heaps must be sound and empty, and every object destroyed once:
//! objects that are left alive are part of the outcome.
//!
//! `ci/states.py` fails if a public function has no row. To write the table anew: `STATES_BLESS=1
//! cargo test --test states`. Then review every line that changed.

#![cfg(not(loom))]
#![allow(clippy::unit_arg, reason = "a row is one expression, whatever it gives")]
#![allow(clippy::type_complexity)]

#[path = "../common/mod.rs"]
mod common;

mod coordinator;
mod process;
mod rows;
mod stage;
mod table;
mod things;

use std::sync::{Arc, Mutex};

use libtest_mimic::{Arguments, Failed, Trial};

/// A function, with its callers in each column.
struct Row {
    name: &'static str,
    cells: Vec<(&'static str, Box<dyn FnOnce() -> String + Send>)>,
}

fn all_rows() -> Vec<Row> {
    let mut all = rows::all();
    all.extend(coordinator::all());
    all
}

fn main() {
    if process::is_child() {
        return process::child(all_rows());
    }
    let names: Vec<_> = all_rows().into_iter().map(|row| row.name).collect();
    let expected = Arc::new(table::read());
    let found = Arc::new(Mutex::new(table::Table::default()));
    let bless = std::env::var_os("STATES_BLESS").is_some();
    let mut trials: Vec<_> = names
        .iter()
        .map(|&name| {
            let (expected, found) = (Arc::clone(&expected), Arc::clone(&found));
            Trial::test(name, move || {
                let outcomes = process::run(name);
                let difference = if bless { None } else { expected.difference(name, &outcomes) };
                found.lock().unwrap().insert(name, outcomes);
                difference.map_or(Ok(()), |text| Err(Failed::from(text)))
            })
        })
        .collect();
    let all = names.clone();
    trials.push(Trial::test("the table has these rows and no others", move || {
        if bless { Ok(()) } else { expected.has_rows(&all).map_err(Failed::from) }
    }));
    let conclusion = libtest_mimic::run(&Arguments::from_args(), trials);
    if bless {
        table::write(&names, &found.lock().unwrap());
    }
    conclusion.exit();
}
