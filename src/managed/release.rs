//! A drop usually only lowers a count, so it must be short, although the drop of a last reference
//! may destroy a whole structure.
//!
//! This page has the drops by the owner, from the count to the return of the memory, and
//! [`foreign`](super::foreign) has those by other threads. A handle that knows its type takes the
//! short way, by [`drop_reference_to`]. It calls the destructor directly, in place, and the free
//! cell goes to the list of its size class. All other objects die by [`destroy_all`], which reads
//! the type table.
//!
//! For example, the only reference to an object `a` is dropped, whose destructor drops the only
//! reference to `b`. The thread destroys `a` and is then *busy*, so `b` goes onto the destruction
//! stack. When the destructor of `a` has returned, `a` is freed, and only then `b` is destroyed.

use std::marker::PhantomData;
use std::mem::{ManuallyDrop, needs_drop};
use std::panic::resume_unwind;
use std::ptr::NonNull;

use crate::base::outside;
use crate::base::stress::{Step, maybe_yield};
use crate::managed::deferred::defer;
use crate::managed::ephemerons;
use crate::managed::foreign::{drop_foreign, drop_shared, finish_foreign_drop};
use crate::managed::guards;
use crate::managed::parts::{OwnPart, Raw};
use crate::object::counted::{CountedRef, object};
use crate::object::header::{Dropped, Header};
use crate::object::live::DeadObject;
use crate::object::state::{self, StateByte};
use crate::object::type_info::TypeInfo;
use crate::object::weak::WeakRecord;
use crate::report::facts::During;
use crate::report::hooks::Hooks;
use crate::safepoint::{current, is_stopping};

/// Where the objects for one type of value lie. These are constants of a type, because a drop is
/// shorter by a fifth if the compiler knows them.
pub(crate) trait Placed {
    /// What the object contains.
    type Value;
    /// The bytes from the header to the value.
    const OFFSET: usize;
    /// `None`: a large object.
    const CLASS: Option<u8>;
}

/// Drops a reference to an object of this type.
///
/// # Safety
///
/// The caller owns the reference, and gives it up. The object was allocated for this type.
#[inline(always)]
pub(crate) unsafe fn drop_reference_to<P: Placed>(header: NonNull<Header>) {
    // SAFETY: rule *counted*: the reference keeps the object alive.
    if !unsafe { header.as_ref() }.try_drop_local(current()) {
        // SAFETY: as the caller says.
        unsafe { drop_slowly_to::<P>(header) };
    }
}

/// The rest of [`drop_reference_to`]: the reference is the last local one, or this thread is not
/// the owner.
///
/// The calls that need a stack frame are functions of their own. So a foreign drop has few
/// instructions between its first read of the header and its count, because meanwhile another
/// thread may take the cache line.
///
/// # Safety
///
/// As for [`drop_reference_to`].
#[inline(never)]
unsafe fn drop_slowly_to<P: Placed>(header: NonNull<Header>) {
    // SAFETY: rule *counted*: the reference keeps the object alive. It is given up once. The rest:
    // as the caller says.
    unsafe {
        if is_stopping() {
            defer(CountedRef::new(header));
        } else if header.as_ref().take_last(current()) {
            if const { is_plain::<P>() } {
                free_taken::<P>(header);
            } else {
                destroy_taken::<P>(header);
            }
        } else if !header.as_ref().is_owned_by(current()) {
            drop_foreign(CountedRef::new(header));
        } else {
            drop_slowly(header);
        }
    }
}

/// Whether the death of an object is the return of its cell: it has no destructor.
const fn is_plain<P: Placed>() -> bool {
    P::CLASS.is_some() && !needs_drop::<P::Value>()
}

