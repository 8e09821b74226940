//! Values that prove a right to an object.
//!
//! A [`CountedRef`] is a reference that its former owner has given up. Its holder may use the
//! object, and drops the reference once.
//!
//! A [`Dead`] is an object with count 0. Its holder has exclusive access, and destroys or revives
//! the object once.
//!
//! Neither can be copied, and neither has a destructor. A forgotten value leaks its object.
//!
//! Both belong to one heap. A function that takes one of them beside a mutator expects a mutator or
//! the core of that heap.

use std::ptr::NonNull;

use crate::heap::core::Core;
use crate::heap::model::ObjectModel;
use crate::object::header::{Dropped, Header, NO_OWNER};
use crate::object::state::StateByte;

/// A counted reference to an object.
#[must_use]
#[derive(Debug)]
pub(crate) struct CountedRef(NonNull<Header>);

// SAFETY: rules *counted* and *guarded*: any thread may use or drop a reference.
unsafe impl Send for CountedRef {}

impl CountedRef {
    /// # Safety
    ///
    /// The caller owns the reference, and gives it up.
    #[inline(always)]
    pub(crate) unsafe fn new(header: NonNull<Header>) -> Self {
        Self(header)
    }

    #[inline(always)]
    pub(crate) fn as_ptr(&self) -> NonNull<Header> {
        self.0
    }

    #[inline(always)]
    pub(crate) fn header(&self) -> &Header {
        // SAFETY: rule *counted*: the reference keeps the object alive.
        unsafe { self.0.as_ref() }
    }

    #[inline(always)]
    pub(super) fn address(&self) -> usize {
        self.0.as_ptr() as usize
    }

    /// Gives the reference to the caller.
    #[inline(always)]
    pub(crate) fn into_ptr(self) -> NonNull<Header> {
        self.0
    }

    /// The owner of the object drops the reference.
    #[inline(always)]
    pub(super) fn drop_local(self) -> Option<Dead> {
        (self.header().drop_local() == Dropped::Dead).then_some(Dead(self.0))
    }

    /// The owner takes the last reference; `Err`: it is not the owner, or the reference is not the
    /// last.
    #[inline(always)]
    pub(super) fn take_last(self, owner: u64) -> Result<Dead, Self> {
        if self.header().take_last(owner) { Ok(Dead(self.0)) } else { Err(self) }
    }
}

/// An object with count 0.
#[must_use]
#[derive(Debug)]
pub(crate) struct Dead(NonNull<Header>);

impl Dead {
    /// # Safety
    ///
    /// A count answered [`Dead`](Dropped::Dead) for the object to this thread, or this thread
    /// [took the last reference](Header::take_last). No other value is made from the same answer.
    #[inline(always)]
    pub(crate) unsafe fn new(header: NonNull<Header>) -> Self {
        Self(header)
    }

    #[inline(always)]
    pub(super) fn as_ptr(&self) -> NonNull<Header> {
        self.0
    }

    /// Gives the right to destroy the object to the caller.
    #[inline(always)]
    pub(super) fn into_ptr(self) -> NonNull<Header> {
        self.0
    }

    #[inline(always)]
    pub(super) fn header(&self) -> &Header {
        // SAFETY: rule *zero*: the destruction, which frees the memory, consumes this value.
        unsafe { self.0.as_ref() }
    }

    #[inline(always)]
    pub(super) fn address(&self) -> usize {
        self.0.as_ptr() as usize
    }

    /// The state byte of the object.
    #[inline(always)]
    pub(super) fn state<'h, M: ObjectModel>(&self, heap: &'h Core<M>) -> StateByte<'h> {
        // SAFETY: rule *zero*: the object is one of this heap, and its memory is not freed yet.
        unsafe { heap.state(self.address()) }
    }

    /// Makes the object alive again, with one reference.
    pub(super) fn revive(self, owner: u64) -> CountedRef {
        self.header().revive(owner);
        CountedRef(self.0)
    }

    /// Makes the object alive again, with one reference and no owner.
    pub(super) fn revive_without_owner(self) -> CountedRef {
        self.revive(NO_OWNER)
    }
}
