//! Several threads may read one [`GcCell`] at the same time, and a guard may lend a part of the
//! value.
//!
//! # The lock word
//!
//! While guards read a cell, its word has the bit `SHARED` and their number in the low bits, where
//! the start of a heap's range has zeros. The rest is the word of the free cell without `FREE`, so
//! the last guard restores that word. A value that was only read is as new as before, so it still
//! belongs to the heap that locked it last. For example, thread 1 reads a free cell in an object,
//! whose word becomes `SHARED` with the number 1. Thread 2 makes that a 2. Thread 3 wants to lock
//! the cell and waits, because the word is not 0. When both guards are dropped, it is.
//!
//! A collector takes a cell with readers for a locked one. Guards borrow the mutator, so a stop
//! finds readers only where a guard was leaked, or where a mutator of another heap reads a cell
//! that lies in no object.
//!
//! Readers do not wait for a thread that waits to lock the cell, so that a thread may read a cell
//! twice.

use std::fmt;
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

use crate::base::sync::{AtomicU64, Ordering};
use crate::typed::cell::{FREE, GcCell, GcCellGuard, PART, SHARED, refuse_part};
use crate::{Mutator, Trace};

/// The number of readers, in the word of a `SHARED` cell. A heap's range starts with a page.
const READERS: u64 = crate::memory::shape::PAGE_SIZE as u64 - 1;

impl<T: Trace + ?Sized> GcCell<T> {
    /// Locks the cell for reading, together with other readers, after a wait if a thread has
    /// [locked](Self::lock) it.
    ///
    /// A read takes two atomic exchanges and `lock` takes one, so for a few field accesses `lock`
    /// is faster. `read` is for threads that keep a guard for long. Readers do not wait for threads
    /// that wait in `lock`, so a thread may read a cell twice, and threads that read all the time
    /// keep the others out. At most 65,535 guards read a cell at a time, and others wait.
    ///
    /// ```
    /// use standstill::{GcCell, Heap};
    ///
    /// let heap = Heap::new();
    /// let m = heap.attach();
    /// let cell = m.alloc(GcCell::new(vec![1, 2]));
    /// let (first, second) = (cell.read(&m), cell.read(&m));
    /// assert_eq!((first[0], second.len()), (1, 2));
    /// assert!(cell.try_lock(&m).is_none());
    /// drop((first, second));
    /// cell.lock(&m).push(3);
    /// ```
    ///
    /// # Panics
    ///
    /// As [`lock`](Self::lock).
    #[inline]
    #[track_caller]
    pub fn read<'a>(&'a self, m: &'a Mutator) -> GcCellReadGuard<'a, T> {
        let free = self.free_word(m);
        if !matches!(self.take_shared(free), Ok(Some(()))) {
            self.wait_until(m, || self.take_shared(free));
        }
        GcCellReadGuard::new(self)
    }

    /// Locks the cell for reading. Returns `None` if any thread, including this one, has
    /// [locked](Self::lock) it.
    ///
    /// # Panics
    ///
    /// If the cell is part of an object of another heap than the mutator's; see
    /// [`lock`](Self::lock).
    #[inline]
    #[track_caller]
    pub fn try_read<'a>(&'a self, m: &'a Mutator) -> Option<GcCellReadGuard<'a, T>> {
        self.take_shared(self.free_word(m)).ok()?.unwrap_or_else(|| refuse_part());
        Some(GcCellReadGuard::new(self))
    }

    /// Adds a reader. `None`: the cell is part of an object of another heap. The error is the word
    /// of a cell that is locked, or has no room for another reader.
    #[inline]
    fn take_shared(&self, free: u64) -> Result<Option<()>, u64> {
        // Relaxed: the exchange compares the word.
        let mut word = self.holder.load(Ordering::Relaxed);
        loop {
            let is_shared = word & SHARED != 0;
            let is_locked = word != 0 && word & (FREE | SHARED) == 0;
            if is_locked || (is_shared && word & READERS == READERS) {
                return Err(word);
            }
            if free != 0 && word & PART != 0 && word & !(SHARED | READERS) | FREE != free | PART {
                return Ok(None);
            }
            // Inside a heap only the address counts, because the word may be of another time.
            let named = if free == 0 { 0 } else { word & !FREE };
            let next = if is_shared { word + 1 } else { named | SHARED | 1 };
            // Acquire: pairs with the release in the drop of a `GcCellGuard`. Other readers only
            // continue its release sequence.
            match self.holder.compare_exchange(word, next, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => return Ok(Some(())),
                Err(present) => word = present,
            }
        }
    }
}

