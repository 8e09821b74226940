//! Slow stops: what a callback learns of them, and when the callbacks are called.
//!
//! A thread that neither detaches nor polls makes all others wait, and nothing else would tell the
//! program why it stands still. So each wait of this folder has a limit,
//! [`Config::slow_stop`](super::Config::slow_stop). A thread that has waited longer reports the
//! wait, and again each time that the wait has doubled, so that a long wait takes few reports.

#![forbid(unsafe_code)]

use std::fmt;
use std::time::Duration;

use super::Coordinator;
use super::lock::Guard;
use super::record::{AWAITED, SUSPENDED, ThreadId};
use super::registry::{Registry, SlowStopCallback};
use super::thread_words;
use crate::base::fallible::{self, NoMemory};
use crate::base::outside::Hook;
use crate::report::facts::LongestCall;
use crate::report::times::Distribution;

/// The thread of a participant, for reports.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ThreadInfo {
    /// The participant.
    pub id: ThreadId,
    /// The name of the thread when it registered.
    pub name: Option<String>,
    /// The number of the thread in system tools: `gettid` on Linux and Android,
    /// `pthread_threadid_np` on Apple systems, `GetCurrentThreadId` on Windows. `None` on other
    /// systems.
    pub os_thread: Option<u64>,
    /// The time since the participant was registered. A heap's mutator is registered by
    /// [`Heap::attach`](crate::Heap::attach).
    pub registered_for: Duration,
    /// What the thread has last [marked](crate::Mutator::mark).
    pub mark: Option<&'static str>,
}

/// For example `thread 'reader' (OS thread 4711, last at "reading a request")`.
impl fmt::Display for ThreadInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let &Self { id, ref name, os_thread, mark, .. } = self;
        NamedThread { id, name: name.as_deref(), os_thread, mark }.fmt(f)
    }
}

/// The text of a [`ThreadInfo`], which takes no memory.
pub(super) struct NamedThread<'a> {
    pub(super) id: ThreadId,
    pub(super) name: Option<&'a str>,
    pub(super) os_thread: Option<u64>,
    pub(super) mark: Option<&'static str>,
}

impl fmt::Display for NamedThread<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name {
            Some(name) => write!(f, "thread '{name}'")?,
            None => write!(f, "thread {} without a name", self.id)?,
        }
        match (self.os_thread, self.mark) {
            (Some(number), Some(mark)) => write!(f, " (OS thread {number}, last at {mark:?})"),
            (Some(number), None) => write!(f, " (OS thread {number})"),
            (None, Some(mark)) => write!(f, " (last at {mark:?})"),
            (None, None) => Ok(()),
        }
    }
}

/// How long stops have waited for a thread.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ThreadTimes {
    /// The thread.
    pub thread: ThreadInfo,
    /// Whether it is attached now.
    pub is_attached: bool,
    /// The time from the beginning of each stop that found the thread attached until the thread
    /// stood still, or detached.
    pub time_to_stop: Distribution,
}

/// The reason for a stop of the world.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StopPurpose {
    /// A collection.
    Collection,
    /// New objects become old without a collection, as
    /// [`HeapStats::promotions`](crate::HeapStats::promotions) describes.
    Promotion,
    /// A fork.
    Fork,
    /// Another call of the library that looks at all objects, such as
    /// [`Mutator::objects`](crate::Mutator::objects).
    Inspection,
    /// A stop by a call of the program: [`Participant::stop`](super::Participant::stop).
    Request,
}

/// For example `a collection`.
impl fmt::Display for StopPurpose {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text())
    }
}

impl StopPurpose {
    pub(crate) fn text(self) -> &'static str {
        match self {
            Self::Collection => "a collection",
            Self::Promotion => "a promotion",
            Self::Fork => "a fork",
            Self::Inspection => "an inspection",
            Self::Request => "a stop that the program has requested",
        }
    }
}

