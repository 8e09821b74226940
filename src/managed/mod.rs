//! Floor 4: the built-in object model: biased counts, types by index, explicit destruction.
//!
//! # A reference is dropped
//!
//! | by | how |
//! |---|---|
//! | the owner, attached | `local` goes down, plainly |
//! | another thread, attached to the same heap | `shared` goes down; below zero the object is queued for its owner |
//! | anybody else: unattached, attached elsewhere, or inside a traversal | the reference itself is put on the heap's *deferred* list, uncounted for, until an attached thread drains it |
//!
//! So no count is lowered while the world is stopped: attached threads are parked, the others defer.
//!
//! # Queues
//!
//! Each mutator has a queue of objects whose shared half went below zero: their sum is known only once the
//! owner's half is added. The owner is asked by a request bit and merges at its next safepoint. Is it
//! detached, whoever enqueued suspends that one thread and merges for it. Has it ended, the queue is closed,
//! and the object is merged on the spot. A collection merges all queues in its stop.
//!
//! # Destruction
//!
//! An object without finalizer and weak record whose type is known where its last handle is dropped ends there, in place
//! (`end_value`); what dies with it goes the way of all others.
//!
//! An object whose count has reached 0 is destroyed by the thread that brought it there: finalizer (once;
//! it may bring the object back), weak references, destructor, memory. References that the destructor drops
//! come to the same place, so the work goes through an explicit stack, which is empty again before control
//! returns to the user, also when a destructor panics.
//!
//! A thread with a [`TraversalGuard`](crate::safepoint::TraversalGuard) has no mutator, which handlers of dynamic objects need. So it
//! destroys nothing: queues and lists keep what they hold, and requests stay raised until the guard is gone. A mutator that ends under
//! a guard gives its queue to the deferred list, and asks the others to drain that.
//!
//! # Retirement
//!
//! A reference taken out of an [`AtomicGc`](crate::AtomicGc) may still be looked at by a thread that loaded it
//! a moment ago. It is *retired*: dropped only when each thread that was attached at that time has passed a
//! safepoint, or detached. Epochs tell: `seen` of a mutator is the epoch that stood at its last safepoint.
//!
//! # After the heap
//!
//! When the last handle and mutator are gone the heap is *closed*: its range stays as long as objects do, and
//! a dropped reference counts down and destroys on the dropping thread, through the same explicit stack.
//! Finalizers and weak callbacks need a mutator and are not run any more.
//!
//! # Rules
//!
//! cited by their letters where unsafe code relies on them:
//!
//! * **R** (reference): an object's memory is given back at count 0 alone. So it may be used by whoever owns a counted reference, or
//!   borrows from one who does; a reference is given up once. What was taken out of a slot goes on counting until all who may have
//!   loaded it have passed a safepoint.
//! * **Z** (zero): whoever is told [`Dead`](Dropped::Dead), or [takes the last reference](Header::take_last), has the object to
//!   himself, and ends it, once; attached to its heap, or after the heap.

pub(crate) mod discard;

use std::cell::{Cell, RefCell};
use std::collections::{HashSet, VecDeque};
use std::mem::ManuallyDrop;
use std::panic::resume_unwind;
use std::ptr::NonNull;
use std::sync::Arc;

use crate::base::error::{Code, Fault};
use crate::base::event::{self, During};
use crate::base::fallible::{self, NoMemory};
use crate::base::steps;
use crate::base::stress::{Step, maybe_yield};
use crate::base::sync::{AtomicBool, AtomicU64, AtomicUsize, Mutex, Ordering, const_thread_local};
use crate::gc_module::notices;
use crate::heap::model::{Found, ModelMutator, ObjectModel, Verdict, World};
use crate::heap::mutator;
use crate::managed::discard::Discard;
use crate::memory::arena::Arena;
use crate::memory::shape::Footprint;
use crate::memory::space::Space;
use crate::object::header::{Dropped, Header, NOBODY};
use crate::object::state;
use crate::object::type_info::{Ends, Object, Tracer, TypeInfo, TypeRegistry};
use crate::object::weak::{Target, Watcher, WeakRecord, WeakTable};
use crate::safepoint::{
    Suspend, ThreadId, current, is_stopping, is_suspending, is_traversing, lock,
};
use crate::{Mutator, Trace};

/// A request: merge the queue.
const MERGE: u32 = 1 << 8;
/// A request: drain the deferred list.
const DRAIN: u32 = 1 << 9;
/// A request: pass a safepoint, references are waiting for it.
const QUIESCE: u32 = 1 << 10;

/// Retired references that a mutator gathers before it asks everybody to pass a safepoint.
const RETIRE_BATCH: usize = 64;

pub(crate) type Core = mutator::Core<Managed>;
pub(crate) type Raw = ModelMutator<Managed>;

/// See the [module's page](self).
#[derive(Debug)]
pub(crate) struct Managed {
    pub(crate) types: TypeRegistry,
    pub(crate) weak: WeakTable,
    /// A fork holds it, like the registry: unattached threads drop while one happens.
    deferred: lock::Mutex<Deferred>,
    /// What is dropped meanwhile by the thread that holds the stop, which may be the one that forks.
    deferred_in_stop: Mutex<Vec<Target>>,
    /// Whether one of the lists has entries: what an attaching thread looks at.
    has_deferred: AtomicBool,
    retired: Mutex<Vec<(u64, Target)>>,
    epoch: AtomicU64,
    /// Objects left in a closed heap.
    left: AtomicUsize,
    /// Checked mode: addresses are looked up, and freed dynamic objects kept for a while.
    checked: AtomicBool,
    /// Nanoseconds that a traverse handler may take without a report; 0: as long as it likes.
    slow_handler: AtomicU64,
    /// Freed dynamic objects that checked mode keeps.
    pub(crate) quarantine: Mutex<Quarantine>,
    /// Mistakes of traverse handlers, to be told when the world runs.
    notes: Mutex<Notes>,
    /// Types whose traverse handlers were found to visit null.
    null_visitors: Mutex<HashSet<&'static str>>,
    /// Held around traverse handlers that ask to be called one at a time.
    pub(crate) serial: Mutex<()>,
    /// The garbage list: references to unreachable objects that were not to be cleared.
    pub(crate) garbage: Mutex<Vec<Target>>,
    /// Whether types may have legacy finalizers.
    legacy: AtomicBool,
}

/// Mistakes of traverse handlers that no hook has been told of yet.
#[derive(Debug, Default)]
struct Notes {
    list: Vec<Fault>,
    /// The first one that there was no memory to list.
    last: Option<Fault>,
}

/// Freed dynamic objects whose memory no other object gets yet, so that a stale address is recognised.
///
/// Both limits below hold after each free. When the heap refuses memory, all of it is given back, and the allocation is tried again.
#[derive(Debug, Default)]
pub(crate) struct Quarantine {
    /// Oldest first.
    objects: VecDeque<(Target, Footprint)>,
    /// The sum of their footprints.
    bytes: usize,
}

impl Quarantine {
    /// The most objects that it keeps.
    const OBJECTS: usize = 4096;
    /// The most bytes that it keeps.
    const BYTES: usize = 4 << 20;

    /// Keeps an object. Call [`release`](Self::release) afterwards.
    pub(crate) fn keep(&mut self, object: Target, footprint: Footprint) -> Result<(), NoMemory> {
        self.objects.try_reserve(1)?;
        self.bytes += footprint.bytes();
        self.objects.push_back((object, footprint));
        Ok(())
    }

    /// Takes out the oldest object, if there are more than may be kept.
    pub(crate) fn release(&mut self) -> Option<Target> {
        let many = self.objects.len() > Self::OBJECTS || self.bytes > Self::BYTES;
        if many { self.take() } else { None }
    }

    /// Takes out the oldest object.
    fn take(&mut self) -> Option<Target> {
        let (object, footprint) = self.objects.pop_front()?;
        self.bytes -= footprint.bytes();
        Some(object)
    }
}

#[derive(Debug, Default)]
pub(crate) struct Deferred {
    list: Vec<Target>,
    /// Attached threads have been asked to drain it.
    poked: bool,
    /// The heap is closed, and itself kept alive by its remaining objects.
    closed: Option<Arc<Core>>,
}

/// What a mutator shows to other threads.
#[derive(Debug)]
pub(crate) struct Local {
    /// Objects to merge; `None`: the owner has ended.
    queue: Mutex<Option<Vec<Target>>>,
    /// The epoch at the last safepoint.
    seen: AtomicU64,
}

/// What a mutator keeps to itself.
pub(crate) struct Private {
    /// Type indices by the address of the type's table: a cache of the registry, for allocation.
    types: [Cell<(*const TypeInfo, u32)>; TYPE_CACHE],
    dying: RefCell<Vec<NonNull<Header>>>,
    /// What is on the stack: [`DESTROYING`], [`IN_HANDLER`].
    busy: Cell<u8>,
    retired: RefCell<Vec<Target>>,
    discard: Discard,
}

/// An object is being destroyed; what dies with it waits.
const DESTROYING: u8 = 1;
/// A handler of a dynamic object runs: a C function, through whose frame no panic may pass.
const IN_HANDLER: u8 = 2;

impl Private {
    /// Calls a handler of a dynamic object. Destructors that panic meanwhile are reported, for they would end the process.
    pub(crate) fn in_handler<R>(&self, f: impl FnOnce() -> R) -> R {
        struct Left<'a>(&'a Private, bool);
        impl Drop for Left<'_> {
            fn drop(&mut self) {
                if !self.1 {
                    self.0.ends(IN_HANDLER);
                }
            }
        }
        let _left = Left(self, self.begins(IN_HANDLER));
        f()
    }

    /// From here on it is on the stack; `true`: it was already.
    fn begins(&self, what: u8) -> bool {
        let busy = self.busy.get();
        self.busy.set(busy | what);
        busy & what != 0
    }

    fn ends(&self, what: u8) {
        self.busy.set(self.busy.get() & !what);
    }

    /// Whether a panic can go on to whoever dropped the reference.
    fn may_unwind(&self) -> bool {
        self.busy.get() & IN_HANDLER == 0 && !std::thread::panicking()
    }
}

const TYPE_CACHE: usize = 64;
/// Objects that can wait to be destroyed before memory is asked for.
const DYING_ROOM: usize = 16;

/// What happens to a panic of a destructor.
#[derive(Clone, Copy, PartialEq, Eq)]
enum OnPanic {
    /// It goes on to the user, who dropped the reference.
    PassOn,
    /// It goes to the hook: nobody here asked for this destruction.
    Report,
}

impl Managed {
    pub(crate) fn new() -> Self {
        Self {
            types: TypeRegistry::new(),
            weak: WeakTable::default(),
            deferred: lock::Mutex::new(Deferred::default()),
            deferred_in_stop: Mutex::new(Vec::new()),
            has_deferred: AtomicBool::new(false),
            retired: Mutex::new(Vec::new()),
            epoch: AtomicU64::new(0),
            left: AtomicUsize::new(0),
            checked: AtomicBool::new(false),
            slow_handler: AtomicU64::new(0),
            quarantine: Mutex::default(),
            notes: Mutex::default(),
            null_visitors: Mutex::default(),
            serial: Mutex::new(()),
            garbage: Mutex::new(Vec::new()),
            legacy: AtomicBool::new(false),
        }
    }

    /// Says whether there may be types with legacy finalizers.
    pub(crate) fn expect_legacy(&self, expect: bool) {
        // Relaxed: objects of such a type come into being after this, and a stop orders it.
        self.legacy.store(expect, Ordering::Relaxed);
    }

    /// Puts objects into the garbage list: all, or none where there is no memory for their places.
    ///
    /// # Safety
    ///
    /// They are alive, and `m` is attached to their heap.
    unsafe fn save(&self, objects: &[Object], m: &Raw) {
        let mut garbage = self.garbage.lock();
        if garbage.try_reserve(objects.len()).is_err() {
            drop(garbage);
            let text =
                "no memory for the garbage list: the next collection finds the objects again";
            m.core().hooks.unraisable(During::Collect, "", text);
            return;
        }
        for &object in objects {
            // SAFETY: as the caller says; the count makes the list's reference.
            unsafe { header(object).as_ref() }.clone_ref(m.id());
            garbage.push(Target(header(object)));
        }
    }

    /// Whether addresses are looked up.
    #[inline(always)]
    pub(crate) fn is_checked(&self) -> bool {
        // Relaxed: set before anybody else knows the heap.
        self.checked.load(Ordering::Relaxed)
    }

    /// Nanoseconds that a traverse handler may take without a report; 0: as long as it likes.
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

    /// Notes a mistake of a handler that runs in a stop, where no hook can be called.
    pub(crate) fn note(&self, fault: Fault) {
        let mut notes = self.notes.lock();
        // A handler that visits null does so all the time: told once for each type.
        if fault.code == Code::NullVisit {
            let mut visitors = self.null_visitors.lock();
            let is_new = visitors.try_reserve(1).is_err() || visitors.insert(fault.type_name);
            if !is_new {
                return;
            }
        }
        // One of a kind is enough, and there is no end of them.
        let same = |n: &Fault| {
            (n.code, n.type_name, n.function) == (fault.code, fault.type_name, fault.function)
        };
        if notes.list.len() < 256 && !notes.list.iter().any(same) {
            if notes.list.try_reserve(1).is_ok() {
                notes.list.push(fault);
            } else {
                notes.last.get_or_insert(fault);
            }
        }
    }

    /// Tells what was noted.
    pub(crate) fn tell_notes(&self, hooks: &event::Hooks) {
        let notes = {
            let mut notes = self.notes.lock();
            if notes.list.is_empty() && notes.last.is_none() {
                return;
            }
            std::mem::take(&mut *notes)
        };
        for fault in notes.list.into_iter().chain(notes.last) {
            hooks.misuse(&fault);
        }
    }

    /// Keeps unattached threads away from the deferred list, for a fork.
    pub(crate) fn hold_deferred(&self) -> (lock::Kept<'_>, lock::Guard<'_, Deferred>) {
        self.deferred.keep()
    }

