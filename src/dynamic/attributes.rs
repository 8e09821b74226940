//! Attributes: what a managed dictionary of an instance, and the dictionary of a heap type, holds.
//!
//! An instance's dictionary comes into being with its first attribute, and hangs at the object's tail, which is
//! written once. Its lock is held by attached threads alone, for a look or a change, and never over a call out; so in a stop
//! nobody changes a dictionary. Traversals share the lock: two markers may visit one object at the same time, and each has to
//! see all of it. They try it only: locked all the same means that nothing is visited, which keeps everything alive. Their visitors
//! cannot come back to the lock, since all functions for attributes refuse a thread that traverses. A visitor outside of
//! traversals can: it is called without the lock.

use std::collections::HashMap;
use std::ffi::{c_int, c_void};
use std::ptr::NonNull;
use std::sync::atomic::Ordering;

use crate::base::error::{Code, Fault};
use crate::base::fallible::{self, NoMemory};
use crate::base::sync::RwLock;
use crate::base::text::words;
use crate::dynamic::builtin::describe;
use crate::dynamic::handlers;
use crate::dynamic::object::{
    RawObject, VisitProc, as_raw, refuse_in_traversal, tail_slot, type_of,
};
use crate::dynamic::record::Flags;
use crate::safepoint::is_traversing;
use crate::{AnyGc, Mutator};

/// A dictionary by name.
#[derive(Default)]
pub(crate) struct Attributes(RwLock<HashMap<Box<str>, AnyGc>>);

impl Attributes {
    pub(crate) fn get(&self, name: &str) -> Option<AnyGc> {
        self.0.read().get(name).cloned()
    }

    /// Sets an entry, or removes it, and returns the old value. Without memory nothing changes.
    pub(crate) fn set(&self, name: &str, value: Option<AnyGc>) -> Result<Option<AnyGc>, NoMemory> {
        let Some(value) = value else { return Ok(self.0.write().remove(name)) };
        let name = fallible::owned(name)?.into_boxed_str();
        let mut entries = self.0.write();
        if let Some(place) = entries.get_mut(&name) {
            return Ok(Some(std::mem::replace(place, value)));
        }
        if entries.try_reserve(1).is_err() {
            drop(entries);
            return Err(NoMemory);
        }
        Ok(entries.insert(name, value))
    }

    /// Takes everything out, and drops it once the lock is free: destructors may come back here.
    pub(crate) fn clear(&self) {
        let old = std::mem::take(&mut *self.0.write());
        // One by one: a map drops nothing more once a destructor has panicked, but what is left of its iterator is dropped.
        old.into_values().for_each(drop);
    }

    /// Visits the values: 0, or the visitor's answer. Outside of traversals the values are held meanwhile, each by one reference
    /// more; without memory for these none is visited, and the answer is -1.
    ///
    /// # Safety
    ///
    /// `visit` belongs to `arg`.
    pub(crate) unsafe fn visit(&self, visit: VisitProc, arg: *mut c_void) -> c_int {
        if is_traversing() {
            let Some(entries) = self.0.try_read() else { return 0 };
            // SAFETY: as the caller says; the dictionary owns the references.
            return unsafe { visit_each(entries.values(), visit, arg) };
        }
        let mut values = Vec::new();
        {
            let entries = self.0.read();
            if values.try_reserve_exact(entries.len()).is_err() {
                return -1;
            }
            values.extend(entries.values().cloned());
        }
        // SAFETY: as the caller says; the references are in this frame.
        unsafe { visit_each(values.iter(), visit, arg) }
    }
}

/// Visits values up to the first to which the visitor does not answer 0: its answer.
///
/// # Safety
///
/// `visit` belongs to `arg`; the references live as long as this call.
unsafe fn visit_each<'a>(
    values: impl Iterator<Item = &'a AnyGc>,
    visit: VisitProc,
    arg: *mut c_void,
) -> c_int {
    for value in values {
        // SAFETY: rule R: as the caller says.
        let result = unsafe { visit(as_raw(value).as_ptr(), arg) };
        if result != 0 {
            return result;
        }
    }
    0
}

/// The dictionary of an object, if its type has any and it has been made.
///
/// # Safety
///
/// `object` is a living dynamic object of a heap; the result is borrowed from it.
unsafe fn existing<'a>(object: NonNull<RawObject>) -> Option<&'a Attributes> {
    // SAFETY: rule D; with the flag there is a tail.
    unsafe {
        if type_of(object).flags().has(Flags::MANAGED_DICT) {
            // Acquire: pairs with the exchange in `of`.
            tail_slot(object).load(Ordering::Acquire).cast::<Attributes>().as_ref()
        } else {
            describe(object).map(|record| &record.attributes)
        }
    }
}

/// As [`existing`], made if need be; an error when the type has none.
///
/// # Safety
///
/// As for [`existing`].
unsafe fn of<'a>(
    object: NonNull<RawObject>,
    function: &'static str,
) -> Result<&'a Attributes, Fault> {
    // SAFETY: as the caller says.
    unsafe {
        if let Some(attributes) = existing(object) {
            return Ok(attributes);
        }
        let record = type_of(object);
        if !record.flags().has(Flags::MANAGED_DICT) {
            let text = words!("objects of type '{}' have no attributes", record.kept_name());
            let fault = Fault::new(Code::NoAttribute, function).of_type(record.kept_name());
            return Err(fault.at(object.as_ptr() as usize).because(text));
        }
        let slot = tail_slot(object);
        let made = Box::into_raw(fallible::boxed(Attributes::default())?);
        // AcqRel: publishes the empty dictionary, or takes over another thread's.
        match slot.compare_exchange(
            std::ptr::null_mut(),
            made.cast(),
            Ordering::AcqRel,
            Ordering::Acquire,
        ) {
            Ok(_) => Ok(&*made),
            Err(theirs) => {
                drop(Box::from_raw(made));
                Ok(&*theirs.cast::<Attributes>())
            }
        }
    }
}

