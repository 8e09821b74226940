//! Which full collections search in a child, and what is known about the children of a heap.
//!
//! A child takes a processor and memory, so a small heap searches in a stop, and a heap whose
//! children fail tries them ever more rarely. For example, a traversal of the program ends each
//! child by a signal. Two collections find this out, the next two search in stops at once, one more
//! child is tried, and then the next six search in stops.
//!
//! All numbers only advise, so they are relaxed.

#![forbid(unsafe_code)]

use std::time::Duration;

use crate::base::sync::{AtomicUsize, Ordering};
use crate::heap::child::NoAnswer;

/// How long a search in a stop is assumed to take for each candidate, before one was measured:
/// 4 million objects of a random graph take 97 to 148 ms on two processors.
const FIRST_NANOSECONDS_EACH: usize = 30;

#[derive(Debug)]
pub(crate) struct ChildPace {
    /// How long a full collection's search in a stop took for each candidate.
    nanoseconds_each: AtomicUsize,
    /// How many children of automatic collections have failed in a row.
    failed: AtomicUsize,
    /// How many of the next full collections search in stops for this reason. `usize::MAX`: all.
    skipped: AtomicUsize,
}

impl ChildPace {
    pub(super) fn new() -> Self {
        Self {
            nanoseconds_each: AtomicUsize::new(FIRST_NANOSECONDS_EACH),
            failed: AtomicUsize::new(0),
            skipped: AtomicUsize::new(0),
        }
    }

    /// Whether a full collection of so many objects, which is due now, searches in a child.
    pub(super) fn forks(&self, forked: ForkedSearch, objects: usize) -> bool {
        self.is_wanted(forked, objects) && {
            let skipped = self.skipped.load(Ordering::Relaxed);
            if skipped != 0 && skipped != usize::MAX {
                self.skipped.store(skipped - 1, Ordering::Relaxed);
            }
            skipped == 0
        }
    }

    /// As [`forks`](Self::forks), if no child had failed.
    pub(super) fn is_wanted(&self, forked: ForkedSearch, objects: usize) -> bool {
        match forked {
            ForkedSearch::Never => false,
            ForkedSearch::Always => true,
            ForkedSearch::FromObjects(least) => objects >= least,
            ForkedSearch::FromStop(least) => {
                let each = self.nanoseconds_each.load(Ordering::Relaxed) as u64;
                Duration::from_nanos(each.saturating_mul(objects as u64)) >= least
            }
        }
    }

    pub(super) fn forget_failures(&self) {
        self.failed.store(0, Ordering::Relaxed);
        self.skipped.store(0, Ordering::Relaxed);
    }

    /// The first stop of a full collection, which has searched in it, took so long.
    pub(crate) fn searched_for(&self, stop: Duration, candidates: usize) {
        // The search of a few objects says little. There is no such number in a model, which would
        // depend on the clock.
        if candidates >= 10_000 {
            let each = stop.as_nanos() / candidates as u128;
            let each = usize::try_from(each).unwrap_or(usize::MAX);
            self.nanoseconds_each.store(each, Ordering::Relaxed);
        }
    }

    /// An automatic collection has no child, or its child has failed. So that a program whose
    /// children always fail does not pay for many of them, some of the next full collections search
    /// in stops. Their number doubles with each failure in a row.
    pub(crate) fn failed_by(&self, reason: &NoAnswer) {
        if matches!(reason, NoAnswer::Unwise(_)) {
            return;
        }
        let failures = self.failed.fetch_add(1, Ordering::Relaxed) + 1;
        let skipped = if reason.is_for_ever() { usize::MAX } else { (1 << failures.min(6)) - 2 };
        self.skipped.store(skipped, Ordering::Relaxed);
    }

    pub(crate) fn succeeded(&self) {
        self.failed.store(0, Ordering::Relaxed);
    }
}

/// Which of the full collections that are due search for garbage in a child of the process, so that
/// no stop is as long as the search.
///
/// [`Collect::forked`](crate::Collect::forked) describes what this costs, and what a traversal must
/// not do in the child. The thread that begins the collection goes on with the program while the
/// child searches. Later safepoints of any thread take the garbage from what the child has found,
/// by a short stop for each part of it. So the garbage lives for longer, and the heap may exceed
/// the bounds of [`Pacing`](crate::Pacing), because it may grow once more by as much until the
/// collection is over.
///
/// If it grows by more, a full collection that searches in a stop takes the place of this one,
/// whose report says that it was abandoned. So does one that is requested. If the heap can have no
/// child, or if the child fails, the search runs in a stop
/// ([`CollectionReport::no_child`](crate::CollectionReport)), and after a failure so do some of the
/// next ones. The same holds if memory is short. If the heap ends while a child searches, the child
/// ends too.
///
/// While a [`DeferGuard`](crate::DeferGuard) lives, or the pacing is not automatic, the collection
/// waits, also if the child has ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum ForkedSearch {
    /// None. The default, because a child takes a processor, and memory for each page that the
    /// program writes meanwhile.
    #[default]
    Never,
    /// Those of a heap with at least so many objects.
    FromObjects(usize),
    /// Those whose search would stop the world for at least so long, as the last search in a stop
    /// took for each object. Before the first one this is assumed to be 30 nanoseconds.
    FromStop(Duration),
    /// All.
    Always,
}
