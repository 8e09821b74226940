//! A weak reference (the value `GcWeak`, or the object `WeakRef` with a callback) must find out
//! whether its target is alive. But the target's memory may be free by then, or hold another
//! object. So it refers to a *record* instead, which all weak references to one object share. For
//! example, thread B upgrades a weak reference while thread A drops what may be the last reference.
//! B holds the lock of the record while it reads the target's count, and A takes the lock before it
//! frees the memory. So B finds a living object, or a count of 0, or an empty record, and never
//! freed memory. [`object::weak`](crate::object::weak) has the states and the proof.
//!
//! A callback belongs to an object, because the collector must traverse its data, and because it
//! must not run if the weak reference is garbage itself.
//!
//! An allocation fetches all its memory before it changes anything, so an error leaves the heap as
//! it was.

use crate::{AllocError, ForeignGc, OutOfMemory};
use std::fmt;
use std::hash::{Hash, Hasher};
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::ptr::NonNull;

use crate::base::shared::Shared;
use crate::base::sync::{AtomicBool, Ordering};
use crate::managed::{self, object};
use crate::object::handle_places;
use crate::object::header::Header;
use crate::object::tracer::Tracer;
use crate::object::weak::{WeakRecord, WeakWatcher};
use crate::typed::any::AnyGc;
use crate::typed::gc::{Gc, Unborn, check, foreign_panic, out_of_memory};
use crate::typed::mutator::mutator;
use crate::typed::slice::{GcSlice, HeaderSlice};
use crate::typed::text::GcStr;
use crate::{Mutator, Trace};

/// A weak reference: it does not keep its target alive.
///
/// An upgrade fails once the destruction of the target has begun. It also fails once a collection
/// has found the target to be garbage and has run the finalizers.
///
/// Any thread can clone, send and drop a `GcWeak`. It forms no cycle, because the collector does
/// not count it as a reference between objects.
///
/// The target of a `GcWeak<HeaderSlice<H, [T]>>` is that of a [`GcSlice`], and the target of a
/// `GcWeak<HeaderSlice<H, str>>` is that of a [`GcStr`]. A `GcWeak<AnyObject>` has lost the type of
/// its target, as an [`AnyGc`] has.
pub struct GcWeak<T: ?Sized> {
    record: Option<Shared<WeakRecord>>,
    /// Invariant, as a [`Gc`] is.
    target: PhantomData<fn(*const T) -> *const T>,
}

impl<T: ?Sized> GcWeak<T> {
    /// A weak reference without a target.
    pub const fn new() -> Self {
        Self { record: None, target: PhantomData }
    }

    /// Gives the weak reference up as an address, which is null for one without a target from the
    /// [start](Self::new). [`from_raw`](Self::from_raw) takes it back, once. Otherwise a little
    /// memory is never freed.
    ///
    /// The address is not that of the target, and is the same for all weak references to it.
    pub fn into_raw(self) -> *const () {
        self.record.map_or(std::ptr::null(), |record| record.into_raw().as_ptr())
    }

    /// Takes back the weak reference that [`into_raw`](Self::into_raw) has given up.
    ///
    /// # Safety
    ///
    /// The address is a result of `into_raw` of this type, and nobody has taken it back.
    pub unsafe fn from_raw(address: *const ()) -> Self {
        let record = NonNull::new(address.cast_mut());
        // SAFETY: rule *pinned*: a reference to a record, which the caller gives up.
        let record = record.map(|record| unsafe { Shared::from_raw(record) });
        Self { record, target: PhantomData }
    }

    /// The record of a weak reference that has one.
    pub(super) fn shared_record(&self) -> Shared<WeakRecord> {
        self.record.clone().expect("a weak reference with a target")
    }

    /// The address of the record. It is the identity of the target, alive or dead, because each
    /// target has one record.
    fn record(&self) -> Option<*const WeakRecord> {
        self.record.as_deref().map(std::ptr::from_ref)
    }
}

/// Stands for any type of object in a [`GcWeak`]. There is no value of this type.
///
/// ```
/// use standstill::{AnyObject, Gc, GcWeak, Heap};
///
/// let heap = Heap::new();
/// let m = heap.attach();
/// let name = m.alloc(String::from("a value of a script"));
/// let weak: GcWeak<AnyObject> = Gc::downgrade(&name, &m).into_any();
/// let any = weak.upgrade(&m).unwrap();
/// assert!(any.downcast_ref::<String>(&m).is_some());
/// drop((any, name));
/// assert!(weak.upgrade(&m).is_none());
/// ```
#[derive(Debug)]
pub enum AnyObject {}

/// The type of a target: of a [`Gc`], [`HeaderSlice`] for a [`GcSlice`] or a [`GcStr`], or
/// [`AnyObject`]. No other crate implements it.
pub trait WeakTarget {
    /// The strong reference.
    type Handle;

