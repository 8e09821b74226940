//! A runtime's functions may have no place for a [`Mutator`], for example if a library calls them
//! back. So a heap can keep one for each thread, and [`Attached`] is its guard.
//!
//! The page of `heap/ambient.rs` has the states, and why a safepoint needs no `&mut` here.

#![forbid(unsafe_code)]

use std::fmt;
use std::ptr::NonNull;

use crate::heap::ambient::{ModelAttached, ModelDeparture};
use crate::managed::Managed;
use crate::report::error::AttachError;
use crate::typed::heap::Heap;
use crate::typed::mutator::Mutator;

impl Heap {
    /// Attaches the calling thread by the mutator that this heap keeps for the thread, which the
    /// first call makes.
    ///
    /// ```
    /// use standstill::{Gc, Heap};
    ///
    /// // A callback, which gets no mutator.
    /// fn called_back(heap: &Heap) -> Gc<u32> {
    ///     heap.with(|m| m.alloc(7))
    /// }
    ///
    /// let heap = Heap::new();
    /// let attached = heap.enter();
    /// for _ in 0..3 {
    ///     assert_eq!(*called_back(&heap), 7);
    ///     attached.safepoint();
    /// }
    /// // Stops do not wait for the thread meanwhile.
    /// attached.detached(|| std::thread::yield_now());
    /// ```
    ///
    /// # Panics
    ///
    /// If [`try_enter`](Self::try_enter) returns an error.
    #[track_caller]
    pub fn enter(&self) -> Attached {
        self.try_enter().unwrap_or_else(|error| panic!("{error}"))
    }

    /// Attaches the calling thread by the mutator that this heap keeps for the thread, which the
    /// first call makes, after a wait if the heap's world is stopped. On a thread that is attached
    /// by a [`Mutator`] of the caller, it lends that one.
    ///
    /// The mutator keeps the heap open until the thread ends. A heap that nothing but such mutators
    /// keeps open ends when the thread enters another heap for the first time, too.
    ///
    /// # Errors
    ///
    /// If the thread is attached to another heap, inside a traversal, in the closure of
    /// [`Mutator::detach`], or ending, or in another case that [`AttachError`] lists.
    pub fn try_enter(&self) -> Result<Attached, AttachError> {
        self.0.try_enter().map(Attached)
    }

    /// Calls `f` with the mutator of the calling thread, which is attached for this call if it is
    /// not attached already, also in the closure of [`Mutator::detach`].
    ///
    /// # Panics
    ///
    /// If [`try_with`](Self::try_with) returns an error.
    #[track_caller]
    pub fn with<R>(&self, f: impl FnOnce(&Mutator) -> R) -> R {
        self.try_with(f).unwrap_or_else(|error| panic!("{error}"))
    }

    /// Calls `f` with the mutator of the calling thread, which is attached for this call if it is
    /// not attached already, also in the closure of [`Mutator::detach`]. The mutator is lent to
    /// `f`, so that no safepoint is reached meanwhile.
    ///
    /// # Errors
    ///
    /// If the thread is attached to another heap, inside a traversal, or ending, or in another case
    /// that [`AttachError`] lists. `f` was not called then.
    pub fn try_with<R>(&self, f: impl FnOnce(&Mutator) -> R) -> Result<R, AttachError> {
        self.0.try_with(|raw| f(Mutator::from_raw_ref(raw)))
    }
}

/// A thread is attached to a heap while this lives, and can use the mutator that the heap keeps for
/// it.
///
/// [`Heap::enter`] makes it. There may be any number of them on a thread, and their order is free.
/// It is neither `Send` nor `Sync`, so that it is not held across an `.await`.
#[must_use = "the thread leaves when this is dropped"]
pub struct Attached(ModelAttached<Managed>);

impl Attached {
    /// Whether there may be something to do at a safepoint, by one relaxed load. 0: there is not.
    /// Also 0 when the thread is ending.
    #[inline]
    pub fn poll(&self) -> u32 {
        self.0.poll()
    }

    /// The word that [`poll`](Self::poll) loads, for compiled code. It may be read atomically by
    /// this thread until the thread ends. `None`: the thread is ending.
    #[cfg(not(standstill_loom))]
    pub fn poll_word(&self) -> Option<NonNull<u32>> {
        self.0.poll_word()
    }

    /// Parks, collects or reclaims, if the heap has requested it, as [`Mutator::safepoint`] does.
    /// It does nothing if [`may_park`](Self::may_park) returns `false`.
    #[inline]
    pub fn safepoint(&self) {
        self.0.safepoint();
    }

    /// Parks, if a stop is requested, and neither collects nor reclaims. It does nothing if
    /// [`may_park`](Self::may_park) returns `false`.
    #[inline]
    pub fn park(&self) {
        self.0.park();
    }

    /// Whether the thread may reach a safepoint or leave now. It may not while somebody up the
    /// stack uses the mutator, such as the closure of a `with`, a destructor or a finalizer, and
    /// while it is attached by a mutator of the caller.
    pub fn may_park(&self) -> bool {
        self.0.may_park()
    }

    /// Calls `f` with the mutator, lent. If the thread is detached, it is attached for this call.
    ///
    /// # Panics
    ///
    /// If [`try_with`](Self::try_with) returns an error.
    #[track_caller]
    pub fn with<R>(&self, f: impl FnOnce(&Mutator) -> R) -> R {
        self.try_with(f).unwrap_or_else(|error| panic!("{error}"))
    }

    /// Calls `f` with the mutator, lent. If the thread is detached, it is attached for this call.
    ///
    /// # Errors
    ///
    /// Those of [`Heap::try_enter`], if the thread is detached. `f` was not called then.
    pub fn try_with<R>(&self, f: impl FnOnce(&Mutator) -> R) -> Result<R, AttachError> {
        self.0.try_with(|raw| f(Mutator::from_raw_ref(raw)))
    }

    /// Calls `f` with exclusive use of the mutator, so that it can collect, lock cells of other
    /// threads, and so on. `None`, and `f` was not called: [`may_park`](Self::may_park) is `false`,
    /// or the thread is detached.
    pub fn with_mut<R>(&self, f: impl FnOnce(&mut Mutator) -> R) -> Option<R> {
        self.0.with_mut(|raw| f(Mutator::from_raw_mut(raw)))
    }

    /// Calls `f`, detached, so that it can block, and comes back afterwards, also if `f` panics. If
    /// [`may_park`](Self::may_park) returns `false`, `f` is called attached.
    pub fn detached<R>(&self, f: impl FnOnce() -> R) -> R {
        self.0.detached(f)
    }

    /// Detaches until the result is dropped, as [`detached`](Self::detached) does, for languages
    /// that mark the two ends of a region in which a thread may block.
    ///
    /// If the result is leaked, the thread stays detached, and each `with` attaches for itself.
    pub fn depart(&self) -> Departure<'_> {
        self.0.depart()
    }

    /// Ends the thread's mutator, so that it no longer keeps the heap open. If another guard of the
    /// thread lives, or if the mutator is the caller's, this only drops the guard.
    pub fn end_mutator(self) {
        self.0.end_mutator();
    }
}

impl fmt::Debug for Attached {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Attached").field("may_park", &self.may_park()).finish()
    }
}

/// A thread that has left, until this is dropped. See [`Attached::depart`].
pub type Departure<'a> = ModelDeparture<'a, Managed>;
