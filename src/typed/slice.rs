//! Floor 5: [`GcSlice`], one object for a header and a number of items that is known when it is made.
//!
//! ```text
//! | Header | length | HeaderSlice<H, [T]>: header, items … |
//! ```
//!
//! The handle is one word: the length lies in the object, and the wide reference is made on access.

use std::alloc::Layout;
use std::any::{TypeId, type_name};
use std::fmt;
use std::hash::{Hash, Hasher};
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::panic::resume_unwind;
use std::ptr::NonNull;

use crate::base::error::AllocError;
use crate::base::event::{self, During};
use crate::managed::{self, Raw, drop_reference, object};
use crate::memory::space::GRANULE;
use crate::object::header::Header;
use crate::object::state;
use crate::object::type_info::{Edge, Ends, Object, Tracer, TypeInfo};
use crate::safepoint::current;
use crate::typed::any::AnyGc;
use crate::typed::gc::offset;
use crate::typed::mutator::mutator;
use crate::{Mutator, Trace};

/// A value with a sequence of items behind it, in one piece of memory: what a [`GcSlice`] holds.
#[derive(Debug)]
#[repr(C)]
pub struct HeaderSlice<H, S: ?Sized> {
    /// What there is one of.
    pub header: H,
    /// What there are many of; `[T]` in a [`GcSlice`].
    pub items: S,
}

struct Sliced<H, T>(PhantomData<(H, T)>);

impl<H: Trace, T: Trace> Sliced<H, T> {
    const ALIGN: usize = align_of::<HeaderSlice<H, [T; 0]>>();
    /// From the header to the length.
    const LEN: usize = offset(align_of::<usize>());
    /// From the header to the value.
    const VALUE: usize = {
        // Refuses an alignment that no object can have.
        let _ = offset(Self::ALIGN);
        (Self::LEN + size_of::<usize>()).next_multiple_of(Self::ALIGN)
    };

    const INFO: &'static TypeInfo = &TypeInfo {
        id: TypeId::of::<HeaderSlice<H, [T]>>,
        name: |_| std::any::type_name::<HeaderSlice<H, [T]>>(),
        offset: 0,
        tracked: H::TRACKED || T::TRACKED,
        traverse_each: Self::traverse_each,
        prefetch_each: None,
        clear: Self::clear,
        finalize: None,
        has_finalizer: None,
        legacy: None,
        end: None,
        dealloc: None,
        drop: if std::mem::needs_drop::<H>() || std::mem::needs_drop::<T>() {
            Some(Self::drop)
        } else {
            None
        },
    };

    /// The value of a live object, given its first byte.
    unsafe fn value(start: NonNull<u8>) -> NonNull<HeaderSlice<H, [T]>> {
        // SAFETY: rule Y: an object of this type, laid out by `allocate`.
        unsafe {
            let len = start.add(Self::LEN).cast::<usize>().read();
            let wide = std::ptr::slice_from_raw_parts_mut(
                start.add(Self::VALUE).as_ptr().cast::<T>(),
                len,
            );
            // The cast keeps the length: both end in a `[T]`.
            NonNull::new_unchecked(wide as *mut HeaderSlice<H, [T]>)
        }
    }

    unsafe fn traverse(start: NonNull<u8>, tracer: &mut Tracer) {
        // SAFETY: rule Y: the table belongs to objects of this type, and the caller has a live one.
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

    unsafe fn clear(start: NonNull<u8>, m: *const ()) {
        // SAFETY: as in `traverse`; `m` is a mutator.
        let (value, m) = unsafe { (Self::value(start).as_ref(), mutator(m)) };
        H::clear(&value.header, m);
        if !T::TRACKED {
            return;
        }
        // All of them, also when what was in one panics as it is dropped: the first such panic goes on, later.
        let mut items = value.items.iter();
        let mut first = None;
        while let Err(payload) =
            event::guarded(|| items.by_ref().for_each(|item| T::clear(item, m)))
        {
            match first {
                None => first = Some(payload),
                Some(_) => m.raw().core().hooks.unraisable(
                    During::Clear,
                    type_name::<Self>(),
                    event::panic_message(payload),
                ),
            }
        }
        if let Some(payload) = first {
            resume_unwind(payload);
        }
    }

    unsafe fn drop(start: NonNull<u8>) {
        // SAFETY: as in `traverse`; the value is given up.
        unsafe { Self::value(start).drop_in_place() };
    }
}

/// Memory with some items written into it: dropped and given back if making the others panics.
struct Partial<'a, H: Trace, T: Trace> {
    m: &'a Raw,
    cell: NonNull<u8>,
    items: NonNull<T>,
    written: usize,
    header: PhantomData<H>,
}

impl<H: Trace, T: Trace> Drop for Partial<'_, H, T> {
    fn drop(&mut self) {
        // SAFETY: rule N: these items were written and the memory was never published.
        unsafe {
            std::ptr::slice_from_raw_parts_mut(self.items.as_ptr(), self.written).drop_in_place();
            self.m.free(self.cell);
        }
    }
}

/// A counted reference to a [`HeaderSlice<H, [T]>`](HeaderSlice) in a heap: one word.
///
/// ```
/// use standstill::{GcSlice, Heap};
///
/// let heap = Heap::new();
/// let m = heap.attach();
/// let tuple: GcSlice<&str, i32> = m.alloc_slice("triple", [1, 2, 3]);
/// assert_eq!(tuple.items, [1, 2, 3]);
/// assert_eq!(tuple.header, "triple");
/// ```
pub struct GcSlice<H, T> {
    header: NonNull<Header>,
    owns: PhantomData<(H, T)>,
}

