//! Each type needs a base, and each heap type is an object that needs a type itself. So a few types
//! must exist before a program makes one: the root of all types, and the type of heap types, for
//! example. Their records are made at the first use, because a record owns memory and so cannot be
//! a constant. The types of modules and weak references are in `module` and `weakref`.
//!
//! This file also has the handlers that the library supplies for types without their own.

#![forbid(unsafe_code)]

use std::ffi::c_int;
use std::fmt;
use std::sync::OnceLock;

use crate::base::fallible;
use crate::base::outside::{guarded, panic_message};
use crate::base::settings_lock::SettingsHold;
use crate::dynamic::calls::RustHandlers;
use crate::dynamic::dealloc::Dying;
use crate::dynamic::draft::{builtin, root};
use crate::dynamic::object::{Obj, RawVarObject, Visitor};
use crate::dynamic::record::{Flags, Type, TypeRecord};
use crate::{During, Fault, Mutator};

/// A built-in type, whose record is made at the first use.
pub struct Builtin {
    cell: OnceLock<&'static TypeRecord>,
    make: fn() -> Result<TypeRecord, Fault>,
}

impl fmt::Debug for Builtin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Builtin").field(&self.get().name).finish()
    }
}

impl Builtin {
    pub(super) const fn new(make: fn() -> Result<TypeRecord, Fault>) -> Self {
        Self { cell: OnceLock::new(), make }
    }

    /// Its record, which exists in a process that has made a heap.
    pub fn get(&self) -> &'static TypeRecord {
        self.cell
            .get()
            .copied()
            .unwrap_or_else(|| self.try_get().unwrap_or_else(|fault| panic!("{fault}")))
    }

    /// Its record, which is made if it does not exist yet.
    ///
    /// # Errors
    ///
    /// When there is no memory.
    pub fn try_get(&self) -> Result<&'static TypeRecord, Fault> {
        if let Some(record) = self.cell.get() {
            return Ok(record);
        }
        let _one = SettingsHold::new();
        if let Some(record) = self.cell.get() {
            return Ok(record);
        }
        let record = Box::leak(fallible::boxed((self.make)()?)?);
        *record.face.get_mut() = (&raw mut *record).cast();
        Ok(self.cell.get_or_init(|| record))
    }

    /// A handle to it.
    pub fn handle(&self) -> Type {
        Type::from_static(self.get())
    }
}

/// The root of all types: `object`.
pub static BASE: Builtin = Builtin::new(|| root("object"));

impl<'a> Obj<'a> {
    /// The record that the object of a heap type describes; `None`: it is another object.
    pub fn describe(self) -> Option<&'a TypeRecord> {
        self.part()
    }
}

/// The type of heap types: `type`.
pub static METATYPE: Builtin = Builtin::new(|| {
    let record = builtin::<HeapTypes>("type", size_of::<RawVarObject>(), Flags(1 << 31))?;
    // Without a size class, allocation calls `instance_size`, which refuses, because a type's
    // object needs a record.
    Ok(TypeRecord {
        class: None,
        common_class: None,
        is_metatype: true,
        clears_last: true,
        ..record
    })
});

struct HeapTypes;

impl RustHandlers for HeapTypes {
    /// Visits the references of a heap type: its bases, its module, its attributes.
    fn traverse(object: Obj<'_>, visitor: Visitor<'_>) -> c_int {
        let Some(record) = object.describe() else { return 0 };
        let bases = record.bases().filter_map(TypeRecord::type_object);
        match visitor.visit_all(bases.chain(object.module_of_type())) {
            0 => record.attributes.visit(|value| visitor.visit_gc(value)),
            answer => answer,
        }
    }

    /// Removes attributes and module, but no handlers, so that instances can be used and freed.
    ///
    /// The reference is retired, that is, dropped after each attached thread has passed a
    /// safepoint, because another thread may just have read the module's address from the type.
    fn clear(object: Obj<'_>) -> c_int {
        if let Some(record) = object.describe() {
            record.attributes.clear();
            if let Some(module) = record.take_module() {
                module.retire();
            }
        }
        0
    }

    /// Releases all that the type owns, because it has no instances and no subtypes any more.
    fn dealloc(dying: Dying<'_>) {
        dying.untrack();
        dying.clear_weak_references();
        if let Some(record) = dying.take::<TypeRecord>() {
            record.attributes.clear();
            // Not retired: no thread has the type any more, so none reads its module.
            drop(record.take_module());
            // This releases the bases, because the record owns the references to them.
            drop(record);
        }
        dying.run_free();
    }
}

/// The handlers of a heap type that has none of its own and a static base.
pub(super) struct Inherited;

impl RustHandlers for Inherited {
    /// Visits the type, and then calls the handler of the nearest static base. Derived types
    /// inherit this handler unchanged, so that the type is visited once.
    fn traverse(object: Obj<'_>, visitor: Visitor<'_>) -> c_int {
        let record = object.record();
        match (visitor.visit_all(record.type_object()), record.static_traverse) {
            (0, Some(handler)) => object.visit_by(handler, visitor.visit, visitor.arg),
            (answer, _) => answer,
        }
    }
}

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
        // The panic must not pass through the frames of a C program.
        if let Some(finalizer) = finalizer
            && let Err(payload) = guarded(|| object.lend(|this| finalizer(this, m)))
        {
            let (name, message) = (object.record().kept_name(), panic_message(payload));
            m.raw().core().hooks.unraisable(During::Finalize, name, message);
        }
    }
}
