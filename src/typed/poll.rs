//! Floor 5: what happens at a safepoint.

use std::time::Instant;

use crate::base::event::CollectionReport;
use crate::base::stress::{Step, maybe_yield};
use crate::collect::{self, Collect, CollectError, reclaim};
use crate::heap::model::{ModelMutator, ObjectModel};
use crate::heap::pacing::Due;
use crate::heap::reclaim_queue::{GARBAGE_BATCH, Owner};
use crate::safepoint::StopError;
use crate::typed::mutator::Mutator;

impl<M: ObjectModel> ModelMutator<M> {
    /// Lets the heap stop or collect here, if it wants to. One relaxed load if it does not.
    ///
    /// It takes `&mut self`, so nothing borrowed from an object is held across it.
    #[inline(always)]
    pub fn safepoint(&mut self) {
        if self.poll() != 0 {
            self.safepoint_slow();
        }
    }

    #[cold]
    #[inline(never)]
    fn safepoint_slow(&mut self) {
        if self.is_lent() || crate::safepoint::is_traversing() {
            return;
        }
        self.answer();
        maybe_yield(&self.core().under, Step::Safepoint);
        self.park();
        // What was asked for while this thread was parked may not have been asked of it.
        self.model().attached(self);
        if self.take_collect() {
            let stressed = self.core().under.as_ref().is_some_and(|strain| strain.collects_now());
            if self.core().collector_lock.is_reclaiming() {
                self.bury_a_piece();
            }
            // A stop that fails is told to those who ask for a collection; here nobody did.
            let result = match self.core().pace.due() {
                _ if stressed => Some(collect::collect_due(self, Collect::full())),
                Due::Nothing => None,
                // Where room is short, all garbage that there is counts.
                Due::Promotion if !self.core().space.is_tight() => Some(collect::promote(self)),
                Due::Promotion | Due::Young => Some(collect::collect_due(self, Collect::young())),
                Due::Full => Some(collect::collect_due(self, Collect::full())),
            };
            if let Some(result) = result {
                // The last one is not over. Far ahead of it, this thread helps with what has been found, whosever it is, or lets
                // those who work on it keep up.
                if matches!(result, Err(CollectError::Busy))
                    && self.core().pace.is_overdue()
                    && !reclaim::reclaim(self, Owner::Any, reclaim::RECLAIMED_FIRST)
                {
                    self.keep_pace();
                }
            }
            if self.core().stress.collects() {
                self.raise(crate::heap::mutator::COLLECT);
            }
        }
    }

    /// Works on what a collection of the heap's own has left to bury. A piece at a time, so that no pause is long, and half of
    /// the time at most, so that the program comes on between the pieces; but at each safepoint once the next collection is late:
    /// it waits for this, and has the more to look at the later it comes.
    fn bury_a_piece(&mut self) {
        if self.core().space.is_tight() {
            // Allocation fails soon, and what it needs may be what is to be buried: all of it, whosever it is.
            reclaim::reclaim(self, Owner::Any, usize::MAX);
            return;
        }
        let begun = Instant::now();
        // Models know no time, so what they do must not depend on it, the look at the pace included.
        let is_time = cfg!(all(test, any(loom, shuttle)))
            || begun >= self.rest_until()
            || self.core().pace.is_late();
        if is_time {
            let me = self.thread_id();
            // As much at first as the collecting thread does: then most collections are over at once.
            let few = if self.core().collector_lock.is_untouched(me) {
                reclaim::RECLAIMED_FIRST
            } else {
                GARBAGE_BATCH
            };
            if !reclaim::reclaim(self, Owner::This(me), few) {
                return;
            }
            self.rest(Instant::now() + begun.elapsed());
        }
        // More of it may be there.
        self.raise(crate::heap::mutator::COLLECT);
    }

    /// Collects.
    ///
    /// # Errors
    ///
    /// When the world cannot be stopped, or another thread is collecting and `what` says not to wait.
    pub fn try_collect(&mut self, what: Collect) -> Result<CollectionReport, CollectError> {
        if self.is_lent() {
            return Err(StopError::NoSafepoint.into());
        }
        collect::collect(self, what)
    }
}

impl Mutator {
    /// Lets the heap stop or collect here, if it wants to. One relaxed load if it does not.
    #[inline(always)]
    pub fn safepoint(&mut self) {
        self.raw_mut().safepoint();
    }
}
