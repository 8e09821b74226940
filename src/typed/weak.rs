//! Floor 5: references that do not keep their object alive.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::ptr::NonNull;

use crate::base::error::{AllocError, ForeignGc, OutOfMemory};
use crate::base::fallible::NoMemory;
use crate::base::shared::Shared;
use crate::base::sync::{AtomicBool, Ordering};
use crate::managed::{self, object};
use crate::object::header::Header;
use crate::object::type_info::Tracer;
use crate::object::weak::{WeakRecord, WeakWatcher};
use crate::typed::gc::Gc;
use crate::typed::gc::{allocate, check, foreign_panic, out_of_memory};
use crate::typed::mutator::mutator;
use crate::{Mutator, Trace};

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

    /// The address of the record: the identity of the object that this was made for.
    fn record(&self) -> Option<*const WeakRecord> {
        self.record.as_deref().map(std::ptr::from_ref)
    }
}

impl<T: Trace> GcWeak<T> {
    /// A strong reference, if the object lives.
    ///
    /// # Panics
    ///
    /// When the object lives in another heap than the mutator's.
    #[track_caller]
    pub fn upgrade(&self, m: &Mutator) -> Option<Gc<T>> {
        let header = upgrade(self.record.as_ref()?, m)?;
        // SAFETY: rules R and Y: a fresh reference; the record was made for an object of type `T`.
        Some(unsafe { Gc::from_header(header) })
    }
}

impl<T: Trace> Gc<T> {
    /// A weak reference to the object: it does not keep it alive.
    ///
    /// # Panics
    ///
    /// When the object belongs to another heap than the mutator.
    #[track_caller]
    pub fn downgrade(this: &Self, m: &Mutator) -> GcWeak<T> {
        check(this.header(), m);
        let record = m.raw().model().weak.record(this.counts());
        GcWeak { record: Some(record.unwrap_or_else(NoMemory::abort_process)), target: PhantomData }
    }

    /// Allocates an object whose value holds weak references to the object itself.
    ///
    /// Until it is allocated, upgrading them gives `None`.
    ///
    /// # Panics
    ///
    /// When the heap is full.
    #[track_caller]
    pub fn new_cyclic(m: &Mutator, value: impl FnOnce(&GcWeak<T>) -> T) -> Self
    where
        T: Send + Sync,
    {
        let record = WeakRecord::without_target().unwrap_or_else(NoMemory::abort_process);
        let weak = GcWeak { record: Some(record.clone()), target: PhantomData };
        let this = m.alloc(value(&weak));
        let born = m.raw().model().weak.set_target(&record, this.counts());
        born.unwrap_or_else(NoMemory::abort_process);
        this
    }
}

/// Upgrades through a record; panics for a live object of another heap that is still open.
#[track_caller]
fn upgrade(record: &WeakRecord, m: &Mutator) -> Option<NonNull<Header>> {
    let raw = m.raw();
    let result = record.with_target(|header| {
        if !raw.owns(object(NonNull::from(header))) {
            // SAFETY: rule R: the object lives while the record says so, and keeps its heap's core.
            let core = unsafe {
                &*crate::memory::space::Space::heap_of(std::ptr::from_ref(header) as usize)
                    .cast::<managed::ManagedCore>()
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

impl<T> PartialEq for GcWeak<T> {
    /// Whether both were made for the same object, alive or dead; or both for none.
    #[inline]
    fn eq(&self, other: &Self) -> bool {
        self.record() == other.record()
    }
}

impl<T> Eq for GcWeak<T> {}

impl<T> Hash for GcWeak<T> {
    /// The identity of the object, as in `==`.
    #[inline]
    fn hash<S: Hasher>(&self, state: &mut S) {
        self.record().hash(state);
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

    fn traverse(_: &Self, _: &mut Tracer) {}
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
    #[track_caller]
    pub(crate) fn alloc(
        target: &Gc<T>,
        data: D,
        callback: WeakCallback<T, D>,
        m: &Mutator,
    ) -> Result<Gc<Self>, AllocError<D>> {
        check(target.header(), m);
        let raw = m.raw();
        let record =
            raw.model().weak.record(target.counts()).unwrap_or_else(NoMemory::abort_process);
        let cleared = Shared::new(AtomicBool::new(false)).unwrap_or_else(NoMemory::abort_process);
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
        let own = raw.model().weak.record(this.counts()).unwrap_or_else(NoMemory::abort_process);
        let watched = record.watch(WeakWatcher { weak_ref: own, cleared, invoke: Self::invoke });
        watched.unwrap_or_else(NoMemory::abort_process);
        Ok(this)
    }

    unsafe fn invoke(header: NonNull<Header>, m: *const ()) {
        // A handle that borrows the caller's reference.
        // SAFETY: rule Y: registered with an object of this type; `m` is a mutator.
        let (this, m) = unsafe { (ManuallyDrop::new(Gc::<Self>::from_header(header)), mutator(m)) };
        (this.callback)(&this, m);
    }
}

impl<T: Trace, D> WeakRef<T, D> {
    /// A strong reference to the target, if it lives and this weak reference has not been cleared.
    ///
    /// # Panics
    ///
    /// When the target lives in another heap than the mutator's.
    #[track_caller]
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
    fn traverse(this: &Self, tracer: &mut Tracer) {
        Trace::traverse(&this.data, tracer);
    }

    fn clear(this: &Self, m: &Mutator) {
        Trace::clear(&this.data, m);
    }
}

impl<T, D> fmt::Debug for WeakRef<T, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WeakRef").finish_non_exhaustive()
    }
}

impl Mutator {
    /// Allocates a weak reference to `target` that calls `callback` when the target is gone.
    ///
    /// # Panics
    ///
    /// When the heap is full, or the target belongs to another one.
    #[track_caller]
    pub fn alloc_weak<T, D>(
        &self,
        target: &Gc<T>,
        data: D,
        callback: WeakCallback<T, D>,
    ) -> Gc<WeakRef<T, D>>
    where
        T: Trace,
        D: Trace + Send + Sync,
    {
        match WeakRef::alloc(target, data, callback, self) {
            Ok(weak) => weak,
            Err(error) => out_of_memory(error),
        }
    }
}
