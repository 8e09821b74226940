//! The drop of a reference to an object of a known type.

use std::mem::{ManuallyDrop, needs_drop};
use std::ptr::NonNull;

use crate::base::outside;
use crate::managed::deferred::defer;
use crate::managed::parts::{DESTRUCTION, Raw};
use crate::managed::release::{OnPanic, destroy_all, destroy_queued, drop_foreign, drop_slowly};
use crate::object::counted::CountedRef;
use crate::object::header::Header;
use crate::object::live::DeadObject;
use crate::object::state;
use crate::safepoint::{current, is_stopping};

/// Drops a reference to a `T` that lies `offset` bytes behind its header.
///
/// # Safety
///
/// The caller owns the reference, and gives it up. The object was allocated for a `T`, with this
/// size class.
#[inline(always)]
pub(crate) unsafe fn drop_reference_to<T>(
    header: NonNull<Header>,
    offset: usize,
    class: Option<u8>,
) {
    // SAFETY: rule *counted*: the reference keeps the object alive.
    if !unsafe { header.as_ref() }.try_drop_local(current()) {
        // SAFETY: as the caller says.
        unsafe { drop_slowly_to::<T>(header, offset, class) };
    }
}

/// As [`drop_slowly`], for a `T`. It does not read the type table.
///
/// The calls that need a stack frame are functions of their own. So a foreign drop needs few
/// instructions between its first read of the header and its count: meanwhile another thread may
/// take the cache line.
///
/// # Safety
///
/// As for [`drop_reference_to`].
#[inline(never)]
unsafe fn drop_slowly_to<T>(header: NonNull<Header>, offset: usize, class: Option<u8>) {
    // SAFETY: as the caller says.
    let reference = unsafe { CountedRef::new(header) };
    if is_stopping() {
        return defer(reference);
    }
    match reference.take_last(current()) {
        // SAFETY: as the caller says.
        Ok(dead) => unsafe { destroy_taken::<T>(dead, offset, class) },
        Err(reference) if !reference.header().is_owned_by(current()) => drop_foreign(reference),
        // SAFETY: rule *counted*: as above.
        Err(reference) => unsafe { drop_slowly(reference.into_ptr()) },
    }
}

/// Destroys a `T`. Its owner, this thread, has taken the last reference.
///
/// # Safety
///
/// The object was allocated for a `T` at this offset, with this size class.
#[inline(never)]
unsafe fn destroy_taken<T>(dead: DeadObject, offset: usize, class: Option<u8>) {
    // SAFETY: rule *boxed*: the owner is attached, to a heap of this model. The rest: as the caller
    // says.
    unsafe {
        Raw::with_known(|m| {
            let is_plain = const { !needs_drop::<T>() };
            match class {
                _ if m.core().dead_state(&dead).get() & state::BY_TYPE != 0 => {
                    destroy_all(m, dead, OnPanic::PassOn);
                }
                // No destructor runs, so no other object dies.
                Some(class) if is_plain => m.free_of_class(dead.into_header().cast(), class),
                // A panic that leaves through a C function, or while the thread unwinds, would end
                // the process.
                _ if m.private().busy.get() != 0 || std::thread::panicking() => {
                    destroy_all(m, dead, OnPanic::PassOn);
                }
                _ => destroy_in_place::<T>(m, dead.into_header(), offset, class, OnPanic::PassOn),
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
/// The object was allocated for a `T` at this offset, with this size class.
#[inline(always)]
unsafe fn destroy_in_place<T>(
    m: &Raw,
    header: NonNull<Header>,
    offset: usize,
    class: Option<u8>,
    on_panic: OnPanic,
) {
    /// Frees the object after its destructor has returned or panicked.
    struct FreeAfterDrop<'a>(&'a Raw, NonNull<Header>, Option<u8>);
    impl FreeAfterDrop<'_> {
        #[inline(always)]
        fn free(&self) {
            // SAFETY: rule *zero*: the value has been destroyed, and this thread has exclusive
            // access.
            unsafe {
                match self.2 {
                    Some(class) => self.0.free_of_class(self.1.cast(), class),
                    None => self.0.free_unprefixed(self.1.cast()),
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
            // A second panic is reported.
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
        let rest = FreeAfterDrop(m, header, class);
        header.cast::<u8>().add(offset).cast::<T>().drop_in_place();
        ManuallyDrop::new(rest).free();
        if !private.dying.borrow().is_empty() {
            destroy_queued(m, None, on_panic);
        }
    }
}

/// As [`destroy_in_place`], for a reference that the library owned. Only a panic of the object's
/// own destructor goes on.
///
/// # Safety
///
/// As for [`destroy_in_place`].
pub(crate) unsafe fn destroy_in_place_reporting<T>(
    m: &Raw,
    header: NonNull<Header>,
    offset: usize,
    class: Option<u8>,
) {
    // SAFETY: as the caller says.
    unsafe { destroy_in_place::<T>(m, header, offset, class, OnPanic::Report) }
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
    let dead = unsafe { DeadObject::new(crate::object::counted::object(header)) };
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
    let panic =
        result.err().map(|payload| crate::managed::release::Panic { payload, type_name: "" });
    destroy_queued(m, panic, OnPanic::PassOn);
}