    /// Whether the child of a fork that holds this guard could take the locks that unattached threads take, too.
    #[cfg(all(test, loom))]
    pub(crate) fn is_whole_for_child(&self, deferred: &lock::Guard<'_, Deferred>) -> bool {
        self.deferred.is_held_by_or_open(Some(deferred)) && self.retired.is_held_by_or_open(None)
    }

    /// Whether the heap has been closed.
    pub(crate) fn is_closed(&self) -> bool {
        self.deferred.lock().closed.is_some()
    }

    /// An epoch for what is retired now: taken out of its slot before this.
    fn new_epoch(&self) -> u64 {
        // SeqCst: before the loads of the threads' states in `poke_attached` and `reap`. A thread that attaches
        // after those has its load of the epoch behind this, sees it, and with it that the slots are empty.
        self.epoch.fetch_add(1, Ordering::SeqCst) + 1
    }

    /// Drops the deferred references on the thread of a mutator of this model.
    #[inline(always)]
    fn drain_on(&self, m: &Raw) {
        // SeqCst: see `defer`.
        if self.has_deferred.load(Ordering::SeqCst) {
            drain_list(m);
        }
    }

    /// How `objects` are handled, if all are of one type. Without a branch for each: where types alternate, nobody could
    /// predict how many are alike.
    #[inline(always)]
    fn alike(&self, objects: &[Object]) -> Option<&'static TypeInfo> {
        // SAFETY: rule R: callers have live objects.
        let index = |object: Object| unsafe { header(object).as_ref() }.type_index();
        let first = index(*objects.first()?);
        let differs = objects.iter().fold(0, |differs, &object| differs | (index(object) ^ first));
        (differs == 0).then(|| self.types.get(first))
    }

    fn info(&self, header: NonNull<Header>) -> &'static TypeInfo {
        // SAFETY: rule R: callers hold the object, or are destroying it.
        self.types.get(unsafe { header.as_ref() }.type_index())
    }
}

/// The header of an object of this model.
#[inline(always)]
fn header(object: Object) -> NonNull<Header> {
    object.as_ptr().cast()
}

/// The object with a header.
#[inline(always)]
pub(crate) fn object(header: NonNull<Header>) -> Object {
    Object::new(header.cast())
}

/// The index of a type in the mutator's heap.
#[inline(always)]
pub(crate) fn type_index(m: &Raw, info: &'static TypeInfo) -> u32 {
    let key: *const TypeInfo = info;
    let slot = &m.private().types[(key as usize >> 4) % TYPE_CACHE];
    let (cached, index) = slot.get();
    if std::ptr::eq(cached, key) {
        return index;
    }
    let index = m.model().types.index_of(info).unwrap_or_else(NoMemory::end_process);
    slot.set((key, index));
    index
}

/// Drops a reference, on whatever thread.
///
/// # Safety
///
/// The caller owns the reference, and gives it up.
#[inline(always)]
pub(crate) unsafe fn drop_reference(header: NonNull<Header>) {
    // SAFETY: rule R: the reference keeps the object alive.
    if !unsafe { header.as_ref() }.try_drop_local(current()) {
        // SAFETY: as the caller says.
        unsafe { drop_slowly(header) };
    }
}

/// Drops the last local reference, or on a thread that is not the owner.
///
/// # Safety
///
/// As for [`drop_reference`].
#[inline(never)]
pub(crate) unsafe fn drop_slowly(header: NonNull<Header>) {
    // SAFETY: rules R and Z: the reference keeps the object alive until it is dropped.
    unsafe {
        if is_stopping() {
            // In a stop of this thread's own: nothing is freed, and no destructor runs.
            defer(header);
        } else if !header.as_ref().is_owned_by(current()) {
            drop_foreign(header);
        } else if header.as_ref().drop_local() == Dropped::Dead {
            dead(header);
        }
    }
}

/// As [`drop_reference`], for a value that needs no destructor: then its memory is all there is to free.
///
/// # Safety
///
/// As for [`drop_reference`], and the object was allocated with this size class.
#[inline(always)]
pub(crate) unsafe fn drop_reference_to_plain(header: NonNull<Header>, class: u8) {
    // SAFETY: rule R: the reference keeps the object alive.
    if !unsafe { header.as_ref() }.try_drop_local(current()) {
        // SAFETY: as the caller says.
        unsafe { drop_plain_slowly(header, class) };
    }
}

/// As [`drop_slowly`], for a value that needs no destructor.
#[inline(never)]
unsafe fn drop_plain_slowly(header: NonNull<Header>, class: u8) {
    // SAFETY: as in `drop_slowly`. At 0 this thread, the owner, is attached to a heap of this model, and
    // nobody else knows the object. Weak references and finalizers must be asked for all the same.
    unsafe {
        if is_stopping() {
            defer(header);
        } else if !header.as_ref().is_owned_by(current()) {
            drop_foreign(header);
        } else if header.as_ref().drop_local() == Dropped::Dead {
            Raw::with_known(|m| {
                let state = m.core().state(header.as_ptr() as usize).get();
                if state & state::FINALIZER == 0 && !header.as_ref().has_weak() {
                    m.free_of_class(header.cast(), class);
                } else {
                    destroy_all(m, header, OnPanic::PassOn);
                }
            });
        }
    }
}

/// Drops a value that was taken out of an object: a little later, if a collection is clearing that object.
pub(crate) fn discard<T: Trace>(m: &Raw, value: T) {
    m.private().discard.discard(value);
}

/// Drops what has been discarded.
#[inline(never)]
fn drop_discarded(m: &Raw) {
    let _lent = m.lend();
    m.private().discard.drop_all(|object, payload| {
        // SAFETY: rule R: the collection holds what it clears.
        let name = unsafe { m.model().type_name(object) };
        let text = event::panic_message(payload);
        m.core().hooks.unraisable_at(During::Clear, name, object.address(), text);
    });
}

/// As [`drop_reference`], to a `T` that lies `offset` bytes behind its header.
///
/// # Safety
///
/// As for [`drop_reference`], and the object was allocated for a `T`, with this size class.
#[inline(always)]
pub(crate) unsafe fn drop_reference_to<T>(
    header: NonNull<Header>,
    offset: usize,
    class: Option<u8>,
) {
    // SAFETY: rule R: the reference keeps the object alive.
    if !unsafe { header.as_ref() }.try_drop_local(current()) {
        // SAFETY: as the caller says.
        unsafe { drop_slowly_to::<T>(header, offset, class) };
    }
}

/// As [`drop_slowly`], to a `T`: the common end of an object, without asking its type for anything.
///
/// What needs a frame is a function of its own, so that a foreign drop gets from its first look at the header to its
/// count in few steps: meanwhile another thread may take the cache line away.
#[inline(never)]
unsafe fn drop_slowly_to<T>(header: NonNull<Header>, offset: usize, class: Option<u8>) {
    // SAFETY: as in `drop_slowly`.
    unsafe {
        if is_stopping() {
            defer(header);
        } else if header.as_ref().take_last(current()) {
            end_last::<T>(header, offset, class);
        } else if !header.as_ref().is_owned_by(current()) {
            drop_foreign(header);
        } else {
            drop_slowly(header);
        }
    }
}

/// The end of a `T` whose last reference its owner has taken.
///
/// # Safety
///
/// The last reference has been [taken](Header::take_last) by the current mutator. The rest is as for [`end_value`].
#[inline(never)]
unsafe fn end_last<T>(header: NonNull<Header>, offset: usize, class: Option<u8>) {
    // SAFETY: who has taken the last reference is the owner, attached to a heap of this model. The rest: as the caller says.
    unsafe {
        Raw::with_known(|m| {
            let state = m.core().state(header.as_ptr() as usize).get();
            // While the thread unwinds, or through a C function, a panic of the destructor must not leave: it would end the
            // process.
            if state & state::FINALIZER != 0
                || m.private().busy.get() != 0
                || std::thread::panicking()
            {
                destroy_all(m, header, OnPanic::PassOn);
            } else {
                end_value::<T>(m, header, offset, class, OnPanic::PassOn);
            }
        });
    }
}

/// Destroys an object without finalizer and weak record, whose last reference is gone, and what dies with it: as
/// [`destroy_all`], of a known type.
///
/// # Safety
///
/// The last reference has been [taken](Header::take_last) by the mutator, which is not [busy](Private::busy).
/// The object was allocated for a `T` at this offset, with this size class.
#[inline(always)]
unsafe fn end_value<T>(
    m: &Raw,
    header: NonNull<Header>,
    offset: usize,
    class: Option<u8>,
    on_panic: OnPanic,
) {
    /// What is left to do when the destructor is over, by whatever way.
    struct Rest<'a>(&'a Raw, NonNull<Header>, Option<u8>);
    impl Rest<'_> {
        #[inline(always)]
        fn free(&self) {
            // SAFETY: rule Z: the value has been destroyed, and nobody else knows the object.
            unsafe {
                match self.2 {
                    Some(class) => self.0.free_of_class(self.1.cast(), class),
                    None => self.0.free(self.1.cast()),
                }
            }
            self.0.private().busy.set(0);
        }
    }
    impl Drop for Rest<'_> {
        // The destructor has panicked.
        #[cold]
        fn drop(&mut self) {
            self.free();
            // SAFETY: rule Z: nothing is being destroyed on this mutator any more. A second panic is reported, not
            // passed on.
            unsafe { destroy_rest(self.0, None, OnPanic::Report) };
        }
    }
    let private = m.private();
    // SAFETY: as the caller says.
    unsafe {
        event::must_hold_no_lock();
        let _lent = m.lend();
        private.busy.set(DESTROYING);
        m.core().state(header.as_ptr() as usize).dying();
        let rest = Rest(m, header, class);
        header.cast::<u8>().add(offset).cast::<T>().drop_in_place();
        ManuallyDrop::new(rest).free();
        if !private.dying.borrow().is_empty() {
            destroy_rest(m, None, on_panic);
        }
    }
}

/// As `end_value`, for a reference that the library held: only a panic of the object's own destructor comes back.
///
/// # Safety
///
/// As for `end_value`.
pub(crate) unsafe fn end_reporting<T>(
    m: &Raw,
    header: NonNull<Header>,
    offset: usize,
    class: Option<u8>,
) {
    // SAFETY: as the caller says.
    unsafe { end_value::<T>(m, header, offset, class, OnPanic::Report) }
}

/// Destroys an object whose last reference the mutator has just [taken](Header::take_last).
///
/// # Safety
///
/// See there. The object is of the mutator's heap, and the thread holds no stop.
#[inline(always)]
pub(crate) unsafe fn end(m: &Raw, header: NonNull<Header>, dealloc: impl FnOnce(&Raw)) {
    let private = m.private();
    // SAFETY: as the caller says.
    unsafe {
        if private.begins(DESTROYING) {
            return destroy_all(m, header, OnPanic::PassOn);
        }
        // The same as there, for one object whose handler is known.
        let _lent = m.lend();
        m.core().state(header.as_ptr() as usize).change_plainly(state::DYING, 0);
        let result = event::guarded(|| dealloc(m));
        if result.is_ok() && private.dying.borrow().is_empty() {
            private.ends(DESTROYING);
            return;
        }
        private.ends(DESTROYING);
        destroy_rest(
            m,
            result.err().map(|payload| Panic { payload, type_name: "" }),
            OnPanic::PassOn,
        );
    }
}

/// What has died with an object whose own destruction is over, in [`end`] or [`end_value`].
#[cold]
#[inline(never)]
unsafe fn destroy_rest(m: &Raw, panic: Option<Panic>, on_panic: OnPanic) {
    // One panic at most goes on: the object's own, if there is one.
    let on_panic = if panic.is_some() { OnPanic::Report } else { on_panic };
    let next = m.private().dying.borrow_mut().pop();
    if let Some(next) = next {
        // SAFETY: rule Z: put on the stack by whoever was told `Dead`.
        unsafe { destroy_all(m, next, on_panic) };
    }
    match panic {
        // A second panic while the thread unwinds, or one through a C function, would end the process.
        Some(panic) if !m.private().may_unwind() => panic.report(&m.core().hooks),
        Some(Panic { payload, .. }) => resume_unwind(payload),
        None => {}
    }
}

/// The owner has dropped the last reference.
unsafe fn dead(header: NonNull<Header>) {
    // SAFETY: rules P and Z: the owner is attached, to a heap of this model.
    unsafe { Raw::with_known(|m| destroy_all(m, header, OnPanic::PassOn)) }
}

/// A thread that is not the owner drops a reference.
#[inline]
unsafe fn drop_foreign(header: NonNull<Header>) {
    // SAFETY: as for `drop_reference`; who has a mutator is attached to the object's heap.
    unsafe {
        match Raw::current_owning(object(header)) {
            Some(m) => drop_shared(&m, header, OnPanic::PassOn),
            None => defer(header),
        }
    }
}

/// Drops a reference on a thread that is attached to the object's heap, and not the owner.
#[inline]
unsafe fn drop_shared(m: &Raw, header: NonNull<Header>, on_panic: OnPanic) {
    // SAFETY: rule R: the reference keeps the object alive until it is dropped.
    match unsafe { header.as_ref() }.drop_shared() {
        Dropped::Alive => {}
        // SAFETY: rule Z: it was answered to this thread.
        more => unsafe { settle(m, header, more, on_panic) },
    }
}

/// What is left to do for an object after a foreign drop.
#[cold]
#[inline(never)]
unsafe fn settle(m: &Raw, header: NonNull<Header>, dropped: Dropped, on_panic: OnPanic) {
    let _lent = m.lend();
    match dropped {
        Dropped::Alive => {}
        // SAFETY: rule Z: `Dead` was answered to this thread.
        Dropped::Dead => unsafe { destroy_all(m, header, on_panic) },
        Dropped::Enqueue(owner) => enqueue(m, owner, header, on_panic),
    }
}

