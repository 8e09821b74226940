//! The collector handles objects of all types alike: it finds the index of a table of functions in
//! an object's header, and these functions must find the value. So the place of the value is a
//! constant of the type, the first offset behind the header that has the value's alignment
//! (`Layout`). For example, a `u64` lies at offset 16, and a value with an alignment of 64 at
//! offset 64. `Gc<T>` is the address of the header, because a clone or drop needs only the count
//! there. [`AnyGc`](crate::AnyGc) is the same address without the type.
//!
//! The memory of an object is fetched before its value is written. Because steps between the two
//! may fail, such as the weak record of `Gc::new_cyclic`, `Unborn` owns the memory until then.

use std::any::TypeId;
use std::fmt;
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::ptr::NonNull;

use crate::heap::request::Collect;
use crate::managed::{self, OnPanic, Placed, Raw, drop_reference_to, object};
use crate::memory::shape::GRANULE;
use crate::memory::size_class::class_for;
use crate::object::address::Object;
use crate::object::handle_places;
use crate::object::header::Header;
use crate::object::state;
use crate::object::tracer::{Edge, Ends, Tracer};
use crate::object::type_info::TypeInfo;
use crate::report::error::{AllocError, ForeignGc, OutOfMemory};
use crate::safepoint::current;
use crate::typed::mutator::mutator;
use crate::{Mutator, Trace};

/// Handles are compared and hashed by the identity of their objects, which `$field` has.
macro_rules! identity {
    ([$($params:tt)*] $handle:ty, $field:tt) => {
        impl<$($params)*> PartialEq for $handle {
            /// Whether both refer to the same object.
            #[inline]
            fn eq(&self, other: &Self) -> bool {
                self.$field == other.$field
            }
        }

        impl<$($params)*> Eq for $handle {}

        impl<$($params)*> std::hash::Hash for $handle {
            /// The identity of the object, as in `==`.
            #[inline]
            fn hash<S: std::hash::Hasher>(&self, state: &mut S) {
                self.$field.hash(state);
            }
        }
    };
}
pub(super) use identity;

/// The collector reads the address `$header` of a handle, and nothing else.
macro_rules! handle {
    ([$($params:tt)*] $handle:ty, |$this:ident| $header:expr) => {
        impl<$($params)*> Trace for $handle {
            const IS_HANDLE: bool = true;

            #[inline(always)]
            fn fetch_target($this: &Self) -> bool {
                crate::base::system::prefetch($header.as_ptr().cast());
                true
            }

            #[inline(always)]
            fn traverse(this: &Self, tracer: &mut Tracer) {
                tracer.target(Self::target(this));
            }

            #[inline(always)]
            fn target($this: &Self) -> Edge<'_> {
                Edge::at($header.as_ptr() as usize)
            }
        }
    };
}
pub(super) use handle;

pub(super) struct Layout<T>(PhantomData<T>);

impl<T> Layout<T> {
    /// The distance from the header to the value, in bytes.
    pub(super) const OFFSET: usize = offset(align_of::<T>());
    pub(super) const SIZE: usize = Self::OFFSET + size_of::<T>();
    pub(super) const ALIGN: usize =
        if align_of::<T>() > GRANULE { align_of::<T>() } else { GRANULE };
    pub(super) const CLASS: Option<u8> = class_for(Self::SIZE, Self::ALIGN);
}

impl<T> Placed for Layout<T> {
    type Value = T;
    const OFFSET: usize = Layout::<T>::OFFSET;
    const CLASS: Option<u8> = Layout::<T>::CLASS;
}

struct Typed<T>(PhantomData<T>);

