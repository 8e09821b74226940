//! Mutators of a heap of typed objects.

use std::fmt;
use std::marker::PhantomData;

use crate::base::error::AttachError;
use crate::base::event::CollectionReport;
use crate::collect::{Collect, CollectError};
use crate::heap::model_heap::ModelHeap;
use crate::heap::mutator::Unmarked;
use crate::managed::{Managed, Raw};
use crate::typed::heap::Heap;

/// A thread's attachment to a heap. Its methods need an attached thread, and the value proves that
/// the thread is attached.
///
/// A mutator stays on its thread (it is neither `Send` nor `Sync`), and a thread has at most one. A
/// borrow from an object also borrows the mutator, and [`safepoint`](Self::safepoint),
/// [`detach`](Self::detach) and [`collect`](Self::collect) take `&mut self`. So the compiler proves
/// that no thread parks during a change of an object, and that no thread keeps a borrow across a
/// stop.
///
/// Call [`safepoint`](Self::safepoint) regularly, in loops or between bytecodes, because a stop
/// waits for it. Block only inside [`detach`](Self::detach). When the mutator is dropped, the
/// thread detaches and the attachment ends. If the mutator is leaked, every stop of its heap fails
/// once its thread has ended.
#[repr(transparent)]
pub struct Mutator {
    pub(super) raw: Unmarked<Raw>,
    /// Neither `Send` nor `Sync`.
    thread: PhantomData<*mut ()>,
}

impl Mutator {
    #[inline(always)]
    pub(crate) fn raw(&self) -> &Raw {
        &self.raw.0
    }

    #[inline(always)]
    pub(crate) fn id(&self) -> u64 {
        self.raw.0.id()
    }

    pub(super) fn into_raw(self) -> Raw {
        self.raw.0
    }

    pub(super) fn from_raw(raw: Raw) -> Self {
        Self { raw: Unmarked(raw), thread: PhantomData }
    }

    pub(crate) fn raw_mut(&mut self) -> &mut Raw {
        &mut self.raw.0
    }

    pub(crate) fn from_raw_mut(raw: &mut Raw) -> &mut Self {
        // SAFETY: rule *typed*: a transparent wrapper.
        unsafe { &mut *std::ptr::from_mut(raw).cast::<Self>() }
    }

    /// Calls `f` with the calling thread's mutator. This is for code that gets no mutator as a
    /// parameter, such as a destructor. The code can use objects. It cannot reach a safepoint, so
    /// no borrow of its caller crosses a stop.
    ///
    /// Returns `None` if the thread is not attached to a heap of typed objects, is inside a
    /// traversal, or holds a stop.
    pub fn with_current<R>(f: impl FnOnce(&Self) -> R) -> Option<R> {
        Raw::with_current(|raw| {
            // SAFETY: rule *typed*: a transparent wrapper.
            f(unsafe { &*std::ptr::from_ref(raw).cast::<Self>() })
        })
    }

    /// Parks or collects here if the heap has requested it. Otherwise this is one relaxed load.
    ///
    /// It takes `&mut self`, so no borrow from an object is held across it.
    #[inline(always)]
    pub fn safepoint(&mut self) {
        self.raw.0.safepoint();
    }

    /// The heap to which the thread is attached.
    pub fn heap(&self) -> &Heap {
        Heap::from_model(self.raw.0.heap())
    }

    /// Runs `f` detached. Stops do not wait for the thread meanwhile, so `f` may block. The thread
    /// attaches again afterwards, even if `f` panics.
    ///
    /// The closure cannot use this mutator. It can clone and drop handles, and it can enter this
    /// heap or another heap with [`Heap::attach_scoped`].
    ///
    /// # Panics
    ///
    /// Inside a destructor, finalizer or callback that the library calls, inside a traversal, while
    /// the thread holds a stop, and while it keeps another thread suspended. The process aborts if
    /// `f` leaves the thread attached elsewhere, or keeps a [`DetachedFork`](crate::DetachedFork)
    /// or a [`Suspended`](crate::safepoint::Suspended), because the callers of this function rely
    /// on the attachment.
    #[track_caller]
    pub fn detach<R>(&mut self, f: impl FnOnce() -> R) -> R {
        self.raw.0.detach(f)
    }

