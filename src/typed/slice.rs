//! An interpreter's tuple has a length that is known only when it is made, and a `Vec` for its
//! items would be a second allocation. So a `GcSlice` refers to one object with a header and items,
//! whose number is fixed at the allocation.
//!
//! ```text
//! | Header | length | HeaderSlice<H, [T]>: header, items … |
//! ```
//!
//! The handle is one word, because the length is stored in the object, and an access makes the wide
//! reference from both.

use std::alloc::Layout;
use std::any::{TypeId, type_name};
use std::fmt;
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::panic::resume_unwind;
use std::ptr::NonNull;

use crate::base::outside;
use crate::managed::{self, Raw, drop_reference, object};
use crate::memory::shape::GRANULE;
use crate::object::address::Object;
use crate::object::handle_places;
use crate::object::header::Header;
use crate::object::state;
use crate::object::tracer::{Edge, Ends, Tracer};
use crate::object::type_info::TypeInfo;
use crate::report::error::{AllocError, OutOfMemory};
use crate::report::facts::During;
use crate::safepoint::current;
use crate::typed::any::AnyGc;
use crate::typed::gc::{handle, identity, offset, out_of_memory};
use crate::typed::mutator::mutator;
use crate::{Mutator, Trace};

/// The value of a [`GcSlice`]: a header followed by items, in one piece of memory.
#[derive(Debug)]
#[repr(C)]
pub struct HeaderSlice<H, S: ?Sized> {
    /// The single value in front of the items.
    pub header: H,
    /// The items; `[T]` in a [`GcSlice`].
    pub items: S,
}

impl<H, S: ?Sized> Deref for HeaderSlice<H, S> {
    type Target = S;

    #[inline]
    fn deref(&self) -> &S {
        &self.items
    }
}

/// Builds the function table of slice objects with a header `H` and items `T`.
struct Sliced<H, T>(PhantomData<(H, T)>);

impl<H: Trace, T: Trace> Sliced<H, T> {
    const ALIGN: usize = align_of::<HeaderSlice<H, [T; 0]>>();
    /// The distance from the object's start to the length, in bytes.
    const LEN: usize = offset(align_of::<usize>());
    /// The distance from the object's start to the value, in bytes.
    const VALUE: usize = {
        // Fails at compile time if the alignment is too large for an object.
        let _ = offset(Self::ALIGN);
        (Self::LEN + size_of::<usize>()).next_multiple_of(Self::ALIGN)
    };

