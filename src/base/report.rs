//! Reports: the facts about a collection, and about a failure that no caller could be told of.

use std::borrow::Cow;
use std::fmt;
use std::time::Duration;

/// What is looked at in a collection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CollectionKind {
    /// Only objects that were allocated, or tracked, since the last collection, or [promotion](crate::HeapStats::promotions).
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

/// The facts about one collection.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CollectionReport {
    /// What was looked at.
    pub kind: CollectionKind,
    /// The number it was asked for by, in the terms of [`services`](crate::gc_module): 0 or 1 for a young collection, 2
    /// for a full one.
    pub generation: usize,
    /// Why the collection gave up, if it did: nothing was cleared then. Of a collection that could not stop the world, the reason of
    /// that: it names the thread that leaked its mutator.
    pub abandoned: Option<Cow<'static, str>>,
    /// Tracked objects in the pages that were looked at, frozen ones not counted.
    pub tracked: usize,
    /// Objects whose references were counted.
    pub candidates: usize,
    /// Of the candidates, how many the roots named with [`Heap::known_root`](crate::Heap::known_root) were found to
    /// reach: these were looked at once instead of twice.
    pub known_alive: usize,
    /// Candidates that nothing outside refers to, directly or through others.
    pub unreachable: usize,
    /// Finalizers that ran.
    pub finalized: usize,
    /// Unreachable objects that finalizers or callbacks made reachable again.
    pub resurrected: usize,
    /// Unreachable objects that were destroyed.
    pub collected: usize,
    /// Unreachable objects that are still there after everything was cleared: no field of their cycle
    /// can be emptied. They stay tracked, and the next full collection tries again. Those that were not to be cleared,
    /// because of a legacy finalizer or for debugging, count too.
    pub uncollectable: usize,
    /// Objects whose type visited more references than exist: kept, whatever they are. A traversal
    /// that does so is wrong.
    pub overvisited: usize,
    /// How long the world was stopped, each time: one stop where one was enough, else two.
    pub stops: Vec<Duration>,
    /// From the request to the last thread's parking, the longer of the two.
    pub time_to_stop: Duration,
    /// From the first step to the last, stops and finalizers included; of a collection that the heap started, also what the
    /// program did while its garbage was cleared in pieces.
    pub duration: Duration,
    /// Threads that were allowed to count and mark, the collecting one included; 1: that one alone. Fewer
    /// have worked if the collection was over before the others could begin.
    pub workers: usize,
}

impl CollectionReport {
    pub(crate) fn new(kind: CollectionKind) -> Self {
        Self {
            kind,
            generation: match kind {
                CollectionKind::Young => 0,
                CollectionKind::Full => 2,
            },
            abandoned: None,
            tracked: 0,
            candidates: 0,
            known_alive: 0,
            unreachable: 0,
            finalized: 0,
            resurrected: 0,
            collected: 0,
            uncollectable: 0,
            overvisited: 0,
            stops: Vec::new(),
            time_to_stop: Duration::ZERO,
            duration: Duration::ZERO,
            workers: 1,
        }
    }
}

/// What a callback registered with [`Heap::on_collection`](crate::Heap::on_collection) is told.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum CollectionEvent<'a> {
    /// A collection begins; the world is still running.
    Start(CollectionKind),
    /// A collection is over; the world is running. Of one that the heap started itself another thread may tell this than told of
    /// the start.
    Stop(&'a CollectionReport),
}

impl<'a> CollectionEvent<'a> {
    /// What is, or was, looked at.
    pub fn kind(&self) -> CollectionKind {
        match self {
            Self::Start(kind) => *kind,
            Self::Stop(report) => report.kind,
        }
    }

    /// The facts, once the collection is over.
    pub fn report(&self) -> Option<&'a CollectionReport> {
        match self {
            Self::Start(_) => None,
            Self::Stop(report) => Some(report),
        }
    }
}

/// Where user code was running when it failed in a way that no caller can be told of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum During {
    /// A traversal: the collection is abandoned.
    Traverse,
    /// A finalizer.
    Finalize,
    /// A weak callback.
    WeakCallback,
    /// A clear handler.
    Clear,
    /// A destructor.
    Drop,
    /// A callback of [`Heap::on_collection`](crate::Heap::on_collection), or of
    /// [`Services::add_callback`](crate::gc_module::Services::add_callback).
    CollectionCallback,
    /// The sink of debugging lines.
    DebugSink,
    /// The audit hook.
    AuditHook,
    /// A collection that was asked for by a call that gives no errors, and could not be.
    Collect,
    /// The end of a heap: what is left there.
    Shutdown,
}

/// A failure that no caller could be told of.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Unraisable {
    /// Where it happened.
    pub during: During,
    /// The type of the object concerned; empty where there is none.
    pub type_name: &'static str,
    /// The address of the object concerned; 0 where there is none, or it is not known.
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
mod tests {
    use super::*;

    /// Each variant: one that is new does not compile here before it has its line.
    fn words(during: During) -> &'static str {
        match during {
            During::Traverse => "Traverse",
            During::Finalize => "Finalize",
            During::WeakCallback => "WeakCallback",
            During::Clear => "Clear",
            During::Drop => "Drop",
            During::CollectionCallback => "CollectionCallback",
            During::DebugSink => "DebugSink",
            During::AuditHook => "AuditHook",
            During::Collect => "Collect",
            During::Shutdown => "Shutdown",
        }
    }

    #[test]
    fn an_ignored_failure_is_a_sentence_with_and_without_a_type() {
        for during in [
            During::Traverse,
            During::Finalize,
            During::WeakCallback,
            During::Clear,
            During::Drop,
            During::CollectionCallback,
            During::DebugSink,
            During::AuditHook,
            During::Collect,
            During::Shutdown,
        ] {
            let failure = |type_name| {
                Unraisable { during, type_name, address: 0, message: "why".into() }.to_string()
            };
            let place = words(during);
            assert_eq!(
                failure("tests.Node"),
                format!("ignored failure in {place} of tests.Node: why")
            );
            assert_eq!(failure(""), format!("ignored failure in {place}: why"));
        }
    }
}
