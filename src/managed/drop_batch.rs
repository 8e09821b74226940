//! A batch of values that were removed from garbage, to be dropped later.
//!
//! To clear a field takes a lock for a short time. To drop its value counts references to objects
//! anywhere in memory. If each value were dropped at once, each count would wait for one cache
//! miss. So a collection gathers the removed values, and prefetches their counts. When the batch is
//! dropped, the counts are in the cache. If the handles lie in a buffer, the buffer is prefetched
//! first, and the counts in a second round. A small amount of garbage is in the caches already, and
//! its values are dropped at once.
//!
//! A value stays in its [`BatchedValue`] until it is dropped, so a panic loses no value. The
//! collection drops the batch (`Managed::cleared`), or the mutator drops it when it ends. Values
//! run destructors, which may clear objects themselves. No object is being cleared then, so the
//! values of those objects are dropped at once.

use std::cell::{Cell, RefCell};
use std::mem::MaybeUninit;

use crate::base::event;
use crate::base::stress::Stress;
use crate::object::type_info::Object;

/// Words of the largest value in a batch: a `Vec`, and one more.
const VALUE_WORDS: usize = 4;
/// With fewer objects of garbage the counts are in the caches, and batches cost more than they
/// save.
const BATCHING_THRESHOLD: usize = 16_384;
/// Values in a full batch.
const BATCH_SIZE: usize = 128;

