//! Floor 5: [`GcCell`], the lock for what changes inside objects.
//!
//! The lock is one word: 0, or the id of the mutator that has it. Ids are unique in the process, so a
//! cell locked twice by its own thread is told from one that somebody else has.
//!
//! A guard borrows the mutator, so no thread parks with a cell locked: in a stop every cell inside the
//! heap's objects is unlocked, unless its guard was leaked. That is why one relaxed load is enough for
//! the collector there. A cell anywhere else (behind an `Arc`, in a static) may be locked through a mutator
//! of another heap at that very moment; there it takes the lock.
//!
//! Waiting is spinning, then yielding: critical sections are a few field accesses. It delays no stop for
//! longer than the holder, which is attached too, takes to unlock. A wait as long as a slow stop is reported once, with both
//! threads: see [`slow`](crate::heap::slow).

use std::cell::UnsafeCell;
use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};

use crate::base::sync::{AtomicU64, Ordering};
use crate::heap::cell_wait::Patience;
use crate::object::type_info::Edge;
use crate::{Mutator, Trace, Tracer, managed};

/// A field of an object that can change: a small exclusive lock around a value.
///
/// Cycles can be made, and broken by the collector, only through fields that can change. So the value
/// must have a [`Default`]: that is what the collector leaves behind when it takes the references out.
/// `GcCell<Option<Gc<T>>>` and `GcCell<Vec<Gc<T>>>` are typical; `GcCell<Gc<T>>` is refused by the compiler,
/// since a cycle through it could never be broken.
///
/// ```
/// use standstill::{Gc, GcCell, Heap, Trace};
///
/// #[derive(Trace)]
/// struct Node { next: GcCell<Option<Gc<Node>>> }
///
/// let heap = Heap::new();
/// let mut m = heap.attach();
/// let a = m.alloc(Node { next: GcCell::new(None) });
/// a.next.set(&m, Some(a.clone()));
/// drop(a);
/// assert_eq!(m.collect().collected, 1);
/// ```
#[derive(Default)]
pub struct GcCell<T: ?Sized> {
    /// The id of the mutator that has the lock; 0: free.
    holder: AtomicU64,
    value: UnsafeCell<T>,
}

// SAFETY: rule X: the lock gives the value to one thread at a time, as a mutex does.
unsafe impl<T: ?Sized + Send> Send for GcCell<T> {}
// SAFETY: as above; and the collector's workers look at the value of one cell together, hence `Sync`.
unsafe impl<T: ?Sized + Send + Sync> Sync for GcCell<T> {}

impl<T> GcCell<T> {
    /// A cell that holds `value`.
    #[cfg(not(all(test, loom)))]
    pub const fn new(value: T) -> Self {
        Self { holder: AtomicU64::new(0), value: UnsafeCell::new(value) }
    }

    /// As outside models, and not constant: loom's atomics are made at run time.
    #[cfg(all(test, loom))]
    pub(crate) fn new(value: T) -> Self {
        Self { holder: AtomicU64::new(0), value: UnsafeCell::new(value) }
    }

    /// The value, once nobody else has the cell.
    pub fn into_inner(self) -> T {
        self.value.into_inner()
    }

    /// Replaces the value. The old one is dropped after the lock is let go.
    ///
    /// # Panics
    ///
    /// Like [`lock`](Self::lock).
    #[inline]
    #[track_caller]
    pub fn set(&self, m: &Mutator, value: T) {
        drop(self.replace(m, value));
    }

    /// Replaces the value, and gives the old one back.
    ///
    /// # Panics
    ///
    /// Like [`lock`](Self::lock).
    #[inline]
    #[track_caller]
    pub fn replace(&self, m: &Mutator, value: T) -> T {
        std::mem::replace(&mut *self.lock(m), value)
    }

    /// A copy of the value.
    ///
    /// # Panics
    ///
    /// Like [`lock`](Self::lock).
    #[inline]
    #[track_caller]
    pub fn get(&self, m: &Mutator) -> T
    where
        T: Clone,
    {
        self.lock(m).clone()
    }

