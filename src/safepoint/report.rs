//! Reports of slow stops.

#![forbid(unsafe_code)]

use std::fmt;
use std::time::Duration;

use super::record::ThreadId;
use crate::report::facts::LongestCall;

/// The thread of a participant, for reports.
#[derive(Clone, Debug)]
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
}

/// For example `thread 'reader' (OS thread 4711)`.
impl fmt::Display for ThreadInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.name {
            Some(name) => write!(f, "thread '{name}'")?,
            None => write!(f, "thread {} without a name", self.id)?,
        }
        match self.os_thread {
            Some(number) => write!(f, " (OS thread {number})"),
            None => Ok(()),
        }
    }
}

/// The reason for a stop of the world.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StopPurpose {
    /// A collection.
    Collection,
    /// New objects become old without a collection. See
    /// [`HeapStats::promotions`](crate::HeapStats::promotions).
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

/// A stop that is slow, that has failed, or that does not end, with the threads that cause it. Or a
/// collection that has held up its own thread.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct SlowStop {
    /// The kind of problem.
    pub kind: SlowStopKind,
    /// How long the wait has taken; zero for a failed stop. For [`Held`](SlowStopKind::Held): how
    /// long the world has been stopped. For [`Collecting`](SlowStopKind::Collecting): how long no
    /// step of the collection has ended. For [`HeldUp`](SlowStopKind::HeldUp): how long the thread
    /// was held up.
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

/// The problem that a [`SlowStop`] reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SlowStopKind {
    /// A stop is not complete: the stragglers have not come to a safepoint. The requester reports
    /// it.
    Waiting,
    /// A stop has failed: the stragglers have ended attached. The requester reports it.
    Failed,
    /// A stop is complete, and does not end: the straggler has stopped the world. A thread that
    /// waits for the end reports it. Either the straggler's work is long, or the straggler has
    /// leaked its [`WorldStopped`](super::WorldStopped) or its [`Fork`](crate::Fork).
    Held,
    /// The straggler collects, or reclaims a batch of garbage, and does not finish: one of its
    /// finalizers, callbacks or destructors is slow. A thread that waits to collect reports it.
    Collecting,
    /// The straggler has collected, or has reclaimed garbage, and has done nothing else for this
    /// time, without its waits for stops. It reports itself, afterwards. [`SlowStop::longest`] says
    /// which finalizer, weak callback, clear handler or destructor ran longest. Code that does not
    /// return is reported by a thread that waits to collect.
    HeldUp,
    /// Another thread has [suspended](super::Coordinator::suspend) the straggler, and does not end
    /// that. The straggler reports it, if it waits to attach or to end. So does a thread that waits
    /// to suspend the straggler, too.
    Suspended,
}

/// The most stragglers that a line names.
const MAX_NAMED: usize = 4;

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
        }
        if self.stragglers.is_empty() {
            f.write_str("an unknown thread")?;
        }
        for (at, straggler) in self.stragglers.iter().take(MAX_NAMED).enumerate() {
            write!(f, "{}{straggler}", if at == 0 { "" } else { ", " })?;
        }
        match self.stragglers.len().saturating_sub(MAX_NAMED) {
            0 => {}
            more => write!(f, ", and {more} more")?,
        }
        match self.kind {
            SlowStopKind::Waiting => f.write_str(
                ": it has not polled; a thread that blocks must be detached meanwhile, and one that \
                 runs must reach a safepoint",
            ),
            SlowStopKind::Held => {
                f.write_str(": ")?;
                waiter(f)?;
                f.write_str(" and all others wait until it resumes the world")
            }
            SlowStopKind::Collecting => {
                f.write_str(": one of its finalizers, callbacks or destructors is slow")
            }
            SlowStopKind::HeldUp => match &self.longest {
                Some(longest) => write!(f, ": {longest}"),
                None => f.write_str(
                    ": no finalizer, weak callback, clear handler or destructor of garbage took long",
                ),
            },
            SlowStopKind::Failed | SlowStopKind::Suspended => Ok(()),
        }
    }
}

/// A thread that other threads wait for. See [`SlowStopKind`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Straggler {
    /// The thread.
    pub thread: ThreadInfo,
    /// The thread is not attached: another thread has [suspended](super::Coordinator::suspend) it.
    pub is_suspended: bool,
    /// The thread has ended attached, because its participant (its [`Mutator`](crate::Mutator)) was
    /// leaked. No stop succeeds any more.
    pub has_ended: bool,
}

impl fmt::Display for Straggler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, registered {:.1?} ago", self.thread, self.thread.registered_for)?;
        match self {
            Self { has_ended: true, .. } => {
                f.write_str(", which ended without dropping its mutator")
            }
            Self { is_suspended: true, .. } => f.write_str(", which another thread has suspended"),
            _ => Ok(()),
        }
    }
}
