//! Floor 4: values that were taken out of garbage, to be dropped a little later.
//!
//! Clearing a field takes a lock, does little, and lets the lock go; dropping what was in it counts references to
//! objects anywhere in memory. One field after the other, each locked instruction would wait for the counts before it
//! to arrive, one cache miss after the other. So while a collection clears, what it takes out is kept here. By the time
//! that it is dropped, the counts that it leads to have been asked for, and have arrived: at once where the
//! value is a handle, in a round of its own where the handles lie in a buffer that must be fetched first.
//!
//! A value stays in its [`Discarded`] until that is dropped, so none is lost, whatever panics.

use std::cell::{Cell, RefCell};
use std::mem::MaybeUninit;

use crate::Trace;
use crate::event;
use crate::object::Object;

/// Words of the largest value that is kept: a `Vec` and one more.
const WORDS: usize = 4;
/// Values that are gathered before the collector is to drop them.
const ENOUGH: usize = 128;

/// A value of any type, up to a size.
struct Discarded {
    value: MaybeUninit<[u64; WORDS]>,
    /// Asks for the counts behind a buffer; `None`: that has been done.
    fetch: Option<unsafe fn(*const u8)>,
    drop: unsafe fn(*mut u8),
    /// The object whose field it was.
    from: Object,
}

impl Discarded {
    /// Keeps the value, or gives it back if it is too large.
    #[inline(always)]
    fn new<T: Trace>(value: T, from: Object) -> Result<Self, T> {
        /// # Safety
        ///
        /// `value` points to a live `T`.
        unsafe fn fetch<T: Trace>(value: *const u8) {
            // SAFETY: as the caller says.
            unsafe { &*value.cast::<T>() }.fetch_targets();
        }
        /// # Safety
        ///
        /// As for `fetch`, and the caller gives it up.
        unsafe fn drop<T>(value: *mut u8) {
            // SAFETY: as the caller says.
            unsafe { value.cast::<T>().drop_in_place() };
        }
        if size_of::<T>() > size_of::<[u64; WORDS]>() || align_of::<T>() > align_of::<u64>() {
            return Err(value);
        }
        let fetch = if T::INDIRECT { Some(fetch::<T> as unsafe fn(*const u8)) } else { None };
        let mut this = Self { value: MaybeUninit::uninit(), fetch, drop: drop::<T>, from };
        // SAFETY: it is large and aligned enough, as was just asked.
        unsafe { this.value.as_mut_ptr().cast::<T>().write(value) };
        Ok(this)
    }
}

impl Drop for Discarded {
    fn drop(&mut self) {
        // SAFETY: the value that `new` wrote; nobody uses it after this.
        unsafe { (self.drop)(self.value.as_mut_ptr().cast()) };
    }
}

/// What a mutator has discarded while it clears garbage.
#[derive(Default)]
pub(crate) struct Discard {
    /// The object that is being cleared. `None`: nothing is, and values are dropped at once.
    clearing: Cell<Option<Object>>,
    values: RefCell<Vec<Discarded>>,
}

impl Discard {
    /// Calls `f`, which clears `object`.
    pub(crate) fn clearing<R>(&self, object: Object, f: impl FnOnce() -> R) -> R {
        struct Restore<'a>(&'a Discard, Option<Object>);
        impl Drop for Restore<'_> {
            fn drop(&mut self) {
                self.0.clearing.set(self.1);
            }
        }
        let _restore = Restore(self, self.clearing.replace(Some(object)));
        f()
    }

    /// Drops `value`: later, if this comes out of what is being cleared.
    #[inline]
    pub(crate) fn discard<T: Trace>(&self, value: T) {
        // What leads to no counts has nothing to wait for.
        let Some(from) = self.clearing.get().filter(|_| value.fetch_target()) else { return drop(value) };
        match Discarded::new(value, from) {
            Ok(discarded) => self.values.borrow_mut().push(discarded),
            Err(value) => drop(value),
        }
    }

    /// Whether it is time to drop what there is.
    pub(crate) fn is_full(&self) -> bool {
        self.values.borrow().len() >= ENOUGH
    }

    /// Drops everything. `failed` hears of panics, and of the object that the value was taken out of.
    pub(crate) fn drop_all(&self, mut failed: impl FnMut(Object, Box<dyn std::any::Any + Send>)) {
        // What is dropped may run destructors, and these may do anything: even come here.
        let mut values = self.values.take();
        for value in &values {
            if let Some(fetch) = value.fetch {
                // SAFETY: the value is in its place until it is dropped.
                unsafe { fetch(value.value.as_ptr().cast()) };
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
            // For its room.
            *place = values;
        }
    }
}
