//! Which ids may be those of participants: a hint that takes no lock.
//!
//! A table counts participants by their ids, modulo its length. An id whose place counts none has
//! no participant. A place that counts one may mean another id. So a thread that meets the id of an
//! ended participant usually learns so from the table, and can then ask the registry.

#![forbid(unsafe_code)]

use std::sync::atomic::{AtomicU16, Ordering};

use super::thread_id::ThreadId;

/// Ids are consecutive numbers. So two of them share a place only if this many participants were
/// registered between them.
const PLACES: usize = 512;

/// See the [module's page](self).
///
/// Relaxed, all: a thread that relies on the answer asks the registry, under its lock. They are
/// std's atomics also under loom, as `LAST_ID` is.
pub(super) struct Presence([AtomicU16; PLACES]);

impl Default for Presence {
    fn default() -> Self {
        Self([const { AtomicU16::new(0) }; PLACES])
    }
}

impl Presence {
    fn place(&self, id: u64) -> &AtomicU16 {
        &self.0[id as usize % PLACES]
    }

    /// A participant enters the registry.
    pub(super) fn add(&self, id: ThreadId) {
        self.place(id.get()).fetch_add(1, Ordering::Relaxed);
    }

    /// A participant has left the registry.
    pub(super) fn remove(&self, id: ThreadId) {
        self.place(id.get()).fetch_sub(1, Ordering::Relaxed);
    }

    /// Whether there is probably no participant with this id, which may be no id at all.
    #[inline(always)]
    pub(super) fn lacks(&self, id: u64) -> bool {
        id <= ThreadId::MAX && self.place(id).load(Ordering::Relaxed) == 0
    }
}
