//! A type's table of functions: how the built-in model traverses, finalizes and destroys its
//! objects.
//!
//! A rule, which unsafe code cites:
//!
//! * **typed**: a header's type index names the table that the object was made with, so the
//!   value lies where the table says. The functions of a table are called with objects of its type
//!   and with a mutator of their heap. The objects live as long as the call, and functions that
//!   destroy an object receive it as its owner. `Mutator` and `Heap` are transparent wrappers of
//!   the types that the lower folders use. A `Finalizer<T>` keeps a function that takes a `&Gc<T>`.

use std::any::TypeId;
use std::fmt;
use std::ptr::NonNull;

use crate::object::address::Object;
use crate::object::header::Header;
use crate::object::tracer::{Ends, Tracer};

/// The table of functions of a type, for the built-in model.
///
/// `mutator` in the signatures is the calling thread's mutator. It is an opaque pointer, because
/// this folder may not name its type.
pub(crate) struct TypeInfo {
    pub(crate) id: fn() -> TypeId,
    /// The name of an instance's type. For dynamic objects it differs between instances.
    pub(crate) name: unsafe fn(NonNull<Header>) -> &'static str,
    /// Bytes from the header to the value.
    pub(crate) offset: usize,
    /// Whether instances enter the tracked set.
    pub(crate) tracked: bool,
    /// Reports the references of several values through [`Tracer::each`]. One call serves all of
    /// them, so the traversal of each is inlined.
    pub(crate) traverse_each: unsafe fn(&[Object], &mut Tracer, &mut Ends<'_>),
    /// Prefetches the memory that `traverse` reads outside the values' own bytes. `None`: it reads
    /// none.
    pub(crate) prefetch_each: Option<unsafe fn(&[Object], &mut Tracer)>,
    /// Empties the fields that can close a cycle.
    pub(crate) clear: unsafe fn(NonNull<u8>, *const ()),
    /// Whether a collection clears an instance after all its other garbage is cleared and released.
    /// `None`: no instance.
    pub(crate) clears_last: Option<unsafe fn(NonNull<Header>) -> bool>,
    /// Runs the finalizer on a live object, by its header.
    pub(crate) finalize: Option<unsafe fn(NonNull<Header>, *const ())>,
    /// Whether an instance has a finalizer. `None`: all instances are alike.
    pub(crate) has_finalizer: Option<unsafe fn(NonNull<Header>) -> bool>,
    /// Whether an instance has a legacy finalizer. `None`: no instance has one. Called only if the
    /// model has seen such a type (`Managed::expect_legacy`).
    pub(crate) legacy: Option<unsafe fn(NonNull<Header>) -> bool>,
    /// The bytes outside the heap that a value owns. `None`: it owns none. Called with exclusive
    /// access, before the value is destroyed.
    pub(crate) external: Option<unsafe fn(NonNull<u8>) -> usize>,
    /// Destroys the value in place. `None`: there is nothing to do.
    pub(crate) drop: Option<unsafe fn(NonNull<u8>)>,
    /// Destroys an object after the mutator has dropped its last reference. Used if only the
    /// destructor must run: no finalizer, no weak record. `None`: use `drop` and the rest of this
    /// table.
    pub(crate) destroy: Option<unsafe fn(NonNull<Header>, *const ())>,
    /// Replaces the whole destruction: finalizer, weak references, value and memory.
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
        // SAFETY: rule *typed*: an object of this type is at least `offset` bytes long.
        unsafe { header.cast::<u8>().add(self.offset) }
    }
}
