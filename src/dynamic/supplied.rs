//! The handlers that the library supplies for types without their own.

#![forbid(unsafe_code)]

use std::ffi::c_int;

use crate::Mutator;
use crate::dynamic::entries::RustHandlers;
use crate::dynamic::object::{Obj, Visitor};

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
                crate::base::event::guarded(|| object.lend(|this| finalizer(this, m)))
        {
            // The panic must not pass through the frames of a C program.
            let name = object.record().kept_name();
            let message = crate::base::event::panic_message(payload);
            m.raw().core().hooks.unraisable(crate::During::Finalize, name, message);
        }
    }
}