/// [`destroy_taken`] for a [plain](is_plain) object. Without a destructor no other object dies, so
/// there is no need to be *busy*.
///
/// # Safety
///
/// As for [`destroy_taken`].
#[inline(always)]
unsafe fn free_taken<P: Placed>(header: NonNull<Header>) {
    // SAFETY: as in `destroy_taken`. Neither of the two functions for rare cases takes the mutator,
    // so that it lies in a register here.
    unsafe {
        Raw::with_known(|m| {
            let Some(class) = P::CLASS else { return };
            if m.core().state(header.as_ptr() as usize).get() & state::BY_TYPE != 0 {
                destroy_by_type(header);
            } else if !m.free_own_of_class(header.cast(), class) {
                free_elsewhere(header);
            }
        });
    }
}

/// Frees the memory of a dead object that does not lie on a page of this thread.
///
/// # Safety
///
/// As for [`destroy_taken`]; the object is dead.
#[cold]
#[inline(never)]
unsafe fn free_elsewhere(header: NonNull<Header>) {
    // SAFETY: as in `destroy_taken`.
    unsafe { Raw::with_known(|m| m.free_elsewhere(header.cast())) };
}

/// Destroys an object by the functions of the type table, for its finalizer or external bytes.
///
/// # Safety
///
/// As for [`destroy_taken`].
#[cold]
#[inline(never)]
unsafe fn destroy_by_type(header: NonNull<Header>) {
    // SAFETY: as in `destroy_taken`.
    unsafe {
        Raw::with_known(|m| destroy_all(m, DeadObject::new(object(header)), OnPanic::PassOn));
    }
}

/// Destroys an object whose owner, this thread, has taken the last reference.
///
/// # Safety
///
/// The object was allocated for this type.
#[inline(never)]
unsafe fn destroy_taken<P: Placed>(header: NonNull<Header>) {
    // SAFETY: rule *boxed*: the owner is attached, to a heap of this model. Rule *zero*: this
    // thread has taken the last reference. The rest: as the caller says.
    unsafe {
        Raw::with_known(|m| {
            let state = m.core().state(header.as_ptr() as usize).get();
            // A panic that leaves through a C function, or while the thread unwinds, would end the
            // process.
            if state & state::BY_TYPE != 0
                || m.private().busy.get() != 0
                || std::thread::panicking()
            {
                destroy_all(m, DeadObject::new(object(header)), OnPanic::PassOn);
            } else {
                destroy_in_place::<P>(m, header, OnPanic::PassOn);
            }
        });
    }
}

/// Destroys an object without finalizer and weak record, and the objects that die with it:
/// [`destroy_all`] for a known type.
///
/// # Safety
///
/// The mutator has [taken the last reference](Header::take_last), and is not [busy](OwnPart::busy).
/// The object was allocated for this type.
#[inline(always)]
pub(crate) unsafe fn destroy_in_place<P: Placed>(
    m: &Raw,
    header: NonNull<Header>,
    on_panic: OnPanic,
) {
    /// Frees the object after its destructor has returned or panicked.
    struct FreeAfterDrop<'a, P: Placed>(&'a Raw, NonNull<Header>, PhantomData<P>);
    impl<P: Placed> FreeAfterDrop<'_, P> {
        #[inline(always)]
        fn free(&self) {
            // SAFETY: rule *zero*: the value has been destroyed, and this thread has exclusive
            // access.
            unsafe {
                match P::CLASS {
                    Some(class) => self.0.free_of_class(self.1.cast(), class),
                    None => self.0.free_unprefixed(self.1.cast()),
                }
            }
            self.0.private().busy.set(0);
        }
    }
    impl<P: Placed> Drop for FreeAfterDrop<'_, P> {
        // The destructor has panicked.
        #[cold]
        fn drop(&mut self) {
            self.free();
            // A second panic is reported, because two at once would end the process.
            destroy_queued(self.0, None, OnPanic::Report);
        }
    }
    let private = m.private();
    // SAFETY: as the caller says.
    unsafe {
        outside::must_hold_no_lock();
        let _lent = m.lend();
        private.busy.set(DESTRUCTION);
        m.core().state(header.as_ptr() as usize).dying();
        let rest = FreeAfterDrop::<P>(m, header, PhantomData);
        header.cast::<u8>().add(P::OFFSET).cast::<P::Value>().drop_in_place();
        ManuallyDrop::new(rest).free();
        if !private.dying.borrow().is_empty() {
            destroy_queued(m, None, on_panic);
        }
    }
}

