//! Floor 3: a reference is dropped, and the object dies with its last one.

use std::panic::resume_unwind;
use std::ptr::NonNull;

use crate::base::event;
use crate::base::event::During;
use crate::base::stress::{Step, maybe_yield};
use crate::heap::core::Shared;
use crate::managed::deferred::defer;
use crate::managed::destructor::{OnPanic, Panic, run_destructor};
use crate::managed::merge_queue::{self, MergeQueue, OwnerEnded};
use crate::managed::parts::{DESTRUCTION, Managed, Raw, object};
use crate::managed::weak_callbacks::mark_dying_for_upgrades;
use crate::object::header::{Dropped, Header};
use crate::object::state;
use crate::object::type_info::TypeInfo;
use crate::object::weak::HeaderPtr;
use crate::safepoint::{current, is_stopping, is_traversing};

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
            destroy_owned(header);
        }
    }
}

/// The owner has dropped the last reference.
pub(super) unsafe fn destroy_owned(header: NonNull<Header>) {
    // SAFETY: rules P and Z: the owner is attached, to a heap of this model.
    unsafe { Raw::with_known(|m| destroy_all(m, header, OnPanic::PassOn)) }
}

/// A thread that is not the owner drops a reference.
#[inline]
pub(super) unsafe fn drop_foreign(header: NonNull<Header>) {
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
pub(super) unsafe fn drop_shared(m: &Raw, header: NonNull<Header>, on_panic: OnPanic) {
    // SAFETY: rule R: the reference keeps the object alive until it is dropped.
    match unsafe { header.as_ref() }.drop_shared() {
        Dropped::Alive => {}
        // SAFETY: rule Z: it was answered to this thread.
        more => unsafe { finish_foreign_drop(m, header, more, on_panic) },
    }
}

/// What is left to do for an object after a foreign drop.
#[cold]
#[inline(never)]
pub(super) unsafe fn finish_foreign_drop(
    m: &Raw,
    header: NonNull<Header>,
    dropped: Dropped,
    on_panic: OnPanic,
) {
    let _lent = m.lend();
    match dropped {
        Dropped::Alive => {}
        // SAFETY: rule Z: `Dead` was answered to this thread.
        Dropped::Dead => unsafe { destroy_all(m, header, on_panic) },
        Dropped::Enqueue(owner) => enqueue(m, owner, header, on_panic),
    }
}

/// Puts an object into its owner's queue, and destroys the objects that this thread merges for the owner.
fn enqueue(m: &Raw, owner: u64, header: NonNull<Header>, on_panic: OnPanic) {
    let core = m.core();
    fn queue(shared: &Shared<Managed>) -> &MergeQueue {
        &shared.local.queue
    }
    match merge_queue::enqueue(
        &core.coordinator,
        &core.under,
        owner,
        HeaderPtr(header),
        queue,
        merge,
    ) {
        // SAFETY: rule Z: the merge returned `Dead` to this thread.
        Ok(dead) => unsafe { destroy_each(m, dead, on_panic) },
        Err(OwnerEnded) => {
            // The lock of the queue, or of the registry, orders the owner's last count before this.
            // SAFETY: rule R: the object is queued, in no queue, so it is not freed before this merge.
            if unsafe { header.as_ref() }.merge_ended() == Dropped::Dead {
                // SAFETY: rule Z: `Dead` was answered to this thread.
                unsafe { destroy_all(m, header, on_panic) };
            }
        }
    }
}

/// Merges the halves of an object that a queue contained.
fn merge(queued: NonNull<Header>) -> Dropped {
    // SAFETY: rule R: a queued object is not freed before the queue has merged it.
    unsafe { queued.as_ref() }.merge()
}

/// As [`destroy_all`], for several: a panic that goes on does so when all are destroyed.
///
/// # Safety
///
/// As there, for each.
pub(super) unsafe fn destroy_each(m: &Raw, dead: Vec<HeaderPtr>, on_panic: OnPanic) {
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

/// Merges the objects of a queue, and returns the dead ones. The caller is its owner, has suspended its owner,
/// or has stopped the world.
pub(super) fn merge_queue(queue: &MergeQueue) -> Vec<HeaderPtr> {
    queue.merge(merge)
}

/// Empties the mutator's queue, and destroys who turns out to be dead.
pub(super) fn merge_own_queue(m: &Raw) {
    if is_traversing() {
        return;
    }
    for target in merge_queue(&m.local().queue) {
        // SAFETY: rule Z: `Dead` was answered to this thread.
        unsafe { destroy_all(m, target.0, OnPanic::Report) };
    }
}

/// Merges one object, to which the caller has a reference, ahead of the mutator's next safepoint, if it is queued.
pub(crate) fn merge_early(m: &Raw, header: &Header) {
    m.local().queue.merge_one(header);
}

/// Drops a reference that the library held for somebody, on an attached thread.
pub(super) unsafe fn drop_attached(m: &Raw, header: NonNull<Header>) {
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

/// Destroys an object whose count is 0, and whatever dies with it.
///
/// # Safety
///
/// The caller was told `Dead`, and is attached to the object's heap.
pub(super) unsafe fn destroy_all(m: &Raw, header: NonNull<Header>, on_panic: OnPanic) {
    // What comes back to this mutator while its destruction stack is in use waits: rule L.
    let _lent = m.lend();
    let private = m.private();
    if private.enter(DESTRUCTION) {
        // An object whose own handler counts it up and down again is on its way already. It is asked now, while its
        // memory is its own: when the stack comes to it, another object may lie there.
        // SAFETY: as the caller says.
        if unsafe { m.core().state(header.as_ptr() as usize) }.get() & state::DYING == 0 {
            queue_for_destruction(m, header);
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
    private.exit(DESTRUCTION);
    if let Some(Panic { payload, .. }) = panic {
        resume_unwind(payload);
    }
}

/// What has died with an object whose own destruction is over, in [`destroy_dynamic_in_place`] or [`destroy_in_place`].
#[cold]
#[inline(never)]
pub(super) unsafe fn destroy_queued(m: &Raw, panic: Option<Panic>, on_panic: OnPanic) {
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

/// Puts a dead object on the stack of those that are destroyed when the one that is being destroyed has ended.
#[inline(always)]
pub(super) fn queue_for_destruction(m: &Raw, header: NonNull<Header>) {
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
    destroy_nested(m, header);
}

/// Destroys a dead object within the destruction of another, where there is no memory to have it wait: as deep as a nested value of
/// Rust, which is better than never. Seldom deep: a list needs one place to wait in.
#[cold]
#[inline(never)]
pub(super) fn destroy_nested(m: &Raw, header: NonNull<Header>) {
    // SAFETY: rule Z: as `destroy_all`'s caller says.
    if let Err(panic) = unsafe { destroy(m, header) } {
        panic.report(&m.core().hooks);
    }
}

/// Destroys one object. A panic of its destructor comes back; the memory is freed all the same.
#[inline]
pub(super) unsafe fn destroy(m: &Raw, header: NonNull<Header>) -> Result<(), Panic> {
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
            notify_watchers(m, header);
        }
        m.core().state(header.as_ptr() as usize).dying();
        let result = run_destructor(info, header);
        m.free(header.cast());
        result
    }
}

/// Destroys one object whose type does it all by itself. Its state keeps the other bits: it may come back.
pub(super) unsafe fn destroy_dynamic(
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

/// The destruction of a dynamic object begins, whose count is 0: its state before.
///
/// What its handlers do with the count brings it back for nobody: under the lock with which an [upgrade](upgrade) looks at the
/// state.
///
/// # Safety
///
/// As for [`revived`].
#[inline(always)]
pub(super) unsafe fn mark_dying(m: &Raw, header: NonNull<Header>) -> u8 {
    // SAFETY: as the caller says.
    unsafe {
        if header.as_ref().has_weak() {
            return mark_dying_for_upgrades(m, header);
        }
        m.core().state(header.as_ptr() as usize).change_plainly(state::DYING, 0)
    }
}

/// Runs the finalizer of an object whose count reached 0, once; `false`: it has brought the object back.
#[cold]
pub(super) unsafe fn finalize_dying(
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
        drop_revival(m, header)
    }
}

/// Gives up the reference with which a dying object was taken back; `true`: it dies after all.
///
/// # Safety
///
/// As for [`drop_reference`], on the thread that took it back.
pub(super) unsafe fn drop_revival(m: &Raw, header: NonNull<Header>) -> bool {
    // SAFETY: rule R: the reference keeps the object alive until it is dropped.
    match unsafe { header.as_ref() }.drop_ref(m.id()) {
        Dropped::Dead => true,
        Dropped::Alive => false,
        more => {
            // SAFETY: rule Z: it was answered to this thread.
            unsafe { finish_foreign_drop(m, header, more, OnPanic::Report) };
            false
        }
    }
}

/// Kills the weak references of a dying object, and calls their callbacks.
#[cold]
pub(super) fn notify_watchers(m: &Raw, header: NonNull<Header>) {
    maybe_yield(&m.core().under, Step::Weak);
    for watcher in m.model().weak.remove(header) {
        if let Some(weak_ref) = watcher.weak_ref.upgrade(m.id()) {
            run_callback(DueCallback { weak_ref: HeldRef(weak_ref), invoke: watcher.invoke }, m);
        }
    }
}

/// A reference that is dropped wherever the value is.
pub(super) struct HeldRef(pub(super) NonNull<Header>);

// SAFETY: rules R and X: a reference; dropping one works on every thread.
unsafe impl Send for HeldRef {}

impl Drop for HeldRef {
    fn drop(&mut self) {
        // SAFETY: rule R: this value owned the reference.
        unsafe { drop_reference(self.0) };
    }
}

/// A weak callback that is due.
pub(crate) struct DueCallback {
    pub(super) weak_ref: HeldRef,
    pub(super) invoke: unsafe fn(NonNull<Header>, *const ()),
}

pub(super) fn run_callback(callback: DueCallback, m: &Raw) {
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

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