// SAFETY: rule X: as of a `Gc`.
unsafe impl<H: Send + Sync, T: Send + Sync> Send for GcSlice<H, T> {}
// SAFETY: as above.
unsafe impl<H: Send + Sync, T: Send + Sync> Sync for GcSlice<H, T> {}

impl<H: Trace, T: Trace> GcSlice<H, T> {
    /// Allocates; if there is no room, header and items come back.
    pub(crate) fn allocate<I>(m: &Raw, header: H, mut items: I) -> Result<Self, AllocError<(H, I)>>
    where
        H: Send + Sync,
        T: Send + Sync,
        I: ExactSizeIterator<Item = T>,
    {
        let len = items.len();
        let layout = Layout::array::<T>(len)
            .and_then(|items| Layout::new::<H>().extend(items))
            .and_then(|(value, _)| Layout::from_size_align(Sliced::<H, T>::VALUE, 1)?.extend(value))
            .map(|(whole, _)| whole.pad_to_align().size());
        let size = match layout {
            Ok(size) => size,
            Err(_) => {
                let size = len.saturating_mul(size_of::<T>());
                let reason = crate::base::error::OutOfMemory::TooLarge { size };
                return Err(AllocError::new((header, items), reason));
            }
        };
        let cell = match m.allocate(size, Sliced::<H, T>::ALIGN.max(GRANULE)) {
            Ok(cell) => cell,
            Err(reason) => return Err(AllocError::new((header, items), reason)),
        };
        let index = managed::type_index(m, Sliced::<H, T>::INFO);
        // SAFETY: rule N: fresh memory, large enough for the parts at their places; nobody else knows it, and it is
        // published when all of it is written.
        unsafe {
            cell.add(Sliced::<H, T>::LEN).cast::<usize>().write(len);
            let value = Sliced::<H, T>::value(cell);
            let first = NonNull::new_unchecked((&raw mut (*value.as_ptr()).items).cast::<T>());
            let mut partial =
                Partial::<H, T> { m, cell, items: first, written: 0, header: PhantomData };
            // The room is for `len` items, whatever the iterator gives.
            while partial.written < len {
                let Some(item) = items.next() else {
                    panic!("the iterator gave {} items and had promised {len}", partial.written);
                };
                first.add(partial.written).write(item);
                partial.written += 1;
            }
            std::mem::forget(partial);
            (&raw mut (*value.as_ptr()).header).write(header);
            cell.cast::<Header>().write(Header::new(m.id(), index));
            m.publish_as(
                object(cell.cast()),
                if Sliced::<H, T>::INFO.tracked { state::TRACKED } else { 0 },
            );
        }
        Ok(Self { header: cell.cast(), owns: PhantomData })
    }

    /// The same reference without its type.
    pub fn into_any(this: Self) -> AnyGc {
        // SAFETY: rule R: the reference goes over.
        unsafe { AnyGc::from_header(ManuallyDrop::new(this).header) }
    }
}

impl<H, T> PartialEq for GcSlice<H, T> {
    /// Whether both refer to the same object.
    #[inline]
    fn eq(&self, other: &Self) -> bool {
        self.header == other.header
    }
}

impl<H, T> Eq for GcSlice<H, T> {}

impl<H, T> Hash for GcSlice<H, T> {
    /// The identity of the object, as in `==`.
    #[inline]
    fn hash<S: Hasher>(&self, state: &mut S) {
        self.header.hash(state);
    }
}

impl<H: Trace, T: Trace> Deref for GcSlice<H, T> {
    type Target = HeaderSlice<H, [T]>;

    #[inline]
    fn deref(&self) -> &HeaderSlice<H, [T]> {
        // SAFETY: rules R and Y: this reference keeps the object alive.
        unsafe { Sliced::<H, T>::value(self.header.cast()).as_ref() }
    }
}

impl<H, T> Clone for GcSlice<H, T> {
    #[inline]
    fn clone(&self) -> Self {
        // SAFETY: rule R: this reference keeps the object alive.
        unsafe { self.header.as_ref() }.clone_ref(current());
        Self { header: self.header, owns: PhantomData }
    }
}

impl<H, T> Drop for GcSlice<H, T> {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: rule R: this value owned a reference.
        unsafe { drop_reference(self.header) };
    }
}

impl<H: Trace, T: Trace> Trace for GcSlice<H, T> {
    const IS_HANDLE: bool = true;

    #[inline(always)]
    fn traverse(this: &Self, tracer: &mut Tracer) {
        tracer.target(Self::target(this));
    }

    #[inline(always)]
    fn target(this: &Self) -> Edge<'_> {
        Edge::at(this.header.as_ptr() as usize)
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
    /// Allocates one object for a header and items.
    ///
    /// # Panics
    ///
    /// When the heap is full, or the iterator gives fewer items than it promises.
    #[track_caller]
    pub fn alloc_slice<H, T, I>(&self, header: H, items: I) -> GcSlice<H, T>
    where
        H: Trace + Send + Sync,
        T: Trace + Send + Sync,
        I: IntoIterator<Item = T, IntoIter: ExactSizeIterator>,
    {
        match self.try_alloc_slice(header, items) {
            Ok(slice) => slice,
            Err(error) => panic!("{}", error.reason()),
        }
    }

    /// Allocates one object for a header and items, or gives them back.
    ///
    /// # Errors
    ///
    /// When the heap is full. The heap is as it was.
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
        GcSlice::allocate(self.raw(), header, items.into_iter())
    }
}

/// Header and items of a slice that found no room.
pub type RefusedSlice<H, I> = AllocError<(H, <I as IntoIterator>::IntoIter)>;
