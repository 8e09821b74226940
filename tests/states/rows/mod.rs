//! The rows: the calls, with their outcomes. One file for each family of functions.

mod ambient;
mod cells;
mod dynamic;
mod handles;
mod heaps;
mod mutators;
mod services;
mod values;
mod waiting;

use std::fmt::{Debug, Display};

use crate::stage::{self, Call, STATES, State};

type Rows = &'static [(&'static str, Call)];

pub(crate) fn all() -> Vec<crate::Row> {
    let families = [
        ambient::ROWS,
        handles::ROWS,
        cells::ROWS,
        heaps::ROWS,
        mutators::ROWS,
        services::ROWS,
        dynamic::ROWS,
        values::ROWS,
        waiting::ROWS,
    ];
    // On one processor, a parked thread sleeps before there is work.
    let can_help = std::thread::available_parallelism().is_ok_and(|n| n.get() > 1);
    let row = |&(name, call): &(&'static str, Call)| crate::Row {
        name,
        cells: STATES
            .iter()
            .filter(|(state, _)| *state != State::Helping || can_help)
            .map(|&(state, label)| {
                (
                    label,
                    Box::new(move || stage::cell(state, call))
                        as Box<dyn FnOnce() -> String + Send>,
                )
            })
            .collect(),
    };
    families.into_iter().flatten().map(row).collect()
}

fn ok(value: impl Debug) -> String {
    format!("ok: {value:?}")
}

/// For calls without a result, or without an interesting one.
fn done<T>(value: T) -> String {
    drop(value);
    "ok".into()
}

fn outcome(result: Result<impl Debug, impl Display>) -> String {
    match result {
        Ok(value) => ok(value),
        Err(error) => format!("error: {error}"),
    }
}

/// The fate of the last reference to an object, which `drop` gives up.
fn fate(things: &crate::things::Things, drop: impl FnOnce()) -> String {
    let before = things.census.dead();
    drop();
    if things.census.dead() > before { "ok: destroyed at once".into() } else { "deferred".into() }
}
