//! std's `Arc` ends the process if memory runs out. So threads share values by types whose
//! allocation can fail: a value with several owners, a place for an owner, and a box that is set
//! once.

use std::fmt;
use std::marker::PhantomData;
use std::mem::{ManuallyDrop, MaybeUninit};
use std::ptr::NonNull;
use std::sync::OnceLock;

use crate::base::fallible::{NoMemory, boxed};
use crate::base::sync::{AtomicPtr, Ordering};

/// A value with several owners, like std's `Arc`, except that its allocation can fail as a value.
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

/// Memory for a [`Shared`] value.
pub(crate) struct SharedRoom<T>(Box<MaybeUninit<SharedValue<T>>>);

impl<T> SharedRoom<T> {
    pub(crate) fn new() -> Result<Self, NoMemory> {
        Ok(Self(boxed(MaybeUninit::uninit())?))
    }
}

impl<T> Shared<T> {
    pub(crate) fn new(value: T) -> Result<Self, NoMemory> {
        Ok(Self::new_in(SharedRoom::new()?, value))
    }

    /// Gives the reference up as an address.
    pub(crate) fn into_raw(self) -> NonNull<()> {
        ManuallyDrop::new(self).0.cast()
    }

    /// Takes the reference back.
    ///
    /// # Safety
    ///
    /// The address is a result of [`into_raw`](Self::into_raw) for this type, once.
    pub(crate) unsafe fn from_raw(address: NonNull<()>) -> Self {
        Self(address.cast())
    }

    /// As [`new`](Self::new), in memory that is there already.
    pub(crate) fn new_in(room: SharedRoom<T>, value: T) -> Self {
        let owners = std::sync::atomic::AtomicUsize::new(1);
        Self(NonNull::from(Box::leak(room.0).write(SharedValue { owners, value })))
    }

    /// The value and its memory, if this is the last owner. Otherwise `None`, and this owner is
    /// dropped, so that there is one less.
    pub(crate) fn into_inner(self) -> Option<(T, SharedRoom<T>)> {
        // Acquire: all uses by owners that have ended come before the move. No owner can appear
        // afterwards, because only an owner makes another, and the last one is here.
        if self.shared().owners.load(std::sync::atomic::Ordering::Acquire) != 1 {
            return None;
        }
        let this = ManuallyDrop::new(self);
        // SAFETY: rule *pinned*: it was made from a box, and this was the last owner, which is not
        // dropped. The value is moved out of the box once.
        unsafe {
            let room = Box::from_raw(this.0.as_ptr().cast::<MaybeUninit<SharedValue<T>>>());
            Some((room.assume_init_read().value, SharedRoom(room)))
        }
    }

    /// Two owners of a new value.
    pub(crate) fn pair(value: T) -> Result<[Self; 2], NoMemory> {
        let one = Self::made(value, 2)?;
        let other = Self(one.0);
        Ok([one, other])
    }

    fn made(value: T, owners: usize) -> Result<Self, NoMemory> {
        let owners = std::sync::atomic::AtomicUsize::new(owners);
        let shared = boxed(SharedValue { owners, value })?;
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
        // Relaxed, because the new owner has its access from this one. The number cannot overflow,
        // because each owner takes up memory.
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
    /// Frees the value. Not inlined, because most owners that end are not the last.
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

/// A place for an owner, which is empty at first.
pub(crate) struct SharedSlot<T>(AtomicPtr<SharedValue<T>>);

impl<T> SharedSlot<T> {
    /// The value.
    ///
    /// # Safety
    ///
    /// No other thread changes the place while the result is used, and all that have changed it are
    /// ordered before.
    #[inline(always)]
    pub(crate) unsafe fn get(&self) -> Option<&T> {
        // Relaxed: as the caller says.
        // SAFETY: rule *pinned*: the place has an owner as long as it is not empty.
        unsafe { self.0.load(Ordering::Relaxed).as_ref() }.map(|shared| &shared.value)
    }

    /// Whether the value has another owner than the place.
    ///
    /// # Safety
    ///
    /// As for [`get`](Self::get). No thread makes a further owner from the place meanwhile.
    #[cfg_attr(not(feature = "cpython"), allow(dead_code, reason = "only `dynamic` calls it"))]
    pub(crate) unsafe fn is_shared(&self) -> bool {
        // Relaxed: as the caller says. Acquire: all uses by owners that have ended come before what
        // the caller does next. Without another owner, no owner can be made but from the place.
        // SAFETY: rule *pinned*: the place has an owner as long as it is not empty.
        unsafe { self.0.load(Ordering::Relaxed).as_ref() }
            .is_some_and(|it| it.owners.load(std::sync::atomic::Ordering::Acquire) > 1)
    }

    /// A further owner of the value.
    ///
    /// # Safety
    ///
    /// No thread empties the place during the call.
    #[inline(always)]
    pub(crate) unsafe fn share(&self) -> Option<Shared<T>> {
        // Acquire: pairs with the exchange in `fill`.
        Some(Self::further(NonNull::new(self.0.load(Ordering::Acquire))?))
    }

    /// A further owner of a value that the place owns.
    fn further(owned: NonNull<SharedValue<T>>) -> Shared<T> {
        // Not dropped, because the place itself is this owner.
        let owner = std::mem::ManuallyDrop::new(Shared(owned));
        Shared::clone(&owner)
    }

    /// Puts an owner into the place. If another thread was first, drops `value` and returns a
    /// further owner of the other thread's value.
    ///
    /// # Safety
    ///
    /// As for [`share`](Self::share).
    pub(crate) unsafe fn fill(&self, value: Shared<T>) -> Option<Shared<T>> {
        // AcqRel: publishes the value, or acquires the value of another thread.
        let filled = self.0.compare_exchange(
            std::ptr::null_mut(),
            value.0.as_ptr(),
            Ordering::AcqRel,
            Ordering::Acquire,
        );
        let Err(theirs) = filled else {
            std::mem::forget(value);
            return None;
        };
        NonNull::new(theirs).map(Self::further)
    }

    /// Takes the owner out of the place.
    ///
    /// # Safety
    ///
    /// No other thread uses the place, and all that have used it are ordered before.
    #[inline(always)]
    pub(crate) unsafe fn take(&self) -> Option<Shared<T>> {
        // Relaxed, both: as the caller says.
        let owner = NonNull::new(self.0.load(Ordering::Relaxed))?;
        self.0.store(std::ptr::null_mut(), Ordering::Relaxed);
        Some(Shared(owner))
    }
}

impl<T> Default for SharedSlot<T> {
    fn default() -> Self {
        Self(AtomicPtr::new(std::ptr::null_mut()))
    }
}

impl<T> Drop for SharedSlot<T> {
    fn drop(&mut self) {
        // SAFETY: rule *pinned*: the caller has exclusive access.
        drop(unsafe { self.take() });
    }
}

// SAFETY: rule *guarded*: the place is an owner, or empty.
unsafe impl<T: Send + Sync> Send for SharedSlot<T> {}
// SAFETY: as above.
unsafe impl<T: Send + Sync> Sync for SharedSlot<T> {}

/// A pointer that owns its value, and is null until it is set once, so that zeroed memory is a null
/// one.
///
/// It is `Send` and `Sync` for the same values as std's `OnceLock`. It is `Sync` only if the value
/// is also `Send`, because one thread may set the value and another may drop it.
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

    /// The value, which is the default value if none was set before.
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
