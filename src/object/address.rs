//! An object of a custom model need not have a header, so the collector names each by its address.

use std::ptr::NonNull;

use crate::base::system::prefetch;

/// The address of an object, by which all references and functions name it: a multiple of 32, or
/// of 16 in adopted memory.
///
/// It is the address that [`allocate`](crate::model::ModelMutator::allocate) or
/// [`allocate_at`](crate::model::ModelMutator::allocate_at) has returned, so an object may have
/// memory in front of its address. It is no reference, so it keeps nothing alive and may dangle.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(transparent)]
pub struct Object(NonNull<u8>);

impl Object {
    /// The object that starts at `address`.
    #[inline(always)]
    pub const fn new(address: NonNull<u8>) -> Self {
        Self(address)
    }

    /// The object's first byte.
    #[inline(always)]
    pub const fn as_ptr(self) -> NonNull<u8> {
        self.0
    }

    /// The address as a number.
    #[inline(always)]
    pub fn address(self) -> usize {
        self.0.as_ptr() as usize
    }

    /// Prefetches the first 64 bytes, which are one cache line or two, because an object starts at
    /// a multiple of 16.
    #[inline(always)]
    pub(crate) fn prefetch(self) {
        prefetch(self.0.as_ptr());
        prefetch(self.0.as_ptr().wrapping_add(48));
    }
}

// SAFETY: rule *guarded*: a bare address. Code that dereferences it cites a rule of its own.
unsafe impl Send for Object {}
// SAFETY: as above.
unsafe impl Sync for Object {}
