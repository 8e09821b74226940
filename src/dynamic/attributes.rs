//! Attributes: the managed dictionary of an instance, and the dictionary of a heap type.
//!
//! The first attribute of an instance creates its dictionary. The tail of the object points to it,
//! and is written once.
//!
//! Attached threads hold the lock of a dictionary for one read or one change, and never during a
//! call of user code. So in a stop no thread changes a dictionary. Traversals share the lock: two
//! markers may visit one object at the same time, and each must visit all values. A traversal only
//! tries the lock. If it fails, no value is visited, and all values stay alive.
//!
//! The visitor of a traversal cannot take the lock again, because all functions for attributes fail
//! in a traverse handler. A visitor outside of traversals can, so it is called without the lock.

use std::collections::HashMap;
use std::ffi::{c_int, c_void};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicPtr, Ordering};

use crate::base::error::{Code, Fault};
use crate::base::fallible::{self, NoMemory};
use crate::base::sync::RwLock;
use crate::base::text::words;
use crate::dynamic::handlers;
use crate::dynamic::object::{Obj, RawObject, Visitor, refuse_in_traversal, tail_slot};
use crate::dynamic::record::Flags;
use crate::safepoint::is_traversing;
use crate::{AnyGc, Mutator};

/// A dictionary from names to values.
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

    /// Removes all values, and drops them without the lock: a destructor may use this dictionary.
    pub(crate) fn clear(&self) {
        let old = std::mem::take(&mut *self.0.write());
        // One by one: after a panic a map drops no further values, but its iterator does.
        old.into_values().for_each(drop);
    }

    /// Visits the values: 0, or the visitor's answer. Outside of traversals each value has one more
    /// reference during the visit. Without memory for the list of these references, no value is
    /// visited, and the answer is -1.
    pub(crate) fn visit(&self, visitor: Visitor<'_>) -> c_int {
        if is_traversing() {
            let Some(entries) = self.0.try_read() else { return 0 };
            return visit_each(entries.values(), visitor);
        }
        let mut values = Vec::new();
        {
            let entries = self.0.read();
            if values.try_reserve_exact(entries.len()).is_err() {
                return -1;
            }
            values.extend(entries.values().cloned());
        }
        visit_each(values.iter(), visitor)
    }
}

/// Visits values up to the first with an answer other than 0, and returns that answer.
fn visit_each<'a>(mut values: impl Iterator<Item = &'a AnyGc>, visitor: Visitor<'_>) -> c_int {
    values
        .find_map(|value| Some(visitor.visit_gc(value)).filter(|&answer| answer != 0))
        .unwrap_or(0)
}

fn no_attribute(object: Obj<'_>, name: &str, function: &'static str) -> Fault {
    let type_name = object.record().kept_name();
    let text = words!("'{type_name}' object has no attribute '{name}'");
    Fault::new(Code::NoAttribute, function).of_type(type_name).because(text)
}

