//! A slot, `AtomicGc` or `GcOnce`, owns one counted reference. A load takes no lock: it reads the
//! address and then increments the count. Suppose that thread B takes the reference out of the slot
//! between these two steps of thread A, and drops it: A would increment the count of a freed
//! object. So a removed reference is not dropped immediately but *retired*. It is dropped when
//! every thread that was attached at the removal has passed a safepoint or detached. No thread can
//! then be between the two steps of a load of this reference. For the same reason `peek` can borrow
//! the value without counting.
//!
//! # Orderings
//!
//! * Stores and exchanges release the content of the new object, and loads acquire it.
//! * An exchange also acquires the writes that came before the store of the removed reference.
//! * Retirement in [`managed`](crate::managed) delays the drop long enough.
//!
//! `loom_tests/slot.rs` explores the orderings and the delay.

use std::fmt;
use std::marker::PhantomData;
use std::ptr::NonNull;

use crate::base::sync::{AtomicPtr, Ordering};
use crate::managed::{self, CountedRef, drop_reference, retire_elsewhere};
use crate::object::handle_places;
use crate::object::header::Header;
use crate::typed::gc::check;
use crate::{Gc, Mutator, Trace, Tracer};

/// A field that holds a reference or nothing, which any attached thread can read and change without
/// a lock.
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
    /// Invariant in `T`, as a `Cell`: values go in and come out through `&self`.
    invariant: PhantomData<fn(T) -> T>,
}

impl<T> AtomicGc<T> {
    /// A slot that holds `gc`.
    pub fn new(gc: Option<Gc<T>>) -> Self {
        Self { slot: AtomicPtr::new(into_raw(gc)), owns: PhantomData, invariant: PhantomData }
    }

    /// Replaces the address in the slot and returns the old reference, if `accepts` accepts the old
    /// address. Otherwise the slot is unchanged, and the error is the address.
    #[inline(always)]
    fn put(
        &self,
        raw: *mut Header,
        accepts: impl Fn(NonNull<Header>) -> bool,
    ) -> Result<Option<CountedRef>, NonNull<Header>> {
        // Relaxed: `accepts` tests only the address, and the exchange compares it.
        let mut old = self.slot.load(Ordering::Relaxed);
        loop {
            if let Some(header) = NonNull::new(old).filter(|&header| !accepts(header)) {
                return Err(header);
            }
            // AcqRel: the release pairs with the acquire of threads that load the new address. The
            // acquire pairs with the release of the thread that stored the old address. Relaxed on
            // failure: as the load.
            match self.slot.compare_exchange_weak(old, raw, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(old) => return Ok(removed(old)),
                Err(present) => old = present,
            }
        }
    }
}

fn into_raw<T>(gc: Option<Gc<T>>) -> *mut Header {
    gc.map_or(std::ptr::null_mut(), |gc| gc.into_header().as_ptr())
}

/// The reference that this thread has removed from a slot.
#[inline(always)]
fn removed(old: *mut Header) -> Option<CountedRef> {
    // SAFETY: rule *counted*: the slot owned the reference.
    NonNull::new(old).map(|header| unsafe { CountedRef::new(header) })
}

impl<T: Trace> AtomicGc<T> {
    /// A new counted reference to the object in the slot.
    ///
    /// # Panics
    ///
    /// If the object belongs to another heap than the mutator.
    #[inline]
    #[track_caller]
    pub fn load(&self, m: &Mutator) -> Option<Gc<T>> {
        let header = self.guarded(m)?;
        // SAFETY: rule *counted*: `guarded`.
        unsafe { header.as_ref() }.clone_ref(m.id());
        handle_places::made(header.as_ptr() as usize);
        // SAFETY: rule *counted*: the reference just counted.
        Some(unsafe { Gc::from_header(header) })
    }

    /// Borrows the value of the object in the slot, without counting a reference.
    ///
    /// The borrow stays valid while the mutator is borrowed, even if another thread changes the
    /// slot in the meantime.
    ///
    /// # Panics
    ///
    /// If the object belongs to another heap than the mutator.
    #[inline]
    #[track_caller]
    pub fn peek<'a>(&'a self, m: &'a Mutator) -> Option<&'a T> {
        self.guarded(m).map(|header| {
            // A handle that borrows the slot's reference.
            // SAFETY: rule *counted*: `guarded`, for as long as `m` is borrowed.
            let gc = std::mem::ManuallyDrop::new(unsafe { Gc::<T>::from_header(header) });
            // SAFETY: as above.
            unsafe { &*Gc::as_ptr(&gc) }
        })
    }

