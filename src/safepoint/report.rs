//! Reports of slow stops.

#![forbid(unsafe_code)]

use std::fmt;
use std::time::Duration;

use super::thread_id::ThreadId;

/// Who a participant's thread is, for reports.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ThreadInfo {
    /// The participant.
    pub id: ThreadId,
    /// What its thread was called when it registered.
    pub name: Option<String>,
    /// The number by which the system's tools know the thread: `gettid` on Linux and Android, `None` elsewhere.
    pub os_thread: Option<u64>,
    /// How long ago the participant was registered: of a heap's mutator, how long ago
    /// [`Heap::attach`](crate::Heap::attach) made it.
    pub registered_for: Duration,
}

/// As `thread 'reader' (OS thread 4711)`.
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

/// A stop that takes long, fails, or does not end: because of which threads.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct SlowStop {
    /// What has happened.
    pub kind: SlowStopKind,
    /// How long the wait has taken; zero for a stop that has failed.
    pub waited: Duration,
    /// The threads that the wait is for.
    pub stragglers: Vec<Straggler>,
}

/// What a [`SlowStop`] tells of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SlowStopKind {
    /// A stop is not complete: the stragglers have not come to a safepoint. Told by the stop's requester.
    Waiting,
    /// A stop has failed: the stragglers have ended attached. Told by the stop's requester.
    Failed,
    /// A stop is complete, and does not end: the straggler has asked for it. Told by one of the threads that wait for
    /// the end. Either the straggler's work takes so long, or it has leaked its [`WorldStopped`] or its
    /// [`Fork`](crate::Fork).
    Held,
    /// The straggler has the turn to collect, or clears a piece of a collection's garbage, and does not end: one of its finalizers,
    /// callbacks or destructors takes so long. Told by a thread that waits for its turn to collect.
    Collecting,
    /// The straggler waits to attach, or to end, while another thread keeps it [suspended](Coordinator::suspend). Told by the
    /// straggler's own thread.
    Suspended,
}

/// How many stragglers a line of text names.
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
                write!(
                    f,
                    "a thread has waited {:.1?} for its turn to collect, which is taken by ",
                    self.waited
                )?;
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
            SlowStopKind::Held => f.write_str(": all others wait until it has let the world run"),
            SlowStopKind::Collecting => {
                f.write_str(": a finalizer, callback or destructor there takes so long")
            }
            SlowStopKind::Failed | SlowStopKind::Suspended => Ok(()),
        }
    }
}

/// A thread that a stop waits for, or that others wait for in one; see [`SlowStopKind`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Straggler {
    /// Who.
    pub thread: ThreadInfo,
    /// For how long it has been attached *at least*: as long as the wait has taken, where it is attached. Attaching is too
    /// cheap to look at a clock.
    pub attached_for: Duration,
    /// It is not attached itself: another thread keeps it [suspended](Coordinator::suspend).
    pub is_suspended: bool,
    /// Its thread has ended without detaching, because its participant (its [`Mutator`](crate::Mutator)) was
    /// leaked: no stop succeeds any more.
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
