//! A list of objects of many types, such as a registry or an interpreter's values, needs one type
//! of handle for all. An `AnyGc` has no type, but can recover that of its object.

use std::any::TypeId;
use std::fmt;
use std::mem::ManuallyDrop;
use std::ptr::NonNull;

use crate::managed::{self, drop_reference, object};
#[cfg(feature = "cpython")]
use crate::memory::range::is_in_any_heap;
use crate::object::handle_places;
use crate::object::header::Header;
use crate::object::live::Live;
use crate::object::tracer::{Edge, Tracer};
use crate::object::type_info::TypeInfo;
use crate::safepoint::current;
use crate::typed::gc::{Gc, Layout, check, handle, identity};
use crate::typed::heap::DynamicTypes;
use crate::typed::slice::{GcSlice, HeaderSlice};
use crate::{Mutator, Trace};

impl Tracer {
    /// Reports a reference without its type.
    #[inline(always)]
    pub fn visit_any(&mut self, gc: &AnyGc) {
        self.edge(gc.header.as_ptr() as usize);
    }
}

impl<T: Trace> Gc<T> {
    /// Converts the handle to one without a type. The reference count is unchanged.
    pub fn into_any(this: Self) -> AnyGc {
        AnyGc { header: this.into_header() }
    }
}

impl<T> Gc<T> {
    /// The same reference without its type, borrowed.
    pub(super) fn as_any(this: &Self) -> &AnyGc {
        // SAFETY: rule *typed*: both handles are transparent over the address of the header.
        unsafe { &*std::ptr::from_ref(this).cast() }
    }
}

/// A [`Gc`] without its type.
///
/// It is a counted reference of one word, for registries, the values of an interpreter, and
/// inspection.
///
/// ```
/// use standstill::{AnyGc, Gc, Heap};
///
/// let heap = Heap::new();
/// let m = heap.attach();
/// let any = Gc::into_any(m.alloc(7u32));
/// assert_eq!(any.downcast_ref::<u32>(&m), Some(&7));
/// assert!(any.downcast::<String>(&m).is_err());
/// ```
#[repr(transparent)]
pub struct AnyGc {
    header: NonNull<Header>,
}

// SAFETY: rule *guarded*: objects are `Send + Sync` when they are allocated.
unsafe impl Send for AnyGc {}
// SAFETY: as above.
unsafe impl Sync for AnyGc {}

impl AnyGc {
    /// Takes over a counted reference.
    ///
    /// # Safety
    ///
    /// The caller owns a reference to the object and gives the reference up.
    pub(crate) unsafe fn from_header(header: NonNull<Header>) -> Self {
        Self { header }
    }

    /// Takes over a counted reference.
    #[cfg(any(test, feature = "cpython"))]
    pub(crate) fn from_reference(reference: managed::CountedRef) -> Self {
        Self { header: reference.into_ptr() }
    }

    pub(crate) fn header(&self) -> NonNull<Header> {
        self.header
    }

    #[inline(always)]
    pub(crate) fn header_ref(&self) -> &Header {
        // SAFETY: rule *counted*: this reference keeps the object alive.
        unsafe { self.header.as_ref() }
    }

    /// Retires the reference, which was in a slot, because other threads may have read it there,
    /// and may still use the object.
    #[cfg(feature = "cpython")]
    pub(crate) fn retire(self) {
        let address = self.header.as_ptr() as usize;
        if self.header_ref().is_static() && !is_in_any_heap(address) {
            // A static object never dies.
            return;
        }
        // SAFETY: rule *counted*: this handle owned the reference.
        let mut reference = Some(unsafe { managed::CountedRef::new(self.into_header()) });
        Mutator::with_current(|m| {
            if let Some(reference) = reference.take_if(|it| m.raw().owns(it.object())) {
                managed::retire(m.raw(), reference);
            }
        });
        if let Some(reference) = reference {
            managed::retire_elsewhere(reference);
        }
    }

    pub(super) fn into_header(self) -> NonNull<Header> {
        ManuallyDrop::new(self).header
    }