/// A stop that is slow, has failed or does not end, or a collection that has held up its own
/// thread, with the threads that cause it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct SlowStop {
    /// The kind of problem.
    pub kind: SlowStopKind,
    /// How long the wait has taken; zero for a failed stop. For [`Held`](SlowStopKind::Held): how
    /// long the world has been stopped. For [`Collecting`](SlowStopKind::Collecting): how long no
    /// step of the collection has ended. For [`HeldUp`](SlowStopKind::HeldUp): how long the thread
    /// was held up. For [`LatePoll`](SlowStopKind::LatePoll): how long, at least, the thread has
    /// not polled.
    pub waited: Duration,
    /// The thread that waits, which makes the report. `None`: it is not registered, or no thread
    /// waits.
    pub waiter: Option<ThreadInfo>,
    /// For what the thread waits: the stop's purpose, or for what it needs the right to collect.
    /// `None`: for no stop.
    pub purpose: Option<StopPurpose>,
    /// The threads that cause the wait.
    pub stragglers: Vec<Straggler>,
    /// For [`HeldUp`](SlowStopKind::HeldUp): the longest [measured call](LongestCall), if one took
    /// a tenth of a millisecond or more.
    pub longest: Option<LongestCall>,
}

impl SlowStop {
    /// A report without a waiter.
    pub(super) fn new(
        kind: SlowStopKind,
        waited: Duration,
        stragglers: impl IntoIterator<Item = Straggler>,
    ) -> Self {
        let stragglers = stragglers.into_iter().collect();
        Self { kind, waited, waiter: None, purpose: None, stragglers, longest: None }
    }
}

/// The problem that a [`SlowStop`] reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SlowStopKind {
    /// A stop is not complete, because the stragglers have not come to a safepoint. The requester
    /// reports it.
    Waiting,
    /// A stop has failed, because the stragglers have ended attached. The requester reports it.
    Failed,
    /// A stop by the straggler is complete, and does not end, so a thread that waits for the end
    /// reports it. Either the straggler's work is long, or the straggler has leaked its
    /// [`WorldStopped`](super::WorldStopped) or its [`Fork`](crate::Fork).
    Held,
    /// The straggler collects, or reclaims a batch of garbage, and does not finish, because one of
    /// its finalizers, callbacks or destructors is slow. A thread that waits to collect reports it.
    Collecting,
    /// The straggler has collected, or has reclaimed garbage, and has done nothing else for this
    /// time, without its waits for stops. It reports itself, afterwards, so code that does not
    /// return is reported by a thread that waits to collect. [`SlowStop::longest`] says which
    /// finalizer, weak callback, clear handler or destructor ran longest.
    HeldUp,
    /// Another thread has [suspended](super::Coordinator::suspend) the straggler, and does not end
    /// that. The straggler reports it, if it waits to attach or to end. So does a thread that waits
    /// to suspend the straggler, too.
    Suspended,
    /// The straggler has been attached for the time of
    /// [`HeapBuilder::late_poll`](crate::HeapBuilder::late_poll) without a poll. No stop waits for
    /// it yet. The thread that watches the heap reports it.
    LatePoll,
}

pub(super) const ADVICE: &str =
    "a thread that blocks must be detached meanwhile, and one that runs must reach a safepoint";

/// The most stragglers that a line names.
const MAX_NAMED: usize = 4;

pub(super) fn write_stragglers(f: &mut fmt::Formatter<'_>, all: &[Straggler]) -> fmt::Result {
    if all.is_empty() {
        return f.write_str("an unknown thread");
    }
    for (at, straggler) in all.iter().take(MAX_NAMED).enumerate() {
        write!(f, "{}{straggler}", if at == 0 { "" } else { ", " })?;
    }
    match all.len().saturating_sub(MAX_NAMED) {
        0 => Ok(()),
        more => write!(f, ", and {more} more"),
    }
}

