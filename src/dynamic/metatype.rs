//! The type of heap types, whose objects describe types.

#![forbid(unsafe_code)]

use std::ffi::c_int;

use crate::dynamic::builtin::Builtin;
use crate::dynamic::dealloc::{self, Dying};
use crate::dynamic::draft::builtin;
use crate::dynamic::entries::RustHandlers;
use crate::dynamic::object::{Obj, RawVarObject, Visitor};
use crate::dynamic::record::{Flags, TypeRecord};

impl<'a> Obj<'a> {
    /// The record that the object of a heap type describes; `None`: it is another object.
    pub fn describe(self) -> Option<&'a TypeRecord> {
        self.tail()?.get()
    }
}

/// The type of heap types: `type`.
pub static METATYPE: Builtin = Builtin::new(|| {
    let record = builtin::<HeapTypes>("type", size_of::<RawVarObject>(), Flags(1 << 31))?;
    // Without a size class, allocation calls `instance_size`, which refuses: a type's object needs
    // a record.
    Ok(TypeRecord {
        class: None,
        common_class: None,
        is_metatype: true,
        clears_last: true,
        ..record
    })
});

/// The handlers of heap types' objects.
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

    /// Removes attributes and module. Handlers stay, so instances can still be used and freed.
    ///
    /// Another thread may just have read the module's address from the type. So the reference is
    /// retired: it is dropped after each attached thread has passed a safepoint.
    fn clear(object: Obj<'_>) -> c_int {
        if let Some(record) = object.describe() {
            record.attributes.clear();
            if let Some(module) = record.take_module() {
                module.retire();
            }
        }
        0
    }

    /// The type has no instances and no subtypes any more.
    fn dealloc(dying: Dying<'_>) {
        dying.untrack();
        dying.clear_weak_references();
        if let Some(record) = dying.take_tail::<TypeRecord>() {
            record.attributes.clear();
            // No thread has the type any more, so none reads its module.
            drop(record.take_module());
            // It owns the references to the bases.
            drop(record);
        }
        dying.free_or_report(dealloc::Family::Container);
    }
}