    const INFO: &'static TypeInfo = &TypeInfo {
        id: TypeId::of::<HeaderSlice<H, [T]>>,
        name: |_| std::any::type_name::<HeaderSlice<H, [T]>>(),
        offset: 0,
        tracked: H::TRACKED || T::TRACKED,
        traverse_each: Self::traverse_each,
        describe: Some(Self::describe),
        label: Some(Self::label),
        prefetch_each: None,
        clear: Self::clear,
        finalize: None,
        has_finalizer: None,
        clears_last: None,
        legacy: None,
        external: if Self::HAS_EXTERNAL_BYTES { Some(Self::external) } else { None },
        destroy: None,
        dealloc: None,
        drop: if std::mem::needs_drop::<H>() || std::mem::needs_drop::<T>() {
            Some(Self::drop)
        } else {
            None
        },
    };

    /// The value of a live object that begins at `start`.
    unsafe fn value(start: NonNull<u8>) -> NonNull<HeaderSlice<H, [T]>> {
        // SAFETY: rule *typed*: an object of this type, laid out by `allocate`.
        unsafe {
            let len = start.add(Self::LEN).cast::<usize>().read();
            let wide = std::ptr::slice_from_raw_parts_mut(
                start.add(Self::VALUE).as_ptr().cast::<T>(),
                len,
            );
            // The cast keeps the length: both types end in a `[T]`.
            NonNull::new_unchecked(wide as *mut HeaderSlice<H, [T]>)
        }
    }

    unsafe fn traverse(start: NonNull<u8>, tracer: &mut Tracer) {
        // SAFETY: rule *typed*: the table belongs to objects of this type, and the caller has a
        // live one.
        let value = unsafe { Self::value(start).as_ref() };
        tracer.enter(NonNull::from(value).cast(), size_of_val(value));
        H::traverse(&value.header, tracer);
        if T::TRACKED {
            T::traverse_slice(&value.items, tracer);
        }
    }

    unsafe fn traverse_each(objects: &[Object], tracer: &mut Tracer, ends: &mut Ends<'_>) {
        // SAFETY: as in `traverse`.
        tracer.each(objects, ends, |object, tracer| unsafe {
            Self::traverse(object.as_ptr(), tracer)
        });
    }

    unsafe fn describe(object: Object, tracer: &mut Tracer) {
        // SAFETY: as in `traverse`.
        let value = unsafe { Self::value(object.as_ptr()).as_ref() };
        tracer.enter(NonNull::from(value).cast(), size_of_val(value));
        tracer.field("header");
        H::describe(&value.header, tracer);
        tracer.field("items");
        value.items.iter().for_each(|item| T::describe(item, tracer));
    }

    /// A slice has the label of its header.
    unsafe fn label(object: Object, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // SAFETY: as in `traverse`.
        H::label(unsafe { &Self::value(object.as_ptr()).as_ref().header }, f)
    }

    unsafe fn clear(start: NonNull<u8>, m: *const ()) {
        // SAFETY: as in `traverse`; `m` is a mutator.
        let (value, m) = unsafe { (Self::value(start).as_ref(), mutator(m)) };
        H::clear(&value.header, m);
        if !T::TRACKED {
            return;
        }
        // All items are cleared, even if the drop of a removed value panics. The first panic
        // resumes after the last item, while later panics are reported as unraisable.
        let mut items = value.items.iter();
        let mut first = None;
        while let Err(payload) =
            outside::guarded(|| items.by_ref().for_each(|item| T::clear(item, m)))
        {
            match first {
                None => first = Some(payload),
                Some(_) => m.raw().core().hooks.unraisable(
                    During::Clear,
                    type_name::<Self>(),
                    outside::panic_message(payload),
                ),
            }
        }
        if let Some(payload) = first {
            resume_unwind(payload);
        }
    }

    const HAS_EXTERNAL_BYTES: bool = H::HAS_EXTERNAL_BYTES || T::HAS_EXTERNAL_BYTES;

    unsafe fn external(start: NonNull<u8>) -> usize {
        // SAFETY: rule *typed*; the object is dying, so nothing else refers to the value.
        let value = unsafe { Self::value(start).as_mut() };
        H::external_bytes(&mut value.header).saturating_add(<[T]>::external_bytes(&mut value.items))
    }

    unsafe fn drop(start: NonNull<u8>) {
        // SAFETY: as in `traverse`; the value is not used again.
        unsafe { Self::value(start).drop_in_place() };
    }
}

/// An unpublished cell with some of its items written. If the iterator panics, the drop of
/// `Partial` drops these items and frees the cell.
struct Partial<'a, H: Trace, T: Trace> {
    m: &'a Raw,
    cell: NonNull<u8>,
    items: NonNull<T>,
    written: usize,
    header: PhantomData<H>,
}

impl<H: Trace, T: Trace> Drop for Partial<'_, H, T> {
    fn drop(&mut self) {
        // SAFETY: rule *new*: these items were written, and the cell was never published.
        unsafe {
            std::ptr::slice_from_raw_parts_mut(self.items.as_ptr(), self.written).drop_in_place();
            self.m.free(self.cell);
        }
    }
}

