//! A child of the process, in which a stopped heap is looked at while the program goes on.
//!
//! Some questions about a heap take seconds, and no stop should last so long. A child that is
//! cloned in a stop has a copy of the heap that nothing changes, so that the stop ends with the
//! clone, however long the child works. For example, a heap of a gigabyte is cloned in a few
//! milliseconds, because the system copies its tables of pages and no memory. The program pays for
//! the copies of the pages that it writes while the child lives.
//!
//! # What the child must not do
//!
//! Threads that are not attached run through a stop, so any of them may hold any lock of the
//! program at the moment of the clone, and in the child nobody releases it. Therefore:
//!
//! * It calls no allocator. Its memory is a [`ChildRoom`], which comes from the system, and a
//!   tracer of [fixed size](crate::object::tracer::Tracer::fixed).
//! * It takes no lock. What a lock protects, and the answers of a model that may take one, are
//!   looked up in the stop, by the thread that clones.
//! * It calls no hook and no subscriber, and a panic ends it at once.
//!
//! * **child**: such a process has one thread, frees nothing that the heap owns, and never leaves
//!   the function that has cloned it.
//!
//! It does call the model's traversals, and functions that describe objects. One that allocates or
//! waits may hang the child, but nothing else: the child is ended after some time, its answer is
//! missing, and the caller does the work in another way.
//!
//! # States
//!
//! | state | next |
//! |---|---|
//! | none | the system refuses the clone, or the child works |
//! | works | has answered; has failed, and said why; was ended, by a signal or for its lateness |
//!
//! The answer is a word in memory that both processes share. The child writes it once, before it
//! ends, and the parent reads it after the end.

use std::cell::Cell;
use std::fmt;
use std::io;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::base::sync::IS_MODEL;
use crate::base::system;
use crate::base::system::process::{self, Bound, ChildEnd, ChildProcess, Cloned};
use crate::heap::model::ObjectModel;
use crate::heap::world::World;

/// Whether this process is such a child. Relaxed: a child has one thread.
static IS_CHILD: AtomicBool = AtomicBool::new(false);

/// Whether this process is a child, where code must not allocate, lock or report.
pub(crate) fn is_child() -> bool {
    IS_CHILD.load(Ordering::Relaxed)
}

/// Extends the life of a text that the heap owns, in a child, where nothing is freed before the
/// end. `None`: this is no child.
#[cfg(feature = "cpython")]
pub(crate) fn kept_in_child(text: &str) -> Option<&'static str> {
    // SAFETY: rule *child*: a child frees nothing, and has no other thread that could.
    is_child().then(|| unsafe { &*std::ptr::from_ref(text) })
}

/// Why a child could not do its work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum JobError {
    /// A call of the system has failed, with this code.
    System(i32),
    /// Its room, or its tracer, is too small.
    Room,
    /// Objects have answered differently when they were asked again.
    Changed,
    /// A traversal has reported more references than exist.
    Overvisited,
    /// It has panicked.
    Panic,
}

impl From<io::Error> for JobError {
    fn from(error: io::Error) -> Self {
        Self::System(error.raw_os_error().unwrap_or(system::NO_MEMORY))
    }
}

/// Why there is no answer of a child.
#[derive(Debug)]
pub(crate) enum NoAnswer {
    /// There can be none, for this reason.
    Impossible(&'static str),
    /// There should be none now, for this reason.
    Unwise(&'static str),
    /// The system has refused memory, or the child.
    Refused(io::Error),
    /// The child has said why.
    Failed(JobError),
    /// It has ended without a word.
    Ended(ChildEnd),
    /// The heap has grown too much to wait for it.
    Outgrown,
    /// Nobody waits for it any more.
    GivenUp,
}

impl NoAnswer {
    /// Whether no later child can be expected, for example where a filter forbids the call.
    pub(crate) fn is_for_ever(&self) -> bool {
        match self {
            Self::Impossible(_) => true,
            Self::Refused(error) => {
                matches!(error.kind(), io::ErrorKind::PermissionDenied | io::ErrorKind::Unsupported)
            }
            Self::Unwise(_) | Self::Failed(_) | Self::Ended(_) | Self::Outgrown | Self::GivenUp => {
                false
            }
        }
    }
}

impl fmt::Display for NoAnswer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Impossible(why) | Self::Unwise(why) => f.write_str(why),
            Self::Refused(error) => write!(f, "the system refuses a child process: {error}"),
            Self::Failed(JobError::System(code)) => {
                write!(f, "the child process failed: {}", io::Error::from_raw_os_error(*code))
            }
            Self::Failed(JobError::Room) => f.write_str("the child process has too little room"),
            Self::Failed(JobError::Changed) => {
                f.write_str("an object has described itself differently the second time")
            }
            Self::Failed(JobError::Overvisited) => {
                f.write_str("a traversal has reported more references than exist")
            }
            Self::Failed(JobError::Panic) => f.write_str("code panicked in the child process"),
            Self::Ended(ChildEnd::Signal(signal)) => {
                write!(f, "signal {signal} has ended the child process")
            }
            Self::Outgrown => {
                f.write_str("the heap has grown too much to wait for the child process")
            }
            Self::GivenUp => f.write_str("the runtime waits for it no longer"),
            Self::Ended(ChildEnd::Late) => f.write_str("the child process took too long"),
            Self::Ended(ChildEnd::Left(_) | ChildEnd::Unknown) => {
                f.write_str("the child process has ended without an answer")
            }
        }
    }
}