    /// Tells the heap that its objects have got memory outside the heap, or, if `change` is
    /// negative, that they have given some up.
    ///
    /// The heap counts by itself what [`Trace::external_bytes`](crate::Trace::external_bytes)
    /// tells: the buffers of a `Vec` or `String`, also in a [`GcCell`](crate::GcCell). This
    /// function is for all else: memory of a foreign library, or behind a lock or an `Arc`. It is
    /// called once when the memory is allocated, and once with the opposite sign when it is freed,
    /// for example in a destructor:
    ///
    /// ```
    /// use std::sync::{Arc, Mutex};
    /// use standstill::{Heap, Mutator, Trace};
    ///
    /// #[derive(Trace)]
    /// struct Image { pixels: Arc<Mutex<Vec<u8>>>, bytes: usize }
    ///
    /// impl Drop for Image {
    ///     fn drop(&mut self) {
    ///         Mutator::with_current(|m| m.adjust_external_bytes(-(self.bytes as isize)));
    ///     }
    /// }
    ///
    /// let heap = Heap::new();
    /// let m = heap.attach();
    /// let image = m.alloc(Image { pixels: Arc::new(Mutex::new(vec![0; 1 << 20])), bytes: 1 << 20 });
    /// m.adjust_external_bytes(image.bytes as isize);
    /// assert_eq!(heap.stats().external_bytes, 1 << 20);
    /// drop(image);
    /// assert_eq!(heap.stats().external_bytes, 0);
    /// ```
    ///
    /// The bytes count like those of objects, for
    /// [`Pacing::young_bytes`](crate::Pacing::young_bytes) and
    /// [`Pacing::full_minimum_bytes`](crate::Pacing::full_minimum_bytes), and for the heap's
    /// [limit](crate::HeapBuilder::limit). Wrong numbers make collections too frequent or too rare,
    /// or have a heap with a limit refuse memory. They have no other effect. It costs a few
    /// instructions. It never fails and never collects; a collection may be due at the next
    /// safepoint, and beyond the limit the next allocation is refused.
    #[inline]
    pub fn adjust_external_bytes(&self, change: isize) {
        self.raw.0.adjust_external_bytes(change);
    }

    /// Runs a full collection. Waits first for the end of a running collection.
    ///
    /// # Panics
    ///
    /// If [`try_collect`](Self::try_collect) returns an error, for example because a thread ended
    /// without dropping its mutator.
    #[track_caller]
    pub fn collect(&mut self) -> CollectionReport {
        self.raw.0.collect()
    }

    /// Collects among the objects allocated since the last collection or
    /// [promotion](crate::HeapStats::promotions).
    ///
    /// # Panics
    ///
    /// The same as [`collect`](Self::collect).
    #[track_caller]
    pub fn collect_young(&mut self) -> CollectionReport {
        self.raw.0.collect_young()
    }

    /// Runs the collection that `what` describes.
    ///
    /// # Errors
    ///
    /// If the world cannot be stopped, or if another thread is collecting and `what` says not to
    /// wait.
    pub fn try_collect(&mut self, what: Collect) -> Result<CollectionReport, CollectError> {
        self.raw.0.try_collect(what)
    }
}

impl Heap {
    /// Attaches the calling thread to this heap.
    ///
    /// # Panics
    ///
    /// If [`try_attach`](Self::try_attach) returns an error.
    #[track_caller]
    pub fn attach(&self) -> Mutator {
        match self.try_attach() {
            Ok(mutator) => mutator,
            Err(error) => panic!("{error}"),
        }
    }

    /// Attaches the calling thread to this heap. Waits while the heap's world is stopped.
    ///
    /// # Errors
    ///
    /// If the thread is already attached to this heap or another heap, is inside a traversal, or is
    /// ending. Inside the closure of [`Mutator::detach`], only
    /// [`attach_scoped`](Self::attach_scoped) is allowed. [`AttachError`] lists all cases.
    pub fn try_attach(&self) -> Result<Mutator, AttachError> {
        self.0.try_attach().map(Mutator::from_raw)
    }

    /// Attaches the calling thread for the duration of a closure. It is also allowed inside
    /// [`Mutator::detach`], for this heap or another heap.
    ///
    /// # Panics
    ///
    /// If the thread is attached, is inside a traversal, or is ending. [`AttachError`] lists all
    /// cases.
    #[track_caller]
    pub fn attach_scoped<R>(&self, f: impl FnOnce(&mut Mutator) -> R) -> R {
        self.0.attach_scoped(|raw| f(Mutator::from_raw_mut(raw)))
    }

    /// The heap of a model's handle.
    pub(super) fn from_model(heap: &ModelHeap<Managed>) -> &Self {
        // SAFETY: rule *typed*: a transparent wrapper.
        unsafe { &*std::ptr::from_ref(heap).cast::<Self>() }
    }
}

/// The mutator behind an opaque pointer, for the functions of type tables.
///
/// # Safety
///
/// The pointer was made from a `&Raw` that is the content of a [`Mutator`].
pub(crate) unsafe fn mutator<'a>(m: *const ()) -> &'a Mutator {
    // SAFETY: rule *typed*: `Mutator` is a transparent wrapper of `Raw`.
    unsafe { &*m.cast::<Mutator>() }
}

impl fmt::Debug for Mutator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mutator").field("id", &self.id()).field("heap", self.heap()).finish()
    }
}