/// A value that a batch can contain.
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
    /// Whether there is room for a `T`.
    const fn fits<T>() -> bool {
        size_of::<T>() <= size_of::<[u64; VALUE_WORDS]>() && align_of::<T>() <= align_of::<u64>()
    }

    /// Adds a value that fits, and for which there is room.
    ///
    /// The value is written directly to its place. A copy would use wide loads, which wait for the
    /// narrow stores before them.
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
    /// Announces the number of objects that are cleared next. Under stress any number is enough for
    /// a batch.
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

    /// Drops `value`: in the next batch, if an object is being cleared.
    #[inline]
    pub(crate) fn drop_later<T: Batched>(&self, value: T) {
        // A value without references needs no prefetch. A value that is not in the batch is dropped
        // here.
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

    /// Whether no value waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.values.borrow().is_empty()
    }

    /// Whether the batch is full.
    pub(crate) fn is_full(&self) -> bool {
        self.values.borrow().len() >= BATCH_SIZE
    }

    /// Drops all values. `failed` gets each panic, and the object that contained the value.
    pub(crate) fn drop_all(&self, mut failed: impl FnMut(Object, Box<dyn std::any::Any + Send>)) {
        // Taken out of the cell: destructors of values may call this function.
        let mut values = self.values.take();
        for value in &values {
            if let Some(prefetch) = value.prefetch {
                // SAFETY: rule *pinned*: the value is in its place until it is dropped.
                let call = || unsafe { prefetch(value.value.as_ptr().cast()) };
                // The function may be user code, which can panic.
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
            // The vector is reused for its memory, up to a limit.
            values.shrink_to(2 * BATCH_SIZE);
            *place = values;
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use std::ptr::NonNull;
    use std::rc::Rc;

    use super::*;

    /// The calls and the drops of values, in order.
    type Log = Rc<RefCell<Vec<String>>>;

    /// When a value panics.
    #[derive(Clone, Copy, PartialEq)]
    enum Panics {
        Never,
        Ahead,
        InDrop,
    }

    /// A value that logs its drop.
    struct Logs<const BUFFERED: bool> {
        log: Log,
        name: usize,
        refers: bool,
        panics: Panics,
    }

    impl<const BUFFERED: bool> Batched for Logs<BUFFERED> {
        const IS_BUFFERED: bool = BUFFERED;

        fn prefetch_first(&self) -> bool {
            self.refers
        }

        fn prefetch_buffered(&self) {
            self.log.borrow_mut().push(format!("ahead {}", self.name));
            assert!(self.panics != Panics::Ahead, "ahead");
        }
    }

    impl<const BUFFERED: bool> Drop for Logs<BUFFERED> {
        fn drop(&mut self) {
            self.log.borrow_mut().push(format!("drop {}", self.name));
            assert!(self.panics != Panics::InDrop, "drop");
        }
    }

    /// A value that has no place in a batch.
    struct TooLarge {
        logs: Logs<false>,
        _words: [u64; VALUE_WORDS],
    }

    impl Batched for TooLarge {
        const IS_BUFFERED: bool = false;

        fn prefetch_first(&self) -> bool {
            self.logs.prefetch_first()
        }

        fn prefetch_buffered(&self) {}
    }

    /// An address, which is never followed.
    fn object(number: usize) -> Object {
        Object::new(NonNull::new((16 * number) as *mut u8).expect("not 0"))
    }

    struct Test {
        batch: DropBatch,
        log: Log,
    }

    impl Test {
        /// A batch that expects much garbage.
        fn new() -> Self {
            let test = Self { batch: DropBatch::default(), log: Log::default() };
            test.batch.expect(BATCHING_THRESHOLD, Stress::none());
            test
        }

        fn value<const BUFFERED: bool>(&self, name: usize) -> Logs<BUFFERED> {
            Logs { log: Rc::clone(&self.log), name, refers: true, panics: Panics::Never }
        }

        /// Drops a value while an object is being cleared.
        fn clear<T: Batched>(&self, from: usize, value: T) {
            self.batch.clearing(object(from), || self.batch.drop_later(value));
        }

        fn drop_all(&self) -> Vec<(Object, String)> {
            let mut failed = Vec::new();
            self.batch.drop_all(|from, payload| {
                failed.push((from, event::panic_message(payload).to_string()));
            });
            failed
        }

        fn log(&self) -> Vec<String> {
            self.log.take()
        }
    }

    #[test]
    fn a_value_waits_if_there_is_much_garbage_and_an_object_is_being_cleared() {
        let test = Test::new();
        let is_batched = |test: &Test| {
            test.clear(1, test.value::<false>(1));
            let is_batched = test.log().is_empty();
            assert!(test.drop_all().is_empty());
            assert_eq!(test.log().len(), usize::from(is_batched));
            is_batched
        };
        assert!(is_batched(&test));
        test.batch.expect(BATCHING_THRESHOLD - 1, Stress::none());
        assert!(!is_batched(&test), "a small amount of garbage");
        test.batch.expect(1, Stress::none().small_constants(true));
        assert!(is_batched(&test), "with small constants");
        test.batch.drop_later(test.value::<false>(2));
        assert_eq!(test.log(), ["drop 2"], "no object is being cleared");
        // An object that is cleared inside the clearing of another one.
        test.batch.clearing(object(1), || {
            test.clear(2, test.value::<false>(3));
            test.batch.drop_later(test.value::<false>(4));
        });
        assert_eq!(test.log(), [""; 0]);
        assert!(test.drop_all().is_empty());
        assert_eq!(test.log(), ["drop 3", "drop 4"]);
    }

    #[test]
    fn a_value_that_refers_to_nothing_or_has_no_room_is_dropped_at_once() {
        let test = Test::new();
        let mut value = test.value::<false>(1);
        value.refers = false;
        test.clear(1, value);
        assert_eq!(test.log(), ["drop 1"]);
        test.clear(1, TooLarge { logs: test.value(2), _words: [0; _] });
        assert_eq!(test.log(), ["drop 2"]);
    }

    #[test]
    fn a_batch_is_full_at_its_limit_and_is_dropped_in_order() {
        let test = Test::new();
        for name in 0..BATCH_SIZE {
            assert!(!test.batch.is_full());
            test.clear(1, test.value::<false>(name));
        }
        assert!(test.batch.is_full());
        assert!(test.drop_all().is_empty());
        assert!(!test.batch.is_full());
        let names: Vec<_> = (0..BATCH_SIZE).map(|name| format!("drop {name}")).collect();
        assert_eq!(test.log(), names);
        // Its memory is reused, up to a limit.
        let capacity = || test.batch.values.borrow().capacity();
        assert!((BATCH_SIZE..=2 * BATCH_SIZE).contains(&capacity()));
        (0..3 * BATCH_SIZE).for_each(|name| test.clear(1, test.value::<false>(name)));
        assert!(test.drop_all().is_empty());
        assert!((BATCH_SIZE..=2 * BATCH_SIZE).contains(&capacity()));
    }

    #[test]
    fn the_buffers_of_all_values_are_read_before_the_first_value_is_dropped() {
        let test = Test::new();
        test.clear(1, test.value::<true>(1));
        test.clear(1, test.value::<false>(2));
        test.clear(1, test.value::<true>(3));
        assert!(test.drop_all().is_empty());
        assert_eq!(test.log(), ["ahead 1", "ahead 3", "drop 1", "drop 2", "drop 3"]);
    }

    #[test]
    fn each_panic_is_told_with_its_object_and_every_value_is_dropped() {
        use Panics::{Ahead, InDrop, Never};

        let test = Test::new();
        for (name, panics) in [(1, Never), (2, InDrop), (3, Ahead), (4, InDrop)] {
            let mut value = test.value::<true>(name);
            value.panics = panics;
            test.clear(name, value);
        }
        let told = [(3, "ahead"), (2, "drop"), (4, "drop")];
        let told = told.map(|(name, text)| (object(name), text.to_owned()));
        assert_eq!(test.drop_all(), told);
        let names = ["ahead 1", "ahead 2", "ahead 3", "ahead 4"];
        let drops = ["drop 1", "drop 2", "drop 3", "drop 4"];
        assert_eq!(test.log(), [names, drops].concat());
    }

    /// A value whose drop removes another value from an object.
    struct Outer<'a>(&'a Test);

    impl Batched for Outer<'_> {
        const IS_BUFFERED: bool = false;

        fn prefetch_first(&self) -> bool {
            true
        }

        fn prefetch_buffered(&self) {}
    }

    impl Drop for Outer<'_> {
        fn drop(&mut self) {
            self.0.clear(2, self.0.value::<false>(1));
        }
    }

    #[test]
    fn a_value_that_is_removed_while_a_batch_is_dropped_waits_for_the_next() {
        let test = Test::new();
        test.clear(1, Outer(&test));
        assert!(test.drop_all().is_empty());
        assert_eq!(test.log(), [""; 0]);
        assert!(test.drop_all().is_empty());
        assert_eq!(test.log(), ["drop 1"]);
    }
}
