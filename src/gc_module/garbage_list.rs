//! The garbage list: references to unreachable objects that were not cleared.

#![forbid(unsafe_code)]

use crate::base::fallible::NoMemory;
use crate::base::sync::Mutex;
use crate::object::counted::CountedRef;

/// The garbage list. Attached threads use it under its lock. A collection adds to it between its
/// recheck and the clearing.
#[derive(Debug, Default)]
pub(super) struct GarbageList(Mutex<Vec<CountedRef>>);

impl GarbageList {
    pub(super) fn len(&self) -> usize {
        self.0.lock().len()
    }

    /// Appends the references of the iterator: all of them, or none if there is no memory.
    pub(super) fn append(
        &self,
        objects: &mut dyn ExactSizeIterator<Item = CountedRef>,
    ) -> Result<(), NoMemory> {
        let mut list = self.0.lock();
        list.try_reserve(objects.len())?;
        list.extend(objects);
        Ok(())
    }

    /// Calls `f` with an object under the lock. The list's reference keeps the object alive.
    pub(super) fn with<R>(&self, index: usize, f: impl FnOnce(&CountedRef) -> R) -> Option<R> {
        self.0.lock().get(index).map(f)
    }

    /// Calls `f` with each object under the lock, as [`with`](Self::with) does.
    pub(super) fn map<R>(&self, f: impl Fn(&CountedRef) -> R) -> Vec<R> {
        self.0.lock().iter().map(f).collect()
    }

    /// Removes one reference. The references behind it move up.
    pub(super) fn remove(&self, index: usize) -> Option<CountedRef> {
        let mut list = self.0.lock();
        (index < list.len()).then(|| list.remove(index))
    }

    /// Removes all references.
    pub(super) fn take(&self) -> Vec<CountedRef> {
        std::mem::take(&mut *self.0.lock())
    }
}
