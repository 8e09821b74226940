//! Handlers that are written in safe Rust.
//!
//! The collector calls each handler as a C function, which receives pointers. An *entry* is such a
//! function: it converts the pointers, and calls a function of `RustHandlers`. So the built-in
//! types need no unsafe code for their handlers, and neither do the handlers that the library
//! supplies for types without their own.

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

/// The handlers of a heap type that has none of its own and a static base.
pub(super) struct Inherited;

impl RustHandlers for Inherited {
    /// Visits the type, and then calls the handler of the base. Derived types inherit this handler
    /// unchanged, so the type is visited once.
    fn traverse(object: Obj<'_>, visitor: Visitor<'_>) -> c_int {
        let record = object.record();
        match visitor.visit_all(record.type_object()) {
            0 => object.run_static_traverse(visitor),
            answer => answer,
        }
    }
}

/// The handlers of types that have only attributes.
pub(super) struct OnlyAttributes;

impl RustHandlers for OnlyAttributes {
    fn traverse(object: Obj<'_>, visitor: Visitor<'_>) -> c_int {
        match visitor.visit_all(object.record().type_object()) {
            0 => object.visit_managed_dict(visitor),
            answer => answer,
        }
    }

    fn clear(object: Obj<'_>) -> c_int {
        object.clear_managed_dict();
        0
    }
}

/// The finalize handler of classes.
pub(super) struct Finalizing;

impl RustHandlers for Finalizing {
    fn finalize(m: &Mutator, object: Obj<'_>) {
        let finalizer = object.record().mro().find_map(|record| record.finalizer);
        if let Some(finalizer) = finalizer
            && let Err(payload) =
                crate::base::outside::guarded(|| object.lend(|this| finalizer(this, m)))
        {
            // The panic must not pass through the frames of a C program.
            let name = object.record().kept_name();
            let message = crate::base::outside::panic_message(payload);
            m.raw().core().hooks.unraisable(crate::During::Finalize, name, message);
        }
    }
}
