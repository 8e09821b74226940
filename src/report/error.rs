//! Errors as values. Each message says what happened, where, and how to proceed.

#![forbid(unsafe_code)]

use std::borrow::Cow;
use std::error::Error;
use std::fmt;

use crate::base::fallible::NoMemory;

/// Why a thread could not be attached to a heap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AttachError {
    /// The thread is attached already, to this heap or to another one. A thread is attached to one
    /// heap at a time, once. Drop the other [`Mutator`](crate::Mutator), or enter the second heap
    /// with [`Heap::attach_scoped`](crate::Heap::attach_scoped) inside
    /// [`Mutator::detach`](crate::Mutator::detach). Also the error of a thread that holds a
    /// [`DetachedFork`](crate::DetachedFork).
    AlreadyAttached,
    /// The thread is inside a traversal. It is running a
    /// [`Trace::traverse`](crate::Trace::traverse) in a stop, or it has a
    /// [`TraversalGuard`](crate::safepoint::TraversalGuard), as in a hook that it calls while it
    /// waits.
    Traversing,
    /// The thread is inside [`Mutator::detach`](crate::Mutator::detach), and the mutator made here
    /// could outlive it. Use [`Heap::attach_scoped`](crate::Heap::attach_scoped).
    InsideDetach,
    /// The thread keeps another thread [suspended](crate::safepoint::Coordinator::suspend), of any
    /// coordinator. Drop that guard first.
    Suspending,
    /// The thread is ending: this is the destructor of a thread-local, which runs after the library
    /// has stopped watching the thread. Attach in the thread's own function.
    ThreadEnding,
    /// There was no memory for the heap's record of the thread.
    Memory,
    /// The process has used up its thread ids, of which there are
    /// [`ThreadId::MAX`](crate::safepoint::ThreadId::MAX). Each attachment of a new mutator takes
    /// one.
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
    /// The operating system refused to commit more memory. Or the process's allocator refused
    /// memory for a record of the heap: of a weak reference, or of a type that is new in the heap.
    System,
    /// The object is larger than a heap of this size can ever hold.
    TooLarge {
        /// The requested size, in bytes.
        size: usize,
    },
    /// No object can have this alignment: it is not a power of two, or it is above 32 KiB.
    Alignment {
        /// The requested alignment.
        align: usize,
    },
    /// No object can have so many bytes in front of it: at most 32,704.
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

    /// The allocation of an object of type `Object` was refused. `value` is part of the object, or
    /// makes it.
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
    /// An invalid setting. The text says which setting and why.
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

