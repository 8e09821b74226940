//! Some data of a mutator is used by other threads, for example its queue, and all the rest by its
//! own thread only. So the built-in model has two parts per mutator, of which only one needs locks
//! or atomics, and one part per heap.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::collections::HashSet;
use std::ptr::NonNull;
use std::rc::Rc;
use std::sync::Arc;

use crate::base::fallible::{self, NoMemory};
use crate::base::sync::{AtomicBool, AtomicU64, AtomicUsize, Mutex};
use crate::heap::child::is_child;
use crate::heap::core;
use crate::heap::mutator::ModelMutator;
use crate::heap::parts::{ForkLocks, HeldLocks};
use crate::managed::drop_batch::DropBatch;
use crate::managed::ephemerons::WeakTables;
use crate::managed::merge_queue::MergeQueue;
use crate::memory::quarantine::Quarantine;
use crate::memory::shape::GRANULE;
use crate::object::address::Object;
use crate::object::counted::{self, CountedRef};
use crate::object::header::Header;
use crate::object::live::{DeadObject, Live, Stopped};
use crate::object::type_info::TypeInfo;
use crate::object::type_info::TypeRegistry;
use crate::object::weak::{SPACING, WeakTable};
use crate::report::error::{Code, Fault};
use crate::report::hooks::Hooks;
use crate::safepoint::lock;

/// A request: drain the deferred list.
pub(super) const DRAIN_REQUEST: u32 = 1 << 9;
/// A request: pass a safepoint, references are waiting for it.
pub(super) const QUIESCE_REQUEST: u32 = 1 << 10;

// Objects are a granule apart or more, so each has its own place in the table of weak records.
const _: () = assert!(SPACING == GRANULE);

pub(crate) type ManagedCore = core::Core<Managed>;
pub(crate) type Raw = ModelMutator<Managed>;

/// The part of the heap.
#[derive(Debug)]
pub struct Managed {
    pub(crate) types: TypeRegistry,
    pub(crate) weak: WeakTable,
    pub(crate) tables: Arc<WeakTables>,
    /// A fork locks it, like the registry, because unattached threads can drop references
    /// meanwhile.
    pub(super) deferred: lock::ForkMutex<Deferred>,
    /// References that the thread with the stop drops, which may be the one that forks.
    pub(super) deferred_in_stop: Mutex<Vec<CountedRef>>,
    /// Whether one of the lists may have entries, so that an attaching thread need not lock them to
    /// see.
    pub(super) has_deferred: AtomicBool,
    /// Published retired references, each with its epoch.
    pub(super) retired: Mutex<Vec<(u64, CountedRef)>>,
    pub(super) epoch: AtomicU64,
    /// Objects of a collection that are cleared after its other garbage.
    pub(super) cleared_last: Mutex<Vec<CountedRef>>,
    /// Objects left in a closed heap.
    pub(super) left: AtomicUsize,
    /// Checked mode: addresses are looked up, and the memory of freed dynamic objects waits in the
    /// quarantine before it is reused. Plain, because it is written before the heap is shared.
    pub(crate) checked: bool,
    /// Nanoseconds after which a traverse handler is reported as slow; 0: never.
    pub(crate) slow_handler: u64,
    pub(crate) quarantine: Quarantine,
    /// Mistakes of traverse handlers, which are reported when the world runs.
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
pub struct SharedPart {
    pub(super) queue: MergeQueue,
    /// The epoch at the last safepoint.
    pub(super) seen: AtomicU64,
}

/// The part of a mutator that only its own thread can use.
#[expect(missing_debug_implementations, reason = "public only for the conformance kit")]
pub struct OwnPart {
    /// Type indices by the address of the type's table: a cache of the registry, for allocation.
    pub(super) types: [Cell<(*const TypeInfo, u32)>; TYPE_CACHE_SIZE],
    /// The destruction stack.
    pub(super) dying: RefCell<Vec<DeadObject>>,
    /// The calls that are on the thread's stack: see [`release`](super::release).
    pub(super) busy: Cell<u8>,
    /// Retired references that are not published yet.
    pub(super) retired: RefCell<Vec<CountedRef>>,
    pub(super) drop_batch: DropBatch,
    /// A mutator that was found ended, for good because ids are not reused; 0: none.
    pub(super) known_ended: Cell<u64>,
    /// The data that the program has given to the mutator.
    pub(crate) user_data: RefCell<Option<Rc<dyn Any>>>,
}

pub(super) const TYPE_CACHE_SIZE: usize = 64;

impl Managed {
    pub(crate) fn new() -> Result<Self, NoMemory> {
        let tables = fallible::arc(WeakTables::default())?;
        Ok(Self {
            types: TypeRegistry::new(),
            weak: WeakTable::default(),
            tables,
            deferred: lock::ForkMutex::new(Deferred::default()),
            deferred_in_stop: Mutex::new(Vec::new()),
            has_deferred: AtomicBool::new(false),
            retired: Mutex::new(Vec::new()),
            epoch: AtomicU64::new(0),
            cleared_last: Mutex::new(Vec::new()),
            left: AtomicUsize::new(0),
            checked: false,
            slow_handler: 0,
            quarantine: Quarantine::of_objects(),
            faults: Mutex::default(),
            null_visitors: Mutex::default(),
            serial: Mutex::new(()),
            legacy: AtomicBool::new(false),
        })
    }