impl<T: Trace> Typed<T> {
    const INFO: &'static TypeInfo = &TypeInfo {
        id: TypeId::of::<T>,
        name: Self::name,
        offset: Layout::<T>::OFFSET,
        tracked: T::TRACKED,
        traverse_each: Self::traverse_each,
        describe: Some(Self::describe),
        label: Some(Self::label),
        prefetch_each: if T::INDIRECT { Some(Self::prefetch_each) } else { None },
        clear: Self::clear,
        finalize: if T::FINALIZER.is_some() { Some(Self::finalize) } else { None },
        has_finalizer: None,
        clears_last: None,
        legacy: None,
        external: if T::HAS_EXTERNAL_BYTES { Some(Self::external) } else { None },
        drop: if std::mem::needs_drop::<T>() { Some(Self::drop) } else { None },
        destroy: if T::HAS_EXTERNAL_BYTES { None } else { Some(Self::destroy) },
        dealloc: None,
    };

    unsafe fn name(_: NonNull<Header>) -> &'static str {
        std::any::type_name::<T>()
    }

    unsafe fn traverse_each(objects: &[Object], tracer: &mut Tracer, ends: &mut Ends<'_>) {
        tracer.each(objects, ends, |object, tracer| {
            // SAFETY: as in `enter`.
            T::traverse(unsafe { Self::enter(object, tracer) }, tracer)
        });
    }

    unsafe fn describe(object: Object, tracer: &mut Tracer) {
        // SAFETY: as in `enter`.
        T::describe(unsafe { Self::enter(object, tracer) }, tracer);
    }

    unsafe fn label(object: Object, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // SAFETY: as in `enter`.
        T::label(unsafe { Self::value(object) }, f)
    }

    unsafe fn prefetch_each(objects: &[Object], tracer: &mut Tracer) {
        for &object in objects {
            tracer.go_on(object);
            // SAFETY: as in `enter`.
            T::prefetch(unsafe { Self::enter(object, tracer) }, tracer);
        }
    }

    #[inline(always)]
    unsafe fn value<'a>(object: Object) -> &'a T {
        // SAFETY: rule *typed*: the table belongs to objects of type `T`, and the caller has a live
        // one.
        unsafe { object.as_ptr().add(Layout::<T>::OFFSET).cast::<T>().as_ref() }
    }

    /// Prepares `tracer` for an object and returns the value of the object.
    #[inline(always)]
    unsafe fn enter<'a>(object: Object, tracer: &mut Tracer) -> &'a T {
        // SAFETY: as in `value`.
        let value = unsafe { Self::value(object) };
        tracer.enter(NonNull::from(value).cast(), size_of::<T>());
        value
    }

    unsafe fn clear(value: NonNull<u8>, m: *const ()) {
        // SAFETY: as in `enter`; `m` is a mutator.
        unsafe { T::clear(value.cast::<T>().as_ref(), mutator(m)) };
    }

    unsafe fn finalize(header: NonNull<Header>, m: *const ()) {
        if let Some(finalizer) = const { T::FINALIZER } {
            // A handle that borrows the caller's reference.
            // SAFETY: as in `enter`.
            let this = ManuallyDrop::new(unsafe { Gc::<T>::from_header(header) });
            // SAFETY: rule *typed*: `m` is a mutator.
            finalizer.function()(&this, unsafe { mutator(m) });
        }
    }

    unsafe fn destroy(header: NonNull<Header>, m: *const ()) {
        // SAFETY: rules *typed* and *zero*: the object is dying, as the table says; `m` is a
        // mutator.
        unsafe {
            managed::destroy_in_place::<Layout<T>>(mutator(m).raw(), header, OnPanic::Report);
        }
    }

    unsafe fn external(value: NonNull<u8>) -> usize {
        // SAFETY: rule *typed*; the object is dying, so nothing else refers to the value.
        T::external_bytes(unsafe { value.cast::<T>().as_mut() })
    }

    unsafe fn drop(value: NonNull<u8>) {
        // SAFETY: as in `enter`; the value is not used again.
        unsafe { value.cast::<T>().drop_in_place() };
    }
}

const fn initial_state<T: Trace>() -> u8 {
    let tracked = if T::TRACKED { state::TRACKED } else { 0 };
    tracked | if T::FINALIZER.is_some() || T::HAS_EXTERNAL_BYTES { state::BY_TYPE } else { 0 }
}

/// The distance in bytes from a header to a value with this alignment.
pub(crate) const fn offset(align: usize) -> usize {
    assert!(
        align <= crate::memory::shape::MAX_ALIGN,
        "an object of a heap is aligned to at most 32 KiB"
    );
    size_of::<Header>().next_multiple_of(align)
}

