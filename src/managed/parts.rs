//! The data of the built-in model: one part per heap, two parts per mutator.

#![forbid(unsafe_code)]

use std::cell::{Cell, RefCell};
use std::collections::HashSet;
use std::sync::Arc;

use crate::base::error::{Code, Fault};
use crate::base::fallible::NoMemory;
use crate::base::hooks::Hooks;
use crate::base::sync::{AtomicBool, AtomicU64, AtomicUsize, Mutex, Ordering};
use crate::heap::fork_locks::{ForkLocks, HeldLocks};
use crate::heap::mutator;
use crate::heap::mutator::ModelMutator;
use crate::managed::drop_batch::DropBatch;
use crate::managed::merge_queue::MergeQueue;
use crate::memory::quarantine::Quarantine;
use crate::memory::space::GRANULE;
use crate::object::counted::CountedRef;
use crate::object::header::Header;
use crate::object::live::{DeadObject, Stopped};
use crate::object::type_info::TypeInfo;
use crate::object::type_registry::TypeRegistry;
use crate::object::weak::WeakTable;
use crate::object::weak_table::SPACING;
use crate::safepoint::lock;

/// A request: drain the deferred list.
pub(super) const DRAIN_REQUEST: u32 = 1 << 9;
/// A request: pass a safepoint, references are waiting for it.
pub(super) const QUIESCE_REQUEST: u32 = 1 << 10;

// Each object has a place of its own in the table of weak records.
const _: () = assert!(SPACING == GRANULE);

pub(crate) type ManagedCore = mutator::Core<Managed>;
pub(crate) type Raw = ModelMutator<Managed>;

/// The part of the heap.
#[derive(Debug)]
pub(crate) struct Managed {
    pub(crate) types: TypeRegistry,
    pub(crate) weak: WeakTable,
    /// A fork locks it, like the registry, because unattached threads can drop references during a
    /// fork.
    pub(super) deferred: lock::ForkMutex<Deferred>,
    /// References that the thread with the stop drops. That thread may be the one that forks.
    pub(super) deferred_in_stop: Mutex<Vec<CountedRef>>,
    /// Whether one of the lists may have entries. An attaching thread reads it.
    pub(super) has_deferred: AtomicBool,
    /// Published retired references, each with its epoch.
    pub(super) retired: Mutex<Vec<(u64, CountedRef)>>,
    pub(super) epoch: AtomicU64,
    /// Objects of a collection that are cleared after its other garbage.
    pub(super) cleared_last: Mutex<Vec<CountedRef>>,
    /// Objects left in a closed heap.
    pub(super) left: AtomicUsize,
    /// Checked mode: addresses are looked up, and the memory of freed dynamic objects is reused
    /// late.
    pub(super) checked: AtomicBool,
    /// Nanoseconds after which a traverse handler is reported as slow; 0: never.
    pub(super) slow_handler: AtomicU64,
    /// The memory of freed dynamic objects, in checked mode.
    pub(crate) quarantine: Quarantine,
    /// Mistakes of traverse handlers. They are reported when the world runs.
    pub(super) faults: Mutex<RecordedFaults>,
    /// Types with a traverse handler that has visited null.
    pub(super) null_visitors: Mutex<HashSet<&'static str>>,
    /// Locked while a traverse handler runs that must not run in parallel.
    #[cfg_attr(
        not(feature = "cpython"),
        allow(dead_code, reason = "only dynamic objects read it")
    )]
    pub(crate) serial: Mutex<()>,
    /// Whether types may have legacy finalizers.
    pub(super) legacy: AtomicBool,
}

/// Mistakes of traverse handlers that were not reported yet.
#[derive(Debug, Default)]
pub(super) struct RecordedFaults {
    pub(super) list: Vec<Fault>,
    /// The first mistake after the memory for the list ran out.
    pub(super) last: Option<Fault>,
}