    /// Whether an object of this type may be dynamic. The handler of such an object may count it up
    /// while it dies.
    #[doc(hidden)]
    const MAY_BE_DYNAMIC: bool = false;

    /// Takes over a counted reference to an object of this type, by the address of its header.
    #[doc(hidden)]
    unsafe fn handle(header: HeaderAddress) -> Self::Handle;
}

mod sealed {
    /// The address of a header, which nobody else can name.
    #[derive(Debug)]
    pub struct HeaderAddress(pub(in super::super) std::ptr::NonNull<super::Header>);
}
pub(super) use sealed::HeaderAddress;

impl<T: Trace> WeakTarget for T {
    type Handle = Gc<T>;

    #[inline]
    unsafe fn handle(header: HeaderAddress) -> Gc<T> {
        // SAFETY: rules *counted* and *typed*: as the caller says.
        unsafe { Gc::from_header(header.0) }
    }
}

impl<H, T> WeakTarget for HeaderSlice<H, [T]> {
    type Handle = GcSlice<H, T>;

    #[inline]
    unsafe fn handle(header: HeaderAddress) -> GcSlice<H, T> {
        // SAFETY: rules *counted* and *typed*: as the caller says.
        unsafe { GcSlice::from_header(header.0) }
    }
}

impl<H> WeakTarget for HeaderSlice<H, str> {
    type Handle = GcStr<H>;

    #[inline]
    unsafe fn handle(header: HeaderAddress) -> GcStr<H> {
        // SAFETY: rules *counted* and *typed*: as the caller says.
        unsafe { GcStr::from_header(header.0) }
    }
}

impl WeakTarget for AnyObject {
    type Handle = AnyGc;
    const MAY_BE_DYNAMIC: bool = true;

    #[inline]
    unsafe fn handle(header: HeaderAddress) -> AnyGc {
        // SAFETY: rule *counted*: as the caller says.
        unsafe { AnyGc::from_header(header.0) }
    }
}

impl<T: ?Sized + WeakTarget> GcWeak<T> {
    /// The same weak reference without the type of its target.
    pub fn into_any(self) -> GcWeak<AnyObject> {
        GcWeak { record: self.record, target: PhantomData }
    }

    /// A strong reference to the target, or `None` if the target is dead.
    ///
    /// # Panics
    ///
    /// If the target is alive and belongs to another heap than the mutator. A dead target and a
    /// target in a closed heap give `None` instead.
    #[track_caller]
    pub fn upgrade(&self, m: &Mutator) -> Option<T::Handle> {
        let header = upgrade(self.record.as_ref()?, m, T::MAY_BE_DYNAMIC)?;
        // SAFETY: rules *counted* and *typed*: the upgrade counted a reference; the record's target
        // is a `T`.
        Some(unsafe { T::handle(HeaderAddress(header)) })
    }
}

impl<H, T> GcSlice<H, T> {
    /// A weak reference to the object, as [`Gc::downgrade`].
    ///
    /// # Panics
    ///
    /// If memory for the weak record is refused, or if the object belongs to another heap than the
    /// mutator.
    #[track_caller]
    pub fn downgrade(this: &Self, m: &Mutator) -> GcWeak<HeaderSlice<H, [T]>> {
        GcWeak::to(Self::counts(this), m)
    }
}

impl<H> GcStr<H> {
    /// A weak reference to the object, as [`Gc::downgrade`].
    ///
    /// # Panics
    ///
    /// If memory for the weak record is refused, or if the object belongs to another heap than the
    /// mutator.
    #[track_caller]
    pub fn downgrade(this: &Self, m: &Mutator) -> GcWeak<HeaderSlice<H, str>> {
        GcWeak::to(GcSlice::counts(this.as_slice()), m)
    }
}

impl AnyGc {
    /// A weak reference to the object, as [`Gc::downgrade`].
    ///
    /// # Panics
    ///
    /// If memory for the weak record is refused, or if the object belongs to another heap than the
    /// mutator, or to none, as a static object of the module `dynamic`.
    #[track_caller]
    pub fn downgrade(this: &Self, m: &Mutator) -> GcWeak<AnyObject> {
        GcWeak::to(this.header_ref(), m)
    }
}

impl<T: ?Sized> GcWeak<T> {
    /// A weak reference to an object of this type.
    #[track_caller]
    fn to(target: &Header, m: &Mutator) -> Self {
        match Self::try_to(target, m) {
            Ok(weak) => weak,
            Err(reason) => out_of_memory(AllocError::of::<GcWeak<()>>((), reason)),
        }
    }

    #[track_caller]
    fn try_to(target: &Header, m: &Mutator) -> Result<Self, OutOfMemory> {
        check(NonNull::from(target), m);
        Ok(Self { record: Some(m.raw().model().weak.record(target)?), target: PhantomData })
    }
}

