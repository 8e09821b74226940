//! A dictionary from names to values.

#![forbid(unsafe_code)]

use std::collections::HashMap;
use std::ffi::c_int;

use crate::AnyGc;
use crate::base::fallible::{self, NoMemory};
use crate::base::sync::RwLock;
use crate::safepoint::is_traversing;

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

    /// Visits the values: 0, or the first other answer of `visit`. Outside of traversals each value
    /// has one more reference during the visit. Without memory for the list of these references, no
    /// value is visited, and the answer is -1.
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
