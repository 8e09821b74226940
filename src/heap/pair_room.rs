//! A box of two values that end one after the other, which are the parts of a mutator and its
//! model's data.
//!
//! A mutator ends, but its model's data may serve the next one. Both lie in one box, so that one
//! pointer reaches both. For example, thread 1 drops its mutator. [`PairRoom::read`] takes the
//! first value out, and leaves a room whose second value still exists. When thread 2 attaches,
//! [`PairRoom::write`] puts its mutator into that room, and returns the pointer again.

use std::mem::{ManuallyDrop, MaybeUninit};
use std::ptr::NonNull;

use crate::base::fallible::{self, NoMemory};

#[repr(C)]
struct Both<A, B> {
    first: A,
    second: B,
}

/// The box while the first value does not exist, although the second may.
pub(super) struct PairRoom<A, B> {
    memory: Box<MaybeUninit<Both<A, B>>>,
    has_second: bool,
}

impl<A, B> PairRoom<A, B> {
    pub(super) fn new() -> Result<Self, NoMemory> {
        Ok(Self { memory: fallible::boxed(MaybeUninit::uninit())?, has_second: false })
    }

    fn second(&mut self) -> *mut B {
        // SAFETY: rule *boxed*: the field lies in the memory.
        unsafe { &raw mut (*self.memory.as_mut_ptr()).second }
    }

    /// Gives the second field a value, if it has none.
    pub(super) fn fill(&mut self, value: impl FnOnce() -> Option<B>) -> Result<(), NoMemory> {
        if !self.has_second {
            let value = value().ok_or(NoMemory)?;
            // SAFETY: rule *boxed*: no value is overwritten.
            unsafe { self.second().write(value) };
            self.has_second = true;
        }
        Ok(())
    }

    /// Completes the box, and returns the address of the first value.
    ///
    /// # Panics
    ///
    /// If the room was not [filled](Self::fill).
    pub(super) fn write(self, first: A) -> NonNull<A> {
        assert!(self.has_second, "the second value is there");
        // SAFETY: rule *boxed*: the box is moved out, and `self` has no destructor now.
        let memory = unsafe { std::ptr::read(&raw const ManuallyDrop::new(self).memory) };
        let place = NonNull::from(Box::leak(memory)).cast::<A>();
        // SAFETY: rule *boxed*: the field is the first one, and has no value.
        unsafe { place.write(first) };
        place
    }

    /// The second value of the box whose first value `first` names.
    ///
    /// # Safety
    ///
    /// [`write`](Self::write) returned the pointer, and the values exist for `'a`.
    #[inline(always)]
    pub(super) unsafe fn beside<'a>(first: NonNull<A>) -> &'a B
    where
        A: 'a,
    {
        // SAFETY: as the caller says.
        unsafe { &first.cast::<Both<A, B>>().as_ref().second }
    }

    /// Takes the first value out of its box.
    ///
    /// # Safety
    ///
    /// [`write`](Self::write) returned the pointer, and no other use of it follows.
    pub(super) unsafe fn read(first: NonNull<A>) -> (A, Self) {
        // SAFETY: as the caller says.
        unsafe {
            let memory = Box::from_raw(first.as_ptr().cast::<MaybeUninit<Both<A, B>>>());
            (first.read(), Self { memory, has_second: true })
        }
    }

    /// Drops the second value, unless `keeps` says that it stays.
    pub(super) fn empty(&mut self, keeps: impl FnOnce(&mut B) -> bool) {
        // SAFETY: rule *boxed*: the field has a value.
        if self.has_second && !unsafe { keeps(&mut *self.second()) } {
            self.drop_second();
        }
    }

    fn drop_second(&mut self) {
        if std::mem::take(&mut self.has_second) {
            // SAFETY: rule *boxed*: the value is dropped once.
            unsafe { self.second().drop_in_place() };
        }
    }
}

impl<A, B> Drop for PairRoom<A, B> {
    fn drop(&mut self) {
        self.drop_second();
    }
}

#[allow(unsafe_code)]
#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