/// A counted reference to a [`HeaderSlice<H, [T]>`](HeaderSlice) in a heap. It is one word.
///
/// ```
/// use standstill::{GcSlice, Heap};
///
/// let heap = Heap::new();
/// let m = heap.attach();
/// let tuple: GcSlice<&str, i32> = m.alloc_slice("triple", [1, 2, 3]);
/// assert_eq!((tuple.header, tuple.len(), tuple[0]), ("triple", 3, 1));
/// // Without a header, and by an iterator of unknown length.
/// let even = GcSlice::from_iter(&m, (), (1..=9).filter(|n| n % 2 == 0));
/// assert_eq!(even.items, [2, 4, 6, 8]);
/// ```
pub struct GcSlice<H, T> {
    header: NonNull<Header>,
    owns: PhantomData<(H, T)>,
}

// SAFETY: rule *guarded*: as for `Gc`.
unsafe impl<H: Send + Sync, T: Send + Sync> Send for GcSlice<H, T> {}
// SAFETY: as above.
unsafe impl<H: Send + Sync, T: Send + Sync> Sync for GcSlice<H, T> {}

impl<H: Trace + Send + Sync, T: Trace + Send + Sync> GcSlice<H, T> {
    /// Allocates one object with a header and all items of an iterator.
    ///
    /// The iterator may have any length, so the items are collected outside of the heap first. Use
    /// [`Mutator::alloc_slice`] if the length is known.
    ///
    /// # Panics
    ///
    /// If the heap is full.
    #[track_caller]
    pub fn from_iter(m: &Mutator, header: H, items: impl IntoIterator<Item = T>) -> Self {
        m.alloc_slice(header, items.into_iter().collect::<Vec<T>>())
    }
}

impl<H, T> GcSlice<H, T> {
    /// Takes over a counted reference.
    ///
    /// # Safety
    ///
    /// The caller owns a reference to an object of this type and gives the reference up.
    pub(super) unsafe fn from_header(header: NonNull<Header>) -> Self {
        Self { header, owns: PhantomData }
    }

    pub(super) fn address(this: &Self) -> NonNull<Header> {
        this.header
    }

    pub(super) fn counts(this: &Self) -> &Header {
        // SAFETY: rule *counted*: this reference keeps the object alive.
        unsafe { this.header.as_ref() }
    }

    /// Converts the handle to one without a type. The reference count is unchanged.
    pub fn into_any(this: Self) -> AnyGc {
        // SAFETY: rule *counted*: the new handle takes over the reference.
        unsafe { AnyGc::from_header(ManuallyDrop::new(this).header) }
    }
}

identity!([H, T] GcSlice<H, T>, header);
handle!([H: Trace, T: Trace] GcSlice<H, T>, |this| this.header);

impl<H: Trace, T: Trace> Deref for GcSlice<H, T> {
    type Target = HeaderSlice<H, [T]>;

    #[inline]
    fn deref(&self) -> &HeaderSlice<H, [T]> {
        // SAFETY: rules *counted* and *typed*: this reference keeps the object alive.
        unsafe { Sliced::<H, T>::value(self.header.cast()).as_ref() }
    }
}

impl<H, T> Clone for GcSlice<H, T> {
    #[inline]
    #[cfg_attr(feature = "handle-places", track_caller)]
    fn clone(&self) -> Self {
        // SAFETY: rule *counted*: this reference keeps the object alive.
        unsafe { self.header.as_ref() }.clone_ref(current());
        handle_places::made(self.header.as_ptr() as usize);
        Self { header: self.header, owns: PhantomData }
    }
}

impl<H, T> Drop for GcSlice<H, T> {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: rule *counted*: this value owned a reference.
        unsafe { drop_reference(self.header) };
    }
}

impl<H, T> fmt::Pointer for GcSlice<H, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Pointer::fmt(&self.header, f)
    }
}

impl<H, T> fmt::Debug for GcSlice<H, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "GcSlice<{}, {}>({:p})",
            std::any::type_name::<H>(),
            std::any::type_name::<T>(),
            self.header
        )
    }
}

