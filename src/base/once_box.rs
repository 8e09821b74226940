//! A pointer that owns its value and is set once.

use std::marker::PhantomData;
use std::sync::OnceLock;

use crate::base::fallible::{NoMemory, boxed};
use crate::base::sync::{AtomicPtr, Ordering};

/// A pointer that owns its value. It is null, or set once. Zeroed memory is a null one.
///
/// It is `Send` and `Sync` for the same values as std's `OnceLock`. So it is `Sync` only if the
/// value is also `Send`, because one thread may set the value and another thread may drop it.
#[repr(transparent)]
pub(crate) struct OnceBox<T>(AtomicPtr<T>, PhantomData<OnceLock<Box<T>>>);

impl<T> OnceBox<T> {
    /// The value; `None`: it was not set yet.
    #[inline(always)]
    pub(crate) fn get(&self) -> Option<&T> {
        // Acquire: pairs with the exchange in `set`.
        // SAFETY: rule *pinned*: the pointer owns a value that `set` has stored, or is null.
        unsafe { self.0.load(Ordering::Acquire).as_ref() }
    }

    /// Sets the value. If another thread was first, drops `value`, and returns the other thread's.
    pub(crate) fn set(&self, value: Box<T>) -> &T {
        let made = Box::into_raw(value);
        // AcqRel: publishes the value, or acquires the value of another thread.
        let other = self.0.compare_exchange(
            std::ptr::null_mut(),
            made,
            Ordering::AcqRel,
            Ordering::Acquire,
        );
        // SAFETY: rule *pinned*: the stored value lives as long as the pointer. No other thread has
        // the address of a loser's.
        unsafe {
            if other.is_err() {
                drop(Box::from_raw(made));
            }
            &*other.map_or_else(|theirs| theirs, |_| made)
        }
    }

    /// The value. If there is none, it makes the default value.
    pub(crate) fn get_or_default(&self) -> Result<&T, NoMemory>
    where
        T: Default,
    {
        match self.get() {
            Some(value) => Ok(value),
            None => Ok(self.set(boxed(T::default())?)),
        }
    }

    /// Takes the value out.
    ///
    /// # Safety
    ///
    /// No other thread uses the pointer, all that have used it are ordered before, and no borrow of
    /// the value is left.
    pub(crate) unsafe fn take(&self) -> Option<Box<T>> {
        // Relaxed, both: as the caller says.
        let value = self.0.load(Ordering::Relaxed);
        self.0.store(std::ptr::null_mut(), Ordering::Relaxed);
        // SAFETY: rule *pinned*: it was made from a box, and is taken back once.
        (!value.is_null()).then(|| unsafe { Box::from_raw(value) })
    }
}

impl<T> Default for OnceBox<T> {
    fn default() -> Self {
        Self(AtomicPtr::new(std::ptr::null_mut()), PhantomData)
    }
}

impl<T> Drop for OnceBox<T> {
    fn drop(&mut self) {
        // SAFETY: rule *pinned*: the caller has exclusive access.
        drop(unsafe { self.take() });
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