/// The value of an attribute.
///
/// # Errors
///
/// When there is none; in a traverse handler.
///
/// # Safety
///
/// `object` is a living dynamic object of the mutator's heap.
pub unsafe fn get_attribute(
    _: &Mutator,
    object: NonNull<RawObject>,
    name: &str,
) -> Result<AnyGc, Fault> {
    const FUNCTION: &str = "get_attribute";
    refuse_in_traversal(FUNCTION)?;
    // SAFETY: as the caller says.
    let found = unsafe { existing(object) }.and_then(|attributes| attributes.get(name));
    found.ok_or_else(|| {
        // SAFETY: as the caller says.
        let type_name = unsafe { type_of(object) }.kept_name();
        let text = words!("'{type_name}' object has no attribute '{name}'");
        Fault::new(Code::NoAttribute, FUNCTION)
            .of_type(type_name)
            .at(object.as_ptr() as usize)
            .because(text)
    })
}

/// Whether there is such an attribute.
///
/// # Safety
///
/// As for [`get_attribute`].
pub unsafe fn has_attribute(_: &Mutator, object: NonNull<RawObject>, name: &str) -> bool {
    // SAFETY: as the caller says.
    !is_traversing()
        && unsafe { existing(object) }.is_some_and(|attributes| attributes.get(name).is_some())
}

/// Sets an attribute, or removes it.
///
/// # Errors
///
/// When objects of this type have no attributes, when there is none to remove, and in a traverse handler.
///
/// # Safety
///
/// As for [`get_attribute`].
pub unsafe fn set_attribute(
    _: &Mutator,
    object: NonNull<RawObject>,
    name: &str,
    value: Option<AnyGc>,
) -> Result<(), Fault> {
    const FUNCTION: &str = "set_attribute";
    refuse_in_traversal(FUNCTION)?;
    let removes = value.is_none();
    // SAFETY: as the caller says.
    let old = unsafe { of(object, FUNCTION) }?.set(name, value)?;
    if removes && old.is_none() {
        // SAFETY: as the caller says.
        let type_name = unsafe { type_of(object) }.kept_name();
        let text = words!("'{type_name}' object has no attribute '{name}'");
        return Err(Fault::new(Code::NoAttribute, FUNCTION).of_type(type_name).because(text));
    }
    Ok(())
}

/// Visits the values of an object's managed dictionary: 0, or the visitor's answer. For traverse handlers.
///
/// Outside of traversals the visitor may change the dictionary: the values that it is shown are those of before, and each is held
/// by one reference more meanwhile. Without memory for these none is visited, and the answer is -1.
///
/// # Safety
///
/// `object` is a living dynamic object of a heap; `visit` belongs to `arg`.
pub unsafe fn visit_managed_dict(
    object: NonNull<RawObject>,
    visit: VisitProc,
    arg: *mut c_void,
) -> c_int {
    // SAFETY: as the caller says.
    unsafe {
        if !type_of(object).flags().has(Flags::MANAGED_DICT) {
            return 0;
        }
        handlers::note_dict_visit();
        existing(object).map_or(0, |attributes| attributes.visit(visit, arg))
    }
}

/// Empties an object's managed dictionary. Nothing for an object without one.
///
/// # Safety
///
/// `object` is a living dynamic object of a heap.
pub unsafe fn clear_managed_dict(object: NonNull<RawObject>) {
    // SAFETY: as the caller says.
    unsafe {
        if type_of(object).flags().has(Flags::MANAGED_DICT)
            && let Some(attributes) = existing(object)
        {
            attributes.clear();
        }
    }
}

/// Gives the dictionary's own memory back, with the object's.
///
/// # Safety
///
/// The object is of a type with managed dictionaries, and being freed.
pub(crate) unsafe fn drop_dict(object: NonNull<RawObject>) {
    // SAFETY: rules D and Z: with the flag there is a tail; whoever frees the object is alone with it.
    unsafe {
        let dict = tail_slot(object).swap(std::ptr::null_mut(), Ordering::AcqRel);
        if !dict.is_null() {
            drop(Box::from_raw(dict.cast::<Attributes>()));
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::Heap;

    /// A visit in the middle of a visit: as two markers do that have claimed one object together.
    unsafe extern "C" fn again(_: *mut RawObject, arg: *mut c_void) -> c_int {
        unsafe extern "C" fn count(_: *mut RawObject, arg: *mut c_void) -> c_int {
            // SAFETY: rule V: the counter below.
            unsafe { *arg.cast::<usize>() += 1 };
            0
        }
        // SAFETY: rule V: what is handed on below, which nobody else uses meanwhile.
        unsafe {
            let (attributes, visited) = &mut *arg.cast::<(&Attributes, usize)>();
            attributes.visit(count, (&raw mut *visited).cast())
        }
    }

    #[test]
    fn two_visits_at_the_same_time_see_everything() {
        let heap = Heap::new();
        heap.attach_scoped(|m| {
            let attributes = Attributes::default();
            for name in ["one", "other", "third"] {
                attributes.set(name, Some(m.alloc(0u8).into())).unwrap();
            }
            let mut seen = (&attributes, 0usize);
            // SAFETY: rule V: the argument is what the visitor takes, and is in this frame.
            assert_eq!(unsafe { attributes.visit(again, (&raw mut seen).cast()) }, 0);
            assert_eq!(seen.1, 9);
        });
    }
}
