//! Built-in types, whose records are made at their first use: the root of all types, and the type
//! of heap types. The types of modules and weak references are in `module` and `weakref`.

#![forbid(unsafe_code)]

use crate::Fault;
use std::ffi::c_int;
use std::fmt;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicPtr};

use crate::base::fallible;
use crate::base::settings_lock::SettingsHold;
use crate::dynamic::attributes::Attributes;
use crate::dynamic::dealloc::{self, Dying};
use crate::dynamic::draft::builtin;
use crate::dynamic::instance::DEFAULTS;
use crate::dynamic::object::{Obj, RawObject, RawVarObject, Visitor};
use crate::dynamic::record::{Flags, Type, TypeRecord};
use crate::dynamic::rust_handlers::RustHandlers;
use crate::memory::size_class::class_for;

/// A built-in type. Its record is made at the first use.
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

    /// Its record. It exists in a process that has made a heap.
    pub fn get(&self) -> &'static TypeRecord {
        self.cell
            .get()
            .copied()
            .unwrap_or_else(|| self.try_get().unwrap_or_else(|fault| panic!("{fault}")))
    }

    /// Its record. Makes it, if it does not exist yet.
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
pub static BASE: Builtin = Builtin::new(root);

fn root() -> Result<TypeRecord, Fault> {
    Ok(TypeRecord {
        face: AtomicPtr::new(std::ptr::null_mut()),
        made_by: None,
        traverse: None,
        static_traverse: None,
        clear: None,
        finalize: None,
        del: None,
        dealloc: None,
        own_dealloc: false,
        is_gc: None,
        alloc: DEFAULTS.alloc,
        free: DEFAULTS.plain_free,
        flags: Flags::BASE_TYPE.and(Flags::READY),
        basic_size: size_of::<RawObject>(),
        item_size: 0,
        data: (0, 0),
        class: class_for(size_of::<RawObject>(), crate::memory::shape::GRANULE),
        common_class: None,
        ends_simply: false,
        object: std::ptr::null_mut(),
        bases: Box::new([]),
        mro: Box::new([]),
        name: fallible::owned("object")?.into_boxed_str(),
        keeps: None,
        module: AtomicPtr::new(std::ptr::null_mut()),
        token: 0,
        attributes: Attributes::default(),
        finalizer: None,
        is_metatype: false,
        clears_last: false,
        tried: AtomicBool::new(true),
    })
}

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