    /// The address in the slot. Its object lives as long as `m` is borrowed.
    ///
    /// The slot holds a reference at the time of the load. If another thread removes this
    /// reference, it is dropped only after this thread's next safepoint.
    #[inline]
    #[track_caller]
    fn guarded(&self, m: &Mutator) -> Option<NonNull<Header>> {
        // Acquire: pairs with the release of the store, swap or exchange.
        let header = NonNull::new(self.slot.load(Ordering::Acquire))?;
        // This test comes before any access to the object, because this mutator does not protect
        // objects of another heap.
        check(header, m);
        Some(header)
    }

    /// Stores `gc` in the slot and retires the old reference.
    ///
    /// # Panics
    ///
    /// If `gc` or the old object belongs to another heap than the mutator. The slot is unchanged.
    #[track_caller]
    pub fn store(&self, m: &Mutator, gc: Option<Gc<T>>) {
        if let Some(reference) = self.exchange(m, gc) {
            managed::retire(m.raw(), reference);
        }
    }

    /// Stores `gc` in the slot and returns the old reference.
    ///
    /// # Panics
    ///
    /// If `gc` or the old object belongs to another heap than the mutator. The slot is unchanged.
    #[track_caller]
    pub fn swap(&self, m: &Mutator, gc: Option<Gc<T>>) -> Option<Gc<T>> {
        Self::take_over(m, self.exchange(m, gc))
    }

    /// Empties the slot and returns the old reference.
    ///
    /// # Panics
    ///
    /// If the old object belongs to another heap than the mutator. The slot is unchanged.
    #[track_caller]
    pub fn take(&self, m: &Mutator) -> Option<Gc<T>> {
        self.swap(m, None)
    }

    /// Stores `new` in the slot if the slot holds `current` (the same object, or nothing). Returns
    /// the old reference.
    ///
    /// # Errors
    ///
    /// If the slot holds another reference. The slot is unchanged, and the error is `new`.
    ///
    /// # Panics
    ///
    /// If `current` or `new` belongs to another heap than the mutator. The slot is unchanged.
    #[track_caller]
    pub fn compare_exchange(
        &self,
        m: &Mutator,
        current: Option<&Gc<T>>,
        new: Option<Gc<T>>,
    ) -> Result<Option<Gc<T>>, Option<Gc<T>>> {
        current.into_iter().chain(&new).for_each(|gc| check(gc.header(), m));
        let current = current.map_or(std::ptr::null_mut(), |gc| gc.header().as_ptr());
        let raw = into_raw(new);
        // AcqRel: as in `put`. Relaxed on failure: the address is not dereferenced.
        match self.slot.compare_exchange(current, raw, Ordering::AcqRel, Ordering::Relaxed) {
            Ok(old) => Ok(Self::take_over(m, removed(old))),
            Err(_) => Err(NonNull::new(raw).map(|header| {
                // SAFETY: rule *counted*: the reference of `new` was not stored, so this function
                // still owns it.
                unsafe { Gc::from_header(header) }
            })),
        }
    }

    /// Stores `gc` and returns the slot's old reference. Panics before the change if one of the
    /// objects belongs to another heap.
    #[track_caller]
    fn exchange(&self, m: &Mutator, gc: Option<Gc<T>>) -> Option<CountedRef> {
        if let Some(gc) = &gc {
            check(gc.header(), m);
        }
        let raw = gc.as_ref().map_or(std::ptr::null_mut(), |gc| gc.header().as_ptr());
        let is_own = |header: NonNull<Header>| m.raw().owns_address(header.as_ptr() as usize);
        match self.put(raw, is_own) {
            Ok(old) => {
                // The slot owns the reference now.
                std::mem::forget(gc);
                old
            }
            Err(foreign) => {
                check(foreign, m);
                unreachable!("the object lies in another heap")
            }
        }
    }

    /// Returns a new reference to the removed object. The slot's own reference is retired, because
    /// other threads may be about to increment the count.
    #[track_caller]
    fn take_over(m: &Mutator, old: Option<CountedRef>) -> Option<Gc<T>> {
        let reference = old?;
        let header = reference.as_ptr();
        reference.header().clone_ref(m.id());
        handle_places::made(header.as_ptr() as usize);
        managed::retire(m.raw(), reference);
        // SAFETY: rule *counted*: the reference just counted.
        Some(unsafe { Gc::from_header(header) })
    }
}

impl<T> Drop for AtomicGc<T> {
    fn drop(&mut self) {
        // `&mut self` excludes loads in progress, and also borrows from `peek`, which borrow the
        // slot. Relaxed: for the same reason.
        if let Some(header) = NonNull::new(self.slot.load(Ordering::Relaxed)) {
            // SAFETY: rule *counted*: the slot owned the reference.
            unsafe { drop_reference(header) };
        }
    }
}

impl<T: Trace> Trace for AtomicGc<T> {
    fn traverse(this: &Self, tracer: &mut Tracer) {
        // Relaxed: only mutators of this heap can store an object of this heap in the slot. They
        // are parked, so the stop orders the load after their stores. The tracer ignores the
        // address of an object of another heap.
        let header = this.slot.load(Ordering::Relaxed);
        if !header.is_null() {
            tracer.edge(header as usize);
        }
    }

