//! Attributes: the managed dictionary of an instance, and the dictionary of a heap type.
//!
//! Traversals read the dictionaries and must not wait, although threads may change them between two
//! stops. So an attached thread holds the lock of a dictionary only for one read or one change, and
//! never during a call of user code. Therefore no thread changes a dictionary in a stop.
//!
//! Traversals share the lock, because two workers may visit one object at once, and each must visit
//! all values. If the lock is not free, a traversal visits no value, so that all stay alive.
//!
//! The visitor of a traversal is called with the lock, because the functions that get or set an
//! attribute fail in a traverse handler. Outside of traversals they succeed, so the visitor is
//! called without the lock there.

#![cfg_attr(not(test), forbid(unsafe_code))]

use std::borrow::Cow;
use std::collections::HashMap;
use std::ffi::c_int;

use crate::base::fallible::{self, NoMemory, words};
use crate::base::sync::RwLock;
use crate::dynamic::handlers;
use crate::dynamic::object::as_raw;
use crate::dynamic::object::{Obj, Visitor, refuse_in_traversal};
use crate::dynamic::record::Flags;
use crate::heap::child;
use crate::object::tracer::Tracer;
use crate::report::error::{Code, Fault};
use crate::safepoint::is_traversing;
use crate::{AnyGc, Mutator};

/// The most references of an object that are sought among its attributes in vain.
const MOST_MISSES: usize = 256;

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

    /// Removes all values. They are dropped without the lock, because a destructor may use it.
    pub(crate) fn clear(&self) {
        let old = std::mem::take(&mut *self.0.write());
        // One by one, because after a panic a map drops no further values, while its iterator does.
        old.into_values().for_each(drop);
    }

    /// Visits the values: 0, or the first other answer of `visit`. Outside of traversals each value
    /// has one more reference during the visit, because the visitor may change the dictionary.
    /// Without memory for the list of these references, no value is visited, and the answer is -1.
    pub(crate) fn visit(&self, mut visit: impl FnMut(&AnyGc) -> c_int) -> c_int {
        if is_traversing() {
            let Some(entries) = self.0.try_read() else { return 0 };
            return visit_each(entries.values(), &mut visit);
        }
        let mut values = Vec::new();
        {
            let entries = self.0.read();
            if values.try_reserve_exact(entries.len()).is_err() {
                return -1;
            }
            values.extend(entries.values().cloned());
        }
        visit_each(values.iter(), &mut visit)
    }
}

/// Visits values up to the first with an answer other than 0, and returns that answer.
fn visit_each<'a>(
    values: impl Iterator<Item = &'a AnyGc>,
    visit: &mut dyn FnMut(&AnyGc) -> c_int,
) -> c_int {
    values.map(visit).find(|&answer| answer != 0).unwrap_or(0)
}

fn no_attribute(object: Obj<'_>, name: &str, function: &'static str) -> Fault {
    let type_name = object.record().kept_name();
    let text = words!("'{type_name}' object has no attribute '{name}'");
    Fault::new(Code::NoAttribute, function).of_type(type_name).because(text)
}

impl<'a> Obj<'a> {
    /// The dictionary of an instance, or of a heap type's object. `None`: there can be none, or it
    /// was not made yet.
    fn attributes(self) -> Option<&'a Attributes> {
        match self.slot::<Attributes>() {
            Some(slot) => slot.get(),
            None => self.describe().map(|record| &record.attributes),
        }
    }

    /// As [`attributes`](Self::attributes), but makes the dictionary at the first attribute. Fails
    /// if objects of this type can have none.
    fn make_attributes(self, function: &'static str) -> Result<&'a Attributes, Fault> {
        if let Some(slot) = self.slot::<Attributes>() {
            return Ok(slot.get_or_default()?);
        }
        self.attributes().ok_or_else(|| {
            let text = words!("objects of type '{}' have no attributes", self.record().kept_name());
            self.fault(Code::NoAttribute, function).because(text)
        })
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

    /// Names the references that are attributes, after a traversal in a stop. It takes no memory
    /// but that of the names, and in a [child](crate::heap::child) of the process not even that.
    ///
    /// A traversal visits the values in the order of the dictionary, between other references. So
    /// the search for a target goes on where the last one was found. If a thread that does not
    /// exist any more has locked the dictionary, there are no names.
    pub(super) fn name_attributes(self, tracer: &mut Tracer) {
        let entries = self.attributes().and_then(|attributes| attributes.0.try_read());
        let Some(entries) = entries else { return };
        // Where an object has many other references, each of them would be sought.
        let mut misses = MOST_MISSES;
        let mut left = entries.iter();
        tracer.name_edges(|target| {
            let is_value = |value: &AnyGc| as_raw(value).as_ptr() as usize == target;
            if misses == 0 {
                return None;
            }
            let mut ahead = left.clone();
            let found = ahead.find(|(_, value)| is_value(value)).inspect(|_| left = ahead);
            let Some((name, _)) =
                found.or_else(|| entries.iter().find(|(_, value)| is_value(value)))
            else {
                misses -= 1;
                return None;
            };
            child::kept_in_child(name).map_or_else(
                || fallible::owned(name).ok().map(Cow::Owned),
                |name| Some(Cow::Borrowed(name)),
            )
        });
    }

    /// Visits the managed dictionary's values: 0, or the visitor's answer. For traverse handlers.
    ///
    /// Outside of traversals the visitor may change the dictionary, because it receives the values
    /// from before the visit, each with one more reference until the visit ends. Without memory for
    /// the list of these references, no value is visited, and the answer is -1.
    pub fn visit_managed_dict(self, visitor: Visitor<'_>) -> c_int {
        if !self.record().flags().has(Flags::MANAGED_DICT) {
            return 0;
        }
        handlers::record_dict_visit();
        self.attributes().map_or(0, |attributes| attributes.visit(|value| visitor.visit_gc(value)))
    }

    /// Empties the managed dictionary, if the object has one. In a traverse handler it changes
    /// nothing and returns `false`, because the visit that is under way reads the dictionary.
    pub fn clear_managed_dict(self) -> bool {
        let allowed = !is_traversing();
        if allowed
            && self.record().flags().has(Flags::MANAGED_DICT)
            && let Some(attributes) = self.attributes()
        {
            attributes.clear();
        }
        allowed
    }
}

#[allow(unsafe_code)]
#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
