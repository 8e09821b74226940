//! Floor 5: the services of CPython's `gc` module, for a heap of typed and dynamic objects.
//!
//! [`Heap::services`] gives a handle: switching automatic collections on and off, thresholds, counters, records,
//! progress callbacks, debugging, the garbage list, freezing, and questions about who refers to whom. All handles of a heap are
//! alike, since the state lies with the heap; who does not ask for any of this pays nothing for it.
//!
//! ```
//! use standstill::{Gc, GcCell, Heap, Trace};
//!
//! #[derive(Trace)]
//! struct Node { next: GcCell<Option<Gc<Node>>> }
//!
//! let heap = Heap::new();
//! let services = heap.services();
//! let mut m = heap.attach();
//! let node = m.alloc(Node { next: GcCell::default() });
//! node.get(&m).next.set(&m, Some(node.clone()));
//! drop(node);
//!
//! assert!(services.disable());
//! assert!(services.collect_if_enabled(&mut m).is_none());
//! assert_eq!(services.collect_generation(&mut m, 2), Ok(1));
//! assert_eq!(services.stats()[2].collected, 1);
//! ```
//!
//! # Generations
//!
//! The interface is in three generations; the collector has two kinds of collection. So:
//!
//! | number | a collection | objects | a counter |
//! |---|---|---|---|
//! | 0 | young | new since the last collection (or [promotion](crate::HeapStats::promotions), in a heap without thresholds) | how many of them there are |
//! | 1 | young, under this number | none | 0 |
//! | 2 | full | the others | young collections since the last full one |
//!
//! # Where the state is, and who may touch it
//!
//! | state | values | where | who |
//! |---|---|---|---|
//! | what the user has said | enabled, disabled | `pacing` | anybody: one atomic swap. A collection that runs goes on |
//! | visits to all objects | how many are going on | `pacing` | who visits. While it is not 0 nothing collects by itself, and the collecting calls here do nothing |
//! | thresholds, source of memory | | `pacing` | anybody |
//! | callbacks, debugging flags and sink, audit hook, records | | `notices` | anybody; see there |
//! | the garbage list | references | the built-in model | attached threads, under its lock; a collection adds to it between its recheck and the clearing |
//! | legacy finalizers | unknown, expected | the built-in model | anybody; off by default |
//!
//! Automatic collections happen when the user has enabled them, nobody visits, no [`DeferGuard`](crate::DeferGuard) lives, and
//! [`Pacing::automatic`](crate::Pacing::automatic) is set: the first of these is all that [`Services::is_enabled`] tells.
//!
//! # Calls from inside
//!
//! What collects or stops the world takes `&mut Mutator`, which no finalizer, destructor, weak callback or progress callback has. Where
//! a language cannot express that, its layer has a mutator while user code up the stack is using it; then collecting calls give
//! nothing and the others a [`Fault`] with [`Code::NotAllowedHere`]. On other threads, collecting calls give nothing while
//! one collects, and do not wait.
//!
//! # The end of a heap
//!
//! When the last handle and mutator are gone the heap collects in full once more, without the progress callbacks of this
//! module, and with finalizers. Is anything in the garbage list then, the hook of
//! [`Heap::on_unraisable`] hears of it, the list is emptied, and the heap collected again. What is left after that (but
//! immortal objects) is told by type to the same hook, if the services were ever asked for; see [`Services::tell_leaks`].
//! Where the thread cannot attach to the heap, there is no last collection; that hook is told how many objects are left.
//!
//! # Out of memory
//!
//! Snapshots of objects fail as a [`Fault`] with [`Code::Memory`], and nothing has happened. A collection whose work lists
//! cannot grow is abandoned, and its report says so. What is left, in which a refusal aborts the process as it does in std, is
//! listed in `tests/alloc_failure.rs`.

pub(crate) mod notices;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use crate::base::error::{Code, Fault};
use crate::base::event::{CollectionReport, During, Hook};
use crate::base::fallible::words;
use crate::base::fallible::{self, NoMemory};
use crate::collect;
use crate::collect::traversal::guard_traversal;
use crate::collect::{Collect, CollectError};
use crate::gc_module::notices::Notices;
use crate::heap::model::ObjectModel;
use crate::heap::mutator::World;
use crate::heap::pacing::Pace;
use crate::heap::policy::Thresholds;
use crate::managed::{Core, Managed};
use crate::object::state::{DYING, FROZEN, OLD};
use crate::object::type_info::{Object, Tracer};
use crate::object::weak::Target;
use crate::safepoint::StopError;
use crate::typed::inspect;
use crate::{AnyGc, Heap, Mutator};

pub use crate::gc_module::notices::{
    CallbackInfo, CallbackPhase, DEBUG_COLLECTABLE, DEBUG_LEAK, DEBUG_SAVEALL, DEBUG_STATS,
    DEBUG_UNCOLLECTABLE, GenerationStats,
};

/// Whether a visit to all objects goes on. See [`Services::visit_objects`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Visit {
    /// With the next object.
    Continue,
    /// No: this was the last.
    Stop,
}

/// The services of a heap: a handle, which keeps the heap open. See the [module's page](self).
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
        self.core().notices.use_them();
        Services { heap: self.clone() }
    }
}