/// Allocates an object, or returns the value in the error if the heap is full.
#[inline]
#[cfg_attr(feature = "handle-places", track_caller)]
pub(crate) fn allocate<T: Trace + Send + Sync>(m: &Raw, value: T) -> Result<Gc<T>, AllocError<T>> {
    match const { Layout::<T>::CLASS } {
        Some(_) => allocate_small(m, value),
        None => allocate_large(m, value),
    }
}

#[inline]
#[cfg_attr(feature = "handle-places", track_caller)]
fn allocate_small<T: Trace + Send + Sync>(m: &Raw, value: T) -> Result<Gc<T>, AllocError<T>> {
    // If the compiler had to drop `value` on an unwind, it would build the value on the stack and
    // copy it. The loads of the copy would wait for the stores.
    let value = ManuallyDrop::new(value);
    match Unborn::<T>::new(m) {
        // SAFETY: rule *new*: fresh memory, and then it holds the value.
        Ok(unborn) => unsafe {
            unborn.place().cast().write(value);
            Ok(unborn.publish_written())
        },
        Err(reason) => Err(AllocError::new(ManuallyDrop::into_inner(value), reason)),
    }
}

/// Not inlined, so that the large value is copied as few times as possible.
#[inline(never)]
#[cfg_attr(feature = "handle-places", track_caller)]
fn allocate_large<T: Trace + Send + Sync>(m: &Raw, value: T) -> Result<Gc<T>, AllocError<T>> {
    match Unborn::new(m) {
        // SAFETY: as in `allocate_small`.
        Ok(unborn) => unsafe {
            unborn.place().write(value);
            Ok(unborn.publish_written())
        },
        Err(reason) => Err(AllocError::new(value, reason)),
    }
}

/// Memory for an object that has no value yet. An allocation uses it because further steps can fail
/// before the value exists: then the drop frees the memory.
pub(super) struct Unborn<'a, T> {
    m: &'a Raw,
    cell: NonNull<u8>,
    index: u32,
    value: PhantomData<T>,
}

impl<'a, T: Trace + Send + Sync> Unborn<'a, T> {
    #[inline(always)]
    pub(super) fn new(m: &'a Raw) -> Result<Self, OutOfMemory> {
        let index = managed::type_index(m, Typed::<T>::INFO)?;
        let cell = match const { Layout::<T>::CLASS } {
            Some(class) => m.allocate_cell(class)?,
            None => m.allocate(Layout::<T>::SIZE, Layout::<T>::ALIGN)?,
        };
        Ok(Self { m, cell, index, value: PhantomData })
    }

    pub(super) fn header(&self) -> NonNull<Header> {
        self.cell.cast()
    }

    #[inline(always)]
    #[cfg_attr(feature = "handle-places", track_caller)]
    pub(super) fn publish(self, value: T) -> Gc<T> {
        // SAFETY: rule *new*: fresh memory, and then it holds the value.
        unsafe {
            self.place().write(value);
            self.publish_written()
        }
    }

    /// The place of the value, in fresh memory that no other thread knows.
    #[inline(always)]
    fn place(&self) -> NonNull<T> {
        // SAFETY: rule *new*: the memory has the size of the object.
        unsafe { self.cell.add(Layout::<T>::OFFSET).cast() }
    }

    /// Writes the header in front of the value, and makes the memory an object.
    ///
    /// # Safety
    ///
    /// The [place](Self::place) holds a value.
    #[inline(always)]
    #[cfg_attr(feature = "handle-places", track_caller)]
    unsafe fn publish_written(self) -> Gc<T> {
        if const { T::HAS_EXTERNAL_BYTES } {
            // SAFETY: rule *new*: the value is written, and no other thread has the address.
            let bytes = T::external_bytes(unsafe { self.place().as_mut() });
            self.m.adjust_external_bytes(bytes.cast_signed());
        }
        let Self { m, cell, index, .. } = *ManuallyDrop::new(self);
        let header = cell.cast::<Header>();
        // SAFETY: rule *new*: the value is written, and no other thread has the address.
        unsafe {
            header.write(Header::new(m.id(), index));
            m.publish_as(object(header), const { initial_state::<T>() });
            handle_places::made(header.as_ptr() as usize);
            Gc::from_header(header)
        }
    }
}

