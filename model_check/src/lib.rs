//! A conformance kit for object models: it names the rule that a model breaks, and the method.
//!
//! A runtime implements [`Specimen`] for its [`ObjectModel`] in a test. [`check`] then makes
//! objects of the model, changes their references, and compares the heap with its own books after
//! each step: see [`Broken`] for the result.
//!
//! # Example
//!
//! ```
//! use std::sync::Arc;
//! use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering::*};
//! use std::ptr::{NonNull, null_mut};
//! use standstill::OutOfMemory;
//! use standstill::model::*;
//! use standstill_model_check::{Journal, ObjectSpec, Specimen};
//! use standstill::safepoint::ThreadId;
//!
//! /// An object: a count, and one field.
//! struct Link {
//!     count: AtomicUsize,
//!     next: AtomicPtr<u8>,
//! }
//!
//! struct Links;
//!
//! impl Links {
//!     fn link(&self, object: Object) -> &Link {
//!         // SAFETY: every object of this heap is a `Link`.
//!         unsafe { object.as_ptr().cast().as_ref() }
//!     }
//!
//!     fn swap(&self, object: Object, next: Option<Object>) -> Option<Object> {
//!         let next = next.map_or(null_mut(), |next| next.as_ptr().as_ptr());
//!         NonNull::new(self.link(object).next.swap(next, AcqRel)).map(Object::new)
//!     }
//!
//!     fn drop_reference(&self, object: Object, m: &ModelMutator<Self>) {
//!         let mut next = Some(object);
//!         while let Some(object) = next {
//!             if self.link(object).count.fetch_sub(1, AcqRel) != 1 {
//!                 break;
//!             }
//!             next = self.swap(object, None);
//!             // SAFETY: the count is 0.
//!             unsafe { m.free(object.as_ptr()) };
//!         }
//!     }
//! }
//!
//! // SAFETY: the check below.
//! unsafe impl ObjectModel for Links {
//!     type Addresses = Reserved;
//!     type Parts = ();
//!
//!     fn count(&self, object: Stopped<'_>) -> Count {
//!         Count::Exact(self.link(*object).count.load(Relaxed) as i64)
//!     }
//!     fn traverse(&self, object: Stopped<'_>, tracer: &mut Tracer) {
//!         if let Some(next) = NonNull::new(self.link(*object).next.load(Relaxed)) {
//!             // SAFETY: the field's reference is counted.
//!             unsafe { tracer.visit_object(Object::new(next)) };
//!         }
//!     }
//!     fn claim_ref(&self, object: Stopped<'_>, _: ThreadId) {
//!         self.link(*object).count.fetch_add(1, Relaxed);
//!     }
//!     fn release(&self, reference: ClaimRef, m: &ModelMutator<Self>) {
//!         self.drop_reference(reference.object(), m);
//!     }
//!     fn clear(&self, object: Live<'_>, m: &ModelMutator<Self>) {
//!         if let Some(next) = self.swap(*object, None) {
//!             self.drop_reference(next, m);
//!         }
//!     }
//! }
//!
//! impl Specimen for Links {
//!     type Weak = ();
//!     const FIELDS: usize = 1;
//!
//!     fn specimen(_: &Arc<Journal>) -> Self {
//!         Links
//!     }
//!     fn alloc(m: &ModelMutator<Self>, _: ObjectSpec) -> Result<Object, OutOfMemory> {
//!         let cell = m.allocate(size_of::<Link>(), align_of::<Link>())?;
//!         let link = Link { count: AtomicUsize::new(1), next: AtomicPtr::new(null_mut()) };
//!         // SAFETY: new memory, of this size.
//!         unsafe {
//!             cell.cast::<Link>().write(link);
//!             m.publish(Object::new(cell), true);
//!         }
//!         Ok(Object::new(cell))
//!     }
//!     fn set(m: &ModelMutator<Self>, object: Object, _: usize, target: Option<Object>) {
//!         if let Some(target) = target {
//!             Self::retain(m, target);
//!         }
//!         if let Some(old) = m.model().swap(object, target) {
//!             m.model().drop_reference(old, m);
//!         }
//!     }
//!     fn retain(m: &ModelMutator<Self>, object: Object) {
//!         m.model().link(object).count.fetch_add(1, Relaxed);
//!     }
//!     fn drop_ref(m: &ModelMutator<Self>, object: Object) {
//!         m.model().drop_reference(object, m);
//!     }
//! }
//!
//! let report = standstill_model_check::check::<Links>().unwrap();
//! assert!(report.skipped.contains(&"weak references"));
//! ```
//!
//! # What runs
//!
//! * Short programs and random ones on one thread. The kit calls the methods for single objects,
//!   and the heap collects with all checks of the [stress mode](standstill::Stress::verify_counts)
//!   for object models. After each step the kit compares counts, references and freed memory.
//! * A heap whose memory runs out.
//! * Programs on several threads, with collections at safepoints and random yields.
//! * Short programs for the seam to a runtime: references without a count, roots by callback,
//!   counts in several places, serial objects, verdicts that keep garbage, requests, and stops of
//!   the runtime. Random programs do not contain them.
//!
//! A program that fails is shortened. The seed repeats it, except for programs with threads.
//!
//! # Under random schedules
//!
//! Real threads meet a wrong schedule rarely. With `--cfg standstill_shuttle` and the feature
//! `shuttle` of this package only the programs on several threads run, each under many schedules
//! that [shuttle](https://docs.rs/shuttle) draws, and the seed repeats a failure. The atomics and
//! locks of the model must be shuttle's too, because another thread can go on only there. All
//! accesses are `SeqCst` then, so a fault in a weaker ordering is left to loom.
//!
//! # What the kit cannot tell
//!
//! * Faults of parts that [`Specimen`] does not show. The report lists skipped parts, but it does
//!   not know of methods such as [`last_type`](standstill::model::Checks::last_type).
//! * Whether threads of the runtime wait for its stop:
//!   [`comes_back`](standstill::model::RuntimeStop::comes_back) runs only in the programs with
//!   threads, where a fault shows as a wrong count or as a program that never ends.
//! * Which thread traverses an object. Of [`serial`](standstill::model::Serial::serial) the
//!   kit checks the answer.
//! * A wrong reference that no reference of the kit uncovers: the model's own objects, and fields
//!   beside those of [`Specimen::set`].
//! * Forks, the end of threads in the middle of a program, and a method that never returns.
//! * Whether a data race exists. Without random schedules a race shows only if real threads meet
//!   it, and if it makes a count or a reference wrong. ThreadSanitizer finds more.
//! * Several faults at once: the first one is named.
//!
//! A model that breaks a rule causes undefined behaviour in general. The kit looks for the fault
//! before it can do harm: freed memory stays mapped, and after a finding no code of the model runs.
//! In the programs with threads a broken model can still crash the process.
//!
//! The kit makes cycles of any objects and expects that
//! [`clear`](standstill::model::ObjectModel::clear) breaks them: a model with immutable objects
//! makes specimens of another type.
//!
//! [`ObjectModel`]: standstill::model::ObjectModel

