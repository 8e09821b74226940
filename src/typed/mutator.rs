//! Floor 5: the typed face of mutators.

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use crate::base::error::AttachError;
use crate::base::event::CollectionReport;
use crate::collect::{Collect, CollectError};
use crate::heap::core::Handle;
use crate::heap::model::ModelMutator;
use crate::heap::mutator::Unmarked;
use crate::managed::{Managed, Raw};
use crate::typed::heap::Heap;

/// A thread that is attached to a heap: the proof of it, and what it can do.
///
/// It belongs to its thread (neither `Send` nor `Sync`), and there is at most one per thread. Whatever is
/// borrowed from an object borrows the mutator, and [`safepoint`](Self::safepoint),
/// [`detach`](Self::detach) and [`collect`](Self::collect) take `&mut self`: so the compiler proves
/// that nobody parks in the middle of a change to an object, or keeps a reference over a stop.
///
/// Call [`safepoint`](Self::safepoint) regularly (in loops, between bytecodes): stops wait for it. Blocking
/// belongs into [`detach`](Self::detach). Dropping the mutator detaches the thread for good; one that is
/// leaked makes stops of its heap fail once its thread has ended.
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

    pub(crate) fn raw_mut(&mut self) -> &mut Raw {
        &mut self.raw.0
    }

    pub(crate) fn from_raw_mut(raw: &mut Raw) -> &mut Self {
        // SAFETY: rule Y: a transparent wrapper.
        unsafe { &mut *std::ptr::from_mut(raw).cast::<Self>() }
    }

    /// Calls `f` with the calling thread's mutator, if it has one: for code that is not handed one, as a
    /// destructor. It can touch objects; it can reach no safepoint under somebody's borrow.
    ///
    /// `None` on a thread that is not attached (to a heap of typed objects), inside a traversal, and while
    /// the thread holds a stop.
    pub fn with_current<R>(f: impl FnOnce(&Self) -> R) -> Option<R> {
        Raw::with_current(|raw| {
            // SAFETY: rule Y: a transparent wrapper.
            f(unsafe { &*std::ptr::from_ref(raw).cast::<Self>() })
        })
    }

    /// The heap.
    pub fn heap(&self) -> &Heap {
        let handle: *const Arc<Handle<Managed>> = self.raw.0.handle();
        // SAFETY: rule Y: `Heap` is a transparent wrapper of `ModelHeap`, and that of the handle.
        unsafe { &*handle.cast::<Heap>() }
    }

    /// Runs `f` detached: stops do not wait for this thread meanwhile, so it may block. Attached again
    /// afterwards, also when `f` panics.
    ///
    /// The closure cannot use this mutator. Handles can be cloned and dropped in it; another heap (or the
    /// same) can be entered with [`Heap::attach_scoped`].
    #[track_caller]
    pub fn detach<R>(&mut self, f: impl FnOnce() -> R) -> R {
        self.raw.0.detach(f)
    }

    /// Collects in full: waits for a collection that is running, and then runs one.
    ///
    /// # Panics
    ///
    /// When the world cannot be stopped because a thread ended without dropping its mutator; see
    /// [`try_collect`](Self::try_collect).
    #[track_caller]
    pub fn collect(&mut self) -> CollectionReport {
        match self.try_collect(Collect::full()) {
            Ok(report) => report,
            Err(error) => panic!("{error}"),
        }
    }

    /// Collects among what is new since the last collection, or [promotion](crate::HeapStats::promotions).
    ///
    /// # Panics
    ///
    /// Like [`collect`](Self::collect).
    #[track_caller]
    pub fn collect_young(&mut self) -> CollectionReport {
        match self.try_collect(Collect::young()) {
            Ok(report) => report,
            Err(error) => panic!("{error}"),
        }
    }

    /// Collects as `what` says.
    ///
    /// # Errors
    ///
    /// When the world cannot be stopped, or another thread is collecting and `what` says not to wait.
    pub fn try_collect(&mut self, what: Collect) -> Result<CollectionReport, CollectError> {
        self.raw.0.try_collect(what)
    }
}

impl Heap {
    /// Makes the calling thread a mutator of this heap.
    ///
    /// # Panics
    ///
    /// Where [`try_attach`](Self::try_attach) gives an error.
    #[track_caller]
    pub fn attach(&self) -> Mutator {
        match self.try_attach() {
            Ok(mutator) => mutator,
            Err(error) => panic!("{error}"),
        }
    }

    /// Makes the calling thread a mutator of this heap. Waits while the heap's world is stopped.
    ///
    /// # Errors
    ///
    /// When the thread is attached already, to whatever heap; inside a traversal; and in the closure of
    /// [`Mutator::detach`], where only [`attach_scoped`](Self::attach_scoped) is allowed.
    pub fn try_attach(&self) -> Result<Mutator, AttachError> {
        self.0.try_attach().map(|raw| Mutator { raw: Unmarked(raw), thread: PhantomData })
    }

    /// Attaches for the length of a closure. Also allowed inside [`Mutator::detach`], to enter a second heap.
    ///
    /// # Panics
    ///
    /// When the thread is attached, or inside a traversal.
    #[track_caller]
    pub fn attach_scoped<R>(&self, f: impl FnOnce(&mut Mutator) -> R) -> R {
        match ModelMutator::attach_scoped(&self.0.0, |raw| f(Mutator::from_raw_mut(raw))) {
            Ok(result) => result,
            Err(error) => panic!("{error}"),
        }
    }
}

/// The mutator behind an opaque pointer, as the functions of type tables get it.
///
/// # Safety
///
/// The pointer was made from a `&Raw`, which is the content of a [`Mutator`].
pub(crate) unsafe fn mutator<'a>(m: *const ()) -> &'a Mutator {
    // SAFETY: rule Y: `Mutator` is a transparent wrapper of `Raw`.
    unsafe { &*m.cast::<Mutator>() }
}

impl fmt::Debug for Mutator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mutator").field("id", &self.id()).field("heap", self.heap()).finish()
    }
}