impl<T> Drop for Unborn<'_, T> {
    fn drop(&mut self) {
        // SAFETY: rule *new*: the cell has no value and was not published.
        unsafe { self.m.free(self.cell) };
    }
}

/// A counted reference to an object of a [`Heap`](crate::Heap).
///
/// A `Gc` is one word and never null, so an `Option<Gc<T>>` is one word too. A clone increments the
/// object's reference count and a drop decrements it. The thread that allocated the object counts
/// without atomic read-modify-write instructions, while other threads count atomically. If several
/// threads count one object all the time, use a [`SharedGc`](crate::SharedGc).
///
/// A `Gc` can be sent to other threads and held while a thread is detached. It can be stored in a
/// static or in an object of another heap. A reference outside its heap keeps the object alive,
/// like a root, and needs no registration. The collector frees unreachable cycles of the references
/// that the objects of a heap report in [`Trace::traverse`].
///
/// Any thread can dereference a `Gc` to its value, attached or not. A change of the value requires
/// a [`Mutator`]: see [`GcCell`](crate::GcCell) and [`AtomicGc`](crate::AtomicGc). Associated
/// functions are called as `Gc::downgrade(&gc, &m)`, so that they hide no method of the value.
///
/// `==` and `Hash` use the identity of the object, so compare values with `*a == *b`.
///
/// A thread that is not attached to the heap may not lower the count, so a reference that it drops
/// goes onto a list. The next attached thread that reaches a safepoint drains the list.
///
/// An object with 2²⁶ references or more at once may become immortal: it is then never freed. The
/// references that the owner's thread counts do so only beyond 10⁸.
///
/// ```
/// use standstill::{Gc, Heap};
///
/// let heap = Heap::new();
/// let m = heap.attach();
/// let a = m.alloc(String::from("shared"));
/// let b = a.clone();
/// assert!(a == b, "the same object");
/// assert_eq!(*b, "shared");
/// ```
#[repr(transparent)]
pub struct Gc<T> {
    header: NonNull<Header>,
    owns: PhantomData<T>,
    /// Invariant: `get_mut` changes the value, and the object is of its type for life.
    changes: PhantomData<fn(T) -> T>,
}

// SAFETY: rule *guarded*: a `Gc` gives `&T` to any thread, and any thread may drop the `T`. So both
// bounds are required, as for `Arc`.
unsafe impl<T: Send + Sync> Send for Gc<T> {}
// SAFETY: as above.
unsafe impl<T: Send + Sync> Sync for Gc<T> {}

impl<T> std::panic::UnwindSafe for Gc<T> {}
impl<T> std::panic::RefUnwindSafe for Gc<T> {}

impl<T> Gc<T> {
    /// Takes over a counted reference.
    ///
    /// # Safety
    ///
    /// The caller owns a reference to an object that holds a `T` and gives the reference up.
    pub(crate) unsafe fn from_header(header: NonNull<Header>) -> Self {
        Self { header, owns: PhantomData, changes: PhantomData }
    }

    #[inline(always)]
    pub(crate) fn header(&self) -> NonNull<Header> {
        self.header
    }

    #[cfg(test)]
    pub(crate) fn into_reference(self) -> managed::CountedRef {
        // SAFETY: rule *counted*: the handle owned the reference, and has no destructor now.
        unsafe { managed::CountedRef::new(self.into_header()) }
    }

    /// Returns the address of the header. The count is unchanged, because the caller owns the
    /// reference now.
    pub(crate) fn into_header(self) -> NonNull<Header> {
        ManuallyDrop::new(self).header
    }

    #[inline(always)]
    pub(crate) fn counts(&self) -> &Header {
        // SAFETY: rule *counted*: this reference keeps the object alive.
        unsafe { self.header.as_ref() }
    }

    #[inline(always)]
    pub(super) fn value(&self) -> NonNull<T> {
        // SAFETY: rule *typed*: an object of type `T` has its value at this offset.
        unsafe { self.header.cast::<u8>().add(Layout::<T>::OFFSET).cast() }
    }