/// One line.
impl fmt::Display for SlowStop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let waited = self.waited;
        let purpose = |f: &mut fmt::Formatter<'_>| match self.purpose {
            Some(purpose) => write!(f, " for {purpose}"),
            None => Ok(()),
        };
        let waiter = |f: &mut fmt::Formatter<'_>| match &self.waiter {
            Some(waiter) => write!(f, "{waiter}"),
            None => f.write_str("a thread"),
        };
        match self.kind {
            SlowStopKind::Failed => {
                f.write_str("no stop can succeed, and so no collection, because of ")?
            }
            SlowStopKind::Waiting => {
                f.write_str("a stop")?;
                purpose(f)?;
                if let Some(waiter) = &self.waiter {
                    write!(f, " by {waiter}")?;
                }
                write!(f, " has waited {waited:.1?} for ")?;
            }
            SlowStopKind::Held => {
                f.write_str("the world has been stopped")?;
                purpose(f)?;
                write!(f, " for {waited:.1?} by ")?
            }
            SlowStopKind::Suspended => write!(f, "a thread has waited {waited:.1?} to attach: ")?,
            SlowStopKind::Collecting => {
                waiter(f)?;
                write!(f, " has waited {waited:.1?} to begin")?;
                match self.purpose {
                    Some(purpose) => write!(f, " {purpose}")?,
                    None => f.write_str(" a collection")?,
                }
                f.write_str(", because of ")?;
            }
            SlowStopKind::HeldUp => write!(f, "collecting has taken {waited:.1?} on ")?,
            SlowStopKind::LatePoll => f.write_str("a stop would wait for ")?,
        }
        write_stragglers(f, &self.stragglers)?;
        match self.kind {
            SlowStopKind::Waiting => write!(f, ": it has not polled; {ADVICE}"),
            SlowStopKind::LatePoll => {
                write!(f, ": it has not polled for {waited:.1?}; {ADVICE}")
            }
            SlowStopKind::Held => {
                f.write_str(": ")?;
                waiter(f)?;
                f.write_str(" and all others wait until it resumes the world")
            }
            SlowStopKind::Collecting => {
                f.write_str(": one of its finalizers, callbacks or destructors is slow")
            }
            // A call that took little of the time is not the cause.
            SlowStopKind::HeldUp => match &self.longest {
                Some(longest) if longest.took >= waited / 10 => write!(f, ": {longest}"),
                _ => f.write_str(
                    ": no finalizer, weak callback, clear handler or destructor of garbage took long",
                ),
            },
            SlowStopKind::Failed | SlowStopKind::Suspended => Ok(()),
        }
    }
}

/// A thread that other threads wait for. See [`SlowStopKind`] and [`StopError::TimedOut`].
///
/// [`StopError::TimedOut`]: super::StopError::TimedOut
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Straggler {
    /// The thread.
    pub thread: ThreadInfo,
    /// The thread is not attached, because another thread has
    /// [suspended](super::Coordinator::suspend) it.
    pub is_suspended: bool,
    /// The thread has ended attached, because its participant (its [`Mutator`](crate::Mutator)) was
    /// leaked, so that no stop succeeds any more.
    pub has_ended: bool,
    /// With [`HeapBuilder::late_stacks`](crate::HeapBuilder): what the thread ran, innermost first,
    /// as `read (io.rs:7) < load (index.rs:40)`, or why that is not known, as `no stack: ...`. At
    /// most 16 calls, of the first four threads of a report.
    pub stack: Option<String>,
}

impl fmt::Display for Straggler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, registered {:.1?} ago", self.thread, self.thread.registered_for)?;
        match self {
            Self { has_ended: true, .. } => {
                f.write_str(", which ended without dropping its mutator")
            }
            Self { is_suspended: true, .. } => f.write_str(", which another thread has suspended"),
            Self { stack: Some(stack), .. } => write!(f, ", in {stack}"),
            _ => Ok(()),
        }
    }
}

