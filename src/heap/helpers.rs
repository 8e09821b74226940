//! One job, which parked threads join.
//!
//! The thread that has stopped the world runs the phases of a collection as *jobs*, one after the
//! other ([`JobSlot::run_on`]). A job is a closure that several threads can call at once, although
//! the caller alone can do all of its work. Threads of the heap's pool join a job
//! ([`JobSlot::join`]), although they must be woken for it. So do mutators that are parked for this
//! stop ([`Helper::wait`]), because they are already running, on processors that have no other
//! work.
//!
//! For example, thread 1 opens a job while thread 2, parked, spins for one. Thread 2 joins, so
//! `running` is 1. Thread 1 finds no work left, closes the job, and waits until thread 2 has
//! returned, since the closure is thread 1's. Thread 3, which parks now, finds no job.
//!
//! # States
//!
//! | state | `job` | `running` | next |
//! |---|---|---|---|
//! | no job | none | 0 | *open*, by `run_on` |
//! | open | some | threads inside | *open*, by `join`; *closing*, by `run_on`, after its call |
//! | closing | none | threads inside | *no job*, when the last thread inside returns |
//!
//! One lock protects this, which each thread takes twice per job, while `open` and `helpers` are
//! hints beside it. Threads of the pool may take the lock at any time, also during a fork, so the
//! fork holds it, and it survives the fork.
//!
//! # Invariants
//!
//! * A closure is called only during the `run_on` that published it, since `run_on` returns when
//!   the job is closed and `running` is 0. A thread increments `running` under the lock while the
//!   job is open.
//! * Indices are unique within a job and below `limit`, and index 0 is the caller's.
//! * A job takes no more threads once a call of it has returned, as that call found no work left.
//! * A thread that comes late joins the job that is open then, or none.
//!
//! # A parked thread comes back
//!
//! A helper delays no other thread, because it checks only a bounded number of times between two
//! jobs whether its stop is still on. Then it sleeps at the gate like other parked threads. If it
//! still spins when the stop ends, it continues by itself, while a sleeping thread must be woken,
//! which takes the system about 50 µs.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use crossbeam_utils::CachePadded;

use crate::base::outside;
use crate::base::sync::{AtomicBool, AtomicUsize, Ordering, spin_loop};
use crate::safepoint::lock::{ForkCondvar, ForkHold, ForkMutex, Guard};

/// A job, of which any call can do all of the work.
pub(crate) type Job<'a> = dyn Fn(Worker) + Sync + 'a;

/// A thread that works on a job.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Worker {
    /// The number within the job, which is 0 for the thread that runs the job.
    pub(crate) index: usize,
    /// The arena of a mutator, or 0 for none.
    pub(crate) arena: u32,
}

/// How often a thread checks for a job, or for its end, before it sleeps, which takes about 50 µs.
const SPIN_LIMIT: usize = if cfg!(any(all(test, loom), standstill_loom)) {
    // In loom, all other threads run before each check.
    0
} else if cfg!(any(all(test, shuttle), standstill_shuttle)) {
    2
} else {
    2000
};

/// The place of the open job, and of the threads that are inside.
pub(crate) struct JobSlot {
    state: ForkMutex<JobState>,
    /// `running` is 0.
    finished: ForkCondvar,
    /// There is a job that takes more threads. A hint, for threads that spin.
    open: CachePadded<AtomicBool>,
    /// Parked threads that wait for a job, or are about to. A hint.
    helpers: AtomicUsize,
}

#[derive(Default)]
pub(crate) struct JobState {
    job: Option<OpenJob>,
    running: usize,
    panic: Option<Box<dyn Any + Send>>,
}

/// A job that threads can join.
struct OpenJob {
    /// The caller's closure, with its lifetime erased, as the safety comments at its uses explain.
    job: *const Job<'static>,
    next: usize,
    limit: usize,
}

// SAFETY: rule *pinned*: the job is `Sync`, and is called only during the `run_on` that borrows it.
unsafe impl Send for OpenJob {}

impl JobSlot {
    pub(crate) fn new() -> Self {
        Self {
            state: ForkMutex::new(JobState::default()),
            finished: ForkCondvar::new(),
            open: CachePadded::new(AtomicBool::new(false)),
            helpers: AtomicUsize::new(0),
        }
    }