    /// The number of references to the object, or `usize::MAX` for an immortal object.
    ///
    /// Use it for tests and statistics only, because other threads can change the number at any
    /// time. To change a value that nobody else refers to, use [`get_mut`](Self::get_mut).
    pub fn strong_count(this: &Self) -> usize {
        Self::as_any(this).strong_count()
    }

    /// The address of the value, which is constant for the lifetime of the object.
    pub fn as_ptr(this: &Self) -> *const T {
        this.value().as_ptr()
    }
}

impl<T: Trace> Gc<T> {
    /// Whether the object is in the tracked set. The collector frees only cycles of tracked
    /// objects.
    ///
    /// # Panics
    ///
    /// If the object belongs to another heap than the mutator.
    #[track_caller]
    pub fn is_tracked(this: &Self, m: &Mutator) -> bool {
        Self::as_any(this).is_tracked(m)
    }

    /// Adds the object to the tracked set, and returns whether the object was untracked before.
    ///
    /// [`Trace::TRACKED`] of the type determines whether a new object is tracked. Any attached
    /// thread may call this function at any time.
    ///
    /// # Panics
    ///
    /// If the object belongs to another heap than the mutator.
    #[track_caller]
    pub fn track(this: &Self, m: &Mutator) -> bool {
        check(this.header, m);
        // SAFETY: rule *counted*: alive, and of this heap.
        unsafe { m.raw().track(object(this.header)) }
    }

    /// Removes the object from the tracked set, and returns whether the object was tracked before.
    ///
    /// The references of an untracked object count as references from outside the heap, so they
    /// keep their targets alive, and a cycle through the object leaks.
    ///
    /// # Panics
    ///
    /// If the object belongs to another heap than the mutator.
    #[track_caller]
    pub fn untrack(this: &Self, m: &Mutator) -> bool {
        check(this.header, m);
        // SAFETY: as in `track`.
        unsafe { m.raw().untrack(object(this.header)) }
    }

    /// Whether the finalizer of the object has been called.
    ///
    /// # Panics
    ///
    /// If the object belongs to another heap than the mutator.
    #[track_caller]
    pub fn is_finalized(this: &Self, m: &Mutator) -> bool {
        Self::as_any(this).is_finalized(m)
    }

    /// Makes the object immortal: neither it nor its targets are ever freed.
    ///
    /// This is for objects that many threads share and that live as long as the program.
    ///
    /// # Panics
    ///
    /// If the object belongs to another heap than the mutator.
    #[track_caller]
    pub fn immortalize(this: &Self, m: &Mutator) {
        Self::as_any(this).immortalize(m);
    }
}

impl Mutator {
    /// Allocates an object, which is tracked if [`Trace::TRACKED`] is `true` for its type. It never
    /// collects or parks: a collection that is due begins at a safepoint.
    ///
    /// `T` must be `Send + Sync`: any thread may access the object, and any thread may destroy it.
    /// A type with an alignment of more than 32 KiB does not compile here.
    ///
    /// # Panics
    ///
    /// If the heap is full. [`try_alloc`](Self::try_alloc) returns an error instead.
    /// [`alloc_or_collect`](Self::alloc_or_collect) collects first.
    #[inline(always)]
    #[track_caller]
    pub fn alloc<T: Trace + Send + Sync>(&self, value: T) -> Gc<T> {
        match allocate(self.raw(), value) {
            Ok(gc) => gc,
            Err(error) => out_of_memory(error),
        }
    }

    /// Allocates an object.
    ///
    /// # Errors
    ///
    /// If the heap is full, or if memory for its record of a new type is refused. The error
    /// contains the value, and the heap is unchanged.
    #[inline]
    #[cfg_attr(feature = "handle-places", track_caller)]
    pub fn try_alloc<T: Trace + Send + Sync>(&self, value: T) -> Result<Gc<T>, AllocError<T>> {
        allocate(self.raw(), value)
    }

