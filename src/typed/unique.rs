//! A value that only one handle refers to may change in place, as in an `Arc`: an interpreter
//! appends to a string or a vector that nobody else sees, and copies it otherwise.
//!
//! Under biased counts, not each thread can tell. The owner of the object knows both halves of the
//! count, and for a merged object each thread does. Another thread does not know the half of the
//! owner, so for it the answer is *no*, although its handle may be the only one.
//!
//! The thread must not stop while it holds the `&mut`, because a collection would traverse the
//! value. So the access borrows the [`Mutator`], as the guard of a [`GcCell`](crate::GcCell) does.

use std::fmt;
use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};

use crate::managed::object;
use crate::safepoint::{is_stopping, is_traversing};
use crate::typed::gc::{Gc, Layout};
use crate::{Mutator, Trace};

impl<T: Trace> Gc<T> {
    /// Whether this is known to be the only reference to the object, and no weak reference exists.
    ///
    /// `false` also for an object that another thread owns, of another heap, or immortal, and in a
    /// stop of this thread.
    pub fn is_unique(this: &Self, m: &Mutator) -> bool {
        this.counts().is_unique(m.id())
            && m.raw().owns(object(this.header()))
            && !is_stopping()
            && !is_traversing()
    }

    /// Exclusive access to the value, if [this is the only reference](Self::is_unique).
    ///
    /// ```
    /// use standstill::{Gc, Heap};
    ///
    /// let heap = Heap::new();
    /// let m = heap.attach();
    /// let mut text = m.alloc(String::from("a"));
    /// Gc::get_mut(&mut text, &m).expect("one reference").push('b');
    /// let other = text.clone();
    /// assert!(Gc::get_mut(&mut text, &m).is_none());
    /// // Changes a copy.
    /// Gc::make_mut(&mut text, &m).push('c');
    /// assert_eq!((&**text, &**other), ("abc", "ab"));
    /// drop(other);
    /// assert_eq!(Gc::try_unwrap(text, &m), Ok(String::from("abc")));
    /// ```
    pub fn get_mut<'a>(this: &'a mut Self, m: &'a Mutator) -> Option<GcMut<'a, T>> {
        // SAFETY: rule *guarded*: no other reference exists, and the result borrows this one.
        Self::is_unique(this, m).then(|| unsafe { GcMut::new(this, m) })
    }

    /// Exclusive access to the value. If this may not be [the only reference](Self::is_unique), the
    /// handle refers to a new object with a copy of the value from now on.
    ///
    /// # Panics
    ///
    /// If the heap is full, or if this thread has stopped the heap or helps a collection.
    #[track_caller]
    pub fn make_mut<'a>(this: &'a mut Self, m: &'a Mutator) -> GcMut<'a, T>
    where
        T: Clone + Send + Sync,
    {
        if !Self::is_unique(this, m) {
            *this = m.alloc(T::clone(this));
            assert!(
                Self::is_unique(this, m),
                "this thread has stopped the heap, or helps a collection: no value may change"
            );
        }
        // SAFETY: rule *guarded*: no other reference exists, and the result borrows this one.
        unsafe { GcMut::new(this, m) }
    }

    /// The value, if [this is the only reference](Self::is_unique). The object ends, without a call
    /// of its [finalizer](Trace::FINALIZER).
    ///
    /// # Errors
    ///
    /// The unchanged handle, if this may not be the only reference.
    pub fn try_unwrap(this: Self, m: &Mutator) -> Result<T, Self> {
        if Self::is_unique(&this, m) {
            // SAFETY: rule *zero*: as just asked.
            Ok(unsafe { Self::unwrap_only(this, m) })
        } else {
            Err(this)
        }
    }

    /// The value of an object that ends.
    ///
    /// # Safety
    ///
    /// This is the only reference, and no weak one exists. The object is of the mutator's heap.
    pub(super) unsafe fn unwrap_only(this: Self, m: &Mutator) -> T {
        let (raw, place) = (m.raw(), this.value());
        if const { T::HAS_EXTERNAL_BYTES } {
            // Before the handle loses its destructor, because the function may panic.
            // SAFETY: rule *zero*: no other reference exists.
            let bytes = T::external_bytes(unsafe { &mut *place.as_ptr() });
            raw.adjust_external_bytes(bytes.cast_signed().wrapping_neg());
        }
        let this = ManuallyDrop::new(this);
        // SAFETY: rule *zero*: no other reference exists, and this one has no destructor now.
        unsafe {
            let value = place.read();
            match const { Layout::<T>::CLASS } {
                Some(class) => raw.free_of_class(this.header().cast(), class),
                None => raw.free_unprefixed(this.header().cast()),
            }
            value
        }
    }
}

/// Exclusive access to the value of an object: see [`Gc::get_mut`].
///
/// It must not be leaked, for example by [`std::mem::forget`], because what the value owns outside
/// of the heap would then be counted wrongly.
pub struct GcMut<'a, T: Trace> {
    value: &'a mut T,
    m: &'a Mutator,
    /// The bytes outside of the heap that the value owned before.
    external: usize,
}

impl<'a, T: Trace> GcMut<'a, T> {
    /// # Safety
    ///
    /// `gc` is the only reference, and this thread has not stopped the heap.
    unsafe fn new(gc: &'a mut Gc<T>, m: &'a Mutator) -> Self {
        // SAFETY: rule *guarded*: as the caller says, nobody else has access for `'a`: a collection
        // neither, because this thread does not stop while its mutator is borrowed.
        let value = unsafe { &mut *gc.value().as_ptr() };
        let external = if T::HAS_EXTERNAL_BYTES { T::external_bytes(value) } else { 0 };
        Self { value, m, external }
    }
}

impl<T: Trace> Deref for GcMut<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        self.value
    }
}

impl<T: Trace> DerefMut for GcMut<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        self.value
    }
}

impl<T: Trace> Drop for GcMut<'_, T> {
    #[inline]
    fn drop(&mut self) {
        if T::HAS_EXTERNAL_BYTES {
            let change = T::external_bytes(self.value).wrapping_sub(self.external);
            if change != 0 {
                self.m.raw().adjust_external_bytes(change.cast_signed());
            }
        }
    }
}

impl<T: Trace + fmt::Debug> fmt::Debug for GcMut<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&**self, f)
    }
}
