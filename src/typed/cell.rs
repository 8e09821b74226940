//! A collection must read each [`GcCell`], a lock around a mutable field, while the world is
//! stopped. It cannot wait for the lock, because the holder may be stopped too. If it leaves a cell
//! out, all targets of the cell stay alive. So no thread may stop while it holds a cell, and the
//! compiler ensures this. Suppose that thread A has locked a cell when thread B requests a
//! collection. The guard borrows A's mutator, and A reaches a safepoint only by a function that
//! takes `&mut Mutator`. So A drops the guard first, and the stop, which waits for A, finds the
//! cell unlocked.
//!
//! In a stop every cell inside the heap's objects is therefore unlocked, unless its guard was
//! leaked. So the collector tests the lock of such a cell with one relaxed load. A mutator of
//! another heap, which may run meanwhile, cannot lock it, because the cell's address shows the
//! heap.
//!
//! # The lock word
//!
//! | word | the cell |
//! |---|---|
//! | 0 | is free |
//! | the id of a mutator | is locked by that mutator; ids are unique in the process |
//! | `COLLECTOR` | is locked by a traversal |
//! | `SHARED`, a number | is read by so many guards: see [`cell_read`](super::cell_read) |
//! | `FREE`, a heap | is free, lies outside of heaps, and was last locked for that heap |
//! | `FREE`, `PART`, a heap | is free, outside of heaps, and part of an object of that heap |
//!
//! # Cells outside of heaps
//!
//! The address of a cell behind a `Box`, in a `Vec` or in a static does not show a heap. So a
//! mutator of another heap may lock the cell during the stop. It could move a reference into the
//! cell that is newer than the count of its target, so that the collector could take a live object
//! for garbage. Therefore the lock word names a heap:
//!
//! * An unlock stores the heap of the guard's mutator.
//! * A traversal takes the lock, and marks the cell as `PART` of the traversed heap. If a mutator
//!   or a traversal of another heap was the last to lock it, the cell is unreadable in this
//!   collection.
//! * A mutator of another heap cannot lock a `PART`: its lock panics, as for a cell in an object.
//!   So the cell does not change between two traversals of one stop.
//!
//! A traversal holds the lock while it reads, because a wrong `Trace` may show a cell of another
//! heap's object, or one cell in objects of two heaps. Then the other heap's threads run during the
//! stop, and its collections change the mark, so the lock alone keeps them from the value.
//!
//! A cell that no object contains is never traversed, so mutators of all heaps may lock it.
//!
//! # Waiting
//!
//! A waiting thread spins first and then yields, because critical sections are a few field
//! accesses. A wait delays a stop only until the holder, which is attached too, unlocks the cell. A
//! wait as long as a slow stop is reported once, with both threads: see
//! [`slow`](crate::heap::slow).

use std::cell::UnsafeCell;
use std::fmt;
use std::marker::PhantomData;
use std::mem::{self, ManuallyDrop};
use std::ops::{Deref, DerefMut};

use crate::base::sync::{AtomicU64, Ordering};
use crate::heap::slow::Patience;
use crate::object::handle_places;
use crate::object::tracer::Edge;
use crate::{Mutator, Trace, Tracer, managed};

/// A mutable field of an object: a small lock around a value, for one writer or many readers.
///
/// # The `Default` bound
///
/// Only a mutable field can close a cycle, and only through a mutable field can the collector break
/// one. To break a cycle, the collector clears the garbage objects: it removes the value of each
/// cell and leaves [`Default::default`] in the cell. `GcCell<T>` therefore implements [`Trace`]
/// only if `T` implements [`Default`].
///
/// A cell is locked only if `T` implements [`Trace`], also where it is no part of an object. The
/// heap counts what its contents own outside the heap ([`Trace::external_bytes`]).
///
/// `GcCell<Option<Gc<T>>>` and `GcCell<Vec<Gc<T>>>` are typical. `GcCell<Gc<T>>` does not compile
/// as a field of an object: a [`Gc`](crate::Gc) has no default, so the collector could not break a
/// cycle through it.
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
    pub(super) holder: AtomicU64,
    pub(super) value: UnsafeCell<T>,
}

