//! Floor 5: objects that full collections start from.

use std::fmt;
use std::sync::Arc;

use crate::AnyGc;
use crate::heap::known_roots::KnownRoots;
use crate::object::type_info::Object;
use crate::typed::heap::Heap;

impl Heap {
    /// Names an object from which much of the heap is reached, and which will live long: a module table, an
    /// interpreter's root frame.
    ///
    /// A hint, which makes full collections faster: whatever the named objects lead to is marked first, and looked at
    /// once instead of twice. What is collected is the same with and without. The object is held, and the
    /// name is valid, as long as the returned value lives.
    ///
    /// # Panics
    ///
    /// When the object belongs to another heap.
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

/// An object that full collections start from. Made by [`Heap::known_root`]; to drop it withdraws the hint, and the
/// reference.
#[must_use = "the hint is withdrawn when this is dropped"]
pub struct KnownRoot {
    key: u64,
    names: Arc<KnownRoots>,
    /// Dropped after the name is gone: rule R of `roots`.
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
