//! How long collections have taken, and which code of the program was slowest.
//!
//! A sum cannot answer why one request took long, and one slow collection in a thousand is what
//! users notice. So a heap keeps a histogram of each time, apart for young and full collections,
//! and the reports of its last collections.
//!
//! For example, a full collection stops the world for 4 ms and 1 ms. Its `Count` takes 2 ms of the
//! first stop. When its report is closed, the histogram of full pauses gets two values, and that of
//! the phase `Count` one.
//!
//! # Access
//!
//! * [`Phases`]: the threads that work on a collection add to the sums while one has the collector
//!   lock. They are relaxed, because they are figures. In checked mode `Clear` includes the stops
//!   of the checks.
//! * All else is under the lock of settings, and no code of the program runs under that.
//!
//! Without memory for a histogram or a report, that value is left out.

#![forbid(unsafe_code)]

use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use crate::base::fallible::{self, NoMemory};
use crate::base::settings_lock::Setting;
use crate::heap::core::Core;
use crate::heap::model::ObjectModel;
use crate::report::event::{self, EnteredSpan};
use crate::report::facts::{CollectionKind, CollectionReport, LongestCall, Phase, PhaseTimes};
use crate::report::times::{Distribution, PRECISION, Times};

/// Reports of so many collections are kept.
const KEPT_REPORTS: usize = 256;

/// The sums of the phases since the heap was made, in nanoseconds.
#[derive(Debug, Default)]
pub(crate) struct Phases([AtomicU64; Phase::ALL.len()]);

impl Phases {
    pub(crate) fn sums(&self) -> PhaseTimes {
        PhaseTimes::of(|phase| self.0[phase as usize].load(Ordering::Relaxed))
    }
}

/// A phase that is under way, until this is dropped.
#[must_use = "the phase ends when this is dropped"]
#[derive(Debug)]
pub(crate) struct OpenPhase<'c> {
    _span: EnteredSpan,
    begun: Instant,
    sum: &'c AtomicU64,
}

impl Drop for OpenPhase<'_> {
    fn drop(&mut self) {
        self.sum.fetch_add(self.begun.elapsed().as_nanos() as u64, Ordering::Relaxed);
    }
}

impl<M: ObjectModel> Core<M> {
    /// Enters a phase of a collection: its span, and the measurement of its time.
    pub(crate) fn phase(&self, phase: Phase) -> OpenPhase<'_> {
        let sum = &self.timings.phases.0[phase as usize];
        OpenPhase { _span: event::phase(phase), begun: Instant::now(), sum }
    }
}

/// How long the collections of one kind have taken.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CollectionTimes {
    /// The stops: each is a value.
    pub pause: Distribution,
    /// [`CollectionReport::time_to_stop`].
    pub time_to_stop: Distribution,
    /// [`CollectionReport::waited`], of collections that have waited.
    pub waited: Distribution,
    /// [`CollectionReport::duration`].
    pub duration: Distribution,
    /// The phases that have run, in their order.
    pub phases: Vec<(Phase, Distribution)>,
}

/// The histograms of one kind of collection.
#[derive(Default)]
struct KindTimes {
    pause: Times<PRECISION>,
    time_to_stop: Times<PRECISION>,
    waited: Times<PRECISION>,
    duration: Times<PRECISION>,
    phases: [Times<PRECISION>; Phase::ALL.len()],
}

#[derive(Default)]
struct Kept {
    young: KindTimes,
    full: KindTimes,
    /// The number of the last report.
    sequence: u64,
    recent: VecDeque<CollectionReport>,
    /// The slowest calls since the last report, at most one of each kind.
    slowest: Vec<LongestCall>,
}

/// The times of a heap's collections.
#[derive(Default)]
pub(crate) struct Timings {
    pub(crate) phases: Phases,
    kept: Setting<Kept>,
}

impl fmt::Debug for Timings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Timings").finish_non_exhaustive()
    }
}

