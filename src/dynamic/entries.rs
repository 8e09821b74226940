//! The entries from C into handlers that are written in safe Rust.
//!
//! The collector calls each handler as a C function. An entry is such a function. It converts the
//! pointers, and calls a function of [`RustHandlers`].

use std::ffi::{c_int, c_void};

use crate::Mutator;
use crate::dynamic::dealloc::Dying;
use crate::dynamic::object::{Obj, RawObject, VisitProc, Visitor};

/// The handlers of a type that is made in Rust.
pub(super) trait RustHandlers {
    /// Visits the references of a living object.
    fn traverse(_object: Obj<'_>, _visitor: Visitor<'_>) -> c_int {
        0
    }

    /// Removes the references of a living object.
    fn clear(_object: Obj<'_>) -> c_int {
        0
    }

    /// Finalizes a living object.
    fn finalize(_m: &Mutator, _object: Obj<'_>) {}

    /// Destroys an object.
    fn dealloc(_dying: Dying<'_>) {}
}

/// A traverse handler.
pub(super) unsafe extern "C" fn traverse<H: RustHandlers>(
    object: *mut RawObject,
    visit: VisitProc,
    arg: *mut c_void,
) -> c_int {
    // SAFETY: rule *handlers*: called for a living object, with a visitor and its argument.
    let (object, visitor) = unsafe { (Obj::from_ptr(object), Visitor::new(visit, arg)) };
    object.map_or(0, |object| H::traverse(object, visitor))
}

/// A clear handler.
pub(super) unsafe extern "C" fn clear<H: RustHandlers>(object: *mut RawObject) -> c_int {
    // SAFETY: rule *handlers*: called for a living object.
    unsafe { Obj::from_ptr(object) }.map_or(0, H::clear)
}

/// A finalize handler.
pub(super) unsafe extern "C" fn finalize<H: RustHandlers>(object: *mut RawObject) {
    // SAFETY: rule *handlers*: called for a living object.
    if let Some(object) = unsafe { Obj::from_ptr(object) } {
        Mutator::with_current(|m| H::finalize(m, object));
    }
}

/// A dealloc handler.
pub(super) unsafe extern "C" fn dealloc<H: RustHandlers>(object: *mut RawObject) {
    Mutator::with_current(|m| {
        // SAFETY: rules *handlers* and *zero*: called once, for a dying object.
        let dying = unsafe { Obj::from_ptr(object).map(|object| Dying::new(m, object)) };
        if let Some(dying) = dying {
            H::dealloc(dying);
        }
    });
}
