//! Many collections have no caller, because the heap starts them, and a destructor cannot return an
//! error. So callbacks receive the facts about a collection, and about a failure without a caller.

#![forbid(unsafe_code)]

use std::borrow::Cow;
use std::fmt;
use std::time::Duration;

use crate::base::fallible;

/// The scope of a collection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CollectionKind {
    /// Only objects that were allocated or tracked since the last collection or
    /// [promotion](crate::HeapStats::promotions).
    Young,
    /// Every tracked object that is not frozen.
    Full,
}

impl CollectionKind {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Young => "young",
            Self::Full => "full",
        }
    }
}

/// Why a collection ran.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum CollectionReason {
    /// The program has requested it.
    Requested,
    /// Enough objects or bytes were new.
    New,
    /// The old set had grown enough.
    Growth,
    /// Enough objects were new to make them old, and memory was too short to do only that.
    LittleMemory,
    /// A stress mode collects there.
    Stress,
}

/// The phases of a collection, in their order. `docs/tracing.md` quotes this documentation, and
/// `ci/docs.sh` compares the two.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Phase {
    /// Stopped: merges the counts that threads have pending; runs in each stop of a collection and
    /// of a promotion.
    Merge,
    /// Stopped: marks the objects that the model's roots reach, and in a full collection those that
    /// known roots, then the last full collection's roots reach. Runs only with such roots, and
    /// again if some of the last are roots no longer.
    Premark,
    /// Stopped: counts the references between candidates.
    Count,
    /// Stopped: finds the roots: candidates with references from outside.
    Roots,
    /// Stopped: marks the objects that the roots reach.
    Mark,
    /// Stopped: gathers the unmarked candidates, which are unreachable, and makes the others old.
    Sweep,
    /// Stopped: takes a reference to each unreachable object, and clears weak references with
    /// callbacks.
    Claim,
    /// Running: calls the weak callbacks that are due.
    Callbacks,
    /// Running: runs finalizers.
    Finalize,
    /// Stopped: removes resurrected objects from the set, and clears the remaining weak references.
    Recheck,
    /// Running: clears the garbage and releases it.
    Clear,
}

impl Phase {
    /// All phases, in their order.
    pub const ALL: [Self; 11] = [
        Self::Merge,
        Self::Premark,
        Self::Count,
        Self::Roots,
        Self::Mark,
        Self::Sweep,
        Self::Claim,
        Self::Callbacks,
        Self::Finalize,
        Self::Recheck,
        Self::Clear,
    ];
}

/// How long each phase of a collection took. Of a phase that ran more than once, the sum: also that
/// of all threads that cleared garbage.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct PhaseTimes([u64; Phase::ALL.len()]);

impl PhaseTimes {
    pub(crate) fn of(nanos: impl Fn(Phase) -> u64) -> Self {
        Self(Phase::ALL.map(nanos))
    }

    /// The sums of both times.
    pub(crate) fn plus(self, more: Self) -> Self {
        Self::of(|phase| self.0[phase as usize].wrapping_add(more.0[phase as usize]))
    }

    /// The time since the sums were `earlier`.
    pub(crate) fn since(self, earlier: Self) -> Self {
        Self::of(|phase| self.0[phase as usize].wrapping_sub(earlier.0[phase as usize]))
    }

    /// The time of a phase; 0 if it did not run.
    pub fn get(&self, phase: Phase) -> Duration {
        Duration::from_nanos(self.0[phase as usize])
    }

    /// The phases that ran, in their order, with their times.
    pub fn iter(&self) -> impl Iterator<Item = (Phase, Duration)> {
        let ran = Phase::ALL.into_iter().filter(|&phase| self.0[phase as usize] > 0);
        ran.map(|phase| (phase, self.get(phase)))
    }
}

impl fmt::Debug for PhaseTimes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

