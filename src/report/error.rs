//! A full heap, or a thread that cannot attach, must not end the program, so errors are values.
//! Each message says what happened, where, and how to proceed.

#![forbid(unsafe_code)]

use std::borrow::Cow;
use std::error::Error;
use std::fmt;

use crate::base::fallible::NoMemory;

/// Why a thread could not be attached to a heap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AttachError {
    /// The thread is attached already, to this heap or to another one, and no thread is attached
    /// twice at a time. Drop the other [`Mutator`](crate::Mutator), or enter the second heap with
    /// [`Heap::attach_scoped`](crate::Heap::attach_scoped) inside
    /// [`Mutator::detach`](crate::Mutator::detach). Also the error of a thread that holds a
    /// [`DetachedFork`](crate::DetachedFork).
    AlreadyAttached,
    /// The thread is inside a traversal: it runs [`Trace::traverse`](crate::Trace::traverse) in a
    /// stop, or has a [`TraversalGuard`](crate::safepoint::TraversalGuard), as in a hook that it
    /// calls while it waits.
    Traversing,
    /// The thread is inside [`Mutator::detach`](crate::Mutator::detach), which the mutator made
    /// here could outlive, so use [`Heap::attach_scoped`](crate::Heap::attach_scoped).
    InsideDetach,
    /// The thread keeps another thread [suspended](crate::safepoint::Coordinator::suspend), of any
    /// coordinator, so that guard must be dropped first.
    Suspending,
    /// The thread is ending: this is the destructor of a thread-local, which runs after the library
    /// has stopped watching the thread. So attach in the thread's own function.
    ThreadEnding,
    /// There was no memory for the heap's record of the thread.
    Memory,
    /// The process has used up its [`ThreadId::MAX`](crate::safepoint::ThreadId::MAX) thread ids,
    /// because each attachment of a new mutator takes one.
    NoThreadIds,
}

impl From<NoMemory> for AttachError {
    fn from(_: NoMemory) -> Self {
        Self::Memory
    }
}

impl From<RegisterError> for AttachError {
    fn from(error: RegisterError) -> Self {
        match error {
            RegisterError::Memory => Self::Memory,
            RegisterError::NoIds => Self::NoThreadIds,
        }
    }
}

/// Why a thread could not register with a coordinator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RegisterError {
    /// There was no memory for its record.
    Memory,
    /// The process has used up its thread ids.
    NoIds,
}

impl From<NoMemory> for RegisterError {
    fn from(_: NoMemory) -> Self {
        Self::Memory
    }
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
            Self::Suspending => "this thread keeps another one suspended; drop that guard first",
            Self::ThreadEnding => {
                "this thread is ending, and its thread-locals are being destroyed; attach in the thread's own function"
            }
            Self::Memory => {
                "there is no memory for the heap's record of the thread; free some, and try again"
            }
            Self::NoThreadIds => {
                "no thread ids are left in this process, because each new mutator takes one; keep \
                 mutators, detached or attached, instead of making others"
            }
        })
    }
}

impl Error for AttachError {}

/// Why the system, or the heap's limit, refused memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum OutOfMemory {
    /// Every page that the heap may use is in use, or memory outside the heap has taken its place.
    Limit {
        /// The most bytes the heap may use at a time.
        limit: usize,
    },
    /// The operating system refused to commit more memory. Or the process's allocator refused it
    /// for a record of the heap: of a weak reference, or of a type that is new in the heap.
    System,
    /// The object is larger than a heap of this size can ever hold.
    TooLarge {
        /// The requested size, in bytes.
        size: usize,
    },
    /// No object can have this alignment, because it is not a power of two, or is above 32 KiB.
    Alignment {
        /// The requested alignment.
        align: usize,
    },
    /// No object can have so many bytes in front of it, because 32,704 is the most.
    Prefix {
        /// The requested number of bytes.
        prefix: usize,
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
            Self::Alignment { align } => {
                write!(
                    f,
                    "no object can have an alignment of {align}: it must be a power of two, \
                     32 KiB at most"
                )
            }
            Self::Prefix { prefix } => {
                write!(
                    f,
                    "no object can have {prefix} bytes in front of it: 32,704 at most; put the rest \
                     behind the object"
                )
            }
            Self::TooLarge { size } => {
                write!(
                    f,
                    "an object of {size} bytes does not fit into this heap; build it with a \
                     larger `reserve`"
                )
            }
        }
    }
}

