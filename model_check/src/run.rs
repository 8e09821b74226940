//! Running programs, each on a thread and a heap of its own, and shrinking those that fail.

#![forbid(unsafe_code)]

use std::mem;
#[cfg(not(standstill_shuttle))]
use std::{panic::resume_unwind, thread};

use crate::bench::Bench;
use crate::broken::{Broken, CheckReport, Checked, Finding};
use crate::program::ProgramStep;
use crate::specimen::Specimen;

/// Programs that shrinking tries at most.
const SHRINK_TRIES: usize = 400;

/// A run that has found a broken rule.
pub(crate) struct Failure {
    pub(crate) finding: Box<Finding>,
    type_name: Option<String>,
    log: Vec<String>,
}

impl Failure {
    pub(crate) fn new(
        finding: Box<Finding>,
        type_name: Option<String>,
        log: Vec<String>,
    ) -> Box<Self> {
        Box::new(Self { finding, type_name, log })
    }

    /// Adds a line to the program.
    #[cfg(standstill_shuttle)]
    pub(crate) fn under(mut self: Box<Self>, line: String) -> Box<Self> {
        self.log.push(line);
        self
    }

    pub(crate) fn report(self, seed: u64) -> Broken {
        let Finding { rule, method, text, .. } = *self.finding;
        let (what, program) = (text.into_owned(), self.log);
        Broken { rule, method, type_name: self.type_name, what, seed, program }
    }
}

/// Under shuttle each schedule has threads of its own already.
#[cfg(standstill_shuttle)]
pub(crate) fn on_a_thread<R>(f: impl FnOnce() -> R) -> R {
    f()
}

/// Runs `f` on a new thread, because a heap that is given up leaves its thread attached.
#[cfg(not(standstill_shuttle))]
pub(crate) fn on_a_thread<R: Send>(f: impl FnOnce() -> R + Send) -> R {
    thread::scope(|scope| {
        let builder = thread::Builder::new().name("conformance".to_owned());
        let thread = builder.spawn_scoped(scope, f).expect("a thread for the conformance kit");
        thread.join().unwrap_or_else(|payload| resume_unwind(payload))
    })
}

/// Runs a program.
pub(crate) fn run_program<M: Specimen>(
    program: &[ProgramStep],
    seed: u64,
) -> Result<CheckReport, Box<Failure>> {
    on_a_thread(|| {
        let mut bench = Bench::<M>::new(seed)
            .map_err(|finding| Failure::new(finding, None, vec!["make a heap".to_owned()]))?;
        for &step in program {
            if let Err(finding) = bench.step(step) {
                return Err(give_up(bench, finding));
            }
        }
        conclude(bench)
    })
}

/// Ends a program. A finding there still has the log and the names.
fn conclude<M: Specimen>(mut bench: Bench<M>) -> Result<CheckReport, Box<Failure>> {
    bench.log.push("drop everything, and collect".to_owned());
    if let Err(finding) = bench.wind_up() {
        return Err(give_up(bench, finding));
    }
    let log = mem::take(&mut bench.log);
    let finished: Checked<CheckReport> = bench.finish();
    finished.map_err(|finding| Failure::new(finding, None, log))
}

/// After a finding no code of the model runs in this heap any more: the heap is leaked.
pub(crate) fn give_up<M: Specimen>(mut bench: Bench<M>, finding: Box<Finding>) -> Box<Failure> {
    let (name, log) = (bench.type_of(&finding), mem::take(&mut bench.log));
    mem::forget(bench);
    Failure::new(finding, name, log)
}

/// The shortest part of a failing program, found by leaving steps out, that breaks the same rule in
/// the same method.
pub(crate) fn shrink<M: Specimen>(
    program: &[ProgramStep],
    seed: u64,
    mut failure: Box<Failure>,
) -> Box<Failure> {
    let mut program = program.to_vec();
    let mut tries = 0;
    let mut part = program.len().div_ceil(2);
    while part > 0 {
        let mut start = 0;
        while start < program.len() && tries < SHRINK_TRIES {
            let mut shorter = program.clone();
            shorter.drain(start..(start + part).min(program.len()));
            tries += 1;
            match run_program::<M>(&shorter, seed) {
                Err(other)
                    if (other.finding.rule, other.finding.method)
                        == (failure.finding.rule, failure.finding.method) =>
                {
                    (program, failure) = (shorter, other);
                }
                _ => start += part,
            }
        }
        part = if part == 1 { 0 } else { part.div_ceil(2) };
    }
    failure
}
