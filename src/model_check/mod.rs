//! A conformance kit for object models.

#[allow(unsafe_code)]
mod bench;
mod broken;
mod by_hand;
mod by_heap;
mod program;
mod refusal;
mod run;
mod shadow;
mod specimen;
mod stop_calls;
mod threads;

pub use broken::{Broken, CheckReport, Rule};
pub use specimen::{Abilities, Journal, ObjectSpec, Specimen};

use crate::model_check::program::{Random, exercises, random};

/// Checks a model with the default settings.
///
/// # Errors
///
/// The rule that the model has broken.
pub fn check<M: Specimen>() -> Result<CheckReport, Broken> {
    Check::new().run::<M>()
}

/// The settings of a check.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "nothing is checked until `run` is called"]
pub struct Check {
    seed: u64,
    programs: usize,
    threads: usize,
}

impl Default for Check {
    fn default() -> Self {
        Self { seed: 1, programs: 100, threads: 3 }
    }
}

impl Check {
    /// The default settings.
    pub fn new() -> Self {
        Self::default()
    }

    /// The seed of the random programs.
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// The number of random programs.
    pub fn programs(mut self, programs: usize) -> Self {
        self.programs = programs;
        self
    }

    /// The number of threads of the programs with several threads. With fewer than 2 there are no
    /// such programs.
    pub fn threads(mut self, threads: usize) -> Self {
        self.threads = threads;
        self
    }

    /// Checks the model `M`.
    ///
    /// # Errors
    ///
    /// The first broken rule that was found.
    pub fn run<M: Specimen>(&self) -> Result<CheckReport, Broken> {
        assert!(
            M::FIELDS > 0,
            "`Specimen::FIELDS` is 0; objects without references need no collector"
        );
        let mut report = CheckReport { skipped: M::ABILITIES.skipped(), ..CheckReport::default() };
        for program in exercises(M::ABILITIES, M::FIELDS) {
            self.run_one::<M>(&program, self.seed, &mut report)?;
        }
        for by_heap in [false, true] {
            for at in 0..self.programs.div_ceil(2) {
                let seed = self.seed.wrapping_add(at as u64);
                let program = random(&mut Random(seed), M::ABILITIES, M::FIELDS, by_heap);
                self.run_one::<M>(&program, seed, &mut report)?;
            }
        }
        let refused =
            refusal::refuse::<M>(self.seed).map_err(|failure| failure.report(self.seed))?;
        report.add(&refused);
        if self.threads > 1 {
            for at in 0..self.programs.div_ceil(10) {
                let seed = self.seed.wrapping_add(at as u64);
                let more = threads::run_threads::<M>(self.threads, seed)
                    .map_err(|failure| failure.report(self.seed))?;
                report.add(&more);
            }
        }
        Ok(report)
    }

    fn run_one<M: Specimen>(
        &self,
        program: &[program::ProgramStep],
        seed: u64,
        report: &mut CheckReport,
    ) -> Result<(), Broken> {
        match run::run_program::<M>(program, seed) {
            Ok(more) => {
                report.add(&more);
                Ok(())
            }
            Err(failure) => Err(run::shrink::<M>(program, seed, failure).report(self.seed)),
        }
    }
}
