//! Floor 5: handles to typed objects.
//!
//! An object is a header with its value behind it, at an offset that the value's alignment gives.
//! [`Gc<T>`] is the header's address, [`AnyGc`] the same without the type.

use std::any::TypeId;
use std::fmt;
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::ptr::NonNull;

use crate::base::error::{AllocError, ForeignGc, OutOfMemory};
use crate::base::fallible::{NoMemory, Shared};
use crate::base::sync::{AtomicBool, Ordering};
use crate::managed::{
    self, Raw, drop_reference, drop_reference_to, drop_reference_to_plain, object,
};
use crate::memory::arena::class_for;
use crate::memory::space::GRANULE;
use crate::object::header::Header;
use crate::object::state;
use crate::object::type_info::{Ends, Object, Target, Tracer, TypeInfo, prefetch};
use crate::object::weak::{Watcher, WeakRecord};
use crate::safepoint::current;
use crate::{Mutator, Trace};

/// Where a value of type `T` lies in its object.
struct Layout<T>(PhantomData<T>);

impl<T> Layout<T> {
    /// From the header to the value.
    const OFFSET: usize = offset(align_of::<T>());
    const SIZE: usize = Self::OFFSET + size_of::<T>();
    const ALIGN: usize = if align_of::<T>() > GRANULE { align_of::<T>() } else { GRANULE };
    const CLASS: Option<u8> = class_for(Self::SIZE, Self::ALIGN);
}

/// How a value of type `T` is handled: the table behind [`Gc<T>`].
struct Typed<T>(PhantomData<T>);

impl<T: Trace> Typed<T> {
    const INFO: &'static TypeInfo = &TypeInfo {
        id: TypeId::of::<T>,
        name: Self::name,
        offset: Layout::<T>::OFFSET,
        tracked: T::TRACKED,
        traverse_each: Self::traverse_each,
        prefetch_each: if T::INDIRECT { Some(Self::prefetch_each) } else { None },
        clear: Self::clear,
        finalize: if T::HAS_FINALIZER { Some(Self::finalize) } else { None },
        has_finalizer: None,
        legacy: None,
        drop: if std::mem::needs_drop::<T>() { Some(Self::drop) } else { None },
        end: Some(Self::end),
        dealloc: None,
    };

    unsafe fn name(_: NonNull<Header>) -> &'static str {
        std::any::type_name::<T>()
    }

    unsafe fn traverse_each(objects: &[Object], tracer: &mut Tracer, ends: &mut Ends<'_>) {
        tracer.each(objects, ends, |object, tracer| {
            // SAFETY: as in `enter`.
            unsafe { Self::enter(object, tracer) }.traverse(tracer)
        });
    }

    unsafe fn prefetch_each(objects: &[Object], tracer: &mut Tracer) {
        for &object in objects {
            tracer.go_on(object);
            // SAFETY: as in `enter`.
            unsafe { Self::enter(object, tracer) }.prefetch(tracer);
        }
    }

    /// The value of an object, which is going to be looked at.
    #[inline(always)]
    unsafe fn enter<'a>(object: Object, tracer: &mut Tracer) -> &'a T {
        // SAFETY: rule Y: the table belongs to objects of type `T`, and the caller has a live one.
        let value = unsafe { object.as_ptr().add(Layout::<T>::OFFSET).cast::<T>().as_ref() };
        tracer.enter(NonNull::from(value).cast(), size_of::<T>());
        value
    }

    unsafe fn clear(value: NonNull<u8>, m: *const ()) {
        // SAFETY: as in `enter`; `m` is a mutator.
        unsafe { value.cast::<T>().as_ref().clear(managed::mutator(m)) };
    }

    unsafe fn finalize(header: NonNull<Header>, m: *const ()) {
        // A handle that borrows the caller's reference.
        // SAFETY: as in `enter`.
        let this = ManuallyDrop::new(unsafe { Gc::<T>::from_header(header) });
        // SAFETY: rule Y: `m` is a mutator.
        T::finalize(&this, unsafe { managed::mutator(m) });
    }

    unsafe fn end(header: NonNull<Header>, m: *const ()) {
        // SAFETY: rules Y and Z: the object is dying, as the table says; `m` is a mutator.
        unsafe {
            let m = managed::mutator(m).raw();
            managed::end_reporting::<T>(m, header, Layout::<T>::OFFSET, Layout::<T>::CLASS);
        }
    }

    unsafe fn drop(value: NonNull<u8>) {
        // SAFETY: as in `enter`; the value is given up.
        unsafe { value.cast::<T>().drop_in_place() };
    }
}