/// Puts an object into its owner's queue, and sees to it that somebody empties it.
fn enqueue(m: &Raw, owner: u64, header: NonNull<Header>, on_panic: OnPanic) {
    let coordinator = &m.core().coordinator;
    let id = ThreadId::from_raw(owner);
    let queued = id.and_then(|id| {
        coordinator.with_data(id, |shared| match &mut *shared.local.queue.lock() {
            Some(queue) => {
                queue.push(Target(header));
                true
            }
            None => false,
        })
    });
    let Some(id) = id.filter(|_| queued == Some(true)) else {
        // The owner has ended, and closed its queue (or left the registry) after its last count: the
        // lock that told us orders that before this.
        // SAFETY: rule R: the object is queued, in no queue, so it is not freed before this merge.
        if unsafe { header.as_ref() }.merge_ended() == Dropped::Dead {
            // SAFETY: rule Z: `Dead` was answered to this thread.
            unsafe { destroy_all(m, header, on_panic) };
        }
        return;
    };
    maybe_yield(&m.core().under, Step::Queue);
    coordinator.poke(id, MERGE);
    let mut dead = Vec::new();
    // One suspension at a time: a thread that holds one, of whatever coordinator, leaves it to the owner.
    if !is_suspending()
        && let Suspend::Suspended(owner) = coordinator.suspend(id)
    {
        maybe_yield(&m.core().under, Step::Merge);
        dead = merge_queue(&owner.local);
    }
    // SAFETY: rule Z: `Dead` was answered to this thread.
    unsafe { destroy_each(m, dead, on_panic) };
}

/// As [`destroy_all`], for several: a panic that goes on does so when all are destroyed.
///
/// # Safety
///
/// As there, for each.
unsafe fn destroy_each(m: &Raw, dead: Vec<Target>, on_panic: OnPanic) {
    let mut thrown = None;
    for target in dead {
        // One panic at most goes on.
        let on_panic = if thrown.is_some() { OnPanic::Report } else { on_panic };
        // SAFETY: as the caller says.
        let result = event::guarded(|| unsafe { destroy_all(m, target.0, on_panic) });
        thrown = thrown.or(result.err());
    }
    if let Some(payload) = thrown {
        resume_unwind(payload);
    }
}

/// Merges what is in a queue, and returns who turns out to be dead. The caller is its owner, has suspended it, or has stopped the
/// world.
fn merge_queue(local: &Local) -> Vec<Target> {
    // The list of those to merge becomes that of the dead: nobody is asked for memory.
    let mut queue = match &mut *local.queue.lock() {
        Some(queue) => std::mem::take(queue),
        None => return Vec::new(),
    };
    steps::took(queue.len());
    // SAFETY: rule R: a queued object is not freed before the queue lets go of it.
    queue.retain(|target| unsafe { target.0.as_ref() }.merge() == Dropped::Dead);
    queue
}

/// Empties the mutator's queue, and destroys who turns out to be dead.
fn empty_queue(m: &Raw) {
    if is_traversing() {
        return;
    }
    for target in merge_queue(m.local()) {
        // SAFETY: rule Z: `Dead` was answered to this thread.
        unsafe { destroy_all(m, target.0, OnPanic::Report) };
    }
}

/// Takes one object, to which the caller has a reference, out of the mutator's queue, if it is there: merged, ahead of the safepoint.
pub(crate) fn leave_queue(m: &Raw, header: &Header) {
    let mut queue = m.local().queue.lock();
    let place = |queue: &Vec<Target>| {
        queue.iter().position(|target| std::ptr::eq(target.0.as_ptr(), header))
    };
    if let Some(queue) = &mut *queue
        && let Some(at) = place(queue)
    {
        queue.swap_remove(at);
        let merged = header.merge();
        debug_assert_eq!(merged, Dropped::Alive, "the caller's reference counts");
    }
}

/// The heap of an object, to which this thread need not be attached.
///
/// # Safety
///
/// The caller has a reference to the object, which is in a heap.
unsafe fn heap_of(header: NonNull<Header>) -> Arc<Core> {
    // SAFETY: rule R: the reference keeps the object alive, and the core outlives its objects: an open heap's handles
    // and mutators keep it, a closed heap's is kept by `Deferred::closed` until the last object has died. A count of
    // our own: once the reference is given away, somebody else may drop it, and the core go.
    unsafe {
        let core = Space::heap_of(header.as_ptr() as usize).cast::<Core>();
        Arc::increment_strong_count(core);
        Arc::from_raw(core)
    }
}

/// Puts a reference on the deferred list of its heap: this thread may not count there.
///
/// # Safety
///
/// As for [`drop_reference`].
unsafe fn defer(header: NonNull<Header>) {
    // SAFETY: rule R: the reference keeps the object alive.
    if unsafe { header.as_ref() }.is_static() {
        // In no heap, and counted by nobody.
        return;
    }
    // SAFETY: rule R: as above.
    let core = unsafe { heap_of(header) };
    maybe_yield(&core.under, Step::Defer);
    // SAFETY: rules R and G: an object's page was handed out; the object is alive: this is its reference.
    let bytes = unsafe { core.space.page_of(header.as_ptr() as usize) }.shape().footprint().bytes();
    // This thread may have locked the list and the registry, for a fork of this very heap. Collections and inspections drain
    // the lists themselves when their stop is over; after a fork the next to drop, attach or answer sees to it.
    if is_stopping() && Raw::is_attached_to(&core) {
        if fallible::push(&mut core.model.deferred_in_stop.lock(), Target(header)).is_err() {
            // No hook is called in a stop.
            return core.model.note(Fault::new(Code::Memory, "drop").because(LOST));
        }
        core.pace.deferred(bytes);
        // Relaxed: this thread drains it itself, and whoever attaches after this stop has seen its end.
        core.model.has_deferred.store(true, Ordering::Relaxed);
        return;
    }
    let mut deferred = core.model.deferred.lock();
    if deferred.closed.is_some() {
        drop(deferred);
        // SAFETY: as for `drop_reference`; the heap is closed.
        unsafe { drop_in_closed(&core, header) };
        return;
    }
    if fallible::push(&mut deferred.list, Target(header)).is_err() {
        drop(deferred);
        return lose(&core);
    }
    core.pace.deferred(bytes);
    // SeqCst: against an attaching thread's load of it; see `Coordinator::poke_attached`.
    core.model.has_deferred.store(true, Ordering::SeqCst);
    let poke = !std::mem::replace(&mut deferred.poked, true);
    drop(deferred);
    if poke {
        core.coordinator.poke_attached(DRAIN);
    }
}

/// Tells of a reference that was dropped where it could not be counted, and that there is no memory to note down: the object stays.
#[cold]
fn lose(core: &Core) {
    core.hooks.unraisable(During::Drop, "", LOST);
}

const LOST: &str = "no memory to note that a reference was dropped: its object stays for ever";

/// Drops the deferred references.
#[inline(always)]
fn drain_deferred(m: &Raw) {
    m.model().drain_on(m);
}

/// As [`drain_deferred`], once there is something.
///
/// It drops what is on the lists now. Other threads can add to them as fast as this one drops: each addition after this
/// asks the attached threads again, and the next safepoint drains it.
#[cold]
#[inline(never)]
fn drain_list(m: &Raw) {
    if is_traversing() {
        return;
    }
    let model = m.model();
    let list = {
        let mut deferred = model.deferred.lock();
        // Relaxed: like the list, the flag changes under the lock.
        model.has_deferred.store(false, Ordering::Relaxed);
        deferred.poked = false;
        std::mem::take(&mut deferred.list)
    };
    // After the flag: a thread that adds something from here on raises it again.
    let in_stop = std::mem::take(&mut *model.deferred_in_stop.lock());
    m.core().pace.drained();
    for target in list.into_iter().chain(in_stop) {
        // SAFETY: rule R: the list owned the reference; this thread is attached to its heap.
        unsafe { drop_attached(m, target.0) };
    }
}

/// Drops a reference that the library held for somebody, on an attached thread.
unsafe fn drop_attached(m: &Raw, header: NonNull<Header>) {
    // SAFETY: rules R and Z: the reference keeps the object alive until it is dropped.
    unsafe {
        if !header.as_ref().is_owned_by(m.id()) {
            drop_shared(m, header, OnPanic::Report);
        } else if !header.as_ref().take_last(m.id()) {
            if header.as_ref().drop_local() == Dropped::Dead {
                destroy_all(m, header, OnPanic::Report);
            }
        } else {
            let info = m.model().info(header);
            match info.end {
                Some(end) if info.finalize.is_none() && m.private().busy.get() == 0 => {
                    if let Err(payload) = event::guarded(|| end(header, (&raw const *m).cast())) {
                        // SAFETY: rule Y: such a type has one name for all its objects, and does not look at this one.
                        let type_name = (info.name)(header);
                        Panic { payload, type_name }.report(&m.core().hooks);
                    }
                }
                _ => destroy_all(m, header, OnPanic::Report),
            }
        }
    }
}

/// Retires a reference: somebody who loaded it a moment ago may still be looking at the object.
pub(crate) fn retire(m: &Raw, header: NonNull<Header>) {
    let mut buffer = m.private().retired.borrow_mut();
    if buffer.try_reserve(1).is_err() {
        // Kept for ever: who may be looking at it is not known.
        return;
    }
    buffer.push(Target(header));
    if buffer.len() == 1 {
        m.raise(QUIESCE);
    }
    if buffer.len() >= m.core().stress.shrink(RETIRE_BATCH) {
        drop(buffer);
        publish_retired(m);
    }
}

/// As [`retire`], on a thread that is not attached to the object's heap by the mutator at hand: by misuse, which has taken the
/// reference out of a slot all the same. Who is attached there may be looking at the object.
///
/// # Safety
///
/// As for [`drop_reference`].
pub(crate) unsafe fn retire_elsewhere(header: NonNull<Header>) {
    // SAFETY: rule R: as the caller says; a slot leads to objects of heaps.
    let core = unsafe { heap_of(header) };
    if is_stopping() && Raw::is_attached_to(&core) {
        // The others are parked, and look at nothing.
        // SAFETY: as the caller says.
        return unsafe { defer(header) };
    }
    // Keeps the end of the heap away, and forks, in whose child the lock of the retired would stay locked.
    let deferred = core.model.deferred.lock();
    if deferred.closed.is_some() {
        drop(deferred);
        // SAFETY: as the caller says; the heap is closed, and nobody is attached to it.
        return unsafe { drop_in_closed(&core, header) };
    }
    let epoch = core.model.new_epoch();
    core.model.retired.lock().push((epoch, Target(header)));
    drop(deferred);
    core.coordinator.poke_attached(QUIESCE);
}

/// Gives the gathered references an epoch, and asks every attached thread to pass a safepoint. `false`: there is no memory
/// for that, and they stay where they are.
fn publish_retired(m: &Raw) -> bool {
    let model = m.model();
    let mut buffer = m.private().retired.borrow_mut();
    if buffer.is_empty() {
        return true;
    }
    let mut retired = model.retired.lock();
    if retired.try_reserve(buffer.len()).is_err() {
        // At the next safepoint.
        m.raise(QUIESCE);
        return false;
    }
    let epoch = model.new_epoch();
    retired.extend(buffer.drain(..).map(|target| (epoch, target)));
    drop((retired, buffer));
    m.core().coordinator.poke_attached(QUIESCE);
    true
}

/// This thread is at a safepoint: it looks at nothing that it loaded before.
fn quiesce(m: &Raw) {
    let _ = publish_retired(m);
    let model = m.model();
    // Acquire: what this thread loads from now on is at least as new as this epoch. Release: what it has loaded so far
    // it has used before anybody finds the epoch in `seen`.
    m.local().seen.store(model.epoch.load(Ordering::Acquire), Ordering::Release);
    reap(m);
}

/// Drops the retired references that every attached thread is past.
fn reap(m: &Raw) {
    let model = m.model();
    if is_traversing() || model.retired.lock().is_empty() {
        return;
    }
    // Relaxed: an older epoch lets fewer references go. It is newer than the retirements that count below.
    let mut past = model.epoch.load(Ordering::Relaxed);
    m.core().coordinator.attached(|_, shared| {
        // Acquire: the uses of what that thread had loaded come before the drops below.
        past = past.min(shared.local.seen.load(Ordering::Acquire));
    });
    let mut ready = Vec::new();
    {
        let mut retired = model.retired.lock();
        if ready.try_reserve_exact(retired.len()).is_err() {
            // Some other time.
            return;
        }
        ready.extend(retired.extract_if(.., |(epoch, _)| *epoch <= past));
    }
    for (_, target) in ready {
        // SAFETY: rule R: the list owned the reference; this thread is attached to its heap.
        unsafe { drop_attached(m, target.0) };
    }
}

/// Destroys an object whose count is 0, and whatever dies with it.
///
/// # Safety
///
/// The caller was told `Dead`, and is attached to the object's heap.
unsafe fn destroy_all(m: &Raw, header: NonNull<Header>, on_panic: OnPanic) {
    // What comes back to this mutator while its destruction stack is in use waits: rule L.
    let _lent = m.lend();
    let private = m.private();
    if private.begins(DESTROYING) {
        // An object whose own handler counts it up and down again is on its way already. It is asked now, while its
        // memory is its own: when the stack comes to it, another object may lie there.
        // SAFETY: as the caller says.
        if unsafe { m.core().state(header.as_ptr() as usize) }.get() & state::DYING == 0 {
            wait_to_die(m, header);
        }
        return;
    }
    let mut next = Some(header);
    let mut panic = None;
    while let Some(header) = next {
        // SAFETY: as the caller says; those on the stack were put there for the same reason.
        if let Err(thrown) = unsafe { destroy(m, header) } {
            if on_panic == OnPanic::PassOn && panic.is_none() && private.may_unwind() {
                panic = Some(thrown);
            } else {
                thrown.report(&m.core().hooks);
            }
        }
        next = private.dying.borrow_mut().pop();
    }
    private.ends(DESTROYING);
    if let Some(Panic { payload, .. }) = panic {
        resume_unwind(payload);
    }
}

