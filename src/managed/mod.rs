//! If every thread changed a count atomically, each clone and each drop would be slow, although
//! most objects are used by one thread only. So the objects of the built-in model have biased
//! counts: the owner counts in one half, `local`, and all other threads in `shared`. The thread
//! that brings a count to 0 destroys the object, whose type it finds by the index in the header.
//!
//! # Drop of a reference
//!
//! * The owner, if it is attached, lowers `local` by a plain store, because no other thread writes
//!   that half meanwhile.
//! * Another thread that is attached to the same heap lowers `shared`. If the half becomes
//!   negative, the thread queues the object for its owner.
//! * Any other thread, which is unattached, attached to another heap, or inside a traversal, puts
//!   the reference on the *deferred* list of the heap.
//!
//! A deferred reference still counts until an attached thread drains the list. So no count is
//! lowered while the world is stopped, because attached threads are parked and all others defer.
//!
//! # Queues
//!
//! Each mutator has a [queue](merge_queue) of objects whose shared half went below zero, because
//! whether they are dead is known only after the owner's half is added. A request bit makes the
//! owner merge its queue at its next safepoint. A detached owner reaches no safepoint, so the
//! enqueuing thread suspends it and merges on its behalf. If the owner has ended, its queue is
//! closed, so that the enqueuing thread merges the object immediately. A collection merges all
//! queues in its stop, so that no dead object is left in one.
//!
//! # Destruction
//!
//! A thread runs the finalizer of a dead object, once, which may revive the object. Then it clears
//! the weak references, runs the destructor, and frees the memory. Other objects can die meanwhile,
//! because the destructor drops references. The thread puts these on an explicit stack, so that a
//! long list does not overflow the stack of calls. The explicit stack is empty when control returns
//! to the user, also after a panic of a destructor.
//!
//! A handle that knows its type destroys the object in place (`destroy_in_place`). The object must
//! have no finalizer, no weak record, and no memory outside the heap that the heap counts. The
//! objects that die with it go on the stack.
//!
//! A thread with a [`TraversalGuard`](crate::safepoint::TraversalGuard) destroys nothing, because
//! handlers of dynamic objects need a mutator, and it has none. Queues and lists keep their
//! entries, and requests stay raised, until the guard is gone. A mutator that ends under a guard
//! moves the dead objects of its queue to the deferred list, and requests a drain from the attached
//! threads.
//!
//! # Retirement
//!
//! A thread may use an object that it has loaded from an [`AtomicGc`](crate::AtomicGc), while
//! another thread removes the reference from the slot. So the removed reference is *retired*: it is
//! dropped after each thread that was attached at that time has passed a safepoint or has detached.
//! For example, a reference of epoch 7 is dropped once `seen`, the epoch at the last safepoint, is
//! at least 7 for every attached mutator.
//!
//! # After the heap
//!
//! A heap is *closed* when its last handle and its last mutator are gone, and its range stays
//! mapped as long as it contains objects. A thread that drops the last reference destroys the
//! object itself, with the same kind of stack. Finalizers and weak callbacks do not run, because
//! they need a mutator.
//!
//! # Rules
//!
//! Unsafe code cites these rules:
//!
//! * **counted**: an object's memory is freed at count 0 only. So the owner of a counted
//!   reference may use the object, and so may code that borrows from that owner. A reference is
//!   given up once. A reference that was removed from a slot counts until all threads that may have
//!   loaded it have passed a safepoint.
//! * **zero**: a thread that receives [`Dead`](Dropped::Dead), or [takes the last
//!   reference](Header::take_last), has exclusive access to the object and destroys it exactly
//!   once. It is attached to the object's heap, or the heap is closed.

/// The model's data: of the heap, and of each mutator.
#[allow(unsafe_code)]
mod parts;

// Objects that are handed over instead of dying.
pub(crate) mod guards;

// The tables with weak keys.
#[allow(unsafe_code)]
pub(crate) mod ephemerons;

/// Drops by the owner, and the destruction of objects whose count is 0.
#[allow(unsafe_code)]
mod release;

/// Drops by other threads, of which one may become the owner.
#[allow(unsafe_code)]
mod foreign;

