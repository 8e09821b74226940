//! A request for a collection, and the reason why none ran.

#![forbid(unsafe_code)]

use std::fmt;
use std::time::Duration;

use crate::report::facts::{CollectionKind, CollectionReason};
use crate::safepoint::StopError;

/// The extent of a collection, and its behaviour while another thread is collecting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Collect {
    pub(crate) kind: CollectionKind,
    pub(crate) reason: CollectionReason,
    pub(crate) wait: bool,
    /// The number for records and callbacks.
    pub(crate) generation: u8,
    /// The callbacks of the services are not called.
    pub(crate) quiet: bool,
    /// The most threads that may work on it.
    pub(crate) workers: usize,
    /// All mutators reclaim its garbage, in batches. Otherwise the collecting thread does, before
    /// its call returns.
    pub(crate) in_batches: bool,
    /// A child of the process searches.
    pub(crate) forked: bool,
    pub(crate) stop_limit: Option<Duration>,
    pub(crate) because: Option<&'static str>,
    pub(crate) tag: u64,
}

impl Collect {
    /// All objects that are tracked and not frozen.
    pub fn full() -> Self {
        Self {
            kind: CollectionKind::Full,
            reason: CollectionReason::Requested,
            wait: true,
            generation: 2,
            quiet: false,
            workers: usize::MAX,
            in_batches: false,
            forked: false,
            stop_limit: None,
            because: None,
            tag: 0,
        }
    }

    /// The objects since the last collection or [promotion](crate::HeapStats::promotions).
    pub fn young() -> Self {
        Self {
            kind: CollectionKind::Young,
            reason: CollectionReason::Requested,
            wait: true,
            generation: 0,
            quiet: false,
            workers: usize::MAX,
            in_batches: false,
            forked: false,
            stop_limit: None,
            because: None,
            tag: 0,
        }
    }

    /// Whether to wait, detached, until another thread's collection ends, and then collect (the
    /// default). Otherwise the call returns [`CollectError::Busy`]. It is a safepoint all the same:
    /// if the other thread stops the world, the call waits for the end of that stop.
    pub fn wait(mut self, wait: bool) -> Self {
        self.wait = wait;
        self
    }

    /// Gives up if an attached thread has not come to a safepoint within `limit` of a stop of this
    /// collection, for each of its stops. Without it, the collection waits. So a thread that blocks
    /// attached delays the collection, and not the whole program. For collections that the heap
    /// starts there is [`HeapBuilder::stop_limit`](crate::HeapBuilder::stop_limit).
    ///
    /// If the first stop gives up, the call returns
    /// [`StopError::TimedOut`](crate::safepoint::StopError::TimedOut), and nothing was collected. A
    /// later one follows finalizers and weak callbacks. If it gives up, the collection keeps its
    /// objects, and says so in [`CollectionReport::abandoned`](crate::CollectionReport::abandoned)
    /// and to [`Heap::on_unraisable`](crate::Heap::on_unraisable). The next collection finds them
    /// again, and does not finalize them again. If a stop after clearing gives up, what it would
    /// have freed counts as [uncollectable](crate::CollectionReport::uncollectable), and is freed
    /// later. The waits for another thread's collection or stop have no limit.
    pub fn within(mut self, limit: Duration) -> Self {
        self.stop_limit = Some(limit);
        self
    }

    /// The most threads that may work on this collection, with the collecting thread. The heap has
    /// a limit of its own: [`HeapBuilder::workers`](crate::HeapBuilder::workers). 0 counts as 1.
    pub fn workers(mut self, workers: usize) -> Self {
        self.workers = workers.max(1);
        self
    }

    /// Whether a child of the process searches for the garbage (the default is `false`), so that no
    /// stop is as long as the search. For example, a full collection of 4 million objects stops the
    /// world for some milliseconds, mostly for the clone of the process, whose time grows with the
    /// memory of the whole process. The call takes longer than without, its thread is detached
    /// meanwhile, and other threads may collect, so that their callbacks come between those of this
    /// collection. The program pays for a copy of each page that it writes meanwhile.
    ///
    /// Traversals run in the child too, where locks of other threads stay locked. One that waits
    /// for a lock or allocates may hang the child, which is then ended, after some seconds. Where
    /// there can be no child, or it fails, the search runs in a stop as always
    /// ([`CollectionReport::no_child`](crate::CollectionReport::no_child)). A young collection
    /// ignores this. With [`wait(false)`](Self::wait), only the beginning does not wait.
    pub fn forked(mut self, forked: bool) -> Self {
        self.forked = forked;
        self
    }

    /// Why the program collects, for people:
    /// [`CollectionReport::because`](crate::CollectionReport::because), events and the log have the
    /// text. For example `"gc.collect()"`, or `"a level was loaded"`.
    pub fn because(mut self, why: &'static str) -> Self {
        self.because = Some(why);
        self
    }

    /// A number that comes back in [`CollectionReport::tag`](crate::CollectionReport::tag), so that
    /// a [hook](crate::Heap::on_collection) knows for whom the collection ran, such as the number
    /// of an interpreter. The heap does not use it.
    ///
    /// ```
    /// use standstill::{Collect, CollectionEvent, Heap};
    ///
    /// let heap = Heap::new();
    /// heap.on_collection(|event| {
    ///     if let CollectionEvent::Stop(report) = event {
    ///         assert_eq!((report.because, report.tag), (Some("gc.collect()"), 3));
    ///     }
    /// });
    /// let what = Collect::full().because("gc.collect()").tagged(3);
    /// heap.attach().try_collect(what).unwrap();
    /// ```
    pub fn tagged(mut self, tag: u64) -> Self {
        self.tag = tag;
        self
    }

    /// Sets the reason, which is otherwise a request.
    pub(crate) fn for_reason(mut self, reason: CollectionReason) -> Self {
        self.reason = reason;
        self
    }

    /// Sets the number to a value other than the default of the kind.
    #[cfg(feature = "cpython")]
    pub(crate) fn named(mut self, generation: u8) -> Self {
        self.generation = generation;
        self
    }

    /// Disables the callbacks of the services.
    pub(crate) fn quietly(mut self) -> Self {
        self.quiet = true;
        self
    }
}

/// The reason why no collection ran.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CollectError {
    /// Another thread is collecting, and the request was not to wait.
    Busy,
    /// The world cannot be stopped.
    Stop(StopError),
}

impl fmt::Display for CollectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Busy => f.write_str("another thread is collecting"),
            Self::Stop(error) => write!(f, "the world cannot be stopped: {error}"),
        }
    }
}

impl std::error::Error for CollectError {}

impl From<StopError> for CollectError {
    fn from(error: StopError) -> Self {
        match error {
            StopError::Busy => Self::Busy,
            error => Self::Stop(error),
        }
    }
}