/// The facts about one collection.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CollectionReport {
    /// The number of the collection among those of the heap, from 1, in the order of their ends. So
    /// a gap between two reports shows that some were not seen.
    pub sequence: u64,
    /// The scope of the collection.
    pub kind: CollectionKind,
    /// The generation that was requested, as in the [gc module](crate::gc_module): 0 or 1 for a
    /// young collection, 2 for a full one.
    pub generation: usize,
    /// Why the collection ran.
    pub reason: CollectionReason,
    /// Why the program has requested it, if the request [said so](crate::Collect::because).
    pub because: Option<&'static str>,
    /// The number of the [request](crate::Collect::tagged), or 0.
    pub tag: u64,
    /// Why the collection gave up, if it did, so that nothing was cleared; or nothing more, after
    /// some parts of what a [`child`](Self::child) has proposed. If it could not stop the
    /// world, the text says why, and names, for example, the thread that leaked its mutator.
    pub abandoned: Option<Cow<'static, str>>,
    /// Tracked objects on the pages in scope, without frozen ones.
    pub tracked: usize,
    /// Objects that the collection decided about, which are the tracked ones in its scope. It
    /// counted the references from all of them but the `known_alive`.
    pub candidates: usize,
    /// The candidates that the roots named with [`Heap::known_root`](crate::Heap::known_root)
    /// or reported by the model reach, whose references the collection did not count. If a model
    /// allows [overlapping traversals](crate::model::ObjectModel::OVERLAPPING_TRAVERSALS), some may
    /// be missing here, because they were counted.
    pub known_alive: usize,
    /// Candidates that no reference from outside reaches, directly or through other objects.
    pub unreachable: usize,
    /// Finalizers that ran.
    pub finalized: usize,
    /// Unreachable objects that finalizers or callbacks made reachable again.
    pub resurrected: usize,
    /// Unreachable objects that were destroyed. The figure is final, because destructions that
    /// other threads owe this collection are counted, too. If objects are alive after all were
    /// cleared, the collection makes sure in one more stop.
    pub collected: usize,
    /// Unreachable objects that still exist at the end, because references to them are left. Either
    /// the `clear` of each object of their cycle has kept or restored the reference to the next. Or
    /// a destructor or clear handler has stored a reference to one of them, or a panic has kept an
    /// object from being cleared. Or they are only reached from such objects. They stay tracked, so
    /// that the next full collection tries again. Objects that were not cleared because of a legacy
    /// finalizer or for debugging count too.
    pub uncollectable: usize,
    /// Bytes outside the heap that the destroyed objects have given up: those that
    /// [`Trace::external_bytes`](crate::Trace::external_bytes) tells, and those that clear handlers
    /// and destructors subtract with
    /// [`Mutator::adjust_external_bytes`](crate::Mutator::adjust_external_bytes). An object that
    /// another thread destroys, because the collection has left the last drop to it, is missing.
    pub external_bytes: usize,
    /// Objects to which the traversals reported more references than exist. They are kept, because
    /// such a traversal is wrong.
    pub overvisited: usize,
    /// How long each stop of the world lasted: one stop if it sufficed, two if code had to run in
    /// between. If a [`child`](Self::child) searches, one stop comes first, and then those of each
    /// part. There is one more if objects were alive after all were cleared, or if references
    /// were left that other threads might be reading. The stops for the checks of checked mode and
    /// of the stress modes are not included.
    pub stops: Vec<Duration>,
    /// From the request of a stop until the last thread parked: the longest of the stops. A wait
    /// for a stop that another thread has made before is not included.
    pub time_to_stop: Duration,
    /// The thread that was last to stop in the stop of `time_to_stop`, if that took at least 1 ms
    /// and the thread has a record.
    pub late_thread: Option<String>,
    /// How long the requesting thread had waited before its collection could begin: for other
    /// threads that collected, forked or waited before it, and for its own help with their garbage.
    /// A collection that the heap starts does not wait, because it is left to a later safepoint.
    pub waited: Duration,
    /// From the moment when no other thread could collect, right before the start callbacks, until
    /// right before the stop callbacks. It includes the stops, all waits for them, and the code of
    /// the program that runs meanwhile: callbacks, finalizers, destructors. It does not include
    /// `waited`. If a [`child`](Self::child) searches, it includes that time, and that of other
    /// collections meanwhile. If the heap started the collection, it includes the time of the
    /// program while its garbage was cleared in batches.
    pub duration: Duration,
    /// How long each phase took.
    pub phases: PhaseTimes,
    /// The slowest finalizer, weak callback, clear handler and destructor, each if it took at least
    /// 0.1 ms, the slowest of them first. Quick clear handlers and destructors are measured
    /// together, and such a group counts as one ([`LongestCall::objects`]).
    pub slowest: Vec<LongestCall>,
    /// The ten types with the most bytes in the heap, if the first stop was slow
    /// ([`HeapBuilder::slow_collection`](crate::HeapBuilder::slow_collection)).
    pub largest_types: Vec<TypeShare>,
    /// The number of threads that could count and mark, with the collecting thread. Fewer have
    /// worked if the collection ended before the others could begin.
    pub workers: usize,
    /// The search in a child of the process, if [`Collect::forked`](crate::Collect::forked) asked
    /// for one and it has ended well.
    pub child: Option<ChildSearch>,
    /// Why the search ran in a stop, although a child was asked for.
    pub no_child: Option<Cow<'static, str>>,
}

