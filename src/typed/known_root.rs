//! Objects from which full collections start.

#![forbid(unsafe_code)]

use std::fmt;
use std::sync::Arc;

use crate::AnyGc;
use crate::heap::known_roots::KnownRoots;
use crate::object::type_info::Object;
use crate::typed::heap::Heap;

impl Heap {
    /// Names a long-lived object from which much of the heap is reachable, such as a module table
    /// or an interpreter's root frame.
    ///
    /// This is a hint that makes full collections faster. Objects reachable from named objects are
    /// marked first, and traversed once instead of twice. The hint does not change which objects
    /// are collected. The returned value holds a reference to the object, and the hint is valid as
    /// long as that value is alive.
    ///
    /// # Panics
    ///
    /// If the object belongs to another heap.
    #[track_caller]
    pub fn known_root(&self, root: impl Into<AnyGc>) -> KnownRoot {
        let root = root.into();
        let object = Object::new(root.header().cast());
        assert!(
            self.core().space.contains(object.address()),
            "`Heap::known_root` was given an object of another heap; name it to its own heap"
        );
        let names = Arc::clone(&self.core().roots);
        KnownRoot { key: names.add(object), names, _root: root }
    }
}

/// An object from which full collections start. Made by [`Heap::known_root`]. The drop withdraws
/// the hint and drops the reference.
#[must_use = "the hint is withdrawn when this is dropped"]
pub struct KnownRoot {
    key: u64,
    names: Arc<KnownRoots>,
    /// Dropped after the name is removed: rule *counted* of `known_roots`.
    _root: AnyGc,
}

impl Drop for KnownRoot {
    fn drop(&mut self) {
        self.names.remove(self.key);
    }
}

impl fmt::Debug for KnownRoot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("KnownRoot").field(&self._root).finish()
    }
}
