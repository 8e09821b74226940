//! Floor 5: slots for one reference that are read without a lock: [`AtomicGc`], and [`GcOnce`] on top.
//!
//! The slot owns one counted reference. To load is to read the address and count up, and between the
//! two another thread may swap the reference out. So a reference taken out of a slot is not dropped
//! but *retired*: it is dropped when every thread that was attached at that time has passed a safepoint or
//! detached, that is, when nobody can be between the two any more. The same wait is what lets
//! [`peek`](AtomicGc::peek) lend the value without counting.
//!
//! # Orderings
//!
//! Stores and exchanges release the object's content with its address, loads acquire it. An exchange acquires what was done before
//! the reference was put in that it takes out. That the wait is long enough is the protocol of
//! [`managed`](crate::managed)'s retirement. `loom_tests/slot.rs` explores both.

use std::fmt;
use std::marker::PhantomData;
use std::ptr::NonNull;

use crate::base::sync::{AtomicPtr, Ordering};
use crate::managed::{self, drop_reference, object, retire_elsewhere};
use crate::object::header::Header;
use crate::typed::gc::check;
use crate::{Gc, Mutator, Trace, Tracer};

/// A field that holds a reference or nothing, changed and read by any thread without a lock.
///
/// ```
/// use standstill::{AtomicGc, Heap};
///
/// let heap = Heap::new();
/// let m = heap.attach();
/// let slot = AtomicGc::new(Some(m.alloc(1)));
/// assert_eq!(slot.peek(&m), Some(&1));
/// let old = slot.swap(&m, Some(m.alloc(2)));
/// assert_eq!((*old.unwrap(), slot.peek(&m)), (1, Some(&2)));
/// ```
pub struct AtomicGc<T> {
    slot: AtomicPtr<Header>,
    owns: PhantomData<Gc<T>>,
    /// What is put in through `&self` comes out as a `T`: neither a subtype nor a supertype will do for it, as in a `Cell`.
    invariant: PhantomData<fn(T) -> T>,
}

impl<T> AtomicGc<T> {
    /// A slot that holds `gc`.
    pub fn new(gc: Option<Gc<T>>) -> Self {
        Self { slot: AtomicPtr::new(into_raw(gc)), owns: PhantomData, invariant: PhantomData }
    }

    /// Changes the address in the slot, and gives back the old one.
    #[inline(always)]
    fn put(&self, raw: *mut Header) -> *mut Header {
        // AcqRel: release for those who load the new address; acquire of what came before the store of the old one.
        self.slot.swap(raw, Ordering::AcqRel)
    }
}

fn into_raw<T>(gc: Option<Gc<T>>) -> *mut Header {
    gc.map_or(std::ptr::null_mut(), |gc| gc.into_header().as_ptr())
}

impl<T: Trace> AtomicGc<T> {
    /// The reference in the slot, counted.
    ///
    /// # Panics
    ///
    /// Like all methods, when the mutator is one of another heap than the object's.
    #[inline]
    #[track_caller]
    pub fn load(&self, m: &Mutator) -> Option<Gc<T>> {
        self.guarded(m).map(|header| {
            // SAFETY: rule R: `guarded`.
            unsafe { header.as_ref() }.clone_ref(m.id());
            // SAFETY: rule R: the reference just counted.
            unsafe { Gc::from_header(header) }
        })
    }

    /// The value that the slot refers to, lent without counting: it stays as long as the mutator is borrowed,
    /// also when another thread changes the slot meanwhile.
    #[inline]
    #[track_caller]
    pub fn peek<'a>(&'a self, m: &'a Mutator) -> Option<&'a T> {
        self.guarded(m).map(|header| {
            // A handle that borrows the slot's reference.
            // SAFETY: rule R: `guarded`, for as long as `m` is borrowed.
            let gc = std::mem::ManuallyDrop::new(unsafe { Gc::<T>::from_header(header) });
            // SAFETY: as above.
            unsafe { &*Gc::as_ptr(&gc) }
        })
    }

