//! The coordinator's part of a fork.

#![forbid(unsafe_code)]

use std::fmt;

use super::Coordinator;
use super::error::StopError;
use super::lock::{ForkHold, Guard};
use super::participant::Participant;
use super::record::{ENDED, Record};
use super::registry::{Registry, RegistryEntry};
use super::thread_id::ThreadId;
use super::world::WorldStopped;
use crate::base::shared::Shared;
use crate::base::sync::Aside;
use crate::base::system::os_thread;

/// The world is stopped and the registry locked for a fork; see [`Coordinator::prepare_fork`].
/// Dropping it is [`parent`](Self::parent).
///
/// It must not be leaked, as by [`std::mem::forget`]: the world then stays stopped and the registry stays locked. The
/// thread that leaked it panics at the next call that needs the registry. A thread that begins to wait for the registry
/// later says so on standard error after a second. A thread that waits already for the end of the stop says nothing.
#[must_use = "the world runs again when this is dropped"]
pub struct ForkGuard<'a, T> {
    // In this order: the registry is unlocked before the world runs, and the payloads of lost threads, which are the
    // user's, are dropped after both.
    _kept: ForkHold<'a>,
    registry: Guard<'a, Registry<T>>,
    _known: Aside,
    world: WorldStopped<'a, T>,
    /// The participants that a child has lost, where the caller did not ask for them.
    lost: Vec<Ended<T>>,
    /// The process that is about to fork.
    process: u32,
}

impl<T> Coordinator<T> {
    /// To be called before `fork`: stops the world and keeps the registry locked, so that the child
    /// finds both whole. Afterwards the parent calls [`ForkGuard::parent`], the child
    /// [`ForkGuard::child`]. Between the two, this thread holds the coordinator's lock: should it call
    /// the coordinator, that panics.
    ///
    /// # Errors
    ///
    /// As [`Participant::stop`]; [`StopError::NotAttached`] also when `by` belongs to another coordinator.
    pub fn prepare_fork<'a>(
        &'a self,
        by: &'a Participant<T>,
    ) -> Result<ForkGuard<'a, T>, StopError> {
        if !std::ptr::eq(self, &*by.coordinator) {
            return Err(StopError::NotAttached);
        }
        let world = by.stop()?;
        let (kept, registry) = self.registry.lock_for_fork();
        let process = std::process::id();
        Ok(ForkGuard {
            _kept: kept,
            registry,
            _known: Aside::all(),
            world,
            lost: Vec::new(),
            process,
        })
    }
}

impl<'a, T> ForkGuard<'a, T> {
    /// In the parent, or when the fork failed: everything goes on. In the child it does what [`child`](Self::child)
    /// does, and drops what that returns.
    pub fn parent(self) {}

    /// In the child: the participants of all other threads are gone, and returned, for somebody to
    /// care for what they owned. The world runs again.
    ///
    /// # Panics
    ///
    /// In the process that prepared the fork, which still has its other threads. Nothing has changed then but that the
    /// world runs again.
    pub fn child(mut self) -> Vec<Ended<T>> {
        self.must_be_child();
        self.lose_others()
    }

    /// In the child: takes the participants of all other threads out of the registry.
    fn lose_others(&mut self) -> Vec<Ended<T>> {
        let here = std::thread::current().id();
        let registry = &mut *self.registry;
        let all = std::mem::take(&mut registry.entries);
        let (kept, lost): (_, Vec<_>) = all.into_iter().partition(|e| e.record.thread == here);
        registry.entries = kept;
        let os_thread = os_thread();
        for entry in &registry.entries {
            entry.record.os_thread.store(os_thread, std::sync::atomic::Ordering::Relaxed);
        }
        registry.orphans = registry.entries.iter().filter(|e| e.orphaned).count();
        // Those who waited, for whatever, wait no more.
        registry.owed = 0;
        registry.at_gate = 0;
        registry.requesters.clear();
        let end = |entry: RegistryEntry<T>| {
            entry.record.set_state(ENDED);
            Ended(entry.record)
        };
        lost.into_iter().map(end).collect()
    }

    /// Whether this is another process than the one that prepared the fork.
    pub(crate) fn is_child(&self) -> bool {
        self.process != std::process::id()
    }

    /// Panics in the process that prepared the fork.
    pub(crate) fn must_be_child(&self) {
        assert!(
            self.is_child(),
            "`child` of a fork was called in the process that prepared the fork, which has not lost its other threads; \
             call `parent` there"
        );
    }
}

impl<T> Drop for ForkGuard<'_, T> {
    fn drop(&mut self) {
        if self.is_child() {
            self.lost = self.lose_others();
        }
    }
}

#[cfg(all(test, loom))]
impl<T> ForkGuard<'_, T> {
    /// Whether a child could lock the registry.
    pub(crate) fn has_registry(&self) -> bool {
        self.world.coordinator.registry.is_held_by_or_open(Some(&self.registry))
    }
}

impl<T> fmt::Debug for ForkGuard<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ForkGuard").field(&self.world).finish()
    }
}

/// A participant whose thread a fork's child does not have.
pub struct Ended<T>(Shared<Record<T>>);

impl<T> Ended<T> {
    /// Its name.
    pub fn id(&self) -> ThreadId {
        self.0.id
    }

    /// What it showed of itself.
    pub fn data(&self) -> &T {
        &self.0.data
    }
}

impl<T> fmt::Debug for Ended<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Ended").field(&self.0.id).finish()
    }
}
