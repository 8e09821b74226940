//! The work of a thread at a safepoint.

#![forbid(unsafe_code)]

use std::panic::resume_unwind;
use std::time::Instant;

use crate::base::outside::{self, guarded};
use crate::base::stress::{Step, Strain, maybe_yield};
use crate::base::sync::IS_MODEL;
use crate::collect::collection::{collect, collect_due, go_on};
use crate::collect::{reclaim, sweep};
use crate::heap::core::COLLECT;
use crate::heap::model::ObjectModel;
use crate::heap::mutator::ModelMutator;
use crate::heap::pacing::Due;
use crate::heap::parts::*;
use crate::heap::reclaim_queue::{GARBAGE_BATCH, Owner};
use crate::heap::request::{Collect, CollectError};
use crate::report::event;
use crate::report::facts::{CollectionReason, CollectionReport};
use crate::safepoint::StopError;

impl<M: ObjectModel> ModelMutator<M> {
    /// Parks or collects here if the heap has requested it. Otherwise this is one relaxed load.
    ///
    /// It answers the model's requests, parks for a stop, starts a collection or a promotion that
    /// is due, and reclaims garbage of an automatic collection. With [`Pacing::manual`] it only
    /// answers and parks, and [`park`](Self::park) only parks.
    ///
    /// It does nothing while the mutator is lent: inside a destructor, finalizer or callback.
    ///
    /// [`Pacing::manual`]: crate::Pacing::manual
    ///
    /// It takes `&mut self`, so that no borrow from an object is held across it.
    #[inline(always)]
    pub fn safepoint(&mut self) {
        if self.poll() != 0 {
            self.safepoint_slow();
        }
    }

    #[cold]
    #[inline(never)]
    fn safepoint_slow(&mut self) {
        if !PollWordOf::<M>::PRESENT {
            return self.do_requested();
        }
        let done = guarded(|| self.do_requested());
        self.tell_left();
        done.unwrap_or_else(|payload| resume_unwind(payload));
    }

    /// Does the work that was requested of this thread.
    #[inline(always)]
    fn do_requested(&mut self) {
        if self.is_lent() || crate::safepoint::is_traversing() {
            return;
        }
        self.answer();
        maybe_yield(&self.core().under, Step::Safepoint);
        self.wait_parked();
        // A parked thread may have missed requests to the model.
        self.call_attached(self.core());
        if self.take_collect() {
            self.tell_deferral();
            let strain = self.core().under.clone().filter(|strain| strain.collects_now());
            if self.core().collector_lock.is_reclaiming() {
                self.reclaim_one_batch();
            }
            let (lock, pace) = (&self.core().collector_lock, &self.core().pace);
            let due = pace.due();
            // The next full collection waits for what the last one has found.
            let is_late = due == Due::Full && lock.has_proposal();
            let goes_on = pace.may_collect() && (is_late || lock.wants_to_go_on());
            // An error of an automatic collection has no caller to receive it.
            let result = match due {
                _ if strain.is_some() => strain.map(|strain| self.collect_under_stress(&strain)),
                due if goes_on => {
                    if due != Due::Nothing {
                        // At the next safepoint, so that the program goes on in between.
                        self.raise(COLLECT);
                    }
                    Some(go_on(self))
                }
                Due::Nothing => None,
                Due::Promotion | Due::Young
                    if !collects_young::<M>() && !self.core().space.is_tight() =>
                {
                    sweep::skip_young(self);
                    None
                }
                // If memory is short, a collection that frees garbage is better than a promotion.
                Due::Promotion if !self.core().space.is_tight() => Some(sweep::promote(self)),
                Due::Promotion => Some(collect_due(
                    self,
                    Collect::young().for_reason(CollectionReason::LittleMemory),
                )),
                Due::Young => {
                    Some(collect_due(self, Collect::young().for_reason(CollectionReason::New)))
                }
                Due::Full => {
                    Some(collect_due(self, Collect::full().for_reason(CollectionReason::Growth)))
                }
            };
            if matches!(result, Some(Err(CollectError::Busy))) {
                self.slow_down();
            }
            if self.core().stress.collects() {
                self.raise(COLLECT);
            }
        }
        // Also without the request, which a parked thread misses.
        let core = self.core();
        if core.pace.may_collect() && core.collector_lock.is_kept_by(self.thread_id()) {
            self.raise(COLLECT);
        }
    }

