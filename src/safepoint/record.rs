//! A requester must know the state of each thread without asking it, because a detached thread
//! answers nothing. So each participant has a record that other threads may read, and an id.

#![forbid(unsafe_code)]

use std::fmt;
use std::num::NonZeroU64;
use std::time::Instant;

use crossbeam_utils::CachePadded;

use super::slow_stop::{NamedThread, ThreadInfo};
use crate::base::fallible::{self, NoMemory};
use crate::base::outside;
use crate::base::sync::{AtomicU32, Mutex, Ordering};

/// The id of a participant, which is unique in the process, never reused, and below 2^40 - 2.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ThreadId(pub(super) NonZeroU64);

/// The last id that was given out. It is a static, because ids must differ between coordinators,
/// since the `current` word does not name its coordinator. It is std's atomic also under loom,
/// whose atomics cannot be static. Relaxed, because the numbers only have to differ.
static LAST_ID: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);

impl ThreadId {
    /// The largest id: 2^40 - 3.
    pub const MAX: u64 = (1 << 40) - 3;

    /// The number; never 0.
    #[inline]
    pub fn get(self) -> u64 {
        self.0.get()
    }

    /// `None`: no id has this number.
    pub(crate) fn from_raw(id: u64) -> Option<Self> {
        if id > Self::MAX { None } else { NonZeroU64::new(id).map(Self) }
    }

    /// Whether an id with this number was given out.
    pub(crate) fn was_given(id: u64) -> bool {
        id != 0 && id <= LAST_ID.load(std::sync::atomic::Ordering::Relaxed)
    }

    /// `None`: the process has used up its ids.
    pub(super) fn next() -> Option<Self> {
        Self::from_raw(LAST_ID.fetch_add(1, std::sync::atomic::Ordering::Relaxed) + 1)
    }
}

impl fmt::Display for ThreadId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "#{}", self.0)
    }
}

/// The coordinator's bit in a poll word, which says that a stop waits for this thread. The other
/// bits are the user's.
pub const STOP: u32 = 1;

/// The thread does not use the data that a stop protects, so that a stop does not wait for it.
pub(super) const DETACHED: u32 = 0;
/// The thread uses the data, or is about to check whether it may, so that a stop waits for it.
pub(super) const ATTACHED: u32 = 1;
/// Detached, while another thread acts on its behalf. A stop and an attach wait for the end of the
/// suspension, because the other thread may use the data until then.
pub(super) const SUSPENDED: u32 = 2;
/// Suspended, and a thread sleeps at the gate until the end of the suspension, so that the
/// suspender must open the gate.
pub(super) const AWAITED: u32 = 3;
/// The participant was dropped.
pub(super) const ENDED: u32 = 4;

/// The data of a participant that is shared with other threads.
pub(super) struct Record<T> {
    pub(super) word: CachePadded<Word>,
    pub(super) id: ThreadId,
    /// The thread, for its name. `None`: it was ending when it registered.
    pub(super) thread: Option<std::thread::Thread>,
    /// The number of the thread, by which a fork's child tells its own participants from lost ones.
    pub(super) thread_number: u64,
    /// See [`ThreadInfo::os_thread`]; 0: unknown. Its thread writes it, when it registers and in a
    /// fork's child. Relaxed, and std's atomic as `LAST_ID` is, because it is read under the
    /// registry lock, which is released after both writes.
    pub(super) os_thread: std::sync::atomic::AtomicU64,
    pub(super) registered: Instant,
    /// What the thread has last marked, or empty. Its thread writes it, and reports read it, under
    /// the registry lock.
    pub(super) mark: Mutex<&'static str>,
    pub(super) data: T,
}

/// The two words that are read without a lock. They have their own cache line, because their thread
/// writes them often, and other threads rarely.
pub(super) struct Word {
    pub(super) requests: AtomicU32,
    pub(super) state: AtomicU32,
}

impl<T> Record<T> {
    pub(super) fn name(&self) -> Option<String> {
        self.thread.as_ref()?.name().map(str::to_owned)
    }

    pub(super) fn state(&self) -> u32 {
        // `SeqCst`: the requester's half of the store-load race, which acquires the thread's
        // writes.
        self.word.state.load(Ordering::SeqCst)
    }

    /// `SeqCst`: the thread's half of the store-load race, and a release of the thread's writes. A
    /// failed exchange orders nothing, because the caller reads no data after it.
    pub(super) fn step(&self, from: u32, to: u32) -> Result<u32, u32> {
        self.word.state.compare_exchange(from, to, Ordering::SeqCst, Ordering::Relaxed)
    }

    pub(super) fn os_thread(&self) -> u64 {
        self.os_thread.load(std::sync::atomic::Ordering::Relaxed)
    }

    pub(super) fn set_state(&self, to: u32) -> u32 {
        // As in `step`.
        self.word.state.swap(to, Ordering::SeqCst)
    }

    /// Whether the record's own thread is attached. The order does not matter, because only that
    /// thread calls this function and changes to or from `ATTACHED`.
    pub(super) fn is_mine_attached(&self) -> bool {
        self.word.state.load(Ordering::Relaxed) == ATTACHED
    }
}

/// Sets the user's bits in a poll word. SeqCst: a release for the thread that takes them, and
/// ordered before the caller's next load of the thread's state. See
/// [`Participant`](super::Participant)'s `detach_and_poll`.
pub(super) fn raise<T>(record: &Record<T>, bits: u32) {
    record.word.requests.fetch_or(bits & !STOP, Ordering::SeqCst);
}

/// Aborts the process, because a participant is in a state that its own thread cannot find, so that
/// the thread cannot attach again.
#[cold]
pub(super) fn unreachable_state(id: ThreadId, state: u32) -> ! {
    match state {
        ENDED => outside::abort(format_args!(
            "standstill: participant {id} was taken for lost in a fork, in a process that has \
             not lost it"
        )),
        _ => outside::abort(format_args!("standstill: participant {id} is used by two threads")),
    }
}

impl ThreadInfo {
    pub(super) fn of<T>(record: &Record<T>) -> Self {
        Self::try_of(record).unwrap_or_else(NoMemory::abort_process)
    }

    pub(super) fn try_of<T>(record: &Record<T>) -> Result<Self, NoMemory> {
        let NamedThread { id, name, os_thread, mark } = NamedThread::of(record);
        let name = name.map(fallible::owned).transpose()?;
        Ok(Self { id, name, os_thread, registered_for: record.registered.elapsed(), mark })
    }
}

impl<'a> NamedThread<'a> {
    pub(super) fn of<T>(record: &'a Record<T>) -> Self {
        let (os_thread, mark) = (record.os_thread(), *record.mark.lock());
        Self {
            id: record.id,
            name: record.thread.as_ref().and_then(|thread| thread.name()),
            os_thread: (os_thread != 0).then_some(os_thread),
            mark: (!mark.is_empty()).then_some(mark),
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
