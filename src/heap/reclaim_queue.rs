//! The garbage of one collection, while it is cleared and released.
//!
//! To clear and to release 10^6 objects takes a tenth of a second. If one thread did this inside
//! its call, that would be its pause, and it would free cells on the pages of all other threads. So
//! a collection that the heap started gives its garbage to the threads that own the pages. Each of
//! them takes batches at its safepoints, and goes on with the program in between.
//!
//! For example, threads 1 and 2 have 600 and 100 objects in the garbage that thread 1 has found.
//! Thread 1 takes a batch of 512 of its own, releases it, and 3 of these objects are still alive,
//! because thread 2's objects refer to them. It gives the 3 back. Then it takes its other 88
//! objects, and thread 2 takes its 100 at its next safepoint. The thread that finishes the last
//! batch finds the 3 objects in the queue, looks at them once more, and closes the collection.
//!
//! A collection that a thread requested needs no queue, because the call returns only when its
//! garbage is reclaimed: all of it is one batch.
//!
//! The [collector lock](super::collector_lock) protects a queue that is handed over; its page shows
//! the states.

#![forbid(unsafe_code)]

use crate::base::fallible::{self, NoMemory};
use crate::base::sync::IS_MODEL;
use crate::heap::unfinished::{Proposal, Rest};
use crate::object::address::Object;
use crate::report::event::Span;
use crate::report::facts::{CollectionReport, PhaseTimes};
use crate::safepoint::{StopPurpose, StopRequest, ThreadId};

/// The report of a collection, with figures that are not complete yet.
#[derive(Debug)]
pub(crate) struct OpenReport {
    pub(crate) report: CollectionReport,
    /// The heap's callbacks are not called for this collection.
    pub(crate) quiet: bool,
    pub(crate) begun: std::time::Instant,
    pub(crate) span: Span,
    /// When the collection gives up a stop.
    pub(crate) stop_limit: Option<std::time::Duration>,
    /// The heap's total of bytes outside the heap that garbage had given up, when the collector
    /// lock was acquired.
    pub(crate) external_before: usize,
    /// The heap's sums of the phases then.
    pub(crate) phases_before: PhaseTimes,
    /// What comes next, if a child searches or has searched.
    pub(crate) rest: Option<Rest>,
    /// Another full collection takes the place of this one, which was put off.
    pub(crate) is_superseded: bool,
}

impl OpenReport {
    /// What a stop of the collection asks for.
    pub(crate) fn stop_request(&self) -> StopRequest {
        StopRequest::from(StopPurpose::Collection).within(self.stop_limit)
    }

    /// What the child has proposed.
    pub(crate) fn proposal(&self) -> Option<&Proposal> {
        match &self.rest {
            Some(Rest::Proposed(proposal)) => Some(proposal),
            Some(Rest::Searching(_)) | None => None,
        }
    }

    /// Whether the collection has something to do for its child's proposal.
    pub(crate) fn has_steps(&self) -> bool {
        self.proposal().is_some_and(Proposal::has_steps)
    }
}

/// The most objects of a batch. To reclaim them takes less than a tenth of a millisecond.
pub(crate) const GARBAGE_BATCH: usize = if IS_MODEL { 1 } else { 512 };

/// The garbage on the pages of one thread.
#[derive(Debug)]
pub(crate) struct ThreadGarbage {
    thread: ThreadId,
    objects: Vec<Object>,
    /// How many objects were taken.
    taken: usize,
    /// How many of them were alive when their batch was finished. They are moved to the front,
    /// where only objects lie that were taken.
    left: usize,
}

impl ThreadGarbage {
    pub(crate) fn new(thread: ThreadId, objects: Vec<Object>) -> Self {
        Self { thread, objects, taken: 0, left: 0 }
    }

    pub(crate) fn is_of(&self, thread: ThreadId) -> bool {
        self.thread == thread
    }

    pub(crate) fn push(&mut self, object: Object) -> Result<(), NoMemory> {
        fallible::push(&mut self.objects, object)
    }

    /// Whether some objects were not taken.
    fn has_batches(&self) -> bool {
        self.taken < self.objects.len()
    }

    /// These objects of a batch are alive.
    fn give_back(&mut self, alive: &[Object]) {
        self.objects[self.left..self.left + alive.len()].copy_from_slice(alive);
        self.left += alive.len();
    }
}