    /// Allocates an object. If the heap is full, runs a full collection and tries once more.
    ///
    /// # Errors
    ///
    /// If the heap is full after the collection, or if the collection cannot run. The error
    /// contains the value.
    #[cfg_attr(feature = "handle-places", track_caller)]
    pub fn alloc_or_collect<T: Trace + Send + Sync>(
        &mut self,
        value: T,
    ) -> Result<Gc<T>, AllocError<T>> {
        let error = match self.try_alloc(value) {
            Ok(gc) => return Ok(gc),
            Err(error) => error,
        };
        #[expect(clippy::let_underscore_must_use, reason = "the second attempt returns the error")]
        let _ = self.try_collect(Collect::full());
        self.try_alloc(error.into_inner())
    }

    /// Calls `f`, which allocates or asks [`has_room`](Self::has_room). After any error a
    /// full collection runs, if it can, and `f` is called once more.
    ///
    /// ```
    /// # use standstill::{GcStr, Heap};
    /// # let heap = Heap::new();
    /// let mut m = heap.attach();
    /// let text: GcStr = m.or_collect(|m| m.try_alloc_str((), "a literal of the program"))?;
    /// # Ok::<(), standstill::AllocError<()>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// That of the second call.
    pub fn or_collect<T, E>(
        &mut self,
        mut f: impl FnMut(&Mutator) -> Result<T, E>,
    ) -> Result<T, E> {
        let first = f(self);
        if first.is_ok() {
            return first;
        }
        #[expect(clippy::let_underscore_must_use, reason = "the second attempt returns the error")]
        let _ = self.try_collect(Collect::full());
        f(self)
    }

    /// Whether the heap is within its [limit](crate::HeapBuilder::limit).
    ///
    /// Objects get memory outside the heap without asking it, for example a `GcCell<Vec<_>>` that
    /// grows. So a runtime with a limit asks where its programs loop:
    /// `m.or_collect(|m| m.has_room())`. It costs a few loads as long as the answer is yes.
    ///
    /// # Errors
    ///
    /// If the heap exceeds its limit. Allocations that need a fresh cell are refused, too.
    pub fn has_room(&self) -> Result<(), OutOfMemory> {
        self.raw().has_room()
    }
}

#[cold]
#[inline(never)]
#[track_caller]
pub(super) fn out_of_memory<T>(error: AllocError<T>) -> ! {
    panic!("{error}")
}

#[cold]
#[inline(never)]
#[track_caller]
pub(super) fn foreign_panic(foreign: ForeignGc) -> ! {
    panic!("{foreign}")
}

/// Panics if the object belongs to another heap than the mutator.
#[track_caller]
#[inline]
pub(crate) fn check(header: NonNull<Header>, m: &Mutator) {
    if !m.raw().owns(object(header)) {
        foreign_panic(ForeignGc);
    }
}

identity!([T] Gc<T>, header);
handle!([T: Trace] Gc<T>, |this| this.header);

impl<T> Deref for Gc<T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        // SAFETY: rule *counted*: this reference keeps the object alive, and no `&mut` to its value
        // exists.
        unsafe { self.value().as_ref() }
    }
}

impl<T> Clone for Gc<T> {
    #[inline(always)]
    #[cfg_attr(feature = "handle-places", track_caller)]
    fn clone(&self) -> Self {
        self.counts().clone_ref(current());
        handle_places::made(self.header.as_ptr() as usize);
        Self { header: self.header, owns: PhantomData, changes: PhantomData }
    }
}

impl<T> Drop for Gc<T> {
    #[inline(always)]
    fn drop(&mut self) {
        // SAFETY: rule *counted*: this value owned a reference.
        unsafe {
            drop_reference_to::<Layout<T>>(self.header);
        }
    }
}

impl<T> fmt::Debug for Gc<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Gc<{}>({:p})", std::any::type_name::<T>(), self.header)
    }
}

impl<T> fmt::Pointer for Gc<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Pointer::fmt(&self.header, f)
    }
}

impl Tracer {
    /// Reports a reference. An implementation of [`Trace::traverse`] calls it for each handle that
    /// the value owns.
    #[inline(always)]
    pub fn visit<T>(&mut self, gc: &Gc<T>) {
        self.edge(gc.header.as_ptr() as usize);
    }
}
