//! Reports of slow waits.
//!
//! A thread may wait long for a stop, for the end of a stop, to collect, or for the lock of a cell.
//! It reports that, because the program cannot see which thread is to blame. The coordinator
//! decides when a stop is slow, and [`Patience`](super::slow::Patience) decides when a lock is. A
//! report gives `tracing` an event, and then calls the heap's hook. If there is no hook, and no
//! subscriber takes the event, one line goes to standard error.
//!
//! For example, thread 1 has locked cell A and waits for B, while thread 2 has locked B and waits
//! for A. When thread 1 has waited as long as a slow stop, it reads that B is locked by thread 2,
//! which waits for A, whose holder is thread 1. A thread that waits for a cell keeps the cells that
//! it has locked. So a chain of waits that contains a cycle does not change any more, and is
//! reported as a deadlock.
//!
//! # Access
//!
//! * Any thread sets a hook under the hook's lock. A report clones it and calls it without the
//!   lock, because the hook is user code.
//! * A thread writes its [`Waits`] while it waits for a cell, and any thread reads them for a
//!   report. They are relaxed, because they are figures for a report.
//!
//! A hook may lock a cell, even the cell of its report. So a slow wait inside a report goes only to
//! standard error, and calls no hook and no subscriber, as reports could otherwise nest for ever.

#![forbid(unsafe_code)]

use std::cell::Cell;
use std::fmt;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::base::outside::{self, Hook};
use crate::base::settings_lock::Setting;
use crate::base::sync::{IS_MODEL, const_thread_local, spin_loop, yield_now};
use crate::heap::core::Core;
use crate::heap::model::ObjectModel;
use crate::heap::mutator::ModelMutator;
use crate::report::facts::{LongestCall, SlowWait};
use crate::report::log::SlowLine;
use crate::report::{event, log};
use crate::safepoint::{SlowStop, SlowStopKind, StopPurpose, ThreadId, ThreadInfo};

const_thread_local! {
    /// Whether this thread is reporting a slow lock, and may be in a hook.
    static REPORTING: Cell<bool> = Cell::new(false)
}

type Report<R> = Hook<dyn Fn(&R) + Send + Sync>;

#[derive(Default)]
pub(crate) struct SlowHooks {
    stop: Setting<Option<Report<SlowStop>>>,
    lock: Setting<Option<Report<SlowLock>>>,
}

impl fmt::Debug for SlowHooks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SlowHooks").finish_non_exhaustive()
    }
}

fn set<R>(place: &Setting<Option<Report<R>>>, hook: Report<R>) {
    let old = place.with(|place| place.replace(hook));
    // Without the lock, because the hook has captured data of the user.
    drop(old);
}

fn tell<R: fmt::Display>(
    place: &Setting<Option<Report<R>>>,
    heap: &str,
    line: &SlowLine<'_>,
    report: &R,
) {
    log::slow(heap, line, report);
    let hook = place.with(|place| place.clone());
    match hook {
        // The result is ignored, so that a panic of the hook is not repeated.
        Some(hook) => drop(hook.call(|hook| hook(report))),
        None if event::is_warning_enabled() => {}
        None => outside::line(format_args!("standstill: heap '{heap}': {report}")),
    }
}

impl SlowHooks {
    pub(crate) fn on_slow_stop(&self, hook: Report<SlowStop>) {
        set(&self.stop, hook);
    }

    pub(crate) fn on_slow_lock(&self, hook: Report<SlowLock>) {
        set(&self.lock, hook);
    }

    /// Reports a stop that is slow, that has failed because of a leaked mutator, or that does not
    /// end. The caller holds no lock. Never unwinds.
    pub(crate) fn stop(&self, heap: &str, report: &SlowStop) {
        let waiter = report.waiter.as_ref().map(ThreadInfo::to_string);
        let (waiter, purpose) = (waiter.as_deref(), report.purpose.map(StopPurpose::text));
        let kind = match report.kind {
            SlowStopKind::Failed => "leaked mutator",
            SlowStopKind::Waiting => "slow stop",
            SlowStopKind::Collecting => "long collection",
            SlowStopKind::HeldUp => "held up",
            SlowStopKind::LatePoll => "late poll",
            SlowStopKind::Held | SlowStopKind::Suspended => "long stop",
        };
        for straggler in &report.stragglers {
            let thread = &straggler.thread;
            let wait = SlowWait {
                heap,
                waited: report.waited,
                thread: thread.name.as_deref().unwrap_or("unnamed"),
                os_thread: thread.os_thread,
                registered_for: thread.registered_for,
                waiter,
                purpose,
            };
            match report.kind {
                SlowStopKind::Failed => event::leaked_mutator(
                    heap,
                    wait.thread,
                    thread.os_thread,
                    thread.registered_for,
                ),
                SlowStopKind::Waiting | SlowStopKind::Collecting => {
                    event::slow_wait(kind, &wait, None);
                }
                SlowStopKind::HeldUp => event::held_up(
                    heap,
                    report.waited,
                    wait.thread,
                    thread.os_thread,
                    report.longest.as_ref(),
                ),
                SlowStopKind::LatePoll => event::late_poll(&wait, thread.mark),
                SlowStopKind::Held | SlowStopKind::Suspended => {
                    event::slow_wait(kind, &wait, Some(straggler.is_suspended));
                }
            }
        }
        let thread = report.stragglers.first().map(|straggler| &straggler.thread);
        let line = SlowLine {
            kind,
            waited: report.waited,
            thread: thread.and_then(|thread| thread.name.as_deref()),
            os_thread: thread.and_then(|thread| thread.os_thread),
            purpose,
            slowest: report.longest.as_slice(),
        };
        tell(&self.stop, heap, &line, report);
    }

