//! A string whose text lies in its object needs no second allocation and no pointer to follow. It
//! is a [`GcSlice`] of bytes that are known to be UTF-8, so a handle has one word.

use std::fmt;
use std::ops::Deref;
use std::ptr::NonNull;

use crate::object::header::Header;
use crate::object::tracer::{Edge, Tracer};
use crate::typed::any::AnyGc;
use crate::typed::gc::{handle, identity, out_of_memory};
use crate::typed::slice::GcSlice;
use crate::{AllocError, Mutator, Trace};

/// A counted reference to a string in a heap, with a header of type `H`, for example its hash. It
/// is one word.
///
/// The text never changes. `==` and `Hash` use the identity of the object, as for
/// [`Gc`](crate::Gc), so compare texts with `*a == *b`.
///
/// ```
/// use standstill::{GcStr, Heap};
///
/// let heap = Heap::new();
/// let m = heap.attach();
/// let name: GcStr = m.alloc_str((), "name");
/// assert!(name.starts_with("na") && *name == *m.alloc_str((), "name"));
/// let weak = GcStr::downgrade(&name, &m);
/// drop(name);
/// assert!(weak.upgrade(&m).is_none());
/// ```
pub struct GcStr<H = ()>(GcSlice<H, u8>);

impl<H> GcStr<H> {
    /// # Safety
    ///
    /// The caller owns a reference to an object of this type and gives the reference up.
    pub(super) unsafe fn from_header(header: NonNull<Header>) -> Self {
        // SAFETY: rules *counted* and *typed*: as the caller says. The bytes were a string when the
        // object was made.
        Self(unsafe { GcSlice::from_header(header) })
    }

    pub(super) fn as_slice(&self) -> &GcSlice<H, u8> {
        &self.0
    }
}

impl<H: Trace> GcStr<H> {
    /// The header.
    pub fn header(this: &Self) -> &H {
        &this.0.header
    }

    /// Converts the handle to one without a type. The reference count is unchanged.
    pub fn into_any(this: Self) -> AnyGc {
        GcSlice::into_any(this.0)
    }
}

impl<H: Trace> Deref for GcStr<H> {
    type Target = str;

    #[inline]
    fn deref(&self) -> &str {
        // SAFETY: rule *guarded*: the bytes of a string, which nobody changes.
        unsafe { str::from_utf8_unchecked(&self.0.items) }
    }
}

identity!([H] GcStr<H>, 0);
handle!([H: Trace] GcStr<H>, |this| GcSlice::address(&this.0));

impl<H> Clone for GcStr<H> {
    #[inline]
    #[cfg_attr(feature = "handle-places", track_caller)]
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<H: Trace> fmt::Display for GcStr<H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&**self, f)
    }
}

impl<H> fmt::Pointer for GcStr<H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Pointer::fmt(self.as_slice(), f)
    }
}

impl<H: Trace> fmt::Debug for GcStr<H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&**self, f)
    }
}

impl Mutator {
    /// Allocates a string.
    ///
    /// # Panics
    ///
    /// If the heap is full. [`try_alloc_str`](Self::try_alloc_str) returns an error instead.
    #[track_caller]
    pub fn alloc_str<H: Trace + Send + Sync>(&self, header: H, text: &str) -> GcStr<H> {
        match self.try_alloc_str(header, text) {
            Ok(gc) => gc,
            Err(error) => out_of_memory(error),
        }
    }

    /// Allocates a string.
    ///
    /// # Errors
    ///
    /// If the heap is full, or if memory for its record of a new type is refused. The error
    /// contains the header, and the heap is unchanged.
    #[cfg_attr(feature = "handle-places", track_caller)]
    pub fn try_alloc_str<H: Trace + Send + Sync>(
        &self,
        header: H,
        text: &str,
    ) -> Result<GcStr<H>, AllocError<H>> {
        match self.try_alloc_slice(header, text.bytes()) {
            Ok(bytes) => Ok(GcStr(bytes)),
            Err(error) => {
                let reason = error.reason();
                Err(AllocError::of::<GcStr<H>>(error.into_inner().0, reason))
            }
        }
    }
}
