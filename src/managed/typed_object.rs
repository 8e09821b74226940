//! The functions of an object's type.

use std::ptr::NonNull;

use crate::managed::parts::{Managed, Raw};
use crate::object::counted::{self, CountedRef};
use crate::object::header::Header;
use crate::object::live::Live;
use crate::object::type_info::TypeInfo;

/// A live object, and the table that its header names.
#[derive(Clone, Copy)]
pub(super) struct TypedObject<'a> {
    object: Live<'a>,
    info: &'static TypeInfo,
}

impl Managed {
    /// The object with its table.
    pub(super) fn typed<'a>(&self, object: Live<'a>) -> TypedObject<'a> {
        TypedObject { object, info: self.info(object.header()) }
    }
}

impl Managed {
    /// Puts an object off until the other garbage of the collection is cleared and released.
    /// `false`: there is no memory for that.
    pub(super) fn clear_last(&self, object: Live<'_>, m: &Raw) -> bool {
        let mut last = self.cleared_last.lock();
        if last.try_reserve(1).is_err() {
            return false;
        }
        object.header().clone_ref(m.id());
        // SAFETY: rule *counted*: the reference that was just added.
        last.push(unsafe { CountedRef::new(counted::header(object.object())) });
        true
    }
}

impl TypedObject<'_> {
    fn header(self) -> NonNull<Header> {
        counted::header(self.object.object())
    }

    /// Whether the type is dynamic.
    pub(super) fn is_dynamic(self) -> bool {
        self.info.dealloc.is_some()
    }

    /// The name of the type.
    pub(super) fn name(self) -> &'static str {
        // SAFETY: rules *counted* and *typed*: alive, as the proof says, and of this type.
        unsafe { (self.info.name)(self.header()) }
    }

    pub(super) fn has_finalizer(self) -> bool {
        self.info.finalize.is_some()
            // SAFETY: as in `name`.
            && self.info.has_finalizer.is_none_or(|has| unsafe { has(self.header()) })
    }

    /// Whether the object has a legacy finalizer.
    pub(super) fn is_legacy(self) -> bool {
        // SAFETY: as in `name`.
        self.info.legacy.is_some_and(|legacy| unsafe { legacy(self.header()) })
    }

    /// Runs the finalizer.
    pub(super) fn finalize(self, m: &Raw) {
        if let Some(finalize) = self.info.finalize {
            // SAFETY: as in `name`. The mutator is attached to the object's heap.
            unsafe { finalize(self.header(), (&raw const *m).cast()) };
        }
    }

    /// Whether the object is cleared after the other garbage.
    pub(super) fn clears_last(self) -> bool {
        // SAFETY: as in `name`.
        self.info.clears_last.is_some_and(|clears_last| unsafe { clears_last(self.header()) })
    }

    /// Empties the fields that can close a cycle.
    pub(super) fn clear(self, m: &Raw) {
        // SAFETY: as in `finalize`.
        unsafe { (self.info.clear)(self.info.value(self.header()), (&raw const *m).cast()) };
    }
}