    /// The address in the slot. Its object lives as long as `m` is borrowed: the slot holds a reference
    /// now, and when it is taken out, it is dropped only after this thread's next safepoint.
    #[inline]
    #[track_caller]
    fn guarded(&self, m: &Mutator) -> Option<NonNull<Header>> {
        // Acquire: pairs with the release of whoever stored it.
        let header = NonNull::new(self.slot.load(Ordering::Acquire))?;
        // Before the object is touched: one of another heap is not protected by this mutator.
        check(header, m);
        Some(header)
    }

    /// Puts `gc` into the slot, and retires what was there.
    #[track_caller]
    pub fn store(&self, m: &Mutator, gc: Option<Gc<T>>) {
        let raw = Self::accept(m, gc);
        Self::retire(m, self.put(raw));
    }

    /// Puts `gc` into the slot, and gives back what was there.
    #[track_caller]
    pub fn swap(&self, m: &Mutator, gc: Option<Gc<T>>) -> Option<Gc<T>> {
        let raw = Self::accept(m, gc);
        Self::take_over(m, self.put(raw))
    }

    /// Empties the slot, and gives back what was there.
    #[track_caller]
    pub fn take(&self, m: &Mutator) -> Option<Gc<T>> {
        self.swap(m, None)
    }

    /// Puts `new` into the slot if it holds `current` (the same object, or nothing).
    ///
    /// `Ok`: what was there. `Err`: the slot holds something else, and `new` comes back.
    #[track_caller]
    pub fn compare_exchange(
        &self,
        m: &Mutator,
        current: Option<&Gc<T>>,
        new: Option<Gc<T>>,
    ) -> Result<Option<Gc<T>>, Option<Gc<T>>> {
        let current = current.map_or(std::ptr::null_mut(), |gc| gc.header().as_ptr());
        let raw = Self::accept(m, new);
        // AcqRel: as in `put`. Relaxed on failure: nothing is read through the address.
        match self.slot.compare_exchange(current, raw, Ordering::AcqRel, Ordering::Relaxed) {
            Ok(old) => Ok(Self::take_over(m, old)),
            Err(_) => Err(NonNull::new(raw).map(|header| {
                // SAFETY: rule R: `accept` gave the reference up, and nobody took it.
                unsafe { Gc::from_header(header) }
            })),
        }
    }

    #[track_caller]
    fn accept(m: &Mutator, gc: Option<Gc<T>>) -> *mut Header {
        if let Some(gc) = &gc {
            check(gc.header(), m);
        }
        into_raw(gc)
    }

    #[track_caller]
    fn retire(m: &Mutator, old: *mut Header) {
        if let Some(header) = NonNull::new(old) {
            Self::check_taken(m, header);
            managed::retire(m.raw(), header);
        }
    }

    /// Panics for an object of another heap that was taken out of the slot, and loses no reference: it is retired there, where
    /// others may be about to count up.
    #[track_caller]
    fn check_taken(m: &Mutator, header: NonNull<Header>) {
        if !m.raw().owns(object(header)) {
            // SAFETY: rule R: the slot owned the reference.
            unsafe { retire_elsewhere(header) };
            check(header, m);
        }
    }

    /// A reference for the caller; the slot's own is retired, since others may be about to count up.
    #[track_caller]
    fn take_over(m: &Mutator, old: *mut Header) -> Option<Gc<T>> {
        let header = NonNull::new(old)?;
        Self::check_taken(m, header);
        // SAFETY: rule R: the slot's reference is ours now, and still counted.
        unsafe { header.as_ref() }.clone_ref(m.id());
        managed::retire(m.raw(), header);
        // SAFETY: rule R: the reference just counted.
        Some(unsafe { Gc::from_header(header) })
    }
}

impl<T> Drop for AtomicGc<T> {
    fn drop(&mut self) {
        // Nobody borrows the slot, so nobody is in the middle of a load; and whoever peeked borrowed it.
        // Relaxed: exclusive.
        if let Some(header) = NonNull::new(self.slot.load(Ordering::Relaxed)) {
            // SAFETY: rule R: the slot owned the reference.
            unsafe { drop_reference(header) };
        }
    }
}