/// The state bits that objects of this type are born with.
const fn born<T: Trace>() -> u8 {
    let tracked = if T::TRACKED { state::TRACKED } else { 0 };
    tracked | if T::HAS_FINALIZER { state::FINALIZER } else { 0 }
}

/// The size class of objects whose values need no destructor; `None`: they need one, or are large.
const fn class_of_plain<T>() -> Option<u8> {
    if std::mem::needs_drop::<T>() { None } else { Layout::<T>::CLASS }
}

/// From a header to a value with this alignment.
pub(crate) const fn offset(align: usize) -> usize {
    assert!(
        align <= crate::memory::space::MAX_ALIGN,
        "the alignment is too large for a garbage collected object"
    );
    size_of::<Header>().next_multiple_of(align)
}

/// Allocates an object, and gives the value back if there is no room.
#[inline]
pub(crate) fn allocate<T: Trace + Send + Sync>(m: &Raw, value: T) -> Result<Gc<T>, AllocError<T>> {
    match const { Layout::<T>::CLASS } {
        Some(class) => allocate_small(m, class, value),
        None => allocate_large(m, value),
    }
}

#[inline]
fn allocate_small<T: Trace + Send + Sync>(
    m: &Raw,
    class: u8,
    value: T,
) -> Result<Gc<T>, AllocError<T>> {
    // Nothing in between unwinds; if the compiler had to drop the value in that case, it would build it on the stack
    // first and copy it, with loads that wait for the stores.
    let value = ManuallyDrop::new(value);
    match m.allocate_cell(class) {
        // SAFETY: rule N: fresh memory of the type's class, which nobody else knows.
        Ok(cell) => unsafe {
            cell.add(Layout::<T>::OFFSET).cast().write(value);
            Ok(publish(m, cell))
        },
        Err(reason) => Err(AllocError::new(ManuallyDrop::into_inner(value), reason)),
    }
}

/// As few copies of the value as can be: it is large.
#[inline(never)]
fn allocate_large<T: Trace + Send + Sync>(m: &Raw, value: T) -> Result<Gc<T>, AllocError<T>> {
    match m.allocate(Layout::<T>::SIZE, Layout::<T>::ALIGN) {
        // SAFETY: rule N: fresh memory of the type's size, which nobody else knows.
        Ok(cell) => unsafe {
            cell.add(Layout::<T>::OFFSET).cast::<T>().write(value);
            Ok(publish(m, cell))
        },
        Err(reason) => Err(AllocError::new(value, reason)),
    }
}

/// Makes memory that holds a value an object.
///
/// # Safety
///
/// There is a `T` at its offset, and nobody else knows the memory.
#[inline(always)]
unsafe fn publish<T: Trace + Send + Sync>(m: &Raw, cell: NonNull<u8>) -> Gc<T> {
    let index = managed::type_index(m, Typed::<T>::INFO);
    let header = cell.cast::<Header>();
    // SAFETY: as the caller says.
    unsafe {
        header.write(Header::new(m.id(), index));
        m.publish_as(object(header), const { born::<T>() });
        Gc::from_header(header)
    }
}

