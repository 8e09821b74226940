//! A value with several owners, made by a fallible allocation.

use std::fmt;
use std::ptr::NonNull;

use crate::base::fallible::{NoMemory, boxed};

/// A value with several owners, as an [`Arc`]. Unlike an `Arc`, its allocation can fail as a value.
///
/// | field | access |
/// |---|---|
/// | `owners` | 1 at birth; an owner raises it for a new owner and lowers it when it ends |
/// | `value` | read by owners. The owner that lowers `owners` to 0 frees it |
pub(crate) struct Shared<T>(NonNull<SharedValue<T>>);

struct SharedValue<T> {
    owners: std::sync::atomic::AtomicUsize,
    value: T,
}

// SAFETY: rule *guarded*: as for `Arc`, the value is shared, and dropped on the thread of the last
// owner.
unsafe impl<T: Send + Sync> Send for Shared<T> {}
// SAFETY: as above.
unsafe impl<T: Send + Sync> Sync for Shared<T> {}

impl<T> Shared<T> {
    pub(crate) fn new(value: T) -> Result<Self, NoMemory> {
        let shared = boxed(SharedValue { owners: std::sync::atomic::AtomicUsize::new(1), value })?;
        Ok(Self(NonNull::from(Box::leak(shared))))
    }

    fn shared(&self) -> &SharedValue<T> {
        // SAFETY: rule *pinned*: there is an owner, so the value has not been freed.
        unsafe { self.0.as_ref() }
    }
}

impl<T> std::ops::Deref for Shared<T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        &self.shared().value
    }
}

impl<T> Clone for Shared<T> {
    fn clone(&self) -> Self {
        // Relaxed: the new owner has its access from this one. Each owner takes up memory, so the
        // number cannot overflow.
        self.shared().owners.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        Self(self.0)
    }
}

impl<T> Drop for Shared<T> {
    #[inline]
    fn drop(&mut self) {
        // AcqRel: all uses by other owners happen before the value is freed.
        if self.shared().owners.fetch_sub(1, std::sync::atomic::Ordering::AcqRel) == 1 {
            // SAFETY: rule *pinned*: this was the last owner.
            unsafe { self.free() };
        }
    }
}

impl<T> Shared<T> {
    /// Frees the value. Not inlined: most owners that end are not the last.
    ///
    /// # Safety
    ///
    /// The last owner calls this, once, and does not use the value afterwards.
    #[inline(never)]
    unsafe fn free(&mut self) {
        // SAFETY: rule *pinned*: it was made from a box, and the caller was the last owner.
        drop(unsafe { Box::from_raw(self.0.as_ptr()) });
    }
}

impl<T: fmt::Debug> fmt::Debug for Shared<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}
