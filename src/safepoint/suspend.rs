//! A detached thread does no work, although other threads may have left it some, such as a queue of
//! objects. So another thread may suspend it, which keeps it detached, and do that work.

#![forbid(unsafe_code)]

use std::fmt;
use std::marker::PhantomData;
use std::num::NonZeroU64;
use std::ops::Deref;
use std::time::Duration;

use super::Coordinator;
use super::record::{ATTACHED, AWAITED, DETACHED, Record, SUSPENDED, ThreadId};
use super::thread_words::{self, words};
use crate::base::shared::Shared;
use crate::base::stress::{Step, maybe_yield};
use crate::base::sync::Ordering;

/// The result of [`Coordinator::suspend`].
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

/// Keeps one detached thread detached, as [`Coordinator::suspend`] describes. Derefs to the data
/// that the suspended thread shares.
pub struct Suspended<'a, T> {
    coordinator: &'a Coordinator<T>,
    record: Shared<Record<T>>,
    not_send: PhantomData<*mut ()>,
}

impl<T> Coordinator<T> {
    /// Prevents one detached thread from attaching, so that the caller can act on its behalf.
    ///
    /// While the guard lives, the suspended thread waits when it attaches or ends, and any other
    /// thread waits that suspends it.
    ///
    /// A stop waits until a suspension is over. A caller that is not attached here waits for the
    /// end of a stop, so a requester must not wait for a helper thread that suspends.
    ///
    /// Hold the guard briefly, because meanwhile the calling thread must not attach, park, detach,
    /// stop, or suspend a second thread.
    ///
    /// # Panics
    ///
    /// If this thread has suspended another thread already, because two such threads could wait for
    /// each other.
    pub fn suspend(&self, id: ThreadId) -> Suspend<'_, T> {
        assert!(
            words(|w| w.suspended()) == 0,
            "this thread keeps another one suspended, and a thread suspends one at a time; \
             drop that guard first"
        );
        let me = NonZeroU64::new(thread_words::attached_as()).map(ThreadId);
        let mut registry = self.registry.lock();
        loop {
            let Some(at) = registry.position(id) else { return Suspend::Ended };
            let record = registry.entries[at].record.clone();
            // A caller that is attached here must not wait for a stop, because the stop waits for
            // it. Any other caller waits like an attaching thread.
            let is_inside = me.is_some_and(|me| registry.find(me).is_some());
            if !is_inside && registry.stopper.is_some() {
                drop(self.wait_at_gate(registry, None));
                // Without the lock, here and below, because this may drop the last reference to the
                // user's data.
                drop(record);
                registry = self.registry.lock();
                continue;
            }
            match record.step(DETACHED, SUSPENDED) {
                Ok(_) => {
                    if registry.stopper.is_some() && registry.stopper != me {
                        // The scan read the thread as detached, but the stop is not complete while
                        // the caller runs, so it can still wait for the suspended thread too.
                        self.count(&mut registry.entries[at]);
                    }
                    words(|w| w.set_suspended(id.get()));
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
    /// The suspended participant.
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
        words(|w| w.set_suspended(0));
        let was_awaited = match self.record.step(SUSPENDED, DETACHED) {
            Ok(_) => false,
            Err(AWAITED) => {
                self.record.set_state(DETACHED);
                true
            }
            // The participant belongs to this thread, which has ended it during the suspension.
            Err(_) => return,
        };
        // `SeqCst`, because it is the same race as in `detach_and_poll`: see the module's
        // `Orderings`.
        if was_awaited || self.coordinator.stop.load(Ordering::SeqCst) {
            let mut registry = self.coordinator.registry.lock();
            if let Some(at) = registry.position(self.record.id) {
                registry.entries[at].min_sleep = Duration::ZERO;
            }
            // The suspended thread may have attached by now, and a later stop may have counted it,
            // which only the thread itself may acknowledge.
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
