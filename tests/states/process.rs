//! A row runs in a process of its own, so that a cell which aborts or hangs is an outcome like any
//! other.

use std::process::Command;
use std::sync::mpsc;
use std::time::Duration;

use crate::Row;

/// The child's environment: the row's name, and how many of its cells are done already.
const ROW: &str = "STATES_ROW";
const DONE: &str = "STATES_DONE";
/// Nothing here takes a hundredth of it.
const LIMIT: Duration = Duration::from_secs(20);
const HANG: i32 = 99;

pub(crate) fn is_child() -> bool {
    std::env::var_os(ROW).is_some()
}

/// Runs the remaining cells, and prints the outcome of each.
pub(crate) fn child(rows: Vec<Row>) {
    // A panic is an outcome.
    std::panic::set_hook(Box::new(|_| ()));
    let name = std::env::var(ROW).expect("a row's name");
    let done: usize = std::env::var(DONE).expect("a number").parse().expect("a number");
    let row = rows.into_iter().find(|row| row.name == name).expect("one of the rows");
    for (state, play) in row.cells.into_iter().skip(done) {
        let (tell, told) = mpsc::channel();
        let thread = std::thread::spawn(move || tell.send(play()));
        match told.recv_timeout(LIMIT) {
            Ok(outcome) => println!("{state}\t{outcome}"),
            Err(mpsc::RecvTimeoutError::Timeout) => std::process::exit(HANG),
            Err(mpsc::RecvTimeoutError::Disconnected) => {
                println!("{state}\tbroken: {:?}", panic_of(thread))
            }
        }
    }
    println!("end\t");
}

fn panic_of<T>(thread: std::thread::JoinHandle<T>) -> String {
    match thread.join() {
        Ok(_) => "the cell ended without a word".into(),
        Err(payload) => crate::stage::text_of(payload),
    }
}

/// The outcomes of a row, in the order of its columns.
pub(crate) fn run(name: &str) -> Vec<(String, String)> {
    let mut outcomes: Vec<(String, String)> = Vec::new();
    loop {
        let output = Command::new(std::env::current_exe().expect("this program"))
            // The table is that of a heap under no stress.
            .env_remove("STANDSTILL_STRESS")
            .env(ROW, name)
            .env(DONE, outcomes.len().to_string())
            .output()
            .expect("a process");
        let text = String::from_utf8(output.stdout).expect("text");
        let mut ended = false;
        for line in text.lines() {
            match line.split_once('\t').expect("a state and an outcome") {
                ("end", _) => ended = true,
                (state, outcome) => outcomes.push((state.into(), outcome.into())),
            }
        }
        if ended {
            return outcomes;
        }
        // The cell after the last that was printed.
        let what = if output.status.code() == Some(HANG) {
            "hang".into()
        } else {
            output.status.to_string()
        };
        let said = String::from_utf8_lossy(&output.stderr).replace(['\n', '\t'], " ");
        let row = crate::all_rows().into_iter().find(|row| row.name == name).expect("this row");
        outcomes.push((row.cells[outcomes.len()].0.into(), format!("crash: {what}: {said}")));
        if outcomes.len() == row.cells.len() {
            return outcomes;
        }
    }
}