impl<T: Trace> Gc<T> {
    /// A weak reference to the object.
    ///
    /// # Panics
    ///
    /// If memory for the weak record is refused; [`try_downgrade`](Self::try_downgrade) returns an
    /// error instead. If the object belongs to another heap than the mutator.
    #[track_caller]
    pub fn downgrade(this: &Self, m: &Mutator) -> GcWeak<T> {
        GcWeak::to(this.counts(), m)
    }

    /// A weak reference to the object.
    ///
    /// # Errors
    ///
    /// If memory for the weak record is refused. Nothing has changed.
    ///
    /// # Panics
    ///
    /// If the object belongs to another heap than the mutator.
    #[track_caller]
    pub fn try_downgrade(this: &Self, m: &Mutator) -> Result<GcWeak<T>, OutOfMemory> {
        GcWeak::try_to(this.counts(), m)
    }

    /// Allocates an object with weak references to itself.
    ///
    /// The function `value` gets a weak reference to the future object and makes the value. Until
    /// the object is allocated, an upgrade gives `None`.
    ///
    /// # Panics
    ///
    /// If the heap is full, or if memory for the weak record is refused.
    /// [`try_new_cyclic`](Self::try_new_cyclic) returns an error instead.
    #[track_caller]
    pub fn new_cyclic(m: &Mutator, value: impl FnOnce(&GcWeak<T>) -> T) -> Self
    where
        T: Send + Sync,
    {
        match Self::try_new_cyclic(m, value) {
            Ok(this) => this,
            Err(error) => out_of_memory(error),
        }
    }

    /// Allocates an object with weak references to itself, as [`new_cyclic`](Self::new_cyclic).
    ///
    /// # Errors
    ///
    /// If the heap is full, or if memory for the weak record is refused. The error contains the
    /// function, which was not called. The heap is unchanged.
    #[cfg_attr(feature = "handle-places", track_caller)]
    pub fn try_new_cyclic<F>(m: &Mutator, value: F) -> Result<Self, AllocError<F>>
    where
        T: Send + Sync,
        F: FnOnce(&GcWeak<T>) -> T,
    {
        let raw = m.raw();
        let rooms = || -> Result<_, OutOfMemory> {
            let record = WeakRecord::without_target()?;
            let unborn = Unborn::<T>::new(raw)?;
            let place = raw.model().weak.place(unborn.header())?;
            Ok((record, unborn, place))
        };
        let (record, unborn, place) = match rooms() {
            Ok(rooms) => rooms,
            Err(reason) => return Err(AllocError::of::<T>(value, reason)),
        };
        let weak = GcWeak { record: Some(record.clone()), target: PhantomData };
        let this = unborn.publish(value(&weak));
        place.set_target(&record, this.counts());
        Ok(this)
    }
}

/// Upgrades through a record. Panics if the target is alive in another heap that is still open.
#[inline(always)]
#[track_caller]
pub(super) fn upgrade(
    record: &WeakRecord,
    m: &Mutator,
    may_be_dynamic: bool,
) -> Option<NonNull<Header>> {
    let raw = m.raw();
    let mut is_foreign = false;
    let is_own = |target| {
        is_foreign = !raw.owns(object(target));
        !(is_foreign || may_be_dynamic && managed::is_dying(raw, target))
    };
    let upgrade = |header: &Header| header.try_upgrade(raw.id()).then(|| NonNull::from(header));
    let upgraded = record.with_own_target(is_own, upgrade);
    if is_foreign {
        // That heap is open, because the end of a heap empties its records.
        foreign_panic(ForeignGc);
    }
    let header = upgraded.flatten()?;
    // Not in a closure, which would be the place itself.
    handle_places::made(header.as_ptr() as usize);
    Some(header)
}

impl<T: ?Sized> PartialEq for GcWeak<T> {
    /// Whether both have the same target, alive or dead, or both have none.
    #[inline]
    fn eq(&self, other: &Self) -> bool {
        self.record() == other.record()
    }
}

impl<T: ?Sized> Eq for GcWeak<T> {}

impl<T: ?Sized> Hash for GcWeak<T> {
    /// The identity of the target, as in `==`.
    #[inline]
    fn hash<S: Hasher>(&self, state: &mut S) {
        self.record().hash(state);
    }
}

impl<T: ?Sized> Default for GcWeak<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T: ?Sized> Clone for GcWeak<T> {
    fn clone(&self) -> Self {
        Self { record: self.record.clone(), target: PhantomData }
    }
}

impl<T: ?Sized + 'static> Trace for GcWeak<T> {
    const TRACKED: bool = false;

    fn traverse(_: &Self, _: &mut Tracer) {}
}

impl<T: ?Sized> fmt::Debug for GcWeak<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "GcWeak<{}>", std::any::type_name::<T>())
    }
}