/// The queue of an owner: objects that other threads have dropped.
pub(crate) mod merge_queue;

/// Drops of threads that are not attached.
#[allow(unsafe_code)]
mod deferred;

/// References from slots that other threads may still read.
mod retired;

/// References that cleared objects have given up, dropped many at a time.
#[allow(unsafe_code)]
mod drop_batch;

/// The buffer of the handles in a short list.
#[allow(unsafe_code)]
mod handle_buffer;

/// Objects that outlive their heap.
#[allow(unsafe_code)]
mod closed;

#[allow(unsafe_code)]
#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;

use crate::base::outside;
pub(crate) use crate::object::counted::{CountedRef, header, object};
pub(crate) use closed::close;
pub(crate) use drop_batch::Batched;
#[cfg(feature = "cpython")]
pub(crate) use foreign::merge_early;
pub(crate) use foreign::{drop_shared_for_life, inherit};
pub(crate) use handle_buffer::HandleBuffer;
pub use parts::Managed;
pub(crate) use parts::{ManagedCore, OwnPart, Raw, SharedPart, type_index};
#[cfg(any(test, feature = "cpython"))]
pub(crate) use release::destroy_dynamic_in_place;
pub(crate) use release::{
    DueCallback, OnPanic, Placed, destroy_in_place, drop_reference, drop_reference_to, is_dying,
};
#[cfg(feature = "cpython")]
pub(crate) use release::{
    clear_weak_references, drop_slowly, mark_dying_for_upgrades, revived, upgrade,
};
pub(crate) use retired::{retire, retire_elsewhere};

use std::borrow::Cow;
use std::cell::{Cell, RefCell};
use std::fmt;
use std::panic::resume_unwind;
use std::ptr::NonNull;

use crate::base::stress::{Step, maybe_yield};
use crate::base::sync::{AtomicU64, Ordering};
use crate::heap::model::{Count, ObjectModel};
use crate::heap::observer::{Fate, Observer};
use crate::heap::parts::{ForkLocks, *};
use crate::heap::world::World;
use crate::managed::deferred::{drain_deferred, orphan};
use crate::managed::drop_batch::DropBatch;
use crate::managed::foreign::{merge_own_queue, merge_queue};
use crate::managed::merge_queue::{MERGE_REQUEST, MergeQueue};
use crate::managed::parts::{DRAIN_REQUEST, QUIESCE_REQUEST, TYPE_CACHE_SIZE};
use crate::managed::release::{
    DESTRUCTION_STACK_ROOM, HeldRef, destroy_all, drop_attached, run_callback,
};
use crate::managed::retired::{publish_retired, quiesce, reap};
use crate::object::address::Object;
use crate::object::header::Header;
use crate::object::live::{ClaimRef, DeadObject, Live, Stopped};
use crate::object::tracer::{Ends, Tracer};
use crate::object::weak::{WeakRecord, WeakWatcher};
use crate::report::error::{Code, Fault};
use crate::report::facts::During;
use crate::safepoint::{ThreadId, is_traversing};

