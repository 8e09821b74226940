//! The wait of a thread for a cell that another thread has locked.

#![forbid(unsafe_code)]

use std::time::{Duration, Instant};

use crate::base::sync::{spin_loop, yield_now};
use crate::heap::model::ObjectModel;
use crate::heap::mutator::{Core, ModelMutator};
use crate::heap::slow::{CellWait, SlowLock};
use crate::safepoint::ThreadId;

/// The number of attempts after which a wait is long. Then other threads can read the wait, and the
/// thread reads the clock. This takes some ten microseconds if each attempt finds the processor
/// free.
const SPIN_LIMIT: u32 = 4096;
/// The most waits that a report names.
const MAX_NAMED_WAITS: usize = 8;

/// The wait of a thread between its attempts to lock a cell. The thread spins, then yields. When
/// the wait has taken as long as a slow stop, the thread reports it once. From then on it sleeps
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
        if cfg!(not(all(test, any(loom, shuttle)))) {
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
