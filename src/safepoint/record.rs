//! The words of one participant.

#![forbid(unsafe_code)]

use std::time::Instant;

use crossbeam_utils::CachePadded;

use super::report::ThreadInfo;
use super::thread_id::ThreadId;
use crate::base::event;
use crate::base::sync::{AtomicU32, Ordering};

/// The coordinator's bit in a poll word: a stop waits for this thread. The others are the user's.
pub const STOP: u32 = 1;

/// Not working on what the stop protects. A stop does not wait for it.
pub(super) const DETACHED: u32 = 0;
/// At work, or about to look whether it may. A stop waits for it.
pub(super) const ATTACHED: u32 = 1;
/// Detached, and somebody acts for it. A stop waits until that is over; so does an attach.
pub(super) const SUSPENDED: u32 = 2;
/// Suspended, and somebody sleeps at the gate until that is over.
pub(super) const AWAITED: u32 = 3;
/// The participant is gone.
pub(super) const ENDED: u32 = 4;

/// What the registry knows of a participant for as long as anybody holds on to it.
pub(super) struct Record<T> {
    pub(super) word: CachePadded<Word>,
    pub(super) id: ThreadId,
    /// The OS thread, by which a fork's child knows which participants it still has.
    pub(super) thread: std::thread::ThreadId,
    /// What the system calls it, see [`ThreadInfo::os_thread`]; 0: unknown. Relaxed: a number for reports.
    /// std's atomic, as for `LAST_ID`. Written by its thread: when it registers, and in a fork's child.
    pub(super) os_thread: std::sync::atomic::AtomicU64,
    pub(super) name: Option<String>,
    pub(super) registered: Instant,
    pub(super) data: T,
}

/// The two words that are looked at without a lock, on a cache line of their own: their thread
/// writes them all the time, others hardly ever.
pub(super) struct Word {
    pub(super) requests: AtomicU32,
    pub(super) state: AtomicU32,
}

impl<T> Record<T> {
    pub(super) fn state(&self) -> u32 {
        // `SeqCst`: the requester's half of the store-load race. Acquires the thread's writes.
        self.word.state.load(Ordering::SeqCst)
    }

    /// `SeqCst`: the thread's half of the store-load race; releases what it wrote so far. On
    /// failure nothing is known, and nothing is read.
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

    /// Whether this thread is attached. For the record's own thread only: nobody else takes a record
    /// to `ATTACHED` or away from it, so the order does not matter.
    pub(super) fn is_mine_attached(&self) -> bool {
        self.word.state.load(Ordering::Relaxed) == ATTACHED
    }
}

/// Sets the user's bits in a poll word. SeqCst: release for the taker, and before whatever the caller loads
/// of the thread's state next; see [`Participant::detach_and_poll`].
pub(super) fn raise<T>(record: &Record<T>, bits: u32) {
    record.word.requests.fetch_or(bits & !STOP, Ordering::SeqCst);
}

/// A participant is in a state that its own thread cannot find it in: whoever put it there had no right to. Its thread cannot be
/// attached again, so it ends here, and the process with it.
#[cold]
pub(super) fn unreachable_state(id: ThreadId, state: u32) -> ! {
    match state {
        ENDED => event::abort(format_args!(
            "standstill: participant {id} was taken for lost in a fork, in a process that has not lost it"
        )),
        _ => event::abort(format_args!("standstill: participant {id} is used by two threads")),
    }
}

impl ThreadInfo {
    pub(super) fn of<T>(record: &Record<T>) -> Self {
        let os_thread = record.os_thread();
        Self {
            id: record.id,
            name: record.name.clone(),
            os_thread: (os_thread != 0).then_some(os_thread),
            registered_for: record.registered.elapsed(),
        }
    }
}