/// Puts a dead object on the stack of those that are destroyed when the one that is being destroyed has ended.
#[inline(always)]
fn wait_to_die(m: &Raw, header: NonNull<Header>) {
    let mut dying = m.private().dying.borrow_mut();
    // Twice as much, or if need be one more.
    let has_room = dying.len() < dying.capacity()
        || dying.try_reserve(1).is_ok()
        || dying.try_reserve_exact(1).is_ok();
    if has_room {
        dying.push(header);
        return;
    }
    drop(dying);
    die_within(m, header);
}

/// Destroys a dead object within the destruction of another, where there is no memory to have it wait: as deep as a nested value of
/// Rust, which is better than never. Seldom deep: a list needs one place to wait in.
#[cold]
#[inline(never)]
fn die_within(m: &Raw, header: NonNull<Header>) {
    // SAFETY: rule Z: as `destroy_all`'s caller says.
    if let Err(panic) = unsafe { destroy(m, header) } {
        panic.report(&m.core().hooks);
    }
}

/// A destructor's panic, and the type whose destructor it was.
struct Panic {
    payload: Box<dyn std::any::Any + Send>,
    type_name: &'static str,
}

impl Panic {
    fn report(self, hooks: &event::Hooks) {
        hooks.unraisable(During::Drop, self.type_name, event::panic_message(self.payload));
    }
}

/// Runs a destructor.
///
/// # Safety
///
/// The value is the caller's to destroy, and of this type.
#[inline]
unsafe fn run_destructor(info: &TypeInfo, header: NonNull<Header>) -> Result<(), Panic> {
    let Some(drop) = info.drop else { return Ok(()) };
    // SAFETY: as the caller says.
    event::guarded(|| unsafe { drop(info.value(header)) })
        // SAFETY: rule Z: the memory is still the object's.
        .map_err(|payload| Panic { payload, type_name: unsafe { (info.name)(header) } })
}

/// Destroys one object. A panic of its destructor comes back; the memory is freed all the same.
#[inline]
unsafe fn destroy(m: &Raw, header: NonNull<Header>) -> Result<(), Panic> {
    let info = m.model().info(header);
    // SAFETY: rule Z: this thread alone knows the object, whose memory is valid until `free` below.
    unsafe {
        if let Some(dealloc) = info.dealloc {
            return destroy_dynamic(m, header, info, dealloc);
        }
        if let Some(finalize) = info.finalize
            && !finalize_dying(m, header, info, finalize)
        {
            return Ok(());
        }
        if header.as_ref().has_weak() {
            announce_death(m, header);
        }
        m.core().state(header.as_ptr() as usize).dying();
        let result = run_destructor(info, header);
        m.free(header.cast());
        result
    }
}

/// Destroys one object whose type does it all by itself. Its state keeps the other bits: it may come back.
unsafe fn destroy_dynamic(
    m: &Raw,
    header: NonNull<Header>,
    info: &TypeInfo,
    dealloc: unsafe fn(NonNull<Header>, *const ()),
) -> Result<(), Panic> {
    // SAFETY: as in `destroy`.
    unsafe {
        if mark_dying(m, header) & state::DYING != 0 {
            // Its own handler has counted it up and down again, on the way to its end.
            return Ok(());
        }
        event::guarded(|| dealloc(header, (&raw const *m).cast())).map_err(|payload| {
            // The handler may have come as far as giving the memory back.
            let lives = m.core().state(header.as_ptr() as usize).get() & state::LIVE != 0;
            Panic { payload, type_name: if lives { (info.name)(header) } else { "" } }
        })
    }
}

/// Brings a dying object back for the length of `f`, with one reference; `true`: it is dying again, `false`: it stays.
///
/// # Safety
///
/// The object is dying on this thread, with nobody else knowing it.
pub(crate) unsafe fn revived(m: &Raw, header: NonNull<Header>, f: impl FnOnce()) -> bool {
    // SAFETY: as the caller says.
    unsafe {
        // First: whoever upgrades a weak reference from now on may take it for alive.
        m.core().state(header.as_ptr() as usize).unset(state::DYING);
        header.as_ref().revive(m.id());
        let _lent = m.lend();
        maybe_yield(&m.core().under, Step::Weak);
        f();
        let dead = give_up_again(m, header);
        if dead {
            // Answered to this thread, so it is this thread's again. No stop can have come in between.
            mark_dying(m, header);
        }
        dead
    }
}

/// The destruction of a dynamic object begins, whose count is 0: its state before.
///
/// What its handlers do with the count brings it back for nobody: under the lock with which an [upgrade](upgrade) looks at the
/// state.
///
/// # Safety
///
/// As for [`revived`].
#[inline(always)]
unsafe fn mark_dying(m: &Raw, header: NonNull<Header>) -> u8 {
    // SAFETY: as the caller says.
    unsafe {
        if header.as_ref().has_weak() {
            return mark_dying_for_upgrades(m, header);
        }
        m.core().state(header.as_ptr() as usize).change_plainly(state::DYING, 0)
    }
}

/// As [`mark_dying`], of an object that may have a weak record.
///
/// # Safety
///
/// The object is alive, or dying on this thread.
#[cold]
#[inline(never)]
pub(crate) unsafe fn mark_dying_for_upgrades(m: &Raw, header: NonNull<Header>) -> u8 {
    maybe_yield(&m.core().under, Step::Weak);
    let record = m.model().weak.get(header);
    let _no_upgrade = record.as_deref().map(WeakRecord::hold);
    // SAFETY: as the caller says.
    unsafe { m.core().state(header.as_ptr() as usize) }.set(state::DYING)
}

/// Adds a reference to a dynamic object to which a weak reference leads, unless it is dying or dead, or another heap's.
pub(crate) fn upgrade(m: &Raw, record: &WeakRecord) -> Option<NonNull<Header>> {
    let upgraded = record.with_target(|header| {
        let header = NonNull::from(header);
        // SAFETY: rules R and G: the target's memory is not freed meanwhile; an object of this heap.
        let is_dying =
            || unsafe { m.core().state(header.as_ptr() as usize) }.get() & state::DYING != 0;
        if !m.owns(object(header)) || is_dying() {
            return None;
        }
        // SAFETY: rule R: as above.
        unsafe { header.as_ref() }.try_upgrade(m.id()).then_some(header)
    });
    upgraded.flatten()
}

/// Kills the weak references of a dying object, and calls their callbacks.
///
/// # Safety
///
/// As for [`revived`].
pub(crate) unsafe fn clear_weak_references(m: &Raw, header: NonNull<Header>) {
    // SAFETY: as the caller says.
    if unsafe { header.as_ref() }.has_weak() {
        announce_death(m, header);
    }
}

/// Runs the finalizer of an object whose count reached 0, once; `false`: it has brought the object back.
#[cold]
unsafe fn finalize_dying(
    m: &Raw,
    header: NonNull<Header>,
    info: &TypeInfo,
    finalize: unsafe fn(NonNull<Header>, *const ()),
) -> bool {
    // SAFETY: as in `destroy`. The reference that `revive` makes is the finalizer's, and dropped after it.
    unsafe {
        let state = m.core().state(header.as_ptr() as usize);
        if state.set(state::FINALIZED) & state::FINALIZED != 0 {
            return true;
        }
        header.as_ref().revive(m.id());
        let _lent = m.lend();
        if let Err(payload) = event::guarded(|| finalize(header, (&raw const *m).cast())) {
            m.core().hooks.unraisable(
                During::Finalize,
                (info.name)(header),
                event::panic_message(payload),
            );
        }
        give_up_again(m, header)
    }
}

/// Gives up the reference with which a dying object was taken back; `true`: it dies after all.
///
/// # Safety
///
/// As for [`drop_reference`], on the thread that took it back.
unsafe fn give_up_again(m: &Raw, header: NonNull<Header>) -> bool {
    // SAFETY: rule R: the reference keeps the object alive until it is dropped.
    match unsafe { header.as_ref() }.drop_ref(m.id()) {
        Dropped::Dead => true,
        Dropped::Alive => false,
        more => {
            // SAFETY: rule Z: it was answered to this thread.
            unsafe { settle(m, header, more, OnPanic::Report) };
            false
        }
    }
}

/// Kills the weak references of a dying object, and calls their callbacks.
#[cold]
fn announce_death(m: &Raw, header: NonNull<Header>) {
    maybe_yield(&m.core().under, Step::Weak);
    for watcher in m.model().weak.died(header) {
        if let Some(weak_ref) = watcher.weak_ref.upgrade(m.id()) {
            call(Callback { weak_ref: Held(weak_ref), invoke: watcher.invoke }, m);
        }
    }
}

/// A reference that is dropped wherever the value is.
struct Held(NonNull<Header>);

// SAFETY: rules R and X: a reference; dropping one works on every thread.
unsafe impl Send for Held {}

impl Drop for Held {
    fn drop(&mut self) {
        // SAFETY: rule R: this value owned the reference.
        unsafe { drop_reference(self.0) };
    }
}

/// A weak callback that is due.
pub(crate) struct Callback {
    weak_ref: Held,
    invoke: unsafe fn(NonNull<Header>, *const ()),
}

fn call(callback: Callback, m: &Raw) {
    let _lent = m.lend();
    // SAFETY: rule Y: the function was registered with the weak reference it is given.
    let result = event::guarded(|| unsafe {
        (callback.invoke)(callback.weak_ref.0, (&raw const *m).cast())
    });
    if let Err(payload) = result {
        // SAFETY: rule R: the callback holds a reference.
        let name = unsafe { (m.model().info(callback.weak_ref.0).name)(callback.weak_ref.0) };
        m.core().hooks.unraisable(During::WeakCallback, name, event::panic_message(payload));
    }
}

/// A dead object, and what keeps its heap's memory.
type InClosed = (Arc<Core>, Target);

const_thread_local! {
    /// The stack of objects of closed heaps that wait for this thread to destroy them; null: it is not at it. The
    /// vector lies in the frame of the `drop_in_closed` that set this, whose [`InUse`] sets it back. A bare pointer, because
    /// it has no destructor: it can be used from the destructors of other thread-locals, which may drop references.
    static CLOSED: Cell<*mut Vec<InClosed>> = Cell::new(std::ptr::null_mut())
}

/// While this lives, [`CLOSED`] leads to a vector of the frame that made it.
struct InUse;

impl InUse {
    fn begin(stack: *mut Vec<InClosed>) -> Self {
        CLOSED.with(|closed| closed.set(stack));
        Self
    }
}

impl Drop for InUse {
    fn drop(&mut self) {
        CLOSED.with(|closed| closed.set(std::ptr::null_mut()));
    }
}

/// Drops a reference to an object of a closed heap. Nobody owns anything there: all mutators have ended.
unsafe fn drop_in_closed(core: &Arc<Core>, header: NonNull<Header>) {
    // SAFETY: rule R: the reference keeps the object alive until it is dropped.
    let h = unsafe { header.as_ref() };
    let dead = match h.drop_shared() {
        Dropped::Alive => false,
        Dropped::Dead => true,
        // The heap's last lock round ordered all owners' counts before this.
        Dropped::Enqueue(_) => h.merge_ended() == Dropped::Dead,
    };
    if !dead {
        return;
    }
    let outer = CLOSED.with(Cell::get);
    if !outer.is_null() {
        // SAFETY: rule V: set by a call of this function that is still going on, on this thread, and has its vector
        // in its frame; it uses the vector between destructions only, and this is inside one.
        unsafe { (*outer).push((Arc::clone(core), Target(header))) };
        return;
    }
    let mut stack: Vec<InClosed> = vec![(Arc::clone(core), Target(header))];
    let stack: *mut Vec<InClosed> = &raw mut stack;
    // Declared behind the vector, so dropped before it, whichever way this function is left.
    let in_use = InUse::begin(stack);
    let mut panic = None;
    // SAFETY: rule V: the vector is this frame's, and used through this pointer alone; nobody pushes while this pops.
    while let Some((core, Target(header))) = unsafe { (*stack).pop() } {
        // SAFETY: rule Z: `Dead` was answered to this thread.
        if let Err(thrown) = unsafe { destroy_in_closed(&core, header) } {
            if panic.is_none() && !std::thread::panicking() {
                panic = Some(thrown);
            } else {
                thrown.report(&core.hooks);
            }
        }
    }
    drop(in_use);
    if let Some(Panic { payload, .. }) = panic {
        resume_unwind(payload);
    }
}

unsafe fn destroy_in_closed(core: &Arc<Core>, header: NonNull<Header>) -> Result<(), Panic> {
    let info = core.model.info(header);
    // SAFETY: as in `destroy`. Handlers of dynamic objects need a mutator, and are not run any more: what such an
    // object holds stays.
    unsafe {
        if header.as_ref().has_weak() {
            drop(core.model.weak.died(header));
        }
        let state = core.state(header.as_ptr() as usize);
        state.dying();
        let result = run_destructor(info, header);
        state.death();
        Arena::free_remote(&core.space, header.cast());
        // AcqRel: whoever destroys the last object lets the range go, after all others are done with it.
        if core.model.left.fetch_sub(1, Ordering::AcqRel) == 1 {
            let closed = core.model.deferred.lock().closed.take();
            // Without the lock, which it may be the last to keep.
            drop(closed);
        }
        result
    }
}

/// Closes the queue of a mutator that cannot destroy anything: in a forked child, where its thread does not exist, or under a
/// traversal guard. What is in it is merged; what that finds dead is destroyed by the next attached thread that drains the deferred
/// list.
pub(crate) fn orphan(core: &Core, local: &Local) {
    let queue = local.queue.lock().take().unwrap_or_default();
    for target in queue {
        // SAFETY: rule R: a queued object is not freed before the queue lets go of it; its owner has ended.
        let header = unsafe { target.0.as_ref() };
        if header.merge_ended() == Dropped::Dead {
            header.revive(NOBODY);
            core.model.deferred.lock().list.push(target);
            // Relaxed: this process has one thread.
            core.model.has_deferred.store(true, Ordering::Relaxed);
        }
    }
}

