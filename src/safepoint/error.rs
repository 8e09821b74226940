//! A thread that cannot attach or stop the world must learn what hinders it, so that it can end
//! that.

#![forbid(unsafe_code)]

use std::borrow::Cow;
use std::fmt;

use super::record::ThreadId;
use super::slow_stop::{ADVICE, Straggler, write_stragglers};
use super::thread_words::{attached_as, is_traversing, words};
use crate::report::error::{AttachError, Code, Fault};

/// Why a thread could not attach.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CannotAttach {
    /// The thread is attached, here or elsewhere.
    AlreadyAttached,
    /// The thread is inside a [traversal](super::traversing).
    Traversing,
    /// The thread has [suspended](super::Coordinator::suspend) another one, or has stopped heaps
    /// for a fork.
    Suspending,
    /// The thread is ending: this is the destructor of a thread-local, in which a leak would not be
    /// noticed any more.
    ThreadEnding,
}

impl CannotAttach {
    #[cold]
    pub(super) fn now() -> Self {
        if is_traversing() { Self::Traversing } else { Self::instead_of_coming_back() }
    }

    /// As [`now`](Self::now), for a thread that a traversal would not hinder.
    #[cold]
    pub(super) fn instead_of_coming_back() -> Self {
        if attached_as() != 0 {
            Self::AlreadyAttached
        } else if words(|w| w.is_ending()) {
            Self::ThreadEnding
        } else {
            Self::Suspending
        }
    }
}

impl fmt::Display for CannotAttach {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::AlreadyAttached => {
                "this thread is attached already, here or elsewhere; detach it there first"
            }
            Self::Traversing => {
                "this thread is inside a traversal; attach when its guard has been dropped"
            }
            Self::Suspending => {
                "this thread keeps another one suspended, or has stopped heaps for a fork; end that \
                 first"
            }
            Self::ThreadEnding => {
                "this thread is ending, and its thread-locals are being destroyed; attach in the \
                 thread's own function"
            }
        })
    }
}

impl std::error::Error for CannotAttach {}

impl From<CannotAttach> for AttachError {
    fn from(error: CannotAttach) -> Self {
        match error {
            CannotAttach::AlreadyAttached => Self::AlreadyAttached,
            CannotAttach::Traversing => Self::Traversing,
            CannotAttach::Suspending => Self::Suspending,
            CannotAttach::ThreadEnding => Self::ThreadEnding,
        }
    }
}

/// Why the world was not stopped.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StopError {
    /// This thread has stopped the world already.
    Nested,
    /// This thread is not attached (to this coordinator).
    NotAttached,
    /// This thread is attached, which hinders only a fork that stops heaps on behalf of a detached
    /// one.
    Attached,
    /// This thread must not reach a safepoint now.
    NoSafepoint,
    /// A thread has ended without detaching, because its participant was leaked.
    ThreadGone {
        /// The name of the thread when it registered.
        name: Option<String>,
        /// The participant.
        id: ThreadId,
    },
    /// Another thread has stopped the world, or waits for its turn to do so. Only calls that do not
    /// wait for that return it, such as [`Participant::try_stop`](super::Participant::try_stop).
    Busy,
    /// Attached threads have not come to a safepoint within the limit of the stop, such as that of
    /// [`Participant::stop_for`](super::Participant::stop_for).
    TimedOut {
        /// The threads for which the stop still waited, without those for whose names there was no
        /// memory. Their [`stack`](Straggler::stack) is `None`.
        stragglers: Vec<Straggler>,
    },
    /// The runtime did not stop its threads: see
    /// [`RuntimeStop::stop_runtime`](crate::model::RuntimeStop::stop_runtime).
    Refused {
        /// The runtime's reason.
        reason: Cow<'static, str>,
    },
    /// There is no memory for the guards of the locks that a fork holds, or for its place among the
    /// threads that stop the world. Only the calls that prepare a fork return it.
    NoMemory,
}

impl StopError {
    /// The fault of a function that needs a stop.
    #[doc(hidden)]
    pub fn fault(&self, function: &'static str) -> Fault {
        let code = match self {
            Self::NoSafepoint | Self::Nested => Code::NotAllowedHere,
            Self::NotAttached => Code::NotAttached,
            Self::Busy => Code::Busy,
            Self::TimedOut { .. } => Code::TimedOut,
            Self::NoMemory => Code::Memory,
            _ => Code::Custom,
        };
        Fault::new(code, function).because(crate::words!("the world cannot be stopped: {self}"))
    }
}

impl fmt::Display for StopError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nested => {
                f.write_str("this thread has stopped the world already; let it run again first")
            }
            Self::NotAttached => {
                f.write_str("this thread is not attached to this coordinator; attach it first")
            }
            Self::Attached => f.write_str(
                "this thread is attached; detach it first, or call `prepare_fork` of its mutator",
            ),
            Self::NoSafepoint => f.write_str(
                "this thread must not reach a safepoint now: it is inside a destructor, finalizer, \
                 callback, `with_current`, traversal or suspension; do this when that has returned",
            ),
            Self::ThreadGone { name, id } => {
                let name = name.as_deref().unwrap_or("without a name");
                write!(
                    f,
                    "thread {id} ({name}) has ended attached: its mutator or participant was leaked; \
                     drop these before their threads end, because no stop succeeds from now on"
                )
            }
            Self::Busy => f.write_str(
                "another thread has stopped the world, or waits for its turn; try again later",
            ),
            Self::TimedOut { stragglers } => {
                f.write_str("the stop was given up at its limit, because it still waited for ")?;
                write_stragglers(f, stragglers)?;
                write!(f, "; {ADVICE}")
            }
            Self::Refused { reason } => {
                write!(f, "the runtime has not stopped its threads: {reason}")
            }
            Self::NoMemory => f.write_str(
                "there is no memory for what a fork or a stop must keep; free some, and try again",
            ),
        }
    }
}

impl std::error::Error for StopError {}
