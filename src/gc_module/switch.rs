//! The switch of automatic collections.

#![forbid(unsafe_code)]

use crate::base::sync::{AtomicBool, AtomicUsize, Ordering};
use crate::heap::pacing::Pace;

/// Whether the services allow a heap to start collections.
#[derive(Debug)]
pub(super) struct Switch {
    enabled: AtomicBool,
    /// The number of running visits to all objects.
    visits: AtomicUsize,
}

impl Default for Switch {
    fn default() -> Self {
        Self { enabled: AtomicBool::new(true), visits: AtomicUsize::new(0) }
    }
}

impl Switch {
    /// Switches automatic collections on or off. Returns whether they were on.
    pub(super) fn enable(&self, pace: &Pace, enabled: bool) -> bool {
        // Only the thread that changes `enabled` changes the counter. So the counter is right in
        // whatever order the changes reach it.
        let before = self.enabled.swap(enabled, Ordering::AcqRel);
        match (before, enabled) {
            (true, false) => pace.forbid_collections(),
            (false, true) => pace.allow_collections(),
            _ => {}
        }
        before
    }

    /// The argument `enabled` of the last call of [`enable`](Self::enable).
    pub(super) fn is_enabled(&self) -> bool {
        self.enabled.load(Ordering::Acquire)
    }

    /// A visit to all objects begins. The heap starts no collection until it is finished.
    pub(super) fn visit_begins(&self, pace: &Pace) {
        self.visits.fetch_add(1, Ordering::AcqRel);
        pace.forbid_collections();
    }

    /// A visit to all objects is finished.
    pub(super) fn visit_finishes(&self, pace: &Pace) {
        pace.allow_collections();
        self.visits.fetch_sub(1, Ordering::AcqRel);
    }

    /// Whether a thread is visiting all objects.
    pub(super) fn is_visited(&self) -> bool {
        self.visits.load(Ordering::Acquire) != 0
    }
}
