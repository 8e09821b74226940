//! Floor 2: the roots that a runtime has named, its modules and interned strings, say.
//!
//! They are a hint. An object that is named is held, so it is alive, and so is all it leads to: a full
//! collection marks that first, and neither counts it nor looks at it twice. What is found to be garbage is
//! the same with and without.

#![forbid(unsafe_code)]

use std::collections::HashMap;

use crate::base::fallible::{self, NoMemory};
use crate::base::sync::Mutex;
use crate::object::type_info::Object;

/// The named roots of one heap.
///
/// Each entry belongs to a handle that holds a reference to the object, and is taken out before that reference is
/// dropped. Hence the rule **R**: an object listed while the world is stopped is alive until it resumes.
#[derive(Debug, Default)]
pub(crate) struct KnownRoots(Mutex<Entries>);

#[derive(Debug, Default)]
struct Entries {
    by_key: HashMap<u64, Object>,
    last: u64,
}

impl KnownRoots {
    /// Names a root; the key is for taking the name away.
    pub(crate) fn add(&self, object: Object) -> u64 {
        let mut entries = self.0.lock();
        entries.last += 1;
        let key = entries.last;
        entries.by_key.insert(key, object);
        key
    }

    /// Takes a name away.
    pub(crate) fn remove(&self, key: u64) {
        self.0.lock().by_key.remove(&key);
    }

    /// The objects named now.
    pub(crate) fn list(&self) -> Result<Vec<Object>, NoMemory> {
        fallible::collect(self.0.lock().by_key.values().copied())
    }
}
