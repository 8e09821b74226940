//! The calls that collect, the switch of automatic collections, and the records of collections.
//!
//! Several reasons can forbid automatic collections at once, for example a call of `disable` and
//! two visits to all objects. So the [`Switch`] counts each reason at the heap's [`Pace`], and
//! collections start again only when the last reason is gone.

#![forbid(unsafe_code)]

use std::time::Duration;

use crate::Mutator;
use crate::base::fallible::{self, NoMemory, words};
use crate::base::sync::{AtomicBool, Mutex, Ordering};
use crate::gc_module::garbage::report_garbage;
use crate::gc_module::objects::count;
use crate::gc_module::services::{Services, stopped};
use crate::heap::pacing::Pace;
use crate::heap::request::{Collect, CollectError};
use crate::object::state::{FROZEN, OLD};
use crate::report::error::{Code, Fault};
use crate::report::facts::{CollectionKind, CollectionReport, During};
use crate::safepoint::{StopError, ThreadId};

impl Services {
    /// Switches automatic collections on, and returns whether they were on, as in a new heap.
    pub fn enable(&self) -> bool {
        let before = self.state().switch.enable(self.pace(), true);
        self.core().request_what_is_due();
        before
    }

    /// Switches automatic collections and [`collect_if_enabled`](Self::collect_if_enabled) off, and
    /// returns whether they were on. A running collection continues.
    pub fn disable(&self) -> bool {
        self.state().switch.enable(self.pace(), false)
    }

    /// Whether collections are enabled, by the last call of [`enable`](Self::enable) or
    /// [`disable`](Self::disable). A visit or a [`DeferGuard`](crate::DeferGuard) does not change
    /// the answer.
    pub fn is_enabled(&self) -> bool {
        self.state().switch.is_enabled()
    }

    /// Whether a thread is visiting all objects, so that this module's collecting calls do nothing.
    pub fn is_visiting(&self) -> bool {
        self.state().switch.is_visited()
    }

    /// Runs a full collection, as `PyGC_Collect` does. Returns `None` without waiting for a
    /// collection if they are disabled, one is running, all objects are being visited, or this
    /// thread must not reach a safepoint now.
    ///
    /// Whether a collection runs or not, the call is a safepoint, if this thread may reach one: it
    /// parks for the stop of another thread.
    ///
    /// CPython returns [`CollectionReport::found`]. If the world cannot be stopped because a thread
    /// ended without dropping its mutator, the hook of
    /// [`Heap::on_unraisable`](crate::Heap::on_unraisable) is called.
    ///
    /// # Panics
    ///
    /// When the mutator belongs to another heap. All functions that take a mutator do this.
    pub fn collect_if_enabled(&self, m: &mut Mutator) -> Option<CollectionReport> {
        self.check(m);
        if !self.is_enabled() {
            m.raw_mut().park();
            return None;
        }
        self.run(m, Collect::full())
    }

    /// Collects a generation, also while collections are disabled: 0 and 1 are young collections, 2
    /// is a full one. Otherwise returns `None` in the same cases as
    /// [`collect_if_enabled`](Self::collect_if_enabled).
    ///
    /// # Errors
    ///
    /// [`Code::BadGeneration`] for other numbers. Then nothing has happened.
    pub fn collect(
        &self,
        m: &mut Mutator,
        generation: i32,
    ) -> Result<Option<CollectionReport>, Fault> {
        self.check(m);
        let what = match generation {
            0 => Collect::young(),
            1 => Collect::young().named(1),
            2 => Collect::full(),
            _ => return Err(bad_generation("collect", generation)),
        };
        Ok(self.run(m, what))
    }

    /// Like [`collect`](Self::collect), but returns the number of unreachable objects, as CPython's
    /// `gc.collect` does. The number includes objects that could not be destroyed, and is 0 if no
    /// collection ran.
    ///
    /// # Errors
    ///
    /// As [`collect`](Self::collect).
    pub fn collect_generation(&self, m: &mut Mutator, generation: i32) -> Result<usize, Fault> {
        let report = self.collect(m, generation)?;
        Ok(report.map_or(0, |report| report.found()))
    }

    fn run(&self, m: &mut Mutator, what: Collect) -> Option<CollectionReport> {
        if self.is_visiting() {
            m.raw_mut().park();
            return None;
        }
        match m.try_collect(what.wait(false)) {
            Ok(report) => Some(report),
            Err(
                CollectError::Busy | CollectError::Stop(StopError::NoSafepoint | StopError::Nested),
            ) => None,
            Err(error) => {
                self.core().hooks.unraisable(During::Collect, "", words!("{error}"));
                None
            }
        }
    }

