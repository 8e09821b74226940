//! A type's table of functions: how the built-in model traverses, finalizes and destroys its objects.
//!
//! A rule, cited by its letter where unsafe code relies on it:
//!
//! * **Y** (type): a header's type index names the table that the object was made with, so that the value lies where the table says.
//!   The functions of a table are called with objects of its type, which live as long as the call (those that end an object are given
//!   it), and with a mutator of their heap. `Mutator` and `Heap` wrap, transparently, what this side of the library has.

use std::any::TypeId;
use std::fmt;
use std::ptr::NonNull;

pub use crate::object::address::Object;
use crate::object::header::Header;
pub(crate) use crate::object::tracer::Edge;
pub use crate::object::tracer::{Ends, Tracer};

/// What the built-in model knows about a type: its table of functions.
///
/// `mutator` in the signatures is the calling thread's mutator, passed as an opaque pointer so that
/// this floor does not name that one.
pub(crate) struct TypeInfo {
    pub(crate) id: fn() -> TypeId,
    /// The name of an instance's type: for dynamic objects it differs from one to the next.
    pub(crate) name: unsafe fn(NonNull<Header>) -> &'static str,
    /// From the header to the value.
    pub(crate) offset: usize,
    /// Whether instances enter the tracked set.
    pub(crate) tracked: bool,
    /// Reports the references of several values, by [`Tracer::each`]: one call for all of them, in which what is to be done for
    /// each can be inlined.
    pub(crate) traverse_each: unsafe fn(&[Object], &mut Tracer, &mut Ends<'_>),
    /// Asks memory for what `traverse` reads behind the values' own bytes; `None`: nothing.
    pub(crate) prefetch_each: Option<unsafe fn(&[Object], &mut Tracer)>,
    /// Takes the references out of the fields that can close a cycle.
    pub(crate) clear: unsafe fn(NonNull<u8>, *const ()),
    /// Runs the finalizer on a live object, given its header.
    pub(crate) finalize: Option<unsafe fn(NonNull<Header>, *const ())>,
    /// Where some instances have a finalizer and others do not: whom to ask. `None`: they are alike.
    pub(crate) has_finalizer: Option<unsafe fn(NonNull<Header>) -> bool>,
    /// Whether an instance has a legacy finalizer; `None`: none has. Asked once the model knows of any
    /// (`Managed::expect_legacy`).
    pub(crate) legacy: Option<unsafe fn(NonNull<Header>) -> bool>,
    /// Destroys the value in place; `None`: nothing to do.
    pub(crate) drop: Option<unsafe fn(NonNull<u8>)>,
    /// Destroys an object whose last reference the mutator has taken, where that takes no more than the
    /// destructor: no finalizer, no weak record. `None`: by `drop` and the rest of this table.
    pub(crate) end: Option<unsafe fn(NonNull<Header>, *const ())>,
    /// Takes the whole destruction over: finalizer, weak references, value and memory.
    pub(crate) dealloc: Option<unsafe fn(NonNull<Header>, *const ())>,
}

impl fmt::Debug for TypeInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TypeInfo").field("offset", &self.offset).finish_non_exhaustive()
    }
}

impl TypeInfo {
    /// The value of the object with this header.
    #[inline(always)]
    pub(crate) fn value(&self, header: NonNull<Header>) -> NonNull<u8> {
        // SAFETY: rule Y: an object of this type is at least `offset` bytes long.
        unsafe { header.cast::<u8>().add(self.offset) }
    }
}
