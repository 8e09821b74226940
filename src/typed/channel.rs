//! A channel of std lies outside the heap, so a message in it counts as held from outside, and a
//! cycle through it is never freed. For example, a coroutine that waits for its own channel, which
//! nobody else knows, is such a cycle. So [`GcChannel`] keeps its messages in a cell, which the
//! collector traverses and clears.

#![forbid(unsafe_code)]

use std::collections::VecDeque;
use std::fmt;
use std::sync::mpsc::{RecvError, RecvTimeoutError, SendError, TryRecvError};
use std::time::Duration;

use crate::{GcCell, GcCondvar, Mutator, Trace, Tracer};

/// A queue of messages, which any number of threads send and receive. It is a part of an object,
/// and the collector sees its messages.
///
/// The queue has no bound. So a send never waits, and it needs no exclusive mutator: a finalizer or
/// destructor may send. The queue's buffer counts as memory outside the heap, for pacing and for
/// the heap's limit. Senders and receivers use the same handle, so the channel cannot know that the
/// last sender has gone: call [`close`](Self::close).
///
/// ```
/// use standstill::{Gc, GcChannel, Heap};
///
/// let heap = Heap::new();
/// let mut m = heap.attach();
/// let channel = m.alloc(GcChannel::new());
/// m.scope(|s, m| {
///     s.spawn(|| {
///         let m = heap.attach();
///         channel.send(&m, m.alloc(7)).unwrap();
///         channel.close(&m);
///     });
///     assert_eq!(*channel.recv(m).unwrap(), 7);
///     assert!(channel.recv(m).is_err());
/// });
/// ```
pub struct GcChannel<T> {
    /// The messages, and whether the channel is closed.
    queue: GcCell<(VecDeque<T>, bool)>,
    sent: GcCondvar,
}

impl<T> GcChannel<T> {
    /// An empty channel.
    pub fn new() -> Self {
        Self { queue: GcCell::default(), sent: GcCondvar::new() }
    }
}

impl<T: Trace> GcChannel<T> {
    /// Sends a message, which one receiver gets.
    ///
    /// # Errors
    ///
    /// If the channel is closed. The error has the message.
    ///
    /// # Panics
    ///
    /// If the channel is part of an object of another heap than the mutator's.
    #[track_caller]
    pub fn send(&self, m: &Mutator, message: T) -> Result<(), SendError<T>> {
        let mut queue = self.queue.lock(m);
        if queue.1 {
            return Err(SendError(message));
        }
        queue.0.push_back(message);
        drop(queue);
        self.sent.notify_one(m);
        Ok(())
    }

    /// Receives the next message. It takes one that is already there, and otherwise waits detached.
    ///
    /// # Errors
    ///
    /// If the channel is empty and closed.
    ///
    /// # Panics
    ///
    /// * If the channel is empty and open, and [`Mutator::detach`] would panic.
    /// * If the channel is part of an object of another heap than the mutator's.
    #[track_caller]
    pub fn recv(&self, m: &mut Mutator) -> Result<T, RecvError> {
        m.wait(&self.sent, &self.queue, next)
    }

    /// Receives the next message as [`recv`](Self::recv) does, but does not wait longer than
    /// `timeout`.
    ///
    /// # Errors
    ///
    /// If the channel is empty and closed, or if no message came in time.
    ///
    /// # Panics
    ///
    /// As [`recv`](Self::recv).
    #[track_caller]
    pub fn recv_timeout(&self, m: &mut Mutator, timeout: Duration) -> Result<T, RecvTimeoutError> {
        match m.wait_timeout(timeout, &self.sent, &self.queue, next) {
            Some(received) => Ok(received?),
            None => Err(RecvTimeoutError::Timeout),
        }
    }

    /// Receives the next message, if there is one.
    ///
    /// # Errors
    ///
    /// [`TryRecvError::Empty`], or [`TryRecvError::Disconnected`] if the channel is closed as well.
    ///
    /// # Panics
    ///
    /// If the channel is part of an object of another heap than the mutator's.
    #[track_caller]
    pub fn try_recv(&self, m: &Mutator) -> Result<T, TryRecvError> {
        match next(&mut self.queue.lock(m), m) {
            Some(received) => Ok(received?),
            None => Err(TryRecvError::Empty),
        }
    }

    /// Refuses messages from now on. Receivers still get those that are in the channel, and then an
    /// error. To close a channel twice has no effect.
    ///
    /// # Panics
    ///
    /// If the channel is part of an object of another heap than the mutator's.
    #[track_caller]
    pub fn close(&self, m: &Mutator) {
        self.queue.lock(m).1 = true;
        self.sent.notify_all(m);
    }
}

/// The next message, or the error of a closed channel.
fn next<T>(queue: &mut (VecDeque<T>, bool), _: &Mutator) -> Option<Result<T, RecvError>> {
    match queue.0.pop_front() {
        Some(message) => Some(Ok(message)),
        None => queue.1.then_some(Err(RecvError)),
    }
}

impl<T> Default for GcChannel<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T: Trace> Trace for GcChannel<T> {
    const TRACKED: bool = T::TRACKED;
    const HAS_EXTERNAL_BYTES: bool = true;

    #[inline]
    fn external_bytes(this: &mut Self) -> usize {
        Trace::external_bytes(&mut this.queue)
    }

    #[inline]
    fn traverse(this: &Self, tracer: &mut Tracer) {
        Trace::traverse(&this.queue, tracer);
    }

    fn describe(this: &Self, tracer: &mut Tracer) {
        Trace::describe(&this.queue, tracer);
    }

    fn clear(this: &Self, m: &Mutator) {
        Trace::clear(&this.queue, m);
    }
}

impl<T> fmt::Debug for GcChannel<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GcChannel").finish_non_exhaustive()
    }
}