/// In the word of a free cell outside of heaps. The low bits are the start of a heap's range.
pub(super) const FREE: u64 = 1 << 63;
/// In the word of a cell that a traversal has found in an object of the heap.
pub(super) const PART: u64 = 1 << 62;
/// In the word while threads read the cell.
pub(super) const SHARED: u64 = 1 << 61;
/// The word while a traversal has locked the cell, which is the id of no mutator.
const COLLECTOR: u64 = SHARED - 1;

const fn is_locked(word: u64) -> bool {
    word != 0 && word & FREE == 0
}

// SAFETY: rule *guarded*: the lock gives one thread at a time access to the value, as a mutex does.
unsafe impl<T: ?Sized + Send> Send for GcCell<T> {}
// SAFETY: as above. Several GC workers may read the value of one cell at the same time, so `T` must
// be `Sync`.
unsafe impl<T: ?Sized + Send + Sync> Sync for GcCell<T> {}

impl<T> GcCell<T> {
    /// A cell that holds `value`.
    #[cfg(not(any(all(test, loom), standstill_loom)))]
    pub const fn new(value: T) -> Self {
        Self { holder: AtomicU64::new(0), value: UnsafeCell::new(value) }
    }

    /// As outside of models, but not `const`: loom creates its atomics at run time.
    #[cfg(any(all(test, loom), standstill_loom))]
    pub fn new(value: T) -> Self {
        Self { holder: AtomicU64::new(0), value: UnsafeCell::new(value) }
    }

    /// Consumes the cell and returns the value. No lock is needed, because the caller has the cell
    /// alone.
    pub fn into_inner(self) -> T {
        self.value.into_inner()
    }
}

impl<T: Trace> GcCell<T> {
    /// Replaces the value. The old value is dropped after the cell is unlocked, so its destructor
    /// may lock the cell.
    ///
    /// # Panics
    ///
    /// As [`lock`](Self::lock).
    #[inline]
    #[track_caller]
    pub fn set(&self, m: &Mutator, value: T) {
        drop(self.replace(m, value));
    }

    /// Replaces the value and returns the old value.
    ///
    /// # Panics
    ///
    /// As [`lock`](Self::lock).
    #[inline]
    #[track_caller]
    pub fn replace(&self, m: &Mutator, value: T) -> T {
        mem::replace(&mut *self.lock(m), value)
    }

    /// A clone of the value, which is made while the cell is locked.
    ///
    /// # Panics
    ///
    /// As [`lock`](Self::lock).
    #[inline]
    #[track_caller]
    pub fn get(&self, m: &Mutator) -> T
    where
        T: Clone,
    {
        let value = self.lock(m);
        handle_places::made_in(|| value.clone())
    }

    /// Removes the value and returns it. The default stays in the cell.
    ///
    /// # Panics
    ///
    /// As [`lock`](Self::lock).
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
    /// The value, through exclusive access to the cell.
    pub fn get_mut(&mut self) -> &mut T {
        self.value.get_mut()
    }
}

impl<T: Trace + ?Sized> GcCell<T> {
    /// Takes the lock for `holder` if the word is `free`. Otherwise the error is the present word.
    #[inline(always)]
    fn take_lock(&self, free: u64, holder: u64) -> Result<u64, u64> {
        // Acquire: pairs with the release in the guard's drop.
        self.holder.compare_exchange(free, holder, Ordering::Acquire, Ordering::Relaxed)
    }

    /// Locks the cell, after a wait if another thread holds the lock. The thread waits attached,
    /// because the holder reaches no safepoint before it has unlocked the cell.
    ///
    /// The guard borrows the mutator, so it cannot be kept across a safepoint. The heap reports a
    /// thread that waits for a long time, as in a deadlock: see
    /// [`Heap::on_slow_lock`](crate::Heap::on_slow_lock). A thread that reads the cell, by
    /// [`read`](Self::read), and locks it as well, waits for itself for ever.
    ///
    /// # Panics
    ///
    /// * If this thread has already locked the cell, because it would wait for itself.
    /// * If the cell is part of an object of another heap than the mutator's. A cell behind a `Box`
    ///   or in a `Vec` becomes part of an object's heap when a collection finds it in the object.
    ///   It stays a part of that heap, also outside of objects, until a collection of another heap
    ///   finds it in an object there.
    #[inline]
    #[track_caller]
    pub fn lock<'a>(&'a self, m: &'a Mutator) -> GcCellGuard<'a, T> {
        let mut free = self.free_word(m);
        if self.take_lock(0, m.id()).is_err() {
            free = self.wait(m, free);
        }
        GcCellGuard::new(self, free)
    }