    /// Reports a wait for a cell. Never unwinds.
    pub(super) fn lock(&self, heap: &str, report: &SlowLock) {
        if REPORTING.with(|reporting| reporting.replace(true)) {
            return outside::line(format_args!(
                "standstill: heap '{heap}': in a report of a slow lock: {report}"
            ));
        }
        self.lock_outermost(heap, report);
        REPORTING.with(|reporting| reporting.set(false));
    }

    fn lock_outermost(&self, heap: &str, report: &SlowLock) {
        let name = |thread: Option<&ThreadInfo>| {
            thread.map_or_else(|| "unknown".to_owned(), ThreadInfo::to_string)
        };
        let first = report.waits.first();
        let holder = first.and_then(|wait| wait.holder.as_ref());
        event::slow_lock(
            heap,
            report.waited,
            &name(first.map(|wait| &wait.waiter)),
            &name(holder),
            report.type_name,
            report.is_deadlock,
        );
        let line = SlowLine {
            kind: "slow lock",
            waited: report.waited,
            thread: holder.and_then(|thread| thread.name.as_deref()),
            os_thread: holder.and_then(|thread| thread.os_thread),
            purpose: None,
            slowest: &[],
        };
        tell(&self.lock, heap, &line, report);
    }
}

/// The causes that have held up a thread since it last began to collect.
#[derive(Default)]
pub(crate) struct HeldUp {
    longest: Cell<Option<LongestCall>>,
    /// The sum of the waits for stops.
    waited: Cell<Duration>,
}

impl HeldUp {
    pub(crate) fn restart(&self) {
        drop(self.take_longest());
        self.waited.set(Duration::ZERO);
    }

    /// Calls `wait`, in which the thread waits for a stop, and notes how long.
    pub(crate) fn waiting<R>(&self, wait: impl FnOnce() -> R) -> R {
        let begun = Instant::now();
        let result = wait();
        self.note_wait(begun.elapsed());
        result
    }

    pub(crate) fn note_wait(&self, waited: Duration) {
        self.waited.set(self.waited.get() + waited);
    }

    pub(crate) fn waited(&self) -> Duration {
        self.waited.get()
    }

    /// Notes calls of the program's code, unless earlier ones took as long.
    #[cold]
    #[inline(never)]
    pub(crate) fn note_call(&self, call: LongestCall) {
        let before = self.take_longest();
        let longest = before.filter(|before| before.took >= call.took).unwrap_or(call);
        self.longest.set(Some(longest));
    }

    pub(crate) fn take_longest(&self) -> Option<LongestCall> {
        self.longest.take()
    }
}

/// A thread has waited long for a [`GcCell`](crate::GcCell), and reports it to the hook of
/// [`Heap::on_slow_lock`](crate::Heap::on_slow_lock).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct SlowLock {
    /// How long the thread has waited.
    pub waited: Duration,
    /// The type of the value in the cell.
    pub type_name: &'static str,
    /// First the wait of this thread. Then, as long as the holder of a cell waits for a cell
    /// itself, the wait of that holder.
    pub waits: Vec<CellWait>,
    /// Whether the holder of the last cell is one of the waiting threads, so that none of them goes
    /// on. Each thread recorded the holder that it last read.
    pub is_deadlock: bool,
}

/// A thread that waits for a cell, as a part of a [`SlowLock`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct CellWait {
    /// The address of the cell.
    pub cell: usize,
    /// The thread that waits.
    pub waiter: ThreadInfo,
    /// The thread that has locked the cell, or `None` if no mutator of this heap has. Then either
    /// threads read the cell, or a guard was leaked and its thread has left the heap, or a mutator
    /// or collector of another heap has locked a cell that lies in no object.
    pub holder: Option<ThreadInfo>,
}