    /// Calls the job on this thread, as that of `arena`, and on up to `n - 1` other threads that
    /// join in time. `invite` is called when they can join. Returns when all calls that began have
    /// returned, and passes a panic on.
    ///
    /// There is one job at a time, because the caller has stopped the world.
    pub(crate) fn run_on(&self, n: usize, arena: u32, job: &Job<'_>, invite: impl FnOnce()) {
        // SAFETY: rule *pinned*: only the lifetime changes; `join` calls it only while this frame
        // waits.
        let erased = unsafe { std::mem::transmute::<*const Job<'_>, *const Job<'static>>(job) };
        {
            let mut state = self.state.lock();
            debug_assert!(state.job.is_none() && state.running == 0, "one job at a time");
            state.job = Some(OpenJob { job: erased, next: 1, limit: n });
            // Relaxed: a hint, while the lock carries the job.
            self.open.store(n > 1, Ordering::Relaxed);
        }
        // Another thread may be in the job when `invite` panics.
        let mine = catch_unwind(AssertUnwindSafe(|| {
            invite();
            job(Worker { index: 0, arena });
        }));
        let theirs = self.close();
        match (mine, theirs) {
            (Ok(()), None) => {}
            (Ok(()), Some(payload)) => resume_unwind(payload),
            (Err(payload), theirs) => {
                // One panic is passed on. The other payload may panic when it is dropped.
                theirs.map(outside::panic_message);
                resume_unwind(payload);
            }
        }
    }

    /// Closes the job, and returns when no thread is inside, with the panic of one of the threads.
    fn close(&self) -> Option<Box<dyn Any + Send>> {
        let mut state = self.state.lock();
        state.job = None;
        self.open.store(false, Ordering::Relaxed);
        // The threads inside nearly always finish before this thread could be woken.
        for _ in 0..SPIN_LIMIT {
            if state.running == 0 {
                break;
            }
            drop(state);
            spin_loop();
            state = self.state.lock();
        }
        while state.running > 0 {
            state = self.finished.wait(state);
        }
        state.panic.take()
    }

    /// Joins the open job, as the thread of `arena`. `false` if no job is open, or the job takes no
    /// more threads.
    pub(crate) fn join(&self, arena: u32) -> bool {
        let (job, index) = {
            let state = &mut *self.state.lock();
            let Some(open) = state.job.as_mut().filter(|open| open.next < open.limit) else {
                return false;
            };
            open.next += 1;
            if open.next == open.limit {
                self.open.store(false, Ordering::Relaxed);
            }
            state.running += 1;
            (open.job, open.next - 1)
        };
        // SAFETY: rule *pinned*: the caller of `run_on` owns the closure. `running` was raised
        // while the job was open, so `run_on` returns only after it is lowered below.
        let job = unsafe { &*job };
        let result = catch_unwind(AssertUnwindSafe(|| job(Worker { index, arena })));
        let mut state = self.state.lock();
        state.running -= 1;
        if let Some(open) = &mut state.job {
            // It is the same job, which closes because a call that has returned found no work left.
            open.limit = open.next;
            self.open.store(false, Ordering::Relaxed);
        }
        let mut spare = result.err();
        if state.panic.is_none() {
            state.panic = spare.take();
        }
        if state.running == 0 {
            self.finished.notify_all();
        }
        drop(state);
        if let Some(payload) = spare {
            drop(outside::panic_message(payload));
        }
        true
    }

    /// Announces the thread of `arena`, which is about to park, as a helper.
    pub(crate) fn helper(&self, arena: u32) -> Helper<'_> {
        // Relaxed: an estimate.
        self.helpers.fetch_add(1, Ordering::Relaxed);
        Helper { slot: self, arena }
    }

    /// Takes the lock for a fork, when no job is open.
    pub(crate) fn lock_for_fork(&self) -> (ForkHold<'_>, Guard<'_, JobState>) {
        self.state.lock_for_fork()
    }

    /// In the child of a fork, where the parked threads do not exist.
    pub(crate) fn forget_helpers(&self) {
        self.helpers.store(0, Ordering::Relaxed);
    }

    /// An estimate of the parked threads that would join a job at once.
    pub(crate) fn helpers(&self) -> usize {
        self.helpers.load(Ordering::Relaxed)
    }
}

/// A parked thread that joins jobs.
pub(crate) struct Helper<'a> {
    slot: &'a JobSlot,
    arena: u32,
}

impl Helper<'_> {
    /// Joins jobs while the stop is on. Returns also when no job has come for a while.
    pub(crate) fn wait(self, is_on: impl Fn() -> bool) {
        let mut spins = 0;
        while spins < SPIN_LIMIT && is_on() {
            if self.slot.open.load(Ordering::Relaxed) && self.slot.join(self.arena) {
                spins = 0;
            } else {
                spins += 1;
                spin_loop();
            }
        }
    }
}

impl Drop for Helper<'_> {
    fn drop(&mut self) {
        self.slot.helpers.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
