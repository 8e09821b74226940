//! A collection that clears a field must drop its value, which lowers the counts of objects
//! anywhere in memory. If each value were dropped at once, each count would wait for one cache
//! miss. So a collection gathers the removed values in a *batch* and prefetches their counts, which
//! are in the cache when the batch is dropped. If the handles lie in a buffer, the buffer is
//! prefetched first, because only it tells where the counts are. The values of a small amount of
//! garbage are dropped at once, because it is in the caches already.
//!
//! A value stays in its [`BatchedValue`] until it is dropped, so a panic loses no value. The
//! collection drops the batch (`Managed::cleared`), or the mutator when it ends after a panic has
//! left values in it. Destructors of values may clear objects themselves, whose values are dropped
//! at once, because the collection is not clearing an object then.

use std::cell::{Cell, RefCell};
use std::mem::MaybeUninit;

use crate::base::outside;
use crate::base::stress::Stress;
use crate::object::address::Object;

/// Words of the largest value in a batch: a `Vec`, and one more.
const VALUE_WORDS: usize = 4;
/// With fewer objects of garbage, batches cost more than they save, because the counts are in the
/// caches.
const BATCHING_THRESHOLD: usize = 16_384;
/// Values in a full batch.
const BATCH_SIZE: usize = 128;

pub(crate) trait Batched {
    /// Whether the handles of the value lie in a buffer.
    const IS_BUFFERED: bool;

    /// Prefetches the count of the object that the value refers to, or the buffer of its handles;
    /// `false`: the value refers to no object.
    fn prefetch_first(&self) -> bool;

    /// Prefetches the counts of the handles in the buffer, which is in the cache.
    fn prefetch_buffered(&self);
}

/// A value of any type, up to a size.
struct BatchedValue {
    value: MaybeUninit<[u64; VALUE_WORDS]>,
    /// Prefetches the counts behind a buffer; `None`: there is no buffer.
    prefetch: Option<unsafe fn(*const u8)>,
    drop: unsafe fn(*mut u8),
    /// The object that contained the value.
    from: Object,
}

/// # Safety
///
/// `value` points to a live `T`.
unsafe fn prefetch<T: Batched>(value: *const u8) {
    // SAFETY: as the caller says.
    unsafe { &*value.cast::<T>() }.prefetch_buffered();
}

/// # Safety
///
/// As for [`prefetch`], and the caller gives the value up.
unsafe fn drop_in_place<T>(value: *mut u8) {
    // SAFETY: as the caller says.
    unsafe { value.cast::<T>().drop_in_place() };
}

impl BatchedValue {
    const fn fits<T>() -> bool {
        size_of::<T>() <= size_of::<[u64; VALUE_WORDS]>() && align_of::<T>() <= align_of::<u64>()
    }

    /// Adds a value that fits, and for which there is room.
    ///
    /// The value is written directly to its place, because a copy would use wide loads, which wait
    /// for the narrow stores before them.
    #[inline(always)]
    fn push<T: Batched>(values: &mut Vec<Self>, value: T, from: Object) {
        assert!(const { Self::fits::<T>() });
        assert!(values.len() < values.capacity());
        let place = values.as_mut_ptr();
        // SAFETY: rule *bounds*: there is room for one more, and all its fields are written before
        // it is counted; the value fits.
        unsafe {
            let place = place.add(values.len());
            (&raw mut (*place).value).cast::<T>().write(value);
            (&raw mut (*place).prefetch).write(if T::IS_BUFFERED {
                Some(prefetch::<T>)
            } else {
                None
            });
            (&raw mut (*place).drop).write(drop_in_place::<T>);
            (&raw mut (*place).from).write(from);
            values.set_len(values.len() + 1);
        }
    }
}

impl Drop for BatchedValue {
    fn drop(&mut self) {
        // SAFETY: rule *pinned*: `push` wrote the value, and it is not used after this.
        unsafe { (self.drop)(self.value.as_mut_ptr().cast()) };
    }
}

/// The values that a mutator has removed from garbage, and drops later.
#[derive(Default)]
pub(crate) struct DropBatch {
    /// Whether the garbage is more than the caches hold.
    worthwhile: Cell<bool>,
    /// The object that is being cleared; `None`: values are dropped at once.
    clearing: Cell<Option<Object>>,
    values: RefCell<Vec<BatchedValue>>,
}

impl DropBatch {
    /// Announces the number of objects that are cleared next, which decides whether a batch is
    /// worthwhile. With the small constants of stress one is enough, so that small tests use
    /// batches.
    pub(crate) fn expect(&self, objects: usize, stress: Stress) {
        self.worthwhile.set(objects >= stress.shrink(BATCHING_THRESHOLD));
    }

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

    /// Drops `value`: in the next batch, if an object is being cleared.
    #[inline]
    pub(crate) fn drop_later<T: Batched>(&self, value: T) {
        // A value without references needs no prefetch, and like all others that are not in the
        // batch, it is dropped here.
        if let Some(from) = self.clearing.get()
            && const { BatchedValue::fits::<T>() }
            && value.prefetch_first()
            && self.has_room()
        {
            BatchedValue::push(&mut self.values.borrow_mut(), value, from);
        }
    }

    /// Whether there is memory for another value.
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

    pub(crate) fn is_empty(&self) -> bool {
        self.values.borrow().is_empty()
    }

    pub(crate) fn is_full(&self) -> bool {
        self.values.borrow().len() >= BATCH_SIZE
    }

    /// Drops all values. `failed` gets each panic, and the object that contained the value.
    pub(crate) fn drop_all(&self, mut failed: impl FnMut(Object, Box<dyn std::any::Any + Send>)) {
        // Taken out of the cell, because destructors of values may call this function.
        let mut values = self.values.take();
        for value in &values {
            if let Some(prefetch) = value.prefetch {
                // SAFETY: rule *pinned*: the value is in its place until it is dropped.
                let call = || unsafe { prefetch(value.value.as_ptr().cast()) };
                // The function may be user code, which can panic.
                if let Err(payload) = outside::guarded(call) {
                    failed(value.from, payload);
                }
            }
        }
        let mut left = values.drain(..);
        let mut at = None;
        while let Err(payload) = outside::guarded(|| {
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
            // The next batch reuses the memory, but no more than two full batches need.
            values.shrink_to(2 * BATCH_SIZE);
            *place = values;
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
