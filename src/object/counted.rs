//! A bare pointer to a [`Header`] does not say who drops the reference or destroys the object, so
//! that two functions might. The types of this file say it, for objects of the built-in model.
//!
//! A [`CountedRef`] is a reference that its former owner has given up, so that its holder may use
//! the object, and drops the reference once. A [`DeadObject`] of this model is destroyed or revived
//! once.
//!
//! Neither can be copied, and neither has a destructor, so a forgotten value leaks its object.
//!
//! Each value belongs to one heap, so a function that takes one of them beside a mutator expects a
//! mutator or the core of that heap.

use std::ptr::NonNull;

use crate::object::address::Object;
use crate::object::header::{Dropped, Header};
use crate::object::live::{DeadObject, Live};

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
    pub(crate) fn object(&self) -> Object {
        object(self.0)
    }

    /// The proof, as long as the reference is lent.
    #[inline(always)]
    pub(crate) fn live(&self) -> Live<'_> {
        // SAFETY: rule *counted*: this reference exists for the borrow.
        unsafe { Live::new(self.object()) }
    }

    #[inline(always)]
    pub(crate) fn header(&self) -> &Header {
        self.live().header()
    }

    #[inline(always)]
    pub(crate) fn address(&self) -> usize {
        self.0.as_ptr() as usize
    }

    /// Gives the reference to the caller, who drops it once.
    #[inline(always)]
    pub(crate) fn into_ptr(self) -> NonNull<Header> {
        self.0
    }

    /// The owner of the object drops the reference.
    #[inline(always)]
    pub(crate) fn drop_local(self) -> Option<DeadObject> {
        let is_dead = self.header().drop_local() == Dropped::Dead;
        // SAFETY: rule *zero*: the count answered this thread.
        is_dead.then(|| unsafe { DeadObject::new(object(self.0)) })
    }

    /// The owner takes the last reference. `Err`: the caller is not the owner, or another reference
    /// or a weak record exists.
    #[inline(always)]
    pub(crate) fn take_last(self, owner: u64) -> Result<DeadObject, Self> {
        if self.header().take_last(owner) {
            // SAFETY: rule *zero*: this thread has taken the last reference.
            Ok(unsafe { DeadObject::new(object(self.0)) })
        } else {
            Err(self)
        }
    }
}

impl<'a> Live<'a> {
    /// The header of an object of the built-in model.
    #[inline(always)]
    pub(crate) fn header(self) -> &'a Header {
        // SAFETY: rule *counted*: alive, as the proof says.
        unsafe { header(self.object()).as_ref() }
    }
}

impl DeadObject {
    /// The header of an object of the built-in model.
    #[inline(always)]
    pub(crate) fn header(&self) -> &Header {
        // SAFETY: rule *zero*: the destruction, which frees the memory, consumes this value.
        unsafe { self.header_ptr().as_ref() }
    }

    #[inline(always)]
    pub(crate) fn header_ptr(&self) -> NonNull<Header> {
        header(self.object())
    }

    /// Gives the right to destroy the object to the caller.
    #[inline(always)]
    pub(crate) fn into_header(self) -> NonNull<Header> {
        self.header_ptr()
    }

    /// Makes the object alive again, with one reference.
    pub(crate) fn revive(self, owner: u64) -> CountedRef {
        self.header().revive(owner);
        CountedRef(self.into_header())
    }
}

/// The header of an object of the built-in model.
#[inline(always)]
pub(crate) fn header(object: Object) -> NonNull<Header> {
    object.as_ptr().cast()
}

/// The object with a header.
#[inline(always)]
pub(crate) fn object(header: NonNull<Header>) -> Object {
    Object::new(header.cast())
}
