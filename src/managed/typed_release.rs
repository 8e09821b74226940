//! Floor 3: the drop of a reference to an object whose type is known.

use std::mem::ManuallyDrop;
use std::ptr::NonNull;

use crate::base::event;
use crate::managed::deferred::defer;
use crate::managed::destructor::{OnPanic, Panic};
use crate::managed::parts::{DESTRUCTION, Raw};
use crate::managed::release::{destroy_all, destroy_queued, drop_foreign, drop_slowly};
use crate::object::header::{Dropped, Header};
use crate::object::state;
use crate::safepoint::{current, is_stopping};

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
pub(super) unsafe fn drop_plain_slowly(header: NonNull<Header>, class: u8) {
    // SAFETY: rules R and Z: the reference keeps the object alive until it is dropped. At 0 this thread, the owner, is attached to a heap of this model, and
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
pub(super) unsafe fn drop_slowly_to<T>(header: NonNull<Header>, offset: usize, class: Option<u8>) {
    // SAFETY: rules R and Z: the reference keeps the object alive until it is dropped.
    unsafe {
        if is_stopping() {
            defer(header);
        } else if header.as_ref().take_last(current()) {
            destroy_taken::<T>(header, offset, class);
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
/// The last reference has been [taken](Header::take_last) by the current mutator. The rest is as for [`destroy_in_place`].
#[inline(never)]
pub(super) unsafe fn destroy_taken<T>(header: NonNull<Header>, offset: usize, class: Option<u8>) {
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
                destroy_in_place::<T>(m, header, offset, class, OnPanic::PassOn);
            }
        });
    }
}

/// Destroys an object without finalizer and weak record, whose last reference is gone, and what dies with it: as
/// [`destroy_all`], of a known type.
///
/// # Safety
///
/// The last reference has been [taken](Header::take_last) by the mutator, which is not [busy](OwnPart::busy).
/// The object was allocated for a `T` at this offset, with this size class.
#[inline(always)]
pub(super) unsafe fn destroy_in_place<T>(
    m: &Raw,
    header: NonNull<Header>,
    offset: usize,
    class: Option<u8>,
    on_panic: OnPanic,
) {
    /// What is left to do when the destructor is over, by whatever way.
    struct FreeAfterDrop<'a>(&'a Raw, NonNull<Header>, Option<u8>);
    impl FreeAfterDrop<'_> {
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
    impl Drop for FreeAfterDrop<'_> {
        // The destructor has panicked.
        #[cold]
        fn drop(&mut self) {
            self.free();
            // SAFETY: rule Z: nothing is being destroyed on this mutator any more. A second panic is reported, not
            // passed on.
            unsafe { destroy_queued(self.0, None, OnPanic::Report) };
        }
    }
    let private = m.private();
    // SAFETY: as the caller says.
    unsafe {
        event::must_hold_no_lock();
        let _lent = m.lend();
        private.busy.set(DESTRUCTION);
        m.core().state(header.as_ptr() as usize).dying();
        let rest = FreeAfterDrop(m, header, class);
        header.cast::<u8>().add(offset).cast::<T>().drop_in_place();
        ManuallyDrop::new(rest).free();
        if !private.dying.borrow().is_empty() {
            destroy_queued(m, None, on_panic);
        }
    }
}

/// As `destroy_in_place`, for a reference that the library held: only a panic of the object's own destructor comes back.
///
/// # Safety
///
/// As for `destroy_in_place`.
pub(crate) unsafe fn destroy_in_place_reporting<T>(
    m: &Raw,
    header: NonNull<Header>,
    offset: usize,
    class: Option<u8>,
) {
    // SAFETY: as the caller says.
    unsafe { destroy_in_place::<T>(m, header, offset, class, OnPanic::Report) }
}

/// Destroys an object whose last reference the mutator has just [taken](Header::take_last).
///
/// # Safety
///
/// See there. The object is of the mutator's heap, and the thread holds no stop.
#[inline(always)]
pub(crate) unsafe fn destroy_dynamic_in_place(
    m: &Raw,
    header: NonNull<Header>,
    dealloc: impl FnOnce(&Raw),
) {
    let private = m.private();
    // SAFETY: as the caller says.
    unsafe {
        if private.enter(DESTRUCTION) {
            return destroy_all(m, header, OnPanic::PassOn);
        }
        // The same as there, for one object whose handler is known.
        let _lent = m.lend();
        m.core().state(header.as_ptr() as usize).change_plainly(state::DYING, 0);
        let result = event::guarded(|| dealloc(m));
        if result.is_ok() && private.dying.borrow().is_empty() {
            private.exit(DESTRUCTION);
            return;
        }
        private.exit(DESTRUCTION);
        destroy_queued(
            m,
            result.err().map(|payload| Panic { payload, type_name: "" }),
            OnPanic::PassOn,
        );
    }
}