    /// Locks the cell if it is free. Returns `None` if any thread, including this one, has locked
    /// it or reads it.
    ///
    /// # Panics
    ///
    /// If the cell is part of an object of another heap than the mutator's; see
    /// [`lock`](Self::lock).
    #[inline]
    #[track_caller]
    pub fn try_lock<'a>(&'a self, m: &'a Mutator) -> Option<GcCellGuard<'a, T>> {
        let mut free = self.free_word(m);
        if self.take_lock(0, m.id()).is_err() {
            free = self.take_named(m, free).ok()?.unwrap_or_else(|| refuse_part());
        }
        Some(GcCellGuard::new(self, free))
    }

    /// As [`try_lock`](Self::try_lock), but `None` also for a part of another heap, because models
    /// cannot panic.
    #[cfg(all(test, loom))]
    pub(crate) fn try_lock_own<'a>(&'a self, m: &'a Mutator) -> Option<GcCellGuard<'a, T>> {
        let free = self.take_named(m, self.free_word(m)).ok()??;
        Some(GcCellGuard::new(self, free))
    }

    /// The value, in a stop. `None`: the cell is locked, because its guard was leaked.
    ///
    /// # Safety
    ///
    /// The cell is part of an object of the stopped heap, and not of a buffer.
    pub(super) unsafe fn stopped(&self) -> Option<&T> {
        // Relaxed: as in `traverse`.
        if is_locked(self.holder.load(Ordering::Relaxed)) {
            return None;
        }
        // SAFETY: rules *stopped* and *guarded*: as in `traverse`.
        Some(unsafe { &*self.value.get() })
    }

    pub(super) fn address(&self) -> usize {
        std::ptr::from_ref(self).cast::<()>() as usize
    }

    /// The word of the cell after `m` has locked and unlocked it. Panics if the cell lies inside
    /// another heap, whose stop does not park this thread, so that the cell could stay locked in
    /// it.
    #[inline(always)]
    #[track_caller]
    pub(super) fn free_word(&self, m: &Mutator) -> u64 {
        if m.raw().owns_address(self.address()) { 0 } else { word_elsewhere(self.address(), m) }
    }

    /// Locks a cell whose word is not 0. The result is the word for the unlock, or `None` if the
    /// cell is part of an object of another heap. The error is the holder of a locked cell.
    #[cold]
    fn take_named(&self, m: &Mutator, free: u64) -> Result<Option<u64>, u64> {
        // Relaxed: `take_lock` compares the word.
        let mut word = self.holder.load(Ordering::Relaxed);
        loop {
            if is_locked(word) {
                return Err(word);
            }
            let part = word & PART;
            // Inside a heap only the address counts, because the word may be of another time.
            if free != 0 && part != 0 && word != free | PART {
                return Ok(None);
            }
            match self.take_lock(word, m.id()) {
                Ok(_) => return Ok(Some(if free == 0 { 0 } else { free | part })),
                Err(present) => word = present,
            }
        }
    }

    /// Waits for the lock, and returns the word for the unlock.
    #[cold]
    #[track_caller]
    fn wait(&self, m: &Mutator, free: u64) -> u64 {
        self.wait_until(m, || self.take_named(m, free))
    }