/// Runs `f` in a stop of its own, and then what is due after one.
fn stopped<R>(
    m: &mut Mutator,
    function: &'static str,
    f: impl FnOnce(&Mutator, &World<'_, Managed>) -> Result<R, Fault>,
) -> Result<R, Fault> {
    let world = m.raw().stop_here().map_err(|error| {
        let code = match error {
            StopError::NoSafepoint | StopError::Nested => Code::NotAllowedHere,
            _ => Code::Custom,
        };
        Fault::new(code, function).because(words!("the world cannot be stopped: {error}"))
    })?;
    let result = f(m, &world);
    drop(world);
    m.raw().model().resumed(m.raw());
    result
}

/// References to the visible objects whose state `wanted` likes.
fn snapshot(
    m: &Mutator,
    world: &World<'_, Managed>,
    function: &'static str,
    wanted: impl Fn(u8) -> bool,
) -> Result<Vec<AnyGc>, Fault> {
    let mut count = 0;
    collect::visible(world, |_, state| count += usize::from(wanted(state.get())));
    let mut all = room(count, function)?;
    collect::visible(world, |object, state| {
        if wanted(state.get()) {
            all.push(m.any_from(object.as_ptr().cast()));
        }
    });
    Ok(all)
}

/// An empty list with room for so many.
fn room<T>(count: usize, function: &'static str) -> Result<Vec<T>, Fault> {
    let mut list = Vec::new();
    list.try_reserve_exact(count).map_err(|error| {
        Fault::new(Code::Memory, function)
            .because(words!("no memory for a list of {count}: {error}"))
    })?;
    Ok(list)
}

/// Fails for an object of another heap.
fn of_this_heap(m: &Mutator, objects: &[AnyGc], function: &'static str) -> Result<(), Fault> {
    let foreign = objects.iter().find(|object| !m.raw().owns(Object::new(object.header().cast())));
    foreign.map_or(Ok(()), |object| {
        let fault =
            Fault::new(Code::ForeignPointer, function).at(object.header().as_ptr() as usize);
        Err(fault.because("the object belongs to another heap than the mutator"))
    })
}

fn failed_traversal(function: &'static str, reason: &str, type_name: &'static str) -> Fault {
    Fault::new(Code::HandlerError, function)
        .of_type(type_name)
        .because(words!("a traversal failed: {reason}"))
}

impl Services {
    fn core(&self) -> &Arc<Core> {
        self.heap.core()
    }

    fn pace(&self) -> &Pace {
        &self.core().pace
    }

    fn notices(&self) -> &Notices {
        &self.core().notices
    }

    /// Panics for a mutator of another heap.
    #[track_caller]
    fn check(&self, m: &Mutator) {
        assert!(
            Arc::ptr_eq(m.raw().core(), self.core()),
            "the services of one heap were used with the Mutator of another; take them from the Mutator's own heap"
        );
    }

    fn audit(&self, m: &Mutator, what: &str) {
        let _lent = m.raw().lend();
        self.notices().audit(&self.core().hooks, what);
    }

    /// The heap.
    pub fn heap(&self) -> &Heap {
        &self.heap
    }

    // ------------------------------------------------------------------------------------ collecting

    /// Switches automatic collections on; returns whether they were. A heap begins with them on.
    pub fn enable(&self) -> bool {
        self.pace().enable(true)
    }

    /// Switches automatic collections, and [`collect_if_enabled`](Self::collect_if_enabled), off; returns whether they
    /// were on. A collection that is running goes on.
    pub fn disable(&self) -> bool {
        self.pace().enable(false)
    }

    /// What was last said by [`enable`](Self::enable) and [`disable`](Self::disable). What suspends
    /// collections for a while does not change it.
    pub fn is_enabled(&self) -> bool {
        self.pace().is_enabled()
    }

    /// Whether a visit to all objects is going on, on any thread: then nothing here collects.
    pub fn is_visiting(&self) -> bool {
        self.pace().is_visited()
    }

    /// Collects in full, as `PyGC_Collect` does. `None`, at once: collections are disabled, one is running on whatever
    /// thread, all objects are being visited, or this thread must not reach a safepoint now.
    ///
    /// What CPython returns is [`CollectionReport::found`]. That the world could not be stopped, because a thread ended without
    /// dropping its mutator, goes to the hook of [`Heap::on_unraisable`].
    ///
    /// # Panics
    ///
    /// Like all functions that take a mutator, when it is of another heap.
    pub fn collect_if_enabled(&self, m: &mut Mutator) -> Option<CollectionReport> {
        self.check(m);
        if self.is_enabled() { self.run(m, Collect::full()) } else { None }
    }

    /// Collects a generation, enabled or not: 0 and 1 are young collections, 2 is a full one. `None` where
    /// [`collect_if_enabled`](Self::collect_if_enabled) gives it, but for the first reason.
    ///
    /// # Errors
    ///
    /// [`Code::BadGeneration`] for other numbers; nothing has happened.
    pub fn collect(
        &self,
        m: &mut Mutator,
        generation: i32,
    ) -> Result<Option<CollectionReport>, Fault> {
        self.check(m);
        let what = match generation {
            0 => Collect::young(),
            1 => Collect::young().named(1),
            2 => Collect::full(),
            _ => return Err(bad_generation("collect", generation)),
        };
        Ok(self.run(m, what))
    }

    /// As [`collect`](Self::collect), and returns what CPython's `gc.collect` does: how many unreachable objects there were,
    /// those included that could not be destroyed. 0 where nothing was done.
    ///
    /// # Errors
    ///
    /// As [`collect`](Self::collect).
    pub fn collect_generation(&self, m: &mut Mutator, generation: i32) -> Result<usize, Fault> {
        let report = self.collect(m, generation)?;
        Ok(report.map_or(0, |report| report.found()))
    }

    fn run(&self, m: &mut Mutator, what: Collect) -> Option<CollectionReport> {
        if self.is_visiting() {
            return None;
        }
        match m.try_collect(what.wait(false)) {
            Ok(report) => Some(report),
            Err(
                CollectError::Busy | CollectError::Stop(StopError::NoSafepoint | StopError::Nested),
            ) => None,
            Err(error) => {
                self.core().hooks.unraisable(During::Collect, "", words!("{error}"));
                None
            }
        }
    }

    /// The last collection of a runtime that ends before its heap does: a full one, without progress callbacks. Is anything in
    /// the garbage list then, the hook of [`Heap::on_unraisable`] hears of it; with [`DEBUG_UNCOLLECTABLE`] the
    /// debugging sink hears of each object too. The list stays as it is.
    pub fn final_collection(&self, m: &mut Mutator) -> Option<CollectionReport> {
        self.check(m);
        let report = m.try_collect(Collect::full().quietly()).ok();
        tell_garbage(self.core());
        report
    }

    // ------------------------------------------------------------------------------------ when

    /// Sets the thresholds; see [`Thresholds`] for what they mean. Those that are `None` stay. `t0` at 0 switches automatic
    /// collections off, whatever [`is_enabled`](Self::is_enabled) says.
    ///
    /// The heap's other [`Pacing`](crate::Pacing) means nothing from now on, but for
    /// [`automatic`](crate::Pacing::automatic).
    ///
    /// # Errors
    ///
    /// [`Code::BadThreshold`] when one is negative; nothing has changed.
    pub fn set_threshold(&self, t0: i32, t1: Option<i32>, t2: Option<i32>) -> Result<(), Fault> {
        let number = |threshold: i32| {
            u32::try_from(threshold).map_err(|_| {
                let text = words!("a threshold must not be negative, and {threshold} is");
                Fault::new(Code::BadThreshold, "set_threshold").because(text)
            })
        };
        let t0 = number(t0)?;
        let (t1, t2) = (t1.map(number).transpose()?, t2.map(number).transpose()?);
        self.pace().change_policy(|policy| {
            let old = policy.thresholds.unwrap_or_default();
            let new = Thresholds { t0, t1: t1.unwrap_or(old.t1), t2: t2.unwrap_or(old.t2) };
            policy.thresholds = Some(new);
        });
        Ok(())
    }

    /// The thresholds. In a heap that was given none, by [`set_threshold`](Self::set_threshold) or
    /// [`Pacing::with_thresholds`](crate::Pacing::with_thresholds), those that would be the default; its other
    /// [`Pacing`](crate::Pacing) decides there.
    pub fn threshold(&self) -> [i32; 3] {
        let Thresholds { t0, t1, t2 } = self.pace().policy().thresholds.unwrap_or_default();
        [t0, t1, t2].map(|number| i32::try_from(number).unwrap_or(i32::MAX))
    }

    /// Makes memory a condition of collections by [`Thresholds`]: one that is due is skipped if memory has not
    /// grown by a tenth since the last, and no more than 40 times `t0` objects are new since. [`process_memory`] is such
    /// a source. Without one (the default) there is no such condition.
    ///
    /// The source is called when a thread has run out of cells and a collection is due, and after collections. It must use no heap. Where it
    /// cannot tell, the condition holds.
    pub fn set_memory_source(&self, source: impl Fn() -> Option<usize> + Send + Sync + 'static) {
        self.pace().set_memory(Some(Hook::new(Arc::new(source))));
    }

    /// Ends the condition of memory.
    pub fn remove_memory_source(&self) {
        self.pace().set_memory(None);
    }

    // ------------------------------------------------------------------------------------ figures

    /// The three counters, exact: see the [module's page](self#generations).
    ///
    /// # Errors
    ///
    /// When the world cannot be stopped.
    pub fn counts(&self, m: &mut Mutator) -> Result<[usize; 3], Fault> {
        self.check(m);
        let new = stopped(m, "counts", |_, world| {
            let mut new = 0;
            collect::visible(world, |_, state| {
                new += usize::from(state.get() & (OLD | FROZEN) == 0)
            });
            Ok(new)
        })?;
        Ok([new, 0, self.notices().records().1])
    }

    /// What collections did so far, by the number of their generation. Collections by other means, automatic ones for
    /// example, are among them.
    pub fn stats(&self) -> [GenerationStats; 3] {
        self.notices().records().0
    }

    // ------------------------------------------------------------------------------------ notices

    /// Registers a callback that is called before and after each collection but the heap's last, on the collecting thread, the world
    /// running; returns the id for [`remove_callback`](Self::remove_callback). One that is added or removed by a callback is so from
    /// the next phase on. Panics go to the hook of [`Heap::on_unraisable`].
    ///
    /// A callback that holds the heap, or its services, keeps it open for ever.
    pub fn add_callback(
        &self,
        f: impl Fn(CallbackPhase, &CallbackInfo) + Send + Sync + 'static,
    ) -> u64 {
        self.try_add_callback(f).unwrap_or_else(NoMemory::end_process)
    }

    /// As [`add_callback`](Self::add_callback), where memory may be refused: nothing has changed then.
    #[doc(hidden)]
    pub fn try_add_callback(
        &self,
        f: impl Fn(CallbackPhase, &CallbackInfo) + Send + Sync + 'static,
    ) -> Result<u64, NoMemory> {
        self.notices().add_callback(Hook::new(fallible::arc(f)?))
    }

    /// Removes a callback; `false`: there is none of this id.
    pub fn remove_callback(&self, id: u64) -> bool {
        self.notices().remove_callback(id)
    }

    /// Sets the debugging flags, an or of the `DEBUG_` constants.
    ///
    /// # Errors
    ///
    /// [`Code::BadDebugFlags`] for other bits; nothing has changed.
    pub fn set_debug(&self, flags: u32) -> Result<(), Fault> {
        if flags & !(DEBUG_STATS | DEBUG_LEAK) != 0 {
            let text =
                words!("there are no debugging flags {:#x}", flags & !(DEBUG_STATS | DEBUG_LEAK));
            return Err(Fault::new(Code::BadDebugFlags, "set_debug").because(text));
        }
        self.notices().set_debug(flags);
        Ok(())
    }

    /// The debugging flags.
    pub fn debug(&self) -> u32 {
        self.notices().debug()
    }

    /// Sends debugging lines there instead of to stderr. Panics go to the hook of [`Heap::on_unraisable`].
    pub fn set_debug_sink(&self, sink: impl Fn(&str) + Send + Sync + 'static) {
        self.try_set_debug_sink(sink).unwrap_or_else(NoMemory::end_process);
    }

    /// As [`set_debug_sink`](Self::set_debug_sink), where memory may be refused: nothing has changed then.
    #[doc(hidden)]
    pub fn try_set_debug_sink(
        &self,
        sink: impl Fn(&str) + Send + Sync + 'static,
    ) -> Result<(), NoMemory> {
        self.notices().set_sink(Some(Hook::new(fallible::arc(sink)?)));
        Ok(())
    }

    /// Sends debugging lines to stderr again.
    pub fn reset_debug_sink(&self) {
        self.notices().set_sink(None);
    }

    /// Sets a hook that is told of questions about the heap before they are answered: `gc.get_objects`,
    /// `gc.get_referrers`, `gc.get_referents`. It is called by the thread that asks; panics go to the hook of
    /// [`Heap::on_unraisable`].
    pub fn set_audit_hook(&self, hook: impl Fn(&str) + Send + Sync + 'static) {
        self.try_set_audit_hook(hook).unwrap_or_else(NoMemory::end_process);
    }

    /// As [`set_audit_hook`](Self::set_audit_hook), where memory may be refused: nothing has changed then.
    #[doc(hidden)]
    pub fn try_set_audit_hook(
        &self,
        hook: impl Fn(&str) + Send + Sync + 'static,
    ) -> Result<(), NoMemory> {
        self.notices().set_audit(Some(Hook::new(fallible::arc(hook)?)));
        Ok(())
    }

    /// Removes the audit hook.
    pub fn remove_audit_hook(&self) {
        self.notices().set_audit(None);
    }

    /// Whether the end of the heap tells what is left in it. Who has asked for services has said yes; this changes it.
    pub fn tell_leaks(&self, tell: bool) {
        self.notices().tell_leaks(tell);
    }

    /// Whether there may be types with legacy finalizers, which the collector must not call: unreachable objects with
    /// one, and what they reach, are not cleared, count as uncollectable, and the former go to the garbage
    /// list. Off by default, since each unreachable object is asked then. Typed objects have none.
    pub fn expect_legacy_finalizers(&self, expect: bool) {
        self.core().model.expect_legacy(expect);
    }

    // ------------------------------------------------------------------------------------ the garbage list

    /// How many objects the garbage list holds.
    pub fn garbage_len(&self, m: &Mutator) -> usize {
        self.check(m);
        self.core().model.garbage.lock().len()
    }

    /// An object of the garbage list.
    pub fn garbage_get(&self, m: &Mutator, index: usize) -> Option<AnyGc> {
        self.check(m);
        let list = self.core().model.garbage.lock();
        // The list's reference keeps the object alive while the lock is held.
        list.get(index).map(|target| m.any_from(target.0))
    }

    /// The objects of the garbage list.
    pub fn garbage(&self, m: &Mutator) -> Vec<AnyGc> {
        self.check(m);
        let list = self.core().model.garbage.lock();
        list.iter().map(|target| m.any_from(target.0)).collect()
    }

    /// Takes an object out of the garbage list; those behind it move up.
    pub fn garbage_remove(&self, m: &Mutator, index: usize) -> Option<AnyGc> {
        self.check(m);
        let mut list = self.core().model.garbage.lock();
        (index < list.len()).then(|| own(list.remove(index)))
    }

    /// Empties the garbage list. What is dropped dies, or is found by the next collection again.
    pub fn garbage_take(&self, m: &Mutator) -> Vec<AnyGc> {
        self.check(m);
        take_garbage(self.core())
    }

    // ------------------------------------------------------------------------------------ freezing

    /// Freezes all tracked objects: collections leave them alone, and what they refer to stays. Objects that
    /// a running collection has found unreachable are not frozen. Returns how many are frozen now.
    ///
    /// # Errors
    ///
    /// When the world cannot be stopped.
    pub fn freeze(&self, m: &mut Mutator) -> Result<usize, Fault> {
        self.check(m);
        stopped(m, "freeze", |_, world| {
            let mut frozen = 0;
            collect::visible(world, |_, state| {
                state.set(FROZEN);
                frozen += 1;
            });
            Ok(frozen)
        })
    }

    /// Ends the freeze of all objects.
    ///
    /// # Errors
    ///
    /// When the world cannot be stopped.
    pub fn unfreeze(&self, m: &mut Mutator) -> Result<(), Fault> {
        self.check(m);
        stopped(m, "unfreeze", |_, world| {
            // All of them: one that was untracked meanwhile would come back frozen.
            collect::live(world, |_, state| {
                state.unset(FROZEN);
            });
            Ok(())
        })
    }

    /// How many objects are frozen.
    ///
    /// # Errors
    ///
    /// When the world cannot be stopped.
    pub fn freeze_count(&self, m: &mut Mutator) -> Result<usize, Fault> {
        self.check(m);
        stopped(m, "freeze_count", |_, world| {
            let mut frozen = 0;
            collect::visible(world, |_, state| frozen += usize::from(state.get() & FROZEN != 0));
            Ok(frozen)
        })
    }

    // ------------------------------------------------------------------------------------ questions

    /// The tracked objects, or those of one generation (see the [module's page](self#generations)), but frozen ones and
    /// those that a running collection has found unreachable.
    ///
    /// # Errors
    ///
    /// [`Code::BadGeneration`] for a generation other than 0, 1 and 2; [`Code::Memory`]; or the world cannot be stopped.
    pub fn objects(&self, m: &mut Mutator, generation: Option<i32>) -> Result<Vec<AnyGc>, Fault> {
        const NAME: &str = "objects";
        self.check(m);
        self.audit(m, "gc.get_objects");
        let wanted: fn(u8) -> bool = match generation {
            None => |state| state & FROZEN == 0,
            Some(0) => |state| state & (FROZEN | OLD) == 0,
            Some(1) => return Ok(Vec::new()),
            Some(2) => |state| state & (FROZEN | OLD) == OLD,
            Some(other) => return Err(bad_generation(NAME, other)),
        };
        stopped(m, NAME, |m, world| snapshot(m, world, NAME, wanted))
    }

    /// The tracked objects that refer to one of `targets`, each once, but frozen ones and those that a running collection has
    /// found unreachable. They may be half built: for debugging only.
    ///
    /// # Errors
    ///
    /// [`Code::ForeignPointer`] when a target belongs to another heap; [`Code::HandlerError`] when a traversal panics;
    /// [`Code::Memory`]; or the world cannot be stopped.
    pub fn referrers(&self, m: &mut Mutator, targets: &[AnyGc]) -> Result<Vec<AnyGc>, Fault> {
        const NAME: &str = "referrers";
        self.check(m);
        of_this_heap(m, targets, NAME)?;
        self.audit(m, "gc.get_referrers");
        let addresses = fallible::collect(targets.iter().map(|t| t.header().as_ptr() as usize))?;
        stopped(m, NAME, |m, world| {
            let mut found: Vec<Object> = Vec::new();
            let mut kept = Ok(());
            inspect::referring(world, addresses, |object| {
                if kept.is_ok() {
                    kept = fallible::push(&mut found, object);
                }
            })
            .map_err(|reason| failed_traversal(NAME, &reason, ""))??;
            kept?;
            let mut all = room(found.len(), NAME)?;
            all.extend(found.into_iter().map(|object| m.any_from(object.as_ptr().cast())));
            Ok(all)
        })
    }

    /// What `sources` refer to, in their order, as often as they do, tracked or not. Sources that are not tracked are asked too.
    ///
    /// # Errors
    ///
    /// As for [`referrers`](Self::referrers).
    pub fn referents(&self, m: &mut Mutator, sources: &[AnyGc]) -> Result<Vec<AnyGc>, Fault> {
        const NAME: &str = "referents";
        self.check(m);
        of_this_heap(m, sources, NAME)?;
        self.audit(m, "gc.get_referents");
        stopped(m, NAME, |m, world| {
            let space = &world.core().space;
            let mut tracer = Tracer::for_collection(space.base(), space.reserved_bytes());
            let (mut edges, mut kept) = (Vec::new(), Ok(()));
            guard_traversal(world, &mut tracer, |tracer| {
                for source in sources {
                    inspect::edges_of(world, Object::new(source.header().cast()), tracer);
                    kept = kept.and(fallible::extend(&mut edges, tracer.edges()));
                }
            })
            .map_err(|abandoned| failed_traversal(NAME, &abandoned.reason, abandoned.type_name))?;
            kept.and(tracer.lost_nothing())?;
            let mut all = room(edges.len(), NAME)?;
            all.extend(edges.into_iter().map(|edge| {
                let object = collect::scope::object_at(space, space.granule(edge));
                m.any_from(object.as_ptr().cast())
            }));
            Ok(all)
        })
    }

    /// Whether the collector looks at an object.
    pub fn is_tracked(&self, m: &Mutator, object: &AnyGc) -> bool {
        object.is_tracked(m)
    }

    /// Whether an object's finalizer has been called.
    pub fn is_finalized(&self, m: &Mutator, object: &AnyGc) -> bool {
        object.is_finalized(m)
    }

    /// Calls `f` with every tracked object, frozen ones too, until it says [`Visit::Stop`]; returns how many calls that
    /// were. In no particular order, each once; objects that a running collection has found unreachable are left out.
    ///
    /// The set is fixed in a short stop at the start, and its members are held: objects made meanwhile are not visited,
    /// and one that nobody else holds any more lives until its turn is over. The callback runs with the world running, so it may do
    /// anything, visit all objects in turn included; other threads change objects meanwhile. Nothing collects by itself until the visit
    /// is over, and the collecting calls of this module give nothing, on every thread; the user's setting stays as it is, and may be
    /// changed. (Explicit collections by [`Mutator::collect`] are harmless, and run.)
    ///
    /// Should `f` panic, what was held is let go of, automatic collections are on again, and the panic goes on.
    ///
    /// # Errors
    ///
    /// [`Code::Memory`] when there is no room for the set, or the world cannot be stopped: nothing was visited.
    pub fn visit_objects(
        &self,
        m: &mut Mutator,
        mut f: impl FnMut(&AnyGc, &mut Mutator) -> Visit,
    ) -> Result<usize, Fault> {
        const NAME: &str = "visit_objects";
        struct Suspended<'a>(&'a Pace);
        impl Drop for Suspended<'_> {
            fn drop(&mut self) {
                self.0.visit_ends();
            }
        }
        self.check(m);
        self.pace().visit_begins();
        // Dropped after the set, also when a destructor panics.
        let _suspended = Suspended(self.pace());
        let set = stopped(m, NAME, |m, world| snapshot(m, world, NAME, |_| true))?;
        let mut visited = 0;
        for object in set {
            visited += 1;
            if f(&object, m) == Visit::Stop {
                break;
            }
        }
        Ok(visited)
    }
}