    /// Takes the value out, and leaves the default.
    ///
    /// # Panics
    ///
    /// Like [`lock`](Self::lock).
    #[inline]
    #[track_caller]
    pub fn take(&self, m: &Mutator) -> T
    where
        T: Default,
    {
        self.replace(m, T::default())
    }
}

impl<T: ?Sized> GcCell<T> {
    /// Takes the lock for `holder` if it is free; `Err`: who has it.
    #[inline(always)]
    fn take_lock(&self, holder: u64) -> Result<u64, u64> {
        // Acquire: pairs with the release in the guard's drop.
        self.holder.compare_exchange(0, holder, Ordering::Acquire, Ordering::Relaxed)
    }

    /// Locks the cell. Waits while another thread has it.
    ///
    /// The guard borrows the mutator: it cannot be kept over a safepoint. A thread that waits long, as in a deadlock, is
    /// reported: see [`Heap::on_slow_lock`](crate::Heap::on_slow_lock).
    ///
    /// # Panics
    ///
    /// When this thread has the cell locked already: it would wait for itself. When the cell lies in an object
    /// of another heap than the mutator's.
    #[inline]
    #[track_caller]
    pub fn lock<'a>(&'a self, m: &'a Mutator) -> GcCellGuard<'a, T> {
        self.refuse_foreign(m);
        if self.take_lock(m.id()).is_err() {
            self.wait(m);
        }
        GcCellGuard { cell: self, thread: PhantomData }
    }

    /// Locks the cell if nobody has it, this thread included.
    #[inline]
    pub fn try_lock<'a>(&'a self, m: &'a Mutator) -> Option<GcCellGuard<'a, T>> {
        self.refuse_foreign(m);
        self.take_lock(m.id()).is_ok().then(|| GcCellGuard { cell: self, thread: PhantomData })
    }

    /// A cell inside an object is locked through a mutator of its own heap, or that heap's stops would not keep
    /// it unlocked.
    #[inline(always)]
    #[track_caller]
    fn refuse_foreign(&self, m: &Mutator) {
        let address = std::ptr::from_ref(self).cast::<()>() as usize;
        if !m.raw().owns_address(address) {
            refuse_in_other_heap(address);
        }
    }

    #[cold]
    #[track_caller]
    fn wait(&self, m: &Mutator) {
        let address = std::ptr::from_ref(self).cast::<()>() as usize;
        let mut patience = Patience::new(m.raw(), address, std::any::type_name::<T>());
        loop {
            match self.take_lock(m.id()) {
                Ok(_) => return,
                Err(holder) => {
                    assert!(
                        holder != m.id(),
                        "this thread has locked this GcCell already; drop the first guard before locking again"
                    );
                    patience.wait(holder);
                }
            }
        }
    }

    /// The value, through exclusive access to the cell.
    pub fn get_mut(&mut self) -> &mut T {
        self.value.get_mut()
    }
}

/// Panics for a cell that lies in an object of some heap: not the mutator's, as the caller has found.
#[cold]
#[track_caller]
fn refuse_in_other_heap(address: usize) {
    assert!(
        !crate::memory::space::is_in_any_heap(address),
        "this GcCell lies in an object of another heap than the Mutator it was used with; attach to its own heap"
    );
}

impl<T: Trace> GcCell<T> {
    /// Traverses a cell that lies in no object of the stopped heap: somebody may lock it at this very moment.
    #[cold]
    #[inline(never)]
    fn traverse_elsewhere(&self, tracer: &mut Tracer) {
        // An id that no mutator has, so that a thread that locks the cell itself waits instead of panicking.
        if self.take_lock(u64::MAX).is_err() {
            return tracer.unreadable();
        }
        let guard = GcCellGuard { cell: self, thread: PhantomData };
        T::traverse(&guard, tracer);
    }
}

impl<T: Trace + Default> Trace for GcCell<T> {
    const TRACKED: bool = T::TRACKED;
    const INDIRECT: bool = T::INDIRECT;