/// The function that is called when the target of a [`WeakRef`] dies.
pub type WeakCallback<T, D> = fn(&Gc<WeakRef<T, D>>, &Mutator);

/// A weak reference with a callback. Because it is an object of the heap itself,
/// [`Mutator::alloc_weak`] allocates it.
///
/// The weak reference is cleared when its target dies or when a collection finds the target to be
/// garbage. Then the callback is called once, while the world runs. It is not called if the weak
/// reference is garbage itself at that time. If a child has searched, it may be called all the
/// same, because each [part](crate::ChildSearch::parts) is examined as if the others were alive.
///
/// A collection uses CPython's order:
///
/// 1. It clears the weak references with a callback and calls the callbacks.
/// 2. It runs the finalizers.
/// 3. It clears the other weak references to the target.
///
/// `data` holds the values that the callback needs, so the collector traverses it.
pub struct WeakRef<T, D> {
    record: Shared<WeakRecord>,
    cleared: Shared<AtomicBool>,
    data: D,
    callback: WeakCallback<T, D>,
    target: PhantomData<fn() -> Gc<T>>,
}

impl<T: Trace, D: Trace + Send + Sync> WeakRef<T, D> {
    unsafe fn invoke(header: NonNull<Header>, m: *const ()) {
        // A handle that borrows the caller's reference.
        // SAFETY: rule *typed*: `alloc` registered this function for an object of this type; `m` is
        // a mutator.
        let (this, m) = unsafe { (ManuallyDrop::new(Gc::<Self>::from_header(header)), mutator(m)) };
        (this.callback)(&this, m);
    }
}

impl<T: Trace, D> WeakRef<T, D> {
    /// A strong reference to the target, or `None` if the target is dead or this weak reference has
    /// been cleared.
    ///
    /// # Panics
    ///
    /// If the target is alive and belongs to another heap than the mutator. A target in a closed
    /// heap gives `None` instead.
    #[track_caller]
    pub fn upgrade(&self, m: &Mutator) -> Option<Gc<T>> {
        // Acquire: pairs with the release in `take_watchers`.
        if self.cleared.load(Ordering::Acquire) {
            return None;
        }
        let header = upgrade(&self.record, m, false)?;
        // SAFETY: rules *counted* and *typed*: the upgrade counted a reference; the record's target
        // is a `T`.
        Some(unsafe { Gc::from_header(header) })
    }

    /// The data for the callback.
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
    /// Allocates a weak reference to `target`. `callback` is called when the target dies.
    ///
    /// # Panics
    ///
    /// If the heap is full, or if memory for the weak records is refused.
    /// [`try_alloc_weak`](Self::try_alloc_weak) returns an error instead. If the target belongs to
    /// another heap than the mutator.
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
        match self.try_alloc_weak(target, data, callback) {
            Ok(weak) => weak,
            Err(error) => out_of_memory(error),
        }
    }

    /// Allocates a weak reference to `target`. `callback` is called when the target dies.
    ///
    /// # Errors
    ///
    /// If the heap is full, or if memory for the weak records is refused. The error contains the
    /// data, and the heap is unchanged.
    ///
    /// # Panics
    ///
    /// If the target belongs to another heap than the mutator.
    #[track_caller]
    pub fn try_alloc_weak<T, D>(
        &self,
        target: &Gc<T>,
        data: D,
        callback: WeakCallback<T, D>,
    ) -> Result<Gc<WeakRef<T, D>>, AllocError<D>>
    where
        T: Trace,
        D: Trace + Send + Sync,
    {
        check(target.header(), self);
        let raw = self.raw();
        let rooms = || -> Result<_, OutOfMemory> {
            let record = raw.model().weak.record(target.counts())?;
            let cleared = Shared::new(AtomicBool::new(false))?;
            let own = WeakRecord::without_target()?;
            let unborn = Unborn::<WeakRef<T, D>>::new(raw)?;
            let place = raw.model().weak.place(unborn.header())?;
            Ok((record, cleared, own, unborn, place))
        };
        let (record, cleared, own, unborn, place) = match rooms() {
            Ok(rooms) => rooms,
            Err(reason) => return Err(AllocError::of::<WeakRef<T, D>>(data, reason)),
        };
        // The last step that can fail, because no other code may run while the record is locked.
        let room = match record.room_for_watcher() {
            Ok(room) => room,
            Err(reason) => return Err(AllocError::of::<WeakRef<T, D>>(data, reason)),
        };
        let this = unborn.publish(WeakRef {
            record: record.clone(),
            cleared: cleared.clone(),
            data,
            callback,
            target: PhantomData,
        });
        place.set_target(&own, this.counts());
        room.add(WeakWatcher { weak_ref: own, cleared, invoke: WeakRef::<T, D>::invoke });
        Ok(this)
    }
}