impl CollectionReport {
    /// What CPython's `gc.collect` returns: all unreachable objects, collected or not, but those that are reachable again.
    pub fn found(&self) -> usize {
        self.collected.saturating_add(self.uncollectable)
    }
}

/// How much memory the process uses now, in bytes, what was swapped out included; `None`: the system does not tell.
pub fn process_memory() -> Option<usize> {
    memory_of(&std::fs::read_to_string("/proc/self/status").ok()?)
}

/// What [`process_memory`] is, by the system's page on a process.
fn memory_of(status: &str) -> Option<usize> {
    let kilobytes = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name))?;
        line.split_whitespace().next()?.parse::<usize>().ok()
    };
    let swapped = kilobytes("VmSwap:").unwrap_or(0);
    Some((kilobytes("VmRSS:")? + swapped) << 10)
}

fn bad_generation(function: &'static str, generation: i32) -> Fault {
    let text = words!("there is no generation {generation}, only 0, 1 and 2");
    Fault::new(Code::BadGeneration, function).because(text)
}

/// The reference that a list gives up.
fn own(target: Target) -> AnyGc {
    // SAFETY: rule R: the garbage list owned the reference; the caller has just taken it out.
    unsafe { AnyGc::from_header(target.0) }
}

fn take_garbage(core: &Core) -> Vec<AnyGc> {
    let list = std::mem::take(&mut *core.model.garbage.lock());
    list.into_iter().map(own).collect()
}