impl Mutator {
    /// Allocates one object with a header and items.
    ///
    /// The number of items is the [length](ExactSizeIterator::len) of the iterator, so further
    /// items stay in the iterator.
    ///
    /// # Panics
    ///
    /// If the heap is full, or if the iterator yields fewer items than its length.
    #[track_caller]
    pub fn alloc_slice<H, T, I>(&self, header: H, items: I) -> GcSlice<H, T>
    where
        H: Trace + Send + Sync,
        T: Trace + Send + Sync,
        I: IntoIterator<Item = T, IntoIter: ExactSizeIterator>,
    {
        match self.try_alloc_slice(header, items) {
            Ok(slice) => slice,
            Err(error) => out_of_memory(error),
        }
    }

    /// Allocates one object with a header and items.
    ///
    /// # Errors
    ///
    /// If the heap is full, or if memory for its record of a new type is refused. The error
    /// contains the header and the iterator, and the heap is unchanged.
    ///
    /// # Panics
    ///
    /// If the iterator yields fewer items than its [length](ExactSizeIterator::len).
    #[track_caller]
    pub fn try_alloc_slice<H, T, I>(
        &self,
        header: H,
        items: I,
    ) -> Result<GcSlice<H, T>, RefusedSlice<H, I>>
    where
        H: Trace + Send + Sync,
        T: Trace + Send + Sync,
        I: IntoIterator<Item = T, IntoIter: ExactSizeIterator>,
    {
        let (m, mut items) = (self.raw(), items.into_iter());
        let refused = |parts, reason| Err(AllocError::of::<HeaderSlice<H, [T]>>(parts, reason));
        let len = items.len();
        let layout = Layout::array::<T>(len)
            .and_then(|items| Layout::new::<H>().extend(items))
            .and_then(|(value, _)| Layout::from_size_align(Sliced::<H, T>::VALUE, 1)?.extend(value))
            .map(|(whole, _)| whole.pad_to_align().size());
        let size = match layout {
            Ok(size) => size,
            Err(_) => {
                let size = len.saturating_mul(size_of::<T>());
                return refused((header, items), OutOfMemory::TooLarge { size });
            }
        };
        let index = match managed::type_index(m, Sliced::<H, T>::INFO) {
            Ok(index) => index,
            Err(reason) => return refused((header, items), reason.into()),
        };
        let cell = match m.allocate(size, Sliced::<H, T>::ALIGN.max(GRANULE)) {
            Ok(cell) => cell,
            Err(reason) => return refused((header, items), reason),
        };
        // SAFETY: rule *new*: fresh memory, large enough for all parts at their offsets. No other
        // thread has its address. It is published after all parts are written.
        unsafe {
            cell.add(Sliced::<H, T>::LEN).cast::<usize>().write(len);
            let value = Sliced::<H, T>::value(cell);
            let first = NonNull::new_unchecked((&raw mut (*value.as_ptr()).items).cast::<T>());
            let mut partial =
                Partial::<H, T> { m, cell, items: first, written: 0, header: PhantomData };
            // The cell has room for `len` items, although the iterator may yield more or fewer.
            while partial.written < len {
                let Some(item) = items.next() else {
                    panic!(
                        "the iterator returned {} items, but its length was {len}",
                        partial.written
                    );
                };
                first.add(partial.written).write(item);
                partial.written += 1;
            }
            std::mem::forget(partial);
            (&raw mut (*value.as_ptr()).header).write(header);
            cell.cast::<Header>().write(Header::new(m.id(), index));
            if const { Sliced::<H, T>::HAS_EXTERNAL_BYTES } {
                m.adjust_external_bytes(Sliced::<H, T>::external(cell).cast_signed());
            }
            m.publish_as(
                object(cell.cast()),
                if Sliced::<H, T>::INFO.tracked { state::TRACKED } else { 0 },
            );
            handle_places::made(cell.as_ptr() as usize);
        }
        Ok(GcSlice { header: cell.cast(), owns: PhantomData })
    }
}

/// The error of [`Mutator::try_alloc_slice`]. It contains the header and the iterator.
pub type RefusedSlice<H, I> = AllocError<(H, <I as IntoIterator>::IntoIter)>;