/// A counted reference to an object of a [`Heap`](crate::Heap).
///
/// One word, never null. Cloning and dropping it counts: plainly and without an atomic
/// read-modify-write on the thread that allocated the object, atomically elsewhere. It can be sent to
/// other threads, held while detached, in statics, and in objects of other heaps: a reference held
/// anywhere outside its heap keeps the object alive, like a root, and needs no registration. References
/// *between* objects of one heap are those that the objects' [`Trace`] shows; cycles of them are
/// collected.
///
/// To look at the value takes a [`Mutator`]: [`get`](Self::get). Associated functions are called as
/// `Gc::downgrade(&gc, &m)`, so that they do not get in the way of names that users choose.
///
/// Dropped on a thread that is not attached to its heap, the reference is put on a list that the next
/// attached thread at a safepoint drains.
///
/// ```
/// use standstill::{Gc, Heap};
///
/// let heap = Heap::new();
/// let m = heap.attach();
/// let a = m.alloc(String::from("shared"));
/// let b = a.clone();
/// assert!(Gc::ptr_eq(&a, &b));
/// assert_eq!(b.get(&m), "shared");
/// ```
#[repr(transparent)]
pub struct Gc<T> {
    header: NonNull<Header>,
    owns: PhantomData<T>,
}

// SAFETY: rule X: a `Gc` gives `&T` to any thread and may drop `T` on any: hence both bounds, as for `Arc`.
unsafe impl<T: Send + Sync> Send for Gc<T> {}
// SAFETY: as above.
unsafe impl<T: Send + Sync> Sync for Gc<T> {}

impl<T> std::panic::UnwindSafe for Gc<T> {}
impl<T> std::panic::RefUnwindSafe for Gc<T> {}

impl<T> Gc<T> {
    /// # Safety
    ///
    /// The caller gives a reference to an object that holds a `T`.
    pub(crate) unsafe fn from_header(header: NonNull<Header>) -> Self {
        Self { header, owns: PhantomData }
    }

    #[inline(always)]
    pub(crate) fn header(&self) -> NonNull<Header> {
        self.header
    }

    /// Gives the reference up as a bare pointer.
    pub(crate) fn into_header(self) -> NonNull<Header> {
        ManuallyDrop::new(self).header
    }

    #[inline(always)]
    fn counts(&self) -> &Header {
        // SAFETY: rule R: this reference keeps the object alive.
        unsafe { self.header.as_ref() }
    }

    /// Whether two handles refer to the same object.
    #[inline]
    pub fn ptr_eq(this: &Self, other: &Self) -> bool {
        this.header == other.header
    }
}

impl<T: Trace> Gc<T> {
    /// The value, for as long as both the handle and the mutator are borrowed: that is, up to the next
    /// safepoint at most.
    ///
    /// # Panics
    ///
    /// When the object belongs to another heap than the mutator; see [`try_get`](Self::try_get).
    #[inline]
    pub fn get<'a>(&'a self, m: &'a Mutator) -> &'a T {
        match self.try_get(m) {
            Ok(value) => value,
            Err(foreign) => foreign_panic(foreign),
        }
    }

    /// The value, or an error if the object belongs to another heap than the mutator.
    #[inline]
    pub fn try_get<'a>(&'a self, m: &'a Mutator) -> Result<&'a T, ForeignGc> {
        if !m.raw().owns(object(self.header)) {
            return Err(ForeignGc);
        }
        // SAFETY: rule R: this reference keeps the object alive, and nobody gets `&mut` to its value.
        Ok(unsafe { self.value().as_ref() })
    }

    #[inline(always)]
    fn value(&self) -> NonNull<T> {
        // SAFETY: rule Y: an object of type `T` has its value there.
        unsafe { self.header.cast::<u8>().add(Layout::<T>::OFFSET).cast() }
    }

    /// The address of the value. It stays where it is as long as the object lives.
    pub fn as_ptr(this: &Self) -> *const T {
        this.value().as_ptr()
    }

    /// How many references to the object exist; `usize::MAX`: it is immortal. A snapshot while other threads
    /// run, and never a proof of anything; for tests and statistics.
    ///
    /// # Panics
    ///
    /// When the object belongs to another heap than the mutator.
    pub fn strong_count(this: &Self, m: &Mutator) -> usize {
        strong_count(this.header, m)
    }