/// Access to the value of a [`GcCell`], or to a part of it, together with other readers. The drop
/// of the guard ends it.
///
/// A guard is not `Send` and cannot be kept across a safepoint. It must not be leaked, because the
/// cell would stay locked: see [`GcCellGuard`].
#[must_use = "the cell is unlocked when the guard is dropped"]
pub struct GcCellReadGuard<'a, T: ?Sized> {
    holder: &'a AtomicU64,
    value: NonNull<T>,
    thread: PhantomData<(*mut (), &'a T)>,
}

impl<'a, T: ?Sized> GcCellReadGuard<'a, T> {
    /// The guard of a reader that was just added.
    fn new(cell: &'a GcCell<T>) -> Self {
        // SAFETY: rule *bounds*: the address of a field.
        let value = unsafe { NonNull::new_unchecked(cell.value.get()) };
        Self { holder: &cell.holder, value, thread: PhantomData }
    }

    /// Narrows the guard to a part of the value. It is no method, because it would hide one of the
    /// value.
    pub fn map<U: ?Sized>(this: Self, part: impl FnOnce(&T) -> &U) -> GcCellReadGuard<'a, U> {
        let value = NonNull::from(part(&this));
        let holder = ManuallyDrop::new(this).holder;
        GcCellReadGuard { holder, value, thread: PhantomData }
    }

    /// Narrows the guard to a part of the value, if there is one.
    ///
    /// # Errors
    ///
    /// The guard itself, if `part` returns `None`.
    pub fn filter_map<U: ?Sized>(
        this: Self,
        part: impl FnOnce(&T) -> Option<&U>,
    ) -> Result<GcCellReadGuard<'a, U>, Self> {
        let Some(value) = part(&this).map(NonNull::from) else { return Err(this) };
        let holder = ManuallyDrop::new(this).holder;
        Ok(GcCellReadGuard { holder, value, thread: PhantomData })
    }
}

// SAFETY: rule *guarded*: a shared guard gives only `&T`.
unsafe impl<T: ?Sized + Sync> Sync for GcCellReadGuard<'_, T> {}

impl<T: ?Sized> Deref for GcCellReadGuard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: rule *guarded*: the guard reads the cell that contains the value, so nothing
        // changes it.
        unsafe { self.value.as_ref() }
    }
}

impl<T: ?Sized> Drop for GcCellReadGuard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        // Relaxed: the exchange compares the word.
        let mut word = self.holder.load(Ordering::Relaxed);
        loop {
            let left = word - 1;
            let next = match left & !SHARED {
                _ if left & READERS != 0 => left,
                0 => 0,
                named => named | FREE,
            };
            // Release: pairs with the acquire in `take_lock`, so that this thread's reads come
            // before the next holder's writes.
            match self.holder.compare_exchange(word, next, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => return,
                Err(present) => word = present,
            }
        }
    }
}

impl<T: ?Sized + fmt::Debug> fmt::Debug for GcCellReadGuard<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&**self, f)
    }
}

/// A cell of any type, which a [`GcCellMappedGuard`] has locked.
trait Unlock {
    /// Drops the guard with these fields.
    fn unlock(&self, free: u64, external: usize);
}

impl<T: Trace> Unlock for GcCell<T> {
    fn unlock(&self, free: u64, external: usize) {
        drop(GcCellGuard { cell: self, free, external, thread: PhantomData });
    }
}

