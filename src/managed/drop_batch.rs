//! Floor 4: values that were taken out of garbage, to be dropped a little later.
//!
//! Clearing a field takes a lock, does little, and lets the lock go; dropping what was in it counts references to
//! objects anywhere in memory. One field after the other, each locked instruction would wait for the counts before it
//! to arrive, one cache miss after the other. So while a collection clears, what it takes out is kept here. By the time
//! that it is dropped, the counts that it leads to have been asked for, and have arrived: at once where the
//! value is a handle, in a round of its own where the handles lie in a buffer that must be fetched first. Little garbage
//! is in the caches, and dropped at once.
//!
//! A value stays in its [`BatchedValue`] until that is dropped, so none is lost, whatever panics: they are dropped by the collection
//! (`Managed::cleared`), or at the latest when the mutator ends. Values run destructors, and these may clear
//! something themselves: nothing is being cleared at that time, so what they take out is dropped at once.

use std::cell::{Cell, RefCell};
use std::mem::MaybeUninit;

use crate::Trace;
use crate::base::event;
use crate::base::stress::Stress;
use crate::object::type_info::Object;

/// Words of the largest value that is kept: a `Vec` and one more.
const VALUE_WORDS: usize = 4;
/// Objects of garbage from which on keeping is worth its price: with fewer, the counts are in the caches.
const BATCHING_THRESHOLD: usize = 16_384;
/// Values that are gathered before the collector is to drop them.
const BATCH_SIZE: usize = 128;

/// A value of any type, up to a size.
struct BatchedValue {
    value: MaybeUninit<[u64; VALUE_WORDS]>,
    /// Asks for the counts behind a buffer; `None`: that has been done.
    fetch: Option<unsafe fn(*const u8)>,
    drop: unsafe fn(*mut u8),
    /// The object whose field it was.
    from: Object,
}

/// # Safety
///
/// `value` points to a live `T`.
unsafe fn fetch<T: Trace>(value: *const u8) {
    // SAFETY: as the caller says.
    unsafe { &*value.cast::<T>() }.fetch_targets();
}

/// # Safety
///
/// As for [`fetch`], and the caller gives the value up.
unsafe fn drop_in_place<T>(value: *mut u8) {
    // SAFETY: as the caller says.
    unsafe { value.cast::<T>().drop_in_place() };
}

impl BatchedValue {
    /// Whether there is room for a `T`.
    const fn fits<T>() -> bool {
        size_of::<T>() <= size_of::<[u64; VALUE_WORDS]>() && align_of::<T>() <= align_of::<u64>()
    }

    /// Adds a value that fits, for which there is room. In its place at once: built elsewhere and copied, the copy's wide loads would
    /// wait for the narrow stores before them.
    #[inline(always)]
    fn push<T: Trace>(values: &mut Vec<Self>, value: T, from: Object) {
        assert!(const { Self::fits::<T>() });
        assert!(values.len() < values.capacity());
        let place = values.as_mut_ptr();
        // SAFETY: rule B: there is room for one more, whose fields are all written before it is counted; the value fits.
        unsafe {
            let place = place.add(values.len());
            (&raw mut (*place).value).cast::<T>().write(value);
            (&raw mut (*place).fetch).write(if T::INDIRECT { Some(fetch::<T>) } else { None });
            (&raw mut (*place).drop).write(drop_in_place::<T>);
            (&raw mut (*place).from).write(from);
            values.set_len(values.len() + 1);
        }
    }
}

impl Drop for BatchedValue {
    fn drop(&mut self) {
        // SAFETY: rule V: the value that `push` wrote; nobody uses it after this.
        unsafe { (self.drop)(self.value.as_mut_ptr().cast()) };
    }
}

/// What a mutator has discarded while it clears garbage.
#[derive(Default)]
pub(crate) struct DropBatch {
    /// Whether the garbage is more than the caches hold.
    worthwhile: Cell<bool>,
    /// The object that is being cleared. `None`: nothing is, and values are dropped at once.
    clearing: Cell<Option<Object>>,
    values: RefCell<Vec<BatchedValue>>,
}

impl DropBatch {
    /// So many objects are about to be cleared. In stress any number is worth it.
    pub(crate) fn expect(&self, objects: usize, stress: Stress) {
        self.worthwhile.set(objects >= stress.shrink(BATCHING_THRESHOLD));
    }

    /// Calls `f`, which clears `object`.
    #[inline]
    pub(crate) fn clearing<R>(&self, object: Object, f: impl FnOnce() -> R) -> R {
        if !self.worthwhile.get() {
            return f();
        }
        struct ResetClearing<'a>(&'a DropBatch, Option<Object>);
        impl Drop for ResetClearing<'_> {
            fn drop(&mut self) {
                self.0.clearing.set(self.1);
            }
        }
        let _restore = ResetClearing(self, self.clearing.replace(Some(object)));
        f()
    }

    /// Drops `value`: later, if this comes out of what is being cleared.
    #[inline]
    pub(crate) fn drop_later<T: Trace>(&self, value: T) {
        // What leads to no counts has nothing to wait for.
        match self.clearing.get() {
            Some(from)
                if const { BatchedValue::fits::<T>() }
                    && value.fetch_target()
                    && self.has_room() =>
            {
                BatchedValue::push(&mut self.values.borrow_mut(), value, from);
            }
            _ => drop(value),
        }
    }

    /// Whether another value can be kept. Without memory for it, it cannot.
    #[inline(always)]
    fn has_room(&self) -> bool {
        #[cold]
        #[inline(never)]
        fn make_room(values: &mut Vec<BatchedValue>) -> bool {
            values.try_reserve(1).is_ok()
        }
        let mut values = self.values.borrow_mut();
        values.len() < values.capacity() || make_room(&mut values)
    }

    /// Whether it is time to drop what there is.
    pub(crate) fn is_full(&self) -> bool {
        self.values.borrow().len() >= BATCH_SIZE
    }

    /// Drops everything. `failed` hears of panics, and of the object that the value was taken out of.
    pub(crate) fn drop_all(&self, mut failed: impl FnMut(Object, Box<dyn std::any::Any + Send>)) {
        // Out of its place: what is dropped may run destructors, and these may do anything, even come here.
        let mut values = self.values.take();
        for value in &values {
            if let Some(fetch) = value.fetch {
                // SAFETY: rule V: the value is in its place until it is dropped.
                let call = || unsafe { fetch(value.value.as_ptr().cast()) };
                // The function can be the user's.
                if let Err(payload) = event::guarded(call) {
                    failed(value.from, payload);
                }
            }
        }
        let mut left = values.drain(..);
        let mut at = None;
        while let Err(payload) = event::guarded(|| {
            for value in &mut left {
                at = Some(value.from);
                drop(value);
            }
        }) {
            if let Some(from) = at {
                failed(from, payload);
            }
        }
        drop(left);
        let mut place = self.values.borrow_mut();
        if place.is_empty() {
            // For its room, within reason.
            values.shrink_to(2 * BATCH_SIZE);
            *place = values;
        }
    }
}