impl Error for OutOfMemory {}

impl From<NoMemory> for OutOfMemory {
    fn from(_: NoMemory) -> Self {
        Self::System
    }
}

/// An allocation was refused. It returns the value, and the heap has not changed.
pub struct AllocError<T> {
    value: T,
    reason: OutOfMemory,
    /// The type of the object.
    type_name: &'static str,
}

impl<T> AllocError<T> {
    pub(crate) fn new(value: T, reason: impl Into<OutOfMemory>) -> Self {
        Self::of::<T>(value, reason)
    }

    /// As [`new`](Self::new), where `value` is only part of an `Object`, or makes it.
    pub(crate) fn of<Object: ?Sized>(value: T, reason: impl Into<OutOfMemory>) -> Self {
        Self { value, reason: reason.into(), type_name: std::any::type_name::<Object>() }
    }

    /// The value that was to be allocated, or the parts from which it was to be made.
    pub fn into_inner(self) -> T {
        self.value
    }

    /// Why the allocation was refused.
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
        write!(f, "cannot allocate a {}: {}", self.type_name, self.reason)
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
        /// The error of the system.
        reason: Cow<'static, str>,
    },
    /// An invalid setting, which the text names, with the reason.
    Setting(Cow<'static, str>),
    /// There was no memory for the heap's own structures.
    Memory,
}

impl From<NoMemory> for BuildError {
    fn from(_: NoMemory) -> Self {
        Self::Memory
    }
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
            Self::Memory => f.write_str("there is no memory for a heap's own structures"),
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

/// Declares the codes, whose meanings are also their documentation.
macro_rules! codes {
    ($($name:ident = $number:literal, $meaning:literal;)*) => {
        /// The kind of a fault in the use of dynamic objects. The numbers do not change between
        /// versions.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[non_exhaustive]
        #[repr(i32)]
        pub enum Code {
            $(#[doc = $meaning] $name = $number,)*
        }

        impl Code {
            /// The code's name, as in the source.
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$name => stringify!($name),)*
                }
            }

            /// The code's meaning, in words.
            pub fn meaning(self) -> &'static str {
                match self {
                    $(Self::$name => $meaning,)*
                }
            }
        }
    };
}