    /// Sets whether types may have legacy finalizers.
    #[cfg(feature = "cpython")]
    pub(crate) fn expect_legacy(&self, expect: bool) {
        // Relaxed: objects of such a type are allocated after this, and a stop orders it.
        self.legacy.store(expect, crate::base::sync::Ordering::Relaxed);
    }

    /// Whether addresses are looked up.
    #[inline(always)]
    pub(crate) fn is_checked(&self) -> bool {
        self.checked
    }

    /// Nanoseconds after which a traverse handler is reported as slow; 0: never.
    #[cfg(feature = "cpython")]
    pub(crate) fn slow_handler(&self) -> u64 {
        self.slow_handler
    }

    /// Records a mistake of a handler that runs in a stop, where no hook can be called. In a child
    /// it is lost, so that only the searches in a stop find it.
    pub(crate) fn record_fault(&self, fault: Fault) {
        if is_child() {
            return;
        }
        let mut faults = self.faults.lock();
        // A handler that visits null does so each time, so it is reported once for each type.
        if fault.code == Code::NullVisit {
            let mut visitors = self.null_visitors.lock();
            let is_new = visitors.try_reserve(1).is_err() || visitors.insert(fault.type_name);
            if !is_new {
                return;
            }
        }
        // A mistake may recur with each object, so it is recorded once, and the number is bounded.
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

    /// Keeps unattached threads off the deferred list for a fork, so that the child finds it whole.
    pub(super) fn lock_deferred_for_fork(&self) -> ForkLocks<'_> {
        ForkLocks::of(HeldDeferred {
            deferred: self.deferred.lock_for_fork(),
            #[cfg(all(test, loom))]
            model: self,
        })
    }

    /// Calls `f` once with all `objects`, if they are of one type, and otherwise with each of them.
    ///
    /// The comparison has no branch for each object, because the processor could not predict it
    /// where types alternate.
    #[inline(always)]
    pub(super) fn by_type(&self, objects: &[Stopped<'_>], mut f: impl FnMut(&TypeInfo, &[Object])) {
        let index = |object: &Stopped<'_>| object.live().header().type_index();
        let Some(first) = objects.first().map(index) else { return };
        let differs = objects.iter().fold(0, |differs, object| differs | (index(object) ^ first));
        if differs == 0 {
            f(self.types.get(first), Stopped::objects(objects));
        } else {
            objects
                .chunks(1)
                .for_each(|one| f(self.types.get(index(&one[0])), Stopped::objects(one)));
        }
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

/// The index of a type that is not in the mutator's cache, to which it is added.
#[cold]
#[inline(never)]
fn index_in_registry(m: &Raw, info: &'static TypeInfo) -> Result<u32, NoMemory> {
    let index = m.model().types.index_of(info)?;
    type_slot(m, info).set((info, index));
    Ok(index)
}

#[inline(always)]
fn type_slot<'a>(m: &'a Raw, info: &'static TypeInfo) -> &'a Cell<(*const TypeInfo, u32)> {
    &m.private().types[((&raw const *info) as usize >> 4) % TYPE_CACHE_SIZE]
}

/// A live object, and the table that its header names.
#[derive(Clone, Copy)]
pub(super) struct TypedObject<'a> {
    object: Live<'a>,
    info: &'static TypeInfo,
}

impl Managed {
    pub(super) fn typed<'a>(&self, object: Live<'a>) -> TypedObject<'a> {
        TypedObject { object, info: self.info(object.header()) }
    }

    /// Puts an object off until the other garbage of the collection is cleared and released, or
    /// returns `false` because there is no memory for that.
    pub(super) fn clear_last(&self, object: Live<'_>, m: &Raw) -> bool {
        let mut last = self.cleared_last.lock();
        if last.try_reserve(1).is_err() {
            return false;
        }
        object.header().clone_ref(m.id());
        // SAFETY: rule *counted*: the reference that was just added.
        last.push(unsafe { CountedRef::new(counted::header(object.object())) });
        true
    }
}

impl TypedObject<'_> {
    fn header(self) -> NonNull<Header> {
        counted::header(self.object.object())
    }

    pub(super) fn is_dynamic(self) -> bool {
        self.info.dealloc.is_some()
    }

    pub(super) fn name(self) -> &'static str {
        // SAFETY: rules *counted* and *typed*: alive, as the proof says, and of this type.
        unsafe { (self.info.name)(self.header()) }
    }

    pub(super) fn has_finalizer(self) -> bool {
        self.info.finalize.is_some()
            // SAFETY: as in `name`.
            && self.info.has_finalizer.is_none_or(|has| unsafe { has(self.header()) })
    }

    pub(super) fn is_legacy(self) -> bool {
        // SAFETY: as in `name`.
        self.info.legacy.is_some_and(|legacy| unsafe { legacy(self.header()) })
    }

    pub(super) fn finalize(self, m: &Raw) {
        if let Some(finalize) = self.info.finalize {
            // SAFETY: as in `name`. The mutator is attached to the object's heap.
            unsafe { finalize(self.header(), (&raw const *m).cast()) };
        }
    }

    /// Whether the object is cleared after the other garbage.
    pub(super) fn clears_last(self) -> bool {
        // SAFETY: as in `name`.
        self.info.clears_last.is_some_and(|clears_last| unsafe { clears_last(self.header()) })
    }

    /// Empties the fields that can close a cycle.
    pub(super) fn clear(self, m: &Raw) {
        // SAFETY: as in `finalize`.
        unsafe { (self.info.clear)(self.info.value(self.header()), (&raw const *m).cast()) };
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