/// A fork holds the deferred list.
struct HeldDeferred<'a> {
    #[cfg_attr(not(all(test, loom)), expect(dead_code, reason = "it only holds the lock"))]
    deferred: (lock::ForkHold<'a>, lock::Guard<'a, Deferred>),
    #[cfg(all(test, loom))]
    model: &'a Managed,
}

impl HeldLocks for HeldDeferred<'_> {
    #[cfg(all(test, loom))]
    fn are_whole(&self) -> bool {
        let Managed { deferred, retired, .. } = self.model;
        deferred.is_held_by_or_open(Some(&self.deferred.1)) && retired.is_held_by_or_open(None)
    }
}

/// The deferred references of a heap.
#[derive(Debug, Default)]
pub(crate) struct Deferred {
    pub(super) list: Vec<CountedRef>,
    /// The request to drain the list has been raised.
    pub(super) poked: bool,
    /// The core of a closed heap that still contains objects.
    pub(super) closed: Option<Arc<ManagedCore>>,
}

/// The part of a mutator that other threads can use.
#[derive(Debug)]
pub(crate) struct SharedPart {
    pub(super) queue: MergeQueue,
    /// The epoch at the last safepoint.
    pub(super) seen: AtomicU64,
}

/// The part of a mutator that only its own thread can use.
pub(crate) struct OwnPart {
    /// Type indices by the address of the type's table: a cache of the registry, for allocation.
    pub(super) types: [Cell<(*const TypeInfo, u32)>; TYPE_CACHE_SIZE],
    /// The destruction stack.
    pub(super) dying: RefCell<Vec<DeadObject>>,
    /// The calls that are on the thread's stack: [`DESTRUCTION`], [`HANDLER_CALL`].
    pub(super) busy: Cell<u8>,
    /// Retired references that are not published yet.
    pub(super) retired: RefCell<Vec<CountedRef>>,
    pub(super) drop_batch: DropBatch,
    /// The last mutator that this thread has found ended; 0: none. It stays true.
    pub(super) known_ended: Cell<u64>,
}

/// The destruction of an object. The objects that die meanwhile go on the destruction stack.
pub(super) const DESTRUCTION: u8 = 1;
/// A call of a handler of a dynamic object. The handler is a C function, which a panic must not
/// leave.
pub(super) const HANDLER_CALL: u8 = 2;

impl OwnPart {
    /// Calls a handler of a dynamic object. A panic of a destructor is reported meanwhile: it would
    /// end the process.
    #[cfg_attr(not(feature = "cpython"), allow(dead_code, reason = "only `dynamic` calls it"))]
    pub(crate) fn in_handler<R>(&self, f: impl FnOnce() -> R) -> R {
        struct Left<'a>(&'a OwnPart, bool);
        impl Drop for Left<'_> {
            fn drop(&mut self) {
                if !self.1 {
                    self.0.exit(HANDLER_CALL);
                }
            }
        }
        let _left = Left(self, self.enter(HANDLER_CALL));
        f()
    }

    /// Adds a call to the stack; `true`: there was one already.
    pub(super) fn enter(&self, what: u8) -> bool {
        let busy = self.busy.get();
        self.busy.set(busy | what);
        busy & what != 0
    }

    pub(super) fn exit(&self, what: u8) {
        self.busy.set(self.busy.get() & !what);
    }

    /// Whether a panic can go on to the code that dropped the reference.
    pub(super) fn may_unwind(&self) -> bool {
        self.busy.get() & HANDLER_CALL == 0 && !std::thread::panicking()
    }
}

/// Places of the cache of type indices.
pub(super) const TYPE_CACHE_SIZE: usize = 64;
/// Objects for which the destruction stack has memory from the start.
pub(super) const DESTRUCTION_STACK_ROOM: usize = 16;