    /// A weak reference to the object: it does not keep it alive.
    ///
    /// # Panics
    ///
    /// When the object belongs to another heap than the mutator.
    pub fn downgrade(this: &Self, m: &Mutator) -> GcWeak<T> {
        check(this.header, m);
        let record = m.raw().model().weak.record(this.counts());
        GcWeak { record: Some(record.unwrap_or_else(NoMemory::end_process)), target: PhantomData }
    }

    /// Allocates an object whose value holds weak references to the object itself.
    ///
    /// Until it is allocated, upgrading them gives `None`.
    ///
    /// # Panics
    ///
    /// When the heap is full.
    pub fn new_cyclic(m: &Mutator, value: impl FnOnce(&GcWeak<T>) -> T) -> Self
    where
        T: Send + Sync,
    {
        let record = WeakRecord::unborn().unwrap_or_else(NoMemory::end_process);
        let weak = GcWeak { record: Some(record.clone()), target: PhantomData };
        let this = m.alloc(value(&weak));
        let born = m.raw().model().weak.born(&record, this.counts());
        born.unwrap_or_else(NoMemory::end_process);
        this
    }

    /// Whether the object is in the tracked set: only tracked objects are collected in cycles.
    ///
    /// # Panics
    ///
    /// Like the following, when the object belongs to another heap than the mutator.
    pub fn is_tracked(this: &Self, m: &Mutator) -> bool {
        check(this.header, m);
        // SAFETY: rule R: alive, and of this heap.
        unsafe { m.raw().is_tracked(object(this.header)) }
    }

    /// Puts the object into the tracked set; `false`: it was in it. Objects are born tracked, unless
    /// their type says otherwise ([`Trace::TRACKED`]). Any attached thread may do this, at any time.
    pub fn track(this: &Self, m: &Mutator) -> bool {
        check(this.header, m);
        // SAFETY: as in `is_tracked`.
        unsafe { m.raw().track(object(this.header)) }
    }

    /// Takes the object out of the tracked set; `false`: it was not in it. The object's references count as
    /// held from outside then: they keep their targets alive, and cycles through it leak.
    pub fn untrack(this: &Self, m: &Mutator) -> bool {
        check(this.header, m);
        // SAFETY: as in `is_tracked`.
        unsafe { m.raw().untrack(object(this.header)) }
    }

    /// Whether the object's finalizer has been called.
    pub fn is_finalized(this: &Self, m: &Mutator) -> bool {
        check(this.header, m);
        // SAFETY: as in `is_tracked`.
        unsafe { m.raw().is_finalized(object(this.header)) }
    }

    /// Makes the object immortal: it is never freed, nor is what it refers to. For what lives as long as the
    /// program and is shared by many threads.
    pub fn immortalize(this: &Self, m: &Mutator) {
        check(this.header, m);
        this.counts().make_immortal();
    }

    /// The same reference without its type.
    pub fn into_any(this: Self) -> AnyGc {
        AnyGc { header: this.into_header() }
    }
}

#[cold]
#[inline(never)]
fn foreign_panic(foreign: ForeignGc) -> ! {
    panic!("{foreign}")
}

/// Panics for an object of another heap.
#[track_caller]
#[inline]
pub(crate) fn check(header: NonNull<Header>, m: &Mutator) {
    if !m.raw().owns(object(header)) {
        foreign_panic(ForeignGc);
    }
}

fn strong_count(header: NonNull<Header>, m: &Mutator) -> usize {
    check(header, m);
    // SAFETY: rule R: the caller's reference keeps the object alive.
    match unsafe { header.as_ref() }.count() {
        Some(count) => usize::try_from(count).unwrap_or(0),
        None => usize::MAX,
    }
}

impl<T> Clone for Gc<T> {
    #[inline(always)]
    fn clone(&self) -> Self {
        self.counts().clone_ref(current());
        Self { header: self.header, owns: PhantomData }
    }
}

