//! The switch of automatic collections.

#![forbid(unsafe_code)]

use crate::base::fallible::{self, NoMemory};
use crate::base::sync::{AtomicBool, Mutex, Ordering};
use crate::heap::pacing::Pace;
use crate::safepoint::ThreadId;

/// Whether the services allow a heap to start collections.
#[derive(Debug)]
pub(super) struct Switch {
    enabled: AtomicBool,
    /// The mutators that visit all objects, each as often as it has begun. Each visit forbids
    /// collections once.
    visitors: Mutex<Vec<ThreadId>>,
}

impl Default for Switch {
    fn default() -> Self {
        Self { enabled: AtomicBool::new(true), visitors: Mutex::default() }
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
    ///
    /// # Errors
    ///
    /// When there is no memory to note it. Then it has not begun.
    pub(super) fn visit_begins(&self, by: ThreadId, pace: &Pace) -> Result<(), NoMemory> {
        fallible::push(&mut self.visitors.lock(), by)?;
        pace.forbid_collections();
        Ok(())
    }

    /// A visit to all objects is finished.
    pub(super) fn visit_finishes(&self, by: ThreadId, pace: &Pace) {
        let mut visitors = self.visitors.lock();
        if let Some(at) = visitors.iter().rposition(|&id| id == by) {
            visitors.swap_remove(at);
            pace.allow_collections();
        }
    }

    /// The thread of a mutator does not exist in this process: its visits are over. Returns their
    /// number.
    pub(super) fn forget_thread(&self, id: ThreadId) -> usize {
        let mut visitors = self.visitors.lock();
        let before = visitors.len();
        visitors.retain(|&by| by != id);
        before - visitors.len()
    }

    /// Whether a thread is visiting all objects.
    pub(super) fn is_visited(&self) -> bool {
        !self.visitors.lock().is_empty()
    }
}
