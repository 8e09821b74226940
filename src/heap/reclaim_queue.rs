//! The garbage of a collection, which all mutators of the heap reclaim in batches.
//!
//! The queue holds the garbage by thread: each object is listed under the thread that owns the
//! object's page. A mutator takes a [`GarbageBatch`] at its safepoints, or while it waits for
//! the lock, and reclaims it. The
//! [collector lock](super::collector_lock) protects the queue; its page shows the states.

#![forbid(unsafe_code)]

use crate::base::fallible::{self, NoMemory};
use crate::object::address::Object;
use crate::report::event::Span;
use crate::report::facts::CollectionReport;
use crate::safepoint::ThreadId;

/// The report of a collection, with figures that are not complete yet.
#[derive(Debug)]
pub(crate) struct OpenReport {
    pub(crate) report: CollectionReport,
    /// The heap's callbacks are not called for this collection.
    pub(crate) quiet: bool,
    pub(crate) begun: std::time::Instant,
    pub(crate) span: Span,
    /// The heap's total of bytes outside the heap that garbage had given up.
    pub(crate) external_before: usize,
}

/// The work on the objects of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Task {
    /// Clear the objects, then release them.
    Clear,
    /// Count the objects that are still alive.
    Tally,
}

impl Task {
    /// The number of objects that make as much work as one cleared object. A tally reads one byte
    /// of each object.
    pub(crate) fn objects_per_unit(self) -> usize {
        match self {
            Self::Clear => 1,
            Self::Tally => 16,
        }
    }
}

/// The garbage of a collection, all of it cleared and released.
#[derive(Debug)]
pub(crate) struct Released {
    pub(crate) parts: Vec<ThreadGarbage>,
    /// How many objects were alive when they were counted.
    pub(crate) alive: usize,
}

/// The most objects of a batch. To reclaim them takes less than a tenth of a millisecond.
pub(crate) const GARBAGE_BATCH: usize = if cfg!(all(test, any(loom, shuttle))) { 1 } else { 512 };

/// The garbage on the pages of one thread.
#[derive(Debug)]
pub(crate) struct ThreadGarbage {
    thread: ThreadId,
    pub(crate) objects: Vec<Object>,
    /// How many objects were taken.
    next: usize,
}

impl ThreadGarbage {
    pub(crate) fn new(thread: ThreadId, objects: Vec<Object>) -> Self {
        Self { thread, objects, next: 0 }
    }

    pub(crate) fn is_of(&self, thread: ThreadId) -> bool {
        self.thread == thread
    }

    pub(crate) fn push(&mut self, object: Object) -> Result<(), NoMemory> {
        fallible::push(&mut self.objects, object)
    }

    /// Whether some objects were not taken.
    fn has_batches(&self) -> bool {
        self.next < self.objects.len()
    }
}

/// The garbage of one collection, which all mutators clear and release in batches.
#[derive(Debug)]
pub(crate) struct ReclaimQueue {
    threads: Vec<ThreadGarbage>,
    /// Batches that were taken and are not finished.
    under_way: usize,
    garbage: usize,
    /// How many of the objects that were counted are alive.
    alive: usize,
    span: Span,
    /// The queue's number. A heap counts its queues from 1.
    pub(super) number: u64,
}

impl ReclaimQueue {
    pub(crate) fn new(threads: Vec<ThreadGarbage>, span: Span) -> Self {
        let garbage = threads.iter().map(|garbage| garbage.objects.len()).sum();
        Self { threads, under_way: 0, garbage, alive: 0, span, number: 0 }
    }

    pub(super) fn has_batches(&self) -> bool {
        self.threads.iter().any(ThreadGarbage::has_batches)
    }

    /// Whether this thread has garbage and no batch of it was taken.
    pub(super) fn is_untouched(&self, thread: ThreadId) -> bool {
        self.threads.iter().any(|garbage| garbage.is_of(thread) && garbage.next == 0)
    }

    /// The objects that no thread has taken.
    pub(crate) fn untaken(&self) -> impl Iterator<Item = Object> {
        self.threads.iter().flat_map(|garbage| garbage.objects[garbage.next..].iter().copied())
    }

    /// All objects can be taken once more.
    pub(super) fn restart(&mut self) {
        self.threads.iter_mut().for_each(|garbage| garbage.next = 0);
    }

    pub(super) fn take(&mut self, owner: Owner, task: Task) -> Option<GarbageBatch> {
        let garbage = self.threads.iter_mut().find(|garbage| {
            garbage.has_batches()
                && match owner {
                    // Any thread may count the objects of any other thread.
                    Owner::This(thread) => garbage.is_of(thread) || task == Task::Tally,
                    Owner::Any => true,
                }
        })?;
        let left = &garbage.objects[garbage.next..];
        let taken = &left[..left.len().min(GARBAGE_BATCH)];
        let mut objects = [*taken.first()?; GARBAGE_BATCH];
        objects[..taken.len()].copy_from_slice(taken);
        let len = taken.len();
        garbage.next += len;
        self.under_way += 1;
        let (garbage, span) = (self.garbage, self.span.clone());
        Some(GarbageBatch { objects, len, task, garbage, span, queue: self.number })
    }

    /// Records that a batch is finished, and how many of its objects are alive. `true`: no other
    /// batch of this task is left.
    pub(super) fn finish(&mut self, alive: usize) -> bool {
        self.under_way -= 1;
        self.alive += alive;
        self.under_way == 0 && !self.has_batches()
    }

    pub(super) fn into_released(self) -> Released {
        Released { parts: self.threads, alive: self.alive }
    }
}

/// The garbage that a thread may take.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Owner {
    /// The garbage on the pages of this thread.
    This(ThreadId),
    /// The garbage of any thread: for a thread that waits for the collector lock.
    Any,
}

/// Some objects of a queue. The thread that took them has exclusive access until it
/// [finishes](super::collector_lock::CollectorLock::finish_batch) the batch.
///
/// The objects are stored in place. So a thread takes a batch without memory, which may be short
/// until the garbage is reclaimed.
#[derive(Debug)]
pub(crate) struct GarbageBatch {
    objects: [Object; GARBAGE_BATCH],
    len: usize,
    pub(crate) task: Task,
    /// How many objects the whole queue has.
    pub(crate) garbage: usize,
    pub(crate) span: Span,
    queue: u64,
}

impl GarbageBatch {
    /// The number of its queue.
    pub(crate) fn queue(&self) -> u64 {
        self.queue
    }

    pub(crate) fn objects(&self) -> &[Object] {
        &self.objects[..self.len]
    }
}