impl<T> Drop for Gc<T> {
    #[inline(always)]
    fn drop(&mut self) {
        // SAFETY: rule R: this value owned a reference.
        unsafe {
            match const { class_of_plain::<T>() } {
                Some(class) => drop_reference_to_plain(self.header, class),
                None => {
                    drop_reference_to::<T>(self.header, Layout::<T>::OFFSET, Layout::<T>::CLASS)
                }
            }
        }
    }
}

impl<T: Trace> Trace for Gc<T> {
    const IS_HANDLE: bool = true;

    #[inline(always)]
    fn fetch_target(&self) -> bool {
        prefetch(self.header.as_ptr().cast());
        true
    }

    #[inline(always)]
    fn traverse(&self, tracer: &mut Tracer) {
        tracer.target(self.target());
    }

    #[inline(always)]
    fn target(&self) -> Target<'_> {
        Target::at(self.header.as_ptr() as usize)
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
    /// Reports a reference: call it for each handle that the traversed value owns.
    #[inline(always)]
    pub fn visit<T>(&mut self, gc: &Gc<T>) {
        self.edge(gc.header.as_ptr() as usize);
    }

    /// Reports a reference without its type.
    #[inline(always)]
    pub fn visit_any(&mut self, gc: &AnyGc) {
        self.edge(gc.header.as_ptr() as usize);
    }
}

/// A [`Gc`] without its type: one word, counted, for registries, interpreters' values and inspection.
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
pub struct AnyGc {
    header: NonNull<Header>,
}

// SAFETY: rule X: objects are `Send + Sync` when they are allocated.
unsafe impl Send for AnyGc {}
// SAFETY: as above.
unsafe impl Sync for AnyGc {}

impl AnyGc {
    /// # Safety
    ///
    /// The caller gives a reference.
    pub(crate) unsafe fn from_header(header: NonNull<Header>) -> Self {
        Self { header }
    }

    pub(crate) fn header(&self) -> NonNull<Header> {
        self.header
    }

    fn into_header(self) -> NonNull<Header> {
        ManuallyDrop::new(self).header
    }

    fn info(&self, m: &Mutator) -> &'static TypeInfo {
        check(self.header, m);
        // SAFETY: rule R: this reference keeps the object alive.
        m.raw().model().types.get(unsafe { self.header.as_ref() }.type_index())
    }

    /// Whether the value is a `T`.
    ///
    /// # Panics
    ///
    /// Like all methods that take a mutator, when the object belongs to another heap.
    pub fn is<T: 'static>(&self, m: &Mutator) -> bool {
        (self.info(m).id)() == TypeId::of::<T>()
    }

    /// The typed handle, or this one back if the value is not a `T`.
    pub fn downcast<T: Trace>(self, m: &Mutator) -> Result<Gc<T>, Self> {
        if self.is::<T>(m) {
            // SAFETY: rules Y and R: just asked; the reference goes over.
            Ok(unsafe { Gc::from_header(self.into_header()) })
        } else {
            Err(self)
        }
    }

    /// The value, if it is a `T`.
    pub fn downcast_ref<'a, T: Trace>(&'a self, m: &'a Mutator) -> Option<&'a T> {
        self.is::<T>(m).then(|| {
            // SAFETY: rules Y and R: just asked; this reference keeps the object alive for `'a`.
            unsafe { self.header.cast::<u8>().add(Layout::<T>::OFFSET).cast::<T>().as_ref() }
        })
    }

    /// The name of the value's type, as [`std::any::type_name`] gives it, or that of a dynamic object's type.
    pub fn type_name(&self, m: &Mutator) -> &str {
        let info = self.info(m);
        // SAFETY: rules R, Y and D: this reference keeps the object alive, and thereby its type.
        unsafe {
            // loom's models know no dynamic objects.
            #[cfg(not(all(test, loom)))]
            if std::ptr::eq(info, &raw const crate::dynamic::INFO) {
                return crate::dynamic::type_of(self.header.cast()).name();
            }
            (info.name)(self.header)
        }
    }

    /// Whether two handles refer to the same object.
    pub fn ptr_eq(this: &Self, other: &Self) -> bool {
        this.header == other.header
    }

    /// See [`Gc::strong_count`].
    pub fn strong_count(&self, m: &Mutator) -> usize {
        strong_count(self.header, m)
    }

    /// See [`Gc::is_tracked`].
    pub fn is_tracked(&self, m: &Mutator) -> bool {
        check(self.header, m);
        // SAFETY: rule R: alive, and of this heap.
        unsafe { m.raw().is_tracked(object(self.header)) }
    }

    /// See [`Gc::track`]. `false` also for a dynamic object that takes no part in cycle collection: it stays untracked.
    pub fn track(&self, m: &Mutator) -> bool {
        check(self.header, m);
        // loom's models know no dynamic objects.
        #[cfg(not(all(test, loom)))]
        if std::ptr::eq(self.info(m), &raw const crate::dynamic::INFO) {
            // SAFETY: rules R, Y and D: this reference keeps the object alive, which is a dynamic one.
            let takes_part = unsafe { crate::dynamic::is_gc(self.header.cast()) };
            if !takes_part {
                return false;
            }
        }
        // SAFETY: as in `is_tracked`.
        unsafe { m.raw().track(object(self.header)) }
    }

    /// See [`Gc::untrack`].
    pub fn untrack(&self, m: &Mutator) -> bool {
        check(self.header, m);
        // SAFETY: as in `is_tracked`.
        unsafe { m.raw().untrack(object(self.header)) }
    }

    /// See [`Gc::is_finalized`].
    pub fn is_finalized(&self, m: &Mutator) -> bool {
        check(self.header, m);
        // SAFETY: as in `is_tracked`.
        unsafe { m.raw().is_finalized(object(self.header)) }
    }

    /// See [`Gc::immortalize`].
    pub fn immortalize(&self, m: &Mutator) {
        check(self.header, m);
        // SAFETY: rule R: this reference keeps the object alive.
        unsafe { self.header.as_ref() }.make_immortal();
    }
}