impl CollectionReport {
    pub(crate) fn new(kind: CollectionKind) -> Self {
        Self {
            sequence: 0,
            kind,
            generation: match kind {
                CollectionKind::Young => 0,
                CollectionKind::Full => 2,
            },
            reason: CollectionReason::Requested,
            because: None,
            tag: 0,
            abandoned: None,
            tracked: 0,
            candidates: 0,
            known_alive: 0,
            unreachable: 0,
            finalized: 0,
            resurrected: 0,
            collected: 0,
            uncollectable: 0,
            external_bytes: 0,
            overvisited: 0,
            stops: Vec::new(),
            time_to_stop: Duration::ZERO,
            late_thread: None,
            waited: Duration::ZERO,
            duration: Duration::ZERO,
            phases: PhaseTimes::default(),
            slowest: Vec::new(),
            largest_types: Vec::new(),
            workers: 1,
            child: None,
            no_child: None,
        }
    }

    /// A copy, if there is memory for it.
    pub(crate) fn copy(&self) -> Option<Self> {
        let abandoned = match &self.abandoned {
            Some(reason) => Some(fallible::owned(reason).ok()?.into()),
            None => None,
        };
        let no_child = match &self.no_child {
            Some(reason) => Some(fallible::owned(reason).ok()?.into()),
            None => None,
        };
        let stops = fallible::collect(self.stops.iter().copied()).ok()?;
        let mut slowest = Vec::new();
        for call in &self.slowest {
            fallible::push(&mut slowest, call.copy()?).ok()?;
        }
        let late_thread = match &self.late_thread {
            Some(thread) => Some(fallible::owned(thread).ok()?),
            None => None,
        };
        let mut largest_types = Vec::new();
        for share in &self.largest_types {
            let type_name = fallible::owned(&share.type_name).ok()?.into();
            fallible::push(&mut largest_types, TypeShare { type_name, ..*share }).ok()?;
        }
        Some(Self { abandoned, no_child, late_thread, stops, slowest, largest_types, ..*self })
    }

    /// What the collection has cost the program: its waits, and the times of its phases. Threads
    /// may clear at the same time, so it is no more than the time that has passed.
    pub(crate) fn cost(&self) -> Duration {
        let phases: Duration = self.phases.iter().map(|(_, took)| took).sum();
        self.waited + (self.time_to_stop + phases).min(self.duration)
    }
}

/// The search of a full collection in a child of the process: a part of a [`CollectionReport`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ChildSearch {
    /// How long it took, by the clock of the child.
    pub took: Duration,
    /// The objects that it has proposed as garbage.
    pub proposed: usize,
    /// The proposed objects that still took part in the collection when their part was examined, in
    /// a stop. [`CollectionReport::unreachable`] says how many of them were garbage.
    pub examined: usize,
    /// The parts of the proposal, each with a stop of its own.
    pub parts: usize,
    /// The objects with a field that the child could not read, for example because a thread that
    /// does not exist in it had locked it. What such an object refers to was kept.
    pub unreadable: usize,
}

/// How much of a heap the objects of one type are: a part of a [`CollectionReport`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TypeShare {
    /// The name of the type.
    pub type_name: Cow<'static, str>,
    /// The number of its objects. In a heap of more than 32 pages of 64 KiB it is estimated, from
    /// 17 to 32 of them.
    pub objects: usize,
    /// The bytes of their cells, estimated likewise.
    pub bytes: usize,
}

/// For example `app.Session: 1200 objects, 57600 bytes`.
impl fmt::Display for TypeShare {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { type_name, objects, bytes } = self;
        write!(f, "{type_name}: {objects} objects, {bytes} bytes")
    }
}

/// The event that a callback registered with [`Heap::on_collection`](crate::Heap::on_collection)
/// receives.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum CollectionEvent<'a> {
    /// A collection begins. The world is still running.
    Start(CollectionKind),
    /// A collection has ended, and the world is running. If the heap started the collection,
    /// another thread may report the end than reported the start.
    Stop(&'a CollectionReport),
}