    fn clear(this: &Self, m: &Mutator) {
        if let Ok(Some(reference)) = this.put(std::ptr::null_mut(), |_| true) {
            if m.raw().owns(reference.object()) {
                managed::retire(m.raw(), reference);
            } else {
                // A mutator of another heap has stored this object.
                retire_elsewhere(reference);
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
        // Relaxed: only the address is printed.
        write!(
            f,
            "AtomicGc<{}>({:p})",
            std::any::type_name::<T>(),
            self.slot.load(Ordering::Relaxed)
        )
    }
}

/// A slot that is set once, by an attached thread, to a value of any type that implements
/// [`Trace`], such as an enum of a language's values. Reads take no lock.
///
/// The value lies in an object of its own, which may have handles. The collector can break a cycle
/// through the slot, because it may empty the slot. Threads that have borrowed the value may still
/// read it then, so the object lives until their next safepoint.
///
/// ```
/// use standstill::{Gc, GcOnce, Heap, Trace};
///
/// #[derive(Trace)]
/// enum Value { Number(f64), Global(Gc<GcOnce<Value>>) }
///
/// let heap = Heap::new();
/// let mut m = heap.attach();
/// let global = m.alloc(GcOnce::new());
/// assert!(global.set(&m, Value::Global(global.clone())).is_ok());
/// assert!(global.set(&m, Value::Number(1.0)).is_err());
/// assert!(matches!(global.get(&m), Some(Value::Global(_))));
/// drop(global);
/// assert_eq!(m.collect().collected, 2);
/// ```
pub struct GcOnce<T>(AtomicGc<T>);

impl<T> GcOnce<T> {
    /// An empty slot.
    pub fn new() -> Self {
        Self(AtomicGc::new(None))
    }
}

impl<T: Trace + Send + Sync> GcOnce<T> {
    /// Sets the slot.
    ///
    /// # Errors
    ///
    /// If the slot is already set. The error is `value`.
    ///
    /// # Panics
    ///
    /// If the heap is full.
    #[track_caller]
    pub fn set(&self, m: &Mutator, value: T) -> Result<(), T> {
        // Relaxed: this only saves an allocation.
        if !self.0.slot.load(Ordering::Relaxed).is_null() {
            return Err(value);
        }
        // SAFETY: rule *zero*: nobody else has seen the new object, because the slot is set.
        self.set_handle(m, m.alloc(value)).map_err(|gc| unsafe { Gc::unwrap_only(gc, m) })
    }

    /// The value. If the slot is not set, it is set to the result of `init` first.
    ///
    /// Several threads may call `init` at the same time, and `init` may use the slot, so the slot
    /// keeps the first result, and the others are dropped. If `init` panics, nothing is set.
    ///
    /// # Panics
    ///
    /// * If the object belongs to another heap than the mutator, or if the heap is full.
    /// * If the slot is emptied between the initialization and the return. Another thread's
    ///   collection does so if it clears the object that contains the slot, and so does a call of
    ///   [`Trace::clear`].
    #[track_caller]
    pub fn get_or_init<'a>(&'a self, m: &'a Mutator, init: impl FnOnce() -> T) -> &'a T {
        if self.get(m).is_none() {
            drop(self.set(m, init()));
        }
        self.get(m).expect(
            "this GcOnce was emptied while it was initialized: a collection clears its object, or \
             `Trace::clear` was called; in a destructor, use `get`, which can return `None`",
        )
    }
}

impl<T: Trace> GcOnce<T> {
    /// Sets the slot to the value of an object.
    ///
    /// # Errors
    ///
    /// If the slot is already set. The error is `gc`.
    ///
    /// # Panics
    ///
    /// If `gc` belongs to another heap than the mutator.
    #[track_caller]
    pub fn set_handle(&self, m: &Mutator, gc: Gc<T>) -> Result<(), Gc<T>> {
        match self.0.compare_exchange(m, None, Some(gc)) {
            Ok(_) => Ok(()),
            Err(gc) => Err(gc.expect("a failed exchange returns the new reference")),
        }
    }

    /// The value, or `None` if the slot is not set.
    ///
    /// # Panics
    ///
    /// If the object belongs to another heap than the mutator.
    #[track_caller]
    pub fn get<'a>(&'a self, m: &'a Mutator) -> Option<&'a T> {
        self.0.peek(m)
    }

    /// A counted reference to the object, or `None` if the slot is not set.
    ///
    /// # Panics
    ///
    /// If the object belongs to another heap than the mutator.
    #[track_caller]
    pub fn handle(&self, m: &Mutator) -> Option<Gc<T>> {
        self.0.load(m)
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