impl fmt::Display for SlowLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, wait) in self.waits.iter().enumerate() {
            if at == 0 {
                write!(
                    f,
                    "{} has waited {:.1?} for a GcCell<{}>",
                    wait.waiter, self.waited, self.type_name
                )?;
            } else {
                f.write_str(", which waits for a GcCell")?;
            }
            match &wait.holder {
                Some(holder) => write!(f, " at {:#x} that is locked by {holder}", wait.cell)?,
                None => {
                    write!(f, " at {:#x} that no thread of this heap has locked alone", wait.cell)?
                }
            }
        }
        f.write_str(if self.is_deadlock { ": a deadlock" } else { "" })
    }
}

/// The wait of a thread for a cell, which other threads can read.
#[derive(Debug, Default)]
pub(crate) struct Waits {
    /// The address of the cell, or 0 if the thread waits for none, or has not waited long.
    cell: AtomicUsize,
    /// The mutator that has locked the cell, as the waiting thread last read it.
    holder: AtomicU64,
}

impl Waits {
    pub(super) fn set(&self, cell: usize, holder: u64) {
        self.holder.store(holder, Ordering::Relaxed);
        self.cell.store(cell, Ordering::Relaxed);
    }

    pub(super) fn get(&self) -> Option<(usize, u64)> {
        let cell = self.cell.load(Ordering::Relaxed);
        (cell != 0).then(|| (cell, self.holder.load(Ordering::Relaxed)))
    }
}

/// The number of attempts after which a wait is long, so that other threads can read the wait, and
/// the thread reads the clock. This takes some ten microseconds if each attempt finds the processor
/// free.
const SPIN_LIMIT: u32 = 4096;
/// The most waits that a report names.
const MAX_NAMED_WAITS: usize = 8;

/// The wait of a thread between its attempts to lock a cell. The thread spins, then yields, and
/// when the wait has taken as long as a slow stop, it reports it once. From then on it sleeps
/// between the attempts.
pub(crate) struct Patience<'a, M: ObjectModel> {
    m: &'a ModelMutator<M>,
    cell: usize,
    type_name: &'static str,
    spins: u32,
    /// When the wait became long.
    since: Option<Instant>,
    is_reported: bool,
}

impl<'a, M: ObjectModel> Patience<'a, M> {
    pub(crate) fn new(m: &'a ModelMutator<M>, cell: usize, type_name: &'static str) -> Self {
        Self { m, cell, type_name, spins: 0, since: None, is_reported: false }
    }

    /// Waits a little. The caller has just found the cell locked by `holder`.
    pub(crate) fn wait(&mut self, holder: u64) {
        if self.spins < SPIN_LIMIT {
            self.spins += 1;
            return if self.spins.is_multiple_of(64) { yield_now() } else { spin_loop() };
        }
        // Models have no clock.
        if !IS_MODEL {
            self.wait_long(holder);
        }
        yield_now();
    }

    #[cold]
    fn wait_long(&mut self, holder: u64) {
        let since = *self.since.get_or_insert_with(Instant::now);
        self.m.waits().set(self.cell, holder);
        if self.is_reported {
            std::thread::sleep(Duration::from_millis(1));
            return;
        }
        let waited = since.elapsed();
        let core = self.m.core();
        if waited >= core.coordinator.slow_stop() {
            self.is_reported = true;
            // The hook is user code.
            let _lent = self.m.lend();
            core.slow.lock(&core.name, &self.report(core, waited, holder));
        }
    }

    fn report(&self, core: &Core<M>, waited: Duration, holder: u64) -> SlowLock {
        let thread = |id: u64| ThreadId::from_raw(id).and_then(|id| core.coordinator.thread(id));
        let mut report =
            SlowLock { waited, type_name: self.type_name, waits: Vec::new(), is_deadlock: false };
        let mut next = Some((self.m.id(), self.cell, holder));
        while let Some((waiter, cell, holder)) =
            next.take().filter(|_| report.waits.len() < MAX_NAMED_WAITS)
        {
            let Some(waiter) = thread(waiter) else { break };
            report.waits.push(CellWait { cell, waiter, holder: thread(holder) });
            let Some(id) = ThreadId::from_raw(holder) else { break };
            report.is_deadlock = report.waits.iter().any(|wait| wait.waiter.id == id);
            if !report.is_deadlock {
                let its = core.coordinator.with_data(id, |shared| shared.waits.get()).flatten();
                next = its.map(|(cell, its_holder)| (holder, cell, its_holder));
            }
        }
        report
    }
}

impl<M: ObjectModel> Drop for Patience<'_, M> {
    fn drop(&mut self) {
        if self.since.is_some() {
            self.m.waits().set(0, 0);
        }
    }
}
