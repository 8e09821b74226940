//! The switch of automatic collections.

use crate::base::sync::{AtomicBool, AtomicUsize, Ordering};
use crate::heap::pacing::Pace;

/// Whether a heap collects by itself, as far as the services decide about it.
#[derive(Debug)]
pub(super) struct Switch {
    enabled: AtomicBool,
    /// Visits to all objects that are going on.
    visits: AtomicUsize,
}

impl Default for Switch {
    fn default() -> Self {
        Self { enabled: AtomicBool::new(true), visits: AtomicUsize::new(0) }
    }
}

impl Switch {
    /// Switches automatic collections on or off; returns whether they were on.
    pub(super) fn enable(&self, pace: &Pace, enabled: bool) -> bool {
        // The swap decides who changes the counter, so it counts changes, in whatever order they come to it.
        let before = self.enabled.swap(enabled, Ordering::AcqRel);
        match (before, enabled) {
            (true, false) => pace.hold_off(),
            (false, true) => pace.let_go(),
            _ => {}
        }
        before
    }

    /// The last argument of [`enable`](Self::enable).
    pub(super) fn is_enabled(&self) -> bool {
        self.enabled.load(Ordering::Acquire)
    }

    /// A visit to all objects begins: nothing collects by itself until it is over.
    pub(super) fn visit_begins(&self, pace: &Pace) {
        self.visits.fetch_add(1, Ordering::AcqRel);
        pace.hold_off();
    }

    /// A visit to all objects is over.
    pub(super) fn visit_finishes(&self, pace: &Pace) {
        pace.let_go();
        self.visits.fetch_sub(1, Ordering::AcqRel);
    }

    /// Whether a visit to all objects is going on.
    pub(super) fn is_visited(&self) -> bool {
        self.visits.load(Ordering::Acquire) != 0
    }
}