/// Memory of the child, which is given out from its start and never comes back. The system gives
/// each page when it is written first, so that it may be larger than needed.
pub(crate) struct ChildRoom {
    start: NonNull<u8>,
    bytes: usize,
    used: Cell<usize>,
}

/// A number.
///
/// # Safety
///
/// All zeroes are a value, and its alignment is at most [`ChildRoom::ALIGN`].
pub(crate) unsafe trait Number: Copy {}
// SAFETY: rule *bounds*: zero is a value.
unsafe impl Number for u8 {}
// SAFETY: rule *bounds*: zero is a value.
unsafe impl Number for u32 {}
// SAFETY: rule *bounds*: zero is a value.
unsafe impl Number for u64 {}

impl ChildRoom {
    const ALIGN: usize = 16;

    /// A room of so many bytes, in the child.
    pub(crate) fn new(bytes: usize) -> Result<Self, JobError> {
        let start = system::reserve(bytes).map_err(|_| JobError::Room)?;
        // SAFETY: rule *mapped*: the whole range, which has just been reserved.
        unsafe { system::commit(start, bytes) }.map_err(|_| JobError::Room)?;
        Ok(Self { start, bytes, used: Cell::new(0) })
    }

    /// A list of zeroes.
    #[allow(clippy::mut_from_ref, reason = "each part is given out once")]
    pub(crate) fn take<T: Number>(&self, len: usize) -> Result<&mut [T], JobError> {
        let used = self.used.get();
        let bytes = len.checked_mul(size_of::<T>()).ok_or(JobError::Room)?;
        let bytes = bytes.checked_next_multiple_of(Self::ALIGN).ok_or(JobError::Room)?;
        if bytes > self.bytes - used {
            return Err(JobError::Room);
        }
        self.used.set(used + bytes);
        // SAFETY: rule *bounds*: a part of the room that nobody else has, which reads as zero, and
        // lives as long as the room.
        Ok(unsafe { std::slice::from_raw_parts_mut(self.start.add(used).cast().as_ptr(), len) })
    }
}

/// Memory that both processes share, all zeroes at first. The system gives each page when it is
/// written first, so that it may be larger than needed.
///
/// Relaxed uses suffice: the child writes, and the parent reads after the child has ended.
#[derive(Debug)]
pub(crate) struct SharedMemory {
    start: NonNull<u8>,
    bytes: usize,
}

impl SharedMemory {
    /// Memory for so many words.
    pub(crate) fn new(words: usize) -> io::Result<Self> {
        let bytes = words * size_of::<AtomicU64>();
        let start = system::share(bytes).map_err(io::Error::from_raw_os_error)?;
        Ok(Self { start, bytes })
    }

    pub(crate) fn words(&self) -> &[AtomicU64] {
        let len = self.bytes / size_of::<AtomicU64>();
        // SAFETY: rule *mapped*: an own mapping, which `drop` releases; zeroes are values.
        unsafe { std::slice::from_raw_parts(self.start.cast().as_ptr(), len) }
    }
}

impl Drop for SharedMemory {
    fn drop(&mut self) {
        // SAFETY: rule *mapped*: the mapping of `new`, whole.
        let released = unsafe { system::release(self.start, self.bytes) };
        debug_assert_eq!(released, Ok(()));
    }
}

// SAFETY: rule *mapped*: the mapping belongs to no thread, and its words are atomic.
unsafe impl Send for SharedMemory {}
// SAFETY: as above.
unsafe impl Sync for SharedMemory {}

// How the child ends. The word has the answer plus 1, or the system's code. No code of the program
// ends a process in these ways by chance.
const DONE: i32 = 101;
const NO_ROOM: i32 = 102;
const CHANGED: i32 = 103;
const PANICKED: i32 = 104;
const NO_SYSTEM: i32 = 105;
const OVERVISITED: i32 = 106;