/// Closes a heap whose last handle and mutator are gone.
pub(crate) fn close(core: &Arc<Core>) {
    let left = core.live().0;
    let list = {
        let mut deferred = core.model.deferred.lock();
        // Before anybody can see the heap closed, and nothing has died since the count: mutators are
        // gone, and the others defer.
        core.model.left.store(left, Ordering::Relaxed);
        if left > 0 {
            deferred.closed = Some(Arc::clone(core));
        }
        std::mem::take(&mut deferred.list)
    };
    let retired = std::mem::take(&mut *core.model.retired.lock());
    let garbage = std::mem::take(&mut *core.model.garbage.lock());
    for target in
        list.into_iter().chain(retired.into_iter().map(|(_, target)| target)).chain(garbage)
    {
        // SAFETY: rule R: the lists owned the references.
        unsafe { drop_in_closed(core, target.0) };
    }
}

// SAFETY: rules R, Z and W: 1. `count` sums both halves; `hold` and `release` are a claim and a drop. 2. memory is
// freed at count 0 alone: in `destroy`, `destroy_in_closed`, `end_value`, `drop_plain_slowly`, and by dynamic
// objects' own end. 3. attached threads are parked in a stop, others defer their drops. 4. `Tracer` takes handles
// only (`Gc`, `AnyGc`), which are counted. 5. `merge` empties every queue; an object at 0 without being queued is on
// the destruction stack of a thread that is not at a safepoint. 6. call-outs run under `no_safepoint`, with
// `&Mutator`.
unsafe impl ObjectModel for Managed {
    type Local = Local;
    type Private = Private;
    type Callback = Callback;

    const STABLE_DURING_STOP: bool = true;
    /// The two lists are the heap's. A queue is its owner's, and each of the owner's objects comes to it once.
    const SHARED_REQUESTS: u32 = DRAIN | QUIESCE;

    fn local(&self) -> Local {
        Local { queue: Mutex::new(Some(Vec::new())), seen: AtomicU64::new(0) }
    }

    fn private(&self) -> Private {
        self.try_private().unwrap_or_else(|| NoMemory.end_process())
    }

    fn try_private(&self) -> Option<Private> {
        let mut dying = Vec::new();
        dying.try_reserve_exact(DYING_ROOM).ok()?;
        Some(Private {
            types: [const { Cell::new((std::ptr::null(), 0)) }; TYPE_CACHE],
            dying: RefCell::new(dying),
            busy: Cell::new(0),
            retired: RefCell::new(Vec::new()),
            discard: Discard::default(),
        })
    }

    fn refused(&self, m: &Raw) -> bool {
        let mut any = false;
        loop {
            // The lock is free again before the memory goes back.
            let oldest = self.quarantine.lock().take();
            let Some(Target(oldest)) = oldest else { return any };
            // SAFETY: rule O: freed before, and nobody's since; the quarantine gives each up once.
            unsafe { m.free(oldest.cast()) };
            any = true;
        }
    }

    #[inline(always)]
    unsafe fn count(&self, object: Object) -> Option<i64> {
        // SAFETY: alive, as the caller says.
        unsafe { header(object).as_ref() }.count()
    }

    #[inline(always)]
    unsafe fn is_immortal(&self, object: Object) -> bool {
        // SAFETY: alive, as the caller says.
        unsafe { header(object).as_ref() }.is_immortal()
    }

    #[inline(always)]
    unsafe fn traverse(&self, object: Object, tracer: &mut Tracer) {
        let info = self.info(header(object));
        // SAFETY: alive, as the caller says, and of the type that its header names.
        unsafe { (info.traverse_each)(&[object], tracer, &mut Ends::new(&mut [0])) };
    }

    #[inline(always)]
    unsafe fn traverse_each(&self, objects: &[Object], tracer: &mut Tracer, ends: &mut Ends<'_>) {
        // SAFETY: as in `traverse`.
        unsafe {
            match self.alike(objects) {
                Some(info) => (info.traverse_each)(objects, tracer, ends),
                None => {
                    for one in objects.chunks(1) {
                        (self.info(header(one[0])).traverse_each)(one, tracer, ends);
                    }
                }
            }
        }
    }

    fn prefetches(&self) -> bool {
        self.types.any_indirect()
    }

    #[inline(always)]
    unsafe fn prefetch_each(&self, objects: &[Object], tracer: &mut Tracer) {
        let mut prefetch = |info: &TypeInfo, objects: &[Object]| {
            if let Some(prefetch_each) = info.prefetch_each {
                // SAFETY: as in `traverse`.
                unsafe { prefetch_each(objects, tracer) };
            }
        };
        match self.alike(objects) {
            Some(info) => prefetch(info, objects),
            None => {
                objects.iter().for_each(|&object| prefetch(self.info(header(object)), &[object]))
            }
        }
    }

    unsafe fn hold(&self, object: Object, by: ThreadId) {
        // SAFETY: alive, as the caller says; the world is stopped.
        unsafe { header(object).as_ref() }.claim(by.get());
    }

    unsafe fn release(&self, object: Object, m: &Raw) {
        // SAFETY: the caller gives the reference up.
        unsafe { drop_attached(m, header(object)) };
    }

    unsafe fn clear(&self, object: Object, m: &Raw) {
        let header = header(object);
        let info = self.info(header);
        // SAFETY: alive, as the caller says, and of the type that its header names.
        let clear = || unsafe { (info.clear)(info.value(header), (&raw const *m).cast()) };
        m.private().discard.clearing(object, clear);
    }

    fn clearing(&self, m: &Raw, objects: usize) {
        m.private().discard.expect(objects, m.core().stress);
    }

    #[inline(always)]
    fn cleared(&self, m: &Raw, last: bool) {
        if last || m.private().discard.is_full() {
            drop_discarded(m);
        }
    }

    unsafe fn has_finalizer(&self, object: Object) -> bool {
        let info = self.info(header(object));
        // SAFETY: alive, as the caller says.
        info.finalize.is_some()
            && info.has_finalizer.is_none_or(|has| unsafe { has(header(object)) })
    }

    unsafe fn finalize(&self, object: Object, m: &Raw) {
        let header = header(object);
        if let Some(finalize) = self.info(header).finalize {
            // SAFETY: alive, as the caller says, and of the type that its header names.
            unsafe { finalize(header, (&raw const *m).cast()) };
        }
    }

    fn doubts(&self) -> bool {
        self.is_checked()
    }

    unsafe fn is_doubted(&self, object: Object) -> bool {
        self.info(header(object)).dealloc.is_some()
    }

    unsafe fn overvisited(&self, object: Object) {
        let info = self.info(header(object));
        if info.dealloc.is_some() {
            // SAFETY: alive, as the caller says.
            let name = unsafe { (info.name)(header(object)) };
            self.note(
                Fault::new(Code::OverVisited, "collection").of_type(name).at(object.address()),
            );
        }
    }

    fn prepare(&self, m: &Raw) {
        quiesce(m);
        drain_deferred(m);
        empty_queue(m);
    }

    fn pending(&self, world: &World<'_, Self>) -> usize {
        let mut pending = 0;
        world.locals(|_, local| pending += local.queue.lock().as_ref().map_or(0, Vec::len));
        pending
    }

    fn merge(&self, world: &World<'_, Self>, dead: &mut Vec<Object>) {
        // Everybody is at a safepoint. Relaxed, both: the stop orders them.
        let epoch = self.epoch.load(Ordering::Relaxed);
        world.locals(|_, local| {
            dead.extend(merge_queue(local).into_iter().map(|target| object(target.0)));
            local.seen.store(epoch, Ordering::Relaxed);
        });
    }

    unsafe fn bury(&self, object: Object, m: &Raw) {
        // SAFETY: rule Z: the merge answered `Dead`.
        unsafe { destroy_all(m, header(object), OnPanic::Report) };
    }

    unsafe fn has_weak(&self, object: Object) -> bool {
        // SAFETY: alive, as the caller says.
        unsafe { header(object).as_ref() }.has_weak()
    }

    unsafe fn callbacks(&self, target: Object) -> usize {
        self.weak.get(header(target)).map_or(0, |record| record.watchers())
    }

    unsafe fn take_callbacks(
        &self,
        target: Object,
        is_unreachable: &dyn Fn(Object) -> bool,
        _: &World<'_, Self>,
        due: &mut Vec<Callback>,
    ) {
        let Some(record) = self.weak.get(header(target)) else { return };
        for Watcher { weak_ref, invoke, .. } in record.take_watchers() {
            // Garbage itself, or dead: its callback is dropped with it.
            if weak_ref.with_target(|h| is_unreachable(object(NonNull::from(h)))) != Some(false) {
                continue;
            }
            // Counted as shared: the collecting thread need not be the owner.
            if let Some(weak_ref) = weak_ref.upgrade(0) {
                due.push(Callback { weak_ref: Held(weak_ref), invoke });
            }
        }
    }

    fn call_back(&self, callback: Callback, m: &Raw) {
        call(callback, m);
    }

    unsafe fn clear_weak(&self, object: Object) {
        // The record leaves the table: should the object survive, new weak references get a new one.
        drop(self.weak.died(header(object)));
    }

    fn has_legacy(&self) -> bool {
        self.legacy.load(Ordering::Relaxed)
    }

    unsafe fn legacy(&self, object: Object) -> bool {
        // SAFETY: alive, as the caller says.
        self.info(header(object)).legacy.is_some_and(|legacy| unsafe { legacy(header(object)) })
    }

    unsafe fn judge(&self, found: &Found<'_>, m: &Raw) -> Verdict {
        let core = m.core();
        let debug = core.notices.debug();
        for (flag, what, objects) in [
            (notices::DEBUG_COLLECTABLE, "collectable", found.garbage),
            (notices::DEBUG_UNCOLLECTABLE, "uncollectable", found.uncollectable),
        ] {
            if debug & flag != 0 {
                for &object in objects {
                    // SAFETY: alive, as the caller says.
                    let name = unsafe { self.type_name(object) };
                    core.notices.line(
                        &core.hooks,
                        format_args!("gc: {what} <{name} {:#x}>", object.address()),
                    );
                }
            }
        }
        // SAFETY: as above, all of it.
        unsafe {
            if debug & notices::DEBUG_SAVEALL == 0 {
                self.save(found.legacy, m);
                return Verdict::Clear;
            }
            self.save(found.uncollectable, m);
            self.save(found.garbage, m);
        }
        Verdict::Keep
    }

    unsafe fn type_name(&self, object: Object) -> &'static str {
        // SAFETY: alive, as the caller says.
        unsafe { (self.info(header(object)).name)(header(object)) }
    }

    unsafe fn check(&self, object: Object) -> Result<(), String> {
        // SAFETY: alive, as the caller says; read as bare memory, whatever lies there.
        let header = unsafe { header(object).as_ref() };
        if self.types.find(header.type_index()).is_none() {
            return Err(format!(
                "its type is number {:#x}, and the heap has none",
                header.type_index()
            ));
        }
        header.check(ThreadId::was_given)
    }

    fn last_type(&self, memory: NonNull<u8>) -> Option<&'static str> {
        // SAFETY: rule O: a cell is larger than a header, any bytes are one, and the cell is the caller's.
        let index = unsafe { memory.cast::<Header>().as_ref() }.type_index();
        let info = self.types.find(index)?;
        // A dynamic object's type may have gone before it.
        Some(if info.dealloc.is_some() {
            "dynamic object"
        } else {
            // SAFETY: rule Y: the names of other types are constants: the object is not looked at.
            unsafe { (info.name)(memory.cast()) }
        })
    }

    fn resumed(&self, m: &Raw) {
        self.tell_notes(&m.core().hooks);
        reap(m);
        drain_deferred(m);
    }

    fn settle(&self, m: &Raw) -> bool {
        quiesce(m);
        !self.retired.lock().is_empty()
    }

    fn answer(&self, requests: u32, m: &Raw) {
        if requests & MERGE != 0 {
            maybe_yield(&m.core().under, Step::Merge);
            empty_queue(m);
        }
        if requests & DRAIN != 0 {
            drain_deferred(m);
        }
        if requests & QUIESCE != 0 {
            quiesce(m);
        }
    }

    fn attached(&self, m: &Raw) {
        // SeqCst: the other half of `new_epoch`.
        let epoch = self.epoch.load(Ordering::SeqCst);
        // Mostly it stands there already: nobody has retired anything. Relaxed: this thread's own last word, or a
        // stop's, which happened before this. The load of the epoch is what orders.
        if m.local().seen.load(Ordering::Relaxed) != epoch {
            // Release: as in `quiesce`, for what this thread loaded when it was attached before.
            m.local().seen.store(epoch, Ordering::Release);
            // It may be the first since then.
            reap(m);
        }
        self.drain_on(m);
    }

    fn ending(&self, m: &Raw) {
        // Nothing, unless a panic of a hook has ended a collection.
        self.cleared(m, true);
        if is_traversing() {
            if !publish_retired(m) {
                // Nobody will hand them over.
                m.private().retired.take();
            }
            orphan(m.core(), m.local());
            m.core().coordinator.poke_attached(DRAIN);
            return;
        }
        loop {
            if !publish_retired(m) {
                // Nobody will hand them over.
                m.private().retired.take();
            }
            quiesce(m);
            drain_deferred(m);
            let dead = merge_queue(m.local());
            if dead.is_empty() && m.private().retired.borrow().is_empty() {
                let mut queue = m.local().queue.lock();
                // Closing under the lock: whoever finds it closed merges by himself.
                if queue.as_ref().is_some_and(Vec::is_empty) {
                    *queue = None;
                    return;
                }
            }
            for target in dead {
                // SAFETY: rule Z: `Dead` was answered to this thread.
                unsafe { destroy_all(m, target.0, OnPanic::Report) };
            }
        }
    }
}