impl<'a> Obj<'a> {
    /// The tail of an object with a managed dictionary; `None`: its type has no dictionaries.
    fn dict_slot(self) -> Option<&'a AtomicPtr<c_void>> {
        let has_dict = self.record().flags().has(Flags::MANAGED_DICT);
        // SAFETY: rule *dynamic*; with the flag there is a tail.
        has_dict.then(|| unsafe { tail_slot(self.address()) })
    }

    /// The dictionary of an instance, or of a heap type's object. `None`: there can be none, or it
    /// was not made yet.
    fn attributes(self) -> Option<&'a Attributes> {
        let Some(slot) = self.dict_slot() else {
            return self.describe().map(|record| &record.attributes);
        };
        // Acquire: pairs with the exchange in `make_attributes`.
        let dict = slot.load(Ordering::Acquire).cast::<Attributes>();
        // SAFETY: rule *dynamic*: the tail of such an object points to its dictionary, or is null.
        unsafe { dict.as_ref() }
    }

    /// As [`attributes`](Self::attributes), but makes the dictionary. Fails if its type has none.
    fn make_attributes(self, function: &'static str) -> Result<&'a Attributes, Fault> {
        if let Some(attributes) = self.attributes() {
            return Ok(attributes);
        }
        let Some(slot) = self.dict_slot() else {
            let text = words!("objects of type '{}' have no attributes", self.record().kept_name());
            return Err(self.fault(Code::NoAttribute, function).because(text));
        };
        let made = Box::into_raw(fallible::boxed(Attributes::default())?);
        // AcqRel: publishes the empty dictionary, or acquires the dictionary of another thread.
        let other = slot.compare_exchange(
            std::ptr::null_mut(),
            made.cast(),
            Ordering::AcqRel,
            Ordering::Acquire,
        );
        // SAFETY: rule *dynamic*: the winner's dictionary lives as long as the object. No other
        // thread has the address of a loser's.
        unsafe {
            Ok(match other {
                Ok(_) => &*made,
                Err(theirs) => {
                    drop(Box::from_raw(made));
                    &*theirs.cast::<Attributes>()
                }
            })
        }
    }

    /// The value of an attribute.
    ///
    /// # Errors
    ///
    /// When there is no such attribute, and in a traverse handler.
    pub fn get_attribute(self, _: &Mutator, name: &str) -> Result<AnyGc, Fault> {
        const FUNCTION: &str = "get_attribute";
        refuse_in_traversal(FUNCTION)?;
        let found = self.attributes().and_then(|attributes| attributes.get(name));
        found.ok_or_else(|| no_attribute(self, name, FUNCTION).at(self.number()))
    }

    /// Whether there is such an attribute. `false` in a traverse handler.
    pub fn has_attribute(self, _: &Mutator, name: &str) -> bool {
        !is_traversing() && self.attributes().is_some_and(|it| it.get(name).is_some())
    }

    /// Sets an attribute, or removes it.
    ///
    /// # Errors
    ///
    /// When objects of this type have no attributes, when there is none to remove, and in a
    /// traverse handler.
    pub fn set_attribute(self, _: &Mutator, name: &str, value: Option<AnyGc>) -> Result<(), Fault> {
        const FUNCTION: &str = "set_attribute";
        refuse_in_traversal(FUNCTION)?;
        let removes = value.is_none();
        let old = self.make_attributes(FUNCTION)?.set(name, value)?;
        if removes && old.is_none() {
            return Err(no_attribute(self, name, FUNCTION));
        }
        Ok(())
    }

    /// Visits the values of the managed dictionary: 0, or the visitor's answer. For traverse
    /// handlers.
    ///
    /// Outside of traversals the visitor may change the dictionary. It still receives the values
    /// from before the visit, and each of them has one more reference during the visit. Without
    /// memory for the list of these references, no value is visited, and the answer is -1.
    pub fn visit_managed_dict(self, visitor: Visitor<'_>) -> c_int {
        if !self.record().flags().has(Flags::MANAGED_DICT) {
            return 0;
        }
        handlers::record_dict_visit();
        self.attributes().map_or(0, |attributes| attributes.visit(visitor))
    }

    /// Empties the managed dictionary. Does nothing for an object without one.
    pub fn clear_managed_dict(self) {
        if self.record().flags().has(Flags::MANAGED_DICT)
            && let Some(attributes) = self.attributes()
        {
            attributes.clear();
        }
    }
}

/// Frees the dictionary of an object, with its values.
///
/// # Safety
///
/// The object's type has managed dictionaries, and the object is being freed.
pub(super) unsafe fn drop_dict(object: NonNull<RawObject>) {
    // SAFETY: rules *dynamic* and *zero*: with the flag there is a tail, and the freeing thread has
    // exclusive access.
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

    /// Starts a second visit during a visit, as two markers do that traverse one object.
    unsafe extern "C" fn again(_: *mut RawObject, arg: *mut c_void) -> c_int {
        unsafe extern "C" fn count(_: *mut RawObject, arg: *mut c_void) -> c_int {
            // SAFETY: rule *pinned*: the counter below.
            unsafe { *arg.cast::<usize>() += 1 };
            0
        }
        // SAFETY: rule *pinned*: the argument of the visitor below. Only this function uses it now.
        unsafe {
            let (attributes, visited) = &mut *arg.cast::<(&Attributes, usize)>();
            attributes.visit(Visitor::new(count, (&raw mut *visited).cast()))
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
            // SAFETY: rule *pinned*: the argument has the visitor's type, and lies in this frame.
            let visitor = unsafe { Visitor::new(again, (&raw mut seen).cast()) };
            assert_eq!(attributes.visit(visitor), 0);
            assert_eq!(seen.1, 9);
        });
    }
}
