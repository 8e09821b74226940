//! Reports of slow stops.

#![forbid(unsafe_code)]

use std::fmt;
use std::time::Duration;

use super::thread_id::ThreadId;

/// The thread of a participant, for reports.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ThreadInfo {
    /// The participant.
    pub id: ThreadId,
    /// The name of the thread when it registered.
    pub name: Option<String>,
    /// The number of the thread in system tools: `gettid` on Linux and Android, `None` elsewhere.
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

/// A stop that is slow, that has failed, or that does not end, with the threads that cause it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct SlowStop {
    /// The kind of problem.
    pub kind: SlowStopKind,
    /// How long the wait has taken; zero for a failed stop.
    pub waited: Duration,
    /// The threads that cause the wait.
    pub stragglers: Vec<Straggler>,
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
    /// The straggler waits to attach or to end, while another thread has
    /// [suspended](super::Coordinator::suspend) it. The straggler itself reports it.
    Suspended,
}

/// The most stragglers that a line names.
const MAX_NAMED: usize = 4;

/// One line.
impl fmt::Display for SlowStop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind {
            SlowStopKind::Failed => {
                f.write_str("no stop can succeed, and so no collection, because of ")?
            }
            SlowStopKind::Waiting => write!(f, "a stop has waited {:.1?} for ", self.waited)?,
            SlowStopKind::Held => {
                write!(f, "the world has been stopped for {:.1?} by ", self.waited)?
            }
            SlowStopKind::Suspended => {
                write!(f, "a thread has waited {:.1?} to attach: ", self.waited)?
            }
            SlowStopKind::Collecting => {
                write!(f, "a thread has waited {:.1?} to collect, because of ", self.waited)?;
            }
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
            SlowStopKind::Waiting => {
                f.write_str(": a thread that blocks must be detached meanwhile")
            }
            SlowStopKind::Held => f.write_str(": all others wait until it resumes the world"),
            SlowStopKind::Collecting => {
                f.write_str(": one of its finalizers, callbacks or destructors is slow")
            }
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
    /// If the thread is attached: a lower bound of the time since it attached, which is the time of
    /// the wait. Attaching reads no clock.
    pub attached_for: Duration,
    /// The thread is not attached: another thread has [suspended](super::Coordinator::suspend) it.
    pub is_suspended: bool,
    /// The thread has ended attached, because its participant (its [`Mutator`](crate::Mutator)) was
    /// leaked. No stop succeeds any more.
    pub has_ended: bool,
}

impl fmt::Display for Straggler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, which attached {:.1?} ago", self.thread, self.thread.registered_for)?;
        match self {
            Self { has_ended: true, .. } => f.write_str(" and ended without dropping its mutator"),
            Self { is_suspended: true, .. } => f.write_str(" and is suspended by another thread"),
            _ => Ok(()),
        }
    }
}