    /// Runs the collection of a safepoint under stress. If another thread collects, it waits for
    /// some milliseconds first. Otherwise a collecting thread that is not scheduled would let the
    /// safepoints of all others pass. It does not wait for ever, because a finalizer of that
    /// collection may wait for what this thread has.
    #[cold]
    fn collect_under_stress(&mut self, strain: &Strain) -> Result<(), CollectError> {
        let what = || Collect::full().for_reason(CollectionReason::Stress);
        let mut result = collect_due(self, what());
        if matches!(result, Err(CollectError::Busy)) {
            if !reclaim::reclaim(self, Owner::Any, usize::MAX) {
                self.wait_for_reclaim();
            }
            result = collect_due(self, what());
        }
        if result.is_ok() {
            strain.collected();
        }
        result
    }

    /// Another thread collects, or the garbage of the previous collection is not fully reclaimed. A
    /// thread far ahead of it helps to reclaim any thread's garbage. If none is left to take, it
    /// waits briefly for the other threads.
    pub(super) fn slow_down(&mut self) {
        if self.core().pace.is_overdue()
            && !reclaim::reclaim(self, Owner::Any, reclaim::RECLAIMED_FIRST)
        {
            self.wait_for_reclaim();
        }
    }

    /// Reports guards that have deferred collections for long.
    fn tell_deferral(&self) {
        let core = self.core();
        let Some((guards, objects, bytes)) = core.pace.tell_deferral() else { return };
        event::long_deferral(&core.name, guards, objects, bytes);
        if !event::is_warning_enabled() {
            outside::line(format_args!(
                "standstill: heap '{}': {guards} `DeferGuard`s defer its automatic collections, \
                 and {objects} objects and {bytes} bytes are new since the last collection; was a \
                 guard leaked?",
                core.name
            ));
        }
    }

    /// Reclaims a batch (512 objects) of the garbage of an automatic collection, so that no pause
    /// is long. It takes at most half of the thread's time, so that the program progresses between
    /// the batches. If the next collection is late, the thread reclaims at each safepoint, because
    /// that collection must wait for the garbage, and becomes larger as it waits.
    fn reclaim_one_batch(&mut self) {
        if self.core().space.is_tight() {
            // Allocation fails soon, and the garbage may contain the memory that it needs, so this
            // thread reclaims the garbage of every thread.
            reclaim::reclaim(self, Owner::Any, usize::MAX);
            return;
        }
        let begun = Instant::now();
        // Models have no clock, because their behaviour must not depend on time, so they do not
        // evaluate the pace either.
        let is_time = IS_MODEL || begun >= self.rest_until() || self.core().pace.is_late();
        if is_time {
            let me = self.thread_id();
            // The first call reclaims as much as that of the collecting thread, so that most
            // garbage is reclaimed at once.
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
        // The queue may contain more garbage, for which the thread comes back.
        self.raise(COLLECT);
    }

    /// Runs a full collection, after the end of a running one.
    ///
    /// # Panics
    ///
    /// If [`try_collect`](Self::try_collect) returns an error.
    #[track_caller]
    pub fn collect(&mut self) -> CollectionReport {
        match self.try_collect(Collect::full()) {
            Ok(report) => report,
            Err(error) => panic!("{error}"),
        }
    }

    /// Collects among the objects allocated since the last collection or
    /// [promotion](crate::HeapStats::promotions).
    ///
    /// # Panics
    ///
    /// If [`try_collect`](Self::try_collect) returns an error.
    #[track_caller]
    pub fn collect_young(&mut self) -> CollectionReport {
        match self.try_collect(Collect::young()) {
            Ok(report) => report,
            Err(error) => panic!("{error}"),
        }
    }

    /// Runs the collection that `what` describes.
    ///
    /// # Errors
    ///
    /// If the world cannot be stopped, or if another thread is collecting and `what` says not to
    /// wait.
    pub fn try_collect(&mut self, what: Collect) -> Result<CollectionReport, CollectError> {
        if self.is_lent() {
            return Err(StopError::NoSafepoint.into());
        }
        // This comes first, so that a thread that cannot stop the world does not wait for another's
        // collection.
        self.participant().may_stop()?;
        collect(self, what)
    }
}