impl Managed {
    pub(crate) fn new() -> Self {
        Self {
            types: TypeRegistry::new(),
            weak: WeakTable::default(),
            deferred: lock::ForkMutex::new(Deferred::default()),
            deferred_in_stop: Mutex::new(Vec::new()),
            has_deferred: AtomicBool::new(false),
            retired: Mutex::new(Vec::new()),
            epoch: AtomicU64::new(0),
            cleared_last: Mutex::new(Vec::new()),
            left: AtomicUsize::new(0),
            checked: AtomicBool::new(false),
            slow_handler: AtomicU64::new(0),
            quarantine: Quarantine::of_objects(),
            faults: Mutex::default(),
            null_visitors: Mutex::default(),
            serial: Mutex::new(()),
            legacy: AtomicBool::new(false),
        }
    }

    /// Sets whether types may have legacy finalizers.
    #[cfg(feature = "cpython")]
    pub(crate) fn expect_legacy(&self, expect: bool) {
        // Relaxed: objects of such a type are allocated after this, and a stop orders it.
        self.legacy.store(expect, Ordering::Relaxed);
    }

    /// Whether addresses are looked up.
    #[inline(always)]
    pub(crate) fn is_checked(&self) -> bool {
        // Relaxed: written before another thread can use the heap.
        self.checked.load(Ordering::Relaxed)
    }

    /// Nanoseconds after which a traverse handler is reported as slow; 0: never.
    #[cfg(feature = "cpython")]
    pub(crate) fn slow_handler(&self) -> u64 {
        // Relaxed: as in `is_checked`.
        self.slow_handler.load(Ordering::Relaxed)
    }

    pub(crate) fn set_slow_handler(&self, nanoseconds: u64) {
        self.slow_handler.store(nanoseconds, Ordering::Relaxed);
    }

    pub(crate) fn set_checked(&self, checked: bool) {
        self.checked.store(checked, Ordering::Relaxed);
    }

    /// Records a mistake of a handler that runs in a stop, where no hook can be called.
    pub(crate) fn record_fault(&self, fault: Fault) {
        let mut faults = self.faults.lock();
        // A handler that visits null does so in each traversal: reported once for each type.
        if fault.code == Code::NullVisit {
            let mut visitors = self.null_visitors.lock();
            let is_new = visitors.try_reserve(1).is_err() || visitors.insert(fault.type_name);
            if !is_new {
                return;
            }
        }
        // Each mistake is recorded once, and their number is bounded.
        let same = |n: &Fault| {
            (n.code, n.type_name, n.function) == (fault.code, fault.type_name, fault.function)
        };
        if faults.list.len() < 256 && !faults.list.iter().any(same) {
            if faults.list.try_reserve(1).is_ok() {
                faults.list.push(fault);
            } else {
                faults.last.get_or_insert(fault);
            }
        }
    }

    /// Reports the recorded mistakes.
    pub(crate) fn report_faults(&self, hooks: &Hooks) {
        let faults = {
            let mut faults = self.faults.lock();
            if faults.list.is_empty() && faults.last.is_none() {
                return;
            }
            std::mem::take(&mut *faults)
        };
        for fault in faults.list.into_iter().chain(faults.last) {
            hooks.misuse(&fault);
        }
    }

    /// Keeps unattached threads away from the deferred list, for a fork.
    pub(super) fn lock_deferred_for_fork(&self) -> ForkLocks<'_> {
        ForkLocks::of(HeldDeferred {
            deferred: self.deferred.lock_for_fork(),
            #[cfg(all(test, loom))]
            model: self,
        })
    }

    /// The type of `objects`, if all are of one type.
    ///
    /// There is no branch for each object: the processor could not predict it where types
    /// alternate.
    #[inline(always)]
    pub(super) fn alike(&self, objects: &[Stopped<'_>]) -> Option<&'static TypeInfo> {
        let index = |object: &Stopped<'_>| object.live().header().type_index();
        let first = index(objects.first()?);
        let differs = objects.iter().fold(0, |differs, object| differs | (index(object) ^ first));
        (differs == 0).then(|| self.types.get(first))
    }

    pub(super) fn info(&self, header: &Header) -> &'static TypeInfo {
        self.types.get(header.type_index())
    }
}

