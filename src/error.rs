//! Floor 0: what can go wrong, as values. Each message says what happened, where, and what to do.

use std::error::Error;
use std::fmt;

/// Why a thread could not be attached to a heap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AttachError {
    /// The thread is attached already, to this heap or to another one. A thread is attached to one
    /// heap at a time, once: drop the other [`Mutator`](crate::Mutator), or enter the second heap
    /// with [`Heap::attach_scoped`](crate::Heap::attach_scoped) inside
    /// [`Mutator::detach`](crate::Mutator::detach).
    AlreadyAttached,
    /// The thread is running a [`Trace::traverse`](crate::Trace::traverse): the world is stopped.
    Traversing,
    /// The thread is inside [`Mutator::detach`](crate::Mutator::detach), and the mutator made here
    /// could outlive it. Use [`Heap::attach_scoped`](crate::Heap::attach_scoped).
    InsideDetach,
}

impl fmt::Display for AttachError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::AlreadyAttached => {
                "this thread is attached to a heap already; drop that Mutator first, or use \
                 `attach_scoped` inside `Mutator::detach`"
            }
            Self::Traversing => {
                "this thread is inside `Trace::traverse`, while the world is stopped; a traverse \
                 may only visit its fields"
            }
            Self::InsideDetach => {
                "this thread is inside `Mutator::detach`; use `Heap::attach_scoped`, whose mutator \
                 cannot outlive the closure"
            }
        })
    }
}

impl Error for AttachError {}

/// Why the system, or the heap's limit, refused memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum OutOfMemory {
    /// Every page the heap may use is in use.
    Limit {
        /// The most bytes the heap may use at a time.
        limit: usize,
    },
    /// The operating system refused to commit more memory.
    System,
    /// The object is larger than a heap of this size can ever hold.
    TooLarge {
        /// The size asked for, in bytes.
        size: usize,
    },
}

impl fmt::Display for OutOfMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Limit { limit } => write!(
                f,
                "the heap's limit of {limit} bytes is reached; collect (`alloc_or_collect` does), drop \
                 objects, or build the heap with a larger `limit`"
            ),
            Self::System => f.write_str("the operating system refused to commit more memory"),
            Self::TooLarge { size } => {
                write!(
                    f,
                    "an object of {size} bytes does not fit into this heap; build it with a larger `reserve`"
                )
            }
        }
    }
}

impl Error for OutOfMemory {}

/// An allocation was refused. The value comes back; the heap is as it was.
pub struct AllocError<T> {
    value: T,
    reason: OutOfMemory,
}

impl<T> AllocError<T> {
    pub(crate) fn new(value: T, reason: OutOfMemory) -> Self {
        Self { value, reason }
    }

    /// The value that found no room.
    pub fn into_inner(self) -> T {
        self.value
    }

    /// Why there was no room.
    pub fn reason(&self) -> OutOfMemory {
        self.reason
    }
}

impl<T> fmt::Debug for AllocError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AllocError").field("reason", &self.reason).finish_non_exhaustive()
    }
}

impl<T> fmt::Display for AllocError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot allocate a {}: {}", std::any::type_name::<T>(), self.reason)
    }
}

impl<T> Error for AllocError<T> {}

/// A heap could not be built.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum BuildError {
    /// The system refused to reserve even the smallest address range tried.
    Reserve {
        /// The last size tried, in bytes.
        tried: usize,
        /// What the system said.
        reason: String,
    },
    /// A setting makes no sense; the text says which and why.
    Setting(String),
}

impl fmt::Display for BuildError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Reserve { tried, reason } => write!(
                f,
                "cannot reserve {tried} bytes of address space for a heap: {reason}; raise the process's \
                 limit (`ulimit -v`) or build with a smaller `reserve`"
            ),
            Self::Setting(text) => f.write_str(text),
        }
    }
}

impl Error for BuildError {}

/// A handle was used with a mutator of another heap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ForeignGc;

impl fmt::Display for ForeignGc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "this Gc belongs to another heap than the Mutator it was used with; attach to its own heap",
        )
    }
}

impl Error for ForeignGc {}