    /// The last collection of a runtime that ends before its heap: a full one that calls no
    /// progress callbacks. If the garbage list then has objects, the hook of
    /// [`Heap::on_unraisable`](crate::Heap::on_unraisable) is called, and with
    /// `DEBUG_UNCOLLECTABLE` the debugging sink also gets a line for each of them. The list keeps
    /// its objects, because the program may still use it.
    pub fn final_collection(&self, m: &mut Mutator) -> Option<CollectionReport> {
        self.check(m);
        let report = m.try_collect(Collect::full().quietly()).ok();
        report_garbage(self.core());
        report
    }
}

impl CollectionReport {
    /// The result of CPython's `gc.collect`: all objects that were found unreachable, destroyed or
    /// not, but without those that became reachable again.
    pub fn found(&self) -> usize {
        self.collected.saturating_add(self.uncollectable)
    }
}

pub(super) fn bad_generation(function: &'static str, generation: i32) -> Fault {
    let text = words!("there is no generation {generation}, only 0, 1 and 2");
    Fault::new(Code::BadGeneration, function).because(text)
}

/// Whether the services allow a heap to start collections.
#[derive(Debug)]
pub(super) struct Switch {
    enabled: AtomicBool,
    /// The mutators that visit all objects, each as often as it has begun, because each visit
    /// forbids collections once.
    visitors: Mutex<Vec<ThreadId>>,
}

impl Default for Switch {
    fn default() -> Self {
        Self { enabled: AtomicBool::new(true), visitors: Mutex::default() }
    }
}

impl Switch {
    pub(super) fn enable(&self, pace: &Pace, enabled: bool) -> bool {
        // Only the thread that changes `enabled` changes the counter, so that the counter is right
        // in whatever order the changes reach it.
        let before = self.enabled.swap(enabled, Ordering::AcqRel);
        match (before, enabled) {
            (true, false) => pace.forbid_collections(),
            (false, true) => pace.allow_collections(),
            _ => {}
        }
        before
    }

    pub(super) fn is_enabled(&self) -> bool {
        self.enabled.load(Ordering::Acquire)
    }

    /// A visit to all objects begins, until whose end the heap starts no collection.
    ///
    /// # Errors
    ///
    /// When there is no memory to note it, so that it has not begun.
    pub(super) fn visit_begins(&self, by: ThreadId, pace: &Pace) -> Result<(), NoMemory> {
        fallible::push(&mut self.visitors.lock(), by)?;
        pace.forbid_collections();
        Ok(())
    }

    pub(super) fn visit_finishes(&self, by: ThreadId, pace: &Pace) {
        let mut visitors = self.visitors.lock();
        if let Some(at) = visitors.iter().rposition(|&id| id == by) {
            visitors.swap_remove(at);
            pace.allow_collections();
        }
    }

    /// Ends the visits of a mutator whose thread does not exist in this process, and returns their
    /// number.
    pub(super) fn forget_thread(&self, id: ThreadId) -> usize {
        let mut visitors = self.visitors.lock();
        let before = visitors.len();
        visitors.retain(|&by| by != id);
        before - visitors.len()
    }

    pub(super) fn is_visited(&self) -> bool {
        !self.visitors.lock().is_empty()
    }
}

/// The sums of the reports of all collections of one generation since the heap was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct GenerationStats {
    /// The number of collections.
    pub collections: usize,
    /// Objects that the collections destroyed.
    pub collected: usize,
    /// Unreachable objects that they did not destroy, where an object that several collections
    /// found counts several times.
    pub uncollectable: usize,
    /// Objects that they decided about.
    pub candidates: usize,
    /// The time from the first step of each collection to the last.
    pub duration: Duration,
    /// The part of `duration` in which the world was stopped.
    pub stopped: Duration,
}

/// The records of the three generations, to which each finished collection adds its figures.
#[derive(Debug, Default)]
pub(super) struct Records {
    generations: [GenerationStats; 3],
    /// Young collections since the last full one.
    young: usize,
}

impl Records {
    /// Adds the figures of a collection that could stop the world.
    pub(super) fn add(&mut self, report: &CollectionReport) {
        self.young = if report.kind == CollectionKind::Full { 0 } else { self.young + 1 };
        if let Some(record) = self.generations.get_mut(report.generation) {
            record.collections += 1;
            record.collected += report.collected;
            record.uncollectable += report.uncollectable;
            record.candidates += report.candidates;
            record.duration += report.duration;
            record.stopped += report.stops.iter().sum::<Duration>();
        }
    }
}

impl Services {
    /// The exact counters of the three generations; see the [module's
    /// page](crate::gc_module#generations).
    ///
    /// # Errors
    ///
    /// When the world cannot be stopped.
    pub fn counts(&self, m: &mut Mutator) -> Result<[usize; 3], Fault> {
        self.check(m);
        let new =
            stopped(m, "counts", |_, world| Ok(count(world, |state| state & (OLD | FROZEN) == 0)))?;
        Ok([new, 0, self.state().records.lock().young])
    }

    /// The records of all collections so far, by generation, including collections that were not
    /// started through these services.
    pub fn stats(&self) -> [GenerationStats; 3] {
        self.state().records.lock().generations
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