impl<T: Trace> From<Gc<T>> for AnyGc {
    fn from(gc: Gc<T>) -> Self {
        Gc::into_any(gc)
    }
}

impl Clone for AnyGc {
    #[inline(always)]
    fn clone(&self) -> Self {
        // SAFETY: rule R: this reference keeps the object alive.
        unsafe { self.header.as_ref() }.clone_ref(current());
        Self { header: self.header }
    }
}

impl Drop for AnyGc {
    #[inline(always)]
    fn drop(&mut self) {
        // SAFETY: rule R: this value owned a reference.
        unsafe { drop_reference(self.header) };
    }
}

impl Trace for AnyGc {
    const IS_HANDLE: bool = true;

    #[inline(always)]
    fn fetch_target(&self) -> bool {
        prefetch(self.header.as_ptr().cast());
        true
    }

    #[inline(always)]
    fn traverse(&self, tracer: &mut Tracer) {
        tracer.target(self.target());
    }

    #[inline(always)]
    fn target(&self) -> Target<'_> {
        Target::at(self.header.as_ptr() as usize)
    }
}

impl fmt::Debug for AnyGc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AnyGc({:p})", self.header)
    }
}

/// A [`Gc`] whose value is looked at through a trait, on stable Rust.
///
/// Two words and a half of indirection less than `Gc<Box<dyn Trait>>`: the handle, and the reference that the
/// given function made of the value.
///
/// ```
/// use std::fmt::Display;
/// use standstill::{GcDyn, Heap};
///
/// let heap = Heap::new();
/// let m = heap.attach();
/// type Shown = GcDyn<dyn Display>;
/// let shown = [Shown::new(m.alloc(1u8), |n| n, &m), Shown::new(m.alloc("two".to_owned()), |s| s, &m)];
/// assert_eq!(shown[1].get(&m).to_string(), "two");
/// ```
pub struct GcDyn<D: ?Sized> {
    gc: AnyGc,
    view: NonNull<D>,
}