/// The garbage of one collection, and its report, which is open until all garbage is reclaimed.
#[derive(Debug)]
pub(crate) struct ReclaimQueue {
    pub(crate) open: OpenReport,
    /// The garbage that is not divided by thread. It belongs to the collecting thread.
    whole: ThreadGarbage,
    divided: Vec<ThreadGarbage>,
    /// Batches that were taken and are not finished.
    under_way: usize,
    garbage: usize,
    /// The queue's number. A heap counts its queues from 1.
    pub(super) number: u64,
}

impl ReclaimQueue {
    pub(crate) fn new(whole: ThreadGarbage, divided: Vec<ThreadGarbage>, open: OpenReport) -> Self {
        let mut this = Self { open, whole, divided, under_way: 0, garbage: 0, number: 0 };
        this.garbage = this.parts().map(|part| part.objects.len()).sum();
        this
    }

    fn parts(&self) -> impl Iterator<Item = &ThreadGarbage> {
        std::iter::once(&self.whole).chain(&self.divided)
    }

    /// How many objects the collection has found.
    pub(crate) fn garbage(&self) -> usize {
        self.garbage
    }

    pub(super) fn has_batches(&self) -> bool {
        self.parts().any(ThreadGarbage::has_batches)
    }

    /// Whether this thread has garbage and no batch of it was taken.
    pub(super) fn is_untouched(&self, thread: ThreadId) -> bool {
        self.parts().any(|part| part.is_of(thread) && part.taken == 0 && part.has_batches())
    }

    /// The objects that no thread has taken.
    pub(crate) fn untaken(&self) -> impl Iterator<Item = Object> {
        self.parts().flat_map(|part| part.objects[part.taken..].iter().copied())
    }

    pub(super) fn take(&mut self, owner: Owner) -> Option<GarbageBatch> {
        let mut parts = std::iter::once(&mut self.whole).chain(&mut self.divided);
        let (at, part) = parts.by_ref().enumerate().find(|(_, part)| {
            part.has_batches()
                && match owner {
                    Owner::This(thread) => part.is_of(thread),
                    Owner::Any => true,
                }
        })?;
        let left = &part.objects[part.taken..];
        let taken = &left[..left.len().min(GARBAGE_BATCH)];
        let mut objects = [*taken.first()?; GARBAGE_BATCH];
        objects[..taken.len()].copy_from_slice(taken);
        let len = taken.len();
        part.taken += len;
        self.under_way += 1;
        let (garbage, span, queue) = (self.garbage, self.open.span.clone(), self.number);
        Some(GarbageBatch { objects, len, part: at, garbage, span, queue })
    }

    /// Records that a batch is finished. The objects that are still in it are alive. `true`: no
    /// other batch is left.
    pub(super) fn finish(&mut self, batch: &GarbageBatch) -> bool {
        let part = match batch.part.checked_sub(1) {
            None => &mut self.whole,
            Some(at) => &mut self.divided[at],
        };
        part.give_back(batch.objects());
        self.under_way -= 1;
        self.under_way == 0 && !self.has_batches()
    }

    /// The open report, and the objects that were alive when their batches were finished, in one
    /// list or several, so that this needs no memory.
    pub(crate) fn into_left(self) -> (OpenReport, impl Iterator<Item = Vec<Object>>) {
        let left = |mut part: ThreadGarbage| {
            part.objects.truncate(part.left);
            part.objects
        };
        (self.open, std::iter::once(self.whole).chain(self.divided).map(left))
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

/// Some objects of a queue. The thread that took them has exclusive access until it finishes the
/// batch.
///
/// The objects are stored in place, so that a thread takes a batch without memory, which may be
/// short until the garbage is reclaimed.
#[derive(Debug)]
pub(crate) struct GarbageBatch {
    objects: [Object; GARBAGE_BATCH],
    len: usize,
    /// Its place among the parts of the queue.
    part: usize,
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

    /// Removes the objects for which `is_alive` is false.
    pub(crate) fn retain(&mut self, is_alive: impl Fn(Object) -> bool) {
        let mut left = 0;
        for at in 0..self.len {
            if is_alive(self.objects[at]) {
                self.objects[left] = self.objects[at];
                left += 1;
            }
        }
        self.len = left;
    }
}