/// Drops a reference, on any thread.
///
/// # Safety
///
/// The caller owns the reference, and gives it up.
#[inline(always)]
pub(crate) unsafe fn drop_reference(header: NonNull<Header>) {
    // SAFETY: rule *counted*: the reference keeps the object alive.
    if !unsafe { header.as_ref() }.try_drop_local(current()) {
        // SAFETY: as the caller says.
        unsafe { drop_slowly(header) };
    }
}

/// Drops a reference that is the last local one, or that a thread other than the owner drops.
///
/// # Safety
///
/// As for [`drop_reference`].
#[inline(never)]
pub(crate) unsafe fn drop_slowly(header: NonNull<Header>) {
    // SAFETY: as the caller says.
    let reference = unsafe { CountedRef::new(header) };
    if is_stopping() {
        // This thread has stopped the world, so no object may be freed and no destructor may run.
        defer(reference);
    } else if !reference.header().is_owned_by(current()) {
        drop_foreign(reference);
    } else if let Some(dead) = reference.drop_local() {
        // SAFETY: rule *boxed*: the owner is attached, to a heap of this model.
        unsafe { Raw::with_known(|m| destroy_all(m, dead, OnPanic::PassOn)) }
    }
}

/// Drops a reference that the library owned, on an attached thread.
pub(super) fn drop_attached(m: &Raw, reference: CountedRef) {
    if !reference.header().is_owned_by(m.id()) {
        return drop_shared(m, reference, OnPanic::Report);
    }
    let taken = reference.take_last(m.id()).or_else(|reference| take_last_of_weak(m, reference));
    let dead = match taken {
        Ok(dead) => dead,
        Err(reference) => {
            if let Some(dead) = reference.drop_local() {
                destroy_all(m, dead, OnPanic::Report);
            }
            return;
        }
    };
    let info = m.model().info(dead.header());
    match info.destroy {
        Some(end) if info.finalize.is_none() && m.private().busy.get() == 0 => {
            let header = dead.into_header();
            // SAFETY: rules *typed* and *zero*: the object is of this type, and its last reference
            // is taken.
            let result = outside::guarded(|| unsafe { end(header, (&raw const *m).cast()) });
            if let Err(payload) = result {
                // SAFETY: rule *typed*: such a type has one name for all its objects, and does not
                // read the object.
                let type_name = unsafe { (info.name)(header) };
                Panic { payload, type_name }.report(&m.core().hooks);
            }
        }
        _ => destroy_all(m, dead, OnPanic::Report),
    }
}

/// Takes the last reference to an object whose weak record a collection has removed: garbage that
/// had weak references. `Err`: the object has a record, or this reference is not the last.
#[inline(never)]
fn take_last_of_weak(m: &Raw, reference: CountedRef) -> Result<DeadObject, CountedRef> {
    let header = reference.header();
    if !header.is_last_but_weak(m.id()) || m.model().weak.get(reference.as_ptr()).is_some() {
        return Err(reference);
    }
    header.unset_weak();
    reference.take_last(m.id())
}

/// The destruction of an object, so that the objects that die meanwhile go on the destruction
/// stack.
pub(super) const DESTRUCTION: u8 = 1;
/// A call of a handler of a dynamic object, which is a C function that a panic must not leave.
pub(super) const HANDLER_CALL: u8 = 2;

