//! The state of the gc module of one heap.
//!
//! All of it is empty until a program uses it. So a heap whose program does not use the services
//! pays only for the check of a few empty lists in each collection.

#![forbid(unsafe_code)]

use std::any::Any;
use std::sync::Arc;

use crate::base::fallible::{self, NoMemory};
use crate::base::sync::{AtomicBool, Ordering};
use crate::gc_module::collecting::Switch;
use crate::gc_module::garbage::GarbageList;
use crate::gc_module::records::Records;
use crate::gc_module::thresholds::{self, MemoryCondition};
use crate::gc_module::watching::{
    Audit, CallbackInfo, CallbackPhase, Callbacks, DEBUG_COLLECTABLE, DEBUG_SAVEALL, DEBUG_STATS,
    DEBUG_UNCOLLECTABLE, DebugLines,
};
use crate::heap::observer::{Fate, Figures, Observer, ObserverAndRule, PacingRule, Ruling};
use crate::managed::ManagedCore;
use crate::object::counted::CountedRef;
use crate::report::facts::CollectionReport;
use crate::report::hooks::Hooks;
use crate::safepoint::ThreadId;

/// The parts of the state, one for each service.
#[derive(Debug, Default)]
pub(super) struct GcState {
    pub(super) callbacks: Callbacks,
    pub(super) debug: DebugLines,
    pub(super) audit: Audit,
    pub(super) records: Records,
    pub(super) garbage: GarbageList,
    pub(super) memory: MemoryCondition,
    pub(super) switch: Switch,
    /// [`Heap::services`](crate::Heap::services) has been called.
    used: AtomicBool,
    /// The end of the heap does not report the remaining objects.
    leaks_ignored: AtomicBool,
}

/// Makes the state of a new heap. It is the observer and the pacing rule of the heap.
pub(crate) fn new_state() -> Result<ObserverAndRule, NoMemory> {
    let state = fallible::arc(GcState::default())?;
    Ok((Arc::clone(&state) as _, state))
}

impl GcState {
    /// The state of the heap of this core.
    ///
    /// # Panics
    ///
    /// When the heap has another observer. Heaps of [`Heap::builder`](crate::Heap::builder) have
    /// this one.
    pub(super) fn of(core: &ManagedCore) -> &Self {
        let observer = core.observer.as_ref().map(|observer| observer.as_any());
        observer
            .and_then(|any| any.downcast_ref())
            .expect("the observer of a heap is its gc module")
    }

    /// Records that the services are in use.
    pub(super) fn use_them(&self) {
        self.used.store(true, Ordering::Relaxed);
    }

    /// Whether the end of the heap reports the remaining objects.
    pub(super) fn reports_leaks(&self) -> bool {
        self.used.load(Ordering::Relaxed) && !self.leaks_ignored.load(Ordering::Relaxed)
    }

    pub(super) fn report_leaks(&self, on: bool) {
        self.leaks_ignored.store(!on, Ordering::Relaxed);
    }
}

impl Observer for GcState {
    fn forget_thread(&self, id: ThreadId) -> usize {
        self.switch.forget_thread(id)
    }

    fn begins(&self, hooks: &Hooks, generation: usize, quiet: bool) {
        if !quiet {
            self.callbacks.call(
                hooks,
                CallbackPhase::Start,
                &CallbackInfo { generation, ..CallbackInfo::default() },
            );
        }
        if self.debug.has(DEBUG_STATS) {
            self.debug
                .write(hooks, format_args!("gc: a collection of generation {generation} begins"));
        }
    }

    fn after_collection(&self) {
        self.memory.remember();
    }

    fn record(&self, report: &CollectionReport) {
        self.records.add(report);
    }

    fn finishes(&self, hooks: &Hooks, report: &CollectionReport, quiet: bool) {
        if self.debug.has(DEBUG_STATS) {
            self.debug.write(
                hooks,
                format_args!(
                    "gc: the collection of generation {} ends: {} unreachable, {} collected, \
                     {} uncollectable, {:.6} s elapsed",
                    report.generation,
                    report.unreachable,
                    report.collected,
                    report.uncollectable,
                    report.duration.as_secs_f64(),
                ),
            );
        }
        if !quiet {
            let info = CallbackInfo {
                generation: report.generation,
                collected: report.collected,
                uncollectable: report.uncollectable,
                candidates: report.candidates,
                duration: report.duration,
                stopped: report.stops.iter().sum(),
                external_bytes: report.external_bytes,
            };
            self.callbacks.call(hooks, CallbackPhase::Stop, &info);
        }
    }

    fn wants(&self, fate: Fate) -> bool {
        self.debug.has(match fate {
            Fate::Collectable => DEBUG_COLLECTABLE,
            Fate::Uncollectable => DEBUG_UNCOLLECTABLE,
        })
    }

    fn found(&self, hooks: &Hooks, fate: Fate, type_name: &'static str, address: usize) {
        let what = match fate {
            Fate::Collectable => "collectable",
            Fate::Uncollectable => "uncollectable",
        };
        self.debug.write(hooks, format_args!("gc: {what} <{type_name} {address:#x}>"));
    }

    fn saves_all(&self) -> bool {
        self.debug.has(DEBUG_SAVEALL)
    }

    fn save(&self, objects: &mut dyn ExactSizeIterator<Item = CountedRef>) -> Result<(), NoMemory> {
        self.garbage.append(objects)
    }

    fn take_saved(&self) -> Vec<CountedRef> {
        self.garbage.take()
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl PacingRule for GcState {
    fn decide(&self, numbers: [u32; 3], figures: Figures) -> Ruling {
        thresholds::decide(numbers, &self.memory, figures)
    }

    fn allowed_growth(&self, numbers: [u32; 3], old: usize) -> usize {
        thresholds::allowed_growth(numbers, old)
    }
}