// SAFETY: rule X: as of a `Gc`: the view is shared, and what it belongs to may be dropped anywhere.
unsafe impl<D: ?Sized + Sync> Send for GcDyn<D> {}
// SAFETY: as above. The object itself is `Send + Sync`; the view needs `Sync` alone, being only shared.
unsafe impl<D: ?Sized + Sync> Sync for GcDyn<D> {}

impl<D: ?Sized> GcDyn<D> {
    /// Looks at `gc`'s value through `view` from now on.
    ///
    /// # Panics
    ///
    /// When the object belongs to another heap than the mutator.
    pub fn new<T: Trace>(
        gc: Gc<T>,
        view: impl for<'a> FnOnce(&'a T) -> &'a D,
        m: &Mutator,
    ) -> Self {
        // The value is only ever shared until it is destroyed, and does not move. So the borrow could last
        // as long as the object, and `view` is good for every length.
        let view = NonNull::from(view(gc.get(m)));
        Self { gc: Gc::into_any(gc), view }
    }

    /// The view.
    ///
    /// # Panics
    ///
    /// When the object belongs to another heap than the mutator.
    pub fn get<'a>(&'a self, m: &'a Mutator) -> &'a D {
        check(self.gc.header, m);
        // SAFETY: rule R: made from a borrow of the value, which lasts as long as the object; `gc` keeps that alive.
        unsafe { self.view.as_ref() }
    }

    /// The untyped handle.
    pub fn as_any(&self) -> &AnyGc {
        &self.gc
    }
}

impl<D: ?Sized> Clone for GcDyn<D> {
    fn clone(&self) -> Self {
        Self { gc: self.gc.clone(), view: self.view }
    }
}

impl<D: ?Sized + 'static> Trace for GcDyn<D> {
    fn traverse(&self, tracer: &mut Tracer) {
        tracer.visit_any(&self.gc);
    }
}

impl<D: ?Sized> fmt::Debug for GcDyn<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "GcDyn<{}>({:p})", std::any::type_name::<D>(), self.gc.header)
    }
}

/// A reference that does not keep its object alive.
///
/// It is dead once the object's destruction has begun, or a collection has found the object to be
/// garbage and run the finalizers. It can be cloned, sent and dropped anywhere. It holds no edge: a
/// cycle through it is none.
pub struct GcWeak<T> {
    record: Option<Shared<WeakRecord>>,
    target: PhantomData<fn() -> Gc<T>>,
}

impl<T> GcWeak<T> {
    /// A weak reference to nothing.
    pub const fn new() -> Self {
        Self { record: None, target: PhantomData }
    }

    /// Whether two weak references were made for the same object (or both for none).
    pub fn ptr_eq(&self, other: &Self) -> bool {
        match (&self.record, &other.record) {
            (Some(a), Some(b)) => Shared::ptr_eq(a, b),
            (None, None) => true,
            _ => false,
        }
    }
}

impl<T: Trace> GcWeak<T> {
    /// A strong reference, if the object lives.
    ///
    /// # Panics
    ///
    /// When the object lives in another heap than the mutator's.
    pub fn upgrade(&self, m: &Mutator) -> Option<Gc<T>> {
        let header = upgrade(self.record.as_ref()?, m)?;
        // SAFETY: rules R and Y: a fresh reference; the record was made for an object of type `T`.
        Some(unsafe { Gc::from_header(header) })
    }
}

/// Upgrades through a record; panics for a live object of another heap that is still open.
fn upgrade(record: &WeakRecord, m: &Mutator) -> Option<NonNull<Header>> {
    let raw = m.raw();
    let result = record.with_target(|header| {
        if !raw.owns(object(NonNull::from(header))) {
            // SAFETY: rule R: the object lives while the record says so, and keeps its heap's core.
            let core = unsafe {
                &*crate::memory::space::Space::heap_of(std::ptr::from_ref(header) as usize)
                    .cast::<managed::Core>()
            };
            return if core.model.is_closed() { Ok(None) } else { Err(ForeignGc) };
        }
        Ok(header.try_upgrade(raw.id()).then(|| NonNull::from(header)))
    });
    match result? {
        Ok(header) => header,
        Err(foreign) => foreign_panic(foreign),
    }
}