    #[inline]
    fn prefetch(this: &Self, tracer: &Tracer) {
        // Relaxed: as in `traverse`.
        if T::INDIRECT
            && tracer.owns(std::ptr::from_ref(this) as usize)
            && this.holder.load(Ordering::Relaxed) == 0
        {
            // SAFETY: as in `traverse`.
            T::prefetch(unsafe { &*this.value.get() }, tracer);
        }
    }

    #[inline]
    fn traverse(this: &Self, tracer: &mut Tracer) {
        if !T::TRACKED {
            return;
        }
        if tracer.owns(std::ptr::from_ref(this) as usize) {
            // Relaxed: the stop orders it. Locked now means locked for ever: its guard was leaked.
            if this.holder.load(Ordering::Relaxed) != 0 {
                return tracer.unreadable();
            }
            // SAFETY: rules W and X: the cell is part of an object of a stopped heap, and unlocked: to lock it takes
            // a mutator of this heap (`refuse_foreign`), and those are parked.
            T::traverse(unsafe { &*this.value.get() }, tracer);
        } else {
            this.traverse_elsewhere(tracer);
        }
    }

    /// Of handles, some cells at a time: their locks are looked at, and nothing asks how many cells there are.
    #[inline]
    fn traverse_slice(these: &[Self], tracer: &mut Tracer) {
        let start = these.as_ptr() as usize;
        let is_own = tracer.owns(start)
            && these.last().is_some_and(|cell| tracer.owns(std::ptr::from_ref(cell) as usize));
        if !(T::IS_HANDLE && is_own) {
            return these.iter().for_each(|cell| Self::traverse(cell, tracer));
        }
        let mut is_any_locked = false;
        tracer.edges_to(these, |cell| {
            // Relaxed: as in `traverse`.
            if cell.holder.load(Ordering::Relaxed) != 0 {
                is_any_locked = true;
                return Edge::NONE;
            }
            // SAFETY: as in `traverse`.
            T::target(unsafe { &*cell.value.get() })
        });
        if is_any_locked {
            tracer.unreadable();
        }
    }

    fn clear(this: &Self, m: &Mutator) {
        if !T::TRACKED {
            return;
        }
        let empty = T::default();
        // Locked by somebody: then it is in use, and the cycle waits for the next collection.
        if let Some(mut guard) = this.try_lock(m) {
            let old = std::mem::replace(&mut *guard, empty);
            drop(guard);
            managed::drop_later(m.raw(), old);
        }
    }
}

impl<T: ?Sized> fmt::Debug for GcCell<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let locked = self.holder.load(Ordering::Relaxed) != 0;
        f.debug_struct("GcCell").field("locked", &locked).finish_non_exhaustive()
    }
}

impl<T> From<T> for GcCell<T> {
    fn from(value: T) -> Self {
        Self::new(value)
    }
}

/// Access to the value of a locked [`GcCell`]; dropping it unlocks. Neither `Send` nor kept over a safepoint.
#[must_use = "the cell is unlocked when the guard is dropped"]
pub struct GcCellGuard<'a, T: ?Sized> {
    cell: &'a GcCell<T>,
    thread: PhantomData<*mut ()>,
}

// SAFETY: rule X: a shared guard gives `&T` only.
unsafe impl<T: ?Sized + Sync> Sync for GcCellGuard<'_, T> {}

impl<T: ?Sized> Deref for GcCellGuard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: rule X: the guard has the lock.
        unsafe { &*self.cell.value.get() }
    }
}

impl<T: ?Sized> DerefMut for GcCellGuard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: rule X: the guard has the lock, and is borrowed exclusively.
        unsafe { &mut *self.cell.value.get() }
    }
}

impl<T: ?Sized> Drop for GcCellGuard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        // Release: what was written is seen by the next to lock.
        self.cell.holder.store(0, Ordering::Release);
    }
}

impl<T: ?Sized + fmt::Debug> fmt::Debug for GcCellGuard<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&**self, f)
    }
}
