//! Handles without a type, or without a destructor, for code in another language and for tagged
//! words.
//!
//! A raw form *is* the reference: the count does not change, and nobody drops it. So it may move to
//! any thread, and become a handle again there, attached or not, also after its heap has closed.

use std::ptr::NonNull;

use crate::object::header::Header;
use crate::typed::any::AnyGc;
use crate::typed::gc::{Gc, Layout};

impl<T> Gc<T> {
    /// Gives the reference up as the address of the value. [`from_raw`](Self::from_raw) takes it
    /// back, once. Otherwise the object is never freed.
    ///
    /// If the address lies in a field of an object, the collector does not know of the reference,
    /// so that the target and all that it reaches stay alive.
    ///
    /// ```
    /// use standstill::{Gc, Heap};
    ///
    /// let heap = Heap::new();
    /// let m = heap.attach();
    /// let address = Gc::into_raw(m.alloc(7u32)).expose_provenance();
    /// // In a tagged word, in C, or on another thread.
    /// let value = std::ptr::with_exposed_provenance(address);
    /// // SAFETY: of `into_raw`, with the same type, once.
    /// let gc: Gc<u32> = unsafe { Gc::from_raw(value) };
    /// assert_eq!(*gc, 7);
    /// ```
    pub fn into_raw(this: Self) -> *const T {
        let value = Self::as_ptr(&this);
        // The reference belongs to the address now.
        this.into_header();
        value
    }

    /// Takes back the reference that [`into_raw`](Self::into_raw) has given up.
    ///
    /// # Safety
    ///
    /// The address is a result of `into_raw` of this type, and nobody has taken its reference back.
    /// It may have been an integer with exposed provenance meanwhile, but not a `&T`, because the
    /// handle also accesses memory in front of the value.
    pub unsafe fn from_raw(value: *const T) -> Self {
        // SAFETY: rules *typed* and *counted*: the value of an object of this type, with a
        // reference that the caller gives up.
        unsafe {
            let header = value.cast::<u8>().sub(Layout::<T>::OFFSET).cast_mut();
            Self::from_header(NonNull::new_unchecked(header.cast::<Header>()))
        }
    }

    /// Whether both handles refer to the same object, as `==` does.
    pub fn ptr_eq(this: &Self, other: &Self) -> bool {
        this.header() == other.header()
    }
}

impl AnyGc {
    /// Gives the reference up as an address, which is not that of the value.
    /// [`from_raw`](Self::from_raw) takes it back, once. Otherwise the object is never freed. See
    /// [`Gc::into_raw`].
    pub fn into_raw(self) -> NonNull<()> {
        self.into_header().cast()
    }

    /// Takes back the reference that [`into_raw`](Self::into_raw) has given up.
    ///
    /// # Safety
    ///
    /// The address is a result of `AnyGc::into_raw`, and nobody has taken its reference back.
    pub unsafe fn from_raw(address: NonNull<()>) -> Self {
        // SAFETY: rule *counted*: the reference that the caller gives up.
        unsafe { Self::from_header(address.cast()) }
    }

    /// Whether both handles refer to the same object, as `==` does.
    pub fn ptr_eq(this: &Self, other: &Self) -> bool {
        this.header() == other.header()
    }
}