    #[track_caller]
    fn info(&self, m: &Mutator) -> &'static TypeInfo {
        check(self.header, m);
        m.raw().model().types.get(self.header_ref().type_index())
    }

    /// The name of the object's type.
    ///
    /// For a typed object it is the result of [`std::any::type_name`]. For a dynamic object it is
    /// the name of its dynamic type.
    ///
    /// # Panics
    ///
    /// If the object belongs to another heap than the mutator.
    #[track_caller]
    pub fn type_name<'a>(&'a self, m: &'a Mutator) -> &'a str {
        let info = self.info(m);
        match DynamicTypes::of(info) {
            Some(types) => (types.type_name)(self, m),
            // SAFETY: rules *counted* and *typed*: this reference keeps the object alive.
            None => unsafe { (info.name)(self.header) },
        }
    }

    /// Whether the value is a `T`.
    ///
    /// # Panics
    ///
    /// If the object belongs to another heap than the mutator.
    #[track_caller]
    pub fn is<T: ?Sized + 'static>(&self, m: &Mutator) -> bool {
        (self.info(m).id)() == TypeId::of::<T>()
    }

    /// Converts the handle to a typed one.
    ///
    /// # Errors
    ///
    /// If the value is not a `T`. The error is the unchanged handle.
    ///
    /// # Panics
    ///
    /// If the object belongs to another heap than the mutator.
    #[track_caller]
    pub fn downcast<T: Trace>(self, m: &Mutator) -> Result<Gc<T>, Self> {
        if self.is::<T>(m) {
            // SAFETY: rules *typed* and *counted*: the value is a `T`; the new handle takes over
            // the reference.
            Ok(unsafe { Gc::from_header(self.into_header()) })
        } else {
            Err(self)
        }
    }

    /// Converts the handle to that of a slice, as [`downcast`](Self::downcast).
    ///
    /// # Errors
    ///
    /// If the object is no such slice. The error is the unchanged handle.
    ///
    /// # Panics
    ///
    /// If the object belongs to another heap than the mutator.
    #[track_caller]
    pub fn downcast_slice<H: Trace, T: Trace>(self, m: &Mutator) -> Result<GcSlice<H, T>, Self> {
        if self.is::<HeaderSlice<H, [T]>>(m) {
            // SAFETY: rules *typed* and *counted*: as in `downcast`.
            Ok(unsafe { GcSlice::from_header(self.into_header()) })
        } else {
            Err(self)
        }
    }

    /// The value, if it is a `T`.
    ///
    /// # Panics
    ///
    /// If the object belongs to another heap than the mutator.
    #[track_caller]
    pub fn downcast_ref<'a, T: Trace>(&'a self, m: &'a Mutator) -> Option<&'a T> {
        self.is::<T>(m).then(|| {
            // SAFETY: rules *typed* and *counted*: the value is a `T`; this reference keeps the
            // object alive for `'a`.
            unsafe { self.header.cast::<u8>().add(Layout::<T>::OFFSET).cast::<T>().as_ref() }
        })
    }

    /// The number of references to the object, for statistics: see [`Gc::strong_count`].
    pub fn strong_count(&self) -> usize {
        match self.header_ref().count() {
            // The halves are read one after the other, so other threads may make the sum wrong. But
            // this handle is a reference.
            Some(count) => usize::try_from(count).map_or(1, |count| count.max(1)),
            None => usize::MAX,
        }
    }

    /// Whether the object is in the tracked set.
    ///
    /// # Panics
    ///
    /// If the object belongs to another heap than the mutator.
    #[track_caller]
    pub fn is_tracked(&self, m: &Mutator) -> bool {
        check(self.header, m);
        // SAFETY: rule *counted*: alive, and of this heap.
        unsafe { m.raw().is_tracked(object(self.header)) }
    }

    /// Adds the object to the tracked set, as [`Gc::track`] does. If the type of a dynamic object
    /// takes no part in cycle collection, the object stays untracked, and the result is `false`.
    ///
    /// # Panics
    ///
    /// If the object belongs to another heap than the mutator.
    #[track_caller]
    pub fn track(&self, m: &Mutator) -> bool {
        let info = self.info(m);
        if DynamicTypes::of(info).is_some_and(|types| !(types.takes_part)(self, m)) {
            return false;
        }
        // SAFETY: as in `is_tracked`.
        unsafe { m.raw().track(object(self.header)) }
    }

    /// Removes the object from the tracked set, as [`Gc::untrack`] does.
    ///
    /// # Panics
    ///
    /// If the object belongs to another heap than the mutator.
    #[track_caller]
    pub fn untrack(&self, m: &Mutator) -> bool {
        check(self.header, m);
        // SAFETY: as in `is_tracked`.
        unsafe { m.raw().untrack(object(self.header)) }
    }

    /// Whether the finalizer of the object has been called.
    ///
    /// # Panics
    ///
    /// If the object belongs to another heap than the mutator.
    #[track_caller]
    pub fn is_finalized(&self, m: &Mutator) -> bool {
        check(self.header, m);
        // SAFETY: as in `is_tracked`.
        unsafe { m.raw().is_finalized(object(self.header)) }
    }

    /// Makes the object immortal, as [`Gc::immortalize`] does.
    ///
    /// # Panics
    ///
    /// If the object belongs to another heap than the mutator.
    #[track_caller]
    pub fn immortalize(&self, m: &Mutator) {
        check(self.header, m);
        self.header_ref().make_immortal();
    }
}

impl DynamicTypes {
    /// The dynamic types, if `info` is their table.
    fn of(info: &TypeInfo) -> Option<&'static Self> {
        crate::EXTENSIONS.dynamic.as_ref().filter(|types| std::ptr::eq(info, types.info))
    }
}

impl<T: Trace> From<Gc<T>> for AnyGc {
    fn from(gc: Gc<T>) -> Self {
        Gc::into_any(gc)
    }
}

identity!([] AnyGc, header);
handle!([] AnyGc, |this| this.header);

impl Clone for AnyGc {
    #[inline(always)]
    #[cfg_attr(feature = "handle-places", track_caller)]
    fn clone(&self) -> Self {
        self.header_ref().clone_ref(current());
        handle_places::made(self.header.as_ptr() as usize);
        Self { header: self.header }
    }
}

impl Drop for AnyGc {
    #[inline(always)]
    fn drop(&mut self) {
        // SAFETY: rule *counted*: this value owned a reference.
        unsafe { drop_reference(self.header) };
    }
}

impl fmt::Pointer for AnyGc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Pointer::fmt(&self.header, f)
    }
}

impl fmt::Debug for AnyGc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AnyGc({:p})", self.header)
    }
}

impl Mutator {
    /// A new reference to an object of this heap.
    pub(crate) fn any_from(&self, object: Live<'_>) -> AnyGc {
        object.header().clone_ref(self.id());
        handle_places::made(object.object().address());
        // SAFETY: rule *counted*: the reference just counted.
        unsafe { AnyGc::from_header(managed::header(object.object())) }
    }
}