impl<'a> CollectionEvent<'a> {
    /// The scope of the collection.
    pub fn kind(&self) -> CollectionKind {
        match self {
            Self::Start(kind) => *kind,
            Self::Stop(report) => report.kind,
        }
    }

    /// The facts, if the collection has ended.
    pub fn report(&self) -> Option<&'a CollectionReport> {
        match self {
            Self::Start(_) => None,
            Self::Stop(report) => Some(report),
        }
    }
}

/// The user code that failed, in a way that no caller can receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum During {
    /// A traversal, so that the collection is abandoned.
    Traverse,
    /// A finalizer.
    Finalize,
    /// A weak callback.
    WeakCallback,
    /// A clear handler.
    Clear,
    /// A destructor, or another method of a model that drops references.
    Drop,
    /// A callback of [`Heap::on_collection`](crate::Heap::on_collection), or of
    /// [`Services::add_callback`](crate::gc_module::Services::add_callback).
    CollectionCallback,
    /// The sink of debugging lines.
    DebugSink,
    /// The audit hook.
    AuditHook,
    /// A collection that was abandoned, for a reason that is no traversal's; or one that failed and
    /// was requested by a call without errors.
    Collect,
    /// The end of a heap, which left objects.
    Shutdown,
}

/// A call of the program's code that took longest in a collection, or while one held up its
/// thread: a part of a [`CollectionReport`] or a [`SlowStop`](crate::safepoint::SlowStop).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LongestCall {
    /// The code: [`Finalize`](During::Finalize), [`WeakCallback`](During::WeakCallback),
    /// [`Clear`](During::Clear), or [`Drop`](During::Drop) for destructors. Clearing an object
    /// includes the destruction of what it alone held, and so does its destruction. Other code is
    /// not measured: callbacks of a collection, and destructors of references that were dropped
    /// before it.
    pub during: During,
    /// The type of the object; of the first one, if there are several. Empty for a weak callback.
    pub type_name: Cow<'static, str>,
    /// How many objects were measured together. Finalizers and callbacks are measured one by one,
    /// and so are clear handlers and destructors that follow a slow one. Quick ones are measured up
    /// to 32 at a time, because reading a clock takes as long as they do.
    pub objects: usize,
    /// How long it took.
    pub took: Duration,
}

impl LongestCall {
    /// A copy, if there is memory for it.
    pub(crate) fn copy(&self) -> Option<Self> {
        let type_name = fallible::owned(&self.type_name).ok()?.into();
        Some(Self { type_name, ..*self })
    }
}

/// For example `a finalizer of app.File took 1.5s`.
impl fmt::Display for LongestCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { during, type_name, objects, took } = self;
        match during {
            During::Finalize => write!(f, "a finalizer of {type_name}")?,
            During::WeakCallback => f.write_str("a weak callback")?,
            During::Clear => write!(f, "the clear handler of {type_name}")?,
            _ => write!(f, "the destruction of {type_name}")?,
        }
        if *objects > 1 {
            write!(f, ", or of {} objects after it,", objects - 1)?;
        }
        write!(f, " took {took:.1?}")
    }
}

/// What the events about slow waits have in common.
#[cfg_attr(not(feature = "tracing"), allow(dead_code, reason = "only events read it"))]
pub(crate) struct SlowWait<'a> {
    pub(crate) heap: &'a str,
    pub(crate) waited: Duration,
    /// The thread that causes the wait.
    pub(crate) thread: &'a str,
    pub(crate) os_thread: Option<u64>,
    pub(crate) registered_for: Duration,
    pub(crate) waiter: Option<&'a str>,
    pub(crate) purpose: Option<&'a str>,
}

/// A failure that no caller could receive.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Unraisable {
    /// The code that failed.
    pub during: During,
    /// The type of the object concerned; empty if there is none.
    pub type_name: Cow<'static, str>,
    /// The address of the object concerned; 0 if there is none, or if it is unknown.
    pub address: usize,
    /// The panic's message, or the reason for an abandoned collection.
    pub message: Cow<'static, str>,
}

impl fmt::Display for Unraisable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let of = if self.type_name.is_empty() { "" } else { " of " };
        write!(f, "ignored failure in {:?}{of}{}: {}", self.during, self.type_name, self.message)
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