impl Timings {
    /// Notes a slow call of the program's code in a collection.
    pub(crate) fn note_call(&self, call: &LongestCall) {
        self.kept.with(|kept| {
            let same = kept.slowest.iter().position(|noted| noted.during == call.during);
            if same.is_some_and(|at| kept.slowest[at].took >= call.took) {
                return;
            }
            let Some(call) = call.copy() else { return };
            match same {
                Some(at) => kept.slowest[at] = call,
                None => drop(fallible::push(&mut kept.slowest, call)),
            }
        });
    }

    /// Forgets slow calls that belong to no collection.
    pub(crate) fn forget_calls(&self) {
        drop(self.take_calls());
    }

    /// The slow calls of the running collection.
    pub(crate) fn take_calls(&self) -> Vec<LongestCall> {
        self.kept.with(|kept| std::mem::take(&mut kept.slowest))
    }

    /// Completes a report that is about to be closed, and keeps its times and a copy.
    pub(crate) fn close(&self, report: &mut CollectionReport) {
        let overwritten = self.kept.with(|kept| {
            kept.sequence += 1;
            report.sequence = kept.sequence;
            report.slowest = std::mem::take(&mut kept.slowest);
            report.slowest.sort_unstable_by_key(|call| std::cmp::Reverse(call.took));
            let times = match report.kind {
                CollectionKind::Young => &mut kept.young,
                CollectionKind::Full => &mut kept.full,
            };
            report.stops.iter().for_each(|&stop| times.pause.add(stop));
            // One that could not stop the world has only waited.
            if !report.stops.is_empty() {
                times.time_to_stop.add(report.time_to_stop);
                times.duration.add(report.duration);
            }
            if !report.waited.is_zero() {
                times.waited.add(report.waited);
            }
            for (phase, took) in report.phases.iter() {
                times.phases[phase as usize].add(took);
            }
            let oldest = (kept.recent.len() >= KEPT_REPORTS).then(|| kept.recent.pop_front());
            if kept.recent.try_reserve(1).is_ok()
                && let Some(copy) = report.copy()
            {
                kept.recent.push_back(copy);
            }
            oldest
        });
        drop(overwritten);
    }

    /// The last reports, the newest last. The lock is taken for each of them, because all heaps
    /// share it.
    pub(crate) fn recent(&self) -> Vec<CollectionReport> {
        let mut reports: Vec<CollectionReport> = Vec::with_capacity(KEPT_REPORTS);
        while reports.len() < KEPT_REPORTS {
            let last = reports.last().map_or(0, |report| report.sequence);
            let next = self.kept.with(|kept| {
                let at = kept.recent.partition_point(|report| report.sequence <= last);
                kept.recent.get(at).cloned()
            });
            match next {
                Some(report) => reports.push(report),
                None => break,
            }
        }
        reports
    }

    /// The times of young and of full collections. The lock is taken for each of them, because all
    /// heaps share it.
    pub(crate) fn times(&self) -> Result<(CollectionTimes, CollectionTimes), NoMemory> {
        Ok((self.of_kind(|kept| &kept.young)?, self.of_kind(|kept| &kept.full)?))
    }

    fn of_kind(&self, kind: impl Fn(&Kept) -> &KindTimes) -> Result<CollectionTimes, NoMemory> {
        let of = |times: &dyn Fn(&KindTimes) -> &Times<PRECISION>| {
            self.kept.with(|kept| times(kind(kept)).distribution())
        };
        let mut phases = Vec::new();
        for phase in Phase::ALL {
            if let Some(times) = of(&|kind| &kind.phases[phase as usize]) {
                fallible::push(&mut phases, (phase, times))?;
            }
        }
        Ok(CollectionTimes {
            pause: of(&|kind| &kind.pause).unwrap_or_default(),
            time_to_stop: of(&|kind| &kind.time_to_stop).unwrap_or_default(),
            waited: of(&|kind| &kind.waited).unwrap_or_default(),
            duration: of(&|kind| &kind.duration).unwrap_or_default(),
            phases,
        })
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
