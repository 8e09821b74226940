//! A `Gc` reads who owns its object before it counts, so a cache line that many threads count moves
//! twice for each count. A `SharedGc` need not read, because its object is *shared for life* (see
//! `object::header`): the owner's id and the flag `MERGED` stay until it is freed. So a clone is
//! one `fetch_add`, and a drop on an attached thread is one `fetch_sub`.

use std::fmt;
use std::mem::ManuallyDrop;
use std::ops::Deref;

use crate::managed::{self, drop_shared_for_life};
use crate::object::handle_places;
use crate::object::tracer::{Edge, Tracer};
use crate::report::error::AllocError;
use crate::typed::gc::{Gc, check, handle, identity, out_of_memory};
use crate::{Mutator, Trace};

/// A [`Gc`] for an object that several threads count at once.
///
/// A clone of a `Gc` first reads which thread owns the object, and then changes the count. If
/// several threads clone and drop references to one object at once, its cache line moves between
/// the cores twice for each of them. A `SharedGc` changes the count with one atomic instruction and
/// reads nothing before, as `Arc` does.
///
/// Use it for the few objects that all threads use all the time: the classes, modules and constants
/// of a runtime. Use [`Gc`] for all others. The thread that allocated an object clones and drops a
/// `Gc` about ten times faster than a `SharedGc`. An object of a `SharedGc` has no such thread, so
/// each count of it, also through a `Gc`, is atomic.
///
/// [`Mutator::alloc_shared`] allocates an object for this handle, and [`Gc::try_share`] turns a
/// `Gc` into one. [`as_gc`](Self::as_gc) lends the `Gc` with its functions, among them
/// [`Gc::downgrade`] for weak references. In all other respects the handles are alike. A `SharedGc`
/// is one word, can be stored in objects, and compares by identity, and the collector frees cycles
/// through it. [`AtomicGc`](crate::AtomicGc), [`GcOnce`](crate::GcOnce) and [`GcVec`](crate::GcVec)
/// hold `Gc`s, also to shared objects.
///
/// An object that has 2²⁶ references at once becomes immortal, and is never freed.
///
/// ```
/// use standstill::{Gc, GcCell, Heap, SharedGc, Trace};
///
/// #[derive(Trace)]
/// struct Class {
///     name: &'static str,
///     base: GcCell<Option<SharedGc<Class>>>,
/// }
///
/// let heap = Heap::new();
/// let m = heap.attach();
/// let object = m.alloc_shared(Class { name: "object", base: GcCell::default() });
/// let list = m.alloc_shared(Class { name: "list", base: GcCell::new(Some(object.clone())) });
/// assert_eq!(list.base.get(&m).unwrap().name, "object");
/// assert!(list.base.get(&m).unwrap() == object, "the same object");
/// assert_eq!(Gc::strong_count(SharedGc::as_gc(&object)), 2);
/// ```
#[repr(transparent)]
pub struct SharedGc<T>(ManuallyDrop<Gc<T>>);

impl<T> SharedGc<T> {
    /// The same reference as a [`Gc`], borrowed. A clone of it counts as any `Gc` does.
    #[inline(always)]
    pub fn as_gc(this: &Self) -> &Gc<T> {
        &this.0
    }
}

impl<T: Trace> Gc<T> {
    /// Makes the object one for [`SharedGc`] handles, for the rest of its life. Other `Gc` handles
    /// to the object stay valid, and the reference count is unchanged.
    ///
    /// # Errors
    ///
    /// Returns the handle if another thread owns the object: the thread that allocated it, unless
    /// that thread has dropped its last reference or has ended. Returns the handle too while the
    /// object waits until its owner adds up the count after drops by other threads. After that the
    /// object has no owner, and any thread can share it.
    ///
    /// # Panics
    ///
    /// If the object belongs to another heap than the mutator.
    #[track_caller]
    pub fn try_share(this: Self, m: &Mutator) -> Result<SharedGc<T>, Self> {
        check(this.header(), m);
        if !this.counts().is_owned_by(m.raw().id()) {
            managed::inherit(m.raw(), this.counts());
        }
        if this.counts().share_for_life(m.raw().id()) {
            Ok(SharedGc(ManuallyDrop::new(this)))
        } else {
            Err(this)
        }
    }
}

impl Mutator {
    /// Allocates an object for [`SharedGc`] handles. As for [`alloc`](Self::alloc), `T` must be
    /// `Send + Sync`.
    ///
    /// # Panics
    ///
    /// If the heap is full. [`try_alloc_shared`](Self::try_alloc_shared) returns an error instead.
    #[track_caller]
    pub fn alloc_shared<T: Trace + Send + Sync>(&self, value: T) -> SharedGc<T> {
        match self.try_alloc_shared(value) {
            Ok(shared) => shared,
            Err(error) => out_of_memory(error),
        }
    }

    /// Allocates an object for [`SharedGc`] handles.
    ///
    /// # Errors
    ///
    /// As [`try_alloc`](Self::try_alloc).
    #[cfg_attr(feature = "handle-places", track_caller)]
    pub fn try_alloc_shared<T: Trace + Send + Sync>(
        &self,
        value: T,
    ) -> Result<SharedGc<T>, AllocError<T>> {
        let gc = self.try_alloc(value)?;
        match Gc::try_share(gc, self) {
            Ok(shared) => Ok(shared),
            Err(_) => unreachable!("this mutator owns the new object, and no other thread has it"),
        }
    }
}

impl<T> From<SharedGc<T>> for Gc<T> {
    /// The reference count is unchanged.
    fn from(shared: SharedGc<T>) -> Self {
        let mut shared = ManuallyDrop::new(shared);
        // SAFETY: rule *counted*: the result takes over the reference, and `shared` is not dropped.
        unsafe { ManuallyDrop::take(&mut shared.0) }
    }
}

impl<T> Clone for SharedGc<T> {
    #[inline(always)]
    #[cfg_attr(feature = "handle-places", track_caller)]
    fn clone(&self) -> Self {
        self.0.counts().clone_shared();
        handle_places::made(self.0.header().as_ptr() as usize);
        // SAFETY: rule *counted*: the reference just counted.
        Self(ManuallyDrop::new(unsafe { Gc::from_header(self.0.header()) }))
    }
}

impl<T> Drop for SharedGc<T> {
    #[inline(always)]
    fn drop(&mut self) {
        // SAFETY: rule *counted*: this value owned a reference. The object is shared for life since
        // the first `SharedGc` to it exists.
        unsafe { drop_shared_for_life(self.0.header()) };
    }
}

impl<T> Deref for SharedGc<T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        &self.0
    }
}

identity!([T] SharedGc<T>, 0);
handle!([T: Trace] SharedGc<T>, |this| this.0.header());

impl<T> fmt::Debug for SharedGc<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SharedGc<{}>({:p})", std::any::type_name::<T>(), *self.0)
    }
}