impl<T: Trace> Trace for AtomicGc<T> {
    fn traverse(this: &Self, tracer: &mut Tracer) {
        // Relaxed: whoever can put an object of this heap into the slot is parked, and the stop orders what it did. The
        // address of another heap's object leads nowhere here.
        let header = this.slot.load(Ordering::Relaxed);
        if !header.is_null() {
            tracer.edge(header as usize);
        }
    }

    fn clear(this: &Self, m: &Mutator) {
        if let Some(header) = NonNull::new(this.put(std::ptr::null_mut())) {
            if m.raw().owns(object(header)) {
                managed::retire(m.raw(), header);
            } else {
                // Stored through a mutator of its own heap.
                // SAFETY: rule R: the slot owned the reference.
                unsafe { retire_elsewhere(header) };
            }
        }
    }
}

impl<T> Default for AtomicGc<T> {
    fn default() -> Self {
        Self::new(None)
    }
}

impl<T> From<Gc<T>> for AtomicGc<T> {
    fn from(gc: Gc<T>) -> Self {
        Self::new(Some(gc))
    }
}

impl<T> fmt::Debug for AtomicGc<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Relaxed: only the address is shown.
        write!(
            f,
            "AtomicGc<{}>({:p})",
            std::any::type_name::<T>(),
            self.slot.load(Ordering::Relaxed)
        )
    }
}

/// A slot that is set once: what `OnceLock<Gc<T>>` is, but a cycle through it can be collected.
///
/// ```
/// use standstill::{GcOnce, Heap};
///
/// let heap = Heap::new();
/// let m = heap.attach();
/// let once = GcOnce::new();
/// assert!(once.set(&m, m.alloc(1)).is_ok());
/// assert!(once.set(&m, m.alloc(2)).is_err());
/// assert_eq!(once.get(&m), Some(&1));
/// ```
pub struct GcOnce<T>(AtomicGc<T>);

impl<T> GcOnce<T> {
    /// An empty slot.
    pub fn new() -> Self {
        Self(AtomicGc::new(None))
    }
}

impl<T: Trace> GcOnce<T> {
    /// Sets the slot; `Err`: it was set, and the reference comes back.
    ///
    /// # Panics
    ///
    /// Like all methods, when the mutator is one of another heap than the object's.
    #[track_caller]
    pub fn set(&self, m: &Mutator, gc: Gc<T>) -> Result<(), Gc<T>> {
        match self.0.compare_exchange(m, None, Some(gc)) {
            Ok(_) => Ok(()),
            Err(gc) => Err(gc.expect("what was offered comes back")),
        }
    }

    /// The value, once the slot is set.
    #[track_caller]
    pub fn get<'a>(&'a self, m: &'a Mutator) -> Option<&'a T> {
        self.0.peek(m)
    }

    /// The reference, once the slot is set.
    #[track_caller]
    pub fn handle(&self, m: &Mutator) -> Option<Gc<T>> {
        self.0.load(m)
    }

    /// The value; the first to come makes it. Several threads may make one, and all but one of these are
    /// dropped.
    #[track_caller]
    pub fn get_or_init<'a>(&'a self, m: &'a Mutator, init: impl FnOnce() -> Gc<T>) -> &'a T {
        if self.get(m).is_none() {
            drop(self.set(m, init()));
        }
        self.get(m).expect("set by this thread or another, and cleared only when unreachable")
    }
}

impl<T> Default for GcOnce<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T: Trace> Trace for GcOnce<T> {
    fn traverse(this: &Self, tracer: &mut Tracer) {
        Trace::traverse(&this.0, tracer);
    }

    fn clear(this: &Self, m: &Mutator) {
        Trace::clear(&this.0, m);
    }
}

impl<T> fmt::Debug for GcOnce<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "GcOnce({:?})", self.0)
    }
}