/// The index of a type in the mutator's heap. An error: there is no memory for a type that is new
/// in the heap.
#[inline(always)]
pub(crate) fn type_index(m: &Raw, info: &'static TypeInfo) -> Result<u32, NoMemory> {
    let (cached, index) = type_slot(m, info).get();
    if std::ptr::eq(cached, info) { Ok(index) } else { index_in_registry(m, info) }
}

/// The index of a type that is not in the mutator's cache. Afterwards it is.
#[cold]
#[inline(never)]
fn index_in_registry(m: &Raw, info: &'static TypeInfo) -> Result<u32, NoMemory> {
    let index = m.model().types.index_of(info)?;
    type_slot(m, info).set((info, index));
    Ok(index)
}

/// The cell of the mutator's cache for a type.
#[inline(always)]
fn type_slot<'a>(m: &'a Raw, info: &'static TypeInfo) -> &'a Cell<(*const TypeInfo, u32)> {
    &m.private().types[((&raw const *info) as usize >> 4) % TYPE_CACHE_SIZE]
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::AnyGc;
    use crate::managed::tests::plain_heap;

    #[test]
    fn mistakes_of_handlers_are_noted_once_each_and_not_without_end() {
        let heap = plain_heap();
        let told = Arc::new(std::sync::Mutex::new(Vec::new()));
        let to = Arc::clone(&told);
        heap.on_misuse(move |fault| {
            to.lock().expect("no panic").push((fault.code, fault.function))
        });
        let core = heap.core();
        let tell = || {
            core.model.report_faults(&core.hooks);
            std::mem::take(&mut *told.lock().expect("no panic"))
        };
        for _ in 0..2 {
            core.model.record_fault(Fault::new(Code::OverVisited, "one"));
            core.model.record_fault(Fault::new(Code::OverVisited, "two"));
        }
        assert_eq!(tell(), [(Code::OverVisited, "one"), (Code::OverVisited, "two")]);
        assert_eq!(tell(), [], "they are told once");
        for told in [1, 0] {
            core.model.record_fault(Fault::new(Code::NullVisit, "one"));
            assert_eq!(tell().len(), told);
        }
        core.model.record_fault(Fault::new(Code::NullVisit, "two"));
        assert_eq!(tell(), [], "null: once for each type");
        let names: Vec<&'static str> = (0..300).map(|n| &*format!("{n}").leak()).collect();
        names.iter().for_each(|name| core.model.record_fault(Fault::new(Code::OverVisited, name)));
        assert_eq!(tell().len(), 256);
    }

    #[test]
    fn a_thread_knows_what_is_on_its_stack() {
        let heap = plain_heap();
        let m = heap.attach();
        let private = m.raw().private();
        assert!(private.may_unwind());
        assert!(!private.enter(DESTRUCTION));
        assert!(private.enter(DESTRUCTION), "already");
        assert!(private.may_unwind(), "a destructor's panic goes on");
        private.in_handler(|| {
            assert!(!private.may_unwind(), "not through a C function");
            private.in_handler(|| assert!(!private.may_unwind()));
            assert!(!private.may_unwind(), "the outer one is not through");
        });
        assert!(private.may_unwind());
        private.exit(DESTRUCTION);
        assert_eq!(private.busy.get(), 0);
    }

    #[test]
    fn types_share_places_of_the_cache_without_harm() {
        let heap = plain_heap();
        let m = heap.attach();
        let one = m.alloc(1u64);
        let one = one.into_reference();
        let number = one.header().type_index();
        let info = m.raw().model().types.get(number);
        assert_eq!(type_index(m.raw(), info), Ok(number));
        // Another type in its place: the registry is asked again.
        m.raw().private().types.iter().for_each(|slot| slot.set((std::ptr::null(), 77)));
        assert_eq!(type_index(m.raw(), info), Ok(number));
        assert_eq!(type_index(m.raw(), info), Ok(number));
        drop(AnyGc::from_reference(one));
    }
}
