//! The handle to the services of a heap, the stop of the world for a call, and the state behind it.
//!
//! Each heap of typed objects has this state, although few programs use the services. So all parts
//! but the records are empty until a program uses them. A collection then checks a few empty lists,
//! and adds its figures to the records.

#![forbid(unsafe_code)]

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use crate::base::fallible::{self, NoMemory};
use crate::base::settings_lock::Setting;
use crate::base::sync::{AtomicBool, Mutex, Ordering};
use crate::gc_module::collecting::{Records, Switch};
use crate::gc_module::thresholds::MemoryCondition;
use crate::gc_module::watching::{
    CallbackInfo, CallbackPhase, Callbacks, DEBUG_COLLECTABLE, DEBUG_SAVEALL, DEBUG_STATS,
    DEBUG_UNCOLLECTABLE, DebugLines, Listener,
};
use crate::heap::observer::{Fate, Observer, ObserverAndRule};
use crate::heap::pacing::Pace;
use crate::heap::parts::SplitCounts;
use crate::heap::world::World;
use crate::managed::{Managed, ManagedCore};
use crate::object::counted::CountedRef;
use crate::report::error::Fault;
use crate::report::facts::{CollectionReport, During};
use crate::report::hooks::Hooks;
use crate::safepoint::ThreadId;
use crate::{Heap, Mutator};

/// A handle to the services of a heap. It keeps the heap open.
#[derive(Clone)]
pub struct Services {
    heap: Heap,
}

impl fmt::Debug for Services {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Services").field(&self.heap).finish()
    }
}

impl Heap {
    /// The services of CPython's `gc` module for this heap.
    pub fn services(&self) -> Services {
        GcState::of(self.core()).used.store(true, Ordering::Relaxed);
        Services { heap: self.clone() }
    }
}

impl Services {
    pub(super) fn core(&self) -> &Arc<ManagedCore> {
        self.heap.core()
    }

    pub(super) fn pace(&self) -> &Pace {
        &self.core().pace
    }

    pub(super) fn state(&self) -> &GcState {
        GcState::of(self.core())
    }

    #[track_caller]
    pub(super) fn check(&self, m: &Mutator) {
        assert!(
            Arc::ptr_eq(m.raw().core(), self.core()),
            "the services of one heap were used with the Mutator of another; take them from the \
             Mutator's own heap"
        );
    }

    /// Calls the audit hook, if one is set, without its lock.
    pub(super) fn audit(&self, m: &Mutator, name: &str) {
        let _lent = m.raw().lend();
        let hook = self.state().audit.with(|place| place.clone());
        if let Some(hook) = hook
            && let Err(message) = hook.call(|hook| hook(name))
        {
            self.core().hooks.unraisable(During::AuditHook, "", message);
        }
    }

    /// The heap of these services.
    pub fn heap(&self) -> &Heap {
        &self.heap
    }
}

/// Runs `f` in its own stop, and then the work that is due after a stop.
pub(super) fn stopped<R>(
    m: &mut Mutator,
    function: &'static str,
    f: impl FnOnce(&Mutator, &World<'_, Managed>) -> Result<R, Fault>,
) -> Result<R, Fault> {
    let world = m.raw().stop_here().map_err(|error| error.fault(function))?;
    let result = f(m, &world);
    drop(world);
    Managed::resumed(m.raw().model(), m.raw());
    result
}

#[derive(Debug, Default)]
pub(super) struct GcState {
    pub(super) callbacks: Callbacks,
    pub(super) debug: DebugLines,
    pub(super) audit: Setting<Option<Listener>>,
    pub(super) records: Mutex<Records>,
    /// The garbage list. Its references keep the objects alive.
    pub(super) garbage: Mutex<Vec<CountedRef>>,
    pub(super) memory: MemoryCondition,
    pub(super) switch: Switch,
    /// [`Heap::services`](crate::Heap::services) has been called.
    pub(super) used: AtomicBool,
    /// The end of the heap does not report the remaining objects.
    pub(super) leaks_ignored: AtomicBool,
}

/// Makes the state of a new heap, which is both its observer and its pacing rule.
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
        self.records.lock().add(report);
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
        let mut garbage = self.garbage.lock();
        // Reserved first, so that all of them are saved, or none if there is no memory.
        garbage.try_reserve(objects.len())?;
        garbage.extend(objects);
        Ok(())
    }

    fn take_saved(&self) -> Vec<CountedRef> {
        std::mem::take(&mut *self.garbage.lock())
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