impl<T> Default for GcWeak<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> Clone for GcWeak<T> {
    fn clone(&self) -> Self {
        Self { record: self.record.clone(), target: PhantomData }
    }
}

impl<T: 'static> Trace for GcWeak<T> {
    const TRACKED: bool = false;

    fn traverse(&self, _: &mut Tracer) {}
}

impl<T> fmt::Debug for GcWeak<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "GcWeak<{}>", std::any::type_name::<T>())
    }
}

/// The function that a [`WeakRef`] calls when its target is gone.
pub type WeakCallback<T, D> = fn(&Gc<WeakRef<T, D>>, &Mutator);

/// A weak reference with a callback: an object of the heap itself, made by
/// [`Mutator::alloc_weak`].
///
/// When the target dies, or a collection finds it to be garbage, the weak reference is cleared and its callback
/// is called, once, with the world running, unless the weak reference is garbage itself by then. In a
/// collection that is before any finalizer runs, and before the other weak references
/// to the target are cleared: CPython's order.
///
/// `data` is whatever the callback needs; it is traced.
pub struct WeakRef<T, D> {
    record: Shared<WeakRecord>,
    cleared: Shared<AtomicBool>,
    data: D,
    callback: WeakCallback<T, D>,
    target: PhantomData<fn() -> Gc<T>>,
}

impl<T: Trace, D: Trace + Send + Sync> WeakRef<T, D> {
    pub(crate) fn alloc(
        target: &Gc<T>,
        data: D,
        callback: WeakCallback<T, D>,
        m: &Mutator,
    ) -> Result<Gc<Self>, AllocError<D>> {
        check(target.header, m);
        let raw = m.raw();
        let record = raw.model().weak.record(target.counts()).unwrap_or_else(NoMemory::end_process);
        let cleared = Shared::new(AtomicBool::new(false)).unwrap_or_else(NoMemory::end_process);
        let this = Self {
            record: record.clone(),
            cleared: cleared.clone(),
            data,
            callback,
            target: PhantomData,
        };
        let this = allocate(raw, this).map_err(|error| {
            let reason: OutOfMemory = error.reason();
            AllocError::new(error.into_inner().data, reason)
        })?;
        let own = raw.model().weak.record(this.counts()).unwrap_or_else(NoMemory::end_process);
        let watched = record.watch(Watcher { weak_ref: own, cleared, invoke: Self::invoke });
        watched.unwrap_or_else(NoMemory::end_process);
        Ok(this)
    }

    unsafe fn invoke(header: NonNull<Header>, m: *const ()) {
        // A handle that borrows the caller's reference.
        // SAFETY: rule Y: registered with an object of this type; `m` is a mutator.
        let (this, m) =
            unsafe { (ManuallyDrop::new(Gc::<Self>::from_header(header)), managed::mutator(m)) };
        (this.get(m).callback)(&this, m);
    }
}

impl<T: Trace, D> WeakRef<T, D> {
    /// A strong reference to the target, if it lives and this weak reference has not been cleared.
    ///
    /// # Panics
    ///
    /// When the target lives in another heap than the mutator's.
    pub fn upgrade(&self, m: &Mutator) -> Option<Gc<T>> {
        // Acquire: pairs with the release in `take_watchers`.
        if self.cleared.load(Ordering::Acquire) {
            return None;
        }
        let header = upgrade(&self.record, m)?;
        // SAFETY: rules R and Y: a fresh reference; the record was made for an object of type `T`.
        Some(unsafe { Gc::from_header(header) })
    }

    /// What the callback was given to work with.
    pub fn data(&self) -> &D {
        &self.data
    }
}

impl<T: 'static, D: Trace> Trace for WeakRef<T, D> {
    fn traverse(&self, tracer: &mut Tracer) {
        self.data.traverse(tracer);
    }

    fn clear(&self, m: &Mutator) {
        self.data.clear(m);
    }
}

impl<T, D> fmt::Debug for WeakRef<T, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WeakRef").finish_non_exhaustive()
    }
}