    /// Repeats `take` until it does not return an error, which is the present word.
    #[cold]
    #[track_caller]
    pub(super) fn wait_until<R>(
        &self,
        m: &Mutator,
        mut take: impl FnMut() -> Result<Option<R>, u64>,
    ) -> R {
        let mut patience = Patience::new(m.raw(), self.address(), std::any::type_name::<T>());
        loop {
            match take() {
                Ok(taken) => return taken.unwrap_or_else(|| refuse_part()),
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
}

/// The word of a free cell outside the mutator's heap. Panics if the address lies in another heap.
#[cold]
#[track_caller]
fn word_elsewhere(address: usize, m: &Mutator) -> u64 {
    if crate::memory::range::is_in_any_heap(address) {
        refuse_foreign();
    }
    FREE | m.raw().core().space.base() as u64
}

#[cold]
#[track_caller]
pub(super) fn refuse_part() -> ! {
    panic!(
        "a collection of another heap found this GcCell in one of its objects; attach to that heap, or collect the Mutator's heap first if an object there has the cell now"
    );
}

#[cold]
#[track_caller]
fn refuse_foreign() -> ! {
    panic!(
        "this GcCell lies in an object of another heap than the Mutator it was used with; attach to its own heap"
    );
}

impl<T: Trace> GcCell<T> {
    /// Traverses a cell outside of the heap, under its lock, because a running thread of another
    /// heap may try to lock it meanwhile.
    #[cold]
    #[inline(never)]
    fn traverse_elsewhere(&self, tracer: &mut Tracer) {
        let Some(heap) = tracer.heap() else { return tracer.unreadable() };
        let named = FREE | heap as u64;
        // Relaxed: `take_lock` compares the word.
        let word = self.holder.load(Ordering::Relaxed);
        if is_locked(word) || self.take_lock(word, COLLECTOR).is_err() {
            return tracer.unreadable();
        }
        let guard = GcCellGuard::new(self, named | PART);
        if word == 0 || word & !PART == named {
            T::traverse(&guard, tracer);
        } else {
            tracer.unreadable();
        }
    }
}

/// The `Default` bound is for `clear`, which leaves the default of `T` in the cell.
impl<T: Trace + Default> Trace for GcCell<T> {
    const TRACKED: bool = T::TRACKED;
    const INDIRECT: bool = T::INDIRECT;
    const HAS_EXTERNAL_BYTES: bool = T::HAS_EXTERNAL_BYTES;

    #[inline]
    fn external_bytes(this: &mut Self) -> usize {
        T::external_bytes(this.get_mut())
    }

    #[inline]
    fn prefetch(this: &Self, tracer: &Tracer) {
        // Relaxed: as in `traverse`.
        if T::INDIRECT
            && tracer.owns(std::ptr::from_ref(this) as usize)
            && !is_locked(this.holder.load(Ordering::Relaxed))
        {
            // SAFETY: as in `traverse`.
            T::prefetch(unsafe { &*this.value.get() }, tracer);
        }
    }

    #[inline(always)]
    fn traverse(this: &Self, tracer: &mut Tracer) {
        if !T::TRACKED {
            return;
        }
        if tracer.owns(std::ptr::from_ref(this) as usize) {
            // Relaxed: the stop orders the load after all earlier stores. A cell that is locked now
            // stays locked for ever, because its guard was leaked.
            if is_locked(this.holder.load(Ordering::Relaxed)) {
                return tracer.unreadable();
            }
            // SAFETY: rules *stopped* and *guarded*: the cell is part of an object of a stopped
            // heap, and it is unlocked. Only a mutator of this heap can lock it (`free_word`), and
            // these mutators are parked.
            T::traverse(unsafe { &*this.value.get() }, tracer);
        } else {
            this.traverse_elsewhere(tracer);
        }
    }

    fn describe(this: &Self, tracer: &mut Tracer) {
        // Relaxed: as in `traverse`.
        let is_own = tracer.owns(std::ptr::from_ref(this) as usize);
        let is_empty = !T::TRACKED && !T::HAS_EXTERNAL_BYTES;
        if is_empty || !is_own || is_locked(this.holder.load(Ordering::Relaxed)) {
            return Self::traverse(this, tracer);
        }
        // SAFETY: as in `traverse`.
        T::describe(unsafe { &*this.value.get() }, tracer);
    }

    /// Cells that contain handles are read in groups by `Tracer::edges_to`, without a branch on the
    /// number of cells, but the lock of each cell is tested.
    #[inline(always)]
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
            if is_locked(cell.holder.load(Ordering::Relaxed)) {
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
        // If a thread holds the lock, the cell is in use, and a later collection breaks the cycle.
        if let Some(mut guard) = this.try_lock(m) {
            let old = mem::replace(&mut *guard, empty);
            drop(guard);
            managed::drop_later(m.raw(), old);
        }
    }
}

impl<T: ?Sized> fmt::Debug for GcCell<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let locked = is_locked(self.holder.load(Ordering::Relaxed));
        f.debug_struct("GcCell").field("locked", &locked).finish_non_exhaustive()
    }
}

impl<T> From<T> for GcCell<T> {
    fn from(value: T) -> Self {
        Self::new(value)
    }
}

/// Access to the value of a locked [`GcCell`]. The drop of the guard unlocks the cell.
///
/// A guard is not `Send` and cannot be kept across a safepoint. It must not be leaked, for example
/// by [`std::mem::forget`], because the cell would stay locked. Then no collection could read or
/// clear it, and what its contents own outside the heap would be counted wrongly.
#[must_use = "the cell is unlocked when the guard is dropped"]
pub struct GcCellGuard<'a, T: Trace + ?Sized> {
    pub(super) cell: &'a GcCell<T>,
    /// The word after the unlock.
    pub(super) free: u64,
    /// The bytes outside the heap that the value owned when the cell was locked, if it is counted.
    pub(super) external: usize,
    pub(super) thread: PhantomData<*mut ()>,
}