#![deny(unsafe_code)]

#[allow(unsafe_code)]
mod bench;
mod broken;
#[allow(unsafe_code)]
#[cfg(test)]
mod built_in;
#[allow(unsafe_code)]
#[cfg(all(test, not(standstill_shuttle)))]
mod built_in_dynamic;
#[cfg(test)]
mod built_in_journal;
mod by_heap;
#[allow(unsafe_code)]
mod one_by_one;
mod program;
mod refusal;
mod run;
#[cfg(standstill_shuttle)]
mod schedules;
#[allow(unsafe_code)]
mod seam;
mod shadow;
mod specimen;
#[allow(unsafe_code)]
mod stop_calls;
mod threads;

pub use broken::{Broken, CheckReport, Rule};
pub use specimen::{Abilities, Journal, ObjectSpec, Specimen};

use crate::program::{Random, exercises, random};

/// Checks a model with the default settings: see the [module's page](self).
///
/// # Errors
///
/// The rule that the model has broken, and the place.
///
/// # Panics
///
/// If [`Specimen::FIELDS`] is 0, or if the system refuses a thread.
pub fn check<M: Specimen>() -> Result<CheckReport, Broken> {
    Check::new().run::<M>()
}

/// The settings of a check.
///
/// A new check has seed 1, 100 random programs, and programs with 3 threads.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "nothing is checked until `run` is called"]
pub struct Check {
    seed: u64,
    programs: usize,
    threads: usize,
    #[cfg(standstill_shuttle)]
    schedules: usize,
}

impl Default for Check {
    fn default() -> Self {
        Self {
            seed: 1,
            programs: 100,
            threads: 3,
            #[cfg(standstill_shuttle)]
            schedules: 20,
        }
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

    /// The number of random programs on one thread. A tenth as many run on several threads.
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

    /// The number of random schedules of each program on several threads; 20 if it is not set. Half
    /// as many with priorities are added. Only under `--cfg standstill_shuttle`.
    #[cfg(standstill_shuttle)]
    pub fn schedules(mut self, schedules: usize) -> Self {
        self.schedules = schedules;
        self
    }

    /// Checks the model `M`.
    ///
    /// # Errors
    ///
    /// The first broken rule that was found.
    ///
    /// # Panics
    ///
    /// As [`check`].
    pub fn run<M: Specimen>(&self) -> Result<CheckReport, Broken> {
        assert!(
            M::FIELDS > 0,
            "`Specimen::FIELDS` is 0; objects without references need no collector"
        );
        let mut report =
            CheckReport { skipped: Abilities::skipped::<M>(), ..CheckReport::default() };
        // Under shuttle there are only the programs that schedules matter to.
        if cfg!(not(standstill_shuttle)) {
            self.run_on_one_thread::<M>(&mut report)?;
        }
        if self.threads > 1 {
            for at in 0..self.programs.div_ceil(10) {
                let seed = self.seed.wrapping_add(at as u64);
                #[cfg(not(standstill_shuttle))]
                let result = threads::run_threads::<M>(self.threads, seed);
                #[cfg(standstill_shuttle)]
                let result = schedules::run_threads::<M>(self.threads, seed, self.schedules);
                report.add(&result.map_err(|failure| failure.report(seed))?);
            }
        }
        Ok(report)
    }

    fn run_on_one_thread<M: Specimen>(&self, report: &mut CheckReport) -> Result<(), Broken> {
        for program in exercises(M::ABILITIES, M::FIELDS).into_iter().chain(seam::exercises::<M>())
        {
            self.run_one::<M>(&program, self.seed, report)?;
        }
        for at in 0..self.programs {
            let seed = self.seed.wrapping_add(at as u64);
            let program = random(&mut Random(seed), M::ABILITIES, M::FIELDS);
            self.run_one::<M>(&program, seed, report)?;
        }
        let refused =
            refusal::refuse::<M>(self.seed).map_err(|failure| failure.report(self.seed))?;
        report.add(&refused);
        Ok(())
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
