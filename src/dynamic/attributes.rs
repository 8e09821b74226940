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

#![cfg_attr(not(test), forbid(unsafe_code))]

use std::ffi::c_int;

use crate::base::error::{Code, Fault};
use crate::base::fallible;
use crate::base::text::words;
use crate::dynamic::dictionary::Attributes;
use crate::dynamic::handlers;
use crate::dynamic::object::{Obj, Visitor, refuse_in_traversal};
use crate::dynamic::record::Flags;
use crate::safepoint::is_traversing;
use crate::{AnyGc, Mutator};

fn no_attribute(object: Obj<'_>, name: &str, function: &'static str) -> Fault {
    let type_name = object.record().kept_name();
    let text = words!("'{type_name}' object has no attribute '{name}'");
    Fault::new(Code::NoAttribute, function).of_type(type_name).because(text)
}

impl<'a> Obj<'a> {
    /// The dictionary of an instance, or of a heap type's object. `None`: there can be none, or it
    /// was not made yet.
    fn attributes(self) -> Option<&'a Attributes> {
        match self.tail::<Attributes>() {
            Some(slot) => slot.get(),
            None => self.describe().map(|record| &record.attributes),
        }
    }

    /// As [`attributes`](Self::attributes), but makes the dictionary. Fails if its type has none.
    fn make_attributes(self, function: &'static str) -> Result<&'a Attributes, Fault> {
        if let Some(attributes) = self.attributes() {
            return Ok(attributes);
        }
        let Some(slot) = self.tail::<Attributes>() else {
            let text = words!("objects of type '{}' have no attributes", self.record().kept_name());
            return Err(self.fault(Code::NoAttribute, function).because(text));
        };
        Ok(slot.set(fallible::boxed(Attributes::default())?))
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
        self.attributes().map_or(0, |attributes| attributes.visit(|value| visitor.visit_gc(value)))
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

#[allow(unsafe_code)]
#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use std::ffi::c_void;

    use super::*;
    use crate::Heap;
    use crate::dynamic::object::RawObject;

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
            let visitor = Visitor::new(count, (&raw mut *visited).cast());
            attributes.visit(|value| visitor.visit_gc(value))
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
            assert_eq!(attributes.visit(|value| visitor.visit_gc(value)), 0);
            assert_eq!(seen.1, 9);
        });
    }
}