codes! {
    Memory = 1, "the heap is full, or the system refused memory";
    NotAttached = 2, "the calling thread is not attached to a heap";
    NotReady = 3, "the type has not been made ready";
    MissingTraverse = 4, "a type that takes part in cycle collection has no traverse handler";
    HandlersWithoutFlag = 5,
        "handlers were given without the flag, under a base that takes part in cycle collection";
    MixedBases = 6, "a base takes part in cycle collection, and the primary base does not";
    BadFree = 7, "the type's free function belongs to the other kind of memory";
    BadFlags = 8, "flags that exclude each other, or that this kind of type cannot have";
    BadBase = 9,
        "a base that is not ready, is final, was made by another runtime, or does not fit beside the others";
    BadMro = 10, "the bases have no consistent order";
    BadSlot = 11, "an unknown slot, or one that was given twice or without a value";
    BadSize = 12, "a size that is negative, too large, or less than the base's";
    NotGcType = 13, "the type does not take part in cycle collection";
    GcType = 14, "the type takes part in cycle collection, and the function is for other types";
    NullArgument = 15, "a null pointer where there must be an object";
    NotGcObject = 16, "the object does not take part in cycle collection";
    AlreadyTracked = 17, "the object is tracked already";
    StillTracked = 18, "the object was freed while it was tracked";
    TrackedResize = 19, "the object to resize is tracked";
    SharedResize = 20, "the object to resize has other references, or weak ones";
    NotResizable = 21, "the object's type has no items";
    WrongAllocator = 22, "the memory came from the other allocator";
    ReferencesLeft = 23, "references to the object are left";
    DoubleFree = 24, "the object was freed before";
    ForeignPointer = 25, "the address is no object of a heap";
    FreedPointer = 26, "the object at the address was freed";
    NullVisit = 27, "a traverse handler visited a null pointer";
    StaleVisitor = 28, "a visitor was called after the end of its traversal";
    OverVisited = 29, "a traverse handler visited more references than there are";
    InTraversal = 30, "the call is not allowed in a traverse handler";
    OutsideTraversal = 31, "the call is allowed only in a traverse handler";
    NotAllowedHere = 32,
        "no safepoint, detach or collection is possible inside a handler or callback";
    BadCallbackResult = 33, "a callback returned an invalid value";
    BadGeneration = 34, "there is no such generation";
    BadThreshold = 35, "a threshold is negative";
    BadDebugFlags = 36, "unknown debug flags";
    WrongType = 37, "an object of another type is needed";
    NoModule = 38, "the type belongs to no module";
    // 39 was never raised, and is not given again.
    NoAttribute = 40, "there is no such attribute";
    WrittenAfterReady = 41, "a type was changed after it had been made ready";
    BadAllocResult = 42, "a type's own allocator returned something other than a new instance";
    CutReferences = 43, "items that still hold references were cut off";
    MissingTypeVisit = 44, "the traverse handler of a heap type does not visit the type";
    MissingDictVisit = 45,
        "the traverse handler of a type with a managed dictionary does not visit it";
    HandlerError = 46, "a handler failed";
    Panic = 47, "a handler panicked";
    Custom = 48, "an error of the program's own";
    SlowHandler = 49, "a traverse handler took longer than the heap's limit";
    Busy = 50, "another thread has stopped the world, or waits for its turn";
    TimedOut = 51, "the limit of a stop is over";
}

/// A call that failed, or that was a mistake, with its place and the type and object concerned.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Fault {
    /// The kind of the fault.
    pub code: Code,
    /// The function that found the fault.
    pub function: &'static str,
    /// The type concerned. Empty if there is none, and for a type that has not become ready, which
    /// the text names.
    pub type_name: &'static str,
    /// The address of the object concerned; 0 if there is none.
    pub address: usize,
    /// The full text, or the meaning of the code if there was no memory for the text.
    pub text: Cow<'static, str>,
}

impl Fault {
    /// A fault in `function`, whose text is the meaning of the code.
    pub fn new(code: Code, function: &'static str) -> Self {
        Self { code, function, type_name: "", address: 0, text: Cow::Borrowed(code.meaning()) }
    }

    /// Adds the type concerned.
    #[must_use]
    pub fn of_type(mut self, name: &'static str) -> Self {
        self.type_name = name;
        self
    }

    /// Adds the object concerned, by its address.
    #[must_use]
    pub fn at(mut self, address: usize) -> Self {
        self.address = address;
        self
    }

    /// Replaces the text of the code, if there was memory for the new text.
    #[must_use]
    pub fn because(mut self, text: impl Into<Cow<'static, str>>) -> Self {
        let text = text.into();
        if text != crate::base::fallible::NO_WORDS {
            self.text = text;
        }
        self
    }
}

impl From<NoMemory> for Fault {
    fn from(_: NoMemory) -> Self {
        Self::new(Code::Memory, "allocation")
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.function, self.text)?;
        if !self.type_name.is_empty() {
            write!(f, " (type {}", self.type_name)?;
            if self.address != 0 {
                write!(f, ", object {:#x}", self.address)?;
            }
            f.write_str(")")?;
        } else if self.address != 0 {
            write!(f, " (object {:#x})", self.address)?;
        }
        write!(f, " [{}]", self.code.name())
    }
}

impl Error for Fault {}
