//! A trait object needs its table of functions beside the address of the value, so a handle to it
//! has two words, as an `Arc<dyn Trait>`. The header lies in front of the value, at a distance that
//! the alignment of the value determines, which the table of functions knows.
//!
//! Stable Rust makes a wide pointer from a thin one only by a coercion at a place where both types
//! are known. So [`gc_dyn!`](crate::gc_dyn) is a macro.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::ptr::NonNull;

use crate::Trace;
use crate::managed::drop_reference;
use crate::object::handle_places;
use crate::object::header::Header;
use crate::object::tracer::{Edge, Tracer};
use crate::safepoint::current;
use crate::typed::any::AnyGc;
use crate::typed::gc::handle;

/// Converts a [`Gc`](crate::Gc) to a [`GcDyn`] of a type to which a pointer to the value coerces,
/// such as a trait object. The reference count is unchanged.
///
/// ```
/// use std::fmt::Display;
/// use standstill::{GcDyn, Heap, gc_dyn};
///
/// let heap = Heap::new();
/// let m = heap.attach();
/// type Shown = dyn Display + Send + Sync;
/// let shown: [GcDyn<Shown>; 2] =
///     [gc_dyn!(m.alloc(1u8) => Shown), gc_dyn!(m.alloc("two".to_owned()) => Shown)];
/// assert_eq!(shown[1].to_string(), "two");
/// ```
#[macro_export]
macro_rules! gc_dyn {
    ($gc:expr => $wide:ty) => {{
        let value = $crate::Gc::into_raw($gc);
        // A coercion, and no cast, so that it changes only the type.
        let value: *const $wide = value;
        // SAFETY: rule *counted*: of a `Gc`'s `into_raw`, and coerced once.
        unsafe { $crate::GcDyn::<$wide>::from_raw(value) }
    }};
}

/// A [`Gc`](crate::Gc) that dereferences to a trait object, on stable Rust: see
/// [`gc_dyn!`](crate::gc_dyn). It has two words, and so has an `Option` of it.
///
/// An access follows one pointer, while an access through a `Gc<Box<dyn Trait>>` follows two.
pub struct GcDyn<D: ?Sized> {
    value: NonNull<D>,
}

// SAFETY: rule *guarded*: as for `Gc`: threads share the value, and any thread may drop the object.
unsafe impl<D: ?Sized + Sync> Send for GcDyn<D> {}
// SAFETY: as above. The object itself is `Send + Sync`. Threads only share `&D`, so `D` needs
// `Sync` alone.
unsafe impl<D: ?Sized + Sync> Sync for GcDyn<D> {}

impl<D: ?Sized> GcDyn<D> {
    /// Gives the reference up as a wide address of the value, as [`Gc::into_raw`] does.
    /// [`from_raw`](Self::from_raw) takes it back, once.
    ///
    /// [`Gc::into_raw`]: crate::Gc::into_raw
    pub fn into_raw(this: Self) -> *const D {
        ManuallyDrop::new(this).value.as_ptr()
    }

    /// Takes back a reference that `into_raw` has given up: of a `GcDyn`, or of a
    /// [`Gc`](crate::Gc) whose address was coerced.
    ///
    /// # Safety
    ///
    /// As for [`Gc::from_raw`](crate::Gc::from_raw). The address has the metadata of the value.
    pub unsafe fn from_raw(value: *const D) -> Self {
        // SAFETY: as the caller says, the address of a value.
        Self { value: unsafe { NonNull::new_unchecked(value.cast_mut()) } }
    }

    /// Converts the handle to one without a type. The reference count is unchanged.
    pub fn into_any(this: Self) -> AnyGc {
        // SAFETY: rule *counted*: the new handle takes over the reference.
        unsafe { AnyGc::from_header(ManuallyDrop::new(this).header()) }
    }

    /// Whether both handles refer to the same object, as `==` does.
    pub fn ptr_eq(this: &Self, other: &Self) -> bool {
        this.value.cast::<()>() == other.value.cast::<()>()
    }

    #[inline(always)]
    fn header(&self) -> NonNull<Header> {
        // The distance of `Layout::OFFSET`, because alignments are powers of two.
        let distance = align_of_val(&**self).max(size_of::<Header>());
        // SAFETY: rule *typed*: the value lies at this distance behind its header.
        unsafe { self.value.cast::<u8>().sub(distance).cast() }
    }
}

handle!([D: ?Sized + 'static] GcDyn<D>, |this| this.header());

impl<D: ?Sized> Deref for GcDyn<D> {
    type Target = D;

    #[inline(always)]
    fn deref(&self) -> &D {
        // SAFETY: rule *counted*: this reference keeps the object alive, and no `&mut` to its value
        // exists.
        unsafe { self.value.as_ref() }
    }
}

impl<D: ?Sized> Clone for GcDyn<D> {
    #[inline]
    #[cfg_attr(feature = "handle-places", track_caller)]
    fn clone(&self) -> Self {
        let header = self.header();
        // SAFETY: rule *counted*: this reference keeps the object alive.
        unsafe { header.as_ref() }.clone_ref(current());
        handle_places::made(header.as_ptr() as usize);
        Self { value: self.value }
    }
}

impl<D: ?Sized> Drop for GcDyn<D> {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: rule *counted*: this value owned a reference.
        unsafe { drop_reference(self.header()) };
    }
}

impl<D: ?Sized> PartialEq for GcDyn<D> {
    /// Whether both refer to the same object.
    fn eq(&self, other: &Self) -> bool {
        Self::ptr_eq(self, other)
    }
}

impl<D: ?Sized> Eq for GcDyn<D> {}

impl<D: ?Sized> Hash for GcDyn<D> {
    /// The identity of the object, as in `==`.
    fn hash<S: Hasher>(&self, state: &mut S) {
        self.value.cast::<()>().hash(state);
    }
}

impl<D: ?Sized> fmt::Debug for GcDyn<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "GcDyn<{}>({:p})", std::any::type_name::<D>(), self.header())
    }
}