/// The kind of a fault in the use of dynamic objects. The numbers do not change between versions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
#[repr(i32)]
pub enum Code {
    /// The heap is full, or the system refused memory.
    Memory = 1,
    /// The calling thread is not attached to a heap.
    NotAttached = 2,
    /// The type has not been made ready.
    NotReady = 3,
    /// A type that takes part in cycle collection has no traverse handler.
    MissingTraverse = 4,
    /// Handlers were given without the flag, under a base that takes part in cycle collection.
    HandlersWithoutFlag = 5,
    /// A base takes part in cycle collection, and the primary base does not.
    MixedBases = 6,
    /// The type's free function belongs to the other kind of memory.
    BadFree = 7,
    /// Flags that exclude each other, or that this kind of type cannot have.
    BadFlags = 8,
    /// A base that is not ready, is final, or does not fit beside the others.
    BadBase = 9,
    /// The bases have no consistent order.
    BadMro = 10,
    /// An unknown slot, or one that was given twice or without a value.
    BadSlot = 11,
    /// A size that is negative, too large, or less than the base's.
    BadSize = 12,
    /// The type does not take part in cycle collection.
    NotGcType = 13,
    /// The type takes part in cycle collection, and the function is for other types.
    GcType = 14,
    /// A null pointer where there must be an object.
    NullArgument = 15,
    /// The object does not take part in cycle collection.
    NotGcObject = 16,
    /// The object is tracked already.
    AlreadyTracked = 17,
    /// The object was freed while it was tracked.
    StillTracked = 18,
    /// The object to resize is tracked.
    TrackedResize = 19,
    /// The object to resize has other references, or weak ones.
    SharedResize = 20,
    /// The object's type has no items.
    NotResizable = 21,
    /// The memory came from the other allocator.
    WrongAllocator = 22,
    /// References to the object are left.
    ReferencesLeft = 23,
    /// The object was freed before.
    DoubleFree = 24,
    /// The address is no object of a heap.
    ForeignPointer = 25,
    /// The object at the address was freed.
    FreedPointer = 26,
    /// A traverse handler visited a null pointer.
    NullVisit = 27,
    /// A visitor was called after the end of its traversal.
    StaleVisitor = 28,
    /// A traverse handler visited more references than there are.
    OverVisited = 29,
    /// The call is not allowed in a traverse handler.
    InTraversal = 30,
    /// The call is allowed only in a traverse handler.
    OutsideTraversal = 31,
    /// No safepoint, detach or collection is possible inside a handler or callback.
    NotAllowedHere = 32,
    /// A callback returned an invalid value.
    BadCallbackResult = 33,
    /// There is no such generation.
    BadGeneration = 34,
    /// A threshold is negative.
    BadThreshold = 35,
    /// Unknown debug flags.
    BadDebugFlags = 36,
    /// An object of another type is needed.
    WrongType = 37,
    /// The type belongs to no module.
    NoModule = 38,
    // 39 was never raised, and is not given again.
    /// There is no such attribute.
    NoAttribute = 40,
    /// A type was changed after it had been made ready.
    WrittenAfterReady = 41,
    /// A type's own allocator returned something other than a new instance.
    BadAllocResult = 42,
    /// Items were cut off that still hold references.
    CutReferences = 43,
    /// The traverse handler of a heap type does not visit the type.
    MissingTypeVisit = 44,
    /// The traverse handler of a type with a managed dictionary does not visit it.
    MissingDictVisit = 45,
    /// A handler failed.
    HandlerError = 46,
    /// A handler panicked.
    Panic = 47,
    /// An error of the program's own.
    Custom = 48,
    /// A traverse handler took longer than the heap's limit.
    SlowHandler = 49,
}