impl<T> Coordinator<T> {
    /// Reports that a detached thread has slept for `limit`, waiting for the end of a stop or of
    /// its suspension. Does nothing if this was reported and the wait has not doubled since.
    ///
    /// If the stop is not complete, its requester reports it.
    #[cold]
    pub(super) fn report_end<'a>(
        &'a self,
        mut registry: Guard<'a, Registry<T>>,
        suspended: Option<ThreadId>,
        limit: Duration,
    ) -> Guard<'a, Registry<T>> {
        let stopped_for = registry.stopped_since.map(|since| since.elapsed());
        let (kind, id, waited) = match (registry.stopper, stopped_for) {
            (Some(stopper), Some(waited))
                if waited >= self.slow_stop.max(2 * registry.last_held_report) =>
            {
                registry.last_held_report = waited;
                (SlowStopKind::Held, Some(stopper), waited)
            }
            (None, _) => (SlowStopKind::Suspended, suspended, limit),
            _ => return registry,
        };
        let Some(at) = id.and_then(|id| registry.position(id)) else { return registry };
        let entry = &mut registry.entries[at];
        if kind == SlowStopKind::Suspended {
            if !matches!(entry.record.state(), SUSPENDED | AWAITED) {
                return registry;
            }
            entry.min_sleep = limit.saturating_mul(2);
        }
        let straggler = Straggler::of(entry);
        let report = SlowStop {
            waiter: registry.this_thread(),
            purpose: (kind == SlowStopKind::Held).then_some(registry.purpose),
            ..SlowStop::new(kind, waited, [straggler])
        };
        drop(registry);
        self.report_detached(&report);
        self.registry.lock()
    }

    /// Reports that a detached thread has waited so long for the right to collect, which it needs
    /// for `purpose`, because the participants `by` are collecting.
    #[cold]
    pub(crate) fn report_collecting(&self, purpose: StopPurpose, waited: Duration, by: &[u64]) {
        let registry = self.registry.lock();
        // Not in a stop, for which one of them may wait, because a slow stop is reported itself.
        if registry.stopper.is_some() || registry.slow_stop.is_empty() {
            return;
        }
        let stragglers =
            registry.entries.iter().filter(|entry| by.contains(&entry.record.id.get()));
        let report = SlowStop {
            waiter: registry.this_thread(),
            purpose: Some(purpose),
            ..SlowStop::new(SlowStopKind::Collecting, waited, stragglers.map(Straggler::of))
        };
        drop(registry);
        self.report_detached(&report);
    }

    /// As [`report`](Self::report), on a detached thread with callers that rely on its attachment,
    /// so that the callbacks cannot attach it.
    fn report_detached(&self, report: &SlowStop) {
        let _alone = thread_words::traversing();
        self.report(report);
    }

    /// Reports that collecting has held up the calling thread, the participant `id`, for so long.
    #[cold]
    pub(crate) fn report_held_up(
        &self,
        id: ThreadId,
        held_up: Duration,
        longest: Option<LongestCall>,
    ) {
        let registry = self.registry.lock();
        if registry.slow_stop.is_empty() {
            return;
        }
        let me = registry.position(id).map(|at| Straggler::of(&registry.entries[at]));
        drop(registry);
        let report = SlowStop::new(SlowStopKind::HeldUp, held_up, me);
        self.report(&SlowStop { longest, ..report });
    }

    /// Calls the callbacks for slow stops. The caller holds no lock, because they are code of the
    /// user.
    pub(super) fn report(&self, report: &SlowStop) {
        let callbacks = self.registry.lock().slow_stop.clone();
        for callback in callbacks {
            // The result is ignored, because a report must not change the stop, and the panic hook
            // has printed a panic.
            drop(callback.call(|callback| callback(report)));
        }
    }

    /// Reports each thread that has ended attached, once, after a stop has failed because of it.
    #[cold]
    pub(super) fn report_gone(&self) {
        let mut registry = self.registry.lock();
        let stragglers =
            if registry.slow_stop.is_empty() { Vec::new() } else { registry.take_unreported() };
        drop(registry);
        if !stragglers.is_empty() {
            self.report(&SlowStop::new(SlowStopKind::Failed, Duration::ZERO, stragglers));
        }
    }

    /// Adds a callback for stops that take longer than
    /// [`Config::slow_stop`](super::Config::slow_stop). The requester calls it while it waits,
    /// without any lock, and again each time its wait has doubled. A panic in it is caught.
    ///
    /// A thread that waits for the end of another's stop calls it too, once the world has been
    /// stopped for so long, and each time this has doubled. So does a thread that waits for the end
    /// of a suspension: of its own, or of a thread that it is about to [suspend](Self::suspend).
    /// Inside the callback these threads cannot attach, as inside a [traversal](super::traversing).
    /// If the callback keeps a [`TraversalGuard`](super::TraversalGuard), the thread attaches all
    /// the same after the wait, and its traversal lasts until the guard is dropped.
    ///
    /// If a stop fails because a thread has ended attached, its requester calls it too, once for
    /// that thread. The straggler then [has ended](Straggler::has_ended).
    ///
    /// Without a callback, nothing tells of a slow stop, because a coordinator writes to no log. A
    /// stop that waits for a thread which neither detaches nor reaches a safepoint then hangs in
    /// silence. (A heap has a callback of its own, which writes to standard error.)
    pub fn on_slow_stop(&self, f: impl Fn(&SlowStop) + Send + Sync + 'static) {
        self.try_on_slow_stop(f).unwrap_or_else(NoMemory::abort_process);
    }

    /// As [`on_slow_stop`](Self::on_slow_stop), but fails if there is no memory.
    #[doc(hidden)]
    pub fn try_on_slow_stop(
        &self,
        f: impl Fn(&SlowStop) + Send + Sync + 'static,
    ) -> Result<(), NoMemory> {
        let hook: SlowStopCallback = Hook::new(fallible::arc(f)?);
        let mut registry = self.registry.lock();
        if registry.slow_stop.try_reserve(1).is_err() {
            drop(registry);
            // Without the lock, because the drop of `hook` may run the user's code.
            return Err(NoMemory);
        }
        registry.slow_stop.push(hook);
        Ok(())
    }
}
