//! The child of a fork has only the forking thread, so it must not inherit a registry in the middle
//! of a change, nor wait for the others. Therefore the coordinator stops the world with the
//! registry locked, and the child removes the lost threads.

#![forbid(unsafe_code)]

use std::fmt;

use super::Coordinator;
use super::error::StopError;
use super::lock::{ForkHold, Guard};
use super::participant::Participant;
use super::record::{ENDED, Record, ThreadId};
use super::registry::{Registry, RegistryEntry};
use super::slow_stop::StopPurpose;
use super::thread_words::words;
use super::world::WorldStopped;
use crate::base::shared::Shared;
use crate::base::sync::Aside;
use crate::base::system::os_thread;

/// A fork in progress, from [`Coordinator::prepare_fork`]: the world is stopped, and the registry
/// is locked. Dropping the guard does the same as [`parent`](Self::parent).
///
/// The guard must not be leaked, for example by [`std::mem::forget`], because the world would stay
/// stopped and the registry locked. The thread that leaked the guard panics at its next call that
/// needs the registry. A thread that waits for the registry reports that on standard error after a
/// second. But one that was already waiting for the end of the stop reports nothing.
#[must_use = "the world runs again when this is dropped"]
pub struct ForkGuard<'a, T> {
    // The order of the fields matters: the registry is unlocked before the world resumes, and the
    // user's data of lost threads is dropped after both.
    _kept: ForkHold<'a>,
    registry: Guard<'a, Registry<T>>,
    _known: Aside,
    world: WorldStopped<'a, T>,
    /// The participants that a child has lost, if the caller did not take them.
    lost: Vec<Ended<T>>,
    /// The process that is about to fork.
    process: u32,
}

impl<T> Coordinator<T> {
    /// Prepares a `fork`: stops the world, and keeps the registry locked, so that both are
    /// consistent in the child. Afterwards the parent calls [`ForkGuard::parent`], and the child
    /// calls [`ForkGuard::child`]. In between, this thread holds the coordinator's lock: a call of
    /// the coordinator that needs the lock panics.
    ///
    /// On Windows, which has no `fork`, the call works as a stop, which `parent` ends.
    ///
    /// # Errors
    ///
    /// As [`Participant::stop`]. Also [`StopError::NotAttached`] if `by` belongs to another
    /// coordinator.
    pub fn prepare_fork<'a>(
        &'a self,
        by: &'a Participant<T>,
    ) -> Result<ForkGuard<'a, T>, StopError> {
        if !std::ptr::eq(self, &*by.coordinator) {
            return Err(StopError::NotAttached);
        }
        Ok(by.stop_by(StopPurpose::Fork.into())?.keep_for_fork())
    }
}

impl<'a, T> WorldStopped<'a, T> {
    /// Keeps the registry locked for a fork.
    pub(crate) fn keep_for_fork(self) -> ForkGuard<'a, T> {
        let (kept, registry) = self.coordinator.registry.lock_for_fork();
        let process = std::process::id();
        ForkGuard {
            _kept: kept,
            registry,
            _known: Aside::all(),
            world: self,
            lost: Vec::new(),
            process,
        }
    }
}

impl<'a, T> ForkGuard<'a, T> {
    /// Resumes the world: in the parent, or after a fork that failed. In the child it does the same
    /// as [`child`](Self::child), and drops the result.
    pub fn parent(self) {}

    /// In the child: removes the participants of all other threads, and resumes the world. The
    /// caller must take care of the resources of the returned participants.
    ///
    /// # Panics
    ///
    /// In the process that prepared the fork, which still has its other threads. Then the world
    /// resumes, and nothing else has changed.
    pub fn child(mut self) -> Vec<Ended<T>> {
        self.must_be_child();
        self.lose_others()
    }

    /// In the child: removes the participants of all other threads from the registry.
    fn lose_others(&mut self) -> Vec<Ended<T>> {
        let here = words(|w| w.number());
        let registry = &mut *self.registry;
        let all = std::mem::take(&mut registry.entries);
        let (kept, lost): (_, Vec<_>) =
            all.into_iter().partition(|e| e.record.thread_number == here);
        registry.entries = kept;
        let os_thread = os_thread();
        for entry in &registry.entries {
            entry.record.os_thread.store(os_thread, std::sync::atomic::Ordering::Relaxed);
        }
        registry.orphans = registry.entries.iter().filter(|e| e.orphaned).count();
        // The threads that waited do not exist here, so nothing would lower these counts.
        registry.owed = 0;
        registry.at_gate = 0;
        registry.requesters.clear();
        let presence = &self.world.coordinator.presence;
        let end = |entry: RegistryEntry<T>| {
            entry.record.set_state(ENDED);
            presence.remove(entry.record.id);
            Ended(entry.record)
        };
        lost.into_iter().map(end).collect()
    }

    pub(crate) fn is_child(&self) -> bool {
        self.process != std::process::id()
    }

    /// Panics in the process that prepared the fork.
    pub(crate) fn must_be_child(&self) {
        assert!(
            self.is_child(),
            "`child` of a fork was called in the process that prepared the fork, which has not \
             lost its other threads; call `parent` there"
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

/// The participant of a thread that does not exist in the child of a fork.
pub struct Ended<T>(Shared<Record<T>>);

impl<T> Ended<T> {
    /// The id of the participant.
    pub fn id(&self) -> ThreadId {
        self.0.id
    }

    /// The data that the thread shared with other threads.
    pub fn data(&self) -> &T {
        &self.0.data
    }
}

impl<T> fmt::Debug for Ended<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Ended").field(&self.0.id).finish()
    }
}
