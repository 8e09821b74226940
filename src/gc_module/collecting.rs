//! The calls that collect.

use crate::Mutator;
use crate::base::error::{Code, Fault};
use crate::base::event::{CollectionReport, During};
use crate::base::text::words;
use crate::collect::{Collect, CollectError};
use crate::gc_module::garbage::tell_garbage;
use crate::gc_module::services::Services;
use crate::safepoint::StopError;

impl Services {
    /// Switches automatic collections on; returns whether they were. A heap begins with them on.
    pub fn enable(&self) -> bool {
        self.state().switch.enable(self.pace(), true)
    }

    /// Switches automatic collections, and [`collect_if_enabled`](Self::collect_if_enabled), off; returns whether they
    /// were on. A collection that is running goes on.
    pub fn disable(&self) -> bool {
        self.state().switch.enable(self.pace(), false)
    }

    /// What was last said by [`enable`](Self::enable) and [`disable`](Self::disable). What suspends
    /// collections for a while does not change it.
    pub fn is_enabled(&self) -> bool {
        self.state().switch.is_enabled()
    }

    /// Whether a visit to all objects is going on, on any thread: then nothing here collects.
    pub fn is_visiting(&self) -> bool {
        self.state().switch.is_visited()
    }

    /// Collects in full, as `PyGC_Collect` does. `None`, at once: collections are disabled, one is running on whatever
    /// thread, all objects are being visited, or this thread must not reach a safepoint now.
    ///
    /// What CPython returns is [`CollectionReport::found`]. That the world could not be stopped, because a thread ended without
    /// dropping its mutator, goes to the hook of [`Heap::on_unraisable`](crate::Heap::on_unraisable).
    ///
    /// # Panics
    ///
    /// Like all functions that take a mutator, when it is of another heap.
    pub fn collect_if_enabled(&self, m: &mut Mutator) -> Option<CollectionReport> {
        self.check(m);
        if self.is_enabled() { self.run(m, Collect::full()) } else { None }
    }

    /// Collects a generation, enabled or not: 0 and 1 are young collections, 2 is a full one. `None` where
    /// [`collect_if_enabled`](Self::collect_if_enabled) gives it, but for the first reason.
    ///
    /// # Errors
    ///
    /// [`Code::BadGeneration`] for other numbers; nothing has happened.
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

    /// As [`collect`](Self::collect), and returns what CPython's `gc.collect` does: how many unreachable objects there were,
    /// those included that could not be destroyed. 0 where nothing was done.
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

    /// The last collection of a runtime that ends before its heap does: a full one, without progress callbacks. Is anything in
    /// the garbage list then, the hook of [`Heap::on_unraisable`](crate::Heap::on_unraisable) hears of it; with `DEBUG_UNCOLLECTABLE` the
    /// debugging sink hears of each object too. The list stays as it is.
    pub fn final_collection(&self, m: &mut Mutator) -> Option<CollectionReport> {
        self.check(m);
        let report = m.try_collect(Collect::full().quietly()).ok();
        tell_garbage(self.core());
        report
    }
}

impl CollectionReport {
    /// What CPython's `gc.collect` returns: all unreachable objects, collected or not, but those that are reachable again.
    pub fn found(&self) -> usize {
        self.collected.saturating_add(self.uncollectable)
    }
}

pub(super) fn bad_generation(function: &'static str, generation: i32) -> Fault {
    let text = words!("there is no generation {generation}, only 0, 1 and 2");
    Fault::new(Code::BadGeneration, function).because(text)
}