/// Tells of what is in the garbage list at the end; how many that are.
fn tell_garbage(core: &Core) -> usize {
    let count = core.model.garbage.lock().len();
    if count != 0 {
        let text = words!(
            "{count} objects are in the garbage list of heap '{}' at its end: they were unreachable, and could not be \
             destroyed",
            core.name
        );
        core.hooks.unraisable(During::Shutdown, "", text);
    }
    if core.notices.debug() & notices::DEBUG_UNCOLLECTABLE != 0 {
        // Nobody else has the heap any more, so the list stays as it is; the lines are written without its lock.
        for at in 0..count {
            let list = core.model.garbage.lock();
            let Some(object) = list.get(at).map(|target| Object::new(target.0.cast())) else {
                break;
            };
            // SAFETY: rule R: the list's reference keeps the object alive while the lock is held.
            let name = unsafe { core.model.type_name(object) };
            drop(list);
            let line =
                format_args!("gc: uncollectable at the end <{name} {:#x}>", object.address());
            core.notices.line(&core.hooks, line);
        }
    }
    count
}

/// The end of a heap, on whatever thread: see the [module's page](self#the-end-of-a-heap).
pub(crate) fn at_the_end(m: &mut Mutator) {
    let core = Arc::clone(m.raw().core());
    // Fails when a thread ended without dropping its mutator. Then nothing can be collected.
    let collect = |m: &mut Mutator| drop(m.try_collect(Collect::full().quietly()));
    collect(m);
    if tell_garbage(&core) != 0 {
        // Cleared this time, as far as that is possible. No collection reads the flags after this one.
        core.notices.set_debug(0);
        drop(take_garbage(&core));
        collect(m);
        drop(take_garbage(&core));
    }
    if core.notices.tells_leaks() {
        let mut left = BTreeMap::<&'static str, usize>::new();
        let looked = stopped(m, "at_the_end", |_, world| {
            collect::live(world, |object, state| {
                if state.get() & DYING != 0 {
                    return;
                }
                // SAFETY: rule W: alive; the world is stopped.
                let (count, name) =
                    unsafe { (core.model.count(object), core.model.type_name(object)) };
                if count.is_some() {
                    *left.entry(name).or_default() += 1;
                }
            });
            Ok(())
        });
        if let Err(fault) = looked {
            let text = words!("the objects that are left were not counted: {fault}");
            core.hooks.unraisable(During::Shutdown, "", text);
        }
        for (name, count) in left {
            let text = words!("{count} objects are left in heap '{}' at its end", core.name);
            core.hooks.unraisable(During::Shutdown, name, text);
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use std::any::TypeId;
    use std::ptr::NonNull;

    use super::*;
    use crate::object::header::Header;
    use crate::object::state;
    use crate::object::type_info::{Ends, TypeInfo};
    use crate::typed::gc;
    use crate::{GcCell, Pacing, Trace, managed};

    #[test]
    fn u_06_memory_is_what_is_resident_and_what_was_swapped_out() {
        let page = "Name:\tx\nVmPeak:\t  900 kB\nVmRSS:\t  300 kB\nVmSwap:\t   20 kB\n";
        assert_eq!(memory_of(page), Some(320 << 10));
        assert_eq!(memory_of("VmRSS:\t  300 kB\n"), Some(300 << 10), "no word of swapped memory");
        assert_eq!(memory_of("VmSwap:\t   20 kB\n"), None);
        assert_eq!(memory_of("VmRSS:\t much\n"), None);
    }

    /// What a type with a legacy finalizer would be.
    struct Legacy {
        to: GcCell<Option<AnyGc>>,
    }

    impl Trace for Legacy {
        fn traverse(&self, tracer: &mut Tracer) {
            self.to.traverse(tracer);
        }
    }

    static INFO: TypeInfo = TypeInfo {
        id: TypeId::of::<Legacy>,
        name: |_| "Legacy",
        offset: gc::offset(align_of::<Legacy>()),
        tracked: true,
        traverse_each,
        prefetch_each: None,
        clear,
        finalize: None,
        has_finalizer: None,
        legacy: Some(|_| true),
        drop: Some(destroy),
        end: None,
        dealloc: None,
    };

    unsafe fn traverse(value: NonNull<u8>, tracer: &mut Tracer) {
        tracer.enter(value, size_of::<Legacy>());
        // SAFETY: rule Y: the table belongs to objects of this type, and the caller has a live one.
        unsafe { value.cast::<Legacy>().as_ref() }.traverse(tracer);
    }

    unsafe fn traverse_each(objects: &[Object], tracer: &mut Tracer, ends: &mut Ends<'_>) {
        // SAFETY: as above.
        tracer.each(objects, ends, |object, tracer| unsafe {
            traverse(object.as_ptr().add(INFO.offset), tracer);
        });
    }

    unsafe fn clear(value: NonNull<u8>, m: *const ()) {
        // SAFETY: as above; `m` is a mutator.
        unsafe { value.cast::<Legacy>().as_ref().to.set(managed::mutator(m), None) };
    }

    unsafe fn destroy(value: NonNull<u8>) {
        // SAFETY: as above; the value is given up.
        unsafe { value.cast::<Legacy>().drop_in_place() };
    }

    /// A new object that refers to itself, through another one.
    fn cycle(m: &Mutator) {
        let cell = m.raw().allocate(INFO.offset + size_of::<Legacy>(), 32).expect("memory");
        let header = cell.cast::<Header>();
        // SAFETY: rule N: fresh memory, large enough for both.
        let legacy = unsafe {
            header.write(Header::new(m.id(), managed::type_index(m.raw(), &INFO)));
            cell.add(INFO.offset).cast().write(Legacy { to: GcCell::new(None) });
            m.raw().publish_as(Object::new(cell), state::TRACKED);
            AnyGc::from_header(header)
        };
        let other = m.alloc(GcCell::new(Some(legacy.clone())));
        legacy.downcast_ref::<Legacy>(m).expect("just made").to.set(m, Some(other.into()));
    }

    #[test]
    fn u_14_what_must_not_be_cleared_is_saved_too() {
        let heap = Heap::builder().pacing(Pacing::manual()).build().expect("a heap");
        let services = heap.services();
        let mut m = heap.attach();
        services.expect_legacy_finalizers(true);
        services.set_debug(DEBUG_SAVEALL).expect("flags");
        cycle(&m);
        assert_eq!(m.collect().uncollectable, 2);
        let garbage = services.garbage(&m);
        assert_eq!(garbage.len(), 2, "the object with the finalizer, and the one that it reaches");
        assert!(services.garbage_remove(&m, 2).is_none() && services.garbage_get(&m, 2).is_none());
        services.set_debug(0).expect("flags");
        for object in &garbage {
            if let Some(legacy) = object.downcast_ref::<Legacy>(&m) {
                legacy.to.set(&m, None);
            }
        }
        drop((garbage, services.garbage_take(&m)));
        assert_eq!(heap.stats().live_objects, 0);
    }

    /// Drops what it holds when it is looked at, which it should not.
    struct Dropper(std::sync::Mutex<Option<crate::Gc<Witness>>>);

    impl Trace for Dropper {
        fn traverse(&self, _: &mut Tracer) {
            drop(self.0.lock().expect("no panic").take());
        }
    }

    /// Counts its destructions, and those in a stop.
    struct Witness(Arc<[std::sync::atomic::AtomicUsize; 2]>);

    impl Trace for Witness {
        fn traverse(&self, _: &mut Tracer) {}
    }

    impl Drop for Witness {
        fn drop(&mut self) {
            let in_stop = usize::from(crate::safepoint::is_stopping());
            self.0[in_stop].fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        }
    }

    #[test]
    fn what_a_traversal_drops_is_gone_when_the_question_is_answered_and_not_before_the_world_runs()
    {
        let heap = Heap::builder().pacing(Pacing::manual()).build().expect("a heap");
        let services = heap.services();
        let mut m = heap.attach();
        let died: Arc<[std::sync::atomic::AtomicUsize; 2]> = Arc::default();
        let held = m.alloc(Witness(Arc::clone(&died)));
        let dropper: AnyGc = m.alloc(Dropper(std::sync::Mutex::new(Some(held)))).into();
        assert!(
            services
                .referents(&mut m, std::slice::from_ref(&dropper))
                .expect("an answer")
                .is_empty()
        );
        let died = [0, 1].map(|which: usize| died[which].load(std::sync::atomic::Ordering::SeqCst));
        assert_eq!((died, heap.stats().live_objects), ([1, 0], 1));
    }

    /// What the hooks of a heap hear.
    fn heard(services: &Services) -> Arc<std::sync::Mutex<Vec<String>>> {
        let heard = Arc::new(std::sync::Mutex::new(Vec::new()));
        let note = |heard: &Arc<std::sync::Mutex<Vec<String>>>| {
            let heard = Arc::clone(heard);
            move |text: String| heard.lock().expect("no panic").push(text)
        };
        let (to, lines, ends) = (note(&heard), note(&heard), note(&heard));
        services
            .heap()
            .on_unraisable(move |fault| to(format!("{:?}: {}", fault.during, fault.message)));
        services.set_debug_sink(move |line| lines(line.to_owned()));
        services.heap().on_collection(move |event| {
            if let crate::CollectionEvent::Stop(report) = event {
                ends(format!("collected {}", report.collected));
            }
        });
        heard
    }

    #[test]
    fn the_end_of_a_heap_tells_what_its_garbage_list_holds_and_then_clears_it() {
        for flags in [DEBUG_SAVEALL, DEBUG_SAVEALL | DEBUG_UNCOLLECTABLE] {
            let heap =
                Heap::builder().name("library").pacing(Pacing::manual()).build().expect("a heap");
            let services = heap.services();
            let mut m = heap.attach();
            let heard = heard(&services);
            services.set_debug(flags).expect("flags");
            cycle(&m);
            m.collect();
            assert_eq!(services.garbage_len(&m), 2);
            drop(std::mem::take(&mut *heard.lock().expect("no panic")));
            drop((m, services, heap));
            let mut heard = std::mem::take(&mut *heard.lock().expect("no panic"));
            let lines: Vec<String> = heard
                .extract_if(.., |line| line.starts_with("gc: uncollectable at the end <"))
                .collect();
            assert_eq!(lines.len(), if flags == DEBUG_SAVEALL { 0 } else { 2 }, "{lines:?}");
            let text = "Shutdown: 2 objects are in the garbage list of heap 'library' at its end: they were unreachable, and \
                        could not be destroyed";
            assert_eq!(heard, ["collected 0", text, "collected 2"]);
        }
    }

    #[test]
    fn the_end_of_a_heap_with_an_empty_garbage_list_is_one_collection() {
        let heap =
            Heap::builder().name("library").pacing(Pacing::manual()).build().expect("a heap");
        let services = heap.services();
        let m = heap.attach();
        let heard = heard(&services);
        services.set_debug(DEBUG_UNCOLLECTABLE).expect("flags");
        cycle(&m);
        let kept = m.alloc(7);
        drop((m, services, heap));
        let heard = std::mem::take(&mut *heard.lock().expect("no panic"));
        assert_eq!(
            heard,
            ["collected 2", "Shutdown: 1 objects are left in heap 'library' at its end"]
        );
        drop(kept);
    }

    #[test]
    fn the_services_refuse_the_mutator_of_another_heap() {
        let builder = || Heap::builder().reserve(1 << 30).pacing(Pacing::manual());
        let services = builder().build().expect("a heap").services();
        let other = builder().build().expect("a heap");
        let mut m = other.attach();
        let object: AnyGc = m.alloc(7).into();
        type Call<'a> = (&'a str, &'a dyn Fn(&mut Mutator));
        let calls: [Call<'_>; 15] = [
            ("collect_if_enabled", &|m| drop(services.collect_if_enabled(m))),
            ("collect", &|m| drop(services.collect(m, 2))),
            ("collect_generation", &|m| drop(services.collect_generation(m, 2))),
            ("final_collection", &|m| drop(services.final_collection(m))),
            ("counts", &|m| drop(services.counts(m))),
            ("garbage_len", &|m| _ = services.garbage_len(m)),
            ("garbage_get", &|m| drop(services.garbage_get(m, 0))),
            ("garbage", &|m| drop(services.garbage(m))),
            ("garbage_remove", &|m| drop(services.garbage_remove(m, 0))),
            ("garbage_take", &|m| drop(services.garbage_take(m))),
            ("freeze", &|m| drop(services.freeze(m))),
            ("unfreeze", &|m| drop(services.unfreeze(m))),
            ("freeze_count", &|m| drop(services.freeze_count(m))),
            ("objects", &|m| drop(services.objects(m, None))),
            ("visit_objects", &|m| drop(services.visit_objects(m, |_, _| Visit::Continue))),
        ];
        for (name, call) in calls {
            let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| call(&mut m)));
            let payload = result.expect_err(name);
            let text = payload.downcast_ref::<&str>().copied().unwrap_or_default();
            assert!(
                text.starts_with("the services of one heap were used with the Mutator of another"),
                "{name}"
            );
        }
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            drop(services.referrers(&mut m, std::slice::from_ref(&object)));
        }));
        assert!(result.is_err(), "referrers");
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            drop(services.referents(&mut m, std::slice::from_ref(&object)));
        }));
        assert!(result.is_err(), "referents");
    }

    #[test]
    fn u_17_legacy_finalizers_end_up_in_the_garbage_list() {
        let heap = Heap::builder().pacing(Pacing::manual()).build().expect("a heap");
        let services = heap.services();
        let mut m = heap.attach();
        cycle(&m);
        assert_eq!(m.collect().collected, 2, "off by default");
        services.expect_legacy_finalizers(true);
        let lines = Arc::new(std::sync::Mutex::new(Vec::new()));
        let to = Arc::clone(&lines);
        services.set_debug_sink(move |line| to.lock().expect("lines").push(line.to_owned()));
        services.set_debug(DEBUG_UNCOLLECTABLE).expect("flags");
        cycle(&m);
        let report = m.collect();
        assert_eq!((report.found(), report.collected, report.uncollectable), (2, 0, 2));
        let told = std::mem::take(&mut *lines.lock().expect("lines"));
        assert!(
            told.len() == 2 && told.iter().all(|line| line.starts_with("gc: uncollectable <")),
            "{told:?}"
        );
        assert_eq!(m.collect().found(), 0, "the list holds it");
        let garbage = services.garbage(&m);
        assert_eq!(garbage.len(), 1);
        assert_eq!(heap.stats().live_objects, 2);
        garbage[0].downcast_ref::<Legacy>(&m).expect("one of them").to.set(&m, None);
        drop((garbage, services.garbage_take(&m)));
        assert_eq!(heap.stats().live_objects, 0);
    }
}
