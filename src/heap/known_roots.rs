//! The roots that a runtime has named, for example its modules and interned strings.
//!
//! The list is a hint. A named object is held, so it is alive, and so are all objects reachable
//! from it. A full collection marks them first, and neither counts nor traverses them again. A
//! collection finds the same garbage with and without the list.

#![forbid(unsafe_code)]

use std::collections::HashMap;

use crate::base::fallible::{self, NoMemory};
use crate::base::settings_lock::Setting;
use crate::object::type_info::Object;

/// The named roots of one heap.
///
/// Each entry belongs to a handle that holds a reference to the object. The entry is removed before
/// the reference is dropped. So an object that is listed while the world is stopped is alive until
/// the world resumes.
#[derive(Debug, Default)]
pub(crate) struct KnownRoots(Setting<RootTable>);

#[derive(Debug, Default)]
struct RootTable {
    by_key: HashMap<u64, Object>,
    last: u64,
}

impl KnownRoots {
    /// Adds a root. The key removes it.
    pub(crate) fn add(&self, object: Object) -> u64 {
        self.0.with(|entries| {
            entries.last += 1;
            entries.by_key.insert(entries.last, object);
            entries.last
        })
    }

    /// Removes a root.
    pub(crate) fn remove(&self, key: u64) {
        self.0.with(|entries| entries.by_key.remove(&key));
    }

    /// The present roots.
    pub(crate) fn list(&self) -> Result<Vec<Object>, NoMemory> {
        self.0.with(|entries| fallible::collect(entries.by_key.values().copied()))
    }
}