/// Gives the observer of the heap a reference to each object, or none if there is no memory.
fn save(observer: &dyn Observer, objects: &[Live<'_>], m: &Raw) {
    let mut references = objects.iter().map(|object| {
        object.header().clone_ref(m.id());
        // SAFETY: rule *counted*: the reference just counted.
        unsafe { CountedRef::new(header(object.object())) }
    });
    if observer.save(&mut references).is_err() {
        let text = "no memory for the garbage list: the next collection finds the objects again";
        m.core().hooks.unraisable(During::Collect, "", text);
    }
}

// SAFETY: rules *counted*, *zero* and *stopped*: 1. `count` sums both halves; `claim_ref` and
// `release` are a claim and a drop. 2. memory is freed at count 0 only: in `destroy`,
// `destroy_in_closed`, `destroy_in_place`, `destroy_taken`, and by the handlers of dynamic objects.
// An object that is never published is freed by `Unborn`, before anybody refers to it. 3. attached
// threads are parked in a stop, others defer their drops. 4. `Tracer` takes handles only (`Gc`,
// `AnyGc`), which are counted. 5. `merge` empties every queue; an object at 0 without being queued
// is on the destruction stack of a thread that is not at a safepoint. 6. call-outs run under
// `no_safepoint`, with `&Mutator`.
unsafe impl ObjectModel for Managed {
    type Addresses = crate::memory::address_map::Reserved;
    type Parts = Self;
    const IS_BUILT_IN: bool = true;

    #[inline(always)]
    fn count(&self, object: Stopped<'_>) -> Count {
        object.live().header().count().map_or(Count::Immortal, Count::Exact)
    }

    #[inline(always)]
    fn is_immortal(&self, object: Stopped<'_>) -> bool {
        object.live().header().is_immortal()
    }

    #[inline(always)]
    fn traverse(&self, object: Stopped<'_>, tracer: &mut Tracer) {
        let info = self.info(object.live().header());
        // SAFETY: rules *counted* and *typed*: alive, as the proof says, and of the type that its
        // header names.
        unsafe { (info.traverse_each)(&[*object], tracer, &mut Ends::new(&mut [0])) };
    }

    fn claim_ref(&self, object: Stopped<'_>, by: ThreadId) {
        object.live().header().claim(by.get());
    }

    fn release(&self, reference: ClaimRef, m: &Raw) {
        // SAFETY: rule *counted*: the value is the collection's reference, which it gives up.
        drop_attached(m, unsafe { CountedRef::new(header(reference.object())) });
    }

    fn clear(&self, object: Live<'_>, m: &Raw) {
        let typed = self.typed(object);
        if !typed.clears_last() || !self.clear_last(object, m) {
            m.private().drop_batch.clearing(*object, || typed.clear(m));
        }
    }

    fn type_name(&self, object: Live<'_>) -> Cow<'static, str> {
        self.typed(object).name().into()
    }
}

crate::parts!(
    Managed:
    ThreadData, Threads, SplitCounts, Batches, Finalizers, Verdicts, WeakRefs, Ephemerons, Checks,
    Forks, Describe
);

impl Describe<Managed> for Managed {
    fn fields(model: &Self, object: Stopped<'_>, tracer: &mut Tracer) {
        match model.info(object.live().header()).describe {
            // SAFETY: rules *counted* and *typed*: as in `traverse`.
            Some(describe) => unsafe { describe(*object, tracer) },
            None => model.traverse(object, tracer),
        }
    }

    fn label(model: &Self, object: Stopped<'_>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match model.info(object.live().header()).label {
            // SAFETY: rules *counted* and *typed*: as in `traverse`. A typed object is complete,
            // and the label of a dynamic one, which may not be, reads no field of a program.
            Some(label) => unsafe { label(*object, f) },
            None => Ok(()),
        }
    }

    /// An untracked object is complete: its type has no references.
    fn external_bytes(model: &Self, object: Stopped<'_>, tracer: &mut Tracer) -> usize {
        let info = model.info(object.live().header());
        let (Some(describe), Some(_)) = (info.describe, info.external) else { return 0 };
        tracer.take_external();
        // SAFETY: rules *counted* and *typed*: as in `traverse`.
        unsafe { describe(*object, tracer) };
        tracer.take_external()
    }

    fn is_part(model: &Self, object: Stopped<'_>) -> bool {
        std::ptr::eq(model.info(object.live().header()), handle_buffer::INFO)
    }
}

impl ThreadData<Managed> for Managed {
    type Local = SharedPart;
    type Private = OwnPart;

    fn local(_: &Self) -> SharedPart {
        SharedPart { queue: MergeQueue::new(), seen: AtomicU64::new(0) }
    }

    fn private(_: &Self) -> Option<OwnPart> {
        let mut dying = Vec::new();
        dying.try_reserve_exact(DESTRUCTION_STACK_ROOM).ok()?;
        Some(OwnPart {
            types: [const { Cell::new((std::ptr::null(), 0)) }; TYPE_CACHE_SIZE],
            dying: RefCell::new(dying),
            busy: Cell::new(0),
            retired: RefCell::new(Vec::new()),
            drop_batch: DropBatch::default(),
            known_ended: Cell::new(0),
            user_data: RefCell::new(None),
        })
    }

    /// The next mutator can use the type indices, which stay valid, and `known_ended`, which stays
    /// true. Nothing else is left, unless the mutator has ended inside a destruction.
    fn keeps_private(_: &Self, private: &mut OwnPart) -> bool {
        let OwnPart { types: _, dying, busy, retired, drop_batch, known_ended: _, user_data } =
            private;
        retired.take();
        // The destructor of the data may have set new ones.
        user_data.take();
        *drop_batch = DropBatch::default();
        dying.get_mut().shrink_to(DESTRUCTION_STACK_ROOM);
        busy.get() == 0 && dying.get_mut().is_empty()
    }
}

impl Threads<Managed> for Managed {
    /// Any mutator can answer these, because the deferred and the retired references belong to the
    /// heap. A request to merge is not shared, because a queue belongs to its owner.
    const SHARED_REQUESTS: u32 = DRAIN_REQUEST | QUIESCE_REQUEST;

    fn refused(model: &Self, m: &Raw) -> bool {
        let mut any = false;
        while let Some(oldest) = model.quarantine.pop() {
            // SAFETY: rule *owner*: the cell was freed, and has had no owner since; the quarantine
            // returns each cell once.
            unsafe { m.free_unprefixed(oldest.start()) };
            any = true;
        }
        any
    }

    fn answer(_: &Self, requests: u32, m: &Raw) {
        if requests & MERGE_REQUEST != 0 {
            maybe_yield(&m.core().under, Step::Merge);
            merge_own_queue(m);
        }
        if requests & DRAIN_REQUEST != 0 {
            drain_deferred(m);
        }
        if requests & QUIESCE_REQUEST != 0 {
            quiesce(m);
        }
    }

    fn attached(model: &Self, m: &Raw) {
        // SeqCst: the other half of `new_epoch`.
        let epoch = model.epoch.load(Ordering::SeqCst);
        // Usually they are equal, because no reference was retired. Relaxed: this thread has
        // written it, or a stop before this, and the load of the epoch orders.
        if m.local().seen.load(Ordering::Relaxed) != epoch {
            // Release: as in `quiesce`, for the loads of this thread when it was attached before.
            m.local().seen.store(epoch, Ordering::Release);
            // This thread may be the last for which a retired reference waits.
            reap(m);
        }
        drain_deferred(m);
    }

    fn ending(model: &Self, m: &Raw) {
        let dropped = outside::guarded(|| {
            let _lent = m.lend();
            drop(m.private().user_data.take());
        });
        Self::leave_queues(model, m);
        if let Err(payload) = dropped {
            resume_unwind(payload);
        }
    }
}

impl Managed {
    /// Empties the lists and queues of a mutator that ends.
    fn leave_queues(model: &Self, m: &Raw) {
        // The batch is empty, unless a panic of a hook has ended a collection.
        Self::cleared(model, m, true);
        if is_traversing() {
            // There may be no memory to publish references, which then leak with the mutator.
            let _ = publish_retired(m);
            orphan(model, m.thread_id(), m.local());
            m.core().coordinator.poke_attached(DRAIN_REQUEST);
            return;
        }
        loop {
            if !publish_retired(m) {
                // They leak, because no thread can publish them after this one has ended.
                m.private().retired.take();
            }
            quiesce(m);
            drain_deferred(m);
            if m.private().retired.borrow().is_empty() && m.local().queue.close_if_empty() {
                return;
            }
            for dead in merge_queue(&m.local().queue) {
                destroy_all(m, dead, OnPanic::Report);
            }
        }
    }
}

impl SplitCounts<Managed> for Managed {
    fn claim_ref_for_any(_: &Self, object: Stopped<'_>, _: ThreadId) {
        object.live().header().claim_merged();
    }

    fn prepare(_: &Self, m: &Raw) {
        quiesce(m);
        drain_deferred(m);
        merge_own_queue(m);
    }

    fn pending(_: &Self, world: &World<'_, Self>) -> usize {
        let mut pending = 0;
        world.locals(|_, local| pending += local.queue.len().unwrap_or(0));
        pending
    }

    fn merge(model: &Self, world: &World<'_, Self>, dead: &mut Vec<DeadObject>) {
        // The stop counts as a safepoint of every thread. Relaxed, both: the stop orders them.
        let epoch = model.epoch.load(Ordering::Relaxed);
        world.locals(|_, local| {
            dead.extend(merge_queue(&local.queue));
            local.seen.store(epoch, Ordering::Relaxed);
        });
    }

    fn destroy_merged(_: &Self, dead: DeadObject, m: &Raw) {
        destroy_all(m, dead, OnPanic::Report);
    }

    fn resumed(model: &Self, m: &Raw) {
        model.report_faults(&m.core().hooks);
        reap(m);
        drain_deferred(m);
    }

    fn after_clear(model: &Self, m: &Raw) -> bool {
        // Taken out of the lock, because a clear handler runs code of the program.
        let last = std::mem::take(&mut *model.cleared_last.lock());
        for object in last {
            let _lent = m.lend();
            model.typed(object.live()).clear(m);
            drop_attached(m, object);
        }
        quiesce(m);
        !model.retired.lock().is_empty()
    }
}

impl Batches<Managed> for Managed {
    #[inline(always)]
    fn traverse_each(
        model: &Self,
        objects: &[Stopped<'_>],
        tracer: &mut Tracer,
        ends: &mut Ends<'_>,
    ) {
        model.by_type(objects, |info, objects| {
            // SAFETY: rules *counted* and *typed*: as in `traverse`.
            unsafe { (info.traverse_each)(objects, tracer, ends) };
        });
    }

    fn prefetches(model: &Self) -> bool {
        model.types.any_indirect()
    }

    #[inline(always)]
    fn prefetch_each(model: &Self, objects: &[Stopped<'_>], tracer: &mut Tracer) {
        model.by_type(objects, |info, objects| {
            if let Some(prefetch_each) = info.prefetch_each {
                // SAFETY: rules *counted* and *typed*: as in `traverse`.
                unsafe { prefetch_each(objects, tracer) };
            }
        });
    }

    fn clearing(_: &Self, m: &Raw, objects: usize) {
        m.private().drop_batch.expect(objects, m.core().stress);
    }

    #[inline(always)]
    fn cleared(_: &Self, m: &Raw, last: bool) {
        let batch = &m.private().drop_batch;
        if (last && !batch.is_empty()) || batch.is_full() {
            drop_batched(m);
        }
    }
}

impl Finalizers<Managed> for Managed {
    fn has_finalizer(model: &Self, object: Live<'_>) -> bool {
        model.typed(object).has_finalizer()
    }

    fn finalize(model: &Self, object: Live<'_>, m: &Raw) {
        model.typed(object).finalize(m);
    }

    #[inline(always)]
    fn is_guarded(model: &Self, object: Live<'_>) -> bool {
        object.header().has_weak() && guards::is_guarded(model, object)
    }

    fn hand_over(model: &Self, object: Live<'_>, m: &Raw) {
        guards::hand_over(model, object, m);
    }
}

impl Verdicts<Managed> for Managed {
    fn has_legacy(model: &Self) -> bool {
        model.legacy.load(Ordering::Relaxed)
    }

    fn legacy(model: &Self, object: Stopped<'_>) -> bool {
        model.typed(object.live()).is_legacy()
    }

    fn judge(model: &Self, found: &Found<'_>, m: &Raw) -> Verdict {
        ephemerons::remove_orphans(m);
        let core = m.core();
        let Some(observer) = &core.observer else { return Verdict::Clear };
        for (fate, objects) in
            [(Fate::Collectable, found.garbage), (Fate::Uncollectable, found.uncollectable)]
        {
            if observer.wants(fate) {
                for &object in objects {
                    observer.found(&core.hooks, fate, model.typed(object).name(), object.address());
                }
            }
        }
        if !observer.saves_all() {
            save(&**observer, found.legacy, m);
            return Verdict::Clear;
        }
        save(&**observer, found.uncollectable, m);
        save(&**observer, found.garbage, m);
        Verdict::Keep
    }
}

impl WeakRefs<Managed> for Managed {
    type Callback = DueCallback;

    fn has_weak(_: &Self, object: Live<'_>) -> bool {
        object.header().has_weak()
    }

    fn callbacks(model: &Self, target: Stopped<'_>) -> usize {
        model.weak.get(header(*target)).map_or(0, WeakRecord::watchers)
    }

    fn take_callbacks(
        model: &Self,
        target: Stopped<'_>,
        is_unreachable: &dyn Fn(Object) -> bool,
        _: &World<'_, Self>,
        due: &mut Vec<DueCallback>,
    ) {
        let Some(record) = model.weak.get(header(*target)) else { return };
        for WeakWatcher { weak_ref, invoke, .. } in record.take_watchers() {
            // A dead or garbage weak reference gets no callback, which dies with it.
            if weak_ref.with_target(|h| is_unreachable(object(NonNull::from(h)))) != Some(false) {
                continue;
            }
            // Counted as shared, because the collecting thread need not be the owner.
            if let Some(weak_ref) = weak_ref.upgrade(0) {
                // SAFETY: rule *counted*: the upgrade made the reference.
                let weak_ref = unsafe { HeldRef::new(weak_ref) };
                due.push(DueCallback { weak_ref, invoke });
            }
        }
    }

    fn call_back(_: &Self, callback: DueCallback, m: &Raw) {
        run_callback(callback, m);
    }

    fn clear_weak(model: &Self, object: Stopped<'_>) {
        model.tables.orphan(model.weak.clear(header(*object)));
    }
}

impl Checks<Managed> for Managed {
    fn verifies_traversals(model: &Self) -> bool {
        model.is_checked()
    }

    fn verifies_traversal(model: &Self, object: Stopped<'_>) -> bool {
        model.typed(object.live()).is_dynamic()
    }

    fn examines_cleared(model: &Self, object: Live<'_>) -> bool {
        model.is_checked() && model.typed(object).is_dynamic()
    }

    fn dangles(model: &Self, object: Stopped<'_>, target: Object) {
        let fault = Fault::new(Code::FreedPointer, "clear");
        model.record_fault(fault.of_type(model.typed(object.live()).name()).at(target.address()));
    }

    fn overvisited(model: &Self, object: Stopped<'_>) {
        let typed = model.typed(object.live());
        if typed.is_dynamic() {
            let fault = Fault::new(Code::OverVisited, "collection");
            model.record_fault(fault.of_type(typed.name()).at(object.address()));
        }
    }

    fn check(model: &Self, object: Stopped<'_>) -> Result<(), String> {
        // A damaged object can be read here too, because any bytes are a header.
        let header = object.live().header();
        if model.types.find(header.type_index()).is_none() {
            return Err(format!(
                "its type is number {:#x}, and the heap has none",
                header.type_index()
            ));
        }
        header.check(ThreadId::was_given)
    }

    fn last_type(model: &Self, memory: NonNull<u8>) -> Option<&'static str> {
        // SAFETY: rule *owner*: a cell is larger than a header, any bytes are one, and the cell is
        // the caller's.
        let index = unsafe { memory.cast::<Header>().as_ref() }.type_index();
        let info = model.types.find(index)?;
        // The type of a dynamic object may have been freed before the object.
        Some(if info.dealloc.is_some() {
            "dynamic object"
        } else {
            // SAFETY: rule *typed*: the name of a typed object is a constant, which is found
            // without reading the object.
            unsafe { (info.name)(memory.cast()) }
        })
    }
}

impl Forks<Managed> for Managed {
    fn lock_for_fork(model: &Self) -> ForkLocks<'_> {
        model.lock_deferred_for_fork()
    }

    fn forked(model: &Self, lost: ThreadId, local: &SharedPart, _: &Raw) {
        orphan(model, lost, local);
    }
}

/// Drops a value that was removed from an object. If a collection is clearing that object, the
/// value is dropped in the next batch.
pub(crate) fn drop_later<T: Batched>(m: &Raw, value: T) {
    m.private().drop_batch.drop_later(value);
}

#[inline(never)]
fn drop_batched(m: &Raw) {
    let _lent = m.lend();
    m.private().drop_batch.drop_all(|object, payload| {
        // SAFETY: rule *counted*: the collection owns a reference to each object that it clears.
        let name = m.model().type_name(unsafe { Live::new(object) });
        let text = outside::panic_message(payload);
        m.core().hooks.unraisable_at(During::Clear, name, object.address(), text);
    });
}