impl OwnPart {
    /// Calls a handler of a dynamic object. A panic of a destructor is reported meanwhile, because
    /// it would end the process.
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

/// Objects for which the destruction stack has memory from the start.
pub(super) const DESTRUCTION_STACK_ROOM: usize = 16;

/// Destroys several objects as [`destroy_all`] does. The first panic goes on, after the last
/// destruction.
pub(super) fn destroy_each(m: &Raw, dead: impl Iterator<Item = DeadObject>, on_panic: OnPanic) {
    let mut thrown = None;
    for dead in dead {
        // At most one panic goes on.
        let on_panic = if thrown.is_some() { OnPanic::Report } else { on_panic };
        let result = outside::guarded(|| destroy_all(m, dead, on_panic));
        thrown = thrown.or(result.err());
    }
    if let Some(payload) = thrown {
        resume_unwind(payload);
    }
}

/// Destroys an object, and the objects that die with it.
pub(super) fn destroy_all(m: &Raw, dead: DeadObject, on_panic: OnPanic) {
    // Destructors may drop references by this mutator, whose stack is in use then: rule *lent*.
    let _lent = m.lend();
    let private = m.private();
    if private.enter(DESTRUCTION) {
        // If the object's own handler counts it up and down again, its destruction is under way.
        // The state byte must be read now, because later the cell may contain another object.
        if m.core().dead_state(&dead).get() & state::DYING == 0 {
            queue_for_destruction(m, dead);
        }
        return;
    }
    let mut next = Some(dead);
    let mut panic = None;
    while let Some(dead) = next {
        if let Err(thrown) = destroy(m, dead) {
            if on_panic == OnPanic::PassOn && panic.is_none() && private.may_unwind() {
                panic = Some(thrown);
            } else {
                thrown.report(&m.core().hooks);
            }
        }
        next = private.dying.borrow_mut().pop();
    }
    private.exit(DESTRUCTION);
    if let Some(Panic { payload, .. }) = panic {
        resume_unwind(payload);
    }
}

/// Destroys the objects on the stack, after an object was destroyed in place.
#[cold]
#[inline(never)]
pub(super) fn destroy_queued(m: &Raw, panic: Option<Panic>, on_panic: OnPanic) {
    // At most one panic goes on, and that of the first object has precedence because it came first.
    let on_panic = if panic.is_some() { OnPanic::Report } else { on_panic };
    let next = m.private().dying.borrow_mut().pop();
    if let Some(next) = next {
        destroy_all(m, next, on_panic);
    }
    match panic {
        // A second panic while the thread unwinds, or a panic through a C function, would end the
        // process.
        Some(panic) if !m.private().may_unwind() => panic.report(&m.core().hooks),
        Some(Panic { payload, .. }) => resume_unwind(payload),
        None => {}
    }
}

/// Puts a dead object on the stack, to be destroyed after the object whose destruction is under
/// way.
#[inline(always)]
fn queue_for_destruction(m: &Raw, dead: DeadObject) {
    let mut dying = m.private().dying.borrow_mut();
    // If there is no memory for twice as many, one more is enough.
    let has_room = dying.len() < dying.capacity()
        || dying.try_reserve(1).is_ok()
        || dying.try_reserve_exact(1).is_ok();
    if has_room {
        dying.push(dead);
        return;
    }
    drop(dying);
    destroy_nested(m, dead);
}

/// Destroys a dead object inside the destruction of another, because there is no memory for the
/// stack. The calls nest as deep as for nested values of Rust, but rarely do, because even a long
/// list needs only one place on the stack.
#[cold]
#[inline(never)]
fn destroy_nested(m: &Raw, dead: DeadObject) {
    if let Err(panic) = destroy(m, dead) {
        panic.report(&m.core().hooks);
    }
}

/// Destroys one object. The memory is freed even if the destructor panics.
#[inline]
fn destroy(m: &Raw, dead: DeadObject) -> Result<(), Panic> {
    let Some(dead) = guards::spare(m, dead) else { return Ok(()) };
    let info = m.model().info(dead.header());
    if let Some(dealloc) = info.dealloc {
        return destroy_dynamic(m, dead, info, dealloc);
    }
    let dead = if info.finalize.is_none() {
        dead
    } else if let Some(dead) = finalize_dead(m, dead).and_then(|dead| guards::spare(m, dead)) {
        // The finalizer has not registered the object.
        dead
    } else {
        return Ok(());
    };
    if dead.header().has_weak() {
        notify_watchers(m, dead.header());
    }
    m.core().dead_state(&dead).dying();
    let header = dead.into_header();
    // SAFETY: rule *zero*: this thread has exclusive access, and the value is of the type that the
    // header names.
    unsafe {
        let counted = count_external(m, info, header);
        let result = run_destructor(info, header);
        m.free_unprefixed(header.cast());
        result.and(counted)
    }
}

/// Tells the pace that the memory outside the heap that a dying object owns is given up.
///
/// # Safety
///
/// As for [`run_destructor`].
#[inline]
unsafe fn count_external(m: &Raw, info: &TypeInfo, header: NonNull<Header>) -> Result<(), Panic> {
    let Some(external) = info.external else { return Ok(()) };
    // SAFETY: as the caller says.
    let bytes = outside::guarded(|| unsafe { external(info.value(header)) })
        // SAFETY: rule *zero*: the memory is not freed yet.
        .map_err(|payload| Panic { payload, type_name: unsafe { (info.name)(header) } })?;
    m.adjust_external_bytes(0_isize.saturating_sub_unsigned(bytes));
    Ok(())
}

/// Destroys one dynamic object, by the handler of its type. Its state byte keeps the other bits,
/// because the object may be alive afterwards.
fn destroy_dynamic(
    m: &Raw,
    dead: DeadObject,
    info: &TypeInfo,
    dealloc: unsafe fn(NonNull<Header>, *const ()),
) -> Result<(), Panic> {
    let header = dead.into_header();
    // SAFETY: rule *zero*: this thread has exclusive access to the object, until the handler frees
    // or revives it.
    unsafe {
        if mark_dying(m, header) & state::DYING != 0 {
            // The object's own handler counted it up and down again while it destroys the object.
            return Ok(());
        }
        outside::guarded(|| dealloc(header, (&raw const *m).cast())).map_err(|payload| {
            // The handler may have freed the memory, and so the name, before it panicked.
            let lives = m.core().state(header.as_ptr() as usize).get() & state::LIVE != 0;
            Panic { payload, type_name: if lives { (info.name)(header) } else { "" } }
        })
    }
}

/// Destroys a dynamic object whose last reference the mutator has [taken](Header::take_last), by
/// its known handler.
///
/// # Safety
///
/// The object is of the mutator's heap. The last reference was taken just now, on a thread that
/// holds no stop.
#[cfg_attr(not(feature = "cpython"), allow(dead_code, reason = "only `dynamic` calls it"))]
#[inline(always)]
pub(crate) unsafe fn destroy_dynamic_in_place(
    m: &Raw,
    header: NonNull<Header>,
    dealloc: impl FnOnce(&Raw),
) {
    let private = m.private();
    // SAFETY: rule *zero*: as the caller says.
    let dead = unsafe { DeadObject::new(object(header)) };
    if private.enter(DESTRUCTION) {
        return destroy_all(m, dead, OnPanic::PassOn);
    }
    let _lent = m.lend();
    m.core().dead_state(&dead).change_plainly(state::DYING, 0);
    // From here on the handler has the right to destroy the object.
    dead.into_header();
    let result = outside::guarded(|| dealloc(m));
    if result.is_ok() && private.dying.borrow().is_empty() {
        private.exit(DESTRUCTION);
        return;
    }
    private.exit(DESTRUCTION);
    let panic = result.err().map(|payload| Panic { payload, type_name: "" });
    destroy_queued(m, panic, OnPanic::PassOn);
}

/// Sets `DYING` of a dynamic object with count 0, and returns the state byte before.
///
/// The bit tells others that the object is dying, because its handlers may raise its count. If it
/// has a weak record, the bit is set under the record's lock, under which an
/// [upgrade](crate::managed::upgrade) reads it.
///
/// # Safety
///
/// The object is dying on this thread, which has exclusive access to it.
#[inline(always)]
pub(super) unsafe fn mark_dying(m: &Raw, header: NonNull<Header>) -> u8 {
    // SAFETY: as the caller says.
    let (header, state) = unsafe { (header.as_ref(), m.core().state(header.as_ptr() as usize)) };
    if header.has_weak() {
        return mark_dying_for_upgrades(m, header, state);
    }
    state.change_plainly(state::DYING, 0)
}

/// Runs the finalizer of a dead object, once. `None`: the finalizer revived the object.
#[cold]
fn finalize_dead(m: &Raw, dead: DeadObject) -> Option<DeadObject> {
    if m.core().dead_state(&dead).set(state::FINALIZED) & state::FINALIZED != 0 {
        return Some(dead);
    }
    // The finalizer uses this reference.
    let reference = dead.revive(m.id());
    let _lent = m.lend();
    let typed = m.model().typed(reference.live());
    if let Err(payload) = outside::guarded(|| typed.finalize(m)) {
        let text = outside::panic_message(payload);
        m.core().hooks.unraisable(During::Finalize, typed.name(), text);
    }
    drop_revival(m, reference)
}

/// Drops the reference of a revival, on the thread that revived the object. `None`: the object
/// stays alive.
pub(super) fn drop_revival(m: &Raw, reference: CountedRef) -> Option<DeadObject> {
    match reference.header().drop_ref(m.id()) {
        // SAFETY: rule *zero*: the count answered this thread.
        Dropped::Dead => Some(unsafe { DeadObject::new(object(reference.into_ptr())) }),
        Dropped::Alive => None,
        more => {
            // SAFETY: rule *zero*: the count answered this thread.
            unsafe { finish_foreign_drop(m, reference.into_ptr(), more, OnPanic::Report) };
            None
        }
    }
}

/// Clears the weak references to a dying object, and calls their callbacks.
#[cold]
pub(super) fn notify_watchers(m: &Raw, dying: &Header) {
    maybe_yield(&m.core().under, Step::Weak);
    let Some((record, last)) = m.model().weak.remove(NonNull::from(dying)) else { return };
    ephemerons::remove_entries(m, &record, last.entries);
    for watcher in last.watchers {
        if let Some(weak_ref) = watcher.weak_ref.upgrade(m.id()) {
            // SAFETY: rule *counted*: the upgrade made the reference.
            let weak_ref = unsafe { HeldRef::new(weak_ref) };
            run_callback(DueCallback { weak_ref, invoke: watcher.invoke }, m);
        }
    }
}

/// A reference that is dropped with this value, on any thread.
pub(super) struct HeldRef(CountedRef);

impl HeldRef {
    /// # Safety
    ///
    /// As for [`CountedRef::new`].
    pub(super) unsafe fn new(header: NonNull<Header>) -> Self {
        // SAFETY: as the caller says.
        Self(unsafe { CountedRef::new(header) })
    }
}

impl Drop for HeldRef {
    fn drop(&mut self) {
        // SAFETY: rule *counted*: this value owned the reference.
        unsafe { drop_reference(self.0.as_ptr()) };
    }
}

/// A weak callback that is due.
#[expect(missing_debug_implementations, reason = "public only for the conformance kit")]
pub struct DueCallback {
    pub(super) weak_ref: HeldRef,
    pub(super) invoke: unsafe fn(NonNull<Header>, *const ()),
}

pub(super) fn run_callback(callback: DueCallback, m: &Raw) {
    let _lent = m.lend();
    let weak_ref = callback.weak_ref.0.as_ptr();
    // SAFETY: rule *typed*: the function was registered with this weak reference.
    let result =
        outside::guarded(|| unsafe { (callback.invoke)(weak_ref, (&raw const *m).cast()) });
    if let Err(payload) = result {
        let name = m.model().typed(callback.weak_ref.0.live()).name();
        m.core().hooks.unraisable(During::WeakCallback, name, outside::panic_message(payload));
    }
}

/// Revives a dying object for the call of `f`, with one reference; `true`: the object is dying
/// again afterwards.
///
/// # Safety
///
/// The object is dying on this thread, which has exclusive access to it.
#[cfg(feature = "cpython")]
pub(crate) unsafe fn revived(m: &Raw, header: NonNull<Header>, f: impl FnOnce()) -> bool {
    // SAFETY: rule *zero*: as the caller says.
    let dead = unsafe { DeadObject::new(object(header)) };
    // Before the revival, because an upgrade that finds a count reads the bit as well.
    m.core().dead_state(&dead).unset(state::DYING);
    let reference = dead.revive(m.id());
    let _lent = m.lend();
    maybe_yield(&m.core().under, Step::Weak);
    f();
    // A finalizer may have registered the object.
    let dead = drop_revival(m, reference).and_then(|dead| guards::spare(m, dead));
    if let Some(dead) = &dead {
        // SAFETY: rule *zero*: the count answered this thread. No stop came in between.
        unsafe { mark_dying(m, dead.header_ptr()) };
    }
    dead.map(DeadObject::into_header).is_some()
}

/// Clears the weak references to a dying object, and calls their callbacks.
#[cfg(feature = "cpython")]
pub(crate) fn clear_weak_references(m: &Raw, dying: &Header) {
    if dying.has_weak() {
        notify_watchers(m, dying);
    }
}

/// Sets `DYING` of an object that may have a weak record, and returns the state byte before.
///
/// It holds the lock of the record, so that no upgrade reads the bit meanwhile.
#[cold]
#[inline(never)]
pub(crate) fn mark_dying_for_upgrades(m: &Raw, header: &Header, state: StateByte<'_>) -> u8 {
    maybe_yield(&m.core().under, Step::Weak);
    let record = m.model().weak.get(NonNull::from(header));
    let _no_upgrade = record.map(WeakRecord::block_upgrades);
    state.set(state::DYING)
}

/// Whether an object of the mutator's heap is being destroyed. Only a dynamic one may have a count
/// above 0 then. The caller holds the lock of its weak record, which keeps the memory.
pub(crate) fn is_dying(m: &Raw, target: NonNull<Header>) -> bool {
    // SAFETY: rule *guarded*: the object is alive or dying while its record has it as the target.
    let state = || unsafe { m.core().state(target.as_ptr() as usize) }.get();
    cfg!(feature = "cpython") && state() & state::DYING != 0
}

/// Adds a reference to the target of a weak record; `None`: the target is dying or dead, or lies in
/// another heap.
#[cfg(feature = "cpython")]
pub(crate) fn upgrade(m: &Raw, record: &WeakRecord) -> Option<NonNull<Header>> {
    let is_own = |target| m.owns(object(target)) && !is_dying(m, target);
    let upgrade = |header: &Header| header.try_upgrade(m.id()).then(|| NonNull::from(header));
    record.with_own_target(is_own, upgrade).flatten()
}

/// The treatment of a panic of a destructor.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum OnPanic {
    /// It goes on to the user's code that dropped the reference.
    PassOn,
    /// It goes to the hook, because the user's code on the stack did not drop the reference.
    Report,
}

/// A panic of a destructor, and the name of the object's type.
pub(super) struct Panic {
    pub(super) payload: Box<dyn std::any::Any + Send>,
    pub(super) type_name: &'static str,
}

impl Panic {
    pub(super) fn report(self, hooks: &Hooks) {
        hooks.unraisable(During::Drop, self.type_name, outside::panic_message(self.payload));
    }
}

///
/// # Safety
///
/// The caller has exclusive access to the object, which is of this type, and does not use the value
/// afterwards.
#[inline]
pub(super) unsafe fn run_destructor(info: &TypeInfo, header: NonNull<Header>) -> Result<(), Panic> {
    let Some(drop) = info.drop else { return Ok(()) };
    // SAFETY: as the caller says.
    outside::guarded(|| unsafe { drop(info.value(header)) })
        // SAFETY: rule *zero*: the memory is not freed yet.
        .map_err(|payload| Panic { payload, type_name: unsafe { (info.name)(header) } })
}

#[allow(unsafe_code)]
#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
