//! The suspension of one detached thread by another.

#![forbid(unsafe_code)]

use std::fmt;
use std::marker::PhantomData;
use std::num::NonZeroU64;
use std::ops::Deref;
use std::time::Duration;

use super::Coordinator;
use super::record::{ATTACHED, AWAITED, DETACHED, Record, SUSPENDED};
use super::thread_id::ThreadId;
use super::thread_words;
use crate::base::shared::Shared;
use crate::base::stress::{Step, maybe_yield};
use crate::base::sync::Ordering;

/// What [`Coordinator::suspend`] found.
#[must_use = "a suspension ends when its guard is dropped"]
#[derive(Debug)]
pub enum Suspend<'a, T> {
    /// The thread was detached, and cannot attach before the guard is dropped.
    Suspended(Suspended<'a, T>),
    /// The thread is attached, or about to be.
    Attached,
    /// The thread has ended.
    Ended,
}

/// One detached thread is kept so; see [`Coordinator::suspend`]. Derefs to what it shows of itself.
pub struct Suspended<'a, T> {
    coordinator: &'a Coordinator<T>,
    record: Shared<Record<T>>,
    not_send: PhantomData<*mut ()>,
}

impl<T> Coordinator<T> {
    /// Keeps one detached thread from attaching, to act for it meanwhile.
    ///
    /// While the guard lives the thread waits when it attaches or ends, and so does everybody
    /// else who wants to suspend it. A suspension counts as work: a stop waits until it is over, and a
    /// thread that is not attached here waits in this call while a stop is on (so a stop's requester must
    /// not wait for a helper that suspends). Hold it shortly: meanwhile the calling thread may
    /// neither attach, park, detach nor stop, nor suspend a second thread.
    ///
    /// # Panics
    ///
    /// When this thread keeps another one suspended already: two threads that do so could wait for
    /// one another.
    pub fn suspend(&self, id: ThreadId) -> Suspend<'_, T> {
        assert!(
            thread_words::suspended() == 0,
            "this thread keeps another one suspended, and a thread suspends one at a time; drop that guard first"
        );
        let me = NonZeroU64::new(thread_words::attached_as()).map(ThreadId);
        let mut registry = self.registry.lock();
        loop {
            let Some(at) = registry.position(id) else { return Suspend::Ended };
            let record = registry.entries[at].record.clone();
            // A caller that is attached here is a part of the world that has not stopped yet, and must
            // not wait for a stop that waits for it. Anybody else comes in like an attaching thread.
            let is_inside = me.is_some_and(|me| registry.find(me).is_some());
            if !is_inside && registry.stopper.is_some() {
                drop(self.wait_at_gate(registry, None));
                // Without the lock, here and below: it may be the last, and what it shows is the user's.
                drop(record);
                registry = self.registry.lock();
                continue;
            }
            match record.step(DETACHED, SUSPENDED) {
                Ok(_) => {
                    if registry.stopper.is_some() && registry.stopper != me {
                        // The scan has seen it detached. It is not complete without us, so it can still
                        // be told to wait for this one too.
                        self.count(&mut registry.entries[at]);
                    }
                    thread_words::set_suspended(id.get());
                    maybe_yield(&self.under, Step::Suspend);
                    return Suspend::Suspended(Suspended {
                        coordinator: self,
                        record,
                        not_send: PhantomData,
                    });
                }
                Err(SUSPENDED | AWAITED) => {
                    drop(self.await_suspension(registry, &record));
                    drop(record);
                    registry = self.registry.lock();
                }
                Err(ATTACHED) => return Suspend::Attached,
                Err(_) => return Suspend::Ended,
            }
        }
    }
}

impl<T> Suspended<'_, T> {
    /// Whom it suspends.
    pub fn id(&self) -> ThreadId {
        self.record.id
    }
}

impl<T> Deref for Suspended<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.record.data
    }
}

impl<T> Drop for Suspended<'_, T> {
    fn drop(&mut self) {
        thread_words::set_suspended(0);
        let was_awaited = match self.record.step(SUSPENDED, DETACHED) {
            Ok(_) => false,
            Err(AWAITED) => {
                self.record.set_state(DETACHED);
                true
            }
            // The participant has ended in our hands: it is this thread's own.
            Err(_) => return,
        };
        // `SeqCst`: the same race as a detach's, see the module's `Orderings`.
        if was_awaited || self.coordinator.stop.load(Ordering::SeqCst) {
            let mut registry = self.coordinator.registry.lock();
            if let Some(at) = registry.position(self.record.id) {
                registry.entries[at].patience = Duration::ZERO;
            }
            // This is not the record's thread, which may have attached by now, and been asked to park by
            // another stop than the one that was seen above: nobody else may acknowledge that.
            if self.record.state() == DETACHED
                && let Some(at) = registry.position(self.record.id)
            {
                self.coordinator.acknowledge(&mut registry, at);
            }
            self.coordinator.open_gate(&registry);
        }
    }
}

impl<T> fmt::Debug for Suspended<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Suspended").field(&self.record.id).finish()
    }
}