impl Code {
    /// The code's name, as in the source.
    pub fn name(self) -> &'static str {
        self.facts().0
    }

    /// The code's meaning, in words.
    pub fn meaning(self) -> &'static str {
        self.facts().1
    }

    fn facts(self) -> (&'static str, &'static str) {
        match self {
            Self::Memory => ("Memory", "the heap is full, or the system refused memory"),
            Self::NotAttached => ("NotAttached", "the calling thread is not attached to a heap"),
            Self::NotReady => ("NotReady", "the type has not been made ready"),
            Self::MissingTraverse => (
                "MissingTraverse",
                "a type that takes part in cycle collection has no traverse handler",
            ),
            Self::HandlersWithoutFlag => (
                "HandlersWithoutFlag",
                "handlers were given without the flag, under a base that takes part in cycle collection",
            ),
            Self::MixedBases => (
                "MixedBases",
                "a base takes part in cycle collection, and the primary base does not",
            ),
            Self::BadFree => {
                ("BadFree", "the type's free function belongs to the other kind of memory")
            }
            Self::BadFlags => {
                ("BadFlags", "flags that exclude each other, or that this kind of type cannot have")
            }
            Self::BadBase => (
                "BadBase",
                "a base that is not ready, is final, was made by another runtime, or does not fit \
                 beside the others",
            ),
            Self::BadMro => ("BadMro", "the bases have no consistent order"),
            Self::BadSlot => {
                ("BadSlot", "an unknown slot, or one that was given twice or without a value")
            }
            Self::BadSize => {
                ("BadSize", "a size that is negative, too large, or less than the base's")
            }
            Self::NotGcType => ("NotGcType", "the type does not take part in cycle collection"),
            Self::GcType => (
                "GcType",
                "the type takes part in cycle collection, and the function is for other types",
            ),
            Self::NullArgument => ("NullArgument", "a null pointer where there must be an object"),
            Self::NotGcObject => {
                ("NotGcObject", "the object does not take part in cycle collection")
            }
            Self::AlreadyTracked => ("AlreadyTracked", "the object is tracked already"),
            Self::StillTracked => ("StillTracked", "the object was freed while it was tracked"),
            Self::TrackedResize => ("TrackedResize", "the object to resize is tracked"),
            Self::SharedResize => {
                ("SharedResize", "the object to resize has other references, or weak ones")
            }
            Self::NotResizable => ("NotResizable", "the object's type has no items"),
            Self::WrongAllocator => ("WrongAllocator", "the memory came from the other allocator"),
            Self::ReferencesLeft => ("ReferencesLeft", "references to the object are left"),
            Self::DoubleFree => ("DoubleFree", "the object was freed before"),
            Self::ForeignPointer => ("ForeignPointer", "the address is no object of a heap"),
            Self::FreedPointer => ("FreedPointer", "the object at the address was freed"),
            Self::NullVisit => ("NullVisit", "a traverse handler visited a null pointer"),
            Self::StaleVisitor => {
                ("StaleVisitor", "a visitor was called after the end of its traversal")
            }
            Self::OverVisited => {
                ("OverVisited", "a traverse handler visited more references than there are")
            }
            Self::InTraversal => ("InTraversal", "the call is not allowed in a traverse handler"),
            Self::OutsideTraversal => {
                ("OutsideTraversal", "the call is allowed only in a traverse handler")
            }
            Self::NotAllowedHere => (
                "NotAllowedHere",
                "no safepoint, detach or collection is possible inside a handler or callback",
            ),
            Self::BadCallbackResult => {
                ("BadCallbackResult", "a callback returned an invalid value")
            }
            Self::BadGeneration => ("BadGeneration", "there is no such generation"),
            Self::BadThreshold => ("BadThreshold", "a threshold is negative"),
            Self::BadDebugFlags => ("BadDebugFlags", "unknown debug flags"),
            Self::WrongType => ("WrongType", "an object of another type is needed"),
            Self::NoModule => ("NoModule", "the type belongs to no module"),
            Self::NoAttribute => ("NoAttribute", "there is no such attribute"),
            Self::WrittenAfterReady => {
                ("WrittenAfterReady", "a type was changed after it had been made ready")
            }
            Self::BadAllocResult => (
                "BadAllocResult",
                "a type's own allocator returned something other than a new instance",
            ),
            Self::CutReferences => {
                ("CutReferences", "items that still hold references were cut off")
            }
            Self::MissingTypeVisit => {
                ("MissingTypeVisit", "the traverse handler of a heap type does not visit the type")
            }
            Self::MissingDictVisit => (
                "MissingDictVisit",
                "the traverse handler of a type with a managed dictionary does not visit it",
            ),
            Self::HandlerError => ("HandlerError", "a handler failed"),
            Self::Panic => ("Panic", "a handler panicked"),
            Self::Custom => ("Custom", "an error of the program's own"),
            Self::SlowHandler => {
                ("SlowHandler", "a traverse handler took longer than the heap's limit")
            }
        }
    }
}

/// A call that failed, or that was a mistake, with its place and the type and object concerned.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Fault {
    /// The kind of the fault.
    pub code: Code,
    /// The function that found the fault.
    pub function: &'static str,
    /// The type concerned. Empty if there is none. Also empty for a type that has not become ready,
    /// which the text names.
    pub type_name: &'static str,
    /// The address of the object concerned; 0 if there is none.
    pub address: usize,
    /// The full text. If there was no memory for it, the meaning of the code.
    pub text: Cow<'static, str>,
}

impl Fault {
    /// A fault in `function`, described by the code alone.
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