impl<'a, T: Trace> GcCellGuard<'a, T> {
    /// Narrows the guard to a part of the value. It is no method, because it would hide one of the
    /// value.
    ///
    /// ```
    /// use standstill::{GcCell, GcCellGuard, Heap};
    ///
    /// let heap = Heap::new();
    /// let m = heap.attach();
    /// let cell = m.alloc(GcCell::new((1, "one".to_string())));
    /// GcCellGuard::map(cell.lock(&m), |pair| &mut pair.1).push('!');
    /// assert_eq!(cell.read(&m).1, "one!");
    /// ```
    pub fn map<U: ?Sized>(
        mut this: Self,
        part: impl FnOnce(&mut T) -> &mut U,
    ) -> GcCellMappedGuard<'a, U> {
        let value = NonNull::from(part(&mut this));
        GcCellMappedGuard::new(this, value)
    }

    /// Narrows the guard to a part of the value, if there is one.
    ///
    /// # Errors
    ///
    /// The guard itself, if `part` returns `None`.
    pub fn filter_map<U: ?Sized>(
        mut this: Self,
        part: impl FnOnce(&mut T) -> Option<&mut U>,
    ) -> Result<GcCellMappedGuard<'a, U>, Self> {
        match part(&mut this).map(NonNull::from) {
            Some(value) => Ok(GcCellMappedGuard::new(this, value)),
            None => Err(this),
        }
    }
}

/// Access to a part of the value of a locked [`GcCell`]. The drop of the guard unlocks the cell.
///
/// [`GcCellGuard::map`] makes it, and what is said there of a guard holds for it.
#[must_use = "the cell is unlocked when the guard is dropped"]
pub struct GcCellMappedGuard<'a, T: ?Sized> {
    cell: &'a dyn Unlock,
    /// As in the [`GcCellGuard`].
    free: u64,
    external: usize,
    value: NonNull<T>,
    thread: PhantomData<(*mut (), &'a mut T)>,
}

impl<'a, T: ?Sized> GcCellMappedGuard<'a, T> {
    fn new<C: Trace>(guard: GcCellGuard<'a, C>, value: NonNull<T>) -> Self {
        let GcCellGuard { cell, free, external, thread: _ } = *ManuallyDrop::new(guard);
        Self { cell, free, external, value, thread: PhantomData }
    }

    /// Narrows the guard to a part of the part.
    pub fn map<U: ?Sized>(
        mut this: Self,
        part: impl FnOnce(&mut T) -> &mut U,
    ) -> GcCellMappedGuard<'a, U> {
        let value = NonNull::from(part(&mut this));
        this.with(value)
    }

    /// Narrows the guard to a part of the part, if there is one.
    ///
    /// # Errors
    ///
    /// The guard itself, if `part` returns `None`.
    pub fn filter_map<U: ?Sized>(
        mut this: Self,
        part: impl FnOnce(&mut T) -> Option<&mut U>,
    ) -> Result<GcCellMappedGuard<'a, U>, Self> {
        match part(&mut this).map(NonNull::from) {
            Some(value) => Ok(this.with(value)),
            None => Err(this),
        }
    }

    fn with<U: ?Sized>(self, value: NonNull<U>) -> GcCellMappedGuard<'a, U> {
        let Self { cell, free, external, .. } = *ManuallyDrop::new(self);
        GcCellMappedGuard { cell, free, external, value, thread: PhantomData }
    }
}

// SAFETY: rule *guarded*: a shared guard gives only `&T`.
unsafe impl<T: ?Sized + Sync> Sync for GcCellMappedGuard<'_, T> {}

impl<T: ?Sized> Deref for GcCellMappedGuard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: rule *guarded*: the guard holds the lock of the cell that contains the value.
        unsafe { self.value.as_ref() }
    }
}

impl<T: ?Sized> DerefMut for GcCellMappedGuard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: rule *guarded*: as in `deref`, and the guard is borrowed exclusively.
        unsafe { self.value.as_mut() }
    }
}

impl<T: ?Sized> Drop for GcCellMappedGuard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        self.cell.unlock(self.free, self.external);
    }
}

impl<T: ?Sized + fmt::Debug> fmt::Debug for GcCellMappedGuard<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&**self, f)
    }
}