impl<'a, T: Trace + ?Sized> GcCellGuard<'a, T> {
    /// The guard of a cell that has just been locked.
    #[inline(always)]
    fn new(cell: &'a GcCell<T>, free: u64) -> Self {
        let mut guard = ManuallyDrop::new(Self { cell, free, external: 0, thread: PhantomData });
        if guard.is_counted() {
            let unlock = UnlockAtEnd { holder: &cell.holder, free };
            guard.external = T::external_bytes(&mut guard);
            mem::forget(unlock);
        }
        ManuallyDrop::into_inner(guard)
    }

    /// Whether the value is part of an object that counts the memory outside the heap. A cell in a
    /// buffer is not, because the objects do not look behind their buffers.
    #[inline(always)]
    fn is_counted(&self) -> bool {
        T::HAS_EXTERNAL_BYTES && self.free == 0
    }
}

/// Unlocks a cell when it is dropped, also if a method of the value has panicked.
struct UnlockAtEnd<'a> {
    holder: &'a AtomicU64,
    free: u64,
}

impl Drop for UnlockAtEnd<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        // Release: pairs with the acquire in `take_lock`. The next holder sees all writes.
        self.holder.store(self.free, Ordering::Release);
    }
}

/// The contents of a cell have got memory outside the heap, or have given some up.
#[cold]
#[inline(never)]
fn count_change(before: usize, after: usize) {
    let change = after.cast_signed().wrapping_sub(before.cast_signed());
    // In a stop of this thread the change is not counted.
    Mutator::with_current(|m| m.adjust_external_bytes(change));
}

// SAFETY: rule *guarded*: a shared guard gives only `&T`.
unsafe impl<T: Trace + ?Sized + Sync> Sync for GcCellGuard<'_, T> {}

impl<T: Trace + ?Sized> Deref for GcCellGuard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: rule *guarded*: the guard holds the lock.
        unsafe { &*self.cell.value.get() }
    }
}

impl<T: Trace + ?Sized> DerefMut for GcCellGuard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: rule *guarded*: the guard holds the lock and is borrowed exclusively.
        unsafe { &mut *self.cell.value.get() }
    }
}

impl<T: Trace + ?Sized> Drop for GcCellGuard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        let _unlock = UnlockAtEnd { holder: &self.cell.holder, free: self.free };
        if self.is_counted() {
            let (before, after) = (self.external, T::external_bytes(self));
            if before != after {
                count_change(before, after);
            }
        }
    }
}

impl<T: Trace + ?Sized + fmt::Debug> fmt::Debug for GcCellGuard<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&**self, f)
    }
}
