//! The parts of an object that lie outside of its cell, each behind a pointer that the object owns.
//!
//! A module and a weak reference have this pointer behind the head ([`Parts`]). Instances with a
//! managed dictionary and the objects of heap types have it in the tail, the last word of the cell.
//! The pointer is null until the part is complete. It is set once, and only a dying object gives
//! its part up.

use crate::base::once_box::OnceBox;
use crate::dynamic::builtin::Builtin;
use crate::dynamic::dealloc::Dying;
use crate::dynamic::dictionary::Attributes;
use crate::dynamic::object::{Obj, RawObject};
use crate::dynamic::record::{Flags, TypeRecord};

/// The parts of the instances of a built-in type.
///
/// # Safety
///
/// Instances of the built-in type, and of types derived from it, have at least [`SIZE`] bytes. The
/// library uses the word behind their heads for these parts only.
pub(super) unsafe trait Parts: Sized {
    /// The built-in type.
    fn builtin() -> &'static Builtin;
}

/// A value to which the tails of some objects point.
///
/// # Safety
///
/// An instance in a heap of a type for which the function answers `true` has a tail. The library
/// uses this tail for such values only.
pub(super) unsafe trait Tail: Sized {
    /// Whether the instances of this type have such a tail.
    fn is_in_instances_of(record: &TypeRecord) -> bool;
}

// SAFETY: rule *dynamic*: with the flag there is a tail.
unsafe impl Tail for Attributes {
    fn is_in_instances_of(record: &TypeRecord) -> bool {
        record.flags().has(Flags::MANAGED_DICT)
    }
}

// SAFETY: rule *dynamic*: the object of a heap type has a tail, with its record.
unsafe impl Tail for TypeRecord {
    fn is_in_instances_of(record: &TypeRecord) -> bool {
        record.is_metatype
    }
}

/// The start of an object with parts.
#[repr(C)]
struct WithParts<P> {
    base: RawObject,
    parts: OnceBox<P>,
}

/// Bytes of an object with parts.
pub(super) const SIZE: usize = size_of::<WithParts<RawObject>>();

impl<'a> Obj<'a> {
    /// The pointer to the object's parts of this kind; `None`: the object has none.
    pub(super) fn parts_slot<P: Parts>(self) -> Option<&'a OnceBox<P>> {
        let has_parts = self.record().is_subtype_of(P::builtin().get());
        // SAFETY: rule *dynamic*: instances of this type start with these fields.
        has_parts.then(|| unsafe { &self.address().cast::<WithParts<P>>().as_ref().parts })
    }

    /// The parts of this kind; `None`: the object has none.
    pub(super) fn parts<P: Parts>(self) -> Option<&'a P> {
        self.parts_slot()?.get()
    }

    /// The pointer in the object's tail; `None`: the object has no tail of this kind.
    pub(super) fn tail<T: Tail>(self) -> Option<&'a OnceBox<T>> {
        if !T::is_in_instances_of(self.record()) {
            return None;
        }
        let space = &self.core()?.space;
        // SAFETY: rules *dynamic*, *counted* and *mapped*: the object lives, and was allocated with
        // such a tail. Its cell is at least as large as the allocation, the last word included.
        unsafe {
            let cell = space.memory(self.address().cast());
            Some(cell.start().add(cell.room().last_word()).cast().as_ref())
        }
    }
}

impl<'m> Dying<'m> {
    /// Takes the parts of this kind out of the object.
    pub(super) fn take_parts<P: Parts + 'm>(&self) -> Option<Box<P>> {
        self.take(Obj::parts_slot)
    }

    /// Takes the value out of the object's tail.
    pub(super) fn take_tail<T: Tail + 'm>(&self) -> Option<Box<T>> {
        self.take(Obj::tail)
    }

    /// Takes the value of one of the object's own pointers.
    fn take<T: 'm>(&self, slot: impl FnOnce(Obj<'m>) -> Option<&'m OnceBox<T>>) -> Option<Box<T>> {
        // SAFETY: rule *zero*: this thread has exclusive access to the object.
        unsafe { slot(self.object())?.take() }
    }
}
