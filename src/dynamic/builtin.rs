//! Built-in types, whose records are made at their first use.

#![forbid(unsafe_code)]

use std::fmt;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicPtr};

use crate::base::error::Fault;
use crate::base::fallible;
use crate::base::settings_lock::SettingsHold;
use crate::dynamic::dictionary::Attributes;
use crate::dynamic::instance::DEFAULTS;
use crate::dynamic::object::RawObject;
use crate::dynamic::record::{Flags, Type, TypeRecord};
use crate::memory::arena::class_for;

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
        class: class_for(size_of::<RawObject>(), crate::memory::space::GRANULE),
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