/// The typed face of an opaque mutator pointer, as type tables get it.
///
/// # Safety
///
/// `m` came from a `&Raw`, which is what a [`Mutator`] is.
pub(crate) unsafe fn mutator<'a>(m: *const ()) -> &'a Mutator {
    // SAFETY: rule Y: `Mutator` is a transparent wrapper of `Raw`.
    unsafe { &*m.cast::<Mutator>() }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

    use super::*;
    use crate::{Gc, Heap};

    static DIED: AtomicUsize = AtomicUsize::new(0);

    struct Loud;

    impl Trace for Loud {
        fn traverse(&self, _: &mut Tracer) {}
    }

    impl Drop for Loud {
        fn drop(&mut self) {
            DIED.fetch_add(1, SeqCst);
            panic!("a destructor that panics");
        }
    }

    /// Found by random programs on threads: the first panic left the others of a queue dead, and for ever undestroyed.
    #[test]
    fn of_several_that_are_dead_all_are_destroyed_whoever_panics() {
        let heap = Heap::builder().reserve(1 << 30).build().unwrap();
        let reported = Arc::new(AtomicUsize::new(0));
        heap.on_unraisable({
            let reported = reported.clone();
            move |_| {
                reported.fetch_add(1, SeqCst);
            }
        });
        let m = heap.attach();
        let dead: Vec<_> = (0..3)
            .map(|_| {
                let loud = std::mem::ManuallyDrop::new(m.alloc(Loud));
                let header = NonNull::new(Gc::as_ptr(&loud).cast_mut()).unwrap();
                // SAFETY: rule Y: the value lies behind its header.
                let header: NonNull<Header> =
                    unsafe { header.byte_sub(size_of::<Header>()) }.cast();
                // SAFETY: rule R: alive; the handle is never used again.
                assert!(unsafe { header.as_ref() }.take_last(m.raw().id()));
                Target(header)
            })
            .collect();
        // SAFETY: rule Z: the last references were taken just now.
        let thrown = event::guarded(|| unsafe { destroy_each(m.raw(), dead, OnPanic::PassOn) });
        assert!(thrown.is_err());
        assert_eq!(
            (DIED.load(SeqCst), reported.load(SeqCst), heap.stats().live_objects),
            (3, 2, 0)
        );
    }

    #[test]
    fn the_quarantine_counts_the_bytes_of_what_it_keeps() {
        let shape = crate::memory::shape::Shape::large(Quarantine::BYTES / 4, 16).expect("a size");
        let footprint = shape.footprint();
        let most = Quarantine::BYTES / footprint.bytes();
        let mut quarantine = Quarantine::default();
        let mut headers = [0u64; 64];
        // More and more come, and the oldest go: always as many are left as there is room for.
        for (at, header) in headers.iter_mut().enumerate() {
            // Never looked at.
            let object = Target(NonNull::from(header).cast());
            quarantine.keep(object, footprint).expect("memory");
            assert_eq!(quarantine.release().is_some(), at >= most, "object {at}");
            assert!(quarantine.release().is_none(), "one went, and that is enough");
            assert_eq!(quarantine.objects.len(), (at + 1).min(most));
        }
        while quarantine.take().is_some() {}
        assert_eq!(quarantine.bytes, 0);
    }

    #[test]
    fn the_quarantine_is_full_at_its_limits_and_not_before() {
        use crate::memory::arena::{CLASSES, shape_of};
        let footprints = || (0..CLASSES as u8).map(|class| shape_of(class).footprint());
        // As many small ones as it may keep, and larger ones that fill it to the last byte.
        let small = footprints().next().expect("a class");
        let exact = |footprint: &Footprint| {
            let bytes = footprint.bytes();
            bytes > 0
                && Quarantine::BYTES.is_multiple_of(bytes)
                && Quarantine::BYTES / bytes < Quarantine::OBJECTS
        };
        let large = footprints().find(exact).expect("one whose size is a power of two");
        for (footprint, most) in
            [(small, Quarantine::OBJECTS), (large, Quarantine::BYTES / large.bytes())]
        {
            let mut quarantine = Quarantine::default();
            let header = 0u64;
            // Never looked at.
            let object = || Target(NonNull::from(&header).cast());
            for _ in 0..most {
                quarantine.keep(object(), footprint).expect("memory");
                assert!(quarantine.release().is_none());
            }
            quarantine.keep(object(), footprint).expect("memory");
            assert!(quarantine.release().is_some() && quarantine.release().is_none());
            assert_eq!(quarantine.objects.len(), most);
        }
    }

    /// References that were dropped where they could not be counted keep memory: they make a collection, which drops them, due as new
    /// objects do.
    #[test]
    fn what_is_deferred_makes_a_collection_due() {
        use crate::Pacing;
        use crate::heap::pacing::Due;
        const OBJECTS: usize = 100;
        let pacing = Pacing {
            young_objects: usize::MAX,
            young_bytes: OBJECTS * 1024 / 2,
            ..Pacing::default()
        };
        let heap = Heap::builder().reserve(1 << 30).pacing(pacing).build().unwrap();
        let mut m = heap.attach();
        let core = Arc::clone(m.raw().core());
        let make = |m: &Mutator| -> Vec<Gc<[u64; 126]>> {
            (0..OBJECTS).map(|_| m.alloc([0; 126])).collect()
        };
        let (first, second) = (make(&m), make(&m));
        m.collect();
        assert_eq!(core.pace.due(), Due::Nothing);
        std::thread::spawn(move || drop(first)).join().unwrap();
        assert_ne!(core.pace.due(), Due::Nothing, "by an unattached thread");
        core.model.drain_on(m.raw());
        assert_eq!(core.pace.due(), Due::Nothing, "drained");
        let world = m.raw().stop_here().unwrap();
        drop(second);
        assert_ne!(core.pace.due(), Due::Nothing, "in a stop of the thread's own");
        drop(world);
        core.model.drain_on(m.raw());
        assert_eq!((core.pace.due(), heap.stats().live_objects), (Due::Nothing, 0));
    }

    fn plain_heap() -> Heap {
        Heap::builder()
            .reserve(1 << 30)
            .workers(1)
            .pacing(crate::Pacing::manual())
            .build()
            .expect("a heap")
    }

    /// Does `f` on another thread, which is attached to the heap, and takes part in stops but passes no other safepoint until `f`
    /// returns.
    fn on_attached_thread<R: Send>(heap: &Heap, f: impl FnOnce(&mut Mutator) -> R + Send) -> R {
        std::thread::scope(|scope| scope.spawn(|| f(&mut heap.attach())).join().expect("no panic"))
    }

    #[test]
    fn what_another_thread_drops_waits_for_its_owner() {
        const OBJECTS: usize = 5;
        let heap = plain_heap();
        let mut m = heap.attach();
        let live = || heap.stats().live_objects;
        let queued = |m: &Mutator| m.raw().local().queue.lock().as_ref().map(Vec::len);
        let make =
            |m: &Mutator| -> Vec<Gc<u64>> { (0..OBJECTS as u64).map(|n| m.alloc(n)).collect() };
        // The owner is attached: it is asked to merge, and does so at its next safepoint.
        let objects = make(&m);
        on_attached_thread(&heap, |_| drop(objects));
        assert_eq!((queued(&m), live()), (Some(OBJECTS), OBJECTS));
        assert_ne!(m.raw().poll() & MERGE, 0, "it is asked");
        m.safepoint();
        assert_eq!((queued(&m), live(), m.raw().poll() & MERGE), (Some(0), 0, 0));
        // One that has another reference is merged, and lives.
        let objects = make(&m);
        let clones = objects.clone();
        on_attached_thread(&heap, |_| drop(objects));
        m.safepoint();
        assert_eq!((queued(&m), live()), (Some(0), OBJECTS));
        drop(clones);
        assert_eq!(live(), 0);
        // The owner is detached: whoever drops merges for it.
        let objects = make(&m);
        m.detach(|| {
            on_attached_thread(&heap, |_| drop(objects));
            assert_eq!(live(), 0);
        });
        // The owner has ended.
        let objects = on_attached_thread(&heap, |m| make(m));
        assert_eq!(live(), OBJECTS);
        drop(objects);
        assert_eq!((live(), queued(&m)), (0, Some(0)));
        // A collection merges all queues.
        let objects = make(&m);
        on_attached_thread(&heap, |_| drop(objects));
        let world = m.raw().stop_here().expect("a stop");
        assert_eq!(world.core().model.pending(&world), OBJECTS);
        drop(world);
        m.collect();
        assert_eq!((live(), queued(&m)), (0, Some(0)));
        // And a thread that ends leaves none behind.
        let (sender, receiver) = std::sync::mpsc::channel();
        let (go, going) = std::sync::mpsc::channel::<()>();
        std::thread::scope(|scope| {
            let (heap, make, queued) = (&heap, &make, &queued);
            scope.spawn(move || {
                let m = heap.attach();
                sender.send(make(&m)).expect("a receiver");
                // Attached, and at no safepoint.
                going.recv().expect("a sender");
                assert_eq!(queued(&m), Some(OBJECTS));
            });
            drop(receiver.recv().expect("a sender"));
            assert_eq!(live(), OBJECTS);
            go.send(()).expect("a receiver");
        });
        assert_eq!(live(), 0);
    }

    /// An object without a destructor, one with, and one by a handle that does not know its type, end alike.
    #[test]
    fn an_object_ends_with_its_last_reference_whatever_its_type_and_never_in_a_stop() {
        use crate::AnyGc;
        type Make = fn(&Mutator) -> Box<dyn std::any::Any>;
        let makes: [Make; 3] = [
            |m| Box::new(m.alloc(7u64)),
            |m| Box::new(m.alloc(vec![7u64])),
            |m| Box::new(AnyGc::from(m.alloc(vec![7u64]))),
        ];
        let clone = |handle: &Box<dyn std::any::Any>| -> Box<dyn std::any::Any> {
            if let Some(handle) = handle.downcast_ref::<Gc<u64>>() {
                Box::new(handle.clone())
            } else if let Some(handle) = handle.downcast_ref::<Gc<Vec<u64>>>() {
                Box::new(handle.clone())
            } else {
                Box::new(handle.downcast_ref::<AnyGc>().expect("one of three").clone())
            }
        };
        let heap = plain_heap();
        let live = || heap.stats().live_objects;
        for make in makes {
            let m = heap.attach();
            let one = make(&m);
            let other = clone(&one);
            drop(one);
            assert_eq!(live(), 1);
            drop(other);
            assert_eq!(live(), 0);
            // In a stop it is only noted.
            let one = make(&m);
            let world = m.raw().stop_here().expect("a stop");
            drop(one);
            assert_eq!(live(), 1);
            drop(world);
            m.raw().model().resumed(m.raw());
            assert_eq!(live(), 0);
        }
        let m = heap.attach();
        for is_held in [false, true] {
            let one = m.alloc(7u64);
            let weak = Gc::downgrade(&one, &m);
            let other = is_held.then(|| one.clone());
            drop(one);
            assert_eq!((weak.upgrade(&m).is_some(), live()), (is_held, usize::from(is_held)));
            drop(other);
            assert_eq!((weak.upgrade(&m).is_none(), live()), (true, 0));
        }
    }

    #[test]
    fn what_an_unattached_thread_drops_is_listed_for_those_that_are_attached() {
        let heap = plain_heap();
        let mut m = heap.attach();
        let core = Arc::clone(m.raw().core());
        let (model, live) = (&core.model, || heap.stats().live_objects);
        let listed = || {
            let deferred = model.deferred.lock();
            (deferred.list.len(), deferred.poked)
        };
        for round in 0..2 {
            let (one, other) = (m.alloc(1), m.alloc(2));
            assert_eq!(
                (listed(), model.has_deferred.load(SeqCst)),
                ((0, false), false),
                "round {round}"
            );
            std::thread::scope(|scope| scope.spawn(|| drop(one)).join().expect("no panic"));
            assert_eq!((listed(), model.has_deferred.load(SeqCst)), ((1, true), true));
            assert_ne!(m.raw().poll() & DRAIN, 0, "whoever is attached is asked");
            std::thread::scope(|scope| scope.spawn(|| drop(other)).join().expect("no panic"));
            assert_eq!((listed(), live()), ((2, true), 2));
            m.safepoint();
            assert_eq!((listed(), live(), model.has_deferred.load(SeqCst)), ((0, false), 0, false));
        }
        // A thread that attaches finds them, too.
        let object = m.alloc(3);
        m.detach(|| {
            drop(object);
            assert_eq!((listed().0, live()), (1, 1));
            on_attached_thread(&heap, |_| assert_eq!((listed(), live()), ((0, false), 0)));
        });
        // In a stop of the thread's own there is a list for that thread alone.
        let object = m.alloc(4);
        let world = m.raw().stop_here().expect("a stop");
        drop(object);
        assert_eq!((listed().0, model.deferred_in_stop.lock().len(), live()), (0, 1, 1));
        drop(world);
        m.raw().model().resumed(m.raw());
        assert_eq!((model.deferred_in_stop.lock().len(), live()), (0, 0));
    }

    #[test]
    fn what_was_taken_out_of_a_slot_waits_for_all_who_may_look_at_it() {
        use crate::AtomicGc;
        let heap = plain_heap();
        let mut m = heap.attach();
        let core = Arc::clone(m.raw().core());
        let live = || heap.stats().live_objects;
        let gathered = |m: &Mutator| m.raw().private().retired.borrow().len();
        let retired = || core.model.retired.lock().len();
        let (sender, receiver) = std::sync::mpsc::channel();
        let (ask, asked) = std::sync::mpsc::channel::<bool>();
        std::thread::scope(|scope| {
            let heap = &heap;
            scope.spawn(move || {
                let mut m = heap.attach();
                let poll = |m: &Mutator| m.raw().poll() & QUIESCE;
                sender.send(poll(&m)).expect("a receiver");
                for passes in asked {
                    if passes {
                        m.safepoint();
                    }
                    sender.send(poll(&m)).expect("a receiver");
                }
            });
            assert_eq!(receiver.recv(), Ok(0));
            let other = |passes: bool| {
                ask.send(passes).expect("a receiver");
                receiver.recv().expect("a sender")
            };
            let slot = AtomicGc::new(None);
            let retire = |m: &Mutator| {
                slot.store(m, Some(m.alloc(7)));
                slot.store(m, None);
            };
            retire(&m);
            assert_eq!(
                (gathered(&m), retired(), other(false)),
                (1, 0, 0),
                "only this thread knows"
            );
            assert_ne!(m.raw().poll() & QUIESCE, 0, "it hands it over at its next safepoint");
            (1..RETIRE_BATCH - 1).for_each(|_| retire(&m));
            assert_eq!((gathered(&m), retired()), (RETIRE_BATCH - 1, 0));
            retire(&m);
            assert_eq!(
                (gathered(&m), retired()),
                (0, RETIRE_BATCH),
                "so many are handed over at once"
            );
            assert_eq!(other(false), QUIESCE, "and others are asked");
            m.safepoint();
            assert_eq!(live(), RETIRE_BATCH, "the other may be looking at them");
            assert_eq!(other(true), 0);
            m.safepoint();
            assert_eq!((live(), retired()), (0, 0));
            // By a safepoint of this thread, and then of the other.
            retire(&m);
            m.safepoint();
            assert_eq!((gathered(&m), retired(), live()), (0, 1, 1));
            other(true);
            assert_eq!((retired(), live()), (0, 1), "who passes last drops what this thread owns");
            m.safepoint();
            assert_eq!(live(), 0);
            drop(ask);
        });
    }

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
            core.model.tell_notes(&core.hooks);
            std::mem::take(&mut *told.lock().expect("no panic"))
        };
        for _ in 0..2 {
            core.model.note(Fault::new(Code::OverVisited, "one"));
            core.model.note(Fault::new(Code::OverVisited, "two"));
        }
        assert_eq!(tell(), [(Code::OverVisited, "one"), (Code::OverVisited, "two")]);
        assert_eq!(tell(), [], "they are told once");
        for told in [1, 0] {
            core.model.note(Fault::new(Code::NullVisit, "one"));
            assert_eq!(tell().len(), told);
        }
        core.model.note(Fault::new(Code::NullVisit, "two"));
        assert_eq!(tell(), [], "null: once for each type");
        let names: Vec<&'static str> = (0..300).map(|n| &*format!("{n}").leak()).collect();
        names.iter().for_each(|name| core.model.note(Fault::new(Code::OverVisited, name)));
        assert_eq!(tell().len(), 256);
    }

    #[test]
    fn a_thread_knows_what_is_on_its_stack() {
        let heap = plain_heap();
        let m = heap.attach();
        let private = m.raw().private();
        assert!(private.may_unwind());
        assert!(!private.begins(DESTROYING));
        assert!(private.begins(DESTROYING), "already");
        assert!(private.may_unwind(), "a destructor's panic goes on");
        private.in_handler(|| {
            assert!(!private.may_unwind(), "not through a C function");
            private.in_handler(|| assert!(!private.may_unwind()));
            assert!(!private.may_unwind(), "the outer one is not through");
        });
        assert!(private.may_unwind());
        private.ends(DESTROYING);
        assert_eq!(private.busy.get(), 0);
    }

    #[test]
    fn types_share_places_of_the_cache_without_harm() {
        let heap = plain_heap();
        let m = heap.attach();
        let one = m.alloc(1u64);
        let index = |m: &Mutator| {
            let value = NonNull::new(Gc::as_ptr(&one).cast_mut()).expect("an address");
            // SAFETY: rules R and Y: alive; the value lies behind its header.
            let header = unsafe { value.byte_sub(size_of::<Header>()).cast::<Header>().as_ref() };
            (header.type_index(), m.raw().model().types.get(header.type_index()))
        };
        let (number, info) = index(&m);
        assert_eq!(type_index(m.raw(), info), number);
        // Another type in its place: asked for again.
        m.raw().private().types.iter().for_each(|slot| slot.set((std::ptr::null(), 77)));
        assert_eq!(type_index(m.raw(), info), number);
        assert_eq!(type_index(m.raw(), info), number);
    }

    fn header_of<T: Trace>(gc: &Gc<T>) -> NonNull<Header> {
        crate::AnyGc::from(gc.clone()).header()
    }

    /// How often finalizers of [`Noting`] and [`Plain`], destructors of [`Noting`], and weak callbacks have run.
    #[derive(Default)]
    struct Calls {
        finalized: AtomicUsize,
        died: AtomicUsize,
        called_back: AtomicUsize,
    }

    impl Calls {
        fn get(&self) -> [usize; 3] {
            [&self.finalized, &self.died, &self.called_back].map(|count| count.load(SeqCst))
        }
    }

    /// With a destructor and a finalizer.
    struct Noting(Arc<Calls>);

    impl Trace for Noting {
        const HAS_FINALIZER: bool = true;

        fn traverse(&self, _: &mut Tracer) {}

        fn finalize(this: &Gc<Self>, m: &Mutator) {
            this.get(m).0.finalized.fetch_add(1, SeqCst);
        }
    }

    impl Drop for Noting {
        fn drop(&mut self) {
            self.0.died.fetch_add(1, SeqCst);
        }
    }

    /// With a finalizer, and nothing to drop.
    struct Plain(&'static Calls);

    impl Trace for Plain {
        const HAS_FINALIZER: bool = true;

        fn traverse(&self, _: &mut Tracer) {}

        fn finalize(this: &Gc<Self>, m: &Mutator) {
            this.get(m).0.finalized.fetch_add(1, SeqCst);
        }
    }

    #[test]
    fn finalizers_and_weak_callbacks_run_whoever_drops_the_last_reference() {
        static PLAIN: Calls = Calls {
            finalized: AtomicUsize::new(0),
            died: AtomicUsize::new(0),
            called_back: AtomicUsize::new(0),
        };
        const { assert!(!std::mem::needs_drop::<Plain>()) };
        fn count_callback<T>(_: &Gc<crate::WeakRef<T, ()>>, _: &Mutator) {
            PLAIN.called_back.fetch_add(1, SeqCst);
        }
        let heap = plain_heap();
        let mut m = heap.attach();
        let live = || heap.stats().live_objects;
        let by_owner = |_: &mut Mutator, object: crate::AnyGc| drop(object);
        let by_another = |m: &mut Mutator, object: crate::AnyGc| {
            on_attached_thread(&heap, |_| drop(object));
            m.safepoint();
        };
        let by_nobody = |m: &mut Mutator, object: crate::AnyGc| {
            std::thread::scope(|scope| scope.spawn(|| drop(object)).join().expect("no panic"));
            m.safepoint();
        };
        type Way<'a> = &'a dyn Fn(&mut Mutator, crate::AnyGc);
        let ways: [Way<'_>; 3] = [&by_owner, &by_another, &by_nobody];
        for (round, way) in (1..).zip(ways) {
            let calls = Arc::new(Calls::default());
            let noting = m.alloc(Noting(calls.clone()));
            way(&mut m, noting.into());
            assert_eq!((calls.get(), live()), ([1, 1, 0], 0));
            let plain = m.alloc(Plain(&PLAIN));
            way(&mut m, plain.into());
            assert_eq!((PLAIN.finalized.load(SeqCst), live()), (2 * round - 1, 0));
            // The handle that knows its type, and the callback of a weak reference.
            let plain = m.alloc(Plain(&PLAIN));
            let weak = m.alloc_weak(&plain, (), count_callback);
            drop(plain);
            assert_eq!(PLAIN.get(), [2 * round, 0, 2 * round - 1]);
            drop(weak);
            let number = m.alloc(7u64);
            let weak = m.alloc_weak(&number, (), count_callback);
            way(&mut m, number.into());
            assert_eq!(PLAIN.called_back.load(SeqCst), 2 * round);
            drop(weak);
            assert_eq!(live(), 0);
        }
        // By handles that know the type.
        let calls = Arc::new(Calls::default());
        drop(m.alloc(Noting(calls.clone())));
        assert_eq!((calls.get(), live()), ([1, 1, 0], 0));
        let before = PLAIN.called_back.load(SeqCst);
        let number = m.alloc(7u64);
        let weak = m.alloc_weak(&number, (), count_callback);
        drop(number);
        assert_eq!(PLAIN.called_back.load(SeqCst), before + 1);
        drop(weak);
        // What another thread has cloned outlives the owner's last reference.
        let number = m.alloc(7u64);
        let clone = on_attached_thread(&heap, |_| number.clone());
        drop(number);
        assert_eq!((live(), *clone.get(&m)), (1, 7));
        drop(clone);
        assert_eq!(live(), 0);
    }

    #[test]
    fn a_finalizer_that_panics_is_reported_and_its_object_dies() {
        struct Fails;

        impl Trace for Fails {
            const HAS_FINALIZER: bool = true;

            fn traverse(&self, _: &mut Tracer) {}

            fn finalize(_: &Gc<Self>, _: &Mutator) {
                panic!("a finalizer that panics");
            }
        }
        let heap = plain_heap();
        let told = Arc::new(std::sync::Mutex::new(Vec::new()));
        let to = Arc::clone(&told);
        heap.on_unraisable(move |error| {
            to.lock().expect("no panic").push((
                error.during,
                error.type_name,
                error.message.to_string(),
            ));
        });
        let m = heap.attach();
        drop(m.alloc(Fails));
        let name = std::any::type_name::<Fails>();
        let told = told.lock().expect("no panic");
        assert_eq!(*told, [(During::Finalize, name, "a finalizer that panics".to_owned())]);
        assert_eq!(heap.stats().live_objects, 0);
    }

    /// A list is destroyed object by object, not one within the other: a small stack is enough.
    #[test]
    fn a_long_list_needs_no_stack() {
        struct Link {
            next: Option<Gc<Link>>,
            _boxed: Box<u8>,
        }

        impl Trace for Link {
            fn traverse(&self, tracer: &mut Tracer) {
                self.next.traverse(tracer);
            }
        }
        let run = || {
            let heap = plain_heap();
            let m = heap.attach();
            let make = |m: &Mutator| {
                (0..20_000)
                    .fold(None, |next, _| Some(m.alloc(Link { next, _boxed: Box::new(0) })))
                    .expect("a list")
            };
            drop(make(&m));
            assert_eq!(heap.stats().live_objects, 0);
            // By a handle that does not know its type.
            drop(crate::AnyGc::from(make(&m)));
            assert_eq!(heap.stats().live_objects, 0);
            // After the heap.
            let list = make(&m);
            drop((m, heap));
            drop(list);
        };
        std::thread::scope(|scope| {
            std::thread::Builder::new()
                .stack_size(256 << 10)
                .spawn_scoped(scope, run)
                .expect("a thread")
                .join()
                .expect("no panic");
        });
    }

    #[test]
    fn a_large_value_gives_its_memory_back() {
        struct Large {
            _bytes: [u8; 100_000],
            _text: String,
        }

        impl Trace for Large {
            fn traverse(&self, _: &mut Tracer) {}
        }
        let heap = plain_heap();
        let m = heap.attach();
        let large = m.alloc(Large { _bytes: [0; 100_000], _text: "text".to_owned() });
        assert_eq!(heap.stats().live_objects, 1);
        drop(large);
        assert_eq!((heap.stats().live_objects, heap.stats().live_bytes), (0, 0));
    }

    #[test]
    fn a_panic_of_what_dies_with_an_object_comes_out_of_the_drop() {
        let heap = plain_heap();
        let reported = Arc::new(AtomicUsize::new(0));
        let to = Arc::clone(&reported);
        heap.on_unraisable(move |_| {
            to.fetch_add(1, SeqCst);
        });
        let m = heap.attach();
        for (inner, reports) in [(1, 0), (3, 2)] {
            let holds = m.alloc(Holds((0..inner).map(|_| m.alloc(Panics)).collect()));
            let thrown = event::guarded(|| drop(holds));
            assert!(thrown.is_err(), "the first panic comes out");
            assert_eq!(reported.swap(0, SeqCst), reports, "and the others are reported");
            assert_eq!(heap.stats().live_objects, 0);
            assert_eq!(m.raw().private().busy.get(), 0);
        }
    }

    #[test]
    fn nothing_is_destroyed_in_a_traversal() {
        use crate::AtomicGc;
        let heap = plain_heap();
        let m = heap.attach();
        let (raw, live) = (m.raw(), || heap.stats().live_objects);
        let queued = || raw.local().queue.lock().as_ref().map(Vec::len);
        let (dropped, deferred) = (m.alloc(1), m.alloc(2));
        on_attached_thread(&heap, |_| drop(dropped));
        std::thread::scope(|scope| scope.spawn(|| drop(deferred)).join().expect("no panic"));
        let slot = AtomicGc::new(Some(m.alloc(3)));
        slot.store(&m, None);
        assert!(publish_retired(raw));
        let epoch = raw.model().epoch.load(SeqCst);
        raw.local().seen.store(epoch, SeqCst);
        let guard = crate::safepoint::traversing();
        empty_queue(raw);
        drain_list(raw);
        reap(raw);
        let listed = raw.model().deferred.lock().list.len();
        assert_eq!(
            (queued(), listed, raw.model().retired.lock().len(), live()),
            (Some(1), 1, 1, 3)
        );
        drop(guard);
        empty_queue(raw);
        assert_eq!((queued(), live()), (Some(0), 2));
        drain_list(raw);
        assert_eq!(live(), 1);
        reap(raw);
        assert_eq!((live(), raw.model().retired.lock().len()), (0, 0));
    }

    #[test]
    fn a_reference_taken_out_elsewhere_is_retired_deferred_in_a_stop_and_dropped_after_the_heap() {
        let heap = plain_heap();
        let mut m = heap.attach();
        let core = Arc::clone(m.raw().core());
        let model = &core.model;
        let lists = || (model.retired.lock().len(), model.deferred.lock().list.len());
        let live = || heap.stats().live_objects;
        // SAFETY: rule R: the handle's reference is given up.
        let retire =
            |object: Gc<u64>| unsafe { retire_elsewhere(ManuallyDrop::new(object).header()) };
        retire(m.alloc(1));
        assert_eq!((lists(), live()), ((1, 0), 1));
        assert_ne!(m.raw().poll() & QUIESCE, 0, "attached threads are asked to pass a safepoint");
        m.safepoint();
        assert_eq!((lists(), live()), ((0, 0), 0));
        let object = m.alloc(2);
        let world = m.raw().stop_here().expect("a stop");
        retire(object);
        assert_eq!((lists(), model.deferred_in_stop.lock().len(), live()), ((0, 0), 1, 1));
        drop(world);
        m.raw().model().resumed(m.raw());
        assert_eq!((model.deferred_in_stop.lock().len(), live()), (0, 0));
        drop(core);
        // After the heap.
        let calls = Arc::new(Calls::default());
        let object = m.alloc(Noting(calls.clone()));
        let address = header_of(&object).as_ptr() as usize;
        drop((m, heap));
        assert!(crate::memory::space::is_in_any_heap(address), "objects keep the range");
        // SAFETY: rule R: as above.
        unsafe { retire_elsewhere(ManuallyDrop::new(object).header()) };
        assert_eq!(calls.get(), [0, 1, 0], "there is no mutator for a finalizer");
        assert!(
            !crate::memory::space::is_in_any_heap(address),
            "the last object takes the range with it"
        );
    }

    #[test]
    fn the_end_of_a_heap_drops_what_its_lists_hold() {
        use crate::AtomicGc;
        let calls = Arc::new(Calls::default());
        let new = |m: &Mutator| m.alloc(Noting(calls.clone()));
        let heap = plain_heap();
        let other = plain_heap();
        let m = heap.attach();
        let (deferred, retired, kept) = (new(&m), new(&m), new(&m));
        let address = header_of(&kept).as_ptr() as usize;
        let slot = AtomicGc::new(Some(retired));
        drop(m);
        let core = Arc::clone(heap.core());
        drop(deferred);
        {
            // By misuse, through a mutator of another heap.
            let m = other.attach();
            assert!(event::guarded(|| slot.store(&m, None)).is_err());
        }
        assert_eq!(
            (core.model.deferred.lock().list.len(), core.model.retired.lock().len()),
            (1, 1)
        );
        drop((core, heap));
        assert_eq!(calls.died.load(SeqCst), 2);
        assert!(crate::memory::space::is_in_any_heap(address));
        drop(kept);
        assert_eq!(calls.died.load(SeqCst), 3);
        assert!(!crate::memory::space::is_in_any_heap(address));
        // Without objects nothing is left.
        let heap = plain_heap();
        let m = heap.attach();
        let address = header_of(&m.alloc(1)).as_ptr() as usize;
        drop((m, heap));
        assert!(!crate::memory::space::is_in_any_heap(address));
    }

    #[test]
    fn a_weak_reference_into_a_heap_that_has_ended_leads_nowhere_and_into_another_one_panics() {
        let (heap, other) = (plain_heap(), plain_heap());
        let m = heap.attach();
        let object = m.alloc(7);
        let weak = Gc::downgrade(&object, &m);
        drop(m);
        let m = other.attach();
        assert!(!heap.core().model.is_closed());
        assert!(event::guarded(|| weak.upgrade(&m).is_some()).is_err());
        drop(heap);
        assert!(weak.upgrade(&m).is_none());
        drop(object);
    }

    /// Safe code can show a handle twice. That keeps objects alive, and is no report: only handlers of dynamic objects are doubted.
    #[test]
    fn a_value_that_shows_too_much_is_not_reported() {
        struct Twice(Gc<u64>);

        impl Trace for Twice {
            fn traverse(&self, tracer: &mut Tracer) {
                self.0.traverse(tracer);
                self.0.traverse(tracer);
            }
        }
        let heap = Heap::builder()
            .reserve(1 << 30)
            .workers(1)
            .checked(true)
            .pacing(crate::Pacing::manual())
            .build();
        let heap = heap.expect("a heap");
        heap.on_misuse(|fault| panic!("reported: {fault}"));
        let told = Arc::new(AtomicUsize::new(0));
        let to = Arc::clone(&told);
        heap.on_unraisable(move |_| {
            to.fetch_add(1, SeqCst);
        });
        let mut m = heap.attach();
        let twice = m.alloc(Twice(m.alloc(7)));
        m.collect();
        assert_eq!((told.load(SeqCst), *twice.get(&m).0.get(&m)), (0, 7));
    }

    struct Panics;

    impl Trace for Panics {
        fn traverse(&self, _: &mut Tracer) {}
    }

    impl Drop for Panics {
        fn drop(&mut self) {
            panic!("a destructor that panics");
        }
    }

    struct Holds(Vec<Gc<Panics>>);

    impl Trace for Holds {
        fn traverse(&self, tracer: &mut Tracer) {
            self.0.traverse(tracer);
        }
    }

    #[test]
    fn after_the_heap_a_panic_comes_out_once_and_never_while_the_thread_unwinds() {
        let reported = Arc::new(AtomicUsize::new(0));
        for (unwinds, reports) in [(false, 2), (true, 3)] {
            let heap = plain_heap();
            let to = Arc::clone(&reported);
            heap.on_unraisable(move |_| {
                to.fetch_add(1, SeqCst);
            });
            let m = heap.attach();
            let holds = m.alloc(Holds((0..3).map(|_| m.alloc(Panics)).collect()));
            let address = header_of(&holds).as_ptr() as usize;
            drop((m, heap));
            let thrown = event::guarded(|| {
                let _holds = holds;
                assert!(!unwinds, "another panic");
            });
            let message = event::panic_message(thrown.expect_err("a panic"));
            assert_eq!(message.contains("another panic"), unwinds);
            assert_eq!(reported.swap(0, SeqCst), reports);
            assert!(!crate::memory::space::is_in_any_heap(address), "all have died");
        }
    }

    #[test]
    fn after_the_heap_weak_references_lead_nowhere_and_merged_objects_die() {
        let heap = plain_heap();
        let mut m = heap.attach();
        let calls = Arc::new(Calls::default());
        let object = m.alloc(Noting(calls.clone()));
        let weak = Gc::downgrade(&object, &m);
        let address = header_of(&object).as_ptr() as usize;
        // Merged: another thread has dropped what this one had counted.
        let clone = object.clone();
        on_attached_thread(&heap, |_| drop(clone));
        m.safepoint();
        assert_eq!(heap.stats().live_objects, 1);
        drop((m, heap));
        assert_eq!(calls.died.load(SeqCst), 0);
        drop(object);
        assert_eq!(calls.died.load(SeqCst), 1);
        assert!(!crate::memory::space::is_in_any_heap(address));
        let other = plain_heap();
        assert!(weak.upgrade(&other.attach()).is_none());
    }

    #[test]
    fn a_queue_whose_owner_cannot_destroy_goes_to_the_deferred_list() {
        let heap = plain_heap();
        let m = heap.attach();
        let core = m.raw().core();
        let live = || heap.stats().live_objects;
        let (dead, alive) = (m.alloc(1), m.alloc(2));
        let clone = alive.clone();
        on_attached_thread(&heap, |_| drop((dead, clone)));
        orphan(core, m.raw().local());
        assert!(m.raw().local().queue.lock().is_none());
        assert_eq!((core.model.deferred.lock().list.len(), live()), (1, 2));
        assert!(core.model.has_deferred.load(SeqCst));
        // It ends like any other.
        *m.raw().local().queue.lock() = Some(Vec::new());
        core.model.drain_on(m.raw());
        assert_eq!((live(), *alive.get(&m)), (1, 2));
        drop(m);
        drop(alive);
        drop(heap.attach());
        assert_eq!(live(), 0);
    }

    #[test]
    fn a_mutator_that_ends_under_a_guard_leaves_its_lists_to_others() {
        use crate::AtomicGc;
        let heap = plain_heap();
        let live = || heap.stats().live_objects;
        let (sender, receiver) = std::sync::mpsc::channel();
        let (ask, asked) = std::sync::mpsc::channel::<()>();
        std::thread::scope(|scope| {
            let heap = &heap;
            scope.spawn(move || {
                let mut m = heap.attach();
                sender.send(0).expect("a receiver");
                asked.recv().expect("a sender");
                sender.send(m.raw().poll() & DRAIN).expect("a receiver");
                asked.recv().expect("a sender");
                m.safepoint();
                m.safepoint();
                sender.send(0).expect("a receiver");
                asked.recv().expect("a sender");
            });
            receiver.recv().expect("a sender");
            let m = heap.attach();
            let queued = m.alloc(1);
            on_attached_thread(heap, |_| drop(queued));
            let slot = AtomicGc::new(Some(m.alloc(2)));
            slot.store(&m, None);
            let core = Arc::clone(m.raw().core());
            let guard = crate::safepoint::traversing();
            drop(m);
            drop(guard);
            let lists = (core.model.deferred.lock().list.len(), core.model.retired.lock().len());
            assert_eq!((lists, live()), ((1, 1), 2));
            ask.send(()).expect("a receiver");
            assert_eq!(receiver.recv(), Ok(DRAIN), "whoever is attached is asked");
            ask.send(()).expect("a receiver");
            receiver.recv().expect("a sender");
            assert_eq!(live(), 0);
            ask.send(()).expect("a receiver");
        });
    }

    #[test]
    fn a_mutator_that_ends_leaves_nothing_that_it_can_drop() {
        use crate::AtomicGc;
        let heap = plain_heap();
        let live = || heap.stats().live_objects;
        let m = heap.attach();
        let slot = AtomicGc::new(Some(m.alloc(1)));
        slot.store(&m, None);
        assert_eq!(live(), 1);
        drop(m);
        assert_eq!(live(), 0, "retired");
        let m = heap.attach();
        let object = m.alloc(2);
        std::thread::scope(|scope| scope.spawn(|| drop(object)).join().expect("no panic"));
        assert_eq!(live(), 1);
        drop(m);
        assert_eq!(live(), 0, "deferred");
        // What a thread has retired waits for others, and the next to attach drops it when they have gone.
        let mut m = heap.attach();
        on_attached_thread(&heap, |m| {
            let slot = AtomicGc::new(Some(m.alloc(3)));
            slot.store(m, None);
        });
        assert_eq!((live(), m.raw().model().retired.lock().len()), (1, 1));
        m.detach(|| on_attached_thread(&heap, |_| assert_eq!(live(), 0)));
    }

    #[test]
    fn a_thread_that_attaches_takes_over_the_epoch() {
        let heap = plain_heap();
        let m = heap.attach();
        let model = m.raw().model();
        let epoch = model.new_epoch();
        on_attached_thread(&heap, |m| assert_eq!(m.raw().local().seen.load(SeqCst), epoch));
        assert_eq!(m.raw().local().seen.load(SeqCst), epoch - 1, "not at a safepoint since");
        // What is waited for is settled with the next look.
        let mut held = ManuallyDrop::new(m.alloc(1));
        assert!(!model.settle(m.raw()));
        model.retired.lock().push((u64::MAX, Target(held.header())));
        assert!(model.settle(m.raw()), "it waits");
        model.retired.lock()[0].0 = epoch;
        assert!(!model.settle(m.raw()));
        assert_eq!(heap.stats().live_objects, 0);
        let _ = &mut held;
    }

    #[test]
    fn callbacks_are_counted_and_headers_are_recognised() {
        let heap = plain_heap();
        let m = heap.attach();
        let model = m.raw().model();
        let number = m.alloc(7u64);
        // SAFETY: rule R: alive.
        let callbacks = || unsafe { model.callbacks(object(number.header())) };
        assert_eq!(callbacks(), 0);
        let first = m.alloc_weak(&number, (), |_, _| ());
        let second = m.alloc_weak(&number, (), |_, _| ());
        assert_eq!(callbacks(), 2);
        drop((first, second));
        // SAFETY: rule R: alive.
        let index = unsafe { number.header().as_ref() }.type_index();
        // SAFETY: rules R and O: headers are there, and nobody follows what they say.
        let (check, last_type) = (
            |header: &Header| unsafe { model.check(object(NonNull::from(header))) },
            |header: &Header| model.last_type(NonNull::from(header).cast()),
        );
        let (own, unknown) = (m.raw().id(), 0xff_fff0);
        assert_eq!(check(&Header::new(own, index)), Ok(()));
        assert!(check(&Header::new(own, unknown)).is_err_and(|text| text.contains("0xfffff0")));
        assert!(
            check(&Header::new(own + 1_000_000, index)).is_err_and(|text| text.contains("owner"))
        );
        assert_eq!(last_type(&Header::new(own, index)), Some("u64"));
        assert_eq!(last_type(&Header::new(own, unknown)), None);
        assert_eq!(
            last_type(&Header::new(own, crate::dynamic::TYPE_INDEX)),
            Some("dynamic object")
        );
    }

    /// What dies without memory to wait in is destroyed at once, in the middle of another destruction: whatever panics is reported.
    #[test]
    fn what_cannot_wait_dies_within() {
        let heap = plain_heap();
        let told = Arc::new(std::sync::Mutex::new(Vec::new()));
        let to = Arc::clone(&told);
        heap.on_unraisable(move |error| {
            to.lock().expect("no panic").push((error.during, error.message.to_string()));
        });
        let m = heap.attach();
        let panics = ManuallyDrop::new(m.alloc(Panics));
        // SAFETY: rule R: alive; the handle is never used again.
        assert!(unsafe { panics.header().as_ref() }.take_last(m.raw().id()));
        die_within(m.raw(), panics.header());
        let told = std::mem::take(&mut *told.lock().expect("no panic"));
        assert_eq!(told, [(During::Drop, "a destructor that panics".to_owned())]);
        assert_eq!(heap.stats().live_objects, 0);
    }
}