/// The longest time that a child may take whose work nobody can estimate.
pub(crate) const LIMIT: Duration = Duration::from_secs(600);

/// Ends the child if a panic would leave [`clone_for`].
struct LeaveOnUnwind;

impl Drop for LeaveOnUnwind {
    fn drop(&mut self) {
        process::leave_child(PANICKED);
    }
}

/// A child that works.
#[derive(Debug)]
#[must_use = "the child works for nothing if nobody waits for it"]
pub(crate) struct Working {
    process: ChildProcess,
    answer: SharedMemory,
    limit: Duration,
    begun: Instant,
}

/// Clones the process, and lets the child do `job`, which keeps to the rules at the top of this
/// file, and takes at most `limit`.
///
/// # Errors
///
/// [`NoAnswer::Refused`].
pub(crate) fn clone_for<M: ObjectModel>(
    world: &World<'_, M>,
    (limit, bound): (Duration, Bound),
    job: impl FnOnce(&World<'_, M>) -> Result<u64, JobError>,
) -> Result<Working, NoAnswer> {
    // A panicking thread cannot change the hook.
    if std::thread::panicking() {
        return Err(NoAnswer::Unwise("the thread panics"));
    }
    if !is_possible() {
        return Err(NoAnswer::Refused(io::ErrorKind::Unsupported.into()));
    }
    let answer = SharedMemory::new(1).map_err(NoAnswer::Refused)?;
    let prepare = || {
        IS_CHILD.store(true, Ordering::Relaxed);
        // The hook of the program is code of others. Its lock is held while another thread panics,
        // so this may take for ever.
        std::mem::forget(std::panic::take_hook());
        // A closure without fields takes no memory.
        std::panic::set_hook(Box::new(|_| process::leave_child(PANICKED)));
    };
    // SAFETY: rule *child*: the job waits for nobody, except in code of the program, with which the
    // child may hang until its limit. It never returns from here.
    match unsafe { process::clone_process(limit, bound, prepare) }.map_err(NoAnswer::Refused)? {
        Cloned::Parent(process) => Ok(Working { process, answer, limit, begun: Instant::now() }),
        Cloned::Child => {
            let _never = LeaveOnUnwind;
            let (code, value) = match job(world) {
                Ok(value) => (DONE, value + 1),
                Err(JobError::Room) => (NO_ROOM, 0),
                Err(JobError::Changed) => (CHANGED, 0),
                Err(JobError::Panic) => (PANICKED, 0),
                Err(JobError::Overvisited) => (OVERVISITED, 0),
                Err(JobError::System(code)) => (NO_SYSTEM, u64::from(code.cast_unsigned())),
            };
            answer.words()[0].store(value, Ordering::Relaxed);
            process::leave_child(code)
        }
    }
}

/// Whether there can be children at all.
pub(crate) fn is_possible() -> bool {
    process::IS_POSSIBLE && !IS_MODEL
}

impl Working {
    /// Waits for the answer, or ends the child when it takes too long. The thread is detached
    /// meanwhile.
    pub(crate) fn wait(self) -> Result<u64, NoAnswer> {
        let end = self.process.wait(self.limit);
        answer_of(&self.answer, end)
    }

    /// The answer, if the child has ended, or has taken too long. Then its own alarm would have
    /// ended it, unless it does not run at all.
    pub(crate) fn ended(&mut self) -> Option<Result<u64, NoAnswer>> {
        let is_late = || self.begun.elapsed() > 2 * self.limit;
        let end = self.process.ended();
        let end = end.or_else(|| is_late().then_some(ChildEnd::Late))?;
        Some(answer_of(&self.answer, end))
    }
}

/// What a child that has ended so has answered.
fn answer_of(answer: &SharedMemory, end: ChildEnd) -> Result<u64, NoAnswer> {
    let value = answer.words()[0].load(Ordering::Relaxed);
    let failed = match end {
        ChildEnd::Left(DONE) if value > 0 => return Ok(value - 1),
        ChildEnd::Left(NO_ROOM) => JobError::Room,
        ChildEnd::Left(CHANGED) => JobError::Changed,
        ChildEnd::Left(PANICKED) => JobError::Panic,
        ChildEnd::Left(OVERVISITED) => JobError::Overvisited,
        ChildEnd::Left(NO_SYSTEM) => JobError::System((value as u32).cast_signed()),
        end => return Err(NoAnswer::Ended(end)),
    };
    Err(NoAnswer::Failed(failed))
}
